"""Accelerated steps against what GMRES does, and refits that take fewer gradients for them."""

import jax.numpy as jnp
import numpy as np
import pytest

import leaveout as lo
from leaveout.refit._acceleration import DEPTH, Acceleration
from leaveout.refit._descent import RefitDescent


def quadratics(size, number, spread, seed=0):
    """Hessians in coordinates in which the metric is the identity, and minimisers."""
    rng = np.random.default_rng(seed)
    turns = np.linalg.qr(rng.standard_normal((number, size, size)))[0]
    values = 1 + spread * rng.uniform(-1, 1, (number, size))
    return np.einsum("rij,rj,rkj->rik", turns, values, turns), rng.standard_normal((number, size))


def walked(hessian, minimiser, steps, accelerated=True):
    """Distances to the minimisers after each step from zero, and the contractions that were
    told.
    """
    lanes = np.arange(len(minimiser))
    asked = lambda u: np.einsum("rij,rj->ri", hessian, u - minimiser)
    u = -asked(np.zeros_like(minimiser))
    memory, off, ratios = Acceleration(np.zeros_like(u), -u, np.ones(len(u), bool)), [], []
    for _ in range(steps):
        step, ratio = memory.step(lanes, u, asked(u))
        u = u - (step if accelerated else asked(u))
        off.append(np.linalg.norm(u - minimiser, axis=1))
        ratios.append(ratio)
    return np.array(off), np.array(ratios)


def test_a_quadratic_of_few_parameters_takes_as_many_steps():
    hessian, minimiser = quadratics(DEPTH, 20, 0.6)
    off, _ = walked(hessian, minimiser, DEPTH)
    plain, _ = walked(hessian, minimiser, DEPTH, accelerated=False)
    assert off[-1].max() < 1e-6 * np.linalg.norm(minimiser, axis=1).min() < plain[-1].max()


def test_steps_are_those_of_gmres():
    hessian, minimiser = quadratics(30, 3, 0.5, seed=1)
    off, _ = walked(hessian, minimiser, 4)
    for each, target, ours in zip(hessian, minimiser, off[-1], strict=True):
        krylov = [each @ target]
        for _ in range(3):
            krylov.append(each @ krylov[-1])
        basis = np.linalg.qr(np.array(krylov).T)[0]
        # of the residuals over that space
        least = basis @ np.linalg.lstsq(each @ basis, each @ target)[0]
        step = each @ (least - target)
        assert ours == pytest.approx(np.linalg.norm(least - step - target), rel=1e-6)


@pytest.mark.parametrize("accelerated", [True, False])
def test_contraction_is_that_of_the_plain_steps(accelerated):
    hessian, minimiser = quadratics(12, 50, 0.7, seed=2)
    _, ratios = walked(hessian, minimiser, 6, accelerated)
    radius = np.abs(np.linalg.eigvalsh(hessian) - 1).max(1)
    assert (ratios <= radius + 1e-9).all()
    assert np.median(ratios.max(0) / radius) > 0.85


def test_what_has_not_begun_has_nothing_to_go_by():
    hessian, minimiser = quadratics(6, 2, 0.3)
    memory = Acceleration(
        np.zeros_like(minimiser), np.zeros_like(minimiser), np.array([False, True])
    )
    asked = hessian.sum(1)
    step, ratio = memory.step(np.arange(2), minimiser + 2, asked)
    assert (step[0] == asked[0]).all()
    assert np.isinf(ratio[0])
    assert not np.allclose(step[1], asked[1])
    assert np.isfinite(ratio[1])


def test_what_is_not_finite_spoils_its_own_refit_only():
    hessian, minimiser = quadratics(6, 2, 0.3)
    memory = Acceleration(np.zeros_like(minimiser), -minimiser, np.ones(2, bool))
    asked = hessian[:, 0].copy()
    asked[0] = np.nan
    step, _ = memory.step(np.arange(2), minimiser, asked)
    assert np.isnan(step[0]).all()
    assert np.isfinite(step[1]).all()


def test_refits_take_fewer_gradients(monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 4))
    y = rng.poisson(np.exp(0.8 * x[:, 0])).astype(float)
    loss = lambda theta, row: jnp.exp(row[0] @ theta) - row[1] * (row[0] @ theta)
    fit = lo.fit(lo.Separable(loss, (x, y), theta0=np.zeros(4)), num_starts=1)
    plan, looked = lo.kfold(300, 4), []
    gradient = RefitDescent.gradient
    monkeypatch.setattr(
        RefitDescent,
        "gradient",
        lambda self, lanes, *at: looked.append(len(lanes)) or gradient(self, lanes, *at),
    )
    accelerated = lo.fold_parameters(fit, plan, lo.Exact())
    quick, looked[:] = sum(looked), []
    monkeypatch.setattr(
        Acceleration, "step", lambda self, lanes, u, asked: (asked, np.full(len(lanes), np.inf))
    )
    plain = lo.fold_parameters(fit, plan, lo.Exact())
    assert quick < sum(looked)
    np.testing.assert_allclose(accelerated, plain, rtol=1e-7, atol=1e-8)
