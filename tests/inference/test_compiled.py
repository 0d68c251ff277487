"""Compiled recursions against the sum over all paths, and their counts against its derivatives."""

import numpy as np
import pytest

from leaveout.inference import compiled
from tests.inference.test_chain import paths

numba = pytest.importorskip("numba")
CASES = {
    "several": ([4, 1, 2], 2),
    "three states": ([3, 2], 3),
    "one state": ([4], 1),
    "four states": ([3, 2], 4),
    "one lane": ([2, 3], 5),
    "loops over states": ([3], 9),
}


# as many lanes as of two states, and dear to compile
@pytest.mark.parametrize("mask", [0, 3])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name[:5] == "three" else ()) for name in CASES],
)
@pytest.mark.slow_for("four states-0")
def test_enumeration(name, mask):
    """Every lane has potentials and weights of its own."""
    lengths, K = CASES[name]
    loops, rng, T, N = compiled.loops(K), np.random.default_rng(0), sum(lengths), len(lengths)
    L = loops.lanes
    table, plain, top = (
        rng.uniform(0.1, 1.0, (4, K, L)),
        rng.uniform(0.1, 1.0, (4, K, L)),
        rng.standard_normal((4, L)),
    )
    code, weight = rng.integers(0, 4, T).astype(np.int32), rng.choice([0.0, 1.0], (T, L))
    initial, transition = rng.dirichlet(np.ones(K), L), rng.dirichlet(np.ones(K), (L, K))
    starts = np.isin(np.arange(T), np.cumsum([0, *lengths[:-1]]))
    laid = np.ascontiguousarray(initial.T).ravel(), np.moveaxis(transition, 0, -1).ravel()
    of, found = (starts, code, weight.ravel(), table.ravel()), (np.zeros(T * K * L), np.zeros(L))
    loops.forward(*laid, *of, top.ravel(), mask, *found)
    mixed, seen, moves, first = (np.zeros(size) for size in ((T, L), (4, K, L), (K, K, L), (K, L)))
    out = [part.reshape(-1) for part in (mixed, seen, moves, first)]
    loops.backward(laid[1], *of, plain.ravel(), mask, found[0], *out)
    for lane in range(0, L, 3):

        def log_z(emission, initial=initial[lane], transition=transition[lane]):
            return paths(np.log(initial), np.log(transition), emission, lengths, np.ones(N))

        emission = weight[:, lane, None] * (np.log(table[..., lane]) + top[:, None, lane])[code]
        whole, step = log_z(emission), 1e-6
        np.testing.assert_allclose(found[1][lane], whole, rtol=1e-12)
        for t in range(T):
            shown = emission + (np.arange(T) == t)[:, None] * np.log(plain[..., lane])[code]
            np.testing.assert_allclose(np.log(mixed[t, lane]), log_z(shown) - whole, atol=1e-12)
        for row, k in np.ndindex(4, K):
            moved = emission + step * (weight[:, lane] * (code == row))[:, None] * (
                np.arange(K) == k
            )
            np.testing.assert_allclose(seen[row, k, lane], (log_z(moved) - whole) / step, atol=1e-5)
        for k in range(K):
            slope = np.exp(step * (np.arange(K) == k))
            np.testing.assert_allclose(
                first[k, lane], (log_z(emission, initial[lane] * slope) - whole) / step, atol=1e-5
            )
            for j in range(K):
                slope = np.ones((K, K))
                slope[j, k] = np.exp(step)
                turned = log_z(emission, transition=transition[lane] * slope)
                np.testing.assert_allclose(moves[j, k, lane], (turned - whole) / step, atol=1e-5)


@pytest.mark.parametrize("mask", [0, 3])
def test_steps_of_extreme_likelihood(mask):
    """Products of normalisers do not underflow; where all paths are impossible log Z is −∞."""
    loops, T, logs = (
        compiled.loops(2),
        400,
        np.tile([0.0, -200.0, -600.0, -690.0] if mask == 0 else [0.0, -40.0, -60.0], 400)[:400],
    )
    code, starts, lanes = np.arange(T, dtype=np.int32), np.arange(T) == 0, loops.lanes
    table, half = np.repeat(np.exp(logs), 2 * lanes), np.full(4 * lanes, 0.5)

    def run():
        states, log_z, none = np.empty(2 * T * lanes), np.zeros(lanes), np.zeros(T * lanes)
        loops.forward(
            half[: 2 * lanes],
            half,
            starts,
            code,
            np.ones(T * lanes),
            table,
            none,
            mask,
            states,
            log_z,
        )
        return log_z

    np.testing.assert_allclose(run(), logs.sum(), rtol=1e-12)
    table[7 * 2 * lanes : 8 * 2 * lanes] = 0.0
    assert (run() == -np.inf).all()


def test_compiler_that_makes_a_mistake(monkeypatch):
    """Loops whose results differ from those of the same text in Python are not used."""
    right = numba.njit

    def wrong(**settings):
        return lambda function: (
            lambda *args: (right(**settings)(function)(*args), args[-1].__iadd__(1e-6))
        )

    monkeypatch.setattr(numba, "njit", wrong)
    assert compiled.loops.__wrapped__(2) is None


def test_lanes_are_compiled_once():
    """Arrays of other kinds would be compiled for again, without vector registers."""
    assert all(len(function.signatures) == 1 for function in compiled.loops(2)[1:])


def test_without_numba(monkeypatch):
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    assert compiled.loops.__wrapped__(2) is None
