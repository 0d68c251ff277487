"""`leaveout glm` and `leaveout compare`, on good and on wrong input."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app

rng = np.random.default_rng(0)
N = 40
FRAME = pd.DataFrame(
    {
        "age": rng.normal(50, 9, N).round(1),
        "dose": rng.uniform(0, 2, N).round(2),
        "city": np.resize(["Ulm", "Bonn", "Kiel"], N),
        "same": "x",
        "rare": ["only"] + ["b", "c"] * 19 + ["b"],
        "site": np.arange(N) % 5,
        "gap": np.where(np.arange(N) % 9 == 0, np.nan, 1.5 + np.arange(N)),
        "ill": np.where(rng.random(N) < 0.4, "yes", "no"),
        "cost": rng.gamma(2.0, 3.0, N).round(2),
        "visits": rng.poisson(2.0, N),
    }
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "patients.csv"
    FRAME.to_csv(path, index=False)
    return path


def run(*words, command="glm", stdin=None):
    return CliRunner().invoke(app, [command, *map(str, words)], input=stdin)


def test_losses_table_and_picture(file, tmp_path):
    out, plot = tmp_path / "rows.csv", tmp_path / "rows.png"
    words = [
        "--target",
        "visits",
        "--loss",
        "poisson",
        "--features",
        "age,dose",
        "--categorical",
        "city",
        "--plan",
        "groups:site",
    ]
    result = run(
        file, *words, "--plan", "groups:site", "--refit", "exact", "--out", out, "--plot", plot
    )
    assert result.exit_code == 0, result.output
    assert (
        "patients.csv: 40 rows, 5 parameters" in result.output and "over 5 groups" in result.output
    )
    assert plot.stat().st_size > 1000
    table = pd.read_csv(out)
    X = np.c_[np.ones(N), FRAME[["age", "dose"]], FRAME.city == "Kiel", FRAME.city == "Ulm"].astype(
        float
    )
    keep = FRAME.site != 2
    again = sm.GLM(FRAME.visits[keep], X[keep], sm.families.Poisson()).fit(tol=1e-12)
    mine = table.set_index("row").loc[np.flatnonzero(~keep) + 1]
    np.testing.assert_allclose(mine["prediction"], again.predict(X[~keep]), rtol=1e-5)


def test_formula_standard_input_parquet_and_missing_rows(file, tmp_path):
    words = ["--formula", "cost ~ dose + C(city)", "--loss", "gamma", "--plan", "kfold:4"]
    by_file = run(file, *words)
    assert by_file.exit_code == 0, by_file.output
    by_input = run("-", *words, stdin=file.read_text())
    held = lambda result: next(
        line for line in result.output.splitlines() if line.startswith("held-out loss")
    )
    assert (
        held(by_input) == held(by_file)
        and "standard input: 40 rows, 4 parameters" in by_input.output
    )
    FRAME.drop(columns=["same"]).to_parquet(tmp_path / "patients.parquet")
    dropped = run(
        tmp_path / "patients.parquet",
        "--target",
        "cost",
        "--features",
        "gap",
        "--drop-missing",
        "--plan",
        "kfold:4",
    )
    assert (
        dropped.exit_code == 0
        and "35 rows, 2 parameters; 5 rows with missing values left out" in dropped.output
    )


def test_rows_of_the_file_where_some_are_left_out(file, tmp_path):
    out = tmp_path / "rows.csv"
    result = run(file, "--target", "cost", "--features", "gap", "--drop-missing", "--out", out)
    assert result.exit_code == 0, result.output
    table, used = pd.read_csv(out), FRAME.dropna()
    assert table["row"].tolist() == (used.index + 1).tolist()
    keep = used.index != 13
    again = sm.OLS(used.cost[keep], sm.add_constant(used.gap[keep])).fit()
    mine = table.set_index("row").loc[14, "prediction"]
    np.testing.assert_allclose(mine, again.params @ [1, used.gap[13]], rtol=1e-6)


def test_one_document_with_measures_and_missing_values_filled_in_the_folds(file, tmp_path):
    words = [
        "--target",
        "ill",
        "--loss",
        "logistic",
        "--features",
        "dose,gap",
        "--plan",
        "kfold:4",
        "--l2",
        1,
    ]
    more = ["--impute", "median", "--positive", "no", "--metric", "auc", "--metric", "log-loss"]
    result = run(
        file, *words, *more, "--json", "--report", tmp_path / "page.html", "--title", "Who is ill"
    )
    assert result.exit_code == 0 and result.stderr == "", result.output
    document = json.loads(result.stdout)
    found = document["models"][""]
    ours = lo.GLM(
        "y ~ impute(dose) + impute(gap)",
        FRAME.assign(y=(FRAME.ill == "no") * 1.0),
        "logistic",
        lo.penalties.Ridge(1.0),
    )
    cv = lo.cross_validate(lo.fit(ours), lo.kfold(k=4), metric=["auc", "log_loss"])
    assert found["mean"] == pytest.approx(cv.mean, rel=1e-10)
    metrics = {name: row["value"] for name, row in found["metrics"].items()}
    assert metrics == pytest.approx(cv.metrics["value"].to_dict(), rel=1e-10)
    assert len(found["losses"]) == N
    assert "impute(...) learned anew" in found["labels"]["note"] and any(
        "1 is 'no', 0 is 'yes'" in each for each in document["notes"]
    )
    assert "Who is ill" in (tmp_path / "page.html").read_text()


def test_other_encodings_and_words(tmp_path):
    path = tmp_path / "städte.csv"
    FRAME.assign(city=FRAME.city.replace("Ulm", "Köln")).to_csv(
        path, index=False, encoding="latin-1"
    )
    words = [
        "--target",
        "cost",
        "--features",
        "dose",
        "--categorical",
        "city",
        "--plan",
        "kfold:4.0",
    ]
    assert "--encoding" in run(path, *words).stderr
    found, named = (
        run(path, *words, "--encoding", "latin-1", flag, "exact")
        for flag in ("--refit", "--strategy")
    )
    assert found.exit_code == 0 and found.stdout == named.stdout and "Exact()" in found.stdout
    assert "knows no such encoding" in run(path, *words, "--encoding", "klingon").stderr
    labels = [
        "--target",
        "ill",
        "--loss",
        "logistic",
        "--features",
        "dose",
        "--positive",
        "maybe",
        "--encoding",
        "latin-1",
    ]
    assert "--positive maybe: it must be one of" in run(path, *labels).stderr
    models = [
        "--model",
        "l2=1",
        "--model",
        "l2=2",
        "--metric",
        "auc",
        "--json",
        "--encoding",
        "latin-1",
        "--plan",
        "kfold:4",
    ]
    several = run(path, *labels[:6], *models, command="compare")
    assert list(json.loads(several.stdout)["models"]) == ["l2=1", "l2=2"]


@pytest.mark.slow
def test_labels_and_own_parameters(file):
    words = ["--target", "ill", "--loss", "logistic", "--features", "age,dose", "--plan", "kfold:4"]
    result = run(file, *words)
    assert result.exit_code == 0 and "ill: 1 is 'yes', 0 is 'no'" in result.output
    result = run(
        file,
        "--target",
        "visits",
        "--loss",
        "negative-binomial",
        "--l2",
        1,
        "--features",
        "dose",
        "--plan",
        "kfold:4",
    )
    assert result.exit_code == 0 and "Regression (NegativeBinomialDispersion)" in result.output


def test_compare(file, tmp_path):
    out, plot = tmp_path / "table.csv", tmp_path / "compare.svg"
    words = [
        "--target",
        "cost",
        "--features",
        "age,dose",
        "--plan",
        "kfold:5",
        "--out",
        out,
        "--plot",
        plot,
    ]
    result = run(
        file, *words, "--model", "l2=1", "--model", "l2=100 features=age", command="compare"
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out).set_index("model")
    fit = lo.fit(lo.GLM(FRAME[["age"]], FRAME.cost, "squared", lo.penalties.Ridge(100.0)))
    assert table["mean"]["l2=100 features=age"] == pytest.approx(
        lo.cross_validate(fit, lo.kfold(k=5)).mean, rel=1e-6
    )
    assert table["difference"].min() == 0 and plot.exists() and "no upd." in result.output
    assert "weight" not in table  # of half the squared error there is no mixture
    # all of the table, in 80 columns too
    assert "…" not in result.output and "l2=100 features=age" in result.output


def test_compare_prints_the_weights_of_the_mixture(file, tmp_path):
    out = tmp_path / "table.csv"
    words = ["--target", "visits", "--loss", "poisson", "--plan", "kfold:5", "--out", out]
    result = run(
        file, *words, "--model", "features=age", "--model", "features=dose l2=1", command="compare"
    )
    assert result.exit_code == 0, result.output
    table, plan = pd.read_csv(out).set_index("model"), lo.kfold(N, 5, rng=0)
    of = lambda name, penalty: lo.cross_validate(
        lo.fit(lo.GLM(FRAME[[name]], FRAME.visits, "poisson", penalty)), plan
    )
    with (
        pytest.warns(UserWarning, match="fewer than 100"),
        pytest.warns(UserWarning, match="less than 4"),
    ):
        want = lo.compare(
            {
                "features=age": of("age", None),
                "features=dose l2=1": of("dose", lo.penalties.Ridge(1.0)),
            }
        )
    for name, weight in want.weight.items():
        assert (
            table.weight[name] == pytest.approx(weight, abs=1e-6)
            and f" {weight:.2f} " in result.output
        )
    assert " weight " in result.output


@pytest.mark.parametrize(
    "words, message",
    [
        (["--target", "kost"], "no column 'kost'; it has age, dose"),
        ([], "name the column to predict by --target"),
        (["--target", "cost", "--features", "age,dosis"], "no column 'dosis'"),
        (["--target", "cost", "--features", "cost,age"], "among --features too"),
        (["--target", "cost", "--features", "gap"], "missing values in gap (5); --drop-missing"),
        (
            ["--target", "ill", "--features", "age"],
            "'ill' holds text: 'no' in row 1; the squared loss needs numbers; --loss logistic takes two",
        ),
        (
            ["--target", "city", "--features", "age", "--loss", "logistic"],
            "--loss multinomial takes labels",
        ),
        (["--target", "same", "--features", "age", "--loss", "logistic"], "one value only, 'x'"),
        (
            ["--target", "cost", "--features", "age,city"],
            "'city' holds text: 'Ulm' in row 1; name it in --categorical",
        ),
        (
            ["--target", "cost", "--features", "age", "--loss", "logistic"],
            "logistic loss needs y in [0, 1]",
        ),
        (
            ["--target", "cost", "--features", "age", "--loss", "logit"],
            "must be one of beta, cloglog",
        ),
        (["--target", "cost", "--features", "age", "--l2", "-1"], "finite and not negative"),
        (["--target", "cost", "--features", "age", "--categorical", "same"], "one level, 'x'"),
        (
            ["--target", "cost", "--features", "age", "--categorical", "rare"],
            "levels 'only' of 'rare' have all their rows",
        ),
        (
            ["--target", "cost", "--features", "age", "--plan", "ten"],
            "loo, kfold:K or groups:COLUMN",
        ),
        (["--target", "cost", "--features", "age", "--plan", "kfold:99"], "--plan kfold:99: "),
        (["--target", "cost", "--features", "age", "--plan", "groups:town"], "no column 'town'"),
        (["--target", "cost", "--features", "age", "--refit", "best"], "must be one of certified"),
        (["--formula", "cost ~ agge"], "cannot be read"),
        (
            ["--target", "cost", "--features", "age", "--out", "/nowhere/at/all.csv"],
            "no folder /nowhere/at",
        ),
        (["--target", "cost", "--features", "age", "--out", "/"], "is a folder"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(file, words, message):
    result = run(file, *words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "l2=1"], "give --model twice"),
        (["--model", "l2=1", "--model", "l2=many"], "l2 must be a number"),
        (["--model", "l2=1", "--model", "alpha=1"], "'alpha' is none of loss, l2"),
        (["--model", "l2=1", "--model", "features=agee"], "no column 'agee'"),
    ],
)
def test_wrong_models(file, words, message):
    result = run(file, "--target", "cost", "--features", "age", *words, command="compare")
    assert (
        result.exit_code == 2
        and message in result.stderr
        and len(result.stderr.strip().splitlines()) == 1
    )


def test_files_that_cannot_be_used(tmp_path):
    cases = {
        "empty.csv": (b"", "it is empty"),
        "header.csv": (b"a,b\n", "a header and no rows"),
        "twice.csv": (b"a,b,a\n1,2,3\n", "columns that share a name: 'a'"),
        "picture.png": (bytes(range(256)) * 4, "could not be read as text in UTF-8"),
        "broken.parquet": (b"PAR?", "could not be read as Parquet"),
        "wide.csv": (
            ",".join(f"c{j}" for j in range(100_000)).encode()
            + b"\n"
            + b",".join([b"1"] * 100_000),
            "too many",
        ),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        result = run(tmp_path / name, "--target", "c0")
        assert result.exit_code == 2 and message in result.stderr, (name, result.stderr)
        assert len(result.stderr.strip().splitlines()) == 1
    assert "no such file" in run(tmp_path / "none.csv", "--target", "y").stderr


def test_what_may_not_be_read_or_written(file, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "leaveout.extensions.cli._options.os", SimpleNamespace(access=lambda *_: False, W_OK=2)
    )
    assert (
        "no permission to write"
        in run(file, "--target", "cost", "--out", tmp_path / "t.csv").stderr
    )

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    assert "Permission denied" in run(file, "--target", "cost").stderr
