"""Pairs of rows with near embeddings.

All pairs by scikit-learn or, for many rows, nearly all by faiss.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import linalg

from ...developer import FloatArray, IntArray, floats, optional, slices
from ._tables import PairIndices, PairNumbers

ALL = 20_000  # rows up to which every neighbour is found; ten seconds at 64 columns
# rows whose neighbours are also searched in full, and the share of these that must be found
FULL_SEARCH_ROWS = 200
MIN_SEARCH_RECALL = 0.99
Points = Float[np.ndarray, "rows features"]


class NearPairs(NamedTuple):
    """Pairs `left < right` and their distance.

    `found_share` is the share of all neighbours among them.
    """

    left: PairIndices
    right: PairIndices
    distance: PairNumbers
    found_share: float


def points(caller: str, X, metric: str) -> Points:
    """Read the embeddings, scaled to length one for angles, where the squared distance is 2 (1 −
    cosine).
    """
    if metric not in ("cosine", "euclidean"):
        raise ValueError(f"{caller}: metric must be 'cosine' or 'euclidean'; got {metric!r}.")
    array = floats(caller, "X", X)
    if array.ndim != 2 or not len(array) or not np.isfinite(array).all():
        raise ValueError(
            f"{caller}: X must be finite numbers of shape (rows, features); got shape {array.shape}."
        )
    if metric == "euclidean":
        return array
    length = linalg.norm(array, axis=1, keepdims=True)
    if (length == 0).any():
        raise ValueError(
            f"{caller}: row {np.flatnonzero(length == 0)[0]} of X is zero and has no angle; use metric='euclidean'."
        )
    return array / length


def read_threshold(caller: str, threshold: float | None, metric: str) -> float:
    """Read the distance between `points` up to which rows are copies."""
    least = -1.0 if metric == "cosine" else 0.0
    if threshold is None or not (
        np.isfinite(threshold) and least <= threshold and (metric != "cosine" or threshold <= 1)
    ):
        between = "a distance from 0"
        if metric == "cosine":
            between = "a cosine from -1 to 1"
        raise ValueError(f"{caller}: threshold must be {between}; got {threshold}.")
    # 1e-7: distance of unit vectors that differ by rounding
    if metric == "cosine":
        return float(np.sqrt(2 * (1 - threshold))) + 1e-7
    return float(threshold)


def near_pairs(caller: str, X: Points, radius: float) -> NearPairs:
    """Find the pairs within that distance; ValueError if there are too many."""
    sample = np.random.default_rng(0).permutation(len(X))[:FULL_SEARCH_ROWS]
    num_pairs = len(_within(X, X[sample], radius)[1])
    mean_neighbours = 50  # neighbours of a row, on average
    if num_pairs > (mean_neighbours + 1) * len(sample):
        raise ValueError(
            f"{caller}: a row has {num_pairs / len(sample) - 1:.0f} others within distance {radius:.3g}, "
            f"more than {mean_neighbours}; these are no copies. "
            "Give a stricter threshold, or label pairs at the distances between copies and others."
        )
    query_rows = 2000  # rows searched at once
    num_found = num_pairs
    if len(X) <= ALL:
        pairs = [
            np.add(np.stack(_within(X, X[rows], radius), 1), [rows.start, 0])
            for rows in slices(len(X), query_rows)
        ]
        left, right = np.concatenate(pairs).T
    else:
        index = _index(X)
        while True:
            num_found = len(_within(X, X[sample], radius, index)[1])
            if num_found >= MIN_SEARCH_RECALL * num_pairs or index.nprobe >= index.nlist:
                break
            index.nprobe = min(2 * index.nprobe, index.nlist)
        left, right = _within(X, X, radius, index)
    low = np.minimum(left, right)
    high = np.maximum(left, right)
    key = np.unique(low[low != high] * len(X) + high[low != high])
    low, high = divmod(key, len(X))
    return NearPairs(low, high, distances(X, low, high), num_found / num_pairs)


def distances(X: FloatArray, left_rows: IntArray, right_rows: IntArray) -> PairNumbers:
    out = np.empty(len(left_rows))
    for chunk in slices(len(left_rows), 100_000):
        out[chunk] = linalg.norm(X[left_rows[chunk]] - X[right_rows[chunk]], axis=1)
    return out


def _within(
    X: FloatArray, queries: FloatArray, radius: float, index=None
) -> tuple[IntArray, IntArray]:
    """Find all rows near the given ones by scikit-learn, or nearly all by an index of faiss.

    Returns pairs of the given row's number and a near row.
    """
    # 1e-5: rounding of float32, relative to the squared length of the longest row; pairs that are
    # too far are removed later
    max_square = float(radius**2 + 1e-5 * np.max(np.sum(X**2, 1)))
    if index is None:
        from sklearn.neighbors import NearestNeighbors

        rows = (
            NearestNeighbors(radius=float(np.sqrt(max_square)))
            .fit(X)
            .radius_neighbors(queries, return_distance=False)
        )
        count = [len(row) for row in rows]
        neighbour = np.concatenate(rows).astype(int)
    else:
        limits, _, neighbour = index.range_search(
            np.ascontiguousarray(queries, np.float32), max_square
        )
        count = np.diff(limits.astype(int))
    query = np.repeat(np.arange(len(queries)), count)
    close = linalg.norm(queries[query] - X[neighbour], axis=1) <= radius
    return query[close], neighbour[close]


def _index(X: FloatArray):
    """Index rows by the nearest of about 4 √rows centres.

    Neighbours are searched under the nearest few.
    """
    with optional(
        f"Linkage.from_embeddings: neighbours among more than {ALL:,} rows need faiss: pip install 'leaveout[neighbours]'."
    ):
        import faiss
    index: Any = faiss.index_factory(X.shape[1], f"IVF{int(4 * np.sqrt(len(X)))},Flat")
    rows = np.ascontiguousarray(X, np.float32)
    index.train(rows)
    index.add(rows)
    index.nprobe = 8
    return index
