"""Losses with parameters of their own, shared by all units: `ℓ(η, τ, y)`.

Such parameters are a dispersion, a scale or thresholds. They are estimated with the coefficients,
and so differ from refit to refit. τ is unconstrained.

    NegativeBinomialDispersion   variance μ + α μ², or μ + α μ         log link
    dispersion α = e^τ
    Beta                         variance μ (1 − μ) / (1 + φ)          logit link
    precision φ = e^τ
    GaussianScale                ½ ((y − η)/σ)² + log σ + ½ log 2π                   scale σ = e^τ
    GammaShape                   variance μ² / ν                       log link     shape ν = e^τ
    HuberScale                   σ + σ H((y − η)/σ)                                  scale σ = e^τ
    Ordinal                      P(y ≤ k) = sigmoid(c_k − η)
    thresholds c, by the logs of their gaps
"""

from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ..._runtime import (
    Array,
    Arrays,
    NamedValues,
    NumberAndArray,
    jax,
    jnp,
    jspecial,
    numpy_of,
    special_of,
    static,
)
from ...objectives import LOG_DENSITY, LOG_PROBABILITY
from . import distributions
from .distributions import are_counts, domain, moments, thresholds
from .loss import AbstractSharedLoss, members_of, positive

Tau = Float[Array, " own"]


class AbstractScaleLoss(AbstractSharedLoss):
    """Loss with one positive parameter of its own, `named`, whose logarithm is τ."""

    parameter: ClassVar[str]

    def natural(self, tau: Float[Arrays, "own ..."]) -> dict[str, Arrays]:
        return {self.parameter: numpy_of(tau).exp(tau[0])}

    def unconstrained(self, parameters: NamedValues) -> ndarray:
        return np.log(
            positive(f"{type(self).__name__}: {self.parameter}", parameters[self.parameter])
        )[None]

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        return eta


class AbstractFamilyScale(AbstractScaleLoss):
    """−log of the density of a family whose own parameter is estimated."""

    family: ClassVar[distributions.Family]

    @property
    def parameter(self) -> str:  # type: ignore[override]
        return self.family.parameter

    def __call__(self, eta: Array, tau: Tau, y: Array) -> Array:  # type: ignore[override]
        return self.family.loss(self.inverse_link(eta, tau), eta, jnp.exp(tau[0]), tau[0], y)

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        if self.family.link == "identity":
            return eta
        return jnp.exp(eta)

    start, check = members_of("family", "start", "check")

    def scale(self, y: ndarray) -> str:
        return self.family.scale


class NegativeBinomialDispersion(AbstractFamilyScale):
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

    family = distributions.NEGATIVE_BINOMIAL
    linear: bool = static(default=False)

    def __call__(self, eta: Array, tau: Tau, y: Array) -> Array:  # type: ignore[override]
        if self.linear:
            tau = tau - eta
        return super().__call__(eta, tau, y)

    def start(self, y: ndarray, weight: ndarray) -> NumberAndArray:
        if not self.linear:
            return super().start(y, weight)
        mean, variance = moments(y, weight)
        mean = max(mean, 1e-3)
        return float(np.log(mean)), np.log([max(variance / mean - 1, 0.1)])

    def limit(self, tau: ndarray) -> str:
        if tau[0] > np.log(1e-6):  # a dispersion that can be told from zero
            return ""
        return (
            "the dispersion of the negative binomial goes to zero: the counts scatter no more than Poisson's, its limit. "
            "Take lo.losses.Poisson()."
        )

    def at_limit(self, tau: ndarray) -> ndarray:
        # losses of this dispersion are Poisson's, as they differ by half of it times the squared
        # mean
        return np.log([1e-16]) if self.limit(tau) else tau


class Beta(AbstractScaleLoss):
    """Beta loss whose precision φ is estimated, for `lo.Regression`: y in (0, 1) with mean μ =
    sigmoid(η).

    The variance of y is `μ (1 − μ) / (1 + φ)`.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.Beta()(0.0, np.log([4.0]), 0.5)), 3)
    -0.405
    """

    parameter = "precision"
    scale_name = LOG_DENSITY

    def __call__(self, eta: Array, tau: Tau, y: Array) -> Array:  # type: ignore[override]
        precision = jnp.exp(tau[0])
        a = jax.nn.sigmoid(eta) * precision
        b = jax.nn.sigmoid(-eta) * precision
        constant = jspecial.gammaln(a) + jspecial.gammaln(b) - jspecial.gammaln(precision)
        return constant - (a - 1) * jnp.log(y) - (b - 1) * jnp.log1p(-y)

    def start(self, y: ndarray, weight: ndarray) -> NumberAndArray:
        mean, variance = moments(y, weight)
        return float(np.log(mean / (1 - mean))), np.log(
            [max(mean * (1 - mean) / max(variance, 1e-12) - 1, 0.5)]
        )

    def inverse_link(self, eta: Arrays, tau: Arrays) -> Arrays:  # type: ignore[override]
        return jax.nn.sigmoid(eta)

    def check(self, y: ndarray) -> None:
        domain(y, (y > 0) & (y < 1), "beta", "strictly between 0 and 1")


class GaussianScale(AbstractFamilyScale):
    """Gaussian loss whose standard deviation σ is estimated, for `lo.Regression`: −log of the
    density of mean η.

    See Also
    --------
    Squared : Half the squared error.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(float(lo.losses.GaussianScale()(0.0, np.zeros(1), 1.0)), 3)
    1.419
    """

    family = distributions.GAUSSIAN


class GammaShape(AbstractFamilyScale):
    """Gamma loss whose shape ν is estimated, for `lo.Regression`: −log of the density of mean μ =
    e^η.

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

    family = distributions.GAMMA


class HuberScale(AbstractScaleLoss):
    """Huber loss whose scale σ is estimated, for `lo.Regression`.

    The loss is `σ + σ H((y − η)/σ)`, H(z) = z² for |z| < ε, else 2ε|z| − ε². Its second derivative
    jumps where |y − η| = εσ.

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

    epsilon: Float[ndarray, ""]

    def __init__(self, epsilon: float = 1.35):
        if not (np.isfinite(epsilon) and epsilon >= 1):
            raise ValueError(f"HuberScale: epsilon must be 1 or more; got {epsilon}.")
        self.epsilon = np.asarray(epsilon, float)

    def __call__(self, eta: Array, tau: Tau, y: Array) -> Array:  # type: ignore[override]
        scale = jnp.exp(tau[0])
        r = y - eta
        linear = jnp.abs(r) >= self.epsilon * scale
        return scale + jnp.where(
            linear, 2 * self.epsilon * jnp.abs(r) - scale * self.epsilon**2, r**2 / scale
        )

    def start(self, y: ndarray, weight: ndarray) -> NumberAndArray:
        median = float(np.median(y))
        return median, np.log([max(1.48 * float(np.median(np.abs(y - median))), 1e-6)])

    def scale(self, y: ndarray) -> str:
        return f"Huber loss of ε = {float(self.epsilon):g} with its scale"


class Ordinal(AbstractSharedLoss):
    """Proportional-odds loss of ordered levels, for `lo.Regression`: `P(y ≤ k) = sigmoid(c_k − η)`,
    y the number of a level.

    The increasing thresholds c are estimated, and take the place of an intercept. −log of a
    difference of sigmoids is computed as `softplus(−a) + softplus(b) − log(1 − e^(b − a))`, a = c_y
    − η, b = c_{y−1} − η.

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
    >>> [
    ...     round(float(p), 3)
    ...     for p in loss.inverse_link(np.zeros(1), np.array([-1.0, np.log(2.0)]))[0]
    ... ]
    [0.269, 0.462, 0.269]
    """

    family = distributions.ORDINAL
    scale_name = LOG_PROBABILITY
    num_levels: int = static()
    intercept = False

    def __post_init__(self) -> None:
        if self.num_levels < 2:
            raise ValueError(f"Ordinal: two or more levels are needed; got {self.num_levels}.")

    def __call__(self, eta: Array, tau: Tau, y: Array) -> Array:  # type: ignore[override]
        k = y.astype(int)
        cut = jnp.concatenate([jnp.zeros(1), thresholds(tau), jnp.zeros(1)])
        upper = cut[k + 1] - eta
        lower = cut[k] - eta
        above = k > 0
        below = k < self.num_levels - 1
        last = self.num_levels - 2
        # c_k − c_{k−1}, for 0 < k
        gap = jnp.where(k <= last, jnp.exp(tau)[jnp.minimum(k, last)], 1.0)
        between = jnp.where(
            above & below, -jnp.log(-jnp.expm1(-jnp.where(above & below, gap, 1.0))), 0.0
        )
        return (
            jnp.where(below, jax.nn.softplus(-upper), 0.0)
            + jnp.where(above, jax.nn.softplus(lower), 0.0)
            + between
        )

    def natural(self, tau: Float[Arrays, " own"]) -> dict[str, Arrays]:
        return {"thresholds": thresholds(tau)}

    def unconstrained(self, parameters: NamedValues) -> ndarray:
        cut = np.asarray(parameters["thresholds"], float)
        if (
            cut.shape != (self.num_levels - 1,)
            or not np.isfinite(cut).all()
            or (np.diff(cut) <= 0).any()
        ):
            raise ValueError(
                f"Regression: thresholds must be {self.num_levels - 1} increasing numbers; got {cut}."
            )
        return np.r_[cut[0], np.log(np.diff(cut))]

    def start(self, y: ndarray, weight: ndarray) -> NumberAndArray:
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
        tau : array of float, shape (levels - 1,) or (levels - 1, ...)
            First threshold, and the logs of the gaps between thresholds.

        Returns
        -------
        array of float, shape (..., levels)
            The probabilities.
        """
        xp = numpy_of(eta)
        cut = thresholds(tau)
        seen = special_of(eta).expit(
            xp.moveaxis((cut.reshape(-1, *[1] * eta.ndim) if cut.ndim == 1 else cut) - eta, 0, -1)
        )
        edge = xp.zeros((*seen.shape[:-1], 1))
        return xp.diff(xp.concatenate([edge, seen, edge + 1], -1), axis=-1)

    def check(self, y: ndarray) -> None:
        domain(
            y,
            are_counts(y) & (y < self.num_levels),
            "ordinal",
            f"among 0, …, {self.num_levels - 1}",
        )

    @property
    def own(self) -> int:  # type: ignore[override]
        return self.num_levels - 1
