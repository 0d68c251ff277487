"""Refits of any model where their way down is not the usual one.

What becomes of them, and what is said of it.
"""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import leaveout as lo
from leaveout.objectives.batch_functions import DerivedBatch, function, whole
from leaveout.optimize.newton import newton
from leaveout.refit import _descent
from leaveout.refit._descent import RefitDescent
from leaveout.refit._metric import LowRank, own_metric
from leaveout.validation import minima as _minima

OUTLYING = np.array([-3.0, -3.0, -2.5, -2.0, -3.0, 30.0])


def barred():
    """Steps from θ̂ may leave the domain, whose end no minimiser reaches."""
    return lo.fit(
        lo.Separable(
            lambda theta, y: 0.5 * (theta - y) ** 2 - jnp.sqrt(theta),
            OUTLYING,
            theta0=np.array(2.0),
        )
    )


def test_a_first_step_out_of_the_domain_loses_no_refit():
    fit, rest = barred(), OUTLYING[:-1]
    slope = lambda theta: np.sum(theta - rest) - 0.5 * len(rest) / np.sqrt(theta)
    theta = scipy.optimize.brentq(slope, 1e-12, 50.0, xtol=1e-14)
    exact = 0.5 * (theta - OUTLYING[-1]) ** 2 - np.sqrt(theta)
    for refit in (lo.Exact(), lo.Certified(), lo.NoUpdate()):
        found = lo.cross_validate(fit, lo.leave_one_out(6), refit, audit=0)
        assert found.result[-1] == lo.RESULTS.successful
        assert abs(found.losses[-1] - exact) <= found.error[-1] + 1e-9 < 0.25 * exact


def test_what_has_no_minimiser_is_lost_though_its_way_crosses_a_kink():
    def loss(eta, y):
        margin = (2 * y - 1) * eta
        return jnp.logaddexp(0.0, -margin) + 0.3 * jnp.maximum(0.0, 1.0 - margin) ** 2

    x = np.r_[np.linspace(-2, -0.5, 8), np.linspace(0.5, 2, 8)]
    y = (x > 0).astype(float)
    y[2] = 1.0  # without it the classes are separate
    fit = lo.fit(lo.GLM(x[:, None], y, loss=loss))
    for refit in (lo.Exact(), lo.Certified()):
        found = lo.cross_validate(fit, lo.leave_one_out(16), refit, audit=0)
        assert found.result[2] == lo.RESULTS.not_converged
        assert np.isnan(found.losses[2]) and np.isinf(found.error[2])
    assert np.isinf(lo.cross_validate(fit, lo.leave_one_out(16), lo.NewtonStep(), audit=0).error[2])


def robust():
    """Of too many parameters for a Hessian each, and no linear predictor."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 35))
    data = {"x": x, "y": x @ rng.normal(size=35) + rng.normal(size=60)}
    loss = lambda theta, d: jnp.sqrt(1 + (d["y"] - d["x"] @ theta) ** 2) + 0.05 * jnp.sum(theta**2)
    return lo.fit(lo.Separable(loss, data, theta0=np.zeros(35)))


@pytest.mark.slow
def test_refits_at_the_floor_have_their_losses_and_errors():
    fit, plan = robust(), lo.kfold(60, 4)
    close, closest = (lo.cross_validate(fit, plan, lo.Exact(tol), audit=0) for tol in (1e-8, 1e-12))
    assert (closest.result == lo.RESULTS.successful).all() and (closest.error < 1e-5).all()
    np.testing.assert_allclose(closest.losses, close.losses, atol=1e-6)


def test_an_audit_of_what_stays_at_the_fit_begins_with_the_longest_step():
    y = np.random.default_rng(0).normal(size=20)
    y[7] = 3.0
    fit = lo.fit(
        lo.Separable(lambda theta, y: jnp.sqrt(1 + (y - theta) ** 2), y, theta0=np.array(0.0))
    )
    for refit in (lo.NoUpdate(), lo.InfinitesimalJackknife()):
        audit = lo.cross_validate(fit, lo.leave_one_out(20), refit, audit=1).audit
        assert audit.reason[0] == "longest step" and audit.refit[0] == 7


def test_refits_that_run_out_of_steps_are_judged_where_they_stand(monkeypatch):
    fit, plan = robust(), lo.kfold(60, 4)
    exact = lo.cross_validate(fit, plan, lo.Exact(1e-12), audit=0)
    steps = _descent.RefitDescent.steps
    once = lambda self, lanes, enough, most=1, fresh=False: steps(
        self, lanes, enough, min(most, 1), fresh
    )
    monkeypatch.setattr(_descent.RefitDescent, "steps", once)
    for refit in (lo.Exact(1e-12), lo.Certified(1e-6)):
        found = lo.cross_validate(fit, plan, refit, audit=0)
        assert (found.result == lo.RESULTS.successful).all() and (found.error < 1e-2).all()
        off = [
            abs(np.sum(found.losses[plan.refit == k] - exact.losses[plan.refit == k]))
            for k in range(4)
        ]
        assert (off <= found.error + 1e-9).all()


def test_what_is_kept_beside_a_fit_does_not_keep_it(monkeypatch):
    monkeypatch.setattr(_minima, "LARGE_NUM_PARAMETERS", 0)
    rng = np.random.default_rng(0)
    data = np.r_[rng.normal(-3, 1, 20), rng.normal(3, 1, 15)]
    loss = lambda theta, y: jnp.log1p(3 * (y - theta) ** 2)
    fit = lo.fit(lo.Separable(loss, data, theta0=np.array(3.0)), num_starts=6)
    assert len(fit.minima.value) == 2
    lo.cross_validate(fit, lo.leave_one_out(35), audit=0)
    gone = weakref.ref(fit)
    del fit
    gc.collect()
    assert gone() is None


def test_an_error_is_the_largest_change_of_the_losses_within_the_distance_left():
    """Far out in a tail, where one way nothing changes, and the other way much does."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 2)), (rng.random(40) < 0.5) * 1.0
    unit_loss = lambda theta, row: jnp.logaddexp(0.0, row[0] @ theta) - row[1] * (row[0] @ theta)
    fit = lo.fit(
        lo.Separable(
            unit_loss, (X, y), penalty=lambda theta: 0.5 * theta @ theta, theta0=np.zeros(2)
        )
    )
    rows = lo.leave_one_out(40).one(0).rows
    with jax.enable_x64(True):
        state = RefitDescent(fit, rows)
        state.begin()
        towards = (2 * y[0] - 1) * fit.whiten(X[0])  # the loss falls along it, down to nothing
        state.u = 300 * towards[None] / np.linalg.norm(towards)
        error = state.loss_change(np.array([0]), np.array([600.0]))[0]
        losses = lambda u: float(unit_loss(fit.at(u), (X[0], y[0])))
        along = state.step[0], fit.whiten(state.F.slopes(state.theta(), np.array([0])))[0]
        ways = [sign * 600 * v / np.linalg.norm(v) for v in along for sign in (1, -1)]
        most = max(abs(losses(state.u[0] + way) - losses(state.u[0])) for way in ways)
    assert error == pytest.approx(most, rel=1e-9) and most > 100 * losses(state.u[0])


def test_a_metric_by_woodbury_inverts_the_refits_own_hessian():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 20))
    y = X[:, 0] + rng.standard_t(3, 80)
    loss = lambda eta, y: 2 * jnp.log1p((y - eta) ** 2 / 3)
    fit, plan = (
        lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0)), num_starts=1),
        lo.kfold(80, 20, seed=0),
    )
    with jax.enable_x64(True):
        rows = plan.one(3).rows
        metric, lost, _ = own_metric(fit, rows)
        weights = np.ones(80)
        weights[rows.index[0]] = 0.0
        own = (
            fit.root @ function(fit.objective, fit.theta, weights).hessian(fit.vector) @ fit.root.T
        )
        gradient = rng.standard_normal((1, 21))
        step = metric.solve(gradient, np.zeros((1, 21)), np.array([0]))
    assert isinstance(metric, LowRank) and not lost.any()
    np.testing.assert_allclose(step[0], np.linalg.solve(own, gradient[0]), rtol=1e-8)


def of_few_parameters():
    """Refits without each of 40 rows, of a robust regression that is no linear predictor.

    Their minima by SciPy.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.standard_t(2, 40)
    loss = lambda theta, d: jnp.sqrt(1 + (d["y"] - d["x"] @ theta) ** 2)
    objective = lo.Separable(loss, {"x": x, "y": y}, theta0=np.zeros(3))
    own = lambda theta, out: np.delete(np.sqrt(1 + (y - x @ theta) ** 2), out).sum()
    best = [
        scipy.optimize.minimize(own, np.zeros(3), (k,), "BFGS", options={"gtol": 1e-9}).x
        for k in range(40)
    ]
    return objective, whole(1.0 - np.eye(40)), np.array(best)


@pytest.mark.parametrize("start", ["far", "near"])
def test_a_hessian_serves_while_its_steps_shrink(start, monkeypatch):
    objective, rows, best = of_few_parameters()
    made, hessian = np.zeros(40), DerivedBatch.hessian

    def counted(F, theta, lanes):
        made[lanes] += 1
        return hessian(F, theta, lanes)

    monkeypatch.setattr(DerivedBatch, "hessian", counted)
    F = DerivedBatch(objective, np.zeros(3), rows)
    begun = np.zeros((40, 3)) if start == "far" else best + 1e-6
    with jax.enable_x64(True):
        found = newton(F, begun, np.arange(40), np.zeros((0, 3)), origin=np.zeros(3))
    np.testing.assert_allclose(found.theta, best, atol=1e-6)
    assert found.converged.all() and (found.size <= 1e-7).all()
    assert made.max() <= (6 if start == "far" else 1)


def switching(steps=400):
    """Gaussian series that switches between two means, and its fit by a hidden Markov model of
    seven parameters.
    """
    random = np.random.default_rng(0)
    state = np.cumsum(random.random(steps) < 0.05) % 2
    return lo.fit(lo.HMM(random.normal(3.0 * state, 1.0), lo.emissions.Gaussian(), 2))


@pytest.mark.parametrize("own", [False, True], ids=["the fit's metric", "the refit's own"])
def test_a_contraction_is_that_of_the_hessian_by_few_gradients(own, monkeypatch):
    fit = switching()
    (batch,) = lo.random_subsets(400, 0.2, 3, seed=0).batches(10**6, 1, 0)
    everyone = np.arange(3)
    with jax.enable_x64(True):
        state = RefitDescent(fit, batch.rows, fold_hessians=own)
        state.begin()
        state.steps(everyone, lambda lanes, at: np.zeros(len(lanes), bool), 2)
        point, gradient = state.seen
        np.testing.assert_allclose(gradient, state.gradient(everyone, point))
        whitener = np.asarray(fit.whitener)
        left = (
            np.eye(fit.num_params)
            - whitener @ state.F.hessian(state.center + fit.unwhiten(point), everyone) @ whitener.T
        )
        if own:  # I − PB = P(P⁻¹ − B)
            inverse = state.metric.inverse
            left = np.eye(fit.num_params) - inverse @ (np.eye(fit.num_params) - left)
        seen, whole_gradient = [], RefitDescent.gradient

        def counted(self, lanes, u=None):
            seen.extend(lanes)
            return whole_gradient(self, lanes, u)

        monkeypatch.setattr(RefitDescent, "gradient", counted)
        found = state.contractions(everyone)
    np.testing.assert_allclose(
        found, _descent.CAUTION * np.abs(np.linalg.eigvals(left)).max(1), rtol=0.1
    )
    assert np.bincount(seen).mean() <= 5


def test_newtons_method_goes_on_from_where_steps_had_all_but_ended():
    objective, rows, best = of_few_parameters()
    fit = lo.fit(objective)
    state = RefitDescent(fit, rows)
    state.begin()
    state.u, state.size = fit.back(best - state.center), np.full(40, 1e-9)
    state.u[0] += 100.0  # higher than where the fit is
    state.size[1] = np.inf  # far from its end
    with jax.enable_x64(True):
        begun = state._start(state.F, np.arange(40), np.arange(40))
    np.testing.assert_allclose(begun[2:], best[2:], atol=1e-9)
    np.testing.assert_array_equal(begun[:2], np.tile(state.center, (2, 1)))
