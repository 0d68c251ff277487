"""Standard errors of a mean of held-out losses, by what depends on what.

    independent rows     SD / √n
    clusters             √(G/(G − 1) Σ_g (Σ_{n∈g} s_n (l_n − l̄))²) / Σ s
    one series           the same over successive blocks, longer than the losses are correlated
    one field            the same over blocks of neighbouring sites

Never the SD of folds over √(number of folds): it goes to zero with more folds of the same data.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._plan import Plan

FEWEST = 20  # blocks or clusters below which a block standard error is not to be had


class StandardError(NamedTuple):
    """A standard error and what it is: `value` is NaN where it is not available."""

    value: float
    kind: str


def standard_error(losses: NDArray[np.float64], weight: NDArray[np.float64], plan: Plan) -> StandardError:
    """The standard error of the weighted mean of per-unit losses, `[units]`; NaN losses are not there."""
    seen = np.isfinite(losses) & (weight > 0)
    losses, weight = losses[seen], weight[seen]
    if len(losses) < 2:
        return StandardError(np.nan, "not available: fewer than two scored units")
    pull = weight * (losses - np.average(losses, weights=weight)) / weight.sum()
    if plan.clusters is not None:
        count = len(np.unique(plan.clusters[seen]))
        if count < 2:
            return StandardError(np.nan, "not available: fewer than two groups")
        few = "; few groups, so a rough number" if count < FEWEST else ""
        return StandardError(_over(pull, plan.clusters[seen]), f"over {count} groups{few}")
    if plan.blocks is not None:
        count = len(np.unique(plan.blocks[seen]))
        if count < FEWEST:
            return StandardError(np.nan, f"not available: {count} blocks of neighbours are fewer than {FEWEST}")
        of = f"{count} blocks of about {round(len(losses) / count)} neighbours"
        return StandardError(_over(pull, plan.blocks[seen]), f"over {of}")
    if plan.serial is None:
        return StandardError(np.nan, "not available: the objective does not say whether its units depend on one another")
    if plan.serial:
        length = _block_length(losses)
        count = len(losses) // length
        if count < FEWEST:
            return StandardError(np.nan, f"not available: {count} blocks of {length} are fewer than {FEWEST}")
        block = np.minimum(np.arange(len(losses)) // length, count - 1)
        return StandardError(_over(pull, block), f"over {count} blocks of {length}")
    return StandardError(_over(pull, None), "rows independent; usually optimistic")


def naive(losses: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """The standard error as if rows were independent: the scale in which tolerances are stated."""
    seen = np.isfinite(losses) & (weight > 0)
    if seen.sum() < 2:
        return 0.0
    pull = weight[seen] * (losses[seen] - np.average(losses[seen], weights=weight[seen])) / weight[seen].sum()
    return _over(pull, None)


def _over(pull: NDArray[np.float64], label: NDArray[np.int64] | None) -> float:
    sums = pull if label is None else np.bincount(np.unique(label, return_inverse=True)[1], pull)
    size = max(float(np.abs(sums).max()), 1e-300)  # squares of predictions such as e^400 are no numbers
    return size * float(np.sqrt(len(sums) / (len(sums) - 1) * np.sum((sums / size) ** 2)))


def _block_length(losses: NDArray[np.float64]) -> int:
    """Six correlation times of the losses (Sokal's window), and at least the cube root of their number."""
    n = len(losses)
    x = losses - losses.mean()
    spectrum = np.abs(np.fft.rfft(x, 2 * n)) ** 2
    rho = np.fft.irfft(spectrum)[:n] / max(np.sum(x**2), 1e-300)
    time = 1 + 2 * np.cumsum(rho[1:])
    window = np.flatnonzero(np.arange(1, n) >= 5 * time)
    tau = max(1.0, time[window[0]] if window.size else n)
    return int(max(1, min(n, np.ceil(max(6 * tau if tau > 1.5 else tau, n ** (1 / 3))))))
