"""Emissions: the density of an observation given the state of a hidden Markov model."""

from ._base import POSITIVE as POSITIVE
from ._base import PROBABILITY as PROBABILITY
from ._base import REAL as REAL
from ._base import SIMPLEX as SIMPLEX
from ._base import AbstractEmission as AbstractEmission
from ._base import Constraint as Constraint
from .autoregressive import Autoregressive as Autoregressive
from .autoregressive import NeuralAutoregressive as NeuralAutoregressive
from .categorical import Categorical as Categorical
from .counts import Binomial as Binomial
from .counts import NegativeBinomial as NegativeBinomial
from .counts import Poisson as Poisson
from .event_counts import EventCounts as EventCounts
from .gaussian import Gaussian as Gaussian
