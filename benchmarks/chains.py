"""Chains: against the obvious program, against other libraries, how often intervals cover, and how time and memory grow.

    taskset -c 0 python benchmarks/chains.py [loops peers fits refits coverage growth short dodgers first] [--quick] [--out out]

Each demand prints one table; `--quick` takes small sizes, to see that it runs. Times are in seconds, medians of repeats
in which the contestants take turns, after a warm-up that compiles; what was timed once says so.
"""

import contextlib
import importlib.util
import io
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import fresh
import growing
import jax
import jax.numpy as jnp
import numpy as np
from linear import main, once, race, show

import leaveout as lo
from leaveout.validation.cross_validate import fold_thetas


def is_there(*packages: str) -> bool:
    """Are these installed? If not, a line says so."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"\n{name} is not installed: skipped. It comes with leaveout[bench].", flush=True)
    return not missing


def sticky(rng: np.random.Generator, steps: int, states: int, stay: float) -> np.ndarray:
    """A path of states that stays with this probability, and else goes to any of the others."""
    moves = np.where(rng.random(steps) < stay, 0, rng.integers(1, max(states, 2), steps))
    return np.cumsum(moves) % states


def loops(quick: bool, out: Path) -> None:
    """The Hessian, all of J = ∂²F/∂θ∂w and one exact refit, against autograd through a Python loop."""
    if not is_there("autograd"):
        return
    import loops as slow

    steps, rng = 150 if quick else 1500, np.random.default_rng(0)
    centres = np.array([[-1.0, 0.5], [1.0, -0.5]])
    x = centres[sticky(rng, steps, 2, 0.95)] + rng.standard_normal((steps, 2))
    fit = lo.fit(lo.HMM(x, lo.emissions.Autoregressive(0), 2))
    flat = lambda theta: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])
    objective, theta, ones = fit.objective, flat(fit.theta), np.ones(steps)
    plan = lo.contiguous(steps, 0.1, 1, seed=0)

    loss = slow.objective(x, 2)
    theirs = {
        "Hessian": once(lambda: slow.hessian(loss, theta, ones)),
        "J": once(lambda: slow.influence(loss, theta, ones)),
        "refit": once(lambda: slow.refit(loss, theta, plan.matrix()[0])),
    }
    with jax.enable_x64(True):
        hessian = eqx.filter_jit(lambda objective, theta: objective.hessian(theta, jnp.ones(steps)))
        mine = {
            "Hessian": lambda: np.asarray(hessian(objective, fit.theta)),
            "J": lambda: fit.factor @ replace(fit).influence.T,
            "refit": lambda: lo.fold_parameters(fit, plan, lo.Exact()),
        }
        times = race(25, **mine, anchor=lambda: lo.anchor(objective, fit.parameters).influence)
        found = {name: run() for name, run in mine.items()}
    found["refit"] = flat(objective.parameters.unconstrained(jax.tree.map(lambda leaf: leaf[0], found["refit"])))
    rows: list[dict[str, Any]] = []
    for name, (seconds, value) in theirs.items():
        row = {"what": name, "loops, once": seconds, "ours": times[name], "times faster": seconds / times[name]}
        rows.append(row | {"largest difference": abs(found[name] - value).max(), "of": abs(value).max()})
    both = theirs["Hessian"][0] + theirs["J"][0]
    for name, seconds in (("Hessian and J", times["Hessian"] + times["J"]), ("the same by lo.anchor", times["anchor"])):
        rows.append({"what": name, "loops, once": both, "ours": seconds, "times faster": both / seconds, "target": 1000})
    show(f"loops: two states, two channels, T = {steps:,}, {len(theta)} parameters; the loops' refit is SciPy's BFGS", rows)


def peers(quick: bool, out: Path) -> None:
    """Log-likelihood and posterior of a whole series against hmmlearn and dynamax."""
    steps, repeats = (2_000, 3) if quick else (50_400, 9)
    installed = [name for name in ("hmmlearn", "dynamax") if is_there(name)]
    with jax.enable_x64(True):
        rows = [row for states, channels in ((2, 1), (16, 12)) for row in against(installed, steps, states, channels, repeats)]
    title = f"peers: the whole series, T = {steps:,}, Gaussian with diagonal covariance; seconds, and differences from ours"
    show(title, rows)


def against(installed: list[str], steps: int, states: int, channels: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Ours, then each peer."""
    rng = np.random.default_rng(0)
    moves = np.full((states, states), 0.1 / (states - 1)) + (0.9 - 0.1 / (states - 1)) * np.eye(states)
    mean, variance = rng.standard_normal((states, channels)), rng.uniform(0.5, 2.0, (states, channels))
    parameters = {"initial": np.full(states, 1 / states), "transition": moves, "mean": mean, "covariance": variance}
    path = sticky(rng, steps, states, 0.9)
    x = mean[path] + np.sqrt(variance[path]) * rng.standard_normal((steps, channels))
    model = lo.HMM(x, lo.emissions.Gaussian(), states)
    held, theta = lo.contiguous(steps, 0.1, 1, seed=0).matrix()[0] == 0, model.parameters.unconstrained(parameters)
    score = eqx.filter_jit(lambda model, theta, held: model.score(theta, 1 - held, jnp.arange(steps), held))
    fold = race(repeats, fold=lambda: np.asarray(score(model, theta, held.astype(float))))["fold"]

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
            yield row | {"score of a fold": fold, "log-likelihood / hmmlearn's best": seconds[name] / best, "target": 1}
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
        yield f"hmmlearn, {implementation}", lambda model=model: model.score(x), lambda model=model: model.predict_proba(x)


def dynamax(parameters: dict[str, np.ndarray], x: np.ndarray) -> Iterator[Variant]:
    from dynamax.hidden_markov_model import DiagonalGaussianHMM

    model = DiagonalGaussianHMM(*parameters["mean"].shape)
    given, _ = model.initialize(
        initial_probs=jnp.asarray(parameters["initial"]),
        transition_matrix=jnp.asarray(parameters["transition"]),
        emission_means=jnp.asarray(parameters["mean"]),
        emission_scale_diags=jnp.asarray(np.sqrt(parameters["covariance"])),
    )
    whole, smoother = jax.jit(model.marginal_log_prob), jax.jit(lambda given, x: model.smoother(given, x).smoothed_probs)
    yield "dynamax, compiled", lambda: float(whole(given, x)), lambda: np.asarray(smoother(given, x))


PEERS: dict[str, Callable[..., Iterator[Variant]]] = {"hmmlearn": hmmlearn, "dynamax": dynamax}

SPREAD = 4.0  # standard deviation of the states' means: where states overlap as a whole, EM takes thousands of steps


def fits(quick: bool, out: Path) -> None:
    """From the truth to the mode, one pseudo-transition of each kind: the first call, which compiles, and the next, beside
    hmmlearn's."""
    rows: list[dict[str, Any]] = []
    for states, channels, steps, target in ((3, 1, 1_000, np.nan),) if quick else ((8, 1, 20_000, 2), (32, 4, 10_000, 60)):
        rng = np.random.default_rng(0)
        moves = np.full((states, states), 0.1 / (states - 1)) + (0.9 - 0.1 / (states - 1)) * np.eye(states)
        mean, variance = SPREAD * rng.standard_normal((states, channels)), rng.uniform(0.5, 2.0, (states, channels))
        path, start = sticky(rng, steps, states, 0.9), np.full(states, 1 / states)
        x = mean[path] + np.sqrt(variance[path]) * rng.standard_normal((steps, channels))
        truth = {"initial": start, "transition": moves, "mean": mean, "covariance": variance}
        model = lo.HMM(x, lo.emissions.Gaussian(prior=None), states, prior=lo.models.Dirichlet(), initial=start)
        ours = lambda model=model, truth=truth: lo.fit(model, truth, num_starts=1)
        contestants = {"leaveout, first call": ours, "leaveout, next call": ours}
        if is_there("hmmlearn"):
            for name, tolerance in (("its defaults", {}), ("300 steps", {"n_iter": 300, "tol": -np.inf})):
                contestants[f"hmmlearn, {name}"] = lambda t=truth, x=x, tol=tolerance: expectation_maximisation(t, x, tol)
        for name, run in contestants.items():
            before = time.process_time()
            seconds, found = once(run)
            worked = time.process_time() - before
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where EM ended early the decrement says so
                fit = found if isinstance(found, lo.Fit) else lo.anchor(model, found, throw=False)
            row = {"K": states, "channels": channels, "T": steps, "parameters": fit.num_params, "what": name}
            row |= {"seconds": seconds, "of processors": worked, "target": target if "next" in name else np.nan}
            rows.append(row | {"F": f"{float(fit.value):.6f}", "decrement": float(fit.decrement)})
    show("fits: from the truth to the mode, each once; decrement √(gᵀH⁻¹g) where it ended", rows)


def refits(quick: bool, out: Path) -> None:
    """Ten blocks left out, against hmmlearn's EM started at the fit, which takes what is left for two sequences. Off: the
    largest difference of a state's mean from where its own refits end; EM takes as few steps as are off by no more."""
    if not is_there("hmmlearn"):
        return
    rows: list[dict[str, Any]] = []
    for steps in (2_000,) if quick else (5_000, 20_000, 50_400):
        rng, start = np.random.default_rng(0), np.full(3, 1 / 3)
        x = (2.0 * sticky(rng, steps, 3, 0.95) + rng.standard_normal(steps))[:, None]
        model = lo.HMM(x, lo.emissions.Gaussian(prior=None), 3, prior=lo.models.Dirichlet(), initial=start)
        fit, plan = lo.fit(model), lo.blocks(steps, steps // 10)
        ours = lambda fit=fit, plan=plan: lo.cross_validate(replace(fit), plan, audit=0)
        exact = lo.fold_parameters(fit, plan, lo.Exact(1e-10))["mean"]
        off = abs(lo.fold_parameters(fit, plan)["mean"] - exact).max()
        first, _ = once(ours)
        row = {"T": steps, "leaveout, first": first, "leaveout": np.median([once(ours)[0] for _ in range(5)]), "off": off}
        ends = _by_em(fit.parameters, x, plan, 500)[1]
        for count in (5, 10, 15, 20, 30, 40, 60, 80, 120, 160, 240):
            seconds, means = _by_em(fit.parameters, x, plan, count)
            row |= {"hmmlearn": seconds, "its steps": count, "its off": abs(means - ends).max()}
            if row["its off"] <= off:
                break
        rows.append(row | {"times faster": row["hmmlearn"] / row["leaveout"]})
    show("refits: ten blocks left out of three states; seconds", rows)


def _by_em(parameters: dict[str, np.ndarray], x: np.ndarray, plan: lo.Plan, count: int) -> tuple[float, np.ndarray]:
    """Seconds of ten refits of so many steps, and their means."""
    known = {name: np.asarray(value) for name, value in parameters.items()}
    known["covariance"] = known["covariance"].reshape(known["mean"].shape)
    cut = [(plan.index[a], plan.index[b - 1] + 1) for a, b in zip(plan.indptr[:-1], plan.indptr[1:], strict=True)]
    rest = [(np.delete(x, slice(a, b), axis=0), [each for each in (a, len(x) - b) if each]) for a, b in cut]
    steps = {"n_iter": count, "tol": -np.inf}
    seconds, found = once(lambda: [expectation_maximisation(known, left, steps, lengths) for left, lengths in rest])
    return seconds, np.stack([each["mean"] for each in found])


def expectation_maximisation(
    truth: dict[str, np.ndarray], x: np.ndarray, tolerance: dict[str, float], lengths: list[int] | None = None
) -> dict[str, np.ndarray]:
    """hmmlearn's, with the same prior and the first state's distribution held."""
    from hmmlearn.hmm import GaussianHMM

    priors = {"covars_prior": 0.0, "covars_weight": 1.0, "transmat_prior": 2.0}
    model = GaussianHMM(
        len(truth["initial"]), "diag", params="tmc", init_params="", implementation="scaling", **priors, **tolerance
    )
    model.startprob_, model.transmat_ = truth["initial"], truth["transition"]
    model.means_, model.covars_ = truth["mean"], truth["covariance"]
    with contextlib.redirect_stderr(io.StringIO()):  # it says that the likelihood hardly rises any more
        model.fit(x, lengths)
    covariance = np.diagonal(model.covars_, axis1=1, axis2=2)
    return {"initial": model.startprob_, "transition": model.transmat_, "mean": model.means_, "covariance": covariance}


LAW = {"mean": np.array([0.0, 1.5]), "sd": np.array([1.0, 2.0])}  # of the sequences whose intervals are counted


def coverage(quick: bool, out: Path) -> None:
    """Coverage of 95 % intervals over simulated sequences, naive and block.

    The truth is the expected held-out loss under the simulating model at the fitted parameters: that of the very fit,
    on a fresh long sequence with the same share and pattern of steps unseen, each scored given all others that are seen.
    """
    rows = []
    for stay in (0.7, 0.97):
        for steps, ahead in ((300, 1_000),) if quick else ((1_000, 50_000), (5_000, 100_000)):
            runs = [replication(stay, steps, ahead, seed) for seed in range(10 if quick else 100)]
            for scheme in ("at random", "blocks"):
                mean, se, naive, fresh = np.array([run[scheme] for run in runs]).T
                there = np.isfinite(se)
                row = {"stays": stay, "T": steps, "folds": scheme, "naive": np.mean(abs(mean - fresh) <= 1.96 * naive)}
                inside = abs(mean - fresh)[there] <= 1.96 * se[there]
                row |= {"block": inside.mean() if there.any() else np.nan, "block available": there.mean()}
                row |= {"bias / sd": (mean - fresh).mean() / (mean - fresh).std(ddof=1)}
                sd = (mean - fresh).std(ddof=1)
                rows.append(row | {"naive se / sd": naive.mean() / sd, "block se / sd": se[there].mean() / sd})
    title = f"coverage: of mean ± 1.96 se, {len(runs)} sequences of two states, each left out once in ten folds"
    show(f"{title}; the truth is the expected loss of the very fit", rows)


def replication(stay: float, steps: int, ahead: int, seed: int) -> dict[str, tuple[float, float, float, float]]:
    """Held-out mean, its block and its naive standard error, and the mean on a fresh sequence; by scheme."""
    rng = np.random.default_rng(seed)
    draw = lambda path: LAW["mean"][path] + LAW["sd"][path] * rng.standard_normal(len(path))
    x, fresh = draw(sticky(rng, steps, 2, stay)), draw(sticky(rng, ahead, 2, stay))
    moves = np.array([[stay, 1 - stay], [1 - stay, stay]])
    start = {"initial": [0.5, 0.5], "transition": moves, "mean": LAW["mean"][:, None], "covariance": LAW["sd"][:, None] ** 2}
    fit = lo.fit(lo.HMM(x[:, None], lo.emissions.Gaussian(), 2), start)
    elsewhere = replace(fit, objective=lo.HMM(fresh[:, None], lo.emissions.Gaussian(), 2))
    plans = {
        "at random": (lo.kfold(steps, 10, seed=seed), lo.kfold(ahead, 10, seed=seed)),
        "blocks": (lo.kfold(steps, 10), lo.groups(np.arange(ahead) // (steps // 10) % 10)),
    }
    found = {}
    for scheme, (plan, there) in plans.items():
        estimate = lo.cross_validate(fit, plan)
        naive = estimate.per_unit().std(ddof=1) / np.sqrt(steps)
        found[scheme] = estimate.mean, estimate.se, naive, lo.cross_validate(elsewhere, there, lo.NoUpdate()).mean
    return found


def growth(quick: bool, out: Path) -> None:
    """Time and memory of InfinitesimalJackknife and Exact by T, folds and K."""
    table = growing.study(quick)
    show("growth: the second call, seconds and MiB above what was held; compiling is the first call's excess", table)
    show("growth: slopes on log–log scales, by least squares", growing.slopes(table))
    out.mkdir(parents=True, exist_ok=True)
    growing.plot(table, out / "growth.png")


RANDOM, LONGEST = 50, 20  # folds that are refitted exactly: drawn, and of the longest step


def short(quick: bool, out: Path) -> None:
    """Every step, or every block of twelve, left out: passes are shared, so that time is linear in the steps."""
    dodgers, quakes = lo.datasets.dodgers().counts, lo.datasets.earthquakes()["count"]
    cars = dodgers[: 3_000 if quick else None]
    event = lo.emissions.EventCounts(cars["time"].dt.day_of_week.to_numpy())
    problems = {
        "earthquakes, Poisson, K = 3": (lo.HMM(quakes.to_numpy(), lo.emissions.Poisson(), 3), 1),
        "Dodgers, event counts": (lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]), 1),
        "Dodgers, blocks of 12": (lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]), 12),
    }
    rng, rows = np.random.default_rng(0), []
    for steps in (2_000, 4_000) if quick else (10_000, 100_000, 1_000_000):
        x = rng.normal(2.0 * sticky(rng, steps, 2, 0.9), 1.0)
        problems[f"simulated, Gaussian, K = 2, {steps:,}"] = lo.HMM(x, lo.emissions.Gaussian(), 2), 1
    for name, (model, size) in problems.items():
        fit, steps = lo.fit(model, num_starts=1), model.num_units
        plan = lo.leave_one_out(steps) if size == 1 else lo.blocks(steps, size)
        rows.append({"problem": name, "T": steps, "D": fit.num_params, "folds": plan.num_refits} | left_out(fit, plan))
    title = f"short: all steps left out; off, of {RANDOM} folds at random and {LONGEST} of the longest step, as shares of the"
    show(f"{title} tolerance; seconds by the clock, the first time and the second, and of processors", rows)


def dodgers(quick: bool, out: Path) -> None:
    """The steps of Dodgers alone."""
    del out
    cars = lo.datasets.dodgers().counts[: 3_000 if quick else None]
    event = lo.emissions.EventCounts(cars["time"].dt.day_of_week.to_numpy())
    fit = lo.fit(lo.HMM(cars["count"].to_numpy(), event, 2, initial=[0.5, 0.5]), num_starts=1)
    show("short: Dodgers", [{"T": len(cars), "D": fit.num_params} | left_out(fit, lo.leave_one_out(len(cars)))])


def left_out(fit: lo.Fit, plan: lo.Plan) -> dict[str, Any]:
    """Seconds of all refits, and how far some are off."""
    first, _ = once(lambda: lo.cross_validate(fit, plan))
    begin = time.process_time()
    warm, found = once(lambda: lo.cross_validate(fit, plan))
    work = time.process_time() - begin
    lo.cross_validate(fit, plan, lo.NoUpdate(), audit=0)
    nothing, _ = once(lambda: lo.cross_validate(fit, plan, lo.NoUpdate(), audit=0))
    scored = np.add.reduceat(found.plan.held, plan.indptr[:-1], dtype=int)
    there = np.flatnonzero(scored)
    moved = np.linalg.norm(fit.back(fold_thetas(fit, plan, lo.Certified(), "short") - fit.vector), axis=1)
    drawn = np.random.default_rng(1).choice(there, min(RANDOM, len(there)), replace=False)
    some = np.union1d(drawn, there[np.argsort(-moved[there])[:LONGEST]])
    exact = lo.cross_validate(fit, plan.some(some), lo.Exact(1e-10), audit=0)
    mine = np.isin(plan.refit, some)
    off = np.nan_to_num(np.abs(found.losses[mine] - exact.losses))
    off = np.add.reduceat(off, np.r_[0, np.cumsum(np.diff(plan.indptr)[some])[:-1]])
    error, allowed = found.error[some], 0.01 * found.scale * scored[some]
    row: dict[str, Any] = {"first": first, "second": warm, "processors": work, "no update": nothing}
    row |= {"off, median": np.median(off / allowed), "off, largest": np.max(off / allowed)}
    row |= {"±, largest": np.max(found.error / np.maximum(0.01 * found.scale * scored, 1e-300), where=scored > 0, initial=0.0)}
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
    del out
    rows = [fresh.run(FIRST) for _ in range(2 if quick else 5)]
    show("first: 107 counts, three states, four starts, seconds in fresh processes; targets 2.5, and 0.3 for another", rows)


DEMANDS = {demand.__name__: demand for demand in (loops, peers, fits, refits, coverage, growth, short, dodgers, first)}

if __name__ == "__main__":
    main(DEMANDS, __doc__)
