"""What a leave-one-out of a logistic regression takes by rows and columns, and what each rung and
each shortcut of refits of linear predictors is worth.

    python benchmarks/rungs.py grid [--rows 500 1000] [--columns 5 10]
        # time and share proved over a grid of rows and columns, under Ridge(1)
    python benchmarks/rungs.py off
        # ratios of times with a rung or a shortcut switched off, and shares proved

Times are the least of five of processor time, on one thread. Cells of more than 8 GB, and what
takes longer than half a minute, are left out, and named. Time is to be monotone in rows and in
columns but for a tenth, or a quarter below 100 ms: the exceptions are listed.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import leaveout as lo
from leaveout.refit import _enclosure, _linear, _single_rows

ROWS = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000]
COLUMNS = [5, 10, 20, 50, 100, 200, 400]
REPETITIONS = 5
SECONDS = 30.0  # processor time of a call from which it is not repeated
BYTES = 8e9
COPIES = 6  # of the rows, in memory
# play of monotone times, in seconds and as shares
SHORT = 0.1
PLAY = {True: 0.25, False: 0.1}


class Timing(NamedTuple):
    """The least processor time of a call, in seconds, and the share of refits that it proves."""

    seconds: float
    proved: float


def least(call: Callable[[], Any]) -> Timing:
    """Time a call, warm."""
    estimate = call()
    times: list[float] = []
    while len(times) < REPETITIONS and sum(times) < SECONDS:
        start = time.process_time()
        estimate = call()
        times.append(time.process_time() - start)
    return Timing(min(times), float(np.mean(getattr(estimate, "proved", np.nan))))


def logistic(rows: int, columns: int, penalty: float = 1.0, scale: float = 1.0) -> lo.Fit:
    """A logistic regression of independent normal columns."""
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, columns))
    eta = X @ random.normal(size=columns) * scale / np.sqrt(columns)
    y = (random.random(rows) < 1 / (1 + np.exp(-eta))) * 1.0
    return lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(penalty)))


def left_out(
    fit: lo.Fit, strategy: lo.developer.AbstractRefit | None = None, folds: int = 0
) -> Callable[[], lo.Estimate]:
    """Leave out every row, or folds."""
    count = fit.objective.num_units
    plan = lo.kfold(count, folds, rng=0) if folds else lo.leave_one_out(count)
    return lambda: lo.cross_validate(fit, plan, strategy=strategy or lo.Certified())


def grid(all_rows: list[int], all_columns: list[int]) -> None:
    """Print times and shares over the grid, and where times are not monotone."""
    timings: dict[tuple[int, int], Timing] = {}
    print("milliseconds (share proved)")
    print(f"{'':>8}" + "".join(f"{columns:>16}" for columns in all_columns))
    for rows in all_rows:
        texts = []
        for columns in all_columns:
            if 8 * COPIES * rows * columns > BYTES:
                texts.append("left out")
                continue
            timing = timings[rows, columns] = least(left_out(logistic(rows, columns)))
            texts.append(f"{1e3 * timing.seconds:.0f} ({timing.proved:.2f})")
        print(f"{rows:>8}" + "".join(f"{text:>16}" for text in texts), flush=True)
    for (rows, columns), timing in timings.items():
        places = [(row, columns) for row in all_rows if row < rows]
        places += [(rows, column) for column in all_columns if column < columns]
        for place in places:
            before = timings[place].seconds
            if timing.seconds < before * (1 - PLAY[before < SHORT]):
                print(
                    f"not monotone: {place} {1e3 * before:.0f}, {(rows, columns)} {1e3 * timing.seconds:.0f} ms"
                )


def without_rung(name: str) -> contextlib.AbstractContextManager[Any]:
    """Switch off a rung of single rows."""
    rungs = tuple(rung for rung in _linear.RUNGS if rung.name != name)
    return mock.patch.object(_linear, "RUNGS", rungs)


@contextlib.contextmanager
def without_estimates_by_products() -> Iterator[None]:
    """Factor Hessians, however dear."""
    with (
        mock.patch.object(_linear, "COSTLY_OPERATIONS", np.inf),
        mock.patch.object(_linear, "HESSIAN_BUDGET", np.inf),
    ):
        yield


SWITCHES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "as it is": contextlib.nullcontext,
    "no next term": lambda: without_rung("next term"),
    "no products": lambda: without_rung("products"),
    "no sample": lambda: without_rung("sample"),
    "no later products": lambda: without_rung("products of the others"),
    "no float32 in the next term": lambda: mock.patch.object(_single_rows, "ROUGH", 0.0),
    "no expansion": lambda: mock.patch.object(_enclosure, "_is_cheap", lambda *_: False),
    "one size of samples": lambda: mock.patch.object(_single_rows, "SIZES", (256,)),
    "no conjugate gradients": without_estimates_by_products,
}


def calls() -> dict[str, Callable[[], Any]]:
    """The calls that are timed, by name."""
    clusters = logistic(10_000, 20)
    labels = np.arange(10_000) % 100
    return {
        "200 x 5": left_out(logistic(200, 5)),
        "1000 x 5": left_out(logistic(1000, 5)),
        "500 x 20, strong": left_out(logistic(500, 20, 0.1, 4.0)),
        "1000 x 50": left_out(logistic(1000, 50)),
        "500 x 100": left_out(logistic(500, 100)),
        "4000 x 100": left_out(logistic(4000, 100)),
        "10000 x 50": left_out(logistic(10_000, 50)),
        "500 x 200": left_out(logistic(500, 200)),
        "2000 x 400": left_out(logistic(2000, 400)),
        "500 x 20, Exact": left_out(logistic(500, 20), lo.Exact()),
        "2000 x 20, ten folds": left_out(logistic(2000, 20), folds=10),
        "10000 x 20, clusters": lambda: lo.covariance(clusters, "CRV3", groups=labels),
    }


def off() -> None:
    """Print what calls take with one rung or shortcut switched off, relative to the library."""
    table = {}
    for name, call in calls().items():
        for switch, change in SWITCHES.items():
            with change():
                table[name, switch] = least(call)
        print(f"{name}: {1e3 * table[name, 'as it is'].seconds:.1f} ms", flush=True)
    names = {name: None for name, _ in table}
    for switch in SWITCHES:
        print(f"\n{switch}")
        for name in names:
            timing, usual = table[name, switch], table[name, "as it is"]
            share = f"{usual.proved:.3f} -> {timing.proved:.3f}"
            print(f"    {name:<24}{timing.seconds / usual.seconds:6.2f}   {share}")


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("part", choices=["grid", "off"])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    arguments = parser.parse_args()
    if arguments.part == "grid":
        grid(arguments.rows, arguments.columns)
    else:
        off()


if __name__ == "__main__":
    main()
