"""The first source document's figure 3: crime in Philadelphia, a loopy Markov random field, every
tract left out.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 5 and appendix
L.3. 384 census tracts, 1,153 pairs that touch, two states with Poisson counts (D = 2), maximum
likelihood; style B: a tract that is left out loses its observation, its state and its edges. The
paper counts every edge twice: its β is half of the four values here.

    LEAVEOUT_DATA=… python experiments/mrf_philadelphia.py [year month toy] [--refits 384]
    [--beta 0.25 0.5 1 2] [--out out] [--save] [--quick]

    year    violent crimes of 2018
    month   the year's thinned: each crime is kept with probability 1/12, as monthly counts are not
            to be had
    toy     the settings of the authors' public example, counts of mean 28 or 83 in 21 places, on 21
            tracts that are neighbours

`refits` folds a value of β are refitted from scratch, by SciPy's BFGS from the centres of the low
and the high half of the counts: that is what errors are measured against, and what `Exact` is
checked against; all others are against `Exact`.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
import scipy.optimize
from jax.flatten_util import ravel_pytree
from matplotlib.collections import LineCollection
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, shortest_path
from sklearn.manifold import MDS

import leaveout as lo

STRATEGIES = {
    "no update": lo.NoUpdate(),
    "IJ": lo.InfinitesimalJackknife(),
    "Certified": lo.Certified(),
    "Exact": lo.Exact(),
}
WARM: set[tuple[str, int]] = set()  # strategies whose programs this process has compiled


class Field(NamedTuple):
    """Counts of places, and which of these touch."""

    title: str
    counts: np.ndarray
    edges: np.ndarray


def fields() -> dict[str, Field]:
    areas = lo.datasets.philadelphia()
    edges, year = np.asarray(areas.edges), areas.areas["violent_2018"].to_numpy()
    month = np.random.default_rng(0).binomial(year, 1 / 12)
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(len(year), len(year)))
    patch = breadth_first_order(graph.tocsr(), 0, directed=False, return_predecessors=False)[:21]
    among = edges[np.isin(edges, patch).all(axis=1)]
    number = {tract: k for k, tract in enumerate(patch.tolist())}
    rng = np.random.RandomState(0)
    high = rng.binomial(1, 0.5, len(patch))
    toy = np.array([rng.poisson(83 if state else 28) for state in high])
    return {
        "year": Field("violent crimes of 2018", year, edges),
        "month": Field("violent crimes of a month, thinned", month, edges),
        "toy": Field(
            "simulated counts", toy, np.array([(number[s], number[t]) for s, t in among.tolist()])
        ),
    }


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def show(title: str, rows: list[dict]) -> None:
    print(
        f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, na_rep='', float_format='{:.3g}'.format)}",
        flush=True,
    )


def refits(field: lo.MRF, tracts: np.ndarray) -> tuple[float, np.ndarray]:
    """Seconds and held-out losses of refits from scratch: compiled F, SciPy's BFGS.

    Compiling is not counted.
    """
    x = np.sort(field.x[0, :, 0])
    start = field.parameters.unconstrained(
        {"rate": [x[: len(x) // 2].mean(), x[len(x) // 2 :].mean()]}
    )
    with jax.enable_x64(True):
        first, unravel = ravel_pytree(jax.tree.map(jnp.asarray, start))
        both = jax.jit(jax.value_and_grad(lambda v, w: field.loss(unravel(v), w)))
        score = jax.jit(lambda v, w, t: field.score(unravel(v), w, t[None], jnp.ones(1))[0])
        ones, eye, losses = np.ones(field.num_units), np.eye(field.num_units), []
        jax.block_until_ready((both(first, ones), score(first, ones, jnp.asarray(0))))
        begun = time.perf_counter()
        for t in tracts:
            w = ones - eye[t]
            found = scipy.optimize.minimize(
                lambda v, w=w: [np.asarray(part) for part in both(v, w)],
                np.asarray(first),
                jac=True,
                method="BFGS",
                options={"gtol": 1e-8},
            )
            losses.append(float(score(jnp.asarray(found.x), w, jnp.asarray(t))))
    return time.perf_counter() - begun, np.array(losses)


def layout(edges: np.ndarray, sites: int) -> np.ndarray:
    """Places in the plane whose distances are like the numbers of edges between the tracts."""
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(sites, sites))
    far = shortest_path(graph, directed=False, unweighted=True)
    return MDS(
        2, metric="precomputed", n_init=1, init="classical_mds", random_state=0, max_iter=300
    ).fit_transform(far)


def picture(name: str, field: Field, found: dict, seconds: pd.Series, out: Path) -> None:
    place = layout(field.edges, len(field.counts))
    figure = plt.figure(figsize=(13, 10), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    middle = list(found)[1]
    panels = top.subplots(1, 3, width_ratios=[1, 1, 0.9])
    for ax, colours, title, kind in (
        (panels[0], np.sqrt(field.counts), f"{field.title} (root scale)", "viridis"),
        (
            panels[1],
            found[middle]["high"],
            f"probability of the high state, β = {middle:g}",
            "coolwarm",
        ),
    ):
        ax.add_collection(
            LineCollection(list(place[field.edges]), colors="0.8", linewidths=0.5, zorder=0)
        )
        dots = ax.scatter(*place.T, c=colours, s=16, cmap=kind, linewidths=0)
        top.colorbar(dots, ax=ax, shrink=0.6)
        ax.set(title=title, aspect="equal", xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    ax = panels[2]
    ax.bar(
        seconds.index,
        seconds,
        color=["tab:red" if "scratch" in name else "tab:blue" for name in seconds.index],
    )
    ax.set(
        yscale="log",
        ylabel=f"seconds, {len(field.counts)} tracts × all β",
        title="time of all held-out losses",
    )
    ax.tick_params(axis="x", rotation=30)
    axes = bottom.subplots(1, len(found), squeeze=False)[0]
    for ax, (beta, one) in zip(axes, found.items(), strict=True):
        exact = one["losses"]["Exact"]
        for way, marker, colour in (("IJ", "o", "tab:red"), ("Certified", "x", "tab:blue")):
            ax.scatter(
                exact,
                one["losses"][way],
                s=12,
                marker=marker,
                color=colour,
                alpha=0.6,
                linewidths=0.7,
                label=way,
            )
        ax.axline((exact.min(), exact.min()), slope=1, color="0.4", linewidth=0.7, linestyle="--")
        ax.set(
            title=f"β = {beta:g}", xlabel="held-out loss, exact refit", xscale="log", yscale="log"
        )
        ax.xaxis.set_minor_formatter("")
    axes[0].set(ylabel="held-out loss, approximate")
    axes[0].legend(frameon=False)
    saved.picture(figure, name, dpi=80)
    figure.savefig(out / f"{name}.png", dpi=130)


def one_coupling(field: Field, beta: float, tracts: np.ndarray) -> dict[str, Any]:
    """Losses of every tract by every strategy, of some by refits from scratch, and seconds."""
    model = lo.MRF(
        field.counts,
        field.edges,
        lo.emissions.Poisson(),
        2,
        coupling=beta,
        drop="site",
        prior=None,
    )
    size = len(field.counts)
    plan = lo.leave_one_out(size)
    seconds, fit = timed(lambda: lo.fit(model))
    high = model.state_probabilities(fit)[:, 1]
    low_rate, high_rate = fit.parameters["rate"]
    row = {"β": beta, "seconds": seconds, "decrement": float(fit.decrement), "low": low_rate}
    row |= {"high": high_rate, "tracts high": high.sum(), "log p(x)": model.log_likelihood(fit)}
    times, losses, errors = {"β": beta, "fit": seconds}, {}, {}
    for name, refit in STRATEGIES.items():
        run = lambda refit=refit: lo.cross_validate(fit, plan, strategy=refit)
        if (name, size) not in WARM:
            run()
            WARM.add((name, size))
        times[name], estimate = timed(run)
        losses[name], errors[name] = np.array(estimate.losses), np.array(estimate.error)
    scratch, losses["from scratch"] = refits(model, tracts)
    times["from scratch"] = scratch * size / len(tracts)
    return {"fit": row, "times": times, "losses": losses, "errors": errors, "high": high} | {
        "width": model.tree.width
    }


def measured(beta: float, one: dict[str, Any], tracts: np.ndarray) -> list[dict[str, Any]]:
    """A row of the table for every strategy."""
    exact, scratch, rows = one["losses"]["Exact"], one["losses"]["from scratch"], []
    for name in STRATEGIES:
        losses = one["losses"][name]
        apart = np.abs(losses - exact)
        true = np.abs(losses[tracts] - scratch) / np.abs(scratch)
        row = {"β": beta, "refit": name, "mean loss": losses.mean()}
        row |= {"se": losses.std(ddof=1) / np.sqrt(len(losses))}
        row |= {"mean relative error": np.mean(apart / np.abs(exact))}
        row |= {"largest": np.max(apart / np.abs(exact)), "against scratch, mean": true.mean()}
        row |= {"against scratch, largest": true.max()}
        rows.append(row | {"reported error ≥ true": np.mean(apart <= one["errors"][name] + 1e-9)})
    return rows


def study(name: str, field: Field, given: argparse.Namespace) -> None:
    table, size = "philadelphia" if name == "year" else f"philadelphia_{name}", len(field.counts)
    tracts = np.random.default_rng(0).choice(size, min(given.refits, size), replace=False)
    found, rows = {}, []
    for beta in given.beta:
        found[beta] = saved.part(
            table,
            f"β {beta:g}, {len(tracts)} refits",
            lambda beta=beta: one_coupling(field, beta, tracts),
        )
        rows += measured(beta, found[beta], tracts)
        show(f"{field.title}, β = {beta:g}", rows[-len(STRATEGIES) :])
    fits, times = ([one[key] for one in found.values()] for key in ("fit", "times"))
    width = found[given.beta[0]]["width"]
    show(f"fits: {field.title}, {size} tracts, width {width}", fits)
    show(f"seconds; from scratch: {len(tracts)} folds, scaled to {size}", times)
    show("errors of held-out losses, relative to Exact and to refits from scratch", rows)
    losses = {beta: one["losses"] for beta, one in found.items()}
    seconds = pd.DataFrame(times).drop(columns="β").sum()
    saved.save(
        table,
        rows,
        fits=fits,
        took=times,
        all_couplings=seconds.to_dict(),
        scratch=len(tracts),
        width=width,
        counts=field.counts,
        tracts=tracts,
        losses=losses,
    )
    print(f"\nall values of β, seconds: {seconds.round(1).to_dict()}")
    if name != "toy":
        given.out.mkdir(parents=True, exist_ok=True)
        picture(table, field, found, seconds.drop(["fit", "no update"]), given.out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help="year, month or toy; all by default")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--refits", type=int, default=384)
    parser.add_argument("--beta", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0])
    parser.add_argument("--quick", action="store_true", help="two refits, two values of β")
    saved.add_option(parser)
    given = parser.parse_args()
    if given.quick:
        given.refits, given.beta = 2, [0.5, 1.0]
    every = fields()
    for name in given.name or every:
        study(name, every[name], given)


if __name__ == "__main__":
    main()
