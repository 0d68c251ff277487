"""Sandwich covariances.

Statsmodels' where it has them, finite differences of weighted fits elsewhere.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from jax.flatten_util import ravel_pytree

import leaveout as lo
from tests.helpers import OBJECTIVES, fitted, minimiser

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
    "Poisson": lambda **c: sm.GLM(COUNT, FRAME, sm.families.Poisson()).fit(
        tol=1e-14, tol_criterion="params", **c
    ),
    "probit": lambda **c: sm.GLM(ILL, FRAME, sm.families.Binomial(sm.families.links.Probit())).fit(
        tol=1e-14, **c
    ),
    "gamma": lambda **c: sm.GLM(
        np.exp(COST / 4), FRAME, sm.families.Gamma(sm.families.links.Log())
    ).fit(tol=1e-14, **c),
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
    "cluster, as it is": (
        {"groups": SITE, "use_correction": False},
        {"groups": SITE, "use_correction": False},
    ),
    "HAC": ({"maxlags": 4}, {"maxlags": 4}),
    "HAC, corrected": (
        {"maxlags": 3, "use_correction": True},
        {"maxlags": 3, "use_correction": True},
    ),
}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("kind", KINDS)
def test_statsmodels_sandwiches(host, kind):
    cov_type, (theirs, ours) = kind.split(",")[0], KINDS[kind]
    results = HOSTS[host](cov_type=cov_type, **({"cov_kwds": theirs} if theirs else {}))
    want = results.cov_params()
    found = lo.covariance(lo.from_statsmodels(HOSTS[host]()), cov_type, **ours)
    order = [*FRAME.columns, *(["dispersion"] if len(found) == 4 else [])]
    np.testing.assert_allclose(
        found.loc[order, order], want, rtol=1e-8, atol=1e-8 * np.abs(np.asarray(want)).max()
    )


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
        np.testing.assert_allclose(
            lo.covariance(lo.from_statsmodels(results), "nonrobust"),
            results.cov_params(),
            rtol=1e-8,
        )


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
    """∂θ̂/∂w_n of every unit, natural.

    By Newton's method on F with that weight a little up and down.
    """
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
    np.testing.assert_allclose(lo.covariance(fit, "HC0"), slopes.T @ slopes, rtol=1e-5)


def sequences():
    """Series of one hidden chain's law, short and many: they are the units."""
    draw = np.random.default_rng(5)
    series = []
    for _ in range(14):
        state = np.cumsum(draw.random(8) < 0.3) % 2
        series.append(draw.poisson(np.where(state, 9.0, 2.0)).astype(float))
    return lo.HMM(
        np.concatenate(series), lo.emissions.Poisson(), 2, lengths=[8] * 14, drop="sequence"
    )


@pytest.mark.slow
def test_whole_sequences_of_a_hidden_markov_model():
    model = sequences()
    fit = lo.fit(model, num_starts=1)
    unravel = ravel_pytree(fit.theta)[1]

    def natural(weights):
        theta = minimiser(model, fit.theta, weights)
        return ravel_pytree(model.parameters.natural(unravel(theta)))[0]

    moved = 3e-2 * np.eye(model.num_units)
    slopes = np.array([(natural(1 + row) - natural(1 - row)) / (2 * 3e-2) for row in moved])
    found = lo.covariance(fit)
    names = [name.split("[")[0] for name in found]
    assert names.count("rate") == 2 and names.count("transition") == 4
    np.testing.assert_allclose(found, slopes.T @ slopes, rtol=2e-3, atol=1e-6)
    rows = found.loc["transition[0, 0]"] + found.loc["transition[0, 1]"]
    np.testing.assert_allclose(rows, 0, atol=1e-12)  # they sum to one


def test_what_has_no_sandwich():
    ols = lo.from_statsmodels(HOSTS["OLS"]())
    refused = [
        (ValueError, "kind must be one of 'nonrobust', 'HC0'", dict(kind="white")),
        (ValueError, "groups goes with kind='cluster'", dict(kind="cluster")),
        (
            ValueError,
            "small_sample must be one of 'stata'",
            dict(kind="cluster", groups=SITE, small_sample="sas"),
        ),
        (
            ValueError,
            "goes with kind='cluster'; got 'CRV3'. fixest has no CRV3",
            dict(kind="CRV3", groups=SITE, small_sample="fixest"),
        ),
        (
            ValueError,
            "two ways to name one factor",
            dict(kind="cluster", groups=SITE, small_sample="stata", use_correction=True),
        ),
        (ValueError, "cases=True is not for jackknife", dict(kind="jackknife", cases=True)),
        (ValueError, "maxlags goes with kind='HAC'", dict(kind="HAC")),
        (
            ValueError,
            "maxlags must be a whole number from 0 to 89",
            dict(kind="HAC", maxlags=90),
        ),
        (
            ValueError,
            "maxlags must be a whole number from 0 to 89",
            dict(kind="HAC", maxlags=np.nan),
        ),
        (ValueError, "at least two groups", dict(kind="cluster", groups=np.zeros(N))),
        (ValueError, "one label a unit, 90; got 3", dict(kind="cluster", groups=[1, 2, 3])),
        (
            ValueError,
            "missing labels",
            dict(kind="cluster", groups=np.where(SITE == 1, np.nan, SITE)),
        ),
    ]
    for error, words, given in refused:
        with pytest.raises(error, match=words):
            lo.covariance(ols, **given)
    with pytest.raises(TypeError, match="must be a Fit"):
        lo.covariance(FRAME)
    twice = lo.fit(lo.GLM(FRAME.assign(again=FRAME.age)[["age", "dose", "again"]], COST, "squared"))
    with pytest.raises(
        ValueError, match=r"do not determine every parameter, among them 'age', 'again'"
    ):
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
    with pytest.raises(
        ValueError, match="depend on their neighbours; HC0 takes them for independent"
    ):
        lo.covariance(fit)
    np.testing.assert_allclose(lo.covariance(fit, "HAC", maxlags=5), host.cov_params(), rtol=1e-8)
    assert list(lo.covariance(fit, "HAC", maxlags=0)) == ["m"]


def test_few_groups_are_warned_of_and_labels_are_matched():
    frame = FRAME.set_axis([f"p{k}" for k in range(N)])
    fit = lo.fit(lo.GLM(frame[["age", "dose"]], pd.Series(COST.to_numpy(), frame.index), "squared"))
    site = pd.Series(np.repeat(np.arange(9), 10), frame.index)
    with pytest.warns(
        UserWarning, match="9 groups are fewer than 20.*'CRV3', for every model, and 'CR2'"
    ):
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
    more = {"cluster": {"groups": SITE}, "HAC": {"maxlags": 2, "use_correction": True}}.get(
        kind, {}
    )
    less = {name: value[out] if name == "groups" else value for name, value in more.items()}
    np.testing.assert_allclose(
        lo.covariance(whole, kind, **more), lo.covariance(without, kind, **less), rtol=1e-9
    )
    if kind == "nonrobust":
        np.testing.assert_allclose(
            lo.diagnostics.cooks_distance(whole)[24:],
            lo.diagnostics.cooks_distance(without),
            rtol=1e-7,
        )
        np.testing.assert_allclose(
            lo.diagnostics.dfbetas(whole).iloc[24:], lo.diagnostics.dfbetas(without), rtol=1e-6
        )


def test_a_correction_that_would_not_be_made_is_refused():
    fit = lo.fit(lo.GLM(FRAME, COST, "squared", intercept=False))
    for kind, more in (
        ("HC0", {"use_correction": True}),
        ("cluster", {"use_correction": "yes", "groups": SITE}),
    ):
        with pytest.raises(
            ValueError,
            match="covariance: use_correction is True or False, of kind='cluster' and 'HAC'",
        ):
            lo.covariance(fit, kind, **more)


@pytest.mark.filterwarnings("ignore:covariance. [236] groups are fewer")
def test_two_ways_add_and_take_away():
    rng = np.random.default_rng(8)
    ways = pd.DataFrame({"site": rng.integers(0, 21, N), "year": rng.integers(0, 24, N)})
    fit = lo.fit(lo.GLM(FRAME[["age", "dose"]], COUNT, "poisson"))
    both = ways.site * 100 + ways.year
    for kind in ("cluster", "CRV3", "jackknife"):
        one, two, joint = (
            lo.covariance(fit, kind, groups=labels) for labels in (ways.site, ways.year, both)
        )
        for given in (ways, ways.to_numpy()):
            found = lo.covariance(fit, kind, groups=given)
            np.testing.assert_allclose(found, one + two - joint, rtol=1e-12)
        assert (found.dof == 20).all()
        if kind == "CRV3":
            found = lo.covariance(fit, kind, groups=ways, strategy=lo.Exact())
            loose = lo.covariance(fit, kind, groups=ways, strategy=lo.Certified(0.3))
            off = (loose.standard_errors - found.standard_errors).abs()
            assert (
                found.proved
                and (off <= loose.errors + found.errors).all()
                and (found.errors < 1e-6).all()
            )
    np.testing.assert_allclose(
        lo.covariance(fit, "CRV3", groups=ways[["site"]]),
        lo.covariance(fit, "CRV3", groups=ways.site),
    )
    with pytest.raises(ValueError, match="two for clusters of two ways, of 'cluster', 'CRV3'"):
        lo.covariance(fit, "JK1", groups=ways)
    with pytest.raises(ValueError, match=r"got shape \(90, 3\)"):
        lo.covariance(fit, "CRV3", groups=ways.assign(third=1))
    few = pd.DataFrame({"a": np.arange(N) % 2, "b": np.arange(N) % 3})
    with pytest.warns(UserWarning, match="negative eigenvalue"):
        lo.covariance(fit, "cluster", groups=few)


@pytest.mark.parametrize("kind", ["CRV3", "CR3", "CRV3J"])
def test_the_jackknife_does_not_count_rows_of_weight_zero(kind):
    weight = np.where(SITE < 4, 0.0, WEIGHT)
    whole = lo.fit(lo.GLM(FRAME[["age"]], COUNT, "poisson", sample_weight=weight))
    out = SITE >= 4
    without = lo.fit(lo.GLM(FRAME[["age"]][out], COUNT[out], "poisson", sample_weight=weight[out]))
    found, want = (
        lo.covariance(whole, kind, groups=SITE),
        lo.covariance(without, kind, groups=SITE[out]),
    )
    np.testing.assert_allclose(found, want, rtol=1e-8)
    assert (found.dof == want.dof).all()


def test_kinds_of_the_jackknife():
    fit = lo.fit(lo.GLM(FRAME[["age", "dose"]], COST, "squared"))
    np.testing.assert_allclose(
        lo.covariance(fit, "HC3-exact"), lo.covariance(fit, "HC3"), rtol=1e-9
    )
    thetas = np.array([
        np.linalg.lstsq(FRAME[["age", "dose", "const"]][np.arange(N) != k], COST[np.arange(N) != k], rcond=None)[0]
        for k in range(N)
    ])  # fmt: skip
    want = (N - 1) / N * np.cov(thetas.T, bias=True) * N
    np.testing.assert_allclose(lo.covariance(fit, "jackknife"), want, rtol=1e-9)
    np.testing.assert_allclose(lo.covariance(fit, "JK1"), want, rtol=1e-9)
    grouped = lo.covariance(fit, "CRV3", groups=SITE)
    np.testing.assert_allclose(lo.covariance(fit, "CR3", groups=SITE), grouped * 30 / 29)
    np.testing.assert_allclose(
        lo.covariance(fit, "JKn", groups=SITE, strata=SITE * 0),
        lo.covariance(fit, "JK1", groups=SITE),
    )
    strata = lo.covariance(fit, "jkn", groups=SITE, strata=SITE // 15)
    np.testing.assert_allclose(strata, lo.survey.replicates(fit, lo.survey.jkn(SITE // 15, SITE)))
    assert (strata.dof == 28).all() and (grouped.dof == 29).all()
    refused = [
        ("groups goes with kind='cluster' or 'CR2' or 'CRV3'", dict(kind="CRV3")),
        ("groups goes with", dict(kind="HC3-exact", groups=SITE)),
        ("strata goes with kind='JKn', and that with it", dict(kind="JKn")),
        ("strata goes with", dict(kind="JK1", strata=SITE)),
        ("one label a unit, 90; got 3", dict(kind="CRV3", groups=[1, 2, 3])),
        ("at least two groups", dict(kind="CRV3", groups=np.zeros(N))),
        ("missing labels", dict(kind="CRV3", groups=np.where(SITE == 1, np.nan, SITE))),
        (
            "stratum 7 has 1 cluster",
            dict(kind="JKn", groups=SITE, strata=np.where(SITE == 2, 7, 0)),
        ),
    ]
    for words, given in refused:
        with pytest.raises(ValueError, match=words):
            lo.covariance(fit, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # few groups are what the jackknife is for
        lo.covariance(fit, "CRV3", groups=SITE % 3), lo.covariance(fit, "CR2", groups=SITE % 3)
    with pytest.raises(ValueError, match="depend on their neighbours; jackknife without groups"):
        lo.covariance(fitted("hidden Markov"), "jackknife")


@pytest.mark.filterwarnings(
    "ignore:covariance. 3 of the plan's 90", "ignore:replicates. 3 of the plan's 90"
)
def test_labels_of_rows_that_the_fit_dropped_leave_with_them():
    data = FRAME.assign(
        cost=COST, age=FRAME.age.where(FRAME.index % 40 != 7), site=SITE, year=np.arange(N) % 23
    )
    fit = lo.from_statsmodels(sm.formula.ols("cost ~ age", data).fit())
    there, strata = data.dropna(), data.site // 15
    for kind in ("cluster", "CR2", "CRV3", "JK1"):
        want = lo.covariance(fit, kind, groups=there.site)
        np.testing.assert_allclose(lo.covariance(fit, kind, groups=data.site), want, rtol=1e-9)
    both = lo.covariance(fit, "CRV3", groups=data[["site", "year"]])
    np.testing.assert_allclose(
        both, lo.covariance(fit, "CRV3", groups=there[["site", "year"]]), rtol=1e-9
    )
    jkn = lo.survey.replicates(fit, lo.survey.jkn(strata, data.site))
    np.testing.assert_allclose(
        jkn, lo.covariance(fit, "JKn", groups=there.site, strata=strata[there.index]), rtol=1e-9
    )


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    "given",
    [{}, {"cov_type": "HC1"}, {"cov_type": "cluster", "cov_kwds": {"groups": SITE}}],
    ids=str,
)
def test_a_hosts_fit_has_the_hosts_own_standard_errors(host, given):
    results = HOSTS[host](**given)
    found = lo.covariance(lo.from_statsmodels(results))
    table = found.summary().iloc[: len(FRAME.columns)]
    np.testing.assert_allclose(table["std err"], results.bse[:3], rtol=1e-8)
    np.testing.assert_allclose(
        table.filter(like="P>").iloc[:, 0], results.pvalues[:3], rtol=1e-6, atol=1e-12
    )
    assert "as the host has it" in str(found.summary()) and f"{found.kind}: " in str(found)


def test_the_default_is_that_of_the_models_field():
    X = FRAME[["age", "dose"]]
    times, events = np.exp(-FRAME.age - 0.3 * ETA) + 0.01 * np.arange(N), np.arange(N) % 3 > 0
    cases = {
        "gamma": (
            lo.GLM(X, np.exp(COST / 4), "gamma"),
            sm.GLM(np.exp(COST / 4), FRAME, sm.families.Gamma(sm.families.links.Log())),
        ),
        "probit": (
            lo.GLM(X, ILL, "probit"),
            sm.GLM(ILL, FRAME, sm.families.Binomial(sm.families.links.Probit())),
        ),
        "poisson": (lo.GLM(X, COUNT, "poisson"), sm.GLM(COUNT, FRAME, sm.families.Poisson())),
        "least squares": (lo.GLM(X, COST, "squared"), sm.OLS(COST, FRAME)),
        "cox": (lo.Cox(X, times, events * 1.0), sm.PHReg(times, X, events, ties="efron")),
    }
    for name, (model, host) in cases.items():
        found, want = (
            lo.covariance(lo.fit(model)),
            host.fit(**({"tol": 1e-14} if isinstance(host, sm.GLM) else {})),
        )
        np.testing.assert_allclose(
            found.standard_errors[["age", "dose"]],
            np.asarray(want.bse)[-2:],
            rtol=1e-6,
            err_msg=name,
        )
        assert found.kind == ("expected" if name in ("gamma", "probit") else "nonrobust")
    for penalised in (
        lo.GLM(X, COST, "squared", lo.penalties.Ridge(1.0)),
        lo.GLM(X, COST, "huber"),
    ):
        assert lo.covariance(lo.fit(penalised)).kind == "HC0"
    assert "Ridge: standard errors do not count its bias" in str(
        lo.covariance(lo.fit(lo.GLM(X, COST, "squared", lo.penalties.Ridge(1.0))))
    )
    with pytest.raises(TypeError, match="not there for an l1 penalty"):
        lo.covariance(lo.fit(lo.GLM(X, COST, "squared", lo.penalties.Lasso(1.0))))
    with pytest.raises(TypeError, match="'expected' is for a GLM of one linear predictor"):
        lo.covariance(lo.fit(cases["cox"][0]), "expected")


@pytest.mark.parametrize(
    "loss, y", [("squared", COST), ("poisson", COUNT), ("gamma", np.exp(COST / 4))]
)
def test_weights_are_precisions_or_counts_of_cases(loss, y):
    """Without `cases` their scale is nothing; with it a row of weight f is f rows."""
    f, X, y = np.arange(N) % 3 + 1.0, FRAME[["age", "dose"]], np.asarray(y)
    row = np.repeat(np.arange(N), f.astype(int))
    weighted = lo.fit(lo.GLM(X, y, loss, sample_weight=f))
    repeated = lo.fit(lo.GLM(X.iloc[row].reset_index(drop=True), y[row], loss))
    scaled = lo.fit(lo.GLM(X, y, loss, sample_weight=100 * f))
    for kind in (None, "nonrobust", "HC0", "HC1", "HC3", "cluster"):
        groups = {"groups": SITE} if kind == "cluster" else {}
        found = lo.covariance(weighted, kind, cases=True, **groups)
        want = lo.covariance(repeated, kind, **({"groups": SITE[row]} if groups else {}))
        np.testing.assert_allclose(found, want, rtol=1e-7)
        assert (found.dof is None and want.dof is None) or (found.dof == want.dof).all()
        np.testing.assert_allclose(
            lo.covariance(scaled, kind, **groups),
            lo.covariance(weighted, kind, **groups),
            rtol=1e-7,
        )
    assert "normalised to sum to the 90 units" in str(
        lo.covariance(weighted)
    ) and "count cases, 180 in all" in str(found)
    times = np.exp(-FRAME.age) + 0.01 * np.arange(N)
    one, many = (
        lo.covariance(lo.fit(lo.Cox(X, times, SITE % 2 * 1.0, sample_weight=c * f)))
        for c in (1.0, 100.0)
    )
    np.testing.assert_allclose(one, many, rtol=1e-7)
    proportion = lo.fit(lo.GLM(X, ILL / 2, "logistic", trials=np.full(N, 2.0)))
    # trials are counts
    np.testing.assert_allclose(
        lo.covariance(proportion), np.linalg.inv(proportion.hessian), rtol=1e-9
    )


# pyfixest 0.60's standard errors of x and z: feols and fepois, vcov={"CRV1": "cl"}, {"CRV3": "cl"},
# {"CRV1": "cl+year"}
PYFIXEST = {
    ("y", ""): (
        (0.1321584344884, 0.0580030673152),
        (0.1492835396359, 0.0681289023980),
        (0.1436428168952, 0.0426942941112),
    ),
    ("y", "year"): (
        (0.1341944123778, 0.0553841970899),
        (0.1538253071429, 0.0661141302166),
        (0.1406717740196, 0.0343739790532),
    ),
    ("y", "unit"): (
        (0.1174412700316, 0.0717574775728),
        (0.1305622950419, 0.0836576681841),
        (0.1339272066358, 0.0681177627132),
    ),
    ("c", ""): ((0.0536981186600, 0.0439392200275), (0.0621677804309, 0.0523322559379)),
    ("c", "unit"): ((0.0601742022096, 0.0493903019468), (0.0695622868089, 0.0581417324106)),
}


def schools():
    rng, n = np.random.default_rng(81), 240
    d = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "z": rng.normal(size=n),
            "cl": rng.integers(0, 9, n),
            "year": rng.integers(0, 5, n),
        }
    )
    d["unit"] = d["cl"] * 3 + rng.integers(0, 3, n)  # every unit lies in one cluster
    d["y"] = (
        0.5 * d.x
        - 0.3 * d.z
        + 0.7 * rng.normal(size=9)[d.cl] * d.x
        + rng.normal(size=n)
        + 0.3 * d.year
    )
    d["c"] = rng.poisson(np.exp(0.2 + 0.3 * d.x + 0.2 * rng.normal(size=9)[d.cl]))
    return d


@pytest.mark.filterwarnings(
    "ignore:covariance. ([0-9]+ groups|[0-9]+ of 9 refits|V₁)", "ignore:the formula"
)
@pytest.mark.parametrize("response, effects", PYFIXEST)
def test_small_sample_factors_of_pyfixest(response, effects):
    d = schools()
    fit = lo.fit(
        lo.GLM(
            f"{response} ~ x + z{effects and f' + C({effects})'}",
            d,
            "squared" if response == "y" else "poisson",
        )
    )
    for (kind, groups), want in zip(
        (("cluster", "cl"), ("CRV3", "cl"), ("cluster", ["cl", "year"])),
        PYFIXEST[response, effects],
        strict=False,
    ):
        found = lo.covariance(fit, kind, groups=d[groups], small_sample="pyfixest")
        # pyfixest's Poisson stops at 1e-7
        np.testing.assert_allclose(found.standard_errors[["x", "z"]], want, rtol=1e-6)
    nested = (
        "26 columns of factors within clusters do not count" if effects == "unit" else "as pyfixest"
    )
    assert nested in str(found)


@pytest.mark.filterwarnings(
    "ignore:covariance. ([0-9]+ groups|[0-9]+ of 9 refits|V₁)", "ignore:the formula"
)
def test_small_sample_factors_of_other_programs():
    d = schools()
    dummies = pd.get_dummies(d.unit, prefix="unit").astype(float)
    columns = pd.concat([d[["x", "z"]], dummies], axis=1)
    for loss in ("squared", "poisson"):
        fit = lo.fit(lo.GLM(columns.drop(columns="unit_0"), d.c, loss))
        raw = lo.covariance(fit, "cluster", groups=d.cl, use_correction=False)
        usual, crv3 = 9 / 8, lo.covariance(fit, "CR3", groups=d.cl)
        full = usual * 239 / (240 - 29) if loss == "squared" else usual
        for program, factor in (
            ("stata", full),
            ("sandwich", full),
            ("fixest", usual * 239 / (240 - 3)),
        ):
            found = lo.covariance(fit, "cluster", groups=d.cl, small_sample=program)
            np.testing.assert_allclose(found, factor * raw, rtol=1e-12)
        np.testing.assert_allclose(
            lo.covariance(fit, "CRV3", groups=d.cl, small_sample="stata"), crv3 * 8 / 9, rtol=1e-12
        )
    all_levels = lo.fit(lo.GLM(columns, d.c, "squared", intercept=False))
    found = lo.covariance(all_levels, "cluster", groups=d.cl, small_sample="fixest")
    raw = lo.covariance(all_levels, "cluster", groups=d.cl, use_correction=False)
    np.testing.assert_allclose(found, usual * 239 / (240 - 3) * raw, rtol=1e-12)
    far = lo.fit(lo.GLM(columns.drop(columns="unit_0").assign(x=d.x + 1e7), d.c, "squared"))
    assert "K = 3, as fixest" in str(
        lo.covariance(far, "cluster", groups=d.cl, small_sample="fixest")
    )
    # one cluster's dummy is no factor
    treated = lo.fit(lo.GLM(d[["x"]].assign(only=(d.cl == 3) * 1.0), d.c, "squared"))
    assert "K = 3, as fixest" in str(
        lo.covariance(treated, "cluster", groups=d.cl, small_sample="fixest")
    )


def test_tables_say_what_they_are_and_fit_on_a_line():
    fit = lo.fit(
        lo.GLM(
            FRAME.rename(columns={"age": "age of the patient when the first dose was given"}),
            COST,
            "squared",
            intercept=False,
        )
    )
    found = lo.covariance(fit, "CRV3", groups=SITE)
    text = str(found.summary())
    for words in (
        "CRV3: jackknife about the fit",
        "clusters           30",
        "degrees of freedom 29, Student's t",
        "(G − 1)/G",
        "P>|t|",
    ):
        assert words in text
    assert max(map(len, text.splitlines()[5:])) <= 80 and "0.975]" in text
    # what is rounded keeps the head
    assert "clusters           none" in str(lo.covariance(fit).summary().round(2))
    both = lo.covariance(fit, "cluster", groups=np.c_[SITE, np.arange(N) % 23])
    assert "30 and 23 of two ways" in str(both) and "degrees of freedom 22" in str(both)


def test_groups_without_a_kind_are_clusters():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    fit = lo.fit(lo.GLM(X, X[:, 0] + rng.normal(size=60), "squared"))
    group = np.arange(60) // 3
    np.testing.assert_array_equal(
        lo.covariance(fit, groups=group), lo.covariance(fit, "cluster", groups=group)
    )
    assert "cluster" in str(fit.covariance(groups=group))
