"""Single rows left out under many penalties side by side: `_linear` in arrays over penalties.

F_k(θ, w) = Σ_i ω_i ℓ(x_iᵀθ) + ½ θᵀP_kθ, one output a unit and ℓ self-concordant; H_k⁻¹ = R_kR_kᵀ,
z = R_kᵀx. A lane is a penalty and a row that leaves: k m + j of m rows. There are these rungs. Each
takes the lanes that the one before left open:

    look     one step with the row's own Hessian, and its proved radius from the table    O(1)
    term     the next term of the expansion, estimated from a sample of rows, if gradients cost
             too much
    steps    those of `RowSteps`

`_linear` takes the lanes that are still open then, and all penalties under which columns nearly
repeat one another.
"""

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime import ArrayRecord, NumpyArray, join, record, silence, slices
from ..linalg import (
    Extent,
    Predictors,
    RadiusTable,
    Rounding,
    bounded,
    change,
    factor_error,
    weight_terms,
)
from ..objectives import Flags, Lanes, PerLane, PerRefit, RefitFlags, RefitNumbers, Selection
from ..optimize import DOUBTFUL
from . import _anchor as anchors, _single_rows as single_rows
from ._anchor import (
    ELEMENTWISE,
    OWN_HESSIAN_BELOW,
    LinearFitCache,
    curvature_error,
    gradient_error,
)
from ._enclosure import HURRY, STEPS, inverse_roots
from ._linear import TIGHT, within
from ._single_rows import (
    PRODUCTS,
    OneRow,
    Row,
    RowSteps,
    Term,
    draw_rows,
    next_term,
    sherman_morrison_step,
    take_row_steps,
)

PenaltyUnits = Float[NumpyArray, "penalties units"]
PenaltyRefits = Float[NumpyArray, "penalties refits"]
PerPenalty = Float[NumpyArray, " penalties"]
# operations that gradients may cost before single rows are estimated
AFFORDABLE = 3e7
# numbers `[penalties, units]` at a time, and numbers of whitened rows, that fit into a cache
TOGETHER = 2**16
WHITENED_ENTRIES = 2**17


class Leaving(NamedTuple):
    """Left-out rows of a plan, one for each refit.

    The share of its weight that each keeps, and whether it is scored.
    """

    unit: RefitNumbers
    weight: PerRefit
    held: RefitFlags


@record
class PathRefit(ArrayRecord):
    """Result for every penalty.

    Held-out losses, and those with no update. The `bad` penalties have no result.
    """

    theta: Float[NumpyArray, "penalties params"]
    baseline: PenaltyRefits
    losses: PenaltyRefits
    error: PenaltyRefits
    proved: Bool[NumpyArray, "penalties refits"]
    open: Bool[NumpyArray, "penalties refits"]  # lanes that are not settled
    gradients: PerPenalty  # number of gradients computed
    mean: PerPenalty  # mean of the losses
    bad: Bool[NumpyArray, " penalties"]
    step_length: PenaltyRefits | None = None  # of the first step, on request


def groups(count: int, model: Predictors) -> list[slice]:
    """Split penalties into groups whose arrays stay in a cache."""
    number = -(-count * model.design.shape[0] // TOGETHER)
    return slices(count, -(-count // min(number, count)))


class Stack:
    """Fits of one model under some of `total` penalties, at their minima θ."""

    def __init__(
        self,
        model: Predictors,
        second: Float[NumpyArray, "penalties params params"],
        theta: Float[NumpyArray, "penalties params"],
        leaving: Leaving,
        total: int,
    ):

        self.model = model
        self.design = model.design
        self.leaving = leaving
        self.theta = theta
        self.second = second
        self.ratio = total / len(theta)
        self.eta = model.eta(theta)
        self.weight, _ = model.full_weights
        self.slope, self.curvature = model.loss.derivatives(self.eta, model.y, (1, 2))
        hessian = (
            self.design.gram(np.broadcast_to(self.weight, self.eta.shape), self.curvature) + second
        )
        self.root, self.bad, condition_square = inverse_roots(hessian, len(model.y))
        off = factor_error(condition_square, len(model.y), hessian.shape[1])
        self.floor = np.maximum(OWN_HESSIAN_BELOW, 4 * off)
        diagonal = np.einsum("kpp->kp", hessian)
        with silence("divide"):
            self.bad |= (1 / (diagonal * np.einsum("kpp->kp", self.root) ** 2)).min(1) < DOUBTFUL
        norm, self.inner = self._extents()
        bulk = np.einsum("kp,kp->k", np.abs(theta), np.sqrt(diagonal))
        self.rounding = Rounding(
            len(model.y),
            len(diagonal.T),
            *(part[:, None] for part in (np.sqrt(condition_square), off, bulk)),
        )
        self.norm, self.size, _ = bounded(Extent(norm, self.inner, norm, self.inner), self.rounding)
        gradient = self.design.pull(weight_terms(self.weight[None], self.slope)) + np.einsum(
            "kp,kpq->kq", theta, second
        )
        self.leftover = np.einsum("kp,kpr->kr", gradient, self.root)
        blur = self.rounding.predictor(self.norm, np.abs(self.eta))
        arguments = self.slope, self.curvature, self.eta, self.norm, blur
        self.noise = gradient_error(model, self.rounding, self.weight, *arguments)
        self.curvature_rounding = curvature_error(model, self.curvature, self.eta, blur)
        self.table = RadiusTable(
            model.loss,
            model.y,
            self.eta,
            self.curvature,
            self.size * self.weight,
            self.norm,
            None,
            self.curvature_rounding,
        )
        self.look = self._look()
        self.anchors = dict[int, LinearFitCache]()

    def anchor(self, k: int) -> LinearFitCache:
        """Return what refits under one penalty share."""
        if k in self.anchors:
            return self.anchors[k]
        (loss,) = self.model.loss.derivatives(self.eta[k], self.model.y, (0,))
        self.anchors[k] = LinearFitCache(
            self.model,
            len(self.model.y),
            self.theta[k],
            self.root[k].T,
            self.eta[k],
            self.weight,
            loss,
            self.slope[k],
            self.curvature[k],
            self.curvature[k],
            None,
            self.norm[k],
            self.size[k],
            self.norm[k],
            self.inner[k],
            0.0,
            self.leftover[k],
            self.noise[k],
            self.lane_rounding(k),
            self.curvature_rounding[k],
            self.floor[k],
            self.table,
            None,
            None,
        )
        return self.anchors[k]

    def _extents(self) -> tuple[PenaltyUnits, PenaltyUnits]:
        """Norms ‖x‖ in every H⁻¹, and their squares."""
        n, p = self.design.shape
        count = len(self.theta)
        if n * p > WHITENED_ENTRIES:
            parts = [self.design.extent(root.T, np.zeros(n)) for root in self.root]
            return np.stack([part.norm for part in parts]), np.stack([part.size for part in parts])
        size = WHITENED_ENTRIES // (n * p)
        parts = [
            self.design.extents(self.root[part], self.curvature) for part in slices(count, size)
        ]
        return np.concatenate([part.norm for part in parts]), np.concatenate(
            [part.size for part in parts]
        )

    def spread_to_lanes(self, part: PenaltyUnits) -> PerLane:
        """Spread one number a unit to the lanes."""
        return np.ravel(part if self.in_order else part[:, self.leaving.unit])

    @cached_property
    def in_order(self) -> bool:
        return np.array_equal(self.leaving.unit, np.arange(self.eta.shape[1]))

    @cached_property
    def unit(self) -> Lanes:
        return np.tile(self.leaving.unit, len(self.theta))

    @cached_property
    def penalty(self) -> Lanes:
        """Number of each lane's penalty."""
        return np.repeat(np.arange(len(self.theta)), len(self.leaving.unit))

    @cached_property
    def curvature_rate(self) -> PerPenalty:
        """Largest M k of each penalty."""
        return np.max(np.asarray(self.model.loss.self_concordance) * self.norm, 1)

    @cached_property
    def flat(self) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray]:
        """Predictor η, ℓ′, ℓ″ and k of every lane."""
        return (
            self.spread_to_lanes(self.eta),
            self.spread_to_lanes(self.slope),
            self.spread_to_lanes(self.curvature),
            self.spread_to_lanes(self.norm),
        )

    def _look(self) -> OneRow:
        """Take one step in every lane with the row's own Hessian."""
        unit = self.leaving.unit
        per_refit = lambda part: np.repeat(part, len(self.leaving.unit))
        common = self.spread_to_lanes(
            self.design.predictors(np.einsum("kpr,kr->kp", self.root, self.leftover))
        )
        row = Row(
            *self.flat, self.spread_to_lanes(self.inner), self.flat[2] * self.flat[-1] ** 2, common
        )
        lost_weight = np.tile((1 - self.leaving.weight) * self.weight[unit], len(self.theta))
        ball = lambda slope, kept: self.table.ball(slope, kept, np.ones(1), anchor=self.penalty)
        rounding = self.lane_rounding(self.penalty)
        rounded = lambda center, move: rounding.predictor(self.flat[-1], np.abs(center), move)
        gradient_square = per_refit(np.sum(self.leftover**2, 1))
        parts = ball, rounded, per_refit(self.floor), rounding.step
        return sherman_morrison_step(
            self.unit, lost_weight, row, gradient_square, per_refit(self.noise), *parts
        )

    def lane_rounding(self, penalty: NumpyArray | int) -> Rounding:
        """Rounding at the anchors of some lanes."""
        return self.rounding._replace(
            **{name: getattr(self.rounding, name)[penalty, 0] for name in ("root", "off", "bulk")}
        )

    @cached_property
    def held(self) -> Flags:
        return np.tile(self.leaving.held, len(self.theta))

    @cached_property
    def y(self) -> PerLane:
        return np.tile(self.model.y[self.leaving.unit], len(self.theta))

    @cached_property
    def baseline(self) -> PenaltyRefits:
        """Losses of the left-out rows with no update."""
        return self.losses(slice(None), self.flat[0]).reshape(len(self.theta), -1)

    def losses(self, lanes: NumpyArray | slice, center: NumpyArray) -> PerLane:
        """Losses of lanes at predictors."""
        return self.model.unit_loss.derivatives(center, self.y[lanes], (0,))[0]

    def costs(self, lanes: int) -> float:
        """Operations of a gradient for so many lanes, and for as many of every other stack."""
        n, p = self.design.shape
        return (4.0 * p + ELEMENTWISE) * n * lanes * self.ratio

    @cached_property
    def short(self) -> Flags:
        """Tell whether the step is short enough for the next term to be valid."""
        return single_rows.is_short(self.curvature_rate[self.penalty], self.look)

    def by_penalty(self, lanes: NumpyArray) -> list[tuple[LinearFitCache, Selection]]:
        """Split lanes, which are in order; each part with what refits under its penalty share."""
        penalties = self.penalty[lanes]
        return [(self.anchor(k), lanes[penalties == k]) for k in np.unique(penalties)]

    def term(self, lanes: NumpyArray, size: int | None) -> Term:
        """Compute the next term of lanes in order, from all rows or a sample, the same for all
        penalties.
        """
        sample = draw_rows(self.anchor(len(self.theta) // 2))
        return join(
            [
                next_term(anchor, self.look.take(part), size, sample)
                for anchor, part in self.by_penalty(lanes)
            ]
        )


class Settling:
    """All lanes in progress: held predictors, the errors of these and of the losses, and whether
    the errors are proved.

    Losses are refined until their average error is `allowed`. In a hurry the losses of the first
    step are reported, and further steps give their errors.
    """

    def __init__(self, stack: Stack, allowed: PerPenalty, hurry: bool):
        self.stack = stack
        self.tolerance = allowed
        self.hurry = hurry
        self.first = stack.look.center
        self.center = self.first.copy()
        self.half = stack.look.half.copy()
        self.losses = stack.losses(slice(None), self.first)  # the reported losses
        self.proved = np.ones(len(self.half), bool)
        self.wrong = np.zeros(len(self.half))
        # each look costs a gradient's share of a row
        self.gradients = np.full(len(allowed), len(stack.leaving.unit) / stack.eta.shape[1])
        self.judge(slice(None), self.center, self.half)

    def judge(self, lanes: NumpyArray | slice, center: NumpyArray, half: NumpyArray) -> None:
        """Bound the errors of reported losses for predictors within `half` of `center`."""
        reported = self.first[lanes] if self.hurry else center
        most = change(self.stack.model.unit_loss, self.stack.y[lanes], reported, center, half)
        self.wrong[lanes] = np.where(self.stack.held[lanes], most, 0.0)

    def run(self) -> PathRefit:
        stack = self.stack
        lanes = np.flatnonzero(~(self.wrong <= self.tolerance[stack.penalty]))
        if stack.costs(len(lanes)) > AFFORDABLE:
            lanes = self._by_the_next_term()
        lanes = self._by_steps(lanes)
        if self.hurry:
            lanes = lanes[~np.isfinite(self.half[lanes])]
        else:
            changed = np.flatnonzero(self.center != self.first)
            self.losses[changed] = stack.losses(changed, self.center[changed])
        is_open = ~np.isfinite(self.wrong + self.losses)
        is_open[lanes] = True
        held = stack.leaving.held
        shaped = lambda part: part.reshape(len(self.tolerance), -1)
        losses = shaped(self.losses)
        error = shaped(self.wrong)
        weight = stack.weight[stack.leaving.unit] * held
        mean = (losses if held.all() else np.where(held, losses, 0.0)) @ (weight / weight.sum())
        losses, baseline = (
            part if held.all() else np.where(held, part, np.nan)
            for part in (losses, stack.baseline)
        )
        return PathRefit(
            stack.theta,
            baseline,
            losses,
            error,
            shaped(self.proved),
            shaped(is_open),
            self.gradients,
            mean,
            stack.bad,
            shaped(stack.look.step_length),
        )

    def _by_the_next_term(self) -> Int[NumpyArray, " open"]:
        """Accept lanes whose errors are together within a penalty's allowed error.

        Returns the open ones.
        """
        stack = self.stack
        n = self.stack.eta.shape[1]
        is_open = ~self._accept()
        lanes = np.flatnonzero(is_open & stack.short)
        long_steps = np.flatnonzero(is_open & ~stack.short)
        for size in [*(size for size in single_rows.SIZES if size < n), n]:
            if not lanes.size or stack.costs(len(lanes)) <= AFFORDABLE:
                break
            look = stack.look.take(lanes)
            is_complete = size == n
            term = stack.term(lanes, None if is_complete else size)
            half = single_rows.estimated_half(
                stack.curvature_rate[stack.penalty[lanes]], look, term, not is_complete
            )
            center = look.center + is_complete * term.move
            self.judge(lanes, center, half)
            good = np.isfinite(self.wrong[lanes]) if self.hurry else self._accept()[lanes]
            settled = lanes[good]
            self.center[settled] = center[good]
            self.half[settled] = half[good]
            self.proved[settled] = False
            lanes = lanes[~good]
        return np.union1d(lanes, long_steps)

    def _accept(self) -> Flags:
        """Lanes of every penalty that are within the allowed error."""
        errors = self.wrong.reshape(len(self.tolerance), -1)
        return within(errors, np.broadcast_to(self.tolerance[:, None], errors.shape)).ravel()

    def _by_steps(self, lanes: Int[NumpyArray, " open"]) -> Int[NumpyArray, " remaining"]:
        """Take steps while they shrink; returns the lanes still open, and those that cannot."""
        stack = self.stack
        leaves = stack.leaving.weight[lanes % len(stack.leaving.unit)] == 0
        steppable = lanes[stack.look.is_determined[lanes] & leaves]
        is_near = np.zeros(len(self.half), bool)

        def enough(chunk: NumpyArray, steps: RowSteps) -> Flags:
            lanes = chunk[steps.lanes]
            is_near[lanes] = self._enough(lanes, steps.center, steps.half)
            return is_near[lanes]

        for anchor, part in stack.by_penalty(steppable):
            for chunk in anchors.groups(part, PRODUCTS // len(anchor.eta)):
                most = HURRY if self.hurry else STEPS
                take_row_steps(anchor, stack.look.take(chunk), partial(enough, chunk), most)
        return lanes[~is_near[lanes]]

    def _enough(self, lanes: NumpyArray, center: NumpyArray, half: NumpyArray) -> Flags:
        """Take better predictors, and mark lanes that need no others."""
        # number of gradients, computed together, in the time of a single one: 5 against 40
        # μs at 1,000 x 20
        np.add.at(self.gradients, self.stack.penalty[lanes], 1 / 8)
        is_better = half < self.half[lanes]
        better = lanes[is_better]
        self.center[better] = center[is_better]
        self.half[better] = half[is_better]
        self.proved[better] = True
        self.judge(better, self.center[better], self.half[better])
        tolerance = self.tolerance[self.stack.penalty[lanes]]
        # the allowed error, and a multiple of the difference of the reported losses
        if self.hurry:
            difference = self.stack.losses(lanes, self.center[lanes]) - self.losses[lanes]
            tolerance = TIGHT * np.abs(difference) + tolerance
        return self.wrong[lanes] <= tolerance
