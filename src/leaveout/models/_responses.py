"""What is seen of latent linear predictors, `p(y | η, φ)`: losses with three derivatives, and what a Gaussian η says of y.

    −log p(y) = −log ∫ p(y | η, φ) N(η; m, v) dη

by adaptive Gauss–Hermite quadrature: nodes about the mode of the integrand, in its own width. Means likewise.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float

from ._latent import Losses, Response

NODES = 25
MODES, CLOSE = 60, 1e-9  # steps to the mode of an integrand, and how near is near enough
STRIDE = 2.0  # of linear predictors, the longest step there
Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Poisson:
    """Counts y of mean exp η."""

    y: Float[Array, " rows"]
    shared = 0

    def losses(self, eta, phi, some=None):
        del phi
        y, mean = (self.y if some is None else self.y[some]), np.exp(eta)
        return Losses(mean - y * eta + scipy.special.gammaln(y + 1), mean - y, mean, mean)

    def mean(self, eta, phi, some):
        """E[y | η]."""
        return np.exp(eta)


@dataclass(frozen=True, eq=False)
class Binomial:
    """y of some trials, of odds exp η."""

    y: Float[Array, " rows"]
    trials: Float[Array, " rows"]
    shared = 0

    def losses(self, eta, phi, some=None):
        del phi
        y, trials = (self.y, self.trials) if some is None else (self.y[some], self.trials[some])
        ways = scipy.special.gammaln(trials + 1) - scipy.special.gammaln(y + 1) - scipy.special.gammaln(trials - y + 1)
        share, rest = scipy.special.expit(eta), scipy.special.expit(-eta)
        bend = trials * share * rest
        return Losses(trials * np.logaddexp(0.0, eta) - y * eta - ways, trials * share - y, bend, bend * (rest - share))

    def mean(self, eta, phi, some):
        """E[y | η]."""
        return self.trials[some] * scipy.special.expit(eta)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """y = η + noise, of log standard deviation φ."""

    y: Float[Array, " rows"]
    shared = 1

    def losses(self, eta, phi, some=None):
        y, log_sd = (self.y if some is None else self.y[some]), phi[:, 0].reshape(-1, *[1] * (eta.ndim - 1))
        bend = np.exp(-2 * log_sd) * np.ones_like(eta)
        apart = eta - y
        value, slope = 0.5 * apart**2 * bend + log_sd + 0.5 * np.log(2 * np.pi), apart * bend
        shared = np.stack([1 - apart**2 * bend]), np.stack([-2 * slope]), np.stack([-2 * bend])
        return Losses(value, slope, bend, np.zeros_like(eta), shared)

    def mean(self, eta, phi, some):
        """E[y | η]."""
        return eta


def marginal_losses(
    response: Response,
    phi: Float[Array, "lanes phi"],
    some: Array,
    mean: Float[Array, "lanes width"],
    variance: Float[Array, "lanes width"],
) -> Float[Array, "lanes width"]:
    """−log p(y) of some rows, `[lanes, width]`, whose η are Gaussian; NaN where these are not known."""
    with np.errstate(all="ignore"):
        variance = np.maximum(variance, 1e-14)
        eta = mean.copy()
        for _ in range(MODES):
            known = response.losses(eta, phi, some)
            step = (known.first + (eta - mean) / variance) / (known.second + 1 / variance)
            eta = eta - np.clip(step, -STRIDE, STRIDE)
            if not (np.abs(step) > CLOSE * (1 + np.abs(eta))).any():
                break
        width = np.sqrt(1 / (response.losses(eta, phi, some).second + 1 / variance))
        nodes, logs = _nodes()
        at = eta[..., None] + width[..., None] * nodes
        values = response.losses(at, phi, np.broadcast_to(np.asarray(some)[..., None], at.shape)).value
        values = values + 0.5 * (at - mean[..., None]) ** 2 / variance[..., None]
        return -(scipy.special.logsumexp(logs + nodes**2 / 2 - values, axis=-1) + np.log(width) - 0.5 * np.log(variance))


def marginal_means(
    response: Response,
    phi: Float[Array, "lanes phi"],
    some: Array,
    mean: Float[Array, "lanes width"],
    variance: Float[Array, "lanes width"],
) -> Float[Array, "lanes width"]:
    """E[y] likewise."""
    nodes, logs = _nodes()
    at = mean[..., None] + np.sqrt(np.maximum(variance, 0.0))[..., None] * nodes
    return response.mean(at, phi, np.broadcast_to(np.asarray(some)[..., None], at.shape)) @ np.exp(logs)


def _nodes() -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Of a standard normal density, and the logarithms of its weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, np.log(weights / np.sqrt(2 * np.pi))
