"""Draws from a hidden Markov model: whole sequences, and what comes after the data."""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, PyTree

from . import _explain
from .emissions._base import AbstractEmission, Parameters
from .emissions.categorical import Categorical

DRAWS = 2000


def forecast(hmm: Any, theta: PyTree, horizon: int, level: float) -> pd.DataFrame:
    """What the steps after the last will be: mean and central interval; of symbols the probability of each."""
    if not (0 < level < 1 and horizon >= 1):
        raise ValueError(f"forecast: horizon must be 1 or more, level between 0 and 1; got {horizon} and {level}.")
    found, rng, steps = hmm.parameters.natural(theta), np.random.default_rng(0), len(hmm.x)
    first = np.asarray(_explain.filtered(hmm, theta))[-1] @ np.asarray(found["transition"])
    past = recent(hmm.x, hmm.emission.reach)
    draws = np.stack([draw(hmm.emission, found, first, past, steps, horizon, rng)[0] for _ in range(DRAWS)])
    index = hmm.labels.ahead(steps, horizon)
    if isinstance(hmm.emission, Categorical):
        return pd.DataFrame({s: (draws[..., 0] == s).mean(0) for s in range(hmm.emission.num_symbols)}, index=index)
    return table(summary(draws, level), index, hmm.labels.columns)


def recent(x: Float[np.ndarray, "steps channels"], reach: int) -> Float[np.ndarray, "reach channels"]:
    """The observations that the first step ahead regresses on; raises where one is missing."""
    past = x[len(x) - reach :]
    missing = len(x) - reach + np.flatnonzero(np.isnan(past).any(axis=1))
    if missing.size:
        raise ValueError(
            f"forecast: the steps ahead regress on the last {reach}, of which {missing.tolist()} are missing (NaN). Fill them, "
            f"or cut the series after the last {reach} steps in a row that are observed."
        )
    return past


def draw(
    emission: AbstractEmission,
    parameters: Parameters,
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
