"""Files of pairs of rows, and fixed splits, by the names of the rows of another file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import leaveout as lo

from ._cells import Convention
from ._console import fail
from ._files import FileTable, read, shorten_names

# columns without names of rows
NUMBERS = ("match_probability", "match_weight", "probability", "score", "weight", "match", "linked")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
TRUE_MARKS = ("1", "1.0", "true", "yes")


def names_of(rows: FileTable, column: str | None) -> pd.Index:
    """Name the rows by the cells of a column, as text, else by their numbers in the file, from 1."""
    if column is None:
        return rows.frame.index.astype(str)
    cells = rows.column(column)
    if cells.isna().any():
        fail(f"--id {column}: row {cells.index[cells.isna()][0]} of {rows.name} has no name there; give each row one.")
    names = pd.Index(cells.astype(str))
    if not names.is_unique:
        twice = names[names.duplicated()][0]
        fail(f"--id {column}: {twice!r} is there twice in {rows.name}; name a column of ids, or make one of several.")
    return names


class RecordNames(NamedTuple):
    """The names of the rows, the column they come from (None: their numbers in the file), and which rows are `kept`."""

    names: pd.Index
    column: str | None
    kept_rows: np.ndarray

    @property
    def description(self) -> str:
        return f"--id {self.column}" if self.column else f"row numbers, 1 to {len(self.names)}; --id names a column instead"


def linkage_of(
    file: Path, of: RecordNames, probability: str | None, certain: bool, labelled: Path | None, written: Convention
) -> tuple[lo.leakage.Linkage, str]:
    """Read a linkage of the kept rows from a file of pairs; return it with a sentence about it.

    `certain` pairs are copies, without probabilities. A file of `labelled` pairs determines the probability of a match at each
    score.
    """
    pairs, frame = _table(file, probability, written)
    if probability is not None:
        pairs.column(probability)
    sample = None if labelled is None else _table(labelled, probability, written)[1]
    try:
        if sample is not None:
            linkage = lo.leakage.Linkage.from_labelled(sample, frame, of.names, score=probability)
        else:
            make = lo.leakage.Linkage.from_duplicates if certain else lo.leakage.Linkage.from_pairs
            linkage = make(frame, of.names, probability=probability)
    except (ValueError, TypeError) as error:
        both = pairs.name if labelled is None else f"{pairs.name}, {labelled}"
        fail(f"{both}: {str(error).partition(': ')[2]} (Names of rows here: {of.description}. Probabilities: --probability.)")
    place = np.where(of.kept_rows, np.cumsum(of.kept_rows) - 1, -1)
    left, right = place[linkage.left], place[linkage.right]
    there = (left >= 0) & (right >= 0)
    lost = "" if there.all() else f"; {int((~there).sum())} pairs of rows left out are left out too"
    where = f"column {of.column!r}" if of.column else "number in the file"
    note = f"{pairs.name}: {len(there):,} pairs of rows by {where}{lost}"
    scores = None if linkage.scores is None else linkage.scores[there]
    linkage = replace(
        linkage, num_rows=int(of.kept_rows.sum()), left=left[there], right=right[there],
        probability=linkage.probability[there], scores=scores,
    )  # fmt: skip
    return linkage, "; ".join(filter(None, (note, pairs.note)))


def rates_of(labelled: Path, of: RecordNames, filed: np.ndarray, written: Convention) -> lo.leakage.Linkage:
    """Estimate precision and recall of the clusters as `filed` from a labelled sample."""
    sample = _table(labelled, None, written)[1]
    try:
        return lo.leakage.Linkage.from_labelled(sample, ids=of.names[of.kept_rows], groups=filed)
    except (ValueError, TypeError) as error:
        fail(f"{labelled}: {str(error).partition(': ')[2]} (Names of rows here: {of.description}.)")


def _table(file: Path, score: str | None, written: Convention) -> tuple[FileTable, pd.DataFrame]:
    """Read a file of pairs, or of labelled ones, whose names are text."""
    rows = read(file, as_text=lambda name: name not in (*NUMBERS, score), convention=written)
    if score is not None and score in rows.frame:
        rows.numbers(score, "it must hold probabilities, or scores that labels make probabilities of")
    return rows, rows.frame.astype({name: str for name in rows.frame if name not in (*NUMBERS, score)})


def mark_rows(rows: FileTable, option: str, text: str) -> np.ndarray:
    """Mark the rows that an option names.

    They are named by a column of 1, true, yes or the option's own name, by a value of a column, COLUMN=VALUE, or by their
    numbers.
    """
    column, equals, value = (word.strip() for word in text.partition("="))
    if column in rows.frame:
        cells = rows.frame[column].astype(str).str.strip()
        found = cells == value if equals else cells.str.lower().isin([*TRUE_MARKS, option])
        if not found.any():
            held = shorten_names([repr(cell) for cell in cells.unique()])
            fail(f"--{option} {text}: no row is marked; {column!r} holds {held}. Say which by --{option} {column}=VALUE.")
        return found.to_numpy()
    spans = [RANGE.fullmatch(word.strip()) for word in text.split(",")]
    if not all(spans):
        fail(f"--{option} {text}: it is no column of {rows.name}, nor row numbers such as 801-1000,1205.")
    ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span]
    last = rows.frame.index[-1]
    wrong = next((f"{a}-{b}" for a, b in ends if not 1 <= a <= b <= last), None)
    if wrong is not None:
        fail(f"--{option} {text}: {wrong} are no rows of {rows.name}, whose numbers go from 1 to {last}.")
    return np.any([(rows.frame.index >= a) & (rows.frame.index <= b) for a, b in ends], axis=0)


def split_of(rows: FileTable, test: str | None, train: str | None) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return the rows to train and to test on in a fixed split."""
    if test is None:
        return None if train is None else fail("--train needs --test: the rows to test on.")
    tested = mark_rows(rows, "test", test)
    trained = ~tested if train is None else mark_rows(rows, "train", train)
    both = np.flatnonzero(trained & tested)
    if len(both):
        fail(f"row {rows.frame.index[both[0]]} is trained and tested on; see --train and --test.")
    if not trained.any():
        fail(f"--test {test}: it holds all rows; none is left to train on.")
    return [(np.flatnonzero(trained), np.flatnonzero(tested))]


def columns_of(*texts: str | None) -> list[str]:
    """List the columns that --test and --train may name."""
    return [text.partition("=")[0].strip() for text in texts if text is not None]
