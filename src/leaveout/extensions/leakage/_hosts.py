"""Learners for the caller's estimators, after checks.

Fits are batched if they have a closed form or a Newton's method here. Otherwise scikit-learn's own
`fit` runs through joblib, or, for a GLM of this library, the refits start from its one fit.
"""

import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from ... import GLM, Exact, Fit, Plan, fold_parameters
from ...developer import (
    AbstractRefit,
    FloatArray,
    IntArray,
    Measure,
    function_name,
    kind_of,
    numbers,
    over,
    workers,
)
from ..hosts.sklearn import SklearnEstimator, describe
from ._fits import (
    FIT_BATCH_ENTRIES,
    AbstractLearner,
    ExtraRows,
    LeastSquares,
    MarginFits,
    Neighbours,
    Predictions,
    Rows,
    Seeds,
    SharedColumns,
)
from ._hinge import HingeFits
from ._scoring import Loss, classifies, predict_for_score, resolve, resolve_score

MAX_BATCHED_FEATURES = 200  # features from which batched normal equations save no time


class Task(NamedTuple):
    """`y` as given, `codes` with classes numbered (or y itself), and the loss or score.

    X is an array, a frame or a CSR matrix; `refit` serves a Fit alone.
    """

    X: Any
    y: NDArray
    codes: Float[ndarray, " records"]
    measure: Measure
    refit: AbstractRefit


def prepare(
    caller: str,
    estimator: SklearnEstimator | Fit,
    X,
    y: ArrayLike,
    loss: Loss | None,
    response: str,
    refit: AbstractRefit | None = None,
    scoring=None,
) -> Task:
    """Check and read a task.

    ValueError for different lengths, NaN or no data. X may be an array, sparse or a DataFrame.
    """
    if loss is not None and scoring is not None:
        raise ValueError(
            f"{caller}: give loss= or scoring=, not both; got loss={loss!r} and scoring={scoring!r}."
        )
    if not isinstance(estimator, Fit):
        if isinstance(estimator, type) or not (
            hasattr(estimator, "fit") and hasattr(estimator, "get_params")
        ):
            raise TypeError(
                f"{caller}: {function_name(estimator)} cannot be cloned; give an estimator object with fit, predict and get_params."
            )
        try:
            is_classifier(clone(estimator))
        except (TypeError, RuntimeError, AttributeError) as error:
            raise TypeError(
                f"{caller}: {type(estimator).__name__} cannot be cloned: {error}"
            ) from error
    if hasattr(X, "tocsr"):
        X = X.tocsr()
    elif not hasattr(X, "iloc"):
        X = np.asarray(X)
    target = np.asarray(y)
    if target.ndim != 1 or not target.size:
        raise ValueError(
            f"{caller}: y must be one number or label a record; got shape {target.shape}."
        )
    if X.shape[0] != len(target):
        raise ValueError(f"{caller}: X has {X.shape[0]} records, y has {len(target)}.")
    if pd.isna(target).any() or (target.dtype.kind == "f" and not np.isfinite(target).all()):
        raise ValueError(f"{caller}: y holds NaN or infinite values; drop those records.")
    if (target == target[0]).all():
        raise ValueError(
            f"{caller}: y is {target[0]} in all {len(target)} records: there is nothing to learn, and no score that "
            "mates could change. Give a target that varies."
        )
    if isinstance(X, ndarray) and X.dtype.kind == "f" and np.isinf(X).any():
        raise ValueError(f"{caller}: X holds infinite values.")
    if not isinstance(estimator, Fit):
        check_columns(caller, estimator, X, target)
    if scoring is None:
        measure = resolve(
            "squared" if loss is None else loss, response, target, classifies(estimator, target)
        )
    else:
        measure = resolve_score(scoring, estimator, target)
    if not measure.classes and target.dtype.kind not in "biuf":
        raise ValueError(
            f"{caller}: the loss {measure.name} needs numbers; y holds {target.dtype} values."
        )
    codes = measure.target(target)
    if measure.needs == "probability" and codes.max() > 1:
        raise ValueError(
            f"{caller}: the loss {measure.name} is for two classes; y has {int(codes.max()) + 1}: use 'multinomial'."
        )
    return Task(X, target, codes, measure, Exact() if refit is None else refit)


def check_columns(caller: str, estimator: SklearnEstimator, X, y: NDArray) -> None:
    """Raise TypeError if X has columns without numbers that the estimator, given a few rows, cannot
    read.
    """
    if hasattr(X, "tocsr"):
        return
    probed_rows = 50  # rows of the test whether an estimator reads columns without numbers
    try:
        numbers(caller, "X", X)
    except TypeError as unreadable:
        try:
            with warnings.catch_warnings(action="ignore"):
                clone(estimator).fit(X[:probed_rows], y[:probed_rows])
        except (TypeError, ValueError) as error:
            if "could not convert" in str(error):
                raise unreadable from error


@dataclass(eq=False)
class Estimator(AbstractLearner):
    """Scikit-learn estimator that is cloned and fitted by joblib, with the caller's backend."""

    cost = 2 * FIT_BATCH_ENTRIES  # draw by draw, so that few fits are lost when a run is stopped
    estimator: SklearnEstimator
    X: Any
    y: NDArray
    measure: Measure
    n_jobs: int | None

    def __post_init__(self) -> None:
        self.labels = np.zeros(0)
        if self.measure.classes:
            self.labels = np.unique(self.y)
        self.name = f"{type(self.estimator).__name__}, fitted anew"

    @property
    def jobs(self) -> int:
        return workers(self.n_jobs)

    def alone(self) -> "Estimator":
        return replace(self, n_jobs=1)

    def __call__(
        self, train: Rows, shared: SharedColumns, extra: ExtraRows, seeds: Seeds
    ) -> Predictions:
        parts = np.array_split(
            np.arange(len(train)), min(len(train), 4 * self.jobs if self.jobs > 1 else 1)
        )
        fits = [(train[p], extra[p], seeds[p]) for p in parts]
        results = over(functools.partial(self._fit_and_predict, shared), fits, jobs=self.n_jobs)
        inside, outside = zip(*(predicted for _, predicted in results), strict=True)
        return np.concatenate(inside), np.concatenate(outside)

    def _fit_and_predict(
        self, shared: SharedColumns, fits: tuple[Rows, ExtraRows, Seeds]
    ) -> Predictions:
        """Fit and predict; `fits` has the training rows, further records to predict, and the seed
        of each fit.
        """
        inside = []
        outside = []
        for rows, extra_rows, seed in zip(*fits, strict=True):
            one_class = len(self.labels) and len(np.unique(self.y[rows])) == 1
            if one_class:
                model = DummyClassifier(strategy="prior")
            else:
                model = seed_estimator(clone(self.estimator), int(seed))
            model.fit(take_rows(self.X, rows), self.y[rows])
            predict = lambda records, model=model: predict_for_score(
                model, take_rows(self.X, records), self.labels, self.measure.needs
            )
            inside.append(predict(shared))
            outside.append(
                predict(extra_rows) if len(extra_rows) else np.zeros((0, *inside[-1].shape[1:]))
            )
        return np.array(inside), np.array(outside)


class PlanHost(AbstractLearner):
    """GLM of this library.

    Every draw is a row of a plan of counts, refitted from the fit to all rows.
    """

    def __init__(self, fit: Fit, refit: AbstractRefit, measure: Measure):
        self.fit = fit
        self.refit = refit
        self.measure = measure
        assert isinstance(fit.objective, GLM)
        self.glm = fit.objective
        self.cost = 3 * fit.num_params + 16
        self.name = f"GLM ({type(self.glm.loss_function).__name__}), refitted by {refit!r}"

    def __call__(
        self, train: Rows, shared: SharedColumns, extra: ExtraRows, seeds: Seeds
    ) -> Predictions:
        n = self.glm.num_units
        return self.predict_counts(
            np.stack([np.bincount(rows, minlength=n) for rows in train]), shared, extra
        )

    def predict_counts(
        self, times: Int[ndarray, "fits records"], shared: SharedColumns, extra: ExtraRows
    ) -> Predictions:
        """Predict from fits in which every record counts as often as `times` says."""
        n = self.glm.num_units
        fits, units = np.nonzero(times != 1)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(fits, minlength=len(times)))])
        weight = times[fits, units].astype(float)
        parameters = fold_parameters(
            self.fit, Plan(indptr, units, weight, weight == 0, n), strategy=self.refit
        )
        coef = parameters["coef"]
        intercept = parameters["intercept"]
        X = np.asarray(self.glm.as_given.design)[:, : coef.shape[-1]]
        pattern = "fd,{}->f{}"
        if coef.ndim == 3:
            pattern = "fkd,{}->f{}k"
        predictors = [
            np.einsum(pattern.format("vd", "v"), coef, X[shared]),
            np.einsum(pattern.format("fvd", "v"), coef, X[extra]),
        ]
        return tuple(self._response(eta + intercept[:, None]) for eta in predictors)  # type: ignore[return-value]

    def _response(self, eta: FloatArray) -> FloatArray:
        if self.measure.needs == "decision":
            return eta
        if self.measure.needs == "label":
            return np.asarray(eta.argmax(-1) if eta.ndim == 3 else eta > 0, float)
        mu = self.glm.units.to_target(np.asarray(self.glm.loss_function.inverse_link(eta), float))
        if self.measure.needs == "probabilities" and mu.ndim == 2:
            return np.stack([1 - mu, mu], -1)
        return mu


def make_learner(
    estimator: SklearnEstimator | Fit, task: Task, n_jobs: int | None
) -> AbstractLearner:
    """Return the fastest learner whose fits are those of the estimator's own `fit`.

    Raises TypeError if the estimator cannot give the predictions that the loss needs, or a Fit is
    of another model, and ValueError if a Fit is of other data.
    """
    X, y, codes, measure, refit = task
    if isinstance(estimator, Fit):
        if not isinstance(estimator.objective, GLM) or estimator.objective.offset is not None:
            raise TypeError(
                f"leakage_corrected: a Fit must be of a GLM without offset; got {kind_of(estimator.objective)}. "
                "Give an estimator instead."
            )
        if estimator.objective.num_units != len(y):
            raise ValueError(
                f"leakage_corrected: the fit has {estimator.objective.num_units} units, y has {len(y)}; give its own data."
            )
        return PlanHost(estimator, refit, measure)
    if measure.classes and not is_classifier(estimator):
        raise TypeError(
            f"leakage_corrected: the loss {measure.name} needs a classifier; got {type(estimator).__name__}."
        )
    if measure.needs in ("probability", "probabilities") and not hasattr(
        estimator, "predict_proba"
    ):
        raise TypeError(
            f"leakage_corrected: the loss {measure.name} needs probabilities, which {type(estimator).__name__} has not; use "
            "loss='zero_one', or wrap it in CalibratedClassifierCV."
        )
    if measure.needs == "response" and is_classifier(estimator):
        raise TypeError(
            f"leakage_corrected: the loss {measure.name} is for regression; {type(estimator).__name__} is a classifier: use "
            "'zero_one', 'brier', 'logistic' or 'multinomial'."
        )
    # sparse columns have no batch
    if isinstance(X, ndarray) or hasattr(X, "iloc"):
        batched = _batch_learner(estimator, X, codes, measure)
        if batched is not None:
            return batched
    return Estimator(estimator, X, y, measure, n_jobs)  # y, as its fit takes labels


def finite_columns(X) -> FloatArray | None:
    """Return X as a table of finite numbers; None if it is not one."""
    try:
        data = np.ascontiguousarray(X, float)
    except (TypeError, ValueError):
        return None
    if data.ndim == 2 and np.isfinite(data).all():
        return data
    return None


def _batch_learner(
    estimator: SklearnEstimator, X, codes: NDArray, measure: Measure
) -> AbstractLearner | None:
    """Return a batched learner if the estimator and its options are supported, else None."""
    scaled = False
    model = cast(Any, estimator)
    if isinstance(estimator, Pipeline) and len(estimator.steps) == 2:
        first, last = (step for _, step in estimator.steps)
        if type(first) is StandardScaler and first.with_mean and first.with_std:
            scaled = True
            model = last
    data = finite_columns(X)
    if data is None:
        return None  # some estimators accept NaN; others raise
    if type(model) in (KNeighborsClassifier, KNeighborsRegressor):
        euclidean = model.metric == "euclidean" or (model.metric == "minkowski" and model.p == 2)
        # 2**25: largest number of sorted distances of all records
        if (
            scaled
            or not euclidean
            or model.weights != "uniform"
            or model.metric_params is not None
            or len(data) ** 2 > 2**25
        ):
            return None
        if measure.classes:
            target = np.eye(int(codes.max()) + 1)[codes.astype(int)]
        else:
            target = codes[:, None]
        return Neighbours(data, target, model.n_neighbors, measure.needs)
    if data.shape[1] > MAX_BATCHED_FEATURES:
        return None
    classes = measure.needs in ("probability", "label", "decision") and codes.max() == 1
    if type(model) is SVC:
        plain = model.kernel == "linear" and model.class_weight is None and model.max_iter == -1
        if plain and measure.needs == "label" and classes:
            return HingeFits(data, codes, 1 / model.C, True, scaled, measure.needs)
        return None
    try:
        host = describe(model)
    # an unsupported estimator, or one that must be fitted first
    except (TypeError, NotFittedError):
        return None
    if (
        host.l1
        or host.positive
        or host.choice_note
        or host.average
        or host.class_weight
        or np.ndim(host.ridge)
    ):
        return None  # no sum over rows that all folds share
    if host.loss == "squared" and not measure.classes:
        return LeastSquares(data, codes, float(host.ridge), host.intercept, scaled, measure.needs)
    if (
        classes
        and host.ridge != 0
        and (host.loss, host.intercept_scale) in (("logistic", 0), ("squared_hinge", 1))
    ):
        return MarginFits(
            data, codes, float(host.ridge), host.intercept, scaled, measure.needs, str(host.loss)
        )
    return None


def seed_estimator(estimator: SklearnEstimator, seed: int) -> SklearnEstimator:
    """Return the estimator with every `random_state` of None set, so that runs repeat."""
    free = {
        name: seed
        for name, value in estimator.get_params(deep=True).items()
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    return estimator.set_params(**free)


def take_rows(X, rows: IntArray):
    """Return rows of a frame, a matrix or an array."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
