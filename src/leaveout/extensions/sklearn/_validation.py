"""scikit-learn's `cross_validate`, `cross_val_score` and `cross_val_predict`, from one fit where
that is possible and pays.
"""

import functools
import time
import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn import model_selection
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.model_selection import check_cv
from sklearn.utils import column_or_1d, indexable

from ...developer import (
    AbstractRefit,
    File,
    FloatArray,
    IntArray,
    NamedValues,
    NoMinimiser,
    StepResult,
    conventional,
    index_of,
    keeping,
    making,
    steps,
    stoppable,
    strategy_of,
    strategy_of_predictions,
    warn,
)
from ...validation import IndefiniteHessianError
from ..hosts.sklearn import learns
from ._folds import FoldData, HostFolds, OneFit, Splits, fit_host, is_rescaled
from ._route import Request, checked_once, reason_for_host, tell, weights_name
from ._scoring import ErrorScore, Scores, named_scorers, prediction_errors, score_of, scores

Transformers = Literal["refit", "frozen"]
LEAST = float(np.finfo(np.float64).min)
# outputs for a class that a fold lacks
ABSENT = {"predict_proba": 0.0, "predict_log_proba": LEAST, "decision_function": LEAST}


@conventional
def cross_validate(
    estimator: Any,
    X: Any,
    y: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: NamedValues | None = None,
    pre_dispatch: Any = "2*n_jobs",
    return_train_score: bool = False,
    return_estimator: bool = False,
    return_indices: bool = False,
    error_score: ErrorScore = np.nan,
    strategy: AbstractRefit | None = None,
    transformers: Transformers = "refit",
    checkpoint: File | None = None,
) -> NamedValues:
    """Cross-validate any estimator like `sklearn.model_selection.cross_validate`, from one fit
    where that is possible and pays.

    Folds come from one fit for the estimators of `lo.from_sklearn`, if that is cheaper than the
    host's own refits: from ten folds on of small tables, and in leave-one-out. The estimator is
    then fitted once, and that of a fold is the host with the parameters of that fold's refit: those
    of the minimum. Otherwise the host refits the folds, by scikit-learn's function with these
    arguments: where no refits are known from one fit, transformers learn from the rows of each
    fold, its solver stops before the minimum, a scorer has to be called (as your own function), or
    its fits cost less. The key "refits" says which way and why; so does the logger "leaveout". A
    `strategy` asks for one fit wherever there is one. Rows are matched by position, as in
    scikit-learn.

    The key "approximation_error" (for several scorers "approximation_error_<name>") has the error
    of each fold's score against the exact refit. It comes from the errors of the held-out losses or
    predictions for the names of scikit-learn's scores of rows, ranks and tables of classes, else
    from the changes of the score within the refit's error. It is an estimate; NaN, with a warning,
    if it is not known. Of the host's own refits it is zero. An estimator that fits each class
    against the rest, or each of several targets, has one fit of each.

    Parameters
    ----------
    estimator : estimator
        Estimator, fitted or not.
    X : array-like, shape (rows, features)
        Columns.
    y : array-like, shape (rows,), optional
        Response or class; several columns, or none, for a host that takes these.
    groups : array-like, shape (rows,), optional
        Group of each row, for the splitter.
    scoring : str, callable, list or dict, optional
        Scorers, as in scikit-learn.
    cv : int, splitter or iterable, optional
        Folds, as in scikit-learn.
    n_jobs : int, optional
        Number of processes of joblib for the host's refits.
    verbose : int, default: 0
        As in scikit-learn, for the host's refits.
    params : dict, optional
        Arguments of `fit`, such as the weights of rows under the name by which `fit` takes them.
    pre_dispatch : Any, default: "2*n_jobs"
        As in scikit-learn, for the host's refits.
    return_train_score : bool, default: False
        Whether to score training rows too.
    return_estimator : bool, default: False
        Whether to return the estimator of every fold.
    return_indices : bool, default: False
        Whether to return the rows of every split.
    error_score : float or "raise", default: nan
        Score of a fold that fails.
    strategy : AbstractRefit, optional
        Strategy of the folds' refits. By default `lo.Certified()`, if one fit is cheaper.
    transformers : {"refit", "frozen"}, default: "refit"
        Whether transformers before the linear model (scalers, selections) are fitted on the
        training rows of every fold, or stay as fitted on all rows. A StandardScaler before a model
        with an intercept is a change of the penalty, so its refits can come from the one fit too.
        "frozen" is quicker and lets test rows into training; the result says so under
        "transformers".
    checkpoint : str or path, optional
        File that keeps what is done: a call that was killed goes on from there, to the same scores.

    Returns
    -------
    dict
        Arrays with one entry a fold: "test_score" (or "test_<name>"), "approximation_error",
        "fit_time", "score_time" and those asked for; "refits", which way the folds were refitted.
        Times of what is done for all folds at once are shared between them.

    Raises
    ------
    TypeError
        If `transformers` are to stay frozen before an estimator that has no refits from one fit.
    ValueError
        If labels of y, `groups` or weights stand in another order than those of X, or `checkpoint`
        belongs to another run.

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
    >>> found["refits"]
    'by the host: its 5 fits of 442 x 10 cost less than one fit that gives them all'
    >>> lo.sklearn.cross_validate(Ridge(alpha=0.1), X, y, cv=20)["refits"]
    'from one fit'
    """
    check("cross_validate", X, y, params, groups, transformers)
    listed = [scoring]
    if isinstance(scoring, dict):
        listed = list(scoring.values())
    elif isinstance(scoring, list | tuple | set):
        listed = list(scoring)
    visible = return_estimator or any(map(callable, listed))
    cv = check_cv(cv, y, classifier=is_classifier(estimator))
    count = cv.get_n_splits(X, y, groups)
    is_frozen = transformers == "frozen"
    why = reason_for_host(
        estimator,
        Request(X, y, params or {}, listed, count, strategy is not None, is_frozen, visible),
    )
    inputs = {
        "estimator": estimator,
        "data": (X, y, params),
        "refit": strategy,
        "transformers": transformers,
        "scoring": scoring,
        "error_score": error_score,
        "returned": (return_estimator, return_train_score),
    }
    with stoppable("cross_validate"):
        if not why:
            data = with_weights("cross_validate", estimator, X, y, params)
            cv = splits_of(cv, data, groups)
            with keeping("cross_validate", checkpoint, inputs | {"splits": cv}):
                try:
                    folds, host = folds_of(
                        estimator, data, cv, strategy, transformers, error_score, visible
                    )
                    scorers = named_scorers(scoring, host, data.X, data.y, error_score)
                    scores_by_name = scores(folds, scorers, host, data.y, error_score)
                    hosts = []
                    if return_estimator or return_train_score:
                        hosts = [folds.estimator(k) for k in range(len(cv))]
                except NoOneFit as error:
                    why = str(error)
        message = tell("cross_validate", why)
        if why:
            ready = {
                "scoring": scoring,
                "return_train_score": return_train_score,
                "error_score": error_score,
                "params": params,
                "return_estimator": return_estimator,
                "return_indices": return_indices,
            }
            with checked_once(estimator, listed):
                if checkpoint is None:
                    theirs = model_selection.cross_validate(
                        estimator,
                        X,
                        y,
                        cv=cv,
                        groups=groups,
                        n_jobs=n_jobs,
                        verbose=verbose,
                        pre_dispatch=pre_dispatch,
                        **ready,
                    )
                else:
                    splits = cv
                    if hasattr(cv, "split"):
                        splits = list(cv.split(X, y, groups))
                    with keeping("cross_validate", checkpoint, inputs | {"splits": splits}):
                        theirs = host_scores(estimator, X, y, splits, **ready)
            return theirs | errors_of_host(theirs) | {"refits": message}
    splits = cv
    result = {
        "fit_time": folds.fit_seconds,
        "score_time": np.sum([fold_scores.seconds for fold_scores in scores_by_name.values()], 0),
    }
    if return_estimator:
        result["estimator"] = hosts
    if return_indices:
        result["indices"] = _indices(splits)
    for name, fold_scores in scores_by_name.items():
        result[f"test_{name}"] = warn_of_missing(fold_scores, error_score)
        if return_train_score:
            score = score_of(scorers[name], host, error_score)
            result[f"train_{name}"] = np.array(
                [
                    np.nan if fold_host is None else score(fold_host, data.take(train))
                    for fold_host, (train, _) in zip(hosts, splits, strict=True)
                ]
            )
        result[_error_name(name)] = fold_scores.error
    if is_frozen and learns(estimator):
        result["transformers"] = "frozen"
    return result | {"refits": message}


def host_scores(estimator, X, y, splits: Splits, **arguments) -> NamedValues:
    """Compute scikit-learn's result fold by fold, so that each fold is kept in the checkpoint.

    Estimators are fitted again.
    """
    overrides = {"return_estimator": False, "return_indices": False}

    def fold(k: int) -> StepResult:
        try:
            fold_result = model_selection.cross_validate(
                estimator, X, y, cv=[splits[k]], **arguments | overrides
            )
        except ValueError as error:  # with one fold, it raises if this one fails
            if arguments["error_score"] == "raise" or "fits failed" not in str(error):
                raise
            return {"failure": np.array(str(error))}
        return {name: np.asarray(values) for name, values in fold_result.items()}

    parts = [fold_result for _, fold_result in steps(fold, range(len(splits)))]
    for k, part in enumerate(parts):
        if "failure" in part:
            warn(f"cross_validate: the fit of fold {k} failed: {part['failure']}", FitFailedWarning)
    names = next((part for part in parts if "failure" not in part), None)
    if names is None:
        raise ValueError(f"cross_validate: all {len(splits)} fits failed.")
    result: NamedValues = {
        name: np.concatenate([part.get(name, [arguments["error_score"]]) for part in parts]).astype(
            float
        )
        for name in names
    }
    if arguments.get("return_estimator"):
        options = {name: arguments[name] for name in ("params", "error_score", "scoring")} | {
            "return_estimator": True
        }
        result["estimator"] = model_selection.cross_validate(estimator, X, y, cv=splits, **options)[
            "estimator"
        ]
    if arguments.get("return_indices"):
        result["indices"] = _indices(splits)
    return result


def _indices(splits: Splits) -> dict[str, tuple[IntArray, ...]]:
    """Return the rows that the folds are trained and tested on."""
    return dict(zip(("train", "test"), zip(*splits, strict=True), strict=True))


def _error_name(scorer: str) -> str:
    return "approximation_error" if scorer == "score" else f"approximation_error_{scorer}"


def errors_of_host(result: NamedValues) -> dict[str, FloatArray]:
    """Return errors of zero for the scores of the host's own refits.

    Of a fold without a score it is not known.
    """
    return {
        _error_name(name.removeprefix("test_")): np.where(
            np.isnan(np.asarray(values, float)), np.nan, 0.0
        )
        for name, values in result.items()
        if name.startswith("test_")
    }


def cross_val_score(
    estimator: Any, X: Any, y: ArrayLike | None = None, *, scoring: Any = None, **options: Any
) -> FloatArray:
    """Test scores of `cross_validate` for one scorer, without their errors.

    Parameters
    ----------
    estimator : estimator
        Estimator, fitted or not.
    X : array-like, shape (rows, features)
        Columns.
    y : array-like, shape (rows,), optional
        Response or class; several columns, or none, for a host that takes these.
    scoring : str or callable, optional
        One scorer.
    **options : Any
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
        raise ValueError(
            f"cross_val_score: scoring must be one scorer; got {scoring!r}. cross_validate takes several."
        )
    result = cross_validate(estimator, X, y, scoring=scoring, **options)
    if "test_score" not in result:
        raise ValueError(
            "cross_val_score: scoring returned several scores; cross_validate takes such a function."
        )
    return result["test_score"]


@conventional
def cross_val_predict(
    estimator: Any,
    X: Any,
    y: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: NamedValues | None = None,
    pre_dispatch: Any = "2*n_jobs",
    method: str = "predict",
    strategy: AbstractRefit | None = None,
    transformers: Transformers = "refit",
    checkpoint: File | None = None,
    error: bool = False,
) -> Any:
    """Predict every row by the estimator of the fold that holds it out, from one fit where that is
    possible and pays.

    It returns what `sklearn.model_selection.cross_val_predict` returns. Which way the folds are
    refitted is decided as in `cross_validate`, and the logger "leaveout" says it.

    Parameters
    ----------
    estimator : estimator
        Estimator, fitted or not.
    X : array-like, shape (rows, features)
        Columns.
    y : array-like, shape (rows,), optional
        Response or class; several columns, or none, for a host that takes these.
    groups : array-like, shape (rows,), optional
        Group of each row, for the splitter.
    cv : int, splitter or iterable, optional
        Folds, which must hold every row out once.
    n_jobs : int, optional
        Number of processes of joblib for the host's refits.
    verbose : int, default: 0
        As in scikit-learn, for the host's refits.
    params : dict, optional
        Arguments of `fit`, such as the weights of rows under the name by which `fit` takes them.
    pre_dispatch : Any, default: "2*n_jobs"
        As in scikit-learn, for the host's refits.
    method : str, default: "predict"
        Method of the estimator that predicts, such as "predict_proba".
    strategy : AbstractRefit, optional
        Strategy of the folds' refits. By default `lo.Certified()`, if one fit is cheaper.
    transformers : {"refit", "frozen"}, default: "refit"
        As in `cross_validate`.
    checkpoint : str or path, optional
        File that keeps what is done.
    error : bool, default: False
        Whether to return, beside the predictions, the largest difference of each number from that
        of an exact refit, which is estimated, as in `lo.cross_predict`: infinite where the
        `strategy` does not tell it, as `lo.NewtonStep()`. Of the host's own refits it is zero.
        Labels have none.

    Returns
    -------
    array, shape (rows, …), or a pair of these
        Predictions in the order of the rows. With `error`, predictions and their errors.

    Raises
    ------
    ValueError
        If the test sets are no partition of the rows, a fold has no refit, or errors of labels are
        asked for.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.linear_model import Ridge
    >>> X, y = lo.datasets.diabetes()
    >>> lo.sklearn.cross_val_predict(Ridge(alpha=0.1), X, y, cv=5).shape
    (442,)
    """
    check("cross_val_predict", X, y, params, groups, transformers)
    if error and method == "predict" and is_classifier(estimator):
        raise ValueError(
            "cross_val_predict: labels have no error; predictions of method='predict_proba' have."
        )
    cv = check_cv(cv, y, classifier=is_classifier(estimator))
    request = Request(
        X,
        y,
        params or {},
        [],
        cv.get_n_splits(X, y, groups),
        strategy is not None,
        transformers == "frozen",
    )
    why = reason_for_host(estimator, request)
    if why and checkpoint is None:
        tell("cross_val_predict", why)
        with stoppable("cross_val_predict"), checked_once(estimator, []):
            predicted = model_selection.cross_val_predict(
                estimator,
                X,
                y,
                cv=cv,
                groups=groups,
                params=params,
                method=method,
                n_jobs=n_jobs,
                verbose=verbose,
                pre_dispatch=pre_dispatch,
            )
        if error:
            return predicted, np.zeros(predicted.shape)
        return predicted
    data = with_weights("cross_val_predict", estimator, X, y, params)
    splits = splits_of(cv, data, groups)
    tests = np.concatenate([test for _, test in splits])
    classes = np.unique(data.y)
    if not np.array_equal(np.sort(tests), np.arange(len(data.y))):
        raise ValueError(
            "cross_val_predict: the test sets of cv must hold every row once; cross_validate takes any splits."
        )

    def predict(k: int, host) -> np.ndarray:
        if host is None:
            raise ValueError(
                f"cross_val_predict: fold {k} has no refit, as of rows that the others do not determine; penalise."
            )
        output = getattr(host, method)(data.take(splits[k][1]).X)
        if method not in ABSENT or len(fold_classes := host.classes_) == len(classes):
            return output
        advice = (
            "To fix this, use a cross-validation technique resulting in properly stratified folds"
        )
        if output.ndim == 1:
            raise ValueError(
                f"Only {len(fold_classes)} class/es in training fold, but {len(classes)} in overall dataset. This is not "
                f"supported for {method} with imbalanced folds. {advice}"
            )
        warn(
            f"Number of classes in training fold ({len(fold_classes)}) does not match total number of classes "
            f"({len(classes)}). Results may not be appropriate for your use case. {advice}",
            RuntimeWarning,
        )
        out = np.full((len(output), len(classes)), ABSENT[method], output.dtype)
        out[:, np.searchsorted(classes, fold_classes)] = output
        return out

    inputs = {
        "estimator": estimator,
        "data": data,
        "splits": splits,
        "refit": strategy,
        "transformers": transformers,
        "method": method,
    }
    with stoppable("cross_val_predict"), keeping("cross_val_predict", checkpoint, inputs):
        folds: OneFit | HostFolds = HostFolds(
            estimator, data, splits, functools.partial(fold_failed, error_score="raise")
        )
        try:
            if not why:
                folds, _ = folds_of(estimator, data, splits, strategy, transformers, "raise")
        except NoOneFit as reason:
            why = str(reason)
        if isinstance(folds, OneFit):
            folds = replace(
                folds, refit=strategy_of_predictions(folds.fits[0], folds.plan, folds.refit)
            )
        tell("cross_val_predict", why)
        predicted = np.concatenate(folds.predictions(predict))[np.argsort(tests)]
        errors = np.zeros(predicted.shape)
        if error and isinstance(folds, OneFit) and folds.exists.any():
            errors += prediction_errors(folds, predicted, method)
    return (predicted, errors) if error else predicted


def check(
    caller: str,
    X,
    y,
    params: NamedValues | None,
    groups,
    transformers: Transformers,
) -> None:
    """Raise if labels contradict the positions of rows, by which scikit-learn takes them, or an
    option is none.
    """
    if transformers not in ("refit", "frozen"):
        raise ValueError(
            f"{caller}: transformers must be 'refit' or 'frozen'; got {transformers!r}."
        )
    first = ""
    names = None
    for name, value in {"X": X, "y": y, "groups": groups, **(params or {})}.items():
        labels = index_of(value)
        if names is None:
            first = name
            names = labels
        elif labels is not None and not names.equals(labels) and set(names) == set(labels):
            raise ValueError(
                f"{caller}: {name} has the labels of {first} in another order; scikit-learn takes rows by position. Give "
                f"{name}.loc[{first}.index], or {name}.to_numpy() if the rows do belong together as they stand."
            )


class NoOneFit(ValueError):
    """One fit does not give the refits of all folds."""


def folds_of(
    estimator,
    data: FoldData,
    splits: Splits,
    refit: AbstractRefit | None,
    transformers: Transformers,
    error_score: ErrorScore,
    visible: bool = False,
) -> tuple[OneFit, Any]:
    """Return the estimators of all folds from one fit, and the host on all rows. Raises NoOneFit if
    there are none.

    A StandardScaler that callers do not see inside estimators (`visible`) is a change of the
    refits' penalties.
    """
    began = time.perf_counter()
    strategy = strategy_of("cross_validate", refit)
    frozen = learns(estimator) and transformers == "frozen"
    rescaled = learns(estimator) and transformers == "refit"
    failed = lambda error: fold_failed(error, error_score)
    with warnings.catch_warnings(record=True, action="always") as seen:
        try:
            with making():  # a fit that does not serve leaves no step
                host, fits = fit_host(estimator, data, rescaled=rescaled and not visible)
            folds = OneFit(host, fits, data, splits, strategy, failed, frozen, 0.0)
            if any(
                len(np.unique(test)) < len(test) for _, test in splits
            ) or folds.plan.num_refits != len(splits):
                raise ValueError("a test set holds a row twice")
        except (IndefiniteHessianError, NoMinimiser, ValueError, TypeError) as error:
            if frozen:
                raise
            raise NoOneFit(f"one fit does not tell its refits ({error})") from error
    early = any(issubclass(warning.category, ConvergenceWarning) for warning in seen)
    if refit is None and early and not frozen:
        raise NoOneFit("its solver stops before the minimum")
    for warning in seen:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    # the fitted host tells whether its components are approximate
    if learns(host) and not frozen and not is_rescaled(*fits):
        raise NoOneFit("transformers learn from the rows of each fold")
    return replace(folds, seconds=time.perf_counter() - began), host


def splits_of(cv, data: FoldData, groups: ArrayLike | None) -> Splits:
    """Return the rows of every split as numbers, also if a splitter gives booleans."""
    numbers = lambda part: np.flatnonzero(part) if part.dtype == bool else part
    return [
        (numbers(np.asarray(train)), numbers(np.asarray(test)))
        for train, test in cv.split(data.X, data.y, groups)
    ]


def with_weights(caller: str, estimator, X, y, params: NamedValues | None) -> FoldData:
    """Read data by position, with the weights for `fit`."""
    params = dict(params or {})
    weights = weights_name(estimator)
    unknown = set(params) - {weights}
    if unknown:
        raise TypeError(
            f"{caller}: of params only {weights!r} is known; got {', '.join(sorted(unknown))}."
        )
    if not hasattr(X, "shape"):
        X = np.asarray(X)
    X, target, raw_weight = indexable(
        X,
        y if np.ndim(y) > 1 and np.shape(y)[1] > 1 else column_or_1d(y, warn=True),
        params.get(weights),
    )
    if raw_weight is None:
        return FoldData(X, target, {}, None)
    weight = np.asarray(raw_weight, float)
    if is_classifier(estimator):
        weightless = np.setdiff1d(target, target[weight > 0])
        if weightless.size:
            raise ValueError(
                f"{caller}: all rows of the class {weightless.tolist()[0]!r} have sample_weight 0; leave them out of X and y."
            )
    return FoldData(X, target, {weights: weight}, weight)


def fold_failed(error: Exception, error_score: ErrorScore) -> None:
    if error_score == "raise":
        raise error
    warn(f"cross_validate: the fit of a fold failed: {error}", FitFailedWarning)


def warn_of_missing(result: Scores, error_score: ErrorScore) -> FloatArray:
    """Return scores, with a warning about those that are missing or have no known error."""
    missing = np.isnan(result.values)
    unknown = np.isfinite(result.values) & ~np.isfinite(result.error)
    result.error[~np.isfinite(result.error)] = np.nan
    if missing.any():
        message = f"{missing.sum()} of {len(missing)} folds have no refit, or a score that is not defined on their rows"
        if error_score == "raise":
            raise ValueError(f"cross_validate: {message}.")
        warn(f"cross_validate: {message}: it is set to {error_score}.", FitFailedWarning)
    if unknown.any():
        warn(
            f"cross_validate: of {unknown.sum()} of {len(unknown)} folds it is not known how far the score is from the exact "
            "refit's; their approximation_error is NaN. strategy=lo.Exact() iterates to the end."
        )
    return np.where(missing, np.nan if error_score == "raise" else error_score, result.values)
