"""Folds that are short runs of a chain: their scores by one pass, what derivatives of these say of
refits, and what that is worth. Against passes of each fold, differences, refits from scratch."""

import functools

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout.objectives.batch_functions import derive_batch, function
from leaveout.objectives.closed_form import ClosedFormBatch
from leaveout.objectives.contiguous_folds import Runs, runs
from leaveout.refit import _descent, _expansion
from leaveout.refit._expansion import Expansion
from leaveout.validation import minima as _minima
from tests.helpers import minimiser

LENGTHS = np.array([40, 9, 31])


def counts(seed: int = 0) -> np.ndarray:
    """Two states; some steps missing, one after another too; one step far out."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(np.array([1.0, 6.0])[np.cumsum(rng.random(80) < 0.15) % 2]).astype(float)
    x[[5, 6, 22, 40, 48, 79]] = np.nan
    x[60] = 17.0
    return x


@functools.cache
def fitted() -> lo.Fit:
    return lo.fit(lo.HMM(counts(), lo.emissions.Poisson(), 2, lengths=LENGTHS), num_starts=1)


@pytest.fixture
def cheap(monkeypatch):
    """Expansions pay for few units too."""
    monkeypatch.setattr(_expansion, "MIN_REFIT_PASSES", 10**6)


def whole(plan: lo.Plan):
    """All refits in one batch."""
    (batch,) = plan._batches(10**9, 1, 0, uniform=True)
    return batch.rows


def windows() -> lo.Plan:
    """Overlapping runs of unlike lengths, in no order, across the ends of sequences."""
    spans = [(0, 4), (38, 43), (3, 5), (47, 52), (78, 80), (20, 24), (40, 41)]
    return lo.from_splits(
        [(np.setdiff1d(np.arange(80), np.arange(a, b)), np.arange(a, b)[::-1]) for a, b in spans],
        80,
    )


PLANS = {
    "single steps": lambda: lo.leave_one_out(80),
    "blocks": lambda: lo.blocks(80, 3),
    "blocks with a buffer": lambda: lo.blocks(80, 2, buffer=1),
    "windows": windows,
}


SLOW = [
    pytest.param(name, marks=pytest.mark.slow) if name.startswith("blocks") else name
    for name in PLANS
]


@pytest.mark.parametrize("plan", SLOW)
@pytest.mark.slow_for("single steps")
def test_one_pass_says_what_a_pass_of_each_fold_says(plan):
    objective, fit = fitted().objective, fitted()
    rng, rows = np.random.default_rng(1), whole(PLANS[plan]())
    theta = fit.vector + 0.3 * rng.standard_normal(fit.num_params)
    with jax.enable_x64(True):
        found = runs(objective, fit.theta, rows)
        losses, joint = found.scores(theta)
        each = derive_batch(objective, fit.theta, rows)
        at, everyone = np.tile(theta, (len(joint), 1)), np.arange(len(joint))
        wanted, value = each.losses(at, everyone), each.look(at, everyone)[0]
        full = function(objective, fit.theta).look(theta)[0]
    seen = rows.held & objective.dense[np.minimum(rows.index, 79)]
    np.testing.assert_allclose(found.place_scores(losses, rows)[seen], wanted[seen], atol=1e-12)
    np.testing.assert_allclose(joint, full - value, atol=1e-10)


def test_what_is_no_run_of_observations_is_told():
    fit = fitted()
    with jax.enable_x64(True):
        for plan in (
            lo.kfold(80, 20, rng=0),
            lo.Plan([0, 1, 2], [3, 4], [0.5, 0.0], [False, True], 80),
        ):
            assert runs(fit.objective, fit.theta, whole(plan)) is None
    x = counts()
    for other in (
        {"drop": "step"},
        {"drop": "sequence"},
        {"score": "joint"},
        {"transition": [[np.nan, np.nan], [0.0, np.nan]]},
    ):
        assert lo.HMM(x, lo.emissions.Poisson(), 2, lengths=LENGTHS, **other).costs.runs is None
    x = np.nan_to_num(x, nan=3.0)
    assert lo.HMM(x, lo.emissions.Autoregressive(1), 2, lengths=LENGTHS).costs.runs is None


def test_expansions_are_of_second_order_in_gradients_and_of_third_in_losses():
    """Halving the way from θ̂ divides what a quadratic leaves of F's own gradient by four, of the
    losses by eight.
    """
    fit, rows = fitted(), whole(windows())
    with jax.enable_x64(True):
        told = runs(fit.objective, fit.theta, rows)
        expansion, each = Expansion(fit, rows, told), derive_batch(fit.objective, fit.theta, rows)
        lanes, off = np.arange(len(rows.index)), []
        direction = np.random.default_rng(2).standard_normal((len(lanes), fit.num_params))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        slopes, curves = np.moveaxis(expansion.slopes, 0, -1), expansion._square(expansion.curves)
        for t in (0.08, 0.04, 0.02):
            u = t * direction
            flat, bent = expansion.curvature(0 * u, lanes), expansion.curvature(u, lanes)
            gradient = expansion.start + np.einsum("nij,nj->ni", 0.5 * (flat + bent), u)
            losses = (
                expansion.losses
                + np.einsum("nli,ni->nl", slopes, u)
                + 0.5 * np.einsum("nlij,ni,nj->nl", curves, u, u)
            )
            true = (
                fit.quadratic.whiten(each.look(fit.quadratic.at(u), lanes)[1]),
                each.losses(fit.quadratic.at(u), lanes),
            )
            off.append(
                [
                    np.linalg.norm(gradient - true[0]),
                    np.linalg.norm(expansion.runs.place_scores(losses, rows) - true[1]),
                ]
            )
    order = np.log2(np.array(off[:-1]) / off[1:])
    assert (np.abs(order - [2, 3]) < 0.15).all(), order


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["single steps", "blocks"])
def test_refits_lie_within_their_errors(plan, cheap, monkeypatch):
    monkeypatch.setattr(_expansion, "MIN_UNIT_SHARE", 0.1)
    fit, plan = fitted(), PLANS[plan]()
    found = lo.cross_validate(fit, plan, audit=0)
    nothing, exact = (
        lo.cross_validate(fit, plan, strategy=refit, audit=0)
        for refit in (lo.NoUpdate(), lo.Exact(1e-10))
    )
    scored = np.maximum(np.add.reduceat(found.plan.held, plan.indptr[:-1], dtype=float), 1)
    for estimate in (found, nothing):
        off = np.add.reduceat(
            np.abs(np.nan_to_num(estimate.losses - exact.losses)), plan.indptr[:-1]
        )
        assert (off <= estimate.error + 1e-9).all(), (off / estimate.error).max()
    assert (found.error <= 0.01 * found.scale * scored * (1 + 1e-9)).all()
    assert not found.proved.any()
    outlier = (
        int(np.flatnonzero([60 in units for units in np.split(plan.index, plan.indptr[1:-1])])[0])
        if 60 in plan.index
        else 0
    )
    theta = minimiser(fit.objective, fit.theta, plan.matrix()[outlier])
    with jax.enable_x64(True):
        rows = plan._one(outlier).rows
        from_scratch = derive_batch(fit.objective, fit.theta, rows).losses(
            theta[None], np.zeros(1, int)
        )[0]
    at = slice(*plan.indptr[outlier : outlier + 2])
    np.testing.assert_allclose(
        np.nan_to_num(found.losses[at]), from_scratch, atol=found.error[outlier] + 1e-9
    )


def test_influential_folds_go_on_by_full_passes_and_others_do_not(cheap, monkeypatch):
    went, steps = [], _descent._take_steps
    monkeypatch.setattr(
        _descent,
        "_take_steps",
        lambda batch, candidates: went.append(candidates.lanes) or steps(batch, candidates),
    )
    found = lo.cross_validate(fitted(), lo.leave_one_out(), strategy=lo.Certified(0.05), audit=0)
    assert 60 in went[0] and len(went[0]) < 40
    assert (found.error[60] < np.inf) and found.result[60] == lo.RESULTS.successful


def test_no_update_takes_one_pass(cheap, monkeypatch):
    passes, scores = [], Runs.scores
    monkeypatch.setattr(Runs, "scores", lambda self, theta: passes.append(1) or scores(self, theta))
    fit, losses = fitted(), ClosedFormBatch.losses

    def refits_alone(batch, theta, lanes):
        assert (theta != fit.vector).any(1).all(), "a pass of each fold"
        return losses(batch, theta, lanes)

    monkeypatch.setattr(ClosedFormBatch, "losses", refits_alone)
    found = lo.fold_parameters(fit, lo.leave_one_out(), strategy=lo.NoUpdate())
    assert len(found["rate"]) == 80
    estimate = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact(1e-3), audit=0)
    assert len(passes) == 1 and np.isfinite(estimate.baseline[estimate.plan.held]).all()


@pytest.mark.slow
def test_lower_minima_are_looked_for_where_one_pass_says_that_there_may_be_some(monkeypatch):
    """Two minima of about one height: which is lower depends on the fold."""
    rng = np.random.default_rng(3)
    half = np.concatenate([rng.normal(0, 1, 15), rng.normal(3.6, 0.3, 6)])
    x = np.concatenate([half, -half])
    apart = {"initial": [0.5, 0.5], "transition": [[0.5, 0.5], [0.5, 0.5]]}
    fit = lo.fit(lo.HMM(x, lo.emissions.Gaussian(), 2, **apart), num_starts=6)
    assert len(fit.minima.value) == 2
    plan = lo.blocks(len(x), 3)
    with jax.enable_x64(True):
        rows = whole(plan)
        theta, everyone = np.tile(fit.vector, (14, 1)), np.ones(14, bool)
        some = _minima._promising(fit, rows)
        lower, best = _minima.lower(fit, rows, theta, everyone)
        monkeypatch.setattr(_minima, "runs", lambda *args: None)
        wanted, there = _minima.lower(fit, rows, theta, everyone)
    assert wanted.any() and not some.all()
    assert (lower == wanted).all() and (some | ~wanted).all()
    np.testing.assert_allclose(best[wanted], there[wanted], atol=1e-9)
