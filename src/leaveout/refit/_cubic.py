"""Single rows of few columns left out: the next term from all rows at once, and a theorem that
bounds the remainder.

One step leads to u_j ≈ a_j z_j, at a distance ρ from the refit δ. With curvatures ω_i ℓ″_i and G =
ZZᵀ, Z = XL⁻ᵀ, of one output,

    z_jᵀδ = z_jᵀu_j − ½ S_j / (1 − h_j) + E_j,
    S_j = a_j² Σ_{i≠j} ω_i ℓ‴_i G_ij³ = a_j² T[z_j, z_j, z_j],

T = Σ ω_i ℓ‴_i z_i ⊗ z_i ⊗ z_i without row j: p²(p + 1)/2 numbers for all refits together. If |ℓ‴| ≤
Mℓ″ and |ℓ⁗| ≤ Kℓ″, and ‖δ‖ ≤ D, ‖a_j z_j‖ ≤ λ, ‖δ − a_j z_j‖ ≤ ρ in the norm of the fold's own
Hessian A,

    |E_j| (1 − h_j) ≤ κ (Mλρ + ½Mρ² + ⅙K b e^{Mb} D²),
    κ = max_i k_i k_j ≥ |G_ij|,   b = max_i k_i D / √(1 − h_j).

Proof. With s_i = z_iᵀδ, z_jᵀ(δ − u_j) = −Σ ω_i (ℓ′_i(η_i + s_i) − ℓ′_i − ℓ″_i s_i) z_iᵀA⁻¹z_j,
where z_iᵀA⁻¹z_j is G_ij / (1 − h_j), and the bracket ½ℓ‴_i s_i² but for ⅙K ℓ″_i |s_i|³ e^{M|s_i|}.
Let s_i = a_j G_ij + ε_i. As Σ ω_i ℓ″_i z_i z_iᵀ is at most A, no Σ ω_i ℓ″_i s_i² is above D², and
likewise for a_j G_ij and ε_i: what remains is the inequality of Cauchy and Schwarz. The cross term
Σ ω_i ℓ‴_i a_j G_ij² ε_i = a_j T[z_j, z_j, ε] is no larger than |a_j| ‖T[z_j, z_j, ·]‖ ρ / √(1 −
h_j). ∎

In the same way ‖δ − u_j‖_A ≤ (½a_j² ‖T[z_j, z_j, ·]‖ + max k_i (…)) / √(1 − h_j), with the same
brackets, which bounds ρ better.
"""

import functools

import numpy as np
from jaxtyping import Float, Int

from .._runtime.jax import cached_on
from ..linalg.design import DenseDesign, weight_terms
from ..linalg.rounding import FUNCTION, UNIT
from ..objectives.objective import PerRefit
from ._anchor import ELEMENTWISE, LinearFitCache
from ._one_row import OneRow

Array = np.ndarray


def is_cheap(anchor: LinearFitCache, gradients: int) -> bool:
    """Tell whether T takes fewer operations than so many gradients."""
    p = len(anchor.root)
    return p * p * (p + 1) <= (4 * p + ELEMENTWISE) * gradients


def worthwhile(anchor: LinearFitCache, gradients: int) -> bool:
    """Tell whether the bounded next term takes less than these gradients and a millisecond."""
    n, p = anchor.model.design.shape
    loss = anchor.model.loss
    is_supported = (
        loss.self_concordance is not None and loss.fourth is not None and anchor.model.norms is None
    )
    # numbers in the products of all rows: a millisecond
    return is_supported and n * p * p * (p + 1) <= 2 * 2e7 and is_cheap(anchor, gradients)


@functools.cache
def _pairs(p: int) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    return np.triu_indices(p)


@cached_on
def _third(anchor: LinearFitCache) -> Float[np.ndarray, "pairs rank"]:
    """Compute T, its first two axes as pairs, and pairs off the diagonal doubled."""
    (third,) = anchor.model.loss.derivatives(anchor.eta, anchor.model.y, (3,))
    i, j = _pairs(len(anchor.root))
    products = DenseDesign(anchor.rows).products(weight_terms(anchor.weight, third) * anchor.rows.T)
    return products[:, i, j].T * np.where(i < j, 2.0, 1.0)[:, None]


def third(
    anchor: LinearFitCache, moves: Float[np.ndarray, "selected rank"]
) -> Float[np.ndarray, "selected rank"]:
    """Compute T[u, u, ·] of some moves u."""
    i, j = _pairs(len(anchor.root))
    return (moves[:, i] * moves[:, j]) @ _third(anchor)


def settle_rows(anchor: LinearFitCache, look: OneRow) -> tuple[PerRefit, PerRefit]:
    """Predictors of rows that lose weight, and their errors, infinite for rows that gain weight."""
    loss = anchor.model.loss
    unit = look.unit
    z = anchor.rows[look.unit]
    (thirds,) = loss.derivatives(anchor.eta[unit], anchor.model.y[unit], (3,))
    pushed = third(anchor, z) - (look.lost_curvature * thirds * anchor.size[unit] ** 2)[:, None] * z
    along = look.lost_curvature * (
        anchor.slope[unit] + anchor.curvature[unit] * (look.center - anchor.eta[unit])
    )
    length = np.linalg.norm(pushed, axis=1)
    longest = anchor.norm.max()
    root = np.sqrt(look.kept_share)
    concordance = np.max(np.asarray(loss.self_concordance))
    fourth = np.max(np.asarray(loss.fourth))
    leftover = float(np.linalg.norm(anchor.leftover))
    rounding = anchor.rounding
    # share by which the sums of T are off: their rounding, that of z, three times in each term, and
    # that of ℓ‴
    tensor_error = (
        (rounding.rows + 6 * (rounding.columns + 16) * (1 + rounding.root)) * UNIT
        + FUNCTION
        + anchor.curvature_rounding
    )
    with np.errstate(over="ignore", invalid="ignore"):
        size = look.step_length + leftover
        reach = longest * look.distance / root
        beyond = (
            fourth / 6 * reach * np.exp(concordance * reach) * look.distance**2
            + concordance * tensor_error * size**2
        )
        off = look.after + leftover
        for _ in range(2):
            remainder = concordance * (size + 0.5 * off) * off + beyond
            off = np.minimum(off, (0.5 * along**2 * length + longest * remainder) / root + leftover)
        remainder = longest * anchor.norm[unit] * (0.5 * concordance * off**2 + beyond)
        error = (remainder + np.abs(along) * length * off / root) / look.kept_share + look.digits
    is_bounded = look.is_determined & (look.lost_curvature >= 0) & np.isfinite(error)
    move = -0.5 * along**2 * np.einsum("rp,rp->r", pushed, z) / look.kept_share
    error = error + 4 * (rounding.step / look.kept_share + FUNCTION) * np.abs(move)
    return look.center + move, np.where(is_bounded, error, np.inf)
