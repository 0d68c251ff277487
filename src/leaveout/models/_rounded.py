"""Losses with kinks, rounded over a width h: the quantile's, the ε-insensitive and the hinge.

    max(0, t)  becomes  h log(1 + e^{t/h}) = max over s in [0, 1] of s t + h Ent(s),      Ent(s) = −s log s − (1 − s) log(1 − s)

It is above max(0, t) by h log 2 at most, at the kink, and by less than h e^{−|t|/h} away from it; |ℓ‴| ≤ ℓ″/h. By the duality
of W. Fenchel the minimiser θ of the rounded objective is near one of the objective with kinks, F: with t and s = σ(t/h) there,

    F(θ, w) − min F(·, w) ≤ Σ_n w_n gap_n,      gap = max(0, t) − h log(1 + e^{t/h}) + h Ent(s) ≤ h log 2,

summed over the kinks of a loss: these s are feasible in the dual, whose part of the penalty is tight where θ is stationary.
"""

import abc
import copy
from typing import Any, Self

import numpy as np
import scipy
from jaxtyping import Float

from .._jax import jax
from ._loss import AbstractLoss, domain, positive

Array = np.ndarray
Kinks = tuple[tuple[float, Any, Any], ...]


class AbstractRounded(AbstractLoss):
    """`Σ a max(0, t)`, t = bη + c of each kink, |b| = 1, rounded over a `width`."""

    width: Float[Array, ""]

    @abc.abstractmethod
    def kinks(self, y: Any) -> Kinks:
        """(a, b, c) of every kink."""

    @property
    @abc.abstractmethod
    def called(self) -> str:
        """What the loss with its kinks is called."""

    def over(self, width: float) -> Self:
        """The same rounded over another width."""
        other = copy.copy(self)
        object.__setattr__(other, "width", positive(f"{type(self).__name__}: width", width))
        return other

    def __call__(self, eta, y):
        return sum(a * self.width * jax.nn.softplus((b * eta + c) / self.width) for a, b, c in self.kinks(y))

    def formulas(self, eta, y):
        h = float(self.width)
        known = [(a, b, (b * eta + c) / h) for a, b, c in self.kinks(y)]
        bend = lambda t: scipy.special.expit(t) * scipy.special.expit(-t)
        return {
            0: lambda: sum(a * h * np.logaddexp(0, t) for a, _, t in known),
            1: lambda: sum(a * b * scipy.special.expit(t) for a, b, t in known),
            2: lambda: sum(a * bend(t) / h for a, _, t in known),
            3: lambda: sum(-a * b * bend(t) * np.tanh(t / 2) / h**2 for a, b, t in known),
        }

    def sharp(self, eta: Array, y: Array) -> Array:
        """The loss with its kinks."""
        return sum(a * np.maximum(b * eta + c, 0.0) for a, b, c in self.kinks(np.asarray(y, float)))

    def gap(self, eta: Array, y: Array) -> Array:
        """What a row, by its weight, adds to how far the objective with kinks may be above its least."""
        h, entropy = float(self.width), scipy.special.entr
        known = [(a, (b * eta + c) / h) for a, b, c in self.kinks(np.asarray(y, float))]
        own = lambda t, s: np.maximum(t, 0) - np.logaddexp(0, t) + entropy(s) + entropy(1 - s)
        return np.maximum(sum(a * h * own(t, scipy.special.expit(t)) for a, t in known), 0.0)

    @property
    def self_concordance(self):
        return 1 / self.width

    @property
    def fourth(self):
        return 1 / self.width**2  # σ‴ = σ′ (1 − 6σ′)

    @property
    def ceiling(self):
        return sum(a for a, *_ in self.kinks(0.0)) / (4 * float(self.width))

    @property
    def most(self) -> float:
        """By what a loss may be above the one with kinks."""
        return sum(a for a, *_ in self.kinks(0.0)) * float(self.width) * float(np.log(2))

    @property
    def remark(self):
        return (
            f"kinks are rounded over a width of {float(self.width):.3g}, in refits and losses: a loss is above the one with "
            f"kinks by {self.most:.2g} at most, and the objective with kinks at a refit above its least by as much a row"
        )

    def scale(self, y):
        del y
        return self.called


class Quantile(AbstractRounded):
    """`level max(0, r) + (1 − level) max(0, −r)`, r = y − η, rounded over a `width` in the units of y: the conditional quantile
    at `level`; at ½ half the absolute error.

    A width below the distance between neighbouring residuals leaves nothing to round; a hundredth to a tenth of their standard
    deviation does.
    """

    level: Float[Array, ""]

    def __init__(self, level: float = 0.5, *, width: float):
        self.level, self.width = positive("Quantile: level", level), positive("Quantile: width", width)
        if self.level >= 1:
            raise ValueError(f"Quantile: level must lie between 0 and 1; got {level}.")

    def kinks(self, y):
        level = float(self.level)
        return (level, -1.0, y), (1 - level, 1.0, -y)

    def start(self, y, weight):
        return float(np.quantile(y, float(self.level)))

    @property
    def called(self):
        return f"quantile loss at {float(self.level):g}"


class EpsilonInsensitive(AbstractRounded):
    """`max(0, |y − η| − epsilon)`, rounded over a `width` in the units of y: support vector regression."""

    epsilon: Float[Array, ""]

    def __init__(self, epsilon: float = 0.0, *, width: float):
        self.width = positive("EpsilonInsensitive: width", width)
        if not np.isfinite(epsilon) or epsilon < 0:
            raise ValueError(f"EpsilonInsensitive: epsilon must be finite and not negative; got {epsilon}.")
        self.epsilon = np.asarray(epsilon, np.float64)

    def kinks(self, y):
        epsilon = float(self.epsilon)
        return (1.0, -1.0, y - epsilon), (1.0, 1.0, -y - epsilon)

    def start(self, y, weight):
        return float(np.median(y))

    @property
    def called(self):
        return f"ε-insensitive loss of ε = {float(self.epsilon):g}"


class Hinge(AbstractRounded):
    """`max(0, 1 − yη)` of y −1 or 1, rounded over a `width`: linear support vector machines."""

    def __init__(self, *, width: float = 0.05):
        self.width = positive("Hinge: width", width)

    def kinks(self, y):
        return ((1.0, -y, 1.0),)

    def check(self, y):
        domain(y, np.abs(y) == 1, "hinge", "−1 or 1")

    @property
    def called(self):
        return "hinge loss"
