"""Several starts, the minima that they lead to, and refits compared at each of them."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import leaveout as lo
from tests.helpers import toy_hmm

GROUPS = np.r_[np.repeat([0, 1, 2], 10), np.repeat([3, 4, 5], 8)]


def student(theta, x):
    return 2 * jnp.log1p((x - theta["location"]) ** 2 / 3)


def clusters() -> np.ndarray:
    """Thirty numbers around −6 and 24 around 6.

    Without ten of the first, those around 6 are more.
    """
    rng = np.random.default_rng(0)
    return np.r_[rng.standard_t(3, 30) - 6, rng.standard_t(3, 24) + 6]


def two_clusters() -> lo.Separable:
    return lo.Separable(student, clusters(), theta0={"location": np.zeros(())})


def lowest(x: np.ndarray) -> float:
    """The lowest minimiser, by a grid."""
    F = lambda at: np.sum(2 * np.log1p((x - at) ** 2 / 3))
    best = min(np.linspace(-9, 9, 181), key=F)
    return scipy.optimize.minimize_scalar(F, (best - 0.1, best, best + 0.1), tol=1e-12).x


def test_both_locations_of_two_clusters_are_found():
    fit = lo.fit(two_clusters())
    assert len(fit.minima.value) == 2 and fit.minima.reached.sum() == fit.minima.starts == 4
    assert (
        fit.minima.value[0] == pytest.approx(float(fit.value))
        and fit.minima.value[1] > fit.minima.value[0] + 10
    )
    np.testing.assert_allclose(fit.minima.theta[0, 0], lowest(clusters()), atol=1e-6)
    assert "1 other minimum" in repr(fit)
    far = lo.fit(
        lo.Objective(lambda theta, w: w @ student(theta, clusters()), 54),
        {"location": np.array(1.0)},
    )
    np.testing.assert_allclose(
        np.sort(far.minima.theta[:, 0]), np.sort(fit.minima.theta[:, 0]), atol=1e-6
    )


def test_the_basin_of_theta0_is_kept_where_one_start_is_asked_for():
    fit = lo.fit(two_clusters(), {"location": np.array(5.0)}, num_starts=1)
    assert float(fit.parameters["location"]) > 5 and len(fit.minima.value) == 1
    assert lo.cross_validate(fit, lo.groups(GROUPS)).elsewhere is None
    assert float(lo.fit(two_clusters(), {"location": np.array(5.0)}).parameters["location"]) < -5


@pytest.mark.parametrize("refit", [lo.Certified(), lo.Exact(), lo.NoUpdate()], ids=str)
def test_refits_with_a_lower_minimum_elsewhere_are_named(refit):
    x, fit = clusters(), lo.fit(two_clusters())
    cv = lo.cross_validate(fit, lo.groups(GROUPS), strategy=refit)
    there = np.array([lowest(x[k != GROUPS]) for k in range(6)])
    assert ((there > 0) == (cv.result == lo.RESULTS.other_minimum)).all() and (there > 0).sum() == 3
    assert np.isfinite(cv.losses[cv.plan.held]).all() and set(np.flatnonzero(there > 0)) <= set(
        cv.flagged()
    )
    expected = student({"location": there[GROUPS]}, x)
    at = np.isin(GROUPS[cv.plan.index], np.flatnonzero(there > 0))
    np.testing.assert_allclose(cv.elsewhere[at], expected[cv.plan.index[at]], rtol=1e-4)
    assert np.isnan(cv.elsewhere[~at]).all()
    with_these = np.where(
        np.isin(GROUPS, np.flatnonzero(there > 0)), expected, cv.per_unit()
    ).mean()
    said = dict(cv._lines())["other minimum"]
    assert said.startswith("3 of 6 refits") and float(said.split()[-4]) == pytest.approx(
        with_these, rel=1e-4
    )


def test_joint_losses_and_those_of_a_users_function_are_compared_too():
    x = clusters()
    joint = lo.fit(
        lo.Objective(lambda theta, w: w @ student(theta, x), 54), {"location": np.array(1.0)}
    )
    pointwise = lo.cross_validate(lo.fit(two_clusters()), lo.groups(GROUPS), strategy=lo.Exact())
    cv = lo.cross_validate(joint, lo.groups(GROUPS), strategy=lo.Exact())
    summed = np.add.reduceat(pointwise.elsewhere, cv.plan.indptr[:-1])
    np.testing.assert_allclose(cv.elsewhere, summed, rtol=1e-6)
    own = lambda held, seen, theta: student(theta, x[held])
    evaluated = lo.cross_validate(
        lo.fit(two_clusters()), lo.groups(GROUPS), strategy=lo.Exact(), evaluate=own
    )
    np.testing.assert_allclose(evaluated.elsewhere, pointwise.elsewhere, rtol=1e-6)


def test_none_is_compared_where_there_is_one_minimum():
    X = np.random.default_rng(0).standard_normal((40, 2))
    ridge = lo.fit(lo.GLM(X, X[:, 0], "squared"))
    assert len(ridge.minima.value) == 1 and ridge.minima.starts == 1
    cv = lo.cross_validate(ridge, lo.leave_one_out())
    assert cv.elsewhere is None and "other minimum" not in str(cv)


def test_lower_minima_are_not_claimed_of_refits_that_are_the_lowest():
    fit = lo.fit(two_clusters())
    cv = lo.cross_validate(fit, lo.leave_one_out())
    assert (cv.result == lo.RESULTS.successful).all() and np.isnan(cv.elsewhere).all()
    assert dict(cv._lines())["other minimum"] == "none of 54 refits have a lower one elsewhere"


def test_starts_do_not_depend_on_the_number_of_threads(monkeypatch):
    fits = []
    for cores in (1, 3):
        monkeypatch.setattr("joblib.cpu_count", lambda cores=cores: cores)
        fits.append(lo.fit(toy_hmm(), num_starts=3))
    for part in ("value", "theta", "reached"):
        np.testing.assert_array_equal(*(getattr(fit.minima, part) for fit in fits))


def test_regressions_that_are_not_convex_have_several_starts():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 2)) * [1.0, 1e3]
    cauchit = lo.fit(lo.GLM(X, (rng.random(80) < 0.5) * 1.0, lo.losses.Binomial("cauchit")))
    counts = lo.fit(lo.Regression(X, rng.poisson(3, 80), "gaussian"))
    for fit in (cauchit, counts):
        assert fit.minima.starts == 4 and fit.minima.reached[0] >= 3 and fit.decrement < 1e-6


def test_one_that_ran_away_does_not_take_the_others_minimum():
    """F falls for ever on the right of a bump, and has a minimum on the left."""
    x = np.linspace(-1, 1, 30)
    unit = lambda theta, x: (
        jnp.where(theta["a"] < 1, 0.5 * (theta["a"] + 1) ** 2 - 2, -jnp.log1p(theta["a"] ** 2))
        + 0 * x
    )
    with pytest.warns(UserWarning, match="the lowest minimum of the others is taken"):
        fit = lo.fit(
            lo.Separable(unit, x, theta0={"a": np.array(3.0)}), {"a": np.array(-0.5)}, num_starts=8
        )
    assert float(fit.parameters["a"]) == pytest.approx(-1.0)


def test_several_states_are_one_minimum_in_whatever_order():
    fit = lo.fit(toy_hmm(), num_starts=2)
    assert fit.minima.theta.shape[1] == fit.num_params and len(fit.minima.value) == len(
        fit.minima.reached
    )
    hmm = lo.HMM(
        np.random.default_rng(0).poisson(np.repeat([2.0, 9.0], 40)).astype(float),
        lo.emissions.Poisson(),
        2,
    )
    found = lo.fit(hmm, num_starts=3).minima
    assert found.reached.sum() <= found.starts == 3 and np.all(np.diff(found.value) > 1e-6)


def test_numbers_of_starts_are_checked():
    with pytest.raises(ValueError, match="num_starts must be a whole number of 1 or more"):
        lo.fit(two_clusters(), num_starts=0)
