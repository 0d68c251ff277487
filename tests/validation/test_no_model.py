"""What no model loses, against refits of the intercept by scalar minimisation."""

import copy
import pickle

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import gammaln

import leaveout as lo

rng = np.random.default_rng(0)
N = 60
X, WEIGHT, OFFSET, GROUP = (
    rng.normal(size=(N, 2)),
    rng.gamma(4.0, 0.25, N),
    0.3 * rng.normal(size=N),
    np.arange(N) % 7,
)
LOSSES = {
    "logistic": ((rng.random(N) < 0.4) * 1.0, lambda e, y: np.logaddexp(0, e) - y * e),
    "squared": (X[:, 0] + rng.normal(size=N), lambda e, y: 0.5 * (y - e) ** 2),
    "poisson": (rng.poisson(2.0, N) * 1.0, lambda e, y: np.exp(e) - y * e + gammaln(y + 1)),
    "gamma": (rng.gamma(2.0, 1.0, N), lambda e, y: y * np.exp(-e) + e),
}


@pytest.mark.parametrize(
    "given", [{}, {"sample_weight": WEIGHT}, {"offset": OFFSET, "sample_weight": WEIGHT}], ids=str
)
@pytest.mark.parametrize("name", LOSSES)
def test_the_intercept_is_refitted_without_the_same_folds(name, given):
    (y, loss), plan = LOSSES[name], lo.groups(GROUP)
    weight, offset = given.get("sample_weight", np.ones(N)), given.get("offset", np.zeros(N))
    held = np.empty(N)
    for group in range(7):
        seen = weight * (group != GROUP)
        found = minimize_scalar(
            lambda b, w=seen: w @ loss(b + offset, y),
            bounds=(-9, 9),
            method="bounded",
            options={"xatol": 1e-10},
        )
        held[group == GROUP] = loss(found.x + offset, y)[group == GROUP]
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, name, **given)), plan)
    want = np.average(held, weights=weight)
    np.testing.assert_allclose(cv.no_model, want, rtol=1e-7)
    if name == "gamma":  # a density has no zero from which a share is counted
        assert np.isnan(cv.explained)
        return
    np.testing.assert_allclose(cv.explained, 1 - cv.mean / want, rtol=1e-6, atol=1e-9)
    table = cv.summary().value
    assert (
        f"no model        {cv.no_model:.6g}; share explained" in str(cv)
        and table["no model, mean"] == cv.no_model
    )
    for kept in (pickle.loads(pickle.dumps(cv)), cv.without_data(), copy.copy(cv)):
        assert kept.no_model == cv.no_model


def test_cox_models_without_coefficients_and_models_without_a_null():
    time, event = rng.exponential(size=N), (np.arange(N) % 3 > 0) * 1.0
    partial = lambda seen: sum(
        np.log(np.sum(seen & (time >= time[k]))) for k in np.flatnonzero(seen & (event > 0))
    )
    whole = partial(np.ones(N, bool))
    cv = lo.cross_validate(lo.fit(lo.Cox(X, time, event)), lo.leave_one_out())
    np.testing.assert_allclose(
        cv.no_model, np.mean([whole - partial(np.arange(N) != k) for k in range(N)]), rtol=1e-8
    )
    hidden = lo.cross_validate(
        lo.fit(lo.Objective(lambda t, w: w @ (X[:, 0] - t["m"]) ** 2, N), {"m": 0.0}), 5
    )
    assert np.isnan(hidden.no_model) and "no model" not in str(hidden)
    own = lo.cross_validate(
        lo.fit(lo.GLM(X, LOSSES["squared"][0], "squared")), 5, evaluate="absolute_error"
    )
    assert np.isfinite(own.no_model) and own.no_model > own.mean


@pytest.mark.filterwarnings("ignore:compare")
def test_comparisons_say_what_no_model_loses():
    y, plan = LOSSES["squared"][0], lo.leave_one_out(N)
    cv = {
        name: lo.cross_validate(lo.fit(lo.GLM(x, y, "squared")), plan)
        for name, x in {"both": X, "noise": X[:, 1:]}.items()
    }
    table = lo.compare(cv)
    without = (y - (y.sum() - y) / (N - 1)) ** 2 / 2
    np.testing.assert_allclose(table["no_model"], without.mean(), rtol=1e-12)
    np.testing.assert_allclose(table["explained"], 1 - table["mean"] / without.mean(), rtol=1e-9)
    assert f"no model loses {without.mean():.6g}" in str(table)
