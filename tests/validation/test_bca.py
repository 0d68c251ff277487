"""BCa intervals are Efron's, of cross-validations from scratch."""

import warnings

import numpy as np
import pytest
import scipy
from sklearn.metrics import r2_score

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


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda cv: cv.confidence_interval(method="t"), "interval.. has the others"),
        (lambda cv: cv.confidence_interval(95), "level must lie"),
        (lambda cv: cv.confidence_interval(num_resamples=1), "num_resamples"),
        (lambda cv: cv.without_data().confidence_interval(), "has no fit"),
        (lambda cv: cv.confidence_interval(metric="nothing"), "metric must be among"),
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
