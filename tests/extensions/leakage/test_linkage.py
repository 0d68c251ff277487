"""Linkage: drawn partitions against the enumeration of all, shares and rates against hand and
simulation, tables as others make them."""

import functools
import itertools
import pickle

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.optimize import minimize
from sklearn.dummy import DummyRegressor

from leaveout.extensions.leakage import _blocks, _neighbours, _partitions
from leaveout.extensions.leakage._models import LeakageFold
from leaveout.leakage import Injection, Linkage, leakage_corrected

GRAPHS = {
    "clique": np.array(list(itertools.combinations(range(5), 2))),
    "ring": np.array([(i, (i + 1) % 6) for i in range(6)]),
    "triangles": np.array([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5), (1, 4)]),
    "tree": np.array([(0, 1), (0, 2), (2, 3), (2, 4), (4, 5)]),
}
PULL = 0.2  # of the weights to the log-odds, as the docstring says


def all_partitions(count):
    """Labels by first appearance, every partition once."""
    if count == 0:
        yield ()
        return
    for rest in all_partitions(count - 1):
        for label in range(max(rest, default=-1) + 2):
            yield (*rest, label)


@functools.cache
def connected_partitions(name):
    """Partitions whose clusters hang together (networkx), the pairs inside, and the number of
    others inside."""
    edges = GRAPHS[name]
    graph, found, inside, other = nx.Graph(edges.tolist()), [], [], []
    for z in all_partitions(edges.max() + 1):
        label = np.array(z)
        clusters = [np.flatnonzero(label == k).tolist() for k in range(label.max() + 1)]
        if all(nx.is_connected(graph.subgraph(cluster)) for cluster in clusters):
            found.append(z)
            inside.append(label[edges[:, 0]] == label[edges[:, 1]])
            other.append(sum(len(c) * (len(c) - 1) // 2 for c in clusters) - inside[-1].sum())
    return found, np.array(inside, float), np.array(other)


def law(name, p, unlisted, pull):
    """The probability of every partition, from the definition: clusters hang together, and the
    weights are found by SciPy's BFGS, as the maximum of Σ p w − log Z(w) − pull/2 |w −
    log-odds|²."""
    found, inside, other = connected_partitions(name)
    ground, odds = other * np.log(unlisted / (1 - unlisted)), np.log(p / (1 - p))

    def probabilities(w):
        weight = np.exp(inside @ w + ground)
        return weight / weight.sum()

    slope = lambda w: probabilities(w) @ inside - p + pull * (w - odds)
    negative = lambda w: (
        np.log(np.exp(inside @ w + ground).sum()) - p @ w + pull / 2 * np.sum((w - odds) ** 2)
    )
    best = minimize(negative, odds, jac=slope).x
    return dict(zip(found, probabilities(best), strict=True)), probabilities(best) @ inside


@pytest.mark.parametrize("unlisted", [0.5, pytest.param(0.15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("exact, pull", [(True, PULL), (False, PULL), (False, 5.0)])
def test_drawn_partitions_have_the_law_of_the_definition(name, unlisted, exact, pull, monkeypatch):
    """By sums; by the chain, whose weights follow.

    And by the chain at weights that hardly do, which makes up for no move.
    """
    edges, num = GRAPHS[name], 3000 if exact else 1000
    p = np.random.default_rng(3).uniform(0.15, 0.8, len(edges))
    if not exact:
        monkeypatch.setattr(_partitions, "MAX_ENUMERATED_RECORDS", 1)
    monkeypatch.setattr(_partitions, "PULL", pull)
    expected, inside = law(name, p, unlisted, pull)
    drawn = Linkage.from_pairs((*edges.T, p), int(edges.max()) + 1, unlisted=unlisted).partitions(
        num, rng=1
    )
    found, count = np.unique(drawn, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, found.tolist()), count, strict=True))
    assert set(seen) <= set(expected)
    often = [z for z, probability in expected.items() if num * probability > 5]
    chi = sum((seen.get(z, 0) - num * expected[z]) ** 2 / (num * expected[z]) for z in often)
    assert chi < len(often) + 4 * np.sqrt(2 * len(often))
    if name == "tree" and unlisted == 0.5:
        np.testing.assert_allclose(inside, p, atol=1e-6)  # pairs on no cycle keep their probability
    # between independent evidence and probabilities that are kept
    if name == "clique" and pull == PULL:
        assert abs(inside - p).max() > 0.05


def test_blocks_are_those_of_networkx():
    rng = np.random.default_rng(0)
    for _ in range(100):
        nodes = int(rng.integers(2, 15))
        graph = nx.gnm_random_graph(
            nodes, int(rng.integers(1, 2 * nodes)), seed=int(rng.integers(10**6))
        )
        edges = np.array(graph.edges).reshape(-1, 2)
        block = _blocks.biconnected_blocks(nodes, *edges.T)
        mine = {frozenset(map(frozenset, edges[block == k].tolist())) for k in block}
        assert mine == {
            frozenset(map(frozenset, one)) for one in nx.biconnected_component_edges(graph)
        }


def test_what_is_not_listed_counts_as_often_as_true_pairs_are_missing():
    """Two clear clusters: of the three pairs of {0,1,2} all are listed, of the six of {3,4,5,6}
    four, one of them weak; so of 1 + 3 pairs that need not be there two are missing. By Laplace,
    odds 3 / 6."""
    pairs = [
        (0, 1, 0.95),
        (1, 2, 0.95),
        (0, 2, 0.95),
        (3, 4, 0.99),
        (4, 5, 0.99),
        (5, 6, 0.9),
        (3, 5, 0.1),
    ]
    linkage = Linkage.from_pairs(pairs)
    assert linkage.absent == pytest.approx((3 / 6) / (1 + 3 / 6))
    drawn = Linkage.from_pairs(pairs, unlisted=linkage.absent).partitions(3, rng=1)
    np.testing.assert_array_equal(linkage.partitions(3, rng=1), drawn)
    assert "not listed" in str(linkage)


def test_false_candidates_of_whole_clusters_are_seen_to_be_false():
    """People whose every pair is listed, and weak pairs between them, each with its true
    probability: a merged cluster would need pairs that are not there. Nobody has a mate elsewhere,
    whatever the sum of the weak probabilities."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(60), 4)
    same = np.argwhere(np.triu(person[:, None] == person, 1))
    other = np.unique(np.sort(rng.integers(0, 240, (300, 2))), axis=0)
    other = other[person[other[:, 0]] != person[other[:, 1]]]
    p = np.r_[np.full(len(same), 0.97), np.full(len(other), 0.1)]
    linkage = Linkage.from_pairs((*np.r_[same, other].T, p), 240)
    assert linkage.mates(np.flatnonzero(person >= 12), np.flatnonzero(person < 12)).mean() < 0.05
    assert (
        p[(person[np.r_[same, other][:, 0]] < 12) & (person[np.r_[same, other][:, 1]] >= 12)].sum()
        > 5
    )


def test_certain_pairs_are_one_record_and_impossible_ones_none():
    """0 = 1 for certain, so that (0, 2) and (1, 2) are one pair of two observations.

    3 is never with 2.
    """
    pairs = [(0, 1, 1.0), (0, 2, 0.6), (1, 2, 0.6), (2, 3, 0.0), (1, 3, 0.5)]
    drawn = Linkage.from_pairs(pairs, 4, unlisted=0.5).partitions(2000, rng=3)
    assert np.all(drawn[:, 0] == drawn[:, 1]) and np.all(drawn[:, 2] != drawn[:, 3])
    inside = np.mean(drawn[:, 0] == drawn[:, 2])
    assert 0.4 < inside < 0.65
    with pytest.raises(
        ValueError, match="rows 0 and 2 have probability 0, but pairs of probability 1 join them"
    ):
        Linkage.from_pairs([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 0.0)]).partitions(1)


@pytest.mark.parametrize("epsilon", [0.3, 0.01, 1e-6])
def test_what_is_improbable_counts_for_little(epsilon):
    """Singletons, each with one candidate on the other side."""
    half = np.arange(2000)
    linkage = Linkage.from_pairs((half, half + 2000, np.full(2000, epsilon)))
    fold = LeakageFold(half + 2000, half, np.arange(4000))
    shares = linkage.shares([fold])
    error = 3 * np.sqrt(epsilon / 2000 / 100)
    assert shares.p_test[0] <= epsilon + error and shares.p_train[0] <= epsilon + error
    # either may be the misplaced one
    assert shares.p_test[0] + shares.p_train[0] == pytest.approx(epsilon, abs=error)
    np.testing.assert_allclose(linkage.mates(half + 2000, half).mean(), epsilon, atol=error)
    assert np.mean([one.p_test[0] for one in linkage.shares_drawn([fold])]) == pytest.approx(
        shares.p_test[0]
    )


def test_shares_by_hand():
    """Entities {0,1,2,6}, {3,7,8}, {4,5}, {9}.

    The fewer of each are misplaced, of halves either.
    """
    linkage = Linkage.from_duplicates([(0, 1), (1, 2), (2, 6), (3, 7), (7, 8), (4, 5)], 10)
    fold = LeakageFold(np.array([0, 1, 2, 3, 4]), np.array([5, 6, 7, 8, 9]), np.arange(10))
    shares = linkage.shares([fold])
    assert shares.p_train[0] == pytest.approx((1 + 0.5) / 5)  # 3 is V̂'s, 4 perhaps
    assert shares.p_test[0] == pytest.approx((1 + 0.5) / 5)  # 6 is T̂'s, 5 perhaps
    np.testing.assert_array_equal(linkage.mates(fold.train, fold.test), [1, 1, 1, 1, 0])
    assert shares.exposed[0] == pytest.approx(4 / 5)
    one_sided = linkage.shares(
        [LeakageFold(np.array([0, 1, 2, 3]), np.array([6, 9]), np.arange(10))]
    )
    assert one_sided.p_train[0] == 0 and one_sided.p_test[0] == pytest.approx(1 / 2)


def test_it_is_a_leakage_model():
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(20), 6)
    y = rng.normal(size=120)
    linkage = Linkage.from_pairs((np.arange(0, 60), np.arange(60, 120), np.full(60, 0.05)), 120)
    result = leakage_corrected(
        DummyRegressor(), np.zeros((120, 1)), y, groups=label, leakage=linkage, loss="mse",
        injection=Injection(num_boot=5, num_levels=4),
    )  # fmt: skip
    folds = [part.fold for part in result.plan]
    np.testing.assert_allclose(result.shares.p_test, linkage.shares(folds).p_test)
    assert 0 < result.shares.p_test.mean() < 0.05


def test_splits_merges_and_orphans_by_hand():
    """Filed {0,1}, {2}, {3,4,5}, {6}; entities {0,1,2}, {3,4}, {5}, {6}."""
    linkage = Linkage.from_duplicates([(0, 1), (1, 2), (3, 4)], 7)
    table = linkage.summary(groups=["a", "a", "b", "c", "c", "c", "d"])
    assert table.index.tolist() == ["1", "2", "3-4"] and table["clusters"].tolist() == [2, 1, 1]
    assert table["splits"].tolist() == [0, 1, 0] and table["orphans"].tolist() == [1, 0, 0]
    assert table["merges"].tolist() == [0, 0, 1] and table["merges_high"].tolist() == [0, 0, 1]
    assert (linkage.rates == 1).all().all()  # groups() are these entities
    filed = linkage.rates_of(["a", "a", "b", "c", "c", "c", "d"])["estimate"]
    assert filed["precision"] == pytest.approx(2 / 4) and filed["recall"] == pytest.approx(2 / 4)
    said = str(linkage)
    assert "7 records, 3 pairs" in said and "orphans" in said and "taken as they are" in said


def test_expected_precision_and_recall_of_two_pairs():
    """One pair of probability .8, linked, and one of .3, not: precision .8.

    Recall by hand over the four cases.
    """
    rates = Linkage.from_pairs([(0, 1, 0.8), (2, 3, 0.3)]).rates["estimate"]
    recall = 0.8 * 0.7 + 0.8 * 0.3 / 2 + 0.2 * 0.7  # with no true pair none is missed
    assert rates["precision"] == pytest.approx(0.8, abs=0.16) and rates["recall"] == pytest.approx(
        recall, abs=0.16
    )


def test_groups_and_candidates():
    linkage = Linkage.from_pairs([(0, 1, 0.9), (1, 2, 0.5), (2, 3, 0.4), (4, 5, 0.2)], 7)
    assert linkage.groups().tolist() == [0, 0, 0, 1, 2, 3, 4] and linkage.groups(0.6).tolist() == [
        0,
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert np.flatnonzero(linkage.candidates([2, 4], 0.4)).tolist() == [1, 3]
    assert np.flatnonzero(linkage.candidates(np.arange(7) == 4, 0.2)).tolist() == [5]
    with pytest.raises(ValueError, match="a row is both trained and tested on"):
        linkage.mates([0, 1], [1, 2])
    with pytest.raises(ValueError, match="test must be row numbers from 0 to 6"):
        linkage.candidates([7], 0.4)


IDS = ["d", "a", "b", "c"]
SPLINK = pd.DataFrame(
    {"match_weight": [3.0, -1.0], "unique_id_l": ["a", "c"], "unique_id_r": ["b", "d"]}
)
DEDUPE = np.array(
    [(("a", "b"), 8 / 9), (("c", "d"), 1 / 3)], dtype=[("pairs", "U1", 2), ("score", "f4")]
)
SOURCES = pd.DataFrame(
    {
        "source_dataset_l": ["x", "x"], "unique_id_l": [1, 2], "source_dataset_r": ["y", "y"], "unique_id_r": [1, 2],
        "match_probability": [8 / 9, 1 / 3],
    }
)  # fmt: skip
FORMS = {
    "Splink's weights": (SPLINK, IDS),
    "Splink's probabilities": (SPLINK.assign(match_probability=[8 / 9, 1 / 3]), IDS),
    "Polars": (pl.DataFrame(SPLINK.assign(match_probability=[8 / 9, 1 / 3])), pl.Series(IDS)),
    "two sources": (SOURCES, [("y", 2), ("x", 1), ("y", 1), ("x", 2)]),
    "recordlinkage": (
        pd.Series([8 / 9, 1 / 3], pd.MultiIndex.from_tuples([("a", "b"), ("c", "d")])),
        IDS,
    ),
    "dedupe": ([(("a", "b"), 8 / 9), (("c", "d"), 1 / 3)], IDS),
    "dedupe's array": (DEDUPE, IDS),
    "rows": ([("b", "a", 8 / 9), ("c", "d", 1 / 3), ("d", "c", 1 / 3)], pd.DataFrame(index=IDS)),
    "columns": ((np.array([1, 3]), np.array([2, 0]), np.array([8 / 9, 1 / 3])), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_as_others_make_them(form):
    pairs, ids = FORMS[form]
    linkage = Linkage.from_pairs(pairs, ids)
    assert linkage.num_rows == 4 and linkage.knows_pairs
    assert linkage.left.tolist() == [0, 1] and linkage.right.tolist() == [3, 2]
    np.testing.assert_allclose(linkage.probability, [1 / 3, 8 / 9], rtol=1e-6)


def test_two_sides_of_a_fixed_split():
    linkage = Linkage.from_duplicates([(0, 0), (2, 1)], sides=(3, 2))
    assert (
        linkage.left.tolist() == [0, 2]
        and linkage.right.tolist() == [3, 4]
        and linkage.probability.tolist() == [1, 1]
    )
    none = Linkage.from_duplicates([], sides=(3, 2))
    assert none.mates([0, 1, 2], [3, 4]).tolist() == [0, 0] and none.num_rows == 5


def test_rows_that_no_pair_names():
    grows = Linkage.from_pairs([(0, 1, 0.9)])
    assert grows.for_rows(5).num_rows == 5 and grows.for_rows(5).groups().tolist() == [
        0,
        0,
        1,
        2,
        3,
    ]
    with pytest.raises(ValueError, match="about 2 rows, the data have 1"):
        grows.for_rows(1)
    with pytest.raises(ValueError, match="about 4 rows, the data have 5"):
        Linkage.from_pairs([(0, 1, 0.9)], 4).for_rows(5)


def test_a_linkage_pickles_and_repeats():
    linkage = Linkage.from_pairs((*GRAPHS["triangles"].T, np.linspace(0.1, 0.9, 8)))
    before = str(linkage)
    again = pickle.loads(pickle.dumps(linkage))
    np.testing.assert_array_equal(linkage.partitions(5, rng=2), again.partitions(5, rng=2))
    assert str(again) == before and again.summary().equals(linkage.summary())


def test_rates_as_given():
    exact = Linkage.from_rates(0.9, 0.81)
    fold = LeakageFold(np.arange(10, 100), np.arange(10), np.repeat(np.arange(20), 5))
    assert exact.rates["low"].isna().all() and not exact.knows_pairs
    by_hand = (1 - 0.9) * (20 - 2) / 19
    assert exact.shares([fold]).p_test[0] == pytest.approx(by_hand)
    assert {one.p_test[0] for one in exact.shares_drawn([fold])} == {exact.shares([fold]).p_test[0]}
    known = Linkage.from_rates(0.9, 0.81, labelled=(200, 400))
    again = Linkage.from_rates(
        tuple(known.rates.loc["precision"]), tuple(known.rates.loc["recall"])
    )
    assert again.given[0].num_labelled == pytest.approx(200, rel=1e-6) and again.given[
        1
    ].num_labelled == pytest.approx(400, rel=1e-6)
    drawn = np.array([one.p_test[0] for one in known.shares_drawn([fold])])
    slope = (20 - 2) / 19 / (2 * 0.9)  # of 1 − √recall
    assert drawn.std() == pytest.approx(slope * np.sqrt(0.81 * 0.19 / 400), rel=0.25)
    with pytest.raises(ValueError, match="only rates are known, no pairs"):
        known.mates([0], [1])


def linked_pairs(rng, count, weighted):
    """Pairs of which a fifth match.

    Nine in ten matches are linked, and one in twenty others. Weighted: matches come twice.
    """
    match = rng.random(20 * count) < 0.2
    linked = np.where(match, rng.random(20 * count) < 0.9, rng.random(20 * count) < 0.05)
    odds = np.where(match, 1.0, 0.5) if weighted else np.ones(20 * count)
    rows = np.flatnonzero(rng.random(20 * count) < odds)[:count]
    return pd.DataFrame({"match": match[rows], "linked": linked[rows], "weight": 1 / odds[rows]})


@pytest.mark.parametrize("weighted", [False, True])
def test_rates_from_labelled_pairs_cover(weighted):
    truth, rng, inside, found = (
        np.array([0.18 / (0.18 + 0.04), 0.9]),
        np.random.default_rng(1),
        [],
        [],
    )
    for _ in range(120):
        sample = linked_pairs(rng, 300, weighted).assign(left=0, right=1)
        rates = Linkage.from_labelled(sample).rates
        inside.append((rates["low"] <= truth) & (truth <= rates["high"]))
        found.append(rates["estimate"])
    np.testing.assert_allclose(np.mean(found, axis=0), truth, atol=0.015)
    assert np.all(np.mean(inside, axis=0) >= 0.9) and np.all(np.mean(inside, axis=0) < 1)


def test_rates_from_labelled_records_by_hand():
    sample = pd.DataFrame({"entity": [1, 1, 1, 2, 2, 3], "cluster": ["a", "a", "b", "b", "b", "c"]})
    rates = Linkage.from_labelled(sample).rates["estimate"]
    assert rates["precision"] == pytest.approx(2 / 4) and rates["recall"] == pytest.approx(2 / 4)
    filed = pd.DataFrame({"left": [0, 3, 0, 3], "right": [1, 4, 2, 5], "match": [1, 1, 1, 0]})
    pairs = Linkage.from_labelled(filed, groups=sample["cluster"]).rates["estimate"]
    assert pairs["precision"] == pytest.approx(1.0) and pairs["recall"] == pytest.approx(2 / 3)


def scored(rng, rows=1500):
    """Pairs of neighbouring rows, whose scores tell matches by log-odds 2 s − 2."""
    left = np.arange(rows - 1)
    score = rng.normal(size=rows - 1)
    p = 1 / (1 + np.exp(2 - 2 * score))
    return (
        pd.DataFrame({"left": left, "right": left + 1, "score": score}),
        p,
        rng.random(rows - 1) < p,
    )


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_labelled_pairs_calibrate_scores_and_their_error_counts(method):
    rng = np.random.default_rng(2)
    pairs, p, match = scored(rng)
    some = rng.choice(len(p), 400, replace=False)
    sample = pairs.loc[some, ["left", "right"]].assign(match=match[some])
    linkage = Linkage.from_labelled(sample, pairs, 1500, method=method)
    assert np.mean(np.abs(linkage.probability - p)) < (0.03 if method == "sigmoid" else 0.06)
    own = Linkage.from_labelled(
        sample.assign(score=pairs["score"][some]), pairs, 1500, method=method
    )
    np.testing.assert_allclose(own.probability, linkage.probability)
    labelled = np.var([(z[:-1] == z[1:]).sum() for z in linkage.partitions(60)])
    assert labelled > 1.6 * np.sum(p * (1 - p))  # the variance at known probabilities
    assert "the error of 400 labelled pairs is in" in str(linkage)


def test_a_separable_sample_makes_no_pair_certain():
    pairs = pd.DataFrame(
        {"left": [0, 1, 2, 3], "right": [4, 5, 6, 7], "score": [1.0, 2.0, 3.0, 4.0]}
    )
    for method in ("sigmoid", "isotonic"):
        p = Linkage.from_labelled(
            pairs.assign(match=[0, 0, 1, 1]), pairs, 8, method=method
        ).probability
        assert np.all((p > 0.02) & (p < 0.98)) and np.all(np.diff(p) >= 0)


def near_copies(rng, copies=200, columns=6):
    X = rng.normal(size=(700, columns))
    return np.r_[X, X[:copies] + 0.02 * rng.normal(size=(copies, columns))]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_near_copies_by_brute_force(metric):
    X = near_copies(np.random.default_rng(3))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    near = (
        unit @ unit.T >= 0.995
        if metric == "cosine"
        else np.linalg.norm(X[:, None] - X, axis=2) <= 0.2
    )
    linkage = Linkage.from_embeddings(X, 0.995 if metric == "cosine" else 0.2, metric=metric)
    np.testing.assert_array_equal(np.c_[linkage.left, linkage.right], np.argwhere(np.triu(near, 1)))
    assert (
        np.all(linkage.probability == 1)
        and linkage.mates(np.arange(700), np.arange(700, 900)).mean() > 0.95
    )


def test_faiss_finds_what_it_says(monkeypatch):
    pytest.importorskip("faiss")
    X = near_copies(np.random.default_rng(3))
    every = Linkage.from_embeddings(X, 0.99)
    monkeypatch.setattr(_neighbours, "ALL", 100)
    some = Linkage.from_embeddings(X, 0.99)
    both = np.isin(some.left * 900 + some.right, every.left * 900 + every.right)
    assert both.all() and len(both) >= 0.98 * len(every.left) and some.found >= 0.99


def test_labelled_distances():
    rng = np.random.default_rng(4)
    X = near_copies(rng)
    close = Linkage.from_embeddings(X, 0.97)
    copy = close.right - close.left == 700
    sample = pd.DataFrame({"left": close.left, "right": close.right, "match": copy})
    linkage = Linkage.from_embeddings(X, calibration=sample)
    is_copy = linkage.right - linkage.left == 700
    assert is_copy.sum() >= 199 and linkage.probability.sum() == pytest.approx(200, rel=0.15)
    assert linkage.probability.min() == pytest.approx(0.01, rel=0.1)


BAD = [
    (
        lambda: Linkage.from_pairs([(0, 1, 0.5), (1, 0, 0.6)]),
        "row 0 and row 1 are a pair twice, of probability 0.5 and 0.6",
    ),
    (
        lambda: Linkage.from_pairs([(0, 1, np.nan)]),
        r"must lie in \[0, 1\], without NaN; probability holds nan",
    ),
    (lambda: Linkage.from_pairs([(0, 1, 7.0)]), "become probabilities by Linkage.from_labelled"),
    (
        lambda: Linkage.from_pairs(SPLINK, IDS, "score"),
        "pairs have no column 'score', only match_weight, unique_id_l",
    ),
    (
        lambda: Linkage.from_pairs([]),
        "from_pairs: the table of pairs is empty.* say of which rows: ids=",
    ),
    (
        lambda: Linkage.from_pairs([("a", "b", 0.5)]),
        "without ids= pairs name rows by number, from 0; got 'a'",
    ),
    (lambda: Linkage.from_pairs([(-1, 2, 0.5)]), "name rows by number, from 0; got -1"),
    (
        lambda: Linkage.from_pairs([("a", "b", 0.5)], ["a", "a"]),
        "must name each row once; 'a' is there twice",
    ),
    (
        lambda: Linkage.from_pairs([("a", "b", 0.5)], ["a", "c"]),
        "no row is called 'b'; rows have names such as 'a'",
    ),
    (
        lambda: Linkage.from_labelled(pd.DataFrame({"left": [0], "right": [1], "match": [1]}), []),
        "all pairs is empty",
    ),
    (
        lambda: Linkage.from_pairs(
            SPLINK.assign(x=0).drop(columns="match_weight").assign(y=0), IDS
        ),
        "Say which by prob",
    ),
    (
        lambda: Linkage.from_pairs(SPLINK, pd.MultiIndex.from_tuples([("x", 1)])),
        "have no 'source_dataset_l' column",
    ),
    (
        lambda: Linkage.from_pairs([(0, 1, 0.5)], unlisted=1.0),
        "unlisted must lie between 0 and 1",
    ),
    (
        lambda: Linkage.from_duplicates([(0, 5)], sides=(3, 2)),
        "right names row 5, but that side has 2 rows",
    ),
    (lambda: Linkage.from_rates(0.0, 0.5), r"precision must lie in \(0, 1\]"),
    (
        lambda: Linkage.from_rates(0.9, (0.8, 0.9, 0.95)),
        r"recall must lie in \(0, 1\], or be \(estimate, low, high\)",
    ),
    (lambda: Linkage.from_rates(0.9, 0.9, labelled=0), "labelled must be how many"),
    (
        lambda: Linkage.from_labelled(pd.DataFrame({"left": [0], "right": [1], "match": [1]})),
        "needs a column 'linked'",
    ),
    (
        lambda: Linkage.from_labelled(pd.DataFrame({"match": [1, 1], "linked": [0, 0]})),
        "no linked pair",
    ),
    (
        lambda: Linkage.from_labelled(pd.DataFrame({"match": [0, 0], "linked": [1, 0]})),
        "no matching pair",
    ),
    (
        lambda: Linkage.from_pairs(pd.DataFrame({"id": [1]})),
        "pairs needs two columns of names; the only one is 'id'",
    ),
    (
        lambda: Linkage.from_pairs([("a", "b", 0.5), ("a", None, 0.5)], list("abc")),
        "1 of the pairs lack a name, .* row 1",
    ),
    (lambda: labelled([1, 1]), "the labelled pairs all match, or none does"),
    (lambda: labelled([1, 0]), "labelled matches have the lower score, 1 on average against 2"),
    (
        lambda: labelled([0, 1], left=[0, 0], right=[1, 3]),
        "pair of rows 0 and 3 is not among the pairs",
    ),
    (lambda: labelled([0, 1], weight=[0, 0]), "not all of them 0"),
    (
        lambda: labelled([0, 1], method="beta"),
        "method must be one of sigmoid, isotonic; got 'beta'",
    ),
    (
        lambda: Linkage.from_embeddings(np.eye(3)),
        "give threshold=, from where rows are copies, or calibration=",
    ),
    (lambda: Linkage.from_embeddings(np.zeros((3, 2)), 0.9), "row 0 of X is zero and has no angle"),
    (
        lambda: Linkage.from_embeddings(np.eye(3), 1.5),
        "threshold must be a cosine from -1 to 1; got 1.5",
    ),
    (
        lambda: Linkage.from_embeddings(np.ones((99, 2)), 0.9),
        "a row has 98 others within distance .* no copies",
    ),
    (
        lambda: Linkage.from_pairs([(0, 1, 0.5)]).summary(groups=[0]),
        "one label for each of 2 rows; got 1",
    ),
    (
        lambda: Linkage.from_pairs([(0, 1, 0.5)]).partitions(0),
        "num_partitions must be a whole number of 1 or more; got 0",
    ),
]


def labelled(match, left=(0, 1), right=(1, 2), weight=(1, 1), method="sigmoid"):
    pairs = pd.DataFrame({"left": [0, 1], "right": [1, 2], "score": [1.0, 2.0]})
    sample = pd.DataFrame({"left": left, "right": right, "match": match, "weight": weight})
    return Linkage.from_labelled(sample, pairs, 4, method=method)


@pytest.mark.parametrize("call, message", BAD)
def test_bad_linkage(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("column, said", [
    ({"p": ["high"]}, "the column 'p' of the pairs holds 'high', where a probability is wanted; name another by probability="),
    ({"p": ["0.9"]}, "'p' of the pairs holds numbers as text, such as '0.9', .*; convert it by .astype"),
    ({"match_weight": ["high"], "note": ["x"]}, "the column 'match_weight' of the pairs holds 'high'"),
])  # fmt: skip
def test_text_where_a_probability_is_wanted(column, said):
    with pytest.raises(TypeError, match=f"Linkage.from_pairs: .*{said}"):
        Linkage.from_pairs(pd.DataFrame({"left": [0], "right": [1]} | column))


def test_rates_are_numbers():
    with pytest.raises(
        TypeError, match=r"from_rates: precision must be a number in \(0, 1\], or .*; got 'high'"
    ):
        Linkage.from_rates("high", 0.9)  # type: ignore[arg-type]


def test_chains_that_have_not_settled_say_so(monkeypatch):
    monkeypatch.setattr(_partitions, "MAX_ENUMERATED_RECORDS", 1)
    links = lambda: Linkage.from_pairs((*GRAPHS["clique"].T, np.full(len(GRAPHS["clique"]), 0.4)))
    links().partitions(10)
    monkeypatch.setattr(_partitions, "MAX_SWEEP_STEPS", 1)
    with pytest.warns(UserWarning, match="have not settled.*not each was asked once"):
        links().partitions(10)
