"""Losses of a row given its linear predictor, `ℓ(η, τ, y)`, in closed form, with derivatives in η
up to ℓ‴.

The closed forms are those of a family (`glm.distributions`), with the derivatives of ℓ, ℓ′ and ℓ″
in τ, parameters that all rows share, or those of a loss of `lo.losses` without a τ. All are convex
in η. The part of ℓ that does not depend on η is computed apart, since it is needed once a row and
not once a node. Arrays are `[..., rows]`, τ is `[shared, ..., rows or 1]`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..._runtime import FloatArray, NumberAndArray, NumpyArray, Shape, record
from ..glm import AbstractLoss, losses

Orders = tuple[FloatArray, ...]


@record
class Response:
    """Family of responses, by its loss; with `family_formulas`, closed forms are the family's."""

    loss: AbstractLoss
    family_formulas: bool = True

    @property
    def num_shared(self) -> int:
        """Number of parameters of its own."""
        return self.loss.own

    @property
    def title(self) -> str:
        return type(self.loss).__name__.lower()

    @property
    def quadratic(self) -> bool:
        """Whether ℓ is quadratic in η, so that Laplace's approximation is exact."""
        return isinstance(self.loss, losses.GaussianScale)

    def _family(self, tau: NumpyArray) -> tuple[Any, Any, Any]:
        """Return the family, its parameter φ and log φ = τ.

        A family of one parameter has no axis for it.
        """
        family: Any = self.loss.family
        if self.num_shared and family.parameter:
            tau = tau[0]
        return family, np.exp(tau), tau

    def orders(self, eta: NumpyArray, tau: NumpyArray, y: NumpyArray, orders: Shape) -> Orders:
        """Derivatives of ℓ in η of the given orders, 0 to 3, without the part of ℓ that does not
        depend on η.
        """
        if not self.family_formulas:
            return self.loss.derivatives(eta, y, orders)
        family, *parameters = self._family(tau)
        formulas = family.formulas(eta, *parameters, y)
        return tuple(formulas[order]() for order in orders)

    def shared_derivatives(
        self, eta: NumpyArray, tau: NumpyArray, y: NumpyArray, orders: Shape
    ) -> Orders:
        """Derivatives in τ of ℓ, ℓ′ and ℓ″, for the given orders 0 to 2, `[shared, ..., rows]`
        each.
        """
        if not self.num_shared:
            return tuple(np.zeros((0, *eta.shape)) for _ in orders)
        family, *parameters = self._family(tau)
        formulas = family.formulas_of_tau(eta, *parameters, y)
        return tuple(formulas[order]().reshape(self.num_shared, *eta.shape) for order in orders)

    def constant(self, tau: NumpyArray, y: NumpyArray) -> tuple[NumpyArray | float, NumpyArray]:
        """Part of ℓ that does not depend on η, and its derivative in τ."""
        shape = np.broadcast_shapes(tau.shape[1:], y.shape)
        family, *parameters = self._family(tau)
        value = 0.0
        if self.family_formulas:
            value = family.constant(*parameters, y)
        return value, family.constant_of_tau(*parameters, y).reshape(
            self.num_shared, *shape
        ) if self.num_shared else np.zeros((0, *shape))

    def start(self, y: NumpyArray) -> NumberAndArray:
        """Return an intercept and τ to start from, where random effects take a share of what
        scatters.
        """
        family = self.loss.family
        weight = np.ones(len(y))
        if family is not None and self.num_shared and family.parameter:
            return family.start(
                y, weight, {"scale": 0.7, "dispersion": 0.5}.get(family.parameter, 1.0)
            )
        start = self.loss.start(y, weight)
        if self.num_shared:
            return start
        return float(start), np.zeros(0)

    def mean(self, eta: NumpyArray, tau: NumpyArray) -> NumpyArray:
        """Compute the mean of y.

        For an ordinal response the last axis has the probabilities of the levels.
        """
        family: Any = self.loss.family
        if self.family_formulas and family.link:
            return family.mean(eta)
        return np.asarray(self.loss.inverse_link(eta, *([tau] if self.num_shared else [])))

    def spread(self, mean: NumpyArray, tau: NumpyArray) -> NumpyArray:
        """Variance of y about its mean."""
        if not self.num_shared:
            return np.asarray(self.loss.variance(mean))
        family, phi, _ = self._family(tau)
        return family.variance(mean, phi)


class ResponseRows(NamedTuple):
    """Rows: the design `[rows, coefficients]`, offsets, y, weights of rows inside the integral,
    constants, and the response.
    """

    design: FloatArray
    offset: FloatArray
    y: FloatArray
    size: FloatArray
    fixed: FloatArray
    response: Response

    def constant(self, tau: NumpyArray) -> NumpyArray:
        """Part of ℓ that does not depend on η, with the constants."""
        return self.response.constant(tau, self.y)[0] + self.fixed

    def select_rows(self, rows: NumpyArray) -> "ResponseRows":
        """Select rows, in the order given."""
        return ResponseRows(*(part[rows] for part in self[:-1]), response=self.response)


def ways(y: NumpyArray, trials: NumpyArray) -> FloatArray:
    """Compute minus the logarithm of the number of orders of y successes in some trials."""
    log = scipy.special.gammaln
    return log(y + 1) + log(trials - y + 1) - log(trials + 1)


FAMILIES: dict[str, Callable[[], Response]] = {
    "gaussian": lambda: Response(losses.GaussianScale()),
    "binomial": lambda: Response(losses.Binomial(), False),
    "poisson": lambda: Response(losses.Poisson()),
    "gamma": lambda: Response(losses.GammaShape()),
    "negative_binomial": lambda: Response(losses.NegativeBinomialDispersion()),
}


def read_response(family: Any, y: ArrayLike) -> Response:
    """Return the response of a name, an ordinal one with as many levels as y, or that of a loss of
    `lo.losses`.
    """
    if isinstance(family, str):
        name = losses.name_among(family, (*FAMILIES, "ordinal"))
        if name == "ordinal":
            return Response(losses.Ordinal(len(np.unique(np.asarray(y)))))
        if name in FAMILIES:
            return FAMILIES[name]()
        raise ValueError(
            f"Mixed: no family is called {family!r}; choose one of {', '.join([*FAMILIES, 'ordinal'])}."
        )
    if isinstance(family, AbstractLoss) and family.own == 0 and family.convex:
        point = np.zeros(1) + family.inside
        if family.formulas(point, point):
            return Response(family, False)
    raise TypeError(
        f"Mixed: family must be one of {', '.join(map(repr, [*FAMILIES, 'ordinal']))}, or a convex loss of lo.losses in closed "
        f"form, such as lo.losses.Binomial('probit'); got {family!r}."
    )
