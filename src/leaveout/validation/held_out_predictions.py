"""Held-out predictions, collected as batches of refits arrive, and their measures: `cross_validate(..., metric=)`.

    mse, mae, brier, accuracy    the mean over units of each one's mean over the refits that score it
    auc                          not a mean over units: of predictions together, or the mean over parts of them. Parts are
                                 repeats of k-fold, single refits where these hold every class, or all

A metric of predictions that are averaged over refits would be that of an ensemble, which nobody fitted. Each metric has a
standard error over independent units, from the influence of each unit, and a bound of the effect of the refits' errors, from
the error of each prediction.
"""

import functools
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from .._runtime.checkpoint import StepResult
from .._runtime.results import NO_REFIT_CODES, among
from ..objectives.objective import display_name
from ..optimize.fit import Fit
from ..plans.plan import Batch, Plan, RefitRows
from ..refit import RefitBatch
from .metrics import METRICS, Metric
from .scoring import predictions, reach
from .standard_errors import average_by_unit, standard_error

SMALL = 20  # rows of a fold up to which areas are computed fold by fold, if each fold has every class
POOLING_NOTE = "pooled over held-out predictions"

NO_LOSS_CODES = NO_REFIT_CODES[1:]  # codes of refits without any loss; undetermined refits mark units with a loss as `held`


class Predictions:
    """Predictions of one kind for every unit that a refit scores, in the order of the plan, `[scored, ...]`.

    A missing prediction is NaN. `off` is the error of each if they are `judged`, else zero.
    """

    plan: Plan
    kind: str
    has_error: bool
    values: np.ndarray
    off: np.ndarray

    def __init__(self, plan: Plan, kind: str, *, judged: bool = False, values: Float[np.ndarray, "scored ..."] | None = None):
        self.plan, self.kind, self.has_error = plan, kind, judged
        self.values = np.zeros(0) if values is None else values
        self.off = np.zeros_like(self.values)

    def predict(self, fit: Fit, rows: RefitRows, batch: RefitBatch, result: Int[np.ndarray, " refits"]) -> StepResult:
        """Compute the predictions of a batch of refits, and their errors."""
        at = lambda theta: predictions(fit, rows, theta, self.kind)
        values = at(batch.theta)
        keep = rows.held & ~among(result, NO_LOSS_CODES)[:, None] & np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        found = {"predicted": keep, "values": values[keep]}
        return found | {"off": reach(fit, batch, values, at)[keep]} if self.has_error else found

    def merge(self, batch: Batch, result: StepResult) -> None:
        """Store the predictions of a batch, computed now or read from the checkpoint."""
        place, values = self._number[batch.place[result["predicted"]]], result["values"]
        if not self.values.size:
            self.values = np.full((int(self.plan.held.sum()), *values.shape[1:]), np.nan)
            self.off = np.zeros_like(self.values)
        self.values[place] = values
        if self.has_error:
            self.off[place] = result["off"]

    @functools.cached_property
    def _number(self) -> Int[np.ndarray, " entries"]:
        """Number every scored entry of the plan."""
        return np.cumsum(self.plan.held) - 1

    @property
    def existing(self) -> Bool[np.ndarray, " scored"]:
        """Mark the predictions that exist."""
        if not self.values.size:
            return np.zeros(int(self.plan.held.sum()), bool)
        return np.asarray(np.isfinite(self.values).reshape(len(self.values), -1).all(-1))

    @property
    def unit(self) -> Int[np.ndarray, " scored"]:
        return self.plan.index[self.plan.held]

    @property
    def refit(self) -> Int[np.ndarray, " scored"]:
        return self.plan.refit[self.plan.held]

    def per_unit(self) -> Float[np.ndarray, "units ..."]:
        """Average the predictions of each unit over its refits; NaN without any."""
        seen = self.existing
        if not self.values.size:
            return np.full(self.plan.num_units, np.nan)
        return average_by_unit(self.unit[seen], self.values[seen], self.plan.num_units)


class HeldOutPredictions(NamedTuple):
    """Held-out predictions, `[scored]`, in the order of units.

    Each has its unit, part, target, prediction and the error of that. `weight` has the weight of every unit, and `parts` is a
    description of the parts.
    """

    unit: NDArray[np.int64]
    part: NDArray[np.int64]
    target: np.ndarray
    prediction: NDArray[np.float64]
    off: NDArray[np.float64]
    weight: NDArray[np.float64]
    parts: str

    def some(self, chosen: NDArray) -> "HeldOutPredictions":
        """Select some of the predictions."""
        unit, part, target, prediction, off = (each[chosen] for each in self[:5])
        return HeldOutPredictions(unit, part, target, prediction, off, self.weight, self.parts)


class Value(NamedTuple):
    """Metric with the contributions of units `[units]`, whose mean it is, its error, and a description."""

    value: float
    values: NDArray[np.float64]
    error: float
    how: str


def measures(fit: Fit, metric: Any) -> tuple[Metric, ...]:
    """Return the named metrics as a tuple; ValueError for an unknown name, or a metric that the model does not have."""
    several = isinstance(metric, Iterable) and not isinstance(metric, str)
    metrics = () if metric is None else tuple(metric) if several else (metric,)
    unknown = [name for name in metrics if name not in [*METRICS]]
    if unknown:
        raise ValueError(f"cross_validate: metric must be among {', '.join(METRICS)}; got {', '.join(map(str, unknown))}.")
    for name in metrics:
        measurable("cross_validate", fit, name)
    return metrics


def measurable(caller: str, fit: Fit, metric: str) -> None:
    """Raise ValueError for a model without predictions, or a metric of classes if the response has none."""
    units = fit.objective.units
    if units.target is None:
        raise ValueError(f"{caller}: metric needs a model with predictions and a target; got {display_name(fit.objective)}.")
    if METRICS[metric].classes and not units.classes:
        values = np.unique(np.asarray(units.target, np.float64))
        if np.isfinite(values).sum() > 2:
            raise ValueError(f"{caller}: metric={metric!r} needs a response of classes; this one is a number: 'mse' or 'mae'.")


def measure(metrics: Sequence[str], fit: Fit, predictions: Predictions) -> dict[str, dict[str, Any]]:
    """Compute metrics of predictions: the fields of an estimate that hold them, each by the metrics' names."""
    held, plan = in_order(fit, predictions), predictions.plan
    small = np.diff(plan.indptr).max() < 0.05 * plan.num_units or np.bincount(plan.refit[plan.held]).max() <= SMALL
    if "auc" in metrics and held.parts.endswith(POOLING_NOTE) and small:
        warnings.warn(
            "cross_validate: an AUC pooled over small folds is biased downwards: predictions of different refits are ranked "
            "against each other, and each refit leans away from the class it left out (a model of an intercept alone gets 0, "
            "not 0.5). Compare losses, or use large folds, or folds that each hold every class.",
            stacklevel=5,  # skips the frames of the precision's context
        )
    found = {name: metric_value(name, held) for name in metrics}
    return {
        "metrics": {name: each.value for name, each in found.items()},
        "metric_se": {name: standard_error(each.values, held.weight, plan).value for name, each in found.items()},
        "metric_error": {name: each.error for name, each in found.items()},
        "metric_how": {name: each.how for name, each in found.items()},
    }


def in_order(fit: Fit, predictions: Predictions) -> HeldOutPredictions:
    """Collect the existing predictions in the order of units, with the part in which each is ranked.

    Areas are means over parts.
    """
    units, seen, plan = fit.objective.units, np.flatnonzero(predictions.existing), predictions.plan
    order = seen[np.argsort(predictions.unit[seen], kind="stable")]
    unit, refit = predictions.unit[order], predictions.refit[order]
    weight = np.ones(plan.num_units) if units.weight is None else np.asarray(units.weight, np.float64)
    target, repeat, together = np.asarray(units.target)[unit], repeats(plan), np.zeros_like(refit)
    whole = _whole(refit, target, weight[unit], plan.num_refits)[np.unique(refit)]
    if repeat is None:
        part, parts = (refit, "refits") if whole.any() else (together, POOLING_NOTE)
    elif whole.all() and np.bincount(plan.refit[plan.held]).max() <= SMALL and plan.clusters is None:
        part, parts = refit, "folds"
    else:
        part, parts = (repeat[refit], f"repeats, each {POOLING_NOTE}") if repeat.max() else (together, POOLING_NOTE)
    return HeldOutPredictions(unit, part, target, predictions.values[order], predictions.off[order], weight, parts)


def metric_value(name: str, held: HeldOutPredictions) -> Value:
    """Compute a metric of held-out predictions."""
    measure, n = METRICS[name], len(held.weight)
    of = lambda some, weight: measure.of_means(some.target, some.prediction, some.off, weight)
    if measure.per_record:
        found = of(held, held.weight[held.unit])
        values, error = (average_by_unit(held.unit, each, n) for each in found)
        there = np.bincount(held.unit, minlength=n) > 0
        mean = lambda each: float(np.average(each[there], weights=held.weight[there]))
        how = "mean over units" + (", each its mean over refits" if len(held.unit) > there.sum() else "")
        return Value(mean(values), values, mean(error), how)
    # The mean over all parts that hold every class; if none does, the measure of all together. A unit contributes its part of
    # each, and a share of the part's difference from the mean, as contributions within a part of few rows of a class vary too
    # little.
    weight, sizes = held.weight[held.unit], np.bincount(held.part)
    whole = _whole(held.part, held.target, weight, len(sizes))
    rows = np.split(np.argsort(held.part, kind="stable"), np.cumsum(sizes)[:-1])
    kept, lost = [own for own, one in zip(rows, whole, strict=True) if one], int(np.sum(~whole & (sizes > 0)))
    if len(sizes) == 1 or not kept:
        heavy = weight / np.bincount(held.unit, minlength=n)[held.unit]
        values, off = of(held, heavy)
        return Value(float(np.average(values, weights=heavy)), average_by_unit(held.unit, values, n), off, POOLING_NOTE)
    each = [of(held.some(own), weight[own]) for own in kept]
    areas = np.array([np.average(one, weights=weight[own]) for (one, _), own in zip(each, kept, strict=True)])
    value, pull, seen = float(areas.mean()), np.zeros(n), np.zeros(n, bool)
    for (one, _), own, part in zip(each, kept, areas, strict=True):
        kinds = np.unique(held.target[own], return_inverse=True)[1]
        share = np.bincount(kinds, weight[own]) / weight[own].sum()
        apart = (part - value) / (np.sqrt(len(share)) * np.maximum(share, 1e-300)[kinds])
        pull[held.unit[own]] += (one - part + apart) / weight[own].sum() / len(kept)
        seen[held.unit[own]] = True
    values = np.where(seen, value + held.weight[seen].sum() * pull, np.nan)
    how = f"mean over {len(kept)} {held.parts}" + (f" ({lost} more lack a class)" if lost else "")
    return Value(value, values, float(np.mean([off for _, off in each])), how)


def _whole(part: NDArray[np.int64], target: NDArray, weight: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Mark the parts that hold every class."""
    there = weight > 0
    classes = np.unique(target[there])
    each = [np.bincount(part[there & (target == one)], minlength=count) > 0 for one in classes]
    return np.all(each, axis=0) & (len(classes) > 1)


def repeats(plan: Plan) -> NDArray[np.int64] | None:
    """Number the repeat of every refit, if successive refits score every unit once; else return None."""
    unit, ends = plan.index[plan.held], np.cumsum(np.bincount(plan.refit[plan.held], minlength=plan.num_refits))
    times = np.bincount(unit, minlength=plan.num_units)
    if times.max() == 1:
        return np.zeros(plan.num_refits, np.int64)
    found, done, filled, total = np.zeros(plan.num_refits, np.int64), np.zeros(plan.num_units, np.int64), 0, np.sum(times > 0)
    for k, own in enumerate(np.split(unit, ends[:-1])):
        found[k] = filled // total
        if np.any(done[own] != found[k]):
            return None
        done[own] += 1
        filled += len(own)
    return found if filled % total == 0 else None
