"""The fourth answer: more leakage injected and extrapolated to none, where injection can show what mates do."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._models import Fold
from ._study import Answer, Study
from ._variance import Partitions

HIDDEN = 0.5  # of the exposure: records with no mate in what is injected, beyond which injection shows nothing
ASSUMPTION = "leaks are records of the test clusters like any other, and the loss goes on below the least leakage as above it"


def extrapolated(study: Study, corrected: Callable[[], Any]) -> Answer:
    """By `leakage_corrected`; refused where it refuses, and where records that may have mates in training have none in V̂."""
    refused = functools.partial(Answer, "extrapolated", ASSUMPTION)
    hidden = share_hidden(study.folds, study.clusters, study.linkage.knows_pairs)
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
    influence = getattr(result, "influence", None)
    change = None if influence is None else influence - result.naive_influence
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


def share_hidden(folds: list[Fold], clusters: Partitions, known: bool) -> float:
    """Of the tested records with a mate in training, over drawn partitions, the share that has none beside it among those
    tested; where pairs are not `known`, of all those filed alone."""
    if not known:
        return float(np.mean(np.concatenate([alone(fold.clusters[fold.test]) for fold in folds])))
    hidden, exposed = 0.0, 0.0
    for own in clusters:
        for fold in folds:
            trained = np.isin(own[fold.test], own[fold.train])
            hidden += float(np.sum(trained & alone(own[fold.test]) & alone(fold.clusters[fold.test])))
            exposed += float(trained.sum())
    return hidden / exposed if exposed else 0.0


def alone(clusters: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows that no other shares a cluster with."""
    return np.bincount(clusters)[clusters] == 1
