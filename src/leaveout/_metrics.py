"""Measures of held-out predictions that are pooled over refits, by scikit-learn: `cross_validate(..., metric=)`."""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ._fit import Fit
from ._plan import Plan

Metric = Literal["auc", "accuracy", "brier", "mse", "mae"]


def measure(metrics: Sequence[str], fit: Fit, plan: Plan, predicted: NDArray) -> dict[str, float]:
    """Measures of the pooled held-out predictions, by scikit-learn."""
    from sklearn import metrics as measures

    target = np.asarray(fit.objective.units.target)
    seen = np.isfinite(predicted).reshape(len(predicted), -1).all(-1)
    target, predicted = target[seen], predicted[seen]
    weight = None if fit.objective.units.weight is None else np.asarray(fit.objective.units.weight)[seen]
    known: dict[str, Callable[[], float]] = {
        "auc": lambda: measures.roc_auc_score(target, predicted, sample_weight=weight, multi_class="ovr"),
        "accuracy": lambda: measures.accuracy_score(
            target, predicted.argmax(1) if predicted.ndim > 1 else predicted > 0.5, sample_weight=weight
        ),
        "brier": lambda: float(
            np.average(
                np.sum((np.eye(predicted.shape[1])[target.astype(int)] - predicted) ** 2, 1)
                if predicted.ndim > 1
                else (target - predicted) ** 2,
                weights=weight,
            )
        ),
        "mse": lambda: measures.mean_squared_error(target, predicted, sample_weight=weight),
        "mae": lambda: measures.mean_absolute_error(target, predicted, sample_weight=weight),
    }
    unknown = set(metrics) - set(known)
    if unknown:
        raise ValueError(f"cross_validate: metric must be among {', '.join(known)}; got {', '.join(sorted(unknown))}.")
    if "auc" in metrics and np.diff(plan.indptr).max() < 0.05 * plan.num_units:
        warnings.warn(
            "cross_validate: an AUC pooled over small folds is biased downwards: predictions of different refits are ranked "
            "against each other, and each refit leans away from the class it left out (a model of an intercept alone gets 0, "
            "not 0.5). Compare losses, or use a few large folds.",
            stacklevel=4,
        )
    return {name: float(known[name]()) for name in metrics}
