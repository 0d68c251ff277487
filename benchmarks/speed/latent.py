"""Mixed and additive models: clusters left out against lme4, crossed effects, and smoothing
penalties against mgcv.

    python benchmarks/speed/latent.py [clusters crossed binomial mgcv large]

clusters
every cluster left out of lme4's logistic example, cold and warm; parameters against refits from
scratch and lme4's crossed
crossed effects of 50,000 rows, Gaussian; `binomial` is the same with binary responses
mgcv        the criterion at mgcv's λ, its λ, and times
large       100,000 rows, five smooth terms, 10,000 neighbourhoods

The opponents' figures are saved. lme4's are `glmm.csv` and `glmm_refits.csv` in `latent/` of the
folder that LEAVEOUT_DATA names; the script that made them is `glmm.R` there. mgcv is 1.8-41 under
R 4.2.2: `gam(y ~ s(x, k = 40), family =, method = "NCV", nei =)`, every row left out with h rows to
each side.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import scipy
from common import main

import leaveout as lo

FORMULA = "y ~ x1 + x2 + x3 + (1 | g)"
NODES = 9


def folder() -> Path:
    return Path(os.environ["LEAVEOUT_DATA"]) / "latent"


def glmm(frame: pd.DataFrame, nodes: int = NODES):
    return lo.Mixed(FORMULA, frame, "binomial", drop="g", quadrature=nodes)


class Clock:
    """Seconds and processor seconds since it was made."""

    def __init__(self, at: tuple[float, float] | None = None):
        self.at = (time.perf_counter(), time.process_time()) if at is None else at

    def __str__(self) -> str:
        return f"{time.perf_counter() - self.at[0]:.2f} s ({time.process_time() - self.at[1]:.2f} s of processor time)"


def cold(began: tuple[float, float]) -> None:
    """From the start of a process to the result."""
    fit = lo.fit(glmm(pd.read_csv(folder() / "glmm.csv")))
    cv = lo.cross_validate(fit, lo.leave_one_out())
    print(
        f"cold: import, data, fit, all 200 clusters certified: {Clock(began)}; mean {cv.mean:.6f}"
    )


def warm() -> None:
    frame = pd.read_csv(folder() / "glmm.csv")
    plan = lo.leave_one_out(200)
    for nodes in (NODES, 25):
        fit = lo.fit(glmm(frame, nodes))
        for _ in range(2):
            clock = Clock()
            fit = lo.fit(glmm(frame, nodes))
            told = f"fit {clock}"
            clock = Clock()
            cv = lo.cross_validate(fit, plan)
            certified = str(clock)
            clock = Clock()
            found = lo.fold_parameters(fit, plan, strategy=lo.Exact())
        print(f"{nodes} nodes, warm: {told}, certified {certified}, exact {clock}")
        print(cv)
        ours = np.column_stack([found["coef"], np.sqrt(found["covariance[g]"][:, 0, 0])])
        theirs = pd.read_csv(folder() / "glmm_refits.csv").to_numpy()
        print(
            f"  against lme4's {len(theirs)} refits: {np.abs(ours[: len(theirs)] - theirs).max():.1e}"
        )
        scratch = [_from_scratch(frame[frame.g != g], nodes) for g in range(1, 9)]
        print(
            f"  against 8 refits without the cluster's rows: {np.abs(ours[:8] - scratch).max():.1e}"
        )
        if nodes == 25:
            other = [_by_integrals(frame[frame.g != g]) for g in (1, 2, 3)]
            print(
                f"  against 3 refits by SciPy of integrals on a grid: {np.abs(ours[:3] - other).max():.1e}"
            )


def _from_scratch(frame: pd.DataFrame, nodes: int) -> np.ndarray:
    found = lo.fit(glmm(frame, nodes), num_starts=1).parameters
    return np.r_[found["coef"], np.sqrt(found["covariance[g]"][0, 0])]


def _by_integrals(frame: pd.DataFrame) -> np.ndarray:
    """The same likelihood by the trapezoidal rule and SciPy's BFGS, its slopes by Fisher's
    identity.
    """
    from scipy import optimize, special

    X = np.column_stack([np.ones(len(frame)), frame[["x1", "x2", "x3"]]])
    y, code = frame.y.to_numpy(), np.unique(frame.g, return_inverse=True)[1]
    u = np.linspace(-9, 9, 301)
    log_prior = -0.5 * u**2 - 0.5 * np.log(2 * np.pi) + np.log(u[1] - u[0])

    def look(theta):
        eta = (X @ theta[:4])[:, None] + theta[4] * u
        rows = np.logaddexp(0, eta) - y[:, None] * eta
        log = log_prior - np.add.reduceat(rows, np.searchsorted(code, np.arange(code.max() + 1)))
        total = special.logsumexp(log, axis=1)
        share = np.exp(log - total[:, None])[code] * (special.expit(eta) - y[:, None])
        return -total.sum(), np.r_[X.T @ share.sum(1), np.sum(share * u)]

    return optimize.minimize(
        look, [0, 0, 0, 0, 1.0], jac=True, method="BFGS", options={"gtol": 1e-7}
    ).x


def crossed(
    family: str = "gaussian",
    folds: int = 100,
    rows: int = 50_000,
    levels: tuple[int, int] = (2000, 500),
) -> None:
    rng = np.random.default_rng(1)
    draw = lambda count: rng.integers(0, count, rows)
    frame = pd.DataFrame(
        {
            "x": rng.standard_normal(rows),
            "z": rng.standard_normal(rows),
            "p": draw(levels[0]),
            "h": draw(levels[1]),
        }
    )
    eta = 0.3 + 0.5 * frame.x - 0.2 * frame.z + 0.7 * rng.standard_normal(levels[0])[frame.p]
    eta += 0.5 * rng.standard_normal(levels[1])[frame.h]
    frame["y"] = (
        eta + 0.6 * rng.standard_normal(rows)
        if family == "gaussian"
        else (rng.logistic(size=rows) < eta).astype(float)
    )
    clock = Clock()
    objective = lo.Mixed("y ~ x + z + (1 | p) + (1 | h)", frame, family, drop="p")
    fit = lo.fit(objective, num_starts=1)
    print(
        f"crossed, {family}, {rows} rows, {levels} levels: data and fit {clock}; {objective.components(fit).to_dict('list')}"
    )
    splits = [(np.delete(np.arange(levels[0]), k), [k]) for k in range(folds)]
    clock = Clock()
    cv = lo.cross_validate(fit, lo.from_splits(splits, levels[0]))
    print(f"{folds} clusters left out by themselves: {clock}")
    print(cv)


CASES = {  # of R's data: criterion at its λ where it was printed, seconds of the whole fit
    "200_binomial_5": (246.4126386, 0.07),
    "500_poisson_8": (1288.481081, 0.25),
    "2000_binomial_20": (None, 1.12),
}


def timed(run, times=1):
    """What it returns, and the median processor time."""
    took = []
    for _ in range(times):
        start = time.process_time()
        found = run()
        took.append(time.process_time() - start)
    return found, float(np.median(took))


def against_mgcv():
    folder = Path(os.environ["LEAVEOUT_DATA"]) / "latent"
    for case, (criterion, seconds) in CASES.items():
        n, family, h = (int(part) if part.isdigit() else part for part in case.split("_"))
        data = pd.read_csv(next(folder.glob(f"ncv_{case}.csv*")))
        S, b = (pd.read_csv(folder / f"{name}_{case}.csv").to_numpy() for name in ("S", "b"))
        X, y, plan = data.iloc[:, 4:].to_numpy(), data["y"].to_numpy(), lo.blocks(n, 1, buffer=h)
        loss = {"binomial": "logistic", "poisson": "poisson"}[family]
        eta, pulled = np.c_[np.ones(n), X] @ b[:, 0], S @ b[1:, 0]
        mean = 1 / (1 + np.exp(-eta)) if family == "binomial" else np.exp(eta)
        # λ at which the slope is zero at its coefficients
        sp = float(pulled @ (X.T @ (y - mean)) / (pulled @ pulled))
        saturated = (
            0.0
            if family == "binomial"
            else float(np.sum(y - scipy.special.xlogy(y, y) + scipy.special.gammaln(y + 1)))
        )
        deviance = lambda mean, n=n, saturated=saturated: 2 * (n * mean - saturated)
        fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Quadratic(sp * S)))
        step, exact = (
            deviance(lo.cross_validate(fit, plan, strategy=refit, audit=0).mean)
            for refit in (lo.NewtonStep(), lo.Exact())
        )
        model = lo.Additive("y ~ s(x, k=40)", data[["x", "y"]], loss=loss)
        units = _units(np.asarray(model.design)[:, :-1], model.penalty.matrices[0], X, S)
        found, took = timed(lambda model=model, plan=plan: lo.smooth(model, plan), 9)
        ours = found.rho[0] - units
        print(f"{case}: at mgcv's λ one step {step:.10g}, exact {exact:.10g}", end="")
        print(
            ""
            if criterion is None
            else f"; mgcv {criterion:.10g}, relative {abs(step / criterion - 1):.1e}"
        )
        here = deviance(found.value)
        print(
            f"  log λ {ours:.5f}, mgcv {np.log(sp):.5f}, apart {ours - np.log(sp):.1e}; criterion there {here:.10g}",
            end="",
        )
        print(f", lower by {step - here:.1e}")
        finished, _ = timed(lambda model=model, plan=plan: lo.smooth(model, plan, exact=True))
        print(f"  finished by exact refits: log λ {finished.rho[0] - units:.5f}")
        print(
            f"  whole fit {took:.4f} s of processor time, {found.looks} looks; mgcv {seconds} s, {seconds / took:.1f} times it"
        )


def _units(design, penalty, X, S):
    """log of by how much our penalty is smaller than R's of the same functions."""
    turn = np.linalg.lstsq(np.c_[X, np.ones(len(X))], design, rcond=None)[0][:-1]
    return np.log(np.trace(turn.T @ S @ turn) / np.trace(penalty))


def large(n=100_000):
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.uniform(0, 1, (n, 5)), columns=list("abcde"))
    error = scipy.signal.lfilter([0.3], [1, -0.7], rng.standard_normal(n))
    eta = np.sin(6 * data.a) + data.b**2 + np.cos(9 * data.c) / 2 + 0.3 * data.d + error - 0.1
    data["y"] = rng.poisson(np.exp(eta))
    plan, began = lo.blocks(n, 10, buffer=10), time.monotonic()
    formula = "y ~ s(a, k=15) + s(b) + s(c, k=15) + s(d) + s(e)"
    model, bind = timed(lambda: lo.Additive(formula, data, loss="poisson"))
    found, took = timed(lambda: lo.smooth(model, plan))
    print(
        f"model {bind:.1f} s, λ {took:.1f} s of processor time, {time.monotonic() - began:.0f} s in all; {found.looks} looks"
    )
    _, took = timed(lambda: (found.estimate, found.nested))
    print(f"certified and nested {took:.1f} s of processor time")
    print(found)


COLD = """
import time; began = time.perf_counter(), time.process_time()
import latent
latent.cold(began)
"""


def clusters() -> None:
    """Cold, in a child process, then warm."""
    subprocess.run([sys.executable, "-c", COLD], cwd=Path(__file__).parent, check=True)
    warm()


PARTS = {
    "clusters": clusters,
    "crossed": crossed,
    "binomial": lambda: crossed("binomial"),
    "mgcv": against_mgcv,
    "large": large,
}

if __name__ == "__main__":
    main(PARTS, __doc__)
