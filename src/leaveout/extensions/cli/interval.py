"""`leaveout interval` fits a regression to the rows of one file, and gives those of another
intervals for their response.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import leaveout as lo

from ._cells import is_numeric
from ._console import console, fail, join_notes, one_line, warnings_as_notes
from ._data import NUMBERS, Model, new_design
from ._files import Reading, complete, read, save
from ._options import Data, FoldOptions, OptionsOf, command
from ._table import print_document
from .glm import fit_model, prepare

pd = lo.developer.pd

INTERVALS = OptionsOf(
    lo.interval,
    level="Of the intervals.",
    method="One of {}; cv+ leaves kfold:10 out if no plan is given.",
)
PRINTED_ROWS = 10  # number of printed rows


@command(omit="formula impute score mute metric title")
def interval(
    data: Data,
    new: Annotated[
        Path,
        typer.Argument(
            help="A file of the rows to predict, with the same columns.", readable=False
        ),
    ],
    intervals: Annotated[dict[str, Any], INTERVALS],
    model: Model,
    reading: Reading,
    fold_options: FoldOptions,
    out: Path | None = None,
) -> None:
    """Compute prediction intervals for the responses of new rows, whatever their distribution, by
    the jackknife+ from one fit.

    "plus" covers about --level of new responses, and at least 2 level − 1. "minmax" is wider, and
    covers at least --level. "cv+" leaves folds out. With --plan groups:COLUMN the intervals are for
    rows of new groups.

    leaveout interval sold.csv offered.csv --target price --categorical city

    leaveout interval old.csv new.csv --target cost --loss gamma --l2 1 --plan groups:clinic --level 0.8 --out intervals.csv

    Parameters
    ----------
    out
        A CSV file for the intervals.
    """
    if str(data) == "-" == str(new):
        fail("one of the two files may be standard input, not both.")
    rows = model.read(data, reading)
    if intervals["method"] == "cv+" and model.plan == "loo":
        model = replace(model, plan="kfold:10")
    with warnings_as_notes() as notes:
        prepared_model = prepare(model, rows, fold_options.seed)
        used = list(filter(None, [*model.features_of(rows), model.offset]))
        new_rows = read(new, {*used, model.target}, model.labels.__contains__, reading)
        for name in used:
            new_rows.column(name)
        new_rows = complete(new_rows, used, reading.drop_missing)
        X = new_design(new_rows, rows, model, prepared_model.objective)
        shift = new_rows.numbers(model.offset, NUMBERS) if model.offset else None
        with one_line(""):
            fit = fit_model(prepared_model)
            verb: Any = lo.interval
            if fit.objective.units.classes:
                verb = lo.prediction_sets
            table = verb(
                fit,
                X,
                plan=prepared_model.folds,
                offset=shift,
                strategy=fold_options.strategy,
                checkpoint=fold_options.checkpoint,
                **intervals,
            )
    remarks = (
        f"{rows.name}: {len(rows.frame)} rows",
        rows.note,
        f"{new_rows.name}: {len(X)} rows",
        new_rows.note,
    )
    console.print(f"{join_notes(*remarks, prepared_model.note, *notes)}\n")
    attrs = table.attrs
    kind, quantity = ("intervals", "ends") if "low" in table else ("sets", "probabilities")
    lines = {
        "method": f"{attrs['method']}, {attrs['level']:.0%} {kind} of new responses",
        "covered": f"{attrs['at_least']:.0%} or more are, if rows are exchangeable; about {attrs['level']:.0%} usually",
        "approximation": f"{quantity} widened by {attrs['widened']:.1g} at most, {'proved' if attrs['proved'] else 'estimated'}",
        "note": attrs["note"],
    }
    if model.target in new_rows.frame.columns and "low" in table:
        response = new_rows.frame[model.target]
        if is_numeric(response) and response.notna().all():
            inside = response.between(table["low"].to_numpy(), table["high"].to_numpy())
            lines["here"] = (
                f"{inside.sum()} of the {len(inside)} responses that {new_rows.name} has are inside"
            )
    for name, text in lines.items():
        if text:
            console.print(f"{name:<15} {text}")
    shown = table.head(PRINTED_ROWS).set_axis(np.asarray(new_rows.frame.index[:PRINTED_ROWS]))
    console.print(f"\n{shown.to_string(float_format='{:.6g}'.format)}")
    if len(table) > PRINTED_ROWS:
        console.print(f"… {len(table) - PRINTED_ROWS} more; --out writes all of them")
    table.insert(0, "row", np.asarray(new_rows.frame.index))
    save(table, out)
    if fold_options.json:
        print_document({"about": dict(attrs), "table": table})
