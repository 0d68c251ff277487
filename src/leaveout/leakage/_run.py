"""All fits of all folds: draw, fit, score what was neither injected nor trained on; stop and resume where wanted."""

import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from .._progress import Slow
from ._fits import CAPACITY, AbstractLearner
from ._injection import Draws, FoldInjection
from ._losses import Measure

PAUSE = 10.0  # seconds between two checkpoints


@dataclass(eq=False)
class FoldLosses:
    """What the fits of one fold lost, at each level and draw.

    `test` `[levels, draws]`, the mean over what is left of V̂; `outside` likewise over records of T̂ that were not trained on
    (NaN where not needed); `cluster` `[levels, draws, clusters of V̂]`; `record` and `times` `[levels, records of V̂]`,
    summed losses and how often each was scored; `histogram` `[levels, draws, bins]`, shares of the losses.
    """

    test: Float[np.ndarray, "levels draws"]
    outside: Float[np.ndarray, "levels draws"]
    cluster: Float[np.ndarray, "levels draws clusters"]
    record: Float[np.ndarray, "levels test"]
    times: Float[np.ndarray, "levels test"]
    histogram: Float[np.ndarray, "levels draws bins"]
    members: NDArray[np.int64] = field(repr=False)  # the position in `clusters` of each record of V̂
    clusters: NDArray[np.int64] = field(repr=False)  # the clusters of V̂

    ARRAYS = ("test", "outside", "cluster", "record", "times", "histogram")


def empty_losses(part: FoldInjection, num_boot: int, bins: int) -> FoldLosses:
    """All NaN, sums zero."""
    clusters, members = np.unique(part.fold.clusters[part.fold.test], return_inverse=True)
    levels, test = len(part.levels), len(part.fold.test)
    lost = lambda *shape: np.full((levels, num_boot, *shape), np.nan)
    sums = (np.zeros((levels, test)), np.zeros((levels, test)))
    return FoldLosses(lost(), lost(), lost(len(clusters)), *sums, lost(bins), members, clusters)


def run(
    plan: list[FoldInjection],
    learner: AbstractLearner,
    measure: Measure,
    y: Float[np.ndarray, " records"],
    num_boot: int,
    *,
    outside: bool,
    edges: NDArray[np.float64] | None = None,
    checkpoint: str | os.PathLike | None = None,
    fingerprint: str = "",
) -> list[FoldLosses]:
    """The losses of every fold. A run that was stopped goes on from its `checkpoint`, to the same numbers."""
    bins = 0 if edges is None else len(edges) - 1
    results = [empty_losses(part, num_boot, bins) for part in plan]
    chunks = [(k, *chunk) for k, part in enumerate(plan) for chunk in _chunks(part, learner, num_boot)]
    done = 0 if checkpoint is None else _resume(Path(checkpoint), results, fingerprint)
    saved = time.monotonic()
    with Slow("draws", len(chunks)) as bar:
        bar.advance(done)
        for number in range(done, len(chunks)):
            k, start, stop = chunks[number]
            part = plan[k]
            drawn = part.draw(start, stop)
            _one_chunk(part, drawn, start, learner, measure, y, results[k], outside, edges)
            bar.advance()
            if checkpoint is not None and (time.monotonic() - saved > PAUSE or number + 1 == len(chunks)):
                _save(Path(checkpoint), results, number + 1, fingerprint)
                saved = time.monotonic()
    return results


def _chunks(part: FoldInjection, learner: AbstractLearner, num_boot: int) -> list[tuple[int, int]]:
    """Runs of draws whose arrays stay within the capacity; they depend on nothing but sizes."""
    each = len(part.levels) * (part.size * learner.cost + 4 * (len(part.fold.test) + part.left))
    count = max(1, min(num_boot, 2 * CAPACITY // each))
    return [(start, min(start + count, num_boot)) for start in range(0, num_boot, count)]


def _one_chunk(
    part: FoldInjection,
    drawn: Draws,
    start: int,
    learner: AbstractLearner,
    measure: Measure,
    y: NDArray[np.float64],
    result: FoldLosses,
    outside: bool,
    edges: NDArray[np.float64] | None,
) -> None:
    draws, levels, size = drawn.train.shape
    rows = drawn.train.reshape(-1, size)
    own = np.repeat(drawn.outside if outside else drawn.outside[:, :0], levels, axis=0)
    seeds = np.repeat(np.array([_seed(part, r) for r in range(start, start + draws)]), levels)
    at = slice(start, start + draws)
    shared, beside = learner(rows, part.fold.test, own, seeds)
    target = y[part.fold.test]
    scored = drawn.scored.reshape(len(rows), -1)
    back = lambda values: values.reshape(draws, levels, *values.shape[1:]).swapaxes(0, 1)
    if not measure.per_record:
        pairs = zip(scored, shared, strict=True)
        result.test[:, at] = back(np.array([float(measure.function(target[use], p[use])) for use, p in pairs]))
        return
    losses = np.where(scored, measure(target, shared), 0.0)
    sums, counts = _by_cluster(losses, result), _by_cluster(scored * 1.0, result)
    with np.errstate(invalid="ignore"):
        result.cluster[:, at] = back(sums / counts)
        if part.mechanism == "split":  # what is left of a cluster stands for all of it
            result.test[:, at] = back(sums / counts @ np.bincount(result.members) / len(target))
        else:
            result.test[:, at] = back(losses.sum(1) / scored.sum(1))
    result.record += back(losses).sum(1)
    result.times += back(scored).sum(1)
    if outside:
        result.outside[:, at] = back(measure(y[own], beside).mean(1))
    if edges is not None:
        into = np.searchsorted(edges[1:-1], losses, side="right")
        shares = [np.where(scored, into == k, False).sum(1) / scored.sum(1) for k in range(len(edges) - 1)]
        result.histogram[:, at] = back(np.stack(shares, -1))


def _by_cluster(values: NDArray[np.float64], result: FoldLosses) -> NDArray[np.float64]:
    order = np.argsort(result.members, kind="stable")
    starts = np.searchsorted(result.members[order], np.arange(len(result.clusters)))
    return np.add.reduceat(values[:, order], starts, axis=1)


def _seed(part: FoldInjection, draw: int) -> int:
    """For the estimator's own random numbers: one a draw, common to all levels."""
    return int(np.random.SeedSequence([part.seed, part.number, draw, 1]).generate_state(1)[0] >> 1)


def fingerprint(*parts: Any) -> str:
    """A hash of all that the losses depend on."""
    return hashlib.sha256("|".join(p if isinstance(p, str) else joblib.hash(p) for p in parts).encode()).hexdigest()


def _resume(file: Path, results: list[FoldLosses], mark: str) -> int:
    if not file.exists():
        if not file.parent.is_dir():
            raise ValueError(f"leakage_corrected: checkpoint={file}: there is no folder {file.parent}; make it first.")
        return 0
    with np.load(file, allow_pickle=False) as stored:
        if str(stored["fingerprint"]) != mark:
            raise ValueError(
                f"leakage_corrected: checkpoint={file} is of another run (data, estimator, injection or seed differ); remove "
                "it, or name another file."
            )
        for k, result in enumerate(results):
            for name in FoldLosses.ARRAYS:
                getattr(result, name)[...] = stored[f"{name}_{k}"]
        return int(stored["done"])


def _save(file: Path, results: list[FoldLosses], done: int, mark: str) -> None:
    """Written beside and then renamed, so that a run killed while writing leaves the last whole checkpoint."""
    arrays = {f"{name}_{k}": getattr(result, name) for k, result in enumerate(results) for name in FoldLosses.ARRAYS}
    beside = file.with_name(file.name + ".part")
    with beside.open("wb") as stream:
        np.savez(stream, done=done, fingerprint=mark, **arrays)
    beside.replace(file)
