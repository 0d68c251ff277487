"""`leaveout crf` and the reading of sentences in columns."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app


def run(*words):
    return CliRunner().invoke(app, ["crf", *map(str, words)])


@pytest.fixture
def sentences(tmp_path):
    """Forty short sentences; the third has a wrong label."""
    rng = np.random.default_rng(0)
    lines = ["# a comment of CoNLL-U", "-DOCSTART- O", ""]
    for n in range(40):
        name = rng.choice(["Anna", "Bert", "Carl"])
        text = [
            (name, "B-PER"),
            (rng.choice(["sees", "likes"]), "O"),
            ("Old", "B-LOC"),
            ("Town", "I-LOC"),
            (".", "O"),
        ]
        lines += [f"{word} x {'O' if n == 2 and word == name else tag}" for word, tag in text] + [
            ""
        ]
    file = tmp_path / "train.conll"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.slow
def test_every_sentence_is_left_out_and_the_wrong_label_found(sentences, tmp_path):
    out = tmp_path / "losses.csv"
    result = run(sentences, "--features", 12, "--worst", 1, "--out", out)
    assert result.exit_code == 0, result.output
    for part in (
        "40 sentences, 200 words, 4 labels; 12 indicators",
        "held-out loss",
        "F1 of entities 9",
        "(O, not B-PER)",
    ):
        assert part in result.output
    table = pd.read_csv(out)
    assert table["loss"].idxmax() == 2 and (table["loss"] > table["no_update"] - 1e-9).all()


def test_reading_sentences_in_columns(sentences, tmp_path):
    tagged = lo.datasets.read_conll(sentences)
    assert tagged.lengths == [5] * 40 and tagged.labels[10] == "O" and tagged.words[3] == "Town"
    assert set(lo.datasets.read_conll(sentences, 0, 1).labels) == {"x"}
    universal = tmp_path / "u.conllu"
    token = "\t".join
    rows = [
        "# sent_id = 1",
        token(["1-2", "don't", *"_" * 8]),
        token(["1", "do", "do", "AUX", *"_" * 6]),
    ]
    rows += [
        token(["2", "n't", "not", "PART", *"_" * 6]),
        token(["2.1", "go", "go", "VERB", *"_" * 6]),
        "",
    ]
    universal.write_text("\n".join(rows))
    tagged = lo.datasets.read_conll(universal, 1, 3)
    assert (
        list(tagged.words) == ["do", "n't"]
        and list(tagged.labels) == ["AUX", "PART"]
        and tagged.lengths == [2]
    )


@pytest.mark.parametrize(
    "words, message",
    [
        (["--refit", "best"], "must be one of certified"),
        (["--penalty", "0"], "it must be positive"),
        (["--features", "0"], "give 1 or more"),
        (["--folds", "-2"], "give 0 or more"),
        (["--folds", "1"], "kfold: k"),
        (["--label", "5"], "line 4 of"),
        (["--label", "1"], "at least two labels"),
        (["--out", "/nowhere/at/all.csv"], "no folder /nowhere/at"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(sentences, words, message):
    result = run(sentences, *words)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_files_that_cannot_be_read(tmp_path):
    empty, binary = tmp_path / "empty.conll", tmp_path / "binary.conll"
    empty.write_text("\n\n")
    binary.write_bytes(b"\xff\x00a")
    for file, message in (
        (tmp_path / "no.conll", "no such file"),
        (empty, "no sentences"),
        (binary, "could not be read as text in UTF-8"),
    ):
        result = run(file)
        assert result.exit_code == 2 and message in result.stderr
