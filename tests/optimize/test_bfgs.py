"""BFGS and Newton's steps with what it has learnt.

Against dense arithmetic, SciPy's descents, refits from scratch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import leaveout as lo
from leaveout.objectives.batch_functions import function
from leaveout.optimize import bfgs as _bfgs
from leaveout.optimize.bfgs import BFGS, curves_down, newton_step
from leaveout.refit import _descent


class Counted:
    """A function and its gradient, and how often they were asked for."""

    def __init__(self, value_and_grad):
        self.value_and_grad, self.looks = value_and_grad, 0

    def look(self, theta):
        self.looks += 1
        return self.value_and_grad(theta)


def rosenbrock():
    return Counted(lambda theta: (scipy.optimize.rosen(theta), scipy.optimize.rosen_der(theta)))


def definite(size, seed):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size))
    return root @ root.T + 0.1 * np.eye(size)


def test_what_is_learnt_is_the_inverse_of_broydens_family():
    start, F = np.linalg.inv(definite(6, 0)), rosenbrock()
    way, dense = BFGS(F, np.full(6, -1.0), lambda g: start @ g), start.copy()
    for _ in range(12):
        theta, gradient = way.theta, way.gradient
        assert way._move(float(gradient @ way.step))
        s, y = way.theta - theta, way.gradient - gradient
        part = np.eye(6) - np.outer(s, y) / (s @ y)
        dense = part @ dense @ part.T + np.outer(s, s) / (s @ y)
        np.testing.assert_allclose(
            way.newton(np.eye(6)[2]), dense[2], rtol=1e-6, atol=1e-8 * np.abs(dense).max()
        )
        np.testing.assert_allclose(
            way.step, dense @ way.gradient, rtol=1e-6, atol=1e-8 * np.abs(way.step).max()
        )


@pytest.mark.parametrize("moves", [1000, 20])
def test_a_descent_ends_at_the_minimum_though_it_forgets(monkeypatch, moves):
    monkeypatch.setattr(_bfgs, "MOVES", moves)
    F = rosenbrock()
    way = BFGS(F, np.zeros(10), lambda g: g)
    assert way.descend(lambda size: size < 1e-7, 2000)
    np.testing.assert_allclose(way.theta, 1.0, atol=1e-6)
    assert moves < 1000 or F.looks < 150


def test_a_descent_goes_round_where_nothing_is_defined():
    F = Counted(
        lambda t: (
            (float(t @ t - np.log(t).sum()), 2 * t - 1 / t)
            if (t > 0).all()
            else (np.nan, np.full(2, np.nan))
        )
    )
    way = BFGS(F, np.array([3.0, 0.01]), lambda g: 10 * g)
    assert way.descend(lambda size: size < 1e-8, 200)
    np.testing.assert_allclose(way.theta, np.sqrt(0.5), atol=1e-7)


def test_nothing_is_done_at_a_minimum():
    F = rosenbrock()
    way = BFGS(F, np.ones(4), lambda g: g)
    assert not way.descend(lambda size: True, 10) and F.looks == 1
    step, rest = newton_step(lambda v: v, way.newton, way.gradient)
    assert rest == 0 and not step.any()


def test_a_newton_step_says_what_is_left_to_solve():
    for seed in range(20):
        hessian, inverse = (
            definite(60, seed),
            np.linalg.inv(definite(60, seed) + 5 * definite(60, seed + 100)),
        )
        gradient = np.random.default_rng(seed).standard_normal(60)
        step, rest = newton_step(lambda v, H=hessian: H @ v, lambda g, P=inverse: P @ g, gradient)
        off, length = step - np.linalg.solve(hessian, gradient), np.linalg.solve(hessian, gradient)
        assert np.sqrt(off @ hessian @ off) <= rest * np.sqrt(length @ hessian @ length)
        assert rest <= _bfgs.PART
    hessian[:, 0] = hessian[0] = 0.0
    hessian[0, 0] = -1.0
    assert newton_step(lambda v: hessian @ v, lambda g: g, gradient).remainder == np.inf


def test_a_saddle_is_seen_whose_gradient_says_nothing_of_it():
    """A descent that passes one all but ends there: its Newton steps contract."""
    hessian, rng = definite(60, 3), np.random.default_rng(4)
    values, vectors = np.linalg.eigh(hessian)
    down = hessian - (values[7] + 0.03 * values[7]) * np.outer(vectors[:, 7], vectors[:, 7])
    gradient = (np.eye(60) - np.outer(vectors[:, 7], vectors[:, 7])) @ rng.standard_normal(60)
    metric, drawn = np.linalg.inv(hessian), rng.standard_normal(60)
    assert newton_step(lambda v: down @ v, lambda g: metric @ g, gradient).remainder < 0.1
    assert curves_down(lambda v: down @ v, lambda g: metric @ g, drawn)
    assert not curves_down(lambda v: hessian @ v, lambda g: metric @ g, drawn)


class Ridge(lo.developer.AbstractObjective):
    """F = ½ Σ_n w_n ‖a − x_n‖² + ½ (2w₀ − 1) b² + ¼ b⁴.

    Without unit 0, b = 0 is a saddle that no gradient leads away from.
    """

    x: np.ndarray

    @property
    def num_units(self):
        return len(self.x)

    def loss(self, theta, weights):
        a, b = theta[:-1], theta[-1]
        apart = 0.5 * jnp.sum((a - jnp.asarray(self.x)) ** 2, axis=1)
        return (
            weights @ apart + 0.5 * (2 * weights[0] - 1) * b**2 + 0.25 * b**4 + 0.1 * jnp.sum(a**4)
        )


def test_a_descent_that_ends_on_a_saddle_is_no_refit(monkeypatch):
    monkeypatch.setattr(_descent, "is_dear", lambda objective, params: True)
    objective = Ridge(np.random.default_rng(0).standard_normal((12, 30)))
    fit = lo.anchor(objective, lo.fit(objective, np.zeros(31), num_starts=1).theta)
    for refit in (lo.Certified(), lo.Exact()):
        found = lo.cross_validate(fit, lo.leave_one_out(), strategy=refit, audit=0)
        assert found.result[0] == lo.RESULTS.not_converged and not found.result[1:].any()


@pytest.fixture(scope="module")
def network():
    """49 parameters and 120 rows: folds whose minima are far, one of them beyond a plateau."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((120, 4))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_t(3, 120)
    start = {
        "W": rng.standard_normal((4, 8)),
        "b": np.zeros(8),
        "v": rng.standard_normal(8),
        "c": np.zeros(()),
    }

    def loss(theta, row):
        return (
            0.5
            * (row["y"] - jnp.tanh(row["x"] @ theta["W"] + theta["b"]) @ theta["v"] - theta["c"])
            ** 2
        )

    ridge = lambda theta: 0.02 * sum(jnp.sum(part**2) for part in theta.values())
    return lo.fit(lo.Separable(loss, {"x": X, "y": y}, ridge, theta0=start), num_starts=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "refit",
    [lo.Certified(1.0), lo.Certified(), lo.Exact()],
    ids=repr,
)
def test_far_refits_of_a_network_are_as_near_to_refits_as_they_say(network, refit):
    plan = lo.kfold(120, 8, rng=1)
    found = lo.cross_validate(network, plan, strategy=refit, audit=0)
    theta = lo.fold_parameters(network, plan, strategy=refit)
    assert (found.result == lo.RESULTS.successful).all()
    lengths = []
    with jax.enable_x64(True):
        for fold in range(8):
            held, weights = plan.index[plan.refit == fold], np.ones(120)
            weights[held] = 0.0
            F = function(network.objective, network.theta, weights)
            start = np.concatenate([np.ravel(leaf[fold]) for leaf in jax.tree.leaves(theta)])
            options = {"gtol": 1e-7, "ftol": 0.0, "maxcor": 49}
            vector = scipy.optimize.minimize(
                F.look, start, jac=True, method="L-BFGS-B", options=options
            ).x
            for _ in range(3):
                vector = vector - np.linalg.solve(F.hessian(vector), F.look(vector)[1])
            assert np.linalg.eigvalsh(F.hessian(vector))[0] > 0
            each = network.objective.score(
                F.to_tree(vector), np.ones(120), held, np.ones(len(held))
            )
            off = abs(found.losses[plan.refit == fold].sum() - float(np.sum(each)))
            assert off <= found.error[fold] + 1e-9
            lengths.append(np.linalg.norm((vector - network.vector) @ network.quadratic.factor))
    assert max(lengths) > 5  # F falls by several units: far from quadratic
