"""How far a refit's held-out loss is from the exact one.

Everything is in the anchor's whitened coordinates u = Lᵀ(θ − θ̂), H = L Lᵀ. At a candidate u the step d that a
metric asks for is about the distance to the exact refit; once it is taken, what is left is about q/(1 − q) ‖d‖,
q the contraction. A loss S then is off by at most ‖∇S‖ times that distance (Cauchy–Schwarz); the change of S
over the step itself is the typical size, so an estimate lies between the two.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._curvature import AbstractMetric, fold_weights
from ._fit import Fit
from ._objective import AbstractLinearPredictor, ravel, unravel
from ._plan import Rows

# The contraction is taken as so many times the largest ratio of successive steps that was seen: the first ratio is
# half the contraction where the curvature changes linearly (and less still where there are few units a parameter).
FIRST_SAFETY, SAFETY = 3.5, 1.5
PRODUCTS, CAUTION, REFUSED = 4, 1.2, 0.9  # of an estimated contraction: products, what is put on top, where it means nothing
LONG = 8  # units a parameter in a fold, from which it counts as long
OWN = 256  # units that refits of few units look at together
NUMBERS = 2**19  # numbers that one pass over the data makes for a group of refits: about what a cache holds


class Examination(NamedTuple):
    """What one gradient says at a candidate, each `[refits]` but the step, `[refits, params]`."""

    step: Float[Array, "refits params"]
    size: Float[Array, " refits"]  # ‖step‖


class Reached(NamedTuple):
    """What is known of the losses where refits stand."""

    error: Float[Array, " refits"]  # of each one's summed held-out loss
    scores: Float[Array, "refits ..."]  # the losses themselves, zero where not scored


def parameters(fit: Fit, u: Float[Array, "*refits params"]) -> Float[Array, "*refits params"]:
    """The raveled θ at whitened displacements."""
    return ravel(fit.theta) + fit.unwhiten(u)


def passes(fit: Fit) -> int:
    """Refits that share one pass over the data."""
    if fit.objective.costs.lanes is not None:
        return fit.objective.costs.lanes
    outputs = fit.objective.outputs if isinstance(fit.objective, AbstractLinearPredictor) else 1
    return max(4, NUMBERS // (fit.objective.num_units * outputs))


def own_passes(fit: Fit, rows: Rows) -> int:
    """Refits that share one pass where only their own units matter."""
    return max(passes(fit), OWN // rows.index.shape[1]) if fit.objective.local else passes(fit)


def work(fit: Fit) -> float:
    """Operations of one gradient of one refit."""
    return 4.0 * fit.objective.num_units * fit.num_params if fit.objective.costs.work is None else fit.objective.costs.work


def scores(fit: Fit, vector: Array, index: Array, weight: Array, held: Array) -> Array:
    """Held-out losses of one refit at a raveled θ, zero where not scored: `[width]`, or `[]` for a joint loss."""
    value = fit.objective.score(unravel(vector, fit.theta), fold_weights(fit, index, weight), index, held.astype(float))
    return jnp.where(held, value, 0.0) if value.ndim else value


@eqx.filter_jit
def steps(fit: Fit, metric: AbstractMetric, gradient: Array) -> Array:
    """Minus the steps that gradients ask for."""
    if fit.factor is None:  # each by many passes over the data
        return -jax.lax.map(lambda args: args[0].solve(fit, args[1]), (metric, gradient), batch_size=passes(fit))
    return jax.vmap(lambda m, g: -m.solve(fit, g))(metric, gradient)


@eqx.filter_jit
def examine(fit: Fit, rows: Rows, metric: AbstractMetric, u: Float[Array, "refits params"], chunk: int) -> Examination:
    """One gradient of every refit's own F at u, `chunk` refits a pass over the data; whitened all together, since one
    product with a large matrix is cheaper than one a pass."""

    def slope(args):
        index, weight, vector = args
        return ravel(jax.grad(fit.objective.loss)(unravel(vector, fit.theta), fold_weights(fit, index, weight)))

    gradients = jax.lax.map(slope, (rows.index, rows.weight, parameters(fit, u)), batch_size=chunk)
    step = -steps(fit, metric, fit.whiten(gradients))
    return Examination(step, jnp.linalg.norm(step, axis=1))


@eqx.filter_jit
def reached(
    fit: Fit, rows: Rows, u: Float[Array, "refits params"], step: Float[Array, "refits params"], left: Array, chunk: int
):
    """The losses at u, and the most that they change by, added up, within the distance `left`: towards and from where the
    gradient of their sum points, and along the last step. Never by a slope at one point: in a flat tail that is zero.

    For one scored unit the gradient's direction is the worst. For many it is not typical of an error's, and twice its root mean
    square share stands in. Where a fold is long, the losses change in every direction, and the gradient, which may be ten
    times as dear, is left out.
    """
    long = not isinstance(fit.objective, AbstractLinearPredictor) and rows.index.shape[1] >= LONG * fit.num_params
    count = jnp.clip(jnp.sum(rows.held, axis=1), 1, fit.num_params) if fit.objective.pointwise else jnp.ones(len(u))
    spread = jnp.minimum(1.0, 2 / jnp.sqrt(count))
    unit = lambda v: v / jnp.maximum(jnp.linalg.norm(v), 1e-300)

    def one(args):
        index, weight, held, vector, step, left, spread = args
        loss = lambda v: scores(fit, v, index, weight, held)
        value = loss(vector)
        directions = [left * unit(step)]
        if not (long and fit.objective.pointwise):
            directions.append(left * spread * unit(fit.whiten(jax.grad(lambda v: jnp.sum(loss(v)))(vector))))
        moves = fit.unwhiten(jnp.stack([sign * d for d in directions for sign in (1.0, -1.0)]))
        changes = jax.vmap(lambda move: jnp.sum(jnp.abs(loss(vector + move) - value)))(moves)
        return jnp.max(changes), value

    known = jnp.isfinite(left)
    each = (rows.index, rows.weight, rows.held, parameters(fit, u), step, jnp.where(known, left, 0.0), spread)
    error, value = jax.lax.map(one, each, batch_size=max(1, chunk // 4))
    error = jnp.where(jnp.isnan(error), jnp.inf, error)
    return Reached(jnp.where(known | ~jnp.any(rows.held, axis=1), error, jnp.inf), value)


@eqx.filter_jit
def contractions(fit: Fit, rows: Rows, metric: AbstractMetric, u: Float[Array, "refits params"], chunk: int) -> Array:
    """What steps by a metric leave of themselves: the size of I − P∇²F(u, w), from a random direction by a few products.

    Contractions of the steps themselves are not enough: where a metric is far too steep in some direction, the step along it,
    and what of it is seen, is small.
    """
    start = jax.random.normal(jax.random.key(0), (fit.num_params if fit.factor is None else len(fit.whitener),), u.dtype)

    def one(args):
        index, weight, metric, vector = args
        slope = jax.grad(lambda v: fit.objective.loss(unravel(v, fit.theta), fold_weights(fit, index, weight)))
        _, product = jax.linearize(slope, vector)
        v, largest = start / jnp.linalg.norm(start), jnp.zeros(())
        for k in range(PRODUCTS):
            after = v - metric.solve(fit, fit.whiten(product(fit.unwhiten(v))))
            size = jnp.linalg.norm(after)
            largest = jnp.maximum(largest, jnp.maximum(jnp.abs(v @ after), jnp.where(k > 0, size, 0.0)))
            v = after / jnp.maximum(size, 1e-300)
        return largest

    return CAUTION * jax.lax.map(one, (rows.index, rows.weight, metric, parameters(fit, u)), batch_size=chunk)
