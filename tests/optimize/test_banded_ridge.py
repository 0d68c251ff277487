"""Many targets, bands of columns.

Folds in closed form against refits by scikit-learn, slopes, and where the penalties end.
"""

import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn.linear_model import Ridge

import leaveout as lo
from leaveout.optimize.banded_ridge import BandedFactor, BandedRows

SIZES = (3, 5, 40)
BAND = np.repeat(range(3), SIZES)


def made(n=60, targets=4, seed=0, spread=0.0):
    rng = np.random.default_rng(seed)
    X = {name: rng.standard_normal((n, p)) for name, p in zip("abc", SIZES, strict=True)}
    signal = sum(
        x @ rng.standard_normal((x.shape[1], targets)) * s
        for x, s in zip(X.values(), (1, 0.3, 0.1), strict=True)
    )
    return (
        X,
        signal + rng.standard_normal((n, targets)) + 3,
        np.exp(spread * rng.standard_normal(n)),
    )


def refits(X, Y, w, alpha, plan, intercept=True):
    """Held-out losses of the scored entries by scikit-learn's refits, the columns scaled by the
    roots of the penalties.
    """
    x, out = np.concatenate(list(X.values()), axis=1) * alpha[BAND] ** -0.5, []
    for k, own in enumerate(plan.matrix()):
        host = Ridge(1.0, fit_intercept=intercept, solver="cholesky").fit(
            x[own > 0], Y[own > 0], sample_weight=w[own > 0]
        )
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        held = plan.index[mine][plan.held[mine]]
        out.append(0.5 * (Y[held] - host.predict(x[held]).reshape(len(held), -1)) ** 2)
    return np.concatenate(out)


PLANS = {
    "runs": lo.groups(np.repeat(range(6), 10)),
    "rows": lo.leave_one_out(60),
    "blocks with buffers": lo.blocks(60, 12, buffer=2),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_folds_are_scikit_learns(plan, intercept, spread):
    """Weights whose logarithms have a standard deviation of 2: every loss within what is said."""
    X, Y, w = made(spread=spread)
    model = lo.tuning.BandedRidge(X, Y, sample_weight=w if spread else None, intercept=intercept)
    alpha = np.exp(2 * np.random.default_rng(1).standard_normal((3, 3)))
    found = lo.path(model, alpha, PLANS[plan])
    exact = np.array([refits(X, Y, w, a, PLANS[plan], intercept) for a in alpha])
    plan = PLANS[plan]
    weight = w[plan.index[plan.held]]
    mean = np.tensordot(weight / weight.sum(), exact, (0, 1))
    np.testing.assert_allclose(found.tried, mean, rtol=1e-9)
    np.testing.assert_array_equal(found.alpha, alpha[mean.argmin(0)])
    assert (
        np.all(np.abs(found.mean - mean.min(0)) <= found.error + 1e-14) and found.error.max() < 1e-4
    )
    for t, best in enumerate(mean.argmin(0)):
        np.testing.assert_allclose(found.losses[:, t], exact[best, :, t], rtol=1e-6, atol=1e-9)
        x = np.concatenate(list(X.values()), axis=1) * alpha[best][BAND] ** -0.5
        host = Ridge(1.0, fit_intercept=intercept, solver="cholesky").fit(
            x, Y[:, t], sample_weight=w
        )
        np.testing.assert_allclose(
            found.parameters["coef"][t], host.coef_ * alpha[best][BAND] ** -0.5, atol=1e-8
        )
        np.testing.assert_allclose(found.parameters["intercept"][t], host.intercept_, atol=1e-8)
    assert list(found.table().columns) == ["mean", "r2", "error", "alpha a", "alpha b", "alpha c"]


@pytest.mark.parametrize("plan", PLANS)
def test_slopes_are_differences(plan):
    X, Y, w = made(n=60, spread=0.7)
    rows, everyone, step = (
        BandedRows(lo.tuning.BandedRidge(X, Y, sample_weight=w), PLANS[plan]),
        np.arange(4),
        1e-4,
    )
    at = lambda rho: BandedFactor(rows, np.exp(rho))
    rho = np.array([0.3, -0.5, 1.5])
    told = at(rho).target_losses(everyone)
    np.testing.assert_allclose(told.loss, at(rho).losses(everyone), rtol=1e-12)
    for b, way in enumerate(step * np.eye(3)):
        ends = at(rho + way), at(rho - way)
        np.testing.assert_allclose(
            told.slope[:, b],
            (ends[0].losses(everyone) - ends[1].losses(everyone)) / (2 * step),
            atol=1e-6,
        )
        left = [np.concatenate(one.residuals(rows.y)[1]) for one in ends]
        scored = np.concatenate([fold.score_mask for fold in rows.folds])
        moved = (left[0] - left[1])[scored] / (2 * step)
        np.testing.assert_allclose(
            told.curvature[:, b, b], np.sum(moved**2, axis=0) / rows.total, rtol=1e-4
        )


@pytest.mark.parametrize("shared", [False, True])
def test_penalties_end_where_no_other_search_is_better(shared):
    X, Y, _ = made(n=120, targets=6, seed=3)
    model, plan = lo.tuning.BandedRidge(X, Y, shared=shared), lo.groups(np.repeat(range(6), 20))
    found = lo.tune(model, (1e-2, 1e4), plan)
    rows, low, high = BandedRows(model, plan), np.log(1e-2), np.log(1e4)
    assert np.all((found.alpha >= 1e-2 * (1 - 1e-9)) & (found.alpha <= 1e4 * (1 + 1e-9)))
    assert len(np.unique(found.alpha, axis=0)) == (1 if shared else 6)
    for some in [np.arange(6)] if shared else np.arange(6)[:, None]:
        loss = lambda rho, some=some: BandedFactor(rows, np.exp(rho)).losses(some).mean()
        best = min(
            scipy.optimize.minimize(loss, [s] * 3, bounds=[(low, high)] * 3).fun for s in (0.0, 3.0)
        )
        assert found.mean[some].mean() <= best * (1 + 1e-3)
    assert "by gradient" in str(found)
    again = lo.tune(
        model,
        {"a": (1e-2, 1e4), "b": (1e-2, 1e4), "c": (1e-2, 1e4)},
        plan,
        start=dict.fromkeys("abc", 1.0),
    )
    np.testing.assert_allclose(again.mean.mean(), found.mean.mean(), rtol=2e-3)


def test_many_targets_go_to_few_points():
    """Each is reported at its own penalties, no worse than the best of a grid of one penalty for
    all bands.
    """
    X, Y, w = made(n=60, targets=400, seed=5)
    found, plan = lo.tune(lo.tuning.BandedRidge(X, Y), (1e-1, 1e5), PLANS["runs"]), PLANS["runs"]
    grid = lo.path(lo.tuning.BandedRidge(X, Y), np.geomspace(1e-1, 1e5, 9)[1:-1], plan)
    assert np.all(found.mean <= grid.mean + 1e-12) and found.mean.mean() < 0.99 * grid.mean.mean()
    assert len(np.unique(found.alpha, axis=0)) < 400
    for t in (0, 17, 399):
        exact = refits(X, Y[:, [t]], w, found.alpha[t], plan)
        np.testing.assert_allclose(found.losses[:, [t]], exact, rtol=1e-7, atol=1e-10)


def test_frames_labels_and_more_columns_than_rows():
    X, Y, _ = made(n=30)
    names = [f"r{k}" for k in range(30)]
    frames = {name: pd.DataFrame(x, index=names) for name, x in X.items()}
    targets = pd.DataFrame(Y, index=names, columns=list("wxyz"))[::-1]
    plan = lo.groups(np.repeat(range(5), 6))
    one = lo.path(lo.tuning.BandedRidge(X, Y), [1.0, 10.0], plan)
    two = lo.path(lo.tuning.BandedRidge(frames, targets), [1.0, 10.0], plan)
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-12)
    assert list(two.table().index) == list("wxyz")
    labels = np.array(list("abc"))[BAND]
    order = np.random.default_rng(0).permutation(len(BAND))
    three = lo.path(
        lo.tuning.BandedRidge(
            np.concatenate(list(X.values()), axis=1)[:, order], Y, bands=labels[order]
        ),
        [1.0, 10.0],
        plan,
    )
    np.testing.assert_allclose(one.mean, three.mean, rtol=1e-12)
    alone = lo.path(lo.tuning.BandedRidge(X["c"], Y[:, 0]), [3.0], plan)
    known = lo.cross_validate(
        lo.fit(lo.GLM(X["c"], Y[:, 0], "squared", lo.penalties.Ridge(3.0))), plan
    )
    np.testing.assert_allclose(alone.mean[0], known.mean, rtol=1e-9)


def test_what_is_ugly():
    """Columns that repeat, one of zeros, scales apart, penalties that are nothing beside rounding,
    a target without noise.
    """
    X, Y, _ = made(n=40)
    odd = {"a": np.c_[X["a"], X["a"], 0 * Y[:, 0]], "b": 1e6 * X["c"]}
    Y = np.c_[Y[:, :2], np.ones(40), X["a"] @ [1.0, 2.0, 3.0]]
    plan = lo.groups(np.repeat(range(4), 10))
    found = lo.tune(lo.tuning.BandedRidge(odd, Y), {"a": (1e-9, 1e6), "b": (1e-9, 1e14)}, plan)
    assert np.isfinite(found.mean).all() and np.all(found.mean >= 0) and found.mean[2] < 1e-20
    x, band = np.concatenate(list(odd.values()), axis=1), np.repeat([0, 1], [7, 40])
    for t in range(4):
        scaled = x * found.alpha[t][band] ** -0.5
        told = np.empty(40)
        for own in plan.matrix():
            host = Ridge(1.0, solver="svd").fit(scaled[own > 0], Y[own > 0, t])
            told[own == 0] = 0.5 * (Y[own == 0, t] - host.predict(scaled[own == 0])) ** 2
        assert abs(found.mean[t] - told.mean()) <= found.error[t] + 1e-10


def test_a_candidate_that_is_too_small_is_passed_over():
    """Under 1e-15 rounding leaves nothing to tell a fold by with more columns than rows.

    The others are as without.
    """
    X, Y, _ = made(n=40)
    plan = lo.leave_one_out(40)
    for shared in (False, True):
        model = lo.tuning.BandedRidge(X, Y, shared=shared)
        with pytest.warns(
            UserWarning, match=r"penalties \[1e-15, 1e-15, 1e-15\] are passed over.*too small"
        ):
            found = lo.path(model, [1e-15, 1.0, 10.0], plan)
        alone = lo.path(model, [1.0, 10.0], plan)
        assert np.isnan(found.tried[0]).all()
        np.testing.assert_allclose(found.tried[1:], alone.tried, rtol=1e-12)
        np.testing.assert_array_equal(found.alpha, alone.alpha)
    with (
        pytest.raises(ValueError, match="not determined at any"),
        pytest.warns(UserWarning, match="passed over"),
    ):
        lo.path(model, [1e-15], plan)


def test_what_is_refused():
    X, Y, _ = made()
    model, plan, bad = lo.tuning.BandedRidge(X, Y), PLANS["runs"], Y.copy()
    bad[3, 2] = np.nan
    for error, match, call in (
        (ValueError, "in 1 targets, the first \\[2\\]", lambda: lo.tuning.BandedRidge(X, bad)),
        (ValueError, "of the 60 rows", lambda: lo.tuning.BandedRidge(X, Y[1:])),
        (ValueError, "give no `bands`", lambda: lo.tuning.BandedRidge(X, Y, bands=BAND)),
        (ValueError, "one label a column", lambda: lo.tuning.BandedRidge(X["a"], Y, bands=[0, 1])),
        (ValueError, "holds no band", lambda: lo.tuning.BandedRidge({}, Y)),
        (
            ValueError,
            "must be positive",
            lambda: lo.tuning.BandedRidge(X, Y, sample_weight=np.zeros(60)),
        ),
        (
            ValueError,
            "of the same units",
            lambda: lo.tuning.BandedRidge({"a": X["a"], "b": X["b"][1:]}, Y),
        ),
        (ValueError, "positive and finite", lambda: lo.path(model, [0.0, 1.0], plan)),
        (ValueError, r"\[candidates, 3 bands\]", lambda: lo.path(model, np.ones((2, 2)), plan)),
        (ValueError, "bounds for each band", lambda: lo.tune(model, {"a": (1, 2)}, plan)),
        (ValueError, "bounds are", lambda: lo.tune(model, (2.0, 1.0), plan)),
        (
            ValueError,
            "outside the bounds",
            lambda: lo.tune(model, (1.0, 2.0), plan, start=dict.fromkeys("abc", 9.0)),
        ),
        (ValueError, "by name; got nan", lambda: lo.tune(model, (1.0, 2.0), plan, start=np.nan)),
        (
            ValueError,
            "must hold positive numbers",
            lambda: lo.tune(model, (1.0, 2.0), plan, start=dict.fromkeys("abc", np.nan)),
        ),
        (
            ValueError,
            "must hold positive numbers",
            lambda: lo.tune(model, (1.0, 2.0), plan, start=dict.fromkeys("abc", "x")),
        ),
        (
            ValueError,
            "keeps no checkpoint",
            lambda: lo.tune(model, (1.0, 2.0), plan, checkpoint="kept"),
        ),
        (ValueError, "leave units out", lambda: lo.path(model, [1.0], lo.bootstrap(60, 3, rng=0))),
        (ValueError, "60 units of the model", lambda: lo.path(model, [1.0], lo.leave_one_out(50))),
        (TypeError, "an objective", lambda: lo.fit(model)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_columns_far_larger_than_their_penalties_lose_no_digits():
    """Coefficients beside those of least squares on rows that are put below.

    Of an orthogonal factor, not of products.
    """
    rng = np.random.default_rng(3)
    X, y = (
        {"a": rng.standard_normal((40, 2)), "b": 1e4 * rng.standard_normal((40, 6))},
        rng.standard_normal(40),
    )
    y += 2 * X["a"][:, 0] + X["b"][:, 0]
    found = lo.path(
        lo.tuning.BandedRidge(X, y, intercept=False), [0.1], lo.groups(np.repeat(range(8), 5))
    )
    rows = np.r_[np.c_[X["a"], X["b"]], np.sqrt(0.1) * np.eye(8)]
    exact = np.linalg.lstsq(rows, np.r_[y, np.zeros(8)])[0]
    assert found.parameters["coef"][0] == pytest.approx(exact, rel=1e-9, abs=1e-9)
