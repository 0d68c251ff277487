"""`leaveout compare` cross-validates several regressions of one file by the same folds."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

import leaveout as lo

from ._cells import convention
from ._console import console, fail, one_line
from ._data import LOSSES, PLANS, Model, columns_of, labels, named_columns
from ._files import complete, read, save
from ._options import (
    REFITS,
    Checkpoint,
    Data,
    Decimal,
    DropMissing,
    Mute,
    Offset,
    Plot,
    Refit,
    Report,
    Score,
    Seed,
    Table,
    Thousands,
    Weights,
    number_file,
    protect_input,
)
from ._table import LOSSES as COLUMNS, Heading, compare_table, comparison, findings, page, rank_rows, show
from .glm import OTHERS, PreparedModel, prepare, validate

KEYS = ("loss", "l2", "features", "categorical", "formula", "intercept")
HEADINGS: dict[str, Heading] = {"model": ("model", "s"), **COLUMNS, "flagged": ("flagged", "d")}


def compare(
    data: Data,
    model: Annotated[
        list[str], typer.Option(help=f"Once for each model: what it changes, as 'l2=10 features=a,b'; of {', '.join(KEYS)}.")
    ],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    loss: Annotated[str, typer.Option(help=f"Of models that name none: one of {', '.join(LOSSES)}.")] = "squared",
    l2: Annotated[float, typer.Option(help="Ridge penalty of models that name none.")] = 0.0,
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "loo",
    features: Annotated[str | None, typer.Option(help="Columns of models that name none.")] = None,
    categorical: Annotated[str | None, typer.Option(help="Columns of categories of models that name none.")] = None,
    offset: Offset = None,
    weights: Weights = None,
    drop_missing: DropMissing = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    refit: Refit = "certified",
    score: Score = None,
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    mute: Mute = None,
    out: Table = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Compare regressions of one file by their held-out loss, over the same rows and folds.

    Beside each mean stand its standard error, the estimated error of the approximation, the paired difference from the lowest
    and its standard error, the probability of being worse, the loss with no update (too low), and the number of flagged refits.
    For −log densities there is also the weight in the mixture of the models that predicts best (stacking). Models of different
    --loss are compared by a --score that all of them have.

    leaveout compare patients.csv --target cost --model features=age --model features=age,dose --report report.html

    leaveout compare visits.csv --target visits --features age --model loss=poisson --model loss=squared --score squared-error
    """
    protect_input(data, out, plot, report, checkpoint)
    if len(model) < 2 or len(set(model)) < len(model):
        fail("give --model twice or more, each time another: --model 'l2=1' --model 'l2=10'.")
    common = Model(target, loss, l2, features, categorical, None, offset, weights)
    models = {text: _change_model(common, text) for text in model}
    words = {name for one in models.values() for name in labels(one, plan)}
    known = {name for one in models.values() for name in named_columns(one, plan)}
    rows = read(data, known, words.__contains__, convention(decimal, thousands))
    used = [name for one in models.values() for name in columns_of(rows, one, plan)]
    rows = complete(rows, used, drop_missing, OTHERS)
    ready: dict[str, PreparedModel] = {}
    for text, one in models.items():
        with one_line(f"{text}: "):
            ready[text] = prepare(one, rows, plan, seed)
    estimates: dict[str, lo.Estimate] = {}
    notes = [rows.note]
    for number, (text, model_and_folds) in enumerate(ready.items(), 1):
        with one_line(f"{text}: "):
            estimates[text], _, said = validate(model_and_folds, REFITS[refit], score, mute, number_file(checkpoint, number))
        notes += [f"{text}: {said}" if said else "", *findings(text, estimates[text])]
    try:
        table, more = compare_table(estimates, {text: {"model": text} for text in models}, {text: {} for text in models})
    except ValueError as error:
        fail(f"{error} (here: --score squared-error)")
    table = rank_rows(table)
    console.print(f"{rows.name}: {len(rows.frame)} rows; {plan}, {refit}\n", markup=False)
    show(table, HEADINGS, [*notes, *more])
    save(table, out)
    comparison(estimates, plot, "")
    page(estimates, report, notes)


def _change_model(common: Model, text: str) -> Model:
    """Return a model changed by words `key=value`."""
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
