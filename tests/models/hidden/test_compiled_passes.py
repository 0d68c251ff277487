"""Passes by compiled loops against enumeration of paths, and against what JAX derives."""

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout.models.hidden import compiled_passes
from leaveout.objectives.batch_functions import DerivedBatch, PassBatch, derive_batch
from leaveout.objectives.objective import ravel
from tests.models.hidden.test_hmm import CASES, at, built, oracle

pytest.importorskip("numba")
COUNTS = {
    lo.InfinitesimalJackknife(): (11, 7, 9),
    lo.Certified(): (15, 8, 11),
    lo.Exact(): (15, 11, 13),
}
PLAIN = [name for name in CASES if name != "linked lanes"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Chains of any length are passed over by the loops."""
    monkeypatch.setattr(compiled_passes, "PADDED_FROM", 0)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_enumeration(name, repeats, monkeypatch):
    x, lengths, parameters, _ = CASES[name]
    monkeypatch.setattr(compiled_passes, "SAMPLE", 8 if repeats else 4)
    hmm = built(x, parameters, lengths=lengths)
    theta = at(hmm, parameters)
    rows, n = lo.kfold(len(x), 3, seed=0).one(1).rows, len(x)
    with jax.enable_x64(True):
        of = derive_batch(hmm, theta, rows)
        assert isinstance(of, PassBatch)
        vector, one = np.asarray(ravel(theta))[None], np.zeros(1, int)
        value, gradient = of.look(vector, one)
        (losses,) = of.losses(vector, one)
    left = rows.index[0][rows.held[0]]
    w = np.ones(n)
    w[left] = 0.0
    np.testing.assert_allclose(value[0], oracle(hmm, parameters, x, w), rtol=1e-12)
    for place in np.flatnonzero(rows.held[0]):
        t = rows.index[0, place]
        if not np.isnan(x[t]):
            shown = np.where(np.arange(n) == t, 1.0, w)
            expected = oracle(hmm, parameters, x, shown) - oracle(hmm, parameters, x, w)
            np.testing.assert_allclose(losses[place], expected, rtol=1e-11)
    for k, step in enumerate(1e-6 * np.eye(vector.size)):
        with jax.enable_x64(True):
            up, down = (of.look(vector + sign * step, one)[0][0] for sign in (1, -1))
        np.testing.assert_allclose(gradient[0, k], (up - down) / 2e-6, atol=1e-6)


def test_as_jax_derives_it():
    """Event counts, tempered weights, several refits, and moves around them."""
    rng, n = np.random.default_rng(0), 200
    day = np.arange(n) // 20 % 7
    x = rng.poisson(4.0 + 6.0 * (np.cumsum(rng.random(n) < 0.1) % 2)).astype(float)
    x[5] = np.nan
    hmm, plan = lo.HMM(x, lo.emissions.EventCounts(day), 2, initial=[0.5, 0.5]), lo.blocks(n, 40)
    (batch,) = plan.batches(10**9, 1, 0, uniform=True)
    rows = batch.rows._replace(
        weight=np.where(
            batch.rows.weight > 0, batch.rows.weight, 0.25 * (batch.rows.index % 3 == 0)
        )
    )
    lanes = np.array([0, 2, 3])
    start = hmm.parameters.start(0)
    with jax.enable_x64(True):
        vector = np.asarray(ravel(start))
        theta = vector + 0.1 * rng.standard_normal((3, vector.size))
        theta[2] = theta[0]  # two refits at one place
        moves = 0.2 * rng.standard_normal((3, 2, vector.size))
        ours, theirs = (kind(hmm, start, rows) for kind in (PassBatch, DerivedBatch))
        for call in (
            lambda of: of.look(theta, lanes),
            lambda of: of.look(theta, lanes)[1],
            lambda of: of.losses(theta, lanes),
            lambda of: of.around(theta, moves, lanes),
        ):
            for a, b in zip(
                jax.tree.leaves(call(ours)), jax.tree.leaves(call(theirs)), strict=True
            ):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_estimates_are_the_same(monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(2.0 * (np.cumsum(rng.random(300) < 0.1) % 2))
    made = lambda: lo.fit(lo.HMM(x, lo.emissions.Gaussian(), 2), num_starts=1)
    ours = {
        refit: lo.cross_validate(made(), lo.blocks(300, 60), refit)
        for refit in (lo.Certified(), lo.NoUpdate())
    }
    monkeypatch.setattr(compiled_passes, "available", lambda hmm: False)
    monkeypatch.setattr("leaveout.models.hidden.hmm.available", lambda hmm: False)
    for refit, cv in ours.items():
        plain = lo.cross_validate(made(), lo.blocks(300, 60), refit)
        np.testing.assert_allclose(cv.losses, plain.losses, rtol=1e-5)
        np.testing.assert_array_equal(cv.result, plain.result)


def test_looks_are_counted():
    """The recursions of one fold, its gradients, and calls of several at once do not depend on the
    machine.
    """
    rng = np.random.default_rng(2)
    x = rng.poisson(np.array([2.0, 9.0])[np.cumsum(rng.random(3000) < 0.02) % 2])
    fit = lo.fit(lo.HMM(x, lo.emissions.Poisson(), 2), num_starts=1)
    passes, plan = compiled_passes.chain_passes(fit.objective), lo.contiguous(3000, 0.1, 1, seed=0)
    for refit, most in COUNTS.items():
        passes.counted[:] = 0
        lo.cross_validate(fit, plan, refit, audit=0)
        assert (passes.counted <= most).all(), (refit, passes.counted)
