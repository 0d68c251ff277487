"""Counts with a seasonal background and bursts.

Ihler, Hutchins & Smyth (2006), as in the time-varying Poisson model.
"""

from typing import Any

import numpy as np
from jaxtyping import Inexact, Int
from numpy import ndarray
from numpy.typing import ArrayLike
from scipy.special import gammaln

from ..._runtime import (
    AnyPair,
    Arrays,
    Module,
    PyTree,
    Scalar,
    StepNumbers,
    jax,
    jnp,
    numpy_of,
    static,
)
from ...objectives import LOG_PROBABILITY
from ._base import (
    POSITIVE,
    AbstractWithPrior,
    Choice,
    Constraint,
    Constraints,
    DirichletPrior,
    GammaPrior,
    Lengths,
    LogDensities,
    Means,
    Observations,
    Parameters,
    Past,
    Priors,
    Row,
    StepFlags,
    _log_ratios,
    _simplex,
    but_last,
)
from .counts import check_counts, table_length

MEAN_ONE = Constraint(
    lambda v: _simplex(v) * (v.shape[-1] + 1),
    _log_ratios,
    but_last,
    lambda v: (v > 0).all(-1) & np.isclose(v.mean(-1), 1),
    "positive numbers whose mean is one",
)


class SeasonCounts(Module):
    """Row of each step in a table over (season, count)."""

    row: StepNumbers
    length: int = static()


class EventCounts(AbstractWithPrior):
    """Counts with a seasonal Poisson background, and an excess while an event is on; for two
    states.

        z_t = 0:  x_t ~ Poisson(λ_t),  λ_t = rate · seasonal_{d_t}
        z_t = 1:  x_t = background + excess,  excess ~ Poisson(Gamma(a, b)), a negative binomial of
        mean a/b; summed out

    State 0 is without and state 1 with an event. Parameters, which the states share, are `rate` [],
    `seasonal` [S] of mean one, `excess_shape` a and `excess_rate` b, []. `event` [0, 1] is fixed
    and tells the states apart. Default priors are rate ~ Gamma(1.05, 0.01), seasonal/S ~
    Dirichlet(1), a and b ~ Gamma(2, 0.1); the paper uses these families and does not print its
    numbers. Priors of the transitions belong to the model.

    Parameters
    ----------
    season : array of int, shape (steps,)
        Label of the season d_t of each step.
    future : array of int, default: ()
        Seasons of the steps that follow the data, for simulations and forecasts.
    prior : {"default"}, dict or None, default: "default"
        Priors, such as `{"rate": (shape, rate)}`; None is flat.

    Raises
    ------
    ValueError
        If seasons are not integers, or a future season does not occur in the data.

    References
    ----------
    A. Ihler, J. Hutchins and P. Smyth, "Adaptive event detection with time-varying Poisson
    processes", *KDD*, 2006.

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.EventCounts([0, 1, 0, 1]).free)
    ['rate', 'seasonal', 'excess_shape', 'excess_rate']
    """

    score = LOG_PROBABILITY

    season: StepNumbers
    future: Int[ndarray, " ahead"]
    num_seasons: int = static()

    def __init__(self, season: ArrayLike, future: ArrayLike = (), prior: Choice = "default"):
        season = np.asarray(season)
        future = np.asarray(future)
        if season.ndim != 1 or season.dtype.kind not in "iu" or not len(season):
            raise ValueError(
                f"EventCounts: season must be integers, one a step; got {season.dtype} {list(season.shape)}."
            )
        labels, self.season = np.unique(season, return_inverse=True)
        if not np.isin(future, labels).all():
            raise ValueError(
                f"EventCounts: future holds a season that the data do not have; they have {labels.tolist()}."
            )
        self.future = np.searchsorted(labels, future)
        self.num_seasons = len(labels)
        self._choose_prior(prior)

    def default_prior(self, x: Observations) -> Priors:
        excess = GammaPrior(2.0, 0.1)
        rate = GammaPrior(1.05, 0.01)
        seasonal = DirichletPrior(1.0)
        return {"rate": rate, "seasonal": seasonal, "excess_shape": excess, "excess_rate": excess}

    @property
    def free(self) -> Constraints:
        return {
            "rate": POSITIVE,
            "seasonal": MEAN_ONE,
            "excess_shape": POSITIVE,
            "excess_rate": POSITIVE,
        }

    @property
    def fixed(self) -> Parameters:
        return {"event": np.array([0.0, 1.0])}

    @property
    def shared(self) -> frozenset[str]:
        return frozenset(self.free)

    num_states = 2

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        if x.shape[1] != 1:
            raise ValueError(f"EventCounts: counts come in one channel; got {x.shape[1]}.")
        if len(x) != len(self.season):
            raise ValueError(
                f"EventCounts: season has {len(self.season)} steps, the data have {len(x)}."
            )
        check_counts(x, "EventCounts")
        total = np.bincount(self.season, np.nan_to_num(x[:, 0]), minlength=self.num_seasons)
        if (total == 0).any():
            raise ValueError(
                f"EventCounts: no count above zero was observed in season {np.flatnonzero(total == 0)[0]} "
                f"of {self.num_seasons} (in the order of the labels), so that its rate would be zero; merge it with another."
            )
        count = np.where(np.isnan(x), 0, x)[:, 0].astype(int)
        length = table_length(np.nan_to_num(x))
        return SeasonCounts(self.season * length + count, length)

    def by_season(
        self, parameters: Parameters, length: int
    ) -> Inexact[Arrays, "*sets seasons length 2"]:
        """Compute the log-densities of the counts 0, 1, … in each season, without and with an
        event.

        The sum of Poisson and negative binomial counts has the generating function `G(z) =
        e^{λ(z−1)} (b/(1+b−z))^a`, and `(1 + b − z) G′ = (λ (1 + b − z) + a) G` is a recursion for
        the ratios ρ_n = p_{n+1} / p_n:

            (1 + b)(n + 1) ρ_n = n + a + λ (1 + b) − λ / ρ_{n−1}

        λ/ρ_{n−1} is the expected background given the total n, so that errors shrink from step to
        step.

        Parameters
        ----------
        parameters : dict of array
            Natural parameters, perhaps of many sets.
        length : int
            Number of counts.

        Returns
        -------
        array of float, shape (..., seasons, length, 2)
            The log-densities.
        """
        a = parameters["excess_shape"][..., None]
        b = parameters["excess_rate"][..., None]
        rate = parameters["rate"][..., None] * parameters["seasonal"]
        xp = numpy_of(rate)
        n = np.arange(length)
        background = n * xp.log(rate)[..., None] - rate[..., None] - gammaln(n + 1.0)

        # ρ_n = base_n − share_n / ρ_{n−1}
        later = n[1:-1].reshape(-1, *[1] * rate.ndim)
        scale = 1 / ((1 + b) * (later + 1))
        base = (later + a + rate * (1 + b)) * scale
        share = rate * scale
        first = rate + a / (1 + b)
        if xp is np:
            ratios = np.concatenate([first[None], base])
            for before, ratios_n, share_n in zip(ratios, ratios[1:], share, strict=False):
                ratios_n -= share_n / before
            logs = np.log(np.moveaxis(ratios, 0, -1))
        else:

            def ratio(before, parts) -> AnyPair:
                value = parts[0] - parts[1] / before
                return value, value

            following = jax.lax.scan(ratio, first, (base, share))[1]
            logs = jnp.log(jnp.moveaxis(jnp.concatenate([first[None], following]), 0, -1))
        zero = (-rate - a * xp.log1p(1 / b))[..., None]
        event = xp.concatenate([zero, zero + xp.cumsum(logs, -1)], -1)
        return xp.stack([background, event], -1)

    def tables(self, parameters: Parameters, data: PyTree) -> Any:
        sets = len(parameters["rate"])
        rows = self.by_season(parameters, data.length).reshape(sets, -1, 2)[:, data.row]
        return rows.swapaxes(1, 2)

    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        rows = self.by_season(parameters, datum.length).reshape(-1, 2)[datum.row]
        return jnp.where(parameters["event"] > 0, rows[1], rows[0])

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        return self.by_season(parameters, data.length).reshape(-1, 2)[data.row]

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        rng = np.random.default_rng(seed)
        x = np.asarray(data.row)[observed] % data.length
        season = self.season[observed]
        overall = x.mean()
        low = np.mean(x[x <= np.median(x)])
        high = np.quantile(x, 0.9)
        steps, total = (
            np.bincount(season, weight, self.num_seasons) for weight in (np.ones(len(x)), x)
        )
        seasonal = (total + overall) / (steps + 1)
        rate = np.maximum(0.5 * (low + overall), 0.1 * overall) * np.exp(
            0.3 * rng.standard_normal()
        )
        shape = 2.0 * np.exp(0.3 * rng.standard_normal())
        return {
            "rate": np.asarray(rate),
            "seasonal": seasonal / seasonal.mean(),
            "excess_shape": np.asarray(shape),
            "excess_rate": np.asarray(shape / np.maximum(high - rate, 0.5 * overall)),
        }

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        rate = (parameters["rate"] * parameters["seasonal"])[data.row // data.length]
        excess = parameters["excess_shape"] / parameters["excess_rate"]
        return numpy_of(rate).stack([rate, rate + excess], axis=1)[..., None]

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: np.random.Generator
    ) -> Row:
        seasons = np.concatenate([self.season, self.future])
        if step >= len(seasons):
            raise ValueError(
                f"EventCounts: no season is known for step {step}; give those after the data as future=."
            )
        value = {name: np.asarray(parameters[name]) for name in self.free}
        count = rng.poisson(value["rate"] * value["seasonal"][seasons[step]])
        if state == 1:
            count += rng.poisson(rng.gamma(value["excess_shape"], 1 / value["excess_rate"]))
        return np.array([float(count)])
