"""Losses of a row given its linear predictor, `ℓ(η, τ, y)`, in closed form, with derivatives in η up to ℓ‴.

The module also gives the derivatives of ℓ, ℓ′ and ℓ″ in τ, parameters that all rows share.

    gaussian           ½ (y − η)² e^{−2τ} + τ + ½ log 2π                         scale σ = e^τ
    gamma              ν (η + y e^{−η}) − (ν − 1) log y − ν log ν + log Γ(ν)     shape ν = e^τ
    negative binomial  (s + y) log(1 + e^η / s) − yη + y log s − log[Γ(s + y) / (Γ(s) y!)]     dispersion α = 1/s = e^τ
    ordinal            −log[sigmoid(c_y − η) − sigmoid(c_{y−1} − η)]             thresholds c, by the logs of their gaps

The losses of `lo.losses` that have closed forms are here too, without a τ. All are convex in η. The part of ℓ that does not
depend on η is computed apart, since it is needed once a row and not once a node. Arrays are `[..., rows]`, τ is
`[own, ..., rows or 1]`.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ...objectives.objective import LOG_DENSITY, LOG_PROBABILITY
from ..glm import losses
from ..glm.families import STIRLING, exponential
from ..glm.loss import AbstractLoss, domain

Orders = tuple[NDArray[np.float64], ...]


class AbstractResponse(abc.ABC):
    """Family of responses."""

    own = 0  # number of parameters of its own
    title = ""
    intercept = True  # whether the predictor may have an intercept
    quadratic = False  # whether ℓ is quadratic in η, so that Laplace's approximation is exact

    @abc.abstractmethod
    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        """Derivatives of ℓ in η of the given orders, 0 to 3, without the part of ℓ that does not depend on η."""

    def shared_derivatives(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        """Derivatives in τ of ℓ, ℓ′ and ℓ″, for the given orders 0 to 2, `[own, ..., rows]` each."""
        return tuple(np.zeros((0, *eta.shape)) for _ in orders)

    def constant(self, tau: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | float, np.ndarray]:
        """Part of ℓ that does not depend on η, and its derivative in τ."""
        return 0.0, np.zeros((0, *np.broadcast_shapes(tau.shape[1:], y.shape)))

    @abc.abstractmethod
    def check(self, y: np.ndarray) -> None:
        """Raise ValueError if some y is outside the domain."""

    @abc.abstractmethod
    def start(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Return an intercept and τ to start from."""

    def natural(self, tau: np.ndarray) -> dict[str, np.ndarray]:
        """Return τ in natural parameters, by name."""
        return {}

    def unconstrained(self, parameters: dict[str, Any]) -> np.ndarray:
        """Return τ from natural parameters; the inverse of `natural`."""
        return np.zeros(0)

    @abc.abstractmethod
    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        """Compute the mean of y; for an ordinal response the last axis has the probabilities of the levels."""

    def spread(self, mean: np.ndarray, tau: np.ndarray) -> np.ndarray:
        """Variance of y about its mean."""
        raise NotImplementedError

    def limit(self, tau: np.ndarray) -> str:
        """Explain why there is no minimum, if τ came out at a limit; else ""."""
        return ""

    @abc.abstractmethod
    def scale(self, y: np.ndarray) -> str:
        """Scale of ℓ, such as a −log density, for these y."""


class ResponseRows(NamedTuple):
    """Rows: the design `[rows, coefficients]`, offsets, y, weights of rows inside the integral, constants, and the response."""

    design: NDArray[np.float64]
    offset: NDArray[np.float64]
    y: NDArray[np.float64]
    size: NDArray[np.float64]
    fixed: NDArray[np.float64]
    response: AbstractResponse

    def select_rows(self, rows: np.ndarray) -> "ResponseRows":
        """Select rows, in the order given."""
        return ResponseRows(*(part[rows] for part in self[:-1]), response=self.response)


@dataclass(frozen=True, eq=False)
class LossResponse(AbstractResponse):
    """Response by a loss of `lo.losses` without parameters of its own."""

    loss: AbstractLoss

    @property
    def title(self) -> str:  # type: ignore[override]
        return type(self.loss).__name__.lower()

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        return self.loss.derivatives(eta, y, orders)

    def check(self, y: np.ndarray) -> None:
        self.loss.check(y)

    def start(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        return float(self.loss.start(y, np.ones(len(y)))), np.zeros(0)

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return np.asarray(self.loss.inverse_link(eta))

    def spread(self, mean: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return np.asarray(self.loss.variance(mean))

    def scale(self, y: np.ndarray) -> str:
        return self.loss.scale(y)


class LogisticResponse(LossResponse):
    """Bernoulli response with the logit link, with one exponential for all orders."""

    def __init__(self) -> None:
        super().__init__(losses.Binomial())

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        small = np.abs(eta)
        np.exp(np.negative(small, out=small), out=small)
        whole = 1 + small
        mean = np.where(eta > 0, 1.0, small)
        mean /= whole
        known: dict[int, Callable[[], NDArray]] = {
            0: lambda: np.log1p(small) + (np.maximum(eta, 0.0) - y * eta),
            1: lambda: mean - y,
            2: lambda: small / whole**2,
            3: lambda: small / whole**2 * (1 - 2 * mean),
        }
        return tuple(known[order]() for order in orders)

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return scipy.special.expit(eta)


class PoissonResponse(LossResponse):
    """Poisson response with the log link; log y! is computed once a row."""

    def __init__(self) -> None:
        super().__init__(losses.Poisson())

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        mean = exponential(eta)
        known = {0: lambda: mean - y * eta, 1: lambda: mean - y}
        return tuple(known.get(order, lambda: mean)() for order in orders)

    def constant(self, tau: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | float, np.ndarray]:
        return scipy.special.gammaln(y + 1.0), super().constant(tau, y)[1]

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return exponential(eta)


class AbstractScaledResponse(AbstractResponse):
    """Response with one positive parameter, whose logarithm is τ."""

    own = 1
    parameter = ""

    def natural(self, tau: np.ndarray) -> dict[str, np.ndarray]:
        return {self.parameter: np.exp(tau[0])}

    def unconstrained(self, parameters: dict[str, Any]) -> np.ndarray:
        value = np.asarray(parameters[self.parameter], np.float64)
        if value.ndim or not 0 < value < np.inf:
            raise ValueError(f"Mixed: {self.parameter} must be one positive number; got {parameters[self.parameter]}.")
        return np.log(value)[None]


class GaussianResponse(AbstractScaledResponse):
    parameter = "scale"
    title = "gaussian"
    quadratic = True

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        precision, r = np.exp(-2 * tau[0]), y - eta
        known: dict[int, Callable[[], NDArray]] = {
            0: lambda: 0.5 * precision * r**2,
            1: lambda: -precision * r,
            2: lambda: np.broadcast_to(precision, r.shape),
            3: lambda: np.zeros_like(r),
        }
        return tuple(known[order]() for order in orders)

    def shared_derivatives(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        precision, r = np.exp(-2 * tau[0]), y - eta
        known = (lambda: -precision * r**2, lambda: 2 * precision * r, lambda: np.broadcast_to(-2 * precision, r.shape))
        return tuple(known[order]()[None] for order in orders)

    def constant(self, tau: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | float, np.ndarray]:
        level = tau[0] + 0.5 * np.log(2 * np.pi)
        return level, np.ones((1, *np.broadcast_shapes(tau[0].shape, y.shape)))

    def check(self, y: np.ndarray) -> None:
        domain(y, np.isfinite(y), "Gaussian", "finite")

    def start(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        return float(y.mean()), np.log([max(float(y.std()) * 0.7, 1e-6)])

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return eta

    def spread(self, mean: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return np.exp(2 * tau[0]) + 0.0 * mean

    def scale(self, y: np.ndarray) -> str:
        return LOG_DENSITY


class GammaResponse(AbstractScaledResponse):
    parameter = "shape"
    title = "gamma"

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        nu = np.exp(tau[0])
        term = nu * y * exponential(-eta)
        known = (lambda: term + nu * eta, lambda: nu - term, lambda: term, lambda: -term)
        return tuple(known[order]() for order in orders)

    def shared_derivatives(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        return tuple(part[None] for part in self.orders(eta, tau, y, orders))

    def constant(self, tau: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | float, np.ndarray]:
        nu, log = np.exp(tau[0]), np.log(y)
        value = -(nu - 1) * log - nu * tau[0] + scipy.special.gammaln(nu)
        return value, (nu * (scipy.special.digamma(nu) - log - tau[0] - 1))[None]

    def check(self, y: np.ndarray) -> None:
        domain(y, y > 0, "gamma", "positive")

    def start(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        mean = float(y.mean())
        return float(np.log(mean)), np.log([max(mean**2 / max(float(y.var()), 1e-12 * mean**2), 0.1)])

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return exponential(eta)

    def spread(self, mean: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return mean**2 * np.exp(-tau[0])

    def scale(self, y: np.ndarray) -> str:
        return LOG_DENSITY


class NegativeBinomialResponse(AbstractScaledResponse):
    parameter = "dispersion"
    title = "negative_binomial"

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        s, x = np.exp(-tau[0]), eta + tau[0]
        p, q = scipy.special.expit(x), scipy.special.expit(-x)
        known = (
            lambda: (s + y) * np.logaddexp(0.0, x) - y * eta,
            lambda: s * p - y * q,
            lambda: (s + y) * p * q,
            lambda: (s + y) * p * q * (q - p),
        )
        return tuple(known[order]() for order in orders)

    def shared_derivatives(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        s, x = np.exp(-tau[0]), eta + tau[0]
        p, q = scipy.special.expit(x), scipy.special.expit(-x)
        known = (
            lambda: (s + y) * p - s * np.logaddexp(0.0, x),
            lambda: p * (y * q - s * p),
            lambda: p * q * ((s + y) * (q - p) - s),
        )
        return tuple(known[order]()[None] for order in orders)

    def constant(self, tau: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | float, np.ndarray]:
        s = np.exp(-tau[0])
        small, large = np.minimum(s, STIRLING), np.maximum(s, STIRLING)
        rest = lambda x: (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / x**2) / x**2) / x**2) / x
        series = (large + y - 0.5) * np.log1p(y / large) - y + rest(large + y) - rest(large)
        direct = scipy.special.gammaln(small + y) - scipy.special.gammaln(small) - y * np.log(small)
        tail = lambda x: (0.5 + (1 / 12 - (1 / 120 - 1 / 252 / x**2) / x**2) / x) / x
        slope_far = large * (np.log1p(y / large) - tail(large + y) + tail(large)) - y
        slope_near = small * (scipy.special.digamma(small + y) - scipy.special.digamma(small)) - y
        value = scipy.special.gammaln(y + 1.0) - np.where(s > STIRLING, series, direct)
        return value, np.where(s > STIRLING, slope_far, slope_near)[None]

    def check(self, y: np.ndarray) -> None:
        domain(y, (y >= 0) & (y == np.floor(y)), "negative binomial", "whole and not negative")

    def start(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        mean = max(float(y.mean()), 1e-3)
        return float(np.log(mean)), np.log([max((float(y.var()) / mean - 1) / mean, 0.05) / 2])

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return exponential(eta)

    def spread(self, mean: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return mean + np.exp(tau[0]) * mean**2

    def limit(self, tau: np.ndarray) -> str:
        return losses.NegativeBinomialDispersion().limit(tau).replace("lo.losses.Poisson()", 'family="poisson"')

    def scale(self, y: np.ndarray) -> str:
        return LOG_PROBABILITY


@dataclass(frozen=True, eq=False)
class OrdinalResponse(AbstractResponse):
    """Proportional-odds response: y is the number of a level."""

    levels: int
    title = "ordinal"
    intercept = False

    @property
    def own(self) -> int:  # type: ignore[override]
        return self.levels - 1

    def _cuts(self, eta: NDArray, tau: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
        """`c_y − η` and `c_{y−1} − η`, infinite beyond the last and before the first."""
        cut = np.concatenate([np.full((1, *tau.shape[1:]), -np.inf), thresholds(tau), np.full((1, *tau.shape[1:]), np.inf)])
        cut, level = np.broadcast_to(cut, (len(cut), *eta.shape)), np.broadcast_to(y.astype(int), eta.shape)[None]
        return np.take_along_axis(cut, level + 1, 0)[0] - eta, np.take_along_axis(cut, level, 0)[0] - eta

    def orders(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        upper, lower = self._cuts(eta, tau, y)
        a, b = scipy.special.expit(-upper), scipy.special.expit(lower)
        va, vb = a * scipy.special.expit(upper), b * scipy.special.expit(-lower)
        known = (
            lambda: np.logaddexp(0.0, -upper) + np.logaddexp(0.0, lower),
            lambda: a - b,
            lambda: va + vb,
            lambda: va * (1 - 2 * a) - vb * (1 - 2 * b),
        )
        return tuple(known[order]() for order in orders)

    def shared_derivatives(self, eta: np.ndarray, tau: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> Orders:
        upper, lower = self._cuts(eta, tau, y)
        a, b = scipy.special.expit(-upper), scipy.special.expit(lower)
        va, vb = a * scipy.special.expit(upper), b * scipy.special.expit(-lower)
        of_upper = (lambda: -a, lambda: -va, lambda: -va * (1 - 2 * a))
        of_lower = (lambda: b, lambda: -vb, lambda: vb * (1 - 2 * b))
        level, gaps = y.astype(int), np.exp(tau)
        above = [level >= m for m in range(self.own)]  # whether c_y depends on τ_m, and c_{y−1}
        below = [level > m for m in range(self.own)]
        each = lambda k, m: (
            (of_upper[k]() * (above[m] & (level < self.own)) + of_lower[k]() * below[m]) * (gaps[m] if m else 1.0)
        )
        return tuple(np.stack([each(order, m) for m in range(self.own)]) for order in orders)

    def constant(self, tau: np.ndarray, y: np.ndarray) -> tuple[np.ndarray | float, np.ndarray]:
        level = y.astype(int)
        inner, shape = (level > 0) & (level < self.own), np.broadcast_shapes(tau[0].shape, y.shape)
        value, slope = np.zeros(shape), np.zeros((self.own, *shape))
        for m in range(1, self.own):
            gap, here = np.exp(tau[m]), inner & (level == m)
            value = value + np.where(here, -np.log(-np.expm1(-gap)), 0.0)
            slope[m] = np.where(here, -gap / np.expm1(gap), 0.0)
        return value, slope

    def check(self, y: np.ndarray) -> None:
        domain(y, (y >= 0) & (y < self.levels) & (y == np.floor(y)), "ordinal", f"among 0, …, {self.levels - 1}")

    def start(self, y: np.ndarray) -> tuple[float, np.ndarray]:
        return losses.Ordinal(self.levels).start(y, np.ones(len(y)))

    def natural(self, tau: np.ndarray) -> dict[str, np.ndarray]:
        return {"thresholds": thresholds(tau)}

    def unconstrained(self, parameters: dict[str, Any]) -> np.ndarray:
        return losses.Ordinal(self.levels).unconstrained(parameters)

    def mean(self, eta: np.ndarray, tau: np.ndarray) -> np.ndarray:
        seen = scipy.special.expit(np.moveaxis(thresholds(tau) - eta, 0, -1))
        edge = np.zeros((*seen.shape[:-1], 1))
        return np.diff(np.concatenate([edge, seen, edge + 1], -1), axis=-1)

    def scale(self, y: np.ndarray) -> str:
        return LOG_PROBABILITY


def thresholds(tau: np.ndarray) -> np.ndarray:
    """Compute the thresholds c from τ, `[own, ...]`."""
    return tau[0] + np.concatenate([np.zeros((1, *tau.shape[1:])), np.cumsum(np.exp(tau[1:]), 0)])


def ways(y: np.ndarray, trials: np.ndarray) -> NDArray[np.float64]:
    """Compute minus the logarithm of the number of orders of y successes in some trials."""
    log = scipy.special.gammaln
    return log(y + 1) + log(trials - y + 1) - log(trials + 1)


FAMILIES: dict[str, Callable[[], AbstractResponse]] = {
    "gaussian": GaussianResponse,
    "binomial": LogisticResponse,
    "bernoulli": LogisticResponse,
    "poisson": PoissonResponse,
    "gamma": GammaResponse,
    "negative_binomial": NegativeBinomialResponse,
}


def response(family: Any, y: ArrayLike) -> AbstractResponse:
    """Return the response of a name, an ordinal one with as many levels as y, or that of a loss of `lo.losses`."""
    if isinstance(family, str):
        name = family.lower().replace("-", "_").replace(" ", "_").replace("negativebinomial", "negative_binomial")
        if name in ("ordinal", "cumulative"):
            return OrdinalResponse(len(np.unique(np.asarray(y))))
        if name in FAMILIES:
            return FAMILIES[name]()
        raise ValueError(f"Mixed: no family is called {family!r}; choose one of {', '.join([*FAMILIES, 'ordinal'])}.")
    if isinstance(family, AbstractLoss) and family.own == 0 and family.convex:
        known = np.zeros(1) + family.inside
        if isinstance(family, losses.Binomial) and family.link == "logit":
            return LogisticResponse()
        if family.formulas(known, known):
            return LossResponse(family)
    raise TypeError(
        f"Mixed: family must be one of {', '.join(map(repr, [*FAMILIES, 'ordinal']))}, or a convex loss of lo.losses in closed "
        f"form, such as lo.losses.Binomial('probit'); got {family!r}."
    )
