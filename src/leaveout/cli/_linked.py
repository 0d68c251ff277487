"""A file of pairs of rows, and a split that is fixed, by what the rows of another file are called."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

import leaveout as lo

from ._console import fail
from ._files import Rows, read, shortened

NUMBERS = ("match_probability", "match_weight", "probability")  # columns of a pairs file that are no names
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
MARKED = ("1", "1.0", "true", "yes")


def names_of(rows: Rows, column: str | None) -> pd.Index:
    """What rows are called: the cells of a column, as text, else their numbers in the file, from 1."""
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


def linkage_of(
    file: Path, names: pd.Index, kept: np.ndarray, column: str | None, probability: str | None, certain: bool
) -> tuple[lo.Linkage, str]:
    """What a file of pairs says of the `kept` of all rows that have `names`, and what is to be said of it. `certain` are
    pairs of copies, without probabilities."""
    pairs = read(file, as_text=lambda name: name not in (*NUMBERS, probability))
    if probability is not None:
        pairs.numbers(pairs.column(probability).name, "it must hold probabilities")
    frame = pairs.frame.astype({name: str for name in pairs.frame if name not in (*NUMBERS, probability)})
    make = lo.Linkage.from_duplicates if certain else lo.Linkage.from_pairs
    try:
        linkage = make(frame, names, probability=probability)
    except (ValueError, TypeError) as error:
        said = f"--id {column}" if column else f"row numbers, 1 to {len(names)}; --id names a column instead"
        fail(f"{pairs.name}: {str(error).partition(': ')[2]} (Names of rows here: {said}. Probabilities: --probability.)")
    place = np.where(kept, np.cumsum(kept) - 1, -1)
    left, right = place[linkage.left], place[linkage.right]
    there = (left >= 0) & (right >= 0)
    lost = "" if there.all() else f"; {int((~there).sum())} pairs of rows left out are left out too"
    note = f"{pairs.name}: {len(there):,} pairs of rows by {f'column {column!r}' if column else 'number in the file'}{lost}"
    some = (left[there], right[there], linkage.probability[there])
    return lo.Linkage.from_pairs(some, int(kept.sum())), "; ".join(filter(None, (note, pairs.note)))


def marked(rows: Rows, option: str, text: str) -> np.ndarray:
    """Which rows are meant: of a column 1, true, yes or the option's own name; those of a value, COLUMN=VALUE; by number."""
    column, equals, value = (word.strip() for word in text.partition("="))
    if column in rows.frame:
        cells = rows.frame[column].astype(str).str.strip()
        found = cells == value if equals else cells.str.lower().isin([*MARKED, option])
        if not found.any():
            held = shortened([repr(cell) for cell in cells.unique()])
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


def split_of(rows: Rows, test: str | None, train: str | None) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """The places of rows to train and to test on, where a split is fixed."""
    if test is None:
        return None if train is None else fail("--train needs --test: the rows to test on.")
    tested = marked(rows, "test", test)
    trained = ~tested if train is None else marked(rows, "train", train)
    both = np.flatnonzero(trained & tested)
    if len(both):
        fail(f"row {rows.frame.index[both[0]]} is trained and tested on; see --train and --test.")
    if not trained.any():
        fail(f"--test {test}: it holds all rows; none is left to train on.")
    return [(np.flatnonzero(trained), np.flatnonzero(tested))]


def columns_of(*texts: str | None) -> list[str]:
    """The columns that --test and --train may name."""
    return [text.partition("=")[0].strip() for text in texts if text is not None]
