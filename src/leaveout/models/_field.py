"""What a hidden Markov random field is given, and what a fitted one says of its own data."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int, PyTree, Scalar
from numpy.typing import ArrayLike

from .._objective import stored
from .._read import Names, index_of, numbers
from ._edge import near_edge, say
from .clique import marginals, pair_marginals
from .emissions._base import AbstractEmission

BLOCKS = 20  # of sites, that standard errors go by, at least
UNUSED = 1.0  # expected sites below which a state explains nothing
AGREED = 0.1  # expected edges whose ends differ, below which the field is of one state
SAME = 1e-4  # relative difference of the parameters of two states below which they are one


class Labels(Names):
    """Of the sites, and of the fields where there are several, as the caller named them."""

    def __init__(self, index: pd.Index | None, fields: pd.Index | None, single: bool):
        super().__init__(index)
        self.fields, self.single = fields, single

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Labels) and self.single == other.single

    def __hash__(self) -> int:
        return hash(self.single)

    def units(self, drop: str) -> pd.Index | None:
        """Of the units: sites, pairs of a field and a site, or fields."""
        if drop == "field" or self.index is None:
            return self.fields if drop == "field" else None
        return self.index if self.fields is None else pd.MultiIndex.from_product([self.fields, self.index])

    def sites(self, values: np.ndarray) -> Any:
        """One value a site: a Series where a Series came in, no axis of fields where there was none."""
        values = values[0] if self.single else values
        return values if self.index is None or not self.single else pd.Series(values, index=self.index, name="state")

    def states(self, values: np.ndarray) -> Any:
        """One value a site and state."""
        values = values[0] if self.single else values
        if self.index is None or not self.single:
            return values
        return pd.DataFrame(values, index=self.index, columns=range(values.shape[-1]))


def check_choices(emission: Any, num_states: Any, styles: tuple[str, ...], drop: Any, prior: Any, score: Any) -> None:
    if not isinstance(emission, AbstractEmission):
        raise TypeError(f"MRF: emission must be an object such as lo.emissions.Poisson(); got {emission!r}.")
    if emission.reach:
        raise ValueError(f"MRF: {type(emission).__name__} regresses on earlier steps, which sites of a graph do not have.")
    if not isinstance(num_states, int | np.integer) or num_states < 1:
        raise ValueError(f"MRF: num_states must be a whole number, 1 or more; got {num_states!r}.")
    if emission.num_states not in (None, num_states):
        raise ValueError(f"MRF: {type(emission).__name__} has {emission.num_states} states; got num_states={num_states}.")
    for name, value, known in (("drop", drop, styles), ("score", score, ("pointwise", "joint"))):
        if value not in known:
            raise ValueError(f"MRF: {name} must be one of {', '.join(map(repr, known))}; got {value!r}.")
    if not (prior is None or (isinstance(prior, str) and prior == "default")):
        raise ValueError(f"MRF: prior must be 'default' or None; got {prior!r}.")


def read(x: ArrayLike) -> tuple[Float[np.ndarray, "fields sites channels"], Labels]:
    """The data as float64, NaN where missing."""
    index, fields = index_of(x), None
    if isinstance(x, pd.DataFrame):  # a row a field, a column a site
        index, fields = x.columns, x.index
    raw = x if isinstance(x, pd.Series | pd.DataFrame) else np.asarray(x)
    if raw.ndim not in (1, 2, 3) or 0 in raw.shape:
        raise ValueError(
            f"MRF: x must be [sites], [fields, sites] or [fields, sites, channels], none empty; got shape {raw.shape}."
        )
    array = np.array(numbers("MRF", "x", x), np.float64)
    single = array.ndim == 1
    array = array[None, :, None] if single else array[..., None] if array.ndim == 2 else array
    if array.shape[1] < 2:
        raise ValueError(f"MRF: at least two sites are needed; got {array.shape[1]}.")
    if np.isinf(array).any():
        f, s, _ = np.argwhere(np.isinf(array))[0]
        raise ValueError(f"MRF: x holds {np.isinf(array).sum()} infinite values, the first in field {f} at site {s}.")
    if np.isnan(array).any(-1).all():
        raise ValueError("MRF: every observation in x is missing (NaN).")
    return stored(array), Labels(index, fields, single)


def read_coupling(coupling: Any, num_edges: int, num_states: int, flat: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """β, or where it starts; and its prior, where it has one."""
    free = hasattr(coupling, "start")
    try:
        value = stored(coupling.start if free else coupling)
    except (TypeError, ValueError):
        raise TypeError(f"MRF: coupling must be a number, one an edge, or lo.Free(...); got {coupling!r}.") from None
    if value.shape not in ((), (num_edges,)) or not np.isfinite(value).all():
        raise ValueError(
            f"MRF: coupling must be a finite number, or one for each of {num_edges} edges; got {np.asarray(value).tolist()}."
        )
    if not free:
        return value, None
    if num_states == 1 or num_edges == 0:
        raise ValueError("MRF: a coupling can be learned where there are edges, and two states or more.")
    if flat or coupling.prior is None:
        return value, None
    prior = stored(coupling.prior)
    if prior.shape != (2,) or not np.isfinite(prior).all() or prior[1] <= 0:
        raise ValueError(f"Free: prior must be a mean and a standard deviation, or None; got {coupling.prior!r}.")
    return value, prior


def check_size(field: Any) -> None:
    count, seen = len(field.parameters.names()), int(field.dense.sum())
    no_prior = field.flat or (field.learned and field.coupling_prior is None)
    if seen < field.number or (no_prior and seen * field.x.shape[2] < count):
        raise ValueError(
            f"MRF: {seen * field.x.shape[2]} observations cannot determine {count} parameters of {field.number} states; take "
            f"fewer states{', or a prior' if no_prior else ''}."
        )


@eqx.filter_jit
def prior_partition(field: Any, theta: PyTree) -> Scalar:
    return field._log_normaliser(field._coupled(theta))


@eqx.filter_jit
def losses(field: Any, theta: PyTree) -> Float[Array, " fields"]:
    return field._losses(theta, field._densities(theta), jnp.asarray(field.dense))


@eqx.filter_jit
def smoothed(field: Any, theta: PyTree, weights: Array) -> Float[Array, "fields sites states"]:
    sites = jnp.repeat(weights, field.x.shape[1]) if field.drop == "field" else weights
    return marginals(field._seen(sites, field._densities(theta)), field._coupled(theta), field.tree)


@eqx.filter_jit
def expected(field: Any, theta: PyTree) -> tuple[Float[Array, "fields sites states"], Float[Array, " edges"]]:
    """State probabilities, and the expected number of fields in which the ends of an edge agree."""
    seen = field._seen(jnp.ones(field.dense.size), field._densities(theta))
    states, pairs = pair_marginals(seen, field._coupled(theta), field.tree)
    return states, jnp.trace(pairs, axis1=-2, axis2=-1).sum(0)


@eqx.filter_jit
def _potentials(field: Any, theta: PyTree) -> tuple[Array, Array]:
    seen = field._seen(jnp.ones(field.dense.size), field._densities(theta))
    return seen, field._coupled(theta)


def decoded(field: Any, theta: PyTree) -> Int[np.ndarray, "fields sites"]:
    """The best configuration, found going up by maxima, and read off going down."""
    seen, edges = (np.asarray(part) for part in _potentials(field, theta))
    potentials = [np.concatenate([sites.ravel(), edges.ravel()])[:, None] for sites in seen]
    return np.concatenate([field.tree.walk(one, 1, np.random.default_rng(0), best=True) for one in potentials])


def draw(
    field: Any, theta: PyTree, num_fields: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "fields sites ..."], Int[np.ndarray, "fields sites"]]:
    """States from the roots down, and an observation at each site."""
    edges = np.asarray(_potentials(field, theta)[1])
    nothing = np.zeros((field.x.shape[1], field.number))
    z = field.tree.walk(np.concatenate([nothing.ravel(), edges.ravel()])[:, None], num_fields, rng)
    own = jax.tree.map(np.asarray, field.emitted(theta))
    past = np.zeros((0, field.x.shape[2]))
    x = np.array([[field.emission.draw(own, k, s, past, rng) for s, k in enumerate(row)] for row in z])
    return (x[..., 0] if field.x.shape[2] == 1 else x), z


def _alike(field: Any, found: dict[str, np.ndarray], j: int, k: int) -> bool:
    """Have two states the same parameters?"""
    own = [found[name] for name in field.emission.free if name not in field.emission.shared]
    return bool(own) and all(np.allclose(value[j], value[k], rtol=SAME, atol=SAME * np.abs(value).max()) for value in own)


def warning(field: Any, theta: PyTree) -> str:
    """States that explain nothing, and parameters on a boundary."""
    found = jax.tree.map(np.asarray, field.parameters.natural(theta))
    everything, agree = (np.asarray(part) for part in expected(field, theta))
    visits = (everything * field.dense[..., None]).sum((0, 1))
    empty, sentences = np.flatnonzero(visits < UNUSED), []
    disagree = len(field.x) * len(field.edges) - agree.sum()
    if field.number > 1 and (len(empty) == field.number - 1 or (len(agree) and disagree < AGREED)):
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
    twins = [(j, k) for k in range(field.number) for j in range(k) if _alike(field, found, j, k)]
    if twins and len(sentences) == 0:
        sentences.append(
            f"States {twins[0][0]} and {twins[0][1]} are the same: the observations tell no more than "
            f"{field.number - len({k for _, k in twins})} states apart; take fewer states."
        )
    spread = np.nanvar(field.x, axis=(0, 1))
    near = [entry for name in field.emission.free for entry in near_edge(field.emission, name, found[name], spread)]
    sentences += [say(near)] if near else []
    return " ".join(sentences)
