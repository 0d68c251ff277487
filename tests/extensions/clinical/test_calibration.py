"""Calibration: R's corrected curve, statsmodels' regressions of outcomes on held-out predictions,
and censoring.
"""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit, logit

import leaveout as lo
from leaveout.extensions.clinical.performance import spline_basis, spline_knots
from tests.oracles.clinical import entries, needs_reference, read

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
Y = (rng.random(200) < expit(X @ [1.0, -0.5, 0.2])) * 1.0
FIT = lo.fit(lo.GLM(X, Y, "logistic"))
PLAN = lo.kfold(200, 5, rng=1)
CV = lo.cross_validate(FIT, PLAN)
HELD = np.asarray(lo.cross_predict(FIT, PLAN, strategy=lo.Exact(1e-10)))


@needs_reference
def test_rms_calibrate():
    heart, want = read("heart"), read("exact_calibrate")
    fit = lo.fit(lo.GLM(heart.drop(columns=["centre", "y"]), heart["y"], "logistic"))
    plan = lo.Plan(**entries("heart_counts"))
    found = lo.clinical.calibration(fit, smoother="lowess", plan=plan).curve
    for mine, theirs in (("predicted", "predy"), ("observed", "orig"), ("corrected", "corrected")):
        np.testing.assert_allclose(found[mine], want[theirs], atol=6e-8)
    few = lo.clinical.calibration(
        lo.clinical.validate(fit, plan=lo.bootstrap(len(heart), 10), num_curves=0)
    )
    assert few.curve["corrected"].notna().all() and "10 resamples" in str(few)


def test_statsmodels_regressions_of_outcomes_on_held_out_predictions():
    found = lo.clinical.calibration(CV)
    eta = logit(HELD)
    line = sm.Logit(Y, sm.add_constant(eta)).fit(disp=0, tol=1e-12)
    large = sm.GLM(Y, np.ones(200), sm.families.Binomial(), offset=eta).fit(tol=1e-14)
    want = [large.params[0], *line.params], [large.bse[0], *line.bse]
    np.testing.assert_allclose(
        found.table.loc[["large", "intercept", "slope"], ["estimate", "se"]].T, want, rtol=1e-6
    )
    knots = spline_knots(eta, np.ones(200))
    curve = sm.Logit(Y, spline_basis(eta, knots)).fit(disp=0, tol=1e-12)
    basis = spline_basis(logit(found.curve["predicted"].to_numpy()), knots)
    half = 1.959964 * np.sqrt(np.einsum("np,pq,nq->n", basis, curve.cov_params(), basis))
    np.testing.assert_allclose(found.curve["observed"], expit(basis @ curve.params), rtol=1e-6)
    np.testing.assert_allclose(found.curve["low"], expit(basis @ curve.params - half), rtol=1e-5)
    away = np.abs(curve.predict() - HELD)
    np.testing.assert_allclose(
        found.table.loc[["Emax", "Eavg"], "estimate"], [away.max(), away.mean()], rtol=1e-6
    )


def test_the_band_of_a_corrected_curve():
    """The differences of a resample's curve on its own rows and on all, written out by
    statsmodels.
    """
    plan, at = lo.bootstrap(200, 12, rng=3), np.array([0.4, 0.6])
    found = lo.clinical.calibration(FIT, plan=plan, predictions=at).curve
    each = []
    for w in plan.matrix():
        rows = np.repeat(np.arange(200), w.astype(int))
        model = sm.Logit(Y[rows], sm.add_constant(X[rows])).fit(disp=0, tol=1e-12)
        eta = sm.add_constant(X) @ model.params
        for own in (rows, np.arange(200)):
            knots = spline_knots(eta[own], np.ones(len(own)))
            smooth = sm.Logit(Y[own], spline_basis(eta[own], knots)).fit(disp=0, tol=1e-12)
            each.append(expit(spline_basis(logit(at), knots) @ smooth.params))
    own, on_all = np.array(each).reshape(12, 2, 2).transpose(1, 0, 2)
    np.testing.assert_allclose(
        found["corrected"], found["observed"] - (own - on_all).mean(0), rtol=1e-5
    )
    middle = (own + on_all) / 2
    half = stats.t.ppf(0.975, 11) * ((own - on_all) / (middle * (1 - middle))).std(0, ddof=1)
    np.testing.assert_allclose(logit(found["high"]) - logit(found["corrected"]), half, rtol=1e-5)
    np.testing.assert_allclose(logit(found["corrected"]) - logit(found["low"]), half, rtol=1e-5)


def test_splines_are_linear_beyond_the_outer_knots():
    knots = np.array([-1.0, 0.0, 0.5, 2.0])
    far = spline_basis(np.array([-5.0, -4, -3, 4, 5, 6]), knots)
    np.testing.assert_allclose(np.diff(far[:3], 2, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.diff(far[3:], 2, axis=0), 0, atol=1e-10)


def test_clusters_widen_the_errors_and_repeats_do_not_shrink_them():
    centre = np.repeat(np.arange(20), 10)
    found = lo.clinical.calibration(lo.cross_validate(FIT, lo.groups(centre)))
    eta = logit(lo.cross_predict(FIT, lo.groups(centre), strategy=lo.Exact(1e-10)).to_numpy())
    theirs = sm.GLM(Y, sm.add_constant(eta), sm.families.Binomial()).fit(
        tol=1e-14, cov_type="cluster", cov_kwds={"groups": centre, "use_correction": False}
    )
    np.testing.assert_allclose(
        found.table.loc["slope", "se"], theirs.bse[1] * np.sqrt(20 / 19), rtol=1e-6
    )
    once, often = (
        lo.clinical.calibration(lo.cross_validate(FIT, lo.kfold(k=5, rng=1, num_repeats=k))).table
        for k in (1, 6)
    )
    assert 0.8 < often.loc["slope", "se"] / once.loc["slope", "se"] < 1.25


def test_without_censoring_survival_is_that_of_two_classes():
    time = rng.exponential(np.exp(-X[:, 0]))
    cox = lo.fit(lo.Cox(X, time, np.ones(200)))
    found = lo.clinical.calibration(lo.cross_validate(cox, PLAN), time=0.7)
    p = found.predicted
    line = sm.Logit((time <= 0.7) * 1.0, sm.add_constant(logit(p))).fit(disp=0, tol=1e-12)
    np.testing.assert_allclose(
        found.table.loc[["intercept", "slope"], "estimate"], line.params, rtol=1e-6
    )
    assert found.time == 0.7 and np.array_equal(found.outcome, (time <= 0.7) * 1.0)


def test_numbers():
    y = X @ [1.0, 2.0, 0.0] + rng.normal(size=200)
    fit = lo.fit(lo.GLM(X, y, "squared"))
    held = lo.cross_predict(fit, PLAN, strategy=lo.Exact(1e-10))
    line = sm.OLS(y, sm.add_constant(held)).fit()
    found = lo.clinical.calibration(lo.cross_validate(fit, PLAN)).table
    np.testing.assert_allclose(found.loc[["intercept", "slope"], "se"], line.bse, rtol=1e-8)
    np.testing.assert_allclose(found.loc["large", "estimate"], np.mean(y - held), rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lo.clinical.calibration(CV, smoother="gam"), "smoother must be"),
        (lambda: lo.clinical.calibration(CV, plan=PLAN), "plan= goes with a fit"),
        (
            lambda: lo.clinical.calibration(CV, predictions=[0.0, 0.5]),
            "predictions must lie between 0 and 1",
        ),
        (lambda: lo.clinical.calibration(CV, time=1.0), "times= is for lo.Cox"),
        (
            lambda: lo.clinical.calibration(
                lo.cross_validate(FIT, lo.kfold(k=5, rng=1, num_repeats=2)), smoother="lowess"
            ),
            "whole numbers",
        ),
    ],
)
def test_wrong_input(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_what_is_no_estimate():
    with pytest.raises(TypeError, match="must be an Estimate"):
        lo.clinical.calibration(Y)
