"""Standard errors of a mean of held-out losses, by what depends on what.

    independent rows     SD / √n
    clusters             √(G/(G − 1) Σ_g (Σ_{n∈g} s_n (l_n − l̄))²) / Σ s
    one series           the same over successive blocks, longer than the losses are correlated
    one field            the same over blocks of neighbouring sites

Never the SD of folds over √(number of folds): it goes to zero with more folds of the same data.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from ._plan import Plan

FEWEST = 20  # blocks or clusters below which a block standard error is not to be had


class StandardError(NamedTuple):
    """A standard error and what it is: `value` is NaN where it is not available."""

    value: float
    kind: str


class Independent(NamedTuple):
    """What of the scored units is taken to be independent: `label`, one a scored unit, None where each is by itself; how many
    there are, what they are called, and whether they are enough for a standard error."""

    label: NDArray[np.int64] | None
    units: int
    kind: str
    enough: bool = True


class Variance(NamedTuple):
    """A variance, and the degrees of freedom of Student's law it is known by."""

    value: float
    freedom: float


class Trained(NamedTuple):
    """The influence of groups of records as trained on, the group of each, and the Monte-Carlo variance of their squares."""

    change: Float[np.ndarray, " groups"]
    group: Int[np.ndarray, " records"]
    noise: float = 0.0


@dataclass(frozen=True, eq=False)
class Spread:
    """The influence of data on a number, and how far that is off.

    `tested` `[records]` sums to zero, and is not zero where a record is tested; `unit` is the cluster (or record) that each is
    of, or several such partitions, `[partitions, records]`, over which variances are averaged. Of training, either `trained`,
    or `moved` `[folds, folds]`: what fold i adds to the number without fold j in its training, less what it adds as it is.
    """

    tested: Float[np.ndarray, " records"]
    unit: Int[np.ndarray, "*partitions records"]
    trained: Trained | None = None
    moved: Float[np.ndarray, "folds folds"] | None = None

    @property
    def error(self) -> float:
        """The standard error, from one unit to the next."""
        variance = self._over_units.value
        if self.trained is not None:
            change, group, noise = self.trained
            tested, count = np.bincount(group, self.tested, len(change)), len(change)
            variance += max((np.sum((tested + change) ** 2 - tested**2) - noise) * count / (count - 1), 0.0)
        if self.moved is not None:
            variance += as_trained(self.moved)
        return float(np.sqrt(variance))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of Student's law."""
        return self._over_units.freedom

    @property
    def _over_units(self) -> Variance:
        there = self.tested != 0
        return over_units(self.tested[there], np.atleast_2d(self.unit)[:, there]) if there.any() else Variance(0.0, 1.0)

    def minus(self, other: "Spread") -> "Spread":
        """Of the difference of two numbers of the same records."""
        both, moved = None, None
        if self.trained is not None and other.trained is not None:
            change = self.trained.change - other.trained.change
            both = self.trained._replace(change=change, noise=self.trained.noise + other.trained.noise)
        if self.moved is not None and other.moved is not None:
            moved = self.moved - other.moved
        return replace(self, tested=self.tested - other.tested, trained=both, moved=moved)


def over_units(influence: Float[np.ndarray, " records"], partitions: Int[np.ndarray, "partitions records"]) -> Variance:
    """`Σ_c (Σ_{i ∈ c} ψ_i)² / (1 − n_c/n)`, and Satterthwaite's degrees of freedom for units of these sizes: their means over
    partitions into units."""
    found = [_over_units(influence, unit) for unit in partitions]
    return Variance(*(float(np.mean(part)) for part in zip(*found, strict=True)))


def _over_units(influence: Float[np.ndarray, " records"], unit: Int[np.ndarray, " records"]) -> tuple[float, float]:
    code = np.unique(unit, return_inverse=True)[1]
    sums, sizes = np.bincount(code, influence), np.bincount(code)
    if len(sizes) < 2:
        return float("nan"), 1.0
    variance = float(np.sum(sums**2 / (1 - sizes / len(code))))
    single, joint = np.sum(influence**2), np.sum(sizes * (sizes - 1.0)) / len(code)
    alike = np.clip((np.sum(sums**2) - single) / max(single * joint, 1e-300), 0.0, 1.0)  # the correlation within units
    each = sizes * (1 + alike * (sizes - 1.0))
    return variance, max(float(np.sum(each) ** 2 / np.sum(each**2)) - 1, 1.0)


def as_trained(moved: Float[np.ndarray, "folds folds"]) -> float:
    """What training adds to the variance of a score over folds: Σ_{i ≠ j} C_ij C_ji, if that is positive.

    `moved[i, j]` is what fold i adds to the score without fold j in its training, less what it adds as it is; C is that less
    its mean. The losses of two clusters in different folds depend on one another as each is in the other's training set:
    their covariance is the expected product of what the one does to the other, both ways. What a cluster does to all others
    alike is in no product of first order; squares of C would count what is in the variance as tested already.
    """
    off = ~np.eye(len(moved), dtype=bool)
    C = np.where(off, moved - moved[off].mean(), 0.0)
    return max(float(np.sum(C * C.T)), 0.0)


def independent(losses: NDArray[np.float64], weight: NDArray[np.float64], plan: Plan) -> Independent:
    """The units that have a loss, by what depends on what."""
    seen = np.isfinite(losses) & (weight > 0)
    missing = lambda why: Independent(None, 0, f"not available: {why}", False)
    if seen.sum() < 2:
        return missing("fewer than two scored units")
    label = plan.blocks if plan.clusters is None else plan.clusters
    if label is not None:
        grouped, count = plan.clusters is not None, len(np.unique(label[seen]))
        if count < (2 if grouped else FEWEST):
            return missing("fewer than two groups" if grouped else f"{count} blocks of neighbours are fewer than {FEWEST}")
        few = "; few groups, so a rough number" if count < FEWEST else ""
        size = round(seen.sum() / count)
        what = f"groups{few}" if grouped else f"blocks of about {size} neighbours" if size > 1 else "units, each by itself"
        return Independent(label[seen], count, f"over {count} {what}")
    if plan.serial is None:
        return missing("the objective does not say whether its units depend on one another")
    if plan.serial:
        length = _block_length(losses[seen])
        count = int(seen.sum()) // length
        if count < FEWEST:
            return missing(f"{count} blocks of {length} are fewer than {FEWEST}")
        return Independent(np.minimum(np.arange(seen.sum()) // length, count - 1), count, f"over {count} blocks of {length}")
    return Independent(None, int(seen.sum()), "rows independent; usually optimistic")


def standard_error(losses: NDArray[np.float64], weight: NDArray[np.float64], plan: Plan) -> StandardError:
    """The standard error of the weighted mean of per-unit losses, `[units]`; NaN losses are not there."""
    found = independent(losses, weight, plan)
    if not found.enough:
        return StandardError(np.nan, found.kind)
    if found.label is None:
        return StandardError(naive(losses, weight), found.kind)
    seen = np.isfinite(losses) & (weight > 0)
    return StandardError(_over_groups(losses[seen], weight[seen], found.label), found.kind)


def naive(losses: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """The standard error as if rows were independent: the scale in which tolerances are stated."""
    return float(naives(losses[None], weight)[0])


def naives(losses: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same of many, `[means, units]`, of what is there in all of them."""
    seen = np.isfinite(losses).all(0) & (weight > 0)
    some = losses if seen.all() else losses[:, seen]
    return _over(some, weight[seen]) if seen.sum() > 1 else np.zeros(len(losses))


def _over(losses: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """That of weighted means, `[means, units]`, over every unit by itself."""
    return _root(weight / weight.sum() * (losses - (losses @ weight / weight.sum())[:, None]))


def _over_groups(losses: NDArray[np.float64], weight: NDArray[np.float64], label: NDArray[np.int64]) -> float:
    """That of a weighted mean, over what has one label."""
    pull = weight * (losses - np.average(losses, weights=weight)) / weight.sum()
    return float(_root(np.bincount(np.unique(label, return_inverse=True)[1], pull)[None, :])[0])


def _root(sums: NDArray) -> NDArray[np.float64]:
    """√(G/(G − 1) Σ s²)."""
    size, count = np.maximum(np.abs(sums).max(1), 1e-300), sums.shape[1]  # squares of predictions such as e^400 are no numbers
    return size * np.sqrt(count / (count - 1) * np.sum((sums / size[:, None]) ** 2, axis=1))


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
