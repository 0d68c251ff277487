"""The public names of bayes."""

from .extensions.bayes.densities import from_posterior as from_posterior
from .extensions.bayes.elpd import elpd as elpd
from .extensions.bayes.numpyro import from_numpyro as from_numpyro
from .extensions.bayes.pymc import from_pymc as from_pymc
from .extensions.bayes.stan import from_stan as from_stan
