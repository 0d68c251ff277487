"""`leaveout mrf`, on good and on wrong input."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app


def run(*words):
    return CliRunner().invoke(app, ["mrf", *map(str, words)])


@pytest.fixture
def files(tmp_path):
    """A 5 × 5 grid with two regions, its sites by number and by name."""
    number = np.arange(25).reshape(5, 5)
    across, down = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    edges = np.concatenate([np.stack([s.ravel(), t.ravel()], 1) for s, t in (across, down)])
    rng = np.random.default_rng(0)
    count = rng.poisson(np.where(np.arange(25) % 5 < 2, 2.0, 9.0))
    frame = pd.DataFrame(
        {
            "count": count,
            "text": "x",
            "people": 100.0,
            "name": [f"a{s}" for s in range(25)],
            "same": "b",
        }
    )
    frame.to_csv(tmp_path / "counts.csv", index=False)
    pd.DataFrame(edges, columns=["s", "t"]).to_csv(tmp_path / "edges.csv", index=False)
    pd.DataFrame([[f"a{s}", f"a{t}"] for s, t in edges], columns=["s", "t"]).to_csv(
        tmp_path / "named.csv", index=False
    )
    pd.DataFrame(edges + 1, columns=["s", "t"]).to_csv(tmp_path / "from_one.csv", index=False)
    pd.DataFrame(np.c_[edges, edges], columns=list("stuv")).to_csv(
        tmp_path / "four.csv", index=False
    )
    pd.DataFrame(edges).to_csv(tmp_path / "bare.csv", index=False, header=False)
    return tmp_path


@pytest.mark.slow
def test_a_table_over_couplings(files):
    out, picture = files / "table.csv", files / "picture.png"
    options = [
        "--edges",
        files / "edges.csv",
        "--column",
        "count",
        "--coupling",
        "0.2,0.6",
        "--starts",
        1,
        "--refit",
        "none",
    ]
    result = run(files / "counts.csv", *options, "--out", out, "--plot", picture)
    assert result.exit_code == 0, result.output
    for part in (
        "25 sites, 40 edges",
        "β",
        "AIC",
        "no upd.",
        'drop="site"',
        "not available: 12 blocks",
    ):
        assert part in result.output, result.output
    table = pd.read_csv(out).set_index("coupling")
    assert list(table.index) == [0.2, 0.6] and picture.stat().st_size > 1000
    edges, count = (
        pd.read_csv(files / "edges.csv").to_numpy(),
        pd.read_csv(files / "counts.csv")["count"],
    )
    fit = lo.fit(lo.MRF(count, edges, lo.emissions.Poisson(), 2, coupling=0.6, drop="site"))
    assert table["mean"][0.6] == pytest.approx(
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate()).mean, rel=1e-8
    )
    assert table["bic"][0.6] == pytest.approx(fit.objective.bic(fit), rel=1e-8)


@pytest.mark.slow
def test_sites_by_name_a_learned_coupling_and_a_population(files):
    options = [
        "--edges",
        files / "named.csv",
        "--site",
        "name",
        "--column",
        "count",
        "--exposure",
        "people",
    ]
    result = run(
        files / "counts.csv", *options, "--plan", "near:1+1", "--starts", 1, "--refit", "none"
    )
    assert result.exit_code == 0, result.output
    assert "* learned" in result.output and "coupling ~ Normal(0, 1)" in result.output


@pytest.mark.slow
def test_covariates_and_the_map(files):
    frame = pd.read_csv(files / "counts.csv").assign(x=np.arange(25) % 5, y=np.arange(25) // 5)
    frame["wealth"] = np.random.default_rng(1).standard_normal(25)
    frame.to_csv(files / "counts.csv", index=False)
    options = [
        "--edges",
        files / "edges.csv",
        "--column",
        "count",
        "--coupling",
        "0.5",
        "--starts",
        1,
        "--refit",
        "none",
    ]
    extra = [
        "--covariates",
        "wealth",
        "--coordinates",
        "x,y",
        "--map",
        files / "map.png",
        "--out",
        files / "table.csv",
    ]
    result = run(files / "counts.csv", *options, *extra, "--emission", "negative-binomial")
    assert result.exit_code == 0, result.output
    assert "coefficients ~ Normal(0" in result.output and (files / "map.png").stat().st_size > 1000
    edges = pd.read_csv(files / "edges.csv").to_numpy()
    kind = lo.emissions.NegativeBinomial(covariates=frame[["wealth"]])
    fit = lo.fit(lo.MRF(frame["count"], edges, kind, 2, coupling=0.5, drop="site"))
    same = lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate()).mean
    assert pd.read_csv(files / "table.csv")["mean"][0] == pytest.approx(same, rel=1e-8)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--column", "cuont"], "no column 'cuont'"),
        ([], "several columns: name one by --column"),
        (["--column", "text"], "holds text: 'x' in row 1"),
        (["--column", "count", "--edges", "nothing.csv"], "no such file"),
        (["--column", "count", "--edges", "bare.csv"], "first line, '0,1', is no header"),
        (["--column", "count", "--edges", "named.csv"], "Names need --site COLUMN"),
        (
            ["--column", "count", "--edges", "from_one.csv"],
            "edges name site 25, but sites are numbered from 0 to 24",
        ),
        (
            ["--column", "count", "--edges", "four.csv"],
            "two columns, the sites that are neighbours; it has 4",
        ),
        (["--column", "count", "--edges", "named.csv", "--site", "same"], "is there twice"),
        (["--column", "count", "--site", "nome"], "no column 'nome'"),
        (["--column", "count", "--emission", "zip"], "must be one of poisson"),
        (
            ["--column", "count", "--emission", "gaussian", "--exposure", "people"],
            "--exposure is for",
        ),
        (
            ["--column", "count", "--emission", "gaussian", "--covariates", "people"],
            "--covariates is for",
        ),
        (
            ["--column", "count", "--covariates", "people"],
            "covariates must vary; column 0 does not",
        ),
        (["--column", "count", "--covariates", "wealth"], "no column 'wealth'"),
        (
            ["--column", "count", "--map", "map.png"],
            "--map FILE and --coordinates ACROSS,UP go together",
        ),
        (["--column", "count", "--map", "map.png", "--coordinates", "people"], "name two columns"),
        (["--column", "count", "--states", "two"], "such as 2,3,4 or 2-4"),
        (["--column", "count", "--coupling", "strong"], "0.5,1,free"),
        (["--column", "count", "--coupling", "nan"], "coupling must be a finite number"),
        (
            ["--column", "count", "--drop", "edge"],
            "--drop edge: it must be one of observation, site",
        ),
        (["--column", "count", "--plan", "near:x"], "loo, kfold:FOLDS"),
        (["--column", "count", "--plan", "near:9"], "leave out every unit"),
        (["--column", "count", "--refit", "best"], "must be one of certified"),
        (["--column", "count", "--starts", "0"], "1 or more"),
        (["--column", "count", "--out", "/nowhere/at/all.csv"], "no folder /nowhere/at"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(files, words, message):
    words = [
        files / word if word.endswith(".csv") and not word.startswith("/") else word
        for word in words
    ]
    words = words if "--edges" in words else [*words, "--edges", files / "edges.csv"]
    result = run(files / "counts.csv", *words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


@pytest.mark.slow
def test_sites_by_themselves_are_compared_too(files):
    """One state has nothing to couple: it stands beside the others once, whatever the couplings."""
    options = [
        "--edges",
        files / "named.csv",
        "--site",
        "name",
        "--column",
        "count",
        "--starts",
        1,
        "--refit",
        "none",
    ]
    result = run(
        files / "counts.csv",
        *options,
        "--states",
        "1",
        "--coupling",
        "free,0.5",
        "--out",
        files / "table.csv",
    )
    assert result.exit_code == 0, result.output
    table, count = pd.read_csv(files / "table.csv"), pd.read_csv(files / "counts.csv")["count"]
    assert table["states"].tolist() == [1] and table["coupling"].tolist() == [0.0]
    fit = lo.fit(
        lo.MRF(count, np.zeros((0, 2), int), lo.emissions.Poisson(), 1, coupling=0.0, drop="site")
    )
    assert table["no_update"][0] == pytest.approx(
        lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NoUpdate()).mean, rel=1e-8
    )
