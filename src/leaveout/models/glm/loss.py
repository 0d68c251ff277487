"""Base classes of losses of one observation.

A loss is `ℓ(η, y)`, a loss through a mean `ℓ(μ(η), y)`, or a loss with parameters that all units
share `ℓ(η, τ, y)`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ..._runtime import (
    Array,
    Arrays,
    ArrayTuple,
    Module,
    NamedValues,
    NumberAndArray,
    Scalar,
    Shape,
    compile_static,
    jax,
    jnp,
)
from ...objectives import LOG_PROBABILITY
from . import links
from .distributions import Family, Formulas

Number = Float[ndarray, ""]
# the M of |ℓ‴| ≤ M ℓ″ by the links under which ℓ is convex; None if ℓ″ falls as |η| grows
Convex = dict[str, float | None]
# not a derivative of a convex loss, so that nothing is proved of a ball that leaves the domain
OUTSIDE_DOMAIN = -1e100


def members_of(part: str, *names: str) -> Iterator[Any]:
    """Yield properties that are members of a part of the object, by name."""
    for name in names:
        yield property(
            lambda self, name=name: getattr(getattr(self, part), name),
            doc=f"The member `{name}` of `{part}`.",
        )


class AbstractLoss(Module):
    """Loss `ℓ(η, y)` of one observation; `__call__` is written for scalars, in JAX.

    A subclass counts as convex unless its `convex` is False. Errors of refits are proved if it has
    a `self_concordance`, or a `peak` of ℓ″.
    """

    # distribution of y, of which the loss is −log density up to a factor
    family: ClassVar[Family | None] = None
    scale_name: ClassVar[str | None] = None  # scale of ℓ, if it is the same for all y

    @abstractmethod
    def __call__(self, eta: Scalar, y: Scalar) -> Scalar:
        """Compute the loss of one observation."""

    def inverse_link(self, eta: Arrays) -> Arrays:
        """Return the prediction on the scale of the response.

        Parameters
        ----------
        eta : array of float
            Linear predictors.

        Returns
        -------
        array of float
            The predictions.
        """
        return eta

    @property
    def has_response(self) -> bool:
        """Whether `inverse_link` gives predictions that responses are compared with."""
        return True

    def check(self, y: ndarray) -> None:
        """Raise if responses lie outside the domain of the loss.

        Parameters
        ----------
        y : array of float
            Responses.

        Raises
        ------
        ValueError
            If some y lies outside.
        """

    def start(self, y: ndarray, weight: ndarray) -> Any:
        """Return an intercept from which a fit starts, inside the domain.

        Parameters
        ----------
        y : array of float
            Responses.
        weight : array of float
            Sample weights.

        Returns
        -------
        float
            The intercept.
        """
        return 0.0

    @property
    def own(self) -> int:
        """Number of parameters of the loss that all units share: the length of τ."""
        return 0

    def natural(self, tau: Float[Arrays, "own ..."]) -> dict[str, Arrays]:
        """Return τ in natural parameters, by name.

        Parameters
        ----------
        tau : array of float, shape (own, ...)
            Unconstrained parameters τ of the loss.

        Returns
        -------
        dict of array
            Natural parameters; none for a loss without parameters.
        """
        return {}

    def unconstrained(self, parameters: NamedValues) -> ndarray:
        """Return τ from natural parameters; the inverse of `natural`.

        Parameters
        ----------
        parameters : dict
            Natural parameters by name.

        Returns
        -------
        array of float, shape (own,)
            Unconstrained parameters τ.
        """
        return np.zeros(0)

    def limit(self, tau: ndarray) -> str:
        """Explain why there is no minimum, if the loss's own parameters came out at a limit that
        they cannot reach.

        Parameters
        ----------
        tau : array of float, shape (own,)
            Parameters τ at the end of a fit.

        Returns
        -------
        str
            A sentence; "" if there is no such limit.
        """
        return ""

    @property
    def intercept(self) -> bool:
        """Whether a model with this loss may have an intercept."""
        return True

    def variance(self, mean: Arrays) -> Arrays:
        """Return the variance of y that the loss states, for standardised residuals.

        Parameters
        ----------
        mean : array of float
            Means of y.

        Returns
        -------
        array of float
            Variances; at a dispersion of one, if the loss is `dispersed`.

        Raises
        ------
        NotImplementedError
            If the loss states no variance.
        """
        raise NotImplementedError(
            f"{type(self).__name__} states no variance of y; it has no standardised residuals."
        )

    @property
    def has_dispersion(self) -> bool:
        """Whether the variance is known up to a factor only, which is estimated on demand."""
        return False

    @property
    def inside(self) -> float:
        """Linear predictor inside the domain of ℓ, used for rows of weight zero."""
        return -1.0

    @property
    def self_concordance(self) -> float | Number | None:
        """Constant M with `|ℓ‴| ≤ M ℓ″` for all η; None if there is none, or the loss has kinks."""
        return None

    @property
    def fourth(self) -> float | Number | None:
        """Constant K with `|ℓ⁗| ≤ K ℓ″` for all η; None if it is not known."""
        return None

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        """Return the loss and its derivatives in η, in NumPy, if there is a closed form.

        Outside the domain of η, the loss is NaN and a derivative is `OUTSIDE_DOMAIN`.

        Parameters
        ----------
        eta : array of float
            Linear predictors.
        y : array of float
            Responses.

        Returns
        -------
        dict of callable
            Functions that compute the value and the derivatives, by order; empty if there is no
            closed form.
        """
        return {}

    def derivatives(self, eta: ndarray, y: ndarray, orders: Shape) -> ArrayTuple:
        """Compute the loss and its derivatives in η, in NumPy by a closed form, or else by JAX.

        Parameters
        ----------
        eta : array of float
            Linear predictors.
        y : array of float
            Responses.
        orders : tuple of int
            Orders of the derivatives, 0 for the loss itself.

        Returns
        -------
        tuple of array of float
            An array for each order.
        """
        formulas = self.formulas(eta, y)
        if formulas:
            return tuple(formulas[order]() for order in orders)
        eta, y = np.broadcast_arrays(np.asarray(eta, float), np.asarray(y, float))
        size = max(1024, 1 << max(eta.size - 1, 1).bit_length())  # few sizes to compile for
        padded_eta, padded_y = (
            np.pad(part.ravel(), (0, size - eta.size), mode="edge") for part in (eta, y)
        )
        with jax.enable_x64(True):
            values = [
                np.asarray(_vmapped_derivative(self, padded_eta, padded_y, order))
                for order in orders
            ]
        return tuple(part[: eta.size].reshape(eta.shape) for part in values)

    def terms(self, order: int, size: ndarray, eta: ndarray, y: ndarray) -> ndarray:
        """Bound the sum of the sizes of the terms that ℓ, or a derivative of it, is computed from.

        Rounding is at most 64 units of the last place of it, which proofs count. Override it where
        terms cancel.

        Parameters
        ----------
        order : int
            Order of the derivative, 0 for the loss itself.
        size : array of float
            Sizes of the computed values.
        eta : array of float
            Linear predictors.
        y : array of float
            Responses.

        Returns
        -------
        array of float
            The sums; by default the sizes themselves.
        """
        return size

    @property
    def ceiling(self) -> float:
        """Upper bound on ℓ″."""
        return np.inf

    def peak(self, y: ndarray) -> ndarray | None:
        """Return the η at which ℓ″ is largest, if ℓ″ rises up to there and falls from there on.

        Parameters
        ----------
        y : array of float
            Responses.

        Returns
        -------
        array of float or None
            Places of the maxima, which may be infinite; None where they are not known.
        """
        return None

    @property
    def smooth(self) -> bool:
        """Whether ℓ is twice continuously differentiable."""
        return True

    @property
    def convex(self) -> bool:
        """Whether ℓ is convex in η."""
        return True

    @property
    def remark(self) -> str:
        """Sentence to show with printed results."""
        return ""

    def scale(self, y: ndarray) -> str:
        """Name the scale of ℓ for these y. Only losses on one scale can be compared.

        Parameters
        ----------
        y : array of float
            Responses.

        Returns
        -------
        str
            Name of the scale, such as "−log probability"; "" where it is not known.
        """
        if self.scale_name is None:
            return f"{type(self).__name__} loss"
        return self.scale_name


class AbstractMeanLoss(AbstractLoss):
    """Loss through the mean of y.

    `ℓ(η, y) = of_mean(μ, log μ, y)`, μ = g⁻¹(η) by any of `lo.losses.links`.
    """

    link: links.AbstractLink
    convex_links: ClassVar[Convex] = {}

    @abstractmethod
    def of_mean(self, mean: Scalar, log_mean: Scalar, y: Scalar) -> Scalar:
        """Compute the loss of a mean. If y may be negative, so may the mean.

        Do not use `log_mean` then.
        """

    def __call__(self, eta: Array, y: Array) -> Array:
        return self.of_mean(
            cast(Array, self.link.inverse(eta)), cast(Array, self.link.log_inverse(eta)), y
        )

    def inverse_link(self, eta: Arrays) -> Arrays:
        return self.link.inverse(eta)

    def start(self, y: ndarray, weight: ndarray) -> Any:
        return float(np.asarray(self.link(max(np.average(y, weights=weight), 1e-3))))

    (inside,) = members_of("link", "inside")

    @property
    def link_name(self) -> str:
        """Name of the link, if it has one."""
        return links.name_of(self.link)

    @property
    def convex(self) -> bool:
        return self.link_name in self.convex_links

    @property
    def self_concordance(self) -> float | Number | None:
        return self.convex_links.get(self.link_name)

    def peak(self, y: ndarray) -> ndarray | None:
        if self.convex and self.self_concordance is None:
            return np.zeros_like(y)
        return None


class AbstractSharedLoss(AbstractLoss):
    """Loss `ℓ(η, τ, y)` of one observation, `tau` `[own]` shared by all.

    `__call__` is written for scalars, in JAX.
    """

    own = 1
    convex = False

    @abstractmethod
    def __call__(self, eta: Scalar, tau: Float[Array, " own"], y: Scalar) -> Scalar:  # type: ignore[override]
        """Compute the loss of one observation."""

    @abstractmethod
    def natural(self, tau: Float[Arrays, " own"]) -> dict[str, Arrays]:
        """Return τ in natural parameters, by name.

        Parameters
        ----------
        tau : array of float, shape (own,)
            Unconstrained parameters τ of the loss.

        Returns
        -------
        dict of array
            Natural parameters.
        """

    @abstractmethod
    def unconstrained(self, parameters: NamedValues) -> ndarray:
        """Return τ from natural parameters; the inverse of `natural`.

        Parameters
        ----------
        parameters : dict
            Natural parameters by name.

        Returns
        -------
        array of float, shape (own,)
            Unconstrained parameters τ.
        """

    @abstractmethod
    def start(self, y: ndarray, weight: ndarray) -> NumberAndArray:
        """Return an intercept and τ from which a fit starts.

        Parameters
        ----------
        y : array of float
            Responses.
        weight : array of float
            Sample weights.

        Returns
        -------
        tuple of float and array of float
            The intercept, and τ.
        """

    def at_limit(self, tau: ndarray) -> ndarray:
        """Put parameters that run to a limit so near to it that losses are those of the limit.

        Parameters
        ----------
        tau : ndarray [own]
            The loss's own parameters.

        Returns
        -------
        ndarray [own]
            The parameters at the limit; `tau` itself if they run to none.
        """
        return tau

    @abstractmethod
    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        """Return the prediction on the scale of the response.

        Parameters
        ----------
        eta : array of float
            Linear predictors.
        tau : array of float, shape (own,)
            Parameters τ of the loss.

        Returns
        -------
        array of float
            The predictions.
        """


@compile_static
def _vmapped_derivative(
    loss: AbstractLoss, eta: Array | ndarray, y: Array | ndarray, order: int
) -> Array:
    function = loss.__call__
    for _ in range(order):
        function = jax.grad(function)
    return jax.vmap(function)(jnp.asarray(eta), jnp.asarray(y))


def probability(y: ndarray, otherwise: str) -> str:
    """Return the scale of −log probabilities if y are whole numbers."""
    if np.all(y == np.floor(y)):
        return LOG_PROBABILITY
    return otherwise


def within(inside: ndarray, formulas: Formulas) -> Formulas:
    """Formulas of a loss, with their values outside its domain."""
    return {
        k: lambda k=k: np.where(inside, formulas[k](), OUTSIDE_DOMAIN if k else np.nan)
        for k in formulas
    }


def positive(name: str, value: float) -> ndarray:
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biuf" or not 0 < array < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {value}.")
    return np.asarray(value, float)
