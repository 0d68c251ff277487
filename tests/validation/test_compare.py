"""The models that are not told apart from the best, and the best of many."""

import warnings

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
