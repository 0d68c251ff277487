"""Sparse rows with too many parameters for a matrix.

Against refits by SciPy, which share nothing with ours.
"""

import numpy as np
import pytest
import scipy

import leaveout as lo
from leaveout.refit import _wide

N, P = 200, 12_500
RIDGE = lo.penalties.Ridge(0.8)


def table(seed=0, n=N, p=P, each=40):
    """So many entries a row, about."""
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random_array(
        (n, p), density=each / p, rng=rng, format="csr", data_sampler=rng.standard_normal
    )
    eta = X @ rng.standard_normal(p) / 4
    return (
        X,
        (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        rng.poisson(np.exp(0.2 * eta)).astype(float),
    )


LOSSES = {
    "logistic": (
        lambda eta, y: np.logaddexp(0, eta) - y * eta,
        lambda eta, y: scipy.special.expit(eta) - y,
    ),
    "poisson": (lambda eta, y: np.exp(eta) - y * eta, lambda eta, y: np.exp(eta) - y),
}


def refit(X, y, loss, out, alpha=0.8, weights=None, start=None):
    """The held-out losses of a minimiser without some rows, by its gradients, its predictors and
    itself.
    """
    value, slope = LOSSES[loss]
    omega = np.ones(len(y)) if weights is None else weights.copy()
    omega[out] = 0.0

    def look(theta):
        eta = X @ theta[:-1] + theta[-1]
        left = omega * slope(eta, y)
        penalty = 0.5 * alpha * theta[:-1] @ theta[:-1]
        return omega @ value(eta, y) + penalty, np.append(
            X.T @ left + alpha * theta[:-1], left.sum()
        )

    options = {"gtol": 1e-6, "ftol": 0.0, "maxiter": 500}
    start = np.zeros(X.shape[1] + 1) if start is None else start
    theta = scipy.optimize.minimize(look, start, jac=True, method="L-BFGS-B", options=options).x
    eta = X[out] @ theta[:-1] + theta[-1]
    return value(eta, y[out]), eta, theta


@pytest.mark.parametrize("loss", ["logistic", pytest.param("poisson", marks=pytest.mark.slow)])
def test_leave_one_out_is_within_its_errors(loss):
    X, labels, counts = table()
    y = labels if loss == "logistic" else counts
    fit = lo.fit(lo.GLM(X, y, loss, RIDGE), curvature="products")
    assert fit.quadratic.factor is None and fit.decrement < 1e-6
    found = lo.cross_validate(fit, lo.leave_one_out())
    rows = np.random.default_rng(1).choice(N, 15, replace=False)
    start = refit(X, y, loss, [])[2]  # its own, of all rows
    exact = np.array([refit(X, y, loss, [k], start=start)[0][0] for k in rows])
    off = found.losses[rows] - exact
    constant = scipy.special.gammaln(y[rows] + 1) if loss == "poisson" else 0.0
    off -= constant
    assert (np.abs(off) <= found.error[rows] + 1e-6).all()
    assert np.abs(off).mean() < 0.05 * found.losses.std() and not found.proved.any()
    assert (
        found.mean_error is not None
        and found.approximation_error == found.mean_error < 0.25 * found.se
    )
    assert "probes" in str(found) and not (found.audit.beyond).any()


def test_probes_tell_leverages_without_bias_and_how_far_they_are():
    X, y, _ = table(2)
    at = _wide.wide(lo.fit(lo.GLM(X, y, "logistic", RIDGE), curvature="products"))
    probes, groups = _wide.Probes(at), 10
    probes.groups += [probes._draw() for _ in range(1)]
    while len(probes.groups) < groups:
        probes.groups.append(probes._draw())
    h, _, spread = probes._means(groups)
    design = scipy.sparse.hstack([X, np.ones((N, 1))]).toarray()
    curvature = at.curvature
    dual = (design[:, :-1] @ design[:, :-1].T) / 0.8 + 1e8  # an intercept all but free
    kernel = dual - dual @ np.linalg.solve(dual + np.diag(1 / curvature), dual)
    z = (h - np.diag(kernel)) / spread
    assert abs(z.mean()) < 4 / np.sqrt(N) and 0.8 < z.std() < 1.25
    np.testing.assert_allclose(probes.second, _second(design[:, :-1], probes), rtol=1e-8)


def _second(x, probes):
    A = probes.scale[:, None] * (x / 0.8 @ x.T) * probes.scale
    light = probes.inverse[-1] > 0
    A += np.outer(probes.scale, probes.scale) * (probes.inverse[-1] if light else 0.0)
    np.fill_diagonal(A, 0.0)
    t = 1 / (1 + probes.size)
    return t**2 * (A**2 @ t)


def test_rough_steps_of_refits_are_in_float32(monkeypatch):
    """So are those of the rows that tell the error of one step.

    The results are those of solves in float64.
    """
    X, y, _ = table(3)
    fit, plan = (
        lo.fit(lo.GLM(X, y, "logistic", RIDGE), curvature="products"),
        lo.kfold(N, 4, rng=0),
    )
    solve, made = _wide.WideModel.solve, {}

    def count(self, right, curvature, kappa, tol):
        before = self.products
        out = solve(self, right, curvature, kappa, tol)
        made[right.dtype] = made.get(right.dtype, 0.0) + self.products - before
        return out

    monkeypatch.setattr(_wide.WideModel, "solve", count)
    one_row = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    made.clear()
    found = lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0)
    assert made[np.dtype(np.float32)] > 0.3 * sum(made.values())
    monkeypatch.setattr(_wide, "SINGLE_RESIDUAL", np.inf)
    np.testing.assert_allclose(
        found.losses, lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0).losses, rtol=1e-7
    )
    again = lo.cross_validate(
        lo.fit(fit.objective, curvature="products"), lo.leave_one_out(), audit=0
    )
    np.testing.assert_allclose(one_row.losses, again.losses, rtol=1e-4)


def test_folds_of_many_rows():
    X, y, _ = table(3)
    weight = np.random.default_rng(0).random(N) + 0.5
    model, plan = lo.GLM(X, y, "logistic", RIDGE, sample_weight=weight), lo.kfold(N, 4, rng=0)
    fit = lo.fit(model, curvature="products")
    outs = [plan.index[a:b] for a, b in zip(plan.indptr[:-1], plan.indptr[1:], strict=True)]
    exact = [refit(X, y, "logistic", out, weights=weight) for out in outs]
    for strategy in (lo.Certified(), lo.Exact()):
        found = lo.cross_validate(fit, plan, strategy=strategy)
        np.testing.assert_allclose(
            found.losses, np.concatenate([losses for losses, *_ in exact]), atol=1e-5
        )
        assert len(found.flagged()) == 0
    one = lo.cross_validate(fit, plan, strategy=lo.NewtonStep())
    off = np.abs(one.losses - np.concatenate([losses for losses, *_ in exact]))
    assert (np.add.reduceat(off, plan.indptr[:-1]) <= one.error + 1e-4).all() and off.max() > 1e-4
    held = lo.cross_predict(fit, plan, kind="link")
    for out, (_, eta, _) in zip(outs, exact, strict=True):
        np.testing.assert_allclose(held[out], eta, atol=1e-4)


def test_penalties_that_shrink_as_rows_leave():
    X, _, y = table(4)
    fit = lo.fit(
        lo.GLM(X, y, "poisson", lo.penalties.per_weight(lo.penalties.Ridge(0.01))),
        curvature="products",
    )
    out = np.arange(60)
    plan = lo.groups(np.r_[np.zeros(60, int), np.ones(N - 60, int)])
    found = lo.cross_validate(fit, plan)
    constant = scipy.special.gammaln(y[out] + 1)
    exact = refit(X, y, "poisson", out, alpha=0.01 * (N - 60))[0] + constant
    np.testing.assert_allclose(found.per_unit()[out], exact, atol=1e-4)


def test_few_columns_by_products_are_as_dense_ones():
    X, y, _ = table(5, 120, 30, 6)
    dense, sparse = (
        lo.fit(lo.GLM(x, y, "logistic", RIDGE), curvature=how)
        for x, how in ((X.toarray(), "dense"), (X, "products"))
    )
    np.testing.assert_allclose(sparse.vector, dense.vector, atol=1e-8)
    for plan in (lo.kfold(120, 6), lo.bootstrap(120, 5)):
        one, other = (lo.cross_validate(fit, plan, strategy=lo.Exact()) for fit in (dense, sparse))
        np.testing.assert_allclose(other.losses, one.losses, atol=1e-7)
    one, other = (lo.cross_validate(fit, lo.leave_one_out()) for fit in (dense, sparse))
    assert (np.abs(one.losses - other.losses) <= one.error + other.error).all()
    for refit, tol in ((lo.Certified(), 1e-6), (lo.NewtonStep(), 1e-4)):
        theta = lo.fold_parameters(sparse, lo.leave_one_out(), strategy=refit)["coef"]
        other = lo.Exact() if isinstance(refit, lo.Certified) else refit
        np.testing.assert_allclose(
            theta, lo.fold_parameters(dense, lo.leave_one_out(), strategy=other)["coef"], atol=tol
        )
