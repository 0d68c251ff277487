"""skglm's sparse regressions: refits are its own."""

import numpy as np
import pytest

import leaveout as lo
from tests.optimize.test_active_set import made

estimators = pytest.importorskip("skglm.estimators")
TIGHT = {"tol": 1e-12, "max_iter": 500}
HOSTS = {
    "lasso": (lambda: estimators.Lasso(0.1, **TIGHT), "squared"),
    "lasso, not negative": (lambda: estimators.Lasso(0.05, positive=True, **TIGHT), "squared"),
    "weighted lasso": (
        lambda: estimators.WeightedLasso(0.1, weights=np.linspace(0.5, 2, 12), **TIGHT),
        "squared",
    ),
    "elastic net": (lambda: estimators.ElasticNet(0.2, l1_ratio=0.4, **TIGHT), "squared"),
    "no intercept": (
        lambda: estimators.ElasticNet(0.2, l1_ratio=0.4, fit_intercept=False, **TIGHT),
        "squared",
    ),
    "groups": (
        lambda: estimators.GroupLasso(
            [[0, 5, 6], [1], [2, 3, 4, 7], [8, 9], [10, 11]], 0.1, **TIGHT
        ),
        "squared",
    ),
    "logistic": (lambda: estimators.SparseLogisticRegression(0.05, **TIGHT), "logistic"),
    "logistic net": (
        lambda: estimators.SparseLogisticRegression(0.1, l1_ratio=0.5, **TIGHT),
        "logistic",
    ),
}


@pytest.mark.filterwarnings("ignore:.*contiguous arrays")
@pytest.mark.slow  # its solvers are compiled
@pytest.mark.parametrize("name", HOSTS)
def test_refits_are_its_own(name):
    host, loss = HOSTS[name]
    X, y, _ = made(n=70, p=12, loss=loss)
    fitted = host().fit(X, y)
    fit, plan = lo.from_skglm(fitted, X, y), lo.kfold(70, 4, rng=0)
    np.testing.assert_allclose(fit.parameters["coef"], np.ravel(fitted.coef_), atol=1e-6)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    assert np.any(theta["coef"] == 0) and lo.cross_validate(fit, plan).proved.all()
    for k, own in enumerate(plan.matrix()):
        again = host().fit(X[own > 0], y[own > 0])
        np.testing.assert_allclose(theta["coef"][k], np.ravel(again.coef_), atol=1e-5)
        np.testing.assert_allclose(theta["intercept"][k], np.ravel(again.intercept_)[0], atol=1e-5)


def test_what_it_minimises_and_what_is_refused():
    """Of hosts that are told what they would have been fitted to: no solver is compiled."""
    X, y, _ = made(n=50, p=12)
    known = lo.fit(
        lo.GLM(
            X, y, "squared", lo.penalties.per_weight(lo.penalties.Lasso(0.1) + lo.penalties.Box())
        )
    )
    host = estimators.Lasso(0.1, positive=True)
    with pytest.raises(ValueError, match="not fitted"):
        lo.from_skglm(host, X, y)
    host.coef_, host.intercept_ = known.parameters["coef"], known.parameters["intercept"]
    np.testing.assert_allclose(
        lo.from_skglm(host, X, y).parameters["coef"], known.parameters["coef"], atol=1e-10
    )
    for error, match, call in (
        (
            TypeError,
            "MCPRegression is not supported",
            lambda: lo.from_skglm(estimators.MCPRegression(), X, y),
        ),
        (ValueError, "not fitted", lambda: lo.from_skglm(estimators.GroupLasso(groups=2), X, y)),
        (ValueError, "12 coefficients, but X has 3", lambda: lo.from_skglm(host, X[:, :3], y)),
    ):
        with pytest.raises(error, match=match):
            call()
    of = {2: [2] * 6, (3, 9): [3, 9], None: [[0, 11], [*range(1, 11)]]}
    for kind, groups in of.items():
        host = estimators.GroupLasso(
            2 if kind == 2 else groups, 0.05, weights=None if kind == 2 else np.array([1.0, 0.5])
        )
        label = (
            np.repeat(np.arange(len(groups)), groups) if kind else np.isin(np.arange(12), groups[1])
        )
        penalty = lo.penalties.GroupLasso(0.05, label, np.ones(6) if kind == 2 else [1.0, 0.5])
        known = lo.fit(lo.GLM(X, y, "squared", lo.penalties.per_weight(penalty)))
        host.coef_, host.intercept_ = known.parameters["coef"], known.parameters["intercept"]
        np.testing.assert_allclose(
            lo.from_skglm(host, X, y).parameters["coef"], known.parameters["coef"], atol=1e-10
        )
    with pytest.raises(TypeError, match="no bounds"):
        lo.from_skglm(host.set_params(positive=True), X, y)
    host = estimators.SparseLogisticRegression(0.1)
    host.coef_, host.intercept_, host.classes_ = (
        np.zeros((1, 12)),
        np.zeros(1),
        np.array(["a", "b"]),
    )
    with pytest.raises(ValueError, match="never saw"):
        lo.from_skglm(host, X, np.repeat(["a", "c"], 25))
    host.classes_ = np.array(["a", "b", "c"])
    with pytest.raises(TypeError, match="two classes"):
        lo.from_skglm(host, X, np.repeat(["a", "c"], 25))
