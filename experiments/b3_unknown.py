"""The second source document's Eq. 1 where the rates of leakage are not known: what to state, and
where it works.

    python experiments/b3_unknown.py [--sets 40] [--save]

Mixtures of `lo.leakage.mixture`, a tenth of the records filed elsewhere; five folds of whole
clusters. Wanted is the loss when the true clusters are dealt to the same folds. Ways:

naive            clusters as filed
rates            `RecordLeakage.from_pairwise` with the linkage's own precision and recall
rates too high   the same with 1 − rate half as large again
labelled         precision and recall of 200 pairs filed together and 200 that belong together

What match probabilities of pairs do, without rates, stands in `benchmarks/linkage.py`.
"""

import argparse
import functools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import saved
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

import leaveout as lo

CELLS = ((30, 300), (100, 1000), (40, 1000), (30, 1500))  # clusters, records
LEARNERS = {"5-NN": KNeighborsRegressor(5), "ridge": Ridge(1.0)}
MISLINKED, FOLDS, PAIRS = 0.1, 5, 200
# the estimate, and the naive value plus the ends of the correction's interval; NaN if refused
Answer = tuple[float, float, float]
Split = list[tuple[NDArray, NDArray]]


def split(fold_of_cluster: NDArray, labels: NDArray) -> Split:
    fold = fold_of_cluster[labels]
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]


def loss(learner: Any, data: lo.leakage.Mixture, folds: Split) -> float:
    """The mean squared error of cross-validation, by a loop."""
    errors = []
    for train, test in folds:
        model = clone(learner).fit(data.X[train], data.y[train])
        errors.append((data.y[test] - model.predict(data.X[test])) ** 2)
    return float(np.mean(np.concatenate(errors)))


def corrected(
    learner: Any, data: lo.leakage.Mixture, folds: Split, precision: float, recall: float
) -> Answer:
    result = lo.leakage.leakage_corrected(
        learner, data.X, data.y, groups=data.filed, loss="mse", cv=folds,
        leakage=lo.leakage.RecordLeakage.from_pairwise(precision, recall),
        injection=lo.leakage.Injection(num_boot=50),
    )  # fmt: skip
    low, high = result.correction_interval()[:2]
    return result.estimate, result.naive + low, result.naive + high


def labelled(data: lo.leakage.Mixture, rng: np.random.Generator) -> tuple[float, float]:
    """Precision and recall from pairs whose truth somebody looked up."""
    rates = []
    for drawn_by, checked_by in ((data.filed, data.clusters), (data.clusters, data.filed)):
        hits = []
        while len(hits) < PAIRS:
            left = rng.integers(len(data.y))
            mates = np.flatnonzero(drawn_by == drawn_by[left])
            right = rng.choice(mates)
            if right != left:
                hits.append(checked_by[left] == checked_by[right])
        rates.append(float(np.mean(hits)))
    return rates[0], rates[1]


def answers(learner: Any, clusters: int, records: int, seed: int) -> dict[str, Answer]:
    """The truth, and every way's answer to one data set."""
    data = lo.leakage.mixture(clusters, records, mislinked=MISLINKED, rng=seed)
    rng = np.random.default_rng([seed, 1])
    fold_of_cluster = rng.permutation(clusters) % FOLDS
    folds = split(fold_of_cluster, data.filed)
    truth = loss(learner, data, split(fold_of_cluster, data.clusters))
    naive = loss(learner, data, folds)
    run = functools.partial(corrected, learner, data, folds)
    high = (1 - 1.5 * (1 - rate) for rate in (data.precision, data.recall))
    return {
        "truth": (truth, truth, truth),
        "naive": (naive, np.nan, np.nan),
        "rates": run(data.precision, data.recall),
        "rates too high": run(*high),
        "labelled": run(*labelled(data, rng)),
    }


def summary(sets: list[dict[str, Answer]]) -> list[dict[str, Any]]:
    truth = np.array([row["truth"][0] for row in sets])
    gap = np.mean(truth) - np.mean([row["naive"][0] for row in sets])
    rows = []
    for way in sets[0]:
        estimate, low, high = np.array([row[way] for row in sets]).T
        is_answer = np.isfinite(estimate)
        off = (estimate - truth)[is_answer]
        has_interval = np.isfinite(low)
        holds = (low <= truth) & (truth <= high)
        rows.append(
            {
                "way": way,
                "refused": int(np.sum(~is_answer)),
                "mean": float(np.mean(estimate[is_answer])),
                "off by": float(np.mean(off)),
                "of the gap": float(np.mean(off) / gap),
                "RMSE": float(np.sqrt(np.mean(off**2))),
                "interval holds it": f"{np.sum(holds)} of {np.sum(has_interval)}"
                if has_interval.any()
                else "",
            }
        )
    return rows[1:]


def main(num_sets: int) -> None:
    warnings.simplefilter("ignore", UserWarning)
    table = []
    for (clusters, records), (name, learner) in ((c, m) for c in CELLS for m in LEARNERS.items()):
        cell = f"{clusters} of {records // clusters}"

        def compute(learner: Any = learner, size: tuple[int, int] = (clusters, records)) -> list:
            return [answers(learner, *size, seed) for seed in range(num_sets)]

        rows = summary(saved.part("b3_unknown", f"{name}, {cell}", compute))
        table += [{"learner": name, "clusters": cell} | row for row in rows]
        print(
            f"\n{name}, {cell}\n{pd.DataFrame(rows).to_string(index=False, float_format='{:.3g}'.format)}",
            flush=True,
        )
    saved.save("b3_unknown", table, sets=num_sets)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=40)
    saved.add_option(parser)
    main(parser.parse_args().sets)
