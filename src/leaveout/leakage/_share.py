"""How much of T̂ could belong to the test clusters? No more than looks like V̂: an estimate by a classifier."""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..interop.sklearn import Host
from ._hosts import seeded
from ._injection import make_folds

LEAST = 20  # records of V̂ in the region where it stands out most


def largest_leakage_share(
    X: Any, *, groups: ArrayLike, cv: Any = None, classifier: Host | None = None, seed: int = 0
) -> pd.DataFrame:
    """An *estimate* of the largest share of T̂ that can belong to V̂'s clusters, by fold: `fold`, `p_train`, `auc`.

    If a share p of T̂ is distributed as V̂ is, then in every region R of the records `P_T̂(R) ≥ p P_V̂(R)`, so p is at most the
    least ratio. A `classifier` (default: logistic regression of standardised columns) that tells V̂ from T̂, cross-fitted,
    gives the regions {score ≥ t}; the least of `(P_T̂ + se) / (P_V̂ − se)` over those with 20 records of V̂ or more is returned.
    Not a bound: clusters that look alike make it large, a weak classifier too, and noise may make it too small.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = X if hasattr(X, "iloc") else np.asarray(X)
    count = X.shape[0]
    model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    model = seeded(model if classifier is None else classifier, seed)
    folds, _ = make_folds("largest_leakage_share", X, np.zeros(count), groups, cv, seed)
    rows = []
    for k, fold in enumerate(folds):
        if len(fold.test) < 2 * LEAST:
            raise ValueError(f"largest_leakage_share: V̂ needs {2 * LEAST} records or more; fold {k} has {len(fold.test)}.")
        both = np.concatenate([fold.train, fold.test])
        mine = np.arange(len(both)) >= len(fold.train)
        some = X.iloc[both] if hasattr(X, "iloc") else X[both]
        split = StratifiedKFold(5, shuffle=True, random_state=seed)
        score = cross_val_predict(model, some, mine, cv=split, method="predict_proba")[:, 1]
        rows.append({"fold": k, "p_train": _least_ratio(score[~mine], score[mine]), "auc": _auc(score[~mine], score[mine])})
    return pd.DataFrame(rows)


def _least_ratio(train: Float[np.ndarray, " train"], test: Float[np.ndarray, " test"]) -> float:
    """min over thresholds of `(P_T̂ + se) / (P_V̂ − se)`."""
    cut = np.sort(test)[::-1][LEAST - 1 :]
    above = [1 - np.searchsorted(np.sort(side), cut) / len(side) for side in (train, test)]
    error = [
        np.sqrt(np.maximum(share * (1 - share), 1 / len(side)) / len(side))
        for share, side in zip(above, (train, test), strict=True)
    ]
    ratio = (above[0] + error[0]) / np.maximum(above[1] - error[1], 1e-12)
    return float(min(ratio.min(), 1.0))


def _auc(train: Float[np.ndarray, " train"], test: Float[np.ndarray, " test"]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(np.r_[np.zeros(len(train)), np.ones(len(test))], np.r_[train, test]))
