"""Influence measures: the textbook's for least squares, refits from scratch everywhere."""

import numpy as np
import pytest
import statsmodels.api as sm

import leaveout as lo
from tests.helpers import fitted, glm

rng = np.random.default_rng(1)
N = 50
X = np.c_[np.ones(N), rng.standard_normal((N, 2))]
Y = X @ [1.0, 0.5, -0.4] + rng.standard_normal(N)
Y[7], X[7, 1] = 9.0, 4.0
WEIGHT = rng.gamma(4.0, 0.25, N)


def test_least_squares_has_the_textbooks_measures():
    results = sm.OLS(Y, X).fit()
    fit, theirs = lo.from_statsmodels(results), results.get_influence()
    np.testing.assert_allclose(lo.diagnostics.leverage(fit), theirs.hat_matrix_diag, rtol=1e-10)
    np.testing.assert_allclose(
        lo.diagnostics.cooks_distance(fit), theirs.cooks_distance[0], rtol=1e-8
    )
    np.testing.assert_allclose(lo.diagnostics.dfbetas(fit), theirs.dfbetas, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        lo.diagnostics.studentized_residuals(fit), theirs.resid_studentized_external, rtol=1e-8
    )
    assert list(lo.diagnostics.dfbetas(fit).columns) == ["const", "x1", "x2"]


def test_weighted_least_squares_against_refits():
    results = sm.WLS(Y, X, weights=WEIGHT).fit()
    fit = lo.from_statsmodels(results)
    cook, betas, residual = (
        lo.diagnostics.cooks_distance(fit),
        lo.diagnostics.dfbetas(fit).to_numpy(),
        lo.diagnostics.studentized_residuals(fit),
    )
    for i in (0, 7, 20):
        keep = np.arange(N) != i
        again = sm.WLS(Y[keep], X[keep], weights=WEIGHT[keep]).fit()
        step = again.params - results.params
        information = X.T @ (WEIGHT[:, None] * X)
        np.testing.assert_allclose(
            cook[i], step @ information @ step / (3 * results.scale), rtol=1e-8
        )
        spread = np.sqrt(again.scale * np.diag(np.linalg.inv(information)))
        np.testing.assert_allclose(betas[i], -step / spread, rtol=1e-7)
        variance = (
            1 / WEIGHT[i] + X[i] @ np.linalg.inv(X[keep].T @ (WEIGHT[keep, None] * X[keep])) @ X[i]
        )
        np.testing.assert_allclose(
            residual[i], (Y[i] - X[i] @ again.params) / np.sqrt(again.scale * variance), rtol=1e-7
        )


@pytest.mark.parametrize("family, loss", [("Poisson", "poisson"), ("Gamma", "gamma")])
def test_generalised_linear_models_against_refits(family, loss):
    y = rng.poisson(np.exp(0.4 * X[:, 1])) + (family == "Gamma") * rng.uniform(0.5, 1, N)
    model = lambda keep: sm.GLM(
        y[keep], X[keep], getattr(sm.families, family)(sm.families.links.Log())
    ).fit(tol=1e-13)
    results = model(np.ones(N, bool))
    fit = lo.from_statsmodels(results)
    cook, betas, residual = (
        lo.diagnostics.cooks_distance(fit),
        lo.diagnostics.dfbetas(fit).to_numpy(),
        lo.diagnostics.studentized_residuals(fit),
    )
    observed = X.T @ ((y / results.mu if family == "Gamma" else results.mu)[:, None] * X)
    h = np.einsum("np,pq,nq->n", X, np.linalg.inv(observed), X) * (
        y / results.mu if family == "Gamma" else results.mu
    )
    np.testing.assert_allclose(lo.diagnostics.leverage(fit), h, rtol=1e-6)
    for i in (0, 7, 20):
        again = model(np.arange(N) != i)
        step, scale = again.params - results.params, results.scale if family == "Gamma" else 1.0
        left = again.scale if family == "Gamma" else 1.0
        np.testing.assert_allclose(cook[i], step @ observed @ step / (3 * scale), rtol=1e-5)
        np.testing.assert_allclose(
            betas[i], -step / np.sqrt(left * np.diag(np.linalg.inv(observed))), rtol=1e-4, atol=1e-8
        )
        mean = np.exp(X[i] @ again.params)
        variance = left * (mean**2 if family == "Gamma" else mean)
        np.testing.assert_allclose(
            residual[i], (y[i] - mean) * np.sqrt((1 - h[i]) / variance), rtol=1e-5
        )


def test_leverages_sum_to_the_effective_parameters():
    ridge = fitted("ridge")
    X = np.asarray(ridge.objective.design)
    information = X.T @ X
    want = np.trace(np.linalg.solve(information + 0.7 * np.diag([1.0, 1, 1, 0]), information))
    np.testing.assert_allclose(lo.diagnostics.leverage(ridge).sum(), want, rtol=1e-10)
    # two free predictors of four coefficients
    assert abs(lo.diagnostics.leverage(lo.fit(glm("multinomial"))).sum() - 2 * 4) < 1e-8


def test_any_objective_has_a_cooks_distance():
    cook = lo.diagnostics.cooks_distance(fitted("hidden Markov"))
    assert (cook >= 0).all() and cook.argmax() != cook.argmin()


@pytest.mark.slow
def test_what_has_no_such_measure():
    with pytest.raises(
        TypeError, match=r"leverage: needs linear predictors; got ToyHMM. Use lo.fold_parameters"
    ):
        lo.diagnostics.leverage(fitted("hidden Markov"))
    with pytest.raises(TypeError, match="balanced"):
        lo.diagnostics.leverage(fitted("logistic, balanced"))
    with pytest.raises(TypeError, match="one linear predictor; got GLM"):
        lo.diagnostics.studentized_residuals(fitted("multinomial"))
    with pytest.raises(NotImplementedError, match="PseudoHuber states no variance"):
        lo.diagnostics.studentized_residuals(fitted("pseudo-huber, penalty not quadratic"))
    with pytest.raises(TypeError, match="must be a Fit"):
        lo.diagnostics.cooks_distance(X)


def test_pictures(tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    fit = lo.from_statsmodels(sm.OLS(Y, X).fit())
    cv = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep())
    axes = {
        "leverage": lo.plot.leverage(fit, cv),
        "against_exact": lo.plot.against_exact(fit, cv, num_sampled=10),
        "influence": lo.plot.influence(fit),
        "estimates": lo.plot.estimates(
            {"all": cv, "folds": lo.cross_validate(fit, lo.kfold(k=5), strategy=lo.NewtonStep())}
        ),
    }
    for name, ax in axes.items():
        ax.get_figure(root=True).savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert dict(mpl.rcParams) == before
    # the outlier of high leverage
    assert "7" in [text.get_text() for text in axes["influence"].texts]
    assert "10 of 50 refits" in axes["against_exact"].get_title()
    with pytest.raises(ValueError, match="one or more"):
        lo.plot.estimates({})
    with pytest.raises(ValueError, match="score the units of this fit"):
        lo.plot.leverage(fitted("ridge"), cv)
