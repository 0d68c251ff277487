"""Measures of many refits at once.

Scikit-learn's and the library's own of single ones, R's concordance, sums over pairs.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.metrics import average_precision_score, roc_auc_score

import leaveout as lo
from leaveout.extensions.clinical.performance import (
    Binary,
    SortedPredictors,
    Survival,
    concordance,
    logistic,
    lowess_curve,
)
from tests.oracles.clinical import needs_reference, read

rng = np.random.default_rng(0)


def test_ties_and_weights_are_as_in_scikit_learn():
    eta = rng.normal(size=(5, 80)).round(1)
    y, w = (rng.random((5, 80)) < expit(eta)) * 1.0, rng.integers(0, 4, (5, 80)) * 1.0
    # predictors of equal rows differ by rounding
    shaken = eta * (1 + 1e-15 * rng.integers(-1, 2, eta.shape))
    found = SortedPredictors(shaken, y).measure(w)
    for k in range(5):
        np.testing.assert_allclose(
            found["AUC"][k], roc_auc_score(y[k], eta[k], sample_weight=w[k]), rtol=1e-12
        )
        np.testing.assert_allclose(
            found["average_precision"][k],
            average_precision_score(y[k], eta[k], sample_weight=w[k]),
            rtol=1e-12,
        )
        rows = np.repeat(np.arange(80), w[k].astype(int))
        x = eta[k][rows]
        apart = np.abs(x[:, None] - x).sum() / (len(x) * (len(x) - 1))
        np.testing.assert_allclose(found["g"][k], np.abs(found["Slope"][k]) * apart, rtol=1e-10)


def test_a_row_far_away_ties_no_others():
    for far in (1e12, np.inf):
        eta = np.r_[rng.normal(size=300), far]
        y = (rng.random(301) < expit(eta)) * 1.0
        found = SortedPredictors(eta[None], y[None]).measure(np.ones((1, 301)))
        np.testing.assert_allclose(
            found["AUC"], roc_auc_score(y, np.minimum(eta, 1e15)), rtol=1e-12
        )
    x = np.r_[rng.normal(size=200), 50.0]  # whose probability is one, to rounding
    y = (rng.random(201) < expit(x)) * 1.0
    fit = lo.fit(lo.GLM(x[:, None], y, "probit"))
    found = lo.clinical.validate(fit, num_resamples=10, num_curves=0).table
    np.testing.assert_allclose(found.loc["AUC", "index.orig"], roc_auc_score(y, x), rtol=1e-12)
    assert np.isfinite(found.loc[["R2", "Slope", "D", "log_loss"], "index.corrected"]).all()


def test_lowess_where_more_rows_tie_than_a_neighbourhood_holds_is_their_mean():
    p = np.r_[np.full(80, 0.2), rng.uniform(0.3, 0.9, 20)]
    y = (rng.random(100) < p) * 1.0
    order = rng.permutation(100)
    np.testing.assert_allclose(
        lowess_curve(p[order], y[order], np.ones(100), np.array([0.2])), y[:80].mean()
    )


def test_weights_that_sum_to_one_count_no_cases():
    eta = rng.normal(size=(1, 50))
    y, w = (rng.random((1, 50)) < 0.5) * 1.0, rng.random((1, 50))
    shares, counts = (SortedPredictors(eta, y).measure(each) for each in (w / w.sum(), 100 * w))
    for name, value in shares.items():
        if name in ("D", "U", "Q", "g", "gp"):
            assert np.isnan(value[0]) and np.isfinite(counts[name][0])
        else:
            np.testing.assert_allclose(value, counts[name], rtol=1e-8)


def test_rows_of_one_class_or_that_separate_define_no_measure():
    eta = np.tile(np.linspace(-2, 2, 20), (3, 1))
    y = np.stack([np.ones(20), (eta[0] > 0) * 1.0, np.tile([0.0, 1], 10)])
    found = SortedPredictors(eta, y).measure(np.ones((3, 20)))
    assert np.isnan(found["AUC"][0]) and found["AUC"][1] == 1
    assert np.isnan(found["Slope"][:2]).all() and np.isfinite(found["Slope"][2])


def test_a_slope_that_is_far_from_one_is_found():
    eta, y = rng.normal(size=(1, 400)) * 60, (rng.random((1, 400)) < 0.5) * 1.0
    theta, H = logistic(np.stack([np.ones_like(eta), eta]), y, np.ones_like(y), tol=1e-12)
    p = expit(theta[0, 0] + theta[0, 1] * eta[0])
    np.testing.assert_allclose([np.sum(y[0] - p), np.sum((y[0] - p) * eta[0])], 0, atol=1e-6)
    np.testing.assert_allclose(H[0, 1, 1], np.sum(p * (1 - p) * eta[0] ** 2), rtol=1e-8)


@needs_reference
def test_rs_concordance():
    lung, want = read("lung"), read("concordance").set_index("of")["C"]
    risk = read("lung_risk")
    fit = lo.fit(lo.Cox(lung[["age", "sex", "ph.ecog", "wt.loss"]], lung["time"], lung["event"]))
    measure = Survival(fit, [365, 500])
    found = measure(measure.fit_prediction, np.ones((1, 213)), True)
    np.testing.assert_allclose(
        [found["C"][0], found["C_uno"][0]], want[["lp", "Uno n/G2 tau 500"]], rtol=1e-14
    )
    p = -np.expm1(-measure.fit_prediction[1][0, :, 0] * np.exp(measure.fit_prediction[0][0]))
    np.testing.assert_allclose(p, risk["risk"], atol=1e-8)
    rounded = np.round(risk["lp"].to_numpy(), 1)
    np.testing.assert_allclose(
        concordance(measure.risk, rounded, np.ones(213)), want["lp rounded to 0.1"], rtol=1e-14
    )


def test_measures_at_times_by_sums_over_pairs():
    """Brier scores, areas and Uno's concordance with a Kaplan–Meier estimate of the censoring,
    written out.
    """
    n, X = 70, rng.normal(size=(70, 2))
    time, event = np.ceil(4 * rng.exponential(np.exp(-X[:, 0]))), (rng.random(70) < 0.6) * 1.0
    fit = lo.fit(lo.Cox(X, time, event))
    w = rng.integers(0, 3, n) * 1.0
    at_times = [2.0, 5.0]
    measure = Survival(fit, at_times)
    eta, base, _ = measure.fit_prediction
    found = measure(measure.fit_prediction, w[None], False)

    def G(t, before):
        value = 1.0
        for s in np.unique(time):
            if s < t or (s == t and not before):
                # who dies at s is no longer at risk of censoring
                left = w[(time > s) | ((time == s) & (event == 0))].sum()
                value *= 1 - w[(time == s) & (event == 0)].sum() / left if left else 1.0
        return value

    for t in at_times:
        alive = np.exp(-base[0, :, np.searchsorted(measure.grid, t)] * np.exp(eta[0]))
        one = np.array(
            [w[i] / G(time[i], True) if time[i] <= t and event[i] else 0.0 for i in range(n)]
        )
        zero = np.where(time > t, w / G(t, False), 0.0)
        brier = (one @ alive**2 + zero @ (1 - alive) ** 2) / w.sum()
        above = (alive[:, None] < alive) + 0.5 * (alive[:, None] == alive)
        area = one @ above @ zero / (one.sum() * zero.sum())
        np.testing.assert_allclose(
            [found[f"Brier({t:g})"][0], found[f"AUC({t:g})"][0]], [brier, area], rtol=1e-10
        )
    up, down = 0.0, 0.0
    for i in np.flatnonzero((event == 1) & (time <= 5)):
        later = w * ((time > time[i]) | ((time == time[i]) & (event == 0)))
        weight = w[i] / G(time[i], True) ** 2
        up += weight * later @ ((eta[0, i] > eta[0]) + 0.5 * (eta[0, i] == eta[0]))
        down += weight * later.sum()
    np.testing.assert_allclose(found["C_uno"][0], up / down, rtol=1e-10)


def test_a_stratum_without_units_has_no_risks():
    """A refit without a stratum knows no baseline there, which is not a risk of zero."""
    X, stratum = rng.normal(size=(90, 2)), np.arange(90) % 3
    time = rng.exponential(np.exp(-X[:, 0]))
    fit = lo.fit(lo.Cox(X, time, np.ones(90), strata=stratum))
    found = lo.clinical.internal_external(fit, stratum).centres
    assert found["OE"].isna().all() and np.isfinite(found[["C", "slope"]].to_numpy()).all()
    cv = lo.cross_validate(fit, lo.groups(stratum))
    for call in (lo.clinical.calibration, lo.clinical.decision_curve):
        with pytest.raises(ValueError, match="90 predictions are of units whose whole stratum"):
            call(cv, time=0.5)
    held = np.repeat([True, False], 30)
    entries = np.r_[np.flatnonzero(stratum == 1), np.arange(30)], np.where(held, 0.0, 2.0), held
    plan = lo.Plan([0, 30, 60], *entries, 90)
    table = lo.clinical.validate(fit, plan=plan, times=[0.5]).table
    assert (table.loc[["AUC(0.5)", "Brier(0.5)"], "n"] == 1).all() and table.loc["C", "n"] == 2
    stable = lo.clinical.stability(fit, plan=plan, time=0.5)
    assert (np.isnan(stable.predictions[0]) == (stratum == 1)).all() and np.isfinite(
        stable.units.to_numpy()
    ).all()
    np.testing.assert_array_equal(stable.reclassified(0.0), 0)


def test_no_information():
    X, y = rng.normal(size=(60, 2)), (rng.random(60) < 0.4) * 1.0
    measure = Binary(lo.fit(lo.GLM(X, y, "logistic")))
    found = measure.no_information(measure.fit_prediction, np.ones((1, 60)))
    p = expit(measure.fit_prediction[0])
    np.testing.assert_allclose(found["B"], np.mean((y[:, None] - p) ** 2), rtol=1e-10)
    np.testing.assert_allclose(
        [found["AUC"], found["average_precision"], found["Slope"]], [0.5, y.mean(), 0], atol=1e-9
    )


def test_wrong_input():
    X = rng.normal(size=(40, 2))
    time = rng.exponential(size=40)
    with pytest.raises(ValueError, match="times must lie between 0"):
        lo.clinical.validate(lo.fit(lo.Cox(X, time, np.ones(40))), times=[1e9])
    late = lo.fit(lo.Cox(X, time + 1, np.ones(40), entry=time))
    for call in (
        lambda: lo.clinical.validate(late, times=[1.0]),
        lambda: lo.clinical.calibration(late),
        lambda: lo.clinical.stability(late),
    ):
        with pytest.raises(
            ValueError,
            match=r"(validate|calibration|stability): a risk until a time.* has entry times",
        ):
            call()


def test_entry_at_zero_changes_no_measure():
    X = rng.normal(size=(40, 2))
    time, event = rng.exponential(np.exp(-X[:, 0])) + 0.01, rng.random(40) < 0.7
    fits = [lo.fit(lo.Cox(X, time, event, entry=entry)) for entry in (None, np.zeros(40))]
    whole, entering = (
        lo.clinical.validate(fit, plan=lo.bootstrap(40, 3, rng=0), num_curves=0).table.iloc[:, :5]
        for fit in fits
    )
    assert list(entering.index) == ["Dxy", "R2", "Slope", "D", "U", "Q", "g", "C"]
    np.testing.assert_allclose(entering, whole.loc[entering.index], rtol=1e-9, atol=1e-12)
    tables = [lo.clinical.internal_external(fit, np.arange(40) % 2).table for fit in fits]
    np.testing.assert_allclose(*tables, rtol=1e-7, atol=1e-9)


def test_a_mixed_model_of_zeros_and_ones_predicts_probabilities():
    X, group = rng.normal(size=(80, 1)), np.arange(80) % 8
    y = (rng.random(80) < expit(X[:, 0])) * 1.0
    y[group < 3] = y[group < 3] * (rng.random(30) < 0.2)  # groups differ
    data = pd.DataFrame({"x": X[:, 0], "group": group, "y": y})
    fit = lo.fit(lo.Mixed("y ~ x + (1 | group)", data, "binomial"))
    assert {"AUC", "Slope"} <= set(
        lo.clinical.validate(
            fit, method="crossvalidation", num_resamples=2, num_curves=0
        ).table.index
    )
