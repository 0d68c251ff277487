"""Losses with kinks, rounded over a width h: the quantile loss, the ε-insensitive loss and the
hinge.

    max(0, t)  becomes  h log(1 + e^{t/h}) = max over s in [0, 1] of s t + h Ent(s),
    Ent(s) = −s log s − (1 − s) log(1 − s)

It exceeds max(0, t) by at most h log 2, at the kink, and by less than h e^{−|t|/h} away from
it; |ℓ‴| ≤ ℓ″/h. By Fenchel duality the minimiser θ of the rounded objective is near one of the
objective with kinks, F: with t and s = σ(t/h) there,

    F(θ, w) − min F(·, w) ≤ Σ_n w_n gap_n,
    gap = max(0, t) − h log(1 + e^{t/h}) + h Ent(s) ≤ h log 2,

summed over the kinks of a loss, as these s are feasible in the dual, and the penalty's part of the
bound is tight where θ is stationary.
"""

import copy
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from scipy import special

from ..._runtime import NumpyArray, Scalar, jax, jnp
from ...data import share
from .distributions import Formulas, domain
from .loss import AbstractLoss, Number, positive

Kinks = tuple[tuple[float, Any, Any], ...]


class AbstractRounded(AbstractLoss):
    """Loss with kinks, `Σ a max(0, t)` with t = bη + c for each kink and |b| = 1, rounded over a
    width.

    Parameters
    ----------
    width : float
        Width h of the rounding.
    """

    width: Number

    @abstractmethod
    def kinks(self, y: Any) -> Kinks:
        """Return the kinks of the loss, `Σ a max(0, bη + c)`.

        Parameters
        ----------
        y : float or array of float
            Responses.

        Returns
        -------
        tuple of tuple
            (a, b, c) of every kink.
        """

    @property
    @abstractmethod
    def kink_name(self) -> str:
        """Name of the loss with its kinks."""

    def over(self, width: float) -> Self:
        """Copy the loss, rounded over another width.

        Parameters
        ----------
        width : float
            Width h of the rounding, positive.

        Returns
        -------
        AbstractRounded
            A loss of the same class.

        Raises
        ------
        ValueError
            If the width is not positive and finite.
        """
        loss = copy.copy(self)
        object.__setattr__(loss, "width", positive(f"{type(self).__name__}: width", width))
        return loss

    def __call__(self, eta: Scalar, y: Scalar) -> Scalar:
        terms = (
            a * self.width * jax.nn.softplus((b * eta + c) / self.width)
            for a, b, c in self.kinks(y)
        )
        return jnp.asarray(sum(terms))

    def formulas(self, eta: NumpyArray, y: NumpyArray) -> Formulas:
        h = float(self.width)
        kinks = [(a, b, (b * eta + c) / h) for a, b, c in self.kinks(y)]
        curvature = lambda t: special.expit(t) * special.expit(-t)
        return {
            0: lambda: sum(a * h * np.logaddexp(0, t) for a, _, t in kinks),
            1: lambda: sum(a * b * special.expit(t) for a, b, t in kinks),
            2: lambda: sum(a * curvature(t) / h for a, _, t in kinks),
            3: lambda: sum(-a * b * curvature(t) * np.tanh(t / 2) / h**2 for a, b, t in kinks),
        }

    def terms(self, order, size, eta, y):
        # (bη + c)/h is rounded before it is an exponent
        amplification = 1 + (1 + np.abs(eta) + np.abs(y)) / float(self.width)
        return (size + self._steepness * (order == 1)) * amplification

    @property
    def _steepness(self) -> float:
        """Sum of the slopes a of the kinks."""
        return sum(a for a, *_ in self.kinks(0.0))

    def sharp(self, eta: NumpyArray, y: NumpyArray) -> NumpyArray:
        """Compute the loss with its kinks, not rounded.

        Parameters
        ----------
        eta : array of float
            Linear predictors.
        y : array of float
            Responses.

        Returns
        -------
        array of float
            The losses.
        """
        return sum(a * np.maximum(b * eta + c, 0.0) for a, b, c in self.kinks(np.asarray(y, float)))

    def gap(self, eta: NumpyArray, y: NumpyArray) -> NumpyArray:
        """Bound a row's share, by its weight, of the distance of the objective with kinks from its
        minimum.

        Parameters
        ----------
        eta : array of float
            Linear predictors at the minimum of the rounded objective.
        y : array of float
            Responses.

        Returns
        -------
        array of float
            The bound of each row, zero or more.
        """
        h = float(self.width)
        entropy = special.entr
        kinks = [(a, (b * eta + c) / h) for a, b, c in self.kinks(np.asarray(y, float))]
        kink_gap = lambda t, s: np.maximum(t, 0) - np.logaddexp(0, t) + entropy(s) + entropy(1 - s)
        return np.maximum(sum(a * h * kink_gap(t, special.expit(t)) for a, t in kinks), 0.0)

    @property
    def self_concordance(self) -> float | Number | None:
        return 1 / self.width

    @property
    def fourth(self) -> float | Number | None:
        return 1 / self.width**2  # σ‴ = σ′ (1 − 6σ′)

    @property
    def ceiling(self) -> float:
        return self._steepness / (4 * float(self.width))

    @property
    def most(self) -> float:
        """Bound on how far a loss may be above the one with kinks."""
        return self._steepness * float(self.width) * float(np.log(2))

    @property
    def remark(self) -> str:
        return (
            f"kinks are rounded over a width of {float(self.width):.3g}, in refits and losses: a loss is above the one with "
            f"kinks by {self.most:.2g} at most, and the objective with kinks at a refit above its least by as much a row"
        )

    def scale(self, y: NumpyArray) -> str:
        return self.kink_name


class Quantile(AbstractRounded):
    """Quantile loss, `level max(0, r) + (1 − level) max(0, −r)` with r = y − η, rounded over a
    width.

    The linear predictor is the conditional quantile at `level`. At ½ the loss is half the absolute
    error. A width below the distance between neighbouring residuals rounds nothing; use a hundredth
    to a tenth of their standard deviation.

    Parameters
    ----------
    level : float, default: 0.5
        Level of the quantile, between 0 and 1.
    width : float
        Width of the rounding, in the units of y.

    Raises
    ------
    ValueError
        If the level is not between 0 and 1, or the width is not positive.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Quantile(0.9, width=0.01).derivatives(np.zeros(2), np.array([-1.0, 1.0]), (0,))[
    ...     0
    ... ].round(3)
    array([0.1, 0.9])
    """

    level: Number

    def __init__(self, level: float = 0.5, *, width: float):
        self.level = np.asarray(share("Quantile: level", level))
        self.width = positive("Quantile: width", width)

    def kinks(self, y: Any) -> Kinks:
        level = float(self.level)
        return (level, -1.0, y), (1 - level, 1.0, -y)

    def start(self, y: NumpyArray, weight: NumpyArray) -> Any:
        return float(np.quantile(y, float(self.level)))

    @property
    def kink_name(self) -> str:
        return f"quantile loss at {float(self.level):g}"


class EpsilonInsensitive(AbstractRounded):
    """Loss of support vector regression (ε-insensitive), `max(0, |y − η| − ε)`, rounded over a
    width.

    Parameters
    ----------
    epsilon : float, default: 0.0
        Residual ε up to which there is no loss, in the units of y.
    width : float
        Width of the rounding, in the units of y.

    Raises
    ------
    ValueError
        If ε is negative, or the width is not positive.

    Examples
    --------
    >>> import leaveout as lo
    >>> loss = lo.losses.EpsilonInsensitive(0.5, width=0.01)
    >>> loss.derivatives(np.zeros(3), np.array([0.0, 1.0, -2.0]), (0,))[0].round(3)
    array([0. , 0.5, 1.5])
    """

    epsilon: Number

    def __init__(self, epsilon: float = 0.0, *, width: float):
        self.width = positive("EpsilonInsensitive: width", width)
        if not np.isfinite(epsilon) or epsilon < 0:
            raise ValueError(
                f"EpsilonInsensitive: epsilon must be finite and not negative; got {epsilon}."
            )
        self.epsilon = np.asarray(epsilon, float)

    def kinks(self, y: Any) -> Kinks:
        epsilon = float(self.epsilon)
        return (1.0, -1.0, y - epsilon), (1.0, 1.0, -y - epsilon)

    def start(self, y: NumpyArray, weight: NumpyArray) -> Any:
        return float(np.median(y))

    @property
    def kink_name(self) -> str:
        return f"ε-insensitive loss of ε = {float(self.epsilon):g}"


class Hinge(AbstractRounded):
    """Hinge loss of linear support vector machines, `max(0, 1 − yη)` of responses −1 and 1, rounded
    over a width.

    Parameters
    ----------
    width : float, default: 0.05
        Width of the rounding, in units of the linear predictor.

    Raises
    ------
    ValueError
        If the width is not positive.

    See Also
    --------
    SquaredHinge

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Hinge().derivatives(np.array([-1.0, 0.0, 2.0]), np.ones(3), (0,))[0].round(3)
    array([2., 1., 0.])
    """

    def __init__(self, *, width: float = 0.05):
        self.width = positive("Hinge: width", width)

    def kinks(self, y: Any) -> Kinks:
        return ((1.0, -y, 1.0),)

    def check(self, y: NumpyArray) -> None:
        domain(y, np.abs(y) == 1, "hinge", "−1 or 1")

    kink_name = "hinge loss"
