"""`leaveout tune` chooses the penalty of a regression of a file's rows, or one for each column, by
the held-out loss.
"""

from __future__ import annotations

from typing import Annotated, Any

import leaveout as lo

from ._console import console, fail, print_notes, warnings_as_notes
from ._data import Model, objective
from ._files import Reading, picture, save
from ._options import Data, FoldOptions, OptionsOf, Plot, Report, Table, command, option
from ._table import page

SEARCH = OptionsOf(
    lo.tune,
    sampler="How: {}.",
    num_trials=option("The most fits.", "--trials", least=1),
    metric="Choose by a measure of the held-out predictions instead: {}.",
)


@command(omit="l2 score mute metric json impute", refit="newton")
def tune(
    data: Data,
    model: Model,
    penalties: str = "0.001:10000",
    per_column: bool = False,
    *,
    search: Annotated[dict[str, Any], SEARCH],
    reading: Reading,
    fold_options: FoldOptions,
    out: Table = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Choose the ridge penalty of a regression by its held-out loss, or one penalty for each
    column.

    By default the search descends the exact gradient of the leave-one-out loss. It prints the
    penalties, their held-out loss with its errors, and the optimism of the choice.

    leaveout tune patients.csv --target ill --loss logistic --features age,dose --categorical city --each

    leaveout tune patients.csv --target cost --features age,dose --l2 0.1:1000 --sampler path --plot curve.png

    Parameters
    ----------
    penalties : --l2
        The least and the largest ridge penalty, LOW:HIGH.
    per_column : --each
        A penalty for each column; one for all levels of a category.
    """
    rows = model.read(data, reading)
    regression, remark = objective(rows, model)
    low, colon, high = penalties.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not colon or not 0 < ends[0] < ends[1] < float("inf"):
        fail(
            f"--l2 {penalties}: give the least and the largest penalty, above zero, as 0.001:10000."
        )
    folds = model.folds(rows, fold_options.seed)
    columns = []  # names of the penalties of the design's columns
    if per_column:
        names = [
            (name, name.partition("=")[0]) for name in regression.names[: regression.num_features]
        ]
        columns = [
            f"l2[{column if column in model.categories else name}]" for name, column in names
        ]

    def build(**l2: Any) -> Any:
        strength = [l2[name] for name in columns] if columns else l2["l2"]
        return regression.under(lo.penalties.Ridge(strength))

    space = dict.fromkeys(columns or ["l2"], ends)
    with warnings_as_notes() as notes:
        result = lo.tune(
            build,
            space,
            folds,
            strategy=fold_options.strategy,
            rng=fold_options.seed,
            checkpoint=fold_options.checkpoint,
            **search,
        )
    console.print(
        f"{rows.name}: {len(rows.frame)} rows{f'; {rows.note}' if rows.note else ''}\n{result}"
    )
    print_notes(remark, *notes)
    save(result.trials, out)
    picture(result.plot, plot)
    estimate_lines = str(result.estimate).splitlines()
    page(
        result.estimate,
        report,
        [
            rows.note,
            remark,
            *notes,
            *(line for line in str(result).splitlines() if line not in estimate_lines),
        ],
        fold_options.title,
    )
