"""Named scores of held-out units: `cross_validate(..., evaluate="squared_error")`.

    log_density      −log p(y), normalised; of discrete y −log P(y)
    squared_error    (y − μ)²; of three classes and more Brier's Σ_k (1[y = k] − μ_k)²
    absolute_error   |y − μ|
    zero_one         1 if the most probable class is wrong, else 0
    crps             ∫ (P(Y ≤ t) − 1[y ≤ t])² dt

μ is the predicted mean of the response. A dispersion that is not a parameter of the model is estimated from the data of each
refit: under squared loss the variance is φ = Σ w r² / Σ w over the units that the refit sees. Errors are estimates
(`scoring.reach`), unless the score is the model's own loss.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Float

from ..objectives.objective import LOG_DENSITY, LOG_PROBABILITY, Distribution, display_name
from ..optimize.fit import Fit
from ..plans.plan import RefitRows
from ..refit import RefitBatch
from .metrics import MEASURES, MetricValues
from .scoring import NamedScore, ScoreName, predictions, reach

Array = np.ndarray
SCORE_MEASURES = {"squared_error": "mse", "absolute_error": "mae", "zero_one": "accuracy"}
NAMES = get_args(ScoreName)
TITLES = {
    "log_density": LOG_DENSITY,
    "squared_error": "squared error",
    "absolute_error": "absolute error",
    "zero_one": "share of wrong classes",
    "crps": "CRPS",
}
WAYS_OUT = {
    "crps": "it is there for squared loss, for Gaussian, Poisson, negative binomial and gamma responses, and for two classes.",
    "log_density": "its loss is no density: lo.Regression(X, y, 'gaussian'), 'gamma' and others are, "
    "and evaluate='squared_error' or 'absolute_error' compares models of one response.",
}
Measure = Callable[[Array, Array, Array, Array], MetricValues]


def find_score(fit: Fit, name: str) -> NamedScore | None:
    """Return the score of a name; None if it is the model's own loss, ValueError if the model has no such score."""
    if not isinstance(name, str) or name not in NAMES:
        raise ValueError(f"cross_validate: evaluate must be a function or one of {', '.join(NAMES)}; got {name!r}.")
    units = fit.objective.units
    if name == "log_density" and units.score in (LOG_DENSITY, LOG_PROBABILITY):
        return None
    if name in SCORE_MEASURES:
        brier = name == "squared_error" and units.classes > 2
        return OfPredictions(fit, "Brier score" if brier else TITLES[name], _measure(fit, name))
    known = units.distribution()
    if known is None or name not in known.scores:
        raise ValueError(f"cross_validate: {display_name(fit.objective)} has no {name}; {WAYS_OUT[name]}")
    if known.note:
        warnings.warn(f"cross_validate: the {name} of {display_name(fit.objective)} is {known.note}.", stacklevel=5)
    return OfDistribution(fit, TITLES[name], known, known.scores[name])


def _measure(fit: Fit, name: str) -> Measure:
    """Return the function that computes each unit's contribution to a metric of predictions."""
    units, model = fit.objective.units, display_name(fit.objective)
    if units.target is None:
        raise ValueError(f"cross_validate: evaluate={name!r} needs a model with predictions and a target; got {model}.")
    if name == "zero_one" and not units.classes:
        raise ValueError(f"cross_validate: evaluate='zero_one' needs classes; {model} has none.")
    if name == "absolute_error" and units.classes > 2:
        raise ValueError(f"cross_validate: evaluate={name!r} needs a response that is a number; {model} has classes.")
    measure = MEASURES[SCORE_MEASURES[name]]
    if name != "zero_one":
        return measure

    def wrong(*args: Array) -> MetricValues:
        right = measure(*args)
        return MetricValues(1 - right.values, right.error)

    return wrong


@dataclass(frozen=True)
class OfPredictions(NamedScore):
    """Score each unit's prediction by a metric; its error follows from that of the prediction."""

    fit: Fit
    title: str
    measure: Measure

    def losses(self, rows: RefitRows, theta: Array) -> Float[Array, "refits width"]:
        values = self._predict(rows, theta)
        return self._measure(rows, values, np.zeros_like(values))[0]

    def error(self, rows: RefitRows, batch: RefitBatch, losses: Array) -> Float[Array, " refits"]:
        del losses
        at = lambda theta: self._predict(rows, theta)
        values = at(batch.theta)
        return self._measure(rows, values, reach(self.fit, batch, values, at))[1].sum(1)

    def _predict(self, rows: RefitRows, theta: Array) -> Array:
        """Return the predictions μ; for two classes, the probability of the second."""
        values, classes = predictions(self.fit, rows, theta, "response"), self.fit.objective.units.classes
        if values.ndim > 2 and not classes:
            raise ValueError(
                f"cross_validate: evaluate= needs a prediction of one number; {display_name(self.fit.objective)} has several."
            )
        return values[..., 1] if values.ndim > 2 and classes == 2 else values

    def _measure(self, rows: RefitRows, predicted: Array, off: Array) -> tuple[Array, Array]:
        """Return the values of a batch and their errors, zero where not scored."""
        target, held = np.asarray(self.fit.objective.units.target), rows.held
        out = np.zeros((2, *rows.index.shape))
        with np.errstate(invalid="ignore"):
            found = self.measure(target[rows.index[held]], predicted[held], off[held], np.ones(int(held.sum())))
        out[0][held], out[1][held] = found.values, found.error
        return out[0], np.where(np.isnan(out[1]), np.inf, out[1])


@dataclass(frozen=True)
class OfDistribution(NamedScore):
    """Score the distribution that a refit predicts."""

    fit: Fit
    title: str
    distribution: Distribution
    score: Callable[[Array, Array, Array], Array]

    def losses(self, rows: RefitRows, theta: Array) -> Float[Array, "refits width"]:
        y = np.asarray(self.fit.objective.units.target)
        mean = predictions(self.fit, rows, theta, "response")
        with np.errstate(all="ignore"):
            values = self.score(mean, self.distribution.dispersion(rows, theta), y[np.minimum(rows.index, len(y) - 1)])
        return np.where(rows.held, values, 0.0)

    def error(self, rows: RefitRows, batch: RefitBatch, losses: Array) -> Float[Array, " refits"]:
        return reach(self.fit, batch, losses, lambda theta: self.losses(rows, theta)).sum(1)
