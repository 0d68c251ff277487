"""The influence of the data on a number, and the standard error that follows from it.

    error² = variance over tested units + the part through training

The variance over units is Σ_c (Σ_{i ∈ c} ψ_i)² / (1 − n_c/n), averaged over partitions into units.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ...developer import NumpyArray, level_numbers, record


class Variance(NamedTuple):
    """A variance and its degrees of freedom of Student's t."""

    value: float
    freedom: float


class TrainingInfluence(NamedTuple):
    """The influence of groups of records through training.

    `group` is the group of each record, and `noise` the Monte-Carlo variance of the squares.
    """

    change: Float[NumpyArray, " groups"]
    group: Int[NumpyArray, " records"]
    noise: float = 0.0


@record
class InfluenceSpread:
    """The influence of the data on a number, and the standard error that follows from it.

    `tested` `[records]` sums to zero, and is not zero where a record is tested. `unit` is the
    cluster (or record) that each belongs to, or several such partitions, `[partitions, records]`,
    over which variances are averaged. The influence through training is either `trained`, or
    `moved` `[folds, folds]`: the contribution of fold i to the number without fold j in its
    training data, minus its contribution with it.
    """

    test_part: Float[NumpyArray, " records"]
    unit: Int[NumpyArray, "*partitions records"]
    training_part: TrainingInfluence | None = None
    fold_effects: Float[NumpyArray, "folds folds"] | None = None

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
    influence: Float[NumpyArray, " records"], partitions: Int[NumpyArray, "partitions records"]
) -> Variance:
    """Compute the variance `Σ_c (Σ_{i ∈ c} ψ_i)² / (1 − n_c/n)` and Satterthwaite's degrees of
    freedom.

    Both are averaged over partitions into units.
    """
    variances = []
    for unit in partitions:
        code = level_numbers(unit)
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


def as_trained(move: Float[NumpyArray, "folds folds"]) -> float:
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
