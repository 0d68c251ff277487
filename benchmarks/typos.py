"""Record linkage as it goes wrong: people with a first and a last name, a birth date and a town, records with typos and gaps,
candidate pairs by blocking, a score by comparisons of the fields, learned on other people.

Splits, merges and orphans come of it by themselves: a badly typed record finds no mate, two of a family are taken for one.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.linear_model import LogisticRegression

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


def typed(name: str, value: NDArray[np.int64], bad: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """What is typed for `value`: letters go wrong, another name is given (a nickname, a move), a field is left out."""
    out = value.copy()
    for _ in range(2):
        wrong = rng.random(len(out)) < np.where(bad, 0.35, 0.08)
        letters = 10 if name == "birth" else 26
        out[wrong, rng.integers(0, out.shape[1], len(out))[wrong]] = rng.integers(0, letters, wrong.sum())
    if name in ("first", "town"):
        other = rng.random(len(out)) < np.where(bad, 0.2, 0.06)
        out[other] = pool(name)[0][rng.choice(POOLS[name], other.sum(), p=pool(name)[1])]
    out[rng.random(len(out)) < np.where(bad, 0.25, 0.04)] = GAP
    return out


def candidates(of: Records) -> NDArray[np.int64]:
    """Pairs that agree in half of a name or of the birth date: few mates are missed, and of the pairs few are mates."""
    last, birth, first, town = (of.fields[name] for name in ("last", "birth", "first", "town"))
    halves = (last[:, :3], last[:, 5:], birth[:, :4], birth[:, 2:])
    blocks = (*halves, town, np.c_[first[:, 3:], birth[:, 4:]], np.c_[first[:, :3], birth[:, 4:]], first)
    found = []
    for block in blocks:
        key = np.unique(block, axis=0, return_inverse=True)[1].ravel()
        known = np.flatnonzero((block != GAP).all(1))
        frame = pd.DataFrame({"key": key[known], "row": known})
        both = frame.merge(frame, on="key")
        found.append(both.loc[both["row_x"] < both["row_y"], ["row_x", "row_y"]].to_numpy())
    return np.unique(np.concatenate(found), axis=0)


def compared(of: Records, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each field whether it agrees, nearly agrees (two letters), cannot be compared; how rare an agreeing last name is."""
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
    """The probability that a pair is of one person, and the threshold from which pairs are linked."""

    score: LogisticRegression
    threshold: float

    def pairs(self, of: Records) -> pd.DataFrame:
        """The candidates with their probabilities, as a linkage program hands them over."""
        pairs = candidates(of)
        probability = self.score.predict_proba(compared(of, pairs))[:, 1]
        return pd.DataFrame({"unique_id_l": pairs[:, 0], "unique_id_r": pairs[:, 1], "match_probability": probability})


def components(pairs: pd.DataFrame, threshold: float, rows: int) -> NDArray[np.int64]:
    """The clusters as they are filed."""
    left, right = pairs.loc[pairs["match_probability"] >= threshold, ["unique_id_l", "unique_id_r"]].to_numpy().T
    return connected_components(coo_matrix((np.ones(len(left)), (left, right)), (rows, rows)), directed=False)[1]


def rates(filed: NDArray[np.int64], true: NDArray[np.int64]) -> tuple[float, float]:
    """Precision and recall of pairs."""
    both = lambda *labels: sum(c * (c - 1) / 2 for c in np.unique(np.column_stack(labels), axis=0, return_counts=True)[1])
    agreed = both(filed, true)
    return float(agreed / both(filed)), float(agreed / both(true))


def strangers(people: int) -> list[Records]:
    """Other people, whose truth is known."""
    return [records(sizes(people, rng), rng) for rng in (np.random.default_rng([9, k]) for k in range(OTHERS))]


@lru_cache
def linker(people: int) -> Linker:
    """Learned on a labelled sample of other people, its threshold where the F1 of pairs is best among yet others."""
    others = strangers(people)
    pairs = candidates(others[0])
    sample = np.random.default_rng(9).permutation(len(pairs))[:LABELLED]
    same = (others[0].person[pairs[:, 0]] == others[0].person[pairs[:, 1]])[sample]
    score = LogisticRegression(C=10.0, max_iter=1000).fit(compared(others[0], pairs[sample]), same)
    rest = [(Linker(score, 0.5).pairs(of), of.person) for of in others[1:]]
    grid = np.linspace(0.05, 0.95, 19)
    reached = [np.mean([f1(components(table, t, len(person)), person) for table, person in rest]) for t in grid]
    return Linker(score, float(grid[int(np.argmax(reached))]))


@lru_cache
def listed(people: int, least: float) -> tuple[float, float, float]:
    """Of the records with a mate that is filed elsewhere, those of which a pair of at least that probability lists one, among
    other people, with the interval over populations."""
    made, shares = linker(people), []
    for of in strangers(people)[1:]:
        table = made.pairs(of)
        filed = components(table, made.threshold, len(of.person))
        has = pd.DataFrame({"person": of.person, "filed": filed}).groupby("person")["filed"].transform("nunique") > 1
        left, right = table.loc[table["match_probability"] >= least, ["unique_id_l", "unique_id_r"]].to_numpy().T
        across = (of.person[left] == of.person[right]) & (filed[left] != filed[right])
        known = np.zeros(len(filed), bool)
        known[left[across]] = known[right[across]] = True
        shares.append(known[has.to_numpy()].mean())
    half = stats.t.ppf(0.975, len(shares) - 1) * np.std(shares, ddof=1) / np.sqrt(len(shares))
    return float(np.mean(shares)), float(np.mean(shares) - half), float(np.mean(shares) + half)


def f1(filed: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    precision, recall = rates(filed, true)
    return 2 * precision * recall / (precision + recall)
