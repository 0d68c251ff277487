"""The first source document's event counts: tables 1 and 2, figures 1 and 4, section 4, and the
basins.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020). Cars on a ramp near
the Dodgers' stadium, every five minutes; two states, no event and event
(`lo.emissions.EventCounts`), D = 11. Folds lose observations, not states (style A), at random or in
a block.

    LEAVEOUT_DATA=… python experiments/hmm_dodgers.py [times accuracy inexact basins] [--out out]
    [--folds 1000]
                                                      [--lengths 5000 10000 50400] [--schemes i.i.d.
                                                      contiguous] [--processor] [--save]

Times are after the fit and include every held-out loss; compiling is told apart. The opponents are
SciPy's L-BFGS from θ̂ on the passes that ours take, one refit after another, in θ and in coordinates
in which the Hessian of the fit is I.
"""

import argparse
import functools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
import scipy.optimize
from matplotlib.dates import DayLocator

import leaveout as lo
from leaveout.objectives.objective import unflatten

PAPER_HOURS = {  # table 2, 1,000 folds of 10 %, on a 2.5 GHz quad-core
    ("i.i.d.", 5_000): (1.1 / 60, 10.5, 61.1),
    ("i.i.d.", 10_000): (2.2 / 60, 19.9, 185.8),
    ("i.i.d.", 50_400): (11.0 / 60, 98.6, 682.2),
    ("contiguous", 5_000): (1.3 / 60, 10.5, 61.3),
    ("contiguous", 10_000): (2.4 / 60, 19.9, 182.4),
    ("contiguous", 50_400): (10.6 / 60, 99.1, 683.9),
}
PAPER_ERROR = {  # table 1, and two standard deviations over folds
    ("i.i.d.", 0.02): (0.005, 0.009),
    ("i.i.d.", 0.05): (0.006, 0.01),
    ("i.i.d.", 0.10): (0.006, 0.005),
    ("contiguous", 0.02): (0.003, 0.003),
    ("contiguous", 0.05): (0.007, 0.02),
    ("contiguous", 0.10): (0.007, 0.006),
}
SHARES = (0.02, 0.05, 0.10, 0.25, 0.50)
STRATEGIES = (
    lo.NoUpdate(),
    lo.InfinitesimalJackknife(),
    lo.NewtonStep(),
    lo.Certified(),
    lo.Exact(),
)
SCHEMES: dict[str, Callable[..., lo.Plan]] = {
    "i.i.d.": lo.random_subsets,
    "contiguous": lo.contiguous,
}
GRADIENT = 1e-5  # in whitened coordinates: where L-BFGS stops, about so far from its optimum
SUBSET = slice(20_160, 30_160)  # ten thousand steps from the eleventh week on


def series() -> pd.DataFrame:
    return lo.datasets.dodgers().counts


def model(frame: pd.DataFrame) -> lo.HMM:
    emission = lo.emissions.EventCounts(frame["time"].dt.day_of_week.to_numpy())
    return lo.HMM(frame["count"].to_numpy(), emission, 2, initial=[0.5, 0.5])


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    clock = time.process_time if "--processor" in sys.argv else time.perf_counter
    start = clock()
    found = run()
    return clock() - start, found


def show(title: str, rows: list[dict], form: str = "{:.3g}") -> None:
    print(
        f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, na_rep='', float_format=form.format)}",
        flush=True,
    )


def look(objective: lo.HMM, vector: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """F(·, w) and its gradient at raveled θ."""
    value, gradient, _ = objective.look(vector[None], weights[None])
    return float(value[0]), gradient[0]


def lbfgs_refits(
    fit: lo.Fit, plan: lo.Plan, metric: np.ndarray, gtol: float
) -> tuple[float, np.ndarray]:
    """Seconds and raveled optima of L-BFGS refits in u, θ = θ̂ + metric u, from θ̂."""
    start = raveled(fit.theta)

    def refit(weights: np.ndarray) -> scipy.optimize.OptimizeResult:
        def function(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = look(fit.objective, start + metric @ u, weights)
            return value, metric.T @ gradient

        options = {"gtol": gtol, "ftol": 0.0, "maxiter": 1000, "maxfun": 5000}
        return scipy.optimize.minimize(
            function, np.zeros(len(start)), jac=True, method="L-BFGS-B", options=options
        )

    look(fit.objective, start, plan.matrix()[0])  # numba compiles at the first call
    seconds, optima = timed(lambda: [refit(weights) for weights in plan.matrix()])
    return seconds, start + np.array([optimum.x for optimum in optima]) @ metric.T


def optima(fit: lo.Fit, plan: lo.Plan) -> np.ndarray:
    """Raveled parameters of exact refits."""
    found = lo.fold_parameters(fit, plan, strategy=lo.Exact())
    each = [
        fit.objective.parameters.unconstrained(jax.tree.map(lambda leaf, k=k: leaf[k], found))
        for k in range(plan.num_refits)
    ]
    return np.array([raveled(theta) for theta in each])


def times(out: Path, folds: int, lengths: list[int], schemes: list[str]) -> None:
    """Table 2."""
    frame, rows = series(), []
    for length in lengths:
        fit = lo.fit(model(frame[:length]))
        for scheme, make in ((name, SCHEMES[name]) for name in schemes):
            plan, few = make(length, 0.1, folds, rng=0), make(length, 0.1, 20, rng=0)
            strategies = [
                lo.NoUpdate(),
                lo.InfinitesimalJackknife(),
                lo.Exact(),
                lo.Certified(),
                lo.NewtonStep(),
            ]
            paper = dict(
                zip(
                    ("InfinitesimalJackknife", "NewtonStep", "Exact"),
                    PAPER_HOURS[scheme, length],
                    strict=True,
                )
            )
            exact = np.nan
            for refit in strategies:
                name = type(refit).__name__
                which = few if name == "NewtonStep" else plan
                first = make(length, 0.1, which.num_refits, rng=1)
                cold, _ = timed(functools.partial(lo.cross_validate, fit, first, refit))
                warm, cv = timed(functools.partial(lo.cross_validate, fit, which, refit))
                seconds = warm * folds / which.num_refits
                exact = seconds if name == "Exact" else exact
                row = {
                    "T": length,
                    "folds": f"{scheme}",
                    "refit": name,
                    "seconds": seconds,
                    "compiling": max(0.0, cold - warm),
                }
                hours = paper.get(name, np.nan) * folds / 1000  # its are of 1,000
                rows.append(
                    {
                        **row,
                        "paper, hours": hours,
                        "times the paper": hours * 3600 / seconds,
                        "mean loss": cv.mean,
                    }
                )
            rows += opponents(fit, few, {"T": length, "folds": scheme}, folds, exact)
            show(
                f"Table 2 so far: {folds} folds of 10 %, seconds after the fit (NewtonStep, L-BFGS: 20 folds, scaled)",
                rows,
            )
            saved.save(
                "_".join(["dodgers_times", *map(str, lengths)]),
                rows,
                folds=folds,
                processor="--processor" in sys.argv,
            )


def opponents(
    fit: lo.Fit, plan: lo.Plan, common: dict[str, Any], folds: int, exact: float
) -> list[dict[str, Any]]:
    """L-BFGS from θ̂, in θ and where the fit's Hessian is I.

    How far each, and `Exact`, is from the optimum.
    """
    away = lambda found: np.median(np.linalg.norm((found - optimum) @ fit.quadratic.factor, axis=1))
    plain, whitened = np.eye(fit.num_params), np.linalg.inv(np.asarray(fit.quadratic.factor)).T
    _, optimum = lbfgs_refits(fit, plan, whitened, 1e-10)
    moved = np.median(np.linalg.norm((optimum - raveled(fit.theta)) @ fit.quadratic.factor, axis=1))
    rows = [
        common
        | {"refit": "Exact, 20 folds", "off the optimum": away(optima(fit, plan)), "moved": moved}
    ]
    for name, metric, gtol in (("L-BFGS", plain, 1e-5), ("L-BFGS, whitened", whitened, GRADIENT)):
        seconds, found = lbfgs_refits(fit, plan, metric, gtol)
        seconds *= folds / plan.num_refits
        rows.append(
            common
            | {
                "refit": name,
                "seconds": seconds,
                "times Exact": seconds / exact,
                "off the optimum": away(found),
            }
        )
    return rows


def raveled(theta: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])


def accuracy(out: Path, folds: int) -> None:
    """Table 1 with shares beyond its own, figures 1 and 4."""
    frame = series()[SUBSET].reset_index(drop=True)
    fit, rows, length = lo.fit(model(frame)), [], len(frame)
    figure, axes = plt.subplot_mosaic(
        [
            ["top"] * 3,
            ["i.i.d. 2", "i.i.d. 5", "i.i.d. 10"],
            ["contiguous 2", "contiguous 5", "contiguous 10"],
        ],
        figsize=(11, 10),
        layout="constrained",
    )
    axes["top"].plot(frame["time"], frame["count"], lw=0.4)
    axes["top"].xaxis.set_major_locator(DayLocator(bymonthday=(1, 8, 15, 22)))
    axes["top"].set(
        ylabel="cars in five minutes", title=f"{length:,} steps of the Dodgers loop counts"
    )
    newton, panels = plt.subplots(2, 3, figsize=(11, 7.5), layout="constrained")
    for share in SHARES:
        for i, (scheme, make) in enumerate(SCHEMES.items()):
            plan = make(length, share, 10, rng=0)
            estimates = {
                type(refit).__name__: lo.cross_validate(fit, plan, strategy=refit)
                for refit in STRATEGIES
            }
            row: dict[str, Any] = {"folds": scheme, "left out": share}
            row["paper"], row["paper, ± 2 SD"] = PAPER_ERROR.get((scheme, share), (np.nan, np.nan))
            for name, cv in estimates.items():
                errors = {
                    "points": errors_of_points(cv, estimates["Exact"]),
                    "folds": errors_of_folds(cv, estimates["Exact"]),
                }
                for level, error in errors.items():
                    row[f"{name}, {level}"], row[f"{name}, {level}, ± 2 SD"] = (
                        error.mean(),
                        2 * error.std(ddof=1),
                    )
            rows.append(row)
            saved.save("dodgers_accuracy", rows, length=length, folds=10)
            print(f"{scheme}, {share:.0%}", flush=True)
            if (scheme, share) in PAPER_ERROR:
                scattered(
                    axes[f"{scheme} {100 * share:.0f}"],
                    f"{scheme}, {share:.0%}",
                    estimates,
                    "Exact",
                    "IJ",
                )
            if share == 0.10:
                for ax, x, y in zip(
                    panels[i],
                    ("Newton step", "Exact", "Exact"),
                    ("IJ", "IJ", "Newton step"),
                    strict=True,
                ):
                    scattered(ax, f"{scheme}, {share:.0%}", estimates, x, y)
        if share == 0.10:
            saved.picture(figure, "dodgers_figure1", dpi=80, colours=24)
            saved.picture(newton, "dodgers_figure4", dpi=80, colours=24)
    for level, title in (("points", "of a point's loss"), ("folds", "of a fold's mean loss")):
        columns = [f"{type(refit).__name__}, {level}" for refit in STRATEGIES]
        printed = pd.DataFrame(rows)[["folds", "left out", "paper", *columns]]
        show(f"Table 1: mean relative error {title}, ten folds, T = 10,000", printed, "{:.2e}")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "dodgers_figure1.png", dpi=110)
    newton.savefig(out / "dodgers_figure4.png", dpi=110)


def scattered(ax: plt.Axes, title: str, estimates: dict[str, lo.Estimate], x: str, y: str) -> None:
    """Held-out losses of all folds by two strategies."""
    across, up = (
        estimates[{"IJ": "InfinitesimalJackknife", "Newton step": "NewtonStep"}.get(k, k)].losses
        for k in (x, y)
    )
    ax.plot(across, up, ".", ms=2, color="C3", alpha=0.5, rasterized=True)
    limits = np.nanmin(across), np.nanmax(across)
    ax.plot(limits, limits, "k--", lw=0.8)
    ax.set(title=title, xlabel=x, ylabel=y)


def by_fold(cv: lo.Estimate) -> np.ndarray:
    """Mean loss of each fold."""
    table = cv.table()
    return table.groupby("refit")["loss"].mean().to_numpy()


def errors_of_folds(cv: lo.Estimate, exact: lo.Estimate) -> np.ndarray:
    """|m̃ − m| / m of the mean loss m of each fold."""
    truth = by_fold(exact)
    return np.abs(by_fold(cv) - truth) / truth


def errors_of_points(cv: lo.Estimate, exact: lo.Estimate) -> np.ndarray:
    """The mean of |ℓ̃ − ℓ| / ℓ over the held-out steps of each fold.

    The dots of figure 1, whose losses are all positive.
    """
    truth = exact.table().set_index(["refit", "unit"])["loss"]
    error = (cv.table().set_index(["refit", "unit"])["loss"] - truth).abs() / truth
    return error.groupby(level="refit").mean().to_numpy()


def inexact(out: Path, folds: int) -> None:
    """Section 4 and proposition 2: fits stopped at twelve points along the way."""
    frame = series()[SUBSET].reset_index(drop=True)
    fit = lo.fit(model(frame))
    plan = lo.contiguous(len(frame), 0.02, 10, rng=0)
    truth, objective = lo.cross_validate(fit, plan, strategy=lo.Exact()), fit.objective
    path = stops(fit)
    rows = []
    for place in dict.fromkeys(np.linspace(0, len(path) - 1, 12).round().astype(int).tolist()):
        steps, theta = path[place]
        try:
            with warnings.catch_warnings():  # that the fit is not stationary is the point
                warnings.simplefilter("ignore", UserWarning)
                early = lo.anchor(objective, objective.parameters.natural(theta), throw=False)
        except lo.validation.IndefiniteHessianError:
            rows.append({"BFGS steps": steps, "decrement": np.nan})
            continue
        row = {
            "BFGS steps": steps,
            "gradient": float(np.linalg.norm(early.gradient)),
            "decrement": float(early.decrement),
        }
        for refit in (lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.Certified(), lo.Exact()):
            cv = lo.cross_validate(early, plan, strategy=refit)
            row[type(refit).__name__] = abs(cv.mean - truth.mean)
            if isinstance(refit, lo.Exact):
                row["same optima"] = f"{np.mean(np.abs(by_fold(cv) - by_fold(truth)) < 1e-6):.0%}"
        rows.append(row)
    saved.save("dodgers_inexact", rows, truth=truth.mean, se=truth.se)
    show(
        f"Inexact fits: |mean held-out loss − that of the exact refits|, {truth.mean:.4f} ± {truth.se:.4f}",
        rows,
        "{:.2e}",
    )
    table = pd.DataFrame(rows).dropna()
    figure, ax = plt.subplots(figsize=(6, 4.5), layout="constrained")
    for name in ("NoUpdate", "InfinitesimalJackknife", "Certified", "Exact"):
        ax.loglog(table["gradient"], np.maximum(table[name].astype(float), 1e-13), "o-", label=name)
    bound = table["gradient"] * float(
        table["InfinitesimalJackknife"].iloc[0] / table["gradient"].iloc[0]
    )
    ax.loglog(
        table["gradient"],
        bound + float(table["InfinitesimalJackknife"].iloc[-1]),
        "k--",
        lw=0.8,
        label="slope one",
    )
    ax.set(xlabel="‖∇F‖ where the fit was stopped", ylabel="error of the mean held-out loss")
    ax.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "dodgers_inexact.png", dpi=110)


def stops(fit: lo.Fit) -> list[tuple[int, Any]]:
    """θ along BFGS's way from a start of the model's own, the last one θ̂."""
    objective = fit.objective
    ones = np.ones(objective.num_units)
    places: list[np.ndarray] = []
    scipy.optimize.minimize(
        lambda v: look(objective, v, ones),
        raveled(objective.parameters.start(0)),
        jac=True,
        method="BFGS",
        callback=lambda v: places.append(np.array(v)),
        options={"gtol": 1e-7},
    )
    return [(k + 1, unflatten(v, fit.theta)) for k, v in enumerate(places)]


def basins(out: Path, folds: int) -> None:
    """How often does a restart find a better optimum of a fold than the one reached from θ̂?"""
    frame = series()[SUBSET].reset_index(drop=True)
    fit = lo.fit(model(frame))
    objective, plan = fit.objective, lo.contiguous(len(frame), 0.1, 20, rng=0)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    reached = optima(fit, plan)
    starts = [raveled(objective.parameters.start(seed)) for seed in range(20)]
    rows = []
    for k, w in enumerate(plan.matrix()):
        function = lambda v, w=w: look(objective, v, w)
        value, _ = function(reached[k])
        ends = [
            scipy.optimize.minimize(function, start, jac=True, method="BFGS").fun
            for start in starts
        ]
        rows.append(
            {
                "fold": k,
                "F from θ̂": value,
                "best of 20": min(ends),
                "same": np.mean(np.abs(np.array(ends) - value) < 1e-3),
            }
        )
    table = pd.DataFrame(rows)
    better = table["best of 20"] < table["F from θ̂"] - 1e-3
    print(
        f"\nBasins: {better.sum()} of {len(table)} folds have a better optimum than the one reached from θ̂;"
    )
    print(
        f"{table['same'].mean():.0%} of the restarts end in the same one. Mean held-out loss {exact.mean:.4f}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", default=[], help="times accuracy inexact basins; all by default"
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--folds", type=int, default=1000)
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[5_000, 10_000, 50_400], help="of `times`"
    )
    parser.add_argument(
        "--schemes", nargs="*", choices=list(SCHEMES), default=list(SCHEMES), help="of `times`"
    )
    parser.add_argument(
        "--processor",
        action="store_true",
        help="seconds of processor time: other programs run beside",
    )
    saved.add_option(parser)
    arguments = parser.parse_args()
    timing = functools.partial(times, lengths=arguments.lengths, schemes=arguments.schemes)
    known = {"times": timing, "accuracy": accuracy, "inexact": inexact, "basins": basins}
    for part in arguments.parts or known:
        known[part](arguments.out, arguments.folds)
