"""Emissions of symbols: `x_t | z_t = k ~ Categorical(probability_k)`."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from ..._runtime.jax import PyTree, static
from ...objectives.objective import LOG_PROBABILITY
from ._base import SIMPLEX, Constraint, Lengths, LogDensities, Means, Observations, Parameters, Past, Row, check
from ._priors import AbstractWithPrior, Choice, DirichletPrior, Priors


class Categorical(AbstractWithPrior):
    """Categorical emission, `p(x_t = s | z_t = k) = probability_{ks}`, of symbols 0, …, S − 1 in one channel.

    The parameter is `probability` [K, S]. Its default prior is Dirichlet(1 + 1/S), one pseudo-observation spread over the
    symbols. Means are the probabilities of all S symbols, [T, K, S].

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
        if not isinstance(num_symbols, int | np.integer) or num_symbols < 2:
            raise ValueError(f"Categorical: num_symbols must be an integer of at least 2; got {num_symbols}.")
        self.num_symbols = int(num_symbols)
        self._choose_prior(prior)

    def default_prior(self, x: Observations) -> Priors:
        return {"probability": DirichletPrior(1 + 1 / self.num_symbols)}

    @property
    def free(self) -> dict[str, Constraint]:
        return {"probability": SIMPLEX}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        if x.shape[1] != 1:
            raise ValueError(f"Categorical: symbols come in one channel; got {x.shape[1]}.")
        symbols = f"symbols 0, …, {self.num_symbols - 1}"
        check(x, (x >= 0) & (x < self.num_symbols) & (x == np.floor(x)), "Categorical", symbols)
        return np.where(np.isnan(x), 0, x)[:, 0].astype(int)

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        return jnp.log(parameters["probability"]).T[data]

    def initial(self, data: PyTree, observed: Bool[np.ndarray, " steps"], num_states: int, seed: int) -> Parameters:
        rng = np.random.default_rng(seed)
        frequency = np.bincount(np.asarray(data)[observed], minlength=self.num_symbols) + 1 / self.num_symbols
        p = frequency * rng.gamma(2.0, size=(num_states, self.num_symbols))
        return {"probability": p / p.sum(axis=1, keepdims=True)}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        return jnp.broadcast_to(parameters["probability"], (len(data), *parameters["probability"].shape))

    def draw(self, parameters: Parameters, state: int, step: int, past: Past, rng: np.random.Generator) -> Row:
        p = np.asarray(parameters["probability"], np.float64)[state]
        return np.array([float(rng.choice(self.num_symbols, p=p / p.sum()))])
