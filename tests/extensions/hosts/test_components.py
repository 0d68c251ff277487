"""Every fold of PLS and PCR is scikit-learn's refit."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cross_decomposition import PLSRegression
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import leaveout as lo

# rows, columns, targets, folds
SIZES = [(40, 7, 1, 40), (90, 6, 3, 20), (25, 40, 1, 25), (24, 30, 2, 8)]
PCR = make_pipeline(PCA(3, svd_solver="full"), LinearRegression())
HOSTS = {
    "PLS": PLSRegression(3),
    "PLS, as it is": PLSRegression(2, scale=False),
    "PCR": PCR,
    "PCR, scaled": make_pipeline(StandardScaler(), *[step for _, step in PCR.steps]),
    "PCR by variance": make_pipeline(PCA(0.8, svd_solver="full", whiten=True), LinearRegression()),
    "PCR, all": make_pipeline(PCA(svd_solver="full"), LinearRegression()),
}


def data(rows: int, columns: int, targets: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + columns + targets)
    X = rng.normal(size=(rows, 4)) @ rng.normal(size=(4, columns)) + 0.3 * rng.normal(
        size=(rows, columns)
    )
    X = 100 + X * rng.uniform(0.1, 10, columns)
    Y = X[:, :3] @ rng.normal(size=(3, targets)) + rng.normal(size=(rows, targets)) * 5
    return X, Y if targets > 1 else Y[:, 0]


def splits(plan):
    out = np.split(plan.index, plan.indptr[1:-1])
    return [(np.setdiff1d(np.arange(plan.num_units), test), test) for test in out]


def refits(host, X, Y, plan) -> tuple[np.ndarray, np.ndarray]:
    """Losses and predictions of 20 folds, by the host's own fits."""
    losses, predicted = [], []
    for train, test in splits(plan)[:20]:
        at = clone(host).fit(X[train], Y[train]).predict(X[test])
        losses.append(0.5 * np.sum((Y[test] - at) ** 2))
        predicted.append(at)
    return np.array(losses), np.concatenate(predicted)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(("rows", "columns", "targets", "folds"), SIZES)
def test_folds_are_the_hosts_refits(name, rows, columns, targets, folds):
    X, Y = data(rows, columns, targets)
    host, plan = clone(HOSTS[name]), lo.kfold(rows, folds)
    fit = lo.from_sklearn(host.fit(X, Y), X, Y)
    truth, predicted = refits(host, X, Y, plan)
    for strategy in (lo.Certified(), lo.Exact(), lo.NewtonStep()):
        cv = lo.cross_validate(fit, plan, strategy=strategy)
        ours = np.array([cv.losses[plan.refit == k].sum() for k in range(min(folds, 20))])
        off = np.abs(ours - truth)
        assert (off <= cv.error[: len(off)] + 1e-12 * truth).all()
        assert (cv.error[: len(off)] <= 1e-6 * truth.mean()).all()
    held = np.asarray(lo.cross_predict(fit, plan, strategy=strategy))
    np.testing.assert_allclose(held[plan.index[plan.held][: len(predicted)]], predicted, rtol=1e-8)
    told = cv.error.max() / truth.mean()
    print(
        f"{name:16} {X.shape}, {targets} targets: off by {off.max() / truth.mean():.1e} of the mean loss, told {told:.1e}"
    )


@pytest.mark.parametrize(
    "host",
    [LinearRegression(), Ridge(20.0), Ridge([0.1, 10.0, 1000.0])],
    ids=["none", "one", "each"],
)
def test_several_targets_are_the_hosts_refits(host):
    X, Y = data(60, 6, 3)
    fit, plan = lo.from_sklearn(clone(host).fit(X, Y), X, Y), lo.kfold(60, 20)
    cv, (truth, predicted) = lo.cross_validate(fit, plan), refits(host, X, Y, plan)
    ours = np.array([cv.losses[plan.refit == k].sum() for k in range(20)])
    off = np.abs(ours - truth)
    assert (off <= cv.error + 1e-12 * truth).all()
    print(
        f"{host}: off by {off.max() / truth.mean():.1e} of the mean loss, told {cv.error.max() / truth.mean():.1e}"
    )
    held = np.asarray(lo.cross_predict(fit, plan))
    np.testing.assert_allclose(held[plan.index[plan.held]], predicted, rtol=1e-8)


def test_columns_that_are_constant_in_a_fold():
    X, y = data(40, 5, 1)
    X[:, 2] = 0.0
    X[7, 2] = 1.0  # a rare level
    X[:, 3] = 1e9 * (np.arange(40) == 3) + X[:, 3]  # an outlier beside which the others are lost
    plan = lo.leave_one_out(40)
    for host in (clone(HOSTS["PLS"]), clone(HOSTS["PCR, scaled"])):
        truth, _ = refits(host, X, y, plan)
        cv = lo.cross_validate(lo.from_sklearn(host.fit(X, y), X, y), plan)
        np.testing.assert_allclose(cv.losses[:20], truth, rtol=1e-7)


def test_sklearn_calls_take_folds_from_one_fit():
    X, y = data(60, 5, 1)
    frame = pd.DataFrame(X, columns=list("abcde"))
    for host in (
        PLSRegression(2),
        make_pipeline(SimpleImputer(), *[clone(step) for _, step in PCR.steps]),
    ):
        ours = lo.sklearn.cross_validate(
            host, frame, y, cv=LeaveOneOut(), scoring="neg_mean_squared_error", strategy=lo.Exact()
        )
        truth = cross_val_score(host, frame, y, cv=LeaveOneOut(), scoring="neg_mean_squared_error")
        np.testing.assert_allclose(ours["test_score"], truth, rtol=1e-8)
    for host in (PLSRegression(2), clone(HOSTS["PCR, scaled"])):
        ours = lo.sklearn.cross_val_predict(host, frame, y, cv=12, strategy=lo.Exact())
        np.testing.assert_allclose(
            ours, cross_val_predict(host, frame, y, cv=12).ravel(), rtol=1e-8
        )
        fit = lo.from_sklearn(host.fit(frame, y), frame, y)
        np.testing.assert_allclose(lo.predict(fit, frame), host.predict(frame), rtol=1e-8)


def test_other_strategies_are_as_exact_as_they_say():
    X, y = data(30, 4, 1)
    fit = lo.from_sklearn(PLSRegression(2).fit(X, y), X, y)
    plan = lo.leave_one_out(30)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    first = lo.cross_validate(fit, plan, strategy=lo.InfinitesimalJackknife())
    kept = lo.cross_validate(fit, plan, strategy=lo.NoUpdate())
    assert abs(first.mean - exact.mean) < 0.2 * abs(kept.mean - exact.mean)
    np.testing.assert_allclose(
        kept.losses, 0.5 * (y - PLSRegression(2).fit(X, y).predict(X)) ** 2, rtol=1e-8
    )


def test_weights_are_refused():
    X, y = data(30, 4, 1)
    with pytest.raises(TypeError, match="sample_weight"):
        lo.from_sklearn(PLSRegression(2).fit(X, y), X, y, np.ones(30))
    with pytest.raises(ValueError, match="stationary"):
        lo.from_sklearn(PLSRegression(2).fit(X, y), X, y[::-1])
