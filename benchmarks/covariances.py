"""Covariances from refits: times against loops of fits, differences to them, and how often their
intervals hold the truth.

python benchmarks/covariances.py                      # times, processor time of one thread
python benchmarks/covariances.py --simulations 1000
# coverage of 95 % intervals with 20 clusters of unequal size
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

import leaveout as lo

# logarithm of the ratio of the largest cluster's size to the smallest's, as of MacKinnon, Nielsen &
# Webb
UNEVEN = 2.0
SHARED = 0.2  # share of the variance of a row's noise that its cluster shares


def clustered(
    n: int, p: int, clusters: int, seed: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a logistic model in clusters that share a part of the noise and of the columns."""
    rng = np.random.default_rng(seed)
    label = np.sort(rng.integers(0, clusters, n))
    X = rng.standard_normal((n, p)) + 0.5 * rng.standard_normal((clusters, p))[label]
    eta = -1 + X @ rng.standard_normal(p) * 0.3 + 0.7 * rng.standard_normal(clusters)[label]
    return X, (rng.logistic(size=n) < eta).astype(float), label


def newton_loop(
    X: np.ndarray, y: np.ndarray, label: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, float]:
    """CRV3 by Newton's method without each cluster, and the number of its steps for each, a Hessian
    and a gradient.

    Rows are in the order of clusters, so nothing is searched.
    """
    Z = np.column_stack([X, np.ones(len(X))])
    ends, thetas, steps = np.r_[0, np.flatnonzero(np.diff(label)) + 1, len(label)], [], 0
    for first, last in itertools.pairwise(ends):
        own, target, theta = (
            np.delete(Z, np.s_[first:last], axis=0),
            np.delete(y, np.s_[first:last]),
            start,
        )
        for _ in range(50):
            mean = scipy.special.expit(own @ theta)
            gradient, hessian = (
                own.T @ (mean - target),
                (own * (mean * (1 - mean))[:, None]).T @ own,
            )
            step = scipy.linalg.solve(hessian, gradient, assume_a="pos")
            theta, steps = theta - step, steps + 1
            if step @ gradient < 1e-16:
                break
        thetas.append(theta)
    moved = np.array(thetas) - start
    return (len(moved) - 1) / len(moved) * moved.T @ moved, steps / len(moved)


def gradients(fit: lo.Fit, label: np.ndarray, strategy: Any) -> float:
    """Number of gradients of all rows that a cluster's refit takes.

    No Hessian of all rows is formed.
    """
    batches = list(lo.groups(label)._batches(2**21, 4, 64))
    return sum(strategy(fit, batch.rows).gradients for batch in batches) / (label.max() + 1)


def timed(call: Callable[[], Any], times: int = 1) -> tuple[Any, float]:
    """The value of a call, and the least processor time of some."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        value = call()
        seconds.append(time.process_time() - start)
    return value, min(seconds)


def print_jackknife(n: int, p: int, clusters: int) -> None:
    """Print times of the jackknife over clusters and of its opponents, in turns."""
    import statsmodels.api as sm

    X, y, label = clustered(n, p, clusters)
    fit, Z = lo.fit(lo.GLM(X, y, "logistic")), np.column_stack([X, np.ones(n)])
    ours = {
        "ours, within 1e-5 of each move": lo.Exact(1e-5),
        "ours, within 1e-2 of each move": lo.Exact(1e-2),
        "ours, to the last digits": lo.Exact(1e-12),
    }
    calls = {
        name: lambda s=s: lo.covariance(fit, "CRV3", groups=label, strategy=s)
        for name, s in ours.items()
    }
    loops = {
        "Newton's method from the fit": lambda: newton_loop(X, y, label, fit.vector),
        "Newton's method from zero": lambda: newton_loop(X, y, label, np.zeros(p + 1)),
    }
    slow = {
        "statsmodels, of ten clusters": lambda: [
            sm.Logit(y[label != k], Z[label != k]).fit(disp=0) for k in range(10)
        ]
    }
    lo.covariance(fit, "CRV3", groups=label)
    seconds: dict[str, float] = {}
    for _ in range(3):
        fresh = lo.fit(lo.GLM(X, y, "logistic"))  # keeps nothing of a call before
        first = {
            "the same, first call on a fit": lambda fresh=fresh: lo.covariance(
                fresh, "CRV3", groups=label
            )
        }
        for name, call in (first | calls | loops | slow).items():
            seconds[name] = min(seconds.get(name, np.inf), timed(call)[1])
    seconds["statsmodels, of ten clusters"] *= clusters / 10
    print(
        f"CRV3, logistic, {n:,} x {p}, {clusters} clusters; a loop's rows are in the order of clusters"
    )
    for name, second in seconds.items():
        print(
            f"    {name:32} {second:7.3f} s, {second / seconds[next(iter(ours))]:7.2f} of ours",
            flush=True,
        )
    (loop, steps), (_, from_zero) = (call() for call in loops.values())
    print(
        f"    counted: Newton's method takes {steps:.2f} Hessians and gradients a cluster from the fit,"
    )
    print(f"        {from_zero:.2f} from zero; ours no Hessian of all rows")
    se = np.sqrt(np.diag(loop))
    for name, strategy in ours.items():
        found, count = calls[name](), gradients(fit, label, strategy)
        off = np.abs((found - loop) / np.outer(se, se)).to_numpy().max()
        told, what = (
            (found.errors / found.standard_errors).max(),
            "proved" if found.proved else "estimated",
        )
        print(f"    {name:32} {count:.2f} gradients a cluster; off by {off:.0e} of a variance;")
        print(f"        a standard error by {told:.0e} of it at most, {what}")


def print_times() -> None:
    """Print times of the jackknife over clusters, of CR2 and of replicate weights."""
    print_jackknife(5000, 10, 200)
    print_jackknife(20_000, 20, 200)
    rng = np.random.default_rng(0)
    X, label = rng.standard_normal((100_000, 20)), rng.integers(0, 1000, 100_000)
    fit = lo.fit(lo.GLM(X, X @ rng.standard_normal(20) + rng.standard_normal(100_000), "squared"))
    lo.covariance(fit, "CR2", groups=label)
    _, own = timed(lambda: lo.covariance(fit, "CR2", groups=label), 3)
    print(f"CR2 with degrees of freedom, 100,000 x 21, 1,000 clusters: {own:.2f} s")
    X, y, label = clustered(5000, 10, 200)
    fit = lo.fit(lo.GLM(X, y, "logistic"))
    weights = lo.survey.bootstrap(None, label, 1000)
    lo.survey.replicates(fit, weights)
    _, own = timed(lambda: lo.survey.replicates(fit, weights), 2)
    print(f"1,000 replicate weights (Rao, Wu & Yue), logistic, 5,000 x 10: {own:.2f} s")


def simulated(loss: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """20 clusters of unequal size.

    The first column is one number a cluster. Marginally the model is right.
    """
    rng = np.random.default_rng(seed)
    size = np.exp(UNEVEN * np.arange(20) / 20)
    label = np.repeat(np.arange(20), np.maximum((600 * size / size.sum()).round().astype(int), 2))
    X = np.column_stack([rng.standard_normal(20)[label], rng.standard_normal(len(label))])
    noise = np.sqrt(SHARED) * rng.standard_normal(20)[label] + np.sqrt(
        1 - SHARED
    ) * rng.standard_normal(len(label))
    eta = 0.5 * X[:, 0] + 0.5 * X[:, 1]
    return (
        X,
        eta + noise
        if loss == "squared"
        else (scipy.stats.norm.cdf(noise) < scipy.special.expit(eta)) * 1.0,
        label,
    )


def print_coverage(simulations: int) -> None:
    """Print how often 95 % intervals hold the coefficient, one half, and how long they are."""
    error = np.sqrt(0.95 * 0.05 / simulations)
    print(
        f"95 % intervals, 20 clusters of 13 to 82 rows, {simulations:,} simulations (± {error:.3f}): coverage, mean length"
    )
    for loss, kinds in (("squared", ("cluster", "CRV3", "CR2")), ("logistic", ("cluster", "CRV3"))):
        ends = {kind: np.empty((simulations, 2, 2)) for kind in kinds}
        for seed in range(simulations):
            X, y, label = simulated(loss, seed)
            fit = lo.fit(lo.GLM(X, y, loss))
            for kind in kinds:
                ends[kind][seed] = lo.covariance(fit, kind, groups=label).summary().iloc[:2, 4:6]  # type: ignore[arg-type]
        for kind in kinds:
            low, high = np.moveaxis(ends[kind], 2, 0)
            held, length = ((low <= 0.5) & (high >= 0.5)).mean(axis=0), (high - low).mean(axis=0)
            name = {"cluster": "CRV1"}.get(kind, kind)
            print(
                f"{loss:9} {name:5} of clusters {held[0]:.3f} ({length[0]:.2f})   of rows {held[1]:.3f} ({length[1]:.2f})",
                flush=True,
            )


def main() -> None:
    """Print times, or coverage if simulations are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=0, help="number of simulated data sets")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print_coverage(given.simulations) if given.simulations else print_times()


if __name__ == "__main__":
    main()
