"""`leaveout leakage DATA.csv` estimates the score on new clusters if clusters come from imperfect
record linkage. Files of pairs, and fixed splits, name the rows of the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np

import leaveout as lo

from ._cells import Convention, is_numeric, parse_labels
from ._console import console, fail, join_notes, table_of, warnings_as_notes
from ._data import OTHERS
from ._files import WIDEST, FileTable, Reading, complete, picture, read, save, shorten_names
from ._options import (
    Checkpoint,
    Data,
    OptionsOf,
    Plot,
    Report,
    command,
    input_file,
    option,
    split_names,
)
from ._table import page

pd = lo.developer.pd

Array = np.ndarray

# columns without names of rows
NUMBERS = "match_probability", "match_weight", "probability", "score", "weight", "match", "linked"
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
TRUE_MARKS = "1", "1.0", "true", "yes"


WAYS = "--pairs, --duplicates, --labelled alone, or --precision and --recall"


@dataclass(frozen=True)
class Links:
    """Options for what is known of the rows that belong together, and for the clusters of rows.

    Attributes
    ----------
    precision
        Instead: of linked pairs, the share that matches.
    recall
        Of matching pairs, the share that is linked.
    name : --id
        By which pairs name rows; else by number, from 1.
    probability
        Their column; match_probability if not given.
    share : --listed
        Of the records with a mate filed elsewhere, the share with one among the pairs: 0.9,
        or with an interval 0.9,0.85,0.95; all, if not given.
    cluster
        The column of clusters, as filed; else those that pairs link.
    threshold
        Without --cluster: the probability that links a pair; 0.5.
    """

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
    precision: float | None = None
    recall: float | None = None
    name: str | None = None
    probability: str | None = None
    share: str | None = None
    cluster: str | None = None
    threshold: float | None = None

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


MODELS = "ridge", "logistic", "knn", "forest"
CLASSES = 20  # largest number of values of a target of classes
INJECTION = OptionsOf(
    lo.leakage.Injection,
    mechanism="What went wrong: 'record', single records, or 'split', entities cut in two.",
    num_levels=option("Levels of injection.", "--levels"),
    num_boot=option("Draws at each level; 20 to 200 by their error if not given.", "--draws"),
    train_size=option("Records trained on; by default nearly all there are."),
)


@command()
def leakage(
    data: Data,
    target: str,
    links: Links,
    test: str | None = None,
    train: str | None = None,
    model: Annotated[
        str | None,
        option("One of {}; by default logistic for classes, else ridge.", choices=MODELS),
    ] = None,
    scoring: str | None = None,
    answers: str | None = None,
    features: str | None = None,
    *,
    injection: Annotated[dict[str, Any], INJECTION],
    folds: int = 5,
    reading: Reading,
    seed: int = 0,
    jobs: int | None = None,
    checkpoint: Checkpoint = None,
    out: Path | None = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Estimate the score on new clusters, without what leaks between the filed clusters.

    Every other column is a feature: numbers as they are, text one-hot encoded. With pairs, the
    result has answers side by side, each with its interval and its assumption, and says which to
    believe. With rates, it has the naive loss, the corrected one with its Monte-Carlo and data
    errors, a test whether the model exploits leakage, a verdict, and the estimate for other
    amounts.

    leaveout leakage records.csv --target ill --pairs pairs.csv --id id --scoring roc_auc --report report.html

    leaveout leakage benchmark.csv --target cost --duplicates copies.csv --test split=test --model knn --out rows.csv

    Parameters
    ----------
    target
        The column to predict.
    test
        Of a fixed split: COLUMN, COLUMN=VALUE or row numbers, as 801-1000,1205.
    train
        The same; all other rows if not given.
    scoring
        scikit-learn's name of a score, or a loss; mse, for classes zero_one, if not given.
    answers
        Of pairs: those that are wanted, as purge,coarser; naive alone tells the price of
        others.
    features
        Columns to use, with commas between; all others if not given.
    folds
        Folds, of whole clusters.
    seed
        Of the draws and the folds.
    jobs
        Processes, for models that are fitted one by one.
    out
        A CSV file for the rows that may have mates in training, or, of rates, the clusters.
    """
    links.check(report)
    listed = links.listed
    cluster = links.cluster
    name = links.name
    split_columns = [text.partition("=")[0].strip() for text in (test, train) if text is not None]
    role_columns = [word for word in (target, cluster, name, *split_columns) if word]
    words = {*role_columns[1:], *([target] if model == "logistic" else ())}
    chosen = split_names(features)
    columns = {*role_columns, *chosen} if features else ()
    all_rows = read(data, columns, words.__contains__, reading)
    rows = _rows(
        all_rows,
        role_columns,
        [target, *filter(None, (cluster, name))],
        chosen,
        reading.drop_missing,
    )
    y, classes, model = _target(rows, target, model)
    used = [column for column in rows.frame if column not in role_columns]
    names = all_rows.frame.index.astype(str)
    if name is not None:
        names = all_rows.names("--id", name)
    records = RecordNames(names, name, all_rows.frame.index.isin(rows.frame.index))
    linkage = None
    remark = ""
    if (file := links.pairs or links.duplicates) is not None:
        linkage, remark = linkage_of(links, file, records, reading)
    groups = None if cluster is None else rows.frame[cluster].to_numpy()
    split = split_of(rows, test, train)
    if linkage is not None and groups is None and split is None:
        threshold = 0.5 if links.threshold is None else links.threshold
        groups = linkage.groups(threshold)
    if split is not None:
        remark = join_notes(
            remark, f"{len(split[0][0])} rows trained on, {len(split[0][1])} tested"
        )
    options: dict[str, Any] = {
        "groups": groups, "cv": split or folds, "scoring": scoring or ("zero_one" if classes else "mse"), "rng": seed,
        "n_jobs": jobs, "checkpoint": checkpoint, "injection": lo.leakage.Injection(**injection),
    }  # fmt: skip
    X = pd.DataFrame(_features(rows, used, model), index=records.names[records.kept_rows])
    host = _model(model, classes)
    result: Any
    with warnings_as_notes() as warning_texts:
        if linkage is not None:
            answer_options: dict[str, Any] = (
                {} if answers is None else {"answers": split_names(answers)}
            )
            result = lo.leakage.leakage_report(
                host, X, y, linkage=linkage, listed=listed, **answer_options, **options
            )
        else:
            rates: Any
            if links.labelled is not None:
                rates = rates_of(links.labelled, records, np.asarray(groups), reading)
            else:
                kind = (
                    lo.leakage.RecordLeakage
                    if injection["mechanism"] == "record"
                    else lo.leakage.SplitLeakage
                )
                rates = kind.from_pairwise(cast(float, links.precision), cast(float, links.recall))
            result = lo.leakage.leakage_corrected(host, X.to_numpy(), y, leakage=rates, **options)
    console.print(f"{'features':<16}{shorten_names(used)}\n{result}")
    notes = [
        note
        for note in dict.fromkeys([rows.note, remark, *warning_texts])
        if note and note not in str(result)
    ]
    for note in notes:
        console.print(f"{'warning' if note in warning_texts else 'data':<15} {note}")
    if linkage is None:
        _print_sensitivity(result)
    if out is not None:
        table, table_name = (
            (result.per_cluster, "By cluster")
            if linkage is None
            else (result.rows.rename_axis("row"), "Rows")
        )
        save(table, out, table_name)
    picture(result.plot, plot)
    if linkage is not None:
        page(result, report, notes)


def _rows(
    rows: FileTable,
    role_columns: list[str],
    needed: list[str],
    features: list[str],
    drop_missing: bool,
) -> FileTable:
    """Return the used columns, without missing values."""
    for name in (*needed, *features):
        rows.column(name)
    if len(set(needed)) < len(needed):
        fail("--target, --cluster and --id must name different columns.")
    if (overlap := next((name for name in role_columns if name in features), None)) is not None:
        fail(
            f"--features {overlap}: it is the target, or says which rows are of one cluster, id or split; name others."
        )
    present_roles = [name for name in role_columns if name in rows.frame]
    used = list(dict.fromkeys([*(features or rows.frame.columns), *present_roles]))
    if len(used) == len(present_roles):
        fail(
            f"{rows.name} needs a target and at least one more column as a feature; {rows.column_list}"
        )
    if len(used) > WIDEST:
        fail(f"{rows.name}: {len(used)} columns are too many; name those to use by --features.")
    rows = FileTable(rows.frame[used], rows.name, rows.note)
    return complete(rows, used, drop_missing, OTHERS)


def _target(rows: FileTable, target: str, model: str | None) -> tuple[np.ndarray, bool, str]:
    """Return y, whether it has classes (text, 0 and 1, or any for `logistic`), and the model."""
    column = parse_labels(rows.frame[target])
    number = is_numeric(column)
    binary = set(column.unique()) <= {0, 1}
    if column.nunique() < 2:
        fail(
            f"column {target!r} holds one value only, {str(column.iloc[0])!r}: there is nothing to tell apart."
        )
    model = model or ("ridge" if number and not binary else "logistic")
    if model == "ridge":
        return (
            rows.numbers(
                target, "--model ridge predicts numbers; for classes use logistic, knn or forest"
            ),
            False,
            model,
        )
    classes = not number or model == "logistic" or binary
    if classes and column.nunique() > CLASSES:
        if model != "logistic":
            rows.numbers(
                target, f"its {column.nunique()} values are too many for classes, and no numbers"
            )
        fail(
            f"column {target!r} holds {column.nunique()} values: too many for classes; use --model ridge, knn or forest."
        )
    return column.to_numpy(), classes, model


def _features(rows: FileTable, names: list[str], model: str):
    """Build features: one-hot columns for text, standardised once for neighbours, which depend on
    distances.
    """
    X = rows.frame[names]
    words = [name for name in X if not is_numeric(X[name])]
    for name in words:
        if (levels := X[name].nunique()) > len(X) / 2:
            rows.numbers(
                name, f"with its {levels} values it is no category either; use other --features"
            )
    wide = pd.get_dummies(X.astype(dict.fromkeys(words, str)), columns=words, dtype=float).astype(
        float
    )
    if model == "knn":
        wide = (wide - wide.mean()) / wide.std().replace(0, 1)
    return wide.to_numpy()


def _model(name: str, classes: bool):
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "ridge":
        return make_pipeline(StandardScaler(), Ridge())
    if name == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    if name == "knn":
        if classes:
            return KNeighborsClassifier()
        return KNeighborsRegressor()
    if classes:
        return RandomForestClassifier(random_state=0)
    return RandomForestRegressor(random_state=0)


def _print_sensitivity(result: lo.leakage.LeakageResult) -> None:
    """Print the estimate ê₀ for other amounts of leakage."""
    try:
        rows = result.sensitivity()
    except ValueError:
        return
    table = table_of("p", "estimate", "± Monte Carlo", "P(no leak)", title="were p instead")
    for row in rows.itertuples():
        table.add_row(
            f"{row.p:.3g}", f"{row.estimate:.5g}", f"{row.se_mc:.2g}", f"{row.unseen:.1g}"
        )
    console.print(table)
