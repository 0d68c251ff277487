"""GLMs of nemos, against its own refits; `make test-hosts` installs it."""

import warnings

import numpy as np
import pytest

import leaveout as lo

nemos = pytest.importorskip("nemos")
import jax  # noqa: E402


@pytest.mark.parametrize(
    ("observations", "link", "penalty", "strength"),
    [
        ("Poisson", "exp", "UnRegularized", None),
        ("Poisson", "exp", "Ridge", 0.05),
        ("Poisson", "softplus", "Ridge", 0.05),
        ("Poisson", "exp", "Lasso", 0.05),
        ("Gaussian", "identity", "ElasticNet", (0.1, 0.5)),
        ("Bernoulli", "logistic", "Ridge", 0.02),
    ],
)
def test_models_left_out_are_the_hosts_refits(observations, link, penalty, strength):
    rng, plan = np.random.default_rng(0), lo.kfold(120, 20, rng=0)
    X = rng.standard_normal((120, 4))
    eta = 0.5 + X @ np.array([0.6, -0.3, 0.0, 0.1])
    y = {
        "Poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        "Gaussian": lambda: eta + rng.standard_normal(120),
        "Bernoulli": lambda: (rng.random(120) < 1 / (1 + np.exp(-eta))).astype(float),
    }[observations]()
    links = {"exp": jax.numpy.exp, "softplus": jax.nn.softplus, "identity": None, "logistic": None}

    def make(X, y):
        model = nemos.glm.GLM(
            observation_model=getattr(nemos.observation_models, f"{observations}Observations")(),
            inverse_link_function=links[link],
            regularizer=penalty,
            regularizer_strength=strength,
            solver_name="ProximalGradient" if penalty in ("Lasso", "ElasticNet") else "BFGS",
            solver_kwargs={"tol": 1e-10, "maxiter": 20_000},
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it cannot reach such a tolerance
            return model.fit(X, y)

    with jax.enable_x64(True):
        fit = lo.from_nemos(make(X, y), X, y)
        found = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))
        for fold in range(0, 20, 4):
            seen = plan.matrix()[fold] > 0
            again = make(X[seen], y[seen])
            np.testing.assert_allclose(found["coef"][fold], again.coef_, atol=1e-5)
            np.testing.assert_allclose(found["intercept"][fold], again.intercept_[0], atol=1e-5)


def test_bins_that_nemos_drops_are_no_units():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    X[:5] = np.nan
    y = rng.poisson(1.0, 80).astype(float)
    model = nemos.glm.GLM(regularizer="Ridge", regularizer_strength=0.1).fit(X, y)
    fit = lo.from_nemos(model, X, y)
    assert (
        fit.objective.num_units == 75
        and fit.objective.units.names[0] == 5
        and "5 bins with missing" in fit.objective.note
    )
