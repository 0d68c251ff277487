"""`leaveout report DATA PAGE` cross-validates a regression chosen from the columns, and writes one page on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

import leaveout as lo

from ._cells import convention
from ._console import console, fail
from ._data import LOSSES, Model, columns_of, features_of, labels, named_columns
from ._files import FileTable, complete, read, shorten_names
from ._options import Data, Decimal, DropMissing, Features, Mute, Thousands, pageable, protect_input
from ._table import page as write
from .glm import OTHERS, answer, prepare

MAX_CATEGORY_LABELS = 20  # largest number of labels of a category; more are names or free text


def report(
    data: Data,
    page: Annotated[Path, typer.Argument(help="The page to write (html).", readable=False, callback=pageable)],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    groups: Annotated[
        str | None, typer.Option(help="A column of groups, such as patients: each is left out whole; else each row by itself.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help=f"Instead of the loss that the target chooses: {', '.join(LOSSES)}.")] = None,
    l2: Annotated[float, typer.Option(help="Ridge penalty, l2/2 times the sum of the squared coefficients.")] = 0.0,
    features: Features = None,
    drop_missing: DropMissing = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    mute: Mute = None,
) -> None:
    """Write one page on how well the other columns predict a column, for rows that the model has not seen.

    The target chooses the loss: logistic for two values, multinomial for more labels, Poisson for whole numbers from 0 on,
    squared for other numbers. Columns of text are categories. Columns of one value, or of more than 20 labels, are left out.
    The command prints what it chose. For series there is leaveout hmm --report, for counts on a map leaveout mrf --report.

    leaveout report patients.csv report.html --target cost

    leaveout report visits.csv visits.html --target visits --groups clinic --l2 1
    """
    protect_input(data, page)
    plan = f"groups:{groups}" if groups else "loo"
    asked = Model(target, loss or "", l2, features)
    rows = read(data, named_columns(asked, plan), labels(asked, plan).__contains__, convention(decimal, thousands))
    model, said = _choose_model(rows, asked, plan)
    rows = _label_target(complete(rows, columns_of(rows, model, plan), drop_missing, OTHERS), model)
    estimate, _, notes = answer(rows, prepare(model, rows, plan, 0), lo.Certified(), None, mute)
    for note in said:
        console.print(note, markup=False)
    write(estimate, page, [*notes, *said])


def _choose_model(rows: FileTable, model: Model, plan: str) -> tuple[Model, list[str]]:
    """Choose the loss from the target, features and categories from the columns; return them with remarks."""
    columns_of(rows, model, plan)  # raises if a column is missing
    loss, what = (model.loss, "") if model.loss else _loss(rows, str(model.target))
    names = features_of(rows, model, plan)
    levels = {name: rows.frame[name].nunique() for name in names}
    number = {name: pd.api.types.is_numeric_dtype(rows.frame[name]) for name in names}
    used = [name for name in names if levels[name] > 1 and (number[name] or levels[name] <= MAX_CATEGORY_LABELS)]
    if not used:
        fail(
            f"{rows.name}: no column but {model.target!r} holds numbers, or from 2 to {MAX_CATEGORY_LABELS} labels, "
            "to predict it by."
        )
    out = [name for name in names if name not in used]
    said = [f"{model.target} holds {what}: --loss {loss}, unless another is named" if what else ""]
    said += [f"left out, of one value or of more than {MAX_CATEGORY_LABELS} labels: {shorten_names(out)}" if out else ""]
    again = next((name for name in out if 1 < levels[name] <= len(rows.frame) / 2), None)
    if again is not None and plan == "loo":
        said.append(
            f"{again} has {levels[again]} labels in {len(rows.frame)} rows: where rows of one label belong together, such as a "
            f"patient's, --groups {again} leaves them out together"
        )
    categories = ",".join(name for name in used if not number[name])
    return replace(model, loss=loss, features=",".join(used), categorical=categories or None), [*filter(None, said)]


def _loss(rows: FileTable, target: str) -> tuple[str, str]:
    """Return the loss that the values of a column suggest, and a description of these."""
    y = rows.column(target).dropna()
    if y.nunique() < 2:
        fail(f"target {target!r} has one value only: nothing to predict.")
    if y.nunique() == 2:
        return "logistic", "two values"
    if not pd.api.types.is_numeric_dtype(y):
        if y.nunique() > MAX_CATEGORY_LABELS:
            rows.numbers(target, f"a target holds numbers, or labels, {MAX_CATEGORY_LABELS} at most")
        return "multinomial", f"{y.nunique()} labels"
    if y.min() == 0 and (y % 1 == 0).all():
        return "poisson", "whole numbers from 0 on"
    return "squared", "numbers"


def _label_target(rows: FileTable, model: Model) -> FileTable:
    """Convert two numbers that are not 0 and 1 to labels."""
    y = rows.frame[model.target]
    if model.loss != "logistic" or y.isin([0, 1]).all():
        return rows
    return replace(rows, frame=rows.frame.assign(**{str(model.target): y.astype(str).astype("category")}))
