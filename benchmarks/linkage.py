"""Linked records: is what `leakage_report` recommends right? Its intervals and refusals against the
score on new people.

    python benchmarks/linkage.py [links designs imputed extrapolated duplicates singletons large]
        [--quick] [--draws N] [--keep FOLDER] [--only DESIGN ...]

links          what the typos do to the links: precision, recall, singletons, calibration
designs
the recommended answer's RMSE beside naive's, the coverage of its interval, and what was refused
imputed        why clusters drawn from the linkage mostly give no answer, and how wrong it would be
extrapolated   the extrapolated estimator by itself: its bias, and the coverage of its two intervals
duplicates
near-duplicates across a fixed split: each is corrected to within its interval, or refused
singletons     records filed alone, each with one candidate
large          100,000 records, LightGBM, two workers: seconds, and Monte-Carlo beside data error

Without names all parts run but `large`, which needs LightGBM. `designs`, `imputed`, `extrapolated`
and `duplicates` keep their draws in FOLDER.

The opponent is the truth. The wanted score is that of the learner trained on four fifths of the
people, as five folds of the true people train it, on new people, each record counting alike; *over
data* is its mean over all data sets, *on these data* its mean over the five fits at hand.

Linkage goes wrong as it does in life: people have a first and a last name, a birth date and a town;
records have typos and gaps; candidate pairs come by blocking, and their score is learned on other
people. Splits, merges and orphans follow: a badly typed record finds no mate, and two of a family
are taken for one.

Near-duplicates are test rows that are copies of training rows, with a list of the pairs. The list
is complete, has false candidates besides, or lacks pairs without saying so. What leaks is known row
by row: each copy is predicted once more by a fit without the rows that it is a copy of.
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
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

import leaveout as lo
from leaveout.leakage import Linkage, RecordLeakage, leakage_corrected, leakage_report

FIELDS = {"first": 6, "last": 8, "birth": 6, "town": 5}
POOLS = {"first": 60, "last": 200, "town": 20}
GAP = -1  # a field that was left out
LARGEST, POWER = 12, 1.5  # sizes s ∝ s^-1.5 up to 12: half of the people have one record
SIBLINGS = 0.5  # of the people have last name and town of another
LABELLED = 4000  # pairs of other people, from which the score is learned
OTHERS = 9  # populations of other people: one for the score, the rest for the threshold


@dataclass(frozen=True, eq=False)
class Records:
    """`person` of each record and what stands in its fields, as letters' numbers."""

    person: NDArray[np.int64]
    fields: dict[str, NDArray[np.int64]]


def sizes(people: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Records of each person, a power law."""
    law = np.arange(1, LARGEST + 1) ** -POWER
    return rng.choice(LARGEST, people, p=law / law.sum()) + 1


@lru_cache
def pool(field: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The names there are, the same for all populations, and how often each is met."""
    rng = np.random.default_rng([5, len(field)])
    often = 1 / (np.arange(POOLS[field]) + 10.0)
    return rng.integers(0, 26, (POOLS[field], FIELDS[field])), often / often.sum()


def records(number: NDArray[np.int64], rng: np.random.Generator) -> Records:
    """Copies of the people's fields: two records in five are badly kept."""
    people = len(number)
    true = {name: pool(name)[0][rng.choice(POOLS[name], people, p=pool(name)[1])] for name in POOLS}
    days = rng.integers([1, 1, 40], [29, 13, 100], (people, 3))
    true["birth"] = np.column_stack([days // 10, days % 10])
    kin, of = rng.random(people) < SIBLINGS, rng.integers(0, people, people)
    for name in ("last", "town"):
        true[name] = np.where(kin[:, None], true[name][of], true[name])
    person = np.repeat(np.arange(people), number)
    bad = rng.random(len(person)) < 0.4
    return Records(person, {name: typed(name, true[name][person], bad, rng) for name in FIELDS})


def typed(
    name: str, value: NDArray[np.int64], bad: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.int64]:
    """What is typed for `value`.

    Letters go wrong, another name is given (a nickname, a move), a field is left out.
    """
    out = value.copy()
    for _ in range(2):
        wrong = rng.random(len(out)) < np.where(bad, 0.35, 0.08)
        letters = 10 if name == "birth" else 26
        out[wrong, rng.integers(0, out.shape[1], len(out))[wrong]] = rng.integers(
            0, letters, wrong.sum()
        )
    if name in ("first", "town"):
        other = rng.random(len(out)) < np.where(bad, 0.2, 0.06)
        out[other] = pool(name)[0][rng.choice(POOLS[name], other.sum(), p=pool(name)[1])]
    out[rng.random(len(out)) < np.where(bad, 0.25, 0.04)] = GAP
    return out


def candidates(of: Records) -> NDArray[np.int64]:
    """Pairs that agree in half of a name or of the birth date.

    Few mates are missed, and of the pairs few are mates.
    """
    last, birth, first, town = (of.fields[name] for name in ("last", "birth", "first", "town"))
    halves = (last[:, :3], last[:, 5:], birth[:, :4], birth[:, 2:])
    blocks = (
        *halves,
        town,
        np.c_[first[:, 3:], birth[:, 4:]],
        np.c_[first[:, :3], birth[:, 4:]],
        first,
    )
    found = []
    for block in blocks:
        key = np.unique(block, axis=0, return_inverse=True)[1].ravel()
        known = np.flatnonzero((block != GAP).all(1))
        frame = pd.DataFrame({"key": key[known], "row": known})
        both = frame.merge(frame, on="key")
        found.append(both.loc[both["row_x"] < both["row_y"], ["row_x", "row_y"]].to_numpy())
    return np.unique(np.concatenate(found), axis=0)


def compared(of: Records, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each field whether it agrees, nearly agrees (two letters), cannot be compared.

    How rare an agreeing last name is.
    """
    out = []
    for value in of.fields.values():
        left, right = value[pairs[:, 0]], value[pairs[:, 1]]
        apart = (left != right).sum(1)
        gap = (left == GAP).any(1) | (right == GAP).any(1)
        out += [~gap & (apart == 0), ~gap & (apart == 1), ~gap & (apart == 2), gap]
    _, at, often = np.unique(of.fields["last"], axis=0, return_inverse=True, return_counts=True)
    rare = -np.log(often[at.ravel()][pairs[:, 0]] / len(of.person)) * out[4]
    return np.column_stack([*out, rare]).astype(float)


@dataclass(frozen=True, eq=False)
class Linker:
    """The probability that a pair is of one person, and the threshold from which pairs are
    linked.
    """

    score: LogisticRegression
    threshold: float

    def pairs(self, of: Records) -> pd.DataFrame:
        """The candidates with their probabilities, as a linkage program hands them over."""
        pairs = candidates(of)
        probability = self.score.predict_proba(compared(of, pairs))[:, 1]
        return pd.DataFrame(
            {
                "unique_id_l": pairs[:, 0],
                "unique_id_r": pairs[:, 1],
                "match_probability": probability,
            }
        )


def components(pairs: pd.DataFrame, threshold: float, rows: int) -> NDArray[np.int64]:
    """The clusters as they are filed."""
    left, right = (
        pairs.loc[pairs["match_probability"] >= threshold, ["unique_id_l", "unique_id_r"]]
        .to_numpy()
        .T
    )
    return connected_components(
        coo_matrix((np.ones(len(left)), (left, right)), (rows, rows)), directed=False
    )[1]


def rates(filed: NDArray[np.int64], true: NDArray[np.int64]) -> tuple[float, float]:
    """Precision and recall of pairs."""
    both = lambda *labels: sum(
        c * (c - 1) / 2 for c in np.unique(np.column_stack(labels), axis=0, return_counts=True)[1]
    )
    agreed = both(filed, true)
    return float(agreed / both(filed)), float(agreed / both(true))


def strangers(people: int) -> list[Records]:
    """Other people, whose truth is known."""
    return [
        records(sizes(people, rng), rng)
        for rng in (np.random.default_rng([9, k]) for k in range(OTHERS))
    ]


@lru_cache
def linker(people: int) -> Linker:
    """Learned on a labelled sample of other people, its threshold where the F1 of pairs is best
    among yet others.
    """
    others = strangers(people)
    pairs = candidates(others[0])
    sample = np.random.default_rng(9).permutation(len(pairs))[:LABELLED]
    same = (others[0].person[pairs[:, 0]] == others[0].person[pairs[:, 1]])[sample]
    score = LogisticRegression(C=10.0, max_iter=1000).fit(compared(others[0], pairs[sample]), same)
    rest = [(Linker(score, 0.5).pairs(of), of.person) for of in others[1:]]
    grid = np.linspace(0.05, 0.95, 19)
    reached = [
        np.mean([f1(components(table, t, len(person)), person) for table, person in rest])
        for t in grid
    ]
    return Linker(score, float(grid[int(np.argmax(reached))]))


@lru_cache
def listed(people: int, least: float) -> tuple[float, float, float]:
    """Of the records with a mate that is filed elsewhere, those of which a pair of at least that
    probability lists one, among other people, with the interval over populations."""
    made, shares = linker(people), []
    for of in strangers(people)[1:]:
        table = made.pairs(of)
        filed = components(table, made.threshold, len(of.person))
        has = (
            pd.DataFrame({"person": of.person, "filed": filed})
            .groupby("person")["filed"]
            .transform("nunique")
            > 1
        )
        left, right = (
            table.loc[table["match_probability"] >= least, ["unique_id_l", "unique_id_r"]]
            .to_numpy()
            .T
        )
        across = (of.person[left] == of.person[right]) & (filed[left] != filed[right])
        known = np.zeros(len(filed), bool)
        known[left[across]] = known[right[across]] = True
        shares.append(known[has.to_numpy()].mean())
    half = stats.t.ppf(0.975, len(shares) - 1) * np.std(shares, ddof=1) / np.sqrt(len(shares))
    return float(np.mean(shares)), float(np.mean(shares) - half), float(np.mean(shares) + half)


def f1(filed: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    precision, recall = rates(filed, true)
    return 2 * precision * recall / (precision + recall)


PROBLEMS = 200
TRAINED, TESTED, FRESH_ROWS = 400, 160, 4000
LISTS = ("complete", "with false candidates", "incomplete, unsaid")
LEARNERS = {
    "1-NN": (lambda: KNeighborsRegressor(1), 5, False),
    "5-NN": (lambda: KNeighborsRegressor(5), 5, False),
    "tree": (lambda: DecisionTreeRegressor(min_samples_leaf=3, random_state=0), 5, False),
    "ridge": (lambda: Ridge(1.0), 150, False),
    "logistic": (lambda: LogisticRegression(C=0.3, max_iter=500), 80, True),
    "forest": (lambda: RandomForestClassifier(20, min_samples_leaf=2, random_state=0), 5, True),
    "boosting": (
        lambda: HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=12, random_state=0),
        5,
        False,
    ),
}


def duplicate_law(
    size: int, features: int, classes: bool, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    X = rng.normal(size=(size, features))
    eta = X @ np.random.default_rng(4).normal(size=features) / np.sqrt(features) + np.sin(
        2 * X[:, 0]
    )
    return X, (
        rng.random(size) < 1 / (1 + np.exp(-2 * eta))
    ) * 1.0 if classes else eta + 0.7 * rng.normal(size=size)


def losses(
    model: Any, X: NDArray[np.float64], y: NDArray[np.float64], classes: bool
) -> NDArray[np.float64]:
    """Squared errors, of the probability for classes.

    Their means are scikit-learn's scores with the sign turned.
    """
    return (y - (model.predict_proba(X)[:, 1] if classes else model.predict(X))) ** 2


def answered(seed: int) -> dict[str, Any]:
    """One problem: was it refused, is the true correction inside the interval, or worse than the
    interval allows?
    """
    rng = np.random.default_rng([13, seed])
    make, features, classes = LEARNERS[list(LEARNERS)[seed % len(LEARNERS)]]
    X, y = duplicate_law(TRAINED + TESTED, features, classes, rng)
    train, test = np.arange(TRAINED), np.arange(TRAINED, TRAINED + TESTED)
    copies = rng.permutation(test)[: round(rng.uniform(0.05, 0.6) * TESTED)]
    source = rng.choice(train, len(copies), replace=bool(rng.random() < 0.5))
    X[copies] = X[source] + rng.choice([0.0, 0.01, 0.1, 0.2]) * rng.normal(
        size=(len(copies), features)
    )
    y[copies] = (
        y[source]
        if classes or rng.random() < 0.5
        else y[source] + 0.2 * rng.normal(size=len(copies))
    )
    kind = LISTS[seed % len(LISTS)]
    model = make().fit(X[train], y[train])
    naive = losses(model, X[test], y[test], classes)
    clean = naive.copy()
    for row, mate in zip(copies, source, strict=True):
        rest = train[train != mate]
        clean[row - TRAINED] = losses(make().fit(X[rest], y[rest]), X[[row]], y[[row]], classes)[0]
    correction, fresh = (
        naive.mean() - clean.mean(),
        -losses(model, *duplicate_law(FRESH_ROWS, features, classes, rng), classes).mean(),
    )
    report = lo.leakage.leakage_report(
        make(),
        X,
        y,
        linkage=lo.leakage.Linkage.from_duplicates(
            listed_pairs(kind, copies, source, test, rng), np.arange(len(y))
        ),
        cv=[(train, test)],
        scoring="neg_brier_score" if classes else "neg_mean_squared_error",
        rng=seed,
    )
    told = report.table.loc[report.recommended or "naive"]
    low, high = (
        (0.0, 0.0)
        if report.recommended in (None, "naive")
        else (told["correction_low"], told["correction_high"])
    )
    return {
        "learner": list(LEARNERS)[seed % len(LEARNERS)],
        "list": kind,
        "refused": report.recommended is None,
        "recommended": report.recommended or "",
        "naive off": -correction / clean.mean(),
        "off": (told["correction"] - correction) / clean.mean(),
        "inside": low <= correction <= high,
        "safe": correction > high,
        "false": correction < low,
        "fresh": told["low"] <= fresh <= told["high"],
    }


def listed_pairs(
    kind: str,
    copies: NDArray[np.int64],
    source: NDArray[np.int64],
    test: NDArray[np.int64],
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Pairs of a test and a training row: of the true ones all, or a share.

    False candidates as improbable as they are.
    """
    keep = rng.random(len(copies)) < (rng.uniform(0.3, 0.9) if kind == LISTS[2] else 1.0)
    pairs = pd.DataFrame({"l": copies[keep], "r": source[keep], "match_probability": 0.99})
    if kind != LISTS[1]:
        return pairs
    others = pd.DataFrame(
        {"l": rng.choice(test, 100), "r": rng.integers(0, TRAINED, 100), "match_probability": 0.01}
    )
    return pd.concat([pairs, others]).drop_duplicates(["l", "r"])


PEOPLE = 360
FRESH = 3000  # new people, on whom the five fits are scored
DRAWS = 200
QUICK = 4
LEVEL = 0.95
# people whose records are mislinked one by one, and how many of these records
LINKED, WRONG = 200, 0.1
LEAST = 0.01  # pairs less probable are left out, as linkage programs do
ANSWERS = ("naive", "purge", "coarser", "both")
TOLD = (
    "score",
    "low",
    "high",
    "correction",
    "correction_low",
    "correction_high",
    "se_data",
    "se_mc",
    "exposed",
)
# "imputed" and "extrapolated" are not recommended beside these, and cost more
ASKED = ("purge", "coarser", "both")


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
        """Records of these people.

        Where clusters do not matter every record has features and a level of its own.
        """
        unit = person if matter else np.arange(len(person))
        many = int(unit.max()) + 1
        beta = np.random.default_rng(3).normal(size=self.features) / np.sqrt(self.features)
        X = rng.normal(size=(many, self.features))[unit] + self.within * rng.normal(
            size=(len(unit), self.features)
        )
        eta = (
            X @ beta + 0.5 * np.sin(2 * X[:, 0]) + self.effect * rng.choice([-1.0, 1.0], many)[unit]
        )
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
    design: Design,
    X: NDArray[np.float64],
    y: NDArray[np.float64],
    person: NDArray[np.int64],
    matter: bool,
    seed: int,
) -> float:
    """The score on new people of the learner trained on four fifths of these.

    The mean over folds of the true people.
    """
    rng = np.random.default_rng([12, seed])
    new, response = design.draw(np.repeat(np.arange(FRESH), sizes(FRESH, rng)), rng, matter)
    folds = GroupKFold(5, shuffle=True, random_state=seed).split(X, y, person)
    score = get_scorer(design.scoring)
    return float(
        np.mean(
            [score(design.learner().fit(X[train], y[train]), new, response) for train, _ in folds]
        )
    )


class World(NamedTuple):
    """One population: whose each record is, the clusters as filed, and what is known of the links.

    All designs share it.
    """

    person: NDArray[np.int64]
    filed: NDArray[np.int64]
    linkage: Linkage


@lru_cache(1)
def world(seed: int) -> World:
    rng = np.random.default_rng([11, seed])
    of, made = records(sizes(PEOPLE, rng), rng), linker(PEOPLE)
    table = made.pairs(of)
    likely = table[table["match_probability"] >= LEAST]
    return World(
        of.person,
        components(table, made.threshold, len(of.person)),
        Linkage.from_pairs(likely, len(of.person)),
    )


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
        rng=seed,
        answers=ASKED,
        listed=listed(PEOPLE, LEAST),
    )
    row: dict[str, Any] = {
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "recommended": report.recommended or "",
    }
    for answer in ANSWERS:
        told = report.table.loc[answer]
        row |= {f"{answer} {what}": told[what] for what in TOLD}
    right = GroupKFold(5, shuffle=True, random_state=seed).split(X, y, person)
    score = get_scorer(design.scoring)
    tested = [
        (len(test), score(design.learner().fit(X[train], y[train]), X[test], y[test]))
        for train, test in right
    ]
    row["right clusters score"] = float(
        np.average([own for _, own in tested], weights=[size for size, _ in tested])
    )
    return row | {"truth": wanted(design, X, y, person, matter, seed)}


def make(names: list[str], draws: int, folder: Path) -> None:
    """All draws that the folder does not have yet, seed by seed."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {
        key: len(rows)
        for key in itertools.product(names, (True, False))
        if (rows := stored(*key, folder)) is not None
    }
    for seed in range(draws):
        for name, matter in itertools.product(names, (True, False)):
            if seed >= done.get((name, matter), 0):
                file = place(name, matter, folder)
                pd.DataFrame([drawn(name, seed, matter)]).to_csv(
                    file, mode="a", header=not file.exists(), index=False
                )


def place(name: str, matter: bool, folder: Path) -> Path:
    return folder / f"{name}{'' if matter else '-alike'}.csv"


def stored(name: str, matter: bool, folder: Path) -> pd.DataFrame | None:
    file = place(name, matter, folder)
    return pd.read_csv(file) if file.exists() else None


def against_naive(rows: pd.DataFrame, answer: pd.Series, truth: Any) -> tuple[float, float]:
    """RMSE over that of naive, on the draws that have the answer, with its standard error by the
    delta method.
    """
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
    """RMSE of the recommended answer beside naive's, coverage of its interval, and what was
    refused.
    """
    names = options.only or list(DESIGNS)
    make(names, QUICK if options.quick else options.draws, options.keep)
    for matter in (True, False):
        print(
            f"\nclusters {'matter' if matter else 'do not matter'}; RMSE as a share of naive's (± SE), over data"
        )
        found = [
            printed(name, rows)
            for name in names
            if (rows := stored(name, matter, options.keep)) is not None
        ]
        mean, se = (
            np.mean([ratio for ratio, _ in found]),
            np.sqrt(np.sum(np.square([se for _, se in found]))) / len(found),
        )
        print(
            f"mean over designs: recommended {mean:.3f} ± {se:.3f} of naive; largest {max(found)[0]:.3f}",
            flush=True,
        )


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
            ends = [
                rows.get(f"{answer} {end}", pd.Series(np.nan, rows.index))
                for end in ("low", "high")
            ]
            named = (rows["recommended"] == answer).mean()
            print(f"    {answer:15s} {told:.3f} ± {error:.3f}, off by {there.mean() - truth:+.4f}, covers "
                  f"{covers(*ends, truth):.1%}, given in {there.notna().mean():.0%}, recommended in {named:.0%}")  # fmt: skip
    refused = rows[best.isna()]
    if len(refused):
        would = (
            refused["both score"].fillna(refused["coarser score"]).fillna(refused["purge score"])
        )
        rmse = [np.sqrt(((part - truth) ** 2).mean()) for part in (would, refused["naive score"])]
        print(
            f"    refused {len(refused)}: what would have been said has RMSE {rmse[0]:.4f}, naive's there {rmse[1]:.4f}"
        )
    return ratio, se


def mislinked(name: str, seed: int) -> dict[str, Any]:
    """Records filed under a wrong person one by one, the rates being known.

    `leakage_corrected`, and what is true.
    """
    design, rng = DESIGNS[name], np.random.default_rng([15, seed])
    person = np.repeat(np.arange(LINKED), 1 + sizes(LINKED, rng))
    filed = np.where(rng.random(len(person)) < WRONG, rng.integers(0, LINKED, len(person)), person)
    X, y = design.draw(person, rng, True)
    leakage = RecordLeakage.from_pairwise(*rates(filed, person))
    result = leakage_corrected(
        design.learner(), X, y, groups=filed, leakage=leakage, scoring=design.scoring, rng=seed
    )
    row = {
        "seed": seed,
        "naive": result.naive,
        "solved": result.solved.estimate,
        "score": result.estimate,
    }
    for what, between in (
        ("", result.interval(LEVEL)),
        ("correction ", result.correction_interval(LEVEL)),
    ):
        row |= {f"{what}low": between.low, f"{what}high": between.high}
    return row | {"truth": wanted(design, X, y, person, True, seed)}


def extrapolated(options: argparse.Namespace) -> None:
    """The extrapolated estimator by itself, on its home ground.

    Bias, and coverage of its two intervals.
    """
    options.keep.mkdir(parents=True, exist_ok=True)
    print(
        f"\n{LINKED} people of two records or more, {WRONG:.0%} of these mislinked one by one, precision and recall known"
    )
    for name in options.only or ("ridge", "neighbours"):
        file = options.keep / f"extrapolated-{name}.csv"
        for seed in range(
            len(pd.read_csv(file)) if file.exists() else 0,
            QUICK if options.quick else options.draws,
        ):
            pd.DataFrame([mislinked(name, seed)]).to_csv(
                file, mode="a", header=not file.exists(), index=False
            )
        rows = pd.read_csv(file)
        truth, there = rows["truth"].mean(), rows["score"].notna()
        moved, off = truth - rows["naive"].mean(), rows["solved"] - truth
        found = [
            covers(rows["low"], rows["high"], truth),
            covers(rows["correction low"], rows["correction high"], moved),
        ]
        said = " and ".join(
            f"{share:.1%} ± {np.sqrt(share * (1 - share) / there.sum()):.1%}" for share in found
        )
        half = [
            (rows[f"{what}high"] - rows[f"{what}low"]).mean() / 2 for what in ("", "correction ")
        ]
        print(f"{name}: {len(rows)} draws, refused {(~there).sum()}; true {truth:.4f}; naive off by {-moved:+.4f}, "
              f"SD {rows['naive'].std():.4f}; estimate off by {off[there].mean():+.4f}, RMSE "
              f"{np.sqrt(((off**2)[there]).mean() / ((rows['naive'] - truth) ** 2)[there].mean()):.3f} of naive's\n"
              f"  interval() and correction_interval() cover {said}; mean half widths over 1.96 {half[0] / 1.96:.4f} and "
              f"{half[1] / 1.96:.4f}, SD of estimate and correction {rows['score'].std():.4f} and "
              f"{(rows['score'] - rows['naive']).std():.4f}", flush=True)  # fmt: skip


def drawn_clusters(name: str, seed: int) -> dict[str, Any]:
    """What cross-validation over drawn clusters takes out, and what would be said by it were little
    enough.
    """
    design, (person, filed, linkage) = DESIGNS[name], world(seed)
    X, y = design.draw(person, np.random.default_rng([14, seed, 1]), True)
    with mock.patch("leaveout.extensions.leakage._answers.MIN_EXPOSURE_REMOVED", 0.0):
        report = leakage_report(
            design.learner(), X, y, linkage=linkage, groups=filed, scoring=design.scoring, level=LEVEL, rng=seed,
            answers=("imputed",), listed=listed(PEOPLE, LEAST),
        )  # fmt: skip
    table = report.table
    removed = 1 - table.exposed["imputed"] / table.exposed["naive"]
    right = GroupKFold(5, shuffle=True, random_state=seed).split(X, y, person)
    score = get_scorer(design.scoring)
    tested = [
        (len(test), score(design.learner().fit(X[train], y[train]), X[test], y[test]))
        for train, test in right
    ]
    wanted = (
        np.average([own for _, own in tested], weights=[size for size, _ in tested])
        - table.score["naive"]
    )
    ends = {end: table[f"correction_{end}"]["imputed"] for end in ("low", "high")}
    return {
        "seed": seed,
        "removed": removed,
        "correction": table.correction["imputed"],
        "wanted": wanted,
        **ends,
    }


def imputed(options: argparse.Namespace) -> None:
    """Why clusters drawn from the linkage mostly give no answer, and how wrong it would be."""
    options.keep.mkdir(parents=True, exist_ok=True)
    for name in options.only or ("neighbours",):
        file = options.keep / f"imputed-{name}.csv"
        for seed in range(
            len(pd.read_csv(file)) if file.exists() else 0,
            QUICK if options.quick else options.draws,
        ):
            pd.DataFrame([drawn_clusters(name, seed)]).to_csv(
                file, mode="a", header=not file.exists(), index=False
            )
        rows = pd.read_csv(file)
        refused, mean = rows["removed"] < 0.5, rows["wanted"].mean()
        print(f"\n{name}, clusters drawn from the linkage: {len(rows)} draws, {refused.sum()} refused; taken out "
              f"{rows['removed'].mean():.2f} of the mates ({rows['removed'].min():.2f} to {rows['removed'].max():.2f})\n"
              f"  the correction, enlarged by that, is {rows['correction'].mean():+.4f}, by true people's folds "
              f"{mean:+.4f}; it covers that in {covers(rows['low'], rows['high'], mean):.0%}", flush=True)  # fmt: skip


def links(options: argparse.Namespace) -> None:
    """What the typos do: precision, recall, singletons, records with a mate that is filed
    elsewhere, calibration.
    """
    made, found = linker(PEOPLE), []
    for seed in range(QUICK if options.quick else 50):
        rng = np.random.default_rng([11, seed])
        of = records(sizes(PEOPLE, rng), rng)
        table = made.pairs(of)
        filed = components(table, made.threshold, len(of.person))
        precision, recall = rates(filed, of.person)
        left, right = of.person[table[["unique_id_l", "unique_id_r"]].to_numpy()].T
        same, many = left == right, np.bincount(of.person)
        pieces = (
            pd.DataFrame({"person": of.person, "filed": filed}).groupby("person")["filed"].nunique()
        )
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
    print(
        f"\nlinks of {PEOPLE} people, threshold {made.threshold:.2f} tuned on others; mean over {len(found)} data sets"
    )
    print(pd.DataFrame(found).mean().round(3).to_string(), flush=True)


def duplicates(options: argparse.Namespace) -> None:
    """Near-duplicates across a fixed split: each corrected to within its interval, or refused."""
    count, file = QUICK if options.quick else PROBLEMS, options.keep / "duplicates.csv"
    options.keep.mkdir(parents=True, exist_ok=True)
    for seed in range(len(pd.read_csv(file)) if file.exists() else 0, count):
        pd.DataFrame([answered(seed)]).to_csv(file, mode="a", header=seed == 0, index=False)
    rows = pd.read_csv(file).iloc[:count]
    given = rows[~rows["refused"]]
    print(
        f"\n{len(rows)} problems of near-duplicates across a split: refused {rows['refused'].sum()}, answered {len(given)}"
    )
    print(f"  inside the interval of the correction {given['inside'].sum()}, outside on the safe side {given['safe'].sum()}, "
          f"false assurances {given['false'].sum()}; "
          f"the score's interval holds that on new rows in {given['fresh'].mean():.1%}")  # fmt: skip
    for kind, part in rows.groupby("list"):
        there = part[~part["refused"]]
        print(f"  pairs {kind}: {len(part)}, refused {part['refused'].sum()}, false {there['false'].sum()}; naive off by "
              f"{part['naive off'].mean():+.1%} of the loss, answers by {there['off'].mean():+.1%}", flush=True)  # fmt: skip


def singletons(options: argparse.Namespace) -> None:
    """Records filed alone, each with one candidate at ε.

    How many of a fold are the training clusters'.
    """
    print(
        "\nsingletons, one candidate each at ε, 1000 rows, 5 folds: p_test (its standard error over folds), P(mate in training)"
    )
    rng = np.random.default_rng(0)
    at = rng.permutation(1000).reshape(-1, 2)
    for eps in (0.3, 0.1, 0.01, 1e-6):
        linkage = Linkage.from_pairs(
            pd.DataFrame({"l": at[:, 0], "r": at[:, 1], "match_probability": eps}), np.arange(1000)
        )
        fold = rng.permutation(1000) % 5
        folds = [
            SimpleNamespace(
                train=np.flatnonzero(fold != k),
                test=np.flatnonzero(fold == k),
                clusters=np.arange(1000),
            )
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
    person = np.repeat(
        np.arange(people := 36500 if not options.quick else 1500), sizes(people, rng)
    )
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
    """Pairs with P(match | p) = p: the true ones of badly kept records (one in twelve) with p
    uniform from 0.02, all others certain; false ones of density (1 − p)/p."""
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
    pairs = pd.DataFrame(
        {
            "l": np.r_[i, wrong[apart, 0]],
            "r": np.r_[j, wrong[apart, 1]],
            "match_probability": probability,
        }
    )
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demands", nargs="*", help=f"among {', '.join(DEMANDS)}")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} draws of everything: that it runs"
    )
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--only", nargs="*", choices=list(DESIGNS), help="these designs")
    parser.add_argument(
        "--keep", type=Path, default=Path("linkage-draws"), help="folder of the draws that are made"
    )
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    for demand in chosen.demands or [name for name in DEMANDS if name != "large"]:
        DEMANDS[demand](chosen)
