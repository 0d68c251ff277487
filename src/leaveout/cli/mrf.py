"""`leaveout mrf COUNTS.csv --edges EDGES.csv` cross-validates hidden Markov random fields over states and couplings."""

import itertools
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
from .hmm import _numbers, _picture, _read

PLANS = "loo, kfold:FOLDS, near:RADIUS or near:RADIUS+BUFFER"
EMISSIONS = ("poisson", "negative-binomial", "gaussian", "categorical")
HEADINGS = {  # column of the table: heading, format
    "states": ("K", "d"),
    "coupling": ("β", ".3g"),
    "mean": ("loss", ".4f"),
    "se": ("SE", ".4f"),
    "approximation": ("± refit", ".0e"),
    "difference": ("diff.", ".4f"),
    "se_difference": ("SE", ".4f"),
    "no_update": ("no upd.", ".4f"),
    "aic": ("AIC", ".1f"),
    "bic": ("BIC", ".1f"),
}


def mrf(
    counts: Annotated[Path, typer.Argument(help="A CSV file with a header, one row a site; empty cells are missing.")],
    edges: Annotated[Path, typer.Option(help="A CSV file with a header and two columns: the sites that are neighbours.")],
    column: Annotated[str | None, typer.Option(help="The column of the observations. Needed where there are several.")] = None,
    site: Annotated[
        str | None, typer.Option(help="The column that names the sites as EDGES does; without it, rows from 0.")
    ] = None,
    exposure: Annotated[str | None, typer.Option(help="The column of the population at risk, for Poisson counts.")] = None,
    emission: Annotated[str, typer.Option(help=f"One of {', '.join(EMISSIONS)}.")] = "poisson",
    states: Annotated[str, typer.Option(help="Numbers of states to compare: 2,3,4 or 2-4.")] = "2",
    coupling: Annotated[str, typer.Option(help="Couplings to compare, and free for one that is learned: 0.5,1,free.")] = "free",
    drop: Annotated[str, typer.Option(help="observation, or site: the site's state and edges too.")] = "site",
    plan: Annotated[str, typer.Option(help=f"What is left out: {PLANS}.")] = "loo",
    refit: Annotated[str, typer.Option(help=f"One of {', '.join(REFITS)}.")] = "certified",
    starts: Annotated[int, typer.Option(help="Starts of each fit.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the starts, and of random folds.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A file for a picture of the comparison (png, pdf, svg).")] = None,
) -> None:
    """Cross-validate hidden Markov random fields over numbers of states and couplings.

    The loss is the mean of −log p of each held-out site given all that is seen, in the whole graph: lower is better. Beside
    it: its standard error over blocks of neighbours, the estimated error of the approximation, the paired difference from
    the lowest and its standard error, the loss with no update (too low), and, of the whole field, AIC and BIC.
    """
    if refit not in REFITS:
        fail(f"--refit {refit}: it must be one of {', '.join(REFITS)}.")
    if starts < 1:
        fail(f"--starts {starts}: give 1 or more.")
    for file in (out, plot):
        if file is not None and not file.parent.is_dir():
            fail(f"{file}: there is no folder {file.parent}; make it first.")
    grid = list(itertools.product(_numbers(states), _couplings(coupling)))
    x = _read(counts, column).iloc[:, 0]
    people = None if exposure is None else _read(counts, exposure).iloc[:, 0].to_numpy()
    names = None if site is None else _names(counts, site)
    pairs = _edges(edges, names)
    models: dict[str, lo.MRF] = {}
    with one_line():
        folds = _plan(plan, len(x), pairs, seed)
        kind = _emission(emission, x.to_numpy(), people)
        for K, (text, value) in grid:
            models[f"{K} states, {text}"] = lo.MRF(x, pairs, kind, K, coupling=value, drop=drop)  # type: ignore[arg-type]
    missing = int(x.isna().sum())
    what = f"{counts.name}, {x.name}: {len(x)} sites, {len(pairs)} edges" + (f", {missing} missing" if missing else "")
    console.print(f"{what}; {type(kind).__name__} emissions; {plan}, {folds.num_refits} refits, {refit}\n", markup=False)
    fits, estimates, notes = _compared(models, folds, refit, starts, seed)
    table, more = _table(models, fits, estimates)
    _show(table, notes + more, next(iter(models.values())).note)
    if out is not None:
        table.to_csv(out, index=False)
        console.print(f"Table: {out}", markup=False)
    if plot is not None:
        _picture(estimates, plot, "model")
    if len(estimates) < len(models):
        fail("; ".join(f"{name} could not be fitted" for name in models if name not in estimates) + ": see above.")


def _couplings(text: str) -> list[tuple[str, "float | lo.Free"]]:
    found: list[tuple[str, float | lo.Free]] = []
    for part in text.replace(" ", "").split(","):
        try:
            found.append(("free", lo.Free()) if part == "free" else (part, float(part)))
        except ValueError:
            fail(f"--coupling {text}: give numbers with commas between them, and free for one that is learned: 0.5,1,free.")
    return found


def _names(file: Path, site: str) -> list[str]:
    frame = pd.read_csv(file, dtype=str)
    if site not in frame.columns:
        fail(f"{file} has no column {site!r}; it has {', '.join(map(str, frame.columns))}.")
    if frame[site].duplicated().any():
        fail(f"--site {site}: {frame[site][frame[site].duplicated()].iloc[0]!r} names two rows of {file}.")
    return frame[site].tolist()


def _edges(file: Path, names: list[str] | None) -> np.ndarray:
    if not file.is_file():
        fail(f"{file}: there is no such file; give the path of a CSV file with a header and two columns.")
    try:
        frame = pd.read_csv(file, dtype=str)
    except (ValueError, OSError) as error:  # of pandas' own, all are ValueErrors
        fail(f"{file}: it could not be read as CSV with a header ({error}).")
    if frame.shape[1] != 2:
        fail(f"{file}: it must have two columns, the sites that are neighbours; it has {frame.shape[1]}.")
    number = None if names is None else {name: row for row, name in enumerate(names)}
    try:
        rows = [[int(s) if number is None else number[s] for s in pair] for pair in frame.to_numpy()]
    except (KeyError, ValueError, TypeError) as error:
        way = "whole numbers, the rows from 0" if names is None else "names in the column of --site"
        fail(f"{file}: sites must be {way}; it holds {str(error).splitlines()[0]}. Names need --site COLUMN.")
    return np.array(rows, np.int64).reshape(-1, 2)


def _plan(text: str, sites: int, edges: np.ndarray, seed: int) -> lo.Plan:
    name, _, rest = text.strip().partition(":")
    values = rest.split("+") if rest else []
    if all(value.isdigit() for value in values):
        sizes = [int(value) for value in values]
        if name == "loo" and not sizes:
            return lo.leave_one_out(sites)
        if name == "kfold" and len(sizes) == 1:
            return lo.kfold(sites, sizes[0], seed=seed)
        if name == "near" and len(sizes) in (1, 2):
            return lo.neighbourhoods(edges, sizes[0], buffer=sum(sizes[1:]), num_sites=sites)
    return fail(f"--plan {text}: it must be {PLANS}, such as near:1+1.")


def _emission(name: str, x: np.ndarray, exposure: np.ndarray | None) -> Any:
    name = name.lower().replace("_", "-")
    if exposure is not None and name != "poisson":
        fail(f"--exposure is for --emission poisson; got --emission {name}.")
    largest = np.nanmax(x, initial=1)
    make: dict[str, Callable[[], Any]] = {
        "poisson": lambda: lo.emissions.Poisson(exposure=exposure),
        "negative-binomial": lo.emissions.NegativeBinomial,
        "gaussian": lo.emissions.Gaussian,
        "categorical": lambda: lo.emissions.Categorical(int(min(largest, 2**20)) + 1),
    }
    if name not in make:
        fail(f"--emission {name}: it must be one of {', '.join(EMISSIONS)}.")
    return make[name]()


def _compared(
    models: dict[str, lo.MRF], folds: lo.Plan, refit: str, starts: int, seed: int
) -> tuple[dict[str, lo.Fit], dict[str, lo.Estimate], list[str]]:
    """Fits, estimates, and what is to be said of them; a model that cannot be fitted is left out and named."""
    fits, estimates, notes = {}, {}, []
    for name, model in models.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                fits[name] = lo.fit(model, num_starts=starts, seed=seed)
                estimates[name] = lo.cross_validate(fits[name], folds, REFITS[refit])
            except (ValueError, TypeError, RuntimeError) as error:
                notes.append(f"{name}: {error}")
        if name in estimates and len(flagged := estimates[name].flagged()):
            way_out = "" if refit == "exact" else "; --refit exact is the way out"
            notes.append(f"{name}: {len(flagged)} of {folds.num_refits} refits are flagged, not to be trusted{way_out}.")
        notes += [f"{name}: {warning.message}" for warning in caught if issubclass(warning.category, UserWarning)]
    if not estimates:
        fail(notes[0])
    return fits, estimates, notes


def _table(
    models: dict[str, lo.MRF], fits: dict[str, lo.Fit], estimates: dict[str, lo.Estimate]
) -> tuple[pd.DataFrame, list[str]]:
    rows = pd.DataFrame(
        {
            "states": models[name].num_states,
            "coupling": float(fits[name].parameters["coupling"]),
            "learned": models[name].learned,
            "mean": estimate.mean,
            "se": estimate.se,
            "kind": estimate.standard_error.kind,
            "approximation": estimate.approximation_error,
            "no_update": estimate.summary().value["no update, mean"],
            "aic": models[name].aic(fits[name]),
            "bic": models[name].bic(fits[name]),
            "flagged": len(estimate.flagged()),
        }
        for name, estimate in estimates.items()
    )
    if len(estimates) < 2:
        return rows, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        paired = lo.compare(estimates)
    for name in ("mean", "se", "difference", "se_difference", "kind"):  # over the sites that all of them score
        rows[name] = paired.loc[list(estimates), name].to_numpy()
    return rows, [str(warning.message) for warning in caught]


def _show(rows: pd.DataFrame, notes: list[str], style: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [name for name in HEADINGS if name in rows]
    for name in shown:
        table.add_column(HEADINGS[name][0], justify="right", no_wrap=True)
    best = rows["mean"].idxmin()
    for at, row in rows.iterrows():
        cells = [format(row[name], HEADINGS[name][1]) if np.isfinite(row[name]) else "–" for name in shown]
        cells[1] += "*" if row["learned"] else ""
        table.add_row(*cells, style="bold" if at == best else None)
    console.print(table)
    if rows["learned"].any():
        console.print("* learned", markup=False)
    for kind in rows["kind"].unique():
        console.print(f"SE {kind}", markup=False)
    for note in dict.fromkeys(notes):
        console.print(note, markup=False)
    console.print(style, markup=False)
