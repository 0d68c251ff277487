"""Several models side by side, over the same folds.

The table, the notes below it, and the picture.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.measure import Measurement

import leaveout as lo

from ._cells import is_numeric
from ._console import TABLES, console, print_notes, table_of, warnings_as_notes, words, writing
from ._files import picture

pd = lo.developer.pd

# heading of a column, and the format of its numbers
Heading = tuple[str, str | Callable[[Any], str]]
LOSSES: dict[str, Heading] = TABLES["losses"]
# largest width of the name of a model, and of a table
NAME = 40
MAX_TABLE_WIDTH = 400
# columns over the units that all models score
PAIR_COLUMNS = "mean", "se", "difference", "se_difference", "p_worse", "weight", "kind"


def compare_table(
    estimates: dict[str, lo.Estimate],
    before: dict[str, dict[str, Any]],
    after: dict[str, dict[str, Any]],
) -> tuple[pd.DataFrame, list[str]]:
    """Comparison with one row for each model, further columns before and after the losses, and
    notes.
    """
    losses = {
        name: {
            "mean": estimate.mean,
            "se": estimate.se,
            "kind": estimate.standard_error.kind,
            "approximation": estimate.approximation_error,
            "no_update": estimate.summary().value["no update, mean"],
        }
        for name, estimate in estimates.items()
    }
    flagged = {name: {"flagged": len(estimate.flagged())} for name, estimate in estimates.items()}
    rows = pd.DataFrame(
        [before[k] | losses[k] | after[k] | flagged[k] for k in estimates], index=list(estimates)
    )
    if len(estimates) < 2:
        return rows, []
    with warnings_as_notes() as notes:
        paired = lo.compare(estimates)
    for name in paired.columns.intersection(PAIR_COLUMNS, sort=False):
        rows[name] = paired.loc[rows.index, name]
    if paired["missing"].any():
        rows["missing"] = paired.loc[rows.index, "missing"]
    score = next(
        (f"Losses: {estimate.score} a unit." for estimate in estimates.values() if estimate.score),
        "",
    )
    return rows, [score, *notes]


def first(rows: pd.DataFrame) -> Any:
    """Return the model that `lo.compare` ranks first."""
    return rank_rows(rows).index[0]


def rank_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rank the rows as `lo.compare` does."""
    return rows.sort_values([name for name in ("missing", "mean") if name in rows], kind="stable")


def findings(name: str, estimate: lo.Estimate) -> list[str]:
    """List the checks of an estimate, without those for information."""
    return [f"{name}: {finding}" for finding in estimate.checks() if finding.severity != "info"]


def show(rows: pd.DataFrame, headings: dict[str, Heading], notes: Iterable[str]) -> None:
    """Print the table, the lowest loss in bold, the kinds of its standard errors, and the notes."""
    shown = {name: heading for name, heading in headings.items() if name in rows}
    texts = [heading for name, (heading, _) in shown.items() if not is_numeric(rows[name])]
    table = table_of(
        *(heading for heading, _ in shown.values()), words=tuple(texts), collapse_padding=True
    )
    for column in table.columns:
        if column.header in texts:
            column.max_width = NAME
            column.overflow = "fold"
    best = first(rows) if rows["mean"].notna().any() else None
    for label, row in zip(rows.index, rows.itertuples(), strict=True):
        cells = []
        for name, (_, number_format) in shown.items():
            value = getattr(row, name)
            if callable(number_format):
                cells.append(number_format(row))
            elif isinstance(value, str):
                cells.append(value)
            elif not np.isfinite(value):
                cells.append("–")
            else:
                cells.append(
                    format(
                        value,
                        ".6g" if number_format == ".4f" and abs(value) >= 1000 else number_format,
                    )
                )
        table.add_row(*cells, style="bold" if label == best else None)
    wide = Measurement.get(
        console, console.options.update(max_width=MAX_TABLE_WIDTH), table
    ).maximum
    Console(
        width=max(wide, console.width), highlight=False, markup=False, quiet=console.quiet
    ).print(table)  # numbers are never truncated
    for kind, group in rows.groupby("kind", sort=False):
        suffix = "" if len(group) == len(rows) else f" with {', '.join(group.index)}"
        console.print(f"SE{suffix} {kind}")
    print_notes(*notes)


def comparison(estimates: dict[str, lo.Estimate], file: Path | None, axis_label: str) -> None:
    """Draw the picture of the table, on request."""
    if file is not None and len(estimates) < 2:
        console.print("No picture: it compares two or more models.")
        return

    def draw() -> Any:
        axes = lo.plot.comparison(estimates)
        axes.set_xlabel(axis_label)
        return axes

    picture(draw, file)


def print_document(document: dict[str, Any]) -> None:
    """Print a result as one document in JSON, where a number that is not finite is null."""
    typer.echo(
        json.dumps(
            {"leaveout": lo.__version__, "command": shlex.join(words), **plain(document)},
            allow_nan=False,
        )
    )


def plain(value: Any) -> Any:
    """Return the parts of a result as JSON has them."""
    if isinstance(value, lo.Estimate):
        return plain(
            {
                "mean": value.mean,
                "se": value.se,
                "approximation_error": value.approximation_error,
                "no_update": value.no_update,
                "metrics": value.metrics.to_dict("index"),
                "labels": vars(value.labels),
                "se_kind": value.standard_error.kind,
                "plan": value.plan.call,
                "checks": [check._asdict() for check in value.checks()],
                "flagged": value.flagged(),
                "losses": value.table(),
            }
        )
    if isinstance(value, pd.DataFrame):
        return plain(value.to_dict("records"))
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, bool | int | float | None):
        return value
    return str(value)


def page(
    result: lo.Estimate | dict[str, lo.Estimate] | lo.leakage.LeakageReport,
    file: Path | None,
    notes: Iterable[str],
    title: str = "",
    **options: Any,
) -> None:
    """Write the report, with options of `lo.report`, and the document in JSON, on request."""
    notes = list(notes)
    if console.quiet:
        models = result if isinstance(result, dict) else {"": result}
        print_document({"notes": notes, "models": models})
    if file is None:
        return
    check_texts = []
    if isinstance(result, dict):
        check_texts = [
            text for name, estimate in result.items() for text in findings(name, estimate)
        ]
    # the report lists checks separately
    remarks = [note for note in dict.fromkeys(notes) if note not in check_texts]
    with writing(file):
        lo.report(
            result,
            file,
            title=title,
            notes=[f"By the command: {shlex.join(words)}", *remarks],
            **options,
        )
    console.print(f"Report: {file}")
