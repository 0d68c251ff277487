"""Potentials of a field's prior: couplings of edges and an external field of sites, held fixed or learned.

    log p(z) = Σ_{(s,t)} φ_st(z_s, z_t) + Σ_s h_s(z_s) − log Z

φ is β 1{j = k}, with one β or one an edge; or a matrix `[states, states]`, one for all edges or one an edge. A matrix that is
not symmetric applies to the edges as they are given, from s to t. h is `[sites, states]`, or D γ of covariates D
`[sites, terms]`, whose first column is one, with γ `[terms, states]`. A number added to all entries of a learned matrix, or of
a row of γ, changes no probability. Natural parameters therefore sum to zero, and θ has their differences from the last entry.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from ..._runtime.jax import Module
from ...data.arrays import index_of, numbers, pandas_of, places
from ...objectives.objective import as_stored
from ..emissions._base import but_last


class Free(Module):
    """Coupling to be learned, for `lo.MRF`.

    Parameters
    ----------
    start : float or array, default: 0.5
        Coupling to start from: a number, one an edge, or a matrix `[states, states]` of all edges.
    prior : tuple of float or None, default: (0.0, 1.0)
        Mean and standard deviation of a normal prior of each entry. For a matrix the mean is that of the diagonal, and zero
        elsewhere. None is flat; then a field all of whose neighbours agree has no interior optimum.
    directed : bool, default: False
        Whether a matrix need not be symmetric.

    See Also
    --------
    MRF, External

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.models.Free(1.0).prior
    (0.0, 1.0)
    """

    start: ArrayLike = 0.5
    prior: tuple[float, float] | None = (0.0, 1.0)
    directed: bool = False


class External(Module):
    """External field to be learned, for `lo.MRF`: for each state an intercept and a coefficient of each covariate.

    Parameters
    ----------
    covariates : array or DataFrame, shape (sites,) or (sites, covariates), optional
        Covariates, which are taken about their means. The default is intercepts only.
    prior : tuple of float or None, default: (0.0, 1.0)
        Mean and standard deviation of a normal prior of each, for a covariate of standard deviation one; None is flat.

    See Also
    --------
    MRF, Free

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.models.External(np.arange(4.0)).prior
    (0.0, 1.0)
    """

    covariates: Any = None
    prior: tuple[float, float] | None = (0.0, 1.0)


def read_coupling(
    coupling: "float | ArrayLike | Free", num_edges: int, num_states: int, flat: bool, directed: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return φ, or its start if it is free, and its prior or None; `directed` tells whether the edges have a direction."""
    free = coupling if isinstance(coupling, Free) else None
    try:
        value = as_stored(np.asarray(coupling.start if isinstance(coupling, Free) else coupling, np.float64))
    except (TypeError, ValueError):
        raise TypeError(
            f"MRF: coupling must be a number, one an edge, a matrix of states by states, or lo.models.Free(...); "
            f"got {coupling!r}."
        ) from None
    square = (num_states, num_states)
    if value.shape not in ((), (num_edges,), square, (num_edges, *square)) or not np.isfinite(value).all():
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
        raise ValueError("MRF: a coupling can be learned where there are edges, and two states or more.")
    if value.ndim == 3 or (skew and not free.directed):
        raise ValueError(
            "Free: a matrix is learned for all edges together, symmetric unless directed=True; got "
            + ("one an edge." if value.ndim == 3 else f"{_describe_value(value)}.")
        )
    return value, None if flat else _prior("Free", free.prior)


def read_external(
    external: "ArrayLike | External | None", index: Any, num_sites: int, num_states: int, flat: bool
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Return h or the start of γ, D, and the prior of γ."""
    if external is None:
        return None, None, None
    if not isinstance(external, External):
        value = np.asarray(numbers("MRF", "external", _in_order("external", external, index)), np.float64)
        if value.shape != (num_sites, num_states) or not np.isfinite(value).all():
            raise ValueError(
                f"MRF: external must be finite numbers, sites by states {[num_sites, num_states]}, or lo.models.External(...); "
                f"got {_describe_value(value)}."
            )
        return as_stored(value), None, None
    if num_states == 1:
        raise ValueError("MRF: an external field can be learned where there are two states or more.")
    design = np.ones((num_sites, 1))
    if external.covariates is not None:
        given = np.asarray(numbers("External", "covariates", _in_order("covariates", external.covariates, index)), np.float64)
        given = given[:, None] if given.ndim == 1 else given
        if given.ndim != 2 or len(given) != num_sites or not np.isfinite(given).all() or (np.ptp(given, axis=0) == 0).any():
            raise ValueError(
                f"External: covariates must be finite numbers that vary, one row for each of {num_sites} sites; got "
                f"{_describe_value(given)}. An intercept is there already."
            )
        design = np.concatenate([design, given - given.mean(0)], axis=1)
    prior = None if flat else _prior("External", external.prior)
    return as_stored(np.zeros((design.shape[1], num_states))), as_stored(design), prior


def _in_order(name: str, value: Any, index: Any) -> Any:
    """Put potentials into the order of the data's labels, if both have labels."""
    own, value = index_of(value), pandas_of("MRF", name, value)
    if own is None or index is None or len(own) != len(index):
        return value
    order = places("MRF", name, own, "x", index)
    return value if order is None else value.iloc[order]


def _describe_value(value: np.ndarray) -> str:
    finite = "" if np.isfinite(value).all() else ", some not finite"
    return str(value.tolist()) if value.size <= 9 else f"an array of shape {list(value.shape)}{finite}"


def _prior(caller: str, given: tuple[float, float] | None) -> np.ndarray | None:
    if given is None:
        return None
    prior = as_stored(given)
    if prior.shape != (2,) or not np.isfinite(prior).all() or prior[1] <= 0:
        raise ValueError(f"{caller}: prior must be a mean and a standard deviation, or None; got {given!r}.")
    return prior


def has_direction(edges: Any) -> bool:
    """Tell whether edges have a direction: pairs have, graphs and adjacency matrices have not."""
    return not (
        hasattr(edges, "nodes") or scipy.sparse.issparse(edges) or scipy.sparse.issparse(getattr(edges, "sparse", None))
    )


# between natural parameters and θ


def matrix_entries(num_states: int, directed: bool) -> Bool[np.ndarray, "states states"]:
    """Mark the entries of a matrix that θ has as differences from the last one."""
    all_ = np.ones((num_states, num_states), bool)
    wanted = all_ if directed else np.triu(all_)
    wanted[-1, -1] = False
    return wanted


def matrix(theta: Array, num_states: int, directed: bool) -> Float[Array, "states states"]:
    """Build the matrix of couplings from its part of θ; its entries sum to zero."""
    places = np.nonzero(matrix_entries(num_states, directed))
    found = jnp.zeros((num_states, num_states)).at[places].set(theta)
    if not directed:
        found = found.at[places[::-1]].set(theta)
    return found - jnp.mean(found)


def of_matrix(value: Float[np.ndarray, "states states"], directed: bool) -> Float[np.ndarray, " entries"]:
    value = np.asarray(value) if directed else (np.asarray(value) + np.asarray(value).T) / 2
    return (value - value[-1, -1])[matrix_entries(len(value), directed)]


def rows(theta: Float[Array, "terms others"], scale: Float[np.ndarray, " terms"]) -> Float[Array, "terms states"]:
    """Build γ, whose rows sum to zero; θ is in standard deviations of the covariates."""
    found = jnp.pad(jnp.asarray(theta), ((0, 0), (0, 1)))
    return (found - found.mean(-1, keepdims=True)) / scale[:, None]


def of_rows(value: Float[np.ndarray, "terms states"], scale: Float[np.ndarray, " terms"]) -> Float[np.ndarray, "terms others"]:
    value = np.asarray(value) * scale[:, None]
    return value[:, :-1] - value[:, -1:]


def row_entries(shape: tuple[int, ...]) -> Bool[np.ndarray, "terms states"]:
    return but_last(shape)


def scale_of(design: Float[np.ndarray, "sites terms"]) -> Float[np.ndarray, " terms"]:
    """Return the standard deviations of covariates, with one for the intercept."""
    sd = design.std(axis=0)
    return sd + (sd == 0)


def pairs(coupling: Array | np.ndarray, num_edges: int, num_states: int) -> Float[Array, "edges states states"]:
    """Return φ of every edge."""
    coupling = jnp.asarray(coupling)
    if coupling.ndim > 1:
        return jnp.broadcast_to(coupling, (num_edges, num_states, num_states))
    return jnp.broadcast_to(coupling, (num_edges,))[:, None, None] * jnp.eye(num_states)


def log_normal(value: Array | np.ndarray, prior: Float[np.ndarray, "2"]) -> Array:
    """Compute the log-density of a coupling up to a constant; the prior mean of a matrix is on its diagonal, centred."""
    mean, sd = prior
    if jnp.ndim(value) > 1:
        mean = mean * (jnp.eye(len(value)) - 1 / len(value))
    return -0.5 * jnp.sum(((value - mean) / sd) ** 2)
