"""The Hessian of a hidden Markov model of many parameters: the complete data's, less what the hidden states take away.

With s = Σ_t ∇ log e_t(z_t) the score were the path z known (Louis 1982),

    −∇² log p(x) = −E[Σ_t ∇² log e_t(z_t)] − Cov(s),      both over paths given everything seen.

A state's emission has parameters of its own, so that the first part is a block for each state, differentiated in all states
at once; the second is a recursion over the steps whose products are of large matrices. Rows of other parameters, of the
states' distribution and of what the states share, are few: they are derivatives of the gradient, one after the other.

The first part alone needs no recursion, only a gradient of the emissions for each of a state's own parameters, or what an
emission knows in closed form, and is positive definite where log e_t is concave. The step that it asks for is about one of
expectation–maximisation, so that descent in coordinates in which it is the identity is short, even from afar.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._objective import Blocks, ravel, unravel
from ..inference.chain import Posterior, Potentials, posterior
from ..inference.moments import spread_of_sums
from ._hidden import times
from ._hidden_chain import AbstractHiddenChain

MANY = 500  # parameters of emissions from which this is quicker than a derivative of the gradient for each
NUMBERS = 2**27  # in what is held: scores of all steps, blocks of all states


class Places(NamedTuple):
    """Where parameters stand in the raveled θ: each state's own, those that states share, those of the states' distribution."""

    own: Int[np.ndarray, "states own"]
    shared: Int[np.ndarray, " shared"]
    chain: Int[np.ndarray, " chain"]


def places(hmm: AbstractHiddenChain, theta: PyTree) -> Places:
    own, shared, chain, first = [np.zeros((hmm.num_states, 0), int)], [np.zeros(0, int)], [np.zeros(0, int)], 0
    for name in sorted(theta):
        here = first + np.arange(np.size(theta[name]))
        if name not in hmm.emission.free:
            chain.append(here)
        elif name in hmm.emission.shared:
            shared.append(here)
        else:
            own.append(here.reshape(hmm.num_states, -1))
        first += len(here)
    return Places(np.concatenate(own, 1), np.concatenate(shared), np.concatenate(chain))


def fits(hmm: AbstractHiddenChain, theta: PyTree) -> bool:
    """Can the scores of all steps be held?"""
    return not hmm.layout.linked and places(hmm, theta).own.size * hmm.layout.place.size <= NUMBERS


def apart(hmm: AbstractHiddenChain, theta: PyTree) -> bool:
    """Have states many parameters of their own, and do their blocks fit?

    The natural parameters of a state must depend on that state's part of θ only: an emission of one's own may order them.
    """
    where = places(hmm, theta)
    if hmm.drop == "step" or where.own.size < MANY or where.own.shape[1] * sum(map(np.size, where)) > NUMBERS:
        return False
    for name, constraint in hmm.emission.free.items():
        if name not in hmm.emission.shared:
            before = np.asarray(constraint.natural(jnp.asarray(theta[name])))
            for k in range(hmm.num_states):
                moved = np.array(theta[name], float)
                moved[k] += 0.1
                after = np.asarray(constraint.natural(jnp.asarray(moved)))
                if np.delete(before != after, k, 0).any():
                    return False
    return True


class _Known(NamedTuple):
    """What is known of the path, steps in the order of the layout."""

    potentials: Potentials
    posterior: Posterior
    seen: Float[Array, " steps"]  # the weight of each observation
    worth: Float[Array, " steps"]  # that of its sequence
    expected: Float[Array, "steps states"]  # observations of each state


def _known(hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Array, " units"]) -> _Known:
    """`hmm` drops observations or sequences."""
    everyone, laid = jnp.ones(len(hmm.dense)), lambda of_steps: hmm.layout.arrange(of_steps).reshape(-1)
    sequences = hmm.drop == "sequence"
    seen = laid(hmm.seen(everyone if sequences else weights))
    worth = laid(jnp.asarray(weights)[hmm.sequence] if sequences else everyone)
    whole, _ = hmm.whole(theta, everyone if sequences else weights)
    found = posterior(whole, hmm.layout, worth.reshape(hmm.layout.shape))
    return _Known(whole, found, seen, worth, (worth * seen)[:, None] * found.states.reshape(len(worth), -1))


@eqx.filter_jit
def complete(hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Array, " units"]) -> tuple[Blocks, Blocks, Blocks]:
    """−∇² of the complete data's expected log-density and of the prior: a block for each state, one for what states share,
    and one for their distribution."""
    vector, where = ravel(theta), places(hmm, theta)
    known = _known(hmm, theta, weights)
    prior = jax.grad(lambda v: -hmm.log_prior(unravel(v, theta)))
    slope = _slope(hmm, theta, known)

    def moved(v):
        counts = zip((known.posterior.initial, known.posterior.transition), hmm.states.logs(unravel(v, theta)), strict=True)
        return -sum(jnp.sum(times(count, log)) for count, log in counts)

    blocks = lambda gradient, entries: _blocks(hmm, gradient, vector, entries)
    own, shared, chain = where.own, where.shared[None], where.chain[None]
    return (
        Blocks(jnp.asarray(own), _bend(hmm, theta, known) + blocks(prior, own)),
        Blocks(jnp.asarray(shared), blocks(lambda v: prior(v) - slope(v), shared)),
        Blocks(jnp.asarray(chain), blocks(lambda v: prior(v) + jax.grad(moved)(v), chain)),
    )


def _slope(hmm: AbstractHiddenChain, theta: PyTree, known: _Known) -> Callable[[Array], Array]:
    """The gradient of the emissions' expected log-density, a function of the raveled θ."""

    def expected(v):
        densities = hmm.log_densities(unravel(v, theta)).reshape(known.expected.shape)
        return jnp.sum(jnp.where(known.expected > 0, known.expected * densities, 0.0))

    return jax.grad(expected)


def _bend(hmm: AbstractHiddenChain, theta: PyTree, known: _Known) -> Float[Array, "states own own"]:
    """Minus the derivative of `_slope`, by the own parameters of each state."""
    closed, own = hmm.emission.curvature(hmm.emitted(theta), hmm.data, known.expected), places(hmm, theta).own
    if closed is not None:
        return closed
    return -_blocks(hmm, _slope(hmm, theta, known), ravel(theta), own)


def _blocks(
    hmm: AbstractHiddenChain, gradient: Callable[[Array], Array], vector: Array, entries: Int[np.ndarray, "blocks own"]
) -> Array:
    """A gradient's derivatives at `vector` by the entries of each block: of all blocks at once, since they do not meet."""
    return jnp.moveaxis(hmm.along(gradient, vector, entries.T)[:, jnp.asarray(entries)], 0, 1)


def hessian(hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Array, " units"]) -> Float[Array, "params params"]:
    """∇²F(θ, w); `hmm` drops observations or sequences."""
    vector, (own, shared, chain) = ravel(theta), places(hmm, theta)
    rest = np.concatenate([shared, chain])
    K, layout = hmm.num_states, hmm.layout
    known = _known(hmm, theta, weights)
    densities = lambda v: hmm.log_densities(unravel(v, theta)).reshape(-1, K)

    def scores(i):
        """By the i-th parameter of each state."""
        tangent = jnp.zeros_like(vector).at[jnp.asarray(own)[:, i]].set(1.0)
        slope = known.seen[:, None] * jax.jvp(densities, (vector,), (tangent,))[1]
        return jnp.where(known.seen[:, None] > 0, slope, 0.0).T

    slopes = jax.lax.map(scores, jnp.arange(own.shape[1]))
    spread = spread_of_sums(
        known.posterior,
        known.potentials.transition,
        layout,
        jnp.moveaxis(slopes, 0, 1),
        known.worth.reshape(layout.shape),
        len(hmm.lengths),
    )
    states = jnp.arange(K)
    block = -spread.at[states, :, states, :].add(-_bend(hmm, theta, known))
    out = -hmm.along(jax.grad(lambda v: hmm.log_prior(unravel(v, theta))), vector, np.arange(len(vector)))
    widths = np.flatnonzero(np.diff(own[0]) != 1) + 1  # a block of consecutive parameters of a state is one name's
    names = np.split(np.arange(own.shape[1]), widths)
    for a in names:
        for b in names:
            at = own[0, a[0]], own[0, b[0]]
            piece = block[:, a[0] : a[-1] + 1, :, b[0] : b[-1] + 1].reshape(K * len(a), K * len(b))
            old = jax.lax.dynamic_slice(out, at, piece.shape)
            out = jax.lax.dynamic_update_slice(out, old + piece, at)
    if len(rest):
        rows = hmm.along(jax.grad(lambda v: hmm.loss(unravel(v, theta), weights)), vector, rest)
        out = out.at[rest].set(rows).at[:, rest].set(rows.T)
    return out
