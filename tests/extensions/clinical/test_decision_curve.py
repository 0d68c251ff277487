"""Net benefit: R's figures, counts of patients, and the jackknife of its standard error."""

import numpy as np
import pytest
from scipy.special import expit

import leaveout as lo
from leaveout.extensions.clinical.performance import kaplan_meier_influence
from tests.oracles.clinical import needs_reference, read

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 2))
Y = (rng.random(120) < expit(X @ [1.0, -0.5])) * 1.0
FIT = lo.fit(lo.GLM(X, Y, "logistic"))


@needs_reference
def test_r():
    heart, want = read("heart"), read("net_benefit")
    fit = lo.fit(lo.GLM(heart.drop(columns=["centre", "y"]), heart["y"], "logistic"))
    found = lo.clinical.decision_curve(fit, want["threshold"]).table
    held = lo.clinical.decision_curve(
        lo.cross_validate(fit, lo.groups(heart["centre"])), want["threshold"]
    ).table
    np.testing.assert_allclose(
        found[["net_benefit", "all", "none"]], want[["apparent", "all", "none"]], atol=2e-14
    )
    np.testing.assert_allclose(held["net_benefit"], want["held_out"], atol=2e-14)


@needs_reference
def test_r_for_survival():
    lung, want = read("lung"), read("net_benefit_lung_365")
    fit = lo.fit(lo.Cox(lung[["age", "sex", "ph.ecog", "wt.loss"]], lung["time"], lung["event"]))
    found = lo.clinical.decision_curve(fit, want["threshold"], time=365).table
    np.testing.assert_allclose(
        found[["net_benefit", "all"]], want[["net_benefit", "all"]], atol=1e-14
    )


def test_counts_and_their_standard_error():
    plan = lo.kfold(120, 5, rng=1)
    found = lo.clinical.decision_curve(lo.cross_validate(FIT, plan), [0.3]).table.loc[0.3]
    p = lo.cross_predict(FIT, plan, strategy=lo.Exact(1e-10))
    each = (p >= 0.3) * (Y - (1 - Y) * 0.3 / 0.7)
    np.testing.assert_allclose(
        found[["net_benefit", "se"]], [each.mean(), each.std(ddof=1) / np.sqrt(120)], rtol=1e-10
    )
    np.testing.assert_allclose(found["high"] - found["low"], 2 * 1.959964 * found["se"], rtol=1e-6)
    repeated = lo.clinical.decision_curve(
        lo.cross_validate(FIT, lo.kfold(k=5, rng=1, num_repeats=4)), [0.3]
    ).table.loc[0.3]
    assert 0.8 < repeated["se"] / found["se"] < 1.2


def test_influence_on_kaplan_meier_is_its_derivative():
    time, event, weight = (
        rng.integers(1, 8, 30) * 1.0,
        (rng.random(30) < 0.7) * 1.0,
        rng.random(30) + 0.5,
    )
    found = kaplan_meier_influence(time, event, weight, 5.0)
    value = lambda w: np.average(kaplan_meier_influence(time, event, w, 5.0), weights=w)
    alive = np.prod(
        [
            1 - weight[(time == t) & (event == 1)].sum() / weight[time >= t].sum()
            for t in range(1, 6)
        ]
    )
    np.testing.assert_allclose(value(weight), alive, rtol=1e-12)
    for i in range(30):
        moved = [value(weight + sign * 1e-5 * (np.arange(30) == i)) for sign in (1, -1)]
        np.testing.assert_allclose(
            (moved[0] - moved[1]) / 2e-5, (found[i] - alive) / weight.sum(), atol=1e-8
        )


def test_wrong_input():
    for wrong in ([0.0], [1.0], []):
        with pytest.raises(ValueError, match="thresholds must lie between 0 and 1"):
            lo.clinical.decision_curve(FIT, wrong)
    with pytest.raises(TypeError, match="two classes"):
        lo.clinical.decision_curve(lo.fit(lo.GLM(X, X[:, 0], "squared", lo.penalties.Ridge(1.0))))


def test_a_threshold_is_useful_where_the_interval_excludes_treating_all_and_none():
    """Of predictions that are noise the net benefit is often above both by chance, its interval
    hardly ever.
    """
    above = useful = 0
    for _ in range(20):
        chance = (rng.random(120) < 0.4) * 1.0
        found = lo.clinical.decision_curve(
            lo.fit(lo.GLM(rng.normal(size=(120, 1)), chance, "logistic")), [0.35, 0.4, 0.45]
        )
        table = found.table
        above += int((table["net_benefit"] > np.maximum(table["all"], 0)).sum())
        np.testing.assert_array_equal(
            found.useful, (table["low"] > 0) & (table["low"] > table["all"])
        )
        useful += int(found.useful.sum())
    assert useful <= 3 < 15 < above and "nowhere: at no threshold" in str(found)
    strong = lo.clinical.decision_curve(
        lo.fit(
            lo.GLM(X, (X[:, 0] + 0.5 * X[:, 1] > 0.1) * 1.0, "logistic", lo.penalties.Ridge(1.0))
        ),
        [0.5],
    )
    assert strong.useful.all() and "at 1 of 1 thresholds the 95% interval is above" in str(strong)
