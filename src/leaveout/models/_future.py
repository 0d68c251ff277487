"""Draws from a hidden Markov model: whole sequences, and what comes after the data."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from .emissions._base import AbstractEmission, Parameters

DRAWS = 2000


def draw(
    emission: "AbstractEmission",
    parameters: "Parameters",
    first: Float[np.ndarray, " states"],
    past: Float[np.ndarray, "past channels"],
    at: int,
    num_steps: int,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "steps channels"], Int[np.ndarray, " steps"]]:
    """Steps `at`, `at + 1`, … and their states, the first of which has the distribution `first`."""
    found = {name: np.asarray(value) for name, value in parameters.items()}
    transition, K = found["transition"], len(first)
    own = {name: value for name, value in found.items() if name not in ("initial", "transition")}
    steps, states = np.concatenate([past, np.empty((num_steps, past.shape[1]))]), np.empty(num_steps, int)
    chances = first
    for t in range(num_steps):
        states[t] = rng.choice(K, p=chances / chances.sum())
        chances = transition[states[t]]
        now = len(past) + t
        steps[now] = emission.draw(own, states[t], at + t, steps[max(0, now - max(emission.reach, 1)) : now], rng)
    return steps[len(past) :], states


def summary(
    draws: Float[np.ndarray, "draws horizon channels"], level: float
) -> dict[str, Float[np.ndarray, "horizon channels"]]:
    """Mean and central interval."""
    lower, upper = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {"mean": draws.mean(0), "lower": lower, "upper": upper}


def table(parts: dict[str, np.ndarray], index: pd.Index, columns: pd.Index | None) -> pd.DataFrame:
    """One column a part; for several channels one group of columns a channel."""
    if columns is None or len(columns) == 1:
        return pd.DataFrame({name: value[:, 0] for name, value in parts.items()}, index=index)
    groups = {column: pd.DataFrame({n: v[:, r] for n, v in parts.items()}, index=index) for r, column in enumerate(columns)}
    return pd.concat(groups, axis=1)
