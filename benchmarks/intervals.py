"""How often intervals for the mean loss hold the loss on fresh data, in simulation.

    python benchmarks/intervals.py [--replications 200]

`suite`: a linear model on the simulated data of Schulz-Kümpel, Fischer, Hornung, Boulesteix, Nagler & Bischl (arXiv
2409.18836), the target the loss of the very fit. Not among them: data drawn from networks that were trained on real ones, or by
covariances of gene expressions, and chen_10_null, on which they found that nothing works.

`study`, a demand of benchmarks/linear.py: mean ± 1.96 se. Two targets: the loss of the very fit (what users want), and its
expectation over data sets of that size (what leave-one-out is unbiased for, up to one row).

Both from fresh data, 20,000 rows a replication.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import scipy

import leaveout as lo

GROUP = 8  # rows a group
FRESH = 20_000


def bates(rng: np.random.Generator, n: int, p: int, classes: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Normal features, of which five matter."""
    X = rng.standard_normal((n, p))
    eta = X[:, :5].sum(1)
    return X, (rng.random(n) < scipy.special.expit(eta)).astype(float) if classes else eta + rng.standard_normal(n)


def friedman(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """No line: y = 10 sin(π x₁x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅ + noise."""
    X = rng.random((n, 10))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return X, mean + rng.standard_normal(n)


def chen(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten features each, more and more noisy, of six hidden variables; three of these matter, and not linearly."""
    v = rng.random((n, 6))
    y = 0.25 * np.exp(4 * v[:, 0]) + 4 * scipy.special.expit(20 * (v[:, 1] - 0.5)) + 3 * v[:, 2] + 0.2 * rng.standard_normal(n)
    noise = 0.01 + 0.5 * np.arange(10) / 9
    return (v[:, :, None] + noise * (0.3 + rng.standard_normal((n, 6, 10)))).reshape(n, 60), y


SUITE: dict[str, tuple[Callable, str, tuple[int, ...]]] = {
    "bates_regr_20": (partial(bates, p=20), "squared", (100, 500)),
    "bates_regr_100": (partial(bates, p=100), "squared", (500,)),
    "friedman1": (friedman, "squared", (100, 500)),
    "chen_10": (chen, "squared", (500,)),
    "bates_classif_20": (partial(bates, p=20, classes=True), "logistic", (500,)),
}


def folds(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    """What is usual: Student's t over ten folds."""
    cv = lo.cross_validate(fit, lo.kfold(n, 10, seed=seed), audit=0)
    each = np.array([cv.losses[cv.plan.refit == k].mean() for k in range(10)])
    half = scipy.stats.t.ppf(0.975, 9) * each.std(ddof=1) / np.sqrt(10)
    return each.mean() - half, each.mean() + half


def corrected(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    found = lo.cross_validate(fit, lo.random_subsets(n, 0.1, 25, seed=seed), audit=0).interval(method="corrected")
    return found.low, found.high


def every_row(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    del seed
    found = lo.cross_validate(fit, lo.leave_one_out(n), audit=0).interval(method="naive")
    return found.low, found.high


def nested(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    del n
    found = lo.nested(fit, num_folds=10, repeats=10, seed=seed)
    return found.low, found.high


KINDS = {
    "t over ten folds": folds,
    "naive, rows": every_row,
    "corrected, 25 × 10 %": corrected,
    "nested, 10 × 10 folds": nested,
}


def suite(replications: int) -> list[dict]:
    """Coverage at 95 %, of the loss of each fit."""
    rows = []
    for name, (draw, loss, sizes) in SUITE.items():
        for n in sizes:
            found: dict[str, list] = {kind: [] for kind in KINDS}
            for seed in range(replications):
                rng = np.random.default_rng(seed)
                fit = lo.fit(lo.GLM(*draw(rng, n), loss))
                fresh = loss_of(fit, loss, *draw(rng, FRESH))
                for kind, interval in KINDS.items():
                    start = time.perf_counter()
                    low, high = interval(fit, n, seed)
                    found[kind].append((low <= fresh <= high, high - low, time.perf_counter() - start))
            for kind, each in found.items():
                covered, width, seconds = np.array(each, float).T
                row = {"data": name, "n": n, "interval": kind, "covered": covered.mean(), "width": np.median(width)}
                rows.append(row | {"seconds": np.median(seconds)})
    return rows


def loss_of(fit: lo.Fit, loss: str, X: np.ndarray, y: np.ndarray) -> float:
    """The mean loss on fresh data."""
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]
    return float(np.mean(np.logaddexp(0, eta) - y * eta if loss == "logistic" else 0.5 * (y - eta) ** 2))


def study(replications: int = 300) -> list[dict]:
    """Coverage for independent rows, and for groups beside the standard error that takes their rows as independent."""
    rows = []
    for loss in ("logistic", "squared"):
        for kind, n in (("rows", 60), ("rows", 200), ("groups", 240), ("groups", 800)):
            runs = np.array([replication(loss, kind, n, seed) for seed in range(replications)])
            mean, se, naive, fresh = runs.T
            for target, value in (("this fit's loss", fresh), ("expected loss", fresh.mean())):
                inside = partial(lambda mean, value, width: (abs(mean - value) <= 1.96 * width).mean(), mean, value)
                row = {"loss": loss, "units": kind, "n": n, "target": target, "coverage": inside(se)}
                row |= {"naive rows": inside(naive)} if kind == "groups" else {}
                row |= {"bias / se": (mean - value).mean() / se.mean()}
                rows.append(row | {"se / sd of mean": se.mean() / mean.std(ddof=1)})
    return rows


def replication(loss: str, kind: str, n: int, seed: int) -> tuple[float, float, float, float]:
    """Held-out mean, its standard error, that were rows independent, and the loss on fresh data."""
    rng = np.random.default_rng(seed)
    X, y, labels = simulated(rng, loss, kind, n)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0)))
    estimate = lo.cross_validate(fit, lo.leave_one_out(n) if kind == "rows" else lo.groups(labels))
    X, y, _ = simulated(rng, loss, kind, FRESH)
    fresh = loss_of(fit, loss, X, y)
    return estimate.mean, estimate.se, estimate.per_unit().std(ddof=1) / np.sqrt(n), fresh


def simulated(rng: np.random.Generator, loss: str, kind: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = np.arange(n) // (GROUP if kind == "groups" else 1)
    X = rng.standard_normal((n, 4))
    eta = X @ np.array([1.0, -0.5, 0.5, 0.0])
    if kind == "groups":  # one covariate and a random effect are common to a group
        X[:, 3] = rng.standard_normal(labels.max() + 1)[labels]
        eta = eta + 1.5 * rng.standard_normal(labels.max() + 1)[labels]
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float) if loss == "logistic" else eta + rng.standard_normal(n)
    return X, y, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    print(pd.DataFrame(suite(parser.parse_args().replications)).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
