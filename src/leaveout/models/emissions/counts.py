"""Emissions of counts: Poisson, negative binomial, binomial.

The channels are independent given the state.
"""

import copy
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float, Inexact, Int
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy.special import gammaln as gammaln_of_data, loggamma

from ..._runtime import Arrays, Module, NamedArrays, PyTree, Scalar, jnp, numpy_of, static
from ...data import Names, match_labels, numbers, places
from ...objectives import LOG_PROBABILITY, as_stored
from ..glm import NEGATIVE_BINOMIAL
from ._base import (
    POSITIVE,
    PROBABILITY,
    AbstractEmission,
    AbstractWithPrior,
    BetaPrior,
    Choice,
    Constraint,
    Constraints,
    GammaPrior,
    Lengths,
    LogDensities,
    Means,
    Normal,
    Observations,
    Parameters,
    Past,
    Priors,
    Row,
    StepFlags,
    check,
    clusters,
)

Array = np.ndarray

LARGEST_TABLE = 4096  # largest count up to which the logarithms of Γ are tabulated


def check_counts(x: Array, emission: str) -> None:
    check(x, np.isfinite(x) & (x >= 0) & (x == np.floor(x)), emission, "counts (0, 1, 2, …)")


def table_length(x: Array) -> int:
    """Return the length of a table of all counts from zero to the largest, rounded up so that few
    lengths are compiled.
    """
    return int(-(-(x.max(initial=0) + 1) // 32) * 32)


def by_state(parameter: Arrays) -> Inexact[Arrays, "states channels"]:
    """Reshape `[K]` of one channel to `[K, 1]`."""
    if parameter.ndim == 1:
        return parameter[:, None]
    return parameter


def single(parameter: Array) -> Array:
    """Drop the axis of a single channel."""
    if parameter.shape[-1] == 1:
        return parameter[..., 0]
    return parameter


def level(x: Observations) -> Array:
    """Compute the mean count of each channel; without events half an event in total."""
    seen = x[~np.isnan(x).any(axis=1)]
    if not len(seen):
        return single(np.ones(x.shape[1]))
    return single(np.maximum(seen.mean(0), 0.5 / len(seen)))


def cluster_means(
    x: Array, num_states: int, seed: int
) -> tuple[Float[Array, "states channels"], Array]:
    """Cluster counts on the square-root scale.

    Return mean counts, perturbed by a fifth and moved off zero, and labels.
    """
    rng = np.random.default_rng(seed)
    labels = clusters(np.sqrt(x), num_states, seed)
    overall = np.maximum(x.mean(0), 0.5 / len(x))
    mean = np.stack(
        [(x[labels == k].sum(0) + overall) / (np.sum(labels == k) + 1) for k in range(num_states)]
    )
    return mean * np.exp(0.2 * rng.standard_normal(mean.shape)), labels


class Counts(Module):
    """Counts, the factors of their means, and the length of a table of all possible counts, zero if
    there is none.
    """

    count: Observations
    log_factorial: Float[Array, " steps"]
    regressors: NamedArrays
    length: int = static(default=0)


class AbstractCounts(AbstractWithPrior):
    """Counts whose mean is a parameter of the state, called `mean_name`, times a factor of the step
    that all states share.

    The mean is `exposure_t · exp((c_t − c̄)ᵀ b) · mean_k`, where c̄ is the mean of the covariates
    c.
    """

    score = LOG_PROBABILITY
    mean_name: ClassVar[str]

    exposure: Float[Array, " steps"] | None
    covariates: Float[Array, "steps covariates"] | None  # centred
    names: Names = static()  # labels of the steps or sites, if there are any

    def __init__(
        self,
        prior: Choice = "default",
        exposure: ArrayLike | None = None,
        covariates: ArrayLike | None = None,
    ):
        emission = type(self).__name__
        self.names, exposure, covariates = match_labels(
            emission, exposure=exposure, covariates=covariates
        )
        if exposure is not None:
            factor = numbers(emission, "exposure", exposure)
            if factor.ndim != 1 or factor.dtype == bool:
                raise ValueError(
                    f"{emission}: exposure must be one number a step or site; got {factor.dtype} of shape {factor.shape}."
                )
            wrong = ~(np.isfinite(factor) & (factor > 0))
            if wrong.any():
                raise ValueError(
                    f"{emission}: exposure must be positive and finite; got {wrong.sum()} other values, the first "
                    f"{factor[wrong][0]:g} at step or site {np.flatnonzero(wrong)[0]}."
                )
            exposure = as_stored(factor)
        if covariates is not None:
            covariates = _read_covariates(emission, covariates)
        if exposure is not None and covariates is not None and len(exposure) != len(covariates):
            raise ValueError(
                f"{emission}: exposure has {len(exposure)} numbers, but covariates have {len(covariates)} rows."
            )
        self.exposure = exposure
        self.covariates = covariates
        self._choose_prior(prior)

    @property
    def _factors(self) -> NamedArrays:
        """Log exposure and covariates, if there are any."""
        factors = {}
        if self.exposure is not None:
            factors["exposure"] = np.log(self.exposure)
        if self.covariates is not None:
            factors["covariates"] = self.covariates
        return factors

    def match_labels(self, caller: str, index: pd.Index | None) -> AbstractEmission:
        """Put exposure and covariates into the order of the data's labels, if both have labels.

        If there are fewer rows than data, they serve every sequence or field.
        """
        labels = self.names.index
        if labels is None or index is None or len(labels) != len(index):
            return self
        order = places(
            type(self).__name__, "exposure or covariates", labels, f"x of the {caller}", index
        )
        if order is None:
            return self
        out = copy.copy(self)
        for part in ("exposure", "covariates"):
            array = getattr(self, part)
            if array is not None:
                vars(out)[part] = as_stored(array[order])
        return out

    def default_prior(self, x: Observations) -> Priors:
        seen = ~np.isnan(x).any(axis=1)
        if self.exposure is None:
            at_risk = np.ones(len(x))
        else:
            at_risk = np.resize(self.exposure, len(x))
        prior: Priors = {
            self.mean_name: GammaPrior(
                2.0, at_risk[seen if seen.any() else ~seen].mean() / level(x)
            )
        }
        if self.covariates is not None:
            sd = 2.5 / self.covariates.std(0)
            if x.shape[1] > 1:
                sd = sd[:, None]
            prior["coefficients"] = Normal(0.0, sd)
        return prior

    @property
    def free(self) -> Constraints:
        """Free parameters; `coefficients` are in standard deviations of their covariates."""
        if self.covariates is None:
            return {self.mean_name: POSITIVE}
        scale = self.covariates.std(0)
        wide = lambda value: scale if value.ndim == 1 else scale[:, None]
        return {
            self.mean_name: POSITIVE,
            "coefficients": Constraint(lambda v: v / wide(v), lambda b: b * wide(b), leading=False),
        }

    @property
    def shared(self) -> frozenset[str]:
        if self.covariates is None:
            return frozenset()
        return frozenset({"coefficients"})

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        emission = type(self).__name__
        factors = {}
        check_counts(x, emission)
        for name, array in self._factors.items():
            if not (len(array) == len(x) or (lengths == len(array)).all()):
                size = f"covariates have {len(array)} rows"
                if name == "exposure":
                    size = f"exposure has {len(array)} numbers"
                raise ValueError(f"{emission}: {size}, but the data have {len(x)} steps or sites.")
            factors[name] = np.resize(array, (len(x), *array.shape[1:]))
        x = np.where(np.isnan(x), 0.0, x)
        return Counts(x, gammaln_of_data(x + 1).sum(1), factors)

    @staticmethod
    def log_factor(parameters: Parameters, data: dict) -> Inexact[Arrays, "*steps channels"]:
        """Compute the logarithm of the factor of all states' means.

        The last axis is one if channels share it.
        """
        if "exposure" in data:
            log = data["exposure"][..., None]
        else:
            log = np.zeros(1)
        if "covariates" in data:
            b = parameters["coefficients"]
            log = log + data["covariates"] @ (b[:, None] if b.ndim == 1 else b)
        return log

    def factor_of_step(self, parameters: Parameters, step: int) -> Float[Array, " channels"]:
        """Return the factor of one step, for draws."""
        for name, array in self._factors.items():
            if step >= len(array):
                absence = "are no covariates"
                if name == "exposure":
                    absence = "is no exposure"
                raise ValueError(
                    f"{type(self).__name__}: there {absence} for step {step}; those of {len(array)} steps were given."
                )
        return np.exp(
            np.asarray(
                self.log_factor(
                    parameters, {name: array[step] for name, array in self._factors.items()}
                )
            )
        )

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        return self._start(data, observed, num_states, seed)[0]

    def _start(self, data, observed, num_states, seed):
        """Return the coefficients and the mean counts of clusters, and the expected count of each
        observed step.

        The coefficients `[C]`, or `[C, R]` for several channels, are those of a Poisson regression
        without states.
        """
        counts = np.asarray(data.count)[observed]
        coefficients = {}
        if self.covariates is not None:
            c = np.asarray(data.regressors["covariates"])[observed]
            fitted = [np.zeros(c.shape[1])] * counts.shape[1]
            if len(counts):
                from sklearn.linear_model import PoissonRegressor

                scale = self.covariates.std(0)
                risk = np.exp(np.asarray(data.regressors.get("exposure", np.zeros(len(observed)))))[
                    observed
                ]
                regression = lambda y: PoissonRegressor(alpha=1e-4, max_iter=300).fit(
                    c / scale, y / risk, risk / risk.mean()
                )
                fitted = [regression(y).coef_ / scale for y in counts.T]
            if len(fitted) == 1:
                coefficients["coefficients"] = fitted[0]
            else:
                coefficients["coefficients"] = np.stack(fitted, 1)
        factor = np.exp(np.asarray(self.log_factor(coefficients, data.regressors)))
        if factor.ndim > 1:
            factor = factor[observed]
        usual = factor.mean() if len(counts) else 1.0
        mean, labels = cluster_means(counts * usual / factor, num_states, seed)
        return {self.mean_name: single(mean / usual), **coefficients}, mean[labels] * factor / usual

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        xp = numpy_of(parameters[self.mean_name])
        factor = xp.exp(self.log_factor(parameters, data.regressors))
        return xp.broadcast_to(factor, data.count.shape)[:, None] * by_state(
            parameters[self.mean_name]
        )


def _read_covariates(emission: str, covariates: ArrayLike) -> Array:
    """Read covariates, about their means."""
    array = numbers(emission, "covariates", covariates)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ValueError(
            f"{emission}: covariates must be finite numbers, one row a step or site; got an array of "
            f"{array.dtype}, shape {list(array.shape)}{'' if array.dtype.kind not in 'f' else ', perhaps with NaN'}."
        )
    array = np.asarray(array, float)
    if len(array):
        constant = np.flatnonzero(np.ptp(array, 0) == 0)
    else:
        constant = np.arange(array.shape[1])
    if constant.size:
        raise ValueError(
            f"{emission}: covariates must vary; column {constant[0]} does not. The states have "
            "levels of their own: leave an intercept out."
        )
    return as_stored(array - array.mean(0))


class Poisson(AbstractCounts):
    """Poisson emission, `x_t | z_t = k ~ Poisson(exposure_t · exp((c_t − c̄)ᵀ b) · rate_k)`,
    independently in each channel.

    Parameters are `rate` [K], or [K, R] for R > 1 channels, and, with covariates, `coefficients` b
    [C], or [C, R], which all states share. By default the rate has the prior Gamma(2, 1/m), where m
    is the channel's overall rate (one pseudo-event, in the exposure that one takes), and
    coefficients have Normal(0, 2.5 / (standard deviation of the covariate)).

    Parameters
    ----------
    prior : {"default"}, dict or None, default: "default"
        Priors, such as `{"rate": (shape, rate)}`; None is flat.
    exposure : array, shape (steps,), optional
        Population at risk, or the time or area observed, of each step or site. It is the same in
        every sequence or field.
    covariates : array or DataFrame, shape (steps, C), optional
        Covariates of each step or site, which are taken about their means c̄.

    Raises
    ------
    ValueError
        If exposures are not positive, or covariates do not vary.

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.Poisson(exposure=[1.0, 2.0, 1.5]).free)
    ['rate']
    """

    mean_name = "rate"
    __init__ = AbstractCounts.__init__

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        rate = by_state(parameters["rate"])
        factor = self.log_factor(parameters, data.regressors)
        xp = numpy_of(rate)
        expected = xp.broadcast_to(xp.exp(factor), data.count.shape) @ rate.T
        common = xp.sum(data.count * factor, 1) - data.log_factorial
        return data.count @ xp.log(rate).T - expected + common[:, None]

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: Generator
    ) -> Row:
        rate = np.asarray(parameters["rate"])[state]
        return np.atleast_1d(rng.poisson(self.factor_of_step(parameters, step) * rate)).astype(
            float
        )


class NegativeBinomial(AbstractCounts):
    """Negative binomial emission, `x_t | z_t = k ~ NegativeBinomial(m, size_k)`, independently in
    each channel.

    The mean is `m = exposure_t · exp((c_t − c̄)ᵀ b) · mean_k`, and the variance `m + m²/size_k`.

        log p(x) = log Γ(x + s) − log Γ(s) − log x! + s log(s / (s + m)) + x log(m / (s + m))

    Parameters are `mean` and `size`, each [K], or [K, R] for R > 1 channels, and `coefficients`
    with covariates. A large size is nearly Poisson. Default priors are mean ~ Gamma(2, 1/m), where
    m is the channel's mean count for an exposure of one, size ~ Gamma(2, 0.1), and coefficients as
    in `Poisson`.

    Parameters
    ----------
    prior : {"default"}, dict or None, default: "default"
        Priors, such as `{"mean": (shape, rate)}`. None is flat; then the size has no interior
        optimum where counts are no more dispersed than Poisson's.
    exposure : array, shape (steps,), optional
        Population at risk, or the time or area observed, of each step or site.
    covariates : array or DataFrame, shape (steps, C), optional
        Covariates of each step or site, which are taken about their means c̄.

    Raises
    ------
    ValueError
        If exposures are not positive, or covariates do not vary.

    See Also
    --------
    Poisson

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.NegativeBinomial().free)
    ['mean', 'size']
    """

    mean_name = "mean"
    __init__ = AbstractCounts.__init__

    def default_prior(self, x: Observations) -> Priors:
        mean, *coefficients = super().default_prior(x).items()
        return dict([mean, ("size", GammaPrior(2.0, 0.1)), *coefficients])

    @property
    def free(self) -> Constraints:
        mean, *coefficients = super().free.items()
        return dict([mean, ("size", POSITIVE), *coefficients])

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        return replace(super().prepare(x, lengths), length=table_length(np.nan_to_num(x)))

    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        size = jnp.asarray(parameters["size"])
        log_mean = jnp.log(parameters["mean"]) + self.log_factor(parameters, datum.regressors)
        return -jnp.sum(
            NEGATIVE_BINOMIAL.loss(
                jnp.exp(log_mean), log_mean, 1 / size, -jnp.log(size), datum.count
            )
        )

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        mean = by_state(parameters["mean"])
        size = by_state(parameters["size"])
        xp = numpy_of(mean)
        count = xp.asarray(data.count)[:, None]
        factor = xp.exp(self.log_factor(parameters, data.regressors))[..., None, :]
        if data.length <= LARGEST_TABLE:
            # log Γ(x + size) − log Γ(size) for x = 0, 1, … as a running sum, without cancellation
            steps = xp.log(size[..., None] + np.arange(data.length - 1))
            table = xp.concatenate([xp.zeros((*size.shape, 1)), xp.cumsum(steps, -1)], -1)
            channels = np.arange(data.count.shape[1])
            rows = xp.transpose(table, (1, 2, 0))[channels, xp.asarray(data.count).astype(int)]
            rows = xp.swapaxes(rows, 1, 2)
        elif xp is np:
            rows = loggamma(count + size) - loggamma(size)
        else:
            return AbstractEmission.log_densities(self, parameters, data)
        mean = mean * factor
        # x log(m / (s + m)) + s log(s / (s + m))
        success = count * (xp.log(mean) - xp.log(size + mean)) - size * xp.log1p(mean / size)
        return xp.sum(rows + success, 2) - data.log_factorial[:, None]

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        start, expected = self._start(data, observed, num_states, seed)
        excess = np.mean((np.asarray(data.count)[observed] - expected) ** 2 - expected, 0)
        size = np.clip(np.mean(expected**2, 0) / np.maximum(excess, 1e-3), 0.5, 50.0)
        return {**start, "size": single(np.tile(size, (num_states, 1)))}

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: Generator
    ) -> Row:
        mean, size = (
            np.atleast_1d(np.asarray(parameters[name])[state]) for name in ("mean", "size")
        )
        mean = self.factor_of_step(parameters, step) * mean
        return rng.poisson(rng.gamma(size, mean / size)).astype(float)


class Binomial(AbstractWithPrior):
    """Binomial emission, `x_t | z_t = k ~ Binomial(trials, probability_k)`, independently in each
    channel.

    The parameter is `probability` [K], or [K, R] for R > 1 channels. Its default prior is
    Beta(1.5, 1.5): one pseudo-trial, half a success.

    Parameters
    ----------
    trials : int or array of int, shape (channels,)
        Number of trials, one or more.
    prior : {"default"}, dict or None, default: "default"
        Prior, such as `{"probability": (a, b)}`; None is flat.

    Raises
    ------
    ValueError
        If trials are not positive integers.

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.Binomial(10).free)
    ['probability']
    """

    score = LOG_PROBABILITY

    trials: Int[Array, "..."]

    def __init__(self, trials: "int | np.ndarray", prior: Choice = "default"):
        number = np.asarray(trials)
        if number.ndim > 1 or number.dtype.kind not in "iu" or (number < 1).any():
            raise ValueError(
                f"Binomial: trials must be a positive integer, or one a channel; got {trials}."
            )
        self.trials = number.astype(int)
        self._choose_prior(prior)

    def default_prior(self, x: Observations) -> Priors:
        return {"probability": BetaPrior(1.5, 1.5)}

    @property
    def free(self) -> Constraints:
        return {"probability": PROBABILITY}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        if self.trials.ndim and len(self.trials) != x.shape[1]:
            raise ValueError(
                f"Binomial: {len(self.trials)} numbers of trials, but the data have {x.shape[1]} channels."
            )
        check_counts(x, "Binomial")
        check(x, x <= self.trials, "Binomial", f"at most the number of trials, {self.trials}")
        x = np.where(np.isnan(x), 0.0, x)
        n = np.broadcast_to(self.trials, x.shape)
        ways = gammaln_of_data(n + 1) - gammaln_of_data(x + 1) - gammaln_of_data(n - x + 1)
        return {"count": x, "failures": n - x, "log_ways": ways.sum(1)}

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        p = by_state(parameters["probability"])
        xp = numpy_of(p)
        return (
            data["count"] @ xp.log(p).T
            + data["failures"] @ xp.log1p(-p).T
            + data["log_ways"][:, None]
        )

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        mean, _ = cluster_means(np.asarray(data["count"])[observed], num_states, seed)
        return {"probability": single(np.clip(mean / self.trials, 0.02, 0.98))}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        mean = self.trials * by_state(parameters["probability"])
        return numpy_of(mean).broadcast_to(mean, (len(data["count"]), *mean.shape))

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: Generator
    ) -> Row:
        return np.atleast_1d(
            rng.binomial(self.trials, np.asarray(parameters["probability"])[state])
        ).astype(float)
