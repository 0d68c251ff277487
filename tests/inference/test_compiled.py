"""Compiled recursions against the sum over all paths, and their counts against its derivatives."""

import numpy as np
import pytest

from leaveout.inference import compiled
from tests.inference.test_chain import paths

pytest.importorskip("numba")
CASES = {"one": ([6], 2), "several, three states": ([3, 1, 2], 3), "one state": ([4], 1)}


@pytest.mark.parametrize("name", CASES)
def test_enumeration(name):
    lengths, K = CASES[name]
    rng, T = np.random.default_rng(0), sum(lengths)
    table, top = rng.uniform(0.1, 1.0, (4, K)), rng.standard_normal(4)
    code, weight = rng.integers(0, 4, T).astype(np.int32), rng.choice([0.0, 1.0, 0.5], T)
    initial, transition = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), K)
    starts = np.isin(np.arange(T), np.cumsum([0, *lengths[:-1]]))

    def log_z(emission, initial=initial, transition=transition):
        return paths(np.log(initial), np.log(transition), emission, lengths, np.ones(len(lengths)))

    loops, (forward, back) = compiled.loops(K), np.empty((2, T, K))
    logs = np.log(table) + top[:, None]
    emission = weight[:, None] * logs[code]
    found = loops.recursions(initial, transition, starts, code, weight, table, top, forward, back)
    np.testing.assert_allclose(found, log_z(emission), rtol=1e-12)

    seen, moves, first = np.zeros((4, K)), np.zeros((K, K)), np.zeros(K)
    loops.counts(transition, starts, code, weight, forward, back, seen, moves, first)
    step = 1e-6
    for row, k in np.ndindex(4, K):
        moved = emission + step * (weight * (code == row))[:, None] * (np.arange(K) == k)
        np.testing.assert_allclose(seen[row, k], (log_z(moved) - log_z(emission)) / step, atol=1e-5)
    for k in range(K):
        slope = np.exp(step * (np.arange(K) == k))
        np.testing.assert_allclose(first[k], (log_z(emission, initial * slope) - log_z(emission)) / step, atol=1e-5)
        for j in range(K):
            slope = np.ones((K, K))
            slope[j, k] = np.exp(step)
            turned = log_z(emission, transition=transition * slope)
            np.testing.assert_allclose(moves[j, k], (turned - log_z(emission)) / step, atol=1e-5)

    index, held, out = np.append(np.arange(T), T), np.append(weight == 0, False), np.full(T + 1, 7.0)
    loops.losses(code, forward, back, table, top, index, held, out)
    assert (out[~held] == 7.0).all()
    for t, loss in zip(index[held], out[held], strict=True):
        shown = emission + (np.arange(T) == t)[:, None] * logs[code]
        np.testing.assert_allclose(loss, log_z(emission) - log_z(shown), atol=1e-12)


def test_steps_of_extreme_likelihood():
    """Products of normalisers do not underflow; where all paths are impossible log Z is −∞."""
    T, logs = 400, np.tile([0.0, -200.0, -600.0, -690.0], 100)
    code, weight, starts = np.arange(T, dtype=np.int32), np.ones(T), np.arange(T) == 0
    table, (forward, back) = np.exp(logs)[:, None] * np.ones(2), np.empty((2, T, 2))
    run = lambda table: compiled.loops(2).recursions(
        np.full(2, 0.5), np.full((2, 2), 0.5), starts, code, weight, table, np.zeros(T), forward, back
    )
    np.testing.assert_allclose(run(table), logs.sum(), rtol=1e-12)
    table[7] = 0.0
    assert run(table) == -np.inf


def test_without_numba(monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    assert compiled.loops.__wrapped__(2) is None
