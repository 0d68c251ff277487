"""What a penalty on the coefficients is."""

import abc
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._jax import Array, Module, Scalar
from .._norms import Norms
from .losses import AbstractLoss, PseudoHuber as Rounded


class Bent(NamedTuple):
    """`Σ_j weight_j ψ(rows_jᵀ coef)`, by default ψ(t) = √(1 + t²) − 1."""

    rows: Float[np.ndarray, "terms features"]
    weight: Float[np.ndarray, " terms"]
    loss: AbstractLoss = Rounded(1.0)


class AbstractPenalty(Module):
    """A function of the coefficients, `[features]` or `[outputs, features]`."""

    @abc.abstractmethod
    def __call__(self, coef: Array) -> Scalar:
        """The penalty's value."""

    @property
    @abc.abstractmethod
    def quadratic(self) -> bool:
        """Is its third derivative zero?"""

    def check(self, features: int) -> None:
        """Raise where the penalty does not fit so many features."""

    def times(self, weights: Array, weighted: Array) -> Array | np.ndarray:
        """How many times it is added to a loss of these weights `w`, `weighted` being `w s`."""
        del weights, weighted
        return np.ones(())

    def second(self, features: int) -> np.ndarray:
        """The Hessian of what of it is quadratic, `[features, features]`."""
        raise NotImplementedError(f"{type(self).__name__} is not known to be quadratic.")

    def diagonal(self, features: int) -> Float[np.ndarray, " features"] | None:
        """That of `second`, where all of that is on it."""
        del features
        return None

    def bent(self, features: int) -> Bent | None:
        """What of it is not; None where that is not known to be such a sum."""
        return Bent(np.zeros((0, features)), np.zeros(0)) if self.quadratic else None

    @property
    def kinked(self) -> bool:
        """Is some `a_j |coef_j|` in it, or `a_g ‖coef_g‖`, or a bound?"""
        return False

    def bounds(self, features: int) -> tuple[Float[np.ndarray, " features"], Float[np.ndarray, " features"]]:
        """Between what the coefficients are."""
        return np.full(features, -np.inf), np.full(features, np.inf)

    def kinks(self, features: int) -> Float[np.ndarray, " features"]:
        """These a."""
        return np.zeros(features)

    def norms(self, features: int) -> Norms | None:
        """What of it is a_g ‖coef_g‖ of groups."""
        del features
        return None

    def __add__(self, other: "AbstractPenalty") -> "AbstractPenalty":
        from .penalties import Sum, resolve, terms_of

        return Sum((*terms_of(self), *terms_of(resolve(other))))
