"""Estimators of all folds, from one fit.

The host is fitted once, on all rows. For every fold it gets the parameters of that fold's refit. Transformers that learn from
rows are fitted on the training rows, and the linear model is minimised from the coefficients of the whole fit.
"""

import copy
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from .._runtime.checkpoint import StepResult, making
from .._runtime.parallel import steps
from ..interop.sklearn import describe, inner, read, rescales, with_parameters
from ..models.glm.losses import AbstractRounded
from ..models.glm.standardised import StandardisedGLM
from ..optimize.fit import Fit, anchor, fit
from ..plans.plan import Plan, RefitRows, from_splits
from ..refit import AbstractRefit
from ..validation.cross_validate import fold_thetas
from ..validation.scoring import NamedScore, natural

Splits = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
Predict = Callable[[int, Any], NDArray]  # function of a fold and its estimator, which may be None


class FoldData(NamedTuple):
    """Rows, their response, further arguments of `fit`, the weights among these, and the weights of scores."""

    X: Any
    y: NDArray
    params: dict[str, Any]
    weight: NDArray | None
    score_weight: NDArray | None = None

    def some(self, rows: NDArray[np.int64]) -> "FoldData":
        part = lambda values: _safe_indexing(values, rows)
        params = {name: part(value) for name, value in self.params.items()}
        weights = (None if each is None else each[rows] for each in (self.weight, self.score_weight))
        return FoldData(part(self.X), self.y[rows], params, *weights)


Score = Callable[[Any, FoldData], float]  # score of an estimator on some rows


class Scores(NamedTuple):
    """Score of every fold, its error against the exact refit, and the seconds that it took."""

    values: NDArray[np.float64]
    error: NDArray[np.float64]
    seconds: NDArray[np.float64]


def fit_host(estimator: Any, data: FoldData, *, anew: bool = False) -> tuple[Any, Fit]:
    """Return the host fitted to all rows, and its `Fit`.

    The host is used as it is if it is at its minimum there. Otherwise it is fitted, and θ̂ is the minimum if its solver stopped
    early. If `anew`, refits standardise the columns themselves if that is a change of their ridge.
    """
    if isinstance(describe(inner(estimator)).loss, AbstractRounded):  # raises before anything is fitted
        raise TypeError(
            f"lo.sklearn: the kinks of {type(inner(estimator)).__name__}'s loss are rounded, which scores would not tell: use "
            "lo.from_sklearn and lo.cross_validate, whose results say by how much."
        )
    try:
        check_is_fitted(estimator)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            anchor(*read(estimator, data.X, data.y, data.weight))
        host = estimator
    except (NotFittedError, ValueError, TypeError, RuntimeError, Warning):
        host = clone(estimator).fit(data.X, data.y, **data.params)
    model, theta = read(host, data.X, data.y, data.weight, scaled=anew and rescales(host))
    return host, anchor(model, theta) if model.cut else fit(model, theta)  # a host with a cut has its own solution


def is_rescaled(result: Fit) -> bool:
    """Tell whether refits standardise the columns by the rows that they see."""
    return isinstance(result.objective, StandardisedGLM) and result.predictors is not None


@dataclass(frozen=True, eq=False)
class OneFit:
    """Refits from one fit of a host.

    Folds whose training rows do not determine all parameters of the whole fit, or lack a class, have a fit of their own, unless
    transformers are frozen.
    """

    host: Any
    fit: Fit
    data: FoldData
    splits: Splits
    refit: AbstractRefit
    on_failure: Callable[[Exception], None]
    is_frozen: bool
    seconds: float

    @functools.cached_property
    def plan(self) -> Plan:
        return from_splits(self.splits, len(self.data.y))

    @functools.cached_property
    def fit_seconds(self) -> NDArray[np.float64]:
        return np.full(self.plan.num_refits, self.seconds / self.plan.num_refits)

    @functools.cached_property
    def _theta(self) -> NDArray[np.float64]:
        return fold_thetas(self.fit, self.plan, self.refit, "cross_validate")

    @functools.cached_property
    def _lost_folds(self) -> NDArray[np.int64]:
        return np.flatnonzero(~np.isfinite(self._theta).all(axis=1) & (not self.is_frozen))

    @functools.cached_property
    def _alone(self) -> "PipelineFolds":
        return PipelineFolds(self.host, self.data, [self.splits[k] for k in self._lost_folds], self.on_failure)

    @functools.cached_property
    def _parameters(self) -> dict[str, NDArray]:
        return natural(self.fit, self._theta)

    def of(self, k: int) -> Any:
        """Estimator of a fold; None if there is no refit."""
        if np.isfinite(self._theta[k]).all():
            return with_parameters(self.host, {name: values[k] for name, values in self._parameters.items()})
        (place,) = np.nonzero(self._lost_folds == k)
        return self._alone.of(place.item()) if place.size else None

    def predictions(self, predict: Predict) -> list[NDArray]:
        """Predictions of the estimator of every fold."""
        return [predict(k, self.of(k)) for k in range(len(self.splits))]

    def complete(self, scores: Scores, score: Score) -> Scores:
        """Add the scores of folds that have a fit of their own."""
        if np.isnan(scores.values).any() and self._lost_folds.size:
            (own,) = self._alone.call_scorers([score])
            for mine, others in zip(scores, own, strict=True):
                mine[self._lost_folds] = others
        return scores


class CalledScorer(NamedScore):
    """Scorer that is called on the held-out rows of every refit, with one number each."""

    title, joint, directions = "", True, 2

    def __init__(self, of: OneFit, score: Score):
        cached_folds = 32  # number of folds whose rows are kept while scorers are called
        self.fit, self.of, self.score, self.rows = of.fit, of, score, functools.lru_cache(cached_folds)(self._rows)
        self.whole = {_key(np.sort(test)) for _, test in of.splits}

    def _rows(self, held: bytes) -> FoldData:
        return self.of.data.some(np.frombuffer(held, np.int64))

    def losses(self, rows: RefitRows, theta: np.ndarray) -> NDArray[np.float64]:
        parameters, out = natural(self.of.fit, theta), np.full(len(theta), np.nan)
        for k, (index, held) in enumerate(zip(rows.index, rows.held, strict=True)):
            key = _key(index[held])
            if key not in self.whole:  # some of its rows have no determined prediction
                continue
            host = with_parameters(self.of.host, {name: values[k] for name, values in parameters.items()})
            out[k] = self.score(host, self.rows(key))
        return out


def _key(rows: NDArray) -> bytes:
    return np.ascontiguousarray(rows, np.int64).tobytes()


class PipelineFolds:
    """Host with transformers fitted on the training rows of each fold, and its linear model refitted from the whole fit.

    Results of a fold are kept.
    """

    def __init__(self, host: Any, data: FoldData, splits: Splits, failed: Callable[[Exception], None]):
        self.host, self.data, self.splits, self.failures = host, data, splits, failed
        self.fit_seconds = np.zeros(len(splits))
        self.estimators: dict[int, tuple[Any, Any, str]] = {}

    def of(self, k: int) -> Any:
        """Estimator of a fold; None if there is no refit."""
        return self._make(k)[0]

    def _make(self, k: int) -> tuple[Any, Any, str]:
        """Estimator of a fold, the estimator after one more step, and the reason if there is none."""
        if k not in self.estimators:
            began, rows = time.perf_counter(), self.data.some(self.splits[k][0])
            try:
                with making():
                    host, found = self._refit(rows)
                    decrement_rounding = 1e-9  # decrement whose half square is below rounding, so that no step is taken
                    if found is None or found.decrement < decrement_rounding:
                        self.estimators[k] = host, host, ""
                    else:
                        step = natural(found, (found.vector - found.solve(found.gradient))[None])
                        further = with_parameters(host, {name: values[0] for name, values in step.items()})
                        self.estimators[k] = host, further, ""
            except (ValueError, RuntimeError) as error:
                self.failures(error)
                self.estimators[k] = None, None, str(error)
            self.fit_seconds[k] = time.perf_counter() - began
        return self.estimators[k]

    def _refit(self, rows: FoldData) -> tuple[Any, Fit | None]:
        return refit_host(self.host, rows)

    def predictions(self, predict: Predict) -> list[NDArray]:
        """Predictions of the estimator of every fold."""
        made = (told for _, told in steps(functools.partial(self._predictions, predict), range(len(self.splits))))
        return [told["labels"].astype(object) if "labels" in told else told["values"] for told in made]

    def _predictions(self, predict: Predict, k: int) -> StepResult:
        found = np.asarray(predict(k, self.of(k)))
        return {"labels": found.astype(str)} if found.dtype == object else {"values": found}

    def call_scorers(self, scores: Sequence[Score]) -> list[Scores]:
        """Scores of every fold, by scorers called on its test rows."""
        found = np.full((len(scores), 3, len(self.splits)), np.nan)
        for k, told in steps(functools.partial(self._call_scorers, scores), range(len(self.splits))):
            found[..., k], self.fit_seconds[k] = told["scores"], told["seconds"]
            if (why := str(told["failed"])) and k not in self.estimators:
                self.failures(ValueError(why))
        return [Scores(*each) for each in found]

    def _call_scorers(self, scores: Sequence[Score], k: int) -> StepResult:
        host, further, why = self._make(k)
        rows, found = self.data.some(self.splits[k][1]), np.full((len(scores), 3), np.nan)
        for each, score in zip(found, scores if host is not None else (), strict=False):
            began = time.perf_counter()
            each[0] = score(host, rows)
            each[1] = 0.0 if further is host else abs(score(further, rows) - each[0])
            each[2] = time.perf_counter() - began
        return {"scores": found, "seconds": np.asarray(self.fit_seconds[k]), "failed": np.array(why)}


class ByHost(PipelineFolds):
    """Host that fits itself anew on the training rows of each fold."""

    def _refit(self, rows: FoldData) -> tuple[Any, Fit | None]:
        return clone(self.host).fit(rows.X, rows.y, **rows.params), None


def refit_host(host: Any, data: FoldData) -> tuple[Any, Fit | None]:
    """Return a fitted host whose learning steps are fitted on other rows."""
    new = copy.copy(host)
    if isinstance(host, Pipeline):
        name, last = host.steps[-1]
        before = clone(host[:-1]) if len(host.steps) > 1 else None
        X = data.X if before is None else before.fit_transform(data.X, data.y)
        last, found = refit_host(last, data._replace(X=X))
        new.steps = [*(() if before is None else before.steps), (name, last)]
        return new, found
    if isinstance(host, TransformedTargetRegressor):
        new.transformer_ = clone(host.transformer_).fit(data.y.reshape(-1, 1))
        y = np.ravel(new.transformer_.transform(data.y.reshape(-1, 1)))
        new.regressor_, found = refit_host(host.regressor_, data._replace(y=y))
        return new, found
    if type(host) is LinearRegression:  # a direct solution with a tolerance of its own
        return clone(host).fit(data.X, data.y, sample_weight=data.weight), None
    names, classes = getattr(host, "feature_names_in_", None), getattr(host, "classes_", None)
    same = names is None or np.array_equal(names, getattr(data.X, "columns", names))
    alike = data.X.shape[1] == host.n_features_in_ and same and (classes is None or np.isin(classes, data.y).all())
    own = host if alike else clone(host).fit(data.X, data.y, sample_weight=data.weight)
    found = fit(*read(own, data.X, data.y, data.weight))
    return with_parameters(own, found.parameters), found
