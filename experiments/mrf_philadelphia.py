"""The first source document's figure 3: crime in Philadelphia, a loopy Markov random field, every
tract left out.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), section 5 and appendix
L.3. 384 census tracts, 1,153 pairs that touch, two states with Poisson counts (D = 2), maximum
likelihood; style B: a tract that is left out loses its observation, its state and its edges. The
paper counts every edge twice: its β is half of the four values here.

    LEAVEOUT_DATA=… python experiments/mrf_philadelphia.py [--column violent_2018] [--refits 24]
    [--beta 0.5 1] [--out out]
                                                           [--save]

`refits` folds a value of β are refitted from scratch, by SciPy's BFGS from the centres of the low
and the high half of the counts: that is what errors are measured against, and what `Exact` is
checked against; all others are against `Exact`.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from scipy.sparse.csgraph import shortest_path
from sklearn.manifold import MDS

import leaveout as lo

STRATEGIES = {
    "no update": lo.NoUpdate(),
    "IJ": lo.InfinitesimalJackknife(),
    "Certified": lo.Certified(),
    "Certified(0.001)": lo.Certified(rtol=0.001),
    "Exact": lo.Exact(),
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


def picture(
    areas: lo.datasets.Areas, counts: np.ndarray, found: dict, seconds: pd.DataFrame, file: Path
) -> None:
    place = layout(areas.edges, len(counts))
    figure = plt.figure(figsize=(13, 10), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    middle = list(found)[1]
    panels = top.subplots(1, 3, width_ratios=[1, 1, 0.9])
    for ax, colours, title, kind in (
        (panels[0], np.sqrt(counts), "violent crimes of 2018 (root scale)", "viridis"),
        (
            panels[1],
            found[middle]["high"],
            f"probability of the high state, β = {middle:g}",
            "coolwarm",
        ),
    ):
        ax.add_collection(
            LineCollection(list(place[areas.edges]), colors="0.8", linewidths=0.5, zorder=0)
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
    ax.set(yscale="log", ylabel="seconds, 384 tracts × all β", title="time of all held-out losses")
    ax.tick_params(axis="x", rotation=30)
    axes = bottom.subplots(1, len(found), squeeze=False)[0]
    for ax, (beta, one) in zip(axes, found.items(), strict=True):
        exact = one["Exact"].losses
        for name, marker, colour in (("IJ", "o", "tab:red"), ("Certified", "x", "tab:blue")):
            ax.scatter(
                exact,
                one[name].losses,
                s=12,
                marker=marker,
                color=colour,
                alpha=0.6,
                linewidths=0.7,
                label=name,
            )
        ax.axline((exact.min(), exact.min()), slope=1, color="0.4", linewidth=0.7, linestyle="--")
        ax.set(
            title=f"β = {beta:g}", xlabel="held-out loss, exact refit", xscale="log", yscale="log"
        )
    axes[0].set(ylabel="held-out loss, approximate")
    axes[0].legend(frameon=False)
    saved.picture(figure, "philadelphia", dpi=80)
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--column", default="violent_2018")
    parser.add_argument("--refits", type=int, default=24)
    parser.add_argument("--beta", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0])
    saved.add_option(parser)
    given = parser.parse_args()
    areas = lo.datasets.philadelphia()
    counts = areas.areas[given.column].to_numpy()
    plan, found, fits, times, errors = lo.leave_one_out(len(counts)), {}, [], [], []
    tracts = np.random.default_rng(0).choice(
        len(counts), min(given.refits, len(counts)), replace=False
    )
    for beta in given.beta:
        field = lo.MRF(
            counts, areas.edges, lo.emissions.Poisson(), 2, coupling=beta, drop="site", prior=None
        )
        seconds, fit = timed(lambda field=field: lo.fit(field))
        high = field.state_probabilities(fit)[:, 1]
        fits.append(
            {
                "β": beta,
                "seconds": seconds,
                "decrement": float(fit.decrement),
                "low": fit.parameters["rate"][0],
            }
        )
        fits[-1] |= {
            "high": fit.parameters["rate"][1],
            "tracts high": high.sum(),
            "log p(x)": field.log_likelihood(fit),
        }
        one, row = {}, {"β": beta, "fit": seconds}
        for name, refit in STRATEGIES.items():
            row[name], one[name] = timed(
                lambda fit=fit, refit=refit: lo.cross_validate(fit, plan, strategy=refit)
            )
        scratch, losses = refits(field, tracts)
        row["from scratch"] = scratch * len(counts) / len(tracts)
        exact = one["Exact"].losses
        for name, estimate in one.items():
            off = np.abs(estimate.losses - exact) / np.abs(exact)
            true = np.abs(estimate.losses[tracts] - losses) / np.abs(losses)
            line = {"β": beta, "refit": name, "mean loss": estimate.mean, "se": estimate.se}
            line |= {
                "mean relative error": off.mean(),
                "largest": off.max(),
                "against scratch, mean": true.mean(),
            }
            line |= {
                "reported error ≥ true": np.mean(
                    np.abs(estimate.losses - exact) <= estimate.error + 1e-9
                )
            }
            errors.append(line)
        found[beta] = {**one, "high": high}
        times.append(row)
    show(
        f"fits: {given.column}, {len(counts)} tracts, width {field.tree.width}, the first compiles",
        fits,
    )
    show(
        f"seconds; from scratch: {len(tracts)} folds, scaled to {len(counts)}; the first β compiles",
        times,
    )
    show("errors of held-out losses, relative to Exact and to refits from scratch", errors)
    saved.save(
        "philadelphia", errors, fits=fits, took=times, scratch=len(tracts), width=field.tree.width
    )
    table = pd.DataFrame(times).drop(columns="β")
    whole = table.sum()
    print(
        f"\nall values of β, seconds: {whole.round(1).to_dict()}; fit and IJ {whole['fit'] + whole['IJ']:.1f}"
    )
    wide = pd.DataFrame(errors).pivot_table(
        index="β", columns="refit", values="mean relative error"
    )
    for name in ("Certified", "Certified(0.001)"):
        print(
            f"error of IJ over that of {name}, by β: {(wide['IJ'] / wide[name]).round(1).to_dict()}"
        )
    given.out.mkdir(parents=True, exist_ok=True)
    picture(
        areas,
        counts,
        found,
        table.drop(columns=["fit", "no update", "Certified(0.001)"]).sum(),
        given.out / "philadelphia.png",
    )


if __name__ == "__main__":
    main()
