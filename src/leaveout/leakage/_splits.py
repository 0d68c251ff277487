"""Training and test rows.

Folds nearest to the filed ones, bundles of exposed rows, controls of similar size.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int
from scipy import sparse

from .._runtime.arrays import FloatArray, IntArray
from ._blocks import components
from ._models import LeakageFold

MAX_FOLD_RATIO = 1.3  # largest size of a fold, relative to the mean
Rows = Int[np.ndarray, " rows"]  # label of every row
Some = IntArray  # numbers of rows


def join_clusters(filed: Rows, draws: Rows) -> Rows:
    """Join rows that share a label of either kind; return the components."""
    size = int(filed.max()) + 1
    return components(size + int(draws.max()) + 1, filed, size + draws)[filed]


def fold_of(folds: list[LeakageFold]) -> Rows | None:
    """Return the fold that tests each row, if every row is tested once by a fit to all other folds;
    else None.
    """
    n = len(folds[0].clusters)
    times = np.zeros(n, int)
    found = np.zeros(n, np.int64)
    for k, fold in enumerate(folds):
        np.add.at(times, fold.test, 1)
        found[fold.test] = k
    whole = (
        len(folds) > 1
        and np.all(times == 1)
        and all(len(fold.train) + len(fold.test) == n for fold in folds)
    )
    return found if whole else None


def join_capped(
    filed: Rows, remainder: Some, right: Some, probability: FloatArray, most: int
) -> Rows:
    """Join filed clusters by pairs, the likeliest first, except for joins with too many rows.

    Without that bound, weak pairs soon join one giant component.
    """
    a = np.minimum(filed[remainder], filed[right])
    b = np.maximum(filed[remainder], filed[right])
    order = np.lexsort((b, a, -probability))
    joins = (
        pd.DataFrame({"a": a[order], "b": b[order]})[a[order] != b[order]]
        .drop_duplicates()
        .to_numpy()
    )
    sizes = np.bincount(filed).tolist()
    root = list(range(int(filed.max()) + 1))
    for first, second in joins.tolist():
        x = _root(root, first)
        y = _root(root, second)
        if x != y and sizes[x] + sizes[y] <= most:
            root[y] = x
            sizes[x] += sizes[y]
    found = np.array([_root(root, k) for k in range(len(root))])
    return np.unique(found, return_inverse=True)[1][filed]


def _root(root: list[int], k: int) -> int:
    while root[k] != k:
        root[k] = root[root[k]]
        k = root[k]
    return k


def nearest_folds(fold: Rows, clusters: Rows) -> Rows | None:
    """Build folds of whole clusters, each in the fold that has most of its rows and room, else in
    the one with most room.

    Returns None if a cluster is too large for any fold. The pieces of a divided cluster keep their
    folds, so that changes are minimal.
    """
    count = int(fold.max()) + 1
    names = int(clusters.max()) + 1
    votes = sparse.coo_matrix((np.ones(len(fold)), (clusters, fold)), shape=(names, count)).tocsr()
    kept = np.asarray(votes.argmax(axis=1)).ravel()
    sizes = np.bincount(clusters, minlength=names)
    room = MAX_FOLD_RATIO * len(fold) / count
    if sizes.max() > room:
        return None
    if np.bincount(kept[clusters], minlength=count).max() > room:
        filled = np.zeros(count)
        for name in np.argsort(-sizes, kind="stable"):
            k = kept[name] if filled[kept[name]] + sizes[name] <= room else int(np.argmin(filled))
            kept[name] = k
            filled[k] += sizes[name]
    moved = kept[clusters].astype(np.int64)
    if np.bincount(moved, minlength=count).min() > 0:
        return moved
    return None


def as_folds(fold: Rows, clusters: Rows) -> list[LeakageFold]:
    """Return pairs of rows: each fold is tested by a fit to all others."""
    return [
        LeakageFold(np.flatnonzero(fold != k), np.flatnonzero(fold == k), clusters)
        for k in range(int(fold.max()) + 1)
    ]


def bundles(rows: Some, clusters: Rows, count: int, rng: np.random.Generator) -> list[Some]:
    """Divide rows into so many parts of similar size, of whole clusters."""
    names, code, sizes = np.unique(clusters[rows], return_inverse=True, return_counts=True)
    order = rng.permutation(len(names))
    part = np.empty(len(names), np.int64)
    part[order] = (np.cumsum(sizes[order]) - 1) * count // len(rows)
    return [some for k in range(count) if len(some := rows[part[code] == k])]


def like_size(
    drop: Bool[np.ndarray, " rows"], train: Some, clusters: Rows, rng: np.random.Generator
) -> Bool[np.ndarray, " rows"]:
    """Select as many other rows of `train` as `drop` has, from clusters of similar size.

    Each selected cluster loses the same share of its rows as its match. Clusters that lose a row by
    `drop` are selected last. Clusters are matched within classes of sizes (by powers of two).
    """
    inside = np.zeros(len(drop), bool)
    inside[train] = True
    size = np.bincount(clusters[train], minlength=int(clusters.max()) + 1)
    lost = np.bincount(clusters[drop & inside], minlength=len(size))
    wanted = int((drop & inside).sum())
    kind = np.log2(np.maximum(size, 1)).astype(int)
    take = np.zeros(len(size))  # share of each other cluster that is selected
    free = (size > 0) & (lost == 0)
    for k in np.unique(kind[lost > 0]):
        mine = np.flatnonzero((lost > 0) & (kind == k))
        others = np.flatnonzero(free & (kind == k))
        count = min(len(mine), len(others))
        take[rng.permutation(others)[:count]] = rng.permutation(lost[mine] / size[mine])[:count]
    rows = rng.permutation(train[~drop[train]])
    code = clusters[rows]
    order = np.argsort(code, kind="stable")  # within each cluster, rows in random order
    first = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=len(size)))])[code[order]]
    rank = np.empty(len(rows))
    rank[order] = np.arange(len(rows)) - first
    chosen = rank < np.round(take * size)[code]
    # the rest is filled up by whole clusters, untouched ones first
    turn = rng.permutation(len(size))
    last = np.lexsort((rank, turn[code], lost[code] > 0, ~chosen))
    out = np.zeros(len(drop), bool)
    out[rows[last[:wanted]]] = True
    return out
