"""Rows of a regression, checked when they are read and selected by number afterwards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import Array, Arrays, NamedArrays, Shape, Strings, jnp, require_memory, slices
from ...data import compress_rows, numbers, on_device
from ...linalg import (
    DENSE_BLOCK,
    MappedDesign,
    Resident,
    SparseDesign,
    device_copy,
    elsewhere,
    is_finite,
)
from ...objectives import as_stored, room

# absolute value beyond which products of four are beyond float64, as their inverses are
LARGEST = np.float64(1e100)


def pick(array: Any, index: Any) -> Array:
    """Select the listed rows, with any row for padding.

    All rows in their order if as many are listed.
    """
    if isinstance(array, SparseDesign):
        if isinstance(index, slice):
            index = jnp.arange(len(array))
        return array.dense_rows(index)
    if isinstance(index, slice) or len(index) == len(array):
        return jnp.asarray(array)
    return jnp.asarray(array).at[index].get(mode="clip")


def shift(offset: Any, index: Any = slice(None)) -> Any:
    """Return the offsets of the listed rows, or zero."""
    return 0.0 if offset is None else pick(offset, index)


def times(weight: Arrays, value: Arrays) -> Arrays:
    """Multiply values `[units, ...]` by weights `[units]`, zero where a weight is zero even if the
    value is not finite.
    """
    weight = weight.reshape(weight.shape + (1,) * (value.ndim - 1))
    return jnp.where(weight == 0, 0.0, weight * value)


def design(
    caller: str, X: ArrayLike, intercept: bool
) -> tuple[ndarray | SparseDesign | MappedDesign | Resident, Strings]:
    """Return the rows, with a last column of ones if there is an intercept, and the names of the
    columns.
    """
    names = tuple(str(c) for c in getattr(X, "columns", ()))
    if len(set(names)) < len(names):
        raise ValueError(
            f"{caller}: X has duplicate column names: {sorted({c for c in names if names.count(c) > 1})}."
        )
    array = compress_rows(caller, "X", X)
    if array is None:  # JAX's array for many rows on a device, and NumPy's otherwise
        resident = on_device(caller, "X", X)
        if resident is not None:
            array = device_copy(resident)
    if array is None:
        array = numbers(caller, "X", X)
    if array.ndim != 2:
        raise ValueError(
            f"{caller}: X must be [units, features]; got shape {array.shape}. For one feature: X.reshape(-1, 1)."
        )
    if array.shape[0] < 2:
        raise ValueError(f"{caller}: at least two rows are needed; got {array.shape[0]}.")
    if array.shape[1] + intercept == 0:
        raise ValueError(f"{caller}: X has no columns and there is no intercept: nothing to fit.")
    _check_finite(caller, "X", array, names)
    names = names or _default_names(array.shape[1])
    if scipy.sparse.issparse(array):
        check_range(caller, names, 1.0 * abs(array).max(0).toarray().ravel())
    elif isinstance(array, ndarray) and not elsewhere(array):
        check_range(caller, names, np.maximum(array.max(0), -1.0 * array.min(0)))
    return _with_ones(array, intercept), names


def check_range(caller: str, names: Sequence[str], largest: Float[ndarray, " columns"]) -> None:
    """Raise ValueError if the largest absolute value of a column is so far from one that products
    with its square are lost.
    """
    for place in np.flatnonzero(
        (largest > LARGEST) | ((largest > 0) & (largest < 1 / LARGEST))
    ).tolist():
        raise ValueError(
            f"{caller}: {names[place]!r} reaches {largest[place]:.2g}, whose square float64 can hardly hold; give it in "
            "another unit."
        )


def by_name(rows: Any, names: Strings) -> NamedArrays:
    """Return the columns of rows in memory."""
    if isinstance(rows, ndarray):
        return dict(zip(names, rows.T, strict=False))
    return {}


def _default_names(count: int) -> Strings:
    return tuple(f"x{j}" for j in range(count))


def _check_finite(caller: str, name: str, array, columns: Strings) -> None:
    if not scipy.sparse.issparse(array) and not isinstance(array, ndarray):
        if is_finite(array):
            return
        array = np.asarray(array)
    values = array
    if scipy.sparse.issparse(array):
        values = array.data
    blocks = slices(len(values), DENSE_BLOCK // max(1, values[:1].size))
    if array.dtype.kind != "f" or all(np.isfinite(values[block]).all() for block in blocks):
        return
    finite = np.isfinite(values)
    first = ""
    if values is not array:
        where = np.unique(array.indices[~finite])
    else:
        where = np.flatnonzero(~finite.all(0))
        first = f", the first in row {int(np.argmin(finite.all(1)))}"
    bad = [columns[j] if columns else int(j) for j in where]
    raise ValueError(
        f"{caller}: {name} holds {np.sum(~finite)} NaN or infinite values, in columns {bad[:5]}{first}; drop or impute."
    )


def _with_ones(array, intercept: bool) -> ndarray | SparseDesign | MappedDesign | Resident:
    if scipy.sparse.issparse(array):
        return SparseDesign.from_csr(array.astype(float), intercept)
    if not isinstance(array, ndarray):
        return Resident(array, bool(intercept))
    if elsewhere(array):
        return MappedDesign(array, bool(intercept))
    content = f"{array.shape[0]:,} rows of {array.shape[1]:,} columns in double precision"
    require_memory("X", 8.0 * array.size, content, "lo.scan reads rows from files, in batches")
    if not intercept:
        return as_stored(array)
    design = room((len(array), array.shape[1] + 1))
    design[:, :-1] = array
    design[:, -1] = 1.0
    return design


def new_rows(caller: str, X: Any, names: Strings, intercept: bool) -> ndarray | SparseDesign:
    """Read other rows of a model whose columns are called `names`.

    The columns of a DataFrame are found by their names, in any order and among others. They are
    found by position if X, or the data of the model, had no names.
    """
    if hasattr(X, "columns"):
        columns = [str(c) for c in X.columns]
        missing = [name for name in names if name not in columns]
        if missing and names != _default_names(len(names)):
            raise ValueError(
                f"{caller}: X_new lacks columns that the model was fitted on: {', '.join(missing[:5])}."
            )
        duplicates = sorted({name for name in names if columns.count(name) > 1})
        if duplicates:
            raise ValueError(f"{caller}: X_new has duplicate column names: {duplicates}.")
        if not missing:
            X = X[[X.columns[columns.index(name)] for name in names]]
    array = compress_rows(caller, "X_new", X)
    if array is None:
        array = numbers(caller, "X_new", X)
    if array.ndim != 2 or array.shape[1] != len(names) or not array.shape[0]:
        raise ValueError(
            f"{caller}: X_new must be [rows, {len(names)}], of one row or more; got shape {array.shape}."
        )
    _check_finite(caller, "X_new", array, names)
    rows = _with_ones(array, intercept)
    if isinstance(rows, MappedDesign | Resident):
        return as_stored(rows)
    return rows


def column(caller: str, name: str, value: ArrayLike, n: int, outputs: Shape = ()) -> ndarray:
    """Read one finite number a row, or one for each of its outputs."""
    array = numbers(caller, name, value)
    if array.shape == (n, 1) and not outputs:
        array = array[:, 0]
    if array.shape != (n, *outputs):
        raise ValueError(
            f"{caller}: {name} must have one value for each of the {n} rows of X; got shape {array.shape}."
        )
    all_finite(caller, name, array)
    check_range(caller, (name,), np.array([np.abs(array).max(initial=0)], float))
    return as_stored(array)


def all_finite(caller: str, name: str, array: ndarray) -> None:
    """Raise a ValueError that names the first row with a value that is not finite."""
    bad = ~np.isfinite(array.astype(float))
    if bad.any():
        row = int(np.flatnonzero(bad.reshape(len(array), -1).any(1))[0])
        raise ValueError(
            f"{caller}: {name} holds {bad.sum()} NaN or infinite values, the first in row {row}; drop those rows, here "
            "and in all that goes with them."
        )
