"""Passes by compiled loops against enumeration of paths, and against those in NumPy."""

import numpy as np
import pytest

import leaveout as lo
from leaveout.models.hidden import complete_data, expected_counts
from tests.helpers import flat
from tests.models.hidden.test_hmm import CASES, at, built, oracle

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Chains of any length are passed over by the loops."""
    monkeypatch.setattr(expected_counts, "LONG_CHAIN", 0)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_enumeration(name, repeats, monkeypatch):
    x, lengths, parameters = CASES[name]
    monkeypatch.setattr(complete_data, "SAMPLE", 8 if repeats else 4)
    hmm = built(x, parameters, lengths=lengths)
    assert expected_counts.compiled_passes(hmm) is not None
    vector, n = flat(at(hmm, parameters))[None], len(x)
    rows = lo.kfold(n, 3, rng=0)._one(1).rows
    index = rows.index[0][rows.held[0]]
    w = np.ones(n)
    w[index] = 0.0
    value, gradient, _ = hmm.look(vector, w[None])
    losses = hmm.losses(vector, w[None], index[None], np.ones((1, len(index)), bool))[0]
    np.testing.assert_allclose(value[0], oracle(hmm, parameters, x, w), rtol=1e-12)
    for place, t in enumerate(index):
        if not np.isnan(x[t]):
            shown = np.where(np.arange(n) == t, 1.0, w)
            expected = oracle(hmm, parameters, x, shown) - oracle(hmm, parameters, x, w)
            np.testing.assert_allclose(losses[place], expected, rtol=1e-11)
    for k, step in enumerate(1e-6 * np.eye(vector.size)):
        up, down = (hmm.look(vector + sign * step, w[None])[0][0] for sign in (1, -1))
        np.testing.assert_allclose(gradient[0, k], (up - down) / 2e-6, atol=1e-6)


def events(n: int) -> lo.HMM:
    rng = np.random.default_rng(0)
    x = rng.poisson(4.0 + 6.0 * (np.cumsum(rng.random(n) < 0.1) % 2)).astype(float)
    x[5] = np.nan
    return lo.HMM(x, lo.emissions.EventCounts(np.arange(n) // 20 % 7), 2, initial=[0.5, 0.5])


def test_as_in_numpy(monkeypatch):
    """Event counts, tempered weights, more refits than lanes."""
    rng, n = np.random.default_rng(1), 200
    vector = flat(events(n).parameters.start(0))
    theta = vector + 0.1 * rng.standard_normal((11, vector.size))
    weights = rng.choice([0.0, 1.0, 0.25], (11, n))
    units = np.tile(np.arange(n), (11, 1))
    ours = expected_counts.evaluate(events(n), theta, weights, units)
    whole = expected_counts.evaluate(events(n), theta, (weights > 0) * 1.0, units)
    hessian = events(n).hessians(vector[None], np.ones((1, n)))
    monkeypatch.setattr(expected_counts, "LONG_CHAIN", n)
    plain = events(n).hessians(vector[None], np.ones((1, n)))
    np.testing.assert_allclose(hessian, plain, rtol=1e-8, atol=1e-8 * np.abs(plain).max())
    for found, w in ((ours, weights), (whole, (weights > 0) * 1.0)):
        plain = expected_counts.evaluate(events(n), theta, w, units)
        for a, b in zip((*found.counts, *found[::2]), (*plain.counts, *plain[::2]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_refits_with_other_weights_get_weights_of_their_own():
    hmm, rng = events(60), np.random.default_rng(2)
    theta = flat(hmm.parameters.start(0))[None]
    for _ in range(2):
        weights = rng.choice([0.0, 1.0], (1, 60))
        value = hmm.look(theta, weights)[0]
        np.testing.assert_array_equal(value, events(60).look(theta, weights)[0])


@pytest.mark.slow
def test_estimates_are_the_same(monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(2.0 * (np.cumsum(rng.random(300) < 0.1) % 2))
    made = lambda: lo.fit(lo.HMM(x, lo.emissions.Gaussian(), 2), num_starts=1)
    ours = {
        refit: lo.cross_validate(made(), lo.blocks(size=60), strategy=refit)
        for refit in (lo.Certified(), lo.NoUpdate())
    }
    monkeypatch.setattr(expected_counts, "LONG_CHAIN", 300)
    for refit, cv in ours.items():
        plain = lo.cross_validate(made(), lo.blocks(size=60), strategy=refit)
        np.testing.assert_allclose(cv.losses, plain.losses, rtol=1e-5)
        np.testing.assert_array_equal(cv.result, plain.result)
