"""Linked records: what `leakage_report` recommends, its intervals and its refusals, against the score on new people.

    python benchmarks/linkage.py [links] [designs] [imputed] [extrapolated] [duplicates] [singletons] [large] [--quick]
                                 [--draws N] [--keep FOLDER] [--only DESIGN ...]

Without names all of them but `large`, which needs LightGBM. `designs`, `imputed`, `extrapolated` and `duplicates` keep
their draws in FOLDER.

The score that is wanted: of the learner trained on four fifths of the people, as five folds of the true people train it, on
new people, each record counting alike; *over data* its mean over all data sets, *on these data* that of the five fits at hand.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
from duplicates import PROBLEMS, answered
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsRegressor
from typos import components, linker, listed, rates, records, sizes

from leaveout.leakage import Linkage, RecordLeakage, leakage_corrected, leakage_report

PEOPLE = 360
FRESH = 3000  # new people, on whom the five fits are scored
DRAWS = 200
QUICK = 4
LEVEL = 0.95
LINKED, WRONG = 200, 0.1  # people whose records are mislinked one by one, and how many of these records
LEAST = 0.01  # pairs less probable are left out, as linkage programs do
ANSWERS = ("naive", "purge", "coarser", "both")
TOLD = ("score", "low", "high", "correction", "correction_low", "correction_high", "se_data", "se_mc", "exposed")
ASKED = ("purge", "coarser", "both")  # "imputed" and "extrapolated" are not recommended beside these, and cost more


@dataclass(frozen=True, eq=False)
class Design:
    """A learner, its score, and the law of features and response given whose record it is."""

    learner: Callable[[], Any]
    scoring: str
    features: int
    within: float  # spread of a person's records around the person's own features
    effect: float  # half of the people have a level so much higher, half so much lower
    classes: bool = False

    def draw(
        self, person: NDArray[np.int64], rng: np.random.Generator, matter: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Records of these people; where clusters do not matter every record has features and a level of its own."""
        unit = person if matter else np.arange(len(person))
        many = int(unit.max()) + 1
        beta = np.random.default_rng(3).normal(size=self.features) / np.sqrt(self.features)
        X = rng.normal(size=(many, self.features))[unit] + self.within * rng.normal(size=(len(unit), self.features))
        eta = X @ beta + 0.5 * np.sin(2 * X[:, 0]) + self.effect * rng.choice([-1.0, 1.0], many)[unit]
        if self.classes:
            return X, (rng.random(len(eta)) < 1 / (1 + np.exp(-1.5 * eta))).astype(float)
        return X, eta + 0.3 * rng.normal(size=len(eta))


DESIGNS = {
    "ridge": Design(lambda: Ridge(10.0), "neg_mean_squared_error", 120, 0.3, 1.0),
    "logistic": Design(lambda: LogisticRegression(C=0.02, max_iter=500), "neg_log_loss", 120, 0.3, 2.0, classes=True),
    "forest": Design(
        lambda: RandomForestRegressor(10, min_samples_leaf=3, max_features=0.5, random_state=0),
        "neg_mean_squared_error", 6, 0.3, 1.0,
    ),
    "boosting": Design(
        lambda: HistGradientBoostingClassifier(max_iter=15, max_leaf_nodes=12, min_samples_leaf=5, random_state=0),
        "neg_brier_score", 6, 0.2, 2.0, classes=True,
    ),
    "neighbours": Design(lambda: KNeighborsRegressor(5), "neg_mean_squared_error", 4, 0.3, 1.0),
}  # fmt: skip


def wanted(
    design: Design, X: NDArray[np.float64], y: NDArray[np.float64], person: NDArray[np.int64], matter: bool, seed: int
) -> float:
    """The score on new people of the learner trained on four fifths of these: the mean over folds of the true people."""
    rng = np.random.default_rng([12, seed])
    new, response = design.draw(np.repeat(np.arange(FRESH), sizes(FRESH, rng)), rng, matter)
    folds = GroupKFold(5, shuffle=True, random_state=seed).split(X, y, person)
    score = get_scorer(design.scoring)
    return float(np.mean([score(design.learner().fit(X[train], y[train]), new, response) for train, _ in folds]))


class World(NamedTuple):
    """One population: whose each record is, the clusters as filed, and what is known of the links; all designs share it."""

    person: NDArray[np.int64]
    filed: NDArray[np.int64]
    linkage: Linkage


@lru_cache(1)
def world(seed: int) -> World:
    rng = np.random.default_rng([11, seed])
    of, made = records(sizes(PEOPLE, rng), rng), linker(PEOPLE)
    table = made.pairs(of)
    likely = table[table["match_probability"] >= LEAST]
    return World(of.person, components(table, made.threshold, len(of.person)), Linkage.from_pairs(likely, len(of.person)))


def drawn(name: str, seed: int, matter: bool) -> dict[str, Any]:
    """One data set, its report, and what is true of it."""
    design, (person, filed, linkage) = DESIGNS[name], world(seed)
    X, y = design.draw(person, np.random.default_rng([14, seed, int(matter)]), matter)
    start = time.perf_counter()
    report = leakage_report(
        design.learner(),
        X,
        y,
        linkage=linkage,
        groups=filed,
        scoring=design.scoring,
        level=LEVEL,
        seed=seed,
        answers=ASKED,
        listed=listed(PEOPLE, LEAST),
    )
    row: dict[str, Any] = {"seed": seed, "seconds": time.perf_counter() - start, "recommended": report.recommended or ""}
    for answer in ANSWERS:
        told = report.table.loc[answer]
        row |= {f"{answer} {what}": told[what] for what in TOLD}
    right = GroupKFold(5, shuffle=True, random_state=seed).split(X, y, person)
    score = get_scorer(design.scoring)
    tested = [(len(test), score(design.learner().fit(X[train], y[train]), X[test], y[test])) for train, test in right]
    row["right clusters score"] = float(np.average([own for _, own in tested], weights=[size for size, _ in tested]))
    return row | {"truth": wanted(design, X, y, person, matter, seed)}


def make(names: list[str], draws: int, folder: Path) -> None:
    """All draws that the folder does not have yet, seed by seed."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {key: len(rows) for key in itertools.product(names, (True, False)) if (rows := stored(*key, folder)) is not None}
    for seed in range(draws):
        for name, matter in itertools.product(names, (True, False)):
            if seed >= done.get((name, matter), 0):
                file = place(name, matter, folder)
                pd.DataFrame([drawn(name, seed, matter)]).to_csv(file, mode="a", header=not file.exists(), index=False)


def place(name: str, matter: bool, folder: Path) -> Path:
    return folder / f"{name}{'' if matter else '-alike'}.csv"


def stored(name: str, matter: bool, folder: Path) -> pd.DataFrame | None:
    file = place(name, matter, folder)
    return pd.read_csv(file) if file.exists() else None


def against_naive(rows: pd.DataFrame, answer: pd.Series, truth: Any) -> tuple[float, float]:
    """RMSE over that of naive, on the draws that have the answer, with its standard error by the delta method."""
    there = answer.notna()
    mine, naive = ((part[there] - truth) ** 2 for part in (answer, rows["naive score"]))
    ratio = float(np.sqrt(mine.mean() / naive.mean()))
    influence = ratio / 2 * (mine / mine.mean() - naive / naive.mean())
    return ratio, float(influence.std(ddof=1) / np.sqrt(there.sum()))


def of_recommended(rows: pd.DataFrame, what: str) -> pd.Series:
    """The recommended answer's; NaN where refused."""
    out = pd.Series(np.nan, rows.index)
    for answer in ANSWERS:
        out = out.where(rows["recommended"] != answer, rows[f"{answer} {what}"])
    return out


def covers(low: pd.Series, high: pd.Series, truth: Any) -> float:
    """Of the intervals that there are."""
    there = low.notna() & high.notna()
    return float(((low <= truth) & (truth <= high))[there].mean())


def designs(options: argparse.Namespace) -> None:
    """RMSE of the recommended answer beside naive's, coverage of its interval, and what was refused."""
    names = options.only or list(DESIGNS)
    make(names, QUICK if options.quick else options.draws, options.keep)
    for matter in (True, False):
        print(f"\nclusters {'matter' if matter else 'do not matter'}; RMSE as a share of naive's (± SE), over data")
        found = [printed(name, rows) for name in names if (rows := stored(name, matter, options.keep)) is not None]
        mean, se = np.mean([ratio for ratio, _ in found]), np.sqrt(np.sum(np.square([se for _, se in found]))) / len(found)
        print(f"mean over designs: recommended {mean:.3f} ± {se:.3f} of naive; largest {max(found)[0]:.3f}", flush=True)


def printed(name: str, rows: pd.DataFrame) -> tuple[float, float]:
    truth, here = rows["truth"].mean(), rows["truth"]
    best, low, high = (of_recommended(rows, what) for what in ("score", "low", "high"))
    ratio, se = against_naive(rows, best, truth)
    covered, count = covers(low, high, truth), int(best.notna().sum())
    print(f"{name}: {len(rows)} draws, {rows['seconds'].mean():.1f} s each; true {truth:.4f} (SD over data {here.std():.4f}); "
          f"naive off by {rows['naive score'].mean() - truth:+.4f}, SD {rows['naive score'].std():.4f}")  # fmt: skip
    print(f"  recommended {ratio:.3f} ± {se:.3f} of naive's RMSE (on these data {against_naive(rows, best, here)[0]:.3f}), "
          f"off by {best.mean() - truth:+.4f}, SD {best.std():.4f}; half width {(high - low).mean() / 2:.4f}, covers "
          f"{covered:.1%} ± {np.sqrt(covered * (1 - covered) / max(count, 1)):.1%} "
          f"(on these data {covers(low, high, here):.1%})")  # fmt: skip
    for answer in (*ANSWERS, "right clusters"):
        there = rows[f"{answer} score"]
        if there.notna().sum() > 1:
            told, error = against_naive(rows, there, truth)
            ends = [rows.get(f"{answer} {end}", pd.Series(np.nan, rows.index)) for end in ("low", "high")]
            named = (rows["recommended"] == answer).mean()
            print(f"    {answer:15s} {told:.3f} ± {error:.3f}, off by {there.mean() - truth:+.4f}, covers "
                  f"{covers(*ends, truth):.1%}, given in {there.notna().mean():.0%}, recommended in {named:.0%}")  # fmt: skip
    refused = rows[best.isna()]
    if len(refused):
        would = refused["both score"].fillna(refused["coarser score"]).fillna(refused["purge score"])
        rmse = [np.sqrt(((part - truth) ** 2).mean()) for part in (would, refused["naive score"])]
        print(f"    refused {len(refused)}: what would have been said has RMSE {rmse[0]:.4f}, naive's there {rmse[1]:.4f}")
    return ratio, se


def mislinked(name: str, seed: int) -> dict[str, Any]:
    """Records filed under a wrong person one by one, the rates being known: `leakage_corrected`, and what is true."""
    design, rng = DESIGNS[name], np.random.default_rng([15, seed])
    person = np.repeat(np.arange(LINKED), 1 + sizes(LINKED, rng))
    filed = np.where(rng.random(len(person)) < WRONG, rng.integers(0, LINKED, len(person)), person)
    X, y = design.draw(person, rng, True)
    leakage = RecordLeakage.from_pairwise(*rates(filed, person))
    result = leakage_corrected(design.learner(), X, y, groups=filed, leakage=leakage, scoring=design.scoring, seed=seed)
    row = {"seed": seed, "naive": result.naive, "solved": result.solved.estimate, "score": result.estimate}
    for what, between in (("", result.interval(LEVEL)), ("correction ", result.correction_interval(LEVEL))):
        row |= {f"{what}low": between.low, f"{what}high": between.high}
    return row | {"truth": wanted(design, X, y, person, True, seed)}


def extrapolated(options: argparse.Namespace) -> None:
    """The extrapolated estimator by itself, on its home ground: bias, and coverage of its two intervals."""
    options.keep.mkdir(parents=True, exist_ok=True)
    print(f"\n{LINKED} people of two records or more, {WRONG:.0%} of these mislinked one by one, precision and recall known")
    for name in options.only or ("ridge", "neighbours"):
        file = options.keep / f"extrapolated-{name}.csv"
        for seed in range(len(pd.read_csv(file)) if file.exists() else 0, QUICK if options.quick else options.draws):
            pd.DataFrame([mislinked(name, seed)]).to_csv(file, mode="a", header=not file.exists(), index=False)
        rows = pd.read_csv(file)
        truth, there = rows["truth"].mean(), rows["score"].notna()
        moved, off = truth - rows["naive"].mean(), rows["solved"] - truth
        found = [covers(rows["low"], rows["high"], truth), covers(rows["correction low"], rows["correction high"], moved)]
        said = " and ".join(f"{share:.1%} ± {np.sqrt(share * (1 - share) / there.sum()):.1%}" for share in found)
        half = [(rows[f"{what}high"] - rows[f"{what}low"]).mean() / 2 for what in ("", "correction ")]
        print(f"{name}: {len(rows)} draws, refused {(~there).sum()}; true {truth:.4f}; naive off by {-moved:+.4f}, "
              f"SD {rows['naive'].std():.4f}; estimate off by {off[there].mean():+.4f}, RMSE "
              f"{np.sqrt(((off**2)[there]).mean() / ((rows['naive'] - truth) ** 2)[there].mean()):.3f} of naive's\n"
              f"  interval() and correction_interval() cover {said}; mean half widths over 1.96 {half[0] / 1.96:.4f} and "
              f"{half[1] / 1.96:.4f}, SD of estimate and correction {rows['score'].std():.4f} and "
              f"{(rows['score'] - rows['naive']).std():.4f}", flush=True)  # fmt: skip


def drawn_clusters(name: str, seed: int) -> dict[str, Any]:
    """What cross-validation over drawn clusters takes out, and what would be said by it were little enough."""
    design, (person, filed, linkage) = DESIGNS[name], world(seed)
    X, y = design.draw(person, np.random.default_rng([14, seed, 1]), True)
    with mock.patch("leaveout.leakage._answers.MIN_EXPOSURE_REMOVED", 0.0):
        report = leakage_report(
            design.learner(), X, y, linkage=linkage, groups=filed, scoring=design.scoring, level=LEVEL, seed=seed,
            answers=("imputed",), listed=listed(PEOPLE, LEAST),
        )  # fmt: skip
    table = report.table
    removed = 1 - table.exposed["imputed"] / table.exposed["naive"]
    right = GroupKFold(5, shuffle=True, random_state=seed).split(X, y, person)
    score = get_scorer(design.scoring)
    tested = [(len(test), score(design.learner().fit(X[train], y[train]), X[test], y[test])) for train, test in right]
    wanted = np.average([own for _, own in tested], weights=[size for size, _ in tested]) - table.score["naive"]
    ends = {end: table[f"correction_{end}"]["imputed"] for end in ("low", "high")}
    return {"seed": seed, "removed": removed, "correction": table.correction["imputed"], "wanted": wanted, **ends}


def imputed(options: argparse.Namespace) -> None:
    """Why clusters drawn from the linkage mostly give no answer, and how wrong it would be."""
    options.keep.mkdir(parents=True, exist_ok=True)
    for name in options.only or ("neighbours",):
        file = options.keep / f"imputed-{name}.csv"
        for seed in range(len(pd.read_csv(file)) if file.exists() else 0, QUICK if options.quick else options.draws):
            pd.DataFrame([drawn_clusters(name, seed)]).to_csv(file, mode="a", header=not file.exists(), index=False)
        rows = pd.read_csv(file)
        refused, mean = rows["removed"] < 0.5, rows["wanted"].mean()
        print(f"\n{name}, clusters drawn from the linkage: {len(rows)} draws, {refused.sum()} refused; taken out "
              f"{rows['removed'].mean():.2f} of the mates ({rows['removed'].min():.2f} to {rows['removed'].max():.2f})\n"
              f"  the correction, enlarged by that, is {rows['correction'].mean():+.4f}, by true people's folds "
              f"{mean:+.4f}; it covers that in {covers(rows['low'], rows['high'], mean):.0%}", flush=True)  # fmt: skip


def links(options: argparse.Namespace) -> None:
    """What the typos do: precision, recall, singletons, records with a mate that is filed elsewhere, calibration."""
    made, found = linker(PEOPLE), []
    for seed in range(QUICK if options.quick else 50):
        rng = np.random.default_rng([11, seed])
        of = records(sizes(PEOPLE, rng), rng)
        table = made.pairs(of)
        filed = components(table, made.threshold, len(of.person))
        precision, recall = rates(filed, of.person)
        left, right = of.person[table[["unique_id_l", "unique_id_r"]].to_numpy()].T
        same, many = left == right, np.bincount(of.person)
        pieces = pd.DataFrame({"person": of.person, "filed": filed}).groupby("person")["filed"].nunique()
        found.append({
            "records": len(of.person),
            "candidate pairs": len(table),
            "of the true pairs, candidates": same.sum() / (many * (many - 1) / 2).sum(),
            "precision": precision,
            "recall": recall,
            "people of one record": np.mean(many == 1),
            "clusters of one record": np.mean(np.bincount(filed) == 1),
            "records with a mate filed elsewhere": many[pieces.index[pieces > 1]].sum() / many.sum(),
            "expected over true matches": table["match_probability"].sum() / same.sum(),
        })  # fmt: skip
    print(f"\nlinks of {PEOPLE} people, threshold {made.threshold:.2f} tuned on others; mean over {len(found)} data sets")
    print(pd.DataFrame(found).mean().round(3).to_string(), flush=True)


def duplicates(options: argparse.Namespace) -> None:
    """Near-duplicates across a fixed split: each corrected to within its interval, or refused."""
    count, file = QUICK if options.quick else PROBLEMS, options.keep / "duplicates.csv"
    options.keep.mkdir(parents=True, exist_ok=True)
    for seed in range(len(pd.read_csv(file)) if file.exists() else 0, count):
        pd.DataFrame([answered(seed)]).to_csv(file, mode="a", header=seed == 0, index=False)
    rows = pd.read_csv(file).iloc[:count]
    given = rows[~rows["refused"]]
    print(f"\n{len(rows)} problems of near-duplicates across a split: refused {rows['refused'].sum()}, answered {len(given)}")
    print(f"  inside the interval of the correction {given['inside'].sum()}, outside on the safe side {given['safe'].sum()}, "
          f"false assurances {given['false'].sum()}; "
          f"the score's interval holds that on new rows in {given['fresh'].mean():.1%}")  # fmt: skip
    for kind, part in rows.groupby("list"):
        there = part[~part["refused"]]
        print(f"  pairs {kind}: {len(part)}, refused {part['refused'].sum()}, false {there['false'].sum()}; naive off by "
              f"{part['naive off'].mean():+.1%} of the loss, answers by {there['off'].mean():+.1%}", flush=True)  # fmt: skip


def singletons(options: argparse.Namespace) -> None:
    """Records filed alone, each with one candidate at ε: how many of a fold are the training clusters'."""
    print(
        "\nsingletons, one candidate each at ε, 1000 rows, 5 folds: p_test (its standard error over folds), P(mate in training)"
    )
    rng = np.random.default_rng(0)
    at = rng.permutation(1000).reshape(-1, 2)
    for eps in (0.3, 0.1, 0.01, 1e-6):
        linkage = Linkage.from_pairs(pd.DataFrame({"l": at[:, 0], "r": at[:, 1], "match_probability": eps}), np.arange(1000))
        fold = rng.permutation(1000) % 5
        folds = [
            SimpleNamespace(train=np.flatnonzero(fold != k), test=np.flatnonzero(fold == k), clusters=np.arange(1000))
            for k in range(5)
        ]
        p = linkage.shares(folds).p_test
        mates = np.concatenate([linkage.mates(part.train, part.test) for part in folds])
        print(f"  ε = {eps:g}: p_test {p.mean():.3g} ± {p.std(ddof=1) / np.sqrt(5):.1g}; mates {mates.mean():.3g}; "
              f"below ε + its error: {bool(p.mean() <= eps + p.std(ddof=1) / np.sqrt(5))}", flush=True)  # fmt: skip


def large(options: argparse.Namespace) -> None:
    """100,000 records, LightGBM, two workers: seconds, and Monte-Carlo beside data error."""
    from lightgbm import LGBMRegressor

    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(people := 36500 if not options.quick else 1500), sizes(people, rng))
    n = len(person)
    X, y = Design(lambda: None, "", 10, 0.3, 1.0).draw(person, rng, True)
    table = calibrated(person, rng)
    start = time.perf_counter()
    report = leakage_report(
        LGBMRegressor(n_jobs=1, verbose=-1), X, y, linkage=Linkage.from_pairs(table, np.arange(n)),
        scoring="neg_mean_squared_error", answers=ASKED, n_jobs=2,
    )  # fmt: skip
    took = time.perf_counter() - start
    print(f"\nLightGBM, {n} records, {len(table)} pairs, two workers: {took:.0f} s\n{report}")
    row = report.table.loc[report.recommended or "coarser"]
    print(
        f"Monte-Carlo error {row['se_mc']:.2g}, data's {row['se_data']:.2g}: ratio {row['se_mc'] / row['se_data']:.2f}",
        flush=True,
    )


def calibrated(person: NDArray[np.int64], rng: np.random.Generator) -> pd.DataFrame:
    """Pairs with P(match | p) = p: the true ones of badly kept records (one in twelve) with p uniform from 0.02, all others
    certain; false ones of density (1 − p)/p."""
    last = np.searchsorted(person, person, side="right")
    i = np.repeat(np.arange(len(person)), last - np.arange(len(person)) - 1)
    j = i + 1 + np.arange(len(i)) - np.searchsorted(i, i)
    bad = rng.random(len(person)) < 1 / 12
    unsure = bad[i] | bad[j]
    p = 0.02 ** rng.random(round(unsure.sum() * -np.log(0.02) / 0.98))
    p = p[rng.random(len(p)) > p]
    wrong = np.sort(rng.integers(0, len(person), (len(p), 2)), axis=1)
    apart = person[wrong[:, 0]] != person[wrong[:, 1]]
    probability = np.concatenate([np.where(unsure, rng.uniform(0.02, 1, len(i)), 0.9999), p[apart]])
    pairs = pd.DataFrame({"l": np.r_[i, wrong[apart, 0]], "r": np.r_[j, wrong[apart, 1]], "match_probability": probability})
    return pairs.drop_duplicates(["l", "r"])


DEMANDS = {
    "links": links,
    "designs": designs,
    "imputed": imputed,
    "extrapolated": extrapolated,
    "duplicates": duplicates,
    "singletons": singletons,
    "large": large,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demands", nargs="*", help=f"among {', '.join(DEMANDS)}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} draws of everything: that it runs")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--only", nargs="*", choices=list(DESIGNS), help="these designs")
    parser.add_argument("--keep", type=Path, default=Path("linkage-draws"), help="folder of the draws that are made")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    for demand in chosen.demands or [name for name in DEMANDS if name != "large"]:
        DEMANDS[demand](chosen)
