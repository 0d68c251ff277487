"""Curvature: symmetric matrices that are asked for solutions, whitened vectors and determinants.

    H = L Lᵀ,      H⁻¹b = L⁻ᵀL⁻¹b,      log|H| = 2 Σ log L_jj

A matrix is positive definite if no pivot L_jj² is less than a share of H_jj, so that units of
measurement do not matter. All answers of a matrix that is not are NaN: those who ask need not know.
"""

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int
from numpy import linalg

from .._runtime import NumpyArray

Squares = Float[NumpyArray, "*matrices k k"]

# least pivot, relative to the parameter's curvature; below it most is rounding, as under separation
PIVOT = 1e-14
# parameters up to which NumPy's batched solver is faster than a call of LAPACK for each matrix
SMALL_SYSTEM = 64


def cholesky(matrices: Squares) -> Squares:
    """Lower factors; NaN where a matrix is not positive definite."""
    k = matrices.shape[-1]
    if k == 1:
        return np.sqrt(np.where(matrices > 0, matrices, np.nan))
    try:
        return linalg.cholesky(matrices)
    except linalg.LinAlgError:
        pass
    out = np.full((int(np.prod(matrices.shape[:-2])), k, k), np.nan)
    for index, matrix in enumerate(matrices.reshape(-1, k, k)):
        if np.isfinite(matrix).all():
            factor, failed = scipy.linalg.lapack.dpotrf(matrix, lower=True)
            out[index] = np.nan if failed else np.tril(factor)
    return out.reshape(matrices.shape)


def solve_each(matrices: Squares, vectors: Float[NumpyArray, "*matrices k"]) -> NumpyArray:
    """Compute `A⁻¹ b` for each of many matrices and its vector."""
    return linalg.solve(matrices, vectors[..., None])[..., 0]


class Curvature(NamedTuple):
    """Factors L of one matrix or of several; the identity where one is not positive definite."""

    factor: Squares
    definite: Bool[NumpyArray, "*matrices"]

    @classmethod
    def of(cls, matrices: Squares, least: float = PIVOT) -> "Curvature":
        """Factor matrices; `least` is the smallest pivot of a positive definite one, relative to
        its diagonal.
        """
        factor = cholesky(matrices)
        pivots, diagonal = (np.einsum("...pp->...p", part) for part in (factor, matrices))
        definite = (pivots**2 > least * diagonal).all(-1)
        if not definite.all():
            factor = np.where(definite[..., None, None], factor, np.eye(factor.shape[-1]))
        return cls(factor, definite)

    def take(self, places: Int[NumpyArray, " some"]) -> "Curvature":
        """The matrices at these places."""
        return Curvature(self.factor[places], self.definite[places])

    def _masked(self, answer: NumpyArray) -> NumpyArray:
        """NaN where a matrix is not positive definite."""
        if self.definite.all():
            return answer
        return np.where(self.definite[..., None, None], answer, np.nan)

    def solve(self, right: Float[NumpyArray, "*matrices k columns"]) -> NumpyArray:
        """Compute H⁻¹b of columns b."""
        if not right.size:
            return right
        if self.factor.ndim == 2:
            # in LAPACK's order
            answer = scipy.linalg.lapack.dpotrs(self.factor.T, right)[0]
        elif len(self.factor) == 1 or right.shape[-2] > SMALL_SYSTEM:
            pairs = zip(self.factor, right, strict=True)
            answer = np.stack([scipy.linalg.lapack.dpotrs(L.T, b)[0] for L, b in pairs])
        else:
            answer = linalg.solve(self.factor.swapaxes(-1, -2), linalg.solve(self.factor, right))
        return self._masked(answer)

    def step(self, gradient: Float[NumpyArray, "*matrices k"]) -> Float[NumpyArray, "*matrices k"]:
        """Compute H⁻¹g of a gradient each."""
        return self.solve(gradient[..., None])[..., 0]

    @property
    def root(self) -> Squares:
        """L⁻¹, which whitens gradients."""
        k = self.factor.shape[-1]
        roots = [scipy.linalg.lapack.dtrtri(L, lower=1)[0] for L in self.factor.reshape(-1, k, k)]
        return self._masked(np.reshape(roots, self.factor.shape))

    @property
    def logdet(self) -> Float[NumpyArray, "*matrices"]:
        """log|H|."""
        logdet = 2 * np.log(np.einsum("...pp->...p", self.factor)).sum(-1)
        return np.where(self.definite, logdet, np.nan)
