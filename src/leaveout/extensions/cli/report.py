"""`leaveout report DATA PAGE` cross-validates a regression chosen from the columns, and writes one
page on it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import leaveout as lo

from ._cells import is_numeric
from ._console import fail, print_notes
from ._data import CATEGORY, Model
from ._files import FileTable, Reading, describe_mixture, read, shorten_names
from ._options import Data, FoldOptions, command, pageable
from ._table import page as write
from .glm import answer, prepare

pd = lo.developer.pd

MAX_CATEGORY_LABELS = 20  # largest number of labels of a category; more are names or free text


@command(target=..., loss="")
def report(
    data: Data,
    page: Annotated[
        Path, typer.Argument(help="The page to write (html).", readable=False, callback=pageable)
    ],
    groups: str | None = None,
    clinical: bool = False,
    centres: str | None = None,
    *,
    model: Model,
    reading: Reading,
    fold_options: FoldOptions,
) -> None:
    """Write one page on how well the other columns predict a column, for rows that the model has
    not seen.

    The target chooses the loss, unless --loss does: logistic for two values, multinomial for more
    labels, Poisson for whole numbers from 0 on, squared for other numbers. Columns of text are
    categories. Columns of one value, or of more than 20 labels, are left out. The command prints
    what it chose. For series there is leaveout hmm --report, for counts on a map leaveout
    mrf --report.

    leaveout report patients.csv report.html --target cost

    leaveout report patients.csv ill.html --target ill --clinical --centres clinic

    Parameters
    ----------
    groups
        A column of groups, such as patients: each is left out whole; else each row by
        itself.
    clinical
        Write the page of a clinical prediction model: discrimination, calibration, net
        benefit, optimism, stability.
    centres
        With --clinical: a column of centres, each of which is predicted by the others.
    """
    if centres and not clinical:
        fail("--centres goes with --clinical.")
    if groups and model.plan != "loo":
        fail("--groups goes without --plan: it is --plan groups:COLUMN.")
    if groups:
        model = replace(model, plan=f"groups:{groups}")
    named_columns = model.named_columns and model.named_columns | {*filter(None, [centres])}
    rows = read(data, named_columns, lambda name: name in model.labels or name == centres, reading)
    if centres:
        rows.column(centres)
    model, remarks = _choose_model(rows, model, centres)
    rows = model.complete(rows, reading, *filter(None, [centres]))
    y = rows.frame[model.target]
    if model.loss == "logistic" and not y.isin([0, 1]).all():  # two other numbers are labels
        rows = replace(
            rows, frame=rows.frame.assign(**{str(model.target): y.astype(str).astype("category")})
        )
    estimate, _, notes = answer(rows, prepare(model, rows, fold_options.seed), fold_options)
    print_notes(*remarks)
    clinical_options = {
        "kind": "clinical",
        "centres": rows.frame[centres].to_numpy() if centres else None,
        "excluded": rows.excluded,
    }
    write(
        estimate,
        page,
        [*notes, *remarks],
        fold_options.title,
        **(clinical_options if clinical else {}),
    )


def _choose_model(rows: FileTable, model: Model, centres: str | None) -> tuple[Model, list[str]]:
    """Choose the loss from the target, features and categories from the columns.

    Return them with remarks.
    """
    model.columns_of(rows)  # raises if a column is missing
    loss, description = (model.loss, "") if model.loss else _loss(rows, str(model.target))
    loss_remarks = (
        [f"{model.target} holds {description}: --loss {loss}, unless another is named"]
        if description
        else []
    )
    if model.formula:
        return replace(model, loss=loss), loss_remarks
    names = [name for name in model.features_of(rows) if name != centres]
    for name in names:
        if name not in model.categories and (mixture := describe_mixture(rows.frame[name])):
            fail(f"column {name!r}: {mixture}; {CATEGORY}.")
    levels = {name: rows.frame[name].nunique() for name in names}
    number = {name: name not in model.categories and is_numeric(rows.frame[name]) for name in names}
    used = [
        name
        for name in names
        if levels[name] > 1 and (number[name] or levels[name] <= MAX_CATEGORY_LABELS)
    ]
    if not used:
        fail(
            f"{rows.name}: no column but {model.target!r} holds numbers, or from 2 to {MAX_CATEGORY_LABELS} labels, "
            "to predict it by."
        )
    out = [name for name in names if name not in used]
    remarks = [*loss_remarks, model.omission_note(rows, centres)]
    remarks += [
        f"left out, of one value or of more than {MAX_CATEGORY_LABELS} labels: {shorten_names(out)}"
        if out
        else ""
    ]
    labels = {
        name: rows.frame[name].nunique() for name in (*out, *model.omissions(rows, centres)["ids"])
    }
    column = next(
        (name for name, count in labels.items() if 1 < count <= len(rows.frame) / 2), None
    )
    if column is not None and model.plan == "loo":
        remarks.append(
            f"{column} has {labels[column]} labels in {len(rows.frame)} rows: where rows of one label belong together, such as a "
            f"patient's, --groups {column} leaves them out together"
        )
    categories = ",".join(name for name in used if not number[name])
    return replace(model, loss=loss, features=",".join(used), categorical=categories or None), [
        *filter(None, remarks)
    ]


def _loss(rows: FileTable, target: str) -> tuple[str, str]:
    """Return the loss that the values of a column suggest, and a description of these."""
    y = rows.column(target).dropna()
    if y.nunique() < 2:
        fail(f"target {target!r} has one value only: nothing to predict.")
    if y.nunique() == 2:
        return "logistic", "two values"
    if not is_numeric(y):
        if y.nunique() > MAX_CATEGORY_LABELS:
            rows.numbers(
                target, f"a target holds numbers, or labels, {MAX_CATEGORY_LABELS} at most"
            )
        return "multinomial", f"{y.nunique()} labels"
    if y.min() == 0 and (y % 1 == 0).all():
        return "poisson", "whole numbers from 0 on"
    return "squared", "numbers"
