"""Single rows left out: the next term of the expansion from products of all rows with the left-out
one, and a theorem that bounds what remains.

One step leads to u_j ≈ a_j z_j. Let δ be the refit, A the fold's own Hessian, G = ZZᵀ, Z = XL⁻ᵀ, of
one output, W_i = ω_i ℓ″_i without row j, and ρ a bound of ‖δ − a_j z_j‖ in the norm of A. With

    S₃ = Σ ω_i ℓ‴_i G_ij³,    S₄ = Σ W_i G_ij⁴,    g = max |G_ij|,    e = ρ max k_i / √(1 − h_j),

where |ℓ‴| ≤ Mℓ″, |ℓ⁗| ≤ Kℓ″, all sums over the rows that stay,

    z_jᵀδ = z_jᵀu_j − ½ a_j² S₃ / (1 − h_j) + E_j,
    |E_j| (1 − h_j) ≤ M(a_j √S₄ + ½gρ) ρ + ⅙K e^{Mb} (a_j S₄^⅓ + (g e ρ²)^⅓)³,      b = a_j g + e,
    ρ ≤ ½M e^{Mb} (a_j S₄^¼ + √(e ρ))².

Proof. Let s_i = z_iᵀδ = a_j G_ij + ε_i and R_i = ω_i (ℓ′_i(η_i + s_i) − ℓ′_i − ℓ″_i s_i). Then δ −
u_j = −A⁻¹ Σ R_i z_i, and z_iᵀA⁻¹z_j = G_ij / (1 − h_j). R_i is ½ω_i ℓ‴_i s_i² but for ⅙K W_i |s_i|³
e^{Mb}. Σ W_i z_i z_iᵀ is at most A, so that Σ W_i ε_i² ≤ ρ² and |ε_i| ≤ e. The inequality of Cauchy
and Schwarz bounds Σ ω_i ℓ‴_i (s_i² − a_j² G_ij²) G_ij, that of Minkowski, with weights W_i |G_ij|,
the cubes. The last line is ‖Σ R_i z_i‖² ≤ Σ R_i² / W_i in the norm of A⁻¹, with |R_i| ≤ ½M W_i s_i²
e^{Mb}, and Minkowski's inequality for the sum of s_i⁴. ∎

Products and their sums may be computed in float32: what these lose is added.
"""

from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool

from ..linalg.design import DenseDesign
from ..linalg.rounding import FUNCTION, UNIT
from ..objectives.objective import PerRefit
from ._anchor import SINGLE_UNIT, LinearFitCache, groups
from ._one_row import OneRow

Array = np.ndarray
LONG = 0.5  # M b from which the remainder is larger than the term
# left-out rows, and units, whose products are computed together and stay in a cache
LANES = 128
UNITS = 512
UNDERFLOW = 1e-30  # more than what sums of scaled products lose below the range of float32
ROUGH = (
    1e-4  # rounding error of products in float32, relative to a row's, up to which they are used
)


def promising(anchor: LinearFitCache, look: OneRow) -> Bool[np.ndarray, " refits"]:
    """Mark refits whose remainder may be small: rows that lose weight, by short steps."""
    is_bounded = anchor.model.loss.fourth is not None and np.isfinite(anchor.curvature_rate)
    change = anchor.curvature_rate * look.step_length / np.sqrt(look.kept_share)
    leaves = look.is_determined & (look.lost_curvature >= 0) & (anchor.norm[look.unit] > 0)
    is_quadratic = is_bounded and anchor.model.norms is None and anchor.model.design.outputs == 1
    return leaves & (change < LONG) & np.isfinite(look.after) & is_quadratic


class ProductSums(NamedTuple):
    """Sums of powers of the products of rows with left-out ones, as shares of the largest possible
    product, the `scale`, by weights that are shares of the `heaviest`,
    and the largest product.

    `precision` is the rounding error of a product, relative to the norms of the rows.
    """

    third: PerRefit
    fourth: PerRefit
    largest: PerRefit
    heaviest: float
    scale: PerRefit
    precision: float
    unit: float  # of the precision that sums have


def products(anchor: LinearFitCache, look: OneRow) -> ProductSums:
    """Sum powers of the products of all rows with the rows that leave."""
    unit = look.unit
    masses = anchor.weight * anchor.curvature
    heaviest = float(masses.max())
    scale = anchor.norm.max() * anchor.norm[unit]
    is_rough = isinstance(anchor.model.design, DenseDesign) and anchor.digits < ROUGH
    kind: type[np.floating]
    if is_rough:
        kind, rounding_unit = np.float32, SINGLE_UNIT
        rows = cast(DenseDesign, anchor.single[0]).x
    else:
        kind, rounding_unit = np.float64, UNIT
        rows = None
    weight = (masses / heaviest).astype(kind)
    third = (anchor.weight * anchor.third / heaviest).astype(kind)
    third_sum, fourth_sum, largest = np.zeros((3, len(unit)))
    for lanes in groups(np.arange(len(unit)), LANES):
        direction = anchor.whiten(unit[lanes, None])[:, 0] / scale[lanes, None]
        if rows is None:
            all_products = anchor.predictor_moves(direction, False).T
        direction = np.ascontiguousarray(direction.T, kind)
        for start in range(0, len(anchor.eta), UNITS):
            block = slice(start, start + UNITS)
            if rows is None:
                product = all_products[block].copy()
            else:
                product = rows[block] @ direction
            place = unit[lanes] - start
            inside = np.flatnonzero((place >= 0) & (place < len(product)))
            product[place[inside], inside] = 0.0
            square = product * product
            largest[lanes] = np.maximum(largest[lanes], square.max(0))
            product *= square
            third_sum[lanes] += third[block] @ product
            square *= square
            fourth_sum[lanes] += weight[block] @ square
    # a row of which a part stays
    staying = (anchor.weight[unit] - look.lost_curvature) / heaviest
    share = np.where(staying > 0, anchor.size[unit] / scale, 0.0)
    return ProductSums(
        third_sum + staying * anchor.third[unit] * share**3,
        fourth_sum + staying * anchor.curvature[unit] * share**4,
        np.maximum(np.sqrt(largest), share),
        heaviest,
        scale,
        (len(anchor.root) + 4) * rounding_unit + anchor.rounding.step,
        rounding_unit,
    )


def settle_rows(anchor: LinearFitCache, look: OneRow) -> tuple[PerRefit, PerRefit]:
    """Predictors of rows that lose weight, by short steps, and their errors."""
    loss = anchor.model.loss
    unit = look.unit
    rounding = anchor.rounding
    concordance = float(np.max(np.asarray(loss.self_concordance)))
    fourth = float(np.max(np.asarray(loss.fourth)))
    sums = products(anchor, look)

    # what rounding takes from products, and from sums
    longest = anchor.norm.max()
    square = sums.heaviest * longest**2
    mass = float(anchor.weight * anchor.curvature @ anchor.norm**2) / square
    sum_error = (len(anchor.eta) + 16) * sums.unit
    square_sum = (1 / np.sqrt(square) + 2 * sums.precision * np.sqrt(mass)) ** 2
    third_error = 3 * sums.precision + sum_error + FUNCTION + anchor.curvature_rounding
    third_error = third_error * concordance * square_sum + UNDERFLOW
    largest = ((1 + sum_error) * sums.largest + sums.precision) * sums.scale
    fourth_root = (1 + sum_error) * (sums.fourth + UNDERFLOW) ** 0.25
    fourth_root = (fourth_root + sums.precision * mass**0.25) * sums.heaviest**0.25 * sums.scale

    along = look.lost_curvature * (
        anchor.slope[unit] + anchor.curvature[unit] * (look.center - anchor.eta[unit])
    )
    steepness = np.abs(along)
    root = np.sqrt(look.kept_share)
    leftover = float(np.linalg.norm(anchor.leftover)) + anchor.noise / root
    with np.errstate(over="ignore", invalid="ignore"):
        distance = look.after + leftover
        for _ in range(3):
            reach = longest * distance / root
            growth = np.exp(concordance * (steepness * largest + reach))
            path = steepness * fourth_root + np.sqrt(reach * distance)
            distance = np.fmin(distance, 0.5 * concordance * growth * path**2 + leftover)
        cross = concordance * (steepness * fourth_root**2 + 0.5 * largest * distance) * distance
        cubes = np.cbrt(steepness**3 * fourth_root**4) + np.cbrt(largest * reach * distance**2)
        size = sums.heaviest * sums.scale**3
        error = cross + fourth / 6 * growth * cubes**3 + 0.5 * along**2 * size * third_error
    error = (1 + 8 * (rounding.off + anchor.curvature_rounding)) * error / look.kept_share
    move = -0.5 * along**2 * size * sums.third / look.kept_share
    error += look.digits + 4 * (rounding.step / look.kept_share + FUNCTION) * np.abs(move)
    return look.center + move, np.where(np.isfinite(error), error, np.inf)
