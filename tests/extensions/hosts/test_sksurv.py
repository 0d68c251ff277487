"""Cox models of scikit-survival, against its own refits; `make test-hosts` installs it."""

import numpy as np
import pytest

import leaveout as lo

linear_model = pytest.importorskip("sksurv.linear_model")
from sksurv.util import Surv  # noqa: E402


def data(n: int = 120):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    died, left = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2.0, n)
    return X, Surv.from_arrays(died <= left, np.ceil(10 * np.minimum(died, left)))


ESTIMATORS = {
    "breslow": lambda: linear_model.CoxPHSurvivalAnalysis(alpha=2.0, tol=1e-12),
    "efron": lambda: linear_model.CoxPHSurvivalAnalysis(ties="efron", tol=1e-12),
    "lasso": lambda: linear_model.CoxnetSurvivalAnalysis(
        alphas=[0.05], l1_ratio=0.9, tol=1e-14, max_iter=10**6
    ),
    "factors": lambda: linear_model.CoxnetSurvivalAnalysis(
        alphas=[0.1, 0.03],
        l1_ratio=0.5,
        penalty_factor=[0.5, 1.0, 1.0, 2.0, 1.0],
        tol=1e-14,
        max_iter=10**6,
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_models_left_out_are_the_hosts_refits(name):
    (X, y), make, plan = data(), ESTIMATORS[name], lo.kfold(120, 20, rng=0)
    fit = lo.from_sksurv(make().fit(X, y), X, y)
    found = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"]
    for fold in range(20):
        seen = plan.matrix()[fold] > 0
        again = make().fit(X[seen], y[seen])
        np.testing.assert_allclose(found[fold], np.reshape(again.coef_, (5, -1))[:, -1], atol=2e-5)


def test_what_is_refused():
    X, y = data()
    with pytest.raises(TypeError, match="normalize=True"):
        lo.from_sksurv(linear_model.CoxnetSurvivalAnalysis(normalize=True).fit(X, y), X, y)
    with pytest.raises(TypeError, match="IPCRidge is not supported"):
        lo.from_sksurv(linear_model.IPCRidge(), X, y)
    with pytest.raises(ValueError, match="not fitted"):
        lo.from_sksurv(linear_model.CoxPHSurvivalAnalysis(), X, y)
