"""Conditional random fields: both styles against enumeration, refits from scratch, bad input."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import leaveout as lo
from leaveout.objectives.batch_functions import HostBatch, function
from tests.helpers import call, flat

LENGTHS = [4, 1, 3]
RIDGE = lo.penalties.Ridge(0.7)


def problem(K=3, lengths=LENGTHS, seed=0, features=0, zeros=False):
    rng = np.random.default_rng(seed)
    steps = int(np.sum(lengths))
    labels = rng.integers(0, K, steps)
    labels[:K] = np.arange(K)
    scores = rng.standard_normal((steps, K))
    if zeros:
        impossible = (rng.random((steps, K)) < 0.3) & (np.arange(K) != labels[:, None])
        scores[impossible] = -np.inf
    X = rng.standard_normal((steps, features)) * (rng.random((steps, features)) < 0.6)
    theta = {
        "start": rng.standard_normal(K),
        "end": rng.standard_normal(K),
        "transition": rng.standard_normal((K, K)),
    }
    if features:
        theta["weights"] = rng.standard_normal((features, K))
    return labels, scores, X, theta


def paths(theta, emission, lengths):
    """Every path of every sequence with its score: a list of `[paths, length]` and `[paths]`."""
    out, first = [], 0
    for length in lengths:
        z = np.array(list(itertools.product(range(emission.shape[1]), repeat=int(length))))
        score = (
            theta["start"][z[:, 0]]
            + theta["end"][z[:, -1]]
            + emission[first + np.arange(length), z].sum(1)
        )
        score = score + theta["transition"][z[:, :-1], z[:, 1:]].sum(1)
        out.append((z, score))
        first += length
    return out


def log_sums(theta, emission, lengths, labels, kept):
    """`log Σ exp s(z)` over the paths that agree with the labels that are kept, by sequence."""
    out, first = [], 0
    for z, score in paths(theta, emission, lengths):
        mine = slice(first, first + z.shape[1])
        agrees = ((z == labels[mine]) | ~kept[mine]).all(1)
        out.append(np.logaddexp.reduce(score[agrees]))
        first += z.shape[1]
    return np.array(out)


def multilinear(theta, emission, lengths, labels, w):
    """M(w) summed over sequences: the interpolation of the log sums over all vertices."""
    total, first = 0.0, 0
    for n, length in enumerate(lengths):
        for vertex in itertools.product([False, True], repeat=int(length)):
            kept = np.ones(len(labels), bool)
            kept[first : first + length] = vertex
            own = w[first : first + length]
            worth = np.prod(np.where(vertex, own, 1 - own))
            if worth:
                total += worth * log_sums(theta, emission, lengths, labels, kept)[n]
        first += length
    return total


def ridge(theta):
    return 0.35 * flat(theta) @ flat(theta)


def built(K, drop, kind, lengths=LENGTHS, penalty=RIDGE):
    """A CRF on one kind of emission, its θ, and its emission scores `[steps, labels]`."""
    features = 2 if "features" in kind else 0
    labels, scores, X, theta = problem(
        K, lengths, features=features, zeros=kind == "structural zeros"
    )
    emission = scores if kind != "features" else np.zeros_like(scores)
    emission = emission + X @ theta["weights"] if features else emission
    given = None if kind == "features" else scores
    x = None if not features else X if kind == "features" else scipy.sparse.csr_array(X)
    crf = lo.CRF(
        labels, lengths, scores=given, features=x, num_labels=K, drop=drop, penalty=penalty
    )
    return crf, theta, emission, labels


KINDS = ["scores", "structural zeros", "features", "scores and sparse features"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.slow_for("2-structural zeros", "2-features", "2-scores and sparse features")
def test_sequences_by_enumeration(K, kind):
    crf, theta, emission, labels = built(K, "sequence", kind)
    everything, nothing = np.ones(8, bool), np.zeros(8, bool)
    whole = log_sums(theta, emission, LENGTHS, labels, nothing)
    own = log_sums(theta, emission, LENGTHS, labels, everything)
    for w in (np.ones(3), np.array([0.3, 0.0, 1.7])):
        np.testing.assert_allclose(
            call(crf.loss, theta, w), w @ (whole - own) + ridge(theta), rtol=1e-12
        )
    for index in (np.array([2, 0, 3]), np.arange(3)):  # the first two, and a place without one
        real = index < 3
        got = call(crf.score, theta, np.ones(3), index, 1.0 * real)
        np.testing.assert_allclose(got[real], (whole - own)[index[real]], rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.slow_for("2-structural zeros", "2-features", "2-scores and sparse features")
def test_labels_by_enumeration(K, kind):
    """The partial-label likelihood at the vertices, the multilinear path between them, the
    normaliser counted once.
    """
    crf, theta, emission, labels = built(K, "label", kind)
    rng = np.random.default_rng(1)
    whole = log_sums(theta, emission, LENGTHS, labels, np.zeros(8, bool)).sum()
    vertex = (rng.random(8) < 0.5) * 1.0
    for w in (np.ones(8), np.zeros(8), vertex, np.array([1, 0.3, 0.6, 1, 0.2, 0.7, 1, 0.4])):
        want = whole - multilinear(theta, emission, LENGTHS, labels, w) + ridge(theta)
        np.testing.assert_allclose(call(crf.loss, theta, w), want, rtol=1e-12)
    # the path between 1 and 0 of one label, as printed
    at = lambda w: call(crf.loss, theta, np.where(np.arange(8) == 2, w, 1.0))
    np.testing.assert_allclose(at(0.3), 0.3 * at(1.0) + 0.7 * at(0.0), rtol=1e-13)


@pytest.mark.parametrize("kind", ["scores", "structural zeros", "scores and sparse features"])
def test_label_scores_by_enumeration(kind):
    """`−log p(y_t | kept labels, x)`, and the probabilities of a held-out label sum to one."""
    crf, theta, emission, labels = built(3, "label", kind)
    w = np.array([1.0, 0, 0, 1, 0, 1, 1, 0])
    held = np.flatnonzero(w == 0)
    index = np.array([*held, 8])
    got = call(crf.score, theta, w, index, np.array([1.0, 1, 1, 1, 0]))[:4]
    kept = w > 0
    seen = log_sums(theta, emission, LENGTHS, labels, kept).sum()
    states = (
        call(lambda *args: crf.predict(*args, "state"), theta, w, index)[:4]
        if kind == "scores"
        else None
    )
    total = np.zeros(4)
    for k in range(3):
        for i, t in enumerate(held):
            other = np.where(np.arange(8) == t, k, labels)
            known = kept | (np.arange(8) == t)
            probability = np.exp(log_sums(theta, emission, LENGTHS, other, known).sum() - seen)
            total[i] += probability
            if k == labels[t]:
                assert got[i] == pytest.approx(-np.log(probability), rel=1e-11)
            if states is not None:
                assert states[i, k] == pytest.approx(probability, rel=1e-11)
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("drop", ["sequence", "label"])
@pytest.mark.parametrize("kind", ["structural zeros", "scores and sparse features"])
def test_derivatives(drop, kind):
    """The recursions' Hessian and Jacobian are those of the loss.

    What listed units change is the difference of losses.
    """
    crf, theta, _, _ = built(2, drop, kind, [4, 1, 3, 2, 5, 3, 2, 4])
    n, start = crf.num_units, flat(theta)
    rng, ones = np.random.default_rng(2), np.ones(n)
    with jax.enable_x64(True):
        unravel = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, theta))[1]
        compiled = jax.jit(jax.value_and_grad(lambda v, w: crf.loss(unravel(v), w)))
        loss, gradient = (
            (lambda v, w: np.asarray(compiled(v, w)[0])),
            lambda v, w: np.asarray(compiled(v, w)[1]),
        )

        def hessian(w, h=1e-4):  # fourth-order differences of gradients
            along = lambda e: 8 * (gradient(start + e, w) - gradient(start - e, w))
            twice = lambda e: gradient(start + 2 * e, w) - gradient(start - 2 * e, w)
            return np.array([(along(e) - twice(e)) / (12 * h) for e in h * np.eye(len(start))])

        # F is linear in each weight
        mixed = [gradient(start, ones) - gradient(start, ones - e) for e in np.eye(n)]
        np.testing.assert_allclose(call(crf.jacobian, theta), mixed, atol=1e-11)
        interior = np.where(np.arange(n) % 3 > 0, rng.random(n), 1.0)
        for w in (ones, interior, (rng.random(n) < 0.6) * 1.0):
            np.testing.assert_allclose(call(crf.hessian, theta, w), hessian(w), atol=1e-9)
        for index in (np.array([2, 3]), np.array([1, n]), np.arange(n)):
            delta, moved = np.where(index < n, -np.where(index % 2, 0.4, 1.0), 0.0), np.ones(n)
            moved[index[index < n]] += delta[index < n]
            got = call(crf.perturbation, theta, index, delta)
            np.testing.assert_allclose(got, loss(start, moved) - loss(start, ones), atol=1e-11)
            change = call(crf.hessian_change, theta, index, delta)
            np.testing.assert_allclose(change, hessian(moved) - hessian(ones), atol=1e-9)


def test_jacobian():
    """F is linear in each weight: differences of gradients, here of enumerated losses."""
    crf, theta, emission, labels = built(2, "sequence", "structural zeros")
    start, lengths = flat(theta), LENGTHS
    K = 2

    def losses(v):
        own = {"end": v[:K], "start": v[K : 2 * K], "transition": v[2 * K :].reshape(K, K)}
        known, nothing = np.ones(8, bool), np.zeros(8, bool)
        return log_sums(own, emission, lengths, labels, nothing) - log_sums(
            own, emission, lengths, labels, known
        )

    h = 1e-5
    want = np.array(
        [(losses(start + e) - losses(start - e)) / (2 * h) for e in h * np.eye(len(start))]
    ).T
    np.testing.assert_allclose(call(crf.jacobian, theta), want, atol=1e-9)


@pytest.mark.parametrize("kind", ["sparse features", "scores and sparse features"])
def test_array_code_by_enumeration(kind):
    """F of sparse features, its gradient and products, of any weights, also where some parameters
    are not free: differences of sums over all paths."""
    lengths, K, rng = [4, 1, 3, 4, 2], 3, np.random.default_rng(0)
    labels, scores, X, theta = problem(K, lengths, features=2)
    given = scores if "scores" in kind else None
    free = {"transition": rng.random((K, K)) < 0.7, "weights": rng.random((2, K)) < 0.7}
    theta = {name: leaf * free.get(name, 1.0) for name, leaf in theta.items()}
    known, nothing, weights = np.ones(14, bool), np.zeros(14, bool), rng.random(5) * 2
    x = scipy.sparse.csr_array(X)
    for mask in ({}, free):
        crf = lo.CRF(
            labels, lengths, scores=given, features=x, num_labels=K, penalty=RIDGE, free=mask
        )
        F = function(
            crf,
            {name: leaf[mask[name]] if name in mask else leaf for name, leaf in theta.items()},
            weights,
        )
        assert isinstance(F.of, HostBatch)

        def value(vector, crf=crf, F=F):
            with jax.enable_x64(True):
                whole = jax.tree.map(np.asarray, crf.parameters.natural(F.to_tree(vector)))
            emission = X @ whole["weights"] + (0 if given is None else scores)
            lost = [log_sums(whole, emission, lengths, labels, seen) for seen in (nothing, known)]
            return weights @ (lost[0] - lost[1]) + 0.35 * vector @ vector

        start, h = flat(F.like), 1e-4
        got, gradient = F.look(start)
        assert got == pytest.approx(value(start), rel=1e-12)
        eye = h * np.eye(len(start))
        np.testing.assert_allclose(
            gradient, [(value(start + e) - value(start - e)) / (2 * h) for e in eye], atol=1e-6
        )
        along = rng.standard_normal(len(start))
        ends = [F.look(start + sign * h * along)[1] for sign in (1, -1)]
        np.testing.assert_allclose(
            F.products(start)(along), (ends[0] - ends[1]) / (2 * h), atol=1e-6
        )
        # the precision of the vector is that of the product
        single = F.products(start)(along.astype(np.float32))
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, F.products(start)(along), atol=1e-5)
        curvature = np.array([F.products(start)(e / h) @ e / h for e in eye])
        assert (F.of.arrays.diagonal(start) > 0.2 * curvature).all()


def test_products_beyond_single_precision():
    """Potentials whose sums over paths leave the range of single precision.

    Products are those of double precision.
    """
    lengths, rng = [4, 3, 4], np.random.default_rng(0)
    labels, _, X, theta = problem(3, lengths, features=2)
    theta["transition"][1:] += 120.0
    theta["start"] -= np.array([0.0, 110.0, 110.0])
    crf = lo.CRF(labels, lengths, features=scipy.sparse.csr_array(X), num_labels=3, penalty=RIDGE)
    F, along = function(crf, theta, np.ones(3)), rng.standard_normal(crf._size)
    start = flat(F.like)
    assert isinstance(F.of, HostBatch)
    assert F.of.arrays.rough_passes(start.tobytes()) is F.of.arrays.passes(start.tobytes())[0]
    np.testing.assert_allclose(
        F.products(start)(along.astype(np.float32)), F.products(start)(along), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("drop", ["sequence", "label"])
def test_a_sum_that_underflows_is_no_minimum(drop):
    """Scores too far apart for probabilities.

    The loss is what enumeration says, or +∞, and no search goes there.
    """
    crf, theta, emission, labels = built(3, drop, "scores")
    theta["start"] = np.array([2000.0, 0.0, 0.0])
    theta["transition"][0] -= 2000.0
    known, nothing = np.ones(8, bool), np.zeros(8, bool)
    want = (
        log_sums(theta, emission, LENGTHS, labels, nothing)
        - log_sums(theta, emission, LENGTHS, labels, known)
    ).sum()
    found = float(call(crf.loss, theta, np.ones(crf.num_units)))
    assert found == np.inf or np.isclose(found, want + ridge(theta))


@pytest.mark.slow
def test_fit_of_many_weights():
    """More weights than are worth a Hessian at every step, from a start where the first Newton step
    would be far off.
    """
    lengths = [12] * 15
    labels, _, X, _ = problem(4, lengths, features=40)
    labels[X[:, 0] > 0] = 0
    crf = lo.CRF(labels, lengths, features=30 * X, num_labels=4, penalty=lo.penalties.Ridge(1e-3))
    fit = lo.fit(crf)
    gradient = jax.grad(lambda theta: crf.loss(theta, jnp.ones(15)))
    with jax.enable_x64(True):
        slope = flat(jax.tree.map(np.asarray, gradient(jax.tree.map(jnp.asarray, fit.theta))))
    assert np.abs(slope).max() < 1e-6
    assert fit.decrement < 1e-6


def test_flat_directions_of_many_weights(monkeypatch):
    """Without a penalty some directions change nothing.

    Steps with one Hessian, as for thousands of weights, avoid them.
    """
    labels, scores, _, _ = problem(5, [30] * 40)
    crf = lo.CRF(labels, [30] * 40, scores=scores, num_labels=5, penalty=None)
    few = lo.fit(crf)
    monkeypatch.setattr("leaveout.optimize.newton.LARGE_NUM_PARAMETERS", 30)
    many = lo.fit(crf)
    assert many.decrement < 1e-6 and abs(many.value - few.value) < 1e-9 * abs(few.value)
