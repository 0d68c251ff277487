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

Partitions = Int[np.ndarray, "draws rows"]


class Spread(NamedTuple):
    """A variance, and the degrees of freedom it is known by."""

    variance: float
    freedom: float


def over_clusters(influence: Float[np.ndarray, " rows"], partitions: Partitions, tested: NDArray[np.bool_]) -> Spread:
    """Of an answer with these influences, over the clusters of rows that are tested."""
    found = [_of_one(influence[tested], own[tested]) for own in partitions]
    return Spread(*(float(np.mean(part)) for part in zip(*found, strict=True)))


def _of_one(influence: NDArray[np.float64], clusters: NDArray[np.int64]) -> Spread:
    code = np.unique(clusters, return_inverse=True)[1]
    sums, sizes = np.bincount(code, influence), np.bincount(code)
    if len(sizes) < 2:
        return Spread(float("nan"), 1.0)
    share = sizes / len(code)
    variance = float(np.sum(sums**2 / (1 - share)))
    single, joint = np.sum(influence**2), np.sum(sizes * (sizes - 1.0)) / len(code)
    alike = np.clip((np.sum(sums**2) - single) / max(single * joint, 1e-300), 0.0, 1.0)  # the correlation within clusters
    each = sizes * (1 + alike * (sizes - 1.0))
    return Spread(variance, max(float(np.sum(each) ** 2 / np.sum(each**2)) - 1, 1.0))


def as_trained(moved: Float[np.ndarray, "folds folds"]) -> float:
    """What training adds to the variance of a score over folds: Σ_{i ≠ j} C_ij C_ji, if that is positive.

    `moved[i, j]` is what fold i adds to the score without fold j in its training, less what it adds as it is; C is that less
    its mean. The losses of two clusters in different folds depend on one another as each is in the other's training set:
    their covariance is the expected product of what the one does to the other, both ways. What a cluster does to all others
    alike is in no product of first order; squares of C would count what is in the variance as tested already.
    """
    off = ~np.eye(len(moved), dtype=bool)
    C = np.where(off, moved - moved[off].mean(), 0.0)
    return max(float(np.sum(C * C.T)), 0.0)


def half_width(variance: float, freedom: float, level: float) -> float:
    """Student's."""
    return float(stats.t.ppf(0.5 + level / 2, freedom) * np.sqrt(variance)) if np.isfinite(variance) else float("nan")
