"""What the programs share.

Timing in turn, tables, the command line, fresh processes, memory, and simulated data.
"""

import argparse
import ctypes
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import leaveout as lo

SIZE = 2000  # records of each of two clusters


def race(repeats: int, **contestants: Callable[[], Any]) -> dict[str, float]:
    """Returns the median seconds of each contestant, called in turn, after one call to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for lap in range(repeats + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name] += [time.perf_counter() - start] * (lap > 0)
    return {name: float(np.median(each)) for name, each in times.items()}


def once(run: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds of one call, and its result."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def show(title: str, rows: list[dict]) -> None:
    """Prints a table under its title."""
    print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False, na_rep='')}", flush=True)


def main(
    parts: dict[str, Callable], about: str | None, without: tuple[str, ...] = (), **options: Any
) -> None:
    """Runs the parts that the command line names, or all but those of `without`.

    An option is a flag with its default. A part receives the options that its parameters name.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = "all by default" + (f", but for {', '.join(without)}" if without else "")
    parser.add_argument(
        "part", nargs="*", metavar="part", help=f"one of {', '.join(parts)}; {every}"
    )
    for name, default in options.items():
        if default is False:
            parser.add_argument(
                f"--{name}", action="store_true", help="small sizes, to see that it runs"
            )
        else:
            parser.add_argument(
                f"--{name}", type=type(default), default=default, help=f"default: {default}"
            )
    given = vars(parser.parse_args())
    if unknown := set(given["part"]) - parts.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    pd.set_option(
        "display.width", 250, "display.max_columns", 30, "display.float_format", "{:.3g}".format
    )
    print(
        f"leaveout {lo.__version__}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    for name in given["part"] or [name for name in parts if name not in without]:
        parts[name](
            **{
                key: given[key]
                for key in inspect.signature(parts[name]).parameters
                if key in options
            }
        )


def fresh_process(code: str) -> dict[str, float]:
    """Runs code in a fresh Python process, in this folder, and returns the JSON that it prints
    last.
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def memory_growth(run: Callable[[], object]) -> int:
    """Returns the bytes of resident memory at the peak of a call, above those before it.

    The peak so far is forgotten (clear_refs) and freed memory given back (malloc_trim) first:
    ru_maxrss would be the parent's peak, or the peak of an earlier call.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """Returns a field of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def logistic_data(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    eta = X @ rng.standard_normal(p) / np.sqrt(p)
    return X, (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)


def logistic_fit(X: np.ndarray, y: np.ndarray) -> lo.Fit:
    """The minimiser of LogisticRegression(C=1)."""
    return lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))


def squared_data(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, X @ rng.standard_normal(p) + 3.0 + rng.standard_normal(n)


def sticky(rng: np.random.Generator, steps: int, states: int, stay: float) -> np.ndarray:
    """A path of states that stays with this probability, and else goes to any of the others."""
    moves = np.where(rng.random(steps) < stay, 0, rng.integers(1, max(states, 2), steps))
    return np.cumsum(moves) % states


def grid(rows: int, columns: int) -> np.ndarray:
    """The edges of a grid of sites."""
    number = np.arange(rows * columns).reshape(rows, columns)
    parts = ((number[:, :-1], number[:, 1:]), (number[:-1], number[1:]))
    return np.concatenate([np.stack([s.ravel(), t.ravel()], 1) for s, t in parts])


def two_clusters(
    seed: int, features: int = 4, classes: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four features, cluster-specific means and coefficients.

    A tenth of the first cluster's records are the second's.
    """
    fixed, rng = np.random.default_rng(0), np.random.default_rng([seed, 6])
    mean, common = fixed.normal(size=(2, features)), fixed.normal(size=features + 1)
    coef = common + fixed.normal(size=(2, features + 1))
    true = np.repeat([0, 1], SIZE)
    true[: SIZE // 10] = 1
    X = rng.normal(size=(2 * SIZE, features)) + mean[true]
    eta = np.einsum("nd,nd->n", X, coef[true, 1:]) + coef[true, 0]
    y = (
        (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))) * 1
        if classes
        else eta + rng.normal(size=len(eta))
    )
    return X, y, np.repeat([0, 1], SIZE)


def corrected_two_clusters(seed: int, draws: int, data: int) -> lo.leakage.LeakageResult:
    """The corrected loss of least squares on two clusters."""
    from sklearn.linear_model import LinearRegression

    X, y, side = two_clusters(data)
    return lo.leakage.leakage_corrected(
        LinearRegression(),
        X,
        y,
        groups=side,
        leakage=lo.leakage.RecordLeakage(0.1),
        loss="mse",
        injection=lo.leakage.Injection(train_size=100, num_boot=draws),
        cv=[(np.flatnonzero(side == 0), np.flatnonzero(side == 1))],
        rng=seed,
    )
