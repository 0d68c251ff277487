"""Scorers of scikit-learn, for all folds.

A score that is a function of the mean of a known loss over the test rows comes from the losses of all folds at once, with their
errors. Any other scorer is called on the test rows of every fold, also at parameters within the refit's error.
"""

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import check_scoring, explained_variance_score, get_scorer, get_scorer_names

from .._runtime.conventions import warn
from .._runtime.results import among
from ..interop.sklearn import usual_score
from ..optimize.fit import Fit
from ..validation.cross_validate import NO_REFIT_CODES, scored_together
from ..validation.estimate import Estimate
from ..validation.metrics import Mean, OfMeans, ScoreName, of_function
from ..validation.scoring import NamedScore, OfPredictions
from ._folds import CalledScorer, FoldData, OneFit, Score, Scores

ErrorScore = float | Literal["raise"]
Scoring = str | Callable[..., Any]
LARGEST = -np.log(np.finfo(np.float64).eps)  # largest log loss, as scikit-learn keeps probabilities off 0 and 1


class OfMean(NamedTuple):
    """Score that is a function of the mean of a loss, and of the response and its weights, over the test rows."""

    loss: ScoreName | NamedScore
    score: Callable[[float, NDArray, NDArray], float]


def undefined_score(what: str) -> float:
    """Return NaN, with scikit-learn's warning, for a share of variance of a single row."""
    warn(f"{what} is not well-defined with less than two samples.", UndefinedMetricWarning)
    return float("nan")


def named_scorers(scoring: Any, host: Any, X: Any, y: NDArray, error_score: ErrorScore) -> dict[str, Scoring]:
    """Return scorers by their names in scikit-learn; a single one is "score".

    Scores of a function that returns several keep its names.
    """
    if isinstance(scoring, dict):
        return scoring
    if callable(scoring):
        try:
            found = scoring(host, X, y)
        except Exception:  # its result is unknown; folds on which it fails are reported one by one
            if error_score == "raise":
                raise
            return {"score": scoring}
        one = lambda name: lambda host, X, y: scoring(host, X, y)[name]
        return {name: one(name) for name in found} if isinstance(found, dict) else {"score": scoring}
    if scoring is None or isinstance(scoring, str):
        return {"score": scoring or usual_score(host) or ""}
    return {name: name for name in scoring}


def is_mean(scoring: Any, classes: bool) -> bool:
    """Tell whether a scorer is a function of a mean loss of rows that models of classes, or of numbers, have."""
    if not isinstance(scoring, str) or scoring not in get_scorer_names():
        return False
    known = of_function(get_scorer(scoring)._score_func)
    if known is None or not isinstance(known.functional, Mean | OfMeans) or known.classes != classes:
        return False
    return classes or bool(known.evaluate or known.mean_of)


def of_mean(scoring: Scoring, host: Any, fit: Fit, y: NDArray) -> OfMean | None:
    """Write a scorer as a function of a mean loss of the fit, if it is one."""
    units = fit.objective.units
    if not isinstance(scoring, str) or not is_mean(scoring, bool(units.classes)):
        return None
    scorer: Any = get_scorer(scoring)
    known: Any = of_function(scorer._score_func)
    functional, loss, sign = known.functional, known.evaluate or known.mean_of, scorer._sign
    if units.classes:
        if known.needs != "label" and (loss is None or (loss == "squared_error" and units.classes > 2)):
            return None
    elif is_classifier(host) or not np.array_equal(np.asarray(units.target), y):
        return None

    def score(mean: float, y: NDArray, weight: NDArray) -> float:
        if len(y) < 2 and known.function == "r2_score":
            return undefined_score("R^2 score")
        return sign * functional.at(mean, y, weight)

    return OfMean(loss or OfPredictions(fit, known), score)


def scores(folds: OneFit, scorings: dict[str, Scoring], host: Any, y: NDArray, error_score: ErrorScore) -> dict[str, Scores]:
    """Compute the scores of every fold by name, from the same refits."""
    calls = {name: score_of(scoring, host, error_score) for name, scoring in scorings.items()}
    began = time.perf_counter()
    means = {name: of_mean(scoring, host, folds.fit, y) for name, scoring in scorings.items()}
    asked = {name: CalledScorer(folds, calls[name]) if known is None else known.loss for name, known in means.items()}
    distinct = list(dict.fromkeys(asked.values()))
    estimates = dict(zip(distinct, scored_together(folds.fit, folds.plan, folds.refit, distinct), strict=True))
    each = (time.perf_counter() - began) / (len(scorings) * folds.plan.num_refits)
    found = {}
    for name, known in means.items():
        estimate = estimates[asked[name]]
        if known is None:  # a fold with undetermined rows has no score
            values, error = np.where(among(estimate.result, NO_REFIT_CODES), np.nan, estimate.losses), estimate.error
        else:
            values, error = of_losses(estimate, known, folds.data)
        found[name] = folds.complete(Scores(values, error, np.full(len(values), each)), calls[name])
    return found


def of_losses(estimate: Estimate, facts: OfMean, data: FoldData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute scores of folds from losses of their rows, with their errors."""
    plan, weights = estimate.plan, np.ones(len(data.y)) if data.score_weight is None else data.score_weight
    losses = np.minimum(estimate.losses, LARGEST) if facts.loss == "log_density" else estimate.losses
    values, error = np.full((2, plan.num_refits), np.nan)
    for k, (start, end) in enumerate(zip(plan.indptr[:-1], plan.indptr[1:], strict=True)):
        held = plan.held[start:end]
        rows = plan.index[start:end][held]
        y, weight = data.y[rows], weights[rows]
        if not weight.sum() > 0:
            continue
        mean, off = np.average(losses[start:end][held], weights=weight), estimate.error[k] * weight.max() / weight.sum()
        values[k] = facts.score(mean, y, weight)
        around = [facts.score(at, y, weight) for at in (mean + off, max(mean - off, 0.0))]
        error[k] = np.abs(np.subtract(around, values[k])).max()
    return values, error


def score_of(scoring: Scoring, host: Any, error_score: ErrorScore) -> Score:
    """Call a scorer that fails as scikit-learn's do."""
    scorer = check_scoring(host, scoring=scoring or None)

    def score(host: Any, rows: FoldData) -> float:
        if len(rows.y) < 2 and getattr(scorer, "_score_func", None) is explained_variance_score:
            return undefined_score("Explained variance score")  # scikit-learn's value is 1, as the variance is zero
        more = {} if rows.score_weight is None else {"sample_weight": rows.score_weight}
        try:
            return float(scorer(host, rows.X, rows.y, **more))
        except Exception as error:
            if error_score == "raise":
                raise
            warn(f"Scoring failed. The score of this fold is set to {error_score}. {error!r}")
            return float(error_score)

    return score
