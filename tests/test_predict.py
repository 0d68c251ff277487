"""`lo.predict`: predictions of new rows are those of the host, or of the model written out again.

What has none refuses.
"""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.linear_model import (
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

import leaveout as lo
from tests.helpers import toy_hmm

rng = np.random.default_rng(0)
N = 60
X, NEW = rng.standard_normal((N, 3)), rng.standard_normal((7, 3))
KIND = rng.integers(0, 3, N)
Y = X @ [1.0, -0.5, 0.0] + 0.5 * rng.standard_normal(N)
FRAME = pd.DataFrame(
    {"b": X[:, 1], "a": X[:, 0], "c": np.array(["u", "v", "w"])[KIND]},
    index=[f"row {i}" for i in range(N)],
)
CLASSES = {2: np.array(["no", "yes"])[(Y > 0) * 1], 3: np.array(["p", "q", "r"])[KIND]}


@pytest.mark.parametrize(
    "host, y",
    [
        (LinearRegression(), Y),
        (Ridge(2.0), Y),
        (Lasso(0.2), Y),
        (PoissonRegressor(tol=1e-9), np.exp(Y)),
        (make_pipeline(PolynomialFeatures(2), StandardScaler(), Ridge(1.0)), Y),
    ],
)
def test_predictions_are_the_hosts(host, y):
    fit = lo.from_sklearn(host.fit(X, y), X, y)
    np.testing.assert_allclose(lo.predict(fit, NEW), host.predict(NEW), rtol=1e-12)


@pytest.mark.parametrize("number", [2, 3])
def test_probabilities_are_the_hosts(number):
    host = LogisticRegression(tol=1e-8).fit(X, CLASSES[number])
    found, wanted = (
        lo.predict(lo.from_sklearn(host, X, CLASSES[number]), NEW),
        host.predict_proba(NEW),
    )
    if number == 2:
        np.testing.assert_allclose(found, wanted[:, 1], rtol=1e-12)
    else:
        assert list(found.columns) == list(host.classes_)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_columns_are_matched_by_name_and_rows_keep_their_labels():
    columns = make_column_transformer((OneHotEncoder(), ["c"]), (StandardScaler(), ["a", "b"]))
    host = make_pipeline(columns, Ridge(1.0)).fit(FRAME, Y)
    fit, new = lo.from_sklearn(host, FRAME, Y), FRAME.sample(5, random_state=0)[["c", "a", "b"]]
    found = lo.predict(fit, new)
    assert list(found.index) == list(new.index) and found.name == "prediction"
    np.testing.assert_allclose(found, host.predict(new), rtol=1e-12)
    with pytest.raises(ValueError, match=r"columns are missing|lacks columns"):
        lo.predict(fit, new.drop(columns="a"))


@pytest.mark.parametrize("sparse", [True, False])
def test_coefficients_have_the_names_that_a_pipeline_gives(sparse):
    columns = make_column_transformer(
        (OneHotEncoder(sparse_output=sparse), ["c"]),
        (StandardScaler(), ["a"]),
        sparse_threshold=1.0,
    )
    host = make_pipeline(columns, Ridge(1.0)).fit(FRAME, Y)
    names = [*host[:-1].get_feature_names_out(), "intercept"]
    for data in (FRAME, FRAME.reset_index(drop=True)):
        assert lo.from_sklearn(host, data, Y).objective.parameters.names() == names


def test_a_formula_and_an_offset():
    frame = FRAME.assign(y=rng.poisson(2.0, N), t=rng.uniform(1, 2, N))
    results = smf.poisson("y ~ a * C(c)", frame, offset=np.log(frame.t)).fit(disp=0)
    new = frame.tail(6)
    found = lo.predict(lo.from_statsmodels(results), new, offset=np.log(new.t))
    np.testing.assert_allclose(found, results.predict(new, offset=np.log(new.t)), rtol=1e-10)
    with pytest.raises(ValueError, match="predict: the model has an offset"):
        lo.predict(lo.from_statsmodels(results), new)


def test_models_of_our_own():
    order = pd.Categorical(KIND, ordered=True)
    found = lo.predict(lo.fit(lo.Regression(X, order, "ordinal")), NEW)
    assert list(found.columns) == [0, 1, 2] and np.allclose(found.sum(axis=1), 1)
    cox = lo.fit(lo.Cox(X, rng.exponential(size=N), np.ones(N)))
    np.testing.assert_allclose(lo.predict(cox, NEW, "link"), NEW @ cox.parameters["coef"])
    np.testing.assert_allclose(np.log(lo.predict(cox, NEW)), NEW @ cox.parameters["coef"])
    data = FRAME.assign(y=Y + KIND)
    mixed = lo.fit(lo.Mixed("y ~ a + (1 | c)", data))
    pd.testing.assert_series_equal(
        lo.predict(mixed, data),
        mixed.objective.predict(mixed, data=data)["mean"].rename("prediction"),
    )


@pytest.mark.parametrize("ard", [False, True])
def test_gaussian_processes_predict_as_scikit_learns(ard):
    fit = lo.fit(lo.GaussianProcess(X, Y, ard=ard))
    own = fit.parameters
    kernel = kernels.ConstantKernel(own["sd"] ** 2) * kernels.Matern(
        own["length"], nu=2.5
    ) + kernels.WhiteKernel(own["noise_sd"] ** 2)
    host = GaussianProcessRegressor(kernel, optimizer=None).fit(X, Y - own["mean"])
    np.testing.assert_allclose(lo.predict(fit, NEW), own["mean"] + host.predict(NEW), rtol=1e-8)


def test_rows_outside_the_span_of_the_data_are_named():
    fit = lo.fit(lo.GLM(np.c_[X[:, 0], X[:, 0]], Y, "squared"))
    with pytest.warns(UserWarning, match="predict: 1 of 2 rows are outside the span"):
        lo.predict(fit, [[1.0, 1.0], [1.0, 2.0]])
    # a common shift is none
    lo.predict(lo.from_sklearn(LogisticRegression(tol=1e-8).fit(X, CLASSES[3]), X, CLASSES[3]), NEW)


def test_targets_are_transformed_back():
    host = TransformedTargetRegressor(LinearRegression(), func=np.log, inverse_func=np.exp).fit(
        X, np.exp(Y)
    )
    fit = lo.from_sklearn(host, X, np.exp(Y))
    np.testing.assert_allclose(lo.predict(fit, NEW), host.predict(NEW), rtol=1e-10)
    np.testing.assert_allclose(lo.predict(fit, NEW, "link"), np.log(host.predict(NEW)), rtol=1e-10)


def test_what_has_no_predictions_says_so():
    fit = lo.fit(lo.GLM(X, Y, "squared"))
    with pytest.raises(TypeError, match="must be a Fit"):
        lo.predict(fit.objective, NEW)
    with pytest.raises(ValueError, match="kind must be one of 'response', 'link'"):
        lo.predict(fit, NEW, "label")
    with pytest.raises(ValueError, match="NaN or infinite"):
        lo.predict(fit, np.where(NEW > 1, np.nan, NEW))
    with pytest.raises(TypeError, match="HMM has no predictions of other units"):
        lo.predict(lo.fit(toy_hmm(), num_starts=1), NEW)
