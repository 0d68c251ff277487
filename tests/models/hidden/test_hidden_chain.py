"""Runs of steps that are left out, against refits of their own."""

import numpy as np

import leaveout as lo
from leaveout.models.hidden.hidden_chain import RunLosses
from leaveout.objectives import closed_form
from leaveout.objectives.batch_functions import derive_batch
from leaveout.plans.plan import _few_sizes, few_size
from tests.helpers import flat


def counts(steps: int, seed: int = 0) -> np.ndarray:
    """Two states; some steps missing."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(np.array([1.0, 6.0])[np.cumsum(rng.random(steps) < 0.15) % 2]).astype(float)
    x[rng.choice(steps, steps // 20, replace=False)] = np.nan
    return x


def test_sizes_are_few():
    sizes = [few_size(n) for n in range(1, 3000)]
    assert (
        all(n <= size <= 1.5 * n for n, size in enumerate(sizes, 1))
        and len(set(sizes[:2048])) == 22
    )
    assert sizes[2048:] == list(range(2049, 3000))
    np.testing.assert_array_equal(sizes[:2048], _few_sizes(np.arange(1, 2049)))


def test_runs_are_those_of_refits_at_the_same_parameters():
    """Also across the start of a sequence, and at the first and last step."""
    hmm = lo.HMM(counts(43), lo.emissions.Poisson(), 2, lengths=[20, 23])
    vector, n = flat(hmm.parameters.start(1)), 43
    first, length = np.array([0, 5, 18, 40]), np.array([3, 1, 5, 3])
    far = np.array([vector + 0.3, vector])
    losses, joint = (part[1] for part in RunLosses(hmm, first, length)(far))
    one, joint_of_one = (part[0] for part in RunLosses(hmm, first, length)(vector[None]))
    np.testing.assert_allclose(one, losses, rtol=1e-12)
    np.testing.assert_allclose(joint_of_one, joint, rtol=1e-12)
    assert RunLosses(hmm, first, np.ones(4, int))(far)[0] is None
    whole = hmm.look(vector[None], np.ones((1, n)))[0]
    for k, (start, width) in enumerate(zip(first, length, strict=True)):
        index = np.arange(start, start + width)
        w = np.ones((1, n))
        w[0, index] = 0.0
        want = hmm.losses(vector[None], w, index[None], np.ones((1, width), bool))[0]
        seen = hmm.dense[index]
        np.testing.assert_allclose(losses[k, :width][seen], want[seen], rtol=1e-11)
        fall = whole - hmm.look(vector[None], w)[0]
        np.testing.assert_allclose(joint[k], fall[0], rtol=1e-10, atol=1e-11)


def test_products_are_those_of_the_hessian_where_that_is_not_formed(monkeypatch):
    hmm = lo.HMM(counts(43), lo.emissions.Poisson(), 2)
    like, rng = hmm.parameters.start(1), np.random.default_rng(0)
    (rows,) = lo.contiguous(43, 0.2, 3, rng=0)._batches(10**9, 1, 0, uniform=True)
    batch = derive_batch(hmm, like, rows.rows)
    theta = flat(like) + 0.1 * rng.standard_normal((3, 5))
    vectors, lanes = 1e3 * rng.standard_normal((3, 5)), np.arange(3)
    vectors[1] = 0.0
    product = np.einsum("rij,rj->ri", batch.hessian(theta, lanes), vectors)
    monkeypatch.setattr(closed_form, "FORMED", 0)
    np.testing.assert_allclose(batch.products(theta, lanes)(vectors), product, rtol=1e-8)


def test_refits_are_no_wider_than_there_are_units():
    """Of padded units wider ones would be taken for lists of all."""
    plan = lo.Plan([0, 5], np.arange(5), [0.0, 2.0, 0.5, 3.0, 2.0], np.arange(5) == 0, 5)
    (batch,) = plan._batches(10**6, 1, 0)
    assert batch.rows.index.shape == (1, 5) and few_size(5) == 6
