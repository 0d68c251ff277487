"""The audit repeats the refits that are most worth it, whatever their number."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import leaveout as lo
from leaveout.validation.audit import foremost_by_reason


@pytest.mark.parametrize("seed", range(200))
def test_the_foremost_are_those_of_a_full_sort(seed):
    random = np.random.default_rng(seed)
    count, number = int(random.integers(0, 30)), int(random.integers(0, 8))
    move = random.integers(0, 5, count).astype(float)  # with ties
    error = random.choice([0.0, 1.0, 2.0, np.inf, np.nan], count)
    proved = random.random(count) < random.choice([0.0, 0.2, 0.5, 0.9, 1.0])
    refits = np.sort(random.choice(100, count, replace=False))
    longest, largest, chance = foremost_by_reason(refits, move, error, proved, number)
    assert np.array_equal(longest, np.lexsort((-move, proved))[:number])
    assert np.array_equal(largest, np.lexsort((-error, proved))[:number])
    assert len(chance) == len(set(chance)) == min(number, count)


def test_the_random_refits_do_not_depend_on_the_others():
    every, some = np.arange(100), np.arange(0, 100, 2)
    zeros = lambda refits: (
        np.zeros(len(refits)),
        np.zeros(len(refits)),
        np.ones(len(refits), bool),
        50,
    )
    order = every[foremost_by_reason(every, *zeros(every))[2]]
    among = some[foremost_by_reason(some, *zeros(some))[2]]
    assert [refit for refit in order if refit % 2 == 0] == among[: sum(order % 2 == 0)].tolist()


def test_the_audit_of_a_ridge_does_not_depend_on_the_scales_of_columns():
    """Its own rounding error, of columns as given, was above the error of a proved loss and its
    slack.
    """
    for seed in range(20):
        rng = np.random.default_rng(seed)
        Z = rng.standard_normal((16, 5))
        X, y = (
            Z * 10.0 ** np.array([-8, -4, 0, 4, 8]),
            Z @ rng.standard_normal(5) + rng.standard_normal(16),
        )
        fit = lo.from_sklearn(Ridge(1.0, solver="svd").fit(X, y), X, y)
        audit = lo.cross_validate(fit, lo.groups(np.arange(16) % 5)).audit
        assert (audit.difference <= 1e-10 * (1 + audit.exact)).all() and not audit.beyond.any()
