"""Linear estimators of scikit-learn as they are: the host's own objective and, if it is fitted, its
own θ̂.

"Exact" then means the host's own refit. Some hosts average their loss (PoissonRegressor,
GammaRegressor), so their penalty shrinks as rows leave; balanced class weights are recomputed in
every fold. `with_parameters` is the way back: the host with the parameters of a refit.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn import __version__, linear_model, svm
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from ... import GLM, Fit, Regression, fit, losses, penalties
from ...developer import (
    AnyTuple,
    NamedArrays,
    NamedValues,
    NumpyArray,
    Strings,
    TransformedResponse,
    function,
    join_remarks,
    kinks,
    look,
    match_labels,
    pd,
    record,
    warn,
)
from ._components import (
    AbstractComponents,
    PartialLeastSquares,
    PrincipalComponents,
    SeveralTargets,
)
from ._fit_at_host import fit_at_host, is_repeated
from ._standardised import StandardisedGLM
from ._supervised_steps import encodes_across_folds, learns_response, steps_in


@runtime_checkable
class SklearnEstimator(Protocol):
    """Estimator with scikit-learn's interface, which can be cloned."""

    def fit(self, X: Any, y: Any) -> Any: ...

    def get_params(self, deep: bool = True) -> NamedValues: ...

    def set_params(self, **params: Any) -> Any: ...


@dataclass(frozen=True)
class HostObjective:
    """Objective of an estimator, read off its options: `Σ_n w_n ℓ(x_nᵀβ + α, y_n) + ½ ridge ‖β‖² +
    l1 Σ|β|`.

    β is not negative if it is `positive`.
    """

    # values of two labels: ±1 for "squared" and "squared_hinge", 0 and 1 for "logistic"
    loss: str | losses.AbstractLoss | losses.HuberScale
    ridge: float | NumpyArray
    intercept: bool
    labels: bool = False  # whether the target is a class
    class_weight: NamedValues | Literal["balanced"] | None = None
    # whether the sum is divided by Σ w or by the number of rows, so that the penalty shrinks with
    # it
    average: bool | Literal["rows"] = False
    # constant column whose coefficient, the intercept over it, is penalised as the others are; 0 if
    # the intercept is free
    intercept_scale: float = 0.0
    choice_note: str = ""  # name of the choice that was made on all rows
    # whether every refit standardises the columns by the rows that it sees
    standardises: bool = False
    l1: float = 0.0
    positive: bool = False


def describe(estimator: SklearnEstimator) -> HostObjective:
    """Describe the objective of an estimator, fitted or not; one that chooses its penalty as it is
    fitted has to be fitted.

    Raises TypeError if it is not supported.
    """
    name = type(estimator).__name__
    reader = _components if num_component_steps(estimator) else READERS.get(type(estimator))
    if reader is None:
        way = "lo.sklearn.cross_validate takes any estimator, which then refits its folds itself"
        if name == "GaussianProcessRegressor":
            way = "lo.GaussianProcess fits one that has one noise; lo.Objective takes the density of one with a noise by point"
        raise TypeError(
            f"from_sklearn: {name} is not supported: {way}. Supported are {', '.join(SUPPORTED_ESTIMATORS)}."
        )
    if name.endswith("CV"):
        check_is_fitted(estimator)
    return reader(estimator)


def penalty_of(host: HostObjective) -> penalties.AbstractPenalty | None:
    """Build the penalty of a host, as a function of the weights of rows."""
    parts: list[penalties.AbstractPenalty] = [penalties.Lasso(host.l1)] * (host.l1 > 0)
    parts += [penalties.Ridge(host.ridge)] * bool(np.any(np.asarray(host.ridge) > 0))
    parts += [penalties.Box()] * host.positive
    around = {False: penalties.resolve, True: penalties.per_weight, "rows": penalties.per_row}[
        host.average
    ]
    if not parts:
        return None
    penalty = parts[0] if len(parts) == 1 else penalties.Sum(tuple(parts))
    return around(penalty)


def _choice_remark(name: str, value: float) -> str:
    return f"{name} = {value:.4g} was chosen on all rows: the choice is not left out"


def _least_squares(estimator) -> HostObjective:
    labels = hasattr(estimator, "class_weight")
    weight = getattr(estimator, "class_weight", None)
    alpha = np.asarray(getattr(estimator, "alpha_", getattr(estimator, "alpha", 0.0)), float)
    choice_note = ""
    if hasattr(estimator, "alphas"):
        choice_note = _choice_remark("alpha", float(alpha))
    return HostObjective(
        "squared",
        alpha,
        estimator.fit_intercept,
        labels,
        weight,
        choice_note=choice_note,
        positive=bool(getattr(estimator, "positive", False)),
    )


def _net(estimator) -> HostObjective:
    """Describe the lasso or elastic net.

    Mean of half the squares plus `alpha (l1_ratio Σ|β| + ½ (1 − l1_ratio) ‖β‖²)`.
    """
    searched = hasattr(estimator, "alpha_")
    suffix = "_" if searched else ""
    alpha = float(getattr(estimator, f"alpha{suffix}"))
    ratio = float(getattr(estimator, f"l1_ratio{suffix}", 1.0))
    choice_note = _choice_remark("alpha", alpha) if searched else ""
    return HostObjective(
        "squared",
        alpha * (1 - ratio),
        estimator.fit_intercept,
        average=True,
        choice_note=choice_note,
        l1=alpha * ratio,
        positive=bool(estimator.positive),
    )


def _averaging(loss: Callable[[Any], str | losses.AbstractLoss]) -> Callable[[Any], HostObjective]:
    return lambda estimator: HostObjective(
        loss(estimator), float(estimator.alpha), estimator.fit_intercept, average=True
    )


def _tweedie(estimator) -> losses.Tweedie:
    link = estimator.link
    if link == "auto":
        link = "identity" if estimator.power <= 0 else "log"
    return losses.Tweedie(float(estimator.power), 1.0, link)


def _logistic(estimator) -> HostObjective:
    searched = hasattr(estimator, "Cs")
    style = getattr(estimator, "penalty", "deprecated")
    suffix = "_" if searched else ""
    l1_ratio: Any = getattr(estimator, f"l1_ratio{suffix}", None)
    if None in np.ravel(l1_ratio):
        l1_ratio = 0.0
    ratios = np.unique(np.asarray(l1_ratio, float))
    ratio = {"l1": 1.0, "l2": 0.0}.get(style, float(ratios[0]))
    if len(ratios) > 1:
        raise TypeError(
            "from_sklearn: LogisticRegressionCV is supported with one l1_ratio for all classes."
        )
    values = np.unique(np.asarray(getattr(estimator, f"C{suffix}"), float))
    if searched and (len(values) > 1 or not estimator.refit):
        raise TypeError(
            "from_sklearn: LogisticRegressionCV is supported with one C for all classes, and refit=True."
        )
    C = float(values[0])
    choice_note = _choice_remark("C", C) if searched else ""
    strength = 0.0 if style in (None, "none") else 1.0 / C
    return HostObjective(
        "logistic",
        strength * (1 - ratio),
        estimator.fit_intercept,
        True,
        estimator.class_weight,
        choice_note=choice_note,
        l1=strength * ratio,
        intercept_scale=_intercept_scale(estimator) * (estimator.solver == "liblinear"),
    )


def _intercept_scale(estimator) -> float:
    return float(estimator.fit_intercept * estimator.intercept_scaling)


def _support_vectors(estimator) -> HostObjective:
    if estimator.penalty != "l2" or estimator.multi_class != "ovr":
        raise TypeError(
            "from_sklearn: LinearSVC is supported with penalty='l2' and multi_class='ovr'."
        )
    loss = "squared_hinge" if estimator.loss == "squared_hinge" else losses.Hinge(width=KINK_WIDTH)
    return HostObjective(
        loss,
        1.0 / estimator.C,
        estimator.fit_intercept,
        True,
        estimator.class_weight,
        intercept_scale=_intercept_scale(estimator),
    )


def _support_vector_regression(estimator) -> HostObjective:
    if estimator.loss != "epsilon_insensitive":
        raise TypeError("from_sklearn: LinearSVR is supported with loss='epsilon_insensitive'.")
    return HostObjective(
        losses.EpsilonInsensitive(estimator.epsilon, width=1.0),
        1.0 / estimator.C,
        estimator.fit_intercept,
        intercept_scale=_intercept_scale(estimator),
    )


def _quantile(estimator) -> HostObjective:
    return HostObjective(
        losses.Quantile(estimator.quantile, width=1.0),
        0.0,
        estimator.fit_intercept,
        average=True,
        l1=float(estimator.alpha),
    )


def _components(estimator) -> HostObjective:
    return HostObjective("components", 0.0, intercept=True)


def _describe_sgd(estimator) -> HostObjective:
    name = type(estimator).__name__
    labels = isinstance(estimator, linear_model.SGDClassifier)
    smooth = SMOOTH[labels]
    if estimator.loss not in smooth or estimator.penalty not in ("l2", None):
        raise TypeError(
            f"from_sklearn: {name} is supported with an l2 penalty or none, and a loss among {', '.join(smooth)}; got "
            f"loss={estimator.loss!r}, penalty={estimator.penalty!r}. Hinges and l1 penalties are not smooth."
        )
    weight = getattr(estimator, "class_weight", None)
    alpha = float(estimator.alpha) if estimator.penalty else 0.0
    loss = smooth[estimator.loss](estimator)
    return HostObjective(loss, alpha, estimator.fit_intercept, labels, weight, average="rows")


# largest number of entries (a gibibyte) of sparse columns that are written out for a model that
# needs dense ones
MAX_DENSE_ENTRIES = 2**27
# width over which kinks are rounded, relative to the median residual, or to a margin of one
KINK_WIDTH = 1e-3
# losses of SGD, for classes and for numbers
SMOOTH: dict[bool, dict[str, Callable[[Any], str | losses.AbstractLoss]]] = {
    True: {
        "log_loss": lambda estimator: "logistic",
        "squared_hinge": lambda estimator: "squared_hinge",
    },
    False: {
        "squared_error": lambda estimator: "squared",
        "huber": lambda estimator: losses.Huber(estimator.epsilon),
    },
}
READERS: dict[type[Any], Callable[[Any], HostObjective]] = {
    linear_model.LinearRegression: _least_squares,
    linear_model.Ridge: _least_squares,
    linear_model.Lasso: _net,
    linear_model.ElasticNet: _net,
    linear_model.LogisticRegression: _logistic,
    linear_model.PoissonRegressor: _averaging(lambda estimator: "poisson"),
    linear_model.GammaRegressor: _averaging(lambda estimator: "gamma"),
    linear_model.TweedieRegressor: _averaging(_tweedie),
    linear_model.HuberRegressor: lambda host: HostObjective(
        losses.HuberScale(host.epsilon), 2.0 * host.alpha, host.fit_intercept
    ),
    linear_model.LassoCV: _net,
    linear_model.ElasticNetCV: _net,
    linear_model.RidgeCV: _least_squares,
    linear_model.RidgeClassifier: _least_squares,
    linear_model.RidgeClassifierCV: _least_squares,
    linear_model.LogisticRegressionCV: _logistic,
    linear_model.QuantileRegressor: _quantile,
    svm.LinearSVC: _support_vectors,
    svm.LinearSVR: _support_vector_regression,
    linear_model.SGDClassifier: _describe_sgd,
    linear_model.SGDRegressor: _describe_sgd,
    PLSRegression: _components,
}
SEVERAL_TARGETS = (
    linear_model.LinearRegression,
    linear_model.Ridge,
    linear_model.Lasso,
    linear_model.ElasticNet,
)
AROUND = "LinearRegression after PCA, and a Pipeline, TransformedTargetRegressor or search around one of them"
SUPPORTED_ESTIMATORS = (*(kind.__name__ for kind in READERS), AROUND)


class HostFit(NamedTuple):
    """Linear estimator inside a host, fitted, the data that it was fitted on, and remarks for
    printed results.

    `supervised` says which transformers were fitted with the response.
    """

    estimator: Any
    X: Any
    y: Any
    remarks: Strings = ()
    transformed: bool = False  # whether y is a function of the host's
    supervised: str = ""


def from_sklearn(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
) -> Fit:
    """Take a fitted estimator of scikit-learn, on the data it was fitted on.

    The linear estimators are LinearRegression, Ridge, Lasso, ElasticNet, LogisticRegression (binary
    and multinomial; l2 or no penalty, for two classes l1 and elastic net too; class_weight fixed or
    balanced; the intercept that liblinear penalises is the last of `coef`, over
    `intercept_scaling`), PoissonRegressor, GammaRegressor, TweedieRegressor, HuberRegressor (its
    scale is a parameter), RidgeClassifier (two classes; its squared loss of ±1), LinearSVC (two
    classes; its intercept as liblinear's), PLSRegression and LinearRegression after PCA (every fold
    exact, by cross-products), QuantileRegressor, LinearSVR and LinearSVC(loss="hinge") (their kinks
    are rounded, which the result says; θ̂ is then near the host's own), SGDClassifier and
    SGDRegressor (smooth losses; if they arrived), and the CV versions of these at the penalty they
    chose (the choice is not left out); with `positive=True` where they have it.

    If its solver stopped before its minimum, as with few iterations or columns of very different
    sizes, the fit is at the minimum, and a warning says how far that is.

    Around one of them there may be a Pipeline, whose transformers stay as fitted, a
    TransformedTargetRegressor (losses are of the transformed target; predictions of the response
    and their measures are in units of y), or a GridSearchCV or similar (its `best_estimator_`; the
    choice is not left out).

    Parameters
    ----------
    estimator : estimator
        Fitted estimator.
    X : array-like, shape (rows, features)
        Columns that it was fitted on.
    y : array-like, shape (rows,)
        Response or class.
    sample_weight : array-like, shape (rows,), optional
        Weights that were given to `fit`.

    Returns
    -------
    Fit
        The fit at the estimator's coefficients.

    Raises
    ------
    TypeError
        On other estimators.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.
    ValueError
        If its coefficients are not stationary on these data.

    See Also
    --------
    sklearn.cross_validate : scikit-learn's call, which fits transformers anew in every fold.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.linear_model import Ridge
    >>> X, y = lo.datasets.diabetes()
    >>> fit = lo.from_sklearn(Ridge(alpha=0.1).fit(X, y), X, y)
    >>> cv = lo.cross_validate(fit, lo.leave_one_out(), metric="mse")
    >>> len(cv.losses)
    442
    """
    objective, theta = read(estimator, X, y, sample_weight)
    warn_of_supervised("from_sklearn", objective.labels.read)
    if isinstance(getattr(objective, "loss_function", None), losses.AbstractRounded):
        return _fit_rounded(objective, theta)

    def stopped() -> bool:
        """Tell whether the host was fitted on these data.

        Fitted again, it ends at the same parameters.
        """
        _, columns, target, weight = match_labels(
            "from_sklearn", X=X, y=y, sample_weight=sample_weight
        )
        last, columns, target, *_ = open_host(estimator, _columns(estimator, columns), target)
        options = {} if weight is None else {"sample_weight": weight}
        coef = lambda host: inner(host).coef_
        return is_repeated(lambda: coef(clone(last).fit(columns, target, **options)), coef(last))

    return fit_at_host("from_sklearn", objective, theta, stopped)


def warn_of_supervised(caller: str, rows: "HostRows") -> None:
    """Warn of transformers that were fitted with the response."""
    if rows.supervised:
        warn(
            f"{caller}: {rows.supervised}. lo.sklearn.cross_validate fits transformers anew in every fold."
        )


def _fit_rounded(objective: GLM | Regression, theta: NamedArrays) -> Fit:
    """Fit a host whose loss has kinks.

    The minimum with rounded kinks, which is near the host's own θ̂.
    """
    solution = fit(objective, theta, num_starts=1)
    vector = np.asarray(objective.parameters.unconstrained(theta), float)
    kink_point = kinks(objective)
    if kink_point is None:
        value = function(objective, vector).look(vector)[0]
    else:
        value = look(kink_point[0], np.ones(objective.num_units), vector).value
    loss: Any = objective.loss_function
    least = float(solution.value)
    # largest excess of a minimiser with kinks
    excess = float(value - least)
    rounding = float(loss.most * objective.row_weights.sum())
    message = (
        f"a minimum on these data: its objective is {value:.6g}, the least {least:.6g}, and rounding its kinks "
        f"explains {rounding:.2g} of that at most. Was it fitted on these data, with these weights, and did its solver arrive?"
    )
    max_host_excess = 0.02  # largest relative excess of a host's objective over its least value
    if excess > 2 * rounding + max_host_excess * abs(least):
        raise ValueError(f"from_sklearn: the estimator is not near {message}")
    if excess > rounding:
        warn(f"from_sklearn: the estimator is not at {message} The fit is at that least.")
    return solution


def read(
    estimator: Any,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    scaled: bool = False,
) -> tuple[Any, NamedArrays]:
    """Read the objective of a fitted estimator, and its parameters.

    Transformers stay as fitted; if `scaled`, refits standardise the columns themselves.
    """
    labels, X, y, sample_weight = match_labels(
        "from_sklearn", X=X, y=y, sample_weight=sample_weight
    )
    fitted = estimator
    measured = y
    estimator, X, y, remarks, transformed, supervised = open_host(
        estimator, _columns(estimator, X), y
    )
    reader = HostRows(
        fitted, np.ravel(np.asarray(measured, float)) if transformed else None, supervised
    )
    host = replace(describe(estimator), standardises=scaled)
    check_is_fitted(estimator)
    if isinstance(host.loss, losses.AbstractRounded) and not host.labels:
        scale = float(np.median(np.abs(np.ravel(y) - np.ravel(estimator.predict(X)))))
        # the rounded kinks are then the only curvature
        width = KINK_WIDTH if host.ridge else max(10 * KINK_WIDTH, 2 / np.size(y))
        host = replace(host, loss=host.loss.over(width * (scale or 1.0)))
    names = () if hasattr(X, "columns") else _feature_names(fitted)
    # transformed rows keep their labels
    if labels.index is not None and isinstance(X, NumpyArray) and X.ndim == 2:
        X = pd.DataFrame(X, index=labels.index, columns=[f"x{j}" for j in range(X.shape[1])])
    remark = join_remarks(*remarks, host.choice_note)
    if isinstance(estimator, PLSRegression | Pipeline) or _has_several_targets(estimator):
        if sample_weight is not None:
            raise TypeError(
                "from_sklearn: regressions on components or of several targets take no sample_weight."
            )
        model = _component_model(estimator, X, np.asarray(y), remark)
        return model.reading(reader, labels, names), _component_parameters(estimator)
    # y in the order of X by now
    objective = _objective(host, estimator, X, np.asarray(y), sample_weight, remark)
    if (
        type(estimator) is linear_model.LinearRegression
        and not estimator.positive
        and isinstance(objective.design, NumpyArray)
    ):
        vars(objective)["cut"] = _cut(estimator)
    if len(names) != np.shape(X)[1]:
        names = ()
    return objective.reading(reader, labels, names), _parameters(objective, host, estimator)


def _feature_names(estimator) -> Strings:
    """Return the names of the columns that a fitted pipeline passes to its last step.

    Empty if a transformer gives no names, or repeats one.
    """
    before = transformers_of(_opened(estimator))
    if not before:
        return ()
    try:
        names = tuple(map(str, Pipeline(before).get_feature_names_out()))
    except (AttributeError, ValueError, NotFittedError):
        return ()
    return names if len(set(names)) == len(names) else ()


@record
class HostRows:
    """Reader of new rows for a fitted estimator; it knows the classes, and the way back from a
    transformed target.

    `supervised` says which transformers were fitted with the response.
    """

    estimator: Any
    # the response as it was measured, where the estimator transforms it
    measured: NumpyArray | None = None
    supervised: str = ""

    def __call__(self, X: Any) -> Any:
        return _rows_to_predict(self.estimator, X)

    @property
    def classes(self) -> AnyTuple:
        return tuple(np.asarray(getattr(self.estimator, "classes_", ())).tolist())

    @property
    def response(self) -> TransformedResponse | None:
        """The response as it was measured, where the estimator transforms it."""
        if self.measured is None:
            return None
        return TransformedResponse(self.measured, self.inverse)

    def inverse(self, values: NumpyArray) -> NumpyArray:
        """Transform predictions of the regression back to the estimator's own response."""
        return _inverse(self.estimator, np.ravel(values))


def _opened(estimator: Any) -> Any:
    """Return the fitted estimator inside searches and transformed targets."""
    if searches(estimator):
        return _opened(estimator.best_estimator_)
    if isinstance(estimator, TransformedTargetRegressor):
        return _opened(estimator.regressor_)
    return estimator


def _inverse(estimator, values: NumpyArray) -> NumpyArray:
    if searches(estimator):
        return _inverse(estimator.best_estimator_, values)
    if isinstance(estimator, Pipeline):
        return _inverse(estimator.steps[-1][1], values)
    if isinstance(estimator, TransformedTargetRegressor):
        inside = _inverse(estimator.regressor_, values).reshape(-1, 1)
        return np.ravel(estimator.transformer_.inverse_transform(inside))
    return values


def _rows_to_predict(estimator: Any, X: Any):
    """Read rows to predict, in the form that the regression at the end of an estimator takes."""
    estimator = _opened(estimator)
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and isinstance(X, pd.DataFrame):
        missing = sorted(set(names) - set(X.columns))
        # transformers of a pipeline select their own columns
        if missing and not isinstance(estimator, Pipeline):
            raise ValueError(
                f"X_new lacks columns that the estimator was fitted on: {', '.join(missing[:5])}."
            )
        if not missing:
            X = X[list(names)]
    if not isinstance(estimator, Pipeline) or num_component_steps(estimator) == len(
        estimator.steps
    ):
        return X
    return _rows_to_predict(_last(estimator), _transform_rows(estimator, X))


def _transform_rows(estimator: Pipeline, X):
    before = transformers_of(estimator)
    return Pipeline(before).transform(X) if before else X


def transformers_of(estimator: Any) -> list[tuple[str, Any]]:
    """List the steps of a pipeline before its model, by name; none of any other estimator."""
    if isinstance(estimator, Pipeline):
        return estimator.steps[: -(num_component_steps(estimator) or 1)]
    return []


def _describe_supervised(estimator: Pipeline, X, y) -> str:
    """Name the transformers that were fitted with the response.

    TypeError if one encodes rows across folds of its own.
    """
    supervised = [
        step
        for step in steps_in(Pipeline(transformers_of(estimator)), X)
        if learns_response(step, y)
    ]
    for step in supervised:
        if encodes_across_folds(step, y):
            raise TypeError(
                f"from_sklearn: {step.name} gives the rows that it is fitted to other values (across folds of its own, or "
                "without the row itself) than it gives the same rows later, so the columns that the model was fitted to cannot "
                "be had again; lo.sklearn.cross_validate takes the pipeline, and fits it anew in every fold."
            )
    names = " and ".join(dict.fromkeys(step.name for step in supervised))
    if names:
        return f"{names} learned from the response of held-out rows too, so losses are too small"
    return ""


def num_component_steps(estimator: Any) -> int:
    """Count the last steps of a pipeline that make least squares on principal components; zero if
    they do not.

    They are PCA and LinearRegression, and a StandardScaler before them. Components that are only
    approximate do not count.
    """
    if not isinstance(estimator, Pipeline) or len(estimator.steps) < 2:
        return 0
    *before, pca, last = (step for _, step in estimator.steps)
    if (
        type(pca) is not PCA
        or type(last) is not linear_model.LinearRegression
        or pca.n_components == "mle"
        or getattr(pca, "_fit_svd_solver", pca.svd_solver) == "randomized"
        or last.positive
        or not last.fit_intercept
    ):
        return 0
    if before and type(before[-1]) is StandardScaler:
        return 3
    return 2


def _last(estimator: Pipeline):
    """Return the last step of a pipeline, or the last steps that are one model."""
    count = num_component_steps(estimator)
    if count:
        return Pipeline(estimator.steps[-count:])
    return estimator.steps[-1][1]


def open_host(estimator: Any, X: Any, y: Any) -> HostFit:
    """Open a fitted host down to its linear estimator."""
    if isinstance(estimator, Pipeline):
        check_is_fitted(estimator)
        if num_component_steps(estimator) == len(estimator.steps):
            return HostFit(estimator, X, y)
        supervised = _describe_supervised(estimator, X, y)
        inner = open_host(_last(estimator), _transform_rows(estimator, X), y)
        remark = (
            "the pipeline's transformers stay as fitted on all rows: what they learned is not left out "
            "(lo.sklearn.cross_validate fits them anew in every fold)"
        )
        remarks = ((remark, supervised) if _prepares(estimator) else ()) + inner.remarks
        return inner._replace(remarks=remarks, supervised=supervised or inner.supervised)
    if isinstance(estimator, TransformedTargetRegressor):
        check_is_fitted(estimator)
        if np.ndim(y) > 1 and np.shape(y)[1] > 1:
            raise TypeError(
                "from_sklearn: TransformedTargetRegressor was fitted on several targets; fit one at a time."
            )
        inner = open_host(
            estimator.regressor_,
            X,
            np.ravel(estimator.transformer_.transform(np.asarray(y).reshape(-1, 1))),
        )
        return inner._replace(
            remarks=("losses are of the transformed target", *inner.remarks), transformed=True
        )
    if searches(estimator):
        name = type(estimator).__name__
        check_is_fitted(estimator)
        if not hasattr(estimator, "best_estimator_"):
            raise TypeError(
                f"from_sklearn: {name}(refit={estimator.refit!r}) has no best_estimator_; search with refit=True, or fit an "
                "estimator with its best_params_ and give that."
            )
        inner = open_host(estimator.best_estimator_, X, y)
        remark = f"{name} chose {estimator.best_params_} on all rows: the choice is not left out"
        return inner._replace(remarks=(remark, *inner.remarks))
    return HostFit(estimator, X, y)


def inner(estimator: Any) -> Any:
    """Return the estimator inside pipelines and transformed targets."""
    if isinstance(estimator, Pipeline):
        return inner(estimator.steps[-1][1])
    if isinstance(estimator, TransformedTargetRegressor):
        regressor = getattr(estimator, "regressor_", estimator.regressor)
        if regressor is None:
            return linear_model.LinearRegression()
        return inner(regressor)
    if isinstance(estimator, OneVsRestClassifier):
        return inner(estimator.estimator)
    return estimator


def takes_classes_apart(estimator: Any) -> bool:
    """Tell whether an estimator, fitted or not, fits each of three or more classes against the
    rest.
    """
    if isinstance(estimator, OneVsRestClassifier):
        return True
    if isinstance(estimator, Pipeline):
        return takes_classes_apart(estimator.steps[-1][1])
    host = describe(estimator)
    binary = (
        getattr(estimator, "solver", "") == "liblinear"
        or getattr(estimator, "multi_class", "") == "ovr"
    )
    return host.labels and (host.loss != "logistic" or bool(host.average) or binary)


def separate_problems(estimator: Any, y: Any) -> list[tuple[Any, NumpyArray]]:
    """Split a fitted estimator into hosts of one output, each with its response; most estimators
    are one of them.

    Several are a class against the rest each, or a target each.
    """
    if isinstance(estimator, Pipeline) and not num_component_steps(estimator):
        *before, (name, last) = estimator.steps
        return [
            (Pipeline([*before, (name, model)]), part) for model, part in separate_problems(last, y)
        ]
    if isinstance(estimator, OneVsRestClassifier):
        classes = estimator.classes_[len(estimator.classes_) == 2 :]
        return [
            (model, np.equal(y, c).astype(int))
            for model, c in zip(estimator.estimators_, classes, strict=True)
        ]
    coef = getattr(estimator, "coef_", np.zeros(1))
    labels = hasattr(estimator, "classes_")
    is_separate = takes_classes_apart(estimator) if labels else type(estimator) in SEVERAL_TARGETS
    if np.ndim(coef) < 2 or len(coef) < 2 or not is_separate:
        return [(estimator, y)]
    problems = []
    for k, intercept in enumerate(np.broadcast_to(estimator.intercept_, len(coef))):
        problem = copy.copy(estimator)
        if not labels:
            problem.coef_ = coef[k]
            problem.intercept_ = intercept
            problem.alpha = np.broadcast_to(getattr(estimator, "alpha", 0.0), len(coef))[k]
            problems.append((problem, np.asarray(y)[:, k]))
            continue
        response = np.equal(y, estimator.classes_[k]).astype(int)
        if isinstance(problem, linear_model.RidgeClassifier):
            problem = linear_model.Ridge(
                problem.alpha, fit_intercept=problem.fit_intercept, positive=problem.positive
            )
            response = 2 * response - 1
        problem.coef_ = coef[k : k + 1]
        problem.intercept_ = np.array([intercept])
        problem.classes_ = np.array([0, 1])
        problems.append((problem, response))
    return problems


def usual_score(estimator: Any) -> str | None:
    """Return the name of the score that an estimator has if none is named.

    None if it is one of its own.
    """
    score = getattr(type(inner(estimator)), "score", None)
    if score is RegressorMixin.score:
        return "r2"
    if score is ClassifierMixin.score:
        return "accuracy"
    return None


def searches(estimator: Any) -> bool:
    """Tell whether an estimator searches over the parameters of another, as GridSearchCV does."""
    return (
        hasattr(estimator, "estimator")
        and callable(getattr(estimator, "fit", None))
        and hasattr(estimator, "refit")
    )


def learns(estimator: Any) -> bool:
    """Tell whether a step around the linear estimator learns from rows."""
    if isinstance(estimator, Pipeline):
        return _prepares(estimator) or learns(estimator.steps[-1][1])
    if isinstance(estimator, TransformedTargetRegressor):
        transformer = estimator.transformer
        return (transformer is not None and get_tags(transformer).requires_fit) or learns(
            estimator.regressor
        )
    return isinstance(estimator, OneVsRestClassifier) and learns(estimator.estimator)


def rescales(estimator: Any) -> bool:
    """Tell whether a pipeline learns only a standardisation of the columns before its linear model.

    The scaling must enter the objective through the ridge alone, so that a change of the ridge can
    replace it. This holds with an intercept that is not penalised.
    """
    if isinstance(estimator, OneVsRestClassifier):
        return rescales(estimator.estimator)
    if not isinstance(estimator, Pipeline) or len(estimator.steps) < 2:
        return False
    *before, scaler, last = (step for _, step in estimator.steps)
    if isinstance(last, OneVsRestClassifier):
        last = last.estimator
    if type(scaler) is not StandardScaler or _learn(before) or type(last) not in READERS:
        return False
    host = describe(last)
    return bool(
        host.intercept
        and not host.intercept_scale
        and not isinstance(host.loss, losses.HuberScale)
        and not host.l1
        and not host.positive
        and scaler.with_std
    )


def _prepares(estimator: Pipeline) -> bool:
    """Tell whether a transformer of a pipeline, before its model, learns from rows."""
    return _learn(step for _, step in transformers_of(estimator))


def _learn(steps: Iterable[Any]) -> bool:
    return any(get_tags(step).requires_fit for step in steps if step not in ("passthrough", None))


def with_parameters(estimator: Any, parameters: NamedArrays) -> Any:
    """Copy a fitted host with other parameters, named as in `Fit.parameters`."""
    host = copy.copy(estimator)
    if count := num_component_steps(host):
        host.steps = [*host.steps[:-count], *_one_component(host.steps[-count:], parameters)]
    elif isinstance(host, Pipeline):
        name, last = host.steps[-1]
        host.steps = [*host.steps[:-1], (name, with_parameters(last, parameters))]
    elif isinstance(host, TransformedTargetRegressor):
        host.regressor_ = with_parameters(host.regressor_, parameters)
    elif isinstance(host, OneVsRestClassifier):
        rows = {
            name: np.reshape(values, (len(host.estimators_), -1))
            for name, values in parameters.items()
        }
        host.estimators_ = [
            with_parameters(part, {name: values[k] for name, values in rows.items()})
            for k, part in enumerate(host.estimators_)
        ]
    else:
        coef = np.asarray(parameters["coef"])
        intercept = np.asarray(parameters.get("intercept", 0.0))
        if (solver := type(host) in READERS and describe(host)) and solver.intercept_scale:
            intercept = coef[..., -1] * solver.intercept_scale
            coef = coef[..., :-1]
        if isinstance(host, PLSRegression):
            intercept = intercept + coef @ host._x_mean
        host.coef_ = coef.reshape(*host.coef_.shape[:-1], coef.shape[-1])
        host.intercept_ = intercept.reshape(np.shape(host.intercept_))[()]
        if "scale" in parameters:
            host.scale_ = float(parameters["scale"])
    return host


def _one_component(steps: list[tuple[str, Any]], parameters: NamedArrays) -> list[tuple[str, Any]]:
    """Copy the steps of a regression on components for other parameters.

    Its components are then the predictors themselves.
    """
    *scaler, (_, pca), (_, last) = copies = [(name, copy.copy(step)) for name, step in steps]
    for _, step in scaler:
        step.with_mean = step.with_std = False
        step.scale_ = step.mean_ = None
    coef = np.atleast_2d(parameters["coef"])
    pca.components_ = coef
    pca.mean_ = np.zeros(coef.shape[1])
    pca.whiten = False
    pca.n_components_ = len(coef)
    last.coef_ = np.eye(len(coef)) if np.ndim(last.coef_) > 1 else np.ones(1)
    last.intercept_ = np.asarray(parameters["intercept"])[()]
    last.n_features_in_ = len(coef)
    return copies


def _has_several_targets(estimator) -> bool:
    """Tell whether least squares, with a ridge or without, was fitted to several targets that have
    an intercept each.
    """
    if (
        type(estimator) not in (linear_model.LinearRegression, linear_model.Ridge)
        or estimator.positive
    ):
        return False
    return estimator.fit_intercept and np.ndim(estimator.coef_) > 1 and len(estimator.coef_) > 1


def _cut(estimator: linear_model.LinearRegression) -> float:
    """Return where singular values of dense rows are cut: by `tol` since scikit-learn 1.9, at
    rounding before.
    """
    if tuple(map(int, __version__.split(".")[:2])) < (1, 9):
        return 0.0
    return float(estimator.tol)


def _component_model(estimator, X, y: NumpyArray, remark: str) -> AbstractComponents:
    """Read a regression on components."""
    if isinstance(estimator, PLSRegression):
        return PartialLeastSquares(
            X,
            y,
            estimator.n_components,
            scales=estimator.scale,
            tol=estimator.tol,
            max_iter=estimator.max_iter,
            remark=remark,
        )
    if not isinstance(estimator, Pipeline):
        ridged = isinstance(estimator, linear_model.Ridge)
        ridge, cut = (estimator.alpha, 0.0) if ridged else (0.0, _cut(estimator))
        return SeveralTargets(X, y, ridge, cut=cut, remark=remark)
    *scaler, (_, pca), (_, last) = estimator.steps
    scales = bool(scaler) and scaler[0][1].with_std
    cut = 0.0 if pca.whiten else _cut(last)
    return PrincipalComponents(X, y, pca.n_components, scales=scales, cut=cut, remark=remark)


def _component_parameters(estimator) -> NamedArrays:
    """Return the coefficients of the columns themselves."""
    if not isinstance(estimator, Pipeline):
        coef = estimator.coef_
        middle = getattr(estimator, "_x_mean", np.zeros(estimator.n_features_in_))
        level = estimator.intercept_
        flat = getattr(estimator, "_predict_1d", False)
    else:
        *scaler, (_, pca), (_, last) = estimator.steps
        axes = pca.components_
        flat = np.ndim(last.coef_) == 1
        coef = np.atleast_2d(last.coef_) @ (
            axes / np.sqrt(pca.explained_variance_)[:, None] if pca.whiten else axes
        )
        middle = pca.mean_
        level = last.intercept_
        for _, step in scaler:
            spread = step.scale_ if step.with_std else 1.0
            coef = coef / spread
            middle = middle * spread + (step.mean_ if step.with_mean else 0.0)
    parameters = {"coef": coef, "intercept": level - coef @ middle}
    if flat:
        return {name: value[0] for name, value in parameters.items()}
    return parameters


def _columns(estimator: Any, X: Any):
    """Put the columns of a DataFrame into the order in which the estimator was fitted."""
    names = getattr(estimator, "feature_names_in_", None)
    if (
        names is None
        or not isinstance(X, pd.DataFrame)
        or not X.columns.is_unique
        or list(X.columns) == list(names)
    ):
        return X
    if set(X.columns) != set(names):
        differences = sorted(map(str, set(X.columns) ^ set(names)))
        raise ValueError(
            f"from_sklearn: X does not have the columns that the estimator was fitted on: {', '.join(differences[:5])}."
        )
    return X[list(names)]


def _objective(
    host: HostObjective,
    estimator,
    X,
    y: NumpyArray,
    weight: ArrayLike | None,
    remark: str,
) -> GLM | Regression:
    """Build the objective of the host on these data."""
    name = type(estimator).__name__
    if not host.labels and np.ndim(estimator.coef_) > 1 and np.shape(estimator.coef_)[0] > 1:
        raise TypeError(f"from_sklearn: {name} was fitted on several targets; fit one at a time.")
    penalty = penalty_of(host)
    if (
        penalty is not None
        and (host.l1 or host.positive)
        and sparse.issparse(X)
        and np.prod(np.shape(X)) <= MAX_DENSE_ENTRIES
    ):
        X = X.toarray()  # models with kinks or bounds need dense columns
    glm: Any = StandardisedGLM if host.standardises else GLM
    options: NamedValues = {
        "sample_weight": weight,
        "intercept": host.intercept,
        "remark": remark,
    }
    if isinstance(host.loss, losses.HuberScale):
        return Regression(X, np.ravel(y), host.loss, penalty, **options)
    if host.intercept_scale:
        X = _with_constant(X, host.intercept_scale)
        options["intercept"] = False
    if not host.labels:
        return glm(X, np.ravel(y), host.loss, penalty, **options)
    classes = estimator.classes_
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(
            f"from_sklearn: y holds {y[unknown][0]!r}, which the estimator never saw: {classes}."
        )
    if len(classes) > 2 and (host.loss != "logistic" or host.average or host.intercept_scale):
        raise TypeError(
            f"from_sklearn: {name} is supported for two classes; it has {len(classes)}, one fit against the rest for each. "
            f"Take from_sklearn({name}(...).fit(X, y == c), X, y == c) for each class c, or lo.sklearn.cross_validate."
        )
    if host.class_weight == "balanced":
        options["class_weight"] = "balanced"  # recomputed in every fold
    elif host.class_weight is not None:
        class_weights = compute_sample_weight(host.class_weight, y)
        options["sample_weight"] = (
            class_weights if weight is None else class_weights * np.asarray(weight, float)
        )
    if len(classes) > 2:
        return glm(X, y, "multinomial", penalty, **options)
    second = y == classes[1]
    if host.loss == "logistic":
        return glm(X, second.astype(float), "logistic", penalty, **options)
    if host.class_weight == "balanced" and weight is not None:
        raise TypeError(
            f"from_sklearn: {name}(class_weight='balanced') with a sample_weight is not supported."
        )
    return glm(X, np.where(second, 1.0, -1.0), host.loss, penalty, **options)


def _with_constant(X, value: float):
    """Append a constant column."""
    if isinstance(X, pd.DataFrame):
        return pd.concat([X, pd.Series(value, X.index, name="intercept")], axis=1)
    constant = np.full((np.shape(X)[0], 1), value)
    if sparse.issparse(X):
        return sparse.hstack([X, constant], format="csr")
    return np.hstack([X, constant])


def _parameters(objective: GLM | Regression, host: HostObjective, estimator) -> NamedArrays:
    """Return the parameters θ̂ of the host itself."""
    coef = np.asarray(estimator.coef_, float)
    intercept = np.asarray(estimator.intercept_, float)
    num_columns = objective.num_features - bool(host.intercept_scale)
    if coef.shape[-1] != num_columns:
        raise ValueError(
            f"from_sklearn: the estimator has {coef.shape[-1]} coefficients, but X has {num_columns} columns: "
            "it was fitted on other data."
        )
    if host.intercept_scale:
        return {"coef": np.append(coef, intercept / host.intercept_scale)}
    if coef.size == objective.num_features:
        coef = coef.ravel()
        if intercept.ndim:
            intercept = intercept.ravel()[0]
    parameters = {"coef": coef, "intercept": np.asarray(intercept)}
    if isinstance(host.loss, losses.HuberScale):
        if not host.intercept:
            del parameters["intercept"]
        parameters["scale"] = np.asarray(estimator.scale_, float)
    return parameters
