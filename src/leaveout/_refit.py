"""Strategies: from the fit to the parameters of a batch of refits, each with an error estimate and a code.

A strategy is called with a `Fit` and a batch of rows of a plan. All of them work in the anchor's whitened
coordinates u = Lᵀ(θ − θ̂), in which the anchor's Hessian is the identity and ‖u‖ is the H-norm.
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _certificate as certificate
from . import _sampling as sampling
from ._certificate import FIRST_SAFETY, REFUSED
from ._curvature import AbstractMetric, Anchor, Identity, LowRank, Products, is_single, one_row_metric, own_metric, products
from ._descent import (
    GRADIENTS,
    Refitted,
    State,
    contractions,
    descend,
    examined,
    loss_error,
    num_scored,
    parameters_of,
    reached,
)
from ._fit import Fit
from ._objective import AbstractLinearPredictor, AbstractObjective, unravel
from ._plan import Rows
from ._products import COARSE, LOOSE
from ._results import RESULTS
from ._screen import screen_by_sample
from .refit import _linear as linear

TIGHT = 1.5  # times what a loss is known to be off: an error that is no larger needs no closer look
MOST = 0.9  # of contractions that one look is trusted to tell


class AbstractRefit(eqx.Module):
    """How to move from the fit at weights one to the fit at other weights."""

    in_standard_errors: ClassVar[bool] = False  # is its tolerance a share of `rows.scale`?
    own_hessians: ClassVar[bool] = False  # does it make each refit's own, whatever the model?

    @abc.abstractmethod
    def __call__(self, fit: Fit, rows: Rows, *, judge: bool = True) -> Refitted:
        """Refit a batch of rows of a plan; without `judge`, errors that cost extra may be left infinite."""


class NoUpdate(AbstractRefit):
    """Keep θ̂: the baseline. Its error is what one Newton (or chord) step would change, and that step's own error."""

    def __call__(self, fit, rows, *, judge=True):
        u = np.zeros((len(rows.index), len(fit.whitener) if fit.factor is not None else fit.num_params))
        if judge and fit.predictors is not None:
            return _judged_by_proof(fit, rows, u)
        return _judged(fit, rows, u) if judge else _unjudged(fit, u)


class InfinitesimalJackknife(AbstractRefit):
    """The Taylor expansion of θ̂(w) at w = 1, of order 1 or 2 (first source document, Algorithms 1–4).

    θ₁ = −H⁻¹ ∇_θ ∂_δ F,      θ̂(1 + δ) ≈ θ̂ + θ₁ + ½ θ₂
    """

    order: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        if self.order not in (1, 2):
            raise ValueError(f"InfinitesimalJackknife: order must be 1 or 2; got {self.order}.")

    def __call__(self, fit, rows, *, judge=True):
        u = _expansion(fit, rows, self.order)
        if judge and fit.predictors is not None:
            return _judged_by_proof(fit, rows, u)
        return _judged(fit, rows, u, crossings=True) if judge else _unjudged(fit, u)


class NewtonStep(AbstractRefit):
    """One Newton step with the fold's own Hessian: exact for quadratic F; by Woodbury it is ALO."""

    own_hessians = True

    def __call__(self, fit, rows, *, judge=True):
        if fit.predictors is not None:
            return _newton_step(fit, rows, judge)
        if not judge and is_single(fit, rows):
            theta, singular = (np.asarray(part) for part in _refit_of_one_row(fit, rows))
            return _without_error(theta, singular)
        metric, singular, u = _first_step(fit, rows)
        u = np.asarray(u)
        if judge:
            return _judged(fit, rows, u, crossings=True, metric=metric, singular=singular)
        return _unjudged(fit, u, singular)


class Exact(AbstractRefit):
    """Iterate to the minimiser of F(·, w): until what is left is `tol` of the first step, or at the floor of float64."""

    tol: float = eqx.field(static=True, default=1e-8, converter=float)

    def __check_init__(self):
        if not 0 < self.tol < 1:
            raise ValueError(f"Exact: tol must lie between 0 and 1; got {self.tol}.")

    def __call__(self, fit, rows, *, judge=True):
        if fit.predictors is not None:
            return _enclosed(fit, rows, self._arrived)
        state = _start(fit, rows)
        descend(fit, rows, state, lambda lanes, left: left / (self.tol * np.maximum(state.first[lanes], 1e-300)))
        arrived = np.isfinite(state.left)
        if judge and arrived.any():
            state.step = state.step if len(state.step) else np.zeros_like(state.u)
            found = reached(fit, rows, state, np.arange(len(state.u)), np.where(arrived, state.left, np.inf))
            state.error = found.error
            return replace(state.refitted(fit), scores=found.scores)
        return state.refitted(fit)

    def _arrived(self, lanes, seen):
        del lanes
        close = (seen.slope <= np.maximum(self.tol * seen.first, 2 * seen.noise)) & np.isfinite(seen.half).all(1)
        return close & np.isfinite(seen.slope) | (seen.half == 0).all(1)


class Certified(AbstractRefit):
    """The cheapest step the objective has, then corrected until the error of a refit's loss is estimated at most
    `rtol` standard errors of the no-update mean a scored unit.

    So the mean is off by at most `rtol` of its standard error (a scale, not an inference).
    """

    rtol: float = eqx.field(static=True, default=0.01, converter=float)
    in_standard_errors = True

    def __check_init__(self):
        if not 0 < self.rtol <= 1:
            raise ValueError(f"Certified: rtol must lie between 0 and 1; got {self.rtol}.")

    def __call__(self, fit, rows, *, judge=True):
        allowed = self.rtol * float(rows.scale) * num_scored(fit, rows)
        if fit.predictors is not None:
            near = lambda lanes, at: linear.error(fit, rows.take(lanes), at.center, at.center, at.half) <= allowed[lanes]
            return _enclosed(fit, rows, near, allowed)
        state = _start(fit, rows)
        _flag_crossings(fit, rows, state.u, state.result)
        kinked = state.result == RESULTS.kink  # ratios of steps say nothing there: iterate to the end
        if sampling.available(fit, rows):
            screen_by_sample(fit, rows, state, allowed)
        descend(fit, rows, state, functools.partial(self._shortfall, fit, rows, state, np.maximum(allowed, 1e-300), kinked))
        state.error = np.maximum(
            state.error, 1e-4 * allowed * rows.held.any(1)
        )  # what is far below the tolerance is not resolved
        return state.refitted(fit)

    @staticmethod
    def _shortfall(fit, rows, state, allowed, kinked, lanes, left):
        with np.errstate(invalid="ignore"):  # by the slope seen before, until that says it is enough
            state.error[lanes] = state.steepness[lanes] * left
            near = ~(state.error[lanes] > allowed[lanes]) | ~np.isfinite(state.error[lanes])
        if near.any():
            state.error[lanes[near]] = loss_error(fit, rows, state, lanes[near], left[near])
            with np.errstate(invalid="ignore"):
                state.steepness[lanes[near]] = state.error[lanes[near]] / np.maximum(left[near], 1e-300)
        unsettled = left / (1e-8 * np.maximum(state.first[lanes], 1e-300))
        return np.maximum(state.error[lanes] / allowed[lanes], np.where(kinked[lanes], unsettled, 0.0))


def _enclosed(fit: Fit, rows: Rows, enough: linear.Enough, allowed: np.ndarray | None = None) -> Refitted:
    """Linear predictors brought to where that is enough, their errors proved."""
    found = linear.enclose(fit, rows, enough, False, allowed)
    error = linear.error(fit, rows, found.center, found.center, found.half)
    scores = linear.losses(fit, rows, found.center)
    return Refitted(found.theta, error, found.result, scores, found.proved, found.ball, found.moved, found.gradients)


def _newton_step(fit: Fit, rows: Rows, judge: bool) -> Refitted:
    """One Newton step of linear predictors."""
    first = linear.Enclosure(fit, rows)
    first.look()
    lost = first.metric.kept == 0
    result = np.where(lost, RESULTS.undetermined, RESULTS.successful)
    if not judge:
        return Refitted(first.theta, np.full(len(lost), np.inf), result)
    judged = _judged_by_proof(fit, rows, first.u, first.center)
    return replace(judged, result=result, error=np.where(lost, np.inf, judged.error))


def _judged_by_proof(fit: Fit, rows: Rows, u: np.ndarray, reported: np.ndarray | None = None) -> Refitted:
    """How far the losses at displacements may be from the exact refits', by where these are proved, or estimated, to lie."""
    reported = linear.predictors_at(fit, rows, u) if reported is None else reported
    known = linear.losses(fit, rows, reported)
    floor = 1e-3 * float(rows.scale) * num_scored(fit, rows)

    def enough(lanes, at):
        some = rows.take(lanes)
        moved = np.abs(linear.losses(fit, some, at.center) - known[lanes]).sum(1)
        return linear.error(fit, some, reported[lanes], at.center, at.half) <= TIGHT * moved + floor[lanes]

    found = linear.enclose(fit, rows, enough, hurry=True)
    error = linear.error(fit, rows, reported, found.center, found.half)
    theta = lambda: np.asarray(parameters_of(fit, u))
    return Refitted(theta, error, np.zeros(len(u), int), known, found.proved, found.ball, found.moved, found.gradients)


@eqx.filter_jit
def _first_gradient_of_touched(fit: Fit, rows: Rows, metric: AbstractMetric) -> Array:
    """The same from the units that leave."""
    delta = jnp.where(rows.index < fit.objective.num_units, rows.weight - 1.0, 0.0)
    objective = fit.objective
    if isinstance(metric, LowRank) and isinstance(objective, AbstractLinearPredictor):  # its rows are whitened already
        slope = jax.vmap(lambda index: objective.derivative(fit.theta, index, 1))(rows.index)
        slope = delta.reshape(*delta.shape, 1) * slope.reshape(*delta.shape, -1)
        return fit.whiten(fit.gradient) + jnp.einsum("rk,rkp->rp", slope.reshape(len(delta), -1), metric.rows)
    theta = certificate.parameters(fit, jnp.zeros(fit.num_params))
    change = lambda v, index, delta: fit.objective.perturbation(unravel(v, fit.theta), index, delta)
    one = lambda args: jax.grad(change)(theta, *args)
    moved = jax.lax.map(one, (rows.index, delta), batch_size=certificate.own_passes(fit, rows))
    return fit.whiten(fit.gradient + moved)


def _cheapest_metric(fit: Fit, rows: Rows) -> tuple[AbstractMetric, np.ndarray]:
    """The folds' own Hessians for linear predictors, and where a product with one costs no more than with the anchor's; else
    the anchor's; and which are singular."""
    if fit.factor is None:
        return products(fit, rows, LOOSE), np.zeros(len(rows.index), bool)
    if isinstance(fit.objective, AbstractLinearPredictor):
        return own_metric(fit, rows)
    return Anchor(), np.zeros(len(rows.index), bool)


def _start(fit: Fit, rows: Rows) -> State:
    """The cheapest first step: Newton's for linear predictors, elsewhere the chord's."""
    metric, singular, step = _first_step(fit, rows, _cheapest_metric)
    u = np.array(step)
    first = np.linalg.norm(u, axis=1)
    return State(u, first, metric, singular | ~np.isfinite(first))


def _first_step(
    fit: Fit, rows: Rows, choose: Callable[[Fit, Rows], tuple[AbstractMetric, np.ndarray]] = own_metric
) -> tuple[AbstractMetric, np.ndarray, Array]:
    """A metric at θ̂ for every refit, which are singular, and the steps."""
    if is_single(fit, rows):  # a linear predictor, so both choices are the folds' own
        metric, singular, u = _newton_step_of_one_row(fit, rows)
        return metric, np.asarray(singular), u
    metric, which = choose(fit, rows)
    return metric, which, certificate.steps(fit, metric, _first_gradient(fit, rows, metric))


@eqx.filter_jit
def _newton_step_of_one_row(fit: Fit, rows: Rows) -> tuple[AbstractMetric, Array, Array]:
    """The same for single rows, in one program."""
    metric, singular = one_row_metric(fit, rows)
    return metric, singular, certificate.steps(fit, metric, _first_gradient_of_touched(fit, rows, metric))


@eqx.filter_jit
def _refit_of_one_row(fit: Fit, rows: Rows) -> tuple[Array, Array]:
    """The raveled θ of those steps, and which Hessians are singular."""
    _, singular, u = _newton_step_of_one_row(fit, rows)
    return certificate.parameters(fit, u), singular


def _first_gradient(fit: Fit, rows: Rows, metric: AbstractMetric) -> Array:
    """The whitened gradient of each F(·, w) at θ̂."""
    if fit.objective.local:
        return _first_gradient_of_touched(fit, rows, metric)
    everyone, metric = np.arange(len(rows.index)), Anchor() if fit.factor is not None else Identity()  # the same, if whitened
    return examined(fit, rows, metric, np.zeros((len(everyone), fit.num_params)), everyone).step


def _expansion(fit: Fit, rows: Rows, order: int) -> np.ndarray:
    """IJ in whitened coordinates: from J = ∂²F/∂θ∂w, made once, or along each refit's own path."""
    together = not fit.objective.local or type(fit.objective).jacobian is not AbstractObjective.jacobian
    if order == 1 and together and fit.factor is not None and fit.num_params <= max(64, int(rows.num_refits)):
        delta = np.where(rows.index < fit.objective.num_units, rows.weight - 1.0, 0.0)
        change = np.append(fit.influence, np.zeros((1, fit.num_params)), axis=0)
        return -np.array([d @ change[index] for index, d in zip(rows.index, delta, strict=True)])
    return np.asarray(_path(fit, rows, order))


@eqx.filter_jit
def _path(fit: Fit, rows: Rows, order: int) -> Array:
    """Derivatives of the path s ↦ θ̂(1 + s δ) at s = 0, whitened all together."""
    ones = jnp.ones(fit.objective.num_units)
    chunk = certificate.own_passes(fit, rows) if fit.factor is not None else certificate.passes(fit)
    back = lambda gradients: certificate.steps(fit, Anchor(COARSE), fit.whiten(gradients))
    start = certificate.parameters(fit, jnp.zeros(fit.num_params))
    delta = jnp.where(rows.index < fit.objective.num_units, rows.weight - 1.0, 0.0)

    def push(v, index, delta, s):
        return jax.grad(lambda v: fit.objective.perturbation(unravel(v, fit.theta), index, s * delta))(v)

    def first_push(args):
        return jax.jvp(lambda s: push(start, *args, s), (0.0,), (1.0,))[1]

    def second_push(args):
        index, delta, direction = args
        full = jax.grad(lambda v: fit.objective.loss(unravel(v, fit.theta), ones))
        path = lambda s: full(start + s * direction) + push(start + s * direction, index, delta, s)
        return jax.jvp(lambda s: jax.jvp(path, (s,), (1.0,))[1], (0.0,), (1.0,))[1]

    first = back(jax.lax.map(first_push, (rows.index, delta), batch_size=chunk))
    if order == 1:
        return first
    return first + 0.5 * back(jax.lax.map(second_push, (rows.index, delta, fit.unwhiten(first)), batch_size=chunk))


def _unjudged(fit: Fit, u: np.ndarray, singular: np.ndarray | None = None) -> Refitted:
    return _without_error(np.asarray(parameters_of(fit, u)), np.zeros(len(u), bool) if singular is None else singular)


def _without_error(theta: np.ndarray, singular: np.ndarray) -> Refitted:
    return Refitted(lambda: theta, np.full(len(theta), np.inf), np.where(singular, RESULTS.undetermined, RESULTS.successful))


def _judged(
    fit: Fit,
    rows: Rows,
    u: np.ndarray,
    *,
    crossings: bool = False,
    metric: AbstractMetric | None = None,
    singular: np.ndarray | None = None,
) -> Refitted:
    """Error estimates for a strategy that does not iterate, by a gradient at u."""
    if metric is None or singular is None:
        metric, singular = _cheapest_metric(fit, rows)
    result = np.where(singular, RESULTS.undetermined, RESULTS.successful)
    error, known, ball = _judge_by_curvature(fit, rows, metric, u)
    if crossings:
        _flag_crossings(fit, rows, u, result)
    error = np.where(result == RESULTS.undetermined, np.inf, error)
    moved = np.linalg.norm(u, axis=1)
    return Refitted(lambda: np.asarray(parameters_of(fit, u)), error, result, known, None, ball, moved, GRADIENTS * len(u))


def _judge_by_curvature(fit: Fit, rows: Rows, metric: AbstractMetric, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable]:
    """Errors of refits that stay at u, and their losses: what these change by over the step that a gradient asks for, and what
    may be left from there by the curvature there; where that says nothing, over two steps."""
    everyone = np.arange(len(u))
    step, size, unsure = _look(fit, rows, metric, u)
    here = State(u, np.linalg.norm(u, axis=1), metric, np.zeros(len(u), bool))
    here.step = step
    known = np.asarray(reached(fit, rows, here, everyone, np.zeros(len(u))).scores)
    there = State(u - step, here.first, metric, np.zeros(len(u), bool))
    there.step = step
    change = np.zeros(len(u))
    for _ in range(2):
        if isinstance(metric, Products):  # a refit's own Hessian, renewed where it stands
            q = np.minimum(FIRST_SAFETY * size / np.maximum(here.first, 1e-300), MOST)
        else:
            q = np.asarray(contractions(fit, rows, metric, there.u, everyone))
        left = np.where(q < REFUSED, size * q / (1 - np.minimum(q, REFUSED)), np.inf)
        found = reached(fit, rows, there, everyone, left)
        change = np.abs(np.asarray(found.scores) - known).reshape(len(u), -1).sum(1)
        if np.all(found.error <= 0.5 * change) or not np.isfinite(left).any():
            break
        again = _look(fit, rows, metric, there.u)
        closer = again[1] < 0.5 * size
        there.move(everyone[closer], -again[0][closer])
        step = np.where(closer[:, None], again[0], step)
        there.step, size, unsure = step, np.where(closer, again[1], size), unsure + again[2]
    return change + np.asarray(found.error) + unsure, known, lambda: (there.u, left)


def _look(fit: Fit, rows: Rows, metric: AbstractMetric, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """The step that each refit's gradient at u asks for, its length, and what a loss may be off for having sampled it."""
    if sampling.available(fit, rows):
        found = sampling.bent(fit, rows, u)
        change = np.array(certificate.steps(fit, metric, found.gradient))
        size = np.linalg.norm(change, axis=1)
        return -change, size, np.asarray(found.error)
    seen = examined(fit, rows, metric, u, np.arange(len(u)))
    return np.asarray(seen.step), np.asarray(seen.size), 0.0


def _flag_crossings(fit: Fit, rows: Rows, u: np.ndarray, result: np.ndarray) -> None:
    if isinstance(fit.objective, AbstractLinearPredictor) and not fit.objective.smooth:
        crossed = np.asarray(_crossings(fit, u, certificate.passes(fit) // 16 + 1)) > 0
        result[crossed & (result == RESULTS.successful)] = RESULTS.kink


@eqx.filter_jit
def _crossings(fit: Fit, u: Array, chunk: int) -> Array:
    def one(u):
        return fit.objective.crossings(fit.theta, unravel(certificate.parameters(fit, u), fit.theta))

    return jax.lax.map(one, u, batch_size=chunk)
