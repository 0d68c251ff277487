"""Problems of near-duplicates across a fixed split: test rows that are copies of training rows, and a list of the pairs.

The list is complete, has false candidates besides, or lacks pairs without saying so. What leaks is known row by row: each copy
is predicted once more by a fit without the rows that it is a copy of.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

import leaveout as lo

PROBLEMS = 200
TRAINED, TESTED, FRESH = 400, 160, 4000
LISTS = ("complete", "with false candidates", "incomplete, unsaid")
LEARNERS = {
    "1-NN": (lambda: KNeighborsRegressor(1), 5, False),
    "5-NN": (lambda: KNeighborsRegressor(5), 5, False),
    "tree": (lambda: DecisionTreeRegressor(min_samples_leaf=3, random_state=0), 5, False),
    "ridge": (lambda: Ridge(1.0), 150, False),
    "logistic": (lambda: LogisticRegression(C=0.3, max_iter=500), 80, True),
    "forest": (lambda: RandomForestClassifier(20, min_samples_leaf=2, random_state=0), 5, True),
    "boosting": (lambda: HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=12, random_state=0), 5, False),
}


def law(size: int, features: int, classes: bool, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    X = rng.normal(size=(size, features))
    eta = X @ np.random.default_rng(4).normal(size=features) / np.sqrt(features) + np.sin(2 * X[:, 0])
    return X, (rng.random(size) < 1 / (1 + np.exp(-2 * eta))) * 1.0 if classes else eta + 0.7 * rng.normal(size=size)


def losses(model: Any, X: NDArray[np.float64], y: NDArray[np.float64], classes: bool) -> NDArray[np.float64]:
    """Squared errors, of the probability for classes: their means are scikit-learn's scores with the sign turned."""
    return (y - (model.predict_proba(X)[:, 1] if classes else model.predict(X))) ** 2


def answered(seed: int) -> dict[str, Any]:
    """One problem: was it refused, is the true correction inside the interval, or worse than the interval allows?"""
    rng = np.random.default_rng([13, seed])
    make, features, classes = LEARNERS[list(LEARNERS)[seed % len(LEARNERS)]]
    X, y = law(TRAINED + TESTED, features, classes, rng)
    train, test = np.arange(TRAINED), np.arange(TRAINED, TRAINED + TESTED)
    copies = rng.permutation(test)[: round(rng.uniform(0.05, 0.6) * TESTED)]
    source = rng.choice(train, len(copies), replace=bool(rng.random() < 0.5))
    X[copies] = X[source] + rng.choice([0.0, 0.01, 0.1, 0.2]) * rng.normal(size=(len(copies), features))
    y[copies] = y[source] if classes or rng.random() < 0.5 else y[source] + 0.2 * rng.normal(size=len(copies))
    kind = LISTS[seed % len(LISTS)]
    model = make().fit(X[train], y[train])
    naive = losses(model, X[test], y[test], classes)
    clean = naive.copy()
    for row, mate in zip(copies, source, strict=True):
        rest = train[train != mate]
        clean[row - TRAINED] = losses(make().fit(X[rest], y[rest]), X[[row]], y[[row]], classes)[0]
    correction, fresh = naive.mean() - clean.mean(), -losses(model, *law(FRESH, features, classes, rng), classes).mean()
    report = lo.leakage.leakage_report(
        make(), X, y, linkage=lo.leakage.Linkage.from_duplicates(listed(kind, copies, source, test, rng), np.arange(len(y))),
        cv=[(train, test)], scoring="neg_brier_score" if classes else "neg_mean_squared_error", seed=seed,
    )  # fmt: skip
    told = report.table.loc[report.recommended or "naive"]
    low, high = (0.0, 0.0) if report.recommended in (None, "naive") else (told["correction_low"], told["correction_high"])
    return {
        "learner": list(LEARNERS)[seed % len(LEARNERS)],
        "list": kind,
        "refused": report.recommended is None,
        "recommended": report.recommended or "",
        "naive off": -correction / clean.mean(),
        "off": (told["correction"] - correction) / clean.mean(),
        "inside": low <= correction <= high,
        "safe": correction > high,
        "false": correction < low,
        "fresh": told["low"] <= fresh <= told["high"],
    }


def listed(
    kind: str, copies: NDArray[np.int64], source: NDArray[np.int64], test: NDArray[np.int64], rng: np.random.Generator
) -> pd.DataFrame:
    """Pairs of a test and a training row: of the true ones all, or a share; false candidates as improbable as they are."""
    keep = rng.random(len(copies)) < (rng.uniform(0.3, 0.9) if kind == LISTS[2] else 1.0)
    pairs = pd.DataFrame({"l": copies[keep], "r": source[keep], "match_probability": 0.99})
    if kind != LISTS[1]:
        return pairs
    others = pd.DataFrame({"l": rng.choice(test, 100), "r": rng.integers(0, TRAINED, 100), "match_probability": 0.01})
    return pd.concat([pairs, others]).drop_duplicates(["l", "r"])
