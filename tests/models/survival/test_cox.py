"""Cox's partial likelihood without each of its units, by passes that all share.

And what derivatives of these say of refits.
"""

import numpy as np
import pytest
import scipy

import leaveout as lo
from leaveout.models.survival.partial_likelihood import efron
from leaveout.objectives.batch_functions import derive_batch, function
from leaveout.objectives.contiguous_folds import runs
from leaveout.refit import _expansion
from tests.helpers import minimiser
from tests.oracles import likelihoods


def model(
    seed: int,
    ties: str = "efron",
    rounded: bool = False,
    strata: bool = False,
    scale: float = 1.0,
    n: int = 60,
    weighted: bool = False,
    late: bool = False,
):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    eta = scale * X @ np.array([1.0, -0.5, 0.5])
    died, left = rng.exponential(np.exp(-eta)), rng.exponential(2, n)
    time = np.minimum(died, left)
    time = np.ceil(8 * time) if rounded else time
    groups = rng.integers(0, 3, n) if strata else None
    more = {"sample_weight": rng.uniform(0.3, 3, n)} if weighted else {}
    more |= {"entry": time * rng.uniform(-0.5, 0.9, n)} if late else {}
    return lo.Cox(
        X,
        time,
        (died <= left).astype(float),
        lo.penalties.Ridge(0.5),
        ties=ties,
        strata=groups,
        **more,
    )


def whole(objective: lo.Cox):
    """All units, each left out, in one batch."""
    (batch,) = lo.leave_one_out(objective.num_units)._batches(10**9, 1, 0, uniform=True)
    return batch.rows


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("strata", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_one_pass_says_what_a_pass_without_each_unit_says(strata, rounded, ties, weighted):
    objective = model(1, ties, rounded, strata, weighted=weighted)
    fit, rows, everyone = lo.fit(objective), whole(objective), np.arange(objective.num_units)
    theta = fit.vector + 0.1 * np.random.default_rng(2).standard_normal(3)
    found = runs(objective, fit.theta, rows)
    losses, joint = found.scores(theta)
    each = derive_batch(objective, fit.theta, rows).look(
        np.tile(theta, (len(everyone), 1)), everyone
    )[0]
    full = function(objective, fit.theta).look(theta)[0]
    assert len(found.scores_at.tied) > 0 or not rounded
    assert (found.scores_at.last >= 0).any() or strata  # some of the logarithms are expanded, and
    assert len(found.scores_at.unit) > 0  # some are not
    np.testing.assert_allclose(joint, full - each, atol=1e-11)
    np.testing.assert_allclose(losses[:, 0], joint, rtol=1e-13)


def test_what_sums_cannot_say_is_not_said():
    """Where a unit is nearly all of a risk set, and far from the θ for which logarithms were chosen
    to be expanded.
    """
    objective = model(3)
    fit, rows = lo.fit(objective), whole(objective)
    found = runs(objective, fit.theta, rows)
    assert np.isfinite(found.scores(fit.vector)[1]).all()
    assert np.isnan(found.scores(60 * fit.vector)[1]).any()
    assert runs(objective, fit.theta, lo.kfold(60, 12)._one(0).rows) is None
    scaled = lo.Cox(
        objective.design,
        np.arange(60.0),
        np.ones(60),
        lo.penalties.per_row(lo.penalties.Ridge(0.5)),
    )
    assert scaled.costs.runs is None


@pytest.mark.parametrize("strata, folds", [(False, 20), (True, 20)])
def test_refits_lie_within_their_errors(strata, folds, monkeypatch):
    monkeypatch.setattr(_expansion, "MIN_REFIT_PASSES", 10**6)
    objective = model(4, rounded=True, strata=strata, scale=2.0, n=120)
    fit, plan = lo.fit(objective), lo.leave_one_out(120)
    found = lo.cross_validate(fit, plan, strategy=lo.Certified(0.05), audit=0)
    for fold in np.argsort(-np.abs(found.losses - found.baseline))[:folds]:
        weights = plan.matrix()[fold]
        theta = minimiser(objective, fit.theta, weights)
        loss = float(objective.loss(theta, np.ones(120)) - objective.loss(theta, weights))
        assert abs(found.losses[fold] - loss) <= found.error[fold] + 1e-9
    np.testing.assert_allclose(
        lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0).losses,
        found.baseline,
        atol=1e-10,
    )


def test_efrons_correction_is_left_out_only_where_it_is_nothing():
    """Weights that are neither zero nor one tie a death with itself."""
    objective, theta = model(5), np.zeros(3)
    whole = [float(objective.loss(theta, w * np.ones(60))) for w in (1.0, 2.0)]
    twice = lo.Cox(
        np.repeat(objective.design, 2, 0),
        np.repeat(_times(objective), 2),
        np.repeat(objective.event, 2),
        objective.penalty,
    )
    np.testing.assert_allclose(whole[1], float(twice.loss(theta, np.ones(120))), rtol=1e-12)
    np.testing.assert_allclose(
        whole[0], float(model(5, "breslow").loss(theta, np.ones(60))), rtol=1e-14
    )


def test_efrons_correction_and_its_derivatives():
    """By sums for whole m, by its recursion for others.

    Near z = m, beyond it, and on both sides of where the series begins.
    """
    for m in (1, 2, 15, 40):
        z, lost = m + np.array([0.0, 0.4, 19.9, 20.1, 1e3, 1e8])[:, None], np.arange(m)
        value, first, second, _ = efron(np.full(len(z), float(m)), z[:, 0])
        np.testing.assert_allclose(value, np.log1p(-lost / z).sum(1), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            z[:, 0] * first, (lost / (z - lost)).sum(1), rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(
            z[:, 0] ** 2 * second, (1 - (z / (z - lost)) ** 2).sum(1), rtol=1e-12, atol=1e-11
        )
    m, z = map(np.ravel, np.meshgrid([0.3, 1.7, 15.2], [20.0, 37.1, 4e2, 1e5]))
    here, more = efron(m, z), efron(m + 1, z)
    np.testing.assert_allclose(more[0] - here[0], np.log1p(-m / z), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(z * (more[1] - here[1]), m / (z - m), rtol=1e-11, atol=1e-13)
    between = (efron(m + 1e-4, z)[1] - efron(m - 1e-4, z)[1]) / 2e-4
    np.testing.assert_allclose(z * here[3], z * between, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("late, weighted", [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("strata", [False, True])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_derivatives_are_slopes_of_the_likelihood(ties, strata, late, weighted):
    """For weights of any size.

    Of a death alone Efron's correction is nothing at a weight of one, but not beside it.
    """
    rng, base = np.random.default_rng(0), model(5, ties, True, strata, weighted=weighted, late=late)
    grown = lo.penalties.per_weight if late else lo.penalties.per_row
    objective = base.under(grown(lo.penalties.PseudoHuber(0.1, 0.5) + lo.penalties.Ridge(0.01)))
    theta, weights = (
        rng.standard_normal((2, 3)) / 2,
        np.stack([np.ones(60), rng.integers(0, 4, 60) / 2]),
    )
    value, slope, _ = objective.look(theta, weights)
    assert value[0] == objective.loss(theta[0], weights[0])
    moves = 1e-5 * np.eye(3)
    by = lambda part: [
        (objective.look(theta + d, weights)[part] - objective.look(theta - d, weights)[part]) / 2e-5
        for d in moves
    ]
    np.testing.assert_allclose(slope, np.stack(by(0), axis=1), atol=1e-8)
    np.testing.assert_allclose(
        objective.hessians(theta, weights), np.stack(by(1), axis=2), atol=1e-8
    )
    moves, one = 1e-5 * np.eye(60), np.tile(theta[:1], (60, 1))
    by_weight = (objective.look(one, 1 + moves)[1] - objective.look(one, 1 - moves)[1]) / 2e-5
    np.testing.assert_allclose(objective.jacobian(theta[0]), by_weight, atol=1e-8)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize(
    "names", ["sample_weight", "entry", "strata entry", "sample_weight strata entry"]
)
@pytest.mark.slow_for("entry-breslow", "sample_weight-breslow", "strata entry-efron")
def test_weights_and_entry_times_by_enumeration_and_by_refits(names, ties):
    """20 folds refitted from scratch, by the sum over risk sets that are listed one by one."""
    rng, n = np.random.default_rng(7), 60
    X = rng.standard_normal((n, 2))
    time, event = np.ceil(6 * rng.exponential(np.exp(-X[:, 0]))) + 1, rng.random(n) < 0.8
    data = {
        "sample_weight": rng.uniform(0.3, 3, n),
        "entry": np.floor(rng.random(n) * time),
        "strata": rng.integers(0, 2, n),
    }
    more = {name: data[name] for name in names.split()} | {"ties": ties}
    written = lambda theta, keep: likelihoods.partial_likelihood(
        theta, keep, X, time, event, **more
    )
    objective, ones = lo.Cox(X, time, event, **more), np.ones(n)
    fit, plan = lo.fit(objective), lo.leave_one_out(n)
    exact, certified = (
        lo.cross_validate(fit, plan, strategy=refit, audit=0)
        for refit in (lo.Exact(1e-10), lo.Certified())
    )
    for k in range(0, n, 3):
        keep = plan.matrix()[k]
        np.testing.assert_allclose(
            objective.loss(np.array([0.4, -0.3]), keep), written(np.array([0.4, -0.3]), keep)
        )
        theta = scipy.optimize.minimize(written, np.zeros(2), keep, tol=1e-11).x
        loss = written(theta, ones) - written(theta, keep)
        np.testing.assert_allclose(exact.losses[k], loss, atol=2e-6)
        assert abs(certified.losses[k] - loss) <= certified.error[k] + 2e-6


def test_rows_before_the_last_event_of_others_cost_no_digits():
    """Few are at risk before a crowd enters: differences of running sums would lose them."""
    n, rng = 4000, np.random.default_rng(8)
    X, late = rng.standard_normal((n, 1)), np.arange(n) >= 6
    time, entry = np.where(late, 2.0, 1 - 0.1 * np.arange(n)), np.where(late, 1.5, 0.0)
    X[late] += 20.0
    early = likelihoods.partial_likelihood(np.ones(1), ~late, X, time, ~late)
    found = lo.Cox(X, np.where(late, 2.0, np.maximum(time, 0.1)), ~late, entry=entry).loss(
        np.ones(1), np.ones(n)
    )
    np.testing.assert_allclose(found, early, rtol=1e-13)


def test_whole_weights_are_copies_and_rows_of_one_subject_are_one_row():
    rng, n = np.random.default_rng(9), 40
    X, copies = rng.standard_normal((n, 2)), rng.integers(1, 4, n)
    time, event, many = (
        rng.exponential(np.exp(-X[:, 0])),
        rng.random(n) < 0.8,
        np.repeat(np.arange(n), copies),
    )
    fits = [
        lo.fit(lo.Cox(X, time, event, ties="breslow", sample_weight=copies)),
        lo.fit(lo.Cox(X[many], time[many], event[many], ties="breslow")),
    ]
    plans = lo.leave_one_out(n), lo.groups(many)
    both = [
        lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10)).losses
        for fit, plan in zip(fits, plans, strict=True)
    ]
    np.testing.assert_allclose(*both, atol=1e-9)
    with pytest.raises(ValueError, match="weight"):
        lo.cross_validate(fits[0], lo.leave_one_out(cases=True))
    cut = lo.Cox(
        np.repeat(X, 2, 0),
        np.c_[time / 2, time].ravel(),
        np.c_[np.zeros(n), event].ravel(),
        entry=np.c_[np.full(n, -1.0), time / 2].ravel(),
    )
    whole, plan = lo.fit(lo.Cox(X, time, event)), lo.groups(np.repeat(np.arange(n), 2))
    found = lo.cross_validate(lo.fit(cut), plan, strategy=lo.Exact(1e-10)).losses
    np.testing.assert_allclose(
        found, lo.cross_validate(whole, plans[0], strategy=lo.Exact(1e-10)).losses, atol=1e-9
    )


@pytest.mark.parametrize(
    "what, given",
    [
        ("sample_weight must be positive", {"sample_weight": [1.0, 0.0, 1.0, 1.0]}),
        ("row 2 enters at 4 and ends at 3", {"entry": [0.0, 1.0, 4.0, 2.0]}),
    ],
)
def test_weights_and_entry_times_that_are_none(what, given):
    with pytest.raises(ValueError, match=what):
        lo.Cox(np.eye(4), np.arange(1.0, 5), np.ones(4), **given)


def _times(objective: lo.Cox) -> np.ndarray:
    """Times in the order of those of a model of one stratum."""
    return -np.argsort(objective.order).astype(float) + objective.num_units
