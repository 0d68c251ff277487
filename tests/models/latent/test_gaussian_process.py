"""Gaussian processes against scikit-learn's likelihood, and multivariate normal densities."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

import leaveout as lo


def data(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, 1 + np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(n)


def theirs(kernel, sd, length, noise):
    own = (
        kernels.RBF(length)
        if kernel == "rbf"
        else kernels.Matern(length, nu={"1": 0.5, "3": 1.5, "5": 2.5}[kernel[-2]])
    )
    return kernels.ConstantKernel(sd**2) * own + kernels.WhiteKernel(noise**2)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("ard", [False, True])
def test_likelihood_and_gradient(kernel, ard):
    X, y = data(25)
    model = lo.GaussianProcess(X, y, kernel=kernel, ard=ard, prior=None)
    theta = np.array([0.8, 0.2, *([0.1, 0.6] if ard else [0.3]), -1.2])
    known = model.parameters.natural(theta)
    host = GaussianProcessRegressor(
        theirs(kernel, known["sd"], known["length"], known["noise_sd"]), optimizer=None
    )
    host.fit(X, y - 0.8)
    assert model.loss(theta, np.ones(25)) == pytest.approx(
        -host.log_marginal_likelihood_value_, rel=1e-9
    )
    np.testing.assert_allclose(model.parameters.unconstrained(known), theta, atol=1e-12)
    w = np.random.default_rng(1).uniform(0, 2, 25)
    w[3] = 0
    for of in (model, lo.GaussianProcess(X, y, kernel=kernel, ard=ard)):
        slope = of.look(theta[None], w[None])[1][0]
        ends = [
            [of.loss(theta + sign * step, w) for sign in (1, -1)]
            for step in 1e-5 * np.eye(len(theta))
        ]
        np.testing.assert_allclose(slope, [(up - down) / 2e-5 for up, down in ends], atol=1e-6)
    few = lo.GaussianProcess(
        np.delete(X, 3, 0), np.delete(y, 3), kernel=kernel, ard=ard, prior=None
    )
    w = np.where(np.arange(25) == 3, 0.0, 1.0)
    # weight zero is deletion
    assert model.loss(theta, w) == pytest.approx(few.loss(theta, np.ones(24)), rel=1e-10)
    given = lo.developer.models.AbstractClosedForm.jacobian(model, theta)
    np.testing.assert_allclose(model.jacobian(theta), given, atol=2e-5)


@pytest.mark.parametrize("ard", [False, True])
def test_values_of_sets_of_rows(ard):
    X, y = data(12)
    model = lo.GaussianProcess(X, y, ard=ard, prior=None)
    theta = np.array([0.8, 0.2, *([0.1, 0.6] if ard else [0.3]), -1.2])
    theta = theta + 0.3 * np.random.default_rng(0).normal(size=(4, len(theta)))
    theta[3, 1] = 900.0
    code = np.arange(12) % 5
    nested = np.stack([np.ones(12), code != 2, (code != 2) & (code != 4), code > 9])
    apart = np.concatenate([np.ones((1, 12)), 1 - np.eye(12), code != np.arange(5)[:, None]])
    for sets in (nested, apart, apart[1:2], 0.5 * apart):
        found = model.values(theta, sets)
        assert np.isinf(found[3, sets.any(1)]).all()
        for one, values in zip(theta[:3], found, strict=False):
            known = model.parameters.natural(one)
            K = theirs("matern52", known["sd"], known["length"], known["noise_sd"])(X)
            for weight, value in zip(sets, values, strict=True):
                some = weight > 0
                if weight.max() < 1:
                    assert value == pytest.approx(
                        model.look(one[None], weight[None])[0][0], rel=1e-12
                    )
                elif some.any():
                    own = multivariate_normal(np.full(some.sum(), one[0]), K[np.ix_(some, some)])
                    assert value == pytest.approx(-own.logpdf(y[some]), abs=1e-9)
                else:
                    assert value == 0


def test_refits_and_scores():
    X, y = data()
    model = lo.GaussianProcess(X, y, kernel="matern32")
    fit, n = lo.fit(model, num_starts=1), len(y)
    plan = lo.leave_one_out(n)
    certified, exact = (
        lo.cross_validate(fit, plan, strategy=refit, audit=0)
        for refit in (lo.Certified(), lo.Exact())
    )
    assert (np.abs(certified.losses - exact.losses) <= certified.error + 1e-9).all()
    parameters = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    rest = np.arange(1, n)
    again = lo.fit(lo.GaussianProcess(X[1:], y[1:], kernel="matern32", prior=None), num_starts=1)
    # without a prior, whose scale is that of the rows, there is a minimum too
    assert again.parameters["sd"] > 0
    sd, length, noise, mean = (
        float(parameters[name][0]) for name in ("sd", "length", "noise_sd", "mean")
    )
    K = theirs("matern32", sd, length, noise)(X)
    joint = multivariate_normal(np.full(n, mean), K).logpdf(y)
    marginal = multivariate_normal(np.full(n - 1, mean), K[np.ix_(rest, rest)]).logpdf(y[1:])
    assert exact.losses[0] == pytest.approx(marginal - joint, abs=1e-7)
    told = model.costs.runs(fit.theta, np.arange(n), np.ones(n, int))(fit.vector[None])
    w = 1 - np.eye(n)[:4]
    each = np.repeat(fit.vector[None], 4, 0)
    np.testing.assert_allclose(told[1][0, :4], fit.value - model.look(each, w)[0], atol=1e-8)
    held = model.losses(each, w, np.arange(4)[:, None], np.ones((4, 1), bool))[:, 0]
    np.testing.assert_allclose(told[0][0, :4, 0], held, atol=1e-8)
    predicted = lo.cross_predict(fit, lo.kfold(k=4), strategy=lo.NewtonStep())
    assert np.corrcoef(predicted, y)[0, 1] > 0.8
    groups = lo.diagnostics.auto_groups(fit, 4)
    assert groups.num_refits == n and (groups.index[::4] == np.arange(n)).all()


def test_what_cannot_be_is_said():
    X, y = data(10)
    for message, given, more in (
        ("kernel must be", (X, y), {"kernel": "exp"}),
        ("must be finite", (X, np.where(y == y[0], np.nan, y)), {}),
        ("is constant", (np.c_[X, np.ones(10)], y), {}),
        ("of 3 to", (X[:2], y[:2]), {}),
        ("prior must be", (X, y), {"prior": "flat"}),
    ):
        with pytest.raises(ValueError, match=message):
            lo.GaussianProcess(*given, **more)
    # rows twice: the kernel alone is singular
    model = lo.GaussianProcess(np.r_[X, X], np.r_[y, y + 0.1], kernel="rbf")
    assert np.isfinite(lo.fit(model, num_starts=1).value)
    with pytest.raises(RuntimeError, match="noise goes to zero"):
        lo.fit(lo.GaussianProcess(np.r_[X, X], np.r_[y, y], kernel="rbf"), num_starts=1)
    assert model.look(np.array([[0, 900.0, 0, 0]]), np.ones((1, 20)))[0] == np.inf


def uneven(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((25, 3))
    return X, np.sin(2 * X).sum(1) + 0.3 * rng.standard_normal(25)


def density(theta, X, y):
    mean, (sd, *length, noise) = theta[0], np.exp(theta[1:])
    own = kernels.ConstantKernel(sd**2) * kernels.RBF(length)
    return (
        own,
        noise,
        multivariate_normal(
            np.full(len(y), mean), own(X) + noise**2 * np.eye(len(y)), allow_singular=True
        ),
    )


@pytest.mark.parametrize(("seed", "ends"), [(0, (2, 0)), (6, (2, 2)), (10, (1, 0))])
@pytest.mark.slow_for("10-ends2")
def test_refits_whose_likelihood_is_highest_at_no_noise_or_an_infinite_length_have_the_losses_of_that_limit(
    seed, ends
):
    X, y = uneven(seed)
    fit = lo.fit(lo.GaussianProcess(X, y, kernel="rbf", ard=True, prior=None))
    plan = lo.kfold(25, 5, rng=1)
    cv, refits = lo.cross_validate(fit, plan), lo.fold_parameters(fit, plan)
    at_ends = (refits["noise_sd"] < 1e-6).sum(), (refits["length"] > 1e6).sum()
    assert at_ends == ends and (cv.result == 0).all()
    compared = 0
    for k in range(5):
        held = plan.index[(plan.refit == k) & plan.held]
        rows = np.setdiff1d(np.arange(25), held)
        theta = np.r_[
            refits["mean"][k],
            np.log(np.r_[refits["sd"][k], refits["length"][k], refits["noise_sd"][k]]),
        ]
        minus = lambda t, rows=rows: -density(t, X[rows], y[rows])[2].logpdf(y[rows])
        found = minimize(minus, fit.vector, method="BFGS", options={"gtol": 1e-7})
        if found.fun < minus(theta) - 1e-4:
            continue  # another of several ends
        own, noise, _ = density(found.x, X[rows], y[rows])
        gain = np.linalg.solve(own(X[rows]) + noise**2 * np.eye(len(rows)), own(X[rows], X[held])).T
        means = found.x[0] + gain @ (y[rows] - found.x[0])
        variances = np.diag(own(X[held]) - gain @ own(X[rows], X[held])) + noise**2
        losses = 0.5 * (y[held] - means) ** 2 / variances + 0.5 * np.log(2 * np.pi * variances)
        # BFGS ends before the limit
        np.testing.assert_allclose(cv.per_unit()[held], losses, atol=1e-4, rtol=1e-3)
        compared += 1
    assert compared >= 4


def test_a_length_without_end_is_named():
    X, y = uneven(9)
    with pytest.raises(
        RuntimeError, match=r"length\[1\] grows without end.*Keep the default prior"
    ):
        lo.fit(lo.GaussianProcess(X, y, kernel="rbf", ard=True, prior=None))
    assert np.isfinite(lo.fit(lo.GaussianProcess(X, y, kernel="rbf", ard=True)).value)
