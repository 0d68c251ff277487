"""How often do 95 % intervals hold the truth? Coverage in simulation, against fresh data from the
same law.

    python benchmarks/intervals.py [suite mean chains fields smooth responses sets] [--quick]
        [--replications 200]

suite
intervals for the mean loss of a linear model on the simulated data of Schulz-Kümpel, Fischer,
Hornung, Boulesteix,
            Nagler & Bischl (arXiv 2409.18836); the target is the loss of the very fit. Left out are
            data drawn from networks that were trained on real ones, or by covariances of gene
            expressions, and chen_10_null, on which they found that nothing works
mean
mean ± 1.96 se of rows and of groups. There are two targets: the loss of the very fit (what users
want), and its
            expectation over data sets of that size (what leave-one-out is unbiased for, up to one
            row)
chains      the same over simulated sequences, with naive and with block standard errors
fields      the same over simulated fields, with naive standard errors and with blocks of neighbours
smooth      intervals of smooth terms under autocorrelated errors
responses
intervals for one new response per data set, so that data sets are independent; and for firms that
are new sets
sets of classes for one new row per data set; two quantiles, one level in each group, and a
transform

Fresh data have 20,000 rows a replication in `suite` and `mean`. The opponents are the usual
intervals: Student's t over ten folds, standard errors that take rows or steps as independent, and
quantiles of the fit's own residuals.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import joblib
import numpy as np
import pandas as pd
import scipy
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn.model_selection import KFold
from speed.common import grid, main, show, sticky

import leaveout as lo

GROUP = 8  # rows a group
FRESH = 20_000


def bates(
    rng: np.random.Generator, n: int, p: int, classes: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Normal features, of which five matter."""
    X = rng.standard_normal((n, p))
    eta = X[:, :5].sum(1)
    return X, (rng.random(n) < scipy.special.expit(eta)).astype(
        float
    ) if classes else eta + rng.standard_normal(n)


def friedman(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """No line: y = 10 sin(π x₁x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅ + noise."""
    X = rng.random((n, 10))
    mean = (
        10 * np.sin(np.pi * X[:, 0] * X[:, 1])
        + 20 * (X[:, 2] - 0.5) ** 2
        + 10 * X[:, 3]
        + 5 * X[:, 4]
    )
    return X, mean + rng.standard_normal(n)


def chen(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten features each, more and more noisy, of six hidden variables.

    Three of these matter, and not linearly.
    """
    v = rng.random((n, 6))
    y = (
        0.25 * np.exp(4 * v[:, 0])
        + 4 * scipy.special.expit(20 * (v[:, 1] - 0.5))
        + 3 * v[:, 2]
        + 0.2 * rng.standard_normal(n)
    )
    noise = 0.01 + 0.5 * np.arange(10) / 9
    return (v[:, :, None] + noise * (0.3 + rng.standard_normal((n, 6, 10)))).reshape(n, 60), y


SUITE: dict[str, tuple[Callable, str, tuple[int, ...]]] = {
    "bates_regr_20": (partial(bates, p=20), "squared", (100, 500)),
    "bates_regr_100": (partial(bates, p=100), "squared", (500,)),
    "friedman1": (friedman, "squared", (100, 500)),
    "chen_10": (chen, "squared", (500,)),
    "bates_classif_20": (partial(bates, p=20, classes=True), "logistic", (500,)),
}


def folds(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    """What is usual: Student's t over ten folds."""
    cv = lo.cross_validate(fit, lo.kfold(k=10, rng=seed), audit=0)
    each = np.array([cv.losses[cv.plan.refit == k].mean() for k in range(10)])
    half = scipy.stats.t.ppf(0.975, 9) * each.std(ddof=1) / np.sqrt(10)
    return each.mean() - half, each.mean() + half


def corrected(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    found = lo.cross_validate(fit, lo.random_subsets(n, 0.1, 25, rng=seed), audit=0).interval(
        method="corrected"
    )
    return found.low, found.high


def every_row(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    del seed
    found = lo.cross_validate(fit, lo.leave_one_out(), audit=0).interval(method="naive")
    return found.low, found.high


def nested(fit: lo.Fit, n: int, seed: int) -> tuple[float, float]:
    del n
    found = lo.validation.nested(fit, num_folds=10, num_repeats=10, rng=seed)
    return found.low, found.high


KINDS = {
    "t over ten folds": folds,
    "naive, rows": every_row,
    "corrected, 25 × 10 %": corrected,
    "nested, 10 × 10 folds": nested,
}


def suite(replications: int) -> list[dict]:
    """Coverage at 95 %, of the loss of each fit."""
    rows = []
    for name, (draw, loss, sizes) in SUITE.items():
        for n in sizes:
            found: dict[str, list] = {kind: [] for kind in KINDS}
            for seed in range(replications):
                rng = np.random.default_rng(seed)
                fit = lo.fit(lo.GLM(*draw(rng, n), loss))
                fresh = loss_of(fit, loss, *draw(rng, FRESH))
                for kind, interval in KINDS.items():
                    start = time.perf_counter()
                    low, high = interval(fit, n, seed)
                    found[kind].append(
                        (low <= fresh <= high, high - low, time.perf_counter() - start)
                    )
            for kind, each in found.items():
                covered, width, seconds = np.array(each, float).T
                row = {
                    "data": name,
                    "n": n,
                    "interval": kind,
                    "covered": covered.mean(),
                    "width": np.median(width),
                }
                rows.append(row | {"seconds": np.median(seconds)})
    return rows


def loss_of(fit: lo.Fit, loss: str, X: np.ndarray, y: np.ndarray) -> float:
    """The mean loss on fresh data."""
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]
    return float(
        np.mean(np.logaddexp(0, eta) - y * eta if loss == "logistic" else 0.5 * (y - eta) ** 2)
    )


def mean_coverage(replications: int = 300) -> list[dict]:
    """Coverage for independent rows, and for groups beside the standard error that takes their rows
    as independent.
    """
    rows = []
    for loss in ("logistic", "squared"):
        for kind, n in (("rows", 60), ("rows", 200), ("groups", 240), ("groups", 800)):
            runs = np.array([replication(loss, kind, n, seed) for seed in range(replications)])
            mean, se, naive, fresh = runs.T
            for target, value in (("this fit's loss", fresh), ("expected loss", fresh.mean())):
                inside = partial(
                    lambda mean, value, width: (abs(mean - value) <= 1.96 * width).mean(),
                    mean,
                    value,
                )
                row = {
                    "loss": loss,
                    "units": kind,
                    "n": n,
                    "target": target,
                    "coverage": inside(se),
                }
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
    X, y, _ = simulated(rng, loss, kind, FRESH)
    fresh = loss_of(fit, loss, X, y)
    return estimate.mean, estimate.se, estimate.per_unit().std(ddof=1) / np.sqrt(n), fresh


def simulated(
    rng: np.random.Generator, loss: str, kind: str, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = np.arange(n) // (GROUP if kind == "groups" else 1)
    X = rng.standard_normal((n, 4))
    eta = X @ np.array([1.0, -0.5, 0.5, 0.0])
    if kind == "groups":  # one covariate and a random effect are common to a group
        X[:, 3] = rng.standard_normal(labels.max() + 1)[labels]
        eta = eta + 1.5 * rng.standard_normal(labels.max() + 1)[labels]
    y = (
        (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)
        if loss == "logistic"
        else eta + rng.standard_normal(n)
    )
    return X, y, labels


# of the sequences whose intervals are counted
STATES = {"mean": np.array([0.0, 1.5]), "sd": np.array([1.0, 2.0])}


def chains(quick: bool) -> None:
    """Coverage of 95 % intervals over simulated sequences, naive and block.

    The truth is the expected held-out loss under the simulating model at the fitted parameters:
    that of the very fit, on a fresh long sequence with the same share and pattern of steps unseen,
    each scored given all others that are seen.
    """
    rows = []
    for stay in (0.7, 0.97):
        for steps, ahead in ((300, 1_000),) if quick else ((1_000, 50_000), (5_000, 100_000)):
            runs = [one_chain(stay, steps, ahead, seed) for seed in range(4 if quick else 100)]
            for scheme in ("at random", "blocks"):
                mean, se, naive, fresh = np.array([run[scheme] for run in runs]).T
                there = np.isfinite(se)
                row = {
                    "stays": stay,
                    "T": steps,
                    "folds": scheme,
                    "naive": np.mean(abs(mean - fresh) <= 1.96 * naive),
                }
                inside = abs(mean - fresh)[there] <= 1.96 * se[there]
                row |= {
                    "block": inside.mean() if there.any() else np.nan,
                    "block available": there.mean(),
                }
                row |= {"bias / sd": (mean - fresh).mean() / (mean - fresh).std(ddof=1)}
                sd = (mean - fresh).std(ddof=1)
                rows.append(
                    row
                    | {"naive se / sd": naive.mean() / sd, "block se / sd": se[there].mean() / sd}
                )
    title = f"coverage: of mean ± 1.96 se, {len(runs)} sequences of two states, each left out once in ten folds"
    show(f"{title}; the truth is the expected loss of the very fit", rows)


def one_chain(
    stay: float, steps: int, ahead: int, seed: int
) -> dict[str, tuple[float, float, float, float]]:
    """Held-out mean, its block and its naive standard error, and the mean on a fresh sequence; by
    scheme.
    """
    rng = np.random.default_rng(seed)
    draw = lambda path: STATES["mean"][path] + STATES["sd"][path] * rng.standard_normal(len(path))
    x, fresh = draw(sticky(rng, steps, 2, stay)), draw(sticky(rng, ahead, 2, stay))
    moves = np.array([[stay, 1 - stay], [1 - stay, stay]])
    start = {
        "initial": [0.5, 0.5],
        "transition": moves,
        "mean": STATES["mean"][:, None],
        "covariance": STATES["sd"][:, None] ** 2,
    }
    fit = lo.fit(lo.HMM(x[:, None], lo.emissions.Gaussian(), 2), start)
    elsewhere = replace(
        fit,
        quadratic=replace(
            fit.quadratic, objective=lo.HMM(fresh[:, None], lo.emissions.Gaussian(), 2)
        ),
    )
    plans = {
        "at random": (lo.kfold(steps, 10, rng=seed), lo.kfold(ahead, 10, rng=seed)),
        "blocks": (lo.blocks(k=10), lo.groups(np.arange(ahead) // (steps // 10) % 10)),
    }
    found = {}
    for scheme, (plan, there) in plans.items():
        estimate = lo.cross_validate(fit, plan)
        naive = estimate.per_unit().std(ddof=1) / np.sqrt(steps)
        found[scheme] = (
            estimate.mean,
            estimate.se,
            naive,
            lo.cross_validate(elsewhere, there, strategy=lo.NoUpdate()).mean,
        )
    return found


STRIP = 10, 36  # sites across and along
FIELD_LAW = np.array([20.0, 30.0])  # rates of the two states whose intervals are counted


def fields(quick: bool) -> None:
    """Coverage of 95 % intervals over simulated fields, naive and by blocks of neighbours.

    The truth is the expected held-out loss under the simulating model at the fitted parameters:
    that of the very fit, on fresh fields, of whose sites as many are unseen and in the same
    pattern, each scored given all others that are seen.
    """
    rows = []
    for coupling in (0.4, 0.8):
        every = joblib.Parallel(n_jobs=-1)
        runs = every(
            joblib.delayed(one_field)(coupling, 2 if quick else 20, seed)
            for seed in range(2 if quick else 100)
        )
        for scheme in runs[0]:
            mean, se, naive, fresh = np.array([run[scheme] for run in runs]).T
            off, sd = abs(mean - fresh), (mean - fresh).std(ddof=1)
            row = {
                "β": coupling,
                "folds": scheme,
                "naive": np.mean(off <= 1.96 * naive),
                "blocks": np.mean(off <= 1.96 * se),
            }
            row |= {"bias / sd": (mean - fresh).mean() / sd, "naive se / sd": naive.mean() / sd}
            rows.append(row | {"block se / sd": se.mean() / sd})
    title = f"coverage: of mean ± 1.96 se, {len(runs)} fields of {STRIP[0]} by {STRIP[1]} sites, two states"
    show(
        f"{title}, each site left out once in ten folds; the truth is the expected loss of the very fit",
        rows,
    )


def one_field(
    coupling: float, ahead: int, seed: int
) -> dict[str, tuple[float, float, float, float]]:
    """Held-out mean, its block and its naive standard error, and the mean on fresh fields; by
    scheme.
    """
    edges, sites = grid(*STRIP), STRIP[0] * STRIP[1]
    make = lambda x: lo.MRF(x, edges, lo.emissions.Poisson(prior=None), 2, coupling=coupling)
    law = make(np.arange(sites, dtype=float))
    x = law.simulate({"rate": FIELD_LAW}, ahead + 1, rng=seed)[0]
    fit = lo.fit(make(x[0]), {"rate": FIELD_LAW})
    elsewhere = replace(fit, quadratic=replace(fit.quadratic, objective=make(x[1:])))
    found = {}
    for scheme, plan in {
        "at random": lo.kfold(sites, 10, rng=seed),
        "rows": lo.from_splits(KFold(10).split(x[0]), sites),
    }.items():
        estimate = lo.cross_validate(fit, plan)
        naive = estimate.per_unit().std(ddof=1) / np.sqrt(sites)
        fold = plan.refit[np.argsort(plan.index)]
        fresh = lo.cross_validate(
            elsewhere, lo.groups(np.tile(fold, ahead)), strategy=lo.NoUpdate()
        ).mean
        found[scheme] = estimate.mean, estimate.se, naive, fresh
    return found


def smooth(quick, replications):
    """Of 95 % intervals, on average over each term's values: a trend in time and a smooth effect of
    a random column, errors an autoregression of 0.6, 500 rows; every row left out with ten to each
    side, or by itself."""
    draws = 2 if quick else replications
    settings = {
        "Gaussian": ("squared", 0.4, 10),
        "Poisson": ("poisson", 0.3, 10),
        "Gaussian, leave-one-out": ("squared", 0.4, 0),
    }
    for name, (loss, sd, h) in settings.items():
        hits = []
        for seed in range(draws):
            hits.append(_covered(seed, loss, sd, h))
            if seed % 50 == 49 or seed == draws - 1:
                mean, error = np.mean(hits, axis=0), np.std(hits, axis=0) / np.sqrt(len(hits))
                each = [
                    f"{what} {m:.3f} ± {e:.3f}"
                    for what, m, e in zip(TOLD, mean, error, strict=True)
                ]
                print(f"{name}, {seed + 1} draws: {', '.join(each)}", flush=True)


TOLD = ("trend", "column", "trend as if independent", "column as if independent")


def _covered(seed, loss, sd, h, n=500):
    rng = np.random.default_rng(seed)
    t, z = np.arange(n) / n, rng.uniform(0, 1, n)
    error = sd * scipy.signal.lfilter([1], [1, -0.6], rng.standard_normal(n + 200))[200:]
    trend, effect = np.sin(2 * np.pi * t) + 0.8 * np.exp(-(((t - 0.6) / 0.12) ** 2)), np.cos(5 * z)
    eta = trend + effect + error
    y = eta if loss == "squared" else rng.poisson(np.exp(1 + eta - sd**2 / 2 / (1 - 0.36)))
    model = lo.Additive("y ~ s(t, k=20) + s(z)", pd.DataFrame({"t": t, "z": z, "y": y}), loss=loss)
    found = lo.smooth(model, lo.blocks(n, 1, buffer=h) if h else lo.leave_one_out(n))
    hits = []
    for fit in (found, found.fit):
        table = lo.tuning.curves(fit)
        for name, at, column, truth in (("s(t)", t, "t", trend), ("s(z)", z, "z", effect)):
            own = table[table.term == name]
            inside = [np.interp(at, own[column], own[end]) for end in ("low", "high")]
            hits.append(
                np.mean((inside[0] <= truth - truth.mean()) & (truth - truth.mean() <= inside[1]))
            )
    return hits


LEVEL = 0.9


def rows_alike(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, None]:
    """Rows of heavy tails, half as many features; the last one is new."""
    X = rng.standard_normal((41, 20))
    return X, X[:, :3].sum(1) + rng.standard_t(2, 41), None


def counts(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, None]:
    X = rng.standard_normal((61, 4))
    return X, rng.poisson(np.exp(1 + 0.5 * X[:, 0])).astype(float), None


def grouped(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A covariate and an effect that a group's rows, 1 to 12, share.

    The last row is of a new group.
    """
    label = np.r_[np.repeat(np.arange(20), rng.integers(1, 13, 20)), 20]
    X = np.c_[rng.standard_normal((len(label), 2)), rng.standard_normal((21, 3))[label]]
    return X, X[:, 0] + 2 * rng.standard_normal(21)[label] + rng.standard_normal(len(label)), label


SETS: dict[str, tuple[Callable, str]] = {
    "40 rows, 20 features, t of 2": (rows_alike, "squared"),
    "60 counts, 4 features": (counts, "poisson"),
    "20 groups of 1 to 12 rows": (grouped, "squared"),
}


def covered_responses(draw: Callable, loss: str, repeats: int) -> dict[str, np.ndarray]:
    """Whether each kind of interval holds the new response of each data set."""
    found: dict[str, list[bool]] = {}
    for seed in range(repeats):
        X, y, label = draw(np.random.default_rng(seed))
        fit = lo.fit(lo.GLM(X[:-1], y[:-1], loss))
        kinds: dict[str, dict] = {
            method: {"method": method} for method in ("plus", "minmax", "cv+")
        }
        if label is not None:
            kinds |= {
                f"{method}, groups": {"method": method, "groups": label[:-1]}
                for method in ("plus", "minmax")
            }
        for kind, how in kinds.items():
            low, high = lo.interval(fit, X[-1:], level=LEVEL, **how).iloc[0, 1:]
            found.setdefault(kind, []).append(low <= y[-1] <= high)
        residual = np.abs(
            y[:-1] - lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.NoUpdate())
        )
        away = np.abs(y[-1] - lo.interval(fit, X[-1:], level=LEVEL).prediction[0])
        found.setdefault("of the fit's residuals", []).append(away <= np.quantile(residual, LEVEL))
    return {kind: np.array(hits) for kind, hits in found.items()}


def firms() -> dict[str, float]:
    """Grunfeld's investments, every firm new in turn.

    The share that intervals by rows and by firms cover.
    """
    data = sm.datasets.grunfeld.load_pandas().data
    found: dict[str, list[float]] = {"rows": [], "firms": []}
    for firm in data.firm.unique():
        old, new = data[data.firm != firm], data[data.firm == firm]
        fit = lo.from_statsmodels(
            smf.ols("np.log(invest) ~ np.log(value) + np.log(capital)", old).fit()
        )
        for kind, labels in (("rows", None), ("firms", old.firm)):
            ends = lo.interval(fit, new, level=LEVEL, groups=labels)
            found[kind].append(float(np.log(new.invest).between(ends.low, ends.high).mean()))
    return {kind: float(np.mean(shares)) for kind, shares in found.items()}


def print_suite(quick: bool, replications: int) -> None:
    """The suite's table."""
    print(
        pd.DataFrame(suite(4 if quick else replications)).to_string(
            index=False, float_format="{:.3f}".format
        )
    )


def mean(quick: bool) -> None:
    """Coverage of mean ± 1.96 se."""
    count = 10 if quick else 300
    title = f"mean: of mean ± 1.96 se, {count} replications, p = 4; groups of {GROUP} rows with random effects"
    show(title, mean_coverage(count))


def responses(quick: bool) -> None:
    """Coverage of one new response a data set, and of the investments of new firms."""
    warnings.simplefilter("ignore")
    repeats, rows = (40 if quick else 200), []
    for name, (draw, loss) in SETS.items():
        for kind, hits in covered_responses(draw, loss, repeats).items():
            se = np.sqrt(LEVEL * (1 - LEVEL) / repeats)
            rows.append(
                {
                    "data": name,
                    "interval": kind,
                    "level": LEVEL,
                    "covered": hits.mean(),
                    "± of 90 %": round(se, 3),
                }
            )
    print(f"\n{repeats} data sets each\n{pd.DataFrame(rows).to_string(index=False)}")
    shares = ", ".join(f"{share:.3f} left out by {kind}" for kind, share in firms().items())
    print(f"\nInvestments of new firms that intervals of {LEVEL:.0%} cover: {shares}")


def three_classes(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping classes in a plane; the last row is new."""
    y = rng.integers(0, 3, 61)
    return rng.standard_normal((61, 2)) + 1.2 * np.array([[0, 0], [1, 0], [0, 1]])[y], y


def spreading(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A spread that grows with the feature, three times as large in the rare one of two groups.

    The last row is new.
    """
    x, rare = rng.uniform(0, 4, 101), rng.random(101) < 0.3
    return (
        x[:, None],
        2 * x + (0.3 + x) * np.where(rare, 3.0, 1.0) * rng.standard_normal(101),
        np.where(rare, "rare", "usual"),
    )


def covered_sets(seed: int) -> dict[str, tuple[bool, float]]:
    """Whether each kind of set or interval holds the new response of a data set, and its size."""
    found = {}
    X, y = three_classes(np.random.default_rng(seed))
    fit = lo.fit(lo.GLM(X[:-1], y[:-1], "multinomial", lo.penalties.Ridge(1.0)))
    for method in ("plus", "cv+", "minmax"):
        for score in ("lac", "aps", "raps"):
            own = lo.prediction_sets(
                fit,
                X[-1:],
                level=LEVEL,
                method=method,
                score=score,
                rng=seed or 0,
                randomized=seed is not None,
            ).loc[0]
            found[f"{score}, {method}"] = own[y[-1]], own.sum()
    X, y, kind = spreading(np.random.default_rng(seed))
    quantiles = [lo.losses.Quantile(q, width=0.5) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    low, high = (lo.fit(lo.GLM(X[:-1], y[:-1], quantile)) for quantile in quantiles)
    usual = lo.fit(lo.GLM(X[:-1], y[:-1], "squared"))
    logged = lo.fit(lo.GLM(X[:-1], np.arcsinh(y[:-1]), "squared"))
    groups = {"groups": kind[:-1], "new_groups": kind[-1:]}
    kinds = {
        "two quantiles": lo.quantile_interval(low, high, X[-1:], level=LEVEL),
        "two quantiles, cv+": lo.quantile_interval(low, high, X[-1:], level=LEVEL, method="cv+"),
        "transform": lo.interval(logged, X[-1:], level=LEVEL, inverse=np.sinh),
        f"one level, {kind[-1]}": lo.interval(usual, X[-1:], level=LEVEL),
    }
    if (kind[:-1] == kind[-1]).sum() > LEVEL / (1 - LEVEL):
        kinds[f"each group, {kind[-1]}"] = lo.interval(usual, X[-1:], level=LEVEL, **groups)
    return found | {
        name: (t.low[0] <= y[-1] <= t.high[0], t.high[0] - t.low[0]) for name, t in kinds.items()
    }


def sets(quick: bool, replications: int) -> None:
    """Coverage and size of sets of classes, and of the other intervals."""
    repeats, found = 10 if quick else replications, dict[str, list[tuple[bool, float]]]()
    for seed in range(repeats):
        for name, own in covered_sets(seed).items():
            found.setdefault(name, []).append(own)
    rows = []
    for name, each in found.items():
        hits, size = np.array(each, float).T
        row = {
            "kind": name,
            "data sets": len(hits),
            "covered": hits.mean(),
            "± of 90 %": (LEVEL * (1 - LEVEL) / len(hits)) ** 0.5,
        }
        rows.append(row | {"median size": np.median(size), "mean size": size.mean()})
    show(f"one new row of each data set, level {LEVEL}", rows)


PARTS = {"suite": print_suite, "mean": mean, "chains": chains, "fields": fields, "smooth": smooth}
PARTS |= {"responses": responses, "sets": sets}

if __name__ == "__main__":
    main(PARTS, __doc__, quick=False, replications=200)
