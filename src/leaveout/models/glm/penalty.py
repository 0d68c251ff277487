"""Base class of penalties on the coefficients."""

import abc
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..._runtime.jax import Array, Module, Scalar
from ...linalg.group_norms import Norms
from .losses import AbstractLoss, PseudoHuber as Rounded


class Bent(NamedTuple):
    """Sum `Σ_j weight_j ψ(rows_jᵀ coef)`, by default ψ(t) = √(1 + t²) − 1.

    Parameters
    ----------
    rows : array of float, shape (terms, features)
        Linear combinations of the coefficients.
    weight : array of float, shape (terms,)
        Weights of the terms.
    loss : AbstractLoss, default: PseudoHuber(1.0)
        Loss that defines ψ.

    Examples
    --------
    >>> from leaveout.models._penalty import Bent
    >>> Bent(np.eye(2), np.ones(2)).weight
    array([1., 1.])
    """

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
        """Whether the third derivative of the penalty is zero."""

    def check(self, features: int) -> None:
        """Raise if the penalty does not fit this number of coefficients.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Raises
        ------
        ValueError
            If the shapes differ, or bounds leave a coefficient no place.
        """

    def times(self, weights: Array, weighted: Array) -> Array | np.ndarray:
        """Return the factor of the penalty in a refit of these weights. It is one unless the penalty grows with the data.

        Parameters
        ----------
        weights : array of float, shape (..., units)
            Weights w of the units in a refit.
        weighted : array of float, shape (..., units)
            Products w s with the sample weights.

        Returns
        -------
        array of float
            The factor κ.
        """
        del weights, weighted
        return np.ones(())

    def second(self, features: int) -> np.ndarray:
        """Return the Hessian of the quadratic part of the penalty.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        array of float, shape (features, features)
            The matrix, symmetric.

        Raises
        ------
        NotImplementedError
            If the penalty does not state its quadratic part.
        """
        raise NotImplementedError(f"{type(self).__name__} is not known to be quadratic.")

    def diagonal(self, features: int) -> Float[np.ndarray, " features"] | None:
        """Return the diagonal of `second`, if `second` is a diagonal matrix.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        array of float, shape (features,), or None
            The diagonal; None where the matrix is not known to be diagonal.
        """
        del features
        return None

    def bent(self, features: int) -> Bent | None:
        """Return the part of the penalty that is not quadratic, as a sum of functions of linear combinations.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        Bent or None
            The sum, which may be empty; None where the penalty is not known to be such a sum.
        """
        return Bent(np.zeros((0, features)), np.zeros(0)) if self.quadratic else None

    @property
    def kinked(self) -> bool:
        """Whether the penalty holds some `a_j |coef_j|` or `a_g ‖coef_g‖`, or a bound."""
        return False

    def bounds(self, features: int) -> tuple[Float[np.ndarray, " features"], Float[np.ndarray, " features"]]:
        """Return the bounds between which the coefficients lie.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        tuple of array of float, shape (features,)
            Lower and upper bounds, infinite where there are none.
        """
        return np.full(features, -np.inf), np.full(features, np.inf)

    def kinks(self, features: int) -> Float[np.ndarray, " features"]:
        """Return the weight a_j of each `a_j |coef_j|` in the penalty.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        array of float, shape (features,)
            The weights, zero where there is no kink.
        """
        return np.zeros(features)

    def norms(self, features: int) -> Norms | None:
        """Return the part of the penalty that is a sum of norms of groups, `Σ_g a_g ‖coef_g‖`.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        Norms or None
            The weights and the groups; None where there are none.
        """
        del features
        return None

    def __add__(self, other: "AbstractPenalty") -> "AbstractPenalty":
        from .penalties import Sum, resolve, terms_of

        return Sum((*terms_of(self), *terms_of(resolve(other))))
