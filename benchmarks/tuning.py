"""`lo.tune` beside Optuna on refits of the document's kind, beside grids, and its optimism beside fresh data.

    LEAVEOUT_DATA=… python benchmarks/tuning.py [heart | penalties | optimism]     all by default

heart      the third document's study (T. Shlomo, 2024): α and β by the area under the curve of leave-one-out predictions, by
           its own method (uncompiled JAX, L-BFGS-B, ALO, 50 trials of Optuna) and ours. Targets: 0.9161, 20 times faster
penalties  one penalty for each of ten columns, by the gradient and by Optuna on the same criterion
optimism   what is reported of choosing, and how much worse fresh data are than the chosen loss, beyond what they are than that
           of a penalty that was not chosen
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optuna
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score

import leaveout as lo

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import loocv_heart as document

TRIALS, DOCUMENT = 50, 0.9161


def timed(run: Callable) -> tuple:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def theirs(data: document.Data) -> tuple[dict, float]:
    """The document's study, its method as it stands."""

    def objective(trial: optuna.Trial) -> float:
        alpha, beta = (trial.suggest_float(name, 1e-6, 1e3, log=True) for name in ("alpha", "beta"))
        R = document.penalty_matrix(data.X.shape[1], alpha, beta)
        return float(roc_auc_score(data.y, document.their_predictions(data.X, data.y, R)))

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    with jax.enable_x64(True):
        study.optimize(objective, n_trials=TRIALS)
    return study.best_params, study.best_value


def heart() -> pd.DataFrame:
    data = document.load()
    m, plan = data.X.shape[1], lo.leave_one_out(len(data.y))
    model = lo.GLM(data.X, data.y, "logistic", intercept=False)
    ridge, laplacian = (2 * document.penalty_matrix(m, *one) for one in ((1, 0), (0, 1)))
    space = {"alpha": (1e-6, 1e3), "beta": (1e-6, 1e3)}

    def ours(sampler="gradient", metric="auc", nested=0):  # a function anew each time: nothing is compiled before
        build = lambda alpha, beta: model.under(lo.penalties.Quadratic(alpha * ridge + beta * laplacian))
        return lo.tune(build, space, plan, sampler=sampler, metric=metric, nested=nested)

    ours()  # JAX is imported, SciPy's optimiser too; the document's method is warmed up as well
    with jax.enable_x64(True):
        document.their_predictions(data.X, data.y, document.penalty_matrix(m, 1, 1))
    (best, value), seconds = timed(lambda: theirs(data))
    rows = {"the document's method": {"fits": TRIALS, **best, "LOO AUC": value, "seconds": seconds}}
    for name, how in {
        "by gradient": {},
        "by gradient, and how optimistic": {"nested": 1},
        "by Optuna": {"sampler": "optuna"},
        "by gradient, of the loss": {"metric": None},
    }.items():
        runs = [timed(lambda how=how: ours(**how)) for _ in range(5 if "gradient" in name else 1)]
        found, own = runs[0][0], float(np.median([run[1] for run in runs]))
        predicted = lo.cross_predict(found.fit, plan, lo.NewtonStep())
        rows[name] = {"fits": len(found.made), **found.hyper, "LOO AUC": roc_auc_score(data.y, predicted), "seconds": own}
        print(f"{name}\n{found}\n")
    table = pd.DataFrame.from_dict(rows, orient="index")
    for name, row in rows.items():
        fit = document.our_fit(data, row["alpha"], row["beta"])
        table.loc[name, "test AUC"] = roc_auc_score(data.y_test, data.X_test @ fit.parameters["coef"])
        table.loc[name, "loss"] = lo.cross_validate(fit, plan, lo.NewtonStep(), audit=0).mean
    table["times faster"] = seconds / table["seconds"]
    print(f"targets: LOO AUC {DOCUMENT}, 20 times faster\n{table.to_string(float_format='{:.4g}'.format, na_rep='')}")
    return table


def penalties() -> pd.DataFrame:
    X, y = lo.datasets.diabetes()
    X, y = X / X.std(), (y > y.median()).astype(float)
    model, plan = lo.GLM(X, y, "logistic"), lo.leave_one_out(len(y))
    space = {name: (1e-2, 1e4) for name in X.columns}
    build = lambda **a: model.under(lo.penalties.Ridge(list(a.values())))
    start = dict.fromkeys(space, 1.0)
    one = lambda a: model.under(lo.penalties.Ridge(a))
    runs = {
        "one for all, by gradient": lambda: lo.tune(one, {"a": (1e-2, 1e4)}, plan),
        "one for all, by path": lambda: lo.tune(one, {"a": (1e-2, 1e4)}, plan, sampler="path"),
        "ten, by gradient": lambda: lo.tune(build, space, plan, trials=200),
        "ten, by gradient from 1": lambda: lo.tune(build, space, plan, trials=200, start=start),
        "ten, by Optuna": lambda: lo.tune(build, space, plan, sampler="optuna", trials=200),
    }
    rows = {}
    for name, run in runs.items():
        run()
        found, seconds = timed(run)
        rows[name] = {"fits": len(found.made), "LOO loss": found.best.value, "optimism": found.optimism, "seconds": seconds}
    host = LogisticRegressionCV(Cs=50, cv=10, l1_ratios=(0,), scoring="neg_log_loss", max_iter=1000)
    rows["one for all, scikit-learn, ten folds"] = {"fits": 501, "seconds": timed(lambda: host.fit(X, y))[1]}
    table = pd.DataFrame.from_dict(rows, orient="index")
    print(table.to_string(float_format="{:.5g}".format, na_rep=""))
    return table


def optimism(replications: int = 60, n: int = 100, p: int = 10) -> pd.DataFrame:
    """Logistic, two of ten columns matter. A fixed penalty is the control: luck of the data moves both alike."""
    slopes = np.r_[1.0, -1.0, np.zeros(p - 2)]
    rows = [row for seed in range(replications) for row in _replication(np.random.default_rng(seed), n, slopes)]
    grouped = pd.DataFrame(rows).groupby("chosen")
    table = grouped.mean().assign(**{"SE of true": grouped["true"].sem(), "data sets": grouped.size()})
    print(table.to_string(float_format="{:.4f}".format))
    return table


def _replication(rng: np.random.Generator, n: int, slopes: np.ndarray) -> list[dict]:
    X, plan = rng.standard_normal((20_000 + n, len(slopes))), lo.leave_one_out(n)
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ slopes))).astype(float)
    model, ends = lo.GLM(X[:n], y[:n], "logistic"), (1e-1, 1e4)
    each, one = lambda **a: model.under(lo.penalties.Ridge(list(a.values()))), lambda a: model.under(lo.penalties.Ridge(a))
    space, fixed = {f"a{k}": ends for k in range(len(slopes))}, lo.fit(one(3.0))
    before = _fresh(fixed, X[n:], y[n:]) - lo.cross_validate(fixed, plan, lo.NewtonStep(), audit=0).mean
    kinds = {
        "ten, by gradient": lo.tune(each, space, plan, trials=100),
        "ten, by Optuna": lo.tune(each, space, plan, sampler="optuna", trials=50),
        "one, by path": lo.tune(one, {"a": ends}, plan, sampler="path", trials=20),
    }
    true = {name: _fresh(found.fit, X[n:], y[n:]) - found.estimate.mean - before for name, found in kinds.items()}
    return [{"chosen": name, "reported": found.optimism, "true": true[name]} for name, found in kinds.items()]


def _fresh(fit: lo.Fit, X: np.ndarray, y: np.ndarray) -> float:
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]
    return float(np.mean(np.logaddexp(0, eta) - y * eta))


PARTS = {"heart": heart, "penalties": penalties, "optimism": optimism}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"leaveout {lo.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for part in parser.parse_args().parts or PARTS:
        print(f"\n{part}\n")
        PARTS[part]()
