"""`leaveout compare` cross-validates several regressions of one file by the same folds."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from ._console import console, fail, one_line
from ._data import OTHERS, Model
from ._files import Reading, complete, read, save
from ._options import Data, FoldOptions, Plot, Report, Table, command, option
from ._table import (
    LOSSES as COLUMNS,
    Heading,
    compare_table,
    comparison,
    findings,
    page,
    rank_rows,
    show,
)
from .glm import prepare, validate

KEYS = "loss", "l2", "features", "categorical", "formula", "intercept"
HEADINGS: dict[str, Heading] = {"model": ("model", "s"), **COLUMNS, "flagged": ("flagged", "d")}


@command(omit="formula impute")
def compare(
    data: Data,
    model: Annotated[
        list[str],
        option(
            f"Once for each model: what it changes, as 'l2=10 features=a,b'; of {', '.join(KEYS)}."
        ),
    ],
    common: Model,
    reading: Reading,
    fold_options: FoldOptions,
    out: Table = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Compare regressions of one file by their held-out loss, over the same rows and folds.

    Beside each mean stand its standard error, the estimated error of the approximation, the paired
    difference from the lowest and its standard error, the probability of being worse, the loss with
    no update (too low), and the number of flagged refits. For −log densities there is also the
    weight in the mixture of the models that predicts best (stacking). The
    options --loss, --l2, --features and --categorical are those of models that name none. Models of
    different --loss are compared by a --score that all of them have.

    leaveout compare patients.csv --target cost --model features=age --model features=age,dose --report report.html

    leaveout compare visits.csv --target visits --features age --model loss=poisson --model loss=squared --score squared-error
    """
    if len(model) < 2 or len(set(model)) < len(model):
        fail("give --model twice or more, each time another: --model 'l2=1' --model 'l2=10'.")
    models = {text: _change_model(common, text) for text in model}
    rows = read(
        data,
        {name for variant in models.values() for name in variant.named_columns},
        {name for variant in models.values() for name in variant.labels}.__contains__,
        reading,
    )
    rows = complete(
        rows,
        [name for variant in models.values() for name in variant.columns_of(rows)],
        reading.drop_missing,
        OTHERS,
    )
    prepared_models = {}
    for text, variant in models.items():
        with one_line(f"{text}: "):
            prepared_models[text] = prepare(variant, rows, fold_options.seed)
    estimates = {}
    notes = [rows.note]
    for number, text in enumerate(models, 1):
        with one_line(f"{text}: "):
            estimates[text], _, remark = validate(prepared_models[text], fold_options, number)
        notes += [f"{text}: {remark}" if remark else "", *findings(text, estimates[text])]
    measured = {
        text: {name: metric.value for name, metric in estimate.measured.items()}
        for text, estimate in estimates.items()
    }
    try:
        table, table_notes = compare_table(
            estimates, {text: {"model": text} for text in models}, measured
        )
    except ValueError as error:
        fail(f"{error} (here: --score squared-error)")
    table = rank_rows(table)
    console.print(f"{rows.name}: {len(rows.frame)} rows; {common.plan}, {fold_options.refit}\n")
    show(
        table,
        {**HEADINGS, **{name: (name, ".4f") for metrics in measured.values() for name in metrics}},
        [*notes, *table_notes],
    )
    save(table, out)
    comparison(estimates, plot, "")
    page(estimates, report, notes, fold_options.title)


def _change_model(common: Model, text: str) -> Model:
    """Return a model changed by words `key=value`."""
    change: dict[str, Any] = {}
    words = (
        [text.partition("=")]
        if text.strip().startswith("formula=")
        else [word.partition("=") for word in text.split()]
    )
    for key, equals, value in words:
        key = key.strip()
        if not equals or key not in KEYS:
            fail(
                f"--model {text!r}: {key!r} is none of {', '.join(KEYS)}, as in 'l2=10 features=a,b'."
            )
        change[key] = value
    if "l2" in change:
        try:
            change["l2"] = float(change["l2"])
        except ValueError:
            fail(f"--model {text!r}: l2 must be a number; got {change['l2']!r}.")
    if "intercept" in change:
        change["intercept"] = change["intercept"].lower() not in ("no", "false", "0")
    return replace(common, **change)
