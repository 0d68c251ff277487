"""Base class of emissions: the log-density of one observation in one state, its parameters and their prior.

Parameters are natural everywhere but in θ: a dict of named arrays, whose first axis counts the states unless
the name is in `shared`. Priors are densities of the natural parameters, without Jacobian, so that the posterior
mode does not depend on the parametrisation.
"""

import abc
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar
from numpy.typing import ArrayLike

from ..._jax import Module, traced

Parameters = Mapping[str, Array | np.ndarray]


class Constraint(NamedTuple):
    """A bijection between an unconstrained array and a natural parameter: that way by JAX, back by NumPy or JAX."""

    natural: Callable[[Array], Array]
    unconstrained: Callable[[np.ndarray], ArrayLike]
    entries: Callable[[tuple[int, ...]], Bool[np.ndarray, "..."]] = lambda shape: np.ones(shape, bool)  # as many as θ has
    legal: Callable[[np.ndarray], Bool[np.ndarray, "..."] | np.bool_] = (
        np.isfinite
    )  # which entries, rows, matrices lie in the domain
    domain: str = "finite"  # in words


def _log_ratios(p: np.ndarray) -> np.ndarray:
    return np.log(p[..., :-1]) - np.log(np.maximum(p[..., -1:], 1e-300))  # of a last of zero, finite and as good


def but_last(shape: tuple[int, ...]) -> Bool[np.ndarray, "..."]:
    """All entries but the last of each row."""
    return np.broadcast_to(np.arange(shape[-1]) < shape[-1] - 1, shape)


def _simplex(ratios: Array) -> Array:
    return jax.nn.softmax(jnp.concatenate([ratios, jnp.zeros((*ratios.shape[:-1], 1))], -1), axis=-1)


def _sums_to_one(p: np.ndarray) -> Bool[np.ndarray, "*rows"] | np.bool_:
    return (p >= 0).all(-1) & np.isclose(p.sum(-1), 1)


REAL = Constraint(lambda v: v, lambda v: v)
POSITIVE = Constraint(jnp.exp, np.log, legal=lambda v: (v > 0) & (v < np.inf), domain="positive and finite")
PROBABILITY = Constraint(
    jax.nn.sigmoid,
    lambda p: np.log(p) - np.log1p(-p),
    legal=lambda p: (p >= 0) & (p <= 1),
    domain="between zero and one",
)
SIMPLEX = Constraint(  # over the last axis, against the last entry
    _simplex,
    _log_ratios,
    but_last,
    _sums_to_one,
    "probabilities that sum to one in each row",
)


def check(x: np.ndarray, inside: np.ndarray, emission: str, domain: str) -> None:
    """Raise where an observed entry of x lies outside the emission's domain; NaN is missing, and passes."""
    outside = ~np.isnan(x) & ~inside
    if outside.any():
        step = int(np.flatnonzero(outside.reshape(len(x), -1).any(axis=1))[0])
        first = x[step][outside[step]].flat[0]
        raise ValueError(
            f"{emission}: observations must be {domain}; got {outside.sum()} other values, the first {first:g} at step {step}. "
            "A missing value is NaN."
        )


def times(weights: Array, logs: Array) -> Array:
    """`w log p`, zero where both are: a zero probability to the power of zero is one."""
    return weights * jnp.where((weights == 0) & ~jnp.isfinite(logs), 0.0, logs)


class AbstractEmission(Module):
    """The density of an observation given the state. To write one's own: `free`, `log_density`, `log_prior`, `initial`."""

    @property
    @abc.abstractmethod
    def free(self) -> dict[str, Constraint]:
        """The free parameters and where they live."""

    @abc.abstractmethod
    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        """Log-density of one step's datum, given the parameters of one state (no state axis), by JAX."""

    @abc.abstractmethod
    def initial(self, data: PyTree, observed: Bool[np.ndarray, " steps"], num_states: int, seed: int) -> Parameters:
        """Natural parameters to start a fit from."""

    def log_prior(self, parameters: Parameters) -> Scalar:
        """Log-density of the natural parameters, up to a constant; zero (flat) by default."""
        return jnp.zeros(())

    @property
    def score(self) -> str:
        """Score that −log of the density is: `LOG_DENSITY`, `LOG_PROBABILITY`, or "" where the emission does not say."""
        return ""

    @property
    def prior_note(self) -> str:
        """The prior in words, for the printed result."""
        own = type(self).log_prior is not AbstractEmission.log_prior
        return f"{type(self).__name__}'s own" if own else f"{', '.join(self.free)} flat"

    def prepare(self, x: Float[np.ndarray, "steps channels"], lengths: Int[np.ndarray, " sequences"]) -> PyTree:
        """The data that `log_density` sees, first axis the steps; checks the domain. A step with NaN is missing:
        its values arrive here as NaN and must leave as legal numbers."""
        check(x, np.isfinite(x), type(self).__name__, "finite")
        return np.where(np.isnan(x), 0.0, x)

    def matched(self, caller: str, index: pd.Index | None) -> "AbstractEmission":
        """The emission with what it was given of the steps, such as an exposure, put into their order by their labels."""
        return self

    def with_data(self, x: Float[np.ndarray, "steps channels"]) -> "AbstractEmission":
        """The emission with the hyperparameters that its default prior takes from the data's scale; to be called once,
        before `prepare`, and left as they are when data are left out."""
        return self

    def has_density(
        self, x: Float[np.ndarray, "steps channels"], lengths: Int[np.ndarray, " sequences"]
    ) -> Bool[np.ndarray, " steps"]:
        """The steps with a density: those observed in all channels, and whose regressors are. Others weigh nothing."""
        return ~np.isnan(x).any(axis=1)

    def log_densities(self, parameters: Parameters, data: PyTree) -> Float[Array, "steps states"]:
        """`log_density` of every step in every state. Override it where tables or matrix products are faster."""
        axes = {name: None if name in self.shared else 0 for name in parameters}
        each = lambda own, datum: traced(f"{type(self).__name__}.log_density", self.log_density, own, datum)
        states = jax.vmap(each, (axes, None))
        return jax.vmap(states, (None, 0))(parameters, data)

    def weighted(self, weights: Array, logs: Array) -> Array:
        """Weigh log-densities: the contribution of observations to the log-potentials of their states, zero at weight zero.

        Parameters
        ----------
        weights : array of float
            Weights of the observations.
        logs : array of float
            Log-densities.

        Returns
        -------
        array of float
            Products of the two, zero where the weight is zero.
        """
        return times(weights, logs)

    def curvature(
        self, parameters: Parameters, data: PyTree, expected: Float[Array, "steps states"]
    ) -> Float[Array, "states own own"] | None:
        """`−Σ_t expected_{tk} ∇² log e_t(k)` by state k's own unconstrained parameters (none that states share), raveled
        by name in alphabetical order; `parameters` are natural. None where differentiation is to find it: override it where
        there are many parameters and a closed form."""
        return None

    def means(self, parameters: Parameters, data: PyTree) -> Float[Array, "steps states channels"]:
        """The mean observation of every step in every state."""
        raise NotImplementedError(f"{type(self).__name__} has no means(); predictions need them.")

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Float[np.ndarray, "past channels"], rng: np.random.Generator
    ) -> Float[np.ndarray, " channels"]:
        """One observation drawn in a state, after the observations of `past` (same sequence, most recent last)."""
        raise NotImplementedError(f"{type(self).__name__} has no draw(); simulations and forecasts need it.")

    @property
    def shared(self) -> frozenset[str]:
        """Parameters that all states share: no state axis."""
        return frozenset()

    @property
    def fixed(self) -> Parameters:
        """Parameters held fixed, natural; they are listed beside the free ones, and all methods get both."""
        return {}

    @property
    def reach(self) -> int:
        """How many later steps have an observation among their regressors: the order of an autoregression."""
        return 0

    @property
    def num_states(self) -> int | None:
        """The number of states it is made for, if there is only one such."""
        return None

    def order(self, parameters: Parameters) -> Int[Array, " states"]:
        """The canonical order of the states: by the first number of the first free parameter that has a state axis.
        States told apart by a fixed parameter stay as they are."""
        for name, value in self.fixed.items():
            if name not in self.shared:
                return jnp.arange(len(value))
        name = next(name for name in self.free if name not in self.shared)
        value = parameters[name]
        return jnp.argsort(value.reshape(len(value), -1)[:, 0])

    def permute(self, parameters: Parameters, order: Int[Array | np.ndarray, " states"]) -> Parameters:
        return {name: value if name in self.shared else value[order] for name, value in parameters.items()}
