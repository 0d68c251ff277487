"""Hidden Markov random fields on any graph: leave observations, sites or whole fields out.

A field z with p(z) = exp(Σ_s h_s(z_s) + Σ_{(s,t)} φ_st(z_s, z_t)) / Z, every edge counted once, by
default Potts', φ_st(j, k) = β_st 1{j = k} and h = 0 (`hidden_field`), is seen through emissions
e_s(z_s) = p(x_s | z_s):

    "observation"
    F(θ, w) = −log Σ_z Π_s e_s(z_s)^{w_s} exp(Σ_s h_s + Σ_{(s,t)} φ_st) + log Z − log p(θ)
    "site"
    F(θ, w) = −log Σ_z Π_s e_s(z_s)^{w_s} exp(Σ_s w_s h_s + Σ_{(s,t)} w_s w_t φ_st) + log Z(w) − log
    p(θ) "field"         F(θ, w) = −Σ_n w_n log p(x_n; θ) − log p(θ)

Ghosh et al. (2020), "Approximate cross-validation for structured models": equations 4 and 5,
algorithms 1 and 2. (Their β is half of ours: in appendix L.3 every edge is counted twice.) Z is the
sum over configurations without emissions: a site of weight zero has no edges. A missing observation
has weight zero. Scores are computed in the whole graph with held-out units unseen:

    −log p(x_s | everything seen; θ) = −log Σ_k p(z_s = k | everything seen) e_s(k).

With approximate inference all of these are the same functions of approximate sums: F and its
derivatives are consistent, and so are refits and their certificate, but all are those of the
approximation. `against_exact` compares it with exact sums.
"""

import itertools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Bool, Float, Int
from numpy import ndarray
from numpy.typing import ArrayLike

from ..._runtime import (
    Arrays as Arrays,
    NamedArrays,
    NamedValues,
    PyTree,
    Rng,
    Scalar,
    Slow,
    Texts,
    conventional,
)
from ...inference.clique import Sums, log_partition, marginals, tree
from ...inference.elimination import entries as table_entries, first_scopes, neighbours
from ...objectives import Costs, Parameters, PerListed, UnitIndex, UnitWeights, as_stored, float64
from ...plans import Edges, blocks, read_edges
from ..emissions._base import AbstractEmission
from . import hidden_field as _hidden_field
from .hidden import GivenParameters, Steps, Table, mixture, read_fields, read_weights
from .hidden_field import (
    AbstractHiddenField,
    External,
    Free,
    has_direction,
    read_coupling,
    read_external,
)

ORDERS = 24  # largest number of orders of the states that are tried at a start
LEARN = "a coupling, lo.developer.models.Free(...), or an external field, lo.developer.models.External(...)"
APART = "losses, their errors and their certificate are of that model, not of the exact one; against_exact says how far apart"

# largest number of entries of all tables of a part where inference is compared with exact sums
MAX_PART_ENTRIES = 2**19
INFERENCE = {
    "exact": "sums over all configurations are exact",
    "bethe": "sums over all configurations are Bethe's approximation",
    "trw": "sums over all configurations are tree-reweighted, an approximation",
}


class MRF(AbstractHiddenField):
    """Hidden Markov random field: hidden states of the sites of a graph, each with an observation.

        log p(z) = Σ_{(s,t)} φ_st(z_s, z_t) + Σ_s h_s(z_s) − log Z,      x_s | z_s ~ emission

    `fit(...).parameters` is `{"coupling": [], [edges] or [states, states], ...}`, "external" where
    there is one, and the emission's own.

    Parameters
    ----------
    x : array, shape (sites,), (fields, sites) or (fields, sites, channels)
        Observations; NaN is missing. Several fields share the graph.
    edges : array, sparse matrix or graph
        Edges `[edges, 2]`, a symmetric adjacency matrix, or a networkx or libpysal graph.
    emission : emission of lo.emissions
        Distribution of an observation given the state; any that does not regress on earlier steps.
    num_states : int
        Number of states.
    coupling : float, array or Free
        β, a number or one an edge; φ, a matrix `[states, states]` or one an edge; or `Free(...)`,
        which is learned.
    external : array, shape (sites, states), External or None, default: None
        External field h, held fixed; or `External(...)`, which is learned.
    drop : {"observation", "site", "field"}, default: "observation"
        Unit that is left out: the observation of a site, whose state stays in the field; a site
        with its edges; or a field. Units of several fields are numbered field by field.
    prior : {"default"} or None, default: "default"
        Priors of the emission, `Free` and `External`; None is maximum likelihood.
    score : {"pointwise", "joint"}, default: "pointwise"
        One loss a unit, or one a refit.
    inference : {"exact", "bethe", "trw"}, default: "exact"
        Sums over all configurations: exact, Bethe's approximation, or tree-reweighted.
    memory : float, default: 4.0
        Memory that exact inference may take, in GiB.

    Raises
    ------
    ValueError
        If the graph has loops, duplicate or one-sided edges, exact inference needs more memory, or
        the data cannot determine the model.
    TypeError
        If the coupling is none of these.

    See Also
    --------
    GaussianField, HMM, Free, External

    Examples
    --------
    >>> import leaveout as lo
    >>> x = np.array([0.1, 0.2, 0.0, 2.1, 1.9, 2.2])
    >>> model = lo.MRF(
    ...     x, np.c_[np.arange(5), np.arange(1, 6)], lo.emissions.Gaussian(), 2, coupling=0.5
    ... )
    >>> model.num_units, model.num_states
    (6, 2)
    """

    styles: ClassVar[Texts] = {
        "observation": "a held-out site loses its observation, its state stays in the field",
        "site": "a held-out site loses its observation, its state and its edges; scores are taken in the whole graph",
        "field": "whole fields are left out",
    }

    block: Int[ndarray, " sites"]

    @float64
    def __init__(
        self,
        x: ArrayLike,
        edges: Any,
        emission: AbstractEmission,
        num_states: int,
        *,
        coupling: "float | ArrayLike | Free",
        external: "ArrayLike | External | None" = None,
        drop: Literal["observation", "site", "field"] = "observation",
        prior: Literal["default"] | None = "default",
        score: Literal["pointwise", "joint"] = "pointwise",
        inference: Literal["exact", "bethe", "trw"] = "exact",
        memory: float = 4.0,
    ):
        self.read_choices(emission, num_states, drop, score)
        if emission.reach:
            raise ValueError(
                f"MRF: {type(emission).__name__} regresses on earlier steps, which sites of a graph do not have."
            )
        if not (prior is None or (isinstance(prior, str) and prior == "default")):
            raise ValueError(f"MRF: prior must be 'default' or None; got {prior!r}.")
        if inference not in INFERENCE or not (
            isinstance(memory, int | float | np.number) and memory > 0
        ):
            raise ValueError(
                f"MRF: inference must be one of {', '.join(map(repr, INFERENCE))}, memory GiB, a positive number; got "
                f"{inference!r}, {memory!r}."
            )
        self.flat = prior is None
        self.number = int(num_states)
        self.x, self.labels = read_fields(x)
        directed = has_direction(edges)
        self.edges, _, _ = read_edges("MRF", edges, self.num_sites, self.labels.index)
        if drop == "field" and len(self.x) < 2:
            raise ValueError('MRF: drop="field" needs several fields; give x as [fields, sites].')
        self.learned = isinstance(coupling, Free)
        self.directed = isinstance(coupling, Free) and coupling.directed
        self.coupling, self.coupling_prior = read_coupling(
            coupling, len(self.edges), self.number, self.flat, directed
        )
        read = read_external(external, self.labels.index, self.num_sites, self.number, self.flat)
        self.external, self.design, self.external_prior = read
        self.inference = inference
        if inference == "bethe" and self.prior_learned:
            raise ValueError(
                'MRF: inference="bethe" takes couplings and external fields that are held fixed: without observations its '
                'messages settle at a point that is none of its optima where the coupling is strong. Take "trw" to learn them.'
            )
        rows = self.x.reshape(-1, self.x.shape[2])
        lengths = np.full(len(self.x), self.num_sites)
        self.data, dense, _ = self.read_emission(emission, rows, lengths)
        self.dense = dense.reshape(self.x.shape[:2])
        if not (self.shapes or self.prior_learned):
            raise ValueError(
                f"MRF: with {type(emission).__name__} there is something to learn of the states only: {LEARN}."
            )
        flat = (self.learned and self.coupling_prior is None) or (
            self.design is not None and self.external_prior is None
        )
        self.check_size(not (self.flat or flat))
        self.tree = tree(self.num_sites, self.edges, self.number, memory * 2**30, inference)
        fixed = (
            None
            if self.prior_learned
            else self.log_prior_partition(self.pairs(self.coupling), self.outside({}))
        )
        self.normaliser = None if fixed is None else as_stored(fixed)
        min_site_blocks = 20  # least number of blocks of sites for standard errors
        self.block = blocks(
            self.edges,
            self.num_sites,
            max(1, min(max(min_site_blocks, round(self.num_sites**0.5)), self.num_sites // 2)),
        )

    # parameters

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            canonical=self._canonical,
            names=self._names,
            warning=self._warning,
        )

    def _natural(self, theta):
        field = {} if self.external is None else {"external": self.external_of(theta)}
        return {
            "coupling": jnp.asarray(self.coupling_of(theta)),
            **field,
            **self.emission_parameters(theta),
        }

    @float64
    def _start(self, seed):
        """Start by a few steps of EM from clusters of the observations.

        If fixed potentials tell the states apart, the order of states that fits best is taken.
        """
        emission_parameters = self.emission.initial(
            self.data, self.dense.ravel(), self.number, seed
        )
        prior = {"coupling": self.coupling}
        if self.external is not None:
            prior["external"] = self.external
        orders = (
            itertools.permutations(range(self.number))
            if self.distinct_states and emission_parameters
            else [range(self.number)]
        )
        starts = [
            {**prior, **self.emission.permute(emission_parameters, np.array(order))}
            for order in itertools.islice(orders, ORDERS)
        ]
        em_steps = 5  # steps of expectation–maximisation before descent
        return self._to_unconstrained(
            _hidden_field.climb(self, _hidden_field.lowest(self, starts), em_steps)[0]
        )

    @float64
    def _canonical(self, theta):
        """Put states into the emission's order, unless fixed potentials distinguish them."""
        if self.distinct_states:
            return theta
        natural_parameters = self._natural(jax.tree.map(jnp.asarray, theta))
        emission_parameters = {
            name: natural_parameters[name] for name in natural_parameters if name not in self.latent
        }
        order = np.asarray(self.emission.order(emission_parameters))
        if self.coupling.ndim > 1:
            natural_parameters["coupling"] = natural_parameters["coupling"][order][:, order]
        if self.external is not None:
            natural_parameters["external"] = natural_parameters["external"][:, order]
        return self._to_unconstrained(
            {**natural_parameters, **self.emission.permute(emission_parameters, order)}
        )

    # F

    def score(
        self,
        theta: PyTree,
        weights: Float[Array, " units"],
        index: UnitIndex,
        held: PerListed,
    ) -> Array:
        if self.drop == "field":
            if self.joint:
                return super().score(theta, weights, index, held)
            return self.losses(theta, *self._listed_densities(theta, index))
        pairs = self.pair_potentials(theta)
        if self.joint:
            densities = self.densities(theta)
            complete_weights = jnp.asarray(weights).at[index].max(held, mode="drop")
            emissions = jnp.stack(
                [self.weighted_emissions(w, densities) for w in (weights, complete_weights)]
            ) + self.outside(theta)
            without, complete = jnp.sum(log_partition(emissions, pairs, self.tree), -1)
            return without - complete
        states, densities = self._posterior(theta, weights, index, pairs)
        return -mixture(states, densities)

    def _posterior(
        self, theta: PyTree, weights: Arrays, index: Arrays, pairs: Array
    ) -> tuple[Array, Array]:
        """Compute state probabilities and densities of the listed units, `[width, states]` each.

        Any values for padding.
        """
        densities = self.densities(theta)
        seen = self.weighted_emissions(jnp.asarray(weights), densities) + self.outside(theta)
        place = jnp.minimum(index, self.num_units - 1)
        if len(index) < len(self.x):  # only the fields of the listed units
            states = marginals(seen[place // self.num_sites], pairs, self.tree)[
                jnp.arange(len(index)), place % self.num_sites
            ]
        else:
            states = marginals(seen, pairs, self.tree).reshape(-1, self.number)[place]
        return states, densities.reshape(-1, self.number)[place]

    def _listed_densities(self, theta: PyTree, index: Arrays) -> tuple[Array, Array]:
        """Return densities of the listed fields, and which of them have observations."""
        place = jnp.minimum(index, len(self.x) - 1)
        rows = (place[:, None] * self.num_sites + jnp.arange(self.num_sites)).reshape(-1)
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], self.data)
        return self.densities(theta, data), jnp.asarray(self.dense)[place]

    def perturbation(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Scalar:
        if self.drop != "field" or len(index) == self.num_units:
            return super().perturbation(theta, index, delta)
        return jnp.where(index < self.num_units, delta, 0.0) @ self.losses(
            theta, *self._listed_densities(theta, index)
        )

    def predict(
        self,
        theta: PyTree,
        weights: UnitWeights,
        index: UnitIndex,
        kind: str,
    ) -> Array:
        self.check_kind(kind, "sites")
        states, _ = self._posterior(theta, weights, index, self.pair_potentials(theta))
        if kind == "state":
            return states
        place = jnp.minimum(index, self.num_units - 1)
        data = jax.tree.map(lambda leaf: jnp.asarray(leaf)[place], self.data)
        means = jnp.asarray(self.means(states, self.emission_parameters(theta), data))
        return means[:, 0] if means.shape[1] == 1 else means

    # the contract of an objective

    def seen_wholes(self) -> Bool[ndarray, " fields"]:
        return np.asarray(self.dense.any(1))

    @property
    def neighbourhood(self) -> NamedValues:
        """Blocks of neighbouring sites, each of all fields, as effects of a place are common to
        these.
        """
        return {"blocks": np.tile(self.block, len(self.x))}

    @property
    def costs(self) -> Costs:
        """Cost of a refit: a few operations for each entry of the tables."""
        # refits that share a pass, by measurement: more where tables fit into a cache
        mrf_lanes = int(np.clip(2**18 // self.tree.entries, 16, 64))
        return Costs(
            max(1, mrf_lanes // len(self.x)),
            10.0 * self.tree.entries * len(self.x),
        )

    @property
    def note(self) -> str:
        style = f'drop="{self.drop}": {self.styles[self.drop]}'
        approximation = (
            ""
            if self.inference == "exact"
            else f' inference="{self.inference}": {INFERENCE[self.inference]}; {APART}.'
        )
        if self.flat:
            return f"{style}. Maximum likelihood, no prior.{approximation}"
        priors = {"coupling": self.coupling_prior, "external": self.external_prior}
        prior_texts = [
            f"{name} ~ Normal({prior[0]:g}, {prior[1]:g})"
            for name, prior in priors.items()
            if prior is not None
        ]
        return f"{style}. Prior: {'; '.join(filter(None, (self.emission.prior_note, *prior_texts))) or 'none'}.{approximation}"

    # for users

    @float64
    def log_partition(self, parameters: GivenParameters) -> float:
        """Compute log Z of one field without observations.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The logarithm of the normaliser.
        """
        return float(_hidden_field.prior_partition(self, self._to_unconstrained(parameters)))

    @float64
    def log_likelihood(self, parameters: GivenParameters) -> float:
        """Compute log p(x; θ) of all fields, without the prior.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The log-likelihood.
        """
        return -float(jnp.sum(_hidden_field.losses(self, self._to_unconstrained(parameters))))

    @float64
    def em(
        self, parameters: GivenParameters, num_steps: int = 100, tol: float = 1e-8
    ) -> NamedArrays:
        """Take steps of expectation–maximisation, until F falls by less than `tol` in a step.

        Expectations are those of `inference`. `lo.fit(mrf, theta0=mrf.em(start))` goes on by
        Newton's method.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or natural parameters to start from.
        num_steps : int, default: 100
            Largest number of steps.
        tol : float, default: 1e-8
            Decrease of F at which to stop.

        Returns
        -------
        dict of array
            Natural parameters.
        """
        natural_parameters = self._natural(self._to_unconstrained(parameters))
        return _hidden_field.climb(
            self, jax.tree.map(np.asarray, natural_parameters), num_steps, tol
        )[0]

    @float64
    def state_probabilities(
        self, parameters: GivenParameters, weights: ArrayLike | None = None
    ) -> Table:
        """Compute p(z_s = k | everything seen).

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        weights : array of float, shape (units,), optional
            Weights of the units that are seen; all by default.

        Returns
        -------
        array or DataFrame, shape (sites, states) or (fields, sites, states)
            The probabilities.
        """
        weights = read_weights("MRF", weights, self.num_units, self.labels.units(self.drop))
        return self.labels.states(
            np.asarray(
                _hidden_field.smoothed_sites(self, self._to_unconstrained(parameters), weights)
            )
        )

    @float64
    def against_exact(self, parameters: GivenParameters) -> Table:
        """Compare approximate with exact inference, on parts of the graph that are small enough for
        both.

        Each part is a field of its own, so errors at the borders of parts are not seen.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        DataFrame
            A row for each part, and one for all: mean losses with each site left out alone by
            either inference, and the largest differences.

        Raises
        ------
        ValueError
            If inference is exact.
        """
        if self.inference == "exact":
            raise ValueError(
                'MRF: against_exact compares inference="bethe" or "trw" with exact sums; these are exact.'
            )
        return _against_exact(self, jax.tree.map(jnp.asarray, self._to_unconstrained(parameters)))

    @float64
    def decode(self, parameters: GivenParameters) -> Steps:
        """Find the most probable configuration of the states.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        array or Series, shape (sites,) or (fields, sites)
            The states.
        """
        return self.labels.sites(
            _hidden_field.decode_field(self, self._to_unconstrained(parameters))
        )

    @conventional
    @float64
    def simulate(
        self, parameters: GivenParameters, num_fields: int, *, rng: Rng = 0
    ) -> tuple[ndarray, Int[ndarray, "fields sites"]]:
        """Draw fields from the model over this graph.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.
        num_fields : int
            Number of fields.
        rng : int, numpy.random.Generator or None, default: 0
            Random numbers: a seed, a generator, or None for others in each call.

        Returns
        -------
        tuple of array
            Observations `[fields, sites]` or `[fields, sites, channels]`, and states `[fields,
            sites]`.
        """
        return _hidden_field.draw(
            self, self._to_unconstrained(parameters), num_fields, np.random.default_rng(rng)
        )


def _against_exact(field: AbstractHiddenField, theta: PyTree) -> pd.DataFrame:
    """Build a table with a row for each part of the graph, and one for all.

    Columns are the sites, the edges, the mean held-out loss by exact and by approximate sums, the
    largest difference of a site's loss and of a state's probability, and the difference of log
    p(x). A part is a field of its own, small enough for exact sums: its sites, the edges between
    them, and the observations there. The loss of every observed site is computed with that one
    observation left out, at the same parameters, by either kind of sums.
    """
    densities = field.densities(theta)
    pairs = np.asarray(field.pair_potentials(theta))
    outside = np.broadcast_to(np.asarray(field.outside(theta)), densities.shape[1:])
    rows = []
    losses = []
    parts = _parts(field)
    with Slow("parts of the field", len(parts)) as bar:
        for sites, inside, exact in parts:
            edges = _renumber_edges(field.edges[inside], sites)
            approximate = tree(len(sites), edges, field.num_states, inference=field.inference)
            results = [
                _losses(
                    field,
                    densities[:, sites],
                    field.dense[:, sites],
                    outside[sites],
                    pairs[inside],
                    sums,
                )
                for sums in (exact, approximate)
            ]
            (exact_losses, states, total), (approximate_losses, beliefs, approximate_total) = (
                results
            )
            losses.append(np.stack([exact_losses, approximate_losses]))
            rows.append(
                {
                    "sites": len(sites),
                    "edges": len(edges),
                    "exact": exact_losses.mean(),
                    "approximate": approximate_losses.mean(),
                    "largest": abs(exact_losses - approximate_losses).max(),
                    "state": abs(states - beliefs).max(),
                    "log_likelihood": approximate_total - total,
                }
            )
            bar.advance()
    total_row = {
        name: sum(row[name] for row in rows) for name in ("sites", "edges", "log_likelihood")
    }
    total_row |= zip(("exact", "approximate"), np.concatenate(losses, 1).mean(1), strict=True)
    total_row |= {name: max(row[name] for row in rows) for name in ("largest", "state")}
    return pd.DataFrame([*rows, total_row], index=[*range(len(rows)), "all"])


def _parts(field: AbstractHiddenField) -> list[tuple[ndarray, ndarray, Sums]]:
    """Divide the graph into as few blocks of neighbouring sites as exact sums allow.

    Return sites, edges and exact sums.
    """
    sites = field.num_sites
    count = 1
    while True:
        label = blocks(field.edges, sites, count)
        parts = []
        for part in range(count):
            part_sites = np.flatnonzero(label == part)
            inside = np.flatnonzero((label[field.edges] == part).all(1))
            edges = _renumber_edges(field.edges[inside], part_sites)
            if (
                table_entries(
                    first_scopes(neighbours(len(part_sites), edges), field.num_states),
                    field.num_states,
                )
                > MAX_PART_ENTRIES
            ):
                break
            parts.append((part_sites, inside, tree(len(part_sites), edges, field.num_states)))
        if len(parts) == count:
            return parts
        count *= 2


def _renumber_edges(edges: Edges, sites: Int[ndarray, " part"]) -> Edges:
    return np.searchsorted(sites, edges).reshape(-1, 2)


def _losses(
    field: AbstractHiddenField,
    densities: jax.Array,
    dense: ndarray,
    outside: ndarray,
    pairs: ndarray,
    sums: Sums,
) -> tuple[Float[ndarray, " observed"], Float[ndarray, "fields sites states"], float]:
    """Compute the loss of every observed site with that site left out.

    The state probabilities of all sites given all data, and log p(x), are returned beside it.
    """
    weigh = lambda weights, field_densities: field.emission.weigh(
        jnp.asarray(weights)[..., None], field_densities
    )
    seen = weigh(dense * 1.0, densities) + outside
    total = log_partition(seen, pairs, sums).sum() - len(seen) * log_partition(
        jnp.zeros(outside.shape) + outside, pairs, sums
    )
    losses = []
    for field_densities, observed in zip(densities, dense, strict=True):
        held = np.flatnonzero(observed)
        weights = observed * (1.0 - np.eye(len(observed))[held])
        states = marginals(weigh(weights, field_densities) + outside, pairs, sums)[
            np.arange(len(held)), held
        ]
        losses.append(-np.asarray(mixture(states, field_densities[held])))
    return np.concatenate(losses), np.asarray(marginals(seen, pairs, sums)), float(total)
