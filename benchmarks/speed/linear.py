"""Is one fit enough, and at what price? Linear predictors against the programs that refit them, and
against hand-written code.

    taskset -c 0 python benchmarks/speed/linear.py [refitting one_fit ridge folds cold path survival
    rows several first]

refitting   leave-one-out against scikit-learn's n refits
one_fit     leave-one-out of a given fit against one fit by scikit-learn: time and peak memory
ridge       one ridge penalty against RidgeCV
folds       ten folds, and a thousand resamples, against scikit-learn's refits
cold        fresh processes, from the import to a printed answer
path        fifty penalties in one call against RidgeCV and LogisticRegressionCV
survival    Cox's proportional hazards: growth with the rows, some rows again by `Exact`
rows
single rows against approximate leave-one-out in blocked NumPy, from the same factor of H, audit
apart several     the same for a multinomial model
first
groups, folds and resamples in a fresh process: the first call, another plan, and the first plan
again

Each part prints one table. Times are in seconds, medians of repeats in which the contestants take
turns, after a warm-up; a title says what was timed once, or in part and scaled. Pin the program to
one core where others work: OpenBLAS's threads wait for one another, and a busy neighbour slows them
(the peers) tenfold. In `rows`, `several` and `first` every call of ours is of a fresh `Fit`.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.linalg
from common import (
    fresh_process,
    logistic_data,
    logistic_fit,
    main,
    memory_growth,
    once,
    race,
    resident,
    show,
    squared_data,
)
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.model_selection import LeaveOneOut, cross_val_predict

import leaveout as lo
from leaveout.optimize.fit import uncached

SOLVERS = ("lbfgs", "newton-cholesky")
ROUNDING = 1e-12  # of a loss: below it the refits that serve as the truth are not resolved either


def left_out(X: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The linear predictor of every row by a refit without it.

    NumPy's Newton steps to the floor.
    """
    design, penalty, out = (
        np.c_[X, np.ones(len(y))],
        np.r_[np.ones(X.shape[1]), 0.0],
        np.empty(len(y)),
    )
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
    """Leave-one-out against scikit-learn's n refits.

    Time, errors, and losses within their own reported error.
    """
    X, y = logistic_data(n, p)
    fit, plan = logistic_fit(X, y), lo.leave_one_out(n)
    truth = left_out(X, y, np.r_[fit.parameters["coef"], fit.parameters["intercept"]])
    losses = np.logaddexp(0, truth) - y * truth
    rows, peers = [], []
    for solver in SOLVERS:
        model = LogisticRegression(solver=solver, tol=1e-10, max_iter=1000)
        run = lambda model=model: cross_val_predict(
            model, X, y, cv=LeaveOneOut(), method="decision_function"
        )
        seconds, eta = once(run)
        peers.append(seconds)
        name = f"scikit-learn {solver}, tol 1e-10, once"
        rows.append({"what": name, "seconds": seconds, "prediction error": abs(eta - truth).max()})
    strategies = {"Certified": (lo.Certified(), 300), "Exact": (lo.Exact(), 20)}
    runs = {
        name: lambda refit=refit: lo.cross_validate(fit, plan, strategy=refit)
        for name, (refit, _) in strategies.items()
    }
    times = race(9, fitting=lambda: logistic_fit(X, y), **runs)
    rows.append({"what": "lo.GLM and lo.fit", "seconds": times["fitting"]})
    for name, (refit, target) in strategies.items():
        estimate, eta = (
            lo.cross_validate(fit, plan, strategy=refit),
            lo.cross_predict(fit, plan, strategy=refit, kind="link"),
        )
        off, reported = abs(estimate.losses - losses), np.maximum(estimate.error, ROUNDING)
        row = {
            "what": f"lo.cross_validate, {name}",
            "seconds": times[name],
            "prediction error": abs(eta - truth).max(),
        }
        row |= {"times faster": min(peers) / times[name], "target": target}
        row |= {
            "with the fit": min(peers) / (times[name] + times["fitting"]),
            "loss error": off.max(),
        }
        rows.append(
            row
            | {
                "within its own": (off <= reported).mean(),
                "worst of its own": (off / reported).max(),
            }
        )
    show(
        f"refitting: leave-one-out, logistic, n = {n:,}, p = {p}; errors against Newton's refits",
        rows,
    )


def one_fit() -> None:
    """Certified leave-one-out of a fit that is given, against scikit-learn's one fit.

    Time and peak memory.
    """
    rows = []
    for n, p, target in ((100_000, 100, 1), (20_000, 500, 3)):
        X, y = logistic_data(n, p)
        host, plan = LogisticRegression(solver="newton-cholesky").fit(X, y), lo.leave_one_out(n)
        with warnings.catch_warnings():
            # its default tolerance leaves a decrement above 0.01, shown below
            warnings.simplefilter("ignore")
            fit = lo.from_sklearn(host, X, y)
            times = race(5, **contest(host, X, y, fit, plan))
        estimate, peer = lo.cross_validate(fit, plan), times["sklearn fit"]
        row = {
            "n": n,
            "p": p,
            **times,
            "loo / fit": times["certified loo"] / peer,
            "target": target,
        }
        row |= {
            "with from_sklearn": (times["certified loo"] + times["from_sklearn"]) / peer,
            "decrement": float(fit.decrement),
        }
        rows.append(
            row
            | {
                "error / se": estimate.approximation_error / estimate.se,
                "flagged": len(estimate.flagged()),
            }
        )
    show("one_fit: certified leave-one-out, logistic, in fits of newton-cholesky", rows)
    rows = []
    for n, p in ((100_000, 100), (20_000, 500)):
        used = peak_memory(n, p)
        row = {
            "n": n,
            "p": p,
            "the fit's copy": used["copy"],
            "growth": used["first"],
            "growth again": used["again"],
        }
        row |= {
            "X + copy + growth": 1 + used["copy"] + used["first"],
            "again": 1 + used["copy"] + used["again"],
            "target": 3,
        }
        rows.append(row | {"peak over start": used["first, whole"]})
    show("one_fit: peak memory of that in a fresh process, in X; the first call compiles", rows)


def contest(
    host: LogisticRegression, X: np.ndarray, y: np.ndarray, fit: lo.Fit, plan: lo.Plan
) -> dict[str, Callable]:
    return {
        "sklearn fit": lambda: host.fit(X, y),
        "from_sklearn": lambda: lo.from_sklearn(host, X, y),
        "certified loo": lambda: lo.cross_validate(fit, plan),
    }


def ridge(n: int = 100_000, p: int = 100) -> None:
    """Ridge regression, α = 1: time against RidgeCV."""
    squared_fit = lambda X, y: lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0)))
    X, y = squared_data(n, p)
    fit, host, plan = squared_fit(X, y), Ridge(1.0).fit(X, y), lo.leave_one_out(n)
    runs = {
        type(r).__name__: lambda r=r: lo.cross_validate(fit, plan, strategy=r)
        for r in (lo.NewtonStep(), lo.Certified())
    }
    peers = {
        "RidgeCV(alphas=[1.0])": lambda: RidgeCV(alphas=[1.0]).fit(X, y),
        "Ridge, one fit": lambda: Ridge(1.0).fit(X, y),
    }
    parts = {
        "lo.from_sklearn": lambda: lo.from_sklearn(host, X, y),
        "lo.GLM and lo.fit": lambda: squared_fit(X, y),
    }
    times = race(5, **peers, **parts, **runs)
    for name in runs:
        times[f"{name}, lo.GLM and lo.fit"] = times[name] + times["lo.GLM and lo.fit"]
    peer = times["RidgeCV(alphas=[1.0])"]
    rows = [
        {"what": name, "seconds": seconds, "of RidgeCV": seconds / peer}
        for name, seconds in times.items()
    ]
    show(f"ridge: one α, n = {n:,}, p = {p}; target 1 RidgeCV", rows)


def path(count: int = 50) -> None:
    """Many penalties in one call, the objective and the choice included, against scikit-learn's own
    searches.
    """
    alphas, rows = np.logspace(-3, 3, count), []
    for n, p in ((1000, 20), (20_000, 50)):
        X, y = squared_data(n, p)
        ours = lambda X=X, y=y: lo.path(lo.GLM(X, y, "squared"), alphas, lo.leave_one_out())
        first, found = once(ours)
        host = RidgeCV(alphas, store_cv_results=True).fit(X, y)
        off = max(
            abs(e.losses - host.cv_results_[:, k] / 2).max() for k, e in enumerate(found.estimates)
        )
        runs = {
            "RidgeCV": lambda X=X, y=y: RidgeCV(alphas).fit(X, y),
            "lo.path": lambda ours=ours: ours().best,
        }
        row = {
            "what": "ridge, leave-one-out",
            "n": n,
            "p": p,
            "first": once(runs["lo.path"])[0],
        } | raced(runs, 50_000_000 // (n * p))
        rows.append(
            row
            | {"target": 1, "same choice": found.best.value == host.alpha_, "losses differ by": off}
        )
    X, y = logistic_data(1000, 20)
    peer = lambda: LogisticRegressionCV(Cs=1 / alphas, cv=5).fit(X, y)
    for refit in (lo.Certified(), lo.NewtonStep()):
        ours = lambda refit=refit: lo.path(
            lo.GLM(X, y, "logistic"), alphas, lo.leave_one_out(), strategy=refit
        )
        first, found = once(ours)
        runs = {"LogisticRegressionCV(cv=5)": peer, "lo.path": lambda ours=ours: ours().best}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its next release
            row = {
                "what": f"logistic, leave-one-out, {refit}",
                "n": 1000,
                "p": 20,
                "first": first,
            } | raced(runs, 5)
        rows.append(row | {"target": 5, "proved": found.table()["proved"].mean()})
    show(f"path: {count} penalties in one call, seconds; first: once, before the others", rows)


def raced(runs: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Seconds of a peer and of ours, the least of repeats in which they take turns, and how many
    times faster ours are.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(min(max(repeats, 3), 100)):
        for name, run in runs.items():
            times[name].append(once(run)[0])
    peer, ours = (min(each) for each in times.values())
    return {"peer": peer, "lo.path": ours, "times faster": peer / ours}


def folds() -> None:
    """Ten folds of many rows, and a thousand bootstrap resamples of few, against scikit-learn's
    refits.
    """
    against_refits(100_000, 100, lo.kfold(100_000, 10, rng=0), 10, {"Exact": 5, "Certified": None})
    against_refits(
        2000,
        20,
        lo.bootstrap(2000, 1000, rng=0),
        100,
        {"Exact": 8, "NewtonStep": 20, "Certified": None},
    )


def against_refits(
    n: int, p: int, plan: lo.Plan, some: int, targets: dict[str, int | None]
) -> None:
    """The refits' weights, and scores of the rows of weight zero.

    Scikit-learn's time is that of `some`, scaled.
    """
    X, y = logistic_data(n, p)
    fit = logistic_fit(X, y)
    weights = np.ones((some, n))
    mine = plan.refit < some
    weights[plan.refit[mine], plan.index[mine]] = plan.weight[mine]
    exact = lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"]
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
        name = f"scikit-learn {solver}, tol 1e-8, {some} once" + (
            ", scaled" if some < len(plan) else ""
        )
        rows.append(
            {"what": name, "seconds": peers[-1], "coefficients": abs(coef - exact[:some]).max()}
        )
    times = race(
        3,
        **{
            name: lambda name=name: lo.cross_validate(fit, plan, strategy=getattr(lo, name)())
            for name in targets
        },
    )
    for name, target in targets.items():
        off = abs(lo.fold_parameters(fit, plan, strategy=getattr(lo, name)())["coef"] - exact).max()
        row = {"what": f"lo.cross_validate, {name}", "seconds": times[name], "coefficients": off}
        rows.append(row | {"times faster": min(peers) / times[name], "target": target})
    show(
        f"folds: {len(plan)} refits, logistic, n = {n:,}, p = {p}; largest difference of coefficients from Exact",
        rows,
    )


def survival(some: int = 20) -> None:
    """Cox's proportional hazards: certified leave-one-out, and how it grows with the rows.

    Some rows again by `Exact`.
    """
    rows = []
    for n, p in ((10_000, 10), (100_000, 10)):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, p))
        died, left = (
            rng.exponential(np.exp(-X @ rng.standard_normal(p) / np.sqrt(p))),
            rng.exponential(2, n),
        )
        objective = lo.Cox(
            X, np.minimum(died, left), (died <= left).astype(float), lo.penalties.Ridge(1.0)
        )
        fitting, fit = once(lambda objective=objective: lo.fit(objective))
        ours = lambda fit=fit, n=n: lo.cross_validate(fit, lo.leave_one_out())
        first, found = once(ours)
        picked = np.sort(rng.choice(n, some, replace=False))
        plan = lo.from_splits([(np.delete(np.arange(n), i), [i]) for i in picked], n)
        exact = lo.cross_validate(fit, plan, strategy=lo.Exact(1e-10), audit=0)
        off = np.abs(found.losses[picked] - exact.losses)
        row = {
            "n": n,
            "p": p,
            "fit": fitting,
            "first": first,
            "warm": np.median([once(ours)[0] for _ in range(3)]),
        }
        again, _ = once(
            lambda fit=fit, plan=plan: lo.cross_validate(
                fit, plan, strategy=lo.Exact(1e-10), audit=0
            )
        )
        rows.append(
            row
            | {
                "a row by Exact": again / some,
                "beyond": int((off > found.error[picked]).sum()),
                "target": 20,
            }
        )
    show(
        f"survival: Cox, each row left out, audit included, seconds; beyond: of {some} rows refitted exactly",
        rows,
    )


def cold(repeats: int = 3) -> None:
    """Fresh processes: breast_cancer from the import to a printed answer, half of which may be
    scikit-learn's own import, the interpreter's start in "whole process"; and `leaveout glm` of 200
    rows."""
    rows = []
    for _ in range(repeats):
        seconds, parts = once(cold_process)
        rows.append(parts | {"whole process": seconds, "leaveout glm": once(command)[0]})
    targets = "targets: the first column 2, the last 1"
    show(
        f"cold: certified leave-one-out of breast_cancer, seconds in {repeats} fresh processes; {targets}",
        rows,
    )


COLD = """
import time; times = [time.perf_counter()]
tick = lambda: times.append(time.perf_counter())
import leaveout as lo; tick()
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler; tick()
X, y = lo.datasets.breast_cancer(); tick()
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y); tick()
for call in range(2):
    fit = lo.from_sklearn(model, X, y); tick()
    print(lo.cross_validate(fit, lo.leave_one_out(len(y)))); tick()
import json, numpy as np
names = "importing", "sklearn", "data", "sklearn's fit", "from_sklearn", "certified loo", "from_sklearn again", "loo again"
print(json.dumps({"to the answer": times[6] - times[0], **dict(zip(names, np.diff(times)))}))
"""


def cold_process() -> dict[str, float]:
    """Seconds from the import to the printed leave-one-out of breast_cancer, and its parts."""
    return fresh_process(COLD)


def command(rows: int = 200) -> None:
    """`leaveout glm` on a file of so many rows, in a process of its own."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 4))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        np.savetxt(
            file,
            np.c_[X, X[:, 0] > rng.logistic(size=rows)],
            delimiter=",",
            header="a,b,c,d,y",
            comments="",
        )
        asked = [
            sys.executable,
            "-c",
            "from leaveout.extensions.cli import app; app()",
            "glm",
            file,
            "--target",
            "y",
            "--loss",
            "logistic",
        ]
        subprocess.run(asked, capture_output=True, check=True)


def peak_memory(n: int, p: int) -> dict[str, float]:
    """Resident memory of certified leave-one-out, logistic, in units of X; see `print_memory`."""
    return fresh_process(f"import linear; linear.print_memory({n}, {p})")


def print_memory(n: int, p: int) -> None:
    """Growth to the peak in lo.cross_validate, with compiling and again without."""
    start = resident("VmRSS")
    X, y = logistic_data(n, p)
    fit, plan = logistic_fit(X, y), lo.leave_one_out(n)
    out = {"copy": fit.objective.design.nbytes / X.nbytes}
    for call in ("first", "again"):
        grown = memory_growth(lambda: lo.cross_validate(fit, plan))
        out |= {call: grown / X.nbytes, f"{call}, whole": (resident("VmHWM") - start) / X.nbytes}
    print(json.dumps(out))


SIZES = (
    (1000, 5),
    (10_000, 50),
    (100_000, 100),
    (1_000_000, 50),
    (20_000, 500),
    (3000, 1000),
    (4000, 2000),
)
BLOCK = 4096  # rows at a time
FIRST = """
import time, numpy as np, leaveout as lo
from common import logistic_data, logistic_fit
X, y = logistic_data(20_000, 20)
fit, plans = logistic_fit(X, y), {plans}
times = []
for plan in (plans[0], plans[1], plans[0]):
    start = time.perf_counter(); lo.cross_validate(fit, plan); times.append(time.perf_counter() - start)
import json
print(json.dumps(dict(zip(("first call", "another plan", "the first again"), times))))
"""
PLANS = {
    "1,000 groups": "[lo.groups(np.arange(20_000) % 1000), lo.groups(np.arange(20_000) // 20)]",
    "ten folds": "[lo.kfold(20_000, 10, rng=0), lo.kfold(20_000, 10, rng=1)]",
    "200 resamples": "[lo.bootstrap(20_000, 200, rng=0), lo.bootstrap(20_000, 200, rng=1)]",
}


def by_hand(X: np.ndarray, y: np.ndarray, theta: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """η + hℓ′/(1 − hℓ″) of every row, and its loss, from H = L Lᵀ, in blocks of rows."""
    root, out = scipy.linalg.lapack.dtrtri(factor, lower=1)[0].T, np.empty(len(y))
    for start in range(0, len(y), BLOCK):
        x, seen = X[start : start + BLOCK], y[start : start + BLOCK]
        eta = x @ theta
        mu = 1 / (1 + np.exp(-eta))
        z = x @ root
        h = np.einsum("np,np->n", z, z)
        eta += h * (mu - seen) / (1 - h * mu * (1 - mu))
        out[start : start + BLOCK] = np.logaddexp(0, eta) - seen * eta
    return out


def rows() -> None:
    """Leave-one-out of single rows, two strategies, with the share of errors that is proved."""
    table = []
    for n, p in SIZES:
        X, y = logistic_data(n, p)
        fit, plan = (
            lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0), intercept=False)),
            lo.leave_one_out(n),
        )
        ours = lambda refit, audit=0, fit=fit, plan=plan: lo.cross_validate(
            uncached(fit),
            plan,
            strategy=refit,
            audit=audit,
        )
        hosts = {
            s: lambda s=s, X=X, y=y: LogisticRegression(solver=s, fit_intercept=False).fit(X, y)
            for s in ("lbfgs", "newton-cholesky")
        }
        runs = {
            "by hand": lambda X=X, y=y, fit=fit: by_hand(
                X, y, fit.vector, np.asarray(fit.quadratic.factor)
            ),
            "NewtonStep": lambda ours=ours: ours(lo.NewtonStep()),
            "Certified": lambda ours=ours: ours(lo.Certified()),
            "with audit": lambda ours=ours: ours(lo.Certified(), 5),
        }
        times = race(15 if n * p < 10**6 else 3 if p < 2000 else 1, **runs) | {
            name: once(host)[0] for name, host in hosts.items()
        }
        step, best = ours(lo.NewtonStep()), ours(lo.Certified())
        row = {"n": n, "p": p, "lbfgs": times["lbfgs"], "newton-cholesky": times["newton-cholesky"]}
        row |= {name: times[name] for name in runs} | {
            f"{name} / by hand": times[name] / times["by hand"] for name in list(runs)[1:3]
        }
        row |= {"proved, step": step.proved.mean(), "proved": best.proved.mean()}
        table.append(row | {"step by hand differs": abs(step.losses - runs["by hand"]()).max()})
        print(
            f"{n:,} x {p:,}: Certified {times['Certified']:.3g} s, by hand {times['by hand']:.3g} s",
            flush=True,
        )
    show(
        "rows: leave-one-out, logistic, no intercept; targets: NewtonStep 1.5 times by hand; Certified 3, 6 (p = 500), 15",
        table,
    )


def by_hand_of_several(
    X: np.ndarray, y: np.ndarray, theta: np.ndarray, factor: np.ndarray
) -> np.ndarray:
    """η + (I − GW)⁻¹ G (p − e_y) of every row, G = U H⁻¹ Uᵀ, W = diag(p) − p pᵀ, and its loss, in
    blocks of rows.
    """
    (K, q), size = theta.shape, BLOCK // theta.shape[0]
    inverse = scipy.linalg.lapack.dpotri(factor, lower=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    columns, out = (
        inverse.reshape(K, q, K, q).transpose(1, 0, 2, 3).reshape(q, -1),
        np.empty(len(y)),
    )
    for start in range(0, len(y), size):
        x, seen = X[start : start + size], y[start : start + size]
        eta, own = x @ theta.T, (np.arange(len(x)), seen)
        p = np.exp(eta - eta.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        G = ((x @ columns).reshape(-1, K * K, q) @ x[:, :, None]).reshape(-1, K, K)
        W, slope = p[:, :, None] * (np.eye(K) - p[:, None, :]), p.copy()
        slope[own] -= 1
        eta += np.linalg.solve(np.eye(K) - G @ W, G @ slope[:, :, None])[:, :, 0]
        top = eta.max(1)
        out[start : start + size] = np.log(np.exp(eta - top[:, None]).sum(1)) + top - eta[own]
    return out


def several(n: int = 20_000, p: int = 50, classes: int = 10) -> None:
    """A multinomial model: its fit, and leave-one-out."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    eta = 2 * X @ rng.standard_normal((p, classes)) / np.sqrt(p)
    y = np.argmax(eta + rng.gumbel(size=eta.shape), axis=1)
    host = LogisticRegression(tol=1e-8, max_iter=1000)
    make = lambda: lo.fit(lo.GLM(X, y, "multinomial", lo.penalties.Ridge(1.0)))
    first, fit = once(make)
    design = np.c_[X, np.ones(n)]
    hand = lambda: by_hand_of_several(design, y, fit.theta, np.asarray(fit.quadratic.factor))
    ours = lambda refit: lo.cross_validate(
        uncached(fit),
        lo.leave_one_out(),
        strategy=refit,
    )
    runs = {
        "lbfgs": lambda: host.fit(X, y),
        "fit": make,
        "hand": hand,
        "loo": lambda: ours(lo.Certified()),
    }
    times, cv, step = race(3, **runs), ours(lo.Certified()), ours(lo.NewtonStep())
    host = {"coef": host.coef_, "intercept": host.intercept_}
    left = np.linalg.norm(lo.anchor(fit.objective, host).gradient)
    row = {
        "n": n,
        "p": p,
        "classes": classes,
        "scikit-learn lbfgs": times["lbfgs"],
        "its gradient": left,
    }
    row |= {"fit, first": first, "fit": times["fit"], "ours": np.linalg.norm(fit.gradient)}
    row |= {
        "loo by hand": times["hand"],
        "certified loo": times["loo"],
        "target": 3,
        "/ by hand": times["loo"] / times["hand"],
    }
    row |= {"proved": cv.proved.mean(), "error / se": cv.approximation_error / cv.se}
    row["step by hand differs"] = abs(step.losses - hand()).max()
    show("several: a multinomial model, fitted and single rows left out", [row])


def first() -> None:
    """The first call of a process."""
    table = []
    for name, plans in PLANS.items():
        found = fresh_process(FIRST.replace("{plans}", plans))
        table.append(
            {
                "plan": name,
                **found,
                "first / again": found["first call"] / found["the first again"],
                "target": 1.5,
            }
        )
    show("first: logistic, 20,000 x 20, in fresh processes", table)


PARTS = {
    part.__name__: part
    for part in (refitting, one_fit, ridge, folds, cold, path, survival, rows, several, first)
}

if __name__ == "__main__":
    main(PARTS, __doc__)
