"""What the caller gave, checked: data, target, loss, and the classes numbered."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from .._fit import Fit
from ..interop.sklearn import Host
from ..refit import AbstractRefit, Exact
from ._losses import Loss, resolve
from ._score import Score
from ._scoring import classifies, resolve_score


class Task(NamedTuple):
    """`y` as given, `codes` with classes numbered (or y itself), and the loss or score."""

    X: Any
    y: NDArray
    codes: Float[np.ndarray, " records"]
    measure: Score
    refit: AbstractRefit


def prepare(
    caller: str,
    estimator: Host | Fit,
    X: Any,
    y: ArrayLike,
    loss: Loss | None,
    response: str,
    refit: AbstractRefit | None = None,
    scoring: Any = None,
) -> Task:
    """Raises ValueError on lengths that differ, NaN or nothing; X may be an array, a sparse matrix or a DataFrame."""
    if loss is not None and scoring is not None:
        raise ValueError(f"{caller}: give loss= or scoring=, not both; got loss={loss!r} and scoring={scoring!r}.")
    if not isinstance(estimator, Fit):
        check_clonable(caller, estimator)
    X = X if hasattr(X, "iloc") or hasattr(X, "tocsr") else np.asarray(X)
    X = X.tocsr() if hasattr(X, "tocsr") else X
    target = np.asarray(y)
    if target.ndim != 1 or not target.size:
        raise ValueError(f"{caller}: y must be one number or label a record; got shape {target.shape}.")
    if X.shape[0] != len(target):
        raise ValueError(f"{caller}: X has {X.shape[0]} records, y has {len(target)}.")
    if pd.isna(target).any() or (target.dtype.kind == "f" and not np.isfinite(target).all()):
        raise ValueError(f"{caller}: y holds NaN or infinite values; drop those records.")
    if isinstance(X, np.ndarray) and X.dtype.kind == "f" and np.isinf(X).any():
        raise ValueError(f"{caller}: X holds infinite values.")
    if scoring is None:
        measure = resolve("squared" if loss is None else loss, response, target, classifies(estimator, target))
    else:
        measure = resolve_score(scoring, estimator, target)
    if not measure.classes and target.dtype.kind not in "biuf":
        raise ValueError(f"{caller}: the loss {measure.name} needs numbers; y holds {target.dtype} values.")
    codes = measure.target(target)
    if measure.needs == "probability" and codes.max() > 1:
        raise ValueError(
            f"{caller}: the loss {measure.name} is for two classes; y has {int(codes.max()) + 1}: use 'multinomial'."
        )
    return Task(X, target, codes, measure, Exact() if refit is None else refit)


def check_clonable(caller: str, estimator: object) -> None:
    """Raise TypeError unless scikit-learn can clone it."""
    from sklearn.base import clone, is_classifier

    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        got = estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__
        raise TypeError(f"{caller}: {got} cannot be cloned; give an estimator object with fit, predict and get_params.")
    try:
        is_classifier(clone(estimator))
    except (TypeError, RuntimeError, AttributeError) as error:
        raise TypeError(f"{caller}: {type(estimator).__name__} cannot be cloned: {error}") from error
