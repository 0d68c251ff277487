"""The second source document's three experiments, and its solver on its authors' own saved bootstraps.

M. Barnes, A. Dubrawski, *The Binomial Block Bootstrap Estimator for Evaluating Loss on Dependent Clusters*. Records of V leak
into T with probability p₀ = 0.1; wanted is the loss on V of a learner trained on n′ records of T alone.

Leakage is simulated as the document does: each record trained on comes from V with probability p, else from T, whatever the
clusters' sizes (a tenth of 30,368 could not come from 221), at levels p from p₀ to 1. Ours draws exactly j records at 12
levels, 200 times, and chooses λ itself.

    LEAVEOUT_DATA=… python experiments/b3_document.py [--out out] [--replicates 10] [--boot 500]
"""

import argparse
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
from sklearn.svm import LinearSVC

import leaveout as lo
from leaveout import leakage

P0 = 0.1
OURS = "ours (12 levels × 200)"
DOCUMENT = {f"T{order}{' M' if monotone else ''}": (order, monotone) for monotone in (False, True) for order in (2, 3, 4)}


class Setting(NamedTuple):
    """What is trained on what: rows of T and V, n′, levels, the document's λ."""

    estimator: Any
    loss: str
    X: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    size: int
    levels: int
    lam: float


def synthetic(seed: int, size: int = 15) -> Setting:
    """Slopes 1 and 2 through the origin, x within ±1 and ±10, noise of SD ½, as in the authors' saved settings."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-1, 1, 5000), rng.uniform(-10, 10, 5000)])
    y = x * np.repeat([1.0, 2.0], 5000) + rng.normal(0, 0.5, 10_000)
    side = np.arange(10_000) >= 5000
    model = LinearRegression(fit_intercept=False)
    return Setting(model, "mse", x[:, None], y, np.flatnonzero(~side), np.flatnonzero(side), size, 2 * size, 0.1)


def census() -> Setting:
    """Income above 50,000 from age, schooling, hours, race and occupation; India and Canada against six other countries."""
    frame = lo.datasets.adult()
    home = ["United-States", "El-Salvador", "Germany", "Mexico", "Philippines", "Puerto-Rico"]
    train = frame["native_country"].isin(home).to_numpy()
    test = frame["native_country"].isin(["India", "Canada"]).to_numpy()
    numbers = frame[["age", "education_num", "hours_per_week"]]
    kinds = pd.get_dummies(frame[["race", "occupation"]].fillna("unknown"))
    X = np.column_stack([(numbers - numbers.mean()) / numbers.std(), kinds.to_numpy(float)])
    y = (frame["income"] == ">50K").to_numpy() * 1
    return Setting(LinearSVC(), "zero_one", X, y, np.flatnonzero(train), np.flatnonzero(test), 100, 201, 10.0)


def heart() -> Setting:
    """Heart disease from demographics and vital signs; Hungary against the three other hospitals.

    The document does not name its columns. These leave its 479 and 262 patients; so would others that hold the same four.
    """
    frame = lo.datasets.heart_uci()
    columns = ["age", "sex", "trestbps", "chol", "fbs", "thalach", "oldpeak"]
    frame = frame.dropna(subset=columns).reset_index(drop=True)
    X = ((frame[columns] - frame[columns].mean()) / frame[columns].std()).to_numpy()
    test = (frame["hospital"] == "hungarian").to_numpy()
    y = (frame["num"] > 0).to_numpy() * 1
    return Setting(LinearSVC(), "zero_one", X, y, np.flatnonzero(~test), np.flatnonzero(test), 100, 201, 10.0)


def stratified(s: Setting, draws: int, seed: int) -> np.ndarray:
    """The loss with exactly c of n′ records from V, `[c, draws]`: nothing leaks, so A is the identity."""
    labels = np.zeros(len(s.y), int)
    labels[s.test] = 1
    result = lo.leakage_corrected(
        s.estimator,
        s.X,
        s.y,
        groups=labels,
        leakage=lo.RecordLeakage(0.0),
        loss=s.loss,
        injection=lo.Injection(num_levels=s.size + 1, num_boot=draws, train_size=s.size, top=s.size),
        cv=[(s.train, s.test)],
        seed=seed,
    )
    return result.runs[0].test


def ours(s: Setting, by_count: np.ndarray, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Exactly j injected at 12 levels, the rest leaked with probability p₀; draw r is one of the stratified ones."""
    rng = np.random.default_rng([seed, 9])
    levels = np.unique(np.round(np.r_[0, np.geomspace(1, s.size, 11)]).astype(int))
    leaked = rng.random((by_count.shape[1], s.size)) < P0
    count = np.array([j + leaked[:, j:].sum(1) for j in levels])
    losses = np.take_along_axis(by_count, count, 0)
    A = lo.stratified_matrix(levels, s.size, P0)
    upper = 1.0 if s.loss == "zero_one" else None
    noise = np.cov(losses) / losses.shape[1]
    curve = lo.solve_curve(A, losses.mean(1), noise, order=3, upper=upper)
    return curve.estimate, curve.values, losses


def iid(s: Setting, draws: int, seed: int) -> float:
    """k-fold of the pooled records, as if independent: trained on n′ of them, tested on the others."""
    rng, values = np.random.default_rng([seed, 8]), []
    pool = np.r_[s.train, s.test]
    for _ in range(draws):
        rows = rng.permutation(pool)
        model = s.estimator.fit(s.X[rows[: s.size]], s.y[rows[: s.size]])
        predicted = model.predict(s.X[rows[s.size : s.size + 2000]])
        error = predicted - s.y[rows[s.size : s.size + 2000]]
        values.append(np.mean(error**2 if s.loss == "mse" else error != 0))
    return float(np.mean(values))


def experiment(name: str, make: Any, replicates: int, boot: int) -> tuple[pd.DataFrame, dict, np.ndarray]:
    """Estimates by replicate and method, mean curves, and the true e."""
    rows, curves = [], {}
    first = make(0)
    truth = np.mean([stratified(make(seed), 2000, 1000 + seed).mean(1) for seed in range(3)], axis=0)
    for seed in range(replicates):
        s = make(seed)
        levels = np.linspace(P0, 1, s.levels)
        found = lo.binomial_block_bootstrap(
            s.estimator, s.X, s.y, s.train, s.test, levels=levels, size=s.size, loss=s.loss, num_boot=boot, seed=seed
        )
        estimate, values, _ = ours(s, stratified(s, 200, seed), seed)
        row = {"IID": iid(s, 200, seed), "LOCO": found.losses[0], OURS: estimate}
        curves.setdefault(OURS, []).append(values)
        for label, (order, monotone) in DOCUMENT.items():
            curve = found.solve(order=order, lam=s.lam, monotone=monotone)
            row[label] = curve.estimate
            curves.setdefault(label, []).append(curve.values)
        rows.append(row)
    print(f"\n{name}: {len(first.train)} against {len(first.test)} records, n′ = {first.size}, {first.levels} levels × {boot}, "
          f"{replicates} replicates; e₀ = {truth[0]:.4g}, e at all leaked {truth[-1]:.4g}")  # fmt: skip
    frame = pd.DataFrame(rows)
    print(summary(frame, truth[0]).to_string(float_format="{:.4f}".format), flush=True)
    return frame, {label: np.mean(values, axis=0) for label, values in curves.items()}, truth


def summary(frame: pd.DataFrame, truth: float | np.ndarray) -> pd.DataFrame:
    off = frame.sub(truth, axis=0) if np.ndim(truth) else frame - truth
    return pd.DataFrame({"mean": frame.mean(), "bias": off.mean(), "RMSE": np.sqrt((off**2).mean())})


def refusal(seeds: int) -> None:
    """Experiment I at n′ = 100: the drop from e₀ lies within the first few leaked records, which no sample is free of."""
    said = []
    for seed in range(seeds):
        rng, s = np.random.default_rng([seed, 7]), synthetic(seed, 100)
        moved = rng.permutation(s.test)[:500]
        train, test = np.r_[s.train[:4500], moved], np.setdiff1d(s.test, moved)
        result = lo.leakage_corrected(
            s.estimator,
            s.X,
            s.y,
            groups=np.isin(np.arange(len(s.y)), test) * 1,
            leakage=lo.RecordLeakage(P0),
            loss="mse",
            injection=lo.Injection(train_size=100),
            cv=[(train, test)],
            seed=seed,
        )
        said.append(bool(result.refusal))
    truth = stratified(synthetic(0, 100), 2000, 0).mean(1)
    print(
        f"\nExperiment I at n′ = 100: refused in {sum(said)} of {seeds}; e₀ = {truth[0]:.3g}, e₁₀ = {truth[10]:.3g}. "
        f"The last:\n{result}"
    )


def saved() -> None:
    """The document's solver on the losses that its authors saved, and ours where their trials give the covariance."""
    for name, lam in (("synthetic", 0.1), ("census", 10.0), ("heart", 10.0)):
        A, losses, truth, _ = lo.datasets.b3_bootstraps(name)
        upper = None if name == "synthetic" else 1.0
        rows = []
        noise = np.cov(losses)  # over trials, which share their data: of one trial's losses
        for b in losses.T:
            row = {"LOCO (no correction)": b[0]}
            for label, (order, monotone) in DOCUMENT.items():
                row[f"{label}, squared norms"] = lo.solve_curve(A, b, order=order, lam=lam, monotone=monotone).estimate
                row[f"{label}, norms not squared"] = leakage.solve_unsquared(A, b, order, lam, monotone).estimate
            row["T3 M, λ by UPRE"] = lo.solve_curve(A, b, noise, order=3, upper=upper).estimate
            rows.append(row)
        print(f"\nthe authors' {name}: {A.shape[0]} levels, n′ = {A.shape[1] - 1}, {losses.shape[1]} trials, λ = {lam}; "
              f"their e₀ = {truth[0].mean():.4g}")  # fmt: skip
        print(summary(pd.DataFrame(rows), truth[0]).to_string(float_format="{:.4f}".format), flush=True)


def picture(found: dict[str, tuple], path: Path) -> None:
    """Boxes of ê₀ on the left, e on the right, one row an experiment."""
    figure, axes = plt.subplots(len(found), 2, figsize=(11, 3.4 * len(found)), layout="constrained", squeeze=False)
    for (left, right), (name, (frame, curves, truth)) in zip(axes, found.items(), strict=True):
        left.boxplot([frame[label] for label in frame], tick_labels=[label.split(" (")[0] for label in frame], widths=0.6)
        left.axhline(truth[0], color="k", linestyle="--", linewidth=0.9)
        left.tick_params(axis="x", rotation=60)
        left.set(title=name, ylabel="ê₀ (dashed: truth)")
        right.plot(truth, "k--", label="truth")
        for label in (OURS, "T2 M", "T4 M"):
            right.plot(curves[label], label=label, linewidth=1)
        right.set(xlabel="leaked records among those trained on", ylabel="loss")
        right.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def figure_one(truth: np.ndarray, path: Path) -> None:
    """The document's Figure 1: accuracy on a new hospital by the share of leaked records trained on."""
    figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    share = np.linspace(0, 1, 101)
    ax.plot(share, 1 - lo.binomial_matrix(share, len(truth) - 1) @ truth)
    ax.set(
        xlabel="probability that a record trained on is leaked",
        ylabel="accuracy",
        title="Heart disease: accuracy rises with leakage",
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"\nFigure 1: accuracy {1 - truth[0]:.3f} with no leakage, {1 - truth[-1]:.3f} with all leaked")


def main(out: Path, replicates: int, boot: int) -> None:
    warnings.filterwarnings("ignore", message="leakage_corrected", category=UserWarning)  # one cluster a side, by design
    out.mkdir(parents=True, exist_ok=True)
    saved()
    refusal(10)
    fixed_heart, fixed_census = heart(), census()
    settings = {
        "I synthetic": synthetic,
        "III heart disease": lambda seed: fixed_heart,
        "II census": lambda seed: fixed_census,
    }
    found = {}
    for name, make in settings.items():
        found[name] = experiment(name, make, replicates, 1000 if name.startswith("I s") else boot)
        picture(found, out / "b3_document.png")
        if name.startswith("III"):
            figure_one(found[name][2], out / "b3_heart_leakage.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--replicates", type=int, default=10)
    parser.add_argument("--boot", type=int, default=500)
    main(**vars(parser.parse_args()))
