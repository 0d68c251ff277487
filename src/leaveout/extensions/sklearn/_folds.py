"""Estimators of all folds, from one fit.

The host is fitted once, on all rows. For every fold it gets the parameters of that fold's refit. A
fold that the whole fit does not determine is fitted by the host.
"""

import warnings
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted

from ... import Fit, Plan, anchor, fit, from_splits
from ...developer import (
    AbstractRefit,
    BoolArray,
    FloatArray,
    IntArray,
    NamedScore,
    NamedValues,
    RefitRows,
    StepResult,
    fold_thetas,
    making,
    natural,
    reader_of,
    record,
    steps,
)
from ..hosts._standardised import StandardisedGLM
from ..hosts.sklearn import read, rescales, separate_problems, warn_of_supervised, with_parameters

Splits = list[tuple[IntArray, IntArray]]
Predict = Callable[[int, Any], NDArray]  # function of a fold and its estimator, which may be None


class FoldData(NamedTuple):
    """Rows, their response, further arguments of `fit`, the weights among these, and the weights of
    scores.
    """

    X: Any
    y: NDArray
    params: NamedValues
    weight: NDArray | None
    score_weight: NDArray | None = None

    def take(self, rows: IntArray) -> "FoldData":
        part = lambda values: _safe_indexing(values, rows)
        params = {name: part(value) for name, value in self.params.items()}
        weights = (
            None if vector is None else vector[rows] for vector in (self.weight, self.score_weight)
        )
        return FoldData(part(self.X), self.y[rows], params, *weights)


Score = Callable[[Any, FoldData], float]  # score of an estimator on some rows


class Scores(NamedTuple):
    """Score of every fold, its error against the exact refit, and the seconds that it took."""

    values: FloatArray
    error: FloatArray
    seconds: FloatArray


def fit_host(estimator, data: FoldData, *, rescaled: bool) -> tuple[Any, tuple[Fit, ...]]:
    """Return the host fitted to all rows, and the `Fit` of each problem that it solves: most have
    one.

    The host is used as it is if it is at its minimum there. Otherwise it is fitted, and θ̂ is the
    minimum if its solver stopped early. If `rescaled`, refits standardise the columns themselves if
    that is a change of their ridge.
    """
    try:
        check_is_fitted(estimator)
        with warnings.catch_warnings(action="error"):
            for problem, y in separate_problems(estimator, data.y):
                anchor(*read(problem, data.X, y, data.weight))
        host = estimator
    except (NotFittedError, ValueError, TypeError, RuntimeError, Warning):
        host = clone(estimator).fit(data.X, data.y, **data.params)
    fits = []
    for problem, y in separate_problems(host, data.y):
        model, theta = read(problem, data.X, y, data.weight, scaled=rescaled and rescales(problem))
        # a host with a cut has its own solution
        fits.append(anchor(model, theta) if model.cut else fit(model, theta))
    warn_of_supervised("lo.sklearn", reader_of(fits[0]))
    return host, tuple(fits)


def is_rescaled(*fits: Fit) -> bool:
    """Tell whether refits standardise the columns by the rows that they see."""
    return all(
        isinstance(problem_fit.objective, StandardisedGLM)
        and problem_fit.quadratic.predictors is not None
        for problem_fit in fits
    )


@record
class OneFit:
    """Refits from one fit of a host, which may solve several problems: a class against the rest
    each, or a target each.

    Folds whose training rows do not determine all parameters of the whole fit, or lack a class,
    have a fit of their own, unless transformers are frozen.
    """

    host: Any
    fits: tuple[Fit, ...]
    data: FoldData
    splits: Splits
    refit: AbstractRefit
    on_failure: Callable[[Exception], None]
    is_frozen: bool
    seconds: float

    @cached_property
    def plan(self) -> Plan:
        return from_splits(self.splits, len(self.data.y))

    @cached_property
    def fit_seconds(self) -> FloatArray:
        return np.full(self.plan.num_refits, self.seconds / self.plan.num_refits)

    @cached_property
    def _theta(self) -> list[FloatArray]:
        return [
            fold_thetas(problem_fit, self.plan, self.refit, "cross_validate")
            for problem_fit in self.fits
        ]

    @cached_property
    def lacking(self) -> set[int]:
        """Folds whose training rows lack a class, of which the host has no problem then."""
        if len(self.fits) == 1 or not is_classifier(self.host):
            return set()
        count = len(self.host.classes_)
        return {
            k
            for k, (train, _) in enumerate(self.splits)
            if len(np.unique(self.data.y[train])) < count
        }

    @cached_property
    def exists(self) -> BoolArray:
        """Mark the folds that have the refits of all problems."""
        determined = np.all([np.isfinite(theta).all(1) for theta in self._theta], 0)
        return determined & ~np.isin(np.arange(len(determined)), list(self.lacking))

    @cached_property
    def _lost_folds(self) -> IntArray:
        return np.flatnonzero(~self.exists & (not self.is_frozen))

    @cached_property
    def _host_folds(self) -> "HostFolds":
        return HostFolds(self.host, self.data, self.splits, self.on_failure)

    @cached_property
    def _parameters(self) -> dict[str, NDArray]:
        problems = [natural(*pair) for pair in zip(self.fits, self._theta, strict=True)]
        if len(problems) == 1:
            return problems[0]
        return {name: np.stack([problem[name] for problem in problems], 1) for name in problems[0]}

    def estimator(self, k: int):
        """Estimator of a fold; None if there is no refit."""
        if self.exists[k]:
            return with_parameters(
                self.host, {name: values[k] for name, values in self._parameters.items()}
            )
        if k in self._lost_folds:
            return self._host_folds.estimator(k)
        return None

    def predictions(self, predict: Predict) -> list[NDArray]:
        """Predictions of the estimator of every fold."""
        return [predict(k, self.estimator(k)) for k in range(len(self.splits))]

    def complete(self, scores: Scores, score: Score) -> Scores:
        """Add the scores of folds that have a fit of their own."""

        def host_score(k: int) -> StepResult:
            host = self._host_folds.estimator(k)
            value = np.nan
            if host is not None:
                value = score(host, self.data.take(self.splits[k][1]))
            return {"value": np.asarray(value), "failed": np.asarray(host is None)}

        if np.isnan(scores.values).any():
            for k, outcome in steps(host_score, self._lost_folds):
                # read from a checkpoint
                if outcome["failed"] and k not in self._host_folds.estimators:
                    self.on_failure(ValueError("its fit failed in the run before"))
                scores.values[k] = outcome["value"]
                scores.error[k] = np.where(outcome["failed"], np.nan, 0.0)
        return scores


class CalledScorer(NamedScore):
    """Scorer that is called on the held-out rows of every refit, with one number each."""

    title = ""
    joint = True
    directions = 2

    def __init__(self, folds: OneFit, score: Score):
        cached_folds = 32  # number of folds whose rows are kept while scorers are called
        self.fit = folds.fits[0]
        self.folds = folds
        self.score = score
        self.rows = lru_cache(cached_folds)(self._rows)
        self.test_keys = {_key(np.sort(test)) for _, test in folds.splits}

    def _rows(self, held: bytes) -> FoldData:
        return self.folds.data.take(np.frombuffer(held, np.int64))

    def losses(self, rows: RefitRows, theta: np.ndarray) -> FloatArray:
        parameters = natural(self.fit, theta)
        out = np.full(len(theta), np.nan)
        for k, (index, held) in enumerate(zip(rows.index, rows.held, strict=True)):
            key = _key(index[held])
            if key not in self.test_keys:  # some of its rows have no determined prediction
                continue
            host = with_parameters(
                self.folds.host, {name: values[k] for name, values in parameters.items()}
            )
            out[k] = self.score(host, self.rows(key))
        return out


def _key(rows: NDArray) -> bytes:
    return np.ascontiguousarray(rows, int).tobytes()


class HostFolds:
    """Host that is fitted anew on the training rows of each fold; fitted hosts are kept."""

    def __init__(self, host, data: FoldData, splits: Splits, failed: Callable[[Exception], None]):
        self.host = host
        self.data = data
        self.splits = splits
        self.failed = failed
        self.estimators: dict[int, Any] = {}

    def estimator(self, k: int):
        """Estimator of a fold; None if its fit fails."""
        if k not in self.estimators:
            rows = self.data.take(self.splits[k][0])
            self.estimators[k] = None
            try:
                with making():
                    self.estimators[k] = clone(self.host).fit(rows.X, rows.y, **rows.params)
            except (ValueError, RuntimeError) as error:
                self.failed(error)
        return self.estimators[k]

    def predictions(self, predict: Predict) -> list[NDArray]:
        """Predictions of the estimator of every fold."""
        results = (
            result
            for _, result in steps(partial(self._predictions, predict), range(len(self.splits)))
        )
        return [
            result["labels"].astype(object) if "labels" in result else result["values"]
            for result in results
        ]

    def _predictions(self, predict: Predict, k: int) -> StepResult:
        predicted = np.asarray(predict(k, self.estimator(k)))
        if predicted.dtype == object:
            return {"labels": predicted.astype(str)}
        return {"values": predicted}
