"""Models of leakage: shares of records, or of entities, that are filed under the wrong cluster.

For each fold, T̂ is the training set and V̂ the test set: `p_train` is the share of T̂ that belongs
to V̂'s clusters, and `p_test` the share of V̂ that belongs to T̂'s.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from ...developer import FloatArray, IntArray, record, warn
from ._binomial import check_probabilities
from ._linkage import Linkage
from ._mislinking import (
    PRECISION_RECALL_GAP,
    Folds,
    LeakageFold as LeakageFold,
    Shares,
    UniformMislinking,
    check_rates,
    uniform_mislinking,
)


@runtime_checkable
class Leakage(Protocol):
    mechanism: str

    def shares(self, folds: Folds) -> Shares: ...


@runtime_checkable
class DrawnLeakage(Protocol):
    """Uncertain leakage model, with the pairs of records that may be mates, and the shares in each
    of many draws of the links.
    """

    left: IntArray
    right: IntArray
    probability: FloatArray
    knows_pairs: bool

    def mates(self, train: ArrayLike, test: ArrayLike) -> FloatArray: ...

    def shares_drawn(self, folds: Folds) -> list[Shares]: ...


@record
class RecordLeakage:
    """A leakage model in which single records are filed under a wrong cluster: a share `p_train` of
    T̂ and `p_test` of V̂.

    `from_pairwise` and `from_match_probabilities` derive the shares from what a record linkage
    reports.

    Parameters
    ----------
    p_train, p_test : float or array_like, `[folds]`
        The shares in the folds of `cv=`, which are five of several clusters each by default. The
        rates of single clusters, as those of the source document, go with
        `cv=LeaveOneGroupOut()`.

    Raises
    ------
    ValueError
        If a share is outside [0, 1), or `p_train + p_test ≥ 1` in some fold.

    See Also
    --------
    SplitLeakage : Whole entities that are cut in two.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.leakage.RecordLeakage(0.05).p_train
    0.05
    """

    p_train: ArrayLike
    p_test: ArrayLike = 0.0
    mechanism = "record"

    def __post_init__(self) -> None:
        check_probabilities("RecordLeakage", self.p_train, self.p_test)

    def shares(self, folds: Folds) -> Shares:
        """Return the shares of leakage in each fold.

        Parameters
        ----------
        folds : list of folds
            The folds.

        Returns
        -------
        Shares
            `p_train`, `p_test`, and `exposed`.
        """
        fold_shares = []
        for name, p in (("p_train", self.p_train), ("p_test", self.p_test)):
            p = np.asarray(p, float)
            if p.ndim and len(p) != len(folds):
                remedy = ""
                if len(p) == len(np.unique(folds[0].clusters)):
                    remedy = " These are as many as the clusters: cv=LeaveOneGroupOut() leaves out each of them."
                raise ValueError(
                    f"RecordLeakage: {name} must be one number, or one for each of {len(folds)} folds; got {len(p)}.{remedy}"
                )
            fold_shares.append(np.broadcast_to(p, len(folds)))
        p_train, p_test = fold_shares
        return Shares(p_train, p_test, np.zeros(len(folds)))

    @staticmethod
    def from_pairwise(precision: float, recall: float) -> UniformMislinking:
        """Derive the model from the precision and recall of pairs, if records are mislinked
        uniformly, each with probability q.

        A pair survives if both its records stay: precision ≈ recall ≈ (1 − q)², so q = 1 − √recall.
        In a fold of K_fold of K clusters a mislinked record comes from outside with probability (K
        − K_fold)/(K − 1):

            p_test = q (K − K_fold)/(K − 1),      p_train = p_test |V|/|T|.

        Parameters
        ----------
        precision, recall : float
            The rates of the linkage.

        Returns
        -------
        UniformMislinking
            A leakage model.

        Warns
        -----
        UserWarning
            If the two rates differ so much that another mechanism is at work.
        """
        return uniform_mislinking(precision, recall)

    @staticmethod
    def from_match_probabilities(pairs: Any, ids: Any = None) -> Linkage:
        """Return `Linkage.from_pairs(pairs, ids)`.

        Parameters
        ----------
        pairs : table, Series, array or sequence
            Pairs of records and the probabilities that they match.
        ids : array_like, frame or int, optional
            The names of all rows, or their number.

        Returns
        -------
        Linkage
            The linkage.
        """
        return Linkage.from_pairs(pairs, ids)


@record
class SplitLeakage:
    """A leakage model in which whole entities are cut in two, and their halves filed as two
    clusters.

    Each entity is cut with probability `rate`, so that this share of all records is in halves. The
    other half of one in V̂ is in T̂ with probability (K − K_fold)/(K − 1). The injection is of half
    clusters.

    Parameters
    ----------
    rate : float
        The probability that an entity is cut.

    Raises
    ------
    ValueError
        Unless 0 ≤ rate < 1.

    See Also
    --------
    RecordLeakage : Single records under a wrong cluster.

    Examples
    --------
    >>> import leaveout as lo
    >>> round(lo.leakage.SplitLeakage.from_pairwise(1.0, 0.95).rate, 2)
    0.1
    """

    rate: float
    mechanism = "split"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.rate) and 0 <= self.rate < 1):
            raise ValueError(f"SplitLeakage: rate must lie in [0, 1); got {self.rate}.")

    @staticmethod
    def from_pairwise(precision: float, recall: float) -> "SplitLeakage":
        """Derive the model from the precision and recall of pairs.

        An entity that is cut in equal halves loses about half its pairs, so rate = 2 (1 − recall);
        the precision stays near one.

        Parameters
        ----------
        precision, recall : float
            The rates of the linkage.

        Returns
        -------
        SplitLeakage
            A leakage model.
        """
        check_rates("SplitLeakage.from_pairwise", precision, recall)
        if precision < 1 - PRECISION_RECALL_GAP:
            warn(
                f"SplitLeakage.from_pairwise: precision {precision:g} is far from 1, so not only splits are at work; if "
                "records are mislinked one by one use RecordLeakage.from_pairwise."
            )
        return SplitLeakage(2 * (1 - recall))

    def shares(self, folds: Folds) -> Shares:
        """Return the shares of leakage in each fold.

        Parameters
        ----------
        folds : list of folds
            The folds.

        Returns
        -------
        Shares
            `p_train`, `p_test`, and `exposed`.
        """
        none = np.zeros(len(folds))
        return Shares(none, none, np.array([self.rate * fold.share_elsewhere for fold in folds]))


def check_known(leakage: object) -> Leakage:
    """Raise ValueError if no leakage is given, as it cannot be learned from the losses."""
    if leakage is None:
        raise ValueError(
            "leakage_corrected: leakage=None. How much leaks cannot be learned from the losses: all leakage matrices share one "
            "column space, so every p fits them equally well (see residual_profile). Ways out: "
            "Linkage.from_pairs(pairs), .from_labelled(sample) or .from_rates(precision, recall) from record linkage; "
            "RecordLeakage(p_train) from knowledge, and result.sensitivity(p) for a range of it; largest_leakage_share for an "
            "estimate of the most it could be; leakage_slope_test, which needs no p."
        )
    if not isinstance(leakage, Leakage):
        raise TypeError(
            f"leakage_corrected: leakage must be a Linkage, RecordLeakage or SplitLeakage; got {type(leakage).__name__}."
        )
    return leakage
