"""Cox's partial likelihood without each of its units, by passes that all share; and what derivatives of these say of refits."""

import itertools

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout.objectives.batch_functions import DerivedBatch, function
from leaveout.objectives.contiguous_folds import runs
from leaveout.refit import _expansion
from tests.helpers import minimiser


def model(seed: int, ties: str = "efron", rounded: bool = False, strata: bool = False, scale: float = 1.0, n: int = 60):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    eta = scale * X @ np.array([1.0, -0.5, 0.5])
    died, left = rng.exponential(np.exp(-eta)), rng.exponential(2, n)
    time = np.minimum(died, left)
    time = np.ceil(8 * time) if rounded else time
    groups = rng.integers(0, 3, n) if strata else None
    return lo.Cox(X, time, (died <= left).astype(float), lo.penalties.Ridge(0.5), ties=ties, strata=groups)


def whole(objective: lo.Cox):
    """All units, each left out, in one batch."""
    (batch,) = lo.leave_one_out(objective.num_units).batches(10**9, 1, 0, uniform=True)
    return batch.rows


EACH = list(itertools.product([False, True], [False, True], ["efron", "breslow"]))
QUICK = {(True, True, "efron"), (False, True, "breslow")}


@pytest.mark.parametrize(
    ("strata", "rounded", "ties"), [pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow) for each in EACH]
)
def test_one_pass_says_what_a_pass_without_each_unit_says(strata, rounded, ties):
    objective = model(1, ties, rounded, strata)
    fit, rows, everyone = lo.fit(objective), whole(objective), np.arange(objective.num_units)
    theta = fit.vector + 0.1 * np.random.default_rng(2).standard_normal(3)
    with jax.enable_x64(True):
        found = runs(objective, fit.theta, rows)
        losses, joint = found.scores(theta)
        each = DerivedBatch(objective, fit.theta, rows).look(np.tile(theta, (len(everyone), 1)), everyone)[0]
        full = function(objective, fit.theta).look(theta)[0]
    assert len(found.scores_at.tied_units) > 0 or not rounded
    assert (found.scores_at.last >= 0).any() or strata  # some of the logarithms are expanded, and
    assert len(found.scores_at.unit) > 0  # some are not
    np.testing.assert_allclose(joint, full - each, atol=1e-11)
    np.testing.assert_array_equal(losses[:, 0], joint)


def test_what_sums_cannot_say_is_not_said():
    """Where a unit is nearly all of a risk set, and far from the θ for which logarithms were chosen to be expanded."""
    objective = model(3)
    fit, rows = lo.fit(objective), whole(objective)
    with jax.enable_x64(True):
        found = runs(objective, fit.theta, rows)
        assert np.isfinite(found.scores(fit.vector)[1]).all()
        assert np.isnan(found.scores(60 * fit.vector)[1]).any()
        assert runs(objective, fit.theta, lo.kfold(60, 12).one(0).rows) is None
    scaled = lo.Cox(objective.design, np.arange(60.0), np.ones(60), lo.penalties.per_row(lo.penalties.Ridge(0.5)))
    assert scaled.costs.runs is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "strata, folds",
    [(False, 20), (True, 20)],
)
def test_refits_lie_within_their_errors(strata, folds, monkeypatch):
    monkeypatch.setattr(_expansion, "COMPILING_COST", 0.0)
    monkeypatch.setattr(_expansion, "MIN_REFIT_PASSES", 10**6)
    objective = model(4, rounded=True, strata=strata, scale=2.0, n=120)
    fit, plan = lo.fit(objective), lo.leave_one_out(120)
    found = lo.cross_validate(fit, plan, lo.Certified(0.05), audit=0)
    for fold in np.argsort(-np.abs(found.losses - found.baseline))[:folds]:
        weights = plan.matrix()[fold]
        theta = minimiser(objective, fit.theta, weights)
        with jax.enable_x64(True):
            loss = float(objective.loss(theta, np.ones(120)) - objective.loss(theta, weights))
        assert abs(found.losses[fold] - loss) <= found.error[fold] + 1e-9
    np.testing.assert_allclose(lo.cross_validate(fit, plan, lo.NoUpdate(), audit=0).losses, found.baseline, atol=1e-10)


def test_efrons_correction_is_left_out_only_where_it_is_nothing():
    """Weights that are neither zero nor one tie a death with itself."""
    objective, theta = model(5), np.zeros(3)
    with jax.enable_x64(True):
        whole = [float(objective.loss(theta, w * np.ones(60))) for w in (1.0, 2.0)]
    twice = lo.Cox(
        np.repeat(objective.design, 2, 0), np.repeat(_times(objective), 2), np.repeat(objective.event, 2), objective.penalty
    )
    with jax.enable_x64(True):
        np.testing.assert_allclose(whole[1], float(twice.loss(theta, np.ones(120))), rtol=1e-12)


@pytest.mark.slow
def test_derivatives_by_weights_are_those_of_the_whole_correction():
    """Of a death alone it is nothing at a weight of one, but not beside it."""
    objective, theta = model(5), np.array([0.3, -0.2, 0.1])
    dead = int(np.flatnonzero(objective.event)[0])
    with jax.enable_x64(True):
        gradient = jax.jit(lambda w: jax.grad(objective.loss)(theta, w))
        by_weight = jax.jacobian(gradient)(np.ones(60))[:, dead]
        move = 1e-5 * np.eye(60)[dead]
        between = (gradient(np.ones(60) + move) - gradient(np.ones(60) - move)) / 2e-5
        np.testing.assert_allclose(np.asarray(objective.jacobian(theta))[dead], by_weight, atol=1e-9)
        np.testing.assert_allclose(by_weight, between, atol=1e-8)
        np.testing.assert_allclose(jax.grad(objective.loss)(theta, np.ones(60)), gradient(np.ones(60)), atol=1e-12)


def _times(objective: lo.Cox) -> np.ndarray:
    """Times in the order of those of a model of one stratum."""
    return -np.argsort(objective.order).astype(float) + objective.num_units
