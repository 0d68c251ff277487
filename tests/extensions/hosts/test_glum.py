"""glum as a host: zero gradient at its parameters, and a fold's exact refit is its own refit on
that fold.
"""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import leaveout as lo

glum = pytest.importorskip("glum")
rng = np.random.default_rng(5)
N = 80
X = rng.standard_normal((N, 3))
MEAN = np.exp(X @ [0.4, -0.3, 0.2])
WEIGHT, OFFSET = rng.gamma(4.0, 0.25, N), 0.3 * rng.standard_normal(N)
COUNT, POSITIVE = rng.poisson(MEAN).astype(float), rng.gamma(3.0, MEAN / 3) + 1e-2
BINARY = (rng.random(N) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
SHAPE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.3]])
TIGHT = {"gradient_tol": 1e-9, "max_iter": 1000, "scale_predictors": False, "l1_ratio": 0.0}
HOSTS = {
    "poisson": (
        lambda: glum.GeneralizedLinearRegressor(alpha=0.2, family="poisson", **TIGHT),
        COUNT,
    ),
    "normal, P2": (
        lambda: glum.GeneralizedLinearRegressor(alpha=0.3, P2=SHAPE, family="normal", **TIGHT),
        X[:, 0] + COUNT,
    ),
    "binomial": (
        lambda: glum.GeneralizedLinearRegressor(alpha=0.2, family="binomial", **TIGHT),
        BINARY,
    ),
    "gamma": (
        lambda: glum.GeneralizedLinearRegressor(alpha=0.2, family="gamma", link="log", **TIGHT),
        POSITIVE,
    ),
    "binomial, cloglog": (
        lambda: glum.GeneralizedLinearRegressor(
            alpha=0.2, family="binomial", link="cloglog", **TIGHT
        ),
        BINARY,
    ),
    "negative binomial": (
        lambda: glum.GeneralizedLinearRegressor(
            alpha=0.2, family="negative.binomial (0.7)", link="log", **TIGHT
        ),
        COUNT,
    ),
    "inverse gaussian": (
        lambda: glum.GeneralizedLinearRegressor(
            alpha=0.2, family="inverse.gaussian", link="log", **TIGHT
        ),
        POSITIVE,
    ),
    "no intercept, no penalty": (
        lambda: glum.GeneralizedLinearRegressor(
            alpha=0.0, family="poisson", fit_intercept=False, **TIGHT
        ),
        COUNT,
    ),
    "tweedie": (
        lambda: glum.GeneralizedLinearRegressor(
            alpha=0.1, family="tweedie (1.5)", link="log", **TIGHT
        ),
        POSITIVE,
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("poisson", "normal, P2") else pytest.param(n, marks=pytest.mark.slow)
        for n in HOSTS
    ],
)
def test_refits_are_its_own(name):
    make, y = HOSTS[name]
    fit = lo.from_glum(make().fit(X, y, sample_weight=WEIGHT, offset=OFFSET), X, y, WEIGHT, OFFSET)
    assert fit.decrement < 1e-4
    plan = lo.kfold(N, 3, rng=0)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    for k, w in enumerate(plan.matrix()):
        keep = w > 0
        again = make().fit(X[keep], y[keep], sample_weight=WEIGHT[keep], offset=OFFSET[keep])
        np.testing.assert_allclose(got["coef"][k], again.coef_, atol=2e-6)
        np.testing.assert_allclose(got["intercept"][k], again.intercept_, atol=2e-6)


@pytest.mark.slow
def test_a_penalty_that_was_chosen_stays():
    host = glum.GeneralizedLinearRegressorCV(
        alphas=[0.05, 0.5], l1_ratio=0, family="poisson", scale_predictors=False, cv=3
    )
    host.set_params(gradient_tol=1e-9, max_iter=1000)
    fit = lo.from_glum(host.fit(X, COUNT, sample_weight=WEIGHT), X, COUNT, WEIGHT)
    assert "was chosen on all rows" in fit.objective.note and fit.decrement < 1e-4
    plan = lo.kfold(N, 3, rng=0)
    got = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
    for k, w in enumerate(plan.matrix()):
        fixed = glum.GeneralizedLinearRegressor(alpha=host.alpha_, family="poisson", **TIGHT)
        again = fixed.fit(X[w > 0], COUNT[w > 0], sample_weight=WEIGHT[w > 0])
        np.testing.assert_allclose(got["coef"][k], again.coef_, atol=2e-6)


def test_what_is_refused():
    host = glum.GeneralizedLinearRegressor(alpha=0.2, family="poisson", **TIGHT).fit(X, COUNT)
    with pytest.raises(TypeError, match="float is not supported"):
        lo.from_glum(3.0, X, COUNT)
    with pytest.raises(ValueError, match="not fitted"):
        lo.from_glum(glum.GeneralizedLinearRegressor(), X, COUNT)
    with pytest.raises(ValueError, match="3 coefficients, but X has 2"):
        lo.from_glum(host, X[:, :2], COUNT)
    with pytest.raises(TypeError, match="only Ridge"):
        net = glum.GeneralizedLinearRegressor(
            alpha=0.1, l1_ratio=0.5, P2=SHAPE, family="poisson", scale_predictors=False
        )
        lo.from_glum(net.fit(X, COUNT), X, COUNT)
    with pytest.raises(TypeError, match="scale_predictors"):
        scaled = glum.GeneralizedLinearRegressor(alpha=0.1, family="poisson", scale_predictors=True)
        lo.from_glum(scaled.fit(X, COUNT), X, COUNT)


@pytest.mark.parametrize("formula", [None, "count ~ age + region", "age:region"])
def test_categories_and_formulas_are_the_columns_that_glum_makes(formula):
    rng = np.random.default_rng(1)
    data = pd.DataFrame(
        {"region": pd.Categorical(rng.choice(list("abc"), 60)), "age": rng.standard_normal(60)}
    )
    data["count"] = rng.poisson(np.exp(0.3 * data["age"])).astype(float)
    model = glum.GeneralizedLinearRegressor(
        family="poisson", alpha=0.1, formula=formula, gradient_tol=1e-10
    )
    X = data.drop(columns=[] if formula else "count")
    y = None if formula and "~" in formula else data["count"]
    plan = lo.kfold(60, 4, rng=0)
    fit = lo.from_glum(model.fit(X, y), X, y)
    predictions = lo.cross_predict(fit, plan, strategy=lo.Exact())
    for fold in range(4):
        seen = plan.matrix()[fold] > 0
        refit = clone(model).fit(X[seen], y if y is None else y[seen])
        np.testing.assert_allclose(predictions[~seen], refit.predict(X[~seen]), rtol=1e-7)
    np.testing.assert_allclose(lo.predict(fit, X[:5]), model.predict(X[:5]), rtol=1e-12)
