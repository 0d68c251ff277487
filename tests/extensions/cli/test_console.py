"""The command line, on good and on wrong input."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app


def run(*words):
    return CliRunner().invoke(app, ["hmm", *map(str, words)])


@pytest.fixture
def series(tmp_path):
    file = tmp_path / "quakes.csv"
    frame = lo.datasets.earthquakes().iloc[:60]
    gaps = frame["count"].where(frame.index != 7)
    thirds, turns = np.repeat(["a", "b", "c"], 20), np.repeat(["a", "b", "a"], 20)
    own = {"thirds": thirds, "turns": turns, "holes": np.where(gaps.isna(), None, "a")}
    frame.assign(negative=-frame["count"], text="x", gaps=gaps, **own).to_csv(file, index=False)
    return file


@pytest.mark.slow
def test_a_table_over_the_number_of_states(series, tmp_path):
    out, picture = tmp_path / "table.csv", tmp_path / "picture.png"
    options = [
        "--column",
        "gaps",
        "--emission",
        "poisson",
        "--states",
        "1,2",
        "--plan",
        "contiguous:0.1x20",
        "--starts",
        1,
    ]
    result = run(series, *options, "--refit", "none", "--out", out, "--plot", picture)
    assert result.exit_code == 0, result.output
    for part in ("60 steps, 1 missing", "AIC", "BIC", "no upd.", "Dirichlet(2)"):
        assert part in result.output
    table = pd.read_csv(out).set_index("states")
    assert list(table.index) == [1, 2] and picture.stat().st_size > 1000
    hmm = lo.HMM(
        lo.datasets.earthquakes()["count"].iloc[:60].where(lambda x: x.index != 7),
        lo.emissions.Poisson(),
        1,
    )
    fit = lo.fit(hmm)
    plan = lo.contiguous(60, 0.1, 20, rng=0)
    assert table["mean"][1] == pytest.approx(
        lo.cross_validate(fit, plan, strategy=lo.NoUpdate()).mean, rel=1e-9
    )
    assert table["bic"][1] == pytest.approx(hmm.bic(fit), rel=1e-9)
    assert table["difference"].min() == 0 and table["difference"].idxmin() == 2


@pytest.mark.slow
def test_whole_sequences_are_left_out(series, tmp_path):
    out = tmp_path / "table.csv"
    options = ["--emission", "poisson", "--states", "1", "--refit", "none", "--out", out]
    result = run(series, "--column", "count", "--sequence", "thirds", *options)
    assert result.exit_code == 0, result.output
    assert "60 steps, 3 sequences" in result.output and "sequences, 3 refits" in result.output
    x = lo.datasets.earthquakes()["count"].iloc[:60]
    fit = lo.fit(lo.HMM(x, lo.emissions.Poisson(), 1, lengths=[20, 20, 20], drop="sequence"))
    cv = lo.cross_validate(fit, lo.leave_one_out(3), strategy=lo.NoUpdate())
    assert pd.read_csv(out)["mean"][0] == pytest.approx(cv.mean, rel=1e-9)


@pytest.mark.slow
def test_steps_are_named_by_a_column_of_times(tmp_path):
    """The first of dates that never go back, or the one that is named.

    Then the only other column is the series.
    """
    file, out = tmp_path / "weeks.csv", tmp_path / "page.html"
    weeks = pd.date_range("2001-01-01", periods=60, freq="W").strftime("%Y-%m-%d")
    count = np.random.default_rng(0).poisson(3.0, 60)
    frame = pd.DataFrame({"week": weeks, "count": count})
    frame.to_csv(file, index=False)
    options = [
        "--emission",
        "poisson",
        "--states",
        "1",
        "--plan",
        "blocks:6",
        "--refit",
        "none",
        "--report",
        out,
    ]
    pytest.importorskip("matplotlib", reason="needs leaveout[report]")
    result = run(file, *options)
    assert result.exit_code == 0 and "weeks.csv, count: 60 steps, named by week" in result.output, (
        result.output
    )
    assert "row: 2001-01-07\n" in out.read_text() and ">week</text>" in out.read_text()
    frame.assign(week=weeks[::-1]).to_csv(file, index=False)  # dates that go back are no times
    assert "several columns: name one by --column" in run(file, *options).stderr
    frame.assign(year=np.arange(60) + 1900).to_csv(file, index=False)
    result = run(file, "--column", "count", "--time", "year", *options)
    assert result.exit_code == 0 and "named by year" in result.output and "1907" in out.read_text()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--column", "count", "--time", "day"], "no column 'day'"),
        (["--column", "count", "--time", "holes"], "--time holes: it is empty in row 8"),
        (["--column", "cuont"], "no column 'cuont'; it has year, count"),
        ([], "several columns: name one by --column"),
        (["--column", "text"], "holds text: 'x' in row 1"),
        (["--column", "negative", "--emission", "poisson"], "must be counts"),
        (["--column", "count", "--emission", "zip"], "must be one of gaussian, poisson"),
        (["--column", "count", "--emission", "binomial"], "needs --trials"),
        (["--column", "count", "--order", "2"], "--order is for --emission autoregressive"),
        (["--column", "count", "--states", "two"], "such as 2,3,4 or 2-4"),
        (["--column", "count", "--states", "0"], "1 or more"),
        (["--column", "count", "--states", "70"], "70 states"),
        (["--column", "count", "--plan", "foo"], "contiguous:FRACTIONxFOLDS"),
        (["--column", "count", "--plan", "contiguous:0.1"], "contiguous:FRACTIONxFOLDS"),
        (["--column", "count", "--plan", "contiguous:0.1x2.5"], "contiguous:FRACTIONxFOLDS"),
        (["--column", "count", "--plan", "iid:2x10"], "between 0 and 1"),
        (["--column", "count", "--plan", "blocks:60"], "size must be a whole number"),
        (["--column", "count", "--plan", "future:99"], "start must be a whole number"),
        (["--column", "count", "--plan", "sequences"], "needs --sequence"),
        (["--column", "count", "--sequence", "fold"], "no column 'fold'"),
        (
            ["--column", "count", "--sequence", "turns"],
            "sequence 'a' goes on in row 41 after another one",
        ),
        (["--column", "count", "--sequence", "holes"], "column 'holes' is empty in row 8"),
        (["--column", "count", "--refit", "best"], "must be one of certified"),
        (["--column", "count", "--starts", "0"], "1 or more"),
        (["--column", "count", "--out", "/nowhere/at/all.csv"], "no folder /nowhere/at"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(series, words, message):
    result = run(series, *words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


def test_files_that_cannot_be_read(tmp_path):
    empty, header = tmp_path / "empty.csv", tmp_path / "header.csv"
    empty.write_text("")
    header.write_text("n\n")
    for file, message in (
        (tmp_path / "no.csv", "no such file"),
        (empty, "it is empty"),
        (header, "no rows"),
    ):
        result = run(file)
        assert result.exit_code == 2 and message in result.stderr


def test_pictures_of_states_are_for_hidden_markov_models():
    with pytest.raises(TypeError, match="hidden Markov model; got Separable"):
        lo.plot.states(
            lo.fit(
                lo.Separable(lambda theta, x: (x - theta) ** 2, pd.Series([1.0, 2.0]), theta0=0.0)
            )
        )
