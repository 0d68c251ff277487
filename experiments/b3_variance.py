"""Theorem 3.2 of the second source document: the variance of ê₀, what its printed standard error is
worth, and which levels to choose.

A mean is fitted to n′ records, c of them from V, and tested on V: with y ~ N(0, 1) in T and
N(2, 1) in V the loss is e_c = 1 + 1/n′ + 4 (1 − c/n′)². The records are quantiles, and the same in
every simulation, so that the draws of Algorithm 1 are all that varies.

    python experiments/b3_variance.py [--simulations 200] [--save]

law       ê₀ = (AᵀA)⁻¹Aᵀ b̄ of n′ + 1 levels, by Statement 3 of the theorem and by its spread over
          the simulations, for n′ from 2 to 6 and p₀ from 0.05 to 0.4
solved    the same of the regularised solutions, whose standard error `print` gives
levels    Statement 3 for several choices of levels with as many draws in all
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
import saved
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LinearRegression

import leaveout as lo

APART, DRAWS, RECORDS = 2.0, 100, 1000
Levels = NDArray[np.float64]


def sides(p0: float) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """X, y, the rows of T̂, a share p₀ of which is from V, and those of V̂.

    The y of each part are normal quantiles with a mean square of exactly one, so that only draws
    vary.
    """
    counts = round((1 - p0) * RECORDS), round(p0 * RECORDS), RECORDS
    means = 0.0, APART, APART
    parts = []
    for count, mean in zip(counts, means, strict=True):
        quantiles = stats.norm.ppf((np.arange(count) + 0.5) / count)
        parts.append(mean + quantiles / np.sqrt(np.mean(quantiles**2)))
    rows = np.arange(2 * RECORDS)
    return np.zeros((2 * RECORDS, 1)), np.concatenate(parts), rows[:RECORDS], rows[RECORDS:]


def truth(size: int) -> float:
    return 1 + 1 / size + APART**2


def variance(levels: Levels, size: int, noise: Levels) -> float:
    """Statement 3 by its formula: the weights of ê₀ are products over the other levels."""
    weights = []
    for i in range(len(levels)):
        others = np.delete(levels, i)
        weights.append(np.prod(others / (others - levels[i])))
    return float(np.sum(np.square(weights) * noise))


def spread_out(p0: float, size: int) -> Levels:
    return np.linspace(p0, 1, size + 1)


def chebyshev(p0: float, size: int) -> Levels:
    """The extrema of a Chebyshev polynomial on [p₀, 1]: the least sum of |weights| at 0."""
    return p0 + (1 - p0) * (1 - np.cos(np.pi * np.arange(size + 1) / size)) / 2


def near(p0: float, size: int) -> Levels:
    """Twice as dense toward p₀."""
    return p0 + (1 - p0) * (np.arange(size + 1) / size) ** 2


def halfway(p0: float, size: int) -> Levels:
    return np.linspace(p0, (1 + p0) / 2, size + 1)


CHOICES: dict[str, Callable[[float, int], Levels]] = {
    "equal, p₀ to 1": spread_out,
    "Chebyshev, p₀ to 1": chebyshev,
    "squares, p₀ to 1": near,
    "equal, p₀ to (1 + p₀)/2": halfway,
}


def bootstrapped(p0: float, size: int, levels: Levels, seed: int) -> lo.leakage.BlockBootstrap:
    """Algorithm 1 at total probabilities `levels`."""
    X, y, train, test = sides(p0)
    injected = np.clip((levels - p0) / (1 - p0), 0, 1)
    return lo.leakage.binomial_block_bootstrap(
        LinearRegression(), X, y, train, test, p_train=p0, size=size, levels=injected,
        num_boot=DRAWS, loss="mse", rng=seed,
    )  # fmt: skip


def law(simulations: int) -> None:
    """Least squares alone: the theorem's own estimator."""
    rows = []
    for size, p0 in itertools.product((2, 3, 4, 6), (0.05, 0.1, 0.2, 0.4)):
        estimates, errors = [], []
        levels = spread_out(p0, size)
        for seed in range(simulations):
            system = bootstrapped(p0, size, levels, seed)
            estimates.append(np.linalg.solve(system.A, system.losses)[0])
            errors.append(np.sqrt(variance(levels, size, system.variance / DRAWS)))
        rows.append(
            {
                "n′": size,
                "p₀": p0,
                "e₀": truth(size),
                "mean ê₀": np.mean(estimates),
                "SE of the mean": np.std(estimates, ddof=1) / np.sqrt(simulations),
                "SE by the theorem": np.mean(errors),
                "spread": np.std(estimates, ddof=1),
                "ratio": np.mean(errors) / np.std(estimates, ddof=1),
            }
        )
    show("law", "Theorem 3.2: ê₀ of least squares, n′ + 1 levels of 100 draws", rows, simulations)


def solved(simulations: int) -> None:
    """The solutions with a trend filter, of more records and levels."""
    rows = []
    for size, p0 in itertools.product((15, 40), (0.1, 0.3)):
        levels = np.linspace(p0, 1, 2 * size + 1)
        systems = [bootstrapped(p0, size, levels, seed) for seed in range(simulations)]
        for order, lam in itertools.product((2, 3), (0.1, 1.0)):
            curves = [system.solve(order=order, lam=lam) for system in systems]
            estimates = np.array([curve.estimate for curve in curves])
            errors = [
                np.sqrt(np.sum(curve.weights**2 * system.variance) / DRAWS)
                for curve, system in zip(curves, systems, strict=True)
            ]
            rows.append(
                {
                    "n′": size,
                    "p₀": p0,
                    "filter": f"T{order} M, λ = {lam:g}",
                    "e₀": truth(size),
                    "mean ê₀": estimates.mean(),
                    "printed SE": np.mean(errors),
                    "spread": estimates.std(ddof=1),
                    "ratio": np.mean(errors) / estimates.std(ddof=1),
                    "RMSE": np.sqrt(np.mean((estimates - truth(size)) ** 2)),
                    "LOCO": np.mean([system.losses[0] for system in systems]),
                }
            )
    show(
        "solved",
        "ê₀ with a trend filter: the printed standard error beside the spread",
        rows,
        simulations,
    )


def levels_chosen() -> None:
    """Standard errors by Statement 3, with σ² = 1/4 (Popoviciu) and 100 draws a level."""
    rows = []
    for size, p0 in itertools.product((2, 4, 6, 8), (0.05, 0.1, 0.2, 0.4)):
        row: dict[str, float] = {"n′": size, "p₀": p0}
        for name, choice in CHOICES.items():
            levels = choice(p0, size)
            row[name] = np.sqrt(variance(levels, size, np.full(len(levels), 0.25 / DRAWS)))
        rows.append(row)
    show("levels", "SE of ê₀ for a 0-1 loss, by the choice of n′ + 1 levels of 100 draws", rows)


def show(name: str, title: str, rows: list[dict], simulations: int = 0) -> None:
    print(
        f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, float_format='{:.4g}'.format)}",
        flush=True,
    )
    saved.save(f"b3_variance_{name}", rows, simulations=simulations)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=200)
    saved.add_option(parser)
    given = parser.parse_args()
    levels_chosen()
    law(given.simulations)
    solved(given.simulations)
