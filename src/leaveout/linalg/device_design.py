"""Rows of linear predictors that stay on a device, which computes the products with them.

JAX computes products block by block in double precision, whatever the precision of the rows. Only
arrays as long as the parameters or the units come back; the rows are never copied. What follows
from the primitives stands in `linalg.design.SingleOutput`. Refits and rows go in groups of powers
of two, so that few programs are compiled. Programs of JAX see the rows written out on the device,
once.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from .._runtime import (
    AnyTuple,
    Array,
    Arrays,
    Indices,
    ParamColumns,
    Shape,
    compile_static,
    float64,
    jax,
    jnp,
)
from .design import RefitUnits
from .mapped_design import CHEAP_COPY_ENTRIES, SourcedDesign

DEVICE_BLOCK = 2**22  # numbers in one block of rows
REFITS_A_CALL = 64  # refits of one call


def device_copy(array: Array) -> Array | None:
    """Copy many rows on their device, in float32 if that loses nothing, else in float64; None for
    few rows.

    Few rows fit into memory twice.
    """
    if array.ndim != 2 or array.size < CHEAP_COPY_ENTRIES:
        return None
    small = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize <= 4
    with jax.ensure_compile_time_eval():
        return array.astype(np.float32 if small else np.float64)


def exact(function: Callable[..., Array]) -> Callable[..., Array]:
    """Decorate a function so that its products keep all digits of their factors.

    An accelerator may keep ten bits.
    """

    @functools.wraps(function)
    def wrapped(*args: Any) -> Array:
        with jax.default_matmul_precision("highest"):
            return function(*args)

    return wrapped


class Resident(SourcedDesign):
    """Rows `[units, params]` of `source`, JAX's array on a device, with a column of ones if there
    is an intercept.
    """

    def __repr__(self) -> str:
        return f"{self.source.dtype} on {', '.join(map(str, self.source.devices()))}"

    def __reduce__(self) -> AnyTuple:
        """Pickle the rows, for the memory or the device of another process."""
        return _restore, (np.asarray(self.source), self.ones, self.dtype)

    @functools.cached_property
    def _dense(self) -> Array:
        return _dense(self.source, self.ones)

    def as_jax_sees_it(self) -> Array:
        """Rows written out in float64 on the device, which JAX's programs see in their place."""
        return self._dense

    @property
    def _step(self) -> int:
        return max(1, min(DEVICE_BLOCK // max(1, self.shape[1]), len(self)))

    @property
    def _blocks(self) -> AnyTuple:
        """Arguments of `_by_block` and `_sum`: the rows, and how they are cut."""
        return self.source, self.ones, self.dtype, self._step

    def _fill(self, out: ndarray, program, function, parts: Arrays) -> ndarray:
        """Fill an array with what a program of blocks of rows returns for parts."""
        for chunk in _powers(len(parts)):
            out[chunk] = jax.device_get(program(function, *self._blocks, parts[chunk]))
        return out

    def _by_block(self, function, parts: Arrays, dtype=float) -> ndarray:
        """Apply a function of a block of rows and of a part to all rows: `[parts, units]`."""
        return self._fill(np.empty((len(parts), len(self)), dtype), _by_block, function, parts)

    def _sum(self, function, weight: Arrays, shape: Shape) -> ndarray:
        """Sum a function of blocks of rows and of their weights, `[refits, units]`, over all
        blocks: `[refits, *shape]`.
        """
        return self._fill(np.empty((len(weight), *shape)), _sum, function, weight)

    def _select_rows(
        self, units: Int[ndarray, "..."] | slice, columns: Arrays | None, dtype
    ) -> ndarray:
        """Selected rows in memory, or their products with columns."""
        if isinstance(units, slice):
            units = np.arange(len(self))[units]
        else:
            units = np.asarray(units)
        out = np.empty((units.size, self.shape[1] if columns is None else columns.shape[1]), dtype)
        for chunk in _powers(units.size, DEVICE_BLOCK // max(1, self.shape[1])):
            out[chunk] = jax.device_get(
                _select_rows(self.source, self.ones, dtype, units.ravel()[chunk], columns)
            )
        return out.reshape(*units.shape, -1)

    def rows(self, units: Int[ndarray, "..."] | slice) -> Float[ndarray, "*some params"]:
        """Selected rows, in memory."""
        return self._select_rows(units, None, self.dtype)

    def predictors(self, theta: Float[ndarray, "refits params"]) -> RefitUnits:
        """Compute x_nᵀθ of every unit."""
        return self._by_block(_predictors, theta, self.dtype)

    def pull(self, slope: RefitUnits) -> Float[ndarray, "refits params"]:
        """Compute Σ_n slope_n x_n."""
        return self._sum(_pull, slope, self.shape[1:])

    def unit_predictors(
        self, units: Int[ndarray, "*refits width"], theta: Float[ndarray, "*refits params"]
    ) -> Float[ndarray, "*refits width"]:
        """Compute x_nᵀθ of the listed units."""
        flat = units.reshape(-1, units.shape[-1])
        theta = theta.reshape(-1, theta.shape[-1])
        out = np.empty(flat.shape)
        for chunk in _powers(len(flat), DEVICE_BLOCK // max(1, flat.shape[1] * self.shape[1])):
            out[chunk] = jax.device_get(
                _unit_predictors(self.source, self.ones, self.dtype, flat[chunk], theta[chunk])
            )
        return out.reshape(units.shape)

    def take(self, units: Indices | slice) -> "Resident":
        """Design of the selected rows, on the device."""
        if isinstance(units, slice):
            units = np.arange(len(self))[units]
        return replace(
            self, source=_select_rows(self.source, False, self.source.dtype, units, None)
        )

    def multiply(self, units: ndarray, images: ParamColumns) -> Float[ndarray, "units some"]:
        """Multiply the listed rows by columns, in the precision of the columns."""
        return self._select_rows(units, images, images.dtype)

    @property
    def lengths(self) -> Float[ndarray, " units"]:
        """Norms ‖x_n‖."""
        return np.sqrt(jax.device_get(_by_block(_squares, *self._blocks)))

    def below(self, rows: Float[ndarray, "more params"]) -> "Resident":
        """Append rows: a copy in float64, on the device."""
        return Resident(_below(self.source, self.ones, rows), False)

    def whiten(
        self, units: ndarray | slice, root: Float[ndarray, "rank params"]
    ) -> Float[ndarray, "... rank"]:
        """Compute root x_n of the listed units."""
        return self._select_rows(units, root.T, self.dtype)

    def products(self, weight: RefitUnits) -> Float[ndarray, "refits params params"]:
        """Compute Σ_n weight_n x_n x_nᵀ."""
        out = self._sum(_products, weight, 2 * self.shape[1:])
        # float32 products are not symmetric to the last digit
        return 0.5 * (out + out.swapaxes(1, 2))

    def forms(
        self, matrices: Float[ndarray, "forms params params"]
    ) -> Float[ndarray, "units forms"]:
        """Compute x_nᵀ M x_n."""
        return np.ascontiguousarray(self._by_block(_forms, matrices).T)

    def sizes(self, root: Float[ndarray, "rank params"]) -> Float[ndarray, " units"]:
        """Squares ‖root x_n‖² of all rows."""
        return self.sizes_by_refit(root.T[None])[0]

    def sizes_by_refit(self, roots: Float[ndarray, "refits params rank"]) -> RefitUnits:
        """Squares ‖rootᵀ x_n‖² of all rows for the root of each refit."""
        return self._by_block(_sizes, roots)


def _powers(count: int, most: int = REFITS_A_CALL) -> Iterator[slice]:
    """Split `count` items into slices whose lengths are powers of two, none longer than `most`."""
    start = 0
    while start < count:
        size = 2 ** (max(1, min(count - start, most)).bit_length() - 1)
        yield slice(start, start + size)
        start += size


@float64
def _restore(source: ndarray, ones: bool, dtype: Any) -> Resident:
    return Resident(jnp.asarray(source), ones, dtype)


def _cast_rows(x: Array, ones: bool, dtype) -> Array:
    """Rows in the given precision, with the column of ones."""
    x = x.astype(dtype)
    if ones:
        return jnp.concatenate([x, jnp.ones((len(x), 1), dtype)], 1)
    return x


@float64
@compile_static
def _dense(x: Array, ones: bool) -> Array:
    return _cast_rows(x, ones, float)


@float64
@compile_static
def _below(x: Array, ones: bool, rows: Arrays) -> Array:
    return jnp.concatenate([_cast_rows(x, ones, float), rows])


@float64
@compile_static
@exact
def _select_rows(x: Array, ones: bool, dtype: Any, units: Array, columns: Array | None) -> Array:
    rows = _cast_rows(x[units], ones, dtype)
    if columns is None:
        return rows
    return rows @ columns.astype(dtype)


@float64
@compile_static
@exact
def _unit_predictors(x: Array, ones: bool, dtype: Any, units: Array, theta: Array) -> Array:
    return (
        _cast_rows(x[units.ravel()], ones, dtype).reshape(*units.shape, -1)
        @ theta.astype(dtype)[:, :, None]
    )[..., 0]


@float64
@compile_static
@exact
def _by_block(
    function: Callable[..., Array], x: Array, ones: bool, dtype: Any, step: int, *parts: Array
) -> Array:
    """Apply a function to blocks of rows.

    The last block overlaps the one before it, so that all have one length.
    """
    parts = tuple(part.astype(dtype) for part in parts)
    block = lambda start: function(
        _cast_rows(jax.lax.dynamic_slice_in_dim(x, start, step), ones, dtype), *parts
    )

    def fill(k, out):
        start = jnp.minimum(k * step, len(x) - step)
        return jax.lax.dynamic_update_slice_in_dim(out, block(start), start, -1)

    struct = jax.eval_shape(block, 0)
    return jax.lax.fori_loop(
        0, -(-len(x) // step), fill, jnp.zeros((*struct.shape[:-1], len(x)), struct.dtype)
    )


@float64
@compile_static
@exact
def _sum(
    function: Callable[..., Array], x: Array, ones: bool, dtype: Any, step: int, weight: Array
) -> Array:
    """Sum a function over blocks of rows, in float64."""
    count, remainder = divmod(len(x), step)

    def block(start, size):
        block_weight = jax.lax.dynamic_slice_in_dim(weight, start, size, -1)
        return function(
            _cast_rows(jax.lax.dynamic_slice_in_dim(x, start, size), ones, dtype),
            block_weight.astype(dtype),
        ).astype(float)

    return jax.lax.fori_loop(
        0,
        count,
        lambda k, total: total + block(k * step, step),
        block(len(x) - remainder, remainder),
    )


def _predictors(x: Array, theta: Array) -> Array:
    return theta @ x.T


def _pull(x: Array, slope: Array) -> Array:
    return slope @ x


def _products(x: Array, weight: Array) -> Array:
    return jax.lax.map(lambda refit_weight: (x.T * refit_weight) @ x, weight)


def _forms(x: Array, matrices: Array) -> Array:
    return jax.lax.map(lambda matrix: jnp.sum((x @ matrix) * x, 1), matrices)


def _sizes(x: Array, roots: Array) -> Array:
    return jax.lax.map(lambda root: jnp.sum((x @ root) ** 2, 1), roots)


def is_finite(x: Array) -> bool:
    """Whether all entries are finite."""
    with jax.ensure_compile_time_eval():
        return bool(_is_finite(x))


@compile_static
def _is_finite(x: Array) -> Array:
    return jnp.isfinite(x).all()


def _squares(x: Array) -> Array:
    return jnp.sum(x**2, 1)
