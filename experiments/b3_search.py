"""The second source document's search for an unknown leakage (its Algorithms 2 and 4), beside the
proof that it cannot find it.

The search solves the system at every candidate and takes the one with the least residual.
`lo.leakage.residual_profile` proves that this lands at no leakage at all: without a regulariser all
candidates fit equally well (the systems share one column space, so what is least is rounding), and
with the document's trend filter or its constraint nothing has a lower objective than zero. Shown
here on the losses that its authors saved (one way) and, both ways, on data whose leakage is known
because we moved the records.

    LEAVEOUT_DATA=… python experiments/b3_search.py [--boot 400] [--save]
"""

import argparse

import numpy as np
import pandas as pd
import saved
from b3_settings import HEART, Setting, drawn_losses, heart, synthetic, theirs
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from sklearn.svm import SVC

import leaveout as lo

SIZE, LEVELS = 8, 17
LINE = [0.0, 0.1, 0.2, 0.3, 0.4]
WAYS = {"none": (0.0, False), "M": (0.0, True), "T2": (0.1, False), "T2 M": (0.1, True)}


def one_way() -> None:
    """Algorithm 2 on the authors' saved losses, means over their trials; the true p₀ is 0.1."""
    for name, lam in (("synthetic", 0.1), ("census", 10.0), ("heart", 10.0)):
        A, losses, truth, p0 = lo.datasets.b3_bootstraps(name)
        levels = (np.linspace(p0, 1, len(A)) - p0) / (1 - p0)
        rows = {}
        for label, (strength, monotone) in WAYS.items():
            how = {"lam": lam * (strength > 0), "monotone": monotone}
            found = lo.leakage.residual_profile(levels, losses.mean(1), A.shape[1] - 1, LINE, **how)
            at = found["objective"].idxmin()
            rows[label] = {
                f"p̂₀ = {p:g}": value for p, value in zip(LINE, found["objective"], strict=True)
            }
            rows[label] |= {
                "argmin": found["p0"][at],
                "ê₀ there": found["estimate"][at],
                "ê₀ at 0.1": found["estimate"][1],
            }
        print(
            f"\nthe authors' {name}, p₀ = {p0:g}, λ = {lam:g}, their e₀ = {truth[0].mean():.4g}: objective by candidate"
        )
        print(pd.DataFrame(rows).T.to_string(float_format="{:.6g}".format), flush=True)
        table = pd.DataFrame(rows).T.reset_index(names="regulariser")
        saved.save(f"b3_search_{name}", table, truth=truth[0].mean())


def moved(s: Setting, p: float, q: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """T̂ and V̂ as large as they can be with shares p and q from the other side."""
    rng = np.random.default_rng([seed, 11])
    T, V = rng.permutation(s.train), rng.permutation(s.test)
    size = int(min(len(T), len(V)) * 0.6)
    into_train, into_test = round(p * size), round(q * size)
    train = np.r_[T[: size - into_train], V[:into_train]]
    return train, np.r_[V[into_train : into_train + size - into_test], T[size : size + into_test]]


def both_ways(
    name: str, s: Setting, estimator: LinearRegression | SVC, X: NDArray[np.float64], boot: int
) -> None:
    """Algorithm 4 on b of a product grid of levels, with the leakage that we put there."""
    levels = np.linspace(0, 1, LEVELS)
    candidates = [(p, q) for p in LINE for q in LINE]
    rows = []
    for p, q in ((0.0, 0.0), (0.1, 0.0), (0.1, 0.1), (0.3, 0.2)):
        train, test = moved(s, p, q, 0)
        how = {
            "direction": "both",
            "size": SIZE,
            "levels": levels,
            "num_boot": boot,
            "loss": s.loss,
        }
        b = lo.leakage.binomial_block_bootstrap(estimator, X, s.y, train, test, **how).losses
        for label, (lam, monotone) in WAYS.items():
            found = lo.leakage.residual_profile(
                (levels, levels), b, (SIZE, SIZE), candidates, lam=lam, monotone=monotone
            )
            objective = found["objective"]
            at, true = objective.idxmin(), candidates.index((p, q))
            rows.append(
                {
                    "true p, q": f"{p:g}, {q:g}",
                    "regulariser": label,
                    "at 0, 0": objective[0],
                    "at the true": objective[true],
                    "at 0.4, 0.4": objective.iloc[-1],
                    "argmin": f"{found['p_train'][at]:g}, {found['p_test'][at]:g}",
                    "lower by": 1 - objective[at] / objective[0],
                    "ê₀ at 0, 0": found["estimate"][0],
                    "ê₀ at the true": found["estimate"][true],
                }
            )
        if (p, q) == (0.3, 0.2):
            grids = {
                label: profile(levels, b, candidates, *WAYS[label]) for label in ("none", "T2 M")
            }
    e = drawn_losses(s._replace(size=SIZE), np.zeros((2000, 1), int), 0).mean()
    print(
        f"\n{name}, n′ = {SIZE} both ways, {LEVELS} × {LEVELS} levels × {boot}; λ = 0.1; e₀ = {e:.4g}"
    )
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.6g}".format))
    experiment = name.split()[1].removesuffix("'s")
    saved.save(f"b3_search_both_{experiment}", rows, truth=e)
    for label, grid in grids.items():
        print(f"objective by candidate p̂ (down) and q̂, regulariser {label}, true 0.3, 0.2")
        print(grid.to_string(float_format="{:.7g}".format), flush=True)


def profile(
    levels: NDArray, b: NDArray, candidates: list[tuple[float, float]], lam: float, monotone: bool
) -> pd.DataFrame:
    found = lo.leakage.residual_profile(
        (levels, levels), b, (SIZE, SIZE), candidates, lam=lam, monotone=monotone
    )
    return found.set_index(["p_train", "p_test"])["objective"].unstack()  # noqa: PD010


def main(boot: int) -> None:
    one_way()
    line, hospitals = synthetic(0), theirs(heart(), HEART)
    both_ways(
        "Experiment I's data", line, LinearRegression(fit_intercept=False), line.learner.X, boot
    )
    both_ways("Experiment III's data", hospitals, SVC(kernel="linear"), hospitals.learner.X, boot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--boot", type=int, default=400)
    saved.add_option(parser)
    main(parser.parse_args().boot)
