"""The second source document's three experiments at its own size, and its solver on its authors'
own saved bootstraps.

Records of V leak into T with probability p₀ = 0.1; wanted is the loss on V of a learner trained on
n′ records of T alone. The settings are the authors' (`b3_settings.py`; other readings:
`b3_readings.py`). Leakage is simulated as the document does: each record trained on comes from V
with probability p, else from T, whatever the clusters' sizes (a tenth of 30,368 could not come from
221), at levels p from p₀ to 1, 2,500 times a level (1,000 in Experiment I). Ours draws exactly j
records at 12 levels, 200 times, and chooses λ itself.

    LEAVEOUT_DATA=… python experiments/b3_document.py [--out out] [--replicates 10] [--boot 2500]
    [--save] [--afresh]

A replicate of II or III is half a million fits. They are made in turn, and all is told, and kept,
after each: what is stopped has as many of one as of the other, and goes on when it is started
again.
"""

import argparse
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import saved
from b3_settings import CENSUS, HEART, Setting, census, drawn_losses, heart, synthetic, theirs
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from sklearn.svm import SVC

import leaveout as lo
from leaveout import leakage

P0 = 0.1
OURS = "ours (12 levels × 200)"
DOCUMENT = {"M": (2, True)} | {
    f"T{q}{' M' if monotone else ''}": (q, monotone)
    for monotone in (False, True)
    for q in (2, 3, 4)
}


class Experiment(NamedTuple):
    """A setting for each replicate, how many, bootstraps a level; and what there is so far: the
    true e, a row of estimates a replicate, their curves."""

    make: Callable[[int], Setting]
    replicates: int
    boot: int
    truth: NDArray[np.float64]
    rows: list[dict[str, float]]
    curves: dict[str, list[NDArray[np.float64]]]

    @property
    def levels(self) -> NDArray[np.float64]:
        return np.linspace(P0, 1, 2 * len(self.truth) - 1)


def variants(lam: float, bounded: bool) -> dict[str, dict[str, Any]]:
    """How the document solves for e: monotone only, or with a trend filter of order 2 to 4.

    `bounded` losses are at most 1.
    """
    rows: dict[str, dict[str, Any]] = {"M": {"order": 2, "lam": 0.0}}
    if bounded:
        rows["M, at most 1"] = {"order": 2, "lam": 0.0, "upper": 1.0}
    for monotone in (False, True):
        for order in (2, 3, 4):
            rows[f"T{order}{' M' if monotone else ''}"] = {
                "order": order,
                "lam": lam,
                "monotone": monotone,
            }
    return rows


def by_count(s: Setting, draws: int, seed: int) -> NDArray[np.float64]:
    """The loss with exactly c of n′ records from V, `[c, draws]`."""
    return drawn_losses(s, np.tile(np.arange(s.size + 1), (draws, 1)), seed).T


def true_losses(s: Setting, seed: int) -> NDArray[np.float64]:
    """e, with more fits at e₀, which all is measured by."""
    e = by_count(s, 400, seed).mean(1)
    e[0] = drawn_losses(s, np.zeros((4000, 1), int), seed + 100).mean()
    return e


def bootstrapped(
    s: Setting, levels: NDArray[np.float64], boot: int, seed: int
) -> NDArray[np.float64]:
    """b, its Algorithm 1.

    At each level the mean loss of `boot` fits to Binomial(n′, p) records of V and others of T.
    """
    rng = np.random.default_rng([seed, 10])
    counts = rng.binomial(s.size, levels[:, None], (len(levels), boot))
    return drawn_losses(s, counts.reshape(-1, 1), seed).reshape(counts.shape).mean(1)


def ours(s: Setting, losses: NDArray[np.float64], seed: int) -> tuple[float, NDArray[np.float64]]:
    """Exactly j injected at 12 levels, the rest leaked with probability p₀.

    Draw r is one of the stratified ones.
    """
    rng = np.random.default_rng([seed, 9])
    levels = np.unique(np.round(np.r_[0, np.geomspace(1, s.size, 11)]).astype(int))
    leaked = rng.random((losses.shape[1], s.size)) < P0
    count = np.array([j + leaked[:, j:].sum(1) for j in levels])
    drawn = np.take_along_axis(losses, count, 0)
    A = lo.leakage.stratified_matrix(levels, s.size, P0)
    upper = 1.0 if s.loss == "zero_one" else None
    curve = lo.leakage.solve_curve(
        A, drawn.mean(1), np.cov(drawn) / drawn.shape[1], order=3, upper=upper
    )
    return curve.estimate, curve.values


def iid(s: Setting, draws: int, seed: int) -> float:
    """k-fold of the pooled records, as if independent.

    Trained on n′ of them, tested on the others.
    """
    rng, values = np.random.default_rng([seed, 8]), []
    pool = np.r_[s.train, s.test]
    for _ in range(draws):
        rows = rng.permutation(pool)
        tested = rows[s.size : s.size + 2000]
        values.append(s.losses(s.predict(rows[None, : s.size], tested), tested).mean())
    return float(np.mean(values))


def begun(name: str, make: Callable[[int], Setting], replicates: int, boot: int) -> Experiment:
    """None so far."""
    truths = lambda: [true_losses(make(seed), 1000 + seed) for seed in range(3)]
    truth = np.mean(saved.part(stem(name), "truth", truths), axis=0)
    return Experiment(make, replicates, boot, truth, [], {})


def stem(name: str) -> str:
    return f"b3_{name.split()[1]}"


Replicate = tuple[dict[str, float], dict[str, NDArray[np.float64]]]


def replicate(x: Experiment, seed: int) -> Replicate:
    """A row of estimates by method, and their curves."""
    s = x.make(seed)
    A, b = lo.leakage.binomial_matrix(x.levels, s.size), bootstrapped(s, x.levels, x.boot, seed)
    estimate, values = ours(s, by_count(s, 200, seed), seed)
    row = {
        "IID": iid(s, 200, seed),
        "the authors' IID": x.truth[s.size // 2],
        "LOCO": b[0],
        OURS: estimate,
    }
    curves = {OURS: values}
    for label, how in variants(s.lam, s.loss == "zero_one").items():
        curve = lo.leakage.solve_curve(A, b, **how)
        row[label] = curve.estimate
        curves[label] = curve.values
    return row, curves


def tell(name: str, x: Experiment) -> None:
    s, frame, e = x.make(0), pd.DataFrame(x.rows), x.truth
    print(f"\n{name}: {len(s.train)} against {len(s.test)} records, n′ = {s.size}, {len(x.levels)} levels × {x.boot}, "
          f"{len(frame)} replicates; e₀ = {e[0]:.4g}, e₁₀ = {e[10]:.4g}, e at all leaked {e[-1]:.4g}")  # fmt: skip
    table = summary(frame, e[0])
    print(table.to_string(float_format="{:.4f}".format), flush=True)
    told = {"replicates": len(frame), "truth": e, "estimates": x.rows}
    saved.save(stem(name), table.reset_index(names="estimator"), **told)


def summary(frame: pd.DataFrame, truth: float | NDArray[np.float64]) -> pd.DataFrame:
    off = frame.sub(truth, axis=0)
    return pd.DataFrame(
        {"mean": frame.mean(), "bias": off.mean(), "RMSE": np.sqrt((off**2).mean())}
    )


def refusal(
    name: str, make: Callable[[int], Setting], estimator: LinearRegression | SVC, seeds: int
) -> None:
    """`leakage_corrected` itself, n′ trained on and a tenth of T̂ moved there from V.

    Hardly a sample has no leak in it.
    """
    said, drawn = [], []
    for seed in range(seeds):
        rng, s = np.random.default_rng([seed, 7]), make(seed)
        count = round(P0 * len(s.train))
        moved = rng.permutation(s.test)[:count]
        train, test = np.r_[rng.permutation(s.train)[count:], moved], np.setdiff1d(s.test, moved)
        result = lo.leakage.leakage_corrected(
            estimator,
            s.learner.X,
            s.y,
            groups=np.isin(np.arange(len(s.y)), test) * 1,
            leakage=lo.leakage.RecordLeakage(P0),
            loss=s.loss,
            injection=lo.leakage.Injection(train_size=s.size),
            cv=[(train, test)],
            rng=seed,
        )
        said.append(bool(result.refusal))
        drawn.append([result.naive, result.solved.estimate])
    e = drawn_losses(make(0), np.tile([0, 10], (2000, 1)), 0).mean(0)
    naive, solved = np.mean(drawn, axis=0)
    row = {
        "refused": sum(said),
        "of": seeds,
        "e₀": e[0],
        "e₁₀": e[1],
        "naive": naive,
        "trend filter": solved,
    }
    saved.save(f"b3_refusal_{name.split()[1]}", [row])
    print(
        f"\n{name} at n′ = 100: refused in {sum(said)} of {seeds}; e₀ = {e[0]:.3g}, e₁₀ = {e[1]:.3g}, naive {naive:.3g}, "
        f"trend filter {solved:.3g}. The last:\n{result}",
        flush=True,
    )


def on_theirs() -> None:
    """The document's solver on the losses that its authors saved, and ours where their trials give
    the covariance.
    """
    for name, lam in (("synthetic", 0.1), ("census", 10.0), ("heart", 10.0)):
        A, losses, truth, _ = lo.datasets.b3_bootstraps(name)
        upper = None if name == "synthetic" else 1.0
        rows = []
        noise = np.cov(losses)  # over trials, which share their data: of one trial's losses
        for b in losses.T:
            row = {"LOCO (no correction)": b[0]}
            for label, how in variants(lam, upper is not None).items():
                trend = label.startswith("T")
                row[f"{label}, squared norms" if trend else label] = lo.leakage.solve_curve(
                    A, b, **how
                ).estimate
                if trend:
                    unsquared = leakage.solve_unsquared(A, b, how["order"], lam, how["monotone"])
                    row[f"{label}, norms not squared"] = unsquared.estimate
            row["T3 M, λ by UPRE"] = lo.leakage.solve_curve(
                A, b, noise, order=3, upper=upper
            ).estimate
            rows.append(row)
        print(f"\nthe authors' {name}: {A.shape[0]} levels, n′ = {A.shape[1] - 1}, {losses.shape[1]} trials, λ = {lam}; "
              f"their e₀ = {truth[0].mean():.4g}")  # fmt: skip
        table = summary(pd.DataFrame(rows), truth[0])
        print(table.to_string(float_format="{:.4f}".format), flush=True)
        saved.save(f"b3_{name}_theirs", table.reset_index(names="estimator"), truth=truth[0].mean())


def picture(found: dict[str, Experiment], path: Path) -> None:
    """Boxes of ê₀ on the left (of what is nowhere off by more than e₀ itself), e on the right.

    One row an experiment.
    """
    figure, axes = plt.subplots(
        len(found), 2, figsize=(11, 3.4 * len(found)), layout="constrained", squeeze=False
    )
    for (left, right), (name, x) in zip(axes, found.items(), strict=True):
        frame, truth = pd.DataFrame(x.rows), x.truth
        shown = [label for label in frame if np.abs(frame[label] - truth[0]).max() <= truth[0]]
        left.boxplot(
            [frame[label] for label in shown],
            tick_labels=[label.split(" (")[0] for label in shown],
            widths=0.6,
        )
        left.axhline(truth[0], color="k", linestyle="--", linewidth=0.9)
        left.tick_params(axis="x", rotation=75)
        left.set(title=name, ylabel="ê₀ (dashed: truth)")
        right.plot(truth, "k--", label="truth")
        right.plot(
            lo.datasets.b3_bootstraps(name.split()[1]).truth.mean(1),
            color="0.6",
            label="the authors' truth",
        )
        for label in (each for each in (OURS, "T2 M", "T4 M") if each in x.curves):
            right.plot(np.mean(x.curves[label], axis=0), label=label, linewidth=1)
        right.set(xlabel="leaked records among those trained on", ylabel="loss")
        right.legend(frameon=False)
    figure.savefig(path, dpi=110)
    saved.picture(figure, "leakage_document")
    plt.close(figure)


def figure_one(truth: NDArray[np.float64], path: Path) -> None:
    """The document's Figure 1.

    Accuracy on a new hospital by the share of leaked records trained on; what its 25 % is of.
    """
    figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    share, rows = np.linspace(0, 1, 101), {}
    for label, e in (
        ("ours", truth),
        ("the authors'", lo.datasets.b3_bootstraps("heart").truth.mean(1)),
    ):
        ax.plot(share, 1 - lo.leakage.binomial_matrix(share, len(e) - 1) @ e, label=label)
        rows[label] = {
            "accuracy, no leakage": 1 - e[0],
            "all leaked": 1 - e[-1],
            "points": 100 * (e[0] - e[-1]),
            "% of the accuracy": 100 * (e[0] - e[-1]) / (1 - e[0]),
            "% of the error": 100 * (e[0] - e[-1]) / e[0],
        }
    ax.set(
        xlabel="probability that a record trained on is leaked",
        ylabel="accuracy",
        title="Heart disease: accuracy rises with leakage",
    )
    ax.legend(frameon=False)
    figure.savefig(path, dpi=110)
    saved.picture(figure, "leakage_heart")
    plt.close(figure)
    saved.save("b3_figure1", pd.DataFrame(rows).T.reset_index(names="curve"))
    print(
        f"\nFigure 1, and what its 25 % is of:\n{pd.DataFrame(rows).T.to_string(float_format='{:.3f}'.format)}",
        flush=True,
    )


def main(out: Path, replicates: int, boot: int) -> None:
    # one cluster a side, by design
    warnings.filterwarnings("ignore", message="leakage_corrected", category=UserWarning)
    out.mkdir(parents=True, exist_ok=True)
    hospitals, countries = theirs(heart(), HEART), theirs(census(), CENSUS)
    on_theirs()
    line = LinearRegression(fit_intercept=False)
    refusal("Experiment I", lambda seed: synthetic(seed, 100), line, 10)
    refusal("Experiment III", lambda seed: hospitals, SVC(kernel="linear"), 10)
    settings = {
        "I synthetic": (synthetic, 10, 1000),
        "III heart disease": (lambda seed: hospitals, replicates, boot),
        "II census": (lambda seed: countries, replicates, boot),
    }
    found = {name: begun(name, *setting) for name, setting in settings.items()}
    figure_one(found["III heart disease"].truth, out / "b3_heart_leakage.png")
    for seed in range(max(x.replicates for x in found.values())):
        for name, x in found.items():
            if seed < x.replicates:
                make = functools.partial(replicate, x, seed)
                row, curves = saved.part(stem(name), f"replicate {seed}", make)
                x.rows.append(row)
                for method, values in curves.items():
                    x.curves.setdefault(method, []).append(values)
                tell(name, x)
        picture(found, out / "b3_document.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--replicates", type=int, default=10, help="of Experiments II and III")
    parser.add_argument("--boot", type=int, default=2500, help="theirs a level")
    saved.add_option(parser)
    given = parser.parse_args()
    main(given.out, given.replicates, given.boot)
