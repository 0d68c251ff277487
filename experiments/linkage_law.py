"""Which weights give drawn partitions the right number of mates? Simulated records with typos,
pairs scored field by field.

    python experiments/linkage_law.py [records]

Truth is what the listed pairs can show: records that true listed pairs connect. `pull` holds the
weights of pairs to their log-odds: at ∞ pairs are independent evidence, at 0 every pair keeps its
probability. Bias and mean squared error of P(a record has a mate in another fold), over folds of
whole clusters as linked.
"""

import itertools
import sys

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

import leaveout as lo
from leaveout.extensions.leakage import _blocks, _chain
from leaveout.extensions.leakage._blocks import components

LEVELS, FIELDS, FOLDS, DRAWS, SEEDS = 300, 4, 5, 40, 4
DESIGNS = (  # share of typos, all in a quarter of the records or evenly, the largest entity
    (0.05, False, 6),
    (0.1, True, 6),
    (0.2, True, 6),
    (0.1, True, 40),
)
PULLS = (5.0, 0.5, 0.2, 0.1, 0.05)


def table(records: int, typo: float, uneven: bool, most: int, seed: int) -> tuple[NDArray, ...]:
    """The entity of each record, and left, right and score of pairs that agree on two fields or
    more.
    """
    rng = np.random.default_rng(seed)
    size = np.minimum(rng.zipf(2.5, records), most)
    entity = np.repeat(np.arange(len(size)), size)[:records]
    common = 1 / np.arange(1, LEVELS + 1) ** 0.7
    common /= common.sum()
    fields = rng.choice(LEVELS, (len(size), FIELDS), p=common)[entity]
    rate = (
        np.where(rng.random(records) < 0.25, 4 * typo, 0.4 * typo)
        if uneven
        else np.full(records, typo)
    )
    wrong = rng.random(fields.shape) < rate[:, None]
    fields[wrong] = rng.choice(LEVELS, int(wrong.sum()), p=common)
    keys = []
    for one, other in itertools.combinations(range(FIELDS), 2):
        both = fields[:, one] * LEVELS + fields[:, other]
        order = np.argsort(both, kind="stable")
        for block in np.split(order, np.flatnonzero(np.diff(both[order])) + 1):
            i, j = np.triu_indices(len(block), 1)
            keys.append(np.minimum(block[i], block[j]) * records + np.maximum(block[i], block[j]))
    left, right = np.divmod(np.unique(np.concatenate(keys)), records)
    agree = fields[left] == fields[right]
    score = np.where(
        agree, np.log((1 - 2 * typo) / common[fields[left]]), np.log(2 * typo / 0.99)
    ).sum(1)
    return entity, left, right, score


def mates(label: NDArray, fold: NDArray) -> NDArray[np.float64]:
    """Has each record one in another fold?"""
    spread = np.zeros((label.max() + 1, FOLDS), bool)
    spread[label, fold] = True
    return (spread.sum(1) > 1)[label].astype(float)


def study(records: int, design: tuple[float, bool, int], seed: int) -> NDArray:
    """Truth, bias and squared error for each pull."""
    known, a, b, score = table(records, *design, 1000 + seed)
    calibration = IsotonicRegression(out_of_bounds="clip").fit(score, known[a] == known[b])
    entity, left, right, score = table(records, *design, seed)
    p = np.clip(calibration.predict(score), 1e-4, 1 - 1e-4)
    filed, match = (
        components(records, left[p >= 0.5], right[p >= 0.5]),
        entity[left] == entity[right],
    )
    fold = np.random.default_rng(seed).integers(0, FOLDS, filed.max() + 1)[filed]
    truth = mates(components(records, left[match], right[match]), fold)
    out = []
    for pull in PULLS:
        _blocks.PULL = _chain.PULL = pull
        drawn = lo.leakage.Linkage.from_pairs((left, right, p), records).partitions(DRAWS, seed)
        found = np.mean([mates(label, fold) for label in drawn], axis=0)
        out.append((truth.mean(), (found - truth).mean(), np.mean((found - truth) ** 2)))
    return np.array(out)


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    print(f"{records} records, {SEEDS} data sets a design, {DRAWS} draws")
    for design in DESIGNS:
        found = np.mean([study(records, design, seed) for seed in range(SEEDS)], axis=0)
        print(
            f"typos {design[0]}, uneven {design[1]}, entities up to {design[2]}: mates {found[0, 0]:.4f}"
        )
        for pull, (_, bias, squared) in zip(PULLS, found, strict=True):
            print(f"  pull {pull:<5} bias {bias:+.4f}  squared error {squared:.4f}", flush=True)


if __name__ == "__main__":
    main()
