"""The question that an estimate answers, in the words of its data, and the first answer to it.

How well will this model predict {response} for another {unit}? Is it better than no model, by how
much, and how sure is that? The gain is the mean over units of (loss without the columns) − (loss),
on the same folds; its interval is of these differences, unit by unit.
"""

import re
from typing import NamedTuple

import numpy as np

from .._runtime import FloatArray
from ..data import Names
from ..validation.estimate import Estimate
from ..validation.mean_intervals import half_width, usual

LEVEL = 0.95
LONGEST_NAME = 60  # characters of a name that stands in a question
Card = tuple[str, str, str]  # what is asked, the answer, and how sure it is


def question(estimate: Estimate) -> str:
    """Ask what the estimate answers, by the names of the response and of what is left out."""
    response = _response(estimate)
    if response:
        return f"How well will this model predict {response} for another {_unit(estimate)}?"
    return f"How well will this model predict another {_unit(estimate)}?"


def choice(estimates: dict[str, Estimate], first: Estimate) -> str:
    """Ask which of several models is best."""
    response = _response(first)
    if response:
        response = f"{response} for "
    return f"Which of {len(estimates)} models best predicts {response}another {_unit(first)}?"


def _response(estimate: Estimate) -> str:
    """Name what is predicted; "the response" if it has no name, "" if there is none."""
    name = ""
    if estimate.fit is not None:
        objective = estimate.fit.objective
        labels = getattr(getattr(objective, "as_given", objective), "labels", None)
        if isinstance(labels, Names):
            name = _words(labels.name)
    if not name and estimate.response is not None:
        return "the response"
    return name


def _unit(estimate: Estimate) -> str:
    """Name what is new when the model is used: a group, a step, a place or a row."""
    plan = estimate.plan
    if plan.clusters is not None:
        column = re.match(r"lo\.groups\((?:labels=)?(?:<Series )?'([^']+)'", plan.call)
        return _words(column and column[1]) or "group"
    unit = "row"
    if plan.blocks is not None:
        unit = "place"
    elif plan.serial:
        unit = "step of the series"
    return _words(plan._unit_names.name) or unit


def _words(name: object) -> str:
    """Write the name of a column as words."""
    text = str(name).replace("_", " ").strip()
    if not isinstance(name, str) or len(text) > LONGEST_NAME:
        return ""
    return text


class Gain(NamedTuple):
    """How much less one model loses than another, and the ends of its interval.

    These are NaN where there is none. `reason` says what the interval rests on, or why there is
    none.
    """

    mean: float
    low: float
    high: float
    reason: str


def gain(estimate: Estimate, others: FloatArray, error: float) -> Gain:
    """Compare the losses of an estimate with others of the same units; `error` is what the refits
    add.
    """
    difference = others - estimate._unit_losses
    mean = estimate._mean(difference)
    kind = estimate._standard_error(difference).kind
    try:
        if estimate.joint:
            raise ValueError("joint losses have none")
        if estimate._stop_note():
            raise ValueError("the run was stopped")
        plan = estimate.plan
        half = half_width(difference, estimate._weight, plan, LEVEL, usual(plan))
    except ValueError as none:
        reason = str(none).removeprefix("interval: ").rstrip(".")
        return Gain(mean, np.nan, np.nan, f"its interval is not known: {reason}")
    half += error
    kind = kind.replace(
        "independent; usually optimistic", "taken as independent, so often too narrow"
    )
    return Gain(mean, mean - half, mean + half, kind)


def first_answer(estimate: Estimate) -> Card:
    """Answer whether the model is better than no model, by how much, and how sure that is."""
    asked = "Better than no model?"
    if not np.isfinite(estimate.mean):
        return asked, "Not known", "No held-out loss exists: see the checks."
    if not np.isfinite(estimate.no_model) or estimate._null is None:
        return (
            asked,
            "Not known",
            f"What no model loses is not computed here. Compare the loss, {estimate.mean:.5g}, with that of a simpler model on "
            "the same folds, by lo.compare.",
        )
    compared = gain(estimate, estimate.average(estimate._null), estimate.approximation_error)
    amount = f"{abs(compared.mean):.3g} less loss a unit"
    if np.isfinite(estimate.explained):
        amount = f"{abs(estimate.explained):.1%} less loss"
    if compared.mean < 0:
        amount = amount.replace("less", "more")
    verdict = "Not sure"
    if compared.low > 0:
        verdict = "Yes"
    elif compared.high < 0:
        verdict = "No"
    gained = f"{compared.mean:.3g}".replace("-", "−")
    text = (
        f"Held-out loss {estimate.mean:.5g}, and {estimate.no_model:.5g} without the columns of the model, on the same folds. "
        f"The gain is {gained} a unit{_limits(compared)}."
    )
    return asked, f"{verdict}: {amount}", f"{text}{_doubts(estimate)}"


def first_choice(estimates: dict[str, Estimate], names: list[str]) -> Card:
    """Answer which model is best; `names` are theirs, the best first."""
    best, second = (estimates[name] for name in names[:2])
    compared = gain(
        best, second._unit_losses, best.approximation_error + second.approximation_error
    )
    verdict = "Perhaps"
    if compared.low > 0:
        verdict = "Yes"
    return (
        f"Is {names[0]} the best?",
        f"{verdict}: {compared.mean:.3g} less loss a unit",
        f"than the next, {names[1]}, on the same units{_limits(compared)}.{_doubts(best)}",
    )


def _limits(compared: Gain) -> str:
    if np.isnan(compared.low):
        return f"; {compared.reason}"
    ends = f"{compared.low:.3g} to {compared.high:.3g}".replace("-", "−")
    return f" ({LEVEL:.0%} interval {ends}, {compared.reason})"


def _doubts(estimate: Estimate) -> str:
    """Say which checks leave the answer, or how sure it is, in doubt."""
    checks = estimate.checks()
    grave = [check.code for check in checks if check.severity == "error"]
    if grave:
        return f" Do not trust it before the checks are settled: {', '.join(grave)}."
    doubts = [check.code for check in checks if check.severity == "warning"]
    if doubts:
        return f" It may be too good or too sure: see {', '.join(doubts)} among the checks."
    return ""
