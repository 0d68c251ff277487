"""`lo.tune`: slopes against differences of criteria from scratch, choices against grids, optimism
against its definition.
"""

import builtins
import functools

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy
from jax.tree_util import Partial
from typer.testing import CliRunner

import leaveout as lo
from leaveout._runtime.lazy_jax import float64
from leaveout.extensions.cli import app
from leaveout.tuning import hypergradient as _hyper, tune as _tune
from leaveout.validation.cross_validate import EstimateBuilder, reader_for

rng = np.random.default_rng(0)
N, P = 60, 4
X = rng.standard_normal((N, P))
Y = (rng.random(N) < 1 / (1 + np.exp(-X[:, 0] + 0.5 * X[:, 1]))).astype(float)
MODEL = lo.GLM(X, Y, "logistic")
LOO = lo.leave_one_out(N)
PLANS = {
    "loo": LOO,
    "wide folds": lo.kfold(N, 4, rng=0),
    "narrow folds": lo.kfold(N, 30, rng=0),
    "bootstrap": lo.bootstrap(N, 6),
    "buffers": lo.blocks(N, 5, buffer=2),
}


def two(a, b):
    return MODEL.under(lo.penalties.Ridge([a, a, b, b]))


def scratch(rho, plan):
    """Two ridges, logistic.

    Fit by Newton's steps, one more with each fold's own Hessian, mean over units.
    """
    Z, S = np.c_[X, np.ones(N)], np.diag([*np.repeat(rho, 2), 0.0])
    share = lambda theta: 1 / (1 + np.exp(-Z @ theta))

    def stepped(theta, w):
        mu = share(theta)
        return theta - np.linalg.solve(
            (Z.T * (w * mu * (1 - mu))) @ Z + S, Z.T @ (w * (mu - Y)) + S @ theta
        )

    theta = np.zeros(P + 1)
    for _ in range(50):
        theta = stepped(theta, np.ones(N))
    total, times = np.zeros(N), np.zeros(N)
    for k, w in enumerate(plan.matrix()):
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        held = plan.index[mine][plan.held[mine]]
        eta = Z[held] @ stepped(theta, w)
        np.add.at(total, held, np.logaddexp(0, eta) - Y[held] * eta)
        np.add.at(times, held, 1)
    return np.mean((total / np.maximum(times, 1))[times > 0])


def differences(criterion, rho):
    """Central, of fourth order."""
    out = []
    for j in range(len(rho)):
        e = 1e-3 * rho[j] * (np.arange(len(rho)) == j)
        near, far = (criterion(rho + k * e) - criterion(rho - k * e) for k in (1, 2))
        out.append((8 * near - far) / (12 * e[j]))
    return np.array(out)


@float64
def looked(build, rho, plan, pooled=None):
    """The criterion and its slope."""
    hyper = dict(zip("ab", rho, strict=False))
    fit, slopes = lo.fit(build(**hyper)), _hyper.LossSlopes(build, list(hyper), pooled)
    return slopes, slopes(fit, reader_for("test", fit).resolve(plan), np.asarray(rho, float))


def refitted(build, plan):
    fit = lambda rho: lo.fit(build(**dict(zip("ab", rho, strict=False))))
    return lambda rho: lo.cross_validate(fit(rho), plan, strategy=lo.NewtonStep(), audit=0).mean


@pytest.mark.parametrize("name", PLANS)
def test_slopes_are_those_of_fits_from_scratch(name):
    rho, plan = np.array([1.3, 0.4]), PLANS[name]
    slopes, found = looked(two, rho, plan)
    assert slopes.alone and found.value == pytest.approx(scratch(rho, plan), rel=1e-9)
    assert found.value == pytest.approx(refitted(two, plan)(rho), abs=1e-12)
    np.testing.assert_allclose(
        found.slope, differences(lambda rho: scratch(rho, plan), rho), rtol=1e-6
    )


def test_slopes_of_weights_offsets_and_matrices():
    r = np.random.default_rng(1)
    counts, L = r.poisson(2.0, N), np.kron([[1, -1], [-1, 1]], np.eye(2))
    model = lo.GLM(
        X, counts, "poisson", sample_weight=r.gamma(2.0, size=N), offset=r.standard_normal(N) / 3
    )
    for build in (
        lambda a, b: model.under(lo.penalties.Ridge(a) + lo.penalties.Quadratic(b * L)),
        float64(
            lambda a, b: model.under(
                lo.penalties.Quadratic(a**2 * jnp.eye(P) + jnp.sqrt(a * b) * L)
            )
        ),
    ):
        slopes, found = looked(build, np.array([0.7, 2.0]), LOO)
        assert slopes.alone
        np.testing.assert_allclose(
            found.slope, differences(refitted(build, LOO), np.array([0.7, 2.0])), rtol=1e-6
        )


def test_the_strength_of_a_ridge_is_derived_without_a_program():
    plain, doubled = (
        (lambda a, b: MODEL.under(lo.penalties.Ridge(b))),
        lambda a, b: MODEL.under(lo.penalties.Ridge(2 * b)),
    )
    (slopes, found), (other, twice) = (
        looked(plain, [1.0, 0.8], LOO),
        looked(doubled, [1.0, 0.4], LOO),
    )
    assert slopes.constant is not None and "_penalty" not in vars(slopes) and other.constant is None
    np.testing.assert_allclose(2 * found.slope, twice.slope, rtol=1e-9)


def test_slopes_with_more_columns_than_rows():
    r = np.random.default_rng(2)
    Z = r.standard_normal((20, 50))
    model = lo.GLM(np.c_[Z, np.ones(20)], Z[:, 0] > 0, "logistic")
    build = lambda a: model.under(lo.penalties.Ridge(a))
    _, found = looked(build, [0.8], lo.leave_one_out(20))
    np.testing.assert_allclose(
        found.slope, differences(refitted(build, lo.leave_one_out(20)), np.array([0.8])), rtol=1e-6
    )


def unit_loss(b, theta, d):
    return jnp.logaddexp(0, d["x"] @ theta / b) - d["y"] * (d["x"] @ theta) / b


def quartic(a, theta):
    return a * jnp.sum(theta**4 + theta**2)


def together(a, b, theta, w):
    return (
        jnp.sum(w * (X @ theta - Y) ** 2)
        + a * jnp.sum(theta**2)
        + b * jnp.log1p(jnp.sum(w * (X @ theta) ** 4))
    )


# what is scored depends on a hyperparameter; a penalty times weights; units that are scored
# together
DERIVED = {
    "separable": lambda a, b: lo.Separable(
        Partial(unit_loss, b), {"x": X, "y": Y}, Partial(quartic, a), np.zeros(P)
    ),
    "per weight": lambda a, b: MODEL.under(lo.penalties.per_weight(lo.penalties.PseudoHuber(a, b))),
    "joint": lambda a, b: Started(Partial(together, a, b), N),
}


class Started(lo.Objective):
    """With a start."""

    @property
    def parameters(self):
        return lo.developer.models.Parameters(start=lambda seed: np.zeros(P))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("separable", marks=pytest.mark.slow),
        pytest.param("per weight", marks=pytest.mark.slow),
        "joint",
    ],
)
def test_slopes_that_jax_derives(name):
    build, rho = DERIVED[name], np.array([0.3, 1.4])
    plan = LOO if name == "separable" else lo.kfold(N, 4, rng=0)
    slopes, found = looked(build, rho, plan)
    criterion = refitted(build, plan)
    assert not slopes.alone and found.value == pytest.approx(criterion(rho), abs=1e-12)
    np.testing.assert_allclose(found.slope, differences(criterion, rho), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multinomial", "balanced", "gamma", "pseudo-Huber"])
def test_slopes_of_more_models(name):
    r = np.random.default_rng(3)
    ridge, bent = lambda a, b: lo.penalties.Ridge([a, a, b, b]), lo.penalties.PseudoHuber
    model, penalty = {
        "multinomial": (lo.GLM(X, r.integers(0, 3, N), "multinomial"), ridge),
        "balanced": (lo.GLM(X, Y, "logistic", class_weight="balanced"), ridge),
        "gamma": (lo.Regression(X, r.gamma(2.0, size=N), "gamma"), ridge),
        "pseudo-Huber": (MODEL, bent),
    }[name]
    build, plan = lambda a, b: model.under(penalty(a, b)), lo.kfold(N, 5, rng=0)
    _, found = looked(build, [1.0, 0.5], plan)
    np.testing.assert_allclose(
        found.slope, differences(refitted(build, plan), np.array([1.0, 0.5])), rtol=1e-5
    )


class TwoRidges(lo.developer.models.AbstractClosedForm):
    """The same as `two` by NumPy."""

    a: np.ndarray
    b: np.ndarray

    @property
    def num_units(self):
        return N

    @property
    def units(self):
        return lo.developer.models.Units()  # which are independent

    @property
    def parameters(self):
        return lo.developer.models.Parameters(start=lambda seed: np.zeros(P + 1))

    def look(self, theta, weights, state=None):
        Z, penalty = np.c_[X, np.ones(N)], np.array([self.a, self.a, self.b, self.b, 0.0])
        eta = theta @ Z.T
        value = np.sum(weights * (np.logaddexp(0, eta) - Y * eta), 1) + 0.5 * theta**2 @ penalty
        return value, (weights * (scipy.special.expit(eta) - Y)) @ Z + theta * penalty, None

    def losses(self, theta, weights, index, held, state=None):
        eta = theta @ np.c_[X, np.ones(N)].T
        return np.take_along_axis(np.logaddexp(0, eta) - Y * eta, np.minimum(index, N - 1), 1)


@pytest.mark.parametrize("name", ["wide folds", "bootstrap"])
def test_slopes_of_closed_forms(name):
    rho, plan = np.array([1.3, 0.4]), PLANS[name]
    _, found = looked(TwoRidges, rho, plan)
    assert found.value == pytest.approx(scratch(rho, plan), rel=1e-6)
    np.testing.assert_allclose(
        found.slope, differences(lambda rho: scratch(rho, plan), rho), rtol=1e-4, atol=1e-8
    )


def test_closed_forms_are_tuned_by_gradient(tmp_path):
    """To where the linear model of the same penalties is; and on from a checkpoint."""
    builds, plan = (lambda a: TwoRidges(a, 2.0), lambda a: two(a, 2.0)), PLANS["wide folds"]
    found, known = (
        lo.tune(build, {"a": (0.01, 100.0)}, plan, num_outer_folds=0) for build in builds
    )
    assert found.best.hyper["a"] == pytest.approx(known.best.hyper["a"], rel=1e-2)
    assert found.best.value == pytest.approx(known.best.value, rel=1e-6)
    kept = [
        lo.tune(
            builds[0], {"a": (0.01, 100.0)}, plan, num_outer_folds=0, checkpoint=tmp_path / "kept"
        )
        for _ in range(2)
    ]
    assert [one.best.hyper for one in kept] == [found.best.hyper] * 2


def test_the_smoothed_area_and_its_slope():
    eta, weight = rng.standard_normal(N), rng.gamma(2.0, size=N)
    value, slope = _hyper.smoothed_area(Y, eta, weight)
    pairs = [(i, j) for i in range(N) for j in range(N) if Y[i] > Y[j]]
    mass = np.array([weight[i] * weight[j] for i, j in pairs])
    apart = np.array([(eta[i] - eta[j]) / (_hyper.AREA_STEP_WIDTH * np.std(eta)) for i, j in pairs])
    assert value == pytest.approx(-np.average(scipy.special.expit(apart), weights=mass))
    for k in (0, 7, 30):
        e = 1e-5 * (np.arange(N) == k)
        change = (
            _hyper.smoothed_area(Y, eta + e, weight)[0]
            - _hyper.smoothed_area(Y, eta - e, weight)[0]
        ) / 2e-5
        assert slope[k] == pytest.approx(change, rel=1e-4, abs=1e-9)
    rho = np.array([1.3, 0.4])
    found = looked(two, rho, LOO, _hyper.smoothed_area)[1]
    predicted = lambda rho: np.asarray(
        lo.cross_predict(lo.fit(two(*rho)), LOO, strategy=lo.NewtonStep(), kind="link")
    )
    np.testing.assert_allclose(
        found.slope,
        differences(lambda r: _hyper.smoothed_area(Y, predicted(r), np.ones(N))[0], rho),
        rtol=1e-5,
    )


SPACE = {"a": (1e-3, 1e5), "b": (1e-3, 1e5)}


def test_the_gradient_finds_the_minimum_by_steps_of_two_e_folds():
    found = lo.tune(two, SPACE, LOO)
    grid = np.geomspace(1e-3, 1e5, 25)
    least = min(scratch([a, b], LOO) for a in grid for b in grid)
    assert found.best.value <= least + 1e-3 * found.estimate.scale and len(found.all_trials) < 40
    assert (
        found.estimate.mean
        == pytest.approx(found.best.value, abs=1e-8)
        == found.trials["mean"].min()
    )
    places = np.log([list(trial.hyper.values()) for trial in found.all_trials])
    for k in range(1, len(places)):
        assert np.abs(places[:k] - places[k]).max(1).min() <= 2 + 1e-9
    assert (
        "by gradient" in str(found)
        and "for having been chosen" in str(found)
        and "<table>" in found._repr_html_()
    )
    assert np.isfinite(found.fit.vector).all() and found.hyper == found.best.hyper


def test_no_step_is_long_where_the_criterion_is_flat():
    found = lo.tune(
        lambda a: two(a, a), {"a": (1e-9, 1e9)}, LOO, start={"a": 1e-7}, num_outer_folds=0
    )
    places = np.log(found.trials["a"].to_numpy())
    assert np.abs(np.diff(places)).max() <= 4 + 1e-9  # both ways out of the middle of a box
    assert (
        found.best.value
        <= min(scratch([a, a], LOO) for a in np.geomspace(1e-2, 1e3, 30))
        + 1e-3 * found.estimate.scale
    )


@pytest.mark.slow
def test_ten_penalties_take_some_dozens_of_fits():
    r = np.random.default_rng(4)
    Z = r.standard_normal((150, 10))
    model = lo.GLM(Z, r.random(150) < 1 / (1 + np.exp(-Z[:, :3].sum(1))), "logistic")
    names = [f"a{k}" for k in range(10)]
    found = lo.tune(
        lambda **a: model.under(lo.penalties.Ridge([*a.values()])),
        dict.fromkeys(names, (1e-2, 1e4)),
        lo.kfold(k=10),
    )
    assert len(found.all_trials) < 50 and "not converged" not in str(found)
    slope = found.all_trials[[trial is found.best for trial in found.all_trials].index(True)].slope
    inside = [slope[name] for name in names if name not in found.at_bound]
    assert np.abs(inside).max() < 0.02 * found.estimate.scale


def test_bounds_budgets_and_what_does_nothing_are_said():
    r = np.random.default_rng(5)
    noise = lo.GLM(r.standard_normal((40, 3)), r.standard_normal(40), "squared")
    build = lambda a, b: noise.under(lo.penalties.Ridge(a))
    found = lo.tune(
        build,
        {"a": (1e-2, 1e3), "b": (1.0, 2.0)},
        lo.leave_one_out(),
        start={"a": 900.0, "b": 1.5},
    )
    assert found.at_bound == ["a"] and "at a bound      a: look further" in str(found)
    assert "flat            along b wherever" in str(found) and list(
        found.all_trials[0].hyper.values()
    ) == pytest.approx([900.0, 1.5])
    short = lo.tune(two, SPACE, LOO, num_trials=2)
    assert len(short.all_trials) == 2 and "not converged: stopped after 2 fits" in str(short)


def test_the_path_is_that_of_path():
    build, plan = lambda a: MODEL.under(lo.penalties.Ridge(a)), lo.kfold(N, 6, rng=0)
    found = lo.tune(
        build, {"a": (0.1, 100.0)}, plan, strategy=lo.Exact(), sampler="path", num_trials=7
    )
    known = lo.path(MODEL, np.geomspace(0.1, 100.0, 7), plan, strategy=lo.Exact())
    assert found.hyper["a"] == pytest.approx(known.best.value)
    np.testing.assert_allclose(found.trials["mean"], known.table()["mean"], rtol=1e-9)
    with pytest.raises(ValueError, match="more than the penalty is another"):
        lo.tune(
            lambda a: lo.GLM(a * X, Y, "logistic", lo.penalties.Ridge(a)),
            {"a": (0.1, 1.0)},
            plan,
            sampler="path",
        )
    with pytest.raises(ValueError, match="values of one penalty"):
        lo.tune(two, SPACE, plan, sampler="path")


def exact_mean(fit, plan):
    return lo.cross_validate(fit, plan, strategy=lo.Exact(), audit=0).mean


def test_what_a_fit_alone_proves():
    """Exact refits lose no less on a fold than the fit did.

    Nothing is said where a fold drops more than it scores.
    """
    for plan in (LOO, lo.kfold(N, 4, rng=0)):
        for a in (0.05, 1.0, 30.0):
            fit = lo.fit(two(a, 2 * a))
            found = lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0)
            assert found.no_update == _tune.floor(fit, found) <= exact_mean(fit, plan)
    ring = lo.from_splits(
        (([i for i in range(N) if i not in (k, (k + 1) % N)], [k]) for k in range(N)), N
    )
    for plan in (PLANS["buffers"], PLANS["bootstrap"], ring):
        fit = lo.fit(two(1.0, 1.0))
        assert (
            _tune.floor(fit, lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0))
            == -np.inf
        )


def test_optuna_prunes_what_is_no_better():
    pytest.importorskip("optuna")
    clear = lo.GLM(X, X[:, 0] + 0.5 * np.random.default_rng(8).standard_normal(N) > 0, "logistic")
    two = lambda a, b: clear.under(lo.penalties.Ridge([a, a, b, b]))
    space = {"a": (1e-2, 1e4), "b": (1e-2, 1e4)}
    found, again = (
        lo.tune(two, space, LOO, strategy=lo.Exact(), sampler="optuna", num_trials=15, rng=1)
        for _ in range(2)
    )
    assert [trial.hyper for trial in found.all_trials] == [
        trial.hyper for trial in again.all_trials
    ]
    truth = [exact_mean(lo.fit(two(**trial.hyper)), LOO) for trial in found.all_trials]
    assert found.best.hyper == found.all_trials[int(np.argmin(truth))].hyper
    for said in ("pruned by its fit", "pruned by its step"):
        some = [k for k, trial in enumerate(found.all_trials) if trial.message == said]
        assert some and all(truth[k] > min(truth[:k]) for k in some)
    assert "pruned" in str(found) and found.all_trials[0].message == ""


def test_optuna_takes_choices_and_goes_on_after_failures():
    pytest.importorskip("optuna")

    def build(a, columns):
        if a > 30:
            raise RuntimeError("no minimiser")
        return lo.GLM(X[:, columns], Y, "logistic", lo.penalties.Ridge(a))

    space = {"a": (1.0, 100.0), "columns": [[0], [0, 1], [2, 3]]}
    plan = lo.kfold(N, 4, rng=0)
    found = lo.tune(
        build,
        space,
        plan,
        sampler="optuna",
        num_trials=12,
        metric="auc",
        start={"a": 5.0, "columns": [0, 1]},
    )
    assert found.all_trials[0].hyper == {"a": 5.0, "columns": [0, 1]}
    failed = [trial for trial in found.all_trials if trial.hyper["a"] > 30]
    assert failed and all(
        "no minimiser" in trial.message and trial.estimate is None for trial in failed
    )
    assert found.trials["auc"].max() == pytest.approx(found.estimate.metrics.loc["auc", "value"])
    areas = [
        lo.cross_validate(
            lo.fit(build(**trial.hyper)), plan, strategy=lo.NewtonStep(), metric="auc", audit=0
        ).metrics.loc["auc", "value"]
        for trial in found.all_trials
        if not trial.message
    ]
    np.testing.assert_allclose(areas, found.trials["auc"].dropna(), rtol=1e-12)
    assert "trials; the first: no fit" in str(found)


def test_without_optuna_it_says_what_to_install(monkeypatch):
    known = builtins.__import__
    missing = lambda name, *args, **more: known(
        name if name != "optuna" else "optuna_that_is_not_there", *args, **more
    )
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'leaveout\[tune\]'"):
        lo.tune(two, SPACE, LOO, sampler="optuna")


def test_optimism_is_that_of_its_definition():
    plan = lo.groups(np.arange(N) // 3)
    found = lo.tune(
        lambda a: MODEL.under(lo.penalties.Ridge(a)),
        {"a": (1e-2, 1e3)},
        plan,
        sampler="path",
        num_trials=9,
    )
    losses = np.array([trial.estimate.per_unit() for trial in found.all_trials])
    draws, best = np.random.default_rng(0), losses[losses.mean(1).argmin()]
    total = []
    for _ in range(_tune.OPTIMISM_DRAWS):
        label = _tune.group_units(found.estimate, draws)
        assert (
            all(len(set(label[plan.clusters == c])) == 1 for c in np.unique(plan.clusters))
            and label.max() == 2
        )
        excess = [
            np.sum(losses[losses[:, label != g].mean(1).argmin()][label == g] - best[label == g])
            for g in range(3)
        ]
        total.append(np.sum(excess) / N)
    assert found.optimism == pytest.approx(np.mean(total), rel=1e-12)


def test_optimism_down_a_slope_is_that_of_descents_on_the_others():
    """Each of three groups.

    The criterion of the other two at its minimum, found by another program.
    """
    build, plan = lambda a: MODEL.under(lo.penalties.Ridge(a)), lo.kfold(N, 6, rng=0)
    found = lo.tune(build, {"a": (1e-1, 1e3)}, plan)
    ((label, chosen),) = found.how.nested_trials
    losses = lambda x: lo.cross_validate(
        lo.fit(build(np.exp(x))), plan, strategy=lo.NewtonStep(), audit=0
    ).per_unit()
    excess = []
    for g, trial in enumerate(chosen):
        least = scipy.optimize.minimize_scalar(
            lambda x, g=g: losses(x)[label != g].mean(),
            bounds=np.log([1e-1, 1e3]),
            method="bounded",
        )
        assert (
            losses(np.log(trial.hyper["a"]))[label != g].mean()
            <= least.fun + 1e-3 * found.estimate.scale
        )
        excess.append(
            trial.estimate.per_unit()[label == g].sum()
            - found.estimate.per_unit()[label == g].sum()
        )
    assert (
        len(chosen) == 3
        and found.optimism == pytest.approx(np.sum(excess) / N)
        and found.optimism > 0
    )


def test_optimism_costs_one_look_and_a_few_of_each_group(monkeypatch):
    """The first refits of all groups are the same; each later look is one fit."""
    looks, fits = [], []
    evaluate, fit_trial = _hyper.LossSlopes._evaluate, _tune.TrialStudy.fit_trial
    monkeypatch.setattr(
        _hyper.LossSlopes, "_evaluate", lambda *a: (looks.append(len(a[-1])), evaluate(*a))[1]
    )
    monkeypatch.setattr(
        _tune.TrialStudy, "fit_trial", lambda *a: (fits.append(1), fit_trial(*a))[1]
    )
    found = lo.tune(lambda a: MODEL.under(lo.penalties.Ridge(a)), {"a": (1e-1, 1e3)}, LOO)
    first = len(found.all_trials)
    assert (
        looks[first] == 3 and looks.count(3) == 1 and len(fits) == len(looks) <= first + 1 + 3 * 5
    )


def test_optimism_of_models_that_are_luck():
    """Of forty trials that differ by noise alone the lowest is low by luck.

    Nested, it is as good as any other, on average.
    """
    first = lo.tune(two, SPACE, LOO, num_trials=2, num_outer_folds=0)
    assert np.isnan(first.optimism) and "not told" in str(first)
    plan, how = lo.leave_one_out(400), _tune.SearchEnd("by Optuna", "")
    base = lo.cross_validate(
        lo.fit(lo.GLM(np.ones((400, 1)), X[np.arange(400) % N, 0], "squared", intercept=False)),
        plan,
    )
    seems, nested = [], []
    for seed in range(12):
        noise = np.random.default_rng(seed).standard_normal((40, 400))
        made = [
            lo.tuning.Trial({"a": k}, row.mean(), _of(base, row)) for k, row in enumerate(noise)
        ]
        best = min(made, key=lambda trial: trial.value)
        found = lo.tuning.Tuning(
            best, first.fit, best.estimate, tuple(made), {"a": list(range(40))}, None, 0, how
        )
        seems, nested = [*seems, best.value], [*nested, best.value + found.optimism]
    assert np.mean(seems) < -0.09 and abs(np.mean(nested)) < 0.03
    alone = lo.tuning.Tuning(best, first.fit, best.estimate, (best,), {"a": [1]}, None, 0, how)
    assert np.isnan(alone.optimism) and "optimism" not in str(alone)


def _of(base, losses):
    return lo.Estimate(losses, base.error, base.result, base.plan, base.baseline)


def test_trials_of_other_losses_are_not_compared():
    pytest.importorskip("optuna")
    counts = rng.poisson(2.0, N).astype(float)
    for build, choices in (
        (lambda loss: lo.GLM(X, counts, loss), ["poisson", "squared"]),
        (lambda loss: lo.GLM(X, counts, lo.losses.PseudoHuber(loss)), [1.0, 2.0]),
        (lambda loss: lo.GLM(X, counts if loss else np.log1p(counts), "squared"), [0, 1]),
    ):
        with pytest.raises(ValueError, match="cannot be compared"):
            lo.tune(build, {"loss": choices}, LOO, sampler="optuna", num_trials=12)
    with pytest.raises(ValueError, match="cannot be compared"):
        lo.tune(
            lambda d: lo.GLM(X, counts, lo.losses.PseudoHuber(d)),
            {"d": (0.5, 5.0)},
            LOO,
            sampler="optuna",
        )


WRONG = {
    "space": (dict(space={"a": [1.0]}), "is a list: sampler='optuna'"),
    "empty": (dict(space={}), "must map names"),
    "zero": (dict(space={"a": (0.0, 1.0)}), "positive numbers"),
    "turned": (dict(space={"a": (2.0, 1.0)}), "low below high"),
    "taken": (dict(space={"mean": (1.0, 2.0)}), "cannot be the name"),
    "sampler": (dict(sampler="grid"), "sampler must be one of"),
    "strategy": (dict(strategy=lo.Exact()), "derives NewtonStep"),
    "metric": (dict(metric="mse"), "no slope of 'mse'"),
    "unknown": (dict(metric="gini"), "metric must be among"),
    "trials": (dict(num_trials=0), "num_trials must be a whole number"),
    "no start": (dict(start=float("nan")), "start must be a value of each of a, by name; got nan"),
    "start": (dict(start={"b": 1.0}), "start must be a value of each of a, by name; got b"),
    "outside": (dict(start={"a": 7.0}), "must be in the space"),
    "text": (dict(start={"a": "7"}), "must be in the space"),
    "repeated": (dict(metric="auc", plan=lo.random_subsets(N, 0.2, 9)), "scores every unit once"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_refused(name):
    more, message = WRONG[name]
    given = dict(space={"a": (0.1, 5.0)}, plan=LOO) | more
    with pytest.raises(ValueError, match=message):
        lo.tune(lambda a=1.0, mean=1.0: MODEL.under(lo.penalties.Ridge(a)), **given)


def test_what_is_no_model_or_cannot_be_derived_is_refused():
    space = {"a": (0.1, 5.0)}
    for build, message in (
        (lambda a: MODEL.under(lo.penalties.Ridge(float(a))), "must be written in JAX"),
        (lambda a: lo.GLM(X * a, Y, "logistic", lo.penalties.Ridge(1.0)), "must be written in JAX"),
        (lambda a: lo.fit(MODEL.under(lo.penalties.Ridge(1.0))), "give its .objective"),
        (MODEL, "must be a function of the hyperparameters"),
    ):
        with pytest.raises(TypeError, match=message):
            lo.tune(build, space, LOO)
    with pytest.raises(TypeError, match="plan must be a Plan"):
        lo.tune(two, SPACE, "five")
    with pytest.raises(RuntimeError) as caught:
        lo.tune(lambda a: lo.GLM(X[:, :1], X[:, 0] > 0, "logistic"), space, LOO)  # separated
    assert "In lo.tune, at a = " in caught.value.__notes__[0]


def test_labels_of_data_and_plans_are_matched():
    frame = pd.DataFrame(X, index=[f"row {k}" for k in range(N)])
    model = lo.GLM(frame, pd.Series(Y, frame.index), "logistic")
    order = np.random.default_rng(7).permutation(N)
    plan = lo.groups(pd.Series(np.arange(N) % 6, frame.index).iloc[order])
    found = lo.tune(lambda a: model.under(lo.penalties.Ridge(a)), {"a": (0.1, 10.0)}, plan)
    plain = lo.tune(
        lambda a: MODEL.under(lo.penalties.Ridge(a)),
        {"a": (0.1, 10.0)},
        lo.groups(np.arange(N) % 6),
    )
    assert found.hyper["a"] == pytest.approx(plain.hyper["a"], rel=1e-9)


def test_rows_of_no_weight_and_columns_that_say_nothing():
    r = np.random.default_rng(9)
    weight = np.where(r.random(N) < 0.2, 0.0, r.gamma(2.0, size=N))
    empty = lo.GLM(np.c_[X, np.ones(N), np.zeros(N)], Y, "logistic", sample_weight=weight)
    found = lo.tune(lambda a: empty.under(lo.penalties.Ridge(a)), {"a": (1e-2, 1e3)}, LOO)
    seen = weight > 0
    less = lo.GLM(X[seen], Y[seen], "logistic", sample_weight=weight[seen])
    alone = lo.tune(
        lambda a: less.under(lo.penalties.Ridge(a)),
        {"a": (1e-2, 1e3)},
        lo.leave_one_out(),
    )
    assert found.hyper["a"] == pytest.approx(alone.hyper["a"], rel=1e-4) and "checks" in str(found)
    assert np.isinf(
        found.trials["approximation_error"]
    ).all() and found.best.value == pytest.approx(alone.best.value, rel=1e-8)


def test_pictures():
    pytest.importorskip("matplotlib")
    found = lo.tune(two, SPACE, LOO)
    axes = found.plot(name="b")
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "b"
    with pytest.raises(ValueError, match="name must be one of a, b"):
        found.plot(name="c")


def test_from_a_shell(tmp_path):
    file, out, plot = tmp_path / "rows.csv", tmp_path / "trials.csv", tmp_path / "curve.png"
    city = np.resize(["Ulm", "Bonn", "Kiel"], N)
    pd.DataFrame(
        {"age": X[:, 0], "dose": X[:, 1], "city": city, "ill": np.where(Y, "yes", "no")}
    ).to_csv(file, index=False)
    run = lambda *words: CliRunner().invoke(
        app, ["tune", str(file), "--target", "ill", "--loss", "logistic", *map(str, words)]
    )
    each = run("--categorical", "city", "--each", "--out", out, "--plot", plot)
    assert each.exit_code == 0, each.output
    assert (
        "l2[age]" in each.output and "ill: 1 is 'yes'" in each.output and plot.stat().st_size > 1000
    )
    table = pd.read_csv(out)
    assert {"trial", "l2[age]", "l2[dose]", "l2[city]", "mean"} <= set(table)
    one = run(
        "--features",
        "age,dose",
        "--l2",
        "0.1:100",
        "--plan",
        "kfold:5",
        "--sampler",
        "path",
        "--trials",
        5,
    )
    plan, model = lo.kfold(N, 5, rng=0), lo.GLM(X[:, :2], Y, "logistic")
    best = lo.path(model, np.geomspace(0.1, 100, 5), plan, strategy=lo.NewtonStep()).best
    assert one.exit_code == 0 and f"l2 = {best.value:.4g}" in one.output, one.output
    for words, message in (
        (["--l2", "5"], "least and the largest"),
        (["--l2", "5:1"], "least and the largest"),
        (["--trials", 0], "1 or more"),
    ):
        wrong = run("--features", "age", *words)
        assert wrong.exit_code == 2 or isinstance(wrong.exception, Exception)
        assert message in (wrong.output + str(wrong.exception)), wrong.output


@pytest.mark.parametrize(
    "positives",
    [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("sampler", ["gradient", "optuna"])
@pytest.mark.filterwarnings("ignore:.*auc pooled over small folds")
def test_an_area_over_few_of_one_class_is_told_or_not_but_never_fails(sampler, positives):
    """A group of units that has all of one class leaves no area to choose by."""
    if sampler == "optuna":
        pytest.importorskip("optuna")
    model = lo.GLM(X, np.arange(N) < positives, "logistic")
    build, plan = lambda a: model.under(lo.penalties.Ridge(a)), lo.kfold(N, 10, rng=0)
    for seed in range(2):
        found = lo.tune(
            build, {"a": (0.1, 1e3)}, plan, sampler=sampler, metric="auc", num_trials=6, rng=seed
        )
        told = f"about {found.optimism:.2g}" if found.optimism > 0 else "none of that auc"
        assert (told if np.isfinite(found.optimism) else "not told") in str(found)


@pytest.mark.parametrize(
    "wrong",
    [{"num_outer_folds": -1}, {"metric": ["auc"]}, {"num_trials": "9"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_arguments_of_other_kinds_are_refused(wrong):
    with pytest.raises(ValueError, match=rf"tune: {next(iter(wrong))} must be .*; got "):
        lo.tune(lambda a: MODEL.under(lo.penalties.Ridge(a)), {"a": (0.1, 1e3)}, LOO, **wrong)


def test_a_number_has_no_area():
    model = lo.GLM(X, X[:, 0] + rng.standard_normal(N), "squared")
    for metric in ("auc", "accuracy"):
        with pytest.raises(
            ValueError, match=f"cross_validate: metric='{metric}' needs a response of classes"
        ):
            lo.cross_validate(lo.fit(model), lo.kfold(N, 5), metric=metric)
    pytest.importorskip("optuna")
    with pytest.raises(ValueError, match="tune: metric='auc' needs a response of classes"):
        build = lambda a: model.under(lo.penalties.Ridge(a))
        lo.tune(
            build, {"a": (0.1, 1e3)}, lo.kfold(N, 5), sampler="optuna", metric="auc", num_trials=2
        )


@pytest.mark.parametrize("sampler", ["gradient", "optuna", "path"])
def test_ctrl_c_gives_the_best_of_the_trials_that_were_made(sampler, monkeypatch):
    if sampler == "optuna":
        pytest.importorskip("optuna")
    made, judged = [], _tune.TrialStudy.judge

    def stopping(self, hyper, *args, **more):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(judged(self, hyper, *args, **more))
        return made[-1]

    monkeypatch.setattr(_tune.TrialStudy, "judge", stopping)
    with pytest.raises(lo.validation.Interrupted, match="tune: stopped after 3 trials") as stop:
        lo.tune(
            lambda a: MODEL.under(lo.penalties.Ridge(a)),
            {"a": (1e-3, 1e3)},
            LOO,
            sampler=sampler,
            num_trials=20,
        )
    assert "With checkpoint=FILE the next such call goes on" in str(stop.value)
    found = stop.value.partial
    assert list(found.all_trials) == made and found.estimate.mean == min(
        trial.value for trial in made
    )
    assert "stopped" in str(found) and found.hyper == min(made, key=lambda trial: trial.value).hyper


def test_ctrl_c_in_the_path_of_a_choice(monkeypatch):
    calls, walked = [], EstimateBuilder.run

    def stopping(*args, **more):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return walked(*args, **more)

    monkeypatch.setattr(EstimateBuilder, "run", stopping)
    build = lambda a: MODEL.under(lo.penalties.Ridge(a))
    with pytest.raises(lo.validation.Interrupted, match="tune: stopped after 2 trials") as stop:
        lo.tune(build, {"a": (1e-3, 1e3)}, PLANS["wide folds"], sampler="path", num_trials=5)
    assert len(stop.value.partial.all_trials) == 2


def test_the_shell_offers_a_checkpoint_where_there_is_one(tmp_path, monkeypatch):
    def stop(verb):
        @functools.wraps(verb)  # commands read their options from its signature
        def stopped(*args, **more):
            raise KeyboardInterrupt

        return stopped

    monkeypatch.setattr(lo, "tune", stop(lo.tune))
    monkeypatch.setattr(lo, "cross_validate", stop(lo.cross_validate))
    file = tmp_path / "data.csv"
    pd.DataFrame({"x": X[:, 0], "y": Y}).to_csv(file, index=False)
    for command in ("tune", "glm"):
        ended = CliRunner().invoke(app, [command, str(file), "--target", "y"])
        assert (
            ended.exit_code == 130
            and "stopped; with --checkpoint FILE the same command goes on" in ended.output
        )
    ended = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert (
        ended.exit_code == 130 and "stopped" in ended.output and "--checkpoint" not in ended.output
    )
