"""Metrics of held-out predictions, pooled over refits: `cross_validate(..., metric=)`.

Each metric has a standard error, by its influence function and the independent units. It also has a bound on the effect of the
refits' errors, by how far each prediction may be off.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._errors import standard_error
from ._fit import Fit
from ._objective import called
from ._plan import Plan

Metric = Literal["auc", "accuracy", "brier", "mse", "mae"]
HIGHER = ("auc", "accuracy")  # of which more is better
OF_CLASSES = ("auc", "accuracy")


class Measured(NamedTuple):
    """The contributions of the units to a metric, whose mean is the metric, and bounds on their errors or on the metric's."""

    values: NDArray[np.float64]
    error: NDArray[np.float64] | float


ByName = dict[str, float]


def measures(fit: Fit, metric: Any) -> tuple[Metric, ...]:
    """Return the named metrics as a tuple; ValueError for an unknown name, or a metric that the model does not have."""
    several = isinstance(metric, Iterable) and not isinstance(metric, str)
    metrics = () if metric is None else tuple(metric) if several else (metric,)
    unknown = [name for name in metrics if name not in [*MEASURES]]
    if unknown:
        raise ValueError(f"cross_validate: metric must be among {', '.join(MEASURES)}; got {', '.join(map(str, unknown))}.")
    if metrics and fit.objective.units.target is None:
        raise ValueError(f"cross_validate: metric needs a model with predictions and a target; got {called(fit.objective)}.")
    for name in metrics:
        measurable("cross_validate", fit, name)
    return metrics


def measure(metrics: Sequence[str], fit: Fit, plan: Plan, predicted: NDArray, off: NDArray) -> tuple[ByName, ByName, ByName]:
    """Compute metrics, their standard errors and their errors by name, given predictions and how far each may be off."""
    units = fit.objective.units
    target, seen = np.asarray(units.target), np.isfinite(predicted).reshape(len(predicted), -1).all(-1)
    weight = np.ones(len(seen)) if units.weight is None else np.asarray(units.weight, np.float64)
    if "auc" in metrics and np.diff(plan.indptr).max() < 0.05 * plan.num_units:
        warnings.warn(
            "cross_validate: an AUC pooled over small folds is biased downwards: predictions of different refits are ranked "
            "against each other, and each refit leans away from the class it left out (a model of an intercept alone gets 0, "
            "not 0.5). Compare losses, or use a few large folds.",
            stacklevel=5,  # past the context of double precision
        )
    value: ByName = {}
    se, error = dict(value), dict(value)
    for name in metrics:
        found = MEASURES[name](target[seen], predicted[seen], off[seen], weight[seen])
        values = np.full(len(seen), np.nan)
        values[seen] = found.values
        value[name] = float(np.average(found.values, weights=weight[seen]))
        se[name] = standard_error(values, weight, plan).value
        error[name] = float(np.average(np.broadcast_to(found.error, found.values.shape), weights=weight[seen]))
    return value, se, error


def measurable(caller: str, fit: Fit, metric: str) -> None:
    """Raise ValueError where a metric of classes is asked of a response that has none."""
    units = fit.objective.units
    values = np.unique(np.asarray(units.target, np.float64)) if metric in OF_CLASSES and not units.classes else np.zeros(0)
    if np.isfinite(values).sum() > 2:
        raise ValueError(f"{caller}: metric={metric!r} needs a response of classes; this one is a number: 'mse' or 'mae'.")


def _squares(target: NDArray, predicted: NDArray, off: NDArray, weight: NDArray) -> Measured:
    del weight
    wanted = np.eye(predicted.shape[1])[target.astype(int)] if predicted.ndim > 1 else target
    r, outputs = np.abs(wanted - predicted), tuple(range(1, predicted.ndim))
    return Measured((r**2).sum(outputs), (2 * r * off + off**2).sum(outputs))


def _absolute(target: NDArray, predicted: NDArray, off: NDArray, weight: NDArray) -> Measured:
    del weight
    return Measured(np.abs(target - predicted), off)


def _accuracy(target: NDArray, predicted: NDArray, off: NDArray, weight: NDArray) -> Measured:
    del weight
    if predicted.ndim == 1:
        predicted, off = np.c_[1 - predicted, predicted], np.c_[off, off]
    first = predicted.argmax(1)
    chosen = first[:, None] == np.arange(predicted.shape[1])
    best, others = np.where(chosen, predicted - off, -np.inf).max(1), np.where(chosen, -np.inf, predicted + off).max(1)
    return Measured((first == target).astype(float), (others >= best).astype(float))


def _auc(target: NDArray, predicted: NDArray, off: NDArray, weight: NDArray) -> Measured:
    """Compute the area under the ROC curve; for several classes, the mean of each against the rest.

    A unit contributes the share of the other class that it is ranked above (DeLong, DeLong and Clarke-Pearson, Biometrics 44,
    1988), scaled so that the mean of all contributions is the area.
    """
    if predicted.ndim == 1:
        return _area(target == np.max(target), predicted, off, weight)
    parts = [_area(target == k, predicted[:, k], off[:, k], weight) for k in range(predicted.shape[1]) if (target == k).any()]
    return Measured(np.mean([p.values for p in parts], axis=0), float(np.mean([p.error for p in parts])))


def _area(positive: NDArray, predicted: NDArray, off: NDArray, weight: NDArray) -> Measured:
    values = area(positive, predicted, weight)
    value = float(np.average(values, weights=weight))
    away = np.where(positive, off, -off)
    moved = [_below(predicted + towards * away, weight * ~positive)[positive] for towards in (1, -1)]
    return Measured(values, max(abs(float(np.average(one, weights=weight[positive])) - value) for one in moved))


def area(positive: NDArray, predicted: NDArray, weight: NDArray) -> NDArray[np.float64]:
    """Return the contribution of each unit to the area under the ROC curve of two classes."""
    beaten = np.where(positive, _below(predicted, weight * ~positive), 1 - _below(predicted, weight * positive))
    value = float(np.average(beaten[positive], weights=weight[positive]))
    share = np.where(positive, weight[positive].sum(), weight[~positive].sum()) / weight.sum()
    return value + (beaten - value) / share


def _below(predicted: NDArray, mass: NDArray) -> NDArray[np.float64]:
    """Return the share of the weight `mass` whose predictions lie below each prediction; ties count one half."""
    order, total = np.argsort(predicted, kind="stable"), max(mass.sum(), 1e-300)
    summed = np.r_[0.0, np.cumsum(mass[order])]
    ranked = predicted[order]
    low, high = (np.searchsorted(ranked, predicted, side) for side in ("left", "right"))
    return 0.5 * (summed[low] + summed[high]) / total


MEASURES: dict[str, Callable[[NDArray, NDArray, NDArray, NDArray], Measured]] = {
    "auc": _auc,
    "accuracy": _accuracy,
    "brier": _squares,
    "mse": _squares,
    "mae": _absolute,
}
