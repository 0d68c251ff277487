"""The table of measures.

Every name that a call takes has one entry, and scikit-learn's functions are named right.
"""

from typing import get_args

import numpy as np
import pytest
import sklearn.metrics

from leaveout.validation.metrics import (
    FUNCTIONS,
    MEASURES,
    METRICS,
    SCORES,
    Metric,
    ScoreName,
    of_function,
    ordered_pairs,
)


def test_every_name_has_one_entry():
    assert tuple(METRICS) == get_args(Metric) and {*SCORES} == {*get_args(ScoreName)}
    for what in ("evaluate", "loss", "function"):
        names = [getattr(measure, what) for measure in MEASURES if getattr(measure, what)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_scikit_learns(name):
    if not hasattr(sklearn.metrics, name):
        pytest.skip("needs scikit-learn 1.8")
    assert of_function(getattr(sklearn.metrics, name)) is FUNCTIONS[name]


@pytest.mark.parametrize("leaf", [1, 16, 256])
@pytest.mark.parametrize("entering", [False, True])
def test_concordance_counts_every_pair(monkeypatch, leaf, entering):
    """By all pairs: of one stratum, the first of which died before the other's place and after its
    entry, with ties.
    """
    monkeypatch.setattr("leaveout.validation.metrics.LEAF", leaf)
    rng = np.random.default_rng(1)
    y = np.stack(
        [rng.integers(0, 2, 150), rng.integers(0, 12, 150), rng.random(150) < 0.6], axis=1
    ).astype(float)
    first, later, weight = *rng.integers(0, 9, (2, 150)).astype(float), rng.random(150)
    pair = (y[:, :1] == y[:, 0]) & (y[:, 1:2] < y[:, 1]) & (y[:, 2:] == 1)
    if entering:
        enters = np.where(rng.random(150) < 0.7, y[:, 1] - rng.integers(1, 9, 150), -np.inf)
        y, pair = np.column_stack([y, enters]), pair & (enters < y[:, 1:2])
    good = pair * ((first[:, None] > later) + 0.5 * (first[:, None] == later))
    both = lambda each: each @ weight + weight @ each
    np.testing.assert_allclose(ordered_pairs(y, first, later, weight), [both(good), both(pair)])
    measure = METRICS["concordance"]
    for i in (0, 70):
        off = 1e-6 * (np.arange(150) == i)
        slope = (measure(y, first, weight + off) - measure(y, first, weight - off)) / 2e-6
        assert measure.influence(y, first, weight)[i] == pytest.approx(
            weight.sum() * slope, abs=1e-6
        )


def test_errors_bound_what_predictions_within_theirs_can_change():
    rng = np.random.default_rng(0)
    y, p, off, weight = (
        (rng.random(40) < 0.5) * 1.0,
        rng.uniform(0.1, 0.9, 40),
        0.05 * rng.random(40),
        np.ones(40),
    )
    place = np.stack([np.zeros(40), rng.integers(0, 30, 40), rng.random(40) < 0.7], axis=1)
    for name, measure in METRICS.items():
        # one is of labels, the other of positive numbers
        if measure.functional is None or "gamma" in name:
            continue
        y = place if name == "concordance" else place[:, 2]
        values, error = measure.of_means(y, p, off, weight)
        for sign in rng.choice([-1.0, 1.0], (50, 40)):
            moved, _ = measure.of_means(y, p + sign * off, off, weight)
            if measure.per_record:
                assert (np.abs(moved - values) <= error + 1e-12).all()
            else:
                assert abs(moved.mean() - values.mean()) <= error + 1e-12
