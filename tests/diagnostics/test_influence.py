"""What rows, folds and pairs of them do to an answer.

Refits from scratch, by NumPy or statsmodels.
"""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from flint import arb
from typer.testing import CliRunner

import leaveout as lo
from leaveout._runtime.lazy_jax import float64
from leaveout.diagnostics.influence import Moves
from leaveout.diagnostics.measures import dispersion, dispersions
from leaveout.extensions.cli import app
from leaveout.refit._anchor import linear_cache
from tests.helpers import fitted, glm, minimiser, toy_hmm
from tests.oracles.balls import Refits

rng = np.random.default_rng(0)
N = 40
FRAME = pd.DataFrame(
    rng.standard_normal((N, 2)), columns=["age", "dose"], index=[f"p{k}" for k in range(N)]
)
Y = FRAME.to_numpy() @ [1.0, -0.5] + 0.5 * rng.standard_normal(N)
TWINS = ["p3", "p17"]  # two outliers in one place: without either, the other holds the fit there
FRAME.loc[TWINS], Y[[3, 17]] = 5.0, -8.0
PRICE = pd.Series(Y, FRAME.index)
DESIGN = np.c_[FRAME.to_numpy(), np.ones(N)]
NEW = pd.Series({"dose": 0.3, "age": 1.2})


def least_squares(keep):
    return np.linalg.lstsq(DESIGN[keep], Y[keep], rcond=None)[0]


@pytest.fixture(scope="module")
def linear():
    fit = lo.fit(lo.GLM(FRAME, PRICE, "squared"))
    return fit, lo.cross_validate(fit, lo.leave_one_out())


def test_rows_of_least_squares(linear):
    fit, cv = linear
    found = lo.influence(cv, prediction=NEW)
    table, whole, everyone = found.table(), least_squares(np.ones(N, bool)), np.arange(N)
    assert list(table.index) == list(FRAME.index) and list(found.parameters) == [
        "age",
        "dose",
        "intercept",
    ]
    information, phi = DESIGN.T @ DESIGN, np.sum((Y - DESIGN @ whole) ** 2) / (N - 3)
    half = lambda theta: 0.5 * (Y - DESIGN @ theta) ** 2
    held = []
    for k, name in enumerate(FRAME.index):
        keep = everyone != k
        without = least_squares(keep)
        step, own = without - whole, np.sum((Y - DESIGN @ without)[keep] ** 2) / (N - 4)
        row = table.loc[name]
        np.testing.assert_allclose(row["cook"], step @ information @ step / (3 * phi), rtol=1e-8)
        away = step / np.sqrt(own * np.diag(np.linalg.inv(information)))
        np.testing.assert_allclose(found.parameters.loc[name], away, rtol=1e-7, atol=1e-10)
        most = np.abs(away).argmax()
        assert row["parameter"] == ["age", "dose", "intercept"][most]
        np.testing.assert_allclose(row["moved"], away[most], rtol=1e-7)
        np.testing.assert_allclose(row["rise"], (half(without) - half(whole))[k], rtol=1e-7)
        np.testing.assert_allclose(
            row["others"], (half(without) - half(whole))[keep].mean(), rtol=1e-7
        )
        np.testing.assert_allclose(
            row["prediction"], np.r_[1.2, 0.3, 1] @ step, rtol=1e-7, atol=1e-10
        )
        held.append(half(without)[k])
    np.testing.assert_allclose(table["share"], np.array(held) / np.sum(held), rtol=1e-7)
    np.testing.assert_allclose(
        found.parameters, -lo.diagnostics.dfbetas(fit).to_numpy(), rtol=1e-7, atol=1e-10
    )
    assert (table["cook_error"] < 1e-8).all() and (table["prediction_error"] < 1e-8).all()


@pytest.mark.parametrize("by_loss", ["squared", "poisson"])
def test_rows_that_mask_each_other(by_loss, linear):
    if by_loss == "squared":
        fit, cv = linear
        y, family = Y, sm.families.Gaussian()
    else:
        y, family = (
            rng.poisson(np.exp(0.2 * FRAME.age.to_numpy() - 0.3 * (FRAME.age > 4))),
            sm.families.Poisson(),
        )
        y[[3, 17]] = 30
        fit = lo.fit(lo.GLM(FRAME, pd.Series(y, FRAME.index), "poisson"))
        cv = lo.cross_validate(fit, lo.leave_one_out())
    found = lo.influence(cv, strategy=lo.Exact(), num_pairs=8)
    assert len(found.pairs) == 28
    worst = found.masked.iloc[0]
    assert {worst["first"], worst["second"]} == set(TWINS)
    host = lambda keep: sm.GLM(y[keep], DESIGN[keep], family).fit(tol=1e-13)
    everyone = np.arange(N)
    whole = host(everyone >= 0)
    mu = whole.mu if by_loss == "poisson" else np.ones(N)
    information, scale = (
        DESIGN.T @ (mu[:, None] * DESIGN),
        3 * (whole.scale if by_loss == "squared" else 1.0),
    )
    length = lambda step: step @ information @ step / scale
    for row in found.pairs.iloc[[0, 1, 9, 27]].itertuples():
        at = [FRAME.index.get_loc(row.first), FRAME.index.get_loc(row.second)]
        first, second = (host(everyone != k).params - whole.params for k in at)
        both = host(~np.isin(everyone, at)).params - whole.params
        want = length(first), length(second), length(first + second), length(both)
        np.testing.assert_allclose(
            [row.cook_first, row.cook_second, row.sum, row.joint], want, rtol=1e-5
        )
        times = np.sqrt(want[3]) / (np.sqrt(want[0]) + np.sqrt(want[1]))
        np.testing.assert_allclose(row.times, times, rtol=1e-5)
        assert row.masked == (times > 1.5 and want[3] > 4 / N)
    assert "p3 and p17" in str(found) or "p17 and p3" in str(found)


def test_outliers_that_nothing_but_their_leverage_betrays():
    """Far out the fit goes through both: neither has a residual, and neither moves it alone."""
    draw = np.random.default_rng(3)
    x = np.r_[draw.standard_normal(38), 900.0, 900.0]
    y = np.r_[x[:38] + 0.3 * draw.standard_normal(38), -800.0, -800.0]
    found = lo.influence(
        lo.cross_validate(lo.fit(lo.GLM(x[:, None], y, "squared")), lo.leave_one_out()), num_pairs=4
    )
    assert not {38, 39} & set(found.top(4).index) and not {38, 39} & set(found.top(4, "rise").index)
    assert len(found.masked) == 1 and {*found.masked[["first", "second"]].iloc[0]} == {38, 39}


def test_shares_of_units_that_are_scored_often(linear):
    plan = lo.random_subsets(N, 0.3, 9, rng=2)
    cv = lo.cross_validate(linear[0], plan, strategy=lo.Exact())
    times = np.bincount(plan.index, minlength=N)
    size = np.bincount(plan.refit, np.abs(cv.losses) / times[plan.index])
    np.testing.assert_allclose(
        lo.influence(cv, num_pairs=0).rows["share"], size / size.sum(), rtol=1e-10
    )


def test_many_refits_go_by_the_dispersion_of_the_whole_fit(linear, monkeypatch):
    monkeypatch.setattr("leaveout.diagnostics.influence.CHEAP", 0)
    found = lo.influence(linear[1], num_pairs=0)
    whole = least_squares(np.ones(N, bool))
    phi = np.sum((Y - DESIGN @ whole) ** 2) / (N - 3)
    step = least_squares(np.arange(N) != 5) - whole
    want = step / np.sqrt(phi * np.diag(np.linalg.inv(DESIGN.T @ DESIGN)))
    np.testing.assert_allclose(found.parameters.loc["p5"], want, rtol=1e-8)
    assert "others" not in found.rows and "dispersion of the whole fit" in str(found)


def test_clean_data_mask_nothing():
    X = np.random.default_rng(1).standard_normal((60, 3))
    cv = lo.cross_validate(
        lo.fit(lo.GLM(X, X.sum(1) + np.random.default_rng(2).standard_normal(60), "squared")),
        lo.leave_one_out(),
    )
    found = lo.influence(cv)
    assert not len(found.masked) and "no pair, of 190" in str(found)


def test_groups_against_fits_without_them(linear):
    site = pd.Series(np.arange(N) % 5, FRAME.index)
    cv = lo.cross_validate(linear[0], lo.groups(site))
    found = lo.influence(cv)
    assert (
        len(found.pairs) == 10
        and found.rows.index.name == "group"
        and (found.rows["units"] == 8).all()
    )
    keep = site.to_numpy() != 3
    step = least_squares(keep) - least_squares(keep | True)
    effective = 3.0
    own = np.sum((Y - DESIGN @ least_squares(keep))[keep] ** 2) / (keep.sum() - effective)
    away = step / np.sqrt(own * np.diag(np.linalg.inv(DESIGN.T @ DESIGN)))
    np.testing.assert_allclose(found.parameters.loc[3], away, rtol=1e-7)
    out = ~keep
    rise = (
        0.5 * (Y - DESIGN @ least_squares(keep)) ** 2
        - 0.5 * (Y - DESIGN @ least_squares(keep | True)) ** 2
    )
    np.testing.assert_allclose(found.rows.loc[3, "rise"], rise[out].mean(), rtol=1e-6)
    joint = found.pairs[
        (found.pairs["first"] == 3) & (found.pairs["second"] == 2)
        | (found.pairs["first"] == 2) & (found.pairs["second"] == 3)
    ]
    both = least_squares(~site.isin([2, 3]).to_numpy()) - least_squares(keep | True)
    phi = np.sum((Y - DESIGN @ least_squares(keep | True)) ** 2) / (N - 3)
    np.testing.assert_allclose(
        joint["joint"], both @ DESIGN.T @ DESIGN @ both / (3 * phi), rtol=1e-7
    )


@pytest.mark.parametrize(
    "refit", [lo.Certified(), lo.Exact(), lo.NewtonStep()], ids=["certified", "exact", "newton"]
)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_proved_errors_hold_the_refits_of_300_bits(loss, refit):
    """Cook's distance, the parameter that moves most, and a prediction.

    H and φ̂ as the fit has them.
    """
    draw = np.random.default_rng(2)
    x = draw.normal(size=(30, 3))
    y = x @ [1.0, -1.0, 0.5] + draw.normal(size=30)
    y = 1.0 * (y > 0) if loss == "logistic" else y
    exact, row = Refits(x, y, loss, 0.3 * np.eye(3)), np.array([2.0, 1.0, -1.0])
    fit = lo.fit(lo.GLM(x, y, loss, lo.penalties.Ridge(0.3), intercept=False))
    found = lo.influence(
        lo.cross_validate(fit, lo.leave_one_out()), strategy=refit, prediction=row, num_pairs=0
    )
    table, anchor = found.rows, linear_cache(fit)
    assert table["proved"].sum() > 25 and (
        table[["cook_error", "moved_error", "prediction_error"]] > 0
    ).all(axis=None)
    assert (
        not table["proved"].all()
        or "at most, proved" in str(found)
        or "to rounding, proved" in str(found)
    )
    hessian, whole = (
        exact.hessian([arb(float(v)) for v in anchor.weight * anchor.curvature]),
        exact(np.ones(30), fit.vector),
    )
    plan = lo.leave_one_out(30)
    phi, each = float64(
        lambda: (dispersion(fit)[0], dispersions(fit, plan, Moves(fit, plan, refit).theta))
    )()
    link = (lambda eta: eta) if loss == "squared" else lambda eta: 1 / (1 + (-eta).exp())
    mean = lambda theta: link(exact.predict([row], theta)[0])
    inverse = hessian.inv()
    for k, told in enumerate(table.itertuples()):
        if not told.proved:
            continue
        theta = exact(1.0 * (np.arange(30) != k), fit.vector)
        away = theta - whole
        cook = (away.transpose() * hessian * away).entries()[0] / (3 * arb(float(phi)))
        assert abs(cook - arb(told.cook)) <= arb(told.cook_error) + 1e-14 * cook
        j = list(found.parameters).index(told.parameter)
        moved = away[j, 0] / (arb(float(each[k])) * inverse[j, j]).sqrt()
        assert abs(moved - arb(told.moved)) <= arb(told.moved_error) + 1e-13 * abs(moved)
        assert abs(mean(theta) - mean(whole) - arb(told.prediction)) <= arb(told.prediction_error)


def test_errors_of_coarse_refits_are_kept():
    """One step is off by no more than it says, of Cook's distance, of a parameter, and of a
    prediction.
    """
    fit = fitted("logistic")
    cv = lo.cross_validate(fit, lo.kfold(k=12, rng=1))
    watched = lambda p: 1 / (1 + np.exp(-p["intercept"] - p["coef"].sum()))
    coarse = lo.influence(cv, strategy=lo.NewtonStep(), prediction=watched, num_pairs=0)
    exact = lo.influence(cv, strategy=lo.Exact(1e-10), prediction=watched, num_pairs=0)
    for name in ("cook", "prediction"):
        off = np.abs(coarse.rows[name] - exact.rows[name])
        assert (off <= coarse.rows[f"{name}_error"] + 1e-9).all() and (off > 1e-7).any()
    off = np.abs(coarse.parameters - exact.parameters).max(axis=1)
    assert (off <= coarse.rows["moved_error"] + 1e-9).all()
    unknown = lo.influence(cv, strategy=lo.InfinitesimalJackknife(), num_pairs=0)
    assert (
        np.abs(unknown.rows["cook"] - exact.rows["cook"]) <= unknown.rows["cook_error"] + 1e-9
    ).all()
    assert f"± {unknown.rows['cook_error'].max():.1g} at most" in str(unknown)


@pytest.mark.slow
def test_steps_of_a_hidden_markov_model():
    model = toy_hmm(24)
    fit = lo.fit(model, num_starts=1)
    cv = lo.cross_validate(fit, lo.blocks(24, 3), strategy=lo.Exact(), audit=0)
    found = lo.influence(
        cv, strategy=lo.Exact(), prediction=lambda p: float(p["mean"][1]), num_pairs=0
    )
    assert list(found.parameters) == ["mean[0]", "mean[1]", "stay[0]", "stay[1]"]
    weights = np.ones(24)
    weights[6:9] = 0
    step = minimiser(model, fit.theta, weights) - fit.vector
    np.testing.assert_allclose(found.rows.loc[2, "cook"], step @ fit.hessian @ step / 4, rtol=1e-5)
    np.testing.assert_allclose(
        found.parameters.loc[2], step / np.sqrt(np.diag(np.linalg.inv(fit.hessian))), rtol=1e-4
    )
    np.testing.assert_allclose(found.rows.loc[2, "prediction"], step[1], rtol=1e-4)


def test_top_and_pictures(linear):
    found = lo.influence(linear[1], num_pairs=0)
    assert set(found.top(2).index) == set(TWINS)
    assert found.top(1, "dose").index[0] == found.parameters["dose"].abs().idxmax()
    ax = found.plot(by="dose", num_named=2)
    assert ax.get_ylabel() == "change of dose, model-based standard errors" and len(ax.texts) == 2
    with pytest.raises(
        ValueError, match="by must be a column of numbers, or a parameter: 'units', 'loss'"
    ):
        found.top(by="height")
    assert "<table>" in found._repr_html_() and "named by unit" in str(found)


def test_refits_that_do_not_exist_are_said():
    X = np.c_[np.random.default_rng(0).standard_normal(20), np.arange(20) == 7]
    cv = lo.cross_validate(
        lo.fit(lo.GLM(X, X[:, 0] + np.arange(20) % 3, "squared")), lo.leave_one_out()
    )
    found = lo.influence(cv)
    assert np.isnan(found.rows.loc[7, "cook"]) and found.parameters.loc[7].isna().tolist() == [
        False,
        True,
        False,
    ]
    # row 7 alone has column x1
    np.testing.assert_allclose(found.parameters.loc[7, ["x0", "intercept"]], 0.0, atol=1e-12)
    assert "1 refits do not exist" in str(found) and 7 not in set(found.pairs["first"]) | set(
        found.pairs["second"]
    )


def test_what_is_refused(linear):
    fit, cv = linear
    refused = [
        (TypeError, "must be an Estimate, from lo.cross_validate", dict(estimate=fit)),
        (ValueError, "this estimate has no fit", dict(estimate=replace(cv, fit=None))),
        (ValueError, "pairs must be a whole number, 2 or more", dict(num_pairs=1)),
        (ValueError, "pairs must be a whole number, 2 or more", dict(num_pairs="all")),
        (
            TypeError,
            "strategy must be one, such as lo.Exact.*; got 'exact'",
            dict(strategy="exact"),
        ),
        (ValueError, "one row of 2 finite features; got shape", dict(prediction=[1.0, np.nan])),
        (ValueError, "one row of 2 finite features; got shape", dict(prediction=np.ones((3, 2)))),
        (
            ValueError,
            "must have the features of the model, age, dose; got size, age",
            dict(prediction=NEW.rename({"dose": "size"})),
        ),
        (ValueError, "must return one number", dict(prediction=lambda p: p["coef"])),
    ]
    for error, words, given in refused:
        with pytest.raises(error, match=words):
            lo.influence(**{"estimate": cv} | given)
    boot = lo.cross_validate(fit, lo.bootstrap(N, 5))
    with pytest.raises(ValueError, match="pairs need a plan that leaves units out"):
        lo.influence(boot, num_pairs=4)
    assert "pairs were not tried" in str(lo.influence(boot))
    classes = lo.cross_validate(fitted("multinomial"), lo.kfold(k=4))
    with pytest.raises(TypeError, match="Give a function of the parameters"):
        lo.influence(classes, prediction=[1.0, 2.0, 3.0])


def test_an_estimate_holds_its_fit(linear):
    """What it shares is not copied.

    Without the data a pickle is small, and functions that no pickle takes stay behind.
    """
    fit, cv = linear
    assert cv.fit.objective is fit.objective and cv.fit.quadratic.factor is fit.quadratic.factor
    assert copy.copy(cv).fit is cv.fit and replace(cv, score="").fit is cv.fit
    small = pickle.dumps(cv.without_data())
    back = pickle.loads(small)
    assert back.fit is None and back.mean == cv.mean and len(small) < 40_000
    model = lo.Separable(
        lambda theta, row: (row - theta["m"]) ** 2 / 2, np.arange(6.0), theta0={"m": np.zeros(())}
    )
    own = lo.cross_validate(lo.fit(model), lo.leave_one_out())
    assert pickle.loads(pickle.dumps(own)).mean == own.mean
    again = lo.influence(replace(back, fit=fit), num_pairs=0)
    pd.testing.assert_frame_equal(again.rows, lo.influence(cv, num_pairs=0).rows)
    path = lo.path(glm("logistic"), [0.1, 1.0], lo.leave_one_out())
    for point in path.points:
        np.testing.assert_array_equal(point.estimate.fit.vector, point.fit.vector)


def run(*words):
    return CliRunner().invoke(app, ["influence", *map(str, words)])


def test_the_shell(tmp_path):
    file, out, picture = tmp_path / "prices.csv", tmp_path / "rows.csv", tmp_path / "rows.png"
    FRAME.assign(site=np.resize(["Ulm", "Bonn", "Kiel"], N), price=Y).to_csv(file, index=False)
    words = [file, "--target", "price", "--features", "age,dose"]
    done = run(*words, "--row", 12, "--top", 3, "--out", out, "--plot", picture)
    assert done.exit_code == 0, done.output
    assert "4 and 18: Cook's distance" in done.output or "18 and 4: Cook's distance" in done.output
    table = pd.read_csv(out, index_col="row")
    keep = np.arange(N) != 3
    step = least_squares(keep) - least_squares(keep | True)
    np.testing.assert_allclose(table.loc[4, "prediction"], DESIGN[11] @ step, rtol=1e-6)
    assert "change of age" in table and picture.stat().st_size > 5000
    by_site = run(*words, "--plan", "groups:site", "--by", "dose", "--pairs", 0)
    assert by_site.exit_code == 0 and "named by site" in by_site.output and "Kiel" in by_site.output
    for more, said in (
        (["--row", 99], "among those that are used, from 1 to 40"),
        (["--by", "height"], "by must be a column of numbers"),
        (["--pairs", 1], "pairs must be a whole number"),
        (["--top", 0], "give 1 or more"),
    ):
        done = run(*words, *more)
        assert done.exit_code == 2 and said in done.output, done.output


def test_the_help_has_two_examples():
    text = run("--help").output
    assert text.count("leaveout influence ") == 2
