"""The Hessian of a hidden Markov model: the complete data's Hessian minus the covariance of the
complete data's score.

With s = ∇ log π(z_1) + Σ_t ∇ log A(z_{t−1}, z_t) + Σ_t ∇ log e_t(z_t), the score for a known path z
(Louis 1982),

    −∇² log p(x) = −E[∇s] − Cov(s),      both over paths given everything seen.

The first part consists of blocks: for each state's own parameters, for those that states share, and
for the distribution of states. The second is one recursion over the steps for all parameters with
products of large matrices. It costs as much as a few gradients, while derivatives of the gradient
would cost several gradients for each parameter.

The first part alone needs no recursion, but only a gradient of the emissions for each of a state's
own parameters, or a closed form of the emission. It is positive definite if log e_t is concave. Its
Newton step is about a step of expectation–maximisation, so that descent in coordinates in which it
is the identity is short, even from far away.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._runtime.jax import Arrays, PyTree, compile_static
from ...inference.chain import Potentials, StatePosterior, posterior
from ...inference.moments import spread_of_sums
from ...objectives.objective import DiagonalBlocks, ravel, unravel
from ..emissions._base import AbstractEmission, times
from .hidden_chain import AbstractHiddenChain

# largest number of entries in scores of all steps, and in blocks of all states
INFORMATION_ENTRIES = 2**27


class ParameterPlaces(NamedTuple):
    """Places of parameters in the raveled θ.

    Each state's own, those that states share, those of the states' distribution.
    """

    own: Int[np.ndarray, "states own"]
    shared_places: Int[np.ndarray, " shared"]
    chain: Int[np.ndarray, " chain"]


def places(hmm: AbstractHiddenChain, theta: PyTree) -> ParameterPlaces:
    """Find the places of the parameters in θ. An emission whose states are not `apart` shares all
    its parameters.
    """
    own = [np.zeros((hmm.num_states, 0), int)]
    shared = [np.zeros(0, int)]
    chain = [np.zeros(0, int)]
    first = 0
    for name in sorted(theta):
        here = first + np.arange(np.size(theta[name]))
        if name not in hmm.emission.free:
            chain.append(here)
        elif name in hmm.emission.shared or not hmm.apart:
            shared.append(here)
        else:
            own.append(here.reshape(hmm.num_states, -1))
        first += len(here)
    return ParameterPlaces(np.concatenate(own, 1), np.concatenate(shared), np.concatenate(chain))


def fits(hmm: AbstractHiddenChain, theta: PyTree) -> bool:
    """Tell whether the scores of all steps fit into memory, and weights act on observations or
    sequences, not on steps.
    """
    where = places(hmm, theta)
    scores = (where.own.size + hmm.num_states * where.shared_places.size) * hmm.layout.place.size
    return hmm.drop != "step" and scores <= INFORMATION_ENTRIES


def stands_in(hmm: AbstractHiddenChain, theta: PyTree) -> bool:
    """Tell whether the matrix that replaces the Hessian fits into memory."""
    where = places(hmm, theta)
    return (
        hmm.drop != "step" and where.own.shape[1] * sum(map(np.size, where)) <= INFORMATION_ENTRIES
    )


def apart(emission: AbstractEmission, theta: PyTree) -> bool:
    """Tell whether natural parameters of each state depend on its own part of θ only. A user's
    emission may order states.
    """
    for name, constraint in emission.free.items():
        if name not in emission.shared:
            before = np.asarray(constraint.natural(np.asarray(theta[name], float)))
            for k in range(len(before)):
                moved = np.array(theta[name], float)
                moved[k] += 0.1
                after = np.asarray(constraint.natural(moved))
                if np.delete(before != after, k, 0).any():
                    return False
    return True


class _Evidence(NamedTuple):
    """StatePosterior of the path and its inputs, steps in the order of the layout."""

    potentials: Potentials
    posterior: StatePosterior
    observation_weights: Float[Array, " steps"]  # the weight of each observation
    worth: Float[Array, " steps"]  # the weight of its sequence
    expected_observations: Float[Array, "steps states"]  # expected observations of each state


def _evidence(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Arrays, " units"]
) -> _Evidence:
    """Compute the posterior for an `hmm` that drops observations or sequences."""
    everyone = jnp.ones(len(hmm.dense))
    laid = lambda of_steps: hmm.layout.arrange(of_steps).reshape(-1)
    sequences = hmm.drop == "sequence"
    seen = laid(hmm.observation_weights(everyone if sequences else weights))
    worth = laid(jnp.asarray(weights)[hmm.sequence] if sequences else everyone)
    whole, _ = hmm.whole(theta, everyone if sequences else weights)
    found = posterior(whole, hmm.layout, worth.reshape(hmm.layout.shape))
    return _Evidence(
        whole, found, seen, worth, (worth * seen)[:, None] * found.states.reshape(len(worth), -1)
    )


@compile_static
def complete(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Arrays, " units"]
) -> tuple[DiagonalBlocks, DiagonalBlocks, DiagonalBlocks]:
    """Compute −∇² of the complete data's expected log-density and of the prior.

    There is a block for each state, one for the parameters that states share, and one for the
    distribution of states.
    """
    vector = ravel(theta)
    (own, shared, chain) = places(hmm, theta)
    known = _evidence(hmm, theta, weights)
    plain, slope = _prior_and_path(hmm, theta, known), _slope(hmm, theta, known)
    closed = None if shared.size else _closed(hmm, theta, known)
    gradient = (
        plain
        if closed is not None or not (own.size or shared.size)
        else lambda v: plain(v) - slope(v)
    )
    alone = np.repeat(np.concatenate([shared, chain])[:, None], hmm.num_states, 1)
    # in the parameters of all states at once
    rows = hmm.along(gradient, vector, np.concatenate([own.T, alone]))
    first = own.shape[1]
    last = own.shape[1] + shared.size
    bend = jnp.moveaxis(rows[:first, own], 0, 1)
    return (
        DiagonalBlocks(jnp.asarray(own), bend if closed is None else bend + closed),
        DiagonalBlocks(jnp.asarray(shared[None]), rows[None, first:last, shared]),
        DiagonalBlocks(jnp.asarray(chain[None]), rows[None, last:, chain]),
    )


def _slope(
    hmm: AbstractHiddenChain, theta: PyTree, evidence: _Evidence
) -> Callable[[Array], Array]:
    """Return the gradient of the emissions' expected log-density as a function of the raveled θ."""

    def expected(v):
        densities = hmm.log_densities(unravel(v, theta)).reshape(
            evidence.expected_observations.shape
        )
        return jnp.sum(
            jnp.where(
                evidence.expected_observations > 0, evidence.expected_observations * densities, 0.0
            )
        )

    return jax.grad(expected)


def _prior_and_path(
    hmm: AbstractHiddenChain, theta: PyTree, evidence: _Evidence
) -> Callable[[Array], Array]:
    """Return the gradient of minus the log-density of the prior and the expected log-probability of
    the path.
    """

    def expected(v):
        at = unravel(v, theta)
        counts = evidence.posterior.initial, evidence.posterior.transition
        parts = zip(counts, hmm.states.logs(at), strict=True)
        return -hmm.log_prior(at) - sum(jnp.sum(times(count, log)) for count, log in parts)

    return jax.grad(expected)


def _closed(
    hmm: AbstractHiddenChain, theta: PyTree, evidence: _Evidence
) -> Float[Array, "states own own"] | None:
    """Compute minus the derivative of `_slope` in the own parameters of each state, if the emission
    has a closed form.
    """
    if not places(hmm, theta).own.size:
        return None
    return hmm.emission.curvature(
        hmm.emission_parameters(theta), hmm.data, evidence.expected_observations
    )


def hessian(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Arrays, " units"]
) -> Float[Array, "params params"]:
    """Compute ∇²F(θ, w) for an `hmm` that drops observations or sequences."""
    vector = ravel(theta)
    (own, shared, _) = places(hmm, theta)
    known = _evidence(hmm, theta, weights)
    out = hmm.along(_prior_and_path(hmm, theta, known), vector, np.arange(len(vector)))
    slope = _slope(hmm, theta, known)
    bend = _closed(hmm, theta, known)
    if bend is None:
        bend = -jnp.moveaxis(hmm.along(slope, vector, own.T)[:, own], 0, 1)
    out = out.at[own[:, :, None], own[:, None]].add(bend)
    if shared.size:
        rows = -hmm.along(slope, vector, shared)
        out = (
            out.at[shared]
            .add(rows)
            .at[own.reshape(-1)[:, None], shared]
            .add(rows[:, own.reshape(-1)].T)
        )
    return out - _hidden_away(hmm, theta, known)


def _hidden_away(
    hmm: AbstractHiddenChain, theta: PyTree, evidence: "_Evidence"
) -> Float[Array, "params params"]:
    """Compute `Cov(s)`, the information that is lost because the states are hidden."""
    vector, where, layout, K = ravel(theta), places(hmm, theta), hmm.layout, hmm.num_states
    densities = lambda v: hmm.log_densities(unravel(v, theta)).reshape(-1, K)

    def scores(entries):
        """Compute scores of all steps in a parameter, or in one parameter of each state."""
        tangent = jnp.zeros_like(vector).at[entries].set(1.0)
        slope = evidence.observation_weights[:, None] * jax.jvp(densities, (vector,), (tangent,))[1]
        return jnp.where(evidence.observation_weights[:, None] > 0, slope, 0.0)

    def all_scores(entries):
        """Scores of all steps, parameters on the last axis."""
        if not len(entries):
            return jnp.zeros((*layout.shape, K, 0))
        return jnp.moveaxis(jax.lax.map(scores, jnp.asarray(entries)), 0, -1).reshape(
            *layout.shape, K, -1
        )

    spread = spread_of_sums(
        evidence.posterior,
        evidence.potentials.transition,
        layout,
        (all_scores(where.own.T), all_scores(where.shared_places)),
        evidence.worth.reshape(layout.shape),
        len(hmm.lengths),
    )
    logs = lambda v: jnp.concatenate(
        [part.reshape(-1) for part in hmm.states.logs(unravel(v, theta))]
    )
    # probabilities that are held at zero have no score
    turn = jnp.nan_to_num(hmm.along(logs, vector, where.chain))
    half = jnp.concatenate([turn @ spread[: turn.shape[1]], spread[turn.shape[1] :]])
    spread = jnp.concatenate([half[:, : turn.shape[1]] @ turn.T, half[:, turn.shape[1] :]], 1)
    order = np.argsort(np.concatenate([where.chain, where.own.reshape(-1), where.shared_places]))
    return spread[order][:, order]
