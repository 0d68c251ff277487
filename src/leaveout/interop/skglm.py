"""Fitted sparse regressions of skglm as they are. It averages its losses, so its penalties shrink as rows leave."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from .._fit import Fit
from .._read import matched
from ..models.linear import GLM
from ..models.penalties import AbstractPenalty, Box, ElasticNet, GroupLasso, Lasso, per_weight
from ._arrived import arrived, is_repeated


def from_skglm(estimator: Any, X: ArrayLike, y: ArrayLike) -> Fit:
    """The `Fit` of a fitted `Lasso`, `WeightedLasso`, `ElasticNet` or `SparseLogisticRegression` (two classes), with
    `positive=True` where they have it, or of a `GroupLasso` without, on the data it was fitted on.

    skglm's solver stops at its own tolerance; θ̂ is where it would have led, with a warning where that is further.

    Raises TypeError on other estimators and more than two classes, ValueError on one that is not fitted, or on other data.
    """
    name = type(estimator).__name__
    reader = {
        "Lasso": lambda: Lasso(estimator.alpha),
        "WeightedLasso": lambda: Lasso(_each(estimator)),
        "ElasticNet": lambda: ElasticNet(estimator.alpha, estimator.l1_ratio),
        "SparseLogisticRegression": lambda: ElasticNet(estimator.alpha, estimator.l1_ratio),
        "GroupLasso": lambda: _grouped(estimator, np.shape(X)[1]),
    }.get(name)
    if reader is None or not type(estimator).__module__.startswith("skglm"):
        raise TypeError(
            f"from_skglm: {type(estimator).__module__.partition('.')[0]}'s {name} is not supported. Supported are Lasso, "
            "WeightedLasso, ElasticNet, GroupLasso and SparseLogisticRegression of skglm."
        )
    if not hasattr(estimator, "coef_"):
        raise ValueError(f"from_skglm: this {name} is not fitted.")
    _, X, y = matched("from_skglm", X=X, y=y)
    penalty: AbstractPenalty = reader() + Box() if getattr(estimator, "positive", False) else reader()
    target, loss = _target(estimator, np.ravel(np.asarray(y)))
    objective = GLM(X, target, loss, per_weight(penalty), intercept=estimator.fit_intercept)
    coef = np.ravel(estimator.coef_).astype(np.float64)
    if len(coef) != objective.num_features:
        raise ValueError(
            f"from_skglm: the estimator has {len(coef)} coefficients, but X has {objective.num_features} columns: it was "
            "fitted on other data."
        )
    intercept = {"intercept": float(np.ravel(estimator.intercept_)[0])} if estimator.fit_intercept else {}
    again = lambda: clone(estimator).fit(X, y).coef_
    return arrived("from_skglm", objective, {"coef": coef} | intercept, lambda: is_repeated(again, coef))


def _each(estimator: Any) -> float | np.ndarray:
    """α of every coefficient."""
    return estimator.alpha if estimator.weights is None else estimator.alpha * np.asarray(estimator.weights, np.float64)


def _grouped(estimator: Any, features: int) -> GroupLasso:
    """Its groups are a size of all, sizes side by side, or lists of columns; its weights are one by default."""
    groups = estimator.groups
    if estimator.positive:
        raise TypeError("from_skglm: GroupLasso(positive=True) is not supported: beside groups there are no bounds.")
    if isinstance(groups, int | np.integer):
        label = np.arange(features) // groups
    elif isinstance(groups[0], int | np.integer):
        label = np.repeat(np.arange(len(groups)), groups)
    else:
        label = np.full(features, len(groups))
        for number, columns in enumerate(groups):
            label[columns] = number
    weights = np.ones(len(np.unique(label))) if estimator.weights is None else estimator.weights
    return GroupLasso(estimator.alpha, label, weights)


def _target(estimator: Any, y: np.ndarray) -> tuple[np.ndarray, str]:
    """y as the loss takes it, and the loss."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return y, "squared"
    if len(classes) != 2:
        raise TypeError(f"from_skglm: two classes are supported; this {type(estimator).__name__} has {len(classes)}.")
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(f"from_skglm: y holds {y[unknown][0]!r}, which the estimator never saw: {classes}.")
    return (y == classes[1]).astype(float), "logistic"
