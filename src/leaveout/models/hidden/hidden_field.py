"""Hidden Markov fields: their potentials, F and its parts, results of a fit for its own data,
expectation–maximisation.

    log p(z) = Σ_{(s,t)} φ_st(z_s, z_t) + Σ_s h_s(z_s) − log Z

φ is β 1{j = k}, with one β or one an edge; or a matrix `[states, states]`, one for all edges or one
an edge. A matrix that is not symmetric applies to the edges as they are given, from s to t. h is
`[sites, states]`, or D γ of covariates D `[sites, terms]`, whose first column is one, with γ
`[terms, states]`. A number added to all entries of a learned matrix, or of a row of γ, changes no
probability. Natural parameters therefore sum to zero, and θ has their differences from the last
entry.

    E   q = p(z | x; θ) by passes
    M
    argmax_θ Σ_s Σ_k q_s(k) (log e_s(k; θ) + h_s(k)) + Σ_{(s,t)} Σ_jk q_st(j, k) φ_st(j, k) − fields
    · log Z + log p(θ)

BFGS finds the maximum: the only sum over configurations in it is Z, if φ or h is learned.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Scalar
from numpy import ndarray
from numpy.typing import ArrayLike
from scipy import optimize, sparse

from ..._runtime import (
    ArrayList,
    Arrays as Arrays,
    Module,
    NamedArrays,
    PyTree,
    TwoNumbers,
    compile_static,
    static,
)
from ...data import floats, index_of, pandas_of, places
from ...inference import clique
from ...inference.clique import Sums, log_partition, marginals, pair_marginals
from ...linalg import AnyShape
from ...objectives import UnitWeights, as_stored, float64, ravel, unravel
from ..emissions._base import but_last
from .hidden import IDLE_STATE_COUNT, AbstractHiddenStates, FieldLabels, Shape, entries

EdgeTables = Float[Array, "edges states states"]

SiteStates = Float[Array, "fields sites states"]

PRECISE = {"gtol": 1e-7}  # options of BFGS in expectation–maximisation


class Free(Module):
    """Coupling to be learned, for `lo.MRF`.

    Parameters
    ----------
    start : float or array, default: 0.5
        Coupling to start from: a number, one an edge, or a matrix `[states, states]` of all edges.
    prior : tuple of float or None, default: (0.0, 1.0)
        Mean and standard deviation of a normal prior of each entry. For a matrix the mean is that
        of the diagonal, and zero elsewhere. None is flat; then a field all of whose neighbours
        agree has no interior optimum.
    directed : bool, default: False
        Whether a matrix need not be symmetric.

    See Also
    --------
    MRF, External

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.developer.models.Free(1.0).prior
    (0.0, 1.0)
    """

    start: ArrayLike = 0.5
    prior: TwoNumbers | None = (0.0, 1.0)
    directed: bool = False


class External(Module):
    """External field to be learned, for `lo.MRF`: for each state an intercept and a coefficient of
    each covariate.

    Parameters
    ----------
    covariates : array or DataFrame, shape (sites,) or (sites, covariates), optional
        Covariates, which are taken about their means. The default is intercepts only.
    prior : tuple of float or None, default: (0.0, 1.0)
        Mean and standard deviation of a normal prior of each, for a covariate of standard deviation
        one; None is flat.

    See Also
    --------
    MRF, Free

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.developer.models.External(np.arange(4.0)).prior
    (0.0, 1.0)
    """

    covariates: Any = None
    prior: TwoNumbers | None = (0.0, 1.0)


def read_coupling(
    coupling: "float | ArrayLike | Free",
    num_edges: int,
    num_states: int,
    flat: bool,
    directed: bool,
) -> tuple[ndarray, ndarray | None]:
    """Return φ, or its start if it is free, and its prior or None.

    `directed` tells whether the edges have a direction.
    """
    free = coupling if isinstance(coupling, Free) else None
    try:
        value = as_stored(
            np.asarray(coupling.start if isinstance(coupling, Free) else coupling, float)
        )
    except (TypeError, ValueError):
        raise TypeError(
            f"MRF: coupling must be a number, one an edge, a matrix of states by states, or lo.developer.models.Free(...); "
            f"got {coupling!r}."
        ) from None
    square = num_states, num_states
    if (
        value.shape not in ((), (num_edges,), square, (num_edges, *square))
        or not np.isfinite(value).all()
    ):
        raise ValueError(
            f"MRF: coupling must be a finite number, one for each of {num_edges} edges, or a matrix {list(square)}, one in all "
            f"or one an edge; got {_describe_value(value)}."
        )
    skew = value.ndim > 1 and not np.array_equal(value, value.swapaxes(-1, -2))
    if (skew or (free is not None and free.directed)) and not directed:
        raise ValueError(
            "MRF: a coupling that is not symmetric goes along the edges; give these as pairs [edges, 2], from and to."
        )
    if free is None:
        return value, None
    if num_states == 1 or num_edges == 0:
        raise ValueError(
            "MRF: a coupling can be learned where there are edges, and two states or more."
        )
    if value.ndim == 3 or (skew and not free.directed):
        raise ValueError(
            "Free: a matrix is learned for all edges together, symmetric unless directed=True; got "
            + ("one an edge." if value.ndim == 3 else f"{_describe_value(value)}.")
        )
    return value, None if flat else _prior("Free", free.prior)


def read_external(
    external: "ArrayLike | External | None", index: Any, num_sites: int, num_states: int, flat: bool
) -> tuple[ndarray | None, ndarray | None, ndarray | None]:
    """Return h or the start of γ, D, and the prior of γ."""
    if external is None:
        return None, None, None
    if not isinstance(external, External):
        value = floats("MRF", "external", _in_order("external", external, index))
        if value.shape != (num_sites, num_states) or not np.isfinite(value).all():
            raise ValueError(
                f"MRF: external must be finite numbers, sites by states {[num_sites, num_states]}, or developer.models.External(...); "
                f"got {_describe_value(value)}."
            )
        return as_stored(value), None, None
    if num_states == 1:
        raise ValueError(
            "MRF: an external field can be learned where there are two states or more."
        )
    design = np.ones((num_sites, 1))
    if external.covariates is not None:
        covariates = floats(
            "External", "covariates", _in_order("covariates", external.covariates, index)
        )
        if covariates.ndim == 1:
            covariates = covariates[:, None]
        if (
            covariates.ndim != 2
            or len(covariates) != num_sites
            or not np.isfinite(covariates).all()
            or (np.ptp(covariates, 0) == 0).any()
        ):
            raise ValueError(
                f"External: covariates must be finite numbers that vary, one row for each of {num_sites} sites; got "
                f"{_describe_value(covariates)}. An intercept is there already."
            )
        design = np.concatenate([design, covariates - covariates.mean(0)], 1)
    prior = None if flat else _prior("External", external.prior)
    return as_stored(np.zeros((design.shape[1], num_states))), as_stored(design), prior


def _in_order(name: str, value, index):
    """Put potentials into the order of the data's labels, if both have labels."""
    labels = index_of(value)
    value = pandas_of("MRF", name, value)
    if labels is None or index is None or len(labels) != len(index):
        return value
    order = places("MRF", name, labels, "x", index)
    return value if order is None else value.iloc[order]


def _describe_value(value: ndarray) -> str:
    finite = "" if np.isfinite(value).all() else ", some not finite"
    if value.size <= 9:
        return str(value.tolist())
    return f"an array of shape {list(value.shape)}{finite}"


def _prior(caller: str, mean_and_sd: TwoNumbers | None) -> ndarray | None:
    if mean_and_sd is None:
        return None
    prior = as_stored(mean_and_sd)
    if prior.shape != (2,) or not np.isfinite(prior).all() or prior[1] <= 0:
        raise ValueError(
            f"{caller}: prior must be a mean and a standard deviation, or None; got {mean_and_sd!r}."
        )
    return prior


def has_direction(edges: Any) -> bool:
    """Tell whether edges have a direction: pairs have, graphs and adjacency matrices have not."""
    return not (
        hasattr(edges, "nodes")
        or sparse.issparse(edges)
        or sparse.issparse(getattr(edges, "sparse", None))
    )


class AbstractHiddenField(AbstractHiddenStates):
    """Objective whose hidden states form fields over one graph.

    `F(θ, w)` as in `mrf`, from an emission's densities.
    """

    latent = ("coupling", "external")

    x: Float[ndarray, "fields sites channels"]
    edges: Int[ndarray, "edges 2"]
    data: PyTree  # x as prepared by the emission, fields one after another
    dense: Bool[ndarray, "fields sites"]  # whether there is an observation
    coupling: AnyShape  # held fixed, or the start
    coupling_prior: Float[ndarray, "2"] | None  # mean and standard deviation
    external: AnyShape | None  # h, held fixed; or the start of γ
    design: Float[ndarray, "sites terms"] | None  # covariates, if γ is learned
    external_prior: Float[ndarray, "2"] | None
    normaliser: Float[ndarray, ""] | None  # log Z of one field, if the potentials are fixed
    tree: Sums = static()
    number: int = static()
    learned: bool = static()  # whether the coupling is learned
    directed: bool = static()  # whether a learned matrix has a direction
    inference: str = static()
    flat: bool = static()  # whether there is no prior
    labels: FieldLabels = static()

    @property
    def num_states(self) -> int:
        return self.number

    @property
    def num_sites(self) -> int:
        return self.x.shape[1]

    @property
    def num_units(self) -> int:
        if self.drop == "field":
            return len(self.x)
        return self.dense.size

    @property
    def prior_learned(self) -> bool:
        return self.learned or self.design is not None

    @property
    def distinct_states(self) -> bool:
        """Whether fixed potentials distinguish the states."""
        return (not self.learned and self.coupling.ndim > 1) or (
            self.external is not None and self.design is None
        )

    @property
    def latent_shapes(self) -> dict[str, Shape]:
        shapes = {"coupling": self.coupling.shape} if self.learned else {}
        if self.design is None or self.external is None:
            return shapes
        return {**shapes, "external": self.external.shape}

    @property
    def _scale(self) -> Float[ndarray, "terms 1"]:
        """Standard deviations of the covariates, with one for the intercept; θ has γ in these."""
        assert self.design is not None
        sd = self.design.std(0)
        return (sd + (sd == 0))[:, None]

    @property
    def _matrix_entries(self) -> Bool[ndarray, "states states"]:
        """Marks of the entries of a learned matrix that θ has as differences from the last one."""
        every_entry = np.ones((self.num_states, self.num_states), bool)
        marks = every_entry if self.directed else np.triu(every_entry)
        marks[-1, -1] = False
        return marks

    def latent_unconstrained(self, name: str, value: ndarray) -> ndarray:
        if name == "external":
            scaled = value * self._scale
            return scaled[:, :-1] - scaled[:, -1:]
        if value.ndim < 2:
            return value
        if not self.directed:
            value = (value + value.T) / 2
        return (value - value[-1, -1])[self._matrix_entries]

    def latent_names(self, name: str) -> list[str]:
        if name == "external":
            return entries(name, but_last(self.latent_shapes[name]))
        return entries(
            name,
            self._matrix_entries if self.coupling.ndim > 1 else np.ones(self.coupling.shape, bool),
        )

    def coupling_of(self, theta: PyTree) -> Arrays:
        """Return the natural coupling; the entries of a learned matrix sum to zero."""
        if not self.learned:
            return self.coupling
        free_entries = theta["coupling"]
        if self.coupling.ndim < 2:
            return free_entries
        index = np.nonzero(self._matrix_entries)
        matrix = jnp.zeros((self.num_states, self.num_states)).at[index].set(free_entries)
        if not self.directed:
            matrix = matrix.at[index[::-1]].set(free_entries)
        return matrix - jnp.mean(matrix)

    def external_of(self, theta: PyTree) -> Any:
        """Return the natural external field: h, or γ, whose rows sum to zero."""
        if self.design is None:
            return self.external
        coefficients = jnp.pad(jnp.asarray(theta["external"]), ((0, 0), (0, 1)))
        return (coefficients - coefficients.mean(-1, keepdims=True)) / self._scale

    def outside(self, theta: PyTree) -> Array | float:
        """Return h, `[sites, states]`; zero without an external field."""
        if self.external is None:
            return 0.0
        return jnp.asarray(
            self.external if self.design is None else self.design @ self.external_of(theta)
        )

    def pairs(self, coupling: Arrays) -> EdgeTables:
        """Return φ of every edge."""
        coupling = jnp.asarray(coupling)
        edges = len(self.edges)
        K = self.num_states
        if coupling.ndim > 1:
            return jnp.broadcast_to(coupling, (edges, K, K))
        return jnp.broadcast_to(coupling, (edges,))[:, None, None] * jnp.eye(K)

    def pair_potentials(self, theta: PyTree) -> EdgeTables:
        return self.pairs(self.coupling_of(theta))

    def densities(self, theta: PyTree, data: PyTree = None) -> SiteStates:
        if data is None:
            data = self.data
        logs = self.emission.log_densities(self.emission_parameters(theta), data)
        return jnp.asarray(logs).reshape(-1, self.num_sites, self.num_states)

    def weighted_emissions(self, weights: Arrays, densities: Array) -> SiteStates:
        """Return the weighted emissions; zero for missing observations."""
        return self.emission.weigh(
            jnp.where(self.dense, weights.reshape(self.dense.shape), 0.0)[..., None], densities
        )

    def log_prior_partition(self, pairs: Array, outside: Array | float) -> Array:
        """Compute `log Z` of fields without observations."""
        return log_partition(
            jnp.zeros((self.num_sites, self.num_states)) + outside, pairs, self.tree
        )

    def log_normaliser(self, theta: PyTree) -> Scalar:
        if self.normaliser is not None:
            return jnp.asarray(self.normaliser)
        return self.log_prior_partition(self.pair_potentials(theta), self.outside(theta))

    def loss(self, theta: PyTree, weights: UnitWeights) -> Scalar:
        weights = jnp.asarray(weights)
        pairs = self.pair_potentials(theta)
        densities = self.densities(theta)
        outside = self.outside(theta)
        if self.drop == "field":
            return weights @ self.losses(
                theta, densities, jnp.asarray(self.dense)
            ) - self.log_prior(theta)
        emissions = self.weighted_emissions(weights, densities)
        if self.drop == "observation":
            total = log_partition(emissions + outside, pairs, self.tree)
            return len(self.x) * self.log_normaliser(theta) - jnp.sum(total) - self.log_prior(theta)
        by_site = weights.reshape(self.dense.shape)
        pairs = (by_site[:, self.edges[:, 0]] * by_site[:, self.edges[:, 1]])[
            ..., None, None
        ] * pairs
        if self.external is not None:
            outside = by_site[..., None] * outside
        total = log_partition(emissions + outside, pairs, self.tree)
        return jnp.sum(self.log_prior_partition(pairs, outside) - total) - self.log_prior(theta)

    def losses(self, theta: PyTree, densities: Array, dense: Array) -> Float[Array, " fields"]:
        """Compute `−log p(x_n; θ)` of fields."""
        seen = self.emission.weigh(jnp.where(dense, 1.0, 0.0)[..., None], densities) + self.outside(
            theta
        )
        return self.log_normaliser(theta) - log_partition(
            seen, self.pair_potentials(theta), self.tree
        )

    def log_prior(self, theta: PyTree) -> Scalar:
        if self.flat:
            return jnp.zeros(())
        total = jnp.asarray(self.emission.log_prior(self.emission_parameters(theta)))
        if self.coupling_prior is not None:
            value = self.coupling_of(theta)
            mean, sd = self.coupling_prior
            if jnp.ndim(value) > 1:  # the prior mean of a matrix is on its diagonal, centred
                mean = mean * (jnp.eye(len(value)) - 1 / len(value))
            total -= 0.5 * jnp.sum(((value - mean) / sd) ** 2)
        if self.external_prior is not None and self.design is not None:
            mean, sd = self.external_prior
            scaled = self.external_of(theta) * self._scale
            total -= 0.5 * jnp.sum(((scaled - mean) / sd) ** 2)
        return total

    @float64
    def _warning(self, theta: PyTree) -> str:
        """Describe states that explain nothing and parameters on a boundary, after a fit.

        Or return "".
        """
        natural_parameters = jax.tree.map(
            np.asarray, self.parameters.natural(jax.tree.map(jnp.asarray, theta))
        )
        states, pairs = (np.asarray(part) for part in expected_pairs(self, theta))
        agree = np.trace(pairs, axis1=-2, axis2=-1)
        visits = (states * self.dense[..., None]).sum((0, 1))
        empty = np.flatnonzero(visits < IDLE_STATE_COUNT)
        sentences = []
        disagree = len(self.x) * len(self.edges) - agree.sum()
        # expected edges whose ends differ, below which the field is of one state
        one_state_disagreement = 0.1
        if self.num_states > 1 and (
            len(empty) == self.num_states - 1 or (len(agree) and disagree < one_state_disagreement)
        ):
            sentences.append(
                f"One state takes all {self.dense.sum()} observed sites (expected {np.sort(visits)[-2]:.2g} in the next, and "
                f"{disagree:.2g} edges whose ends differ): the coupling is so strong, or the observations so alike, that the "
                "fit is on the boundary. Take a weaker coupling, or fewer states."
            )
        else:
            sentences += [
                f"State {k} explains nothing (expected {visits[k]:.2g} of {self.dense.sum()} sites): take fewer states, or a "
                "weaker coupling."
                for k in empty
            ]
        emission_parameters = {name: natural_parameters[name] for name in self.emission.free}
        of_states = [
            value for name, value in emission_parameters.items() if name not in self.emission.shared
        ]
        # relative difference of the parameters of two states below which they are one
        same_state = 1e-4
        alike = lambda value, j, k: np.allclose(
            value[j], value[k], rtol=same_state, atol=same_state * np.abs(value).max()
        )
        pairs_of_states = (
            [(j, k) for k in range(self.num_states) for j in range(k)] if of_states else []
        )
        twins = [
            (j, k) for j, k in pairs_of_states if all(alike(value, j, k) for value in of_states)
        ]
        if twins and len(sentences) == 0:
            sentences.append(
                f"States {twins[0][0]} and {twins[0][1]} are the same: the observations tell no more than "
                f"{self.num_states - len({k for _, k in twins})} states apart; take fewer states."
            )
        spread = np.nanvar(self.x, (0, 1))
        return " ".join(
            filter(None, (*sentences, self.on_boundary(emission_parameters, spread, {})))
        )


@compile_static
def prior_partition(field: AbstractHiddenField, theta: PyTree) -> Scalar:
    return field.log_normaliser(theta)


@compile_static
def losses(field: AbstractHiddenField, theta: PyTree) -> Float[Array, " fields"]:
    return field.losses(theta, field.densities(theta), jnp.asarray(field.dense))


@compile_static
def smoothed_sites(field: AbstractHiddenField, theta: PyTree, weights: Arrays) -> SiteStates:
    sites = jnp.repeat(weights, field.num_sites) if field.drop == "field" else weights
    return marginals(
        field.weighted_emissions(sites, field.densities(theta)) + field.outside(theta),
        field.pair_potentials(theta),
        field.tree,
    )


@compile_static
def expected_pairs(field: AbstractHiddenField, theta: PyTree) -> tuple[SiteStates, EdgeTables]:
    """Compute state probabilities, and the expected number of fields with each pair of states at
    each edge.
    """
    states, pairs = pair_marginals(*_potentials_of(field, theta), field.tree)
    return states, pairs.sum(0)


@compile_static
def _potentials_of(field: AbstractHiddenField, theta: PyTree) -> tuple[Array, Array]:
    seen = field.weighted_emissions(jnp.ones(field.dense.size), field.densities(theta))
    return seen + field.outside(theta), field.pair_potentials(theta)


def decode_field(field: AbstractHiddenField, theta: PyTree) -> Int[ndarray, "fields sites"]:
    """Find the best configuration of each field."""
    seen, edges = (np.asarray(part) for part in _potentials_of(field, theta))
    return np.array([clique.best(sites, edges, field.tree) for sites in seen])


def draw(
    field: AbstractHiddenField, theta: PyTree, num_fields: int, rng: np.random.Generator
) -> tuple[Float[ndarray, "fields sites ..."], Int[ndarray, "fields sites"]]:
    """Draw states from the roots down, and an observation at each site."""
    outside = np.asarray(field.outside(theta))
    edges = np.asarray(_potentials_of(field, theta)[1])
    z = clique.draw(
        np.zeros((field.num_sites, field.num_states)) + outside, edges, field.tree, num_fields, rng
    )
    emission_parameters = jax.tree.map(np.asarray, field.emission_parameters(theta))
    past = np.zeros((0, field.x.shape[2]))
    x = np.array(
        [
            [field.emission.draw(emission_parameters, k, s, past, rng) for s, k in enumerate(row)]
            for row in z
        ]
    )
    return (x[..., 0] if field.x.shape[2] == 1 else x), z


def climb(
    field: AbstractHiddenField, parameters: dict[str, ArrayLike], num_steps: int, tol: float = 0.0
) -> tuple[NamedArrays, list[float]]:
    """Take steps of expectation–maximisation.

    Return natural parameters, and F before each step and at the end.
    """
    theta = field.parameters.unconstrained(parameters)
    values = []
    for step in range(num_steps + 1):
        values.append(float(_loss(field, theta)))
        if step == num_steps or (step and values[-2] - values[-1] < tol):
            break
        states, pairs = expected_pairs(field, theta)
        start = np.asarray(ravel(theta))
        solution = optimize.minimize(
            _maximand, start, (field, theta, states, pairs), "BFGS", True, options=PRECISE
        )
        theta = jax.tree.map(np.asarray, unravel(jnp.asarray(solution.x), theta))
    return jax.tree.map(np.asarray, field.parameters.natural(theta)), values


@compile_static
def _loss(field: AbstractHiddenField, theta: PyTree) -> Scalar:
    return field.loss(theta, jnp.ones(field.num_units))


def lowest(field: AbstractHiddenField, starts: list[dict[str, ArrayLike]]) -> dict[str, ArrayLike]:
    """Choose the natural parameters with the least F."""
    if len(starts) == 1:
        return starts[0]
    return min(starts, key=lambda start: float(_loss(field, field.parameters.unconstrained(start))))


def _maximand(
    vector: ndarray, field: AbstractHiddenField, like: PyTree, states: Array, pairs: Array
) -> ArrayList:
    return [
        np.asarray(part)
        for part in _minus_expected(field, unravel(jnp.asarray(vector), like), states, pairs)
    ]


@compile_static
def _minus_expected(
    field: AbstractHiddenField, theta: PyTree, states: Array, pairs: Array
) -> tuple[Scalar, Array]:
    def value(theta):
        seen = states * field.dense[..., None]
        logs = field.emission.weigh(jnp.ones(()), field.densities(theta))
        total = jnp.sum(seen * jnp.where(seen > 0, logs, 0.0)) + field.log_prior(theta)
        if field.prior_learned:
            total = (
                total
                + jnp.sum(pairs * field.pair_potentials(theta))
                + jnp.sum(states * field.outside(theta))
            )
            total -= len(field.x) * field.log_normaliser(theta)
        return -total

    result, gradient = jax.value_and_grad(value)(theta)
    return result, ravel(gradient)
