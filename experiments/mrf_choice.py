"""How many states, and how strong a coupling? Chosen by cross-validation, by one fit and by exact
refits.

    LEAVEOUT_DATA=… python experiments/mrf_choice.py [st_louis philadelphia half year] [--states 3]
                                             [--couplings 0 0.25 0.5 1 learned] [--strategies IJ
                                             Certified Exact] [--seed 0] [--save]

    st_louis       homicides of 78 counties, 1988–93, per person-year; every county left out
    philadelphia
    violent crimes of 384 tracts in thirteen years, thirteen fields over one graph; 32 blocks of
    neighbouring
                   tracts left out in all years (three states would need tables of 3^15 entries,
                   thirteen times)
    half           the same in one half of the city, 192 tracts, one to three states
    year
    violent crimes of 2018 alone, Poisson as the first source document has it, all 384 tracts, 32
    blocks left
                   out; one and two states exactly, from three on by Bethe's approximation,
                   couplings held fixed

Style B. For every model: the mean held-out loss, its standard error over blocks of neighbours, and
the paired difference from the best with its own standard error; then the choice by IJ, by
`Certified` and by `Exact`, and by BIC beside them. Errors and differences are the last strategy's.
"""

import argparse
import itertools
import time
import warnings

import numpy as np
import pandas as pd
import saved

import leaveout as lo
from leaveout.plans.graph import blocks

COUPLINGS: dict[str, "float | lo.developer.models.Free"] = {
    "0": 0.0,
    "0.25": 0.25,
    "0.5": 0.5,
    "1": 1.0,
    "learned": lo.developer.models.Free(0.3),
}
REFITS: dict[str, lo.developer.AbstractRefit] = {
    "IJ": lo.InfinitesimalJackknife(),
    "Certified": lo.Certified(),
    "Exact": lo.Exact(),
}


def chosen(file: str, title: str, models: dict[str, lo.MRF], plan: lo.Plan, seed: int) -> None:
    """One table over the models, and what each strategy would choose."""
    estimates: dict[str, dict[str, lo.Estimate]] = {name: {} for name in REFITS}
    rows, seconds = [], dict.fromkeys(["fit", *REFITS], 0.0)
    for name, model in models.items():
        start = time.perf_counter()
        fit = lo.fit(model, num_starts=3 if model.num_states > 1 else 1, rng=seed)
        seconds["fit"] += time.perf_counter() - start
        row = {"model": name, "coupling": float(fit.parameters["coupling"]), "BIC": model.bic(fit)}
        for way, refit in REFITS.items():
            start = time.perf_counter()
            estimates[way][name] = lo.cross_validate(fit, plan, strategy=refit)
            seconds[way] += time.perf_counter() - start
            row[way] = estimates[way][name].mean
        rows.append(row)
    table = pd.DataFrame(rows).set_index("model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        paired = {way: lo.compare(found) for way, found in estimates.items()}
    last = list(REFITS)[-1]
    exact = paired[last].loc[table.index]
    table = table.assign(
        se=exact.se, difference=exact.difference, se_difference=exact.se_difference
    )
    print(f"\n{title}: {plan.num_refits} refits; SE {exact.kind.iloc[0]}")
    print(table.sort_values(last).to_string(float_format="{:.4g}".format))
    best = {way: found.index[0] for way, found in paired.items()} | {"BIC": table.BIC.idxmin()}
    told = {"chosen": best, "refits": plan.num_refits, "se": exact.kind.iloc[0], "took": seconds}
    saved.save(f"choice_{file}", table.sort_values(last).reset_index(), **told)
    print("chosen:", ", ".join(f"{way}: {name}" for way, name in best.items()))
    same = {
        way: bool((table[way].rank() == table[last].rank()).all()) for way in REFITS if way != last
    }
    print(
        f"the whole ranking as by {last}:",
        same,
        "; seconds:",
        {k: round(v, 1) for k, v in seconds.items()},
        flush=True,
    )


def grid(
    x: np.ndarray,
    edges: np.ndarray,
    emission: lo.emissions.AbstractEmission,
    states: range,
    exactly: int = 99,
) -> dict[str, lo.MRF]:
    """One state, and several with every coupling.

    Of more states than `exactly` by Bethe's sums, where none is learned.
    """
    make = lambda K, beta, how: lo.MRF(
        x, edges, emission, K, coupling=beta, drop="site", inference=how
    )
    models = {"1 state": make(1, 0.0, "exact")}
    for K, (text, beta) in itertools.product(states, COUPLINGS.items()):
        how, said = ("exact", "") if exactly >= K else ("bethe", " (Bethe)")
        if K > 1 and (how == "exact" or text != "learned"):
            models[f"{K} states, β {text}{said}"] = make(K, beta, how)
    return models


def st_louis(seed: int, most: int) -> None:
    areas, edges = lo.datasets.st_louis()
    emission = lo.emissions.Poisson(exposure=areas["PO8893"])
    models = grid(areas["HC8893"].to_numpy(float), edges, emission, range(1, most + 1))
    chosen("st_louis", "St. Louis", models, lo.leave_one_out(len(areas)), seed)


def years(
    edges: np.ndarray, keep: np.ndarray, states: range, count: int, file: str, title: str, seed: int
) -> None:
    table = lo.datasets.philadelphia().areas
    x = table[[f"violent_{year}" for year in range(2006, 2019)]].to_numpy(float).T[:, keep]
    number = {site: at for at, site in enumerate(keep)}
    own = np.array(
        [(number[s], number[t]) for s, t in edges.tolist() if s in number and t in number]
    )
    label = np.tile(blocks(own, len(keep), count), len(x))
    chosen(
        file, title, grid(x, own, lo.emissions.NegativeBinomial(), states), lo.groups(label), seed
    )


def philadelphia(seed: int, most: int) -> None:
    edges = lo.datasets.philadelphia().edges
    years(
        edges,
        np.arange(384),
        range(1, min(most, 2) + 1),
        32,
        "philadelphia",
        "Philadelphia, thirteen years",
        seed,
    )


def half(seed: int, most: int) -> None:
    edges = lo.datasets.philadelphia().edges
    years(
        edges,
        np.flatnonzero(blocks(edges, 384, 2) == 0),
        range(1, most + 1),
        24,
        "half",
        "one half of Philadelphia, thirteen years",
        seed,
    )


def year(seed: int, most: int) -> None:
    areas, edges = lo.datasets.philadelphia()
    models = grid(
        areas["violent_2018"].to_numpy(float),
        edges,
        lo.emissions.Poisson(),
        range(1, most + 1),
        exactly=2,
    )
    plan = lo.groups(blocks(np.asarray(edges), len(areas), 32))
    chosen("year", "Philadelphia, 2018", models, plan, seed)


DEMANDS = {"st_louis": st_louis, "philadelphia": philadelphia, "half": half, "year": year}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=f"of {', '.join(DEMANDS)}; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--states", type=int, default=3, help="at most; three make large tables, and take long"
    )
    parser.add_argument(
        "--couplings",
        nargs="*",
        default=list(COUPLINGS),
        choices=list(COUPLINGS),
        help="of several states",
    )
    parser.add_argument("--strategies", nargs="*", default=list(REFITS), choices=list(REFITS))
    saved.add_option(parser)
    given = parser.parse_args()
    for text in set(COUPLINGS) - set(given.couplings):
        del COUPLINGS[text]
    for way in set(REFITS) - set(given.strategies):
        del REFITS[way]
    pd.set_option("display.width", 250)
    for name in given.name or DEMANDS:
        DEMANDS[name](given.seed, given.states)
