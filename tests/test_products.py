"""Fits whose Hessian is never formed: the same refits by conjugate gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import OBJECTIVES, flat, minimiser

import leaveout as lo

NAMES = ["logistic", "multinomial", "hidden Markov"]
SLOWLY = [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
_fits: dict[str, lo.Fit] = {}


def by_products(name: str) -> lo.Fit:
    if name not in _fits:
        _fits[name] = lo.fit(OBJECTIVES[name](), curvature="products")
    return _fits[name]


@pytest.mark.parametrize("name", NAMES)
def test_fit_and_solve(name):
    fit = by_products(name)
    dense = lo.anchor(fit.objective, fit.parameters, curvature="dense")
    assert fit.factor is None and fit.decrement < 1e-6 and abs(fit.value - dense.value) < 1e-10 * abs(dense.value)
    vectors = np.random.default_rng(0).standard_normal((fit.num_params, 2))
    vectors -= (
        dense.null_space.T @ np.linalg.lstsq(dense.null_space.T, vectors)[0]
    )  # off flat directions, whose curvature is arbitrary
    np.testing.assert_allclose(fit.solve(vectors), dense.solve(vectors), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(fit.solve(vectors[:, 0]), dense.solve(vectors[:, 0]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", SLOWLY)
def test_exact_is_the_refit(name):
    fit = by_products(name)
    plan = lo.random_subsets(fit.objective.num_units, 0.1, 3, seed=1)
    got, certified = lo.fold_parameters(fit, plan, lo.Exact(1e-10)), lo.cross_validate(fit, plan)
    scores = lo.cross_validate(fit, plan, lo.Exact(1e-10)).losses
    sums = lambda losses: np.array([np.nansum(losses[plan.indptr[k] : plan.indptr[k + 1]]) for k in range(3)])
    assert (np.abs(sums(certified.losses) - sums(scores)) <= certified.error + 1e-9).all()
    for k, weights in enumerate(plan.matrix()):
        row = jax.tree.map(lambda leaf, k=k: leaf[k], got)
        want = minimiser(fit.objective, fit.theta, weights)
        np.testing.assert_allclose(flat(fit.objective.parameters.unconstrained(row)), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("refit", [lo.InfinitesimalJackknife(), lo.InfinitesimalJackknife(2), lo.NewtonStep()])
@pytest.mark.parametrize("name", SLOWLY)
def test_strategies_agree_with_a_factor(name, refit):
    fit = by_products(name)
    dense = lo.anchor(fit.objective, fit.parameters, curvature="dense")
    plan = lo.random_subsets(fit.objective.num_units, 0.1, 3, seed=1)
    one, other = (lo.cross_validate(f, plan, refit) for f in (fit, dense))
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-5, atol=1e-7)


def saddle() -> lo.Objective:
    loss = lambda theta, weights: jnp.sum(weights) * (theta["a"] ** 2 - theta["b"] ** 2 + theta["b"] ** 4) / 2
    return lo.Objective(lambda theta, weights: jnp.sum(loss(theta, weights)), num_units=10)


def test_refused():
    theta = {"a": np.zeros(3), "b": np.zeros(3)}
    with pytest.raises(ValueError, match="not positive definite"):
        lo.anchor(saddle(), theta, curvature="products")
    with pytest.raises(ValueError, match='curvature must be "auto", "dense" or "products"; got \'sparse\''):
        lo.fit(saddle(), theta, curvature="sparse")
    with pytest.raises(ValueError, match="not finite"):
        lo.anchor(lo.Objective(lambda theta, w: jnp.sum(theta["a"]) * jnp.inf, 10), {"a": np.ones(3)}, curvature="products")
    with pytest.raises(ValueError, match=r"is not formed; use Fit\.solve"):
        _ = by_products("logistic").hessian


@pytest.mark.slow
def test_more_parameters_than_fit_in_a_matrix():
    """D = 14,001 takes products by itself; a fold against scikit-learn."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 14_000)) / np.sqrt(14_000)
    y = (rng.random(120) < 1 / (1 + np.exp(-X @ rng.standard_normal(14_000) * 3))).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)))
    assert fit.factor is None
    plan = lo.kfold(120, 4, seed=0)
    got = lo.fold_parameters(fit, plan, lo.Exact())
    train = np.setdiff1d(np.arange(120), plan.index[plan.indptr[0] : plan.indptr[1]])
    host = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000, solver="newton-cg").fit(X[train], y[train])
    np.testing.assert_allclose(got["coef"][0], host.coef_[0], atol=1e-6)


def test_leading_eigenvectors_take_out_what_is_ill_conditioned():
    """Columns that nearly repeat one another under a small penalty: in its coordinates H is near the identity."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((300, 8)), 10, axis=1) + 0.01 * rng.standard_normal((300, 80))
    y = (rng.random(300) < 0.5).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)), curvature="products")
    dense = lo.anchor(fit.objective, fit.parameters, curvature="dense")
    with jax.enable_x64(True):
        inside = np.asarray(fit.whiten(np.asarray(fit.whiten(dense.hessian)).T))
        u = rng.standard_normal(fit.num_params)
        np.testing.assert_allclose(fit.whiten(u) @ u, u @ fit.unwhiten(u))
    assert np.linalg.cond(inside) < 0.02 * np.linalg.cond(dense.hessian)
