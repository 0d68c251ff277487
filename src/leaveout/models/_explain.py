"""What a fitted hidden Markov model says of its own data."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Scalar

from ._edge import EDGE, near_edge, say
from ._hidden import entries
from .chain import Posterior, best_path, log_partition, posterior

UNUSED = 1.0  # expected visits below which a state explains nothing


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
    known = hmm.regressors(jnp.ones(len(hmm.dense)) if hmm.drop == "sequence" else weights) > 0
    return jnp.where(known[:, None], means[hmm.layout.inverse], jnp.nan)


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
    found, visited = jax.tree.map(np.asarray, hmm.parameters.natural(theta)), visits(hmm, theta).sum(0)
    sentences = [
        f"State {k} explains nothing (expected visits {visited[k]:.2g} of {hmm.dense.sum()} steps): take fewer states."
        for k in np.flatnonzero(visited < UNUSED)
    ]
    names, spread = (*hmm.states.free, *hmm.emission.free), _spread(hmm)
    support = hmm.states.support
    near = [e for name in names for e in near_edge(hmm.emission, name, found[name], spread, support.get(name, True))]
    sentences += [say(near)] if near else []
    return " ".join(sentences)


def _spread(hmm: Any) -> Float[np.ndarray, " channels"]:
    """The variance of each channel; of an autoregression, which may wander, that of its steps."""
    return np.nanvar(np.diff(hmm.x, axis=0) if hmm.emission.reach else hmm.x, axis=0)


def held(hmm: Any, theta: PyTree) -> tuple[Any, dict[str, np.ndarray], str] | None:
    """The model of maximum likelihood that holds at zero what came out there of the initial distribution and the transitions,
    its parameters, and what they are; None where nothing did, or a prior speaks."""
    states, found = hmm.states, jax.tree.map(np.asarray, hmm.parameters.natural(theta))
    free = {name: states.support.get(name, np.ones(shape, bool)) for name, shape in states.free.items()}
    zero = {name: where & (found[name] < EDGE) for name, where in free.items()}
    if states.prior is not None or not any(where.any() for where in zero.values()):
        return None
    fixed = {"initial": "stationary" if states.stationary else states.initial, "transition": states.transition}
    fixed |= {name: np.where(free[name] & ~zero[name], np.nan, 0.0) for name in free}
    fixed = {name: "free" if value is None else value for name, value in fixed.items()}  # of one state
    simpler = type(hmm)(
        hmm.labels.channels(hmm.x),
        hmm.emission,
        hmm.num_states,
        lengths=hmm.lengths,
        drop=hmm.drop,
        prior=None,
        score="joint" if hmm.joint else "pointwise",
        **fixed,
    )
    for name, where in zero.items():
        kept = np.where(where, 0.0, found[name])
        found[name] = kept / kept.sum(-1, keepdims=True)
    named = ", ".join(entry for name, where in zero.items() for entry in entries(name, where))
    return simpler, found, f"maximum likelihood puts {named} at zero"
