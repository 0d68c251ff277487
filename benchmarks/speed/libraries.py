"""The calls of other libraries against ours: scikit-learn's cross_validate and GridSearchCV, and
MAPIE's intervals.

    python benchmarks/speed/libraries.py [sklearn mapie] [--quick] [--only WORD]

sklearn
`lo.sklearn` against scikit-learn: seconds of processor time, and how far scores differ; --only
takes the problems
           whose name holds a word. *theirs* is scikit-learn with one process; *skore* its
           CrossValidationReport with the same scores, where it is installed and the problem is one
           call of cross_validate. *first* is ours in a fresh process, from `import leaveout` on,
           scikit-learn being there; *warm* the best of three calls after one. *off* is the largest
           |difference| of a fold's score, *said* the largest error that ours prints.
           Hosts are at tight tolerances, so that
           what differs is ours
mapie
intervals for new responses against MAPIE's, which refits the estimator once a row; ours are of one
fit. Both get
           data and an estimator that is not fitted, leave every row out by itself, and are timed to
           the end points of all new rows. Ours are timed twice, by `Exact()`, whose end points are
           MAPIE's, and by default

How often such intervals cover is in `benchmarks/intervals.py`.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from common import fresh_process, main
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import leaveout as lo

TIGHT = {"tol": 1e-8, "max_iter": 10_000}
FOLDS = KFold(10, shuffle=True, random_state=0)
MEANS, RANKS = ["accuracy", "neg_log_loss"], ["accuracy", "neg_log_loss", "roc_auc"]
SCALED = make_pipeline(SelectKBest(k=20), StandardScaler(), LogisticRegression(C=0.1, **TIGHT))


class Problem(NamedTuple):
    """A host, how many rows and columns, what is drawn, the splitter, the scorers.

    Penalties, if they are searched.
    """

    host: BaseEstimator
    rows: int
    columns: int
    kind: str
    cv: Any
    scoring: Any
    grid: dict | None = None


PROBLEMS = {
    "ridge, leave one out": Problem(
        Ridge(1.0), 2000, 20, "real", LeaveOneOut(), "neg_mean_squared_error"
    ),
    "ridge, 10 folds": Problem(Ridge(1.0), 2000, 20, "real", FOLDS, "r2"),
    "logistic, leave one out": Problem(
        LogisticRegression(C=0.1, **TIGHT), 1000, 50, "two", LeaveOneOut(), "accuracy"
    ),
    "logistic, 10 folds": Problem(
        LogisticRegression(C=0.1, **TIGHT), 1000, 50, "two", FOLDS, MEANS
    ),
    "logistic, 10 folds, ranks too": Problem(
        LogisticRegression(C=0.1, **TIGHT), 1000, 50, "two", FOLDS, RANKS
    ),
    "logistic, large, 10 folds": Problem(
        LogisticRegression(C=0.1, **TIGHT), 50_000, 100, "two", FOLDS, RANKS
    ),
    "five classes, 10 folds": Problem(
        LogisticRegression(C=0.1, **TIGHT), 5000, 20, "five", FOLDS, MEANS
    ),
    "Poisson, leave one out": Problem(
        PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-8),
        1000,
        20,
        "count",
        LeaveOneOut(),
        "neg_mean_absolute_error",
    ),
    "scaled, leave one out": Problem(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, **TIGHT)),
        1000,
        30,
        "two",
        LeaveOneOut(),
        MEANS[:1],
    ),
    "scaled, 10 folds": Problem(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, **TIGHT)),
        2000,
        30,
        "two",
        FOLDS,
        MEANS,
    ),
    "selected and scaled, 10 folds": Problem(SCALED, 2000, 100, "two", FOLDS, RANKS),
    "ridge, 30 penalties, 10 folds": Problem(
        Ridge(), 2000, 50, "real", FOLDS, "r2", {"alpha": np.logspace(-2, 4, 30)}
    ),
    "logistic, 20 penalties, 10 folds": Problem(
        LogisticRegression(**TIGHT),
        2000,
        50,
        "two",
        FOLDS,
        "neg_log_loss",
        {"C": np.logspace(-3, 2, 20)},
    ),
    "logistic, 20 penalties, ranks": Problem(
        LogisticRegression(**TIGHT),
        2000,
        50,
        "two",
        FOLDS,
        "roc_auc",
        {"C": np.logspace(-3, 2, 20)},
    ),
}


def drawn(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their response; half of the columns matter."""
    rng, p = np.random.default_rng(0), problem.columns
    X = rng.standard_normal((problem.rows, p))
    eta = X @ np.where(np.arange(p) % 2, 0.0, 1.5 / np.sqrt(p))
    if problem.kind == "five":
        return X, np.argmax(X[:, :5] + rng.gumbel(size=(problem.rows, 5)), axis=1)
    draws: dict[str, Callable] = {
        "real": lambda: eta + rng.standard_normal(len(eta)),
        "two": lambda: (eta + rng.logistic(size=len(eta)) > 0).astype(int),
        "count": lambda: rng.poisson(np.exp(eta / 2)).astype(float),
    }
    return X, draws[problem.kind]()


def theirs(problem: Problem, X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    if problem.grid is None:
        return cross_validate(problem.host, X, y, cv=problem.cv, scoring=problem.scoring)
    return (
        GridSearchCV(problem.host, problem.grid, cv=problem.cv, scoring=problem.scoring)
        .fit(X, y)
        .cv_results_
    )


def ours(problem: Problem, X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    if problem.grid is None:
        return lo.sklearn.cross_validate(problem.host, X, y, cv=problem.cv, scoring=problem.scoring)
    return (
        lo.sklearn.OneFitSearchCV(
            problem.host, problem.grid, cv=problem.cv, scoring=problem.scoring
        )
        .fit(X, y)
        .cv_results_
    )


def skores(problem: Problem, X: np.ndarray, y: np.ndarray) -> Any:
    """skore's report with the same scores; None where it is not installed, or is no match."""
    try:
        import skore
    except ImportError:
        return None
    if problem.grid is not None or isinstance(problem.cv, LeaveOneOut):  # thousands of reports
        return None
    wanted = problem.scoring if isinstance(problem.scoring, list) else [problem.scoring]
    report = skore.CrossValidationReport(problem.host, X=X, y=y, splitter=problem.cv, n_jobs=1)
    return report.metrics.summarize(metric=[name.removeprefix("neg_") for name in wanted]).frame()


def seconds(run: Callable, *args: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = run(*args)
    return time.process_time() - began, found


def row(name: str) -> dict[str, Any]:
    problem = PROBLEMS[name]
    X, y = drawn(problem)
    slow, want = seconds(theirs, problem, X, y)
    first = fresh_process(FIRST.format(name=name))["seconds"]
    ours(problem, X, y)
    tries = [seconds(ours, problem, X, y) for _ in range(3)]
    warm, got = min(time for time, _ in tries), tries[0][1]
    known, found = seconds(skores, problem, X, y)
    scores = [key for key in want if "test_" in key and not key.startswith(("rank", "std"))]
    off = max(np.nanmax(np.abs(got[key] - want[key])) for key in scores)
    said = max(np.nanmax(values) for key, values in got.items() if "approximation_error" in key)
    apart = {
        "theirs": slow,
        "skore": np.nan if found is None else known,
        "first": first,
        "warm": warm,
        "times": slow / warm,
    }
    return {"problem": name} | apart | {"off": off, "said": said}


HOSTS: dict[str, Callable[[], Any]] = {
    "LinearRegression": LinearRegression,
    "Ridge": lambda: Ridge(1.0),
    "PoissonRegressor, no penalty": lambda: PoissonRegressor(
        alpha=0.0, solver="newton-cholesky", tol=1e-10, max_iter=1000
    ),
    "PoissonRegressor": lambda: PoissonRegressor(
        alpha=0.1, solver="newton-cholesky", tol=1e-10, max_iter=1000
    ),
}
MAPIE_SIZES = ((500, 10, 100), (2000, 10, 100), (1000, 20, 1000), (3000, 20, 1000))
LEVEL = 0.9


def simulated(host: str, n: int, p: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    eta = X @ rng.uniform(-1, 1, p) / np.sqrt(p)
    return X, rng.poisson(np.exp(1 + eta)).astype(
        float
    ) if "Poisson" in host else eta + rng.standard_t(4, n)


def mapie_interval(host: Any, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    from mapie.regression import CrossConformalRegressor

    made = CrossConformalRegressor(
        host, confidence_level=LEVEL, method="plus", cv=LeaveOneOut()
    ).fit_conformalize(X, y)
    return made.predict_interval(new)[1][:, :, 0]


def our_interval(
    host: Any, X: np.ndarray, y: np.ndarray, new: np.ndarray, refit: lo.developer.AbstractRefit
) -> np.ndarray:
    fit = lo.from_sklearn(host.fit(X, y), X, y)
    return lo.interval(fit, new, level=LEVEL, strategy=refit)[["low", "high"]].to_numpy()


def least_seconds(run: Callable[[], np.ndarray], repeats: int) -> tuple[float, np.ndarray]:
    """The least of some times, of the processor, and what came of it."""
    seconds, found = [], np.zeros(0)
    for _ in range(repeats):
        start = time.process_time()
        found = run()
        seconds.append(time.process_time() - start)
    return min(seconds), found


def beside_mapie(sizes: tuple[tuple[int, int, int], ...]) -> list[dict]:
    rows = []
    for name, host in HOSTS.items():
        for n, p, m in sizes:
            X, y = simulated(name, n + m, p)
            data = X[:n], y[:n], X[n:]
            seconds, ends = least_seconds(
                lambda host=host, data=data: mapie_interval(host(), *data), 1
            )
            row: dict[str, Any] = {
                "model": name,
                "rows": n,
                "features": p,
                "new": m,
                "MAPIE, s": f"{seconds:.2f}",
            }
            for what, refit in (("exact", lo.Exact()), ("default", lo.Certified())):
                own, found = least_seconds(
                    lambda host=host, data=data, refit=refit: our_interval(host(), *data, refit), 5
                )
                row |= {f"{what}, s": f"{own:.4f}", f"{what}, times": f"{seconds / own:.0f}"}
                row |= {f"{what}, apart": f"{np.abs(found - ends).max():.0e}"}
            rows.append(row)
    return rows


FIRST = """
import json, time
import numpy, pandas, sklearn.feature_selection, sklearn.linear_model, sklearn.model_selection, sklearn.pipeline
import sklearn.preprocessing
began = time.process_time()
from libraries import PROBLEMS, drawn, ours
imported = time.process_time() - began
problem = PROBLEMS[{name!r}]
data, began = drawn(problem), time.process_time()
ours(problem, *data)
print(json.dumps({{"seconds": imported + time.process_time() - began}}))
"""


def sklearn(quick: bool, only: str) -> None:
    """Every problem, or those of one word."""
    warnings.simplefilter("ignore")
    rows = [row(name) for name in list(PROBLEMS)[: 2 if quick else None] if only in name]
    shown = {"off": "{:.1e}".format, "said": "{:.1e}".format}
    print(
        pd.DataFrame(rows)
        .set_index("problem")
        .to_string(formatters=shown, float_format="{:.3f}".format)
    )


def mapie(quick: bool) -> None:
    """The end points of MAPIE's intervals and of ours."""
    warnings.simplefilter("ignore")
    print(
        pd.DataFrame(beside_mapie(MAPIE_SIZES[:1] if quick else MAPIE_SIZES)).to_string(index=False)
    )


if __name__ == "__main__":
    main({"sklearn": sklearn, "mapie": mapie}, __doc__, quick=False, only="")
