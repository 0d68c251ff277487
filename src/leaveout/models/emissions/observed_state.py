"""Emission of states that are observed themselves: `x_s = z_s`."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Scalar

from ..._runtime.jax import PyTree, static
from ...objectives.objective import LOG_PROBABILITY
from ._base import AbstractEmission, Constraint, Lengths, LogDensities, Means, Observations, Parameters, Past, Row, check


class Observed(AbstractEmission):
    """Emission that shows the state itself, 0, …, K − 1, in one channel: `x_s = z_s`.

    With it a field is an autologistic model (Besag 1974), by its exact likelihood; observations that are missing or left out
    are summed over. There are no parameters. An observation of weight w leaves `1 − w` for each other state, so that F is
    smooth in the weights. Means are the probabilities of all K states.

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
        if not isinstance(num_states, int | np.integer) or num_states < 2:
            raise ValueError(f"Observed: num_states must be an integer of at least 2; got {num_states!r}.")
        self.number = int(num_states)

    @property
    def free(self) -> dict[str, Constraint]:
        return {}

    @property
    def num_states(self) -> int | None:
        return self.number

    @property
    def fixed(self) -> Parameters:
        return {"state": np.eye(self.number)}

    def prepare(self, x: Observations, lengths: Lengths) -> PyTree:
        if x.shape[1] != 1:
            raise ValueError(f"Observed: states come in one channel; got {x.shape[1]}.")
        check(x, (x >= 0) & (x < self.number) & (x == np.floor(x)), "Observed", f"states 0, …, {self.number - 1}")
        return np.where(np.isnan(x), 0, x)[:, 0].astype(int)

    def log_density(self, parameters: Parameters, datum: PyTree) -> Scalar:
        return jnp.log(parameters["state"])[datum]

    def log_densities(self, parameters: Parameters, data: PyTree) -> LogDensities:
        return jnp.where(jnp.arange(self.number) == data[:, None], 0.0, -jnp.inf)

    def weigh(self, weights: Array, logs: Array) -> Array:
        rest = jnp.where(weights <= 1, 1 - weights, 0.0) + 1e-30  # not zero, so that derivatives by the weights are finite
        return jnp.where(jnp.isneginf(logs), jnp.log(rest), 0.0)

    def initial(self, data: PyTree, observed: Bool[np.ndarray, " steps"], num_states: int, seed: int) -> Parameters:
        return {}

    def means(self, parameters: Parameters, data: PyTree) -> Means:
        return jnp.broadcast_to(parameters["state"], (len(data), self.number, self.number))

    def draw(self, parameters: Parameters, state: int, step: int, past: Past, rng: np.random.Generator) -> Row:
        return np.array([float(state)])
