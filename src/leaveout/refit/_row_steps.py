"""Single rows of one predictor each left out: steps whose errors are bounded by products of all
rows with the left-out one.

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

from collections.abc import Callable

import numpy as np

from ..linalg.rounding import FUNCTION, UNIT, UP
from ..objectives.objective import Flags, PerLane, Points
from ._anchor import LinearFitCache, tiles
from ._enclosure import STALL_RATIO
from ._one_row import OneRow

Array = np.ndarray
# numbers `[lanes, units]` in an array: so many lanes that matrix products run at full speed
PRODUCTS = 2**21


class RowSteps:
    """Refits without one row each, in progress, at u₁ + `step`; only those that are still open, the
    `lanes`.

    `moves` are t, `remainder` is R there, and `change` its difference from that before the last
    step. `center` are predictors of the left-out rows, `half` their errors, `slope` is λ, with its
    rounding error `noise`, and `distance` is D.
    """

    def __init__(self, anchor: LinearFitCache, look: OneRow, gram: Array | None = None):
        self.anchor = anchor
        self.look = look
        count = len(look.unit)
        weight = anchor.weight * anchor.curvature
        length = anchor.length
        blur = anchor.rounding.predictor
        with np.errstate(divide="ignore"):
            self.weights = weight, np.where(anchor.weight > 0, 1 / weight, 0.0)
        rounded = blur(length, np.abs(anchor.eta)), blur(length, length, 1.0)
        self.blur = [float(np.sqrt(weight @ part**2)) for part in rounded]
        self.spread = float(np.sqrt(weight @ length**2))
        self.off = anchor.rounding.step * (
            1 + look.lost_curvature * (anchor.curvature * anchor.size)[look.unit]
        )
        slope = anchor.slope[look.unit] + anchor.curvature[look.unit] * (
            look.center - anchor.eta[look.unit]
        )
        self.along = look.lost_curvature * slope
        self.lanes = np.arange(count)
        self.z = anchor.whiten(look.unit[:, None])[:, 0]
        if gram is None:
            self.gram = anchor.predictor_moves(self.z, False)
        else:
            self.gram = gram[look.unit]
        self.gram[self.lanes, look.unit] = 0.0
        self.remainder, self.change = np.zeros((2, *self.gram.shape))
        self.gradient, self.step = np.zeros((2, *self.z.shape))
        self.residual = np.zeros(count)
        self.summed = np.zeros(count)
        self.slope = look.step_length
        self._move(0.0)

    def run(self, enough: Callable[["RowSteps"], Flags], most: int) -> None:
        """Step at most so often, until each refit is near enough, or steps do not shrink."""
        with np.errstate(all="ignore"):  # steps that diverge
            for k in range(most + 1):
                before = self.slope
                self._evaluate()
                self._bound(self.size + self.noise + self.residual)
                is_open = ~enough(self)
                self._keep(is_open)
                if not self.lanes.size:
                    break
                self._pull()
                is_open = ~enough(self) & (self.slope <= STALL_RATIO * before[is_open])
                is_open &= np.isfinite(self.half) | (k == 0)  # a ball is not found by shorter steps
                # a copy of all arrays costs more than a step of a few lanes
                if 8 * np.count_nonzero(is_open) < 7 * len(is_open):
                    self._keep(is_open)
                if k == most or not self.lanes.size:
                    break
                self._move(self.anchor.predictor_moves(self.step, False))

    def u(self) -> Points:
        """Candidates."""
        return self.along[:, None] * self.z - self.anchor.leftover + self.step

    def _keep(self, selection: Flags) -> None:
        if not selection.all():
            self.look = self.look.take(np.flatnonzero(selection))
            for name, part in vars(self).items():
                if isinstance(part, np.ndarray):
                    setattr(self, name, part[selection])

    def _move(self, addition: Array | float) -> None:
        """Set the moves to those at u₁ + `step`, where the step adds the `addition` ones."""
        self.moves = self.along[:, None] * self.gram
        self.moves += addition - self.anchor.common
        self.moves[np.arange(len(self.lanes)), self.look.unit] = 0.0
        step = np.linalg.norm(self.step, axis=1)
        self.length = np.linalg.norm(self.u(), axis=1) + 2 * step

    def _evaluate(self) -> None:
        """Compute R, and the sums over all units that bounds are made of."""
        anchor = self.anchor
        model = self.anchor.model
        (weight, inverse) = self.weights
        look = self.look
        size, least, width, peak, shift, curvature_rounding, noise = np.empty((7, len(self.lanes)))
        for chunk in tiles(np.arange(len(self.lanes)), len(model.y)):
            t = self.moves[chunk]
            gram = self.gram[chunk]
            length = self.length[chunk]
            eta = anchor.eta + t
            slope, curvature = model.loss.derivatives(eta, model.y, (1, 2))
            curvature_rounding[chunk] = 2 * (
                anchor.curvature_rounding
                + anchor.curvature_error(eta, curvature, anchor.blur(eta, length), length)
            )
            omega = np.broadcast_to(anchor.weight, eta.shape)
            noise[chunk] = anchor.gradient_error(omega, eta, slope, length, np.ones(len(chunk)))
            remainder = anchor.weight * (slope - anchor.slope)
            remainder -= np.multiply(t, weight, out=t)
            change = np.subtract(remainder, self.remainder[chunk], out=t)
            self.change[chunk], self.remainder[chunk] = change, remainder
            size[chunk] = np.sqrt(np.square(change, out=change) @ inverse)
            shift[chunk] = np.vecdot(remainder, gram)
            # not in place: a loss of the user may keep its arrays
            ratio = curvature / anchor.curvature
            least[chunk] = ratio.min(1)
            peak[chunk] = np.abs(np.multiply(ratio, gram, out=t), out=t).max(1)
            ratio -= 1
            ratio *= gram
            width[chunk] = np.sqrt(np.square(ratio, out=ratio) @ weight)
        noise += anchor.noise + anchor.curvature_rounding * self.length
        noise /= np.sqrt(look.kept_share)
        noise += 2 * self.off / look.kept_share * look.step_length
        self.size = size
        self.least = least
        self.width = width
        self.peak = peak
        self.shift = shift
        self.curvature_rounding = curvature_rounding
        self.noise = noise
        self.summed = self.summed + size

    def _bound(self, slope: PerLane, closely: bool = False) -> None:
        """Bound the errors of predictors by λ.

        If `closely`, rows of much leverage are counted by their leverage.
        """
        anchor = self.anchor
        look = self.look
        curvature_rounding = self.curvature_rounding
        rounding = self.anchor.rounding
        kept_share = look.kept_share
        norm = anchor.norm[look.unit]
        root = np.sqrt(look.kept_share)
        self.slope = slope = UP * (1 + curvature_rounding) * slope
        margin = self.least * (1 - anchor.curvature_rate * slope / root) - curvature_rounding
        self.distance = np.where(margin > 0.5, UP * slope / margin, np.inf)
        for chunk in tiles(
            np.flatnonzero(~(margin > 0.5)) if closely else np.zeros(0, int), len(anchor.eta)
        ):
            omega = np.where(
                look.unit[chunk, None] == np.arange(len(anchor.eta)), 0.0, anchor.weight
            )
            balls = anchor.ball(
                anchor.eta + self.moves[chunk],
                omega,
                slope[chunk],
                kept_share[chunk],
                self.length[chunk],
            )
            self.distance[chunk] = balls.distance
        distance = (
            (1 + curvature_rounding) * self.distance + self.blur[0] + self.blur[1] * self.length
        )
        growth = np.exp(anchor.curvature_rate * distance / root + curvature_rounding)
        row_error = rounding.step * np.exp(anchor.curvature_rate * self.length) * norm
        width = (
            (1 + curvature_rounding) * self.width
            + curvature_rounding * norm
            + growth * self.spread * row_error
        )
        peak = np.max(np.asarray(anchor.model.loss.self_concordance)) * (
            (1 + curvature_rounding) * self.peak + anchor.norm.max() * row_error
        )
        digits = (
            look.digits
            + norm / root * self.noise
            + 4 * (self.off / kept_share + FUNCTION) * np.abs(self.shift) / kept_share
        )
        digits += (
            (rounding.step + rounding.rows * UNIT)
            * norm
            * self.spread
            * self.summed
            / kept_share**2
        )
        half = UP * (distance * (width + 0.5 * growth * distance * peak) / kept_share + digits)
        self.half = np.where(np.isnan(half), np.inf, half)
        self.center = look.center - look.inverse * self.shift

    def _pull(self) -> None:
        """Compute the gradients, λ from them, and the steps."""
        anchor = self.anchor
        look = self.look
        kept_share = self.look.kept_share
        before = self.residual
        core = look.lost_curvature * anchor.curvature[look.unit] * look.inverse
        apply_inverse = lambda v: v + (core * np.vecdot(self.z, v))[:, None] * self.z
        total_gradient = anchor.gradient_of_slopes(self.remainder, False)
        gradient = total_gradient - self.gradient
        self.gradient = total_gradient
        self.step = -apply_inverse(self.gradient)
        gradient_norm = (1 + 2 * self.off / kept_share) * np.sqrt(
            np.maximum(np.vecdot(gradient, apply_inverse(gradient)), 0.0)
        )
        size = self.spread * self.summed
        rounding = anchor.rounding.gradient(size) + anchor.rounding.step * size
        self.residual = rounding / np.sqrt(kept_share)
        self._bound(
            np.fmin(self.size + self.noise + before, gradient_norm + self.noise + self.residual),
            closely=True,
        )
        self.residual = self.residual + 4 * self.off / kept_share**2 * np.linalg.norm(
            self.gradient, axis=1
        )
