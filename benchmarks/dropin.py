"""scikit-learn's cross_validate and GridSearchCV against `lo.sklearn`'s: seconds of processor time, and how far scores differ.

    python benchmarks/dropin.py [word ...]      problems whose name holds one of the words; all by default

*theirs* is scikit-learn with one process; *skore* its CrossValidationReport with the same scores, where it is installed and
the problem is one call of cross_validate. *first* is ours in a fresh process, from `import leaveout` on, scikit-learn being
there; *warm* the best of three calls after one. *off* is the largest |difference| of a fold's score, *said* the largest error
that ours prints. Hosts are at tight tolerances, so that what differs is ours.
"""

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

TIGHT = {"tol": 1e-8, "max_iter": 10_000}
FOLDS = KFold(10, shuffle=True, random_state=0)
MEANS, RANKS = ["accuracy", "neg_log_loss"], ["accuracy", "neg_log_loss", "roc_auc"]
SCALED = make_pipeline(SelectKBest(k=20), StandardScaler(), LogisticRegression(C=0.1, **TIGHT))


class Problem(NamedTuple):
    """A host, how many rows and columns, what is drawn, the splitter, the scorers; penalties, if they are searched."""

    host: BaseEstimator
    rows: int
    columns: int
    kind: str
    cv: Any
    scoring: Any
    grid: dict | None = None


PROBLEMS = {
    "ridge, leave one out": Problem(Ridge(1.0), 2000, 20, "real", LeaveOneOut(), "neg_mean_squared_error"),
    "ridge, 10 folds": Problem(Ridge(1.0), 2000, 20, "real", FOLDS, "r2"),
    "logistic, leave one out": Problem(LogisticRegression(C=0.1, **TIGHT), 1000, 50, "two", LeaveOneOut(), "accuracy"),
    "logistic, 10 folds": Problem(LogisticRegression(C=0.1, **TIGHT), 1000, 50, "two", FOLDS, MEANS),
    "logistic, 10 folds, ranks too": Problem(LogisticRegression(C=0.1, **TIGHT), 1000, 50, "two", FOLDS, RANKS),
    "logistic, large, 10 folds": Problem(LogisticRegression(C=0.1, **TIGHT), 50_000, 100, "two", FOLDS, RANKS),
    "five classes, 10 folds": Problem(LogisticRegression(C=0.1, **TIGHT), 5000, 20, "five", FOLDS, MEANS),
    "Poisson, leave one out": Problem(
        PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-8),
        1000,
        20,
        "count",
        LeaveOneOut(),
        "neg_mean_absolute_error",
    ),
    "scaled, leave one out": Problem(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, **TIGHT)), 1000, 30, "two", LeaveOneOut(), MEANS[:1]
    ),
    "scaled, 10 folds": Problem(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1, **TIGHT)), 2000, 30, "two", FOLDS, MEANS
    ),
    "selected and scaled, 10 folds": Problem(SCALED, 2000, 100, "two", FOLDS, RANKS),
    "ridge, 30 penalties, 10 folds": Problem(Ridge(), 2000, 50, "real", FOLDS, "r2", {"alpha": np.logspace(-2, 4, 30)}),
    "logistic, 20 penalties, 10 folds": Problem(
        LogisticRegression(**TIGHT), 2000, 50, "two", FOLDS, "neg_log_loss", {"C": np.logspace(-3, 2, 20)}
    ),
    "logistic, 20 penalties, ranks": Problem(
        LogisticRegression(**TIGHT), 2000, 50, "two", FOLDS, "roc_auc", {"C": np.logspace(-3, 2, 20)}
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
    return GridSearchCV(problem.host, problem.grid, cv=problem.cv, scoring=problem.scoring).fit(X, y).cv_results_


def ours(problem: Problem, X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    import leaveout as lo

    if problem.grid is None:
        return lo.sklearn.cross_validate(problem.host, X, y, cv=problem.cv, scoring=problem.scoring)
    return lo.sklearn.OneFitSearchCV(problem.host, problem.grid, cv=problem.cv, scoring=problem.scoring).fit(X, y).cv_results_


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
    first = float(
        subprocess.run([sys.executable, __file__, "--first", name], capture_output=True, text=True, check=True).stdout
    )
    ours(problem, X, y)
    tries = [seconds(ours, problem, X, y) for _ in range(3)]
    warm, got = min(time for time, _ in tries), tries[0][1]
    known, found = seconds(skores, problem, X, y)
    scores = [key for key in want if "test_" in key and not key.startswith(("rank", "std"))]
    off = max(np.nanmax(np.abs(got[key] - want[key])) for key in scores)
    said = max(np.nanmax(values) for key, values in got.items() if "approximation_error" in key)
    apart = {"theirs": slow, "skore": np.nan if found is None else known, "first": first, "warm": warm, "times": slow / warm}
    return {"problem": name} | apart | {"off": off, "said": said}


def main() -> None:
    warnings.simplefilter("ignore")
    words = sys.argv[1:]
    if words[:1] == ["--first"]:
        problem = PROBLEMS[words[1]]
        print(seconds(ours, problem, *drawn(problem))[0])
        return
    rows = [row(name) for name in PROBLEMS if not words or any(word in name for word in words)]
    shown = {"off": "{:.1e}".format, "said": "{:.1e}".format}
    print(pd.DataFrame(rows).set_index("problem").to_string(formatters=shown, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
