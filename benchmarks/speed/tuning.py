"""Choosing penalties: `lo.tune` against Optuna and grids, and a lasso's path against LassoCV and
adelie.

    LEAVEOUT_DATA=… python benchmarks/speed/tuning.py [heart penalties optimism lasso] [--rows
    10000 --columns 1000 --alphas 100
        --exact 40]

heart
the third document's study (T. Shlomo, 2024): α and β by the area under the curve of leave-one-out
predictions, by
           its own method (uncompiled JAX, L-BFGS-B, ALO, 50 trials of Optuna) and ours.
           Targets: 0.9161, 20 times faster
penalties  one penalty for each of ten columns, by the gradient and by Optuna on the same criterion
optimism
the reported optimism of the choice, against how much worse fresh data are than the chosen loss,
less the same for a
           penalty that was not chosen
lasso
a lasso's path by leave-one-out against LassoCV(cv=5) and adelie's cv_grpnet: processor time on the
same cores, the
           alpha that each chooses, and that of exact leave-one-out on some random rows, by refits
           of scikit-learn's Lasso
"""

import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import optuna
import pandas as pd
from common import main
from sklearn.linear_model import Lasso, LassoCV, LogisticRegressionCV
from sklearn.metrics import roc_auc_score

import leaveout as lo

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))
import loocv_heart as document

TRIALS, DOCUMENT = 50, 0.9161


def clocked(run: Callable) -> tuple:
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

    # a function anew each time: nothing is compiled before
    def ours(sampler="gradient", metric="auc", nested=0):
        build = lambda alpha, beta: model.under(
            lo.penalties.Quadratic(alpha * ridge + beta * laplacian)
        )
        return lo.tune(build, space, plan, sampler=sampler, metric=metric, num_outer_folds=nested)

    ours()  # JAX is imported, SciPy's optimiser too; the document's method is warmed up as well
    with jax.enable_x64(True):
        document.their_predictions(data.X, data.y, document.penalty_matrix(m, 1, 1))
    (best, value), seconds = clocked(lambda: theirs(data))
    rows = {"the document's method": {"fits": TRIALS, **best, "LOO AUC": value, "seconds": seconds}}
    for name, how in {
        "by gradient": {},
        "by gradient, and how optimistic": {"nested": 1},
        "by Optuna": {"sampler": "optuna"},
        "by gradient, of the loss": {"metric": None},
    }.items():
        runs = [clocked(lambda how=how: ours(**how)) for _ in range(5 if "gradient" in name else 1)]
        found, own = runs[0][0], float(np.median([run[1] for run in runs]))
        predicted = lo.cross_predict(found.fit, plan, strategy=lo.NewtonStep())
        rows[name] = {
            "fits": len(found.all_trials),
            **found.hyper,
            "LOO AUC": roc_auc_score(data.y, predicted),
            "seconds": own,
        }
        print(f"{name}\n{found}\n")
    table = pd.DataFrame.from_dict(rows, orient="index")
    for name, row in rows.items():
        fit = document.our_fit(data, row["alpha"], row["beta"])
        table.loc[name, "test AUC"] = roc_auc_score(
            data.y_test, data.X_test @ fit.parameters["coef"]
        )
        table.loc[name, "loss"] = lo.cross_validate(
            fit, plan, strategy=lo.NewtonStep(), audit=0
        ).mean
    table["times faster"] = seconds / table["seconds"]
    print(
        f"targets: LOO AUC {DOCUMENT}, 20 times faster\n{table.to_string(float_format='{:.4g}'.format, na_rep='')}"
    )
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
        "ten, by gradient": lambda: lo.tune(build, space, plan, num_trials=200),
        "ten, by gradient from 1": lambda: lo.tune(build, space, plan, num_trials=200, start=start),
        "ten, by Optuna": lambda: lo.tune(build, space, plan, sampler="optuna", num_trials=200),
    }
    rows = {}
    for name, run in runs.items():
        run()
        found, seconds = clocked(run)
        rows[name] = {
            "fits": len(found.all_trials),
            "LOO loss": found.best.value,
            "optimism": found.optimism,
            "seconds": seconds,
        }
    host = LogisticRegressionCV(Cs=50, cv=10, l1_ratios=(0,), scoring="neg_log_loss", max_iter=1000)
    rows["one for all, scikit-learn, ten folds"] = {
        "fits": 501,
        "seconds": clocked(lambda: host.fit(X, y))[1],
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    print(table.to_string(float_format="{:.5g}".format, na_rep=""))
    return table


def optimism(replications: int = 60, n: int = 100, p: int = 10) -> pd.DataFrame:
    """Logistic, two of ten columns matter. A fixed penalty is the control.

    Luck of the data moves both alike.
    """
    slopes = np.r_[1.0, -1.0, np.zeros(p - 2)]
    rows = [
        row
        for seed in range(replications)
        for row in _replication(np.random.default_rng(seed), n, slopes)
    ]
    grouped = pd.DataFrame(rows).groupby("chosen")
    table = grouped.mean().assign(
        **{"SE of true": grouped["true"].sem(), "data sets": grouped.size()}
    )
    print(table.to_string(float_format="{:.4f}".format))
    return table


def _replication(rng: np.random.Generator, n: int, slopes: np.ndarray) -> list[dict]:
    X, plan = rng.standard_normal((20_000 + n, len(slopes))), lo.leave_one_out(n)
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-X @ slopes))).astype(float)
    model, ends = lo.GLM(X[:n], y[:n], "logistic"), (1e-1, 1e4)
    each, one = (
        lambda **a: model.under(lo.penalties.Ridge(list(a.values()))),
        lambda a: model.under(lo.penalties.Ridge(a)),
    )
    space, fixed = {f"a{k}": ends for k in range(len(slopes))}, lo.fit(one(3.0))
    before = (
        _fresh(fixed, X[n:], y[n:])
        - lo.cross_validate(fixed, plan, strategy=lo.NewtonStep(), audit=0).mean
    )
    kinds = {
        "ten, by gradient": lo.tune(each, space, plan, num_trials=100),
        "ten, by Optuna": lo.tune(each, space, plan, sampler="optuna", num_trials=50),
        "one, by path": lo.tune(one, {"a": ends}, plan, sampler="path", num_trials=20),
    }
    true = {
        name: _fresh(found.fit, X[n:], y[n:]) - found.estimate.mean - before
        for name, found in kinds.items()
    }
    return [
        {"chosen": name, "reported": found.optimism, "true": true[name]}
        for name, found in kinds.items()
    ]


def _fresh(fit: lo.Fit, X: np.ndarray, y: np.ndarray) -> float:
    eta = X @ fit.parameters["coef"] + fit.parameters["intercept"]
    return float(np.mean(np.logaddexp(0, eta) - y * eta))


def sparse_problem(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, coef = rng.standard_normal((n, p)), np.zeros(p)
    coef[:50] = 0.2 * rng.standard_normal(50)
    return X, X @ coef + rng.standard_normal(n)


def processor(run):
    start = time.process_time()
    return run(), time.process_time() - start


def lasso_losses(X: np.ndarray, y: np.ndarray, alpha: float, rows: np.ndarray) -> np.ndarray:
    """Held-out losses of rows by refits from the whole fit."""
    n, losses = len(y), []
    host = Lasso(alpha / n, tol=1e-10, max_iter=10**5, warm_start=True).fit(X, y)
    start = host.coef_.copy()
    for i in rows:
        keep = np.arange(n) != i
        host.coef_ = start.copy()
        host.set_params(alpha=alpha / (n - 1)).fit(X[keep], y[keep])
        losses.append(0.5 * (y[i] - host.predict(X[[i]])[0]) ** 2)
    return np.array(losses)


def by_adelie(X: np.ndarray, y: np.ndarray, alphas: int) -> None:
    """Five folds of adelie, which asks for other versions than this library.

    `pip install --no-deps adelie`.
    """
    if importlib.util.find_spec("adelie") is None:
        print("adelie is left out, as it is not installed")
        return
    import adelie

    columns_first, response = np.asfortranarray(X), adelie.glm.gaussian(y)
    for name, tol in (("its own tolerance", 1e-7), ("1e-12, near ours", 1e-12)):
        peer = lambda tol=tol: adelie.cv.cv_grpnet(
            columns_first,
            response,
            min_ratio=1e-3,
            lmda_path_size=alphas,
            seed=0,
            tol=tol,
            progress_bar=False,
        )
        found, seconds = processor(peer)
        print(
            f"adelie, five folds, {name}: {seconds:.1f} s of processor time, alpha {found.lmdas[found.best_idx] * len(y):.4g}"
        )


def lasso(rows: int, columns: int, alphas: int, exact: int) -> None:
    """The path beside LassoCV and adelie, and losses that `lo.path` calls proved against refits."""
    X, y = sparse_problem(rows, columns)
    theirs, seconds = processor(lambda: LassoCV(cv=5, alphas=alphas).fit(X, y))
    tried = theirs.alphas_ * rows
    print(f"LassoCV(cv=5): {seconds:.1f} s of processor time, alpha {theirs.alpha_ * rows:.4g}")
    by_adelie(X, y, alphas)
    model = lo.GLM(X, y, "squared", lo.penalties.Lasso(1.0))
    path, seconds = processor(lambda: lo.path(model, tried, lo.leave_one_out()))
    best = int(np.flatnonzero(path.values == path.best.value)[0])
    print(f"lo.path, leave-one-out: {seconds:.1f} s of processor time, alpha {path.best.value:.4g}")
    some = np.sort(np.random.default_rng(1).choice(rows, min(exact, rows), replace=False))
    around, total, wrong, proved = range(max(best - 2, 0), min(best + 3, len(tried))), [], 0, 0
    for k in around:
        found, told = path.points[k].estimate, lasso_losses(X, y, tried[k], some)
        off, known = np.abs(found.losses[some] - told), found.proved[some]
        wrong, proved = (
            wrong + int(np.sum(off[known] > found.error[some][known] + 1e-6)),
            proved + int(known.sum()),
        )
        total.append(np.mean(told - found.losses[some]) + found.mean)
        print(
            f"  alpha {tried[k]:.4g}: mean {found.mean:.6f}, by the refits {total[-1]:.6f}, said to be off by "
            f"{found.approximation_error:.1g} at most; estimated losses within their error: "
            f"{np.mean(off[~known] <= found.error[some][~known] + 1e-6) if (~known).any() else 1:.0%}"
        )
    print(
        f"exact leave-one-out, by the differences of {len(some)} rows: alpha {tried[around[int(np.argmin(total))]]:.4g}"
    )
    print(f"proved: {proved} losses, {wrong} off by more than was said")


PARTS = {"heart": heart, "penalties": penalties, "optimism": optimism, "lasso": lasso}

if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")
    main(PARTS, __doc__, rows=10_000, columns=1_000, alphas=100, exact=40)
