"""`leaveout influence` shows the rows of a file, or folds of them, that determine a regression."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.table import Table as Shown

import leaveout as lo

from ._cells import convention
from ._console import console, fail, one_line
from ._data import LOSSES, PLANS, Model
from ._files import FileTable, picture, save
from ._options import (
    REFITS,
    Categorical,
    Checkpoint,
    Data,
    Decimal,
    DropMissing,
    Features,
    Offset,
    Plot,
    Refit,
    Report,
    Seed,
    Thousands,
    Weights,
    at_least,
    number_file,
    out_option,
    protect_input,
)
from ._table import page
from .glm import PreparedModel, prepare, rows_of, validate

HEADINGS = {
    "units": ("rows", "d"),
    "loss": ("loss", ".4g"),
    "rise": ("rise", "+.3g"),
    "share": ("share", ".1%"),
    "cook": ("Cook's", ".3g"),
    "moved": ("moves", "+.2g"),
    "parameter": ("the parameter", ""),
    "prediction": ("prediction", "+.3g"),
}


def influence(
    data: Data,
    target: Annotated[str | None, typer.Option(help="The column to predict; with --formula its left side.")] = None,
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "squared",
    l2: Annotated[float, typer.Option(help="Ridge penalty, l2/2 times the sum of the squared coefficients.")] = 0.0,
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "loo",
    features: Features = None,
    categorical: Categorical = None,
    formula: Annotated[str | None, typer.Option(help="Instead of these: 'y ~ a + C(b)'.")] = None,
    offset: Offset = None,
    weights: Weights = None,
    drop_missing: DropMissing = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    row: Annotated[
        int | None, typer.Option(help="A row of the file, from 1: what others do to its prediction is told.")
    ] = None,
    by: Annotated[str, typer.Option(help="The column, or the parameter, by which rows are listed.")] = "cook",
    top: Annotated[int, typer.Option(help="How many are listed.", callback=at_least("--top", 1))] = 10,
    pairs: Annotated[int, typer.Option(help="Rows of which all pairs are left out; 0 for none.")] = 20,
    refit: Refit = "certified",
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    out: Annotated[Path | None, out_option("what each row, or fold, does")] = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Show how a regression changes when rows of a file, or folds of them, are left out.

    The changes are those of the loss, the parameters and a prediction. "Moves" is the largest change of a parameter, in
    standard errors; Cook's distance is the change of all. "Share" is the share of the sum of the held-out losses' sizes.
    "Rise" is the increase of a row's loss when it is held out. Two rows that mask each other move the fit together by more
    than both alone.

    leaveout influence prices.csv --target price --features area,age --row 12

    leaveout influence visits.csv --target visits --loss poisson --plan groups:clinic --top 5 --out clinics.csv
    """
    protect_input(data, out, plot, report, checkpoint)
    model = Model(target, loss, l2, features, categorical, formula, offset, weights)
    rows = rows_of(data, model, plan, drop_missing, convention(decimal, thousands))
    ready = prepare(model, rows, plan, seed)
    at = None if row is None else _row(rows, ready, row)
    estimate, fit, said = validate(ready, REFITS[refit], None, None, checkpoint)
    own = lo.influence(estimate, REFITS[refit], prediction=at, pairs=pairs, checkpoint=number_file(checkpoint, 2))
    found = _rename_rows(own, rows, plan)
    with one_line(f"--by {by}: "):
        listed = found.top(top, by)
    where = f"{rows.name}: {len(rows.frame)} rows, {fit.num_params} parameters"
    console.print(f"{'; '.join(filter(None, (where, rows.note, said)))}\n", markup=False)
    console.print(str(found), markup=False)
    _show(listed)
    save(found.table().join(found.parameters.add_prefix("change of ")), out)
    picture(lambda: found.plot(by=by), plot)
    known = str(estimate).splitlines()
    page(estimate, report, [where, rows.note, said, *(line for line in str(found).splitlines() if line not in known)])


def _row(rows: FileTable, model: PreparedModel, row: int) -> np.ndarray:
    """Return the features of a row of the file."""
    place = np.flatnonzero(rows.frame.index == row)
    if not len(place):
        fail(f"--row {row}: {rows.name} has no such row among those that are used, from 1 to {rows.frame.index[-1]}.")
    made: Any = model.objective
    return made.design[place[0], : made.num_features]


def _rename_rows(found: lo.Influence, rows: FileTable, plan: str) -> lo.Influence:
    """Name the results by rows of the file, from 1, or by the names of groups."""
    kind, _, column = plan.strip().partition(":")
    if kind == "loo":
        index = pd.Index(rows.frame.index, name="row")
    elif kind == "groups":
        index = pd.Index(np.unique(rows.column(column).astype(str)), name=column)
    else:
        index = pd.RangeIndex(1, len(found.rows) + 1, name="fold")
    names = dict(zip(found.rows.index, index, strict=True))
    pairs = found.pairs.assign(first=found.pairs["first"].map(names), second=found.pairs["second"].map(names))
    return replace(found, rows=found.rows.set_axis(index), parameters=found.parameters.set_axis(index), pairs=pairs)


def _show(listed: pd.DataFrame) -> None:
    """Print the listed rows."""
    shown = {name: how for name, how in HEADINGS.items() if name in listed and (name != "units" or (listed["units"] > 1).any())}
    table = Shown(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(str(listed.index.name), justify="right")
    for heading, how in shown.values():
        table.add_column(heading, justify="right" if how else "left", no_wrap=bool(how))
    for name, line in zip(listed.index, listed[list(shown)].itertuples(index=False), strict=True):
        table.add_row(str(name), *(format(cell, how) for cell, (_, how) in zip(line, shown.values(), strict=True)))
    console.print(table)
