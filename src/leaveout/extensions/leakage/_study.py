"""Parts that all answers share: the folds as filed, the possible mates, the fits, and their scores
with errors.

An answer is a sum over records of influences ψ_i (Σ ψ_i = 0). Its variance over new clusters is
Σ_ij P(i ~ j) ψ_i ψ_j, with P(i ~ j) the probability that two records are of one entity: the mean
over drawn partitions of

    V = Σ_c (Σ_{i ∈ c} ψ_i)² / (1 − n_c/n),

the within-part of Rubin's rules. Student's degrees of freedom are Satterthwaite's for clusters of
these sizes. The effect of clusters through training is measured by leaving pairs of folds out.
"""

import hashlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy import stats

from ...developer import (
    BoolArray,
    FloatArray,
    Measure,
    NamedNumbers,
    NumpyArray,
    PerRow,
    Slow,
    StepResult,
    record,
    steps,
)
from ._fits import FIT_BATCH_ENTRIES, AbstractLearner
from ._hosts import PlanHost
from ._linkage import Linkage
from ._models import Folds
from ._pair_calibration import Rate
from ._splits import Rows
from ._variance import Variance, over_units

Partitions = Int[NumpyArray, "draws rows"]
# shares of the expected mates across folds in the pairs above each cut of the sweep
SWEEP_SHARES = 0.5, 0.8, 0.95, 1.0
NONE = "no pair across folds is listed"
MIN_EXPOSURE_REMOVED = 0.5  # least share of the exposure that an answer must remove
Predictions = list[FloatArray]  # predictions of each fold's test rows, in their order
FoldEffects = Float[NumpyArray, "folds folds"]


def half_width(variance: float, freedom: float, level: float) -> float:
    """Return the half-width of Student's interval."""
    if np.isfinite(variance):
        return float(stats.t.ppf(0.5 + level / 2, freedom) * np.sqrt(variance))
    return np.nan


class FitRequest(NamedTuple):
    """Fit to some rows, and the rows to predict from it."""

    train: Int[NumpyArray, " trained"]
    test: Int[NumpyArray, " tested"]


@dataclass(eq=False)
class PredictionWork:
    """Predictions from many fits, `work(asks)`; equal requests are fitted once.

    `num_made` counts the fits, `seconds` their time. A learner's random numbers depend on `seed`
    only, so they are common to all fits.
    """

    learner: AbstractLearner
    seed: int
    bar: Slow = field(default_factory=lambda: Slow("fits", 0))
    num_made: int = 0
    seconds: float = 0.0
    predictions: dict[bytes, FloatArray] = field(default_factory=dict, repr=False)

    def __call__(self, requests: list[FitRequest]) -> Predictions:
        keys = [
            b"".join(hashlib.blake2b(rows.tobytes(), digest_size=16).digest() for rows in request)
            for request in requests
        ]
        unfitted = list(
            {
                key: request
                for key, request in zip(keys, requests, strict=True)
                if key not in self.predictions
            }.items()
        )
        glm = isinstance(self.learner, PlanHost)  # makes many refits of its one fit at once
        size = 1
        if glm:
            size = max(1, FIT_BATCH_ENTRIES // self.learner.cost // 64)
        began = time.perf_counter()
        for batch, result in steps(
            partial(_predict_batch, self.learner.alone(), self.seed),
            [unfitted[k : k + size] for k in range(0, len(unfitted), size)],
            jobs=1 if glm else self.learner.jobs,
        ):
            for number, (key, _) in enumerate(batch):
                self.predictions[key] = result[str(number)]
                self.num_made += 1
                self.bar.advance()
        self.seconds += time.perf_counter() - began
        return [self.predictions[key] for key in keys]

    def predict_folds(self, folds: Folds) -> Predictions:
        """Predict the test rows of each fold by its training rows."""
        return self([FitRequest(fold.train, fold.test) for fold in folds])


def _predict_batch(
    learner: AbstractLearner, seed: int, batch: list[tuple[bytes, FitRequest]]
) -> StepResult:
    """Predict by the fits of a batch, which has one fit unless they are refits of a fit of this
    library.
    """
    requests = [request for _, request in batch]
    none = np.zeros((len(batch), 0), int)
    if not isinstance(learner, PlanHost):
        return {
            "0": learner(requests[0].train[None], requests[0].test, none, np.array([seed]))[0][0]
        }
    rows = np.unique(np.concatenate([request.test for request in requests]))
    times = np.stack(
        [np.bincount(request.train, minlength=learner.glm.num_units) for request in requests]
    )
    shared, _ = learner.predict_counts(times, rows, none)
    return {
        str(k): shared[k][np.searchsorted(rows, request.test)] for k, request in enumerate(requests)
    }


def leave_pairs_out(
    folds: Folds, y: FloatArray, score: Measure, work: PredictionWork
) -> FoldEffects:
    """Compute the change of fold i's contribution to the score when fold j leaves its training, by
    fits without both.
    """
    tests = [fold.test for fold in folds]
    total = sum(map(len, tests))
    pairs = list(itertools.combinations(range(len(folds)), 2))
    filed = work.predict_folds(folds)
    pair_predictions = work(
        [
            FitRequest(np.setdiff1d(folds[j].train, tests[k]), np.r_[tests[j], tests[k]])
            for j, k in pairs
        ]
    )
    effects = np.zeros((len(folds), len(folds)))
    value = lambda k, predicted: score(y[tests[k]], predicted) * len(tests[k]) / total
    for (j, k), predicted_pair in zip(pairs, pair_predictions, strict=True):
        for scored, omitted, predicted in zip(
            (j, k), (k, j), np.split(predicted_pair, [len(tests[j])]), strict=True
        ):
            effects[scored, omitted] = value(scored, predicted) - value(scored, filed[scored])
    return effects


class FoldScore(NamedTuple):
    """Score over all folds, with every row's influence on it, which sum to zero."""

    value: float
    influence: PerRow


class ControlPoint(NamedTuple):
    """The effect of one way of removing mates from training.

    `difference` is the raw change of the score, with its influences and Monte-Carlo variance;
    `exposed` is the remaining exposure.
    """

    cut: float
    difference: float
    influence: PerRow
    monte_carlo: float
    exposed: float


@record
class Answer:
    """Score with no mates in training, or `refusal`, the reason why there is none, with its
    difference and influences.

    `exposed` is the expected share of tested records that still have a mate in training, `between`
    the part of the correction's variance due to an uncertain linkage, `fold_effects` the change of
    a fold's score without another fold in training, and `curve` the results of every cut.
    """

    name: str
    assumption: str
    refusal: str = ""
    score: float = np.nan
    correction: float = np.nan
    influence: PerRow | None = None
    change: PerRow | None = None
    exposed: float = np.nan
    monte_carlo: float = 0.0
    between: float = 0.0
    fold_effects: FoldEffects | None = None
    curve: pd.DataFrame | None = None


@record
class LeakageStudy:
    """The folds as filed, and the links between rows.

    `clusters` `[draws, rows]` are drawn partitions, or only the filed clusters if pairs are not
    known.
    """

    folds: Folds
    y: FloatArray
    score: Measure
    linkage: Linkage
    work: PredictionWork
    seed: int
    clusters: Partitions
    listed_rate: Rate  # share of the records with a mate across folds that have a listed one

    @cached_property
    def test_rows(self) -> BoolArray:
        mask = np.zeros(len(self.y), bool)
        for fold in self.folds:
            mask[fold.test] = True
        return mask

    @property
    def filed_clusters(self) -> Rows:
        return self.folds[0].clusters

    @cached_property
    def fold(self) -> Rows | None:
        """The fold that tests each row, if every row is tested once by a fit to all other folds."""
        n = len(self.y)
        times = np.zeros(n, int)
        fold_number = np.zeros(n, int)
        for k, fold in enumerate(self.folds):
            np.add.at(times, fold.test, 1)
            fold_number[fold.test] = k
        if (
            len(self.folds) > 1
            and np.all(times == 1)
            and all(len(fold.train) + len(fold.test) == n for fold in self.folds)
        ):
            return fold_number
        return None

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions of the folds as filed."""
        return self.work.predict_folds(self.folds)

    @cached_property
    def naive(self) -> FoldScore:
        return self.score_predictions(self.predictions)

    def score_predictions(self, predictions: Predictions, folds: Folds | None = None) -> FoldScore:
        """Compute Σ_k n_k/n score(fold k); for mean losses, the mean over all rows."""
        if folds is None:
            folds = self.folds
        size = sum(len(fold.test) for fold in folds)
        pseudo = [
            self.score.pseudo(self.y[fold.test], predicted)
            for fold, predicted in zip(folds, predictions, strict=True)
        ]
        value = float(sum(values.mean() * len(values) for values in pseudo) / size)
        influence = np.zeros(len(self.y))
        for fold, values in zip(folds, pseudo, strict=True):
            influence[fold.test] += (values - value) / size
        return FoldScore(value, influence)

    @cached_property
    def mates(self) -> Predictions:
        """Compute the probability of a mate in training for every row that a fold tests, as
        filed.
        """
        return [self.linkage.mates(fold.train, fold.test) for fold in self.folds]

    @cached_property
    def exposed(self) -> float:
        if self.linkage.knows_pairs:
            return float(np.mean(np.concatenate(self.mates)))
        return np.nan

    @cached_property
    def across(self) -> BoolArray:
        """Mark the listed pairs of which one record is tested by a fit that was trained on the
        other.
        """
        mask = np.zeros(len(self.linkage.left), bool)
        for fold in self.folds:
            side = np.zeros(len(self.y), int)
            side[fold.train] = 1
            side[fold.test] = 2
            mask |= side[self.linkage.left] * side[self.linkage.right] == 2
        return mask

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """Tabulate the tested rows that are in a listed pair with a training row.

        The columns are `place`, the likeliest mate's `mate_place`, the pair's `probability`, and
        `exposed`, the probability of any mate in training.
        """
        if not self.linkage.knows_pairs:
            return pd.DataFrame({"place": [], "mate_place": [], "probability": [], "exposed": []})
        tables = []
        link = self.linkage
        for fold, mates in zip(self.folds, self.mates, strict=True):
            tested, trained = (
                np.isin(np.arange(len(self.y)), rows) for rows in (fold.test, fold.train)
            )
            exposed = np.zeros(len(self.y))
            exposed[fold.test] = mates
            for tested_end, trained_end in (
                (link.left, link.right),
                (link.right, link.left),
            ):
                use = tested[tested_end] & trained[trained_end] & (link.probability > 0)
                columns = {
                    "place": tested_end[use],
                    "mate_place": trained_end[use],
                    "probability": link.probability[use],
                    "exposed": exposed[tested_end[use]],
                }
                tables.append(pd.DataFrame(columns))
        pairs = pd.concat(tables).sort_values("probability", ascending=False, kind="stable")
        return pairs.drop_duplicates("place").sort_values("place", ignore_index=True)

    @cached_property
    def fold_effects(self) -> FoldEffects | None:
        """The change of fold i's contribution to the score when fold j leaves its training.

        None for a fixed split.
        """
        if self.fold is None or len(self.folds) < 3:
            return None
        return leave_pairs_out(self.folds, self.y, self.score, self.work)

    @cached_property
    def cuts(self) -> list[float]:
        """Return falling probabilities above which pairs have given shares of the expected mates
        across folds.
        """
        p = np.sort(self.linkage.probability[self.across])[::-1]
        p = p[p > 0]
        if not len(p):
            return []
        held = np.cumsum(p) / p.sum()
        positions = [
            min(int(np.searchsorted(held, share - 1e-12)), len(p) - 1) for share in SWEEP_SHARES
        ]
        return sorted({float(p[k]) for k in positions}, reverse=True)

    @property
    def assumption(self) -> str:
        """The assumption about the list of pairs, as a sentence."""
        if self.listed_rate.estimate == 1:
            return "every true pair across folds is listed"
        share = f"{self.listed_rate.estimate:.0%} of the records with a mate across folds have one listed"
        return f"{share}, and the others gain alike"

    def over_clusters(self, influence: FloatArray) -> Variance:
        """Compute the variance of an answer with these influences, over the clusters of tested
        rows.
        """
        return over_units(influence[self.test_rows], self.clusters[:, self.test_rows])

    def removed(self, exposure: float) -> float:
        """Return the removed share of the naive exposure."""
        if self.exposed > 0:
            return 1 - exposure / self.exposed
        return np.nan

    def answer(
        self,
        name: str,
        assumption: str,
        point: ControlPoint,
        between: float = 0.0,
        curve: pd.DataFrame | None = None,
    ) -> Answer:
        """Scale the difference from the naive score to the removal of the whole exposure, also that
        of unlisted mates.

        Each exposed record is assumed to have the same gain. `between` is the variance of the
        difference over links.
        """
        removed_share = self.removed(point.exposed) * self.listed_rate.estimate
        correction = point.difference / removed_share
        listing_error = correction * self.listed_rate.error / self.listed_rate.estimate
        return self.correct(
            name,
            assumption,
            correction,
            point.influence / removed_share,
            point.exposed,
            monte_carlo=point.monte_carlo / removed_share**2,
            between=between / removed_share**2 + listing_error**2,
            curve=curve,
        )

    def correct(
        self,
        name: str,
        assumption: str,
        correction: float,
        change: FloatArray,
        exposed: float,
        **details,
    ) -> Answer:
        """Return the naive score with a correction, whose influences are `change`, as an answer."""
        return Answer(
            name,
            assumption,
            "",
            self.naive.value + correction,
            correction,
            self.naive.influence + change,
            change,
            exposed,
            **details,
        )

    def line(
        self, name: str, assumption: str, point_at: Callable[[float], ControlPoint | str]
    ) -> Answer:
        """Average the differences over the cuts, for the mean share of the exposure that they
        remove.

        No cut is chosen by its result. The cuts end where `point_at` returns a reason.
        """
        points = []
        reason = NONE
        for cut in self.cuts:
            point = point_at(cut)
            if isinstance(point, str):
                reason = point
                break
            points.append(point)
        if not points:
            return Answer(name, assumption, reason)
        curve = pd.DataFrame([self._row(point) for point in points])
        mean = mean_point(points)  # controls of all cuts have similar errors
        removed_share = self.removed(mean.exposed)
        if not removed_share >= MIN_EXPOSURE_REMOVED:
            return Answer(name, assumption, few_removed(removed_share), curve=curve)
        return self.answer(name, assumption, mean, curve=curve)

    def _row(self, point: ControlPoint) -> NamedNumbers:
        removed_share = self.removed(point.exposed)
        error = float(np.sqrt(self.over_clusters(point.influence).value + point.monte_carlo))
        correction = np.nan
        if removed_share > 0:
            correction = point.difference / removed_share
        return {
            "cut": point.cut,
            "exposed": point.exposed,
            "removed": removed_share,
            "difference": point.difference,
            "correction": correction,
            "se": error,
        }


def mean_point(points: list[ControlPoint]) -> ControlPoint:
    """Average control points, field by field."""
    return ControlPoint(*(np.mean(part, 0) for part in zip(*points, strict=True)))


def few_removed(removed_share: float) -> str:
    """Return the reason why there is no answer."""
    effect = f"adds {-removed_share:.0%} to"
    if removed_share >= 0:
        effect = f"takes out {removed_share:.0%} of"
    return f"it {effect} the expected mates; taking out {MIN_EXPOSURE_REMOVED:.0%} is the least"
