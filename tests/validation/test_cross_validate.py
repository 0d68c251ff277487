"""Strategies of users, which say less of their refits than the library's own."""

import numpy as np
import pytest

import leaveout as lo
from leaveout.models.hidden.hidden_chain import AbstractHiddenChain
from leaveout.refit import RefitBatch


class Host(lo.AbstractRefit):
    """Exact refits of least squares by NumPy, without lengths of steps and without proofs."""

    def __call__(self, fit, rows, *, judge=True):
        model = fit.objective
        design, y = np.column_stack([model.design[:, :2], np.ones(model.num_units)]), np.asarray(model.y)
        found = []
        for index, weight in zip(rows.index, rows.weight, strict=True):
            seen = np.setdiff1d(np.arange(len(y)), index[weight == 0])
            found.append(np.linalg.lstsq(design[seen], y[seen], rcond=None)[0])
        theta = np.array(found)
        return RefitBatch(lambda: theta, error=np.full(len(theta), 1e-9), result=np.zeros(len(theta), int))


@pytest.mark.parametrize("folds", [30, 5], ids=["single rows", "folds"])
def test_a_strategy_without_lengths_of_steps_is_audited(folds):
    random = np.random.default_rng(0)
    X = random.standard_normal((30, 2))
    fit = lo.fit(lo.GLM(X, X[:, 0] + random.standard_normal(30), "squared"))
    plan = lo.kfold(30, folds, seed=0)
    own, exact = (lo.cross_validate(fit, plan, refit) for refit in (Host(), lo.Exact()))
    np.testing.assert_allclose(own.losses, exact.losses, atol=1e-9)
    assert own.audit is not None and not own.audit.beyond.any()


def test_what_a_fit_says_of_its_states_is_computed_once(monkeypatch):
    random = np.random.default_rng(0)
    fit = lo.fit(lo.HMM(random.normal(3.0 * (np.arange(60) // 10 % 2), 1.0), lo.emissions.Gaussian(), 2))
    passes, visits = [], AbstractHiddenChain.visits
    monkeypatch.setattr(AbstractHiddenChain, "visits", lambda *args: passes.append(args) or visits(*args))
    for seed in range(2):
        lo.cross_validate(fit, lo.random_subsets(60, 0.1, 2, seed=seed), lo.InfinitesimalJackknife())
    assert len(passes) == 1
