"""Intervals for new responses beside MAPIE's: how much faster, how far apart; and how often they cover.

    python benchmarks/prediction.py [--quick]

MAPIE refits the estimator once a row; ours are of one fit. Both are given data and an estimator that is not fitted, leave every
row out by itself, and are timed to the end points of all new rows. Ours are timed twice, by `Exact()`, whose end points are
MAPIE's, and by default. Coverage: of one new response a data set, so that data sets are independent.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn.linear_model import LinearRegression, PoissonRegressor, Ridge
from sklearn.model_selection import LeaveOneOut

import leaveout as lo

HOSTS: dict[str, Callable[[], Any]] = {
    "LinearRegression": LinearRegression,
    "Ridge": lambda: Ridge(1.0),
    "PoissonRegressor, no penalty": lambda: PoissonRegressor(alpha=0.0, solver="newton-cholesky", tol=1e-10, max_iter=1000),
    "PoissonRegressor": lambda: PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-10, max_iter=1000),
}
SIZES = ((500, 10, 100), (2000, 10, 100), (1000, 20, 1000), (3000, 20, 1000))
LEVEL = 0.9


def simulated(host: str, n: int, p: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    eta = X @ rng.uniform(-1, 1, p) / np.sqrt(p)
    return X, rng.poisson(np.exp(1 + eta)).astype(float) if "Poisson" in host else eta + rng.standard_t(4, n)


def theirs(host: Any, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    from mapie.regression import CrossConformalRegressor

    made = CrossConformalRegressor(host, confidence_level=LEVEL, method="plus", cv=LeaveOneOut()).fit_conformalize(X, y)
    return made.predict_interval(new)[1][:, :, 0]


def ours(host: Any, X: np.ndarray, y: np.ndarray, new: np.ndarray, refit: lo.AbstractRefit) -> np.ndarray:
    fit = lo.from_sklearn(host.fit(X, y), X, y)
    return lo.interval(fit, new, LEVEL, refit=refit)[["low", "high"]].to_numpy()


def timed(run: Callable[[], np.ndarray], repeats: int) -> tuple[float, np.ndarray]:
    """The least of some times, of the processor, and what came of it."""
    seconds, found = [], np.zeros(0)
    for _ in range(repeats):
        start = time.process_time()
        found = run()
        seconds.append(time.process_time() - start)
    return min(seconds), found


def beside_mapie(sizes: tuple[tuple[int, int, int], ...]) -> list[dict]:
    rows = []
    for name, host in HOSTS.items():
        for n, p, m in sizes:
            X, y = simulated(name, n + m, p)
            data = X[:n], y[:n], X[n:]
            seconds, ends = timed(lambda host=host, data=data: theirs(host(), *data), 1)
            row: dict[str, Any] = {"model": name, "rows": n, "features": p, "new": m, "MAPIE, s": f"{seconds:.2f}"}
            for what, refit in (("exact", lo.Exact()), ("default", lo.Certified())):
                own, found = timed(lambda host=host, data=data, refit=refit: ours(host(), *data, refit), 5)
                row |= {f"{what}, s": f"{own:.4f}", f"{what}, times": f"{seconds / own:.0f}"}
                row |= {f"{what}, apart": f"{np.abs(found - ends).max():.0e}"}
            rows.append(row)
    return rows


def rows_alike(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, None]:
    """Rows of heavy tails, half as many features; the last one is new."""
    X = rng.standard_normal((41, 20))
    return X, X[:, :3].sum(1) + rng.standard_t(2, 41), None


def counts(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, None]:
    X = rng.standard_normal((61, 4))
    return X, rng.poisson(np.exp(1 + 0.5 * X[:, 0])).astype(float), None


def grouped(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A covariate and an effect that a group's rows, 1 to 12, share; the last row is of a new group."""
    label = np.r_[np.repeat(np.arange(20), rng.integers(1, 13, 20)), 20]
    X = np.c_[rng.standard_normal((len(label), 2)), rng.standard_normal((21, 3))[label]]
    return X, X[:, 0] + 2 * rng.standard_normal(21)[label] + rng.standard_normal(len(label)), label


SETS: dict[str, tuple[Callable, str]] = {
    "40 rows, 20 features, t of 2": (rows_alike, "squared"),
    "60 counts, 4 features": (counts, "poisson"),
    "20 groups of 1 to 12 rows": (grouped, "squared"),
}


def covered(draw: Callable, loss: str, repeats: int) -> dict[str, np.ndarray]:
    """Whether each kind of interval holds the new response of each data set."""
    found: dict[str, list[bool]] = {}
    for seed in range(repeats):
        X, y, label = draw(np.random.default_rng(seed))
        fit = lo.fit(lo.GLM(X[:-1], y[:-1], loss))
        kinds: dict[str, dict] = {method: {"method": method} for method in ("plus", "minmax", "cv+")}
        if label is not None:
            kinds |= {f"{method}, groups": {"method": method, "groups": label[:-1]} for method in ("plus", "minmax")}
        for kind, how in kinds.items():
            low, high = lo.interval(fit, X[-1:], LEVEL, **how).iloc[0, 1:]
            found.setdefault(kind, []).append(low <= y[-1] <= high)
        residual = np.abs(y[:-1] - lo.cross_predict(fit, lo.leave_one_out(len(y) - 1), lo.NoUpdate()))
        away = np.abs(y[-1] - lo.interval(fit, X[-1:], LEVEL).prediction[0])
        found.setdefault("of the fit's residuals", []).append(away <= np.quantile(residual, LEVEL))
    return {kind: np.array(hits) for kind, hits in found.items()}


def firms() -> dict[str, float]:
    """Grunfeld's investments, every firm new in turn: the share that intervals by rows and by firms cover."""
    data = sm.datasets.grunfeld.load_pandas().data
    found: dict[str, list[float]] = {"rows": [], "firms": []}
    for firm in data.firm.unique():
        old, new = data[data.firm != firm], data[data.firm == firm]
        fit = lo.from_statsmodels(smf.ols("np.log(invest) ~ np.log(value) + np.log(capital)", old).fit())
        for kind, labels in (("rows", None), ("firms", old.firm)):
            ends = lo.interval(fit, new, LEVEL, groups=labels)
            found[kind].append(float(np.log(new.invest).between(ends.low, ends.high).mean()))
    return {kind: float(np.mean(shares)) for kind, shares in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    print(pd.DataFrame(beside_mapie(SIZES[:1] if quick else SIZES)).to_string(index=False))
    repeats, rows = (40 if quick else 200), []
    for name, (draw, loss) in SETS.items():
        for kind, hits in covered(draw, loss, repeats).items():
            se = np.sqrt(LEVEL * (1 - LEVEL) / repeats)
            rows.append({"data": name, "interval": kind, "level": LEVEL, "covered": hits.mean(), "± of 90 %": round(se, 3)})
    print(f"\n{repeats} data sets each\n{pd.DataFrame(rows).to_string(index=False)}")
    shares = ", ".join(f"{share:.3f} left out by {kind}" for kind, share in firms().items())
    print(f"\nInvestments of new firms that intervals of {LEVEL:.0%} cover: {shares}")


if __name__ == "__main__":
    main()
