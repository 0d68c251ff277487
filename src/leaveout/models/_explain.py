"""What a fitted hidden Markov model says of its own data."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Scalar

from .chain import Posterior, best_path, log_partition, posterior
from .emissions._base import POSITIVE, PROBABILITY, SIMPLEX

UNUSED = 1.0  # expected visits below which a state explains nothing
EDGE = 1e-6  # the share of the largest of its kind below which a probability, a rate, a variance sits on the boundary


@eqx.filter_jit
def log_likelihood(hmm: Any, theta: PyTree) -> Scalar:
    return log_partition(hmm._whole(theta, jnp.ones(len(hmm.dense)))[0], None, hmm.layout)


def _posterior(hmm: Any, theta: PyTree, weights: Array) -> Posterior:
    steps = weights[hmm.sequence] if hmm.drop == "sequence" else weights
    return posterior(hmm._whole(theta, steps)[0], hmm.layout)


@eqx.filter_jit
def smoothed(hmm: Any, theta: PyTree, weights: Array) -> Float[Array, "steps states"]:
    return hmm.layout.restore(_posterior(hmm, theta, weights).states)


@eqx.filter_jit
def filtered(hmm: Any, theta: PyTree) -> Float[Array, "steps states"]:
    return hmm.layout.restore(_posterior(hmm, theta, jnp.ones(hmm.num_units)).filtered)


@eqx.filter_jit
def expected(hmm: Any, theta: PyTree, weights: Array) -> Float[Array, "steps channels"]:
    states = _posterior(hmm, theta, weights).states.reshape(-1, hmm.num_states)
    means = jnp.einsum("tk,tkr->tr", states, hmm.emission.means(hmm.emitted(theta), hmm.data))
    return means[hmm.layout.inverse]


@eqx.filter_jit
def decoded(hmm: Any, theta: PyTree) -> Int[Array, " steps"]:
    whole, _ = hmm._whole(theta, jnp.ones(len(hmm.dense)))
    initial, transition = hmm.states.logs(theta)
    return best_path(initial, transition, hmm.layout.restore(whole.emission), jnp.asarray(hmm.position) == 0)


def visits(hmm: Any, theta: PyTree) -> Float[np.ndarray, "units states"]:
    """Expected visits of every state while a unit, a step or a sequence, is observed."""
    steps = np.where(hmm.dense[:, None], np.asarray(smoothed(hmm, theta, jnp.ones(hmm.num_units))), 0.0)
    if hmm.drop != "sequence":
        return steps
    return np.add.reduceat(steps, np.cumsum(hmm.lengths) - hmm.lengths, axis=0)


def warning(hmm: Any, theta: PyTree) -> str:
    """States that explain nothing, and parameters on a boundary."""
    found, visited = jax.tree.map(np.asarray, hmm.natural(theta)), visits(hmm, theta).sum(0)
    sentences = [
        f"State {k} explains nothing (expected visits {visited[k]:.2g} of {hmm.dense.sum()} steps): take fewer states."
        for k in np.flatnonzero(visited < UNUSED)
    ]
    support = hmm.states.support
    positive = [name for name, constraint in hmm.emission.free.items() if constraint in (POSITIVE, PROBABILITY, SIMPLEX)]
    low = {name: found[name] < EDGE * found[name].max() for name in (*hmm.states.free, *positive)}
    near = [(name, at) for name, where in low.items() for at in np.argwhere(where & support.get(name, True)).tolist()]
    if near:
        named = ", ".join(f"{name}{at} = {found[name][*at]:.1g}" for name, at in near[:5])
        sentences.append(f"On the boundary: {named}{', …' if len(near) > 5 else ''}; a prior keeps them off it.")
    return " ".join(sentences)
