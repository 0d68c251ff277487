"""Rows in a memory map or in float32.

The numbers of a copy in float64, and no such copy on the way.
"""

import pickle
import tracemalloc

import numpy as np
import pytest

import leaveout as lo
from leaveout.linalg import mapped_design as _mapped

N, P = 120, 5
RIDGE = lo.penalties.Ridge(0.7)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few rows count as many, and are looked at in blocks of forty."""
    monkeypatch.setattr(_mapped, "CHEAP_COPY_ENTRIES", 0)
    monkeypatch.setattr(_mapped, "DENSE_BLOCK", 40 * (P + 1))


def table(n=N, p=P, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)).astype(np.float32)
    eta = X @ rng.standard_normal(p)
    return X, {
        "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "squared": eta + rng.standard_normal(n),
        "poisson": rng.poisson(np.exp(0.3 * eta)),
        "multinomial": np.digitize(eta + rng.standard_normal(n), [-1, 1]),
        "negative_binomial": rng.poisson(rng.gamma(2.0, size=n) * np.exp(0.3 * eta)),
    }


def alike(a, b, tol=1e-9):
    np.testing.assert_allclose(np.asarray(b, float), np.asarray(a, float), rtol=tol, atol=tol)


KINDS = [
    ("logistic", "ridge"),
    ("squared", "averaged"),
    ("poisson", "pseudo_huber"),
    ("multinomial", "ridge"),
]


@pytest.mark.parametrize(("loss", "penalty"), KINDS)
def test_every_plan_and_strategy_gives_the_numbers_of_a_copy(loss, penalty):
    X, y = table()
    given = {"ridge": RIDGE, "averaged": lo.penalties.per_weight(lo.penalties.Ridge(0.01))}
    R = given.get(penalty, lo.penalties.PseudoHuber(0.5, 0.3))
    copy, single = (lo.fit(lo.GLM(x, y[loss], loss, R)) for x in (X.astype(float), X))
    assert isinstance(single.objective.design, _mapped.MappedDesign)
    alike(copy.vector, single.vector)
    plans = {"loo": lo.leave_one_out(N), "folds": lo.kfold(N, 3), "bootstrap": lo.bootstrap(N, 4)}
    for name, refit in (
        ("loo", lo.Certified()),
        ("folds", lo.NewtonStep()),
        ("bootstrap", lo.Exact()),
        ("loo", lo.NewtonStep()),
    ):
        one, other = (lo.cross_validate(fit, plans[name], strategy=refit) for fit in (copy, single))
        alike(one.losses, other.losses), alike(one.error, other.error, 1e-5)
        assert (one.proved == other.proved).all(), (name, refit)


def test_every_verb_takes_them():
    X, y = table()
    plan, loo, dense = lo.kfold(N, 5), lo.leave_one_out(N), X.astype(float)
    weight = np.random.default_rng(1).random(N) + 0.5
    a, b = (
        lo.fit(lo.GLM(x, y["squared"], "squared", RIDGE, sample_weight=weight)) for x in (dense, X)
    )
    alike(lo.cross_predict(a, loo), lo.cross_predict(b, loo))
    alike(lo.fold_parameters(a, plan)["coef"], lo.fold_parameters(b, plan)["coef"])
    alike(lo.interval(a, dense[:7]), lo.interval(b, X[:7]))
    alike(lo.covariance(a), lo.covariance(b))
    alike(lo.diagnostics.leverage(a), lo.diagnostics.leverage(b))
    alike(
        *(
            lo.influence(lo.cross_validate(fit, loo)).table().select_dtypes("number")
            for fit in (a, b)
        )
    )
    # the second is for coordinate descent, which wants a copy
    for R in (lo.penalties.Ridge, lo.penalties.Lasso):
        alike(
            *(
                lo.path(lo.GLM(x, y["squared"], "squared"), [R(0.1), R(1.0)], loo).table()["mean"]
                for x in (dense, X)
            )
        )


def test_what_jax_derives_sees_a_copy():
    X, y = table()
    a, b = (
        lo.GLM(x, y["logistic"], "logistic", RIDGE, class_weight="balanced")
        for x in (X.astype(float), X)
    )
    plan = lo.kfold(N, 4)
    alike(
        *(
            lo.cross_validate(
                lo.fit(model), plan, strategy=lo.InfinitesimalJackknife(order=2)
            ).losses
            for model in (a, b)
        )
    )
    a, b = (
        lo.Regression(x, y["negative_binomial"], "negative_binomial", RIDGE)
        for x in (X.astype(float), X)
    )
    assert isinstance(b.design, np.ndarray)
    alike(lo.fit(a).vector, lo.fit(b).vector)
    assert isinstance(
        lo.GLM(X, y["squared"], "squared", lo.penalties.Lasso(1.0)).design, np.ndarray
    )
    assert isinstance(
        lo.GLM(X, y["squared"], "squared").under(lo.penalties.Lasso(1.0)).design, np.ndarray
    )


def test_maps_stay_maps(tmp_path):
    X, y = table()
    map_ = np.memmap(tmp_path / "rows", np.float64, "w+", shape=X.shape)
    map_[:] = X
    map_ = np.memmap(tmp_path / "rows", np.float64, "r", shape=X.shape)
    model = lo.GLM(map_, y["logistic"], "logistic", RIDGE)
    assert _mapped.is_mapped(model.design.source) and np.shares_memory(model.design.source, map_)
    alike(
        lo.fit(model).vector,
        lo.fit(lo.GLM(np.array(map_), y["logistic"], "logistic", RIDGE)).vector,
    )
    again = pickle.loads(pickle.dumps(model))
    alike(lo.fit(again).vector, lo.fit(model).vector)
    assert not _mapped.is_mapped(np.array(map_)) and not _mapped.elsewhere(np.array(map_))


def test_nan_is_named_by_column_and_row():
    X, y = table()
    X[113, 2] = np.nan
    with pytest.raises(ValueError, match=r"columns \[2\], the first in row 113"):
        lo.GLM(X, y["logistic"], "logistic", RIDGE)


def test_a_checkpoint_knows_them_again(tmp_path):
    X, y = table()
    run = lambda x: lo.cross_validate(
        lo.fit(lo.GLM(x, y["logistic"], "logistic", RIDGE)),
        lo.kfold(k=3),
        checkpoint=tmp_path / "run",
    )
    one = run(X)
    alike(one.losses, run(X).losses)
    with pytest.raises(ValueError, match="other model or data"):
        run(X + np.float32(1))


@pytest.mark.slow
def test_no_copy_is_made(monkeypatch, tmp_path):
    """96 MB in float64: all that a model, its fit and its refits take at a time is less than a
    third of that.
    """
    monkeypatch.setattr(_mapped, "CHEAP_COPY_ENTRIES", 2**21)
    monkeypatch.setattr(_mapped, "DENSE_BLOCK", 2**17)
    n, p = 60_000, 200
    rng = np.random.default_rng(0)
    rng.standard_normal((n, p), np.float32).tofile(tmp_path / "rows")
    X = np.memmap(tmp_path / "rows", np.float32, "r", shape=(n, p))
    y = (rng.random(n) < 0.5).astype(float)
    # imports, checks of shapes
    lo.cross_validate(lo.fit(lo.GLM(X, y, "logistic", RIDGE)), lo.leave_one_out(), audit=0)
    tracemalloc.start()
    fit = lo.fit(lo.GLM(X, y, "logistic", RIDGE))
    lo.cross_validate(fit, lo.leave_one_out(), audit=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < n * p * 8 / 3, peak
