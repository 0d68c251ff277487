"""Losses with kinks, rounded.

Derivatives and bounds, how far the objective with kinks is off, and the hosts' own refits.
"""

import jax
import numpy as np
import pytest
import scipy
from sklearn.base import clone
from sklearn.linear_model import QuantileRegressor, Ridge
from sklearn.svm import LinearSVC, LinearSVR

import leaveout as lo
from leaveout.extensions.leakage._hosts import Estimator, make_learner, prepare

LOSSES = {
    "quantile": lo.losses.Quantile(0.8, width=0.3),
    "epsilon": lo.losses.EpsilonInsensitive(0.5, width=0.1),
    "absolute": lo.losses.EpsilonInsensitive(width=0.2),
    "hinge": lo.losses.Hinge(width=0.2),
}
SHARP = {
    "quantile": lambda eta, y: np.maximum(0.8 * (y - eta), 0.2 * (eta - y)),
    "epsilon": lambda eta, y: np.maximum(np.abs(y - eta) - 0.5, 0),
    "absolute": lambda eta, y: np.abs(y - eta),
    "hinge": lambda eta, y: np.maximum(1 - y * eta, 0),
}


def made(n=100, p=4, seed=0, spread=0.0, labels=False):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = X @ rng.standard_normal(p) + rng.standard_t(3, n)
    return X, np.where(y > 0, 1.0, -1.0) if labels else y, np.exp(spread * rng.standard_normal(n))


@pytest.mark.parametrize("name", LOSSES)
def test_formulas_and_bounds(name):
    """Derivatives by JAX; above the loss with kinks by no more than is said; |ℓ‴| ≤ M ℓ″.

    No NaN far away.
    """
    loss, rng = LOSSES[name], np.random.default_rng(0)
    eta = np.r_[3 * rng.standard_normal(200), -1e6, 1e6, 0.0]
    y = np.sign(rng.standard_normal(203)) if name == "hinge" else rng.standard_normal(203)
    found, function = loss.derivatives(eta, y, (0, 1, 2, 3)), loss.__call__
    with jax.enable_x64(True):
        for known in found:
            derived = jax.jit(jax.vmap(function))(eta, y)
            np.testing.assert_allclose(known, derived, rtol=1e-9, atol=1e-12)
            function = jax.grad(function)
    np.testing.assert_allclose(loss.sharp(eta, y), SHARP[name](eta, y), atol=1e-12)
    apart = found[0] - SHARP[name](eta, y)
    apart, far = apart[:200], apart[200:202]
    assert (
        np.all((apart >= -1e-12) & (apart <= loss.most * (1 + 1e-12)))
        and apart.max() > 0.3 * loss.most
    )
    assert np.all(np.abs(far) < 1e-9)
    assert (
        np.all(np.abs(found[3]) <= loss.self_concordance * found[2] * (1 + 1e-12))
        and found[2].max() <= loss.ceiling
    )
    assert (
        np.all((loss.gap(eta, y) >= 0) & (loss.gap(eta, y) <= loss.most))
        and np.isfinite(loss.gap(eta, y)).all()
    )


def least(X, y, w, level):
    """The least weighted quantile loss, a linear program."""
    n, q = len(y), X.shape[1] + 1
    rows = np.c_[X, np.ones(n), np.eye(n), -np.eye(n)]
    cost = np.r_[np.zeros(q), level * w, (1 - level) * w]
    bounds = [(None, None)] * q + [(0, None)] * (2 * n)
    return scipy.optimize.linprog(cost, A_eq=rows, b_eq=y, bounds=bounds, method="highs").fun


@pytest.mark.parametrize("spread", [0.0, 2.0])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_how_far_the_objective_with_kinks_is_off(level, spread):
    """Of the fit and of every fold, against a linear program."""
    X, y, w = made(spread=spread)
    loss, plan = lo.losses.Quantile(level, width=0.02), lo.kfold(100, 5, rng=0)
    fit = lo.fit(lo.GLM(X, y, loss, sample_weight=w))
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    assert lo.cross_validate(fit, plan).proved.all()
    for own, coef, intercept in zip(plan.matrix(), theta["coef"], theta["intercept"], strict=True):
        eta, seen = X @ coef + intercept, w * own
        off = seen @ loss.sharp(eta, y) - least(X, y, seen, level)
        assert -1e-8 <= off <= seen @ loss.gap(eta, y) + 1e-8
        assert seen @ loss.gap(eta, y) <= 0.2 * loss.most * seen.sum()


@pytest.mark.parametrize("name", ["quantile", "epsilon", "hinge"])
def test_every_row_left_out_is_another_solvers(name):
    """Under weights whose logarithms have a standard deviation of 2.

    Proved, and BFGS says the same.
    """
    X, y, w = made(n=60, spread=2.0, labels=name == "hinge")
    X = np.c_[X, np.ones(60)]
    loss, plan = LOSSES[name], lo.leave_one_out(60)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(0.5), sample_weight=w, intercept=False))
    found, theta = (
        lo.cross_validate(fit, plan),
        lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"],
    )
    assert found.proved.all()
    for i, own in enumerate(plan.matrix()):
        gradient = lambda v, own=own: (
            X.T @ (w * own * loss.derivatives(X @ v, y, (1,))[0]) + 0.5 * v
        )
        F = lambda v, own=own: (w * own) @ loss.derivatives(X @ v, y, (0,))[0] + 0.25 * v @ v
        other = scipy.optimize.minimize(
            F, fit.theta, jac=gradient, method="BFGS", options={"gtol": 1e-9}
        ).x
        np.testing.assert_allclose(theta[i], other, atol=2e-6)
        told = loss.derivatives(X[[i]] @ other, y[[i]], (0,))[0][0]
        assert abs(found.losses[i] - told) <= found.error[i] + 1e-5
    assert "rounded over a width" in str(found)


TIGHT = {"tol": 1e-8, "max_iter": 10**6}
HOSTS = {
    "quantile": (QuantileRegressor(quantile=0.7, alpha=0.0), 0.06),
    "quantile, lasso": (QuantileRegressor(quantile=0.5, alpha=0.05), 0.06),
    "support vector regression": (LinearSVR(C=0.5, epsilon=0.2, **TIGHT), 0.005),
    "support vectors": (LinearSVC(C=0.1, loss="hinge", **TIGHT), 0.03),
    "support vectors, no intercept": (
        LinearSVC(C=0.1, loss="hinge", fit_intercept=False, **TIGHT),
        0.03,
    ),
}


@pytest.mark.parametrize("name", HOSTS)
def test_refits_are_near_the_hosts_own(name):
    host, atol = HOSTS[name]
    X, y, w = made(n=150, labels="vectors" in name, spread=0.5)
    fitted = clone(host).fit(X, y, sample_weight=w)
    fit, plan = lo.from_sklearn(fitted, X, y, w), lo.kfold(150, 4, rng=0)
    assert "rounded over a width" in str(fit)
    predicted, mine = np.empty(150), lo.cross_predict(fit, plan, strategy=lo.Exact(), kind="link")
    for own in plan.matrix():
        again = clone(host).fit(X[own > 0], y[own > 0], sample_weight=w[own > 0])
        seen = again.decision_function if hasattr(again, "decision_function") else again.predict
        predicted[own == 0] = seen(X[own == 0])
    assert np.abs(mine - predicted).max() < atol * np.abs(y).max()
    assert lo.cross_validate(fit, plan).proved.mean() == 1
    with pytest.raises(ValueError, match="not near a minimum"):
        lo.from_sklearn(fitted, X, y[::-1], w)


def test_a_host_that_is_a_little_off_is_told():
    """Further above the least than rounding explains: other data, or a solver that did not arrive.

    The fit is at the least.
    """
    X, y, _ = made(n=150)
    host = LinearSVR(C=0.5, **TIGHT).fit(X, y)
    assert lo.from_sklearn(host, X, y).decrement < 1e-6
    with pytest.warns(
        UserWarning,
        match="not at a minimum on these data.*rounding its kinks explains .* is at that least",
    ):
        fit = lo.from_sklearn(host, X, y + 0.1 * np.sin(np.arange(150)))
    assert fit.decrement < 1e-6


def test_what_is_refused():
    X, y, _ = made()
    for error, match, call in (
        (ValueError, "between 0 and 1", lambda: lo.losses.Quantile(1.5, width=0.1)),
        (ValueError, "width must be positive", lambda: lo.losses.Quantile(0.5, width=0.0)),
        (
            ValueError,
            "epsilon must be finite",
            lambda: lo.losses.EpsilonInsensitive(-1.0, width=0.1),
        ),
        (ValueError, "−1 or 1", lambda: lo.GLM(X, y, "hinge")),
        (
            TypeError,
            "loss='epsilon_insensitive'",
            lambda: _from(LinearSVR(loss="squared_epsilon_insensitive", C=0.01), X, y),
        ),
    ):
        with pytest.raises(error, match=match):
            call()
    task = prepare("test", Ridge(positive=True), X, y, "mse", "auto")
    learner = make_learner(Ridge(positive=True), task, None)
    assert type(learner) is Estimator  # no sum of squares that can be solved side by side


def _from(host, X, y):
    return lo.from_sklearn(host.fit(X, y), X, y)
