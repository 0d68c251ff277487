"""The Hessian of a hidden Markov model of many parameters: the complete data's, less what the hidden states take away.

With s = Σ_t ∇ log e_t(z_t) the score were the path z known (Louis 1982),

    −∇² log p(x) = −E[Σ_t ∇² log e_t(z_t)] − Cov(s),      both over paths given everything seen.

A state's emission has parameters of its own, so that the first part is a block for each state, differentiated in all states
at once; the second is a recursion over the steps whose products are of large matrices. Rows of other parameters, of the
states' distribution and of what the states share, are few: they are derivatives of the gradient, one after the other.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._objective import ravel, unravel
from ._moments import spread_of_sums
from .chain import posterior

MANY = 500  # parameters of emissions from which this is quicker than a derivative of the gradient for each
NUMBERS = 2**27  # in the scores of all steps, which are held


def places(hmm: Any, theta: PyTree) -> tuple[Int[np.ndarray, "states own"], Int[np.ndarray, " rest"]]:
    """Where each state's own parameters stand in the raveled θ, and where the others do."""
    own, first = [], 0
    for name in sorted(theta):
        size = np.size(theta[name])
        if name in hmm.emission.free and name not in hmm.emission.shared:
            own.append(first + np.arange(size).reshape(hmm.num_states, -1))
        first += size
    mine = np.concatenate(own, 1) if own else np.zeros((hmm.num_states, 0), int)
    return mine, np.setdiff1d(np.arange(first), mine)


def suits(hmm: Any, theta: PyTree) -> bool:
    """Is it quicker, and does it fit?"""
    own = places(hmm, theta)[0].size
    if hmm.drop == "step" or hmm.layout.linked or own < MANY or own * hmm.layout.place.size > NUMBERS:
        return False
    return _apart(hmm, theta)


def _apart(hmm: Any, theta: PyTree) -> bool:
    """Do the natural parameters of a state depend on that state's part of θ only? An emission of one's own may order them."""
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


def hessian(hmm: Any, theta: PyTree, weights: Float[Array, " units"]) -> Float[Array, "params params"]:
    """∇²F(θ, w); `hmm` drops observations or sequences."""
    vector, (own, rest) = ravel(theta), places(hmm, theta)
    K, layout = hmm.num_states, hmm.layout
    everyone, laid = jnp.ones(len(hmm.dense)), lambda of_steps: hmm.layout.arrange(of_steps).reshape(-1)
    sequences = hmm.drop == "sequence"
    seen = laid(hmm._seen(everyone if sequences else weights))
    worth = laid(jnp.asarray(weights)[hmm.sequence] if sequences else everyone)
    densities = lambda v: hmm._log_densities(unravel(v, theta)).reshape(-1, K)
    whole, _ = hmm._whole(theta, everyone if sequences else weights)
    found = posterior(whole, layout)
    expected = (worth * seen)[:, None] * found.states.reshape(-1, K)
    complete = jax.grad(lambda v: jnp.sum(jnp.where(expected > 0, expected * densities(v), 0.0)))

    def along(i):
        """Scores by the i-th parameter of each state, and their derivatives by it."""
        tangent = jnp.zeros_like(vector).at[jnp.asarray(own)[:, i]].set(1.0)
        slope = jnp.where(seen[:, None] > 0, seen[:, None] * jax.jvp(densities, (vector,), (tangent,))[1], 0.0)
        return slope.T, jax.jvp(complete, (vector,), (tangent,))[1][own]

    slopes, bend = jax.lax.map(along, jnp.arange(own.shape[1]))
    spread = spread_of_sums(
        found, whole.transition, layout, jnp.moveaxis(slopes, 0, 1), worth.reshape(layout.shape), len(hmm.lengths)
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
