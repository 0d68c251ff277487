"""Refits of linear predictors with a convex loss and penalty (`Predictors`), each within a ball
that is proved.

There is one predictor for each unit, or one for each of several outputs. For several outputs,
arrays `[…, units]` of predictors and slopes have one more axis, and a range over all outputs of a
unit takes the place of a radius.

In the anchor's coordinates u = Lᵀ(θ − θ̂), H = L Lᵀ. There are these rungs. Each takes the refits
that the one before left open:

    rung      one refit costs                       metric A
    look      O(1) for one row, else a solve
    the fold's own Hessian at θ̂, from the rows that leave; where
              third derivatives of all rows,
              refits are iterated, it goes on to the minimiser of the
              once for all refits
              expansion to the third order, at which nothing is proved
    products  n products of rows, gradients         the same; single rows only (`_row_steps`)
    steps     a gradient each                       the same
    conjugate a few gradients each, estimated       the same; only where Hessians are dear
    newton    a Hessian each, with a line search    the fold's own at the candidate

Every rung gives a candidate, and the radius within which the minimiser is proved to lie
(`linalg.enclosure_theorem`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime.results import RESULTS
from ..linalg.design import DenseDesign
from ..linalg.enclosure_theorem import change
from ..objectives.objective import Flags, Lanes, PerLane, PerRefit, RefitPoints
from ..optimize.fit import Fit
from ..plans.plan import CAPACITY, RefitRows
from . import _cubic as cubic, _row_sample as sampled
from ._anchor import ELEMENTWISE, groups, linear_cache
from ._enclosure import HURRY, STEPS, CertifiedBatch
from ._least_norm import least_norm
from ._newton import conjugate, newton
from ._one_row import OneRow, one_row, span
from ._row_steps import PRODUCTS, ROUGH, RowSteps

Array = np.ndarray
# operations that gradients of a plan's refits may cost before single rows are estimated
AFFORDABLE = 1e8
COSTLY_OPERATIONS = (
    # operations that Hessians, or gradients, of the refits of a plan may cost before they are
    # estimated instead
    3e10
)
TIGHT = 1.5  # factor on the known difference of a loss; a smaller error needs no closer look


class FirstStep:
    """Batch after one step with each refit's own Hessian at θ̂.

    It has held predictors, the refits without such a Hessian, and the raveled θ, which single rows
    compute on demand.
    """

    def __init__(
        self, fit: Fit, rows: RefitRows, target: float = np.inf, allowed: Array | None = None
    ):
        self.fit = fit
        self.rows = rows
        self.anchor = linear_cache(fit)
        self.target = target
        self.allowed = allowed
        model = self.anchor.model
        self.single = model.separate and rows.index.shape[1] == 1
        if self.single:
            self.row_step = one_row(
                fit, np.asarray(rows.index)[:, 0], np.asarray(rows.weight)[:, 0]
            )
            self.center, self.lost_curvature = (
                self.row_step.center[:, None],
                ~self.row_step.is_determined,
            )
        else:
            self.center, self.lost_curvature = (
                self.state.center.copy(),
                self.state.metric.kept_share == 0,
            )
            self.u = self.state.u.copy()

    @functools.cached_property
    def state(self) -> CertifiedBatch:
        state = CertifiedBatch(self.fit, self.rows, self.target, self.allowed)
        state.look()
        return state

    def theta(self) -> RefitPoints:
        return self.anchor.theta + (self.state.u if self.single else self.u) @ self.anchor.root


class EnclosureLook(NamedTuple):
    """Held predictors of some refits, their errors, λ, its rounding error, the length of the first
    step, and the radius.

    The radius is in the norm of H, and infinite unless it is proved there.
    """

    center: Float[np.ndarray, "lanes width ..."]
    half: Float[np.ndarray, "lanes width"]
    slope: PerLane
    noise: PerLane
    first: PerLane
    radius: PerLane


Enough = Callable[[Lanes, EnclosureLook], Flags]


class EnclosedRefits(NamedTuple):
    """Result of a batch: held predictors with errors, codes, proofs, and the raveled θ."""

    center: Float[np.ndarray, "refits width ..."]
    half: Float[np.ndarray, "refits width"]
    result: Int[np.ndarray, " refits"]
    proved: Bool[np.ndarray, " refits"]
    theta: Callable[[], RefitPoints]
    # u, and the radius around it
    ball: Callable[[], tuple[Float[np.ndarray, "refits rank"], PerRefit]]
    step_length: PerRefit  # the length of the first step
    gradients: float  # number of gradients computed
    open: Int[np.ndarray, " open"]  # refits of which `enough` may not have seen the end


class Judge:
    """Decides which refits need no closer look, by the errors of their held-out losses.

    The losses are at `reported` predictors, or at the candidates if none are given. Their error may
    be `allowed`, plus a part of the known difference of the losses. `error` holds the last error of
    each refit; `final_errors` returns the errors at the end.
    """

    def __init__(self, fit: Fit, rows: RefitRows, allowed: Array, reported: Array | None = None):
        self.fit = fit
        self.rows = rows
        self.tolerance = allowed
        self.reported_center = reported
        self.error = np.full(len(allowed), np.inf)
        self.reported_losses = None if reported is None else losses(fit, rows, reported)

    def errors(
        self, lanes: Lanes, center: Array, half: Array, radius: PerLane | None = None
    ) -> PerLane:
        """Errors of some refits."""
        if self.reported_center is None:
            reported = center
        else:
            reported = select_refits(self.reported_center, lanes)
        self.error[lanes] = error(
            self.fit, select_batch(self.rows, lanes), reported, center, half, radius
        )
        return select_refits(self.error, lanes)

    def final_errors(self, refits: EnclosedRefits) -> PerRefit:
        """Errors of all refits at the end."""
        if refits.open.size:
            self.errors(refits.open, refits.center[refits.open], refits.half[refits.open])
        return self.error

    def __call__(self, lanes: Lanes, look: "EnclosureLook") -> Flags:
        errors = self.errors(lanes, look.center, look.half, look.radius)
        if self.reported_losses is None or look.center is self.reported_center:
            return errors <= select_refits(self.tolerance, lanes)
        difference = np.abs(
            losses(self.fit, select_batch(self.rows, lanes), look.center)
            - self.reported_losses[lanes]
        ).sum(1)
        return errors <= TIGHT * difference + self.tolerance[lanes]


def select_refits(part: Array, lanes: Lanes) -> Array:
    """Select refits by their numbers in order; the array itself if these are all."""
    return part if len(lanes) == len(part) else part[lanes]


def select_batch(rows: RefitRows, lanes: Lanes) -> RefitRows:
    """Select refits of a batch; the batch itself if these are all."""
    if len(lanes) == len(rows.index):
        return rows
    return rows.take(lanes)


def enclose(
    step: FirstStep, enough: Enough, hurry: bool, allowed: Array | None = None
) -> EnclosedRefits:
    """Refine every refit until `enough` holds. In a `hurry` no Hessians are computed, and errors
    are estimated.

    If gradients of all refits cost too much, errors of single rows may be estimated too, within the
    `allowed` error together.
    """
    if step.single:
        return _by_rows(step, enough, hurry, allowed)
    state, lanes = _to_the_end(step.state, enough, hurry)
    ball = lambda: (state.u, state.radius)
    fields = (
        state.center,
        state.half,
        state.result,
        state.proved,
        state.theta,
        ball,
        state.first,
        state.gradients,
    )
    return EnclosedRefits(*fields, lanes)


def _by_rows(step: FirstStep, enough: Enough, hurry: bool, allowed: Array | None) -> EnclosedRefits:
    """Enclose single rows; those that the first look does not settle continue as batches do."""
    fit = step.fit
    rows = step.rows
    look = step.row_step
    center = step.center
    half = look.half[:, None]
    everyone = np.arange(len(center))
    unknown = np.full(len(center), np.inf)
    lanes = everyone[
        ~enough(
            everyone,
            EnclosureLook(
                center, half, look.after, np.zeros(len(center)), look.step_length, unknown
            ),
        )
    ]
    result = np.full(len(center), int(RESULTS.successful))
    proved = np.ones(len(center), bool)
    # refits, their ends, and number of gradients
    ended: list[tuple[Array, Callable[[], tuple[Array, Array]], float]] = []
    # refits for which `enough` saw a candidate that they do not have
    uses_products = False
    seen_refits = lanes[:0]
    if lanes.size:
        center = center.copy()
        half = half.copy()
        if allowed is not None and cubic.worthwhile(step.anchor, len(lanes)):
            seen_refits = lanes = _by_the_cubic(step, enough, lanes, center, half)
        model = step.anchor.model
        smooth = (
            model.loss.self_concordance is not None
            and model.design.outputs == 1
            and model.norms is None
        )
        # products of all rows cost no more than a sample
        is_small = smooth and len(step.anchor.eta) <= 2 * max(sampled.SIZES)
        if allowed is not None and not is_small and _costs(fit, rows, len(lanes)) > AFFORDABLE:
            lanes = _by_the_next_term(fit, rows, look, allowed, hurry, center, half, proved)
        # bounds at every step cost several steps of few columns, and only an allowed error ends
        # them early
        uses_products = (
            smooth
            and (allowed is not None or 4 * fit.num_params > ELEMENTWISE)
            and not np.any(rows.weight[lanes])
        )
        if uses_products:
            seen_refits = np.union1d(seen_refits, lanes)
            lanes, ending = _by_products(step, enough, lanes, hurry, center, half)
            ended.append(ending)
    size = max(1, CAPACITY // (4 * len(step.anchor.root) * step.anchor.model.design.outputs))
    for chunk in (lanes[start : start + size] for start in range(0, len(lanes), size)):
        state = CertifiedBatch(
            fit,
            rows.take(chunk),
            step.target,
            None if step.allowed is None else step.allowed[chunk],
        )
        state.look()
        _to_the_end(
            state,
            lambda places, seen, chunk=chunk: enough(chunk[places], seen),
            hurry,
            uses_products,
        )
        center[chunk], half[chunk], result[chunk], proved[chunk] = (
            state.center,
            state.half,
            state.result,
            state.proved,
        )
        ended.append((chunk, lambda state=state: (state.u, state.radius), state.gradients))

    @functools.cache
    def complete_batch() -> CertifiedBatch:
        batch = CertifiedBatch(fit, rows)
        batch.look()
        for chunk, candidates, _ in ended:
            batch.u[chunk], batch.radius[chunk] = candidates()
        return batch

    theta = lambda: complete_batch().theta()
    ball = lambda: (complete_batch().u, complete_batch().radius)
    # each look costs as much as a gradient's share of a row
    look_cost = len(center) / len(step.anchor.eta)
    gradients = look_cost + sum(entry[-1] for entry in ended)
    changed = np.union1d(np.flatnonzero(half[:, 0] != look.half), seen_refits)
    return EnclosedRefits(
        center, half, result, proved, theta, ball, look.step_length, gradients, changed
    )


def _by_the_cubic(
    step: FirstStep, enough: Enough, lanes: Array, center: Array, half: Array
) -> Int[np.ndarray, " open"]:
    """Accept single rows that the next term proves near enough.

    Returns those still open. Writes into `center` and `half`.
    """
    middle, half_widths = (
        part[:, None] for part in cubic.settle_rows(step.anchor, step.row_step.take(lanes))
    )
    unknown = np.broadcast_to(np.inf, len(lanes))
    good = enough(lanes, EnclosureLook(middle, half_widths, *4 * [unknown]))
    center[lanes[good]], half[lanes[good]] = middle[good], half_widths[good]
    return lanes[~good]


def _by_products(
    step: FirstStep, enough: Enough, lanes: Array, hurry: bool, center: Array, half: Array
) -> tuple[Int[np.ndarray, " open"], tuple[Array, Callable[[], tuple[Array, Array]], float]]:
    """Take steps of rows that are left out, bounded by products of all rows with them; returns the
    open ones, and candidates.

    Writes into `center` and `half`. Candidates, which would be as large as all rows, are computed
    again if they are wanted.
    """
    anchor = step.anchor
    (n, p) = step.anchor.model.design.shape
    count = 0.0
    determined = lanes[step.row_step.is_determined[lanes]]
    # number of the last look at each refit
    last, settled = np.full(len(determined), -1), np.zeros(len(determined), bool)
    rough = 4.0 * len(determined) * n * p * p > COSTLY_OPERATIONS and 4 * len(determined) > p
    rough &= isinstance(anchor.model.design, DenseDesign) and anchor.digits < ROUGH
    uses_gram = anchor.is_small and 4 * len(determined) > n

    def run(judge: Callable[[Array, RowSteps], Flags]) -> None:
        # NumPy computes one half of it
        gram = anchor.rows @ anchor.rows.T if uses_gram and n * n <= 8 * PRODUCTS else None
        for chunk in groups(np.arange(len(determined)), PRODUCTS // n):
            steps = RowSteps(anchor, step.row_step.take(determined[chunk]), rough, gram)
            steps.run(
                lambda steps, chunk=chunk: judge(chunk[steps.lanes], steps),
                HURRY if hurry else STEPS,
            )

    def judge(place: Array, steps: RowSteps) -> Flags:
        nonlocal count
        refits, count = determined[place], count + 0.5 * len(place)
        center[refits], half[refits], last[place] = (
            steps.center[:, None],
            steps.half[:, None],
            last[place] + 1,
        )
        seen = (
            center[refits],
            half[refits],
            steps.slope,
            steps.noise,
            steps.look.step_length,
            _radius(steps),
        )
        settled[place] = enough(refits, EnclosureLook(*seen))
        return settled[place]

    run(judge)
    good = settled | (hurry & np.isfinite(half[determined, 0]))

    def candidates() -> tuple[Array, Array]:
        u, radius, looks = (
            np.zeros((len(determined), len(anchor.root))),
            np.full(len(determined), np.inf),
            np.full(len(determined), -1),
        )

        def find(place: Array, steps: RowSteps) -> Flags:
            looks[place] += 1
            is_last = looks[place] == last[place]
            u[place[is_last]], radius[place[is_last]] = steps.u()[is_last], _radius(steps)[is_last]
            return is_last

        run(find)
        return u[good], radius[good]

    return np.setdiff1d(lanes, determined[good]), (determined[good], candidates, count)


def _radius(steps: RowSteps) -> PerLane:
    return steps.distance / np.sqrt(steps.look.kept_share)


def _costs(fit: Fit, rows: RefitRows, lanes: int) -> float:
    """Operations of gradients for so many refits of this batch and of every other one."""
    gradient_cost = (4.0 * fit.num_params + ELEMENTWISE) * fit.objective.num_units
    return gradient_cost * lanes * int(rows.num_refits) / len(rows.index)


def _by_the_next_term(
    fit: Fit,
    rows: RefitRows,
    look: OneRow,
    allowed: Array,
    hurry: bool,
    center: Array,
    half: Array,
    is_proved: Array,
) -> Int[np.ndarray, " open"]:
    """Accept single rows by proved or estimated errors that are together within the allowed error;
    returns the open ones.

    In a hurry the smallest sample's estimate is accepted. Writes into `center`, `half` and
    `is_proved`.
    """
    anchor = linear_cache(fit)
    has_term = (
        anchor.model.separate
        and anchor.model.loss.self_concordance is not None
        and anchor.model.norms is None
    )
    errors = error(fit, rows, center, center, half)
    # open rows, and those without a next term
    lanes = np.flatnonzero(~within(errors, allowed))
    long_steps = np.zeros(0, int)
    for size in sampled.SIZES if has_term else ():
        if _costs(fit, rows, len(lanes)) <= AFFORDABLE or size > len(anchor.eta):
            break
        open_look = look.take(lanes)
        short = sampled.short(anchor.curvature_rate, open_look)
        if not short.any():
            break
        lanes, long_steps, open_look = (
            lanes[short],
            np.union1d(long_steps, lanes[~short]),
            open_look.take(np.flatnonzero(short)),
        )
        term = sampled.next_term(anchor, open_look, size)
        half_widths = sampled.half(anchor.curvature_rate, open_look, term, True)[:, None]
        errors[lanes] = error(fit, rows.take(lanes), center[lanes], center[lanes], half_widths)
        good = np.isfinite(errors[lanes]) if hurry else within(errors, allowed)[lanes]
        half[lanes[good]], is_proved[lanes[good]] = half_widths[good], False
        lanes = lanes[~good]
    return np.union1d(lanes, long_steps)


def within(
    errors: Float[np.ndarray, "... refits"], allowed: Float[np.ndarray, "... refits"]
) -> Bool[np.ndarray, "... refits"]:
    """Refits of smallest error that are together within the allowed error, none of them above five
    times its share.
    """
    rising = np.sort(errors, axis=-1)
    count = np.sum(
        np.cumsum(rising, axis=-1) <= allowed.sum(-1, keepdims=True), axis=-1, keepdims=True
    )
    rising = np.append(rising, np.full(count.shape, np.inf), axis=-1)
    return (errors < np.take_along_axis(rising, count, axis=-1)) & (errors <= 5 * allowed)


def _to_the_end(
    state: CertifiedBatch, enough: Enough, hurry: bool, uses_products: bool = False
) -> tuple[CertifiedBatch, Int[np.ndarray, " open"]]:
    """Run a batch after its first look; returns it with the refits that gradients left open.

    If it `uses_products`, steps with the metric were taken, and refits whose Hessians are not dear
    take those at once.
    """
    parts = lambda: (
        state.center,
        state.half,
        state.slope,
        state.noise,
        state.first,
        state.proved_radius,
    )
    is_near_enough = lambda lanes: enough(lanes, EnclosureLook(*(part[lanes] for part in parts())))
    lanes = np.arange(len(state.u))
    lanes = lanes[~is_near_enough(lanes)]
    unsettled = lanes[state.metric.kept_share[lanes] == 0]
    n, p = state.anchor.model.design.shape
    dear = 4.0 * len(lanes) * n * p * p > COSTLY_OPERATIONS
    # an estimate can only be near enough where refits need not converge
    early = dear and np.isinf(state.target)
    for most in (
        (HURRY,) if hurry else (HURRY, STEPS - HURRY) if early else (0 if uses_products else STEPS,)
    ):
        lanes = state.steps(lanes, is_near_enough, most)
        if hurry or dear:
            state.estimate(lanes)
            lanes = lanes[~is_near_enough(lanes)]
    open_refits = np.union1d(lanes, unsettled)
    if hurry:
        lanes = lanes[~np.isfinite(state.half[lanes]).all(axis=1)]
    if dear and state.anchor.model.separate and state.anchor.model.norms is None:
        lanes = conjugate(state, lanes, is_near_enough)
    lanes = lanes[: 0 if hurry and dear else None]
    lanes = np.union1d(lanes, unsettled[:0] if hurry else unsettled)
    # a quadratic whose own Hessian is not known to have an inverse
    if least_norm(state.fit) is not None:
        undetermined = lanes[state.metric.kept_share[lanes] == 0]
        state.result[undetermined], lanes = RESULTS.undetermined, np.setdiff1d(lanes, undetermined)
    if lanes.size:
        state.proved[lanes] = True
        newton(state, lanes, is_near_enough)
    return state, open_refits


def error(
    fit: Fit,
    rows: RefitRows,
    reported: Array,
    center: Array,
    half: Array,
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
    scored = np.asarray(rows.held)
    if scored.shape[1] == 1 and scored.all():
        y = model.y[span(np.asarray(rows.index)[:, 0])]
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
    total = functools.partial(np.bincount, place // max(scored.shape[1], 1), minlength=len(center))
    errors = total(unit_errors)
    if (
        radius is not None
        and reported is center
        and anchor.roots is None
        and np.isfinite(radius).any()
    ):
        slope = np.abs(model.unit_loss.derivatives(middle, model.y[unit], (1,))[0])
        with np.errstate(invalid="ignore"):
            gain = total(slope * anchor.norm[unit]) - np.sqrt(
                total(slope**2 * anchor.flatness[unit])
            )
            errors -= np.where(np.isfinite(radius), radius, 0.0) * np.fmax(gain, 0.0)
    return np.where(is_finite | ~scored.any(1), errors, np.inf)


def unit_losses(fit: Fit) -> Float[np.ndarray, " units"]:
    """Loss of every unit at θ̂."""
    anchor = linear_cache(fit)
    return anchor.loss[: anchor.units]


def losses(fit: Fit, rows: RefitRows, eta: Array) -> Float[np.ndarray, "refits width"]:
    """Held-out losses at predictors, zero where not scored."""
    model = linear_cache(fit).model
    index = np.asarray(rows.index)
    held = np.asarray(rows.held)
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


def predictors_at(
    fit: Fit, rows: RefitRows, u: Float[np.ndarray, "refits rank"]
) -> Float[np.ndarray, "refits width ..."]:
    """Predictors of the listed units at displacements."""
    anchor = linear_cache(fit)
    return anchor.model.unit_predictors(
        np.where(np.asarray(rows.index) < anchor.units, rows.index, 0),
        anchor.theta + u @ anchor.root,
    )
