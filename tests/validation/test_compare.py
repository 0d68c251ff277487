"""The models that are not told apart from the best, and the best of many."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy

import leaveout as lo
from leaveout.validation.compare import _p_value_of_best


def estimate(losses, **facts):
    """An estimate of given losses."""
    n = len(losses)
    plan = lo.leave_one_out(n)._replace_facts(**facts)
    zeros = np.zeros(n)
    return lo.Estimate(losses, zeros, zeros.astype(int), plan, losses)


def compared(losses, **facts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lo.compare({str(k): estimate(column, **facts) for k, column in enumerate(losses.T)})


def test_the_best_set_is_argmin_inference():
    """Zhang, Lee and Lei, unit by unit: weights without the unit's losses."""
    rng = np.random.default_rng(0)
    losses = rng.normal([0.0, 0.1, 0.3, 1.5], size=(50, 4))
    table = compared(losses)
    found = table.best_set(1e-12 + 0.5).index
    everyone = table.best_set(1 - 1e-12)
    for r in range(4):
        others = [s for s in range(4) if s != r]
        excess = losses[:, [r]] - losses[:, others]
        excess = excess / excess.std(0, ddof=1)
        hardest, margins = [], []
        means = [np.delete(excess, i, 0).mean(0) for i in range(50)]
        for i in range(50):
            hardest.append(excess[i, np.argmax(means[i])])
        temperature = np.sqrt(50) / (2.5 * np.std(hardest, ddof=1))
        for i in range(50):
            margins.append(scipy.special.softmax(temperature * means[i]) @ excess[i])
        statistic = np.sqrt(50) * np.mean(margins) / np.std(margins, ddof=1)
        p_value = scipy.stats.norm.sf(statistic)
        if str(r) in everyone.index:
            assert everyone[str(r)] == pytest.approx(p_value, rel=1e-9)
        assert (str(r) in found) == (p_value > 0.5)
    assert "3" not in table.best_set(0.95).index
    assert list(everyone.index) == [str(k) for k in np.argsort(losses.mean(0))][: len(everyone)]


def test_two_models_are_told_apart_by_a_paired_test():
    rng = np.random.default_rng(1)
    losses = rng.normal([0.0, 0.4], size=(40, 2))
    difference = losses[:, 1] - losses[:, 0]
    expected = scipy.stats.norm.sf(np.sqrt(40) * difference.mean() / difference.std(ddof=1))
    assert compared(losses).best_set(1 - 1e-9)["1"] == pytest.approx(expected)
    label = np.arange(40) // 4
    of_groups = difference.reshape(10, 4).mean(1)
    expected = scipy.stats.norm.sf(np.sqrt(10) * of_groups.mean() / of_groups.std(ddof=1))
    table = compared(losses, clusters=label).best_set(1 - 1e-9)
    assert table["1"] == pytest.approx(expected)


def test_equal_models_stay_in_the_set():
    """Of twenty models of one risk, each is in nineteen of twenty sets, within four errors."""
    draws = (np.random.default_rng(seed).standard_normal((60, 20)) for seed in range(400))
    kept = [_p_value_of_best(losses, 0) > 0.05 for losses in draws]
    assert np.mean(kept) > 0.95 - 4 * np.sqrt(0.0475 / 400)
    same = np.tile(np.random.default_rng(0).standard_normal((30, 1)), (1, 3))
    assert len(compared(same).best_set()) == 3


def test_the_best_of_many_equal_models_is_a_matter_of_chance():
    """Against R's loo, whose check takes more than eleven models."""
    shared = np.random.default_rng(3).standard_normal(400)
    offsets = np.linspace(-0.01, 0.01, 15)
    many = {str(k): estimate(shared + offset) for k, offset in enumerate(offsets)}
    # the median one is the eighth, and the upper half has seven others
    upper = np.sqrt(np.mean(offsets[7:] ** 2))
    assert upper * scipy.stats.norm.ppf(1 - 1 / 28) > 0.01
    with pytest.warns(UserWarning, match="no better than the best of 15 models"):
        lo.compare(many)
    better = {**many, "better": estimate(shared - 1.0)}
    few = {name: many[name] for name in list(many)[:11]}
    for quiet in (better, few):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lo.compare(quiet)
        assert not [w for w in caught if "no better than" in str(w.message)]


def test_the_best_set_refuses():
    table = compared(np.random.default_rng(0).standard_normal((40, 2)))
    with pytest.raises(ValueError, match="level must lie"):
        table.best_set(95)
    with pytest.raises(ValueError, match=r"best_set: .*independent groups"):
        compared(np.random.default_rng(0).standard_normal((40, 2)), serial=None).best_set()


def test_a_model_that_is_worse_by_the_same_everywhere_is_told_apart():
    shared = np.random.default_rng(0).integers(0, 5, 40) * 1.0
    assert list(compared(np.column_stack([shared, shared + 1])).best_set().index) == ["0"]
    noise = np.random.default_rng(1).standard_normal(40)
    table = compared(np.column_stack([shared, shared + 1, shared + noise])).best_set(1 - 1e-9)
    assert "1" not in table.index and "0" in table.index


def test_models_that_differ_by_rounding_are_equal():
    losses = np.random.default_rng(0).exponential(size=(50, 1)) * [1.0, 1 + 1e-13]
    table = compared(losses)
    assert (table.p_worse == 0.5).all() and (table.difference == 0).all()
    assert (table.best_set() == 1).all()


def test_rows_of_weight_zero_are_no_rows():
    rng = np.random.default_rng(0)
    losses = rng.normal([0.0, 0.03], size=(80, 2))
    losses[:40, 1] *= 1 + rng.pareto(0.7, 40)
    weight = np.repeat([0.0, 1.0], 40)
    density = "−log density"

    def table_of(rows, **facts):
        estimates = {
            str(k): replace(estimate(column), score=density, **facts)
            for k, column in enumerate(losses[rows].T)
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            return lo.compare(estimates), [str(w.message) for w in caught]

    table, warned = table_of(slice(None), unit_weight=weight)
    without, warned_without = table_of(slice(40, None))
    total = losses[40:].sum(0)
    assert table.elpd_diff.min() == pytest.approx(-abs(total[1] - total[0]))
    assert (table.diagnosis == without.diagnosis).all() and warned == warned_without
    np.testing.assert_allclose(table.pseudo_bma, scipy.special.softmax(-np.sort(total)))


@pytest.mark.parametrize("order", [1, -1])
def test_dependence_is_that_of_the_plan_that_states_most(order):
    """Whether the better model or the other has a plan of groups."""
    rng = np.random.default_rng(0)
    label = np.arange(60) // 3
    losses = rng.standard_normal((60, 2)) + rng.standard_normal((20, 2))[label] + [0.0, 0.5]
    first, other = losses.T[::order]
    pair = {"first": estimate(first), "other": estimate(other, clusters=label)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = lo.compare(pair)
        unknown = lo.compare({"first": estimate(first, serial=None), "other": estimate(other)})
    sums = np.bincount(label, (first - other) - np.mean(first - other))
    expected = np.sqrt(20 / 19 * np.sum(sums**2)) / 60
    assert table.se_difference.max() == pytest.approx(expected)
    p_value = scipy.stats.norm.sf(table.difference.max() / expected)
    assert table.best_set(1 - 1e-12).min() == pytest.approx(p_value)
    paired = np.std(first - other, ddof=1) / np.sqrt(60)
    assert unknown.se_difference.max() == pytest.approx(paired)


def test_the_best_set_of_two_is_the_test_of_the_table():
    """Of groups of unequal size and of weights, whose sums differ without any difference."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(30), rng.integers(1, 9, 30))
    n = len(label)
    losses = rng.standard_normal((n, 1)) + [[0.0, 1.0]] + 3 * rng.standard_normal((n, 2))
    weight = rng.choice([0.0, 0.5, 3.0], n)
    for facts, group in (({"clusters": label}, label), ({}, np.arange(n))):
        pair = {
            str(k): replace(estimate(column, **facts), unit_weight=weight)
            for k, column in enumerate(0.05 * losses.T + losses[:, 0])
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = lo.compare(pair)
        difference = 0.05 * (losses[:, 1] - losses[:, 0])
        mean = np.average(difference, weights=weight)
        sums = np.bincount(group, weight * (difference - mean))
        count = len(np.unique(group[weight > 0]))
        se = np.sqrt(count / (count - 1) * np.sum(sums**2)) / weight.sum()
        assert table.se_difference.max() == pytest.approx(se)
        p_value = scipy.stats.norm.sf(mean / se)
        assert table.best_set(1 - 1e-12)["1"] == pytest.approx(p_value, rel=1e-6)


def test_models_that_lack_losses():
    losses = np.random.default_rng(0).normal([1.0, 0.0], size=(40, 2))
    losses[3, 1] = np.inf
    with pytest.raises(ValueError, match="best_set: some models lack more losses"):
        compared(losses).best_set()
    losses[3, 0] = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        table = compared(losses)
    assert np.isfinite(table.difference).all() and len(table.best_set(1 - 1e-12)) == 2
    losses[:20, 0] = losses[20:, 1] = np.nan
    with pytest.raises(ValueError, match="no unit has a loss of all"):
        compared(losses)


def test_a_chain_is_compared_with_a_regression():
    counts = np.random.default_rng(0).poisson(2.0, 200) * 1.0
    chain = lo.HMM(counts, lo.emissions.Poisson(), num_states=1)
    rows = lo.GLM(np.ones((200, 1)), counts, "poisson", intercept=False)
    pair = {
        "chain": lo.cross_validate(lo.fit(chain), 5),
        "rows": lo.cross_validate(lo.fit(rows), 5, evaluate="log_density"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = lo.compare(pair)
    # one has a prior
    assert table.difference.max() < 0.01
    assert table.kind["chain"] != table.kind["rows"]


@pytest.mark.parametrize("method", ["nested", "bootstrap", "conservative"])
def test_single_cases_have_no_refits_of_whole_units(method):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 2)), rng.poisson(1.0, 40)
    pair = {
        str(p): lo.cross_validate(
            lo.fit(lo.GLM(X[:, :p], y, "poisson", sample_weight=np.full(40, 2.0))),
            lo.leave_one_out(cases=True),
        )
        for p in (1, 2)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="give each case a row"):
            lo.compare(pair, method=method)
        table = lo.compare(pair)
    with pytest.raises(ValueError, match="give each case a row"):
        table.best_set()
    with pytest.raises(ValueError, match="give each case a row"):
        pair["1"].confidence_interval()
    with pytest.raises(ValueError, match="stand for cases"):
        pair["1"].interval(method="nested")
