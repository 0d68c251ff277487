"""Common part of models of hidden states: the parameters of the emission and of the distribution of the states."""

import abc
from collections.abc import Collection
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._runtime.jax import PyTree
from ...objectives.objective import AbstractObjective, float64
from ..emissions._base import POSITIVE, PROBABILITY, REAL, SIMPLEX, AbstractEmission, Constraint
from ..emissions._covariance import MATRIX
from .observations import GivenParameters, read_parameters

Shape = tuple[int, ...]
KINDS = ("response", "state")  # kinds of predictions
BOUNDARY_SHARE = 1e-6  # share of a usual value below which a probability, a rate or a variance is at the boundary
IDLE_STATE_COUNT = 1.0  # expected observations below which a state explains nothing
LATENT = {
    "initial": SIMPLEX,
    "transition": SIMPLEX,
    "coupling": REAL,
    "external": REAL,
}  # domains of the parameters of the states' distribution


class AbstractHiddenStates(AbstractObjective):
    """Objective whose units are observed through emissions of hidden states."""

    x: Float[np.ndarray, "... channels"]
    data: PyTree  # x as prepared by the emission
    dense: Bool[np.ndarray, "..."]  # whether there is an observation
    emission: AbstractEmission
    drop: str
    joint: bool
    shapes: tuple[Any, ...]  # shapes of the emission's free parameters
    latent: ClassVar[tuple[str, ...]]  # natural parameters of the states' distribution

    @property
    @abc.abstractmethod
    def num_states(self) -> int:
        """Number of states."""

    @property
    @abc.abstractmethod
    def latent_shapes(self) -> dict[str, Shape]:
        """Shapes of the free parameters among `latent`."""

    @abc.abstractmethod
    def latent_unconstrained(self, name: str, value: np.ndarray) -> np.ndarray:
        """Part of θ for one of the parameters `latent`."""

    @abc.abstractmethod
    def log_likelihood(self, parameters: GivenParameters) -> float:
        """Compute log p(x; θ), without the prior.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The log-likelihood.
        """

    def latent_names(self, name: str) -> list[str]:
        """Names of the entries of a parameter of the states' distribution."""
        return entries(name, np.ones(self.latent_shapes[name], bool))

    def emission_parameters(self, theta: PyTree) -> dict[str, Array]:
        """Return the emission's natural parameters, free and fixed."""
        own = {name: constraint.natural(jnp.asarray(theta[name])) for name, constraint in self.emission.free.items()}
        return {**own, **{name: jnp.asarray(value) for name, value in self.emission.fixed.items()}}

    @float64
    def _to_unconstrained(self, parameters):
        model, shapes = type(self).__name__, {**self.latent_shapes, **dict(self.shapes)}
        theta = {}
        for name, value in read_parameters(model, parameters, shapes, {*self.latent, *self.emission.fixed}).items():
            own = self.emission.free.get(name)
            constraint = LATENT[name] if own is None else own
            with np.errstate(divide="ignore", invalid="ignore"):  # logarithms of zeros are infinite
                found = np.asarray(self.latent_unconstrained(name, value) if own is None else own.unconstrained(value))
                at = _outside(value, found, constraint)
            if at is not None:
                got = f"{name}{at or ''} = {value[tuple(at)].tolist()}"
                raise ValueError(f"{model}: {name} must be {constraint.domain}; got {got}.")
            theta[name] = found
        return theta

    def _names(self) -> list[str]:
        latent = {name: self.latent_names(name) for name in self.latent_shapes}
        own = {name: entries(name, self.emission.free[name].entries(shape)) for name, shape in self.shapes}
        return [entry for _, entries in sorted({**latent, **own}.items()) for entry in entries]

    def check_size(self, prior: bool) -> None:
        """Raise ValueError if the data cannot determine the parameters, with or without a `prior` of all of them."""
        count, seen = len(self._names()), int(self.dense.sum())
        if seen < self.num_states or (not prior and seen * self.x.shape[-1] < count):
            raise ValueError(
                f"{type(self).__name__}: {seen * self.x.shape[-1]} observations cannot determine {count} parameters of "
                f"{self.num_states} states; take fewer states{'' if prior else ', or a prior'}."
            )

    def check_kind(self, kind: str, of: str, whole: str) -> None:
        """Raise ValueError if there are no predictions of this kind."""
        if self.drop == whole or kind not in KINDS:
            raise ValueError(
                f'{type(self).__name__}: predictions are of {of}, kind "response" (means) or "state"; got {kind!r} with '
                f"drop={self.drop!r}."
            )

    def means(self, states: Float[Array, "some states"], own: dict[str, Array], data: PyTree) -> Float[Array, "some channels"]:
        """Compute the mean observation of each step or site from its state probabilities and the emission's parameters."""
        return jnp.einsum("tk,tkr->tr", states, self.emission.means(own, data))

    def on_boundary(
        self, result: dict[str, np.ndarray], spread: Float[np.ndarray, " channels"], support: dict[str, Any]
    ) -> str:
        """Name natural parameters at a boundary in a sentence, or return ""; `support` marks those that are not held there."""
        near = [
            entry for name in result for entry in near_edge(self.emission, name, result[name], spread, support.get(name, True))
        ]
        return (
            f"On the boundary: {', '.join(near[:5])}{', …' if len(near) > 5 else ''}; a prior keeps them off it."
            if near
            else ""
        )

    @property
    def pointwise(self) -> bool:
        return not self.joint

    @property
    def num_specified(self) -> int:
        """Number of parameters of the model as specified by the user."""
        return len(self._names())

    def aic(self, parameters: GivenParameters) -> float:
        """Compute Akaike's information criterion, `2 D − 2 log p(x; θ)`.

        D is the number of parameters that were specified. Those that the data put on a boundary, where `fit` holds them, count
        (Zucchini and MacDonald 2009); zeros that the user specified do not.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The criterion.
        """
        return 2 * self.num_specified - 2 * self.log_likelihood(parameters)

    def bic(self, parameters: GivenParameters) -> float:
        """Compute the Bayesian information criterion, `D log(number of observations) − 2 log p(x; θ)`, with D as in `aic`.

        Parameters
        ----------
        parameters : Fit or dict
            A fit or its natural parameters.

        Returns
        -------
        float
            The criterion.
        """
        return self.num_specified * float(np.log(self.dense.sum())) - 2 * self.log_likelihood(parameters)


def check_choices(model: str, emission: object, num_states: object, styles: Collection[str], drop: str, score: str) -> None:
    """Raise TypeError or ValueError if the emission, the number of states, the style or the score is not valid."""
    if not isinstance(emission, AbstractEmission):
        raise TypeError(f"{model}: emission must be an object such as lo.emissions.Gaussian(); got {emission!r}.")
    if model == "HMM" and type(emission).weigh is not AbstractEmission.weigh:
        raise ValueError(
            f"HMM: {type(emission).__name__} is for fields; a chain whose states are seen is a Markov chain: its transitions "
            "are counted."
        )
    if not isinstance(num_states, int | np.integer) or num_states < 1:
        raise ValueError(f"{model}: num_states must be a whole number, 1 or more; got {num_states!r}.")
    if emission.num_states not in (None, num_states):
        raise ValueError(f"{model}: {type(emission).__name__} has {emission.num_states} states; got num_states={num_states}.")
    for name, value, known in (("drop", drop, styles), ("score", score, ("pointwise", "joint"))):
        if value not in known:
            raise ValueError(f"{model}: {name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def _outside(value: np.ndarray, result: np.ndarray, constraint: Constraint) -> list[int] | None:
    """Find the first entry, row or matrix of a natural parameter that is outside its domain or has no finite θ."""
    illegal = np.argwhere(np.logical_not(constraint.legal(value))).tolist()
    if illegal:
        return illegal[0]
    if result.size == value.size:
        return next(iter(np.argwhere(np.isnan(result)).tolist()), None)
    lost = np.argwhere(~(result < np.inf)).tolist()  # a matrix not positive definite
    return lost[0][:-1] if lost else None


def entries(name: str, which: Bool[np.ndarray, "..."]) -> list[str]:
    """Names of the entries of a parameter where `which` is true, such as `start[0]`."""
    return [name + (str(at) if at else "") for at in np.argwhere(which).tolist()]


def mixture(states: Float[Array, "units states"], densities: Float[Array, "units states"]) -> Float[Array, " units"]:
    """Compute `log Σ_k p_k e_k`."""
    top = jax.lax.stop_gradient(densities.max(-1))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(jnp.sum(states * jnp.exp(densities - top[:, None]), -1)) + top


def near_edge(
    emission: AbstractEmission,
    name: str,
    value: np.ndarray,
    spread: Float[np.ndarray, " channels"],
    free: np.ndarray | bool = True,
) -> list[str]:
    """Describe the entries of a parameter that are at a boundary, and their values.

    `spread` are the variances of the channels; `free` marks the probabilities that are not held.
    """
    constraint, spread = emission.free.get(name, SIMPLEX), np.where(spread > 0, spread, 1.0)
    if constraint is MATRIX:
        least = _least_eigenvalue(value, spread)
        return [
            f"{name}{at or ''} (smallest eigenvalue {least[*at]:.1g})" for at in np.argwhere(least < BOUNDARY_SHARE).tolist()
        ]
    if constraint is SIMPLEX:
        where = (value < BOUNDARY_SHARE) & free
    elif constraint is POSITIVE:
        where = _small(emission, name, value, spread)
    elif constraint is PROBABILITY:
        where = _small(emission, name, value, spread) | _small(emission, name, 1 - value, spread)
    else:
        return []
    return [f"{name}{at or ''} = {value[*at]:.1g}" for at in np.argwhere(where).tolist()]


def _small(
    emission: AbstractEmission, name: str, value: np.ndarray, spread: Float[np.ndarray, " channels"]
) -> Bool[np.ndarray, "..."]:
    """Mark entries of a parameter that are close to zero, at a degenerate state.

    A variance is compared with those of other states in the same channel and with the variance of the data, since channels have
    scales of their own. Rates and probabilities are compared with those of other states, or by a further factor `EDGE` with all
    channels.
    """
    states = value if name in emission.shared else value.max(axis=0)
    spread = spread if value.ndim > 1 else spread.min()
    return np.asarray(
        value < BOUNDARY_SHARE * np.maximum(states, spread if name == "covariance" else BOUNDARY_SHARE * value.max())
    )


def _least_eigenvalue(matrix: Float[np.ndarray, "... n n"], spread: Float[np.ndarray, " n"]) -> Float[np.ndarray, "..."]:
    """Least eigenvalue of covariances, in units in which the variance of each channel is one."""
    scaled = matrix / np.sqrt(spread[:, None] * spread)
    return np.linalg.eigvalsh(np.where(np.isfinite(scaled), scaled, 0.0))[..., 0]
