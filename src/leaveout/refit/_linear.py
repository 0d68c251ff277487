"""Refits of linear predictors with a convex loss and penalty (`Predictors`), each within a ball
that is proved.

There is one predictor for each unit, or one for each of several outputs. For several outputs,
arrays `[…, units]` of predictors and slopes have one more axis, and a range over all outputs of a
unit takes the place of a radius.

In the anchor's coordinates u = Lᵀ(θ − θ̂), H = L Lᵀ. There are these rungs. Each takes the refits
that the one before left open:

    rung       one refit costs                      metric A
    look       O(1) for one row, else a solve       the fold's own Hessian at θ̂
    next term  n products of rows                   the same; single rows only
    products   n products of rows, gradients        the same; single rows only (`RowSteps`)
    sample     some products of rows, estimated     single rows only
    steps      a gradient each                      the same
    conjugate  a few gradients each, estimated      the same; only where Hessians are dear
    newton     a Hessian each, with a line search   the fold's own at the candidate

`RUNGS` has those of single rows, whose proofs a budget of operations pays for.
Every rung gives a candidate, and the radius within which the minimiser is proved to lie
(`linalg.enclosure_theorem`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime import (
    RESULTS,
    LaneEntries,
    ListedValues,
    NumpyArray,
    SettledBy,
    join,
    record,
    silence,
)
from ..linalg import EVERYONE, change, everyone_or
from ..objectives import (
    Displacements,
    Flags,
    Lanes,
    PerLane,
    PerRefit,
    PerUnit,
    RefitFlags,
    RefitNumbers,
    RefitPoints,
)
from ..optimize import Fit
from ..optimize.least_norm import least_norm
from ..plans import CAPACITY, RefitRows
from . import _single_rows as single_rows
from ._anchor import ELEMENTWISE, LinearFitCache, groups, linear_cache, span
from ._enclosure import (
    HURRY,
    STEPS,
    CertifiedBatch,
    conjugate,
    estimate,
    first_look,
    newton,
    take_steps,
)
from ._refit_batch import Rung, climb, take
from ._single_rows import PRODUCTS, OneRow, RowSteps, candidates, one_row, take_row_steps

ListedOutputs = Float[NumpyArray, "refits width ..."]
COSTLY_OPERATIONS = (
    # operations that Hessians, or gradients, of the refits of a plan may cost before they are
    # estimated instead
    3e10
)
# Operations that proofs of the single rows of a plan may cost. A call of many rows takes two
# microseconds for each of them anyway, in which eighty operations fit into a nanosecond: a call of
# fewer rows may take as long, so that times do not fall as rows are added. From a hundred columns
# on the allowance falls less, as products of rows take more of the time. Of many columns proofs
# may take an eighth of the time of the fit.
PROOFS_PER_COLUMN = 2e7
PROOFS_LESS_PER_ROW = 1.6e5
PROOFS_PER_HESSIAN = 6.0
LEAST_PROOFS = 3e7
WORTHWHILE = 0.02  # share of the open refits from which proofs of the farthest of them are bought
# Operations, at that speed, of the sums for a product of two rows, and of a loss with bounds
SUM_OPERATIONS = 40.0
LOSSES = 2400.0
HESSIAN_BUDGET = (
    2.0  # operations of Hessians, relative to that, from which single rows are estimated
)
SPEED = 4.0  # of products in float32, relative to a gradient's operations
TIGHT = 1.5  # factor on the known difference of a loss; a smaller error needs no closer look


class FirstStep:
    """Batch after one step with each refit's own Hessian at θ̂.

    It has held predictors, the refits without such a Hessian, and the raveled θ, which single rows
    compute on demand.
    """

    def __init__(
        self, fit: Fit, rows: RefitRows, target: float = np.inf, allowed: NumpyArray | None = None
    ):
        self.fit = fit
        self.rows = rows
        self.anchor = linear_cache(fit)
        self.target = target
        self.allowed = allowed
        self.single = self.anchor.model.separate and rows.index.shape[1] == 1
        if self.single:
            self.row_step = one_row(fit, rows.index[:, 0], rows.weight[:, 0])
            self.center = self.row_step.center[:, None]
            self.lost_curvature = ~self.row_step.is_determined
        else:
            self.center = self.state.candidates.center
            self.lost_curvature = self.state.metric.kept_share == 0

    @cached_property
    def state(self) -> CertifiedBatch:
        return first_look(self.fit, self.rows, self.target, self.allowed)

    @cached_property
    def gram(self) -> Float[NumpyArray, "units units"]:
        """Products of all rows, of which NumPy computes one half."""
        return self.anchor.rows @ self.anchor.rows.T

    def theta(self) -> RefitPoints:
        return self.state.theta()


class EnclosureLook(NamedTuple):
    """Held predictors of some refits, their errors, λ, its rounding error, the length of the first
    step, and the radius.

    The radius is in the norm of H, and infinite unless it is proved there.
    """

    center: Float[NumpyArray, "lanes width ..."]
    half: LaneEntries
    slope: PerLane
    noise: PerLane
    first: PerLane
    radius: PerLane


Enough = Callable[[Lanes | slice, EnclosureLook], Flags]


class EnclosedRefits(NamedTuple):
    """Result of a batch: held predictors with errors, codes, proofs, and the raveled θ."""

    center: ListedOutputs
    half: ListedValues
    result: RefitNumbers
    proved: RefitFlags
    theta: Callable[[], RefitPoints]
    # u, and the radius around it
    ball: Callable[[], tuple[Displacements, PerRefit]]
    step_length: PerRefit  # the length of the first step
    gradients: float  # number of gradients computed
    open: Int[NumpyArray, " open"]  # refits of which `enough` may not have seen the end
    settled_by: RefitNumbers


class Judge:
    """Decides which refits need no closer look, by the errors of their held-out losses.

    The losses are at `reported` predictors, or at the candidates if none are given. Their error may
    be `allowed`, plus a part of the known difference of the losses. `error` holds the last error of
    each refit; `final_errors` returns the errors at the end.
    """

    def __init__(
        self, fit: Fit, rows: RefitRows, allowed: NumpyArray, reported: NumpyArray | None = None
    ):
        self.fit = fit
        self.rows = rows
        self.tolerance = allowed
        self.reported_center = reported
        self.error = np.full(len(allowed), np.inf)
        self.reported_losses = None if reported is None else losses(fit, rows, reported)

    def errors(
        self,
        lanes: Lanes | slice,
        center: NumpyArray,
        half: NumpyArray,
        radius: PerLane | None = None,
    ) -> PerLane:
        """Errors of some refits."""
        reported = center
        if self.reported_center is not None and self.reported_center is not center:
            reported = self.reported_center[lanes]
        self.error[lanes] = error(self.fit, self.rows.take(lanes), reported, center, half, radius)
        return self.error[lanes]

    def final_errors(self, refits: EnclosedRefits) -> PerRefit:
        """Errors of all refits at the end."""
        if refits.open.size:
            self.errors(refits.open, refits.center[refits.open], refits.half[refits.open])
        return self.error

    def __call__(self, lanes: Lanes | slice, look: EnclosureLook) -> Flags:
        errors = self.errors(lanes, look.center, look.half, look.radius)
        if self.reported_losses is None or look.center is self.reported_center:
            return errors <= self.tolerance[lanes]
        difference = np.abs(
            losses(self.fit, self.rows.take(lanes), look.center) - self.reported_losses[lanes]
        ).sum(1)
        return errors <= TIGHT * difference + self.tolerance[lanes]


def enclose(
    step: FirstStep,
    enough: Enough,
    hurry: bool,
    allowed: NumpyArray | None = None,
    *,
    always: bool = False,
) -> EnclosedRefits:
    """Refine every refit until `enough` holds. In a `hurry` no Hessians are computed, and errors
    are estimated.

    If proofs of all refits cost too much, errors may be estimated too, of single rows within the
    `allowed` error together; but not if they are `always` to be proved.
    """
    if step.single:
        return _by_rows(step, enough, hurry, allowed, always)
    dear = np.inf if always else COSTLY_OPERATIONS
    state, lanes = _to_the_end(step.state, enough, hurry, dear)
    candidates = state.candidates
    return EnclosedRefits(
        candidates.center,
        candidates.half,
        candidates.result,
        candidates.proved,
        state.theta,
        lambda: (candidates.u, candidates.radius),
        state.first,
        state.gradients,
        lanes,
        candidates.settled_by,
    )


class RowCandidates(NamedTuple):
    """Results of a rung for single rows: their predictors, and the errors of these.

    `closed` are the refits that need no other rung, and `unseen` those of which `enough` was not
    asked for the candidates that they have. `gradients` is the number of gradients that took as
    long, and `spent` what is gone of the budget. `ball` returns refits, their u, and radii.
    """

    lanes: Lanes
    center: Float[NumpyArray, "lanes width ..."]
    half: LaneEntries
    settled_by: Lanes | SettledBy
    closed: Lanes
    unseen: Lanes
    gradients: float = 0.0
    spent: float = 0.0
    proved: Flags | bool = True
    result: Lanes | RESULTS = RESULTS.successful
    ball: Callable[[], tuple[Lanes, NumpyArray, NumpyArray]] | None = None


@record
class RowBatch:
    """Single rows on their way: the first look at them, what is near enough, and the candidates.

    `allowed` are the errors that their losses may have, `budget` the operations that proofs may
    still cost, and `dear` those of Hessians from which errors are estimated.
    """

    step: FirstStep
    enough: Enough
    hurry: bool
    allowed: NumpyArray | None
    budget: float
    dear: float
    center: ListedOutputs
    half: ListedValues
    open: Flags
    unseen: Flags
    settled_by: RefitNumbers
    result: RefitNumbers
    proved: Flags
    gradients: float
    balls: tuple[Callable[[], tuple[Lanes, NumpyArray, NumpyArray]], ...] = ()

    def merge(self, candidates: RowCandidates) -> "RowBatch":
        """Return the batch with the candidates of a rung."""
        columns = {
            name: getattr(self, name).copy()
            for name in ("center", "half", "settled_by", "result", "proved", "open", "unseen")
        }
        for name in ("center", "half", "settled_by", "result", "proved"):
            columns[name][candidates.lanes] = getattr(candidates, name)
        columns["open"][candidates.closed] = False
        columns["unseen"][candidates.unseen] = True
        return replace(
            self,
            budget=self.budget - candidates.spent,
            gradients=self.gradients + candidates.gradients,
            balls=self.balls + ((candidates.ball,) if candidates.ball else ()),
            **columns,
        )

    @property
    def anchor(self) -> LinearFitCache:
        return self.step.anchor

    @property
    def looks(self) -> OneRow:
        return self.step.row_step

    @cached_property
    def lanes(self) -> Lanes:
        """Open refits."""
        return np.flatnonzero(self.open)

    @cached_property
    def errors(self) -> PerRefit:
        """Errors of the losses at the candidates."""
        return error(self.step.fit, self.step.rows, self.center, self.center, self.half)

    @property
    def gradient_cost(self) -> float:
        """Operations of a gradient, at the speed of products in float32."""
        return SPEED * len(self.anchor.eta) * (4.0 * self.step.fit.num_params + ELEMENTWISE)

    def affordable(self, lanes: Lanes, cost: float) -> Int[NumpyArray, " chosen"]:
        """Select the farthest of some refits, as many as the budget pays for; none if they are few
        of these.
        """
        if cost * len(lanes) * WORTHWHILE > self.budget:
            return lanes[:0]
        if cost * len(lanes) <= self.budget:
            return lanes
        count = int(self.budget / cost)
        return np.sort(lanes[np.argpartition(-self.half[lanes, 0], count)[:count]])

    # the next term, from all rows

    @cached_property
    def cost_of_term(self) -> float:
        """Operations of products of all rows with one, and of their sums."""
        n, p = self.anchor.model.design.shape
        return n * (2.0 * p + SUM_OPERATIONS)

    @cached_property
    def near_lanes(self) -> Lanes:
        """Open refits that the next term may settle, as many as are affordable."""
        # it comes nearer to the minimiser only once
        if self.allowed is None or self.budget < self.cost_of_term:
            return self.lanes[:0]
        lanes = self.lanes[single_rows.promising(self.anchor, self.looks)[self.lanes]]
        return self.affordable(lanes, self.cost_of_term)

    # steps by products of all rows

    @cached_property
    def cost_of_products(self) -> float:
        """Operations of a step of one row, whose error products of all rows bound."""
        n, p = self.anchor.model.design.shape
        return n * (4.0 * p + LOSSES)

    @cached_property
    def stepping_lanes(self) -> Lanes:
        """Open refits that can take such steps."""
        model = self.anchor.model
        has_theorem = (
            model.loss.self_concordance is not None
            and model.design.outputs == 1
            and model.norms is None
        )
        # bounds at every step cost several steps of few columns, and only an allowed error ends
        # them early
        is_worthwhile = self.allowed is not None or 4 * self.step.fit.num_params > ELEMENTWISE
        if not has_theorem or not is_worthwhile:
            return self.lanes[:0]
        leaves = self.step.rows.weight[self.lanes, 0] == 0
        leaves &= self.settled_by[self.lanes] != SettledBy.products
        return self.lanes[leaves & self.looks.is_determined[self.lanes]]

    @property
    def cost_of_gradients(self) -> float:
        """Operations of two gradients of every open refit."""
        return 2 * self.gradient_cost * len(self.lanes)


def _budget(step: FirstStep) -> float:
    """Return the operations that proofs of a batch of single rows may cost."""
    n, p = step.anchor.model.design.shape
    share = len(step.rows.index) / int(step.rows.num_refits)
    free = PROOFS_PER_COLUMN * (p + 30) - PROOFS_LESS_PER_ROW * n * min(1.0, 100 / p) ** 2
    return share * max(free, PROOFS_PER_HESSIAN * n * p * (p - 50), LEAST_PROOFS)


def _by_rows(
    step: FirstStep, enough: Enough, hurry: bool, allowed: NumpyArray | None, always: bool
) -> EnclosedRefits:
    """Enclose single rows: those that the first look does not settle climb the rungs."""
    look = step.row_step
    count = len(step.center)
    half = look.half[:, None]
    unknown = np.full(count, np.inf)
    budget = np.inf if allowed is None or always else _budget(step)
    first = EnclosureLook(step.center, half, look.after, np.zeros(count), look.step_length, unknown)
    batch = RowBatch(
        step,
        enough,
        hurry,
        allowed,
        budget,
        np.inf if always else min(COSTLY_OPERATIONS, HESSIAN_BUDGET * budget),
        step.center,
        half,
        ~enough(EVERYONE, first),
        np.zeros(count, bool),
        np.full(count, int(SettledBy.one_step), np.int8),
        np.full(count, int(RESULTS.successful)),
        np.ones(count, bool),
        # each look costs as much as a gradient's share of a row
        count / len(step.anchor.eta),
    )
    # where they are dear, proofs are for refits that are not together near enough
    if allowed is not None and (hurry or batch.cost_of_term * len(batch.lanes) > budget):
        batch = replace(batch, open=batch.open & ~within(batch.errors, allowed))
    batch = climb(batch, RUNGS)

    @cache
    def complete_batch() -> CertifiedBatch:
        complete = first_look(step.fit, step.rows)
        for ball in batch.balls:
            lanes, u, radius = ball()
            part = take(complete.candidates, lanes)
            complete = complete.merge(lanes, part._replace(u=u, radius=radius))
        return complete

    return EnclosedRefits(
        batch.center,
        batch.half,
        batch.result,
        batch.proved,
        lambda: complete_batch().theta(),
        lambda: (complete_batch().candidates.u, complete_batch().candidates.radius),
        look.step_length,
        batch.gradients,
        np.flatnonzero(batch.unseen),
        batch.settled_by,
    )


def _take_next_terms(batch: RowBatch) -> RowCandidates:
    """Accept the refits that the next term, from products of all rows, proves near enough."""
    lanes = batch.near_lanes
    middle, half_widths = (
        part[:, None] for part in single_rows.settle_rows(batch.anchor, batch.looks.take(lanes))
    )
    unknown = np.broadcast_to(np.inf, len(lanes))
    is_near = batch.enough(lanes, EnclosureLook(middle, half_widths, *4 * [unknown]))
    good = lanes[is_near]
    spent = len(lanes) * batch.cost_of_term
    return RowCandidates(
        good,
        middle[is_near],
        half_widths[is_near],
        SettledBy.next_term,
        good,
        lanes[~is_near],
        spent / batch.gradient_cost,
        spent,
    )


def _step_by_products(batch: RowBatch, lanes: Lanes) -> RowCandidates:
    """Take steps of rows that are left out, bounded by products of all rows with them.

    The candidates, which would be as large as all rows, are computed again if they are wanted.
    """
    anchor = batch.anchor
    n = len(anchor.eta)
    count = len(lanes)
    middle, half_widths = np.empty((2, count, 1))
    # number of the last look at each refit
    last = np.full(count, -1)
    settled = np.zeros(count, bool)
    uses_gram = anchor.is_small and 4 * count > n and n * n <= 8 * PRODUCTS
    gradients = 0.0

    def run(judge: Callable[[NumpyArray, RowSteps], Flags]) -> None:
        gram = batch.step.gram if uses_gram else None
        for chunk in groups(np.arange(count), PRODUCTS // n):
            take_row_steps(
                anchor,
                batch.looks.take(lanes[chunk]),
                lambda steps, chunk=chunk: judge(chunk[steps.lanes], steps),
                HURRY if batch.hurry else STEPS,
                gram,
            )

    def judge(place: NumpyArray, steps: RowSteps) -> Flags:
        nonlocal gradients
        gradients += 0.5 * len(place)
        middle[place] = steps.center[:, None]
        half_widths[place] = steps.half[:, None]
        last[place] += 1
        seen = (
            middle[place],
            half_widths[place],
            steps.slope,
            steps.noise,
            steps.look.step_length,
            steps.radius,
        )
        settled[place] = batch.enough(lanes[place], EnclosureLook(*seen))
        return settled[place]

    run(judge)
    good = settled | (batch.hurry & np.isfinite(half_widths[:, 0]))

    def ball() -> tuple[Lanes, NumpyArray, NumpyArray]:
        u = np.zeros((count, len(anchor.root)))
        radius = np.full(count, np.inf)
        looks = np.full(count, -1)

        def find(place: NumpyArray, steps: RowSteps) -> Flags:
            looks[place] += 1
            is_last = looks[place] == last[place]
            u[place[is_last]] = candidates(anchor, steps)[is_last]
            radius[place[is_last]] = steps.radius[is_last]
            return is_last

        run(find)
        return lanes[good], u[good], radius[good]

    return RowCandidates(
        lanes,
        middle,
        half_widths,
        SettledBy.products,
        lanes[good],
        lanes,
        gradients,
        len(lanes) * batch.cost_of_products,
        ball=ball,
    )


def _take_samples(batch: RowBatch) -> RowCandidates:
    """Accept single rows by proved or estimated errors that are together within the allowed error.

    In a hurry the smallest sample's estimate is accepted.
    """
    anchor = batch.anchor
    fit = batch.step.fit
    rows = batch.step.rows
    allowed = batch.allowed
    assert allowed is not None
    has_term = (
        anchor.model.separate
        and anchor.model.loss.self_concordance is not None
        and anchor.model.norms is None
    )
    center = batch.center.copy()
    half = batch.half.copy()
    errors = batch.errors.copy()
    is_open = batch.open & ~within(errors, allowed)
    is_estimated = np.zeros(len(center), bool)
    has_short_step = single_rows.is_short(anchor.curvature_rate, batch.looks) & has_term
    for size in single_rows.SIZES:
        chosen = np.flatnonzero(is_open & has_short_step)
        if not chosen.size or size > len(anchor.eta):
            break
        look = batch.looks.take(chosen)
        points, half_widths = (
            part[:, None] for part in single_rows.from_sample(anchor, look, center[chosen, 0], size)
        )
        errors[chosen] = error(fit, rows.take(chosen), points, points, half_widths)
        good = np.isfinite(errors[chosen]) if batch.hurry else within(errors, allowed)[chosen]
        half[chosen[good]] = half_widths[good]
        center[chosen[good]] = points[good]
        is_estimated[chosen[good]] = True
        is_open[chosen[good]] = False
    estimated = np.flatnonzero(is_estimated)
    closed = np.flatnonzero(batch.open & ~is_open)
    parts = center[estimated], half[estimated], SettledBy.sample, closed, estimated
    return RowCandidates(estimated, *parts, proved=False)


def _iterate(batch: RowBatch) -> RowCandidates:
    """Take steps by gradients, and of Newton's method."""
    lanes = batch.lanes
    step = batch.step
    anchor = batch.anchor
    size = CAPACITY // (4 * len(anchor.root) * anchor.model.design.outputs)
    states = []
    for chunk in groups(lanes, size):
        allowed = None if step.allowed is None else step.allowed[chunk]
        state, _ = _to_the_end(
            first_look(step.fit, step.rows.take(chunk), step.target, allowed),
            lambda places, look, chunk=chunk: batch.enough(chunk[places], look),
            batch.hurry,
            batch.dear,
            took_steps=bool((batch.settled_by[lanes] == SettledBy.products).any()),
        )
        states.append(state)
    candidates = join([state.candidates for state in states])
    return RowCandidates(
        lanes,
        candidates.center,
        candidates.half,
        candidates.settled_by,
        lanes,
        lanes,
        sum(state.gradients for state in states),
        0.0,
        candidates.proved,
        candidates.result,
        lambda: (lanes, candidates.u, candidates.radius),
    )


# What happens to single rows that the first look leaves open. Proofs are bought while the budget
# lasts. Then an estimate takes the place of two gradients that would cost more, and what it cannot
# settle takes steps whatever they cost.
RUNGS = (
    Rung(
        "next term",
        lambda batch: batch.near_lanes.size > 0,
        lambda batch: batch.cost_of_term * len(batch.near_lanes),
        _take_next_terms,
        "enclosure",
    ),
    Rung(
        "products",
        lambda batch: batch.affordable(batch.stepping_lanes, batch.cost_of_products).size > 0,
        lambda batch: batch.cost_of_products * len(batch.stepping_lanes),
        lambda batch: _step_by_products(
            batch, batch.affordable(batch.stepping_lanes, batch.cost_of_products)
        ),
        "enclosure",
    ),
    Rung(
        "sample",
        lambda batch: batch.cost_of_gradients > batch.budget,
        lambda batch: batch.cost_of_gradients,
        _take_samples,
    ),
    Rung(
        "products of the others",
        lambda batch: batch.stepping_lanes.size > 0,
        lambda batch: 2 * batch.cost_of_gradients,
        lambda batch: _step_by_products(batch, batch.stepping_lanes),
        "enclosure",
    ),
    Rung("steps", lambda batch: True, lambda batch: np.inf, _iterate, "enclosure"),
)


def within(
    errors: Float[NumpyArray, "... refits"], allowed: Float[NumpyArray, "... refits"]
) -> Bool[NumpyArray, "... refits"]:
    """Refits of smallest error that are together within the allowed error, none of them above five
    times its share.
    """
    rising = np.sort(errors, axis=-1)
    count = np.sum(np.cumsum(rising, -1) <= allowed.sum(-1, keepdims=True), -1, keepdims=True)
    rising = np.append(rising, np.full(count.shape, np.inf), axis=-1)
    return (errors < np.take_along_axis(rising, count, axis=-1)) & (errors <= 5 * allowed)


def _to_the_end(
    state: CertifiedBatch,
    enough: Enough,
    hurry: bool,
    dear: float,
    *,
    took_steps: bool = False,
) -> tuple[CertifiedBatch, Int[NumpyArray, " open"]]:
    """Run a batch after its first look; returns it with the refits that gradients left open.

    If it `took_steps` with the metric before, refits whose Hessians are not dear take those at
    once. They are from so many operations on.
    """

    def is_near_enough(state: CertifiedBatch, lanes: Lanes) -> Flags:
        chosen = everyone_or(lanes, len(state.first))
        part = take(state.candidates, chosen)
        sizes = part.slope, part.noise, state.first[chosen], part.proved_radius
        return enough(chosen, EnclosureLook(part.center, part.half, *sizes))

    lanes = np.arange(len(state.first))
    lanes = lanes[~is_near_enough(state, lanes)]
    unsettled = lanes[state.metric.kept_share[lanes] == 0]
    n, p = state.anchor.model.design.shape
    is_dear = 4.0 * len(lanes) * n * p * p > dear
    state = state.mark(lanes, settled_by=SettledBy.steps)
    # an estimate can only be near enough where refits need not converge
    early = is_dear and np.isinf(state.target)
    if hurry:
        numbers_of_steps = [HURRY]
    elif took_steps:
        numbers_of_steps = []
    elif early:
        numbers_of_steps = [HURRY, STEPS - HURRY]
    else:
        numbers_of_steps = [STEPS]
    for most in numbers_of_steps:
        state, lanes = take_steps(state, lanes, is_near_enough, most)
        if hurry or is_dear:
            state = estimate(state, lanes)
            lanes = lanes[~is_near_enough(state, lanes)]
    open_refits = np.union1d(lanes, unsettled)
    if hurry:
        lanes = lanes[~np.isfinite(state.candidates.half[lanes]).all(1)]
    if is_dear and state.anchor.model.separate and state.anchor.model.norms is None:
        state = state.mark(lanes, settled_by=SettledBy.conjugate_gradients)
        state, lanes = conjugate(state, lanes, is_near_enough)
    lanes = lanes[: 0 if hurry and is_dear else None]
    lanes = np.union1d(lanes, unsettled[:0] if hurry else unsettled)
    # a quadratic whose own Hessian is not known to have an inverse
    if least_norm(state.fit) is not None:
        undetermined = lanes[state.metric.kept_share[lanes] == 0]
        state = state.mark(undetermined, result=RESULTS.undetermined)
        lanes = np.setdiff1d(lanes, undetermined)
    state = state.mark(lanes, proved=True, settled_by=SettledBy.newton)
    return newton(state, lanes, is_near_enough), open_refits


def error(
    fit: Fit,
    rows: RefitRows,
    reported: NumpyArray,
    center: NumpyArray,
    half: NumpyArray,
    radius: PerRefit | None = None,
) -> PerRefit:
    """Largest error of the summed held-out losses at the reported predictors, `[refits]`.

    It is a sum of the losses' own errors. If these are reported at the center of a ball of that
    `radius` in the norm of H, the predictors' moves x_nᵀδ obey Σ ω_n ℓ″_n (x_nᵀδ)² ≤ ‖δ‖²_H, so
    Σ |ℓ′_n x_nᵀδ| is at most the radius times the root of Σ ℓ′_n² / ω_n ℓ″_n, rather than Σ |ℓ′_n|
    ‖x_n‖_H⁻¹.
    """
    anchor = linear_cache(fit)
    model = anchor.model
    scored = rows.held
    if scored.shape[1] == 1 and scored.all():
        y = model.y[span(rows.index[:, 0])]
        predictor = center[:, 0]
        return change(
            model.unit_loss,
            y,
            predictor if reported is center else reported[:, 0],
            predictor,
            half[:, 0],
        )
    is_finite = np.isfinite(half).all(1)
    place = np.flatnonzero(scored if is_finite.all() else scored & is_finite[:, None])  # row by row
    listed = lambda part: np.reshape(part, (-1, *np.shape(part)[2:]))[place]
    if not place.size:
        return np.where(scored.any(1), np.inf, 0.0)
    middle = listed(center)
    reported_predictors = middle if reported is center else listed(reported)
    unit = listed(rows.index)
    unit_errors = change(model.unit_loss, model.y[unit], reported_predictors, middle, listed(half))
    total = partial(np.bincount, place // max(scored.shape[1], 1), minlength=len(center))
    errors = total(unit_errors)
    if (
        radius is not None
        and reported is center
        and anchor.roots is None
        and np.isfinite(radius).any()
    ):
        slope = np.abs(model.unit_loss.derivatives(middle, model.y[unit], (1,))[0])
        with silence("invalid"):
            gain = total(slope * anchor.norm[unit]) - np.sqrt(
                total(slope**2 * anchor.flatness[unit])
            )
            errors -= np.where(np.isfinite(radius), radius, 0.0) * np.fmax(gain, 0.0)
    return np.where(is_finite | ~scored.any(1), errors, np.inf)


def unit_losses(fit: Fit) -> PerUnit:
    """Loss of every unit at θ̂."""
    anchor = linear_cache(fit)
    return anchor.loss[: anchor.units]


def losses(fit: Fit, rows: RefitRows, eta: NumpyArray) -> ListedValues:
    """Held-out losses at predictors, zero where not scored."""
    model = linear_cache(fit).model
    index = rows.index
    held = rows.held
    if index.shape[1] == 1:
        return np.where(
            held,
            model.unit_loss.derivatives(eta, model.y[span(index[:, 0])][:, None], (0,))[0],
            0.0,
        )
    out = np.zeros(held.shape)
    place = np.flatnonzero(held)
    (out.ravel()[place],) = model.unit_loss.derivatives(
        eta.reshape(-1, *eta.shape[2:])[place], model.y[index.ravel()[place]], (0,)
    )
    return out


def predictors_at(fit: Fit, rows: RefitRows, u: Displacements) -> ListedOutputs:
    """Predictors of the listed units at displacements."""
    anchor = linear_cache(fit)
    return anchor.model.unit_predictors(rows.units(anchor.units), anchor.theta + u @ anchor.root)
