"""A fit answers by itself: against statsmodels, and for models that have no standard errors."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import leaveout as lo


@pytest.fixture
def table():
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=["dose", "age"])
    table["y"] = table["dose"] - 0.5 * table["age"] + rng.normal(size=60)
    table["ill"] = (table["y"] > 0) * 1.0
    return table


@pytest.mark.parametrize(("response", "loss"), [("y", "squared"), ("ill", "logistic")])
def test_as_statsmodels_prints_it(table, response, loss):
    model = {"squared": sm.OLS, "logistic": sm.Logit}[loss]
    theirs = model(table[response], sm.add_constant(table[["dose", "age"]])).fit(disp=0)
    fit = lo.fit(lo.GLM(f"{response} ~ dose + age", table, loss))
    names = {"const": "intercept"}
    coef = theirs.params.rename(names)[fit.coef.index]
    pd.testing.assert_series_equal(fit.coef, coef, check_names=False, rtol=1e-7)
    ours = fit.summary(0.9)
    errors = theirs.bse.rename(names)[fit.coef.index]
    pd.testing.assert_series_equal(ours["std err"], errors, check_names=False, rtol=1e-6)
    ends = theirs.conf_int(0.1).rename(names).loc[fit.coef.index].to_numpy()
    np.testing.assert_allclose(ours.iloc[:, 4:6], ends, rtol=1e-6)
    tested = theirs.pvalues.rename(names)[fit.coef.index]
    np.testing.assert_allclose(ours.iloc[:, 3], tested, rtol=1e-5)


def test_predictions_and_covariances_are_those_of_the_functions(table):
    fit = lo.fit(lo.GLM("ill ~ dose + age", table, "logistic"))
    new = table[["dose", "age"]].head(7) + 1.0
    pd.testing.assert_series_equal(fit.predict(new), lo.predict(fit, new))
    link = lo.predict(fit, new, "link")
    pd.testing.assert_series_equal(fit.predict(new, "link"), link)
    groups = np.arange(60) % 25
    pd.testing.assert_frame_equal(
        fit.covariance("cluster", groups=groups), lo.covariance(fit, "cluster", groups=groups)
    )
    assert fit.covariance("cluster", groups=groups, use_correction=False).kind == "cluster"


def test_a_lasso_has_no_standard_errors(table):
    model = lo.GLM("y ~ dose + age", table, "squared", lo.penalties.Lasso(3.0))
    fit = lo.fit(model)
    summary = fit.summary()
    assert list(summary.columns) == ["coef"]
    assert "none" in repr(summary).splitlines()[0]
    pd.testing.assert_series_equal(summary["coef"], fit.coef)


def test_a_chain_has_model_based_errors_and_a_given_parameter_has_none():
    y = np.random.default_rng(0).normal(size=30)
    chain = lo.fit(lo.HMM(y, lo.emissions.Gaussian(), 2))
    assert "model-based" in repr(chain.summary())
    edges = np.stack([np.arange(9), np.arange(1, 10)], axis=1)
    field = lo.fit(lo.MRF(y[:10], edges, lo.emissions.Gaussian(), 2, coupling=0.3))
    row = field.summary().loc["coupling"]
    assert row["coef"] == pytest.approx(0.3)
    assert row.drop("coef").isna().all()


def test_a_printed_fit_names_the_parameters_of_an_objective_of_ones_own():
    y = np.random.default_rng(0).normal(size=20)
    fit = lo.fit(lo.Separable(lambda theta, y: (y - theta["level"]) ** 2, y, theta0={"level": 0.0}))
    assert "1: level" in str(fit)
    assert fit.coef.to_dict() == pytest.approx({"level": y.mean()})
