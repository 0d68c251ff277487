"""Responses drawn at draws of the parameters, where the model says how."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from ... import losses
from ...developer import (
    CAPACITY,
    AbstractObjective,
    Array,
    Arrays,
    PyTree,
    compile_static,
    float64,
    jax,
    jnp,
    unravel,
)
from .sampled import DRAWN, Integrated, Sampled

# responses `[draws, some]` at θ `[draws, params]`, of some units, given units of some weights, by a
# generator
DrawResponses = Callable[[ndarray, ndarray, ndarray, Generator], ndarray]


def responses_of(objective: AbstractObjective, like: PyTree) -> DrawResponses | None:
    """Return the function that draws responses of a model that states their distribution.

    Squared loss has variance one.
    """
    units_of = objective.units
    distribution = units_of.distribution()
    if distribution is None:
        return None
    squared = isinstance(getattr(objective, "loss_function", None), losses.Squared)

    def draw(theta: ndarray, units: ndarray, weights: ndarray, rng: Generator) -> ndarray:
        # units are independent given θ
        size = min(len(theta), max(1, CAPACITY // objective.num_units))
        mean = np.asarray(_means(objective, like, theta, units, size))
        if squared:
            phi = np.ones((len(theta), 1))
        else:
            phi = distribution.dispersion(None, theta)
        return units_of.to_target(
            distribution.draw(rng, mean, np.broadcast_to(phi, mean.shape)).astype(float)
        )

    return draw


def draw_by_jax(
    responses: Callable[[Any, Any, Any], Any], objective: Sampled, like: PyTree, effect: str | None
) -> DrawResponses:
    """Return the function that draws responses by one in JAX, which maps a key, one unconstrained
    draw and units to theirs.
    """
    size = max(1, CAPACITY // objective.num_units)

    @jax.jit
    def respond_at_all(keys: Array, theta: Array, effects: Array, units: Array) -> Array:
        effect_by_name = lambda z: {effect: z} if effect else {}
        respond = lambda key, v, z: responses(key, unravel(v, like) | effect_by_name(z), units)
        return jax.lax.map(
            lambda state: respond(*state), (keys, theta, effects), batch_size=min(len(theta), size)
        )

    @float64
    def draw(theta: ndarray, units: ndarray, weights: ndarray, rng: Generator) -> ndarray:
        effects = draw_effects(objective, like, theta, weights, rng)
        padded = np.resize(units, 2 ** int(np.ceil(np.log2(len(units)))))  # few programs
        return np.asarray(respond_at_all(_keys(rng, theta), theta, effects, padded), float)[
            :, : len(units)
        ]

    return draw


def draw_effects(
    objective: AbstractObjective,
    like: PyTree,
    theta: ndarray,
    weights: ndarray,
    rng: Generator,
) -> ndarray:
    """Draw effects that are integrated out, `[draws, effects]`, given θ and the units that
    weigh.
    """
    if not isinstance(objective, Integrated):
        return np.zeros((len(theta), 0))
    size = min(len(theta), max(1, CAPACITY // (DRAWN * objective.num_units)))
    return np.asarray(_effects(objective, like, _keys(rng, theta), theta, weights, size))


def _keys(rng: Generator, theta: ndarray) -> Array:
    return jax.random.split(jax.random.PRNGKey(int(rng.integers(2**31))), len(theta))


@compile_static
def _effects(
    objective: Integrated, like: PyTree, keys: Arrays, theta: Arrays, weights: Arrays, size: int
) -> Arrays:
    return jax.lax.map(
        lambda state: objective.draw_effects(state[0], unravel(state[1], like), weights),
        (keys, theta),
        batch_size=size,
    )


@compile_static
def _means(
    objective: AbstractObjective, like: PyTree, theta: Arrays, units: Arrays, size: int
) -> Arrays:
    ones = jnp.ones(objective.num_units)
    return jax.lax.map(
        lambda v: objective.predict(unravel(v, like), ones, units, "response"),
        theta,
        batch_size=size,
    )
