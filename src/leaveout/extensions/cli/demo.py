"""`leaveout demo` cross-validates real data by every strategy, and checks the result by
refitting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import leaveout as lo

from ._console import console, table_of
from ._files import picture

T = TypeVar("T")
PICTURE = "leaveout_demo.png"
STRATEGIES = (
    lo.NoUpdate(),
    lo.InfinitesimalJackknife(),
    lo.NewtonStep(),
    lo.Certified(),
    lo.Exact(),
)
# refits by scikit-learn for the check and for timing, runs of this library for timing
CHECK_REFITS = 10
TIMING_REFITS = 20
TIMING_REPEATS = 7


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the picture; made if it is not there.", file_okay=False)
    ] = Path(),
) -> None:
    """Certified leave-one-out of a logistic regression on real data, checked by refitting it."""
    X, y = lo.datasets.breast_cancer()
    console.print(
        f"{len(y)} tumours, {X.shape[1]} measurements: a logistic regression, fitted once by scikit-learn\n",
        style="bold",
    )
    # its fastest solver for these data
    host = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-8)
    model = make_pipeline(StandardScaler(), host).fit(X, y)
    plan = lo.leave_one_out()
    run = lambda: lo.cross_validate(lo.from_sklearn(model, X, y), plan)
    certified, first = _clock(run)
    console.print(f"{certified}\n")

    exact = _table(lo.from_sklearn(model, X, y), plan)
    design = model[:-1].transform(X)
    target = np.asarray(y)
    _check(host, design, target, certified, exact)
    _race(host, design, target, run, first)
    out.mkdir(parents=True, exist_ok=True)
    console.print()
    try:
        picture(lambda: lo.plot.losses(certified), out / PICTURE)
    except ImportError as error:
        console.print(f"No picture: {error}")


def _clock(call: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def _warm(call: Callable[[], T]) -> tuple[T, float]:
    """Return the median time of a repeated call."""
    value = call()
    return value, float(np.median([_clock(call)[1] for _ in range(TIMING_REPEATS)]))


def _table(fit: lo.Fit, plan: lo.Plan) -> lo.Estimate:
    """Tabulate every strategy beside `Exact`, whose estimate is returned."""
    exact = lo.cross_validate(fit, plan, strategy=lo.Exact())
    table = table_of(
        "strategy", "mean loss", "mean |error|", "reported", "seconds", words=("strategy",)
    )
    for refit in STRATEGIES:
        estimate, seconds = _warm(lambda refit=refit: lo.cross_validate(fit, plan, strategy=refit))
        error = "–"
        if not isinstance(refit, lo.Exact):
            error = f"{np.mean(np.abs(estimate.per_unit() - exact.per_unit())):.1e}"
        table.add_row(
            type(refit).__name__,
            f"{estimate.mean:.6f}",
            error,
            f"{estimate.approximation_error:.1e}",
            f"{seconds:.3f}",
        )
    console.print(
        "Every strategy: the mean error of a loss, against Exact and as reported, and seconds of a second call"
    )
    console.print(table)
    return exact


def _without(
    host: LogisticRegression, design: NDArray, target: NDArray, row: int
) -> LogisticRegression:
    return clone(host).fit(np.delete(design, row, axis=0), np.delete(target, row))


def _check(
    host: LogisticRegression,
    design: NDArray,
    target: NDArray,
    certified: lo.Estimate,
    exact: lo.Estimate,
) -> None:
    """Refit the rows of largest loss, and as many at random, from scratch by scikit-learn."""
    rise = certified.losses - certified.baseline
    worst = np.argsort(-rise)[: CHECK_REFITS // 2]
    random_rows = np.random.default_rng(0).choice(
        np.setdiff1d(np.arange(len(target)), worst), CHECK_REFITS - len(worst), replace=False
    )
    rows = np.r_[worst, random_rows]
    tight = clone(host).set_params(tol=1e-12)
    margin = [
        float(_without(tight, design, target, row).decision_function(design[[row]])[0])
        for row in rows
    ]
    truth = np.logaddexp(0.0, np.where(target[rows] == 1, -1, 1) * margin)
    console.print(
        f"Check: {len(rows)} rows refitted from scratch by scikit-learn, half of them those that change most"
    )
    for name, estimate in (("Exact", exact), ("Certified", certified)):
        difference = np.abs(estimate.losses[rows] - truth)
        console.print(
            f"  largest difference from {name:<10}{difference.max():.1e}, of losses up to {truth.max():.2f}"
        )


def _race(
    host: LogisticRegression,
    design: NDArray,
    target: NDArray,
    run: Callable[[], lo.Estimate],
    first: float,
) -> None:
    n = len(target)
    rows = np.linspace(0, n - 1, TIMING_REFITS).astype(int)
    refit_seconds = np.median(
        [_clock(lambda row=row: _without(host, design, target, row))[1] for row in rows]
    )
    _, warm = _warm(run)
    console.print(f"\nSpeed: from the fitted model to the result, with {n} refits")
    console.print(
        f"  scikit-learn        {refit_seconds * n:7.3f} s   ({n} times the median of {TIMING_REFITS} refits)"
    )
    console.print(
        f"  Certified           {warm:7.3f} s   (the second call; {refit_seconds * n / warm:.0f} times faster)"
    )
    console.print(f"  Certified, at first {first:7.3f} s   (nothing made before)")
