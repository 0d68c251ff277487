"""Strategies of users, which say less of their refits than the library's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import leaveout as lo
from leaveout.models.hidden.hidden_chain import AbstractHiddenChain
from leaveout.refit import RefitBatch


class Host(lo.developer.AbstractRefit):
    """Exact refits of least squares by NumPy, without lengths of steps and without proofs."""

    def __call__(self, fit, rows, *, judge=True):
        model = fit.objective
        design, y = (
            np.column_stack([model.design[:, :2], np.ones(model.num_units)]),
            np.asarray(model.y),
        )
        found = []
        for index, weight in zip(rows.index, rows.weight, strict=True):
            seen = np.setdiff1d(np.arange(len(y)), index[weight == 0])
            found.append(np.linalg.lstsq(design[seen], y[seen], rcond=None)[0])
        theta = np.array(found)
        return RefitBatch(
            lambda: theta, error=np.full(len(theta), 1e-9), result=np.zeros(len(theta), int)
        )


@pytest.mark.parametrize("folds", [30, 5], ids=["single rows", "folds"])
def test_a_strategy_without_lengths_of_steps_is_audited(folds):
    random = np.random.default_rng(0)
    X = random.standard_normal((30, 2))
    fit = lo.fit(lo.GLM(X, X[:, 0] + random.standard_normal(30), "squared"))
    plan = lo.kfold(30, folds, rng=0)
    own, exact = (lo.cross_validate(fit, plan, strategy=refit) for refit in (Host(), lo.Exact()))
    np.testing.assert_allclose(own.losses, exact.losses, atol=1e-9)
    assert own.audit is not None and not own.audit.beyond.any()


@pytest.mark.slow
def test_what_a_fit_says_of_its_states_is_computed_once(monkeypatch):
    random = np.random.default_rng(0)
    fit = lo.fit(
        lo.HMM(random.normal(3.0 * (np.arange(60) // 10 % 2), 1.0), lo.emissions.Gaussian(), 2)
    )
    passes, visits = [], AbstractHiddenChain.visits
    monkeypatch.setattr(
        AbstractHiddenChain, "visits", lambda *args: passes.append(args) or visits(*args)
    )
    for seed in range(2):
        lo.cross_validate(
            fit, lo.random_subsets(60, 0.1, 2, rng=seed), strategy=lo.InfinitesimalJackknife()
        )
    assert len(passes) == 1


@pytest.mark.parametrize("refit", [lo.Certified(), lo.Exact(), lo.NewtonStep()])
def test_cases_are_those_of_the_table_written_out(refit):
    random = np.random.default_rng(5)
    X, times = random.normal(size=(25, 2)), random.integers(0, 5, 25)
    y = X[:, 0] + random.normal(size=25)
    all_X, all_y = np.repeat(X, times, axis=0), np.repeat(y, times)
    for loss in ("squared", "logistic"):
        response = lambda y, loss=loss: y if loss == "squared" else y > 0
        fit = lo.fit(lo.GLM(X, response(y), loss, lo.penalties.Ridge(1.0), sample_weight=times))
        whole = lo.fit(lo.GLM(all_X, response(all_y), loss, lo.penalties.Ridge(1.0)))
        cv = lo.cross_validate(fit, lo.leave_one_out(cases=True), strategy=refit, metric="mse")
        truth = lo.cross_validate(whole, lo.leave_one_out(), strategy=refit, metric="mse")
        off = np.repeat(cv.error, times[times > 0]) + truth.error
        assert np.all(
            np.abs(np.repeat(cv.per_unit().to_numpy(), times) - truth.per_unit()) <= off + 1e-7
        )
        close = 1e-6 if refit == lo.Exact() else 0.01
        interval, true_interval = cv.interval(), truth.interval()
        ours = cv.mean, cv.se, cv.metrics.loc["mse", "standard_error"], interval.low, interval.high
        np.testing.assert_allclose(
            ours,
            (truth.mean, truth.se, truth.metrics.loc["mse", "standard_error"], *true_interval[:2]),
            rtol=close,
        )
        assert "cases independent" in cv.standard_error.kind
        path = lo.path(fit.objective, [1.0], lo.leave_one_out(cases=True), strategy=refit)
        np.testing.assert_allclose(path.estimates[0].mean, cv.mean, rtol=close)


@pytest.mark.parametrize("refit", [lo.NoUpdate, lo.InfinitesimalJackknife])
def test_errors_of_a_sample(refit):
    """The sample's errors are those of all; the others' are not known, nor flagged.

    Losses are the same.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    fit = lo.fit(lo.GLM(X, rng.poisson(np.exp(X[:, 0])), "poisson"))
    plan = lo.leave_one_out(80)
    every, some = (
        lo.cross_validate(fit, plan, strategy=refit()),
        lo.cross_validate(fit, plan, strategy=refit(errors="sampled")),
    )
    asked = refit(errors="sampled").judged(np.arange(80), 80).nonzero()[0]
    assert len(asked) == 30 and np.array_equal(np.flatnonzero(~np.isnan(some.error)), asked)
    np.testing.assert_allclose(some.error[asked], every.error[asked], rtol=1e-6)
    np.testing.assert_allclose(some.losses, every.losses, rtol=1e-12)
    np.testing.assert_allclose(some.approximation_error, some.error[asked].mean())
    assert (
        "errors of 30 of 80 folds, sampled" in str(some)
        and "sampled" not in str(every).split("approximation")[1]
    )
    assert set(some.flagged()) <= set(every.flagged()) and set(some.audit.refit) <= set(asked)
    few = lo.cross_validate(fit, lo.kfold(k=10), strategy=refit(errors="sampled"))
    assert not np.isnan(few.error).any()
    with pytest.raises(ValueError, match="own loss"):
        lo.cross_validate(fit, plan, strategy=refit(errors="sampled"), evaluate="squared_error")
    with pytest.raises(ValueError, match="errors must be"):
        refit(errors="some")


@pytest.mark.parametrize(
    "plan", [lo.leave_one_out(90), lo.kfold(90, 5, rng=0)], ids=["rows", "folds"]
)
def test_predictions_have_a_tolerance_and_errors_of_their_own(plan):
    """One-hot columns without a penalty, whose losses forgive 1e-3 of a probability."""
    rng = np.random.default_rng(1)
    X = np.c_[np.eye(6)[rng.integers(0, 6, 90)], rng.normal(size=(90, 2))]
    y = (rng.random(90) < 0.4) * 1.0
    fit = lo.fit(lo.GLM(X, y, "logistic", intercept=False))
    predicted, error = lo.cross_predict(fit, plan, error=True)
    eta, eta_error = lo.cross_predict(fit, plan, kind="link", error=True)
    for k in range(0, plan.num_refits, 7):
        rows = plan.index[plan.refit == k]
        seen = np.setdiff1d(np.arange(90), rows)
        theta = np.zeros(8)
        for _ in range(60):
            p = 1 / (1 + np.exp(-X[seen] @ theta))
            theta = theta - np.linalg.solve(
                (X[seen].T * (p * (1 - p))) @ X[seen], X[seen].T @ (p - y[seen])
            )
        off = np.abs(eta[rows] - X[rows] @ theta)
        assert off.max() < 1e-6 and (off <= eta_error[rows] + 1e-12).all()
        assert np.all(
            np.abs(predicted[rows] - 1 / (1 + np.exp(-X[rows] @ theta))) <= error[rows] + 1e-12
        )
    coarse, its_error = lo.cross_predict(fit, plan, strategy=lo.NewtonStep(), error=True)
    assert (
        np.all(np.abs(coarse - predicted) <= its_error + error)
        and np.abs(coarse - predicted).max() > 1e-4
    )


def test_what_a_function_does_not_say_is_refused():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), (rng.random(40) < 0.5) * 1.0
    loss = lambda eta, y: jnp.logaddexp(0.0, eta) - y * eta
    fit, plan = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0))), lo.kfold(40, 4, rng=0)
    for call in (lambda: lo.cross_predict(fit, plan), lambda: lo.predict(fit, X[:2])):
        with pytest.raises(
            TypeError, match=r"^GLM: a loss that is a function does not say what the response is"
        ):
            call()
    named = lo.fit(
        lo.GLM(X, y, lo.losses.Custom(loss, mean=jax.nn.sigmoid), lo.penalties.Ridge(1.0))
    )
    known = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    assert np.allclose(lo.cross_predict(named, plan), lo.cross_predict(known, plan), atol=1e-6)
    assert np.allclose(
        lo.cross_predict(fit, plan, kind="link"),
        lo.cross_predict(known, plan, kind="link"),
        atol=1e-5,
    )


def test_losses_called_by_hand_are_in_double_precision():
    rng = np.random.default_rng(0)
    fit = lo.fit(
        lo.GLM(
            rng.normal(size=(40, 2)),
            (rng.random(40) < 0.5) * 1.0,
            "logistic",
            lo.penalties.Ridge(1.0),
        )
    )
    assert abs(
        float(fit.objective.loss(fit.theta, np.ones(40))) - float(fit.value)
    ) < 1e-12 * float(fit.value)


@pytest.mark.parametrize("power", [-200, 200])
def test_columns_whose_squares_float64_cannot_hold_are_named(power):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)) * [1.0, 10.0**power], rng.normal(size=30)
    for form in (np.asarray, scipy.sparse.csr_array):
        with pytest.raises(
            ValueError, match=r"^GLM: 'x1' reaches .*, whose square float64 can hardly hold"
        ):
            lo.GLM(form(X), y, "squared")
    with pytest.raises(ValueError, match=r"^Cox: 'x1' reaches"):
        lo.Cox(X, np.abs(y), np.ones(30))
    with pytest.raises(ValueError, match=r"^GLM: 'y' reaches"):
        lo.GLM(X[:, :1], y * 10.0**power, "squared")
