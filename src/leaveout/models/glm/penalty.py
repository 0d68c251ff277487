"""Contract of a penalty on the coefficients, and penalties made from others.

Sums, multiples, functions.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ..._runtime import Array, Arrays, Module, Scalar, call_traced, jnp, static
from ...linalg import Norms
from .loss import members_of
from .losses import AbstractLoss, PseudoHuber as Rounded

PerFeature = Float[ndarray, " features"]
PenaltyLike: TypeAlias = "AbstractPenalty | Callable[..., Any] | None"


class CurvedTerms(NamedTuple):
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
    >>> import leaveout as lo
    >>> lo.penalties.CurvedTerms(np.eye(2), np.ones(2)).weight
    array([1., 1.])
    """

    rows: Float[ndarray, "terms features"]
    weight: Float[ndarray, " terms"]
    loss: AbstractLoss = Rounded(1.0)


class AbstractPenalty(Module):
    """Penalty: a function of the coefficients, `[features]` or `[outputs, features]`."""

    @abstractmethod
    def __call__(self, coef: Array) -> Scalar:
        """Compute the penalty."""

    @property
    @abstractmethod
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

    def times(self, weights: Arrays, weighted: Arrays) -> Arrays:
        """Return the factor of the penalty in a refit of these weights. It is one unless the
        penalty grows with the data.

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
        return np.ones(())

    def second(self, features: int) -> ndarray:
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

    def diagonal(self, features: int) -> PerFeature | None:
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
        return None

    def curved_terms(self, features: int) -> CurvedTerms | None:
        """Return the part of the penalty that is not quadratic, as a sum of functions of linear
        combinations.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        Bent or None
            The sum, which may be empty; None where the penalty is not known to be such a sum.
        """
        if self.quadratic:
            return CurvedTerms(np.zeros((0, features)), np.zeros(0))
        return None

    @property
    def has_kinks(self) -> bool:
        """Whether the penalty has a term `a_j |coef_j|` or `a_g ‖coef_g‖`, or a bound."""
        return False

    def bounds(self, features: int) -> tuple[PerFeature, PerFeature]:
        """Return the bounds between which the coefficients lie.

        Parameters
        ----------
        features : int
            Number of coefficients.

        Returns
        -------
        tuple of array of float, shape (features,)
            Lower and upper bounds, infinite if there are none.
        """
        return np.full(features, -np.inf), np.full(features, np.inf)

    def kinks(self, features: int) -> PerFeature:
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
            The weights and the groups; None if there are none.
        """
        return None

    def __add__(self, other: "AbstractPenalty") -> "AbstractPenalty":
        return Sum((*terms_of(self), *terms_of(resolve(other))))


class AbstractCurved(AbstractPenalty):
    """Penalty without a quadratic part."""

    def second(self, features: int) -> ndarray:
        return np.zeros((features, features))


class Zero(AbstractCurved):
    """Absence of a penalty.

    Examples
    --------
    >>> import leaveout as lo
    >>> float(lo.penalties.Zero()(np.ones(3)))
    0.0
    """

    quadratic = True

    def __call__(self, coef: Array) -> Array:
        return jnp.zeros(())

    def diagonal(self, features: int) -> PerFeature | None:
        return np.zeros(features)


class Custom(AbstractPenalty):
    """Penalty that a user gives as a JAX function.

    Parameters
    ----------
    function : callable
        JAX function of the coefficients, which returns a number.

    Examples
    --------
    >>> import leaveout as lo
    >>> float(lo.penalties.Custom(lambda coef: (coef**4).sum())(np.array([1.0, 2.0])))
    17.0
    """

    function: Callable[[Array], Scalar]
    quadratic = False

    def __call__(self, coef: Array) -> Array:
        return call_traced("penalty", self.function, coef)


class Sum(AbstractPenalty):
    """Sum of penalties, made by `+`.

    Parameters
    ----------
    terms : tuple of AbstractPenalty
        Penalties to add.

    Raises
    ------
    TypeError
        If a term is made by `per_weight` or `per_row`, which go around the sum.

    Examples
    --------
    >>> import leaveout as lo
    >>> float((lo.penalties.Ridge(2.0) + lo.penalties.Lasso(1.0))(np.array([1.0, -2.0])))
    8.0
    """

    terms: tuple[AbstractPenalty, ...]

    def __post_init__(self) -> None:
        if any(isinstance(term, PerWeight) for term in self.terms):
            raise TypeError(
                "penalties: per_weight goes around the whole sum: per_weight(Ridge(1.0) + Quadratic(M))."
            )

    def __call__(self, coef: Array) -> Array:
        return sum((term(coef) for term in self.terms), jnp.zeros(()))

    def second(self, features: int) -> ndarray:
        return sum((term.second(features) for term in self.terms), np.zeros((features, features)))

    @property
    def has_kinks(self) -> bool:
        return any(term.has_kinks for term in self.terms)

    def kinks(self, features: int) -> PerFeature:
        return sum((term.kinks(features) for term in self.terms), np.zeros(features))

    def bounds(self, features: int) -> tuple[PerFeature, PerFeature]:
        low, high = zip(*(term.bounds(features) for term in self.terms), strict=True)
        return np.max(low, 0), np.min(high, 0)

    def norms(self, features: int) -> Norms | None:
        return next(
            (groups for term in self.terms if (groups := term.norms(features)) is not None), None
        )

    def curved_terms(self, features: int) -> CurvedTerms | None:
        parts = [term.curved_terms(features) for term in self.terms]
        if None in parts:
            return None
        rows, weight, _ = zip(*parts, strict=True)
        return CurvedTerms(np.concatenate(rows), np.concatenate(weight))

    @property
    def quadratic(self) -> bool:
        return all(term.quadratic for term in self.terms)

    def check(self, features: int) -> None:
        for term in self.terms:
            term.check(features)
        low, high = self.bounds(features)
        if np.any(low > high):
            raise ValueError("penalties: the bounds of a sum leave some coefficient no place.")


class PerWeight(AbstractPenalty):
    """Penalty times the total weight of the rows, `Σ_n w_n s_n` or `Σ_n w_n`; made by `per_weight`
    and `per_row`.

    Parameters
    ----------
    penalty : AbstractPenalty
        The penalty.
    rows : bool, default: False
        Whether sample weights s are left out of the factor.

    Examples
    --------
    >>> import leaveout as lo
    >>> penalty = lo.penalties.PerWeight(lo.penalties.Ridge(1.0))
    >>> float(penalty.times(np.ones(3), np.array([1.0, 2.0, 3.0])))
    6.0
    """

    penalty: AbstractPenalty
    rows: bool = static(default=False)

    def __call__(self, coef: Array) -> Array:
        return self.penalty(coef)

    def times(self, weights: Arrays, weighted: Arrays) -> Arrays:
        return (weights if self.rows else weighted).sum(-1)

    second, diagonal, curved_terms, has_kinks, kinks, bounds, norms, quadratic, check = members_of(
        "penalty",
        "second",
        "diagonal",
        "curved_terms",
        "has_kinks",
        "kinks",
        "bounds",
        "norms",
        "quadratic",
        "check",
    )


def terms_of(penalty: AbstractPenalty) -> tuple[AbstractPenalty, ...]:
    """Return the terms of a sum; any other penalty is its only term."""
    if isinstance(penalty, Sum):
        return penalty.terms
    return (penalty,)


def resolve(penalty: "AbstractPenalty | Callable[..., Any] | None") -> AbstractPenalty:
    """Make a penalty from an object of `penalties` or a JAX function of the coefficients.

    None is no penalty.
    """
    if penalty is None:
        return Zero()
    if isinstance(penalty, AbstractPenalty):
        return penalty
    if callable(penalty):
        return Custom(penalty)
    raise TypeError(
        f"GLM: penalty must be None, a penalty of lo.penalties such as Ridge(1.0), or a function of the coefficients; "
        f"got {type(penalty).__name__}."
    )
