"""Priors of natural parameters: log-densities up to a constant, without Jacobian, summed over independent entries.

A prior that is not given takes its scale from the data, once, by `with_data`; hyperparameters that were given stay.
"""

import abc
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Scalar
from numpy.typing import ArrayLike

from ..._runtime.jax import Arrays, Module, static
from ...objectives.objective import as_stored
from ._base import AbstractEmission, Parameters
from ._covariance import inverse


class AbstractPrior(Module):
    """Density of one parameter in all states together."""

    @abc.abstractmethod
    def __call__(self, value: Arrays) -> Scalar:
        """Compute the log-density up to a constant."""

    def __str__(self) -> str:
        numbers = [getattr(self, name) for name in self.__dataclass_fields__]
        shown = [f"{v:.4g}" if v.ndim == 0 else f"{_brief(v)}" for v in numbers]
        return f"{type(self).__name__.removesuffix('Prior')}({', '.join(shown)})"


def _brief(value: np.ndarray) -> str:
    return f"[{', '.join(f'{v:.4g}' for v in value)}]" if value.ndim == 1 and len(value) < 4 else f"array {list(value.shape)}"


def _positive(prior: str, name: str, value: ArrayLike) -> np.ndarray:
    array = as_stored(value)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError(f"{prior} prior: {name} must be positive and finite; got {array}.")
    return array


class GammaPrior(AbstractPrior):
    """`(a − 1) log v − b v`, shape a and rate b."""

    shape: Float[np.ndarray, "..."]
    rate: Float[np.ndarray, "..."]

    def __init__(self, shape: ArrayLike, rate: ArrayLike):
        self.shape, self.rate = _positive("Gamma", "shape", shape), _positive("Gamma", "rate", rate)

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum((self.shape - 1) * jnp.log(value) - self.rate * value)


class InverseGamma(AbstractPrior):
    """`−(a + 1) log v − b / v`, shape a and scale b."""

    shape: Float[np.ndarray, "..."]
    scale: Float[np.ndarray, "..."]

    def __init__(self, shape: ArrayLike, scale: ArrayLike):
        self.shape, self.scale = _positive("InverseGamma", "shape", shape), _positive("InverseGamma", "scale", scale)

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum(-(self.shape + 1) * jnp.log(value) - self.scale / value)


class InverseWishart(AbstractPrior):
    """`−½ (ν + R + 1) log |Σ| − ½ tr(Ψ Σ⁻¹)`, ν degrees of freedom and scale Ψ `[R, R]`."""

    freedom: Float[np.ndarray, ""]
    scale: Float[np.ndarray, "channels channels"]

    def __init__(self, freedom: float, scale: ArrayLike):
        self.freedom, self.scale = _positive("InverseWishart", "freedom", freedom), as_stored(scale)

    def __call__(self, value: Arrays) -> Scalar:
        precision, log_det = inverse(value)
        channels = value.shape[-1]
        return -0.5 * jnp.sum((self.freedom + channels + 1) * log_det + jnp.sum(self.scale * precision, axis=(-2, -1)))


class Normal(AbstractPrior):
    """`−½ ((v − m) / s)²`, mean m and standard deviation s: of a matrix, the matrix normal with diagonal covariances."""

    mean: Float[np.ndarray, "..."]
    sd: Float[np.ndarray, "..."]

    def __init__(self, mean: ArrayLike, sd: ArrayLike):
        self.mean, self.sd = as_stored(mean), _positive("Normal", "sd", sd)

    def __call__(self, value: Arrays) -> Scalar:
        return -0.5 * jnp.sum(((value - self.mean) / self.sd) ** 2)


class MatrixNormal(AbstractPrior):
    """Prior of independent entries `[…, lags, R, R]` about c times the identity at the first lag and about zero at the others.

    Its logarithm is `−½ ((v − c 1) / s)²`.
    """

    identity: Float[np.ndarray, ""]
    sd: Float[np.ndarray, "..."]

    def __init__(self, identity: float, sd: ArrayLike):
        self.identity, self.sd = as_stored(identity), _positive("MatrixNormal", "sd", sd)

    def __call__(self, value: Arrays) -> Scalar:
        centre = np.zeros(value.shape[-3:])
        centre[0] = np.eye(value.shape[-1])
        return -0.5 * jnp.sum(((value - self.identity * centre) / self.sd) ** 2)


class BetaPrior(AbstractPrior):
    """`(a − 1) log v + (b − 1) log(1 − v)`."""

    a: Float[np.ndarray, "..."]
    b: Float[np.ndarray, "..."]

    def __init__(self, a: ArrayLike, b: ArrayLike):
        self.a, self.b = _positive("Beta", "a", a), _positive("Beta", "b", b)

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum((self.a - 1) * jnp.log(value) + (self.b - 1) * jnp.log1p(-value))


class DirichletPrior(AbstractPrior):
    """`Σ (α − 1) log v` over the last axis, for any sum."""

    concentration: Float[np.ndarray, "..."]

    def __init__(self, concentration: ArrayLike):
        self.concentration = _positive("Dirichlet", "concentration", concentration)

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum((self.concentration - 1) * jnp.log(value))


Priors = dict[str, AbstractPrior]
Choice = Mapping[str, tuple[Any, ...] | None] | None | Literal["default"]


def choose(emission: str, default: Priors, choice: Choice) -> tuple[Priors, frozenset[str]]:
    """Choose the priors by parameter; return them with the names of those whose scale the data will determine."""
    if choice is None:
        return {}, frozenset()
    if isinstance(choice, str):
        if choice != "default":
            raise ValueError(f'{emission}: prior must be "default", None (flat) or a dict; got {choice!r}.')
        return default, frozenset(default)
    if unknown := set(choice) - set(default):
        raise ValueError(f"{emission}: prior for {sorted(unknown)}, but the free parameters are {list(default)}.")
    given = {name: type(default[name])(*values) for name, values in choice.items() if values is not None}
    kept = {name: prior for name, prior in default.items() if name not in choice}
    return {**kept, **given}, frozenset(kept)


class AbstractWithPrior(AbstractEmission):
    """Emission with independent priors by parameter."""

    prior: Priors
    adaptive: frozenset[str] = static()

    @abc.abstractmethod
    def default_prior(self, x: Float[np.ndarray, "steps channels"]) -> Priors:
        """Return the default priors at the data's scale."""

    def with_data(self, x: Float[np.ndarray, "steps channels"]) -> "AbstractEmission":
        if not self.adaptive:
            return self
        scaled = self.default_prior(np.where(np.isfinite(x), x, np.nan))  # `prepare` refuses values that are not finite
        prior = {name: scaled[name] if name in self.adaptive else value for name, value in self.prior.items()}
        return eqx.tree_at(lambda emission: emission.prior, self, prior, is_leaf=lambda node: node is self.prior)

    def log_prior(self, parameters: Parameters) -> Scalar:
        return sum((prior(parameters[name]) for name, prior in self.prior.items()), jnp.zeros(()))

    @property
    def prior_note(self) -> str:
        return ", ".join(f"{name} ~ {self.prior[name]}" if name in self.prior else f"{name} flat" for name in self.free)
