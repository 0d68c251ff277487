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

    state_places: Int[np.ndarray, "states own"]
    shared_places: Int[np.ndarray, " shared"]
    chain: Int[np.ndarray, " chain"]


def places(hmm: AbstractHiddenChain, theta: PyTree) -> ParameterPlaces:
    """Find the places of the parameters in θ.

    An emission shares all its parameters unless the chain has `separate_states`.
    """
    state_places = [np.zeros((hmm.num_states, 0), int)]
    shared = [np.zeros(0, int)]
    chain = [np.zeros(0, int)]
    first = 0
    for name in sorted(theta):
        block = first + np.arange(np.size(theta[name]))
        if name not in hmm.emission.free:
            chain.append(block)
        elif name in hmm.emission.shared or not hmm.separate_states:
            shared.append(block)
        else:
            state_places.append(block.reshape(hmm.num_states, -1))
        first += len(block)
    return ParameterPlaces(
        np.concatenate(state_places, 1), np.concatenate(shared), np.concatenate(chain)
    )


def fits(hmm: AbstractHiddenChain, theta: PyTree) -> bool:
    """Tell whether the scores of all steps fit into memory, and weights act on observations or
    sequences, not on steps.
    """
    where = places(hmm, theta)
    scores = (
        where.state_places.size + hmm.num_states * where.shared_places.size
    ) * hmm.layout.place.size
    return hmm.drop != "step" and scores <= INFORMATION_ENTRIES


def stands_in(hmm: AbstractHiddenChain, theta: PyTree) -> bool:
    """Tell whether the matrix that replaces the Hessian fits into memory."""
    where = places(hmm, theta)
    return (
        hmm.drop != "step"
        and where.state_places.shape[1] * sum(map(np.size, where)) <= INFORMATION_ENTRIES
    )


def separate_states(emission: AbstractEmission, theta: PyTree) -> bool:
    """Tell whether natural parameters of each state depend on its own part of θ only. A user's
    emission may order states.
    """
    for name, constraint in emission.free.items():
        if name not in emission.shared:
            before = np.asarray(constraint.natural(np.asarray(theta[name], float)))
            for k in range(len(before)):
                perturbed = np.array(theta[name], float)
                perturbed[k] += 0.1
                after = np.asarray(constraint.natural(perturbed))
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
    everyone = jnp.ones(hmm.num_steps)
    laid = lambda of_steps: hmm.layout.arrange(of_steps).reshape(-1)
    if hmm.drop == "sequence":
        worth = laid(jnp.asarray(weights)[hmm.sequence])
        weights = everyone
    else:
        worth = laid(everyone)
    seen = laid(hmm.observation_weights(weights))
    potentials, _ = hmm.weighted_chain(theta, weights)
    path_posterior = posterior(potentials, hmm.layout, worth.reshape(hmm.layout.shape))
    return _Evidence(
        potentials,
        path_posterior,
        seen,
        worth,
        (worth * seen)[:, None] * path_posterior.states.reshape(len(worth), -1),
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
    state_places, shared, chain = places(hmm, theta)
    evidence = _evidence(hmm, theta, weights)
    plain, slope = _prior_and_path(hmm, theta, evidence), _slope(hmm, theta, evidence)
    closed = None if shared.size else _closed(hmm, theta, evidence)
    gradient = (
        plain
        if closed is not None or not (state_places.size or shared.size)
        else lambda v: plain(v) - slope(v)
    )
    common = np.repeat(np.concatenate([shared, chain])[:, None], hmm.num_states, 1)
    # in the parameters of all states at once
    rows = hmm.along(gradient, vector, np.concatenate([state_places.T, common]))
    first = state_places.shape[1]
    last = state_places.shape[1] + shared.size
    curvature = jnp.moveaxis(rows[:first, state_places], 0, 1)
    return (
        DiagonalBlocks(
            jnp.asarray(state_places), curvature if closed is None else curvature + closed
        ),
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
        parameters = unravel(v, theta)
        counts = evidence.posterior.initial, evidence.posterior.transition
        parts = zip(counts, hmm.states.logs(parameters), strict=True)
        return -hmm.log_prior(parameters) - sum(jnp.sum(times(count, log)) for count, log in parts)

    return jax.grad(expected)


def _closed(
    hmm: AbstractHiddenChain, theta: PyTree, evidence: _Evidence
) -> Float[Array, "states own own"] | None:
    """Compute minus the derivative of `_slope` in the own parameters of each state, if the emission
    has a closed form.
    """
    if not places(hmm, theta).state_places.size:
        return None
    return hmm.emission.curvature(
        hmm.emission_parameters(theta), hmm.data, evidence.expected_observations
    )


def hessian(
    hmm: AbstractHiddenChain, theta: PyTree, weights: Float[Arrays, " units"]
) -> Float[Array, "params params"]:
    """Compute ∇²F(θ, w) for an `hmm` that drops observations or sequences."""
    vector = ravel(theta)
    state_places, shared, _ = places(hmm, theta)
    evidence = _evidence(hmm, theta, weights)
    out = hmm.along(_prior_and_path(hmm, theta, evidence), vector, np.arange(len(vector)))
    slope = _slope(hmm, theta, evidence)
    curvature = _closed(hmm, theta, evidence)
    if curvature is None:
        curvature = -jnp.moveaxis(hmm.along(slope, vector, state_places.T)[:, state_places], 0, 1)
    out = out.at[state_places[:, :, None], state_places[:, None]].add(curvature)
    if shared.size:
        rows = -hmm.along(slope, vector, shared)
        out = (
            out.at[shared]
            .add(rows)
            .at[state_places.reshape(-1)[:, None], shared]
            .add(rows[:, state_places.reshape(-1)].T)
        )
    return out - _lost_information(hmm, theta, evidence)


def _lost_information(
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
        (all_scores(where.state_places.T), all_scores(where.shared_places)),
        evidence.worth.reshape(layout.shape),
        len(hmm.lengths),
    )
    logs = lambda v: jnp.concatenate(
        [part.reshape(-1) for part in hmm.states.logs(unravel(v, theta))]
    )
    # probabilities that are held at zero have no score
    jacobian = jnp.nan_to_num(hmm.along(logs, vector, where.chain))
    half = jnp.concatenate([jacobian @ spread[: jacobian.shape[1]], spread[jacobian.shape[1] :]])
    spread = jnp.concatenate(
        [half[:, : jacobian.shape[1]] @ jacobian.T, half[:, jacobian.shape[1] :]], 1
    )
    order = np.argsort(
        np.concatenate([where.chain, where.state_places.reshape(-1), where.shared_places])
    )
    return spread[order][:, order]
