"""Draws of whole partitions of the records, from the probabilities that pairs of them match.

The law has weight `exp Σ w` over the listed pairs inside one cluster, for every partition whose
clusters are connected by listed pairs: correlation clustering (Bansal, Blum & Chawla 2004) as a
distribution and not as an optimum. With w the log-odds of p, pairs are independent evidence. But
pairs of one bad record are dependent, and then too few are inside clusters. Therefore w also moves
each pair towards its p, as the distribution of maximum entropy with these probabilities would:

    w = log p/(1 − p) + (p − P(inside))/PULL,

the maximum of a concave function. A pair inside a cluster that is not listed has the log-odds of
`unlisted`, which is uninformative at one half. Pairs of probability one are one node, those of zero
are in no cluster.

The law is a product over the components of the graph of pairs; if unlisted pairs are uninformative,
over its biconnected blocks: a cluster meets a block in a connected piece of it, and pieces of
blocks that share a record join. So a pair of two records that are in no other is a toss with its
own probability; blocks of a few records are drawn exactly, by the sums over all of their partitions
(`_blocks`); larger ones by a Markov chain (`_chain`).
"""

import numpy as np
from jaxtyping import Int

from ...developer import FloatArray, IntArray, TwoCounts, silence
from ._blocks import (
    MAX_ENUMERATED_RECORDS,
    NEVER,
    Graph,
    biconnected_blocks,
    components,
    draw_blocks,
)
from ._chain import draw_chain
from ._tables import PairIndices, PairNumbers


def draw_partitions(
    rows: int,
    left_rows: PairIndices,
    right_rows: PairIndices,
    probability: PairNumbers,
    num: int,
    rng: np.random.Generator,
    unlisted: float,
) -> Int[np.ndarray, "num rows"]:
    """Draw `num` independent partitions; clusters are numbered by first appearance.

    Raises ValueError if a pair of probability zero is joined by pairs of probability one.
    """
    certain = probability == 1
    node = components(rows, left_rows[certain], right_rows[certain])
    a = node[left_rows]
    b = node[right_rows]
    wrong = np.flatnonzero((a == b) & (probability == 0))
    if len(wrong):
        raise ValueError(
            f"Linkage: rows {left_rows[wrong[0]]} and {right_rows[wrong[0]]} have probability 0, "
            "but pairs of probability 1 join them: "
            "no partition agrees with that. Correct the pairs, or keep probabilities away from 0 and 1."
        )
    distinct = a != b
    a = a[distinct]
    b = b[distinct]
    p = probability[distinct]
    size = np.bincount(node, minlength=1)
    # pairs of the same two nodes are merged, with their evidence added; unlisted pairs count
    # equally in every cluster
    with silence("divide"):
        odds = np.maximum(np.log(p) - np.log1p(-p), NEVER)
    key, place = np.unique(np.minimum(a, b) * len(size) + np.maximum(a, b), return_inverse=True)
    low, high = divmod(key, len(size))
    times = np.bincount(place, minlength=len(key))
    ground = float(np.log(unlisted) - np.log1p(-unlisted))
    weight = np.bincount(place, odds, len(key)) - ground * times
    if ground:
        block = components(len(size), low, high)[low]
    else:
        block = biconnected_blocks(len(size), low, high)
    graph = Graph(low, high, weight, np.bincount(place, p, len(key)), times, block, size, ground)
    order = np.unique(block * len(size) + [low, high])
    # number of nodes of each pair's block
    members = np.bincount(order // max(len(size), 1), minlength=1)[block]
    inside = np.zeros((num, len(low)), bool)
    large = members > MAX_ENUMERATED_RECORDS
    for k in range(2, MAX_ENUMERATED_RECORDS + 1):
        if (members == k).any():
            inside[:, members == k] = draw_blocks(graph.subgraph(members == k), k, num, rng)
    if large.any():
        inside[:, large] = draw_chain(graph.subgraph(large), num, rng)
    return np.stack([components(len(size), low[mask], high[mask])[node] for mask in inside])


def share_listed(
    rows: int, left_rows: IntArray, right_rows: IntArray, probability: FloatArray
) -> TwoCounts:
    """Count the unlisted pairs, and all pairs, inside clear clusters, without the pairs that
    connect these.
    """
    # 0.9: probability of pairs whose clusters show the share of listed pairs
    clear = probability >= 0.9
    cluster = components(rows, left_rows[clear], right_rows[clear])
    size = np.bincount(cluster)
    spare = int(np.sum((size - 1) * (size - 2) // 2))
    listed = int(np.sum(cluster[left_rows] == cluster[right_rows])) - int(np.sum(size - 1))
    return spare - listed, spare
