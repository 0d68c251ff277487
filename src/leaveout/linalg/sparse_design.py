"""Rows of linear predictors most of whose entries are zero, in compressed rows; no dense copy is
made.

What follows from the primitives stands in `linalg.design.SingleOutput`. JAX's programs (for a
user's own loss, or a τ that all rows share) see the same object: `@` sums over stored entries, and
only some rows at a time are written out.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import ndarray

from .._runtime import (
    NUMPY,
    Array,
    EntryIndex,
    EntryValues,
    Indices,
    Module,
    ParamColumns,
    ParamRows,
    TwoCounts,
    UnitNumbers,
    jax,
    jnp,
    slices,
    static,
)
from .design import Directions, PerUnit, RefitMatrices, RefitPoints, RefitUnits, SingleOutput


class SparseDesign(SingleOutput, Module):
    """Compressed rows, `[units, params]`.

    Row n has the entries `indptr[n]` to `indptr[n + 1]`, in rising columns.
    """

    data: EntryValues
    indices: EntryIndex
    indptr: Int[ndarray, " bounds"]
    shape: TwoCounts = static()
    longest: int = static()  # entries of the fullest row

    @classmethod
    def from_csr(cls, rows: Any, ones: bool = False) -> "SparseDesign":
        """Copy SciPy's compressed rows, with a last column of ones on request."""
        n, p = rows.shape
        data = rows.data
        indices = rows.indices
        indptr = rows.indptr
        if ones:
            data = np.insert(data, indptr[1:], 1.0)
            indices = np.insert(indices, indptr[1:], p)
            indptr = indptr + np.arange(n + 1, dtype=indptr.dtype)
        else:
            data = data.copy()
            indices = indices.copy()
            indptr = indptr.copy()
        return cls(data, indices, indptr, (n, p + ones), int(np.diff(indptr).max(initial=0)))

    @cached_property
    def csr(self) -> Any:
        """Rows as SciPy's compressed array."""
        return scipy.sparse.csr_array((self.data, self.indices, self.indptr), self.shape)

    @cached_property
    def _csc(self) -> Any:
        """Transpose of the rows, without a copy."""
        return self.csr.T

    @cached_property
    def counts(self) -> UnitNumbers:
        """Number of entries in each row."""
        return np.diff(self.indptr)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, units: Any) -> "SparseDesign":
        return SparseDesign.from_csr(self.csr[units])

    def __abs__(self) -> "SparseDesign":
        return replace(self, data=np.abs(self.data))

    def __pow__(self, power: int) -> "SparseDesign":
        return replace(self, data=self.data**power)

    __array_ufunc__ = None  # NumPy leaves `array @ rows` to the rows

    def __matmul__(self, other: Array) -> Array:
        if isinstance(other, NUMPY):
            return self.csr @ other
        images = jnp.einsum("e,e...->e...", self.data, other[self.indices])
        return jax.ops.segment_sum(images, self._row, len(self), indices_are_sorted=True)

    def __rmatmul__(self, other: Array) -> Array:
        if isinstance(other, NUMPY):
            return self.pull(np.atleast_2d(other)).reshape(*np.shape(other)[:-1], -1)
        images = other[..., self._row] * self.data
        return jnp.zeros((*other.shape[:-1], self.shape[1])).at[..., self.indices].add(images)

    @property
    def _row(self) -> Array:
        """Row of every entry, for JAX."""
        return jnp.repeat(
            jnp.arange(len(self)), jnp.diff(self.indptr), total_repeat_length=len(self.data)
        )

    def dense_rows(self, units: Array) -> Array:
        """Selected rows written out, for JAX; any row for padding."""
        units = jnp.clip(units, 0, len(self) - 1)
        start = jnp.asarray(self.indptr)[units]
        end = jnp.asarray(self.indptr)[units + 1]
        entry = start[:, None] + jnp.arange(self.longest)
        stored = entry < end[:, None]
        entry = jnp.minimum(entry, max(len(self.data) - 1, 0))
        column = jnp.where(stored, jnp.asarray(self.indices)[entry], self.shape[1])
        values = jnp.where(stored, jnp.asarray(self.data)[entry], 0.0)
        return (
            jnp.zeros((len(units), self.shape[1]))
            .at[jnp.arange(len(units))[:, None], column]
            .add(values, mode="drop")
        )

    # the members that refits use

    def predictors(self, theta: RefitPoints) -> RefitUnits:
        """Compute x_nᵀθ of every unit."""
        if len(theta) > 1:
            return np.ascontiguousarray((self.csr @ theta.T).T)
        return (self.csr @ theta[0])[None]

    def pull(self, slope: RefitUnits) -> RefitPoints:
        """Compute Σ_n slope_n x_n."""
        if len(slope) > 1:
            return np.ascontiguousarray((self._csc @ slope.T).T)
        return (self._csc @ slope[0])[None]

    def unit_predictors(
        self, units: Int[ndarray, "*refits width"], theta: Float[ndarray, "*refits params"]
    ) -> Float[ndarray, "*refits width"]:
        """Compute x_nᵀθ of the listed units."""
        rows = self.csr[units.ravel()]
        refit = np.repeat(np.arange(units.size) // max(units.shape[-1], 1), np.diff(rows.indptr))
        rows.data = rows.data * theta.reshape(-1, theta.shape[-1])[refit, rows.indices]
        return (rows @ np.ones(rows.shape[1])).reshape(units.shape)

    def take(self, units: Indices | slice) -> "SparseDesign":
        """Design of the selected rows."""
        return self[units]

    def rows(self, units: ndarray | slice) -> ParamRows:
        """Selected rows as a dense array."""
        return self.csr[units].toarray()

    def multiply(self, units: ndarray, images: ParamColumns) -> Float[ndarray, "units some"]:
        """Multiply the listed rows by columns, in the precision of the columns."""
        return self.csr[units].astype(images.dtype) @ images

    def single(self) -> "SparseDesign":
        """Copy of the rows in float32."""
        return replace(self, data=self.data.astype(np.float32))

    @property
    def lengths(self) -> PerUnit:
        """Norms ‖x_n‖."""
        return np.sqrt((self**2).predictors(np.ones((1, self.shape[1])))[0])

    def below(self, rows: Float[ndarray, "more params"]) -> "SparseDesign":
        """Append rows."""
        return SparseDesign.from_csr(
            scipy.sparse.vstack([self.csr, scipy.sparse.csr_array(rows)], format="csr")
        )

    def whiten(self, units: ndarray | slice, root: Directions) -> Float[ndarray, "... rank"]:
        """Compute root x_n of the listed units."""
        if isinstance(units, slice) or units.ndim == 1:
            return self.csr[units] @ root.T
        return (self.csr[units.ravel()] @ root.T).reshape(*units.shape, -1)

    @cached_property
    def _full(self) -> bool:
        """Whether so many entries are stored that dense blocks of rows multiply faster."""
        faster = 16  # speed of products in dense blocks, relative to one over stored entries
        return (
            faster * float(np.sum(self.counts.astype(float) ** 2))
            > float(self.shape[0]) * self.shape[1] ** 2
        )

    def _blocks(self) -> list[slice]:
        sparse_block = 2**20  # numbers in one block of rows
        return slices(self.shape[0], sparse_block // max(self.shape[1], 1))

    def products(self, weight: RefitUnits) -> RefitMatrices:
        """Compute Σ_n weight_n x_n x_nᵀ."""
        out = np.zeros((len(weight), self.shape[1], self.shape[1]))
        for block in self._blocks() if self._full else ():
            x = self.rows(block)
            for refit_weight, sums in zip(weight, out, strict=True):
                sums += (x.T * refit_weight[block]) @ x
        for refit_weight, sums in zip(weight, out, strict=True) if not self._full else ():
            scaled = scipy.sparse.csr_array(
                (self.data * np.repeat(refit_weight, self.counts), self.indices, self.indptr),
                self.shape,
            )
            (self._csc @ scaled).toarray(out=sums)
        return out

    def forms(
        self, matrices: Float[ndarray, "forms params params"]
    ) -> Float[ndarray, "units forms"]:
        """Compute x_nᵀ M x_n."""
        out = np.empty((self.shape[0], len(matrices)))
        for block in self._blocks():
            x = self.csr[block]
            for k, matrix in enumerate(matrices):
                out[block, k] = x.multiply(x @ matrix).sum(1)
        return out

    def sizes(self, root: Directions) -> PerUnit:
        """Squares ‖root x_n‖² of all rows."""
        size = np.empty(self.shape[0])
        across = np.ascontiguousarray(root.T)
        for block in self._blocks():
            z = self.csr[block] @ across
            np.einsum("np,np->n", z, z, out=size[block])
        return size
