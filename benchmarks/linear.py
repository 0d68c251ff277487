"""Is one fit enough, and at what price? Linear predictors against the programs that refit them.

    taskset -c 0 python benchmarks/linear.py [refitting one_fit ridge folds links coverage cold path survival]

Each demand prints one table. Times are in seconds, medians of repeats in which the contestants take turns, after a
warm-up; what was timed once, or in part and scaled, says so. Pin it to one core where others work: OpenBLAS's
threads wait for one another, and a busy neighbour slows them (the peers) tenfold.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fresh
import intervals
import noncanonical
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.model_selection import LeaveOneOut, cross_val_predict

import leaveout as lo

SOLVERS = ("lbfgs", "newton-cholesky")
ROUNDING = 1e-12  # of a loss: below it the refits that serve as the truth are not resolved either


def race(repeats: int, **contestants: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each, called in turn, after one call to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for lap in range(repeats + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name] += [time.perf_counter() - start] * (lap > 0)
    return {name: float(np.median(each)) for name, each in times.items()}


def once(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def show(title: str, rows: list[dict]) -> None:
    print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, na_rep='')}", flush=True)


def main(demands: dict[str, Callable], about: str | None, sized: bool = True) -> None:
    """Runs the demands that the command line names; each with `quick` and the folder for pictures, if they are `sized`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(demands)}; all by default")
    if sized:
        parser.add_argument("--quick", action="store_true", help="small sizes")
        parser.add_argument("--out", type=Path, default=Path("out"), help="where pictures go")
    pd.set_option("display.width", 250, "display.max_columns", 30, "display.float_format", "{:.3g}".format)
    arguments = parser.parse_args()
    print(f"leaveout {lo.__version__}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for name in arguments.name or demands:
        demands[name](*((arguments.quick, arguments.out) if sized else ()))


def logistic_data(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    eta = X @ rng.standard_normal(p) / np.sqrt(p)
    return X, (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)


def logistic_fit(X: np.ndarray, y: np.ndarray) -> lo.Fit:
    """The minimiser of LogisticRegression(C=1)."""
    return lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))


def left_out(X: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The linear predictor of every row by a refit without it: NumPy's Newton steps to the floor."""
    design, penalty, out = np.c_[X, np.ones(len(y))], np.r_[np.ones(X.shape[1]), 0.0], np.empty(len(y))
    for i in range(len(y)):
        theta, weight, step = start.copy(), np.arange(len(y)) != i, np.array(np.inf)
        while np.abs(step).max() > 1e-12:
            mu = 1 / (1 + np.exp(-design @ theta))
            hessian = (design.T * (weight * mu * (1 - mu))) @ design + np.diag(penalty)
            step = np.linalg.solve(hessian, design.T @ (weight * (mu - y)) + penalty * theta)
            theta -= step
        out[i] = design[i] @ theta
    return out


def refitting(n: int = 2000, p: int = 20) -> None:
    """Leave-one-out against scikit-learn's n refits: time, errors, and losses within their own reported error."""
    X, y = logistic_data(n, p)
    fit, plan = logistic_fit(X, y), lo.leave_one_out(n)
    truth = left_out(X, y, np.r_[fit.parameters["coef"], fit.parameters["intercept"]])
    losses = np.logaddexp(0, truth) - y * truth
    rows, peers = [], []
    for solver in SOLVERS:
        model = LogisticRegression(solver=solver, tol=1e-10, max_iter=1000)
        run = lambda model=model: cross_val_predict(model, X, y, cv=LeaveOneOut(), method="decision_function")
        seconds, eta = once(run)
        peers.append(seconds)
        name = f"scikit-learn {solver}, tol 1e-10, once"
        rows.append({"what": name, "seconds": seconds, "prediction error": abs(eta - truth).max()})
    strategies = {"Certified": (lo.Certified(), 300), "Exact": (lo.Exact(), 20)}
    runs = {name: lambda refit=refit: lo.cross_validate(fit, plan, refit) for name, (refit, _) in strategies.items()}
    times = race(9, fitting=lambda: logistic_fit(X, y), **runs)
    rows.append({"what": "lo.GLM and lo.fit", "seconds": times["fitting"]})
    for name, (refit, target) in strategies.items():
        estimate, eta = lo.cross_validate(fit, plan, refit), lo.cross_predict(fit, plan, refit, "link")
        off, reported = abs(estimate.losses - losses), np.maximum(estimate.error, ROUNDING)
        row = {"what": f"lo.cross_validate, {name}", "seconds": times[name], "prediction error": abs(eta - truth).max()}
        row |= {"times faster": min(peers) / times[name], "target": target}
        row |= {"with the fit": min(peers) / (times[name] + times["fitting"]), "loss error": off.max()}
        rows.append(row | {"within its own": (off <= reported).mean(), "worst of its own": (off / reported).max()})
    show(f"refitting: leave-one-out, logistic, n = {n:,}, p = {p}; errors against Newton's refits", rows)


def one_fit() -> None:
    """Certified leave-one-out of a fit that is given, against scikit-learn's one fit: time and peak memory."""
    rows = []
    for n, p, target in ((100_000, 100, 1), (20_000, 500, 3)):
        X, y = logistic_data(n, p)
        host, plan = LogisticRegression(solver="newton-cholesky").fit(X, y), lo.leave_one_out(n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its default tolerance leaves a decrement above 0.01, shown below
            fit = lo.from_sklearn(host, X, y)
            times = race(5, **contest(host, X, y, fit, plan))
        estimate, peer = lo.cross_validate(fit, plan), times["sklearn fit"]
        row = {"n": n, "p": p, **times, "loo / fit": times["certified loo"] / peer, "target": target}
        row |= {"with from_sklearn": (times["certified loo"] + times["from_sklearn"]) / peer, "decrement": float(fit.decrement)}
        rows.append(row | {"error / se": estimate.approximation_error / estimate.se, "flagged": len(estimate.flagged())})
    show("one_fit: certified leave-one-out, logistic, in fits of newton-cholesky", rows)
    rows = []
    for n, p in ((100_000, 100), (20_000, 500)):
        used = fresh.peak_memory(n, p)
        row = {"n": n, "p": p, "the fit's copy": used["copy"], "growth": used["first"], "growth again": used["again"]}
        row |= {"X + copy + growth": 1 + used["copy"] + used["first"], "again": 1 + used["copy"] + used["again"], "target": 3}
        rows.append(row | {"peak over start": used["first, whole"]})
    show("one_fit: peak memory of that in a fresh process, in X; the first call compiles", rows)


def contest(host: LogisticRegression, X: np.ndarray, y: np.ndarray, fit: lo.Fit, plan: lo.Plan) -> dict[str, Callable]:
    return {
        "sklearn fit": lambda: host.fit(X, y),
        "from_sklearn": lambda: lo.from_sklearn(host, X, y),
        "certified loo": lambda: lo.cross_validate(fit, plan),
    }


def ridge(n: int = 100_000, p: int = 100) -> None:
    """Ridge regression, α = 1: errors against refits by NumPy at small n, time against RidgeCV at large n."""
    X, y = squared_data(200, 10)
    design, penalty, truth = np.c_[X, np.ones(200)], np.diag(np.r_[np.ones(10), 0.0]), np.empty(200)
    for i in range(200):
        A, b = np.delete(design, i, 0), np.delete(y, i)
        truth[i] = design[i] @ np.linalg.solve(A.T @ A + penalty, A.T @ b)
    rows = []
    squared_fit = lambda X, y: lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)))
    for name, fit in (("lo.fit", squared_fit(X, y)), ("lo.from_sklearn", lo.from_sklearn(Ridge(1.0).fit(X, y), X, y))):
        for refit in (lo.NewtonStep(), lo.Exact(), lo.Certified()):
            off = abs(lo.cross_predict(fit, lo.leave_one_out(200), refit) - truth).max() / abs(truth).max()
            rows.append({"fit": name, "refit": type(refit).__name__, "relative error": off, "target": 1e-12})
    show("ridge: leave-one-out predictions against refits by numpy.linalg.solve, n = 200, p = 10", rows)

    X, y = squared_data(n, p)
    fit, host, plan = squared_fit(X, y), Ridge(1.0).fit(X, y), lo.leave_one_out(n)
    runs = {type(r).__name__: lambda r=r: lo.cross_validate(fit, plan, r) for r in (lo.NewtonStep(), lo.Certified())}
    peers = {"RidgeCV(alphas=[1.0])": lambda: RidgeCV(alphas=[1.0]).fit(X, y), "Ridge, one fit": lambda: Ridge(1.0).fit(X, y)}
    parts = {"lo.from_sklearn": lambda: lo.from_sklearn(host, X, y), "lo.GLM and lo.fit": lambda: squared_fit(X, y)}
    times = race(5, **peers, **parts, **runs)
    for name in runs:
        times[f"{name}, lo.GLM and lo.fit"] = times[name] + times["lo.GLM and lo.fit"]
    peer = times["RidgeCV(alphas=[1.0])"]
    rows = [{"what": name, "seconds": seconds, "of RidgeCV": seconds / peer} for name, seconds in times.items()]
    show(f"ridge: one α, n = {n:,}, p = {p}; target 1 RidgeCV", rows)


def path(count: int = 50) -> None:
    """Many penalties in one call, the objective and the choice included, against scikit-learn's own searches."""
    alphas, rows = np.logspace(-3, 3, count), []
    for n, p in ((1000, 20), (20_000, 50)):
        X, y = squared_data(n, p)
        ours = lambda X=X, y=y: lo.path(lo.GLM(X, y, "squared"), alphas, lo.leave_one_out(len(y)))
        first, found = once(ours)
        host = RidgeCV(alphas, store_cv_results=True).fit(X, y)
        off = max(abs(e.losses - host.cv_results_[:, k] / 2).max() for k, e in enumerate(found.estimates))
        runs = {"RidgeCV": lambda X=X, y=y: RidgeCV(alphas).fit(X, y), "lo.path": lambda ours=ours: ours().best}
        row = {"what": "ridge, leave-one-out", "n": n, "p": p, "first": once(runs["lo.path"])[0]} | raced(
            runs, 50_000_000 // (n * p)
        )
        rows.append(row | {"target": 1, "same choice": found.best.value == host.alpha_, "losses differ by": off})
    X, y = logistic_data(1000, 20)
    peer = lambda: LogisticRegressionCV(Cs=1 / alphas, cv=5).fit(X, y)
    for refit in (lo.Certified(), lo.NewtonStep()):
        ours = lambda refit=refit: lo.path(lo.GLM(X, y, "logistic"), alphas, lo.leave_one_out(1000), refit)
        first, found = once(ours)
        runs = {"LogisticRegressionCV(cv=5)": peer, "lo.path": lambda ours=ours: ours().best}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its next release
            row = {"what": f"logistic, leave-one-out, {refit}", "n": 1000, "p": 20, "first": first} | raced(runs, 5)
        rows.append(row | {"target": 5, "proved": found.table()["proved"].mean()})
    show(f"path: {count} penalties in one call, seconds; first: once, before the others", rows)


def raced(runs: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Seconds of a peer and of ours, the least of repeats in which they take turns, and how many times faster ours are."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(min(max(repeats, 3), 100)):
        for name, run in runs.items():
            times[name].append(once(run)[0])
    peer, ours = (min(each) for each in times.values())
    return {"peer": peer, "lo.path": ours, "times faster": peer / ours}


def squared_data(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, X @ rng.standard_normal(p) + 3.0 + rng.standard_normal(n)


def folds() -> None:
    """Ten folds of many rows, and a thousand bootstrap resamples of few, against scikit-learn's refits."""
    against_refits(100_000, 100, lo.kfold(100_000, 10, seed=0), 10, {"Exact": 5, "Certified": None})
    against_refits(2000, 20, lo.bootstrap(2000, 1000, seed=0), 100, {"Exact": 8, "NewtonStep": 20, "Certified": None})


def against_refits(n: int, p: int, plan: lo.Plan, some: int, targets: dict[str, int | None]) -> None:
    """The refits' weights, and scores of the rows of weight zero; scikit-learn's time is that of `some`, scaled."""
    X, y = logistic_data(n, p)
    fit = logistic_fit(X, y)
    weights = np.ones((some, n))
    mine = plan.refit < some
    weights[plan.refit[mine], plan.index[mine]] = plan.weight[mine]
    exact = lo.fold_parameters(fit, plan, lo.Exact())["coef"]
    rows, peers = [], []
    for solver in SOLVERS:
        model = LogisticRegression(solver=solver, tol=1e-8, max_iter=1000)

        def refits(model=model):
            for w in weights:
                seen = w > 0
                weight = None if (w[seen] == 1).all() else w[seen]
                model.fit(X[seen], y[seen], sample_weight=weight).decision_function(X[~seen])
                yield model.coef_[0]

        seconds, coef = once(lambda refits=refits: np.stack(list(refits())))
        peers.append(seconds * len(plan) / some)
        name = f"scikit-learn {solver}, tol 1e-8, {some} once" + (", scaled" if some < len(plan) else "")
        rows.append({"what": name, "seconds": peers[-1], "coefficients": abs(coef - exact[:some]).max()})
    times = race(3, **{name: lambda name=name: lo.cross_validate(fit, plan, getattr(lo, name)()) for name in targets})
    for name, target in targets.items():
        off = abs(lo.fold_parameters(fit, plan, getattr(lo, name)())["coef"] - exact).max()
        row = {"what": f"lo.cross_validate, {name}", "seconds": times[name], "coefficients": off}
        rows.append(row | {"times faster": min(peers) / times[name], "target": target})
    show(f"folds: {len(plan)} refits, logistic, n = {n:,}, p = {p}; largest difference of coefficients from Exact", rows)


def survival(some: int = 20) -> None:
    """Cox's proportional hazards: certified leave-one-out, and how it grows with the rows; some rows again by `Exact`."""
    rows = []
    for n, p in ((10_000, 10), (100_000, 10)):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, p))
        died, left = rng.exponential(np.exp(-X @ rng.standard_normal(p) / np.sqrt(p))), rng.exponential(2, n)
        objective = lo.Cox(X, np.minimum(died, left), (died <= left).astype(float), lo.penalties.Ridge(1.0))
        fitting, fit = once(lambda objective=objective: lo.fit(objective))
        ours = lambda fit=fit, n=n: lo.cross_validate(fit, lo.leave_one_out(n))
        first, found = once(ours)
        picked = np.sort(rng.choice(n, some, replace=False))
        plan = lo.from_splits([(np.delete(np.arange(n), i), [i]) for i in picked], n)
        exact = lo.cross_validate(fit, plan, lo.Exact(1e-10), audit=0)
        off = np.abs(found.losses[picked] - exact.losses)
        row = {"n": n, "p": p, "fit": fitting, "first": first, "warm": np.median([once(ours)[0] for _ in range(3)])}
        again, _ = once(lambda fit=fit, plan=plan: lo.cross_validate(fit, plan, lo.Exact(1e-10), audit=0))
        rows.append(row | {"a row by Exact": again / some, "beyond": int((off > found.error[picked]).sum()), "target": 20})
    show(f"survival: Cox, each row left out, audit included, seconds; beyond: of {some} rows refitted exactly", rows)


def links() -> None:
    """Left-out linear predictors for links that are not canonical."""
    title = "links: relative error of the change of left-out predictors, n = 120, p = 5, medians of 10 data sets"
    show(f"{title}; NewtonStep: target 0.03", noncanonical.study())


def coverage() -> None:
    """Coverage of 95 % intervals."""
    show("coverage: of mean ± 1.96 se, 300 replications, p = 4; groups of 8 rows with random effects", intervals.study())


def cold(repeats: int = 3) -> None:
    """Fresh processes: breast_cancer from the import to a printed answer, half of which may be scikit-learn's own import, the
    interpreter's start in "whole process"; and `leaveout glm` of 200 rows."""
    rows = []
    for _ in range(repeats):
        seconds, parts = once(fresh.cold)
        rows.append(parts | {"whole process": seconds, "leaveout glm": once(fresh.command)[0]})
    targets = "targets: the first column 2, the last 1"
    show(f"cold: certified leave-one-out of breast_cancer, seconds in {repeats} fresh processes; {targets}", rows)


DEMANDS = {demand.__name__: demand for demand in (refitting, one_fit, ridge, folds, links, coverage, cold, path, survival)}

if __name__ == "__main__":
    main(DEMANDS, __doc__, sized=False)
