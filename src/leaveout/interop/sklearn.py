"""Fitted scikit-learn estimators as they are: the host's own objective, at the host's own θ̂.

"Exact" then means the host's own refit. Some hosts average their loss (PoissonRegressor, GammaRegressor), so their
penalty shrinks as rows leave; balanced class weights are recomputed in every fold.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._fit import Fit, anchor
from ..models.glm import GLM
from ..models.penalties import AbstractPenalty, Ridge, per_weight

SUPPORTED = (
    "LinearRegression",
    "Ridge",
    "LogisticRegression",
    "PoissonRegressor",
    "GammaRegressor",
    "Pipeline ending in one of them",
)


def from_sklearn(estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Fit:
    """The `Fit` of a fitted estimator, on the data it was fitted on.

    Takes LinearRegression, Ridge, LogisticRegression (binary and multinomial; l2 or no penalty; class_weight
    fixed or balanced), PoissonRegressor, GammaRegressor, and a Pipeline ending in one of them, whose
    transformers stay as fitted. `sample_weight` is what was given to `fit`.

    Raises TypeError on other estimators, `NotFittedError` on one that is not fitted, ValueError where its
    coefficients are not stationary on these data.
    """
    from sklearn import pipeline
    from sklearn.utils.validation import check_is_fitted

    remark = ""
    if isinstance(estimator, pipeline.Pipeline):
        check_is_fitted(estimator)
        remark = "the pipeline's transformers stay as fitted on all rows: what they learned is not left out"
        X = estimator[:-1].transform(X) if len(estimator.steps) > 1 else X
        estimator = estimator.steps[-1][1]
        X = X.toarray() if hasattr(X, "toarray") else X
    name = type(estimator).__name__
    if name not in SUPPORTED or not type(estimator).__module__.startswith("sklearn."):
        raise TypeError(f"from_sklearn: {name} is not supported. Supported are {', '.join(SUPPORTED)}.")
    check_is_fitted(estimator)
    if name == "LogisticRegression":
        objective, theta = _logistic(estimator, X, y, sample_weight, remark)
    else:
        objective, theta = _regression(name, estimator, X, y, sample_weight, remark)
    return anchor(objective, theta)


def _parameters(objective: GLM, coef: ArrayLike, intercept: ArrayLike) -> dict[str, np.ndarray]:
    coef = np.asarray(coef, np.float64)
    if coef.shape[-1] != objective.num_features:
        raise ValueError(
            f"from_sklearn: the estimator has {coef.shape[-1]} coefficients, but X has {objective.num_features} columns: "
            "it was fitted on other data."
        )
    return {"coef": coef, "intercept": np.asarray(intercept, np.float64)}


def _regression(name: str, estimator: Any, X: ArrayLike, y: ArrayLike, weight: ArrayLike | None, remark: str):
    if getattr(estimator, "positive", False):
        raise TypeError(f"from_sklearn: {name}(positive=True) has constraints, and is not supported.")
    if np.ndim(estimator.coef_) > 1 and np.shape(estimator.coef_)[0] > 1:
        raise TypeError(f"from_sklearn: {name} was fitted on several targets; fit one at a time.")
    alpha = np.asarray(getattr(estimator, "alpha", 0.0), np.float64)
    penalty: AbstractPenalty | None = Ridge(alpha) if np.any(alpha > 0) else None
    loss = {"PoissonRegressor": "poisson", "GammaRegressor": "gamma"}.get(name, "squared")
    if loss != "squared" and penalty is not None:
        penalty = per_weight(penalty)  # the host averages its loss
    objective = GLM(
        X, np.ravel(np.asarray(y)), loss, penalty, sample_weight=weight, intercept=estimator.fit_intercept, remark=remark
    )
    return objective, _parameters(objective, np.ravel(estimator.coef_), np.ravel(estimator.intercept_)[0])


def _logistic(estimator: Any, X: ArrayLike, y: ArrayLike, weight: ArrayLike | None, remark: str):
    l1 = getattr(estimator, "l1_ratio", 0)
    style = getattr(estimator, "penalty", "deprecated")
    if style not in ("deprecated", "l2", None, "none") or (style == "deprecated" and l1 not in (0, None)):
        raise TypeError(
            "from_sklearn: LogisticRegression with an l1 or elastic-net penalty is not smooth, and is not supported; use l2."
        )
    if estimator.solver == "liblinear" and (estimator.fit_intercept or len(estimator.classes_) > 2):
        raise TypeError("from_sklearn: liblinear penalises the intercept and fits one class against the rest; use lbfgs.")
    unpenalised = style in (None, "none") or np.isinf(estimator.C)
    penalty = None if unpenalised else Ridge(1.0 / estimator.C)
    labels = np.asarray(y)
    unknown = ~np.isin(labels, estimator.classes_)
    if unknown.any():
        raise ValueError(f"from_sklearn: y holds {labels[unknown][0]!r}, which the estimator never saw: {estimator.classes_}.")
    balanced = estimator.class_weight == "balanced"
    if estimator.class_weight is not None and not balanced:
        each = np.vectorize(lambda label: estimator.class_weight.get(label, 1.0), otypes=[float])(labels.astype(object))
        weight = each if weight is None else each * np.asarray(weight, float)
    binary = len(estimator.classes_) == 2
    objective = GLM(
        X,
        (labels == estimator.classes_[1]).astype(float) if binary else labels,
        "logistic" if binary else "multinomial",
        penalty,
        sample_weight=weight,
        intercept=estimator.fit_intercept,
        class_weight="balanced" if balanced else None,
        remark=remark,
    )
    if binary and len(estimator.coef_) == 1:
        return objective, _parameters(objective, estimator.coef_[0], estimator.intercept_[0])
    return objective, _parameters(objective, estimator.coef_, estimator.intercept_)
