"""Claims of the source documents that do not hold as printed: propositions 3 and 5 of the first,
the AUC of the third.

    LEAVEOUT_DATA=… python experiments/slips.py [--save]

Proposition 3 says that the styles are equivalent where the future of a chain is left out. Their
objectives agree at the weights of the fold, not on the way there, so that refits agree and the
infinitesimal jackknife, a derivative at weights one, does not. Proposition 5 says that the mean of
‖∇f‖ over the rows of a logistic regression concentrates at √D. The third document tunes by the AUC
of pooled leave-one-out predictions, which ranks predictions of different refits against one
another; leaving pairs of a sick and a healthy patient out ranks predictions of one refit.
"""

import argparse

import numpy as np
import pandas as pd
import saved
from loocv_heart import THEIR_BEST, load, our_fit
from sklearn.linear_model import LogisticRegression

import leaveout as lo

PENALTIES = (
    THEIR_BEST,
    {"alpha": 120.0, "beta": 38.6},
    {"alpha": 769.0, "beta": 0.0701},
    {"alpha": 1e5, "beta": 1e5},
)
PAIRS = 20_000  # of some 100,000, drawn at random
STRATEGIES = {"refits": lo.Exact(1e-10), "IJ": lo.InfinitesimalJackknife()}


def chain(rng: np.random.Generator, length: int) -> np.ndarray:
    """Counts of two states that change once in twenty steps."""
    states = np.cumsum(rng.random(length) < 0.05) % 2
    return rng.poisson(np.where(states == 0, 2.0, 9.0))


def proposition_3() -> list[dict[str, object]]:
    """Rates of the two states where the last tenth of 400 steps is left out, in both styles."""
    counts = chain(np.random.default_rng(0), 400)
    plan = lo.from_splits([(np.arange(360), np.arange(360, 400))], 400)
    rows = []
    for name, strategy in STRATEGIES.items():
        rates = {}
        for style, drop in (("A", "observation"), ("B", "step")):
            model = lo.HMM(counts, lo.emissions.Poisson(), 2, drop=drop, initial=[0.5, 0.5])
            rates[style] = np.sort(
                np.ravel(lo.fold_parameters(lo.fit(model), plan, strategy=strategy)["rate"])
            )
        rows.append(
            {"refit": name, "rates, A": rates["A"].tolist(), "rates, B": rates["B"].tolist()}
        )
        rows[-1]["largest difference"] = float(np.abs(rates["A"] - rates["B"]).max())
    return rows


def proposition_5() -> list[dict[str, object]]:
    """The mean of ‖∇f‖ beside √D for standard normal covariates."""
    rng, rows = np.random.default_rng(0), []
    for columns in (2, 10):
        for n in (200, 2_000, 20_000):
            X = rng.standard_normal((n, columns))
            y = rng.random(n) < 1 / (1 + np.exp(-X.sum(axis=1) / np.sqrt(columns)))
            host = LogisticRegression(C=1e8, fit_intercept=False, tol=1e-10, max_iter=1000).fit(
                X, y
            )
            norms = np.abs(host.predict_proba(X)[:, 1] - y) * np.linalg.norm(X, axis=1)
            rows.append(
                {"D": columns, "N": n, "mean of ‖∇f‖": norms.mean(), "√D": np.sqrt(columns)}
            )
    return rows


def wins(sick: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """1 where the sick patient has the higher prediction, ½ where both have the same."""
    return (sick > healthy) + 0.5 * (sick == healthy)


def pooled_auc() -> list[dict[str, object]]:
    """The AUC of pooled leave-one-out predictions beside that of pairs left out, over the same
    pairs.
    """
    data, rng = load(), np.random.default_rng(0)
    n, rows = len(data.y), []
    sick, healthy = (
        rng.choice(np.flatnonzero(data.y == 1), PAIRS),
        rng.choice(np.flatnonzero(data.y == 0), PAIRS),
    )
    plan = lo.from_splits(
        [(np.delete(np.arange(n), pair), pair) for pair in np.column_stack([sick, healthy])], n
    )
    for penalty in PENALTIES:
        fit = our_fit(data, **penalty)
        single = lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.NewtonStep(), kind="link")
        parameters = lo.fold_parameters(fit, plan, strategy=lo.NewtonStep())["coef"]
        in_pairs = [
            np.einsum("ij,ij->i", data.X[patients], parameters) for patients in (sick, healthy)
        ]
        difference = wins(*in_pairs) - wins(single[sick], single[healthy])
        row = penalty | {
            "pooled": wins(single[sick], single[healthy]).mean(),
            "by pairs": wins(*in_pairs).mean(),
        }
        rows.append(
            row
            | {"difference": difference.mean(), "its SE": difference.std(ddof=1) / np.sqrt(PAIRS)}
        )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    saved.add_option(parser)
    parser.parse_args()
    for part in (proposition_3, proposition_5, pooled_auc):
        rows = part()
        print(f"\n{part.__name__}\n{pd.DataFrame(rows).to_string(index=False)}")
        saved.save(f"slips_{part.__name__}", rows)
