"""Files of all shapes, given to every command.

Read as they are meant, or one line with the way out.
"""

import gzip
import io

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app

rng = np.random.default_rng(0)
N = 24
FRAME = pd.DataFrame(
    {
        "age": rng.normal(50, 9, N).round(1),
        "dose": 1000 * rng.uniform(1, 2, N).round(2),
        "day": pd.date_range("2020-01-01", periods=N).strftime("%Y-%m-%d"),
        "city": np.resize(["Ulm", "Bonn", "Kiel"], N),
        "who": [f"p{k // 6}" for k in range(N)],
        "ill": np.where(rng.random(N) < 0.5, "yes", "no"),
        "same": "x",
        "rare": ["only"] + ["b", "c"] * 11 + ["b"],
    }
)
COMMANDS = {  # words that suit FRAME
    "glm": ["--target", "age"],
    "compare": ["--target", "age", "--model", "features=dose", "--model", "features=dose l2=1"],
    "hmm": ["--column", "age", "--states", "1"],
    "mrf": ["--column", "age", "--emission", "gaussian"],
    "leakage": ["--target", "age", "--cluster", "who", "--precision", "0.9", "--recall", "0.9"],
}


def run(*words, stdin=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def one_line(result, message):
    """Nothing but one line on standard error, and exit code 2."""
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert result.stderr.startswith("Error: ") and len(result.stderr.strip().splitlines()) == 1, (
        result.stderr
    )
    assert message in result.stderr, result.stderr
    assert not result.stdout


def text(frame=FRAME, **how):
    return frame.to_csv(index=False, **how)


@pytest.fixture
def words(tmp_path):
    edges = tmp_path / "edges.csv"
    pd.DataFrame({"s": np.arange(N - 1), "t": np.arange(1, N)}).to_csv(edges, index=False)
    return lambda command, *more: [
        command,
        *COMMANDS[command],
        *(["--edges", edges] if command == "mrf" else []),
        *more,
    ]


BAD = {
    "empty": (b"", "it is empty"),
    "blank lines": (b"\n\n\n", "it is empty"),
    "header only": (b"age,who\n", "a header and no rows"),
    "no header": (b"1,2\n3,4\n", "first line, '1,2', is no header"),
    "no names": (b",,\n3,4,5\n", "is no header"),
    "binary": (bytes(range(256)) * 4, "could not be read as text in UTF-8"),
    "zeros": (b"age,who\n1,2\n\0\0", "bytes that are no text"),
    "Latin": (text(FRAME.replace("Kiel", "Köln")).encode("latin-1"), "save it as UTF-8"),
    "compressed": (gzip.compress(text().encode()), "unpack it"),
    "one name twice": (b"age, age,who\n1,2,3\n", "columns that share a name: 'age'"),
    "rows too long": (b"age,who\n1,2,5\n3,4,6\n", "has fewer cells than its rows"),
    "one row too long": (b"age,who\n1,2\n3,4,5\n", "could not be read as CSV with a header"),
    "one long line": (b"x" * 200_000, "a header and no rows"),
    "100,000 columns": (
        ",".join(f"c{j}" for j in range(100_000)).encode() + b"\n" + b",".join([b"1"] * 100_000),
        "too many",
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", BAD)
def test_files_that_are_no_table(what, command, words, tmp_path):
    content, message = BAD[what]
    (tmp_path / "odd.csv").write_bytes(content)
    one_line(run(*words(command, tmp_path / "odd.csv")), message)


@pytest.mark.parametrize("command", [*COMMANDS, "crf"])
def test_files_that_cannot_be_opened(command, words, tmp_path, monkeypatch):
    given = ["crf"] if command == "crf" else words(command)
    one_line(run(*given, tmp_path / "none.csv"), "there is no such file")
    one_line(run(*given, tmp_path), "is a folder; name a file in it")
    if command != "crf":
        one_line(run(*given, "-", stdin=""), "standard input: it is empty")
    (tmp_path / "locked.csv").write_text(text())

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    one_line(
        run(*given, tmp_path / "locked.csv"),
        "could not be read (Permission denied); see to its permissions",
    )


@pytest.mark.parametrize("command", [*COMMANDS, "crf"])
def test_files_that_cannot_be_written(command, words, tmp_path, monkeypatch):
    (tmp_path / "table.csv").write_text(text())
    given = [*(["crf"] if command == "crf" else words(command)), tmp_path / "table.csv"]
    one_line(run(*given, "--out", tmp_path / "none" / "out.csv"), "there is no folder")
    one_line(run(*given, "--out", tmp_path), "is a folder")
    one_line(
        run(*given, "--out", tmp_path / "table.csv"), "it is the file that is read; name another"
    )
    if command != "crf":
        one_line(run(*given, "--plot", tmp_path / "out.xyz"), "must end in one of .png, .pdf, .svg")
    monkeypatch.setattr("os.access", lambda *_: False)
    one_line(run(*given, "--out", tmp_path / "out.csv"), "no permission to write there")


def lines(result):
    """What does not depend on the name of the file."""
    return [
        line
        for line in result.stdout.splitlines()
        if line.startswith(("held-out", "no update", "approximation"))
    ]


def test_one_table_in_many_shapes(tmp_path):
    """Semicolons and decimal commas, tabs, spaces, a byte-order mark, a written index, an empty
    last column, Parquet.
    """
    words = ["--target", "age", "--features", "dose", "--plan", "groups:who", "--refit", "none"]
    (tmp_path / "plain.csv").write_text(text())
    plain = run("glm", tmp_path / "plain.csv", *words)
    assert plain.exit_code == 0, plain.output
    parquet = io.BytesIO()
    FRAME.set_index("day").to_parquet(parquet)
    shapes = {
        "semicolons.csv": (
            text(sep=";", decimal=",").encode(),
            "commas in age, dose read as decimal points",
        ),
        "tabs.tsv": (text(sep="\t").encode(), ""),
        "spaces.csv": (text().replace(",", " , ").encode(), ""),
        "mark.csv": (b"\xef\xbb\xbf" + text().encode(), ""),
        "index.csv": (FRAME.to_csv().encode(), "a column without a name left out"),
        "last.csv": (text().replace("\n", ",\n").encode(), "a column without a name left out"),
        "ends.csv": (text().replace("\n", ",\n").replace("rare,", "rare").encode(), ""),
        "quoted.csv": (text(quoting=1).encode(), ""),
        "windows.csv": (text(lineterminator="\r\n").encode(), ""),
        "table.parquet": (parquet.getvalue(), ""),
    }
    for name, (content, said) in shapes.items():
        (tmp_path / name).write_bytes(content)
        for file, stdin in ((tmp_path / name, None), ("-", content)):
            result = run("glm", file, *words, stdin=stdin)
            assert (
                result.exit_code == 0 and lines(result) == lines(plain) and said in result.stdout
            ), (name, result.output)


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["glm", "--target", "age", "--features", "day"],
            "'day' holds dates: '2020-01-01' in row 1; put the time since a day into a column",
        ),
        (
            ["hmm", "--column", "marked"],
            "'?' in row 3; leave the cell empty where a value is missing",
        ),
        (
            ["glm", "--target", "age", "--features", "dose", "--categorical", "age"],
            "is among --categorical too",
        ),
        (["glm", "--formula", "age ~ C(same)"], "category 'same' has one level, 'x'"),
        (
            ["glm", "--formula", "age ~ dose + C(rare)"],
            "levels 'C(rare)[T.only]' have all their rows in one fold",
        ),
        (["glm", "--formula", "age ~ gap"], "missing values in gap (1); --drop-missing"),
        (["glm", "--formula", "age ~ ."], "missing values in gap (1); --drop-missing"),
        (["glm", "--formula", "age ~ dose", "--target", "dose"], "name one column to predict"),
        (["glm", "--formula", "age ~ dose", "--features", "dose"], "goes without --features"),
        (["glm", "--formula", "dose"], "name one column to predict"),
        (
            ["glm", "--target", "age", "--features", "dose", "--weights", "city"],
            "'city' holds text: 'Ulm' in row 1; it must",
        ),
        (["hmm", "--column", "day"], "'day' holds dates: '2020-01-01' in row 1"),
        (
            ["leakage", "--features", "dose,day"],
            "'day' holds dates: '2020-01-01' in row 1; put the time since a day into a column",
        ),
        (
            ["glm", "--target", "age", "--features", "big", "--decimal", ","],
            "'1,200.50' in row 1; write numbers without separators of thousands, or name these by --thousands",
        ),
        (["glm", "--decimal", ",", "--thousands", ","], "one sign cannot stand for both"),
        (["glm", "--decimal", ";"], "--decimal ;: it must be one of"),
        (["hmm", "--column", "dose", "--thousands", "x"], "--thousands x: it must be one of"),
        (
            ["compare", "--target", "age", "--model", "features=dose", "--model", "features=day"],
            "features=day: column 'day' holds",
        ),
        (
            ["leakage", "--features", "gap"],
            "missing values in gap (1); --drop-missing leaves those rows out, or name other",
        ),
        (["leakage", "--features", "doze"], "no column 'doze'"),
        (["glm", "--taget", "age"], "No such option: --taget"),
        (["glm", "--l2", "much"], "Invalid value for '--l2'"),
        (["glmm"], "No such command 'glmm'. Did you mean 'glm'?"),
    ],
)
def test_columns_and_words_that_cannot_be_used(words, message, tmp_path):
    big = FRAME["dose"].map("{:,.2f}".format).where(FRAME.index > 0, "1,200.50")
    (tmp_path / "table.csv").write_text(
        text(
            FRAME.assign(
                big=big,
                again=2 * FRAME.dose,
                marked=FRAME.dose.astype(str).where(FRAME.index != 2, "?"),
                gap=FRAME.dose.where(FRAME.index != 3),
            )
        )
    )
    more = COMMANDS["leakage"] if words[0] == "leakage" else []
    one_line(run(words[0], *more, *words[1:], tmp_path / "table.csv"), message)


def test_categories_of_very_many_levels(tmp_path):
    (tmp_path / "table.csv").write_text(
        text(pd.DataFrame({"y": np.arange(6000) % 7, "id": [f"n{k}" for k in range(6000)]}))
    )
    for words in (
        ["--target", "y", "--categorical", "id"],
        ["--formula", "y ~ id"],
        ["--formula", "y ~ C(id)"],
    ):
        one_line(
            run("glm", tmp_path / "table.csv", *words, "--l2", 1),
            "category 'id' has 6000 levels: too many",
        )


def test_dates_of_parquet_do_not_become_nanoseconds(tmp_path):
    FRAME.assign(day=pd.to_datetime(FRAME.day)).to_parquet(tmp_path / "table.parquet")
    one_line(
        run("glm", tmp_path / "table.parquet", "--target", "age", "--features", "day"),
        "holds dates: '2020-01-01 00:00:00'",
    )
    one_line(
        run("hmm", tmp_path / "table.parquet", "--column", "day"),
        "holds dates: '2020-01-01 00:00:00'",
    )


def test_groups_are_no_feature_and_labels_may_be_the_left_side(tmp_path):
    (tmp_path / "table.csv").write_text(text(FRAME[["age", "dose", "who", "ill"]]))
    result = run(
        "glm",
        tmp_path / "table.csv",
        "--target",
        "age",
        "--features",
        "dose",
        "--plan",
        "groups:who",
        "--refit",
        "none",
    )
    numbered = FRAME[["age", "dose"]].assign(who=np.arange(N) // 6)
    (tmp_path / "numbered.csv").write_text(text(numbered))
    all_others = run(
        "glm",
        tmp_path / "numbered.csv",
        "--target",
        "age",
        "--plan",
        "groups:who",
        "--refit",
        "none",
    )
    assert (
        result.exit_code == 0
        and lines(all_others) == lines(result)
        and "over 4 groups" in all_others.stdout
    )
    words = ["--loss", "logistic", "--refit", "none"]
    by_formula = run("glm", tmp_path / "table.csv", "--formula", "ill ~ dose", *words)
    by_name = run("glm", tmp_path / "table.csv", "--target", "ill", "--features", "dose", *words)
    assert by_formula.exit_code == 0 and "ill: 1 is 'yes', 0 is 'no'" in by_formula.stdout
    assert lines(by_formula) == lines(by_name)


def test_of_very_many_columns_those_that_are_named_are_read(tmp_path):
    wide = pd.DataFrame(rng.standard_normal((6, 6000)), columns=[f"c{j}" for j in range(6000)])
    (tmp_path / "wide.csv").write_text(text(wide))
    result = run(
        "glm", tmp_path / "wide.csv", "--target", "c0", "--features", "c5999", "--refit", "none"
    )
    assert result.exit_code == 0 and "6 rows, 2 parameters" in result.stdout, result.output
    one_line(
        run("glm", tmp_path / "wide.csv", "--target", "c0"),
        "its 6000 columns are too many; name those to use",
    )


def test_clusters_of_one_record_have_no_estimate_where_no_draw_saw_them(tmp_path):
    (tmp_path / "table.csv").write_text(text())
    words = [
        "--target",
        "age",
        "--cluster",
        "day",
        "--precision",
        "0.9",
        "--recall",
        "0.9",
        "--draws",
        5,
        "--levels",
        5,
    ]
    result = run(
        "leakage",
        tmp_path / "table.csv",
        *words,
        "--features",
        "dose",
        "--out",
        tmp_path / "out.csv",
    )
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out.csv")
    assert len(table) == N and table["naive"].notna().all() and table["estimate"].isna().any()


def test_sentences_on_standard_input_with_a_byte_order_mark():
    content = "\ufeff" + "Anna B-PER\nsees O\n\n" * 12
    result = run(
        "crf", "-", "--folds", 3, "--refit", "none", "--features", 3, stdin=content.encode()
    )
    assert (
        result.exit_code == 0
        and "standard input: 12 sentences, 24 words, 2 labels" in result.stdout
    ), result.output


def test_no_sentences_on_standard_input():
    one_line(run("crf", "-", stdin=""), "standard input has no sentences")


def test_a_fault_of_ours_is_one_line_too_and_can_be_seen(tmp_path, monkeypatch):
    (tmp_path / "table.csv").write_text(text())
    words = ["glm", tmp_path / "table.csv", "--target", "age", "--features", "dose"]

    def broken(*_, **__):
        raise KeyError("lost")

    monkeypatch.setattr(lo, "cross_validate", broken)
    result = run(*words)
    assert result.exit_code == 1 and len(result.stderr.strip().splitlines()) == 1
    assert "a fault of leaveout, KeyError: 'lost'" in result.stderr
    monkeypatch.setenv("LEAVEOUT_TRACEBACK", "1")
    assert isinstance(run(*words).exception, KeyError)


def test_no_words_at_all_are_the_help():
    result = run()
    assert result.exit_code == 2 and "Usage:" in result.output and "compare" in result.output
    assert "Error" not in result.output


SITES = (
    ["1", "01", "001"],
    ["1e2", "100", "10e1"],
    ["12345678901234567", "12345678901234568", "12345678901234569"],
)
ROLES = {  # words by which a column of each command is one of labels
    "glm": (["--target", "y", "--features", "x", "--plan", "groups:site"], "3 of 8 units each"),
    "compare": (
        [
            "--target",
            "y",
            "--features",
            "x",
            "--plan",
            "groups:site",
            "--model",
            "l2=1",
            "--model",
            "l2=2",
        ],
        "over 3 groups",
    ),
    "tune": (
        ["--target", "y", "--features", "x", "--categorical", "site", "--trials", "2"],
        "site (3 levels)",
    ),
    "influence": (["--target", "y", "--features", "x", "--categorical", "site"], "site (3 levels)"),
    "hmm": (["--column", "y", "--sequence", "site", "--states", "1"], "3 sequences"),
    "leakage": (
        [
            "--target",
            "y",
            "--features",
            "x",
            "--cluster",
            "site",
            "--precision",
            "0.9",
            "--recall",
            "0.9",
            "--folds",
            "3",
        ],
        "3 clusters",
    ),
}


@pytest.mark.parametrize("sites", SITES, ids=lambda sites: sites[0])
@pytest.mark.parametrize("command", ROLES)
@pytest.mark.slow_for("hmm-1")
def test_labels_stay_as_they_are_written(command, sites, tmp_path):
    frame = pd.DataFrame({"site": np.repeat(sites, 8), "x": FRAME["dose"], "y": FRAME["age"]})
    (tmp_path / "table.csv").write_text(text(frame))
    words, said = ROLES[command]
    result = run(command, tmp_path / "table.csv", *words)
    assert result.exit_code == 0 and said in " ".join(result.output.split()), result.output


@pytest.mark.parametrize("sites", SITES, ids=lambda sites: sites[0])
def test_classes_and_new_rows_have_labels_as_they_are_written(sites, tmp_path):
    frame = pd.DataFrame({"site": np.resize(sites, N), "x": FRAME["dose"], "y": FRAME["age"]})
    (tmp_path / "table.csv").write_text(text(frame))
    (tmp_path / "new.csv").write_text(text(frame.tail(3)))
    classes = run(
        "glm",
        tmp_path / "table.csv",
        "--target",
        "site",
        "--features",
        "x",
        "--loss",
        "multinomial",
        "--l2",
        1,
    )
    assert classes.exit_code == 0 and "6 parameters" in classes.output, classes.output
    new = run(
        "interval",
        tmp_path / "table.csv",
        tmp_path / "new.csv",
        "--target",
        "y",
        "--categorical",
        "site",
    )
    assert new.exit_code == 0 and "site (3 levels)" in new.output, new.output


def test_one_file_writes_numbers_in_one_way(tmp_path):
    y = ["50.914", "43.512", "61.020", "38.455", "70.125", "52.250"]
    x = ["0,126", "0,534", "0,231", "0,982", "0,415", "0,666"]
    (tmp_path / "table.csv").write_text(
        "x;salary\n" + "\n".join(map(";".join, zip(x, y, strict=True)))
    )
    words = [
        "glm",
        tmp_path / "table.csv",
        "--target",
        "salary",
        "--features",
        "x",
        "--out",
        tmp_path / "rows.csv",
    ]
    one_line(
        run(*words),
        "'50.914' in salary and '0,126' in x; say how the file writes them by --decimal and --thousands",
    )
    assert run(*words, "--decimal", ",", "--thousands", ".").exit_code == 0
    thousands = pd.read_csv(tmp_path / "rows.csv")["prediction"]
    assert np.allclose(thousands.mean(), 52_700, rtol=0.1)
    (tmp_path / "table.csv").write_text(
        "x;salary\n" + "\n".join(map(";".join, zip(x, (f"1.0{cell}" for cell in y), strict=True)))
    )
    read = run(*words)
    assert (
        read.exit_code == 0 and "points in salary read as separators of thousands" in read.output
    ), read.output
    assert np.allclose(pd.read_csv(tmp_path / "rows.csv")["prediction"], 1e6 + thousands)


@pytest.mark.parametrize("currency", ["", "$"])
@pytest.mark.parametrize("decimals", [True, False], ids=["beside decimals", "alone"])
def test_quoted_commas_between_commas_are_thousands(currency, decimals, tmp_path):
    pay = 1000 + 37 * np.arange(N)
    plain = pd.DataFrame({"y": np.arange(N) % 7 + (0.25 if decimals else 0), "pay": pay})
    (tmp_path / "table.csv").write_text(text(plain))
    words = ["glm", tmp_path / "table.csv", "--target", "y", "--out", tmp_path / "rows.csv"]
    assert run(*words).exit_code == 0
    truth = pd.read_csv(tmp_path / "rows.csv")
    (tmp_path / "table.csv").write_text(
        text(plain.assign(pay=[f"{currency}{number:,}" for number in pay]))
    )
    result = run(*words)
    output = " ".join(result.output.split())
    assert result.exit_code == 0 and "commas in pay read as separators of thousands" in output, (
        output
    )
    assert ("--decimal ',' if they are not" in output) != decimals
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "rows.csv"), truth)


@pytest.mark.parametrize("command", ["glm", "influence", "tune"])
def test_dates_are_left_out_and_named(command, tmp_path):
    frame = FRAME[["dose", "age"]].assign(
        visit=pd.date_range("2024-02-27", periods=N).strftime("%Y-%m-%d")
    )
    (tmp_path / "table.csv").write_text(text(frame))
    result = run(
        command,
        tmp_path / "table.csv",
        "--target",
        "age",
        *(["--l2", 1] if command == "glm" else []),
    )
    output = " ".join(result.output.split())
    assert result.exit_code == 0 and "left out as dates: visit (put the time" in output, output
    assert "features: dose;" in output


@pytest.mark.slow
def test_rows_of_a_series_go_by_their_times(tmp_path):
    frame = FRAME[["day", "age"]].assign(
        step=np.arange(1, N + 1), who=np.repeat(["a", "b"], N // 2)
    )
    words = ["--column", "age", "--states", "2", "--out", tmp_path / "table.out"]

    def mean(frame, *more):
        (tmp_path / "table.csv").write_text(text(frame))
        result = run("hmm", tmp_path / "table.csv", *words, *more)
        assert result.exit_code == 0, result.output
        return pd.read_csv(tmp_path / "table.out")["mean"].iloc[0], " ".join(result.output.split())

    blocks = ["--plan", "blocks:4", "--time"]
    right, _ = mean(frame, *blocks, "day")
    odd = frame.sample(frac=1, random_state=3)
    for time in ("day", "step"):
        found, said = mean(odd, *blocks, time)
        assert found == right and f"rows sorted by {time}" in said
    wrong, said = mean(odd, *blocks[:2])
    assert (
        wrong != right
        and "the dates of day do not rise" in said
        and "--time day sorts them" in said
    )
    each, _ = mean(frame, "--time", "day", "--sequence", "who")
    found, said = mean(odd.sort_values("who", kind="stable"), "--time", "day", "--sequence", "who")
    assert found == each and "rows sorted by day" in said
    (tmp_path / "table.csv").write_text(
        text(frame.assign(day=frame["day"].where(frame.index != 5, "2020-01-01")))
    )
    again = run("hmm", tmp_path / "table.csv", *words, "--time", "day")
    one_line(again, "'2020-01-01 00:00:00' in row 6 is the time of another row too")


def _ward(count=30):
    draws = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "patient_id": np.arange(1, count + 1),
            "age": draws.normal(50, 9, count).round(1).astype(str),
        }
    )
    frame["fee"] = [f"${fee:,.2f}" for fee in draws.uniform(2000, 90000, count)]
    frame["visit"] = pd.date_range("2020-01-01", periods=count).strftime("%Y-%m-%d")
    return frame.assign(cost=draws.normal(size=count).round(3), ill=np.resize(["no", "yes"], count))


def test_a_report_says_what_it_leaves_out_and_why(tmp_path):
    page, file = tmp_path / "page.html", tmp_path / "ward.csv"
    file.write_bytes(b"Ward 7\n\n" + text(_ward()).encode())
    result = run("report", file, page, "--target", "cost")
    assert result.exit_code == 0, result.output
    for words in (
        "left out as ids: patient_id",
        "left out as dates: visit",
        "features: age, fee",
        "1 line above the header",
    ):
        assert words in result.output, result.output
    file.write_bytes(text(_ward()).encode("utf-16"))
    assert (
        run(
            "report",
            file,
            page,
            "--target",
            "cost",
            "--formula",
            "cost ~ age + fee",
            "--plan",
            "kfold:5",
        ).exit_code
        == 0
    )


def test_words_in_a_column_of_numbers_are_counted_and_named_by_na(tmp_path):
    frame = _ward()
    frame.loc[[2, 6, 8, 11], "age"] = "k.A."
    file, page = tmp_path / "ward.csv", tmp_path / "page.html"
    file.write_text(text(frame))
    words = ("report", file, page, "--target", "cost")
    one_line(run(*words), "26 of 30 are numbers, 4 are 'k.A.' (rows 3, 7, 9, …): --na 'k.A.'")
    result = run(*words, "--na", "k.A.", "--drop-missing")
    assert result.exit_code == 0 and "4 rows with missing values left out" in result.output, (
        result.output
    )


def test_the_column_that_separates_the_classes_is_named(tmp_path):
    frame = _ward().assign(ill=np.repeat(["no", "yes"], 15))
    file = tmp_path / "ward.csv"
    file.write_text(text(frame))
    words = ("glm", file, "--target", "ill", "--loss", "logistic", "--features", "age,patient_id")
    one_line(run(*words), "the column 'patient_id' alone separates the classes")
