"""`leaveout glm` fits a regression to a file of rows and cross-validates it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import leaveout as lo

from ._console import console, fail, join_notes, warnings_as_notes
from ._data import Model, lone_levels, objective
from ._files import FileTable, Reading, picture, save
from ._options import Data, FoldOptions, Plot, Report, command
from ._table import page

pd = lo.developer.pd


@command()
def glm(
    data: Data,
    model: Model,
    reading: Reading,
    fold_options: FoldOptions,
    out: Path | None = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Cross-validate a regression of the rows of a file.

    The loss is the mean of the held-out rows' losses: −log of their density for most, half the
    squared error for "squared"; the printed result says which. --score gives another.
    Categories are coded against their first level; give --l2 in the units of the columns as they
    are.

    leaveout glm patients.csv --target cost --features age,dose --categorical city --report report.html

    leaveout glm patients.csv --target ill --loss logistic --features age,dose --l2 1 --plan groups:clinic --plot rows.png

    Parameters
    ----------
    out
        A CSV file for the losses of the rows.
    """
    rows = model.read(data, reading)
    estimate, fit, notes = answer(rows, prepare(model, rows, fold_options.seed), fold_options)
    if out is not None:
        table = estimate.table().rename(columns={"unit": "row"})
        place = rows.frame.index.get_indexer(pd.Index(table["row"]))
        prediction = lo.cross_predict(fit, estimate.plan, strategy=fold_options.strategy)
        if prediction.ndim == 1:
            table["prediction"] = prediction.to_numpy()[place]
        save(table, out)
    picture(lambda: lo.plot.losses(estimate), plot)
    page(estimate, report, notes, fold_options.title)


@dataclass(frozen=True)
class PreparedModel:
    """Model of the rows, with its folds and remarks on its features and target."""

    objective: lo.GLM | lo.Regression
    folds: lo.Plan
    note: str


def prepare(model: Model, rows: FileTable, seed: int) -> PreparedModel:
    """Check all input that can be checked before anything is fitted."""
    regression, remark = objective(rows, model)
    folds = model.folds(rows, seed)
    lone = lone_levels(rows, model, folds, regression)
    if lone and not model.l2:
        fail(
            f"the levels {lone} have all their rows in one fold: without those nothing determines their coefficients; "
            "give a penalty (--l2 1.0), merge levels, or choose another plan."
        )
    return PreparedModel(regression, folds, remark)


def fit_model(model: PreparedModel) -> lo.Fit:
    """Fit a model."""
    try:
        return lo.fit(model.objective)
    except (RuntimeError, lo.validation.IndefiniteHessianError) as error:
        fail(f"{error} (here: --l2 1.0)")


def validate(
    model: PreparedModel, fold_options: FoldOptions, number: int = 1
) -> tuple[lo.Estimate, lo.Fit, str]:
    """Fit and cross-validate a model, which is one of several by its number.

    Warnings become notes.
    """
    with warnings_as_notes() as notes:
        fit = fit_model(model)
        estimate = fold_options.cross_validate(fit, model.folds, number)
    return estimate, fit, join_notes(model.note, *notes)


def answer(
    rows: FileTable, model: PreparedModel, fold_options: FoldOptions
) -> tuple[lo.Estimate, lo.Fit, list[str]]:
    """Cross-validate a model of some rows, and print the result; return it with notes."""
    estimate, fit, remark = validate(model, fold_options)
    notes = [f"{rows.name}: {len(rows.frame)} rows, {fit.num_params} parameters", rows.note, remark]
    console.print(f"{join_notes(*notes)}\n\n{estimate}")
    return estimate, fit, notes
