"""CR2 against dense matrices and clubSandwich's figures."""

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

R = Path(os.environ.get("LEAVEOUT_DATA", "nowhere")) / "reference" / "jackknife"
pytestmark = pytest.mark.filterwarnings("ignore:covariance. .* groups are fewer")


def dense(X, y, labels, w, phi):
    """CR2 and its degrees of freedom by matrices over all units, as clubSandwich writes them."""
    n, M = len(y), np.linalg.inv(X.T @ (w[:, None] * X))
    IH, e = np.eye(n) - X @ M @ (X * w[:, None]).T, y - X @ M @ X.T @ (w * y)
    B, score, p = IH @ (phi[:, None] * IH.T), [], []
    for g in np.unique(labels):
        i = np.flatnonzero(labels == g)
        D = np.sqrt(phi[i])
        values, Q = np.linalg.eigh(D[:, None] * B[np.ix_(i, i)] * D)
        there = values > 1e-9 * values.max()
        A = D[:, None] * ((Q[:, there] * values[there] ** -0.5) @ Q[:, there].T) * D
        a = A @ ((w[:, None] * X)[i] @ M)
        score.append(a.T @ e[i])
        p.append(IH[i].T @ a)
    P = np.einsum("gnj,n,hnj->jgh", np.array(p), phi, np.array(p))
    score = np.array(score)
    return score.T @ score, np.einsum("jgg->j", P) ** 2 / (P**2).sum((1, 2))


@pytest.mark.parametrize("weighted", ["no", "over clusters", "within clusters"])
@pytest.mark.parametrize("varied", ["no", "over clusters", "within clusters"])
def test_dense_matrices(weighted, varied):
    rng = np.random.default_rng(4)
    n, labels = 70, np.sort(rng.integers(0, 13, 70))
    X = np.column_stack([rng.standard_normal((n, 2)), labels == 3, np.ones(n)])
    y = rng.standard_normal(n) + rng.standard_normal(13)[labels]
    drawn = {
        "no": np.ones(n),
        "over clusters": rng.gamma(3, 1, 13)[labels],
        "within clusters": rng.gamma(3, 1, n),
    }
    w, phi = drawn[weighted], 2 * drawn[varied]
    fit = lo.fit(lo.GLM(X[:, :3], y, "squared", sample_weight=w))
    shuffled = rng.permutation(n)
    own = lo.fit(lo.GLM(X[shuffled, :3], y[shuffled], "squared", sample_weight=w[shuffled]))
    want, dof = dense(X, y, labels, w, phi)
    for each, order in ((fit, slice(None)), (own, shuffled)):
        found = lo.covariance(each, "CR2", groups=labels[order], working_variance=phi[order])
        np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found.dof, dof, rtol=1e-8)
    assert found.errors is None and list(found.summary())[2] == "t"


@pytest.mark.skipif(
    not R.is_dir(), reason="needs reference/jackknife in the folder named by LEAVEOUT_DATA"
)
@pytest.mark.parametrize("table", ["cr2_tests", "cr2_tests_weights_identity", "cr2_tests_weighted"])
def test_the_tests_of_clubsandwich(table):
    data = pd.read_csv(R / ("apiclus1.csv" if table == "cr2_tests" else "apistrat.csv"))
    weight = None if table == "cr2_tests" else data.pw
    fit = lo.fit(
        lo.GLM(
            data[["ell", "meals", "mobility"]],
            data.api00.astype(float),
            "squared",
            sample_weight=weight,
        )
    )
    precision = 1 / data.pw if table == "cr2_tests_weighted" else None
    found = lo.covariance(fit, "CR2", groups=data.dnum, working_variance=precision).summary()
    want = (
        pd.read_csv(R / f"{table}.csv")
        .set_index("Coef")
        .rename({"(Intercept)": "intercept"})
        .loc[found.index]
    )
    names = {"coef": "beta", "std err": "SE", "t": "tstat", "dof": "df_Satt", "P>|t|": "p_Satt"}
    for ours, theirs in names.items():
        np.testing.assert_allclose(
            found[ours], want[theirs], rtol=1e-11 if ours != "P>|t|" else 1e-9
        )


def test_a_row_of_weight_zero_is_not_there():
    rng = np.random.default_rng(1)
    X, y, labels, w = (
        rng.standard_normal((60, 2)),
        rng.standard_normal(60),
        np.arange(60) % 25,
        np.ones(60),
    )
    w[labels < 3] = 0
    whole = lo.covariance(lo.fit(lo.GLM(X, y, "squared", sample_weight=w)), "CR2", groups=labels)
    some = lo.covariance(lo.fit(lo.GLM(X[w > 0], y[w > 0], "squared")), "CR2", groups=labels[w > 0])
    np.testing.assert_allclose(whole, some)
    np.testing.assert_allclose(whole.dof, some.dof)


def test_other_models_are_refused():
    X, y = np.random.default_rng(0).standard_normal((50, 2)), np.arange(50.0) % 2
    labels = np.arange(50) // 2
    for model in (
        lo.Regression(X, y, "gaussian"),
        lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)),
    ):
        with pytest.raises(TypeError, match="CR2 needs a GLM of one convex loss without a penalty"):
            lo.covariance(lo.fit(model), "CR2", groups=labels)
    fit = lo.fit(lo.GLM(X, y, "squared"))
    with pytest.raises(ValueError, match="working_variance must be one positive number a unit, 50"):
        lo.covariance(fit, "CR2", groups=labels, working_variance=np.zeros(50))
    with pytest.raises(ValueError, match="working_variance goes with kind='CR2'"):
        lo.covariance(fit, "CRV3", groups=labels, working_variance=np.ones(50))


@pytest.mark.slow
def test_many_clusters_take_no_square_matrix():
    """A fifth of a second where dense matrices of 30,000 units would not fit."""
    rng = np.random.default_rng(0)
    X, labels = rng.standard_normal((30_000, 5)), rng.integers(0, 10_000, 30_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lo.covariance(
            lo.fit(lo.GLM(X, rng.standard_normal(30_000), "squared")), "CR2", groups=labels
        )
    np.testing.assert_allclose(found.standard_errors, 1 / np.sqrt(30_000), rtol=0.1)
    assert (found.dof > 3000).all()


def pairs_of_rows(X, score, w, labels):
    """CR2 of clusters of two rows by working weights; the root of two rows' K⁻¹ = P is in closed
    form, (P + √|P| I) / √(tr P + 2√|P|), without a loss of digits.
    """
    M = np.linalg.inv(X.T @ (w[:, None] * X))
    scores = []
    for g in np.unique(labels):
        i = np.flatnonzero(labels == g)
        a, b = w[i]
        h = (X[i] @ M @ X[i].T) * np.sqrt(np.outer(w[i], w[i]))
        det = ((1 - h[0, 0]) * (1 - h[1, 1]) - h[0, 1] ** 2) / (a * b) ** 2
        cross = h[0, 1] / (a * b)
        P = np.array([[(1 - h[1, 1]) / b**2, cross], [cross, (1 - h[0, 0]) / a**2]]) / det
        root = 1 / np.sqrt(det)
        half = (P + root * np.eye(2)) / np.sqrt(np.trace(P) + 2 * root)
        A = half / np.sqrt(np.outer(w[i], w[i]))
        scores.append((w[i, None] * X[i]).T @ A @ (score[i] / w[i]))
    scores = np.array(scores)
    return M @ scores.T @ scores @ M


@pytest.mark.parametrize("kind", ["poisson", "logistic"])
def test_working_weights_over_many_powers_of_ten(kind):
    """Rows of tiny weights do not push the others out."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(30), 2)
    x = np.linspace(-2.5, 2.5, 60)[rng.permutation(60)]
    eta = 4.6 * x
    y = rng.poisson(np.exp(eta)) * 1.0
    if kind == "logistic":
        y = (rng.random(60) < 1 / (1 + np.exp(-2 * eta))) * 1.0
    fit = lo.fit(lo.GLM(x[:, None], y, kind))
    eta = fit.coef.iloc[0] * x + fit.parameters["intercept"]
    mean, w = np.exp(eta), np.exp(eta)
    if kind == "logistic":
        mean = 1 / (1 + np.exp(-eta))
        w = mean / (1 + np.exp(eta))
    assert w.max() / w.min() > 1e5
    X = np.column_stack([x, np.ones(60)])
    want = pairs_of_rows(X, y - mean, w, labels)
    np.testing.assert_allclose(lo.covariance(fit, "CR2", groups=labels), want, rtol=1e-6)


def test_scores_of_units_without_curvature_count():
    """Under Huber's loss ℓ″ is zero far out, and the score is not: CR2 is the limit of ℓ″ → 0."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 16
    X = np.column_stack([rng.standard_normal(80), np.ones(80)])
    y = X[:, 0] + rng.standard_t(2, 80)
    fit = lo.fit(lo.GLM(X[:, :1], y, lo.losses.Huber(0.8)))
    residual = y - X @ [fit.coef.iloc[0], fit.parameters["intercept"]]
    score, w = np.clip(residual, -0.8, 0.8), np.where(np.abs(residual) < 0.8, 1.0, 1e-4)
    assert 20 < (w < 1).sum() < 50
    want, _ = dense(X, score / w, labels, w, 1 / w)
    np.testing.assert_allclose(lo.covariance(fit, "CR2", groups=labels), want, rtol=2e-3, atol=1e-5)
