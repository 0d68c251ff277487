"""Series of another length use the programs that were compiled for one: padded, they say what they
said. Against the same models without padding, and against enumeration of paths."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import leaveout as lo
from leaveout.models.hidden import hidden_chain as _hidden_chain, hmm as chains
from leaveout.objectives.batch_functions import DerivedBatch, whole
from leaveout.objectives.contiguous_folds import runs
from leaveout.plans.plan import _few_sizes, few_size
from leaveout.refit import _expansion
from tests.helpers import call, flat
from tests.models.hidden.test_hmm import COUNTS, GIVEN, GIVEN3, NORMAL, at, built, oracle
from tests.test_laws import _compiled as compiled

MISSING = np.where(np.arange(7) == 2, np.nan, COUNTS[:7])
CASES = {
    "one sequence": (MISSING, None, GIVEN, False),
    "linked lanes": (COUNTS[:7], None, GIVEN, True),
    "several, three states": (COUNTS[:7], [2, 1, 1, 1, 2], GIVEN3, False),
    "gaussian": (MISSING / 3 - 1, [3, 4], NORMAL, False),
}


@pytest.fixture
def plain(monkeypatch):
    """Models that are made in its scope are not padded."""

    def make(function):
        with monkeypatch.context() as scope:
            for module in (chains, _hidden_chain):
                scope.setattr(module, "few_size", int)
            model = function()
            assert model.padded_chain is model  # kept from now on
            return model

    return make


def counts(steps: int, seed: int = 0) -> np.ndarray:
    """Two states; some steps missing."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(np.array([1.0, 6.0])[np.cumsum(rng.random(steps) < 0.15) % 2]).astype(float)
    x[rng.choice(steps, steps // 20, replace=False)] = np.nan
    return x


def test_sizes_are_few():
    sizes = [few_size(n) for n in range(1, 3000)]
    assert (
        all(n <= size <= 1.5 * n for n, size in enumerate(sizes, 1))
        and len(set(sizes[:2048])) == 22
    )
    assert sizes[2048:] == list(range(2049, 3000))
    np.testing.assert_array_equal(sizes[:2048], _few_sizes(np.arange(1, 2049)))


QUICK = ("one sequence", "observation"), ("several, three states", "sequence")
ALL = [
    pytest.param(name, drop, marks=() if (name, drop) in QUICK else pytest.mark.slow)
    for name in CASES
    for drop in ("observation", "step", "sequence")
]


@pytest.mark.parametrize(("name", "drop"), ALL)
@pytest.mark.slow_for("one sequence-observation")
def test_padding_says_nothing(name, drop, plain, monkeypatch):
    x, lengths, parameters, linked = CASES[name]
    lengths = [2, 1, 1, 1, 2] if drop == "sequence" else lengths
    make = lambda: built(x, parameters, drop, lengths, linked, monkeypatch)
    padded, own = make(), plain(make)
    assert (
        padded.padded_chain.num_units == few_size(own.num_units) > own.num_units == padded.num_units
    )
    theta, rng = at(own, parameters), np.random.default_rng(0)
    vector, n = flat(theta), own.num_units
    weights = np.stack([np.ones(n), rng.uniform(0, 1.5, n), (rng.random(n) < 0.6) * 1.0])
    at_each, everyone = np.tile(vector, (3, 1)), np.arange(3)
    with jax.enable_x64(True):
        one, two = (DerivedBatch(model, theta, whole(weights)) for model in (padded, own))
        values = one.look(at_each, everyone)[0]
        for what in ("look", "hessian"):
            for a, b in zip(
                *(jax.tree.leaves(getattr(F, what)(at_each, everyone)) for F in (one, two)),
                strict=True,
            ):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for value, w in zip(values, weights, strict=True):
        np.testing.assert_allclose(value, oracle(own, parameters, x, w), rtol=1e-11)
    jacobians = (call(model.jacobian, theta) for model in (padded.padded_chain, own))
    beyond, known = next(jacobians), next(jacobians)
    np.testing.assert_allclose(beyond[:n], known, rtol=1e-10, atol=1e-12)
    assert not beyond[n:].any()


PLANS = {
    "single steps": lambda n: lo.leave_one_out(n),
    "blocks": lambda n: lo.blocks(n, 3, buffer=1),
    "at random": lambda n: lo.kfold(n, 4, seed=0),
}
REFITS = [lo.Certified(), lo.Exact(), lo.NewtonStep(), lo.InfinitesimalJackknife(2), lo.NoUpdate()]


def of_five(plain, drop="observation", score="pointwise"):
    """A model of five sequences, with padding and without."""
    lengths = np.array([9, 6, 11, 7, 10])
    make = lambda: lo.HMM(
        counts(43), lo.emissions.Poisson(), 2, lengths=lengths, drop=drop, score=score
    )
    return make(), plain(make)


def close(a, b, tol=1e-8):
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.slow
def test_losses_are_those_without_padding(plain):
    fits = [lo.fit(model, num_starts=1) for model in of_five(plain)]
    close(fits[0].vector, fits[1].vector)
    found = [lo.cross_validate(fit, lo.leave_one_out(43)) for fit in fits]
    close(found[0].losses, found[1].losses, 1e-6)
    close(found[0].error, found[1].error, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("drop", ["observation", "step", "sequence"])
def test_refits_are_those_without_padding(drop, plain):
    fits = [lo.fit(model, num_starts=1) for model in of_five(plain, drop)]
    close(fits[0].influence, fits[1].influence)
    for name, plan in PLANS.items():
        plan = plan(fits[0].objective.num_units)
        for refit in REFITS if name == "single steps" else REFITS[:1]:
            found = [lo.cross_validate(fit, plan, refit) for fit in fits]
            close(found[0].losses, found[1].losses, 1e-6)
            close(*(np.minimum(estimate.error, 1e6) for estimate in found), 1e-3)
        for a, b in zip(
            *(jax.tree.leaves(lo.fold_parameters(fit, plan, lo.Exact())) for fit in fits),
            strict=True,
        ):
            close(a, b, 1e-6)
    joint = [
        replace(fit, objective=model)
        for fit, model in zip(fits, of_five(plain, drop, "joint"), strict=True)
    ]
    close(*(lo.cross_validate(fit, plan, lo.NoUpdate(), audit=0).losses for fit in joint))
    if drop != "sequence":
        close(*(lo.cross_predict(fit, plan) for fit in fits), 1e-6)
        close(*(lo.cross_predict(fit, plan, kind="state") for fit in fits), 1e-6)


@pytest.mark.slow
def test_what_users_ask_is_of_their_own_steps(plain):
    make = lambda: lo.HMM(counts(43), lo.emissions.Poisson(), 2)
    fit, own = lo.fit(make(), num_starts=1), plain(make)
    seen = (np.arange(43) % 3 > 0).astype(float)
    for ask in (
        lambda model: model.log_likelihood(fit),
        lambda model: [model.aic(fit), model.bic(fit)],
        lambda model: model.decode(fit),
        lambda model: model.state_probabilities(fit, seen),
        lambda model: model.predictive_means(fit, seen),
        lambda model: model.forecast(fit, 3),
        lambda model: model.parameters.shares(fit.theta),
    ):
        found, want = (np.asarray(ask(model)) for model in (fit.objective, own))
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-10)


@pytest.mark.slow
def test_runs_of_steps_are_those_without_padding(plain, monkeypatch):
    monkeypatch.setattr(_expansion, "COMPILING_COST", 0.0)
    monkeypatch.setattr(_expansion, "MIN_REFIT_PASSES", 10**6)
    make = lambda: lo.HMM(counts(86), lo.emissions.Poisson(), 2)
    fits = [lo.fit(model, num_starts=1) for model in (make(), plain(make))]
    plan = lo.leave_one_out(86)
    (batch,) = plan.batches(10**9, 1, 0, uniform=True)
    with jax.enable_x64(True):
        found = [runs(fit.objective, fit.theta, batch.rows) for fit in fits]
        for a, b in zip(*(told.scores(fits[0].vector) for told in found), strict=True):
            assert len(a) == 86
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    estimates = [lo.cross_validate(fit, plan) for fit in fits]
    np.testing.assert_allclose(*(estimate.losses for estimate in estimates), rtol=1e-7)


@pytest.mark.slow
def test_another_length_compiles_nothing():
    def trial(steps, seed=0, lengths=None):
        fit = lo.fit(
            lo.HMM(counts(steps, seed), lo.emissions.Poisson(), 2, lengths=lengths), num_starts=1
        )
        lo.cross_validate(fit, lo.leave_one_out(steps))
        lo.fold_parameters(fit, lo.leave_one_out(steps))
        return fit.objective.decode(fit)

    assert len(trial(47)) == 47
    before = compiled()
    for steps in (33, 48):
        assert len(trial(steps)) == steps
    assert compiled() == before
    trial(47, lengths=[15, 12, 20])
    before = compiled()
    trial(43, lengths=[13, 13, 17])
    assert compiled() == before


@pytest.mark.slow
def test_other_lengths_of_sequences_compile_nothing():
    def trial(lengths):
        model = lo.HMM(
            counts(sum(lengths)), lo.emissions.Poisson(), 2, lengths=lengths, drop="sequence"
        )
        return lo.cross_validate(lo.fit(model, num_starts=1), lo.leave_one_out(len(lengths))).losses

    assert trial([9, 10, 5, 10, 8, 5]).shape == (6,)
    before = compiled()
    assert trial([9, 6, 11, 7, 10]).shape == (5,)
    assert compiled() == before


def test_refits_are_no_wider_than_there_are_units():
    """Of padded units wider ones would be taken for lists of all."""
    plan = lo.Plan([0, 5], np.arange(5), [0.0, 2.0, 0.5, 3.0, 2.0], np.arange(5) == 0, 5)
    (batch,) = plan.batches(10**6, 1, 0)
    assert batch.rows.index.shape == (1, 5) and few_size(5) == 6
