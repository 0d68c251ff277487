"""Emissions of symbols.

`x_t | z_t = k ~ Categorical(probability_k)`, and of the states themselves.
"""

import numpy as np
from numpy.random import Generator

from ..._runtime import Array, PyTree, Scalar, jnp, numpy_of, static
from ...data import count
from ...objectives import LOG_PROBABILITY
from ._base import (
    SIMPLEX,
    AbstractEmission,
    AbstractWithPrior,
    Choice,
    Constraints,
    DirichletPrior,
    Lengths,
    LogDensities,
    Means,
    Observations,
    Parameters,
    Past,
    Priors,
    Row,
    StepFlags,
    check,
)


def read_symbols(x: Observations, number: int, emission: str, symbols: str) -> np.ndarray:
    """Read symbols 0, …, of one channel; ValueError for anything else."""
    if x.shape[1] != 1:
        raise ValueError(f"{emission}: {symbols} come in one channel; got {x.shape[1]}.")
    check(
        x, (x >= 0) & (x < number) & (x == np.floor(x)), emission, f"{symbols} 0, …, {number - 1}"
    )
    return np.where(np.isnan(x), 0, x)[:, 0].astype(int)


class Categorical(AbstractWithPrior):
    """Categorical emission, `p(x_t = s | z_t = k) = probability_{ks}`, of symbols 0, …, S − 1 in
    one channel.

    The parameter is `probability` [K, S]. Its default prior is Dirichlet(1 + 1/S), one
    pseudo-observation spread over the symbols. Means are the probabilities of all S symbols, [T, K,
    S].

    Parameters
    ----------
    num_symbols : int
        Number of symbols S, two or more.
    prior : {"default"}, dict or None, default: "default"
        Prior, such as `{"probability": (concentration,)}` with a number or [S]; None is flat.

    Raises
    ------
    ValueError
        If there are fewer than two symbols.

    Examples
    --------
    >>> import leaveout as lo
    >>> list(lo.emissions.Categorical(3).free)
    ['probability']
    """

    score = LOG_PROBABILITY

    num_symbols: int = static()

    def __init__(self, num_symbols: int, prior: Choice = "default"):
        self.num_symbols = count("Categorical: num_symbols", num_symbols, 2)
        self._choose_prior(prior)

    def default_prior(self, x: Observations) -> Priors:
        return {"probability": DirichletPrior(1 + 1 / self.num_symbols)}

    @property
    def free(self) -> Constraints:
        return {"probability": SIMPLEX}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        return read_symbols(x, self.num_symbols, "Categorical", "symbols")

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        return numpy_of(parameters["probability"]).log(parameters["probability"]).T[data]

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        rng = np.random.default_rng(seed)
        frequency = (
            np.bincount(np.asarray(data)[observed], minlength=self.num_symbols)
            + 1 / self.num_symbols
        )
        p = frequency * rng.gamma(2.0, size=(num_states, self.num_symbols))
        return {"probability": p / p.sum(1, keepdims=True)}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        probability = parameters["probability"]
        return numpy_of(probability).broadcast_to(probability, (len(data), *probability.shape))

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: Generator
    ) -> Row:
        p = np.asarray(parameters["probability"], float)[state]
        return np.array([float(rng.choice(self.num_symbols, p=p / p.sum()))])


class Observed(AbstractEmission):
    """Emission that shows the state itself, 0, …, K − 1, in one channel: `x_s = z_s`.

    With it a field is an autologistic model (Besag 1974), by its exact likelihood; observations
    that are missing or left out are summed over. There are no parameters. An observation of weight
    w leaves `1 − w` for each other state, so that F is smooth in the weights. Means are the
    probabilities of all K states.

    Parameters
    ----------
    num_states : int
        Number of states K, two or more.

    Raises
    ------
    ValueError
        If there are fewer than two states.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.emissions.Observed(2).num_states
    2
    """

    score = LOG_PROBABILITY
    prior_note = ""

    number: int = static()

    def __init__(self, num_states: int):
        self.number = count("Observed: num_states", num_states, 2)

    @property
    def free(self) -> Constraints:
        return {}

    @property
    def num_states(self) -> int | None:
        return self.number

    @property
    def fixed(self) -> Parameters:
        return {"state": np.eye(self.number)}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        return read_symbols(x, self.number, "Observed", "states")

    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        return jnp.log(parameters["state"])[datum]

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        return jnp.where(jnp.arange(self.number) == data[:, None], 0.0, -jnp.inf)

    def weigh(self, weights: Array, logs: Array) -> Array:
        # not zero, so that derivatives by the weights are finite
        complement = jnp.where(weights <= 1, 1 - weights, 0.0) + 1e-30
        return jnp.where(jnp.isneginf(logs), jnp.log(complement), 0.0)

    def initial(self, data: PyTree, observed: StepFlags, num_states: int, seed: int) -> Parameters:
        return {}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        return jnp.broadcast_to(parameters["state"], (len(data), self.number, self.number))

    def draw(
        self, parameters: Parameters, state: int, step: int, past: Past, rng: Generator
    ) -> Row:
        return np.array([float(state)])
