"""The audit repeats the refits that are most worth it, whatever their number."""

import numpy as np
import pytest

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
    zeros = lambda refits: (np.zeros(len(refits)), np.zeros(len(refits)), np.ones(len(refits), bool), 50)
    order = every[foremost_by_reason(every, *zeros(every))[2]]
    among = some[foremost_by_reason(some, *zeros(some))[2]]
    assert [refit for refit in order if refit % 2 == 0] == among[: sum(order % 2 == 0)].tolist()
