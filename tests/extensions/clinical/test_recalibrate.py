"""Recalibrated predictions and thresholds have the loss of rules that have not seen the unit."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn.isotonic import IsotonicRegression

import leaveout as lo
from leaveout.extensions.clinical import recalibrate as module
from leaveout.validation import repeated_folds
from tests.helpers import fitted

N = 18
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, 2))
Y = (RNG.random(N) < scipy.special.expit(X[:, 0])).astype(float)
DESIGN = np.column_stack([X, np.ones(N)])
FIT = lo.fit(lo.GLM(X, Y, "logistic", lo.penalties.Ridge(1.0)))


def newton(Z, y, ridge):
    """Logistic regression by Newton's method."""
    theta = np.zeros(Z.shape[1])
    for _ in range(15):
        p = scipy.special.expit(Z @ theta)
        hessian = Z.T @ (Z * (p * (1 - p))[:, None]) + np.diag(ridge)
        theta = theta - np.linalg.solve(hessian, Z.T @ (p - y) + ridge * theta)
    return theta


@functools.cache
def _without(units):
    kept = np.setdiff1d(np.arange(N), units)
    theta = newton(DESIGN[kept], Y[kept], np.array([1.0, 1.0, 0.0]))
    return scipy.special.expit(DESIGN @ theta)


def without(units):
    """Probabilities of all units by the refit without some."""
    return _without(tuple(np.sort(units).tolist()))


def platt(p, y):
    count = y.sum()
    target = np.where(y > 0, (count + 1) / (count + 2), 1 / (len(y) - count + 2))
    features = lambda q: np.column_stack([scipy.special.logit(q), np.ones(np.size(q))])
    theta = newton(features(p), target, np.zeros(2))
    return lambda q: scipy.special.expit(features(q) @ theta)


def isotonic(p, y):
    return IsotonicRegression(out_of_bounds="clip").fit(p, y).predict


def venn_abers(p, y):
    def rule(q):
        p0, p1 = (isotonic(np.append(p, q), np.append(y, k))(q)[0] for k in (0, 1))
        return np.array([p1 / (1 - p0 + p1)])

    return rule


def cheapest(p, y):
    """The threshold of least cost 3 : 1 between two predictions, by trying all."""
    ends = np.concatenate([[0.0], np.sort(p), [1.0]])
    middles = (ends[1:] + ends[:-1]) / 2
    costs = [np.sum(np.where(y > 0, 3.0 * (p < t), p >= t)) for t in middles]
    return lambda q: q >= middles[np.argmin(costs)]


@pytest.mark.parametrize(
    "ask, learn",
    [
        (lambda **options: lo.clinical.recalibrate(FIT, method="platt", **options), platt),
        (lambda **options: lo.clinical.recalibrate(FIT, method="isotonic", **options), isotonic),
        (
            lambda **options: lo.clinical.recalibrate(FIT, method="venn_abers", **options),
            venn_abers,
        ),
        (lambda **options: lo.clinical.threshold(FIT, cost=3.0, **options), cheapest),
    ],
    ids=["platt", "isotonic", "venn_abers", "threshold"],
)
@pytest.mark.parametrize("label", [np.arange(N), np.arange(N) // 4], ids=["rows", "groups"])
def test_the_honest_loss_is_that_of_refits_without_pairs(ask, learn, label):
    options = {} if label[-1] == N - 1 else {"groups": label}
    found = ask(**options)
    alone, honest = np.empty(N), np.empty(N)
    for g in np.unique(label):
        own = np.flatnonzero(label == g)
        alone[own] = without(own)[own]
        q = np.empty(N)
        for h in set(label) - {g}:
            others = np.flatnonzero(label == h)
            q[others] = without(np.append(own, others))[others]
        rule = learn(q[label != g], Y[label != g])
        honest[own] = [float(np.ravel(rule(alone[[i]]))[0]) for i in own]
    np.testing.assert_allclose(found.units["predicted"], alone, rtol=1e-5)
    np.testing.assert_allclose(found.units["honest"], honest, rtol=1e-4, atol=1e-6)
    rows = np.array([[0.3, -1.0], [2.0, 0.0]])
    final = learn(alone, Y)
    expected = [float(np.ravel(final(q[None]))[0]) for q in np.asarray(lo.predict(FIT, rows))]
    np.testing.assert_allclose(found.predict(rows), expected, rtol=1e-4, atol=1e-6)
    if "Brier" in found.table.index:
        line = found.table.loc["Brier"]
        change = (Y - honest) ** 2 - (Y - alone) ** 2
        np.testing.assert_allclose(line["difference"], change.mean(), atol=1e-5)
        if not options:
            np.testing.assert_allclose(line["se"], change.std(ddof=1) / np.sqrt(N), rtol=1e-3)
    else:
        before = np.where(Y > 0, 3.0 * (alone < 0.25), alone >= 0.25)
        assert found.table.loc["cost", "before"] == pytest.approx(before.mean())
        after = np.where(Y > 0, 3.0 * (1 - honest), honest)
        assert found.table.loc["cost", "after"] == pytest.approx(after.mean())


def test_beta_keeps_to_rising_rules():
    """Kull's by Newton's method where both coefficients are positive, and of one where not."""
    p = np.random.default_rng(0).uniform(0.05, 0.95, 400)
    y = (np.random.default_rng(1).random(400) < p**2).astype(float)
    features = np.column_stack([np.log(p), -np.log1p(-p), np.ones(400)])
    theta = newton(features, y, np.zeros(3))
    kept = [0, 1, 2] if theta[:2].min() >= 0 else [int(np.argmax(theta[:2])), 2]
    theta = newton(features[:, kept], y, np.zeros(len(kept)))
    rule = module._beta(p, y)
    np.testing.assert_allclose(rule(p), scipy.special.expit(features[:, kept] @ theta), rtol=1e-6)
    bent = (np.random.default_rng(2).random(400) < np.where(p > 0.5, 0.6, 0.3)).astype(float)
    assert np.all(np.diff(module._beta(p, bent)(np.linspace(0.01, 0.99, 50))) >= 0)


def test_many_units_leave_by_pairs_of_folds(monkeypatch):
    monkeypatch.setattr(repeated_folds, "MOST_PAIRED", 40)
    monkeypatch.setattr(repeated_folds, "FOLDS_PAIRED", 6)
    fit = fitted("logistic")
    found = lo.clinical.recalibrate(fit, rng=1)
    held_out = np.asarray(lo.cross_predict(fit, lo.kfold(60, 6, rng=1)))
    np.testing.assert_allclose(found.units["predicted"], held_out, rtol=1e-5)
    assert np.isfinite(found.units["honest"]).all()


def test_a_share_of_zero_that_came_true_loses_without_bound():
    x = np.arange(12.0)[:, None]
    y = np.array([1.0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1])
    fit = lo.fit(lo.GLM(x, y, "logistic", lo.penalties.Ridge(1.0)))
    line = lo.clinical.recalibrate(fit, method="isotonic").table.loc["−log p"]
    assert line["after"] == np.inf and np.isnan(line["se"])


def test_venn_abers_says_that_it_has_no_theorem():
    assert "theorem" in str(lo.clinical.recalibrate(FIT, method="venn_abers"))
    assert "theorem" not in str(lo.clinical.recalibrate(FIT))


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: lo.clinical.recalibrate(FIT, method="temperature"), ValueError, "one of platt"),
        (lambda: lo.clinical.threshold(FIT, cost=0.0), ValueError, "positive number"),
        (lambda: lo.clinical.threshold(FIT, cost=[1, 2]), ValueError, "positive number"),
        (lambda: lo.clinical.recalibrate(fitted("ridge")), TypeError, "two classes"),
        (
            lambda: lo.clinical.recalibrate(FIT, groups=np.arange(N) // 9),
            ValueError,
            "groups must be 3 or more",
        ),
        (lambda: lo.clinical.recalibrate("fit"), TypeError, "must be a Fit"),
        (
            lambda: lo.clinical.recalibrate(
                lo.fit(lo.GLM(X, Y, "logistic", lo.penalties.Ridge(1.0), sample_weight=1 + Y))
            ),
            ValueError,
            "other sample_weight",
        ),
        (
            lambda: lo.clinical.recalibrate(
                lo.fit(
                    lo.GLM(
                        X, np.where(np.arange(N) < 6, 1, Y), "logistic", absorb=np.arange(N) // 6
                    )
                )
            ),
            ValueError,
            "zero as rows of separated levels",
        ),
    ],
)
def test_what_cannot_be_recalibrated(make, error, message):
    with warnings.catch_warnings(), pytest.raises(error, match=message):
        warnings.simplefilter("ignore")
        make()


def test_levels_of_absorbed_effects_that_leave_are_said():
    """Without one of two rows of both classes their level has no effect and no prediction."""
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"x": rng.normal(size=60), "site": np.r_[9, 9, np.arange(58) % 3]})
    data["y"] = np.r_[0.0, 1.0, rng.integers(0, 2, 58)]
    with pytest.warns(UserWarning, match="incidental"):
        fit = lo.fit(lo.GLM("y ~ x | site", data, "logistic"))
    with pytest.raises(ValueError, match="recalibrate: 2 of 60 held-out predictions do not exist"):
        lo.clinical.recalibrate(fit)


@pytest.mark.parametrize("method", ["platt", "beta"])
def test_rows_far_out_have_a_probability_without_a_warning(method):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=60) > 0) * 1.0, "logistic"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = lo.clinical.recalibrate(fit, method=method).predict([[1e5, 0.0], [-1e5, 0.0]])
    assert far[0] > 0.99 and far[1] < 0.01
