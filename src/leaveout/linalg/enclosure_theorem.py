"""Distance of a refit of linear predictors from the exact one: a theorem.

F(θ, w) = Σ w_i ℓ_i(x_iᵀθ) + a quadratic, ℓ convex. Let A = P + Σ w_i a_i x_i x_iᵀ ≻ 0 be any
reference, θ any candidate, g = ∇F(θ, w), λ = ‖g‖_{A⁻¹}, k_i = ‖x_i‖_{A⁻¹}. Let the secants of ℓ_i′
from η_i over |s| ≤ r k_i lie within [a_i − e_i, a_i + f_i], and C(e) = min over τ ≥ 0 of τ + Σ w_i
k_i² (e_i − τ a_i)₊. Then

    λ < r (1 − C(e))   ⟹   ‖θ_w − θ‖_A ≤ D = λ / (1 − C(e)),   and after v = −A⁻¹g
    ‖θ_w − θ − v‖_A ≤ C(f) D = ρ.

Proof. Σ w_i e_i x_i x_iᵀ ⪯ C(e) A, since Σ w_i a_i x_i x_iᵀ ⪯ A. On ‖δ‖_A = r, ⟨∇F(θ + δ, w), δ⟩ ≥
r ((1 − C) r − λ) > 0, so a minimiser lies inside. There (A + E) δ = −g for secants A + E: ‖δ‖_A ≤
λ/(1 − C), and δ − v = −A⁻¹Eδ. ∎

So the predictor x_nᵀθ_w lies within k_n ρ of x_nᵀ(θ + v), and a loss within the image of that
interval. Secants come from
|ℓ‴| ≤ M ℓ″ (then ℓ″ changes by a factor of at most e^{Ms}) or from ℓ″ being
unimodal (then the least secant is an end's).

For several outputs, η_i = U_i θ with curvatures W_i, everything is relative to these: a_i = 1.
Secants lie between (1 − e_i) W_i and (1 + f_i) W_i, k_i is the largest range max − min of U_i δ
over ‖δ‖_A = 1, and ‖W_i^½ U_i A⁻¹ U_iᵀ W_i^½‖ stands for a_i k_i². For softmax, |∇³ℓ[s, v, v]| ≤
(max s − min s) vᵀWv: M = 1, of ranges. At a candidate, W there is W_i times a factor between the
least and the greatest ratio of their probabilities. Along a common shift of all outputs that is not
penalised, F is flat and no gradient points along it. Curvature is added to A there, and the theorem
holds on the complement, which contains every move.

Predictors, slopes and curvatures are rounded. η off by ε moves ℓ″ by a factor of e^{Mε}; with the
rounding of ℓ″ itself, secants and a_i are within a share `lost` of what they are computed as. As Σ
w_i a_i x_i x_iᵀ ⪯ A, twice that is added to both C. What the rounding of g adds to λ is in
`linalg.rounding`, and every loss has an error of its own: `change` adds it.

Norms of groups (`linalg.group_norms`), a penalty that is not quadratic, are in A with their Hessian
at the reference. The change of that Hessian within the radius, as a share of A, is added to both C.
"""

import functools
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float

from .._runtime import ArrayFunction, ArrayList, NumpyArray, TwoArrays, silence, slices
from .design import Loss, LossOfSeveral, RefitUnits, RowUnits
from .rounding import FUNCTION, TINY, UP

TIMES = 1.0, 3.0  # the τ to try, in rising order, in typical ratios of gap and curvature
EVERYONE = slice(None)
STRAIGHT = 1e-100  # stands for M k if no ℓ″ changes, so that no radius is too large


class Gaps(NamedTuple):
    """Distance by which secants of ℓ′ may lie below the reference curvature (if positive), and from
    it on either side.
    """

    below: RefitUnits
    beyond: RefitUnits


class CurvatureBounds(NamedTuple):
    """Least and greatest value that ℓ″(η) may have.

    For several outputs relative to the reference's.
    """

    least: RowUnits
    most: RowUnits


def gaps(
    loss: Loss,
    y: NumpyArray,
    eta: NumpyArray,
    bounds: CurvatureBounds,
    half_width: NumpyArray,
    reference: NumpyArray,
    blur: NumpyArray | float = 0.0,
) -> Gaps:
    """Gaps of secants from η over |s| ≤ `half_width`, where η may be off by `blur`."""
    if loss.self_concordance is not None:  # (1 − e^{−x})/x ≥ 1 − x/2; its inverse bounds (eˣ − 1)/x
        factor = -0.5 * np.asarray(loss.self_concordance) * half_width
        factor += 1.0
        if not factor.min() > 0:
            np.maximum(factor, 0.0, out=factor)
        low = bounds.least * factor
        with silence("divide", "invalid"):
            high = np.divide(bounds.most, factor, out=factor)
            np.fmin(high, loss.ceiling, out=high)
    else:
        low, high = _by_ends(loss, y, eta, half_width, blur)
    below = reference - low
    beyond = high - reference
    return Gaps(below, np.maximum(below, beyond, out=beyond))


def _by_ends(
    loss: Loss, y: NumpyArray, eta: NumpyArray, half_width: NumpyArray, blur: NumpyArray | float
) -> TwoArrays:
    """Least and greatest secant, for unimodal ℓ″; ℓ″ is least at an end."""
    peak = loss.peak(y)
    if peak is None:
        return np.zeros_like(eta), np.full_like(eta, np.inf)
    span = UP * half_width + blur
    (center,) = loss.derivatives(eta, y, (1,))
    up, up2 = loss.derivatives(eta + span, y, (1, 2))
    down, down2 = loss.derivatives(eta - span, y, (1, 2))
    ends = np.minimum(
        up2 - FUNCTION * loss.terms(2, up2, eta + span, y),
        down2 - FUNCTION * loss.terms(2, down2, eta - span, y),
    )
    top = np.clip(np.broadcast_to(peak, eta.shape), eta - span, eta + span)
    (high,) = loss.derivatives(top, y, (2,))
    high = high + FUNCTION * loss.terms(2, high, top, y)
    slopes = sum(
        loss.terms(1, np.abs(slope), place, y)
        for slope, place in ((up, eta + span), (down, eta - span), (center, eta))
    )
    with silence("divide", "invalid", "over"):
        # the least secant from η is that to an end
        rounding = UP * (FUNCTION * slopes + 4 * blur * high) / half_width
        low = np.fmax(ends, np.minimum(up - center, center - down) / span - rounding)
    # outside the domain ℓ″ is far below zero
    return np.where(ends > -1.0, np.maximum(low, 0.0), ends), high


def share(gap: NumpyArray, reference: NumpyArray, size: NumpyArray) -> Float[NumpyArray, "*refits"]:
    """Compute C: the least τ + Σ size_i (gap_i − τ a_i)₊ over a few τ.

    `size` is w_i k_i², or for several outputs the unit's share of A.
    """
    smallest_curvature = 1e-200  # curvature of a unit below which it counts as none
    # for these (e − τa)₊ is at most (e − τa₀)₊ + τa₀, with a₀ the smallest curvature
    clamped = reference < smallest_curvature
    part = 1.0
    if clamped.any():
        part = 1 + smallest_curvature * np.sum(np.where(clamped, size, 0.0), -1)
    reference = np.maximum(reference, smallest_curvature)
    with silence("divide", "invalid", "over"):
        ratio = gap / reference
        weight = size * reference
        total = np.vecdot(weight, ratio)
        mass = weight.sum(-1)
        best = np.fmin(total, ratio.max(-1) * part)  # beyond its largest ratio the sum is zero
        typical = np.where(np.isfinite(total) & (mass > 0), total / mass, 0.0)
        for tau in np.multiply.outer(TIMES, typical):
            np.maximum(ratio, tau[..., None], out=ratio)  # (ratio − τ)₊ is this minus τ
            best = np.fmin(best, tau * part + np.vecdot(weight, ratio) - tau * mass)
    return np.fmin(best, np.inf)


class Ball(NamedTuple):
    """Radii of two balls that contain a refit's minimiser: `distance` around the candidate, `after`
    around the end of the step.

    The radii are infinite if nothing is proved.
    """

    distance: Float[NumpyArray, " refits"]
    after: Float[NumpyArray, " refits"]


def ball(
    gap: Gaps,
    reference: NumpyArray,
    size: NumpyArray,
    slope: NumpyArray,
    radius: NumpyArray,
    penalty_share: NumpyArray | float = 0.0,
) -> Ball:
    """Apply the theorem to gaps over a radius.

    `slope` is λ, and `penalty_share` is added to C for the penalty.
    """
    beyond = share(gap.beyond, reference, size) + penalty_share
    # the gaps at smaller radii are no larger
    if (beyond < 0.5).all():
        below = beyond
    else:
        below = np.fmin(beyond, share(np.maximum(gap.below, 0.0), reference, size) + penalty_share)
    with silence("divide", "invalid", "over"):
        distance = UP * slope / (1 - below)
        proved = (below < 1) & (distance < radius) | (slope == 0)
        distance = np.where(proved, distance, np.inf)
        after = np.where(proved, beyond * distance, np.inf)
    return Ball(distance, np.where(slope == 0, 0.0, after))


class PenaltyShare(NamedTuple):
    """Share that a penalty adds to C, as a function of radii, and the largest relative change of
    the penalty per length.
    """

    relative_change: float
    share: ArrayFunction


class RadiusTable:
    """C(e) and C(f) at the anchor over a grid of radii b, so that a first look at a refit costs
    O(1).

    Units of similar k are binned, with k rounded up. One table holds several anchors: `[anchors,
    radii, levels]`. For the anchor's A without the rows that leave, A_w ⪰ (1 − q) A: norms grow by
    1/√(1 − q) at most, and sums over the rows that stay are no larger than sums over all.
    """

    scale: NumpyArray
    # C below and beyond, and beyond at twice the radius
    sums: ArrayList
    best_levels: list[TwoArrays]

    RADII = 10.0 ** np.arange(-6, 2.5, 0.12)  # in units of 1 / max M k, if the loss has an M
    TWICE = 3  # steps in the grid after which a radius is at least twice as large
    LEVELS = np.r_[0.0, 3.0 ** -np.arange(10.0)]
    # factor of a sum within which the best level hardly changes; one level takes an eighth of the
    # time of all
    ALIKE = 1.1
    # bins of k relative to the largest k, which round up by at most an eighth
    BINS = 10.0 ** (-np.arange(80) / 20)
    FAR = 400  # bins on either side of M k = 1

    def __init__(
        self,
        loss: Loss,
        y: NumpyArray,
        eta: NumpyArray,
        reference: NumpyArray,
        size: NumpyArray,
        norm: NumpyArray,
        penalty: PenaltyShare | None = None,
        rounding: NumpyArray | float = 0.0,
        blur: NumpyArray | float = 0.0,
    ):
        if loss.self_concordance is not None:  # the gaps relative to a_i depend on M k_i alone
            scaled_norm = np.atleast_2d(np.asarray(loss.self_concordance) * norm)
            count = len(scaled_norm)
            bins = len(self.BINS)
            largest = scaled_norm.max(1)
            if penalty is not None:
                largest = np.maximum(largest, penalty.relative_change)
            self.scale = np.where(largest > 0, largest, STRAIGHT if penalty is None else 1.0)
            mass = np.zeros((count, bins))
            block_rows = 2**17
            for block in slices(scaled_norm.shape[1], block_rows):
                share = scaled_norm[:, block] / self.scale[:, None]
                place = -20 * np.log10(np.maximum(share, 1e-300))
                place = np.minimum(place.astype(int), bins - 1) + bins * np.arange(count)[:, None]
                weight = np.broadcast_to(size[block] * reference[block], place.shape)
                mass += np.bincount(place.ravel(), np.ravel(weight), mass.size).reshape(mass.shape)
            mass[scaled_norm.max(1) == 0] = 0.0
            sums = [(mass @ part).reshape(count, len(self.RADII), -1) for part in self._shares()]
        else:
            self.scale = np.ones(1)
            sums = [*self._both_sums(loss, y, eta, reference, size, norm, blur)]
        self._fill(sums, loss.self_concordance is not None, penalty, rounding)

    @classmethod
    def _both_sums(
        cls,
        loss: Loss,
        y: NumpyArray,
        eta: NumpyArray,
        reference: NumpyArray,
        size: NumpyArray,
        norm: NumpyArray,
        blur: NumpyArray | float = 0.0,
    ) -> Float[NumpyArray, "2 1 radii levels"]:
        """Both sums, from secants over every radius."""
        sums = np.empty((2, 1, len(cls.RADII), len(cls.LEVELS)))
        curvature = CurvatureBounds(reference, reference)
        for k, radius in enumerate(cls.RADII):
            gap = gaps(loss, y, eta, curvature, radius * norm, reference, blur)
            for out, part in zip(sums, gap, strict=True):
                finite = np.where(np.isfinite(part), part, 1e300)
                out[0, k] = [
                    size @ np.maximum(finite - level * reference, 0.0) for level in cls.LEVELS
                ]
        return sums

    @classmethod
    def tally(
        cls,
        loss: Loss,
        y: NumpyArray,
        eta: NumpyArray,
        reference: NumpyArray,
        size: NumpyArray,
        norm: NumpyArray,
        blur: NumpyArray | float = 0.0,
    ) -> NumpyArray:
        """Contribution of some units to a table over all units; `from_tally` takes the sum of these
        contributions.

        It consists of the sums or, if the loss has an M, of the masses in bins of M k, from 1e20
        down.
        """
        if loss.self_concordance is None:
            return cls._both_sums(loss, y, eta, reference, size, norm, blur)
        scaled_norm = np.broadcast_to(loss.self_concordance, norm.shape) * norm
        place = (
            np.clip(
                np.floor(-20 * np.log10(np.maximum(scaled_norm, 1e-300))), -cls.FAR, cls.FAR
            ).astype(int)
            + cls.FAR
        )
        return np.bincount(place, np.where(scaled_norm > 0, size * reference, 0.0), 2 * cls.FAR + 1)

    @classmethod
    def from_tally(cls, loss: Loss, tally: NumpyArray, rounding: float = 0.0) -> "RadiusTable":
        """Table from the added contributions of all units."""
        self = cls.__new__(cls)
        if loss.self_concordance is None:
            self.scale = np.ones(1)
            sums = [*tally]
        else:
            first = cls.FAR
            largest = STRAIGHT
            if tally.any():
                first = int(np.argmax(tally > 0))
                # rounded up
                largest = 10.0 ** ((cls.FAR - first) / 20) if first else 1e300
            bins = len(cls.BINS)
            self.scale = np.array([largest])
            mass = np.pad(tally, (0, bins))[first : first + bins]
            mass[-1] += tally[first + bins :].sum()
            sums = [(mass @ part).reshape(1, len(cls.RADII), -1) for part in cls._shares()]
        self._fill(sums, loss.self_concordance is not None, None, rounding)
        return self

    def _fill(
        self, sums, concordant: bool, penalty: PenaltyShare | None, rounding: NumpyArray | float
    ) -> None:
        below, beyond = (UP * np.maximum.accumulate(part, axis=1) for part in sums)
        extra = 2 * np.reshape(rounding, (-1, 1, 1))
        if penalty is not None:
            extra = extra + penalty.share(self.RADII / self.scale)[:, None]
        doubled = np.minimum(np.arange(len(self.RADII)) + self.TWICE, len(self.RADII) - 1)
        if concordant:
            between = beyond[:, doubled]
        else:
            between = np.full_like(beyond, np.inf)
        between[:, -self.TWICE :] = np.inf
        self.sums = [part + extra for part in (below, beyond, between)]
        self.best_levels = [self._at_best(part) for part in self.sums]

    def _at_best(self, part: NumpyArray) -> TwoArrays:
        """Find the best level if all rows stay, and the sum above it, for every radius of every
        anchor.
        """
        best = np.argmin(self.LEVELS + part, -1)
        return self.LEVELS[best].ravel(), np.take_along_axis(part, best[..., None], axis=-1).ravel()

    def _share(self, which: int, place: NumpyArray, ratio: NumpyArray) -> NumpyArray:
        """C from one of the three sums, times `ratio`.

        Ratios near one use the level that is best for a ratio of one.
        """
        level, above = (part.take(place) for part in self.best_levels[which])
        out = above * ratio + level
        unlike = np.flatnonzero(ratio > self.ALIKE)
        part = self.sums[which].reshape(-1, len(self.LEVELS))[place[unlike]]
        out[unlike] = np.min(self.LEVELS + part * ratio[unlike, None], 1)
        return out

    @classmethod
    @functools.cache
    def _shares(cls) -> TwoArrays:
        """Contribution of a bin of mass one to either sum, `[bins, radii levels]`."""
        x = np.minimum(np.multiply.outer(cls.BINS, cls.RADII), 500.0)
        below = np.where(x > 1e-9, 1 + np.expm1(-x) / x, x / 2)
        beyond = np.maximum(below, np.where(x > 1e-9, np.expm1(x) / x - 1, x / 2))
        beyond[x >= 500.0] = 1e300
        tables = (
            np.maximum(part[..., None] - cls.LEVELS, 0.0).reshape(len(x), -1)
            for part in (below, beyond)
        )
        return next(tables), next(tables)

    def ball(
        self,
        slope: NumpyArray,
        keep: NumpyArray,
        growth: NumpyArray,
        move: NumpyArray | None = None,
        anchor: NumpyArray | int = 0,
    ) -> Ball:
        """Apply the theorem at the anchor; `keep` is 1 − q, and no unit weighs more than `growth`
        times what it did.

        For a candidate that `move` from the anchor, the ball of radius b around the anchor contains
        the ball of radius b − `move` around the candidate. There ℓ″ is within e^{±x} of a_i, with
        x = M b k_i, which the sums at 2b cover, as (e²ˣ − 1)/2x > eˣ.
        """
        distance = np.full(slope.shape, np.inf)
        after = np.full(slope.shape, np.inf)
        below, beyond = (0, 1) if move is None else (2, 2)
        scale = self.scale[anchor]
        first = np.broadcast_to(np.multiply(anchor, len(self.RADII)), slope.shape)
        if move is None:
            start = np.zeros(slope.shape)
        else:
            start = move * scale
        slope = slope * scale
        root = np.sqrt(keep)
        with silence("divide", "invalid", "over"):
            ratio = growth / keep
            k = np.searchsorted(self.RADII, start + 1.01 * slope / root)
            for offset in (0, 1, 2, 4, 8) if move is None else (0, 2):
                is_open = ~np.isfinite(distance) & (k + offset < len(self.RADII)) & (keep > 0)
                open_lanes = np.flatnonzero(is_open)
                if not open_lanes.size:
                    break
                lanes = EVERYONE if is_open.all() else open_lanes  # without copies
                index = k[lanes] + offset
                curvature_loss = self._share(below, first[lanes] + index, ratio[lanes])
                needed = np.where(
                    curvature_loss < 1, UP * slope[lanes] / (1 - curvature_loss), np.inf
                )
                good = needed < (self.RADII[index] - start[lanes]) * root[lanes]
                open_lanes = open_lanes[good]
                index = index[good]
                distance[open_lanes] = needed[good]
                after[open_lanes] = (
                    self._share(beyond, first[open_lanes] + index, ratio[open_lanes])
                    * distance[open_lanes]
                )
        return Ball(distance / scale, after / scale)


def change(
    loss: Loss, y: NumpyArray, reported: NumpyArray, center: NumpyArray, half: NumpyArray
) -> NumpyArray:
    """Largest difference of a convex loss over `center ± half` from the loss as it is computed at
    `reported`.

    For several outputs the moves from `center` have the range `half`.
    """
    if center.ndim > half.ndim:
        return _change_of_several(cast(LossOfSeveral, loss), y, reported, center, half)
    bounded = np.isfinite(half)
    if bounded.all():
        span = half
    else:
        span = np.where(bounded, half, 0.0)
    slope, most = _rise(loss, y, center, span)
    (base,) = loss.derivatives(reported, y, (0,))
    with silence("invalid"):
        rounding = FUNCTION * loss.terms(0, np.abs(base), reported, y) + TINY
        if reported is not center:  # otherwise no fall is larger than the rise on the other side
            (center_loss,) = loss.derivatives(center, y, (0,))
            rounding += FUNCTION * loss.terms(0, np.abs(center_loss), center, y)
            # no lower than the tangent at the center
            most = np.maximum(most + (center_loss - base), base - center_loss + slope * span)
        most = UP * (np.maximum(most, 0.0) + rounding)
    finite = 500.0  # largest predictor of losses that grow exponentially
    if np.isinf(loss.ceiling):  # exponentials that overflow
        bounded &= np.maximum(np.abs(reported), np.abs(center) + span) <= finite
    return np.where(bounded & ~np.isnan(most), most, np.inf)


def _rise(loss: Loss, y: NumpyArray, center: NumpyArray, span: NumpyArray) -> TwoArrays:
    """Bound |ℓ′| at the center, and the rise of ℓ over `center ± span`.

    For short moves the bound is |ℓ′|s + ½ℓ″s²e^{Ms}, by |ℓ‴| ≤ Mℓ″. For long ones it is the rise at
    an end, or at a pole of ℓ″, which is a pole of ℓ.
    """
    slope, curvature = loss.derivatives(center, y, (1, 2))
    slope = np.abs(slope)
    slope = slope + FUNCTION * loss.terms(1, slope, center, y)
    long_moves = np.arange(len(center))
    short_move = 0.1  # M s of a move over which ℓ″ hardly changes
    with silence("invalid", "over"):
        most = slope * span
        if loss.self_concordance is not None:
            relative_change = np.asarray(loss.self_concordance) * span
            most += (
                0.5
                * (curvature + FUNCTION * loss.terms(2, curvature, center, y))
                * span**2
                * np.exp(relative_change)
            )
            long_moves = np.flatnonzero(relative_change > short_move)
        if long_moves.size:
            target = y if np.ndim(y) == 0 else y[long_moves]
            middle = center[long_moves]
            ends = [center[long_moves] - span[long_moves], center[long_moves] + span[long_moves]]
            peak = loss.peak(target)
            if peak is not None:
                ends.append(np.clip(peak, *ends))
            values = [loss.derivatives(eta, target, (0,))[0] for eta in (middle, *ends)]
            rounding = np.max(
                [
                    loss.terms(0, np.abs(value), eta, target)
                    for value, eta in zip(values, (middle, *ends), strict=True)
                ],
                0,
            )
            most[long_moves] = np.max(values[1:], 0) - values[0] + 2 * FUNCTION * rounding
    return slope, most


def _change_of_several(
    loss: LossOfSeveral, y: NumpyArray, reported: NumpyArray, center: NumpyArray, half: NumpyArray
) -> NumpyArray:
    bounded = np.isfinite(half)
    (base,), (center_loss,) = (loss.derivatives(eta, y, (0,)) for eta in (reported, center))
    fall, rise = loss.within(center, y, np.where(bounded, half, 0.0))
    rounding = FUNCTION * (
        loss.terms(0, np.abs(base), reported, y)
        + loss.terms(0, np.abs(center_loss) + fall + rise, center, y)
    )
    most = np.maximum(np.maximum(center_loss - base + rise, base - center_loss + fall), 0.0)
    return np.where(bounded, UP * (most + rounding), np.inf)
