"""Held-out predictions, collected as batches of refits arrive, and their measures:
`cross_validate(..., metric=)`.

    pooled
    the measure of all predictions together; of a mean over rows, the mean over units of each one's
    mean over the
              refits that score it
    fold      the mean over refits of the measure of each one's predictions
    repeat    the mean over repeats of k-fold of the measure of each one's predictions together

An area under the ROC curve is by default the mean over repeats of k-fold, over refits where these
hold every class, or pooled. A metric of predictions that are averaged over refits would be that of
an ensemble, which nobody fitted. Each metric has a standard error over independent units, from the
influence of each unit or, for functions that are only called, from the measure without each unit
(the jackknife), and a bound of the effect of the refits' errors, from the error of each prediction.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from .._runtime import (
    NO_REFIT_CODES,
    BoolArray,
    FloatArray,
    IntArray,
    StepResult,
    among,
    level_numbers,
    members_by_label,
    record,
    silence,
    warn,
)
from ..objectives.unit_weights import unit_weights
from ..optimize import Fit
from ..plans import Plan, RefitRows
from ..refit import RefitBatch
from .mean_intervals import MetricValue
from .metrics import Called, Measure, Ranks
from .scorers import measure_of
from .scoring import largest_change, predictions
from .standard_errors import (
    MIN_BLOCKS,
    StandardError,
    average_by_unit,
    independent,
    standard_error,
)

Array = np.ndarray
ScoredValues = Float[Array, "scored ..."]

Average = Literal["pooled", "fold", "repeat"]
# rows of a fold up to which areas are computed fold by fold, if each fold has every class
SMALL_FOLD = 20
POOLING_NOTE = "pooled over held-out predictions"
# groups of units that the jackknife leaves out: its standard error is then known to 3 %
MOST_DELETED = 500

# codes of refits without any loss; undetermined refits mark units with a loss as `held`
NO_LOSS_CODES = NO_REFIT_CODES[1:]


@record
class PredictionColumns:
    """Collect predictions of one kind for every unit that a refit scores, NaN where there is none.

    If they are judged, each has an error.
    """

    kind: str
    judged: bool = False

    def __call__(
        self, fit: Fit, rows: RefitRows, batch: RefitBatch, result: Int[Array, " refits"]
    ) -> StepResult:
        predict_rows = lambda theta: predictions(fit, rows, theta, self.kind)
        values = np.array(predict_rows(batch.theta), float)
        missing = ~np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        columns = {"predicted": values}
        if self.judged:
            columns["predicted_error"] = largest_change(fit, batch, values, predict_rows)
        values[missing | among(result, NO_LOSS_CODES)[:, None]] = np.nan
        return columns


def predictions_of(plan: Plan, kind: str, columns: Mapping[str, Array]) -> "Predictions":
    """Return the predictions that `PredictionColumns` collected; no errors are zeros."""
    unmade = np.full(len(plan.index), np.nan)
    missing = among(columns.get("result", np.zeros(plan.num_refits, int)), NO_REFIT_CODES)
    values = columns.get("predicted", unmade)[plan.held]
    errors = np.zeros_like(values)
    if "predicted_error" in columns:
        errors = columns["predicted_error"][plan.held]
    return Predictions(plan, kind, values, errors, missing)


@record
class Predictions:
    """Predictions of one kind for every unit that a refit scores, in the order of the plan,
    `[scored, ...]`, with their errors.

    A missing prediction is NaN; `missing` marks refits that do not exist.
    """

    plan: Plan
    kind: str
    values: ScoredValues
    errors: ScoredValues
    missing: Bool[Array, " refits"]

    @property
    def existing(self) -> Bool[Array, " scored"]:
        """Mark the predictions that exist."""
        return np.asarray(np.isfinite(self.values).reshape(len(self.values), -1).all(-1))

    def per_unit(self, values: ScoredValues | None = None) -> Float[Array, "units ..."]:
        """Average the predictions of each unit, or other values beside them, over its refits.

        NaN without any.
        """
        seen = self.existing
        if values is None:
            values = self.values
        return average_by_unit(self.plan.scored_units[seen], values[seen], self.plan.num_units)


class HeldOutPredictions(NamedTuple):
    """Held-out predictions, `[scored]`, in the order of units.

    Each has its unit, refit, target, prediction and the error of that. `weight` has the weight of
    every unit.
    """

    unit: IntArray
    refit: IntArray
    target: Array
    prediction: FloatArray
    errors: FloatArray
    weight: FloatArray
    plan: Plan

    def take(self, chosen: NDArray) -> "HeldOutPredictions":
        """Select some of the predictions."""
        columns = (column[chosen] for column in self[:5])
        return HeldOutPredictions(*columns, self.weight, self.plan)  # type: ignore[call-arg]


class Value(NamedTuple):
    """Metric with the contributions of units `[units]`, whose mean it is, its error, and a
    description.

    `groups` has a number for each unit, if contributions are those of groups of units.
    """

    value: float
    values: FloatArray
    error: float
    description: str
    groups: IntArray | None = None


def measures(
    caller: str, fit: Fit, metric: Any, plan: Plan, average: Average | None = None
) -> dict[str, Measure]:
    """Return the measures by name; ValueError for one that is unknown, or that the model or the
    plan does not have.

    A single measure may be a name, a scorer of scikit-learn's or a function of (y, prediction);
    several are a list or a dict.
    """
    if average is not None and average not in get_args(Average):
        raise ValueError(
            f"{caller}: average must be 'pooled', 'fold' or 'repeat'; got {average!r}."
        )
    if average == "repeat" and repeats(plan) is None:
        raise ValueError(
            f"{caller}: average='repeat' needs a plan whose successive refits score every unit once."
        )
    if metric is None:
        metric = ()
    elif isinstance(metric, str) or not isinstance(metric, Iterable):
        metric = (metric,)
    choices = metric.values() if isinstance(metric, Mapping) else metric
    listed = [measure_of(caller, fit, choice) for choice in choices]
    names = [measure.name for measure in listed]
    if isinstance(metric, Mapping):
        names = list(metric)
    if len({*names}) < len(names):
        raise ValueError(
            f"{caller}: metric names {', '.join(names)}: give measures of one name as {{name: measure}}."
        )
    times = np.bincount(plan.scored_units)
    uneven = np.ptp(unit_weights(fit.objective).values) > 0
    uneven |= average in (None, "pooled") and np.ptp(times[times > 0]) > 0
    for name, measure in zip(names, listed, strict=True):
        if uneven and not measure.weighs:
            raise ValueError(
                f"{caller}: metric={name!r} takes no sample_weight, and units have different weights or are scored unequally "
                "often; give average='fold' for the latter."
            )
    return dict(zip(names, listed, strict=True))


def prediction_kind(measures: Mapping[str, Measure]) -> str:
    """Return the kind of predictions that measures take."""
    if any(measure.needs == "risk" for measure in measures.values()):
        return "link"
    return "response"


def measure(
    measures: Mapping[str, Measure],
    fit: Fit,
    predictions: Predictions,
    average: Average | None,
    weight: FloatArray | None = None,
    sampling: Callable[..., StandardError] = standard_error,
) -> dict[str, MetricValue]:
    """Compute metrics of predictions, by their names.

    The weights of units are by default the model's; `sampling` computes the standard error of the
    mean of their contributions.
    """
    plan = predictions.plan
    if weight is None:
        weight = unit_weights(fit.objective, plan.of_cases).values
    values = {
        name: metric_value(
            measure, in_order(fit, predictions, measure)._replace(weight=weight), average
        )
        for name, measure in measures.items()
    }
    width = np.diff(plan.indptr).max()
    small = width < 0.05 * plan.num_units or plan.scored_counts.max() <= SMALL_FOLD
    pooled = [
        name
        for name, measure in measures.items()
        if isinstance(measure.functional, Ranks) and POOLING_NOTE in values[name].description
    ]
    if small and pooled:
        warn(
            f"cross_validate: {' and '.join(pooled)} pooled over small folds is biased downwards: predictions of different "
            "refits are ranked against each other, and each refit leans away from the class it left out (of a model of an "
            "intercept alone the AUC is 0, not 0.5). Compare losses, or use large folds, or folds that each hold every class."
        )
    measured = dict[str, MetricValue]()
    for name, value in values.items():
        measure = measures[name]
        unit_plan = plan if value.groups is None else replace(plan, clusters=value.groups)
        groups = independent(value.values, weight, unit_plan)
        freedom = groups.units - 1.0 if groups.label is not None else np.inf
        description = value.description
        if measure.needs == "label" and measure.title:
            description += f", {measure.title}"
        se = sampling(value.values, weight, unit_plan).value
        measured[name] = MetricValue(
            value.value, se, value.error, description, measure.bounds, freedom
        )
    return measured


def in_order(fit: Fit, predictions: Predictions, measure: Measure) -> HeldOutPredictions:
    """Collect the existing predictions in the order of units, with targets in the form of the
    measure.
    """
    units = fit.objective.units
    seen = np.flatnonzero(predictions.existing)
    plan = predictions.plan
    order = seen[np.argsort(plan.scored_units[seen], kind="stable")]
    unit = plan.scored_units[order]
    refit = plan.scored_refits[order]
    responses = units.risk if measure.needs == "risk" else units.target
    target = np.asarray(responses)[unit]
    values = predictions.values[order]
    errors = predictions.errors[order]
    if measure.labels is not None:
        target = measure.numbered(units, target)
        if not units.classes:  # two numbers: the nearer is the label
            low, high = map(float, measure.labels)
            values = (values - low) / (high - low)
            errors /= high - low
        elif values.ndim > 1 and values.shape[1] == 2:
            values = values[:, 1]
            errors = errors[:, 1]
    return HeldOutPredictions(
        unit, refit, target, values, errors, unit_weights(fit.objective, plan.of_cases).values, plan
    )


class PredictionParts(NamedTuple):
    """The parts of held-out predictions over which a measure is averaged: the entries of each, the
    weights of all entries, and what the parts are.
    """

    entries: list[IntArray]
    weight: FloatArray
    name: str

    def describe(self, measure: Measure, count: int) -> str:
        """Describe a mean over those of the parts that define the measure."""
        lacking = len(self.entries) - count
        reason = "lack a class" if isinstance(measure.functional, Ranks) else "do not define it"
        suffix = f" ({lacking} more {reason})" if lacking else ""
        if self.name == POOLING_NOTE:
            return f"{self.name}{suffix}"
        return f"mean over {count} {self.name}{suffix}"


def divide(
    measure: Measure, held: HeldOutPredictions, average: Average | None
) -> tuple[IntArray, str]:
    """Number the parts over which a measure is averaged, and describe them.

    Areas by default are the mean over parts that hold every class, or that of all together.
    """
    together = np.zeros_like(held.refit), POOLING_NOTE
    plan = held.plan
    refit = held.refit
    is_area = isinstance(measure.functional, Ranks) and measure.functional.statistic == "area"
    if average == "fold":
        return refit, "folds"
    if average == "pooled" or (average is None and not is_area):
        return together
    repeat = repeats(plan)
    if average is None:
        weight = held.weight[held.unit]
        is_complete = _has_every_class(refit, held.target, weight, plan.num_refits)
        is_complete = is_complete[np.unique(refit)]
        if repeat is None:
            return (refit, "refits") if is_complete.any() else together
        small = plan.scored_counts.max() <= SMALL_FOLD
        if is_complete.all() and small and plan.clusters is None:
            return refit, "folds"
        if not _has_every_class(repeat[refit], held.target, weight, repeat.max() + 1).any():
            return together
    assert repeat is not None
    if repeat.max():
        return repeat[refit], f"repeats, each {POOLING_NOTE}"
    return together


def metric_value(
    measure: Measure, held: HeldOutPredictions, average: Average | None = None
) -> Value:
    """Compute a metric of held-out predictions."""
    if measure.per_record and average in (None, "pooled"):
        return _mean_over_units(measure, held)
    part, name = divide(measure, held, average)
    weight = held.weight[held.unit]
    if name == POOLING_NOTE:
        weight = weight / np.bincount(held.unit)[held.unit]
    entries = [rows for rows in members_by_label(part) if len(rows)]
    parts = PredictionParts(entries, weight, name)
    if isinstance(measure.functional, Called):
        return _leave_groups_out(measure, held, parts)
    return _mean_over_parts(measure, held, parts)


def _mean_over_units(measure: Measure, held: HeldOutPredictions) -> Value:
    """Average a measure of single predictions over units, each its mean over refits."""
    n = len(held.weight)
    weight = held.weight[held.unit]
    with silence("all"):
        by_row = measure.of_means(held.target, held.prediction, held.errors, weight)
    values, error = (average_by_unit(held.unit, column, n) for column in by_row)
    seen = np.bincount(held.unit, minlength=n) > 0
    mean = lambda column: float(np.average(column[seen], weights=held.weight[seen]))
    description = "mean over units"
    if len(held.unit) > seen.sum():
        description += ", each its mean over refits"
    return Value(mean(values), values, mean(error), description)


def _mean_over_parts(measure: Measure, held: HeldOutPredictions, parts: PredictionParts) -> Value:
    """Average a measure over the parts in which it is defined.

    A unit contributes its part of each, and a share of the part's difference from the mean, as
    contributions within a part of few rows of a class vary too little.
    """
    n = len(held.weight)
    weight = parts.weight
    defined = []  # entries, their contributions, the error
    for entries in parts.entries:
        contributions = _of_part(measure, held.take(entries), weight[entries])
        if contributions is not None:
            defined.append((entries, *contributions))
    description = parts.describe(measure, len(defined))
    if not defined:
        return _undefined(n, description)
    values = [np.average(pseudo, weights=weight[entries]) for entries, pseudo, _ in defined]
    mean = float(np.mean(values))
    change = np.zeros(n)
    seen = np.zeros(n, bool)
    for (entries, pseudo, _), value in zip(defined, values, strict=True):
        share = weight[entries] / weight[entries].sum()
        kinds = np.zeros(len(entries), int)
        if measure.classes:
            kinds = level_numbers(held.target[entries])
        kind_share = np.bincount(kinds, share)
        offset = (value - mean) / (np.sqrt(len(kind_share)) * np.maximum(kind_share, 1e-300)[kinds])
        unit = held.unit[entries]
        change += np.bincount(unit, share * (pseudo - value + offset) / len(defined), n)
        seen[unit] = True
    scale = held.weight[seen].sum() / np.where(held.weight > 0, held.weight, 1.0)
    error = float(np.mean([error for _, _, error in defined]))
    return Value(mean, np.where(seen, mean + scale * change, np.nan), error, description)


def _undefined(n: int, description: str) -> Value:
    return Value(np.nan, np.full(n, np.nan), np.nan, f"not defined: {description}")


def _of_part(
    measure: Measure, held: HeldOutPredictions, weight: FloatArray
) -> tuple[NDArray, float] | None:
    """Compute the contributions of rows to the measure of a part, and its error.

    None where it is not defined.
    """
    if (
        isinstance(measure.functional, Ranks)
        and not _has_every_class(held.unit * 0, held.target, weight, 1)[0]
    ):
        return None
    # a share of the variance
    if measure.high == 1.0 and measure.needs == "response" and np.sum(weight > 0) < 2:
        return None
    with silence("all"):
        values, error = measure.of_means(held.target, held.prediction, held.errors, weight)
        if measure.per_record:
            error = float(np.average(error, weights=weight))
    if np.isfinite(np.average(values, weights=weight)):
        return values, error
    return None


def _leave_groups_out(measure: Measure, held: HeldOutPredictions, parts: PredictionParts) -> Value:
    """Compute a measure that is only called, and the contributions of units from the measure
    without each group of units.
    """
    plan = held.plan
    n = len(held.weight)
    weight = parts.weight
    value = functools.partial(value_of_rows, measure, held, weight)
    values_of_parts = [(value(entries), entries) for entries in parts.entries]
    defined = [pair for pair in values_of_parts if np.isfinite(pair[0])]
    description = parts.describe(measure, len(defined))
    if not defined:
        return _undefined(n, description)
    seen = np.flatnonzero((np.bincount(held.unit, minlength=n) > 0) & (held.weight > 0))
    groups = plan.clusters if plan.clusters is not None else plan.blocks
    code = np.arange(len(seen))
    if groups is not None:
        code = level_numbers(groups[seen])
    count = int(code.max()) + 1
    ordered = groups is None and plan.serial
    if merged := count > MOST_DELETED:
        # of a series successive steps, else at random
        spread = np.arange(count) * MOST_DELETED // count
        code = (spread if ordered else np.random.default_rng(0).permutation(spread))[code]
        count = MOST_DELETED
    label = np.full(n, -1)
    label[seen] = code
    without = np.tile([[part_value] for part_value, _ in defined], count)
    errors = []
    for part_without, (_, entries) in zip(without, defined, strict=True):
        entry_labels = label[held.unit[entries]]
        for g in np.unique(entry_labels[entry_labels >= 0]):
            part_without[g] = value(entries[entry_labels != g])
        part = held.take(entries)
        errors.append(measure.error(part.target, part.prediction, part.errors, weight[entries]))
    result = float(np.mean([part_value for part_value, _ in defined]))
    change = result - np.ma.masked_invalid(without).mean(0).filled(np.nan)
    values = np.full(n, np.nan)
    share = np.bincount(code, held.weight[seen]) / held.weight[seen].sum()
    if count >= 2 * MIN_BLOCKS and np.sum(change != 0) < MIN_BLOCKS:
        description += "; no SE, since it depends on few units, as a maximum does"
    elif not np.isfinite(change).all():
        description += "; no SE, since it needs each of the units"
    else:
        values[seen] = result + (change * (1 - share) / share)[code]
        kind = "groups of units" if count < len(seen) else "units"
        description += f"; SE by the jackknife over {count} {kind}"
    units = label if merged and not ordered else None
    return Value(result, values, float(np.mean(errors)), description, units)


def value_of_rows(
    measure: Measure, held: HeldOutPredictions, weight: FloatArray, rows: IntArray
) -> float:
    """Compute a measure of rows of held-out predictions; NaN where it is not defined."""
    target = held.target[rows]
    is_ranked = isinstance(measure.functional, Ranks)
    if weight[rows].sum() <= 0 or (
        is_ranked and not _has_every_class(0 * rows, target, weight[rows], 1)[0]
    ):
        return np.nan
    try:
        return measure(target, measure.form(held.prediction[rows]), weight[rows])
    except (ValueError, ZeroDivisionError):  # such as a class that is missing
        return np.nan


def _has_every_class(part: IntArray, target: NDArray, weight: FloatArray, count: int) -> BoolArray:
    """Mark the parts that hold every class."""
    seen = weight > 0
    classes = np.unique(target[seen])
    present = [np.bincount(part[seen & (target == code)], minlength=count) > 0 for code in classes]
    return np.all(present, 0) & (len(classes) > 1)


def repeats(plan: Plan) -> IntArray | None:
    """Number the repeat of every refit, if successive refits score every unit once.

    Else return None.
    """
    unit = plan.scored_units
    ends = np.cumsum(plan.scored_counts)
    times = np.bincount(unit, minlength=plan.num_units)
    if times.max() == 1:
        return np.zeros(plan.num_refits, int)
    repeat = np.zeros(plan.num_refits, int)
    count = np.zeros(plan.num_units, int)
    filled = 0
    total = np.sum(times > 0)
    for k, units in enumerate(np.split(unit, ends[:-1])):
        repeat[k] = filled // total
        if np.any(count[units] != repeat[k]):
            return None
        count[units] += 1
        filled += len(units)
    return repeat if filled % total == 0 else None
