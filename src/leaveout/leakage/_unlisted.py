"""Are pairs missing from the list? Where listed mates are near-duplicates in X, unlisted ones as near are counted.

A list of links cannot show what it lacks. But where most listed mates are nearest neighbours of one another, a tested row that
has an unlisted training row as near as three quarters of the listed mates are is likely a duplicate too, beyond as many
as rows with a listed mate have such neighbours besides.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ._study import Study

FEW = 5  # listed pairs, below which nothing is known of how near mates are
NEAREST = 0.5  # of listed mates that are nearest neighbours: fewer, and links are not of near-duplicates
NEAR = 0.75  # of listed mates that are as near
LOOKED = 2000  # rows at which neighbours are looked for
TOLERATED = 0.1  # of all mates: so many unlisted move a correction less than its interval


class Near(NamedTuple):
    """Of the tested rows looked at, how many have listed mates, how many more seem to have unlisted ones; some of them."""

    listed: int
    unlisted: float
    rows: NDArray[np.int64]

    @property
    def share(self) -> float:
        return self.unlisted / max(self.unlisted + self.listed, 1e-300)


def unlisted(X: Any, study: Study, mates: pd.DataFrame) -> Near | None:
    """None where X holds no plain numbers, few pairs are listed, or links are not of near-duplicates. `mates` has `place` and
    `mate_place`, the likeliest listed mate in training."""
    from sklearn.neighbors import NearestNeighbors

    data = _numbers(X)
    sure = mates[mates.probability >= 0.5]
    if data is None or len(sure) < FEW:
        return None
    rng = np.random.default_rng([study.seed, 7])
    mate = dict(zip(sure.place, sure.mate_place, strict=True))
    listed, own, others, found = [], [], [], []
    each = max(LOOKED // len(study.folds), 1)
    for fold, exposed in zip(study.folds, study.mates, strict=True):
        rows = fold.test if len(fold.test) <= each else rng.choice(fold.test, each, replace=False)
        known = dict(zip(fold.test, exposed, strict=True))
        search = NearestNeighbors(n_neighbors=min(2, len(fold.train))).fit(data[fold.train])
        distance, near = search.kneighbors(data[rows])
        for row, apart, neighbour in zip(rows, distance, fold.train[near], strict=True):
            if row in mate:
                listed.append((np.linalg.norm(data[row] - data[mate[row]]), apart[0]))
                others.append(apart[0] if neighbour[0] != mate[row] else apart[-1])
            elif known[row] == 0:
                own.append(apart[0])
                found.append(row)
    at, nearest = np.array(listed).reshape(-1, 2).T
    if len(at) < FEW or np.mean(at <= nearest * (1 + 1e-9) + 1e-12) < NEAREST:
        return None
    limit = np.quantile(at, NEAR)
    close = np.array(own) <= limit
    beside = np.mean(np.array(others) <= limit) * len(own)
    return Near(len(at), max(float(close.sum() - beside), 0.0) / NEAR, np.array(found, np.int64)[close])


def _numbers(X: Any) -> NDArray[np.float64] | None:
    """Columns on one scale."""
    if hasattr(X, "tocsr"):
        return None
    try:
        data = np.asarray(X, np.float64)
    except (TypeError, ValueError):
        return None
    if data.ndim != 2 or not np.isfinite(data).all():
        return None
    spread = data.std(0)
    return (data - data.mean(0)) / np.where(spread > 0, spread, 1.0)
