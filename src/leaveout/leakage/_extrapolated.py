"""The fourth answer: more leakage injected and extrapolated to none, where injection can show what mates do."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._models import Fold
from ._study import Answer, Study

HIDDEN = 0.5  # of the exposure: records with no mate in what is injected, beyond which injection shows nothing
ASSUMPTION = "leaks are records of the test clusters like any other, and the loss goes on below the least leakage as above it"


def extrapolated(study: Study, corrected: Callable[[], Any]) -> Answer:
    """By `leakage_corrected`; refused where it refuses, and where records that may have mates in training have none in V̂."""
    refused = functools.partial(Answer, "extrapolated", ASSUMPTION)
    hidden = share_hidden(study.folds, study.linkage)
    if hidden > HIDDEN:
        return refused(
            f"{hidden:.0%} of the records that may have mates in training have none among those tested with them, so that "
            "injecting these cannot show what mates do"
        )
    try:
        result = corrected()
    except ValueError as error:
        return refused(str(error).removeprefix("leakage_corrected: ").rstrip("."))
    if result.refusal:
        return refused(result.refusal)
    naive = study.naive
    change = None if result.influence is None else result.influence - result.naive_influence
    difference = result.estimate - result.naive
    return Answer(
        "extrapolated",
        ASSUMPTION,
        score=naive.value + difference,
        correction=difference,
        influence=None if change is None else naive.influence + change,
        change=change,
        exposed=0.0,
        monte_carlo=result.se_mc**2,
        between=0.0,
    )


def share_hidden(folds: list[Fold], linkage: Any) -> float:
    """Of the expected records with a mate in training, the share that has none beside it among those tested."""
    if not linkage.knows_pairs:
        return _singletons(folds)
    hidden, exposed = 0.0, 0.0
    for fold in folds:
        across = linkage.mates(fold.train, fold.test)
        beside = np.maximum(linkage.mates(fold.test, fold.test), _filed_beside(fold))
        hidden += float(across @ (1 - beside))
        exposed += float(across.sum())
    return hidden / exposed if exposed > 0 else 0.0


def _singletons(folds: list[Fold]) -> float:
    """Of tested records, those that are filed alone."""
    return 1 - float(np.mean(np.concatenate([_filed_beside(fold) for fold in folds])))


def _filed_beside(fold: Fold) -> NDArray[np.float64]:
    own = fold.clusters[fold.test]
    return (np.bincount(own)[own] > 1) * 1.0
