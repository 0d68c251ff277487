r"""Small blocks of the graph of pairs, and draws of their partitions without a Markov chain: sums
over subsets.

With W(B) the weight of a cluster B, zero unless it is connected, the sum over all partitions of a
set S of records is

    Z(S) = Σ_{B ⊆ S, B ∋ min S} W(B) Z(S \ B),

and a draw takes B with probability W(B) Z(S \ B)/Z(S), and goes on with S \ B: 3ᵏ/2 terms for k
records, where the partitions themselves are the Bell numbers (for eight records 3,280 against
4,140; for twelve 265,720 against 4,213,597).
"""

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from ...developer import FloatArray, IntArray, NumpyArray, level_numbers
from ._tables import PairIndices, PairNumbers

# records of a block up to which it is drawn exactly; each more triples the work
MAX_ENUMERATED_RECORDS = 8
NEVER = -1e9  # log-odds of a pair that is in no cluster
# PULL ties weights to the log-odds. Of 5, 0.5, 0.2, 0.1 and 0.05 it gave P(mate) the least squared
# error over four kinds of simulated linkage with uninformative unlisted pairs; with informative
# ones 0.1 is little better (experiments/linkage_law.py).
PULL = 0.2  # strength of that tie
# slope in the weights that counts as zero, and largest number of steps
WEIGHT_SLOPE_ZERO = 1e-3
MAX_WEIGHT_STEPS = 200
NodeNumbers = Int[NumpyArray, " nodes"]
BlockSubsets = Float[NumpyArray, "blocks subsets"]
BlockPairs = Float[NumpyArray, "blocks pairs"]


class Graph(NamedTuple):
    """The uncertain pairs of nodes, each once, with `a < b`.

    `weight` are log-odds minus `ground`, the log-odds of an unlisted pair. `times` is the number of
    pairs of records, `target` the sum of their probabilities, `size` the number of records of each
    node, and `block` the block of each pair.
    """

    a: PairIndices
    b: PairIndices
    weight: PairNumbers
    target: PairNumbers
    times: PairIndices
    block: PairIndices
    size: NodeNumbers
    ground: float

    def subgraph(self, mask: Bool[NumpyArray, " pairs"]) -> "Graph":
        return self._replace(a=self.a[mask], b=self.b[mask], weight=self.weight[mask], target=self.target[mask],
                             times=self.times[mask], block=self.block[mask])  # fmt: skip


def components(nodes: int, a: IntArray, b: IntArray) -> NodeNumbers:
    """Number the connected components of a graph by first appearance, one number for each node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(a), bool), (a, b)), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1].astype(int)


def biconnected_blocks(nodes: int, a: IntArray, b: IntArray) -> PairIndices:
    """Number the block of each pair: two pairs are in one block if a cycle has both (Hopcroft &
    Tarjan 1973).

    Down a depth-first tree, the pair above v is in one block with the pair above its parent u if
    something at or below v is also paired with something above u.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import depth_first_order

    # one node of every component, below a root of all
    first = np.unique(components(nodes, a, b), return_index=True)[1]
    ends = np.r_[a, np.full(len(first), nodes)], np.r_[b, first]
    tree = coo_array((np.ones(len(ends[0]), bool), ends), shape=(nodes + 1, nodes + 1)).tocsr()
    order, parent = depth_first_order(tree, nodes, directed=False)
    place = np.empty(nodes + 1, int)
    place[order] = np.arange(nodes + 1)
    above = np.empty(nodes + 1, int)  # the place of each node's parent
    above[place] = place[np.where(parent < 0, nodes, parent)]
    low = np.minimum(place[a], place[b])
    high = np.maximum(place[a], place[b])
    lowest = np.arange(nodes + 1)
    np.minimum.at(lowest, high, low)
    least = lowest.tolist()
    up = above.tolist()
    for v in range(nodes, 0, -1):  # nodes below come later
        least[up[v]] = min(least[up[v]], least[v])
    joined = np.flatnonzero(np.array(least) < above)  # a pair leads past the parent
    return components(nodes + 1, joined, above[joined])[high]


class RecordBlocks(NamedTuple):
    """Blocks of k nodes each, their pairs in the order of `_pairs(k)`.

    `times` is zero for unlisted pairs.
    """

    weight: BlockPairs
    target: BlockPairs
    times: BlockPairs
    ground: BlockPairs
    connected: Bool[NumpyArray, "blocks subsets"]  # whether the subset is connected

    def clusters(self, weight: FloatArray, k: int) -> BlockSubsets:
        """Compute log W of every subset."""
        return np.where(self.connected, (weight + self.ground) @ _inside(k), -np.inf)


def draw_blocks(graph: Graph, k: int, num: int, rng: Generator) -> Bool[NumpyArray, "num pairs"]:
    """Draw partitions of blocks of `k` nodes each, and mark the pairs that are inside clusters."""
    nodes = len(graph.size)
    block = level_numbers(graph.block)
    member, places = np.unique(block * nodes + [graph.a, graph.b], return_inverse=True)
    x, y = places - k * block
    pair = _pairs(k)[x, y]
    size = graph.size[member % nodes].reshape(-1, k)
    inside = np.zeros((num, len(block)), bool)
    order = np.argsort(block, kind="stable")
    at_once = 4096  # blocks drawn together
    starts = np.arange(0, len(size) + at_once, at_once)
    for first, (start, stop) in zip(
        starts, itertools.pairwise(np.searchsorted(block[order], starts)), strict=False
    ):
        chunk = order[start:stop]
        blocks = _dense(
            graph, chunk, block[chunk] - first, pair[chunk], size[first : first + at_once]
        )
        weight = blocks.clusters(_fit_weights(blocks, k), k)
        label = _draw(weight, _sums(weight, k), num, k, rng)
        inside[:, chunk] = (
            label[block[chunk] - first, :, x[chunk]] == label[block[chunk] - first, :, y[chunk]]
        ).T
    return inside


def _dense(
    graph: Graph, chunk: IntArray, block: IntArray, pair: IntArray, size: IntArray
) -> RecordBlocks:
    count, k = size.shape
    low, high = np.triu_indices(k, 1)
    values = np.zeros((3, count, len(low)))
    values[:, block, pair] = graph.weight[chunk], graph.target[chunk], graph.times[chunk]
    neighbours = np.zeros((count, k), int)
    for node, partner in ((low, high), (high, low)):
        np.bitwise_or.at(neighbours, (block, node[pair]), 1 << partner[pair])
    subset_neighbours = np.zeros((count, 1 << k), int)
    for j in range(k):
        subset_neighbours[:, 1 << j : 2 << j] = (
            subset_neighbours[:, : 1 << j] | neighbours[:, j, None]
        )
    subset = np.arange(1 << k)
    reached: IntArray = np.broadcast_to(subset & -subset, subset_neighbours.shape)
    for _ in range(k - 1):
        reached = (reached | np.take_along_axis(subset_neighbours, reached, 1)) & subset
    return RecordBlocks(
        values[0],
        values[1],
        values[2],
        graph.ground * size[:, low] * size[:, high],
        reached == subset,
    )


def _fit_weights(blocks: RecordBlocks, k: int) -> BlockPairs:
    """Fit the weights at which `target − times · P(inside) = PULL (weight − log-odds)`, by
    Nesterov's gradient steps.
    """
    # bound of the curvature, as the variance of an indicator is at most a quarter
    bound = blocks.times.sum(1, keepdims=True) / 4 + PULL
    root = np.sqrt(PULL / bound)
    weight = extrapolated = blocks.weight
    for _ in range(MAX_WEIGHT_STEPS):
        cluster = blocks.clusters(extrapolated, k)
        sums = _sums(cluster, k)
        # the rest of all records is its complement
        inside = np.exp(cluster + sums[:, ::-1] - sums[:, -1:]) @ _inside(k).T
        slope = np.where(
            blocks.times > 0,
            blocks.target - blocks.times * inside - PULL * (extrapolated - blocks.weight),
            0.0,
        )
        if np.abs(slope).max() < WEIGHT_SLOPE_ZERO:
            break
        before = weight
        weight = extrapolated + slope / bound
        extrapolated = weight + (1 - root) / (1 + root) * (weight - before)
    return extrapolated


def _sums(weight: BlockSubsets, k: int) -> BlockSubsets:
    """Compute log Z of every subset."""
    out = np.zeros_like(weight)
    for subset in range(1, 1 << k):
        cluster = _first_clusters(subset)
        terms = weight[:, cluster] + out[:, subset ^ cluster]
        most = terms.max(1)
        out[:, subset] = most + np.log(np.exp(terms - most[:, None]).sum(1))
    return out


def _draw(
    weight: FloatArray, sums: FloatArray, num: int, k: int, rng: Generator
) -> Int[NumpyArray, "blocks num k"]:
    """Draw partitions; return the least node of the cluster of each node."""
    remaining = np.full((len(weight), num), (1 << k) - 1)
    label = np.zeros((len(weight), num, k), int)
    for subset in range((1 << k) - 1, 0, -1):  # the remaining subset only shrinks
        block, draw = np.nonzero(remaining == subset)
        cluster = _first_clusters(subset)
        law = np.exp(weight[:, cluster] + sums[:, subset ^ cluster] - sums[:, subset, None]).cumsum(
            1
        )
        chosen = cluster[np.sum(rng.random(len(block))[:, None] * law[block, -1:] > law[block], 1)]
        remaining[block, draw] ^= chosen
        members = (chosen[:, None] >> np.arange(k)) & 1 == 1
        label[block, draw] = np.where(
            members, int(subset & -subset).bit_length() - 1, label[block, draw]
        )
    return label


@lru_cache
def _pairs(k: int) -> Int[NumpyArray, "k k"]:
    """Number the pairs of places."""
    out = np.zeros((k, k), int)
    low, high = np.triu_indices(k, 1)
    out[low, high] = out[high, low] = np.arange(len(low))
    return out


@lru_cache
def _inside(k: int) -> Float[NumpyArray, "pairs subsets"]:
    """Mark the subsets that hold both places of a pair."""
    held = (np.arange(1 << k) >> np.arange(k)[:, None]) & 1
    low, high = np.triu_indices(k, 1)
    return (held[low] * held[high]).astype(float)


@lru_cache(maxsize=1 << MAX_ENUMERATED_RECORDS)
def _first_clusters(whole_set: int) -> Int[NumpyArray, " clusters"]:
    """List the subsets of `whole_set` that hold its lowest node."""
    low = whole_set & -whole_set
    subset = np.arange(whole_set + 1)
    return subset[(subset & ~whole_set == 0) & (subset & low != 0)]
