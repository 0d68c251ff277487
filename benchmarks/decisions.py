"""What a decision rests upon: is a model better, what is its loss where it will be used, and do
intervals say so? Simulations, whose tables go into results/decisions.md.

    python benchmarks/decisions.py [differences target ...] [--quick] [--sets 1000]

differences
95 % intervals of `lo.compare(method=)` for the difference of two models' risks, of lasso λ against
1.1 λ, ridge 5 against 5.5 and lasso λ against 3 λ (arXiv 2508.04409), over ten laws, groups and
series; sets of models that are not told apart; BCa intervals of the mean loss and of R². The truth
is the risk of the folds' refits, from moments of a million fresh rows; "covered, mean" is of its
mean over data sets. An interval that is marked as unreliable is counted apart

clusters
How often tests of a coefficient that is zero, at 5 %, reject it over 6, 10 and 20 clusters of
unequal size, by `few_clusters()`: of a feature of rows and clusters, of treatments of half the
clusters and of two of them, in least squares and logistic regressions

recalibrate
probabilities of an overfitted logistic regression, recalibrated on leave-one-out predictions, and
by scikit-learn's CalibratedClassifierCV in five folds: the mean distance from the true
probabilities of 2,000 fresh rows, its spread over data sets, and the honest loss against theirs

target
the loss in a population whose first feature is larger, by `Estimate.target` and unweighted, and
intervals for responses there (shifted.py)

The full run is made for three hours of two cores, --quick with 20 sets a cell for ten minutes.
Cells of a full run are kept in results/decisions.jsonl and are not made again for as many sets: a
run that was stopped goes on, and its tables hold the cells that there are.
"""

import json
import warnings
from collections.abc import Callable, Hashable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import pandas as pd
import scipy
import shifted
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from speed.common import main

import leaveout as lo

RESULTS = Path(__file__).parent / "results/decisions.md"
CELLS = RESULTS.with_suffix(".jsonl")
FRESH = 1_000_000
Rows = tuple[np.ndarray, np.ndarray]
P = 10  # features, of which the first five matter
THETA = np.repeat([1.0, 0.0], P // 2)
GROUP = 6  # rows a group
AUTOREGRESSION = 0.5  # of features and errors of a series
COLUMNS = ["method", "risk", "se", "difference", "marked", "instability", "half"]
REPEATS = {"nested": 10, "bootstrap": 50}  # fewer than by default, for their time
METHODS = ("none", "nested", "bootstrap", "corrected", "conservative")
SIZES = (90, 300)


def write(part: str, tables: dict[str, list[dict]], about: str) -> None:
    """Replace a part's tables in the file of results."""
    text = "# Decisions\n"
    if RESULTS.exists():
        text = RESULTS.read_text()
    sections = dict(section.split("\n", 1) for section in text.split("\n## ")[1:])
    body = f"\n{about}\n"
    for title, rows in tables.items():
        body += f"\n{title}\n\n{pd.DataFrame(rows).to_markdown(index=False, floatfmt='.3g')}\n"
    sections[part] = body
    text = "# Decisions\n\nMade by `python benchmarks/decisions.py`.\n"
    text += "".join(f"\n## {name}\n{section.rstrip()}\n" for name, section in sections.items())
    RESULTS.write_text(text)
    print(body, flush=True)


def cell(key: list[Hashable], sets: int, quick: bool, make: Callable[[], list[dict]]) -> list[dict]:
    """The rows of a cell, made once for so many sets."""
    if quick:
        return make()
    if CELLS.exists():
        for line in CELLS.read_text().splitlines():
            record = json.loads(line)
            if record["cell"] == key and record["sets"] == sets:
                return record["rows"]
    rows = make()
    with CELLS.open("a") as file:
        file.write(json.dumps({"cell": key, "sets": sets, "rows": rows}) + "\n")
    return rows


class Law(NamedTuple):
    """A law of rows: features, noise given the features, and the mean given the features."""

    features: Callable[[np.random.Generator, int], np.ndarray]
    noise: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray] = lambda X: X @ THETA

    def draw(self, rng: np.random.Generator, n: int) -> Rows:
        X = self.features(rng, n)
        return X, self.mean(X) + self.noise(rng, X)


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal((n, P))


def correlated(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.sqrt(0.5) * (normal(rng, n) + rng.standard_normal((n, 1)))


def standard(rng: np.random.Generator, X: np.ndarray) -> np.ndarray:
    return rng.standard_normal(len(X))


LAWS = {
    "normal": Law(normal, standard),
    "t of 5, noise": Law(normal, lambda rng, X: rng.standard_t(5, len(X))),
    "Laplace noise": Law(normal, lambda rng, X: rng.laplace(0, 1, len(X))),
    "skewed noise": Law(normal, lambda rng, X: rng.exponential(1, len(X)) - 1),
    "uneven noise": Law(normal, lambda rng, X: np.exp(X[:, 0] / 2) * standard(rng, X)),
    "5 % outliers": Law(
        normal, lambda rng, X: np.where(rng.random(len(X)) < 0.05, 5, 1) * standard(rng, X)
    ),
    "correlated": Law(correlated, standard),
    "t of 5, features": Law(lambda rng, n: rng.standard_t(5, (n, P)), standard),
    "binary features": Law(lambda rng, n: rng.integers(0, 2, (n, P)) - 0.5, standard),
    "no line": Law(normal, standard, lambda X: X @ THETA + X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2])),
}


def grouped(rng: np.random.Generator, n: int) -> Rows:
    """Rows of groups that share half of the features' and of the noise's variance."""
    label = np.arange(n) // GROUP
    count = label[-1] + 1
    X = np.sqrt(0.5) * (normal(rng, n) + normal(rng, count)[label])
    return X, X @ THETA + np.sqrt(0.5) * (
        rng.standard_normal(n) + rng.standard_normal(count)[label]
    )


def series(rng: np.random.Generator, n: int) -> Rows:
    """Steps whose features and noise are autoregressive, of variance one."""
    values = rng.standard_normal((n, P + 1))
    for t in range(1, n):
        values[t] *= np.sqrt(1 - AUTOREGRESSION**2)
        values[t] += AUTOREGRESSION * values[t - 1]
    return values[:, :P], values[:, :P] @ THETA + values[:, P]


DRAWS: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    **{name: law.draw for name, law in LAWS.items()},
    "groups of 6": grouped,
    "series": series,
}


@cache
def second_moments(law: str) -> np.ndarray:
    """Moments of (x, y) of fresh rows; those of groups and series are those of one normal row."""
    rows = np.column_stack(DRAWS.get(law, DRAWS["normal"])(np.random.default_rng(12), FRESH))
    return rows.T @ rows / FRESH


def risks(law: str, theta: np.ndarray) -> np.ndarray:
    """Risks ½E(y − xᵀθ)² of many θ."""
    residual = np.column_stack([-theta, np.ones(len(theta))])
    return 0.5 * np.einsum("ki,ij,kj->k", residual, second_moments(law), residual)


def penalties(n: int) -> dict[str, dict[str, tuple[str, float]]]:
    """The pairs of models of every problem."""
    level = np.sqrt(n * 2 * np.log(P))
    return {
        "lasso λ, 1.1 λ": {"a": ("Lasso", level), "b": ("Lasso", 1.1 * level)},
        "ridge 5, 5.5": {"a": ("Ridge", 5.0), "b": ("Ridge", 5.5)},
        "lasso λ, 3 λ": {"a": ("Lasso", level), "b": ("Lasso", 3 * level)},
    }


def cross_validated(
    X: np.ndarray, y: np.ndarray, plan: lo.Plan, models: dict[str, tuple[str, float]]
) -> tuple[dict[str, lo.Estimate], dict[str, np.ndarray]]:
    """Estimates of models by their penalties, and the coefficients of the folds' refits."""
    fits = {
        name: lo.fit(lo.GLM(X, y, "squared", getattr(lo.penalties, kind)(size), intercept=False))
        for name, (kind, size) in models.items()
    }
    estimates = {name: lo.cross_validate(fit, plan, audit=0) for name, fit in fits.items()}
    theta = {
        name: np.asarray(lo.fold_parameters(fit, plan, strategy=lo.Exact(1e-6))["coef"])
        for name, fit in fits.items()
    }
    return estimates, theta


def plan_of(law: str, n: int) -> lo.Plan:
    """Ten folds, of rows, groups or steps."""
    if law == "groups of 6":
        return lo.groups(np.arange(n) // GROUP, 10)
    if law == "series":
        return lo.blocks(n, k=10)
    return lo.kfold(n, 10)


def one_difference(
    law: str, n: int, problem: str, methods: tuple[str, ...], seed: int
) -> list[dict]:
    """What the intervals of one data set say."""
    warnings.simplefilter("ignore")
    X, y = DRAWS[law](np.random.default_rng(seed), n)
    estimates, theta = cross_validated(X, y, plan_of(law, n), penalties(n)[problem])
    risk = {name: risks(law, values).mean() for name, values in theta.items()}
    rows = []
    for method in methods:
        asked = None if method == "none" else method
        try:
            table = lo.compare(estimates, method=asked, num_repeats=REPEATS.get(method), rng=seed)
        except ValueError:  # a series of too few blocks
            continue
        line = table.iloc[1]
        sign = 1.0 if table.index[1] == "b" else -1.0
        row = {"method": method, "risk": risk["b"] - risk["a"], "se": line["se_difference"]}
        row |= {"difference": sign * line["difference"], "marked": False}
        half = 1.96 * line["se_difference"]
        if asked is not None:
            half = line["high"] - line["difference"]
            row |= {"marked": bool(line["unreliable"]), "instability": line["instability"]}
        if not np.isnan(half):  # of a series too short for a standard error
            rows.append(row | {"half": half})
    return rows


def summary(rows: pd.DataFrame) -> pd.Series:
    """The rates of a cell: of holding the risks of the folds' refits, and their mean over sets."""
    error = rows.difference - rows.risk
    held = error.abs() <= rows.half
    columns = {"sets": len(rows), "covered": held.mean(), "marked": rows.marked.mean()}
    columns |= {"covered, not marked": held[~rows.marked].mean()}
    columns |= {"covered, mean": ((rows.difference - rows.risk.mean()).abs() <= rows.half).mean()}
    columns |= {"SD of z": (error / rows.se).std()}
    columns |= {"instability": rows.get("instability", pd.Series(dtype=float)).median()}
    return pd.Series(columns | {"width": 2 * rows.half.median()})


def one_set(n: int, seed: int) -> dict:
    """Whether the best of seven ridges and lassos is in the set, and how large it is."""
    warnings.simplefilter("ignore")
    X, y = DRAWS["normal"](np.random.default_rng(seed), n)
    models = {f"Ridge {size}": ("Ridge", size) for size in (1.0, 5.0, 20.0, 80.0)}
    models |= {f"Lasso {size}": ("Lasso", size) for size in (2.0, 10.0, 40.0)}
    estimates, theta = cross_validated(X, y, plan_of("normal", n), models)
    risk = {name: risks("normal", values).mean() for name, values in theta.items()}
    best = lo.compare(estimates).best_set(0.95)
    return {"held": min(risk, key=lambda name: risk[name]) in best.index, "size": len(best)}


def one_measure(law: str, n: int, seed: int) -> list[dict]:
    """Whether intervals of the mean loss and of R² hold those of the folds' refits."""
    warnings.simplefilter("ignore")
    X, y = DRAWS[law](np.random.default_rng(seed), n)
    plan = plan_of(law, n)
    fit = lo.fit(lo.GLM(X, y, "squared", intercept=False))
    estimate = lo.cross_validate(fit, plan, audit=0, metric="r2")
    theta = np.asarray(lo.fold_parameters(fit, plan)["coef"])
    risk = risks(law, theta).mean()
    moments = second_moments(law)
    mean = DRAWS[law](np.random.default_rng(12), FRESH)[1].mean()
    truth = {None: risk, "r2": 1 - 2 * risk / (moments[-1, -1] - mean**2)}
    rows = []
    for metric, value in truth.items():
        usual = estimate.interval(metric=metric)
        bca = estimate.confidence_interval(method="bca", metric=metric, num_resamples=200)
        for interval in (usual, bca):
            row = {"measure": metric or "mean loss", "method": interval.method}
            rows.append(row | {"held": interval.low <= value <= interval.high})
    return rows


def differences(quick: bool, sets: int) -> None:
    """Coverage of intervals of differences, of sets of models, and of measures."""
    laws = [*DRAWS]
    if quick:
        laws = ["normal", "skewed noise", "groups of 6", "series"]
    every = joblib.Parallel(n_jobs=-1)

    def pair(n: int, law: str, problem: str) -> list[dict]:
        methods = METHODS if law == "normal" else METHODS[:2]
        one = partial(one_difference, law, n, problem, methods)
        runs = every(joblib.delayed(one)(seed) for seed in range(sets))
        frame = pd.DataFrame([row for run in runs for row in run], columns=COLUMNS)
        place = {"problem": problem, "law": law, "n": n}
        return [
            place | {"method": method} | summary(part).to_dict()
            for method, part in frame.groupby("method", sort=False)
        ]

    def best(n: int) -> list[dict]:
        runs = pd.DataFrame(every(joblib.delayed(one_set)(n, seed) for seed in range(sets)))
        row = {"n": n, "sets": sets, "best in the set": runs.held.mean()}
        return [row | {"models in it": runs["size"].mean()}]

    def measure(law: str, n: int) -> list[dict]:
        count = max(sets // 5, 5)
        runs = every(joblib.delayed(one_measure)(law, n, seed) for seed in range(count))
        frame = pd.DataFrame([row for run in runs for row in run])
        return [
            {"law": law, "n": n, "measure": of, "interval": method}
            | {"sets": len(part), "covered": part.held.mean()}
            for (of, method), part in frame.groupby(["measure", "method"], sort=False)
        ]

    set_rows = [row for n in SIZES for row in cell(["best", n], sets, quick, partial(best, n))]
    measure_rows = [
        row
        for law in ("normal", "skewed noise")
        for n in (SIZES[:1] if quick else SIZES)
        for row in cell(["measure", law, n], sets, quick, partial(measure, law, n))
    ]
    rows = []
    for n in SIZES:
        for law in laws:
            for problem in penalties(n):
                make = partial(pair, n, law, problem)
                rows += cell(["difference", n, law, problem], sets, quick, make)
            _write_differences(quick, sets, rows, set_rows, measure_rows)


def _write_differences(
    quick: bool, sets: int, rows: list[dict], set_rows: list[dict], measure_rows: list[dict]
) -> None:
    tables = {
        "Intervals of 95 % for the difference of two models' risks.": rows,
        "`best_set(.95)` of four ridges and three lassos.": set_rows,
        "Intervals of 95 % for one model's measures.": measure_rows,
    }
    chance = 1.96 * (0.0475 / sets) ** 0.5
    note = f"{sets:,} data sets a cell: a coverage of .95 is within {chance:.2f} by chance."
    repeats = ", ".join(f"{method} {count}" for method, count in REPEATS.items())
    note += f" Repeats: {repeats}."
    made = len({(row["problem"], row["law"], row["n"]) for row in rows})
    total = len(DRAWS) * sum(len(penalties(n)) for n in SIZES)
    if quick:
        note = f"A quick run, to see that it works; not to be relied upon. {note}"
    elif made < total:
        note += (
            f" Here are {made} of {total} problems, laws and sizes: the command goes on from these."
        )
    write("differences", tables, note)


def clustered(design: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The feature whose coefficient is zero, the response, and the cluster of each row.

    The largest cluster has seven times as many rows as the smallest.
    """
    rng = np.random.default_rng(seed)
    share = np.exp(2 * np.arange(count) / count)
    sizes = np.maximum(4, np.rint(30 * count * share / share.sum())).astype(int)
    label = np.repeat(np.arange(count), sizes)
    treated = rng.permutation(count)[: 2 if "two" in design else count // 2]
    x = np.isin(label, treated) * 1.0
    if "rows" in design:
        x = rng.standard_normal(count)[label] + rng.standard_normal(len(label))
    mean = 0.5 * rng.standard_normal(count)[label]
    y = mean + rng.standard_normal(len(label))
    if "logistic" in design:
        y = (rng.logistic(size=len(label)) < mean) * 1.0
    return x, y, label


def rejections(design: str, count: int, seed: int) -> pd.Series:
    """Whether each test rejects at 5 %."""
    x, y, label = clustered(design, count, seed)
    loss = "logistic" if "logistic" in design else "squared"
    fit = lo.fit(lo.GLM(x[:, None], y, loss))
    table = lo.covariance(fit, groups=label).few_clusters(num_resamples=999, rng=seed)
    return table.loc["x0", "P>|t|"] <= 0.05


def clusters(quick: bool, sets: int) -> None:
    """Sizes of tests over few clusters."""
    warnings.simplefilter("ignore")
    rows = []
    every = joblib.Parallel(n_jobs=-1)
    sets = 20 if quick else sets
    designs = ("rows", "half treated", "two treated", "rows, logistic", "half treated, logistic")
    for design in designs:
        for count in (6, 10, 20):

            def rates(design: str = design, count: int = count) -> list[dict]:
                draws = every(
                    joblib.delayed(rejections)(design, count, seed) for seed in range(sets)
                )
                shares = pd.concat(draws, axis=1).mean(axis=1)
                return [{"feature": design, "clusters": count, **(100 * shares)}]

            rows += cell(["clusters", design, count], sets, quick, rates)
    about = f"{sets:,} data sets a row, 999 draws; per cent of tests at 5 % that reject a coefficient of zero."
    write("clusters", {"": rows}, about)


def one_recalibration(n: int, seed: int) -> list[dict]:
    """Distances of recalibrated from true probabilities, and of honest from fresh losses."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(seed)
    slope = 2 * THETA / np.sqrt(P)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        X = normal(rng, size)
        truth = scipy.special.expit(X @ slope)
        return X, truth, (rng.random(size) < truth).astype(float)

    X, _, y = draw(n)
    fresh, truth, _ = draw(2000)
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1)))
    brier = lambda p: np.mean(truth * (1 - p) ** 2 + (1 - truth) * p**2)
    rows = []

    def add(rule: str, p: np.ndarray, honest: float = np.nan) -> None:
        error = np.abs(p - truth).mean()
        rows.append({"rule": rule, "error": error, "gap": honest - brier(p)})

    add("none", lo.predict(fit, fresh).to_numpy())
    for method in ("platt", "beta", "isotonic", "venn_abers"):
        found = lo.clinical.recalibrate(fit, method=method)
        add(method, found.predict(fresh).to_numpy(), found.table.loc["Brier", "after"])
    for method in ("sigmoid", "isotonic"):
        for ensemble in (True, False):
            model = CalibratedClassifierCV(
                LogisticRegression(C=10.0), method=method, cv=5, ensemble=ensemble
            ).fit(X, y)
            add(
                f"scikit-learn's {method}, {'mean of five' if ensemble else 'one model'}",
                model.predict_proba(fresh)[:, 1],
            )
    return rows


def recalibrate(quick: bool, sets: int) -> None:
    """Calibration errors, their spread, and what honest losses are worth."""
    every = joblib.Parallel(n_jobs=-1)
    rows = []
    sizes = SIZES[:1] if quick else (*SIZES, 1000)
    sets = min(sets, 200)

    def rules(n: int) -> list[dict]:
        runs = every(joblib.delayed(one_recalibration)(n, seed) for seed in range(sets))
        frame = pd.DataFrame([row for run in runs for row in run])
        return [
            {"n": n, "sets": len(part), "rule": rule, "error": part.error.mean()}
            | {"its SD": part.error.std(), "honest − fresh Brier": part.gap.mean()}
            | {"SD": part.gap.std()}
            for rule, part in frame.groupby("rule", sort=False)
        ]

    note = "Mean distance from the true probabilities of 2,000 fresh rows."
    if quick:
        note = f"A quick run, to see that it works; not to be relied upon. {note}"
    for n in sizes:
        rows += cell(["recalibrate", n], sets, quick, partial(rules, n))
        write("recalibrate", {"Recalibrated probabilities.": rows}, note)


def target(quick: bool, sets: int) -> None:
    """The loss, and intervals for responses, in another population."""
    write("target", *shifted.tables(quick, sets))


PARTS = {
    "differences": differences,
    "clusters": clusters,
    "recalibrate": recalibrate,
    "target": target,
}

if __name__ == "__main__":
    import decisions  # under a name that workers can import, whose moments they keep

    main(decisions.PARTS, __doc__, quick=False, sets=1000)
