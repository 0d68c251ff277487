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
(`_blocks`); larger ones by a Markov chain, in which sets of records join a cluster, or leave it.

Each move is a Swendsen–Wang cut (Barbu & Zhu 2005) along one pair (u, v). Every pair e inside a
cluster is a bond with probability b_e; V₀ are the records that bonds connect with u, D the others
in the clusters of u and v. If D is connected and contains v, then V₀ and D become one cluster or
two with odds `Π odds_e (1 − b_e)` over the pairs e between them; otherwise nothing changes. Bonds
may be chosen in any way that does not depend on the partition: with b_e = t p_e, and t drawn anew
for each step, both single records and large parts of clusters move.

Many pairs are proposed at once. A move keeps the union of the clusters of u and v, so pairs whose
clusters no other proposed pair touches are independent, and the distribution is kept.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray
from numpy.random import Generator

from ...developer import FloatArray, IntArray, Slow, TwoCounts, level_numbers, silence, warn
from ._blocks import (
    MAX_ENUMERATED_RECORDS,
    NEVER,
    PULL,
    Graph,
    NodeNumbers,
    biconnected_blocks,
    components,
    draw_blocks,
)
from ._tables import PairIndices, PairNumbers

# least and largest number of steps of these sweeps, and largest number of pairs that they visit
MIN_SWEEP_STEPS = 300
MAX_SWEEP_STEPS = 2000
LOOKS = 4e7
SPARSE = 4  # labels for each node from which labels are numbered anew
# change of a weight by one visit of its pair, and number of steps after which it is half
WEIGHT_GAIN = 0.1
SLOWS = 50


class BlockChains(NamedTuple):
    """Copies of the blocks side by side.

    Pairs have their nodes, weight, probability of a bond, the root of that by which they are
    proposed, and chain; nodes have their records.
    """

    a: PairIndices
    b: PairIndices
    weight: PairNumbers
    likely: PairNumbers
    eager: PairNumbers
    chain: PairIndices
    size: NodeNumbers
    ground: float


def draw_chain(graph: Graph, num: int, rng: Generator) -> Bool[ndarray, "num pairs"]:
    """Draw partitions by Markov chains, and mark the pairs that are inside clusters.

    There are as many chains as cost little, at most one for each draw, each started with every
    record by itself. If there are fewer chains than draws, each gives several draws, some steps
    apart. First the share of pairs that are proposed adapts, in each block of each chain, until all
    have done their sweeps; then it is fixed. Until the first draw, the weights follow P(inside) as
    all chains show it, by Robbins & Monro's steps.
    """
    # 20_000: pairs in all chains below which one more chain costs almost nothing
    copies = int(np.clip(20_000 // len(graph.a), 1, num))
    nodes = len(graph.size)  # each is copied for each of its blocks and for each chain
    key, (a, b) = np.unique(graph.block * nodes + [graph.a, graph.b], return_inverse=True)
    block = level_numbers(graph.block)
    likely = np.tile(graph.target / graph.times, copies)
    copy = lambda values, step: (values + step * np.arange(copies)[:, None]).ravel()
    chains = BlockChains(copy(a, len(key)), copy(b, len(key)), np.tile(graph.weight, copies), likely, np.sqrt(likely),
                  copy(block, int(block.max()) + 1), np.tile(graph.size[key % nodes], copies), graph.ground)  # fmt: skip
    # proposals of every pair, times √p, until the shares have adapted; as many again until the
    # first draw
    burn_in_sweeps = 10
    needed = burn_in_sweeps * np.bincount(chains.chain, chains.eager)
    max_steps = int(np.clip(LOOKS / len(chains.a), MIN_SWEEP_STEPS, MAX_SWEEP_STEPS))
    label = np.arange(len(chains.size))
    share = np.full(len(needed), 0.1)
    proposals = np.zeros(len(needed))
    steps = 0
    draw_spacing = 0.5  # the same between two draws of a chain
    with Slow("partitions", num // copies + 2) as bar:
        while steps < max_steps and (proposals < needed).any():
            steps += 1
            picked, label, free = _move(chains, label, share, rng)
            num_picked, num_free = (
                np.bincount(chains.chain[pairs], minlength=len(needed))
                for pairs in (picked, picked[free])
            )
            proposals += num_free
            # 1.5: rate at which the share of proposed pairs adapts to the share without conflicts
            share = np.minimum(
                share * 1.5 ** (np.sign(2 * num_free - num_picked) / np.sqrt(steps)), 1.0
            )
            chains = _pull_weights(chains, graph, label, WEIGHT_GAIN)
        bar.advance()
        if (burn_in_sweeps * proposals < needed).any():
            warn(
                "Linkage: drawn partitions have not settled: the records of one block hang together by so many pairs that in "
                f"{steps} steps not each was asked once. Leave out pairs of small probability, or calibrate them."
            )
        for step in range(steps):
            label = _move(chains, label, share, rng)[1]
            chains = _pull_weights(chains, graph, label, WEIGHT_GAIN / (1 + step / SLOWS))
        out = [(label[chains.a] == label[chains.b]).reshape(copies, -1)]
        while len(out) * copies < num:
            bar.advance()
            for _ in range(math.ceil(steps * draw_spacing / burn_in_sweeps)):
                label = _move(chains, label, share, rng)[1]
            out.append((label[chains.a] == label[chains.b]).reshape(copies, -1))
    return np.concatenate(out)[:num]


def _pull_weights(chains: BlockChains, graph: Graph, label: IntArray, gain: float) -> BlockChains:
    """Move the weights towards values at which `target − times · P(inside) = PULL (weight −
    log-odds)`, alike in all copies.
    """
    inside = (label[chains.a] == label[chains.b]).reshape(-1, len(graph.a)).mean(0)
    weight = chains.weight[: len(graph.a)]
    slope = (graph.target - PULL * (weight - graph.weight)) / graph.times - inside
    return chains._replace(weight=np.tile(weight + gain * slope, len(chains.a) // len(graph.a)))


def _move(
    chains: BlockChains, label: IntArray, share: FloatArray, rng: Generator
) -> tuple[Int[ndarray, " picked"], NodeNumbers, Bool[ndarray, " picked"]]:
    """Take one step of all chains.

    Return the picked `share` of pairs, the new clusters, and the pairs without conflicts.
    """
    rate = np.cumsum(share[chains.chain] * chains.eager)
    # a pair that is picked twice is in conflict
    picked = np.searchsorted(rate, rng.random(rng.poisson(rate[-1])) * rate[-1])
    swap = rng.random(len(picked)) < 0.5
    u = np.where(swap, chains.b[picked], chains.a[picked])
    v = np.where(swap, chains.a[picked], chains.b[picked])
    touched = np.bincount(
        np.r_[label[u], label[v][label[u] != label[v]]], minlength=int(label.max()) + 1
    )
    free = (touched[label[u]] == 1) & (touched[label[v]] == 1)
    u = u[free]
    v = v[free]
    zone = np.full(len(touched), -1)
    zone[label[u]] = zone[label[v]] = np.arange(len(u))
    node_zone = zone[label]
    nodes = np.flatnonzero(node_zone >= 0)
    pairs = np.flatnonzero(
        (node_zone[chains.a] >= 0) & (node_zone[chains.a] == node_zone[chains.b])
    )
    place = np.empty(len(label), int)
    place[nodes] = np.arange(len(nodes))
    a = place[chains.a[pairs]]
    b = place[chains.b[pairs]]
    node_zone = node_zone[nodes]
    cluster = label[nodes]
    bond = rng.random() ** 3 * chains.likely[pairs]
    inside = cluster[a] == cluster[b]
    bonded = inside & (rng.random(len(pairs)) < bond)
    blob = components(len(nodes), a[bonded], b[bonded])
    in_v0 = blob == blob[place[u]][node_zone]
    within_d = inside & ~in_v0[a] & ~in_v0[b]
    first = np.unique(components(len(nodes), a[within_d], b[within_d]), return_index=True)[1]
    pieces = np.bincount(node_zone[first][~in_v0[first]], minlength=len(u))
    across = in_v0[a] != in_v0[b]
    weight = np.bincount(
        node_zone[a[across]], (chains.weight[pairs] + np.log1p(-bond))[across], len(u)
    )
    if chains.ground:
        records = [
            np.bincount(node_zone[part], chains.size[nodes[part]], len(u))
            for part in (in_v0, ~in_v0)
        ]
        weight = weight + chains.ground * records[0] * records[1]
    ready = (pieces == 1) & ~in_v0[place[v]]
    new_label = np.where(
        rng.logistic(size=len(u)) < weight,
        label[v],
        np.where(label[u] == label[v], len(touched) + np.arange(len(u)), label[u]),
    )
    label = label.copy()
    moving = in_v0 & ready[node_zone]
    label[nodes[moving]] = new_label[node_zone[moving]]
    if label.max() > SPARSE * len(label):
        label = level_numbers(label)
    return picked, label, free


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
