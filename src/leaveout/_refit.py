"""Strategies: from the fit to the parameters of a batch of refits, each with an error estimate and a code.

A strategy is called with a `Fit` and a batch of rows of a plan. All of them work in the anchor's whitened
coordinates u = Lᵀ(θ − θ̂), in which the anchor's Hessian is the identity and ‖u‖ is the H-norm.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from . import _certificate as certificate
from ._curvature import AbstractMetric, Anchor, own_metric
from ._fit import Fit, newton
from ._objective import AbstractLinearPredictor, unravel
from ._plan import Rows
from ._results import RESULTS

AFFORDABLE = 2e10  # operations that gradients of every refit may cost before bounds are tried first
CHORDS = 15  # chord steps before a refit is handed to Newton's method


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
    """Iterate to the minimiser of F(·, w): until a step is `tol` of the first one, or at the floor of float64."""

    tol: float = eqx.field(static=True, default=1e-8)

    def __check_init__(self):
        if not 0 < self.tol < 1:
            raise ValueError(f"Exact: tol must lie between 0 and 1; got {self.tol}.")

    def __call__(self, fit, rows):
        state = _start(fit, rows)
        _descend(fit, rows, state, lambda error, size, first: size <= self.tol * first)
        return state.refitted(fit)


class Certified(AbstractRefit):
    """The cheapest step the objective has, then corrected until the error of every refit's loss is at most
    `rtol` standard errors of the no-update mean a scored unit.

    So the mean is off by at most `rtol` of its standard error (a scale, not an inference). Where gradients of
    every refit are too dear, a bound accepts what it can, the next term of the expansion most of the rest, and
    only what is left is iterated.
    """

    rtol: float = eqx.field(static=True, default=0.01)

    def __check_init__(self):
        if not 0 < self.rtol <= 1:
            raise ValueError(f"Certified: rtol must lie between 0 and 1; got {self.rtol}.")

    def __call__(self, fit, rows):
        state = _start(fit, rows)
        allowed = self.rtol * float(rows.scale) * _scored(rows)
        _flag_crossings(fit, rows, state.u, state.result)
        kinked = state.result == RESULTS.kink  # ratios of steps say nothing there: iterate to the end
        if not _affordable(fit, rows) and _has_bound(fit):
            _screen(fit, rows, state, allowed)
        _descend(fit, rows, state, lambda error, size, first: (error <= allowed) & (~kinked | (size <= 1e-8 * first)))
        state.error = np.maximum(state.error, 1e-4 * allowed)  # what is far below the tolerance is not resolved
        return state.refitted(fit)


def _scored(rows: Rows) -> np.ndarray:
    return np.maximum(rows.held.sum(1), 1)


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
        left = np.minimum(certificate.FIRST_SAFETY * seen.size / np.maximum(travelled, 1e-300), 0.9)
        error = certificate.loss_error(seen, seen.size / (1 - left), _scored(rows), fit.num_params)
    else:
        gradient = _first_gradient(fit, rows)
        bound, _ = certificate.newton_bound(fit, rows, metric, gradient, certificate.reach(fit))
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
    reach = certificate.reach(fit)
    bound, rho = (np.asarray(a) for a in certificate.newton_bound(fit, rows, state.metric, state.gradient, reach))
    state.error = np.where(state.finished, np.inf, bound)
    state.finished |= (bound <= allowed) & (rho < 0.3)
    lanes = np.flatnonzero(~state.finished)
    single = rows.index.shape[1] == 1 and getattr(fit.objective, "outputs", 0) == 1
    if not single or 4.0 * len(lanes) * fit.objective.num_units * fit.num_params <= AFFORDABLE / 10:
        return
    lanes = _padded(lanes, len(rho))
    rho = rho[lanes]
    direction, move, absolute = (np.asarray(a) for a in _next_term(fit, rows, state.metric, state.gradient, lanes))
    corrected = state.u[lanes] + move[:, None] * direction
    # what the next term leaves: ρ of it, or of a tenth of what its terms are without cancelling
    left = np.minimum(rho * np.exp(rho) * np.maximum(np.abs(move), 0.1 * absolute), np.abs(move) + absolute)
    slope = np.asarray(_change(fit, rows._replace(index=rows.index[lanes], weight=rows.weight[lanes], held=rows.held[lanes]), corrected, corrected + left[:, None] * direction))
    state.u[lanes], state.error[lanes] = corrected, np.minimum(slope, bound[lanes])
    state.finished[lanes] |= (slope <= allowed[lanes]) & (rho < 1.0)


@eqx.filter_jit
def _next_term(fit: Fit, rows: Rows, metric: AbstractMetric, gradient: Array, lanes: Array):
    return certificate.next_term(fit, *_take(rows, metric, lanes), gradient[lanes])


def _descend(fit: Fit, rows: Rows, state: _State, accept) -> None:
    """Chord steps with each refit's metric until `accept(error, size, first)`; Newton's method for those that are slow."""
    previous, contraction = state.first.copy(), np.zeros(len(state.u))
    natural = np.sqrt(abs(float(fit.value)) / fit.objective.num_units)  # a length in which steps of 1e-9 are noise
    hard = np.zeros(len(state.u), bool)
    few_units = fit.objective.num_units < 10 * fit.num_params
    for k in range(CHORDS):
        active = np.flatnonzero(~state.finished & ~hard)
        if not active.size:
            break
        seen = _examined(fit, rows, state.metric, state.u, active)
        size = seen.size
        floor = size <= 1e-9 * np.maximum(natural, state.first[active])
        ratio = size / np.maximum(previous[active], 1e-300)
        slow = ~(ratio <= 0.5) & ~floor
        contraction[active] = np.where(floor, contraction[active], np.maximum(contraction[active], ratio))
        q = np.minimum((certificate.SAFETY if k else certificate.FIRST_SAFETY) * contraction[active], 0.95)
        moved = np.where((slow | ~np.isfinite(size))[:, None], 0.0, seen.step)
        state.u[active] -= moved
        error = certificate.loss_error(seen, size * q / (1 - q), _scored(rows)[active], fit.num_params)
        state.error[active] = np.where(slow, np.inf, error)
        previous[active] = size
        hard[active[slow]] = True
        first, full = state.first, np.zeros(len(state.u))
        full[active] = size
        stop = accept(state.error, full, first)[active] & (k > 0 or not few_units) | (floor & ~(ratio <= 0.3))
        state.finished[active[stop & ~slow]] = True
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
        crossed = np.asarray(_crossings(fit, u, certificate.passes(fit) // 32 + 1)) > 0
        result[crossed & (result == RESULTS.successful)] = RESULTS.kink


@eqx.filter_jit
def _crossings(fit: Fit, u: Array, chunk: int) -> Array:
    def one(u):
        return fit.objective.crossings(fit.theta, unravel(certificate.parameters(fit, u), fit.theta))

    return jax.lax.map(one, u, batch_size=chunk)


def _examined(
    fit: Fit, rows: Rows, metric: AbstractMetric, u: np.ndarray, lanes: np.ndarray | None = None
) -> certificate.Examination:
    """One gradient of the refits in `lanes` (all of them by default)."""
    lanes = np.arange(len(u)) if lanes is None else lanes
    seen = _examine_lanes(fit, rows, metric, u, _padded(lanes, len(u)), certificate.passes(fit))
    return certificate.Examination(*(np.asarray(part)[: len(lanes)] for part in seen))


@eqx.filter_jit
def _examine_lanes(fit: Fit, rows: Rows, metric: AbstractMetric, u: Array, lanes: Array, chunk: int):
    return certificate.examine(fit, *_take(rows, metric, lanes), u[lanes], chunk)


def _padded(lanes: np.ndarray, total: int) -> np.ndarray:
    """The lanes, the last one repeated up to one of few sizes, so that few shapes are compiled."""
    size = min(4 ** int(np.ceil(np.log2(max(len(lanes), 1)) / 2)), total)
    return np.concatenate([lanes, np.repeat(lanes[-1:], size - len(lanes))])


def _take(rows: Rows, metric: AbstractMetric, lanes: Array) -> tuple[Rows, AbstractMetric]:
    index, weight, held = (jnp.asarray(part)[lanes] for part in rows[:3])
    return Rows(index, weight, held, rows.scale, rows.num_refits), jax.tree.map(lambda leaf: leaf[lanes], metric)
