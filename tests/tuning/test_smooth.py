"""Additive models: bases against quadrature, criteria against differences and refits, and mgcv's
own figures.
"""

import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy
from matplotlib.figure import Figure

import leaveout as lo
from leaveout.models.smooth import bases as bases
from leaveout.optimize.hessian_factor import IndefiniteHessianError
from leaveout.tuning.hypergradient import loss_shares
from leaveout.tuning.smooth import (
    Neighbourhoods,
    PenalisedRows,
    RestrictedLikelihood,
    _least,
    data_of,
    minimum,
)
from leaveout.tuning.smooth_curves import _jackknife, _scoring
from tests.helpers import call

R = Path(os.environ.get("LEAVEOUT_DATA", "nowhere")) / "latent"


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    data = pd.DataFrame(
        {"x": rng.uniform(0, 1, n), "z": rng.uniform(-1, 2, n), "g": rng.choice(list("abc"), n)}
    )
    data["v"], data["exposure"] = rng.standard_normal(n), rng.uniform(0.5, 2, n)
    data["eta"] = (
        np.sin(6 * data.x)
        + data.z**2 / 3
        + 0.3 * data.v
        + data.g.map({"a": 0.0, "b": 0.4, "c": -0.3})
    )
    data["y"] = data.eta + 0.4 * rng.standard_normal(n)
    data["count"] = rng.poisson(data.exposure * np.exp(data.eta / 2))
    data["hit"] = (rng.random(n) < scipy.special.expit(data.eta)) * 1.0
    return data


@pytest.fixture(scope="module")
def found():
    return lo.smooth(
        lo.Additive("y ~ s(x, k=6) + s(z, k=5, bs='cr') + v", table()), lo.blocks(60, 1, buffer=2)
    )


# bases


@pytest.mark.parametrize("kind", ["tp", "cr", "cc"])
def test_a_penalty_is_the_integral_of_the_squared_second_derivative(kind):
    x = np.sort(np.random.default_rng(1).uniform(0, 5, 40))
    x[[0, -1]] = 0.0, 5.0
    basis = (
        bases.thin_plate("s", x[:, None], 7)
        if kind == "tp"
        else bases.cubic("s", x, 7, None, cyclic=kind == "cc")
    )
    at = np.linspace(0, 5, 40001)
    design = basis.design(at[:, None] if kind == "tp" else at)
    beta = np.random.default_rng(2).standard_normal(design.shape[1])
    bend = np.diff(design @ beta, 2) / (at[1] - at[0]) ** 2
    # a thin-plate spline is of columns of deviation one
    scale = 1 if kind != "tp" else x.std() ** 3
    assert beta @ basis.penalties[0] @ beta == pytest.approx(
        scale * np.sum(bend**2) * (at[1] - at[0]), rel=2e-3
    )


def test_splines_go_on_straight_and_periodic_ones_start_again():
    x = np.linspace(0, 10, 30)
    for basis in (bases.cubic("s", x, 6, None, cyclic=False), bases.b_splines("s", x, 7)):
        left, right = (
            basis.design(np.array(at)) for at in ([-3.0, -2.0, -1.0], [11.0, 12.0, 13.0])
        )
        np.testing.assert_allclose(np.diff(left, 2, axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(np.diff(right, 2, axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(
            basis.design(np.array([10.0])), basis.design(np.array([10 + 1e-9])), atol=1e-7
        )
    cyclic = bases.cubic("s", x, 6, (0.0, 12.0), cyclic=True)
    np.testing.assert_allclose(
        cyclic.design(np.array([0.0, 3.0, -1.0])), cyclic.design(np.array([12.0, 15.0, 11.0]))
    )


def test_a_product_is_of_every_function_with_every_other():
    rng = np.random.default_rng(0)
    x, z = rng.uniform(size=(2, 25))
    one, other = bases.cubic("s", x, 4, None, cyclic=False), bases.b_splines("s", z, 5)
    whole = bases.tensor([one, other])
    np.testing.assert_allclose(
        whole.design(x, z), scipy.linalg.khatri_rao(one.design(x).T, other.design(z).T).T
    )
    np.testing.assert_allclose(whole.penalties[0], np.kron(one.penalties[0], np.eye(5)))
    np.testing.assert_allclose(whole.penalties[1], np.kron(np.eye(4), other.penalties[0]))


def test_a_markov_penalty_is_over_edges_and_sites_without_data_are_told_by_neighbours():
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])
    data = pd.DataFrame({"site": np.repeat([0, 1, 3], 8)})
    data["y"] = data.site + np.random.default_rng(0).standard_normal(24) / 10
    model = lo.Additive([lo.terms.s("site", bs="mrf", edges=edges)], data, "y")
    term = model.smooths["s(site)"][0]
    coef = np.random.default_rng(1).standard_normal(3)
    effect = term.basis.design(np.arange(4)) @ coef
    ratio = (
        coef
        @ term.basis.penalties[0]
        @ coef
        / np.sum((effect[edges[:, 0]] - effect[edges[:, 1]]) ** 2)
    )
    other = np.random.default_rng(2).standard_normal(3)
    moved = term.basis.design(np.arange(4)) @ other
    assert other @ term.basis.penalties[0] @ other == pytest.approx(
        ratio * np.sum((moved[edges[:, 0]] - moved[edges[:, 1]]) ** 2)
    )
    told = lo.tuning.mean_interval(lo.fit(model), pd.DataFrame({"site": [0, 1, 2, 3]}))[
        "prediction"
    ].to_numpy()
    assert told[2] == pytest.approx((told[1] + told[3]) / 2, abs=1e-6)
    with pytest.raises(ValueError, match="no site"):
        lo.tuning.mean_interval(lo.fit(model), pd.DataFrame({"site": [7]}))


# the model


def test_terms_sum_to_zero_and_the_fit_is_a_penalised_glm():
    data = table()
    formula = "count ~ s(x, k=6) + te(x, z, k=4) + s(z, by=g, k=4) + s(g, bs='re') + v"
    model = lo.Additive(formula, data, loss="poisson", offset=np.log(data.exposure), smoothing=2.0)
    design = np.asarray(model.design)
    for name, (_, span) in model.smooths.items():
        if name != "s(g)" and ":" not in name:
            np.testing.assert_allclose(design[:, span].sum(0), 0, atol=1e-9)
    assert model.strengths[:4] == ("s(x)", "te(x, z)1", "te(x, z)2", "s(z):g[a]")
    weights = np.random.default_rng(0).uniform(0, 2, 60)
    theta = np.random.default_rng(1).standard_normal(design.shape[1]) / 10
    eta = design @ theta + np.log(data.exposure)
    F = weights @ (np.exp(eta) - data["count"] * eta + scipy.special.gammaln(data["count"] + 1))
    F += theta[:-1] @ model.penalty.second(design.shape[1] - 1) @ theta[:-1] / 2
    assert float(call(model.loss, theta, weights)) == pytest.approx(F)


def test_formulas_lists_and_tables_of_others_are_one():
    data = table()
    one = lo.fit(lo.Additive("y ~ s(x, k=6) + v + C(g)", data))
    for terms, of, y in (
        ([lo.terms.s("x", k=6), "v + C(g)"], data, "y"),
        (["s(x, k=6)", "v", "C(g)"], data, data["y"].to_numpy()),
        ("y ~ s(x, k=6) + v + C(g)", pl.from_pandas(data), None),
        ("y ~ s(x, k=6) + v + C(g)", {name: data[name].to_numpy() for name in data}, None),
    ):
        other = lo.fit(lo.Additive(terms, of, y))
        np.testing.assert_allclose(np.sort(one.vector), np.sort(other.vector), rtol=1e-9)
    expression = lo.Additive("y ~ s(exp(x), k=5) + 0", data.assign(y=data.y - data.y.mean()))
    assert not expression.intercept and "s(exp(x))" in expression.smooths
    assert pickle.loads(pickle.dumps(one.objective)).strengths == ("s(x)",)


def test_new_rows_are_read_as_those_of_the_fit_were(found):
    data = table()
    told = lo.tuning.mean_interval(found, data.iloc[::-1])
    eta = np.asarray(found.model.design) @ found.fit.vector
    np.testing.assert_allclose(told["prediction"].to_numpy()[::-1], eta)
    assert (
        told.index[0] == 59
        and (told.low < told.prediction).all()
        and (told.prediction < told.high).all()
    )
    new = lo.interval(found.fit, data.head(4))
    np.testing.assert_allclose(new["prediction"], eta[:4])
    with pytest.raises(KeyError, match="'z' is no column"):
        lo.tuning.mean_interval(found, data[["x", "v"]])
    with pytest.raises(ValueError, match="no offset"):
        lo.tuning.mean_interval(found, data, offset=np.ones(60))


# the criteria

PLANS = {
    "rows": lambda: lo.leave_one_out(60),
    "windows": lambda: lo.blocks(60, 1, buffer=4),
    "folds": lambda: lo.kfold(60, 4, rng=0),
    "resamples": lambda: lo.bootstrap(60, 12, rng=1),
}


def criterion(plan, loss="poisson", y="count"):
    data = table()
    terms = "s(x, k=6) + ti(x, z, k=3)" if loss == "logistic" else "s(x, k=7) + s(z, k=5, bs='ps')"
    more = {"sample_weight": data.exposure, "offset": data.v / 5}
    model = lo.Additive(f"{y} ~ {terms}", data, loss=loss, **more)
    of = data_of(model)
    return model, Neighbourhoods(
        of, plan, loss_shares(plan, of.weight), np.asarray(model.parameters.start(0))
    )


def differences(value, rho):
    return [(value(rho + 1e-5 * e) - value(rho - 1e-5 * e)) / 2e-5 for e in np.eye(len(rho))]


@pytest.mark.parametrize("plan", PLANS)
def test_the_slope_is_that_of_the_criterion_and_the_criterion_that_of_newton_steps(plan):
    model, V = criterion(PLANS[plan]())
    rho = np.array([0.7, -0.4])
    looked = V(rho)
    np.testing.assert_allclose(looked.slope, differences(lambda rho: V(rho).value, rho), rtol=1e-5)
    cv = lo.cross_validate(
        lo.fit(model.smoothed(np.exp(rho))), PLANS[plan](), strategy=lo.NewtonStep(), audit=0
    )
    assert looked.value == pytest.approx(cv.mean, rel=1e-10)
    np.testing.assert_allclose(looked.losses[cv.plan.held], cv.losses[cv.plan.held], rtol=1e-8)
    for unit in (0, 31):
        ends = []
        for weight in (1e-4, -1e-4):
            one = V.model.weight.copy()
            one[unit] *= 1 + weight
            share = V.share * np.where(V.plan.index == unit, 1 + weight, 1)
            of = PenalisedRows(
                V.model.x,
                V.model.offset,
                V.model.y,
                one,
                V.model.loss,
                V.model.matrices,
                V.model.spans,
            )
            ends.append(Neighbourhoods(of, V.plan, share, V.theta)(rho).value)
        assert looked.by_weight[unit] == pytest.approx(
            (ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-9
        )


def test_three_penalties_of_a_logistic_one():
    _, V = criterion(lo.blocks(60, 2, buffer=2), "logistic", "hit")
    rho = np.array([1.0, 0.3, -0.5])
    np.testing.assert_allclose(
        V(rho).slope, differences(lambda rho: V(rho).value, rho), rtol=1e-5, atol=1e-9
    )


def test_a_restricted_likelihood_is_that_of_the_mixed_model():
    data = table()
    model = lo.Additive("y ~ s(x, k=7) + s(z, k=5, bs='ps') + v", data)
    of = data_of(model)
    ours = RestrictedLikelihood(of, True, np.zeros(of.x.shape[1]))

    def direct(rho):  # y ~ N(Xb, s² (I + Z Z'))
        values, vectors = np.linalg.eigh(of.penalty(rho))
        seen = values > 1e-9 * values[-1]
        Z, X = of.x @ vectors[:, seen] / np.sqrt(values[seen]), of.x @ vectors[:, ~seen]
        V = np.eye(60) + Z @ Z.T
        inner = X.T @ np.linalg.solve(V, X)
        rest = of.y - X @ np.linalg.solve(inner, X.T @ np.linalg.solve(V, of.y))
        left = 60 - X.shape[1]
        variance = rest @ np.linalg.solve(V, rest) / left
        determinants = np.linalg.slogdet(V)[1] + np.linalg.slogdet(inner)[1]
        return (determinants + left * (1 + np.log(2 * np.pi * variance))) / 2

    one, other = np.array([1.0, -0.5]), np.array([2.0, 1.0])
    assert ours(one).value - ours(other).value == pytest.approx(
        direct(one) - direct(other), rel=1e-8
    )
    np.testing.assert_allclose(ours(one).slope, differences(direct, one), rtol=1e-4)


def test_a_restricted_likelihood_of_counts_has_the_slope_of_itself():
    _, V = criterion(lo.leave_one_out(60))
    ours, rho = RestrictedLikelihood(V.model, False, V.theta), np.array([0.7, -0.4])
    np.testing.assert_allclose(
        ours(rho).slope, differences(lambda rho: ours(rho).value, rho), rtol=1e-5
    )


def test_what_is_found_is_a_minimum_and_that_of_tune(found):
    assert found.value == pytest.approx(found.criterion(found.rho).value)
    for e in np.eye(2):
        for sign in (0.1, -0.1):
            assert found.criterion(found.rho + sign * e).value > found.value
    space = {
        name: tuple(np.exp(ends)) for name, ends in zip(found.smoothing, found.bounds, strict=True)
    }
    start = {name: 2 * value for name, value in found.smoothing.items()}
    tuned = lo.tune(found.model.smoothed, space, found.plan, start=start, num_outer_folds=0)
    np.testing.assert_allclose(np.log(list(tuned.hyper.values())), found.rho, atol=0.02)
    assert {"λ", "degrees", "nested"} <= {name for name, _ in found._lines()}
    with pytest.raises(ValueError, match="not chosen by a held-out loss"):
        _ = lo.smooth(found.model, found.plan, "REML").nested


@pytest.mark.slow
def test_exact_refits_finish_it():
    model, plan = (
        lo.Additive("hit ~ s(x, k=6)", table(), loss="logistic"),
        lo.blocks(60, 1, buffer=3),
    )
    one, finished = lo.smooth(model, plan), lo.smooth(model, plan, exact=True)
    value = lambda rho: (
        lo.cross_validate(
            lo.fit(model.smoothed(np.exp(rho))), plan, strategy=lo.Exact(1e-10), audit=0
        ).mean
    )
    assert value(finished.rho) <= value(one.rho)
    slope = [(value(found.rho + 0.1) - value(found.rho - 0.1)) / 0.2 for found in (one, finished)]
    assert abs(slope[1]) < 0.6 * abs(slope[0])


def test_choosing_again_in_every_refit_is_told_to_first_order():
    data = table(40, seed=4)
    found = lo.smooth(lo.Additive("y ~ s(x, k=8)", data), lo.leave_one_out())
    losses, rho = [], []
    for row in range(40):
        fewer = found.criterion.without(np.arange(40) == row)
        rho.append(_least(fewer, found.rho, found.bounds).rho)
        here = minimum(fewer.model, rho[-1], found.fit.vector)
        losses.append(fewer.model.derivatives(here.eta, (0,))[0][row])
    moved = np.array(rho)[:, 0] - found.rho[0]
    told = np.log(found.nested.smoothing["s(x)"].to_numpy()) - found.rho[0]
    assert np.corrcoef(moved, told)[0, 1] > 0.9 and np.std(told) == pytest.approx(
        np.std(moved), rel=0.3
    )
    exact = lo.cross_validate(found.fit, found.plan, strategy=lo.Exact()).mean
    assert found.nested.optimism == pytest.approx(np.mean(losses) - exact, rel=0.3)


# intervals


def test_the_jackknife_is_of_refits():
    data = table()
    model = lo.Additive("y ~ s(x, k=6)", data, smoothing=3.0)
    of, plan = data_of(model), lo.blocks(60, 3, buffer=2)
    here = minimum(of, np.log([3.0]), np.zeros(of.x.shape[1]))
    total = np.zeros((of.x.shape[1],) * 2)
    refit = lambda keep: np.linalg.solve(
        of.x[keep].T @ of.x[keep] + here.penalty, of.x[keep].T @ of.y[keep]
    )
    for k in range(plan.num_refits):
        mine = plan.refit == k
        far, near = plan.index[mine], plan.index[mine & plan.held]
        parts = [here.theta - refit(~np.isin(np.arange(60), out)) for out in (near, far)]
        total += np.outer(*parts)
    total = (total + total.T) / 2
    ours = _jackknife(of, here, *_scoring(plan), None)
    back = np.linalg.inv(here.root)
    # without what is negative of it, in the norm of H
    values, vectors = np.linalg.eigh(back.T @ total @ back)
    positive = (vectors * np.maximum(values, 0)) @ vectors.T
    np.testing.assert_allclose(back.T @ ours @ back, positive, atol=1e-10 * np.abs(values).max())


def test_without_a_plan_intervals_are_those_of_the_prior():
    data = table()
    fit = lo.fit(lo.Additive("count ~ s(x, k=6)", data, loss="poisson", smoothing=3.0))
    table_, model = lo.tuning.curves(fit, num_points=9), fit.objective
    design = model.smooths["s(x)"][0].basis.design(table_[["x"]].to_numpy())
    covariance = np.linalg.inv(fit.hessian)[:5, :5]
    np.testing.assert_allclose(table_["se"], np.sqrt(np.diag(design @ covariance @ design.T)))
    np.testing.assert_allclose(table_["high"] - table_["value"], 1.959964 * table_["se"], rtol=1e-6)
    np.testing.assert_allclose(table_["value"], design @ fit.parameters["coef"])


def test_intervals_are_wider_where_errors_depend_on_one_another():
    rng = np.random.default_rng(0)
    error = scipy.signal.lfilter([0.3], [1, -0.8], rng.standard_normal(200))
    data = pd.DataFrame({"t": np.arange(200) / 200, "y": np.sin(np.arange(200) / 30) + error})
    model = lo.Additive("y ~ s(t)", data, smoothing=10.0)
    fit = lo.fit(model)
    alone, near = lo.tuning.curves(fit), lo.tuning.curves(fit, lo.blocks(200, 1, buffer=12))
    assert near["se"].mean() > 1.5 * alone["se"].mean()
    rows = lo.tuning.curves(fit, lo.leave_one_out(200))
    assert rows["se"].mean() == pytest.approx(alone["se"].mean(), rel=0.25)


def test_every_kind_of_term_is_drawn():
    data = table()
    model = lo.Additive(
        "y ~ s(x, k=5) + ti(x, z, k=4) + s(g, bs='re') + s(z, by=v, k=5, bs='cr')", data
    )
    found = lo.fit(model)
    for term in model.smooths:
        ax = Figure().subplots()
        assert lo.plot.smooth(found, term, ax, plan=lo.leave_one_out(60)) is ax and ax.has_data()
    with pytest.raises(ValueError, match="term must be one of"):
        lo.plot.smooth(found, "s(w)")


# what is refused


@pytest.mark.parametrize(
    ("terms", "error", "said"),
    [
        ("y ~ v", ValueError, "no smooth term"),
        ("y ~ s(x):v", ValueError, "multiplies a smooth term"),
        ("y ~ s(x) + s(x)", ValueError, "no formula|twice"),
        ("y ~ s(x, k=200)", ValueError, "k must lie|fewer than k"),
        ("y ~ s(w)", KeyError, "'w' is no column"),
        ("y ~ s(x, bs='zz')", ValueError, "bs must be one of"),
        ("y ~ s(x, q=3)", TypeError, "unexpected keyword"),
        ("y ~ s(gap)", ValueError, "NaN or infinite"),
        ("y ~ s(g)", TypeError, "must hold numbers"),
        ("y ~ s(x", ValueError, "no formula"),
        ("s(x)", ValueError, "name the response once"),
        ("y ~ s(g, bs='mrf')", ValueError, "needs edges"),
        ("y ~ te(x)", ValueError, "two columns or more"),
        ("y ~ s(x, bs='cr', k=2)", ValueError, "whole number"),
    ],
)
def test_terms_that_make_no_model_say_why(terms, error, said):
    data = table().assign(gap=lambda d: d.x.where(d.x > 0.1))
    if terms == "y ~ s(x) + s(x)":
        terms = [lo.terms.s("x"), lo.terms.s("x"), "y ~ v"]
    with pytest.raises(error, match=said):
        lo.Additive(terms, data)


def test_smoothing_that_cannot_be_chosen_says_why():
    data = table()
    model = lo.Additive("y ~ s(x, k=6) + te(x, z, k=4)", data)
    with pytest.raises(IndefiniteHessianError, match=r"take ti\(\)"):
        lo.smooth(model, lo.leave_one_out(60))
    fine = lo.Additive("y ~ s(x, k=6)", data)
    for refused, error, said in (
        (
            lambda: lo.smooth(lo.GLM(data[["x"]], data.y, "squared"), lo.leave_one_out()),
            TypeError,
            "must be a lo.Additive",
        ),
        (lambda: lo.smooth(fine), ValueError, "needs a plan"),
        (lambda: lo.smooth(fine, lo.leave_one_out(), "GCV"), ValueError, "method is"),
        (lambda: lo.smooth(fine, lo.leave_one_out(50)), ValueError, "60"),
        (lambda: lo.smooth(fine, method="REML", exact=True), ValueError, "goes with method='NCV'"),
        (lambda: fine.smoothed({"s(w)": 1.0}), ValueError, "a λ for each of s"),
        (lambda: fine.smoothed([-1.0]), ValueError, "not negative"),
        (
            lambda: lo.smooth(lo.Additive("hit ~ s(x, k=6)", data, loss="gamma"), method="REML"),
            ValueError,
            "dispersion|y ",
        ),
        (lambda: lo.tuning.curves(lo.fit(fine), level=2.0), ValueError, "level must lie"),
        (lambda: lo.tuning.curves(fine), TypeError, "what lo.smooth found"),
    ):
        with pytest.raises(error, match=said):
            refused()


def test_a_refit_that_determines_too_little_is_no_number():
    data = pd.DataFrame({"x": np.r_[np.zeros(10), np.linspace(1, 2, 20)], "y": np.arange(30.0)})
    model = lo.Additive("y ~ s(x, k=5) + C(g)", data.assign(g=np.arange(30) < 3))
    with pytest.raises(IndefiniteHessianError, match="does not determine"):
        lo.smooth(model, lo.groups(np.arange(30) < 3))


# mgcv's figures


@pytest.mark.skipif(not R.exists(), reason="R's data are not there")
@pytest.mark.parametrize(
    ("case", "theirs"), [("200_binomial_5", 246.4126386), ("500_poisson_8", 1288.481081)]
)
def test_mgcv_has_the_same_basis_the_same_criterion_and_the_same_choice(case, theirs):
    n, family, h = (int(part) if part.isdigit() else part for part in case.split("_"))
    data = pd.read_csv(next(R.glob(f"ncv_{case}.csv*")))
    S, b = (pd.read_csv(R / f"{name}_{case}.csv").to_numpy() for name in ("S", "b"))
    X, y = data.iloc[:, 4:].to_numpy(), data["y"].to_numpy()
    model = lo.Additive(
        "y ~ s(x, k=40)", data[["x", "y"]], loss={"binomial": "logistic"}.get(family, family)
    )
    design = np.asarray(model.design)[:, :-1]
    turn = np.linalg.lstsq(np.c_[X, np.ones(n)], design, rcond=None)[0]
    np.testing.assert_allclose(np.c_[X, np.ones(n)] @ turn, design, atol=1e-6)
    own, other = model.penalty.matrices[0], turn[:-1].T @ S @ turn[:-1]
    ratio = np.trace(other) / np.trace(own)
    np.testing.assert_allclose(other / ratio, own, atol=1e-7 * np.abs(own).max())
    found = lo.smooth(model, lo.blocks(n, 1, buffer=h))
    saturated = (
        0.0
        if family == "binomial"
        else float(np.sum(y - scipy.special.xlogy(y, y) + scipy.special.gammaln(y + 1)))
    )
    assert 2 * (n * found.value - saturated) == pytest.approx(theirs, rel=1e-8)
    eta, pulled = np.c_[np.ones(n), X] @ b[:, 0], S @ b[1:, 0]
    mean = scipy.special.expit(eta) if family == "binomial" else np.exp(eta)
    sp = pulled @ (X.T @ (y - mean)) / (pulled @ pulled)
    assert found.rho[0] - np.log(ratio) == pytest.approx(np.log(sp), abs=1e-3)


def test_newton_steps_that_are_far_from_refits_are_told():
    """A heavy row of a large count.

    Where it leaves, one Newton step goes far too far, and so would all that is made of it.
    """
    data = table(40).assign(w=1.0)
    data.loc[0, ["count", "w"]] = 400, 1000.0
    found = lo.smooth(
        lo.Additive("count ~ s(x, k=6)", data, loss="poisson", sample_weight="w"),
        lo.leave_one_out(),
    )
    assert abs(found.value - found.estimate.mean) > 0.1 * found.estimate.scale
    with pytest.warns(UserWarning, match="one Newton step a refit makes that loss"):
        _ = found.nested
    assert "one Newton step a refit" in str(found) and "λ chosen again" not in str(found)


def test_what_a_first_order_says_little_of_is_told():
    """A λ that stays at a bound, and refits whose λ goes far: of six rows of thirty."""
    model = lo.Additive("y ~ s(v, k=6)", table())
    stuck = lo.smooth(model, lo.leave_one_out(), start={"s(v)": 1e300})
    assert stuck.at_bound and "λ at a bound held there" in str(stuck)
    found = lo.smooth(lo.Additive("y ~ s(z, k=6)", table(30)), lo.kfold(k=5))
    far = np.sum(abs(np.log(found.nested.smoothing["s(z)"] / found.smoothing["s(z)"])) > 1.999)
    assert far and f"which says little of {far} refits" in str(found)


def test_a_box_is_left_once_the_slope_out_of_it_is_all_that_matters():
    """Two terms, one of them four e-folds from the start.

    18 looks, if each box were searched to its end.
    """
    r = np.random.default_rng(0)
    frame = pd.DataFrame({"x": r.random(500), "z": r.random(500)})
    frame["y"] = np.sin(6 * frame.x) + frame.z**2 + 0.3 * r.standard_normal(500)
    found = lo.smooth(lo.Additive("y ~ s(x) + s(z)", frame), lo.leave_one_out())
    assert found.looks <= 14 and np.abs(found.criterion(found.rho).slope).max() < 1e-6
