"""Scorers of scikit-learn, for all folds.

A score that is a function of the mean of a known loss over the test rows comes from the losses of all folds at once, with their
errors. Any other scorer is called on the test rows of every fold, also at parameters within the refit's error.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import check_scoring, explained_variance_score

from .._runtime.results import among
from ..interop.sklearn import inner
from ..optimize.fit import Fit
from ..validation.cross_validate import NO_REFIT_CODES, scored_together
from ..validation.estimate import Estimate
from ..validation.scoring import ScoreName
from ._folds import CalledScorer, FoldData, OneFit, PipelineFolds, Score, Scores

ErrorScore = float | Literal["raise"]
Scoring = str | Callable[..., Any]
LARGEST = -np.log(np.finfo(np.float64).eps)  # largest log loss, as scikit-learn keeps probabilities off 0 and 1


class OfMean(NamedTuple):
    """Score that is a function of the mean of a loss, and of the response and its weights, over the test rows."""

    loss: ScoreName
    score: Callable[[float, NDArray, NDArray], float]


def _determination(mean: float, y: NDArray, weight: NDArray) -> float:
    """Compute R² as scikit-learn defines it: 1 or 0 for a constant response, NaN for one row."""
    spread = float(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight))
    if len(y) < 2:
        return undefined_score("R^2 score")
    if spread == 0:
        return float(mean == 0)
    return 1 - mean / spread


def undefined_score(what: str) -> float:
    """Return NaN, with scikit-learn's warning, for a share of variance of a single row."""
    warnings.warn(f"{what} is not well-defined with less than two samples.", UndefinedMetricWarning, stacklevel=2)
    return float("nan")


NUMBERS = {
    "r2": OfMean("squared_error", _determination),
    "neg_mean_squared_error": OfMean("squared_error", lambda mean, *_: -mean),
    "neg_root_mean_squared_error": OfMean("squared_error", lambda mean, *_: -(mean**0.5)),
    "neg_mean_absolute_error": OfMean("absolute_error", lambda mean, *_: -mean),
}
CLASSES = {
    "accuracy": OfMean("zero_one", lambda mean, *_: 1 - mean),
    "neg_log_loss": OfMean("log_density", lambda mean, *_: -mean),
}
TWO_CLASSES = {"neg_brier_score": OfMean("squared_error", lambda mean, *_: -mean)}
USUAL = {RegressorMixin.score: "r2", ClassifierMixin.score: "accuracy"}


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
        return {"score": scoring or USUAL.get(type(inner(host)).score, "")}
    return {name: name for name in scoring}


def of_mean(scoring: Scoring, host: Any, fit: Fit, y: NDArray) -> OfMean | None:
    """Write a scorer as a function of a mean loss of the fit, if it is one."""
    if not isinstance(scoring, str):
        return None
    units = fit.objective.units
    if units.classes:
        return {**CLASSES, **(TWO_CLASSES if units.classes == 2 else {})}.get(scoring)
    same = not is_classifier(host) and np.array_equal(np.asarray(units.target), y)
    return NUMBERS.get(scoring) if same else None


def scores(
    folds: OneFit | PipelineFolds, scorings: dict[str, Scoring], host: Any, y: NDArray, error_score: ErrorScore
) -> dict[str, Scores]:
    """Compute the scores of every fold by name, from the same refits."""
    calls = {name: score_of(scoring, host, error_score) for name, scoring in scorings.items()}
    if isinstance(folds, PipelineFolds):
        return dict(zip(calls, folds.call_scorers(list(calls.values())), strict=True))
    began = time.perf_counter()
    means = {name: of_mean(scoring, host, folds.fit, y) for name, scoring in scorings.items()}
    asked = {name: CalledScorer(folds, calls[name]) if known is None else known.loss for name, known in means.items()}
    distinct = list(dict.fromkeys(asked.values()))
    estimates = dict(zip(distinct, scored_together(folds.fit, folds.plan, folds.refit, distinct), strict=True))
    each = (time.perf_counter() - began) / (len(scorings) * folds.plan.num_refits)
    found = {}
    for name, known in means.items():
        estimate = estimates[asked[name]]
        values, error = of_calls(estimate) if known is None else of_losses(estimate, known, folds.data)
        found[name] = folds.complete(Scores(values, error, np.full(len(values), each)), calls[name])
    return found


def of_calls(estimate: Estimate) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Collect called scores; a fold with undetermined rows has none."""
    return np.where(among(estimate.result, NO_REFIT_CODES), np.nan, estimate.losses), estimate.error


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
            warnings.warn(f"Scoring failed. The score of this fold is set to {error_score}. {error!r}", stacklevel=2)
            return float(error_score)

    return score
