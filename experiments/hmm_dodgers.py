"""The first source document's event counts: tables 1 and 2, figures 1 and 4, section 4, the basins,
and what the infinitesimal jackknife costs (proposition 1).

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020). Cars on a ramp near
the Dodgers' stadium, every five minutes; two states, no event and event
(`lo.emissions.EventCounts`), D = 11. Folds lose observations, not states (style A), at random or in
a block, ⌊mT/100⌋ steps and never the first or the last, as in the authors' public code.

    LEAVEOUT_DATA=… python experiments/hmm_dodgers.py [accuracy times cost inexact basins]
                                        [--out out] [--quick] [--save] [--afresh]

accuracy  tables 1, figures 1 and 4: ten folds of each kind, of three stretches of 10,000 steps
times     table 2 and the timing panels: 1,000 folds of a tenth. Times are after the fit, include
          every held-out loss and follow a first call, which is told apart. The opponents only
          refit: chord steps with the fit's Hessian, SciPy's BFGS and L-BFGS from θ̂ on the passes
          that ours take, and hmmlearn's EM from θ̂ with the same densities and priors.
cost      proposition 1: processor time of the jackknife against parameters and folds
inexact   section 4: fits stopped at twelve points along the way
basins    restarts of folds
"""

import argparse
import functools
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
import scipy.optimize
from matplotlib.dates import DayLocator
from matplotlib.ticker import NullLocator

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
DOCUMENTED = ("InfinitesimalJackknife", "NewtonStep", "Exact")  # as in PAPER_HOURS
SHARES = (0.02, 0.05, 0.10, 0.25, 0.50)
STRATEGIES = (
    lo.NoUpdate(),
    lo.InfinitesimalJackknife(),
    lo.NewtonStep(),
    lo.Certified(),
    lo.Exact(),
)
GRADIENT = 1e-5  # in whitened coordinates: where refits stop, about so far from their optimum
SUBSETS = {  # ten thousand steps each
    "week 1": slice(0, 10_000),
    "week 11": slice(20_160, 30_160),
    "week 21": slice(40_320, 50_320),
}
SUBSET = SUBSETS["week 11"]  # of the figures, of section 4 and of proposition 2
LENGTHS = (5_000, 10_000, 50_400)  # of table 2's panels
OPPONENT_FOLDS = 20  # of what would take minutes for 1,000


def inner(scheme: Callable[..., lo.Plan]) -> Callable[..., lo.Plan]:
    """A scheme by the rules of the authors' public code: ⌊share · length⌋ steps, and never the
    first or the last.
    """

    def make(length: int, share: float, folds: int, rng: int = 0) -> lo.Plan:
        size = int(share * length + 1e-9)
        plan = scheme(length - 2, size / (length - 2), folds, rng=rng)
        return replace(plan, index=plan.index + 1, num_units=length)

    return make


SCHEMES = {"i.i.d.": inner(lo.random_subsets), "contiguous": inner(lo.contiguous)}


def series() -> pd.DataFrame:
    return lo.datasets.dodgers().counts


def subset(name: str, length: int = 10_000) -> pd.DataFrame:
    return series()[SUBSETS[name]][:length].reset_index(drop=True)


def model(frame: pd.DataFrame) -> lo.HMM:
    emission = lo.emissions.EventCounts(frame["time"].dt.day_of_week.to_numpy())
    return lo.HMM(frame["count"].to_numpy(), emission, 2, initial=[0.5, 0.5])


class Timing(NamedTuple):
    """Seconds by the clock and of the processors, and what was computed in them."""

    seconds: float
    processor: float
    result: Any


def timed(compute: Callable[[], Any]) -> Timing:
    start, processor_start = time.perf_counter(), time.process_time()
    result = compute()
    return Timing(time.perf_counter() - start, time.process_time() - processor_start, result)


def show(title: str, rows: list[dict] | pd.DataFrame, form: str = "{:.3g}") -> None:
    text = pd.DataFrame(rows).to_string(index=False, na_rep="", float_format=form.format)
    print(f"\n{title}\n{text}", flush=True)


def short(strategy: lo.developer.AbstractRefit) -> str:
    return type(strategy).__name__


def look(objective: lo.HMM, vector: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """F(·, w) and its gradient at raveled θ."""
    value, gradient, _ = objective.look(vector[None], weights[None])
    return float(value[0]), gradient[0]


def optima(fit: lo.Fit, plan: lo.Plan, strategy: lo.developer.AbstractRefit) -> np.ndarray:
    """Raveled parameters of a strategy's refits."""
    parameters = lo.fold_parameters(fit, plan, strategy=strategy)
    refits = [
        fit.objective.parameters.unconstrained(jax.tree.map(lambda leaf, k=k: leaf[k], parameters))
        for k in range(plan.num_refits)
    ]
    return np.array([raveled(theta) for theta in refits])


# table 2


def fold_weights(plan: lo.Plan, fold: int) -> np.ndarray:
    weights = np.ones(plan.num_units)
    entries = slice(plan.indptr[fold], plan.indptr[fold + 1])
    weights[plan.index[entries]] = plan.weight[entries]
    return weights


def whitener(fit: lo.Fit) -> np.ndarray:
    """W with WᵀHW = I: θ = θ̂ + W u."""
    return np.linalg.inv(np.asarray(fit.quadratic.factor)).T


def chord(fit: lo.Fit, plan: lo.Plan) -> np.ndarray:
    """θ ← θ − H⁻¹ ∇F(θ, w) with the fit's H, of 25 folds at a time; NaN where 200 steps are not
    enough.
    """
    W, points = whitener(fit), np.repeat(raveled(fit.theta)[None], plan.num_refits, axis=0)
    for batch in np.array_split(np.arange(plan.num_refits), -(-plan.num_refits // 25)):
        weights = np.array([fold_weights(plan, fold) for fold in batch])
        active = np.arange(len(batch))
        for _ in range(200):
            gradient = fit.objective.look(points[batch[active]], weights[active])[1] @ W
            moving = np.abs(gradient).max(1) > GRADIENT
            active = active[moving]
            if not len(active):
                break
            points[batch[active]] -= gradient[moving] @ W.T
        points[batch[active]] = np.nan
    return points


def descents(fit: lo.Fit, plan: lo.Plan, method: str, W: np.ndarray, gtol: float) -> np.ndarray:
    """SciPy's minimiser from θ̂ in u, θ = θ̂ + W u, one fold after another."""
    start = raveled(fit.theta)
    options: dict[str, Any] = {"gtol": gtol}
    if method == "L-BFGS-B":
        options |= {"ftol": 0.0, "maxiter": 1000, "maxfun": 5000}

    def refit(weights: np.ndarray) -> np.ndarray:
        def function(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = look(fit.objective, start + W @ u, weights)
            return value, W.T @ gradient

        origin = np.zeros(len(start))
        return scipy.optimize.minimize(function, origin, jac=True, method=method, options=options).x

    folds = [refit(fold_weights(plan, fold)) for fold in range(plan.num_refits)]
    return start + np.array(folds) @ W.T


def expectation_maximisation(fit: lo.Fit, plan: lo.Plan, tolerance: float) -> np.ndarray:
    """hmmlearn's EM from θ̂: its passes and its M step of the transitions.

    Steps left out have a likelihood of one. The emission's M step is L-BFGS on the expected counts
    of (day, cars), of which there are a few hundred.
    """
    from hmmlearn.base import BaseHMM

    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # rounding lowers F by 1e-9
    objective = fit.objective
    emission, rows = objective.emission, objective.data.row
    length = objective.data.length

    def natural(vector: np.ndarray, theta: Any) -> Any:
        return objective.parameters.natural(theta | unflatten(vector, shared_of(theta)))

    def shared_of(theta: Any) -> Any:
        return {name: theta[name] for name in emission.free}

    def expected(vector: np.ndarray, counts: np.ndarray) -> Any:
        parameters = natural(vector, fit.theta)
        table = emission.by_season(parameters, length).reshape(-1, 2)
        return -(counts * table).sum() - emission.log_prior(parameters)

    m_step = jax.jit(jax.value_and_grad(expected))

    class EventHMM(BaseHMM):
        weights = np.ones(plan.num_units)
        vector = raveled(shared_of(fit.theta))

        def _get_n_fit_scalars_per_param(self) -> dict[str, int]:
            return {"t": 2}

        def _compute_lower_bound(self, log_likelihood: float) -> float:
            prior = emission.log_prior(natural(self.vector, fit.theta))
            return log_likelihood + float(prior) + np.log(self.transmat_).sum()

        def _compute_likelihood(self, X: np.ndarray) -> np.ndarray:
            table = np.asarray(emission.by_season(natural(self.vector, fit.theta), length))
            return np.exp(self.weights[:, None] * table.reshape(-1, 2)[rows])

        def _accumulate_sufficient_statistics(
            self, stats: Any, X: Any, lattice: Any, posteriors: np.ndarray, *passes: Any
        ) -> None:
            super()._accumulate_sufficient_statistics(stats, X, lattice, posteriors, *passes)
            size = emission.num_seasons * length
            columns = [np.bincount(rows, self.weights * share, size) for share in posteriors.T]
            stats["counts"] = np.column_stack(columns)

        def _do_mstep(self, stats: Any) -> None:
            super()._do_mstep(stats)
            with jax.enable_x64(True):
                function = lambda v: [np.asarray(part) for part in m_step(v, stats["counts"])]
                solution = scipy.optimize.minimize(
                    function, self.vector, jac=True, method="L-BFGS-B", options={"gtol": 1e-8}
                )
            self.vector = solution.x

    def refit(weights: np.ndarray) -> np.ndarray:
        chain = EventHMM(
            2,
            transmat_prior=2.0,
            params="t",
            init_params="",
            n_iter=5000,
            tol=tolerance,
            implementation="scaling",
        )
        chain.startprob_ = np.array([0.5, 0.5])
        chain.transmat_ = np.array(fit.parameters["transition"])
        chain.weights = weights
        chain.fit(np.zeros((plan.num_units, 1)))
        parameters = natural(chain.vector, fit.theta) | {"transition": chain.transmat_}
        return raveled(objective.parameters.unconstrained(parameters))

    observed = objective.units.observed
    present = np.ones(plan.num_units) if observed is None else observed.astype(float)
    folds = [refit(present * fold_weights(plan, fold)) for fold in range(plan.num_refits)]
    return np.array(folds)


def raveled(theta: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])


OPPONENTS: dict[str, tuple[Callable[[lo.Fit, lo.Plan], np.ndarray], bool]] = {
    # and whether few folds are run and scaled
    "Exact, parameters only": (lambda fit, plan: optima(fit, plan, lo.Exact()), False),
    "chord": (chord, False),
    "L-BFGS, whitened": (
        lambda fit, plan: descents(fit, plan, "L-BFGS-B", whitener(fit), GRADIENT),
        False,
    ),
    "BFGS, whitened": (
        lambda fit, plan: descents(fit, plan, "BFGS", whitener(fit), GRADIENT),
        False,
    ),
    "L-BFGS": (
        lambda fit, plan: descents(fit, plan, "L-BFGS-B", np.eye(fit.num_params), GRADIENT),
        True,
    ),
    "hmmlearn, tol=0.01": (lambda fit, plan: expectation_maximisation(fit, plan, 1e-2), True),
    "hmmlearn, tol=1e-6": (lambda fit, plan: expectation_maximisation(fit, plan, 1e-6), True),
}


def timed_row(
    fit: lo.Fit, run: Callable[[lo.Fit, lo.Plan], Any], plans: dict[str, lo.Plan], few: bool
) -> dict[str, Any]:
    """Seconds of all folds, of few scaled if these are run, after a first call."""
    first = timed(lambda: run(fit, plans["first"]))
    plan = plans["few" if few else "all"]
    timing = timed(lambda: run(fit, plan))
    scale = plans["all"].num_refits / plan.num_refits
    row = {"folds run": plan.num_refits, "first call": first.seconds}
    row |= {"seconds": timing.seconds * scale, "processor": timing.processor * scale}
    if isinstance(timing.result, np.ndarray):
        diverged = int(np.isnan(timing.result).any(1).sum())
        return row | {"diverged": diverged, "parameters": timing.result[: plans["few"].num_refits]}
    return row | {"mean loss": timing.result.mean, "flagged": len(timing.result.flagged())}


def times(settings: argparse.Namespace) -> None:
    """Table 2, and times for the panels of figure 1."""
    lengths, folds, few = ((4_000,), 20, 3) if settings.quick else (LENGTHS, 1000, OPPONENT_FOLDS)
    rows: list[dict[str, Any]] = []
    for length in lengths:
        fit = functools.cache(lambda length=length: lo.fit(model(series()[:length])))
        for scheme, make in SCHEMES.items():
            plan = make(length, 0.1, folds)
            plans = {
                "all": plan,
                "few": lo.Plan(*entries(plan, few)),
                "first": make(length, 0.1, 3, 1),
            }
            rows += scheme_rows(fit, plans, {"T": length, "folds": scheme}, length == lengths[-1])
            show(f"Table 2 so far: {folds} folds of 10 %, after the fit", rows)
            saved.save("dodgers_table2", rows, folds=folds)


def entries(plan: lo.Plan, folds: int) -> tuple[Any, ...]:
    """The arrays of a plan's first folds."""
    end = plan.indptr[folds]
    arrays = (plan.indptr[: folds + 1], plan.index[:end], plan.weight[:end], plan.held[:end])
    return *arrays, plan.num_units


def scheme_rows(
    fit: Callable[[], lo.Fit], plans: dict[str, lo.Plan], labels: dict[str, Any], whole: bool
) -> list[dict[str, Any]]:
    """Our strategies of one scheme; of the whole series the opponents too, and how far each ends
    from the optimum of few folds.
    """
    part = lambda key, compute: saved.part(
        "dodgers_table2", f"{labels['T']}, {labels['folds']}, {key}", compute
    )
    rows: dict[str, dict[str, Any]] = {}
    for strategy in STRATEGIES:
        run = functools.partial(lo.cross_validate, strategy=strategy)
        rows[short(strategy)] = part(
            short(strategy), lambda run=run: timed_row(fit(), run, plans, False)
        )
        if whole:
            rows[short(strategy)]["parameters"] = part(
                f"{short(strategy)}, parameters",
                lambda strategy=strategy: optima(fit(), plans["few"], strategy),
            )
    for name in OPPONENTS if whole else ():
        run, few = OPPONENTS[name]
        rows[name] = part(name, lambda run=run, few=few: timed_row(fit(), run, plans, few))
    if whole:
        optimum, factor = part("optimum", lambda: converged(fit(), plans["few"]))
    table = []
    for name, row in rows.items():
        parameters = row.pop("parameters", None)
        row = labels | {"refit": name} | row
        row["times Exact"] = row["seconds"] / rows["Exact"]["seconds"]
        if parameters is not None:
            distances = np.linalg.norm((parameters - optimum) @ factor, axis=1)
            row |= {"off the optimum": np.nanmedian(distances), "largest": distances.max()}
        table.append(row | {"the document, hours": document_hours(name, **labels)})
    return table


def document_hours(refit: str, T: int, folds: str) -> float:
    if refit not in DOCUMENTED or (folds, T) not in PAPER_HOURS:
        return np.nan
    return PAPER_HOURS[folds, T][DOCUMENTED.index(refit)]


def converged(fit: lo.Fit, plan: lo.Plan) -> tuple[np.ndarray, np.ndarray]:
    """Optima to a gradient of 1e-10, and the factor of H in which distances are taken."""
    return descents(fit, plan, "L-BFGS-B", whitener(fit), 1e-10), np.asarray(fit.quadratic.factor)


# table 1


def cell(fit: lo.Fit, plan: lo.Plan) -> dict[str, lo.Estimate]:
    return {short(refit): lo.cross_validate(fit, plan, strategy=refit) for refit in STRATEGIES}


def accuracy(settings: argparse.Namespace) -> None:
    """Table 1 with shares beyond its own, by points and by folds; figures 1 and 4."""
    length, folds = (4_000, 3) if settings.quick else (10_000, 10)
    rows: list[dict[str, Any]] = []
    errors_by_fold: list[dict[str, Any]] = []
    estimates: dict[tuple[str, float], dict[str, lo.Estimate]] = {}
    subsets, shares = list(SUBSETS), SHARES
    if settings.quick:
        subsets, shares = ["week 11"], SHARES[:3]
    for name in subsets:
        fit = functools.cache(lambda name=name: lo.fit(model(subset(name, length))))
        for share in shares:
            for scheme, make in SCHEMES.items():
                plan = make(length, share, folds)
                cells = saved.part(
                    "dodgers_accuracy",
                    f"{name}, {scheme}, {share:.0%}",
                    lambda fit=fit, plan=plan: cell(fit(), plan),
                )
                row: dict[str, Any] = {"from": name, "folds": scheme, "left out": share}
                row["paper"], row["paper, ± 2 SD"] = PAPER_ERROR.get((scheme, share), (np.nan,) * 2)
                by_fold_errors = errors(cells)
                for label, error in by_fold_errors.items():
                    row[label], row[f"{label}, ± 2 SD"] = error.mean(), 2 * error.std(ddof=1)
                rows.append(row)
                errors_by_fold.append(by_fold_errors)
                if name == "week 11":
                    estimates[scheme, share] = cells
                print(f"{name}, {scheme}, {share:.0%}", flush=True)
        saved.save("dodgers_accuracy", rows, length=length, folds=folds, by_fold=errors_by_fold)
    for level, title in (("points", "of a point's loss"), ("folds", "of a fold's mean loss")):
        columns = [f"{short(refit)}, {level}" for refit in STRATEGIES]
        printed = pd.DataFrame(rows)[["from", "folds", "left out", "paper", *columns]]
        show(
            f"Table 1: mean relative error {title}, {folds} folds, T = {length:,}",
            printed,
            "{:.2e}",
        )
    figures(estimates, length, settings.out)


def figures(
    estimates: dict[tuple[str, float], dict[str, lo.Estimate]], length: int, out: Path
) -> None:
    """Figures 1 and 4."""
    frame = subset("week 11", length)
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
    for scheme, share in PAPER_ERROR:
        title = f"{scheme}, {share:.0%}"
        ax = axes[f"{scheme} {100 * share:.0f}"]
        scattered(ax, title, estimates[scheme, share], "Exact", "IJ")
    for scheme, row in zip(SCHEMES, panels, strict=True):
        pairs = (("Newton step", "IJ"), ("Exact", "IJ"), ("Exact", "Newton step"))
        for ax, (across, up) in zip(row, pairs, strict=True):
            scattered(ax, f"{scheme}, 10%", estimates[scheme, 0.10], across, up)
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in (("dodgers_figure1", figure), ("dodgers_figure4", newton)):
        saved.picture(picture, name, dpi=80, colours=24)
        picture.savefig(out / f"{name}.png", dpi=110)


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


def scored(cv: lo.Estimate) -> pd.DataFrame:
    """The held-out losses, without the steps that no fold leaves out."""
    table = cv.table()
    return table[table["refit"] >= 0]


def by_fold(cv: lo.Estimate) -> np.ndarray:
    """Mean loss of each fold."""
    return scored(cv).groupby("refit")["loss"].mean().to_numpy()


def errors_of_folds(cv: lo.Estimate, exact: lo.Estimate) -> np.ndarray:
    """|m̃ − m| / m of the mean loss m of each fold."""
    truth = by_fold(exact)
    return np.abs(by_fold(cv) - truth) / truth


def errors_of_points(cv: lo.Estimate, exact: lo.Estimate) -> np.ndarray:
    """The mean of |ℓ̃ − ℓ| / ℓ over the held-out steps of each fold.

    The dots of figure 1, whose losses are all positive.
    """
    truth = scored(exact).set_index(["refit", "unit"])["loss"]
    error = (scored(cv).set_index(["refit", "unit"])["loss"] - truth).abs() / truth
    return error.groupby(level="refit").mean().to_numpy()


def errors(estimates: dict[str, lo.Estimate]) -> dict[str, np.ndarray]:
    """Relative errors of each fold by strategy, of single points and of the fold's mean."""
    exact = estimates["Exact"]
    return {
        f"{name}, {level}": error(estimate, exact)
        for name, estimate in estimates.items()
        for level, error in (("points", errors_of_points), ("folds", errors_of_folds))
    }


def inexact(settings: argparse.Namespace) -> None:
    """Section 4 and proposition 2: fits stopped at twelve points along the way."""
    frame = subset("week 11", 4_000 if settings.quick else 10_000)
    fit = lo.fit(model(frame))
    plan = SCHEMES["contiguous"](len(frame), 0.02, 10)
    truth = lo.cross_validate(fit, plan, strategy=lo.Exact())
    path = stops(fit)
    places = np.linspace(0, len(path) - 1, 4 if settings.quick else 12).round().astype(int)
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys(places.tolist()):
        steps, theta = path[place]
        rows.append({"BFGS steps": steps} | stopped(fit, plan, theta, truth))
    saved.save("dodgers_inexact", rows, truth=truth.mean, se=truth.se)
    title = "Inexact fits: |mean held-out loss − that of the exact refits|"
    show(f"{title}, {truth.mean:.4f} ± {truth.se:.4f}", rows, "{:.2e}")
    table = pd.DataFrame(rows)
    figure, ax = plt.subplots(figsize=(6, 4.5), layout="constrained")
    for name in ("InfinitesimalJackknife", LITERAL, "NoUpdate", "Certified", "Exact"):
        style = "o--" if name == LITERAL else "o-"
        ax.loglog(table["gradient"], np.maximum(table[name], 1e-13), style, label=name)
    indefinite = table[table["damping"] > 0]
    for gradient in indefinite["gradient"]:
        ax.axvline(gradient, color="0.8", lw=6, zorder=0)
    ax.set(
        xlabel="‖∇F‖ where the fit was stopped; grey: H is indefinite, and damped",
        ylabel="error of the mean held-out loss",
    )
    ax.legend()
    saved.picture(figure, "dodgers_inexact", dpi=80, colours=24)
    settings.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(settings.out / "dodgers_inexact.png", dpi=110)


LITERAL = "IJ with H + 1e-5 I"


def stopped(fit: lo.Fit, plan: lo.Plan, theta: Any, truth: lo.Estimate) -> dict[str, Any]:
    """Errors from one stop: of the jackknife with the document's H + 1e-5 I, solved though
    indefinite, and of all strategies with H, or damped by 1.5 times the size of its least
    eigenvalue where that is negative.
    """
    objective = fit.objective
    ones, vector = np.ones(objective.num_units), raveled(theta)
    with jax.enable_x64(True):
        hessian = np.asarray(objective.hessian(theta, ones))
    least = float(np.linalg.eigvalsh(hessian)[0])
    damping = -1.5 * least if least < 0 else 0.0
    gradient = look(objective, vector, ones)[1]
    row: dict[str, Any] = {"gradient": np.linalg.norm(gradient), "λ": least, "damping": damping}
    with warnings.catch_warnings():  # that the fit is not stationary is the point
        warnings.simplefilter("ignore", UserWarning)
        natural = objective.parameters.natural(theta)
        early = lo.anchor(objective, natural, throw=False, damping=damping)
    row["decrement"] = float(early.decrement)
    literal = jackknife_losses(objective, vector, hessian + 1e-5 * np.eye(len(hessian)), plan)
    row[LITERAL] = abs(np.nanmean(literal) - truth.mean)
    for strategy in (lo.NoUpdate(), lo.InfinitesimalJackknife(), lo.Certified(), lo.Exact()):
        estimate = lo.cross_validate(early, plan, strategy=strategy)
        row[short(strategy)] = abs(estimate.mean - truth.mean)
        if isinstance(strategy, lo.Exact):
            near = np.abs(by_fold(estimate) - by_fold(truth)) < 1e-6
            row["same optima"] = f"{near.mean():.0%}"
    return row


def jackknife_losses(
    objective: lo.HMM, vector: np.ndarray, hessian: np.ndarray, plan: lo.Plan
) -> np.ndarray:
    """Held-out losses at θ + H⁻¹ Σ ∂²F/∂θ∂w, its sums by central differences in the weights; NaN
    where the step was not observed.
    """
    losses = np.full(len(plan.index), np.nan)
    for fold in range(plan.num_refits):
        entries = slice(plan.indptr[fold], plan.indptr[fold + 1])
        index = plan.index[entries]
        direction = np.zeros(plan.num_units)
        direction[index] = 1e-4
        sides = [look(objective, vector, 1 + sign * direction)[1] for sign in (1, -1)]
        moved = vector + np.linalg.solve(hessian, (sides[0] - sides[1]) / 2e-4)
        weights, held = fold_weights(plan, fold), np.ones((1, len(index)), bool)
        losses[entries] = objective.losses(moved[None], weights[None], index[None], held)[0]
    observed = objective.units.observed
    return losses if observed is None else np.where(observed[plan.index], losses, np.nan)


# proposition 1


def cost(settings: argparse.Namespace) -> None:
    """Processor time of the jackknife, scoring apart, of counts drawn from 2, 4 and 8 states."""
    length = 4_000 if settings.quick else 10_000
    rows: list[dict[str, Any]] = []
    for states in (2, 4) if settings.quick else (2, 4, 8):
        for folds in (10, 40) if settings.quick else (10, 100, 1_000):
            key = f"{states} states, {folds} folds"
            fit = functools.cache(lambda states=states: poisson(length, states))
            row = saved.part(
                "dodgers_cost", key, lambda fit=fit, folds=folds: costs(fit(), length, folds)
            )
            rows.append({"K": states} | row)
            print(key, flush=True)
    show("Proposition 1: milliseconds of processors; folds of one step in a hundred", rows)
    saved.save("dodgers_cost", rows, length=length)
    table = pd.DataFrame(rows)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    most = table[table["folds"] == table["folds"].max()]
    largest = table[table["D"] == table["D"].max()]
    for ax, part, across in ((axes[0], most, "D"), (axes[1], largest, "folds")):
        for column in ("H and J", "IJ, parameters", "IJ, losses too", "Exact, parameters"):
            ax.loglog(part[across], part[column], "o-", label=column)
        ax.set(
            xlabel=across, xticks=part[across], xticklabels=[f"{count:,}" for count in part[across]]
        )
        ax.xaxis.set_minor_locator(NullLocator())
    axes[0].set(ylabel="ms of processors", title=f"{most['folds'].iloc[0]:,} folds")
    axes[1].set(title=f"D = {largest['D'].iloc[0]}")
    axes[1].legend(fontsize=8)
    saved.picture(figure, "dodgers_cost", dpi=80, colours=24)
    settings.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(settings.out / "dodgers_cost.png", dpi=110)


def poisson(length: int, states: int) -> lo.Fit:
    """The fit of counts drawn from so many states, started at the truth."""
    rng = np.random.default_rng(0)
    rates = 3.0 * np.arange(1, states + 1) ** 2
    path = np.zeros(length, int)
    for step in range(1, length):
        path[step] = path[step - 1] if rng.random() < 0.9 else rng.integers(states)
    transition = 0.9 * np.eye(states) + 0.1 / states
    initial = np.full(states, 1 / states)
    counts = rng.poisson(rates[path])
    hmm = lo.HMM(counts, lo.emissions.Poisson(), states, initial=initial)
    truth = {"initial": initial, "transition": transition, "rate": rates}
    return lo.fit(hmm, theta0=truth, num_starts=1)


def costs(fit: lo.Fit, length: int, folds: int) -> dict[str, Any]:
    """Milliseconds of one pass, of H and J, and of the jackknife with and without losses."""
    plan, few = (SCHEMES["i.i.d."](length, 0.01, number) for number in (folds, 2))
    jackknife = lo.InfinitesimalJackknife()
    vector, ones = raveled(fit.theta)[None], np.ones((1, length))
    calls: dict[str, Callable[[], Any]] = {
        "one pass": lambda: fit.objective.look(vector, ones),
        "H and J": lambda: lo.fold_parameters(
            lo.anchor(fit.objective, fit.parameters), few, strategy=jackknife
        ),
        "IJ, parameters": lambda: lo.fold_parameters(fit, plan, strategy=jackknife),
        "IJ, losses too": lambda: lo.cross_validate(fit, plan, strategy=jackknife),
        "Exact, parameters": lambda: lo.fold_parameters(fit, plan, strategy=lo.Exact()),
    }
    row: dict[str, Any] = {"D": fit.num_params, "folds": folds}
    for name, call in calls.items():
        repeats = 3 if timed(call).seconds < 5 else 1
        row[name] = 1000 * min(timed(call).processor for _ in range(repeats))
    row["µs a fold"] = 1000 * row["IJ, parameters"] / folds
    return row


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


def basins(settings: argparse.Namespace) -> None:
    """How often does a restart find a better optimum of a fold than the one reached from θ̂?"""
    length, folds, restarts = (4_000, 2, 2) if settings.quick else (10_000, 20, 20)
    frame = subset("week 11", length)
    fit = lo.fit(model(frame))
    objective, plan = fit.objective, SCHEMES["contiguous"](len(frame), 0.1, folds)
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    reached = optima(fit, plan, lo.Exact())
    starts = [raveled(objective.parameters.start(seed)) for seed in range(restarts)]
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
                "best": min(ends),
                "same": np.mean(np.abs(np.array(ends) - value) < 1e-3),
            }
        )
    saved.save("dodgers_basins", rows, loss=exact.mean)
    table = pd.DataFrame(rows)
    better = table["best"] < table["F from θ̂"] - 1e-3
    print(
        f"\nBasins: {better.sum()} of {len(table)} folds have a better optimum than the one reached from θ̂;"
    )
    print(
        f"{table['same'].mean():.0%} of the restarts end in the same one. Mean held-out loss {exact.mean:.4f}."
    )


PARTS = {
    "accuracy": accuracy,
    "times": times,
    "cost": cost,
    "inexact": inexact,
    "basins": basins,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"{' '.join(PARTS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that everything runs"
    )
    saved.add_option(parser)
    arguments = parser.parse_args()
    for part in arguments.parts or PARTS:
        PARTS[part](arguments)
