"""How far ê₀ would move with other data: each cluster's influence, as tested and, by the infinitesimal jackknife, as trained.

The influence of training on a cluster is the covariance, over draws, of how many of its records were drawn with the loss
(Efron 2014); for n of N records without replacement it is scaled by (N − 1)/(N − n). Its Monte-Carlo bias is subtracted. Where
draws hold most of T̂ that scale is large and the noise drowns the influence: then clusters vary as tested only.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from ._injection import FoldInjection
from ._models import Shares
from ._pool import Pooled
from ._run import FoldLosses

FEW = 8  # clusters a side, below which records are what varies
RESOLVED = 0.5  # of T̂: the largest training set from which the influence of training is told
CHUNK = 2**22  # numbers in the counts of a batch of draws


def data_error(
    plan: list[FoldInjection], runs: list[FoldLosses], pooled: Pooled, shares: Shares, weights: Float[np.ndarray, " levels"]
) -> tuple[float, str]:
    """The standard error of `weights @ b` over data, and over what: clusters, or records where clusters are few."""
    clusters = plan[0].fold.clusters
    sides = [len(np.unique(clusters[rows])) for part in plan for rows in (part.fold.train, part.fold.test)]
    single = len(plan) == 1
    by_cluster = min(sides) >= FEW if single else len(np.unique(clusters)) >= FEW
    unit = clusters if by_cluster else np.arange(len(clusters))
    size = int(unit.max()) + 1
    tested, trained, bias = np.zeros(size), np.zeros(size), np.zeros(size)
    resolved = all(part.mechanism == "record" and part.size <= RESOLVED * len(part.fold.train) for part in plan)
    center = float(weights @ pooled.b)
    for k, (part, run) in enumerate(zip(plan, runs, strict=True)):
        mine = unit[part.fold.test]
        tested += pooled.weight[k] * _as_tested(run, pooled.combined[k], shares, k, weights, center, mine, size)
        if not resolved:
            continue
        influence, noise = _as_trained(part, run, pooled.combined[k], weights, unit, size)
        trained += pooled.weight[k] * influence
        bias += pooled.weight[k] ** 2 * noise
    both = tested + trained
    number = max(int(np.count_nonzero(tested)), 2)
    variance = np.sum(tested**2) * number / (number - 1)
    variance += max(np.sum(both**2 - tested**2) - np.sum(bias), 0.0)
    kind = "clusters" if by_cluster else "records within these clusters; new clusters differ more"
    return float(np.sqrt(variance)), kind if resolved else f"{kind}, as tested"


def _as_tested(
    run: FoldLosses,
    combined: NDArray[np.float64],
    shares: Shares,
    k: int,
    weights: NDArray[np.float64],
    center: float,
    mine: NDArray[np.int64],
    size: int,
) -> NDArray[np.float64]:
    """Each unit's share of the fold's mean, less the mean over all folds."""
    p, q = shares.p_train[k], shares.p_test[k]
    record = run.record / np.maximum(run.times, 1)
    level = weights @ combined.mean(1)
    scale = (1 - p) / (1 - p - q)
    value = level + scale * (weights @ (record - record.mean(1, keepdims=True)))
    return np.bincount(mine, value - center, size) / len(mine)


def _as_trained(
    part: FoldInjection,
    run: FoldLosses,
    combined: NDArray[np.float64],
    weights: NDArray[np.float64],
    unit: NDArray[np.int64],
    size: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The influence of every unit by the covariance of counts and losses, and the variance of that by Monte Carlo."""
    levels, draws = combined.shape
    off = weights[:, None] * (combined - combined.mean(1, keepdims=True))
    train, test = len(part.fold.train), len(part.fold.test)
    total, square = np.zeros(size), np.zeros(size)
    step = max(1, CHUNK // max(part.size, size))
    for start in range(0, draws, step):
        stop = min(start + step, draws)
        drawn = part.draw(start, stop).train
        each = np.zeros((stop - start, size))
        for level in range(levels):
            injected = np.isin(drawn[:, level], part.fold.test).sum(1).mean()
            share, scale = np.zeros(len(unit)), np.zeros(len(unit))
            share[part.fold.train], share[part.fold.test] = (part.size - injected) / train, injected / test
            scale[part.fold.train] = (train - 1) / max(train - part.size + injected, 1.0)
            scale[part.fold.test] = (test - 1) / max(test - injected, 1.0)
            at = np.arange(stop - start)[:, None] * size + unit[drawn[:, level]]
            counts = np.bincount(at.ravel(), scale[drawn[:, level]].ravel(), (stop - start) * size).reshape(-1, size)
            each += off[level, start:stop, None] * (counts - np.bincount(unit, share * scale, size))
        total += each.sum(0)
        square += (each**2).sum(0)
    return total / draws, np.maximum(square - total**2 / draws, 0.0) / draws**2
