"""Leaving out centres: R's figures, refits from scratch, and centres without events."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import leaveout as lo
from tests.oracles.clinical import needs_reference, read

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 2))
centre = np.repeat([f"c{k}" for k in range(5)], 30)
Y = (rng.random(150) < expit(X @ [1.0, -0.5])) * 1.0
FIT = lo.fit(lo.GLM(X, Y, "logistic"))


@needs_reference
def test_r_by_centre_and_pooled():
    heart = read("heart")
    fit = lo.fit(lo.GLM(heart.drop(columns=["centre", "y"]), heart["y"], "logistic"))
    found = lo.clinical.internal_external(fit, heart["centre"], tau2="DL")
    want = read("iecv").set_index("centre")
    exact = ["n", "events", "C", "C_se", "slope", "OE", "brier", "logloss"]
    np.testing.assert_allclose(found.centres.loc[want.index, exact], want[exact], rtol=2e-12)
    rest = ["slope_se", "large", "large_se"]  # R's weights are those before its last step
    np.testing.assert_allclose(found.centres.loc[want.index, rest], want[rest], rtol=3e-8)
    want = read("iecv_pooled").set_index("of")
    np.testing.assert_allclose(found.pooled.loc[want.index, want.columns], want, rtol=5e-8)
    assert found.table.loc["C", "estimate"] == pytest.approx(expit(want.loc["logit C", "mu"]))


def test_each_centre_is_predicted_by_the_others():
    found = lo.clinical.internal_external(FIT, pd.Series(centre))
    for name in np.unique(centre):
        here = centre == name
        p = lo.predict(lo.fit(lo.GLM(X[~here], Y[~here], "logistic")), X[here]).to_numpy()
        pairs = p[Y[here] == 1][:, None] - p[Y[here] == 0]
        want = [
            np.mean((pairs > 0) + 0.5 * (pairs == 0)),
            np.mean((Y[here] - p) ** 2),
            Y[here].sum() / p.sum(),
        ]
        np.testing.assert_allclose(
            found.centres.loc[name, ["C", "brier", "OE"]].to_numpy(float), want, rtol=1e-7
        )
    rows = found.forest("OE")
    assert list(rows.index[-2:]) == ["pooled", "new centre"] and (rows["low"] < rows["high"]).all()
    assert found.table.loc["C", "k"] == 5 and "c3" in str(found) and "pi_low" in found._repr_html_()


def test_a_centre_without_events_and_one_that_separates():
    y = np.where(centre == "c1", 0.0, Y)
    found = lo.clinical.internal_external(lo.fit(lo.GLM(X, y, "logistic")), centre)
    assert np.isnan(found.centres.loc["c1", ["C", "slope", "large"]].to_numpy(float)).all()
    assert np.isfinite(found.centres.loc["c1", "brier"]) and found.table.loc["C", "k"] == 4
    only = np.column_stack([X, centre == "c2"])  # a column that is zero without its centre
    found = lo.clinical.internal_external(lo.fit(lo.GLM(only, Y, "logistic")), centre)
    assert found.centres.loc["c2", "result"] == "undetermined" and "no refit" in str(found)
    assert found.table.loc["slope", "k"] == 4


def test_a_centre_that_is_ranked_without_a_fault():
    """Its concordance is one, which has no interval, and is not pooled."""
    here = centre == "c1"
    eta = X[here] @ lo.fit(lo.GLM(X[~here], Y[~here], "logistic")).parameters["coef"]
    y = Y.copy()
    y[here] = eta > np.median(eta)
    found = lo.clinical.internal_external(lo.fit(lo.GLM(X, y, "logistic")), centre)
    forest = found.forest("C")
    assert (
        forest.loc["c1", "estimate"] == 1
        and np.isnan(forest.loc["c1", ["low", "high"]].to_numpy(float)).all()
    )
    assert (
        found.table.loc["C", "k"] == 4
        and np.isfinite(forest.drop("c1")[["low", "high"]].to_numpy()).all()
    )


def test_rows_without_weight_do_not_count():
    part = (centre != "c1") & (np.arange(150) % 3 > 0)
    found = lo.clinical.internal_external(
        lo.fit(lo.GLM(X, Y, "logistic", sample_weight=part * 1.0)), centre
    )
    assert (
        found.centres.loc["c1", "n"] == 0
        and found.centres.loc["c1"].drop(["n", "events", "result"]).isna().all()
    )
    want = lo.clinical.internal_external(
        lo.fit(lo.GLM(X[part], Y[part], "logistic")), centre[part]
    ).centres.drop(columns="result")
    np.testing.assert_allclose(found.centres.loc[want.index, want.columns], want, rtol=1e-7)


def test_small_centres_are_not_pooled():
    """Of a few rows a standard error is small by luck, and its centre would outweigh all others."""
    few = np.r_[0, 1, 1, 2, 2, 2, np.repeat([3, 4, 5], 48)]
    y = X[:, 0] + np.random.default_rng(1).normal(size=150)
    for fit in (FIT, lo.fit(lo.GLM(X, y, "squared"))):
        found = lo.clinical.internal_external(fit, few)
        errors = [name for name in found.centres if name.endswith("_se")]
        assert found.centres.loc[[0, 1, 2], errors].isna().to_numpy().all()
        assert (found.table["k"] == 3).all() and "without 3 centres of fewer than 10 rows" in str(
            found
        )
        assert "± 0" not in str(found).split("pooled")[0].replace("± 0.", "")
    p = lo.predict(lo.fit(lo.GLM(X[1:], y[1:], "squared")), X[:1]).to_numpy()
    np.testing.assert_allclose(
        found.centres.loc[0, ["MSE", "large"]].to_numpy(float), [(y[0] - p[0]) ** 2, y[0] - p[0]]
    )
    assert np.isnan(found.centres.loc[0, "R2"])


def test_numbers_and_survival():
    number = X @ [1.0, 2.0] + rng.normal(size=150)
    found = lo.clinical.internal_external(lo.fit(lo.GLM(X, number, "squared")), centre).centres
    here = centre == "c4"
    mean = lo.predict(lo.fit(lo.GLM(X[~here], number[~here], "squared")), X[here]).to_numpy()
    host = np.polyfit(mean, number[here], 1, cov="unscaled")
    residual = number[here] - np.polyval(host[0], mean)
    np.testing.assert_allclose(found.loc["c4", "slope"], host[0][0], rtol=1e-9)
    np.testing.assert_allclose(
        found.loc["c4", "slope_se"], np.sqrt(host[1][0, 0] * residual @ residual / 28), rtol=1e-9
    )
    np.testing.assert_allclose(
        found.loc["c4", ["MSE", "large"]].to_numpy(float),
        [np.mean((number[here] - mean) ** 2), np.mean(number[here] - mean)],
    )
    time, event = rng.exponential(np.exp(-X[:, 0])), (rng.random(150) < 0.8) * 1.0
    found = lo.clinical.internal_external(lo.fit(lo.Cox(X, time, event)), centre).centres
    others = lo.fit(lo.Cox(X[~here], time[~here], event[~here]))
    eta = X @ others.parameters["coef"]
    own = lo.fit(lo.Cox(eta[here][:, None], time[here], event[here]))
    np.testing.assert_allclose(found.loc["c4", "slope"], own.parameters["coef"][0], rtol=1e-6)
    np.testing.assert_allclose(found.loc["c4", "slope_se"], own.hessian[0, 0] ** -0.5, rtol=1e-6)
    steps = [
        (t, 1 / np.exp(eta[~here])[time[~here] >= t].sum())
        for t, d in zip(time[~here], event[~here], strict=True)
        if d
    ]
    expected = sum(
        np.exp(e) * sum(h for t, h in steps if t <= end)
        for e, end in zip(eta[here], time[here], strict=True)
    )
    np.testing.assert_allclose(found.loc["c4", "OE"], event[here].sum() / expected, rtol=1e-7)


def test_wrong_input():
    with pytest.raises(ValueError, match="tau2 must be"):
        lo.clinical.internal_external(FIT, centre, tau2="ML")
    with pytest.raises(ValueError, match="at least two groups"):
        lo.clinical.internal_external(FIT, np.zeros(150))
    with pytest.raises(ValueError, match="measure must be one of"):
        lo.clinical.internal_external(FIT, centre).forest("AUC")
    with pytest.raises(ValueError, match="rename the centre"):
        lo.clinical.internal_external(FIT, np.where(centre == centre[0], "pooled", "b")).forest()


def test_a_centre_whose_classes_are_apart_has_no_slope_and_one_where_they_hardly_overlap_has():
    rng = np.random.default_rng(0)
    x = np.sort(rng.standard_normal(30))
    apart = (np.arange(30) > 14) * 1.0
    overlapping = apart.copy()
    overlapping[[14, 15]] = 1.0, 0.0
    for y, exists in ((apart, False), (overlapping, True)):
        both = np.r_[y, (rng.random(30) < expit(x)) * 1.0]
        fit = lo.fit(lo.GLM(np.r_[x, x][:, None], both, "logistic", lo.penalties.Ridge(1.0)))
        found = lo.clinical.internal_external(fit, np.repeat([0, 1], 30)).centres
        assert np.isfinite(found.loc[0, ["slope", "slope_se"]].astype(float)).all() == exists
        assert np.isfinite(found.loc[1, "slope"]) and found.loc[0, "C"] == pytest.approx(
            1 - exists / 225
        )
