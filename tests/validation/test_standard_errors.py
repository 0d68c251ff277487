"""Standard errors that respect dependence."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.signal
from sklearn.model_selection import LeavePGroupsOut, LeavePOut

import leaveout as lo
from leaveout.validation.standard_errors import standard_error
from tests.helpers import glm, toy_hmm


def test_rows():
    losses = np.random.default_rng(0).standard_normal(50)
    value, kind = standard_error(losses, np.ones(50), lo.leave_one_out(50))
    np.testing.assert_allclose(value, losses.std(ddof=1) / np.sqrt(50))
    assert "independent" in kind


def test_groups_are_the_independent_units():
    losses = np.random.default_rng(0).standard_normal(40)
    plan = lo.groups(np.repeat(np.arange(40), 3))
    value, _ = standard_error(np.repeat(losses, 3), np.ones(120), plan)
    np.testing.assert_allclose(value, losses.std(ddof=1) / np.sqrt(40))


def test_more_folds_of_the_same_data_do_not_shrink_it():
    fit = lo.fit(glm("logistic", lo.penalties.Ridge(1.0)))
    few, many = (lo.cross_validate(fit, lo.random_subsets(60, 0.2, k, rng=0)) for k in (60, 600))
    assert 0.8 < few.se / many.se < 1.25


def test_the_error_of_random_folds_is_their_spread():
    fit = lo.fit(glm("logistic", lo.penalties.Ridge(1.0)))
    cvs = [
        lo.cross_validate(fit, lo.random_subsets(60, 0.2, 40, rng=s), strategy=lo.NewtonStep())
        for s in range(60)
    ]
    spread, reported = (
        np.std([cv.mean for cv in cvs]),
        np.mean([cv.monte_carlo_error for cv in cvs]),
    )
    assert 0.7 < reported / spread < 1.5
    assert "random folds" in str(cvs[0])
    assert np.isnan(lo.cross_validate(fit, lo.kfold(k=5)).monte_carlo_error)


def test_all_sets_of_units_or_groups_are_no_random_folds():
    fit, few = (
        lo.fit(glm("logistic", lo.penalties.Ridge(1.0))),
        lo.fit(glm("logistic", lo.penalties.Ridge(1.0), n=12)),
    )
    of_units = lo.from_splits(list(LeavePOut(2).split(np.arange(12))), 12)
    of_groups = lo.from_splits(
        list(LeavePGroupsOut(3).split(np.arange(60), groups=np.arange(60) % 6)), 60
    )
    for cv in (lo.cross_validate(few, of_units), lo.cross_validate(fit, of_groups)):
        assert np.isnan(cv.monte_carlo_error) and "another draw" not in str(cv)
        some = lo.cross_validate(cv.fit, cv.plan.some(np.arange(cv.plan.num_refits - 1)))
        assert np.isfinite(some.monte_carlo_error) and "another draw" in str(some)


def test_blocks_in_a_series():
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(4000)
    losses = np.convolve(noise, np.ones(20) / np.sqrt(20))[:4000]
    plan = lo.blocks(4000, 100)
    value, kind = standard_error(losses, np.ones(4000), plan)
    truth = np.sqrt(20 / 4000)
    assert 0.7 < value / truth < 1.3 and "blocks of" in kind
    value, kind = standard_error(losses[:150], np.ones(150), lo.blocks(150, 10))
    assert np.isnan(value) and "not available" in kind


@pytest.mark.slow
def test_a_chain_goes_by_blocks_whatever_the_plan():
    model = toy_hmm(400, seed=2)
    cv = lo.cross_validate(lo.fit(model), lo.random_subsets(400, 0.1, 20, rng=0))
    assert "blocks" in cv.standard_error.kind


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_cover(grouped):
    """Coverage of mean ± 1.96 se for the expected loss of a fixed predictor on new data.

    Rows, then groups.
    """
    rng, hits, naive = np.random.default_rng(0), 0, 0
    for _ in range(200):
        group = np.repeat(np.arange(40), 5) if grouped else np.arange(200)
        shift = rng.standard_normal(group.max() + 1)[group] * grouped
        X = rng.standard_normal((200, 2))
        y = X @ [1.0, -1.0] + shift + rng.standard_normal(200)
        fit = lo.fit(lo.GLM(X, y, "squared"))
        cv = lo.cross_validate(
            fit, lo.groups(group) if grouped else lo.leave_one_out(200), strategy=lo.NewtonStep()
        )
        expected = 0.5 * (
            1
            + grouped
            + np.sum((fit.parameters["coef"] - [1, -1]) ** 2)
            + fit.parameters["intercept"] ** 2
        )
        hits += abs(cv.mean - expected) < 1.96 * cv.se
        naive += abs(cv.mean - expected) < 1.96 * cv.scale
    assert 0.90 <= hits / 200 <= 0.985
    if grouped:
        assert naive < hits


def over_blocks(losses, weight, block):
    """The formula of the docstring, block by block."""
    mean = np.sum(weight * losses) / weight.sum()
    sums = [np.sum((weight * (losses - mean))[block == b]) for b in np.unique(block)]
    return np.sqrt(len(sums) / (len(sums) - 1) * np.sum(np.square(sums))) / weight.sum()


def test_standard_errors_are_their_formulas():
    rng = np.random.default_rng(7)
    losses, weight, label = (
        rng.standard_normal(1000) ** 2,
        rng.gamma(2.0, 0.5, 1000),
        rng.integers(0, 30, 1000),
    )
    every = np.arange(1000)
    value, kind = standard_error(losses, weight, lo.blocks(1000, 50))
    assert kind == "over 100 blocks of 10"  # uncorrelated: the cube root of their number
    np.testing.assert_allclose(value, over_blocks(losses, weight, every // 10))
    np.testing.assert_allclose(
        standard_error(losses, weight, lo.groups(label)).value, over_blocks(losses, weight, label)
    )
    plain = lo.leave_one_out(1000)
    np.testing.assert_allclose(
        standard_error(losses, weight, plain).value, over_blocks(losses, weight, every)
    )
    patches = replace(plain, blocks=every // 40, serial=True)
    value, kind = standard_error(losses, weight, patches)
    np.testing.assert_allclose(value, over_blocks(losses, weight, every // 40))
    assert "25 blocks of about 40 neighbours" in kind
    # 99 blocks, the last one longer
    last = standard_error(losses[:995], weight[:995], lo.blocks(995, 5))
    np.testing.assert_allclose(
        last.value, over_blocks(losses[:995], weight[:995], np.minimum(every[:995] // 10, 98))
    )


def block_length(losses):
    return int(
        standard_error(losses, np.ones(len(losses)), lo.blocks(len(losses), 100)).kind.split()[-1]
    )


def test_blocks_are_six_correlation_times():
    """Of sums of twenty successive numbers, and of an autoregression, whose correlations have a
    long tail.
    """
    noise = np.random.default_rng(3).standard_normal(200_019)
    # a time of twenty
    assert 114 < block_length(np.convolve(noise, np.ones(20), mode="valid")) < 126
    # (1 + 0.9) / (1 − 0.9)
    assert 107 < block_length(scipy.signal.lfilter([1.0], [1.0, -0.9], noise)) < 121


def test_nineteen_blocks_are_too_few():
    losses = np.random.default_rng(0).standard_normal(200)
    plan = lambda count: replace(
        lo.leave_one_out(200), blocks=np.minimum(np.arange(200) // (200 // count), count - 1)
    )
    assert np.isnan(standard_error(losses, np.ones(200), plan(19)).value)
    assert np.isfinite(standard_error(losses, np.ones(200), plan(20)).value)
