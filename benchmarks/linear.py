"""Is one fit enough, and at what price? Linear predictors against the programs that refit them.

    python benchmarks/linear.py [refitting one_fit ridge folds links coverage cold]

Each demand prints one table. Times are in seconds, medians of repeats after a warm-up call in the same
process; what was timed only once, or in part and scaled, says so.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats
from sklearn import linear_model, model_selection

import leaveout as lo

SOLVERS = ("lbfgs", "newton-cholesky")
ROUNDING = 1e-12  # of a loss: below it the refits that serve as the truth are not resolved either


def timed(run: Callable[[], Any], repeats: int = 5, warm: bool = True) -> tuple[float, Any]:
    """The median time of `repeats` calls, and the last result."""
    if warm:
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return float(np.median(times)), result


def show(title: str, rows: list[dict]) -> None:
    print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, na_rep='')}", flush=True)


def logistic_data(n: int, p: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    eta = X @ rng.standard_normal(p) / np.sqrt(p)
    return X, (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)


def sigmoid(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-eta))


def newton_refit(design: np.ndarray, y: np.ndarray, weight: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Logistic regression with ½‖coef‖², the last column an intercept: NumPy's Newton steps to the floor."""
    penalty = np.r_[np.ones(len(start) - 1), 0.0]
    theta = start.copy()
    for _ in range(20):
        mu = sigmoid(design @ theta)
        hessian = (design.T * (weight * mu * (1 - mu))) @ design + np.diag(penalty)
        step = np.linalg.solve(hessian, design.T @ (weight * (mu - y)) + penalty * theta)
        theta -= step
        if np.abs(step).max() < 1e-13:
            break
    return theta


def refitting(n: int = 2000, p: int = 20) -> None:
    """Leave-one-out of n rows against scikit-learn's n refits: time, and error of predictions and losses."""
    X, y = logistic_data(n, p)
    peers = {}
    for solver in SOLVERS:
        model = linear_model.LogisticRegression(solver=solver, tol=1e-10, max_iter=1000)
        peers[solver] = timed(
            lambda model=model: model_selection.cross_val_predict(
                model, X, y, cv=model_selection.LeaveOneOut(), method="decision_function"
            ),
            1,
            warm=False,
        )
    peer = min(seconds for seconds, _ in peers.values())
    design, start = np.c_[X, np.ones(n)], lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    theta = np.r_[start.parameters["coef"], start.parameters["intercept"]]
    weight = np.ones(n)
    truth = np.empty(n)
    for i in range(n):
        weight[i] = 0
        truth[i] = design[i] @ newton_refit(design, y, weight, theta)
        weight[i] = 1
    losses = np.logaddexp(0, truth) - y * truth
    rows = [
        {
            "what": f"{n} refits, scikit-learn {solver}, tol 1e-10, once",
            "seconds": seconds,
            "prediction error": abs(eta - truth).max(),
        }
        for solver, (seconds, eta) in peers.items()
    ]
    plan = lo.leave_one_out(n)
    fitting, fit = timed(lambda: lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0))))
    rows.append({"what": "lo.GLM and lo.fit", "seconds": fitting})
    for refit, target in ((lo.Certified(), 300), (lo.Exact(), 20)):
        seconds, estimate = timed(lambda refit=refit: lo.cross_validate(fit, plan, refit), 7)
        off = abs(estimate.losses - losses)
        rows.append(
            {
                "what": f"lo.cross_validate, {type(refit).__name__}",
                "seconds": seconds,
                "times faster": peer / seconds,
                "with the fit": peer / (seconds + fitting),
                "target": target,
                "prediction error": abs(lo.cross_predict(fit, plan, refit, "link") - truth).max(),
                "loss error": off.max(),
                "within its own": (off <= np.maximum(estimate.error, ROUNDING)).mean(),
                "worst of its own": (off / np.maximum(estimate.error, ROUNDING)).max(),
            }
        )
    show(f"refitting: leave-one-out, logistic, n = {n:,}, p = {p}; errors against Newton's refits", rows)


def memory(n: int, p: int) -> None:
    """In a fresh process: resident memory at its peak in lo.cross_validate, over the bytes of X, cold and again; JSON.

    The peak is forgotten (clear_refs) and freed memory given back (malloc_trim) before each call; ru_maxrss would
    be the parent's peak, or that of fitting.
    """
    start = resident("VmRSS")
    X, y = logistic_data(n, p)
    fit, plan = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0))), lo.leave_one_out(n)
    out = {"copy": fit.objective.design.nbytes / X.nbytes}
    for call in ("cold", "warm"):
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = resident("VmRSS")
        lo.cross_validate(fit, plan)
        out |= {call: (resident("VmHWM") - before) / X.nbytes, f"{call}, all": (resident("VmHWM") - start) / X.nbytes}
    print(json.dumps(out))


def resident(field: str) -> int:
    with open("/proc/self/status") as file:
        return 1024 * int(next(line for line in file if line.startswith(field)).split()[1])


def fresh(code: str) -> dict:
    """What a fresh Python process, in this folder, prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def one_fit() -> None:
    """Certified leave-one-out of a fit that is given, against scikit-learn's one fit: time and peak memory."""
    rows = []
    for n, p, target in ((100_000, 100, 1.0), (20_000, 500, 3.0)):
        X, y = logistic_data(n, p)
        host = linear_model.LogisticRegression(solver="newton-cholesky")
        peer, _ = timed(lambda host=host, X=X, y=y: host.fit(X, y), 5)
        handing, fit = timed(lambda host=host, X=X, y=y: lo.from_sklearn(host, X, y), 3)
        plan = lo.leave_one_out(n)
        seconds, estimate = timed(lambda fit=fit, plan=plan: lo.cross_validate(fit, plan), 5)
        used = fresh(f"import linear; linear.memory({n}, {p})")
        rows.append(
            {
                "n": n,
                "p": p,
                "sklearn fit": peer,
                "from_sklearn": handing,
                "certified loo": seconds,
                "loo / fit": seconds / peer,
                "target": target,
                "with from_sklearn": (seconds + handing) / peer,
                "approximation / se": estimate.approximation_error / estimate.se,
                "flagged": len(estimate.flagged()),
                "growth / X, cold": used["cold"],
                "warm": used["warm"],
                "X + copy + growth": 1 + used["copy"] + used["cold"],
                "that, warm": 1 + used["copy"] + used["warm"],
                "peak above start": used["cold, all"],
            }
        )
        del fit, X, y
    show("one_fit: certified leave-one-out, logistic, in fits of newton-cholesky (memory: target 3 of X)", rows)


def ridge(n: int = 100_000, p: int = 100, alpha: float = 1.0) -> None:
    """Leave-one-out of ridge regression: error against refits by NumPy at small n, time against RidgeCV at large n."""
    X, y, truth = ridge_by_hand(200, 10, alpha)
    small = linear_model.Ridge(alpha, solver="cholesky").fit(X, y)
    rows = []
    for name, fit in (
        ("lo.fit", lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(alpha)))),
        ("lo.from_sklearn", lo.from_sklearn(small, X, y)),
    ):
        for refit in (lo.NewtonStep(), lo.Exact(), lo.Certified()):
            off = lo.cross_predict(fit, lo.leave_one_out(len(y)), refit) - truth
            rows.append(
                {
                    "fit": name,
                    "refit": type(refit).__name__,
                    "largest error / largest prediction": abs(off).max() / abs(truth).max(),
                }
            )
    show("ridge: leave-one-out predictions against 200 refits by numpy.linalg.solve, p = 10; target 1e-12", rows)

    X, y, _ = ridge_by_hand(n, p, alpha, truth=False)
    plan = lo.leave_one_out(n)
    peer, _ = timed(lambda: linear_model.RidgeCV(alphas=[alpha]).fit(X, y), 3)
    host, fitted = timed(lambda: linear_model.Ridge(alpha).fit(X, y), 3)
    rows = [{"what": "sklearn RidgeCV(alphas=[alpha])", "seconds": peer}, {"what": "sklearn Ridge, one fit", "seconds": host}]
    make = lambda: lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(alpha)))
    handing, fit = timed(lambda: lo.from_sklearn(fitted, X, y), 3)
    fitting, fit = timed(make, 3)
    for refit in (lo.NewtonStep(), lo.Certified()):
        seconds, _ = timed(lambda refit=refit: lo.cross_validate(fit, plan, refit), 5)
        name = type(refit).__name__
        for what, total in (
            (f"{name}, fit given", seconds),
            (f"{name}, lo.GLM + lo.fit ({fitting:.3f} s)", seconds + fitting),
            (f"{name}, Ridge + lo.from_sklearn ({handing:.3f} s)", seconds + host + handing),
        ):
            rows.append({"what": what, "seconds": total, "of RidgeCV": total / peer, "target": 1.0})
    show(f"ridge: one alpha, n = {n:,}, p = {p}", rows)


def ridge_by_hand(n: int, p: int, alpha: float, truth: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Data, and predictions of every row by a refit without it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    y = X @ rng.standard_normal(p) + 3.0 + rng.standard_normal(n)
    design, out = np.c_[X, np.ones(n)], np.zeros(n)
    penalty = np.diag(np.r_[np.full(p, alpha), 0.0])
    for i in range(n if truth else 0):
        A, b = np.delete(design, i, 0), np.delete(y, i)
        out[i] = design[i] @ np.linalg.solve(A.T @ A + penalty, A.T @ b)
    return X, y, out


def folds() -> None:
    """Ten folds of many rows, and a thousand bootstrap resamples of few, against scikit-learn's refits."""
    n, p = 100_000, 100
    X, y = logistic_data(n, p)
    plan = lo.kfold(n, 10, seed=0)
    train = np.ones((10, n), bool)
    train[plan.refit, plan.index] = False
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    coef = lo.fold_parameters(fit, plan, lo.Exact())["coef"]
    rows, peers = [], []
    for solver in SOLVERS:
        host = linear_model.LogisticRegression(solver=solver, tol=1e-8, max_iter=1000)

        def refit(host=host):
            return np.stack([host.fit(X[t], y[t]).coef_[0] for t in train])

        seconds, theirs = timed(refit, 1, warm=False)
        peers.append(seconds)
        rows.append(
            {"what": f"scikit-learn {solver}, tol 1e-8, once", "seconds": seconds, "coefficients": abs(theirs - coef).max()}
        )
    for strategy in (lo.Exact(), lo.Certified()):
        seconds, _ = timed(lambda strategy=strategy: lo.cross_validate(fit, plan, strategy), 3)
        rows.append(
            {"what": f"lo.cross_validate, {type(strategy).__name__}", "seconds": seconds, "times faster": min(peers) / seconds}
        )
    show(f"folds: 10 folds, logistic, n = {n:,}, p = {p}; target 5 times; largest difference of coefficients from Exact", rows)
    bootstrap(2000, 20, 1000)


def bootstrap(n: int, p: int, resamples: int, peers: int = 100) -> None:
    X, y = logistic_data(n, p)
    plan = lo.bootstrap(n, resamples, seed=0)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
    counts = np.ones((peers, n))
    entries = plan.refit < peers
    counts[plan.refit[entries], plan.index[entries]] = plan.weight[entries]
    exact = lo.fold_parameters(fit, plan, lo.Exact())["coef"]
    rows, fastest = [], np.inf
    for solver in SOLVERS:
        host = linear_model.LogisticRegression(solver=solver, tol=1e-8, max_iter=1000)

        def refit(host=host):
            coefs = []
            for count in counts:
                host.fit(X, y, sample_weight=count).decision_function(X[count == 0])
                coefs.append(host.coef_[0])
            return np.stack(coefs)

        seconds, theirs = timed(refit, 1)
        seconds *= resamples / peers
        fastest = min(fastest, seconds)
        off = abs(theirs - exact[:peers]).max()
        rows.append({"what": f"scikit-learn {solver}, tol 1e-8, {peers} scaled", "seconds": seconds, "coefficients": off})
    for strategy, target in ((lo.Exact(), 8), (lo.NewtonStep(), 20), (lo.Certified(), None)):
        seconds, _ = timed(lambda strategy=strategy: lo.cross_validate(fit, plan, strategy), 3)
        off = abs(lo.fold_parameters(fit, plan, strategy)["coef"] - exact).max()
        name = f"lo.cross_validate, {type(strategy).__name__}"
        rows.append(
            {"what": name, "seconds": seconds, "times faster": fastest / seconds, "target": target, "coefficients": off}
        )
    show(f"folds: {resamples:,} bootstrap resamples, logistic, n = {n:,}, p = {p}; difference of coefficients from Exact", rows)


# dℓ/dη, written here from the densities
SLOPES = {
    "probit": lambda eta, y: (
        (1 - y) * np.exp(scipy.stats.norm.logpdf(eta) - scipy.stats.norm.logcdf(-eta))
        - y * np.exp(scipy.stats.norm.logpdf(eta) - scipy.stats.norm.logcdf(eta))
    ),
    "cloglog": lambda eta, y: (1 - y) * np.exp(eta) - y * np.exp(eta) / np.expm1(np.exp(eta)),
    "gamma": lambda eta, y: 1 - y * np.exp(-eta),
}


def links(n: int = 120, p: int = 5, seeds: int = 10) -> None:
    """Change of the left-out linear predictor for links that are not canonical, against refits by SciPy's root finder."""
    rows = []
    for name in SLOPES:
        for signal in (0.5, 1.0):
            errors = pd.DataFrame([link_errors(name, *link_data(name, n, p, signal, seed)) for seed in range(seeds)])
            numbers = errors.apply(pd.to_numeric, errors="coerce")
            summary = {"link": name, "sd of Xθ": signal}
            for column in errors:
                summary[column] = numbers[column].median() if numbers[column].notna().any() else errors[column][0]
            rows.append(summary | {"NewtonStep, worst": numbers["NewtonStep"].max()})
    show(
        f"links: ‖η_approximate − η_exact‖ / ‖η_exact − η_hat‖ of leave-one-out, weights, offsets, an intercept, no penalty, n = {n}, "
        f"p = {p}; medians of {seeds} data sets; target of NewtonStep 0.03",
        rows,
    )


def link_errors(name: str, X: np.ndarray, y: np.ndarray, weight: np.ndarray, offset: np.ndarray) -> dict[str, float | str]:
    """The relative error of each way to the left-out linear predictors, or why it has none."""
    n = len(y)
    design = np.c_[X, np.ones(n)]

    def solve(s, start):
        equations = lambda theta: design.T @ (s * SLOPES[name](design @ theta + offset, y))
        return scipy.optimize.root(equations, start, tol=1e-13).x

    full = solve(weight, np.zeros(design.shape[1]))
    refits = np.stack([solve(np.where(np.arange(n) == i, 0.0, weight), full) for i in range(n)])
    eta, exact = design @ full + offset, np.sum(design * refits, 1) + offset
    fit, plan = lo.fit(lo.GLM(X, y, name, sample_weight=weight, offset=offset)), lo.leave_one_out(n)
    found = {
        type(r).__name__: lo.cross_predict(fit, plan, r, "link")
        for r in (lo.NewtonStep(), lo.InfinitesimalJackknife(), lo.Exact())
    }
    found |= dict(peers(name, design, y, weight, offset))
    distance = np.linalg.norm(exact - eta)
    return {k: v if isinstance(v, str) else np.linalg.norm(v - exact) / distance for k, v in found.items()}


def link_data(name: str, n: int, p: int, signal: float, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    X, weight, offset = rng.standard_normal((n, p)), rng.gamma(4.0, 0.25, n), 0.3 * rng.standard_normal(n)
    eta = signal * X @ rng.standard_normal(p) / np.sqrt(p) + offset
    if name == "gamma":
        return X, rng.gamma(2.0, np.exp(eta) / 2.0), weight, offset
    mean = scipy.stats.norm.cdf(eta) if name == "probit" else -np.expm1(-np.exp(eta))
    return X, (rng.random(n) < mean).astype(float), weight, offset


def peers(name: str, design: np.ndarray, y: np.ndarray, weight: np.ndarray, offset: np.ndarray):
    """statsmodels' left-out linear predictors, params − d_params, of its three influence measures; or why there are none."""
    import statsmodels.api as sm
    from statsmodels.stats.outliers_influence import MLEInfluence

    family = {
        "probit": lambda: sm.families.Binomial(sm.families.links.Probit()),
        "cloglog": lambda: sm.families.Binomial(sm.families.links.CLogLog()),
        "gamma": lambda: sm.families.Gamma(sm.families.links.Log()),
    }[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = sm.GLM(y, design, family, offset=offset, var_weights=weight).fit(tol=1e-12)
        for label, measure in (
            ("sm get_influence()", lambda: fitted.get_influence()),
            ("sm observed=False", lambda: fitted.get_influence(observed=False)),
            ("sm MLEInfluence", lambda: MLEInfluence(fitted)),
        ):
            try:
                yield label, np.sum(design * (fitted.params - measure().d_params), 1) + offset
            except Exception as error:
                yield label, f"cannot: {type(error).__name__}"


def coverage(replications: int = 300) -> None:
    """How often mean ± 1.96 se holds the loss on fresh data: of the very fit, and averaged over data sets of that size."""
    rows = []
    for loss in ("logistic", "squared"):
        for kind, n in (("rows", 60), ("groups", 240)):
            runs = np.array([replication(loss, kind, n, seed) for seed in range(replications)])
            mean, se, naive, fresh_loss = runs.T
            for target, value in (("this fit's loss", fresh_loss), ("expected loss", fresh_loss.mean())):
                inside = lambda width, mean=mean, value=value: (abs(mean - value) <= 1.96 * width).mean()
                row = {"loss": loss, "units": kind, "n": n, "target": target, "coverage": inside(se)}
                rows.append(
                    row
                    | ({"naive rows": inside(naive)} if kind == "groups" else {})
                    | {"bias / se": (mean - value).mean() / se.mean()}
                )
    show(f"coverage: of mean ± 1.96 se, {replications} replications, p = 4; groups of 8 rows with random effects", rows)


def replication(loss: str, kind: str, n: int, seed: int, fresh_rows: int = 20_000) -> tuple[float, float, float, float]:
    """Held-out mean, its standard error, the standard error were rows independent, and the loss on fresh data."""
    rng = np.random.default_rng(seed)
    X, y, labels = simulated(rng, loss, kind, n)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0)))
    estimate = lo.cross_validate(fit, lo.leave_one_out(n) if kind == "rows" else lo.groups(labels), lo.NewtonStep())
    X, y, _ = simulated(rng, loss, kind, fresh_rows)
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]
    fresh_loss = np.logaddexp(0, eta) - y * eta if loss == "logistic" else 0.5 * (y - eta) ** 2
    return estimate.mean, estimate.se, estimate.per_unit().std(ddof=1) / np.sqrt(n), fresh_loss.mean()


def simulated(rng: np.random.Generator, loss: str, kind: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = np.arange(n) // (8 if kind == "groups" else 1)
    X = rng.standard_normal((n, 4))
    eta = X @ np.array([1.0, -0.5, 0.5, 0.0])
    if kind == "groups":  # covariates and outcomes are alike within a group
        X[:, 3] = rng.standard_normal(labels.max() + 1)[labels]
        eta = eta + 1.5 * rng.standard_normal(labels.max() + 1)[labels]
    y = (rng.random(n) < sigmoid(eta)).astype(float) if loss == "logistic" else eta + rng.standard_normal(n)
    return X, y, labels


COLD = """
import time; start = time.perf_counter()
import leaveout as lo
imported = time.perf_counter()
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
X, y = lo.datasets.breast_cancer()
loaded = time.perf_counter()
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
fitted = time.perf_counter()
def answer():
    fit = lo.from_sklearn(model, X, y)
    handed = time.perf_counter()
    print(lo.cross_validate(fit, lo.leave_one_out(len(y))))
    return handed, time.perf_counter()
handed, first = answer()
_, second = answer()
import json
print(json.dumps({"to the answer": first - start, "importing": imported - start, "sklearn, data": loaded - imported,
    "sklearn's fit": fitted - loaded, "from_sklearn": handed - fitted, "certified loo": first - handed,
    "compiling (first − second)": (first - fitted) - (second - first)}))
"""


def cold(repeats: int = 3) -> None:
    """A fresh process, from the import to the printed leave-one-out of breast_cancer (the interpreter's start beside it)."""
    rows = []
    for _ in range(repeats):
        start = time.perf_counter()
        parts = fresh(COLD)
        rows.append(parts | {"whole process, both calls": time.perf_counter() - start})
    show(f"cold: seconds in each of {repeats} fresh processes; target of the first column 5", rows)


DEMANDS = {f.__name__: f for f in (refitting, one_fit, ridge, folds, links, coverage, cold)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(DEMANDS)}; all by default")
    names = parser.parse_args().name or list(DEMANDS)
    pd.set_option("display.width", 250, "display.max_columns", 30, "display.float_format", "{:.3g}".format)
    print(
        f"leaveout {lo.__version__}, scikit-learn {__import__('sklearn').__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name in names:
        DEMANDS[name]()
