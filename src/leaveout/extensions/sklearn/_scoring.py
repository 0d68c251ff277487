"""Scorers of scikit-learn, for all folds.

A score that is a function of the mean of the model's own loss over the test rows comes from the
losses of all folds at once, with their errors. Any other scorer of scikit-learn's that is in the
table of measures comes from the held-out predictions and their errors. The rest are called on the
test rows of every fold, also at parameters within the refit's error.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import check_scoring, explained_variance_score, get_scorer, get_scorer_names

import leaveout as lo

from ... import Estimate, Fit, Plan
from ...developer import (
    LOG_DENSITY,
    LOG_PROBABILITY,
    NO_REFIT_CODES,
    AnyFunction,
    Batch,
    Called,
    Collected,
    CollectedColumns,
    EstimateBuilder,
    FloatArray,
    HeldOutLoss,
    Measure,
    NamedScore,
    NamedValues,
    PredictionColumns,
    Predictions,
    Ranks,
    RefitBatch,
    among,
    float64,
    held_out,
    of_scorer,
    over_refits,
    predictions_of,
    reader_for,
    silence,
    warn,
)
from ..hosts.sklearn import usual_score
from ._folds import CalledScorer, FoldData, OneFit, Score, Scores

ErrorScore = float | Literal["raise"]
Scoring = str | AnyFunction
# largest log loss, as scikit-learn keeps probabilities off 0 and 1
LARGEST = -np.log(np.finfo(np.float64).eps)


def undefined_score(name: str) -> float:
    """Return NaN, with scikit-learn's warning, for a share of variance of a single row."""
    warn(f"{name} is not well-defined with less than two samples.", UndefinedMetricWarning)
    return np.nan


def named_scorers(scoring, host, X, y: NDArray, error_score: ErrorScore) -> dict[str, Scoring]:
    """Return scorers by their names in scikit-learn; a single one is "score".

    Scores of a function that returns several keep its names.
    """
    if isinstance(scoring, dict):
        return scoring
    if callable(scoring):
        try:
            result = scoring(host, X, y)
        except Exception:  # its result is unknown; folds on which it fails are reported one by one
            if error_score == "raise":
                raise
            return {"score": scoring}
        scorer_of = lambda name: lambda host, X, y: scoring(host, X, y)[name]
        if isinstance(result, dict):
            return {name: scorer_of(name) for name in result}
        return {"score": scoring}
    if scoring is None or isinstance(scoring, str):
        return {"score": scoring or usual_score(host) or ""}
    return {name: name for name in scoring}


def table_measure(scoring, host, y: NDArray) -> Measure | None:
    """Return the measure of predictions that a scorer is, for classes or for numbers; None if it
    has to be called.

    Its `function` is that of scikit-learn. That of several targets is the mean over them.
    """
    name = scoring or usual_score(host)
    labels = np.unique(y) if is_classifier(host) else None
    if (
        not isinstance(name, str)
        or name not in get_scorer_names()
        or (y.ndim > 1 and "deviance" in name)
    ):
        return None
    try:
        measure = of_scorer("cross_validate: scoring", name, get_scorer(name), labels, host)
    except (TypeError, ValueError):
        return None
    if measure.functional is not None and not isinstance(measure.functional, Called):
        return replace(measure, function=get_scorer(name)._score_func.__name__)
    return None


def multiple_of_loss(measure: Measure | None, fit: Fit, y: NDArray) -> float:
    """Tell by which number the mean of the model's own loss is to be multiplied so that it gives
    the measure; 0 if by none.
    """
    units = fit.objective.units
    loss = getattr(fit.objective, "loss_function", None)
    name = "" if measure is None else measure.function
    if name == "log_loss" and units.classes and units.score in (LOG_DENSITY, LOG_PROBABILITY):
        return 1.0
    if (
        name in ("mean_squared_error", "root_mean_squared_error", "r2_score")
        and isinstance(loss, lo.losses.Squared)
        and loss.link_name == "identity"
        and np.array_equal(np.asarray(units.modelled), y)
    ):
        return 2.0
    return 0.0


def scores(
    folds: OneFit, scorings: dict[str, Scoring], host, y: NDArray, error_score: ErrorScore
) -> dict[str, Scores]:
    """Compute the scores of every fold by name, from the same refits."""
    calls = {name: score_of(scoring, host, error_score) for name, scoring in scorings.items()}
    began = time.perf_counter()
    several = len(folds.fits) > 1
    # of a transformed target, the inverse link does not give predictions of the host
    units = folds.fits[0].objective.units
    predicts = several or is_classifier(host) or np.array_equal(np.asarray(units.modelled), y)
    tables = {
        name: table_measure(scoring, host, y) if predicts else None
        for name, scoring in scorings.items()
    }
    factors = {
        name: 0.0 if several else multiple_of_loss(measure, folds.fits[0], y)
        for name, measure in tables.items()
    }
    called: NamedValues = {
        name: CalledScorer(folds, calls[name])
        for name, measure in tables.items()
        if measure is None
    }
    needed = any(measure is not None and not factors[name] for name, measure in tables.items())
    predict = PredictionColumns("link", judged=True) if needed else None
    scorers = list(called.values())
    collected = []
    for fit in folds.fits:
        (own_loss, *called_estimates), columns = _scored_together(folds, fit, scorers, predict)
        collected.append(predictions_of(folds.plan, "link", columns))
    estimates = dict(zip(called, called_estimates, strict=True))
    seconds = (time.perf_counter() - began) / (len(scorings) * folds.plan.num_refits)
    out = {}
    for name, measure in tables.items():
        if measure is None:  # a fold with undetermined rows has no score
            estimate = estimates[name]
            values = np.where(among(estimate.result, NO_REFIT_CODES), np.nan, estimate.losses)
            error = estimate.error
        elif factors[name]:
            values, error = of_losses(own_loss, measure, factors[name], folds.data)
        else:
            values, error = of_predictions(measure, folds, collected)
        out[name] = folds.complete(
            Scores(values, error, np.full(len(values), seconds)), calls[name]
        )
    return out


@float64
def _scored_together(
    folds: OneFit, fit: Fit, scores: list[NamedScore], predict: PredictionColumns | None
) -> tuple[list[Estimate], CollectedColumns]:
    """Cross-validate by the model's own loss and by several scores, from the same refits, without
    audits.

    Return the estimates, and the columns of the predictions if they are asked for.
    """
    strategy = folds.refit
    plan = reader_for("cross_validate", fit).resolve(folds.plan)
    model_builder = EstimateBuilder(HeldOutLoss(fit, plan, None), strategy, predict=predict)
    builders = [model_builder]
    builders += [EstimateBuilder(HeldOutLoss(fit, plan, score), strategy) for score in scores]

    def collect(batch: Batch, outcome: RefitBatch) -> Collected:
        """Collect what all collect, each under names that begin with its number."""
        parts = [builder.collect(batch, outcome) for builder in builders]
        refits, entries = (
            {
                f"{k} {name}": array
                for k, columns in enumerate(kind)
                for name, array in columns.items()
            }
            for kind in zip(*parts, strict=True)
        )
        return Collected(refits, entries)

    columns = over_refits(
        "cross_validate", fit, plan, strategy, collect, judge=True, scale=model_builder.blank.scale
    )
    estimates = []
    for k, builder in enumerate(builders):
        prefix = f"{k} "
        builder.columns.update(
            {
                name.removeprefix(prefix): values
                for name, values in columns.items()
                if name.startswith(prefix)
            }
        )
        estimate = builder.draft
        if k and strategy.in_standard_errors:
            estimate = builder.sharpen(estimate)
        estimates.append(builder.finish(estimate))
    return estimates, model_builder.columns


def of_predictions(measure: Measure, folds: OneFit, collected: list[Predictions]) -> FloatArray:
    """Compute the measure of each fold's predictions, and its error, `[2, folds]`, by the host's
    rule.

    The class is that of the largest linear predictor. Probabilities of classes against the rest are
    divided by their sum.
    """
    y = folds.data.y
    several = len(collected) > 1
    out = np.full((2, len(folds.splits)), np.nan)
    functional: Any = measure.functional
    eta, bound = _stacked(collected)
    if measure.classes:
        y = np.searchsorted(np.unique(y), y).astype(float)
    if measure.needs == "label":
        eta, bound = (eta, bound) if eta.ndim > 1 else (np.c_[-eta, eta], np.c_[bound, bound])
    elif not (isinstance(functional, Ranks) and eta.ndim == 1):  # areas are of the order alone
        loss = getattr(folds.fits[0].objective, "loss_function", None)
        inverse = getattr(loss, "inverse_link", None)
        if inverse is None or isinstance(loss, lo.losses.HuberScale):  # predictors are predictions
            inverse = lambda eta: eta
        mean = np.asarray(inverse(eta))
        if eta.ndim > 1 and not several:  # p_k e^{s_k} / Σ_l p_l e^{s_l} with |s| ≤ off
            bound = mean * np.expm1(bound + bound.max(1, keepdims=True))
        else:
            bound = np.max([np.abs(inverse(eta + sign * bound) - mean) for sign in (1, -1)], 0)
        eta, bound = shares(mean, bound) if several and measure.classes else (mean, bound)
    if measure.needs == "decision":
        measure = replace(measure, needs="probability")  # whose order is that of decisions
    for k, place, rows, weight in scored_rows(folds.plan, measure, folds.data):
        if k in folds.lacking or not np.isfinite(eta[place]).all():
            continue
        columns = (
            zip(y[rows].T, eta[place].T, bound[place].T, strict=True)
            if y.ndim > 1
            else [(y[rows], eta[place], bound[place])]
        )
        value = lambda y, mean, bound, w=weight: functional.value(y, measure.form(mean), w)
        error = lambda y, mean, bound, w=weight: np.average(
            np.broadcast_to(measure.error(y, mean, bound, w), len(w)), weights=w
        )
        # areas of rows of one class are not defined
        with contextlib.suppress(ValueError), silence("all"):
            out[:, k] = np.mean([(value(*entry), error(*entry)) for entry in columns], 0)
    return out


def shares(mean: NDArray, bound: NDArray) -> tuple[NDArray, NDArray]:
    """Divide probabilities of classes against the rest by their sum."""
    total, move = (array.sum(1, keepdims=True) for array in (mean, bound))
    return mean / total, np.where(
        move < total, (bound + mean / total * move) / np.abs(total - move), np.inf
    )


@silence("divide", "invalid")
def prediction_errors(folds: OneFit, predicted: NDArray, method: str) -> NDArray:
    """Estimate the largest differences of predictions from those of exact refits.

    Zero for folds with a fit of their own.
    """
    kind = "response"
    if method == "decision_function":
        kind = "link"
    collected = [held_out(fit, folds.plan, folds.refit, kind, judged=True) for fit in folds.fits]
    mean, bound = _stacked(collected)
    if kind == "response" and is_classifier(folds.host) and len(collected) > 1:
        bound = shares(mean, bound)[1]
    bound[~folds.exists[collected[0].plan.scored_refits]] = 0.0
    bound = bound[np.argsort(collected[0].plan.scored_units)]
    # that of both classes
    if bound.ndim != predicted.ndim:
        bound = bound[:, None]
    if method == "predict_log_proba":
        return -np.log1p(-np.minimum(bound / np.exp(predicted), 1))
    return bound


def _stacked(collected: list[Predictions]) -> tuple[NDArray, NDArray]:
    """Return the predictions and errors of one problem, or those of several in columns."""
    values, bound = (
        np.stack([getattr(predictions, name) for predictions in collected], -1)
        for name in ("values", "errors")
    )
    if len(collected) > 1:
        return values, bound
    return values[..., 0], bound[..., 0]


def scored_rows(
    plan: Plan, measure: Measure, data: FoldData
) -> Iterator[tuple[int, slice, NDArray, NDArray]]:
    """Yield the number of each fold that has a score, the place of its scored entries, their rows
    and weights.
    """
    unit = plan.scored_units
    ends = np.cumsum(plan.scored_counts)
    weights = data.score_weight
    if weights is None:
        weights = np.ones(len(data.y))
    for k, place in enumerate(map(slice, [0, *ends[:-1]], ends)):
        weight = weights[unit[place]]
        if len(weight) < 2 and measure.function in ("r2_score", "explained_variance_score"):
            undefined_score(measure.name)
        elif weight.sum() > 0:
            yield k, place, unit[place], weight


def of_losses(estimate: Estimate, measure: Measure, factor: float, data: FoldData) -> FloatArray:
    """Compute a measure of folds from the model's own losses of their rows, and its errors, `[2,
    folds]`.
    """
    functional: Any = measure.functional
    losses = estimate.losses[estimate.plan.held]
    if measure.classes:
        losses = np.minimum(losses, LARGEST)
    out = np.full((2, len(estimate.error)), np.nan)
    for k, place, rows, weight in scored_rows(estimate.plan, measure, data):
        mean = np.average(losses[place], weights=weight)
        bound = estimate.error[k] * weight.max() / weight.sum()
        measured = [
            functional.of_mean_loss(factor * mean_loss, data.y[rows], weight)
            for mean_loss in (mean, mean + bound, max(mean - bound, 0.0))
        ]
        out[:, k] = measured[0], np.abs(np.subtract(measured[1:], measured[0])).max()
    return out


def score_of(scoring: Scoring, host, error_score: ErrorScore) -> Score:
    """Call a scorer that fails as scikit-learn's do."""
    scorer = check_scoring(host, scoring=scoring or None)

    def score(host, rows: FoldData) -> float:
        if len(rows.y) < 2 and getattr(scorer, "_score_func", None) is explained_variance_score:
            # scikit-learn's value is 1, as the variance is zero
            return undefined_score("Explained variance score")
        if rows.score_weight is None:
            options = {}
        else:
            options = {"sample_weight": rows.score_weight}
        try:
            return float(scorer(host, rows.X, rows.y, **options))
        except Exception as error:
            if error_score == "raise":
                raise
            warn(f"Scoring failed. The score of this fold is set to {error_score}. {error!r}")
            return float(error_score)

    return score
