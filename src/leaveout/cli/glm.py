"""`leaveout glm` fits a regression to a file of rows and cross-validates it."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

import leaveout as lo

from ._cells import Convention, convention
from ._console import console, fail, one_line
from ._data import LOSSES, PLANS, Model, columns_of, labels, lone_levels, named_columns, objective, plan_of
from ._files import FileTable, complete, picture, read, save, split_names
from ._options import (
    REFITS,
    Categorical,
    Checkpoint,
    Data,
    Decimal,
    DropMissing,
    Features,
    Mute,
    Offset,
    Plot,
    Refit,
    Report,
    RowTable,
    Score,
    Seed,
    Thousands,
    Weights,
    protect_input,
)
from ._table import page

OTHERS = "name other columns by --features"


def glm(
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
    refit: Refit = "certified",
    score: Score = None,
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    mute: Mute = None,
    out: RowTable = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Cross-validate a regression of the rows of a file.

    The loss is the mean of the held-out rows' losses: −log of their density for most, half the squared error for "squared";
    the printed result says which. --score gives another.
    Categories are coded against their first level; give --l2 in the units of the columns as they are.

    leaveout glm patients.csv --target cost --features age,dose --categorical city --report report.html

    leaveout glm patients.csv --target ill --loss logistic --features age,dose --l2 1 --plan groups:clinic --plot rows.png
    """
    protect_input(data, out, plot, report, checkpoint)
    model = Model(target, loss, l2, features, categorical, formula, offset, weights)
    rows = rows_of(data, model, plan, drop_missing, convention(decimal, thousands))
    estimate, fit, notes = answer(rows, prepare(model, rows, plan, seed), REFITS[refit], score, mute, checkpoint)
    if out is not None:
        table = estimate.table().rename(columns={"unit": "row"})
        place = rows.frame.index.get_indexer(pd.Index(table["row"]))
        prediction = lo.cross_predict(fit, estimate.plan, REFITS[refit])
        if prediction.ndim == 1:
            table["prediction"] = prediction[place]
        save(table, out)
    picture(lambda: lo.plot.losses(estimate), plot)
    page(estimate, report, notes)


def answer(
    rows: FileTable,
    model: "PreparedModel",
    refit: lo.AbstractRefit,
    score: str | None,
    mute: str | None,
    checkpoint: Path | None = None,
) -> tuple[lo.Estimate, lo.Fit, list[str]]:
    """Model of some rows, cross-validated and printed, with notes."""
    estimate, fit, said = validate(model, refit, score, mute, checkpoint)
    notes = [f"{rows.name}: {len(rows.frame)} rows, {fit.num_params} parameters", rows.note, said]
    console.print(f"{'; '.join(filter(None, notes))}\n", markup=False)
    console.print(str(estimate), markup=False)
    return estimate, fit, notes


def rows_of(data: Path, model: Model, plan: str, drop_missing: bool, written: Convention) -> FileTable:
    """Read the complete rows of a file that a model and a plan need."""
    if model.formula and (model.features or model.categorical):
        fail("--formula goes without --features and --categorical: write the columns into it, categories as C(name).")
    rows = read(data, named_columns(model, plan), labels(model, plan).__contains__, written)
    return complete(rows, columns_of(rows, model, plan), drop_missing, OTHERS)


@dataclass(frozen=True)
class PreparedModel:
    """Model of the rows, with its folds and remarks on its target."""

    objective: lo.GLM | lo.Regression
    folds: lo.Plan
    note: str


def prepare(model: Model, rows: FileTable, plan: str, seed: int) -> PreparedModel:
    """Check all input that can be checked before anything is fitted."""
    made, said = objective(rows, model, plan)
    with one_line(f"--plan {plan}: "):
        folds = plan_of(plan, rows, seed)
    lone = lone_levels(rows, model, folds, made)
    if lone and not model.l2:
        fail(
            f"the levels {lone} have all their rows in one fold: without those nothing determines their coefficients; "
            "give a penalty (--l2 1.0), merge levels, or choose another plan."
        )
    return PreparedModel(made, folds, said)


def validate(
    model: PreparedModel, refit: lo.AbstractRefit, score: str | None, mute: str | None, checkpoint: Path | None = None
) -> tuple[lo.Estimate, lo.Fit, str]:
    """Fit and cross-validate a model; warnings become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = fit_model(model)
        named: Any = None if score is None else score.replace("-", "_")
        estimate = lo.cross_validate(fit, model.folds, refit, evaluate=named, checkpoint=checkpoint).muted(*split_names(mute))
    return estimate, fit, join_notes(model.note, caught)


def fit_model(model: PreparedModel) -> lo.Fit:
    """Fit a model."""
    try:
        return lo.fit(model.objective)
    except (RuntimeError, lo.IndefiniteHessianError) as error:
        fail(f"{error} (here: --l2 1.0)")


def join_notes(said: str, caught: list[warnings.WarningMessage]) -> str:
    """Join the notes and the warnings of a call."""
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    return "; ".join(filter(None, (said, *dict.fromkeys(notes))))
