"""Fitted scikit-learn estimators as they are: the host's own objective, at the host's own θ̂.

"Exact" then means the host's own refit. Some hosts average their loss (PoissonRegressor, GammaRegressor), so their
penalty shrinks as rows leave; balanced class weights are recomputed in every fold.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from .._fit import Fit, anchor
from .._read import matched
from ..models.linear import GLM, Regression
from ..models.losses import HuberScale, Tweedie
from ..models.penalties import AbstractPenalty, Ridge, per_weight

SUPPORTED = (
    "LinearRegression",
    "Ridge",
    "LogisticRegression",
    "PoissonRegressor",
    "GammaRegressor",
    "TweedieRegressor",
    "HuberRegressor",
    "RidgeCV",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "LogisticRegressionCV",
    "Pipeline ending in one of them",
)


def from_sklearn(estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Fit:
    """The `Fit` of a fitted estimator, on the data it was fitted on.

    Takes LinearRegression, Ridge, LogisticRegression (binary and multinomial; l2 or no penalty; class_weight
    fixed or balanced), PoissonRegressor, GammaRegressor, TweedieRegressor, HuberRegressor (its scale is a parameter),
    RidgeClassifier (two classes; its squared loss of ±1), the CV versions of these at the penalty they chose (the choice
    is not left out), and a Pipeline ending in one of them, whose transformers stay as fitted. `sample_weight` is what was
    given to `fit`.

    Raises TypeError on other estimators, `NotFittedError` on one that is not fitted, ValueError where its
    coefficients are not stationary on these data.
    """
    from sklearn import pipeline
    from sklearn.utils.validation import check_is_fitted

    remark = ""
    labels, X, y, sample_weight = matched("from_sklearn", X=X, y=y, sample_weight=sample_weight)
    X = _columns(estimator, X)
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
    if labels.index is not None and isinstance(X, np.ndarray) and X.ndim == 2:  # transformed; its rows are still those
        X = pd.DataFrame(X, index=labels.index, columns=[f"x{j}" for j in range(X.shape[1])])
    y = np.asarray(y)  # in the order of X by now
    if name.startswith("LogisticRegression"):
        objective, theta = _logistic(estimator, X, y, sample_weight, remark)
    elif name.startswith("RidgeClassifier"):
        objective, theta = _classifier(estimator, X, y, sample_weight, remark)
    elif name == "HuberRegressor":
        objective, theta = _huber(estimator, X, y, sample_weight, remark)
    else:
        objective, theta = _regression(name, estimator, X, y, sample_weight, remark)
    return anchor(objective, theta)


def _columns(estimator: Any, X: Any) -> Any:
    """The columns of a DataFrame in the order in which the estimator was fitted on them."""
    known = getattr(estimator, "feature_names_in_", None)
    if known is None or not isinstance(X, pd.DataFrame) or not X.columns.is_unique or list(X.columns) == list(known):
        return X
    if set(X.columns) != set(known):
        odd = sorted(map(str, set(X.columns) ^ set(known)))
        raise ValueError(f"from_sklearn: X does not have the columns that the estimator was fitted on: {', '.join(odd[:5])}.")
    return X[list(known)]


def _and(remark: str, more: str) -> str:
    return "; ".join(filter(None, (remark, more)))


def _chosen(name: str, value: float) -> str:
    return f"{name} = {value:.4g} was chosen on all rows: the choice is not left out"


def _parameters(objective: GLM | Regression, coef: ArrayLike, intercept: ArrayLike) -> dict[str, np.ndarray]:
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
    if name == "RidgeCV":
        alpha, remark = np.asarray(estimator.alpha_, np.float64), _and(remark, _chosen("alpha", float(estimator.alpha_)))
    else:
        alpha = np.asarray(getattr(estimator, "alpha", 0.0), np.float64)
    penalty: AbstractPenalty | None = Ridge(alpha) if np.any(alpha > 0) else None
    averaged: dict[str, Any] = {"PoissonRegressor": lambda: "poisson", "GammaRegressor": lambda: "gamma"}
    averaged["TweedieRegressor"] = lambda: _tweedie(estimator)
    loss = averaged[name]() if name in averaged else "squared"
    if name in averaged and penalty is not None:
        penalty = per_weight(penalty)  # the host averages its loss
    objective = GLM(
        X, np.ravel(np.asarray(y)), loss, penalty, sample_weight=weight, intercept=estimator.fit_intercept, remark=remark
    )
    return objective, _parameters(objective, np.ravel(estimator.coef_), np.ravel(estimator.intercept_)[0])


def _tweedie(estimator: Any) -> Tweedie:
    link = estimator.link if estimator.link != "auto" else "identity" if estimator.power <= 0 else "log"
    return Tweedie(float(estimator.power), 1.0, link)


def _huber(estimator: Any, X: ArrayLike, y: ArrayLike, weight: ArrayLike | None, remark: str):
    objective = Regression(
        X,
        np.ravel(np.asarray(y)),
        HuberScale(estimator.epsilon),
        Ridge(2.0 * estimator.alpha) if estimator.alpha > 0 else None,
        sample_weight=weight,
        intercept=estimator.fit_intercept,
        remark=remark,
    )
    found = _parameters(objective, estimator.coef_, estimator.intercept_) | {"scale": np.asarray(estimator.scale_, np.float64)}
    return objective, found if estimator.fit_intercept else {"coef": found["coef"], "scale": found["scale"]}


def _classifier(estimator: Any, X: ArrayLike, y: ArrayLike, weight: ArrayLike | None, remark: str):
    if len(estimator.classes_) != 2:
        raise TypeError(f"from_sklearn: RidgeClassifier is supported for two classes; it has {len(estimator.classes_)}.")
    labels = _known(estimator, y)
    balanced = estimator.class_weight == "balanced"
    if balanced and weight is not None:
        raise TypeError("from_sklearn: RidgeClassifier(class_weight='balanced') with a sample_weight is not supported.")
    if estimator.class_weight is not None and not balanced:
        weight = _class_weights(estimator, labels, weight)
    if hasattr(estimator, "alpha_"):
        alpha, remark = float(estimator.alpha_), _and(remark, _chosen("alpha", float(estimator.alpha_)))
    else:
        alpha = float(estimator.alpha)
    objective = GLM(
        X,
        np.where(labels == estimator.classes_[1], 1.0, -1.0),
        "squared",
        Ridge(alpha) if alpha > 0 else None,
        sample_weight=weight,
        intercept=estimator.fit_intercept,
        class_weight="balanced" if balanced else None,
        remark=remark,
    )
    return objective, _parameters(objective, np.ravel(estimator.coef_), np.ravel(estimator.intercept_)[0])


def _known(estimator: Any, y: ArrayLike) -> np.ndarray:
    """The labels, all of which the estimator must have seen."""
    labels = np.asarray(y)
    unknown = ~np.isin(labels, estimator.classes_)
    if unknown.any():
        raise ValueError(f"from_sklearn: y holds {labels[unknown][0]!r}, which the estimator never saw: {estimator.classes_}.")
    return labels


def _class_weights(estimator: Any, labels: np.ndarray, weight: ArrayLike | None) -> np.ndarray:
    each = np.vectorize(lambda label: estimator.class_weight.get(label, 1.0), otypes=[float])(labels.astype(object))
    return each if weight is None else each * np.asarray(weight, float)


def _logistic(estimator: Any, X: ArrayLike, y: ArrayLike, weight: ArrayLike | None, remark: str):
    l1 = np.max(getattr(estimator, "l1_ratio_", None) or 0) if hasattr(estimator, "C_") else getattr(estimator, "l1_ratio", 0)
    style = getattr(estimator, "penalty", "deprecated")
    if style not in ("deprecated", "l2", None, "none") or (style == "deprecated" and l1 not in (0, None)):
        raise TypeError(
            "from_sklearn: LogisticRegression with an l1 or elastic-net penalty is not smooth, and is not supported; use l2."
        )
    if estimator.solver == "liblinear" and (estimator.fit_intercept or len(estimator.classes_) > 2):
        raise TypeError("from_sklearn: liblinear penalises the intercept and fits one class against the rest; use lbfgs.")
    C, remark = _strength(estimator, remark)
    penalty = None if style in (None, "none") or np.isinf(C) else Ridge(1.0 / C)
    labels = _known(estimator, y)
    balanced = estimator.class_weight == "balanced"
    if estimator.class_weight is not None and not balanced:
        weight = _class_weights(estimator, labels, weight)
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


def _strength(estimator: Any, remark: str) -> tuple[float, str]:
    """C, and what is to be said of it where it was chosen."""
    if not hasattr(estimator, "C_"):
        return float(estimator.C), remark
    each = np.unique(np.asarray(estimator.C_, np.float64))
    if len(each) > 1 or not estimator.refit:
        raise TypeError("from_sklearn: LogisticRegressionCV is supported with one C for all classes, and refit=True.")
    return float(each[0]), _and(remark, _chosen("C", float(each[0])))
