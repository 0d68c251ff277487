"""Standard errors of a mean of held-out losses, according to the dependence between units.

    independent rows     SD / √n
    clusters             √(G/(G − 1) Σ_g (Σ_{n∈g} s_n (l_n − l̄))²) / Σ s
    one series           the same over successive blocks, longer than the losses are correlated
    one field            the same over blocks of neighbouring sites

The SD of folds over √(number of folds) is never used: it goes to zero with more folds of the same
data.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from .._runtime.arrays import FloatArray, IntArray
from ..plans.plan import Plan

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


class Variance(NamedTuple):
    """A variance and its degrees of freedom of Student's t."""

    value: float
    freedom: float


class TrainingInfluence(NamedTuple):
    """The influence of groups of records through training.

    `group` is the group of each record, and `noise` the Monte-Carlo variance of the squares.
    """

    change: Float[np.ndarray, " groups"]
    group: Int[np.ndarray, " records"]
    noise: float = 0.0


@dataclass(frozen=True, eq=False)
class InfluenceSpread:
    """The influence of the data on a number, and the standard error that follows from it.

    `tested` `[records]` sums to zero, and is not zero where a record is tested. `unit` is the
    cluster (or record) that each belongs to, or several such partitions, `[partitions, records]`,
    over which variances are averaged. The influence through training is either `trained`, or
    `moved` `[folds, folds]`: the contribution of fold i to the number without fold j in its
    training data, minus its contribution with it.
    """

    test_part: Float[np.ndarray, " records"]
    unit: Int[np.ndarray, "*partitions records"]
    training_part: TrainingInfluence | None = None
    fold_effects: Float[np.ndarray, "folds folds"] | None = None

    @property
    def error(self) -> float:
        """The standard error, over independent units."""
        variance = self._over_units.value
        if self.training_part is not None:
            change, group, noise = self.training_part
            tested = np.bincount(group, self.test_part, len(change))
            count = len(change)
            variance += max(
                (np.sum((tested + change) ** 2 - tested**2) - noise) * count / (count - 1), 0.0
            )
        if self.fold_effects is not None:
            variance += as_trained(self.fold_effects)
        return float(np.sqrt(variance))

    @property
    def freedom(self) -> float:
        """The degrees of freedom of Student's t."""
        return self._over_units.freedom

    @property
    def _over_units(self) -> Variance:
        is_tested = self.test_part != 0
        if is_tested.any():
            return over_units(self.test_part[is_tested], np.atleast_2d(self.unit)[:, is_tested])
        return Variance(0.0, 1.0)

    def minus(self, other: "InfluenceSpread") -> "InfluenceSpread":
        """Return the influence of the data on the difference of two numbers of the same records."""
        training_part = None
        fold_effects = None
        if self.training_part is not None and other.training_part is not None:
            change = self.training_part.change - other.training_part.change
            training_part = self.training_part._replace(
                change=change, noise=self.training_part.noise + other.training_part.noise
            )
        if self.fold_effects is not None and other.fold_effects is not None:
            fold_effects = self.fold_effects - other.fold_effects
        return replace(
            self,
            test_part=self.test_part - other.test_part,
            training_part=training_part,
            fold_effects=fold_effects,
        )


def over_units(
    influence: Float[np.ndarray, " records"], partitions: Int[np.ndarray, "partitions records"]
) -> Variance:
    """Compute the variance `Σ_c (Σ_{i ∈ c} ψ_i)² / (1 − n_c/n)` and Satterthwaite's degrees of
    freedom.

    Both are averaged over partitions into units.
    """
    variances = []
    for unit in partitions:
        code = np.unique(unit, return_inverse=True)[1]
        sums = np.bincount(code, influence)
        sizes = np.bincount(code)
        if len(sizes) < 2:
            variances.append((np.nan, 1.0))
            continue
        variance = float(np.sum(sums**2 / (1 - sizes / len(code))))
        single = np.sum(influence**2)
        joint = np.sum(sizes * (sizes - 1.0)) / len(code)
        # the correlation within units
        correlation = np.clip((np.sum(sums**2) - single) / max(single * joint, 1e-300), 0.0, 1.0)
        effective_sizes = sizes * (1 + correlation * (sizes - 1.0))
        variances.append(
            (
                variance,
                max(float(np.sum(effective_sizes) ** 2 / np.sum(effective_sizes**2)) - 1, 1.0),
            )
        )
    return Variance(*(float(np.mean(part)) for part in zip(*variances, strict=True)))


def as_trained(move: Float[np.ndarray, "folds folds"]) -> float:
    """Compute the part of the variance of a score that is due to training: Σ_{i ≠ j} C_ij C_ji, if
    that is positive.

    `moved[i, j]` is the contribution of fold i to the score without fold j in its training data,
    minus that with it; C is `move` minus its mean. The losses of two clusters in different folds
    depend on one another, since each is in the other's training set. Their covariance is the
    expected product of the effects of each on the other. An effect of a cluster on all others alike
    is in no product of first order. Squares of C would count again the variance that is counted as
    tested.
    """
    off_diagonal = ~np.eye(len(move), dtype=bool)
    C = np.where(off_diagonal, move - move[off_diagonal].mean(), 0.0)
    return max(float(np.sum(C * C.T)), 0.0)


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
    with np.errstate(invalid="ignore"):
        means = [
            np.where(times > 0, np.bincount(unit, column, count) / np.maximum(times, 1), np.nan)
            for column in columns
        ]
    return np.stack(means, axis=-1).reshape(count, *values.shape[1:])


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
    group = np.unique(groups.label, return_inverse=True)[1]
    contributions = _contributions(losses[None, seen], weight[seen])[0]
    return StandardError(float(_root(np.bincount(group, contributions)[None])[0]), groups.kind)


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
        return _root(_contributions(common_losses, weight[seen]))
    return np.zeros(len(losses))


def _contributions(losses: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute the contributions of units to the deviations of weighted means, `[means, units]`."""
    return weight / weight.sum() * (losses - (losses @ weight / weight.sum())[:, None])


def _root(sums: NDArray) -> FloatArray:
    """Compute √(G/(G − 1) Σ s²) of the sums s over groups."""
    # squares of predictions such as e^400 overflow
    size = np.maximum(np.abs(sums).max(1), 1e-300)
    count = sums.shape[1]
    return size * np.sqrt(count / (count - 1) * np.sum((sums / size[:, None]) ** 2, axis=1))


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
        tau = 6 * tau
    return int(max(1, min(n, np.ceil(max(tau, n ** (1 / 3))))))
