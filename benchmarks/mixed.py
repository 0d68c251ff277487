"""Mixed models: every cluster left out of lme4's logistic example, cold and warm; and crossed effects of 50,000 rows.

    python benchmarks/mixed.py            both, and the parameters against refits from scratch and lme4's
    python benchmarks/mixed.py cold       one process from its start to the result, as the first does in a child
    python benchmarks/mixed.py crossed [binomial]

Data and lme4's figures: `glmm.csv`, `glmm_refits.csv` in `latent/` of the folder named by LEAVEOUT_DATA; the script that made
them is `glmm.R` there.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

STARTED = time.perf_counter(), time.process_time()
FORMULA = "y ~ x1 + x2 + x3 + (1 | g)"
NODES = 9


def folder() -> Path:
    return Path(os.environ["LEAVEOUT_DATA"]) / "latent"


def model(frame: pd.DataFrame, nodes: int = NODES):
    import leaveout as lo

    return lo.Mixed(FORMULA, frame, "binomial", drop="g", quadrature=nodes)


class Clock:
    """Seconds and processor seconds since it was made."""

    def __init__(self, at: tuple[float, float] | None = None):
        self.at = (time.perf_counter(), time.process_time()) if at is None else at

    def __str__(self) -> str:
        return f"{time.perf_counter() - self.at[0]:.2f} s ({time.process_time() - self.at[1]:.2f} s of processor time)"


def cold() -> None:
    import leaveout as lo

    fit = lo.fit(model(pd.read_csv(folder() / "glmm.csv")))
    cv = lo.cross_validate(fit, lo.leave_one_out(200))
    print(f"cold: import, data, fit, all 200 clusters certified: {Clock(STARTED)}; mean {cv.mean:.6f}")


def warm() -> None:
    import leaveout as lo

    frame = pd.read_csv(folder() / "glmm.csv")
    plan = lo.leave_one_out(200)
    for nodes in (NODES, 25):
        fit = lo.fit(model(frame, nodes))
        for _ in range(2):
            clock = Clock()
            fit = lo.fit(model(frame, nodes))
            told = f"fit {clock}"
            clock = Clock()
            cv = lo.cross_validate(fit, plan)
            certified = str(clock)
            clock = Clock()
            found = lo.fold_parameters(fit, plan, lo.Exact())
        print(f"{nodes} nodes, warm: {told}, certified {certified}, exact {clock}")
        print(cv)
        ours = np.column_stack([found["coef"], np.sqrt(found["covariance[g]"][:, 0, 0])])
        theirs = pd.read_csv(folder() / "glmm_refits.csv").to_numpy()
        print(f"  against lme4's {len(theirs)} refits: {np.abs(ours[: len(theirs)] - theirs).max():.1e}")
        scratch = [_from_scratch(frame[frame.g != g], nodes) for g in range(1, 9)]
        print(f"  against 8 refits without the cluster's rows: {np.abs(ours[:8] - scratch).max():.1e}")
        if nodes == 25:
            other = [_by_integrals(frame[frame.g != g]) for g in (1, 2, 3)]
            print(f"  against 3 refits by SciPy of integrals on a grid: {np.abs(ours[:3] - other).max():.1e}")


def _from_scratch(frame: pd.DataFrame, nodes: int) -> np.ndarray:
    import leaveout as lo

    found = lo.fit(model(frame, nodes), num_starts=1).parameters
    return np.r_[found["coef"], np.sqrt(found["covariance[g]"][0, 0])]


def _by_integrals(frame: pd.DataFrame) -> np.ndarray:
    """The same likelihood by the trapezoidal rule and SciPy's BFGS, its slopes by Fisher's identity."""
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

    return optimize.minimize(look, [0, 0, 0, 0, 1.0], jac=True, method="BFGS", options={"gtol": 1e-7}).x


def crossed(family: str = "gaussian", folds: int = 100, rows: int = 50_000, levels: tuple[int, int] = (2000, 500)) -> None:
    import leaveout as lo

    rng = np.random.default_rng(1)
    draw = lambda count: rng.integers(0, count, rows)
    frame = pd.DataFrame(
        {"x": rng.standard_normal(rows), "z": rng.standard_normal(rows), "p": draw(levels[0]), "h": draw(levels[1])}
    )
    eta = 0.3 + 0.5 * frame.x - 0.2 * frame.z + 0.7 * rng.standard_normal(levels[0])[frame.p]
    eta += 0.5 * rng.standard_normal(levels[1])[frame.h]
    frame["y"] = (
        eta + 0.6 * rng.standard_normal(rows) if family == "gaussian" else (rng.logistic(size=rows) < eta).astype(float)
    )
    clock = Clock()
    objective = lo.Mixed("y ~ x + z + (1 | p) + (1 | h)", frame, family, drop="p")
    fit = lo.fit(objective, num_starts=1)
    print(f"crossed, {family}, {rows} rows, {levels} levels: data and fit {clock}; {objective.components(fit).to_dict('list')}")
    splits = [(np.delete(np.arange(levels[0]), k), [k]) for k in range(folds)]
    clock = Clock()
    cv = lo.cross_validate(fit, lo.from_splits(splits, levels[0]))
    print(f"{folds} clusters left out by themselves: {clock}")
    print(cv)


if __name__ == "__main__":
    asked = sys.argv[1:]
    if asked[:1] == ["cold"]:
        cold()
    elif asked[:1] == ["crossed"]:
        crossed(*asked[1:2])
    else:
        subprocess.run([sys.executable, __file__, "cold"], check=True)
        warm()
        crossed()
        crossed("binomial")
