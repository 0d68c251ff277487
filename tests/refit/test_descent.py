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
from leaveout.refit._anchor import LowRank, own_metric
from leaveout.refit._descent import DEPTH, Descent, WeightMoves, begin, newton_start
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
        found = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit, audit=0)
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
        found = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit, audit=0)
        assert found.result[2] == lo.RESULTS.not_converged
        assert np.isnan(found.losses[2]) and np.isinf(found.error[2])
    assert np.isinf(
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep(), audit=0).error[2]
    )


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
    close, closest = (
        lo.cross_validate(fit, plan, strategy=lo.Exact(tol), audit=0) for tol in (1e-8, 1e-12)
    )
    assert (closest.result == lo.RESULTS.successful).all() and (closest.error < 1e-5).all()
    np.testing.assert_allclose(closest.losses, close.losses, atol=1e-6)


def test_an_audit_of_what_stays_at_the_fit_begins_with_the_longest_step():
    y = np.random.default_rng(0).normal(size=20)
    y[7] = 3.0
    fit = lo.fit(
        lo.Separable(lambda theta, y: jnp.sqrt(1 + (y - theta) ** 2), y, theta0=np.array(0.0))
    )
    for refit in (lo.NoUpdate(), lo.InfinitesimalJackknife()):
        audit = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit, audit=1).audit
        assert audit.reason[0] == "longest step" and audit.refit[0] == 7


def test_refits_that_run_out_of_steps_are_judged_where_they_stand(monkeypatch):
    fit, plan = robust(), lo.kfold(60, 4)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12), audit=0)
    monkeypatch.setattr(_descent, "MAX_CHORD_STEPS", 1)
    for refit in (lo.Exact(1e-12), lo.Certified(1e-6)):
        found = lo.cross_validate(fit, plan, strategy=refit, audit=0)
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
    lo.cross_validate(fit, lo.leave_one_out(), audit=0)
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
    rows = lo.leave_one_out(40)._one(0).rows
    with jax.enable_x64(True):
        batch = begin(fit, rows)
        towards = (2 * y[0] - 1) * fit.quadratic.whiten(
            X[0]
        )  # the loss falls along it, down to nothing
        (u,) = far = 300 * towards[None] / np.linalg.norm(towards)
        candidates = batch.candidates._replace(u=far, distance_left=np.array([600.0]))
        error = batch.evaluate(candidates).error[0]
        losses = lambda u: float(unit_loss(fit.quadratic.at(u), (X[0], y[0])))
        along = (
            candidates.step[0],
            fit.quadratic.whiten(batch.F.slopes(fit.quadratic.at(far), np.array([0])))[0],
        )
        ways = [sign * 600 * v / np.linalg.norm(v) for v in along for sign in (1, -1)]
        most = max(abs(losses(u + way) - losses(u)) for way in ways)
    assert error == pytest.approx(most, rel=1e-9) and most > 100 * losses(u)


def test_a_metric_by_woodbury_inverts_the_refits_own_hessian():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 20))
    y = X[:, 0] + rng.standard_t(3, 80)
    loss = lambda eta, y: 2 * jnp.log1p((y - eta) ** 2 / 3)
    fit, plan = (
        lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0)), num_starts=1),
        lo.kfold(80, 20, rng=0),
    )
    with jax.enable_x64(True):
        rows = plan._one(3).rows
        metric, lost, _ = own_metric(fit, rows)
        weights = np.ones(80)
        weights[rows.index[0]] = 0.0
        own = (
            fit.quadratic.root
            @ function(fit.objective, fit.theta, weights).hessian(fit.vector)
            @ fit.quadratic.root.T
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
    (batch,) = lo.random_subsets(400, 0.2, 3, rng=0)._batches(10**6, 1, 0)
    everyone = np.arange(3)
    monkeypatch.setattr(_descent, "MAX_CHORD_STEPS", 2)
    with jax.enable_x64(True):
        batch = begin(fit, batch.rows, fold_hessians=own)
        progress = _descent._take_steps(batch, batch.candidates)
        point, gradient = progress.point, progress.gradient
        np.testing.assert_allclose(gradient, batch.gradient(point, everyone))
        whitener = np.asarray(fit.quadratic.whitener)
        left = (
            np.eye(fit.num_params)
            - whitener @ batch.F.hessian(fit.quadratic.at(point), everyone) @ whitener.T
        )
        if own:  # I − PB = P(P⁻¹ − B)
            inverse = batch.metric.inverse
            left = np.eye(fit.num_params) - inverse @ (np.eye(fit.num_params) - left)
        seen, whole_gradient = [], Descent.gradient

        def counted(self, u, lanes):
            seen.extend(lanes)
            return whole_gradient(self, u, lanes)

        monkeypatch.setattr(Descent, "gradient", counted)
        found = batch.contractions(everyone, point, gradient)
    np.testing.assert_allclose(
        found, _descent.CAUTION * np.abs(np.linalg.eigvals(left)).max(1), rtol=0.1
    )
    assert np.bincount(seen).mean() <= 5


@pytest.mark.parametrize("model", ["sequences", "rows"])
def test_a_change_of_curvature_is_no_less_than_that_of_the_refits_own_hessian(model):
    if model == "rows":
        fit = lo.fit(of_few_parameters()[0])
    else:
        labels = np.random.default_rng(0).integers(0, 2, 240)
        features = np.random.default_rng(1).normal(labels[:, None], 1.0)
        fit = lo.fit(lo.CRF(labels, np.full(60, 4), features=features))
    count = fit.objective.num_units
    everyone = np.arange(count)
    (batch,) = lo.leave_one_out(count)._batches(10**6, 1, 0)
    with jax.enable_x64(True):
        batch = begin(fit, batch.rows)
        u = batch.candidates.u
        root = fit.quadratic.root
        hessian = root @ batch.F.hessian(fit.quadratic.at(u), everyone) @ root.T
        bound = batch.contractions(everyone, u, u)
    contraction = np.linalg.norm(np.eye(len(root)) - batch.metric.inverse @ hessian, 2, (1, 2))
    assert batch.by_units
    assert (contraction <= bound).all()
    assert np.median(bound / contraction) < 20


def test_steps_of_few_parameters_are_with_the_refits_own_hessians():
    fit = lo.fit(of_few_parameters()[0])
    (plan_batch,) = lo.kfold(40, 2, rng=0)._batches(10**6, 1, 0)
    everyone = np.arange(2)
    root = fit.quadratic.root
    with jax.enable_x64(True):
        batch = begin(fit, plan_batch.rows)
        u = batch.candidates.u
        before, after = (
            root @ batch.F.hessian(fit.quadratic.at(points), everyone) @ root.T
            for points in (np.zeros_like(u), u)
        )
        step = batch.metric.solve(batch.gradient(u, everyone), u, everyone)
        np.testing.assert_allclose(
            np.einsum("rij,rj->ri", after, step), batch.gradient(u, everyone), rtol=1e-9
        )
        change = np.linalg.norm(np.linalg.solve(after, before) - np.eye(len(root)), axis=(1, 2))
        np.testing.assert_allclose(batch.metric.change, change, rtol=1e-9)


def test_newtons_method_goes_on_from_where_steps_had_all_but_ended():
    objective, rows, best = of_few_parameters()
    fit = lo.fit(objective)
    u, size = fit.quadratic.back(best - fit.vector), np.full(40, 1e-9)
    u[0] += 100.0  # higher than where the fit is
    size[1] = np.inf  # far from its end
    with jax.enable_x64(True):
        batch = begin(fit, rows)
        candidates = batch.candidates._replace(u=u, size=size)
        begun = newton_start(batch, batch.F, candidates, np.arange(40))
    np.testing.assert_allclose(begun[2:], best[2:], atol=1e-9)
    np.testing.assert_array_equal(begun[:2], np.tile(fit.vector, (2, 1)))


def quadratics(size, number, spread, seed=0):
    """Hessians in coordinates in which the metric is the identity, and minimisers."""
    rng = np.random.default_rng(seed)
    turns = np.linalg.qr(rng.standard_normal((number, size, size)))[0]
    values = 1 + spread * rng.uniform(-1, 1, (number, size))
    return np.einsum("rij,rj,rkj->rik", turns, values, turns), rng.standard_normal((number, size))


def memory_of(u, step):
    """Memory after steps from `u`, and no move yet."""
    none = np.zeros((len(u), 0, u.shape[1]))
    return WeightMoves(u, step, none, none)


def walked(hessian, minimiser, steps, accelerated=True):
    """Distances to the minimisers after each step from zero, and the contractions that were
    told.
    """
    asked = lambda u: np.einsum("rij,rj->ri", hessian, u - minimiser)
    u = -asked(np.zeros_like(minimiser))
    memory, off, ratios = memory_of(np.zeros_like(u), -u), [], []
    for _ in range(steps):
        memory, step, ratio = memory.accelerate(u, asked(u))
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
    memory = memory_of(np.zeros_like(minimiser), np.zeros_like(minimiser))
    memory.step[0] = np.nan
    asked = hessian.sum(1)
    _, step, ratio = memory.accelerate(minimiser + 2, asked)
    assert (step[0] == asked[0]).all()
    assert np.isinf(ratio[0])
    assert not np.allclose(step[1], asked[1])
    assert np.isfinite(ratio[1])


def test_what_is_not_finite_spoils_its_own_refit_only():
    hessian, minimiser = quadratics(6, 2, 0.3)
    memory = memory_of(np.zeros_like(minimiser), -minimiser)
    asked = hessian[:, 0].copy()
    asked[0] = np.nan
    _, step, _ = memory.accelerate(minimiser, asked)
    assert np.isnan(step[0]).all()
    assert np.isfinite(step[1]).all()


def test_refits_take_fewer_gradients(monkeypatch):
    # of more parameters than refits take their own Hessians for
    rng = np.random.default_rng(3)
    x = rng.standard_normal((300, 8))
    y = rng.poisson(np.exp(0.8 * x[:, 0])).astype(float)
    loss = lambda theta, row: jnp.exp(row[0] @ theta) - row[1] * (row[0] @ theta)
    fit = lo.fit(lo.Separable(loss, (x, y), theta0=np.zeros(8)), num_starts=1)
    plan, looked = lo.kfold(300, 4), []
    gradient = Descent.gradient
    monkeypatch.setattr(
        Descent,
        "gradient",
        lambda self, u, lanes: looked.append(len(lanes)) or gradient(self, u, lanes),
    )
    accelerated = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    quick, looked[:] = sum(looked), []
    monkeypatch.setattr(
        WeightMoves, "accelerate", lambda self, u, asked: (self, asked, np.full(len(u), np.inf))
    )
    plain = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    assert quick < sum(looked)
    np.testing.assert_allclose(accelerated, plain, rtol=1e-7, atol=1e-8)
