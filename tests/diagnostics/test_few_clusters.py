"""Bootstraps over clusters against literal ones, which draw responses and fit them again."""

import itertools

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

pytestmark = pytest.mark.filterwarnings("ignore:covariance. .* groups are fewer")
SIZES = [3, 4, 6, 8, 9]
VALUES = {"Rademacher": [-1.0, 1.0], "Webb": np.sqrt([0.5, 1, 1.5])[None].T * [-1.0, 1.0]}


def clustered(kind, seed=2):
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(len(SIZES)), SIZES)
    X = rng.standard_normal((len(g), 2)) + rng.standard_normal(len(SIZES))[g, None]
    eta = X @ [0.7, 0.0] + rng.standard_normal(len(SIZES))[g]
    y = {"squared": eta + rng.standard_normal(len(g)), "poisson": rng.poisson(np.exp(eta / 2))}
    return X, y.get(kind, (eta > rng.logistic(size=len(g))) * 1.0), g


def literal(X, w, start, residual, place, g, draws):
    """t of a coefficient in least squares of each drawn response."""
    inverse = np.linalg.inv(X.T @ (w[:, None] * X))
    members = np.eye(g.max() + 1)[:, g]
    for v in draws:
        y = X @ start + v[g] * residual
        theta = inverse @ X.T @ (w * y)
        score = members @ ((w * (y - X @ theta))[:, None] * X)
        yield (theta - start)[place] / np.sqrt(((score @ inverse[place]) ** 2).sum())


@pytest.mark.parametrize("law", VALUES)
@pytest.mark.parametrize("kind", ["squared", "poisson", "logistic"])
def test_literal_bootstraps(kind, law):
    """All factors are enumerated; other losses are the least squares of their last Newton step."""
    X, y, g = clustered(kind)
    fit = lo.fit(lo.GLM(X, y, kind))
    table = lo.covariance(fit, groups=g).few_clusters()
    columns = np.column_stack([X, np.ones(len(X))])
    draws = np.array([*itertools.product(np.ravel(VALUES[law]), repeat=len(SIZES))])
    for null, place in itertools.product(("restricted", "unrestricted"), (0, 1)):
        theta = fit.vector
        if null == "restricted":
            rest = lo.fit(lo.GLM(np.delete(X, place, 1), y, kind)).vector
            theta = np.insert(rest, place, 0.0)
        slope, w = fit.objective.loss_function.derivatives(columns @ theta, y, (1, 2))
        arguments = columns, w, theta, -slope / w, place, g
        (t,) = literal(*arguments, np.ones((1, len(SIZES))))
        if null == "unrestricted":
            t = (
                fit.vector[place]
                / lo.covariance(
                    fit, "cluster", groups=g, use_correction=False
                ).standard_errors.iloc[place]
            )
        drawn = np.array([*literal(*arguments, draws)])
        p = max(np.mean(np.abs(drawn) >= abs(t) * (1 - 1e-9)), 2 / len(draws))
        row = table.loc[(f"x{place}", f"{null}, {law}")]
        np.testing.assert_allclose(
            row[["t", "P>|t|", "least P"]], [t, p, 2 / len(draws)], rtol=1e-6
        )


def test_sandwiches_are_those_of_covariance():
    X, y, g = clustered("squared")
    fit = lo.fit(lo.GLM(X, y, "squared"))
    table = fit.covariance(groups=g).few_clusters(num_resamples=20)
    for name, kind in {"CRV1": "cluster", "CRV3": "CRV3", "CR2": "CR2"}.items():
        covariance = fit.covariance(kind, groups=g)
        rows = table.xs(name, level=1).loc[covariance.index]
        np.testing.assert_array_equal(rows["std err"], covariance.standard_errors)
        np.testing.assert_array_equal(rows["df"], covariance.dof)
    assert (table["least P"].dropna() == 1 / 20).all()
    assert "clusters" in str(table) and str(len(SIZES)) in str(table).splitlines()[0]


def test_absorbed_effects_are_columns():
    X, y, g = clustered("squared")
    year = np.arange(len(y)) % 4
    data = pd.DataFrame(X, columns=["a", "b"]).assign(y=y, year=year)
    absorbed, columns = (
        lo.covariance(lo.fit(lo.GLM(formula, data, "squared")), groups=g).few_clusters()
        for formula in ("y ~ a + b | year", "y ~ a + b + C(year)")
    )
    want = columns.loc[["a", "b"]].sort_index()
    np.testing.assert_allclose(absorbed.sort_index(), want, rtol=1e-6, atol=1e-12)


def test_cr2_of_working_weights():
    from tests.diagnostics.test_bias_reduced import dense

    X, y, g = clustered("poisson")
    fit = lo.fit(lo.GLM(X, y, "poisson"))
    columns = np.column_stack([X, np.ones(len(X))])
    mean = np.exp(columns @ fit.vector)
    working = columns @ fit.vector + (y - mean) / mean
    value, dof = dense(columns, working, g, mean, 1 / mean)
    found = lo.covariance(fit, "CR2", groups=g)
    np.testing.assert_allclose(found, value, rtol=1e-7)
    np.testing.assert_allclose(found.dof, dof, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"cases": True}, {"use_correction": False}, {"small_sample": "fixest"}],
)
def test_other_factors_are_not_those_of_the_table(options):
    """The table has no such options, and says so instead of leaving them out."""
    X, y, g = clustered("squared")
    fit = lo.fit(lo.GLM(X, y, "squared"))
    with pytest.raises(ValueError, match="and no other options"):
        fit.covariance("cluster", groups=g, **options).few_clusters()
    with pytest.raises(ValueError, match="and no other options"):
        fit.covariance("CR2", groups=g, working_variance=1 + g).few_clusters()
    assert len(fit.covariance("cluster", groups=g, use_correction=True).few_clusters()) == 21


def test_a_cluster_that_alone_determines_a_coefficient_is_said():
    X, y, g = clustered("squared")
    fit = lo.fit(lo.GLM(np.column_stack([X, g == 1]), y, "squared"))
    with pytest.warns(UserWarning, match="determine"):
        lo.covariance(fit, groups=g).few_clusters()


def test_bad_calls():
    X, y, g = clustered("squared")
    fit = lo.fit(lo.GLM(X, y, "squared"))
    with pytest.raises(ValueError, match="needs clusters of one way"):
        lo.covariance(fit, "HC1").few_clusters()
    with pytest.raises(ValueError, match="needs clusters of one way"):
        lo.covariance(fit, groups=np.c_[g, np.arange(len(g)) % 3]).few_clusters()
    with pytest.raises(ValueError, match="num_resamples"):
        lo.covariance(fit, groups=g).few_clusters(num_resamples=0)
    penalised = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)))
    with pytest.raises(TypeError, match="CR2 needs a GLM of one convex loss without a penalty"):
        lo.covariance(penalised, groups=g).few_clusters()
