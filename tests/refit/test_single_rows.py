"""Bounds of single rows left out hold at every stage of their steps, against refits from scratch;
samples of rows estimate what single rows leave out only where they meet enough others.
"""

import numpy as np
import pytest

import leaveout as lo
from leaveout.refit import _anchor, _single_rows
from leaveout.refit._anchor import linear_cache
from leaveout.refit._single_rows import one_row, take_row_steps
from tests.linalg.test_sparse_design import RIDGE, table


def problem(loss, n, p, scale=2.0):
    rng = np.random.default_rng(3)
    X, weight = rng.normal(size=(n, p)), rng.uniform(0.5, 2.0, n)
    eta = scale * X @ rng.normal(size=p) / np.sqrt(p)
    y = (
        (rng.random(n) < 1 / (1 + np.exp(-eta))) * 1.0
        if loss == "logistic"
        else rng.poisson(np.exp(0.5 * eta)) * 1.0
    )
    return X, y, weight


def left_out(X, y, weight, loss, row):
    """Linear predictor of a row by Newton's method without it, under the penalty ‖β‖²."""
    seen, theta = np.arange(len(y)) != row, np.zeros(X.shape[1])
    value = lambda eta: (
        np.logaddexp(0, eta) - y * eta if loss == "logistic" else np.exp(eta) - y * eta
    )
    total = lambda theta: weight[seen] @ value(X @ theta)[seen] + theta @ theta
    for _ in range(60):
        eta = X @ theta
        mean = 1 / (1 + np.exp(-eta)) if loss == "logistic" else np.exp(eta)
        bend = weight * (mean * (1 - mean) if loss == "logistic" else mean)
        gradient = X[seen].T @ (weight * (mean - y))[seen] + 2 * theta
        step = np.linalg.solve(
            (X[seen].T * bend[seen]) @ X[seen] + 2 * np.eye(len(theta)), gradient
        )
        length = 1.0
        while total(theta - length * step) > total(theta) and length > 1e-6:
            length /= 2
        theta = theta - length * step
    return X[row] @ theta


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
    ("loss", "n", "p"), [("logistic", 60, 20), ("logistic", 90, 4), ("poisson", 60, 10)]
)
def test_the_bounds_hold_at_every_stage(loss, n, p, single, monkeypatch):
    """Also of many rows, whose later products are in float32."""
    if single:
        monkeypatch.setattr(_anchor, "PASS", 0)
    X, y, weight = problem(loss, n, p)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(2.0), intercept=False, sample_weight=weight))
    true = np.array([left_out(X, y, weight, loss, k) for k in range(n)])
    anchor, look = linear_cache(fit), one_row(fit, np.arange(n), np.zeros(n))
    stages = []

    def enough(at):
        off = np.abs(at.center - true[at.lanes])
        assert (off <= at.half + 1e-11).all()
        stages.append(np.median(at.half / np.maximum(off, 1e-12)))
        return at.half < 1e-9

    take_row_steps(anchor, look, enough, 12)
    assert (anchor.product_rounding > 0) == single
    assert len(stages) > 6  # of two a step
    assert stages[0] < 60  # the bounds are of use: this many times the true error


class ReadOnly(lo.losses.Binomial):
    """A loss that hands out arrays of its own, as those of JAX are."""

    def derivatives(self, eta, y, orders):
        found = super().derivatives(eta, y, orders)
        for part in found:
            part.flags.writeable = False
        return found


def test_a_loss_keeps_its_arrays():
    X, y, _ = problem("logistic", 60, 20)
    own, usual = (
        lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(2.0))) for loss in (ReadOnly(), "logistic")
    )
    found = [
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Certified(1e-6))
        for fit in (own, usual)
    ]
    np.testing.assert_allclose(found[0].losses, found[1].losses, rtol=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_moments_give_the_sums_over_all_products(loss, monkeypatch):
    """Also where a part of the row stays; in float64, so that they differ by rounding alone."""
    X, y, weight = problem(loss, 90, 4)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(2.0), intercept=False, sample_weight=weight))
    anchor = linear_cache(fit)
    look = one_row(fit, np.arange(90), np.where(np.arange(90) % 3 == 0, 0.4, 0.0))
    moments = _single_rows.sums_by_moments(anchor, look)
    monkeypatch.setattr(_single_rows, "FEW_COLUMNS", 0.0)
    products = _single_rows.product_sums(anchor, look)
    mass = float(anchor.weight * anchor.curvature @ anchor.norm**2)
    mass /= products.heaviest * anchor.norm.max() ** 2
    for name in ("third", "fourth"):
        difference = np.abs(getattr(moments, name) - getattr(products, name))
        assert (difference <= moments.moment_error * mass).all()
    assert (moments.largest >= products.largest - moments.precision).all()
    np.testing.assert_allclose(moments.scale, products.scale)


def test_rows_of_few_entries_are_not_told_by_a_sample_that_misses_their_neighbours():
    """Two rows of one and of three entries, of the longest steps of 20,000, against fits of the
    data without them.
    """
    n, p = 20_000, 250
    X, _ = table(1, n, p, 0.01)
    y = (np.random.default_rng(1).random(n) < 1 / (1 + np.exp(-X.sum(1)))).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", RIDGE))
    cv = lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    for row in (4228, 13428):
        seen = np.arange(n) != row
        alone = lo.fit(lo.GLM(X[seen], y[seen], "logistic", RIDGE), fit.parameters).parameters
        eta = float((X[[row]] @ alone["coef"])[0] + alone["intercept"])
        assert abs(np.logaddexp(0, eta) - y[row] * eta - cv.losses[row]) <= cv.error[row] + 1e-9
