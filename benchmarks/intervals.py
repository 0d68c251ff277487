"""How often mean ± 1.96 se holds the loss on fresh data, in simulation. A demand of benchmarks/linear.py.

Two targets: the loss of the very fit (what users want), and its expectation over data sets of that size (what
leave-one-out is unbiased for, up to one row). Both from fresh data, 20,000 rows a replication.
"""

from functools import partial

import numpy as np

import leaveout as lo

GROUP = 8  # rows a group


def study(replications: int = 300) -> list[dict]:
    """Coverage for independent rows, and for groups beside the standard error that takes their rows as independent."""
    rows = []
    for loss in ("logistic", "squared"):
        for kind, n in (("rows", 60), ("rows", 200), ("groups", 240), ("groups", 800)):
            runs = np.array([replication(loss, kind, n, seed) for seed in range(replications)])
            mean, se, naive, fresh = runs.T
            for target, value in (("this fit's loss", fresh), ("expected loss", fresh.mean())):
                inside = partial(lambda mean, value, width: (abs(mean - value) <= 1.96 * width).mean(), mean, value)
                row = {"loss": loss, "units": kind, "n": n, "target": target, "coverage": inside(se)}
                row |= {"naive rows": inside(naive)} if kind == "groups" else {}
                row |= {"bias / se": (mean - value).mean() / se.mean()}
                rows.append(row | {"se / sd of mean": se.mean() / mean.std(ddof=1)})
    return rows


def replication(loss: str, kind: str, n: int, seed: int) -> tuple[float, float, float, float]:
    """Held-out mean, its standard error, that were rows independent, and the loss on fresh data."""
    rng = np.random.default_rng(seed)
    X, y, labels = simulated(rng, loss, kind, n)
    fit = lo.fit(lo.GLM(X, y, loss, lo.penalties.Ridge(1.0)))
    estimate = lo.cross_validate(fit, lo.leave_one_out(n) if kind == "rows" else lo.groups(labels))
    X, y, _ = simulated(rng, loss, kind, 20_000)
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]
    fresh = np.logaddexp(0, eta) - y * eta if loss == "logistic" else 0.5 * (y - eta) ** 2
    return estimate.mean, estimate.se, estimate.per_unit().std(ddof=1) / np.sqrt(n), fresh.mean()


def simulated(rng: np.random.Generator, loss: str, kind: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = np.arange(n) // (GROUP if kind == "groups" else 1)
    X = rng.standard_normal((n, 4))
    eta = X @ np.array([1.0, -0.5, 0.5, 0.0])
    if kind == "groups":  # one covariate and a random effect are common to a group
        X[:, 3] = rng.standard_normal(labels.max() + 1)[labels]
        eta = eta + 1.5 * rng.standard_normal(labels.max() + 1)[labels]
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float) if loss == "logistic" else eta + rng.standard_normal(n)
    return X, y, labels
