"""Plans: the weight of every unit in every refit, and the units that each refit scores.

A plan is a matrix of weights `W[refits, units]`. It stores only the departures from one, in
compressed rows: refit `k` has `W[k, index[j]] = weight[j]` for `indptr[k] <= j < indptr[k + 1]`,
and ones elsewhere. Leave-one-out of n units therefore takes O(n) numbers. Every scheme is a
function that returns a `Plan`.
"""

import copy
import datetime
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, ParamSpec, Protocol, cast

import numpy as np
import scipy
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from .._runtime import (
    BoolArray,
    FloatArray,
    IntArray,
    Lines,
    NamedValues,
    PrintedResult,
    Rng,
    conventional,
    is_pandas,
    members_by_label,
    pd,
    record,
    require_memory,
    slices,
)
from ..data import (
    TIMES,
    UnitColumn,
    codes,
    count,
    flags,
    floats,
    generator,
    index_of,
    is_number,
    match_columns,
    match_labels,
    named_column,
    pandas_of,
    places,
    share,
    whole,
)
from .graph import distances, read_edges

# of a unit that a refit leaves out, while the plan is built: number, weight and mark, twice
ENTRY_BYTES = 34
CAPACITY = 2**21  # numbers in all arrays of a batch of refits (16 MiB)
FACTS = "clusters", "blocks", "series"  # attributes of a plan that have a label a unit
# arguments with an entry a unit, which may be names of columns
COLUMNS = "groups", "labels", "times", "ends", "y", "cases"
# steps, units, refits up to which padding, an eighth of the work on average, costs less than
# compiling anew
PADDED_FROM = 2**11


class RefitRows(NamedTuple):
    """Batch of refits, padded to one width: `index == num_units` marks padding, whose weight is
    one.

    A width of `num_units` means that every refit lists every unit in order. Folds that touch many
    units are written out in this way, so that nothing has to be gathered or scattered. `scale` is
    the standard error of the mean no-update loss, the unit in which tolerances are stated.
    `num_refits` is the number of refits in the whole plan; strategies decide by it what they can
    afford.
    """

    index: IntArray  # type: ignore[assignment]  # [refits, width]; hides tuple.index
    weight: FloatArray  # [refits, width]
    held: BoolArray  # [refits, width]
    scale: FloatArray  # []
    num_refits: IntArray  # []

    def take(self, lanes: IntArray | slice) -> "RefitRows":
        """Select refits by their place in the batch."""
        return self._replace(
            index=self.index[lanes], weight=self.weight[lanes], held=self.held[lanes]
        )

    def units(self, num_units: int) -> IntArray:
        """Return the listed units, the first in the place of padding."""
        return np.where(self.index < num_units, self.index, 0)

    @staticmethod
    def of_all(num_units: int, num_refits: int) -> "RefitRows":
        """Return a batch of one refit that scores every unit at weight one, which scores the full
        fit itself.
        """
        index = np.arange(num_units)[None]
        ones = np.ones((1, num_units))
        return RefitRows(index, ones, ones > 0, np.zeros(()), np.asarray(num_refits))


class Batch(NamedTuple):
    """Refits of a plan that are computed together.

    `refits` are their numbers, `place` is the position of each entry in `plan.index` (-1 for
    padding), `rows` are the padded entries.
    """

    refits: IntArray
    place: IntArray
    rows: RefitRows


@record
class Plan(PrintedResult):
    """Matrix of weights over units, one row a refit, stored as departures from one.

    Refit `k` gives unit `index[j]` the weight `weight[j]` for `indptr[k] <= j < indptr[k + 1]`, and
    every other unit the weight one. The functions of this module make plans; call the class itself
    for weights of your own. A plan is also a splitter of scikit-learn, and an iterable of pairs
    (train, test). `clusters`, `serial` and `blocks` are used for standard errors only.

    Parameters
    ----------
    indptr : array of int, shape (refits + 1,)
        Where the entries of each refit begin and end.
    index : array of int, shape (entries,)
        Unit of each entry. A refit lists a unit once at most.
    weight : array of float, shape (entries,)
        Weight of that unit in that refit, zero or more.
    held : array of bool, shape (entries,)
        True where the entry is scored. A scored entry has weight 0, or (f − c) / f where c of the f
        cases of a unit are left out; a unit of weight 0 that is not scored is a buffer.
    num_units : int
        Number of units.
    clusters : array, shape (units,), optional
        Label of the cluster of each unit; units of different clusters are independent.
    serial : bool or None, default: False
        True if units that follow one another depend on one another; None if nobody knows.
    blocks : array, shape (units,), optional
        Labels of blocks of neighbouring units, where units are serial but not in the order of their
        numbers.
    names : pandas.Index, optional
        Labels of the units, which are matched with those of the fit.
    labels : array, shape (refits,), optional
        Names of the refits, as of the groups that they leave out.
    call : str, default: ""
        The call that made the plan, for printed results.
    note : str, default: ""
        What else the plan prints.
    series : array, shape (units,), optional
        Label of the series of each unit, of plans in which the units of one label follow one
        another.
    columns : dict of str to UnitColumn
        Facts with labels of their own beside numbers of units; `_match_labels` puts them in the
        order of the fit.
    rng : int, optional
        Seed of the random numbers that drew the plan, for printed results.

    Raises
    ------
    ValueError
        If the arrays do not fit together, a weight is negative or not finite, a refit scores a unit
        that it sees, lists a unit twice, leaves nothing out or leaves everything out.

    See Also
    --------
    kfold, leave_one_out, groups, from_splits : Functions that make plans.

    Examples
    --------
    Two refits of four units: the first leaves out unit 0 and sees unit 1 twice, the second leaves
    out units 2 and 3.

    >>> import leaveout as lo
    >>> plan = lo.Plan([0, 2, 4], [0, 1, 2, 3], [0.0, 2.0, 0.0, 0.0], [True, False, True, True], 4)
    >>> plan.matrix()
    array([[0., 2., 1., 1.],
           [1., 1., 0., 0.]])
    """

    indptr: IntArray
    index: IntArray
    weight: FloatArray
    held: BoolArray
    num_units: int
    clusters: IntArray | None = None
    serial: bool | None = False
    blocks: IntArray | None = None
    names: "pd.Index | None" = None
    labels: NDArray[Any] | None = None
    call: str = ""
    note: str = ""
    series: IntArray | None = None
    columns: dict[str, UnitColumn] = field(default_factory=dict)
    rng: int | None = None
    # makes the plan when there are units; None of a plan that has some
    _scheme: ClassVar[functools.partial["Plan"] | None] = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if self._scheme is None or name.startswith("_"):
                return super().__getattr__(name)
            raise AttributeError(
                f"Plan: {self.call} has no units yet, and so no {name}: lo.cross_validate(fit, plan) gives it those of the fit, "
                "plan.split(X) the rows of X; or give num_units= first."
            )

    def _bind(
        self,
        num_units: int,
        table: "pd.DataFrame | None" = None,
        cases: FloatArray | None = None,
        response: ArrayLike | None = None,
    ) -> "Plan":
        """Give a plan that was made without units the units of a fit.

        Parameters
        ----------
        num_units : int
            Number of units.
        table : DataFrame, optional
            Table whose columns the plan may name.
        cases : array of float, shape (units,), optional
            Number of cases of each unit; one by default.
        response : array-like, shape (units,), optional
            Classes for a plan that has none of its own.

        Returns
        -------
        Plan
            The plan over these units; the plan itself if it has units.
        """
        if self._scheme is None:
            return self
        arguments = dict(self._scheme.keywords)
        if arguments.get("cases") is True:
            arguments["cases"] = np.ones(num_units) if cases is None else cases
        for name in COLUMNS:
            if name in arguments:
                arguments[name] = named_column(table, arguments[name], f"{self.call}: {name}")
        if arguments.get("y", num_units) is None:
            if response is None:
                raise ValueError(
                    f"{self.call}: the units have no response; give their classes as y=."
                )
            arguments["y"] = response
        if not any(hasattr(arguments.get(name), "__len__") for name in COLUMNS):
            arguments["num_units"] = num_units
        return self._scheme.func(**arguments)._replace_facts(call=self.call)

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        if not (np.isin(self.weight, (0, 1)).all() and self.scored_counts.all()):
            raise ValueError(
                f"Plan: {self.call or 'the plan'} has no train and test sets: it gives units other weights than 0 and 1, as a "
                "bootstrap does, or scores none. Leave out folds, or use lo.cross_validate, which takes weights."
            )
        for k in range(self.num_refits):
            rows = self._one(k, whole=True).rows
            yield np.flatnonzero(rows.weight), np.flatnonzero(rows.held)

    def split(
        self, X: Any = None, y: Any = None, groups: ArrayLike | None = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Split rows as a splitter of scikit-learn does.

        Parameters
        ----------
        X : array-like or DataFrame, optional
            The rows. They are the units of a plan that has none, and their labels are matched with
            those of a plan that has some.
        y : array-like, shape (rows,), optional
            The response, whose classes `lo.stratified(k=...)` takes.
        groups : array-like, shape (rows,), optional
            Labels of groups, which the plan must keep whole, as `lo.groups(labels)` does.

        Yields
        ------
        tuple of array
            Numbers of the rows that each refit sees, and of those that it scores.

        Raises
        ------
        ValueError
            If the plan has other units than the rows, or weights other than 0 and 1, or a group is
            on both sides.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> for train, test in lo.blocks(size=2).split(np.zeros((4, 1))):
        ...     print(train, test)
        [2 3] [0 1]
        [0 1] [2 3]
        """
        labels = np.asarray(groups)
        for train, test in self._of_rows(X, y):
            if groups is not None and np.isin(labels[test], labels[train]).any():
                raise ValueError(
                    "Plan: groups= are on both sides of a split; lo.groups(labels, k=...) keeps them whole."
                )
            yield train, test

    def get_n_splits(self, X: Any = None, y: Any = None, groups: ArrayLike | None = None) -> int:
        """Count the splits.

        Parameters
        ----------
        X : array-like or DataFrame, optional
            The rows, which a plan without units needs.
        y : array-like, optional
            The response, as in `split`.
        groups : array-like, optional
            Not used.

        Returns
        -------
        int
            Number of refits.

        Examples
        --------
        >>> import leaveout as lo
        >>> lo.kfold(k=5).get_n_splits(range(20))
        5
        """
        return len(self._of_rows(X, y))

    def _of_rows(self, X, y) -> "Plan":
        """Return the plan for the rows of scikit-learn's call."""
        if X is None:
            return self
        table = pandas_of("Plan", "X", X)
        num_rows = table.shape[0] if hasattr(table, "shape") else len(table)
        plan = self._bind(num_rows, table, response=y)
        if plan.num_units != num_rows:
            raise ValueError(
                f"Plan: {self.call or 'the plan'} is for {plan.num_units} units, but X has {num_rows} rows."
            )
        return plan._match_labels("Plan", index_of(X))

    def __post_init__(self) -> None:
        entries = {
            "weight": floats("Plan", "weight", self.weight),
            "indptr": whole("Plan", "indptr", self.indptr),
            "index": whole("Plan", "index", self.index),
            "held": flags("Plan", "held", self.held),
        }
        if np.array_equal(entries["index"], entries["indptr"][:-1]):  # one array for both
            entries["index"] = entries["indptr"][:-1]
        for name, array in entries.items():
            object.__setattr__(self, name, np.ascontiguousarray(array))
        columns = dict(self.columns)
        for name in FACTS:
            if is_pandas(labels := getattr(self, name), "Series"):
                columns[name] = UnitColumn(name, labels.to_numpy(), labels.index)
                object.__setattr__(self, name, labels.to_numpy())
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "num_units", count("Plan: num_units", self.num_units, 1))
        self._check_shape()
        self._check_entries()

    def _check_shape(self) -> None:
        if len(self.indptr) < 2 or self.indptr[0] != 0 or self.indptr[-1] != len(self.index):
            raise ValueError(
                f"Plan: indptr must rise from 0 to len(index) = {len(self.index)}; got {self.indptr[[0, -1]]}."
            )
        if not len(self.index) == len(self.weight) == len(self.held):
            raise ValueError("Plan: index, weight and held must have one length.")
        for name in (*FACTS, "names"):
            labels = getattr(self, name)
            if labels is not None and len(labels) != self.num_units:
                raise ValueError(
                    f"Plan: {name} must be one label a unit; got {len(labels)} for {self.num_units} units."
                )

    def _check_entries(self) -> None:
        if np.any((self.index < 0) | (self.index >= self.num_units)):
            raise ValueError(f"Plan: unit numbers must lie in [0, {self.num_units}).")
        if not np.all(np.isfinite(self.weight)) or np.any(self.weight < 0):
            raise ValueError("Plan: weights must be finite and not negative.")
        self._check_held("Plan", self.held & (self.weight >= 1))
        entry = self.refit * self.num_units + self.index
        # rows are usually sorted, and are then checked without a sort
        if np.any(np.diff(entry) <= 0):
            entry = np.sort(entry)
        if (repeated := np.flatnonzero(np.diff(entry) == 0)).size:
            raise ValueError(
                f"Plan: refit {entry[repeated[0]] // self.num_units} lists a unit twice."
            )
        all_units = np.bincount(self.refit, self.weight == 0, self.num_refits) == self.num_units
        for wrong, problem in (
            (np.diff(self.indptr) == 0, "leave nothing out; drop these empty folds"),
            (all_units, "leave out every unit"),
        ):
            if wrong.any():
                raise ValueError(f"Plan: refits {_abbreviate(np.flatnonzero(wrong))} {problem}.")

    def _check_held(self, caller: str, seen: BoolArray) -> None:
        """Raise ValueError if an entry is marked, which is scored although its refit sees it.

        Parameters
        ----------
        caller : str
            Name of the calling function, for messages.
        seen : array of bool, `[entries]`
            Entries that are scored and seen.
        """
        if seen.any():
            k = np.flatnonzero(seen)[0]
            raise ValueError(
                f"{caller}: refit {self.refit[k]} scores unit {self.index[k]}, which has weight {self.weight[k]:g} in it: its "
                "loss would not be held out. Give it weight 0, or held=False; or sample_weight, whole numbers of cases, some "
                "of which the refit leaves out."
            )

    @property
    def of_cases(self) -> bool:
        """Whether refits score units of which they leave out some of the cases, and see the
        others.
        """
        return bool(np.any(self.held & (self.weight > 0)))

    @property
    def draws(self) -> bool:
        """Whether refits are resamples.

        They see units more than once, as those of a bootstrap do, or score none.
        """
        return bool(np.any(self.weight > 1)) or not self.held.any()

    @property
    def num_refits(self) -> int:
        """Number of refits."""
        return len(self.indptr) - 1

    def __len__(self) -> int:
        return self.num_refits

    @functools.cached_property
    def refit(self) -> IntArray:
        """Refit to which each entry belongs, `[entries]`."""
        widths = np.diff(self.indptr)
        if (widths == 1).all():
            return self.indptr[:-1]
        return np.repeat(np.arange(self.num_refits), widths)

    @property
    def scored_units(self) -> IntArray:
        """Unit of each scored entry."""
        return self.index[self.held]

    @property
    def scored_refits(self) -> IntArray:
        """Refit that scores each of these units."""
        return self.refit[self.held]

    @property
    def scored_counts(self) -> IntArray:
        """Number of units that each refit scores, `[refits]`."""
        return np.bincount(self.scored_refits, minlength=self.num_refits)

    def _match_labels(self, caller: str, names: "pd.Index | None") -> "Plan":
        """Renumber the units in the order of the given labels.

        Parameters
        ----------
        caller : str
            Name of the calling function, for messages.
        names : pandas.Index or None
            Labels of the fit's units; None leaves the plan as it is, and so does a plan without
            labels.

        Returns
        -------
        Plan
            The same refits, with units numbered as in `names`.

        Raises
        ------
        ValueError
            If the plan's labels are not those of the fit.
        """
        plan = self
        if names is not None and self.names is not None:
            order = places(caller, "plan", self.names, "fit", names)
            plan = self._replace_facts(names=names)
            if order is not None:
                plan = replace(
                    self, index=np.argsort(order)[self.index], names=names, **self._facts_of(order)
                )
        if not self.columns:
            return plan
        facts = {name: column.in_order(caller, names) for name, column in self.columns.items()}
        if "times" in facts:
            _rising(pd.Series(facts.pop("times")))
        return plan._replace_facts(columns={}, **facts)

    def _facts_of(self, units: IntArray) -> NamedValues:
        """Return the labels of some units.

        Parameters
        ----------
        units : array of int
            Their numbers.

        Returns
        -------
        dict of str to array
            Clusters, blocks, series and whatever else the plan has of every unit, in the order of
            `units`.
        """
        facts = {name: getattr(self, name) for name in FACTS}
        return {name: labels[units] for name, labels in facts.items() if labels is not None}

    def _only(self, units: IntArray) -> "Plan":
        """Restrict the plan to some of its units, in the order given.

        Refits that then leave nothing out, or that no longer score a unit although they did, are
        dropped.

        Parameters
        ----------
        units : array of int, `[selected]`
            The units to keep.

        Returns
        -------
        Plan
            The plan over these units.

        Examples
        --------
        >>> import leaveout as lo
        >>> lo.kfold(6, k=3)._only(np.arange(4)).num_units
        4
        """
        place = np.full(self.num_units, -1)
        place[units] = np.arange(len(units))
        selected = place[self.index] >= 0
        count = lambda entries: np.bincount(self.refit[entries], minlength=self.num_refits)
        refits = np.flatnonzero(
            (count(selected) > 0) & ((count(selected & self.held) > 0) | (count(self.held) == 0))
        )
        selected &= np.isin(self.refit, refits)
        return replace(
            self,
            indptr=np.r_[0, np.cumsum(count(selected)[refits])],
            index=place[self.index[selected]],
            weight=self.weight[selected],
            held=self.held[selected],
            num_units=len(units),
            names=None if self.names is None else self.names[units],
            labels=None if self.labels is None else self.labels[refits],
            columns={name: column.take(units) for name, column in self.columns.items()},
            **self._facts_of(units),
        )

    def _replace_facts(self, **facts) -> "Plan":
        """Copy the plan with some attributes replaced, without checking it again.

        The caller vouches for what it replaces: fewer `held` entries, or other `serial`, `blocks`
        and `names`.

        Parameters
        ----------
        **facts : Any
            New values of attributes, by name.

        Returns
        -------
        Plan
            The copy.
        """
        plan = copy.copy(self)
        vars(plan).update(facts)
        return plan

    @property
    def _unit_names(self) -> "pd.Index":
        """The labels of the units, or their numbers."""
        if self.names is None:
            return pd.RangeIndex(self.num_units)
        if is_pandas(self.names, "MultiIndex"):
            return self.names.to_flat_index()
        return self.names

    @property
    def refit_names(self) -> "pd.Index":
        """The names of the refits.

        Of the groups that leave, or of the single units, or else numbers.
        """
        if self.labels is not None:
            return pd.Index(self.labels, name="group")
        if len(self.index) != self.num_refits or len(np.unique(self.index)) != self.num_refits:
            return pd.RangeIndex(self.num_refits, name="refit")
        names = self._unit_names[self.index]
        if names.name is None:
            return names.rename("unit")
        return names

    @property
    def widths(self) -> str:
        """Number of units that a refit leaves out or reweights, in words."""
        return _span(np.diff(self.indptr), "unit")

    @property
    def _times(self) -> IntArray:
        """How often each unit is scored."""
        return np.bincount(self.scored_units, minlength=self.num_units)

    @property
    def _summary(self) -> str:
        """What the plan is, in words."""
        if self._scheme is not None:
            return "of the units of the fit that takes it"
        refits = "resamples" if self.draws else "folds"
        order = ""
        if self.rng is not None:
            order = f", {'shuffled' if np.ptp(self._times) == 0 else 'drawn'} (rng={self.rng})"
        return f"{self.num_refits} {refits} of {self.num_units} units{order}"

    def _lines(self) -> Lines:
        if self._scheme is not None:
            return [("plan", self._summary), ("made by", self.call)]
        dropped = np.sum(~self.held & (self.weight == 0)) / self.num_refits
        most = self.weight.max()
        labelings = {"groups": self.clusters, "blocks of neighbours": self.blocks}
        independent = [
            f"{len(np.unique(labels))} {name}"
            for name, labels in labelings.items()
            if labels is not None
        ]
        dependence = "not known"
        if self.serial is not None:
            dependence = "blocks along their order" if self.serial else "every unit by itself"
        units = ""
        if self.names is not None:
            units = f"{self.names[0]} to {self.names[-1]}"
        lines = [
            ("plan", self._summary),
            ("made by", self.call or "its own weights"),
            ("units", units),
            ("refits", f"{self.widths} each"),
            ("scored", f"every unit {_span(self._times, 'time')}"),
            ("dropped", f"{dropped:.3g} units a refit that are not scored" if dropped else ""),
            (
                "weights",
                f"up to {most:g} of units that are seen more than once" if most > 1 else "",
            ),
            ("independent", ", ".join(independent) or dependence),
            ("note", self.note),
        ]
        return [(name, text) for name, text in lines if text]

    def __repr__(self) -> str:
        return f"Plan({self.call or 'its own weights'}: {self._summary})"

    def matrix(self) -> FloatArray:
        """Weights as a dense matrix.

        Returns
        -------
        array of float, shape (refits, units)
            Weight of every unit in every refit.
        """
        size = 8.0 * self.num_refits * self.num_units
        require_memory(
            "Plan.matrix",
            size,
            "weights of every unit in every refit",
            "`index` and `weight` list those that are not 1",
        )
        dense = np.ones((self.num_refits, self.num_units))
        dense[self.refit, self.index] = self.weight
        return dense

    def _batches(
        self,
        capacity: int,
        cost_per_entry: int,
        cost_per_refit: int,
        least: int = 1,
        uniform: bool = False,
        whole: bool = False,
    ) -> Iterator[Batch]:
        """Split the refits into padded batches of at most `capacity` numbers each.

        Refits of similar width go together. A fold that touches at least a quarter of the units,
        and more than eight of them, is written out over all units.

        Parameters
        ----------
        capacity : int
            Numbers that a batch may hold.
        cost_per_entry : int
            Numbers that each entry of a refit takes.
        cost_per_refit : int
            Numbers that each refit takes beside its entries.
        least : int, default: 1
            Smallest number of batches into which the refits of one width are split, as far as there
            are refits.
        uniform : bool, default: False
            Whether all batches have the width of the widest refit.
        whole : bool, default: False
            Whether every refit is written out over all units.

        Yields
        ------
        Batch
            Refits of one width.
        """
        widths = np.diff(self.indptr)
        count = self.num_refits
        alike = widths.min() == widths.max()
        if alike:
            widths = widths[:1]
        rounded = np.minimum(_few_sizes(widths), self.num_units)
        padded = np.where((4 * widths >= self.num_units) & (widths > 8), self.num_units, rounded)
        if uniform or whole:
            padded[:] = self.num_units if whole else padded.max()
        for width in np.unique(padded).tolist():
            members = np.flatnonzero(padded == width)
            if not alike:
                count = len(members)
            most = max(1, capacity // (width * cost_per_entry + cost_per_refit))
            # equal batches: two shapes at most
            size = -(-count // max(-(-count // most), least))
            for part in slices(count, size):
                refits = np.arange(count)[part]
                yield self._batch(refits if alike else members[refits], width)

    def some(self, refits: IntArray) -> "Plan":
        """Plan of a selection of the refits.

        Parameters
        ----------
        refits : array of int
            Numbers of the refits, in the order that the new plan has them.

        Returns
        -------
        Plan
            These refits over the same units.
        """
        refits = np.arange(self.num_refits)[refits]
        entries, size = self._entries(refits)
        return replace(
            self,
            indptr=np.cumsum([0, *size]),
            index=self.index[entries],
            weight=self.weight[entries],
            held=self.held[entries],
            labels=None if self.labels is None else self.labels[refits],
            call="",
        )

    def _entries(self, refits: IntArray) -> tuple[IntArray, IntArray]:
        """Return the entries of some refits, one refit after the other, and how many each has."""
        size = self.indptr[refits + 1] - self.indptr[refits]
        end = np.cumsum(size)
        return np.repeat(self.indptr[refits] - end + size, size) + np.arange(end[-1]), size

    def _one(self, refit: int, whole: bool = False) -> Batch:
        """Batch of a single refit.

        Parameters
        ----------
        refit : int
            Number of the refit.
        whole : bool, default: False
            Whether it is written out over all units.

        Returns
        -------
        Batch
            The refit, without padding.
        """
        width = self.num_units if whole else int(np.diff(self.indptr)[refit])
        return self._batch(np.array([refit]), width)

    def _batch(self, refits: IntArray, width: int) -> Batch:
        n = self.num_units
        entries, size = self._entries(refits)
        place = np.full((len(refits), width), -1)
        if width == n:  # all units have a place, in their order
            place[np.repeat(np.arange(len(refits)), size), self.index[entries]] = entries
            index = np.broadcast_to(np.arange(n), place.shape)
        else:
            place[np.arange(width) < size[:, None]] = entries
            index = np.where(place < 0, n, self.index[place])
        real = place >= 0
        weight = np.where(real, self.weight[place], 1.0)
        held = real & self.held[place]
        return Batch(
            refits, place, RefitRows(index, weight, held, np.zeros(()), np.asarray(self.num_refits))
        )


def _few_sizes(widths: IntArray) -> IntArray:
    """Round each width up to one of 1, 2, 3, 4, 6, 8, 12, 16, ….

    Few shapes are compiled then, and at most half of a batch is padding.
    """
    if widths.max(initial=0) <= 4:
        return np.maximum(widths, 1)
    power = 2 ** np.ceil(np.log2(np.maximum(widths, 1))).astype(int)
    return np.where((widths > 2) & (widths <= 3 * power // 4), 3 * power // 4, power)


def few_size(number: int) -> int:
    """Round a number of steps, units or refits up to one of few sizes.

    Numbers above the largest of these stay as they are, as padding them would cost too much.
    """
    if number <= PADDED_FROM:
        return int(_few_sizes(np.array([number]))[0])
    return number


def few_more(count: int) -> IntArray:
    """Number `count` refits, and repeat the last one up to one of few sizes."""
    return np.minimum(np.arange(few_size(count)), count - 1)


def _span(numbers: IntArray, noun: str) -> str:
    """Write the smallest and the largest number of something."""
    low = numbers.min()
    high = numbers.max()
    if low == high == 1:
        return f"1 {noun}"
    return f"{low} {noun}s" if low == high else f"{low}–{high} {noun}s"


def _abbreviate(numbers: Iterable[int]) -> str:
    listed = [str(int(k)) for k in numbers]
    return ", ".join(listed[:5]) + (f", … ({len(listed)} in all)" if len(listed) > 5 else "")


# entries of one refit: units, weights, whether each is scored
Entries = tuple[IntArray, FloatArray, BoolArray]


def plan_of_entries(refits: Iterable[Entries], num_units: int, **kind: Any) -> Plan:
    """Build a plan from the entries of its refits."""
    index, weight, held = zip(*refits, strict=True)
    return Plan(
        np.cumsum([0, *map(len, index)]),
        np.concatenate(index),
        np.concatenate(weight),
        np.concatenate(held),
        num_units,
        **kind,
    )


def _require_entries(caller: str, entries: float) -> None:
    """Raise MemoryError if a plan of so many entries cannot be held."""
    require_memory(
        caller,
        ENTRY_BYTES * entries,
        f"the {entries:,.0f} units that all refits leave out",
        "ask for fewer refits",
    )


def _plan(
    folds: Sequence[IntArray], num_units: int, dropped: Sequence[IntArray] = (), **kind
) -> Plan:
    """Build a plan that gives the units of each fold weight zero and scores them.

    `dropped` units are not scored.
    """
    rows = (
        [np.concatenate(parts) for parts in zip(folds, dropped, strict=True)] if dropped else folds
    )
    zipped = zip(rows, folds, strict=True)
    return plan_of_entries(
        [(row, np.zeros(len(row)), np.arange(len(row)) < len(fold)) for row, fold in zipped],
        num_units,
        **kind,
    )


def _departures(counts: IntArray, scored: BoolArray) -> Entries:
    """List the entries of one refit that sees unit n `counts[n]` times.

    The units that it does not see exactly once.
    """
    index = np.flatnonzero(counts != 1)
    return index, counts[index].astype(float), scored[index]


P = ParamSpec("P")


def scheme(*required: str) -> Callable[[Callable[P, Plan]], Callable[P, Plan]]:
    """Decorate a function that makes plans, so that each plan records the call that made it.

    A call that lacks the number of units, or names columns, makes a plan that a fit binds to its
    units. The arguments that are `required` beside it are named where they lack.
    """

    def decorate(make: Callable[P, Plan]) -> Callable[P, Plan]:
        signature = inspect.signature(make)
        name = make.__name__

        @conventional
        @functools.wraps(make)
        def make_or_wait(*args: P.args, **kwargs: P.kwargs) -> Plan:
            if hasattr(next(iter(args), None), "objective"):
                raise TypeError(
                    f"{name}: a plan takes no fit; it goes beside it, lo.cross_validate(fit, lo.{name}(...))."
                )
            call_arguments = signature.bind(*args, **kwargs)
            call_arguments.apply_defaults()
            arguments = call_arguments.arguments
            texts = [*map(_brief, args), *(f"{k}={_brief(value)}" for k, value in kwargs.items())]
            call = f"lo.{name}({', '.join(texts)})"
            if lacking := [f"{word}=" for word in required if arguments[word] is None]:
                raise TypeError(
                    f"{name}: {' and '.join(lacking)} must be given; what stands first is {next(iter(arguments))}=, which a fit "
                    f"knows by itself; got {call}."
                )
            columns = [
                arguments[word] for word in COLUMNS if hasattr(arguments.get(word), "__len__")
            ]
            waits = arguments.get("cases") is True or arguments.get("y", name) is None
            waits |= any(isinstance(column, str) for column in columns)
            if arguments.get("num_units", 0) is None and columns and not waits:
                arguments["num_units"] = np.size(columns[0])
            if waits and arguments.get("num_units") is not None:
                count(f"{name}: num_units", arguments["num_units"], 2)
            if waits or arguments.get("num_units", 0) is None:
                if isinstance(arguments.get("splits"), Iterator):  # which gives its splits once
                    arguments["splits"] = list(arguments["splits"])
                plan = object.__new__(Plan)
                vars(plan).update(call=call, _scheme=functools.partial(make_or_wait, **arguments))
                return plan
            facts: NamedValues = {"call": call}
            if arguments.get("k", 0) is not None:
                facts["rng"] = arguments.get("rng")
            return cast(Any, make)(**arguments)._replace_facts(**facts)

        return make_or_wait

    return decorate


def _brief(value) -> str:
    """Text of an argument of a call: numbers and words in full, arrays by type, name and length."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    # sparse ones have no length
    shape = getattr(value, "shape", None)
    if shape is None and hasattr(value, "__len__"):
        shape = (len(value),)
    size = f" of {shape[0]}" if shape else ""
    name = ""
    if is_pandas(value, "Series") and isinstance(value.name, str):
        name = f" {value.name!r}"
    return f"<{type(value).__name__}{name}{size}>"


class Splitter(Protocol):
    """Splitter of scikit-learn, or any object with its method `split`."""

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterable[tuple[ArrayLike, ArrayLike]]: ...


@scheme()
def leave_one_out(num_units: int | None = None, *, cases: bool | ArrayLike = False) -> Plan:
    """Leave out every unit by itself: n refits of one unit each.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more; by default that of the fit which takes the plan.
    cases : bool or array-like, shape (units,), default: False
        Whether rows of whole `sample_weight` f, such as `freq_weights` of statsmodels, stand for f
        cases, one of which is left out; or the numbers f. The row keeps the weight f − 1, its loss
        is that of the case which left, and means and standard errors are over cases. The fit is
        then one of a linear predictor, as `lo.GLM`.

    Returns
    -------
    Plan
        One refit a unit.

    See Also
    --------
    groups : Leave out whole groups.
    blocks : Leave out successive blocks, for units that depend on their neighbours.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.leave_one_out(3).matrix()
    array([[0., 1., 1.],
           [1., 0., 1.],
           [1., 1., 0.]])

    Two rows, which stand for three cases and one:

    >>> fit = lo.fit(
    ...     lo.GLM(np.ones((2, 1)), [1.0, 3.0], "squared", sample_weight=[3, 1], intercept=False)
    ... )
    >>> cv = lo.cross_validate(fit, lo.leave_one_out(cases=True), strategy=lo.Exact())
    >>> cv.per_unit().round(3).tolist(), round(cv.mean, 3)
    ([0.222, 2.0], 0.667)
    """
    n = count("leave_one_out: num_units", num_units, 2)
    numbers_of_cases = np.ones(n)
    if cases is not False:
        numbers_of_cases = floats("leave_one_out", "cases", cases)
    if numbers_of_cases.shape != (n,) or np.any(numbers_of_cases % 1):
        raise ValueError(
            f"leave_one_out: cases must be whole numbers, as sample_weight, one for each of {n} units."
        )
    unit = np.flatnonzero(numbers_of_cases)
    weight = 1 - 1 / numbers_of_cases[unit]
    return Plan(np.arange(len(unit) + 1), unit, weight, np.ones(len(unit), bool), n)


@scheme("k")
def kfold(
    num_units: int | None = None, k: int | None = None, *, rng: Rng = 0, num_repeats: int = 1
) -> Plan:
    """Split the shuffled units into k folds of nearly equal size, each left out once.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more; by default that of the fit which takes the plan.
    k : int
        Number of folds, from 2 to n.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.
    num_repeats : int, default: 1
        Number of times that folds are drawn anew. The loss of a unit is its mean over the repeats.

    Returns
    -------
    Plan
        One refit a fold.

    See Also
    --------
    blocks : Folds of successive units.
    stratified : Folds that hold every class in equal shares.
    groups : Folds of whole groups.
    from_splits : Plans of any scikit-learn splitter.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.kfold(6, k=3).matrix().astype(int)
    array([[1, 1, 0, 0, 1, 1],
           [1, 1, 1, 1, 0, 0],
           [0, 0, 1, 1, 1, 1]])
    >>> lo.kfold(6, k=3, num_repeats=10)
    Plan(lo.kfold(6, k=3, num_repeats=10): 30 folds of 6 units, shuffled (rng=0))

    A fit that takes a plan without a number of units gives it its own:

    >>> lo.kfold(k=10)
    Plan(lo.kfold(k=10): of the units of the fit that takes it)
    """
    n = count("kfold: num_units", num_units, 2)
    k = count("kfold: k", k, 2, n)

    draw = lambda random: np.array_split(random.permutation(n), k)
    return _plan(_repeated("kfold", draw, rng, num_repeats), n)


def _repeated(
    caller: str,
    draw: Callable[[Generator], Sequence[IntArray]],
    rng: Rng,
    num_repeats: int,
) -> list[IntArray]:
    """Draw the folds of every repeat, one repeat after the other."""
    random = generator(caller, rng)
    num_repeats = count(f"{caller}: num_repeats", num_repeats, 1)
    return [fold for _ in range(num_repeats) for fold in draw(random)]


@scheme("k")
def stratified(
    y: ArrayLike | None = None, k: int | None = None, *, rng: Rng = 0, num_repeats: int = 1
) -> Plan:
    """Split the units into k folds, each of which holds every class in its share of the whole.

    Shuffled classes are spread over folds as scikit-learn's StratifiedKFold spreads them. Numbers
    with fractions, and numbers none of which occurs k times, are cut at their deciles first, and
    the ten parts are the classes.

    Parameters
    ----------
    y : array-like or pandas.Series, shape (units,), or str, optional
        Class of each unit, of any kind, or a number; by default the response of the fit which takes
        the plan. The index of a Series is matched with the labels of the fit.
    k : int
        Number of folds, from 2 to the number of units of the largest class.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.
    num_repeats : int, default: 1
        Number of times that folds are drawn anew. The loss of a unit is its mean over the repeats.

    Returns
    -------
    Plan
        One refit a fold.

    Raises
    ------
    ValueError
        If a label is missing, or no class has k units.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.stratified(["a", "a", "a", "a", "b", "b"], k=2).matrix().astype(int)
    array([[1, 0, 1, 0, 0, 1],
           [0, 1, 0, 1, 1, 0]])
    """
    code, levels = codes("stratified", "y", y)
    n = len(code)
    if is_number(levels) and (np.any(levels % 1) or np.bincount(code).max() < k):
        code = np.searchsorted(np.quantile(code, np.arange(1, 10) / 10), code)
    k = count("stratified: k", k, 2, int(np.bincount(code).max()))

    def draw(random: Generator) -> list[IntArray]:
        order = np.lexsort((random.random(n), code))
        return [order[fold::k] for fold in range(k)]

    return _plan(_repeated("stratified", draw, rng, num_repeats), n, names=index_of(y))


@scheme("fraction", "num_folds")
def random_subsets(
    num_units: int | None = None,
    fraction: float | None = None,
    num_folds: int | None = None,
    *,
    rng: Rng = 0,
) -> Plan:
    """Leave out random subsets of `round(fraction · n)` units, drawn without replacement and
    independently of one another.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more; by default that of the fit which takes the plan.
    fraction : float
        Share of the units that each fold leaves out, between 0 and 1.
    num_folds : int
        Number of folds.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.

    Returns
    -------
    Plan
        One refit a subset. A unit may be scored in several refits, or in none.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.random_subsets(20, 0.25, 3)
    Plan(lo.random_subsets(20, 0.25, 3): 3 folds of 20 units, drawn (rng=0))
    """
    n = count("random_subsets: num_units", num_units, 2)
    size = _subset_size("random_subsets", n, fraction)
    random = generator("random_subsets", rng)
    folds = count("random_subsets: num_folds", num_folds, 1)
    _require_entries("random_subsets", folds * size)
    return _plan([random.choice(n, size, replace=False) for _ in range(folds)], n)


@scheme("fraction", "num_folds")
def contiguous(
    num_units: int | None = None,
    fraction: float | None = None,
    num_folds: int | None = None,
    *,
    rng: Rng = 0,
    groups: ArrayLike | None = None,
) -> Plan:
    """Leave out runs of `round(fraction · n)` successive units, which start at uniformly drawn
    places.

    Of several series, each leaves a run of its own, where n is its length.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more, in their order; by default that of the fit which takes the
        plan.
    fraction : float
        Share of the units that each fold leaves out, between 0 and 1.
    num_folds : int
        Number of folds.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.
    groups : array-like, shape (units,), optional
        The series of each unit, where several stand in the data, as by `lengths=`. The index of a
        Series is matched with the labels of the fit.

    Returns
    -------
    Plan
        One refit a run. Its standard errors treat units as serially dependent.

    See Also
    --------
    blocks : Runs that cover the series once.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.contiguous(20, 0.25, 2)
    Plan(lo.contiguous(20, 0.25, 2): 2 folds of 20 units, drawn (rng=0))
    """
    steps = _number_steps("contiguous", num_units, groups)
    random = generator("contiguous", rng)
    number = count("contiguous: num_folds", num_folds, 1)
    runs = []
    for units in members_by_label(steps.series):
        size = _subset_size("contiguous", len(units), fraction)
        _require_entries("contiguous", number * size)
        runs.append(
            [
                units[start : start + size]
                for start in random.integers(0, len(units) - size + 1, number)
            ]
        )
    folds = [np.concatenate(parts) for parts in zip(*runs, strict=True)]
    return _plan(folds, len(steps.step), **steps.facts)


def _subset_size(caller: str, num_units: int, fraction: float | None) -> int:
    return min(max(1, round(share(f"{caller}: fraction", fraction) * num_units)), num_units - 1)


@scheme("start")
def leave_future_out(
    num_units: int | None = None,
    start: int | None = None,
    horizon: int | None = None,
    *,
    groups: ArrayLike | None = None,
    times: ArrayLike | None = None,
) -> Plan:
    """Leave out the future of each origin `t = start, …, n − 1`.

    Units `t, …, n − 1` are unseen, and the first `horizon` of them are scored. Of several series,
    each leaves its own steps from `t` on, and n is the length of the longest.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more, in their order; by default that of the fit which takes the
        plan.
    start : int
        First origin: the number of units that the first refit sees.
    horizon : int, optional
        Number of units from each origin on that are scored; all of them by default.
    groups : array-like, shape (units,), optional
        The series of each unit, where several stand in the data, as by `lengths=`. The index of a
        Series is matched with the labels of the fit.
    times : array-like, shape (units,), optional
        Time of each unit, which must not fall within a series. Units of one time, as of a panel,
        are one step.

    Returns
    -------
    Plan
        One refit an origin. Its standard errors treat units as serially dependent.

    Examples
    --------
    >>> import leaveout as lo
    >>> plan = lo.leave_future_out(5, start=3, horizon=1)
    >>> plan.matrix().astype(int)
    array([[1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0]])
    >>> plan.scored_units
    array([3, 4])

    Two series of three steps and two:

    >>> lo.leave_future_out(
    ...     5, start=1, horizon=1, groups=["a", "a", "a", "b", "b"]
    ... ).matrix().astype(int)
    array([[1, 0, 0, 1, 0],
           [1, 1, 0, 1, 1]])
    """
    steps = _number_steps("leave_future_out", num_units, groups, times)
    start = count("leave_future_out: start", start, 1, steps.shortest - 1)
    longest = steps.longest
    if horizon is None:
        horizon = longest
    horizon = count("leave_future_out: horizon", horizon, 1, longest)
    return _forward(steps, range(start, longest), horizon, longest)


class Steps(NamedTuple):
    """The step of each unit in its series, the series, and the lengths of series."""

    step: IntArray
    series: IntArray
    facts: NamedValues  # what a plan is told of its units
    shortest: int
    longest: int


def _number_steps(
    caller: str, num_units: int | None, groups: ArrayLike | None, times: ArrayLike | None = None
) -> Steps:
    """Number the steps of every series; ValueError if times fall within one."""
    n = count(f"{caller}: num_units", num_units, 2)
    labels, groups, times = match_labels(caller, groups=groups, times=times)
    series = np.zeros(n, int) if groups is None else codes(caller, "groups", groups)[0].astype(int)
    clock = np.arange(n) if times is None else codes(caller, "times", times)[0]
    if not len(series) == len(clock) == n:
        raise ValueError(
            f"{caller}: groups and times must be one a unit, {n}; got {len(series)} and {len(clock)}."
        )
    if times is not None and pd.api.types.infer_dtype(times) not in {*TIMES, "integer", "floating"}:
        raise TypeError(
            f"{caller}: times must be numbers or dates; got {pd.api.types.infer_dtype(times)}. Convert them by pd.to_datetime."
        )
    by_series = pd.Series(clock).groupby(series)
    if (by_series.diff() < 0).any():
        raise ValueError(
            f"{caller}: times must not fall from unit to unit of a series; sort the data, then fit; groups= are the series."
        )
    step = by_series.rank(method="dense").to_numpy(np.int64) - 1
    lengths = pd.Series(step).groupby(series).max() + 1
    facts = {"serial": True, "names": labels.index}
    if times is not None:
        facts["series"] = np.arange(n)  # whose order is that of the times, and of no rows
    elif groups is not None:
        facts["series"] = series
    return Steps(step, series, facts, int(lengths.min()), int(lengths.max()))


def _forward(steps: Steps, origins: range, horizon: int, window: int) -> Plan:
    """Plan of origins: each scores the `horizon` steps from it on and sees the `window` steps
    before it.
    """
    # units before each step
    starts = np.asarray(origins)
    before = np.cumsum(np.r_[0, np.bincount(steps.step)])
    unseen = len(steps.step) - before[starts] + before[np.maximum(starts - window, 0)]
    _require_entries("a plan of origins", int(unseen.sum()))
    ends = [(t, t + horizon) for t in origins]
    dropped = [np.flatnonzero((steps.step < t - window) | (steps.step >= end)) for t, end in ends]
    folds = [np.flatnonzero((steps.step >= t) & (steps.step < end)) for t, end in ends]
    return _plan(folds, len(steps.step), dropped, **{"series": steps.series} | steps.facts)


@scheme("window")
def rolling(
    num_units: int | None = None,
    window: int | None = None,
    horizon: int = 1,
    step: int = 1,
    *,
    groups: ArrayLike | None = None,
    times: ArrayLike | None = None,
) -> Plan:
    """Predict the units after a window that rolls along the series: each refit sees the `window`
    units before its origin.

    Origins are `t = window, window + step, …`, as far as `horizon` units follow. Units `t, …, t +
    horizon − 1` are scored.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more, in their order; by default that of the fit which takes the
        plan.
    window : int
        Number of units that each refit sees.
    horizon : int, default: 1
        Number of units from each origin on that are scored.
    step : int, default: 1
        Number of units between origins.
    groups : array-like, shape (units,), optional
        The series of each unit, where several stand in the data, as by `lengths=`. The index of a
        Series is matched with the labels of the fit.
    times : array-like, shape (units,), optional
        Time of each unit, which must not fall within a series. Units of one time, as of a panel,
        are one step.

    Returns
    -------
    Plan
        One refit an origin. Its standard errors treat units as serially dependent.

    See Also
    --------
    leave_future_out : A window that grows: each refit sees all units before its origin.
    purged : Blocks of time, without the units whose labels reach into them.

    Examples
    --------
    >>> import leaveout as lo
    >>> plan = lo.rolling(6, window=2, horizon=1, step=2)
    >>> plan.matrix().astype(int)
    array([[1, 1, 0, 0, 0, 0],
           [0, 0, 1, 1, 0, 0]])
    >>> plan.scored_units
    array([2, 4])
    """
    steps = _number_steps("rolling", num_units, groups, times)
    window = count("rolling: window", window, 1, steps.shortest - 1)
    horizon = count("rolling: horizon", horizon, 1, steps.shortest - window)
    origins = range(window, steps.longest - horizon + 1, count("rolling: step", step, 1))
    return _forward(steps, origins, horizon, window)


@scheme()
def purged(
    times: ArrayLike,
    k: int,
    embargo: Any = 0,
    *,
    ends: ArrayLike | None = None,
    num_test_blocks: int = 1,
    groups: ArrayLike | None = None,
) -> Plan:
    """Leave out each of k successive blocks of time, and purge the units whose labels overlap with
    it.

    The label of a unit spans from its time to its end, as a return over ten days does. A refit
    drops, without scoring them, all units whose span meets that of the block that it scores, and
    those that begin within an embargo after it. With several test blocks there is a refit for each
    choice of them: the plan is then combinatorial, and every unit is scored by several refits.

    Parameters
    ----------
    times : array-like or pandas.Series, shape (units,)
        Time of each unit, a number or a date, which must not fall from unit to unit. The index of a
        Series is matched with the labels of the fit.
    k : int
        Number of blocks, of nearly equal numbers of units.
    embargo : number or timedelta, default: 0
        Length of time after a block within which units are dropped, in the unit of `times`.
    ends : array-like, shape (units,), optional
        Time at which the label of each unit is known. By default this is its own time.
    num_test_blocks : int, default: 1
        Number of blocks that each refit leaves out and scores.
    groups : array-like, shape (units,), optional
        The series of each unit. Times then must not fall within a series, and blocks hold the units
        of all series at their times.

    Returns
    -------
    Plan
        One refit a block, or a choice of blocks. Its standard errors treat units as serially
        dependent.

    Raises
    ------
    ValueError
        If times are missing or fall, a label ends before its time, or nothing is left to fit.
    TypeError
        If the embargo is no length of time.

    References
    ----------
    M. López de Prado, *Advances in Financial Machine Learning*, 2018, chapters 7 and 12.

    Examples
    --------
    Labels of six days that reach into the next day, and an embargo of a day:

    >>> import numpy as np
    >>> import leaveout as lo
    >>> day = np.arange(6)
    >>> lo.purged(day, 3, 1, ends=day + 1).matrix().astype(int)
    array([[0, 0, 0, 0, 1, 1],
           [1, 0, 0, 0, 0, 0],
           [1, 1, 1, 0, 0, 0]])
    >>> lo.purged(day, 4, num_test_blocks=2).num_refits
    6
    """
    if ends is None:
        ends = times
    labels, start, until, series = match_labels("purged", times=times, ends=ends, groups=groups)
    start, until = (pd.Series(getattr(column, "array", column)) for column in (start, until))
    n = len(start)
    k = count("purged: k", k, 2, n)
    if len(until) != n or start.isna().any() or until.isna().any():
        raise ValueError(f"purged: times and ends must be one a unit, {n}, none of them missing.")
    zones = {
        (column.dtype.kind == "M", getattr(column.dtype, "tz", None) is None)
        for column in (start, until)
    }
    if len(zones) > 1:
        raise TypeError(
            f"purged: times are {start.dtype}, ends are {until.dtype}; give numbers for both, or dates of one kind, as by "
            "ends.dt.tz_localize(times.dt.tz)."
        )
    if (until < start).any():
        raise ValueError("purged: no label ends before its time.")
    facts = _number_steps("purged", n, series, start).facts
    order = np.asarray(start.argsort(kind="stable"))
    start, until = (column.iloc[order].reset_index(drop=True) for column in (start, until))
    dated = start.dtype.kind == "M"
    if dated:
        length = isinstance(embargo, str | datetime.timedelta | np.timedelta64)
    else:
        length = isinstance(embargo, int | float)
    if start.dtype.kind not in "iufM" or not (length or embargo == 0):
        raise TypeError(
            f"purged: times are numbers or dates, and embargo is a number or a pd.Timedelta; got {start.dtype}, {embargo!r}."
        )
    after = pd.Timedelta(embargo) if dated else embargo
    if embargo != 0 and not after > 0 * after:
        raise ValueError(f"purged: embargo must not be negative; got {embargo!r}.")
    folds = []
    dropped = []
    blocks = np.array_split(np.arange(n), k)
    for chosen in itertools.combinations(
        blocks, count("purged: num_test_blocks", num_test_blocks, 1, k - 1)
    ):
        overlap = np.zeros(n, bool)
        for block in chosen:
            overlap |= (start <= until[block].max() + after) & (until >= start[block[0]])
        overlap[np.concatenate(chosen)] = False
        folds.append(order[np.concatenate(chosen)])
        dropped.append(order[overlap])
    return _plan(folds, n, dropped, **facts | {"names": labels.index})


@scheme()
def groups(labels: ArrayLike, k: int | None = None, *, rng: Rng = 0, num_repeats: int = 1) -> Plan:
    """Leave out every group of units that share a label, or k folds of whole groups. Standard
    errors are over groups.

    Parameters
    ----------
    labels : array-like or pandas.Series, shape (units,)
        Label of each unit, of any kind. The index of a Series is matched with the labels of the
        fit. A model whose units are whole subjects also takes the labels of its rows, where those
        of one unit agree.
    k : int, optional
        Number of folds. By default every group is a fold of its own. Large groups are dealt first,
        those of the same power of two in random order, each to the fold of the fewest units.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.
    num_repeats : int, default: 1
        Number of times that folds are drawn anew. The loss of a unit is its mean over the repeats.

    Returns
    -------
    Plan
        One refit a group, in the order of the labels, or one a fold.

    Raises
    ------
    ValueError
        If a label is missing, there are fewer than two groups, or groups by themselves, which no
        draw changes, are to be repeated.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.groups(["b", "a", "b", "c"]).matrix().astype(int)
    array([[1, 0, 1, 1],
           [0, 1, 0, 1],
           [1, 1, 1, 0]])
    >>> lo.groups(["b", "a", "b", "c"], k=2).matrix().astype(int)
    array([[0, 1, 0, 1],
           [1, 0, 1, 0]])
    """
    code, levels = codes("groups", "labels", labels)
    if len(levels) < 2:
        raise ValueError("groups: at least two groups are needed; all labels are equal.")
    if k is None:
        if num_repeats != 1:
            raise ValueError("groups: every group by itself is the same in every repeat; give k=.")
        folds = members_by_label(code)
    else:
        k = count("groups: k", k, 2, len(levels))
        sizes = np.bincount(code)

        def draw(random: Generator) -> list[IntArray]:
            fold = np.zeros(len(levels), int)
            filled = np.zeros(k)
            for group in np.lexsort((random.random(len(levels)), -np.frexp(sizes)[1])):
                fold[group] = np.argmin(filled)
                filled[fold[group]] += sizes[group]
            return members_by_label(fold[code], k)

        folds = _repeated("groups", draw, rng, num_repeats)
    names = levels if k is None else None
    return _plan(folds, len(code), clusters=code.astype(int), names=index_of(labels), labels=names)


@scheme()
def blocks(
    num_units: int | None = None,
    size: int | None = None,
    *,
    k: int | None = None,
    buffer: int = 0,
    groups: ArrayLike | None = None,
) -> Plan:
    """Leave out successive blocks of units. Units near a block may be dropped with it, without
    being scored.

    Of several series, blocks begin anew with each.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more, in their order; by default that of the fit which takes the
        plan.
    size : int, optional
        Units in a block; the last block may be shorter.
    k : int, optional
        In place of `size`: number of blocks of nearly equal size, k of each series.
    buffer : int, default: 0
        Units on either side of the block that are dropped and not scored.
    groups : array-like, shape (units,), optional
        The series of each unit, where several stand in the data, as by `lengths=`. The index of a
        Series is matched with the labels of the fit.

    Returns
    -------
    Plan
        One refit a block. Its standard errors treat units as serially dependent.

    Examples
    --------
    >>> import leaveout as lo
    >>> plan = lo.blocks(6, 2, buffer=1)
    >>> plan.matrix().astype(int)
    array([[0, 0, 0, 1, 1, 1],
           [1, 0, 0, 0, 0, 1],
           [1, 1, 1, 0, 0, 0]])
    >>> plan.scored_units
    array([0, 1, 2, 3, 4, 5])
    """
    steps = _number_steps("blocks", num_units, groups)
    n = len(steps.step)
    if (size is None) == (k is None):
        raise TypeError(
            "blocks: size= or k= must be given; a number that stands first is num_units=, which a fit knows by itself."
        )
    if size is not None:
        size = count("blocks: size", size, 1, n - 1)
    else:
        k = count("blocks: k", k, 2, steps.shortest)
    buffer = count("blocks: buffer", buffer, 0, n)
    folds = []
    around = []
    for units in members_by_label(steps.series):
        cuts: Any = k
        if size is not None:
            cuts = range(size, len(units), size)
        for block in np.array_split(np.arange(len(units)), cuts):
            start = block[0]
            end = block[-1] + 1
            folds.append(units[block])
            around.append(np.r_[units[max(0, start - buffer) : start], units[end : end + buffer]])
    return _plan(folds, n, around, **steps.facts)


@scheme()
def neighbourhoods(
    edges: Any, radius: int, *, buffer: int = 0, num_sites: int | None = None
) -> Plan:
    """Leave out and score, for every site of a graph, all sites within `radius` edges of it.

    Sites within `radius + buffer` edges are dropped too, but not scored.

    Parameters
    ----------
    edges : array of shape (edges, 2), sparse matrix, networkx or libpysal graph
        The undirected edges: pairs of sites, or a symmetric adjacency matrix. Labels of a graph's
        nodes are matched with those of the fit.
    radius : int
        Largest distance, in edges, at which a site is left out and scored; 0 for the site alone.
    buffer : int, default: 0
        Further distance within which sites are dropped without being scored.
    num_sites : int, optional
        Number of sites, needed where the last sites have no edges.

    Returns
    -------
    Plan
        One refit a site.

    Raises
    ------
    ValueError
        If a neighbourhood is the whole graph, or the edges are not those of an undirected graph.

    Examples
    --------
    The path 0 – 1 – 2 – 3 – 4:

    >>> import leaveout as lo
    >>> lo.neighbourhoods([(0, 1), (1, 2), (2, 3), (3, 4)], radius=1).matrix().astype(int)
    array([[0, 0, 1, 1, 1],
           [0, 0, 0, 1, 1],
           [1, 0, 0, 0, 1],
           [1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0]])
    """
    radius = count("neighbourhoods: radius", radius, 0)
    buffer = count("neighbourhoods: buffer", buffer, 0)
    sites = None
    if num_sites is not None:
        sites = count("neighbourhoods: num_sites", num_sites, 2)
    pairs, n, names = read_edges("neighbourhoods", edges, sites)
    count("neighbourhoods: num_sites", n, 2)
    distance = distances(pairs, n, radius + buffer)
    spans = [slice(*distance.indptr[site : site + 2]) for site in range(n)]
    held = [distance.indices[span][distance.data[span] <= radius + 1] for span in spans]
    around = [distance.indices[span][distance.data[span] > radius + 1] for span in spans]
    return _plan(held, n, around, serial=True, names=names)


@scheme()
def nearest_neighbour_matched(
    points: ArrayLike,
    new_points: ArrayLike,
    k: int,
    *,
    rng: Rng = 0,
    clustering: Literal["hierarchical", "kmeans"] = "hierarchical",
) -> Plan:
    """Split places into k folds that are as far from one another as the places to predict are from
    the data.

    The nearest-neighbour distance of a place in cross-validation is its distance from the nearest
    place of another fold, and that of a new place its distance from the nearest place of the data.
    The folds are those, of many clusterings of the places merged into k folds, whose distances are
    distributed most like those of the new places, by Wasserstein's distance W. If the places are no
    more clustered than the new ones, by a one-sided Kolmogorov–Smirnov test at 5 %, the folds are
    random.

    Parameters
    ----------
    points : array-like or DataFrame, shape (units, coordinates)
        Places of the units. Distances are Euclidean: project longitudes and latitudes first. The
        index of a DataFrame is matched with the labels of the fit.
    new_points : array-like, shape (places, coordinates)
        Places where the model is to predict, such as the cells of a map.
    k : int
        Number of folds.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.
    clustering : {"hierarchical", "kmeans"}, default: "hierarchical"
        Clustering of the places: Ward's, which takes memory for all pairs of places, or k-means.

    Returns
    -------
    Plan
        One refit a fold. It prints W, and that of random folds. Standard errors are over the
        clusters that were merged.

    Raises
    ------
    ValueError
        If coordinates are missing, or there are fewer than 2k places.

    References
    ----------
    J. Linnenbrink, C. Milà, M. Ludwig and H. Meyer, "kNNDM CV: k-fold nearest-neighbour distance
    matching cross-validation for map accuracy estimation", *Geoscientific Model Development*
    17, 2024.

    Examples
    --------
    Places in ten tight clusters, and a map of the whole square:

    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> places = np.repeat(rng.random((10, 2)), 6, axis=0) + 0.01 * rng.normal(size=(60, 2))
    >>> lo.validation.nearest_neighbour_matched(places, rng.random((500, 2)), 5).note[:40]
    'W = 0.0682 between the nearest-neighbour'
    """
    caller = "nearest_neighbour_matched"
    new_points = match_columns(caller, "new_points", new_points, "points", points)
    data_places, new_places = (
        floats(caller, name, coordinates)
        for name, coordinates in (("points", points), ("new_points", new_points))
    )
    if data_places.ndim != 2 or new_places.ndim != 2 or data_places.shape[1] != new_places.shape[1]:
        raise ValueError(
            f"{caller}: points and new_points are [places, coordinates]; got {data_places.shape} and {new_places.shape}."
        )
    if not (np.isfinite(data_places).all() and np.isfinite(new_places).all() and len(new_places)):
        raise ValueError(
            f"{caller}: points and new_points need coordinates that are finite numbers, and a place or more."
        )
    if clustering not in ("hierarchical", "kmeans"):
        raise ValueError(
            f"{caller}: clustering must be 'hierarchical' or 'kmeans'; got {clustering!r}."
        )
    n = len(data_places)
    tree = scipy.spatial.KDTree(data_places)
    k = count(f"{caller}: k", k, 2, n // 2)
    random = generator(caller, rng)
    new_distances = tree.query(new_places)[0]
    data_distances = tree.query(data_places, 2)[0][:, 1]

    def distance(fold: IntArray) -> float:
        """Compute W of the folds."""
        nearest = np.zeros(n)
        for f in range(k):
            nearest[fold == f] = scipy.spatial.KDTree(data_places[fold != f]).query(
                data_places[fold == f]
            )[0]
        return float(scipy.stats.wasserstein_distance(nearest, new_distances))

    fold = random.permutation(np.arange(n) % k)
    label = None
    best = distance(fold)
    note = f"{best:.3g} for random folds"
    # where its exact sum overflows, SciPy approximates
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        # the level of the paper
        clustered = (
            scipy.stats.ks_2samp(data_distances, new_distances, alternative="greater").pvalue < 0.05
        )
    if clustered:
        # as many as in the paper
        sizes = np.unique(np.exp(np.linspace(np.log(k), np.log(n - 2), 100)).round().astype(int))
        for cluster in _clusterings(data_places, sizes, clustering, random):
            merged = _merge(data_places, cluster, k)
            # the largest share of a fold that the paper allows
            if np.bincount(merged).max() > n / 2:
                continue
            if (W := distance(merged)) < best:
                fold = merged
                label = cluster
                best = W
    note = f"W = {best:.3g} between the nearest-neighbour distances of folds and of new places ({note})"
    kind: NamedValues = {} if label is None else {"serial": True, "blocks": label.astype(int)}
    return _plan(members_by_label(fold, k), n, names=index_of(points), note=note, **kind)


def _clusterings(
    points: FloatArray, sizes: IntArray, kind: str, rng: Generator
) -> Iterator[IntArray]:
    """Cluster points into each of the given numbers of clusters."""
    if kind == "hierarchical":
        yield from scipy.cluster.hierarchy.cut_tree(
            scipy.cluster.hierarchy.linkage(points, "ward"), sizes
        ).T
        return
    from sklearn.cluster import KMeans

    state = int(rng.integers(2**32))
    for size in sizes:
        yield KMeans(int(size), n_init=1, random_state=state).fit_predict(points)


def _merge(points: FloatArray, cluster: IntArray, k: int) -> IntArray:
    """Merge clusters into k folds.

    A cluster of a k-th of the points is a fold. The others are dealt to the remaining folds in
    turn, along the first principal axis of the clusters' centres, so that neighbours are in
    different folds.
    """
    sizes = np.bincount(cluster)
    centre = np.stack([np.bincount(cluster, x) / sizes for x in points.T], 1)
    centre -= centre.mean(0)
    along = np.argsort(centre @ np.linalg.svd(centre, full_matrices=False)[2][0])
    large = along[sizes[along] >= len(points) / k]
    small = along[sizes[along] < len(points) / k]
    fold = np.zeros(len(sizes), int)
    fold[large] = np.arange(len(large))
    fold[small] = len(large) + np.arange(len(small)) % max(k - len(large), 1)
    return fold[cluster]


@scheme("num_resamples")
def bootstrap(
    num_units: int | None = None,
    num_resamples: int | None = None,
    *,
    groups: ArrayLike | None = None,
    rng: Rng = 0,
) -> Plan:
    """Draw n units with replacement, again and again: weights are counts, and units that were never
    drawn are scored.

    Only entries whose count is not one are stored. A resample that draws every unit is drawn again.

    Parameters
    ----------
    num_units : int, optional
        Number of units n, 2 or more; by default that of the fit which takes the plan.
    num_resamples : int
        Number of resamples.
    groups : array-like, shape (units,), optional
        Labels of groups, such as centres, which are drawn whole: as many as there are.
    rng : int, numpy.random.Generator or None, default: 0
        Random numbers: a whole number repeats them, and None draws others in each call.

    Returns
    -------
    Plan
        One refit a resample.

    Examples
    --------
    >>> import leaveout as lo
    >>> plan = lo.bootstrap(6, 100)
    >>> plan.num_refits, bool((plan.matrix().sum(axis=1) == 6).all())
    (100, True)
    """
    n = count("bootstrap: num_units", num_units, 2)
    num_draws = count("bootstrap: num_resamples", num_resamples, 1)
    random = generator("bootstrap", rng)
    label = np.arange(n)
    size = n
    if groups is not None:
        label, levels = codes("bootstrap", "groups", groups)
        size = len(levels)
        if len(label) != n or size < 2:
            raise ValueError(
                f"bootstrap: groups must be one label a unit, {n}, of two groups or more; got {len(label)} labels."
            )
    # units that a resample does not see exactly once
    _require_entries("bootstrap", num_draws * n * (1 - np.exp(-1)))
    resamples: list[Entries] = []
    while len(resamples) < num_draws:
        counts = np.bincount(random.integers(0, size, size), minlength=size)[label]
        if not counts.all():
            resamples.append(_departures(counts, counts == 0))
    return plan_of_entries(
        resamples, n, clusters=None if groups is None else label, names=index_of(groups)
    )


@scheme()
def from_splits(
    splits: Iterable[tuple[ArrayLike, ArrayLike]],
    num_units: int | None = None,
    *,
    groups: ArrayLike | None = None,
    times: ArrayLike | None = None,
) -> Plan:
    """Plan of any scikit-learn splitter: `from_splits(splitter.split(X, y, groups))`.

    Units that are in neither the train nor the test set of a split are dropped and not scored. A
    unit that is twice in the train set weighs two.

    Parameters
    ----------
    splits : iterable of (train, test)
        Sets of units of each split, as numbers of units or as one truth a unit. The index of a
        Series of truths is matched with the labels of the fit.
    num_units : int, optional
        Number of units n, 2 or more; by default that of the fit which takes the plan.
    groups : array-like [units], optional
        A label of each unit. Units of one label depend on one another: standard errors are over
        groups, as those of `groups`.
    times : array-like [units], optional
        The time of each unit, rising from unit to unit: the units are a series, and standard errors
        are over blocks along it.

    Returns
    -------
    Plan
        One refit a split.

    Raises
    ------
    ValueError
        If a unit is in the train and the test set of one split, a test set is empty, a number is
        none of a unit, `groups` are all one, `times` do not rise, or both are given.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.model_selection import StratifiedKFold
    >>> y = [0, 0, 0, 1, 1, 1]
    >>> lo.from_splits(StratifiedKFold(3).split(y, y), 6).matrix().astype(int)
    array([[0, 1, 1, 0, 1, 1],
           [1, 0, 1, 1, 0, 1],
           [1, 1, 0, 1, 1, 0]])
    """
    n = count("from_splits: num_units", num_units, 2)
    if groups is not None and times is not None:
        raise ValueError(
            "from_splits: give groups or times, not both: standard errors are over groups, or along a series."
        )
    if not isinstance(splits, Iterable):
        raise TypeError(
            f"from_splits: splits must be pairs (train, test), as of splitter.split(X, y); got {splits!r}."
        )
    refits = []
    names = None
    for k, split in enumerate(splits):
        if (
            not isinstance(split, list | tuple | np.ndarray)
            or len(split) != 2
            or any(np.ndim(part) != 1 for part in split)
        ):
            raise TypeError(
                f"from_splits: split {k} must be a pair (train, test) of numbers of units, as of splitter.split(X, y); got "
                f"{split!r:.60}. Labels of groups go into lo.groups(labels)."
            )
        train, test, names = _by_labels(k, *split, names)
        train, test = (_unit_numbers(f"split {k}", part, n) for part in (train, test))
        if test.size == 0:
            raise ValueError(f"from_splits: the test set of split {k} is empty.")
        if max(train.max(initial=0), test.max()) >= n or min(train.min(initial=0), test.min()) < 0:
            raise ValueError(
                f"from_splits: split {k} names units outside [0, {n}); is num_units right?"
            )
        counts = np.bincount(train, minlength=n)
        if np.any(counts[test] > 0):
            raise ValueError(
                f"from_splits: split {k} has units in both train and test: its loss would not be held out."
            )
        refits.append(_departures(counts, np.isin(np.arange(n), test)))
    if not refits:
        raise ValueError("from_splits: the splitter yielded no split.")
    facts = {"names": names}
    if groups is not None:
        column = UnitColumn.read("from_splits", "groups", groups, n)
        labels, levels = codes("from_splits", "groups", column.values)
        if len(levels) < 2:
            raise ValueError("from_splits: at least two groups are needed; all labels are equal.")
        facts |= _settled("clusters", replace(column, values=labels.astype(int)), names)
    if times is not None:
        facts |= {"serial": True} | _settled(
            "times", UnitColumn.read("from_splits", "times", times, n), names
        )
    return plan_of_entries(refits, n, **facts)


def _settled(name: str, column: UnitColumn, names: "pd.Index | None") -> NamedValues:
    """Return a column in the order of the splits.

    Without a common order of labels it also waits for that of the fit.
    """
    values = column.in_order("from_splits", names, "the splits")
    waiting = {"columns": {name: column}} if (column.names is None) != (names is None) else {}
    if name != "times":
        return {name: values} | waiting
    if not waiting:
        _rising(pd.Series(values))
    return waiting


def _rising(times: "pd.Series") -> None:
    """Raise ValueError if the times of successive units do not rise."""
    if times.isna().any():
        raise ValueError(
            f"from_splits: times has {times.isna().sum()} missing values; drop those units."
        )
    if not times.is_unique:
        raise ValueError(
            f"from_splits: times repeat, as {times[times.duplicated()].iloc[0]}: units of one time are no steps of a series; "
            "leave out whole times and give them as groups="
        )
    if not times.is_monotonic_increasing:
        unit = int(np.flatnonzero(~(times.to_numpy()[1:] > times.to_numpy()[:-1]))[0]) + 1
        raise ValueError(
            f"from_splits: times must rise from unit to unit; unit {unit} is before unit {unit - 1}. Sort the data by time, "
            "then fit and split them."
        )


def _by_labels(
    k: int, train: ArrayLike, test: ArrayLike, names: "pd.Index | None"
) -> "tuple[ArrayLike, ArrayLike, pd.Index | None]":
    """Put the sets of split `k` in the order of the labels of the first labelled split, and return
    these labels with them.
    """
    if not any(
        index_of(part) is not None and np.asarray(part).dtype == bool for part in (train, test)
    ):
        return train, test, names
    labels, train, test = match_labels(
        "from_splits", **{f"the train set of split {k}": train, f"its test set {k}": test}
    )
    order = None
    if names is not None:
        order = places("from_splits", f"split {k}", labels.index, "split 0", names)
    if order is not None:
        train = np.asarray(train)[order]
        test = np.asarray(test)[order]
    return train, test, labels.index if names is None else names


def _unit_numbers(split: str, part: ArrayLike, n: int) -> IntArray:
    """Convert a set of units, given by numbers or by booleans, to numbers."""
    array = np.asarray(part)
    if array.dtype != bool:
        return whole("from_splits", f"the sets of {split}", array)
    if array.shape != (n,):
        raise ValueError(
            f"from_splits: truths must be one a unit, {n}; {split} has shape {array.shape}."
        )
    return np.flatnonzero(array)
