"""Claims of the source documents that do not hold as printed: propositions 3 and 5 of the first,
the AUC of the third.

    LEAVEOUT_DATA=… python experiments/slips.py [proposition_3 proposition_5 pooled_auc]
                                                                    [--quick] [--save] [--afresh]

Proposition 3 says that the styles are equivalent where the future of a chain is left out. Their
objectives agree at the weights of the fold, not on the way there, so that refits agree and the
infinitesimal jackknife, a derivative at weights one, does not. Proposition 5 says that the mean of
‖∇f‖ over the rows of a logistic regression concentrates at √D. The third document tunes by the AUC
of pooled leave-one-out predictions, which ranks predictions of different refits against one
another; leaving pairs of a sick and a healthy patient out ranks predictions of one refit.

Definition 1 calls V sub-Gaussian with constant c if E exp(V²/c²) ≤ 2. The proof of proposition 5
needs a variance of one, which it does not assume, bounds ‖∇f‖ by ‖x‖ from above only, and takes
‖x‖ − √D for centred, whose mean is negative.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
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


Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
COVARIATES: dict[str, tuple[float, Draw]] = {  # the least c of definition 1, in closed form
    "normal, variance 1": (np.sqrt(8 / 3), lambda rng, shape: rng.standard_normal(shape)),
    "normal, variance 1/4": (np.sqrt(2 / 3), lambda rng, shape: 0.5 * rng.standard_normal(shape)),
    "±1": (np.log(2) ** -0.5, lambda rng, shape: rng.choice([-1.0, 1.0], shape)),
}
REPETITIONS = 3 if saved.QUICK else 100
DEPARTURE = 0.25  # t, as a share of √D


def proposition_5() -> list[dict[str, object]]:
    """The mean of ‖∇f‖ at the fit beside √D, and how often it is off by more than √D / 4: by the
    proposition's bound seldom, and the less so the more rows there are.
    """
    rows = []
    for covariates, (c, draw) in COVARIATES.items():
        rng = np.random.default_rng(0)
        mean_of_exp = np.exp((draw(rng, (1_000_000, 1)) / (1.0001 * c)) ** 2).mean()
        for columns in (2, 10):
            for n in (200, 2_000, 20_000):
                means = np.array(
                    [gradient_norms(rng, draw, n, columns) for _ in range(REPETITIONS)]
                )
                norms, lengths = means.T
                row = {"covariates": covariates, "c": c, "E exp(V²/c²)": mean_of_exp}
                row |= {"D": columns, "N": n, "mean of ‖∇f‖": norms.mean(), "its SD": norms.std()}
                row |= {"mean of ‖x‖": lengths.mean(), "√D": np.sqrt(columns)}
                far = np.abs(norms - np.sqrt(columns)) >= DEPARTURE * np.sqrt(columns)
                rows.append(row | {"off by √D/4": far.mean()})
    figure5(pd.DataFrame(rows))
    return rows


def gradient_norms(
    rng: np.random.Generator, draw: Draw, n: int, columns: int
) -> tuple[float, float]:
    """Means of ‖∇f‖ and of ‖x‖ of one sample, at the fit of a logistic regression."""
    X = draw(rng, (n, columns))
    y = rng.random(n) < 1 / (1 + np.exp(-X.sum(axis=1) / np.sqrt(columns)))
    host = LogisticRegression(C=1e8, fit_intercept=False, tol=1e-10, max_iter=1000).fit(X, y)
    lengths = np.linalg.norm(X, axis=1)
    residuals = np.abs(host.predict_proba(X)[:, 1] - y)
    return (residuals * lengths).mean(), lengths.mean()


def figure5(table: pd.DataFrame) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for ax, columns in zip(axes, (2, 10), strict=True):
        for colour, (name, rows) in zip(
            ("C0", "C1", "C2"), table[table["D"] == columns].groupby("covariates"), strict=True
        ):
            root = np.sqrt(columns)
            ax.errorbar(
                rows["N"],
                rows["mean of ‖∇f‖"] / root,
                2 * rows["its SD"] / root,
                fmt="o-",
                color=colour,
                capsize=3,
                label=f"‖∇f‖, {name}",
            )
            ax.plot(rows["N"], rows["mean of ‖x‖"] / root, ":", color=colour)
        ax.axhline(1.0, color="k", lw=0.8)
        ax.set(xscale="log", xlabel="N", title=f"D = {columns}", ylim=(0, 1.1))
    axes[0].set(ylabel="mean over rows, / √D")
    axes[1].legend(fontsize=7, loc="center right")
    saved.picture(figure, "slips_proposition_5", dpi=80, colours=24)
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/slips_proposition_5.png", dpi=110)


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
        single = np.asarray(
            lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.NewtonStep(), kind="link")
        )
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


PARTS = {part.__name__: part for part in (proposition_3, proposition_5, pooled_auc)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"{' '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="three samples of each kind")
    saved.add_option(parser)
    for name in parser.parse_args().parts or PARTS:
        rows = saved.part(f"slips_{name}", "rows", PARTS[name])
        print(f"\n{name}\n{pd.DataFrame(rows).to_string(index=False)}")
        saved.save(f"slips_{name}", rows)
