"""Intervals for the loss cover as often as they say, and are their formulas."""

from dataclasses import replace

import numpy as np
import pytest
import scipy
from sklearn.linear_model import LinearRegression

import leaveout as lo
from tests.helpers import fitted


def estimate(losses, plan, error=0.0, weight=None):
    count = plan.num_refits
    return lo.Estimate(
        losses, np.full(count, error), np.zeros(count, np.int64), plan, losses, unit_weight=weight
    )


def covered(draw, plan, repeats=400, **more):
    """How often the interval of 90 % covers a mean of nothing."""
    hits = 0
    for seed in range(repeats):
        found = estimate(draw(np.random.default_rng(seed)), plan).interval(0.9, **more)
        hits += found.low <= 0 <= found.high
    return hits / repeats


def series(rng, n=100, phi=0.5):
    noise = rng.standard_normal(n + 50)
    return scipy.signal.lfilter([1.0], [1.0, -phi], noise)[50:]


def test_each_covers():
    """Within four binomial standard errors of 90 %; a series that is taken for rows does not."""
    rows, steps = lo.leave_one_out(100), replace(lo.leave_one_out(100), serial=True)
    groups = lo.groups(np.arange(100) // 10)
    shared = lambda rng: np.repeat(rng.standard_normal(10), 10) + rng.standard_normal(100)
    assert abs(covered(lambda rng: rng.standard_normal(100), rows) - 0.9) < 0.06
    assert abs(covered(series, steps) - 0.9) < 0.06
    ordered = lambda rng: shared(rng)[groups.index]
    assert abs(covered(ordered, groups) - 0.9) < 0.06
    assert (
        covered(series, steps, method="naive") < 0.8
        and covered(ordered, groups, method="naive") < 0.8
    )


def test_they_are_their_formulas():
    rng = np.random.default_rng(0)
    losses, weight = rng.standard_normal(60), rng.gamma(2.0, 1.0, 60)
    plan, groups = lo.leave_one_out(60), lo.groups(np.arange(60) % 7)
    found = estimate(losses, plan, 0.01).interval()
    half = scipy.stats.norm.ppf(0.975) * losses.std(ddof=1) / np.sqrt(60) + 0.01
    np.testing.assert_allclose(
        (found.low, found.high), (losses.mean() - half, losses.mean() + half)
    )
    cv = estimate(losses[groups.index], groups, weight=weight)
    found = cv.interval(0.8)
    np.testing.assert_allclose(found.high - cv.mean, scipy.stats.t.ppf(0.9, 6) * cv.se)
    assert found.method == "clusters" and found.level == 0.8
    steps = estimate(losses, replace(plan, serial=True))
    count = round(0.4 * 60 ** (2 / 3))
    at = np.arange(60) + 0.5
    waves = [
        np.sqrt(2 / 60) * np.sum((losses - losses.mean()) * np.cos(np.pi * j * at / 60))
        for j in range(1, count + 1)
    ]
    half = scipy.stats.t.ppf(0.975, count) * np.sqrt(np.mean(np.square(waves)) / 60)
    np.testing.assert_allclose(steps.interval().high - steps.mean, half)
    folds = lo.random_subsets(60, 0.2, 9, rng=0)
    own = rng.standard_normal(len(folds.index))
    cv = estimate(own, folds)
    half = (
        scipy.stats.t.ppf(0.975, 8)
        * own.reshape(9, 12).mean(1).std(ddof=1)
        * np.sqrt(1 / 9 + 12 / 48)
    )
    np.testing.assert_allclose(cv.interval(method="corrected").high - cv.mean, half)


def test_a_short_series_has_an_interval_where_it_has_no_standard_error():
    cv = estimate(
        series(np.random.default_rng(1), phi=0.9), replace(lo.leave_one_out(100), serial=True)
    )
    low, high, *_ = cv.interval()
    assert np.isnan(cv.se) and low < cv.mean < high and f"{low:.4g} to {high:.4g}" in str(cv)


def test_units_of_which_nothing_is_known_have_no_interval_in_print():
    cv = estimate(
        np.random.default_rng(0).standard_normal(30), replace(lo.leave_one_out(30), serial=None)
    )
    assert (
        np.isnan(cv.se) and "interval" not in str(cv) and cv.interval(method="naive").low < cv.mean
    )


def test_nested_is_its_papers_by_refits_from_scratch():
    """Bates, Hastie & Tibshirani: folds of 8 and 7 units, two repeats."""
    rng, K = np.random.default_rng(2), 4
    X = rng.standard_normal((30, 5))
    y = X[:, 0] + rng.standard_normal(30)
    loss = lambda out, at: (
        0.5 * (y[at] - LinearRegression().fit(X[~out], y[~out]).predict(X[at])) ** 2
    )
    a, b, inside, outside = [], [], [], []
    for seed in (5, 6):
        plan, fold = lo.kfold(30, K, rng=seed), np.empty(30, int)
        fold[plan.index] = plan.refit
        for k in range(K):
            own = loss(fold == k, fold == k)
            others = np.concatenate(
                [loss((fold == k) | (fold == j), fold == j) for j in range(K) if j != k]
            )
            a, b = [*a, (others.mean() - own.mean()) ** 2], [*b, own.var(ddof=1) / len(own)]
            inside, outside = [*inside, *others], [*outside, *own]
    least = np.std(inside, ddof=1) / np.sqrt(30)
    se = max(
        least, min(np.sqrt(max(0, (K - 1) / K * np.mean(np.subtract(a, b)))), least * np.sqrt(K))
    )
    center = np.mean(inside) - (1 + (K - 2) / K) * (np.mean(inside) - np.mean(outside))
    fit = lo.fit(lo.GLM(X, y, "squared"))
    found = lo.validation.nested(fit, level=0.9, num_folds=K, num_repeats=2, rng=5)
    half = scipy.stats.norm.ppf(0.95) * se
    np.testing.assert_allclose((found.low, found.high), (center - half, center + half), rtol=1e-6)
    twice = lo.validation.nested(
        fit, level=0.9, num_folds=K, num_repeats=2, rng=5, evaluate="squared_error"
    )
    cv = lo.cross_validate(fit, lo.kfold(k=5), strategy=lo.NewtonStep(), evaluate="squared_error")
    assert cv.interval(0.9, "nested") == lo.validation.nested(
        fit, level=0.9, strategy=lo.NewtonStep(), evaluate="squared_error"
    )
    np.testing.assert_allclose((twice.low, twice.high), (2 * found.low, 2 * found.high), rtol=1e-5)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: lo.validation.nested(fitted("ridge"), level=95), "level must lie between 0 and 1"),
        (lambda: lo.validation.nested(fitted("ridge"), num_folds=2), "whole number of 3 or more"),
        (lambda: lo.validation.nested(fitted("ridge"), num_folds=31), "of 2 units or more each"),
        (
            lambda: lo.validation.nested(fitted("hidden Markov"), num_folds=3, num_repeats=1),
            "units that are independent",
        ),
        (
            lambda: lo.validation.nested(fitted("gamma"), num_folds=3, num_repeats=1),
            "other sample_weight",
        ),
        (
            lambda: lo.validation.nested(fitted("two functions"), num_folds=3, num_repeats=1),
            "not joint ones",
        ),
        (
            lambda: estimate(np.ones(30), lo.leave_one_out(30)).interval(method="nested"),
            "this estimate has no fit",
        ),
        (
            lambda: estimate(np.ones(30), lo.leave_one_out(30)).interval(1.5),
            "level must lie between 0 and 1",
        ),
        (
            lambda: estimate(np.ones(30), lo.leave_one_out(30)).interval(method="bayes"),
            "one of naive, corrected",
        ),
        (
            lambda: estimate(np.ones(30), lo.leave_one_out(30)).interval(method="clusters"),
            "plan of groups",
        ),
        (
            lambda: estimate(np.ones(10), replace(lo.leave_one_out(10), serial=True)).interval(),
            "20 scored steps",
        ),
        (lambda: estimate(np.ones(3), lo.kfold(30, 3)).interval(), "not joint ones"),
        (
            lambda: estimate(np.ones(30), replace(lo.leave_one_out(30), serial=None)).interval(),
            "does not say whether its units",
        ),
        (
            lambda: estimate(np.r_[1.0, np.full(29, np.nan)], lo.leave_one_out(30)).interval(),
            "two scored units",
        ),
        (
            lambda: estimate(np.ones(30), replace(lo.leave_one_out(30), serial=True)).interval(
                method="corrected"
            ),
            "independent",
        ),
        (
            lambda: estimate(
                np.r_[np.ones(15), np.full(15, np.nan)], lo.groups(np.arange(30) // 15)
            ).interval(),
            "fewer than two groups",
        ),
    ],
)
def test_what_there_is_no_interval_of(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "wrong", [{"level": "95"}, {"num_repeats": 2.5}, {"num_folds": "5"}], ids=repr
)
def test_nested_refuses_arguments_of_other_kinds(wrong):
    fit = lo.fit(lo.GLM(np.arange(30.0)[:, None], np.resize([0.0, 1.0, 3.0], 30), "squared"))
    with pytest.raises(
        ValueError, match=r"nested: .* must (be a whole number|lie between 0 and 1)"
    ):
        lo.validation.nested(fit, **wrong)
