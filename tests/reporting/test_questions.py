"""The question of a page has the words of the data, and its first answer is what a loop over the
units gives.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn.linear_model import Ridge

import leaveout as lo
from leaveout.reporting.questions import choice, first_answer, first_choice, gain, question

N = 120


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    return pd.DataFrame(
        {
            "x": x,
            "stay": x + rng.normal(size=N),
            "back_again": np.where(x + rng.logistic(size=N) > 0, "yes", "no"),
            "visits": rng.poisson(2.0, N),
            "weeks": rng.exponential(1.0, N),
            "relapse": (rng.random(N) < 0.7).astype(int),
            "clinic": np.arange(N) % 24,
        },
        pd.Index([f"p{k}" for k in range(N)], name="patient"),
    )


def models(name, table):
    """A model, and what it is of."""
    X = table[["x"]]
    if name == "formula":
        return lo.GLM("back_again ~ x", table, "logistic"), "back again"
    if name == "series":
        return lo.GLM(X, table["stay"], "squared", lo.penalties.Lasso(1.0)), "stay"
    if name == "cox":
        return lo.Cox(X, table["weeks"], table["relapse"]), "weeks to relapse"
    if name == "surv":
        return lo.Cox("Surv(weeks, relapse) ~ x", table), "weeks to relapse"
    if name == "arrays":
        return lo.GLM(X, table["visits"].to_numpy(), "poisson"), "the response"
    return lo.HMM(table["visits"], lo.emissions.Poisson(), 1), "visits"


@pytest.mark.parametrize("name", ["formula", "series", "cox", "surv", "arrays", "hmm"])
def test_the_question_names_what_is_predicted_and_for_what(table, name):
    model, response = models(name, table)
    estimate = lo.cross_validate(lo.fit(model), lo.blocks(size=20))
    assert question(estimate) == f"How well will this model predict {response} for another patient?"


def test_hosts_know_the_name_too(table):
    smf = pytest.importorskip("statsmodels.formula.api")
    fits = [
        lo.from_sklearn(Ridge().fit(table[["x"]], table["stay"]), table[["x"]], table["stay"]),
        lo.from_statsmodels(smf.ols("stay ~ x", table).fit()),
    ]
    for fit in fits:
        asked = question(lo.cross_validate(fit, lo.kfold(k=5)))
        assert asked.startswith("How well will this model predict stay for another")


def test_groups_are_called_by_their_column(table):
    fit = lo.fit(lo.GLM("visits ~ x", table, "poisson"))
    plans = {
        "clinic": [
            lo.groups("clinic"),
            lo.groups(table["clinic"]),
            lo.groups(table["clinic"], k=4),
        ],
        "group": [lo.groups(table["clinic"].to_numpy())],
    }
    for unit, several in plans.items():
        for plan in several:
            asked = question(lo.cross_validate(fit, plan))
            assert asked == f"How well will this model predict visits for another {unit}?"


def test_without_names_it_asks_of_rows_and_steps(table):
    bare = lo.fit(lo.GLM(table[["x"]].to_numpy(), table["stay"].to_numpy(), "squared"))
    estimate = lo.cross_validate(bare, lo.kfold(k=5))
    assert question(estimate).endswith("predict the response for another row?")
    serial = lo.fit(lo.HMM(table["visits"].to_numpy(), lo.emissions.Poisson(), 1))
    asked = question(lo.cross_validate(serial, lo.blocks(size=20)))
    assert asked.endswith("predict the response for another step of the series?")
    own = lo.Objective(lambda theta, w: w @ (table["stay"].to_numpy() - theta) ** 2, N)
    joint = lo.cross_validate(lo.fit(own, np.zeros(())), lo.kfold(k=6))
    assert question(joint) == "How well will this model predict another row?"
    compared = gain(joint, joint.losses + 1.0, 0.0)
    assert compared.mean == pytest.approx(1.0) and "joint losses" in compared.reason
    assert choice({"a": estimate, "b": estimate}, estimate) == (
        "Which of 2 models best predicts the response for another row?"
    )


def losses_beside_the_mean(table, folds):
    """Half squared errors of least squares and of the mean, each fold refitted."""
    X = np.c_[np.ones(N), table["x"]]
    y = table["stay"].to_numpy()
    model = np.empty(N)
    mean = np.empty(N)
    for fold in np.unique(folds):
        out = folds == fold
        coef = np.linalg.lstsq(X[~out], y[~out], rcond=None)[0]
        model[out] = 0.5 * (y[out] - X[out] @ coef) ** 2
        mean[out] = 0.5 * (y[out] - y[~out].mean()) ** 2
    return model, mean


@pytest.mark.parametrize("grouped", [False, True])
def test_the_gain_is_that_of_refits(table, grouped):
    folds = table["clinic"].to_numpy() if grouped else np.arange(N)
    plan = lo.groups(table["clinic"]) if grouped else lo.leave_one_out()
    estimate = lo.cross_validate(lo.fit(lo.GLM("stay ~ x", table, "squared")), plan)
    model, mean = losses_beside_the_mean(table, folds)
    difference = mean - model
    sums = np.bincount(folds, difference - difference.mean())
    groups = len(sums)
    quantile = scipy.stats.norm.ppf(0.975)
    if grouped:
        quantile = scipy.stats.t.ppf(0.975, groups - 1)
    half = quantile * np.sqrt(groups / (groups - 1) * np.sum(sums**2)) / N
    compared = gain(estimate, estimate.average(estimate._null), 0.0)
    want = [difference.mean(), difference.mean() - half, difference.mean() + half]
    np.testing.assert_allclose(compared[:3], want, rtol=1e-6)
    wider = gain(estimate, estimate.average(estimate._null), 0.1)  # by what the refits add
    np.testing.assert_allclose(wider[1:3], [want[1] - 0.1, want[2] + 0.1], rtol=1e-6)
    asked, verdict, sure = first_answer(estimate)
    assert asked == "Better than no model?"
    assert verdict == f"Yes: {1 - model.mean() / mean.mean():.1%} less loss"
    assert ("over 24 groups" if grouped else "often too narrow") in sure


def test_noise_is_not_sold_as_a_model(table):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 30))
    fit = lo.fit(lo.GLM(X, table["stay"].to_numpy(), "squared"))
    worse = first_answer(lo.cross_validate(fit, lo.leave_one_out()))
    assert worse[1].endswith("more loss") and "The gain is −" in worse[2]
    weak = lo.cross_validate(
        lo.fit(lo.GLM(X[:, :1], 0.25 * X[:, 0] + X[:, 1], "squared")), lo.leave_one_out()
    )
    compared = gain(weak, weak.average(weak._null), 0.0)
    assert compared.low < 0 < compared.mean
    assert first_answer(weak)[1].startswith("Not sure") and "less loss" in first_answer(weak)[1]


def test_what_is_not_known_is_said(table):
    series = lo.fit(lo.HMM(table["visits"], lo.emissions.Poisson(), 1))
    assert first_answer(lo.cross_validate(series, lo.blocks(size=20)))[1] == "Not known"
    fit = lo.fit(lo.GLM("stay ~ x", table, "squared"))
    estimate = lo.cross_validate(fit, lo.leave_one_out())
    lost = dataclasses.replace(estimate, losses=np.full(N, np.nan))
    assert "No held-out loss exists" in first_answer(lost)[2]
    two = lo.cross_validate(fit, lo.groups(np.arange(N) % 2))
    assert "few groups, so a rough number" in first_answer(two)[2]


def test_checks_that_warn_are_named_beside_the_answer():
    years = lo.datasets.earthquakes()
    fit = lo.fit(lo.GLM(years[["year"]], years["count"], "poisson"))
    estimate = lo.cross_validate(fit, lo.kfold(k=10))
    assert "see LO201 among the checks" in first_answer(estimate)[2]
    assert "LO201" not in first_answer(estimate.muted("LO201"))[2]


def test_the_best_is_compared_with_the_next(table):
    fits = {
        name: lo.fit(lo.GLM(formula, table, "squared"))
        for name, formula in (("with x", "stay ~ x"), ("without", "stay ~ 1"))
    }
    estimates = {name: lo.cross_validate(fit, lo.leave_one_out()) for name, fit in fits.items()}
    model, mean = losses_beside_the_mean(table, np.arange(N))
    asked, verdict, sure = first_choice(estimates, ["with x", "without"])
    assert asked == "Is with x the best?" and "than the next, without" in sure
    assert verdict == f"Yes: {np.mean(mean - model):.3g} less loss a unit"
