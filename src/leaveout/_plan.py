"""Plans: which units weigh what in each refit, and which of them are scored.

A plan is a matrix of weights `W[refits, units]`, kept as its departures from one in compressed
rows: refit `k` has `W[k, index[j]] = weight[j]` for `indptr[k] <= j < indptr[k + 1]`, and ones
elsewhere. Leave-one-out of n units is O(n) numbers. Every scheme is a function that returns a `Plan`.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, ParamSpec

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ._graph import distances, read_edges
from ._printed import Printed
from ._read import codes, count, flags, generator, index_of, matched, numbers, places, share, whole

CAPACITY = 2**21  # numbers in all arrays of a batch of refits (16 MiB)
LONG = 2**11  # steps, units, refits up to which padding, an eighth of the work on average, costs less than compiling anew


class Rows(NamedTuple):
    """A batch of refits, padded to one width: `index == num_units` marks padding, whose weight is one.

    A width of `num_units` means every unit in its order: folds that touch many units are written out like that,
    so that nothing need be gathered or scattered.
    `scale` is the standard error of the mean no-update loss, in which tolerances are stated, and
    `num_refits` the number of refits of the whole plan, by which a strategy knows what it can afford.
    """

    index: NDArray[np.int64]  # type: ignore[assignment]  # [refits, width]; hides tuple.index
    weight: NDArray[np.float64]  # [refits, width]
    held: NDArray[np.bool_]  # [refits, width]
    scale: NDArray[np.float64]  # []
    num_refits: NDArray[np.int64]  # []

    def take(self, lanes: NDArray[np.int64]) -> "Rows":
        """Some of the refits."""
        return self._replace(index=self.index[lanes], weight=self.weight[lanes], held=self.held[lanes])

    @staticmethod
    def of_all(num_units: int, num_refits: int) -> "Rows":
        """Every unit held at weight one, as one refit: what the fit itself says of each."""
        index, one = np.arange(num_units)[None], np.ones((1, num_units))
        return Rows(index, one, one > 0, np.zeros(()), np.asarray(num_refits))


class Batch(NamedTuple):
    """Some refits of a plan: their numbers, where their entries stand in `plan.index` (-1 for padding), and the rows."""

    refits: NDArray[np.int64]
    place: NDArray[np.int64]
    rows: Rows

    def take(self, lanes: NDArray[np.int64]) -> "Batch":
        """Some of them."""
        return Batch(self.refits[lanes], self.place[lanes], self.rows.take(lanes))


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Printed):
    """A matrix of weights over `num_units` units, one row a refit, stored as departures from one.

    `held` marks the entries that are scored (usually those of weight 0; a buffer is dropped but not
    scored). `clusters`, one label a unit, says which units are dependent; `serial` that neighbours are
    (None: that nobody knows), by blocks along their order, or those that `blocks` labels. These three are only used for
    standard errors. `names`, the labels of the units where the plan was made from something labelled, are matched with the
    fit's. `call` is how it was made, where a function of ours did.
    """

    indptr: NDArray[np.int64]
    index: NDArray[np.int64]
    weight: NDArray[np.float64]
    held: NDArray[np.bool_]
    num_units: int
    clusters: NDArray[np.int64] | None = None
    serial: bool | None = False
    blocks: NDArray[np.int64] | None = None
    names: pd.Index | None = None
    call: str = ""

    def __post_init__(self) -> None:
        weight = np.asarray(numbers("Plan", "weight", self.weight), np.float64)
        read = {"indptr": whole("Plan", "indptr", self.indptr), "index": whole("Plan", "index", self.index), "weight": weight}
        for name, array in {**read, "held": flags("Plan", "held", self.held)}.items():
            object.__setattr__(self, name, np.ascontiguousarray(array))
        object.__setattr__(self, "num_units", count("Plan: num_units", self.num_units, 1))
        self._check_shape()
        self._check_entries()

    def _check_shape(self) -> None:
        if len(self.indptr) < 2 or self.indptr[0] != 0 or self.indptr[-1] != len(self.index):
            raise ValueError(f"Plan: indptr must rise from 0 to len(index) = {len(self.index)}; got {self.indptr[[0, -1]]}.")
        if not len(self.index) == len(self.weight) == len(self.held):
            raise ValueError("Plan: index, weight and held must have one length.")
        for name in ("clusters", "blocks", "names"):
            given = getattr(self, name)
            if given is not None and len(given) != self.num_units:
                raise ValueError(f"Plan: {name} must be one label a unit; got {len(given)} for {self.num_units} units.")

    def _check_entries(self) -> None:
        if np.any((self.index < 0) | (self.index >= self.num_units)):
            raise ValueError(f"Plan: unit numbers must lie in [0, {self.num_units}).")
        if not np.all(np.isfinite(self.weight)) or np.any(self.weight < 0):
            raise ValueError("Plan: weights must be finite and not negative.")
        if (seen := np.flatnonzero(self.held & (self.weight > 0))).size:
            k = seen[0]
            raise ValueError(
                f"Plan: refit {self.refit[k]} scores unit {self.index[k]}, which has weight {self.weight[k]:g} in it: its loss "
                "would not be held out. Give it weight 0, or held=False."
            )
        entry = self.refit * self.num_units + self.index
        if np.any(np.diff(entry) <= 0):  # sorted rows, the usual case, need no sort to be checked
            entry = np.sort(entry)
        if (twice := np.flatnonzero(np.diff(entry) == 0)).size:
            raise ValueError(f"Plan: refit {entry[twice[0]] // self.num_units} lists a unit twice.")
        every = np.bincount(self.refit, self.weight == 0, self.num_refits) == self.num_units
        nothing = np.diff(self.indptr) == 0
        for wrong, what in ((nothing, "leave nothing out; drop these empty folds"), (every, "leave out every unit")):
            if wrong.any():
                raise ValueError(f"Plan: refits {_some(np.flatnonzero(wrong))} {what}.")

    @property
    def num_refits(self) -> int:
        return len(self.indptr) - 1

    def __len__(self) -> int:
        return self.num_refits

    @functools.cached_property
    def refit(self) -> NDArray[np.int64]:
        """The refit that each entry belongs to, `[entries]`."""
        return np.repeat(np.arange(self.num_refits), np.diff(self.indptr))

    def matched(self, caller: str, names: pd.Index | None) -> "Plan":
        """The plan over units in the order of these labels. Raises ValueError where its own are others."""
        if names is None or self.names is None:
            return self
        order = places(caller, "plan", self.names, "fit", names)
        if order is None:
            return self.known(names=names)
        clusters, blocks = (None if labels is None else labels[order] for labels in (self.clusters, self.blocks))
        return replace(self, index=np.argsort(order)[self.index], clusters=clusters, blocks=blocks, names=names)

    def only(self, units: NDArray[np.int64]) -> "Plan":
        """The plan over some of its units, in this order: the others leave every refit. Refits that then leave nothing out, or
        score nothing where they did, leave the plan."""
        place = np.full(self.num_units, -1)
        place[units] = np.arange(len(units))
        kept = place[self.index] >= 0
        count = lambda entries: np.bincount(self.refit[entries], minlength=self.num_refits)
        refits = np.flatnonzero((count(kept) > 0) & ((count(kept & self.held) > 0) | (count(self.held) == 0)))
        kept &= np.isin(self.refit, refits)
        clusters, blocks = (None if part is None else part[units] for part in (self.clusters, self.blocks))
        return replace(
            self,
            indptr=np.r_[0, np.cumsum(count(kept)[refits])],
            index=place[self.index[kept]],
            weight=self.weight[kept],
            held=self.held[kept],
            num_units=len(units),
            clusters=clusters,
            blocks=blocks,
            names=None if self.names is None else self.names[units],
        )

    def known(self, **facts: Any) -> "Plan":
        """The same refits with less that is `held`, or other `serial`, `blocks` and `names`: nothing to check again."""
        plan = copy.copy(self)
        vars(plan).update(facts)
        return plan

    @property
    def widths(self) -> str:
        """How many units each refit leaves out, or weighs otherwise, in words."""
        low, high = np.diff(self.indptr).min(), np.diff(self.indptr).max()
        return f"{low} unit{'s' if low != 1 else ''}" if low == high else f"{low}–{high} units"

    def _lines(self) -> list[tuple[str, str]]:
        times = np.bincount(self.index[self.held], minlength=self.num_units)
        often = f"{times.min()}" if times.min() == times.max() else f"{times.min()}–{times.max()}"
        dropped, most = np.sum(~self.held & (self.weight == 0)) / self.num_refits, self.weight.max()
        given = {"groups": self.clusters, "blocks of neighbours": self.blocks}
        apart = [f"{len(np.unique(labels))} {name}" for name, labels in given.items() if labels is not None]
        known = "not known" if self.serial is None else "blocks along their order" if self.serial else "every unit by itself"
        lines = [
            ("plan", self.call or "of its own weights"),
            ("units", f"{self.num_units}" + ("" if self.names is None else f", {self.names[0]} to {self.names[-1]}")),
            ("refits", f"{self.num_refits} of {self.widths} each"),
            ("scored", f"every unit {often.replace('–', ' to ')} time{'' if often == '1' else 's'}"),
            ("dropped", f"{dropped:.3g} units a refit that are not scored" if dropped else ""),
            ("weights", f"up to {most:g} of units that are seen more than once" if most > 1 else ""),
            ("independent", ", ".join(apart) or known),
        ]
        return [(name, text) for name, text in lines if text]

    def __repr__(self) -> str:
        made = self.call or "of its own weights"
        return f"Plan({made}: {self.num_refits} refits of {self.widths} each, {self.num_units} units)"

    def matrix(self) -> NDArray[np.float64]:
        """The weights, dense, `[refits, units]`."""
        dense = np.ones((self.num_refits, self.num_units))
        dense[self.refit, self.index] = self.weight
        return dense

    def batches(
        self,
        capacity: int,
        cost_per_entry: int,
        cost_per_refit: int,
        least: int = 1,
        uniform: bool = False,
        whole: bool = False,
    ) -> Iterator[Batch]:
        """Refits of like width together, or all of one, or all as wide as there are units: at most `capacity` numbers a batch,
        in `least` batches or more."""
        widths = np.diff(self.indptr)
        few = np.minimum(_few_sizes(widths), self.num_units)
        padded = np.where((4 * widths >= self.num_units) & (widths > 8), self.num_units, few)
        if uniform or whole:
            padded[:] = self.num_units if whole else padded.max()
        alike = padded.min() == padded.max()
        for width in padded[:1].tolist() if alike else np.unique(padded).tolist():
            members = np.arange(len(padded)) if alike else np.flatnonzero(padded == width)
            most = max(1, capacity // (width * cost_per_entry + cost_per_refit))
            size = -(-len(members) // max(-(-len(members) // most), least))  # equal batches: two shapes at most
            for start in range(0, len(members), size):
                yield self._batch(members[start : start + size], width)

    def some(self, refits: NDArray[np.int64]) -> "Plan":
        """The plan of some of the refits."""
        mine = np.isin(self.refit, refits)
        indptr = np.r_[0, np.cumsum(np.diff(self.indptr)[refits])]
        index, weight, held = self.index[mine], self.weight[mine], self.held[mine]
        return replace(self, indptr=indptr, index=index, weight=weight, held=held, call="")

    def one(self, refit: int, whole: bool = False) -> Batch:
        """One refit by itself, or as wide as there are units."""
        return self._batch(np.array([refit]), self.num_units if whole else int(np.diff(self.indptr)[refit]))

    def _batch(self, refits: NDArray[np.int64], width: int) -> Batch:
        first, end, n = self.indptr[refits[0]], self.indptr[refits[-1] + 1], self.num_units
        if end - first == len(refits) * width and len(refits) == refits[-1] - refits[0] + 1 and width < n:
            place = np.arange(first, end).reshape(len(refits), width)  # as they stand, without padding
            index, weight = self.index[first:end].reshape(place.shape), self.weight[first:end].reshape(place.shape)
            held = self.held[first:end].reshape(place.shape)
            return Batch(refits, place, Rows(index, weight, held, np.zeros(()), np.asarray(self.num_refits)))
        entry = self.indptr[refits][:, None] + np.arange(width)
        real = entry < self.indptr[refits + 1][:, None]
        place = np.where(real, entry, -1)
        index = np.where(real, self.index[place], n)
        if width == n:  # every unit in its order; padding goes to a column more
            whole = np.full((len(refits), n + 1), -1)
            np.put_along_axis(whole, index, place, axis=1)
            place, index = whole[:, :n], np.broadcast_to(np.arange(n), entry.shape)
            real = place >= 0
        weight = np.where(real, self.weight[place], 1.0)
        held = real & self.held[place]
        return Batch(refits, place, Rows(index, weight, held, np.zeros(()), np.asarray(self.num_refits)))


def _few_sizes(widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each width rounded up to 1, 2, 3, 4, 6, 8, 12, 16, ...: few shapes to compile, at most half padding."""
    if widths.max(initial=0) <= 4:
        return np.maximum(widths, 1)
    power = 2 ** np.ceil(np.log2(np.maximum(widths, 1))).astype(np.int64)
    return np.where((widths > 2) & (widths <= 3 * power // 4), 3 * power // 4, power)


def few_size(number: int) -> int:
    """A number of steps, units or refits, rounded up to one of those sizes; as it is where that would be dear."""
    return int(_few_sizes(np.array([number]))[0]) if number <= LONG else number


def few_more(count: int) -> NDArray[np.int64]:
    """The numbers of so many refits, the last repeated up to one of few sizes."""
    return np.minimum(np.arange(few_size(count)), count - 1)


def _some(numbers: Iterable[int]) -> str:
    listed = [str(int(k)) for k in numbers]
    return ", ".join(listed[:5]) + (f", … ({len(listed)} in all)" if len(listed) > 5 else "")


Entries = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]  # of one refit: units, weights, which are scored


def _stacked(refits: Iterable[Entries], num_units: int, **kind: Any) -> Plan:
    """A plan of these refits."""
    index, weight, held = zip(*refits, strict=True)
    indptr = np.cumsum([0, *map(len, index)])
    return Plan(indptr, np.concatenate(index), np.concatenate(weight), np.concatenate(held), num_units, **kind)


def _plan(folds: Sequence[NDArray[np.int64]], num_units: int, dropped: Sequence[NDArray[np.int64]] = (), **kind: Any) -> Plan:
    """A plan that gives the units of each fold weight zero and scores them; `dropped` ones are not scored."""
    rows = [np.concatenate(parts) for parts in zip(folds, dropped, strict=True)] if dropped else folds
    zipped = zip(rows, folds, strict=True)
    return _stacked([(row, np.zeros(len(row)), np.arange(len(row)) < len(fold)) for row, fold in zipped], num_units, **kind)


def _departures(counts: NDArray[np.int64], scored: NDArray[np.bool_]) -> Entries:
    """One refit, by how often it sees each unit, and which it scores: the units that it does not see once."""
    index = np.flatnonzero(counts != 1)
    return index, counts[index].astype(float), scored[index]


P = ParamSpec("P")


def scheme(make: Callable[P, Plan]) -> Callable[P, Plan]:
    """`make`, whose plans say by which call they were made."""

    @functools.wraps(make)
    def made(*args: P.args, **more: P.kwargs) -> Plan:
        said = [*map(_brief, args), *(f"{name}={_brief(value)}" for name, value in more.items())]
        return make(*args, **more).known(call=f"lo.{make.__name__}({', '.join(said)})")

    return made


def _brief(value: Any) -> str:
    """An argument of a call: numbers and words as they are, of others what they are."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    shape = getattr(value, "shape", None) or ((len(value),) if hasattr(value, "__len__") else ())  # sparse ones have no length
    size = f" of {shape[0]}" if shape else ""
    return f"<{type(value).__name__}{size}>"


@scheme
def leave_one_out(num_units: int) -> Plan:
    """Every unit left out by itself: `n` refits."""
    n = count("leave_one_out: num_units", num_units, 2)
    return Plan(np.arange(n + 1), np.arange(n), np.zeros(n), np.ones(n, bool), n)


@scheme
def kfold(num_units: int, k: int, *, seed: int | None = None) -> Plan:
    """`k` folds of nearly equal size; shuffled when `seed` is given, contiguous when it is None."""
    n = count("kfold: num_units", num_units, 2)
    k = count("kfold: k", k, 2, n)
    order = np.arange(n) if seed is None else generator("kfold", seed).permutation(n)
    return _plan(np.array_split(order, k), n)


@scheme
def random_subsets(num_units: int, fraction: float, num_folds: int, *, seed: int = 0) -> Plan:
    """`num_folds` subsets of `round(fraction · n)` units drawn at random without replacement (the paper's i.i.d. scheme)."""
    n, size = _subset_size("random_subsets", num_units, fraction)
    rng, folds = generator("random_subsets", seed), count("random_subsets: num_folds", num_folds, 1)
    return _plan([rng.choice(n, size, replace=False) for _ in range(folds)], n)


@scheme
def contiguous(num_units: int, fraction: float, num_folds: int, *, seed: int = 0) -> Plan:
    """`num_folds` runs of `round(fraction · n)` successive units, their starts drawn uniformly."""
    n, size = _subset_size("contiguous", num_units, fraction)
    starts = generator("contiguous", seed).integers(0, n - size + 1, count("contiguous: num_folds", num_folds, 1))
    return _plan([start + np.arange(size) for start in starts], n, serial=True)


def _subset_size(caller: str, num_units: int, fraction: float) -> tuple[int, int]:
    n = count(f"{caller}: num_units", num_units, 2)
    return n, min(max(1, round(share(f"{caller}: fraction", fraction) * n)), n - 1)


@scheme
def leave_future_out(num_units: int, start: int, horizon: int | None = None) -> Plan:
    """For each origin `t = start, …, n − 1`: units `t, …, n − 1` are unseen, the first `horizon` of them scored."""
    n = count("leave_future_out: num_units", num_units, 2)
    start = count("leave_future_out: start", start, 1, n - 1)
    horizon = count("leave_future_out: horizon", n if horizon is None else horizon, 1, n)
    folds = [np.arange(t, min(t + horizon, n)) for t in range(start, n)]
    return _plan(folds, n, [np.arange(min(t + horizon, n), n) for t in range(start, n)], serial=True)


@scheme
def groups(labels: ArrayLike) -> Plan:
    """Every group of units that share a label left out together; standard errors are over groups. The index of a Series is
    matched with the labels of the fit."""
    found, levels = codes("groups", "labels", labels)
    if len(levels) < 2:
        raise ValueError("groups: at least two groups are needed; all labels are equal.")
    order = np.argsort(found, kind="stable")
    folds = np.split(order, np.cumsum(np.bincount(found))[:-1])
    return _plan(folds, len(found), clusters=found.astype(np.int64), names=index_of(labels))


@scheme
def blocks(num_units: int, size: int, *, buffer: int = 0) -> Plan:
    """Successive blocks of `size` units; `buffer` units on either side are dropped too, but not scored."""
    n = count("blocks: num_units", num_units, 2)
    size = count("blocks: size", size, 1, n - 1)
    buffer = count("blocks: buffer", buffer, 0, n)
    starts = range(0, n, size)
    folds = [np.arange(s, min(s + size, n)) for s in starts]
    around = [np.r_[max(0, s - buffer) : s, min(s + size, n) : min(s + size + buffer, n)] for s in starts]
    return _plan(folds, n, around, serial=True)


@scheme
def neighbourhoods(edges: Any, radius: int, *, buffer: int = 0, num_sites: int | None = None) -> Plan:
    """For every site of a graph: all sites within `radius` edges of it left out and scored; those within `radius + buffer`
    dropped too, but not scored.

    `edges` are `[edges, 2]`, a symmetric sparse adjacency matrix, or a networkx or libpysal graph; `num_sites` is needed
    where the last sites have no edges. The labels of a graph's nodes are matched with those of the fit. Raises ValueError
    where a neighbourhood is the whole graph.
    """
    radius = count("neighbourhoods: radius", radius, 0)
    buffer = count("neighbourhoods: buffer", buffer, 0)
    sites = None if num_sites is None else count("neighbourhoods: num_sites", num_sites, 2)
    pairs, n, names = read_edges("neighbourhoods", edges, sites)
    count("neighbourhoods: num_sites", n, 2)
    near = distances(pairs, n, radius + buffer)
    spans = [slice(*near.indptr[site : site + 2]) for site in range(n)]
    held = [near.indices[span][near.data[span] <= radius + 1] for span in spans]
    around = [near.indices[span][near.data[span] > radius + 1] for span in spans]
    return _plan(held, n, around, serial=True, names=names)


@scheme
def bootstrap(num_units: int, num_resamples: int, *, seed: int = 0) -> Plan:
    """`num_resamples` draws of n units with replacement: weights are counts, units never drawn are scored.

    Only the entries whose count is not one are stored. A resample that draws every unit is redrawn.
    """
    n = count("bootstrap: num_units", num_units, 2)
    wanted, rng = count("bootstrap: num_resamples", num_resamples, 1), generator("bootstrap", seed)
    drawn = (np.bincount(rng.integers(0, n, n), minlength=n) for _ in itertools.count())
    kept = (counts for counts in drawn if not counts.all())
    return _stacked((_departures(counts, counts == 0) for counts in itertools.islice(kept, wanted)), n)


@scheme
def from_splits(
    splits: Iterable[tuple[ArrayLike, ArrayLike]],
    num_units: int,
    *,
    groups: ArrayLike | None = None,
    times: ArrayLike | None = None,
) -> Plan:
    """The plan of any scikit-learn splitter: `from_splits(splitter.split(X, y), len(y))`.

    Standard errors take every unit for independent unless `groups`, a label of each unit, says which are not, as for
    `from_splits(GroupKFold(5).split(X, y, g), len(y), groups=g)`: they are over groups then. `times`, which must rise from unit
    to unit, says that units are a series: standard errors are over blocks along it.

    Units that are in neither the train nor the test set of a split are dropped and not scored; a unit
    that is twice in the train set weighs two. Sets are numbers of units, or truths, one a unit; the index of a Series of truths
    is matched with the labels of the fit, as that of `groups` or `times` is.

    Raises ValueError on splits that are none, on `groups` that are all one, on `times` that do not rise, and on both of these.
    """
    n = count("from_splits: num_units", num_units, 2)
    if groups is not None and times is not None:
        raise ValueError("from_splits: give groups or times, not both: standard errors are over groups, or along a series.")
    if not isinstance(splits, Iterable):
        raise TypeError(f"from_splits: splits must be pairs (train, test), as of splitter.split(X, y); got {splits!r}.")
    refits: list[Entries] = []
    names: pd.Index | None = None
    for k, split in enumerate(splits):
        train, test, names = _by_labels(k, *split, names)
        train, test = (_numbered(f"split {k}", part, n) for part in (train, test))
        if test.size == 0:
            raise ValueError(f"from_splits: the test set of split {k} is empty.")
        if max(train.max(initial=0), test.max()) >= n or min(train.min(initial=0), test.min()) < 0:
            raise ValueError(f"from_splits: split {k} names units outside [0, {n}); is num_units right?")
        counts = np.bincount(train, minlength=n)
        if np.any(counts[test] > 0):
            raise ValueError(f"from_splits: split {k} has units in both train and test: its loss would not be held out.")
        refits.append(_departures(counts, np.isin(np.arange(n), test)))
    if not refits:
        raise ValueError("from_splits: the splitter yielded no split.")
    if groups is not None:
        labels, names = _of_units("groups", groups, n, names)
        found, levels = codes("from_splits", "groups", labels)
        if len(levels) < 2:
            raise ValueError("from_splits: at least two groups are needed; all labels are equal.")
        return _stacked(refits, n, names=names, clusters=found.astype(np.int64))
    if times is not None:
        labels, names = _of_units("times", times, n, names)
        _rising(labels)
        return _stacked(refits, n, names=names, serial=True)
    return _stacked(refits, n, names=names)


def _of_units(name: str, value: ArrayLike, n: int, names: pd.Index | None) -> tuple[pd.Series, pd.Index | None]:
    """What is known of every unit, in the order of the labels that the splits have, if any; and the labels."""
    own = index_of(value)
    found = pd.Series(value if isinstance(value, pd.Series | pd.Index | pd.Categorical) else np.asarray(value))
    if len(found) != n:
        raise ValueError(f"from_splits: {name} must be one a unit, {n}; got {len(found)}.")
    order = None if own is None or names is None else places("from_splits", name, own, "the splits", names)
    return found if order is None else found.iloc[order], own if names is None else names


def _rising(times: pd.Series) -> None:
    """ValueError where the times of successive units do not rise."""
    if times.isna().any():
        raise ValueError(f"from_splits: times has {times.isna().sum()} missing values; drop those units.")
    if not times.is_unique:
        raise ValueError(
            f"from_splits: times repeat, as {times[times.duplicated()].iloc[0]}: units of one time are no steps of a series; "
            "leave out whole times and give them as groups="
        )
    if not times.is_monotonic_increasing:
        back = int(np.flatnonzero(~(times.to_numpy()[1:] > times.to_numpy()[:-1]))[0]) + 1
        raise ValueError(
            f"from_splits: times must rise from unit to unit; unit {back} is before unit {back - 1}. Sort the data by time, "
            "then fit and split them."
        )


def _by_labels(
    k: int, train: ArrayLike, test: ArrayLike, names: pd.Index | None
) -> tuple[ArrayLike, ArrayLike, pd.Index | None]:
    """The sets of split `k`, in the order of the labels of the splits before it where truths carry some; and the labels."""
    if not any(index_of(part) is not None and np.asarray(part).dtype == bool for part in (train, test)):
        return train, test, names
    own, train, test = matched("from_splits", **{f"the train set of split {k}": train, f"its test set {k}": test})
    order = None if names is None else places("from_splits", f"split {k}", own.index, "split 0", names)
    if order is not None:
        train, test = np.asarray(train)[order], np.asarray(test)[order]
    return train, test, own.index if names is None else names


def _numbered(split: str, part: ArrayLike, n: int) -> NDArray[np.int64]:
    """The units of a set given by their numbers, or by truths."""
    array = np.asarray(part)
    if array.dtype != bool:
        return whole("from_splits", f"the sets of {split}", array)
    if array.shape != (n,):
        raise ValueError(f"from_splits: truths must be one a unit, {n}; {split} has shape {array.shape}.")
    return np.flatnonzero(array)
