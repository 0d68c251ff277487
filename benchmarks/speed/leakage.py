"""How fast the leakage estimator is: fits against a scikit-learn loop, two workers against one, and
memory.

    python benchmarks/speed/leakage.py [document default workers memory]

document
the document's 201 levels x 2,500 fits, against a loop over scikit-learn as one would write it
default
the default size of training sets and levels on 5,000 records, against the fits of such a loop
workers     one worker against two, by the clock, of cheap fits and dear ones (alone on the machine)
memory      what a fresh process grows by at the document's size (run it alone)

What the estimator's errors are worth is in `benchmarks/leakage.py`.
"""

import resource
import time
import warnings

import numpy as np
from common import corrected_two_clusters, main, two_clusters
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.tree import DecisionTreeRegressor

from leaveout.leakage import (
    Injection,
    Linkage,
    RecordLeakage,
    binomial_block_bootstrap,
    leakage_corrected,
    leakage_report,
)


def document(fits: int = 2500) -> None:
    """The document's 201 levels × 2,500 fits at n′ = 100 and V̂ of 500, against a loop over
    scikit-learn (timed on 400).
    """
    print("\n201 levels × 2,500 fits to 100 records, scored on what is left of 500:")
    for name, model, classes, loss in (
        ("least squares", LinearRegression(), False, "mse"),
        ("ridge", Ridge(1.0), False, "mse"),
        ("logistic", LogisticRegression(max_iter=1000), True, "logistic"),
    ):
        X, y, side = two_clusters(0, classes=classes)
        train, test = np.flatnonzero(side == 0), np.flatnonzero(side == 1)[:500]
        start = time.perf_counter()
        binomial_block_bootstrap(
            model, X, y, train, test, p_train=0.1, levels=201, num_boot=fits, size=100, loss=loss
        )
        ours = (time.perf_counter() - start) / (201 * fits)
        each = loop(model, X, y, train, test, classes)
        print(f"  {name:14s} {1e6 * ours:6.1f} µs a fit, {201 * fits * ours:6.1f} s in all; scikit-learn {1e6 * each:7.1f} µs, "
              f"{each / ours:5.1f} times", flush=True)  # fmt: skip


def default() -> None:
    """5,000 records of ten features, the default size of training sets and levels."""
    print("\n12 levels × 40 draws × 5 folds, fits to 3,800 of 5,000 records, one thread:")
    default_size("ridge", Ridge(1.0), False, "mse")
    default_size("logistic", LogisticRegression(max_iter=1000), True, "logistic")


def fitted_and_scored(
    model, X: np.ndarray, y: np.ndarray, rows: np.ndarray, left: np.ndarray, classes: bool
) -> float:
    """The mean loss of a fresh fit to some rows on those that are left."""
    fitted = clone(model).fit(X[rows], y[rows])
    if not classes:
        return float(np.mean((fitted.predict(X[left]) - y[left]) ** 2))
    p = fitted.predict_proba(X[left])[:, 1]
    return float(np.mean(-np.log(np.where(y[left] == 1, p, 1 - p))))


def loop(
    model,
    X: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    classes: bool,
    times: int = 400,
) -> float:
    """Seconds a fit, as one would write it.

    Draw, clone, fit, predict, mean loss over what was not drawn.
    """
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(times):
        injected = rng.random(100) < 0.5
        rows = np.where(injected, rng.choice(test, 100), rng.choice(train, 100))
        left = np.setdiff1d(test, rows)
        fitted_and_scored(model, X, y, rows, left, classes)
    return (time.perf_counter() - start) / times


def default_size(
    name: str, model, classes: bool, loss: str, records: int = 5000, draws: int = 40
) -> None:
    """`leakage_corrected` as it is called, all of it, against the fits of a scikit-learn loop.

    Seconds of the processor.
    """
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 200, records)
    X = rng.normal(size=(200, 10))[cluster] + rng.normal(size=(records, 10))
    eta = 0.5 * np.sum(X * (1 + 0.5 * rng.normal(size=(200, 10)))[cluster], axis=1)
    y = (
        (rng.random(records) < 1 / (1 + np.exp(-eta))) * 1
        if classes
        else eta + rng.normal(size=records)
    )
    start = time.process_time()
    result = leakage_corrected(
        model,
        X,
        y,
        groups=cluster,
        leakage=RecordLeakage.from_pairwise(0.9, 0.9),
        loss=loss,
        injection=Injection(num_boot=draws),
    )
    fits = sum(run.test.size for run in result.runs)
    ours = (time.process_time() - start) / fits
    part, times = result.plan[0], 5
    start = time.process_time()
    for rows, scored in zip(
        *(np.concatenate(list(a)) for a in part.draw(0, times)[:2]), strict=True
    ):
        left = part.fold.test[scored]
        fitted_and_scored(model, X, y, rows, left, classes)
    each = (time.process_time() - start) / (times * len(part.levels))
    print(f"  {name:14s} {1e6 * ours:6.1f} µs a fit, {fits * ours:6.1f} s in all; scikit-learn {1e6 * each:7.1f} µs, "
          f"{each / ours:5.1f} times", flush=True)  # fmt: skip


def workers() -> None:
    """One worker against two, by the clock, of cheap fits and dear ones (alone on the machine)."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(100), 20)
    X = rng.normal(size=(100, 5))[label] + 0.5 * rng.normal(size=(2000, 5))
    y = X[:, 0] + rng.normal(size=100)[label]
    pairs = np.c_[np.arange(0, 2000, 40), np.arange(39, 2000, 40)]
    known = {
        "linkage": Linkage.from_duplicates(pairs, 2000),
        "answers": ("purge", "coarser", "both"),
    }
    corrected = {"leakage": RecordLeakage(0.02, 0.05), "injection": Injection(num_boot=10)}
    print("\nseconds with one worker, with two:")
    for model in (DecisionTreeRegressor(max_depth=2), RandomForestRegressor(20, random_state=0)):
        for call, given in ((leakage_report, known), (leakage_corrected, corrected)):
            times = []
            for jobs in (1, 2):
                start = time.perf_counter()
                call(
                    model,
                    X,
                    y,
                    groups=label,
                    scoring="neg_mean_squared_error",
                    n_jobs=jobs,
                    **given,
                )
                times.append(time.perf_counter() - start)
            print(
                f"  {type(model).__name__:22s} {call.__name__:18s} {times[0]:6.1f} {times[1]:6.1f}",
                flush=True,
            )


def memory() -> None:
    """The document's size with V̂ of 2,000: what a fresh process grows by (run it alone)."""
    X, y, side = two_clusters(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = [np.flatnonzero(side == k) for k in (0, 1)]
    binomial_block_bootstrap(
        LinearRegression(), X, y, *rows, p_train=0.1, levels=21, num_boot=2500, size=100, loss="mse"
    )
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    corrected_two_clusters(0, 200, 0)
    last = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\nmemory: {(after - before) / 1024:.0f} MiB for the document's, {(last - after) / 1024:.0f} MiB more for ours, "
          "however many draws", flush=True)  # fmt: skip


PARTS = {part.__name__: part for part in (document, default, workers, memory)}

if __name__ == "__main__":
    # one cluster a side, by design
    warnings.filterwarnings("ignore", message="leakage_corrected", category=UserWarning)
    main(PARTS, __doc__)
