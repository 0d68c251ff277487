"""The third source document, whole: logistic regression stratified by sex, tuned by approximate
leave-one-out.

T. Shlomo, *Efficient Leave One Out Cross Validation, Part 2* (2024). One coefficient vector for
men, one for women,

    F(θ) = Σ_n log(1 + e^{−(2 y_n − 1) x_nᵀθ}) + θᵀ(α ridge + β laplacian)θ,

α and β chosen by Optuna for the AUC of the leave-one-out predictions. Ours stands beside the
document's numbers; its own method (uncompiled JAX, L-BFGS-B, ALO) is written out below and timed in
the same run, in float64; its refits are in float32, as there.

The fifty trials that it prints (`loocv_heart_trials.csv`: α, β, AUC, and when each was finished, in
seconds from the start) are evaluated again at their α and β, and timed: by one Newton step, by
exact refits, and by the document's method.

    LEAVEOUT_DATA=… python experiments/loocv_heart.py [--out out] [--trials 50] [--refits 642]
    [--save] [--quick]
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


def tune(data: Data, trials: int) -> dict[str, Any]:
    """The trials of a study, the seconds of each, and how many programs JAX compiled in it."""
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
    table = pd.DataFrame([{**trial.params, "auc": trial.value} for trial in study.trials])
    table = table.assign(seconds=seconds, programs=compiled)
    return {"trials": table, "best": study.best_params, "auc": study.best_value}


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


def their_trial(data: Data, alpha: float, beta: float) -> dict[str, float]:
    """AUC of our step, of refits and of the document's method in float64, and the seconds of
    each.
    """
    R = penalty_matrix(data.X.shape[1], alpha, beta)

    def refits() -> np.ndarray:
        fit = our_fit(data, alpha, beta)
        return lo.cross_predict(fit, lo.leave_one_out(), strategy=lo.Exact())

    methods = {
        "ours": lambda: our_predictions(data, alpha, beta),
        "exact": refits,
        "document's method": lambda: their_predictions(data.X, data.y, R),
    }
    row = {}
    for name, run in methods.items():
        start = time.perf_counter()
        with jax.enable_x64(True):
            row[name] = roc_auc_score(data.y, run())
        row[f"seconds, {name}"] = time.perf_counter() - start
    return row


def their_trials(data: Data, trials: int) -> pd.DataFrame:
    """The document's trials, printed and again; its seconds are those between two lines of its
    log.
    """
    table = pd.read_csv(TRIALS)[:trials]
    table["seconds, the document"] = np.diff(table.pop("finished"), prepend=0.0)
    rows = []
    for trial in table.itertuples():
        again = lambda trial=trial: their_trial(data, trial.alpha, trial.beta)
        if not rows:
            again()  # compiles
        rows.append(saved.part("heart_trials", f"trial {trial.trial}", again))
    return table.join(pd.DataFrame(rows))


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
    study: dict[str, Any], exact: np.ndarray, approximate: np.ndarray, y: np.ndarray, path: Path
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
    trials = study["trials"]
    points = axes[2].scatter(
        trials.alpha, trials.beta, c=trials.auc, s=28, vmin=max(trials.auc.min(), 0.895)
    )
    axes[2].plot(
        *study["best"].values(),
        "*",
        ms=16,
        mfc="none",
        mec="k",
        label=f"best, AUC {study['auc']:.4f}",
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


def main(out: Path, trials: int, refits: int, quick: bool) -> None:
    if quick:
        trials, refits = 3, 3
    data = load()
    study = saved.part("heart_study", f"{trials} trials", lambda: tune(data, trials))
    best = study["best"]
    R = penalty_matrix(data.X.shape[1], **best)
    table, exact, approximate = saved.part(
        "heart_errors", f"at the best of {trials} trials", lambda: accuracy(data, **best)
    )
    theirs, their_exact, their_approximate = saved.part(
        "heart_errors", "at the document's best", lambda: accuracy(data, **THEIR_BEST)
    )
    ours = saved.part(
        "heart", "our seconds", lambda: seconds(lambda: our_predictions(data, **best), 15)
    )

    def method() -> float:
        with jax.enable_x64(True):
            return seconds(lambda: their_predictions(data.X, data.y, R), 7)

    document = saved.part("heart", "seconds of the document's method", method)
    all_seconds, in_float32 = saved.part(
        "heart",
        f"{refits} refits",
        lambda: their_refits(data.X, data.y, penalty_matrix(data.X.shape[1], **THEIR_BEST), refits),
    )
    test_auc = lambda alpha, beta: roc_auc_score(
        data.y_test, data.X_test @ our_fit(data, alpha, beta).parameters["coef"]
    )
    beside = {
        "patients to fit": len(data.y),
        "patients to test": len(data.y_test),
        "best LOO AUC": study["auc"],
        "test AUC": test_auc(**best),
        "mean |exact − approximate|": table["mean |difference|"]["NewtonStep"],
        "seconds, all refits": all_seconds,
        "seconds, one fit and the formula": ours,
        "times faster": all_seconds / ours,
    }
    trials_again = their_trials(data, trials)
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
    first, later = study["trials"].iloc[0], study["trials"].iloc[1:]
    programs = (
        f"programs compiled in trial 1: {first.programs:g}, in later ones: {later.programs.sum()}"
    )
    print(f"\n{programs}; seconds: {first.seconds:.2f}, then {later.seconds.median():.4f} a trial")
    show("the document's trials", trials_again, "{:.4g}")
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
        compiled_after_first=later.programs.sum(),
    )
    errors = [
        {"at": at, "refit": name, **row}
        for at, frame in (("our best", table), ("the document's best", theirs))
        for name, row in frame.to_dict("index").items()
    ]
    left_out = {
        at: {"exact": np.asarray(refitted), "Newton step": np.asarray(stepped)}
        for at, refitted, stepped in (
            ("our best", exact, approximate),
            ("the document's best", their_exact, their_approximate),
        )
    }
    saved.save("heart_errors", errors, left_out=left_out)
    best_of = {name: int(trials_again[name].idxmax()) for name in ("auc", "ours", "exact")}
    took = trials_again.filter(like="seconds").sum().to_dict()
    saved.save(
        "heart_trials",
        trials_again,
        median=off.median(),
        most=off.max(),
        best_of=best_of,
        took=took,
    )
    saved.save("heart_study", study["trials"])


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
    parser.add_argument("--quick", action="store_true", help="three trials and refits")
    saved.add_option(parser)
    given = parser.parse_args()
    main(given.out, given.trials, given.refits, given.quick)
