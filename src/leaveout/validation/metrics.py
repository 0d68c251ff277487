"""Measures of held-out predictions: `cross_validate(..., metric=)`.

    mse, mae, brier, accuracy    the mean over units of each one's mean over the refits that score it
    auc                          not a mean over units: of predictions together, or the mean over parts of them. Parts are
                                 repeats of k-fold, single refits where these hold every class, or all

A metric of predictions that are averaged over refits would be that of an ensemble, which nobody fitted. Each metric has a
standard error over independent units, from the influence of each unit, and a bound of the effect of the refits' errors, from
the error of each prediction.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..objectives.objective import display_name
from ..optimize.fit import Fit
from ..plans.plan import Plan
from .held_out_predictions import Predictions
from .standard_errors import standard_error

Metric = Literal["auc", "accuracy", "brier", "mse", "mae"]
HIGHER = ("auc", "accuracy")  # metrics of which more is better
OF_CLASSES = ("auc", "accuracy")
SMALL = 20  # rows of a fold up to which areas are computed fold by fold, if each fold has every class
POOLING_NOTE = "pooled over held-out predictions"


class MetricValues(NamedTuple):
    """The contributions of the units to a metric, whose mean is the metric, and bounds on their errors or on the metric's."""

    values: NDArray[np.float64]
    error: NDArray[np.float64] | float


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

    def some(self, units: NDArray[np.bool_]) -> "HeldOutPredictions":
        """Select some units."""
        mine = units[self.unit]
        unit, part, target = self.unit[mine], self.part[mine], self.target[mine]
        return HeldOutPredictions(unit, part, target, self.prediction[mine], self.off[mine], self.weight, self.parts)


class Value(NamedTuple):
    """Metric with the contributions of units `[units]`, whose mean it is, its error, and a description."""

    value: float
    values: NDArray[np.float64]
    error: float
    how: str


ByName = dict[str, float]


def measures(fit: Fit, metric: Any) -> tuple[Metric, ...]:
    """Return the named metrics as a tuple; ValueError for an unknown name, or a metric that the model does not have."""
    several = isinstance(metric, Iterable) and not isinstance(metric, str)
    metrics = () if metric is None else tuple(metric) if several else (metric,)
    unknown = [name for name in metrics if name not in [*MEASURES]]
    if unknown:
        raise ValueError(f"cross_validate: metric must be among {', '.join(MEASURES)}; got {', '.join(map(str, unknown))}.")
    if metrics and fit.objective.units.target is None:
        raise ValueError(
            f"cross_validate: metric needs a model with predictions and a target; got {display_name(fit.objective)}."
        )
    for name in metrics:
        measurable("cross_validate", fit, name)
    return metrics


def measure(metrics: Sequence[str], fit: Fit, predictions: Predictions) -> tuple[ByName, ByName, ByName, dict[str, str]]:
    """Compute metrics of predictions, by name: values, standard errors, approximation errors and descriptions."""
    held, plan = in_order(fit, predictions), predictions.plan
    small = np.diff(plan.indptr).max() < 0.05 * plan.num_units or _largest(plan) <= SMALL
    if "auc" in metrics and held.parts.endswith(POOLING_NOTE) and small:
        warnings.warn(
            "cross_validate: an AUC pooled over small folds is biased downwards: predictions of different refits are ranked "
            "against each other, and each refit leans away from the class it left out (a model of an intercept alone gets 0, "
            "not 0.5). Compare losses, or use large folds, or folds that each hold every class.",
            stacklevel=5,  # skips the frames of the precision's context
        )
    found = {name: metric_value(name, held) for name in metrics}
    return (
        {name: each.value for name, each in found.items()},
        {name: standard_error(each.values, held.weight, plan).value for name, each in found.items()},
        {name: each.error for name, each in found.items()},
        {name: each.how for name, each in found.items()},
    )


def in_order(fit: Fit, predictions: Predictions) -> HeldOutPredictions:
    """Collect the existing predictions in the order of units."""
    units, seen = fit.objective.units, np.flatnonzero(predictions.existing)
    order = seen[np.argsort(predictions.unit[seen], kind="stable")]
    unit, plan = predictions.unit[order], predictions.plan
    target, weight = np.asarray(units.target), np.ones(plan.num_units)
    weight = weight if units.weight is None else np.asarray(units.weight, np.float64)
    part, parts = _parts(plan, predictions.refit[order], target[unit], weight[unit])
    return HeldOutPredictions(unit, part, target[unit], predictions.values[order], predictions.off[order], weight, parts)


def metric_value(name: str, held: HeldOutPredictions) -> Value:
    """Compute a metric of held-out predictions."""
    if name == "auc":
        return _by_parts(held)
    found, n = MEASURES[name](held.target, held.prediction, held.off, held.weight[held.unit]), len(held.weight)
    values, error = (_average_by_unit(held.unit, each, n) for each in (found.values, found.error))
    there = np.bincount(held.unit, minlength=n) > 0
    mean = lambda each: float(np.average(each[there], weights=held.weight[there]))
    how = "mean over units" + (", each its mean over refits" if len(held.unit) > there.sum() else "")
    return Value(mean(values), values, mean(error), how)


def _average_by_unit(unit: NDArray[np.int64], each: NDArray | float, n: int) -> NDArray[np.float64]:
    """Average values by unit; NaN for a unit without any."""
    times, total = np.bincount(unit, minlength=n), np.bincount(unit, np.broadcast_to(each, unit.shape), n)
    return np.where(times > 0, total / np.maximum(times, 1), np.nan)


def _largest(plan: Plan) -> int:
    """Return the largest number of units that a refit scores."""
    return int(np.bincount(plan.refit[plan.held]).max())


def _parts(plan: Plan, refit: NDArray[np.int64], target: NDArray, weight: NDArray[np.float64]) -> tuple[NDArray[np.int64], str]:
    """Return the part in which each prediction is ranked, and a description of the parts; areas are means over parts."""
    repeat = repeats(plan)
    whole = _whole(refit, target, weight, plan.num_refits)[np.unique(refit)]
    if repeat is None:
        return (refit, "refits") if whole.any() else (np.zeros_like(refit), POOLING_NOTE)
    if whole.all() and _largest(plan) <= SMALL and plan.clusters is None:
        return refit, "folds"
    return (repeat[refit], f"repeats, each {POOLING_NOTE}") if repeat.max() else (np.zeros_like(refit), POOLING_NOTE)


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


def measurable(caller: str, fit: Fit, metric: str) -> None:
    """Raise ValueError for a metric of classes if the response has none."""
    units = fit.objective.units
    values = np.unique(np.asarray(units.target, np.float64)) if metric in OF_CLASSES and not units.classes else np.zeros(0)
    if np.isfinite(values).sum() > 2:
        raise ValueError(f"{caller}: metric={metric!r} needs a response of classes; this one is a number: 'mse' or 'mae'.")


def _squares(target: NDArray, predictions: NDArray, off: NDArray, weight: NDArray) -> MetricValues:
    del weight
    wanted = np.eye(predictions.shape[1])[target.astype(int)] if predictions.ndim > 1 else target
    r, outputs = np.abs(wanted - predictions), tuple(range(1, predictions.ndim))
    return MetricValues((r**2).sum(outputs), (2 * r * off + off**2).sum(outputs))


def _absolute(target: NDArray, predictions: NDArray, off: NDArray, weight: NDArray) -> MetricValues:
    del weight
    return MetricValues(np.abs(target - predictions), off)


def _accuracy(target: NDArray, predicted: NDArray, off: NDArray, weight: NDArray) -> MetricValues:
    del weight
    if predicted.ndim == 1:
        predicted, off = np.c_[1 - predicted, predicted], np.c_[off, off]
    first = predicted.argmax(1)
    chosen = first[:, None] == np.arange(predicted.shape[1])
    best, others = np.where(chosen, predicted - off, -np.inf).max(1), np.where(chosen, -np.inf, predicted + off).max(1)
    return MetricValues((first == target).astype(float), (others >= best).astype(float))


def _auc(target: NDArray, predictions: NDArray, off: NDArray, weight: NDArray) -> MetricValues:
    """Compute the area under the ROC curve; for several classes, the mean of each against the rest.

    A unit contributes the share of the other class that it is ranked above (DeLong, DeLong and Clarke-Pearson, Biometrics 44,
    1988), scaled so that the mean of all contributions is the area.
    """
    if predictions.ndim == 1:
        return _area(target == np.max(target), predictions, off, weight)
    parts = [
        _area(target == k, predictions[:, k], off[:, k], weight) for k in range(predictions.shape[1]) if (target == k).any()
    ]
    return MetricValues(np.mean([p.values for p in parts], axis=0), float(np.mean([p.error for p in parts])))


def _by_parts(held: HeldOutPredictions) -> Value:
    """Average the areas of all parts that hold every class; if none does, compute the area of all together.

    A unit contributes its part of each area, and a share of the part's difference from the mean, as the contributions within a
    part of few rows of a class vary too little.
    """
    n, weight, sizes = len(held.weight), held.weight[held.unit], np.bincount(held.part)
    whole = _whole(held.part, held.target, weight, len(sizes))
    rows = np.split(np.argsort(held.part, kind="stable"), np.cumsum(sizes)[:-1])
    kept, lost = [own for own, one in zip(rows, whole, strict=True) if one], int(np.sum(~whole & (sizes > 0)))
    if len(sizes) == 1 or not kept:
        heavy = weight / np.bincount(held.unit, minlength=n)[held.unit]
        found = _auc(held.target, held.prediction, held.off, heavy)
        mean = lambda each: float(np.average(np.broadcast_to(each, heavy.shape), weights=heavy))
        return Value(mean(found.values), _average_by_unit(held.unit, found.values, n), mean(found.error), POOLING_NOTE)
    each = [_auc(held.target[own], held.prediction[own], held.off[own], weight[own]) for own in kept]
    areas = np.array([np.average(one.values, weights=weight[own]) for one, own in zip(each, kept, strict=True)])
    value, pull, seen = float(areas.mean()), np.zeros(n), np.zeros(n, bool)
    for one, own, part in zip(each, kept, areas, strict=True):
        kinds = np.unique(held.target[own], return_inverse=True)[1]
        share = np.bincount(kinds, weight[own]) / weight[own].sum()
        apart = (part - value) / (np.sqrt(len(share)) * np.maximum(share, 1e-300)[kinds])
        pull[held.unit[own]] += (one.values - part + apart) / weight[own].sum() / len(kept)
        seen[held.unit[own]] = True
    values = np.where(seen, value + held.weight[seen].sum() * pull, np.nan)
    how = f"mean over {len(kept)} {held.parts}" + (f" ({lost} more lack a class)" if lost else "")
    return Value(value, values, float(np.mean([one.error for one in each])), how)


def _area(positive: NDArray, predictions: NDArray, off: NDArray, weight: NDArray) -> MetricValues:
    values = area(positive, predictions, weight)
    value = float(np.average(values, weights=weight))
    away = np.where(positive, off, -off)
    moved = [_below(predictions + towards * away, weight * ~positive)[positive] for towards in (1, -1)]
    return MetricValues(values, max(abs(float(np.average(one, weights=weight[positive])) - value) for one in moved))


def area(positive: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> NDArray[np.float64]:
    """Return the contribution of each unit to the area under the ROC curve of two classes."""
    beaten = np.where(positive, _below(predictions, weight * ~positive), 1 - _below(predictions, weight * positive))
    value = float(np.average(beaten[positive], weights=weight[positive]))
    share = np.where(positive, weight[positive].sum(), weight[~positive].sum()) / weight.sum()
    return value + (beaten - value) / share


def _below(predictions: NDArray, mass: NDArray) -> NDArray[np.float64]:
    """Return the share of the weight `mass` whose predictions lie below each prediction; ties count one half."""
    order, total = np.argsort(predictions, kind="stable"), max(mass.sum(), 1e-300)
    summed = np.r_[0.0, np.cumsum(mass[order])]
    ranked = predictions[order]
    low, high = (np.searchsorted(ranked, predictions, side) for side in ("left", "right"))
    return 0.5 * (summed[low] + summed[high]) / total


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], MetricValues]] = {
    "auc": _auc,
    "accuracy": _accuracy,
    "brier": _squares,
    "mse": _squares,
    "mae": _absolute,
}
