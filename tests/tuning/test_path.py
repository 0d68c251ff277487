"""`lo.path`: every estimate of it against refits from scratch, and the choices that it makes
against their definitions.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.special
from flint import arb
from sklearn.linear_model import ElasticNet, RidgeCV
from sklearn.model_selection import KFold, LeaveOneGroupOut

import leaveout as lo
from leaveout.linalg.enclosure_theorem import RadiusTable
from leaveout.refit import _penalty_stack
from leaveout.refit._anchor import linear_cache
from leaveout.refit._single_rows import draw_rows, next_term, one_row
from leaveout.tuning import path as _path
from leaveout.tuning.ridge_path import ridges
from tests.helpers import cox, regression, toy_hmm
from tests.oracles.balls import lasso, matrix

ALPHAS = np.logspace(-2, 3, 6)


def least_squares(n=60, p=4, seed=0, **kwargs):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * [1.0, 3.0, 0.3, 1.0][:p] + 2.0
    return lo.GLM(X, X @ rng.standard_normal(p) + 5 + rng.standard_normal(n), "squared", **kwargs)


def logistic(n=50, p=3, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return lo.GLM(X, (rng.random(n) < 1 / (1 + np.exp(-X.sum(1)))).astype(float), "logistic")


def without(objective, alpha, rows):
    """Least squares without some rows, by the normal equations; residuals of those rows."""
    X, y = objective.design, objective.y - (0.0 if objective.offset is None else objective.offset)
    omega = np.ones(len(y)) if objective.sample_weight is None else objective.sample_weight.copy()
    omega[rows] = 0
    P = np.diag(
        np.r_[np.full(objective.num_features, alpha), np.zeros(X.shape[1] - objective.num_features)]
    )
    return y[rows] - X[rows] @ np.linalg.solve((X.T * omega) @ X + P, (X.T * omega) @ y)


def refitted(objective, alpha, plan):
    """Held-out logistic losses of a plan by refits from scratch: Newton's steps to the floor."""
    X, y, out = objective.design, objective.y, np.full(len(plan.index), np.nan)
    P = np.diag(np.r_[np.full(X.shape[1] - 1, alpha), 0.0])
    for k, weights in enumerate(plan.matrix()):
        theta, step = np.zeros(X.shape[1]), np.array(np.inf)
        while np.abs(step).max() > 1e-12:
            mu = 1 / (1 + np.exp(-X @ theta))
            step = np.linalg.solve(
                (X.T * (weights * mu * (1 - mu))) @ X + P, X.T @ (weights * (mu - y)) + P @ theta
            )
            theta -= step
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        eta = X[plan.index[mine]] @ theta
        out[mine] = np.logaddexp(0, eta) - y[plan.index[mine]] * eta
    return out


def test_ridges_are_scikit_learns():
    objective = least_squares(200)
    found = lo.path(objective, ALPHAS, lo.leave_one_out())
    host = RidgeCV(ALPHAS, store_cv_results=True).fit(objective.design[:, :-1], objective.y)
    assert found.best.value == host.alpha_
    np.testing.assert_allclose(
        np.array([e.losses for e in found.estimates]).T,
        host.cv_results_ / 2,
        rtol=1e-10,
        atol=1e-12,
    )
    np.testing.assert_allclose(found.best.fit.parameters["coef"], host.coef_, rtol=1e-9)
    assert all(e.proved.all() and e.error.max() < 1e-10 for e in found.estimates)


@pytest.mark.parametrize(
    "kind", ["plain", "weights and offset", "no intercept", "no intercept, weights"]
)
@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.Exact(), lo.NewtonStep()], ids=lambda refit: type(refit).__name__
)
def test_ridges_are_refits(kind, refit):
    rng, more = np.random.default_rng(2), {}
    if "weights" in kind:
        more |= {"sample_weight": np.where(rng.random(60) < 0.1, 0.0, rng.gamma(2.0, 0.5, 60))}
    if "offset" in kind:
        more |= {"offset": rng.standard_normal(60)}
    objective, plan = least_squares(intercept="no" not in kind, **more), lo.leave_one_out(60)
    found = lo.path(objective, ALPHAS, plan, strategy=refit)
    for alpha, estimate in zip(ALPHAS, found.estimates, strict=True):
        truth = 0.5 * np.concatenate([without(objective, alpha, [i]) for i in range(60)]) ** 2
        off = np.abs(estimate.losses - truth)
        assert (off <= estimate.error + 1e-12 * (1 + truth)).all() and off.max() < 1e-9
        model = lo.GLM(
            *rows_of(objective),
            "squared",
            lo.penalties.Ridge(alpha),
            intercept=objective.intercept,
            **more,
        )
        one = lo.cross_validate(lo.fit(model), plan, strategy=refit)
        np.testing.assert_allclose(estimate.losses, one.losses, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(estimate.baseline, one.baseline, rtol=1e-9, atol=1e-11)
        assert (estimate.result == one.result).all() and estimate.proved.all()
        assert estimate.mean == pytest.approx(one.mean, rel=1e-10) and estimate.se == pytest.approx(
            one.se, rel=1e-8
        )
    np.testing.assert_allclose(
        [point.mean for point in found.points], [e.mean for e in found.estimates], rtol=1e-13
    )
    assert found.best.value == found.table()["mean"].idxmin()


def rows_of(objective):
    return objective.design[:, : objective.num_features], objective.y


def test_plans_may_be_numbers_splitters_and_groups():
    model, site = logistic(), np.arange(50) % 7
    folds = lambda **given: lo.path(model, [0.5, 5.0], **given)
    for given, plan in (
        ({"plan": 5}, lo.stratified(model.y, 5, rng=0)),
        ({"plan": KFold(4)}, lo.from_splits(KFold(4).split(site), 50)),
        ({"plan": 3, "groups": site}, lo.groups(site, 3)),
        ({"plan": LeaveOneGroupOut(), "groups": site}, lo.groups(site)),
    ):
        ours, theirs = folds(**given), folds(plan=plan)
        assert [point.mean for point in ours.points] == pytest.approx(
            [point.mean for point in theirs.points], rel=1e-12
        )
        assert ours.plan.num_refits == plan.num_refits
        build = lambda l2: model.under(lo.penalties.Ridge(l2))
        found, want = (
            lo.tune(build, {"l2": (0.1, 10.0)}, num_trials=3, num_outer_folds=0, **each)
            for each in (given, {"plan": plan})
        )
        assert found.hyper == want.hyper
    with pytest.raises(TypeError, match="a Plan has its own"):
        folds(plan=lo.leave_one_out(50), groups=site)


def test_more_columns_than_rows(n=12, p=30):
    rng = np.random.default_rng(3)
    objective = lo.GLM(rng.standard_normal((n, p)), rng.standard_normal(n), "squared")
    found = lo.path(objective, [0.1, 1.0, 10.0], lo.leave_one_out())
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        truth = 0.5 * np.concatenate([without(objective, alpha, [i]) for i in range(n)]) ** 2
        np.testing.assert_allclose(estimate.losses, truth, rtol=1e-8)


def test_what_rounding_takes_goes_the_usual_way():
    """Columns of scales 1e7 apart.

    The errors of the eigendecomposition are too large, those of the factor are not.
    """
    objective = least_squares()
    X, y = rows_of(objective)
    X = X * [1e7, 1.0, 1.0, 1.0]
    wide = lo.GLM(X, y, "squared")
    assert ridges(wide, np.array([1e-3]), lo.leave_one_out(60)).bad.all()
    found = lo.path(wide, [1e-3, 1.0], lo.leave_one_out())
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        one = lo.cross_validate(
            lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(alpha))), lo.leave_one_out()
        )
        np.testing.assert_allclose(estimate.losses, one.losses, rtol=1e-6)


def test_errors_hold_for_columns_that_repeat():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 2))
    X = np.c_[x, x[:, 0] + 1e-4 * rng.standard_normal(40), 1e3 + x[:, 1]]
    objective = lo.GLM(X, x @ [1.0, 2.0] + rng.standard_normal(40), "squared")
    alphas, X, y = (
        np.array([1e-6, 1e-3, 1.0]),
        np.c_[X, np.ones(40)].astype(np.longdouble),
        objective.y,
    )
    found = ridges(objective, alphas, lo.leave_one_out(40))
    for alpha, losses, error in zip(alphas, found.losses, found.error, strict=True):
        truth = np.array([0.5 * float(_residual(X, y, alpha, i)) ** 2 for i in range(40)])
        assert (np.abs(losses - truth) <= error).all()


def _residual(X, y, alpha, row):
    """Of one row left out, in long double: Gauss with pivots."""
    keep = np.arange(len(y)) != row
    P = np.diag(np.r_[np.full(X.shape[1] - 1, alpha), 0.0]).astype(np.longdouble)
    A = np.c_[X[keep].T @ X[keep] + P, X[keep].T @ y[keep].astype(np.longdouble)]
    for k in range(len(A)):
        pivot = k + np.argmax(np.abs(A[k:, k]))
        A[[k, pivot]] = A[[pivot, k]]
        A[k] /= A[k, k]
        others = np.arange(len(A)) != k
        A[others] -= np.multiply.outer(A[others, k], A[k])
    return y[row] - X[row] @ A[:, -1]


@pytest.mark.parametrize(
    "plan", [lo.leave_one_out(50), lo.kfold(50, 5, rng=0)], ids=["rows", "folds"]
)
def test_logistic_is_refits(plan):
    objective = logistic()
    found = lo.path(objective, [10.0, 0.1, 1.0], plan, strategy=lo.Exact())
    assert found.values.tolist() == [10.0, 0.1, 1.0]
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        np.testing.assert_allclose(estimate.losses, refitted(objective, alpha, plan), rtol=1e-6)
    certified = lo.path(objective, [10.0, 0.1, 1.0], plan)
    for mine, exact in zip(certified.estimates, found.estimates, strict=True):
        off = np.abs(np.add.reduceat(mine.losses - exact.losses, plan.indptr[:-1]))
        assert (off <= mine.error + exact.error + 1e-9).mean() > 0.9 and abs(
            mine.mean - exact.mean
        ) < 0.01 * exact.se


def glm(kind, n=80, p=3, seed=4):
    """Logistic or Poisson rows, plain, weighed or offset."""
    rng, more = np.random.default_rng(seed), {}
    X = rng.standard_normal((n, p)) * [1.0, 0.5, 2.0][:p]
    eta = X @ [0.8, -0.5, 0.4][:p]
    if "weights" in kind:
        more["sample_weight"] = np.where(rng.random(n) < 0.1, 0.0, rng.gamma(2.0, 0.5, n))
    if "offset" in kind:
        more["offset"] = 0.5 * rng.standard_normal(n)
    poisson = "poisson" in kind
    y = rng.poisson(np.exp(eta)) if poisson else rng.random(n) < 1 / (1 + np.exp(-eta))
    return lo.GLM(
        X,
        y * 1.0,
        "poisson" if poisson else "logistic",
        intercept="no intercept" not in kind,
        **more,
    )


def from_scratch(objective, penalty, plan):
    """Held-out losses of a plan by Newton's refits to the floor, of logistic and Poisson rows."""
    X, y = objective.design.astype(float), objective.y
    offset = np.zeros(len(y)) if objective.offset is None else objective.offset
    own = np.ones(len(y)) if objective.sample_weight is None else objective.sample_weight
    P = np.zeros((X.shape[1],) * 2)
    P[: objective.num_features, : objective.num_features] = penalty
    poisson, out = "Poisson" in repr(objective.loss_function), []
    for weights, row in zip(plan.matrix() * own, plan.index, strict=True):
        theta = np.zeros(X.shape[1])
        for _ in range(100):
            eta = X @ theta + offset
            mu = np.exp(eta) if poisson else 1 / (1 + np.exp(-eta))
            bend = mu if poisson else mu * (1 - mu)
            step = np.linalg.solve(
                (X.T * (weights * bend)) @ X + P, X.T @ (weights * (mu - y)) + P @ theta
            )
            theta -= step / max(1.0, np.abs(step).max())
            if np.abs(step).max() < 1e-13:
                break
        eta = X[row] @ theta + offset[row]
        out.append(np.exp(eta) - y[row] * eta if poisson else np.logaddexp(0, eta) - y[row] * eta)
    return np.array(out)


def constant(objective):
    """What our Poisson loss has beside μ − yη."""
    return (
        scipy.special.gammaln(objective.y + 1)
        if "Poisson" in repr(objective.loss_function)
        else 0.0
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("ratio", [1.0, 0.5], ids=["lasso", "elastic net"])
@pytest.mark.parametrize("ugly", ["a row x 1,000", "near columns", "columns 1e±4"])
def test_proved_rows_of_a_lasso_path_are_those_of_300_bits(ratio, ugly):
    """Without any allowance for rounding."""
    rng, seen = np.random.default_rng(4), 0
    X = rng.normal(size=(24, 20))
    if ugly == "near columns":
        X[:, 1] = X[:, 0] + 1e-5 * X[:, 1]
    X = X * 1e3 ** (np.arange(24) == 0)[:, None] if ugly == "a row x 1,000" else X
    X = X * 10.0 ** rng.uniform(-4, 4, 20) if ugly == "columns 1e±4" else X
    y = X[:, :3] @ [1.0, -1.0, 0.5] / np.std(X[:, 0]) + rng.normal(size=24)
    alphas = np.abs(X.T @ y).max() * np.array([0.3, 0.1, 0.03, 0.01, 0.003])
    penalties = [
        lo.penalties.Lasso(a) if ratio == 1 else lo.penalties.ElasticNet(a, 0.5) for a in alphas
    ]
    objective = lo.GLM(X, y, "squared", penalties[0], intercept=False)
    found = lo.path(objective, penalties, lo.leave_one_out(), audit=0)
    for alpha, estimate in zip(alphas, found.estimates, strict=True):
        for i in np.flatnonzero(estimate.proved):
            keep = np.arange(24) != i
            host = ElasticNet(
                alpha / 23, l1_ratio=ratio, fit_intercept=False, tol=1e-12, max_iter=100_000
            ).fit(X[keep], y[keep])
            beta = lasso(X[keep], y[keep], alpha * ratio, alpha * (1 - ratio), host.coef_)
            if beta is not None:
                some = np.flatnonzero(host.coef_)
                loss = ((matrix([X[i, some]]) * beta).entries()[0] - arb(float(y[i]))) ** 2 / 2
                assert abs(loss - arb(float(estimate.losses[i]))) <= arb(float(estimate.error[i]))
                seen += 1
    assert seen > 10


KINDS = (
    "logistic",
    "logistic, weights and offset",
    "logistic, no intercept",
    "poisson",
    "poisson, weights and offset",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("affordable", [1e8, 0.0], ids=["gradients", "the next term"])
@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.NewtonStep()], ids=lambda refit: type(refit).__name__
)
def test_rows_side_by_side_are_refits(kind, affordable, refit, monkeypatch):
    """Errors hold, those that are proved without exception; and no penalty went the general way."""
    monkeypatch.setattr(_penalty_stack, "AFFORDABLE", affordable)
    monkeypatch.setattr(_penalty_stack.single_rows, "SIZES", (32, 2048))
    monkeypatch.setattr(_path, "EstimateBuilder", None)
    objective, plan = glm(kind), lo.leave_one_out(80)
    found = lo.path(objective, [0.3, 1.0, 30.0, 3.0], plan, strategy=refit)
    assert found.values.tolist() == [0.3, 1.0, 30.0, 3.0]
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        truth = from_scratch(objective, alpha * np.eye(3), plan) + constant(objective)
        off = np.abs(estimate.losses - truth)
        assert (off <= estimate.error + 1e-11)[estimate.proved].all()
        assert (off <= estimate.error + 1e-11).mean() > 0.95 and (
            off <= 2 * estimate.error + 1e-11
        ).all()
        fit = lo.fit(
            lo.GLM(*rows_of(objective), **settings(objective), penalty=lo.penalties.Ridge(alpha))
        )
        one = lo.cross_validate(fit, plan, strategy=refit)
        assert (estimate.proved >= one.proved).all() if affordable else not estimate.proved.all()
        np.testing.assert_allclose(estimate.baseline, one.baseline, rtol=1e-9, atol=1e-12)
        assert (
            np.abs(estimate.losses - one.losses) <= estimate.error + one.error + 1e-11
        ).mean() > 0.95
        if isinstance(refit, lo.NewtonStep):
            np.testing.assert_allclose(estimate.losses, one.losses, rtol=1e-8, atol=1e-12)
        else:
            assert estimate.error.mean() <= 2 * refit.rtol * estimate.scale
        point = found.points[found.values.get_loc(alpha)]
        assert point.mean == pytest.approx(
            estimate.mean, rel=1e-12
        ) and estimate.se == pytest.approx(one.se, rel=0.01)
        np.testing.assert_allclose(point.fit.theta, fit.theta, rtol=1e-7, atol=1e-9)


def settings(objective):
    known = {"loss": objective.loss_function, "intercept": objective.intercept}
    return known | {"sample_weight": objective.sample_weight, "offset": objective.offset}


def test_parts_of_some_rows(monkeypatch):
    """Rows in any order, some not scored, some that keep a share of their weight.

    Under penalties that are no ridges.
    """
    monkeypatch.setattr(_path, "EstimateBuilder", None)
    unit = np.random.default_rng(0).permutation(80)[:50]
    weight = np.where(np.arange(50) % 5 == 0, 0.4, 0.0)
    plan = lo.Plan(np.arange(51), unit, weight, (weight == 0) & (np.arange(50) % 3 > 0), 80)
    smooth = np.diff(np.eye(3), axis=0).T @ np.diff(np.eye(3), axis=0)
    named = {
        "smooth": lo.penalties.Quadratic(2 * smooth),
        "each": lo.penalties.Ridge([1.0, 2.0, 3.0]),
        "none": lo.penalties.Zero(),
    }
    named["both"] = named["each"] + named["smooth"]
    second = {"smooth": 2 * smooth, "each": np.diag([1.0, 2.0, 3.0]), "none": 0.0}
    objective = glm("logistic, weights")
    for label, estimate in zip(
        named, lo.path(objective, named, plan, strategy=lo.Certified(1e-6)).estimates, strict=True
    ):
        P = second.get(label, second["each"] + second["smooth"])
        truth = from_scratch(objective, P * np.ones((3, 3)), plan)
        off = np.abs(estimate.losses - truth)[plan.held]
        assert (
            (off <= estimate.error[plan.held] + 1e-11).all()
            and estimate.proved.all()
            and off.max() < 1e-6
        )
        assert np.isnan(estimate.losses[~plan.held]).all() and not estimate.error[~plan.held].any()


def test_what_is_not_settled_goes_the_usual_way():
    """A row alone of its kind, which nothing holds without a penalty.

    And rows that their own refits send far away.
    """
    X, y = rows_of(glm("logistic"))
    X = np.c_[X, np.arange(80) == 7]
    plan = lo.leave_one_out(80)
    named = {"none": lo.penalties.Ridge([1.0, 1.0, 1.0, 0.0]), "some": lo.penalties.Ridge(1e-3)}
    y[7:9] = [1.0, 0.0]
    X[8, 3] = 0.5
    for label, estimate in zip(
        named, lo.path(lo.GLM(X, y, "logistic"), named, plan).estimates, strict=True
    ):
        one = lo.cross_validate(lo.fit(lo.GLM(X, y, "logistic", named[label])), plan)
        assert (estimate.result == one.result).all()
        known = np.isfinite(one.losses)
        assert (np.isfinite(estimate.losses) == known).all()
        off = np.abs(estimate.losses - one.losses)[known]
        assert (off <= (estimate.error + one.error)[known] + 1e-9).all()


def alone(seed=0):
    """Poisson rows of which one has a column of its own, and is far from the others."""
    rng = np.random.default_rng(seed)
    y = rng.poisson(1.0, 60) * 1.0
    y[7] = 500.0
    return lo.GLM(np.c_[rng.standard_normal((60, 2)), np.arange(60) == 7], y, "poisson")


@pytest.mark.parametrize("affordable", [1e8, 0.0], ids=["gradients", "the next term"])
@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.NewtonStep()], ids=lambda refit: type(refit).__name__
)
def test_rows_without_which_nothing_is_determined(affordable, refit, monkeypatch):
    """What looks settled by the full fit's Hessian is not: that is no metric of theirs."""
    monkeypatch.setattr(_penalty_stack, "AFFORDABLE", affordable)
    penalties = [lo.penalties.Zero(), lo.penalties.Ridge(1e-3), lo.penalties.Ridge(1e-7)]
    found = lo.path(alone(), penalties, lo.leave_one_out(), strategy=refit)
    for point in found.points:
        one = lo.cross_validate(lo.fit(point.fit.objective), point.estimate.plan, strategy=refit)
        assert (point.estimate.result == one.result).all() and np.isnan(point.mean) == np.isnan(
            one.losses
        ).any()
        np.testing.assert_allclose(point.estimate.losses[7], one.losses[7], rtol=1e-8)
    assert found.best.value != 0 and found.estimates[0].result[7] == lo.RESULTS.undetermined


@pytest.mark.parametrize(
    "seed", [3, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (9, 11, 15))]
)
def test_hard_paths_are_cross_validation(seed):
    """Rare levels, weights that differ by orders of magnitude, penalties down to nothing: every
    loss is as far from the exact one as is reported, and exists where it does for a penalty by
    itself."""
    rng = np.random.default_rng(seed)
    n, poisson = int(rng.integers(20, 50)), seed % 2
    X = np.c_[
        rng.standard_normal((n, 2)), np.arange(n) < 1, (np.arange(n) >= 1) & (np.arange(n) < 4)
    ]
    eta = X[:, 0] - X[:, 1]
    y = (
        rng.poisson(np.exp(eta)) * 1.0
        if poisson
        else (rng.random(n) < 1 / (1 + np.exp(-eta))) * 1.0
    )
    y[:2] = (30.0, 1.0) if poisson else (1.0, 0.0)
    weight = np.exp(rng.uniform(0, 3) * rng.standard_normal(n))
    objective = lo.GLM(X, y, "poisson" if poisson else "logistic", sample_weight=weight)
    alphas, plan = 10 ** rng.uniform(-8, 1, 4), lo.leave_one_out(n)
    named = {"none": lo.penalties.Ridge([0.0, 0.0, float(not poisson), 0.0])} | {
        a: lo.penalties.Ridge(a) for a in alphas
    }
    for refit in (lo.Certified(), lo.NewtonStep()):
        for point in lo.path(objective, named, plan, strategy=refit).points:
            one, exact = (
                lo.cross_validate(lo.fit(point.fit.objective), plan, strategy=other)
                for other in (refit, lo.Exact())
            )
            mine = point.estimate
            assert (np.isnan(mine.losses) == np.isnan(one.losses)).all()
            off, known = (
                np.abs(mine.losses - exact.losses),
                np.isfinite(mine.error) & np.isfinite(exact.error),
            )
            assert (off <= mine.error + exact.error + 1e-9 * (1 + exact.losses))[known].all()


def stack_of(objective, alphas, plan):
    named = {alpha: lo.penalties.Ridge(alpha) for alpha in alphas}
    model = _path._predictors(objective, list(named.values()))
    theta = np.stack(list(_path._minimisers(objective, model, named).values()))
    leaving = _penalty_stack.Leaving(plan.index, plan.weight, plan.held)
    return _penalty_stack.Stack(
        model, _path._seconds(objective, list(named.values())), theta, leaving, len(theta)
    )


def test_the_next_term_of_a_stack_is_the_sum_it_says(monkeypatch):
    monkeypatch.setattr(_penalty_stack.single_rows, "SIZES", (40, 50))
    objective, alphas, plan = glm("poisson, weights"), [0.5, 2.0, 40.0], lo.leave_one_out(80)
    stack = stack_of(objective, alphas, plan)
    lanes = np.arange(0, 240, 3)
    look = stack.look.take(lanes)
    whole, some = stack.term(lanes, None), stack.term(lanes, 40)
    for k in range(3):
        fit = lo.fit(
            lo.GLM(
                *rows_of(objective), **settings(objective), penalty=lo.penalties.Ridge(alphas[k])
            )
        )
        anchor, unit = linear_cache(fit), np.arange(80)
        own = one_row(fit, unit, np.zeros(80))
        mine = np.flatnonzero(stack.penalty[lanes] == k)
        row = look.unit[mine]
        for part in ("center", "step_length", "kept_share", "lost_curvature"):
            np.testing.assert_allclose(
                getattr(look, part)[mine], getattr(own, part)[row], rtol=1e-6, atol=1e-9
            )
        np.testing.assert_allclose(look.half[mine], own.half[row], rtol=1e-6, atol=1e-13)
        term = next_term(anchor, own, None)
        np.testing.assert_allclose(
            whole.move[mine], term.move[row], rtol=1e-4, atol=1e-4 * np.abs(term.move).max()
        )
        np.testing.assert_allclose(
            whole.size[mine], term.size[row], rtol=1e-4, atol=1e-4 * term.size.max()
        )
        z = anchor.whiten(unit)
        cube = (z @ z[row].T) ** 3 * (1 - np.equal.outer(unit, row))
        (third,) = anchor.model.loss.derivatives(anchor.eta, anchor.model.y, (3,))
        along = own.lost_curvature * (anchor.slope + anchor.curvature * (own.center - anchor.eta))
        index, chance = (part[:40] for part in draw_rows(stack.anchor(1)))
        each = (anchor.weight * third)[index, None] * cube[index] / (40 * chance[:, None])
        scale = 0.5 * (along**2 / own.kept_share)[row]
        np.testing.assert_allclose(
            some.move[mine], -scale * each.sum(0), rtol=1e-4, atol=1e-4 * np.abs(term.move).max()
        )
        np.testing.assert_allclose(
            some.spread[mine], scale * np.sqrt((each**2).sum(0)), rtol=1e-4, atol=1e-9
        )


def test_a_row_far_out_hides_no_terms(monkeypatch):
    """Of rows a thousand times as long, whose curvature is next to nothing, the others' terms are
    told as well.
    """
    monkeypatch.setattr(_penalty_stack.single_rows, "SIZES", (40, 50))
    X, y = rows_of(glm("logistic"))
    X = X.copy()
    X[5] *= 1e4
    y[5] = float(X[5] @ [0.8, -0.5, 0.4] > 0)
    far = lo.GLM(X, y, "logistic")
    stack = stack_of(far, [1.0], lo.leave_one_out(80))
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    unit = np.delete(np.arange(80), 5)
    found = stack.term(unit, None)
    term = next_term(linear_cache(fit), one_row(fit, np.arange(80), np.zeros(80)).take(unit), None)
    np.testing.assert_allclose(
        found.move, term.move, rtol=1e-3, atol=1e-4 * np.abs(term.move).max()
    )
    assert (stack.term(unit, 40).spread > 0).all()


@pytest.mark.parametrize("offset", [1e3, 5e4])
def test_columns_that_nearly_repeat_lose_no_digits_of_the_next_term(offset):
    X, y = rows_of(glm("logistic"))
    stack = stack_of(
        lo.GLM(X + np.array([0.0, offset, 0.0]), y, "logistic"), [1.0], lo.leave_one_out(80)
    )
    lanes = np.arange(80)
    found = stack.term(lanes, None)
    z = stack.design.x @ stack.root[0]
    cube = (z @ z.T) ** 3 * (1 - np.eye(80))
    row, third = stack.look, stack.model.loss.derivatives(stack.eta[0], y, (3,))[0]
    along = row.lost_curvature * (stack.slope[0] + stack.curvature[0] * (row.center - stack.eta[0]))
    off = found.move + 0.5 * along**2 / row.kept_share * (third @ cube)
    assert not stack.bad.any() and np.abs(off).max() < 1e-4 * np.abs(found.move).max()


def test_what_refits_under_a_penalty_share_is_that_of_its_fit():
    objective, alphas = glm("poisson, weights"), [0.5, 2.0, 40.0]
    stack = stack_of(objective, alphas, lo.leave_one_out(80))
    for k, alpha in enumerate(alphas):
        fit = lo.fit(
            lo.GLM(*rows_of(objective), **settings(objective), penalty=lo.penalties.Ridge(alpha))
        )
        anchor, other = stack.anchor(k), linear_cache(fit)
        for name in ("theta", "eta", "weight", "loss", "slope", "curvature", "norm", "size"):
            np.testing.assert_allclose(
                getattr(anchor, name), getattr(other, name), rtol=1e-6, atol=1e-9
            )
        np.testing.assert_allclose(
            anchor.rows @ anchor.rows.T, other.rows @ other.rows.T, rtol=1e-6, atol=1e-9
        )
        assert np.linalg.norm(anchor.leftover) < 1e-6
        assert 0.1 < anchor.rounding.step / other.rounding.step < 10
        assert 0.1 < anchor.noise / other.noise < 10


def test_tables_of_several_anchors_are_those_of_each():
    stack = stack_of(glm("logistic"), [0.1, 1.0, 100.0], lo.leave_one_out(80))
    slope, kept = np.geomspace(1e-4, 1.0, 240), np.linspace(0.3, 1.0, 240)
    for moved in (None, 0.5 * slope):
        found = stack.table.ball(slope, kept, np.ones(240), moved, stack.penalty)
        for k in range(3):
            mine, size = stack.penalty == k, stack.norm[k] ** 2
            parts = (
                stack.model.loss,
                stack.model.y,
                stack.eta[k],
                stack.curvature[k],
                size,
                stack.norm[k],
            )
            own = RadiusTable(*parts, None, stack.curvature_rounding[k])
            alone = own.ball(
                slope[mine], kept[mine], np.ones(80), None if moved is None else moved[mine]
            )
            for part, other in zip(found, alone, strict=True):
                np.testing.assert_allclose(part[mine], other, rtol=1e-12)


def test_groups_of_penalties_are_one_path(monkeypatch):
    """As many as fit into a cache at a time, with what all together may cost."""
    objective, plan = glm("poisson"), lo.leave_one_out(80)
    whole = lo.path(objective, ALPHAS, plan)
    monkeypatch.setattr(_penalty_stack, "TOGETHER", 200)
    parts = lo.path(objective, ALPHAS, plan)
    for one, other in zip(whole.estimates, parts.estimates, strict=True):
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-10)
        np.testing.assert_allclose(one.error, other.error, rtol=1e-6)
    assert len(_penalty_stack.groups(6, whole.points[0].fit.quadratic.predictors)) == 3


def test_copies_are_told_of_every_estimate(monkeypatch):
    """Whichever way it was made."""
    X, y = rows_of(glm("poisson"))
    X[3], y[3] = X[9], y[9]
    monkeypatch.setattr(_penalty_stack, "TOGETHER", 1)
    named = [lo.penalties.Ridge(1.0), lo.penalties.Ridge(2.0), lo.penalties.PseudoHuber(1.0, 0.1)]
    found = lo.path(lo.GLM(X, y, "poisson"), named, lo.leave_one_out())
    assert all(
        "2 rows are seen by their own refits in a copy" in str(each) for each in found.estimates
    )


def test_one_standard_error_by_its_definition():
    found = lo.path(least_squares(40, seed=7), np.logspace(-2, 4, 20), lo.leave_one_out())
    table = found.table()
    losses = found.best.estimate.losses
    limit = table["mean"].min() + losses.std(ddof=1) / np.sqrt(40)
    assert found.best.value == table["mean"].idxmin()
    assert (
        found.one_standard_error.value
        == table.index[table["mean"] <= limit].max()
        > found.best.value
    )
    grouped = lo.path(
        least_squares(40, seed=7), np.logspace(-2, 4, 20), lo.groups(np.arange(40) % 8)
    )
    limit = grouped.best.mean + grouped.best.estimate.se
    assert (
        grouped.one_standard_error.value
        == grouped.values[[p.mean <= limit for p in grouped.points]].max()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [cox, lambda: regression("negative_binomial")], ids=["Cox", "dispersion"]
)
def test_of_each_model(make):
    objective = make()
    plan = lo.kfold(objective.num_units, 4, rng=0)
    for point in lo.path(objective, [1.0, 4.0], plan).points:
        one = lo.cross_validate(lo.fit(point.fit.objective), plan)
        assert point.estimate.mean == pytest.approx(one.mean, abs=0.02 * one.scale)


def test_of_each_penalty():
    penalties = [lo.penalties.PseudoHuber(a, 0.1) for a in (1.0, 5.0)]
    assert lo.path(logistic(), penalties, lo.leave_one_out()).values.tolist() == [1.0, 5.0]
    averaged = [lo.penalties.per_weight(lo.penalties.Ridge(a)) for a in (0.01, 0.1)]
    plan = lo.kfold(50, 5, rng=0)
    found = lo.path(logistic(), averaged, plan, strategy=lo.Exact())
    one = lo.cross_validate(
        lo.fit(lo.GLM(*rows_of(logistic()), "logistic", averaged[1])), plan, strategy=lo.Exact()
    )
    np.testing.assert_allclose(found.estimates[1].losses, one.losses, rtol=1e-6)
    named = {
        "rough": lo.penalties.Ridge(0.1),
        "smooth": lo.penalties.Quadratic(np.eye(3) * 3),
        "none": lo.penalties.Zero(),
    }
    found = lo.path(logistic(), named, lo.leave_one_out())
    assert found.values.tolist() == list(named) and found.penalties == list(named.values())
    assert lo.path(
        logistic(), [lo.penalties.Zero(), lo.penalties.Ridge(1.0)], plan
    ).values.tolist() == [0, 1]


def test_an_audit_that_misses_is_taken_seriously(monkeypatch):
    repeat = _path.repeat_refits
    miss = lambda *args: tuple(made._replace(beyond=True) for made in repeat(*args))
    monkeypatch.setattr(_path, "repeat_refits", miss)
    found = lo.path(least_squares(), [0.1, 1.0], lo.leave_one_out())
    assert "cross-validated by itself" in str(found) and all(len(e.audit) for e in found.estimates)
    monkeypatch.undo()
    assert "1 refit of the path" in str(lo.path(least_squares(), [0.1, 1.0], lo.leave_one_out()))
    assert "audit" not in str(lo.path(least_squares(), [0.1, 1.0], lo.leave_one_out(), audit=0))


@pytest.mark.parametrize("split", [True, False], ids=["side by side", "one after another"])
def test_audits_are_of_refits_that_exist(split, monkeypatch):
    """Without a row the others are separated where there is no penalty.

    That refit is not the one of the largest error.
    """
    rng = np.random.default_rng(4)
    X = rng.standard_normal((12, 2))
    objective = lo.GLM(X, (rng.random(12) < 1 / (1 + np.exp(-1.5 * X[:, 0]))) * 1.0, "logistic")
    if not split:
        monkeypatch.setattr(_path, "groups", lambda *args: [])
    monkeypatch.setattr(_path, "affordable", lambda *_: 50)
    (alone,) = lo.path(objective, [lo.penalties.Zero()], lo.leave_one_out(), audit=50).estimates
    assert (
        set(alone.audit["refit"])
        == set(np.flatnonzero(alone.result != lo.RESULTS.not_converged))
        < set(range(12))
    )
    assert np.isfinite(alone.audit[["reported", "exact", "error", "difference"]].to_numpy()).all()
    found = lo.path(
        objective, [lo.penalties.Zero(), lo.penalties.Ridge(0.1)], lo.leave_one_out(), audit=50
    )
    monkeypatch.setattr(_path, "affordable", lambda *_: 1)
    value = max(
        found.points,
        key=lambda point: np.mean(point.estimate.error[np.isfinite(point.estimate.error)]),
    ).value
    once = lo.path(objective, [lo.penalties.Zero(), lo.penalties.Ridge(0.1)], lo.leave_one_out())
    assert [point.value for point in once.points if point.estimate.audit is not None] == [value]


def test_labels_are_kept_and_matched():
    objective = least_squares()
    X = pd.DataFrame(rows_of(objective)[0], index=[f"row {i}" for i in range(60)])
    labelled = lo.GLM(X, pd.Series(objective.y, X.index), "squared")
    groups = pd.Series(np.arange(60) % 7, X.index)
    found = lo.path(labelled, [1.0, 10.0], lo.groups(groups.sample(frac=1.0, random_state=0)))
    plain = lo.path(objective, [1.0, 10.0], lo.groups(groups.to_numpy()))
    np.testing.assert_allclose(
        [p.mean for p in found.points], [p.mean for p in plain.points], rtol=1e-10
    )
    assert found.estimates[0].table()["unit"].str.startswith("row").all()
    assert lo.path(labelled, [1.0], lo.leave_one_out()).estimates[0].names()[3] == "row 3"


def test_findings_are_told_by_their_codes():
    """Of the best in whole, of the others which codes are found where.

    In one way with estimates.
    """
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_normal((40, 2)), np.arange(40) == 7]
    objective = lo.GLM(X, X[:, 0] + rng.standard_normal(40), "squared")
    found = lo.path(objective, [lo.penalties.Zero(), lo.penalties.Ridge(1.0)], lo.leave_one_out())
    assert np.isnan(found.points[0].mean) and found.best is found.points[1]
    lines = dict(found._lines())
    assert (
        lines["checks"] == str(found.best.estimate.checks()[0])
        and lines["elsewhere"] == "LO304 under 0"
    )
    tuned = lo.tune(
        lambda a: objective.under(lo.penalties.Ridge(a)), {"a": (0.1, 10.0)}, lo.leave_one_out()
    )
    assert dict(tuned._lines())["checks"] == str(tuned.estimate.checks()[0])
    assert not {"flagged"} & ({*lines} | {name for name, _ in tuned._lines()})


def test_printed_and_drawn():
    pytest.importorskip("matplotlib")
    found = lo.path(least_squares(), ALPHAS, lo.leave_one_out())
    assert (
        "best" in str(found)
        and "<table>" in found._repr_html_()
        and "held-out" in repr(found.points[0])
    )
    assert list(found.table()) == [
        "mean",
        "se",
        "no_update",
        "approximation_error",
        "proved",
        "flagged",
    ]
    ax = found.plot()
    assert ax.get_xscale() == "log" and any(
        "best" in text.get_text() for text in ax.get_legend().get_texts()
    )
    named = {"a": lo.penalties.Ridge(1.0), "b": lo.penalties.Ridge(2.0)}
    drawn = lo.path(logistic(), named, lo.kfold(k=5)).plot()
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["a", "b"]


def test_bad_input():
    objective, plan = least_squares(), lo.leave_one_out(60)
    for alphas in ([0.0, 1.0], [1.0, 1.0], [np.nan], [[1.0]], [-1.0], []):
        with pytest.raises(ValueError, match="path: "):
            lo.path(objective, alphas, plan)
    with pytest.raises(TypeError, match="got ToyHMM"):
        lo.path(toy_hmm(), [1.0], plan)
    with pytest.raises(TypeError, match="got Fit, give its"):
        lo.path(lo.fit(objective), [1.0], plan)
    with pytest.raises(ValueError, match="for 50 units"):
        lo.path(objective, [1.0], lo.leave_one_out(50))
    with pytest.raises(TypeError, match="Plan"):
        lo.path(objective, [1.0], "5")
    with pytest.raises(TypeError, match="strategy"):
        lo.path(objective, [1.0], plan, strategy="exact")
    with pytest.raises(ValueError, match="whole number"):
        lo.path(objective, [1.0], plan, audit=0.5)
    with pytest.raises(ValueError, match="shape"):
        lo.path(objective, [lo.penalties.Ridge(np.ones(3))], plan)
    with pytest.raises(ValueError, match="take the place of PerWeight"):
        lo.path(
            lo.GLM(
                *rows_of(objective), "squared", lo.penalties.per_weight(lo.penalties.Ridge(1.0))
            ),
            [1.0],
            plan,
        )
    X = np.arange(20.0)[:, None]
    separated = lo.GLM(X, (X[:, 0] > 9).astype(float), "logistic")
    with warnings.catch_warnings(), pytest.raises(RuntimeError) as raised:
        warnings.simplefilter("ignore")
        lo.path(separated, {"none": lo.penalties.Zero()}, lo.leave_one_out(20))
    assert "penalty none" in raised.value.__notes__[0]
