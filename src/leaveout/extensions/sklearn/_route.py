"""Which way folds are refitted: from one fit, or by the host.

The host refits what has no one fit, what would differ from its own refits, and what it refits
sooner. A Newton step of ours costs rows × columns², a fit of the host's a few tens of passes of
rows × columns: one fit pays from a number of folds on that grows with the columns. Operations are
estimated, never timed.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing
from sklearn.utils.metadata_routing import _routing_enabled

from ... import losses
from ..hosts.sklearn import (
    READERS,
    SEVERAL_TARGETS,
    describe,
    inner,
    learns,
    rescales,
    searches,
    takes_classes_apart,
    transformers_of,
    usual_score,
)
from ._scoring import table_measure

FEWEST_FOLDS = 10  # folds from which one fit is cheaper than the host's, as measured at ten sizes
# entries that stay in cache, as a Newton step does not wait for memory; of larger tables twice the
# folds
SMALL_TABLE = 100_000
COLUMNS_PER_FOLD = 5  # columns whose Hessian costs as much as the passes of one of the host's fits
# number of candidates that differ in their penalty alone from which half as many folds are enough
FEWEST_SHARED = 5
FROM_ONE_FIT = "from one fit"


class Request(NamedTuple):
    """Call that is to be answered: its data, arguments of `fit`, scorers, and number of folds."""

    X: Any
    y: Any
    params: dict[str, Any]
    scorings: list[Any]
    num_folds: int
    # whether the caller named a strategy, which decides that folds come from one fit wherever they
    # can
    has_strategy: bool
    frozen: bool
    visible: bool = False  # whether the caller sees the estimators of folds
    candidates: int = 1  # number of candidates that share one fit


def weights_name(estimator) -> str:
    """Return the name under which the estimator's `fit` takes the weights of rows."""
    steps: list[str] = []
    while hasattr(estimator, "steps"):
        steps = [*steps, estimator.steps[-1][0]]
        estimator = estimator.steps[-1][1]
    return "__".join([*steps, "sample_weight"])


def reason_for_host(estimator, request: Request) -> str:
    """Say why the host refits the folds; the reason is empty if they come from one fit.

    Raises TypeError if transformers are to stay frozen, and there is no one fit.
    """
    why = _no_one_fit(estimator, request)
    frozen = (
        request.frozen
        and isinstance(estimator, Pipeline | TransformedTargetRegressor)
        and learns(estimator)
    )
    if why and frozen:
        raise TypeError(
            f"lo.sklearn: transformers='frozen' keeps what one fit learned, and here is none: {why}."
        )
    return why or ("" if frozen else _no_gain(estimator, request))


def _no_one_fit(estimator, request: Request) -> str:
    last = inner(estimator)
    name = type(last).__name__
    if searches(last) or name.endswith("CV"):
        return f"{name} chooses anew in every fold"
    if type(last) not in READERS:
        return f"no other refits of {name} are known"
    try:
        objective = describe(last)
    except TypeError as error:
        return str(error).removeprefix("from_sklearn: ").rstrip(".")
    if isinstance(objective.loss, losses.AbstractRounded):
        return f"one fit would round the kinks of {name}'s loss"
    y = np.asarray(request.y)
    several = type(inner_step(estimator)) in SEVERAL_TARGETS
    if y.ndim != 1 and not (several and y.ndim == 2 and y.shape[1] > 1):
        return "the response is not one column"
    by_class = y.ndim > 1 or (
        objective.labels and _num_classes(y) > 2 and takes_classes_apart(estimator)
    )
    called = [
        scoring
        for scoring in request.scorings
        if by_class and table_measure(scoring, estimator, y) is None
    ]
    if called:
        return f"the score {called[0] or 'of its own'!r} is called, and one fit is of each class or target"
    if by_class and objective.class_weight is not None:
        return "class weights are those of several classes"
    if set(request.params) - {weights_name(estimator)} or (request.params and _routing_enabled()):
        return "arguments of fit other than the weights of rows are the host's"
    return ""


def _no_gain(estimator, request: Request) -> str:
    last = inner(estimator)
    classes = 0
    objective = describe(last)
    if objective.labels:
        classes = _num_classes(request.y)
    by_class = objective.labels and takes_classes_apart(estimator)
    if learns(estimator) and (request.visible or not rescales(estimator)):
        return "transformers learn from the rows of each fold"
    if request.has_strategy:
        return ""
    if isinstance(last, SGDClassifier | SGDRegressor):
        return "its solver stops before the minimum"
    if isinstance(objective.loss, losses.HuberScale):
        return "its scale is fitted sooner by the host"
    try:
        n = len(request.y)
        columns = num_columns(estimator, request.X)
    except (TypeError, ValueError, IndexError) as error:
        return f"the columns cannot be counted ({error})"
    shared = 1
    if request.candidates >= FEWEST_SHARED and not (by_class and classes > 2):
        shared = 2
    fewest = max(
        FEWEST_FOLDS * (1 if n * columns <= SMALL_TABLE else 2) // shared,
        columns / COLUMNS_PER_FOLD,
    )
    # folds of several rows cost about as much as the host's
    one_by_one = (classes > 2 and not by_class) or objective.l1 or objective.positive
    if request.num_folds < (n - 1 if one_by_one else min(fewest, n - 1)):
        return f"its {request.num_folds} fits of {n} x {columns} cost less than one fit that gives them all"
    transformed = isinstance(inner_step(estimator), TransformedTargetRegressor)
    for scoring in request.scorings:
        name = scoring or usual_score(estimator)
        if transformed or table_measure(name, estimator, np.asarray(request.y)) is None:
            return f"the score {name or 'of its own'!r} is called, and as often as to cost more than a fit"
    return ""


def inner_step(estimator: Any) -> Any:
    """Return the last step of nested pipelines."""
    if isinstance(estimator, Pipeline):
        return inner_step(estimator.steps[-1][1])
    return estimator


def num_columns(estimator, X) -> int:
    """Count the columns that reach the linear model; transformers see two rows for that."""
    # a scaler keeps the columns
    if before := [
        step for step in transformers_of(estimator) if type(step[1]) is not StandardScaler
    ]:
        return int(np.shape(clone(Pipeline(before)).fit_transform(_safe_indexing(X, [0, 1])))[1])
    return int((X if hasattr(X, "shape") else np.asarray(X)).shape[1])


def _num_classes(y) -> int:
    return len(np.unique(np.asarray(y)))


def checked_once(estimator, scorings: list[Any]) -> AbstractContextManager[object]:
    """Let scikit-learn check its parameters now, and not again in every fold.

    It does so in every fold where they may differ between folds, or be those of a user's code.
    """
    parts = []
    if isinstance(estimator, BaseEstimator):
        parts = [
            part
            for part in (estimator, *estimator.get_params().values())
            if callable(part) or hasattr(part, "get_params")
        ]
    homes = {str(getattr(part, "__module__", None)).split(".")[0] for part in parts}
    are_names = all(scoring is None or isinstance(scoring, str) for scoring in scorings)
    if homes != {"sklearn"} or not are_names or any(map(searches, parts)):
        return nullcontext()
    try:
        for part in parts:
            if hasattr(part, "_validate_params"):
                part._validate_params()
    except ValueError:
        return nullcontext()
    return config_context(skip_parameter_validation=True)


def tell(caller: str, why: str) -> str:
    """Say which way the folds are refitted, and log it."""
    message = FROM_ONE_FIT
    if why:
        message = f"by the host: {why}"
    logging.getLogger("leaveout").info("%s: folds are refitted %s", caller, message)
    return message
