"""How far an answer is off: over clusters as tested and as trained on, these themselves being uncertain.

An answer is a sum over records of influences ψ_i (Σ ψ_i = 0). Its variance over new clusters is Σ_ij P(i ~ j) ψ_i ψ_j, with
P(i ~ j) the probability that two records are of one entity: the mean over drawn partitions of

    V = Σ_c (Σ_{i ∈ c} ψ_i)² / (1 − n_c/n),

the within-part of Rubin's rules. Student's degrees of freedom are Satterthwaite's for clusters of these sizes. What clusters do
by being trained on is seen by leaving pairs of folds out.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import stats

from .._errors import as_trained as as_trained, over_units

Partitions = Int[np.ndarray, "draws rows"]


class Spread(NamedTuple):
    """A variance, and the degrees of freedom it is known by."""

    variance: float
    freedom: float


def over_clusters(influence: Float[np.ndarray, " rows"], partitions: Partitions, tested: NDArray[np.bool_]) -> Spread:
    """Of an answer with these influences, over the clusters of rows that are tested."""
    found = [over_units(influence[tested], own[tested]) for own in partitions]
    return Spread(*(float(np.mean(part)) for part in zip(*found, strict=True)))


def half_width(variance: float, freedom: float, level: float) -> float:
    """Student's."""
    return float(stats.t.ppf(0.5 + level / 2, freedom) * np.sqrt(variance)) if np.isfinite(variance) else float("nan")
