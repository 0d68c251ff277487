"""All fits of all folds: draw, fit, score what was neither injected nor trained on."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from .._checkpoint import Told, kept
from .._fit import Fit
from .._progress import Slow
from .._stopping import Interrupted
from ..interop.sklearn import Host
from ._fits import CAPACITY, AbstractLearner
from ._injection import FoldInjection, Injection
from ._models import Fold
from ._prepare import Task
from ._score import Score


@dataclass(eq=False)
class FoldLosses:
    """What the fits of one fold lost, or scored, at each level and draw.

    `test` `[levels, draws]`, of what is left of V̂; `outside` likewise over records of T̂ that were not trained on (NaN where
    not needed); `cluster` `[levels, draws, clusters of V̂]`; `record` and `times` `[levels, records of V̂]`, summed losses
    (of a score that is no mean its value plus the record's influence) and how often each was scored; `histogram`
    `[levels, draws, bins]`, shares of the losses.
    """

    test: Float[np.ndarray, "levels draws"]
    outside: Float[np.ndarray, "levels draws"]
    cluster: Float[np.ndarray, "levels draws clusters"]
    record: Float[np.ndarray, "levels test"]
    times: Float[np.ndarray, "levels test"]
    histogram: Float[np.ndarray, "levels draws bins"]
    members: NDArray[np.int64] = field(repr=False)  # the position in `clusters` of each record of V̂
    clusters: NDArray[np.int64] = field(repr=False)  # the clusters of V̂
    mixture: float = 0.0  # the weight of T̂'s records that was taken out of `test`, where a score is no mean over records

    SUMS, BY_DRAW = ("record", "times"), ("test", "outside", "cluster", "histogram")

    def first(self, count: int) -> "FoldLosses":
        """The same of so many draws; sums over some more, since they are only ever divided by one another."""
        return replace(self, **{name: getattr(self, name)[:, :count] for name in self.BY_DRAW})


def empty_losses(part: FoldInjection, num_boot: int, bins: int, mixture: float) -> FoldLosses:
    """All NaN, sums zero."""
    clusters, members = np.unique(part.fold.clusters[part.fold.test], return_inverse=True)
    levels, test = len(part.levels), len(part.fold.test)
    lost = lambda *shape: np.full((levels, num_boot, *shape), np.nan)
    sums = (np.zeros((levels, test)), np.zeros((levels, test)))
    return FoldLosses(lost(), lost(), lost(len(clusters)), *sums, lost(bins), members, clusters, mixture)


def run(
    plan: list[FoldInjection],
    learner: AbstractLearner,
    measure: Score,
    y: Float[np.ndarray, " records"],
    num_boot: int,
    *,
    outside: bool,
    mixture: NDArray[np.float64] | None = None,
    edges: NDArray[np.float64] | None = None,
) -> list[FoldLosses]:
    """The losses of every fold. Raises `Interrupted` on Ctrl-C, with those of as many draws as all folds have."""
    bins = 0 if edges is None else len(edges) - 1
    mixture = np.zeros(len(plan)) if mixture is None else mixture
    results = [empty_losses(part, num_boot, bins, float(m)) for part, m in zip(plan, mixture, strict=True)]
    chunks = [(k, *chunk) for k, part in enumerate(plan) for chunk in _chunks(part, learner, num_boot)]
    chunks.sort(key=lambda chunk: chunk[1])  # the same draws of all folds together
    drawn = np.zeros(len(plan), int)
    try:
        with Slow("draws", num_boot * len(plan)) as bar:
            for k, start, stop in chunks:
                make = functools.partial(
                    _one_chunk, plan[k], start, stop, learner, measure, y, results[k], outside, mixture[k], edges
                )
                _add(results[k], start, stop, kept(make))
                drawn[k] = stop
                bar.advance(stop - start)
    except KeyboardInterrupt:
        least = int(drawn.min())
        some = lambda: [result.first(least) for result in results]
        raise Interrupted(f"leakage: stopped after {least} of {num_boot} draws of each fold", some) from None
    return results


def known(estimator: Host | Fit, task: Task, folds: list[Fold], injection: Injection, seed: int) -> dict[str, Any]:
    """What the losses of injected fits depend on, by names."""
    return {
        "estimator": estimator,
        "data": (task.X, task.y, task.codes),
        "folds": [(fold.train, fold.test, fold.clusters) for fold in folds],
        "loss": task.measure,
        "refit": task.refit,
        "injection": injection,
        "seed": seed,
    }


def _chunks(part: FoldInjection, learner: AbstractLearner, num_boot: int) -> list[tuple[int, int]]:
    """Runs of draws whose arrays stay within the capacity; they depend on nothing but sizes."""
    each = len(part.levels) * (part.size * learner.cost + 4 * (len(part.fold.test) + part.left))
    count = max(1, min(num_boot, 2 * CAPACITY // each))
    return [(start, min(start + count, num_boot)) for start in range(0, num_boot, count)]


def _one_chunk(
    part: FoldInjection,
    start: int,
    stop: int,
    learner: AbstractLearner,
    measure: Score,
    y: NDArray[np.float64],
    result: FoldLosses,
    outside: bool,
    mixture: float,
    edges: NDArray[np.float64] | None,
) -> Told:
    """Some draws of one fold: their losses by the names of `FoldLosses`, sums where these are sums."""
    drawn = part.draw(start, stop)
    draws, levels, size = drawn.train.shape
    rows = drawn.train.reshape(-1, size)
    own = np.repeat(drawn.outside if outside else drawn.outside[:, :0], levels, axis=0)
    seeds = np.repeat(np.array([_seed(part, r) for r in range(start, stop)]), levels)
    shared, beside = learner(rows, part.fold.test, own, seeds)
    scored = drawn.scored.reshape(len(rows), -1)
    back = lambda values: values.reshape(draws, levels, *values.shape[1:]).swapaxes(0, 1)
    weight = scored * 1.0
    if part.mechanism == "split":  # what is left of a cluster stands for all of it
        weight *= (np.bincount(result.members) / _by_cluster(weight, result))[:, result.members]
    values, each = _judged(measure, y, part.fold.test, shared, weight, own, beside, mixture)
    told = {"test": back(values)}
    if each is None:
        return told
    each = np.where(scored, each, 0.0)
    with np.errstate(invalid="ignore"):
        told["cluster"] = back(_by_cluster(each, result) / _by_cluster(scored * 1.0, result))
    told |= {"record": back(each).sum(1), "times": back(scored).sum(1)}
    if outside and measure.per_record:
        told["outside"] = back(measure.losses(y[own], beside).mean(1))
    if edges is not None:
        into = np.searchsorted(edges[1:-1], each, side="right")
        shares = [np.where(scored, into == k, False).sum(1) / scored.sum(1) for k in range(len(edges) - 1)]
        told["histogram"] = back(np.stack(shares, -1))
    return told


def _judged(
    score: Score,
    y: NDArray[np.float64],
    test: NDArray[np.int64],
    shared: NDArray[np.float64],
    weight: NDArray[np.float64],
    own: NDArray[np.int64],
    beside: NDArray[np.float64],
    mixture: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """The score of every fit, and every record's value and influence `[fits, test]` if they have one.

    A mean is taken as it is: what belongs to T̂'s clusters is taken out of it later, for any p. From other scores it is taken
    out here, V̂'s records weighing 1 + `mixture` in all, records of T̂ that were not trained on −`mixture`.
    """
    if score.per_record:
        each = score.losses(y[test], shared)
        return (each * weight).sum(1) / weight.sum(1), each
    values, each = np.zeros(len(weight)), np.zeros(weight.shape)
    for f, w in enumerate(weight):
        seen = np.flatnonzero(w)
        rows, prediction, mass = test[seen], shared[f, seen], w[seen]
        if mixture:
            alien = np.full(own.shape[1], -mixture / own.shape[1])
            mass = np.concatenate([(1 + mixture) * mass / mass.sum(), alien])
            rows, prediction = np.concatenate([rows, own[f]]), np.concatenate([prediction, beside[f]])
        if not score.weighs:
            values[f] = score(y[rows], prediction, mass)
            continue
        found = score.pseudo(y[rows], prediction, mass)
        values[f], each[f, seen] = np.average(found, weights=mass), found[: len(seen)]
    return values, each if score.weighs else None


def _add(result: FoldLosses, start: int, stop: int, told: Told) -> None:
    """Some draws more."""
    for name, values in told.items():
        if name in FoldLosses.SUMS:
            getattr(result, name)[...] += values
        else:
            getattr(result, name)[:, start:stop] = values


def _by_cluster(values: NDArray[np.float64], result: FoldLosses) -> NDArray[np.float64]:
    order = np.argsort(result.members, kind="stable")
    starts = np.searchsorted(result.members[order], np.arange(len(result.clusters)))
    return np.add.reduceat(values[:, order], starts, axis=1)


def _seed(part: FoldInjection, draw: int) -> int:
    """For the estimator's own random numbers: one a draw, common to all levels."""
    return int(np.random.SeedSequence([part.seed, part.number, draw, 1]).generate_state(1)[0] >> 1)
