"""Rounding errors of float64 in the proofs of `enclosure_theorem`: bounds that are derived, not
measured.

With u = 2⁻⁵³, a sum of k products, in whatever order, is off by at most k u Σ |x| |y| (C.-P.
Jeannerod and S. M. Rump, Improved error bounds for inner products in floating-point arithmetic,
2013). A bound made of nonnegative terms loses less than a factor of 1 + 2⁻³² while it is computed.
exp, log, log1p, expm1 and erfcx are taken to be within 4 units of the last place, which
`tests/linalg/test_rounding.py` measures, so that ℓ and its derivatives are within `FUNCTION` of the
sizes of their terms.

Let R be any inverse factor of the reference, ‖R A Rᵀ − I‖ ≤ δ, s² the diagonal of A, κ = ‖|R| s‖².
Then |x_ij| ≤ k_i s_j, and

    |fl(R x_i) − R x_i| ≤ (p + 2) u √κ k_i,      |fl(x_iᵀθ) − x_iᵀθ| ≤ (p + 2) u k_i Σ_j s_j |θ_j|,
    ‖R x_i‖ / √(1 + δ) ≤ k_i ≤ ‖R x_i‖ / √(1 − δ),      k_i = ‖x_i‖_{A⁻¹},

so that every rounding error of a predictor, a slope or a gradient is a number times k_i. A step by
RᵀR in the place of A⁻¹ leaves a residual of at most δ of its length.
"""

from typing import Any, NamedTuple

import numpy as np

from .._runtime import NumpyArray

UNIT = 2.0**-53
UP = 1 + 2.0**-32
TINY = 1e-300  # more than what underflows
# of a loss or a derivative, relative to the sizes of its terms: some ten operations and two
# functions
FUNCTION = 64 * UNIT


def condition(root: NumpyArray, scale: NumpyArray) -> NumpyArray:
    """Compute κ = ‖|R| s‖² of inverse factors `[..., rank, params]`."""
    return np.sum(np.einsum("...ij,...j->...i", np.abs(root), scale) ** 2, -1)


def factor_error(kappa: Any, rows: int, columns: int) -> Any:
    """Bound δ for a Cholesky factor, δ ≤ (n + 4p + 8) u κ: the rounding of a sum of n products, its
    factor and the inverse.

    If δ ≥ ½, A is not known to have an inverse.
    """
    return (rows + 4 * columns + 8) * UNIT * kappa


class Rounding(NamedTuple):
    """Sizes from which rounding errors at the anchor follow.

    Of `rows` and `columns`, √κ, δ, and Σ_j s_j |θ̂_j|.
    """

    rows: int
    columns: int
    root: Any  # one number, or one for each of several anchors
    off: Any
    bulk: Any

    @property
    def growth(self) -> Any:
        """Largest ratio of k_i to its computed value."""
        return (1 + 2 * (self.columns + 16) * UNIT * (1 + self.root)) / np.sqrt(
            1 - np.minimum(self.off, 0.5)
        )

    @property
    def formed(self) -> Any:
        """Error of a whitened Hessian whose sums are formed before they are whitened, relative to
        its largest eigenvalue.
        """
        return UP * factor_error(self.root**2, self.rows, self.columns)

    @property
    def step(self) -> Any:
        """Length, relative to that of a step, of the residual that it leaves in the norm of A."""
        return 2 * self.off + (self.columns + 16) * UNIT * (2 + 4 * self.root)

    def predictor(
        self, length: NumpyArray, size: NumpyArray | float, move: NumpyArray | float = 0.0
    ) -> Any:
        """Bound the errors of predictors at θ̂ + Rᵀu for u of length `move`: as computed there, or
        as η̂ + zᵀu.

        `length` is k, and `size` that of the predictors, which offsets do not exceed by more than
        Σ_j |x_ij θ_j|.
        """
        return (
            UP
            * UNIT
            * ((3 * self.columns + 11) * (self.bulk + self.root * move) * length + 4 * size)
        )

    def gradient(self, slope_sum: NumpyArray | float, move: NumpyArray | float = 0.0) -> Any:
        """Bound the error of a whitened gradient by its sums, for Σ ω |ℓ′| k = `slope_sum`.

        The penalty's part is added.
        """
        error = (self.rows + self.columns + 4) * slope_sum + (self.columns + 4) * (
            self.bulk + self.root * move
        )
        return UP * UNIT * self.root * error


def bounded(
    extent: Any, rounding: Rounding, several: bool = False
) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Bound the norm, the size and the length of units from their computed values, an `Extent`.

    Those of several outputs come from products that cancel.
    """
    norm = extent.norm
    size = extent.size
    length = extent.length
    cancellation = 0.0
    if several:
        cancellation = (8 * rounding.columns + 32) * UNIT * rounding.root**2 * length**2
    growth = rounding.growth
    norm_bound = (np.sqrt(norm**2 + cancellation) if several else norm) * growth
    return (
        norm_bound,
        size * growth**2 + cancellation,
        norm_bound if length is norm else np.sqrt(length**2 + cancellation) * growth,
    )
