"""Linkage: drawn partitions against enumeration of all, shares against hand, tables as others make them."""

import itertools
import pickle

import networkx as nx
import numpy as np
import pytest

import leaveout as lo
from leaveout.leakage import _blocks, _partitions
from leaveout.leakage._models import Fold

TRIANGLES = np.array([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5), (1, 4)])
GRAPHS = {
    "clique": np.array(list(itertools.combinations(range(5), 2))),
    "ring": np.array([(i, (i + 1) % 6) for i in range(6)]),
    "triangles": TRIANGLES,
    "tree": np.array([(0, 1), (0, 2), (2, 3), (2, 4), (4, 5)]),
}


def all_partitions(count):
    """Labels by first appearance, every partition once."""
    if count == 0:
        yield ()
        return
    for rest in all_partitions(count - 1):
        for label in range(max(rest, default=-1) + 2):
            yield (*rest, label)


def law(edges, p, unlisted=None):
    """The probability of every partition, from the definition; clusters hang together by listed pairs (networkx)."""
    out = {}
    for z in all_partitions(edges.max() + 1):
        label = np.array(z)
        clusters = [np.flatnonzero(label == k).tolist() for k in range(label.max() + 1)]
        if all(nx.is_connected(nx.Graph(edges.tolist()).subgraph(cluster)) for cluster in clusters):
            inside = label[edges[:, 0]] == label[edges[:, 1]]
            out[z] = np.prod(p[inside] / (1 - p[inside]))
            if unlisted is not None:
                other = sum(len(c) * (len(c) - 1) // 2 for c in clusters) - inside.sum()
                out[z] *= (unlisted / (1 - unlisted)) ** other
    total = sum(out.values())
    return {z: weight / total for z, weight in out.items()}


@pytest.mark.parametrize("unlisted", [None, 0.15])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("exact", [True, False])
def test_drawn_partitions_have_the_law_of_the_definition(name, unlisted, exact, monkeypatch):
    edges, num = GRAPHS[name], 6000 if exact else 3000
    p = np.random.default_rng(3).uniform(0.15, 0.8, len(edges))
    if not exact:
        monkeypatch.setattr(_partitions, "EXACT", 1)  # every block by the chain
    rows = edges.max() + 1
    drawn = lo.Linkage.from_pairs((*edges.T, p), rows, unlisted=unlisted).partitions(num, seed=1)
    expected = law(edges, p, unlisted)
    found, count = np.unique(drawn, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, found.tolist()), count, strict=True))
    assert set(seen) <= set(expected)
    often = [z for z, probability in expected.items() if num * probability > 5]
    chi = sum((seen.get(z, 0) - num * expected[z]) ** 2 / (num * expected[z]) for z in often)
    assert chi < len(often) + 4 * np.sqrt(2 * len(often))


def test_blocks_are_those_of_networkx():
    rng = np.random.default_rng(0)
    for _ in range(100):
        nodes = int(rng.integers(2, 15))
        graph = nx.gnm_random_graph(nodes, int(rng.integers(1, 2 * nodes)), seed=int(rng.integers(10**6)))
        edges = np.array(graph.edges).reshape(-1, 2)
        block = _blocks.biconnected(nodes, *edges.T)
        mine = {frozenset(map(frozenset, edges[block == k].tolist())) for k in block}
        assert mine == {frozenset(map(frozenset, one)) for one in nx.biconnected_component_edges(graph)}


@pytest.mark.parametrize("epsilon", [0.3, 0.01, 1e-6])
def test_what_is_improbable_counts_for_little(epsilon):
    """Singletons, each with one candidate on the other side."""
    half = np.arange(2000)
    linkage = lo.Linkage.from_pairs((half, half + 2000, np.full(2000, epsilon)))
    fold = Fold(half + 2000, half, np.arange(4000))
    shares = linkage.shares([fold])
    error = 3 * np.sqrt(epsilon / 2000 / 100)
    assert shares.p_test[0] <= epsilon + error and shares.p_train[0] <= epsilon + error
    assert shares.p_test[0] + shares.p_train[0] == pytest.approx(epsilon, abs=error)  # either may be the misplaced one
    np.testing.assert_allclose(linkage.mates(half + 2000, half).mean(), epsilon, atol=error)


def test_shares_by_hand():
    """Certain pairs: entities {0,1,2,6}, {3,7,8}, {4,5}, {9}; the fewer of each are misplaced, of halves either."""
    pairs = [(0, 1), (1, 2), (2, 6), (3, 7), (7, 8), (4, 5)]
    linkage = lo.Linkage.from_duplicates(pairs, 10)
    fold = Fold(np.array([0, 1, 2, 3, 4]), np.array([5, 6, 7, 8, 9]), np.arange(10))
    shares = linkage.shares([fold])
    assert shares.p_train[0] == pytest.approx((1 + 0.5) / 5)  # 3 is V̂'s, 4 perhaps
    assert shares.p_test[0] == pytest.approx((1 + 0.5) / 5)  # 6 is T̂'s, 5 perhaps
    np.testing.assert_array_equal(linkage.mates(fold.train, fold.test), [1, 1, 1, 1, 0])
    assert shares.exposed[0] == pytest.approx(4 / 5)


def test_a_linkage_pickles_and_repeats():
    linkage = lo.Linkage.from_pairs((*TRIANGLES.T, np.linspace(0.1, 0.9, 8)))
    again = pickle.loads(pickle.dumps(linkage))
    np.testing.assert_array_equal(linkage.partitions(5, seed=2), again.partitions(5, seed=2))
    assert str(again) == str(linkage) and again.summary().equals(linkage.summary())
