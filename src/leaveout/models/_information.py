"""The Hessian of a hidden Markov model of many parameters: the complete data's, less what the hidden states take away.

With s = Σ_t ∇ log e_t(z_t) the score were the path z known (Louis 1982),

    −∇² log p(x) = −E[Σ_t ∇² log e_t(z_t)] − Cov(s),      both over paths given everything seen.

A state's emission has parameters of its own, so that the first part is a block for each state, differentiated in all states
at once; the second is a recursion over the steps whose products are of large matrices. Rows of other parameters, of the
states' distribution and of what the states share, are few: they are derivatives of the gradient, one after the other.

The first part alone needs no recursion, only a gradient of the emissions for each of a state's own parameters, and is positive
definite where log e_t is concave. The step that it asks for is about one of expectation–maximisation, so that descent in
coordinates in which it is the identity is short, even from afar.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._objective import Blocks, ravel, unravel
from ._hidden import times
from ._moments import spread_of_sums
from .chain import Posterior, Potentials, posterior

MANY = 500  # parameters of emissions from which this is quicker than a derivative of the gradient for each
NUMBERS = 2**27  # in what is held: scores of all steps, blocks of all states


class Places(NamedTuple):
    """Where parameters stand in the raveled θ: each state's own, those that states share, those of the states' distribution."""

    own: Int[np.ndarray, "states own"]
    shared: Int[np.ndarray, " shared"]
    chain: Int[np.ndarray, " chain"]


def places(hmm: Any, theta: PyTree) -> Places:
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


def fits(hmm: Any, theta: PyTree) -> bool:
    """Can the scores of all steps be held?"""
    return not hmm.layout.linked and places(hmm, theta).own.size * hmm.layout.place.size <= NUMBERS


def apart(hmm: Any, theta: PyTree) -> bool:
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


def _known(hmm: Any, theta: PyTree, weights: Float[Array, " units"]) -> _Known:
    """`hmm` drops observations or sequences."""
    everyone, laid = jnp.ones(len(hmm.dense)), lambda of_steps: hmm.layout.arrange(of_steps).reshape(-1)
    sequences = hmm.drop == "sequence"
    seen = laid(hmm._seen(everyone if sequences else weights))
    worth = laid(jnp.asarray(weights)[hmm.sequence] if sequences else everyone)
    whole, _ = hmm._whole(theta, everyone if sequences else weights)
    found = posterior(whole, hmm.layout, worth.reshape(hmm.layout.shape))
    return _Known(whole, found, seen, worth, (worth * seen)[:, None] * found.states.reshape(len(worth), -1))


def _expected_density(hmm: Any, theta: PyTree, expected: Float[Array, "steps states"]) -> Array:
    densities = hmm._log_densities(theta).reshape(expected.shape)
    return jnp.sum(jnp.where(expected > 0, expected * densities, 0.0))


@eqx.filter_jit
def complete(hmm: Any, theta: PyTree, weights: Float[Array, " units"]) -> tuple[Blocks, Blocks, Blocks]:
    """−∇² of the complete data's expected log-density and of the prior: a block for each state, one for what states share,
    and one for their distribution."""
    vector, where = ravel(theta), places(hmm, theta)
    known = _known(hmm, theta, weights)

    def emitted(v):
        at = unravel(v, theta)
        prior = 0.0 if hmm.states.prior is None else hmm.emission.log_prior(hmm.emitted(at))
        return -_expected_density(hmm, at, known.expected) - prior

    def moved(v):
        at = unravel(v, theta)
        counts = zip((known.posterior.initial, known.posterior.transition), hmm.states.logs(at), strict=True)
        return -sum(jnp.sum(times(count, log)) for count, log in counts) - hmm.states.log_prior(at)

    def blocks(function, entries):
        entries = jnp.asarray(entries)
        along = hmm.along(jax.grad(function), vector, entries.T)  # of all blocks at once: they do not meet
        return Blocks(entries, jnp.moveaxis(along[:, entries], 0, 1))

    return blocks(emitted, where.own), blocks(emitted, where.shared[None]), blocks(moved, where.chain[None])


def hessian(hmm: Any, theta: PyTree, weights: Float[Array, " units"]) -> Float[Array, "params params"]:
    """∇²F(θ, w); `hmm` drops observations or sequences."""
    vector, (own, shared, chain) = ravel(theta), places(hmm, theta)
    rest = np.concatenate([shared, chain])
    K, layout = hmm.num_states, hmm.layout
    known = _known(hmm, theta, weights)
    densities = lambda v: hmm._log_densities(unravel(v, theta)).reshape(-1, K)
    complete = jax.grad(lambda v: _expected_density(hmm, unravel(v, theta), known.expected))

    def along(i):
        """Scores by the i-th parameter of each state, and their derivatives by it."""
        tangent = jnp.zeros_like(vector).at[jnp.asarray(own)[:, i]].set(1.0)
        slope = jnp.where(known.seen[:, None] > 0, known.seen[:, None] * jax.jvp(densities, (vector,), (tangent,))[1], 0.0)
        return slope.T, jax.jvp(complete, (vector,), (tangent,))[1][own]

    slopes, bend = jax.lax.map(along, jnp.arange(own.shape[1]))
    spread = spread_of_sums(
        known.posterior,
        known.potentials.transition,
        layout,
        jnp.moveaxis(slopes, 0, 1),
        known.worth.reshape(layout.shape),
        len(hmm.lengths),
    )
    states = jnp.arange(K)
    block = -spread.at[states, :, states, :].add(jnp.moveaxis(bend, 0, 1))
    out = -hmm.along(jax.grad(lambda v: hmm._log_prior(unravel(v, theta))), vector, np.arange(len(vector)))
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
