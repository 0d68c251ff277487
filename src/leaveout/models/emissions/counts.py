"""Emissions of counts: Poisson, negative binomial, binomial; the channels are independent given the state."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike
from scipy.special import gammaln as gammaln_of_data

from ..._objective import stored
from ._base import POSITIVE, PROBABILITY, check
from ._priors import AbstractWithPrior, Beta, Choice, Gamma, Priors, choose
from ._start import clusters

LARGEST_TABLE = 4096


def check_counts(x: np.ndarray, emission: str) -> None:
    check(x, np.isfinite(x) & (x >= 0) & (x == np.floor(x)), emission, "counts (0, 1, 2, …)")


def table_length(x: np.ndarray) -> int:
    """Rows of a table of all counts from zero to the largest, rounded up so that few lengths are compiled."""
    return int(-(-(x.max(initial=0) + 1) // 32) * 32)


def log_rising(size: Array, length: int) -> Float[Array, "... length"]:
    """`log Γ(x + size) − log Γ(size)` for x = 0, 1, …, as a running sum: no cancellation, no special functions."""
    steps = jnp.log(size[..., None] + jnp.arange(length - 1))
    return jnp.concatenate([jnp.zeros((*size.shape, 1)), jnp.cumsum(steps, axis=-1)], axis=-1)


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
    """`x_t | z_t = k ~ Poisson(exposure_t · rate_k)`, independently in each channel.

    Parameters: `rate` [K], or [K, R] for R > 1 channels. `exposure`, one if not given, is the population at risk, or the
    time or area observed: one number a step, or a site, the same in every sequence or field if there are several. Prior:
    Gamma(2, 1/m) by default, m the channel's overall rate (one pseudo-event, in the exposure that one takes);
    `prior={"rate": (shape, rate)}` gives another, None is flat.
    """

    exposure: Float[np.ndarray, " steps"] | None
    prior: Priors
    adaptive: frozenset[str] = eqx.field(static=True)

    def __init__(self, prior: Choice = "default", exposure: ArrayLike | None = None):
        self.prior, self.adaptive = choose("Poisson", {"rate": Gamma(2.0, 1.0)}, prior)
        self.exposure = None if exposure is None else _exposure(exposure)

    def default_prior(self, x):
        seen = ~np.isnan(x).any(axis=1)
        at_risk = self._repeated(len(x))[seen].mean() if seen.any() else 1.0
        return {"rate": Gamma(2.0, at_risk / level(x))}

    @property
    def free(self):
        return {"rate": POSITIVE}

    def _repeated(self, steps: int) -> Float[np.ndarray, " steps"]:
        return np.ones(steps) if self.exposure is None else np.resize(self.exposure, steps)

    def prepare(self, x, lengths):
        check_counts(x, "Poisson")
        if self.exposure is not None and not (len(self.exposure) == len(x) or (lengths == len(self.exposure)).all()):
            raise ValueError(f"Poisson: exposure has {len(self.exposure)} numbers, but the data have {len(x)} steps or sites.")
        x, exposure = np.where(np.isnan(x), 0.0, x), self._repeated(len(x))
        log_factorial = gammaln_of_data(x + 1).sum(axis=1) - x.sum(axis=1) * np.log(exposure)
        return {"count": x, "exposure": exposure, "log_factorial": log_factorial}

    def log_density(self, parameters, datum):
        rate = parameters["rate"]
        return jnp.sum(datum["count"] * jnp.log(rate) - datum["exposure"] * rate) - datum["log_factorial"]

    def log_densities(self, parameters, data):
        rate = by_state(parameters["rate"])
        expected = jnp.asarray(data["exposure"])[:, None] * jnp.sum(rate, axis=1)
        return data["count"] @ jnp.log(rate).T - expected - data["log_factorial"][:, None]

    def initial(self, data, observed, num_states, seed):
        exposure = np.asarray(data["exposure"])[observed]
        relative = (exposure / exposure.mean())[:, None] if len(exposure) else np.ones((0, 1))
        rates = clustered(np.asarray(data["count"])[observed] / relative, num_states, seed)[0]
        return {"rate": single(rates / (exposure.mean() if len(exposure) else 1.0))}

    def means(self, parameters, data):
        rate = by_state(parameters["rate"])
        return jnp.asarray(data["exposure"])[:, None, None] * rate

    def draw(self, parameters, state, step, past, rng):
        if self.exposure is not None and step >= len(self.exposure):
            raise ValueError(f"Poisson: there is no exposure for step {step}; it has {len(self.exposure)} numbers.")
        at_risk = 1.0 if self.exposure is None else self.exposure[step]
        return np.atleast_1d(rng.poisson(at_risk * np.asarray(parameters["rate"])[state])).astype(float)


def _exposure(exposure: ArrayLike) -> Float[np.ndarray, " steps"]:
    array = np.asarray(exposure)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"Poisson: exposure must be one number a step or site; got {array.dtype} of shape {array.shape}.")
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        raise ValueError(
            f"Poisson: exposure must be positive and finite; got {wrong.sum()} other values, the first {array[wrong][0]:g} "
            f"at step or site {np.flatnonzero(wrong)[0]}."
        )
    return stored(array)


class Counts(eqx.Module):
    """Counts, and the length of a table of all that can occur."""

    count: Int[np.ndarray, "steps channels"]
    log_factorial: Float[np.ndarray, " steps"]
    length: int = eqx.field(static=True)


class NegativeBinomial(AbstractWithPrior):
    """`x_t | z_t = k ~ NegativeBinomial(mean_k, size_k)`, independently in each channel: variance `mean + mean²/size`.

        log p(x) = log Γ(x + s) − log Γ(s) − log x! + s log(s / (s + m)) + x log(m / (s + m))

    Parameters: `mean` and `size`, each [K], or [K, R] for R > 1 channels; a large size is nearly Poisson. Priors:
    mean ~ Gamma(2, 1/m), m the channel's mean count, size ~ Gamma(2, 0.1); `prior={"mean": (shape, rate), ...}` gives
    others, None is flat (then the size has no interior optimum where the counts are no more dispersed than Poisson).
    """

    prior: Priors
    adaptive: frozenset[str] = eqx.field(static=True)

    def __init__(self, prior: Choice = "default"):
        default: Priors = {"mean": Gamma(2.0, 1.0), "size": Gamma(2.0, 0.1)}
        self.prior, self.adaptive = choose("NegativeBinomial", default, prior)

    def default_prior(self, x):
        return {"mean": Gamma(2.0, 1 / level(x)), "size": Gamma(2.0, 0.1)}

    @property
    def free(self):
        return {"mean": POSITIVE, "size": POSITIVE}

    def prepare(self, x, lengths):
        check_counts(x, "NegativeBinomial")
        x = np.where(np.isnan(x), 0.0, x)
        return Counts(x.astype(int), gammaln_of_data(x + 1).sum(axis=1), table_length(x))

    def log_density(self, parameters, datum):
        mean, size, x = parameters["mean"], parameters["size"], datum.count
        success = x * (jnp.log(mean) - jnp.log(size + mean)) - size * jnp.log1p(mean / size)
        return jnp.sum(gammaln(x + size) - gammaln(size) + success) - datum.log_factorial

    def log_densities(self, parameters, data):
        if data.length > LARGEST_TABLE:
            return super().log_densities(parameters, data)
        mean, size = by_state(parameters["mean"])[..., None], by_state(parameters["size"])
        rising, size, x = log_rising(size, data.length), size[..., None], jnp.arange(data.length)
        table = rising + x * (jnp.log(mean) - jnp.log(size + mean)) - size * jnp.log1p(mean / size)
        rows = jnp.transpose(table, (1, 2, 0))[jnp.arange(table.shape[1]), data.count]
        return jnp.sum(rows, axis=1) - data.log_factorial[:, None]

    def initial(self, data, observed, num_states, seed):
        x = np.asarray(data.count, np.float64)[observed]
        mean, labels = clustered(x, num_states, seed)
        excess = np.mean((x - mean[labels]) ** 2 - mean[labels], axis=0)
        size = np.clip(np.mean(mean**2, axis=0) / np.maximum(excess, 1e-3), 0.5, 50.0)
        return {"mean": single(mean), "size": single(np.tile(size, (num_states, 1)))}

    def means(self, parameters, data):
        mean = by_state(parameters["mean"])
        return jnp.broadcast_to(mean, (len(data.count), *mean.shape))

    def draw(self, parameters, state, step, past, rng):
        mean, size = (np.atleast_1d(np.asarray(parameters[name])[state]) for name in ("mean", "size"))
        return rng.poisson(rng.gamma(size, mean / size)).astype(float)


class Binomial(AbstractWithPrior):
    """`x_t | z_t = k ~ Binomial(trials, probability_k)`, independently in each channel.

    Parameters: `probability` [K], or [K, R] for R > 1 channels. `trials` is one number, or one a channel. Prior:
    Beta(1.5, 1.5), one pseudo-trial, half a success; `prior={"probability": (a, b)}` gives another, None is flat.
    """

    trials: Int[np.ndarray, "..."]
    prior: Priors
    adaptive: frozenset[str] = eqx.field(static=True)

    def __init__(self, trials: "int | np.ndarray", prior: Choice = "default"):
        number = np.asarray(trials)
        if number.ndim > 1 or number.dtype.kind not in "iu" or (number < 1).any():
            raise ValueError(f"Binomial: trials must be a positive integer, or one a channel; got {trials}.")
        self.trials = number.astype(int)
        self.prior, _ = choose("Binomial", {"probability": Beta(1.5, 1.5)}, prior)
        self.adaptive = frozenset()

    def default_prior(self, x):
        return self.prior

    @property
    def free(self):
        return {"probability": PROBABILITY}

    def prepare(self, x, lengths):
        if self.trials.ndim and len(self.trials) != x.shape[1]:
            raise ValueError(f"Binomial: {len(self.trials)} numbers of trials, but the data have {x.shape[1]} channels.")
        check_counts(x, "Binomial")
        check(x, x <= self.trials, "Binomial", f"at most the number of trials, {self.trials}")
        x = np.where(np.isnan(x), 0.0, x)
        n = np.broadcast_to(self.trials, x.shape)
        ways = gammaln_of_data(n + 1) - gammaln_of_data(x + 1) - gammaln_of_data(n - x + 1)
        return {"count": x, "failures": n - x, "log_ways": ways.sum(axis=1)}

    def log_density(self, parameters, datum):
        p = parameters["probability"]
        return jnp.sum(datum["count"] * jnp.log(p) + datum["failures"] * jnp.log1p(-p)) + datum["log_ways"]

    def log_densities(self, parameters, data):
        p = by_state(parameters["probability"])
        return data["count"] @ jnp.log(p).T + data["failures"] @ jnp.log1p(-p).T + data["log_ways"][:, None]

    def initial(self, data, observed, num_states, seed):
        x = np.asarray(data["count"])[observed]
        mean, _ = clustered(x, num_states, seed)
        return {"probability": single(np.clip(mean / self.trials, 0.02, 0.98))}

    def means(self, parameters, data):
        mean = self.trials * by_state(parameters["probability"])
        return jnp.broadcast_to(mean, (len(data["count"]), *mean.shape))

    def draw(self, parameters, state, step, past, rng):
        return np.atleast_1d(rng.binomial(self.trials, np.asarray(parameters["probability"])[state])).astype(float)
