"""Absorbed effects against the same regressions with a column for each effect."""

import warnings

import numpy as np
import pandas as pd
import pytest

import leaveout as lo

LOSSES = {
    "squared": "squared",
    "poisson": "poisson",
    "logistic": "logistic",
    "negative binomial": lo.losses.NegativeBinomial(0.5),
}


def panel(kind, states=24, years=8, seed=0):
    """A panel whose states and years have effects; of counts one state has none, of events one has
    nothing else.
    """
    rng = np.random.default_rng(seed)
    state, year = np.divmod(np.arange(states * years), years)
    X = rng.standard_normal((len(state), 2)) + rng.standard_normal(states)[state, None]
    eta = 0.8 + 0.7 * rng.standard_normal(states)[state] + 0.1 * year + X @ [0.3, -0.2]
    y = {
        "squared": eta + rng.standard_normal(len(eta)),
        "logistic": (rng.random(len(eta)) < 1 / (1 + np.exp(1.2 - eta))) * 1.0,
    }.get(kind, rng.poisson(np.exp(eta)) * 1.0)
    if kind != "squared":
        y[state == 3] = kind == "logistic"
    return pd.DataFrame({"y": y, "a": X[:, 0], "b": X[:, 1], "state": state, "year": year})


def both(kind, effects, **options):
    """The fit that absorbs, and that of columns on the rows that are not separated."""
    data = panel(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        absorbed = lo.fit(lo.GLM(f"y ~ a + b | {effects}", data, LOSSES[kind], **options))
    rows = absorbed.objective.row_weights > 0
    columns = " + ".join(f"C({name})" for name in effects.split(" + "))
    return absorbed, lo.fit(lo.GLM(f"y ~ a + b + {columns}", data[rows], LOSSES[kind])), rows


@pytest.mark.parametrize("effects", ["state", "state + year"])
@pytest.mark.parametrize("kind", LOSSES)
def test_columns_of_effects(kind, effects):
    absorbed, columns, rows = both(kind, effects)
    np.testing.assert_allclose(absorbed.coef, columns.coef[["a", "b"]], atol=1e-9)
    assert absorbed.rank == columns.rank and absorbed.num_params == 2
    for covariance, groups in {
        "nonrobust": None,
        "HC0": None,
        "HC3": None,
        "cluster": "state",
    }.items():
        errors = absorbed.covariance(covariance, groups=groups).standard_errors
        want = columns.covariance(covariance, groups=groups).standard_errors[["a", "b"]]
        np.testing.assert_allclose(errors, want, rtol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the columns' effects are undetermined
        exact = {"groups": "state", "strategy": lo.Exact(1e-12)}
        found, want = (fit.covariance("CRV3", **exact) for fit in (absorbed, columns))
    np.testing.assert_allclose(found.standard_errors, want.standard_errors[["a", "b"]], rtol=1e-8)
    assert not len(found.flagged)
    leverages = lo.diagnostics.leverage(absorbed)[rows]
    np.testing.assert_allclose(leverages, lo.diagnostics.leverage(columns), atol=1e-8)


@pytest.mark.parametrize("effects", ["state", "state + year"])
@pytest.mark.parametrize("kind", ["squared", "poisson", "logistic"])
def test_leave_one_out(kind, effects):
    absorbed, columns, rows = both(kind, effects)
    estimates = [lo.cross_validate(fit, lo.leave_one_out()) for fit in (absorbed, columns)]
    exact = lo.cross_validate(columns, lo.leave_one_out(), strategy=lo.Exact())
    losses, errors = (estimates[0].table()[name].to_numpy()[rows] for name in ("loss", "error"))
    want = exact.table().loss.to_numpy()
    scored = np.isfinite(losses)
    # a refit whose level is separated has no loss
    assert (scored <= np.isfinite(want)).all() and scored.mean() > 0.85
    assert (np.abs(losses - want)[scored] <= 1e-9 + 2 * errors[scored]).all()
    assert np.isnan(estimates[0].table().loss.to_numpy()[~rows]).all()


def test_a_refit_from_scratch():
    data = panel("poisson").query("state != 3").reset_index(drop=True)
    formula = "y ~ a + b | state + year"
    fit = lo.fit(lo.GLM(formula, data, "poisson"))
    theta = lo.fold_parameters(fit, lo.groups("state"), strategy=lo.Exact(1e-12))["coef"]
    want = lo.fit(lo.GLM(formula, data[data.state != 5], "poisson")).coef
    np.testing.assert_allclose(theta[4], want, atol=1e-8)


def test_weights_offsets_and_ways_to_name_factors():
    data = panel("poisson").query("state != 3").reset_index(drop=True)
    rng = np.random.default_rng(1)
    options = {
        "sample_weight": rng.gamma(3, 1, len(data)),
        "offset": rng.standard_normal(len(data)),
    }
    columns = lo.GLM("y ~ a + b + C(state) + C(year)", data, "poisson", **options)
    want = lo.fit(columns).coef[["a", "b"]]
    X = data[["a", "b"]]
    shuffled = data[["state", "year"]].sample(frac=1, random_state=0)
    for absorb in (
        shuffled,
        [data.state.to_numpy(), data.year],
        data[["state", "year"]].to_numpy(),
    ):
        fit = lo.fit(lo.GLM(X, data.y, "poisson", absorb=absorb, **options))
        np.testing.assert_allclose(fit.coef, want, atol=1e-9)
    for absorb in ("state + year", ["year", "state"]):
        fit = lo.fit(lo.GLM("y ~ a + b", data, "poisson", absorb=absorb, **options))
        np.testing.assert_allclose(fit.coef, want, atol=1e-9)


def test_squared_loss_need_not_be_named():
    data = panel("squared")
    fit, named = (lo.fit(lo.GLM("y ~ a | state", data, *loss)) for loss in ((), ("squared",)))
    np.testing.assert_array_equal(fit.coef, named.coef)
    with pytest.raises(TypeError, match="loss must be given"):
        lo.GLM("y ~ a", data)


@pytest.mark.parametrize("kind", ["poisson", "logistic"])
def test_separated_levels_are_said(kind):
    data = panel(kind)
    means = data.groupby("state").y.mean()
    count = int(means.isin([0.0, 1.0] if kind == "logistic" else [0.0]).sum())
    said = f"{count} levels are separated.* {8 * count} rows are left out"
    with pytest.warns(UserWarning, match=said) as caught:
        model = lo.GLM("y ~ a + b | state", data, kind)
    assert ("incidental parameters" in str(caught[0].message)) == (kind == "logistic")
    assert f"24 effects of state absorbed; {count} levels are separated" in str(lo.fit(model))
    assert (model.row_weights == 0).sum() == 8 * count


def test_a_level_that_leaves_is_not_scored():
    """And nothing else is undetermined: the row of another level has its loss."""
    data = panel("squared")
    data["state"] = np.r_[np.zeros(4), 1.0, 1.0, data.state[6:] + 2]
    formula = "y ~ a + b | state + year"
    fit = lo.fit(lo.GLM(formula, data, "squared"))
    plan = lo.groups(np.where(data.index < 5, 0, 1 + data.index % 5))
    table = lo.cross_validate(fit, plan).table()
    scored = table.unit.to_numpy()[np.isfinite(table.loss)]
    assert scored.tolist() == [*range(4, 192)]
    theta = lo.fold_parameters(fit, plan)["coef"][0]
    np.testing.assert_allclose(theta, lo.fit(lo.GLM(formula, data[5:], "squared")).coef, atol=1e-9)


@pytest.mark.parametrize("effects", ["state", "state + year"])
def test_rows_whose_level_leaves_are_not_predicted(effects):
    """Nor those of separated levels; the others are as by columns."""
    data = panel("poisson", states=12)
    data.loc[data.state == 5, "y"] = 0.0
    data.loc[40, "y"] = 6.0  # without it the counts of state 5 are zero
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = lo.fit(lo.GLM(f"y ~ a + b | {effects}", data, "poisson"))
        plan = lo.groups(np.where(data.state == 7, 0, 1 + data.index % 9))
        loss = lo.cross_validate(fit, plan).per_unit()
    with pytest.warns(UserWarning, match="held-out predictions are missing"):
        predicted = lo.cross_predict(fit, plan)
    np.testing.assert_array_equal(predicted.isna(), loss.isna())
    assert predicted[data.state.isin([3, 7])].isna().all() and np.isnan(predicted[40])
    columns = " + ".join(f"C({name})" for name in effects.split(" + "))
    rest = data[(plan.matrix()[4] > 0) & ~data.state.isin([3])]
    want = lo.fit(lo.GLM(f"y ~ a + b + {columns}", rest, "poisson")).predict(data[data.state == 0])
    left = (plan.matrix()[4] == 0) & (data.state == 0)
    np.testing.assert_allclose(predicted[left], want[left[data.state == 0]], rtol=1e-5)
    assert left.sum() == 1


@pytest.mark.parametrize("effects", ["state", "state + year"])
@pytest.mark.parametrize("kind", LOSSES)
def test_predictions_of_new_rows(kind, effects):
    absorbed, columns, rows = both(kind, effects)
    new = panel(kind)[rows].sample(20, random_state=1).set_index(pd.Index(np.arange(20) + 100))
    for scale in ("response", "link"):
        pd.testing.assert_series_equal(
            absorbed.predict(new, scale), columns.predict(new, scale), rtol=1e-7
        )


def test_rows_of_levels_without_an_effect_have_no_prediction():
    absorbed, *_ = both("poisson", "state + year")
    new = panel("poisson").head(3).assign(state=[0, 3, 99])  # all counts of state 3 are zero
    with pytest.warns(UserWarning, match="2 rows have levels without an effect"):
        assert absorbed.predict(new).isna().tolist() == [False, True, True]
    with pytest.raises(ValueError, match=r"it lacks \['year'\]"):
        absorbed.predict(new.drop(columns="year"))
    with pytest.raises(ValueError, match="give offset="):
        absorbed.predict(new, offset=np.zeros(3))


def test_levels_that_no_row_connects_have_no_prediction():
    data = panel("squared", states=4)
    data["year"] += 100 * (data.state > 1)
    fit = lo.fit(lo.GLM("y ~ a + b | state + year", data, "squared"))
    with pytest.warns(UserWarning, match="1 rows have levels"):
        across = fit.predict(data.iloc[:2].assign(state=[0, 3]))
    assert across.isna().tolist() == [False, True]


def test_new_rows_go_through_formulas_and_arrays():
    data = panel("squared").assign(shift=0.5)
    fit = lo.fit(lo.GLM("y ~ np.exp(a) | state", data, "squared", offset="shift"))
    columns = lo.fit(lo.GLM("y ~ np.exp(a) + C(state)", data, "squared", offset="shift"))
    np.testing.assert_allclose(
        fit.predict(data, offset="shift"), columns.predict(data, offset="shift"), rtol=1e-9
    )
    arrays = lo.fit(lo.GLM(data[["a"]].to_numpy(), data.y, absorb=data[["state"]]))
    want = lo.fit(lo.GLM("y ~ a | state", data)).predict(data)
    np.testing.assert_allclose(arrays.predict(data[["a", "state"]]), want, rtol=1e-9)


def test_factors_within_clusters():
    """pyfixest and fixest do not count effects of factors within clusters."""
    absorbed, columns, _ = both("squared", "state + year")
    for program in ("fixest", "pyfixest"):
        covariances = [
            fit.covariance("cluster", groups="state", small_sample=program)
            for fit in (absorbed, columns)
        ]
        texts = [dict(covariance.heading)["small sample"] for covariance in covariances]
        assert texts[0] == texts[1]
        np.testing.assert_allclose(*(found.standard_errors[["a", "b"]] for found in covariances))


def test_bad_calls():
    data = panel("squared")
    with pytest.raises(ValueError, match="no column is named 'stat'; there are state"):
        lo.GLM("y ~ a | stat", data, "squared")
    with pytest.raises(ValueError, match="a formula has two parts"):
        lo.GLM("y ~ a | state | year", data, "squared")
    with pytest.raises(ValueError, match="one label a row, 192; got 4"):
        lo.GLM("y ~ a", data, "squared", absorb=np.arange(4))
    for name in ("state", None):  # the second would take the place of the first
        factors = [data.state.rename(name), data.year.rename(name)]
        with pytest.raises(ValueError, match="give each a name of its own"):
            lo.GLM("y ~ a", data, "squared", absorb=factors)
    with pytest.raises(ValueError, match="without a penalty"):
        lo.GLM("y ~ a | state", data, "squared", lo.penalties.Ridge(1.0))
    with pytest.raises(TypeError, match="Regression: effects are absorbed"):
        lo.Regression("y ~ a | state", data, "gaussian")
    with pytest.raises(ValueError, match="size do not vary within the levels of state, year"):
        lo.GLM("y ~ a + size | state + year", data.assign(size=data.state % 7), "squared")
    with pytest.raises(ValueError, match="no row is left"):
        lo.GLM("y ~ a | state", data.assign(y=0.0), "poisson")


def test_many_levels():
    """A hundred thousand rows and ten thousand levels take a second."""
    rng = np.random.default_rng(0)
    level, X = rng.integers(0, 10_000, 100_000), rng.standard_normal((100_000, 2))
    y = X @ [1.0, -1.0] + rng.standard_normal(10_000)[level] + rng.standard_normal(100_000)
    fit = lo.fit(lo.GLM(X, y, "squared", absorb=level))
    count = np.bincount(level)
    within = lambda column: column - (np.bincount(level, column) / count)[level]
    rows = np.stack([within(column) for column in X.T], axis=1)
    np.testing.assert_allclose(fit.coef, np.linalg.lstsq(rows, within(y))[0], atol=1e-10)


def test_factors_without_a_name_are_no_column_of_new_rows():
    """The first column of features of an array has no name either."""
    rng = np.random.default_rng(0)
    level, X = rng.integers(0, 5, 60), rng.integers(0, 5, (60, 1)) * 1.0
    y = X[:, 0] + level + rng.standard_normal(60)
    fit = lo.fit(lo.GLM(X, y, "squared", absorb=level))
    with pytest.raises(ValueError, match=r"lacks .'absorb0'"):
        lo.predict(fit, pd.DataFrame(np.column_stack([X, level])))
    predicted = lo.predict(fit, pd.DataFrame({"x": X[:, 0], "absorb0": level}))
    design = np.column_stack([X, level[:, None] == np.arange(5)])
    np.testing.assert_allclose(predicted, design @ np.linalg.lstsq(design, y)[0], atol=1e-9)


@pytest.mark.parametrize(
    "labels",
    [
        list,
        tuple,
        lambda level: level.astype(np.float16),
        lambda level: level.astype("S"),
        lambda level: [b"%d" % number for number in level],
    ],
)
def test_labels_of_any_type(labels):
    rng = np.random.default_rng(0)
    level, X = rng.permutation(np.arange(60) % 5), rng.standard_normal((60, 1))
    y = X[:, 0] + level + rng.standard_normal(60)
    fit = lo.fit(lo.GLM(X, y, "squared", absorb=labels(level)))
    new = pd.DataFrame({"x": X[:, 0], "absorb0": np.asarray(labels(level))})
    design = np.column_stack([X, level[:, None] == np.arange(5)])
    np.testing.assert_allclose(
        lo.predict(fit, new), design @ np.linalg.lstsq(design, y)[0], atol=1e-9
    )
    with pytest.raises(ValueError, match="one label a row, 60; got 3"):
        lo.GLM(X, y, "squared", absorb=labels(level)[:3])
