"""Injection of leakage: at level j, exactly j records of V̂ (or halves of j of its clusters) take
the place of records of T̂.

All levels of one draw share its random orders of T̂ and V̂ (common random numbers), so that
differences between levels are due to leakage and not to the draw. Draws are without replacement:
the learner keeps its size, some records of T̂ are always left out, and no injected record is ever
scored.

The effect of mates in training is shown only by injecting other records of the same cluster. For a
record that is alone in its cluster nothing similar can be injected, and its loss is the same at
every level (`unshown`, `refusal`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int
from numpy import ndarray
from numpy.random import default_rng
from numpy.typing import ArrayLike, NDArray

from ...developer import (
    IntArray,
    Rng,
    TwoCounts,
    conventional,
    count,
    level_numbers,
    members_by_label,
    record,
)
from ._models import DrawnLeakage, Folds, Leakage, LeakageFold

SLOPE_SHARE = 0.1  # share of V̂ at which the slope is tested
# least and largest number of draws at each level, if the errors decide
MIN_DRAWS = 20
MAX_DRAWS = 200
NEVER = np.iinfo(np.int64).max
MAX_UNCORRECTED_SHARE = (
    # share of possible leakage that injection may fail to show; the estimate keeps that share of
    # the naive bias
    0.25
)


@dataclass(frozen=True)
class Injection:
    """The design of an injection of leakage: the mechanism, the levels, and the draws.

    Parameters
    ----------
    mechanism : {"record", "split"}, default "record"
        "record" injects single records, "split" halves of clusters.
    num_levels : int, default 12
        The number of levels.
    num_boot : int, optional
        The number of draws at each level. By default 20 to 200, until the Monte-Carlo error of the
        estimate is at most `tolerance` times its data error.
    train_size : int, optional
        The number n′ of records trained on. By default as many as T̂ has, less a twentieth, which
        are scored.
    top : int, optional
        The most that is injected: records or, for "split", clusters. By default half of V̂, at most
        n′ (all of its clusters).
    tolerance : float, default 1/3
        The tolerance of the Monte-Carlo error. A third makes an interval a twentieth wider.

    Raises
    ------
    ValueError
        If a value is out of range.

    See Also
    --------
    leakage_corrected : The correction that uses it.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.leakage.Injection(num_levels=6, num_boot=20).draws
    (20, 20)
    """

    mechanism: Literal["record", "split"] = "record"
    num_levels: int = 12
    num_boot: int | None = None
    train_size: int | None = None
    top: int | None = None
    tolerance: float = 1 / 3

    def __post_init__(self) -> None:
        if self.mechanism not in ("record", "split"):
            raise ValueError(
                f"Injection: mechanism must be 'record' or 'split'; got {self.mechanism!r}."
            )
        for name, low in (("num_levels", 4), ("num_boot", 2), ("train_size", 2), ("top", 1)):
            value = getattr(self, name)
            if value is not None:
                count(f"Injection: {name}", value, low)
        if not 0 < self.tolerance < np.inf:
            raise ValueError(
                f"Injection: tolerance must be a number above 0; got {self.tolerance}."
            )

    @property
    def draws(self) -> TwoCounts:
        """The least and the largest number of draws at each level."""
        if self.num_boot is None:
            return MIN_DRAWS, MAX_DRAWS
        return self.num_boot, self.num_boot


class Draws(NamedTuple):
    """A batch of draws of one fold, at all levels.

    `train` are rows of the data; `score_mask` marks the scored rows of V̂; `outside` are rows of T̂
    that no level trains on.
    """

    train: Int[ndarray, "draws levels size"]  # type: ignore[assignment]
    score_mask: Bool[ndarray, "draws levels test"]  # type: ignore[assignment]
    outside: Int[ndarray, "draws outside"]  # type: ignore[assignment]


@record
class FoldInjection:
    """The injection into one fold.

    `levels` in units of the mechanism, `size` records trained on, `num_left` that never are.
    """

    fold: LeakageFold
    number: int
    mechanism: str
    levels: IntArray
    size: int
    num_left: int
    seed: int

    @property
    def num_test_units(self) -> int:
        """The number of units of V̂: records, or clusters that have halves."""
        return count_test_units(self.fold, self.mechanism)

    @property
    def units(self) -> int:
        """The number of units that could leak.

        Records trained on, or clusters of V̂ that have halves.
        """
        if self.mechanism == "record":
            return self.size
        return self.num_test_units

    def draw(self, start: int, stop: int) -> Draws:
        """Return draws number `start` to `stop`.

        Each depends on the seed, the fold and its number only.
        """
        train = self.fold.train
        test = self.fold.test
        train_orders = []
        orders = []
        counts = []
        for r in range(start, stop):
            rng = default_rng([self.seed, self.number, r])
            train_orders.append(rng.permutation(train)[: self.size + self.num_left])
            if self.mechanism == "record":
                order = rng.permutation(len(test))
                count = self.levels
            else:  # halves of clusters in random order; a single record has no half
                clusters = members_by_label(level_numbers(self.fold.clusters[test]))
                members = [rows for rows in clusters if len(rows) > 1]
                halves = [
                    rng.permutation(members[k])[: len(members[k]) // 2]
                    for k in rng.permutation(len(members))
                ]
                order = np.concatenate(halves)
                count = np.cumsum([0, *map(len, halves)])[self.levels]
            orders.append(order)
            counts.append(count)
        # [draws, ·], [draws, levels]
        from_train = np.array(train_orders)
        injected = np.array(counts)
        place = np.full((len(orders), len(test)), NEVER)
        num_queued = injected.max(initial=1)
        queue = np.zeros((len(orders), max(num_queued, 1)), int)
        for b, order in enumerate(orders):
            place[b, order] = np.arange(len(order))
            queue[b, : min(num_queued, len(order))] = test[order[:num_queued]]
        slot = np.arange(self.size)
        is_injected = slot >= self.size - injected[..., None]  # the last slots are for V̂
        backwards = np.broadcast_to(
            np.minimum(self.size - 1 - slot, queue.shape[1] - 1), is_injected.shape[::2]
        )
        trained = np.where(
            is_injected,
            np.take_along_axis(queue, backwards, 1)[:, None],
            from_train[:, None, : self.size],
        )
        return Draws(trained, place[:, None] >= injected[..., None], from_train[:, self.size :])


def plan_injection(folds: Folds, injection: Injection, seed: int) -> list[FoldInjection]:
    """Plan levels and sizes for every fold, with levels at the same shares of each fold's maximum.

    Raises ValueError if V̂ cannot supply the top level, or T̂ the training set.
    """
    tops = []
    sizes = []
    for k, fold in enumerate(folds):
        num_train = len(fold.train)
        num_test = len(fold.test)
        # 0.05: share of T̂ that is left out at every level if the training set is as large as
        # possible
        spare = max(2, round(0.05 * num_train))
        if injection.train_size is None:
            size = num_train - spare
        else:
            size = int(injection.train_size)
        if size > num_train - 1 or size < 2:
            raise ValueError(
                f"Injection: train_size = {size} needs at least {size + 1} records to train on; fold {k} has {num_train}."
            )
        max_top = num_test - 1
        min_top = 3
        unit_name = "records"
        top = min(num_test // 2, size)
        if injection.mechanism == "split":
            max_top = top = count_test_units(fold, "split")
            min_top = 2
            unit_name = "clusters of two records or more"
            if np.sum(np.bincount(fold.clusters[fold.test]) // 2) >= size:
                raise ValueError(
                    f"Injection: half of V̂ does not fit into the {size} records that fold {k} trains on."
                )
        if injection.top is not None:
            top = injection.top
        if top > max_top or top > size or max_top < min_top:
            raise ValueError(
                f"Injection: V̂ is too small for the top level: fold {k} tests on {num_test} records and trains on {size}; "
                f"{max(top, min_top)} {unit_name} to inject, of {max(max_top, 0)}. Leave more out at once (fewer folds), or lower top=."
            )
        tops.append(int(top))
        sizes.append((size, min(num_train - size, 2 * num_test)))
    # levels as shares of the top one: 0 and a geometric grid with the level of the slope test; even
    # for clusters
    top = min(tops)
    number = min(injection.num_levels, top + 1)
    grid = np.round(np.linspace(0, top, number))
    if injection.mechanism == "record" and number <= top:
        slope = min(round(SLOPE_SHARE * min(len(fold.test) for fold in folds)), top)
        for points in range(number - 1, 8 * number):  # several may round to one level
            grid = np.unique(np.round(np.geomspace(max(1, top / 100), top, points)))
            if len(grid) >= number - 1:
                break
        if slope and not np.any(grid == slope):
            grid[np.argmin(np.abs(np.log(grid[:-1] / slope)))] = slope
    shares = np.unique(np.append(grid, 0)) / top
    levels = [np.round(shares * fold_top).astype(int) for fold_top in tops]
    return [
        FoldInjection(fold, k, injection.mechanism, levels[k], *sizes[k], seed)
        for k, fold in enumerate(folds)
    ]


def count_test_units(fold: LeakageFold, mechanism: str) -> int:
    """Count what a mechanism moves of V̂: its records, or its clusters of two records or more."""
    if mechanism == "record":
        return len(fold.test)
    return int(np.sum(np.bincount(fold.clusters[fold.test]) > 1))


def slope_level(plan: list[FoldInjection]) -> int:
    """Return the level that injects closest to a tenth of V̂."""
    return 1 + int(np.argmin(np.abs(plan[0].levels[1:] - SLOPE_SHARE * plan[0].num_test_units)))


def make_folds(
    caller: str, X, y: NDArray, groups: ArrayLike, cv, seed: int
) -> tuple[Folds, NDArray]:
    """Return folds of whole clusters, and the names of the clusters. `cv` is a number of folds, a
    splitter or pairs of rows.

    For a number of folds, clusters are distributed by size, and those of one size at random: in the
    order of their names both halves of an entity would often share a fold.
    """
    from sklearn.model_selection import GroupKFold, check_cv

    labels = np.asarray(groups)
    if labels.shape != (len(y),):
        raise ValueError(
            f"{caller}: groups must have one label a record, shape ({len(y)},); got {labels.shape}."
        )
    if pd.isna(labels).any():
        raise ValueError(
            f"{caller}: groups contain NaN; give those records a label of their own, or drop them."
        )
    if labels.dtype.kind == "O":
        labels = labels.astype(str)
    names, codes = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"{caller}: at least two clusters are needed; all labels are equal.")
    split_labels = codes
    if cv is None or isinstance(cv, int):
        count = min(5, len(names)) if cv is None else cv
        if not 2 <= count <= len(names):
            raise ValueError(f"{caller}: cv must be from 2 to the {len(names)} clusters; got {cv}.")
        cv = GroupKFold(count)
        split_labels = default_rng([seed, 4]).permutation(len(names))[codes]
    folds = []
    for k, pair in enumerate(check_cv(cv).split(X, y, split_labels)):
        train, test = (
            np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows, int)
            for rows in pair
        )
        on_both_sides = np.intersect1d(codes[train], codes[test])
        if on_both_sides.size:
            raise ValueError(
                f"{caller}: fold {k} has cluster {names[on_both_sides[0]]!r} on both sides; leave whole clusters out."
            )
        folds.append(LeakageFold(train, test, codes.astype(int)))
    if not folds:
        raise ValueError(f"{caller}: cv yielded no fold.")
    return folds, names


class InjectedSplits:
    """A scikit-learn splitter of grouped folds into whose training sets a share of the test set is
    injected.

    As many records of T̂ are left out, and injected records are in no test set. A score at shares 0
    and 0.1 shows whether a learner exploits leakage; the draws at all shares are common.

    Parameters
    ----------
    share : float
        The share of V̂ that is injected, in [0, 1).
    cv : int, splitter or pairs, optional
        The folds.
    mechanism : {"record", "split"}, default "record"
        "record" injects that share of V̂'s records, "split" halves of that share of its clusters.
    num_repeats : int, default 1
        How often each fold is drawn.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> splits = lo.leakage.InjectedSplits(0.2, cv=3)
    >>> train, test = next(
    ...     splits.split(np.zeros((30, 1)), np.arange(30.0), np.repeat(np.arange(15), 2))
    ... )
    >>> (
    ...     len(set(train) & set(test)),
    ...     splits.get_n_splits(np.zeros((30, 1)), np.arange(30.0), np.repeat(np.arange(15), 2)),
    ... )
    (0, 3)
    """

    @conventional
    def __init__(
        self,
        share: float,
        cv: Any = None,
        *,
        mechanism: str = "record",
        num_repeats: int = 1,
        rng: Rng = 0,
    ):
        if not 0 <= share < 1:
            raise ValueError(f"InjectedSplits: share must lie in [0, 1); got {share}.")
        Injection(mechanism=mechanism)  # type: ignore[arg-type]
        count("InjectedSplits: num_repeats", num_repeats, 1)
        self.share = share
        self.cv = cv
        self.mechanism = mechanism
        self.num_repeats = num_repeats
        self.rng = count("InjectedSplits: rng", rng, 0)

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the rows to train on and to test on.

        Parameters
        ----------
        X, y : array_like
            The data.
        groups : array_like
            The cluster of each record.

        Yields
        ------
        train, test : ndarray of int
            The rows.

        Raises
        ------
        ValueError
            If `groups` is missing.
        """
        if groups is None:
            raise ValueError("InjectedSplits: give groups=, the cluster of each record.")
        count = X.shape[0] if hasattr(X, "shape") else len(X)
        if y is None:
            target = np.zeros(count)
        else:
            target = np.asarray(y)
        folds, _ = make_folds("InjectedSplits", X, target, groups, self.cv, self.rng)
        for k, fold in enumerate(folds):
            level = np.array([round(self.share * count_test_units(fold, self.mechanism))])
            if self.mechanism == "record" and level[0] >= min(len(fold.test), len(fold.train)):
                raise ValueError(
                    f"InjectedSplits: share = {self.share} leaves fold {k} nothing to train or to test on."
                )
            draws = FoldInjection(fold, k, self.mechanism, level, len(fold.train), 0, self.rng)
            for r in range(self.num_repeats):
                sample = draws.draw(r, r + 1)
                yield sample.train[0, 0], fold.test[sample.score_mask[0, 0]]

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of pairs that `split` yields.

        Parameters
        ----------
        X, y, groups : array_like
            As in `split`.

        Returns
        -------
        int
            The number.
        """
        if isinstance(self.cv, int):
            return self.cv * self.num_repeats
        if hasattr(self.cv, "get_n_splits"):
            return self.cv.get_n_splits(X, y, groups) * self.num_repeats
        if groups is None:
            raise ValueError("InjectedSplits: give groups=, the cluster of each record.")
        return min(5, len(np.unique(np.asarray(groups)))) * self.num_repeats


def unshown(folds: Folds, leakage: Leakage) -> float:
    """Compute the share of possible leakage on tested records that have no mate among the tested
    records.

    Leakage is possible with the probability of a mate in training if pairs are known, else equally
    for every tested record. A mate is a likely pair or, without pairs, a record of the same cluster
    as filed.
    """
    hidden = 0.0
    exposed = 0.0
    for fold in folds:
        exposure = np.ones(len(fold.test))
        has_mate = np.bincount(fold.clusters[fold.test])[fold.clusters[fold.test]] > 1
        if isinstance(leakage, DrawnLeakage) and leakage.knows_pairs:
            exposure = leakage.mates(fold.train, fold.test)
            tested, mated = np.zeros((2, len(fold.clusters)), bool)
            tested[fold.test] = True
            # 0.5: probability from which a pair counts as mates
            mates_tested = (
                (leakage.probability >= 0.5) & tested[leakage.left] & tested[leakage.right]
            )
            mated[leakage.left[mates_tested]] = mated[leakage.right[mates_tested]] = True
            has_mate = mated[fold.test]
        hidden += float(exposure @ ~has_mate)
        exposed += float(exposure.sum())
    return hidden / exposed if exposed else 0.0


def refusal(share: float) -> str:
    """Explain why there is no estimate; empty if there may be one."""
    if share <= MAX_UNCORRECTED_SHARE:
        return ""
    return (
        f"{share:.0%} of what may leak falls on tested records with no mate left beside them, as of clusters of one record or "
        "of copies across the split: what leaks there is not what is injected, and no injection shows it. Drop the training "
        "records that may be mates of tested ones, or file likely mates together, and compare"
    )
