"""`leaveout leakage DATA.csv` estimates the score on new clusters if clusters come from imperfect
record linkage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np

import leaveout as lo

from ._cells import parse_labels
from ._console import console, fail, join_notes, table_of, warnings_as_notes
from ._data import OTHERS
from ._files import WIDEST, FileTable, Reading, complete, picture, read, save, shorten_names
from ._linkage_options import Links, RecordNames, linkage_of, rates_of, split_of
from ._options import (
    Checkpoint,
    Data,
    OptionsOf,
    Plot,
    Report,
    command,
    option,
    output_file,
    split_names,
)
from ._table import page

pd = lo.developer.pd

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
    target: Annotated[str, option("The column to predict.")],
    links: Links,
    test: Annotated[
        str | None,
        option("Of a fixed split: COLUMN, COLUMN=VALUE or row numbers, as 801-1000,1205."),
    ] = None,
    train: Annotated[str | None, option("The same; all other rows if not given.")] = None,
    model: Annotated[
        str | None,
        option("One of {}; by default logistic for classes, else ridge.", choices=MODELS),
    ] = None,
    scoring: Annotated[
        str | None,
        option(
            "scikit-learn's name of a score, or a loss; mse, for classes zero_one, if not given."
        ),
    ] = None,
    answers: Annotated[
        str | None,
        option(
            "Of pairs: those that are wanted, as purge,coarser; naive alone tells the price of others."
        ),
    ] = None,
    features: Annotated[
        str | None, option("Columns to use, with commas between; all others if not given.")
    ] = None,
    *,
    injection: Annotated[dict[str, Any], INJECTION],
    folds: Annotated[int, option("Folds, of whole clusters.")] = 5,
    reading: Reading,
    seed: Annotated[int, option("Of the draws and the folds.")] = 0,
    jobs: Annotated[int | None, option("Processes, for models that are fitted one by one.")] = None,
    checkpoint: Checkpoint = None,
    out: Annotated[
        Path | None,
        output_file(
            "A CSV file for the rows that may have mates in training, or, of rates, the clusters."
        ),
    ] = None,
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
    number = pd.api.types.is_numeric_dtype(column)
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
    words = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
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
