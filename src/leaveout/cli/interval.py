"""`leaveout interval` fits a regression to the rows of one file, and gives those of another intervals for their response."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

import leaveout as lo

from ._cells import Convention, convention
from ._console import console, fail, one_line
from ._data import LOSSES, PLANS, Model, features_of, labels, new_design
from ._files import FileTable, complete, read, save
from ._options import (
    REFITS,
    Categorical,
    Checkpoint,
    Data,
    Decimal,
    DropMissing,
    Features,
    Offset,
    Refit,
    Seed,
    Thousands,
    Weights,
    one_of,
    out_option,
    protect_input,
)
from .glm import fit_model, join_notes, prepare, rows_of

METHODS = ("plus", "minmax", "cv+")


def interval(
    data: Data,
    new: Annotated[Path, typer.Argument(help="A file of the rows to predict, with the same columns.", readable=False)],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.9,
    method: Annotated[str, typer.Option(help="One of plus, minmax, cv+.", callback=one_of("--method", METHODS))] = "plus",
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "squared",
    l2: Annotated[float, typer.Option(help="Ridge penalty, l2/2 times the sum of the squared coefficients.")] = 0.0,
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}; with cv+ kfold:10 if not given.")] = "loo",
    features: Features = None,
    categorical: Categorical = None,
    offset: Offset = None,
    weights: Weights = None,
    drop_missing: DropMissing = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    refit: Refit = "certified",
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    out: Annotated[Path | None, out_option("the intervals")] = None,
) -> None:
    """Compute prediction intervals for the responses of new rows, whatever their distribution, by the jackknife+ from one fit.

    "plus" covers about --level of new responses, and at least 2 level − 1. "minmax" is wider, and covers at least --level.
    "cv+" leaves folds out. With --plan groups:COLUMN the intervals are for rows of new groups.

    leaveout interval sold.csv offered.csv --target price --categorical city

    leaveout interval old.csv new.csv --target cost --loss gamma --l2 1 --plan groups:clinic --level 0.8 --out intervals.csv
    """
    protect_input(data, out, checkpoint)
    protect_input(new, out, checkpoint)
    if str(data) == "-" == str(new):
        fail("one of the two files may be standard input, not both.")
    written = convention(decimal, thousands)
    model = Model(target, loss, l2, features, categorical, None, offset, weights)
    rows = rows_of(data, model, plan, drop_missing, written)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folds = "kfold:10" if method == "cv+" and plan == "loo" else plan
        made = prepare(model, rows, folds, seed)
        others, X = _new(new, rows, model, folds, made.objective, drop_missing, written)
        shift = others.numbers(offset, "it must hold numbers") if offset else None
        with one_line(""):
            how: Any = method
            more: Any = {"plan": made.folds, "offset": shift, "refit": REFITS[refit], "checkpoint": checkpoint}
            table = lo.interval(fit_model(made), X, level, how, **more)
    told = (f"{rows.name}: {len(rows.frame)} rows", rows.note, f"{others.name}: {len(X)} rows", others.note)
    console.print(f"{'; '.join(filter(None, (*told, join_notes(made.note, caught))))}\n", markup=False)
    _show(table, others, target)
    table.insert(0, "row", np.asarray(others.frame.index))
    save(table, out)


def _new(
    file: Path, rows: FileTable, model: Model, plan: str, made: lo.GLM | lo.Regression, drop_missing: bool, written: Convention
) -> tuple[FileTable, pd.DataFrame]:
    """Return the rows of the second file, and their columns in the model."""
    used = [*features_of(rows, model, plan), *([model.offset] if model.offset else [])]
    new = read(file, {*used, model.target}, labels(model, plan).__contains__, written)
    for name in used:
        new.column(name)
    new = complete(new, used, drop_missing)
    return new, new_design(new, rows, model, plan, made)


def _show(table: pd.DataFrame, new: FileTable, target: str | None) -> None:
    """Print the method of the intervals, the first of them, and how many contain a known response."""
    told = table.attrs
    lines = {
        "method": f"{told['method']}, {told['level']:.0%} intervals of new responses",
        "covered": f"{told['at_least']:.0%} or more are, if rows are exchangeable; about {told['level']:.0%} usually",
        "approximation": f"ends widened by {told['widened']:.1g} at most, {'proved' if told['proved'] else 'estimated'}",
        "note": told["note"],
    }
    if target in new.frame.columns and pd.api.types.is_numeric_dtype(new.frame[target]) and new.frame[target].notna().all():
        inside = new.frame[target].between(table["low"].to_numpy(), table["high"].to_numpy())
        lines["here"] = f"{inside.sum()} of the {len(inside)} responses that {new.name} has are inside"
    for name, text in lines.items():
        if text:
            console.print(f"{name:<16}{text}", markup=False)
    printed_rows = 10  # number of printed rows
    shown = table.head(printed_rows).set_axis(np.asarray(new.frame.index[:printed_rows]))
    console.print(f"\n{shown.to_string(float_format='{:.6g}'.format)}", markup=False)
    if len(table) > printed_rows:
        console.print(f"… {len(table) - printed_rows} more; --out writes all of them", markup=False)
