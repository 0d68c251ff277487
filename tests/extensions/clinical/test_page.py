"""The clinical page says what the results behind it say, and who is not in it.

Nothing that comes from data is markup.
"""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import scipy
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app
from leaveout.extensions.clinical import page as clinical_page
from leaveout.extensions.clinical.performance import performance
from tests.reporting.test_report import WILD, column_of, drawn, read

pytest.importorskip("matplotlib", reason="needs leaveout[report]")
pytest.importorskip("jinja2", reason="needs leaveout[report]")
pytest.importorskip("statsmodels", reason="needs leaveout[statsmodels]")

N, B = 160, 8


def patients(column="age", centre="c"):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((N, 2)), columns=[column, "dose"])
    centres = np.array([f"{centre}{k}" for k in np.arange(N) % 4])
    return X, np.where(X[column] + rng.logistic(size=N) > 0, 1.0, 0.0), centres


def clinical(path, column="age", centre="c", **options):
    X, y, centres = patients(column, centre)
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, "logistic")), lo.kfold(k=10))
    return (
        cv,
        centres,
        read(cv.report(path, kind="clinical", centres=centres, num_resamples=B, **options)),
    )


def test_it_says_what_the_results_say(tmp_path):
    cv, centres, page = clinical(
        tmp_path / "page.html", excluded={"no age": 7}, thresholds=[0.1, 0.5, 0.6]
    )
    validated, curve = lo.clinical.validate(cv.fit, num_resamples=B), lo.clinical.calibration(cv)
    across, stable = (
        lo.clinical.internal_external(cv.fit, centres),
        lo.clinical.stability(cv.fit, num_resamples=B),
    )
    auc, slope = validated.table.loc["AUC"], curve.table.loc["slope"]
    pooled = across.table.loc["C"]
    for said in (
        f"{N}, {cv.fit.objective.units.target.sum():g} ({cv.fit.objective.units.target.mean():.0%}) with the event",
        "7 left out: no age",
        f"Discrimination (AUC){auc['index.corrected']:.3f}",
        f"{auc.low:.3f} to {auc.high:.3f}",
        f"{slope.estimate:.2f}",
        f"{slope.low:.2f} to {slope.high:.2f}",
        f"{pooled.pi_low:.2f} to {pooled.pi_high:.2f}",
        f"by {stable.table.loc['mape', 'mean']:.3f} for a patient",
        "TRIPOD+AI",
        f"kind='clinical', num_resamples={B}, centres=..., excluded={{'no age': 7}}",
    ):
        assert said in page.text, said
    assert (
        page.text.index("Pictures")
        < page.text.index("What is known of it")
        < page.text.rindex("How to do it again")
    )
    optimism = pd.DataFrame(
        page.data["table-optimism"]["rows"], columns=page.data["table-optimism"]["columns"]
    )
    np.testing.assert_allclose(optimism["corrected"].astype(float), validated.corrected, atol=6e-5)
    equation = pd.DataFrame(
        page.data["table-equation"]["rows"], columns=page.data["table-equation"]["columns"]
    )
    assert equation["term"].tolist() == ["age", "dose", "intercept"]
    np.testing.assert_allclose(equation["coefficient"], cv.fit.vector)
    np.testing.assert_allclose(equation["se"], np.sqrt(np.diag(lo.covariance(cv.fit, "nonrobust"))))
    observed = column_of(page, "calibration", "observed")
    np.testing.assert_allclose(observed, curve.curve["observed"], rtol=1e-4, atol=1e-6)
    text = (tmp_path / "page.html").read_text()
    forest = text.split('id="picture-forest-OE"')[1].split("</svg>")[0]
    for name in ("c0", "c1", "c2", "c3", "pooled"):
        assert f">{name}</text>" in forest
    assert "interval for a new one" in forest
    assert drawn(tmp_path / "page.html") == 6


def test_the_thresholds_at_which_the_model_is_best_are_runs(tmp_path):
    cv, _, page = clinical(tmp_path / "page.html")
    table = lo.clinical.decision_curve(cv).table
    best = (table["low"] > np.maximum(table["all"], 0)).to_numpy()
    text = page.text.split("Useful thresholds")[1].split("of risk")[0].strip()
    inside = np.zeros(len(best), bool)
    for run in text.split(", "):
        low, _, high = run.partition(" to ")
        inside |= (table.index >= float(low) - 1e-9) & (table.index <= float(high or low) + 1e-9)
    np.testing.assert_array_equal(inside, best)


def test_what_comes_from_data_is_text(tmp_path):
    clean = clinical(tmp_path / "clean.html", excluded={"missing": 2})[2]
    wild = clinical(
        tmp_path / "wild.html", column=WILD, centre=WILD, excluded={WILD: 2}, title=WILD
    )[2]
    assert wild.tags == clean.tags and wild.shapes == clean.shapes
    assert wild.text.count(WILD) >= 3
    assert wild.data["table-equation"]["rows"][0][0] == WILD and wild.data["table-centres"]["rows"][
        0
    ][0].startswith(WILD)


def test_survival_is_a_risk_until_a_time(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((N, 2)), columns=["age", "dose"])
    life, censored = rng.exponential(np.exp(-X["age"])), rng.exponential(2.0, N)
    fit = lo.fit(lo.Cox(X, np.minimum(life, censored), (life <= censored) * 1))
    cv = lo.cross_validate(fit, lo.kfold(k=8))
    page, curve = (
        read(lo.report(cv, tmp_path / "cox.html", kind="clinical", num_resamples=B)),
        lo.clinical.calibration(cv),
    )
    assert (
        f"risk of the event until {curve.time:g}" in page.text and "Discrimination (C)" in page.text
    )
    assert (
        page.data["table-equation"]["columns"][3] == "hazard ratio" and "Centres" not in page.text
    )
    # the risk by the equation of the page, of the first patient, is the one that stability tells of
    # the fit
    base = float(page.text.split(", H = ")[1].split(". ")[0])
    risk = 1 - np.exp(-base * np.exp(X.iloc[0].to_numpy() @ fit.vector))
    np.testing.assert_allclose(
        risk, lo.clinical.stability(fit, num_resamples=2).units["prediction"].iloc[0], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("loss", "offset"), [("logistic", 0.0), ("logistic", 1.0), ("probit", 0.0), ("cloglog", 0.0)]
)
def test_a_risk_by_the_equation_is_that_of_the_model(loss, offset):
    X, y, _ = patients()
    given = {"offset": offset * X["dose"]} if offset else {}
    fit = lo.fit(lo.GLM(X, y, loss, **given))
    table, note, whole = clinical_page._equation(fit, performance("report", fit), None)
    eta = (
        X.to_numpy() @ table["coefficient"][:2] + table["coefficient"][2] + given.get("offset", 0.0)
    )
    told = {
        "1/(1 + e^(−η))": lambda eta: 1 / (1 + np.exp(-eta)),
        "1 − e^(−e^η)": lambda eta: 1 - np.exp(-np.exp(eta)),
        "Φ(η)": scipy.stats.norm.cdf,
    }
    risk = told[note.removeprefix("Risk = ").partition(",")[0]](eta)
    np.testing.assert_allclose(
        risk, lo.clinical.stability(fit, num_resamples=2).units["prediction"], rtol=1e-10
    )
    assert (
        whole
        and ("offset" in note) == bool(offset)
        and ("odds ratio" in table) == (loss == "logistic")
    )


def test_an_equation_that_is_not_all_of_the_model_says_so():
    X, y, _ = patients()
    table = X.assign(ill=np.where(y == 1, "yes", "no"))
    cv = lo.cross_validate(lo.fit(lo.GLM("ill ~ bs(age, 4) + dose", table, "logistic")), 5)
    page = clinical_page.page_of(
        cv, "", [], [], centres=None, excluded=None, thresholds=[0.5], num_resamples=2
    )
    tables = {table.name: table for table in page.tables}
    note, items = tables["equation"].note, tables["items"].frame.set_index("item")["on this page"]
    assert "the risk of “yes”" in page.question and "bs(age, 4) + dose" in note and "knots" in note
    assert items["22"] == items["12g"] == "in part: Model equation"
    # no centres were given
    assert items["23b"] == items["16"] == "" and items["21"] == "The answer"


def test_what_has_no_clinical_page_is_refused(tmp_path):
    X, y, centres = patients()
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, "logistic")), lo.kfold(N, 4))
    number = lo.cross_validate(lo.fit(lo.GLM(X, X["age"] + y, "squared")), lo.kfold(N, 4))
    time = pd.Series(np.random.default_rng(0).exponential(size=N))
    ill = (
        np.random.default_rng(1).normal(size=N) + np.unique(centres, return_inverse=True)[1] > 1.5
    ) * 1.0
    late = lo.cross_validate(lo.fit(lo.Cox(X, time + 0.1, y, entry=time / 2)), lo.kfold(N, 4))
    mixed = lo.cross_validate(
        lo.fit(lo.Mixed(X.to_numpy(), ill, "binomial", groups=centres)), lo.kfold(N, 4)
    )
    for error, match, call in (
        (
            ValueError,
            "risks until a time.*entry times",
            lambda: late.report(tmp_path / "a.html", kind="clinical"),
        ),
        (
            TypeError,
            "this Mixed depend on one another.*is its page",
            lambda: mixed.report(tmp_path / "a.html", kind="clinical"),
        ),
        (ValueError, "kind must be", lambda: cv.report(tmp_path / "a.html", kind="medical")),
        (
            TypeError,
            "counts of patients",
            lambda: cv.report(tmp_path / "a.html", kind="clinical", excluded=["a"]),
        ),
        (
            ValueError,
            "whole number",
            lambda: cv.report(tmp_path / "a.html", kind="clinical", excluded={"a": -1}),
        ),
        (
            ValueError,
            "go with kind='clinical'",
            lambda: cv.report(tmp_path / "a.html", centres=centres),
        ),
        (
            TypeError,
            "two classes or lo.Cox",
            lambda: number.report(tmp_path / "a.html", kind="clinical"),
        ),
        (
            TypeError,
            "for one Estimate",
            lambda: lo.report({"a": cv, "b": cv}, tmp_path / "a.html", kind="clinical"),
        ),
        (
            ValueError,
            "has lost",
            lambda: dataclasses.replace(cv, fit=None).report(tmp_path / "a.html", kind="clinical"),
        ),
    ):
        with pytest.raises(error, match=match):
            call()
    assert not (tmp_path / "a.html").exists()


def test_in_the_shell_it_counts_who_is_missing(tmp_path):
    X, y, centres = patients()
    table = X.assign(ill=y.astype(int), clinic=centres)
    table.loc[:4, "age"] = np.nan
    table.loc[3:4, "dose"] = np.nan
    table.to_csv(tmp_path / "patients.csv", index=False)
    page = tmp_path / "page.html"
    given = [
        "report",
        str(tmp_path / "patients.csv"),
        str(page),
        "--target",
        "ill",
        "--clinical",
        "--centres",
        "clinic",
    ]
    done = CliRunner().invoke(app, [*given, "--drop-missing"])
    assert done.exit_code == 0, done.output
    found = read(page)
    assert "3 left out: no age; 2 left out: no age, dose" in found.text
    assert [row[0] for row in found.data["table-centres"]["rows"]] == ["c0", "c1", "c2", "c3"]
    assert "clinic" not in json.dumps(found.data["table-equation"])
    refused = CliRunner().invoke(app, [*given[:5], "--centres", "clinic", "--drop-missing"])
    assert refused.exit_code == 2 and "--centres goes with --clinical" in refused.output
