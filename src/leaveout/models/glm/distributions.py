"""Families of distributions, each written once: what losses, fits of their parameters, latent
models and scores take of them.

A family has a mean μ and, in most, a parameter φ = e^τ of its own; methods get φ and τ, since each
caller has both. Formulas are those of −log density in a linear predictor η, which is log μ, or μ
itself where `link` is "identity":

    gaussian            ½ (y − η)² e^{−2τ} + τ + ½ log 2π                         scale σ = e^τ
    gamma               ν (η + y e^{−η}) − (ν − 1) log y − ν log ν + log Γ(ν)     shape ν = e^τ
    negative binomial   (s + y) log(1 + e^η / s) − yη + y log s − log[Γ(s + y) / (Γ(s) y!)]
    dispersion α = 1/s = e^τ
    ordinal             −log[sigmoid(c_y − η) − sigmoid(c_{y−1} − η)]
    thresholds c, by the logs of their gaps

The part that does not depend on η is apart: `constant` is needed once a row, and not once a node of
a quadrature. CRPS has closed forms (Jordan, Krüger & Lerch, Journal of Statistical Software 90,
2019), by functions that do not overflow.
"""

import abc
from typing import Any

import numpy as np
from scipy import special

from ..._runtime import (
    HALF_LOG_TAU,
    Arrays,
    MakeArray,
    NumberAndArray,
    NumpyArray,
    ThreeArrayFunction,
    TwoNumbers,
    numpy_of,
    special_of,
)
from ...objectives import LOG_DENSITY, LOG_PROBABILITY

Formulas = dict[int, MakeArray]  # formulas by the order of the derivative
# exponent whose squared exponential does not overflow; no row of a refit has a larger curvature
HUGE = 500.0
LARGEST_COUNT = 1e18  # mean of Poisson's distribution above which NumPy's integers overflow
STIRLING = 16.0  # argument from which four terms of the series are exact to rounding


def exponential(x: NumpyArray) -> NumpyArray:
    """Compute eˣ without overflow, as it is summed with weights.

    Nothing is proved of larger losses (`enclosure_theorem`).
    """
    return np.exp(np.minimum(x, HUGE))


def domain(y: NumpyArray, inside: NumpyArray, loss: str, allowed: str) -> None:
    """Raise `ValueError` if some y is outside."""
    if not inside.all():
        worst = y[~inside]
        raise ValueError(
            f"the {loss} loss needs y {allowed}; got {worst.size} other values, such as {worst.flat[0]:g}."
        )


def are_counts(y: NumpyArray) -> NumpyArray:
    return (y >= 0) & (y == np.floor(y))


def moments(y: NumpyArray, weight: NumpyArray) -> TwoNumbers:
    """Compute the weighted mean and variance of responses."""
    mean = float(np.average(y, weights=weight))
    return mean, float(np.average((y - mean) ** 2, weights=weight))


class Family(abc.ABC):
    """Distribution of a response."""

    title = ""
    parameter = ""  # name of φ
    link = "log"  # link of the formulas
    scale = LOG_DENSITY  # the score that −log of the density is
    quadratic = False  # whether −log density is quadratic in η

    @abc.abstractmethod
    def loss(self, mean: Any, log_mean: Any, phi: Any, tau: Any, y: Any) -> Any:
        """Compute −log density, in NumPy or in JAX."""

    def check(self, y: NumpyArray) -> None:
        """Raise ValueError if some y is outside the domain."""
        domain(y, y > 0, self.title, "positive")

    def mean(self, eta: NumpyArray) -> NumpyArray:
        """Compute the mean from the linear predictor, in NumPy, without overflow."""
        return eta if self.link == "identity" else exponential(eta)

    def variance(self, mean: Arrays, phi: Any) -> Arrays:
        """Compute the variance of y."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, mean: NumpyArray, phi: NumpyArray) -> NumpyArray:
        """Draw responses."""
        raise NotImplementedError

    def start(self, y: NumpyArray, weight: NumpyArray, share: float = 1.0) -> NumberAndArray:
        """Return an η without regressors and τ, from which a fit starts.

        Moments, with φ times a share.
        """
        raise NotImplementedError

    def formulas(self, eta: NumpyArray, phi: Any, tau: Any, y: NumpyArray) -> Formulas:
        """Return −log density without its `constant`, and its derivatives in η up to the third
        order, in NumPy.
        """
        return {}

    def constant(self, phi: Any, tau: Any, y: NumpyArray) -> NumpyArray | float:
        """Compute the part of −log density that does not depend on η."""
        return 0.0

    def terms(
        self, order: int, size: NumpyArray, eta: NumpyArray, phi: Any, tau: Any, y: NumpyArray
    ) -> NumpyArray:
        """Bound the sum of the sizes of the terms of −log density or of a derivative in η, of which
        `size` is the size.
        """
        return size

    def formulas_of_tau(self, eta: NumpyArray, phi: Any, tau: Any, y: NumpyArray) -> Formulas:
        """Return the derivatives in τ of `formulas` of orders zero to two."""
        return {}

    def constant_of_tau(self, phi: Any, tau: Any, y: NumpyArray) -> NumpyArray:
        """Compute the derivative of `constant` in τ."""
        raise NotImplementedError

    # CRPS, a function of the mean, φ and y
    crps: ThreeArrayFunction | None = None

    @property
    def scores(self) -> dict[str, ThreeArrayFunction]:
        """Proper scores by name, functions of the mean, φ and y."""

        def density(mean, phi, y):
            log_mean = mean
            if self.link == "log":
                log_mean = np.log(mean)
            return self.loss(mean, log_mean, phi, np.log(phi), y)

        if self.crps is None:
            return {"log_density": density}
        return {"log_density": density, "crps": self.crps}


class GaussianFamily(Family):
    title = "Gaussian"
    parameter = "scale"
    link = "identity"
    quadratic = True

    def loss(self, mean, log_mean, phi, tau, y):
        return 0.5 * ((y - mean) / phi) ** 2 + tau + HALF_LOG_TAU

    def check(self, y):
        domain(y, np.isfinite(y), self.title, "finite")

    def variance(self, mean, phi):
        return phi**2 + 0.0 * mean

    def draw(self, rng, mean, phi):
        return rng.normal(mean, phi)

    def start(self, y, weight, share=1.0):
        mean, variance = moments(y, weight)
        return mean, np.log([np.sqrt(max(variance, 1e-12)) * share])

    def formulas(self, eta, phi, tau, y):
        precision = np.exp(-2 * tau)
        r = y - eta
        return {
            0: lambda: 0.5 * precision * r**2,
            1: lambda: -precision * r,
            2: lambda: np.broadcast_to(precision, r.shape),
            3: lambda: np.zeros_like(r),
        }

    def constant(self, phi, tau, y):
        return tau + HALF_LOG_TAU

    def formulas_of_tau(self, eta, phi, tau, y):
        functions = self.formulas(eta, phi, tau, y)
        return {k: lambda k=k: -2 * functions[k]() for k in range(3)}

    def constant_of_tau(self, phi, tau, y):
        return np.ones(np.broadcast_shapes(tau.shape, y.shape))

    def crps(self, mean, sigma, y):
        z = (y - mean) / sigma
        return sigma * (
            z * (2 * special.ndtr(z) - 1)
            + np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2)
            - 1 / np.sqrt(np.pi)
        )


class GammaFamily(Family):
    title = "gamma"
    parameter = "shape"

    def loss(self, mean, log_mean, nu, tau, y):
        return (
            nu * (y * numpy_of(log_mean).exp(-log_mean) + log_mean)
            - (nu - 1) * numpy_of(y).log(y)
            - nu * tau
            + special_of(nu).gammaln(nu)
        )

    def variance(self, mean, nu):
        return mean**2 / nu

    def draw(self, rng, mean, nu):
        return rng.gamma(nu, mean / nu)

    def start(self, y, weight, share=1.0):
        mean, variance = moments(y, weight)
        return float(np.log(mean)), np.log(
            [max(mean**2 / max(variance, 1e-12 * mean**2), 0.1) * share]
        )

    def formulas(self, eta, nu, tau, y):
        term = nu * y * exponential(-eta)
        return {0: lambda: term + nu * eta, 1: lambda: nu - term, 2: lambda: term, 3: lambda: -term}

    def constant(self, nu, tau, y):
        return -(nu - 1) * np.log(y) - nu * tau + special.gammaln(nu)

    def formulas_of_tau(self, eta, nu, tau, y):
        return self.formulas(eta, nu, tau, y)

    def terms(self, order, size, eta, nu, tau, y):
        if order == 1:
            return size + 2 * nu
        logs = np.abs((nu - 1) * np.log(y)) + np.abs(nu * tau) + np.abs(special.gammaln(nu))
        if order:
            return size
        return size + 2 * (nu * np.abs(eta) + logs)

    def constant_of_tau(self, nu, tau, y):
        return nu * (special.digamma(nu) - np.log(y) - tau - 1)

    def crps(self, mean, nu, y):
        x = nu * y / mean
        distance = y * (2 * special.gammainc(nu, x) - 1) - mean * (
            2 * special.gammainc(nu + 1, x) - 1
        )
        return distance - mean / (nu * special.beta(0.5, nu))


class InverseGaussianFamily(Family):
    title = "inverse Gaussian"
    parameter = "shape"

    def loss(self, mean, log_mean, shape, tau, y):
        return (y - mean) ** 2 * shape / (2 * mean**2 * y) + 0.5 * numpy_of(y).log(
            2 * np.pi * y**3 / shape
        )

    def variance(self, mean, shape):
        return mean**3 / shape

    def draw(self, rng, mean, shape):
        return rng.wald(mean, shape)


class BernoulliFamily(Family):
    title = "binomial"
    link = ""
    scale = LOG_PROBABILITY

    def loss(self, mean, log_mean, phi, tau, y):
        return -(special.xlogy(y, mean) + special.xlog1py(1 - y, -mean))

    def variance(self, mean, phi):
        return mean * (1 - mean)

    def draw(self, rng, mean, phi):
        return rng.random(mean.shape) < mean

    def crps(self, mean, phi, y):
        return (y - mean) ** 2


class PoissonFamily(Family):
    title = "Poisson"
    scale = LOG_PROBABILITY

    def loss(self, mean, log_mean, phi, tau, y):
        return mean - y * log_mean + special_of(y).gammaln(y + 1.0)

    def check(self, y):
        domain(y, y >= 0, self.title, "not negative")

    def variance(self, mean, phi):
        return mean

    def draw(self, rng, mean, phi):
        return rng.poisson(np.minimum(mean, LARGEST_COUNT))

    def formulas(self, eta, phi, tau, y):
        mean = exponential(eta)
        return {0: lambda: mean - y * eta, 1: lambda: mean - y, 2: lambda: mean, 3: lambda: mean}

    def constant(self, phi, tau, y):
        return special.gammaln(y + 1.0)

    def terms(self, order, size, eta, phi, tau, y):
        if order == 1:
            return size + 2 * y
        if order:
            return size
        return size + 2 * (y * np.abs(eta) + np.abs(special.gammaln(y + 1.0)))

    def crps(self, mean, phi, y):
        below = special.gammaincc(y + 1, mean)
        mass = np.exp(special.xlogy(y, mean) - mean - special.gammaln(y + 1))
        return (
            (y - mean) * (2 * below - 1)
            + 2 * mean * mass
            - mean * (special.ive(0, 2 * mean) + special.ive(1, 2 * mean))
        )


class NegativeBinomialFamily(Family):
    """Variance μ + α μ²."""

    title = "negative binomial"
    parameter = "dispersion"
    scale = LOG_PROBABILITY

    def loss(self, mean, log_mean, alpha, tau, y):
        size = numpy_of(tau).exp(-tau)
        odds = mean / size
        total = numpy_of(odds).log1p(odds)  # log(1 + αμ)
        return (
            special_of(y).gammaln(y + 1.0)
            - self._rising(size, y)
            + size * total
            + y * (total - log_mean)
        )

    @staticmethod
    def _rising(size, y):
        """Compute log Γ(s + y) − log Γ(s) − y log s, by Stirling's series for large s, where the
        logarithms of Γ cancel.
        """
        xp = numpy_of(size + y)
        gammaln = special_of(size + y).gammaln
        large = xp.maximum(size, STIRLING)
        small = xp.minimum(size, STIRLING)
        remainder = lambda x: (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / x**2) / x**2) / x**2) / x
        series = (
            (large + y - 0.5) * xp.log1p(y / large) - y + remainder(large + y) - remainder(large)
        )
        return xp.where(
            size > STIRLING, series, gammaln(small + y) - gammaln(small) - y * xp.log(small)
        )

    def check(self, y):
        domain(y, are_counts(y), self.title, "whole and not negative")

    def variance(self, mean, alpha):
        return mean + alpha * mean**2

    def draw(self, rng, mean, alpha):
        return rng.poisson(np.minimum(rng.gamma(1 / alpha, alpha * mean), LARGEST_COUNT))

    def start(self, y, weight, share=1.0):
        mean, variance = moments(y, weight)
        mean = max(mean, 1e-3)
        return float(np.log(mean)), np.log(
            [max(max(variance / mean - 1, 0.1) / mean, 0.05) * share]
        )

    def formulas(self, eta, alpha, tau, y):
        s = 1 / alpha
        x = eta + tau
        p = special.expit(x)
        q = special.expit(-x)
        return {
            0: lambda: (s + y) * np.logaddexp(0.0, x) - y * eta,
            1: lambda: s * p - y * q,
            2: lambda: (s + y) * p * q,
            3: lambda: (s + y) * p * q * (q - p),
        }

    def constant(self, alpha, tau, y):
        return special.gammaln(y + 1.0) - self._rising(1 / alpha, y)

    def terms(self, order, size, eta, alpha, tau, y):
        # η + τ loses digits, which e^{η + τ} multiplies
        amplification = 1 + np.abs(eta) + np.abs(tau)
        if order:
            return (size + 2 * y * (order == 1)) * amplification
        s = 1 / alpha
        logs = (
            np.abs(special.gammaln(y + 1.0))
            + np.abs(special.gammaln(s + y))
            + np.abs(special.gammaln(s))
            + y * np.abs(tau)
        )
        return (size + 2 * (y * np.abs(eta) + logs)) * amplification

    def formulas_of_tau(self, eta, alpha, tau, y):
        s = 1 / alpha
        x = eta + tau
        p = special.expit(x)
        q = special.expit(-x)
        return {
            0: lambda: (s + y) * p - s * np.logaddexp(0.0, x),
            1: lambda: p * (y * q - s * p),
            2: lambda: p * q * ((s + y) * (q - p) - s),
        }

    def constant_of_tau(self, alpha, tau, y):
        s = 1 / alpha
        small = np.minimum(s, STIRLING)
        large = np.maximum(s, STIRLING)
        tail = lambda x: (0.5 + (1 / 12 - (1 / 120 - 1 / 252 / x**2) / x**2) / x) / x
        by_series = large * (np.log1p(y / large) - tail(large + y) + tail(large)) - y
        by_digamma = small * (special.digamma(small + y) - special.digamma(small)) - y
        return np.where(s > STIRLING, by_series, by_digamma)

    def crps(self, mean, alpha, y):
        """Compute E|Y − y| − ½ E|Y − Y′|, of the size 1/α and p = 1/(1 + αμ)."""
        size = 1 / alpha
        p = 1 / (1 + alpha * mean)
        below = special.betainc(size, y + 1, p)
        before = np.where(y > 0, special.betainc(size + 1, np.maximum(y, 1e-300), p), 0.0)
        distance = y * (2 * below - 1) - mean * (2 * before - 1)
        return distance - mean / p * _hypergeometric(size + 1, 4 * (1 - p) / p**2)


def _hypergeometric(a: NumpyArray, x: NumpyArray) -> NumpyArray:
    """Compute ₂F₁(a, ½; 2; −x) = 4/π ∫ cos²θ (1 + x sin²θ)^{−a} dθ from 0 to π/2.

    It uses the trapezoidal rule in v, where tan θ = sinh(v) / √(1 + a x). SciPy's function
    overflows for a in the hundreds.
    """
    # of the rule, whose integrand is zero beyond that tan θ
    step = 0.125
    largest_tangent = 1e5
    width = 1 / np.sqrt(1 + a * x)
    total = np.zeros_like(width)
    end = np.arcsinh(largest_tangent / np.min(width[np.isfinite(width)], initial=1.0))
    for v in np.arange(0.0, end, step):
        square = (width * np.sinh(v)) ** 2
        value = (
            np.exp(-a * np.log1p(x * square / (1 + square)))
            / (1 + square) ** 2
            * width
            * np.cosh(v)
        )
        total += value if v else value / 2
    return 4 / np.pi * step * total


def thresholds(tau: Any) -> Any:
    """Compute the thresholds c from τ, `[own, ...]`, in NumPy or in JAX."""
    xp = numpy_of(tau)
    return tau[0] + xp.concatenate([xp.zeros((1, *tau.shape[1:])), xp.cumsum(xp.exp(tau[1:]), 0)])


class OrdinalFamily(Family):
    """Proportional odds of levels 0, …, in NumPy.

    τ is `[levels − 1, ...]`, and φ has the gaps between thresholds.
    """

    title = "ordinal"
    link = ""
    scale = LOG_PROBABILITY

    def loss(self, mean, log_mean, phi, tau, y):
        raise NotImplementedError  # it has no mean

    def _ends(self, eta, tau, y):
        """Return `c_y − η` and `c_{y−1} − η`, infinite beyond the last and before the first, with
        their sigmoids and slopes.
        """
        edge = np.full((1, *tau.shape[1:]), np.inf)
        cut = np.concatenate([-edge, thresholds(tau), edge])
        cut = np.broadcast_to(cut, (len(cut), *eta.shape))
        level = np.broadcast_to(y.astype(int), eta.shape)[None]
        upper = np.take_along_axis(cut, level + 1, 0)[0] - eta
        lower = np.take_along_axis(cut, level, 0)[0] - eta
        a = special.expit(-upper)
        b = special.expit(lower)
        return upper, lower, a, b, a * special.expit(upper), b * special.expit(-lower)

    def formulas(self, eta, gaps, tau, y):
        upper, lower, a, b, va, vb = self._ends(eta, tau, y)
        return {
            0: lambda: np.logaddexp(0.0, -upper) + np.logaddexp(0.0, lower),
            1: lambda: a - b,
            2: lambda: va + vb,
            3: lambda: va * (1 - 2 * a) - vb * (1 - 2 * b),
        }

    def formulas_of_tau(self, eta, gaps, tau, y):
        _, _, a, b, va, vb = self._ends(eta, tau, y)
        of_upper = lambda: -a, lambda: -va, lambda: -va * (1 - 2 * a)
        of_lower = lambda: b, lambda: -vb, lambda: vb * (1 - 2 * b)
        level = y.astype(int)
        count = len(tau)

        # c_y and c_{y−1} depend on τ_m from level m on, and from the next on
        def derivative(k: int, m: int) -> NumpyArray:
            change = of_upper[k]() * ((level >= m) & (level < count)) + of_lower[k]() * (level > m)
            return change * (gaps[m] if m else 1.0)

        return {k: lambda k=k: np.stack([derivative(k, m) for m in range(count)]) for k in range(3)}

    def constant(self, gaps, tau, y):
        return sum(
            (np.where(y == m, -np.log(-np.expm1(-gaps[m])), 0.0) for m in range(1, len(tau))),
            np.zeros(()),
        )

    def constant_of_tau(self, gaps, tau, y):
        first = np.zeros(np.broadcast_shapes(tau[0].shape, y.shape))
        return np.stack(
            [
                first,
                *(
                    np.where(y == m, -gaps[m] / np.expm1(gaps[m]), first)
                    for m in range(1, len(tau))
                ),
            ]
        )


GAUSSIAN = GaussianFamily()
GAMMA = GammaFamily()
INVERSE_GAUSSIAN = InverseGaussianFamily()
NEGATIVE_BINOMIAL = NegativeBinomialFamily()
BERNOULLI = BernoulliFamily()
POISSON = PoissonFamily()
ORDINAL = OrdinalFamily()
