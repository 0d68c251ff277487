"""Chains: against the obvious program, against other libraries, and how time and memory grow.

    taskset -c 0 python benchmarks/speed/chains.py [loops peers fits refits growth short dodgers
    first] [--quick] [--out out]

loops       the Hessian, J and one exact refit against autograd through a Python loop (`obvious.py`)
peers       log-likelihood and posterior of a whole series against hmmlearn and dynamax
fits        from the truth to the mode, against hmmlearn's EM
refits      ten blocks left out, against hmmlearn's EM and whitened L-BFGS, both started at the fit
growth      time and memory by the length, the folds and the states
short       every step, or every block of twelve, left out
dodgers     the steps of Dodgers alone
first       107 counts in fresh processes, on a machine that has compiled before

Each part prints one table; `--quick` takes small sizes, to see that it runs. Times are in seconds,
medians of repeats in which the contestants take turns, after a warm-up that compiles; a title says
what was timed once. What intervals of chains cover is in `benchmarks/intervals.py`.
"""

import contextlib
import functools
import importlib.util
import io
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy
from common import fresh_process, main, memory_growth, once, race, show, sticky

import leaveout as lo
from leaveout.objectives.batch_functions import function
from leaveout.optimize.fit import uncached
from leaveout.validation.cross_validate import fold_thetas


def is_there(*packages: str) -> bool:
    """Are these installed? If not, a line says so."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"\n{name} is not installed: skipped. It comes with leaveout[bench].", flush=True)
    return not missing


def loops(quick: bool, out: Path) -> None:
    """The Hessian, all of J = ∂²F/∂θ∂w and one exact refit, against autograd through a Python
    loop.
    """
    if not is_there("autograd"):
        return
    import obvious as slow

    steps, rng = 150 if quick else 1500, np.random.default_rng(0)
    centres = np.array([[-1.0, 0.5], [1.0, -0.5]])
    x = centres[sticky(rng, steps, 2, 0.95)] + rng.standard_normal((steps, 2))
    fit = lo.fit(lo.HMM(x, lo.emissions.Autoregressive(0), 2))
    flat = lambda theta: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])
    objective, theta, ones = fit.objective, flat(fit.theta), np.ones(steps)
    plan = lo.contiguous(steps, 0.1, 1, rng=0)

    loss = slow.chain_objective(x, 2)
    theirs = {
        "Hessian": once(lambda: slow.chain_hessian(loss, theta, ones)),
        "J": once(lambda: slow.influence(loss, theta, ones)),
        "refit": once(lambda: slow.refit(loss, theta, plan.matrix()[0])),
    }
    mine = {
        "Hessian": lambda: objective.hessian(fit.theta, ones),
        "J": lambda: fit.quadratic.factor @ replace(fit.quadratic).influence.T,
        "refit": lambda: lo.fold_parameters(fit, plan, strategy=lo.Exact()),
    }
    times = race(
        25, **mine, anchor=lambda: lo.anchor(objective, fit.parameters).quadratic.influence
    )
    found = {name: run() for name, run in mine.items()}
    found["refit"] = flat(
        objective.parameters.unconstrained(jax.tree.map(lambda leaf: leaf[0], found["refit"]))
    )
    rows: list[dict[str, Any]] = []
    for name, (seconds, value) in theirs.items():
        row = {
            "what": name,
            "loops, once": seconds,
            "ours": times[name],
            "times faster": seconds / times[name],
        }
        rows.append(
            row | {"largest difference": abs(found[name] - value).max(), "of": abs(value).max()}
        )
    both = theirs["Hessian"][0] + theirs["J"][0]
    for name, seconds in (
        ("Hessian and J", times["Hessian"] + times["J"]),
        ("the same by lo.anchor", times["anchor"]),
    ):
        rows.append(
            {
                "what": name,
                "loops, once": both,
                "ours": seconds,
                "times faster": both / seconds,
                "target": 1000,
            }
        )
    show(
        f"loops: two states, two channels, T = {steps:,}, {len(theta)} parameters; the loops' refit is SciPy's BFGS",
        rows,
    )


def peers(quick: bool, out: Path) -> None:
    """Log-likelihood and posterior of a whole series against hmmlearn and dynamax."""
    steps, repeats = (2_000, 3) if quick else (50_400, 9)
    installed = [name for name in ("hmmlearn", "dynamax") if is_there(name)]
    with jax.enable_x64(True):
        rows = [
            row
            for states, channels in ((2, 1), (16, 12))
            for row in against(installed, steps, states, channels, repeats)
        ]
    title = f"peers: the whole series, T = {steps:,}, Gaussian with diagonal covariance; seconds, and differences from ours"
    show(title, rows)


def against(
    installed: list[str], steps: int, states: int, channels: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Ours, then each peer."""
    rng = np.random.default_rng(0)
    moves = np.full((states, states), 0.1 / (states - 1)) + (0.9 - 0.1 / (states - 1)) * np.eye(
        states
    )
    mean, variance = (
        rng.standard_normal((states, channels)),
        rng.uniform(0.5, 2.0, (states, channels)),
    )
    parameters = {
        "initial": np.full(states, 1 / states),
        "transition": moves,
        "mean": mean,
        "covariance": variance,
    }
    path = sticky(rng, steps, states, 0.9)
    x = mean[path] + np.sqrt(variance[path]) * rng.standard_normal((steps, channels))
    model = lo.HMM(x, lo.emissions.Gaussian(), states)
    held, theta = (
        lo.contiguous(steps, 0.1, 1, rng=0).matrix()[0] == 0,
        model.parameters.unconstrained(parameters),
    )
    score = lambda: model.score(theta, 1.0 - held, np.arange(steps), held)
    fold = race(repeats, fold=score)["fold"]

    whole = {"leaveout": lambda: model.log_likelihood(parameters)}
    states_of = {"leaveout": lambda: model.state_probabilities(parameters)}
    for name in installed:
        for variant, likelihood, posterior in PEERS[name](parameters, x):
            whole[variant], states_of[variant] = likelihood, posterior
    seconds, posterior_seconds = race(repeats, **whole), race(repeats, **states_of)
    value, smoothed = whole["leaveout"](), states_of["leaveout"]()
    best = min((seconds[name] for name in seconds if name.startswith("hmmlearn")), default=np.nan)
    for name in whole:
        row = {"K": states, "channels": channels, "what": name, "log-likelihood": seconds[name]}
        row |= {"posterior": posterior_seconds[name]}
        if name == "leaveout":
            yield row | {
                "score of a fold": fold,
                "log-likelihood / hmmlearn's best": seconds[name] / best,
                "target": 1,
            }
        else:
            off = abs(whole[name]() - value)
            row |= {"log-likelihood off": off, "relative": off / abs(value)}
            yield row | {"posterior off": abs(states_of[name]() - smoothed).max()}


Variant = tuple[str, Callable[[], float], Callable[[], np.ndarray]]


def hmmlearn(parameters: dict[str, np.ndarray], x: np.ndarray) -> Iterator[Variant]:
    from hmmlearn.hmm import GaussianHMM

    for implementation in ("log", "scaling"):
        model = GaussianHMM(len(parameters["initial"]), "diag", implementation=implementation)
        model.n_features = x.shape[1]
        model.startprob_, model.transmat_ = parameters["initial"], parameters["transition"]
        model.means_, model.covars_ = parameters["mean"], parameters["covariance"]
        yield (
            f"hmmlearn, {implementation}",
            lambda model=model: model.score(x),
            lambda model=model: model.predict_proba(x),
        )


def dynamax(parameters: dict[str, np.ndarray], x: np.ndarray) -> Iterator[Variant]:
    from dynamax.hidden_markov_model import DiagonalGaussianHMM

    model = DiagonalGaussianHMM(*parameters["mean"].shape)
    given, _ = model.initialize(
        initial_probs=jnp.asarray(parameters["initial"]),
        transition_matrix=jnp.asarray(parameters["transition"]),
        emission_means=jnp.asarray(parameters["mean"]),
        emission_scale_diags=jnp.asarray(np.sqrt(parameters["covariance"])),
    )
    whole, smoother = (
        jax.jit(model.marginal_log_prob),
        jax.jit(lambda given, x: model.smoother(given, x).smoothed_probs),
    )
    yield (
        "dynamax, compiled",
        lambda: float(whole(given, x)),
        lambda: np.asarray(smoother(given, x)),
    )


PEERS: dict[str, Callable[..., Iterator[Variant]]] = {"hmmlearn": hmmlearn, "dynamax": dynamax}
# standard deviation of the states' means: where states overlap as a whole, EM takes thousands of
# steps
SPREAD = 4.0


def fits(quick: bool, out: Path) -> None:
    """From the truth to the mode, one pseudo-transition of each kind: the first call, which
    compiles, and the next, beside hmmlearn's."""
    rows: list[dict[str, Any]] = []
    for states, channels, steps, target in (
        ((3, 1, 1_000, np.nan),) if quick else ((8, 1, 20_000, 2), (32, 4, 10_000, 60))
    ):
        rng = np.random.default_rng(0)
        moves = np.full((states, states), 0.1 / (states - 1)) + (0.9 - 0.1 / (states - 1)) * np.eye(
            states
        )
        mean, variance = (
            SPREAD * rng.standard_normal((states, channels)),
            rng.uniform(0.5, 2.0, (states, channels)),
        )
        path, start = sticky(rng, steps, states, 0.9), np.full(states, 1 / states)
        x = mean[path] + np.sqrt(variance[path]) * rng.standard_normal((steps, channels))
        truth = {"initial": start, "transition": moves, "mean": mean, "covariance": variance}
        model = lo.HMM(
            x,
            lo.emissions.Gaussian(prior=None),
            states,
            prior=lo.developer.models.Dirichlet(),
            initial=start,
        )
        ours = lambda model=model, truth=truth: lo.fit(model, truth, num_starts=1)
        contestants = {"leaveout, first call": ours, "leaveout, next call": ours}
        if is_there("hmmlearn"):
            for name, tolerance in (
                ("its defaults", {}),
                ("300 steps", {"n_iter": 300, "tol": -np.inf}),
            ):
                contestants[f"hmmlearn, {name}"] = lambda t=truth, x=x, tol=tolerance: (
                    expectation_maximisation(t, x, tol)
                )
        for name, run in contestants.items():
            before = time.process_time()
            seconds, found = once(run)
            worked = time.process_time() - before
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where EM ended early the decrement says so
                fit = found if isinstance(found, lo.Fit) else lo.anchor(model, found, throw=False)
            row = {
                "K": states,
                "channels": channels,
                "T": steps,
                "parameters": fit.num_params,
                "what": name,
            }
            row |= {
                "seconds": seconds,
                "of processors": worked,
                "target": target if "next" in name else np.nan,
            }
            rows.append(row | {"F": f"{float(fit.value):.6f}", "decrement": float(fit.decrement)})
    show("fits: from the truth to the mode, each once; decrement √(gᵀH⁻¹g) where it ended", rows)


def refits(quick: bool, out: Path) -> None:
    """Ten blocks left out, against hmmlearn's EM started at the fit, which takes what is left for
    two sequences, and L-BFGS in whitened coordinates from the fit, on the passes that ours take.
    Off: the largest difference of a state's mean from the refit by `Exact(1e-10)`, for EM from
    where its own refits end. EM takes as few steps as are off by no more, and L-BFGS ends, in
    hindsight, at the same distance, or by its own rule. Ours holds the held-out losses and their
    errors too."""
    if not is_there("hmmlearn"):
        return
    rows: list[dict[str, Any]] = []
    for steps in (2_000,) if quick else (5_000, 20_000, 50_400):
        rng, start = np.random.default_rng(0), np.full(3, 1 / 3)
        x = (2.0 * sticky(rng, steps, 3, 0.95) + rng.standard_normal(steps))[:, None]
        model = lo.HMM(
            x,
            lo.emissions.Gaussian(prior=None),
            3,
            prior=lo.developer.models.Dirichlet(),
            initial=start,
        )
        fit, plan = lo.fit(model), lo.blocks(steps, steps // 10)
        ours = lambda fit=fit, plan=plan: lo.cross_validate(uncached(fit), plan, audit=0)
        exact = lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-10))["mean"]
        off = abs(lo.fold_parameters(fit, plan)["mean"] - exact).max()
        first, _ = _worked(ours)
        row = {
            "T": steps,
            "leaveout, first": first,
            "leaveout": np.median([_worked(ours)[0] for _ in range(5)]),
            "off": off,
        }
        parameters = functools.partial(lo.fold_parameters, fit, plan, lo.Exact())
        row["parameters only, Exact"] = np.median([_worked(parameters)[0] for _ in range(3)])
        for name, enough in (("L-BFGS to off", off), ("L-BFGS by its rule", 0.0)):
            descend = functools.partial(_by_lbfgs, fit, plan, exact, enough)
            found = [_worked(descend) for _ in range(3)]
            row |= {
                name: np.median([seconds for seconds, _ in found]),
                f"{name}, off": abs(found[0][1] - exact).max(),
            }
        ends = _by_em(fit.parameters, x, plan, 500)[1]
        for count in (5, 10, 15, 20, 30, 40, 60, 80, 120, 160, 240):
            seconds, means = _by_em(fit.parameters, x, plan, count)
            row |= {"hmmlearn": seconds, "its steps": count, "its off": abs(means - ends).max()}
            if row["its off"] <= off:
                break
        rows.append(row | {"times faster": row["hmmlearn"] / row["leaveout"]})
    show("refits: ten blocks left out of three states; seconds of processor time", rows)


def _worked(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time of a call, and its result."""
    before = time.process_time()
    found = run()
    return time.process_time() - before, found


def _by_lbfgs(fit: lo.Fit, plan: lo.Plan, exact: np.ndarray, enough: float) -> np.ndarray:
    """Means of refits by L-BFGS in whitened coordinates, each ended where its means are near
    enough, or by SciPy's rule.
    """
    with jax.enable_x64(True):
        return np.stack(
            [_descended(fit, *one, enough) for one in zip(plan.matrix(), exact, strict=True)]
        )


def _descended(fit: lo.Fit, weights: np.ndarray, exact: np.ndarray, enough: float) -> np.ndarray:
    F = function(fit.objective, fit.theta, np.asarray(weights, float))
    place = lambda u: fit.vector + fit.quadratic.unwhiten(u[None])[0]
    mean = lambda u: F.to_tree(place(u))["mean"]

    def look(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = F.look(place(u))
        return value, fit.quadratic.whiten(gradient[None])[0]

    def near(u: np.ndarray) -> None:
        if abs(mean(u) - exact).max() <= enough:
            raise StopIteration

    return mean(
        scipy.optimize.minimize(
            look, np.zeros(fit.num_params), jac=True, method="L-BFGS-B", callback=near
        ).x
    )


def _by_em(
    parameters: dict[str, np.ndarray], x: np.ndarray, plan: lo.Plan, count: int
) -> tuple[float, np.ndarray]:
    """Seconds of processor time of ten refits of so many steps, and their means."""
    known = {name: np.asarray(value) for name, value in parameters.items()}
    known["covariance"] = known["covariance"].reshape(known["mean"].shape)
    cut = [
        (plan.index[a], plan.index[b - 1] + 1)
        for a, b in zip(plan.indptr[:-1], plan.indptr[1:], strict=True)
    ]
    rest = [
        (np.delete(x, slice(a, b), axis=0), [each for each in (a, len(x) - b) if each])
        for a, b in cut
    ]
    steps = {"n_iter": count, "tol": -np.inf}
    seconds, found = _worked(
        lambda: [expectation_maximisation(known, left, steps, lengths) for left, lengths in rest]
    )
    return seconds, np.stack([each["mean"] for each in found])


def expectation_maximisation(
    truth: dict[str, np.ndarray],
    x: np.ndarray,
    tolerance: dict[str, float],
    lengths: list[int] | None = None,
) -> dict[str, np.ndarray]:
    """hmmlearn's, with the same prior and the first state's distribution held."""
    from hmmlearn.hmm import GaussianHMM

    priors = {"covars_prior": 0.0, "covars_weight": 1.0, "transmat_prior": 2.0}
    model = GaussianHMM(
        len(truth["initial"]),
        "diag",
        params="tmc",
        init_params="",
        implementation="scaling",
        **priors,
        **tolerance,
    )
    model.startprob_, model.transmat_ = truth["initial"], truth["transition"]
    model.means_, model.covars_ = truth["mean"], truth["covariance"]
    # it says that the likelihood hardly rises any more
    with contextlib.redirect_stderr(io.StringIO()):
        model.fit(x, lengths)
    covariance = np.diagonal(model.covars_, axis1=1, axis2=2)
    return {
        "initial": model.startprob_,
        "transition": model.transmat_,
        "mean": model.means_,
        "covariance": covariance,
    }


def growth(quick: bool, out: Path) -> None:
    """Time and memory of InfinitesimalJackknife and Exact by T, folds and K."""
    table = growth_study(quick)
    show(
        "growth: the second call, seconds and MiB above what was held; compiling is the first call's excess",
        table,
    )
    show("growth: slopes on log–log scales, by least squares", growth_slopes(table))
    out.mkdir(parents=True, exist_ok=True)
    growth_plot(table, out / "growth.png")


RANDOM, LONGEST = 50, 20  # folds that are refitted exactly: drawn, and of the longest step


def short(quick: bool, out: Path) -> None:
    """Every step, or every block of twelve, left out.

    Passes are shared, so that time is linear in the steps.
    """
    dodgers, quakes = lo.datasets.dodgers().counts, lo.datasets.earthquakes()["count"]
    cars = dodgers[: 3_000 if quick else None]
    event = lo.emissions.EventCounts(cars["time"].dt.day_of_week.to_numpy())
    problems = {
        "earthquakes, Poisson, K = 3": (lo.HMM(quakes.to_numpy(), lo.emissions.Poisson(), 3), 1),
        "Dodgers, event counts": (
            lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]),
            1,
        ),
        "Dodgers, blocks of 12": (
            lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]),
            12,
        ),
    }
    rng, rows = np.random.default_rng(0), []
    for steps in (2_000, 4_000) if quick else (10_000, 100_000, 1_000_000):
        x = rng.normal(2.0 * sticky(rng, steps, 2, 0.9), 1.0)
        problems[f"simulated, Gaussian, K = 2, {steps:,}"] = (
            lo.HMM(x, lo.emissions.Gaussian(), 2),
            1,
        )
    for name, (model, size) in problems.items():
        fit, steps = lo.fit(model, num_starts=1), model.num_units
        plan = lo.leave_one_out(steps) if size == 1 else lo.blocks(steps, size)
        rows.append(
            {"problem": name, "T": steps, "D": fit.num_params, "folds": plan.num_refits}
            | left_out(fit, plan)
        )
    title = f"short: all steps left out; off, of {RANDOM} folds at random and {LONGEST} of the longest step, as shares of the"
    show(
        f"{title} tolerance; seconds by the clock, the first time and the second, and of processors",
        rows,
    )


def dodgers(quick: bool, out: Path) -> None:
    """The steps of Dodgers alone."""
    cars = lo.datasets.dodgers().counts[: 3_000 if quick else None]
    event = lo.emissions.EventCounts(cars["time"].dt.day_of_week.to_numpy())
    fit = lo.fit(lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]), num_starts=1)
    show(
        "short: Dodgers",
        [{"T": len(cars), "D": fit.num_params} | left_out(fit, lo.leave_one_out(len(cars)))],
    )


def left_out(fit: lo.Fit, plan: lo.Plan) -> dict[str, Any]:
    """Seconds of all refits, and how far some are off."""
    first, _ = once(lambda: lo.cross_validate(fit, plan))
    begin = time.process_time()
    warm, found = once(lambda: lo.cross_validate(fit, plan))
    work = time.process_time() - begin
    lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0)
    nothing, _ = once(lambda: lo.cross_validate(fit, plan, strategy=lo.NoUpdate(), audit=0))
    scored = np.add.reduceat(found.plan.held, plan.indptr[:-1], dtype=int)
    there = np.flatnonzero(scored)
    moved = np.linalg.norm(
        fit.quadratic.back(fold_thetas(fit, plan, lo.Certified(), "short") - fit.vector), axis=1
    )
    drawn = np.random.default_rng(1).choice(there, min(RANDOM, len(there)), replace=False)
    some = np.union1d(drawn, there[np.argsort(-moved[there])[:LONGEST]])
    exact = lo.cross_validate(fit, plan.some(some), strategy=lo.Exact(1e-10), audit=0)
    mine = np.isin(plan.refit, some)
    off = np.nan_to_num(np.abs(found.losses[mine] - exact.losses))
    off = np.add.reduceat(off, np.r_[0, np.cumsum(np.diff(plan.indptr)[some])[:-1]])
    error, allowed = found.error[some], 0.01 * found.scale * scored[some]
    row: dict[str, Any] = {"first": first, "second": warm, "processors": work, "no update": nothing}
    row |= {"off, median": np.median(off / allowed), "off, largest": np.max(off / allowed)}
    row |= {
        "±, largest": np.max(
            found.error / np.maximum(0.01 * found.scale * scored, 1e-300),
            where=scored > 0,
            initial=0.0,
        )
    }
    row |= {"beyond ±": int(np.sum(off > error * (1 + 1e-6) + 1e-10)), "of": len(some)}
    return row | {
        "flagged": int(np.sum(found.result != 0)),
        "audited": len(found.audit),
        "missed": int(found.audit.beyond.sum()),
    }


FIRST = """
import time; times = [time.perf_counter()]
tick = lambda: times.append(time.perf_counter())
import leaveout as lo; tick()
quakes = lo.datasets.earthquakes()["count"].to_numpy(); tick()
fit = lo.fit(lo.HMM(quakes, lo.emissions.Poisson(), 3)); tick()
lo.cross_validate(fit, lo.leave_one_out(107)); tick()
lo.cross_validate(fit, lo.kfold(107, 10)); tick()
fit = lo.fit(lo.HMM(quakes[:100], lo.emissions.Poisson(), 3)); lo.cross_validate(fit, lo.leave_one_out(100)); tick()
import json, numpy as np
names = "import", "data", "fit", "leave-one-out", "another plan", "another length"
parts = dict(zip(names, np.diff(times)))
print(json.dumps({"to the answer": times[4] - times[0], **parts, "its processor time": time.process_time()}))
"""


def first(quick: bool, out: Path) -> None:
    """Three states of the earthquakes in fresh processes, on a machine that has compiled before."""
    rows = [fresh_process(FIRST) for _ in range(2 if quick else 5)]
    show(
        "first: 107 counts, three states, four starts, seconds in fresh processes; targets 2.5, and 0.3 for another",
        rows,
    )


CAP = 10 * 2**30  # bytes of data that the process may hold
REFITS = {"IJ": lo.InfinitesimalJackknife(), "Exact": lo.Exact()}


class Size(NamedTuple):
    steps: int
    folds: int
    states: int
    free: bool  # are transitions estimated?


def growth_sizes(quick: bool) -> dict[str, list[Size]]:
    """By what grows. With transitions free, D grows with K², and H with it costs K⁴.

    Held fixed, D = 2K.
    """
    if quick:
        return {
            "T": [Size(steps, 4, 2, True) for steps in (1_000, 2_000)],
            "folds": [Size(500, folds, 2, True) for folds in (5, 10)],
            "K": [Size(500, 4, states, False) for states in (2, 4)],
        }
    return {
        "T": [Size(steps, 8, 2, True) for steps in (1_000, 10_000, 100_000, 1_000_000)],
        "folds": [Size(2_000, folds, 2, True) for folds in (10, 100, 1_000, 10_000)],
        "K": [Size(1_000, 8, states, False) for states in (2, 4, 8, 16, 32, 64)],
        "K, transitions free": [Size(1_000, 8, states, True) for states in (2, 4, 8, 16)],
    }


def growth_study(quick: bool) -> list[dict]:
    """One row a size and strategy."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (CAP, hard))
    return [
        {"grows": grows} | row
        for grows, every in growth_sizes(quick).items()
        for size in every
        for row in measured(size)
    ]


def measured(size: Size) -> list[dict]:
    fit, plan, rows = separated_chain(size), lo.contiguous(size.steps, 0.05, size.folds, rng=0), []
    for name, refit in REFITS.items():
        # of a fit that has not yet made J
        run = lambda refit=refit: lo.cross_validate(uncached(fit), plan, strategy=refit)
        start = time.perf_counter()
        run()
        first = time.perf_counter()
        memory = memory_growth(run)
        seconds = time.perf_counter() - first
        row = {
            "T": size.steps,
            "folds": size.folds,
            "K": size.states,
            "D": fit.num_params,
            "refit": name,
            "seconds": seconds,
        }
        rows.append(row | {"compiling": max(0.0, first - start - seconds), "MiB": memory / 2**20})
    return rows


def separated_chain(size: Size) -> lo.Fit:
    """A chain of well separated states, fitted from the parameters that it was drawn with."""
    steps, _, K, free = size
    rng = np.random.default_rng(0)
    path = np.cumsum(np.where(rng.random(steps) < 0.9, 0, rng.integers(1, K, steps))) % K
    x = 3.0 * path + rng.standard_normal(steps)
    moves = np.full((K, K), 0.1 / (K - 1)) + (0.9 - 0.1 / (K - 1)) * np.eye(K)
    start = {"mean": 3.0 * np.arange(K)[:, None], "covariance": np.ones((K, 1))} | (
        {"transition": moves} if free else {}
    )
    known = {"initial": np.full(K, 1 / K)} | ({} if free else {"transition": moves})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # states that a short chain hardly visits
        return lo.fit(lo.HMM(x[:, None], lo.emissions.Gaussian(), K, **known), start)


def growth_slopes(table: list[dict]) -> list[dict]:
    """Exponents of growth, over all sizes and over the two largest."""
    rows = []
    for (grows, refit), part in pd.DataFrame(table).groupby(["grows", "refit"], sort=False):
        row = {"grows": grows, "refit": refit}
        for name in ("seconds", "MiB"):
            size, value = (
                np.log(part[grows.split(",")[0]].astype(float)),
                np.log(part[name].clip(lower=1e-3)),
            )
            row |= {
                name: np.polyfit(size, value, 1)[0],
                f"{name}, last two": np.polyfit(size[-2:], value[-2:], 1)[0],
            }
        rows.append(row)
    return rows


def growth_plot(table: list[dict], path: Path) -> None:
    """Log–log: time above memory, one column for each thing that grows, dashes of slope one."""
    frame = pd.DataFrame(table)
    kinds = list(frame["grows"].unique())
    figure, axes = plt.subplots(
        2, len(kinds), figsize=(3.4 * len(kinds), 6.2), layout="constrained", sharey="row"
    )
    for column, grows in enumerate(kinds):
        part, along = frame[frame["grows"] == grows], grows.split(",")[0]
        for ax, name in zip(axes[:, column], ("seconds", "MiB"), strict=True):
            for refit, own in part.groupby("refit", sort=False):
                ax.loglog(own[along], own[name].clip(lower=1e-3), "o-", label=refit)
            ends = part[along].agg(["min", "max"]).to_numpy(float)
            ax.loglog(ends, part[name].max() * ends / ends[1], "k--", lw=0.8, label="slope one")
            ax.set(xlabel=grows, ylabel=name if column == 0 else None)
            if ends[1] < 100 * ends[0]:  # too few decades for powers of ten
                ax.set_xticks(sorted(part[along].unique()), minor=False)
                ax.xaxis.set_major_formatter("{x:g}")
                ax.xaxis.set_minor_formatter("")
            ax.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


PARTS = {
    part.__name__: part for part in (loops, peers, fits, refits, growth, short, dodgers, first)
}

if __name__ == "__main__":
    main(PARTS, __doc__, quick=False, out=Path("out"))
