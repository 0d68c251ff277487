"""Hidden Markov fields: F and its parts, results of a fit for its own data, and expectation–maximisation.

    E   q = p(z | x; θ) by passes
    M   argmax_θ Σ_s Σ_k q_s(k) (log e_s(k; θ) + h_s(k)) + Σ_{(s,t)} Σ_jk q_st(j, k) φ_st(j, k) − fields · log Z + log p(θ)

BFGS finds the maximum: the only sum over configurations in it is Z, if φ or h is learned.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float, Int, Scalar
from numpy.typing import ArrayLike

from ..._runtime.jax import Arrays as Arrays, PyTree, compile_static
from ...inference import clique
from ...inference.clique import Sums, log_partition, marginals, pair_marginals
from ...objectives.objective import ravel, unravel
from . import potentials as _potentials
from .hidden import IDLE_STATE_COUNT, AbstractHiddenStates, Shape, entries
from .observations import FieldLabels

PRECISE = {"gtol": 1e-7}  # options of BFGS in expectation–maximisation


class AbstractHiddenField(AbstractHiddenStates):
    """Objective whose hidden states form fields over one graph: `F(θ, w)` as in `mrf`, from an emission's densities."""

    latent: ClassVar[tuple[str, ...]] = ("coupling", "external")

    edges: Int[np.ndarray, "edges 2"]
    coupling: Float[np.ndarray, "..."]  # held fixed, or the start
    coupling_prior: Float[np.ndarray, "2"] | None  # mean and standard deviation
    external: Float[np.ndarray, "..."] | None  # h, held fixed; or the start of γ
    design: Float[np.ndarray, "sites terms"] | None  # covariates, if γ is learned
    external_prior: Float[np.ndarray, "2"] | None
    normaliser: Float[np.ndarray, ""] | None  # log Z of one field, if the potentials are fixed
    tree: Sums
    learned: bool  # whether the coupling is learned
    directed: bool
    inference: str
    flat: bool  # whether there is no prior
    labels: FieldLabels

    @property
    def num_units(self) -> int:
        return len(self.x) if self.drop == "field" else self.dense.size

    @property
    def prior_learned(self) -> bool:
        return self.learned or self.design is not None

    @property
    def told_apart(self) -> bool:
        """Whether fixed potentials distinguish the states."""
        return (not self.learned and self.coupling.ndim > 1) or (self.external is not None and self.design is None)

    @property
    def latent_shapes(self) -> dict[str, Shape]:
        own = {"coupling": self.coupling.shape} if self.learned else {}
        return own if self.design is None or self.external is None else {**own, "external": self.external.shape}

    def latent_unconstrained(self, name: str, value: np.ndarray) -> np.ndarray:
        if name == "external" and self.design is not None:
            return _potentials.of_rows(value, _potentials.scale_of(self.design))
        return _potentials.of_matrix(value, self.directed) if value.ndim > 1 else value

    def latent_names(self, name: str) -> list[str]:
        if name == "external" and self.external is not None:
            return entries(name, _potentials.row_entries(self.external.shape))
        matrix = self.coupling.ndim > 1
        return entries(
            name, _potentials.matrix_entries(self.num_states, self.directed) if matrix else np.ones(self.coupling.shape, bool)
        )

    def coupling_of(self, theta: PyTree) -> Array | np.ndarray:
        """Return the natural coupling."""
        if not self.learned:
            return self.coupling
        own = theta["coupling"]
        return own if self.coupling.ndim < 2 else _potentials.matrix(own, self.num_states, self.directed)

    def external_of(self, theta: PyTree) -> Any:
        """Return the natural external field: h, or γ."""
        if self.design is None:
            return self.external
        return _potentials.rows(theta["external"], _potentials.scale_of(self.design))

    def outside(self, theta: PyTree) -> Array | float:
        """Return h, `[sites, states]`; zero without an external field."""
        if self.external is None:
            return 0.0
        return jnp.asarray(self.external if self.design is None else self.design @ self.external_of(theta))

    def pairs(self, coupling: Array | np.ndarray) -> Float[Array, "edges states states"]:
        """Return the log-potentials of the edges."""
        return _potentials.pairs(coupling, len(self.edges), self.num_states)

    def pair_potentials(self, theta: PyTree) -> Float[Array, "edges states states"]:
        return self.pairs(self.coupling_of(theta))

    def densities(self, theta: PyTree, data: PyTree = None) -> Float[Array, "fields sites states"]:
        data = self.data if data is None else data
        return self.emission.log_densities(self.emission_parameters(theta), data).reshape(-1, self.x.shape[1], self.num_states)

    def weighted_emissions(self, weights: Array | np.ndarray, densities: Array) -> Float[Array, "fields sites states"]:
        """Return the weighted emissions; zero for missing observations."""
        return self.emission.weigh(jnp.where(self.dense, weights.reshape(self.dense.shape), 0.0)[..., None], densities)

    def log_prior_partition(self, pairs: Array, outside: Array | float) -> Array:
        """Compute `log Z` of fields without observations."""
        return log_partition(jnp.zeros((self.x.shape[1], self.num_states)) + outside, pairs, self.tree)

    def log_normaliser(self, theta: PyTree) -> Scalar:
        if self.normaliser is not None:
            return jnp.asarray(self.normaliser)
        return self.log_prior_partition(self.pair_potentials(theta), self.outside(theta))

    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        weights, pairs, densities = jnp.asarray(weights), self.pair_potentials(theta), self.densities(theta)
        outside = self.outside(theta)
        if self.drop == "field":
            return weights @ self.losses(theta, densities, jnp.asarray(self.dense)) - self.log_prior(theta)
        if self.drop == "observation":
            total = log_partition(self.weighted_emissions(weights, densities) + outside, pairs, self.tree)
            return len(self.x) * self.log_normaliser(theta) - jnp.sum(total) - self.log_prior(theta)
        by_site = weights.reshape(self.dense.shape)
        pairs = (by_site[:, self.edges[:, 0]] * by_site[:, self.edges[:, 1]])[..., None, None] * pairs
        outside = by_site[..., None] * outside if self.external is not None else 0.0
        total = log_partition(self.weighted_emissions(weights, densities) + outside, pairs, self.tree)
        return jnp.sum(self.log_prior_partition(pairs, outside) - total) - self.log_prior(theta)

    def losses(self, theta: PyTree, densities: Array, dense: Array) -> Float[Array, " fields"]:
        """Compute `−log p(x_n; θ)` of fields."""
        seen = self.emission.weigh(jnp.where(dense, 1.0, 0.0)[..., None], densities) + self.outside(theta)
        return self.log_normaliser(theta) - log_partition(seen, self.pair_potentials(theta), self.tree)

    def log_prior(self, theta: PyTree) -> Scalar:
        if self.flat:
            return jnp.zeros(())
        total = self.emission.log_prior(self.emission_parameters(theta))
        if self.coupling_prior is not None:
            total = total + _potentials.log_normal(self.coupling_of(theta), self.coupling_prior)
        if self.external_prior is not None and self.design is not None:
            mean, sd = self.external_prior
            scaled = self.external_of(theta) * _potentials.scale_of(self.design)[:, None]
            total = total - 0.5 * jnp.sum(((scaled - mean) / sd) ** 2)
        return total


@compile_static
def prior_partition(field: AbstractHiddenField, theta: PyTree) -> Scalar:
    return field.log_normaliser(theta)


@compile_static
def losses(field: AbstractHiddenField, theta: PyTree) -> Float[Array, " fields"]:
    return field.losses(theta, field.densities(theta), jnp.asarray(field.dense))


@compile_static
def smoothed_sites(
    field: AbstractHiddenField, theta: PyTree, weights: Array | np.ndarray
) -> Float[Array, "fields sites states"]:
    sites = jnp.repeat(weights, field.x.shape[1]) if field.drop == "field" else weights
    return marginals(
        field.weighted_emissions(sites, field.densities(theta)) + field.outside(theta), field.pair_potentials(theta), field.tree
    )


@compile_static
def expected_pairs(
    field: AbstractHiddenField, theta: PyTree
) -> tuple[Float[Array, "fields sites states"], Float[Array, "edges states states"]]:
    """Compute state probabilities, and the expected number of fields with each pair of states at each edge."""
    sites, edges = _potentials_of(field, theta)
    states, pairs = pair_marginals(sites, edges, field.tree)
    return states, pairs.sum(0)


@compile_static
def _potentials_of(field: AbstractHiddenField, theta: PyTree) -> tuple[Array, Array]:
    seen = field.weighted_emissions(jnp.ones(field.dense.size), field.densities(theta))
    return seen + field.outside(theta), field.pair_potentials(theta)


def decode_field(field: AbstractHiddenField, theta: PyTree) -> Int[np.ndarray, "fields sites"]:
    """Find the best configuration of each field."""
    seen, edges = (np.asarray(part) for part in _potentials_of(field, theta))
    return np.array([clique.best(sites, edges, field.tree) for sites in seen])


def draw(
    field: AbstractHiddenField, theta: PyTree, num_fields: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "fields sites ..."], Int[np.ndarray, "fields sites"]]:
    """Draw states from the roots down, and an observation at each site."""
    outside, edges = np.asarray(field.outside(theta)), np.asarray(_potentials_of(field, theta)[1])
    z = clique.draw(np.zeros((field.x.shape[1], field.num_states)) + outside, edges, field.tree, num_fields, rng)
    own = jax.tree.map(np.asarray, field.emission_parameters(theta))
    past = np.zeros((0, field.x.shape[2]))
    x = np.array([[field.emission.draw(own, k, s, past, rng) for s, k in enumerate(row)] for row in z])
    return (x[..., 0] if field.x.shape[2] == 1 else x), z


def _alike(field: AbstractHiddenField, result: dict[str, np.ndarray], j: int, k: int) -> bool:
    """Tell whether two states have the same parameters."""
    own = [result[name] for name in field.emission.free if name not in field.emission.shared]
    same_state = 1e-4  # relative difference of the parameters of two states below which they are one
    return bool(own) and all(
        np.allclose(value[j], value[k], rtol=same_state, atol=same_state * np.abs(value).max()) for value in own
    )


def warning(field: AbstractHiddenField, theta: PyTree) -> str:
    """Describe states that explain nothing, and parameters on a boundary."""
    found = jax.tree.map(np.asarray, field.parameters.natural(theta))
    everything, pairs = (np.asarray(part) for part in expected_pairs(field, theta))
    agree = np.trace(pairs, axis1=-2, axis2=-1)
    visits = (everything * field.dense[..., None]).sum((0, 1))
    empty, sentences = np.flatnonzero(visits < IDLE_STATE_COUNT), []
    disagree = len(field.x) * len(field.edges) - agree.sum()
    one_state_disagreement = 0.1  # expected edges whose ends differ, below which the field is of one state
    if field.num_states > 1 and (len(empty) == field.num_states - 1 or (len(agree) and disagree < one_state_disagreement)):
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
    """Take steps of expectation–maximisation; return natural parameters, and F before each step and at the end."""
    theta = field.parameters.unconstrained(parameters)
    values = []
    for step in range(num_steps + 1):
        values.append(float(_loss(field, theta)))
        if step == num_steps or (step and values[-2] - values[-1] < tol):
            break
        states, pairs = expected_pairs(field, theta)
        start = np.asarray(ravel(theta))
        found = scipy.optimize.minimize(_maximand, start, (field, theta, states, pairs), "BFGS", True, options=PRECISE)
        theta = jax.tree.map(np.asarray, unravel(jnp.asarray(found.x), theta))
    return jax.tree.map(np.asarray, field.parameters.natural(theta)), values


@compile_static
def _loss(field: AbstractHiddenField, theta: PyTree) -> Scalar:
    return field.loss(theta, jnp.ones(field.num_units))


def lowest(field: AbstractHiddenField, starts: list[dict[str, ArrayLike]]) -> dict[str, ArrayLike]:
    """Choose the natural parameters with the least F."""
    if len(starts) == 1:
        return starts[0]
    return min(starts, key=lambda start: float(_loss(field, field.parameters.unconstrained(start))))


def _maximand(vector: np.ndarray, field: AbstractHiddenField, like: PyTree, states: Array, pairs: Array) -> list[np.ndarray]:
    return [np.asarray(part) for part in _minus_expected(field, unravel(jnp.asarray(vector), like), states, pairs)]


@compile_static
def _minus_expected(field: AbstractHiddenField, theta: PyTree, states: Array, pairs: Array) -> tuple[Scalar, Array]:
    def value(theta):
        seen, logs = states * field.dense[..., None], field.emission.weigh(jnp.ones(()), field.densities(theta))
        total = jnp.sum(seen * jnp.where(seen > 0, logs, 0.0)) + field.log_prior(theta)
        if field.prior_learned:
            total = total + jnp.sum(pairs * field.pair_potentials(theta)) + jnp.sum(states * field.outside(theta))
            total = total - len(field.x) * field.log_normaliser(theta)
        return -total

    result, gradient = jax.value_and_grad(value)(theta)
    return result, ravel(gradient)
