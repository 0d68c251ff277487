"""BCa intervals are Efron's, of cross-validations from scratch."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy
from sklearn.metrics import r2_score, roc_auc_score

import leaveout as lo
from leaveout.validation import bca, repeated_folds
from leaveout.validation.repeated_folds import draw_counts, random_folds
from tests.helpers import fitted

N, K, B = 24, 4, 30
RNG = np.random.default_rng(1)
X = RNG.standard_normal((N, 2))
Y = X[:, 0] + RNG.exponential(size=N)
DESIGN = np.column_stack([X, np.ones(N)])


def predictions(weight, units):
    root = np.sqrt(weight)
    return DESIGN[units] @ np.linalg.lstsq(root[:, None] * DESIGN, root * Y, rcond=None)[0]


def measured(metric, mu, weight):
    if metric is None:
        return np.average(0.5 * (Y - mu) ** 2, weights=weight)
    return r2_score(Y, mu, sample_weight=weight)


def held_out(fold, weight):
    mu = np.empty(N)
    for k in range(fold.max() + 1):
        mu[fold == k] = predictions(weight * (fold != k), fold == k)
    return mu


@pytest.mark.parametrize("metric", [None, "r2"])
def test_it_is_efrons_by_refits_from_scratch(metric):
    plan = lo.kfold(N, K)
    fold = np.empty(N, int)
    fold[plan.index] = plan.refit
    ones = np.ones(N)
    value = measured(metric, held_out(fold, ones), ones)
    jackknife = []
    for k in range(N):
        weight = (np.arange(N) != k) * 1.0
        mu = np.zeros(N)
        for i in set(range(N)) - {k}:
            mu[i] = predictions(weight * (np.arange(N) != i), [i])[0]
        jackknife.append(measured(metric, mu, weight))
    moves = np.mean(jackknife) - jackknife
    a = np.sum(moves**3) / (6 * np.sum(moves**2) ** 1.5)
    counts = draw_counts(np.arange(N), B, np.random.default_rng(2))
    folds = random_folds(np.arange(N), K, B, 2).fold
    mu = held_out(fold, ones)
    pairs = zip(folds, counts, strict=True)
    draws = np.array([measured(metric, held_out(drawn, count), count) for drawn, count in pairs])
    draws += np.median([measured(metric, mu, count) for count in counts]) - np.median(draws)
    draws = np.minimum(draws, np.inf if metric is None else 1.0)
    law = scipy.stats.norm
    bias = law.ppf(np.mean(draws < value))
    z = bias + law.ppf([0.05, 0.95])
    expected = np.quantile(draws, law.cdf(bias + z / (1 - a * z)))
    cv = lo.cross_validate(lo.fit(lo.GLM(X, Y, "squared")), plan, strategy=lo.Exact())
    found = cv.confidence_interval(0.9, "bca", metric=metric, num_resamples=B, rng=2)
    np.testing.assert_allclose(found[:2], expected, rtol=1e-5)
    assert found.level == 0.9 and found.method == "bca"


def test_many_units_leave_by_pairs_of_folds(monkeypatch):
    monkeypatch.setattr(repeated_folds, "MOST_PAIRED", 30)
    monkeypatch.setattr(repeated_folds, "FOLDS_PAIRED", 10)
    sizes = []
    for module in (repeated_folds, bca):
        monkeypatch.setattr(
            module, "random_folds", lambda *args: sizes.append(args[1]) or random_folds(*args)
        )
    cv = lo.cross_validate(fitted("logistic"), 5, metric="auc")
    low, high, *_ = cv.confidence_interval(metric="auc", num_resamples=40)
    assert sizes[:2] == [10, 5] and 0 <= low < cv.metrics.loc["auc", "value"] < high <= 1


def test_groups_stay_together():
    label = np.arange(60) // 4
    cv = lo.cross_validate(fitted("logistic"), lo.groups(label))
    low, high, *_ = cv.confidence_interval(num_resamples=40)
    assert low < cv.mean < high


def efrons(value, draws, jackknife, level=0.95):
    """The ends by Efron's formulas."""
    moves = np.mean(jackknife) - jackknife
    a = np.sum(moves**3) / (6 * np.sum(moves**2) ** 1.5)
    law = scipy.stats.norm
    bias = law.ppf(np.mean(draws < value) + np.mean(draws == value) / 2)
    z = bias + law.ppf([(1 - level) / 2, (1 + level) / 2])
    return np.quantile(draws, law.cdf(bias + z / (1 - a * z)))


def blind(y, offset, loss):
    """A fit that learns nothing, whose predictions are those of any refit."""
    columns = np.zeros((len(y), 1))
    penalty = lo.penalties.Ridge(1.0)
    return lo.fit(lo.GLM(columns, y, loss, penalty, intercept=False, offset=offset))


@pytest.mark.parametrize(
    "make",
    [lambda n: lo.kfold(n, 5, num_repeats=3), lambda n: lo.random_subsets(n, 0.3, 40, rng=0)],
    ids=["repeats", "subsets"],
)
def test_units_count_once_however_often_they_are_scored(make):
    rng = np.random.default_rng(0)
    n = 60
    offset = rng.standard_normal(n)
    y = offset + rng.exponential(size=n)
    losses = 0.5 * (y - offset) ** 2
    cv = lo.cross_validate(blind(y, offset, "squared"), make(n))
    counts = draw_counts(np.arange(n), 200, np.random.default_rng(0))
    without = np.array([np.delete(losses, k).mean() for k in range(n)])
    expected = efrons(losses.mean(), counts @ losses / n, without)
    np.testing.assert_allclose(cv.confidence_interval(num_resamples=200)[:2], expected)


def test_an_area_over_repeats_is_the_mean_of_theirs():
    """And a plan of repeats is divided into the folds of one of them."""
    rng = np.random.default_rng(0)
    n = 75
    offset = rng.standard_normal(n)
    y = (rng.random(n) < scipy.special.expit(2 * offset)) * 1.0
    fit = blind(y, offset, "logistic")
    once, often = (
        lo.cross_validate(fit, lo.kfold(n, 3, num_repeats=repeats), metric="auc")
        for repeats in (1, 4)
    )
    expected = once.confidence_interval(metric="auc", num_resamples=100)
    found = often.confidence_interval(metric="auc", num_resamples=100)
    np.testing.assert_allclose(found[:2], expected[:2])
    counts = draw_counts(np.arange(n), 100, np.random.default_rng(0))
    area = lambda weight: roc_auc_score(y, offset, sample_weight=weight)
    without = np.array([area((np.arange(n) != k) * 1.0) for k in range(n)])
    ends = efrons(area(np.ones(n)), np.array([area(count) for count in counts]), without)
    np.testing.assert_allclose(found[:2], ends, atol=1e-9)


@pytest.mark.parametrize("kind", ["a class is missing", "a refit does not exist"])
def test_samples_that_do_not_define_a_measure_are_counted(kind):
    metric = "auc"
    y = (np.arange(N) < 3) * 1.0
    model = lo.GLM(0 * X, y, "logistic", lo.penalties.Ridge(1.0), intercept=False)
    counts = draw_counts(np.arange(N), 60, np.random.default_rng(0))
    lacking = np.sum((counts[:, :3].sum(1) == 0) | (counts[:, 3:].sum(1) == 0))
    if kind == "a refit does not exist":
        metric = "rmse"
        marked = np.arange(N) < 4
        model = lo.GLM(marked[:, None] * 1.0, Y, "squared")
        folds = random_folds(np.arange(N), 5, 60, 0).fold
        undetermined = [
            any(
                count[marked & (fold != k)].sum() == 0 < count[marked & (fold == k)].sum()
                for k in range(5)
            )
            for count, fold in zip(counts, folds, strict=True)
        ]
        lacking = sum(undetermined)
    assert 0 < lacking < 60
    cv = lo.cross_validate(lo.fit(model), lo.kfold(N, 5))
    with pytest.warns(UserWarning, match=f"not defined on {lacking} of 60 bootstrap samples"):
        cv.confidence_interval(metric=metric, num_resamples=60)


def test_the_interval_is_of_the_number_that_is_printed(monkeypatch):
    """Of the bases that every fold learned, and of areas as they were averaged."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.standard_normal(80)})
    table["y"] = np.sin(2 * table.x) + 0.3 * rng.standard_normal(80)
    table["sign"] = (table.y > 0) * 1.0
    splines = lo.fit(lo.GLM("y ~ bs(x, df=6)", table, "squared"))
    signs = lo.fit(lo.GLM("sign ~ x", table, "logistic"))
    values = []
    ends = bca.bca_ends
    monkeypatch.setattr(
        bca,
        "bca_ends",
        lambda draws, value, *rest: values.append(value[0]) or ends(draws, value, *rest),
    )
    for fit, plan, metric in (
        (splines, lo.kfold(k=10), "rmse"),
        (signs, lo.kfold(k=8, num_repeats=3), "auc"),
        (signs, lo.random_subsets(80, 0.4, 20, rng=0), "auc"),
        (signs, lo.random_subsets(80, 0.4, 20, rng=0), "brier"),
    ):
        cv = lo.cross_validate(fit, plan, metric=metric, strategy=lo.Exact())
        cv.confidence_interval(num_resamples=4)
        cv.confidence_interval(metric=metric, num_resamples=4)
        expected = [cv.mean, cv.measured[metric].value]
        np.testing.assert_allclose(values[-2:], expected, rtol=1e-6)


def test_random_numbers_are_those_of_other_calls():
    cv = lo.cross_validate(fitted("logistic"), 5)
    ends = lambda rng: cv.confidence_interval(num_resamples=10, rng=rng)
    assert ends(np.random.default_rng(3)) == ends(np.random.default_rng(3)) != ends(None)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda cv: cv.confidence_interval(method="t"), "interval.. has the others"),
        (lambda cv: cv.confidence_interval(95), "level must lie"),
        (lambda cv: cv.confidence_interval(num_resamples=1), "num_resamples"),
        (lambda cv: cv.without_data().confidence_interval(), "has no fit"),
        (lambda cv: cv.confidence_interval(metric="nothing"), "metric must be among"),
        (lambda cv: cv.confidence_interval(metric=["auc", "brier"]), "one measure; got 2"),
        (
            lambda cv: lo.cross_validate(
                cv.fit, lo.groups(np.arange(60) // 15)
            ).confidence_interval(),
            "6 independent groups",
        ),
    ],
)
def test_what_there_is_no_interval_of(make, message):
    with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
        warnings.simplefilter("ignore")
        make(lo.cross_validate(fitted("logistic"), 5))
