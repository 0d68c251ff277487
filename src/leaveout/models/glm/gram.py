"""Sums `Σ_n U_nᵀ C_n U_n` over rows in JAX's programs, in blocks, so that the rows are not
copied.
"""

import numpy as np

from ..._runtime import Array, Arrays, jax, jnp, make_on_first_call
from ...linalg import SparseDesign
from .rows import pick

WEIGHTED_ROWS = 8192  # rows that are weighted at a time


def gram(design: Arrays | SparseDesign, curvature: Arrays) -> Array:
    """Weighted sum of x xᵀ over rows, for `curvature` `[units]` or `[units, outputs, outputs]`."""
    if not isinstance(design, SparseDesign):
        return _weighted_gram(design, curvature)
    size = max(1, 2**20 // design.shape[1])  # compressed rows that are written out at a time

    def add(k, total):
        units = k * size + jnp.arange(size)
        block_curvature = jnp.where(
            (units < len(design)).reshape(-1, *[1] * (curvature.ndim - 1)),
            pick(curvature, units),
            0.0,
        )
        return total + _gram(design.dense_rows(units), block_curvature)

    params = design.shape[1] * (curvature.shape[-1] if curvature.ndim > 1 else 1)
    return jax.lax.fori_loop(0, -(-len(design) // size), add, jnp.zeros((params, params)))


def _gram_by_blocks(design: Array, curvature: Arrays) -> Array:
    """Sum over all rows, block by block."""
    num_blocks, remainder = divmod(len(design), WEIGHTED_ROWS)
    total = _gram(design[len(design) - remainder :], curvature[len(design) - remainder :])
    block = lambda array, k: jax.lax.dynamic_slice_in_dim(array, k * WEIGHTED_ROWS, WEIGHTED_ROWS)
    add = lambda k, total: total + _gram(block(design, k), block(curvature, k))
    if num_blocks:
        return jax.lax.fori_loop(0, num_blocks, add, total)
    return total


def _mapped_gram(axis_size, in_batched, design, curvature):
    """Compute the sums of many refits, by one product of all curvatures with all x xᵀ if these fit
    into memory.
    """
    n, q = design.shape[-2:]
    # so many numbers are formed
    if in_batched == [False, True] and curvature.ndim == 2 and n * q * q <= 2**21:
        i, j = np.triu_indices(q)
        place = np.zeros((q, q), int)
        place[i, j] = place[j, i] = np.arange(len(i))
        return (curvature @ (design[:, i] * design[:, j]))[:, place], True
    blocks = jax.vmap(_gram_by_blocks, [0 if batched else None for batched in in_batched])
    return blocks(design, curvature), True


@make_on_first_call
def _weighted_gram():
    gram = jax.custom_batching.custom_vmap(_gram_by_blocks)
    gram.def_vmap(_mapped_gram)
    return gram


def _gram(x: Array, curvature: Arrays) -> Array:
    """Compute `Σ_n U_nᵀ C_n U_n` of rows `x`, for `curvature` `[units]` or `[units, outputs,
    outputs]`.
    """
    if curvature.ndim == 1:
        return x.T @ (curvature[:, None] * x)
    params = x.shape[1] * curvature.shape[-1]
    return jnp.einsum("nkl,np,nq->kplq", curvature, x, x, optimize=True).reshape(params, params)
