"""Hidden Markov fields: F and its parts, what a fitted one says of its own data, and expectation–maximisation of it.

    E   q = p(z | x; θ) by passes
    M   argmax_θ Σ_s Σ_k q_s(k) log e_s(k; θ) + Σ_{(s,t)} β_st q(z_s = z_t) − fields · log Z(β) + log p(θ)

The maximum is found by BFGS: no sum over configurations enters it but that of Z(β), where β is learned.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float, Int, PyTree, Scalar
from numpy.typing import ArrayLike

from .._objective import ravel, unravel
from ..inference import clique
from ..inference.clique import log_partition, marginals, pair_marginals
from ..inference.passes import Passes
from ._hidden import UNUSED, AbstractHiddenStates, times
from ._observations import FieldLabels

AGREED = 0.1  # expected edges whose ends differ, below which the field is of one state
SAME = 1e-4  # relative difference of the parameters of two states below which they are one
PRECISE = {"gtol": 1e-7}  # in the steps of expectation–maximisation


class AbstractHiddenField(AbstractHiddenStates):
    """An objective whose hidden states form fields over one graph: `F(θ, w)` as in `mrf`, from the densities of an emission."""

    latent: ClassVar[tuple[str, ...]] = ("coupling",)

    edges: Int[np.ndarray, "edges 2"]
    coupling: Float[np.ndarray, "..."]  # held fixed, or the start
    coupling_prior: Float[np.ndarray, "2"] | None  # mean and standard deviation
    normaliser: Float[np.ndarray, ""] | None  # log Z(β) of one field, where β is fixed
    tree: Passes
    learned: bool  # the coupling
    flat: bool  # no prior
    labels: FieldLabels

    @property
    def num_units(self) -> int:
        return len(self.x) if self.drop == "field" else self.dense.size

    def pairs(self, coupling: Array | np.ndarray) -> Float[Array, "edges states states"]:
        """Log-potentials of the edges."""
        return jnp.broadcast_to(coupling, (len(self.edges),))[:, None, None] * jnp.eye(self.num_states)

    def coupled(self, theta: PyTree) -> Float[Array, "edges states states"]:
        return self.pairs(theta["coupling"] if self.learned else self.coupling)

    def densities(self, theta: PyTree, data: PyTree = None) -> Float[Array, "fields sites states"]:
        data = self.data if data is None else data
        return self.emission.log_densities(self.emitted(theta), data).reshape(-1, self.x.shape[1], self.num_states)

    def seen(self, weights: Array | np.ndarray, densities: Array) -> Float[Array, "fields sites states"]:
        """Weighted emissions; none where the observation is missing."""
        return times(jnp.where(self.dense, weights.reshape(self.dense.shape), 0.0)[..., None], densities)

    def log_prior_partition(self, pairs: Array) -> Array:
        """`log Z` of fields without observations."""
        return log_partition(jnp.zeros((self.x.shape[1], self.num_states)), pairs, self.tree)

    def log_normaliser(self, pairs: Array) -> Scalar:
        return jnp.asarray(self.normaliser) if self.normaliser is not None else self.log_prior_partition(pairs)

    def loss(self, theta, weights):
        weights, pairs, densities = jnp.asarray(weights), self.coupled(theta), self.densities(theta)
        if self.drop == "field":
            return weights @ self.losses(theta, densities, jnp.asarray(self.dense)) - self.log_prior(theta)
        if self.drop == "observation":
            total = log_partition(self.seen(weights, densities), pairs, self.tree)
            return len(self.x) * self.log_normaliser(pairs) - jnp.sum(total) - self.log_prior(theta)
        by_site = weights.reshape(self.dense.shape)
        pairs = (by_site[:, self.edges[:, 0]] * by_site[:, self.edges[:, 1]])[..., None, None] * pairs
        total = log_partition(self.seen(weights, densities), pairs, self.tree)
        return jnp.sum(self.log_prior_partition(pairs) - total) - self.log_prior(theta)

    def losses(self, theta: PyTree, densities: Array, dense: Array) -> Float[Array, " fields"]:
        """`−log p(x_n; θ)` of fields."""
        pairs = self.coupled(theta)
        seen = times(jnp.where(dense, 1.0, 0.0)[..., None], densities)
        return self.log_normaliser(pairs) - log_partition(seen, pairs, self.tree)

    def log_prior(self, theta: PyTree) -> Scalar:
        if self.flat:
            return jnp.zeros(())
        total = self.emission.log_prior(self.emitted(theta))
        if self.coupling_prior is not None:
            mean, sd = self.coupling_prior
            total = total - 0.5 * jnp.sum(((theta["coupling"] - mean) / sd) ** 2)
        return total


@eqx.filter_jit
def prior_partition(field: AbstractHiddenField, theta: PyTree) -> Scalar:
    return field.log_normaliser(field.coupled(theta))


@eqx.filter_jit
def losses(field: AbstractHiddenField, theta: PyTree) -> Float[Array, " fields"]:
    return field.losses(theta, field.densities(theta), jnp.asarray(field.dense))


@eqx.filter_jit
def smoothed(field: AbstractHiddenField, theta: PyTree, weights: Array | np.ndarray) -> Float[Array, "fields sites states"]:
    sites = jnp.repeat(weights, field.x.shape[1]) if field.drop == "field" else weights
    return marginals(field.seen(sites, field.densities(theta)), field.coupled(theta), field.tree)


@eqx.filter_jit
def expected(field: AbstractHiddenField, theta: PyTree) -> tuple[Float[Array, "fields sites states"], Float[Array, " edges"]]:
    """State probabilities, and the expected number of fields in which the ends of an edge agree."""
    seen = field.seen(jnp.ones(field.dense.size), field.densities(theta))
    states, pairs = pair_marginals(seen, field.coupled(theta), field.tree)
    return states, jnp.trace(pairs, axis1=-2, axis2=-1).sum(0)


@eqx.filter_jit
def _potentials(field: AbstractHiddenField, theta: PyTree) -> tuple[Array, Array]:
    seen = field.seen(jnp.ones(field.dense.size), field.densities(theta))
    return seen, field.coupled(theta)


def decoded(field: AbstractHiddenField, theta: PyTree) -> Int[np.ndarray, "fields sites"]:
    """The best configuration of each field."""
    seen, edges = (np.asarray(part) for part in _potentials(field, theta))
    return np.array([clique.best(sites, edges, field.tree) for sites in seen])


def draw(
    field: AbstractHiddenField, theta: PyTree, num_fields: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "fields sites ..."], Int[np.ndarray, "fields sites"]]:
    """States from the roots down, and an observation at each site."""
    edges = np.asarray(_potentials(field, theta)[1])
    z = clique.draw(np.zeros((field.x.shape[1], field.num_states)), edges, field.tree, num_fields, rng)
    own = jax.tree.map(np.asarray, field.emitted(theta))
    past = np.zeros((0, field.x.shape[2]))
    x = np.array([[field.emission.draw(own, k, s, past, rng) for s, k in enumerate(row)] for row in z])
    return (x[..., 0] if field.x.shape[2] == 1 else x), z


def _alike(field: AbstractHiddenField, found: dict[str, np.ndarray], j: int, k: int) -> bool:
    """Have two states the same parameters?"""
    own = [found[name] for name in field.emission.free if name not in field.emission.shared]
    return bool(own) and all(np.allclose(value[j], value[k], rtol=SAME, atol=SAME * np.abs(value).max()) for value in own)


def warning(field: AbstractHiddenField, theta: PyTree) -> str:
    """States that explain nothing, and parameters on a boundary."""
    found = jax.tree.map(np.asarray, field.parameters.natural(theta))
    everything, agree = (np.asarray(part) for part in expected(field, theta))
    visits = (everything * field.dense[..., None]).sum((0, 1))
    empty, sentences = np.flatnonzero(visits < UNUSED), []
    disagree = len(field.x) * len(field.edges) - agree.sum()
    if field.num_states > 1 and (len(empty) == field.num_states - 1 or (len(agree) and disagree < AGREED)):
        sentences.append(
            f"One state takes all {field.dense.sum()} observed sites (expected {np.sort(visits)[-2]:.2g} in the next, and "
            f"{disagree:.2g} edges whose ends differ): the coupling is so strong, or the observations so alike, that the fit "
            "is on the boundary. Take a weaker coupling, or fewer states."
        )
    else:
        sentences += [
            f"State {k} explains nothing (expected {visits[k]:.2g} of {field.dense.sum()} sites): take fewer states, or a "
            "weaker coupling."
            for k in empty
        ]
    twins = [(j, k) for k in range(field.num_states) for j in range(k) if _alike(field, found, j, k)]
    if twins and len(sentences) == 0:
        sentences.append(
            f"States {twins[0][0]} and {twins[0][1]} are the same: the observations tell no more than "
            f"{field.num_states - len({k for _, k in twins})} states apart; take fewer states."
        )
    spread = np.nanvar(field.x, axis=(0, 1))
    own = {name: found[name] for name in field.emission.free}
    return " ".join(filter(None, (*sentences, field.on_boundary(own, spread, {}))))


def climb(
    field: AbstractHiddenField, parameters: dict[str, ArrayLike], num_steps: int, tol: float = 0.0
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Natural parameters after the steps, and F before each of them and at the end."""
    theta = field.parameters.unconstrained(parameters)
    values = []
    for step in range(num_steps + 1):
        values.append(float(_loss(field, theta)))
        if step == num_steps or (step and values[-2] - values[-1] < tol):
            break
        states, agreement = expected(field, theta)
        states = states * field.dense[..., None]
        start = np.asarray(ravel(theta))
        found = scipy.optimize.minimize(_maximand, start, (field, theta, states, agreement), "BFGS", True, options=PRECISE)
        theta = jax.tree.map(np.asarray, unravel(jnp.asarray(found.x), theta))
    return jax.tree.map(np.asarray, field.parameters.natural(theta)), values


@eqx.filter_jit
def _loss(field: AbstractHiddenField, theta: PyTree) -> Scalar:
    return field.loss(theta, jnp.ones(field.num_units))


def _maximand(
    vector: np.ndarray, field: AbstractHiddenField, like: PyTree, states: Array, agreement: Array
) -> list[np.ndarray]:
    return [np.asarray(part) for part in _minus_expected(field, unravel(jnp.asarray(vector), like), states, agreement)]


@eqx.filter_jit
def _minus_expected(field: AbstractHiddenField, theta: PyTree, states: Array, agreement: Array) -> tuple[Scalar, Array]:
    def value(theta):
        total = jnp.sum(states * jnp.where(states > 0, field.densities(theta), 0.0)) + field.log_prior(theta)
        if field.learned:
            pairs = field.coupled(theta)
            total = total + agreement @ pairs[:, 0, 0] - len(field.x) * field.log_prior_partition(pairs)
        return -total

    result, gradient = jax.value_and_grad(value)(theta)
    return result, ravel(gradient)
