"""Training and test rows.

Folds nearest to the filed ones, bundles of exposed rows, controls of similar size.
"""

import numpy as np
import pandas as pd
from jaxtyping import Int
from numpy.random import Generator
from scipy import sparse
from scipy.cluster.hierarchy import DisjointSet

from ...developer import FloatArray, IntArray, RowFlags, largest_first, level_numbers
from ._blocks import components
from ._models import Folds, LeakageFold

MAX_FOLD_RATIO = 1.3  # largest size of a fold, relative to the mean
Rows = Int[np.ndarray, " rows"]  # label of every row
RowNumbers = IntArray  # numbers of rows


def join_clusters(filed: Rows, draws: Rows) -> Rows:
    """Join rows that share a label of either kind; return the components."""
    size = int(filed.max()) + 1
    return components(size + int(draws.max()) + 1, filed, size + draws)[filed]


def join_capped(
    filed: Rows,
    left_rows: RowNumbers,
    right_rows: RowNumbers,
    probability: FloatArray,
    max_rows: int,
) -> Rows:
    """Join filed clusters by pairs, the likeliest first, except for joins with too many rows.

    Without that bound, weak pairs soon join one giant component.
    """
    a = np.minimum(filed[left_rows], filed[right_rows])
    b = np.maximum(filed[left_rows], filed[right_rows])
    order = np.lexsort((b, a, -probability))
    joins = (
        pd.DataFrame({"a": a[order], "b": b[order]})[a[order] != b[order]]
        .drop_duplicates()
        .to_numpy()
    )
    sizes = np.bincount(filed).tolist()
    joined = DisjointSet(range(len(sizes)))
    for first, second in joins.tolist():
        size = sizes[joined[first]] + sizes[joined[second]]
        if size <= max_rows and joined.merge(first, second):
            sizes[joined[first]] = size
    return level_numbers([joined[k] for k in range(len(sizes))])[filed]


def nearest_folds(fold: Rows, clusters: Rows) -> Rows | None:
    """Build folds of whole clusters, each in the fold that has most of its rows and room, else in
    the one with most room.

    Returns None if a cluster is too large for any fold. The pieces of a divided cluster keep their
    folds, so that changes are minimal.
    """
    count = int(fold.max()) + 1
    names = int(clusters.max()) + 1
    votes = sparse.coo_matrix((np.ones(len(fold)), (clusters, fold)), shape=(names, count)).tocsr()
    cluster_fold = np.asarray(votes.argmax(1)).ravel()
    sizes = np.bincount(clusters, minlength=names)
    room = MAX_FOLD_RATIO * len(fold) / count
    if sizes.max() > room:
        return None
    if np.bincount(cluster_fold[clusters], minlength=count).max() > room:
        filled = np.zeros(count)
        for name in largest_first(sizes):
            if filled[cluster_fold[name]] + sizes[name] > room:
                cluster_fold[name] = np.argmin(filled)
            filled[cluster_fold[name]] += sizes[name]
    new_fold = cluster_fold[clusters].astype(int)
    if np.bincount(new_fold, minlength=count).min() > 0:
        return new_fold
    return None


def as_folds(fold: Rows, clusters: Rows) -> Folds:
    """Return pairs of rows: each fold is tested by a fit to all others."""
    return [
        LeakageFold(np.flatnonzero(fold != k), np.flatnonzero(fold == k), clusters)
        for k in range(int(fold.max()) + 1)
    ]


def bundles(rows: RowNumbers, clusters: Rows, count: int, rng: Generator) -> list[RowNumbers]:
    """Divide rows into so many parts of similar size, of whole clusters."""
    names, code, sizes = np.unique(clusters[rows], return_inverse=True, return_counts=True)
    order = rng.permutation(len(names))
    part = np.empty(len(names), int)
    part[order] = (np.cumsum(sizes[order]) - 1) * count // len(rows)
    return [bundle for k in range(count) if len(bundle := rows[part[code] == k])]


def like_size(drop: RowFlags, train: RowNumbers, clusters: Rows, rng: Generator) -> RowFlags:
    """Select as many other rows of `train` as `drop` has, from clusters of similar size.

    Each selected cluster loses the same share of its rows as its match. Clusters that lose a row by
    `drop` are selected last. Clusters are matched within classes of sizes (by powers of two).
    """
    inside = np.zeros(len(drop), bool)
    inside[train] = True
    size = np.bincount(clusters[train], minlength=int(clusters.max()) + 1)
    num_dropped = np.bincount(clusters[drop & inside], minlength=len(size))
    num_rows = int((drop & inside).sum())
    kind = np.log2(np.maximum(size, 1)).astype(int)
    take = np.zeros(len(size))  # share of each other cluster that is selected
    free = (size > 0) & (num_dropped == 0)
    for k in np.unique(kind[num_dropped > 0]):
        dropped_clusters = np.flatnonzero((num_dropped > 0) & (kind == k))
        free_clusters = np.flatnonzero(free & (kind == k))
        count = min(len(dropped_clusters), len(free_clusters))
        take[rng.permutation(free_clusters)[:count]] = rng.permutation(
            num_dropped[dropped_clusters] / size[dropped_clusters]
        )[:count]
    rows = rng.permutation(train[~drop[train]])
    code = clusters[rows]
    rank = pd.Series(rows).groupby(code).cumcount().to_numpy()  # rows in random order
    chosen = rank < np.round(take * size)[code]
    # the rest is filled up by whole clusters, untouched ones first
    last = np.lexsort((rank, rng.permutation(len(size))[code], num_dropped[code] > 0, ~chosen))
    out = np.zeros(len(drop), bool)
    out[rows[last[:num_rows]]] = True
    return out
