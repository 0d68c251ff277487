"""`leaveout leakage DATA.csv` estimates the loss on new clusters, where the clusters come from imperfect record linkage."""

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

from ._console import console, fail
from ._files import WIDEST, Rows, complete, listed, picture, read, save, shortened
from ._options import Checkpoint, Data, DropMissing, Features, Plot, kept, one_of, out_option

MODELS = ("ridge", "logistic", "knn", "forest")
MECHANISMS = ("record", "split")
CLASSES = 20  # more values of a target are numbers, or names


def leakage(
    data: Data,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    cluster: Annotated[str, typer.Option(help="The column of clusters, as they are filed.")],
    precision: Annotated[float, typer.Option(help="Of the record linkage: the share of its pairs that are right.")],
    recall: Annotated[float, typer.Option(help="Of the record linkage: the share of right pairs that it found.")],
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.", callback=one_of("--model", MODELS))] = "ridge",
    mechanism: Annotated[
        str,
        typer.Option(
            help="What went wrong: 'record', single records, or 'split', entities cut in two.",
            callback=one_of("--mechanism", MECHANISMS),
        ),
    ] = "record",
    features: Features = None,
    loss: Annotated[str | None, typer.Option(help="mse by default, for classes zero_one.")] = None,
    folds: Annotated[int, typer.Option(help="Folds, of whole clusters.")] = 5,
    levels: Annotated[int, typer.Option(help="Levels of injection.")] = 12,
    draws: Annotated[int, typer.Option(help="Draws at each level.")] = 200,
    train_size: Annotated[int | None, typer.Option(help="Records trained on; by default nearly all there are.")] = None,
    drop_missing: DropMissing = False,
    seed: Annotated[int, typer.Option(help="Of the draws and the folds.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes, for models that are fitted one by one.")] = None,
    checkpoint: Checkpoint = None,
    out: Annotated[Path | None, out_option("the table by cluster")] = None,
    plot: Plot = None,
) -> None:
    """The loss on new clusters, with the leakage between the filed clusters taken out.

    Every other column is a feature: numbers as they are, text one-hot encoded. Printed are the naive loss, the corrected one
    with its Monte-Carlo and data errors, whether the model exploits leakage, a verdict, and the estimate for other amounts.

    leaveout leakage records.csv --target cost --cluster person --precision 0.9 --recall 0.9

    leaveout leakage records.csv --target ill --cluster person --precision 0.95 --recall 0.8 --model logistic --out persons.csv
    """
    kept(data, out, plot, checkpoint)
    rows = read(data, {target, cluster, *listed(features)} if features else ())
    rows = _rows(rows, target, cluster, listed(features), drop_missing)
    y, classes = _target(rows, target, model)
    names = [name for name in rows.frame if name not in (target, cluster)]
    kind = lo.RecordLeakage if mechanism == "record" else lo.SplitLeakage
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = lo.leakage_corrected(
            _model(model, classes),
            _features(rows, names, model),
            y,
            groups=rows.frame[cluster].to_numpy(),
            leakage=kind.from_pairwise(precision, recall),
            loss=loss or ("zero_one" if classes else "mse"),
            injection=lo.Injection(cast(Literal["record", "split"], mechanism), levels, draws, train_size),
            cv=folds,
            seed=seed,
            n_jobs=jobs,
            checkpoint=checkpoint,
        )
    console.print(f"{'features':<16}{shortened(names)}", markup=False)
    console.print(str(result), markup=False)
    said = [rows.note, *(str(w.message) for w in caught if issubclass(w.category, UserWarning))]
    for note in dict.fromkeys(text for text in said if text and not any(note in text for note in result.notes)):
        console.print(f"{'warning':<16}{note}", markup=False)
    _show(result)
    if out is not None:
        save(result.per_cluster, out, "By cluster")
    picture(result.plot, plot)


def _rows(rows: Rows, target: str, cluster: str, features: list[str], drop_missing: bool) -> Rows:
    """The columns that are used, without missing values."""
    for name in (target, cluster, *features):
        rows.column(name)
    used = list(dict.fromkeys([*(features or rows.frame.columns), target, cluster]))
    if target == cluster or len(used) < 3:
        fail(f"{rows.name} needs a target, a cluster and at least one more column as a feature; {rows.has}")
    if len(used) > WIDEST:
        fail(f"{rows.name}: {len(used)} columns are too many; name those to use by --features.")
    rows = Rows(rows.frame[used], rows.name, rows.note)
    return complete(rows, used, drop_missing, "name other columns by --features")


def _target(rows: Rows, target: str, model: str) -> tuple[np.ndarray, bool]:
    """y, and whether it holds classes: text, or what `logistic` is asked for, or 0 and 1."""
    column = rows.frame[target]
    if model == "ridge":
        return rows.numbers(target, "--model ridge predicts numbers; for classes use logistic, knn or forest"), False
    classes = not pd.api.types.is_numeric_dtype(column) or model == "logistic" or set(column.unique()) <= {0, 1}
    if classes and column.nunique() > CLASSES:
        if model != "logistic":
            rows.numbers(target, f"its {column.nunique()} values are too many for classes, and no numbers")
        fail(f"column {target!r} holds {column.nunique()} values: too many for classes; use --model ridge, knn or forest.")
    return column.to_numpy(), classes


def _features(rows: Rows, names: list[str], model: str) -> Any:
    """One-hot columns for text; standardised once for neighbours, which go by distances."""
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


def _show(result: lo.LeakageResult) -> None:
    """ê₀ were more or less leaking."""
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
