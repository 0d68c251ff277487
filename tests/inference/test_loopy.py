"""Approximate sums by messages: exact on trees, stationary, consistent with their derivatives.

Fields by them.
"""

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout.inference.clique import log_partition, tree
from leaveout.inference.loopy import Messages, spanning
from leaveout.inference.passes import Passes
from tests.helpers import call
from tests.inference.test_clique import grid, potentials, random_graph, ring
from tests.models.hidden.test_mrf import oracle, planted

TREE = np.array([[1, 0], [0, 2], [3, 1], [4, 1], [2, 5], [6, 5]])


def flat(sites, edges):
    """Potentials `[numbers, lanes]`."""
    return np.concatenate([part.reshape(len(part), -1) for part in (sites, edges)], 1).T.copy()


@pytest.mark.parametrize("kind", ["bethe", "trw"])
@pytest.mark.parametrize("K", [2, 3])
def test_exact_on_trees(kind, K):
    # site 7 is alone
    rng, exact, near = np.random.default_rng(0), Passes(8, TREE, K), Messages(8, TREE, K, kind)
    given = flat(*potentials(rng, 8, TREE, K, (3,)))
    given[2] = -np.inf  # a state that cannot be
    given[K * 3 : K * 4] -= 4e3
    (up, down), (found, beliefs) = (sums.run(given, edges=True) for sums in (exact, near))
    np.testing.assert_allclose(found.log_partition, up.log_partition, rtol=1e-13)
    np.testing.assert_allclose(beliefs.marginals, down.marginals, atol=1e-12)
    change = rng.normal(size=(*given.shape, 2))
    want = exact.tangents(up, down, change, edges=True)
    np.testing.assert_allclose(near.tangents(found, beliefs, change, edges=True), want, atol=1e-11)


@pytest.mark.parametrize("kind", ["bethe", "trw"])
def test_stationary_and_consistent_on_loops(kind):
    """log Z is the free energy of beliefs that agree.

    Its derivatives are they, and theirs the tangents.
    """
    n, graph, K = 6, random_graph(np.random.default_rng(2), 6, 0.7), 3
    near, rng = Messages(n, graph, K, kind), np.random.default_rng(1)
    given = flat(*(0.6 * part for part in potentials(rng, n, graph, K, (2,))))
    found, down = near.run(given, edges=True)
    q, pairs = found.sites, found.edges
    np.testing.assert_allclose(pairs.sum(2), q[graph[:, 0]], atol=1e-10)
    np.testing.assert_allclose(pairs.sum(1), q[graph[:, 1]], atol=1e-10)
    entropy = lambda p: -np.sum(p * np.log(p), axis=tuple(range(1, p.ndim - 1)))
    information = entropy(q)[graph[:, 0]] + entropy(q)[graph[:, 1]] - entropy(pairs)
    weight = near.weights[: len(graph), 0]
    free = np.sum(given * down.marginals, 0) + entropy(q).sum(0) - np.sum(weight * information, 0)
    np.testing.assert_allclose(found.log_partition, free, rtol=1e-11)
    exact = Passes(n, graph, K).log_partition(given)
    assert (
        (found.log_partition >= exact).all()
        if kind == "trw"
        else (abs(found.log_partition - exact) < 0.1).all()
    )
    change, step = rng.normal(size=given.shape), 1e-5
    above, below = (near.run(given + sign * step * change, edges=True) for sign in (1, -1))
    slope = (above[0].log_partition - below[0].log_partition) / (2 * step)
    np.testing.assert_allclose(slope, np.sum(change * down.marginals, 0), rtol=1e-7)
    moved = (above[1].marginals - below[1].marginals) / (2 * step)
    tangent = near.tangents(found, down, change[..., None], edges=True)[..., 0]
    np.testing.assert_allclose(tangent, moved, atol=1e-8)
    other = rng.normal(size=given.shape)
    back = near.tangents(found, down, other[..., None], edges=True)[..., 0]
    # a symmetric map
    np.testing.assert_allclose(np.sum(other * tangent, 0), np.sum(change * back, 0), rtol=1e-8)


def test_shares_of_spanning_trees():
    graph = np.concatenate([ring(5), [[0, 5], [7, 8]]])
    share = spanning(9, graph)
    assert share[-2:].tolist() == [1.0, 1.0] and share.sum() == pytest.approx(9 - 3)
    np.testing.assert_allclose(share[:5], 0.8, atol=0.02)


def test_messages_that_do_not_settle_are_no_numbers(monkeypatch):
    graph = grid(3, 3)
    near = Messages(9, graph, 2, "bethe")
    monkeypatch.setattr("leaveout.developer.inference.loopy.MAX_MESSAGE_ROUNDS", 3)
    given = flat(*potentials(np.random.default_rng(0), 9, graph, 2, (1,)))
    assert (
        np.isnan(near.log_partition(given)).all()
        and np.isnan(near.run(given, edges=True)[1].marginals).all()
    )


@pytest.mark.parametrize("kind", ["bethe", "trw"])
def test_a_field_on_a_tree_is_exact(kind):
    """F, its derivatives by θ and by weights, and scores, in the style whose edges go."""
    x = np.array([3.0, 9, np.nan, 2, 8, 1, 7])
    make = lambda inference: lo.MRF(
        x, TREE, lo.emissions.Poisson(), 2, coupling=0.8, drop="site", inference=inference
    )
    w = np.array([1.0, 0.3, 1, 0, 1.2, 1, 1])
    for name in ("loss", "hessian"):
        one, other = (
            call(getattr(make(kind_), name), {"rate": np.log([2.0, 8.0])}, w)
            for kind_ in ("exact", kind)
        )
        np.testing.assert_allclose(one, other, rtol=1e-9)
    one, other = (
        call(make(kind_).score, {"rate": np.log([2.0, 8.0])}, w, np.array([1, 3]), np.ones(2))
        for kind_ in ("exact", kind)
    )
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_how_far_from_exact_is_said():
    """Each site left out alone, by enumeration.

    And the printed result says whose losses they are.
    """
    x, edges = planted(side=3)
    field = lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.9, inference="bethe")
    parameters = {"coupling": 0.9, "rate": [3.0, 9.0]}
    table = field.against_exact(parameters)
    exact = lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.9)
    ones, eye = np.ones(9), np.eye(9)
    want = np.array(
        [
            oracle(exact, parameters, x, ones) - oracle(exact, parameters, x, ones - eye[s])
            for s in range(9)
        ]
    )
    theta = field.parameters.unconstrained(parameters)
    got = np.array(
        [call(field.score, theta, ones - eye[s], np.array([s]), np.ones(1))[0] for s in range(9)]
    )
    row = table.loc["all"]
    assert row.exact == pytest.approx(want.mean(), rel=1e-10) and row.approximate == pytest.approx(
        got.mean(), rel=1e-9
    )
    assert row.largest == pytest.approx(abs(want - got).max(), rel=1e-6) and 0 < row.largest < 0.2
    log_p = field.log_likelihood(parameters) - exact.log_likelihood(parameters)
    assert row.log_likelihood == pytest.approx(log_p, rel=1e-8)
    assert 'inference="bethe"' in field.note and "not of the exact one" in field.note
    with pytest.raises(ValueError, match="these are exact"):
        exact.against_exact(parameters)


@pytest.mark.slow
def test_parts_of_a_field_that_is_too_wide(monkeypatch):
    monkeypatch.setattr("leaveout.models.hidden.mrf.MAX_PART_ENTRIES", 100)
    x, edges = planted(side=5)
    table = lo.MRF(
        x, edges, lo.emissions.Poisson(), 2, coupling=0.5, inference="trw"
    ).against_exact({"rate": [3.0, 9.0]})
    assert len(table) > 2 and table.sites.iloc[:-1].sum() == 25 == table.sites["all"]
    assert table.loc["all", "largest"] == table.largest.iloc[:-1].max() > 0


def test_what_approximations_do_not_do():
    x, edges = planted(side=3)
    make = lambda **how: lo.MRF(
        x, edges, lo.emissions.Poisson(), 2, **{"coupling": 0.5, "inference": "bethe", **how}
    )
    with pytest.raises(ValueError, match='Take "trw" to learn them'):
        make(coupling=lo.developer.models.Free())
    with pytest.raises(ValueError, match='Take "trw" to learn them'):
        make(external=lo.developer.models.External())
    for run in (
        lambda f: f.decode({"rate": [2.0, 9.0]}),
        lambda f: f.simulate({"rate": [2.0, 9.0]}, 1),
    ):
        with pytest.raises(ValueError, match="by exact inference only"):
            run(make())
    for wrong in (
        dict(inference="mean field"),
        dict(memory=-1.0),
        dict(memory="4 GiB"),
        dict(memory=np.nan),
    ):
        with pytest.raises(
            ValueError, match="inference must be one of 'exact', 'bethe', 'trw', memory GiB"
        ):
            make(**wrong)
    with pytest.raises(ValueError, match=r"limit is 0.001 GiB. Raise it by memory=0.\d if"):
        make(inference="exact", memory=0.001)


@pytest.mark.slow
def test_a_learned_coupling_by_trees():
    """Tree-reweighted F is smooth in β through the strength at which Bethe's messages change phase;
    refits go through.
    """
    x, edges = planted(side=6)
    fit = lo.fit(
        lo.MRF(
            x,
            edges,
            lo.emissions.Poisson(),
            2,
            coupling=lo.developer.models.Free(),
            drop="site",
            inference="trw",
        )
    )
    exact, near = (
        lo.cross_validate(fit, lo.leave_one_out(), strategy=refit)
        for refit in (lo.Exact(), lo.Certified())
    )
    assert (
        np.mean(abs(near.losses - exact.losses) <= near.error + 1e-9) > 0.9
        and abs(near.mean - exact.mean) < 0.01
    )
    values = [
        call(fit.objective.loss, {**fit.theta, "coupling": np.array(b)}, np.ones(36))
        for b in np.linspace(0.1, 2, 40)
    ]
    assert np.isfinite(values).all() and abs(np.diff(values, 3)).max() < 0.05


def test_many_fields_through_jax():
    graph, rng = grid(3, 3), np.random.default_rng(3)
    near = tree(9, graph, 2, inference="trw")
    sites, edges = potentials(rng, 9, graph, 2, (4,))
    with jax.enable_x64(True):
        one = lambda s: log_partition(s, edges[0], near)
        want = [one(s) for s in sites]
        np.testing.assert_allclose(jax.jit(jax.vmap(one))(sites), want, rtol=1e-12)
        hessian = jax.jit(jax.hessian(lambda a: one(a * sites[0])))(1.3)
        slope = lambda a: float(jax.grad(lambda a: one(a * sites[0]))(a))
        np.testing.assert_allclose(hessian, (slope(1.3001) - slope(1.2999)) / 2e-4, rtol=1e-5)
    assert near == tree(9, graph, 2, inference="trw") != tree(9, graph, 2, inference="bethe")
