"""`leaveout glm` fits a regression to a file of rows and cross-validates it."""

import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import leaveout as lo

from ._console import REFITS, console, fail, one_line
from ._data import FILE, LOSSES, PLANS, Model, columns_of, complete, lone_levels, objective, plan_of, read, writable


def glm(
    data: Annotated[Path, FILE],
    target: Annotated[str | None, typer.Option(help="The column to predict; with --formula its left side.")] = None,
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "squared",
    l2: Annotated[float, typer.Option(help="Ridge penalty, l2/2 times the sum of the squared coefficients.")] = 0.0,
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "loo",
    features: Annotated[str | None, typer.Option(help="Columns to use, with commas between; all others if not given.")] = None,
    categorical: Annotated[str | None, typer.Option(help="Columns of categories, with commas between.")] = None,
    formula: Annotated[str | None, typer.Option(help="Instead of these: 'y ~ a + C(b)'.")] = None,
    offset: Annotated[str | None, typer.Option(help="A column added to the linear predictor.")] = None,
    weights: Annotated[str | None, typer.Option(help="A column of weights.")] = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave rows with missing values out.")] = False,
    refit: Annotated[str, typer.Option(help=f"One of {', '.join(REFITS)}.")] = "certified",
    seed: Annotated[int, typer.Option(help="Of the folds.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the losses of the rows.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A file for a picture (png, pdf, svg).")] = None,
) -> None:
    """Cross-validate a regression of the rows of a file.

    The loss is the mean of the held-out rows' losses: −log of their density for most, half the squared error for "squared".
    Categories are coded against their first level; give --l2 in the units of the columns as they are.
    """
    if refit not in REFITS:
        fail(f"--refit {refit}: it must be one of {', '.join(REFITS)}.")
    writable(out, plot)
    model = Model(target, loss, l2, features, categorical, formula, offset, weights)
    rows = read(data)
    rows = complete(rows, columns_of(rows, model, plan), drop_missing)
    estimate, fit, said = validated(model, rows, plan, REFITS[refit], seed)
    where = f"{rows.name}: {len(rows.frame)} rows, {fit.num_params} parameters"
    console.print(f"{'; '.join(filter(None, (where, rows.note, said)))}\n", markup=False)
    console.print(str(estimate), markup=False)
    if out is not None:
        table = estimate.table()
        if not estimate.joint:
            table.insert(2, "row", np.asarray(rows.frame.index)[table["unit"]] + 1)
            prediction = lo.cross_predict(fit, estimate.plan, REFITS[refit])
            if prediction.ndim == 1:
                table["prediction"] = prediction[table["unit"]]
        try:
            table.to_csv(out, index=False)
        except OSError as error:
            fail(f"{out}: {error}")
        console.print(f"Table: {out}", markup=False)
    if plot is not None:
        picture(lambda: lo.plot.losses(estimate), plot)


def validated(model: Model, rows, plan: str, refit: lo.AbstractRefit, seed: int) -> tuple[lo.Estimate, lo.Fit, str]:
    """A model, fitted and cross-validated; warnings become notes."""
    made, said = objective(rows, model)
    folds = plan_of(plan, rows, seed)
    lone = lone_levels(rows, model, folds)
    if lone and not model.l2:
        fail(
            f"the levels {lone} have all their rows in one fold: without those nothing determines their coefficients; "
            "give a penalty (--l2 1.0), merge levels, or choose another plan."
        )
    with one_line(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit = lo.fit(made)
        except RuntimeError as error:
            fail(f"{error} (here: --l2 1.0)")
        estimate = lo.cross_validate(fit, folds, refit)
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    return estimate, fit, "; ".join(filter(None, (said, *dict.fromkeys(notes))))


def picture(draw, file: Path) -> None:
    """Draw and save, or say why not in one line."""
    try:
        figure = draw().get_figure(root=True)
        figure.savefig(file, dpi=150)
    except ImportError as error:
        fail(f"no picture: {error}")
    except (ValueError, OSError) as error:
        fail(f"{file}: {error}")
    console.print(f"Picture: {file}", markup=False)
