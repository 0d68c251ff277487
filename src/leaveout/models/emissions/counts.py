"""Emissions of counts: Poisson, negative binomial, binomial; the channels are independent given the state."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaln as gammaln_of_data

from ._base import POSITIVE, check
from ._priors import AbstractWithPrior, Choice, Gamma, Priors, choose
from ._start import clusters


def check_counts(x: np.ndarray, emission: str) -> None:
    check(x, np.isfinite(x) & (x >= 0) & (x == np.floor(x)), emission, "counts (0, 1, 2, …)")


def by_state(parameter: Array) -> Float[Array, "states channels"]:
    """`[K]` of one channel as `[K, 1]`."""
    return parameter[:, None] if parameter.ndim == 1 else parameter


def single(parameter: np.ndarray) -> np.ndarray:
    """`[..., 1]` of one channel without its axis."""
    return parameter[..., 0] if parameter.shape[-1] == 1 else parameter


def level(x: Float[np.ndarray, "steps channels"]) -> np.ndarray:
    """The mean count of each channel; half an event in all where none was seen."""
    seen = x[~np.isnan(x).any(axis=1)]
    return single(np.maximum(seen.mean(axis=0), 0.5 / len(seen)) if len(seen) else np.ones(x.shape[1]))


def clustered(x: np.ndarray, num_states: int, seed: int) -> tuple[Float[np.ndarray, "states channels"], np.ndarray]:
    """Mean counts of clusters on the square-root scale, shaken by a fifth and drawn away from zero; and the labels."""
    rng = np.random.default_rng(seed)
    labels = clusters(np.sqrt(x), num_states, seed)
    overall = np.maximum(x.mean(axis=0), 0.5 / len(x))
    mean = np.stack([(x[labels == k].sum(axis=0) + overall) / (np.sum(labels == k) + 1) for k in range(num_states)])
    return mean * np.exp(0.2 * rng.standard_normal(mean.shape)), labels


class Poisson(AbstractWithPrior):
    """`x_t | z_t = k ~ Poisson(rate_k)`, independently in each channel.

    Parameters: `rate` [K], or [K, R] for R > 1 channels. Prior: Gamma(2, 1/m) by default, m the channel's mean count
    (one pseudo-event, in the time that one takes); `prior={"rate": (shape, rate)}` gives another, None is flat.
    """

    prior: Priors
    adaptive: frozenset[str] = eqx.field(static=True)

    def __init__(self, prior: Choice = "default"):
        self.prior, self.adaptive = choose("Poisson", {"rate": Gamma(2.0, 1.0)}, prior)

    def default_prior(self, x):
        return {"rate": Gamma(2.0, 1 / level(x))}

    @property
    def free(self):
        return {"rate": POSITIVE}

    def prepare(self, x, lengths):
        check_counts(x, "Poisson")
        x = np.where(np.isnan(x), 0.0, x)
        return {"count": x, "log_factorial": gammaln_of_data(x + 1).sum(axis=1)}

    def log_density(self, parameters, datum):
        rate = parameters["rate"]
        return jnp.sum(datum["count"] * jnp.log(rate) - rate) - datum["log_factorial"]

    def log_densities(self, parameters, data):
        rate = by_state(parameters["rate"])
        return data["count"] @ jnp.log(rate).T - jnp.sum(rate, axis=1) - data["log_factorial"][:, None]

    def initial(self, data, observed, num_states, seed):
        return {"rate": single(clustered(np.asarray(data["count"])[observed], num_states, seed)[0])}

    def means(self, parameters, data):
        rate = by_state(parameters["rate"])
        return jnp.broadcast_to(rate, (len(data["count"]), *rate.shape))

    def draw(self, parameters, state, step, past, rng):
        return np.atleast_1d(rng.poisson(np.asarray(parameters["rate"])[state])).astype(float)
