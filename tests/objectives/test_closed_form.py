"""Objectives whose author gives F and its gradient by NumPy.

The same as by JAX, with nothing compiled.
"""

from typing import ClassVar

import numpy as np
import pytest

import leaveout as lo
from tests.helpers import OBJECTIVES, Moments, fitted, sample_mean

REFITS = (
    lo.NoUpdate(),
    lo.InfinitesimalJackknife(1),
    lo.InfinitesimalJackknife(2),
    lo.NewtonStep(),
    lo.Exact(),
    lo.Certified(),
)


@pytest.mark.parametrize("refit", REFITS, ids=repr)
@pytest.mark.parametrize(
    "plan", [lo.leave_one_out(40), lo.kfold(40, 4, rng=0)], ids=["one", "folds"]
)
def test_refits_are_those_that_jax_derives(refit, plan):
    given, derived = (
        lo.cross_validate(fitted(name), plan, strategy=refit)
        for name in ("closed form", "separable")
    )
    close = dict(rtol=1e-6, atol=1e-8)
    if isinstance(refit, lo.Certified):  # their steps differ
        close["atol"] = np.max(given.error + derived.error)
    np.testing.assert_allclose(given.losses, derived.losses, **close)
    np.testing.assert_allclose(given.result, derived.result)
    if not isinstance(refit, lo.Certified):  # which stops where it is near enough
        parameters = [
            lo.fold_parameters(fitted(name), plan, strategy=refit)
            for name in ("closed form", "separable")
        ]
        for name in parameters[0]:
            np.testing.assert_allclose(parameters[0][name], parameters[1][name], **close)


def test_derivatives_by_differences():
    given, derived = fitted("closed form"), fitted("separable")
    np.testing.assert_allclose(
        given.vector, [float(derived.theta["mean"]), float(derived.theta["log_scale"])], atol=1e-8
    )
    turned = derived.hessian[::-1, ::-1]  # JAX sorts names
    np.testing.assert_allclose(given.hessian, turned, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        given.quadratic.raw(given.quadratic.influence),
        derived.quadratic.raw(derived.quadratic.influence)[:, ::-1],
        rtol=1e-7,
        atol=1e-9,
    )
    assert given.parameters == pytest.approx(
        {"mean": given.vector[0], "log_scale": given.vector[1]}
    )


def test_nothing_is_compiled():
    from tests.test_layout import imported

    code = """
import sys
sys.path.insert(0, ".")
import ast, numpy as np, leaveout as lo
source = next(n for n in ast.parse(open("tests/helpers.py").read()).body if getattr(n, "name", "") == "Moments")
exec(compile(ast.Module([source], []), "helpers", "exec"))
fit = lo.fit(Moments(np.random.default_rng(0).standard_normal(30)))
for refit in (lo.Certified(), lo.InfinitesimalJackknife(2), lo.NewtonStep(), lo.Exact()):
    print(lo.cross_validate(fit, lo.kfold(30, 5), strategy=refit), fit)
"""
    assert imported(code, ("jax",)) == []


class Walled(Moments):
    """No scale below one: F has no value there."""

    def look(self, theta, weights, state=None):
        assert state is None or state.shape == (len(theta), self.num_units)  # a row for each refit
        value, gradient, state = super().look(theta, weights)
        return np.where(theta[:, 1] < 0, np.nan, value), gradient, state


def test_where_there_is_no_value_f_is_infinite():
    fit = lo.fit(Walled(sample_mean().data), num_starts=1, theta0={"mean": 0.0, "log_scale": 3.0})
    np.testing.assert_allclose(fit.vector, fitted("closed form").vector, atol=1e-7)
    assert np.isfinite(lo.cross_validate(fit, lo.leave_one_out()).losses).all()


class Remembered(Moments):
    """The state of an evaluation is its weights."""

    seen: ClassVar = []  # of every evaluation, the state that it got and its weights

    def look(self, theta, weights, state=None):
        if state is not None:
            self.seen.append((state, weights))
        return *super().look(theta, weights)[:2], weights.copy()


@pytest.mark.parametrize("refit", [lo.NewtonStep(), lo.Exact(), lo.Certified()], ids=repr)
def test_each_refit_begins_where_its_own_last_evaluation_ended(refit):
    Remembered.seen.clear()
    lo.cross_validate(lo.fit(Remembered(sample_mean().data)), lo.kfold(k=4), strategy=refit)
    state, weights = (np.concatenate(part) for part in zip(*Remembered.seen, strict=True))
    own = (state == weights).all(axis=1)
    # a refit without an evaluation begins at the fit
    assert (own | (state == 1.0).all(axis=1)).all()
    assert (own & (weights != 1.0).any(axis=1)).any() or isinstance(refit, lo.NewtonStep)


def test_what_a_model_does_not_have_is_said():
    with pytest.raises(NotImplementedError, match="Moments has none"):
        lo.cross_predict(fitted("closed form"), lo.kfold(40, 4))
    assert isinstance(OBJECTIVES["closed form"](), lo.developer.models.AbstractClosedForm)


def test_covariances_are_those_that_jax_derives():
    given, derived = fitted("closed form"), fitted("separable")
    for kind in ("nonrobust", "HC0"):
        ours, theirs = (lo.covariance(fit, kind) for fit in (given, derived))
        np.testing.assert_allclose(ours.to_numpy(), theirs.to_numpy(), rtol=1e-6, atol=1e-12)
        assert list(ours.index) == list(theirs.index) == ["log_scale", "mean"]
