"""The contract of a model.

An objective F(θ, w) with records of its units, its parameters and its costs.
"""

from ..objectives import (
    AbstractClosedForm as AbstractClosedForm,
    AbstractLinearPredictor as AbstractLinearPredictor,
    Costs as Costs,
    Parameters as Parameters,
    Units as Units,
)
