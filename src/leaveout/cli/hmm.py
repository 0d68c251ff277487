"""`leaveout hmm SERIES.csv` cross-validates hidden Markov models over the number of states."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich import box
from rich.table import Table

import leaveout as lo

from ._console import REFITS, console, fail, one_line

PLANS = "contiguous:FRACTIONxFOLDS, iid:FRACTIONxFOLDS, blocks:SIZE, future:START, future:STARTxHORIZON or loo"
EMISSIONS = ("gaussian", "poisson", "negative-binomial", "categorical", "binomial", "autoregressive")
HEADINGS = {  # column of the table: heading, format
    "states": ("states", "d"),
    "mean": ("loss", ".4f"),
    "se": ("SE", ".4f"),
    "approximation": ("± refit", ".0e"),
    "difference": ("diff.", ".4f"),
    "se_difference": ("SE", ".4f"),
    "no_update": ("no upd.", ".4f"),
    "aic": ("AIC", ".1f"),
    "bic": ("BIC", ".1f"),
}


def hmm(
    series: Annotated[Path, typer.Argument(help="A CSV file with a header, one row a step; empty cells are missing.")],
    column: Annotated[
        str | None, typer.Option(help="The column, or several with commas between them. Needed where there are several.")
    ] = None,
    emission: Annotated[str, typer.Option(help=f"One of {', '.join(EMISSIONS)}.")] = "gaussian",
    states: Annotated[str, typer.Option(help="Numbers of states to compare: 2,3,4 or 2-4.")] = "1-4",
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "contiguous:0.1x100",
    refit: Annotated[str, typer.Option(help=f"One of {', '.join(REFITS)}.")] = "certified",
    order: Annotated[int | None, typer.Option(help="Lags, for autoregressive emissions; 1 by default.")] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials, for binomial emissions.")] = None,
    starts: Annotated[int, typer.Option(help="Starts of each fit.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the starts, and of random folds.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A file for a picture of the comparison (png, pdf, svg).")] = None,
) -> None:
    """Cross-validate hidden Markov models of a series over the number of states.

    The loss is the mean of −log p of each held-out step given all that is seen: lower is better. Beside it: its standard
    error, the estimated error of the approximation, the paired difference from the lowest and its standard error, the
    loss with no update (too low), and, of the whole series, AIC and BIC.
    """
    if refit not in REFITS:
        fail(f"--refit {refit}: it must be one of {', '.join(REFITS)}.")
    numbers = _numbers(states)
    x = _read(series, column)
    with one_line():
        kind = _emission(emission, x, order, trials)
        folds = _plan(plan, len(x), seed)
    for file in (out, plot):
        if file is not None and not file.parent.is_dir():
            fail(f"{file}: there is no folder {file.parent}; make it first.")
    if starts < 1:
        fail(f"--starts {starts}: give 1 or more.")
    models: dict[int, lo.HMM] = {}
    for K in numbers:
        with one_line(f"{_named(K)}: "):
            models[K] = lo.HMM(x if x.shape[1] > 1 else x.iloc[:, 0], kind, K)
    missing = int(x.isna().any(axis=1).sum())
    what = f"{series.name}, {', '.join(map(str, x.columns))}: {len(x)} steps" + (f", {missing} missing" if missing else "")
    console.print(f"{what}; {type(kind).__name__} emissions; {plan}, {folds.num_refits} refits, {refit}\n", markup=False)

    fits: dict[int, lo.Fit] = {}
    estimates: dict[int, lo.Estimate] = {}
    notes, failures = [], []
    for K in numbers:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                fits[K] = lo.fit(models[K], num_starts=starts, seed=seed)
                estimates[K] = lo.cross_validate(fits[K], folds, REFITS[refit])
            except (ValueError, TypeError, RuntimeError) as error:
                failures.append((K, str(error)))
        if K in estimates and len(flagged := estimates[K].flagged()):
            way_out = "" if refit == "exact" else "; --refit exact is the way out"
            notes.append(f"{_named(K)}: {len(flagged)} of {folds.num_refits} refits are flagged, not to be trusted{way_out}.")
        notes += [f"{_named(K)}: {warning.message}" for warning in caught if issubclass(warning.category, UserWarning)]
    if not estimates:
        fail(f"{_named(failures[0][0])}: {failures[0][1]}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = _table(models, fits, estimates)
    _show(table, notes + [str(warning.message) for warning in caught])
    console.print(models[max(estimates)].note, markup=False)
    if out is not None:
        table.to_csv(out, index=False)
        console.print(f"Table: {out}", markup=False)
    if plot is not None:
        _picture(estimates, plot)
    if failures:
        fail("; ".join(f"{_named(K)}: {message}" for K, message in failures) + " Leave these out of --states.")


def _named(K: int) -> str:
    return f"{K} state{'s' if K > 1 else ''}"


def _numbers(text: str) -> list[int]:
    span = re.fullmatch(r"(\d+)-(\d+)", text.strip())
    if span:
        numbers = list(range(int(span[1]), int(span[2]) + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text.replace(" ", "")):
        numbers = sorted({int(part) for part in text.split(",")})
    else:
        numbers = []
    if not numbers or min(numbers) < 1:
        fail(f"--states {text}: give numbers of states, 1 or more, such as 2,3,4 or 2-4.")
    return numbers


def _read(file: Path, column: str | None) -> pd.DataFrame:
    if not file.is_file():
        fail(f"{file}: there is no such file; give the path of a CSV file with a header.")
    try:
        frame = pd.read_csv(file)
    except (ValueError, OSError) as error:  # of pandas' own, all are ValueErrors
        fail(f"{file}: it could not be read as CSV with a header ({error}).")
    known = ", ".join(map(str, frame.columns))
    if column is None and frame.shape[1] > 1:
        fail(f"{file} has several columns: name one by --column; it has {known}.")
    names = [str(frame.columns[0])] if column is None else [name.strip() for name in column.split(",")]
    for name in names:
        if name not in frame.columns:
            fail(f"{file} has no column {name!r}; it has {known}.")
        number = pd.to_numeric(frame[name], errors="coerce")
        text = frame[name].notna() & number.isna()
        if text.any():
            row = int(np.flatnonzero(text)[0])
            fail(f"column {name!r} holds text: {str(frame[name][row])!r} in row {row + 1}; give numbers, symbols as 0, 1, 2, …")
        frame[name] = number.astype(float)
    if frame.empty:
        fail(f"{file} has a header and no rows.")
    return frame[names]


def _emission(name: str, x: pd.DataFrame, order: int | None, trials: int | None) -> Any:
    name = name.lower().replace("_", "-")
    for option, value, owner in (("--order", order, "autoregressive"), ("--trials", trials, "binomial")):
        if value is not None and name != owner:
            fail(f"{option} is for --emission {owner}; got --emission {name}.")
    if name == "binomial" and trials is None:
        fail("--emission binomial needs --trials, the number of trials that each count is out of.")
    largest = np.nanmax(x.to_numpy(), initial=1)
    make: dict[str, Callable[[], Any]] = {
        "gaussian": lo.emissions.Gaussian,
        "poisson": lo.emissions.Poisson,
        "negative-binomial": lo.emissions.NegativeBinomial,
        "categorical": lambda: lo.emissions.Categorical(int(min(largest, 2**20)) + 1),
        "binomial": lambda: lo.emissions.Binomial(trials),
        "autoregressive": lambda: lo.emissions.Autoregressive(1 if order is None else order, covariance="diagonal"),
    }
    if name not in make:
        fail(f"--emission {name}: it must be one of {', '.join(EMISSIONS)}.")
    return make[name]()


def _plan(text: str, steps: int, seed: int) -> lo.Plan:
    name, _, numbers = text.strip().partition(":")
    parts = numbers.lower().split("x")
    try:
        values = [float(part) for part in parts if part]
    except ValueError:
        values = [np.nan]
    whole = [int(value) for value in values if value == np.floor(value)]
    if name in ("contiguous", "iid") and len(values) == 2 and whole[-1:] == values[-1:]:
        scheme = lo.contiguous if name == "contiguous" else lo.random_subsets
        return scheme(steps, values[0], int(values[1]), seed=seed)
    if name == "blocks" and len(values) == 1 and whole:
        return lo.blocks(steps, whole[0])
    if name == "future" and len(values) in (1, 2) and len(whole) == len(values):
        return lo.leave_future_out(steps, whole[0], *(whole[1:] or [1]))
    if name == "loo" and not values:
        return lo.leave_one_out(steps)
    return fail(f"--plan {text}: it must be {PLANS}, such as contiguous:0.1x1000.")


def _table(models: dict[int, lo.HMM], fits: dict[int, lo.Fit], estimates: dict[int, lo.Estimate]) -> pd.DataFrame:
    rows = pd.DataFrame(
        {
            "states": K,
            "mean": estimate.mean,
            "se": estimate.se,
            "kind": estimate.standard_error.kind,
            "approximation": estimate.approximation_error,
            "no_update": estimate.summary().value["no update, mean"],
            "aic": models[K].aic(fits[K]),
            "bic": models[K].bic(fits[K]),
            "flagged": len(estimate.flagged()),
        }
        for K, estimate in estimates.items()
    )
    if len(estimates) < 2:
        return rows
    paired = lo.compare({str(K): estimate for K, estimate in estimates.items()})
    for name in ("mean", "se", "difference", "se_difference", "kind"):  # over the units that all of them score
        rows[name] = paired.loc[[str(K) for K in estimates], name].to_numpy()
    return rows


def _show(rows: pd.DataFrame, notes: list[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [name for name in HEADINGS if name in rows]
    for name in shown:
        table.add_column(HEADINGS[name][0], justify="right", no_wrap=True)
    best = rows["mean"].idxmin()
    for at, row in rows.iterrows():
        cells = [format(row[name], HEADINGS[name][1]) if np.isfinite(row[name]) else "–" for name in shown]
        table.add_row(*cells, style="bold" if at == best else None)
    console.print(table)
    for kind, group in rows.groupby("kind", sort=False):
        of = "" if len(group) == len(rows) else f" with {', '.join(map(str, group['states']))}"
        console.print(f"SE{of} {kind}", markup=False)
    for note in dict.fromkeys(notes):
        console.print(note, markup=False)


def _picture(estimates: dict[Any, lo.Estimate], file: Path, what: str = "states") -> None:
    if len(estimates) < 2:
        console.print("No picture: it compares two or more models.")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said already
        try:
            axes = lo.plot.comparison(estimates)
        except ImportError as error:
            fail(f"no picture: {error}")
    axes.set_xlabel(what)
    figure = axes.get_figure(root=True)
    assert figure is not None
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:
        fail(f"{file}: {error}")
    console.print(f"Picture: {file}", markup=False)
