"""Forty clusters of 25 records, three nearest neighbours, five folds: what record linkage does to
grouped cross-validation.

A tenth of the records is mislinked, p known from the linkage's precision and recall alone; or
entities are cut in halves. The truth is the loss on 400 fresh clusters, after training on four
fifths of the rightly clustered data. All in squared error.

    python experiments/b3_realistic.py [--replications 60]
"""

import argparse
import warnings
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsRegressor

import leaveout as lo

CLUSTERS, RECORDS, FEATURES = 40, 25, 4
MISLINKED, CUT = 0.1, 0.25
MODEL = KNeighborsRegressor(3)


def world(
    rng: np.random.Generator, clusters: int, slope: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each cluster has a place of its own and a level of its own.

    Neighbours within it know its level.
    """
    label = np.repeat(np.arange(clusters), RECORDS)
    X = 1.5 * rng.normal(size=(clusters, FEATURES))[label] + 0.7 * rng.normal(
        size=(len(label), FEATURES)
    )
    y = 0.5 * (X @ slope + rng.normal(size=clusters)[label] + 0.3 * rng.normal(size=len(label)))
    return X, y, label


def mislinked(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Each record filed under another cluster with probability 0.1, at random."""
    wrong = rng.random(len(label)) < MISLINKED
    return np.where(wrong, (label + rng.integers(1, CLUSTERS, len(label))) % CLUSTERS, label)


def cut(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """A quarter of the entities are filed as two."""
    filed = label.copy()
    for k in rng.permutation(CLUSTERS)[: round(CUT * CLUSTERS)]:
        members = rng.permutation(np.flatnonzero(label == k))
        filed[members[: len(members) // 2]] = CLUSTERS + k
    return filed


def pairwise(label: np.ndarray, filed: np.ndarray) -> tuple[float, float]:
    """Precision and recall of the linkage, over pairs."""
    pairs = lambda codes: set().union(
        *(combinations(np.flatnonzero(codes == k).tolist(), 2) for k in np.unique(codes))
    )
    true, found = pairs(label), pairs(filed)
    return len(true & found) / len(found), len(true & found) / len(true)


def truth(
    rng: np.random.Generator, X: np.ndarray, y: np.ndarray, label: np.ndarray, slope: np.ndarray
) -> tuple[float, float]:
    """The loss on fresh clusters of fits to the folds' training sets, and grouped k-fold with the
    right clusters.
    """
    Xn, yn, _ = world(rng, 400, slope)
    fresh, right = [], []
    for train, test in GroupKFold(5).split(X, y, label):
        model = MODEL.fit(X[train], y[train])
        fresh.append(np.mean((model.predict(Xn) - yn) ** 2))
        right.append(np.mean((model.predict(X[test]) - y[test]) ** 2))
    return float(np.mean(fresh)), float(np.mean(right))


def replication(seed: int) -> list[dict]:
    rng = np.random.default_rng([seed, 5])
    slope = rng.normal(0, 0.5, FEATURES)
    X, y, label = world(rng, CLUSTERS, slope)
    fresh, right = truth(rng, X, y, label, slope)
    rows = []
    for what, filed in (
        ("records mislinked", mislinked(rng, label)),
        ("entities cut in halves", cut(rng, label)),
    ):
        precision, recall = pairwise(label, filed)
        models: dict[str, Any] = {
            "record": lo.leakage.RecordLeakage.from_pairwise(precision, recall)
        }
        if what.startswith("ent"):
            models["split"] = lo.leakage.SplitLeakage.from_pairwise(precision, recall)
        for mechanism, leakage in models.items():
            result = lo.leakage.leakage_corrected(
                MODEL, X, y, groups=filed, leakage=leakage, loss="mse", rng=seed
            )
            row = {
                "what": what,
                "mechanism": mechanism,
                "fresh": fresh,
                "right": right,
                "naive": result.naive,
                "iid": result.iid,
            }
            row |= {
                "estimate": result.solved.estimate,
                "refused": bool(result.refusal),
                "se_mc": result.se_mc,
            }
            rows.append(row | {"se_data": result.se_data, "precision": precision, "recall": recall})
    return rows


def main(replications: int) -> None:
    # that precision and recall part, for the cut entities: by design
    warnings.filterwarnings("ignore", category=UserWarning)
    frame = pd.DataFrame([row for seed in range(replications) for row in replication(seed)])
    for (what, mechanism), part in frame.groupby(["what", "mechanism"], sort=False):
        mean, root = part.mean(numeric_only=True), np.sqrt(len(part))
        print(
            f"\n{what}, corrected for mechanism '{mechanism}', {len(part)} replications; refused {mean['refused']:.0%}"
        )
        print(f"  precision {mean['precision']:.3f}, recall {mean['recall']:.3f}")
        losses = ("fresh", "right", "naive", "iid", "estimate")
        print("  loss on " + ", ".join(f"{name} {mean[name]:.4f}" for name in losses))
        for against in ("fresh", "right"):
            naive, off = part["naive"] - part[against], part["estimate"] - part[against]
            print(
                f"  against {against} clusters: bias of naive {naive.mean():+.4f}, of corrected {off.mean():+.4f}",
                end=" ",
            )
            print(
                f"± {off.std() / root:.4f}, removed {1 - off.mean() / naive.mean():.0%};", end=" "
            )
            print(f"RMSE {np.sqrt((naive**2).mean()):.4f} and {np.sqrt((off**2).mean()):.4f}")
        print(
            f"  data SE {mean['se_data']:.4f}, SD over data {part['estimate'].std():.4f}, Monte-Carlo SE {mean['se_mc']:.4f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=60)
    main(**vars(parser.parse_args()))
