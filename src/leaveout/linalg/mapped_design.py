"""Rows of linear predictors that stay in a memory-mapped file, or in float32.

One block of rows after another is written out in float64, with a one at the end of each row if
there is an intercept. All rows are never copied at once. What follows from the primitives stands in
`linalg.design.SingleOutput`. Programs of JAX see a copy in float64.
"""

import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from .._runtime import Indices, Module, NumpyArray, ParamColumns, TwoCounts, record, slices
from .design import (
    DENSE_BLOCK,
    EVERYONE,
    DenseDesign,
    Directions,
    PerUnit,
    RefitMatrices,
    RefitPoints,
    RefitRoots,
    RefitUnits,
    SingleOutput,
)

CHEAP_COPY_ENTRIES = 2**21  # numbers below which a copy in float64 is cheap


def elsewhere(array: NumpyArray) -> bool:
    """Whether an array is large and lies in a file or is float32, so that it should not be
    copied.
    """
    return (
        array.ndim == 2
        and array.size >= CHEAP_COPY_ENTRIES
        and (array.dtype == np.float32 or is_mapped(array))
    )


def is_mapped(array: Any) -> bool:
    """Whether an array is, or is part of, a memory-mapped file."""
    while isinstance(array, NumpyArray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return isinstance(array, mmap.mmap)


@record
class RowSelection:
    """Selected rows of a source, gathered block by block."""

    rows: Any
    units: Indices

    @property
    def shape(self) -> TwoCounts:
        return len(self.units), self.rows.shape[1]

    def __getitem__(self, places: Any) -> NumpyArray:
        return self.rows[self.units[places]]


class SourcedDesign(SingleOutput, Module):
    """Rows `[units, params]` of `source`, outside memory, with a column of ones if there is an
    intercept.
    """

    source: Any
    ones: bool
    dtype: Any = np.float64  # precision in which rows are written out

    @property
    def shape(self) -> TwoCounts:
        return self.source.shape[0], self.source.shape[1] + self.ones

    def __len__(self) -> int:
        return self.source.shape[0]

    def __getitem__(self, units: Any) -> NumpyArray:
        return self.rows(units)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NumpyArray:
        """Copy all rows to memory."""
        return np.asarray(self.rows(EVERYONE), dtype)

    def single(self) -> Self:
        """Design whose products are made in float32."""
        return replace(self, dtype=np.float32)


class MappedDesign(SourcedDesign):
    """Rows that `source` returns by their numbers, as a memory-mapped file does."""

    def as_jax_sees_it(self) -> NumpyArray:
        """Copy in memory, which JAX's programs see in their place."""
        return np.asarray(self)

    @property
    def step(self) -> int:
        """Number of rows in a block."""
        return max(1, DENSE_BLOCK // max(1, self.shape[1]))

    def blocks(self) -> Iterator[tuple[slice, DenseDesign]]:
        """Yield the slice and the rows of each block."""
        for block in slices(len(self), self.step):
            yield block, DenseDesign(self.rows(block))

    def rows(self, units: NumpyArray | slice) -> Float[NumpyArray, "*some params"]:
        """Selected rows as an array."""
        entries = self.source[units]
        out = np.empty((*entries.shape[:-1], self.shape[1]), self.dtype)
        out[..., : entries.shape[-1]] = entries
        out[..., entries.shape[-1] :] = 1.0
        return out

    def predictors(self, theta: RefitPoints) -> RefitUnits:
        """Compute x_nᵀθ of every unit."""
        out = np.empty((len(theta), len(self)), np.result_type(theta.dtype, self.dtype))
        for block, part in self.blocks():
            out[:, block] = part.predictors(theta)
        return out

    def pull(self, slope: RefitUnits) -> RefitPoints:
        """Compute Σ_n slope_n x_n."""
        return sum(
            (part.pull(slope[:, block]) for block, part in self.blocks()),
            np.zeros((len(slope), self.shape[1])),
        )

    def unit_predictors(
        self, units: NumpyArray, theta: Float[NumpyArray, "*refits params"]
    ) -> Float[NumpyArray, "*refits width"]:
        """Compute x_nᵀθ of the listed units, some refits at a time."""
        if units.size * self.shape[1] <= DENSE_BLOCK:
            return super().unit_predictors(units, theta)
        if len(units) > 1:
            return np.stack(
                [self.unit_predictors(row, point) for row, point in zip(units, theta, strict=True)]
            )
        if units.ndim > 1:
            return self.take(units[0]).predictors(theta)
        return self.take(units).predictors(theta[None])[0]

    def take(self, units: Indices | slice) -> "MappedDesign":
        """Design of the selected rows, without copying them."""
        places = np.arange(len(self))[units] if isinstance(units, slice) else units
        return replace(self, source=RowSelection(self.source, places))

    def multiply(self, units: NumpyArray, images: ParamColumns) -> Float[NumpyArray, "units some"]:
        """Multiply the listed rows by columns, in the precision of the columns."""
        return replace(self, dtype=images.dtype).rows(units) @ images

    @property
    def lengths(self) -> PerUnit:
        """Norms ‖x_n‖."""
        return np.concatenate([part.lengths for _, part in self.blocks()])

    def below(self, rows: Float[NumpyArray, "more params"]) -> DenseDesign:
        """Append rows: a copy in memory."""
        return DenseDesign(np.concatenate([self.rows(EVERYONE), rows]))

    def products(self, weight: RefitUnits) -> RefitMatrices:
        """Compute Σ_n weight_n x_n x_nᵀ."""
        out = np.zeros((len(weight), *2 * self.shape[1:]))
        for block, part in self.blocks():
            out += part.products(weight[:, block])
        return out

    def forms(
        self, matrices: Float[NumpyArray, "forms params params"]
    ) -> Float[NumpyArray, "units forms"]:
        """Compute x_nᵀ M x_n."""
        return np.concatenate([part.forms(matrices) for _, part in self.blocks()])

    def sizes(self, root: Directions) -> PerUnit:
        """Squares ‖root x_n‖² of all rows."""
        return np.concatenate([part.sizes(root) for _, part in self.blocks()])

    def sizes_by_refit(self, roots: RefitRoots) -> RefitUnits:
        """Squares ‖rootᵀ x_n‖² of all rows for the root of each refit."""
        return np.concatenate([part.sizes_by_refit(roots) for _, part in self.blocks()], 1)
