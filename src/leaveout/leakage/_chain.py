"""Draws of partitions of large blocks by a Markov chain: blobs of records that join a cluster, or leave it.

A Swendsen–Wang cut (Barbu & Zhu 2005) along one pair (u, v). Every pair e inside a cluster is a bond with probability b_e; V₀
is what bonds connect with u, D what else is in the clusters of u and v. If D hangs together and holds v, then V₀ and D are one
cluster or two with odds `Π odds_e (1 − b_e)` over the pairs e between them, whichever they were; else all stays. Any bonds
that do not look at the partition will do: b_e = t p_e, t drawn anew for each step, moves records alone as well as most of a
cluster.

Many pairs are asked at once. The clusters of u and v are together the same records before and after; so those that no other
asked pair touches are independent of one another, and the law is kept.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from .._progress import Slow
from ._blocks import Graph, components

SWEEPS = 20  # how often every pair is asked
MOST = 200  # steps in each half, whatever was asked
WATCHED = 16  # steps after which chains that are done leave
FOLLOW = 1.5  # how fast the share of pairs asked follows what share of them touch no other


class Chains(NamedTuple):
    """Copies of the blocks side by side: of the pairs the nodes, the log-odds above `ground`, the probability, the chain, and
    which they are at the start; of the nodes their records."""

    a: Int[np.ndarray, " pairs"]
    b: Int[np.ndarray, " pairs"]
    weight: Float[np.ndarray, " pairs"]
    bond: Float[np.ndarray, " pairs"]
    chain: Int[np.ndarray, " pairs"]
    pair: Int[np.ndarray, " pairs"]
    size: Int[np.ndarray, " nodes"]
    ground: float

    def only(self, keep: Bool[np.ndarray, " pairs"]) -> "Chains":
        """Without pairs; their nodes stay."""
        return self._replace(a=self.a[keep], b=self.b[keep], weight=self.weight[keep], bond=self.bond[keep],
                             chain=self.chain[keep], pair=self.pair[keep])  # fmt: skip


def draw_chain(graph: Graph, num: int, rng: np.random.Generator) -> Bool[np.ndarray, "num pairs"]:
    """Which pairs are inside clusters, in `num` chains of their own, each begun with every record by itself.

    In the first half of a chain the share of pairs asked adapts, until half of the sweeps are done; as many steps follow. (To
    stop at the last of so many answers would favour partitions that answer often.)
    """
    chains = part = _copies(graph, num)
    label = np.arange(len(chains.size))
    half = SWEEPS / 2 * np.bincount(chains.chain)
    share, asked, last, step = np.full(len(half), 0.1), np.zeros(len(half)), np.full(len(half), np.inf), 0
    with Slow("partitions", len(chains.pair)) as bar:
        while len(part.pair):
            step += 1
            picked = np.flatnonzero(rng.random(len(part.pair)) < share[part.chain])
            label, free = _move(part, label, picked, rng)
            tried, done = (np.bincount(part.chain[some], minlength=len(half)) for some in (picked, picked[free]))
            asked += done
            share = np.where(asked < half, share * FOLLOW ** (np.sign(2 * done - tried) / np.sqrt(step)), share).clip(0, 0.5)
            last[((asked >= half) | (step >= MOST)) & np.isinf(last)] = 2 * step
            if step % WATCHED == 0:
                label, keep = np.unique(label, return_inverse=True)[1], (last > step)[part.chain]
                bar.advance(int(np.sum(~keep)))
                part = part.only(keep)
    return (label[chains.a] == label[chains.b]).reshape(num, -1)


def _copies(graph: Graph, num: int) -> Chains:
    """A node of the graph is one in each of its blocks, and in each of the chains."""
    nodes = len(graph.size)
    key, ends = np.unique(np.r_[graph.block * nodes + graph.a, graph.block * nodes + graph.b], return_inverse=True)
    a, b, block = ends[: len(graph.a)], ends[len(graph.a) :], np.unique(graph.block, return_inverse=True)[1]
    size = graph.size[key % nodes]
    bond = 1 / (1 + np.exp(-graph.weight - graph.ground * size[a] * size[b]))
    copy = lambda values, step: (values + step * np.arange(num)[:, None]).ravel()
    return Chains(copy(a, len(key)), copy(b, len(key)), np.tile(graph.weight, num), np.tile(bond, num),
                  copy(block, int(block.max()) + 1), np.arange(num * len(a)), np.tile(size, num), graph.ground)  # fmt: skip


def _move(
    chains: Chains, label: NDArray[np.int64], picked: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Int[np.ndarray, " nodes"], Bool[np.ndarray, " picked"]]:
    """One step of all chains: the new clusters, and which of the picked pairs could be asked."""
    swap = rng.random(len(picked)) < 0.5
    u, v = np.where(swap, chains.b[picked], chains.a[picked]), np.where(swap, chains.a[picked], chains.b[picked])
    touched = np.bincount(np.r_[label[u], label[v][label[u] != label[v]]], minlength=int(label.max()) + 1)
    free = (touched[label[u]] == 1) & (touched[label[v]] == 1)
    u, v = u[free], v[free]
    zone = np.full(len(touched), -1)
    zone[label[u]] = zone[label[v]] = np.arange(len(u))
    of = zone[label]
    nodes = np.flatnonzero(of >= 0)
    pairs = np.flatnonzero((of[chains.a] >= 0) & (of[chains.a] == of[chains.b]))
    place = np.empty(len(label), np.int64)
    place[nodes] = np.arange(len(nodes))
    a, b, of, cluster = place[chains.a[pairs]], place[chains.b[pairs]], of[nodes], label[nodes]
    bond = rng.random() ** 3 * chains.bond[pairs]
    inside = cluster[a] == cluster[b]
    bonded = inside & (rng.random(len(pairs)) < bond)
    blob = components(len(nodes), a[bonded], b[bonded])
    mine = blob == blob[place[u]][of]
    rest = inside & ~mine[a] & ~mine[b]
    first = np.unique(components(len(nodes), a[rest], b[rest]), return_index=True)[1]
    pieces = np.bincount(of[first][~mine[first]], minlength=len(u))
    across = mine[a] != mine[b]
    weight = np.bincount(of[a[across]], (chains.weight[pairs] + np.log1p(-bond))[across], len(u))
    if chains.ground:
        records = [np.bincount(of[some], chains.size[nodes[some]], len(u)) for some in (mine, ~mine)]
        weight = weight + chains.ground * records[0] * records[1]
    ready = (pieces == 1) & ~mine[place[v]]
    together = rng.logistic(size=len(u)) < weight
    to = np.where(together, label[v], np.where(label[u] == label[v], len(touched) + np.arange(len(u)), label[u]))
    label = label.copy()
    moved = nodes[mine & ready[of]]
    label[moved] = to[of[mine & ready[of]]]
    return label, free
