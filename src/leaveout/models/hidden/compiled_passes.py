"""F of a chain whose observations are left out, and its held-out losses, by compiled loops over its
steps.

JAX computes the likelihoods of the distinct observations, the loops of `inference.compiled` the
expected counts, and JAX from these the gradient, which is that of the complete data's expected
log-likelihood (Fisher's identity).
"""

import copy
import threading
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._runtime.jax import Arrays, PyTree, cached_on, compile_static
from ...inference.chain import Layout
from ...inference.compiled import Loops, loops
from ...objectives.batch_functions import Look
from ...objectives.objective import Points, aligned_copy, unravel
from ...plans.plan import PADDED_FROM
from .hidden_chain import AbstractHiddenChain

SAMPLE = 2**10  # steps that tell whether observations repeat
RARE = 1e-30  # least probability with which four steps without a normaliser cannot underflow


def available(hmm: AbstractHiddenChain) -> bool:
    """Tell whether the loops are quicker.

    Numba is installed, the chain is long, and its arrays are not on a device.
    """
    return (
        hmm.num_steps > PADDED_FROM
        and jax.default_backend() == "cpu"
        and loops(hmm.num_states) is not None
    )


class LaidRefits(NamedTuple):
    """A few refits laid out by steps, for passes over a chain."""

    weight: Float[np.ndarray, "steps lanes"]
    tempered: bool  # whether a weight is neither zero nor one
    held: Bool[np.ndarray, "refits width"]
    steps: Int[np.ndarray, " scored"]  # places of the scored steps in arrays of steps and lanes
    rows: Int[np.ndarray, " scored"]  # places of their observations in arrays of rows and lanes


class _Potentials(NamedTuple):
    """Likelihoods of the distinct observations, each by the largest of its row, the logarithm of
    that, and the rest of F.
    """

    table: Float[Arrays, "rows states refits"]
    top: Float[Arrays, "rows refits"]
    initial: Float[Arrays, "states refits"]
    transition: Float[Arrays, "states states refits"]
    log_prior: Float[Arrays, " refits"]


@compile_static
def _potentials(hmm: AbstractHiddenChain, like: PyTree, thetas: Arrays) -> _Potentials:
    """Compute the potentials at each θ. An observation whose density is not a number is
    impossible.
    """

    def potentials_at(theta):
        parameters = unravel(theta, like)
        densities = hmm.log_densities(parameters)[:, 0]
        densities = jnp.where(jnp.isnan(densities).any(1, keepdims=True), -jnp.inf, densities)
        top = densities.max(1)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        initial, transition = hmm.states.logs(parameters)
        return _Potentials(
            jnp.exp(densities - top[:, None]),
            top,
            jnp.exp(initial),
            jnp.exp(transition),
            hmm.log_prior(parameters),
        )

    return jax.vmap(potentials_at, out_axes=-1)(thetas)


@compile_static
def _gradients(
    hmm: AbstractHiddenChain,
    like: PyTree,
    thetas: Arrays,
    seen: Arrays,
    moves: Arrays,
    first: Arrays,
) -> Float[Array, "refits params"]:
    """Compute ∇F at each θ from the expected counts."""

    def expected(theta, seen, moves, first):
        parameters = unravel(theta, like)
        densities = jnp.where(seen > 0, seen * hmm.log_densities(parameters)[:, 0], 0.0)
        initial, transition = hmm.states.logs(parameters)
        return (
            -jnp.sum(densities)
            - jnp.sum(first * initial)
            - jnp.sum(moves * transition)
            - hmm.log_prior(parameters)
        )

    return jax.vmap(jax.grad(expected), (0, -1, -1, -1))(thetas, seen, moves, first)


class ChainPasses:
    """Passes over a chain, by its steps: the row of the distinct observations of each."""

    def __init__(self, hmm: AbstractHiddenChain):
        parts = jax.tree.map(lambda leaf: np.asarray(leaf)[hmm.layout.inverse], hmm.data)
        rows = np.concatenate(
            [leaf.reshape(hmm.num_steps, -1) for leaf in jax.tree.leaves(parts)], axis=1
        )
        self.code = np.arange(len(rows))
        distinct_steps = np.arange(len(rows))
        if len(np.unique(rows[:SAMPLE], axis=0)) < min(SAMPLE, len(rows)) // 2 + 1:
            _, distinct_steps, self.code = np.unique(
                rows, axis=0, return_index=True, return_inverse=True
            )
        self.code = self.code.reshape(-1).astype(np.int32)
        self.starts = np.asarray(hmm.position) == 0
        self.dense = np.asarray(hmm.dense)
        self.length = hmm.num_steps
        self.loops = cast(Loops, loops(hmm.num_states))
        # refits that one call takes together
        self.together = self.loops.lanes
        self.distinct = copy.copy(hmm)
        place = np.arange(len(distinct_steps), dtype=np.int32)
        layout = Layout(place[:, None], place[:, None] < 0, place[:0], False, False)
        of_steps = dict.fromkeys(("x", "dense", "sequence", "position", "lengths"))
        data = jax.tree.map(lambda leaf: aligned_copy(leaf[distinct_steps]), parts)
        vars(self.distinct).update(of_steps, layout=layout, data=data)
        # numbers of recursions, gradients and calls
        self.room = threading.local()
        self.counted = np.zeros(3, int)

    def laid(self, index: np.ndarray, weight: np.ndarray, held: np.ndarray) -> LaidRefits:
        """Lay the weights of a few refits out by steps, and find the steps whose losses are asked
        for.
        """
        weights = np.ones((self.length, self.together))
        lane = np.arange(len(index))[:, None]
        real = index < self.length
        lanes = np.broadcast_to(lane, index.shape)
        weights[index[real], lanes[real]] = weight[real]
        if not self.dense.all():
            weights[~self.dense] = 0.0
        steps = index[held] * self.together
        code = self.code[index[held]] * self.together
        return LaidRefits(
            weights,
            bool(((weight != 0) & (weight != 1)).any()),
            held,
            steps + lanes[held],
            code + lanes[held],
        )

    def __call__(
        self, like: PyTree, theta: Points, refits: LaidRefits, gradients: bool
    ) -> list[Look]:
        count = len(theta)
        lanes = self.together
        loops = self.loops
        self.counted += count, count * gradients, 1
        # for which programs are compiled
        size = next(size for size in (1, lanes // 2, lanes) if size >= count)
        theta = theta[np.minimum(np.arange(size), count - 1)]
        fill = np.arange(lanes) % size
        potentials = jax.tree.map(np.asarray, _potentials(self.distinct, like, theta))
        table, top, initial, transition = (np.take(part, fill, axis=-1) for part in potentials[:4])
        plain = table
        logs = top
        code = self.code
        weight = refits.weight
        (states, mixed) = self._room(table.shape[1])
        if refits.tempered:  # rows for every step, with their weights
            plain = table[code]
            logs = weight * top[code]
            code = np.arange(self.length, dtype=np.int32)
            table = np.where(weight[:, None] == 0, 1.0, plain ** weight[:, None])
            weight = np.ones_like(weight)
        # a step multiplies probabilities by no less than the least transition
        # the steps that are normalised
        mask = 3 if min(initial.min(), transition.min()) > RARE else 0
        log_z, seen, moves, first = (
            np.zeros(size) for size in (lanes, table.shape, transition.shape, initial.shape)
        )
        shared_arguments = (
            transition.reshape(-1),
            self.starts,
            code,
            weight.reshape(-1),
            table.reshape(-1),
        )
        loops.forward(initial.reshape(-1), *shared_arguments, logs.reshape(-1), mask, states, log_z)
        loops.backward(
            *shared_arguments,
            plain.reshape(-1),
            mask,
            states,
            mixed,
            *(part.reshape(-1) for part in (seen, moves, first)),
        )
        losses = np.zeros(refits.held.shape)
        losses[refits.held] = -np.log(mixed[refits.steps]) - top.reshape(-1)[refits.rows]
        slopes: Any = [None] * count
        if gradients:
            if refits.tempered:
                by_step = seen * refits.weight[:, None]
                seen = np.zeros((*potentials.table.shape[:2], lanes))
                np.add.at(seen, self.code, by_step)
            slopes = np.asarray(
                _gradients(
                    self.distinct, like, theta, *(part[..., :size] for part in (seen, moves, first))
                )
            )
        return [
            Look(*parts)
            for parts in zip(
                -log_z[:count] - potentials.log_prior[:count], slopes, losses, strict=False
            )
        ]

    def _room(
        self, num_states: int
    ) -> tuple[Float[np.ndarray, " filtered"], Float[np.ndarray, " mixed"]]:
        """Return memory of the passes, once for each thread, as new memory takes half as long as a
        recursion.
        """
        if not hasattr(self.room, "both"):
            size = self.length * self.together
            self.room.both = np.empty(size * num_states), np.empty(size)
        return self.room.both


@cached_on
def chain_passes(hmm: AbstractHiddenChain) -> ChainPasses:
    """Return the passes over a chain."""
    return ChainPasses(hmm)
