"""The meaning of the weights of units, for every measure, table and standard error that reads them.

Weights are shares of a mean: c times them is the same data, so that they are taken with mean one
over the units that weigh. Where they are said to be numbers of cases, by
`lo.leave_one_out(cases=True)` or a call's `cases=True`, each case is a unit of its own for standard
errors and resamples. A model whose losses hold their weights already, as Cox's, has them as
`sample_weight`.
"""

from dataclasses import dataclass

import numpy as np

from .._runtime import UnitFlags, kind_of
from ..plans import PlanReader
from .objective import AbstractLinearPredictor, AbstractObjective, PerUnit


@dataclass(frozen=True)
class UnitWeights:
    """Weights of units, of mean one over those that weigh, or numbers of cases.

    `of_model` are the model's own weights, beside the numbers of trials that they contain.
    """

    values: PerUnit
    are_cases: bool
    of_model: PerUnit

    @property
    def weigh(self) -> UnitFlags:
        """Mark the units that weigh."""
        return self.values > 0

    @property
    def scale(self) -> float:
        """The mean of the model's own weights, or one if they are numbers of cases, which have a
        scale.
        """
        if self.are_cases:
            return 1.0
        return float(self.of_model[self.weigh].mean())

    @property
    def rows(self) -> PerUnit:
        """The number of rows that each unit stands for, trials of one proportion being one row."""
        return self.of_model if self.are_cases else self.weigh * 1.0

    @property
    def meaning(self) -> str:
        """The meaning of weights in standard errors, empty where all of them are one."""
        if self.are_cases:
            return f"count cases, {self.rows.sum():.10g} in all"
        weights = self.of_model[self.weigh]
        if np.all(weights == 1):
            return ""
        return f"normalised to sum to the {len(weights)} units; cases=True counts cases"

    @property
    def copies(self) -> PerUnit:
        """The number of independent units that each one stands for."""
        return self.values if self.are_cases else self.weigh * 1.0

    @property
    def note(self) -> str:
        """The sentence of printed results, empty where all units weigh alike."""
        if self.are_cases:
            return f"weights are numbers of cases, {self.values.sum():g} in all"
        if np.ptp(self.values) == 0:
            return ""
        effective = self.values.sum() ** 2 / np.sum(self.values**2)
        return f"weights of mean one over {self.weigh.sum()} units, worth {effective:.3g} of equal weight"


def unit_weights(objective: AbstractObjective, are_cases: bool = False) -> UnitWeights:
    """Return the weights of an objective's units."""
    weight = objective.units.weight
    if weight is None:
        weight = getattr(objective, "sample_weight", None)
    if weight is None:
        ones = np.ones(objective.num_units)
        return UnitWeights(ones, are_cases, ones)
    values = np.asarray(weight, float)
    trials = getattr(objective, "trials", None)
    of_model = values
    if trials is not None:
        of_model = values / trials
    if not are_cases:
        values = values / values[values > 0].mean()
    return UnitWeights(values, are_cases, of_model)


def plan_reader(caller: str, objective: AbstractObjective) -> PlanReader:
    """Return the reader of plans for the units of an objective."""
    linear = isinstance(objective, AbstractLinearPredictor)
    labels = getattr(getattr(getattr(objective, "whole", None), "model", objective), "labels", None)
    return PlanReader(
        caller,
        objective.num_units,
        objective.units,
        getattr(objective, "drop", "row" if linear else "unit"),
        unit_weights(objective, are_cases=True).values,
        linear,
        np.asarray(getattr(objective, "lengths", ()), int),
        kind_of(objective),
        getattr(labels, "table", None),
    )
