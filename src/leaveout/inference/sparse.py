"""Sparse features of the steps of a chain, row by row and column by column."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int
from numpy import ndarray

from .._runtime import Indices, Module, TwoCounts, static
from ..objectives import aligned_copy


class SparseFeatures(Module):
    """Sparse features of each step: `x_t = Σ_i values[t, i] e_{columns[t, i]}`.

    Padding has the column `number`.
    """

    columns: Int[ndarray, "steps width"]
    values: Float[ndarray, "steps width"]
    number: int = static()

    @property
    def shape(self) -> TwoCounts:
        return len(self.columns), self.number

    def __matmul__(self, weights: Float[Array, "features labels"]) -> Float[Array, "steps labels"]:
        return _weighted_rows(self.columns, self.values, weights)

    def compressed_rows(self, steps: Indices) -> "scipy.sparse.csr_array":
        """Features of some steps as SciPy's compressed rows."""
        columns = self.columns[steps]
        values = self.values[steps]
        real = columns < self.number
        start = np.concatenate([[0], np.cumsum(real.sum(1))])
        return scipy.sparse.csr_array(
            (values[real], columns[real], start), shape=(len(steps), self.number)
        )


class ColumnFeatures(Module):
    """Sparse features column by column, in chunks of a few steps; padding has the step `number`."""

    steps: Int[ndarray, "chunks few"]
    values: Float[ndarray, "chunks few"]
    column: Int[ndarray, " chunks"]
    number: int = static()

    def times(
        self, features: SparseFeatures, weights: Float[Array, "features labels"]
    ) -> Float[Array, "steps labels"]:
        """Compute `features @ weights` with a transpose that is made from these chunks.

        XLA's own transpose scatters entry by entry, which takes several times as long. (A solve
        with [[1, 0], [−X, 1]] is a linear map that comes with its transpose.)
        """
        F = features.number

        def down(_, x):
            return jnp.concatenate([x[:F], x[F:] + features @ x[:F]])

        def up(_, x):
            sums = _weighted_rows(self.steps, self.values, x[F:])
            return jnp.concatenate(
                [x[:F] + jax.ops.segment_sum(sums, self.column, F, indices_are_sorted=True), x[F:]]
            )

        inverse = lambda x: jnp.concatenate([x[:F], x[F:] - features @ x[:F]])
        stacked = jnp.concatenate([weights, jnp.zeros((self.number, weights.shape[1]))])
        return jax.lax.custom_linear_solve(inverse, stacked, down, up)[F:]


def to_columns(features: SparseFeatures) -> ColumnFeatures:
    """Convert sparse features to columns."""
    steps, place = np.nonzero(features.columns < features.number)
    column = features.columns[steps, place]
    order = np.argsort(column, kind="stable")
    steps = steps[order]
    place = place[order]
    column = column[order]
    column_sizes = np.bincount(column, minlength=features.number)
    within = np.arange(len(column)) - np.repeat(
        np.cumsum(column_sizes) - column_sizes, column_sizes
    )
    column_chunk = 16  # entries of a column that are added up at once
    chunks = -(-column_sizes // column_chunk)
    row = (np.cumsum(chunks) - chunks)[column] + within // column_chunk
    total = int(chunks.sum())
    chunk_steps = np.full((total, column_chunk), len(features.columns), np.int32)
    values = np.zeros((total, column_chunk))
    chunk_steps[row, within % column_chunk] = steps
    values[row, within % column_chunk] = features.values[steps, place]
    chunk_columns = np.repeat(np.arange(features.number, dtype=np.int32), chunks)
    return ColumnFeatures(
        aligned_copy(chunk_steps),
        aligned_copy(values),
        aligned_copy(chunk_columns),
        len(features.columns),
    )


def _weighted_rows(
    places: Int[Array | ndarray, "rows width"],
    values: Float[Array | ndarray, "rows width"],
    matrix: Float[Array, "n k"],
) -> Float[Array, "rows k"]:
    """Compute `Σ_i values[:, i] matrix[places[:, i]]`, the place n being none.

    It takes a block of rows at a time, which a cache holds whether XLA fuses the sum or not.
    """
    rows = jnp.concatenate([matrix, jnp.zeros((1, matrix.shape[1]))])

    def weigh_row(row: tuple[Array, Array]) -> Array:
        terms = [
            value * rows.at[place].get(mode="promise_in_bounds")
            for place, value in zip(*row, strict=True)
        ]
        return sum(terms, jnp.zeros(matrix.shape[1]))

    # features of one step beyond which the sum over them is not written out
    max_unrolled_features = 64
    if places.shape[1] > max_unrolled_features:
        return jnp.einsum("ti,tik->tk", values, rows[places])
    gathered_rows = 512  # rows that are gathered at once
    return jax.lax.map(
        weigh_row, (jnp.asarray(places), jnp.asarray(values)), batch_size=gathered_rows
    )
