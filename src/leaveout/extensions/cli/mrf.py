"""`leaveout mrf COUNTS.csv --edges EDGES.csv` cross-validates hidden Markov random fields over
states and couplings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np

import leaveout as lo

from ._cells import Convention
from ._console import console, fail, one_line
from ._files import picture, read, save
from ._options import (
    WHOLE,
    Data,
    Plot,
    Report,
    Table,
    command,
    drawable,
    input_file,
    option,
    output_file,
    plan_of,
    split_names,
    whole_number,
)
from ._states import CRITERIA, StateSearch, emission_of, fit_models
from ._table import LOSSES, Heading, comparison, first, page, show

pd = lo.developer.pd

PLANS = "loo, kfold:FOLDS, near:RADIUS or near:RADIUS+BUFFER"
EMISSIONS = "poisson", "negative-binomial", "gaussian", "categorical"
HEADINGS: dict[str, Heading] = {
    "states": ("K", "d"),
    "coupling": ("β", lambda row: f"{row.coupling:.3g}{'*' if row.learned else ''}"),
    **LOSSES,
    **CRITERIA,
}
COUNTS = "give numbers, symbols as 0, 1, 2, …"


@command(omit="score metric")
def mrf(
    counts: Data,
    edges: Annotated[
        Path, input_file("A CSV file with a header and two columns: the sites that are neighbours.")
    ],
    column: str | None = None,
    site: str | None = None,
    exposure: str | None = None,
    covariates: str | None = None,
    emission: Annotated[str, option(f"One of {', '.join(EMISSIONS)}.")] = "poisson",
    coupling: str = "free",
    drop: Literal["observation", "site"] = "site",
    plan: Annotated[str, option(f"What is left out: {PLANS}.")] = "loo",
    *,
    search: StateSearch,
    convention: Convention,
    out: Table = None,
    plot: Plot = None,
    report: Report = None,
    coordinates: str | None = None,
    chart: Annotated[
        Path | None,
        output_file("A file for a map of the best model (png, pdf, svg).", "--map", check=drawable),
    ] = None,
) -> None:
    """Cross-validate hidden Markov random fields over numbers of states and couplings.

    COUNTS has one row a site; empty cells are missing.

    The loss is the mean of −log p of each held-out site given all that is seen, in the whole graph;
    lower is better. Beside it stand its standard error over blocks of neighbours, the estimated
    error of the approximation, the paired difference from the lowest and its standard error, the
    loss with no update (too low), and AIC and BIC of the whole field.

    leaveout mrf counties.csv --edges borders.csv --site county --column deaths --exposure population --report report.html

    leaveout mrf counties.csv --edges borders.csv --site county --column deaths --states 1,2 --coupling 0.5,1 --plan kfold:5

    Parameters
    ----------
    column
        The column of the observations. Needed where there are several.
    site
        The column that names the sites as EDGES does; without it, rows from 0.
    exposure
        The column of the population at risk, for counts.
    covariates
        Columns, with commas between, of what else is known of the sites, for counts.
    coupling
        Couplings to compare, and free for one that is learned: 0.5,1,free.
    drop
        observation, or site: the site's state and edges too.
    coordinates
        Two columns, across and up, with a comma between, for --map.
    """
    couplings = []
    for part in coupling.replace(" ", "").split(","):
        try:
            couplings.append(
                ("free", lo.developer.models.Free()) if part == "free" else (part, float(part))
            )
        except ValueError:
            fail(
                f"--coupling {coupling}: give numbers with commas between them, and free for one that is learned: 0.5,1,free."
            )
    several = {
        f"{K} states, {text}": (K, value)
        for K in search.numbers
        if K > 1
        for text, value in couplings
    }
    # sites of one state have no coupling
    grid = {"1 state": (1, 0.0), **several} if 1 in search.numbers else several
    covariate_names = split_names(covariates)
    coordinate_names = split_names(coordinates)
    if (chart is None) != (coordinates is None) or (
        chart is not None and len(coordinate_names) != 2
    ):
        fail("--map FILE and --coordinates ACROSS,UP go together; name two columns.")
    rows = read(
        counts,
        {column, exposure, site, *covariate_names, *coordinate_names},
        lambda name: name == site,
        convention,
    )
    names = None if site is None else rows.names("--site", site).tolist()
    x = pd.Series(rows.numbers(rows.only(column), COUNTS), names, name=rows.only(column))
    people = None if exposure is None else rows.numbers(exposure, COUNTS)
    covariate_values = (
        np.stack([rows.numbers(name, COUNTS) for name in covariate_names], 1)
        if covariate_names
        else None
    )
    positions = (
        np.stack([rows.numbers(name, "give numbers") for name in coordinate_names], 1)
        if coordinate_names
        else None
    )
    pairs = _edges(edges, names)
    with one_line(f"--plan {plan}: "):
        n = len(x)
        folds = plan_of(
            plan,
            PLANS,
            "near:1+1",
            {
                "loo:?": lambda: lo.leave_one_out(n),
                f"kfold:{WHOLE}": lambda k: lo.kfold(n, whole_number(k), rng=search.seed),
                r"near:(\d+)(?:\+(\d+))?": lambda radius, buffer: lo.neighbourhoods(
                    pairs, int(radius), buffer=int(buffer or 0), num_sites=n
                ),
            },
        )
    count_options = [
        name
        for name, value in (("exposure", people), ("covariates", covariate_values))
        if value is not None
    ]
    if count_options and emission.lower().replace("_", "-") not in ("poisson", "negative-binomial"):
        fail(
            f"--{count_options[0]} is for --emission poisson and negative-binomial; got --emission {emission}."
        )
    counting = {
        "poisson": lambda: lo.emissions.Poisson(exposure=people, covariates=covariate_values),
        "negative-binomial": lambda: lo.emissions.NegativeBinomial(
            exposure=people, covariates=covariate_values
        ),
    }
    kind = emission_of(emission, x.to_numpy(), EMISSIONS, **counting)
    models = {
        name: lo.MRF(x, pairs, kind, K, coupling=value, drop=drop)
        for name, (K, value) in grid.items()
    }
    missing = int(x.isna().sum())
    description = f"{rows.name}, {x.name}: {len(x)} sites, {len(pairs)} edges" + (
        f", {missing} missing" if missing else ""
    )
    console.print(
        f"{description}; {type(kind).__name__} emissions; {plan}, {folds.num_refits} refits, {search.refit}\n"
    )
    outcome = fit_models(
        models,
        folds,
        search,
        lambda model, fit: {
            "states": model.num_states,
            "coupling": float(fit.parameters["coupling"]),
            "learned": model.learned,
        },
    )
    learned = "* learned" if outcome.table["learned"].any() else ""
    show(
        outcome.table,
        HEADINGS,
        [learned, *outcome.notes, rows.note, next(iter(models.values())).note],
    )
    save(outcome.table, out)
    comparison(outcome.estimates, plot, "model")
    best = str(first(outcome.table))
    picture(lambda: lo.plot.field(outcome.fits[best], positions, outcome.estimates[best]), chart)
    page(outcome.estimates, report, [description, *outcome.notes, rows.note], search.title)
    if outcome.failures:
        fail(f"{'; '.join(outcome.failures)} Leave these out of --states or --coupling.")


def _edges(file: Path, names: list[str] | None) -> np.ndarray:
    frame = read(file, as_text=lambda _: True).frame.astype(str)
    if frame.shape[1] != 2:
        fail(
            f"{file}: it must have two columns, the sites that are neighbours; it has {frame.shape[1]}."
        )
    if names is None:
        rows = frame.apply(pd.to_numeric, errors="coerce")
        if not (rows % 1 == 0).all(axis=None):
            fail(
                f"{file}: sites must be whole numbers, the rows from 0; it holds others. Names need --site COLUMN."
            )
    else:
        rows = frame.apply(pd.Index(names).get_indexer)
        if (rows < 0).any(axis=None):
            fail(
                f"{file}: sites must be names in the column of --site; it holds {frame[rows < 0].stack().iloc[0]!r}."
            )
    return rows.to_numpy(int)
