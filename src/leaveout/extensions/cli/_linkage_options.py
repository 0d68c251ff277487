"""Files of pairs of rows, and fixed splits, by the names of the rows of another file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

import leaveout as lo

from ._cells import Convention
from ._console import fail, join_notes
from ._files import FileTable, read, shorten_names
from ._options import input_file, option

pd = lo.developer.pd

Array = np.ndarray

# columns without names of rows
NUMBERS = "match_probability", "match_weight", "probability", "score", "weight", "match", "linked"
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
TRUE_MARKS = "1", "1.0", "true", "yes"


WAYS = "--pairs, --duplicates, --labelled alone, or --precision and --recall"


@dataclass(frozen=True)
class Links:
    """Options for what is known of the rows that belong together, and for the clusters of rows."""

    pairs: Annotated[
        Path | None, input_file("A file of pairs of rows with match probabilities, as Splink's.")
    ] = None
    duplicates: Annotated[
        Path | None, input_file("Instead: of pairs of rows that are copies of one another.")
    ] = None
    labelled: Annotated[
        Path | None,
        input_file(
            "A file of labelled pairs, with a column match of 0 and 1: makes probabilities of the scores of --pairs; alone, "
            "with --cluster, precision and recall."
        ),
    ] = None
    precision: Annotated[
        float | None, option("Instead: of linked pairs, the share that matches.")
    ] = None
    recall: Annotated[float | None, option("Of matching pairs, the share that is linked.")] = None
    name: Annotated[
        str | None, option("By which pairs name rows; else by number, from 1.", "--id")
    ] = None
    probability: Annotated[str | None, option("Their column; match_probability if not given.")] = (
        None
    )
    share: Annotated[
        str | None,
        option(
            "Of the records with a mate filed elsewhere, the share with one among the pairs: 0.9, or with an interval "
            "0.9,0.85,0.95; all, if not given.",
            "--listed",
        ),
    ] = None
    cluster: Annotated[
        str | None, option("The column of clusters, as filed; else those that pairs link.")
    ] = None
    threshold: Annotated[
        float | None, option("Without --cluster: the probability that links a pair; 0.5.")
    ] = None

    def check(self, report: Path | None) -> None:
        """Check that links are given in one way, without options of another."""
        has_rates = self.precision is not None or self.recall is not None
        has_labels_only = self.labelled is not None and self.pairs is None
        if (self.pairs is not None) + (
            self.duplicates is not None
        ) + has_rates + has_labels_only != 1:
            fail(f"give what is known of the links, once: {WAYS}.")
        if has_rates and (self.precision is None or self.recall is None):
            fail("give --precision and --recall, both.")
        has_no_pairs = has_rates or has_labels_only
        if has_no_pairs and self.cluster is None:
            word = "--labelled alone says" if has_labels_only else "--precision and --recall say"
            fail(f"{word} how good clusters are: name their column by --cluster.")
        if has_no_pairs and report is not None:
            fail("--report is for --pairs and --duplicates; of rates there is no page.")
        if self.threshold is not None and (has_rates or self.cluster is not None):
            fail("--threshold makes clusters of pairs; leave it out where --cluster names them.")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            fail(
                f"--threshold {self.threshold:g}: it must be a probability, above 0 and at most 1."
            )

    @property
    def listed(self) -> float | tuple[float, float, float] | None:
        """The share of --listed: one number, or three."""
        if self.share is None:
            return None
        if self.pairs is None and self.duplicates is None:
            fail(
                f"--listed {self.share}: it is of a list of pairs; give it with --pairs or --duplicates."
            )
        try:
            shares = [float(word) for word in self.share.split(",")]
        except ValueError:
            shares = []
        if len(shares) not in (1, 3):
            fail(
                f"--listed {self.share}: give one share, as 0.9, or it and its interval, as 0.9,0.85,0.95."
            )
        if len(shares) == 1:
            return shares[0]
        return shares[0], shares[1], shares[2]


class RecordNames(NamedTuple):
    """The names of the rows, the column they come from (None: their numbers in the file), and which
    rows are `kept`.
    """

    names: pd.Index
    column: str | None
    kept_rows: Array

    @property
    def description(self) -> str:
        if self.column:
            return f"--id {self.column}"
        return f"row numbers, 1 to {len(self.names)}; --id names a column instead"


def linkage_of(
    links: Links, file: Path, records: RecordNames, convention: Convention
) -> tuple[lo.leakage.Linkage, str]:
    """Read a linkage of the kept rows from a file of pairs; return it with a sentence about it.

    Duplicates are copies, without probabilities. A file of labelled pairs determines the
    probability of a match at each score.
    """
    probability = links.probability
    labelled = links.labelled
    pairs, frame = _table(file, probability, convention)
    if probability is not None:
        pairs.column(probability)
    sample = None if labelled is None else _table(labelled, probability, convention)[1]
    try:
        if sample is not None:
            linkage = lo.leakage.Linkage.from_labelled(
                sample, frame, records.names, score=probability
            )
        else:
            make = (
                lo.leakage.Linkage.from_duplicates
                if links.pairs is None
                else lo.leakage.Linkage.from_pairs
            )
            linkage = make(frame, records.names, probability=probability)
    except (ValueError, TypeError) as error:
        sources = pairs.name if labelled is None else f"{pairs.name}, {labelled}"
        fail(
            f"{sources}: {str(error).partition(': ')[2]} (Names of rows here: {records.description}. Probabilities: --probability.)"
        )
    place = np.where(records.kept_rows, np.cumsum(records.kept_rows) - 1, -1)
    left_rows = place[linkage.left]
    right_rows = place[linkage.right]
    present = (left_rows >= 0) & (right_rows >= 0)
    omission = (
        ""
        if present.all()
        else f"; {int((~present).sum())} pairs of rows left out are left out too"
    )
    where = f"column {records.column!r}" if records.column else "number in the file"
    note = f"{pairs.name}: {len(present):,} pairs of rows by {where}{omission}"
    scores = None if linkage.scores is None else linkage.scores[present]
    linkage = replace(
        linkage, num_rows=int(records.kept_rows.sum()), left=left_rows[present], right=right_rows[present],
        probability=linkage.probability[present], scores=scores,
    )  # fmt: skip
    return linkage, join_notes(note, pairs.note)


def rates_of(
    labelled: Path, records: RecordNames, filed: Array, convention: Convention
) -> lo.leakage.Linkage:
    """Estimate precision and recall of the clusters as `filed` from a labelled sample."""
    sample = _table(labelled, None, convention)[1]
    try:
        return lo.leakage.Linkage.from_labelled(
            sample, ids=records.names[records.kept_rows], groups=filed
        )
    except (ValueError, TypeError) as error:
        fail(
            f"{labelled}: {str(error).partition(': ')[2]} (Names of rows here: {records.description}.)"
        )


def _table(file: Path, score: str | None, convention: Convention) -> tuple[FileTable, pd.DataFrame]:
    """Read a file of pairs, or of labelled ones, whose names are text."""
    rows = read(file, as_text=lambda name: name not in (*NUMBERS, score), convention=convention)
    if score is not None and score in rows.frame:
        rows.numbers(
            score, "it must hold probabilities, or scores that labels make probabilities of"
        )
    return rows, rows.frame.astype(
        {name: str for name in rows.frame if name not in (*NUMBERS, score)}
    )


def mark_rows(rows: FileTable, option: str, text: str) -> Array:
    """Mark the rows that an option names.

    They are named by a column of 1, true, yes or the option's own name, by a value of a column,
    COLUMN=VALUE, or by their numbers.
    """
    column, equals, value = (word.strip() for word in text.partition("="))
    if column in rows.frame:
        cells = rows.frame[column].astype(str).str.strip()
        marks = cells == value if equals else cells.str.lower().isin([*TRUE_MARKS, option])
        if not marks.any():
            held = shorten_names([repr(cell) for cell in cells.unique()])
            fail(
                f"--{option} {text}: no row is marked; {column!r} holds {held}. Say which by --{option} {column}=VALUE."
            )
        return marks.to_numpy()
    spans = [RANGE.fullmatch(word.strip()) for word in text.split(",")]
    if not all(spans):
        fail(
            f"--{option} {text}: it is no column of {rows.name}, nor row numbers such as 801-1000,1205."
        )
    ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span]
    last = rows.frame.index[-1]
    wrong = next((f"{a}-{b}" for a, b in ends if not 1 <= a <= b <= last), None)
    if wrong is not None:
        fail(
            f"--{option} {text}: {wrong} are no rows of {rows.name}, whose numbers go from 1 to {last}."
        )
    return np.any([(rows.frame.index >= a) & (rows.frame.index <= b) for a, b in ends], 0)


def split_of(
    rows: FileTable, test: str | None, train: str | None
) -> list[tuple[Array, Array]] | None:
    """Return the rows to train and to test on in a fixed split."""
    if test is None:
        if train is None:
            return None
        return fail("--train needs --test: the rows to test on.")
    tested = mark_rows(rows, "test", test)
    trained = ~tested if train is None else mark_rows(rows, "train", train)
    overlap = np.flatnonzero(trained & tested)
    if len(overlap):
        fail(
            f"row {rows.frame.index[overlap[0]]} is trained and tested on; see --train and --test."
        )
    if not trained.any():
        fail(f"--test {test}: it holds all rows; none is left to train on.")
    return [(np.flatnonzero(trained), np.flatnonzero(tested))]
