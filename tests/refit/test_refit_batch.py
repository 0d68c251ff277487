"""Distances of refits from the exact ones, against refits in 300 bits.

In the norm of H, and of linear functions.
"""

import warnings
from typing import NamedTuple

import numpy as np
import pytest
from flint import arb

import leaveout as lo
from leaveout._runtime import join
from leaveout.refit import _enclosure, distance_of_fit, distances, lengths
from leaveout.refit._anchor import linear_cache
from leaveout.refit._refit_batch import Rung, climb, put, take
from leaveout.validation.batches import Collected, over_refits
from tests.oracles.balls import SLOPES, Refits, column
from tests.problems.proofs import DESIGNS, fit_of, plans

STRATEGIES = [
    lo.Certified(),
    lo.Certified(1e-9),
    lo.Exact(),
    lo.NewtonStep(),
    lo.InfinitesimalJackknife(),
]


def draws(seed):
    """Fits of random kinds, each with some refits of a plan and a strategy.

    What has no minimiser is passed over.
    """
    rng = np.random.default_rng(seed)
    while True:
        kind = (
            list(DESIGNS)[int(rng.integers(len(DESIGNS)))],
            list(SLOPES)[int(rng.integers(len(SLOPES)))],
        )
        try:
            fit = fit_of(kind, int(rng.integers(2**31)))
        except (RuntimeError, ValueError):
            continue
        plan = plans(fit.objective.num_units, int(rng.integers(1000)))[int(rng.integers(3))]
        some = np.sort(rng.permutation(plan.num_refits)[:4])
        yield rng, kind, fit, plan.some(some), STRATEGIES[int(rng.integers(len(STRATEGIES)))]


def of_fit(fit, loss):
    """The problem of a fit, in balls, and its H."""
    model, anchor = fit.quadratic.predictors, linear_cache(fit)
    (weight,), (times,) = model.weigh(np.ones((1, len(model.y))))
    exact = Refits(
        model.design.rows(np.arange(len(model.y))),
        model.y,
        loss,
        float(times) * model.penalty,
        model.offset,
    )
    return exact, exact.hessian(
        [arb(float(a)) * arb(float(b)) for a, b in zip(weight, anchor.curvature, strict=True)]
    )


def check(exact, hessian, true, theta, far, new, length):
    away = true - column(theta)
    assert (away.transpose() * hessian * away).entries()[0].sqrt() <= arb(float(far))
    for x, own in zip(new, length, strict=True):
        assert abs(exact.predict([x], true)[0] - arb(float(x @ theta))) <= arb(float(own * far))


@pytest.mark.parametrize("count", [120, pytest.param(3000, marks=pytest.mark.slow)])
def test_what_is_proved_of_parameters_is_true(count):
    seen = fits = 0
    for rng, (_, loss), fit, plan, strategy in draws(count):
        told, n = [], fit.objective.num_units

        def tell(batch, done, fit=fit, told=told):
            told.append((batch.rows, np.array(done.theta), *distances(fit, done, done.theta)))
            return Collected({}, {})

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            over_refits("test", fit, plan, strategy, tell, judge=True)
        exact, hessian = of_fit(fit, loss)
        new = rng.normal(size=(3, fit.num_params)) * 10 ** rng.uniform(
            -3, 3, size=(3, fit.num_params)
        )

        for rows, thetas, far, proved in told:
            for k in np.flatnonzero(proved):
                weights, real = np.ones(n), rows.index[k] < n
                weights[rows.index[k][real]] = rows.weight[k][real]
                true = exact(fit.quadratic.predictors.weigh(weights[None])[0][0], thetas[k])
                if true is not None:
                    check(exact, hessian, true, thetas[k], far[k], new, lengths(fit, new))
                    seen += 1
        whole, proved = distance_of_fit(fit)
        true = (
            exact(fit.quadratic.predictors.weigh(np.ones((1, n)))[0][0], fit.vector)
            if proved
            else None
        )
        if true is not None:
            check(exact, hessian, true, fit.vector, whole, new[:0], ())
            fits += 1
        if seen >= count:
            break
    assert fits > seen // 8


def test_lengths_in_a_refit_s_own_metric_are_bounded_in_that_of_the_fit(monkeypatch):
    """A fold of all but twelve rows, which has to find a Hessian of its own."""
    rng, seen, own = np.random.default_rng(1), [], _enclosure.across_metrics
    X = rng.normal(size=(40, 3)) * np.where(np.arange(40) < 12, 0.02, 1.0)[:, None]
    fit = lo.fit(
        lo.GLM(
            X,
            1.0 * rng.poisson(np.exp(np.clip(X.sum(1), -5, 2))),
            "poisson",
            lo.penalties.Ridge(1e-3),
        )
    )

    def noted(state, root):
        found = own(state, root)
        seen.extend(
            zip(np.linalg.norm(fit.quadratic.factor.T @ root, 2, axis=(1, 2)), found, strict=True)
        )
        return found

    monkeypatch.setattr(_enclosure, "across_metrics", noted)
    lo.cross_validate(fit, lo.groups(np.arange(40) < 12), strategy=lo.Exact(), audit=0)
    assert seen and max(true for true, _ in seen) > 10
    assert all(true <= bound <= 1.2 * true for true, bound in seen)


def test_of_other_models_it_is_estimated():
    rng = np.random.default_rng(0)
    fit = lo.fit(lo.Regression(rng.normal(size=(30, 2)), rng.normal(size=30), "gaussian"))
    found = []

    def tell(batch, done):
        found.append(distances(fit, done, done.theta))
        return Collected({}, {})

    over_refits("test", fit, lo.leave_one_out(30), lo.Exact(), tell, judge=True)
    far, proved = found[0]
    assert np.isfinite(far).all() and not proved.any() and not distance_of_fit(fit)[1]


class Ladder(NamedTuple):
    """A batch whose rungs are named where they were taken."""

    open: np.ndarray
    taken: tuple = ()

    def merge(self, part):
        name, is_open = part
        return Ladder(is_open, (*self.taken, name))


def rung(name, cost, leaves, applies=True):
    """A rung after which the first `leaves` of three refits are open."""
    return Rung(
        name, lambda batch: applies, lambda batch: cost, lambda batch: (name, np.arange(3) < leaves)
    )


@pytest.mark.parametrize(
    ("rungs", "taken"),
    [
        ([rung("dear", 9, 0), rung("cheap", 1, 2)], ("cheap", "dear")),
        ([rung("dear", 9, 0), rung("cheap", 1, 0)], ("cheap",)),
        ([rung("other", 0, 0, applies=False), rung("cheap", 1, 3)], ("cheap",)),
    ],
)
def test_the_cheapest_rung_that_applies_is_taken_until_no_refit_is_open(rungs, taken):
    assert climb(Ladder(np.ones(3, bool)), tuple(rungs)).taken == taken


def test_some_refits_of_a_record_are_put_back_in_their_places():
    record = Ladder(np.arange(6.0), np.arange(12).reshape(6, 2))
    odd, even = take(record, [1, 3, 5]), take(record, [0, 2, 4])
    changed = put(record, [(np.array([1, 3, 5]), odd._replace(open=np.full(3, -1.0)))])
    np.testing.assert_array_equal(changed.open, [0, -1, 2, -1, 4, -1])
    np.testing.assert_array_equal(record.open, np.arange(6.0))
    joined = take(join([even, odd]), [0, 3, 1, 4, 2, 5])
    np.testing.assert_array_equal(joined.taken, record.taken)
