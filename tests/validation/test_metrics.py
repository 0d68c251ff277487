"""The table of measures: every name that a call takes has one entry, and scikit-learn's functions are named right."""

from typing import get_args

import numpy as np
import pytest
import sklearn.metrics

from leaveout.validation.metrics import FUNCTIONS, MEASURES, METRICS, SCORES, Mean, Metric, ScoreName, of_function


def test_every_name_has_one_entry():
    assert tuple(METRICS) == get_args(Metric) and {*SCORES} == {*get_args(ScoreName)}
    for what in ("evaluate", "loss", "function"):
        names = [getattr(measure, what) for measure in MEASURES if getattr(measure, what)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_scikit_learns(name):
    assert of_function(getattr(sklearn.metrics, name)) is FUNCTIONS[name]


def test_errors_bound_what_predictions_within_theirs_can_change():
    rng = np.random.default_rng(0)
    y, p, off, weight = (rng.random(40) < 0.5) * 1.0, rng.random(40), 0.05 * rng.random(40), np.ones(40)
    for measure in METRICS.values():
        values, error = measure.of_means(y, p, off, weight)
        for sign in rng.choice([-1.0, 1.0], (50, 40)):
            moved, _ = measure.of_means(y, p + sign * off, off, weight)
            if isinstance(measure.functional, Mean):
                assert (np.abs(moved - values) <= error + 1e-12).all()
            else:
                assert abs(moved.mean() - values.mean()) <= error + 1e-12
