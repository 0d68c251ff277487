"""Estimates, comparisons, predictions, metrics and pictures."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout.validation.estimate import _leaves_out_all_sets
from tests.helpers import fitted, glm, toy_hmm


def test_losses_stand_in_the_order_of_the_plan():
    fit = fitted("logistic")
    plan = lo.bootstrap(60, 12, rng=3)
    cv = lo.cross_validate(fit, plan, strategy=lo.Exact())
    assert cv.losses.shape == plan.index.shape
    np.testing.assert_array_equal(np.isnan(cv.losses), ~plan.held)
    theta = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    X, y = np.asarray(fit.objective.design)[:, :3], np.asarray(fit.objective.y)
    for j in np.flatnonzero(plan.held)[::17]:
        k, n = plan.refit[j], plan.index[j]
        eta = X[n] @ theta["coef"][k] + theta["intercept"][k]
        np.testing.assert_allclose(cv.losses[j], np.logaddexp(0, eta) - y[n] * eta, rtol=1e-6)


def test_a_unit_scored_often_counts_once():
    plan = lo.bootstrap(60, 30, rng=0)
    cv = lo.cross_validate(fitted("logistic"), plan)
    per_unit = cv.per_unit()
    mine = (plan.index == 7) & plan.held
    np.testing.assert_allclose(per_unit[7], cv.losses[mine].mean())
    np.testing.assert_allclose(cv.mean, per_unit.mean())


def test_sample_weights_weigh_the_mean():
    fit = fitted("logistic, weights, offset, no intercept")
    cv = lo.cross_validate(fit, lo.kfold(k=6))
    np.testing.assert_allclose(
        cv.mean, np.average(cv.per_unit(), weights=fit.objective.sample_weight)
    )
    assert "weighted by sample_weight" in str(cv)


def test_table_summary_and_notebook_view():
    cv = lo.cross_validate(fitted("logistic"), lo.kfold(k=6))
    table = cv.table()
    assert (
        list(table.columns) == ["refit", "unit", "loss", "no_update", "error", "result"]
        and len(table) == 60
    )
    assert set(table.result) == {"successful"}
    assert cv.summary().loc["held-out loss, mean", "value"] == cv.mean
    assert "<table>" in cv._repr_html_() and "held-out loss" in cv._repr_html_()
    for word in ("± ", "SE rows independent", "approximation", "no update", "checks"):
        assert word in str(cv)


def test_a_bare_loss_has_one_joint_loss_a_fold():
    fit = fitted("two functions")
    plan = lo.blocks(k=5)
    cv = lo.cross_validate(fit, plan, strategy=lo.Exact())
    assert cv.joint and cv.losses.shape == (5,) and np.isfinite(cv.losses).all()
    assert list(cv.table().columns) == ["refit", "loss", "no_update", "error", "result"]
    x = np.random.default_rng(5).standard_t(3, 50)
    location = lo.fold_parameters(fit, plan, strategy=lo.Exact())["location"]
    np.testing.assert_allclose(
        cv.losses,
        [np.log1p((x[10 * k : 10 * k + 10] - location[k]) ** 2 / 3).sum() for k in range(5)],
    )


def test_a_joint_score_keeps_its_tolerance():
    model = glm("logistic", lo.penalties.Ridge(1.0), n=300, p=10)
    joint = lo.Objective(lambda theta, w: model.loss(theta, w), 300)
    fit = lo.anchor(joint, lo.fit(model).theta)
    plan = lo.kfold(300, 6, rng=0)
    cv, exact = lo.cross_validate(fit, plan), lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10))
    assert np.all(np.abs(cv.losses - exact.losses) <= 0.01 * cv.scale) and not len(cv.flagged())
    overlapping = lo.cross_validate(
        fit, lo.random_subsets(300, 0.1, 20, rng=0), strategy=lo.NoUpdate()
    )
    assert np.isnan(overlapping.se) and "share units" in str(overlapping)


def test_a_users_score():
    data = np.random.default_rng(0).standard_normal(30)
    loss = lambda theta, w: w @ (data - theta["m"]) ** 2
    pointwise = lo.Objective(
        loss, 30, lambda theta, w, index: (lo_data(data)[index] - theta["m"]) ** 2
    )
    cv = lo.cross_validate(lo.fit(pointwise, {"m": 0.0}), lo.leave_one_out(), strategy=lo.Exact())
    held = (30 * data.mean() - data) / 29
    np.testing.assert_allclose(cv.losses, (data - held) ** 2, rtol=1e-10)


def lo_data(data):
    import jax.numpy as jnp

    return jnp.asarray(data)


def test_evaluate_replaces_the_score():
    fit = fitted("ridge")
    X, y = np.asarray(fit.objective.design)[:, :3], np.asarray(fit.objective.y)

    def absolute(held, seen, parameters):
        assert len(held) + len(seen) == 60
        return np.abs(y[held] - X[held] @ parameters["coef"] - parameters["intercept"])

    plan = lo.kfold(60, 6, rng=0)
    cv = lo.cross_validate(fit, plan, strategy=lo.Exact(), evaluate=absolute)
    np.testing.assert_allclose(
        cv.per_unit(), np.abs(y - lo.cross_predict(fit, plan, strategy=lo.Exact())), rtol=1e-6
    )
    joint = lo.cross_validate(
        fit, plan, strategy=lo.Exact(), evaluate=lambda *a: absolute(*a).sum()
    )
    np.testing.assert_allclose(joint.losses.sum(), cv.per_unit().sum())
    with pytest.raises(ValueError, match="evaluate must return"):
        lo.cross_validate(fit, plan, evaluate=lambda *a: np.ones(3))

    def forgets(*a):
        absolute(*a)

    with pytest.raises(
        TypeError, match=r"evaluate: .*forgets returned None; return one loss a held unit"
    ):
        lo.cross_validate(fit, plan, evaluate=forgets)
    with pytest.raises(TypeError, match="returned None among the losses"):
        lo.cross_validate(fit, plan, evaluate=lambda *a: [None, *absolute(*a)[1:]])


def test_metrics_of_held_out_predictions():
    from sklearn.metrics import roc_auc_score

    fit = fitted("logistic")
    plan = lo.kfold(60, 2, rng=0)
    cv = lo.cross_validate(fit, plan, metric=["auc", "accuracy", "brier"])
    predicted, y = lo.cross_predict(fit, plan), np.asarray(fit.objective.y)
    np.testing.assert_allclose(cv.metrics.loc["auc", "value"], roc_auc_score(y, predicted))
    brier = np.mean((y - predicted) ** 2)
    np.testing.assert_allclose(
        lo.cross_validate(fit, plan, strategy=lo.Exact(), metric="brier").metrics.loc[
            "brier", "value"
        ],
        brier,
    )
    # refits have the tolerance of losses
    assert 0 < abs(cv.metrics.loc["brier", "value"] - brier) <= cv.metrics.loc["brier", "error"]
    assert "auc" in str(cv)
    assert lo.cross_validate(fitted("ridge"), plan, metric="mse").metrics.loc["mse", "value"] > 0
    probabilities = lo.cross_predict(fitted("multinomial"), plan)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert list(probabilities) == list(fitted("multinomial").objective.classes)


def repeated(n, folds=2, times=50):
    from sklearn.model_selection import RepeatedKFold

    return list(RepeatedKFold(n_splits=folds, n_repeats=times, random_state=0).split(np.zeros(n)))


def probabilities(fit, X, splits):
    """Of every split those of the rows that it tests, by the coefficients of its refit."""
    coef = lo.fold_parameters(fit, lo.from_splits(splits, len(X)), strategy=lo.Exact())
    each = zip(coef["intercept"], coef["coef"], splits, strict=True)
    return [1 / (1 + np.exp(-a - X[test] @ b)) for a, b, (_, test) in each]


def test_a_measure_of_repeats_is_of_the_refits_not_of_their_committee():
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 25))
    y = X[:, 0] + rng.normal(size=60)
    splits, weight = repeated(60, times=10), rng.integers(1, 4, 60).astype(float)
    for heavy in (None, weight):
        fit = lo.fit(lo.GLM(X, y, "squared", sample_weight=heavy))
        cv = lo.cross_validate(
            fit, lo.from_splits(splits, 60), strategy=lo.Exact(), metric=["mse", "mae"]
        )
        left = np.zeros((10, 60))
        for k, (train, test) in enumerate(splits):
            host = LinearRegression().fit(
                X[train], y[train], None if heavy is None else heavy[train]
            )
            left[k // 2, test] = y[test] - host.predict(X[test])
        np.testing.assert_allclose(
            cv.metrics.loc["mse", "value"], np.average((left**2).mean(0), weights=heavy), rtol=1e-9
        )
        np.testing.assert_allclose(
            cv.metrics.loc["mae", "value"],
            np.average(np.abs(left).mean(0), weights=heavy),
            rtol=1e-9,
        )
        np.testing.assert_allclose(
            [cv.metrics.loc["mse", "value"], cv.metrics.loc["mse", "standard_error"]],
            [2 * cv.mean, 2 * cv.se],
            rtol=1e-12,
        )
    assert "mean over units, each its mean over refits" in str(cv)


def test_an_area_of_repeats_is_the_mean_of_theirs():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 5))
    z = (X[:, 0] + rng.logistic(size=60) > 0).astype(float)
    fit, splits = (
        lo.fit(lo.GLM(X, z, "logistic", penalty=lo.penalties.Ridge(1.0))),
        repeated(60, times=8),
    )
    cv = lo.cross_validate(
        fit, lo.from_splits(splits, 60), strategy=lo.Exact(), metric=["auc", "brier", "accuracy"]
    )
    each, held = probabilities(fit, X, splits), np.zeros((8, 60))
    for k, (_, test) in enumerate(splits):
        held[k // 2, test] = each[k]
    np.testing.assert_allclose(
        cv.metrics.loc["auc", "value"], np.mean([roc_auc_score(z, one) for one in held]), rtol=1e-9
    )
    np.testing.assert_allclose(
        cv.metrics.loc["brier", "value"], np.mean((held - z) ** 2), rtol=1e-9
    )
    np.testing.assert_allclose(
        cv.metrics.loc["accuracy", "value"], np.mean((held > 0.5) == z), rtol=1e-9
    )
    assert (
        "mean over 8 repeats, each pooled" in str(cv)
        and 0.02 < cv.metrics.loc["auc", "standard_error"] < 0.15
    )
    uneven = [*splits[:3], splits[4]]  # some rows are tested once, some twice: by refit
    cv = lo.cross_validate(fit, lo.from_splits(uneven, 60), strategy=lo.Exact(), metric="auc")
    areas = [
        roc_auc_score(z[test], p)
        for (_, test), p in zip(uneven, probabilities(fit, X, uneven), strict=True)
    ]
    np.testing.assert_allclose(cv.metrics.loc["auc", "value"], np.mean(areas), rtol=1e-9)
    assert "mean over 4 refits" in str(cv)
    lone = [*uneven, (np.flatnonzero(z == 0), np.flatnonzero(z == 1)[:2])]
    lone[-1] = (np.setdiff1d(np.arange(60), lone[-1][1]), lone[-1][1])
    cv = lo.cross_validate(fit, lo.from_splits(lone, 60), strategy=lo.Exact(), metric="auc")
    np.testing.assert_allclose(cv.metrics.loc["auc", "value"], np.mean(areas), rtol=1e-9)
    assert "mean over 4 refits (1 more lack a class)" in str(cv)


def test_an_area_over_few_small_folds_is_the_mean_over_them():
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    rng, areas, errors = np.random.default_rng(2), [], []
    for _ in range(60):
        z = np.repeat([0.0, 1.0], 20)
        X = rng.normal(size=(40, 1)) + z[:, None]
        fit = lo.fit(lo.GLM(X, z, "logistic", penalty=lo.penalties.Ridge(1.0)))
        splits = list(StratifiedKFold(20, shuffle=True, random_state=0).split(X, z))
        cv = lo.cross_validate(
            fit, lo.from_splits(splits, 40), strategy=lo.Exact(), metric="auc", audit=0
        )
        each = zip(probabilities(fit, X, splits), splits, strict=True) if not areas else ()
        own = [roc_auc_score(z[test], p) for p, (_, test) in each]
        assert not own or cv.metrics.loc["auc", "value"] == pytest.approx(np.mean(own), rel=1e-9)
        areas.append(cv.metrics.loc["auc", "value"])
        errors.append(cv.metrics.loc["auc", "standard_error"])
    assert "mean over 20 folds" in str(cv)
    assert 0.8 * np.std(areas) < np.mean(errors) < 1.25 * np.std(areas)
    nothing = lo.fit(lo.GLM(np.zeros((40, 0)), z, "logistic"))
    assert (
        lo.cross_validate(nothing, lo.kfold(k=4), metric="auc").metrics.loc["auc", "value"] == 0.5
    )
    with pytest.warns(UserWarning, match="biased"):  # a fold of one class: all are ranked together
        lo.cross_validate(nothing, lo.blocks(k=4), metric="auc")


def test_tune_by_a_measure_chooses_by_refits():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 25))
    y = X[:, 0] + rng.normal(size=60)
    plan, model = lo.from_splits(repeated(60, times=5), 60), lo.GLM(X, y, "squared")
    build = lambda a: model.under(lo.penalties.Ridge(a))
    found = lo.tune(
        build,
        {"a": [0.5, 4.0, 20.0, 100.0]},
        plan,
        strategy=lo.Exact(),
        metric="mse",
        num_trials=8,
        sampler="optuna",
    )
    np.testing.assert_allclose(found.trials["mse"], 2 * found.trials["mean"], rtol=1e-9)
    assert found.estimate.metrics.loc["mse", "value"] == pytest.approx(found.best.value, rel=1e-9)


def test_a_pooled_leave_one_out_auc_is_warned_of():
    y = np.r_[np.ones(20), np.zeros(25)]
    alone = lo.fit(lo.GLM(np.zeros((45, 0)), y, "logistic"))
    with pytest.warns(UserWarning, match="biased"):
        cv = lo.cross_validate(alone, lo.leave_one_out(45), metric="auc")
    assert cv.metrics.loc["auc", "value"] == 0.0


def test_predictions_by_link():
    fit = fitted("poisson, mean loss")
    link, response = (
        lo.cross_predict(fit, lo.kfold(k=4), kind=kind) for kind in ("link", "response")
    )
    np.testing.assert_allclose(np.exp(link), response)
    subsets = lo.cross_predict(fit, lo.random_subsets(60, 0.1, 2, rng=0))
    assert np.isnan(subsets).any() and np.isfinite(subsets).any()


def test_compare_pairs_the_units():
    weak = lo.fit(glm("logistic", lo.penalties.Ridge(200.0), n=300))
    strong = lo.fit(glm("logistic", lo.penalties.Ridge(1.0), n=300))
    plan = lo.leave_one_out(300)
    both = {name: lo.cross_validate(f, plan) for name, f in (("weak", weak), ("strong", strong))}
    table = lo.compare(both)
    assert list(table.index) == ["strong", "weak"] and table.loc["strong", "difference"] == 0
    difference = both["weak"].per_unit() - both["strong"].per_unit()
    np.testing.assert_allclose(
        table.loc["weak", "se_difference"], difference.std(ddof=1) / np.sqrt(300)
    )
    with pytest.raises(ValueError, match="same units"):
        lo.compare(
            {"a": both["weak"], "b": lo.cross_validate(fitted("logistic"), lo.leave_one_out(60))}
        )
    with pytest.warns(UserWarning, match="approximation error"):
        near = lo.fit(glm("logistic", lo.penalties.Ridge(1.0001), n=300))
        lo.compare(
            {
                "a": both["strong"],
                "b": lo.cross_validate(near, plan, strategy=lo.InfinitesimalJackknife()),
            }
        )


def lacking(found, refits):
    """An estimate some of whose refits do not exist."""
    gone = np.isin(found.plan.refit, refits)
    result = np.where(
        np.isin(np.arange(found.plan.num_refits), refits), lo.RESULTS.undetermined, found.result
    )
    return replace(found, losses=np.where(gone, np.nan, found.losses), result=result)


def test_a_model_that_lacks_rows_is_not_ranked_first():
    weak, strong = (
        lo.fit(glm("logistic", lo.penalties.Ridge(alpha), n=300)) for alpha in (200.0, 1.0)
    )
    plan = lo.leave_one_out(300)
    weak, strong = lo.cross_validate(weak, plan), lo.cross_validate(strong, plan)
    hard = int(np.argmax(strong.per_unit()))
    with pytest.warns(
        UserWarning,
        match="'strong' has no loss of 1 held-out rows: means are of what all models have",
    ):
        table = lo.compare({"strong": lacking(strong, [hard]), "weak": weak})
    rest = np.arange(300) != hard
    assert table["mean"]["strong"] < table["mean"]["weak"] and table.difference["strong"] < 0 < 0.5
    assert list(table.index) == ["weak", "strong"] and table.missing.to_dict() == {
        "weak": 0,
        "strong": 1,
    }
    assert table["mean"]["weak"] == pytest.approx(weak.per_unit()[rest].mean(), rel=1e-14)
    assert table.p_worse["strong"] < 0.5
    with pytest.warns(
        UserWarning, match="'a' has no loss of 2 held-out rows, 'b' has no loss of 1"
    ):
        table = lo.compare({"a": lacking(strong, [hard, 0]), "b": lacking(weak, [1])})
    assert list(table.index) == ["b", "a"]
    assert not lo.compare({"strong": strong, "weak": weak}).missing.any()


@pytest.mark.filterwarnings(
    "ignore:compare. .* has no loss", "ignore:compare. 60 independent units"
)
def test_a_unit_is_not_averaged_over_fewer_refits_of_one_model():
    plan = lo.random_subsets(60, 0.3, 20, rng=0)
    found = lo.cross_validate(fitted("logistic"), plan, strategy=lo.Exact())
    table = lo.compare({"all": found, "less": lacking(found, [0, 1])})
    assert table.difference["less"] == 0 and table.missing["less"] == np.sum(
        plan.held & (plan.refit < 2)
    )


def test_parameters_of_refits():
    for name in ("logistic", "multinomial", "two functions"):
        fit = fitted(name)
        theta = lo.fold_parameters(fit, lo.kfold(k=4))
        assert set(theta) == set(fit.parameters)
        assert all(theta[key].shape == (4, *np.shape(fit.parameters[key])) for key in theta)


def test_data_frames_keep_their_names():
    X = pd.DataFrame(np.random.default_rng(0).standard_normal((30, 2)), columns=["age", "dose"])
    model = lo.GLM(X, X.age > 0.2, "logistic", lo.penalties.Ridge(1.0))
    assert model.names == ("age", "dose")
    with pytest.raises(lo.validation.IndefiniteHessianError, match="dose"):
        lo.fit(lo.GLM(X.assign(dose=X.age + 1e-8 * X.dose), X.dose > 0.2, "logistic"))


def test_pictures(tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    cv = lo.cross_validate(fitted("logistic"), lo.leave_one_out())
    ax = cv.plot()
    ax.figure.savefig(tmp_path / "losses.png")
    lo.plot.agreement(
        cv, lo.cross_validate(fitted("logistic"), lo.leave_one_out(), strategy=lo.Exact(1e-10))
    )
    assert (tmp_path / "losses.png").stat().st_size > 5000 and dict(mpl.rcParams) == before


def test_several_starts_find_the_better_basin():
    fits = [lo.fit(toy_hmm(), num_starts=3, rng=s) for s in (0, 1)]
    np.testing.assert_allclose(
        np.sort(fits[0].parameters["mean"]), np.sort(fits[1].parameters["mean"]), atol=1e-5
    )


def test_the_callers_precision_is_left_alone():
    import jax.numpy as jnp

    lo.cross_validate(fitted("logistic"), lo.leave_one_out())
    assert jnp.ones(2).dtype == jnp.float32
    assert fitted("logistic").theta.dtype == np.float64


def test_from_another_thread():
    from concurrent.futures import ThreadPoolExecutor

    fit, plan = fitted("logistic"), lo.leave_one_out(60)
    here = lo.cross_validate(fit, plan).losses
    with ThreadPoolExecutor(2) as pool:
        there = list(pool.map(lambda _: lo.cross_validate(fit, plan).losses, range(2)))
    for losses in there:
        np.testing.assert_array_equal(losses, here)


def made(plan, weights=False, seed=0):
    """An estimate whose losses and errors are random numbers.

    What is derived from them does not depend on a model.
    """
    name = "logistic, weights, offset, no intercept" if weights else "logistic"
    cv, rng = (
        lo.cross_validate(fitted(name), plan, strategy=lo.NoUpdate()),
        np.random.default_rng(seed),
    )
    losses = np.where(plan.held, rng.gamma(2.0, 1.0, len(plan.index)), np.nan)
    return replace(cv, losses=losses, error=rng.gamma(2.0, 1e-4, plan.num_refits))


PLANS = {"bootstrap": lo.bootstrap(60, 9, rng=4), "subsets": lo.random_subsets(60, 0.2, 7, rng=1)}


def mean_of(cv, refits):
    """The mean of units' mean losses over some refits, unit by unit."""
    plan, weight = cv.plan, np.ones(60) if cv.unit_weight is None else cv.unit_weight
    mine = plan.held & np.isin(plan.refit, refits)
    units = np.unique(plan.index[mine])
    of_unit = np.array([cv.losses[mine & (plan.index == unit)].mean() for unit in units])
    return np.sum(weight[units] * of_unit) / np.sum(weight[units])


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_means_and_the_error_of_random_folds_by_hand(name, weights):
    cv = made(PLANS[name], weights)
    refits = np.arange(cv.plan.num_refits)
    np.testing.assert_allclose(cv.mean, mean_of(cv, refits))
    without = np.array([mean_of(cv, refits[refits != k]) for k in refits])
    jackknife = np.sqrt((len(refits) - 1) / len(refits) * np.sum((without - without.mean()) ** 2))
    np.testing.assert_allclose(cv.monte_carlo_error, jackknife)


def test_losses_that_are_not_scored_do_not_count():
    plan = lo.blocks(60, 10, buffer=3)
    cv = made(plan)
    stray = replace(cv, losses=np.where(plan.held, cv.losses, 1e6))
    np.testing.assert_array_equal(stray.per_unit(), cv.per_unit())


@pytest.mark.parametrize("name", PLANS)
def test_the_approximation_error_is_a_unit_s(name):
    """The sum of the refits' errors over the number of losses that they are of, however often a
    unit is scored.
    """
    cv = made(PLANS[name])
    np.testing.assert_allclose(cv.approximation_error, cv.error.sum() / cv.plan.held.sum())
    doubled = replace(cv, error=2 * cv.error)
    np.testing.assert_allclose(doubled.approximation_error, 2 * cv.approximation_error)


def test_the_approximation_error_has_the_weights_of_the_mean():
    cv = made(lo.blocks(60, k=6), weights=True)
    share = (
        np.array([cv.unit_weight[10 * k : 10 * k + 10].max() for k in range(6)])
        / cv.unit_weight.mean()
    )
    np.testing.assert_allclose(cv.approximation_error, np.sum(share * cv.error) / 60)


def test_folds_with_buffers_are_not_drawn():
    overlapping = lo.neighbourhoods(np.c_[np.arange(59), np.arange(1, 60)], 1, buffer=1)
    assert np.isnan(made(overlapping).monte_carlo_error)


ALL_PLANS = {
    "leave-one-out": lo.leave_one_out(),
    "k-fold": lo.kfold(k=5),
    "repeated": lo.kfold(k=5, num_repeats=2),
    "bootstrap": lo.bootstrap(num_resamples=6),
    "subsets": lo.random_subsets(fraction=0.1, num_folds=4),
    "successive": lo.contiguous(fraction=0.1, num_folds=3),
    "blocks": lo.blocks(k=6, buffer=1),
    "future": lo.leave_future_out(start=50, horizon=1),
    "rolling": lo.rolling(window=30, horizon=5, step=5),
    "groups": lo.groups(np.arange(60) % 7),
    "purged": lo.purged(np.arange(60), k=4, embargo=2),
    "classes": lo.stratified(np.arange(60) % 3, k=4),
    "joint": lo.groups(np.arange(60) % 7),
}


@pytest.mark.parametrize("kind", ALL_PLANS)
def test_tables_are_in_the_order_of_the_data_with_labels(kind):
    names = pd.Index([f"p{i}" for i in np.random.default_rng(0).permutation(60)], name="patient")
    x = np.linspace(-1.0, 1.0, 60)
    fit = lo.fit(lo.GLM(pd.DataFrame({"x": x}, names), pd.Series(np.sin(3 * x), names), "squared"))
    joint = kind == "joint"
    evaluate = (lambda held, seen, parameters: float(len(held))) if joint else None
    cv = lo.cross_validate(fit, ALL_PLANS[kind], strategy=lo.NoUpdate(), evaluate=evaluate, audit=0)
    plan, table, per_unit = cv.plan, cv.table(), cv.per_unit()
    if joint:
        assert per_unit.index.equals(plan.refit_names) and "unit" not in table
        np.testing.assert_array_equal(table.loss, per_unit)
        return
    assert per_unit.index.equals(names)
    times = np.bincount(plan.scored_units, minlength=60)
    assert table.unit.tolist() == names.repeat(np.maximum(times, 1)).tolist()
    means = table.groupby("unit", sort=False).loss.mean()
    np.testing.assert_allclose(means, per_unit, rtol=1e-12)
    np.testing.assert_array_equal(per_unit.isna(), times == 0)
    for row in table.itertuples():
        unit = names.get_loc(row.unit)
        if times[unit] == 0:
            assert row.refit == -1 and np.isnan([row.loss, row.no_update, row.error]).all()
            continue
        entry = (plan.refit == row.refit) & (plan.index == unit) & plan.held
        assert [row.loss] == cv.losses[entry].tolist() and row.error == cv.error[row.refit]
        assert row.result == lo.RESULTS(cv.result[row.refit]).name
        if plan.labels is not None:
            assert row.group == plan.labels[row.refit]


def test_every_row_of_the_table_has_its_own_refit():
    cv = made(lo.bootstrap(60, 8, rng=2))
    for row in cv.table().itertuples():
        assert row.error == cv.error[row.refit]
        assert row.loss == cv.losses[(cv.plan.refit == row.refit) & (cv.plan.index == row.unit)][0]


def test_flags_are_a_unit_s_and_printed():
    """A fold of ten units is allowed ten times the error of one."""
    plan = lo.kfold(60, 6)
    cv = made(plan)
    for factor, wanted in ((0.99, []), (1.01, [3])):
        error = np.where(np.arange(6) == 3, factor * 0.1 * cv.scale * 10, 0.0)
        one = replace(cv, error=error)
        assert one.flagged().tolist() == wanted
        line = next(line for line in str(one).splitlines() if line.startswith("checks"))
        assert ("LO300 warning: 1 refit (3): the error is above" in line) == bool(wanted)


def test_the_difference_of_two_models_has_both_errors():
    plan = lo.kfold(60, 6)
    a, b = made(plan, seed=0), made(plan, seed=1)
    with pytest.warns(UserWarning, match="60 independent units are fewer than 100"):
        table = lo.compare({"a": a, "b": b})
    best, other = table.index
    difference = {"a": a, "b": b}[other].per_unit() - {"a": a, "b": b}[best].per_unit()
    np.testing.assert_allclose(table.loc[other, "difference"], difference.mean())
    np.testing.assert_allclose(
        table.loc[other, "se_difference"], difference.std(ddof=1) / np.sqrt(60)
    )
    np.testing.assert_allclose(
        table.loc[other, "approximation_error"], a.approximation_error + b.approximation_error
    )


def test_parameters_of_refits_that_score_nothing_are_iterated():
    """Fay's replicate weights hold no unit out: no loss is there for a tolerance to be of."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = rng.binomial(1, 1 / (1 + np.exp(-2 * X[:, 0]))).astype(float)
    weight = np.where(rng.integers(0, 2, (16, 40)) == 1, 1.7, 0.3)
    entries = np.tile(np.arange(40), 16)
    plan = lo.Plan(np.arange(17) * 40, entries, weight.ravel(), np.zeros(640, bool), 40)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)))
    found, exact = (
        lo.fold_parameters(fit, plan)["coef"],
        lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"],
    )
    for k in range(16):
        own = lo.fit(
            lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1), sample_weight=weight[k])
        ).parameters["coef"]
        np.testing.assert_allclose(exact[k], own, atol=1e-7)
        assert np.linalg.norm(found[k] - own) < 0.02 * np.linalg.norm(own - fit.parameters["coef"])


def test_plans_that_leave_out_all_sets_of_one_unit(monkeypatch):
    """They are told without a sort, which takes seconds of ten million rows."""
    monkeypatch.setattr(np, "unique", lambda *args, **more: pytest.fail("sorted"))
    one_by_one = lambda index, weight: lo.Plan(
        np.arange(len(index) + 1), index, weight, np.ones(len(index), bool), 6
    )
    assert _leaves_out_all_sets(lo.leave_one_out(6)) and _leaves_out_all_sets(
        one_by_one([0, 2, 5], np.zeros(3))
    )
    assert not _leaves_out_all_sets(one_by_one([0, 1, 2, 3, 4, 4], np.zeros(6)))
    assert not _leaves_out_all_sets(one_by_one(np.arange(6), np.full(6, 0.5)))


def test_every_table_of_standard_errors_says_which_they_are():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "y": rng.normal(size=60)})
    fit = lo.fit(lo.GLM("y ~ x", frame, "squared"))
    cv = lo.cross_validate(fit, 5)
    assert str(cv.summary()).startswith(
        "losses             half the squared error\nstandard error     rows independent"
    )
    assert cv.summary().value["standard error"] == cv.se
    assert "model-based standard errors" in str(lo.influence(cv))
    additive = lo.fit(lo.Additive("y ~ s(x)", frame))
    by_plan = lo.tuning.curves(additive, lo.leave_one_out(60))
    assert str(by_plan).startswith("standard errors    jackknife by the plan, bias added\n")
    text = str(lo.tuning.curves(additive))
    assert (
        text.startswith("standard errors    penalties as priors\n") and len(text.splitlines()) < 70
    )


def test_small_errors_of_a_fit_that_all_but_interpolates_are_not_flagged():
    """Its losses with no update are about zero, and so is their standard error."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 900))
    y = X[:, 0] + rng.normal(size=60)
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)))
    estimate = lo.cross_validate(fit, lo.leave_one_out())
    assert float(np.mean(estimate.baseline)) < 1e-5 < 0.5 < estimate.mean
    assert not estimate.flagged().size
    exact = y - lo.cross_predict(fit, lo.leave_one_out())
    np.testing.assert_allclose(estimate.per_unit(), exact**2 / 2, rtol=1e-6)


def test_folds_of_the_future_are_not_drawn():
    cv = made(lo.leave_future_out(60, start=40))
    assert np.isnan(cv.monte_carlo_error) and "random folds" not in str(cv)
