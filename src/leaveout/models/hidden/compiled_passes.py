"""F of a chain whose observations are left out, and its held-out losses, by compiled loops over its steps.

JAX computes the likelihoods of the distinct observations, the loops of `inference.compiled` the expected counts, and JAX from
these the gradient, which is that of the complete data's expected log-likelihood (Fisher's identity).
"""

import copy
import importlib.util
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._runtime.jax import Arrays, PyTree, cached_on, compile_static
from ...inference.chain import Layout
from ...inference.compiled import Loops, loops
from ...objectives.batch_functions import PASSES_TOGETHER, Look
from ...objectives.objective import Points, aligned_copy, unravel
from ...plans.plan import PADDED_FROM
from .hidden_chain import AbstractHiddenChain

SAMPLE = 2**10  # steps that tell whether observations repeat


def available(hmm: AbstractHiddenChain) -> bool:
    """Tell whether the loops are quicker: numba is installed, the chain is long, and its arrays are not on a device."""
    long = len(hmm.dense) > PADDED_FROM
    return long and importlib.util.find_spec("numba") is not None and jax.default_backend() == "cpu"


class _Potentials(NamedTuple):
    """Likelihoods of the distinct observations, each by the largest of its row, the logarithm of that, and the rest of F."""

    table: Float[Arrays, "refits rows states"]
    top: Float[Arrays, "refits rows"]
    initial: Float[Arrays, "refits states"]
    transition: Float[Arrays, "refits states states"]
    log_prior: Float[Arrays, " refits"]


@compile_static
def _potentials(hmm: AbstractHiddenChain, like: PyTree, thetas: Arrays) -> _Potentials:
    """Compute the potentials at each θ."""

    def one(theta):
        at = unravel(theta, like)
        densities = hmm.log_densities(at)[:, 0]
        top = densities.max(1)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        initial, transition = hmm.states.logs(at)
        return _Potentials(jnp.exp(densities - top[:, None]), top, jnp.exp(initial), jnp.exp(transition), hmm.log_prior(at))

    return jax.vmap(one)(thetas)


@compile_static
def _gradients(
    hmm: AbstractHiddenChain, like: PyTree, thetas: Arrays, seen: Arrays, moves: Arrays, first: Arrays
) -> Float[Array, "refits params"]:
    """Compute ∇F at each θ from the expected counts."""

    def expected(theta, seen, moves, first):
        at = unravel(theta, like)
        densities = jnp.where(seen > 0, seen * hmm.log_densities(at)[:, 0], 0.0)
        initial, transition = hmm.states.logs(at)
        return -jnp.sum(densities) - jnp.sum(first * initial) - jnp.sum(moves * transition) - hmm.log_prior(at)

    return jax.vmap(jax.grad(expected))(thetas, seen, moves, first)


class ChainPasses:
    """Passes over a chain, by its steps: the row of the distinct observations of each, and its weight in a fit."""

    def __init__(self, hmm: AbstractHiddenChain):
        parts = jax.tree.map(lambda leaf: np.asarray(leaf)[hmm.layout.inverse], hmm.data)
        rows = np.concatenate([leaf.reshape(len(hmm.dense), -1) for leaf in jax.tree.leaves(parts)], axis=1)
        self.code, some = np.arange(len(rows)), np.arange(len(rows))
        if len(np.unique(rows[:SAMPLE], axis=0)) < min(SAMPLE, len(rows)) // 2 + 1:
            _, some, self.code = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        self.code, self.starts = self.code.reshape(-1).astype(np.int32), np.asarray(hmm.position) == 0
        self.seen, self.length, found = np.where(hmm.dense, 1.0, 0.0), len(hmm.dense), loops(hmm.num_states)
        assert isinstance(found, Loops)
        self.loops, self.distinct = found, copy.copy(hmm)
        place = np.arange(len(some), dtype=np.int32)
        layout = Layout(place[:, None], place[:, None] < 0, place[:0], False, False)
        of_steps = dict.fromkeys(("x", "dense", "sequence", "position", "lengths"))
        data = jax.tree.map(lambda leaf: aligned_copy(leaf[some]), parts)
        vars(self.distinct).update(of_steps, layout=layout, data=data)
        self.room, self.counted = threading.local(), np.zeros(3, int)  # numbers of recursions, gradients and calls

    def __call__(
        self,
        like: PyTree,
        theta: Points,
        weights: Float[np.ndarray, "refits steps"],
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        gradients: bool,
    ) -> list[Look]:
        count, K = len(theta), self.distinct.num_states
        self.counted += count, count * gradients, 1
        size = 1 if count == 1 else PASSES_TOGETHER  # for which programs are compiled
        theta = theta[np.minimum(np.arange(size), count - 1)]
        given = jax.tree.map(np.asarray, _potentials(self.distinct, like, theta))
        seen, moves, first = np.zeros((size, len(given.top[0]), K)), np.zeros((size, K, K)), np.zeros((size, K))
        values, losses, known = np.empty(count), np.zeros(index.shape), (self.code, *self._room())
        for k in range(count):
            table, top, initial, transition, prior = (part[k] for part in given)
            of = self.starts, self.code, self.seen * weights[k]
            values[k] = -self.loops.recursions(initial, transition, *of, table, top, *known[1:]) - prior
            self.loops.losses(*known, table, top, index[k], held[k], losses[k])
            if gradients:
                self.loops.counts(transition, *of, *known[1:], seen[k], moves[k], first[k])
        slopes = np.asarray(_gradients(self.distinct, like, theta, seen, moves, first)) if gradients else [None] * count
        return [Look(*parts) for parts in zip(values, slopes, losses, strict=False)]

    def _room(self) -> Float[np.ndarray, "2 steps states"]:
        """Return memory for both recursions, once for each thread, as new memory takes half as long as a recursion."""
        if not hasattr(self.room, "both"):
            self.room.both = np.empty((2, self.length, self.distinct.num_states))
        return self.room.both


@cached_on
def chain_passes(hmm: AbstractHiddenChain) -> ChainPasses:
    """Return the passes over a chain."""
    return ChainPasses(hmm)
