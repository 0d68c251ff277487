"""Is there a lower minimum elsewhere? Refits, compared at the other minima that the fit's starts found.

A refit is the minimiser of `F(·, w)` that descent from θ̂ reaches. From every other minimum of `F(·, 1)` it is gone down too,

    θ ← θ − t C⁻¹∇F(θ, w),      C the Hessian of F(·, 1) at that minimum, t halved where F would rise,

a few steps first, and to the end where that may lead below the refit. A value of F below the refit's proves that the refit is
not the global minimiser; a refit that nothing lower was found for may still not be it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from . import _certificate as certificate
from ._curvature import fold_weights
from ._fit import Fit, once
from ._minimise import LARGE, pieces
from ._objective import float64, placed, ravel, unravel
from ._plan import Rows
from ._starts import ROUNDING, SAME

LOOK, ARRIVE = 3, 50  # gradients from each minimum: of every refit, of those that it may be lower for
DOUBT = 4.0  # times what a refit's own gradient promises that F still falls by: a value must be lower by so much as well
FLAT = 1e-12  # of the largest curvature: what is along directions in which F is flat
ENDED = 1e-12  # of F, if no more is promised: float64 resolves no more


def compared(fit: Fit) -> bool:
    """Are there other minima to compare refits at?"""
    return len(fit.minima.value) > 1


def _own(fit: Fit) -> np.ndarray | None:
    """S with S Sᵀ = H⁻¹ at θ̂; None where it is not a matrix."""
    return None if fit.factor is None else np.asarray(fit.whitener).T


@once
def _others(fit: Fit) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """The other minima, raveled, and S with S Sᵀ about the inverse Hessian at each: where that would be too large, or is not
    positive definite, the fit's own stands in."""
    found, ones = [], np.ones(fit.objective.num_units)
    for theta in fit.minima.theta[1:]:
        scale = _own(fit)
        if fit.num_params <= LARGE:
            values, vectors = np.linalg.eigh(np.asarray(pieces(fit.objective, placed(theta, fit.theta), ones)[2]))
            if values[0] > -FLAT * values[-1]:
                scale = vectors * np.where(values > FLAT * values[-1], np.abs(values), np.inf) ** -0.5
        found.append((theta, scale))
    return found


@float64
def lower(
    fit: Fit, rows: Rows, theta: Float[np.ndarray, "refits params"], exists: Bool[np.ndarray, " refits"]
) -> tuple[Bool[np.ndarray, " refits"], Float[np.ndarray, "refits params"]]:
    """Which refits of a batch, at `theta` where they exist, have a lower minimum elsewhere, and the raveled θ of the lowest
    that was found."""
    best, chunk = np.array(theta), certificate.passes(fit)
    at = np.where(exists[:, None], theta, np.asarray(ravel(fit.theta)))
    go = lambda start, scale, going, most: (
        np.asarray(part) for part in _descended(fit, scale, rows, start, going, np.asarray(most), chunk)
    )
    _, value, promised = go(at, _own(fit), exists, 0)
    least = np.where(exists, value - DOUBT * promised - SAME - ROUNDING * np.abs(value), -np.inf)
    lowest = least.copy()
    for minimum, scale in _others(fit):
        reached, value, promised = go(np.broadcast_to(minimum, at.shape), scale, exists, LOOK)
        worth = exists & (value - DOUBT * promised < lowest)
        if worth.any():
            reached, value, _ = go(reached, scale, worth, ARRIVE)
            better = worth & (value < lowest)
            best[better], lowest[better] = reached[better], value[better]
    return lowest < least, best


@eqx.filter_jit
def _descended(fit: Fit, scale: Array | None, rows: Rows, start: Array, going: Array, most: Array, chunk: int):
    """Steps down from `start` of the refits that are `going`: raveled θ, F, and what a last step would promise."""
    whitened = fit.whiten if scale is None else lambda gradient: gradient @ scale
    moved = fit.unwhiten if scale is None else lambda towards: scale @ towards
    promise = lambda gradient: 0.5 * jnp.sum(whitened(gradient) ** 2)

    def one(args):
        index, weight, start, going = args
        weights = fold_weights(fit, index, weight)
        look = jax.value_and_grad(lambda v: fit.objective.loss(unravel(v, fit.theta), weights))

        def step(state):
            v, value, gradient, t, _, k = state
            there = v - t * moved(whitened(gradient))
            tried, slope = look(there)
            falls = tried < value
            v, value, gradient = (jnp.where(falls, new, old) for new, old in ((there, v), (tried, value), (slope, gradient)))
            return v, value, gradient, jnp.where(falls, jnp.minimum(1.0, 2 * t), t / 4), promise(gradient), k + 1

        def goes(state):
            _, value, _, t, promised, k = state
            return going & (k < most) & (promised > ENDED * jnp.abs(value)) & (t > 1e-6)

        value, gradient = look(start)
        first = start, value, gradient, jnp.ones(()), promise(gradient), 0
        v, value, _, _, promised, _ = jax.lax.while_loop(goes, step, first)
        return v, jnp.where(jnp.isfinite(value), value, jnp.inf), promised

    return jax.lax.map(one, (rows.index, rows.weight, start, going), batch_size=chunk)
