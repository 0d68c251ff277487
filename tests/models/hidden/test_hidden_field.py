"""Couplings of any kind, external fields, states that are seen.

Against enumeration, regressions, finite differences.
"""

import itertools

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.stats

import leaveout as lo
from leaveout.models import External, Free
from tests.helpers import call
from tests.models.hidden.test_mrf import RING, planted, random_graph

RATES = {2: [2.0, 6.5], 3: [1.0, 4.0, 9.0]}
SKEW = np.array([[0.9, -0.4, 0.2], [0.1, 0.6, -0.8], [-0.3, 0.5, 0.3]])
EVEN = (SKEW + SKEW.T) / 2


def enumerated(edges, phi, logs):
    """log Σ_z exp(Σ_s logs[s, z_s] + Σ_e φ_e(z_s, z_t)), term by term."""
    n, K = logs.shape
    total = []
    for z in itertools.product(range(K), repeat=n):
        total.append(
            sum(logs[s, z[s]] for s in range(n))
            + sum(phi[e][z[s], z[t]] for e, (s, t) in enumerate(edges))
        )
    return np.logaddexp.reduce(total)


def oracle(drop, edges, phi, h, log_e, w):
    """F(θ, w) of fields without its prior.

    `log_e` is `[fields, sites, states]`, NaN where missing.
    """
    total, seen = 0.0, ~np.isnan(log_e).any(-1)
    log_e = np.nan_to_num(log_e)
    for f, e in enumerate(log_e):
        if drop == "field":
            posterior = seen[f][:, None] * e + h
            total += w[f] * (enumerated(edges, phi, h) - enumerated(edges, phi, posterior))
            continue
        own = w.reshape(seen.shape)[f]
        both = (own[edges[:, 0]] * own[edges[:, 1]])[:, None, None] * phi if drop == "site" else phi
        outside = own[:, None] * h if drop == "site" else h
        total += enumerated(edges, both, outside) - enumerated(
            edges, both, (own * seen[f])[:, None] * e + outside
        )
    return total


PLACES = np.array([[0.2, 10.0], [1.4, -3.0], [-0.7, 4.0], [0.1, 8.0], [2.2, 1.0]])
GRAPH = random_graph(3, 5)
H = np.random.default_rng(5).normal(size=(5, 3))
GAMMA = np.array([[0.4, -0.6, 0.2], [0.5, 0.1, -0.6], [-0.03, 0.02, 0.01]])  # each row sums to zero
WIDE = (0.0, 1e8)  # hardly a prior
CASES = {  # coupling, external, their natural parameters, φ of an edge, h
    "symmetric": (EVEN, None, EVEN, 0 * H),
    "directed": (SKEW, None, SKEW, 0 * H),
    "one an edge": (np.random.default_rng(4).normal(size=(len(GRAPH), 3, 3)), None, None, 0 * H),
    "external": (0.7, H, 0.7 * np.eye(3), H),
    "learned, symmetric": (Free(np.eye(3), prior=WIDE), None, EVEN, 0 * H),
    "learned, directed": (Free(np.eye(3), prior=WIDE, directed=True), H, SKEW, H),
    "learned external": (0.5, External(PLACES, prior=WIDE), 0.5 * np.eye(3), None),
    "both learned": (Free(0.5 * np.eye(3), prior=WIDE), External(PLACES, prior=WIDE), EVEN, None),
}


def case(name, drop):
    coupling, external, phi, h = CASES[name]
    x = np.random.default_rng(0).poisson(4.0, (2, 5)).astype(float)
    x[0, 1] = np.nan
    x = x if drop == "field" else x[:1]
    emission = lo.emissions.Poisson(prior=None)
    field = lo.MRF(x, GRAPH, emission, 3, coupling=coupling, external=external, drop=drop)
    h = np.c_[np.ones(5), PLACES - PLACES.mean(0)] @ GAMMA if h is None else h
    own = {"rate": RATES[3]} | ({"coupling": phi} if field.learned else {})
    own |= {"external": GAMMA} if field.design is not None else {}
    log_e = np.where(
        np.isnan(x)[..., None],
        np.nan,
        scipy.stats.poisson.logpmf(np.nan_to_num(x)[..., None], RATES[3]),
    )
    phi = np.broadcast_to(coupling if phi is None else phi, (len(GRAPH), 3, 3))
    return field, field.parameters.unconstrained(own), own, (GRAPH, phi, h, log_e)


@pytest.mark.parametrize("drop", ["observation", "site", "field"])
@pytest.mark.parametrize("name", CASES)
def test_enumeration(name, drop):
    field, theta, own, law = case(name, drop)
    rng = np.random.default_rng(1)
    for w in (
        np.ones(field.num_units),
        rng.uniform(0, 1.5, field.num_units),
        (rng.random(field.num_units) < 0.6) * 1.0,
    ):
        np.testing.assert_allclose(call(field.loss, theta, w), oracle(drop, *law, w), rtol=1e-11)
    if drop != "field":
        w, held = np.array([1.0, 1, 0, 1, 0]), np.array([2, 4])
        whole = lambda w: oracle("observation", *law, w)
        want = [whole(w + np.eye(5)[s]) - whole(w) for s in held]
        np.testing.assert_allclose(call(field.score, theta, w, held, np.ones(2)), want, rtol=1e-9)
    with jax.enable_x64(True):
        back = jax.tree.map(np.asarray, field.parameters.natural(theta))
    for key, value in own.items():  # of a matrix, only differences count
        value = np.asarray(value) - np.mean(value) if key == "coupling" else np.asarray(value)
        np.testing.assert_allclose(back[key], value, atol=1e-12)
    assert len(field.parameters.names()) == sum(np.size(part) for part in theta.values())


def test_priors_are_densities_of_natural_parameters():
    make = lambda prior: lo.MRF(
        np.array([1.0, 4, 9, 2, 6]),
        GRAPH,
        lo.emissions.Poisson(prior=None),
        3,
        coupling=Free(np.eye(3), prior=(0.5, 0.7) if prior else WIDE),
        external=External(PLACES, prior=(0.1, 2.0) if prior else WIDE),
    )
    own = {"rate": RATES[3], "coupling": EVEN, "external": GAMMA}
    values = [
        call((field := make(prior)).loss, field.parameters.unconstrained(own), np.ones(5))
        for prior in (True, False)
    ]
    scaled = GAMMA * np.r_[1, PLACES.std(0)][:, None]
    centred, mean = EVEN - EVEN.mean(), 0.5 * (np.eye(3) - 1 / 3)
    want = 0.5 * np.sum(((centred - mean) / 0.7) ** 2) + 0.5 * np.sum(((scaled - 0.1) / 2.0) ** 2)
    assert values[0] - values[1] == pytest.approx(want, rel=1e-9)
    assert "coupling ~ Normal(0.5, 0.7); external ~ Normal(0.1, 2)" in make(True).note


def test_states_keep_their_places_where_fixed_potentials_tell_them_apart():
    """An external field that puts the low rate's sites into state 1.

    Learned potentials go with the states.
    """
    x, edges = planted(side=4)
    left = np.arange(16) % 4 < 2
    fit = lo.fit(
        lo.MRF(
            x,
            edges,
            lo.emissions.Poisson(),
            2,
            coupling=0.3,
            external=np.where(left[:, None], [-9.0, 9.0], [9.0, -9.0]),
        )
    )
    assert fit.parameters["rate"][0] > fit.parameters["rate"][1]
    field = lo.MRF(
        x, edges, lo.emissions.Poisson(), 2, coupling=Free(np.eye(2)), external=External(left * 1.0)
    )
    given = {
        "rate": [9.0, 3.0],
        "coupling": np.array([[0.5, -0.7], [-0.7, 0.9]]),
        "external": np.array([[0.3, -0.3], [1.0, -1.0]]),
    }
    theta = field.parameters.unconstrained(given)
    turned = field.parameters.canonical(theta)
    assert call(field.loss, theta, np.ones(16)) == pytest.approx(
        call(field.loss, turned, np.ones(16)), rel=1e-12
    )
    with jax.enable_x64(True):
        found = jax.tree.map(np.asarray, field.parameters.natural(turned))
    np.testing.assert_allclose(found["external"], given["external"][:, ::-1], atol=1e-12)
    np.testing.assert_allclose(found["rate"], [3, 9])


def test_labels_put_covariates_into_the_order_of_the_sites():
    x, edges = planted(side=3)
    names = pd.Index([f"tract {s}" for s in range(9)])
    values = np.random.default_rng(0).normal(size=9)
    order = np.random.default_rng(1).permutation(9)
    make = lambda c: lo.MRF(
        pd.Series(x, names), edges, lo.emissions.Poisson(), 2, coupling=0.3, external=External(c)
    )
    labelled = pd.DataFrame({"c": values[order]}, index=names[order])
    np.testing.assert_allclose(make(labelled).design, make(values).design)


def test_observed_states_by_enumeration():
    """What is seen with weight w leaves 1 − w for other states, slopes by weights included.

    A score is the conditional.
    """
    y = np.array([0.0, 2, 1, 1, np.nan])
    field = lo.MRF(
        y, GRAPH, lo.emissions.Observed(3), 3, coupling=Free(np.eye(3), prior=WIDE), external=H
    )
    theta = field.parameters.unconstrained({"coupling": EVEN})
    seen = np.isfinite(y)

    def value(w):
        with np.errstate(divide="ignore"):
            logs = np.log(np.where(np.arange(3) == y[:, None], 1.0, 1 - (w * seen)[:, None]))
        phi = np.broadcast_to(EVEN, (len(GRAPH), 3, 3))
        return enumerated(GRAPH, phi, H) - enumerated(GRAPH, phi, H + logs)

    for w in (np.ones(5), np.array([1.0, 0, 1, 0, 1]), np.array([0.3, 1, 0.9, 0.5, 1])):
        assert call(field.loss, theta, w) == pytest.approx(value(w), rel=1e-11)
    with jax.enable_x64(True):
        slope = np.asarray(jax.grad(lambda w: field.loss(theta, w))(np.ones(5)))
    step = 1e-6
    want = [(value(np.ones(5)) - value(np.ones(5) - step * row)) / step for row in np.eye(5)[:4]]
    np.testing.assert_allclose(slope[:4], want, rtol=1e-4)
    w = np.array([1.0, 1, 0, 1, 1])
    assert call(field.score, theta, w, np.array([2]), np.ones(1))[0] == pytest.approx(
        value(np.ones(5)) - value(w), rel=1e-10
    )


@pytest.mark.slow
def test_without_edges_it_is_a_multinomial_regression():
    """The maximum of the likelihood, by scikit-learn; each site left out, by its refits."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(2)
    places = rng.normal(size=(60, 2)) * [1.0, 30.0]
    y = np.argmax(
        np.c_[places @ [0.8, 0.02], 0 * places[:, 0], -places[:, 0]] + rng.gumbel(size=(60, 3)), 1
    )
    none = np.zeros((0, 2), int)
    external = External(places, prior=None)
    field = lo.MRF(y, none, lo.emissions.Observed(3), 3, coupling=0.0, external=external)
    fit = lo.fit(field)
    scaled = (places - places.mean(0)) / places.std(0)
    host = lambda keep: LogisticRegression(C=np.inf, tol=1e-10, max_iter=2000).fit(
        scaled[keep], y[keep]
    )
    whole = host(np.arange(60))
    np.testing.assert_allclose(
        fit.parameters["external"][1:].T * places.std(0), whole.coef_, atol=1e-4
    )
    plan = lo.from_splits([(np.delete(np.arange(60), s), [s]) for s in (0, 7)], 60)
    got = lo.cross_validate(fit, plan, strategy=lo.Exact()).losses
    want = [
        -host(np.delete(np.arange(60), s)).predict_log_proba(scaled[[s]])[0, y[s]] for s in (0, 7)
    ]
    np.testing.assert_allclose(got, want, rtol=1e-4)


BAD = {
    "not symmetric, of a graph": (
        dict(coupling=SKEW[:2, :2], edges="sparse"),
        "give these as pairs",
    ),
    "directed, of a graph": (
        dict(coupling=Free(np.eye(2), directed=True), edges="sparse"),
        "give these as pairs",
    ),
    "learned, not symmetric": (dict(coupling=Free(SKEW[:2, :2])), "symmetric unless directed=True"),
    "learned, one an edge": (dict(coupling=Free(np.zeros((4, 2, 2)))), "for all edges together"),
    "of another number of states": (
        dict(coupling=np.eye(3)),
        r"a matrix \[2, 2\], one in all or one an edge; got \[\[1.0",
    ),
    "external of another shape": (
        dict(external=np.zeros((2, 4))),
        r"sites by states \[4, 2\].*shape \[2, 4\]|sites by states",
    ),
    "external NaN": (dict(external=np.full((4, 2), np.nan)), "finite numbers"),
    "covariates constant": (
        dict(external=External(np.ones(4))),
        "finite numbers that vary.*An intercept is there",
    ),
    "covariates too few": (dict(external=External(np.arange(3.0))), "one row for each of 4 sites"),
    "prior": (dict(external=External(prior=(0.0, 0.0))), "External: prior must be"),
    "one state": (dict(external=External(), num_states=1), "two states or more"),
    "states unseen": (dict(x=[0.0, 1, 2, 0], emission=lo.emissions.Observed(2)), "states 0, …, 1"),
    "nothing to learn": (
        dict(x=[0.0, 1, 1, 0], emission=lo.emissions.Observed(2)),
        "something to learn of the states only",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    given, match = BAD[name]
    usual = {
        "x": [1.0, 2, 3, 4],
        "edges": RING,
        "emission": lo.emissions.Poisson(),
        "num_states": 2,
        "coupling": 0.5,
    }
    given = {**usual, **given}
    if isinstance(given["edges"], str):
        given["edges"] = scipy.sparse.coo_array(
            ([1.0] * 8, np.concatenate([RING, RING[:, ::-1]]).T), shape=(4, 4)
        )
    with pytest.raises(ValueError, match=match):
        lo.MRF(
            given.pop("x"),
            given.pop("edges"),
            given.pop("emission"),
            given.pop("num_states"),
            **given,
        )


def test_chains_of_seen_states_are_refused():
    with pytest.raises(ValueError, match="its transitions are counted"):
        lo.HMM(np.array([0.0, 1, 1, 0, 1]), lo.emissions.Observed(2), 2)
