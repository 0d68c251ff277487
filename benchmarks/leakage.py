"""Are the leakage estimator's errors right? Its standard errors against spreads, and resuming.

    python benchmarks/leakage.py [errors spread resume sizes]

errors
the predicted Monte-Carlo standard error against the spread over 100 re-bootstraps of one data set
spread     the data standard error against the spread over fresh data sets
sizes
coverage of the correction's interval by the size of clusters (the document's Eq. 1, a tenth
misfiled) and learner;
           SETS=n sets the number of data sets, 100 by default
resume
a run that was killed half-way and started again, against one that was left alone: the results must
be equal

The variance of Theorem 3.2 stands in `experiments/b3_variance.py`, and how fast
the estimator is in `benchmarks/speed/leakage.py`.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from speed.common import SIZE, corrected_two_clusters, main

from leaveout.leakage import (
    Injection,
    LeakageResult,
    RecordLeakage,
    leakage_corrected,
)


def errors() -> None:
    """The Monte-Carlo SE predicted in each of 100 re-bootstraps of one data set, against their
    spread.
    """
    for draws in (50, 200):
        runs = [corrected_two_clusters(seed, draws, 0) for seed in range(100)]
        predicted, spread = (
            np.mean([r.se_mc for r in runs]),
            np.std([r.solved.estimate for r in runs], ddof=1),
        )
        print(f"\nMonte-Carlo SE, 12 levels × {draws}: predicted {predicted:.4f}, spread over 100 re-bootstraps {spread:.4f}, "
              f"ratio {predicted / spread:.3f} (the spread itself is known to ± 7 %)", flush=True)  # fmt: skip


def spread() -> None:
    """The data SE against the spread over 100 fresh data sets, Monte-Carlo error in both."""
    runs = [corrected_two_clusters(seed, 200, 1000 + seed) for seed in range(100)]
    total = np.std([r.solved.estimate for r in runs], ddof=1)
    mc, data = (
        np.sqrt(np.mean([r.se_mc**2 for r in runs])),
        np.sqrt(np.mean([r.se_data**2 for r in runs])),
    )
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
    return leakage_corrected(
        KNeighborsRegressor(3), X, y, groups=filed, leakage=leakage, loss="mse", injection=injection
    )


RESUMED = """
import numpy as np, sys
from leaveout.leakage import Injection, RecordLeakage, leakage_corrected
from sklearn.tree import DecisionTreeRegressor
from leaveout._runtime import checkpoint
checkpoint.PAUSE = 0.2
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


LEARNERS = {
    "5-NN": (KNeighborsRegressor(5), Injection()),
    "forest": (RandomForestRegressor(20, random_state=0), Injection(num_levels=6, num_boot=4)),
    "ridge": (Ridge(1.0), Injection()),
}
SIZES = ((30, 50), (30, 10), (100, 10), (40, 25))  # clusters, and records in each on average


def sizes() -> None:
    """The correction against that of the true clusters, assigned to the same folds, over data sets
    in each cell.
    """
    count = int(os.environ.get("SETS", "100"))
    for name, (learner, injection) in LEARNERS.items():
        for clusters, size in SIZES:
            rows = np.array(
                [misfiled(learner, injection, clusters, size, seed) for seed in range(count)]
            )
            truth, correction, low, high = rows[np.isfinite(rows[:, 1])].T
            inside, above = np.sum((low <= truth) & (truth <= high)), np.sum(truth > high)
            print(
                f"{name}, {clusters} clusters of {size}: {count} sets, {count - len(truth)} refused; the interval holds the "
                f"truth in {inside} of {len(truth)} (truth above in {above}; without end {np.sum(np.isinf(high))}); median "
                f"width {np.median(high - low):.3f}; corrected {correction.mean() / truth.mean():.2f} of {truth.mean():.3f}",
                flush=True,
            )


def misfiled(
    learner: Any, injection: Injection, clusters: int, size: int, seed: int
) -> tuple[float, float, float, float]:
    """The true correction, the estimate and its interval for one draw of the document's Eq. 1 with
    exact rates.
    """
    rng, n = np.random.default_rng(seed), clusters * size
    centres, labels = 2 * rng.normal(size=(clusters, 3)), rng.normal(size=clusters)
    true = rng.integers(clusters, size=n)
    X, y = centres[true] + 0.7 * rng.normal(size=(n, 3)), labels[true] + 0.3 * rng.normal(size=n)
    filed = np.where(rng.random(n) < 0.1, rng.integers(clusters, size=n), true)
    fold = rng.permutation(clusters) % 5
    losses = np.zeros(n)
    for k in range(5):
        test = fold[true] == k
        losses[test] = (y[test] - learner.fit(X[~test], y[~test]).predict(X[test])) ** 2
    same, together = ((label[:, None] == label)[np.triu_indices(n, 1)] for label in (true, filed))
    both = np.sum(same & together)
    leakage = RecordLeakage.from_pairwise(both / together.sum(), both / same.sum())
    splits = [
        (np.flatnonzero(fold[filed] != k), np.flatnonzero(fold[filed] == k)) for k in range(5)
    ]
    result = leakage_corrected(
        learner,
        X,
        y,
        groups=filed,
        leakage=leakage,
        loss="mse",
        cv=splits,
        rng=seed,
        injection=injection,
    )
    return losses.mean() - result.naive, result.correction, *result.correction_interval()[:2]


PARTS = {part.__name__: part for part in (errors, spread, resume, sizes)}

if __name__ == "__main__":
    # one cluster a side, by design
    warnings.filterwarnings("ignore", message="leakage_corrected", category=UserWarning)
    main(PARTS, __doc__)
