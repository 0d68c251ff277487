"""What injection can show: that a tested record has mates in training is shown by injecting others of its cluster, and by those
alone. Of a record by itself nothing like it can be injected, and its loss stays what it is at every level."""

import numpy as np
from numpy.typing import NDArray

from ._models import Fold, Leakage, Pairs

LARGEST = 0.25  # of what may leak: what cannot be shown is not corrected, so that the estimate keeps as much of the naive bias
EVEN = 0.5  # the probability from which a pair is a mate


def unshown(folds: list[Fold], leakage: Leakage) -> float:
    """The share of what may leak that falls on tested records with no mate left beside them.

    May leak: by the probability of a mate in training where pairs are known, else every tested record alike. A mate beside it
    is a likely pair among the tested records, else a record of the same cluster as filed.
    """
    hidden, exposed = 0.0, 0.0
    for fold in folds:
        may = np.ones(len(fold.test))
        if isinstance(leakage, Pairs) and leakage.knows_pairs:
            may = leakage.mates(fold.train, fold.test)
        hidden += float(may @ ~_beside(fold, leakage))
        exposed += float(may.sum())
    return hidden / exposed if exposed else 0.0


def _beside(fold: Fold, leakage: Leakage) -> NDArray[np.bool_]:
    """Has a tested record a mate among those that are tested with it?"""
    if not (isinstance(leakage, Pairs) and leakage.knows_pairs):
        return np.bincount(fold.clusters[fold.test])[fold.clusters[fold.test]] > 1
    tested, out = np.zeros(len(fold.clusters), bool), np.zeros(len(fold.clusters), bool)
    tested[fold.test] = True
    likely = leakage.probability >= EVEN
    left, right = leakage.left[likely], leakage.right[likely]
    both = tested[left] & tested[right]
    out[left[both]] = out[right[both]] = True
    return out[fold.test]


def refusal(share: float) -> str:
    """Why there is no estimate; empty if there may be one."""
    if share <= LARGEST:
        return ""
    return (
        f"{share:.0%} of what may leak falls on tested records with no mate left beside them, as of clusters of one record or "
        "of copies across the split: what leaks there is not what is injected, and no injection shows it. Drop the training "
        "records that may be mates of tested ones, or file likely mates together, and compare"
    )
