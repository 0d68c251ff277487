"""Changes of posterior means and standard deviations against closed forms."""

import numpy as np
import pytest

import leaveout as lo
from tests.extensions.bayes.test_elpd import regression
from tests.extensions.bayes.test_posterior import normal_draws, normal_loss, normal_prior


def test_rows_of_a_regression():
    posterior, _ = regression(outlier=8.0)
    X, y = np.asarray(posterior.objective.design), posterior.objective.y
    found = lo.influence(posterior)
    cov = np.linalg.inv(np.eye(2) + X.T @ X)
    now, sd = cov @ X.T @ y, np.sqrt(np.diag(cov))
    for k in range(30):
        seen = np.delete(np.arange(30), k)
        own = np.linalg.inv(np.eye(2) + X[seen].T @ X[seen])
        names = ["mean[coef[0]]", "mean[coef[1]]"]
        assert np.allclose(
            found.loc[k, names].astype(float), (own @ X[seen].T @ y[seen] - now) / sd, atol=0.1
        )
        assert np.allclose(
            found.loc[k, ["sd[coef[0]]", "sd[coef[1]]"]].astype(float),
            np.sqrt(np.diag(own)) / sd,
            atol=0.05,
        )
    assert found["good"].all() and found["moved"].abs().idxmax() == 0


def test_a_prediction_and_groups():
    posterior, _ = regression()
    plan = lo.kfold(30, 5, rng=0)
    both = (
        lo.influence(posterior, plan),
        lo.influence(posterior, plan, prediction=lambda p: p["coef"][0] * 3.0),
    )
    assert np.allclose(both[0]["mean[coef[0]]"], both[1]["mean[prediction]"]) and len(both[1]) == 5
    for wrong, said in (
        (lambda p: p["coef"], r"shape \(2,\)"),
        (lambda p: np.nan, "got nan"),
        (lambda p: 0.1, "same at all"),
    ):
        with pytest.raises(ValueError, match=said):
            lo.influence(posterior, plan, prediction=wrong)
    with pytest.raises(
        TypeError, match=r"prediction, '<lambda>', is called with 1 arguments; it takes \(a, b\)"
    ):
        lo.influence(posterior, plan, prediction=lambda a, b: 0.0)
    with pytest.raises(TypeError, match="prediction must be a function"):
        lo.influence(posterior, plan, prediction=np.ones(2))


def test_a_vector_without_a_name_is_one_to_every_function():
    y, draws = normal_draws()
    posterior = lo.bayes.from_posterior(draws, normal_loss, y, log_prior=normal_prior)
    assert np.array_equal(posterior.named(posterior.draws), draws)
    found = lo.influence(posterior, prediction=lambda theta: theta[0])
    assert np.allclose(found["mean[prediction]"], lo.influence(posterior)["mean[theta[0]]"])
