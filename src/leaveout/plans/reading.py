"""Read what a call is given as a plan, and match it with the units of a fit.

A plan may be a number of folds, a splitter of scikit-learn, pairs (train, test), or a `Plan`, whose
units have labels or not, or which gets those of the fit.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._runtime import FloatArray, IntArray, is_pandas, level_numbers, pd, record, warn
from ..data import check_times, is_default_index, named_column
from .plan import Plan, Splitter, blocks, from_splits, groups as plan_of_groups, kfold, stratified

PlanLike = Plan | int | Splitter | Iterable[tuple[ArrayLike, ArrayLike]]


@record
class PlanReader:
    """Read plans for the units of a model; `caller` is the name of the call, for messages.

    `units` are the facts about them, `unit_kind` is the word for one, and `cases` has the number of
    cases of each. `leaves_cases` says whether units of a refit may lose some of their cases, and
    `lengths` has those of several series. `table` is that of a formula, or the frame of the rows,
    whose columns a plan may name.
    """

    caller: str
    num_units: int
    units: Any
    unit_kind: str
    cases: FloatArray
    leaves_cases: bool
    lengths: IntArray
    model: str
    table: "pd.DataFrame | None"

    def column(self, argument: str, value: Any) -> Any:
        """Return a column of the table, if an argument is its name, and otherwise the argument."""
        return named_column(self.table, value, f"{self.caller}: {argument}")

    def read(self, plan: PlanLike, groups: ArrayLike | None = None) -> Plan:
        """Make the plan that a number of folds, a splitter, pairs of sets or a plan without units
        stand for.
        """
        caller = self.caller
        n = self.num_units
        units = self.units
        if isinstance(plan, Plan):
            if groups is not None:
                raise TypeError(
                    f"{caller}: groups= goes with a number of folds or a splitter; a Plan has its own: lo.groups(labels)."
                )
            return plan._bind(n, self.table, self.cases, units.target)
        clusters = None
        labelled: ArrayLike | None = None
        if groups is not None:
            clusters = labelled = self.match(plan_of_groups(groups)).clusters
            if units.names is not None:
                labelled = pd.Series(clusters, units.names)
        if isinstance(plan, int | np.integer) and not isinstance(plan, bool):
            if clusters is not None:
                return plan_of_groups(clusters, k=int(plan))
            if units.classes and units.target is not None:
                return stratified(units.target, k=int(plan))
            if units.serial:
                return blocks(n, k=int(plan))
            return kfold(n, k=int(plan))
        are_labels = isinstance(plan, str | np.ndarray) or is_pandas(plan, "Series", "DataFrame")
        if are_labels or not (isinstance(plan, Iterable) or hasattr(plan, "split")):
            column = (
                f"; groups of a column are lo.groups({plan!r})" if isinstance(plan, str) else ""
            )
            raise TypeError(
                f"{caller}: plan must be a Plan, such as lo.leave_one_out(), a number of folds, or a splitter; got "
                f"{type(plan).__name__}{column}."
            )
        splits: Any = plan
        origin = "pairs (train, test)"
        if not isinstance(plan, Iterable):
            origin = repr(plan)
            try:
                splits = list(splits.split(np.zeros((n, 1)), units.target, clusters))
            except (ValueError, TypeError) as error:
                if clusters is None and "groups" in str(error):
                    raise ValueError(
                        f"{caller}: {plan!r} needs groups; give one label a unit as groups=."
                    ) from error
                if units.target is None:
                    raise ValueError(
                        f"{caller}: {plan!r} does not split units that have no target: {error}"
                    ) from error
                raise
        read = from_splits(splits, n, groups=labelled)
        return read._replace_facts(call=f"lo.from_splits of {origin}")

    def match(self, plan: PlanLike, groups: ArrayLike | None = None) -> Plan:
        """Read a plan and match it with the units, by labels if both have them.

        Raise for plans and fits that cannot be cross-validated.
        """
        caller = self.caller
        units = self.units
        count = self.num_units
        plan = self.read(plan, groups)
        if units.rows is not None and plan.num_units not in (count, len(units.rows)):
            plan = self._without_missing(plan, units.row_names)
        if units.rows is not None and plan.num_units == len(units.rows) > count:
            plan = self._by_units(plan._match_labels(caller, units.row_names))
        plan = self._without_missing(plan, units.names)
        if plan.of_cases:
            # cases that leave, whole numbers but for rounding
            cases = self.cases[plan.index]
            removed = cases * (1 - plan.weight)
            are_whole = np.isclose(removed, np.round(removed), rtol=1e-9, atol=1e-9)
            are_whole &= (cases % 1 == 0) & self.leaves_cases
            plan._check_held(caller, plan.held & (plan.weight > 0) & ~are_whole)
        if plan.num_units != count:
            labelled = ""
            if units.names is not None:
                labelled = ", or of a Series labelled as the data were: units that the fit lacks then leave the plan"
            raise ValueError(
                f"{caller}: the plan is for {plan.num_units} units, but the fit has {count}; make it with {count}, "
                f"one for each {self.unit_kind}{labelled}."
            )
        if not units.repeatable and np.any(plan.weight > 1):
            problem = (
                f"{caller}: the plan has weights above 1, as a bootstrap has, but"
                f"{'' if units.serial is not None else ' whether'} the units of this {self.model} depend on one another"
            )
            if units.serial is None:
                raise ValueError(
                    f"{problem} is not known: a weight of two need not be a second copy. Where "
                    "they do not, say so, as by lo.Objective(..., dependence='independent')."
                )
            raise ValueError(
                f"{problem}: a weight of two there is not a second copy. "
                "Use contiguous, blocks or leave_future_out, or resample whole sequences."
            )
        plan = plan._match_labels(caller, units.names)
        if plan.series is not None:
            pieces = np.unique(np.stack([plan.series, self.series]), axis=1)
            if pieces.shape[1] > len(np.unique(plan.series)):
                raise ValueError(
                    f"{caller}: the plan takes {count} steps for one series, but the fit has {len(self.lengths)} (lengths=): give the "
                    "plan groups=, the series of each step, as groups=np.repeat(np.arange(len(lengths)), lengths)."
                )
        return plan

    def resolve(self, plan: PlanLike, groups: ArrayLike | None = None) -> Plan:
        """Read a plan, match it, and give it the model's facts about its units: labels, which have
        a loss, and their dependence.
        """
        plan = self.match(plan, groups)
        units = self.units
        held = plan.held & units.scored_entries(plan.refit, plan.index, plan.weight)
        if not held.any():
            raise ValueError(
                f"{self.caller}: no held-out unit has a loss: each is missing, or leaves with its absorbed effect, of which refits "
                "know nothing: leave out parts of levels, as by lo.kfold(k=10)."
            )
        names = units.names
        if plan.serial and names is not None:
            series = self.series
            if plan.series is not None:
                series = level_numbers(plan.series)
            order = np.argsort(series, kind="stable")
            check_times(self.caller, "the data", names[order], np.bincount(series))
        if names is None and plan.names is not None and not is_default_index(plan.names):
            names = plan.names
        blocks = units.blocks if plan.blocks is None else plan.blocks
        return plan._replace_facts(
            held=held, serial=plan.serial or units.serial, blocks=blocks, names=names
        )

    @property
    def series(self) -> IntArray:
        """The number of the series of each unit, of which there is one if the model has no more."""
        if self.lengths.sum() == self.num_units:
            return np.repeat(np.arange(len(self.lengths)), self.lengths)
        return np.zeros(self.num_units, int)

    def _by_units(self, plan: Plan) -> Plan:
        """Convert a plan of rows to one of units that are several rows.

        ValueError if it leaves out parts of a unit.
        """
        unit = np.asarray(self.units.rows)
        size = np.bincount(unit)
        n = len(size)
        key, first, entry = np.unique(
            plan.refit * n + unit[plan.index], return_index=True, return_inverse=True
        )
        alike = (plan.weight == plan.weight[first][entry]) & (plan.held == plan.held[first][entry])
        is_parted = np.bincount(entry, alike) < size[key % n]
        member = np.unique(unit, return_index=True)[1]
        clusters = plan.clusters
        if is_parted.any() or (clusters is not None and np.any(clusters != clusters[member][unit])):
            raise ValueError(
                f"{self.caller}: the plan is for {plan.num_units} rows and leaves out parts of the fit's {n} units, each of which "
                f"leaves with all its rows: give labels that agree within a unit, or make it with {n}, one for each "
                f"{self.unit_kind}."
            )
        names = None
        # each refit leaves one unit: the label is its name
        if plan.labels is not None and len(key) == plan.num_refits == n:
            names = pd.Index(plan.labels)[np.argsort(key % n)]
        return replace(
            plan,
            indptr=np.searchsorted(key, np.arange(plan.num_refits + 1) * n),
            index=key % n,
            weight=plan.weight[first],
            held=plan.held[first],
            num_units=n,
            names=names,
            **plan._facts_of(member),
        )

    def _without_missing(self, plan: Plan, names: "pd.Index | None") -> Plan:
        """Restrict a plan to the units of a fit that lacks some labels, as hosts drop rows with
        missing values; warn of these.
        """
        if (
            names is None
            or plan.names is None
            or plan.num_units <= len(names)
            or not (names.is_unique and plan.names.is_unique)
        ):
            return plan
        units = plan.names.get_indexer(names)
        if (units < 0).any() or is_default_index(names):  # labels 0, 1, … may have been renumbered
            return plan
        missing = plan.names.difference(names, sort=False)
        warn(
            f"{self.caller}: {len(missing)} of the plan's {plan.num_units} units are not among those of the fit, such as "
            f"{missing.tolist()[0]!r}; they leave the plan."
        )
        return plan._only(units)
