"""`leaveout leakage DATA.csv` estimates the loss on new clusters, where the clusters come from imperfect record linkage."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.table import Table

import leaveout as lo

from ._console import console, fail

MODELS = ("ridge", "logistic", "knn", "forest")
MECHANISMS = ("record", "split")


def leakage(
    data: Annotated[Path, typer.Argument(help="A CSV file with a header, one row a record.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    cluster: Annotated[str, typer.Option(help="The column of clusters, as they are filed.")],
    precision: Annotated[float, typer.Option(help="Of the record linkage: the share of its pairs that are right.")],
    recall: Annotated[float, typer.Option(help="Of the record linkage: the share of right pairs that it found.")],
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "ridge",
    mechanism: Annotated[
        str, typer.Option(help="What went wrong: 'record', single records, or 'split', entities cut in two.")
    ] = "record",
    loss: Annotated[str | None, typer.Option(help="mse by default, for classes zero_one.")] = None,
    folds: Annotated[int, typer.Option(help="Folds, of whole clusters.")] = 5,
    levels: Annotated[int, typer.Option(help="Levels of injection.")] = 12,
    draws: Annotated[int, typer.Option(help="Draws at each level.")] = 200,
    train_size: Annotated[int | None, typer.Option(help="Records trained on; by default nearly all there are.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draws and the folds.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes, for models that are fitted one by one.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A file from which a stopped run goes on.")] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table by cluster.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A file for a picture (png, pdf, svg).")] = None,
) -> None:
    """The loss on new clusters, with the leakage between the filed clusters taken out.

    Every other column is a feature: numbers as they are, text one-hot encoded. Printed are the naive loss, the corrected one
    with its Monte-Carlo and data errors, whether the model exploits leakage, a verdict, and the estimate for other amounts.
    """
    if mechanism not in MECHANISMS:
        fail(f"--mechanism {mechanism}: it must be record or split.")
    for file in (out, plot):
        if file is not None and not file.parent.is_dir():
            fail(f"{file}: there is no folder {file.parent}; make it first.")
    frame = _read(data, target, cluster)
    y, classes = _target(frame[target], model)
    X = frame.drop(columns=[target, cluster])
    kind = lo.RecordLeakage if mechanism == "record" else lo.SplitLeakage
    chosen = loss or ("zero_one" if classes else "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = lo.leakage_corrected(
                _model(model, classes),
                _features(X, model),
                y,
                groups=frame[cluster].to_numpy(),
                leakage=kind.from_pairwise(precision, recall),
                loss=chosen,
                injection=lo.Injection(mechanism, levels, draws, train_size),  # type: ignore[arg-type]
                cv=folds,
                seed=seed,
                n_jobs=jobs,
                checkpoint=checkpoint,
            )
        except (ValueError, TypeError) as error:
            fail(str(error))
    console.print(str(result), markup=False)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for note in dict.fromkeys(text for text in said if not any(note in text for note in result.notes)):
        console.print(f"{'warning':<16}{note}", markup=False)
    _show(result)
    if out is not None:
        result.per_cluster.to_csv(out)
        console.print(f"By cluster: {out}", markup=False)
    if plot is not None:
        _picture(result, plot)


def _read(file: Path, target: str, cluster: str) -> pd.DataFrame:
    if not file.is_file():
        fail(f"{file}: there is no such file; give the path of a CSV file with a header.")
    try:
        frame = pd.read_csv(file)
    except (ValueError, OSError) as error:
        fail(f"{file}: it could not be read as CSV with a header ({error}).")
    for option, name in (("--target", target), ("--cluster", cluster)):
        if name not in frame.columns:
            fail(f"{option} {name}: {file} has no such column; it has {', '.join(map(str, frame.columns))}.")
    if target == cluster or frame.shape[1] < 3:
        fail(f"{file} needs a target, a cluster and at least one more column as a feature.")
    missing = frame.columns[frame.isna().any()]
    if len(missing):
        fail(f"{file} has empty cells in {', '.join(map(str, missing))}; fill or drop them first.")
    if frame.empty:
        fail(f"{file} has a header and no rows.")
    return frame


def _target(column: pd.Series, model: str) -> tuple[np.ndarray, bool]:
    """y, and whether it holds classes: text, or what `logistic` is asked for, or 0 and 1."""
    if model not in MODELS:
        fail(f"--model {model}: it must be one of {', '.join(MODELS)}.")
    text = not pd.api.types.is_numeric_dtype(column)
    classes = text or model == "logistic" or set(column.unique()) <= {0, 1}
    if classes and column.nunique() > 20:
        fail(f"column {column.name!r} holds {column.nunique()} values: too many for classes; use ridge, knn or forest.")
    if model == "ridge" and text:
        fail(f"--model ridge predicts numbers; column {column.name!r} holds text: use logistic, knn or forest.")
    return column.to_numpy(), classes and model != "ridge"


def _features(X: pd.DataFrame, model: str) -> Any:
    """One-hot columns for text; standardised once for neighbours, which go by distances."""
    wide = pd.get_dummies(X, dtype=float).astype(float)
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


def _picture(result: lo.LeakageResult, file: Path) -> None:
    try:
        figure = result.plot().get_figure(root=True)
        assert figure is not None
        figure.savefig(file, dpi=150)
    except (ImportError, ValueError) as error:
        fail(f"{file}: {error}")
    console.print(f"Picture: {file}", markup=False)
