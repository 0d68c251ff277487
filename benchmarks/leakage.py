"""The leakage estimator's demands: its errors, its speed beside a scikit-learn loop, stopping and resuming.

    python benchmarks/leakage.py [variance] [errors] [spread] [speed] [sizes] [resume] [memory]

Without arguments all of them, in this order.
"""

import argparse
import itertools
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

from leaveout.leakage import (
    Injection,
    LeakageResult,
    Linkage,
    RecordLeakage,
    binomial_block_bootstrap,
    binomial_matrix,
    leakage_corrected,
    leakage_report,
)

SIZE = 2000


def two_clusters(seed: int, features: int = 4, classes: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Four features, cluster-specific means and coefficients, a tenth of T̂ from V."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng([seed, 6])
    mean, common = fixed.normal(size=(2, features)), fixed.normal(size=features + 1)
    coef = common + fixed.normal(size=(2, features + 1))
    true = np.repeat([0, 1], SIZE)
    true[: SIZE // 10] = 1
    X = rng.normal(size=(2 * SIZE, features)) + mean[true]
    eta = np.einsum("nd,nd->n", X, coef[true, 1:]) + coef[true, 0]
    y = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))) * 1 if classes else eta + rng.normal(size=len(eta))
    return X, y, np.repeat([0, 1], SIZE)


def estimated(seed: int, draws: int, data: int) -> LeakageResult:
    X, y, side = two_clusters(data)
    cv = [(np.flatnonzero(side == 0), np.flatnonzero(side == 1))]
    injection = Injection(train_size=100, num_boot=draws)
    arguments = {
        "groups": side,
        "leakage": RecordLeakage(0.1),
        "loss": "mse",
        "injection": injection,
        "cv": cv,
        "seed": seed,
    }
    return leakage_corrected(LinearRegression(), X, y, **arguments)


def variance() -> None:
    """Theorem 3.2: with as many levels as counts and no constraint, Var ê₀ is a sum over levels; here n′ = 5, six levels."""
    X, y, side = two_clusters(0)
    train, test = np.flatnonzero(side == 0), np.flatnonzero(side == 1)
    n, t, p0 = 5, 200, 0.1
    levels = np.linspace(0, 1, n + 1)
    found = []
    for seed in range(400):
        run = binomial_block_bootstrap(
            Ridge(5.0), X, y, train, test, p_train=p0, size=n, levels=levels, num_boot=t, loss="mse", seed=seed
        )
        found.append((np.linalg.solve(run.A, run.losses)[0], run.variance))
    p = p0 + (1 - p0) * levels
    weights = [sum_of_products(p, i) / np.prod([p[m] - p[i] for m in range(n + 1) if m != i]) for i in range(n + 1)]
    inverse = np.linalg.inv(binomial_matrix(p, n))[0]
    predicted = np.mean([np.sum(np.array(weights) ** 2 * v) / t for _, v in found])
    printed = np.sqrt(predicted), np.std([e for e, _ in found], ddof=1)
    print(f"\nTheorem 3.2, n′ = {n}: off the weights of A⁻¹ by {np.max(np.abs(np.abs(weights) - np.abs(inverse))):.1e}")
    print(
        f"  SD of ê₀: predicted {printed[0]:.4g}, over 400 bootstraps {printed[1]:.4g}, ratio {printed[0] / printed[1]:.3f}",
        flush=True,
    )


def sum_of_products(p: np.ndarray, i: int) -> float:
    """The numerator of the theorem, Σ Π p over all choices of n′ of the other n′ levels: one product."""
    others = np.delete(p, i)
    return float(sum(np.prod(chosen) for chosen in itertools.combinations(others, len(others))))


def errors() -> None:
    """The Monte-Carlo SE predicted in each of 100 re-bootstraps of one data set, against their spread."""
    for draws in (50, 200):
        runs = [estimated(seed, draws, 0) for seed in range(100)]
        predicted, spread = np.mean([r.se_mc for r in runs]), np.std([r.solved.estimate for r in runs], ddof=1)
        print(f"\nMonte-Carlo SE, 12 levels × {draws}: predicted {predicted:.4f}, spread over 100 re-bootstraps {spread:.4f}, "
              f"ratio {predicted / spread:.3f} (the spread itself is known to ± 7 %)", flush=True)  # fmt: skip


def spread() -> None:
    """The data SE against the spread over 100 fresh data sets, Monte-Carlo error in both."""
    runs = [estimated(seed, 200, 1000 + seed) for seed in range(100)]
    total = np.std([r.solved.estimate for r in runs], ddof=1)
    mc, data = np.sqrt(np.mean([r.se_mc**2 for r in runs])), np.sqrt(np.mean([r.se_data**2 for r in runs]))
    apart = np.sqrt(max(total**2 - mc**2, 0))
    print(f"\ndata SE, two clusters of {SIZE}, n′ = 100, over records: {data:.4f}; spread over 100 fresh data {total:.4f}, "
          f"without the Monte-Carlo part ({mc:.4f}) {apart:.4f}; ratio {data / apart:.3f}")  # fmt: skip
    found = [many_clusters(seed) for seed in range(60)]
    total = np.std([r.solved.estimate for r in found], ddof=1)
    data = np.sqrt(np.mean([r.se_data**2 for r in found]))
    print(f"data SE, 40 clusters of 25, 3-NN, over clusters as tested: {data:.4f}; spread over 60 fresh data sets {total:.4f}; "
          f"ratio {data / total:.3f}", flush=True)  # fmt: skip


def many_clusters(seed: int) -> LeakageResult:
    rng = np.random.default_rng([seed, 7])
    label = np.repeat(np.arange(40), 25)
    X = 1.5 * rng.normal(size=(40, 4))[label] + 0.7 * rng.normal(size=(1000, 4))
    y = 0.5 * (0.5 * X[:, 0] + rng.normal(size=40)[label] + 0.3 * rng.normal(size=1000))
    wrong = rng.random(1000) < 0.1
    filed = np.where(wrong, (label + rng.integers(1, 40, 1000)) % 40, label)
    injection = Injection(num_boot=60)
    leakage = RecordLeakage.from_pairwise(0.81, 0.81)
    return leakage_corrected(KNeighborsRegressor(3), X, y, groups=filed, leakage=leakage, loss="mse", injection=injection)


def speed(fits: int = 2500) -> None:
    """The document's 201 levels × 2,500 fits at n′ = 100 and V̂ of 500, against a loop over scikit-learn (timed on 400)."""
    print("\n201 levels × 2,500 fits to 100 records, scored on what is left of 500:")
    for name, model, classes, loss in (
        ("least squares", LinearRegression(), False, "mse"),
        ("ridge", Ridge(1.0), False, "mse"),
        ("logistic", LogisticRegression(max_iter=1000), True, "logistic"),
    ):
        X, y, side = two_clusters(0, classes=classes)
        train, test = np.flatnonzero(side == 0), np.flatnonzero(side == 1)[:500]
        start = time.perf_counter()
        binomial_block_bootstrap(model, X, y, train, test, p_train=0.1, levels=201, num_boot=fits, size=100, loss=loss)
        ours = (time.perf_counter() - start) / (201 * fits)
        each = loop(model, X, y, train, test, classes)
        print(f"  {name:14s} {1e6 * ours:6.1f} µs a fit, {201 * fits * ours:6.1f} s in all; scikit-learn {1e6 * each:7.1f} µs, "
              f"{each / ours:5.1f} times", flush=True)  # fmt: skip


def sizes() -> None:
    """5,000 records of ten features, the default size of training sets and levels."""
    print("\n12 levels × 40 draws × 5 folds, fits to 3,800 of 5,000 records, one thread:")
    default_size("ridge", Ridge(1.0), False, "mse")
    default_size("logistic", LogisticRegression(max_iter=1000), True, "logistic")


def fitted_and_scored(model, X: np.ndarray, y: np.ndarray, rows: np.ndarray, left: np.ndarray, classes: bool) -> float:
    """The mean loss of a fresh fit to some rows on those that are left."""
    fitted = clone(model).fit(X[rows], y[rows])
    if not classes:
        return float(np.mean((fitted.predict(X[left]) - y[left]) ** 2))
    p = fitted.predict_proba(X[left])[:, 1]
    return float(np.mean(-np.log(np.where(y[left] == 1, p, 1 - p))))


def loop(model, X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, classes: bool, times: int = 400) -> float:
    """Seconds a fit, as one would write it: draw, clone, fit, predict, mean loss over what was not drawn."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(times):
        injected = rng.random(100) < 0.5
        rows = np.where(injected, rng.choice(test, 100), rng.choice(train, 100))
        left = np.setdiff1d(test, rows)
        fitted_and_scored(model, X, y, rows, left, classes)
    return (time.perf_counter() - start) / times


def default_size(name: str, model, classes: bool, loss: str, records: int = 5000, draws: int = 40) -> None:
    """`leakage_corrected` as it is called, all of it, against the fits of a scikit-learn loop; seconds of the processor."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 200, records)
    X = rng.normal(size=(200, 10))[cluster] + rng.normal(size=(records, 10))
    eta = 0.5 * np.sum(X * (1 + 0.5 * rng.normal(size=(200, 10)))[cluster], axis=1)
    y = (rng.random(records) < 1 / (1 + np.exp(-eta))) * 1 if classes else eta + rng.normal(size=records)
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
    for rows, scored in zip(*(np.concatenate(list(a)) for a in part.draw(0, times)[:2]), strict=True):
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
    known = {"linkage": Linkage.from_duplicates(pairs, 2000), "answers": ("purge", "coarser", "both")}
    corrected = {"leakage": RecordLeakage(0.02, 0.05), "injection": Injection(num_boot=10)}
    print("\nseconds with one worker, with two:")
    for model in (DecisionTreeRegressor(max_depth=2), RandomForestRegressor(20, random_state=0)):
        for call, given in ((leakage_report, known), (leakage_corrected, corrected)):
            times = []
            for jobs in (1, 2):
                start = time.perf_counter()
                call(model, X, y, groups=label, scoring="neg_mean_squared_error", n_jobs=jobs, **given)
                times.append(time.perf_counter() - start)
            print(f"  {type(model).__name__:22s} {call.__name__:18s} {times[0]:6.1f} {times[1]:6.1f}", flush=True)


def memory() -> None:
    """The document's size with V̂ of 2,000: what a fresh process grows by (run it alone)."""
    X, y, side = two_clusters(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = [np.flatnonzero(side == k) for k in (0, 1)]
    binomial_block_bootstrap(LinearRegression(), X, y, *rows, p_train=0.1, levels=21, num_boot=2500, size=100, loss="mse")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    estimated(0, 200, 0)
    last = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\nmemory: {(after - before) / 1024:.0f} MiB for the document's, {(last - after) / 1024:.0f} MiB more for ours, "
          "however many draws", flush=True)  # fmt: skip


RESUMED = """
import numpy as np, sys
import leaveout as lo
from sklearn.tree import DecisionTreeRegressor
from leaveout import _checkpoint
_checkpoint.PAUSE = 0.2
rng = np.random.default_rng(0)
label = np.repeat(np.arange(40), 25)
X = rng.normal(size=(40, 4))[label] + 0.5 * rng.normal(size=(1000, 4))
y = X[:, 0] + rng.normal(size=40)[label]
file = sys.argv[1] if len(sys.argv) > 1 else None
r = leakage_corrected(DecisionTreeRegressor(max_features=2), X, y, groups=label, leakage=RecordLeakage(0.02, 0.05),
                         loss="mse", injection=Injection(num_boot=30), checkpoint=file)
print(repr(r.solved.estimate), repr(r.naive), repr(r.se_data))
"""


def resume() -> None:
    """A run killed half-way (SIGKILL), started again, against one that was left alone."""
    call = lambda *words: [sys.executable, "-c", RESUMED, *words]
    start = time.perf_counter()
    whole = subprocess.run(call(), capture_output=True, text=True, check=True).stdout.strip()
    took = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "run.npz")
        child = subprocess.Popen(call(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.path.exists(file):
            time.sleep(0.05)
        time.sleep(took / 4)
        killed = child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        base = sqlite3.connect(file)
        done = base.execute("SELECT count(*) FROM steps").fetchone()[0]
        base.close()
        rest = subprocess.run(call(file), capture_output=True, text=True, check=True).stdout.strip()
    print(
        f"\nkilled while running: {killed}, after {done} batches; resumed: {rest}\nleft alone: {whole}\nequal: {rest == whole}",
        flush=True,
    )


STUDIES = {study.__name__: study for study in (variance, errors, spread, speed, sizes, workers, resume, memory)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"among {', '.join(STUDIES)}")
    warnings.filterwarnings("ignore", message="leakage_corrected", category=UserWarning)  # one cluster a side, by design
    for study in parser.parse_args().studies or STUDIES:
        STUDIES[study]()
