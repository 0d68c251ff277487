"""Answers that have no mates in training: coarser clusters, purged training sets, drawn clusters,
and extrapolation.

The last one injects more leakage and extrapolates to none, if injection can show the effect of
mates. Each of the others removes records from training; `LeakageStudy.answer` scales the change of
the naive score to the removal of the whole exposure.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.random import default_rng

from ...developer import BoolArray, FloatArray, NamedCounts, RowFlags
from ._injection import refusal, unshown
from ._models import Folds
from ._result import LeakageResult
from ._splits import RowNumbers, as_folds, bundles, join_capped, like_size, nearest_folds
from ._study import (
    MIN_EXPOSURE_REMOVED,
    NONE,
    Answer,
    ControlPoint,
    FitRequest,
    LeakageStudy,
    Predictions,
    few_removed,
    mean_point,
)

# share of a training set beyond which no control can drop as many other rows
MAX_DROPPED_SHARE = 0.4
CONTROLS = 2, 4, 6  # controls for each bundle, until their Monte-Carlo error is small
# largest share of all records in a joined cluster, for five folds
CAP = 0.1
CAP_FOLDS = 5
SMALL_MONTE_CARLO_SHARE = 1 / 3  # share of the data's error at which a Monte-Carlo error is small
PARTITIONS_A_ROUND = 5  # partitions drawn before the next check of their Monte-Carlo error
NO_SWITCH_REASON = (
    "these folds do not test every record once by all others, so that none can change sides"
)
AS_FILED = "links as filed are right"
TYPICAL = "what is dropped is typical of its clusters but for the mates"
ASSUMPTION = "leaks are records of the test clusters like any other, and the loss goes on below the least leakage as above it"


def prices(study: LeakageStudy) -> NamedCounts:
    """Count the fits of the first look at each answer, without those for injection.

    More are run if the Monte-Carlo error is not small.
    """
    count = len(study.folds)
    complete = study.fold is not None
    num_filed = count
    if complete and count > 2:
        num_filed += count * (count - 1) // 2
    if not study.linkage.knows_pairs:
        return {"naive": num_filed}
    purged = sum(len(_bundles(study, k, cut)) for cut in study.cuts for k in range(count)) * (
        1 + CONTROLS[0]
    )
    regrouped = (
        count
        * PARTITIONS_A_ROUND
        * (complete and bool(study.cuts) and _removed_mate_share(study) >= MIN_EXPOSURE_REMOVED)
    )
    return {
        "naive": num_filed,
        "purge": purged,
        "coarser": count * len(study.cuts) * complete,
        "imputed": regrouped,
    }


class Bundle(NamedTuple):
    """Exposed rows of one fold, and the training rows that may be their mates."""

    fold: int
    rows: RowNumbers
    drop: RowFlags


def naive(study: LeakageStudy) -> Answer:
    """Score the folds as filed."""
    return study.correct(
        "naive",
        AS_FILED,
        0.0,
        0 * study.naive.influence,
        study.exposed,
        fold_effects=study.fold_effects,
    )


def coarser(study: LeakageStudy) -> Answer:
    """Score by clusters joined by every pair above a threshold, and purge the mates that are still
    across folds.

    The likeliest pairs join first, as long as the clusters are small enough for folds.
    """
    if study.fold is None:
        return Answer("coarser", study.assumption, NO_SWITCH_REASON)
    fold = study.fold
    link = study.linkage

    def regroup(cut: float) -> ControlPoint | str:
        use = link.probability >= cut
        max_rows = int(CAP * len(study.y) * CAP_FOLDS / len(study.folds))
        joined = join_capped(
            study.filed_clusters, link.left[use], link.right[use], link.probability[use], max_rows
        )
        new_fold = nearest_folds(fold, joined)
        if new_fold is None:
            return f"a cluster of {np.bincount(joined).max()} of {len(joined)} records is too large for a fold"
        regrouped = replace(study, folds=as_folds(new_fold, joined))
        purged = _purge(regrouped, cut)
        if isinstance(purged, str):
            return purged
        difference = regrouped.naive.value - study.naive.value + purged.difference
        influence = regrouped.naive.influence - study.naive.influence + purged.influence
        return purged._replace(difference=difference, influence=influence)

    return study.line("coarser", study.assumption, regroup)


def impute(study: LeakageStudy) -> Answer:
    """Cross-validate by the clusters of drawn partitions, with as many draws as make their error
    small.

    A pair of probability p is together in a share p of the draws, whether its records are of one
    entity or not, as draws do not depend on y. About Σ p² / Σ p of the mates across folds are
    therefore removed, which is half of them only if most links are nearly certain. If the first
    draws remove less, the answer is refused before any fit.
    """
    assumption = "links are drawn from calibrated probabilities; exposed records gain alike"
    refused = partial(Answer, "imputed", assumption)
    if study.fold is None:
        return refused(NO_SWITCH_REASON)
    if not study.cuts:
        return refused(NONE)
    removed_share = _removed_mate_share(study)
    if removed_share < MIN_EXPOSURE_REMOVED:
        return refused(few_removed(removed_share))
    points = []
    for clusters in study.clusters:
        new_fold = nearest_folds(study.fold, clusters)
        if new_fold is not None:
            folds = as_folds(new_fold, study.filed_clusters)
            value, influence = study.score_predictions(study.work.predict_folds(folds), folds)
            points.append(
                ControlPoint(
                    np.nan,
                    value - study.naive.value,
                    influence - study.naive.influence,
                    0.0,
                    _remaining_exposure(study, folds),
                )
            )
        if len(points) % PARTITIONS_A_ROUND == 0 and len(points):
            noise = float(np.var([p.difference for p in points], ddof=1)) / len(points)
            if _is_small(study, noise, mean_point(points).influence):
                break
    if len(points) < 2:
        return refused("drawn clusters are too large for folds")
    point = mean_point(points)
    removed_share = study.removed(point.exposed)
    if not removed_share >= MIN_EXPOSURE_REMOVED:
        return refused(few_removed(removed_share))
    between = float(np.var([p.difference for p in points], ddof=1))
    point = point._replace(monte_carlo=between / len(points))
    return study.answer("imputed", assumption, point, between)


def purge(study: LeakageStudy) -> Answer:
    """Predict rows that may have mates in training without these, and compare with fits that lack
    as many other rows.
    """
    return study.line("purge", f"{study.assumption}; {TYPICAL}", partial(_purge, study))


def average(study: LeakageStudy, purge: Answer, coarser: Answer) -> Answer:
    """Average two answers whose errors have different causes: other folds, and controls."""
    assumption = f"{study.assumption}; {TYPICAL}"
    for answer in (purge, coarser):
        if answer.refusal:
            return Answer("both", assumption, f"{answer.name} has no answer")
    correction, change, exposed, monte_carlo, between = (
        (getattr(purge, part) + getattr(coarser, part)) / 2
        for part in ("correction", "change", "exposed", "monte_carlo", "between")
    )
    return study.correct(
        "both",
        assumption,
        correction,
        change,
        exposed,
        monte_carlo=monte_carlo / 2,
        between=between,
    )


def mateless_rows(study: LeakageStudy) -> Answer:
    """Score the tested rows without a listed mate in training, by the predictions as filed."""
    assumption = "tested records without a listed mate are as hard as those with one"
    use = study.test_rows.copy()
    use[study.candidates.place.to_numpy()] = False
    masks = [use[fold.test] for fold in study.folds]
    min_fold_records = 10  # least number of records in a fold with a meaningful score
    if min(mask.sum() for mask in masks) < min_fold_records:
        return Answer(
            "unmated",
            assumption,
            f"fewer than {min_fold_records} records of some fold have no listed mate in training",
        )
    folds = [
        fold._replace(test=fold.test[mask]) for fold, mask in zip(study.folds, masks, strict=True)
    ]
    try:
        value, influence = study.score_predictions(
            [predicted[mask] for predicted, mask in zip(study.predictions, masks, strict=True)],
            folds,
        )
    except ValueError as error:  # such as records of one class
        return Answer("unmated", assumption, str(error).rstrip("."))
    return study.correct(
        "unmated", assumption, value - study.naive.value, influence - study.naive.influence, 0.0
    )


def _removed_mate_share(study: LeakageStudy) -> float:
    """Return the share of the mates across folds that the first drawn clusters remove.

    NaN if none fit into folds.
    """
    assert study.fold is not None
    remaining = [
        _remaining_exposure(study, as_folds(new_fold, study.filed_clusters))
        for clusters in study.clusters[:PARTITIONS_A_ROUND]
        if (new_fold := nearest_folds(study.fold, clusters)) is not None
    ]
    if remaining:
        return study.removed(float(np.mean(remaining)))
    return np.nan


def _remaining_exposure(study: LeakageStudy, folds: Folds) -> float:
    """Return the exposure on these folds."""
    return float(
        np.concatenate([study.linkage.mates(fold.train, fold.test) for fold in folds]).mean()
    )


def _is_small(study: LeakageStudy, noise: float, influence: FloatArray) -> bool:
    """Tell whether a Monte-Carlo variance is small beside that over clusters."""
    return bool(noise <= SMALL_MONTE_CARLO_SHARE**2 * study.over_clusters(influence).value)


def _bundles(study: LeakageStudy, k: int, cut: float) -> list[Bundle]:
    """Split the exposed rows of a fold into enough bundles that each fit drops few rows."""
    fold = study.folds[k]
    trained = np.zeros(len(study.y), bool)
    trained[fold.train] = True
    exposed = fold.test[study.linkage.candidates(fold.train, cut)[fold.test]]
    if not len(exposed):
        return []
    mates = lambda rows: study.linkage.candidates(rows, cut) & trained
    # share of a training set that one fit may drop before rows are tested in several bundles
    drop_share = 0.1
    max_bundles = 4  # largest number of bundles of a fold's exposed rows
    count = min(max_bundles, int(np.ceil(mates(exposed).sum() / (drop_share * len(fold.train)))))
    parts = bundles(exposed, study.filed_clusters, count, default_rng([study.seed, 5, k]))
    return [Bundle(k, rows, mates(rows)) for rows in parts]


def _purge(study: LeakageStudy, cut: float) -> ControlPoint | str:
    """Compare fits without possible mates with fits that lack as many other rows.

    Return why if they would lack too many.
    """
    parts = [part for k in range(len(study.folds)) for part in _bundles(study, k, cut)]
    dropped = max(
        (part.drop.sum() / len(study.folds[part.fold].train) for part in parts), default=0.0
    )
    if dropped > MAX_DROPPED_SHARE:
        return f"at {cut:.2g} it would drop {dropped:.0%} of a training set"
    if not parts:
        return ControlPoint(cut, 0.0, np.zeros(len(study.y)), 0.0, study.exposed)
    purged = [_without(study, part, part.drop) for part in parts]
    clean = study.score_predictions(_replace_predictions(study, parts, study.work(purged)))
    controls: list[tuple[float, FloatArray]] = []
    for count in CONTROLS:
        for c in range(len(controls), count):
            requests = [
                _without(study, part, _control_rows(study, part, b, c))
                for b, part in enumerate(parts)
            ]
            controls.append(
                study.score_predictions(_replace_predictions(study, parts, study.work(requests)))
            )
        values, influences = zip(*controls, strict=True)
        sums = [[influence[part.rows].sum() for part in parts] for influence in influences]
        noise = float(np.sum(np.var(sums, 0, ddof=1))) / count
        influence = clean.influence - np.mean(influences, 0)
        if _is_small(study, noise, influence):
            break
    difference = clean.value - float(np.mean(values))
    remaining = np.zeros(len(study.y))  # exposure through pairs below the cut
    for fold, mates in zip(study.folds, study.mates, strict=True):
        remaining[fold.test] = mates
    for request in purged:
        remaining[request.test] = study.linkage.mates(request.train, request.test)
    return ControlPoint(cut, difference, influence, noise, float(remaining[study.test_rows].mean()))


def _without(study: LeakageStudy, part: Bundle, drop: BoolArray) -> FitRequest:
    train = study.folds[part.fold].train
    return FitRequest(train[~drop[train]], part.rows)


def _control_rows(study: LeakageStudy, part: Bundle, number: int, control: int) -> BoolArray:
    rng = default_rng([study.seed, 6, part.fold, number, control])
    return like_size(part.drop, study.folds[part.fold].train, study.filed_clusters, rng)


def _replace_predictions(
    study: LeakageStudy, parts: list[Bundle], predictions: Predictions
) -> Predictions:
    """Return predictions as filed, with those of the bundles' rows replaced."""
    out = [predicted.copy() for predicted in study.predictions]
    place = np.zeros(len(study.y), int)
    for part, predicted in zip(parts, predictions, strict=True):
        place[study.folds[part.fold].test] = np.arange(len(out[part.fold]))
        out[part.fold][place[part.rows]] = predicted
    return out


def extrapolate(study: LeakageStudy, corrected: Callable[[], LeakageResult]) -> Answer:
    """Answer by `leakage_corrected`.

    Refuse if it refuses, or before its fits if injection cannot show the leakage.
    """
    refused = partial(Answer, "extrapolated", ASSUMPTION)
    if hidden := refusal(unshown(study.folds, study.linkage)):
        return refused(hidden)
    try:
        result = corrected()
    except ValueError as error:
        return refused(str(error).removeprefix("leakage_corrected: ").rstrip("."))
    if result.refusal:
        return refused(result.refusal)
    # scores without an influence are refused before
    assert result.influence is not None and result.naive_influence is not None
    return study.correct(
        "extrapolated",
        ASSUMPTION,
        result.correction,
        result.influence - result.naive_influence,
        0.0,
        monte_carlo=result.se_mc**2,
        between=result.se_p**2 + max(result.se_extrapolation, result.overhang / 2) ** 2,
    )
