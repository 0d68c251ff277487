"""Independent answers that tests and benchmarks share. Nothing here imports the library.

`newton` has losses written out again and a Newton method for many folds, `likelihoods` has models
with hidden states and with parameters of their own, `dense_fields` has Gaussian fields by dense
algebra, and `exact` has arithmetic of sixty digits. The problems that build objects of the library
stand in `tests.problems`.
"""

from tests.oracles.newton import (
    CLOGLOG as CLOGLOG,
    LOGISTIC as LOGISTIC,
    POISSON as POISSON,
    PROBIT as PROBIT,
    SQUARED_HINGE as SQUARED_HINGE,
    Classes as Classes,
    Rows as Rows,
    Written as Written,
    gamma as gamma,
    huber as huber,
    negative_binomial as negative_binomial,
    pseudo_huber as pseudo_huber,
    pseudo_huber_penalty as pseudo_huber_penalty,
    refit_of as refit_of,
    refits as refits,
    ridge as ridge,
    student as student,
)
