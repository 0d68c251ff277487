"""Predictions over resamples, by refits from scratch."""

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import leaveout as lo
from leaveout.validation import batches

rng = np.random.default_rng(0)
X = rng.normal(size=(100, 2))
Y = (rng.random(100) < expit(X @ [1.0, -0.5])) * 1.0
PLAN = lo.bootstrap(100, 6)


def test_refits_from_scratch():
    data = pd.DataFrame(X, index=[f"p{k}" for k in range(100)])
    fit = lo.fit(lo.GLM(data, pd.Series(Y, data.index), "logistic"))
    found = lo.clinical.stability(fit, plan=PLAN, level=0.8)
    each = []
    for w in PLAN.matrix():
        rows = np.repeat(np.arange(100), w.astype(int))
        each.append(lo.predict(lo.fit(lo.GLM(X[rows], Y[rows], "logistic")), X).to_numpy())
    np.testing.assert_allclose(found.predictions, each, rtol=1e-6)
    own = lo.predict(fit, data).to_numpy()
    np.testing.assert_allclose(found.units["mape"], np.abs(np.array(each) - own).mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.units["low"], np.quantile(each, 0.1, axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        found.reclassified(0.5), ((np.array(each) >= 0.5) != (own >= 0.5)).mean(0)
    )
    assert (
        found.units.index[3] == "p3" and found.table.loc["mape", "max"] == found.units["mape"].max()
    )


def test_survival_and_resamples_without_a_refit():
    time = rng.exponential(np.exp(-X[:, 0]))
    cox = lo.fit(lo.Cox(X, time, np.ones(100)))
    found = lo.clinical.stability(cox, plan=PLAN, time=0.5)
    w = PLAN.matrix()[0]
    rows = np.repeat(np.arange(100), w.astype(int))
    eta = X @ lo.fit(lo.Cox(X[rows], time[rows], np.ones(100), ties="efron")).parameters["coef"]
    steps = 0.0
    # a unit that is drawn twice dies twice at one time: Efron's ties
    for t in np.unique(time[rows][time[rows] <= 0.5]):
        risk, dying = w[time >= t] @ np.exp(eta[time >= t]), w[time == t] @ np.exp(eta[time == t])
        count = int(w[time == t].sum())
        steps += sum(1 / (risk - k / count * dying) for k in range(count))
    np.testing.assert_allclose(found.predictions[0], 1 - np.exp(-steps * np.exp(eta)), rtol=1e-6)
    rare = np.column_stack([X[:, 0], np.arange(100) < 2])
    part = lo.clinical.stability(
        lo.fit(lo.GLM(rare, np.r_[0, 1, Y[2:]], "logistic")), num_resamples=20
    )
    assert len(part.predictions) < 20 and "no refit" in str(part)


def test_numbers_come_back_from_other_processes(monkeypatch):
    """A worker gets a copy of the function: what it writes elsewhere is lost."""
    fit, steps = lo.fit(lo.GLM(X, Y, "logistic")), batches.steps
    sent = lambda make, *more: steps(cloudpickle.loads(cloudpickle.dumps(make)), *more)
    calls = {
        "stability": lambda: lo.clinical.stability(fit, plan=PLAN).predictions,
        "calibration": lambda: lo.clinical.calibration(fit, plan=PLAN).curve,
        "held out": lambda: lo.clinical.decision_curve(lo.cross_validate(fit, 5)).table,
        "centres": lambda: lo.clinical.internal_external(fit, np.arange(100) % 4).centres.iloc[
            :, :-1
        ],
        "validate": lambda: lo.clinical.validate(fit, plan=PLAN, num_curves=0).table,
    }
    here = {name: call() for name, call in calls.items()}
    monkeypatch.setattr(batches, "steps", sent)
    for name, call in calls.items():
        np.testing.assert_array_equal(call(), here[name], err_msg=name)


def test_wrong_input():
    fit = lo.fit(lo.GLM(X, Y, "logistic"))
    with pytest.raises(ValueError, match="stability: a plan has its own"):
        lo.clinical.stability(fit, num_resamples=10, plan=PLAN)
    with pytest.raises(ValueError, match="level must lie"):
        lo.clinical.stability(fit, num_resamples=10, level=95)
