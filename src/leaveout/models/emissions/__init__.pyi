"""The public names of emissions."""

from ._base import (
    POSITIVE as POSITIVE,
    PROBABILITY as PROBABILITY,
    REAL as REAL,
    SIMPLEX as SIMPLEX,
    AbstractEmission as AbstractEmission,
    Constraint as Constraint,
)
from .autoregressive import (
    Autoregressive as Autoregressive,
    NeuralAutoregressive as NeuralAutoregressive,
)
from .categorical import Categorical as Categorical, Observed as Observed
from .counts import Binomial as Binomial, NegativeBinomial as NegativeBinomial, Poisson as Poisson
from .event_counts import EventCounts as EventCounts
from .gaussian import Gaussian as Gaussian
