"""The distributions that regressions predict: their dispersion in every refit, and proper scores of them.

Under squared loss the variance is φ = Σ w r² / Σ w over the rows that a refit sees, for every link. A shape or a dispersion
that the user gives to the loss is used as it is, and printed. CRPS has closed forms (Jordan, Krüger & Lerch, Journal of
Statistical Software 90, 2019), by functions that do not overflow.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from ...objectives.objective import LOG_PROBABILITY, Distribution
from ...plans.plan import RefitRows
from . import losses

Array = np.ndarray
Scores = dict[str, Callable[[Array, Array, Array], Array]]  # functions of mean, dispersion and y, by name
FIXED_DISPERSION = "which is as it was given: nothing has estimated it"
CANCELLATION_SHARE = 1e-3  # share of a sum of squares below which a difference of sums is computed as a sum


def distribution(
    loss: losses.AbstractLoss, scale: str, variance: "Callable[[], ResidualVariance] | None" = None
) -> Distribution | None:
    """Distribution of the response that a loss on this scale states; None if it states none.

    The variance of squared loss is estimated by `variance`, unless the response is the code of a class.
    """
    whole = scale == LOG_PROBABILITY
    fixed = lambda value: lambda rows, theta: np.full((len(theta), 1), float(value))
    last = lambda rows, theta: np.exp(theta[:, -1:])
    normal: Scores = {"log_density": _log_normal, "crps": lambda m, v, y: _normal(m, v**0.5, y)}
    gamma: Scores = {"log_density": _log_gamma, "crps": _gamma}
    wald: Scores = {"log_density": _log_inverse_gaussian}
    match loss:
        case losses.Squared() if variance is not None:
            return Distribution(variance(), normal)
        case losses.Gamma(shape=shape):
            return Distribution(fixed(shape), gamma, f"of the shape {shape:g}, {FIXED_DISPERSION}")
        case losses.InverseGaussian(shape=shape):
            return Distribution(fixed(shape), wald, f"of the shape {shape:g}, {FIXED_DISPERSION}")
        case losses.Tweedie(power=power, dispersion=phi) if float(power) in (0, 2, 3):
            scores = {0: normal, 2: gamma, 3: wald}[int(power)]
            return Distribution(fixed(1 / phi if power else phi), scores, f"of the dispersion {phi:g}, {FIXED_DISPERSION}")
        case losses.GaussianScale():
            return Distribution(last, {"crps": _normal})
        case losses.Poisson() if whole:
            return Distribution(fixed(1.0), {"crps": _poisson})
        case losses.Binomial() if whole:
            return Distribution(fixed(1.0), {"crps": lambda mean, _, y: (y - mean) ** 2})
        case losses.NegativeBinomial() if whole:
            return Distribution(fixed(loss.dispersion), {"crps": _counts})
        case losses.NegativeBinomialDispersion() if not loss.linear:
            return Distribution(last, {"crps": _counts})
        case losses.GammaShape():
            return Distribution(last, {"crps": _gamma})
    return None


def classes(loss: losses.AbstractLoss, outputs: int, scale: str) -> int:
    """Number of classes, if y holds the number of a class; else zero."""
    match loss:
        case losses.Multinomial():
            return outputs
        case losses.Ordinal(num_levels=levels):
            return levels
        case losses.Binomial() if scale == LOG_PROBABILITY:
            return 2
    return 0


class ResidualVariance:
    """Residual variance Σ w r² / Σ w of least squares over the rows that each refit sees."""

    rows: Any
    y: np.ndarray
    offset: float | np.ndarray
    weight: np.ndarray
    mean: Callable[[Any], Any]
    linear: bool

    def __init__(self, rows: Any, y: Array, offset: Array | None, weight: Array | None, loss: losses.AbstractLoss):
        self.rows, self.y, self.offset = rows, np.asarray(y), 0.0 if offset is None else offset
        self.weight = np.ones(len(self.y)) if weight is None else np.asarray(weight)
        self.mean, self.linear = loss.inverse_link, loss.convex

    @functools.cached_property
    def _gram(self) -> Float[Array, "params params"]:
        return self.rows.products(self.weight[None])[0]

    def __call__(self, rows: RefitRows, theta: Float[Array, "refits params"]) -> Float[Array, "refits 1"]:
        index = np.minimum(rows.index, len(self.y) - 1)
        left = np.where(rows.index < len(self.y), (1 - rows.weight) * self.weight[index], 0.0)
        squares = self._quadratic(index, left, theta) if self.linear else np.full(len(theta), np.nan)
        for k in np.flatnonzero(np.isnan(squares)):
            seen = self.weight.copy()
            np.subtract.at(seen, index[k], left[k])
            squares[k] = seen @ (self.y - self.mean(self.rows.predictors(theta[k][None])[0] + self.offset)) ** 2
        return (squares / (self.weight.sum() - left.sum(axis=1)))[:, None]

    def _quadratic(
        self, index: Int[Array, "refits width"], remainder: Float[Array, "refits width"], theta: Float[Array, "refits params"]
    ) -> Float[Array, " refits"]:
        """Compute Σ w r² without the left-out rows from its value at a nearby θ; NaN if little of it remains."""
        start = np.mean(theta[np.isfinite(theta).all(1)], axis=0)
        move, r = theta - start, self.y - self.offset - self.rows.predictors(start[None])[0]
        own = r[index] - self.rows.at(index, move)
        total = self.weight @ r**2
        whole = total - 2 * move @ self.rows.pull((self.weight * r)[None])[0] + np.einsum("rp,rp->r", move @ self._gram, move)
        squares = whole - np.sum(remainder * own**2, axis=1)
        return np.where(squares > CANCELLATION_SHARE * np.maximum(total, whole), squares, np.nan)


def _log_normal(mean: Array, variance: Array, y: Array) -> Array:
    return 0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))


def _log_gamma(mean: Array, shape: Array, y: Array) -> Array:
    return shape * (y / mean + np.log(mean / shape)) - (shape - 1) * np.log(y) + special.gammaln(shape)


def _log_inverse_gaussian(mean: Array, shape: Array, y: Array) -> Array:
    return shape * (y - mean) ** 2 / (2 * mean**2 * y) + 0.5 * np.log(2 * np.pi * y**3 / shape)


def _normal(mean: Array, sigma: Array, y: Array) -> Array:
    z = (y - mean) / sigma
    return sigma * (z * (2 * special.ndtr(z) - 1) + np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2) - 1 / np.sqrt(np.pi))


def _gamma(mean: Array, shape: Array, y: Array) -> Array:
    at = shape * y / mean
    own = y * (2 * special.gammainc(shape, at) - 1) - mean * (2 * special.gammainc(shape + 1, at) - 1)
    return own - mean / (shape * special.beta(0.5, shape))


def _poisson(mean: Array, _: Array, y: Array) -> Array:
    below, mass = special.gammaincc(y + 1, mean), np.exp(special.xlogy(y, mean) - mean - special.gammaln(y + 1))
    return (y - mean) * (2 * below - 1) + 2 * mean * mass - mean * (special.ive(0, 2 * mean) + special.ive(1, 2 * mean))


def _counts(mean: Array, alpha: Array, y: Array) -> Array:
    """Compute the CRPS of the negative binomial of size 1/α, p = 1/(1 + αμ): E|Y − y| − ½ E|Y − Y′|."""
    size, p = 1 / alpha, 1 / (1 + alpha * mean)
    below, before = special.betainc(size, y + 1, p), np.where(y > 0, special.betainc(size + 1, np.maximum(y, 1e-300), p), 0.0)
    own = y * (2 * below - 1) - mean * (2 * before - 1)
    return own - mean / p * _hypergeometric(size + 1, 4 * (1 - p) / p**2)


STEP, FAR = 0.125, 1e5  # step of the trapezoidal rule, and the argument beyond which its integrand is zero


def _hypergeometric(a: Array, x: Array) -> Array:
    """Compute ₂F₁(a, ½; 2; −x) = 4/π ∫ cos²θ (1 + x sin²θ)^{−a} dθ from 0 to π/2.

    It uses the trapezoidal rule in v, where tan θ = sinh(v) / √(1 + a x). SciPy's function overflows for a in the hundreds.
    """
    width = 1 / np.sqrt(1 + a * x)
    total, most = np.zeros_like(width), np.arcsinh(FAR / np.min(width[np.isfinite(width)], initial=1.0))
    for v in np.arange(0.0, most, STEP):
        square = (width * np.sinh(v)) ** 2
        value = np.exp(-a * np.log1p(x * square / (1 + square))) / (1 + square) ** 2 * width * np.cosh(v)
        total = total + (value if v else value / 2)
    return 4 / np.pi * STEP * total
