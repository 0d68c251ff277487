"""`leaveout leakage DATA.csv` estimates the score on new clusters if clusters come from imperfect record linkage."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.table import Table

import leaveout as lo

from ._cells import convention, parse_labels
from ._console import console, fail
from ._files import WIDEST, FileTable, complete, picture, read, save, shorten_names, split_names
from ._linkage_options import RecordNames, columns_of, linkage_of, names_of, rates_of, split_of
from ._options import (
    Checkpoint,
    Data,
    Decimal,
    DropMissing,
    Features,
    Plot,
    Report,
    Thousands,
    one_of,
    out_option,
    protect_input,
)
from ._table import page

MODELS = ("ridge", "logistic", "knn", "forest")
MECHANISMS = ("record", "split")
CLASSES = 20  # largest number of values of a target of classes
LEAKAGE_OPTIONS = "--pairs, --duplicates, --labelled alone, or --precision and --recall"


def leakage(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    pairs: Annotated[
        Path | None, typer.Option(help="A file of pairs of rows with match probabilities, as Splink's.", readable=False)
    ] = None,
    duplicates: Annotated[
        Path | None, typer.Option(help="Instead: of pairs of rows that are copies of one another.", readable=False)
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option(
            help="A file of labelled pairs, with a column match of 0 and 1: makes probabilities of the scores of --pairs; "
            "alone, with --cluster, precision and recall.",
            readable=False,
        ),
    ] = None,
    precision: Annotated[float | None, typer.Option(help="Instead: of linked pairs, the share that matches.")] = None,
    recall: Annotated[float | None, typer.Option(help="Of matching pairs, the share that is linked.")] = None,
    name: Annotated[str | None, typer.Option("--id", help="By which pairs name rows; else by number, from 1.")] = None,
    probability: Annotated[str | None, typer.Option(help="Their column; match_probability if not given.")] = None,
    share: Annotated[
        str | None,
        typer.Option(
            "--listed",
            help="Of the records with a mate filed elsewhere, the share with one among the pairs: 0.9, or with an interval "
            "0.9,0.85,0.95; all, if not given.",
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="The column of clusters, as filed; else those that pairs link.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Without --cluster: the probability that links a pair; 0.5.")] = None,
    test: Annotated[
        str | None, typer.Option(help="Of a fixed split: COLUMN, COLUMN=VALUE or row numbers, as 801-1000,1205.")
    ] = None,
    train: Annotated[str | None, typer.Option(help="The same; all other rows if not given.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(MODELS)}; by default logistic for classes, else ridge.",
            callback=one_of("--model", MODELS),
        ),
    ] = None,
    scoring: Annotated[
        str | None, typer.Option(help="scikit-learn's name of a score, or a loss; mse, for classes zero_one, if not given.")
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(help="Of pairs: those that are wanted, as purge,coarser; naive alone tells the price of others."),
    ] = None,
    features: Features = None,
    mechanism: Annotated[
        str,
        typer.Option(
            help="What went wrong: 'record', single records, or 'split', entities cut in two.",
            callback=one_of("--mechanism", MECHANISMS),
        ),
    ] = "record",
    folds: Annotated[int, typer.Option(help="Folds, of whole clusters.")] = 5,
    levels: Annotated[int, typer.Option(help="Levels of injection.")] = 12,
    draws: Annotated[int | None, typer.Option(help="Draws at each level; 20 to 200 by their error if not given.")] = None,
    train_size: Annotated[int | None, typer.Option(help="Records trained on; by default nearly all there are.")] = None,
    drop_missing: DropMissing = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    seed: Annotated[int, typer.Option(help="Of the draws and the folds.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes, for models that are fitted one by one.")] = None,
    checkpoint: Checkpoint = None,
    out: Annotated[Path | None, out_option("the rows that may have mates in training, or, of rates, the clusters")] = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Estimate the score on new clusters, without what leaks between the filed clusters.

    Every other column is a feature: numbers as they are, text one-hot encoded. With pairs, the result has answers side by
    side, each with its interval and its assumption, and says which to believe. With rates, it has the naive loss, the
    corrected one with its Monte-Carlo and data errors, a test whether the model exploits leakage, a verdict, and the
    estimate for other amounts.

    leaveout leakage records.csv --target ill --pairs pairs.csv --id id --scoring roc_auc --report report.html

    leaveout leakage benchmark.csv --target cost --duplicates copies.csv --test split=test --model knn --out rows.csv
    """
    protect_input(data, out, plot, checkpoint, report)
    _one_way(pairs, duplicates, labelled, precision, recall, cluster, threshold, report)
    list_holds = _share(share, pairs or duplicates)
    beside = [word for word in (target, cluster, name, *columns_of(test, train)) if word]
    words = {*beside[1:], *([target] if model == "logistic" else ())}
    written = convention(decimal, thousands)
    whole = read(data, {*beside, *split_names(features)} if features else (), words.__contains__, written)
    rows = _rows(whole, beside, [target, *filter(None, (cluster, name))], split_names(features), drop_missing)
    y, classes, model = _target(rows, target, model)
    used = [column for column in rows.frame if column not in beside]
    of = RecordNames(names_of(whole, name), name, whole.frame.index.isin(rows.frame.index))
    linked, said = None, ""
    if (file := pairs or duplicates) is not None:
        linked, said = linkage_of(file, of, probability, pairs is None, labelled, written)
    groups, split = None if cluster is None else rows.frame[cluster].to_numpy(), split_of(rows, test, train)
    if linked is not None and groups is None and split is None:
        groups = linked.groups(0.5 if threshold is None else threshold)
    if split is not None:
        said = "; ".join(filter(None, (said, f"{len(split[0][0])} rows trained on, {len(split[0][1])} tested")))
    given: dict[str, Any] = {
        "groups": groups, "cv": split or folds, "scoring": scoring or ("zero_one" if classes else "mse"), "seed": seed,
        "n_jobs": jobs, "checkpoint": checkpoint,
        "injection": lo.leakage.Injection(cast(Literal["record", "split"], mechanism), levels, draws, train_size),
    }  # fmt: skip
    X = pd.DataFrame(_features(rows, used, model), index=of.names[of.kept_rows])
    found: lo.leakage.LeakageReport | lo.leakage.LeakageResult
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if linked is not None:
            wanted: dict[str, Any] = {} if answers is None else {"answers": split_names(answers)}
            found = lo.leakage.leakage_report(
                _model(model, classes), X, y, linkage=linked, listed=list_holds, **wanted, **given
            )
        else:
            kind = lo.leakage.RecordLeakage if mechanism == "record" else lo.leakage.SplitLeakage
            rates: Any = (
                kind.from_pairwise(cast(float, precision), cast(float, recall))
                if labelled is None
                else rates_of(labelled, of, np.asarray(groups), written)
            )
            found = lo.leakage.leakage_corrected(_model(model, classes), X.to_numpy(), y, leakage=rates, **given)
    console.print(f"{'features':<16}{shorten_names(used)}\n{found}", markup=False)
    warned = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    _print_result(found, [rows.note, said], warned, out, plot, report)


def _print_result(
    found: lo.leakage.LeakageReport | lo.leakage.LeakageResult,
    said: list[str],
    warned: list[str],
    out: Path | None,
    plot: Path | None,
    report: Path | None,
) -> None:
    """Print the notes beside the result, and write the requested files."""
    notes = [note for note in dict.fromkeys([*said, *warned]) if note and note not in str(found)]
    for note in notes:
        console.print(f"{'warning' if note in warned else 'data':<16}{note}", markup=False)
    if isinstance(found, lo.leakage.LeakageResult):
        _show(found)
        table, what = found.per_cluster, "By cluster"
    else:
        table, what = found.rows.rename_axis("row"), "Rows"
    if out is not None:
        save(table, out, what)
    picture(found.plot, plot)
    if isinstance(found, lo.leakage.LeakageReport):
        page(found, report, notes)


def _one_way(
    pairs: Path | None,
    duplicates: Path | None,
    labelled: Path | None,
    precision: float | None,
    recall: float | None,
    cluster: str | None,
    threshold: float | None,
    report: Path | None,
) -> None:
    """Check that links are given in one way, without options of another."""
    given, alone = precision is not None or recall is not None, labelled is not None and pairs is None
    rates = given or alone
    if (pairs is not None) + (duplicates is not None) + given + alone != 1:
        fail(f"give what is known of the links, once: {LEAKAGE_OPTIONS}.")
    if given and (precision is None or recall is None):
        fail("give --precision and --recall, both.")
    if rates and cluster is None:
        word = "--labelled" if alone else "--precision and --recall"
        fail(f"{word} {'alone says' if alone else 'say'} how good clusters are: name their column by --cluster.")
    if rates and report is not None:
        fail("--report is for --pairs and --duplicates; of rates there is no page.")
    if threshold is not None and (rates or cluster is not None):
        fail("--threshold makes clusters of pairs; leave it out where --cluster names them.")
    if threshold is not None and not 0 < threshold <= 1:
        fail(f"--threshold {threshold:g}: it must be a probability, above 0 and at most 1.")


def _share(text: str | None, pairs: Path | None) -> float | tuple[float, float, float]:
    """Parse --listed: one number, or three."""
    if text is None:
        return 1.0
    if pairs is None:
        fail(f"--listed {text}: it is of a list of pairs; give it with --pairs or --duplicates.")
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if len(found) not in (1, 3):
        fail(f"--listed {text}: give one share, as 0.9, or it and its interval, as 0.9,0.85,0.95.")
    return found[0] if len(found) == 1 else (found[0], found[1], found[2])


def _rows(rows: FileTable, beside: list[str], needed: list[str], features: list[str], drop_missing: bool) -> FileTable:
    """Return the used columns, without missing values."""
    for name in (*needed, *features):
        rows.column(name)
    if len(set(needed)) < len(needed):
        fail("--target, --cluster and --id must name different columns.")
    if (both := next((name for name in beside if name in features), None)) is not None:
        fail(f"--features {both}: it is the target, or says which rows are of one cluster, id or split; name others.")
    others = [name for name in beside if name in rows.frame]
    used = list(dict.fromkeys([*(features or rows.frame.columns), *others]))
    if len(used) == len(others):
        fail(f"{rows.name} needs a target and at least one more column as a feature; {rows.has}")
    if len(used) > WIDEST:
        fail(f"{rows.name}: {len(used)} columns are too many; name those to use by --features.")
    rows = FileTable(rows.frame[used], rows.name, rows.note)
    return complete(rows, used, drop_missing, "name other columns by --features")


def _target(rows: FileTable, target: str, model: str | None) -> tuple[np.ndarray, bool, str]:
    """Return y, whether it has classes (text, 0 and 1, or any for `logistic`), and the model."""
    column = parse_labels(rows.frame[target])
    number = pd.api.types.is_numeric_dtype(column)
    if column.nunique() < 2:
        fail(f"column {target!r} holds one value only, {str(column.iloc[0])!r}: there is nothing to tell apart.")
    model = model or ("ridge" if number and not set(column.unique()) <= {0, 1} else "logistic")
    if model == "ridge":
        return rows.numbers(target, "--model ridge predicts numbers; for classes use logistic, knn or forest"), False, model
    classes = not number or model == "logistic" or set(column.unique()) <= {0, 1}
    if classes and column.nunique() > CLASSES:
        if model != "logistic":
            rows.numbers(target, f"its {column.nunique()} values are too many for classes, and no numbers")
        fail(f"column {target!r} holds {column.nunique()} values: too many for classes; use --model ridge, knn or forest.")
    return column.to_numpy(), classes, model


def _features(rows: FileTable, names: list[str], model: str) -> Any:
    """Build features: one-hot columns for text, standardised once for neighbours, which depend on distances."""
    X = rows.frame[names]
    words = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
    for name in words:
        if (levels := X[name].nunique()) > len(X) / 2:
            rows.numbers(name, f"with its {levels} values it is no category either; use other --features")
    wide = pd.get_dummies(X.astype(dict.fromkeys(words, str)), columns=words, dtype=float).astype(float)
    if model == "knn":
        wide = (wide - wide.mean()) / wide.std().replace(0, 1)
    return wide.to_numpy()


def _model(name: str, classes: bool) -> Any:
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
        return KNeighborsClassifier() if classes else KNeighborsRegressor()
    return RandomForestClassifier(random_state=0) if classes else RandomForestRegressor(random_state=0)


def _show(result: lo.leakage.LeakageResult) -> None:
    """Print the estimate ê₀ for other amounts of leakage."""
    try:
        rows = result.sensitivity()
    except ValueError:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="were p instead", title_justify="left")
    for name in ("p", "estimate", "± Monte Carlo", "P(no leak)"):
        table.add_column(name, justify="right")
    for row in rows.itertuples():
        table.add_row(f"{row.p:.3g}", f"{row.estimate:.5g}", f"{row.se_mc:.2g}", f"{row.unseen:.1g}")
    console.print(table)
