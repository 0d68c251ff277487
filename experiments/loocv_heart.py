"""The third source document, whole: logistic regression stratified by sex, tuned by approximate
leave-one-out.

T. Shlomo, *Efficient Leave One Out Cross Validation, Part 2* (2024). One coefficient vector for
men, one for women,

    F(θ) = Σ_n log(1 + e^{−(2 y_n − 1) x_nᵀθ}) + θᵀ(α ridge + β laplacian)θ,

α and β chosen by Optuna for the AUC of the leave-one-out predictions. Ours stands beside the
document's numbers; its own method (uncompiled JAX, L-BFGS-B, ALO) is written out below and timed in
the same run, in float64; its refits are in float32, as there.

The fifty trials that it prints (`loocv_heart_trials.csv`: α, β, AUC) are evaluated again at their α
and β.

    LEAVEOUT_DATA=… python experiments/loocv_heart.py [--out out] [--trials 50] [--refits 642]
    [--save]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import optuna
import pandas as pd
import saved
import scipy.linalg
import scipy.optimize
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import leaveout as lo

DOCUMENT = {
    "patients to fit": 642,
    "patients to test": 276,
    "best LOO AUC": 0.9160781176837834,
    "test AUC": 0.9398954703832751,
    "mean |exact − approximate|": 4.465176e-05,
    "seconds, all refits": 47.0,
    "seconds, one fit and the formula": 0.13,
    "times faster": 357.0,
}
TRIALS = Path(__file__).with_name("loocv_heart_trials.csv")
THEIR_BEST = {"alpha": 6.553554396630455, "beta": 11.167094954503991}


class Data(NamedTuple):
    X: np.ndarray  # men's columns, then women's; column 0 of either half is its intercept
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load() -> Data:
    """The document's split and design.

    It orders the scaled columns by a set, we keep the order of the file.
    """
    frame = lo.datasets.heart_failure()
    y = frame.pop("HeartDisease").to_numpy(float)
    frame["one"] = 1.0
    frame = pd.get_dummies(frame, drop_first=True)
    train, test, y, y_test = train_test_split(frame, y, test_size=0.3, random_state=42)
    scaled = [c for c in frame.columns if c not in ("one", "Sex_M")]
    scaler = StandardScaler().fit(train[scaled].astype(float))

    def stratify(part):
        X = np.c_[part["one"], scaler.transform(part[scaled].astype(float))]
        man = part["Sex_M"].to_numpy(bool)[:, None]
        return np.hstack([X * man, X * ~man])

    return Data(stratify(train), y, stratify(test), y_test)


def penalty_matrix(m: int, alpha: float, beta: float) -> np.ndarray:
    """R of θᵀRθ: no ridge on the two intercepts, but a Laplacian between them."""
    ridge = np.eye(m)
    ridge[0, 0] = ridge[m // 2, m // 2] = 0
    return alpha * ridge + beta * np.kron([[1, -1], [-1, 1]], np.eye(m // 2))


def sigmoid(eta: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-eta))


# ours


def our_fit(data: Data, alpha: float, beta: float) -> lo.Fit:
    penalty = lo.penalties.Quadratic(2 * penalty_matrix(data.X.shape[1], alpha, beta))
    return lo.fit(lo.GLM(data.X, data.y, "logistic", penalty, intercept=False))


def our_predictions(data: Data, alpha: float, beta: float) -> np.ndarray:
    return lo.cross_predict(
        our_fit(data, alpha, beta), lo.leave_one_out(), strategy=lo.NewtonStep()
    )


def tune(data: Data, trials: int) -> tuple[optuna.Study, list[int], list[float]]:
    """The study, and for each trial how many programs JAX compiled and how long it took."""
    compiled, seconds, events = [], [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: (
            events.append(event) if event.endswith("backend_compile_duration") else None
        )
    )

    def objective(trial):
        alpha, beta = (trial.suggest_float(name, 1e-6, 1e3, log=True) for name in ("alpha", "beta"))
        events.clear()
        start = time.perf_counter()
        auc = roc_auc_score(data.y, our_predictions(data, alpha, beta))
        seconds.append(time.perf_counter() - start)
        compiled.append(len(events))
        return auc

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return study, compiled, seconds


# the document's


def their_loss(eta, y):
    return -jax.nn.log_sigmoid((y * 2 - 1) * eta)


def their_objective(R: np.ndarray) -> Callable:
    return lambda theta, X, y: their_loss(X @ theta, y).sum() + theta.T @ R @ theta


def their_fit(X: np.ndarray, y: np.ndarray, R: np.ndarray) -> np.ndarray:
    """SciPy's L-BFGS-B on an uncompiled value and gradient, from zero."""
    F = their_objective(R)
    found = scipy.optimize.minimize(
        jax.value_and_grad(lambda theta: F(theta, X, y)),
        x0=np.zeros(X.shape[1]),
        method="L-BFGS-B",
        jac=True,
    )
    return found.x


def their_predictions(X: np.ndarray, y: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Fit, then the document's formula for every left-out prediction."""
    theta = their_fit(X, y, R)
    eta = X @ theta
    first = jax.vmap(jax.grad(their_loss))(eta, y)
    second = jax.vmap(jax.hessian(their_loss))(eta, y)
    H = jax.hessian(their_objective(R))(theta, X, y)
    t = scipy.linalg.solve(np.array(H), X.T, overwrite_a=True, assume_a="pos")
    h = np.einsum("ij,ji->i", X, t)
    return np.asarray(jax.nn.sigmoid(eta + (h / (1 - h * second)) * first))


def their_refits(X: np.ndarray, y: np.ndarray, R: np.ndarray, some: int) -> tuple[float, float]:
    """Seconds of all refits by the document's method, from the first `some`, and its mean |exact −
    approximate| over these, in JAX's default float32 as there."""
    approximate, start = their_predictions(X, y, R)[:some], time.perf_counter()
    exact = [
        float(jax.nn.sigmoid(X[i] @ their_fit(np.delete(X, i, 0), np.delete(y, i), R)))
        for i in range(len(approximate))
    ]
    return (time.perf_counter() - start) * len(y) / len(approximate), float(
        np.abs(np.array(exact) - approximate).mean()
    )


def their_trials(data: Data) -> pd.DataFrame:
    """The AUC that the document prints for each α and β, and those of its formula and of refits, in
    float64, here.
    """
    table = pd.read_csv(TRIALS)
    for k, row in table.iterrows():
        table.loc[k, "ours"] = roc_auc_score(
            data.y, our_predictions(data, row["alpha"], row["beta"])
        )
        fit = our_fit(data, row["alpha"], row["beta"])
        refits = lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.Exact())
        table.loc[k, "exact"] = roc_auc_score(data.y, refits)
    return table


# the truth


def exact_predictions(X: np.ndarray, y: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Refits from scratch.

    The row deleted, NumPy's Newton steps from zero to the floor of float64.
    """
    return sigmoid(
        np.array([X[i] @ newton(np.delete(X, i, 0), np.delete(y, i), R) for i in range(len(y))])
    )


def newton(X: np.ndarray, y: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Halved steps far from the minimiser, so that it converges from zero."""
    F = lambda theta: np.sum(np.logaddexp(0, X @ theta) - y * (X @ theta)) + theta @ R @ theta
    theta, step = np.zeros(X.shape[1]), np.inf
    for _ in range(60):
        mu = sigmoid(X @ theta)
        gradient = X.T @ (mu - y) + 2 * R @ theta
        step = np.linalg.solve((X.T * (mu * (1 - mu))) @ X + 2 * R, gradient)
        if np.abs(step).max() < 1e-13:
            return theta - step
        size = 1.0
        while np.abs(step).max() > 1e-6 and F(theta - size * step) > F(theta):
            size /= 2
        theta = theta - size * step
    return theta


# what came of it


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The median after one call to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def accuracy(data: Data, alpha: float, beta: float) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Errors of predicted probabilities at one (α, β), against refits from scratch.

    And those of Exact and NewtonStep.
    """
    exact = exact_predictions(data.X, data.y, penalty_matrix(data.X.shape[1], alpha, beta))
    fit, plan = our_fit(data, alpha, beta), lo.leave_one_out(len(data.y))
    found = {
        type(r).__name__: lo.cross_predict(fit, plan, strategy=r)
        for r in (lo.NewtonStep(), lo.Certified(), lo.Exact())
    }
    with jax.enable_x64(True):
        found["the document's method"] = their_predictions(
            data.X, data.y, penalty_matrix(data.X.shape[1], alpha, beta)
        )
    rows = {
        k: {"mean |difference|": abs(v - exact).mean(), "largest": abs(v - exact).max()}
        for k, v in found.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index"), exact, found["NewtonStep"]


def picture(
    study: optuna.Study, exact: np.ndarray, approximate: np.ndarray, y: np.ndarray, path: Path
) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 8), layout="constrained")
    axes = axes.ravel()
    for value, label in ((0, "healthy"), (1, "heart disease")):
        axes[0].plot(exact[y == value], approximate[y == value], ".", ms=4, alpha=0.6, label=label)
        axes[1].plot(exact[y == value], (approximate - exact)[y == value], ".", ms=4, alpha=0.6)
    axes[0].plot([0, 1], [0, 1], color="k", lw=0.6, zorder=0)
    axes[0].set(
        xlabel="refitted without the patient",
        ylabel="one Newton step",
        title="Left-out probability of heart disease",
    )
    axes[0].legend()
    axes[1].axhline(0, color="k", lw=0.6, zorder=0)
    axes[1].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes[1].set(
        xlabel="refitted without the patient",
        ylabel="Newton step − refit",
        title="What the step misses",
    )
    trials = study.trials_dataframe()
    points = axes[2].scatter(
        trials.params_alpha,
        trials.params_beta,
        c=trials.value,
        s=28,
        vmin=max(trials.value.min(), 0.895),
    )
    axes[2].plot(
        *study.best_params.values(),
        "*",
        ms=16,
        mfc="none",
        mec="k",
        label=f"best, AUC {study.best_value:.4f}",
    )
    axes[2].set(
        xscale="log",
        yscale="log",
        xlabel="α, ridge",
        ylabel="β, Laplacian",
        title=f"Leave-one-out AUC of {len(trials)} trials",
    )
    axes[2].legend()
    figure.colorbar(points, ax=axes[2], extend="min")
    axes[3].hist(exact - approximate, bins=60)
    axes[3].set(
        yscale="log", xlabel="refit − Newton step", ylabel="patients", title="The same, counted"
    )
    axes[3].ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    saved.picture(figure, "heart")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def show(title: str, table: pd.DataFrame, form: str) -> None:
    print(f"\n{title}\n{table.to_string(float_format=form.format, na_rep='')}")


def main(out: Path, trials: int, refits: int, save: bool) -> None:
    data = load()
    study, compiled, each = tune(data, trials)
    best = study.best_params
    R = penalty_matrix(data.X.shape[1], **best)
    table, exact, approximate = accuracy(data, **best)
    theirs, _, _ = accuracy(data, **THEIR_BEST)
    ours = seconds(lambda: our_predictions(data, **best), 15)
    with jax.enable_x64(True):
        document = seconds(lambda: their_predictions(data.X, data.y, R), 7)
    all_seconds, in_float32 = their_refits(
        data.X, data.y, penalty_matrix(data.X.shape[1], **THEIR_BEST), refits
    )
    test_auc = lambda alpha, beta: roc_auc_score(
        data.y_test, data.X_test @ our_fit(data, alpha, beta).parameters["coef"]
    )
    beside = {
        "patients to fit": len(data.y),
        "patients to test": len(data.y_test),
        "best LOO AUC": study.best_value,
        "test AUC": test_auc(**best),
        "mean |exact − approximate|": table["mean |difference|"]["NewtonStep"],
        "seconds, all refits": all_seconds,
        "seconds, one fit and the formula": ours,
        "times faster": all_seconds / ours,
    }
    trials_again = their_trials(data)
    patients = (
        f"{len(data.y)} patients to fit, {len(data.y_test)} to test, {data.X.shape[1]} coefficients"
    )
    print(f"{patients}; best α {best['alpha']:.4g}, β {best['beta']:.4g}")
    show("beside the document", pd.DataFrame({"document": DOCUMENT, "ours": beside}), "{:.4g}")
    show("probabilities against refits from scratch, at our best", table, "{:.2e}")
    show(
        "the same at the document's best, α {alpha:.4g}, β {beta:.4g}".format(**THEIR_BEST),
        theirs,
        "{:.2e}",
    )
    rows = {
        "fit and leave-one-out, ours": (ours, np.nan),
        "fit and leave-one-out, the document's": (document, document / ours),
        f"{len(data.y)} refits, the document's, float32": (all_seconds, all_seconds / ours),
    }
    show(
        "seconds",
        pd.DataFrame.from_dict(rows, orient="index", columns=["seconds", "times ours"]),
        "{:.3g}",
    )
    print(
        f"\nthe document's refits against its formula, both in float32, at its best: mean |difference| {in_float32:.3g}"
    )
    programs = (
        f"programs compiled in trial 1: {compiled[0]}, in trials 2 to {trials}: {sum(compiled[1:])}"
    )
    print(f"\n{programs}; seconds: {each[0]:.2f}, then {np.median(each[1:]):.4f} a trial")
    off = (trials_again["ours"] - trials_again["auc"]).abs()
    print(
        f"\nthe document's {len(off)} trials: AUC off by {off.median():.1e} (median), {off.max():.1e} (most)"
    )
    picture(study, exact, approximate, data.y, out / "loocv_heart.png")
    both = pd.DataFrame(
        {"what": list(DOCUMENT), "document": list(DOCUMENT.values()), "ours": list(beside.values())}
    )
    at_theirs = test_auc(**THEIR_BEST)
    saved.save(
        "heart",
        both,
        best=best,
        test_at_theirs=at_theirs,
        their_method=document,
        in_float32=in_float32,
        refits_made=refits,
        compiled_after_first=sum(compiled[1:]),
    )
    errors = [
        {"at": at, "refit": name, **row}
        for at, frame in (("our best", table), ("the document's best", theirs))
        for name, row in frame.to_dict("index").items()
    ]
    saved.save("heart_errors", errors)
    best_of = {name: int(trials_again[name].idxmax()) for name in ("auc", "ours", "exact")}
    saved.save("heart_trials", trials_again, median=off.median(), most=off.max(), best_of=best_of)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument(
        "--refits",
        type=int,
        default=642,
        help="by the document's method, for its seconds and error",
    )
    saved.add_option(parser)
    main(**vars(parser.parse_args()))
