"""The audit repeats the refits that are most worth it, whatever their number."""

import numpy as np
import pytest
import scipy
from sklearn.linear_model import Ridge

import leaveout as lo
from leaveout.objectives.batch_functions import function
from leaveout.validation.audit import (
    foremost_by_reason,
    repeat_minimiser,
    step_by_hessian,
    step_by_products,
)


def test_the_foremost_are_those_of_a_full_sort():
    random = np.random.default_rng(0)
    for _ in range(200):
        count, number = int(random.integers(0, 30)), int(random.integers(0, 8))
        move = random.integers(0, 5, count).astype(float)  # with ties
        error = random.choice([0.0, 1.0, 2.0, np.inf, np.nan], count)
        proved = random.random(count) < random.choice([0.0, 0.2, 0.5, 0.9, 1.0])
        refits = np.sort(random.choice(100, count, replace=False))
        longest, largest, chance = foremost_by_reason(refits, move, error, proved, number)
        assert np.array_equal(longest, np.lexsort((-move, proved))[:number])
        assert np.array_equal(largest, np.lexsort((-error, proved))[:number])
        assert len(chance) == len(set(chance)) == min(number, count)


def test_the_random_refits_do_not_depend_on_the_others():
    every, some = np.arange(100), np.arange(0, 100, 2)
    zeros = lambda refits: (
        np.zeros(len(refits)),
        np.zeros(len(refits)),
        np.ones(len(refits), bool),
        50,
    )
    order = every[foremost_by_reason(every, *zeros(every))[2]]
    among = some[foremost_by_reason(some, *zeros(some))[2]]
    assert [refit for refit in order if refit % 2 == 0] == among[: sum(order % 2 == 0)].tolist()


def test_the_audit_of_a_ridge_does_not_depend_on_the_scales_of_columns():
    """Its own rounding error, of columns as given, was above the error of a proved loss and its
    slack.
    """
    for seed in range(20):
        rng = np.random.default_rng(seed)
        Z = rng.standard_normal((16, 5))
        X, y = (
            Z * 10.0 ** np.array([-8, -4, 0, 4, 8]),
            Z @ rng.standard_normal(5) + rng.standard_normal(16),
        )
        fit = lo.from_sklearn(Ridge(1.0, solver="svd").fit(X, y), X, y)
        audit = lo.cross_validate(fit, lo.groups(np.arange(16) % 5)).audit
        assert (audit.difference <= 1e-10 * (1 + audit.exact)).all() and not audit.beyond.any()


@pytest.mark.parametrize("distance", [-1.0, 0.3, 1.0])
def test_a_repetition_ends_where_steps_are_short_not_where_gradients_are(distance):
    """Without the only failure, a weak penalty α alone holds the logit of five successes.

    5 / (1 + exp θ) = α θ then. The gradient is below 1e-8 all around, where one step misses.
    """
    alpha = 1e-9
    X, y = np.ones((6, 1)), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(alpha), intercept=False))
    root = scipy.optimize.brentq(lambda theta: 5 / (1 + np.exp(theta)) - alpha * theta, 10, 30)
    start = fit.quadratic.back(np.array([root + distance]) - fit.vector)
    solution, reached = repeat_minimiser(fit, np.append(np.ones(5), 0.0), start)
    assert reached
    assert fit.quadratic.at(solution)[0] == pytest.approx(root, abs=1e-3)


def test_newton_s_step_is_minus_the_whitened_gradient_where_the_hessian_is_the_fit_s():
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.arange(60) % 3 == 0
    fit = lo.fit(lo.GLM(X[:, [0, 1, 2, 0]], y * 1.0, "logistic"))  # one direction is flat
    F = function(fit.objective, fit.theta)
    gradient = np.arange(1.0, fit.num_params + 1.0)
    steps = [
        step_by_hessian(fit, F.hessian(fit.vector), gradient),
        step_by_products(fit, F.products(fit.vector), gradient, 1e-12),
    ]
    np.testing.assert_allclose(steps, [-gradient, -gradient], rtol=1e-4)
