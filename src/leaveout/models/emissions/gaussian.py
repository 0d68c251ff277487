"""Gaussian emissions: `x_t | z_t = k ~ N(mean_k, covariance_k)`."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool
from numpy.typing import ArrayLike

from ..._runtime.jax import PyTree
from ...objectives.objective import LOG_DENSITY
from ._base import REAL, Constraint, Lengths, LogDensities, Means, Observations, Parameters, Past, Row
from ._covariance import LOG_TAU, Covariance
from ._priors import AbstractPrior, AbstractWithPrior, Choice, InverseGamma, InverseWishart, Normal, Priors
from ._start import clusters


def centre(x: np.ndarray) -> np.ndarray:
    """Compute the mean of each channel, zero without observations."""
    seen = x[~np.isnan(x).any(axis=1)]
    return seen.mean(axis=0) if len(seen) else np.zeros(x.shape[1])


def squares(x: np.ndarray, about: np.ndarray | float) -> np.ndarray:
    """Compute the mean square of each channel about a point; one if that is zero or nothing is observed."""
    seen = x[~np.isnan(x).any(axis=1)]
    square = np.mean((seen - about) ** 2, axis=0) if len(seen) else np.zeros(x.shape[1])
    return np.where(square > 0, square, 1.0)


class AbstractGaussian(AbstractWithPrior):
    """Gaussian noise about a mean."""

    score = LOG_DENSITY

    covariance: Covariance

    def scale_prior(self, square: np.ndarray) -> dict[str, AbstractPrior]:
        """Return the prior of the covariance: two pseudo-observations of a tenth of each channel's squared scale.

        It is `InverseGamma(1, s²/10)` for a variance and, for a matrix, the inverse Wishart with these margins, which has
        `R + 1` degrees of freedom and the scale `diag(s²)/5`.
        """
        if self.covariance.value is not None:
            return {}
        if self.covariance.matrices:
            return {"covariance": InverseWishart(len(square) + 1.0, np.diag(square) / 5)}
        return {"covariance": InverseGamma(1.0, square.mean() / 10 if self.covariance.kind == "spherical" else square / 10)}

    @property
    def fixed(self) -> Parameters:
        return self.covariance.fixed

    @property
    def shared(self) -> frozenset[str]:
        return self.covariance.shared


class Gaussian(AbstractGaussian):
    """Gaussian emission, `x_t | z_t = k ~ N(mean_k, covariance_k)`, in R channels.

    Parameters of K states are `mean` [K, R], and `covariance` [K, R, R] for "full", [R, R] for "tied" (one for all states),
    variances [K, R] for "diagonal" and [K] for "spherical". By default a mean has the prior Normal(m, 3s), a variance
    InverseGamma(1, s²/10) and a matrix InverseWishart(R + 1, diag(s²)/5), where m and s are the data's mean and standard
    deviation.

    Parameters
    ----------
    covariance : {"full", "tied", "diagonal", "spherical"} or array, default: "diagonal"
        Kind of covariance; or an array that is held fixed: a variance, [R, R] or [K, R, R].
    prior : {"default"}, dict or None, default: "default"
        Priors, such as `{"mean": (m, s), "covariance": (a, b)}`. None makes one or all of them flat; then a variance has no
        interior optimum when a state holds one point.

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.Gaussian("spherical").free)
    ['mean', 'covariance']
    """

    def __init__(self, covariance: "str | ArrayLike" = "diagonal", prior: Choice = "default"):
        self.covariance = Covariance("Gaussian", covariance)
        value = self.covariance.value
        self._choose_prior(prior, 1 if value is None or not value.ndim else value.shape[-1])

    def default_prior(self, x: Observations) -> Priors:
        mean = centre(x)
        square = squares(x, mean)
        return {"mean": Normal(mean, 3 * np.sqrt(square)), **self.scale_prior(square)}

    @property
    def free(self) -> dict[str, Constraint]:
        return {"mean": REAL, **self.covariance.free}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        data = super().prepare(x, lengths)
        self.covariance.check("Gaussian", x)
        return data

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        # an exponential family: one matrix product with the features [x, xxᵀ], centred against cancellation
        origin = jnp.mean(data, axis=0)
        x, mean = data - origin, parameters["mean"] - origin
        states, channels = mean.shape
        precision, log_det = self.covariance.precision(parameters["covariance"], channels)
        if self.covariance.matrices:
            precision = jnp.broadcast_to(precision, (states, channels, channels))
            i, j = np.tril_indices(channels)
            second, weight = x[:, i] * x[:, j], precision[:, i, j] * np.where(i == j, 0.5, 1.0)
            first = jnp.einsum("krs,ks->kr", precision, mean)
        else:
            second, weight = x**2, jnp.broadcast_to(precision, (states, channels)) / 2
            first = jnp.asarray(precision * mean)
        constant = -0.5 * (jnp.sum(first * mean, axis=1) + log_det + channels * LOG_TAU)
        return jnp.concatenate([x, second], axis=1) @ jnp.concatenate([first, -weight], axis=1).T + constant

    def initial(self, data: PyTree, observed: Bool[np.ndarray, " steps"], num_states: int, seed: int) -> Parameters:
        x = np.asarray(data)[observed]
        labels = clusters(x, num_states, seed)
        rng = np.random.default_rng(seed)
        alone = rng.choice(len(x), num_states)
        mean = np.stack([x[labels == k].mean(axis=0) if (labels == k).any() else x[alone[k]] for k in range(num_states)])
        return {"mean": mean, **self.covariance.start(x - mean[labels], labels, num_states)}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        return jnp.broadcast_to(parameters["mean"], (len(data), *parameters["mean"].shape))

    def draw(self, parameters: Parameters, state: int, step: int, past: Past, rng: np.random.Generator) -> Row:
        mean = np.asarray(parameters["mean"])[state]
        return mean + self.covariance.noise(parameters, state, len(mean), rng)
