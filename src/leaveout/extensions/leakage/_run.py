"""All fits of all folds.

Draw, fit, and score the records that were neither injected nor trained on.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ... import Fit
from ...developer import (
    FloatArray,
    IntArray,
    Measure,
    NamedValues,
    NumpyArray,
    Slow,
    StepResult,
    TwoCounts,
    keep,
    level_numbers,
    num_saved_steps,
    over,
    read_step,
    record,
    silence,
)
from ...validation import Interrupted
from ..hosts.sklearn import SklearnEstimator
from ._fits import FIT_BATCH_ENTRIES, AbstractLearner
from ._hosts import Task
from ._injection import FoldInjection, Injection
from ._models import Folds

DRAWS_A_ROUND = 10  # draws between two checks whether there are enough
LevelRecords = Float[NumpyArray, "levels test"]
LevelNumbers = Float[NumpyArray, " levels"]
LevelDraws = Float[NumpyArray, "levels draws"]


@record
class FitWork:
    """The injected fits, and how they are scored.

    `outside` tells whether records of T̂ are scored too. `mixture` is the weight with which each
    fold removes them from a score that is not a mean.
    """

    plan: list[FoldInjection]
    learner: AbstractLearner
    score: Measure
    y: Float[NumpyArray, " records"]
    outside: bool = False
    mixture: tuple[float, ...] = ()
    edges: FloatArray | None = None

    def mixture_of(self, fold: int) -> float:
        """Return the weight with which a fold removes records of T̂; zero if none are removed."""
        return self.mixture[fold] if self.mixture else 0.0

    def alone(self) -> "FitWork":
        """Return a copy that works in one process."""
        return replace(self, learner=self.learner.alone())


class Piece(NamedTuple):
    """Draws `start` to `stop` of a fold."""

    fold: int
    start: int
    stop: int


@dataclass(eq=False)
class FoldLosses:
    """The losses, or scores, of the fits of one fold at each level and draw.

    `test` `[levels, draws]` is over the remaining records of V̂; `outside` likewise over records of
    T̂ that were not trained on (NaN where not needed); `cluster` `[levels, draws, clusters of V̂]`.
    `record` and `times` `[levels, records of V̂]` are summed losses (of a score that is not a mean,
    its value plus the record's influence) and how often each record was scored. `histogram`
    `[levels, draws, bins]` holds shares of the losses.
    """

    test: LevelDraws
    outside: LevelDraws
    cluster: Float[NumpyArray, "levels draws clusters"]
    record: LevelRecords
    times: LevelRecords
    histogram: Float[NumpyArray, "levels draws bins"]
    naive: Float[NumpyArray, "1 draws"]  # scores of V̂ as filed, without injection
    naive_record: Float[NumpyArray, "1 test"]
    members: IntArray = field(repr=False)  # the position in `clusters` of each record of V̂
    clusters: IntArray = field(repr=False)  # the clusters of V̂
    # weight with which T̂'s records were removed from `test`, for a score that is not a mean over
    # records
    mixture: float = 0.0

    SUMS = "record", "times", "naive_record"
    BY_DRAW = "test", "outside", "cluster", "histogram", "naive"

    @property
    def records(self) -> LevelRecords:
        """The mean loss of each record, NaN where it was never scored."""
        return np.where(self.times > 0, self.record / np.maximum(self.times, 1), np.nan)

    def first(self, count: int) -> "FoldLosses":
        """Return the losses of the first `count` draws.

        The sums still have all draws, since only their ratios are used.
        """
        return replace(self, **{name: getattr(self, name)[:, :count] for name in self.BY_DRAW})


def join_pieces(work: FitWork, fold: int, results: list[StepResult]) -> FoldLosses:
    """Join the losses of the pieces of a fold."""
    part = work.plan[fold]
    clusters, members = np.unique(part.fold.clusters[part.fold.test], return_inverse=True)
    levels = len(part.levels)
    draws = sum(result["test"].shape[1] for result in results)
    shapes = {
        "cluster": (len(clusters),),
        "histogram": (0 if work.edges is None else len(work.edges) - 1,),
    }
    first = dict.fromkeys(FoldLosses.BY_DRAW, (levels, draws)) | {"naive": (1, draws)}
    arrays = {}
    for name in FoldLosses.BY_DRAW:
        parts = [result[name] for result in results if name in result]
        if parts:
            arrays[name] = np.concatenate(parts, 1)
        else:
            arrays[name] = np.full((*first[name], *shapes.get(name, ())), np.nan)
    for name in FoldLosses.SUMS:
        none = np.zeros((1 if name == "naive_record" else levels, len(part.fold.test)))
        arrays[name] = functools.reduce(
            np.add, (result[name] for result in results if name in result), none
        )
    return FoldLosses(
        **arrays,
        members=members,
        clusters=clusters,
        mixture=work.mixture_of(fold),
    )


class _Progress:
    """Finished pieces, and whether there are enough."""

    def __init__(self, work: FitWork, draws: TwoCounts, enough: "Enough | None"):
        self.work = work
        self.enough = enough
        self.fewest, self.most = draws
        self.num_wanted = draws[0]
        self.is_stopped = False
        self.step_results: list[list[StepResult]] = [[] for _ in work.plan]
        self.num_drawn = np.zeros(len(work.plan), int)

    def add(self, piece: Piece, result: StepResult) -> None:
        if self.is_stopped:
            return
        self.step_results[piece.fold].append(result)
        self.num_drawn[piece.fold] = piece.stop
        least = int(self.num_drawn.min())
        if (
            self.enough is None
            or least < self.fewest
            or least % DRAWS_A_ROUND
            or np.any(self.num_drawn != least)
        ):
            return
        self.num_wanted = min(max(self.enough(self.runs(least)), least), self.most)
        self.is_stopped = self.num_wanted <= least

    def runs(self, draws: int) -> list[FoldLosses]:
        return [
            join_pieces(self.work, k, results).first(draws)
            for k, results in enumerate(self.step_results)
        ]

    @property
    def remaining(self) -> int:
        """Number of remaining draws, as far as it is known."""
        return int(np.maximum(self.num_wanted - self.num_drawn, 0).sum())


Enough = Callable[[list[FoldLosses]], int]  # estimates the number of draws needed in all


def run(work: FitWork, draws: TwoCounts, enough: Enough | None = None) -> list[FoldLosses]:
    """Compute the losses of every fold for the largest number of draws, or for as many as `enough`
    finds sufficient.

    Raises `Interrupted` on Ctrl-C, with the losses of the draws that all folds have.
    """
    progress = _Progress(work, draws, enough)
    levels = len(work.plan[0].levels)
    # the pieces of an earlier run with any number of draws
    checkpointed = {}
    while num_saved_steps():
        result = read_step()
        checkpointed[Piece(*result.pop("piece").tolist())] = result
    total = levels * len(work.plan) * progress.most

    def finished_pieces() -> Iterator[tuple[Piece, StepResult]]:
        """Yield every piece with its losses, those in the checkpoint first."""
        pieces = _pieces(work, progress, {piece[:2]: piece for piece in checkpointed})
        for piece in pieces:
            if piece not in checkpointed:
                pieces = itertools.chain([piece], pieces)
                break
            yield piece, checkpointed[piece]
        for piece, result in over(
            functools.partial(one_piece, work.alone()),
            pieces,
            jobs=work.learner.jobs,
            remaining_count=lambda _: progress.remaining,
        ):
            if not progress.is_stopped:
                keep({**result, "piece": np.array(piece)})
            yield piece, result

    try:
        with Slow("fits", total) as bar:
            began = time.perf_counter()
            for piece, result in finished_pieces():
                progress.add(piece, result)
                bar.advance(levels * (piece.stop - piece.start))
                seconds_per_fit = (time.perf_counter() - began) / max(bar.num_done, 1)
                expected_draws = progress.most
                if progress.num_wanted > progress.fewest or progress.is_stopped:
                    expected_draws = progress.num_wanted
                bar.expect(
                    levels * len(work.plan) * expected_draws,
                    f"fits, at most {total:,} in {total * seconds_per_fit:.0f} s",
                )
    except KeyboardInterrupt:
        least = int(progress.num_drawn.min())
        message = f"leakage: stopped after {least} of {progress.most} draws of each fold"
        raise Interrupted(message, lambda: progress.runs(least)) from None
    return progress.runs(min(int(progress.num_drawn.min()), progress.most))


def describe_run(
    estimator: SklearnEstimator | Fit,
    task: Task,
    folds: Folds,
    injection: Injection,
    seed: int,
) -> NamedValues:
    """List everything that the losses of injected fits depend on, except their number."""
    return {
        "estimator": estimator,
        "data": (task.X, task.y, task.codes),
        "folds": [(fold.train, fold.test, fold.clusters) for fold in folds],
        "loss": task.measure,
        "refit": task.refit,
        "injection": replace(injection, num_boot=None, tolerance=1.0),
        "seed": seed,
    }


def _pieces(work: FitWork, progress: _Progress, pieces: dict[TwoCounts, Piece]) -> Iterator[Piece]:
    """Divide the draws into pieces, in rounds that all folds share, with the pieces in the
    checkpoint first in each.

    The division depends on sizes only.
    """
    next_draw = [0] * len(work.plan)
    for start in range(0, progress.most, DRAWS_A_ROUND):
        end = min(start + DRAWS_A_ROUND, progress.most)
        for fresh in (False, True):
            while due := [
                k
                for k in range(len(next_draw))
                if next_draw[k] < end and (fresh or (k, next_draw[k]) in pieces)
            ]:
                for k in due:
                    if progress.is_stopped:
                        return
                    part = work.plan[k]
                    draw_entries = len(part.levels) * (
                        part.size * work.learner.cost + 4 * (len(part.fold.test) + part.num_left)
                    )
                    # draws whose arrays fit into memory
                    size = max(1, min(DRAWS_A_ROUND, 2 * FIT_BATCH_ENTRIES // draw_entries))
                    stop = min(start + ((next_draw[k] - start) // size + 1) * size, end)
                    piece = pieces.get((k, next_draw[k]), Piece(k, next_draw[k], stop))
                    next_draw[k] = piece.stop
                    yield piece


def one_piece(work: FitWork, piece: Piece) -> StepResult:
    """Compute some draws of one fold: their losses by the names of `FoldLosses`."""
    part = work.plan[piece.fold]
    score = work.score
    y = work.y
    sample = part.draw(piece.start, piece.stop)
    draws, levels, size = sample.train.shape
    rows = sample.train.reshape(-1, size)
    test = part.fold.test
    extra = np.repeat(sample.outside if work.outside else sample.outside[:, :0], levels, axis=0)
    # one seed for the estimator's random numbers of each draw, common to all levels
    draw_seeds = [
        np.random.SeedSequence([part.seed, part.number, r, 1]).generate_state(1)[0] >> 1
        for r in range(*piece[1:])
    ]
    seeds = np.repeat(np.array(draw_seeds, int), levels)
    shared, extra_predictions = work.learner(rows, test, extra, seeds)
    scored = sample.score_mask.reshape(len(rows), -1)
    members = level_numbers(part.fold.clusters[test])
    by_level = lambda values: values.reshape(draws, levels, *values.shape[1:]).swapaxes(0, 1)
    weight = scored * 1.0
    if part.mechanism == "split":  # the rest of a cluster represents all of it
        weight *= (np.bincount(members) / _by_cluster(weight, members))[:, members]
    values, record_values = _score_fits(
        score,
        y,
        test,
        shared,
        weight,
        extra,
        extra_predictions,
        work.mixture_of(piece.fold),
    )
    result = {"test": by_level(values), "naive": by_level(values)[:1]}
    if record_values is None:
        return result
    record_values = np.where(scored, record_values, 0.0)
    with silence("invalid"):
        result["cluster"] = by_level(
            _by_cluster(record_values, members) / _by_cluster(scored * 1.0, members)
        )
    result |= {
        "record": by_level(record_values).sum(1),
        "times": by_level(scored).sum(1),
        "naive_record": by_level(record_values)[:1].sum(1),
    }
    if work.mixture:  # `test` lacks records of T̂'s clusters; the score as filed has all
        first = slice(None, None, levels)
        filed, filed_values = _score_fits(
            score,
            y,
            test,
            shared[first],
            weight[first],
            extra[first],
            extra_predictions[first],
            0.0,
        )
        result["naive"] = filed[None]
        assert filed_values is not None
        result["naive_record"] = filed_values.sum(0)[None]
    if work.outside and score.per_record:
        result["outside"] = by_level(score.losses(y[extra], extra_predictions).mean(1))
    if work.edges is not None:
        bin_number = np.searchsorted(work.edges[1:-1], record_values, side="right")
        shares = [
            (scored & (bin_number == k)).sum(1) / scored.sum(1) for k in range(len(work.edges) - 1)
        ]
        result["histogram"] = by_level(np.stack(shares, -1))
    return result


def _score_fits(
    score: Measure,
    y: FloatArray,
    test: IntArray,
    shared: FloatArray,
    weight: FloatArray,
    extra: IntArray,
    extra_predictions: FloatArray,
    mixture: float,
) -> tuple[FloatArray, FloatArray | None]:
    """Compute the score of every fit, and every record's value and influence `[fits, test]`, if it
    has these.

    From a mean, records of T̂'s clusters are removed later, for any p. From other scores they are
    removed here: V̂'s records have weight 1 + `mixture` in all, and records of T̂ that were not
    trained on −`mixture`.
    """
    if score.per_record:
        record_values = score.losses(y[test], shared)
        return (record_values * weight).sum(1) / weight.sum(1), record_values
    fits = []
    for f, w in enumerate(weight):
        scored = np.flatnonzero(w)
        rows = test[scored]
        predicted = shared[f, scored]
        mass = w[scored]
        if mixture:
            mass = (1 + mixture) * mass / w.sum()
            rows = np.concatenate([rows, extra[f]])
            predicted = np.concatenate([predicted, extra_predictions[f]])
            mass = np.concatenate([mass, np.full(len(extra[f]), -mixture / len(extra[f]))])
        fits.append((y[rows], predicted, mass))
    if not score.weighs:
        return np.array([score(*fit) for fit in fits]), None
    values = np.zeros(len(weight))
    record_values = np.zeros(weight.shape)
    for f, pseudo in enumerate(score.pseudo_of_fits(fits)):
        values[f] = np.average(pseudo, weights=fits[f][2])
        scored = np.flatnonzero(weight[f])
        record_values[f, scored] = pseudo[: len(scored)]
    return values, record_values


def _by_cluster(values: FloatArray, members: IntArray) -> FloatArray:
    return np.array([np.bincount(members, row) for row in values])
