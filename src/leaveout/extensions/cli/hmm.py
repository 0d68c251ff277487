"""`leaveout hmm SERIES.csv` cross-validates hidden Markov models over the number of states."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

import leaveout as lo

from ._cells import Convention, is_numeric
from ._console import console, fail, join_notes, one_line
from ._files import FileTable, read, save
from ._options import (
    NUMBER,
    WHOLE,
    Data,
    Plot,
    Report,
    Table,
    command,
    option,
    plan_of,
    split_names,
    whole_number,
)
from ._states import CRITERIA, StateSearch, emission_of, fit_models
from ._table import LOSSES, Heading, comparison, page, show

pd = lo.developer.pd

PLANS = "contiguous:FRACTIONxFOLDS, iid:FRACTIONxFOLDS, blocks:SIZE, future:START, future:STARTxHORIZON, loo or sequences"
PLAN = "contiguous:0.1x100"
BETWEEN = "sequences"
EMISSIONS = (
    "gaussian",
    "poisson",
    "negative-binomial",
    "categorical",
    "binomial",
    "autoregressive",
)
HEADINGS: dict[str, Heading] = {"states": ("states", "d"), **LOSSES, **CRITERIA}
SYMBOLS = "give numbers, symbols as 0, 1, 2, …"


@command(omit="score metric", states="1-4", starts=10)
def hmm(
    series: Data,
    column: str | None = None,
    emission: Annotated[str, option(f"One of {', '.join(EMISSIONS)}.")] = "gaussian",
    sequence: str | None = None,
    time: str | None = None,
    plan: Annotated[
        str | None,
        option(
            f"What is left out: {PLANS}. {PLAN} by default; with --sequence, {BETWEEN}: each whole one."
        ),
    ] = None,
    order: int | None = None,
    trials: int | None = None,
    *,
    search: StateSearch,
    convention: Convention,
    out: Table = None,
    plot: Plot = None,
    report: Report = None,
) -> None:
    """Cross-validate hidden Markov models of a series over the number of states.

    SERIES has one row a step; empty cells are missing.

    The loss is the mean of −log p of each held-out step given all that is seen, or of each whole
    sequence; lower is better. Beside it stand its standard error, the estimated error of the
    approximation, the paired difference from the lowest and its standard error, the loss with no
    update (too low), and AIC and BIC of the whole series.

    leaveout hmm counts.csv --column count --emission poisson --states 1-3 --plan loo --report report.html

    leaveout hmm walks.csv --column speed,turn --sequence animal --states 2,3 --plot states.png

    Parameters
    ----------
    column
        The column, or several with commas between them. Needed where there are several.
    sequence
        A column that names the sequence of each row, where there are several, one after
        another.
    time
        A column that names the steps, such as by a date; the first of dates that rise if
        not given.
    order
        Lags, for autoregressive emissions; 1 by default.
    trials
        Number of trials, for binomial emissions.
    """
    state_counts = search.numbers
    used = [*split_names(column), *split_names(sequence), *split_names(time)]
    rows = read(series, used, split_names(sequence).__contains__, convention)
    lengths = _lengths(rows.column(sequence.strip())) if sequence else None
    rows, steps = _steps(rows, (column, sequence, time), lengths)
    table = rows if steps is None else replace(rows, frame=rows.frame.drop(columns=str(steps.name)))
    x = pd.DataFrame(
        {name: rows.numbers(name, SYMBOLS) for name in split_names(table.only(column))},
        index=steps,
    )
    for flag, value, owner in (
        ("--order", order, "autoregressive"),
        ("--trials", trials, "binomial"),
    ):
        if value is not None and emission.lower() != owner:
            fail(f"{flag} is for --emission {owner}; got --emission {emission}.")
    if emission.lower() == "binomial" and trials is None:
        fail("--emission binomial needs --trials, the number of trials that each count is out of.")
    kind = emission_of(
        emission,
        x.to_numpy(),
        EMISSIONS,
        binomial=lambda: lo.emissions.Binomial(trials or 0),
        autoregressive=lambda: lo.emissions.Autoregressive(
            1 if order is None else order, covariance="diagonal"
        ),
    )
    plan = plan or (BETWEEN if sequence else PLAN)
    leaves_sequences = plan.strip() == BETWEEN
    if leaves_sequences and lengths is None:
        fail(f"--plan {BETWEEN} needs --sequence, the column that names the sequence of each row.")
    with one_line(f"--plan {plan}: "):
        folds = (
            lo.leave_one_out(len(lengths))
            if leaves_sequences and lengths is not None
            else _plan(plan, len(x), search.seed)
        )
    models = {}
    for K in state_counts:
        with one_line(f"{_state_label(K)}: "):
            observations = x if x.shape[1] > 1 else x.iloc[:, 0]
            models[_state_label(K)] = lo.HMM(
                observations,
                kind,
                K,
                lengths=lengths,
                drop="sequence" if leaves_sequences else "observation",
            )
    missing = int(x.isna().any(axis=1).sum())
    description = f"{rows.name}, {', '.join(x.columns)}: {len(x)} steps" + (
        f", {missing} missing" if missing else ""
    )
    description += "" if steps is None else f", named by {steps.name}"
    description += "" if lengths is None else f", {len(lengths)} sequences"
    console.print(
        f"{description}; {type(kind).__name__} emissions; {plan}, {folds.num_refits} refits, {search.refit}\n"
    )
    outcome = fit_models(models, folds, search, lambda model, _: {"states": model.num_states})
    show(
        outcome.table,
        HEADINGS,
        [*outcome.notes, rows.note, _counts(emission, x), models[list(outcome.estimates)[-1]].note],
    )
    save(outcome.table, out)
    comparison(
        {str(models[name].num_states): estimate for name, estimate in outcome.estimates.items()},
        plot,
        "states",
    )
    page(outcome.estimates, report, [description, *outcome.notes, rows.note], search.title)
    if outcome.failures:
        fail(f"{'; '.join(outcome.failures)} Leave these out of --states.")


def _counts(emission: str, x: pd.DataFrame) -> str:
    """Warn if a density is fitted to counts."""
    values = x.to_numpy()[~x.isna().to_numpy()]
    if emission != "gaussian" or not np.all((values >= 0) & (values % 1 == 0)):
        return ""
    return f"{', '.join(x.columns)}: whole numbers from 0 on; --emission poisson or negative-binomial gives counts probabilities"


def _state_label(K: int) -> str:
    return f"{K} state{'s' if K > 1 else ''}"


def _steps(
    rows: FileTable, names: tuple[str | None, str | None, str | None], lengths: list[int] | None
) -> tuple[FileTable, pd.Index | None]:
    """Sort the rows by time, and name the steps.

    The names are those of the given column of times, by which rows are sorted in each sequence,
    else those of the first column of rising dates.
    """
    column, sequence, time = names
    sequence_index = np.repeat(np.arange(len(lengths or [0])), lengths or [len(rows.frame)])
    if time is None:
        candidates = [
            name
            for name in rows.frame.columns
            if name not in (*split_names(column), *split_names(sequence))
        ]
        dates = [times for name in candidates if (times := _dates(rows.frame[name])) is not None]
        rising = [times for times in dates if _rise(times, sequence_index)]
        if dates and not rising:
            name = dates[0].name
            remark = f"the dates of {name} do not rise: rows are taken in the order of the file; --time {name} sorts them"
            rows = replace(rows, note=join_notes(rows.note, remark))
        return rows, rising[0] if rising else None
    cells = rows.column(time.strip())
    if cells.isna().any():
        fail(
            f"--time {time}: it is empty in row {cells.index[cells.isna()][0]}; name every step, or leave --time out."
        )
    dates_of = _dates(cells)
    steps = pd.Index(cells) if dates_of is None else dates_of
    repeated = pd.MultiIndex.from_arrays([sequence_index, steps]).duplicated()
    if repeated.any():
        place = np.flatnonzero(repeated)[0]
        scope = "" if lengths is None else " of its sequence"
        fail(
            f"--time {time}: {str(steps[place])!r} in row {cells.index[place]} is the time of another row{scope} too."
        )
    if _rise(steps, sequence_index):
        return rows, steps
    if dates_of is None and not is_numeric(steps):
        remark = (
            f"{time} holds neither numbers nor dates as 2024-01-31: the order of the file is taken"
        )
        return replace(rows, note=join_notes(rows.note, remark)), steps
    order = np.lexsort([np.asarray(steps), sequence_index])
    note = join_notes(rows.note, f"rows sorted by {time}")
    return replace(rows, frame=rows.frame.iloc[order], note=note), steps[order]


def _rise(steps: pd.Index, sequence_index: np.ndarray) -> bool:
    """Tell whether times rise from row to row of each sequence."""
    return bool(
        (np.asarray(steps[1:] > steps[:-1]) | (sequence_index[1:] != sequence_index[:-1])).all()
    )


def _dates(column: pd.Series) -> pd.DatetimeIndex | None:
    """Read a column of dates in ISO 8601; None if it has anything else."""
    if is_numeric(column) or column.isna().any():
        return None
    try:
        return pd.DatetimeIndex(pd.to_datetime(column, format="ISO8601"), name=column.name)
    except (ValueError, TypeError):
        return None


def _lengths(names: pd.Series) -> list[int]:
    """Count the rows of each sequence, in the order of the file."""
    if names.isna().any():
        fail(
            f"column {names.name!r} is empty in row {names.index[names.isna()][0]}; name the sequence of every row."
        )
    starts = np.flatnonzero((names != names.shift()).to_numpy())
    repeated = names.iloc[starts].duplicated()
    if repeated.any():
        name = names.iloc[starts][repeated].iloc[0]
        row = names.index[starts[repeated]][0]
        fail(
            f"sequence {name!r} goes on in row {row} after another one; sort the rows, so that each stands together."
        )
    return np.diff([*starts, len(names)]).tolist()


def _plan(text: str, steps: int, seed: int) -> lo.Plan:
    return plan_of(
        text.lower(),
        PLANS,
        "contiguous:0.1x1000",
        {
            f"contiguous:{NUMBER}x{WHOLE}": lambda share, k: lo.contiguous(
                steps, float(share), whole_number(k), rng=seed
            ),
            f"iid:{NUMBER}x{WHOLE}": lambda share, k: lo.random_subsets(
                steps, float(share), whole_number(k), rng=seed
            ),
            f"blocks:{WHOLE}": lambda size: lo.blocks(steps, whole_number(size)),
            f"future:{WHOLE}(?:x{WHOLE})?": lambda start, horizon: lo.leave_future_out(
                steps, whole_number(start), whole_number(horizon or "1")
            ),
            "loo:?": lambda: lo.leave_one_out(steps),
        },
    )
