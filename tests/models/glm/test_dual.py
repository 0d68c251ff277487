"""More columns than rows, by a matrix of the rows.

The same fit and refits, and no matrix of the columns.
"""

import tracemalloc

import numpy as np
import pytest
import scipy
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import leaveout as lo
from leaveout.models.glm import dual
from leaveout.optimize import active_set

N, P = 40, 90


def table(seed=0, n=N, p=P):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.4)
    eta = X[:, :5].sum(1)
    y = {
        "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "squared": eta + rng.standard_normal(n),
        "poisson": rng.poisson(np.exp(0.3 * eta)),
        "multinomial": np.digitize(eta + rng.logistic(size=n), [-0.7, 0.7]),
    }
    return X, y, rng.random(n) + 0.5


def alike(a, b, tol=1e-7):
    np.testing.assert_allclose(np.asarray(b, float), np.asarray(a, float), rtol=tol, atol=tol)


@pytest.mark.parametrize("loss", ["logistic", "squared", "poisson", "multinomial"])
@pytest.mark.parametrize("rows", [np.asarray, scipy.sparse.csr_array])
def test_every_verb_gives_the_numbers_of_the_columns(loss, rows):
    X, y, weight = table()
    ridge = lo.penalties.Ridge(np.linspace(0.5, 3.0, P))
    model = lo.GLM(rows(X), y[loss], loss, ridge, sample_weight=weight, offset=0.1 * X[:, 7])
    columns, by_rows = lo.fit(model), lo.fit(model, curvature="rows")
    assert by_rows.num_params <= (N + 1) * model.outputs < columns.num_params
    assert by_rows.rank == columns.rank
    (
        alike(columns.parameters["coef"], by_rows.parameters["coef"]),
        alike(columns.value, by_rows.value),
    )
    for plan in (lo.leave_one_out(N), lo.kfold(N, 4), lo.bootstrap(N, 5)):
        a, b = (lo.cross_validate(fit, plan, strategy=lo.Exact()) for fit in (columns, by_rows))
        alike(np.nan_to_num(a.losses), np.nan_to_num(b.losses), 1e-6)
        assert b.proved.all()
    plan = lo.kfold(N, 4)
    alike(
        *(lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"] for fit in (columns, by_rows)),
        1e-5,
    )
    alike(*(lo.cross_predict(fit, plan, strategy=lo.Exact()) for fit in (columns, by_rows)), 1e-6)
    alike(*(lo.diagnostics.leverage(fit) for fit in (columns, by_rows)))
    start = lo.anchor(model, columns.parameters, curvature="rows")
    alike(start.parameters["coef"], columns.parameters["coef"])


def test_what_asks_for_columns():
    X, y, _ = table()
    model = lo.GLM(X, y["squared"], "squared", lo.penalties.Ridge(2.0))
    columns, by_rows = lo.fit(model), lo.fit(model, curvature="rows")
    alike(lo.interval(columns, X[:5] + 0.1), lo.interval(by_rows, X[:5] + 0.1), 1e-6)
    alike(lo.covariance(columns), lo.covariance(by_rows), 1e-6)
    loo = lo.leave_one_out(N)
    a, b = (lo.influence(lo.cross_validate(fit, loo)).table() for fit in (columns, by_rows))
    alike(a[["loss", "rise"]], b[["loss", "rise"]], 1e-6)
    with pytest.raises(TypeError, match="in its coordinates"):
        lo.path(by_rows.objective, [1.0, 2.0], loo)


def test_what_it_is_not_for():
    X, y, _ = table()
    for model in (
        lo.GLM(X, y["squared"], "squared"),
        lo.GLM(X, y["squared"], "squared", lo.penalties.Ridge(np.r_[0.0, np.ones(P - 1)])),
        lo.Regression(X, y["squared"], "gaussian", lo.penalties.Ridge(1.0)),
    ):
        with pytest.raises(
            TypeError,
            match=r'curvature="rows" is for a lo\.GLM under lo\.penalties\.Ridge',
        ):
            lo.fit(model, curvature="rows")
    with pytest.raises(TypeError, match="got Objective"):
        lo.fit(lo.Objective(lambda theta, w: theta @ theta, 3), np.zeros(2), curvature="rows")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_no_matrix_of_the_columns_is_formed(kind):
    """It would take 7 GB of 30,000."""
    n, p, rng = 200, 30_000, np.random.default_rng(0)
    X = scipy.sparse.random_array(
        (n, p), density=0.01, rng=rng, format="csr", data_sampler=rng.standard_normal
    )
    y = (rng.random(n) < 0.5).astype(float)
    X = X.toarray() if kind == "dense" else X
    size = X.nbytes if kind == "dense" else X.data.nbytes
    model = lambda n: lo.GLM(X[:n], y[:n], "logistic", lo.penalties.Ridge(5.0))
    # modules are imported by a call of few rows
    lo.cross_validate(lo.fit(model(20), curvature="rows"), lo.leave_one_out())
    tracemalloc.start()
    fit = lo.fit(model(n), curvature="rows")
    found = lo.cross_validate(fit, lo.leave_one_out())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.proved.all() and fit.parameters["coef"].shape == (p,)
    assert peak < (2.0 * size if kind == "dense" else 24e6), peak / size


@pytest.mark.parametrize("far", [0.0, 2.0**20])
def test_rows_take_the_place_of_more_columns_by_themselves(far):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 500)) + far * (np.arange(500) == 3)
    y = X[:, 0] + rng.standard_normal(20)
    model, loo = (
        lo.GLM(X, y, "squared", lo.penalties.Ridge(np.linspace(200.0, 400.0, 500))),
        lo.leave_one_out(20),
    )
    columns, by_rows = lo.fit(model, curvature="dense"), lo.fit(model)
    assert by_rows.objective.as_given is model and by_rows.rank == columns.rank == 501
    a, b = (lo.cross_validate(fit, loo) for fit in (columns, by_rows))
    (
        alike(a.losses, b.losses),
        alike(columns.parameters["intercept"], by_rows.parameters["intercept"], 1e-6),
    )
    assert b.proved.all()
    for measure in (
        lo.diagnostics.cooks_distance,
        lo.diagnostics.leverage,
        lo.diagnostics.studentized_residuals,
    ):
        alike(measure(columns), measure(by_rows), 1e-6)
    assert np.isfinite(lo.diagnostics.dfbetas(columns)).all(axis=None)
    alike(lo.diagnostics.dfbetas(columns), lo.diagnostics.dfbetas(by_rows), 1e-6)
    a, b = (lo.influence(estimate, prediction=X[0]).table() for estimate in (a, b))
    alike(a[["cook", "moved", "prediction"]], b[["cook", "moved", "prediction"]], 1e-6)
    with pytest.raises(TypeError, match="needs the Hessian of the columns"):
        lo.covariance(by_rows, "nonrobust")


def test_very_many_sparse_rows_keep_their_columns(monkeypatch):
    """A matrix of 20,000 rows, and its factors, would take 15 GB."""
    X = scipy.sparse.random_array((30, 12_001), density=0.01, rng=0, format="csr")
    model = lo.GLM(X, np.arange(30) % 2, "logistic", lo.penalties.Ridge(1.0))
    assert isinstance(lo.fit(model).objective, dual.DualGLM)
    monkeypatch.setattr(active_set, "MANY_ROWS", 20)
    assert lo.fit(model).objective is model


@pytest.mark.parametrize("curvature", ["auto", "products"])
def test_parameters_under_a_ridge_do_not_run_away(curvature):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 12_500))
    fit = lo.fit(
        lo.GLM(X, X[:, 0] + rng.standard_normal(12), "squared", lo.penalties.Ridge(1.0)),
        curvature=curvature,
    )
    assert fit.decrement < 1e-3


@pytest.mark.parametrize("kind", ["sparse", "standardised", "repeated rows"])
@pytest.mark.parametrize("penalty", [1e-2, 1.0, 30.0])
def test_classes_of_many_columns_are_as_scikit_learn_refits_them(kind, penalty):
    X, y, _ = table(1, 40, 600)
    labels = y["multinomial"]
    if kind == "standardised":
        X = StandardScaler().fit_transform(X)
    if kind == "repeated rows":
        X = X[np.arange(40) // 2]
    rows = scipy.sparse.csr_array(X) if kind == "sparse" else X
    host = LogisticRegression(C=1 / penalty, solver="newton-cg", tol=1e-9, max_iter=5000)
    fit = lo.from_sklearn(host.fit(rows, labels), rows, labels)
    estimate = lo.cross_validate(fit, lo.leave_one_out())
    assert estimate.proved.all() and "matrix of the rows" in str(estimate)
    for unit in (0, 7, 23):
        seen = np.arange(40) != unit
        refit = host.fit(rows[seen], labels[seen])
        loss = -refit.predict_log_proba(rows[[unit]])[0, labels[unit]]
        # as near as its solver comes where the penalty is weak
        distance = 1e-6 / min(penalty, 1.0)
        assert abs(loss - estimate.losses[unit]) < estimate.error[unit] + distance
