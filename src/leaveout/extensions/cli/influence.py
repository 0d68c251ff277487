"""`leaveout influence` shows the rows of a file, or folds of them, that determine a regression."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import leaveout as lo

from ._console import TABLES, console, fail, join_notes, one_line, table_of
from ._data import Model
from ._files import Reading, picture, save
from ._options import Data, FoldOptions, OptionsOf, Plot, Report, command, option
from ._table import page
from .glm import prepare, validate

pd = lo.developer.pd

LISTED = OptionsOf(
    lo.diagnostics.Influence.top,
    by="The column, or the parameter, by which rows are listed.",
    num_rows=option("How many are listed.", "--top", least=1),
)


@command(omit="score mute metric impute json")
def influence(
    data: Data,
    model: Model,
    reading: Reading,
    row: int | None = None,
    *,
    listed: Annotated[dict[str, Any], LISTED],
    pairs: int = 20,
    fold_options: FoldOptions,
    out: Path | None = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Show how a regression changes when rows of a file, or folds of them, are left out.

    The changes are those of the loss, the parameters and a prediction. "Moves" is the largest
    change of a parameter, in standard errors; Cook's distance is the change of all. "Share" is the
    share of the sum of the held-out losses' sizes. "Rise" is the increase of a row's loss when it
    is held out. Two rows that mask each other move the fit together by more than both alone.

    leaveout influence prices.csv --target price --features area,age --row 12

    leaveout influence visits.csv --target visits --loss poisson --plan groups:clinic --top 5 --out clinics.csv

    Parameters
    ----------
    row
        A row of the file, from 1: what others do to its prediction is told.
    pairs
        Rows of which all pairs are left out; 0 for none.
    out
        A CSV file for what each row, or fold, does.
    """
    rows = model.read(data, reading)
    prepared_model = prepare(model, rows, fold_options.seed)
    design_row = None
    if row is not None:
        place = np.flatnonzero(rows.frame.index == row)
        if not len(place):
            fail(
                f"--row {row}: {rows.name} has no such row among those that are used, from 1 to {rows.frame.index[-1]}."
            )
        regression = prepared_model.objective
        design_row = regression.design[place[0], : regression.num_features]
    estimate, fit, remark = validate(prepared_model, fold_options)
    influences = lo.influence(
        estimate,
        strategy=fold_options.strategy,
        prediction=design_row,
        num_pairs=pairs,
        checkpoint=fold_options.checkpoint_of(2),
    )
    # or the rows of the file, or the names of groups
    index = pd.RangeIndex(1, len(influences.rows) + 1, name="fold")
    if model.plan.strip().startswith("loo"):
        index = pd.Index(rows.frame.index, name="row")
    elif model.group:
        index = pd.Index(np.unique(rows.column(model.group).astype(str)), name=model.group)
    names = dict(zip(influences.rows.index, index, strict=True))
    renamed = influences.pairs.assign(
        first=influences.pairs["first"].map(names), second=influences.pairs["second"].map(names)
    )
    influences = replace(
        influences,
        rows=influences.rows.set_axis(index),
        parameters=influences.parameters.set_axis(index),
        pairs=renamed,
    )
    with one_line(f"--by {listed['by']}: "):
        top = influences.top(**listed)
    where = f"{rows.name}: {len(rows.frame)} rows, {fit.num_params} parameters"
    console.print(f"{join_notes(where, rows.note, remark)}\n\n{influences}")
    shown = {
        name: heading_format
        for name, heading_format in TABLES["influence"].items()
        if name in top and (name != "units" or (top["units"] > 1).any())
    }
    table = table_of(
        str(index.name),
        *(heading for heading, _ in shown.values()),
        words=("the parameter",),
        collapse_padding=True,
    )
    for name, line in zip(top.index, top[list(shown)].itertuples(index=False), strict=True):
        table.add_row(
            str(name),
            *(format(cell, form) for cell, (_, form) in zip(line, shown.values(), strict=True)),
        )
    console.print(table)
    save(influences.table().join(influences.parameters.add_prefix("change of ")), out)
    picture(lambda: influences.plot(by=listed["by"]), plot)
    estimate_lines = str(estimate).splitlines()
    page(
        estimate,
        report,
        [
            where,
            rows.note,
            remark,
            *(line for line in str(influences).splitlines() if line not in estimate_lines),
        ],
        fold_options.title,
    )
