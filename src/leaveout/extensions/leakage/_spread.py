"""Variance of a number over other data.

The influence of each record as tested, and as trained on.
"""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from ._injection import FoldInjection
from ._models import Shares
from ._run import FitWork, LevelDraws, LevelNumbers
from ._study import FoldEffects, PredictionWork, leave_pairs_out
from ._variance import TrainingInfluence

MIN_CLUSTERS_A_SIDE = 8  # clusters on each side below which records are the independent units


def units(plan: list[FoldInjection]) -> tuple[Int[ndarray, " records"], bool]:
    """Return the independent units, and whether these are clusters.

    They are records if clusters are few.
    """
    clusters = plan[0].fold.clusters
    sides = [clusters]
    if len(plan) == 1:
        sides = [clusters[plan[0].fold.train], clusters[plan[0].fold.test]]
    if min(len(np.unique(side)) for side in sides) >= MIN_CLUSTERS_A_SIDE:
        return clusters, True
    return np.arange(len(clusters)), False


def draws_resolve(plan: list[FoldInjection]) -> bool:
    """Tell whether the draws resolve the influence of training."""
    # 0.5: largest share of T̂ in training from which draws show the influence of training
    return all(
        part.mechanism == "record" and part.size <= 0.5 * len(part.fold.train) for part in plan
    )


def left_out(work: FitWork) -> FoldEffects | None:
    """Compute the contribution of each fold to the score without another in its training, minus its
    contribution with it.

    Returns None if the folds are not a partition, or are fewer than three, or many.
    """
    plan = work.plan
    rows = np.sort(np.concatenate([part.fold.test for part in plan]))
    folds = len(plan)
    complete = all(
        np.array_equal(np.sort(np.r_[part.fold.train, part.fold.test]), rows) for part in plan
    )
    # 12: largest number of folds whose pairs are left out
    if not 3 <= folds <= 12 or not complete or len(np.unique(rows)) < len(rows):
        return None
    return leave_pairs_out(
        [part.fold for part in plan], work.y, work.score, PredictionWork(work.learner, plan[0].seed)
    )


def as_tested(
    plan: list[FoldInjection],
    records: list[Float[ndarray, "levels _"]],
    levels: list[LevelDraws],
    weights: LevelNumbers,
    shares: Shares | None,
) -> Float[ndarray, " records"]:
    """Compute the influence of every record, as tested, on `Σ_k w_k weights @ mean(levels_k)`.

    w is the share of the records that a fold tests. The influence follows from each record's mean
    loss at every level.
    """
    out = np.zeros(len(plan[0].fold.clusters))
    total = sum(len(part.fold.test) for part in plan)
    means = [float(weights @ level.mean(1)) for level in levels]
    center = sum(len(part.fold.test) / total * mean for part, mean in zip(plan, means, strict=True))
    for k, (part, losses, fold_mean) in enumerate(zip(plan, records, means, strict=True)):
        seen = np.isfinite(losses)
        mean = np.where(seen, losses, 0.0).sum(1, keepdims=True) / np.maximum(
            seen.sum(1, keepdims=True), 1
        )
        record = np.where(seen, losses - mean, 0.0)
        scale = 1.0
        if shares is not None:
            scale = (1 - shares.p_train[k]) / (1 - shares.p_train[k] - shares.p_test[k])
        value = fold_mean + scale * (weights @ record)
        out[part.fold.test] += (value - center) / total
    return out


def drawn_influence(
    plan: list[FoldInjection],
    levels: list[LevelDraws],
    weights: LevelNumbers,
) -> TrainingInfluence:
    """Estimate the influence of every unit through training, by the covariance of counts and losses
    over draws.
    """
    unit, _ = units(plan)
    size = int(unit.max()) + 1
    total = sum(len(part.fold.test) for part in plan)
    change = np.zeros(size)
    noise = 0.0
    for part, level in zip(plan, levels, strict=True):
        draws = level.shape[1]
        deviation = weights[:, None] * (level - level.mean(1, keepdims=True))
        train_rows, test_rows, _ = part.fold
        train = len(train_rows)
        test = len(test_rows)
        summed = np.zeros(size)
        square = np.zeros(size)
        # 2**22: numbers in the counts of a batch of draws
        step = max(1, 2**22 // max(part.size, size))
        for start in range(0, draws, step):
            stop = min(start + step, draws)
            trained = part.draw(start, stop).train
            influences = np.zeros((stop - start, size))
            for row in range(len(level)):
                injected = np.isin(trained[:, row], test_rows).sum(1).mean()
                share = np.zeros(len(unit))
                scale = np.zeros(len(unit))
                share[train_rows] = (part.size - injected) / train
                share[test_rows] = injected / test
                scale[train_rows] = (train - 1) / max(train - part.size + injected, 1.0)
                scale[test_rows] = (test - 1) / max(test - injected, 1.0)
                cell = np.arange(stop - start)[:, None] * size + unit[trained[:, row]]
                counts = np.bincount(
                    cell.ravel(), scale[trained[:, row]].ravel(), (stop - start) * size
                ).reshape(-1, size)
                influences += deviation[row, start:stop, None] * (
                    counts - np.bincount(unit, share * scale, size)
                )
            summed += influences.sum(0)
            square += (influences**2).sum(0)
        variance = np.maximum(square - summed**2 / draws, 0.0) / draws**2  # of the draws
        share_tested = test / total
        change += share_tested * (summed / draws)
        noise += share_tested**2 * float(np.sum(variance))
    return TrainingInfluence(change, unit, noise)
