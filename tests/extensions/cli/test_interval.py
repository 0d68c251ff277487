"""`leaveout interval`, on good and on wrong input."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app

rng = np.random.default_rng(0)
N = 60
FRAME = pd.DataFrame(
    {
        "age": rng.normal(50, 9, N).round(1),
        "city": np.resize(["Ulm", "Bonn", "Kiel"], N),
        "site": np.arange(N) % 12,
        "time": rng.uniform(1, 3, N).round(2),
        "visits": rng.poisson(4.0, N),
    }
)
X = pd.DataFrame(
    {"age": FRAME.age, "Kiel": FRAME.city == "Kiel", "Ulm": FRAME.city == "Ulm"}
).astype(float)


@pytest.fixture
def files(tmp_path):
    """Old rows, and new ones: their columns in another order, none of the first level."""
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    FRAME[:48].to_csv(old, index=False)
    FRAME[48:][["visits", "time", "city", "age"]].query("city != 'Bonn'").to_csv(new, index=False)
    return old, new


def run(*words, stdin=None):
    return CliRunner().invoke(app, ["interval", *map(str, words)], input=stdin)


def test_they_are_those_of_the_library(files, tmp_path):
    out = tmp_path / "intervals.csv"
    words = [
        "--target",
        "visits",
        "--loss",
        "poisson",
        "--features",
        "age",
        "--categorical",
        "city",
        "--offset",
        "time",
    ]
    found = run(
        *files, *words, "--plan", "groups:site", "--level", 0.8, "--refit", "exact", "--out", out
    )
    assert found.exit_code == 0, found.output
    fit = lo.fit(lo.GLM(X[:48], FRAME.visits[:48], "poisson", offset=FRAME.time[:48]))
    some = FRAME.index[48:][FRAME.city[48:] != "Bonn"]
    want = lo.interval(
        fit,
        X.loc[some],
        level=0.8,
        groups=FRAME.site[:48],
        offset=FRAME.time[some],
        strategy=lo.Exact(),
    )
    table = pd.read_csv(out)
    np.testing.assert_allclose(table[["prediction", "low", "high"]], want, rtol=1e-6)
    assert list(table.row) == list(range(1, 9))
    inside = FRAME.visits[some].between(want.low, want.high).sum()
    assert f"{inside} of the 8 responses that new.csv has are inside" in found.output
    assert (
        "leave-one-group-out jackknife+, 80% intervals" in found.output
        and "60% or more" in found.output
    )


def test_folds_and_standard_input(files):
    old, new = files
    found = run(
        old,
        "-",
        "--target",
        "visits",
        "--features",
        "age",
        "--method",
        "cv+",
        stdin=new.read_text(),
    )
    fit = lo.fit(lo.GLM(X[["age"]][:48], FRAME.visits[:48], "squared"))
    want = lo.interval(fit, FRAME[["age"]][48:][FRAME.city[48:] != "Bonn"], method="cv+")
    assert (
        found.exit_code == 0
        and f"{want.high.iloc[0]:.6g}" in found.output
        and "CV+" in found.output
    )
    assert run("--help").output.count("leaveout interval") == 2


def test_classes_have_sets(files):
    found = run(*files, "--target", "city", "--loss", "multinomial", "--features", "age")
    assert (
        "jackknife+, 90% sets of new responses" in found.output
        and "probabilities widened by" in found.output
    )
    assert found.output.count("True") > 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["--target", "kost"], "old.csv has no column 'kost'"),
        (
            ["--target", "visits", "--features", "age,site"],
            "new.csv has no column 'site'; it has visits",
        ),
        (["--target", "visits", "--features", "age", "--level", "0.99"], "needs 99 rows or more"),
        (
            ["--target", "visits", "--features", "age", "--level", "90"],
            "level must lie between 0 and 1",
        ),
        (
            ["--target", "visits", "--features", "age", "--method", "naive"],
            "must be one of plus, minmax, cv+",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(files, words, message):
    found = run(*files, *words)
    assert found.exit_code == 2 and message in " ".join(found.stderr.split()), found.output
    assert found.stderr.count("\n") == 1


def test_levels_and_cells_of_which_nothing_is_known(files, tmp_path):
    old, new = files
    words = ["--target", "visits", "--features", "age", "--categorical", "city"]
    FRAME[48:].replace({"city": {"Ulm": "Rom"}}).to_csv(new, index=False)
    assert "'city' has a level that old.csv does not have, 'Rom'" in run(old, new, *words).stderr
    FRAME[48:].assign(age=[np.nan, *FRAME.age[49:]]).to_csv(new, index=False)
    assert "new.csv: missing values in age (1)" in run(old, new, *words).stderr
    kept = run(old, new, *words, "--drop-missing", "--out", tmp_path / "out.csv")
    assert kept.exit_code == 0 and list(pd.read_csv(tmp_path / "out.csv").row) == list(range(2, 13))
    assert "not both" in run("-", "-", *words, stdin="").stderr
    assert "it is the file that is read" in run(old, new, *words, "--out", new).stderr
