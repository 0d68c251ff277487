"""The lasso and the elastic net: fits, refits whose active coefficients change, margins and paths
against coordinate descent."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
import scipy
from sklearn.base import clone
from sklearn.linear_model import (
    ElasticNet,
    ElasticNetCV,
    Lasso,
    LassoCV,
    LogisticRegression,
    lars_path,
)
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import leaveout as lo
from leaveout.models.glm import active_coefficients
from leaveout.optimize import active_set as _active_set
from leaveout.refit import _kinks
from leaveout.tuning import lasso_path as _lasso

TIGHT = {"tol": 1e-13, "max_iter": 10**6}


def made(n=60, p=25, seed=0, correlated=0.0, spread=0.0, loss="squared"):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) + correlated * rng.standard_normal((n, 1))
    eta = X[:, :4] @ [1.0, -0.7, 0.4, 0.2]
    y = {
        "squared": lambda: eta + rng.standard_normal(n) + 1,
        "huber": lambda: eta + rng.standard_t(2, n),
        "logistic": lambda: (eta + rng.logistic(size=n) > 0).astype(float),
        "poisson": lambda: rng.poisson(np.exp(0.5 * eta)).astype(float),
    }[loss]()
    return X, y, np.exp(spread * rng.standard_normal(n))


SLOPES = {
    "logistic": lambda eta, y: (np.logaddexp(0, eta) - y * eta, 1 / (1 + np.exp(-eta)) - y),
    "poisson": lambda eta, y: (
        np.exp(eta) - y * eta + scipy.special.gammaln(y + 1),
        np.exp(eta) - y,
    ),
    "huber": lambda eta, y: (
        np.where(
            abs(eta - y) <= 1.345, 0.5 * (eta - y) ** 2, 1.345 * abs(eta - y) - 0.5 * 1.345**2
        ),
        np.clip(eta - y, -1.345, 1.345),
    ),
}


def by_halves(X, y, w, a, loss, ridge=0.0):
    """The minimiser with its coefficients written as differences of what is not negative, by
    SciPy's L-BFGS-B.
    """
    p = X.shape[1]

    def F(v):
        coef = v[:p] - v[p : 2 * p]
        each, slope = SLOPES[loss](X @ coef + v[-1], y)
        back = X.T @ (w * slope) + ridge * coef
        value = w @ each + a * v[: 2 * p].sum() + 0.5 * ridge * coef @ coef
        return value, np.r_[back + a, a - back, w @ slope]

    bounds = [(0, None)] * (2 * p) + [(None, None)]
    options = {"maxiter": 10**5, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-9, "maxcor": 50}
    found = scipy.optimize.minimize(
        F, np.zeros(2 * p + 1), jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    return found.x[:p] - found.x[p : 2 * p], found.x[-1]


def least_squares(X, y, w, alpha, ratio=1.0):
    """scikit-learn's refit for a penalty beside the sum: its own is beside the mean."""
    seen = w > 0
    host = ElasticNet(alpha / w.sum(), l1_ratio=ratio, **TIGHT).fit(
        X[seen], y[seen], sample_weight=w[seen]
    )
    return host.coef_, host.intercept_


def beyond(found, plan, exact):
    """Refits whose losses are off by more than was said.

    `exact` gives the held-out losses of a refit's weights.
    """
    out = []
    for k, own in enumerate(plan.matrix()):
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        held = plan.held[mine]
        off = np.abs(found.losses[mine][held] - exact(own, plan.index[mine][held])).sum()
        out.append(off > found.error[k] * (1 + 1e-6) + 1e-8)
    return np.array(out)


@pytest.mark.parametrize("spread", [0.0, 2.0])
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_a_fit_is_scikit_learns(ratio, spread):
    X, y, w = made(spread=spread)
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.ElasticNet(8.0, ratio), sample_weight=w))
    coef, intercept = least_squares(X, y, w, 8.0, ratio)
    assert 0 < np.sum(coef != 0) < 25
    np.testing.assert_array_equal(fit.parameters["coef"] != 0, coef != 0)
    np.testing.assert_allclose(fit.parameters["coef"], coef, atol=1e-9)
    np.testing.assert_allclose(fit.parameters["intercept"], intercept, atol=1e-9)
    assert f"{np.sum(coef != 0)} of 25 penalised coefficients are not zero" in str(fit)
    assert lo.fit(fit.objective).parameters["coef"] == pytest.approx(
        fit.parameters["coef"], abs=1e-12
    )


@pytest.mark.parametrize("loss", ["logistic", "poisson", "huber"])
def test_a_fit_is_that_of_another_solver(loss):
    X, y, w = made(loss=loss, spread=0.5, p=12)
    penalty = lo.penalties.Lasso(4.0) + lo.penalties.Ridge(0.5)
    fit = lo.fit(lo.GLM(X, y, loss, penalty, sample_weight=w))
    coef, intercept = by_halves(X, y, w, 4.0, loss, 0.5)
    np.testing.assert_allclose(fit.parameters["coef"], coef, atol=2e-5)
    np.testing.assert_allclose(fit.parameters["intercept"], intercept, atol=2e-5)
    slope = w * SLOPES[loss](X @ fit.parameters["coef"] + fit.parameters["intercept"], y)[1]
    gradient, own = X.T @ slope + 0.5 * fit.parameters["coef"], fit.parameters["coef"] != 0
    assert 0 < own.sum() < 12
    np.testing.assert_allclose(
        gradient[own], -4.0 * np.sign(fit.parameters["coef"][own]), atol=1e-8
    )
    assert np.all(np.abs(gradient[~own]) < 4.0)


def test_some_coefficients_are_free():
    X, y, _ = made(p=6)
    alpha = np.array([0.0, 30.0, 30.0, 30.0, 30.0, 0.0])
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(alpha)))
    gradient = X.T @ (X @ fit.parameters["coef"] + fit.parameters["intercept"] - y)
    own = fit.parameters["coef"] != 0
    assert own[[0, 5]].all() and not own.all()
    np.testing.assert_allclose(
        gradient[own], -(alpha * np.sign(fit.parameters["coef"]))[own], atol=1e-9
    )
    assert np.all(np.abs(gradient[~own]) < 30)
    none = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(0.0)))
    assert none.parameters["coef"] == pytest.approx(
        lo.fit(lo.GLM(X, y, "squared")).parameters["coef"]
    )


@pytest.mark.parametrize(
    "seed",
    [
        0,
        1,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(5, marks=pytest.mark.slow),
    ],
)
def test_every_refit_is_scikit_learns(seed):
    """Folds whose active coefficients change are the rule here, and every loss is within what was
    proved.
    """
    rng = np.random.default_rng(seed)
    X, y, w = made(seed=seed, correlated=seed % 2, spread=[0.0, 0.5, 2.0][seed % 3])
    alpha, ratio = rng.choice([1.0, 4.0, 15.0]), rng.choice([1.0, 0.7])
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.ElasticNet(alpha, ratio), sample_weight=w))
    active = fit.parameters["coef"] != 0
    for plan in (lo.leave_one_out(60), lo.kfold(60, 4, rng=seed)):
        found, theta = (
            lo.cross_validate(fit, plan),
            lo.fold_parameters(fit, plan, strategy=lo.Exact()),
        )
        assert found.proved.all() and not len(found.flagged())
        refits = [least_squares(X, y, w * own, alpha, ratio) for own in plan.matrix()]
        changed = sum(np.any((coef != 0) != active) for coef, _ in refits)
        assert changed > 0
        for k, (coef, intercept) in enumerate(refits):
            np.testing.assert_array_equal(theta["coef"][k] != 0, coef != 0)
            np.testing.assert_allclose(theta["coef"][k], coef, atol=1e-7)
            np.testing.assert_allclose(theta["intercept"][k], intercept, atol=1e-7)
        turn = iter(refits)

        def told(own, held, turn=turn):
            coef, intercept = next(turn)
            return 0.5 * (y[held] - X[held] @ coef - intercept) ** 2

        assert not beyond(found, plan, told).any()
        prediction = lo.cross_predict(fit, plan, strategy=lo.Exact())
        other = np.empty(60)
        for k, (coef, intercept) in enumerate(refits):
            held = plan.index[plan.indptr[k] : plan.indptr[k + 1]]
            other[held] = X[held] @ coef + intercept
        np.testing.assert_allclose(prediction, other, atol=1e-6)


@pytest.mark.parametrize("loss", ["logistic", "poisson", "huber"])
def test_refits_of_other_losses(loss):
    X, y, w = made(n=40, p=10, loss=loss, seed=3)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Lasso(2.0)))

    def exact(own, held):
        coef, intercept = by_halves(X, y, w * own, 2.0, loss)
        return SLOPES[loss](X[held] @ coef + intercept, y[held])[0]

    for plan in (lo.leave_one_out(40), lo.kfold(40, 4, rng=0), lo.bootstrap(40, 3, rng=0)):
        found = lo.cross_validate(fit, plan, strategy=lo.Exact())
        assert found.proved.all()
        for k, own in enumerate(plan.matrix()):
            mine = slice(plan.indptr[k], plan.indptr[k + 1])
            held = plan.held[mine]
            np.testing.assert_allclose(
                found.losses[mine][held], exact(own, plan.index[mine][held]), atol=2e-4
            )


def test_single_rows_of_least_squares_are_judged_without_a_pass_over_all_rows(monkeypatch):
    """Near a tie about half of the rows release a parameter.

    How their gradients change decides that.
    """
    X, y, _ = made(n=1000, p=6)
    (knot,) = lars_path(X - X.mean(0), y - y.mean(), method="lasso")[0][3:4]
    fit, plan = (
        lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(1000 * knot * (1 + 1e-5)))),
        lo.leave_one_out(1000),
    )
    slopes, computed = _kinks._slopes, []

    def count(own, units, eta, half):
        computed.append(np.size(eta))
        return slopes(own, units, eta, half)

    monkeypatch.setattr(_kinks, "_slopes", count)
    found = lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
    # once in each of three judgements, and half of them again
    assert found.proved.all() and sum(computed) < 5 * 1000
    few = np.arange(0, 1000, 111)
    exact = [
        np.append(
            *least_squares(
                np.delete(X, k, 0), np.delete(y, k), np.ones(999), 1000 * knot * (1 + 1e-5)
            )
        )
        for k in few
    ]
    losses = [
        0.5 * (y[k] - X[k] @ each[:-1] - each[-1]) ** 2 for k, each in zip(few, exact, strict=True)
    ]
    np.testing.assert_allclose(found.losses[few], losses, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_single_rows_that_are_told_by_what_each_parameter_does(loss, monkeypatch):
    """Without the operations for other fits.

    Called estimated, nearer than ALO, and within what is said.
    """
    X, y, _ = made(n=150, p=60, loss=loss)
    fit, plan = lo.fit(lo.GLM(X, y, loss, lo.penalties.Lasso(4.0))), lo.leave_one_out(150)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
    monkeypatch.setattr(_kinks, "MAX_OTHER_FIT_WORK", 0.0)
    found, step = (
        lo.cross_validate(fit, plan, strategy=refit, audit=0)
        for refit in (lo.Certified(), lo.NewtonStep())
    )
    told = ~found.proved
    assert exact.proved.all() and 0.1 < told.mean() < 1
    off, alo = (np.abs(one.losses - exact.losses) for one in (found, step))
    assert off[told].mean() < 0.5 * alo[told].mean()
    assert np.all(off <= found.error * (1 + 1e-6) + 1e-9) and np.all(
        alo <= step.error * (1 + 1e-6) + 1e-9
    )
    assert abs(found.mean - exact.mean) < found.approximation_error


@pytest.mark.parametrize(
    "refit", [lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.NewtonStep(), lo.Certified(0.1)]
)
def test_other_strategies_know_how_far_they_are_off(refit):
    X, y, _ = made(seed=1)
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(4.0)))
    for plan in (lo.leave_one_out(60), lo.kfold(60, 5, rng=0)):
        exact, found = (
            lo.cross_validate(fit, plan, strategy=one, audit=0) for one in (lo.Exact(), refit)
        )
        total = np.bincount(plan.refit, np.abs(found.losses - exact.losses))
        assert np.all(total <= found.error * (1 + 1e-6) + 1e-9)
    np.testing.assert_allclose(
        lo.cross_validate(fit, plan, strategy=lo.NoUpdate()).losses, exact.baseline, rtol=1e-12
    )


def test_the_order_within_unchanged_coefficients():
    """The weight of a row goes 1 → 1 − t and t is halved.

    Newton's step is right, no update is off by halves.
    """
    X, y, _ = made(loss="logistic", seed=2)
    fit, off = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Lasso(3.0))), {}
    for t in (0.2, 0.1, 0.05):
        plan = lo.Plan(np.array([0, 1]), np.array([7]), np.array([1 - t]), np.array([False]), 60)
        exact = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-12))["coef"][0]
        np.testing.assert_array_equal(exact != 0, fit.parameters["coef"] != 0)
        for refit in (lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.NewtonStep()):
            found = lo.fold_parameters(fit, plan, strategy=refit)["coef"][0]
            off.setdefault(repr(refit), []).append(np.linalg.norm(found - exact))
    for name, order in (("NoUpdate()", 1), ("InfinitesimalJackknife()", 2), ("NewtonStep()", 2)):
        ratios = np.log2(np.divide(off[name][:-1], off[name][1:]))
        np.testing.assert_allclose(ratios, order, atol=0.4)


def test_a_margin_is_proved_by_no_less_than_it_is():
    """Every refit that keeps the fit's coefficients by proof has exactly these."""
    X, y, _ = made(n=80, p=30, seed=4, correlated=0.5)
    for alpha in (2.0, 6.0, 12.0):
        fit, plan = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(alpha))), lo.leave_one_out(80)
        (batch,) = plan._batches(10**6, 1, 0)
        known = _kinks.active(fit)
        rows = batch.rows._replace(scale=np.asarray(1.0))
        told = _kinks.Conditions(known, rows, lo.Certified()(fit, rows), directly=False)
        refits = [least_squares(X, y, own, alpha)[0] for own in plan.matrix()]
        same = np.array(
            [np.array_equal(np.sign(coef), np.sign(fit.parameters["coef"])) for coef in refits]
        )
        assert 0 < same.sum() < 80
        # of least squares nothing bends: the margins are exact
        np.testing.assert_array_equal(told.keeps, same)


HOSTS = {
    "lasso": (Lasso(0.1, **TIGHT), "squared"),
    "elastic net": (ElasticNet(0.2, l1_ratio=0.5, **TIGHT), "squared"),
    "lasso, no intercept": (Lasso(0.1, fit_intercept=False, **TIGHT), "squared"),
    "lasso, chosen": (LassoCV(cv=3, **TIGHT), "squared"),
    "elastic net, chosen": (ElasticNetCV(cv=3, l1_ratio=[0.5, 0.9], **TIGHT), "squared"),
    "logistic": (
        LogisticRegression(l1_ratio=1, C=0.3, solver="saga", tol=1e-11, max_iter=10**6),
        "logistic",
    ),
    "logistic, balanced": (
        LogisticRegression(
            l1_ratio=0.5, C=0.3, solver="saga", tol=1e-11, max_iter=10**6, class_weight="balanced"
        ),
        "logistic",
    ),
}


@pytest.mark.parametrize("name", HOSTS)
def test_refits_are_the_hosts_own(name):
    """Its penalty goes with the weights that are left."""
    host, loss = HOSTS[name]
    X, y, w = made(n=70, p=15, loss=loss, spread=0.3)
    w = None if "balanced" in name else w
    seen = lambda keep: {} if w is None else {"sample_weight": w[keep]}
    fitted = clone(host).fit(X, y, **seen(slice(None)))
    fit, plan = lo.from_sklearn(fitted, X, y, w), lo.kfold(70, 4, rng=0)
    np.testing.assert_allclose(fit.parameters["coef"], np.ravel(fitted.coef_), atol=1e-8)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    alone = host
    if "chosen" in name:
        assert "alpha = " in fit.objective.note and "was chosen on all rows" in fit.objective.note
        alone = ElasticNet(fitted.alpha_, l1_ratio=getattr(fitted, "l1_ratio_", 1.0), **TIGHT)
    for k, own in enumerate(plan.matrix()):
        keep = own > 0
        again = clone(alone).fit(X[keep], y[keep], **seen(keep))
        np.testing.assert_allclose(theta["coef"][k], np.ravel(again.coef_), atol=1e-8)
        np.testing.assert_allclose(theta["intercept"][k], np.ravel(again.intercept_)[0], atol=1e-8)


def test_scikit_learns_own_verbs():
    X, y, _ = made()
    grid = {"alpha": [0.02, 0.1, 0.3]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lo.sklearn.cross_validate(Lasso(0.1, **TIGHT), X, y, cv=5)["test_score"]
        search = lo.sklearn.OneFitSearchCV(Lasso(**TIGHT), grid, cv=5).fit(X, y)
    from sklearn.model_selection import GridSearchCV, cross_val_score

    np.testing.assert_allclose(found, cross_val_score(Lasso(0.1, **TIGHT), X, y, cv=5), atol=1e-3)
    known = GridSearchCV(Lasso(**TIGHT), grid, cv=5).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], known.cv_results_["mean_test_score"], atol=1e-3
    )


def test_glum_with_l1():
    glum = pytest.importorskip("glum")
    X, y, _ = made(loss="poisson", p=10)
    more = {
        "family": "poisson",
        "alpha": 0.1,
        "l1_ratio": 0.7,
        "scale_predictors": False,
        "gradient_tol": 1e-10,
    }
    host = lambda: glum.GeneralizedLinearRegressor(max_iter=2000, P1=np.r_[0.0, np.ones(9)], **more)
    fit, plan = lo.from_glum(host().fit(X, y), X, y), lo.kfold(60, 3, rng=0)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    assert np.sum(fit.parameters["coef"] == 0) > 0
    for k, own in enumerate(plan.matrix()):
        again = host().fit(X[own > 0], y[own > 0])
        np.testing.assert_allclose(theta["coef"][k], again.coef_, atol=2e-5)


@pytest.mark.parametrize("ratio", [1.0, 0.5])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_path_of_least_squares(ratio, spread):
    X, y, w = made(n=80, p=30, spread=spread)
    alphas = np.geomspace(60, 1.5, 9)
    model = lo.GLM(
        X, y, "squared", lo.penalties.ElasticNet(1.0, ratio), sample_weight=w if spread else None
    )
    path, plan = lo.path(model, alphas, lo.leave_one_out(), audit=2), lo.leave_one_out(80)
    assert _lasso.applies(model, path.penalties, path.plan)
    assert "0 beyond" in str(path)
    exact = []
    for point in path.points:
        found = point.estimate
        fit = lo.fit(model.under(lo.penalties.ElasticNet(point.value, ratio)))
        np.testing.assert_allclose(point.fit.parameters["coef"], fit.parameters["coef"], atol=1e-9)
        own = np.empty(80)
        for i, weights in enumerate(plan.matrix()):
            coef, intercept = least_squares(
                X, y, (w if spread else 1.0) * weights, point.value, ratio
            )
            own[i] = 0.5 * (y[i] - X[i] @ coef - intercept) ** 2
        off = np.abs(found.losses - own)
        assert np.all(off <= found.error * (1 + 1e-6) + 1e-8)
        assert np.all(off[found.proved] < 1e-7)
        exact.append(np.average(own, weights=w if spread else None))
    assert 0 < np.mean([point.estimate.proved.mean() for point in path.points]) < 1
    assert abs(int(np.argmin(exact)) - list(path.values).index(path.best.value)) <= 1


def test_a_path_whose_leverages_and_errors_a_sample_tells(monkeypatch):
    """As where very many columns are active.

    Nothing is proved, and what is said holds for all rows but a few.
    """
    X, y, _ = made(n=160, p=60)
    model, alphas = lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0)), np.geomspace(12.0, 3.0, 5)
    known = lo.path(model, alphas, lo.leave_one_out())
    monkeypatch.setattr(_lasso, "SAMPLED_ACTIVE_COLUMNS", 5)
    monkeypatch.setattr(_lasso, "NUM_SAFETY_ROWS", 80)
    found = lo.path(model, alphas, lo.leave_one_out(), audit=1)
    off, said, none = [], [], []
    for point, other in zip(found.points, known.points, strict=True):
        exact = np.empty(160)
        for i in range(160):
            keep = np.arange(160) != i
            coef, intercept = least_squares(X, y, keep.astype(float), point.value)
            exact[i] = 0.5 * (y[i] - X[i] @ coef - intercept) ** 2
        e = point.estimate
        off, said, none = (
            [*off, *np.abs(e.losses - exact)],
            [*said, *e.error],
            [*none, *np.abs(e.baseline - exact)],
        )
        assert not e.proved.any() and abs(e.mean - exact.mean()) < e.approximation_error
        np.testing.assert_allclose(e.baseline, other.estimate.baseline, rtol=1e-10)
        np.testing.assert_allclose(
            point.fit.parameters["coef"], other.fit.parameters["coef"], atol=1e-12
        )
    assert np.mean(np.array(off) <= said) > 0.95
    assert np.mean(said) < 0.5 * np.mean(none)


@pytest.mark.parametrize("begun", ["by coordinate descent", "by nothing", "wrongly"])
def test_runs_of_one_strength_after_another(begun, monkeypatch):
    """Minimisers, leverages, and what a few rows are told, wherever signs begin, and also where
    columns leave.
    """
    monkeypatch.setattr(_lasso, "SAMPLED_ACTIVE_COLUMNS", 8)
    X, y, w = made(n=90, p=30, spread=0.5)
    X = X @ np.linalg.cholesky(0.9 * np.ones((30, 30)) + 0.1 * np.eye(30)).T
    rows = _lasso.StandardisedColumns(
        lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0), sample_weight=w)
    )
    alphas, count = np.geomspace(40.0, 0.3, 40), 40
    sign = (
        np.sign(rows.path(alphas, 1.0))
        if begun == "by coordinate descent"
        else np.zeros((count, 31))
    )
    sign[:, 3] = 1.0 if begun == "wrongly" else sign[:, 3]
    parts = np.split(np.arange(count), [13, 26])
    runs = [
        run for some in parts for run in _lasso._minima(rows, some, alphas, np.zeros(count), sign)
    ]
    seen, left = [], 0
    for before, run in itertools.pairwise(runs):
        left += len(np.setdiff1d(before.active, run.active[: run.size[0]]))
    for k, solution, sample in _lasso._along(rows, runs):
        coef, intercept = least_squares(X, y, w, alphas[k])
        np.testing.assert_allclose(rows.shift_back(solution.theta), [*coef, intercept], atol=1e-7)
        x, rest = rows.x[:, solution.active], rows.x[:, solution.inactive]
        inverse = np.linalg.inv(x.T @ x)
        np.testing.assert_allclose(
            solution.h, np.diag(x @ inverse @ x.T), atol=1e-6 if sample else 1e-10
        )
        if sample is not None:
            along = x[sample.units] @ inverse
            np.testing.assert_allclose(sample.along[:, solution.active], along, atol=1e-8)
            np.testing.assert_allclose(
                sample.remainder[:, solution.inactive],
                rest[sample.units] - along @ x.T @ rest,
                atol=1e-8,
            )
            np.testing.assert_allclose(sample.spread[solution.active], np.diag(inverse), rtol=1e-7)
            apart = rest - x @ inverse @ (x.T @ rest)
            np.testing.assert_allclose(
                sample.residual_diagonal[solution.inactive], np.sum(apart**2, axis=0), rtol=1e-6
            )
        seen.append(k)
    assert seen == list(range(count)) and left > 0 and len(runs) < count


def test_a_path_of_columns_far_from_zero():
    X, y, w = made(n=80, p=12, spread=0.5)
    model = lambda X: lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0), sample_weight=w)
    known, far = (
        lo.path(model(X + shift), [20.0, 5.0], lo.leave_one_out()) for shift in (0.0, 1e4)
    )
    for one, other in zip(known.points, far.points, strict=True):
        np.testing.assert_allclose(
            other.estimate.losses, one.estimate.losses, rtol=1e-8, atol=1e-10
        )
        np.testing.assert_array_equal(other.estimate.proved, one.estimate.proved)
        np.testing.assert_allclose(
            other.fit.parameters["coef"], one.fit.parameters["coef"], atol=1e-9
        )


def test_columns_that_hang_together_come_one_after_another():
    """One that leaves as another that is nearly the same joins: leverages are made anew."""
    X, y, _ = made(n=60, p=6)
    X[:, 5] = X[:, 0] + 1e-7 * X[:, 1]
    rows = _lasso.StandardisedColumns(lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0)))
    signs = np.zeros((2, 7))
    signs[0, [0, 2]], signs[1, [5, 2]] = 1.0, 1.0
    before, after = (
        _lasso.PathRun(rows, np.array([k]), np.ones(1), 0.0, signs[[k]]) for k in (0, 1)
    )
    assert after.after(before).replaces_all
    for own, some in ((before, [0, 2, 6]), (after, [2, 5, 6])):
        x = rows.x[:, some]
        square = own.after(None).squares(rows, False).sum(axis=0)
        np.testing.assert_allclose(square, np.diag(x @ np.linalg.solve(x.T @ x, x.T)), atol=1e-10)


def test_a_path_of_other_losses_and_plans():
    X, y, _ = made(loss="logistic", p=10)
    model, plan = (
        lo.GLM(X, y, "logistic", lo.penalties.per_weight(lo.penalties.Lasso(1.0))),
        lo.kfold(60, 4, rng=0),
    )
    path = lo.path(model, [0.02, 0.05, 0.1], plan)
    for point in path.points:
        alone = lo.cross_validate(
            lo.fit(model.under(lo.penalties.per_weight(lo.penalties.Lasso(point.value)))), plan
        )
        assert point.mean == pytest.approx(
            alone.mean, abs=alone.approximation_error + point.estimate.approximation_error + 1e-8
        )


LABELS = np.arange(9) // 2
NETS = {
    "lasso": (lambda a: lo.penalties.per_weight(lo.penalties.Lasso(a)), [0.07]),
    "elastic net": (lambda a, r: lo.penalties.ElasticNet(a, r), [4.0, 0.6]),
    "lasso and ridge": (lambda a, b: lo.penalties.Lasso(a) + lo.penalties.Ridge(b), [3.0, 2.0]),
    "groups": (lambda a, b: lo.penalties.GroupLasso(a, LABELS) + lo.penalties.Ridge(b), [1.5, 1.0]),
    "not negative": (
        lambda a, b: lo.penalties.Lasso(a) + lo.penalties.Ridge(b) + lo.penalties.Box(),
        [2.0, 1.0],
    ),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("loss", ["squared", pytest.param("logistic", marks=pytest.mark.slow)])
def test_the_slope_of_the_held_out_loss_by_differences(net, loss):
    """Of exact refits, none of which has other zeros as close to the strength as that."""
    X, y, w = made(n=40, p=9, loss=loss, spread=0.3)
    penalty, at = NETS[net]
    model, plan = lo.GLM(X, y, loss, penalty(*at), sample_weight=w), lo.kfold(40, 4, rng=0)
    names = [f"rho{k}" for k in range(len(at))]
    space = {name: (0.5 * value, 2.0 * value) for name, value in zip(names, at, strict=True)}
    build, start = (
        lambda **rho: model.under(penalty(*rho.values())),
        dict(zip(names, at, strict=True)),
    )
    trial = lo.tune(build, space, plan, num_trials=1, start=start, num_outer_folds=0).best
    for k, name in enumerate(names):
        each = np.array([at, at])
        each[:, k] *= np.exp([1e-4, -1e-4])
        fits = [lo.fit(model.under(penalty(*one))) for one in each]
        zeros = [lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"] == 0 for fit in fits]
        np.testing.assert_array_equal(*zeros)
        assert (zeros[0] != zeros[0][0]).any()
        up, down = (lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0).mean for fit in fits)
        np.testing.assert_allclose(trial.slope[name], (up - down) / 2e-4, rtol=1e-4, atol=1e-7)


def test_the_slope_of_exact_refits_that_keep_their_zeros():
    rng = np.random.default_rng(5)
    X = np.linalg.qr(rng.standard_normal((60, 7)) - 0.0)[0] * np.sqrt(60)
    y, plan = X[:, :3] @ [2.0, -1.5, 1.0] + 0.3 * rng.standard_normal(60), lo.leave_one_out(60)
    losses, zeros = [], set()
    for alpha in 20.0 * np.exp([1e-4, 0.0, -1e-4]):
        refits = [least_squares(X, y, own, alpha) for own in plan.matrix()]
        zeros |= {tuple(coef != 0) for coef, _ in refits}
        losses.append(
            np.mean([0.5 * (y[i] - X[i] @ coef - b) ** 2 for i, (coef, b) in enumerate(refits)])
        )
    assert zeros == {(True, True, True, False, False, False, False)}
    model = lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0))
    space, start = {"a": (1.0, 100.0)}, {"a": 20.0}
    trial = lo.tune(
        lambda a: model.under(lo.penalties.Lasso(a)),
        space,
        plan,
        num_trials=1,
        start=start,
        num_outer_folds=0,
    ).best
    assert trial.value == pytest.approx(losses[1], rel=1e-9)
    assert trial.slope["a"] == pytest.approx((losses[0] - losses[2]) / 2e-4, rel=1e-5)


def test_down_the_slope_to_the_lowest_of_a_path():
    X, y, _ = made(n=60, p=12)
    model, plan = lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0)), lo.kfold(60, 5, rng=0)
    found = lo.tune(
        lambda a: model.under(lo.penalties.Lasso(a)),
        {"a": (0.5, 60.0)},
        plan,
        num_outer_folds=0,
        num_trials=20,
    )
    path = lo.path(model, np.geomspace(0.5, 60, 12), plan, strategy=lo.Exact())
    assert "has kinks where coefficients come and go" in str(found) and "Exact" in str(
        found.estimate
    )
    assert len(found.all_trials) <= 20 and found.best.value < path.best.mean + 1e-3
    assert found.estimate.mean == pytest.approx(found.best.value, rel=1e-6)
    ill = lo.GLM(X, (y > 1) * 1.0, "logistic", lo.penalties.Lasso(1.0))
    with pytest.raises(TypeError, match="under an l1 penalty or bounds goes by the loss"):
        lo.tune(lambda a: ill.under(lo.penalties.Lasso(a)), {"a": (0.5, 2.0)}, plan, metric="auc")


def test_pickled_checkpointed_and_measured(tmp_path):
    X, y, _ = made()
    fit, plan = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(6.0))), lo.kfold(60, 5, rng=0)
    again = pickle.loads(pickle.dumps(fit))
    known = lo.cross_validate(fit, plan)
    np.testing.assert_array_equal(lo.cross_validate(again, plan).losses, known.losses)
    for _ in range(2):
        np.testing.assert_array_equal(
            lo.cross_validate(fit, plan, checkpoint=tmp_path / "kept").losses, known.losses
        )
    found = lo.cross_validate(fit, plan, metric="mse")
    assert found.metrics.loc["mse", "value"] == pytest.approx(2 * found.mean)
    count = lo.cross_validate(
        fit,
        plan,
        strategy=lo.Exact(),
        evaluate=lambda held, seen, theta: float(np.sum(theta["coef"] != 0)),
    )
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"]
    np.testing.assert_array_equal(count.losses, np.sum(theta != 0, axis=1))
    assert known.audit is not None and not known.audit["beyond"].any()
    other = lo.cross_validate(lo.fit(fit.objective.under(lo.penalties.Lasso(3.0))), plan)
    with pytest.warns(UserWarning, match="fewer than 100"):
        assert len(lo.compare({"a": known, "b": other})) >= 1


@pytest.mark.parametrize("part", [-1e-6, -1e-8, 0.0, 1e-10, 1e-8])
def test_a_refit_at_the_edge_of_a_kink_counts_both_sides(part):
    """A column far from zero, whose coefficient leaves zero, in the refit of one row, at a strength
    that is known to fewer digits than its distance from this one.
    """
    rng = np.random.default_rng(0)
    x = 1e4 + rng.standard_normal(200)
    y = 0.5 * x + 3 * rng.standard_normal(200)
    others = np.arange(200) != 7
    a = abs((x[others] - x[others].mean()) @ y[others]) * (1 + part)
    cv = lo.cross_validate(
        lo.fit(lo.GLM(x[:, None], y, "squared", lo.penalties.Lasso(a))), lo.leave_one_out()
    )
    assert cv.proved.all() and not len(cv.flagged())
    slope, intercept = least_squares(x[:, None] - 1e4, y, others.astype(float), a)
    exact = 0.5 * (y[7] - intercept - slope[0] * (x[7] - 1e4)) ** 2
    assert abs(cv.losses[7] - exact) <= cv.error[7] + 1e-9


def test_levels_whose_sum_is_one_are_no_ties():
    """With as many levels on either side of zero, one of them is at the edge of its kink in every
    refit.
    """
    rng = np.random.default_rng(0)
    level = rng.integers(4, size=400)
    X = np.c_[np.eye(4)[level], rng.standard_normal(400)]
    y = X @ [-3.0, -1.0, 1.0, 3.0, 0.5] + rng.standard_normal(400)
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(2.0)))
    assert "at a tie" in fit.objective.note
    plan = lo.leave_one_out(400)
    cv = lo.cross_validate(fit, plan)
    assert cv.proved.all()

    def exact(w, units):
        coef, intercept = least_squares(X, y, w, 2.0)
        return 0.5 * (y[units] - X[units] @ coef - intercept) ** 2

    assert not beyond(cv, plan, exact).any()


def test_ties_and_columns_that_repeat():
    X, y, _ = made(p=6)
    model = lo.GLM(np.c_[X, X[:, 0]], y, "squared", lo.penalties.Lasso(5.0))
    fit = lo.fit(model)
    assert "at a tie" in fit.objective.note
    alone = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(5.0)))
    twice, once = (lo.cross_validate(one, lo.kfold(k=5)) for one in (fit, alone))
    np.testing.assert_allclose(twice.losses, once.losses, atol=1e-6)
    assert twice.proved.all() and once.proved.all()


def test_columns_that_repeat_in_many_rows():
    """No matrix has as many columns as there are rows: at 50,000 rows that would be 20 GB."""
    X, y, _ = made(n=50_000, p=4)
    model = lo.GLM(np.c_[X, X[:, 0]], y, "squared", lo.penalties.Lasso(500.0))
    problem = _active_set.WeightedProblem(active_coefficients.kinks(model).whole, np.ones(len(y)))
    theta, moved = _active_set._independent(problem, np.array([0.6, -0.7, 0.4, 0.2, 0.4, 1.0]))
    assert moved
    np.testing.assert_allclose(np.sort(theta[[0, 4]]), [0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(theta[[1, 2, 3, 5]], [-0.7, 0.4, 0.2, 1.0], rtol=1e-12)


def test_what_is_refused():
    X, y, _ = made(p=4)
    plan, net = lo.leave_one_out(60), lo.penalties.Lasso(2.0)
    glm = lambda loss, penalty, target=y, **more: lo.fit(lo.GLM(X, target, loss, penalty, **more))
    for error, match, call in (
        (TypeError, "one output", lambda: glm("multinomial", net, np.arange(60) % 3)),
        (TypeError, "convex loss", lambda: lo.fit(lo.Regression(X, y, "gaussian", net))),
        (TypeError, "convex loss", lambda: glm(lambda eta, y: (eta - y) ** 2, net)),
        (TypeError, "only Ridge", lambda: glm("squared", net + lo.penalties.PseudoHuber(1.0))),
        (
            ValueError,
            "nothing is left to refit",
            lambda: glm("squared", lo.penalties.Lasso(1e6), intercept=False),
        ),
        (ValueError, "must be finite and not negative", lambda: lo.penalties.Lasso(-1.0)),
        (
            ValueError,
            "l1_ratio must be one number from 0 to 1",
            lambda: lo.penalties.ElasticNet(1.0, 1.5),
        ),
        (ValueError, r"shape \(4,\)", lambda: glm("squared", lo.penalties.Lasso([1.0, 2.0]))),
    ):
        with pytest.raises(error, match=match):
            call()
    fit = glm("squared", net)
    for call in (lo.diagnostics.dfbetas, lo.covariance, lambda fit: lo.interval(fit, X[:2])):
        with pytest.raises(TypeError, match="not there for an l1 penalty"):
            call(fit)
    with pytest.raises(_active_set.NoMinimiser, match="not determined"):
        lo.fit(
            lo.GLM(
                np.c_[X, 2 * X], y, "squared", lo.penalties.Lasso(np.r_[np.zeros(4), 0.0, 1, 1, 1])
            )
        )
    empty = glm("squared", lo.penalties.Lasso(1e6))
    assert not empty.parameters["coef"].any() and lo.cross_validate(empty, plan).proved.all()


@pytest.mark.parametrize("sparse", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_coefficients_of_all_levels_are_not_unique_but_predictions_are(sparse):
    """A minimiser on columns that do not depend on one another predicts what every other minimiser
    does.
    """
    rng = np.random.default_rng(1)
    rows = np.c_[rng.choice(list("abcd"), 50), rng.choice(list("uvwxyz"), 50)].astype(object)
    y = 2.0 * (rows[:, 0] == "a") - (rows[:, 1] == "u") + rng.normal(size=50)
    levels = OneHotEncoder(sparse_output=sparse, categories=[list("abcd"), list("uvwxyz")])
    host = make_pipeline(levels, Lasso(0.003, tol=1e-12, max_iter=100_000)).fit(rows, y)
    cv = lo.cross_validate(lo.from_sklearn(host, rows, y), lo.leave_one_out())
    for i, loss in enumerate(cv.per_unit()):
        others = np.arange(50) != i
        left = y[i] - clone(host).fit(rows[others], y[others]).predict(rows[[i]])[0]
        np.testing.assert_allclose(loss, 0.5 * left**2, atol=1e-8)
    assert not len(cv.flagged())
    found = lo.sklearn.cross_validate(host, rows, y, cv=5)["test_score"]
    np.testing.assert_allclose(found, cross_validate(host, rows, y, cv=5)["test_score"], atol=1e-8)
    grid = {"lasso__alpha": [0.003, 0.02]}
    ours, theirs = (
        search(host, grid, cv=5).fit(rows, y)
        for search in (lo.sklearn.OneFitSearchCV, GridSearchCV)
    )
    for name in ("split0_test_score", "mean_test_score"):
        np.testing.assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], atol=1e-8)


@pytest.mark.parametrize("weights", [None, [np.sqrt(3.0)], np.sqrt(3.0)])
def test_one_group_of_all_coefficients_shrinks_as_one(weights):
    """Orthogonal columns: (1 − α√p / ‖Xᵀy‖)₊ Xᵀy / n."""
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.standard_normal((40, 3)))[0] * np.sqrt(40)
    y = X @ [1.0, -0.5, 0.2] + rng.standard_normal(40)
    penalty = lo.penalties.GroupLasso(4.0, ["a"] * 3, weights=weights)
    fit = lo.fit(lo.GLM(X, y, "squared", penalty, intercept=False))
    slope = X.T @ y
    expected = max(0.0, 1 - 4 * np.sqrt(3) / np.linalg.norm(slope)) * slope / 40
    np.testing.assert_allclose(fit.coef, expected, rtol=1e-8)
