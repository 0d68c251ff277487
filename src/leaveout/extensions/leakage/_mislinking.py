"""Shares of leaked records in each fold, and records that are filed under other clusters
uniformly.
"""

from typing import NamedTuple

import numpy as np

from ...developer import FloatArray, IntArray, record, warn
from ._binomial import check_probabilities

# difference of precision and recall that uniform mislinking does not explain
PRECISION_RECALL_GAP = 0.1


class LeakageFold(NamedTuple):
    """The rows of T̂ and V̂, and the cluster of every row of the data."""

    train: IntArray
    test: IntArray
    clusters: IntArray

    @property
    def share_elsewhere(self) -> float:
        """(K − K_fold)/(K − 1), the probability that another cluster than a tested one is not
        tested with it.
        """
        num_tested, num_clusters = (
            len(np.unique(self.clusters[rows]))
            for rows in (self.test, np.r_[self.train, self.test])
        )
        return (num_clusters - num_tested) / max(num_clusters - 1, 1)


Folds = list[LeakageFold]


class Shares(NamedTuple):
    """The leakage in each fold: the shares of records `p_train` and `p_test`, and `exposed`.

    `exposed` is the share of V̂'s records with a half cluster in T̂.
    """

    p_train: FloatArray
    p_test: FloatArray
    exposed: FloatArray


@record
class UniformMislinking:
    """Leakage model in which every record is filed under another cluster, chosen uniformly, with
    probability q.
    """

    q: float
    precision: float
    recall: float
    mechanism = "record"

    def shares(self, folds: Folds) -> Shares:
        sizes = np.bincount(folds[0].clusters)
        mean_size = np.mean(sizes[sizes > 0])
        # 10: records of a cluster from which a recall far below the precision means entities cut in
        # two
        if self.precision > self.recall + PRECISION_RECALL_GAP and mean_size >= 10:
            warn(
                f"RecordLeakage: precision {self.precision:g} with recall {self.recall:g} in clusters of "
                f"{mean_size:.0f} records on average: large entities cut in two, not records mislinked one by "
                "one, for which this over-corrects; use SplitLeakage.from_pairwise(precision, recall)."
            )
        p_test = np.array([self.q * fold.share_elsewhere for fold in folds])
        p_train = p_test * [len(fold.test) for fold in folds] / [len(fold.train) for fold in folds]
        check_probabilities("RecordLeakage.from_pairwise", p_train, p_test)
        return Shares(p_train, p_test, np.zeros(len(folds)))


def uniform_mislinking(precision: float, recall: float) -> UniformMislinking:
    """Derive uniform mislinking from the precision and recall of pairs.

    See `RecordLeakage.from_pairwise`.
    """
    check_rates("RecordLeakage.from_pairwise", precision, recall)
    if precision > recall + PRECISION_RECALL_GAP:
        warn(
            f"RecordLeakage.from_pairwise: precision {precision:g} is far above recall {recall:g}: entities are cut in "
            "two, rather than single records mislinked; consider SplitLeakage.from_pairwise."
        )
    if precision < recall - PRECISION_RECALL_GAP:
        warn(
            f"RecordLeakage.from_pairwise: precision {precision:g} is far below recall {recall:g}: clusters of several "
            "entities merged, which leak nothing (what is left out together stays together); only recall is used."
        )
    return UniformMislinking(1 - float(np.sqrt(recall)), float(precision), float(recall))


def check_rates(caller: str, precision: float, recall: float) -> None:
    for name, value in (("precision", precision), ("recall", recall)):
        if not (np.isfinite(value) and 0 < value <= 1):
            raise ValueError(f"{caller}: {name} must lie in (0, 1]; got {value}.")
