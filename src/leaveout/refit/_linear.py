"""Refits of linear predictors with a convex loss and penalty (`Predictors`): each within a ball that is proved.

One number a unit, or one for each of several outputs: there arrays `[…, units]` of predictors and slopes have one axis more,
and what a radius is for one is a range for all of a unit's.

In the anchor's coordinates u = Lᵀ(θ − θ̂), H = L Lᵀ. The rungs, each taken by the refits that the one before left open:

    rung      one refit costs                       metric A
    look      O(1) for one row, else a solve        the fold's own Hessian at θ̂, from the rows that leave
    steps     a gradient each                       the same
    newton    a Hessian each, with a line search    the fold's own at the candidate

Every rung gives a candidate, and the radius within which the minimiser is proved to lie (`_proved`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._fit import Fit, once
from .._plan import Plan, Rows
from .._proved import ROUNDING, change
from .._results import RESULTS
from . import _sampled as sampled
from ._anchor import SINGULAR, anchored
from ._enclosure import HURRY, STEPS, Enclosure

Array = np.ndarray
ELEMENTWISE = 400.0  # operations that a loss, its derivatives and their gaps cost a unit
AFFORDABLE = 1e8  # operations that gradients of a plan's refits may cost before single rows are estimated
DEAR = 3e10  # operations that Hessians, or gradients, of the refits of a plan may cost before they are estimated instead
COPIES = 200_000  # rows beyond which copies are not looked for


class OneRow(NamedTuple):
    """Single rows after one step with their own Hessian, of one output in O(1) each: the row and what it loses of its weight,
    its predictor, and how far that may be off."""

    unit: Int[Array, " refits"]
    lost: Float[Array, " refits"]
    center: Float[Array, "refits ..."]
    half: Float[Array, " refits"]
    moved: Float[Array, " refits"]  # λ, the length of the step
    kept: Float[Array, " refits"]  # 1 − q
    determined: Bool[Array, " refits"]

    def take(self, lanes: Array) -> "OneRow":
        return OneRow(*(part[lanes] for part in self))


def one_row(fit: Fit, unit: Array, weight: Array) -> OneRow:
    """The first look, where each refit changes the weight of one row: no vector of parameters is formed."""
    anchor = anchored(fit)
    norm = anchor.norm[unit]
    lost = (1 - weight) * anchor.weight[unit]
    pull, bend = lost * anchor.slope[unit], lost * anchor.curvature[unit]
    common = anchor.model.design.at(unit, anchor.root.T @ anchor.leftover) if anchor.leftover.any() else np.zeros(len(unit))
    kept = 1 - bend * norm**2
    determined = kept > SINGULAR
    kept = np.where(determined, np.minimum(kept, 1.0), 1.0)
    along = common - pull * norm**2  # z · gradient
    square = anchor.leftover @ anchor.leftover - 2 * pull * common + (pull * norm) ** 2 + along**2 * bend / kept
    grown = np.maximum(weight, 1.0)
    slope = np.sqrt(np.maximum(square, 0.0)) + anchor.noise * grown / np.sqrt(kept)
    after = anchor.table.ball(slope, kept, grown).after
    with np.errstate(invalid="ignore"):
        half = np.where(determined & np.isfinite(after), norm / np.sqrt(kept) * after, np.inf)
    center = anchor.eta[unit] - along / kept
    half += 4 * ROUNDING * (1 + np.abs(center) + anchor.bulk[unit]) + anchor.blur * np.abs(along / kept**2)
    return OneRow(unit, lost, center, half, slope, kept, determined)


def _looked(state: Enclosure) -> OneRow:
    """The same of several outputs, from a batch after its first look."""
    unit, kept = state.units[:, 0], state.metric.kept
    lost = (1 - np.asarray(state.rows.weight)[:, 0]) * state.anchor.weight[unit]
    return OneRow(unit, lost, state.center[:, 0], state.half[:, 0], state.slope, np.where(kept > 0, kept, 1.0), kept > 0)


class Step(NamedTuple):
    """A batch after one step with each refit's own Hessian at θ̂: held predictors, which have none, and the raveled θ."""

    center: Float[Array, "refits width ..."]
    lost: Bool[Array, " refits"]
    theta: Callable[[], Float[Array, "refits params"]]


def newton_step(fit: Fit, rows: Rows) -> Step:
    """That step, of single rows without their parameters, until these are asked for."""

    @functools.cache
    def looked() -> Enclosure:
        state = Enclosure(fit, rows)
        state.look()
        return state

    theta = lambda: looked().theta()
    if _single(fit, rows):
        found = one_row(fit, np.asarray(rows.index)[:, 0], np.asarray(rows.weight)[:, 0])
        return Step(found.center[:, None], ~found.determined, theta)
    return Step(looked().center, looked().metric.kept == 0, theta)


def _single(fit: Fit, rows: Rows) -> bool:
    """Does each refit change the weight of one row, of one output?"""
    model = anchored(fit).model
    return model.separate and model.design.outputs == 1 and rows.index.shape[1] == 1


class Look(NamedTuple):
    """Where some refits are: held predictors, how far they may be off, λ, what of it is rounding, the first step's length."""

    center: Float[Array, "lanes width ..."]
    half: Float[Array, "lanes width"]
    slope: Float[Array, " lanes"]
    noise: Float[Array, " lanes"]
    first: Float[Array, " lanes"]


Enough = Callable[[Int[Array, " lanes"], Look], Bool[Array, " lanes"]]


class Enclosed(NamedTuple):
    """What became of a batch: held predictors, how far they may be off, codes, what is proved, the raveled θ where formed."""

    center: Float[Array, "refits width ..."]
    half: Float[Array, "refits width"]
    result: Int[Array, " refits"]
    proved: Bool[Array, " refits"]
    theta: Callable[[], Float[Array, "refits params"]]
    ball: Callable[[], tuple[Float[Array, "refits rank"], Float[Array, " refits"]]]  # u, and the radius around it
    moved: Float[Array, " refits"]  # the length of the first step
    gradients: float  # that were made


def enclose(fit: Fit, rows: Rows, enough: Enough, hurry: bool, allowed: Array | None = None) -> Enclosed:
    """Every refit brought to where `enough` says so. A `hurry` takes no Hessians: it estimates. Where gradients of all refits
    are not to be had, errors of single rows may be estimated too, and share what is `allowed` them."""
    if _single(fit, rows):
        return _by_rows(fit, rows, enough, hurry, allowed)
    state = _to_the_end(fit, rows, enough, hurry, allowed)
    ball = lambda: (state.u, state.radius)
    return Enclosed(state.center, state.half, state.result, state.proved, state.theta, ball, state.first, state.gradients)


def _by_rows(fit: Fit, rows: Rows, enough: Enough, hurry: bool, allowed: Array | None) -> Enclosed:
    """Single rows: those that the first look does not settle go on as batches do."""
    look = one_row(fit, np.asarray(rows.index)[:, 0], np.asarray(rows.weight)[:, 0])
    center, half = look.center[:, None].copy(), look.half[:, None].copy()
    everyone = np.arange(len(center))
    result, proved = np.full(len(center), int(RESULTS.successful)), np.ones(len(center), bool)
    unknown = np.full(len(center), np.inf)
    lanes = everyone[~enough(everyone, Look(center, half, unknown, np.zeros(len(center)), unknown))]
    if allowed is not None and _costs(fit, rows, len(lanes)) > AFFORDABLE:
        lanes = _by_the_next_term(fit, rows, look, allowed, hurry, center, half, proved)
    state = None
    if lanes.size:
        state = _to_the_end(fit, rows.take(lanes), lambda some, seen: enough(lanes[some], seen), hurry)
        center[lanes], half[lanes], result[lanes], proved[lanes] = state.center, state.half, state.result, state.proved

    @functools.cache
    def whole() -> Enclosure:
        found = Enclosure(fit, rows)
        found.look()
        if state is not None:
            found.u[lanes], found.radius[lanes] = state.u, state.radius
        return found

    theta, ball = lambda: whole().theta(), lambda: (whole().u, whole().radius)
    looked = len(center) / len(anchored(fit).eta)  # each costs as much as a gradient's share of a row
    gradients = looked + (0.0 if state is None else state.gradients)
    return Enclosed(center, half, result, proved, theta, ball, look.moved, gradients)


def _costs(fit: Fit, rows: Rows, lanes: int) -> float:
    """Operations of a gradient of so many refits of a batch, and of as many in every other batch."""
    each = (4.0 * fit.num_params + ELEMENTWISE) * fit.objective.num_units
    return each * lanes * int(rows.num_refits) / len(rows.index)


def _by_the_next_term(
    fit: Fit, rows: Rows, look: OneRow, allowed: Array, hurry: bool, center: Array, half: Array, proved: Array
) -> Int[Array, " open"]:
    """Single rows accepted by what is proved or estimated of them, all together within what is allowed: those still open.
    In a hurry whatever the smallest sample tells is taken. Writes into `center`, `half` and `proved`."""
    anchor = anchored(fit)
    known = anchor.model.separate and anchor.model.loss.self_concordance is not None
    wrong = error(fit, rows, center, center, half)
    lanes, rest = np.flatnonzero(~_within(wrong, allowed)), np.zeros(0, int)  # open ones, and those that no term is told of
    whole = [None] if anchor.rows is not None and anchor.roots is None else []  # by all rows, where they are whitened once
    for size in (*sampled.SIZES, *whole) if known else ():
        if _costs(fit, rows, len(lanes)) <= AFFORDABLE or (size or 0) > len(anchor.eta):
            break
        short = (sampled.short(anchor, look) & look.determined)[lanes]
        if not short.any():
            break
        lanes, rest = lanes[short], np.union1d(rest, lanes[~short])
        some = look.take(lanes)
        term = sampled.next_term(anchor, some, size)
        left = sampled.half(anchor, some, term, size is not None)[:, None]
        middle = center[lanes] + (0.0 if size else term.move[:, None])
        wrong[lanes] = error(fit, rows.take(lanes), middle, middle, left)
        good = np.isfinite(wrong[lanes]) if hurry else _within(wrong, allowed)[lanes]
        center[lanes[good]], half[lanes[good]], proved[lanes[good]] = middle[good], left[good], False
        lanes = lanes[~good]
    return np.union1d(lanes, rest)


def _within(wrong: Array, allowed: Array) -> Bool[Array, " refits"]:
    """The refits of smallest error that together stay within what is allowed together, none above five times its share."""
    order, within = np.argsort(wrong), np.empty(len(wrong), bool)
    within[order] = np.cumsum(wrong[order]) <= allowed.sum()
    return within & (wrong <= 5 * allowed)


def _to_the_end(fit: Fit, rows: Rows, enough: Enough, hurry: bool, allowed: Array | None = None) -> Enclosure:
    state = Enclosure(fit, rows)
    parts = lambda: (state.center, state.half, state.slope, state.noise, state.first)
    asked = lambda lanes: enough(lanes, Look(*(part[lanes] for part in parts())))
    state.look()
    lanes = np.arange(len(state.u))
    lanes = lanes[~asked(lanes)]
    if allowed is not None and rows.index.shape[1] == 1 and _costs(fit, rows, len(lanes)) > AFFORDABLE:
        lanes = _by_the_next_term(fit, rows, _looked(state), allowed, hurry, state.center, state.half, state.proved)
    unsettled = lanes[state.metric.kept[lanes] == 0]
    n, p = state.anchor.model.design.shape
    dear = 4.0 * len(lanes) * n * p * p > DEAR
    for most in (HURRY,) if hurry else (HURRY, STEPS - HURRY) if dear else (STEPS,):
        lanes = state.steps(lanes, asked, most)
        if hurry or dear:
            state.estimate(lanes)
            lanes = lanes[~asked(lanes)]
    if hurry:
        lanes = lanes[~np.isfinite(state.half[lanes]).all(axis=1) & (not dear)]
    lanes = np.union1d(lanes, unsettled[:0] if hurry else unsettled)
    if lanes.size:
        state.proved[lanes] = True
        state.newton(lanes, asked)
    return state


def error(fit: Fit, rows: Rows, reported: Array, center: Array, half: Array) -> Float[Array, " refits"]:
    """The most that the held-out losses at the reported predictors may be off, added up, `[refits]`."""
    model = anchored(fit).model
    known, scored = np.isfinite(half).all(1), np.asarray(rows.held)
    place = np.flatnonzero(scored if known.all() else scored & known[:, None])  # in one row after another
    picked = lambda part: np.reshape(part, (-1, *np.shape(part)[2:]))[place]
    if not place.size:
        return np.where(scored.any(1), np.inf, 0.0)
    middle = picked(center)
    other = middle if reported is center else picked(reported)
    each = change(model.unit_loss, model.y[picked(rows.index)], other, middle, picked(half))
    refit = place // max(scored.shape[1], 1)
    return np.where(known | ~scored.any(1), np.bincount(refit, each, len(center)), np.inf)


def unit_losses(fit: Fit) -> Float[Array, " units"]:
    """The loss of every unit at θ̂."""
    anchor = anchored(fit)
    return anchor.model.unit_loss.derivatives(anchor.eta[: anchor.units], anchor.model.y, (0,))[0]


def losses(fit: Fit, rows: Rows, at: Array) -> Float[Array, "refits width"]:
    """Held-out losses at predictors, zero where not scored."""
    model = anchored(fit).model
    y = model.y[np.where(np.asarray(rows.index) < len(model.y), rows.index, 0)]
    return np.where(rows.held, model.unit_loss.derivatives(at, y, (0,))[0], 0.0)


def predictors_at(fit: Fit, rows: Rows, u: Float[Array, "refits rank"]) -> Float[Array, "refits width ..."]:
    """The listed units' predictors at displacements."""
    anchor = anchored(fit)
    return anchor.model.at(np.where(np.asarray(rows.index) < anchor.units, rows.index, 0), anchor.theta + u @ anchor.root)


@once
def _classes(fit: Fit) -> Int[Array, " units"]:
    """Numbers of the distinct rows, by what a random direction, the response and the offset are."""
    model = fit.predictors
    assert model is not None
    direction = np.random.default_rng(0).standard_normal(model.design.shape[1])
    value = model.design.predictors(direction[None])[0]
    if value.ndim == 1 and (np.diff(np.sort(value)) > 0).all():
        return np.arange(len(model.y))
    listed = np.c_[value, np.broadcast_to(model.offset, value.shape)][: len(model.y)]
    listed = np.c_[listed, model.y]
    return np.unique(listed, axis=0, return_inverse=True)[1].ravel()


def copies(fit: Fit, plan: Plan) -> str:
    """A sentence on held-out rows that a refit still sees a copy of; empty where there are none, or too many rows to look."""
    if fit.predictors is None or plan.num_units > COPIES:
        return ""
    label = _classes(fit)
    size = np.bincount(label)
    if size.max() == 1:
        return ""
    key = plan.refit * len(size) + label[plan.index]
    distinct, where = np.unique(key, return_inverse=True)
    out = np.bincount(where, plan.weight == 0, len(distinct))[where]
    leaks = np.unique(plan.index[plan.held & (size[label[plan.index]] > out)])
    return f"{len(leaks)} rows are seen by their own refits in a copy: the folds leak" if leaks.size else ""
