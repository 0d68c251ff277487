"""The certificate is honest, on problems built to break it."""

import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.model_selection import KFold

import leaveout as lo
from tests.helpers import OBJECTIVES, fitted
from tests.problems import certificate
from tests.problems.kinds import KINDS

QUICK = ("logistic", "two functions")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in OBJECTIVES]
)
def test_reported_errors_hold(name):
    fit = fitted(name)
    n = fit.objective.num_units
    plan = lo.from_splits(
        [*KFold(n).split(np.zeros(n)), *KFold(6, shuffle=True, random_state=0).split(np.zeros(n))],
        n,
    )
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12))
    for refit in (lo.Certified(), lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.NoUpdate()):
        cv = lo.cross_validate(fit, plan, strategy=refit)
        difference = cv.losses - exact.losses
        true = np.abs(difference if cv.joint else np.bincount(plan.refit, difference))
        assert np.mean(true > cv.error + 1e-10) <= 0.02, refit
        assert np.all(true <= 1.5 * cv.error + 1e-10), refit


@pytest.mark.parametrize(
    "name", ["logistic", pytest.param("hidden Markov", marks=pytest.mark.slow)]
)
def test_what_no_update_reports_is_no_multiple_of_its_error(name):
    fit = fitted(name)
    plan = lo.leave_one_out(fit.objective.num_units)
    exact, cv = (
        lo.cross_validate(fit, plan, strategy=refit) for refit in (lo.Exact(1e-12), lo.NoUpdate())
    )
    ratio = cv.error / np.abs(cv.losses - exact.losses)
    assert np.median(ratio) < 1.5 and np.mean(ratio < 0.99) <= 0.02


@pytest.mark.slow
def test_the_tolerance_is_kept():
    for name in ("logistic", "multinomial", "hidden Markov"):
        fit = fitted(name)
        plan = lo.kfold(fit.objective.num_units, 5, rng=1)
        exact = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-12))
        for rtol in (1.0, 0.1, 0.001):
            cv = lo.cross_validate(fit, plan, strategy=lo.Certified(rtol))
            assert abs(cv.mean - exact.mean) <= rtol * cv.scale


def test_one_step_is_alo():
    """Leave-one-out by one Newton step against the closed form η + h r / (1 − h ℓ″)."""
    fit = fitted("logistic")
    X, y = np.asarray(fit.objective.design), np.asarray(fit.objective.y)
    eta = X @ np.asarray(fit.theta)
    mu = 1 / (1 + np.exp(-eta))
    h = np.einsum("np,pq,nq->n", X, np.linalg.inv(fit.hessian), X)
    got = lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.NewtonStep(), kind="link")
    np.testing.assert_allclose(got, eta + h * (mu - y) / (1 - h * mu * (1 - mu)), rtol=1e-9)
    np.testing.assert_allclose(lo.diagnostics.leverage(fit), h * mu * (1 - mu), rtol=1e-9)


@pytest.mark.slow
def test_a_step_past_the_minimiser_comes_back():
    """A fold with almost all of a coefficient's information.

    The chord would stall, its own Hessian does not.
    """
    rng = np.random.default_rng(0)
    rare = np.r_[np.ones(24), np.zeros(175), 1.0]
    X = np.c_[rng.standard_normal((200, 3)), rare]
    y = (rng.random(200) < 1 / (1 + np.exp(-X[:, 0] - rare))).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.05)))
    plan = lo.groups(np.r_[np.zeros(24), 1 + np.arange(176) % 8])
    exact, cv = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10)), lo.cross_validate(fit, plan)
    alone = lo.fit(lo.GLM(X[24:], y[24:], "logistic", lo.penalties.Ridge(0.05))).parameters
    np.testing.assert_allclose(
        lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"][0], alone["coef"], atol=1e-7
    )
    true = np.bincount(plan.refit, np.abs(cv.losses - exact.losses))
    assert np.all(true <= cv.error)


@pytest.mark.slow
def test_a_fold_that_matters_much_in_a_model_of_many_parameters():
    """No Hessian of its own, where that costs many gradients.

    A quasi-Newton method finds the same minimiser.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 40))
    X[:60, :8] *= 4.0  # the first fold holds most of what is known of eight coefficients
    y = (rng.random(160) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    unit_loss = lambda theta, datum: (
        jnp.logaddexp(0.0, datum[0] @ theta) - datum[1] * (datum[0] @ theta)
    )
    separable = lo.Separable(
        unit_loss, (X, y), penalty=lambda theta: 0.5 * theta @ theta, theta0=np.zeros(40)
    )
    plan = lo.groups(np.r_[np.zeros(60), 1 + np.arange(100) % 4])
    wanted = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0), intercept=False))
    fit = lo.fit(separable)
    truth = lo.cross_validate(wanted, plan, strategy=lo.Exact(1e-10))
    for refit, tolerance in ((lo.Exact(), 1e-7), (lo.Certified(), None)):
        cv = lo.cross_validate(fit, plan, strategy=refit)
        assert np.all(cv.result == lo.RESULTS.successful)
        error = np.abs(np.bincount(plan.refit, cv.losses - truth.losses))
        assert np.all(error <= (cv.error if tolerance is None else tolerance) + 1e-9)


def test_a_step_over_a_hill_is_not_gone_on_from():
    """Two valleys, the lower one beyond the hill that the anchor's step crosses.

    Refits are where descent from θ̂ leads.
    """
    num, depth, start = 40, 10.0, 2.0
    valleys = lambda x: (x + 3) ** 2 / 2 - depth * jnp.exp(-((x - 1) ** 2) / 2)  # at 0.62 and at -3
    slope = lambda x: x + 3 + depth * (x - 1) * np.exp(-((x - 1) ** 2) / 2)
    push = slope(start)

    def losses(theta):
        others = jnp.zeros(num).at[1:].set((theta[1:] - 1) ** 2 / 2)
        return others + jnp.zeros(num).at[0].set(-push * theta[0])

    objective = lo.Objective(
        lambda theta, w: w @ losses(theta) + valleys(theta[0]) + jnp.sum(theta[1:] ** 2) / 2,
        num,
        lambda theta, w, index: losses(theta)[index] + jnp.sum(theta),
    )
    fit = lo.fit(objective, theta0=np.full(num, start), num_starts=1)
    assert fit.parameters[0] == pytest.approx(start)
    plan = lo.leave_one_out(num)
    valley = scipy.optimize.brentq(slope, 0.0, 1.0)
    for refit in (lo.Certified(), lo.Exact()):
        reached = lo.fold_parameters(fit, plan, strategy=refit)
        assert reached[0, 0] == pytest.approx(valley, abs=1e-4), refit
        cv = lo.cross_validate(fit, plan, strategy=refit)
        truth = -push * valley + valley + (num - 1) / 2
        assert abs(cv.losses[0] - truth) <= cv.error[0] + 1e-9, refit
        assert not len(cv.flagged())


def test_the_study_of_a_simple_kind():
    (folds,) = certificate.study(["logistic"], 3, True, {"default": lo.Certified()})[
        "default"
    ].values()
    row = certificate.summary(folds)
    assert (
        row["folds"] == 4 * 126
        and not row["beyond, proved"] + row["beyond, estimated"] + row["missed"] + row["no answer"]
    )


def test_the_study_sees_what_is_wrong():
    """Errors a thousand times too small, and then losses that are off, are found."""
    problem = KINDS["logistic"].make(np.random.default_rng(0))
    plan = problem.plans[1]
    known, cv = (
        certificate.truth(problem, plan),
        lo.cross_validate(problem.fit, plan, strategy=lo.NewtonStep()),
    )
    bold = replace(cv, error=cv.error / 1000, proved=np.zeros(6, bool))
    folds = certificate.compared(bold, known, plan)
    assert certificate.summary(folds)["beyond, estimated"] == 6
    claimed = certificate.summary(folds._replace(proved=np.ones(6, bool)))
    assert claimed["beyond, proved"] == claimed["proved"] == 6 and not claimed["beyond, estimated"]
    wrong = replace(cv, losses=cv.losses + 1.0, error=cv.error / 1000)
    assert certificate.summary(certificate.compared(wrong, known, plan))["missed"] == 6
    assert certificate.summary(certificate.compared(None, known, plan))["no answer"] == 6


@pytest.mark.slow
def test_the_study():
    """What is demanded of the certificate, on a few problems of each kind but the largest."""
    names = [name for name in KINDS if name != certificate.LARGEST]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = certificate.study(names, 1, True, {"default": lo.Certified()})["default"]
    unmet = [f"{asked}: {got}" for asked, got, fine in certificate.demands(found) if not fine]
    assert not unmet, "\n".join(unmet)
