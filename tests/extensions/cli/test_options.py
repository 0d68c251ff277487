"""What a newcomer does: the examples of `--help` on files made for them.

Rows have one number in all that is written.
"""

import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from leaveout.extensions.cli import app
from leaveout.extensions.cli.hmm import _counts

pytest.importorskip("matplotlib", reason="needs leaveout[plot]")
pytest.importorskip("matplotlib", reason="needs leaveout[report]")
COMMANDS = (
    "report",
    "glm",
    "compare",
    "tune",
    "interval",
    "influence",
    "hmm",
    "mrf",
    "crf",
    "leakage",
)
QUICK = ("report", "glm", "compare", "tune", "interval", "influence")
N = 60


def run(*words, **more):
    return CliRunner().invoke(app, [*map(str, words)], **more)


def examples(command):
    shown = run(command, "--help", env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).output
    return [
        line.strip()
        for line in shown.splitlines()
        if line.strip().startswith(f"leaveout {command} ")
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, dose, clinic = (
        rng.normal(50, 9, N).round(1),
        rng.uniform(0, 2, N).round(2),
        np.arange(N) % 12,
    )
    cost, city = (
        (20 + 3 * dose + rng.normal(size=N)).round(2),
        np.resize(["Ulm", "Bonn", "Kiel"], N),
    )
    ill, visits = np.where(rng.random(N) < 0.4, "yes", "no"), rng.poisson(2.0, N)
    files = {
        "patients": dict(age=age, dose=dose, city=city, clinic=clinic, cost=cost, ill=ill),
        "visits": dict(age=age, clinic=clinic, visits=visits),
        "prices": dict(price=cost, area=dose, age=age),
        "sold": dict(price=cost, area=dose, city=city),
        "offered": dict(area=dose, city=city),
        "old": dict(cost=cost, dose=dose, clinic=clinic),
        "new": dict(dose=dose, clinic=clinic),
    }
    for name, columns in files.items():
        pd.DataFrame(columns).to_csv(f"{name}.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_two_examples_each(command):
    assert len(examples(command)) == 2


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.slow_for("report")
def test_the_examples_run(command, folder):
    for example in examples(command):
        result = run(*shlex.split(example)[1:])
        assert result.exit_code == 0, (example, result.output)
        assert "features: " in result.output
        for file in re.findall(r"\S+\.(?:html|png|csv)(?=$|\s)", example):
            assert (folder / file).stat().st_size > 100


@pytest.mark.slow
def test_a_report_picks_what_the_columns_hold(folder):
    """Of every kind of target its loss; text as categories.

    What cannot be used is left out, and so it is said.
    """
    frame = pd.read_csv("patients.csv").assign(
        same=1, name=[f"p{k}" for k in range(N)], sex=np.arange(N) % 7 % 2 + 1
    )
    frame = frame.assign(
        visits=np.arange(N) % 4, gap=np.where(np.arange(N) % 9 == 0, np.nan, np.arange(N) / 7)
    )
    frame.to_csv("all.csv", index=False)
    run_ = lambda target, *more: run(
        "report", "all.csv", "page.html", "--target", target, "--features", "age,dose", *more
    )
    wanted = {
        "cost": ("cost holds numbers: --loss squared", "Squared"),
        "ill": ("ill holds two values: --loss logistic", "Binomial"),
        "sex": ("sex: 1 is '2', 0 is '1'", "Binomial"),
        "city": ("city holds 3 labels: --loss multinomial", "Multinomial"),
        "visits": ("visits holds whole numbers from 0 on: --loss poisson", "Poisson"),
    }
    for target, (said, loss) in wanted.items():
        shown = run_(target, "--l2", "1")
        assert shown.exit_code == 0 and said in shown.output and f"({loss})" in shown.output, (
            shown.output
        )
        page = (folder / "page.html").read_text()
        assert said.replace("'", "&#39;") in page and "LO202" in page and "leaveout report" in page
    shown = run(
        "report", "all.csv", "page.html", "--target", "cost", "--groups", "clinic", "--drop-missing"
    )
    assert "left out, of one value or of more than 20 labels: same, name" in shown.output, (
        shown.output
    )
    assert "features: age, dose, sex, visits, gap, city (3 levels), ill (2 levels)" in shown.output
    assert "over 12 groups" in shown.output
    again = run(
        "glm",
        "all.csv",
        "--target",
        "cost",
        "--features",
        "age,dose,sex,visits,gap",
        "--categorical",
        "city,ill",
        "--plan",
        "groups:clinic",
        "--drop-missing",
    )
    held = lambda result: next(
        line for line in result.output.splitlines() if line.startswith("held-out loss")
    )
    assert held(shown) == held(again)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--target", "kost"], "no column 'kost'"),
        (["--target", "cost", "--groups", "ward"], "no column 'ward'"),
        (["--target", "same"], "'same' has one value only"),
        (["--target", "name"], "'p0' in row 1; a target holds numbers, or labels, 20 at most"),
        (["--target", "gap"], "missing values in gap"),
        (
            ["--target", "cost", "--features", "same,name"],
            "no column but 'cost' holds numbers, or from 2 to 20 labels",
        ),
        (
            ["--target", "cost", "--features", "age", "--loss", "lorentz"],
            "--loss lorentz: it must be one of",
        ),
    ],
)
def test_a_report_that_cannot_be_is_one_line(words, message, folder):
    frame = pd.read_csv("patients.csv").assign(same=1, name=[f"p{k}" for k in range(N)])
    frame.assign(gap=np.where(np.arange(N) % 9 == 0, np.nan, np.arange(N) / 7)).to_csv(
        "all.csv", index=False
    )
    shown = run("report", "all.csv", "page.html", *words)
    assert (
        shown.exit_code == 2
        and message in shown.stderr
        and len(shown.stderr.strip().splitlines()) == 1
    ), shown.stderr
    for page in ("page.txt", "nowhere/page.html"):
        assert run("report", "all.csv", page, "--target", "cost").exit_code == 2
    assert not (folder / "page.html").exists()


def test_features_are_said_with_the_levels_of_categories(folder):
    said = run(
        "glm",
        "patients.csv",
        "--target",
        "cost",
        "--categorical",
        "city,ill",
        "--plan",
        "groups:clinic",
    ).output
    assert "; features: age, dose, city (3 levels), ill (2 levels)\n" in said
    by_formula = run("glm", "patients.csv", "--formula", "cost ~ dose + C(city)").output
    assert "features: dose, C(city)[T.Kiel], C(city)[T.Ulm]\n" in by_formula


def test_a_row_has_one_number_in_the_shell_the_table_and_the_page(folder):
    """Row 7 of the file, where row 3 is left out for a missing value, is 7 wherever it is named."""
    frame = pd.read_csv("prices.csv")
    frame.loc[2, "area"], frame.loc[6, "price"] = np.nan, 500.0
    frame.to_csv("prices.csv", index=False)
    words = [
        "prices.csv",
        "--target",
        "price",
        "--drop-missing",
        "--report",
        "page.html",
        "--out",
        "rows.csv",
    ]
    shown = run("influence", *words)
    assert shown.exit_code == 0 and "the loss        7: " in shown.output, shown.output
    assert "the loss        7: " in (folder / "page.html").read_text()
    told = run("glm", *words)
    assert re.search(r"LO103 warning: .*\b7\b", told.output), told.output
    table = pd.read_csv("rows.csv").set_index("row")
    assert table["loss"].idxmax() == 7 and 3 not in table.index
    page = (folder / "page.html").read_text()
    data = page.partition('data-for="table-rows">')[2].partition("</script>")[0]
    assert json.loads(data)["rows"][0][0] == 7


def test_labels_that_come_back_are_said_to_be_groups(folder):
    frame = pd.read_csv("patients.csv").drop(columns=["clinic", "city", "ill"])
    frame.assign(person=[f"p{k // 2}" for k in range(N)], row=[f"r{k}" for k in range(N)]).to_csv(
        "again.csv", index=False
    )
    done = run("report", "again.csv", "page.html", "--target", "cost")
    people = N // 2
    assert (
        f"person has {people} labels in {N} rows" in done.output
        and "--groups person leaves them out together" in done.output
    )
    grouped = run("report", "again.csv", "page.html", "--target", "cost", "--groups", "person")
    assert (
        "leaves them out together" not in grouped.output
        and f"over {people} groups" in grouped.output
    )


def test_counts_under_a_density_are_told():
    counts, others = (
        pd.DataFrame({"count": [0.0, 3.0, np.nan, 12.0]}),
        pd.DataFrame({"x": [0.5, 1.0, 2.0]}),
    )
    assert "count: whole numbers from 0 on; --emission poisson" in _counts("gaussian", counts)
    assert not _counts("poisson", counts) and not _counts("gaussian", others)


def test_the_module_is_the_command():
    words = [sys.executable, "-m", "leaveout", "--version"]
    assert re.match(
        r"leaveout \d", subprocess.run(words, capture_output=True, text=True, check=True).stdout
    )
