"""`leaveout leakage` on pairs, copies and fixed splits.

What the library says of them, or one line with the way out.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import KNeighborsRegressor
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app

N, COPIED = 120, 20
QUICK = ("--draws", 4, "--levels", 4, "--model", "knn", "--features", "a,b")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows of which the last are copies of the first, named r120, r119, …, and files of pairs that
    name them.
    """
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b, cost = rng.normal(size=(3, N))
    for column in (a, b, cost):
        column[-COPIED:] = column[:COPIED]
    names = np.array([f"r{k}" for k in range(N, 0, -1)])
    split = np.where(np.arange(N) < N // 2, "train", "test")
    ill = np.where(cost + rng.normal(size=N) > 0, "yes", "no")
    frame = pd.DataFrame(
        {"id": names, "a": a, "b": b, "cost": cost, "ill": ill, "split": split, "same": 1}
    )
    frame.to_csv("records.csv", index=False)
    left, right = np.arange(COPIED), np.arange(N - COPIED, N)
    more = np.c_[20:50, 70:100]
    pairs = pd.DataFrame(np.r_[np.c_[left, right], more], columns=["unique_id_l", "unique_id_r"])
    pairs["match_probability"] = np.r_[np.full(COPIED, 0.45), np.full(30, 0.02)]
    pairs["unique_id_l"], pairs["unique_id_r"] = names[pairs.unique_id_l], names[pairs.unique_id_r]
    pairs.to_csv("pairs.csv", index=False)
    # as the rows are numbered
    pd.DataFrame({"left": left + 1, "right": right + 1}).to_csv("copies.csv", index=False)
    return frame, pairs


def run(*words):
    return CliRunner().invoke(app, ["leakage", *map(str, words)])


def test_copies_across_a_split_are_what_the_library_says_of_them(folder):
    frame, _ = folder
    done = run(
        "records.csv",
        "--target",
        "cost",
        "--duplicates",
        "copies.csv",
        "--test",
        "split",
        *QUICK,
        "--out",
        "rows.csv",
    )
    assert done.exit_code == 0, done.output
    rows = np.arange(N)
    X = frame[["a", "b"]]
    X = (X - X.mean()) / X.std()
    want = lo.leakage.leakage_report(
        KNeighborsRegressor(), X.to_numpy(), frame["cost"].to_numpy(), scoring="mse", cv=[(rows[: N // 2], rows[N // 2 :])],
        linkage=lo.leakage.Linkage.from_duplicates(np.c_[rows[:COPIED], rows[-COPIED:]], N),
        injection=lo.leakage.Injection(num_boot=4, num_levels=4),
    )  # fmt: skip
    for name, text in want._lines():
        assert f"{name:<16}{text}" in done.output
    assert "recommended     purge" in done.output and "60 rows trained on, 60 tested" in done.output
    assert (
        "20 pairs of rows by number in the file" in done.output
        and "features        a, b\n" in done.output
    )
    out = pd.read_csv("rows.csv").set_index("row")
    assert (
        sorted(out.index) == list(range(N - COPIED + 1, N + 1))
        and (out["mate"] == out.index - (N - COPIED)).all()
    )
    words = (
        "records.csv",
        "--target",
        "cost",
        "--duplicates",
        "copies.csv",
        "--test",
        "split",
        *QUICK,
    )
    part = run(*words, "--listed", "0.8,0.7,0.88")
    more = lo.leakage.leakage_report(
        KNeighborsRegressor(), X.to_numpy(), frame["cost"].to_numpy(), scoring="mse", cv=[(rows[: N // 2], rows[N // 2 :])],
        linkage=lo.leakage.Linkage.from_duplicates(np.c_[rows[:COPIED], rows[-COPIED:]], N), listed=(0.8, 0.7, 0.88),
    )  # fmt: skip
    assert (
        f"{'purge':<16}{more._describe('purge')}" in part.output
        and more.table.score["purge"] > want.table.score["purge"]
    )
    by_number = run(
        "records.csv",
        "--target",
        "cost",
        "--duplicates",
        "copies.csv",
        "--test",
        "61-100,101-120",
        *QUICK,
    )
    told = lambda run: [
        line for line in run.output.splitlines() if line.startswith(("purge", "naive", "verdict"))
    ]
    assert told(by_number) == told(done)


def test_rows_by_a_column_of_names(folder):
    words = (
        "records.csv",
        "--target",
        "ill",
        "--pairs",
        "pairs.csv",
        "--id",
        "id",
        "--scoring",
        "roc_auc",
        "--features",
        "a,b",
    )
    done = run(
        *words,
        "--draws",
        4,
        "--levels",
        4,
        "--report",
        "page.html",
        "--out",
        "rows.csv",
        "--threshold",
        0.4,
    )
    assert done.exit_code == 0, done.output
    assert "logistic regression" in done.output and "score roc_auc, more is better" in done.output
    assert "50 pairs of rows by column 'id'" in done.output and "Report: page.html" in done.output
    out = pd.read_csv("rows.csv")
    assert out["row"].str.startswith("r").all() and out["mate"].str.startswith("r").all()
    page = (
        Path("page.html")
        .read_text()
        .partition('data-for="table-rows">')[2]
        .partition("</script>")[0]
    )
    assert [row[0] for row in json.loads(page)["rows"]] == out["row"].tolist()


def test_labels_make_probabilities_of_scores_or_alone_rates_of_clusters(folder):
    frame, pairs = folder
    rng = np.random.default_rng(1)
    match = np.r_[np.ones(15, int), np.zeros(15, int)]
    score = np.r_[rng.normal(2, 1, 15), rng.normal(0, 1, 15), rng.normal(1, 1, len(pairs) - 30)]
    names = pairs.columns[:2]
    pairs.assign(score=score)[[*names, "score"]].to_csv("scored.csv", index=False)
    pairs[names].iloc[:30].assign(match=match).to_csv("labels.csv", index=False)
    words = ("records.csv", "--target", "cost", "--id", "id", "--labelled", "labels.csv", *QUICK)
    done = run(*words, "--pairs", "scored.csv", "--test", "split", "--answers", "naive,purge")
    assert done.exit_code == 0, done.output
    X = frame[["a", "b"]]
    report = lambda linkage: lo.leakage.leakage_report(
        KNeighborsRegressor(), ((X - X.mean()) / X.std()).to_numpy(), frame["cost"].to_numpy(), scoring="mse",
        cv=[(np.arange(N // 2), np.arange(N // 2, N))], linkage=linkage, answers=("naive", "purge"),
    )  # fmt: skip
    known = pd.read_csv("labels.csv"), pd.read_csv("scored.csv")
    want = report(lo.leakage.Linkage.from_labelled(*known, frame["id"]))
    assert (
        f"{'purge':<16}{want._describe('purge')}" in done.output
        and "coarser         none: not asked for" in done.output
    )
    clusters = np.r_[np.arange(N // 2), np.arange(N // 2)]  # of which each is two records
    frame.assign(cluster=clusters).to_csv("records.csv", index=False)
    both = frame["id"].to_numpy()[
        np.c_[np.arange(40), np.r_[np.arange(60, 90), np.arange(10)[::-1] + 100]]
    ]
    pd.DataFrame(both, columns=["left", "right"]).assign(match=np.arange(40) % 4 > 0).astype(
        {"match": int}
    ).to_csv("labels.csv", index=False)
    alone = run(*words, "--cluster", "cluster")
    assert alone.exit_code == 0, alone.output
    rates = lo.leakage.Linkage.from_labelled(
        pd.read_csv("labels.csv"), ids=frame["id"], groups=clusters
    ).rates
    assert rates.estimate["precision"] == pytest.approx(22 / 30) and "corrected" in alone.output
    sentence = "--labelled alone says how good clusters are: name their column by --cluster"
    assert sentence in run(*words).stderr
    assert (
        "no column 'match'"
        in run(*words, "--pairs", "scored.csv", "--labelled", "scored.csv").stderr
    )


def test_pairs_of_rows_that_are_left_out_are_left_out_too(folder):
    frame, _ = folder
    frame.assign(a=frame["a"].where(frame.index != 3)).to_csv("missing.csv", index=False)
    words = (
        "missing.csv",
        "--target",
        "cost",
        "--duplicates",
        "copies.csv",
        "--test",
        "split",
        *QUICK,
    )
    done = run(*words, "--drop-missing")
    assert done.exit_code == 0 and "1 pairs of rows left out are left out too" in done.output, (
        done.output
    )
    assert (
        "19 listed pairs across" in done.output and "59 rows trained on, 60 tested" in done.output
    )
    assert "missing values in a (1)" in run(*words).stderr


PAIRS = ("--pairs", "pairs.csv", "--id", "id")
WRONG = {
    "nothing known": (
        (),
        "give what is known of the links, once: --pairs, --duplicates, --labelled alone, or --precision",
    ),
    "two ways": ((*PAIRS, "--duplicates", "copies.csv"), "give what is known of the links, once"),
    "no recall": (("--precision", 0.9, "--cluster", "id"), "give --precision and --recall, both"),
    "no cluster": (("--precision", 0.9, "--recall", 0.9), "name their column by --cluster"),
    "page of rates": (
        ("--precision", 0.9, "--recall", 0.9, "--cluster", "id", "--report", "p.html"),
        "--report is for --pairs",
    ),
    "threshold": ((*PAIRS, "--threshold", 45), "--threshold 45: it must be a probability"),
    "threshold beside": (
        (*PAIRS, "--cluster", "split", "--threshold", 0.5),
        "leave it out where --cluster names them",
    ),
    "numbers, not names": (("--pairs", "pairs.csv"), "no row is called 'r120'"),
    "no such id": (("--pairs", "pairs.csv", "--id", "ids"), "no column 'ids'"),
    "id twice": (("--pairs", "pairs.csv", "--id", "same"), "'1' is there twice in records.csv"),
    "no file": (("--pairs", "pears.csv"), "there is no such file"),
    "no pairs": (("--pairs", "none.csv", "--id", "id"), "none.csv: a header and no rows"),
    "percent": (
        ("--pairs", "percent.csv", "--id", "id"),
        "match_probability holds 45. Divide percentages by 100",
    ),
    "words": (
        ("--pairs", "words.csv", "--id", "id"),
        "words.csv: the column 'match_probability' of the pairs holds 'high', where a probability",
    ),
    "of itself": (("--pairs", "itself.csv", "--id", "id"), "a pair names one record twice, 'r120'"),
    "no probability": ((*PAIRS, "--probability", "p"), "pairs.csv has no column 'p'"),
    "target is id": (("--pairs", "pairs.csv", "--id", "cost"), "must name different columns"),
    "id a feature": ((*PAIRS, "--features", "a,id"), "--features id: it is the target, or says"),
    "no such split": (
        (*PAIRS, "--test", "spli"),
        "it is no column of records.csv, nor row numbers such as",
    ),
    "unmarked": (
        (*PAIRS, "--test", "split=dev"),
        "no row is marked; 'split' holds 'train', 'test'",
    ),
    "past the end": (
        (*PAIRS, "--test", "100-121"),
        "100-121 are no rows of records.csv, whose numbers go from 1 to 120",
    ),
    "both sides": (
        (*PAIRS, "--test", "50-60", "--train", "1-50"),
        "row 50 is trained and tested on",
    ),
    "all tested": ((*PAIRS, "--test", "1-120"), "none is left to train on"),
    "train alone": ((*PAIRS, "--train", "1-50"), "--train needs --test"),
    "listed of rates": (
        ("--precision", 0.9, "--recall", 0.9, "--cluster", "id", "--listed", 0.9),
        "--listed 0.9: it is of a list of pairs",
    ),
    "listed in words": (
        (*PAIRS, "--listed", "most"),
        "--listed most: give one share, as 0.9, or it and its interval",
    ),
    "listed percent": (
        (*PAIRS, "--listed", 90),
        "listed must lie in (0, 1], or be (estimate, low, high)",
    ),
    "one value": ((*PAIRS, "--target", "same"), "column 'same' holds one value only, '1'"),
    "of classes": ((*PAIRS, "--scoring", "roc_auc"), "roc_auc is of classes"),
    "no such score": ((*PAIRS, "--scoring", "rocauc"), "neither a scorer of scikit-learn's"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_one_line(folder, what):
    _, pairs = folder
    pairs.iloc[:0].to_csv("none.csv", index=False)
    pairs.assign(match_probability=100 * pairs.match_probability).to_csv("percent.csv", index=False)
    pairs.assign(match_probability="high").to_csv("words.csv", index=False)
    pairs.assign(unique_id_r=pairs.unique_id_r.where(pairs.index > 0, pairs.unique_id_l)).to_csv(
        "itself.csv", index=False
    )
    words, message = WRONG[what]
    done = run("records.csv", *(() if "--target" in words else ("--target", "cost")), *words)
    assert (
        done.exit_code == 2
        and len(done.stderr.strip().splitlines()) == 1
        and message in done.stderr
    ), done.output
    assert not done.stdout
