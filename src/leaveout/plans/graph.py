"""Readers of graphs, distances between their sites, and blocks of neighbouring sites."""

from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray
from numpy.typing import ArrayLike
from scipy import sparse

from .._runtime import members_by_label, pd
from ..data import places

Edges = Int[ndarray, "edges 2"]


def read_edges(
    caller: str, edges: Any, num_sites: int | None = None, names: "pd.Index | None" = None
) -> "tuple[Edges, int, pd.Index | None]":
    """Read each undirected edge once, in the order given; return the edges, the number of sites and
    their labels.

    `edges` is `[edges, 2]`, numbers of sites or labels that are not whole numbers; a symmetric
    sparse adjacency matrix; a networkx graph (sites in the order of its nodes, unless these are 0,
    1, …, n − 1) or a libpysal graph (sites in the order of its ids). Weights of edges are ignored.
    If the data have labels `names`, sites are numbered as there.

    Raises TypeError for anything else, and ValueError for loops, duplicates, one-sided edges, sites
    out of range or other labels.
    """
    labels = None
    if hasattr(edges, "is_directed") and hasattr(edges, "nodes"):
        pairs, count, labels = _of_networkx(caller, edges)
    elif sparse.issparse(edges) or sparse.issparse(getattr(edges, "sparse", None)):
        pairs, count = _of_sparse(caller, edges if sparse.issparse(edges) else edges.sparse)
        # for both kinds of libpysal's graphs
        ids = getattr(edges, "unique_ids", getattr(edges, "id_order", None))
        labels = None if ids is None else pd.Index(ids)
    else:
        pairs, labels = _of_pairs(caller, edges, names)
        count = int(pairs.max(initial=-1)) + 1 if num_sites is None else num_sites
    if num_sites is not None and count != num_sites:
        raise ValueError(f"{caller}: the graph has {count} sites, but the data have {num_sites}.")
    if labels is None or names is None:
        order = None
    else:
        order = places(caller, "the graph", labels, "x", names)
    if order is not None:
        pairs = np.argsort(order)[pairs]
        labels = names
    _check(caller, pairs, count)
    return pairs, count, labels


def _of_pairs(
    caller: str, edges: ArrayLike, names: "pd.Index | None"
) -> "tuple[Edges, pd.Index | None]":
    pairs = np.asarray(edges)
    labels = None
    if pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype.kind in "OUS":
        labels = pd.Index(pd.unique(pairs.ravel())) if names is None else names
        if not labels.is_unique:
            duplicate = labels[labels.duplicated()][0]
            raise ValueError(
                f"{caller}: edges name sites, but several sites of the data are called {duplicate!r}."
            )
        numbers = labels.get_indexer(pd.Index(pairs.ravel())).reshape(-1, 2)
        if (numbers < 0).any():
            raise ValueError(
                f"{caller}: edges name site {pairs[numbers < 0][0]!r}, which the data do not have."
            )
        pairs = numbers
    if pairs.size == 0:
        pairs = np.zeros((0, 2), int)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        square = pairs.ndim == 2 and pairs.shape[0] == pairs.shape[1]
        raise TypeError(
            f"{caller}: edges must be integers [edges, 2], a sparse adjacency matrix, a networkx or a libpysal graph; got "
            f"{type(edges).__name__} of shape {list(pairs.shape)}, {pairs.dtype}."
            f"{' An adjacency matrix goes in as scipy.sparse.csr_array(edges).' if square else ''}"
        )
    return pairs.astype(int), labels


def _of_networkx(caller: str, graph) -> "tuple[Edges, int, pd.Index]":
    nodes = list(graph.nodes)
    is_numbered = all(isinstance(v, int | np.integer) for v in nodes) and set(nodes) == set(
        range(len(nodes))
    )
    number = {v: int(v) if is_numbered else position for position, v in enumerate(nodes)}
    pairs = np.array([(number[s], number[t]) for s, t in graph.edges()], int).reshape(-1, 2)
    if graph.is_directed():
        arcs = set(map(tuple, pairs.tolist()))
        oneway = next((pair for pair in arcs if pair[::-1] not in arcs), None)
        if oneway is not None:
            raise ValueError(
                f"{caller}: the directed graph has an edge from {nodes[oneway[0]]} to {nodes[oneway[1]]} but none back; "
                "use graph.to_undirected()."
            )
        pairs = pairs[pairs[:, 0] <= pairs[:, 1]]
    return (
        pairs,
        len(nodes),
        pd.RangeIndex(len(nodes)) if is_numbered else pd.Index(nodes, tupleize_cols=False),
    )


def _of_sparse(caller: str, matrix) -> tuple[Edges, int]:
    matrix = sparse.coo_array(matrix)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"{caller}: the adjacency matrix must be square; got {list(matrix.shape)}."
        )
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise ValueError(
            f"{caller}: the adjacency matrix holds negative or infinite values or NaN; nonzero means an edge."
        )
    linked = sparse.csr_array((matrix.data != 0, (matrix.row, matrix.col)), shape=matrix.shape)
    linked.eliminate_zeros()
    oneway = sparse.coo_array(linked > linked.T)
    if oneway.nnz:
        raise ValueError(
            f"{caller}: {oneway.nnz} edges are one-sided, the first from site {oneway.row[0]} to {oneway.col[0]} but not back; "
            "make the adjacency A symmetric, as by A.maximum(A.T)."
        )
    upper = sparse.coo_array(sparse.triu(linked))
    return np.stack([upper.row, upper.col], 1).astype(int), matrix.shape[0]


def _check(caller: str, pairs: Edges, count: int) -> None:
    out = (pairs < 0) | (pairs >= count)
    if out.any():
        raise ValueError(
            f"{caller}: edges name site {pairs[out][0]}, but sites are numbered from 0 to {count - 1}. Whole numbers that are "
            "labels go in as text, .astype(str), in edges and data."
        )
    loops = pairs[pairs[:, 0] == pairs[:, 1], 0]
    if loops.size:
        raise ValueError(
            f"{caller}: {loops.size} edges are loops, the first at site {loops[0]}; a site is no neighbour of itself."
        )
    _, first, times = np.unique(np.sort(pairs, 1), axis=0, return_index=True, return_counts=True)
    if (times > 1).any():
        s, t = pairs[first[times > 1][0]]
        raise ValueError(
            f"{caller}: {np.sum(times > 1)} edges are given more than once, such as ({s}, {t}); it counts once: "
            "give one of (s, t) and (t, s)."
        )


def adjacency(edges: Edges, num_sites: int) -> "sparse.csr_array":
    arcs = np.concatenate([edges, edges[:, ::-1]])
    return sparse.csr_array(
        (np.ones(len(arcs)), (arcs[:, 0], arcs[:, 1])), shape=(num_sites, num_sites)
    )


def distances(edges: Edges, num_sites: int, radius: int) -> "sparse.csr_array":
    """One plus the number of edges between sites at most `radius` apart, as a sparse matrix.

    No entry for others.
    """
    neighbourhood = counts = sparse.eye_array(num_sites, format="csr")
    step = adjacency(edges, num_sites) + neighbourhood
    for _ in range(radius):
        neighbourhood = (neighbourhood @ step).sign()
        counts = counts + neighbourhood
    # the distance of two sites is the number of smaller neighbourhoods that lack the pair
    counts.data = radius + 2 - counts.data
    counts.sort_indices()
    return counts


def blocks(edges: Edges, num_sites: int, count: int) -> Int[ndarray, " sites"]:
    """Label `count` blocks of neighbouring sites of nearly one size, by repeated bisection of the
    graph.
    """
    label = np.zeros(num_sites, int)
    graph = adjacency(edges, num_sites)

    def cut(sites: Int[ndarray, " piece"], parts: int, first: int) -> None:
        if parts == 1:
            label[sites] = first
            return
        first_parts = parts // 2
        order = sites[_order_sites(graph[sites][:, sites])]
        end = round(len(sites) * first_parts / parts)
        cut(order[:end], first_parts, first)
        cut(order[end:], parts - first_parts, first + first_parts)

    cut(np.arange(num_sites), count, 0)
    return label


def _order_sites(graph: "sparse.csr_array") -> Int[ndarray, " piece"]:
    """Order the sites of a piece from one end to the other, one connected component after
    another.
    """
    _, component = sparse.csgraph.connected_components(graph, directed=False)
    order = []
    for sites in members_by_label(component):
        subgraph = graph[sites][:, sites]
        coordinate = np.arange(len(sites))
        # sites up to which a piece is cut by the second eigenvector of its Laplacian
        if len(sites) > 1000:
            end = sparse.csgraph.breadth_first_order(
                subgraph, 0, directed=False, return_predecessors=False
            )[-1]
            coordinate = sparse.csgraph.shortest_path(subgraph, indices=end, unweighted=True)
        elif len(sites) > 2:
            coordinate = np.linalg.eigh(sparse.csgraph.laplacian(subgraph).toarray())[1][:, 1]
        order.append(sites[np.argsort(coordinate, kind="stable")])
    return np.concatenate(order)
