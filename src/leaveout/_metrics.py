"""Measures of held-out predictions that are pooled over refits: `cross_validate(..., metric=)`.

Each with the standard error of what is independent, by its influence on every unit, and with the most that the refits' own
errors may do to it, by how far each prediction may be off.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._errors import standard_error
from ._fit import Fit
from ._plan import Plan

Metric = Literal["auc", "accuracy", "brier", "mse", "mae"]
HIGHER = ("auc", "accuracy")  # of which more is better
OF_CLASSES = ("auc", "accuracy")


class Measured(NamedTuple):
    """What every unit adds to a measure, whose mean it is, and the most that each may be off; or the error of the whole."""

    values: NDArray[np.float64]
    error: NDArray[np.float64] | float


ByName = dict[str, float]


def measure(metrics: Sequence[str], fit: Fit, plan: Plan, predicted: NDArray, off: NDArray) -> tuple[ByName, ByName, ByName]:
    """Metrics, their standard errors and errors by name, of predictions that may be off by so much each."""
    units = fit.objective.units
    target, seen = np.asarray(units.target), np.isfinite(predicted).reshape(len(predicted), -1).all(-1)
    weight = np.ones(len(seen)) if units.weight is None else np.asarray(units.weight, np.float64)
    unknown = set(metrics) - set(MEASURES)
    if unknown:
        raise ValueError(f"cross_validate: metric must be among {', '.join(MEASURES)}; got {', '.join(sorted(unknown))}.")
    for name in metrics:
        measurable("cross_validate", fit, name)
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
    """ValueError where a measure of classes is asked of a response that has none."""
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
    """Of several classes the mean of each against the rest. What a unit adds: the share of the other class that it beats
    (DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988), so scaled that the mean of all is the area."""
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
    """Of two classes: what each unit adds."""
    beaten = np.where(positive, _below(predicted, weight * ~positive), 1 - _below(predicted, weight * positive))
    value = float(np.average(beaten[positive], weights=weight[positive]))
    share = np.where(positive, weight[positive].sum(), weight[~positive].sum()) / weight.sum()
    return value + (beaten - value) / share


def _below(predicted: NDArray, mass: NDArray) -> NDArray[np.float64]:
    """The share of some mass that lies below each prediction, half of what lies level with it."""
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
