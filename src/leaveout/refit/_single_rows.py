"""Single rows left out, in four ways: one step, the next term of the expansion proved or estimated,
and more steps.

# One step with the row's own Hessian, in O(1) each (J. Sherman and W. J. Morrison, 1950)

If a row z loses the weight v, the Hessian becomes H − v ℓ″ z zᵀ, and the step follows from zᵀH⁻¹z
alone.

# The next term of the expansion, from products of all rows with the left-out one

A theorem bounds what remains.

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

Products and their sums may be computed in float32: what these lose is added. Of few columns the
sums come from the moments Σ ω ℓ‴ z ⊗ z ⊗ z and Σ W z ⊗ z ⊗ z ⊗ z of all rows, less the row's own,
where the rounding is relative to Σ W ‖z_i‖⁴ ‖z_j‖⁴.

# The next term, estimated, where a gradient of every refit costs too much

After one step u_j with the row's own Hessian (`one_row`) its predictor still moves by about

    −½ Σ_{i≠j} ω_i ℓ‴_i (z_iᵀu_j)² (z_iᵀz_j) / (1 − h_j ω_j ℓ″_j),      z = L⁻¹x whitened,

It is estimated from a sample of rows, with its standard error, or computed from all rows. The
result is called an estimate. It is not used after a long step, when later terms would matter. Sums
are in float32, unless columns nearly repeat one another: an error of 1e-6 of a small correction
does not matter.

For several outputs the term of the row's own loss, whose slope after the step is b, takes 2K
products of two rows instead of K²,

    −½ Σ_{i≠j} ω_i ∇³ℓ_i[U_iu_j, U_iu_j, U_iv_j],      v_j = H⁻¹U_jᵀ (1 − ω_j ∇²ℓ_j G_jj)⁻¹ b,

G_jj = U_j H⁻¹ U_jᵀ. It is added to the loss. Of the later terms `REMAINDER` c Σ ω_i |∇³ℓ_i| is
an estimate, c the logarithmic change of curvatures and |∇³ℓ| a sum of sizes.

# Steps of rows of one predictor each, whose errors products of all rows with the left-out one bound

In the anchor's coordinates, H = I, let δ be the move of the refit without row j, s_i = z_iᵀδ, W_i =
ω_i ℓ″_i, and g the gradient at θ̂ without it. Its own Hessian A = I − W_j z_j z_jᵀ has A⁻¹z_j = q
z_j, q = 1 / (1 − h_j W_j). At δ F is stationary:

    g + A δ + Σ_{i≠j} R_i(s_i) z_i = 0,      R_i(t) = ω_i (ℓ′_i(η_i + t) − ℓ′_i − ℓ″_i t).

Take any t with Σ W_i (s_i − t_i)² ≤ D², the curvatures' ratios r_i = ℓ″_i(η_i + t_i) / ℓ″_i, and
x = M max |s_i − t_i|. Then

    z_jᵀδ = z_jᵀu₁ − q Σ R_i(t_i) G_ij + E,      u₁ = −A⁻¹g,      G = ZZᵀ,
    |E| ≤ q D (√(Σ W_i (r_i − 1)² G_ij²) + ½ M eˣ D max r_i |G_ij|).

Proof. R_i(s_i) − R_i(t_i) is s_i − t_i times a secant of ω_i ℓ′_i less W_i, which is W_i (r_i − 1)
up to ½ M eˣ W_i r_i |s_i − t_i|. The first part gives the root, by the inequality of Cauchy and
Schwarz, and the second the rest. ∎

The ball of `enclosure_theorem` around some u with predictors t gives D = λ / (1 − C), where 1 − C
is at least min r_i (1 − ½x) for x over its radius; gaps prove less C where a row has much leverage.
λ has a bound before a gradient is known: ‖Σ a_i z_i‖² in the norm of A⁻¹ is at most Σ a_i² / W_i,
as Σ W_i z_i z_iᵀ ⪯ A. The gradient at u₁ is Σ R_i(t_i) z_i, and a step to u₁ − A⁻¹ Σ R_i(t_i) z_i
leaves Σ (R_i(t′_i) − R_i(t_i)) z_i.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int
from numpy import linalg

from .._runtime import ArrayFunction, NumpyArray, cached_on, silence, slices
from ..linalg import (
    FUNCTION,
    UNIT,
    UP,
    Ball,
    DenseDesign,
    LossOfSeveral,
    apply_curvature,
    scale_units,
)
from ..objectives import (
    Flags,
    Lanes,
    PerLane,
    PerRefit,
    Points,
    RefitFlags,
    RefitNumbers,
    RefitValues,
    Selection,
    Weights,
)
from ..optimize import Fit
from ._anchor import (
    HERD,
    PASS,
    SINGLE_UNIT,
    LinearFitCache,
    groups,
    linear_cache,
    span,
    tiles,
    total,
)
from ._enclosure import STALL_RATIO, third_term
from ._refit_batch import take


class OneRow(NamedTuple):
    """Single rows after one step with their own Hessian, in O(1) each.

    Each has the row and the weight that it loses, its predictors, and their errors.
    """

    unit: RefitNumbers
    lost_curvature: PerRefit
    center: RefitValues
    half: PerRefit
    step_length: PerRefit  # λ, the length of the step
    distance: PerRefit  # D, a bound of the distance of the refit, and ρ, a bound after the step
    after: PerRefit
    kept_share: PerRefit  # 1 − q
    inverse: RefitValues  # inverse of that; for several outputs of I − zᵀz ℓ″
    digits: PerRefit  # rounding error of the predictor
    is_determined: RefitFlags

    def take(self, lanes: NumpyArray) -> "OneRow":
        return OneRow(*(part[lanes] for part in self))


class Row(NamedTuple):
    """Quantities of the anchor for the rows that leave, one number each.

    Vectors and matrices for several outputs.
    """

    eta: RefitValues
    slope: RefitValues
    curvature: RefitValues
    norm: PerRefit  # ‖z‖, z = R⊤x
    inner: RefitValues  # zᵀz
    share: PerRefit  # largest share of H that the row's curvature has, for a weight of one
    common: RefitValues | float  # zᵀ times the whitened gradient of the fit


def one_row(fit: Fit, unit: NumpyArray, weight: NumpyArray) -> OneRow:
    """Take the first look at refits that each change the weight of one row."""
    anchor = linear_cache(fit)
    index = span(unit)
    gradient_square = float(anchor.leftover @ anchor.leftover)
    common = anchor.common[index] if gradient_square else 0.0
    parts = anchor.eta[index], anchor.slope[index], anchor.curvature[index], anchor.norm[index]
    share = anchor.size[index] * (anchor.curvature[index] if anchor.roots is None else 1.0)
    row = Row(*parts, anchor.inner[index], share, common)
    grown = np.maximum(weight, 1.0)

    rounded = lambda center, move: anchor.rounding.predictor(
        anchor.length[index], total(np.abs(center), 1), move
    )
    ball = lambda slope, kept: anchor.table.ball(slope, kept, grown)
    lost_weight = (1 - weight) * anchor.weight[index]
    noise = anchor.noise * grown
    return sherman_morrison_step(
        unit,
        lost_weight,
        row,
        gradient_square,
        noise,
        ball,
        rounded,
        anchor.floor,
        anchor.rounding.step,
    )


def sherman_morrison_step(
    unit: RefitNumbers,
    lost_weight: PerRefit,
    row: Row,
    gradient_square: PerRefit | float,
    noise: PerRefit,
    ball: Callable[[NumpyArray, NumpyArray], Ball],
    rounded: Callable[[NumpyArray, NumpyArray], NumpyArray],
    floor: PerRefit | float,
    off: PerRefit | float,
) -> OneRow:
    """Step single rows with their own Hessian, I − `lost_weight` z ℓ″ zᵀ, without forming a vector
    of parameters.

    `gradient_square` is ‖gradient‖² of the fit, whitened. `ball` maps λ to proved radii; `rounded`
    gives the rounding error of a predictor after a move of a length, and `off` what a step leaves
    of its length.
    """
    slopes = scale_units(lost_weight, row.slope)
    curvatures = scale_units(lost_weight, row.curvature)
    kept_share = 1 - lost_weight * row.share
    off = off * (1 + np.abs(lost_weight) * row.share)
    kept_share -= off
    determined = kept_share > floor
    kept_share = np.where(determined, np.minimum(kept_share, 1.0), 1.0)
    along = row.common - apply_curvature(row.inner, slopes)  # z · gradient
    if row.inner.ndim == 1:  # as it is computed, as `kept_share` is a lower bound
        inverse = 1 / np.where(determined, 1 - curvatures * row.inner, 1.0)
    else:
        own_curvatures = np.where(determined[:, None, None], curvatures, 0.0)
        inverse = linalg.inv(np.eye(row.inner.shape[1]) - row.inner @ own_curvatures)
    step = apply_curvature(inverse, along)
    length = (
        gradient_square
        - total(slopes * (row.common + along), 1)
        + total(along * apply_curvature(curvatures, step), 1)
    )
    root = np.sqrt(kept_share)
    slope = np.sqrt(np.maximum(length, 0.0)) + noise / root
    distance, after = ball(slope, kept_share)
    center = row.eta - step
    digits = rounded(center, slope / root) + row.norm / root * (
        noise / root + 2 * off / kept_share * slope
    )
    with silence("invalid"):
        half = np.where(determined, row.norm / root * after, np.inf) + digits
    return OneRow(
        unit,
        lost_weight,
        center,
        half,
        slope,
        distance,
        after,
        kept_share,
        inverse,
        digits,
        determined,
    )


LONG = 0.5  # M b from which the remainder is larger than the term
# left-out rows, and units, whose products are computed together and stay in a cache
LANES = 128
UNITS = 512
FEW_COLUMNS = 20.0  # operations by pairs of columns that take the time of a product and its sums
UNDERFLOW = 1e-30  # more than what sums of scaled products lose below the range of float32


def promising(anchor: LinearFitCache, look: OneRow) -> RefitFlags:
    """Mark refits whose remainder may be small: rows that lose weight, by short steps."""
    is_bounded = anchor.model.loss.fourth is not None and np.isfinite(anchor.curvature_rate)
    change = _curvature_change(anchor.curvature_rate, look)
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
    moment_error: float  # rounding error of sums by moments, relative to those of sizes


@cached_on
def _fourth(anchor: LinearFitCache) -> Float[NumpyArray, "pairs pairs"]:
    """Compute Σ ω ℓ″ z ⊗ z ⊗ z ⊗ z, by pairs of axes, and pairs off the diagonal doubled."""
    i, j = np.triu_indices(len(anchor.root))
    pairs = np.where(i < j, 2.0, 1.0) * anchor.rows[:, i] * anchor.rows[:, j]
    return (pairs.T * anchor.mass) @ pairs


def sums_by_moments(anchor: LinearFitCache, look: OneRow) -> ProductSums:
    """Sum powers of products by the third and fourth moments of all rows: for few columns."""
    unit = look.unit
    heaviest = float(anchor.mass.max())
    scale = anchor.norm.max() * anchor.norm[unit]
    rows = anchor.rows[unit]
    direction = rows / scale[:, None]
    i, j = np.triu_indices(len(anchor.root))
    pairs = direction[:, i] * direction[:, j]
    share = np.vecdot(direction, rows)
    third = np.vecdot(third_term(anchor, direction), direction)
    third -= look.lost_curvature * anchor.third[unit] * share**3
    fourth = np.vecdot(pairs @ _fourth(anchor), pairs)
    fourth -= look.lost_curvature * anchor.curvature[unit] * share**4
    return ProductSums(
        third / heaviest,
        np.maximum(fourth, 0.0) / heaviest,
        np.ones(len(unit)),
        heaviest,
        scale,
        (len(anchor.root) + 4) * UNIT + anchor.rounding.step,
        UNIT,
        (len(anchor.eta) + 4 * len(i) + 32) * UNIT,
    )


def product_sums(anchor: LinearFitCache, look: OneRow) -> ProductSums:
    """Sum powers of the products of all rows with the rows that leave."""
    unit = look.unit
    pairs = len(anchor.root) ** 2
    is_cheap = pairs**2 <= FEW_COLUMNS * len(unit) and pairs * len(anchor.eta) <= HERD
    if anchor.by_whitened_rows and is_cheap:
        return sums_by_moments(anchor, look)
    heaviest = float(anchor.mass.max())
    scale = anchor.norm.max() * anchor.norm[unit]
    kind: type[np.floating]
    if anchor.product_rounding:
        kind = np.float32
        rounding_unit = SINGLE_UNIT
        rows = cast(DenseDesign, anchor.single[0]).x
    else:
        kind = np.float64
        rounding_unit = UNIT
        rows = None
    together = LANES
    if rows is None:  # all products of these are there at once
        together = min(LANES, max(1, PRODUCTS // len(anchor.eta)))
    weight = (anchor.mass / heaviest).astype(kind)
    third = (anchor.weight * anchor.third / heaviest).astype(kind)
    third_sum, fourth_sum, largest = np.zeros((3, len(unit)))
    for lanes in groups(np.arange(len(unit)), together):
        direction = anchor.whiten(unit[lanes, None])[:, 0] / scale[lanes, None]
        if rows is None:
            all_products = anchor.products(direction).T
        direction = np.ascontiguousarray(direction.T, kind)
        for block in slices(len(anchor.eta), UNITS):
            product = all_products[block].copy() if rows is None else rows[block] @ direction
            place = unit[lanes] - block.start
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
        0.0,
    )


def settle_rows(anchor: LinearFitCache, look: OneRow) -> tuple[PerRefit, PerRefit]:
    """Predictors of rows that lose weight, by short steps, and their errors."""
    loss = anchor.model.loss
    unit = look.unit
    rounding = anchor.rounding
    concordance = float(np.max(np.asarray(loss.self_concordance)))
    fourth = float(np.max(np.asarray(loss.fourth)))
    sums = product_sums(anchor, look)

    # what rounding takes from products, and from sums
    longest = anchor.norm.max()
    square = sums.heaviest * longest**2
    mass = float(anchor.mass @ anchor.norm**2) / square
    sum_error = (len(anchor.eta) + 16) * sums.unit
    square_sum = (1 / np.sqrt(square) + 2 * sums.precision * np.sqrt(mass)) ** 2
    third_error = 3 * sums.precision + sum_error + FUNCTION + anchor.curvature_rounding
    third_error = third_error * concordance * square_sum + UNDERFLOW
    third_error += sums.moment_error * concordance * mass
    largest = ((1 + sum_error) * sums.largest + sums.precision) * sums.scale
    fourth_root = (1 + sum_error) * (sums.fourth + UNDERFLOW + sums.moment_error * mass) ** 0.25
    fourth_root = (fourth_root + sums.precision * mass**0.25) * sums.heaviest**0.25 * sums.scale

    along = look.lost_curvature * (
        anchor.slope[unit] + anchor.curvature[unit] * (look.center - anchor.eta[unit])
    )
    steepness = np.abs(along)
    root = np.sqrt(look.kept_share)
    leftover = float(linalg.norm(anchor.leftover)) + anchor.noise / root
    with silence("over", "invalid"):
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


SIZES = 256, 2048  # rows in a sample, twice as many for several outputs
# effective number of sampled rows: a row of few entries meets few others, and a sample may miss the
# largest
LEAST_ROWS = 20.0
# standard errors of a sample that are added; for several outputs, whose losses the term corrects
SAMPLE_SAFETY = 3.0, 5.0
REMAINDER = 0.2  # 1.4 times the most in 40,000 refits of 80 problems of 2 to 10 classes
REFITS_AT_A_TIME = 512  # for several outputs
SINGLE_PRECISION_LOSS = 1e3  # largest factor on its rounding error at which float32 is used


class Term(NamedTuple):
    """Next term of each refit's predictor, or for several outputs of its loss.

    A term from a sample has its standard error; `size` is the sum of the sizes of its parts.
    """

    move: PerRefit
    spread: PerRefit
    size: PerRefit


class RowSample(NamedTuple):
    """Rows drawn in proportion to a bound of their terms, with one draw in five uniform, and their
    probabilities.
    """

    rows: Int[NumpyArray, " drawn"]
    chance: Float[NumpyArray, " drawn"]


@cached_on
def draw_rows(anchor: LinearFitCache) -> RowSample:
    """Draw the sample, with the same seed in every call."""
    if anchor.roots is None:
        largest = np.abs(anchor.weight * anchor.third) * anchor.norm * anchor.size
    else:
        largest = anchor.weight * anchor.size * anchor.norm
    chance = 0.8 * largest / max(largest.sum(), 1e-300) + 0.2 / len(largest)
    chance /= chance.sum()
    below = np.cumsum(chance)
    index = np.searchsorted(
        below / below[-1], np.random.default_rng(0).random(2 * max(SIZES)), side="right"
    )
    return RowSample(index, chance[index])


def next_term(
    anchor: LinearFitCache, look: OneRow, size: int | None, sample: RowSample | None = None
) -> Term:
    """Compute the next term after the first step, from a sample of that size or all rows."""
    if size is None:
        index = np.arange(len(anchor.eta))
        chance = np.ones(len(anchor.eta))
    else:
        index, chance = (part[:size] for part in (draw_rows(anchor) if sample is None else sample))
    weight = anchor.weight[index] / (chance * (size or 1))
    unit = look.unit
    along = scale_units(
        look.lost_curvature,
        anchor.slope[unit]
        + apply_curvature(anchor.curvature[unit], look.center - anchor.eta[unit]),
    )
    if anchor.roots is None:
        sums = _of_one(anchor, look, along, index, weight, size is not None)
    else:
        sums = _of_several(anchor, look, along, index, weight, size is not None)
    return Term(-0.5 * sums[0], 0.5 * np.sqrt(sums[1]), 0.5 * sums[2])


def precision(lost_weight: float) -> type[np.floating]:
    """Choose the precision for the sums of a small correction whose rounding error is multiplied by
    `lost_weight`.

    The factor is large if columns repeat one another.
    """
    if lost_weight > SINGLE_PRECISION_LOSS:
        return np.float64
    return np.float32


def _precise(anchor: LinearFitCache) -> ArrayFunction:
    """Return the function that converts arrays to that precision."""
    return functools.partial(np.asarray, dtype=precision(anchor.rounding.root**2))


def _of_one(
    anchor: LinearFitCache,
    look: OneRow,
    along: NumpyArray,
    index: NumpyArray,
    weight: NumpyArray,
    sampled: bool,
) -> Float[NumpyArray, "3 refits"]:
    single = _precise(anchor)
    third = single(weight * anchor.third[index])
    along = single(along)
    common = single(anchor.common[index])
    squared = third**2
    size = np.abs(third)
    if anchor.by_whitened_rows:
        images = single(anchor.rows[index]).T
        design = DenseDesign(single(anchor.rows))
    else:  # of rows with H⁻¹x
        blocks = [single(anchor.whiten(rows) @ anchor.root) for rows in groups(index, UNITS)]
        images = np.concatenate(blocks).T
        design = anchor.model.design
    sums = np.empty((3, len(look.unit)))
    itself, place = _itself(index, look.unit)
    # numbers in float32: half a core's cache
    for chunk in slices(len(look.unit), 2**17 // len(index)):
        gram = design.multiply(look.unit[chunk], images)
        term = gram * along[chunk, None]
        term -= common
        term *= term
        term *= gram
        is_inside = (chunk.start <= itself) & (itself < chunk.stop)
        term[itself[is_inside] - chunk.start, place[is_inside]] = 0.0
        sums[0, chunk] = term @ third
        sums[2, chunk] = np.abs(term) @ size
        sums[1, chunk] = np.square(term, out=term) @ squared if sampled else 0.0
    return sums / np.stack([look.kept_share, look.kept_share**2, look.kept_share])


def _itself(
    index: Selection, unit: RefitNumbers
) -> tuple[Int[NumpyArray, " matches"], Int[NumpyArray, " matches"]]:
    """Find the refits whose own rows are among those listed, and the places of these."""
    order = np.argsort(unit)
    first, end = (np.searchsorted(unit, index, side, order) for side in ("left", "right"))
    count = end - first
    place = np.repeat(np.arange(len(index)), count)
    return order[np.arange(len(place)) + np.repeat(first - np.cumsum(count) + count, count)], place


def _of_several(
    anchor: LinearFitCache,
    look: OneRow,
    along: NumpyArray,
    index: NumpyArray,
    weight: NumpyArray,
    sampled: bool,
) -> Float[NumpyArray, "3 refits"]:
    """Sum ∇³ℓ_i[U_iu_j, U_iu_j, U_iv_j], v_j the effect of steps on the loss of the refit's row."""
    design = anchor.model.design
    loss = cast(LossOfSeveral, anchor.model.loss)
    single = _precise(anchor)
    # slopes sum to zero, and common shifts change nothing: all outputs but the last tell both
    root = anchor.root.reshape(-1, design.outputs, design.features)
    root = (root[:, :-1] - root[:, -1:]).reshape(len(root), -1)
    inverse = single(root.T @ root)
    leftover = single((anchor.leftover @ root).reshape(-1, design.features))
    eta = single(anchor.eta[index])
    (slope,) = loss.derivatives(look.center, anchor.model.y[look.unit], (1,))
    ends = np.stack([along, np.einsum("rkl,rk->rl", look.inverse, slope)])
    ends = single(ends[:, :, :-1, None])
    sums = np.empty((3, len(along)))
    itself, place = _itself(index, look.unit)
    for chunk in slices(len(along), REFITS_AT_A_TIME):
        rows = single(design.base.rows(look.unit[chunk]))
        moves = (ends[:, chunk] * rows[:, None]).reshape(-1, len(inverse)) @ inverse
        moves = moves.reshape(2, len(rows), -1, design.features)
        moves[0] -= leftover
        images = moves.transpose(3, 0, 2, 1).reshape(design.features, -1)
        terms, sizes = np.empty((2, len(index), len(rows)), images.dtype)
        for block in slices(len(index), PASS // images.shape[1]):
            products = design.base.multiply(index[block], images)
            products = products.reshape(len(products), 2, -1, len(rows))
            terms[block], sizes[block] = loss.third(eta[block], products[:, 0], products[:, 1])
        is_inside = (chunk.start <= itself) & (itself < chunk.stop)
        terms[place[is_inside], itself[is_inside] - chunk.start] = 0.0
        sums[0, chunk] = weight @ terms
        absolute = weight @ np.abs(terms)
        squares = weight**2 @ np.square(terms, out=terms)
        sums[1, chunk] = np.where(absolute**2 < LEAST_ROWS * squares, np.inf, squares)
        sums[2, chunk] = weight @ sizes
    if not sampled:
        sums[1] = 0.0
    return sums


def _curvature_change(curvature_rate: PerRefit | float, look: OneRow) -> PerRefit:
    """Bound the logarithmic change of the curvature along the step.

    M max k ‖u‖, with `curvature_rate` = M max k.
    """
    return curvature_rate * look.step_length / np.sqrt(look.kept_share)


def is_short(curvature_rate: PerRefit | float, look: OneRow) -> RefitFlags:
    """Tell whether the step is short enough for the term to be valid."""
    # M max k ‖u‖, beyond which the terms after the next are not small
    return look.is_determined & (_curvature_change(curvature_rate, look) < 1.0)


def estimated_half(
    curvature_rate: PerRefit | float, look: OneRow, term: Term, sampled: bool
) -> PerRefit:
    """Estimate the predictors' remaining error after a short step, rounding included."""
    curvature_change = _curvature_change(curvature_rate, look)
    move = np.abs(term.move)
    size = term.size
    if sampled:
        move += SAMPLE_SAFETY[0] * term.spread
        return np.where(
            size**2 >= LEAST_ROWS * term.spread**2,
            move * (1 + curvature_change * np.exp(curvature_change)) + look.digits,
            np.inf,
        )
    return (
        np.minimum(
            2 * curvature_change * np.exp(curvature_change) * np.maximum(move, 0.3 * size),
            move + size,
        )
        + look.digits
    )


def from_sample(
    anchor: LinearFitCache, look: OneRow, center: RefitValues, size: int
) -> tuple[RefitValues, PerRefit]:
    """Predictors of single rows, and estimates of their errors from a sample of rows."""
    if anchor.roots is None:
        term = next_term(anchor, look, size)
        return center, estimated_half(anchor.curvature_rate, look, term, True)
    # products are fewer here, and a sample of most rows is no cheaper than all
    term = next_term(anchor, look, 2 * size if 4 * size <= len(anchor.eta) else None)
    error = REMAINDER * _curvature_change(anchor.curvature_rate, look) * term.size
    error += SAMPLE_SAFETY[1] * term.spread + look.digits
    loss = cast(LossOfSeveral, anchor.model.loss)
    return loss.corrected(center, anchor.model.y[look.unit], term.move, error)


# numbers `[lanes, units]` in an array: so many lanes that matrix products run at full speed
PRODUCTS = 2**21


class RowSums(NamedTuple):
    """Sums over all units at t, of which bounds are made: √Σ (ΔR)² / W of the last change of R,
    min r, √Σ W (r − 1)² G², max r |G|, Σ R G, and the share by which curvatures may be off.
    """

    size: PerLane
    least: PerLane
    width: PerLane
    peak: PerLane
    shift: PerLane
    curvature_rounding: PerLane


class RowSteps(NamedTuple):
    """Refits without one row each, at u₁ + `step`; only those that are still open, the `lanes`.

    `along` is a of u₁ = a z, and `off` what a step leaves of its length. `moves` are t, off by
    `blur` times k where products were in float32, `remainder` is R there, and `gradient` Σ R z,
    whose rounding error is `residual`. `summed` is the sum of the sizes of all changes of R.
    `slope` is λ, with its rounding error `noise`, and `distance` is D. `center` are predictors of
    the left-out rows, and `half` their errors.
    """

    lanes: Lanes
    look: OneRow
    z: Points
    gram: Weights
    along: PerLane
    off: PerLane
    step: Points
    moves: Weights
    length: PerLane
    blur: PerLane
    remainder: Weights
    gradient: Points
    residual: PerLane
    summed: PerLane
    slope: PerLane
    noise: PerLane
    distance: PerLane
    center: PerLane
    half: PerLane

    @property
    def radius(self) -> PerLane:
        """Bound the distance in the norm of H."""
        return self.distance / np.sqrt(self.look.kept_share)


def _begin(anchor: LinearFitCache, look: OneRow, gram: NumpyArray | None) -> RowSteps:
    unit = look.unit
    lanes = np.arange(len(unit))
    curvature = anchor.curvature[unit]
    off = anchor.rounding.step * (1 + look.lost_curvature * curvature * anchor.size[unit])
    along = look.lost_curvature * (
        anchor.slope[unit] + curvature * (look.center - anchor.eta[unit])
    )
    z = anchor.whiten(unit[:, None])[:, 0]
    gram = anchor.products(z) if gram is None else gram[unit]
    gram[lanes, unit] = 0.0
    nothing = np.zeros(len(unit))
    start = np.zeros(z.shape)
    return _advance(
        anchor,
        RowSteps(
            lanes,
            look,
            z,
            gram,
            along,
            off,
            start,
            gram,
            nothing,
            nothing,
            np.zeros(gram.shape),
            start,
            nothing,
            nothing,
            look.step_length,
            *4 * [nothing],
        ),
        0.0,
    )


def take_row_steps(
    anchor: LinearFitCache,
    look: OneRow,
    enough: Callable[[RowSteps], Flags],
    most: int,
    gram: NumpyArray | None = None,
) -> None:
    """Step at most so often, until each refit is near `enough`, which gets every candidate, or
    steps do not shrink.
    """
    with silence("all"):  # steps that diverge
        steps = _begin(anchor, look, gram)
        for k in range(most + 1):
            before = steps.slope
            steps, sums = _evaluate(anchor, steps)
            steps = _bound(anchor, steps, sums, sums.size + steps.noise + steps.residual, False)
            is_open = ~enough(steps)
            if not is_open.any():
                break
            if not is_open.all():
                steps, sums, before = take((steps, sums, before), is_open)
            steps = _pull(anchor, steps, sums)
            is_open = ~enough(steps) & (steps.slope <= STALL_RATIO * before)
            is_open &= np.isfinite(steps.half) | (k == 0)  # a ball is not found by shorter steps
            # a copy of all arrays costs more than a step of a few lanes
            if 8 * np.count_nonzero(is_open) < 7 * len(is_open):
                steps = take(steps, is_open)
            if k == most or not steps.lanes.size:
                break
            steps = _advance(anchor, steps, anchor.moves_of_corrections(steps.step))


def candidates(anchor: LinearFitCache, steps: RowSteps) -> Points:
    """Compute u₁ + `step`."""
    return steps.along[:, None] * steps.z - anchor.leftover + steps.step


def _advance(anchor: LinearFitCache, steps: RowSteps, addition: NumpyArray | float) -> RowSteps:
    """Move to u₁ + `step`, where the step adds the `addition` to t."""
    moves = steps.along[:, None] * steps.gram
    moves += addition - anchor.common
    moves[np.arange(len(moves)), steps.look.unit] = 0.0
    length = linalg.norm(candidates(anchor, steps), axis=1)
    step_length = linalg.norm(steps.step, axis=1)
    blur = anchor.product_rounding * (step_length + UNDERFLOW)
    return steps._replace(moves=moves, length=length + 2 * step_length, blur=blur)


def _evaluate(anchor: LinearFitCache, steps: RowSteps) -> tuple[RowSteps, RowSums]:
    """Compute R and its sums."""
    model = anchor.model
    look = steps.look
    count = len(steps.lanes)
    remainders = np.empty(steps.moves.shape)
    columns = np.empty((6, count))
    noise = np.empty(count)
    shift = 2 * anchor.curvature_rate * steps.blur  # by which rounding of t may change ℓ″
    for chunk in slices(count, PASS // len(model.y)):
        moves = steps.moves[chunk]
        gram = steps.gram[chunk]
        length = steps.length[chunk]
        eta = anchor.eta + moves
        slope, curvature = model.loss.derivatives(eta, model.y, (1, 2))
        error = anchor.curvature_error(eta, curvature, anchor.blur(eta, length), length)
        omega = np.broadcast_to(anchor.weight, eta.shape)
        noise[chunk] = anchor.gradient_error(omega, eta, slope, length, np.ones(len(eta)))
        remainder = np.subtract(slope, anchor.slope, out=remainders[chunk])
        remainder *= anchor.weight
        scratch = moves * anchor.mass
        remainder -= scratch
        np.subtract(remainder, steps.remainder[chunk], out=scratch)
        change = np.sqrt(np.square(scratch, out=scratch) @ anchor.inverse_mass)
        # not in place: a loss of the user may keep its arrays
        ratio = curvature / anchor.curvature
        least = ratio.min(1)
        peak = np.abs(np.multiply(ratio, gram, out=scratch), out=scratch).max(1)
        ratio -= 1
        if anchor.product_rounding:
            bend = np.sqrt(np.square(ratio, out=scratch) @ anchor.extent)
            bend += shift[chunk] * (bend + anchor.spread)
            noise[chunk] += np.where(shift[chunk] < 1, steps.blur[chunk] * bend, np.inf)
        ratio *= gram
        columns[:, chunk] = (
            change,
            least * (1 - shift[chunk]),
            np.sqrt(np.square(ratio, out=ratio) @ anchor.mass),
            peak,
            np.vecdot(remainder, gram),
            2 * (anchor.curvature_rounding + error),
        )
    noise += anchor.noise + anchor.curvature_rounding * steps.length
    noise /= np.sqrt(look.kept_share)
    noise += 2 * steps.off / look.kept_share * look.step_length
    sums = RowSums(*columns)
    steps = steps._replace(remainder=remainders, noise=noise, summed=steps.summed + sums.size)
    return steps, sums


def _bound(
    anchor: LinearFitCache, steps: RowSteps, sums: RowSums, slope: PerLane, closely: bool
) -> RowSteps:
    """Bound the errors of predictors by λ.

    If `closely`, rows of much leverage are counted by their leverage.
    """
    look = steps.look
    rounding = anchor.rounding
    kept_share = look.kept_share
    off = sums.curvature_rounding
    norm = anchor.norm[look.unit]
    root = np.sqrt(kept_share)
    slope = UP * (1 + off) * slope
    margin = sums.least * (1 - anchor.curvature_rate * slope / root) - off
    distance = np.where(margin > 0.5, UP * slope / margin, np.inf)
    open_ = np.flatnonzero(~(margin > 0.5))
    for chunk in tiles(open_, len(anchor.eta)) if closely else ():
        is_left_out = look.unit[chunk, None] == np.arange(len(anchor.eta))
        balls = anchor.ball(
            anchor.eta + steps.moves[chunk],
            np.where(is_left_out, 0.0, anchor.weight),
            slope[chunk],
            kept_share[chunk],
            steps.length[chunk],
            4 * anchor.curvature_rate * steps.blur[chunk],
        )
        distance[chunk] = balls.distance
    reach = (1 + off) * distance + anchor.blurs[0] + anchor.blurs[1] * steps.length
    reach += steps.blur * (1 + anchor.spread)
    growth = np.exp(anchor.curvature_rate * reach / root + off)
    row_error = rounding.step * np.exp(anchor.curvature_rate * steps.length) * norm
    width = (1 + off) * sums.width + off * norm + growth * anchor.spread * row_error
    peak = np.max(np.asarray(anchor.model.loss.self_concordance)) * (
        (1 + off) * sums.peak + anchor.norm.max() * row_error
    )
    digits = (
        look.digits
        + norm / root * steps.noise
        + 4 * (steps.off / kept_share + FUNCTION) * np.abs(sums.shift) / kept_share
    )
    sum_error = rounding.step + rounding.rows * UNIT
    digits += sum_error * norm * anchor.spread * steps.summed / kept_share**2
    half = UP * (reach * (width + 0.5 * growth * reach * peak) / kept_share + digits)
    return steps._replace(
        slope=slope,
        distance=distance,
        center=look.center - look.inverse * sums.shift,
        half=np.fmin(half, np.inf),
    )


def _pull(anchor: LinearFitCache, steps: RowSteps, sums: RowSums) -> RowSteps:
    """Compute the gradients, λ from them, and the steps."""
    look = steps.look
    kept_share = look.kept_share
    core = look.lost_curvature * anchor.curvature[look.unit] * look.inverse
    solve = lambda v: v + (core * np.vecdot(steps.z, v))[:, None] * steps.z
    gradient = anchor.gradient_of_corrections(steps.remainder)
    change = gradient - steps.gradient
    square = np.maximum(np.vecdot(change, solve(change)), 0.0)
    change_length = (1 + 2 * steps.off / kept_share) * np.sqrt(square)
    size = anchor.spread * steps.summed
    rounding = anchor.rounding.gradient(size)
    rounding += (anchor.rounding.step + anchor.product_rounding) * size
    if anchor.product_rounding:
        rounding += UNDERFLOW * anchor.length.sum()
    residual = rounding / np.sqrt(kept_share)
    bounds = sums.size + steps.noise + steps.residual, change_length + steps.noise + residual
    steps = _bound(anchor, steps, sums, np.fmin(*bounds), True)
    residual += 4 * steps.off / kept_share**2 * linalg.norm(gradient, axis=1)
    return steps._replace(gradient=gradient, step=-solve(gradient), residual=residual)
