"""Plans whose refits leave out random folds, pairs of folds, and folds of bootstrap samples, all
from one fit; units of one group stay together.

A fold of a bootstrap sample is the product of two weights: how often a unit was drawn, and zero if
it is in the fold.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from .._runtime import (
    EntryIndex,
    EntryValues,
    UnitNumbers,
    level_numbers,
    members_by_label,
    record,
)
from ..plans import Plan, kfold, plan_of_entries
from .cross_validate import cross_validate
from .estimate import Bases, Estimate
from .standard_errors import independent

Array = np.ndarray
FOLDS = 10  # where the plan of an estimate has no number of folds to follow
MIN_FOLDS = 3  # of which pairs are left out
MOST_FOLDS = 20  # of a plan that is taken for one of folds
MOST_PAIRED = 300  # groups whose pairs are all left out
FOLDS_PAIRED = 50


@record
class RandomFolds:
    """The fold of every unit in every repeat, and the number of the group of every unit."""

    fold: Int[Array, "repeats units"]
    label: UnitNumbers
    num_folds: int

    @property
    def num_groups(self) -> int:
        return int(self.label.max()) + 1

    def leave_folds(self) -> Plan:
        """Leave out each fold."""
        return self._leave(np.arange(self.num_folds)[:, None])

    def leave_pairs(self) -> Plan:
        """Leave out each pair of folds."""
        return self._leave(self._pairs)

    @property
    def _pairs(self) -> Int[Array, "pairs 2"]:
        return np.transpose(np.triu_indices(self.num_folds, 1))

    def _leave(self, sets: Int[Array, "sets size"]) -> Plan:
        units = []
        for fold in self.fold:
            members = members_by_label(fold, self.num_folds)
            units += [np.concatenate([members[k] for k in folds]) for folds in sets]
        zeros = np.zeros(sum(map(len, units)))
        indptr = np.cumsum([0, *map(len, units)])
        return Plan(indptr, np.concatenate(units), zeros, zeros == 0, self.fold.shape[1])

    def other_fold(self, refit: EntryIndex, unit: EntryIndex) -> EntryIndex:
        """Number the fold that leaves beside that of a unit by a refit of `leave_pairs`, as the
        refits of `leave_folds` are.
        """
        repeat, pair = np.divmod(refit, len(self._pairs))
        pair_sum = self._pairs[pair].sum(1)
        # minus the fold of the unit it is the other one
        return repeat * self.num_folds + pair_sum - self.fold[repeat, unit]


def random_folds(label: UnitNumbers, num_folds: int, num_repeats: int, seed: int) -> RandomFolds:
    """Draw folds of whole groups, once for each repeat."""
    size = int(label.max()) + 1
    fold = np.empty((num_repeats, size), int)
    for k, group_fold in enumerate(fold):
        plan = kfold(size, num_folds, rng=seed + k)
        group_fold[plan.index] = plan.refit
    return RandomFolds(fold[:, label], label, num_folds)


def paired_folds(label: UnitNumbers, seed: int) -> RandomFolds:
    """Draw folds whose pairs can all be left out: each group, or `FOLDS_PAIRED` of many groups."""
    num_folds = int(label.max()) + 1
    if num_folds > MOST_PAIRED:
        num_folds = FOLDS_PAIRED
    return random_folds(label, num_folds, 1, seed)


def bootstrap_folds(folds: RandomFolds, counts: Float[Array, "repeats units"]) -> Plan:
    """Leave the folds of every repeat out of its bootstrap sample, in which units are as often as
    `counts` says.
    """
    entries = []
    for fold, count in zip(folds.fold, counts, strict=True):
        for k in range(folds.num_folds):
            weight = np.where(fold == k, 0.0, count)
            units = np.flatnonzero(weight != 1)
            entries.append((units, weight[units], (fold[units] == k) & (count[units] > 0)))
    return plan_of_entries(entries, counts.shape[1])


def draw_counts(
    label: UnitNumbers, num_draws: int, rng: np.random.Generator
) -> Float[Array, "draws units"]:
    """Draw groups with replacement, and count how often each unit is in every draw."""
    size = int(label.max()) + 1
    return rng.multinomial(size, np.full(size, 1 / size), num_draws)[:, label].astype(float)


def usual_folds(plan: Plan, num_groups: int) -> int:
    """Return the number of folds of one size of a plan, or the usual one, as far as two groups are
    in each.
    """
    # repeats have no more folds than one partition
    folds = round(plan.num_refits * plan.num_units / plan.held.sum())
    if not 1 < folds <= MOST_FOLDS or plan.weight.any():
        folds = FOLDS
    return min(folds, num_groups // 2)


def independent_groups(
    caller: str,
    estimate: Estimate,
    contributions: Sequence[Float[Array, " units"]],
    partial: bool = False,
) -> UnitNumbers:
    """Number the independent groups of units, the fewest of those of several losses or differences
    of them; −1 for a unit without a loss, if the plan may be `partial`. ValueError where there are
    too few.
    """
    reason = "losses are joint, or the plan does not score every unit"
    scored = np.isfinite(np.stack(contributions)).all(0)
    if estimate.plan.of_cases:
        reason = "single cases of units leave; give each case a row of its own"
    elif not estimate.joint and (partial or scored.all()):
        blocks = [independent(part, estimate._weight, estimate.plan) for part in contributions]
        groups = min(blocks, key=lambda block: block.units)
        reason = groups.kind
        if groups.enough and groups.units >= 2 * MIN_FOLDS:
            counted = scored & (estimate._weight > 0)
            numbers = np.arange(counted.sum())
            if groups.label is not None:
                numbers = level_numbers(groups.label)
            label = np.full(len(scored), -1)
            label[counted] = numbers
            return label
    raise ValueError(
        f"{caller}: it needs a loss of every unit, and {2 * MIN_FOLDS} independent groups or more: {reason}."
    )


def refit_again(
    caller: str, name: str, estimate: Estimate, plan: Plan, bases: Bases = "frozen"
) -> EntryValues:
    """Compute the losses of an estimate's fit by the refits of a plan."""
    fit, strategy, evaluate = estimate._refittable(caller, name)
    again = cross_validate(fit, plan, strategy=strategy, evaluate=evaluate, audit=0, bases=bases)
    missing = np.sum(~np.isfinite(again.losses[plan.held]))
    if missing:
        raise ValueError(
            f"{caller}: {missing} held-out losses of {name} do not exist; add a penalty, or take more folds."
        )
    return again.losses
