"""Losses with parameters of their own, shared by all units: `ℓ(η, τ, y)`.

Such parameters are a dispersion, a scale or thresholds. They are estimated with the coefficients, and so differ from refit to
refit. τ is unconstrained.

    NegativeBinomialDispersion   variance μ + α μ², or μ + α μ         log link     dispersion α = e^τ
    Beta                         variance μ (1 − μ) / (1 + φ)          logit link   precision φ = e^τ
    GaussianScale                ½ ((y − η)/σ)² + log σ + ½ log 2π                   scale σ = e^τ
    GammaShape                   variance μ² / ν                       log link     shape ν = e^τ
    HuberScale                   σ + σ H((y − η)/σ)                                  scale σ = e^τ
    Ordinal                      P(y ≤ k) = sigmoid(c_k − η)                         thresholds c, by the logs of their gaps
"""

from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from ..._runtime.jax import Array, Arrays, jax, jnp, jspecial, static
from ...objectives.objective import LOG_DENSITY, LOG_PROBABILITY
from .families import negative_binomial
from .loss import AbstractSharedLoss, domain, positive

NONE = 1e-6  # dispersion that cannot be told from zero
POISSON = 1e-16  # dispersion at which losses are Poisson's, as they differ by half of it times the squared mean


class AbstractScaleLoss(AbstractSharedLoss):
    """Loss with one positive parameter of its own, `named`, whose logarithm is τ."""

    parameter: ClassVar[str]

    def natural(self, tau: Float[Arrays, " own"]) -> dict[str, Arrays]:
        return {self.parameter: jnp.exp(tau[0])}

    def unconstrained(self, parameters: dict[str, Any]) -> np.ndarray:
        return np.log(positive(f"Regression: {self.parameter}", parameters[self.parameter]))[None]

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        return eta


def _moments(y: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    mean = float(np.average(y, weights=weight))
    return mean, float(np.average((y - mean) ** 2, weights=weight))


class NegativeBinomialDispersion(AbstractScaleLoss):
    """Negative binomial loss whose dispersion α is estimated, for `lo.Regression`; the link is log.

    The variance of y is `μ + α μ²`, or `μ + α μ` if `linear`.

    Parameters
    ----------
    linear : bool, default: False
        Whether the variance is linear in the mean.

    See Also
    --------
    NegativeBinomial : Loss of a fixed dispersion.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.NegativeBinomialDispersion()(0.0, np.zeros(1), 1.0)), 3)
    1.386
    """

    parameter = "dispersion"

    linear: bool = static(default=False)

    def __call__(self, eta: Array, tau: Float[Array, " own"], y: Array) -> Array:  # type: ignore[override]
        return negative_binomial(jnp.exp(eta), eta, tau[0] - eta if self.linear else tau[0], y)

    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        mean, variance = _moments(y, weight)
        excess = max(variance / max(mean, 1e-3) - 1, 0.1)
        return float(np.log(max(mean, 1e-3))), np.log([excess if self.linear else max(excess / max(mean, 1e-3), 0.05)])

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        return jnp.exp(eta)

    def check(self, y: np.ndarray) -> None:
        domain(y, (y >= 0) & (y == np.floor(y)), "negative binomial", "whole and not negative")

    def limit(self, tau: np.ndarray) -> str:
        if tau[0] > np.log(NONE):
            return ""
        return (
            "the dispersion of the negative binomial goes to zero: the counts scatter no more than Poisson's, its limit. "
            "Take lo.losses.Poisson()."
        )

    def at_limit(self, tau: np.ndarray) -> np.ndarray:
        return np.log([POISSON]) if self.limit(tau) else tau

    def scale(self, y: np.ndarray) -> str:
        return LOG_PROBABILITY


class Beta(AbstractScaleLoss):
    """Beta loss whose precision φ is estimated, for `lo.Regression`: y in (0, 1) with mean μ = sigmoid(η).

    The variance of y is `μ (1 − μ) / (1 + φ)`.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.Beta()(0.0, np.log([4.0]), 0.5)), 3)
    -0.405
    """

    parameter = "precision"

    def __call__(self, eta: Array, tau: Float[Array, " own"], y: Array) -> Array:  # type: ignore[override]
        precision = jnp.exp(tau[0])
        a, b = jax.nn.sigmoid(eta) * precision, jax.nn.sigmoid(-eta) * precision
        constant = jspecial.gammaln(a) + jspecial.gammaln(b) - jspecial.gammaln(precision)
        return constant - (a - 1) * jnp.log(y) - (b - 1) * jnp.log1p(-y)

    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        mean, variance = _moments(y, weight)
        return float(np.log(mean / (1 - mean))), np.log([max(mean * (1 - mean) / max(variance, 1e-12) - 1, 0.5)])

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        return jax.nn.sigmoid(eta)

    def check(self, y: np.ndarray) -> None:
        domain(y, (y > 0) & (y < 1), "beta", "strictly between 0 and 1")

    def scale(self, y: np.ndarray) -> str:
        return LOG_DENSITY


class GaussianScale(AbstractScaleLoss):
    """Gaussian loss whose standard deviation σ is estimated, for `lo.Regression`: −log of the density of mean η.

    See Also
    --------
    Squared : Half the squared error.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.GaussianScale()(0.0, np.zeros(1), 1.0)), 3)
    1.419
    """

    parameter = "scale"

    def __call__(self, eta: Array, tau: Float[Array, " own"], y: Array) -> Array:  # type: ignore[override]
        return 0.5 * ((y - eta) * jnp.exp(-tau[0])) ** 2 + tau[0] + 0.5 * jnp.log(2 * jnp.pi)

    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        mean, variance = _moments(y, weight)
        return mean, np.log([np.sqrt(max(variance, 1e-12))])

    def scale(self, y: np.ndarray) -> str:
        return LOG_DENSITY


class GammaShape(AbstractScaleLoss):
    """Gamma loss whose shape ν is estimated, for `lo.Regression`: −log of the density of mean μ = e^η.

    The variance of y is `μ² / ν`.

    See Also
    --------
    Gamma : Loss of a fixed shape.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.GammaShape()(0.0, np.zeros(1), 2.0)), 3)
    2.0
    """

    parameter = "shape"

    def __call__(self, eta: Array, tau: Float[Array, " own"], y: Array) -> Array:  # type: ignore[override]
        nu = jnp.exp(tau[0])
        return nu * (eta + y * jnp.exp(-eta)) - (nu - 1) * jnp.log(y) - nu * tau[0] + jspecial.gammaln(nu)

    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        mean, variance = _moments(y, weight)
        return float(np.log(mean)), np.log([mean**2 / max(variance, 1e-12)])

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        return jnp.exp(eta)

    def check(self, y: np.ndarray) -> None:
        domain(y, y > 0, "gamma", "positive")

    def scale(self, y: np.ndarray) -> str:
        return LOG_DENSITY


class HuberScale(AbstractScaleLoss):
    """Huber loss whose scale σ is estimated, for `lo.Regression`.

    The loss is `σ + σ H((y − η)/σ)`, H(z) = z² for |z| < ε, else 2ε|z| − ε². Its second derivative jumps where |y − η| = εσ.

    Parameters
    ----------
    epsilon : float, default: 1.35
        Standardised residual ε beyond which the loss is linear, one or more.

    Raises
    ------
    ValueError
        If ε is below one.

    See Also
    --------
    Huber : Loss of a fixed scale.

    References
    ----------
    P. J. Huber, *Robust Statistics*, Wiley, 1981, section 7.7.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.HuberScale()(0.0, np.zeros(1), 10.0)), 3)
    26.177
    """

    parameter = "scale"
    smooth = False

    epsilon: Float[np.ndarray, ""]

    def __init__(self, epsilon: float = 1.35):
        if not (np.isfinite(epsilon) and epsilon >= 1):
            raise ValueError(f"HuberScale: epsilon must be 1 or more; got {epsilon}.")
        self.epsilon = np.asarray(epsilon, np.float64)

    def __call__(self, eta: Array, tau: Float[Array, " own"], y: Array) -> Array:  # type: ignore[override]
        scale, r = jnp.exp(tau[0]), y - eta
        far = jnp.abs(r) >= self.epsilon * scale
        near = r**2 / scale
        return scale + jnp.where(far, 2 * self.epsilon * jnp.abs(r) - scale * self.epsilon**2, near)

    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        median = float(np.median(y))
        return median, np.log([max(1.48 * float(np.median(np.abs(y - median))), 1e-6)])

    def scale(self, y: np.ndarray) -> str:
        return f"Huber loss of ε = {float(self.epsilon):g} with its scale"


class Ordinal(AbstractSharedLoss):
    """Proportional-odds loss of ordered levels, for `lo.Regression`: `P(y ≤ k) = sigmoid(c_k − η)`, y the number of a level.

    The increasing thresholds c are estimated, and take the place of an intercept. −log of a difference of sigmoids is computed
    as `softplus(−a) + softplus(b) − log(1 − e^(b − a))`, a = c_y − η, b = c_{y−1} − η.

    Parameters
    ----------
    num_levels : int
        Number of levels, two or more.

    Raises
    ------
    ValueError
        If there are fewer than two levels.

    Examples
    --------
    >>> import leaveout as lo
    >>> loss = lo.losses.Ordinal(3)
    >>> [round(float(p), 3) for p in loss.inverse_link(np.zeros(1), np.array([-1.0, np.log(2.0)]))[0]]
    [0.269, 0.462, 0.269]
    """

    num_levels: int = static()
    intercept = False

    def __post_init__(self) -> None:
        if self.num_levels < 2:
            raise ValueError(f"Ordinal: two or more levels are needed; got {self.num_levels}.")

    def __call__(self, eta: Array, tau: Float[Array, " own"], y: Array) -> Array:  # type: ignore[override]
        k = y.astype(int)
        cut = jnp.concatenate([jnp.zeros(1), _thresholds(tau), jnp.zeros(1)])
        upper, lower = cut[k + 1] - eta, cut[k] - eta
        above, below, last = k > 0, k < self.num_levels - 1, self.num_levels - 2
        gap = jnp.where(k <= last, jnp.exp(tau)[jnp.minimum(k, last)], 1.0)  # c_k − c_{k−1}, for 0 < k
        between = jnp.where(above & below, -jnp.log(-jnp.expm1(-jnp.where(above & below, gap, 1.0))), 0.0)
        return jnp.where(below, jax.nn.softplus(-upper), 0.0) + jnp.where(above, jax.nn.softplus(lower), 0.0) + between

    def natural(self, tau: Float[Arrays, " own"]) -> dict[str, Arrays]:
        return {"thresholds": _thresholds(tau)}

    def unconstrained(self, parameters: dict[str, Any]) -> np.ndarray:
        cut = np.asarray(parameters["thresholds"], np.float64)
        if cut.shape != (self.num_levels - 1,) or not np.isfinite(cut).all() or (np.diff(cut) <= 0).any():
            raise ValueError(f"Regression: thresholds must be {self.num_levels - 1} increasing numbers; got {cut}.")
        return np.r_[cut[0], np.log(np.diff(cut))]

    def start(self, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
        share = np.cumsum(np.bincount(y.astype(int), weight, self.num_levels))[:-1] / weight.sum()
        share = np.clip(share, 1e-3, 1 - 1e-3)
        cut = np.log(share / (1 - share)) + 1e-3 * np.arange(len(share))
        return 0.0, self.unconstrained({"thresholds": cut})

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        """Compute the probabilities of the levels.

        Parameters
        ----------
        eta : array of float, shape (...)
            Linear predictors.
        tau : array of float, shape (levels - 1,)
            First threshold, and the logs of the gaps between thresholds.

        Returns
        -------
        array of float, shape (..., levels)
            The probabilities.
        """
        seen = jax.nn.sigmoid(_thresholds(tau) - eta[..., None])
        edge = jnp.zeros((*eta.shape, 1))
        return jnp.diff(jnp.concatenate([edge, seen, edge + 1], axis=-1), axis=-1)

    def check(self, y: np.ndarray) -> None:
        domain(y, (y >= 0) & (y < self.num_levels) & (y == np.floor(y)), "ordinal", f"among 0, …, {self.num_levels - 1}")

    def scale(self, y: np.ndarray) -> str:
        return LOG_PROBABILITY

    @property
    def own(self) -> int:  # type: ignore[override]
        return self.num_levels - 1


def _thresholds(tau: Arrays) -> Array:
    return tau[0] + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(tau[1:]))])
