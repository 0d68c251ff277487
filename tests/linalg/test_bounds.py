"""Coefficients between bounds.

Fits and refits against SciPy's non-negative least squares and L-BFGS-B, and the hosts' own.
"""

import numpy as np
import pytest
import scipy
from sklearn.base import clone
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, Ridge

import leaveout as lo
from leaveout.linalg.bounds import solve_box
from tests.optimize.test_active_set import SLOPES, beyond, made

Box, INF = lo.penalties.Box, np.inf
LOSSES = SLOPES | {"squared": lambda eta, y: (0.5 * (eta - y) ** 2, eta - y)}


def within(X, y, w, loss, low, high, a=0.0, ridge=0.0):
    """The minimiser by SciPy's L-BFGS-B, coefficients written as differences of what is not
    negative; columns are scaled.
    """
    p, scale = X.shape[1], np.sqrt(w @ X**2)
    low, high, Z = np.broadcast_to(low, p) * scale, np.broadcast_to(high, p) * scale, X / scale

    def F(v):
        coef = v[:p] - v[p : 2 * p]
        each, slope = LOSSES[loss](Z @ coef + v[-1], y)
        back, l1 = Z.T @ (w * slope) + ridge * coef / scale**2, a / scale
        value = w @ each + (np.r_[l1, l1] @ v[: 2 * p]) + 0.5 * ridge * np.sum((coef / scale) ** 2)
        return value, np.r_[back + l1, l1 - back, w @ slope]

    least = np.r_[np.maximum(low, 0), np.maximum(-high, 0), -INF]
    most = np.r_[np.maximum(high, 0), np.maximum(-low, 0), INF]
    options = {"maxiter": 10**5, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 60}
    bounds, start = list(zip(least, most, strict=True)), np.clip(np.zeros(2 * p + 1), least, most)
    found = scipy.optimize.minimize(
        F, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    ).x
    return (found[:p] - found[p : 2 * p]) / scale, found[-1]


def nnls(X, y, w, ridge=0.0):
    """SciPy's, the intercept taken out of the columns."""
    root, seen = np.sqrt(w[w > 0]), w > 0
    X, y, p = X[seen], y[seen], X.shape[1]
    center, level = np.average(X, axis=0, weights=root**2), np.average(y, weights=root**2)
    rows = np.concatenate([root[:, None] * (X - center), np.sqrt(ridge) * np.eye(p)])
    coef = scipy.optimize.nnls(rows, np.r_[root * (y - level), np.zeros(p)])[0]
    return coef, level - center @ coef


@pytest.mark.parametrize("seed", range(6))
def test_every_refit_is_that_of_another_solver(seed):
    """Proved, whichever bounds let go."""
    X, y, w = made(n=60, p=12, seed=seed, correlated=seed % 2, spread=[0.0, 2.0][seed % 2])
    ridge = [0.0, 3.0][seed % 3 > 0]
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(ridge) + Box(), sample_weight=w))
    coef, intercept = nnls(X, y, w, ridge)
    np.testing.assert_allclose(fit.parameters["coef"], coef, atol=1e-10)
    np.testing.assert_allclose(fit.parameters["intercept"], intercept, atol=1e-10)
    assert f"{np.sum(coef == 0)} of 12 coefficients with bounds are at one" in str(fit)
    for plan in (lo.leave_one_out(60), lo.kfold(60, 4, rng=seed), lo.bootstrap(60, 6, rng=seed)):
        found, theta = (
            lo.cross_validate(fit, plan),
            lo.fold_parameters(fit, plan, strategy=lo.Exact()),
        )
        refits = [nnls(X, y, w * own, ridge) for own in plan.matrix()]
        assert found.proved.all() and any(np.any((one != 0) != (coef != 0)) for one, _ in refits)
        for k, (one, level) in enumerate(refits):
            np.testing.assert_allclose(theta["coef"][k], one, atol=1e-7)
            np.testing.assert_allclose(theta["intercept"][k], level, atol=1e-7)
        turn = iter(refits)

        def told(own, held, turn=turn):
            one, level = next(turn)
            return 0.5 * (y[held] - X[held] @ one - level) ** 2

        assert not beyond(found, plan, told).any()


@pytest.mark.parametrize("a", [0.0, 2.0])
@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "huber"])
def test_bounds_of_both_sides_beside_other_penalties(loss, a):
    X, y, w = made(n=50, p=8, loss=loss, seed=2, spread=1.0)
    low, high = (
        np.where(np.arange(8) % 3 == 2, -0.1, 0.0),
        np.where(np.arange(8) % 4 == 0, 0.3, INF),
    )
    low[5], high[5] = 0.15, 0.6  # zero is not between
    low[6] = high[6] = 0.2
    penalty = lo.penalties.Lasso(a) + lo.penalties.Ridge(1.0) + Box(low, high)
    fit = lo.fit(lo.GLM(X, y, loss, penalty, sample_weight=w))
    coef, intercept = within(X, y, w, loss, low, high, a, 1.0)
    assert coef[6] == pytest.approx(0.2) and np.any(coef != fit.parameters["coef"].round(12))
    np.testing.assert_allclose(fit.parameters["coef"], coef, atol=1e-6)
    np.testing.assert_allclose(fit.parameters["intercept"], intercept, atol=1e-6)
    for plan in (lo.leave_one_out(50), lo.kfold(50, 4, rng=0)):
        found = lo.cross_validate(fit, plan, strategy=lo.Exact())
        assert found.proved.all()
        for k, own in enumerate(plan.matrix()):
            coef, intercept = within(X, y, w * own, loss, low, high, a, 1.0)
            held = plan.index[plan.indptr[k] : plan.indptr[k + 1]]
            exact = LOSSES[loss](X[held] @ coef + intercept, y[held])[0]
            np.testing.assert_allclose(found.losses[plan.refit == k], exact, atol=1e-5)


HOSTS = {
    "least squares": LinearRegression(positive=True),
    "least squares, no intercept": LinearRegression(positive=True, fit_intercept=False),
    "ridge": Ridge(2.0, positive=True, tol=1e-12, max_iter=10**6),
    "lasso": Lasso(0.05, positive=True, tol=1e-13, max_iter=10**6),
    "elastic net": ElasticNet(0.1, l1_ratio=0.4, positive=True, tol=1e-13, max_iter=10**6),
}


@pytest.mark.parametrize("name", HOSTS)
def test_refits_are_the_hosts_own(name):
    host = HOSTS[name]
    X, y, w = made(n=70, p=15, spread=0.5)
    fitted = clone(host).fit(X, y, sample_weight=w)
    fit, plan = lo.from_sklearn(fitted, X, y, w), lo.kfold(70, 5, rng=0)
    atol = 1e-5 if name == "ridge" else 1e-7  # L-BFGS-B's
    np.testing.assert_allclose(fit.parameters["coef"], fitted.coef_, atol=atol)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    assert np.any((theta["coef"] == 0) != (fit.parameters["coef"] == 0))
    for k, own in enumerate(plan.matrix()):
        again = clone(host).fit(X[own > 0], y[own > 0], sample_weight=w[own > 0])
        np.testing.assert_allclose(theta["coef"][k], again.coef_, atol=atol)
        np.testing.assert_allclose(theta["intercept"][k], again.intercept_, atol=10 * atol)


@pytest.mark.parametrize("name", ["ridge", "lasso", "elastic net"])
def test_a_host_of_other_data_is_refused_though_bounds_hold_all(name):
    """Where these data hold at their bounds what the host does not, what is left of its θ may well
    be stationary.
    """
    X, y, _ = made(n=70, p=4)
    fitted = clone(HOSTS[name]).fit(X, y)
    assert (fitted.coef_ > 0).any() and "ActiveGLM" not in repr(lo.from_sklearn(fitted, X, y))
    with pytest.raises(ValueError, match="theta is not stationary for GLM"):
        lo.from_sklearn(fitted, X, -y)
    fit = lo.fit(lo.GLM(X, -y, "squared", Box()))
    moved = fit.parameters | {
        "coef": fit.parameters["coef"] + 0.001 * (fit.parameters["coef"] == 0)
    }
    with pytest.warns(UserWarning, match="not stationary for GLM"):
        lo.anchor(lo.GLM(X, -y, "squared", Box()), moved)


@pytest.mark.parametrize("seed", range(8))
def test_a_quadratic_between_bounds(seed):
    rng = np.random.default_rng(seed)
    p = 30
    rows = rng.standard_normal((40, p)) * np.exp(3 * rng.standard_normal(p))
    target, size = rng.standard_normal(40), np.sqrt(np.sum(rows**2, axis=0))
    low, high = -rng.exponential(size=p) / size / 4, rng.exponential(size=p) / size / 4
    known = scipy.optimize.lsq_linear(rows, target, (low, high), method="bvls", tol=1e-14).x
    theta = solve_box(
        rows.T @ rows, rows.T @ target, np.zeros(p), (low, high), np.clip(0.0, low, high)
    )
    assert 0 < np.sum((theta == low) | (theta == high)) < p
    np.testing.assert_allclose(theta * size, known * size, atol=1e-9)


def test_more_columns_than_rows_and_paths():
    X, y, _ = made(n=40, p=50, seed=5)
    fit, plan = lo.fit(lo.GLM(X, y, "squared", Box(), intercept=False)), lo.kfold(40, 5, rng=0)
    np.testing.assert_allclose(fit.parameters["coef"], scipy.optimize.nnls(X, y)[0], atol=1e-9)
    found, theta = lo.cross_validate(fit, plan), lo.fold_parameters(fit, plan, strategy=lo.Exact())
    assert found.proved.all()
    for k, own in enumerate(plan.matrix()):
        np.testing.assert_allclose(
            theta["coef"][k], scipy.optimize.nnls(X[own > 0], y[own > 0])[0], atol=1e-7
        )
    X, alphas = X[:, :10], (0.1, 1.0, 10.0)
    path = lo.path(
        lo.GLM(X, y, "squared", Box()), [lo.penalties.Ridge(a) + Box() for a in alphas], plan
    )
    for point, a in zip(path.points, alphas, strict=True):
        told = [(own, *nnls(X, y, own, a)) for own in plan.matrix()]
        loss = np.concatenate(
            [0.5 * (y - X @ coef - level)[own == 0] ** 2 for own, coef, level in told]
        )
        assert point.mean == pytest.approx(
            loss.mean(), abs=point.estimate.approximation_error + 1e-9
        )


def test_what_is_nearest_is_told_by_the_weights():
    """A penalty that grows with the weights says the same of the same minimum."""
    X, y, _ = made(n=60, p=8, seed=2)
    alone = lo.penalties.Lasso(0.2) + Box(-0.1, 0.3)
    one = lo.fit(lo.GLM(X, y, "squared", lo.penalties.per_weight(alone)))
    two = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(12.0) + Box(-0.1, 0.3)))
    np.testing.assert_allclose(one.parameters["coef"], two.parameters["coef"], atol=1e-10)
    assert one.objective.note == two.objective.note and "nearest to" in one.objective.note


def test_what_is_ugly():
    """Columns of scales ten orders apart, repeated ones, one that is zero, a target that is."""
    X, y, w = made(n=60, p=6, seed=7, spread=3.0)
    scale, plan = 10.0 ** np.arange(-5, 7, 2), lo.leave_one_out(60)
    plain, other = (lo.fit(lo.GLM(Z, y, "squared", Box(), sample_weight=w)) for Z in (X, X * scale))
    np.testing.assert_allclose(
        other.parameters["coef"] * scale, plain.parameters["coef"], rtol=1e-8
    )
    one, two = (lo.cross_validate(fit, plan) for fit in (plain, other))
    np.testing.assert_allclose(one.losses, two.losses, atol=1e-6 + (one.error + two.error).max())
    with pytest.raises(RuntimeError, match="not determined"):
        lo.fit(lo.GLM(np.c_[X, X], y, "squared", Box(-10.0)))
    assert lo.fit(lo.GLM(np.c_[X, 0 * y], y, "squared", Box())).parameters["coef"][-1] == 0
    zero = lo.cross_validate(lo.fit(lo.GLM(X, 0 * y, "squared", Box())), plan)
    np.testing.assert_allclose(zero.losses, 0.0, atol=1e-20)


def test_what_is_refused():
    X, y, _ = made(p=4)
    glm = lambda penalty, loss="squared", target=y, **more: lo.fit(
        lo.GLM(X, target, loss, penalty, **more)
    )
    for error, match, call in (
        (ValueError, "low must not be above high", lambda: Box(1.0, 0.0)),
        (ValueError, "no NaN", lambda: Box([0.0, np.nan])),
        (TypeError, "must be a number", lambda: Box("a")),
        (ValueError, r"shape \(4,\)", lambda: glm(Box([0.0, 1.0]))),
        (ValueError, "no place", lambda: glm(Box(0.0, 1.0) + Box(2.0))),
        (TypeError, "one output", lambda: glm(Box(), "multinomial", np.arange(60) % 3)),
        (ValueError, "nothing is left to refit", lambda: glm(Box(0.0, 0.0), intercept=False)),
        (
            TypeError,
            "not there for an l1 penalty or bounds",
            lambda: lo.diagnostics.dfbetas(glm(Box())),
        ),
    ):
        with pytest.raises(error, match=match):
            call()
