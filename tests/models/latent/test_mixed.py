"""Mixed models against multivariate normal densities, brute-force integrals, another Laplace
approximation, and lme4.
"""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize, special, stats

import leaveout as lo
from leaveout.models.latent.effects import bars
from leaveout.models.latent.quadrature import marginal_losses, marginal_means
from leaveout.models.latent.responses import FAMILIES as RESPONSES, ResponseRows
from tests.helpers import mixed
from tests.oracles import likelihoods

FAMILIES = {  # densities by SciPy, of the linear predictor and natural parameters
    "gaussian": lambda y, eta, P: stats.norm.logpdf(y, eta, P["scale"]),
    "binomial": lambda y, eta, P: stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-eta))),
    "poisson": lambda y, eta, P: stats.poisson.logpmf(y, np.exp(eta)),
    "gamma": lambda y, eta, P: stats.gamma.logpdf(y, P["shape"], scale=np.exp(eta) / P["shape"]),
    "negative_binomial": lambda y, eta, P: stats.nbinom.logpmf(
        y, 1 / P["dispersion"], 1 / (1 + P["dispersion"] * np.exp(eta))
    ),
    "ordinal": lambda y, eta, P: _ordinal(y, eta, P["thresholds"]),
}


def _ordinal(y, eta, cuts):
    edges = np.r_[-np.inf, cuts, np.inf]
    level = y.astype(int) if np.ndim(y) else int(y)
    return np.log(1 / (1 + np.exp(eta - edges[level + 1])) - 1 / (1 + np.exp(eta - edges[level])))


def responses(eta, rng):
    n = len(eta)
    return {
        "gaussian": eta + 0.6 * rng.standard_normal(n),
        "binomial": (rng.logistic(size=n) < eta).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(eta) / 2),
        "negative_binomial": rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, n)).astype(float),
        "ordinal": np.digitize(eta + rng.logistic(size=n), [-0.5, 1.0]).astype(float),
    }


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    n = 90
    frame = pd.DataFrame(
        {"x": rng.standard_normal(n), "p": rng.integers(0, 9, n), "h": rng.integers(0, 5, n)}
    )
    eta = (
        0.3
        + 0.5 * frame.x
        + rng.standard_normal(9)[frame.p] * 1.2
        + 0.6 * rng.standard_normal(9)[frame.p] * frame.x
    )
    eta += 0.5 * rng.standard_normal(5)[frame.h]
    return frame.assign(**responses(eta.to_numpy(), rng))


def somewhere(model, seed=1):
    """A θ that is no minimum, and its natural parameters."""
    theta = model.parameters.start(seed) + 0.2 * np.random.default_rng(seed).standard_normal(
        len(model.parameters.names())
    )
    theta = model.parameters.canonical(theta)
    return theta, model.parameters.natural(theta)


# F and its slopes


@pytest.mark.parametrize("family", FAMILIES)
def test_quadrature_is_the_integral(data, family):
    model = lo.Mixed(f"{family} ~ x + (1 | p)", data, family, drop="p", quadrature=41)
    theta, P = somewhere(model)
    fixed = (
        np.column_stack([data.x] if family == "ordinal" else [np.ones(len(data)), data.x])
        @ P["coef"]
    )
    sd, y = np.sqrt(P["covariance[p]"][0, 0]), data[family].to_numpy()

    def cluster(code):
        here = data.p == code
        u = np.linspace(-10 * sd, 10 * sd, 4001)
        log = sum(
            FAMILIES[family](a, e + u, P) for a, e in zip(y[here], fixed[here], strict=True)
        ) + stats.norm.logpdf(u, 0, sd)
        # of what ends in zeros the trapezoidal rule is exact
        return -np.log(np.sum(np.exp(log)) * (u[1] - u[0]))

    want = np.array([cluster(code) for code in model.engine.factor.levels])
    one = np.ones((1, model.num_units))
    np.testing.assert_allclose(model.look(theta[None], one)[0], want.sum(), rtol=1e-8)
    held = np.arange(2)[None], np.ones((1, 2), bool)
    np.testing.assert_allclose(model.losses(theta[None], one * 1, *held)[0], want[:2], rtol=1e-7)


@pytest.mark.parametrize("spread", [0.5, 3.0, 20.0, 150.0])
def test_integrals_over_a_large_deviation_are_those_of_a_fine_grid(spread):
    """Of 25 nodes about the mode the loss of a row of zero or one is off by 0.12 at 150, and said
    to be within 5e-7.
    """
    mean, variance, none = (
        np.array([0.13 * spread, -1.0, 2.0]),
        np.full(3, spread**2),
        np.zeros((0, 1)),
    )
    u = np.linspace(-9 * spread, 9 * spread, 200_001)
    eta, density = mean[:, None] + u, stats.norm.pdf(u, 0, spread) * (u[1] - u[0])
    rate = np.exp(np.minimum(eta, 300.0))
    own = {
        "binomial": lambda y: special.expit((2 * y - 1) * eta),
        "poisson": lambda y: stats.poisson.pmf(y, rate),
    }
    for family, y in (("binomial", [1.0, 0.0, 0.0]), ("poisson", [0.0, 3.0, 40.0])):
        y = np.array(y)
        data = ResponseRows(
            np.zeros((3, 0)), np.zeros(3), y, np.ones(3), np.zeros(3), RESPONSES[family]()
        )
        want = -np.log(np.sum(own[family](y[:, None]) * density, 1))
        np.testing.assert_allclose(marginal_losses(data, mean, variance, none), want, rtol=1e-6)
    want = np.sum(special.expit(eta) * density, 1)
    np.testing.assert_allclose(
        marginal_means(RESPONSES["binomial"](), mean, variance, none), want, rtol=1e-6
    )
    exact = np.exp(mean + min(spread, 5.0) ** 2 / 2)
    poisson = marginal_means(RESPONSES["poisson"](), mean, np.minimum(variance, 25.0), none)
    np.testing.assert_allclose(poisson, exact, rtol=1e-6)


@pytest.mark.parametrize("drop", ["p", "row"])
def test_scores_of_clusters_that_differ_much_are_integrals(data, drop):
    model = lo.Mixed("binomial ~ x + (1 | p)", data, "binomial", drop=drop)
    theta = model.parameters.unconstrained(
        {"coef": np.array([0.5, 1.0]), "covariance[p]": np.array([[400.0]])}
    )
    u, y, x = np.linspace(-9, 9, 40_001), data["binomial"].to_numpy(), data["x"].to_numpy()

    def log(rows):
        each = sum(special.log_expit((2 * y[j] - 1) * (0.5 + x[j] + 20 * u)) for j in rows)
        return np.log(np.sum(np.exp(each - 0.5 * u**2)) * (u[1] - u[0]) / np.sqrt(2 * np.pi))

    code = pd.factorize(data["p"])[0] if drop == "row" else model.code
    mates = [
        np.flatnonzero(code == code[k]) if drop == "row" else np.flatnonzero(code == k)
        for k in range(3)
    ]
    held, weights = np.arange(3)[None], np.ones((1, model.num_units))
    if drop == "row":
        weights[0, 0] = 0.0
        held = np.arange(1)[None]
        want = [log(mates[0][mates[0] != 0]) - log(mates[0])]
    else:
        want = [-log(rows) for rows in mates]
    np.testing.assert_allclose(
        model.losses(theta[None], weights, held, np.ones(held.shape, bool))[0], want, rtol=1e-6
    )


@pytest.mark.parametrize("form", ["(1 + x | p)", "(1 + x || p)", "(1 + x | p) + (1 | h)"])
@pytest.mark.parametrize("family", ["poisson", "binomial"])
def test_laplace_is_that_of_a_general_optimiser(data, family, form):
    model = lo.Mixed(f"{family} ~ x + {form}", data, family)
    theta, P = somewhere(model)
    X, y = np.column_stack([np.ones(len(data)), data.x]), data[family].to_numpy()
    Z, precision = [], []
    for name, q in [("p", 2), *([("h", 1)] if "h" in form else [])]:
        for code in np.unique(data[name]):
            Z.append(X[:, :q] * (data[name] == code).to_numpy()[:, None])
        precision += [np.linalg.inv(P[f"covariance[{name}]"])] * data[name].nunique()
    Z = np.hstack(Z)
    from scipy.linalg import block_diag

    Q = block_diag(*precision)
    h = lambda u: -FAMILIES[family](y, X @ P["coef"] + Z @ u, P).sum() + 0.5 * u @ Q @ u
    mean = {"poisson": np.exp, "binomial": lambda e: 1 / (1 + np.exp(-e))}[family]
    spread = {"poisson": np.exp, "binomial": lambda e: mean(e) * (1 - mean(e))}[family]
    slope = lambda u: Z.T @ (mean(X @ P["coef"] + Z @ u) - y) + Q @ u
    u = optimize.minimize(
        h, np.zeros(Z.shape[1]), jac=slope, method="BFGS", options={"gtol": 1e-9}
    ).x
    H = Z.T @ (spread(X @ P["coef"] + Z @ u)[:, None] * Z) + Q
    want = h(u) + 0.5 * np.linalg.slogdet(H)[1] - 0.5 * np.linalg.slogdet(Q)[1]
    np.testing.assert_allclose(model.look(theta[None], np.ones((1, len(data))))[0], want, rtol=1e-9)


@pytest.mark.parametrize(
    "form", ["(1 + x | p)", "(1 + x | p) + (1 | h)", "(1 | p) + (1 + x | h) + (1 | p:h)"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_slopes(data, family, form):
    model = lo.Mixed(
        f"{family} ~ x + {form}",
        data,
        family,
        drop="p",
        quadrature=3 if form == "(1 + x | p)" else 1,
    )
    theta, _ = somewhere(model, 2)
    weights = np.random.default_rng(0).uniform(0.2, 1.0, (1, model.num_units))
    _, slope, state = model.look(theta[None], weights)
    step = 1e-5 * np.eye(len(theta))
    ends = [
        model.look(theta + sign * step, np.tile(weights, (len(theta), 1)), None)[0]
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(slope[0], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-5)
    again = model.look(theta[None], weights, state)
    np.testing.assert_allclose(again[0], model.look(theta[None], weights)[0], rtol=1e-12)
    away = theta + 0.3 * np.cos(np.arange(len(theta)))
    for found, want in zip(
        model.look(away[None], weights, state)[:2], model.look(away[None], weights)[:2], strict=True
    ):
        np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-8)


# scores


@pytest.mark.parametrize("form", ["(1 + x | p)", "(1 | p) + (1 | h)"])
def test_a_fit_starts_from_the_information(data, form):
    """That of β, and of Λ if there is one factor, is that of the marginal normal distribution."""
    model = lo.Mixed(f"y ~ x + {form}", data.assign(y=data.gaussian))
    theta, _ = somewhere(model)
    (block,) = model.preconditioner(theta, np.ones(model.num_units))
    X, count = np.column_stack([np.ones(len(data)), data.x]) @ model.transform, len(theta)

    def covariance(theta):
        natural, V = model.parameters.natural(theta), 0.0
        for factor in model.factors:
            Z = np.column_stack([np.ones(len(data)), data.x])[:, : factor.q]
            same = data[factor.name].to_numpy()[:, None] == data[factor.name].to_numpy()
            V = V + same * (Z @ natural[f"covariance[{factor.name}]"] @ Z.T)
        return V + natural["scale"] ** 2 * np.eye(len(data))

    inverse = np.linalg.inv(covariance(theta))
    np.testing.assert_allclose(block.matrices[0][:2, :2], X.T @ inverse @ X, rtol=1e-9)
    slopes = [
        inverse @ (covariance(theta + h) - covariance(theta - h)) / 2e-5
        for h in 1e-5 * np.eye(count)[2:-1]
    ]
    if len(model.factors) == 1:
        exact = [[0.5 * np.trace(a @ b) for b in slopes] for a in slopes]
        np.testing.assert_allclose(block.matrices[0][2:-1, 2:-1], exact, rtol=1e-6, atol=1e-6)


def test_a_fit_takes_few_gradients(data, monkeypatch):
    looks, look = [], lo.Mixed.look
    monkeypatch.setattr(
        lo.Mixed, "look", lambda self, *at: looks.append(len(at[0])) or look(self, *at)
    )
    fit = lo.fit(lo.Mixed("y ~ x + (1 | p)", data.assign(y=data.binomial), "binomial"))
    assert fit.decrement < 1e-5
    assert len(looks) <= 15


@pytest.mark.parametrize("score", ["joint", "pointwise"])
@pytest.mark.parametrize(
    "drop, form",
    [
        ("row", "(1 + x | p)"),
        ("p", "(1 + x | p)"),
        ("row", "(1 + x | p) + (1 | h)"),
        ("h", "(1 + x | p) + (1 | h)"),
    ],
)
def test_gaussian_scores_are_conditional_densities(data, drop, form, score):
    model = lo.Mixed(f"gaussian ~ x + {form}", data, drop=drop, score=score)
    theta, P = somewhere(model)
    y, X, n = data.gaussian.to_numpy(), np.column_stack([np.ones(len(data)), data.x]), len(data)
    alike = lambda name: data[name].to_numpy()[:, None] == data[name].to_numpy()
    V = P["scale"] ** 2 * np.eye(n) + (X @ P["covariance[p]"] @ X.T) * alike("p")
    if "h" in form:
        V += P["covariance[h]"] * alike("h")
    mean, one = X @ P["coef"], np.ones((1, model.num_units))
    want = -stats.multivariate_normal(mean, V).logpdf(y)
    np.testing.assert_allclose(model.look(theta[None], one)[0], want)
    code = np.arange(n) if drop == "row" else data[drop].to_numpy()
    # rows of one cluster
    out = np.flatnonzero(data.p == data.p[1])[:2] if drop == "row" else np.array([1, 3])
    weights = one.copy()
    weights[0, out] = 0.0
    seen = weights[0, code] > 0

    def told(rows):
        gain = V[np.ix_(rows, seen)] @ np.linalg.inv(V[np.ix_(seen, seen)])
        m, K = (
            mean[rows] + gain @ (y[seen] - mean[seen]),
            V[np.ix_(rows, rows)] - gain @ V[np.ix_(seen, rows)],
        )
        return -stats.multivariate_normal(m, K).logpdf(y[rows]), -stats.norm(
            m, np.sqrt(np.diag(K))
        ).logpdf(y[rows]).sum()

    which = 0 if score == "joint" else 1
    units = [code == unit for unit in out]
    want = (
        told(np.flatnonzero(~seen))[0]
        if drop == "row" and which == 0
        else [told(np.flatnonzero(u))[which] for u in units]
    )
    found = model.losses(theta[None], weights, out[None], np.ones((1, 2), bool))
    np.testing.assert_allclose(np.ravel(found), np.ravel(want), rtol=1e-8)


@pytest.mark.parametrize("crossed", [False, True])
def test_scores_of_a_row_add_to_one(crossed):
    """Of y = 0 and 1, given the others of its clusters."""
    model = mixed("row", crossed=crossed)
    theta, _ = somewhere(model)
    weights = np.ones((1, model.num_units))
    weights[0, [4, 9]] = 0.0
    total = 0.0
    for y in (0.0, 1.0):
        model.data.y[4] = y
        if not crossed:
            model.engine.sorted_rows.y[model.engine.order == 4] = y
        total += np.exp(
            -model.losses(theta[None], weights, np.array([[4]]), np.ones((1, 1), bool))[0, 0]
        )
    assert total == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("method", ["ML", "REML"])
@pytest.mark.parametrize("drop, score", [("row", "pointwise"), ("p", "joint"), ("h", "pointwise")])
def test_units_by_themselves_are_what_f_lacks_without_them(data, drop, score, method):
    """Of crossed effects and a Gaussian response, from one posterior.

    Of one factor, from each cluster.
    """
    families = ["gaussian"] if method == "REML" else ["gaussian", "binomial"]
    for form, family in (
        ("(1 + x | p) + (1 | h)", "gaussian"),
        *(("(1 + x | p)", family) for family in families),
    ):
        if (drop == "h") > ("h" in form) or (method == "REML" and drop != "row" and "h" in form):
            continue
        model = lo.Mixed(
            f"{family} ~ x + {form}", data, family, drop=drop, score=score, method=method
        )
        theta, _ = somewhere(model)
        units = np.arange(model.num_units)[:4].astype(np.int32)
        losses, away = model.costs.runs(theta, units, np.ones(4, np.int32))(theta[None])
        weights = 1.0 - np.eye(model.num_units)[:4]
        every = np.tile(theta, (4, 1))
        fall = model.look(every, np.ones_like(weights))[0] - model.look(every, weights)[0]
        np.testing.assert_allclose(away[0], fall, rtol=1e-8)
        want = model.losses(every, weights, units[:, None], np.ones((4, 1), bool))
        np.testing.assert_allclose(losses[0], want, rtol=1e-8)
        if model.engine.outer_weights:  # pairs of clusters
            _, away = model.costs.runs(theta, units[::2], np.full(2, 2))(theta[None])
            fall = (
                model.look(every[:2], np.ones_like(weights[:2]))[0]
                - model.look(every[:2], weights[::2] * weights[1::2])[0]
            )
            np.testing.assert_allclose(away[0], fall, rtol=1e-8)


# REML


@pytest.mark.parametrize("drop", ["row", "p"])
@pytest.mark.parametrize("form", ["(1 + x | p)", "(1 + x | p) + (1 | h)"])
def test_the_restricted_likelihood_is_that_of_dense_algebra(data, form, drop):
    """By −log of the integral over β of the density, with slopes, cross derivatives, and weights of
    zero as deletion.
    """
    model = lo.Mixed(f"gaussian ~ x + {form}", data, drop=drop, method="REML")
    theta, P = somewhere(model)
    X, y = np.column_stack([np.ones(len(data)), data.x]), data.gaussian.to_numpy()
    code = np.arange(len(data)) if drop == "row" else data.p.to_numpy()

    def restricted(P, seen):
        V = P["scale"] ** 2 * np.eye(len(data))
        for factor in model.factors:
            Z = X[:, : factor.q]
            V = V + (data[factor.name].to_numpy()[:, None] == data[factor.name].to_numpy()) * (
                Z @ P[f"covariance[{factor.name}]"] @ Z.T
            )
        return likelihoods.restricted(X[seen], y[seen], V[np.ix_(seen, seen)])

    for out in ([], [1, 3]):
        beta, want = restricted(P, seen := ~np.isin(code, out))
        at = model.parameters.unconstrained(P | {"coef": beta})
        weights = np.ones((1, model.num_units))
        weights[0, out] = 0.0
        np.testing.assert_allclose(model.look(at[None], weights)[0], want, rtol=1e-10)
        assert seen.sum() == len(data) - np.isin(code, out).sum()
    weights = np.random.default_rng(0).uniform(0.2, 1.0, (1, model.num_units))
    step = 1e-5 * np.eye(len(theta))
    ends = [
        model.look(theta + sign * step, np.tile(weights, (len(theta), 1)))[0] for sign in (1, -1)
    ]
    np.testing.assert_allclose(
        model.look(theta[None], weights)[1][0], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-5
    )
    moved = 1.0 + 1e-3 * np.array([[1.0], [-1.0]]) * np.eye(model.num_units)[3]
    slopes = model.look(np.tile(theta, (2, 1)), moved)[1]
    np.testing.assert_allclose(
        model.jacobian(theta)[3], (slopes[0] - slopes[1]) / 2e-3, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("form", ["(1 | p)", "(1 | p) + (1 | h)"])
def test_restricted_refits_are_those_from_scratch(data, form):
    fit, plan = (
        lo.fit(lo.Mixed(f"gaussian ~ x + {form}", data, method="REML")),
        lo.kfold(len(data), 5, rng=0),
    )
    found = lo.fold_parameters(fit, plan, strategy=lo.Certified())
    held = plan.index[plan.refit == 0]
    scratch = lo.fit(
        lo.Mixed(f"gaussian ~ x + {form}", data.drop(index=held), method="REML")
    ).parameters
    for name, value in scratch.items():
        np.testing.assert_allclose(found[name][0], value, rtol=1e-4, atol=1e-6)
    joint = lo.Mixed(f"gaussian ~ x + {form}", data, method="REML", score="joint")
    plain = lo.Mixed(f"gaussian ~ x + {form}", data, score="joint")
    at = (
        np.asarray(fit.vector)[None],
        np.where(np.isin(np.arange(len(data)), held), 0.0, 1.0)[None],
        held[None],
    )
    some = np.ones((1, len(held)), bool)
    np.testing.assert_allclose(joint.losses(*at, some), plain.losses(*at, some), rtol=1e-12)


@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.Exact(), lo.NewtonStep(), lo.InfinitesimalJackknife()]
)
def test_a_refit_whose_rows_leave_a_coefficient_open_has_no_loss(refit):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"p": np.repeat(np.arange(10), 6), "only": np.repeat(np.arange(10) == 3, 6) * 1.0}
    )
    frame["y"] = rng.standard_normal(10)[frame.p] + rng.standard_normal(60)
    fit = lo.fit(lo.Mixed("y ~ only + (1 | p)", frame, drop="p"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cv = lo.cross_validate(fit, lo.leave_one_out(10), strategy=refit)
    assert 3 in cv.flagged() and np.isnan(cv.losses).nonzero()[0].tolist() == [3]
    # the reference level leaves with p = 3
    frame["level"] = frame.p.map(lambda p: "a" if p == 3 else "b" if p < 6 else "c")
    fit = lo.fit(lo.Mixed("y ~ level + (1 | p)", frame))
    left = frame.p.to_numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cv = lo.cross_validate(fit, lo.groups(left), strategy=refit)
    assert np.flatnonzero(np.isnan(cv.losses)).tolist() == np.flatnonzero(left == 3).tolist()


def test_a_refit_whose_rows_leave_a_coefficient_open_is_flagged_under_reml():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"p": np.repeat(np.arange(10), 6), "only": np.repeat(np.arange(10) == 3, 6) * 1.0}
    )
    frame["y"] = rng.standard_normal(10)[frame.p] + rng.standard_normal(60)
    fit = lo.fit(lo.Mixed("y ~ only + (1 | p)", frame, drop="p", method="REML"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cv = lo.cross_validate(fit, lo.leave_one_out(10))
    weights, theta = (
        np.where(np.arange(10) == 3, 0.0, 1.0)[None],
        np.array([fit.vector, [1.0, 1.0, 1e200, 800.0]]),
    )
    assert not np.isfinite(fit.objective.look(theta, np.repeat(weights, 2, 0))[0]).any()
    assert cv.flagged().tolist() == [3]
    assert np.isnan(cv.losses[3])


def test_dyestuff_has_the_figures_of_lme4():
    """Bates, lme4: Mixed-effects modeling with R, section 1.3.

    The residual variance is that within batches.
    """
    yields = """1545 1440 1440 1520 1580 1540 1555 1490 1560 1495 1595 1550 1605 1510 1560
                1445 1440 1595 1465 1545 1595 1630 1515 1635 1625 1520 1455 1450 1480 1445"""
    frame = pd.DataFrame(
        {"y": np.array(yields.split(), float), "batch": np.repeat(list("ABCDEF"), 5)}
    )
    fit = lo.fit(lo.Mixed("y ~ 1 + (1 | batch)", frame, method="REML"))
    assert 2 * float(fit.value) == pytest.approx(319.6543, abs=1e-4)
    assert np.sqrt(fit.parameters["covariance[batch]"][0, 0]) == pytest.approx(42.00, abs=0.01)
    assert fit.parameters["scale"] == pytest.approx(np.sqrt(2451.25), rel=1e-6)


# weights


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("drop", ["row", "patient"])
def test_weight_zero_is_deletion(drop, crossed):
    whole = mixed(drop, "gaussian", crossed=crossed)
    codes = {factor.name: factor.code for factor in whole.factors}
    unit = whole.code
    out = np.isin(unit, [2, 5])
    X, y = (
        whole.data.design @ np.linalg.inv(whole.transform) * whole.unit,
        whole.data.y * whole.unit,
    )
    groups = {name: code[~out] for name, code in codes.items()}
    part = lo.Mixed(X[~out][:, 1:], y[~out], groups=groups, drop=drop)
    weights = np.ones(whole.num_units)
    weights[[2, 5]] = 0.0
    theta, P = somewhere(whole)
    once = part.look(part.parameters.unconstrained(P)[None], np.ones((1, part.num_units)))[0]
    np.testing.assert_allclose(whole.look(theta[None], weights[None])[0], once, rtol=1e-10)


def test_weight_two_of_a_cluster_is_a_second_copy():
    whole = mixed("patient", "negative_binomial")
    X, y, code = (
        whole.data.design @ np.linalg.inv(whole.transform),
        whole.data.y,
        whole.factors[0].code,
    )
    again = code == 3
    copy = lo.Mixed(
        np.vstack([X, X[again]])[:, 1:],
        np.r_[y, y[again]],
        "negative_binomial",
        groups={"patient": np.r_[code, np.full(again.sum(), 99)]},
        drop="patient",
    )
    weights, (theta, P) = np.where(np.arange(whole.num_units) == 3, 2.0, 1.0), somewhere(whole)
    want = copy.look(copy.parameters.unconstrained(P)[None], np.ones((1, copy.num_units)))[0]
    np.testing.assert_allclose(whole.look(theta[None], weights[None])[0], want, rtol=1e-10)
    assert whole.units.repeatable and not mixed("row").units.repeatable


# fits


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(os.environ.get("LEAVEOUT_DATA", "")) / "latent" / "glmm.csv").is_file(),
    reason="needs lme4's figures",
)
def test_refits_are_those_of_lme4():
    folder = Path(os.environ["LEAVEOUT_DATA"]) / "latent"
    frame, theirs = (
        pd.read_csv(folder / "glmm.csv"),
        pd.read_csv(folder / "glmm_refits.csv").to_numpy(),
    )
    fit = lo.fit(lo.Mixed("y ~ x1 + x2 + x3 + (1 | g)", frame, "binomial", drop="g", quadrature=25))
    found = lo.fold_parameters(fit, lo.leave_one_out(200), strategy=lo.Exact())
    ours = np.column_stack([found["coef"], np.sqrt(found["covariance[g]"][:, 0, 0])])
    np.testing.assert_allclose(ours[: len(theirs)], theirs, atol=2e-5)


def test_cross_validation_is_that_of_refits_from_scratch():
    """Of rows and of clusters, by models that never saw them."""
    for drop in ("row", "patient"):
        whole = mixed(drop, "gaussian", n=100)
        fit = lo.fit(whole)
        plan = lo.kfold(whole.num_units, 5, rng=0)
        cv = lo.cross_validate(fit, plan, strategy=lo.Exact())
        X, y, code = (
            whole.data.design @ np.linalg.inv(whole.transform) * whole.unit,
            whole.data.y * whole.unit,
            whole.code,
        )
        held = np.isin(code, plan.index[plan.refit == 0])
        groups = {"patient": whole.factors[0].code[~held]}
        other = lo.fit(lo.Mixed(X[~held][:, 1:], y[~held], groups=groups, drop=drop), num_starts=1)
        theta = whole.parameters.unconstrained(other.parameters)
        weights = np.ones((1, whole.num_units))
        weights[0, plan.index[plan.refit == 0]] = 0
        index = plan.index[plan.refit == 0][None]
        want = whole.losses(theta[None], weights, index, np.ones(index.shape, bool))[0]
        np.testing.assert_allclose(cv.losses[plan.refit == 0], want, rtol=1e-6)


@pytest.mark.parametrize("form", ["(1 | p)", "(1 | p) + (1 | h)"])
def test_clusters_left_out_are_within_their_errors(form):
    """Those of one factor by their expansion.

    Those of two factors one by one.
    """
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "x": rng.standard_normal(300),
            "p": np.repeat(np.arange(30), 10),
            "h": rng.integers(0, 6, 300),
        }
    )
    eta = (
        0.4
        + 0.6 * frame.x
        + rng.standard_normal(30)[frame.p]
        + 0.5 * rng.standard_normal(6)[frame.h]
    )
    frame["y"] = (rng.logistic(size=300) < eta) * 1.0
    fit = lo.fit(lo.Mixed(f"y ~ x + {form}", frame, "binomial", drop="p"))
    near, exact = (
        lo.cross_validate(fit, lo.leave_one_out(30), strategy=refit, audit=0).table()
        for refit in (lo.Certified(), lo.Exact())
    )
    off = np.abs(near.loss - exact.loss)
    assert near.error.between(1e-12, 0.05).all()
    assert (off <= near.error + exact.error).all()


def test_a_variance_at_zero_is_said_and_stood_at():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.standard_normal(200), "p": rng.integers(0, 20, 200)})
    frame["y"] = 3 + 0.5 * frame.x + 0.6 * rng.standard_normal(200)
    # less than nothing between clusters
    frame["y"] -= frame.groupby("p").y.transform("mean") - frame.y.mean()
    with pytest.warns(UserWarning, match="the variance of Intercept by p is zero"):
        fit = lo.fit(lo.Mixed("y ~ x + (1 | p)", frame, drop="p"))
    assert fit.parameters["covariance[p]"][0, 0] < 1e-8
    cv = lo.cross_validate(fit, lo.leave_one_out(20))
    assert (cv.result == 0).all() and np.isfinite(cv.losses).all()


def _balanced(seed, clusters=15, size=10):
    """Hardly anything between clusters; the rows of a cluster one after another."""
    rng = np.random.default_rng(seed)
    x, code = rng.standard_normal(clusters * size), np.repeat(np.arange(clusters), size)
    y = 1 + 0.5 * x + rng.standard_normal(len(x))
    y += 0.15 * (rng.standard_normal(clusters)[code] + rng.standard_normal(clusters)[code] * x)
    return pd.DataFrame({"x": x, "y": y, "p": code}), size


def _from_scratch(frame, size, q):
    """The least −log likelihood over Λ, β and σ², both of these profiled out, by multivariate
    normal densities.
    """
    X, y, place = (
        np.column_stack([np.ones(len(frame)), frame.x]),
        frame.y.to_numpy(),
        np.tril_indices(q),
    )
    X, y = X.reshape(-1, size, 2), y.reshape(-1, size, 1)

    def value(entries):
        root = np.zeros((q, q))
        root[place] = entries
        low = np.linalg.cholesky(
            np.eye(size) + X[:, :, :q] @ root @ root.T @ X[:, :, :q].swapaxes(1, 2)
        )
        A, b = (np.linalg.solve(low, part).reshape(-1, part.shape[2]) for part in (X, y))
        left = np.sum((b - A @ np.linalg.lstsq(A, b, rcond=None)[0]) ** 2)
        logs = 2 * np.log(np.einsum("gii->gi", low)).sum()
        return 0.5 * (len(b) * (np.log(2 * np.pi * left / len(b)) + 1) + logs)

    starts = 0.5 * np.random.default_rng(0).standard_normal((2, len(place[0])))
    return min(
        optimize.minimize(value, start, method="BFGS", options={"gtol": 1e-6}).fun
        for start in starts
    )


@pytest.mark.parametrize(
    "seed, effects, said",
    [(20, "1", "variance of Intercept"), (15, "1 + x", "perfectly correlated")],
)
def test_refits_hold_a_variance_at_zero_or_say_that_it_would_leave(seed, effects, said):
    """Against refits from scratch over all covariances.

    Those that hold are the least, those that are flagged are not.
    """
    frame, size = _balanced(seed)
    with pytest.warns(UserWarning, match=said):
        fit = lo.fit(lo.Mixed(f"y ~ x + ({effects} | p)", frame, drop="p"))
    plan, model = lo.leave_one_out(15), fit.objective
    cv, found = lo.cross_validate(fit, plan), lo.fold_parameters(fit, plan, strategy=lo.Exact())
    thetas = [
        model.parameters.unconstrained({name: value[k] for name, value in found.items()})
        for k in range(15)
    ]
    leaves = cv.result == lo.RESULTS.leaving
    assert leaves.any() and (cv.result[~leaves] == 0).all() and np.isfinite(cv.losses).all()
    some = np.r_[np.flatnonzero(leaves)[:2], np.flatnonzero(~leaves)[:2]]
    values = model.look(np.array(thetas)[some], 1 - np.eye(15)[some])[0]
    above = values - [
        _from_scratch(frame[frame.p != k], size, 1 + effects.count("x")) for k in some
    ]
    np.testing.assert_allclose(above[2:], 0.0, atol=1e-8)
    assert (above[:2] > 1e-6).all()
    assert "held at zero" in str(cv)


def test_a_variance_at_zero_is_held_where_it_is_least_only():
    """By an anchor, too; where F falls as it leaves, there is no minimum."""
    frame, _ = _balanced(20)
    model = lo.Mixed("y ~ x + (1 | p)", frame, drop="p")
    with pytest.warns(UserWarning, match="variance of Intercept"):
        parameters = lo.fit(model).parameters
    with pytest.warns(UserWarning, match="anchor: the variance of Intercept"):
        assert len(lo.anchor(model, parameters).vector) == 3
    frame["y"] += np.random.default_rng(0).standard_normal(15)[frame.p]
    between = lo.Mixed("y ~ x + (1 | p)", frame, drop="p")
    assert between.parameters.held(between.parameters.unconstrained(parameters)) is None


def test_effects_that_turn_into_one_another_are_held():
    """A slope varies, an intercept does not: F is flat along the rotation of what is left."""
    model = lo.Mixed("gaussian ~ x + (1 + x | p)", _frame(), drop="p")
    theta = model.parameters.start(0)
    theta[2:5] = 0.0, 0.3, 0.4
    simpler, values, what = model.parameters.held(theta)
    assert "Intercept by p" in what and len(simpler.parameters.names()) == len(theta) - 2
    start = simpler.parameters.unconstrained(values)
    np.testing.assert_allclose(start[2], 0.5, rtol=1e-10)
    weights = np.ones((1, model.num_units))
    np.testing.assert_allclose(
        simpler.look(start[None], weights)[0], model.look(theta[None], weights)[0], rtol=1e-10
    )
    assert model.parameters.held(model.parameters.start(1)) is None


def _frame(n=60):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.standard_normal(n), "p": rng.integers(0, 8, n)})
    return frame.assign(
        gaussian=frame.x + rng.standard_normal(8)[frame.p] * frame.x + 0.5 * rng.standard_normal(n)
    )


# what a fit says


def test_tables_and_predictions(data):
    model = lo.Mixed("gaussian ~ x + (1 + x | p) + (1 | h)", data)
    fit = lo.fit(model)
    table, P = model.components(fit), fit.parameters
    assert table.variance.tolist() == pytest.approx(
        [*np.diag(P["covariance[p]"]), P["covariance[h]"][0, 0], P["scale"] ** 2]
    )
    known = model.predict(fit, data=data)
    pd.testing.assert_frame_equal(known, model.predict(fit).set_index(known.index), rtol=1e-6)
    modes = model.modes(fit).set_index(["factor", "level", "effect"])["mode"]
    row = data.iloc[5]
    want = (
        P["coef"] @ [1, row.x]
        + modes["p", row.p, "Intercept"]
        + row.x * modes["p", row.p, "x"]
        + modes["h", row.h, "Intercept"]
    )
    assert known["mean"].iloc[5] == pytest.approx(want, rel=1e-8)
    new = model.predict(fit, data=data.assign(p=999, h=-1))
    np.testing.assert_allclose(
        new["mean"], np.column_stack([np.ones(len(data)), data.x]) @ P["coef"], rtol=1e-8
    )
    pd.testing.assert_frame_equal(new, model.predict(fit, data=data, new=True))
    spread = lambda frame: (frame.upper - frame.lower).mean()
    assert spread(known) < spread(new)
    assert model.coefficients(fit).se.gt(0).all()


def test_a_new_cluster_is_predicted_by_its_average(data):
    model = lo.Mixed("binomial ~ x + (1 | p)", data, "binomial", quadrature=15)
    fit = lo.fit(model, num_starts=1)
    eta, sd = fit.parameters["coef"] @ [1.0, 0.5], np.sqrt(fit.parameters["covariance[p]"][0, 0])
    want = integrate.quad(lambda u: stats.norm.pdf(u) / (1 + np.exp(-eta - sd * u)), -9, 9)[0]
    found = model.predict(fit, data=pd.DataFrame({"x": [0.5], "p": [77]}))
    assert found["mean"].iloc[0] == pytest.approx(want, abs=1e-9)
    assert found.lower.iloc[0] < want < found.upper.iloc[0]


def test_held_out_predictions_of_rows(data):
    """Groups left out are predicted as new ones."""
    fit = lo.fit(lo.Mixed("gaussian ~ x + (1 | p)", data))
    plan = lo.groups(data.p.to_numpy())
    found, refits = (
        lo.cross_predict(fit, plan, strategy=lo.Exact()),
        lo.fold_parameters(fit, plan, strategy=lo.Exact()),
    )
    for k, code in enumerate(np.unique(data.p)):
        here = (data.p == code).to_numpy()
        want = np.column_stack([np.ones(here.sum()), data.x[here]]) @ refits["coef"][k]
        np.testing.assert_allclose(found[here], want, rtol=1e-7)
    clusters = lo.fit(lo.Mixed("gaussian ~ x + (1 | p)", data, drop="p"))
    with pytest.raises(NotImplementedError, match="of many rows"):
        lo.cross_predict(clusters, lo.leave_one_out(9))


def test_covariances_and_influence_are_of_natural_parameters():
    fit = lo.fit(mixed("patient", "gaussian"))
    table, own = lo.covariance(fit), fit.objective.coefficients(fit)
    cv = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact())
    told, refits = (
        lo.influence(cv),
        lo.fold_parameters(fit, lo.leave_one_out(), strategy=lo.Exact()),
    )
    moved = refits["scale"] - fit.parameters["scale"]
    assert abs(np.corrcoef(told.parameters["scale"], moved)[0, 1]) == pytest.approx(1.0, abs=1e-4)
    assert np.sqrt(np.diag(table))[:2] == pytest.approx(own.se.to_numpy(), rel=0.5)


def test_the_printed_result_says_which_question():
    row, cluster = (
        str(lo.cross_validate(lo.fit(mixed(drop)), lo.kfold(k=4))) for drop in ("row", "patient")
    )
    assert "given what is seen of its clusters" in row and "scored as a new one" in cluster


def test_standard_errors_of_clusters_that_share_effects():
    """Crossed ones by themselves, given what they share.

    Nested ones by what they are nested in. None are bootstrapped.
    """
    crossed = lo.fit(mixed("patient", "gaussian", crossed=True))
    cv = lo.cross_validate(crossed, lo.leave_one_out(20), strategy=lo.NoUpdate())
    assert cv.se == pytest.approx(
        cv.losses.std(ddof=1) / np.sqrt(20)
    ) and "over 20 units, each by itself" in str(cv)
    with pytest.raises(ValueError, match="weights above 1"):
        lo.cross_validate(crossed, lo.bootstrap(20, 3))
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "ward": np.repeat(np.arange(75), 4),
            "h": np.repeat(np.arange(25), 12),
            "x": rng.standard_normal(300),
        }
    )
    frame["y"] = (
        rng.standard_normal(75)[frame.ward]
        + rng.standard_normal(25)[frame.h]
        + rng.standard_normal(300)
    )
    wards = lo.Mixed("y ~ x + (1 | h) + (1 | ward)", frame, drop="ward").units.blocks
    np.testing.assert_array_equal(
        wards[:, None] == wards, (np.arange(75) // 3)[:, None] == np.arange(75) // 3
    )


# formulas and arrays


def test_bars():
    assert bars("x + (1 + x | a) + (1 | b)") == ("x", [("1 + x", "a", True), ("1", "b", True)])
    assert bars("(1|a/b)")[1] == [("1", "a", True), ("1", "a:b", True)]
    assert bars("0 + x + (x || g) + (z + w):u") == ("0 + x + (z + w):u", [("x", "g", False)])


def test_formulas_and_arrays_are_the_same(data):
    formula = lo.Mixed("binomial ~ x + (1 + x | p)", data, "binomial")
    arrays = lo.Mixed(data[["x"]], data.binomial, "binomial", groups=data.p, slopes=data[["x"]])
    theta = formula.parameters.start(1)[None]
    one = np.ones((1, len(data)))
    np.testing.assert_allclose(arrays.look(theta, one)[0], formula.look(theta, one)[0], rtol=1e-12)
    event = data.assign(word=np.where(data.binomial == 1, "yes", "no"))
    bambi = lo.Mixed("word['yes'] ~ x + (1 + x | p)", event, "bernoulli")
    np.testing.assert_allclose(bambi.look(theta, one)[0], formula.look(theta, one)[0], rtol=1e-12)


def test_trials_are_rows_together(data):
    frame = data.assign(z=data.p % 2)
    counts = (
        frame.groupby("p")
        .agg(k=("binomial", "sum"), n=("binomial", "size"), z=("z", "first"))
        .reset_index()
    )
    apart = lo.Mixed("binomial ~ z + (1 | p)", frame, "binomial", drop="p")
    together = lo.Mixed(
        counts[["z"]], counts.k / counts.n, "binomial", groups=counts.p, trials=counts.n, drop="p"
    )
    P = apart.parameters.natural(apart.parameters.start(1))
    values = [
        m.look(m.parameters.unconstrained(P)[None], np.ones((1, 9)))[0][0]
        for m in (apart, together)
    ]
    ways = stats.binom.logpmf(counts.k, counts.n, 0.5).sum() + counts.n.sum() * np.log(2)
    assert values[0] - values[1] == pytest.approx(ways, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_measurement_do_not_matter(data, scale):
    frame = data.assign(x=scale * (1e3 + data.x), gaussian=data.gaussian * scale)
    usual, other = (
        lo.fit(lo.Mixed("gaussian ~ x + (1 | p)", d, drop="p"), num_starts=1) for d in (data, frame)
    )
    np.testing.assert_allclose(
        other.parameters["scale"], usual.parameters["scale"] * scale, rtol=1e-5
    )
    np.testing.assert_allclose(
        other.parameters["covariance[p]"], usual.parameters["covariance[p]"] * scale**2, rtol=1e-5
    )
    shift = len(data) * np.log(scale)
    assert float(other.value) - shift == pytest.approx(float(usual.value), rel=1e-6)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda d: lo.Mixed("gaussian ~ x", d), "no random effects"),
        (lambda d: lo.Mixed("gaussian ~ x + 1 | p", d), "in parentheses"),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | p", d), "parentheses"),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | q)", d), "no column 'q'"),
        (lambda d: lo.Mixed("gaussian ~ q + (1 | p)", d), "cannot be read"),
        (
            lambda d: lo.Mixed("gaussian ~ x + x:x + (1 | p)", d.assign(x=1.0)),
            "combination of those before",
        ),
        (
            lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d.assign(x=np.nan)),
            r"Leave these rows out, data\.dropna\(\)",
        ),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d.assign(p=np.nan)), "missing labels"),
        (
            lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d.assign(gaussian=np.inf)),
            "NaN or infinite",
        ),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d, "binomial"), "needs y"),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d, "cauchy"), "no family is called"),
        (
            lambda d: lo.Mixed("binomial ~ x + (1 | p)", d, "binomial", method="REML"),
            "for a Gaussian response",
        ),
        (
            lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d, drop="h"),
            "drop must be one of 'row', 'p'",
        ),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d.assign(p=1), drop="p"), "has one level"),
        (
            lambda d: lo.Mixed("gaussian ~ x + (1 | p)", d.assign(p=np.arange(90))),
            "every level of p has one row",
        ),
        (
            lambda d: lo.Mixed("binomial ~ x + (1 | p)", d.assign(binomial=d.p % 2), "binomial"),
            "separated",
        ),
        (
            lambda d: lo.Mixed("poisson ~ x + (1 | p)", d.assign(poisson=0.0), "poisson"),
            "y is 0 in every row",
        ),
        (
            lambda d: lo.Mixed("gaussian ~ x + (1 | p) + (1 | h)", d, quadrature=5),
            "one grouping factor",
        ),
        (lambda d: lo.Mixed("gaussian ~ x + (1 | p) + (1 | p)", d), "the same effect twice"),
        (lambda d: lo.Mixed(d[["x"]], d.gaussian), "give groups="),
        (
            lambda d: lo.Mixed(d[["x"]], d.gaussian, groups=d.p[:5]),
            "one label for each of the 90 rows",
        ),
        (
            lambda d: lo.Mixed(d[["x"]], d.gaussian, groups=d.p, trials=np.ones(90)),
            "binomial proportions",
        ),
    ],
)
def test_bad_input_is_told(data, make, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make(data)


def test_frames_of_polars(data):
    polars = pytest.importorskip("polars")
    frame = polars.from_pandas(data)
    model = lo.Mixed("gaussian ~ x + (1 | p)", frame, drop="p")
    theta = model.parameters.start(0)[None]
    same = lo.Mixed("gaussian ~ x + (1 | p)", data, drop="p")
    np.testing.assert_allclose(
        model.look(theta, np.ones((1, 9)))[0], same.look(theta, np.ones((1, 9)))[0]
    )


# hosts


def test_statsmodels():
    api = pytest.importorskip("statsmodels.formula.api")
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.standard_normal(200), "p": rng.integers(0, 20, 200)})
    frame["y"] = (
        3 + 0.5 * frame.x + rng.standard_normal(20)[frame.p] + 0.6 * rng.standard_normal(200)
    )
    frame["y"] += 0.6 * rng.standard_normal(20)[frame.p] * frame.x
    frame["event"] = (frame.y > 3).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = api.mixedlm("y ~ x", frame, groups=frame.p, re_formula="~x").fit(
            reml=False, method="lbfgs"
        )
        by_reml = api.mixedlm("y ~ x", frame, groups=frame.p).fit()
        bayes = BinomialBayesMixedGLM.from_formula("event ~ x", {"p": "0 + C(p)"}, frame)
    fit = lo.from_statsmodels(results, drop="group")
    assert float(fit.value) == pytest.approx(-results.llf, rel=1e-9)
    np.testing.assert_allclose(fit.objective.coefficients(fit).se, results.bse_fe, rtol=1e-3)
    fit = lo.from_statsmodels(by_reml, drop="group")
    assert float(fit.value) == pytest.approx(-by_reml.llf, rel=1e-9)
    np.testing.assert_allclose(fit.objective.coefficients(fit).se, by_reml.bse_fe, rtol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = {"room": "0 + C(room)", "slope": "0 + x"}
        frame["room"] = np.arange(200) % 3
        frame["z"] = frame.y + rng.standard_normal((20, 3))[frame.p, frame.room]
        components = api.mixedlm("z ~ x", frame, groups="p", re_formula="1", vc_formula=nested).fit(
            method="lbfgs"
        )
        several = api.mixedlm(
            "y ~ x", frame, groups="p", vc_formula={"both": "0 + x + I(x**2)"}
        ).fit(method="lbfgs")
    fit = lo.from_statsmodels(components, drop="group")
    assert float(fit.value) == pytest.approx(-components.llf, rel=1e-8)
    by_hand = lo.fit(lo.Mixed("z ~ x + (1 + x || p) + (1 | p:room)", frame, method="REML"))
    assert float(by_hand.value) == pytest.approx(-components.llf, rel=1e-7)
    with pytest.raises(TypeError, match="several effects that share a variance"):
        lo.from_statsmodels(several, drop="both")
    own = lo.fit(lo.Mixed("event ~ x + (1 | p)", frame, "binomial", drop="p"))
    np.testing.assert_allclose(
        lo.from_statsmodels(bayes, drop="p").parameters["coef"], own.parameters["coef"], rtol=1e-6
    )
