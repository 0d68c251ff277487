"""Bias and RMSE of the loss on a new cluster, beside what one would do without: 300 replications of
five simulated problems.

|T̂| = |V̂| = 2,000, a tenth of T̂ from V, n′ = 100, 12 levels × 200 draws.
Two problems were used while the estimator was
made; three were written down before it was run on them, and are reported as they came out. The
oracle sees T without the leaked records.

    python experiments/b3_accuracy.py [--replications 300]
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import leaveout as lo

SIZE, P0, TRAINED = 2000, 0.1, 100
# rng, records, side → X, y
Sampler = Callable[[np.random.Generator, int, int], tuple[np.ndarray, np.ndarray]]


class Problem(NamedTuple):
    estimator: Any
    loss: str
    sample: Sampler


def one_feature() -> Sampler:
    """Slopes 1 and 2 through the origin on x within ±1: the loss falls smoothly."""

    def sample(rng, n, side):
        x = rng.uniform(-1, 1, n)
        return x[:, None], x * (1.0 + side) + rng.normal(0, 0.5, n)

    return sample


def linear(features: int, seed: int, shift: float, apart: float, noise: float) -> Sampler:
    """Gaussian features with means, and coefficients, that differ between the clusters."""
    fixed = np.random.default_rng(seed)
    mean = fixed.normal(0, shift, (2, features))
    common = fixed.normal(0, 1, features + 1)
    coef = common + apart * fixed.normal(0, 1, (2, features + 1))

    def sample(rng, n, side):
        X = rng.normal(size=(n, features)) + mean[side]
        return X, X @ coef[side, 1:] + coef[side, 0] + rng.normal(0, noise, n)

    return sample


def labelled(continuous: Sampler, scale: float) -> Sampler:
    """Labels drawn with probabilities from a linear predictor."""

    def sample(rng, n, side):
        X, eta = continuous(rng, n, side)
        return X, (rng.random(n) < 1 / (1 + np.exp(-scale * eta))) * 1

    return sample


def heavy(seed: int) -> Sampler:
    """Ten features, noise of Student's t that grows with the first feature."""
    base = linear(10, seed, 0.5, 0.4, 0.0)

    def sample(rng, n, side):
        X, y = base(rng, n, side)
        return X, y + 0.5 * (1 + np.abs(X[:, 0])) * rng.standard_t(5, n)

    return sample


KNOWN = {
    "one feature": Problem(LinearRegression(fit_intercept=False), "mse", one_feature()),
    "four features": Problem(LinearRegression(), "mse", linear(4, 0, 1.0, 1.0, 1.0)),
}
FRESH = {
    "logistic, five features": Problem(
        LogisticRegression(C=1.0), "logistic", labelled(linear(5, 11, 0.7, 0.6, 0.0), 1.0)
    ),
    "ridge, ten, heavy tails": Problem(Ridge(5.0), "mse", heavy(12)),
    "SVM, 0–1, three features": Problem(
        LinearSVC(), "zero_one", labelled(linear(3, 13, 0.8, 0.8, 0.0), 1.5)
    ),
}


def fitted(
    problem: Problem,
    X: Any,
    y: Any,
    train: Any,
    test: Any,
    p: float,
    seed: int,
    boot: int = 200,
    levels: int = 12,
) -> Any:
    labels = np.zeros(len(y), int)
    labels[test] = 1
    injection = lo.leakage.Injection(num_boot=boot, num_levels=levels, train_size=TRAINED)
    leakage = lo.leakage.RecordLeakage(p)
    arguments = {
        "groups": labels,
        "leakage": leakage,
        "loss": problem.loss,
        "injection": injection,
        "cv": [(train, test)],
    }
    return lo.leakage.leakage_corrected(problem.estimator, X, y, **arguments, rng=seed)


def drawn(
    problem: Problem, seed: int, size: int = SIZE
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """T, the records that leaked from V into T̂, V̂."""
    rng, leaked = np.random.default_rng([seed, 77]), round(P0 * size)
    parts = [
        problem.sample(rng, n, side) for n, side in ((size - leaked, 0), (leaked, 1), (size, 1))
    ]
    return (
        np.concatenate([X for X, _ in parts]),
        np.concatenate([y for _, y in parts]),
        np.arange(2 * size),
    )


def truth(problem: Problem) -> tuple[float, float]:
    """e₀ from clean data: 10 large samples, 1,000 fits each, and its standard error."""
    values = []
    for seed in range(10):
        rng = np.random.default_rng([seed, 78])
        (X, y), (Xv, yv) = problem.sample(rng, 20_000, 0), problem.sample(rng, 20_000, 1)
        rows = np.arange(20_000)
        run = fitted(problem, np.r_[X, Xv], np.r_[y, yv], rows, rows + 20_000, 0.0, seed, 1000, 4)
        values.append(run.naive)
    return float(np.mean(values)), float(np.std(values) / 3)


def study(name: str, problem: Problem, replications: int) -> pd.DataFrame:
    e0, se = truth(problem)
    rows = []
    for seed in range(replications):
        X, y, rows_of = drawn(problem, seed)
        train, test, clean = rows_of[:SIZE], rows_of[SIZE:], rows_of[: SIZE - round(P0 * SIZE)]
        result = fitted(problem, X, y, train, test, P0, seed)
        rows.append(
            {
                "IID k-fold": result.iid,
                "LOCO": result.naive,
                "corrected": result.solved.estimate,
                "linear": result.extrapolants["linear"],
                "quadratic": result.extrapolants["quadratic"],
                "oracle": fitted(problem, X, y, clean, test, 0.0, seed, 200, 4).naive,
                "refused": bool(result.refusal),
            }
        )
    frame = pd.DataFrame(rows)
    refused = frame.pop("refused")
    off = 100 * (frame / e0 - 1)
    out = pd.DataFrame({"bias %": off.mean(), "RMSE %": np.sqrt((off**2).mean())})
    print(
        f"\n{name}: e₀ = {e0:.5g} (± {se:.1g}), {replications} replications, refused in {refused.mean():.0%}"
    )
    print(out.to_string(float_format="{:.1f}".format), flush=True)
    return out


def main(replications: int) -> None:
    # one cluster a side, by design
    warnings.filterwarnings("ignore", message="leakage_corrected", category=UserWarning)
    for name, problem in {**KNOWN, **FRESH}.items():
        study(name if name in KNOWN else f"{name} (fresh)", problem, replications)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=300)
    main(**vars(parser.parse_args()))
