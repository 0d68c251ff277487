"""Is there a lower minimum elsewhere? Refits, compared at the other minima that the fit's starts found.

A refit is the minimiser of `F(·, w)` that descent from θ̂ reaches. From every other minimum of `F(·, 1)` it is gone down too,

    θ ← θ − t C⁻¹∇F(θ, w),      C the Hessian of F(·, 1) at that minimum, t halved where F would rise,

a few steps first, and to the end where that may lead below the refit. A value of F below the refit's proves that the refit is
not the global minimiser; a refit that nothing lower was found for may still not be it.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._fit import Fit, once
from ._functions import function, passes
from ._minimise import LARGE
from ._objective import float64, ravel, unravel
from ._plan import Rows

LOOK, ARRIVE = 3, 50  # gradients from each minimum: of every refit, of those that it may be lower for
SAME, ROUNDING = 1e-6, 1e-10  # nats, and a share of F, by which a value must be lower
DOUBT = 4.0  # times what a refit's own gradient promises that F still falls by, which a value must be lower by as well
FLAT = 1e-12  # of the largest curvature: what is along directions in which F is flat
ENDED = 1e-12  # of F, if no more is promised: float64 resolves no more


class Lower(NamedTuple):
    """Which refits of a batch have a lower minimum elsewhere, and the raveled θ of the lowest that was found."""

    found: Bool[np.ndarray, " refits"]
    theta: Float[np.ndarray, "refits params"]


def compared(fit: Fit) -> bool:
    """Are there other minima to compare refits at?"""
    return len(fit.minima.value) > 1


@once
def _others(fit: Fit) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """The other minima, raveled, and S with S Sᵀ about the inverse Hessian at each: where that would be too large, or is not
    positive definite, the fit's own stands in."""
    found, F = [], function(fit.objective, fit.theta)
    for theta in fit.minima.theta[1:]:
        scale = _own(fit)
        if fit.num_params <= LARGE:
            values, vectors = np.linalg.eigh(F.hessian(theta))
            curved = values > FLAT * values[-1]
            if values[0] > -FLAT * values[-1]:
                scale = vectors * np.where(curved, np.where(curved, values, 1.0) ** -0.5, 0.0)
        found.append((theta, scale))
    return found


def _own(fit: Fit) -> np.ndarray | None:
    """The same at θ̂; None where it is not a matrix."""
    return None if fit.factor is None else np.asarray(fit.whitener).T


@float64
def lower(fit: Fit, rows: Rows, theta: Float[np.ndarray, "refits params"], exists: Bool[np.ndarray, " refits"]) -> Lower:
    """Where a batch of refits, at `theta` where they exist, has lower minima elsewhere."""
    best, chunk = np.array(theta), passes(fit.objective)
    at = np.where(exists[:, None], theta, np.asarray(ravel(fit.theta)))
    go = lambda start, scale, going, most: tuple(
        np.asarray(part) for part in _descended(fit, scale, rows.index, rows.weight, start, going, np.asarray(most), chunk)
    )
    value, promised = go(at, _own(fit), exists, 0)[1:]
    least = np.where(exists, value - DOUBT * promised - SAME - ROUNDING * np.abs(value), -np.inf)
    lowest = least.copy()
    for minimum, scale in _others(fit):
        start = np.broadcast_to(minimum, at.shape)
        reached, value, promised = go(start, scale, exists, LOOK)
        worth = exists & (value - DOUBT * promised < lowest)
        if worth.any():
            reached, value, _ = go(reached, scale, worth, ARRIVE)
            better = worth & (value < lowest)
            best[better], lowest[better] = reached[better], value[better]
    return Lower(lowest < least, best)


@eqx.filter_jit
def _descended(fit: Fit, scale: Array | None, index: Array, weight: Array, start: Array, going: Array, most: Array, chunk: int):
    """Steps down from `start` of the refits that are `going`: raveled θ, F, and what a last step would promise."""
    n = fit.objective.num_units

    def one(args):
        index, weight, start, going = args
        weights = weight if len(index) == n else jnp.ones(n).at[index].set(weight, mode="drop")
        look = jax.value_and_grad(lambda v: fit.objective.loss(unravel(v, fit.theta), weights))

        def whitened(gradient):
            return fit.whiten(gradient) if scale is None else gradient @ scale

        def step(state):
            v, value, gradient, t, _, k = state
            towards = whitened(gradient)
            move = fit.unwhiten(towards) if scale is None else scale @ towards
            tried, slope = look(v - t * move)
            falls = tried < value
            v, value = jnp.where(falls, v - t * move, v), jnp.where(falls, tried, value)
            gradient = jnp.where(falls, slope, gradient)
            return v, value, gradient, jnp.where(falls, jnp.minimum(1.0, 2 * t), t / 4), promise(gradient), k + 1

        def promise(gradient):
            return 0.5 * jnp.sum(whitened(gradient) ** 2)

        def goes(state):
            return going & (state[5] < most) & (state[4] > ENDED * jnp.abs(state[1])) & (state[3] > 1e-6)

        value, gradient = look(start)
        first = start, value, gradient, jnp.ones(()), promise(gradient), 0
        v, value, _, _, promised, _ = jax.lax.while_loop(goes, step, first)
        return v, jnp.where(jnp.isfinite(value), value, jnp.inf), promised

    return jax.lax.map(one, (index, weight, start, going), batch_size=chunk)
