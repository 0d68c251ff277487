"""Priors of natural parameters: log-densities up to a constant, without Jacobian, summed over independent entries.

A prior that is not given takes its scale from the data, once, by `with_data`; hyperparameters that were given stay.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Scalar
from numpy.typing import ArrayLike

from ..._runtime.jax import Arrays, Module, PyTree, static
from ...objectives.objective import as_stored
from ._base import AbstractEmission, Observations, Parameters
from ._covariance import inverse

Numbers = Any  # a number or an array of hyperparameters, which is stored as an array of NumPy


class AbstractPrior(Module):
    """Density of one parameter in all states together, from one number or array for each field."""

    signed: ClassVar[str] = ""  # the field that need not be positive, if there is one

    def __init__(self, *numbers: ArrayLike):
        prior, names = type(self).__name__.removesuffix("Prior"), [field.name for field in dataclasses.fields(self)]
        if len(numbers) != len(names):
            raise TypeError(f"{prior} prior: give {', '.join(names)}; got {len(numbers)} values.")
        for name, value in zip(names, numbers, strict=True):
            array = as_stored(value)
            if name != self.signed and not (np.isfinite(array).all() and (array > 0).all()):
                raise ValueError(f"{prior} prior: {name} must be positive and finite; got {array}.")
            setattr(self, name, array)

    @abc.abstractmethod
    def __call__(self, value: Arrays) -> Scalar:
        """Compute the log-density up to a constant."""

    def __str__(self) -> str:
        numbers = [getattr(self, field.name) for field in dataclasses.fields(self)]
        few = lambda v: f"[{', '.join(f'{entry:.4g}' for entry in v)}]"
        shown = [
            f"{v:.4g}" if v.ndim == 0 else few(v) if v.ndim == 1 and len(v) < 4 else f"array {list(v.shape)}" for v in numbers
        ]
        return f"{type(self).__name__.removesuffix('Prior')}({', '.join(shown)})"


class GammaPrior(AbstractPrior):
    """`(a − 1) log v − b v`, shape a and rate b."""

    shape: Numbers
    rate: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum((self.shape - 1) * jnp.log(value) - self.rate * value)


class InverseGamma(AbstractPrior):
    """`−(a + 1) log v − b / v`, shape a and scale b."""

    shape: Numbers
    scale: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum(-(self.shape + 1) * jnp.log(value) - self.scale / value)


class InverseWishart(AbstractPrior):
    """`−½ (ν + R + 1) log |Σ| − ½ tr(Ψ Σ⁻¹)`, ν degrees of freedom and scale Ψ `[R, R]`."""

    signed = "scale"

    freedom: Numbers
    scale: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        precision, log_det = inverse(value)
        channels = value.shape[-1]
        return -0.5 * jnp.sum((self.freedom + channels + 1) * log_det + jnp.sum(self.scale * precision, axis=(-2, -1)))


class Normal(AbstractPrior):
    """`−½ ((v − m) / s)²`, mean m and standard deviation s: of a matrix, the matrix normal with diagonal covariances."""

    signed = "mean"

    mean: Numbers
    sd: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        return -0.5 * jnp.sum(((value - self.mean) / self.sd) ** 2)


class MatrixNormal(AbstractPrior):
    """Prior of independent entries `[…, lags, R, R]` about c times the identity at the first lag and about zero at the others.

    Its logarithm is `−½ ((v − c 1) / s)²`.
    """

    signed = "identity"

    identity: Numbers
    sd: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        centre = np.zeros(value.shape[-3:])
        centre[0] = np.eye(value.shape[-1])
        return -0.5 * jnp.sum(((value - self.identity * centre) / self.sd) ** 2)


class BetaPrior(AbstractPrior):
    """`(a − 1) log v + (b − 1) log(1 − v)`."""

    a: Numbers
    b: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum((self.a - 1) * jnp.log(value) + (self.b - 1) * jnp.log1p(-value))


class DirichletPrior(AbstractPrior):
    """`Σ (α − 1) log v` over the last axis, for any sum."""

    concentration: Numbers

    def __call__(self, value: Arrays) -> Scalar:
        return jnp.sum((self.concentration - 1) * jnp.log(value))


Priors = dict[str, AbstractPrior]
Choice = Mapping[str, tuple[Any, ...] | None] | None | Literal["default"]


class AbstractWithPrior(AbstractEmission):
    """Emission with independent priors by parameter, whose `log_density` is that of one step in `log_densities`."""

    prior: Priors
    adaptive: frozenset[str] = static()

    @abc.abstractmethod
    def default_prior(self, x: Observations) -> Priors:
        """Return the default priors at the data's scale, which is one where nothing is observed."""

    def _choose_prior(self, choice: Choice, channels: int = 1) -> None:
        """Choose the priors by parameter; the data will determine the scale of the `adaptive` ones."""
        default, name = self.default_prior(np.full((1, channels), np.nan)), type(self).__name__
        if isinstance(choice, str) and choice != "default":
            raise ValueError(f'{name}: prior must be "default", None (flat) or a dict; got {choice!r}.')
        chosen = {} if isinstance(choice, str) else dict.fromkeys(default) if choice is None else choice
        if unknown := set(chosen) - set(default):
            raise ValueError(f"{name}: prior for {sorted(unknown)}, but the free parameters are {list(default)}.")
        kept = {key: prior for key, prior in default.items() if key not in chosen}
        given = {key: type(default[key])(*values) for key, values in chosen.items() if values is not None}
        self.prior, self.adaptive = {**kept, **given}, frozenset(kept)

    def with_data(self, x: Observations) -> "AbstractEmission":
        if not self.adaptive:
            return self
        scaled = self.default_prior(np.where(np.isfinite(x), x, np.nan))  # `prepare` refuses values that are not finite
        prior = {name: scaled[name] if name in self.adaptive else value for name, value in self.prior.items()}
        return eqx.tree_at(lambda emission: emission.prior, self, prior, is_leaf=lambda node: node is self.prior)

    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        state = {name: value if name in self.shared else jnp.asarray(value)[None] for name, value in parameters.items()}
        return self.log_densities(state, jax.tree.map(lambda value: jnp.asarray(value)[None], datum))[0, 0]

    def log_prior(self, parameters: Parameters) -> Scalar:
        return sum((prior(parameters[name]) for name, prior in self.prior.items()), jnp.zeros(()))

    @property
    def prior_note(self) -> str:
        return ", ".join(f"{name} ~ {self.prior[name]}" if name in self.prior else f"{name} flat" for name in self.free)
