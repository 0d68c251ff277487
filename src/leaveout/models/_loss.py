"""What a loss of one observation is: `ℓ(η, y)`, through a mean `ℓ(μ(η), y)`, with parameters that all share `ℓ(η, τ, y)`."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from .._jax import Array, Arrays, Module, Scalar, compiled, jax, jnp
from .._objective import LOG_PROBABILITY
from . import links

Convex = dict[str, float | None]  # links under which ℓ is convex: the M of |ℓ‴| ≤ M ℓ″, or None where ℓ″ falls as |η| grows
Formulas = dict[int, Callable[[], np.ndarray]]  # by the order of the derivative
OUTSIDE = -1e100  # no derivative that a convex loss has: nothing is proved of a ball that leaves the domain


class AbstractLoss(Module):
    """A loss `ℓ(η, y)` of one observation; `__call__` is written for scalars, by JAX.

    A subclass is taken to be convex unless it says otherwise. Refits of one that knows its `self_concordance`, or the `peak` of
    its ℓ″, are proved.
    """

    @abc.abstractmethod
    def __call__(self, eta: Scalar, y: Scalar) -> Scalar:
        """The loss of one observation."""

    def inverse_link(self, eta: Array) -> Array:
        """The prediction on the scale of the response."""
        return eta

    def check(self, y: np.ndarray) -> None:
        """Raise where y lies outside the domain."""

    def start(self, y: np.ndarray, weight: np.ndarray) -> Any:
        """An intercept to start from, inside the domain."""
        return 0.0

    @property
    def own(self) -> int:
        """How many parameters of its own, shared by all units: the length of τ."""
        return 0

    def natural(self, tau: Float[Arrays, "own ..."]) -> dict[str, Arrays]:
        """τ as users see it, by name."""
        return {}

    @property
    def intercept(self) -> bool:
        """May there be an intercept?"""
        return True

    def variance(self, mean: Array) -> Array:
        """The variance of y that the loss stands for, at dispersion one where `dispersed`; for standardised residuals."""
        raise NotImplementedError(f"{type(self).__name__} states no variance of y; it has no standardised residuals.")

    @property
    def dispersed(self) -> bool:
        """Is the variance known up to a factor only, which is estimated where it is needed?"""
        return False

    @property
    def inside(self) -> float:
        """A linear predictor inside the domain of ℓ, for rows of weight zero."""
        return -1.0

    @property
    def self_concordance(self) -> float | Float[np.ndarray, ""] | None:
        """M with `|ℓ‴| ≤ M ℓ″` for all η; None where there is none, or the loss has kinks."""
        return None

    @property
    def fourth(self) -> float | Float[np.ndarray, ""] | None:
        """K with `|ℓ⁗| ≤ K ℓ″` for all η; None where that is not known."""
        return None

    def formulas(self, eta: np.ndarray, y: np.ndarray) -> Formulas:
        """ℓ and its derivatives in η by their orders, in NumPy, where there is a closed form.

        Where η is outside the domain, ℓ is NaN and a derivative `OUTSIDE`.
        """
        return {}

    def derivatives(self, eta: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """ℓ and its derivatives in η of these orders, in NumPy: in closed form where there is one, else by JAX."""
        known = self.formulas(eta, y)
        if known:
            return tuple(known[order]() for order in orders)
        eta, y = np.broadcast_arrays(np.asarray(eta, np.float64), np.asarray(y, np.float64))
        size = max(1024, 1 << max(eta.size - 1, 1).bit_length())  # few sizes to compile for
        at, of = (np.pad(part.ravel(), (0, size - eta.size), mode="edge") for part in (eta, y))
        return tuple(_derivative(self, at, of, order)[: eta.size].reshape(eta.shape) for order in orders)

    @property
    def ceiling(self) -> float:
        """No ℓ″ is larger."""
        return np.inf

    def peak(self, y: np.ndarray) -> np.ndarray | None:
        """Where ℓ″ is largest, if it rises up to there and falls from there on; None where that is not known."""
        return None

    @property
    def smooth(self) -> bool:
        """Is ℓ twice continuously differentiable?"""
        return True

    @property
    def convex(self) -> bool:
        return True

    @property
    def remark(self) -> str:
        """A sentence that printed results should carry."""
        return ""

    def scale(self, y: np.ndarray) -> str:
        """What ℓ is, of such y: only losses on one scale can be compared. "" where that is not known."""
        del y
        return f"{type(self).__name__} loss"


class AbstractMeanLoss(AbstractLoss):
    """A loss through the mean of y: `ℓ(η, y) = of_mean(μ, log μ, y)`, μ = g⁻¹(η) by any of `lo.losses.links`."""

    link: links.AbstractLink
    convex_links: ClassVar[Convex] = {}

    @abc.abstractmethod
    def of_mean(self, mean: Scalar, log_mean: Scalar, y: Scalar) -> Scalar:
        """The loss of a mean. Where y may be negative, so may the mean, and `log_mean` is not to be used."""

    def __call__(self, eta, y):
        return self.of_mean(self.link.inverse(eta), self.link.log_inverse(eta), y)

    def inverse_link(self, eta):
        return self.link.inverse(eta)

    def start(self, y, weight):
        return float(np.asarray(self.link(max(np.average(y, weights=weight), 1e-3))))

    @property
    def inside(self):
        return self.link.inside

    @property
    def linked(self) -> str:
        """The name of the link, where it has one."""
        return links.name_of(self.link)

    @property
    def convex(self):
        return self.linked in self.convex_links

    @property
    def self_concordance(self):
        return self.convex_links.get(self.linked)

    def peak(self, y):
        return np.zeros_like(y) if self.convex and self.self_concordance is None else None


class AbstractSharedLoss(AbstractLoss):
    """A loss `ℓ(η, τ, y)` of one observation, `tau` `[own]` shared by all; `__call__` is written for scalars, by JAX."""

    own = 1
    convex = False

    @abc.abstractmethod
    def __call__(self, eta: Scalar, tau: Float[Array, " own"], y: Scalar) -> Scalar:  # type: ignore[override]
        """The loss of one observation."""

    @abc.abstractmethod
    def natural(self, tau: Float[Arrays, " own"]) -> dict[str, Arrays]:
        """τ as users see it, by name."""

    @abc.abstractmethod
    def unconstrained(self, parameters: dict) -> np.ndarray:
        """The inverse of `natural`."""

    @abc.abstractmethod
    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        """An intercept and τ to start from."""

    def limit(self, tau: np.ndarray) -> str:
        """Why there is no minimum where own parameters came out: a limit that none of them reaches."""
        del tau
        return ""

    def at_limit(self, tau: np.ndarray) -> np.ndarray:
        """τ on its way to a limit, so near to it that losses are those of the limit."""
        return tau

    @abc.abstractmethod
    def inverse_link(self, eta: Array, tau: Array) -> Array:  # type: ignore[override]
        """The prediction on the scale of the response."""


def _derivative(loss: AbstractLoss, eta: np.ndarray, y: np.ndarray, order: int) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(_compiled(loss, eta, y, order))


@compiled
def _compiled(loss: AbstractLoss, eta: Array | np.ndarray, y: Array | np.ndarray, order: int) -> Array:
    function = loss.__call__
    for _ in range(order):
        function = jax.grad(function)
    return jax.vmap(function)(jnp.asarray(eta), jnp.asarray(y))


def probability(y: np.ndarray, otherwise: str) -> str:
    """The scale of −log probabilities, if y are whole numbers."""
    return LOG_PROBABILITY if np.all(y == np.floor(y)) else otherwise


def within(inside: np.ndarray, known: Formulas) -> Formulas:
    """Formulas of a loss, and what is said of it outside its domain."""
    return {k: lambda k=k: np.where(inside, known[k](), OUTSIDE if k else np.nan) for k in known}


def domain(y: np.ndarray, inside: np.ndarray, loss: str, allowed: str) -> None:
    """Raise `ValueError` where some y is not inside."""
    if not inside.all():
        worst = y[~inside]
        raise ValueError(f"the {loss} loss needs y {allowed}; got {worst.size} other values, such as {worst.flat[0]:g}.")


def positive(name: str, value: float) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biuf" or not 0 < array < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {value}.")
    return np.asarray(value, np.float64)
