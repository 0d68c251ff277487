"""Refits of Cox models under l1 penalties and bounds.

The conditions of a minimum, by differences of the likelihood itself.
"""

import numpy as np
import pytest
from sklearn.linear_model import Lasso

import leaveout as lo
from tests.oracles import likelihoods

P = lo.penalties


def problem(
    seed: int,
    n: int = 40,
    rounded: bool = False,
    strata: bool = False,
    weighted: bool = False,
    late: bool = False,
):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)) + 0.5
    died, left = (
        rng.exponential(np.exp(-X[:, :3] @ np.array([0.8, -0.5, 0.3]))),
        rng.exponential(2, n),
    )
    time = np.ceil(6 * np.minimum(died, left)) if rounded else np.minimum(died, left)
    more = {"strata": rng.integers(0, 2, n)} if strata else {}
    more |= {"sample_weight": rng.uniform(0.3, 3, n)} if weighted else {}
    more |= {"entry": time * rng.uniform(-0.5, 0.9, n)} if late else {}
    return X, time, (died <= left).astype(float), more


def gradient(function, at, h: float = 1e-5):
    ends = [[function(at + k * h * unit) for k in (-2, -1, 1, 2)] for unit in np.eye(len(at))]
    return np.array(ends) @ np.array([1, -8, 8, -1]) / (12 * h)


def violation(theta, slope, penalty, kappa):
    """Largest violation of the conditions of Karush, Kuhn and Tucker."""
    inner = penalty.penalty if isinstance(penalty, P.PerWeight) else penalty
    a, (low, _) = kappa * inner.kinks(len(theta)), inner.bounds(len(theta))
    slope = slope + kappa * np.diag(inner.second(len(theta))) * theta
    beyond = np.where(
        (theta == 0) & (a > 0), np.maximum(np.abs(slope) - a, 0), np.abs(slope + a * np.sign(theta))
    )
    return np.where(theta == low, np.maximum(-slope, 0), beyond).max()


@pytest.mark.parametrize(
    ("penalty", "kind"),
    [
        (P.Lasso(2.0), {"rounded": True, "strata": True}),
        (P.ElasticNet(3.0, 0.6), {"weighted": True, "late": True}),
        (P.per_weight(P.ElasticNet(0.08, 0.7)), {}),
        (P.per_row(P.Lasso(0.08)), {"weighted": True}),
        (P.Box() + P.Ridge(0.3), {"rounded": True}),
        (P.Lasso([0.0, 2.0, 2.0, 2.0, 2.0, 2.0]), {}),
    ],
)
@pytest.mark.slow_for("penalty3-kind3", "penalty5-kind5")
def test_refits_are_minima_over_all_coefficients(penalty, kind):
    X, time, event, more = problem(len(kind), **kind)
    n, s = len(X), more.get("sample_weight", np.ones(len(X)))
    fit, active = lo.fit(lo.Cox(X, time, event, penalty, **more)), set()
    for plan in (lo.leave_one_out(n), lo.kfold(n, 8, rng=0)):
        exact, certified, *others = (
            lo.cross_validate(fit, plan, strategy=strategy, audit=0)
            for strategy in (
                lo.Exact(1e-10),
                lo.Certified(),
                lo.NoUpdate(),
                lo.NewtonStep(),
                lo.InfinitesimalJackknife(),
            )
        )
        for loss, theta, w in zip(
            exact.losses,
            lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"],
            plan.matrix(),
            strict=True,
        ):
            own = lambda at, keep=w: likelihoods.partial_likelihood(
                at, keep > 0, X, time, event, **more
            )
            kappa = float(penalty.times(w, w * s))
            assert violation(theta, gradient(own, theta), penalty, kappa) < 1e-7
            assert abs(loss - (own(theta, np.ones(n)) - own(theta))) < 1e-9
            active.add(tuple(theta != 0))
        for found in (certified, *others):
            assert (np.abs(found.losses - exact.losses) <= found.error + 1e-9).all()
        assert certified.error.max() < 0.05 and "estimated" in repr(certified)
    assert len(active) > 1  # coefficients are let go, and held


def test_verbs_of_a_cox_lasso():
    X, time, event, _ = problem(3, 60)
    model, plan = lo.Cox(X, time, event, P.Lasso(13.0)), lo.kfold(60, 6, rng=0)
    fit = lo.fit(model)
    assert (
        0 < np.count_nonzero(fit.parameters["coef"]) < 6
        and "penalised coefficients are not zero" in fit.objective.note
    )
    np.testing.assert_allclose(lo.predict(fit, X), np.exp(X @ fit.parameters["coef"]))
    coef, held = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["coef"], plan.matrix() == 0
    predicted = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-10), kind="link")
    np.testing.assert_allclose(predicted, np.einsum("np,np->n", X, coef[held.argmax(0)]), atol=1e-7)
    path = lo.path(model, [6.0, 13.0], plan)
    assert abs(path.table().iloc[1]["mean"] - lo.cross_validate(fit, plan).mean) < 1e-2
    assert lo.anchor(model, fit.parameters).decrement < 1e-6
    assert lo.cross_validate(fit, plan).audit["beyond"].sum() == 0
    for error, message, call in (
        (
            TypeError,
            "GroupLasso is for lo.GLM",
            lambda: lo.fit(model.under(P.GroupLasso(1.0, np.arange(6) // 2))),
        ),
        (
            TypeError,
            "or lo.path",
            lambda: lo.tune(lambda a: model.under(P.Lasso(a)), {"a": (5.0, 20.0)}, plan),
        ),
        (ValueError, "nothing is left to refit", lambda: lo.fit(model.under(P.Lasso(1e6)))),
        (
            TypeError,
            "not there for an l1 penalty",
            lambda: lo.influence(lo.cross_validate(fit, plan)),
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_a_penalty_that_grows_with_the_rows_has_no_part_in_their_loss():
    X, time, event, _ = problem(5)
    models = [lo.Cox(X, time, event, penalty) for penalty in (P.per_row(P.Ridge(0.1)), None)]
    theta, keep = np.full((1, 6), 0.2), np.ones((1, 40))
    keep[0, 7] = 0.0
    losses = [model.losses(theta, keep, np.array([[7]]), np.array([[True]]))[0] for model in models]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("strategy", [lo.Certified(), lo.Exact()])
def test_a_refit_without_active_coefficients(strategy):
    """Under a penalty that holds all but two, five of ten refits hold all of them."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((90, 10))
    y = X[:, :5].sum(1) + rng.standard_normal(90)
    alpha = 3 * np.sqrt(180 * np.log(10))
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Lasso(alpha), intercept=False))
    plan = lo.kfold(90, k=10)
    estimate = lo.cross_validate(fit, plan, strategy=strategy, metric="mse")
    theta = lo.fold_parameters(fit, plan, strategy=strategy)["coef"]
    fold = np.empty(90, int)
    fold[plan.index] = plan.refit
    for k in range(10):
        host = Lasso(alpha / (fold != k).sum(), fit_intercept=False, tol=1e-13, max_iter=100_000)
        want = host.fit(X[fold != k], y[fold != k]).coef_
        np.testing.assert_allclose(theta[k], want, atol=1e-9)
        unit = plan.index[plan.refit == k]
        losses = estimate.losses[plan.refit == k]
        np.testing.assert_allclose(losses, (y[unit] - X[unit] @ want) ** 2 / 2, atol=1e-9)
    assert (theta == 0).all(1).sum() == 5
    assert np.isfinite(estimate.error).all() and np.isfinite(estimate.metrics.error["mse"])
