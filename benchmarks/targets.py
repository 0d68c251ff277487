"""Banded ridge regression of many targets, every run left out: `lo.tune` beside himalaya's random search (`scale.py targets`).

Rows of six runs, five bands of columns whose sizes differ within a band, targets whose explained variance (2 to 50 %) falls to
the bands in shares of their own, as many rows again that nobody sees before the end. Both choose penalties for each target by
the squared error of the runs left out, himalaya among 20 directions of its Dirichlet prior by 20 scales. Processor time.
"""

import time
from pathlib import Path

import numpy as np
from linear import show

import leaveout as lo

SIZES = {False: (10_000, 600), True: (500, 120)}  # targets, rows
RUNS, BANDS, COLUMNS, ROUNDS = 6, 5, 60, 4
SCALES = np.logspace(0, 6, 20)


def problem(targets: int, n: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((2 * n, COLUMNS)) * np.linspace(1.5, 0.3, COLUMNS) for _ in range(BANDS)]
    share = rng.dirichlet(np.full(BANDS, 0.5), targets) * rng.uniform(0.02, 0.5, (targets, 1))
    signal = [x @ rng.standard_normal((COLUMNS, targets)) for x in parts]
    y = sum(f / f.std(0) * np.sqrt(share[:, b]) for b, f in enumerate(signal))
    return parts, y + rng.standard_normal(y.shape) * np.sqrt(1 - share.sum(1))


def targets(quick: bool, out: Path) -> None:
    del out
    from himalaya.ridge import GroupRidgeCV
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import PredefinedSplit

    count, n = SIZES[quick]
    parts, y = problem(count, n)
    seen, run = [x[:n] for x in parts], np.repeat(np.arange(RUNS), n // RUNS)
    fresh = lambda coef: 0.5 * float(np.mean((y[n:] - np.concatenate(parts, axis=1)[n:] @ coef) ** 2))
    start = time.process_time()
    model, ends = lo.BandedRidge(dict(enumerate(seen)), y[:n], intercept=False), (SCALES[0], SCALES[-1])
    few = lo.tune(model, ends, lo.groups(run), trials=ROUNDS)
    soon = time.process_time() - start
    start = time.process_time()
    mine = lo.tune(model, ends, lo.groups(run))
    ours = time.process_time() - start
    print(f"\n{mine}")
    start = time.process_time()
    options = {"n_iter": 20, "alphas": SCALES, "progress_bar": False}
    groups, cv = np.repeat(np.arange(BANDS), COLUMNS), PredefinedSplit(run)
    peer = GroupRidgeCV(groups=groups, cv=cv, solver_params=options, random_state=0).fit(np.concatenate(seen, axis=1), y[:n])
    theirs = time.process_time() - start
    told = lambda what, found, seconds: {
        "what": what,
        "seconds": seconds,
        "held-out loss": found.mean.mean(),
        "fresh": fresh(found.parameters["coef"].T),
        "of its time": seconds / theirs,
        "target": 0.1,
    }
    best = -peer.cv_scores_.max(0).mean() / 2
    rows = [
        {"what": "himalaya", "seconds": theirs, "held-out loss": best, "fresh": fresh(peer.coef_)},
        told(f"lo.tune, {ROUNDS} rounds", few, soon),
        told("lo.tune", mine, ours),
    ]
    show(f"targets: {count} targets, {n} rows in {RUNS} runs, {BANDS} bands of {COLUMNS} columns", rows)
    worst, rng = 0.0, np.random.default_rng(1)
    some = rng.choice(count, min(30, count), replace=False)
    for t in some:
        told = np.empty(n)
        for k in range(RUNS):
            scale, keep = np.repeat(mine.alpha[t], COLUMNS) ** -0.5, run != k
            x = np.concatenate(seen, axis=1) * scale
            host = Ridge(1.0, fit_intercept=False, solver="svd").fit(x[keep], y[:n][keep, t])
            told[~keep] = 0.5 * (y[:n][~keep, t] - host.predict(x[~keep])) ** 2
        worst = max(worst, abs(told.mean() - mine.mean[t]))
    print(
        f"{len(some) * RUNS} refits by scikit-learn's Ridge: mean losses within {worst:.1g}; said {mine.error[some].max():.1g}"
    )
