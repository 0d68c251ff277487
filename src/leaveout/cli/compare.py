"""`leaveout compare` cross-validates several regressions of one file by the same folds."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.table import Table

import leaveout as lo

from ._console import REFITS, console, fail, one_line
from ._data import FILE, LOSSES, PLANS, Model, columns_of, complete, read, writable
from .glm import picture, validated

KEYS = ("loss", "l2", "features", "categorical", "formula", "intercept")
HEADINGS = {
    "mean": ("loss", ".4f"),
    "se": ("SE", ".4f"),
    "approximation": ("± refit", ".0e"),
    "difference": ("diff.", ".4f"),
    "se_difference": ("SE", ".4f"),
    "no_update": ("no upd.", ".4f"),
    "flagged": ("flagged", "d"),
}


def compare(
    data: Annotated[Path, FILE],
    model: Annotated[
        list[str], typer.Option(help=f"Once for each model: what it changes, as 'l2=10 features=a,b'; of {', '.join(KEYS)}.")
    ],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    loss: Annotated[str, typer.Option(help=f"Of models that name none: one of {', '.join(LOSSES)}.")] = "squared",
    l2: Annotated[float, typer.Option(help="Ridge penalty of models that name none.")] = 0.0,
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "loo",
    features: Annotated[str | None, typer.Option(help="Columns of models that name none.")] = None,
    categorical: Annotated[str | None, typer.Option(help="Columns of categories of models that name none.")] = None,
    offset: Annotated[str | None, typer.Option(help="A column added to the linear predictor.")] = None,
    weights: Annotated[str | None, typer.Option(help="A column of weights.")] = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave rows with missing values out.")] = False,
    refit: Annotated[str, typer.Option(help=f"One of {', '.join(REFITS)}.")] = "certified",
    seed: Annotated[int, typer.Option(help="Of the folds.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A file for a picture of the comparison (png, pdf, svg).")] = None,
) -> None:
    """Compare regressions of one file by their held-out loss, over the same rows and folds.

    Beside each mean: its standard error, the estimated error of the approximation, the paired difference from the lowest
    and its standard error, the loss with no update (too low), and how many refits are flagged.
    """
    if refit not in REFITS:
        fail(f"--refit {refit}: it must be one of {', '.join(REFITS)}.")
    if len(model) < 2 or len(set(model)) < len(model):
        fail("give --model twice or more, each time another: --model 'l2=1' --model 'l2=10'.")
    writable(out, plot)
    common = Model(target, loss, l2, features, categorical, None, offset, weights)
    models = {text: _changed(common, text) for text in model}
    rows = read(data)
    used = [name for one in models.values() for name in columns_of(rows, one, plan)]
    rows = complete(rows, used, drop_missing)
    estimates: dict[Any, lo.Estimate] = {}
    notes = [rows.note]
    for text, one in models.items():
        with one_line(f"{text}: "):
            estimates[text], _, said = validated(one, rows, plan, REFITS[refit], seed)
        notes += [f"{text}: {said}" if said else ""]
    if len({one.loss for one in models.values()}) > 1:
        notes.append("The losses of different --loss are comparable only where both are −log densities of the same target.")
    with one_line(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = _table(estimates)
    console.print(f"{rows.name}: {len(rows.frame)} rows; {plan}, {refit}\n", markup=False)
    _show(table, [*notes, *(str(warning.message) for warning in caught)])
    if out is not None:
        try:
            table.to_csv(out, index_label="model")
        except OSError as error:
            fail(f"{out}: {error}")
        console.print(f"Table: {out}", markup=False)
    if plot is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said already
            picture(lambda: lo.plot.comparison(estimates), plot)


def _changed(common: Model, text: str) -> Model:
    """A model with what `key=value` words change."""
    change: dict[str, Any] = {}
    words = [text.partition("=")] if text.strip().startswith("formula=") else [word.partition("=") for word in text.split()]
    for key, equals, value in words:
        key = key.strip()
        if not equals or key not in KEYS:
            fail(f"--model {text!r}: {key!r} is none of {', '.join(KEYS)}, as in 'l2=10 features=a,b'.")
        change[key] = value
    if "l2" in change:
        try:
            change["l2"] = float(change["l2"])
        except ValueError:
            fail(f"--model {text!r}: l2 must be a number; got {change['l2']!r}.")
    if "intercept" in change:
        change["intercept"] = change["intercept"].lower() not in ("no", "false", "0")
    return replace(common, **change)


def _table(estimates: dict[Any, lo.Estimate]) -> pd.DataFrame:
    table = lo.compare(estimates)
    own = {
        name: {
            "approximation": estimate.approximation_error,
            "no_update": estimate.summary().value["no update, mean"],
            "flagged": len(estimate.flagged()),
        }
        for name, estimate in estimates.items()
    }
    return table.drop(columns="approximation_error").join(pd.DataFrame.from_dict(own, orient="index"))


def _show(table: pd.DataFrame, notes: list[str]) -> None:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("model")
    for name in HEADINGS:
        shown.add_column(HEADINGS[name][0], justify="right", no_wrap=True)
    for at, (name, row) in enumerate(table.iterrows()):
        cells = [
            format(int(row[c]) if c == "flagged" else row[c], HEADINGS[c][1]) if np.isfinite(row[c]) else "–" for c in HEADINGS
        ]
        shown.add_row(str(name), *cells, style="bold" if at == 0 else None)
    console.print(shown)
    for kind in dict.fromkeys(table["kind"]):
        console.print(f"SE {kind}", markup=False)
    for note in dict.fromkeys(filter(None, notes)):
        console.print(note, markup=False)
