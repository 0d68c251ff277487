"""Iterating refits until what is left to go is small enough: chords, own Hessians, Newton's method with a line search."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jaxtyping import Array, Bool, Float, Int

from . import _certificate as certificate
from ._acceleration import Acceleration
from ._certificate import FIRST_SAFETY, REFUSED, SAFETY
from ._curvature import AbstractMetric, Dense, Products, own_metric_at
from ._fit import Fit
from ._minimise import Walk, dear, descended, newton, value_and_gradient, walk
from ._objective import AbstractLinearPredictor, placed, ravel
from ._plan import Rows
from ._results import RESULTS

OWN = 2**23  # numbers in the own Hessians of a group of refits
COMPILING = 5e7  # operations that are cheaper than compiling for fewer refits
SOLVES = 3  # rounds of steps with a refit's own Hessian by products, in each of which they shrink
NEAR = (1e-3, 1e-6)  # gradients, as shares of the first, at which L-BFGS stops to see whether that is enough
ASTRAY = 0.5  # of the gradient, if more is left after the first step and F is not convex: it may have led to another minimum
ALONE = 0.01  # the largest ratio of steps that is enough to judge by alone, if there are many units a parameter
GRADIENTS = 4.0  # that a refit takes at least, in counting operations
STEPS = 20  # steps before a refit is handed to Newton's method with a line search


@dataclass(frozen=True, eq=False)
class Refitted:
    """A batch of refits: the absolute error of each one's summed held-out loss, whether it is proved, its code; raveled θ,
    made where it is asked for; the held-out losses, where they came along; where the exact refits lie, whitened centres and
    radii around them; the length of each one's first step; and how many gradients all took."""

    make: Callable[[], Float[np.ndarray, "refits params"]]
    error: Float[np.ndarray, " refits"]
    result: Int[np.ndarray, " refits"]
    scores: Float[np.ndarray, "refits ..."] | None = None
    proved: Bool[np.ndarray, " refits"] | None = None
    ball: Callable[[], tuple[Float[np.ndarray, "refits rank"], Float[np.ndarray, " refits"]]] | None = None
    moved: Float[np.ndarray, " refits"] | None = None
    gradients: float = 0.0

    @functools.cached_property
    def theta(self) -> Float[np.ndarray, "refits params"]:
        return self.make()


def num_scored(fit: Fit, rows: Rows) -> np.ndarray:
    """Losses that each refit has: one a scored unit, or one joint loss."""
    return np.maximum(rows.held.sum(1), 1) if fit.objective.pointwise else np.ones(len(rows.held))


class State:
    """A batch on its way: whitened displacements, the last steps and what they leave, error estimates, codes."""

    def __init__(self, u: np.ndarray, first: np.ndarray, metric: AbstractMetric, singular: np.ndarray):
        self.u, self.first, self.metric = u, first, metric
        self.first_step = u.copy()
        self.error = np.full(len(u), np.inf)
        self.result = np.where(singular, RESULTS.undetermined, RESULTS.successful)
        self.finished = singular.copy()
        self.step, self.left = np.zeros((0, u.shape[1])), np.full(len(u), np.inf)
        self.steepness = np.full(len(u), np.inf)  # error of the loss a distance to go, where it was last looked at

    def move(self, lanes: np.ndarray, change: np.ndarray) -> None:
        self.u[lanes] += change
        if isinstance(self.metric, Products):  # as dear at any displacement
            self.metric = replace(self.metric, u=self.u)

    def refitted(self, fit: Fit) -> Refitted:
        theta = parameters_of(fit, self.u)
        ball = lambda: (self.u, self.left)
        count = GRADIENTS * len(self.u)
        return Refitted(lambda: np.asarray(theta), self.error, self.result, None, None, ball, self.first, count)


@eqx.filter_jit
def parameters_of(fit: Fit, u: Array) -> Array:
    return certificate.parameters(fit, u)


def descend(fit: Fit, rows: Rows, state: State, shortfall: Callable) -> None:
    """Steps until `shortfall(lanes, left)`, how many times too large what matters still is, is at most one.

    A refit that would need many steps with its metric is given its own Hessian, renewed when that has grown stale;
    one that still does not come closer, Newton's method with a line search. Where a Hessian costs many gradients,
    both are left to a quasi-Newton method from θ̂, as is a refit that the first step may have led to another minimum.
    """
    if state.finished.all():
        return
    slow = _iterate(fit, rows, state, shortfall, np.flatnonzero(~state.finished), own=False)
    if _dear(fit):
        for lane in slow:
            _quasi_newton_lane(fit, rows, state, shortfall, lane)
        return
    for start in range(0, len(slow), _most(fit)):
        for lane in _iterate(fit, rows, state, shortfall, slow[start : start + _most(fit)], own=True):
            _newton_lane(fit, rows, state, lane)


def _dear(fit: Fit) -> bool:
    """Is a refit's own Hessian too dear, or never formed?"""
    return fit.factor is None or dear(fit.objective, fit.num_params)


def _most(fit: Fit) -> int:
    """Refits that have their own Hessians at the same time."""
    return max(1, OWN // fit.num_params**2)


def _iterate(fit: Fit, rows: Rows, state: State, shortfall: Callable, group: np.ndarray, own: bool) -> np.ndarray:
    """Accelerated steps of a group of refits with the metric they have or, if `own`, with their own Hessians.

    Returns the refits that are not finished: those that need a better metric, or have none.
    """
    price = max(6.0, fit.num_params / 8) if isinstance(fit.objective, AbstractLinearPredictor) else fit.num_params
    natural = np.sqrt(abs(float(fit.value)) / fit.objective.num_units)  # a length of which 1e-9 is noise
    alone = -1.0 if fit.objective.num_units < 10 * fit.num_params else ALONE
    state.step = state.step if len(state.step) else np.zeros_like(state.u)
    previous = np.full(len(state.u), np.inf) if own else state.first.copy()
    contraction, age = np.zeros(len(state.u)), np.zeros(len(state.u), int)  # age: steps with the present metric
    failed = np.zeros(len(state.u), bool)
    renewed = not own and isinstance(state.metric, Products)  # at every step, as Newton's
    astray = ASTRAY if _dear(fit) and not (own or fit.objective.convex) else np.inf
    first_step = state.first_step[group[:0] if renewed else group]
    memory = Acceleration(np.zeros_like(first_step), -first_step)
    size = min(len(state.u), _most(fit))
    inverse = np.zeros((len(padded(group, size, 1)) if own else 0, fit.num_params, fit.num_params))
    for k in range(STEPS):
        lanes = group[~state.finished[group] & ~failed[group]]
        if not lanes.size:
            break
        if own:
            stale = lanes[age[lanes] == 0]
            if stale.size:
                metric, singular = own_metric_at(
                    fit, rows, state.u, padded(stale, size, _smallest(fit, fit.num_params)), certificate.passes(fit)
                )
                place = np.searchsorted(group, stale)
                inverse[place], failed[stale] = metric.inverse[: len(stale)], singular[: len(stale)]
                memory.forget(place)
                lanes = lanes[~failed[lanes]]
                if not lanes.size:
                    break
            seen = examined(fit, rows, Dense(inverse), state.u, lanes, group)
        else:
            seen = examined(fit, rows, state.metric, state.u, lanes)
        first = np.isinf(previous[lanes])  # no ratio yet
        progress = ratio = seen.size / np.maximum(previous[lanes], 1e-300)
        step = plain = np.asarray(seen.step)
        if not renewed:
            step, along = memory.step(np.searchsorted(group, lanes), state.u[lanes], plain)
            ratio = np.where(np.isfinite(along), np.maximum(along, progress), progress)
        floor = seen.size <= 1e-9 * np.maximum(natural, state.first[lanes])
        stuck = ~(progress <= 0.9) & ~floor
        seen_most = np.where(age[lanes] > 0 if own else True, np.maximum(contraction[lanes], ratio), ratio)
        contraction[lanes] = np.where(floor, contraction[lanes], seen_most)
        q = np.minimum((SAFETY if k and not own else FIRST_SAFETY) * contraction[lanes], 0.95)
        left = seen.size * q / (1 - q)  # to go after a plain step, so no more is added to it
        further = np.linalg.norm(step - plain, axis=1)
        share = np.minimum(1.0, left / np.maximum(further, 1e-300))
        step = plain + share[:, None] * (step - plain)
        state.move(lanes[~stuck], -step[~stuck])
        state.step[lanes], state.left[lanes] = step, np.where(stuck | first, np.inf, left + share * further)
        short = np.full(len(lanes), np.inf)
        known = ~(stuck | first)
        if known.any():
            short[known] = shortfall(lanes[known], state.left[lanes[known]])
        enough = (short <= 1) & ((k > 0) | (contraction[lanes] <= alone))
        beyond = np.zeros(len(lanes), bool)
        if enough.any() and not renewed:  # what the steps say is believed where the curvature says so too
            some, used = lanes[enough], (Dense(inverse), group) if own else (state.metric, None)
            q = contractions(fit, rows, used[0], state.u, some, used[1])
            beyond[enough] = ~(q < REFUSED)
            left = (seen.size + share * further)[enough] * q / (1 - np.minimum(q, REFUSED))
            state.left[some] = np.maximum(state.left[some], np.where(beyond[enough], np.inf, left))
            short[enough] = shortfall(some, state.left[some])
            enough &= short <= 1
        state.finished[lanes] = ~stuck & (enough | (floor & (progress > 0.3)))
        previous[lanes] = np.where(stuck, np.inf, seen.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps_left = np.log(short) / -np.log(np.clip(progress, 1e-12, 0.99))
        crossed = (k == 0) & (progress > astray)
        slow = (stuck | crossed | beyond | (steps_left > (1 if own else 3) + price)) & ~first & ~state.finished[lanes]
        if own:
            failed[lanes[stuck & (age[lanes] == 0) & ~first]] = True
            age[lanes] = np.where(slow, 0, age[lanes] + 1)
        else:
            failed[lanes[slow]] = True
    return group[~state.finished[group]]


def _newton_lane(fit: Fit, rows: Rows, state: State, lane: int) -> None:
    """One refit by damped Newton steps from θ̂: the minimiser reached by descent, or a code that says there is none."""
    weights = _weights(fit, rows, lane)
    assert fit.factor is not None
    value, vector, converged, size = newton(fit.objective, fit.theta, weights, fit.null_space, fit.factor)
    u = fit.back(np.asarray(vector) - np.asarray(ravel(fit.theta)))
    lanes, left = np.array([lane]), np.array([float(size)])
    state.move(lanes, u - state.u[lane])
    state.error[lane] = loss_error(fit, rows, state, lanes, left)[0]
    _settle(state, lane, left[0], bool(np.isfinite([value, state.error[lane]]).all()), bool(converged))


def _weights(fit: Fit, rows: Rows, lane: int) -> Float[np.ndarray, " units"]:
    """The weights of one refit, over all units."""
    weights, real = np.ones(fit.objective.num_units), rows.index[lane] < fit.objective.num_units
    weights[rows.index[lane][real]] = rows.weight[lane][real]
    return weights


def _settle(state: State, lane: int, left: float, finite: bool, converged: bool) -> None:
    """What becomes of one refit that another method has brought to where it is, `left` from its minimiser."""
    state.left[lane], state.finished[lane] = left, True
    if not finite:
        state.result[lane], state.error[lane], state.left[lane] = RESULTS.nonfinite, np.inf, np.inf
    elif not converged:
        state.result[lane], state.error[lane], state.left[lane] = RESULTS.not_converged, np.inf, np.inf


def _quasi_newton_lane(fit: Fit, rows: Rows, state: State, shortfall: Callable, lane: int) -> None:
    """One refit by L-BFGS from θ̂, in the coordinates of what stands in for its Hessian, or where there is no such thing in
    those where the anchor's is the identity; then steps with the inverse Hessian that it has learnt, as long as they shrink:
    near the minimum F itself cannot tell steps apart. Where they do not, steps with its own Hessian, by products."""
    objective, weights, start = fit.objective, _weights(fit, rows, lane), np.asarray(ravel(fit.theta))
    whitened = scipy.sparse.linalg.LinearOperator(2 * (fit.num_params,), fit.unwhiten, rmatvec=fit.whiten, dtype=float)
    at, found = fit.theta, None
    for share in NEAR:
        gtol = share * float(state.first[lane])
        found = walk(objective, at, weights, gtol, found)
        if found is None:
            options = {"maxcor": 30, "ftol": 1e-15, "gtol": gtol, "maxiter": 1000}
            reached, told = descended(objective, at, weights, unwhitener=whitened, **options)
            found = Walk(reached, whitened, told.hess_inv)

        def learnt(moved, found=found):
            slope = value_and_gradient(objective, placed(start + moved, fit.theta), weights)[1]
            return found.newton(np.asarray(slope))

        moved = np.asarray(ravel(found.theta)) - start
        moved, size, left, enough = _shrinking_steps(fit, state, shortfall, lane, moved, learnt)
        at = placed(start + moved, fit.theta)
        if enough:
            break
    assert found is not None
    if not enough:
        remaining = _steps_by_products(fit, state, shortfall, lane, weights, found)
        if remaining is not None:
            left, enough = remaining, True
    if not enough:  # else that was seen on the way
        state.error[lane] = loss_error(fit, rows, state, np.array([lane]), np.array([left]))[0]
    arrived = enough or size <= 1e-4 * max(1.0, float(np.linalg.norm(state.u[lane])))
    _settle(state, lane, left, enough or bool(np.isfinite(state.error[lane])), arrived)


def _steps_by_products(
    fit: Fit, state: State, shortfall: Callable, lane: int, weights: Float[np.ndarray, " units"], near: Walk
) -> float | None:
    """What steps with a refit's own Hessian leave, from where `near` led; None where they lead nowhere, and it stays."""
    start, u, last = np.asarray(ravel(fit.theta)), state.u[lane].copy(), state.step[lane].copy()

    def own(moved):
        at = placed(start + moved, fit.theta)
        return near.newton_by_products(
            fit.objective, at, weights, np.asarray(value_and_gradient(fit.objective, at, weights)[1])
        )

    moved = np.asarray(ravel(near.theta)) - start
    for _ in range(SOLVES):
        moved, _, left, enough = _shrinking_steps(fit, state, shortfall, lane, moved, own)
        if enough:
            return left
    state.move(np.array([lane]), u - state.u[lane])
    state.step[lane] = last
    return None


def _shrinking_steps(
    fit: Fit, state: State, shortfall: Callable, lane: int, moved: np.ndarray, asked: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, float, float, bool]:
    """One refit's steps from a displacement of θ on, until they no longer shrink or what is left is enough: the displacement,
    to which `state` is brought too, the length of the last step, what is left, and whether that is enough."""
    lanes, size, left, contraction = np.array([lane]), np.inf, np.inf, 0.0
    state.move(lanes, np.asarray(fit.back(moved)) - state.u[lane])
    for _ in range(2 * STEPS):
        change = asked(moved)
        step = np.asarray(fit.back(change))
        before, size = size, float(np.linalg.norm(step))
        if size == 0.0:
            state.error[lane] = 0.0
            return moved, 0.0, 0.0, True
        shrinks = size < 0.9 * before
        contraction = max(contraction, min(size / before, 1.0)) if np.isfinite(before) else contraction
        left = size / (1 - min(FIRST_SAFETY * contraction, 0.95))
        state.step[lane] = step
        if not shrinks:
            break
        moved = moved - change
        state.move(lanes, -step)
        if contraction and shortfall(lanes, np.array([left]))[0] <= 1:
            return moved, size, left, True
    return moved, size, left, False


def examined(
    fit: Fit, rows: Rows, metric: AbstractMetric, u: np.ndarray, lanes: np.ndarray, group: np.ndarray | None = None
) -> certificate.Examination:
    """One gradient of the refits in `lanes`; `metric` is that of all refits, or of the refits in `group` only."""
    some = padded(lanes, len(u) if group is None else min(len(u), _most(fit)), _smallest(fit, 1))
    place = some if group is None else np.searchsorted(group, some)
    step, size = _examine_lanes(fit, rows, metric, u, some, place, certificate.passes(fit))
    return certificate.Examination(np.asarray(step)[: len(lanes)], np.asarray(size)[: len(lanes)])


@eqx.filter_jit
def _examine_lanes(fit: Fit, rows: Rows, metric: AbstractMetric, u: Array, lanes: Array, place: Array, chunk: int):
    return certificate.examine(fit, take(rows, lanes), take_metric(metric, place), u[lanes], chunk)


def reached(fit: Fit, rows: Rows, state: "State", lanes: np.ndarray, left: np.ndarray) -> certificate.Reached:
    """The losses of the refits in `lanes`, and their errors, `left` being the distance to go."""
    some = padded(lanes, len(state.u), _smallest(fit, 1))
    left = np.concatenate([left, np.repeat(left[-1:], len(some) - len(lanes))])
    parts = _reached_lanes(fit, rows, state.u, state.step, left, some, certificate.own_passes(fit, rows))
    return certificate.Reached(*(np.asarray(part)[: len(lanes)] for part in parts))


@eqx.filter_jit
def _reached_lanes(fit: Fit, rows: Rows, u: Array, step: Array, left: Array, lanes: Array, chunk: int):
    return certificate.reached(fit, take(rows, lanes), u[lanes], step[lanes], left, chunk)


def loss_error(fit: Fit, rows: Rows, state: "State", lanes: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The error of each summed held-out loss, `left` being the distance to go."""
    return np.asarray(reached(fit, rows, state, lanes, left).error)


def contractions(
    fit: Fit, rows: Rows, metric: AbstractMetric, u: np.ndarray, lanes: np.ndarray, group: np.ndarray | None = None
) -> np.ndarray:
    """What steps leave of themselves, by the curvature where the refits in `lanes` stand."""
    some = padded(lanes, len(u) if group is None else min(len(u), _most(fit)), _smallest(fit, 1))
    place = some if group is None else np.searchsorted(group, some)
    return np.asarray(_contractions_of_lanes(fit, rows, metric, u, some, place, certificate.passes(fit)))[: len(lanes)]


@eqx.filter_jit
def _contractions_of_lanes(fit: Fit, rows: Rows, metric: AbstractMetric, u: Array, lanes: Array, place: Array, chunk: int):
    return certificate.contractions(fit, take(rows, lanes), take_metric(metric, place), u[lanes], chunk)


def _smallest(fit: Fit, gradients: int) -> int:
    """Refits below which fewer are not worth a compilation, each as dear as so many gradients."""
    work = certificate.work(fit) * gradients
    return 8 ** min(4, max(0, int(np.log2(max(COMPILING / work, 1)) / 3)))


def padded(lanes: np.ndarray, total: int, least: int) -> np.ndarray:
    """The lanes, the last one repeated up to one of few sizes, so that few shapes are compiled."""
    size = min(max(8 ** int(np.ceil(np.log2(max(len(lanes), 1)) / 3)), least), total)
    return np.concatenate([lanes, np.repeat(lanes[-1:], size - len(lanes))])


def take(rows: Rows, lanes: Array) -> Rows:
    index, weight, held = (jnp.asarray(part)[lanes] for part in rows[:3])
    return Rows(index, weight, held, rows.scale, rows.num_refits)


def take_metric(metric: AbstractMetric, lanes: Array) -> AbstractMetric:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[lanes], metric)
