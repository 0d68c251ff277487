"""scikit-learn's `cross_validate`, `cross_val_score` and `cross_val_predict`, from one fit."""

import time
import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import check_cv
from sklearn.utils import column_or_1d, indexable

from .._runtime.checkpoint import File, keeping
from .._runtime.interrupt import stoppable
from ..data.arrays import index_of
from ..interop.sklearn import inner, learns, searches
from ..optimize.active_set import NoMinimiser
from ..optimize.hessian_factor import IndefiniteHessianError
from ..refit import AbstractRefit
from ..validation.cross_validate import DEFAULT_REFIT
from ._folds import ByHost, FoldData, OneFit, PipelineFolds, Splits, fit_host, is_rescaled
from ._scoring import ErrorScore, Scores, named_scorers, score_of, scores

Transformers = Literal["refit", "frozen"]
LEAST = float(np.finfo(np.float64).min)
ABSENT = {"predict_proba": 0.0, "predict_log_proba": LEAST, "decision_function": LEAST}  # outputs for a class that a fold lacks


def cross_validate(
    estimator: Any,
    X: Any,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: Any = "2*n_jobs",
    return_train_score: bool = False,
    return_estimator: bool = False,
    return_indices: bool = False,
    error_score: ErrorScore = np.nan,
    refit: AbstractRefit = DEFAULT_REFIT,
    transformers: Transformers = "refit",
    checkpoint: File | None = None,
) -> dict[str, Any]:
    """Cross-validate an estimator like `sklearn.model_selection.cross_validate`, from one fit.

    The estimators are those of `lo.from_sklearn`. One that is not fitted on these data is cloned and fitted once. The estimator
    of a fold is the host with the parameters of that fold's refit: those of the minimum, even if the host's own solver stops
    early. Rows are matched by position, as in scikit-learn. If one fit does not determine the refits, as for nearly repeated
    columns, the host fits every fold itself, with a warning that states the reason.

    The key "approximation_error" (for several scorers "approximation_error_<name>") has the error of each fold's score against
    the exact refit. It comes from the errors of the losses if the score is a function of their mean ("r2", "accuracy",
    "neg_log_loss", "neg_brier_score" of two classes, the mean errors), else from the changes of the score within the refit's
    error. It is an estimate; NaN, with a warning, if it is not known. Scores that are not smooth, such as those of ranks, may
    jump by more.

    Parameters
    ----------
    estimator : estimator
        Estimator, fitted or not.
    X : array-like, shape (rows, features)
        Columns.
    y : array-like, shape (rows,)
        Response or class.
    groups : array-like, shape (rows,), optional
        Group of each row, for the splitter.
    scoring : str, callable, list or dict, optional
        Scorers, as in scikit-learn.
    cv : int, splitter or iterable, optional
        Folds, as in scikit-learn.
    n_jobs : int, optional
        Taken from calls that give it; changes nothing.
    verbose : int, default: 0
        Taken from calls that give it; changes nothing.
    params : dict, optional
        Weights of rows, under the name by which `fit` takes them.
    pre_dispatch : Any, default: "2*n_jobs"
        Taken from calls that give it; changes nothing.
    return_train_score : bool, default: False
        Whether to score training rows too.
    return_estimator : bool, default: False
        Whether to return the estimator of every fold.
    return_indices : bool, default: False
        Whether to return the rows of every split.
    error_score : float or "raise", default: nan
        Score of a fold that fails.
    refit : AbstractRefit, default: Certified()
        Strategy of the folds' refits.
    transformers : {"refit", "frozen"}, default: "refit"
        Whether transformers before the linear model (scalers, selections) are fitted on the training rows of every fold, or
        stay as fitted on all rows. A StandardScaler before a model of one output with an intercept is a change of the penalty,
        so its refits come from the one fit too. "frozen" is quicker and lets test rows into training; the result says so under
        "transformers".
    checkpoint : str or path, optional
        File that keeps what is done: a call that was killed goes on from there, to the same scores.

    Returns
    -------
    dict
        Arrays with one entry a fold: "test_score" (or "test_<name>"), "approximation_error", "fit_time", "score_time" and those
        asked for. Times of what is done for all folds at once are shared between them.

    Raises
    ------
    TypeError
        On estimators that `lo.from_sklearn` does not know, and on those that choose as they are fitted, which would have to
        choose again in every fold.
    ValueError
        If labels of y, `groups` or weights stand in another order than those of X, or `checkpoint` belongs to another run.

    See Also
    --------
    cross_val_score : Test scores alone.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.linear_model import Ridge
    >>> X, y = lo.datasets.diabetes()
    >>> found = lo.sklearn.cross_validate(Ridge(alpha=0.1), X, y, cv=5)
    >>> found["test_score"].round(2)
    array([0.41, 0.52, 0.49, 0.44, 0.54])
    >>> bool((found["approximation_error"] < 1e-3).all())
    True
    """
    del n_jobs, verbose, pre_dispatch
    listed = (
        scoring.values() if isinstance(scoring, dict) else scoring if isinstance(scoring, list | tuple | set) else [scoring]
    )
    seen = return_estimator or any(map(callable, listed))
    data = with_weights("cross_validate", estimator, X, y, params, groups)
    splits = splits_of(cv, data, groups, is_classifier(estimator))
    check("cross_validate", estimator, splits, transformers)
    of = {"estimator": estimator, "data": data, "splits": splits, "refit": refit, "transformers": transformers}
    of |= {"scoring": scoring, "error_score": error_score, "returned": (return_estimator, return_train_score)}
    with stoppable("cross_validate"), keeping("cross_validate", checkpoint, of):
        folds, host = folds_of(estimator, data, splits, refit, transformers, error_score, seen)
        wanted = named_scorers(scoring, host, data.X, data.y, error_score)
        found = scores(folds, wanted, host, data.y, error_score)
        hosts = [folds.of(k) for k in range(len(splits))] if return_estimator or return_train_score else []
    result = {"fit_time": folds.fit_seconds, "score_time": np.sum([one.seconds for one in found.values()], axis=0)}
    if return_estimator:
        result["estimator"] = hosts
    if return_indices:
        result["indices"] = dict(zip(("train", "test"), zip(*splits, strict=True), strict=True))
    trained = [None if each is None else data.some(train) for each, (train, _) in zip(hosts, splits, strict=False)]
    for name, one in found.items():
        result[f"test_{name}"] = warn_of_missing(one, error_score)
        if return_train_score:
            score = score_of(wanted[name], host, error_score)
            each = [np.nan if rows is None else score(own, rows) for own, rows in zip(hosts, trained, strict=True)]
            result[f"train_{name}"] = np.array(each)
        result["approximation_error" + ("" if name == "score" else f"_{name}")] = one.error
    return result | ({"transformers": "frozen"} if transformers == "frozen" and learns(estimator) else {})


def cross_val_score(estimator: Any, X: Any, y: ArrayLike, *, scoring: Any = None, **more: Any) -> NDArray[np.float64]:
    """Test scores of `cross_validate` for one scorer, without their errors.

    Parameters
    ----------
    estimator : estimator
        Estimator, fitted or not.
    X : array-like, shape (rows, features)
        Columns.
    y : array-like, shape (rows,)
        Response or class.
    scoring : str or callable, optional
        One scorer.
    **more : Any
        Further arguments of `cross_validate`.

    Returns
    -------
    array of float, shape (folds,)
        Test scores.

    Raises
    ------
    ValueError
        If `scoring` is several scorers, or returns several scores.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.linear_model import Ridge
    >>> X, y = lo.datasets.diabetes()
    >>> lo.sklearn.cross_val_score(Ridge(alpha=0.1), X, y, cv=5).round(2)
    array([0.41, 0.52, 0.49, 0.44, 0.54])
    """
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise ValueError(f"cross_val_score: scoring must be one scorer; got {scoring!r}. cross_validate takes several.")
    found = cross_validate(estimator, X, y, scoring=scoring, **more)
    if "test_score" not in found:
        raise ValueError("cross_val_score: scoring returned several scores; cross_validate takes such a function.")
    return found["test_score"]


def cross_val_predict(
    estimator: Any,
    X: Any,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: Any = "2*n_jobs",
    method: str = "predict",
    refit: AbstractRefit = DEFAULT_REFIT,
    transformers: Transformers = "refit",
    checkpoint: File | None = None,
) -> np.ndarray:
    """Predict every row by the estimator of the fold that holds it out, from one fit.

    It returns what `sklearn.model_selection.cross_val_predict` returns.

    Parameters
    ----------
    estimator : estimator
        Estimator, fitted or not.
    X : array-like, shape (rows, features)
        Columns.
    y : array-like, shape (rows,)
        Response or class.
    groups : array-like, shape (rows,), optional
        Group of each row, for the splitter.
    cv : int, splitter or iterable, optional
        Folds, which must hold every row out once.
    n_jobs : int, optional
        Taken from calls that give it; changes nothing.
    verbose : int, default: 0
        Taken from calls that give it; changes nothing.
    params : dict, optional
        Weights of rows, under the name by which `fit` takes them.
    pre_dispatch : Any, default: "2*n_jobs"
        Taken from calls that give it; changes nothing.
    method : str, default: "predict"
        Method of the estimator that predicts, such as "predict_proba".
    refit : AbstractRefit, default: Certified()
        Strategy of the folds' refits.
    transformers : {"refit", "frozen"}, default: "refit"
        As in `cross_validate`.
    checkpoint : str or path, optional
        File that keeps what is done.

    Returns
    -------
    array, shape (rows, …)
        Predictions in the order of the rows.

    Raises
    ------
    ValueError
        If the test sets are no partition of the rows, or a fold has no refit.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.linear_model import Ridge
    >>> X, y = lo.datasets.diabetes()
    >>> lo.sklearn.cross_val_predict(Ridge(alpha=0.1), X, y, cv=5).shape
    (442,)
    """
    del n_jobs, verbose, pre_dispatch
    data = with_weights("cross_val_predict", estimator, X, y, params, groups)
    splits = splits_of(cv, data, groups, is_classifier(estimator))
    check("cross_val_predict", estimator, splits, transformers)
    tests, classes = np.concatenate([test for _, test in splits]), np.unique(data.y)
    if not np.array_equal(np.sort(tests), np.arange(len(data.y))):
        raise ValueError("cross_val_predict: the test sets of cv must hold every row once; cross_validate takes any splits.")

    def predict(k: int, host: Any) -> np.ndarray:
        if host is None:
            raise ValueError(
                f"cross_val_predict: fold {k} has no refit, as of rows that the others do not determine; penalise."
            )
        found = getattr(host, method)(data.some(splits[k][1]).X)
        if method not in ABSENT or len(own := host.classes_) == len(classes):
            return found
        advice = "To fix this, use a cross-validation technique resulting in properly stratified folds"
        if found.ndim == 1:
            raise ValueError(
                f"Only {len(own)} class/es in training fold, but {len(classes)} in overall dataset. This is not supported for "
                f"{method} with imbalanced folds. {advice}"
            )
        warnings.warn(
            f"Number of classes in training fold ({len(own)}) does not match total number of classes ({len(classes)}). Results "
            f"may not be appropriate for your use case. {advice}",
            RuntimeWarning,
            stacklevel=2,
        )
        out = np.full((len(found), len(classes)), ABSENT[method], found.dtype)
        out[:, np.searchsorted(classes, own)] = found
        return out

    of = {"estimator": estimator, "data": data, "splits": splits, "refit": refit, "transformers": transformers}
    with stoppable("cross_val_predict"), keeping("cross_val_predict", checkpoint, of | {"method": method}):
        folds, _ = folds_of(estimator, data, splits, refit, transformers, "raise")
        parts = folds.predictions(predict)
    return np.concatenate(parts)[np.argsort(tests)]


def check(caller: str, estimator: Any, splits: Splits, transformers: Transformers) -> None:
    """Raise if the estimator and splits give no folds, or the estimator chooses as it is fitted, anew in every fold."""
    if transformers not in ("refit", "frozen"):
        raise ValueError(f"{caller}: transformers must be 'refit' or 'frozen'; got {transformers!r}.")
    last = inner(estimator)
    name = type(last).__name__
    if searches(last) or name.endswith("CV"):
        raise TypeError(
            f"{caller}: {name} chooses on the rows that it is fitted on, and would have to choose again in every fold. Give "
            "the estimator with the penalty it chose, or, for the loss with the choice left out, "
            "sklearn.model_selection.cross_validate(leaveout.sklearn.OneFitSearchCV(...), X, y)."
        )
    if any(len(np.unique(test)) < len(test) for _, test in splits):
        raise ValueError(f"{caller}: a test set of cv holds a row twice; give every row once.")


def folds_of(
    estimator: Any,
    data: FoldData,
    splits: Splits,
    refit: AbstractRefit,
    transformers: Transformers,
    error_score: ErrorScore,
    visible: bool = False,
) -> tuple[OneFit | PipelineFolds, Any]:
    """Return the estimators of all folds, and the host on all rows.

    If callers may look inside estimators (`visible`), transformers that learn from rows are fitted in each; else refits change
    their penalties instead, if that is equivalent.
    """
    began = time.perf_counter()
    frozen, anew = learns(estimator) and transformers == "frozen", learns(estimator) and transformers == "refit"
    failed = lambda error: fold_failed(error, error_score)
    try:
        host, found = fit_host(estimator, data, anew=anew and not visible)
    except (IndefiniteHessianError, NoMinimiser) as error:
        if frozen:
            raise
        host = clone(estimator).fit(data.X, data.y, **data.params)
        warnings.warn(
            f"lo.sklearn: {type(inner(host)).__name__} is fitted anew in each of {len(splits)} folds, by itself, as one fit "
            f"does not tell its refits: {error}",
            stacklevel=3,
        )
        return ByHost(host, data, splits, failed), host
    if anew and not is_rescaled(found):
        return PipelineFolds(host, data, splits, failed), host
    return OneFit(host, found, data, splits, refit, failed, frozen, time.perf_counter() - began), host


def splits_of(cv: Any, data: FoldData, groups: ArrayLike | None, classifier: bool) -> Splits:
    """Return the rows of every split as numbers, also if a splitter gives booleans."""
    numbers = lambda part: np.flatnonzero(part) if part.dtype == bool else part
    pairs = check_cv(cv, data.y, classifier=classifier).split(data.X, data.y, groups)
    return [(numbers(np.asarray(train)), numbers(np.asarray(test))) for train, test in pairs]


def with_weights(
    caller: str, estimator: Any, X: Any, y: ArrayLike, params: dict[str, Any] | None, groups: ArrayLike | None
) -> FoldData:
    """Read data by position, with the weights for `fit`; raise if labels contradict the positions."""
    params, of_x = dict(params or {}), index_of(X)
    for name, value in {"y": y, "groups": groups, **params}.items():
        own = index_of(value)
        if of_x is not None and own is not None and not of_x.equals(own) and set(of_x) == set(own):
            raise ValueError(
                f"{caller}: {name} has the labels of X in another order; scikit-learn takes rows by position. Give "
                f"{name}.loc[X.index], or {name}.to_numpy() if the rows do belong together as they stand."
            )
    steps: list[str] = []
    last = estimator
    while hasattr(last, "steps"):
        steps, last = [*steps, last.steps[-1][0]], last.steps[-1][1]
    weights = "__".join([*steps, "sample_weight"])
    unknown = set(params) - {weights}
    if unknown:
        raise TypeError(f"{caller}: of params only {weights!r} is known; got {', '.join(sorted(unknown))}.")
    X = X if hasattr(X, "shape") else np.asarray(X)
    X, target, given = indexable(X, column_or_1d(y, warn=True), params.get(weights))
    weight = None if given is None else np.asarray(given, np.float64)
    if weight is not None and is_classifier(estimator):
        lost = np.setdiff1d(target, target[weight > 0])
        if lost.size:
            raise ValueError(
                f"{caller}: all rows of the class {lost.tolist()[0]!r} have sample_weight 0; leave them out of X and y."
            )
    return FoldData(X, target, {} if weight is None else {weights: weight}, weight)


def fold_failed(error: Exception, error_score: ErrorScore) -> None:
    if error_score == "raise":
        raise error
    warnings.warn(f"cross_validate: the fit of a fold failed: {error}", FitFailedWarning, stacklevel=2)


def warn_of_missing(result: Scores, error_score: ErrorScore) -> NDArray[np.float64]:
    """Return scores, with a warning about those that are missing or have no known error."""
    missing, unknown = np.isnan(result.values), np.isfinite(result.values) & ~np.isfinite(result.error)
    result.error[~np.isfinite(result.error)] = np.nan
    if missing.any():
        said = f"{missing.sum()} of {len(missing)} folds have no refit, or a score that is not defined on their rows"
        if error_score == "raise":
            raise ValueError(f"cross_validate: {said}.")
        warnings.warn(f"cross_validate: {said}: it is set to {error_score}.", FitFailedWarning, stacklevel=3)
    if unknown.any():
        warnings.warn(
            f"cross_validate: of {unknown.sum()} of {len(unknown)} folds it is not known how far the score is from the exact "
            "refit's; their approximation_error is NaN. refit=lo.Exact() iterates to the end.",
            stacklevel=3,
        )
    return np.where(missing, np.nan if error_score == "raise" else error_score, result.values)
