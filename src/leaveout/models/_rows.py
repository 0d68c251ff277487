"""Rows of a regression: checked on the way in, picked by number afterwards."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from .._objective import stored
from .._read import codes, numbers


def pick(array: Any, index: Any) -> Array:
    """The listed rows; any row for padding; all of them, in their order, where as many are listed."""
    if isinstance(index, slice) or len(index) == len(array):
        return jnp.asarray(array)
    return jnp.asarray(array).at[index].get(mode="clip")


def touched(index: Array, delta: Array, n: int) -> tuple[Any, Array]:
    """The touched units of n and their δ, zero for padding, without a gather where they are all."""
    return (slice(None), delta) if len(index) == n else (index, jnp.where(index < n, delta, 0.0))


def by_weight(value: Array, weight: Any, index: Any) -> Array:
    """Values of the listed rows, `[rows, ...]`, times their sample weights, if there are any."""
    if weight is None:
        return value
    own = pick(weight, index)
    return value * own.reshape(own.shape + (1,) * (value.ndim - 1))


def shift(offset: Any, index: Any = slice(None)) -> Any:
    """The offsets of the listed rows, or zero."""
    return 0.0 if offset is None else pick(offset, index)


def mean_offset(offset: Any, weight: np.ndarray) -> Any:
    """The weighted mean of the offsets, which an intercept to start from must not count again."""
    return 0.0 if offset is None else np.average(offset, weights=weight)


def design(X: ArrayLike, intercept: bool, caller: str = "GLM") -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows, a column of ones at their end where there is an intercept; and what the columns are called."""
    names = tuple(str(c) for c in X.columns) if hasattr(X, "columns") else ()
    if len(set(names)) < len(names):
        raise ValueError(f"{caller}: X has duplicate column names: {sorted({c for c in names if names.count(c) > 1})}.")
    array = numbers(caller, "X", X)
    if array.ndim != 2:
        raise ValueError(f"{caller}: X must be [units, features]; got shape {array.shape}. For one feature: X.reshape(-1, 1).")
    if len(array) < 2:
        raise ValueError(f"{caller}: at least two rows are needed; got {len(array)}.")
    if array.shape[1] + intercept == 0:
        raise ValueError(f"{caller}: X has no columns and there is no intercept: nothing to fit.")
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones_like(array, bool)
    if not finite.all():
        bad = [names[j] if names else int(j) for j in np.flatnonzero(~finite.all(0))]
        raise ValueError(f"{caller}: X holds {np.sum(~finite)} NaN or infinite values, in columns {bad[:5]}; drop or impute.")
    del finite
    names = names or tuple(f"x{j}" for j in range(array.shape[1]))
    if not intercept:
        return stored(array), names
    design = jnp.concatenate([jnp.asarray(array, jnp.float64), jnp.ones((len(array), 1))], axis=1)
    return np.asarray(design), names


def column(name: str, value: ArrayLike, n: int, caller: str = "GLM") -> np.ndarray:
    """One finite number a row; of offsets perhaps several."""
    array = numbers(caller, name, value)
    if array.ndim > 1 and array.shape[1:] == (1,):
        array = array[:, 0]
    if len(np.atleast_1d(array)) != n or array.ndim not in (1, 2 if name == "offset" else 1):
        raise ValueError(f"{caller}: {name} must have one value for each of the {n} rows of X; got shape {array.shape}.")
    if not np.isfinite(array.astype(np.float64)).all():
        raise ValueError(f"{caller}: {name} holds {np.sum(~np.isfinite(array))} NaN or infinite values.")
    return stored(array)


def sample_weights(value: ArrayLike | None, n: int, caller: str = "GLM") -> np.ndarray | None:
    """Sample weights, not negative."""
    if value is None:
        return None
    array = column("sample_weight", value, n, caller)
    if (array < 0).any() or not array.any():
        raise ValueError(f"{caller}: sample_weight must not be negative, nor zero everywhere.")
    return array


def coded(y: ArrayLike, n: int, caller: str = "GLM") -> tuple[np.ndarray, np.ndarray]:
    """Classes, and the number of each unit's."""
    if np.shape(y) != (n,):
        raise ValueError(f"{caller}: y must have one value for each of the {n} rows of X; got shape {np.shape(y)}.")
    found, classes = codes(caller, "y", y)
    if len(classes) < 2:
        raise ValueError(f"{caller}: y has one class only; two or more are needed.")
    return classes, found
