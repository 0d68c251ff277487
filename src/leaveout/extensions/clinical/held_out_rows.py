"""Held-out predictions of risks, row by row, with what is needed to judge them.

Outcomes, weights and who depends on whom.
"""

import functools
from typing import Any

import numpy as np
import scipy

from ... import Estimate, Exact, Fit, Plan
from ...developer import (
    RowNumbers,
    StandardError,
    average_by_unit,
    join_remarks,
    naive,
    record,
    standard_error,
)
from .internal_validation import REFIT_TOL, Validation, over_resamples
from .performance import NO_RISKS, AbstractPerformance, Continuous, PerRow, Survival, performance


@record
class HeldOutRows:
    """Predictions of some units, each by a refit that leaves it out, or by the fit itself where
    `plan` is None.

    `score` is the logit of the probability of the second class, or of the risk until `time`, or the
    mean. A unit that several refits predict has a row for each, which share its weight.
    """

    measure: AbstractPerformance
    unit: RowNumbers
    score: PerRow
    weight: PerRow
    plan: Plan | None
    time: float | None
    note: str

    @functools.cached_property
    def outcome(self) -> tuple[PerRow, PerRow]:
        """The outcome of each row and its weight.

        Of survival, death until the time, weighted by 1/Ĝ.
        """
        if not isinstance(self.measure, Survival):
            return self.measure.y[self.unit], self.weight  # type: ignore[attr-defined]
        dead, case = self.measure.at_time(self.measure.middle)
        return dead[self.unit], self.weight * (case / self.measure.case)[self.unit]

    @property
    def prediction(self) -> PerRow:
        """The probability, the risk, or the mean."""
        if isinstance(self.measure, Continuous):
            return self.score
        return scipy.special.expit(self.score)

    @property
    def clusters(self) -> np.ndarray | None:
        """The cluster of every unit, if units are in clusters."""
        return None if self.plan is None else self.plan.clusters

    @property
    def label(self) -> RowNumbers | None:
        """Label of the independent units of rows, if these are not the rows themselves."""
        if self.clusters is not None:
            return self.clusters[self.unit]
        alone = len(np.unique(self.unit)) == len(self.unit) and not isinstance(
            self.measure, Survival
        )
        return None if alone else self.unit

    @property
    def freedom(self) -> float:
        """Degrees of freedom of Student's t: of clusters one less than there are."""
        if self.clusters is None:
            return np.inf
        return len(np.unique(self.clusters[self.unit])) - 1.0

    def mean(self, values: PerRow) -> StandardError:
        """Average contributions of rows over units, with the standard error over independent
        ones.
        """
        n = len(self.measure.case)
        case = self.measure.case
        unit_values = average_by_unit(self.unit, values, n)
        if self.plan is None:
            return StandardError(
                naive(unit_values, case, self.measure.weights.are_cases), "rows independent"
            )
        return standard_error(unit_values, case, self.plan)


def held_out_rows(
    caller: str, source: Any, time: float | None = None, cases: bool = False
) -> HeldOutRows:
    """Return the held-out predictions of an estimate, or the predictions of a fit, whose weights
    may count cases.
    """
    fit = source
    if isinstance(source, Estimate | Validation):
        fit = source.fit
        if cases:
            raise ValueError(
                f"{caller}: cases= goes with a fit; what a weight counts is said where the plan was made."
            )
        if isinstance(source, Validation):
            cases = source.cases
        else:
            cases = source.plan.of_cases
    if fit is None:
        raise ValueError(
            f"{caller}: this estimate has no fit, as one that was pickled has none; make it again."
        )
    if not isinstance(fit, Fit):
        raise TypeError(
            f"{caller}: the first argument must be an Estimate, from lo.cross_validate; got {type(source).__name__}."
        )
    measure = performance(caller, fit, None if time is None else [time], cases)
    at_time = None
    if isinstance(measure, Survival):
        if not measure.times.size:
            raise ValueError(f"{caller}: {NO_RISKS}")
        at_time = measure.middle
    n = len(measure.case)
    if not isinstance(source, Estimate):
        note = join_remarks("apparent", measure.weights.note)
        return HeldOutRows(
            measure,
            np.arange(n),
            measure.scores(measure.fit_prediction)[0],
            measure.case,
            None,
            at_time,
            note,
        )

    plan = source.plan
    exists, _, columns = over_resamples(
        caller, fit, plan, Exact(REFIT_TOL), measure.scores_of_refits, by_unit=True
    )
    scored = plan.held & exists[plan.refit]
    units = plan.index[scored]
    values = columns["score"][scored]
    if unknown := int(np.isnan(values).sum()):
        raise ValueError(
            f"{caller}: {unknown} predictions are of units whose whole stratum their refit leaves out: without its baseline "
            "there is no risk. Leave out parts of strata, or fit without strata."
        )
    order = np.argsort(units, kind="stable")
    units = units[order]
    values = values[order]
    times = np.bincount(units, minlength=n)
    held_out = f"held out, {source.plan.call or 'a plan that was given'}"
    note = join_remarks(held_out, measure.weights.note)
    if not exists.all():
        note += f"; {np.sum(~exists)} of {len(exists)} refits do not exist, {np.sum(times == 0)} units have no prediction"
    return HeldOutRows(
        measure,
        units,
        values,
        (measure.case / np.maximum(times, 1))[units],
        source.plan,
        at_time,
        note,
    )
