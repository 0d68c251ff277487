"""Accepting refits without gradients of their own, where those of all would be too dear: by bounds, terms and samples."""

import equinox as eqx
import numpy as np
from jaxtyping import Array

from . import _certificate as certificate
from . import _sampling as sampling
from ._certificate import FIRST_SAFETY
from ._curvature import AbstractMetric
from ._descent import State, loss_error, padded, take, take_metric
from ._fit import Fit
from ._plan import Rows

AFFORDABLE = 2e10  # operations that gradients of every refit may cost before bounds are tried first
SAMPLE = 2048  # units in a sample of the next term


def affordable(fit: Fit, rows: Rows) -> bool:
    """Can every refit of the plan have a gradient of its own?"""
    return certificate.work(fit) * int(rows.num_refits) <= AFFORDABLE


def screen(fit: Fit, rows: Rows, state: State, allowed: np.ndarray) -> None:
    """Accept what the bound allows; for single rows, correct the rest by the next term where that is enough."""
    terms = certificate.newton_bound(fit, rows, state.metric, state.gradient, certificate.reach(fit))
    bound, rho, state.theta = (np.asarray(term) for term in terms)
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
    units, weight = (np.arange(n), np.ones(n)) if size == n else certificate.sample(fit, size)
    lanes = padded(lanes, len(rho), 64)
    terms = _next_term(fit, rows, state.metric, state.gradient, lanes, units, weight)
    direction, move, absolute, spread = (np.asarray(a) for a in terms)
    bend = rho[lanes] * np.exp(rho[lanes])
    if size == n:  # what it leaves: 2ρ of it, or of a third of what its terms are without cancelling
        state.move(lanes, move[:, None] * direction)
        left = np.minimum(2 * bend * np.maximum(np.abs(move), 0.3 * absolute), np.abs(move) + absolute)
    else:
        left = (np.abs(move) + 3 * spread) * (1 + bend)
    error = np.asarray(certificate.change(fit, take(rows, lanes), state.u[lanes], state.u[lanes] + left[:, None] * direction))
    state.error[lanes] = np.minimum(error, bound[lanes])
    state.finished |= _within(state.error, allowed) & (rho < 1.0)


def screen_by_sample(fit: Fit, rows: Rows, state: State, allowed: np.ndarray) -> None:
    """One more step with what the units that leave say, and accept where samples of the others say that little is left."""
    state.step = np.zeros_like(state.u)
    for size in range(len(sampling.SIZES)):
        lanes = np.flatnonzero(~state.finished)
        if not lanes.size:
            return
        lanes = padded(lanes, len(state.u), 64)
        found = sampling.bent(fit, take(rows, lanes), state.u[lanes], size)
        change = np.array(certificate.steps(fit, state.metric, found.gradient))
        length = np.linalg.norm(change, axis=1)
        ratio = length / np.maximum(state.first[lanes], 1e-300)
        q = np.minimum(FIRST_SAFETY * ratio, 0.95)
        near = ratio < 0.5
        state.move(lanes[near], change[near])
        state.step[lanes] = -change
        left = np.where(near, length * q / (1 - q), np.inf)
        state.error[lanes] = loss_error(fit, rows, state, lanes, left) + found.error
        state.finished[lanes] = near & (state.error[lanes] <= allowed[lanes])


def _within(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The refits of smallest error that together stay within what is allowed together, none above five times its share."""
    order = np.argsort(error)
    within = np.empty(len(error), bool)
    within[order] = np.cumsum(error[order]) <= allowed.sum()
    return within & (error <= 5 * allowed)


@eqx.filter_jit
def _next_term(fit: Fit, rows: Rows, metric: AbstractMetric, gradient: Array, lanes: Array, units: Array, weight: Array):
    return certificate.next_term(fit, take(rows, lanes), take_metric(metric, lanes), gradient[lanes], units, weight)
