"""Responses drawn at draws of the parameters, where the model says how."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .._runtime.jax import Array, Arrays, PyTree, compile_static, float64, jax, jnp
from ..models.glm.losses import Squared
from ..objectives.objective import AbstractObjective, unravel
from ..plans.plan import CAPACITY

# responses `[draws, some]` at θ `[draws, params]`, of some units, by a generator
DrawResponses = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


def responses_of(objective: AbstractObjective, like: PyTree) -> DrawResponses | None:
    """Return the function that draws responses of a model that states their distribution; squared loss has variance one."""
    known = objective.units.distribution()
    if known is None:
        return None
    squared = isinstance(getattr(objective, "loss_function", None), Squared)

    def draw(theta: np.ndarray, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        size = min(len(theta), max(1, CAPACITY // objective.num_units))
        mean = np.asarray(_means(objective, like, theta, units, size))
        phi = np.ones((len(theta), 1)) if squared else known.dispersion(None, theta)
        return known.draw(rng, mean, np.broadcast_to(phi, mean.shape)).astype(np.float64)

    return draw


def draw_by_jax(responses: Callable[[Any, Any, Any], Any], like: PyTree, num_units: int) -> DrawResponses:
    """Return the function that draws responses by one in JAX, which maps a key, one unconstrained draw and units to theirs."""
    size = max(1, CAPACITY // num_units)

    @jax.jit
    def at_all(keys: Array, theta: Array, units: Array) -> Array:
        one = lambda pair: responses(pair[0], unravel(pair[1], like), units)
        return jax.lax.map(one, (keys, theta), batch_size=min(len(theta), size))

    @float64
    def draw(theta: np.ndarray, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        keys = jax.random.split(jax.random.PRNGKey(int(rng.integers(2**31))), len(theta))
        return np.asarray(at_all(keys, theta, units), np.float64)

    return draw


@compile_static
def _means(objective: AbstractObjective, like: PyTree, theta: Arrays, units: Arrays, size: int) -> Arrays:
    ones = jnp.ones(objective.num_units)
    return jax.lax.map(lambda v: objective.predict(unravel(v, like), ones, units, "response"), theta, batch_size=size)
