"""Sandwich covariances: statsmodels' where it has them, finite differences of weighted fits elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from jax.flatten_util import ravel_pytree

import leaveout as lo
from tests.helpers import OBJECTIVES, fitted

rng = np.random.default_rng(2)
N = 90
FRAME = pd.DataFrame({"const": 1.0, "age": rng.standard_normal(N), "dose": rng.gamma(2.0, 1.0, N)})
ETA = FRAME.to_numpy() @ [0.2, 0.6, -0.3]
COUNT, ILL = rng.poisson(np.exp(ETA)), (rng.random(N) < 1 / (1 + np.exp(-ETA))).astype(float)
COST = ETA + rng.standard_normal(N) * (1 + FRAME.dose)
SITE = np.repeat(np.arange(30), 3)
WEIGHT = rng.gamma(4.0, 0.25, N)

HOSTS = {
    "OLS": lambda **c: sm.OLS(COST, FRAME).fit(**c),
    "WLS": lambda **c: sm.WLS(COST, FRAME, weights=WEIGHT).fit(**c),
    "Poisson": lambda **c: sm.GLM(COUNT, FRAME, sm.families.Poisson()).fit(tol=1e-14, tol_criterion="params", **c),
    "probit": lambda **c: sm.GLM(ILL, FRAME, sm.families.Binomial(sm.families.links.Probit())).fit(tol=1e-14, **c),
    "gamma": lambda **c: sm.GLM(np.exp(COST / 4), FRAME, sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-14, **c),
    "Logit": lambda **c: sm.Logit(ILL, FRAME).fit(disp=0, tol=1e-14, **c),
    "negative binomial": lambda **c: sm.NegativeBinomial(COUNT + MORE, FRAME).fit(
        disp=0, method="newton", tol=1e-14, start_params=NB, **c
    ),
}
MORE = np.random.default_rng(3).poisson(np.random.default_rng(4).gamma(0.5, 2.0, N))
NB = sm.NegativeBinomial(COUNT + MORE, FRAME).fit(disp=0).params.to_numpy()
KINDS = {
    "HC0": ({}, {}),
    "cluster": ({"groups": SITE}, {"groups": SITE}),
    "cluster, as it is": ({"groups": SITE, "use_correction": False}, {"groups": SITE, "use_correction": False}),
    "HAC": ({"maxlags": 4}, {"maxlags": 4}),
    "HAC, corrected": ({"maxlags": 3, "use_correction": True}, {"maxlags": 3, "use_correction": True}),
}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("kind", KINDS)
def test_statsmodels_sandwiches(host, kind):
    cov_type, (theirs, ours) = kind.split(",")[0], KINDS[kind]
    results = HOSTS[host](cov_type=cov_type, **({"cov_kwds": theirs} if theirs else {}))
    want = results.cov_params()
    found = lo.covariance(lo.from_statsmodels(HOSTS[host]()), cov_type, **ours)
    order = [*FRAME.columns, *(["dispersion"] if len(found) == 4 else [])]
    np.testing.assert_allclose(found.loc[order, order], want, rtol=1e-8, atol=1e-8 * np.abs(np.asarray(want)).max())


@pytest.mark.parametrize("host", ["OLS", "WLS"])
@pytest.mark.parametrize("kind", ["HC1", "HC2", "HC3"])
def test_statsmodels_corrections_of_least_squares(host, kind):
    results = HOSTS[host]()
    found = lo.covariance(lo.from_statsmodels(results), kind)
    np.testing.assert_allclose(found, getattr(results, f"cov_{kind}"), rtol=1e-8)
    assert list(found.columns) == list(FRAME.columns)


def test_the_models_own():
    for host in ("OLS", "WLS", "Poisson", "Logit"):
        results = HOSTS[host]()
        np.testing.assert_allclose(lo.covariance(lo.from_statsmodels(results), "nonrobust"), results.cov_params(), rtol=1e-8)


def test_classes_go_by_contrasts():
    y = np.argmax(np.c_[ETA, -ETA, np.zeros(N)] + rng.gumbel(size=(N, 3)), axis=1)
    for kind in ("nonrobust", "HC0"):
        host = sm.MNLogit(y, FRAME).fit(disp=0, method="newton", tol=1e-14, cov_type=kind)
        fit = lo.fit(lo.GLM(FRAME, y, "multinomial", intercept=False))
        contrast = np.kron(np.array([[-1.0, 1, 0], [-1, 0, 1]]), np.eye(3))
        found = contrast @ lo.covariance(fit, kind).to_numpy() @ contrast.T
        np.testing.assert_allclose(found, np.asarray(host.cov_params()), rtol=1e-6)
        common = np.kron(np.ones((1, 3)), np.eye(3)) @ lo.covariance(fit, kind).to_numpy()
        np.testing.assert_allclose(common, 0, atol=1e-10)  # those of all classes add up to nothing


def derivatives(objective, fit, step=1e-4):
    """∂θ̂/∂w_n of every unit, natural: by Newton's method on F with that weight a little up and down."""
    with jax.enable_x64(True):
        start, unravel = ravel_pytree(jax.tree.map(jnp.asarray, fit.theta))
        F = lambda v, w: objective.loss(unravel(v), w)
        slope, bend = jax.jit(jax.grad(F)), jax.jit(jax.hessian(F))

        def natural(w):
            v = start
            for _ in range(4):
                v = v - jnp.linalg.solve(bend(v, w), slope(v, w))
            return np.asarray(ravel_pytree(objective.parameters.natural(unravel(v)))[0])

        moved = step * jnp.eye(objective.num_units)
        return np.array([(natural(1 + row) - natural(1 - row)) / (2 * step) for row in moved])


@pytest.mark.parametrize("name", ["separable", "logistic, weights, offset, no intercept"])
def test_any_objective_by_weighted_fits(name):
    fit = fitted(name)
    slopes = derivatives(OBJECTIVES[name](), fit)
    slopes = slopes[:, np.ptp(slopes, axis=0) > 0]  # an intercept that is not there is told as zero
    np.testing.assert_allclose(lo.covariance(fit), slopes.T @ slopes, rtol=1e-5)


def sequences():
    """Series of one hidden chain's law, short and many: they are the units."""
    draw = np.random.default_rng(5)
    series = []
    for _ in range(14):
        state = np.cumsum(draw.random(8) < 0.3) % 2
        series.append(draw.poisson(np.where(state, 9.0, 2.0)).astype(float))
    return lo.HMM(np.concatenate(series), lo.emissions.Poisson(), 2, lengths=[8] * 14, drop="sequence")


def test_whole_sequences_of_a_hidden_markov_model():
    model = sequences()
    fit = lo.fit(model, num_starts=1)
    slopes = derivatives(model, fit)
    found = lo.covariance(fit)
    names = [name.split("[")[0] for name in found]
    assert names.count("rate") == 2 and names.count("transition") == 4
    np.testing.assert_allclose(found, slopes.T @ slopes, rtol=2e-3, atol=1e-6)
    rows = found.loc["transition[0, 0]"] + found.loc["transition[0, 1]"]
    np.testing.assert_allclose(rows, 0, atol=1e-12)  # they sum to one


def test_what_has_no_sandwich():
    ols = lo.from_statsmodels(HOSTS["OLS"]())
    refused = [
        (ValueError, "cov_type must be one of 'nonrobust', 'HC0'", dict(cov_type="white")),
        (ValueError, "groups goes with cov_type='cluster'", dict(cov_type="cluster")),
        (ValueError, "groups goes with cov_type='cluster'", dict(groups=SITE)),
        (ValueError, "maxlags goes with cov_type='HAC'", dict(cov_type="HAC")),
        (ValueError, "maxlags must be a whole number from 0 to 89", dict(cov_type="HAC", maxlags=90)),
        (ValueError, "at least two groups", dict(cov_type="cluster", groups=np.zeros(N))),
        (ValueError, "one label a unit, 90; got 3", dict(cov_type="cluster", groups=[1, 2, 3])),
        (ValueError, "missing labels", dict(cov_type="cluster", groups=np.where(SITE == 1, np.nan, SITE))),
    ]
    for error, words, given in refused:
        with pytest.raises(error, match=words):
            lo.covariance(ols, **given)
    with pytest.raises(TypeError, match="must be a Fit"):
        lo.covariance(FRAME)
    twice = lo.fit(lo.GLM(FRAME.assign(again=FRAME.age)[["age", "dose", "again"]], COST, "squared"))
    with pytest.raises(ValueError, match=r"do not determine every parameter, among them 'age', 'again'"):
        lo.covariance(twice)
    few = lo.fit(lo.GLM(FRAME[:3][["age", "dose"]], COST[:3], "squared"))
    with pytest.raises(ValueError, match="no degree of freedom"):
        lo.covariance(few, "HC1")
    assert np.isfinite(lo.covariance(few, "HC0")).all(axis=None)
    with pytest.raises(TypeError, match="no gradients that add up"):
        lo.covariance(fitted("hidden Markov"))
    with pytest.raises(TypeError, match="no gradients that add up"):
        lo.covariance(fitted("hidden Markov"), "HAC", maxlags=5)
    with pytest.raises(TypeError, match="drop='sequence'"):
        lo.covariance(fitted("hidden Markov"), "cluster", groups=np.arange(60) // 4)
    with pytest.raises(ValueError, match="not known to be independent"):
        lo.covariance(fitted("two functions"))
    with pytest.raises(TypeError, match="HC2 and HC3 need one linear predictor"):
        lo.covariance(fitted("multinomial"), "HC3")


def test_a_series_of_a_users_own_objective_has_hac():
    x = np.cumsum(np.random.default_rng(6).standard_normal(60)) / 5
    loss = lambda theta, w: w @ (x - theta["m"]) ** 2 / 2
    fit = lo.fit(lo.Objective(loss, 60, dependence="serial"), {"m": 0.0})
    host = sm.OLS(x, np.ones(60)).fit(cov_type="HAC", cov_kwds={"maxlags": 5})
    with pytest.raises(ValueError, match="depend on their neighbours; HC0 takes them for independent"):
        lo.covariance(fit)
    np.testing.assert_allclose(lo.covariance(fit, "HAC", maxlags=5), host.cov_params(), rtol=1e-8)
    assert list(lo.covariance(fit, "HAC", maxlags=0)) == ["m"]


def test_few_groups_are_warned_of_and_labels_are_matched():
    frame = FRAME.set_axis([f"p{k}" for k in range(N)])
    fit = lo.fit(lo.GLM(frame[["age", "dose"]], pd.Series(COST.to_numpy(), frame.index), "squared"))
    site = pd.Series(np.repeat(np.arange(9), 10), frame.index)
    with pytest.warns(UserWarning, match="9 groups are fewer than 20"):
        found = lo.covariance(fit, "cluster", groups=site)
    with pytest.warns(UserWarning):
        shuffled = lo.covariance(fit, "cluster", groups=site.sample(frac=1, random_state=0))
    pd.testing.assert_frame_equal(found, shuffled)
    assert list(found.index) == ["age", "dose", "intercept"]


@pytest.mark.parametrize("loss, y", [("gamma", np.exp(COST / 4)), ("poisson", COUNT)])
@pytest.mark.parametrize("kind", ["nonrobust", "HC1", "HC3", "cluster", "HAC"])
def test_a_row_of_weight_zero_is_not_there(loss, y, kind):
    """Neither for the degrees of freedom nor as a group of its own."""
    weight, out = np.r_[np.zeros(24), WEIGHT[24:]], slice(24, None)
    whole = lo.fit(lo.GLM(FRAME, y, loss, sample_weight=weight, intercept=False))
    without = lo.fit(lo.GLM(FRAME[out], y[out], loss, sample_weight=weight[out], intercept=False))
    more = {"cluster": {"groups": SITE}, "HAC": {"maxlags": 2, "use_correction": True}}.get(kind, {})
    less = {name: value[out] if name == "groups" else value for name, value in more.items()}
    np.testing.assert_allclose(lo.covariance(whole, kind, **more), lo.covariance(without, kind, **less), rtol=1e-9)
    if kind == "nonrobust":
        np.testing.assert_allclose(lo.cooks_distance(whole)[24:], lo.cooks_distance(without), rtol=1e-7)
        np.testing.assert_allclose(lo.dfbetas(whole).iloc[24:], lo.dfbetas(without), rtol=1e-6)


def test_a_correction_that_would_not_be_made_is_refused():
    fit = lo.fit(lo.GLM(FRAME, COST, "squared", intercept=False))
    for kind, more in (("HC0", {"use_correction": True}), ("cluster", {"use_correction": "yes", "groups": SITE})):
        with pytest.raises(ValueError, match="covariance: use_correction is True or False, of cov_type='cluster' and 'HAC'"):
            lo.covariance(fit, kind, **more)
