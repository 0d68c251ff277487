"""How time and memory grow with the length of a chain, the folds and the states. A demand of benchmarks/chains.py."""

import resource
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import fresh
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import leaveout as lo

CAP = 10 * 2**30  # bytes of data that the process may hold
REFITS = {"IJ": lo.InfinitesimalJackknife(), "Exact": lo.Exact()}


class Size(NamedTuple):
    steps: int
    folds: int
    states: int
    free: bool  # are transitions estimated?


def sizes(quick: bool) -> dict[str, list[Size]]:
    """By what grows. With transitions free, D grows with K², and H with it costs K⁴; held fixed, D = 2K."""
    if quick:
        return {
            "T": [Size(steps, 4, 2, True) for steps in (1_000, 2_000)],
            "folds": [Size(500, folds, 2, True) for folds in (5, 10)],
            "K": [Size(500, 4, states, False) for states in (2, 4)],
        }
    return {
        "T": [Size(steps, 8, 2, True) for steps in (1_000, 10_000, 100_000, 1_000_000)],
        "folds": [Size(2_000, folds, 2, True) for folds in (10, 100, 1_000, 10_000)],
        "K": [Size(1_000, 8, states, False) for states in (2, 4, 8, 16, 32, 64)],
        "K, transitions free": [Size(1_000, 8, states, True) for states in (2, 4, 8, 16)],
    }


def study(quick: bool) -> list[dict]:
    """One row a size and strategy."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (CAP, hard))
    return [{"grows": grows} | row for grows, every in sizes(quick).items() for size in every for row in measure(size)]


def measure(size: Size) -> list[dict]:
    fit, plan, rows = fitted(size), lo.contiguous(size.steps, 0.05, size.folds, seed=0), []
    for name, refit in REFITS.items():
        run = lambda refit=refit: lo.cross_validate(replace(fit), plan, refit)  # of a fit that has not yet made J
        start = time.perf_counter()
        run()
        first = time.perf_counter()
        memory = fresh.growth(run)
        seconds = time.perf_counter() - first
        row = {"T": size.steps, "folds": size.folds, "K": size.states, "D": fit.num_params, "refit": name, "seconds": seconds}
        rows.append(row | {"compiling": max(0.0, first - start - seconds), "MiB": memory / 2**20})
    return rows


def fitted(size: Size) -> lo.Fit:
    """A chain of well separated states, fitted from the parameters that it was drawn with."""
    steps, _, K, free = size
    rng = np.random.default_rng(0)
    path = np.cumsum(np.where(rng.random(steps) < 0.9, 0, rng.integers(1, K, steps))) % K
    x = 3.0 * path + rng.standard_normal(steps)
    moves = np.full((K, K), 0.1 / (K - 1)) + (0.9 - 0.1 / (K - 1)) * np.eye(K)
    start = {"mean": 3.0 * np.arange(K)[:, None], "covariance": np.ones((K, 1))} | ({"transition": moves} if free else {})
    known = {"initial": np.full(K, 1 / K)} | ({} if free else {"transition": moves})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # states that a short chain hardly visits
        return lo.fit(lo.HMM(x[:, None], lo.emissions.Gaussian(), K, **known), start)


def slopes(table: list[dict]) -> list[dict]:
    """Exponents of growth, over all sizes and over the two largest."""
    rows = []
    for (grows, refit), part in pd.DataFrame(table).groupby(["grows", "refit"], sort=False):
        row = {"grows": grows, "refit": refit}
        for name in ("seconds", "MiB"):
            size, value = np.log(part[grows.split(",")[0]].astype(float)), np.log(part[name].clip(lower=1e-3))
            row |= {name: np.polyfit(size, value, 1)[0], f"{name}, last two": np.polyfit(size[-2:], value[-2:], 1)[0]}
        rows.append(row)
    return rows


def plot(table: list[dict], path: Path) -> None:
    """Log–log: time above memory, one column for each thing that grows, dashes of slope one."""
    frame = pd.DataFrame(table)
    kinds = list(frame["grows"].unique())
    figure, axes = plt.subplots(2, len(kinds), figsize=(3.4 * len(kinds), 6.2), layout="constrained", sharey="row")
    for column, grows in enumerate(kinds):
        part, along = frame[frame["grows"] == grows], grows.split(",")[0]
        for ax, name in zip(axes[:, column], ("seconds", "MiB"), strict=True):
            for refit, own in part.groupby("refit", sort=False):
                ax.loglog(own[along], own[name].clip(lower=1e-3), "o-", label=refit)
            ends = part[along].agg(["min", "max"]).to_numpy(float)
            ax.loglog(ends, part[name].max() * ends / ends[1], "k--", lw=0.8, label="slope one")
            ax.set(xlabel=grows, ylabel=name if column == 0 else None)
            if ends[1] < 100 * ends[0]:  # too few decades for powers of ten
                ax.set_xticks(sorted(part[along].unique()), minor=False)
                ax.xaxis.set_major_formatter("{x:g}")
                ax.xaxis.set_minor_formatter("")
            ax.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
