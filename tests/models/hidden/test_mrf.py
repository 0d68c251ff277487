"""Hidden Markov random fields.

Every style against enumeration, chains, exact refits, laws, bad input.
"""

import itertools
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.stats

import leaveout as lo
from leaveout.models.hidden.hidden_field import climb
from tests.helpers import call, flat, minimiser

RING = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])


def random_graph(seed, sites, chance=0.5):
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(sites), 2)))
    return rng.permuted(pairs[rng.random(len(pairs)) < chance], axis=1)


def grid(rows, columns):
    number = np.arange(rows * columns).reshape(rows, columns)
    along = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1)
    return np.concatenate([along, np.stack([number[:-1].ravel(), number[1:].ravel()], 1)])


def built(x, edges, K, coupling, drop="observation", **kwargs):
    prior = kwargs.pop("emission_prior", None)
    return lo.MRF(
        x, edges, lo.emissions.Poisson(prior=prior), K, coupling=coupling, drop=drop, **kwargs
    )


def enumerated(edges, coupling, logs, pair_weight=None):
    """log Σ_z exp(Σ_s logs[s, z_s] + Σ_e coupling_e weight_e 1{z_s = z_t}) over one field, `logs`
    `[sites, states]`.
    """
    n, K = logs.shape
    z = np.array(list(itertools.product(range(K), repeat=n)))
    agree = z[:, edges[:, 0]] == z[:, edges[:, 1]]
    strength = np.broadcast_to(coupling, (len(edges),)) * (
        1.0 if pair_weight is None else pair_weight
    )
    return np.logaddexp.reduce(logs[np.arange(n), z].sum(1) + agree @ strength)


def oracle(field, parameters, x, w):
    """F(θ, w) without its prior."""
    x = np.atleast_2d(x)
    edges, beta, K = field.edges, parameters["coupling"], len(parameters["rate"])
    log_e = scipy.stats.poisson.logpmf(np.nan_to_num(x)[..., None], parameters["rate"])
    seen = ~np.isnan(x)
    if field.drop == "field":
        return sum(
            w[f]
            * (
                enumerated(edges, beta, np.zeros_like(e))
                - enumerated(edges, beta, seen[f][:, None] * e)
            )
            for f, e in enumerate(log_e)
        )
    w, total = w.reshape(x.shape), 0.0
    for f, e in enumerate(log_e):
        pair = w[f][edges[:, 0]] * w[f][edges[:, 1]] if field.drop == "site" else None
        total += enumerated(edges, beta, np.zeros((x.shape[1], K)), pair)
        total -= enumerated(edges, beta, (w[f] * seen[f])[:, None] * e, pair)
    return total


def at(field, parameters):
    wanted = {
        k: np.asarray(v, float) for k, v in parameters.items() if field.learned or k != "coupling"
    }
    return jax.tree.map(np.asarray, field.parameters.unconstrained(wanted))


def counts(rng, *shape):
    return rng.poisson(4.0, shape).astype(float)


RATES = {1: [4.0], 2: [2.0, 6.5], 3: [1.0, 4.0, 9.0]}
CASES = {  # sites, edges, states, fields, coupling
    "isolated": (4, np.zeros((0, 2), int), 2, 0, 0.7),
    "ring": (4, RING, 2, 0, 0.7),
    "complete": (5, random_graph(0, 5, 1.0), 2, 0, -0.4),
    "two pieces, three states": (6, np.array([[0, 3], [3, 5], [1, 2]]), 3, 0, 1.1),
    "random, coupling by edge": (6, random_graph(1, 6), 2, 0, "edges"),
    "random, learned": (7, random_graph(2, 7), 2, 0, "learned"),
    "random, fields, missing": (5, random_graph(3, 5), 3, 2, "learned"),
    "random, eight": (8, random_graph(4, 8), 2, 0, 0.5),
    "one state": (3, np.array([[0, 1]]), 1, 0, 0.3),
}


def case(name, drop):
    n, edges, K, fields, coupling = CASES[name]
    rng = np.random.default_rng(0)
    fields = fields or (2 if drop == "field" else 0)
    x = counts(rng, fields, n) if fields else counts(rng, n)
    if "missing" in name:
        x[0, 1] = x[1, 3] = np.nan
    beta = (
        rng.normal(size=len(edges))
        if coupling == "edges"
        else 0.6
        if coupling == "learned"
        else coupling
    )
    field = built(
        x,
        edges,
        K,
        lo.developer.models.Free(0.6, prior=None) if coupling == "learned" else beta,
        drop,
    )
    return field, x, {"coupling": beta, "rate": RATES[K]}


@pytest.mark.parametrize("drop", ["observation", "site", "field"])
@pytest.mark.parametrize("name", CASES)
def test_enumeration(name, drop):
    field, x, parameters = case(name, drop)
    rng = np.random.default_rng(1)
    for w in (
        np.ones(field.num_units),
        rng.uniform(0, 1.5, field.num_units),
        (rng.random(field.num_units) < 0.6) * 1.0,
    ):
        np.testing.assert_allclose(
            call(field.loss, at(field, parameters), w), oracle(field, parameters, x, w), rtol=1e-11
        )


@pytest.mark.parametrize("drop", ["observation", "site"])
@pytest.mark.parametrize(
    "name",
    ["ring", "random, coupling by edge", "random, fields, missing", "two pieces, three states"],
)
def test_scores_by_enumeration(name, drop):
    """`−log p(x_s | all that is seen)` in the whole graph, of a few units, of all in order, and
    joint.
    """
    field, x, parameters = case(name, drop)
    whole = built(x, field.edges, field.number, field.coupling, "observation")
    w, held = np.ones(field.num_units), np.array([0, 2, field.num_units - 1])
    w[held] = 0
    loss = lambda w: oracle(whole, parameters, x, w)
    want = np.array([loss(w + np.eye(len(w))[t]) - loss(w) for t in held])
    theta = at(field, parameters)
    got = call(field.score, theta, w, np.array([*held, field.num_units]), np.array([1.0, 1, 1, 0]))
    np.testing.assert_allclose(got[:3], want, rtol=1e-10)
    one = call(field.score, theta, w, held[1:2], np.ones(1))
    np.testing.assert_allclose(one, want[1:2], rtol=1e-10)
    everything = call(field.score, theta, w, np.arange(len(w)), 1 - w)
    np.testing.assert_allclose(everything[held], want, rtol=1e-10)
    together = built(x, field.edges, field.number, parameters["coupling"], drop, score="joint")
    joint = call(
        together.score,
        at(together, parameters),
        w,
        np.array([*held, field.num_units]),
        np.array([1.0, 1, 1, 0]),
    )
    np.testing.assert_allclose(joint, loss(np.ones_like(w)) - loss(w), rtol=1e-10)


def test_scores_of_fields():
    field, x, parameters = case("random, fields, missing", "field")
    want = [oracle(field, parameters, x, np.eye(2)[f]) for f in range(2)]
    for index in (np.array([1]), np.array([0, 1])):
        got = call(field.score, at(field, parameters), np.zeros(2), index, np.ones(len(index)))
        np.testing.assert_allclose(got, np.array(want)[index], rtol=1e-11)
    moved = call(
        field.perturbation, at(field, parameters), np.array([1, 2, 2]), np.array([-0.3, 9.0, 9.0])
    )
    np.testing.assert_allclose(moved, -0.3 * want[1], rtol=1e-11)


@pytest.mark.parametrize("drop", ["observation", "site"])
def test_held_out_densities_sum_to_one(drop):
    edges, w = random_graph(5, 6), np.array([1.0, 0, 1, 1, 0, 1])
    x, total = counts(np.random.default_rng(2), 6), np.zeros(2)
    for value in range(60):
        field = built(np.where(w == 0, value, x), edges, 3, 0.8, drop)
        total += np.exp(
            -call(field.score, at(field, {"rate": RATES[3]}), w, np.array([1, 4]), np.ones(2))
        )
    np.testing.assert_allclose(total, 1.0, atol=1e-10)


def test_the_ring_of_appendix_e():
    """A site of a ring left out: without its state the rest is a chain, with it a ring: A and B
    differ. The end of a chain adds nothing, and they agree."""
    x, theta = counts(np.random.default_rng(3), 4), {"coupling": 0.9, "rate": RATES[2]}
    last = np.array([1.0, 1, 1, 0])
    losses = {}
    for name, edges in (("ring", RING), ("chain", RING[:3])):
        for drop in ("observation", "site"):
            field = built(x, edges, 2, 0.9, drop)
            losses[name, drop] = call(field.loss, at(field, theta), last)
    assert abs(losses["ring", "observation"] - losses["ring", "site"]) > 1e-3
    assert losses["chain", "observation"] == pytest.approx(losses["chain", "site"], rel=1e-13)
    assert losses["ring", "site"] == pytest.approx(losses["chain", "site"], rel=1e-13)


@pytest.mark.slow
def test_a_chain_is_a_hidden_markov_model():
    """A Potts chain is the Markov chain that stays with odds exp(β) : 1 for each other state.

    Both are left out alike.
    """
    rng, T, beta = np.random.default_rng(4), 40, 1.3
    x = rng.poisson(np.where(np.cumsum(rng.random(T) < 0.2) % 2, 8.0, 2.0)).astype(float)
    x[7] = np.nan
    move = np.exp(beta * np.eye(2))
    move /= move.sum(1, keepdims=True)
    hmm = lo.HMM(x, lo.emissions.Poisson(), 2, initial=[0.5, 0.5], transition=move)
    field = lo.MRF(
        x,
        np.stack([np.arange(T - 1), np.arange(1, T)], 1),
        lo.emissions.Poisson(),
        2,
        coupling=beta,
    )
    fits = [lo.fit(model) for model in (hmm, field)]
    np.testing.assert_allclose(fits[0].parameters["rate"], fits[1].parameters["rate"], rtol=1e-7)
    assert hmm.log_likelihood(fits[0]) == pytest.approx(field.log_likelihood(fits[1]), rel=1e-10)
    assert hmm.bic(fits[0]) - field.bic(fits[1]) == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(
        hmm.state_probabilities(fits[0]), field.state_probabilities(fits[1]), atol=1e-7
    )
    seen = np.isfinite(x)  # the missing step, between two states, is a tie
    np.testing.assert_array_equal(hmm.decode(fits[0])[seen], field.decode(fits[1])[seen])
    both = [
        lo.fold_parameters(fit, lo.leave_one_out(), strategy=lo.InfinitesimalJackknife())["rate"]
        for fit in fits
    ]
    np.testing.assert_allclose(*both, rtol=1e-6)
    weights = np.where(np.arange(T) % 3 == 0, 0.0, 1.0)
    arguments = weights, np.arange(T), 1 - weights
    of_chain = hmm.score(fits[0].theta, *arguments)  # in NumPy
    of_field = call(field.score, fits[1].theta, *arguments)
    np.testing.assert_allclose(of_chain, of_field, rtol=1e-6)


def planted(seed=0, side=6, rates=(3.0, 9.0), fields=0):
    """Counts on a grid with two regions."""
    rng = np.random.default_rng(seed)
    left = np.arange(side * side) % side < side / 2
    x = rng.poisson(np.where(left, *rates), (fields or 1, side * side)).astype(float)
    return (x if fields else x[0]), grid(side, side)


FITS = {}


def fitted(name):
    if name not in FITS:
        x, edges = planted()
        years, _ = planted(side=4, fields=6)
        FITS[name] = lo.fit(
            {
                "observation": lambda: lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.5),
                "site": lambda: lo.MRF(
                    x, edges, lo.emissions.Poisson(), 2, coupling=0.5, drop="site"
                ),
                "site, learned": lambda: lo.MRF(
                    x,
                    edges,
                    lo.emissions.Poisson(),
                    2,
                    coupling=lo.developer.models.Free(0.5),
                    drop="site",
                ),
                "field, learned": lambda: lo.MRF(
                    years,
                    grid(4, 4),
                    lo.emissions.Poisson(),
                    2,
                    coupling=lo.developer.models.Free(),
                    drop="field",
                ),
                "site, matrix and external": lambda: lo.MRF(
                    x,
                    edges,
                    lo.emissions.Poisson(),
                    2,
                    coupling=lo.developer.models.Free(0.5 * np.eye(2)),
                    external=lo.developer.models.External(np.arange(36) % 6),
                    drop="site",
                ),
                "observed": lambda: lo.MRF(
                    np.where(x > 5, 1.0, 0.0),
                    edges,
                    lo.emissions.Observed(2),
                    2,
                    coupling=lo.developer.models.Free(),
                    external=lo.developer.models.External(np.arange(36) % 6),
                ),
                "site, trw": lambda: lo.MRF(
                    x,
                    edges,
                    lo.emissions.Poisson(),
                    2,
                    coupling=lo.developer.models.Free(),
                    drop="site",
                    inference="trw",
                ),
            }[name]()
        )
    return FITS[name]


NAMES = [
    "observation",
    "site",
    "site, learned",
    "field, learned",
    "site, matrix and external",
    "observed",
    "site, trw",
]
ORDERS = {
    "NoUpdate": (lo.NoUpdate(), 1),
    "IJ": (lo.InfinitesimalJackknife(), 2),
    "Newton": (lo.NewtonStep(), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_order_of_accuracy_and_exact_refits(name):
    """Errors against SciPy's minimiser as weights go 1 → 1 − t; and the minimiser itself."""
    fit = fitted(name)
    objective, units = fit.objective, fit.objective.num_units
    steps, width = (0.2, 0.1, 0.05, 1.0), min(8, units // 3)
    index = np.tile(np.arange(1, 1 + width), len(steps))
    weight = np.repeat(1 - np.array(steps), width)
    plan = lo.Plan(
        np.arange(len(steps) + 1) * width, index, weight, np.zeros(len(index), bool), units
    )
    oracle = np.array([minimiser(objective, fit.theta, w) for w in plan.matrix()])
    unravelled = lambda found: np.array(
        [
            flat(objective.parameters.unconstrained(jax.tree.map(lambda leaf, k=k: leaf[k], found)))
            for k in range(len(steps))
        ]
    )
    for refit, order in ORDERS.values():
        errors = np.linalg.norm(
            unravelled(lo.fold_parameters(fit, plan, strategy=refit)) - oracle, axis=1
        )[:3]
        slope = np.log2(errors[1] / errors[2])
        assert abs(slope - order) < 0.4 or slope > order, (refit, errors)
    np.testing.assert_allclose(
        unravelled(lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))), oracle, atol=1e-6
    )


@pytest.mark.slow
def test_certified_against_exact():
    fit = fitted("site")
    plan = lo.leave_one_out(36)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    for refit in (lo.Certified(), lo.NewtonStep(), lo.InfinitesimalJackknife()):
        got = lo.cross_validate(fit, plan, strategy=refit)
        assert np.mean(abs(got.losses - exact.losses) <= got.error + 1e-9) > 0.9
        assert abs(got.mean - exact.mean) < 0.02
    assert exact.se > 0 or np.isnan(exact.se)
    with pytest.raises(NotImplementedError, match=r"InfinitesimalJackknife\(order=1\)"):
        lo.cross_validate(fit, plan, strategy=lo.InfinitesimalJackknife(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["observation", "site"])
def test_certified_is_hundreds_of_times_closer_than_the_jackknife(name):
    """A ratio of steps that is not small is not judged by alone.

    The second look brings the rest.
    """
    fit = fitted(name)
    plan = lo.leave_one_out(fit.objective.num_units)
    exact, jackknife, got = (
        lo.cross_validate(fit, plan, strategy=r)
        for r in (lo.Exact(), lo.InfinitesimalJackknife(), lo.Certified())
    )
    assert abs(got.losses - exact.losses).mean() < abs(jackknife.losses - exact.losses).mean() / 500


@pytest.mark.slow
def test_expectation_maximisation_climbs_to_the_fit():
    for name in ("site, learned", "observation"):
        fit = fitted(name)
        field = fit.objective
        start = {"coupling": 0.2, "rate": np.array([4.0, 6.0])}
        with jax.enable_x64(True):
            _, values = climb(field, start if field.learned else {"rate": start["rate"]}, 30)
        assert (np.diff(values) < 1e-9).all()
        found = field.em(
            start if field.learned else {"rate": start["rate"]}, num_steps=300, tol=1e-10
        )
        np.testing.assert_allclose(found["rate"], fit.parameters["rate"], rtol=1e-3)


@pytest.mark.slow
def test_fit_learns_the_coupling():
    """Simulated fields of known coupling.

    The estimate is within a few standard errors, by the Hessian of the fit.
    """
    edges = grid(6, 6)
    law = {"coupling": 0.8, "rate": [2.0, 8.0]}
    x, z = built(
        counts(np.random.default_rng(5), 2, 36), edges, 2, lo.developer.models.Free(0.5)
    ).simulate(law, 25, rng=1)
    assert x.shape == z.shape == (25, 36)
    fit = lo.fit(built(x, edges, 2, lo.developer.models.Free(0.1, prior=None), "field"))
    sd = np.sqrt(fit.solve(np.eye(3))[0, 0])
    assert abs(fit.parameters["coupling"] - 0.8) < 3.5 * sd < 0.5
    np.testing.assert_allclose(fit.parameters["rate"], law["rate"], rtol=0.08)


@pytest.mark.slow
def test_draws_have_the_law_of_the_field():
    edges = random_graph(6, 4, 0.8)
    field = built(counts(np.random.default_rng(6), 4), edges, 2, 0.7)
    _, z = field.simulate({"rate": RATES[2]}, 10_000, rng=0)
    every = np.array(list(itertools.product(range(2), repeat=4)))
    p = np.exp(0.7 * (every[:, edges[:, 0]] == every[:, edges[:, 1]]).sum(1))
    seen = np.bincount(z @ [8, 4, 2, 1], minlength=16)
    assert scipy.stats.chisquare(seen, 10_000 * p / p.sum()).pvalue > 1e-3
    assert field.log_partition({"rate": RATES[2]}) == pytest.approx(np.log(p.sum()), rel=1e-12)


def test_the_most_probable_configuration():
    for seed in range(4):
        edges, x = random_graph(seed, 7), counts(np.random.default_rng(seed), 7)
        field = built(x, edges, 3, 0.6)
        every = np.array(list(itertools.product(range(3), repeat=7)))
        log_e = scipy.stats.poisson.logpmf(x[:, None], RATES[3])
        value = log_e[np.arange(7), every].sum(1) + 0.6 * (
            every[:, edges[:, 0]] == every[:, edges[:, 1]]
        ).sum(1)
        np.testing.assert_array_equal(field.decode({"rate": RATES[3]}), every[value.argmax()])


def test_marginals_against_pgmpy():
    pytest.importorskip("pgmpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own deprecations
        from pgmpy.factors.discrete import DiscreteFactor
        from pgmpy.inference import VariableElimination
        from pgmpy.models import DiscreteMarkovNetwork

    x, edges = planted(side=4)
    field = built(x, edges, 2, 0.5)
    log_e = scipy.stats.poisson.logpmf(x[:, None], RATES[2])
    network = DiscreteMarkovNetwork([(str(s), str(t)) for s, t in edges])
    network.add_factors(
        *(DiscreteFactor([str(s)], [2], np.exp(log_e[s])) for s in range(16)),
        *(DiscreteFactor([str(s), str(t)], [2, 2], np.exp(0.5 * np.eye(2))) for s, t in edges),
    )
    engine = VariableElimination(network)
    want = np.array([engine.query([str(s)], show_progress=False).values for s in range(16)])
    want /= want.sum(1, keepdims=True)
    np.testing.assert_allclose(field.state_probabilities({"rate": RATES[2]}), want, atol=1e-10)


@pytest.mark.parametrize("kind", ["array", "sparse", "networkx", "named nodes", "libpysal"])
def test_graphs_of_all_kinds_are_one(kind):
    x, edges = planted(side=4)
    matrix = scipy.sparse.coo_array((np.ones(len(edges)), edges.T), shape=(16, 16))
    if kind == "array":
        given = edges[:, ::-1]
    elif kind == "sparse":
        given = (matrix + matrix.T) * 3
    elif kind == "libpysal":
        given = type("W", (), {"sparse": scipy.sparse.csr_matrix(matrix + matrix.T)})()
    else:
        networkx = pytest.importorskip("networkx")
        given = networkx.Graph(edges.tolist()[::-1])  # nodes come in another order
        if kind == "named nodes":
            given = networkx.Graph()
            given.add_nodes_from(f"tract {s}" for s in range(16))
            given.add_edges_from((f"tract {s}", f"tract {t}") for s, t in edges)
    field, same = (built(x, graph, 2, 0.5) for graph in (given, edges))
    parameters = {"rate": RATES[2]}
    np.testing.assert_allclose(
        field.state_probabilities(parameters), same.state_probabilities(parameters), atol=1e-12
    )
    plan, other = lo.neighbourhoods(given, 1), lo.neighbourhoods(edges, 1)
    np.testing.assert_array_equal(plan.matrix(), other.matrix())


def test_neighbourhoods():
    plan = lo.neighbourhoods(grid(5, 5), 1, buffer=1)
    distance = np.abs(np.arange(25)[:, None] // 5 - np.arange(25) // 5) + np.abs(
        np.arange(25)[:, None] % 5 - np.arange(25) % 5
    )
    np.testing.assert_array_equal(plan.matrix(), np.where(distance <= 2, 0.0, 1.0))
    held = np.zeros((25, 25), bool)
    held[plan.refit, plan.index] = plan.held
    np.testing.assert_array_equal(held, distance <= 1)
    alone = lo.neighbourhoods(np.array([[0, 1]]), 1, num_sites=4)
    np.testing.assert_array_equal(
        alone.matrix(), [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    )
    with pytest.raises(ValueError, match="leave out every unit"):
        lo.neighbourhoods(RING, 2)
    with pytest.raises(ValueError, match="radius must be"):
        lo.neighbourhoods(RING, -1)


@pytest.mark.slow
def test_standard_errors_go_by_blocks_of_neighbours():
    x, edges = planted(side=8)
    field = built(x, edges, 2, 0.5, emission_prior="default")
    labels = np.asarray(field.units.blocks)
    assert len(np.unique(labels)) == 20 and np.ptp(np.bincount(labels)) <= 1
    inside = np.mean(labels[edges[:, 0]] == labels[edges[:, 1]])
    assert inside > 0.35  # 64 sites in 20 blocks of three: at random it would be 0.05
    cv = lo.cross_validate(lo.fit(field), lo.kfold(k=4), strategy=lo.NoUpdate())
    assert "over 20 blocks of about 3 neighbours" in cv.standard_error.kind
    losses = np.asarray(cv.per_unit())
    pull = np.array([np.sum(losses[labels == b] - losses.mean()) for b in range(20)]) / 64
    assert cv.se == pytest.approx(np.sqrt(20 / 19 * np.sum(pull**2)), rel=1e-12)
    small = built(x[:16], grid(4, 4), 2, 0.5, emission_prior="default")
    cv = lo.cross_validate(lo.fit(small), lo.leave_one_out(), strategy=lo.NoUpdate())
    assert np.isnan(cv.se) and "8 blocks" in cv.standard_error.kind


def test_predictions_and_labels():
    x, edges = planted()
    names = pd.Index([f"tract {s}" for s in range(36)])
    fit = lo.fit(lo.MRF(pd.Series(x, index=names), edges, lo.emissions.Poisson(), 2, coupling=0.5))
    field = fit.objective
    states = field.state_probabilities(fit)
    assert states.index.equals(names) and field.decode(fit).index.equals(names)
    np.testing.assert_allclose(states.sum(axis=1), 1, atol=1e-12)
    left = np.arange(36) % 6 < 3
    assert states[1][left].mean() < 0.2 < 0.8 < states[1][~left].mean()
    plan = lo.kfold(36, 6, rng=0)
    predicted, probable = (
        np.asarray(lo.cross_predict(fit, plan, strategy=lo.NoUpdate())),
        np.asarray(lo.cross_predict(fit, plan, strategy=lo.NoUpdate(), kind="state")),
    )
    np.testing.assert_allclose(probable @ fit.parameters["rate"], predicted, rtol=1e-10)
    first = plan.index[plan.refit == 0]
    weights = np.where(np.isin(np.arange(36), first), 0.0, 1.0)
    np.testing.assert_allclose(
        probable[first], field.state_probabilities(fit, weights).to_numpy()[first], atol=1e-12
    )
    with pytest.raises(ValueError, match="predictions are of sites"):
        np.asarray(lo.cross_predict(fitted("field, learned"), lo.leave_one_out(6), kind="state"))


@pytest.mark.slow
def test_the_map():
    """Every site in the colour of its state, where it is; the sites that surprise most are named.

    Wrong input is refused.
    """
    rng, (_, edges) = np.random.default_rng(3), planted()
    at = rng.random((36, 2))
    names = pd.Index([f"site {s}" for s in range(36)])
    x = pd.Series(
        rng.poisson(np.where(np.arange(36) % 6 < 3, 3.0, 30.0)).astype(float), index=names
    )
    fit = lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.5))
    cv = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate())
    axes = lo.plot.field(fit, at, cv, num_named=3)
    drawn = [np.asarray(group.get_offsets()) for group in axes.collections]
    state = np.asarray(fit.objective.decode(fit))
    for k in (0, 1):
        assert any(
            group.shape == at[state == k].shape and (group == at[state == k]).all()
            for group in drawn
        )
    worst = names[np.argsort(-np.asarray(cv.per_unit()))[:3]]
    assert {text.get_text() for text in axes.texts} == set(worst)
    for wrong, message in (
        ((fit, at[:, :1]), "one pair a site"),
        ((fit, at * np.nan), "must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            lo.plot.field(*wrong)
    with pytest.raises(ValueError, match="which must be a field, 0 to 0"):
        lo.plot.field(fit, at, which=1)
    with pytest.raises(TypeError, match="a Fit of a Markov random field"):
        lo.plot.field(cv, at)


@pytest.mark.slow
def test_population_at_risk():
    """An offset: rates per person; the score is that of counts in sites of any size."""
    rng, (_, edges) = np.random.default_rng(7), planted()
    people = rng.uniform(1e3, 1e5, 36)
    left = np.arange(36) % 6 < 3
    x = rng.poisson(people * np.where(left, 1e-3, 3e-3)).astype(float)
    fit = lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(exposure=people), 2, coupling=0.5))
    np.testing.assert_allclose(fit.parameters["rate"], [1e-3, 3e-3], rtol=0.1)
    log_e = scipy.stats.poisson.logpmf(x[:, None], people[:, None] * fit.parameters["rate"])
    field = fit.objective
    with jax.enable_x64(True):
        np.testing.assert_allclose(field.densities(fit.theta)[0], log_e, rtol=1e-9)
    years = np.stack([x, x[::-1]])
    several = lo.MRF(
        years, edges, lo.emissions.Poisson(exposure=people), 2, coupling=0.5, drop="field"
    )
    with jax.enable_x64(True):
        np.testing.assert_allclose(several.densities(fit.theta)[0], log_e, rtol=1e-9)
    drawn, z = field.simulate(fit, 1000, rng=0)
    np.testing.assert_allclose(
        drawn.mean(0), (people * np.asarray(fit.parameters["rate"])[z]).mean(0), rtol=0.05
    )


@pytest.mark.slow
# 36 sites are too few
@pytest.mark.filterwarnings("ignore:compare. the difference has no standard error")
@pytest.mark.parametrize("family", ["Poisson", "NegativeBinomial"])
def test_covariates(family):
    """Their coefficients are found again, and a left-out site is one that was never seen."""
    rng, (_, edges) = np.random.default_rng(11), planted()
    places = rng.standard_normal((36, 2)) * [1.0, 50.0] + [0.0, 900.0]
    level = np.where(np.arange(36) % 6 < 3, 20.0, 90.0)
    x = rng.poisson(level * np.exp((places - places.mean(0)) @ [0.3, -0.01])).astype(float)
    make = lambda x: lo.MRF(
        x, edges, getattr(lo.emissions, family)(prior=prior, covariates=places), 2, coupling=0.5
    )
    prior = None if family == "Poisson" else {"mean": (2, 0.02), "size": (20, 0.1)}
    fit = lo.fit(make(x))
    np.testing.assert_allclose(fit.parameters["coefficients"], [0.3, -0.01], rtol=0.25)
    np.testing.assert_allclose(
        fit.parameters["rate" if prior is None else "mean"], [20, 90], rtol=0.15
    )
    for refit in (lo.Exact(), lo.InfinitesimalJackknife()):
        moved = lo.fold_parameters(fit, lo.leave_one_out(), strategy=refit)["coefficients"]
        for site in (0, 17):
            unseen = lo.fit(make(np.where(np.arange(36) == site, np.nan, x))).parameters[
                "coefficients"
            ]
            step = np.abs(unseen - fit.parameters["coefficients"])
            off = np.abs(moved[site] - unseen) / step
            assert (off < (1e-6 if isinstance(refit, lo.Exact) else 0.5)).all()
    plain = lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.5))
    found = {
        name: lo.cross_validate(each, lo.leave_one_out())
        for name, each in {"with": fit, "without": plain}.items()
    }
    assert lo.compare(found).index[0] == "with"


def test_other_emissions():
    rng, (_, edges) = np.random.default_rng(8), planted()
    left = np.arange(36) % 6 < 3
    x = np.where(left, -2.0, 2.0)[:, None] + rng.normal(size=(36, 2))
    fit = lo.fit(lo.MRF(x[None], edges, lo.emissions.Gaussian(), 2, coupling=0.5))
    np.testing.assert_allclose(fit.parameters["mean"], [[-2, -2], [2, 2]], atol=0.8)


BAD_GRAPHS = {
    "loop": (np.array([[0, 1], [2, 2]]), ValueError, "1 edges are loops, the first at site 2"),
    "twice": (
        np.array([[0, 1], [1, 0]]),
        ValueError,
        r"given more than once, such as \((0, 1|1, 0)\)",
    ),
    "out of range": (
        np.array([[0, 1], [1, 9]]),
        ValueError,
        "site 9, but sites are numbered from 0 to 3",
    ),
    "negative": (np.array([[0, -1]]), ValueError, "site -1"),
    "floats": (np.array([[0.5, 1.0]]), TypeError, "integers"),
    "three columns": (np.array([[0, 1, 2]]), TypeError, r"\[1, 3\]"),
    "one-sided": (
        scipy.sparse.csr_array(np.eye(4, k=1)),
        ValueError,
        "3 edges are one-sided, the first from site 0 to 1",
    ),
    "loops of a matrix": (scipy.sparse.csr_array(np.eye(4)), ValueError, "4 edges are loops"),
    "matrix of another size": (
        scipy.sparse.csr_array((5, 5)),
        ValueError,
        "the graph has 5 sites, but the data have 4",
    ),
    "not square": (scipy.sparse.csr_array((4, 5)), ValueError, "must be square"),
    "negative weights": (scipy.sparse.csr_array(-np.eye(4)), ValueError, "negative"),
    "text": ("edges.csv", TypeError, "edges must be"),
    "none": (None, TypeError, "edges must be"),
    "not sparse": (np.eye(4), TypeError, r"csr_array\(edges\)"),
    "labels that are numbers": (np.array([[101, 103]]), ValueError, r"as text, .astype\(str\)"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs(name):
    edges, error, match = BAD_GRAPHS[name]
    with pytest.raises(error, match=match):
        built(np.array([1.0, 2, 3, 4]), edges, 2, 0.5)


def test_directed_graphs_must_go_both_ways():
    networkx = pytest.importorskip("networkx")
    with pytest.raises(ValueError, match="none back"):
        built(np.ones(3), networkx.DiGraph([(0, 1), (1, 2)]), 2, 0.5)
    both = networkx.Graph([(0, 1), (1, 2)]).to_directed()
    assert built(np.ones(3), both, 2, 0.5).edges.tolist() == [[0, 1], [1, 2]]


BAD = {
    "infinite": (
        dict(x=[1.0, np.inf, 2, 3]),
        ValueError,
        "1 infinite values, the first in field 0 at site 1",
    ),
    "all missing": (dict(x=np.full(4, np.nan)), ValueError, "every observation"),
    "text": (dict(x=["a", "b", "c", "d"]), TypeError, "numbers"),
    "dates": (
        dict(x=np.arange(4).astype("M8[D]")),
        TypeError,
        r"MRF: x must hold numbers.*0 \(datetime",
    ),
    "complex": (dict(x=np.arange(4) * 1j), TypeError, "complex"),
    "empty": (dict(x=np.zeros(0)), ValueError, "none empty"),
    "one site": (dict(x=[1.0], edges=np.zeros((0, 2), int)), ValueError, "at least two sites"),
    "negative count": (dict(x=[1.0, -1, 2, 3]), ValueError, "counts"),
    "coupling by edge": (dict(coupling=np.ones(3)), ValueError, "each of 4 edges"),
    "coupling NaN": (dict(coupling=np.nan), ValueError, "finite"),
    "coupling text": (dict(coupling="strong"), TypeError, "coupling must be"),
    "coupling prior": (
        dict(coupling=lo.developer.models.Free(1.0, prior=(0.0, -1.0))),
        ValueError,
        "standard deviation",
    ),
    "learned, one state": (
        dict(coupling=lo.developer.models.Free(), num_states=1),
        ValueError,
        "two states or more",
    ),
    "states": (dict(num_states=0), ValueError, "num_states"),
    "more states than sites": (dict(num_states=5), ValueError, "cannot determine"),
    "drop": (dict(drop="step"), ValueError, "'observation', 'site', 'field'"),
    "fields": (dict(drop="field"), ValueError, "several fields"),
    "prior": (dict(prior="flat"), ValueError, "prior must be"),
    "score": (dict(score="both"), ValueError, "score must be"),
    "emission": (dict(emission=lo.emissions.Poisson), TypeError, "emission must be an object"),
    "regressors": (
        dict(emission=lo.emissions.Autoregressive(1)),
        ValueError,
        "sites of a graph do not have",
    ),
    "exposure": (dict(emission=lo.emissions.Poisson(exposure=np.ones(3))), ValueError, "exposure"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, error, match = BAD[name]
    usual = {
        "x": [1.0, 2, 3, 4],
        "edges": RING,
        "emission": lo.emissions.Poisson(),
        "num_states": 2,
        "coupling": 0.5,
    }
    with pytest.raises(error, match=match):
        given = {**usual, **given}
        lo.MRF(
            given.pop("x"),
            given.pop("edges"),
            given.pop("emission"),
            given.pop("num_states"),
            **given,
        )


def test_what_is_masked_is_missing_and_weights_are_checked():
    masked = np.ma.masked_array([1.0, 999, 3, 4], [False, True, False, False])
    field = lo.MRF(masked, RING, lo.emissions.Poisson(), 2, coupling=0.5)
    np.testing.assert_array_equal(field.x.ravel(), [1, np.nan, 3, 4])
    with pytest.raises(ValueError, match=r"MRF: weights must be 4 numbers.*got nan for unit 0"):
        field.state_probabilities({"rate": [1.0, 4.0]}, np.full(4, np.nan))
    with pytest.raises(ValueError, match=r"rate must be positive and finite; got rate\[1\] = -4"):
        field.log_likelihood({"rate": [1.0, -4.0]})


def test_too_dense_a_graph():
    with pytest.raises(ValueError, match=r"width 39.*fewer states"):
        built(np.ones(40), random_graph(0, 40, 1.0), 2, 0.1)


@pytest.mark.slow
def test_a_coupling_so_strong_that_one_state_takes_all():
    x, edges = planted(rates=(3.0, 3.2))
    with pytest.warns(UserWarning, match=r"One state takes all 36 observed sites.*weaker coupling"):
        fit = lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=30.0))
    assert np.isfinite(fit.objective.log_likelihood(fit))
    with pytest.raises(
        (lo.validation.IndefiniteHessianError, RuntimeError),
        match="One state takes all 36 observed sites",
    ):
        lo.fit(
            lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=30.0, prior=None),
            {"rate": [3.0, 9.0]},
            num_starts=1,
        )


def test_states_too_many():
    x, edges = planted()
    with pytest.warns(
        UserWarning, match="States 0 and 1 are the same: .* 2 states apart; take fewer"
    ):
        lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(), 3, coupling=4.0))
    field = lo.MRF(x, edges, lo.emissions.Poisson(), 3, coupling=0.5)
    said = field.parameters.warning(field.parameters.unconstrained({"rate": [3.0, 9.0, 60.0]}))
    assert said.startswith("State 2 explains nothing") and "State 1" not in said
    assert field.parameters.warning(
        field.parameters.unconstrained({"rate": [2e-6, 3.0, 9.0]})
    ).endswith("a prior keeps them off it.")


def test_wrong_parameters():
    field = fitted("site").objective
    with pytest.raises(ValueError, match="parameters are"):
        field.state_probabilities({"rates": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"rate must have shape \[2\]"):
        field.state_probabilities({"rate": [1.0, 2.0, 3.0]})


@pytest.mark.slow
def test_a_second_data_set_compiles_nothing():
    from tests.test_laws import _compiled as compiled

    def trial(seed, beta):
        x, edges = planted(seed, side=5)
        fit = lo.fit(lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=beta, drop="site"))
        return lo.cross_validate(fit, lo.leave_one_out()).mean

    trial(0, 0.5)
    trial(2, 0.3)  # one of whose refits needs its own Hessian
    before = compiled()
    assert trial(1, 0.7) != trial(4, 0.5)
    assert compiled() == before
