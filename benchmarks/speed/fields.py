"""Markov random fields: all marginals, the first answer, growth, and a race against the obvious
program.

    LEAVEOUT_DATA=… python benchmarks/speed/fields.py [marginals cold grid obvious growth wide]
    [--quick] [--out out]

marginals   log Z and all marginals, as NumPy alone and out of a compiled program
cold        from the import to all marginals, in fresh processes
grid        a square grid, exactly, checked against transfer matrices
obvious
H, J and all marginals against elimination with Python factors and autograd through it
(`obvious.py`) growth      seconds by the width and by the number of sites
wide        three and four states on the whole city, exactly and by both approximations

The graph is that of the 384 tracts of Philadelphia where the data are there, else a triangulation
of 384 random points. Times are in seconds, medians of repeats after one to warm up; a title says
what was timed once. What intervals of fields cover is in `benchmarks/intervals.py`.
"""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from common import fresh_process, grid, main, memory_growth, once, race, show
from scipy.spatial import Delaunay

import leaveout as lo
from leaveout.inference import clique
from leaveout.inference.elimination import best_scopes, neighbours

COLD = """
import time; times = [time.perf_counter()]
tick = lambda: times.append(time.perf_counter())
import leaveout as lo; tick()
import fields, numpy as np, json
x, edges = fields.city(); tick()
field = lo.MRF(x, edges, lo.emissions.Poisson(), 2, coupling=0.5, drop="site"); tick()
field.state_probabilities({"rate": [30.0, 150.0]}); tick()
fit = lo.fit(field); tick()
names = "importing", "data, and this file", "lo.MRF", "all marginals", "lo.fit"
print(json.dumps({"to all marginals": times[4] - times[0], **dict(zip(names, np.diff(times)))}))
"""


def city() -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges."""
    try:
        found = lo.datasets.philadelphia()
        return found.areas["violent_2018"].to_numpy(float), found.edges
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        corners = Delaunay(rng.random((384, 2))).simplices
        pairs = np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]])
        return rng.poisson(rng.gamma(1.0, 100.0, 384)).astype(float), np.unique(
            np.sort(pairs, 1), axis=0
        )


def potentials(sites: int, edges: np.ndarray, lanes: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(lanes, sites, 2)), np.tile(0.5 * np.eye(2), (lanes, len(edges), 1, 1))


def marginals(quick: bool, out: Path) -> None:
    """log Z and all marginals of sites and edges, warm.

    As NumPy alone, and out of a compiled program; one and 16 at once.
    """
    x, edges = city()
    tree, rows = clique.tree(len(x), edges, 2), []
    compiled = eqx.filter_jit(lambda s, e: clique._sums(s, e, tree, 2))
    with jax.enable_x64(True):
        for lanes in (1, 4, 16):
            s, e = potentials(len(x), edges, lanes)
            moving = iter(range(10**6))  # potentials that were seen a moment ago are remembered

            def numpy(s=s, e=e, moving=moving):
                return clique._sums_by_passes(s + 1e-9 * next(moving), e, tree=tree, level=2)

            def jitted(s=s, e=e, moving=moving):
                return jax.block_until_ready(compiled(s + 1e-9 * next(moving), e))

            def gradient(s=s, e=e, moving=moving):
                return clique._sums_by_passes(s + 1e-9 * next(moving), e, tree=tree, level=1)

            found = race(5 if quick else 21, numpy=numpy, compiled=jitted, sites=gradient)
            rows.append(
                {
                    "fields": lanes,
                    **{f"{k}, a field": v / lanes for k, v in found.items()},
                    "target": 0.05 if lanes == 1 else 0.008,
                }
            )
    show(
        f"marginals: {len(x)} sites, {len(edges)} edges, width {tree.width}, {tree.entries:,} entries in all tables",
        rows,
    )


def cold(quick: bool, out: Path) -> None:
    """From the import to all marginals, in fresh processes."""
    rows = [fresh_process(COLD) for _ in range(1 if quick else 3)]
    show("cold: a fresh process, seconds; target 5 to all marginals", rows)


def twenty(quick: bool, out: Path) -> None:
    """A square grid, exactly: the width is its side."""
    rows = []
    for side in (8, 12) if quick else (12, 16, 18, 20):
        edges = grid(side, side)
        planned, tree = once(lambda side=side, edges=edges: clique.tree(side**2, edges, 2))
        s, e = potentials(side**2, edges)
        summed, _ = once(
            lambda s=s, e=e, tree=tree: clique._sums_by_passes(s, e, tree=tree, level=0)[0]
        )
        seconds, (total, *_) = once(
            lambda s=s, e=e, tree=tree: clique._sums_by_passes(s + 0.0, e, tree=tree, level=2)
        )
        rows.append(
            {
                "side": side,
                "width": tree.width,
                "entries": tree.entries,
                "plan": planned,
                "log Z": summed,
            }
        )
        rows[-1] |= {
            "and all marginals": seconds,
            "transfer matrices off by": abs(total[0] - transfer(s[0], side)),
            "log Z is": total[0],
        }
        clique.passes.cache_clear()
    show("grid: two states, once, seconds", rows)


def transfer(sites: np.ndarray, side: int, beta: float = 0.5) -> float:
    """log Z of a square grid by a sum over the states of one row at a time, site by site.

    A program of its own.
    """
    total = np.zeros((2,) * side)
    for row in range(side):
        for column in range(side):
            stay = np.moveaxis(total, column, 0)
            if row:
                stay = np.stack([np.logaddexp(stay[k] + beta, stay[1 - k]) for k in (0, 1)])
            stay = stay + sites[row * side + column].reshape(2, *[1] * (side - 1))
            total = np.moveaxis(stay, 0, column)
        agree = sum(
            np.equal.outer(np.arange(2), np.arange(2)).reshape(
                [2 if axis in (c, c + 1) else 1 for axis in range(side)]
            )
            for c in range(side - 1)
        )
        total = total + beta * agree
    return float(np.logaddexp.reduce(total.ravel()))


def obvious(quick: bool, out: Path) -> None:
    """H, all of J and all marginals, against elimination with Python factors and autograd through
    it, in the same order.
    """
    import obvious as slow_program

    x, edges = city()
    keep = np.arange(60 if quick else len(x))
    edges = edges[np.isin(edges, keep).all(1)]
    x, ones = x[keep], np.ones(len(keep))
    field = lo.MRF(x, edges, lo.emissions.Poisson(prior=None), 2, coupling=0.5, drop="site")
    fit = lo.fit(field)
    theta, order = fit.theta["rate"], list(best_scopes(neighbours(len(x), edges), 2))
    loss = slow_program.field_objective(x, edges, 0.5, order)
    with jax.enable_x64(True):
        hessian = eqx.filter_jit(lambda field, theta, w: field.hessian(theta, w))

        value_of = eqx.filter_jit(lambda field, theta, w: field.loss(theta, w))

        @eqx.filter_jit
        def both(field, theta, w):
            cross = jax.jacfwd(lambda v: jax.grad(lambda w: field.loss({"rate": v}, w))(w))(
                theta["rate"]
            )
            return field.hessian(theta, w), cross.T

        states = lambda: field.state_probabilities(fit)
        moving = iter(range(10**6))
        shaken = lambda: {"rate": jnp.asarray(theta) + 1e-9 * next(moving)}
        ours = race(
            3 if quick else 11,
            loss=lambda: np.asarray(value_of(field, shaken(), ones)),
            H=lambda: np.asarray(hessian(field, shaken(), ones)),
            HJ=lambda: [np.asarray(part) for part in both(field, shaken(), ones)],
            marginals=states,
        )
        H, J = (np.asarray(part) for part in both(field, {"rate": jnp.asarray(theta)}, ones))
    one, value = once(lambda: loss(theta, ones))
    of_H, slow_H = once(lambda: slow_program.field_hessian(loss, theta, ones))
    of_J, slow_J = once(lambda: slow_program.influence(loss, theta, ones))
    rates = np.exp(theta)
    singles = [((s,), x[s] * theta - rates) for s in range(len(x))] + [
        ((s, t), 0.5 * np.eye(2)) for s, t in edges.tolist()
    ]
    some = np.random.default_rng(0).choice(len(x), 10, replace=False)
    queried, q = once(lambda: np.array([slow_program.query(singles, order, s) for s in some]))
    off = {
        "loss": abs(value - float(fit.value)),
        "H": abs(H - slow_H).max() / abs(H).max(),
        "J": abs(J - slow_J).max() / abs(J).max(),
    }
    off["marginals"] = abs(field.state_probabilities(fit)[some] - q).max()
    slow = {"loss": one, "H": of_H, "J": of_J, "marginals": queried / len(some) * len(x)}
    rows = [
        {"what": name, "Python factors, once": slow[name], "paper's": paper, "off": off[name]}
        for name, paper in (("loss", 0.34), ("H", 2.0), ("J", 3.9), ("marginals", np.nan))
    ]
    for row in rows:
        row |= {"ours": ours.get(row["what"], np.nan)}
    together = slow["H"] + slow["J"] + slow["marginals"]
    total = ours["HJ"] + ours["marginals"]
    rows.append(
        {
            "what": "H, J and all marginals",
            "Python factors, once": together,
            "ours": total,
            "times faster": together / total,
            "target": 50,
        }
    )
    rows.append(
        {
            "what": "H and J",
            "Python factors, once": slow["H"] + slow["J"],
            "ours": ours["HJ"],
            "times faster": (slow["H"] + slow["J"]) / ours["HJ"],
        }
    )
    show(f"obvious: {len(x)} sites, marginals by {len(some)} queries, scaled to all", rows)


def growth(quick: bool, out: Path) -> None:
    """Seconds for log Z and all marginals by the width, and by the number of sites."""
    sizes = [(w, 40) for w in (2, 4, 6, 8, 10, 12, 14)] + [
        (5, n) for n in (20, 80, 320, 1280, 5120)
    ]
    rows = []
    for width, length in sizes[:3] + sizes[-5:-3] if quick else sizes:
        edges = grid(width, length)
        planned, tree = once(lambda w=width, n=length, e=edges: clique.tree(w * n, e, 2))
        s, e = potentials(width * length, edges)
        moving = iter(range(10**6))
        run = lambda s=s, e=e, tree=tree, moving=moving: clique._sums_by_passes(
            s + 1e-9 * next(moving), e, tree=tree, level=2
        )
        rows.append(
            {"width": tree.width, "sites": width * length, "entries": tree.entries, "plan": planned}
        )
        rows[-1]["seconds"] = race(3, run=run)["run"]
    show("growth: strips of a grid, two states", rows)
    picture(pd.DataFrame(rows), out / "fields_growth.png")


def picture(rows: pd.DataFrame, file: Path) -> None:
    import matplotlib.pyplot as plt

    file.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    by_width, by_sites = rows[rows.sites == 40 * rows.width], rows[rows.width == 5]
    axes[0].plot(2.0**by_width.width, by_width.seconds, "o-")
    axes[0].set(
        xscale="log",
        yscale="log",
        xlabel="2^width, 40 columns",
        ylabel="seconds, log Z and all marginals",
    )
    axes[1].plot(by_sites.sites, by_sites.seconds, "o-", label="passes")
    axes[1].plot(by_sites.sites, by_sites.plan, "o-", label="plan, once a graph")
    axes[1].set(xscale="log", yscale="log", xlabel="sites, width 5")
    axes[1].legend(frameon=False)
    figure.savefig(file, dpi=130)


def wide(quick: bool, out: Path) -> None:
    """Three and four states on the whole city, exactly where 4 GiB allow it, and by both
    approximations: each in a process of its own. The losses of a few tracts left out, style "site",
    and how far they are from those by exact sums. Three states are fitted exactly from where
    Bethe's fit ends, others from their own starts."""
    folds, found = (2, {}) if quick else (4, {})
    for states, inference in itertools.product(
        (2,) if quick else (2, 3, 4), ("exact", "bethe", "trw")
    ):
        if (states, inference) != (4, "exact"):
            found[states, inference] = fresh_process(
                f"import fields; fields.wide_one({states}, {inference!r}, {folds})"
            )
    told(found, folds)


def told(found: dict[tuple[int, str], dict[str, Any]], folds: int) -> None:
    rows, apart = [], []
    for (states, inference), one in found.items():
        losses = one["kept"] = np.array(one.pop("losses"))
        exact = found[states, "exact"]["kept"] if (states, "exact") in found else np.nan
        off = np.abs(losses - exact) / exact
        rows.append(
            {
                "states": states,
                "inference": inference,
                **{k: v for k, v in one.items() if k not in ("kept", "apart")},
            }
        )
        rows[-1] |= {"off, mean": np.mean(off), "largest": np.max(off)}
        if "apart" in one:
            apart.append({"states": states, "inference": inference, **one.pop("apart")})
    show(
        f"wide: {folds} tracts left out; processor seconds, of a fold with its score; relative errors",
        rows,
    )
    show("wide: against_exact, all parts together, at the parameters of the approximate fit", apart)


def wide_one(states: int, inference: Any, folds: int) -> None:
    """Prints what one model takes, and its losses."""
    x, edges = city()
    tracts = np.random.default_rng(0).choice(len(x), folds, replace=False)
    plan = lo.Plan(np.arange(folds + 1), tracts, np.zeros(folds), np.ones(folds, bool), len(x))
    make = lambda how: lo.MRF(
        x,
        edges,
        lo.emissions.Poisson(),
        states,
        coupling=0.5,
        drop="site",
        prior=None,
        inference=how,
    )
    planned, field = processor(lambda: make(inference))
    kept: dict[str, Any] = {}
    begin = None if (states, inference) != (3, "exact") else lo.fit(make("bethe")).parameters
    starts = None if begin is None else 1
    seconds, grown = processor(
        lambda: memory_growth(lambda: kept.update(fit=lo.fit(field, begin, num_starts=starts)))
    )
    each, cv = processor(lambda: lo.cross_validate(kept["fit"], plan, audit=0))
    tree, rates = field.tree, kept["fit"].parameters["rate"]
    said = {"width": tree.width, "GiB said": tree.need / 2**30} if inference == "exact" else {}
    said |= {
        "GiB of the fit": grown / 2**30,
        "lo.MRF": planned,
        "fit": seconds,
        "a fold": each / folds,
    }
    said |= {
        "log p": field.log_likelihood(kept["fit"]),
        "rates": " ".join(f"{rate:.1f}" for rate in rates),
        "mean": cv.mean,
    }
    if inference != "exact":
        said["apart"] = field.against_exact(kept["fit"]).loc["all"].to_dict()
    print(json.dumps({**said, "losses": cv.losses.tolist()}))


def processor(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


PARTS = {
    "marginals": marginals,
    "cold": cold,
    "grid": twenty,
    "obvious": obvious,
    "growth": growth,
    "wide": wide,
}

if __name__ == "__main__":
    main(PARTS, __doc__, quick=False, out=Path("out"))
