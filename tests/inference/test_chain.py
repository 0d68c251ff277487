"""Forward–backward against the sum over all paths, and against automatic differentiation through a
plain loop.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leaveout.inference import chain


def paths(initial, transition, emission, lengths, worth):
    """`Σ_n worth_n log Σ_paths`, in NumPy."""
    total, start = 0.0, 0
    for length, w in zip(lengths, worth, strict=True):
        logs = []
        for z in itertools.product(range(len(emission.T)), repeat=length):
            value = (initial[z[0]]) + emission[start, z[0]]
            for t in range(1, length):
                value = value + transition[z[t - 1], z[t]] + emission[start + t, z[t]]
            logs.append(value)
        total += w * np.logaddexp.reduce(logs)
        start += length
    return total


def loop(initial, transition, emission, starts):
    """log Z by a Python loop over steps, for JAX to differentiate."""
    total, a = 0.0, None
    for t in range(len(emission)):
        if starts[t]:
            total = total if a is None else total + jax.nn.logsumexp(a)
            a = initial + emission[t]
        else:
            a = jax.nn.logsumexp(a[:, None] + transition, axis=0) + emission[t]
    return total + jax.nn.logsumexp(a)


def potentials(lengths, K, seed=0):
    rng = np.random.default_rng(seed)
    T = sum(lengths)
    initial, transition = (
        np.log(rng.dirichlet(np.ones(K))) + 0.3,
        np.log(rng.dirichlet(np.ones(K), K)) - 0.2,
    )
    return initial, transition, 2 * rng.standard_normal((T, K)), rng.uniform(0.2, 2.0, len(lengths))


CASES = {
    "one": ([6], 3),
    "several": ([3, 4, 1], 2),
    "several, many states": ([3, 2, 3], 6),
    "one long": ([8], 2),
    "several long": ([5, 3], 3),
}


@pytest.fixture(params=CASES)
def case(request):
    lengths, K = CASES[request.param]
    return np.array(lengths), K


@pytest.mark.parametrize("zeros", [False, True])
def test_enumeration(case, zeros):
    lengths, K = case
    initial, transition, emission, worth = potentials(lengths, K)
    if zeros and K > 1:
        transition[0, 1] = -np.inf
    with jax.enable_x64(True):
        layout = chain.layout(lengths, zeros)
        ours = lambda i, a, e, w: chain.log_partition(
            chain.Potentials(i, a, layout.arrange(e)), layout.arrange(w), layout
        )
        value = jax.jit(ours)(initial, transition, emission, np.repeat(worth, lengths))
    np.testing.assert_allclose(
        value, paths(initial, transition, emission, lengths, worth), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("name", "zeros", "highest"),
    [
        ("several", False, 2),
        pytest.param("several", True, 2, marks=pytest.mark.slow),
        pytest.param("several long", False, 3, marks=pytest.mark.slow),
    ],
)
def test_derivatives_are_those_of_a_plain_loop(name, zeros, highest):
    """The gradient, second and third derivatives along a direction."""
    lengths, K = np.array(CASES[name][0]), CASES[name][1]
    initial, transition, emission, _ = potentials(lengths, K)
    with jax.enable_x64(True):
        layout = chain.layout(lengths, zeros)
        starts = np.isin(np.arange(len(emission)), np.cumsum(lengths) - lengths)
        point = tuple(jnp.asarray(a) for a in (initial, transition, emission))
        ours = lambda i, a, e: chain.log_partition(
            chain.Potentials(i, a, layout.arrange(e)), None, layout
        )
        plain = lambda i, a, e: loop(i, a, e, starts)
        direction = tuple(
            jnp.asarray(np.random.default_rng(2).standard_normal(a.shape)) for a in point
        )
        pair = [jax.grad(f, argnums=(0, 1, 2)) for f in (ours, plain)]
        for _ in range(highest):
            got, want = (jax.tree.leaves(jax.jit(f)(*point)) for f in pair)
            for g, w in zip(got, want, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-10)
            pair = [lambda *p, f=f: jax.jvp(f, p, direction)[1] for f in pair]


def test_structural_zeros_force_a_path_through_tiny_densities():
    """A chain that only moves on: probabilities would underflow where logarithms do not."""
    with jax.enable_x64(True):
        initial, transition = (
            jnp.log(jnp.array([1.0, 0.0])),
            jnp.log(jnp.array([[0.0, 1.0], [0.0, 1.0]])),
        )
        emission = jnp.array([[0.0, 0.0], [0.0, -2000.0], [0.0, -3000.0]])
        layout = chain.layout(np.array([3]), zeros=True)
        value = lambda e: chain.log_partition(
            chain.Potentials(initial, transition, layout.arrange(e)), None, layout
        )
        got, gradient = jax.jit(jax.value_and_grad(value))(emission)
    assert got == pytest.approx(-5000.0)
    np.testing.assert_allclose(gradient, [[1, 0], [0, 1], [0, 1]], atol=1e-12)


def test_posteriors(case):
    """The states' probabilities by enumeration, and the filtered ones as the last step of every
    prefix.
    """
    lengths, K = case
    initial, transition, emission, _ = potentials(lengths, K)
    with jax.enable_x64(True):
        layout = chain.layout(lengths)
        ours = lambda i, a, e: chain.posterior(chain.Potentials(i, a, layout.arrange(e)), layout)
        found = jax.jit(ours)(initial, transition, emission)
        states, filtered = (
            np.asarray(layout.restore(part)) for part in (found.states, found.filtered)
        )
    np.testing.assert_allclose(states.sum(1), 1, atol=1e-12)
    start = int(lengths[:-1].sum())  # the last sequence
    for t in range(start, len(emission)):
        for length, got in ((lengths[-1], states[t]), (t + 1 - start, filtered[t])):
            own = emission[start : start + length]
            chosen = [
                own
                + np.where(
                    np.arange(length)[:, None] == t - start, np.log(np.eye(K)[k] + 1e-300), 0.0
                )
                for k in range(K)
            ]
            want = np.exp([paths(initial, transition, e, [length], [1.0]) for e in chosen])
            np.testing.assert_allclose(got, want / want.sum(), atol=1e-12)


def test_vmapped_equals_looped():
    lengths = np.array([300])
    initial, transition, emission, _ = potentials(lengths, 2)
    with jax.enable_x64(True):
        layout = chain.layout(lengths)
        many = jnp.asarray(np.random.default_rng(3).standard_normal((5, 300, 2)))
        one = jax.value_and_grad(
            lambda e: chain.log_partition(
                chain.Potentials(
                    jnp.asarray(initial), jnp.asarray(transition), layout.arrange(emission + e)
                ),
                None,
                layout,
            )
        )
        together, alone = jax.jit(jax.vmap(one))(many), jax.jit(one)
        for k in range(5):
            apart = alone(many[k])
            np.testing.assert_allclose(together[0][k], apart[0], rtol=1e-13)
            np.testing.assert_allclose(together[1][k], apart[1], rtol=1e-10, atol=1e-14)


def test_best_path(case):
    lengths, K = case
    initial, transition, emission, _ = potentials(lengths, K)
    starts = np.isin(np.arange(len(emission)), np.cumsum(lengths) - lengths)
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(chain.best_path)(initial, transition, emission, starts))

    def value(z):
        moves = sum(
            initial[z[t]] if starts[t] else transition[z[t - 1], z[t]] for t in range(len(z))
        )
        return moves + emission[np.arange(len(z)), z].sum()

    best = (
        max((value(z) for z in itertools.product(range(K), repeat=len(emission))), default=0)
        if K < 4
        else None
    )
    if best is not None:
        assert value(got) == pytest.approx(best, abs=1e-12)


def test_layout_places_every_step_once():
    for lengths in ([7, 3, 9, 1, 1, 4], [1000], [5] * 40, [300, 2000]):
        layout = chain.layout(np.array(lengths))
        total = sum(lengths)
        real = np.sort(layout.place[layout.place < total])
        np.testing.assert_array_equal(real, np.arange(total))
        np.testing.assert_array_equal(layout.place.reshape(-1)[layout.inverse], np.arange(total))


@pytest.mark.slow
def test_sums_in_parts_are_those_of_one(monkeypatch):
    """Value, gradient and a product with the Hessian, by lanes a few at a time and by a layout of
    few lanes.
    """
    rng, lengths, K = np.random.default_rng(0), np.array([3, 1, 4, 2, 4, 3, 1]), 3
    sequence, steps = np.repeat(np.arange(7), lengths), int(lengths.sum())
    start, A = rng.standard_normal(K), rng.standard_normal((K, K))
    emission, weights = rng.standard_normal((steps, K)), rng.uniform(0.2, 2.0, 7)

    def summed(parts):
        where = chain.layout(lengths, parts=parts)
        worth = where.arrange(jnp.asarray(weights)[sequence])
        F = lambda A, e: chain.log_partition(
            chain.Potentials(jnp.asarray(start), A, where.arrange(e)), worth, where
        )
        args = jnp.asarray(A), jnp.asarray(emission)
        value, slope = jax.value_and_grad(F, (0, 1))(*args)
        return where.shape[1], jax.tree.leaves(
            (value, slope, jax.jvp(jax.grad(F, (0, 1)), args, args)[1])
        )

    with jax.enable_x64(True):
        monkeypatch.setattr(chain, "MAX_SCAN_LANES", 2)
        (few, one), (many, several) = summed(1), summed(3)
    assert few == 2 < many and many % 2 == 0
    for a, b in zip(one, several, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
