"""Optimism: R's rms on its own resamples, a loop of scikit-learn, and resamples whose refits do not
exist.
"""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

import leaveout as lo
from leaveout.extensions.clinical.performance import Binary
from leaveout.validation.batches import PlanBatches
from tests.oracles.clinical import entries, needs_reference, read

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3)).round(1)  # rounded, so that predictions tie
Y = (rng.random(120) < expit(X @ [1.0, -0.5, 0.2])) * 1.0
FIT = lo.fit(lo.GLM(X, Y, "logistic"))
RMS = ["Dxy", "R2", "Intercept", "Slope", "Emax", "D", "U", "Q", "B", "g", "gp"]


def agree(table, reference, tol):
    want = read(reference).set_index("index")
    columns = [name for name in want.columns if name != "n"]
    mine, want = table.loc[want.index, columns].to_numpy(), want[columns].to_numpy()
    np.testing.assert_allclose(mine, want, rtol=tol, atol=0.01 * tol)


@needs_reference
@pytest.mark.parametrize(("method", "name"), [("bootstrap", "boot"), (".632", "632")])
def test_rms_of_a_logistic_model(method, name):
    heart = read("heart")
    fit = lo.fit(lo.GLM(heart.drop(columns=["centre", "y"]), heart["y"], "logistic"))
    found = lo.clinical.validate(
        fit, method=method, plan=lo.Plan(**entries("heart_counts")), num_curves=0
    ).table
    agree(found, f"exact_validate_{name}", 3e-11)
    agree(found, f"rms_validate_{name}", 1e-7)  # rms stops its fits early
    assert list(found.index[:11]) == RMS and (found["n"] == 200).all()


@needs_reference
def test_rms_of_a_cox_model():
    lung = read("lung")
    fit = lo.fit(lo.Cox(lung[["age", "sex", "ph.ecog", "wt.loss"]], lung["time"], lung["event"]))
    found = lo.clinical.validate(fit, plan=lo.Plan(**entries("lung_counts"))).table
    agree(found, "exact_validate_cph", 1e-8)  # the fit's own tolerance
    want = read("exact_validate_cph").set_index("index").loc["Dxy"]
    np.testing.assert_allclose(
        found.loc["Dxy", want.index].to_numpy(float), want.to_numpy(float), rtol=2e-15, atol=2e-15
    )


def by_hand(plan, method):
    """A loop of scikit-learn over the rows of each resample."""
    names = ("AUC", "average_precision", "log_loss", "B")
    measures = roc_auc_score, average_precision_score, log_loss, brier_score_loss
    train, test = [], []
    for weight, held in zip(plan.matrix(), plan.matrix() == 0, strict=True):
        rows = np.repeat(np.arange(len(Y)), weight.astype(int))
        model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X[rows], Y[rows])
        p = model.predict_proba(X)[:, 1].round(12)
        other = np.arange(len(Y)) if method == "bootstrap" else np.flatnonzero(held)
        train.append([each(Y[rows], p[rows]) for each in measures])
        test.append([each(Y[other], p[other]) for each in measures])
    return pd.DataFrame(train, columns=names), pd.DataFrame(test, columns=names)


@pytest.mark.parametrize("method", ["bootstrap", ".632", "crossvalidation"])
def test_a_loop_of_scikit_learn(method):
    plan = lo.stratified(Y, 5, rng=1) if method == "crossvalidation" else lo.bootstrap(len(Y), 12)
    found = lo.clinical.validate(FIT, method=method, plan=plan, num_curves=0)
    train, test = by_hand(plan, method)
    np.testing.assert_allclose(found.training[train.columns], train, atol=1e-7)
    np.testing.assert_allclose(found.test[test.columns], test, atol=1e-7)
    table = found.table.loc[train.columns]
    weight = np.ones(len(train))
    if method == ".632":
        out = plan.matrix() == 0
        with np.errstate(invalid="ignore"):
            weight = np.nanmean(out / out.sum(0), 1)
    np.testing.assert_allclose(table["test"], weight @ test / weight.sum(), atol=1e-7)
    change = (
        0.632 * (table["index.orig"] - table["test"])
        if method == ".632"
        else table["training"] - table["test"]
    )
    np.testing.assert_allclose(table["optimism"], change, atol=1e-12)
    np.testing.assert_allclose(
        table["index.corrected"], table["index.orig"] - table["optimism"], atol=1e-12
    )
    if method == "crossvalidation":
        assert table[["low", "high"]].isna().to_numpy().all()
        return
    whole, t = by_hand(plan, "bootstrap")[1], stats.t.ppf(0.975, 11)
    for name in ("AUC", "average_precision"):
        middle = (train[name] + whole[name]) / 2
        half = t * ((train[name] - whole[name]) / (middle * (1 - middle))).std()
        ends = logit(table.loc[name, ["index.corrected", "low", "high"]].to_numpy(float))
        np.testing.assert_allclose(ends[1:] - ends[0], [-half, half], atol=1e-5)
    half = 2 * t * ((train["B"] - whole["B"]) / (train["B"] + whole["B"])).std()
    ends = np.log(table.loc["B", ["index.corrected", "low", "high"]].to_numpy(float))
    np.testing.assert_allclose(ends[1:] - ends[0], [-half, half], atol=1e-6)
    np.testing.assert_allclose(
        found.table.loc["Dxy", ["low", "high"]], 2 * found.table.loc["AUC", ["low", "high"]] - 1
    )


def test_only_a_bootstrap_has_intervals():
    shares = lo.Plan(
        np.arange(21) * 60,
        np.tile(np.arange(60), 20),
        np.full(1200, 0.5),
        np.zeros(1200, bool),
        120,
    )
    for plan in (lo.kfold(120, 10), shares):
        assert lo.clinical.validate(FIT, plan=plan, num_curves=0).table["low"].isna().all()
    few = lo.clinical.validate(FIT, num_resamples=40, groups=np.arange(120) % 4, num_curves=0)
    # four groups
    half, row = (
        stats.t.ppf(0.975, 3) * (few.training["R2"] - few.test["R2"]).std(),
        few.table.loc["R2"],
    )
    np.testing.assert_allclose(
        [row["low"], row["high"]], row["index.corrected"] + np.array([-half, half])
    )


def test_resamples_that_are_ranked_without_a_fault_have_an_interval():
    data = np.random.default_rng(2).normal(size=(30, 3))
    y = (data[:, 0] + 0.3 * data[:, 1] > 0) * 1.0
    found = lo.clinical.validate(
        lo.fit(lo.GLM(data, y, "logistic", lo.penalties.Ridge(0.5))), num_resamples=50, num_curves=0
    )
    assert (found.training["AUC"] == 1).any()
    row = found.table.loc["AUC"]
    assert 0 < row["low"] < row["index.corrected"] < row["high"] < 1 or row["index.corrected"] >= 1


def test_the_plus_of_632():
    """Efron and Tibshirani's formulas for the Brier score, with γ over all pairs."""
    plan = lo.bootstrap(len(Y), 12)
    found, plain = (
        lo.clinical.validate(FIT, method=method, plan=plan, num_curves=0).table
        for method in (".632+", ".632")
    )
    p = lo.predict(FIT, X).to_numpy()
    gamma = {
        "B": np.mean((Y[:, None] - p) ** 2),
        "AUC": 0.5,
        "log_loss": -np.log(np.where(Y[:, None] == 1, p, 1 - p)).mean(),
    }
    for name, none in gamma.items():
        orig, out = plain.loc[name, ["index.orig", "test"]].to_numpy(float)
        share = 0.632 / (1 - 0.368 * np.clip((out - orig) / (none - orig), 0, 1))
        np.testing.assert_allclose(
            found.loc[name, "index.corrected"], (1 - share) * orig + share * out, atol=1e-10
        )


def test_resamples_that_separate_or_lose_a_level_are_counted():
    """Ten rows of a rare level, all ill but one, in 40 rows."""
    level = np.r_[np.ones(3), np.zeros(37)]
    y = np.r_[1.0, 1, 0, np.tile([0.0, 1], 19)[:37]]
    data = np.column_stack([level, np.random.default_rng(1).normal(size=40)])
    fit = lo.fit(lo.GLM(data, y, "logistic"))
    plan = lo.bootstrap(40, 60, rng=2)
    with pytest.warns(UserWarning, match="of 60 resamples have no refit"):
        found = lo.clinical.validate(fit, plan=plan, num_curves=0)
    lacks = np.array([len(np.unique(y[(w > 0) & (level == 1)])) < 2 for w in plan.matrix()])
    assert 5 < lacks.sum() < 50
    assert set(found.flagged.index) == set(np.flatnonzero(lacks))
    # separation, and a level that was not drawn
    assert set(found.flagged["result"]) == {"not_converged", "undetermined"}
    assert not found.flagged["used"].any() and (found.table["n"] == (~lacks).sum()).all()
    assert np.isfinite(found.corrected).all() and f"{lacks.sum()} of 60 have no refit" in str(found)
    every = lo.clinical.validate(
        lo.fit(lo.GLM(data, y, "logistic", lo.penalties.Ridge(1.0))), plan=plan, num_curves=0
    )
    assert (every.table["n"] == 60).all() and every.flagged.empty


def test_groups_are_drawn_whole():
    centre = np.repeat(np.arange(12), 10)
    found = lo.clinical.validate(FIT, num_resamples=20, groups=centre, num_curves=0)
    assert all(len(np.unique(w[centre == g])) == 1 for w in found.plan.matrix() for g in range(12))
    folds = lo.clinical.validate(
        FIT, method="crossvalidation", num_resamples=4, groups=centre, num_curves=0
    ).plan
    assert folds.num_refits == 4 and all(
        len(np.unique(w[centre == g])) == 1 for w in folds.matrix() for g in range(12)
    )


def test_rows_of_weight_two_are_two_rows():
    twice = np.r_[np.full(20, 2.0), np.ones(100)]
    heavy = lo.fit(lo.GLM(X, Y, "logistic", sample_weight=twice))
    rows = np.r_[np.arange(120), np.arange(20)]
    long = lo.fit(lo.GLM(X[rows], Y[rows], "logistic"))
    found = (
        lo.clinical.validate(heavy, num_resamples=40, cases=True, num_curves=2),
        lo.clinical.validate(long, num_resamples=40, num_curves=2),
    )
    a, b = (each.apparent.drop(["Intercept", "Slope"]) for each in found)
    np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    assert abs(found[0].optimism["B"] - found[1].optimism["B"]) < 0.01 and "140 cases" in str(
        found[0]
    )
    ends = [each.table.loc["B", ["low", "high"]] for each in found]
    np.testing.assert_allclose(*ends, atol=0.02)
    drawn = found[0].plan.matrix() * twice
    assert (drawn.sum(axis=1) == 140).all() and np.abs(drawn - np.round(drawn)).max() < 1e-12
    with pytest.raises(ValueError, match="no whole numbers"):
        lo.clinical.validate(
            lo.fit(lo.GLM(X, Y, "logistic", sample_weight=twice / 3)), num_resamples=2, cases=True
        )


def test_the_plan_decides_whether_rows_are_held_out_or_drawn():
    folds, drawn = lo.kfold(120, 5, rng=0), lo.bootstrap(120, 5, rng=0)
    named = lo.clinical.validate(FIT, method="crossvalidation", plan=folds, num_curves=0)
    np.testing.assert_array_equal(
        lo.clinical.validate(FIT, plan=folds, num_curves=0).test, named.test
    )
    assert (
        lo.clinical.validate(FIT, plan=drawn, num_curves=0).method == "bootstrap"
        and named.method == "crossvalidation"
    )
    brier = [np.mean((Y[fold] - expit(lo.cross_predict(FIT, folds, strategy=lo.Exact(), kind="link"))[fold]) ** 2) for fold in
             (folds.matrix() == 0)]  # fmt: skip
    assert named.table.loc["B", "test"] == pytest.approx(np.mean(brier))
    for call in (
        lambda: lo.clinical.validate(FIT, method="bootstrap", plan=folds),
        lambda: lo.clinical.validate(FIT, method="crossvalidation", plan=drawn),
        lambda: lo.clinical.validate(FIT, method=".632", plan=folds),
        lambda: lo.clinical.stability(FIT, plan=folds),
        lambda: lo.clinical.calibration(FIT, plan=folds),
        lambda: lo.clinical.calibration(named),
    ):
        with pytest.raises(ValueError, match=r"takes (resamples|folds), such as"):
            call()


def test_least_squares():
    y = X @ [1.0, 2.0, 0.0] + np.random.default_rng(3).normal(size=120)
    fit, plan = lo.fit(lo.GLM(X, y, "squared")), lo.bootstrap(120, 8)
    found = lo.clinical.validate(fit, plan=plan)
    design = np.column_stack([X, np.ones(120)])
    for k, w in enumerate(plan.matrix()):
        mean = design @ np.linalg.lstsq(design * np.sqrt(w)[:, None], y * np.sqrt(w), rcond=None)[0]
        slope, intercept = np.polyfit(mean, y, 1)
        spread = np.abs(slope) * np.abs(mean[:, None] - mean).sum() / (120 * 119)
        want = [
            1 - np.sum((y - mean) ** 2) / np.sum((y - y.mean()) ** 2),
            np.mean((y - mean) ** 2),
            intercept,
            slope,
            spread,
        ]
        np.testing.assert_allclose(
            found.test.loc[k, ["R2", "MSE", "Intercept", "Slope", "g"]], want, atol=1e-9
        )
    inner, out = 1 - found.training["R2"], 1 - found.test["R2"]
    # on the scale of the logarithm
    half = stats.t.ppf(0.975, 7) * 2 * ((inner - out) / (inner + out)).std()
    value, low, high = found.table.loc["R2", ["index.corrected", "low", "high"]]
    np.testing.assert_allclose(
        np.log([(1 - low) / (1 - value), (1 - high) / (1 - value)]), [half, -half], rtol=1e-8
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"method": "jackknife"}, "method must be one of"),
        ({"num_resamples": 1}, "num_resamples must be a whole number of 2 or more"),
        ({"plan": lo.kfold(120, 5), "num_resamples": 10}, "has its own resamples"),
        ({"times": [1.0]}, "times= is for lo.Cox"),
        ({"level": 95}, "level must lie between"),
        (
            {"method": ".632", "plan": lo.Plan([0, 1], [0], [2.0], [False], 120)},
            "needs rows that are left out",
        ),
    ],
)
def test_wrong_input(wrong, said):
    with pytest.raises(ValueError, match=said):
        lo.clinical.validate(FIT, **wrong)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="must be a Fit"):
        lo.clinical.validate(X)
    with pytest.raises(TypeError, match="of 3 classes"):
        lo.clinical.validate(
            lo.fit(lo.GLM(X, np.arange(120) % 3, "multinomial", lo.penalties.Ridge(1.0)))
        )


def test_a_stopped_validation_is_a_part_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=80) > 0) * 1.0, "logistic"))
    call = lambda **more: lo.clinical.validate(fit, num_resamples=40, num_curves=0, **more)
    monkeypatch.setattr(
        PlanBatches,
        "_make_batches",
        lambda self: (self.plan._one(k) for k in range(self.plan.num_refits)),
    )
    whole, values, count = call(), Binary.__call__, [0]

    def stopping(self, *args):
        count[0] += 1
        if count[0] == 60:
            raise KeyboardInterrupt
        return values(self, *args)

    monkeypatch.setattr(Binary, "__call__", stopping)
    with pytest.raises(
        lo.validation.Interrupted, match=r"validate: stopped after \d+ of 40 refits.*checkpoint"
    ) as stop:
        call(checkpoint=tmp_path / "run")
    monkeypatch.setattr(Binary, "__call__", values)
    part = stop.value.partial
    done = part.result == "successful"
    assert 20 < done.sum() < 40 and (part.result[~done] == "interrupted").all()
    np.testing.assert_allclose(part.training[done], whole.training[done], rtol=1e-12)
    alone = lo.clinical.validate(fit, plan=part.plan.some(np.flatnonzero(done)), num_curves=0)
    # its intervals, too, are by the resamples that were made
    pd.testing.assert_frame_equal(part.table, alone.table)
    count.clear()
    monkeypatch.setattr(
        Binary, "__call__", lambda self, *args: count.append(0) or values(self, *args)
    )
    again = call(checkpoint=tmp_path / "run")
    assert len(count) < 2 * (40 - done.sum()) + 5
    pd.testing.assert_frame_equal(again.table, whole.table)
