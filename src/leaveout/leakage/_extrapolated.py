"""The last answer: more leakage injected and extrapolated to none, where injection can show what mates do."""

import functools
from collections.abc import Callable

from ._result import LeakageResult
from ._shown import refusal, unshown
from ._study import Answer, Study

ASSUMPTION = "leaks are records of the test clusters like any other, and the loss goes on below the least leakage as above it"


def extrapolated(study: Study, corrected: Callable[[], LeakageResult]) -> Answer:
    """By `leakage_corrected`; refused where it refuses, before its fits if injection cannot show what leaks."""
    refused = functools.partial(Answer, "extrapolated", ASSUMPTION)
    if hidden := refusal(unshown(study.folds, study.linkage)):
        return refused(hidden)
    try:
        result = corrected()
    except ValueError as error:
        return refused(str(error).removeprefix("leakage_corrected: ").rstrip("."))
    if result.refusal:
        return refused(result.refusal)
    assert result.influence is not None and result.naive_influence is not None  # scores without it are refused before
    change = result.influence - result.naive_influence
    return Answer(
        "extrapolated",
        ASSUMPTION,
        score=study.naive.value + result.correction,
        correction=result.correction,
        influence=study.naive.influence + change,
        change=change,
        exposed=0.0,
        monte_carlo=result.se_mc**2,
        between=result.se_p**2,
    )
