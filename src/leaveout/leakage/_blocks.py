"""Small blocks of the graph of pairs, and draws of their partitions without a Markov chain: sums over subsets.

With W(B) the weight of a cluster B, zero unless it hangs together, the sum over all partitions of a set S of records is

    Z(S) = Σ_{B ⊆ S, B ∋ min S} W(B) Z(S \\ B),

and a draw takes B with probability W(B) Z(S \\ B)/Z(S), and goes on with S \\ B: 3ᵏ/2 terms for k records, where the
partitions themselves are the Bell numbers (for eight records 3,280 against 4,140; for twelve 265,720 against 4,213,597).
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

EXACT = 8  # records of a block up to which it is drawn so; the work triples with each
AT_ONCE = 4096  # blocks


class Graph(NamedTuple):
    """The uncertain pairs of nodes, each once, with `a < b`.

    `weight`: log-odds, less `ground`, those of a pair that is not listed; `size`: records of each node; `block` of each pair.
    """

    a: Int[np.ndarray, " pairs"]
    b: Int[np.ndarray, " pairs"]
    weight: Float[np.ndarray, " pairs"]
    size: Int[np.ndarray, " nodes"]
    ground: float
    block: Int[np.ndarray, " pairs"]

    def of(self, some: Bool[np.ndarray, " pairs"]) -> "Graph":
        return self._replace(a=self.a[some], b=self.b[some], weight=self.weight[some], block=self.block[some])


def components(nodes: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> Int[np.ndarray, " nodes"]:
    """Which nodes hang together, numbered by first appearance."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def biconnected(nodes: int, a: NDArray[np.int64], b: NDArray[np.int64]) -> Int[np.ndarray, " pairs"]:
    """The block of each pair: two pairs are in one if some cycle has both (Hopcroft & Tarjan 1973).

    Down a depth-first tree, the pair above v is in one block with the pair above its parent u if something at or below v is
    also paired with something above u.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import depth_first_order

    part = components(nodes, a, b)
    first = np.unique(part, return_index=True)[1]  # one node of every component, below a root of all
    ends = np.r_[a, np.full(len(first), nodes)], np.r_[b, first]
    tree = coo_array((np.ones(len(ends[0]), np.int8), ends), shape=(nodes + 1, nodes + 1)).tocsr()
    order, parent = depth_first_order(tree, nodes, directed=False)
    place = np.empty(nodes + 1, np.int64)
    place[order] = np.arange(nodes + 1)
    above = np.empty(nodes + 1, np.int64)  # of the node at each place, its parent's place
    above[place] = place[np.where(parent < 0, nodes, parent)]
    low, high = np.minimum(place[a], place[b]), np.maximum(place[a], place[b])
    reach = np.arange(nodes + 1)
    np.minimum.at(reach, high, low)
    least, up = reach.tolist(), above.tolist()
    for v in range(nodes, 0, -1):  # what is below comes after
        least[up[v]] = min(least[up[v]], least[v])
    joined = np.flatnonzero(np.array(least) < above)  # some pair leads past the parent
    return components(nodes + 1, joined, above[joined])[high]


def draw_blocks(graph: Graph, k: int, num: int, rng: np.random.Generator) -> Bool[np.ndarray, "num pairs"]:
    """Which pairs are inside clusters; every block of the graph has `k` nodes."""
    if k == 2:
        odds = np.exp(graph.weight + graph.ground * graph.size[graph.a] * graph.size[graph.b])
        return rng.random((num, len(graph.a))) * (1 + 1 / odds) < 1
    block, x, y, size = local(graph, k)
    inside = np.zeros((num, len(graph.a)), bool)
    order = np.argsort(block, kind="stable")
    bounds = np.searchsorted(block[order], np.arange(0, len(size) + AT_ONCE, AT_ONCE))
    for start, stop in itertools.pairwise(bounds):
        some = order[start:stop]
        first = int(block[some[0]])
        mine = slice(first, first + AT_ONCE)
        weight = cluster_weights(k, len(size[mine]), block[some] - first, x[some], y[some], graph.weight[some], size[mine],
                                 graph.ground)  # fmt: skip
        label = _draw(weight, partition_sums(k, weight), k, num, rng)
        inside[:, some] = (label[block[some] - first, :, x[some]] == label[block[some] - first, :, y[some]]).T
    return inside


def local(graph: Graph, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Blocks numbered from 0, both ends of each pair as places within its block, and the sizes `[blocks, k]` of its nodes."""
    nodes = len(graph.size)
    block = np.unique(graph.block, return_inverse=True)[1]
    member = np.unique(np.r_[block * nodes + graph.a, block * nodes + graph.b])
    x, y = (np.searchsorted(member, block * nodes + end) - k * block for end in (graph.a, graph.b))
    return block, x, y, graph.size[member % nodes].reshape(-1, k)


def cluster_weights(
    k: int,
    blocks: int,
    block: NDArray[np.int64],
    x: NDArray[np.int64],
    y: NDArray[np.int64],
    weight: NDArray[np.float64],
    size: NDArray[np.int64],
    ground: float,
) -> Float[np.ndarray, "blocks subsets"]:
    """log W of every subset of the `k` nodes of each block, −∞ where it does not hang together."""
    pair = np.zeros((blocks, k, k))
    pair[block, x, y] = pair[block, y, x] = weight
    if ground:
        pair += ground * size[:, :, None] * size[:, None, :]
    near = np.zeros((blocks, k), np.int64)
    np.bitwise_or.at(near, (block, x), 1 << y)
    np.bitwise_or.at(near, (block, y), 1 << x)
    total, beside = np.zeros((blocks, 1 << k)), np.zeros((blocks, 1 << k), np.int64)
    for j in range(k):  # subsets whose highest node is j, after those below it
        rest = np.arange(1 << j)
        held = (rest[:, None] >> np.arange(j)) & 1
        total[:, 1 << j : 2 << j] = total[:, rest] + np.where(held, pair[:, None, j, :j], 0.0).sum(2)
        beside[:, 1 << j : 2 << j] = beside[:, rest] | near[:, j, None]
    subset = np.arange(1 << k)
    reached = np.broadcast_to(subset & -subset, total.shape)
    for _ in range(k - 1):
        reached = (reached | np.take_along_axis(beside, reached, 1)) & subset
    return np.where(reached == subset, total, -np.inf)


def partition_sums(k: int, weight: Float[np.ndarray, "blocks subsets"]) -> Float[np.ndarray, "blocks subsets"]:
    """log Z of every subset."""
    out = np.zeros_like(weight)
    for whole in range(1, 1 << k):
        cluster = _first_clusters(whole)
        out[:, whole] = _log_sum(weight[:, cluster] + out[:, whole ^ cluster])
    return out


def _draw(
    weight: NDArray[np.float64], sums: NDArray[np.float64], k: int, num: int, rng: np.random.Generator
) -> Int[np.ndarray, "blocks num k"]:
    """The least node of the cluster of each node."""
    left = np.full((len(weight), num), (1 << k) - 1)
    label = np.zeros((len(weight), num, k), np.int64)
    for whole in range((1 << k) - 1, 0, -1):  # what is left only gets smaller
        at, draw = np.nonzero(left == whole)
        if not len(at):
            continue
        cluster = _first_clusters(whole)
        law = np.exp(weight[:, cluster] + sums[:, whole ^ cluster] - sums[:, whole, None]).cumsum(1)
        chosen = cluster[np.sum(rng.random(len(at))[:, None] * law[at, -1:] > law[at, :], axis=1)]
        left[at, draw] ^= chosen
        mine = ((chosen[:, None] >> np.arange(k)) & 1).astype(bool)
        label[at, draw] = np.where(mine, int(whole & -whole).bit_length() - 1, label[at, draw])
    return label


@functools.lru_cache(maxsize=1 << EXACT)
def _first_clusters(whole: int) -> Int[np.ndarray, " clusters"]:
    """The subsets of `whole` that hold its lowest node."""
    low = whole & -whole
    subset = np.arange(whole + 1)
    return subset[(subset & ~whole == 0) & (subset & low != 0)]


def _log_sum(terms: Float[np.ndarray, "blocks terms"]) -> Float[np.ndarray, " blocks"]:
    most = terms.max(1)
    return most + np.log(np.exp(terms - most[:, None]).sum(1))
