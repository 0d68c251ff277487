"""Parameters of hidden states and their emissions that sit on a boundary."""

import numpy as np
from jaxtyping import Bool, Float

from .emissions._base import POSITIVE, PROBABILITY, SIMPLEX, AbstractEmission
from .emissions._covariance import MATRIX

EDGE = 1e-6  # the share of what is usual below which a probability, a rate, a variance sits on the boundary


def near_edge(
    emission: AbstractEmission,
    name: str,
    value: np.ndarray,
    spread: Float[np.ndarray, " channels"],
    free: np.ndarray | bool = True,
) -> list[str]:
    """The entries of a parameter that sit on the boundary, and their values; `spread` are the channels' variances, `free` says
    which probabilities are not held."""
    constraint, spread = emission.free.get(name, SIMPLEX), np.where(spread > 0, spread, 1.0)
    if constraint is MATRIX:
        least = _least_eigenvalue(value, spread)
        return [f"{name}{at or ''} (smallest eigenvalue {least[*at]:.1g})" for at in np.argwhere(least < EDGE).tolist()]
    if constraint is SIMPLEX:
        where = (value < EDGE) & free
    elif constraint is POSITIVE:
        where = _small(emission, name, value, spread)
    elif constraint is PROBABILITY:
        where = _small(emission, name, value, spread) | _small(emission, name, 1 - value, spread)
    else:
        return []
    return [f"{name}{at or ''} = {value[*at]:.1g}" for at in np.argwhere(where).tolist()]


def say(near: list[str]) -> str:
    return f"On the boundary: {', '.join(near[:5])}{', …' if len(near) > 5 else ''}; a prior keeps them off it."


def _small(
    emission: AbstractEmission, name: str, value: np.ndarray, spread: Float[np.ndarray, " channels"]
) -> Bool[np.ndarray, "..."]:
    """Which entries are small beside those of other states in the same channel, for channels have scales of their own; and
    beside the data's variances, or by EDGE more beside rates and probabilities of all channels."""
    states = value if name in emission.shared else value.max(axis=0)
    spread = spread if value.ndim > 1 else spread.min()
    return value < EDGE * np.maximum(states, spread if name == "covariance" else EDGE * value.max())


def _least_eigenvalue(matrix: Float[np.ndarray, "... n n"], spread: Float[np.ndarray, " n"]) -> Float[np.ndarray, "..."]:
    """Of covariances, in units in which the channels' own variances are one."""
    scaled = matrix / np.sqrt(spread[:, None] * spread)
    return np.linalg.eigvalsh(np.where(np.isfinite(scaled), scaled, 0.0))[..., 0]
