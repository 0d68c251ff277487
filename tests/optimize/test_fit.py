"""Fits at parameters that were found elsewhere."""

import jax.numpy as jnp
import numpy as np
import pytest

import leaveout as lo

Y = np.array([-0.4, 0.1, 0.3, 0.9, 1.4, 2.0])
FAR = 4.5  # beyond all y, where F is concave


def cauchy() -> lo.Objective:
    """F(m) = Σ log(1 + (y − m)²), whose curvature is negative far from y."""

    def loss(m, weights):
        return weights @ jnp.log1p((Y - m) ** 2)

    return lo.Objective(loss, len(Y), dependence="independent")


def derivatives(m: float) -> tuple[np.ndarray, float]:
    """Slopes of all units, and the curvature of F, by hand."""
    r = m - Y
    return 2 * r / (1 + r**2), float(np.sum((2 - 2 * r**2) / (1 + r**2) ** 2))


def test_damping_is_added_to_the_curvature_of_the_steps():
    slopes, curvature = derivatives(FAR)
    assert curvature < 0
    damping = 0.5 - curvature
    with pytest.warns(UserWarning, match="not stationary"):
        fit = lo.anchor(cauchy(), np.array(FAR), throw=False, damping=damping)
    plan = lo.leave_one_out(len(Y))
    jackknife = lo.fold_parameters(fit, plan, strategy=lo.InfinitesimalJackknife())
    np.testing.assert_allclose(jackknife, FAR + slopes / 0.5, rtol=1e-12)
    assert fit.decrement == pytest.approx(abs(slopes.sum()) / np.sqrt(0.5))


def test_refits_to_the_end_are_as_without_damping():
    minimum = lo.fit(cauchy(), np.array(0.5)).parameters
    plain, damped = (
        lo.cross_validate(
            lo.anchor(cauchy(), minimum, damping=damping), lo.leave_one_out(), strategy=lo.Exact()
        )
        for damping in (0.0, 3.0)
    )
    difference = np.abs(plain.losses - damped.losses)
    assert (difference <= plain.error + damped.error).all()


@pytest.mark.parametrize(
    ("damping", "error", "words"),
    [
        (1e-5, lo.validation.IndefiniteHessianError, r"A damping= larger by"),
        (-1.0, ValueError, r"0 or a positive number; got -1"),
        (np.nan, ValueError, r"0 or a positive number"),
    ],
)
def test_damping_that_does_not_do(damping, error, words):
    with pytest.raises(error, match=words):
        lo.anchor(cauchy(), np.array(FAR), throw=False, damping=damping)


def test_proofs_of_linear_predictors_need_the_curvature_itself():
    model = lo.GLM(np.arange(6.0)[:, None], Y, "squared")
    with pytest.raises(ValueError, match=r"proofs for GLM .*need H itself.*Ridge"):
        lo.anchor(model, lo.fit(model).parameters, damping=1.0)


def labels() -> lo.CRF:
    """Thirty sequences of six labels, whose refits take their own Hessians if these are known."""
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 2, (30, 6))
    features = np.eye(2)[tags] + rng.normal(size=(30, 6, 2))
    return lo.CRF(tags.ravel(), np.full(30, 6), features=features.reshape(-1, 2))


@pytest.fixture(scope="module")
def fitted_labels():
    return lo.fit(labels())


@pytest.fixture(scope="module")
def refitted_labels(fitted_labels):
    return lo.cross_validate(fitted_labels, lo.leave_one_out(), strategy=lo.Exact(), audit=0)


@pytest.mark.parametrize("strategy", [lo.InfinitesimalJackknife(), lo.NewtonStep(), lo.Certified()])
def test_errors_of_damped_steps_count_the_damping(strategy, fitted_labels, refitted_labels):
    fit, exact = fitted_labels, refitted_labels
    damped = lo.anchor(fit.objective, fit.parameters, damping=30.0)
    estimate = lo.cross_validate(damped, lo.leave_one_out(), strategy=strategy, audit=0)
    assert (np.abs(estimate.losses - exact.losses) <= estimate.error + exact.error).all()


def test_standard_errors_need_the_curvature_itself(fitted_labels):
    fit = fitted_labels
    damped = lo.anchor(fit.objective, fit.parameters, damping=1.0)
    with pytest.raises(ValueError, match=r"the fit is damped by 1.*Hessian itself"):
        lo.covariance(damped)
