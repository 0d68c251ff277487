"""Strategies: from the fit to the parameters of a batch of refits, each with an error estimate and a code.

A strategy is called with a `Fit` and a batch of rows of a plan. All of them work in the anchor's whitened
coordinates u = Lᵀ(θ − θ̂), in which the anchor's Hessian is the identity and ‖u‖ is the H-norm.
"""

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from . import _certificate as certificate
from ._certificate import FIRST_SAFETY, SAFETY
from ._curvature import AbstractMetric, Anchor, own_metric, own_metric_at
from ._fit import Fit, newton
from ._objective import AbstractLinearPredictor, unravel
from ._plan import Rows
from ._results import RESULTS

AFFORDABLE = 2e10  # operations that gradients of every refit may cost before bounds are tried first
OWN = 2**23  # numbers in the own Hessians of a group of refits
COMPILING = 5e7  # operations that are cheaper than compiling for fewer refits
SAMPLE = 2048  # units in a sample of the next term
STEPS = 20  # steps before a refit is handed to Newton's method with a line search


class Refitted(NamedTuple):
    """A batch of refits: raveled θ, the absolute error of each one's summed held-out loss, and its code."""

    theta: Float[np.ndarray, "refits params"]
    error: Float[np.ndarray, " refits"]
    result: Int[np.ndarray, " refits"]


class AbstractRefit(eqx.Module):
    """How to move from the fit at weights one to the fit at other weights."""

    @abc.abstractmethod
    def __call__(self, fit: Fit, rows: Rows) -> Refitted:
        """Refit a batch of rows of a plan."""


class NoUpdate(AbstractRefit):
    """Keep θ̂: the baseline. Its error is what one Newton (or chord) step would change."""

    def __call__(self, fit, rows):
        return _judge(fit, rows, np.zeros((len(rows.index), fit.num_params)))


class InfinitesimalJackknife(AbstractRefit):
    """The Taylor expansion of θ̂(w) at w = 1, of order 1 or 2 (first source document, Algorithms 1–4).

    θ₁ = −H⁻¹ ∇_θ ∂_δ F,      θ̂(1 + δ) ≈ θ̂ + θ₁ + ½ θ₂
    """

    order: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        if self.order not in (1, 2):
            raise ValueError(f"InfinitesimalJackknife: order must be 1 or 2; got {self.order}.")

    def __call__(self, fit, rows):
        return _judge(fit, rows, np.asarray(_expand(fit, rows, self.order)), crossings=True)


class NewtonStep(AbstractRefit):
    """One Newton step with the fold's own Hessian: exact for quadratic F; by Woodbury it is ALO."""

    def __call__(self, fit, rows):
        metric, singular = own_metric(fit, rows)
        u = np.asarray(_first_step(fit, rows, metric))
        return _judge(fit, rows, u, crossings=True, metric=metric, singular=np.asarray(singular))


class Exact(AbstractRefit):
    """Iterate to the minimiser of F(·, w): until what is left is `tol` of the first step, or at the floor of float64."""

    tol: float = eqx.field(static=True, default=1e-8)

    def __check_init__(self):
        if not 0 < self.tol < 1:
            raise ValueError(f"Exact: tol must lie between 0 and 1; got {self.tol}.")

    def __call__(self, fit, rows):
        state = _start(fit, rows)
        _descend(fit, rows, state, lambda lanes, error, left: left / (self.tol * np.maximum(state.first[lanes], 1e-300)))
        return state.refitted(fit)


class Certified(AbstractRefit):
    """The cheapest step the objective has, then corrected until the error of a refit's loss is estimated at most
    `rtol` standard errors of the no-update mean a scored unit.

    So the mean is off by at most `rtol` of its standard error (a scale, not an inference). Where gradients of
    every refit are too dear, a bound accepts what it can, the next term of the expansion most of the rest, and
    only what is left is iterated; the tolerance is then shared, and a single refit may take up to five times its own.
    """

    rtol: float = eqx.field(static=True, default=0.01)

    def __check_init__(self):
        if not 0 < self.rtol <= 1:
            raise ValueError(f"Certified: rtol must lie between 0 and 1; got {self.rtol}.")

    def __call__(self, fit, rows):
        state = _start(fit, rows)
        allowed = self.rtol * float(rows.scale) * _scored(fit, rows)
        _flag_crossings(fit, rows, state.u, state.result)
        kinked = state.result == RESULTS.kink  # ratios of steps say nothing there: iterate to the end
        if not _affordable(fit, rows) and _has_bound(fit):
            _screen(fit, rows, state, allowed)
        _descend(fit, rows, state, functools.partial(self._shortfall, state, np.maximum(allowed, 1e-300), kinked))
        if not (_has_bound(fit) and fit.objective.self_concordance == 0):  # unless the first step is exact
            state.error = np.maximum(state.error, 1e-4 * allowed)  # what is far below the tolerance is not resolved
        return state.refitted(fit)

    @staticmethod
    def _shortfall(state, allowed, kinked, lanes, error, distance):
        unsettled = distance / (1e-8 * np.maximum(state.first[lanes], 1e-300))
        return np.maximum(error / allowed[lanes], np.where(kinked[lanes], unsettled, 0.0))


def _scored(fit: Fit, rows: Rows) -> np.ndarray:
    """Losses that each refit has: one a scored unit, or one joint loss."""
    return np.maximum(rows.held.sum(1), 1) if fit.objective.pointwise else np.ones(len(rows.held))


class _State:
    """A batch on its way: whitened displacements, error estimates, codes, and which refits are finished."""

    def __init__(self, u: np.ndarray, metric: AbstractMetric, gradient: Array, singular: np.ndarray):
        self.u, self.metric, self.gradient = u, metric, gradient
        self.error = np.full(len(u), np.inf)
        self.result = np.where(singular, RESULTS.undetermined, RESULTS.successful)
        self.finished = singular.copy()
        self.first = np.linalg.norm(u, axis=1)

    def refitted(self, fit: Fit) -> Refitted:
        return Refitted(np.asarray(_parameters(fit, self.u)), self.error, self.result)


@eqx.filter_jit
def _parameters(fit: Fit, u: Array) -> Array:
    return certificate.parameters(fit, u)


@eqx.filter_jit
def _first_gradient(fit: Fit, rows: Rows) -> Array:
    """The whitened gradient of each F(·, w) at θ̂, from the units that leave."""
    delta = jnp.where(rows.index < fit.objective.num_units, rows.weight - 1.0, 0.0)
    theta = certificate.parameters(fit, jnp.zeros(fit.num_params))
    change = lambda v, index, delta: fit.objective.perturbation(unravel(v, fit.theta), index, delta)
    moved = jax.vmap(jax.grad(change), (None, 0, 0))(theta, rows.index, delta)
    return (fit.gradient + moved) @ fit.whitener.T


@eqx.filter_jit
def _solve(metric: AbstractMetric, gradient: Array) -> Array:
    return jax.vmap(lambda m, g: m.solve(g))(metric, gradient)


def _first_step(fit: Fit, rows: Rows, metric: AbstractMetric) -> Array:
    return -_solve(metric, _first_gradient(fit, rows))


def _start(fit: Fit, rows: Rows) -> _State:
    """The cheapest first step: Newton's for linear predictors, elsewhere the chord's."""
    gradient = _first_gradient(fit, rows)
    if isinstance(fit.objective, AbstractLinearPredictor):
        metric, singular = own_metric(fit, rows)
    else:
        metric, singular = Anchor(), np.zeros(len(rows.index), bool)
    u = -np.asarray(_solve(metric, gradient))
    return _State(u, metric, gradient, np.array(singular) | ~np.isfinite(u).all(1))


@eqx.filter_jit
def _expand(fit: Fit, rows: Rows, order: int) -> Array:
    """IJ: derivatives of the path s ↦ θ̂(1 + s δ) at s = 0."""
    ones = jnp.ones(fit.objective.num_units)
    H_inverse = lambda g: fit.whitener @ g  # into whitened coordinates
    start = certificate.parameters(fit, jnp.zeros(fit.num_params))

    def one(index, weight):
        delta = jnp.where(index < fit.objective.num_units, weight - 1.0, 0.0)
        change = lambda v, s: fit.objective.perturbation(unravel(v, fit.theta), index, s * delta)
        push = lambda v, s: jax.grad(change)(v, s)
        first = -H_inverse(jax.jvp(lambda s: push(start, s), (0.0,), (1.0,))[1])
        if order == 1:
            return first
        direction = first @ fit.whitener
        full = lambda v: jax.grad(lambda v: fit.objective.loss(unravel(v, fit.theta), ones))(v)
        path = lambda s: full(start + s * direction) + push(start + s * direction, s)
        second = -H_inverse(jax.jvp(lambda s: jax.jvp(path, (s,), (1.0,))[1], (0.0,), (1.0,))[1])
        return first + 0.5 * second

    return jax.lax.map(lambda args: one(*args), (rows.index, rows.weight), batch_size=certificate.passes(fit))


def _reach(fit: Fit) -> np.ndarray:
    """√h_max: a step Δ moves no unit's linear predictor by more than `reach · ‖Δ‖_H`."""
    return np.sqrt(fit.leverage.max())


def _affordable(fit: Fit, rows: Rows) -> bool:
    """Can every refit of the plan have a gradient of its own?"""
    return 4.0 * int(rows.num_refits) * fit.objective.num_units * fit.num_params <= AFFORDABLE


def _has_bound(fit: Fit) -> bool:
    objective = fit.objective
    return isinstance(objective, AbstractLinearPredictor) and objective.low_rank and objective.self_concordance is not None


def _judge(
    fit: Fit,
    rows: Rows,
    u: np.ndarray,
    *,
    crossings: bool = False,
    metric: AbstractMetric | None = None,
    singular: np.ndarray | None = None,
) -> Refitted:
    """Error estimates for a strategy that does not iterate: a gradient at u where it can be had, a bound elsewhere."""
    if metric is None or singular is None:
        state = _start(fit, rows)
        metric, singular = state.metric, state.finished
    result = np.where(singular, RESULTS.undetermined, RESULTS.successful)
    if _affordable(fit, rows) or not _has_bound(fit):
        seen = _examined(fit, rows, metric, u)
        travelled = np.maximum(np.linalg.norm(u, axis=1), seen.size)
        left = np.minimum(FIRST_SAFETY * seen.size / np.maximum(travelled, 1e-300), 0.9)
        error = certificate.loss_error(seen, seen.size / (1 - left), _scored(fit, rows), fit.num_params)
    else:
        gradient = _first_gradient(fit, rows)
        bound, _ = certificate.newton_bound(fit, rows, metric, gradient, _reach(fit))
        error = np.asarray(bound) + np.asarray(_change(fit, rows, u, -_solve(metric, gradient)))
    if crossings:
        _flag_crossings(fit, rows, u, result)
    error = np.where(result == RESULTS.undetermined, np.inf, error)
    return Refitted(np.asarray(_parameters(fit, u)), error, result)


@eqx.filter_jit
def _change(fit: Fit, rows: Rows, u: Array, v: Array) -> Array:
    """Σ |change of the held-out losses| of each refit between two displacements."""

    def one(index, weight, held, u, v):
        loss = lambda u: certificate.scores(fit, u, index, weight, held)
        return jnp.sum(jnp.abs(loss(u) - loss(v)))

    return jax.vmap(one)(rows.index, rows.weight, rows.held, u, v)


def _screen(fit: Fit, rows: Rows, state: _State, allowed: np.ndarray) -> None:
    """Accept what the bound allows; for single rows, correct the rest by the next term where that is enough."""
    bound, rho = (np.asarray(a) for a in certificate.newton_bound(fit, rows, state.metric, state.gradient, _reach(fit)))
    state.error = np.where(state.finished, np.inf, bound)
    state.finished |= _within(state.error, allowed) & (rho < 0.3)
    if rows.index.shape[1] == 1 and getattr(fit.objective, "outputs", 0) == 1:
        for size in (SAMPLE, fit.objective.num_units):  # a sample of the next term tells its size; the whole of it corrects
            if size <= fit.objective.num_units:
                _expand_lanes(fit, rows, state, allowed, bound, rho, size)


def _expand_lanes(fit, rows, state, allowed, bound, rho, size):
    """The next term for the rows still open: accept by a sample of it, or correct by the whole."""
    lanes = np.flatnonzero(~state.finished)
    if 4.0 * len(lanes) * fit.objective.num_units * fit.num_params <= AFFORDABLE / 10:
        return  # few enough for gradients of their own
    n = fit.objective.num_units
    units, worth = (np.arange(n), np.ones(n)) if size == n else certificate.sample(fit, size)
    lanes = _padded(lanes, len(rho))
    terms = _next_term(fit, rows, state.metric, state.gradient, lanes, units, worth)
    direction, move, absolute, sampling = (np.asarray(a) for a in terms)
    bend = rho[lanes] * np.exp(rho[lanes])
    if size == n:  # what it leaves: 2ρ of it, or of a third of what its terms are without cancelling
        state.u[lanes] += move[:, None] * direction
        left = np.minimum(2 * bend * np.maximum(np.abs(move), 0.3 * absolute), np.abs(move) + absolute)
    else:
        left = (np.abs(move) + 3 * sampling) * (1 + bend)
    some = rows._replace(index=rows.index[lanes], weight=rows.weight[lanes], held=rows.held[lanes])
    error = np.asarray(_change(fit, some, state.u[lanes], state.u[lanes] + left[:, None] * direction))
    state.error[lanes] = np.minimum(error, bound[lanes])
    state.finished |= _within(state.error, allowed) & (rho < 1.0)


def _within(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The refits of smallest error that together stay within what is allowed together, none above five times its share."""
    order = np.argsort(error)
    within = np.empty(len(error), bool)
    within[order] = np.cumsum(error[order]) <= allowed.sum()
    return within & (error <= 5 * allowed)


@eqx.filter_jit
def _next_term(fit: Fit, rows: Rows, metric: AbstractMetric, gradient: Array, lanes: Array, units: Array, worth: Array):
    return certificate.next_term(fit, _take(rows, lanes), _take_metric(metric, lanes), gradient[lanes], units, worth)


def _descend(fit: Fit, rows: Rows, state: _State, shortfall: Callable) -> None:
    """Steps until `shortfall(lanes, error, distance)`, how many times too large what matters still is, is at most one.

    A refit that would need many steps with its metric is given its own Hessian at every step; one that still does
    not come closer, Newton's method with a line search.
    """
    price = fit.num_params / 8 if isinstance(fit.objective, AbstractLinearPredictor) else fit.num_params
    natural = np.sqrt(abs(float(fit.value)) / fit.objective.num_units)  # a length of which 1e-9 is noise
    few_units = fit.objective.num_units < 10 * fit.num_params  # then one ratio of steps is not enough to judge by
    previous, contraction = state.first.copy(), np.zeros(len(state.u))
    own, hard = np.zeros(len(state.u), bool), np.zeros(len(state.u), bool)
    for k in range(STEPS):
        for metric, group in ((state.metric, ~own), (None, own.copy())):
            lanes = np.flatnonzero(group & ~state.finished & ~hard)
            if not lanes.size:
                continue
            seen = _examined(fit, rows, metric, state.u, lanes)
            fresh = np.isinf(previous[lanes])  # the first step with its own Hessian has no ratio yet
            ratio = seen.size / np.maximum(previous[lanes], 1e-300)
            floor = seen.size <= 1e-9 * np.maximum(natural, state.first[lanes])
            stuck = ~(ratio <= (0.5 if metric is not None else 0.9)) & ~floor
            contraction[lanes] = np.where(
                floor, contraction[lanes], np.maximum(contraction[lanes] * (metric is not None), ratio)
            )
            q = np.minimum((SAFETY if k and metric is not None else FIRST_SAFETY) * contraction[lanes], 0.95)
            error = certificate.loss_error(seen, seen.size * q / (1 - q), _scored(fit, rows)[lanes], fit.num_params)
            state.error[lanes] = np.where(stuck | fresh, np.inf, error)
            state.u[lanes[~stuck]] -= seen.step[~stuck]
            previous[lanes] = np.where(stuck, np.inf, seen.size)
            short = shortfall(lanes, state.error[lanes], np.where(stuck | fresh, np.inf, seen.size * q / (1 - q)))
            enough = (short <= 1) & (k > 0 or not few_units)
            state.finished[lanes] = ~stuck & (enough | (floor & (ratio > 0.3)))
            hard[lanes[stuck & (metric is None)]] = True
            with np.errstate(divide="ignore", invalid="ignore"):
                steps_left = np.log(short) / -np.log(np.clip(ratio, 1e-12, 0.99))
            slow = (stuck | (steps_left > 3 + price)) & ~own[lanes] & ~state.finished[lanes]
            own[lanes[slow]], previous[lanes[slow]] = True, np.inf
    for lane in np.flatnonzero(~state.finished):
        _newton_lane(fit, rows, state, lane)


def _newton_lane(fit: Fit, rows: Rows, state: _State, lane: int) -> None:
    """One refit by damped Newton steps from θ̂: the minimiser reached by descent, or a code that says there is none."""
    weights = np.ones(fit.objective.num_units)
    real = rows.index[lane] < fit.objective.num_units
    weights[rows.index[lane][real]] = rows.weight[lane][real]
    gauge = np.asarray(fit.objective.symmetries(fit.theta), float)
    value, vector, converged, size = newton(fit.objective, fit.theta, weights, gauge, fit.factor)
    start = np.asarray(_parameters(fit, np.zeros((1, fit.num_params))))[0]
    state.u[lane] = fit.factor.T @ (np.asarray(vector) - start)
    seen = _examined(fit, rows, state.metric, state.u, np.array([lane]))
    state.error[lane] = float(seen.sensitivity[0] * size)
    state.finished[lane] = True
    if not np.isfinite(value) or not np.isfinite(state.error[lane]):
        state.result[lane], state.error[lane] = RESULTS.nonfinite, np.inf
    elif not converged:
        state.result[lane], state.error[lane] = RESULTS.not_converged, np.inf


def _flag_crossings(fit: Fit, rows: Rows, u: np.ndarray, result: np.ndarray) -> None:
    if isinstance(fit.objective, AbstractLinearPredictor) and not fit.objective.smooth:
        crossed = np.asarray(_crossings(fit, u, certificate.passes(fit) // 16 + 1)) > 0
        result[crossed & (result == RESULTS.successful)] = RESULTS.kink


@eqx.filter_jit
def _crossings(fit: Fit, u: Array, chunk: int) -> Array:
    def one(u):
        return fit.objective.crossings(fit.theta, unravel(certificate.parameters(fit, u), fit.theta))

    return jax.lax.map(one, u, batch_size=chunk)


def _examined(
    fit: Fit, rows: Rows, metric: AbstractMetric | None, u: np.ndarray, lanes: np.ndarray | None = None
) -> certificate.Examination:
    """One gradient of the refits in `lanes` (all of them by default); without a metric, by their own Hessians at u."""
    lanes = np.arange(len(u)) if lanes is None else lanes
    most = max(1, OWN // fit.num_params**2)
    if metric is None and len(lanes) > most:
        parts = [_examined(fit, rows, None, u, lanes[start : start + most]) for start in range(0, len(lanes), most)]
        return certificate.Examination(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    work = 4.0 * len(u) * fit.objective.num_units * fit.num_params
    padded = _padded(lanes, len(u), least=len(u) if work <= COMPILING and metric is not None else 1)[: max(most, len(lanes))]
    chunk = certificate.passes(fit)
    singular = np.zeros(len(padded), bool)
    if metric is None:
        metric, singular = own_metric_at(fit, rows, u, padded, chunk)
        seen = _examine_lanes(fit, rows, metric, u, padded, np.arange(len(padded)), chunk)
    else:
        seen = _examine_lanes(fit, rows, metric, u, padded, padded, chunk)
    step, size, *others = (np.asarray(part)[: len(lanes)] for part in seen)
    return certificate.Examination(step, np.where(singular[: len(lanes)], np.nan, size), *others)


@eqx.filter_jit
def _examine_lanes(fit: Fit, rows: Rows, metric: AbstractMetric, u: Array, lanes: Array, metric_lanes: Array, chunk: int):
    return certificate.examine(fit, _take(rows, lanes), _take_metric(metric, metric_lanes), u[lanes], chunk)


def _padded(lanes: np.ndarray, total: int, least: int = 1) -> np.ndarray:
    """The lanes, the last one repeated up to one of few sizes, so that few shapes are compiled."""
    size = min(max(4 ** int(np.ceil(np.log2(max(len(lanes), 1)) / 2)), 64, least), total)
    return np.concatenate([lanes, np.repeat(lanes[-1:], size - len(lanes))])


def _take(rows: Rows, lanes: Array) -> Rows:
    index, weight, held = (jnp.asarray(part)[lanes] for part in rows[:3])
    return Rows(index, weight, held, rows.scale, rows.num_refits)


def _take_metric(metric: AbstractMetric, lanes: Array) -> AbstractMetric:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[lanes], metric)
