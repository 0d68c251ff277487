"""Covariances of Gaussian noise: their kinds, their coordinates, and their inverses without LAPACK.

A covariance is `[K, R, R]` ("full"), `[R, R]` for all states ("tied"), variances `[K, R]` ("diagonal") or `[K]`
("spherical"), or held fixed: one variance `[]`, or `[R, R]`, or `[K, R, R]`. Free matrices live in θ as their Cholesky
factor with the logarithm of its diagonal, row by row. XLA's calls of LAPACK on the CPU can deadlock inside a compiled loop
over folds, so matrices are inverted by sweeps of elementwise operations, and differentiated by matrix products.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from ..._runtime.jax import Arrays, Module, static
from ...objectives.objective import as_stored
from ._base import POSITIVE, Constraint

KINDS = ("diagonal", "full", "spherical", "tied")
LOG_TAU = math.log(2 * math.pi)
SKEW = 1e-6  # largest asymmetry by rounding of a matrix whose diagonal is one


def _sweeps(matrix: Float[Array, "... n n"]) -> tuple[Float[Array, "... n n"], Float[Array, "... n n"]]:
    """Compute the inverse and the Cholesky factor of positive definite matrices by sweeping column after column."""
    rows = jnp.arange(matrix.shape[-1])

    def sweep(a, j):
        here = rows == j
        column = jnp.sum(jnp.where(here, a, 0.0), axis=-1)
        pivot = jnp.sum(jnp.where(here, column, 0.0), axis=-1, keepdims=True)
        factor = jnp.where(rows >= j, column, 0.0) / jnp.sqrt(pivot)  # the part not yet swept is the Schur complement
        c = jnp.where(here, -1.0, column)
        swept = jnp.where(here | here[:, None], 0.0, a) - c[..., :, None] * c[..., None, :] / pivot[..., None]
        return swept, factor

    swept, columns = jax.lax.scan(sweep, matrix, rows)
    return -swept, jnp.moveaxis(columns, 0, -1)


@jax.custom_jvp
def inverse(matrix: Float[Array | np.ndarray, "... n n"]) -> tuple[Float[Array, "... n n"], Float[Array, "..."]]:
    """Compute the inverse and the log-determinant of positive definite matrices."""
    precision, factor = _sweeps(jnp.asarray(matrix))
    return precision, 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)


@inverse.defjvp
def _(primals, tangents):
    (matrix,), (change,) = primals, tangents
    precision, log_det = inverse(matrix)
    return (precision, log_det), (-precision @ change @ precision, jnp.sum(precision * change, axis=(-2, -1)))


def _covariance(vector: Float[Array, "... entries"]) -> Float[Array, "... n n"]:
    size = (math.isqrt(8 * vector.shape[-1] + 1) - 1) // 2
    rows, columns = np.tril_indices(size)
    place = np.full((size, size), vector.shape[-1])
    place[rows, columns] = np.arange(vector.shape[-1])
    lower = jnp.concatenate([vector, jnp.zeros((*vector.shape[:-1], 1))], axis=-1)[..., place]
    factor = jnp.where(np.eye(size, dtype=bool), jnp.exp(lower), lower)
    return factor @ jnp.swapaxes(factor, -1, -2)


def _log_cholesky(matrix: Float[Array | np.ndarray, "... n n"]) -> Float[Array, "... entries"]:
    factor = _sweeps(jnp.asarray(matrix))[1]
    size = factor.shape[-1]
    diagonal = np.eye(size, dtype=bool)
    lower = jnp.where(diagonal, jnp.log(jnp.where(diagonal, factor, 1.0)), factor)
    return lower[(..., *np.tril_indices(size))]


def _symmetric(matrix: np.ndarray) -> Bool[np.ndarray, "..."] | np.bool_:
    scale = np.sqrt(np.abs(np.diagonal(matrix, axis1=-2, axis2=-1)))
    skew = np.abs(matrix - np.swapaxes(matrix, -1, -2))
    return (skew <= SKEW * scale[..., :, None] * scale[..., None, :]).all((-2, -1))


# positive definite matrices, over the last two axes
MATRIX = Constraint(
    _covariance,
    _log_cholesky,
    lambda shape: np.tril(np.ones(shape, bool)),
    _symmetric,
    "symmetric, positive definite and finite",
)


class Covariance(Module):
    """Kind of a covariance, and its value if it is fixed."""

    kind: str = static()
    value: Float[np.ndarray, "..."] | None

    def __init__(self, emission: str, covariance: "str | ArrayLike"):
        if isinstance(covariance, str):
            if covariance not in KINDS:
                raise ValueError(f"{emission}: covariance must be one of {', '.join(KINDS)}, or an array; got {covariance!r}.")
            self.kind, self.value = covariance, None
            return
        value = as_stored(covariance)
        if value.ndim not in (0, 2, 3) or (value.ndim and value.shape[-1] != value.shape[-2]):
            raise ValueError(
                f"{emission}: a fixed covariance is a number, [channels, channels] or [states, channels, channels]; "
                f"got shape {list(value.shape)}."
            )
        matrices = value if value.ndim else value[None, None]
        symmetric = np.allclose(matrices, np.swapaxes(matrices, -1, -2), rtol=1e-10, atol=0)
        if not (np.isfinite(matrices).all() and symmetric and (np.linalg.eigvalsh(matrices) > 0).all()):
            raise ValueError(f"{emission}: a fixed covariance must be symmetric, positive definite and finite; got\n{value}")
        self.kind, self.value = {0: "spherical", 2: "tied", 3: "full"}[value.ndim], value

    @property
    def matrices(self) -> bool:
        return self.kind in ("full", "tied")

    @property
    def free(self) -> dict[str, Constraint]:
        if self.value is not None:
            return {}
        return {"covariance": MATRIX if self.matrices else POSITIVE}

    @property
    def fixed(self) -> dict[str, np.ndarray]:
        return {} if self.value is None else {"covariance": self.value}

    @property
    def shared(self) -> frozenset[str]:
        one_for_all = self.kind == "tied" or (self.value is not None and self.value.ndim == 0)
        return frozenset({"covariance"} if one_for_all else ())

    def check(self, emission: str, x: Float[np.ndarray, "steps channels"]) -> None:
        """Raise ValueError if the data do not fit the fixed value, or cannot distinguish a free one from zero."""
        channels = x.shape[1]
        if self.value is not None:
            if self.value.ndim and self.value.shape[-1] != channels:
                raise ValueError(
                    f"{emission}: the covariance is for {self.value.shape[-1]} channels, the data have {channels}."
                )
            return
        for channel in range(channels):
            seen = x[~np.isnan(x[:, channel]), channel]
            if len(seen) and np.ptp(seen) == 0:
                raise ValueError(
                    f"{emission}: channel {channel} is constant ({seen[0]:g}), so its variance would be zero; "
                    "leave the channel out, or give a fixed covariance."
                )

    def precision(self, covariance: Arrays, channels: int) -> tuple[Arrays, Array]:
        """Compute the inverse of the covariance, `[..., R, R]` or its diagonal `[..., R]`, and its log-determinant `[...]`."""
        if self.matrices:
            return inverse(covariance)
        variance = covariance[..., None] * jnp.ones(channels) if self.kind == "spherical" else covariance
        return 1 / variance, jnp.sum(jnp.log(variance), axis=-1)

    def log_density(self, residual: Float[Array, "... channels"], covariance: Arrays) -> Float[Array, "..."]:
        """`−½ (rᵀ Σ⁻¹ r + log |2πΣ|)`; residuals `[..., K, R]` for a covariance with a state axis, else `[..., R]`."""
        precision, log_det = self.precision(covariance, residual.shape[-1])
        if precision.ndim < 2 or not self.matrices:
            square = jnp.sum(precision * residual**2, axis=-1)
        elif precision.ndim == 2:
            square = jnp.sum((residual @ precision) * residual, axis=-1)
        else:
            square = jnp.einsum("...kr,krs,...ks->...k", residual, precision, residual)
        return -0.5 * (square + log_det + residual.shape[-1] * LOG_TAU)

    def start(
        self, residual: Float[np.ndarray, "steps channels"], labels: Int[np.ndarray, " steps"], num_states: int
    ) -> dict[str, np.ndarray]:
        """Compute the covariance of the residuals in each cluster, shrunk a little towards that of all."""
        if self.value is not None:
            return {}
        channels = residual.shape[1]
        total = residual.T @ residual / len(residual)
        total = np.diag(np.maximum(np.diag(total), 1e-300)) * 0.5 + 0.5 * total
        if self.kind == "tied":
            return {"covariance": total}
        inside = [residual[labels == k] for k in range(num_states)]
        worth = channels + 1
        full = np.stack([(r.T @ r + worth * total) / (len(r) + worth) for r in inside])
        variances = np.diagonal(full, axis1=1, axis2=2)
        return {"covariance": {"full": full, "diagonal": variances, "spherical": variances.mean(axis=1)}[self.kind]}

    def noise(self, parameters: Mapping[str, Arrays], state: int, channels: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the noise of one observation in a state."""
        value = np.asarray(parameters["covariance"])
        value = value if "covariance" in self.shared else value[state]
        normal = rng.standard_normal(channels)
        return np.linalg.cholesky(value) @ normal if self.matrices else np.sqrt(value) * normal
