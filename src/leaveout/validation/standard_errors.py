"""Standard errors of a mean of held-out losses, according to the dependence between units.

    independent rows     SD / √n
    clusters             √(G/(G − 1) Σ_g (Σ_{n∈g} s_n (l_n − l̄))²) / Σ s
    one series           the same over successive blocks, longer than the losses are correlated
    one field            the same over blocks of neighbouring sites

The SD of folds over √(number of folds) is never used: it goes to zero with more folds of the same
data.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._runtime import FloatArray, IntArray, level_numbers, silence
from ..plans import Plan

MIN_BLOCKS = 20  # blocks or clusters below which there is no block standard error


class StandardError(NamedTuple):
    """A standard error and its kind; `value` is NaN where it is not available."""

    value: float
    kind: str


class Independent(NamedTuple):
    """The independent groups of scored units.

    `label` is the group of each unit, or None if each unit is its own. The other fields are the
    number of groups, their description, and whether they are enough for a standard error.
    """

    label: IntArray | None
    units: int
    kind: str
    enough: bool = True


def independent(losses: FloatArray, weight: FloatArray, plan: Plan) -> Independent:
    """Find the independent groups among the units that have a loss."""
    seen = np.isfinite(losses) & (weight > 0)
    missing = lambda why: Independent(None, 0, f"not available: {why}", False)
    if seen.sum() < 2:
        return missing("fewer than two scored units")
    if plan.clusters is not None:
        label = plan.clusters[seen]
        count = len(np.unique(label))
        if count < 2:
            return missing("fewer than two groups")
        caveat = "; few groups, so a rough number" if count < MIN_BLOCKS else ""
        return Independent(label, count, f"over {count} groups{caveat}")
    if plan.blocks is not None:
        label = plan.blocks[seen]
        count = len(np.unique(label))
        if count < MIN_BLOCKS:
            return missing(f"{count} blocks of neighbours are fewer than {MIN_BLOCKS}")
        size = round(seen.sum() / count)
        blocks = "units, each by itself"
        if size > 1:
            blocks = f"blocks of about {size} neighbours"
        return Independent(label, count, f"over {count} {blocks}")
    if plan.serial is None:
        return missing("the objective does not say whether its units depend on one another")
    if plan.serial:
        length = _block_length(losses[seen])
        count = int(seen.sum()) // length
        if count < MIN_BLOCKS:
            return missing(f"{count} blocks of {length} are fewer than {MIN_BLOCKS}")
        return Independent(
            np.minimum(np.arange(seen.sum()) // length, count - 1),
            count,
            f"over {count} blocks of {length}",
        )
    if plan.of_cases:
        return Independent(None, int(weight[seen].sum()), "cases independent; usually optimistic")
    return Independent(None, int(seen.sum()), "rows independent; usually optimistic")


def average_by_unit(unit: IntArray, values: NDArray, count: int) -> FloatArray:
    """Average values `[entries, ...]` by the unit of each, `[count, ...]`.

    NaN for a unit without any.
    """
    times = np.bincount(unit, minlength=count)
    columns = values.reshape(len(values), math.prod(values.shape[1:])).T
    with silence("invalid"):
        means = [
            np.where(times > 0, np.bincount(unit, column, count) / np.maximum(times, 1), np.nan)
            for column in columns
        ]
    return np.stack(means, -1).reshape(count, *values.shape[1:])


def standard_error(losses: FloatArray, weight: FloatArray, plan: Plan) -> StandardError:
    """Compute the standard error of the weighted mean of per-unit losses, `[units]`.

    NaN losses are ignored.
    """
    groups = independent(losses, weight, plan)
    if not groups.enough:
        return StandardError(np.nan, groups.kind)
    if groups.label is None:
        return StandardError(naive(losses, weight, plan.of_cases), groups.kind)
    seen = np.isfinite(losses) & (weight > 0)
    group = level_numbers(groups.label)
    deviations = contributions(losses[None, seen], weight[seen])[0]
    return StandardError(float(_root(np.bincount(group, deviations)[None])[0]), groups.kind)


def naive(losses: FloatArray, weight: FloatArray, cases: bool = False) -> float:
    """Compute the standard error as if rows, or the cases that they stand for, were independent.

    Tolerances are stated in that of rows.
    """
    if cases:
        seen = np.isfinite(losses) & (weight > 0)
        n = weight[seen].sum()
        deviations = losses[seen] - np.average(losses[seen], weights=weight[seen])
        return float(np.sqrt(np.sum(weight[seen] * deviations**2) / (n * (n - 1))))
    return float(naives(losses[None], weight)[0])


def naives(losses: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute the naive standard errors of many means, `[means, units]`, over the units that have a
    loss in all of them.
    """
    seen = np.isfinite(losses).all(0) & (weight > 0)
    common_losses = losses if seen.all() else losses[:, seen]
    if seen.sum() > 1:
        return _root(contributions(common_losses, weight[seen]))
    return np.zeros(len(losses))


def contributions(losses: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute the contributions of units to the deviations of weighted means, `[means, units]`."""
    return weight / weight.sum() * (losses - (losses @ weight / weight.sum())[:, None])


def _root(sums: NDArray) -> FloatArray:
    """Compute √(G/(G − 1) Σ s²) of the sums s over groups."""
    # squares of predictions such as e^400 overflow
    size = np.maximum(np.abs(sums).max(1), 1e-300)
    count = sums.shape[1]
    return size * np.sqrt(count / (count - 1) * np.sum((sums / size[:, None]) ** 2, 1))


def _block_length(losses: FloatArray) -> int:
    """Return the length of blocks.

    Six correlation times (Sokal's window), at least the cube root of the number of losses.
    """
    n = len(losses)
    x = losses - losses.mean()
    spectrum = np.abs(np.fft.rfft(x, 2 * n)) ** 2
    rho = np.fft.irfft(spectrum)[:n] / max(np.sum(x**2), 1e-300)
    time = 1 + 2 * np.cumsum(rho[1:])
    window = np.flatnonzero(np.arange(1, n) >= 5 * time)
    correlated = time[window[0]] if window.size else n
    tau = max(1.0, correlated)
    if tau > 1.5:
        tau *= 6
    return int(max(1, min(n, np.ceil(max(tau, n ** (1 / 3))))))
