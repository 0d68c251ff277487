"""The distributions that regressions predict: their dispersion in every refit, and proper scores of them.

Under squared loss the variance is φ = Σ w r² / Σ w over what a refit sees. CRPS by scoringrules (Jordan, Krüger & Lerch,
Journal of Statistical Software 90, 2019).
"""

import functools
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .._objective import LOG_PROBABILITY, Distribution
from .._plan import Rows
from . import losses

if TYPE_CHECKING:
    from .linear import AbstractRegression

Array = np.ndarray


def distribution(model: "AbstractRegression") -> Distribution | None:
    """That of a regression's response, where there is one."""
    loss = model.loss_function
    whole = model.scale == LOG_PROBABILITY
    fixed = lambda value: lambda rows, theta: np.full((len(theta), 1), float(value))
    last = lambda rows, theta: np.exp(theta[:, -1:])
    match loss:
        case losses.Squared() if loss.convex:
            return Distribution(Variance(model), {"log_density": _log_normal, "crps": lambda m, v, y: _normal(m, v**0.5, y)})
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
        case losses.Gamma():
            return Distribution(fixed(loss.shape), {"crps": _gamma})
        case losses.GammaShape():
            return Distribution(last, {"crps": _gamma})
    return None


def classes(model: "AbstractRegression") -> int:
    """How many, where y is the number of one."""
    match model.loss_function:
        case losses.Multinomial():
            return len(model.classes)
        case losses.Ordinal(num_levels=levels):
            return levels
        case losses.Binomial() if model.scale == LOG_PROBABILITY:
            return 2
    return 0


class Variance:
    """Σ w r² / Σ w over what each refit sees, of linear least squares: over all rows it is quadratic in θ."""

    def __init__(self, model: "AbstractRegression"):
        self.x, self.y = np.asarray(model.design), np.asarray(model.y) - (0.0 if model.offset is None else model.offset)
        self.weight = np.ones(len(self.x)) if model.sample_weight is None else np.asarray(model.sample_weight)

    @functools.cached_property
    def _gram(self) -> Float[Array, "params params"]:
        return (self.x.T * self.weight) @ self.x

    def __call__(self, rows: Rows, theta: Float[Array, "refits params"]) -> Float[Array, "refits 1"]:
        start = np.mean(theta[np.isfinite(theta).all(1)], axis=0)
        move, r = theta - start, self.y - self.x @ start
        index = np.minimum(rows.index, len(r) - 1)
        left = np.where(rows.index < len(r), (1 - rows.weight) * self.weight[index], 0.0)
        own = r[index] - np.einsum("rwp,rp->rw", self.x[index], move)
        whole = self.weight @ r**2 - 2 * move @ (self.x.T @ (self.weight * r)) + np.einsum("rp,rp->r", move @ self._gram, move)
        return (np.maximum(whole - np.sum(left * own**2, axis=1), 0.0) / (self.weight.sum() - left.sum(axis=1)))[:, None]


def _log_normal(mean: Array, variance: Array, y: Array) -> Array:
    return 0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))


def _normal(mean: Array, sigma: Array, y: Array) -> Array:
    from scoringrules import crps_normal

    return crps_normal(y, mean, sigma)


def _poisson(mean: Array, _: Array, y: Array) -> Array:
    from scoringrules import crps_poisson

    return crps_poisson(y, mean)


def _counts(mean: Array, alpha: Array, y: Array) -> Array:
    from scoringrules import crps_negbinom

    return crps_negbinom(y, 1 / alpha, 1 / (1 + alpha * mean))


def _gamma(mean: Array, shape: Array, y: Array) -> Array:
    from scoringrules import crps_gamma

    return crps_gamma(y, shape, rate=shape / mean)
