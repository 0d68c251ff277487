"""How processor time grows with the data, against what the mathematics says.

    python benchmarks/growth.py [study ...] [--quick]

Each study doubles one size: rows, columns, steps of a chain, folds, clusters. A time is the least
of three warm calls of `cross_validate` with the default strategy, on one thread. The exponent is
the slope of log time on log size over the three largest sizes; beside it stands the exponent of
the leading term of the operations (CONTRIBUTING.md, *Growth*). Exits with 1 if an exponent is
above it by more than PLAY. `--quick` halves the largest size.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import leaveout as lo

PLAY = 0.2  # of an exponent, over three sizes; times vary by a tenth
REPETITIONS = 3
SECONDS = 20.0  # processor time of calls from which they are not repeated
Call = Callable[[], Any]


class Study(NamedTuple):
    """A call by the size that doubles, the sizes, and the exponent of its operations."""

    make: Callable[[int], Call]
    sizes: list[int]
    exponent: float


def regression(loss: str, rows: int, columns: int) -> Call:
    """Leave out each row of a regression."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, columns))
    eta = X @ random.normal(size=columns) / np.sqrt(columns)
    responses = {
        "squared": eta + random.normal(size=rows),
        "logistic": (random.random(rows) < 1 / (1 + np.exp(-eta))) * 1.0,
        "poisson": random.poisson(np.exp(eta / 2)).astype(float),
        "multinomial": np.argmax(eta[:, None] * [0, 1, -1] + random.gumbel(size=(rows, 3)), 1),
    }
    fit = lo.fit(lo.GLM(X, responses[loss], loss, lo.penalties.Ridge(1.0)))
    return lambda: lo.cross_validate(fit, lo.leave_one_out())


def survival(rows: int, columns: int) -> Call:
    """Leave out each row of a Cox regression."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, columns))
    times = random.exponential(np.exp(-X[:, 0]))
    fit = lo.fit(lo.Cox(X, times, random.random(rows) < 0.7))
    return lambda: lo.cross_validate(fit, lo.leave_one_out())


def chain(steps: int, folds: int) -> Call:
    """Leave out consecutive blocks of a chain with two states."""
    random = np.random.default_rng(0)
    states = np.cumsum(random.random(steps) < 0.02) % 2
    counts = random.poisson(np.array([2.0, 9.0])[states])
    fit = lo.fit(lo.HMM(counts, lo.emissions.Poisson(), 2), num_starts=1)
    return lambda: lo.cross_validate(fit, lo.blocks(k=folds))


def mixed(clusters: int, size: int = 10) -> Call:
    """Leave out each cluster of a logistic mixed model."""
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(clusters), size)
    frame = pd.DataFrame({"x": random.normal(size=len(group)), "g": group})
    eta = 0.5 * frame.x + random.normal(size=clusters)[group]
    frame["y"] = (random.random(len(group)) < 1 / (1 + np.exp(-eta))) * 1.0
    fit = lo.fit(lo.Mixed("y ~ x + (1 | g)", frame, "binomial", drop="g"))
    return lambda: lo.cross_validate(fit, lo.leave_one_out())


def doubled(first: int, count: int) -> list[int]:
    """Sizes, each twice the one before."""
    return [first * 2**k for k in range(count)]


STUDIES = {
    f"{loss}, {what}": study
    for loss in ("squared", "logistic", "poisson", "multinomial")
    for what, study in {
        "rows": Study(lambda n, loss=loss: regression(loss, n, 20), doubled(16_000, 4), 1.0),
        "columns": Study(lambda p, loss=loss: regression(loss, 4000, p), doubled(25, 4), 2.0),
    }.items()
} | {
    "Cox, rows": Study(lambda n: survival(n, 5), doubled(200, 5), 2.0),
    "Cox, columns": Study(lambda p: survival(400, p), doubled(4, 4), 2.0),
    "hidden Markov model, steps": Study(lambda t: chain(t, 10), doubled(2000, 5), 1.0),
    "hidden Markov model, folds": Study(lambda k: chain(4000, k), doubled(10, 4), 1.0),
    "mixed model, clusters": Study(mixed, doubled(100, 5), 1.0),
}


def least(call: Call) -> float:
    """The least processor time of a warm call."""
    call()
    times: list[float] = []
    while len(times) < REPETITIONS and sum(times) < SECONDS:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Time the studies, and print their exponents."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("study", nargs="*", help="words of names; all by default")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    words = arguments.study
    above = []
    for name, study in STUDIES.items():
        if words and not any(word in name for word in words):
            continue
        sizes = study.sizes[:-1] if arguments.quick else study.sizes
        seconds = [least(study.make(size)) for size in sizes]
        slope = np.polyfit(np.log(sizes[-3:]), np.log(seconds[-3:]), 1)[0]
        times = ", ".join(f"{size} {1e3 * t:.0f}" for size, t in zip(sizes, seconds, strict=True))
        print(f"{name:<28}{slope:5.2f} ({study.exponent:.0f})   ms: {times}", flush=True)
        if slope > study.exponent + PLAY:
            above.append(name)
    if above:
        print("above:", "; ".join(above))
        sys.exit(1)


if __name__ == "__main__":
    main()
