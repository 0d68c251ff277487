"""scikit-learn's linear estimators as they are: the host's own objective and, where it is fitted, its own θ̂.

"Exact" then means the host's own refit. Some hosts average their loss (PoissonRegressor, GammaRegressor), so their
penalty shrinks as rows leave; balanced class weights are recomputed in every fold.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn import linear_model, svm
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from .._fit import Fit, anchor
from .._read import matched
from ..models.linear import GLM, Regression
from ..models.losses import AbstractLoss, HuberScale, Tweedie
from ..models.penalties import AbstractPenalty, Ridge, per_weight


@runtime_checkable
class Host(Protocol):
    """An estimator of scikit-learn's kind, which can be cloned."""

    def fit(self, X: Any, y: Any) -> Any: ...

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    def set_params(self, **params: Any) -> Any: ...


@dataclass(frozen=True)
class Described:
    """What an estimator minimises, read off its options: `Σ_n w_n ℓ(x_nᵀβ + α, y_n) + ½ ridge ‖β‖²`."""

    loss: (
        str | AbstractLoss | HuberScale
    )  # of labels that are two: ±1 for "squared" and "squared_hinge", 0 and 1 for "logistic"
    ridge: float | np.ndarray
    intercept: bool
    labels: bool = False  # is the target one of classes?
    class_weight: dict | Literal["balanced"] | None = None
    averaged: bool = False  # is the sum divided by Σ w, so that the penalty shrinks as rows leave?
    whole: bool = False  # is the intercept penalised too?
    chosen: str = ""  # what was chosen on all rows


def described(estimator: Host) -> Described:
    """The objective of an estimator, fitted or not; of one that chooses its penalty when it is fitted, a fitted one.

    Raises TypeError where it is not of this kind, or not known.
    """
    name = type(estimator).__name__
    reader = READERS.get(type(estimator))
    if reader is None:
        raise TypeError(f"from_sklearn: {name} is not supported. Supported are {', '.join(SUPPORTED)}.")
    if name.endswith("CV"):
        check_is_fitted(estimator)
    return reader(estimator)


def _chosen(name: str, value: float) -> str:
    return f"{name} = {value:.4g} was chosen on all rows: the choice is not left out"


def _least_squares(estimator: Any) -> Described:
    if getattr(estimator, "positive", False):
        raise TypeError(f"from_sklearn: {type(estimator).__name__}(positive=True) has constraints, and is not supported.")
    labels, weight = hasattr(estimator, "class_weight"), getattr(estimator, "class_weight", None)
    if hasattr(estimator, "alphas"):
        alpha, chosen = np.asarray(estimator.alpha_, np.float64), _chosen("alpha", float(estimator.alpha_))
    else:
        alpha, chosen = np.asarray(getattr(estimator, "alpha", 0.0), np.float64), ""
    return Described("squared", alpha, estimator.fit_intercept, labels, weight, chosen=chosen)


def _averaging(loss: Callable[[Any], str | AbstractLoss]) -> Callable[[Any], Described]:
    return lambda estimator: Described(loss(estimator), float(estimator.alpha), estimator.fit_intercept, averaged=True)


def _tweedie(estimator: Any) -> Tweedie:
    link = estimator.link if estimator.link != "auto" else "identity" if estimator.power <= 0 else "log"
    return Tweedie(float(estimator.power), 1.0, link)


def _huber(estimator: Any) -> Described:
    return Described(HuberScale(estimator.epsilon), 2.0 * estimator.alpha, estimator.fit_intercept)


def _logistic(estimator: Any) -> Described:
    searched = hasattr(estimator, "Cs")
    l1 = np.max(getattr(estimator, "l1_ratio_", None) or 0) if searched else getattr(estimator, "l1_ratio", 0)
    style = getattr(estimator, "penalty", "deprecated")
    if style not in ("deprecated", "l2", None, "none") or (style == "deprecated" and l1 not in (0, None)):
        raise TypeError(
            "from_sklearn: LogisticRegression with an l1 or elastic-net penalty is not smooth, and is not supported; use l2."
        )
    if estimator.solver == "liblinear" and (estimator.fit_intercept or len(getattr(estimator, "classes_", ())) > 2):
        raise TypeError("from_sklearn: liblinear penalises the intercept and fits one class against the rest; use lbfgs.")
    each = np.unique(np.asarray(estimator.C_ if searched else estimator.C, np.float64))
    if searched and (len(each) > 1 or not estimator.refit):
        raise TypeError("from_sklearn: LogisticRegressionCV is supported with one C for all classes, and refit=True.")
    C, chosen = float(each[0]), _chosen("C", float(each[0])) if searched else ""
    ridge = 0.0 if style in (None, "none") else 1.0 / C
    return Described("logistic", ridge, estimator.fit_intercept, True, estimator.class_weight, chosen=chosen)


def _support_vectors(estimator: Any) -> Described:
    if estimator.penalty != "l2" or estimator.loss != "squared_hinge" or estimator.intercept_scaling != 1:
        raise TypeError("from_sklearn: LinearSVC is known with its squared hinge, an l2 penalty and intercept_scaling=1.")
    return Described("squared_hinge", 1.0 / estimator.C, estimator.fit_intercept, True, estimator.class_weight, whole=True)


READERS: dict[type, Callable[[Any], Described]] = {
    linear_model.LinearRegression: _least_squares,
    linear_model.Ridge: _least_squares,
    linear_model.LogisticRegression: _logistic,
    linear_model.PoissonRegressor: _averaging(lambda estimator: "poisson"),
    linear_model.GammaRegressor: _averaging(lambda estimator: "gamma"),
    linear_model.TweedieRegressor: _averaging(_tweedie),
    linear_model.HuberRegressor: _huber,
    linear_model.RidgeCV: _least_squares,
    linear_model.RidgeClassifier: _least_squares,
    linear_model.RidgeClassifierCV: _least_squares,
    linear_model.LogisticRegressionCV: _logistic,
    svm.LinearSVC: _support_vectors,
}
SUPPORTED = (*(kind.__name__ for kind in READERS if kind is not svm.LinearSVC), "Pipeline ending in one of them")


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
    remark = ""
    labels, X, y, sample_weight = matched("from_sklearn", X=X, y=y, sample_weight=sample_weight)
    X, fitted = _columns(estimator, X), estimator
    if isinstance(estimator, Pipeline):
        check_is_fitted(estimator)
        remark = "the pipeline's transformers stay as fitted on all rows: what they learned is not left out"
        X, estimator = _transformed(estimator, X), estimator.steps[-1][1]
    host = described(estimator)
    check_is_fitted(estimator)
    if labels.index is not None and isinstance(X, np.ndarray) and X.ndim == 2:  # transformed; its rows are still those
        X = pd.DataFrame(X, index=labels.index, columns=[f"x{j}" for j in range(X.shape[1])])
    remark = "; ".join(filter(None, (remark, host.chosen)))
    objective = _objective(host, estimator, X, np.asarray(y), sample_weight, remark)  # y in the order of X by now
    return anchor(objective.reading(functools.partial(_new, fitted)), _parameters(objective, host, estimator))


def _new(estimator: Any, X: Any) -> Any:
    """Rows to be predicted, as the regression at the end of an estimator takes them."""
    known = getattr(estimator, "feature_names_in_", None)
    if known is None or not isinstance(X, pd.DataFrame):
        return _transformed(estimator, X)
    missing = sorted(set(known) - set(X.columns))
    if missing and not isinstance(estimator, Pipeline):  # whose transformers know which columns they need
        raise ValueError(f"interval: X_new lacks columns that the estimator was fitted on: {', '.join(missing[:5])}.")
    return _transformed(estimator, X if missing else X[list(known)])


def _transformed(estimator: Any, X: Any) -> Any:
    """What the transformers of a pipeline make of rows."""
    X = estimator[:-1].transform(X) if isinstance(estimator, Pipeline) and len(estimator.steps) > 1 else X
    return X.toarray() if hasattr(X, "toarray") else X


def _columns(estimator: Any, X: Any) -> Any:
    """The columns of a DataFrame in the order in which the estimator was fitted on them."""
    known = getattr(estimator, "feature_names_in_", None)
    if known is None or not isinstance(X, pd.DataFrame) or not X.columns.is_unique or list(X.columns) == list(known):
        return X
    if set(X.columns) != set(known):
        odd = sorted(map(str, set(X.columns) ^ set(known)))
        raise ValueError(f"from_sklearn: X does not have the columns that the estimator was fitted on: {', '.join(odd[:5])}.")
    return X[list(known)]


def _objective(
    host: Described, estimator: Any, X: ArrayLike, y: np.ndarray, weight: ArrayLike | None, remark: str
) -> GLM | Regression:
    """The host's objective on these data."""
    name = type(estimator).__name__
    if not host.labels and np.ndim(estimator.coef_) > 1 and np.shape(estimator.coef_)[0] > 1:
        raise TypeError(f"from_sklearn: {name} was fitted on several targets; fit one at a time.")
    penalty: AbstractPenalty | None = Ridge(host.ridge) if np.any(np.asarray(host.ridge) > 0) else None
    if host.averaged and penalty is not None:
        penalty = per_weight(penalty)
    own: dict[str, Any] = {"sample_weight": weight, "intercept": host.intercept, "remark": remark}
    if isinstance(host.loss, HuberScale):
        return Regression(X, np.ravel(y), host.loss, penalty, **own)
    if not host.labels:
        return GLM(X, np.ravel(y), host.loss, penalty, **own)
    classes = estimator.classes_
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(f"from_sklearn: y holds {y[unknown][0]!r}, which the estimator never saw: {classes}.")
    own |= _class_weights(host, y, weight)
    second = y == classes[1]
    if host.loss == "logistic":
        if len(classes) > 2:
            return GLM(X, y, "multinomial", penalty, **own)
        return GLM(X, second.astype(float), "logistic", penalty, **own)
    if len(classes) != 2:
        raise TypeError(f"from_sklearn: {name} is supported for two classes; it has {len(classes)}.")
    if host.loss != "squared" or host.whole:
        raise TypeError(f"from_sklearn: {name} is not supported. Supported are {', '.join(SUPPORTED)}.")
    if host.class_weight == "balanced" and weight is not None:
        raise TypeError(f"from_sklearn: {name}(class_weight='balanced') with a sample_weight is not supported.")
    return GLM(X, np.where(second, 1.0, -1.0), "squared", penalty, **own)


def _class_weights(host: Described, y: np.ndarray, weight: ArrayLike | None) -> dict[str, Any]:
    """What the weights of classes are for a model: recomputed by fold, or put on top of the rows' own."""
    of_class = host.class_weight
    if of_class is None:
        return {}
    if of_class == "balanced":
        return {"class_weight": "balanced"}
    each = np.vectorize(lambda label: of_class.get(label, 1.0), otypes=[float])(y.astype(object))
    return {"sample_weight": each if weight is None else each * np.asarray(weight, float)}


def _parameters(objective: GLM | Regression, host: Described, estimator: Any) -> dict[str, np.ndarray]:
    """The host's own θ̂."""
    coef, intercept = np.asarray(estimator.coef_, np.float64), np.asarray(estimator.intercept_, np.float64)
    if coef.shape[-1] != objective.num_features:
        raise ValueError(
            f"from_sklearn: the estimator has {coef.shape[-1]} coefficients, but X has {objective.num_features} columns: "
            "it was fitted on other data."
        )
    if coef.size == objective.num_features:
        coef, intercept = coef.ravel(), intercept.ravel()[0] if intercept.ndim else intercept
    found = {"coef": coef, "intercept": np.asarray(intercept)}
    if isinstance(host.loss, HuberScale):
        found = {name: value for name, value in found.items() if name != "intercept" or host.intercept}
        found["scale"] = np.asarray(estimator.scale_, np.float64)
    return found
