"""Passes in NumPy against the sum over all paths, and their tangents against differences."""

import itertools

import numpy as np
import pytest

from leaveout.inference import lanes


def paths(initial, transition, emission, starts, power):
    """log Z, and expected states, first states and moves, by enumeration in one refit."""
    steps, K = emission.shape
    weight, states = 0.0, np.zeros((steps, K))
    first, moves = np.zeros(K), np.zeros((K, K))
    for z in itertools.product(range(K), repeat=steps):
        factors = [initial[z[t]] if starts[t] else transition[z[t - 1], z[t]] for t in range(steps)]
        p = np.exp(emission[np.arange(steps), z].sum()) * np.prod(np.power(factors, power))
        weight += p
        for t in range(steps):
            states[t, z[t]] += p
            if starts[t]:
                first[z[t]] += power[t] * p
            else:
                moves[z[t - 1], z[t]] += power[t] * p
    return np.log(weight), states / weight, first / weight, moves / weight


CASES = [(2, 9), (3, 6), (1, 4), (2, 1), (2, 2)]


@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("K", "steps"), CASES)
def test_enumeration(K, steps, zeros, powers):
    """Two refits at once; the last sequence starts at the fifth step."""
    rng = np.random.default_rng(0)
    initial, transition = rng.dirichlet(np.ones(K), 2), rng.dirichlet(np.ones(K), (2, K))
    if zeros and K > 1:
        transition[:, 0, 1] = 0.0
    emission = 3 * rng.standard_normal((2, steps, K))
    starts = np.isin(np.arange(steps), (0, 4))
    power = rng.choice([0.0, 1.0, 0.5], (2, steps)) if powers else np.ones((2, steps))
    more = {"power": power} if powers else {}
    with np.errstate(divide="ignore"):
        logs = np.log(initial), np.log(transition)
    table = emission.swapaxes(1, 2)
    found = lanes.chain_sums(*logs, table, starts, zeros=zeros, **more)
    for k in range(2):
        want = paths(initial[k], transition[k], emission[k], starts, power[k])
        got = found.log_normaliser[k].sum(), found.states[k], found.initial[k], found.transition[k]
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
    direction = rng.standard_normal(emission.shape)
    parts = (part.astype(complex) for part in logs)
    tangent = lanes.chain_sums(
        *parts, table + 1e-100j * direction.swapaxes(1, 2), starts, zeros=zeros, **more
    )
    change = tangent.log_normaliser.imag.sum(1) / 1e-100
    np.testing.assert_allclose(change, (found.states * direction).sum((1, 2)), rtol=1e-9)


@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_sequences_of_one_length_are_as_each_by_itself(zeros, powers):
    """They are the segments, with nothing above or below them."""
    rng = np.random.default_rng(0)
    length, count, K = 6, 5, 3
    initial, transition = rng.dirichlet(np.ones(K), 1), rng.dirichlet(np.ones(K), (1, K))
    transition[:, 0, 1] *= not zeros
    with np.errstate(divide="ignore"):
        logs = np.log(initial), np.log(transition)
    emission = 3 * rng.standard_normal((1, K, length * count))
    starts = np.arange(length * count) % length == 0
    power = rng.choice([0.0, 1.0, 0.5], (1, length * count))
    more = lambda part: {"zeros": zeros} | ({"power": power[:, part]} if powers else {})
    found = lanes.chain_sums(*logs, emission, starts, **more(slice(None)))
    assert found.segments.rows == length
    parts = [slice(k * length, (k + 1) * length) for k in range(count)]
    alone = [
        lanes.chain_sums(*logs, emission[..., part], starts[part], **more(part)) for part in parts
    ]
    assert alone[0].segments.rows < length
    for name in ("initial", "transition"):
        total = sum(getattr(sums, name) for sums in alone)
        np.testing.assert_allclose(getattr(found, name), total, rtol=1e-11, atol=1e-14)
    for name in ("log_normaliser", "states", "filtered"):
        each = np.concatenate([getattr(sums, name) for sums in alone], 1)
        np.testing.assert_allclose(getattr(found, name), each, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("zeros", [False, True])
def test_weights_are_powers_of_likelihoods_and_equal_observations_share_a_row(zeros):
    rng = np.random.default_rng(3)
    logs = np.log(rng.dirichlet(np.ones(2), 3)), np.log(rng.dirichlet(np.ones(2), (3, 2)))
    table, code = rng.standard_normal((3, 2, 4)), rng.integers(0, 4, 20)
    weight, worth = rng.choice([0.0, 1.0, 0.25], (3, 20)), np.repeat([[0.0], [1.0], [2.0]], 20, 1)
    starts = np.isin(np.arange(20), (0, 7))
    more = {"zeros": zeros, "worth": worth}
    found = lanes.chain_sums(*logs, table, starts, code=code, weight=weight, **more)
    plain = lanes.chain_sums(*logs, weight[:, None] * table[..., code], starts, **more)
    for name in ("log_normaliser", "states", "initial", "transition"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(plain, name), rtol=1e-11, atol=1e-14
        )
    counts = np.zeros((3, 2, 4))
    np.add.at(counts, (slice(None), slice(None), code), weight[:, None] * plain.emission)
    np.testing.assert_allclose(found.emission, counts, rtol=1e-11)
    steps = rng.integers(0, 20, (3, 5))
    states = np.take_along_axis(plain.states, steps[..., None], 1)
    np.testing.assert_allclose(found.states_at(steps), states, rtol=1e-11)


def test_structural_zeros_force_a_path_through_tiny_densities():
    """A chain that only moves on: probabilities would underflow where logarithms do not."""
    with np.errstate(divide="ignore"):
        initial, transition = np.log([[1.0, 0.0]]), np.log([[[0.0, 1.0], [0.0, 1.0]]])
    emission = np.array([[[0.0, 0.0, 0.0], [0.0, -2000.0, -3000.0]]])
    found = lanes.chain_sums(initial, transition, emission, np.arange(3) == 0, zeros=True)
    assert found.log_normaliser.sum() == pytest.approx(-5000.0)
    np.testing.assert_allclose(found.states[0], [[1, 0], [0, 1], [0, 1]], atol=1e-12)


def test_filtered_probabilities_are_those_of_the_steps_so_far():
    rng = np.random.default_rng(0)
    logs = np.log(rng.dirichlet(np.ones(3), 1)), np.log(rng.dirichlet(np.ones(3), (1, 3)))
    emission, starts = rng.standard_normal((1, 3, 40)), np.isin(np.arange(40), (0, 13))
    found = lanes.chain_sums(*logs, emission, starts)
    for t in (0, 12, 13, 30, 39):
        so_far = lanes.chain_sums(*logs, emission[..., : t + 1], starts[: t + 1])
        np.testing.assert_allclose(found.filtered[0, t], so_far.states[0, t], rtol=1e-11)
    np.testing.assert_allclose((found.filtered * found.evidence_ahead).sum(2), 1.0, rtol=1e-11)


@pytest.mark.parametrize("K", [2, 3])
def test_best_path(K):
    rng = np.random.default_rng(1)
    initial, transition = np.log(rng.dirichlet(np.ones(K))), np.log(rng.dirichlet(np.ones(K), K))
    emission, starts = rng.standard_normal((7, K)), np.isin(np.arange(7), (0, 3))

    def value(z):
        moves = [initial[z[t]] if starts[t] else transition[z[t - 1], z[t]] for t in range(7)]
        return sum(moves) + emission[np.arange(7), list(z)].sum()

    best = max(itertools.product(range(K), repeat=7), key=value)
    np.testing.assert_array_equal(lanes.best_path(initial, transition, emission, starts), best)


def test_stationary_distributions():
    matrix = np.random.default_rng(0).dirichlet(np.ones(4), (3, 4))
    p = lanes.stationary(matrix)
    np.testing.assert_allclose(np.einsum("nj,njk->nk", p, matrix), p, rtol=1e-12)
    assert lanes.has_stationary(matrix[0]) and not lanes.has_stationary(np.eye(2))
