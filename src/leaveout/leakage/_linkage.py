"""What is known of the links between records: pairs with the probability that they match, or rates; one object.

Everything that is said of a linkage is said by draws of whole partitions of the records (`_partitions`): whether a tested
record has a mate among the training ones, how many clusters are split or merged, what precision and recall are.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from .._printed import Printed
from .._read import codes
from ._binomial import check_probabilities
from ._models import Fold, RecordLeakage, Shares
from ._partitions import components, draw_partitions
from ._tables import read_pairs, read_two_sided

EVEN = 0.5  # the probability from which a pair is linked, where nothing else is said
DRAWS, LEAST, HELD = 100, 20, 20_000_000  # partitions behind every number: so many, no fewer, no more labels in all
TAILS = (0.025, 0.975)


@dataclass(frozen=True, eq=False, repr=False)
class Linkage(Printed):
    """What is known of which records are of one entity. Made by `from_pairs`, `from_duplicates`, `from_rates`.

    `left < right`, `probability`: `[pairs]`, rows and the probability that they match, each pair once; `num_rows` None where
    only rates are known. It is a leakage model: `leakage_corrected(leakage=linkage)` takes it.

    The law of partitions: weight `Π p/(1 − p)` over the listed pairs inside one cluster, for partitions whose clusters hang
    together by listed pairs. A pair on no cycle of pairs keeps its probability exactly; a pair not listed says nothing, or
    `unlisted` is its probability.
    """

    num_rows: int | None
    left: Int[np.ndarray, " pairs"] = field(default_factory=lambda: np.zeros(0, np.int64))
    right: Int[np.ndarray, " pairs"] = field(default_factory=lambda: np.zeros(0, np.int64))
    probability: Float[np.ndarray, " pairs"] = field(default_factory=lambda: np.zeros(0))
    unlisted: float | None = None
    grows: bool = False  # rows beyond the last that a pair names may be there
    given: tuple[float, float] | None = None  # precision and recall
    mechanism = "record"

    def __post_init__(self) -> None:
        if self.unlisted is not None and not 0 < self.unlisted < 1:
            raise ValueError(f"Linkage: unlisted must be a probability between 0 and 1; got {self.unlisted}.")

    @staticmethod
    def from_pairs(
        pairs: Any, ids: Any = None, probability: str = "match_probability", *, unlisted: float | None = None
    ) -> "Linkage":
        """From pairs of records and the probabilities that they match.

        `pairs`: a frame (pandas, Polars, Arrow) as Splink makes it, with `unique_id_l`, `unique_id_r` (else `left`, `right`,
        else its first two columns) and the column `probability`, or `match_weight`, log₂ of the odds; a Series or frame by
        a MultiIndex of pairs, as recordlinkage has; dedupe's `((id, id), score)`; rows or arrays of two names and a
        probability. `ids` are the names of all rows: one a row, a frame whose index they are, their number, or None: pairs
        name rows by number. By two labels where the pairs have `source_dataset_l` and `source_dataset_r`.

        Give the pairs inside the clusters as filed too: what no pair says is no match. Raises ValueError on names that no row
        has, on probabilities outside [0, 1], and on a pair that is there twice with different ones.
        """
        found, rows = read_pairs("Linkage.from_pairs", pairs, ids, probability)
        return Linkage(rows, *found, unlisted=unlisted, grows=ids is None)

    @staticmethod
    def from_duplicates(
        pairs: Any, ids: Any = None, *, sides: tuple[int, int] | None = None, probability: str = "match_probability"
    ) -> "Linkage":
        """From pairs of rows that are copies of one another, certainly unless the table has probabilities.

        `pairs` and `ids` as in `from_pairs`; or, with `sides=(rows to train on, rows to test on)`, left names a row of the
        training data and right one of the test data, each from 0, and the rows are numbered training data first.
        """
        caller = "Linkage.from_duplicates"
        if sides is None:
            found, rows = read_pairs(caller, pairs, ids, probability, default=1.0)
            return Linkage(rows, *found, grows=ids is None)
        return Linkage(sum(sides), *read_two_sided(caller, pairs, sides, probability))

    @staticmethod
    def from_rates(precision: float, recall: float) -> "Linkage":
        """From precision and recall of pairs alone, records being mislinked one by one (`RecordLeakage.from_pairwise`)."""
        RecordLeakage.from_pairwise(precision, recall)
        return Linkage(None, given=(float(precision), float(recall)))

    @property
    def knows_pairs(self) -> bool:
        return self.num_rows is not None

    def sized(self, num_rows: int) -> "Linkage":
        """The same for data of so many rows; ValueError where it names others."""
        if self.num_rows in (None, num_rows):
            return self
        if self.grows and num_rows >= self.num_rows:  # type: ignore[operator]
            return replace(self, num_rows=num_rows)
        raise ValueError(
            f"Linkage: it is about {self.num_rows} rows, the data have {num_rows}; give ids=, the names of all rows."
        )

    def groups(self, threshold: float = EVEN) -> Int[np.ndarray, " rows"]:
        """Clusters, numbered by first appearance: what pairs of at least that probability connect."""
        rows = self._pairs_needed("groups")
        linked = self.probability >= threshold
        return components(rows, self.left[linked], self.right[linked])

    def partitions(self, num: int, seed: int = 0) -> Int[np.ndarray, "num rows"]:
        """Drawn clusterings, each numbered by first appearance."""
        self._pairs_needed("partitions")
        if int(num) != num or num < 1:
            raise ValueError(f"Linkage.partitions: num must be a whole number, 1 or more; got {num}.")
        if seed == 0 and num <= self._many:
            return self._drawn[: int(num)].astype(np.int64)
        return self._draw(int(num), seed)

    def _draw(self, num: int, seed: int) -> Int[np.ndarray, "num rows"]:
        rng = np.random.default_rng([seed, 5])
        return draw_partitions(self._pairs_needed("draws"), self.left, self.right, self.probability, num, rng, self.unlisted)

    def mates(self, train: ArrayLike, test: ArrayLike) -> Float[np.ndarray, " test"]:
        """Of each tested row, the probability that a record of its entity is among the training rows: the share of draws."""
        rows = self._pairs_needed("mates")
        train, test = _rows("mates", "train", train, rows), _rows("mates", "test", test, rows)
        if np.isin(train, test).any():
            raise ValueError("Linkage.mates: a row is both trained and tested on.")
        out = np.zeros(len(test))
        for label in self._drawn:
            there = np.zeros(rows, bool)
            there[label[train]] = True
            out += there[label[test]]
        return out / len(self._drawn)

    def candidates(self, test: ArrayLike, cut: float) -> Bool[np.ndarray, " rows"]:
        """Rows that are a pair, of probability `cut` or more, with some tested row."""
        rows = self._pairs_needed("candidates")
        tested, out = np.zeros(rows, bool), np.zeros(rows, bool)
        tested[_rows("candidates", "test", test, rows)] = True
        left, right = (end[self.probability >= cut] for end in (self.left, self.right))
        out[left[tested[right]]] = True
        out[right[tested[left]]] = True
        return out

    def shares(self, folds: list[Fold]) -> Shares:
        """The expected shares, over draws: of an entity on both sides of a fold the fewer records are misplaced, of halves
        either; `exposed`, the tested records with a mate in training."""
        if self.given is not None:
            return RecordLeakage.from_pairwise(*self.given).shares(folds)
        each = self.shares_drawn(folds)
        shares = Shares(*(np.mean(values, axis=0) for values in zip(*each, strict=True)))
        check_probabilities("Linkage.shares", shares.p_train, shares.p_test)
        return shares

    def shares_drawn(self, folds: list[Fold]) -> list[Shares]:
        """The shares under each of the drawn partitions: what they are not known to."""
        linkage = self.sized(len(folds[0].clusters))
        return [_shares(label, folds) for label in linkage._drawn]

    @functools.cached_property
    def _drawn(self) -> Int[np.ndarray, "draws rows"]:
        return self._draw(self._many, 0).astype(np.int32)

    @property
    def _many(self) -> int:
        return int(np.clip(HELD // max(self._pairs_needed("draws"), 1), LEAST, DRAWS))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}

    def _pairs_needed(self, asked: str) -> int:
        if self.num_rows is None:
            raise ValueError(f"Linkage.{asked}: only rates are known, no pairs; make it by from_pairs.")
        return self.num_rows

    @functools.cached_property
    def rates(self) -> pd.DataFrame:
        """Precision and recall of pairs: `estimate`, `low`, `high`; of `groups()` against the drawn partitions."""
        if self.given is not None:
            return pd.DataFrame(
                {"estimate": self.given, "low": np.nan, "high": np.nan}, index=pd.Index(["precision", "recall"], name="rate")
            )
        filed = self.groups()
        found = np.array([_rates(filed, label) for label in self._drawn])
        low, high = np.quantile(found, TAILS, axis=0)
        table = {"estimate": found.mean(0), "low": low, "high": high}
        return pd.DataFrame(table, index=pd.Index(["precision", "recall"], name="rate"))

    def summary(self, groups: ArrayLike | None = None) -> pd.DataFrame:
        """Expected splits, merges and orphans of the clusters as filed (default `groups()`), by the size of the cluster.

        *splits*: clusters of two records or more that have a mate filed elsewhere; *orphans*: records filed alone that have
        one; *merges*: clusters of several entities. Each with `_low` and `_high`, 0.025 and 0.975 of the draws.
        """
        filed = self._filed(groups)
        size = np.bincount(filed)
        last = np.where(size == 1, 1, 2 ** np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64))
        classes, place = np.unique(last, return_inverse=True)
        counts = np.array([_errors(filed, label, place, len(classes)) for label in self._drawn])  # [draws, 3, classes]
        out = {"clusters": np.bincount(place), "records": np.bincount(place, size).astype(int)}
        for k, name in enumerate(("splits", "merges", "orphans")):
            low, high = np.quantile(counts[:, k], TAILS, axis=0)
            out |= {name: counts[:, k].mean(0), f"{name}_low": low, f"{name}_high": high}
        names = [str(c) if c < 3 else f"{c // 2 + 1}-{c}" for c in classes]
        return pd.DataFrame(out, index=pd.Index(names, name="size"))

    def _filed(self, groups: ArrayLike | None) -> Int[np.ndarray, " rows"]:
        rows = self._pairs_needed("summary")
        filed = self.groups() if groups is None else codes("Linkage.summary", "groups", groups)[0]
        if len(filed) != rows:
            raise ValueError(f"Linkage.summary: groups must have one label for each of {rows} rows; got {len(filed)}.")
        return filed

    def _lines(self) -> list[tuple[str, str]]:
        if self.given is not None:
            rates = " and ".join(f"{name} {value:.4g}" for name, value in zip(("precision", "recall"), self.given, strict=True))
            return [("linkage", f"{rates} of pairs, as given; no pairs")]
        filed, rows = self.groups(), self.num_rows
        linked = int((self.probability >= EVEN).sum())
        entities = np.array([label.max(initial=-1) + 1 for label in self._drawn])
        table = self.summary()
        lines = [
            ("linkage", f"{rows:,} records, {len(self.left):,} pairs, {linked:,} of them as likely as not or more"),
            ("entities", f"{_interval(entities)} expected; {filed.max(initial=-1) + 1:,} clusters by those pairs"),
        ]
        for size, row in table.iterrows():
            said = ", ".join(
                f"{row[name]:.4g} {name} ({row[name + '_low']:.4g} to {row[name + '_high']:.4g})"
                for name in (("orphans",) if size == "1" else ("splits", "merges"))
            )
            lines.append((f"of {size}", f"{row['clusters']:,.0f} clusters: {said}"))
        for name, rate in self.rates.iterrows():
            lines.append((str(name), f"{rate['estimate']:.4f} ({rate['low']:.4f} to {rate['high']:.4f}) of these clusters"))
        return [
            *lines,
            ("intervals", f"0.95, over {len(self._drawn)} drawn partitions; the probabilities are taken as they are"),
        ]


def _interval(values: NDArray) -> str:
    low, high = np.quantile(values, TAILS)
    return f"{values.mean():,.1f} ({low:,.0f} to {high:,.0f})"


def _rows(caller: str, name: str, value: ArrayLike, rows: int) -> Int[np.ndarray, " some"]:
    """Row numbers, from numbers or a mask."""
    array = np.asarray(value)
    if array.dtype == bool and array.shape == (rows,):
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= rows)):
        raise ValueError(f"Linkage.{caller}: {name} must be row numbers from 0 to {rows - 1}, or {rows} truths.")
    return array.astype(np.int64)


def _shares(label: NDArray[np.integer], folds: list[Fold]) -> Shares:
    p_train, p_test, exposed = np.zeros((3, len(folds)))
    entities = int(label.max(initial=-1)) + 1
    for k, fold in enumerate(folds):
        there, here = (np.bincount(label[rows], minlength=entities) for rows in (fold.train, fold.test))
        fewer = np.where(there == here, 0.5, 1.0) * np.minimum(there, here)
        p_train[k] = fewer[there <= here].sum() / len(fold.train)
        p_test[k] = fewer[here <= there].sum() / len(fold.test)
        exposed[k] = here[there > 0].sum() / len(fold.test)
    return Shares(p_train, p_test, exposed)


def _cells(filed: NDArray[np.integer], label: NDArray[np.integer]) -> tuple[NDArray, NDArray, NDArray]:
    """Clusters as filed met by entities: which, which, and how many records."""
    entities = int(label.max(initial=-1)) + 1
    key, count = np.unique(filed.astype(np.int64) * entities + label, return_counts=True)
    return key // max(entities, 1), key % max(entities, 1), count


def _rates(filed: NDArray[np.integer], label: NDArray[np.integer]) -> tuple[float, float]:
    """Precision and recall of pairs of the filed clusters against entities; one where there is no pair to be wrong about."""
    linked, true, both = (
        np.sum(count * (count - 1.0)) for count in (np.bincount(filed), np.bincount(label), _cells(filed, label)[2])
    )
    return (both / linked if linked else 1.0), (both / true if true else 1.0)


def _errors(
    filed: NDArray[np.integer], label: NDArray[np.integer], place: NDArray, classes: int
) -> Float[np.ndarray, "3 classes"]:
    """Splits, merges and orphans by class of size; `place`, the class of each filed cluster."""
    cluster, entity, _ = _cells(filed, label)
    size = np.bincount(filed)
    elsewhere = np.zeros(len(size), bool)
    elsewhere[cluster[np.bincount(entity)[entity] > 1]] = True
    merged = np.bincount(cluster, minlength=len(size)) > 1
    flags = (elsewhere & (size > 1), merged, elsewhere & (size == 1))
    return np.array([np.bincount(place[flag], minlength=classes) for flag in flags], float)
