"""The first source document's motion capture: figures 6, 7 and 8, its parallel Hessian, and the
basins.

S. Ghosh et al., *Approximate Cross-Validation for Structured Models* (2020), appendix M. Its 124
sequences are not to be had in that form; here are the six of `lo.datasets.mocap6`, twelve channels,
each in units of the error with which the frame before predicts it (least squares over all frames),
for the document's σ² = 1.

    LEAVEOUT_DATA=… python experiments/hmm_mocap.py [orders parallel within future basins]
                                [--made] [--out out] [--quick] [--save] [--afresh]

orders    sequences left out under AR(0) to AR(5) and NAR(1), K = 16, all orders scored on the same
          steps: IJ against exact refits, times, memory, held-out losses with jackknife standard
          errors, and the order that each would choose. Each model is a part in a process of its
          own. The six sequences are cut into pieces of about a hundred steps, as long as the
          document's; `--piece 0` leaves out the six themselves.
parallel  the Hessian and the jackknife of all sequences: one after another, together, and by two
          processes
within    steps of the longest sequence left out, K = 5, at random and in a block
future    the next step of it left out with all that follows, under three emissions
basins    twenty restarts of twenty folds

With `--made` the sequences of orders, within and future are simulated, of the document's number and
length: 100 of 100 steps to fit and 24 to test (its 124, split 80/20) from an autoregression of
order one in 16 states, whose chain is held fixed, and one of 1,484 steps in 5 states.

The exact refits to compare with are SciPy's L-BFGS, from θ̂, on the passes that ours take, in
coordinates in which the anchor's Hessian is the identity, or, of many parameters, that
of the complete data, made anew every hundred steps.
"""

import argparse
import functools
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
import scipy.optimize
import scipy.sparse

import leaveout as lo
from leaveout.objectives.objective import unflatten

ORDERS = ("AR(0)", "AR(1)", "AR(2)", "AR(3)", "AR(4)", "AR(5)", "NAR(1)")
LONGEST = 5  # lags: steps at the start of every sequence that no order scores
NETWORK_REFITS = 3  # of networks, each of which takes minutes; the document has three from AR(2) on
COLOURS = {
    "IJ": "C3",
    "NewtonStep": "C1",
    "Certified": "C0",
    "Exact": "C2",
    "refits": "0.4",
    "NoUpdate": "0.7",
}
SHORT = {"InfinitesimalJackknife": "IJ"}


def captured(piece: int = 0, quick: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Frames in units of one step's unpredictable part, and the lengths of the sequences, or of
    pieces of them.
    """
    frames, lengths = lo.datasets.mocap6()
    x = frames.drop(columns=["sequence", "step", "action"]).to_numpy()
    if quick:
        x, lengths = x[: lengths[0], :3], lengths[:1]
    if piece:
        parts = [
            np.array_split(np.arange(length), max(1, round(length / piece))) for length in lengths
        ]
        lengths = [len(part) for each in parts for part in each]
    begins = np.isin(np.arange(1, len(x)), np.cumsum(lengths))
    before, after = np.column_stack([np.ones(len(x) - 1), x[:-1]])[~begins], x[1:][~begins]
    residual = after - before @ np.linalg.lstsq(before, after)[0]
    return x / residual.std(0), np.asarray(lengths)


def emission(name: str, skip: int | None = None) -> lo.emissions.AbstractEmission:
    """What "AR(p)" and "NAR(1)" stand for; NAR is 12-12-12."""
    order = int(name[-2])
    if name.startswith("NAR"):
        return lo.emissions.NeuralAutoregressive(12, order, skip=skip)
    return lo.emissions.Autoregressive(order, skip=skip)


class Sequences(NamedTuple):
    x: np.ndarray
    lengths: np.ndarray
    test: tuple[np.ndarray, np.ndarray] | None = None  # others, to test on
    chain: dict[str, np.ndarray] | None = None  # held fixed


def made(quick: bool) -> Sequences:
    """Simulated, of the document's number and length."""
    number, tested, length, states = (8, 2, 50, 2) if quick else (100, 24, 100, 16)
    x, chain = simulation(number + tested, length, states)
    parts = x[: number * length], x[number * length :]
    each = np.full(number, length), np.full(tested, length)
    return Sequences(parts[0], each[0], (parts[1], each[1]), chain)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def show(title: str, rows: list[dict] | pd.DataFrame, form: str = "{:.3g}") -> None:
    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
    print(
        f"\n{title}\n{table.to_string(index=False, na_rep='', float_format=form.format)}",
        flush=True,
    )


def say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def by_name(refit: lo.developer.AbstractRefit) -> str:
    return SHORT.get(type(refit).__name__, type(refit).__name__)


def gigabytes() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# fits


def descent(hmm: lo.HMM) -> Callable[..., scipy.optimize.OptimizeResult]:
    """L-BFGS on F(·, w), of raveled θ."""

    def down(
        start: np.ndarray,
        weights: np.ndarray,
        gtol: float = 1e-3,
        scale: Any = None,
        steps: int = 20_000,
    ) -> scipy.optimize.OptimizeResult:
        """From `start`; with a matrix S, in coordinates of which S makes displacements of θ."""
        place = lambda u: start + (u if scale is None else scale @ u)

        def function(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient, _ = hmm.look(place(u)[None], weights[None])
            return float(value[0]), gradient[0] if scale is None else scale.T @ gradient[0]

        options = {
            "gtol": gtol,
            "ftol": 1e-15,
            "maxiter": steps,
            "maxfun": 20 * steps,
            "maxcor": 20,
        }
        found = scipy.optimize.minimize(
            function, np.zeros_like(start), jac=True, method="L-BFGS-B", options=options
        )
        return scipy.optimize.OptimizeResult(
            x=place(found.x), fun=found.fun, ended=found.nit < steps
        )

    return down


def coordinates(hmm: lo.HMM, vector: np.ndarray, weights: np.ndarray) -> Any:
    """S in whose coordinates the Hessian of the complete data is the identity."""
    parts = hmm.preconditioner(unflatten(vector, hmm.parameters.start(0)), weights)
    size, rows, columns, values = len(vector), [], [], []
    for entries, matrices in parts:
        try:
            root = np.linalg.inv(np.linalg.cholesky(np.asarray(matrices))).swapaxes(1, 2)
        except np.linalg.LinAlgError:  # networks
            curvature, turn = np.linalg.eigh(np.asarray(matrices))
            root = turn / np.sqrt(np.maximum(np.abs(curvature), 1e-3))[:, None]
        here = np.broadcast_to(np.asarray(entries)[:, :, None], root.shape)
        rows.append(here.ravel())
        columns.append(here.swapaxes(1, 2).ravel())
        values.append(root.ravel())
    flat = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return scipy.sparse.csr_array(flat, shape=(size, size))


def raveled(theta: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])


def fitted(name: str, hmm: lo.HMM, num_starts: int) -> tuple[lo.Fit, dict[str, Any]]:
    """The lowest of several minima.

    Seconds, those of one more Hessian, and how far from stationary it is, also printed.
    """
    search, fit = timed(lambda: lo.fit(hmm, num_starts=num_starts))
    hessian, fit = timed(lambda: lo.anchor(hmm, fit.parameters))
    told = {"D": fit.num_params, "F": float(fit.value), "fit, s": search, "Hessian, s": hessian}
    told["decrement"] = float(fit.decrement)
    say(
        f"{name} fitted: "
        + ", ".join(f"{key} {value:.4g}" for key, value in told.items())
        + f", {gigabytes():.2f} GB"
    )
    return fit, told


def refitted(
    fit: lo.Fit, plan: lo.Plan, places: list[np.ndarray] | None = None
) -> tuple[float, lo.Estimate, np.ndarray]:
    """Seconds, held-out losses and minima of F of refits by L-BFGS, from θ̂ or a place for each."""
    hmm, start, losses = fit.objective, raveled(fit.theta), np.full(len(plan.index), np.nan)
    down = descent(hmm)
    weights = plan.matrix()
    down(start, weights[0], 1e30)
    large = fit.num_params >= 500

    def refit(place: np.ndarray, w: np.ndarray) -> scipy.optimize.OptimizeResult:
        if not large:
            return down(place, w, 1e-6, fit.quadratic.whitener.T)
        found = down(place, w, 1e-6, coordinates(hmm, place, w), 100)
        while not found.ended:
            found = down(found.x, w, 1e-6, coordinates(hmm, found.x, w), 100)
        return found

    seconds, lowest = 0.0, np.zeros(plan.num_refits)
    for k, w in enumerate(weights):
        took, found = timed(lambda k=k, w=w: refit(start if places is None else places[k], w))
        mine = np.flatnonzero((plan.refit == k) & plan.held)
        losses[mine] = scores(hmm, found.x, w, plan.index[mine])
        seconds, lowest[k] = seconds + took, found.fun
    seen = plan.held if hmm.units.observed is None else plan.held & hmm.units.observed[plan.index]
    zero = np.zeros(plan.num_refits)
    estimate = lo.Estimate(
        np.where(seen, losses, np.nan), zero, zero.astype(int), replace(plan, held=seen), losses
    )
    return seconds, estimate, lowest


def scores(hmm: lo.HMM, vector: np.ndarray, weights: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Held-out losses of units at raveled θ."""
    held = np.ones((1, len(index)), bool)
    return hmm.losses(vector[None], weights[None], index[None], held)[0]


def minima(
    fit: lo.Fit, plan: lo.Plan, refit: lo.developer.AbstractRefit
) -> tuple[list[np.ndarray], np.ndarray]:
    """Raveled parameters of refits, and their F."""
    found, hmm = lo.fold_parameters(fit, plan, strategy=refit), fit.objective
    each = [
        raveled(hmm.parameters.unconstrained(jax.tree.map(lambda leaf, k=k: leaf[k], found)))
        for k in range(plan.num_refits)
    ]
    return each, hmm.look(np.array(each), plan.matrix())[0]


def agreed(
    fit: lo.Fit, plan: lo.Plan, lowest: np.ndarray, refit: lo.developer.AbstractRefit, within: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The folds that a strategy brings to the minimum, of this F but for `within`, that L-BFGS
    found, and where it brings each; prints how the others differ."""
    places, values = minima(fit, plan, refit)
    above = values - lowest
    lower, higher = np.sum(above < -within), np.sum(~(above <= within))
    say(
        f"F of {len(plan)} minima of {by_name(refit)}: {lower} more than {within} below that of L-BFGS, {higher} above"
    )
    return np.abs(above) <= within, places


def summed(cv: lo.Estimate) -> np.ndarray:
    """The summed loss of each fold; NaN where a refit was lost."""
    return np.bincount(cv.plan.refit, np.where(cv.plan.held, cv.losses, 0.0), cv.plan.num_refits)


def diagonal(ax: plt.Axes, values: np.ndarray) -> None:
    limits = np.nanmin(values), np.nanmax(values)
    ax.plot(limits, limits, "k--", lw=0.8, zorder=0)


def save(figure: plt.Figure, out: Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png", dpi=110)
    saved.picture(figure, name, dpi=75, colours=32)
    plt.close(figure)
    say(f"wrote {out / name}.png")


# figure 6


def orders(settings: argparse.Namespace) -> None:
    """Whole sequences left out under autoregressions of several orders, each in a process of its
    own.
    """
    names = settings.orders or (("AR(1)",) if settings.quick else ORDERS)
    piece = 50 if settings.quick else settings.piece
    data = made(settings.quick) if settings.made else Sequences(*captured(piece, settings.quick))
    x, lengths = data.x, data.lengths
    plan, scored = lo.leave_one_out(len(lengths)), lengths - LONGEST
    say(f"{len(lengths)} sequences of {lengths.min()} to {lengths.max()} steps")
    rows: list[dict] = []
    estimates: dict[str, dict[str, lo.Estimate]] = {}
    losses: dict[str, dict[str, np.ndarray]] = {}
    table = f"mocap_figure6_{settings.kind}"
    for name in names:
        folds = refitted_folds(name, len(plan), settings.refits)
        choices = (settings.starts, len(folds), settings.certified, settings.dense)
        estimates[name], record = saved.part(
            table,
            f"{name} {choices}",
            lambda name=name, folds=folds: alone(one_order, name, data, plan, folds, settings),
        )
        rows += order_rows(name, estimates[name], record, scored, folds)
        losses[name] = {kind: summed(cv) for kind, cv in estimates[name].items()}
        title = f"Figure 6 so far: {len(plan)} folds; errors of a fold's loss a step against L-BFGS"
        show(
            f"{title}, from the minimum of Certified, or of Exact if run, where it is another", rows
        )
        steps = [lengths.min(), lengths.max()]
        saved.save(table, rows, folds=len(plan), steps=steps, losses=losses)
        figure6(x[: lengths[0]], estimates, pd.DataFrame(rows), scored, settings.out, table)
        if len(estimates) > 1:
            kinds = [
                kind
                for kind in ("NoUpdate", "IJ", "Certified", "refits")
                if all(kind in of_model for of_model in estimates.values())
                and (kind != "refits" or len({len(e[kind].plan) for e in estimates.values()}) == 1)
            ]
            if settings.made:
                test = pd.DataFrame(rows).groupby("model")["test loss a step"].first()
                print(f"\nLeast loss on the test set: {test.idxmin()}")
            chosen = {kind: choice(estimates, kind) for kind in kinds}
            print(
                "\nOrder chosen so far by "
                + ", by ".join(f"{kind}: {name}" for kind, name in chosen.items())
            )


def refitted_folds(name: str, number: int, refits: int) -> np.ndarray:
    """The folds that are refitted by L-BFGS: all, or so many spread over them."""
    if refits and name.startswith("NAR"):
        refits = min(refits, NETWORK_REFITS)
    return np.unique(np.linspace(0, number - 1, refits or number).round().astype(int))


def order_rows(
    name: str,
    estimates: dict[str, lo.Estimate],
    record: dict,
    scored: np.ndarray,
    folds: np.ndarray,
) -> list[dict]:
    """A row for each way to refit one model."""
    rows = []
    for kind, cv in estimates.items():
        losses = summed(cv) if kind == "refits" else summed(cv)[folds]
        error = np.abs(losses - record["truth"]) / scored[folds]
        row = {"model": name, "refit": kind, "folds": len(cv.plan)}
        row |= {"seconds": record["seconds"][kind], "loss a step": a_step(cv, scored)}
        row["SE"] = jackknife(summed(cv), scored[cv.plan.index])
        row |= {"refitted": len(folds), "other minimum": record["other minimum"]}
        row |= {"mean |error|": error.mean(), "worst": error.max()}
        row["flagged"] = np.nan if kind == "NoUpdate" else len(cv.flagged())
        extra = {k: v for k, v in record.items() if k not in ("seconds", "truth", "other minimum")}
        rows.append(row | extra)
    return rows


def alone(run: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own, whose memory is then free again."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(run, *arguments).result()


def one_order(
    name: str, data: Sequences, plan: lo.Plan, some: np.ndarray, settings: argparse.Namespace
) -> tuple[dict[str, lo.Estimate], dict]:
    """The estimates under one model by name, refits by L-BFGS of some folds among them; seconds,
    and the losses of these folds to compare with: those of the refits, or, where Certified (or
    Exact) went to another minimum than they, those of refits from there."""
    states, starts = (2, 1) if settings.quick else (16, settings.starts)
    truth_plan = lo.Plan(
        np.arange(len(some) + 1),
        some,
        np.zeros(len(some)),
        np.ones(len(some), bool),
        len(data.lengths),
    )
    model = lambda x, lengths: lo.HMM(
        x,
        emission(name, LONGEST),
        states,
        lengths=lengths,
        drop="observation" if lengths is None else "sequence",
        **(data.chain or {}),
    )
    fit, told = fitted(name, model(data.x, data.lengths), starts)
    if data.test is not None:
        told |= tested(data.test, lambda x: model(x, None), fit.parameters)
    strategies = [lo.InfinitesimalJackknife()]
    strategies += [lo.Certified()] if fit.num_params <= settings.certified else []
    strategies += [lo.NewtonStep(), lo.Exact()] if fit.num_params <= settings.dense else []
    estimates, seconds = {}, {"NoUpdate": np.nan}
    for refit in strategies:
        run = lambda r=refit: lo.cross_validate(fit, plan, strategy=r, audit=0)
        cold, estimates[by_name(refit)] = timed(run)
        cheap = cold < 60  # else compiling does not matter, and once is enough
        seconds[by_name(refit)] = timed(run)[0] if cheap else cold
        say(
            f"{name} {by_name(refit)}: {seconds[by_name(refit)]:.3g} s{flags(estimates[by_name(refit)])}"
        )
    first = estimates["IJ"]
    estimates = {
        "NoUpdate": replace(first, losses=first.baseline, error=np.full(len(plan), np.nan))
    } | estimates
    seconds["refits"], estimates["refits"], lowest = refitted(fit, truth_plan)
    told |= {"seconds": seconds, "truth": summed(estimates["refits"]), "other minimum": np.nan}
    if fit.num_params <= settings.certified:
        small = fit.num_params <= settings.dense
        same, places = agreed(
            fit, truth_plan, lowest, *((lo.Exact(), 1e-3) if small else (lo.Certified(), 0.1))
        )
        told["other minimum"] = np.sum(~same)
        if not same.all():
            took, there, _ = refitted(fit, truth_plan, places)
            told["truth"] = np.where(same, told["truth"], summed(there))
            say(f"{name}: L-BFGS from these minima: {took:.3g} s")
    return estimates, told | {"peak, GB": gigabytes()}


def tested(
    test: tuple[np.ndarray, np.ndarray], model: Callable[[np.ndarray], lo.HMM], parameters: Any
) -> dict[str, float]:
    """The loss a step of other sequences, and its jackknife standard error."""
    x, lengths = test
    sequences = np.split(x, np.cumsum(lengths)[:-1])
    losses = np.array([-model(sequence).log_likelihood(parameters) for sequence in sequences])
    steps = lengths - LONGEST
    return {"test loss a step": losses.sum() / steps.sum(), "test SE": jackknife(losses, steps)}


def flags(cv: lo.Estimate) -> str:
    """What its flagged refits are flagged as."""
    results = cv.table().drop_duplicates("refit").set_index("refit")["result"]
    counts = results[cv.flagged()].value_counts()
    reasons = {name: "error too large" if name == "successful" else name for name in counts.index}
    return "".join(f", {count} flagged: {reasons[name]}" for name, count in counts.items())


def a_step(cv: lo.Estimate, scored: np.ndarray) -> float:
    """The mean loss of the steps of all folds of an estimate that have one."""
    have = np.isfinite(cv.losses)
    return cv.losses[have].sum() / scored[cv.plan.index[have]].sum()


def choice(found: dict[str, dict[str, lo.Estimate]], kind: str) -> str:
    """The model of least held-out loss; prints the comparison."""
    table = lo.compare({name: estimates[kind] for name, estimates in found.items()})
    show(f"By {kind}, loss a sequence", table.reset_index(names="model"))
    return str(table.index[0])


def figure6(
    sequence: np.ndarray,
    found: dict,
    table: pd.DataFrame,
    scored: np.ndarray,
    out: Path,
    name: str,
) -> None:
    names = list(found)
    figure = plt.figure(figsize=(max(9.0, 2.1 * len(names)), 10), layout="constrained")
    grid = figure.add_gridspec(3, 2 * len(names), height_ratios=[1, 1.2, 1.4])
    top = figure.add_subplot(grid[0, : 2 * len(names) - max(1, len(names) // 2)])
    top.plot(sequence, lw=0.7)
    top.set(title=f"A sequence, {sequence.shape[1]} channels", xlabel="step", ylabel="x")
    sizes = figure.add_subplot(grid[0, 2 * len(names) - max(1, len(names) // 2) :])
    first = table.drop_duplicates("model")
    sizes.barh(first["model"], first["D"], color="0.6")
    sizes.invert_yaxis()
    sizes.set(title="D")
    sizes.tick_params(axis="x", rotation=45)
    for i, model in enumerate(names):
        ax = figure.add_subplot(grid[1, 2 * i : 2 * i + 2])
        folds = found[model]["refits"].plan.index
        truth = summed(found[model]["refits"]) / scored[folds]
        shown = [kind for kind in ("NoUpdate", "IJ", "Certified") if kind in found[model]]
        for kind, marker in zip(shown, "^ox", strict=False):
            ax.plot(
                truth,
                (summed(found[model][kind]) / scored)[folds],
                marker,
                ms=5,
                color=COLOURS[kind],
                label=kind,
                mfc="none",
            )
        diagonal(ax, truth)
        ax.set(title=model, xlabel="exact, a step")
        if i == 0:
            ax.set_ylabel("approximate")
            ax.legend(fontsize=7)
    time_panel = figure.add_subplot(grid[2, : len(names)])
    kinds = [
        kind
        for kind in ("IJ", "Certified", "Exact", "NewtonStep", "refits")
        if kind in set(table["refit"])
    ]
    width = 0.8 / len(kinds)
    for j, kind in enumerate(kinds):
        own = table[table["refit"] == kind]
        place = (
            np.array([names.index(name) for name in own["model"]])
            + (j - (len(kinds) - 1) / 2) * width
        )
        label = "L-BFGS, its folds" if kind == "refits" else kind
        time_panel.bar(place, own["seconds"], width, color=COLOURS[kind], label=label)
    time_panel.plot(range(len(names)), first["Hessian, s"], "k_", ms=22, label="Hessian, once")
    time_panel.set(
        yscale="log",
        ylabel=f"seconds, {len(scored)} folds",
        xticks=range(len(names)),
        xticklabels=names,
        title="Time",
    )
    time_panel.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.07))
    loss_panel = figure.add_subplot(grid[2, len(names) :])
    whole = [
        kind
        for kind in ("IJ", "Certified", "refits")
        if kind in kinds
        and (kind != "refits" or all(len(e["refits"].plan) == len(scored) for e in found.values()))
    ]
    for j, kind in enumerate(whole):
        have = [i for i, name in enumerate(names) if kind in found[name]]
        means = [a_step(found[names[i]][kind], scored) for i in have]
        spread = [2 * jackknife(summed(found[names[i]][kind]), scored) for i in have]
        label = "exact" if kind == "refits" else kind
        place = np.array(have) + 0.15 * (j - 1)
        loss_panel.errorbar(
            place, means, spread, fmt="o", ms=4, capsize=3, color=COLOURS[kind], label=label
        )
    if "test loss a step" in first:
        loss_panel.plot(
            np.arange(len(names)) + 0.3, first["test loss a step"], "k_", ms=10, label="test set"
        )
    loss_panel.set(
        xticks=range(len(names)),
        xticklabels=names,
        yscale="log",
        title="Held-out loss a step, ± 2 jackknife SE",
    )
    loss_panel.yaxis.set_major_formatter("{x:g}")
    loss_panel.yaxis.set_minor_formatter("{x:g}")
    loss_panel.legend(fontsize=7)
    save(figure, out, name)


def jackknife(losses: np.ndarray, steps: np.ndarray) -> float:
    """The standard error of a ratio of sums, by leaving out one sequence after another of those
    that have a loss.
    """
    losses, steps = losses[np.isfinite(losses)], steps[np.isfinite(losses)]
    n = len(losses)
    others = (losses.sum() - losses) / (steps.sum() - steps)
    return float(np.sqrt((n - 1) * np.mean((others - others.mean()) ** 2)))


# the parallel Hessian


class Sums(NamedTuple):
    """∇²F and the gradients of sequences at θ̂, and the seconds of a processor."""

    hessian: np.ndarray
    gradients: np.ndarray
    processor: float


def derivatives(data: Sequences, theta: Any, states: int, together: bool) -> Sums:
    """∇²F of all sequences, summed one after another or together, without the prior, and the
    gradient of each.
    """
    start = time.process_time()
    sequences = np.split(data.x, np.cumsum(data.lengths)[:-1])
    single = [lo.HMM(x, emission("AR(1)"), states, **data.chain) for x in sequences]
    vector = raveled(theta)
    gradients = np.array([gradient_of_data(model, vector) for model in single])
    groups = single
    if together:
        groups = [lo.HMM(data.x, emission("AR(1)"), states, lengths=data.lengths, **data.chain)]
    hessian = sum(hessian_of_data(model, theta) for model in groups)
    return Sums(hessian, gradients, time.process_time() - start)


def gradient_of_data(model: lo.HMM, vector: np.ndarray) -> np.ndarray:
    weights = np.stack([np.ones(model.num_units), np.zeros(model.num_units)])
    gradient = model.look(np.stack([vector, vector]), weights)[1]
    return gradient[0] - gradient[1]


def hessian_of_data(model: lo.HMM, theta: Any) -> np.ndarray:
    ones = np.ones(model.num_units)
    with jax.enable_x64(True):
        return np.asarray(model.hessian(theta, ones)) - np.asarray(model.hessian(theta, 0 * ones))


def parallel(settings: argparse.Namespace) -> None:
    """The Hessian of all sequences and their jackknife under AR(1): one after another, together,
    and by two processes.
    """
    states = 2 if settings.quick else 16
    data = made(settings.quick)._replace(test=None)
    hmm = lo.HMM(
        data.x, emission("AR(1)"), states, lengths=data.lengths, drop="sequence", **data.chain
    )
    rows = saved.part("mocap_parallel", "AR(1)", lambda: parallel_rows(hmm, data, states))
    show("Hessian and jackknife of all sequences under AR(1), seconds of second calls", rows)
    saved.save("mocap_parallel", rows, sequences=len(data.lengths), steps=int(data.lengths[0]))
    figure, ax = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
    table = pd.DataFrame(rows).iloc[::-1]
    ax.barh(table["way"], table["seconds"], color="C3")
    ax.plot(table["processor"], table["way"], "k|", ms=16, label="seconds of processors")
    ax.set(xlabel=f"seconds, {len(data.lengths)} sequences left out, D = {table['D'].iloc[0]:,}")
    ax.legend(fontsize=8)
    save(figure, settings.out, "mocap_parallel")


def parallel_rows(hmm: lo.HMM, data: Sequences, states: int) -> list[dict]:
    fit, _ = fitted("AR(1)", hmm, 1)
    theta, half = fit.theta, len(data.lengths) // 2
    cut = int(data.lengths[:half].sum())
    halves = [
        data._replace(x=data.x[:cut], lengths=data.lengths[:half]),
        data._replace(x=data.x[cut:], lengths=data.lengths[half:]),
    ]
    prior = np.asarray(hessian_of_prior(hmm, theta))

    def by_processes(pool: ProcessPoolExecutor) -> Sums:
        tasks = [pool.submit(derivatives, part, theta, states, True) for part in halves]
        parts = [task.result() for task in tasks]
        gradients = np.concatenate([part.gradients for part in parts])
        processor = sum(part.processor for part in parts)
        return Sums(sum(part.hessian for part in parts), gradients, processor)

    def moves(sums: Sums) -> np.ndarray:
        """θ_o − θ̂ of each sequence left out."""
        return np.linalg.solve(sums.hessian + prior, sums.gradients.T).T

    rows, steps = [], {}
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        ways: dict[str, Callable[[], Sums]] = {
            "one after another": lambda: derivatives(data, theta, states, False),
            "together": lambda: derivatives(data, theta, states, True),
            "two processes, each together": lambda: by_processes(pool),
        }
        for way, compute in ways.items():
            compute()
            start = time.process_time()
            seconds, (sums, steps[way]) = timed(lambda compute=compute: both(compute, moves))
            processor = time.process_time() - start
            if "processes" in way:
                processor += sums.processor
            rows.append(
                {"way": way, "D": fit.num_params, "seconds": seconds, "processor": processor}
            )
            say(f"{way}: {seconds:.3g} s")
    plan, jackknife = lo.leave_one_out(len(data.lengths)), lo.InfinitesimalJackknife()
    ours = lambda: lo.fold_parameters(lo.anchor(hmm, fit.parameters), plan, strategy=jackknife)
    ours()
    start = time.process_time()
    seconds, parameters = timed(ours)
    rows.append(
        {
            "way": "lo.anchor and the jackknife",
            "D": fit.num_params,
            "seconds": seconds,
            "processor": time.process_time() - start,
        }
    )
    origin = raveled(theta)
    refits = [
        raveled(hmm.parameters.unconstrained(jax.tree.map(lambda leaf, k=k: leaf[k], parameters)))
        for k in range(len(plan))
    ]
    steps[rows[-1]["way"]] = np.array(refits) - origin
    for row in rows:
        row["largest difference"] = np.abs(steps[row["way"]] - steps["one after another"]).max()
    return rows


def both(compute: Callable[[], Sums], moves: Callable[[Sums], np.ndarray]) -> Any:
    sums = compute()
    return sums, moves(sums)


def hessian_of_prior(hmm: lo.HMM, theta: Any) -> Any:
    with jax.enable_x64(True):
        return hmm.hessian(theta, np.zeros(hmm.num_units))


def simulation(number: int, length: int, states: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Sequences from an AR(1) HMM in twelve channels, and its chain."""
    rng = np.random.default_rng(0)
    turns = np.linalg.qr(rng.standard_normal((states, 1, 12, 12)))[0]
    stay = 0.9
    chain = {
        "initial": np.full(states, 1 / states),
        "transition": stay * np.eye(states) + (1 - stay) / states,
    }
    own = {"coefficients": 0.8 * turns, "bias": rng.standard_normal((states, 12))}
    blank = lo.HMM(rng.standard_normal((20 * states, 12)), emission("AR(1)"), states, **chain)
    return np.concatenate(
        [blank.simulate(own, length, rng=seed)[0] for seed in range(number)]
    ), chain


# figures 7 and 8


def longest(settings: argparse.Namespace) -> np.ndarray:
    if settings.made:
        return simulation(1, 200 if settings.quick else 1484, 5)[0]
    x, lengths = captured(quick=settings.quick)
    n, ends = int(np.argmax(lengths)), np.cumsum(lengths)
    return x[ends[n] - lengths[n] : ends[n]]


STRATEGIES = (
    lo.NoUpdate(),
    lo.InfinitesimalJackknife(),
    lo.NewtonStep(),
    lo.Certified(),
    lo.Exact(),
)


class Comparison(NamedTuple):
    """All strategies and the refits, the folds where both ways down from θ̂ reach one minimum, and
    a row for each strategy with its errors over these folds.
    """

    estimates: dict[str, lo.Estimate]
    same: np.ndarray
    rows: list[dict]


def compared(fit: lo.Fit, plan: lo.Plan, told: dict) -> Comparison:
    rows = []
    seconds, truth, lowest = refitted(fit, plan)
    same, _ = agreed(fit, plan, lowest, lo.Exact(), 1e-3)
    estimates, counts = {"refits": truth}, np.bincount(plan.refit, truth.plan.held, plan.num_refits)
    took = {"refits": seconds}
    for refit in STRATEGIES:
        took[by_name(refit)], estimates[by_name(refit)] = timed(
            lambda r=refit: lo.cross_validate(fit, plan, strategy=r, audit=0)
        )
    for kind, cv in estimates.items():
        error = (np.abs(summed(cv) - summed(truth)) / counts)[same]
        row = {
            **told,
            "other minimum": np.sum(~same),
            "refit": kind,
            "seconds": took[kind],
            "loss": cv.mean,
        }
        spread = {"mean |error|": error.mean(), "median": np.median(error), "worst": error.max()}
        rows.append(
            {
                **row,
                **spread,
                "estimated": (cv.error / counts)[same].max(),
                "flagged": len(cv.flagged()),
            }
        )
    return Comparison(estimates, same, rows)


def within(settings: argparse.Namespace) -> None:
    """Steps of one sequence left out, at random and in a block (figure 7)."""
    x = longest(settings)
    states, trials, starts = (2, 3, 2) if settings.quick else (5, 10, settings.starts)
    table = f"mocap_figure7_{settings.kind}"
    fit = functools.cache(
        lambda: fitted("Gaussian", lo.HMM(x, lo.emissions.Gaussian(), states), starts)[0]
    )
    rows: list[dict] = []
    fold_losses: list[dict] = []
    shares = (
        (0.05, 0.25)
        if settings.quick
        else (0.02, 0.05, 0.10)
        if settings.made
        else (0.02, 0.05, 0.10, 0.25)
    )
    figure, axes = plt.subplots(
        2, len(shares), figsize=(3.4 * len(shares), 7), layout="constrained"
    )
    errors, panels = plt.subplots(
        2, len(shares), figsize=(3.4 * len(shares), 6), layout="constrained", sharey=True
    )
    for i, (scheme, make) in enumerate(
        {"i.i.d.": lo.random_subsets, "contiguous": lo.contiguous}.items()
    ):
        for j, share in enumerate(shares):
            plan = make(len(x), share, trials, rng=0)
            labels = {"folds": scheme, "left out": share}
            estimates, same, cell_rows = saved.part(
                table,
                f"{scheme}, {share:.0%}, {starts} starts",
                lambda plan=plan, labels=labels: compared(fit(), plan, labels),
            )
            rows += cell_rows
            fold_losses.append(labels | {k: summed(cv) for k, cv in estimates.items()})
            scatter(axes[i, j], estimates, same, f"{scheme}, {share:.0%}")
            bars(panels[i, j], estimates, same, f"{scheme}, {share:.0%}")
        title = f"Figure 7 so far: T = {len(x)}, K = {states}; errors of a fold's mean loss against refits by L-BFGS"
        show(f"{title}, where both reach one minimum; seconds with compiling", rows, "{:.2e}")
        saved.save(table, rows, length=len(x), states=states, losses=fold_losses)
    legend(figure)
    save(figure, settings.out, table)
    save(errors, settings.out, f"mocap_figure7_errors_{settings.kind}")


def future(settings: argparse.Namespace) -> None:
    """The next step of one sequence left out with all that follows (figure 8)."""
    x = longest(settings)
    rows: list[dict] = []
    states, starts = (2, 2) if settings.quick else (5, settings.starts)
    models = {
        "Gaussian": lo.emissions.Gaussian(),
        "AR(1)": emission("AR(1)"),
        "NAR(1)": emission("NAR(1)"),
    }
    figure, axes = plt.subplots(1, len(models), figsize=(11, 4), layout="constrained")
    table = f"mocap_figure8_{settings.kind}"
    losses: dict[str, dict[str, np.ndarray]] = {}
    for ax, (name, own) in zip(axes, models.items(), strict=True):
        first = (
            len(x) - 3 if settings.quick else round((0.98 if name == "NAR(1)" else 0.9) * len(x))
        )
        plan = thinned(lo.leave_future_out(len(x), first, horizon=1), settings.every)
        hmm = lo.HMM(x, own, states)
        estimates, same, model_rows = saved.part(
            table,
            f"{name}, {len(plan)} origins, {starts} starts",
            lambda name=name, hmm=hmm, plan=plan: one_emission(name, hmm, plan, starts),
        )
        rows += model_rows
        losses[name] = {kind: summed(cv) for kind, cv in estimates.items()}
        scatter(ax, estimates, same, f"{name}, D = {model_rows[0]['D']:,}", ("NoUpdate",))
        show("Figure 8 so far: the next step left out with all that follows", rows, "{:.2e}")
        saved.save(table, rows, length=len(x), every=settings.every, losses=losses)
    legend(figure)
    save(figure, settings.out, table)


def one_emission(name: str, hmm: lo.HMM, plan: lo.Plan, starts: int) -> Comparison:
    fit, _ = fitted(name, hmm, starts)
    return compared(fit, plan, {"model": name, "D": fit.num_params, "origins": len(plan)})


def thinned(plan: lo.Plan, every: int) -> lo.Plan:
    """One refit in so many."""
    kept = np.arange(0, plan.num_refits, every)
    entries = np.isin(plan.refit, kept)
    indptr = np.concatenate([[0], np.cumsum(np.diff(plan.indptr)[kept])])
    return replace(
        plan,
        indptr=indptr,
        index=plan.index[entries],
        weight=plan.weight[entries],
        held=plan.held[entries],
    )


def scatter(
    ax: plt.Axes,
    estimates: dict[str, lo.Estimate],
    same: np.ndarray,
    title: str,
    baseline: tuple[str, ...] = (),
) -> None:
    truth = estimates["refits"]
    here = same[truth.plan.refit]
    for kind, marker in (*((kind, "^") for kind in baseline), ("IJ", "o"), ("Certified", "x")):
        losses = estimates[kind].losses
        ax.plot(
            truth.losses[here],
            losses[here],
            marker,
            ms=4,
            color=COLOURS[kind],
            alpha=0.6,
            mfc="none",
            label=kind,
        )
    if not same.all():
        other = estimates["Certified"].losses[~here]
        ax.plot(
            truth.losses[~here],
            other,
            "+",
            ms=4,
            color="0.7",
            label="Certified, another minimum",
            zorder=0,
        )
    diagonal(ax, truth.losses)
    ax.set(title=title, xlabel="exact", ylabel="approximate")


def legend(figure: plt.Figure) -> None:
    """One for all panels, above them."""
    each = {
        label: handle
        for ax in figure.axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        each.values(), each.keys(), loc="outside upper center", ncols=len(each), fontsize=8
    )


def bars(ax: plt.Axes, estimates: dict[str, lo.Estimate], same: np.ndarray, title: str) -> None:
    """The error of each fold's mean loss."""
    truth = estimates["refits"]
    counts = np.bincount(truth.plan.refit, truth.plan.held, truth.plan.num_refits)
    kinds = ("NoUpdate", "IJ", "NewtonStep", "Certified", "Exact")
    for j, kind in enumerate(kinds):
        error = (np.abs(summed(estimates[kind]) - summed(truth)) / counts)[same]
        ax.semilogy(
            np.full(len(error), j),
            np.maximum(error, 1e-10),
            "o",
            ms=4,
            color=COLOURS[kind],
            alpha=0.6,
        )
    ax.set(title=title, xticks=range(len(kinds)), ylabel="error of a fold's mean loss")
    ax.set_xticklabels(kinds, rotation=40, ha="right", fontsize=8)
    ax.label_outer()


# basins


def basins(settings: argparse.Namespace) -> None:
    """How often does a restart find a better optimum of a fold than the one reached from θ̂, and
    what does it change?
    """
    x = longest(settings)
    states, folds, restarts = (2, 3, 3) if settings.quick else (5, 20, 20)
    hmm = lo.HMM(x, lo.emissions.Gaussian(), states)
    fit, _ = fitted("Gaussian", hmm, restarts)
    plan, down, rows = lo.contiguous(len(x), 0.1, folds, rng=0), descent(hmm), []
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    parameters, lowest = minima(fit, plan, lo.Exact())
    for k, w in enumerate(plan.matrix()):
        reached, own = parameters[k], float(lowest[k])
        runs = [down(raveled(hmm.parameters.start(seed)), w) for seed in range(restarts)]
        best = min(runs, key=lambda run: run.fun)
        index = plan.index[plan.refit == k]
        ends = np.array([run.fun for run in runs])
        row = {
            "fold": k,
            "F from θ̂": own,
            "best restart": best.fun,
            "same": np.mean(np.abs(ends - own) < 1e-3),
        }
        losses = {
            "loss from θ̂": scores(hmm, reached, w, index).mean(),
            "loss of the best": scores(hmm, best.x, w, index).mean(),
        }
        rows.append({**row, "better": np.mean(ends < own - 1e-3), **losses})
    table = pd.DataFrame(rows)
    show(
        f"Basins: {folds} folds of 10 % in a block, {restarts} restarts each, T = {len(x)}, K = {states}",
        table,
        "{:.4f}",
    )
    better = table["best restart"] < table["F from θ̂"] - 1e-3
    change = (table["loss of the best"] - table["loss from θ̂"])[better]
    print(
        f"{better.sum()} of {folds} folds have a better optimum than the one reached from θ̂; there the mean held-out loss"
    )
    print(
        f"changes by {change.mean() if better.any() else 0:+.4f} (from {change.min():+.4f} to {change.max():+.4f}),"
    )
    print(
        f"over all folds by {change.sum() / folds:+.4f}; {table['same'].mean():.0%} of the restarts end in the same one."
    )
    print(f"Mean held-out loss {exact.mean:.4f}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", default=[], help="orders parallel within future basins; all by default"
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that everything runs"
    )
    parser.add_argument("--orders", nargs="*", default=[], help='such as "AR(0)" "NAR(1)"')
    parser.add_argument(
        "--piece",
        type=int,
        default=100,
        help="steps of the pieces that sequences are cut into; 0: whole",
    )
    parser.add_argument("--starts", type=int, default=3, help="starts of each fit")
    parser.add_argument(
        "--refits", type=int, default=0, help="orders: refits to compare with; 0: all"
    )
    parser.add_argument(
        "--certified", type=int, default=12000, help="orders: largest D for Certified"
    )
    parser.add_argument(
        "--dense", type=int, default=500, help="orders: largest D for own Hessians of folds"
    )
    parser.add_argument(
        "--made",
        action="store_true",
        help="simulated sequences of the document's number and length",
    )
    parser.add_argument("--every", type=int, default=1, help="future: one origin in so many")
    saved.add_option(parser)
    arguments = parser.parse_args()
    kind = "made" if arguments.made else "captured" if arguments.piece else "whole"
    arguments.kind = "_".join([kind, *(name[:-3] + name[-2] for name in arguments.orders)])
    known = {
        "orders": orders,
        "parallel": parallel,
        "within": within,
        "future": future,
        "basins": basins,
    }
    for part in arguments.parts or known:
        known[part](arguments)
