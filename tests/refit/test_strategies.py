"""Leave-one-out of balanced classes, against refits from scratch by scikit-learn.

Every row of a class is left out of one fit, under the weights that the class has without a row.
"""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import leaveout as lo
from leaveout.refit import distances
from leaveout.validation.batches import Collected, over_refits

RIDGE = lo.penalties.Ridge(0.7)


def table(num_classes, n=90, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    eta = X @ np.linspace(1.5, -1.0, p) + rng.logistic(size=n) + 1.0
    # of unequal sizes
    return X, np.digitize(eta, np.quantile(eta, np.linspace(0.2, 0.8, num_classes - 1)))


def refit_by_host(X, y, seen, weight=None):
    host = LogisticRegression(
        C=1 / 0.7, class_weight="balanced", solver="newton-cg", tol=1e-10, max_iter=1000
    )
    if weight is None:
        return host.fit(X[seen], y[seen])
    cases = np.repeat(np.flatnonzero(seen), weight[seen].astype(int))
    return host.fit(X[cases], y[cases])


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("p", [4, 600])
@pytest.mark.slow_for("600-True-4", "600-False-4")
def test_rows_of_balanced_classes_are_as_scikit_learn_refits_them(num_classes, counts, p):
    X, y = table(num_classes, p=p)
    weight = np.random.default_rng(1).integers(1, 3, len(y)) * 1.0 if counts else None
    loss = "logistic" if num_classes == 2 else "multinomial"
    model = lo.GLM(X, y, loss, RIDGE, class_weight="balanced", sample_weight=weight)
    fit = lo.fit(model)
    certified, exact = (
        lo.cross_validate(fit, lo.leave_one_out(), strategy=strategy)
        for strategy in (lo.Certified(proofs="always"), lo.Exact())
    )
    assert certified.proved.all() and exact.proved.all()
    assert not certified.audit.beyond.any()
    theta = lo.fold_parameters(fit, lo.leave_one_out(), strategy=lo.Exact())
    for unit in (0, 17, 45, 88):
        refit = refit_by_host(X, y, np.arange(len(y)) != unit, weight)
        truth = -refit.predict_log_proba(X[[unit]])[0, y[unit]]
        assert abs(certified.losses[unit] - truth) <= certified.error[unit] + 1e-6
        assert abs(exact.losses[unit] - truth) <= exact.error[unit] + 1e-6
        coef = refit.coef_[0] if num_classes == 2 else refit.coef_
        np.testing.assert_allclose(theta["coef"][unit], coef, atol=1e-5)


def test_a_row_that_loses_one_of_its_cases():
    """One case of each row is left out, in all of them the first of a repeated row."""
    X, y = table(2)
    cases = np.random.default_rng(1).integers(1, 4, len(y)).astype(float)
    fit = lo.fit(lo.GLM(X, y, "logistic", RIDGE, class_weight="balanced", sample_weight=cases))
    plan = lo.leave_one_out(cases=cases)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"]
    for unit in (0, 17, 45):
        seen = cases - (np.arange(len(y)) == unit)
        refit = refit_by_host(X, y, seen > 0, seen)
        np.testing.assert_allclose(theta[unit], refit.coef_[0], atol=1e-5)


def test_distances_of_the_refits_hold_in_the_coordinates_of_the_fit():
    X, y = table(2)
    fit = lo.fit(lo.GLM(X, y, "logistic", RIDGE, class_weight="balanced"))
    plan = lo.leave_one_out(len(y))
    truths = np.stack(
        [
            np.append(refit.coef_[0], refit.intercept_)
            for unit in range(len(y))
            for refit in [refit_by_host(X, y, np.arange(len(y)) != unit)]
        ]
    )
    batches = []

    def collect(batch, refits):
        batches.append((batch.refits, refits.theta, *distances(fit, refits, refits.theta)))
        return Collected({}, {})

    over_refits("test", fit, plan, lo.Certified(), collect, judge=True)
    for numbers, theta, distance, proved in batches:
        assert proved.all()
        moves = np.linalg.norm((theta - truths[numbers]) @ fit.quadratic.factor, axis=1)
        assert (moves <= distance + 1e-6).all() and np.median(distance) < 0.1


def test_a_class_of_one_row_leaves_the_others_as_they_are():
    X, y = table(3)
    y[:] = np.where(y == 2, 1, y)
    y[5] = 2
    fit = lo.fit(lo.GLM(X, y, "multinomial", RIDGE, class_weight="balanced"))
    estimate = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact())
    refit = refit_by_host(X, y, np.arange(len(y)) != 30)
    truth = -refit.predict_log_proba(X[[30]])[0, y[30]]
    assert abs(estimate.losses[30] - truth) <= estimate.error[30] + 1e-6
