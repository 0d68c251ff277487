"""`lo.path`: every estimate of it against refits from scratch, and the choices that it makes against their definitions."""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import cox, regression, toy_hmm
from sklearn.linear_model import RidgeCV

import leaveout as lo
from leaveout._ridge import ridges

ALPHAS = np.logspace(-2, 3, 6)


def least_squares(n=60, p=4, seed=0, **kwargs):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * [1.0, 3.0, 0.3, 1.0][:p] + 2.0
    return lo.GLM(X, X @ rng.standard_normal(p) + 5 + rng.standard_normal(n), "squared", **kwargs)


def logistic(n=50, p=3, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return lo.GLM(X, (rng.random(n) < 1 / (1 + np.exp(-X.sum(1)))).astype(float), "logistic")


def without(objective, alpha, rows):
    """Least squares without some rows, by the normal equations; residuals of those rows."""
    X, y = objective.design, objective.y - (0.0 if objective.offset is None else objective.offset)
    omega = np.ones(len(y)) if objective.sample_weight is None else objective.sample_weight.copy()
    omega[rows] = 0
    P = np.diag(np.r_[np.full(objective.num_features, alpha), np.zeros(X.shape[1] - objective.num_features)])
    return y[rows] - X[rows] @ np.linalg.solve((X.T * omega) @ X + P, (X.T * omega) @ y)


def refitted(objective, alpha, plan):
    """Held-out logistic losses of a plan by refits from scratch: Newton's steps to the floor."""
    X, y, out = objective.design, objective.y, np.full(len(plan.index), np.nan)
    P = np.diag(np.r_[np.full(X.shape[1] - 1, alpha), 0.0])
    for k, weights in enumerate(plan.matrix()):
        theta, step = np.zeros(X.shape[1]), np.array(np.inf)
        while np.abs(step).max() > 1e-12:
            mu = 1 / (1 + np.exp(-X @ theta))
            step = np.linalg.solve((X.T * (weights * mu * (1 - mu))) @ X + P, X.T @ (weights * (mu - y)) + P @ theta)
            theta -= step
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        eta = X[plan.index[mine]] @ theta
        out[mine] = np.logaddexp(0, eta) - y[plan.index[mine]] * eta
    return out


def test_ridges_are_scikit_learns():
    objective = least_squares(200)
    found = lo.path(objective, ALPHAS, lo.leave_one_out(200))
    host = RidgeCV(ALPHAS, store_cv_results=True).fit(objective.design[:, :-1], objective.y)
    assert found.best.value == host.alpha_
    np.testing.assert_allclose(np.array([e.losses for e in found.estimates]).T, host.cv_results_ / 2, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.best.fit.parameters["coef"], host.coef_, rtol=1e-9)
    assert all(e.proved.all() and e.error.max() < 1e-10 for e in found.estimates)


@pytest.mark.parametrize("kind", ["plain", "weights and offset", "no intercept", "no intercept, weights"])
@pytest.mark.parametrize("refit", [lo.Certified(), lo.Exact(), lo.NewtonStep()], ids=lambda refit: type(refit).__name__)
def test_ridges_are_refits(kind, refit):
    rng, more = np.random.default_rng(2), {}
    if "weights" in kind:
        more |= {"sample_weight": np.where(rng.random(60) < 0.1, 0.0, rng.gamma(2.0, 0.5, 60))}
    if "offset" in kind:
        more |= {"offset": rng.standard_normal(60)}
    objective, plan = least_squares(intercept="no" not in kind, **more), lo.leave_one_out(60)
    found = lo.path(objective, ALPHAS, plan, refit)
    for alpha, estimate in zip(ALPHAS, found.estimates, strict=True):
        truth = 0.5 * np.concatenate([without(objective, alpha, [i]) for i in range(60)]) ** 2
        off = np.abs(estimate.losses - truth)
        assert (off <= estimate.error + 1e-12 * (1 + truth)).all() and off.max() < 1e-9
        model = lo.GLM(*rows_of(objective), "squared", lo.penalties.Ridge(alpha), intercept=objective.intercept, **more)
        one = lo.cross_validate(lo.fit(model), plan, refit)
        np.testing.assert_allclose(estimate.losses, one.losses, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(estimate.baseline, one.baseline, rtol=1e-9, atol=1e-11)
        assert (estimate.result == one.result).all() and estimate.proved.all()
        assert estimate.mean == pytest.approx(one.mean, rel=1e-10) and estimate.se == pytest.approx(one.se, rel=1e-8)
    np.testing.assert_allclose([point.mean for point in found.points], [e.mean for e in found.estimates], rtol=1e-13)
    assert found.best.value == found.table()["mean"].idxmin()


def rows_of(objective):
    return objective.design[:, : objective.num_features], objective.y


def test_more_columns_than_rows(n=12, p=30):
    rng = np.random.default_rng(3)
    objective = lo.GLM(rng.standard_normal((n, p)), rng.standard_normal(n), "squared")
    found = lo.path(objective, [0.1, 1.0, 10.0], lo.leave_one_out(n))
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        truth = 0.5 * np.concatenate([without(objective, alpha, [i]) for i in range(n)]) ** 2
        np.testing.assert_allclose(estimate.losses, truth, rtol=1e-8)


def test_what_rounding_takes_goes_the_usual_way():
    """Columns of scales 1e7 apart: the errors of the eigendecomposition are too large, those of the factor are not."""
    objective = least_squares()
    X, y = rows_of(objective)
    X = X * [1e7, 1.0, 1.0, 1.0]
    wide = lo.GLM(X, y, "squared")
    assert not ridges(wide, np.array([1e-3]), lo.leave_one_out(60)).settled.any()
    found = lo.path(wide, [1e-3, 1.0], lo.leave_one_out(60))
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        one = lo.cross_validate(lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(alpha))), lo.leave_one_out(60))
        np.testing.assert_allclose(estimate.losses, one.losses, rtol=1e-6)


def test_errors_hold_for_columns_that_repeat():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 2))
    X = np.c_[x, x[:, 0] + 1e-4 * rng.standard_normal(40), 1e3 + x[:, 1]]
    objective = lo.GLM(X, x @ [1.0, 2.0] + rng.standard_normal(40), "squared")
    alphas, X, y = np.array([1e-6, 1e-3, 1.0]), np.c_[X, np.ones(40)].astype(np.longdouble), objective.y
    found = ridges(objective, alphas, lo.leave_one_out(40))
    for alpha, losses, error in zip(alphas, found.losses, found.error, strict=True):
        truth = np.array([0.5 * float(_residual(X, y, alpha, i)) ** 2 for i in range(40)])
        assert (np.abs(losses - truth) <= error).all()


def _residual(X, y, alpha, row):
    """Of one row left out, in long double: Gauss with pivots."""
    keep = np.arange(len(y)) != row
    P = np.diag(np.r_[np.full(X.shape[1] - 1, alpha), 0.0]).astype(np.longdouble)
    A = np.c_[X[keep].T @ X[keep] + P, X[keep].T @ y[keep].astype(np.longdouble)]
    for k in range(len(A)):
        pivot = k + np.argmax(np.abs(A[k:, k]))
        A[[k, pivot]] = A[[pivot, k]]
        A[k] /= A[k, k]
        others = np.arange(len(A)) != k
        A[others] -= np.multiply.outer(A[others, k], A[k])
    return y[row] - X[row] @ A[:, -1]


@pytest.mark.parametrize("plan", [lo.leave_one_out(50), lo.kfold(50, 5, seed=0)], ids=["rows", "folds"])
def test_logistic_is_refits(plan):
    objective = logistic()
    found = lo.path(objective, [10.0, 0.1, 1.0], plan, lo.Exact())
    assert found.values.tolist() == [10.0, 0.1, 1.0]
    for alpha, estimate in zip(found.values, found.estimates, strict=True):
        np.testing.assert_allclose(estimate.losses, refitted(objective, alpha, plan), rtol=1e-6)
    certified = lo.path(objective, [10.0, 0.1, 1.0], plan)
    for mine, exact in zip(certified.estimates, found.estimates, strict=True):
        off = np.abs(np.add.reduceat(mine.losses - exact.losses, plan.indptr[:-1]))
        assert (off <= mine.error + exact.error + 1e-9).mean() > 0.9 and abs(mine.mean - exact.mean) < 0.01 * exact.se


def test_one_standard_error_by_its_definition():
    found = lo.path(least_squares(40, seed=7), np.logspace(-2, 4, 20), lo.leave_one_out(40))
    table = found.table()
    losses = found.best.estimate.losses
    limit = table["mean"].min() + losses.std(ddof=1) / np.sqrt(40)
    assert found.best.value == table["mean"].idxmin()
    assert found.one_standard_error.value == table.index[table["mean"] <= limit].max() > found.best.value
    grouped = lo.path(least_squares(40, seed=7), np.logspace(-2, 4, 20), lo.groups(np.arange(40) % 8))
    limit = grouped.best.mean + grouped.best.estimate.se
    assert grouped.one_standard_error.value == grouped.values[[p.mean <= limit for p in grouped.points]].max()


@pytest.mark.slow
@pytest.mark.parametrize("make", [cox, lambda: regression("negative_binomial")], ids=["Cox", "dispersion"])
def test_of_each_model(make):
    objective = make()
    plan = lo.kfold(objective.num_units, 4, seed=0)
    for point in lo.path(objective, [1.0, 4.0], plan).points:
        one = lo.cross_validate(lo.fit(point.fit.objective), plan)
        assert point.estimate.mean == pytest.approx(one.mean, abs=0.02 * one.scale)


def test_of_each_penalty():
    penalties = [lo.penalties.PseudoHuber(a, 0.1) for a in (1.0, 5.0)]
    assert lo.path(logistic(), penalties, lo.leave_one_out(50)).values.tolist() == [1.0, 5.0]
    averaged = [lo.per_weight(lo.penalties.Ridge(a)) for a in (0.01, 0.1)]
    plan = lo.kfold(50, 5, seed=0)
    found = lo.path(logistic(), averaged, plan, lo.Exact())
    one = lo.cross_validate(lo.fit(lo.GLM(*rows_of(logistic()), "logistic", averaged[1])), plan, lo.Exact())
    np.testing.assert_allclose(found.estimates[1].losses, one.losses, rtol=1e-6)
    named = {"rough": lo.penalties.Ridge(0.1), "smooth": lo.penalties.Quadratic(np.eye(3) * 3), "none": lo.penalties.Zero()}
    found = lo.path(logistic(), named, lo.leave_one_out(50))
    assert found.values.tolist() == list(named) and found.penalties == list(named.values())
    assert lo.path(logistic(), [lo.penalties.Zero(), lo.penalties.Ridge(1.0)], plan).values.tolist() == [0, 1]


def test_an_audit_that_misses_is_taken_seriously(monkeypatch):
    import leaveout._path as module

    missed = module.audited
    monkeypatch.setattr(module, "audited", lambda *args: missed(*args).assign(beyond=True))
    found = lo.path(least_squares(), [0.1, 1.0], lo.leave_one_out(60))
    assert "cross-validated by itself" in str(found) and all(len(e.audit) for e in found.estimates)
    monkeypatch.undo()
    assert "1 refit of the path" in str(lo.path(least_squares(), [0.1, 1.0], lo.leave_one_out(60)))
    assert "audit" not in str(lo.path(least_squares(), [0.1, 1.0], lo.leave_one_out(60), audit=0))


def test_labels_are_kept_and_matched():
    objective = least_squares()
    X = pd.DataFrame(rows_of(objective)[0], index=[f"row {i}" for i in range(60)])
    labelled = lo.GLM(X, pd.Series(objective.y, X.index), "squared")
    groups = pd.Series(np.arange(60) % 7, X.index)
    found = lo.path(labelled, [1.0, 10.0], lo.groups(groups.sample(frac=1.0, random_state=0)))
    plain = lo.path(objective, [1.0, 10.0], lo.groups(groups.to_numpy()))
    np.testing.assert_allclose([p.mean for p in found.points], [p.mean for p in plain.points], rtol=1e-10)
    assert found.estimates[0].table()["unit"].str.startswith("row").all()
    assert lo.path(labelled, [1.0], lo.leave_one_out(60)).estimates[0].names()[3] == "row 3"


def test_printed_and_drawn():
    pytest.importorskip("matplotlib")
    found = lo.path(least_squares(), ALPHAS, lo.leave_one_out(60))
    assert "best" in str(found) and "<table>" in found._repr_html_() and "held-out" in repr(found.points[0])
    assert list(found.table()) == ["mean", "se", "no_update", "approximation_error", "proved", "flagged"]
    ax = found.plot()
    assert ax.get_xscale() == "log" and any("best" in text.get_text() for text in ax.get_legend().get_texts())
    named = {"a": lo.penalties.Ridge(1.0), "b": lo.penalties.Ridge(2.0)}
    drawn = lo.path(logistic(), named, lo.kfold(50, 5, seed=0)).plot()
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["a", "b"]


def test_bad_input():
    objective, plan = least_squares(), lo.leave_one_out(60)
    for alphas in ([0.0, 1.0], [1.0, 1.0], [np.nan], [[1.0]], [-1.0], []):
        with pytest.raises(ValueError, match="path: "):
            lo.path(objective, alphas, plan)
    with pytest.raises(TypeError, match="got ToyHMM"):
        lo.path(toy_hmm(), [1.0], plan)
    with pytest.raises(TypeError, match="got Fit, give its"):
        lo.path(lo.fit(objective), [1.0], plan)
    with pytest.raises(ValueError, match="for 50 units"):
        lo.path(objective, [1.0], lo.leave_one_out(50))
    with pytest.raises(TypeError, match="Plan"):
        lo.path(objective, [1.0], 5)
    with pytest.raises(TypeError, match="strategy"):
        lo.path(objective, [1.0], plan, "exact")
    with pytest.raises(ValueError, match="whole number"):
        lo.path(objective, [1.0], plan, audit=0.5)
    with pytest.raises(ValueError, match="shape"):
        lo.path(objective, [lo.penalties.Ridge(np.ones(3))], plan)
    with pytest.raises(ValueError, match="take the place of PerWeight"):
        lo.path(lo.GLM(*rows_of(objective), "squared", lo.per_weight(lo.penalties.Ridge(1.0))), [1.0], plan)
    X = np.arange(20.0)[:, None]
    separated = lo.GLM(X, (X[:, 0] > 9).astype(float), "logistic")
    with warnings.catch_warnings(), pytest.raises(RuntimeError) as raised:
        warnings.simplefilter("ignore")
        lo.path(separated, {"none": lo.penalties.Zero()}, lo.leave_one_out(20))
    assert "penalty none" in raised.value.__notes__[0]
