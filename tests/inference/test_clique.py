"""Sums over configurations of fields: against enumeration, chains, finite differences.

Derivatives under jit and vmap.
"""

import itertools
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial

from leaveout._runtime.fingerprint import fingerprint
from leaveout.inference import elimination, passes
from leaveout.inference.clique import log_partition, marginals, pair_marginals, tree


def random_graph(rng, sites, chance):
    pairs = np.array(list(itertools.combinations(range(sites), 2)), int).reshape(-1, 2)
    return rng.permuted(pairs[rng.random(len(pairs)) < chance], axis=1)


def ring(sites):
    return np.stack([np.arange(sites), np.roll(np.arange(sites), -1)], 1)


def grid(rows, columns):
    number = np.arange(rows * columns).reshape(rows, columns)
    along = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1)
    return np.concatenate([along, np.stack([number[:-1].ravel(), number[1:].ravel()], 1)])


def enumerated(sites, edges, graph):
    """log Z and all marginals by the sum over every configuration."""
    n, K = sites.shape
    z = np.array(list(itertools.product(range(K), repeat=n)))
    log = sites[np.arange(n), z].sum(1) + edges[
        np.arange(len(graph)), z[:, graph[:, 0]], z[:, graph[:, 1]]
    ].sum(1)
    total = np.logaddexp.reduce(log)
    p = np.exp(log - total)
    q = np.stack([[p[z[:, s] == k].sum() for k in range(K)] for s in range(n)])
    pairs = np.zeros((len(graph), K, K))
    for e, (s, t) in enumerate(graph):
        np.add.at(pairs[e], (z[:, s], z[:, t]), p)
    return total, q, pairs


def potentials(rng, sites, graph, K, lanes=()):
    return rng.normal(size=(*lanes, sites, K)), rng.normal(size=(*lanes, len(graph), K, K))


GRAPHS = {
    "isolated sites": (4, np.zeros((0, 2), int)),
    "one edge": (2, np.array([[1, 0]])),
    "ring": (5, ring(5)),
    "complete": (6, random_graph(np.random.default_rng(0), 6, 1.0)),
    "two pieces": (7, np.array([[0, 3], [3, 5], [5, 0], [1, 2], [2, 6]])),
    "grid": (8, grid(2, 4)),
    **{
        f"random {seed}": (n, random_graph(np.random.default_rng(seed), n, 0.5))
        for seed, n in enumerate((3, 5, 6, 7, 8))
    },
}


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_enumeration(name, K, monkeypatch):
    n, graph = GRAPHS[name]
    sites, edges = potentials(np.random.default_rng(1), n, graph, K)
    want = enumerated(sites, edges, graph)
    # all tables narrow; and all but the smallest wide, a lane a pass
    for wide, lanes in ((2**16, 2**21), (4, 1)):
        monkeypatch.setattr(passes, "MAX_MATRIX_ENTRIES", wide)
        monkeypatch.setattr(passes, "PASS_TABLE_ENTRIES", lanes)
        field = passes.Passes(n, graph, K)
        some = any(isinstance(step, passes.CliquePass) for step in field.steps)
        assert some or K ** (field.width + 1) <= wide
        with jax.enable_x64(True):
            got = log_partition(sites, edges, field), *pair_marginals(sites, edges, field)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("wide", [2**16, 4])
def test_derivatives_of_marginals(wide, monkeypatch):
    """The Hessian of log Z is the covariance of the indicators, whichever way it is
    differentiated.
    """
    n, graph, K = 6, GRAPHS["random 2"][1], 3
    monkeypatch.setattr(passes, "MAX_MATRIX_ENTRIES", wide)
    field = passes.Passes(n, graph, K)
    sites, edges = potentials(np.random.default_rng(2), n, graph, K)
    z = np.array(list(itertools.product(range(K), repeat=n)))
    indicators = np.concatenate(
        [
            np.eye(K)[z].reshape(len(z), -1),
            (
                np.eye(K)[z[:, graph[:, 0]]][..., None] * np.eye(K)[z[:, graph[:, 1]]][:, :, None]
            ).reshape(len(z), -1),
        ],
        1,
    )
    p = np.exp(indicators @ np.concatenate([sites.ravel(), edges.ravel()]))
    p /= p.sum()
    mean = p @ indicators
    want = indicators.T @ (p[:, None] * indicators) - np.outer(mean, mean)
    with jax.enable_x64(True):
        place = lambda v: (v[: n * K].reshape(n, K), v[n * K :].reshape(-1, K, K))
        total = lambda v: log_partition(*place(v), field)
        flat = lambda v: jnp.concatenate(
            [part.ravel() for part in pair_marginals(*place(v), field)]
        )
        v = jnp.concatenate([sites.ravel(), edges.ravel()])
        np.testing.assert_allclose(jax.jit(jax.grad(total))(v), mean, atol=1e-13)
        for hessian in (
            jax.hessian(total),
            jax.jacfwd(flat),
            jax.jacrev(flat),
            jax.jacrev(jax.grad(total)),
        ):
            np.testing.assert_allclose(jax.jit(hessian)(v), want, atol=1e-12)
        only_sites = lambda q: marginals(q, edges, field)
        for derivative in (jax.jacfwd(only_sites), jax.jacrev(only_sites)):
            block = derivative(jnp.asarray(sites)).reshape(n * K, n * K)
            np.testing.assert_allclose(block, want[: n * K, : n * K], atol=1e-12)


def test_many_fields_at_once():
    """vmap, nested vmap and axes of one's own are the same as one field after another.

    So are threads.
    """
    graph, rng = grid(3, 3), np.random.default_rng(3)
    field = tree(9, graph, 2)
    sites, edges = potentials(rng, 9, graph, 2, (4, 3))
    with jax.enable_x64(True):
        want = np.array(
            [
                [log_partition(s, e, field) for s, e in zip(*row, strict=True)]
                for row in zip(sites, edges, strict=True)
            ]
        )
        np.testing.assert_allclose(log_partition(sites, edges, field), want, rtol=1e-13)
        one = lambda s, e: log_partition(s, e, field)
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(one)))(sites, edges), want, rtol=1e-13)
        shared = np.array([log_partition(s, edges[0, 0], field) for s in sites[0]])
        np.testing.assert_allclose(
            jax.vmap(one, (0, None))(sites[0], edges[0, 0]), shared, rtol=1e-13
        )
        np.testing.assert_allclose(log_partition(sites[0], edges[0, 0], field), shared, rtol=1e-13)
        hessian = jax.hessian(lambda a, s: one(a * s, edges[0, 0]))
        together = jax.jit(
            lambda s: jax.lax.map(lambda s: jax.vmap(hessian, (None, 0))(1.1, s), s)
        )(sites)
        apart = [[hessian(1.1, s) for s in row] for row in sites]
        np.testing.assert_allclose(together, apart, rtol=1e-11)

    def in_a_thread(k):
        with jax.enable_x64(True):
            function = jax.jit(jax.vmap(jax.value_and_grad(one)))
            return [
                np.asarray(jnp.sum(part))
                for _ in range(20)
                for part in function(sites[k % 4], edges[k % 4])
            ]

    with ThreadPoolExecutor(4) as pool:
        for k, values in enumerate(pool.map(in_a_thread, range(8))):
            np.testing.assert_allclose(values[::2], want[k % 4].sum(), rtol=1e-12)


def test_large_arrays_in_loops_do_not_lock_up():
    """Programs of several threads, whose other operations are large, and whose potentials are."""
    graph = np.stack([np.arange(999), np.arange(1, 1000)], 1)
    field = tree(1000, graph, 2)

    def run(seed):
        with jax.enable_x64(True):
            rng = np.random.default_rng(seed)
            sites, matrix = rng.normal(size=(12, 1000, 2)), rng.normal(size=(1000, 1000)) / 100

            @jax.jit
            def program(sites, matrix):
                step = lambda s: jnp.sum(
                    matrix
                    @ jnp.tanh(matrix @ jax.grad(lambda s: log_partition(s, 0.1 * edges, field))(s))
                )
                edges = jnp.broadcast_to(jnp.eye(2), (999, 2, 2))
                return jax.lax.map(step, sites, batch_size=4)

            return float(program(sites, matrix).sum())

    with ThreadPoolExecutor(3) as pool:
        assert np.isfinite(list(pool.map(run, range(6)))).all()


def test_a_strip_by_transfer_matrices():
    """A 4 × 30 Ising strip, summed column by column."""
    rows, columns, beta = 4, 30, 0.7
    z = np.array(list(itertools.product((0, 1), repeat=rows)))
    down = beta * (z[:, 1:] == z[:, :-1]).sum(1)
    across = beta * (z[:, None] == z[None]).sum(-1)
    total = down
    for _ in range(columns - 1):
        total = np.logaddexp.reduce(total[:, None] + across, 0) + down
    graph = grid(rows, columns)
    with jax.enable_x64(True):
        got = log_partition(
            np.zeros((rows * columns, 2)),
            np.tile(beta * np.eye(2), (len(graph), 1, 1)),
            tree(120, graph, 2),
        )
    np.testing.assert_allclose(got, np.logaddexp.reduce(total), rtol=1e-13)
    assert tree(120, graph, 2).width == rows


def test_extreme_and_forbidden_potentials():
    """Contrasts of thousands of nats, and states and pairs that cannot be."""
    graph, field = ring(4), tree(4, ring(4), 2)
    sites = np.array([[0.0, -3000.0], [-2000.0, 0.0], [0.0, 0.0], [5000.0, 0.0]])
    edges = np.tile(4000.0 * np.eye(2), (4, 1, 1))
    forbidden = np.array([[0.0, -np.inf], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    with jax.enable_x64(True):
        for given in (sites, forbidden):
            want = enumerated(given, edges, graph)
            np.testing.assert_allclose(log_partition(given, edges, field), want[0], rtol=1e-13)
            for ours, theirs in zip(pair_marginals(given, edges, field), want[1:], strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-13)
        assert log_partition(np.full((4, 2), -np.inf), edges, field) == -np.inf
        assert np.isnan(log_partition(np.full((4, 2), np.nan), edges, field))


def test_graphs_too_dense_are_refused():
    complete = np.array(list(itertools.combinations(range(60), 2)))
    with pytest.raises(
        ValueError,
        match=r"needs 10\^\d+ bytes: tables over 60 sites \(width 59\) of 2 states.*fewer edges",
    ):
        tree(60, complete, 2)
    with pytest.raises(
        ValueError,
        match=r"needs 0.2\d+ GiB: tables over 23 sites.*limit is 0.1 GiB. Raise it by memory=0.3 if",
    ):
        tree(23, complete[(complete < 23).all(1)], 2, 0.1 * 2**30)
    assert tree(8, complete[(complete < 8).all(1)], 3).width == 7


@pytest.mark.slow
def test_the_need_is_what_is_taken():
    """The most that a pass of derivatives holds is no more than was said, and not much less."""
    graph, K = grid(9, 12), 3
    field = passes.Passes(108, graph, K)
    assert field.lanes * field.entries > 2**22
    sites, edges = potentials(np.random.default_rng(0), 108, graph, K, (field.lanes,))
    given = np.concatenate(
        [sites.reshape(field.lanes, -1), edges.reshape(field.lanes, -1)], 1
    ).T.copy()
    tracemalloc.start()
    up = field.up(field._stack(given))
    field.tangents(up, field.down(up, edges=True), given[..., None], edges=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.75 * field.need < most <= field.need
    with pytest.raises(ValueError, match="The limit is"):
        passes.Passes(108, graph, K, field.need - 1.0)


@pytest.mark.slow
def test_a_better_order_is_looked_for_where_tables_are_many(monkeypatch):
    """A triangulation of random points: less than by any order of least fill.

    And the same in every call.
    """
    monkeypatch.setattr(elimination, "SMALL_TABLES", 2**12)
    corners = scipy.spatial.Delaunay(np.random.default_rng(0).random((100, 2))).simplices
    pairs = np.sort(np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]), 1)
    graph = elimination.neighbours(100, np.unique(pairs, axis=0))
    found = elimination.best_scopes(graph, 3)
    tried = min(elimination.entries(scopes, 3) for scopes in elimination._orders(graph, 3))
    assert elimination.SMALL_TABLES < elimination.entries(found, 3) <= 0.8 * tried
    assert list(elimination.best_scopes(graph, 3)) == list(found)


def test_the_best_of_several_orders_is_taken():
    scopes = elimination.first_scopes(elimination.neighbours(400, grid(20, 20)), 2)
    assert max(map(len, scopes.values())) == 20
    trees = random_graph(np.random.default_rng(5), 40, 0.0)
    assert (
        max(map(len, elimination.best_scopes(elimination.neighbours(40, trees), 2).values())) == 0
    )


def test_third_derivatives_are_refused_in_words():
    field = tree(3, ring(3), 2)
    function = lambda a: log_partition(
        a * np.ones((3, 2)) * np.arange(2), np.zeros((3, 2, 2)), field
    )
    with (
        jax.enable_x64(True),
        pytest.raises(NotImplementedError, match=r"InfinitesimalJackknife\(order=2\)"),
    ):
        jax.jacfwd(jax.hessian(function))(1.0)


def test_shapes_and_precision_are_checked():
    field = tree(3, ring(3), 2)
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"\[\.\.\., 3, 2\]"):
        log_partition(np.zeros((4, 2)), np.zeros((3, 2, 2)), field)
    with jax.enable_x64(False), pytest.raises(TypeError, match="float64"):
        log_partition(np.zeros((3, 2)), np.zeros((3, 2, 2)), field)


def test_equal_graphs_are_equal():
    assert tree(4, ring(4), 2) is tree(4, ring(4).copy(), 2)
    assert passes.Passes(4, ring(4), 2) == tree(4, ring(4), 2)
    assert hash(passes.Passes(4, ring(4), 2)) == hash(tree(4, ring(4), 2))
    assert tree(4, ring(4), 3) != tree(4, ring(4), 2)


@pytest.mark.parametrize("inference", ["exact", "bethe", "trw"])
def test_sums_stand_for_their_graph_alone(inference):
    """In checkpoints and other processes: passes that were made before change nothing."""
    graph = ring(5)
    sums = tree(5, graph, 2, inference=inference)
    before = fingerprint(sums)
    potentials = np.random.default_rng(0).standard_normal((10 + 20, 1))
    found, _ = sums.run(potentials, edges=True)
    assert fingerprint(sums) == before
    sent = pickle.loads(pickle.dumps(sums))
    assert sent == sums and fingerprint(sent) == before
    np.testing.assert_array_equal(
        sent.run(potentials, edges=True)[0].log_partition, found.log_partition
    )
