"""`leaveout tune` chooses the penalty of a regression of a file's rows, or one for each column, by the held-out loss."""

import warnings
from typing import Annotated, Any

import typer

import leaveout as lo

from ._cells import convention
from ._console import console, fail, one_line
from ._data import LOSSES, PLANS, Model, objective, plan_of
from ._files import picture, save, split_names
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
    Table,
    Thousands,
    Weights,
    at_least,
    one_of,
    protect_input,
)
from ._table import page
from .glm import rows_of

SAMPLERS = ("gradient", "optuna", "path")
METRICS = ("auc", "accuracy", "brier", "mse", "mae")


def tune(
    data: Data,
    target: Annotated[str | None, typer.Option(help="The column to predict; with --formula its left side.")] = None,
    loss: Annotated[str, typer.Option(help=f"One of {', '.join(LOSSES)}.")] = "squared",
    l2: Annotated[str, typer.Option(help="The least and the largest ridge penalty, LOW:HIGH.")] = "0.001:10000",
    each: Annotated[bool, typer.Option("--each", help="A penalty for each column; one for all levels of a category.")] = False,
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "loo",
    sampler: Annotated[
        str, typer.Option(help=f"How: {', '.join(SAMPLERS)}.", callback=one_of("--sampler", SAMPLERS))
    ] = "gradient",
    trials: Annotated[int, typer.Option(help="The most fits.", callback=at_least("--trials", 1))] = 50,
    metric: Annotated[
        str | None,
        typer.Option(
            help=f"Choose by a measure of the held-out predictions instead: {', '.join(METRICS)}.",
            callback=one_of("--metric", METRICS),
        ),
    ] = None,
    features: Features = None,
    categorical: Categorical = None,
    formula: Annotated[str | None, typer.Option(help="Instead of these: 'y ~ a + C(b)'.")] = None,
    offset: Offset = None,
    weights: Weights = None,
    drop_missing: DropMissing = False,
    decimal: Decimal = None,
    thousands: Thousands = None,
    refit: Refit = "newton",
    seed: Seed = 0,
    checkpoint: Checkpoint = None,
    out: Table = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Choose the ridge penalty of a regression by its held-out loss, or one penalty for each column.

    By default the search descends the exact gradient of the leave-one-out loss. It prints the penalties, their held-out loss
    with its errors, and the optimism of the choice.

    leaveout tune patients.csv --target ill --loss logistic --features age,dose --categorical city --each

    leaveout tune patients.csv --target cost --features age,dose --l2 0.1:1000 --sampler path --plot curve.png
    """
    protect_input(data, out, plot, report, checkpoint)
    model = Model(target, loss, 0.0, features, categorical, formula, offset, weights)
    rows = rows_of(data, model, plan, drop_missing, convention(decimal, thousands))
    made, said = objective(rows, model, plan)
    ends = _range(l2)
    with one_line(f"--plan {plan}: "):
        folds = plan_of(plan, rows, seed)
    columns = _places(made, split_names(categorical)) if each else []
    found, notes = _tune(made, columns, ends, folds, REFITS[refit], sampler, trials, metric, seed, checkpoint)
    console.print(f"{rows.name}: {len(rows.frame)} rows{f'; {rows.note}' if rows.note else ''}\n{found}", markup=False)
    for note in filter(None, (said, *notes)):
        console.print(note, markup=False)
    save(found.trials, out)
    picture(found.plot, plot)
    known = str(found.estimate).splitlines()
    page(found.estimate, report, [rows.note, said, *notes, *(line for line in str(found).splitlines() if line not in known)])


def _range(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not colon or not 0 < ends[0] < ends[1] < float("inf"):
        fail(f"--l2 {text}: give the least and the largest penalty, above zero, as 0.001:10000.")
    return ends


def _places(made: Any, categorical: list[str]) -> list[str]:
    """Name the penalty of each column of the design."""
    names = [(name, name.partition("=")[0]) for name in made.names[: made.num_features]]
    return [f"l2[{column if column in categorical else name}]" for name, column in names]


def _tune(
    made: Any, columns: list[str], ends: tuple[float, float], folds: lo.Plan, refit: lo.AbstractRefit, *how: Any
) -> tuple[lo.tuning.Tuning, list[str]]:
    """Tune, and return the result with the warnings as notes."""
    sampler, trials, metric, seed, checkpoint = how
    names = list(dict.fromkeys(columns)) or ["l2"]

    def build(**l2: Any) -> Any:
        return made.under(lo.penalties.Ridge([l2[name] for name in columns] if columns else l2["l2"]))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        space = dict.fromkeys(names, ends)
        more: Any = {"trials": trials, "metric": metric, "seed": seed, "checkpoint": checkpoint}
        found = lo.tune(build, space, folds, refit, sampler, **more)
    return found, list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))
