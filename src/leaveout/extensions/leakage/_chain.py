"""Draws of partitions of large blocks by a Markov chain: sets of records that join a cluster, or
leave it.

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

from ...developer import FloatArray, IntArray, Slow, level_numbers, warn
from ._blocks import PULL, Graph, NodeNumbers, components
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
