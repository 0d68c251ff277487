"""Odd uses: measures of many refits, standard errors, series out of order, hosts with habits.

One function a kind.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import leaveout_verify
import numpy as np
import pandas as pd
import repository  # noqa: F401  puts the tests in reach
import scipy.optimize
import scipy.special
import scipy.stats
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.feature_selection import SelectKBest, SelectPercentile, f_classif
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneOut,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    StratifiedKFold,
    cross_val_predict,
    cross_validate,
)
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.oracles.exact import LOGISTIC, POISSON, Training, Truth, glm_truth, trainings
from tests.problems.tally import Tally, attempted, each_plan, holds, judged, told, value

import leaveout as lo

Array = np.ndarray
Generator = np.random.Generator


def seed(rng: Generator) -> int:
    return int(rng.integers(2**31))


def any_of(
    name: str, got: float, truths: Iterable[float], slack: float = 1e-6, said: bool = False
) -> Tally:
    """A number that more than one definition allows, beside the nearest."""
    nearest = min(truths, key=lambda truth: abs(truth - got))
    return value(name, got, nearest, slack, said=said)


# measures


def averages(
    plan: lo.Plan,
    predict: Callable[[Training], Array],
    of: Callable[[Array, Array], Array],
    y: Array,
) -> list[float]:
    """A mean over rows of what every refit predicts.

    Over pairs of a row and a refit, by row first, by refit first.
    """
    rows, values, means = [], [], []
    for training in trainings(plan):
        found = of(y[training.held], predict(training))
        rows.append(training.held)
        values.append(found)
        means.append(found.mean())
    table = pd.Series(np.concatenate(values)).groupby(np.concatenate(rows)).mean()
    return [float(np.concatenate(values).mean()), float(table.mean()), float(np.mean(means))]


def overlapping(rng: Generator, n: int) -> lo.Plan:
    """A plan that holds each row out of several refits."""
    which = int(rng.integers(3))
    if which == 0:
        return lo.from_splits(
            RepeatedKFold(n_splits=4, n_repeats=5, random_state=seed(rng)).split(np.zeros((n, 1))),
            n,
        )
    return (
        lo.bootstrap(n, 12, rng=seed(rng))
        if which == 1
        else lo.random_subsets(n, 0.3, 12, rng=seed(rng))
    )


def regression_measures(rng: Generator) -> Tally:
    """MSE and MAE of a regression of many columns: not of the mean of its refits' predictions."""
    X = rng.standard_normal((36, 12))
    y = X[:, 0] + rng.standard_normal(36)
    plan, host = overlapping(rng, 36), Ridge(1.0)
    predict = lambda t: clone(host).fit(X[t.rows], y[t.rows]).predict(X[t.held])
    found = lo.cross_validate(
        lo.from_sklearn(clone(host).fit(X, y), X, y),
        plan,
        strategy=lo.Exact(),
        metric=("mse", "mae"),
    ).metrics["value"]
    squares, sizes = lambda a, b: (a - b) ** 2, lambda a, b: np.abs(a - b)
    tally = any_of("mse", found["mse"], averages(plan, predict, squares, y))
    return tally + any_of("mae", found["mae"], averages(plan, predict, sizes, y))


def two_classes(rng: Generator, n: int, p: int) -> tuple[Array, Array]:
    X = rng.standard_normal((n, p))
    y = (X[:, 0] + 2 * rng.standard_normal(n) > 0).astype(float)
    y[:2] = [0.0, 1.0]
    return X, y


def classifier() -> LogisticRegression:
    return LogisticRegression(tol=1e-10, max_iter=10_000, solver="newton-cholesky")


def class_measures(rng: Generator) -> Tally:
    """Brier score and accuracy of a classifier of many columns."""
    X, y = two_classes(rng, 40, 8)
    plan, host = overlapping(rng, 40), classifier()
    predict = lambda t: clone(host).fit(X[t.rows], y[t.rows]).predict_proba(X[t.held])[:, 1]
    fit = lo.from_sklearn(clone(host).fit(X, y), X, y)
    found = lo.cross_validate(fit, plan, strategy=lo.Exact(), metric=("brier", "accuracy")).metrics[
        "value"
    ]
    squares, right = lambda a, b: (a - b) ** 2, lambda a, b: 1.0 * ((b > 0.5) == a)
    tally = any_of("brier", found["brier"], averages(plan, predict, squares, y))
    return tally + any_of("accuracy", found["accuracy"], averages(plan, predict, right, y))


def areas(X: Array, y: Array, splits: list[tuple[Array, Array]], each: int) -> tuple[float, float]:
    """AUC by fold, averaged, and pooled by repeat of `each` folds, averaged."""
    scores, pooled = [], []
    for first in range(0, len(splits), each):
        score = np.zeros(len(y))
        for train, test in splits[first : first + each]:
            score[test] = classifier().fit(X[train], y[train]).decision_function(X[test])
            scores.append(roc_auc_score(y[test], score[test]) if len(set(y[test])) == 2 else np.nan)
        pooled.append(roc_auc_score(y, score))
    return float(np.nanmean(scores)), float(np.mean(pooled))


def area_by_repeat(rng: Generator) -> Tally:
    X, y = two_classes(rng, 40, 8)
    splits = list(
        RepeatedStratifiedKFold(n_splits=2, n_repeats=6, random_state=seed(rng)).split(X, y)
    )
    fit = lo.from_sklearn(classifier().fit(X, y), X, y)
    found = lo.cross_validate(
        fit, lo.from_splits(splits, 40), strategy=lo.Exact(), metric="auc"
    ).metrics.loc["auc", "value"]
    return any_of("auc", found, areas(X, y, splits, 2), 1e-3)


def area_of_noise(rng: Generator) -> Tally:
    """Of few small folds a pooled AUC is far below one half where there is nothing.

    Averaged by fold, or said.
    """
    X, y = rng.standard_normal((20, 2)), rng.permutation(np.repeat([0.0, 1.0], 10))
    splits = list(StratifiedKFold(5, shuffle=True, random_state=seed(rng)).split(X, y))
    fit = lo.from_sklearn(classifier().fit(X, y), X, y)
    cv, said = told(
        lambda: lo.cross_validate(
            fit, lo.from_splits(splits, 20), strategy=lo.Exact(), metric="auc"
        )
    )
    by_fold, _ = areas(X, y, splits, 5)
    return value(
        "auc", cv.metrics.loc["auc", "value"], by_fold, 1e-6, said="bias" in said + str(cv)
    )


def tuned_measure(rng: Generator) -> Tally:
    """What `tune` says of the penalty that it chose, and whether another is better by what refits
    say.
    """
    X = rng.standard_normal((36, 12))
    y = X[:, 0] + rng.standard_normal(36)
    plan = lo.from_splits(
        RepeatedKFold(n_splits=2, n_repeats=6, random_state=seed(rng)).split(X), 36
    )
    model = lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0))
    build = lambda alpha: model.under(lo.penalties.Ridge(alpha))
    found = lo.tune(
        build,
        {"alpha": (0.1, 100.0)},
        plan,
        strategy=lo.Exact(),
        sampler="optuna",
        num_trials=7,
        metric="mse",
        rng=1,
    )

    def refits(alpha: float) -> float:
        predict = lambda t: Ridge(alpha).fit(X[t.rows], y[t.rows]).predict(X[t.held])
        return averages(plan, predict, lambda a, b: (a - b) ** 2, y)[0]

    alphas = found.trials["alpha"].to_numpy()
    lowest = min(map(refits, alphas))
    return value("mse", found.best.value, refits(found.hyper["alpha"]), 1e-6) + value(
        "chosen", refits(found.hyper["alpha"]), lowest, 1e-6
    )


def folds_of_one_row(rng: Generator) -> Tally:
    """r2 and explained variance have no meaning for one row: refused, said, or pooled.

    Never a perfect 1.
    """
    X = rng.standard_normal((16, 2))
    y = X[:, 0] + rng.standard_normal(16)
    scoring = str(rng.choice(["r2", "explained_variance"]))
    try:
        found, said = told(
            lambda: lo.sklearn.cross_validate(
                LinearRegression(), X, y, cv=LeaveOneOut(), scoring=scoring
            )
        )
    except ValueError:
        return Tally(1)
    return holds(
        scoring,
        bool(said) or not np.any(np.isnan(found["test_score"]) | (found["test_score"] == 1)),
        found,
    )


def lacking_classes(rng: Generator) -> Tally:
    """Training folds that lack a class: columns of probabilities by the classes of all."""
    y = np.repeat(["a", "b", "c"], 12)
    X = (
        rng.standard_normal((36, 2))
        + (y == "b")[:, None] * [1.5, 0]
        + (y == "c")[:, None] * [0, 1.5]
    )
    cv = KFold(3) if rng.random() < 0.5 else KFold(4)
    call = {"cv": cv, "method": "predict_proba"}
    truth, _ = told(
        lambda: cross_val_predict(LogisticRegression(tol=1e-10, max_iter=5000), X, y, **call)
    )
    model = LogisticRegression(tol=1e-10, max_iter=5000)
    ours, _ = told(lambda: lo.sklearn.cross_val_predict(model, X, y, strategy=lo.Exact(), **call))
    return value("probabilities", ours, truth, 1e-4)


# what scikit-learn's calls say


def repeated_column_scored(rng: Generator) -> Tally:
    """A column repeated up to noise of any size, by scikit-learn's call.

    Its tolerance decides the rank.
    """
    X = rng.standard_normal((30, 4))
    X[:, 3] = X[:, 0] + 10.0 ** rng.uniform(-12, -2) * rng.standard_normal(30)
    y = X[:, 1] + rng.standard_normal(30)
    call = {"cv": 6, "scoring": "neg_mean_squared_error"}
    truth = cross_validate(LinearRegression(), X, y, **call)["test_score"]
    near = [
        cross_validate(LinearRegression(tol=tol), X, y, **call)["test_score"]
        for tol in (1e-7, 1e-5)
    ]
    ours, said = told(lambda: lo.sklearn.cross_validate(LinearRegression(), X, y, **call))
    error = ours["approximation_error"]
    # the cut is near a singular value: a fold without a number is none of ours
    if not np.allclose(*near, rtol=1e-6):
        ours["test_score"] = np.where(np.isfinite(ours["test_score"]), ours["test_score"], truth)
    return value("scores", ours["test_score"], truth, 1e-6, error, said=bool(said))


def few_rows_predicted(rng: Generator) -> Tally:
    """More columns than rows: the host predicts held-out rows, by minimum norm."""
    X = rng.standard_normal((20, int(rng.choice([19, 20, 30]))))
    y = X[:, 0] + rng.standard_normal(20)
    cv = LeaveOneOut() if rng.random() < 0.5 else KFold(5)
    truth = cross_val_predict(LinearRegression(), X, y, cv=cv)
    ours, said = told(lambda: lo.sklearn.cross_val_predict(LinearRegression(), X, y, cv=cv))
    return value("predictions", ours, truth, 1e-6, said=bool(said))


def searched_penalties(rng: Generator) -> Tally:
    """A grid that ends at penalties of almost nothing, and more columns than rows."""
    X = rng.standard_normal((24, 40))
    y = X[:, 0] + rng.standard_normal(24)
    grid, call = (
        {"alpha": [1e-10, 1e-4, 1.0, 10.0]},
        {"cv": KFold(4), "scoring": "neg_mean_squared_error"},
    )
    truth = GridSearchCV(Ridge(solver="svd"), grid, **call).fit(X, y)
    ours = lo.sklearn.OneFitSearchCV(Ridge(solver="svd"), grid, **call).fit(X, y)
    name = "mean_test_score"
    error = ours.cv_results_["mean_approximation_error"]
    return value("scores", ours.cv_results_[name], truth.cv_results_[name], 1e-6, error)


def new_rows(rng: Generator) -> Tally:
    """Predictions of new rows from a fit, as the host makes them."""
    X, new = rng.standard_normal((24, 3)), rng.standard_normal((5, 3))
    y = np.exp(X @ [0.3, 0.2, -0.1]) * rng.gamma(2.0, 0.5, 24)
    host = LinearRegression().fit(X, y)
    return value(
        "predictions", lo.predict(lo.from_sklearn(host, X, y), new), host.predict(new), 1e-8
    )


def stopped_early(rng: Generator) -> Tally:
    """A host that stopped before its minimum: losses are of the minimum, and it is said."""
    X = rng.standard_normal((20, 3)) * [1.0, 1e3, 1e-2] + [0, 5e3, 0]
    y = (X[:, 0] + (X[:, 1] - 5e3) / 1e3 + rng.standard_normal(20) > 0).astype(float)
    y[:2] = [0.0, 1.0]
    host, _ = told(lambda: LogisticRegression(max_iter=15).fit(X, y))
    scale = np.array([1.0, 1e-3, 1e2])
    near = LogisticRegression(C=1e4, tol=1e-8, max_iter=10_000).fit((X - X.mean(0)) * scale, y)
    coef = near.coef_[0] * scale
    truth = glm_truth(LOGISTIC, X, y, 1.0, np.r_[coef, near.intercept_[0] - X.mean(0) @ coef])
    fit, said = told(lambda: lo.from_sklearn(host, X, y))
    tally = each_plan(lambda: fit, [lo.leave_one_out(20)], truth)
    return tally + holds("a word", bool(said) or "stop" in fit.objective.note, said)


# standard errors


def over(label: Array, losses: Array) -> float:
    """√(G/(G − 1) Σ_g (Σ_{n∈g} (l_n − l̄))²) / n"""
    sums = np.bincount(label, losses - losses.mean())
    return float(np.sqrt(len(sums) / (len(sums) - 1) * np.sum(sums**2)) / len(losses))


def alike(rng: Generator) -> tuple[Array, Array, Array]:
    """Rows of 15 groups that are much alike within them."""
    group = np.repeat(np.arange(15), 8)
    X = rng.standard_normal((15, 2))[group] + 0.1 * rng.standard_normal((120, 2))
    return group, X, 2.0 * rng.standard_normal(15)[group] + 0.2 * rng.standard_normal(120)


def cautioned(cv: lo.Estimate, said: str) -> bool:
    return bool(said) or any(check.severity in ("warning", "error") for check in cv.checks())


def split_by_groups(rng: Generator) -> Tally:
    """Splits that hold whole groups out together.

    The standard error is over groups, or there is a warning.
    """
    group, X, y = alike(rng)
    plan = lo.from_splits(GroupKFold(int(rng.choice([5, 15]))).split(X, y, group), 120)
    cv, said = told(
        lambda: lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), plan, strategy=lo.Exact())
    )
    truth = over(group, cv.per_unit())
    return holds(
        "SE",
        cv.se > 0.6 * truth or cautioned(cv, said),
        f"{cv.se:.3g} over rows, {truth:.3g} over groups",
    )


def split_by_named_groups(rng: Generator) -> Tally:
    """The same where the groups are given."""
    group, X, y = alike(rng)
    names = np.array([f"clinic {g}" for g in group])
    plan = lo.from_splits(
        GroupKFold(int(rng.choice([5, 15]))).split(X, y, group), 120, groups=names
    )
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), plan, strategy=lo.Exact())
    return value("SE", cv.se, over(group, cv.per_unit()), 1e-9)


def rolling_windows(rng: Generator) -> Tally:
    """Windows that roll over a series whose losses go together.

    The standard error is not that of independent rows.
    """
    n, slow = 200, np.zeros(200)
    for t in range(1, n):
        slow[t] = 0.95 * slow[t - 1] + 0.3 * rng.standard_normal()
    X = rng.standard_normal((n, 1))
    y = X[:, 0] + rng.standard_normal(n) * np.exp(slow)
    splits = [(np.arange(s), np.arange(s, s + 10)) for s in range(40, n, 10)]
    fit = lo.fit(lo.GLM(X, y, "squared"))
    cv, said = told(lambda: lo.cross_validate(fit, lo.from_splits(splits, n), strategy=lo.Exact()))
    tally = holds(
        "SE", "independent" not in cv.standard_error.kind or cautioned(cv, said), cv.standard_error
    )
    times = pd.date_range("2001-01-01", periods=n)
    timed = lambda: lo.cross_validate(
        fit, lo.from_splits(splits, n, times=times), strategy=lo.Exact()
    )
    return tally + attempted(
        "times=",
        lambda: holds("SE by time", "independent" not in (e := timed().standard_error).kind, e),
    )


def labels_beside_positions(rng: Generator) -> Tally:
    """Splits by numbers of rows beside labels of groups in another order.

    Refits of the host, and sums over groups by hand.
    """
    group, X, y = alike(rng)
    names = [f"r{k}" for k in rng.permutation(120)]
    frame, labels = (
        pd.DataFrame(X, names, [f"x{j}" for j in range(X.shape[1])]),
        pd.Series(group, names),
    )
    splits = list(KFold(5).split(X))
    losses = np.zeros(120)
    for train, test in splits:
        losses[test] = (
            y[test] - LinearRegression().fit(X[train], y[train]).predict(X[test])
        ) ** 2 / 2
    fit, swapped = (
        lo.fit(lo.GLM(frame, y, "squared")),
        labels.sample(frac=1, random_state=seed(rng)),
    )
    tally = Tally()
    for plan, more in (
        (lo.from_splits(splits, 120, groups=swapped), {}),
        (splits, {"groups": swapped}),
    ):
        cv = lo.cross_validate(fit, plan, strategy=lo.Exact(), **more)
        tally += value("losses", cv.per_unit(), losses, 1e-7) + value(
            "SE", cv.se, over(group, losses), 1e-7
        )
    return tally


def renamed_places(rng: Generator) -> Tally:
    """Places and new places whose columns stand in another order.

    The distances are those of the same coordinates.
    """
    scale = 10.0 ** rng.uniform(-3, 3, 2)
    points, new = (
        pd.DataFrame(rng.standard_normal((n, 2)) * scale, columns=["east", "north"])
        for n in (60, 80)
    )
    found = lo.validation.nearest_neighbour_matched(points, new[["north", "east"]], 4)
    fold, nearest = np.zeros(60, int), np.zeros(60)
    fold[found.index] = found.refit
    at, to = points.to_numpy(), new.to_numpy()
    for k in range(60):
        nearest[k] = np.sqrt(((at[fold != fold[k]] - at[k]) ** 2).sum(1)).min()
    wanted = [np.sqrt(((at - place) ** 2).sum(1)).min() for place in to]
    W = scipy.stats.wasserstein_distance(nearest, wanted)
    return value("W", float(found.note.split()[2]), W, 6e-3)


def stacked_future(rng: Generator) -> Tally:
    """The future of several series in one table.

    Each refit sees the first steps of every one, by the host's own refits.
    """
    lengths = rng.integers(12, 20, 3)
    series, step = (
        np.repeat(np.arange(3), lengths),
        np.concatenate([np.arange(size) for size in lengths]),
    )
    X = rng.standard_normal((len(step), 2))
    y = X[:, 0] + series + rng.standard_normal(len(step))
    start, names = int(rng.integers(6, 10)), np.array(["a", "b", "c"])[series]
    plan = lo.leave_future_out(len(step), start, 2, groups=names)
    cv = lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), plan, strategy=lo.Exact())
    truth, times = np.zeros(len(step)), np.zeros(len(step))
    for t in range(start, step.max() + 1):
        test = (step >= t) & (step < t + 2)
        host = LinearRegression().fit(X[step < t], y[step < t])
        truth[test] += (y[test] - host.predict(X[test])) ** 2 / 2
        times[test] += 1
    return value(
        "losses", cv.per_unit(), np.where(times > 0, truth / np.maximum(times, 1), np.nan), 1e-7
    )


def levels_left_whole(rng: Generator) -> Tally:
    """States with an effect each, left out one by one.

    What the others determine is that of the host without the column.
    """
    state = rng.permutation(np.repeat(np.arange(6), 8))
    X = rng.standard_normal((48, 2))
    y = X[:, 0] + rng.standard_normal(6)[state] + rng.standard_normal(48)
    frame = pd.DataFrame({"x": X[:, 0], "z": X[:, 1], "y": y, "state": [f"s{k}" for k in state]})
    fit = lo.fit(lo.GLM("y ~ x + z + C(state)", frame, "squared"))
    truth = np.full((6, 7), np.nan)
    for k in range(6):
        levels = [level for level in range(1, 6) if level != k]
        columns = np.column_stack([X, *(state == level for level in levels)])
        host = LinearRegression().fit(columns[state != k], y[state != k])
        truth[k, :2] = host.coef_[:2]
        if k:
            truth[k, [1 + level for level in levels]] = host.coef_[2:]
    found = lo.fold_parameters(fit, lo.groups(frame.state))["coef"]
    moved = lo.influence(lo.cross_validate(fit, lo.groups(frame.state)), num_pairs=0).parameters[
        ["x", "z"]
    ]
    known = np.isfinite(truth)
    tally = holds("what is open", bool((np.isfinite(found) == known).all()), found) + value(
        "coef", found[known], truth[known]
    )
    return tally + holds("moves", bool(np.isfinite(moved).all(axis=None)), moved)


def missing_refits(rng: Generator) -> Tally:
    """Two models, one of which has no refit without a row.

    They are compared on rows that both have, and it is said.
    """
    x = np.sort(rng.standard_normal(24))
    y = (x + 0.2 * rng.standard_normal(24) > 0).astype(float)
    # without this row the classes are separable
    y[:12], y[12:], y[int(rng.integers(3, 9))] = 0.0, 1.0, 1.0
    X, plan = np.c_[x], lo.leave_one_out(24)
    penalised = lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0))
    cvs = {
        "none": lo.cross_validate(lo.fit(lo.GLM(X, y, "logistic")), plan),
        "ridge": lo.cross_validate(lo.fit(penalised), plan),
    }
    table, said = told(lambda: lo.compare(cvs))
    losses = {name: cv.per_unit() for name, cv in cvs.items()}
    both = np.isfinite(losses["none"]) & np.isfinite(losses["ridge"])
    if both.all():
        return holds("a refit without a minimum", False, "every row has a loss")
    gap = losses["none"][both].mean() - losses["ridge"][both].mean()
    found = float(table.loc["none", "mean"] - table.loc["ridge", "mean"])
    ranked = table.index[0] == "ridge" or "none" not in table.index
    return (
        value("difference", found, gap, 1e-9)
        + holds("ranks", ranked, list(table.index))
        + holds("a word", bool(said), said)
    )


def logs_compared(rng: Generator) -> Tally:
    """A model of y and one of log y, both scored on y by the user."""
    x = rng.standard_normal(30)
    y = np.exp(0.5 * x + 0.4 * rng.standard_normal(30))
    X, plan = np.c_[x], lo.leave_one_out(30)
    fits = {
        "y": (lo.fit(lo.GLM(X, y, "squared")), lambda v: v),
        "log": (lo.fit(lo.GLM(X, np.log(y), "squared")), np.exp),
    }

    def score(back: Callable) -> Callable:
        return lambda held, seen, p: np.abs(y[held] - back(X[held] @ p["coef"] + p["intercept"]))

    cvs = {
        name: lo.cross_validate(fit, plan, strategy=lo.Exact(), evaluate=score(back))
        for name, (fit, back) in fits.items()
    }
    table, _ = told(lambda: lo.compare(cvs))
    truth = {}
    for name, (_, back) in fits.items():
        z = y if name == "y" else np.log(y)
        truth[name] = np.mean(
            np.abs(y - back(cross_val_predict(LinearRegression(), X, z, cv=LeaveOneOut())))
        )
    return value("means", [table.loc[name, "mean"] for name in truth], list(truth.values()), 1e-6)


def transformed_target(rng: Generator) -> Tally:
    """A regression of a function of y beside one of y.

    Predictions, measures and losses in units of y, as the host's refits.
    """
    n, X = 40, rng.standard_normal((40, 3))
    y = np.exp(1 + X[:, 0] + 0.4 * rng.standard_normal(n))
    ways = ((np.log, np.exp), (np.sqrt, np.square), (np.log1p, np.expm1))
    func, inverse = ways[rng.integers(len(ways))]
    inside = [Ridge(1.0), LinearRegression(), make_pipeline(StandardScaler(), Ridge(2.0))][
        rng.integers(3)
    ]
    host, plain = (
        TransformedTargetRegressor(inside, func=func, inverse_func=inverse).fit(X, y),
        Ridge(1.0).fit(X, y),
    )
    cv = [LeaveOneOut(), KFold(5)][rng.integers(2)]
    plan, fit = lo.from_splits(cv.split(X), n), lo.from_sklearn(host, X, y)
    splits = list(cv.split(X))
    if isinstance(inside, Pipeline):  # whose scaler stays as fitted
        Z = inside.fit(X, y).steps[0][1].transform(X)
        truth = inverse(cross_val_predict(Ridge(2.0), Z, func(y), cv=splits))
    else:
        truth = cross_val_predict(host, X, y, cv=splits)
    rmse, mape = np.sqrt(np.mean((y - truth) ** 2)), np.mean(np.abs(y - truth) / y)
    named = lo.cross_validate(
        fit,
        plan,
        strategy=lo.Exact(),
        metric=["rmse", "mape"],
        average="pooled",
        evaluate="absolute_error",
    )
    other = lo.cross_validate(
        lo.from_sklearn(plain, X, y), plan, strategy=lo.Exact(), evaluate="absolute_error"
    )
    table, _ = told(lambda: lo.compare({"function": named, "y": other}))
    loss = np.abs(y - cross_val_predict(plain, X, y, cv=splits)).mean()
    gap = table.loc["function", "mean"] - table.loc["y", "mean"]
    found = value("predictions", lo.cross_predict(fit, plan, strategy=lo.Exact()), truth, 1e-6)
    found += value("measures", list(named.metrics["value"][-2:]), [rmse, mape], 1e-6)
    found += value("the mean loss", named.mean, np.abs(y - truth).mean(), 1e-6)
    return found + value("compared", gap, np.abs(y - truth).mean() - loss, 1e-6)


def pairs_at_risk(rng: Generator) -> Tally:
    """Concordance of a Cox model with weights, late entries, strata and rows that follow one
    another: by all pairs.
    """
    people = 30
    X = rng.standard_normal((people, 2))
    end, died = np.round(rng.exponential(np.exp(-X[:, 0])) + 0.3, 1), rng.random(people) < 0.8
    # of who has two rows, one behind another
    cut = np.where(rng.random(people) < 0.5, np.round(end / 2, 1), 0.0)
    rows = np.append(np.arange(people), np.flatnonzero(cut))
    first = np.arange(len(rows)) >= people
    entry, time, event = (
        np.where(first, 0.0, cut[rows]),
        np.where(first, cut[rows], end[rows]),
        died[rows] & ~first,
    )
    Z = X[rows] + 0.3 * rng.standard_normal((len(rows), 2)) * first[:, None]
    weight = rng.integers(1, 5, people)[rows].astype(float)
    stratum = rng.integers(0, 2, people)[rows]
    model = lo.Cox(
        Z,
        time,
        event,
        lo.penalties.Ridge(1.0),
        entry=entry,
        sample_weight=weight,
        strata=stratum,
        ties="breslow",
    )
    fit, plan = lo.fit(model), lo.groups(rows)
    cv = lo.cross_validate(fit, plan, strategy=lo.Exact(), metric="concordance")
    risk = lo.cross_predict(fit, plan, strategy=lo.Exact(), kind="link")
    good = total = 0.0
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        pairs = weight[i] * weight * (later & (entry < time[i]) & (stratum == stratum[i]))
        total += pairs.sum()
        good += pairs @ ((risk[i] > risk) + 0.5 * (risk[i] == risk))
    apparent, b = (
        lo.clinical.validate(fit, plan=lo.bootstrap(len(rows), 2, rng=0), num_curves=0).apparent,
        fit.parameters["coef"],
    )
    ours = Z @ b
    own = total_of = 0.0
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        pairs = weight[i] * weight * (later & (entry < time[i]) & (stratum == stratum[i]))
        total_of += pairs.sum()
        own += pairs @ ((ours[i] > ours) + 0.5 * (ours[i] == ours))
    return value("held out", cv.metrics.loc["concordance", "value"], good / total, 1e-7) + value(
        "apparent", apparent["C"], own / total_of, 1e-9
    )


def folds_validated(rng: Generator) -> Tally:
    """Folds or resamples handed to `validate`: rows that are left out, or all rows.

    A method against its plan is refused.
    """
    n, X = 60, rng.standard_normal((60, 4))
    y = (X[:, 0] + rng.standard_normal(n) > 0) * 1.0
    fit, folds = (
        lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0))),
        lo.kfold(n, 5, rng=seed(rng)),
    )
    drawn, brier, on_all = lo.bootstrap(n, 5, rng=seed(rng)), [], []
    for training in trainings(folds):
        p = (
            LogisticRegression(C=1.0, tol=1e-10, max_iter=1000)
            .fit(X[training.rows], y[training.rows])
            .predict_proba(X)[:, 1]
        )
        brier.append(np.mean((p[training.held] - y[training.held]) ** 2))
    for weight in drawn.matrix():
        p = (
            LogisticRegression(C=1.0, tol=1e-10, max_iter=1000)
            .fit(X, y, weight)
            .predict_proba(X)[:, 1]
        )
        on_all.append(np.mean((p - y) ** 2))
    found = value(
        "folds",
        lo.clinical.validate(fit, plan=folds, num_curves=0).table.loc["B", "test"],
        np.mean(brier),
        1e-4,
    )
    found += value(
        "resamples",
        lo.clinical.validate(fit, plan=drawn, num_curves=0).table.loc["B", "test"],
        np.mean(on_all),
        1e-4,
    )
    for call in (
        lambda: lo.clinical.validate(fit, method="bootstrap", plan=folds),
        lambda: lo.clinical.stability(fit, plan=folds),
    ):
        try:
            found += holds("refused", False, call())
        except ValueError as error:
            found += holds("a word", "is of folds" in str(error), error)
    return found


def weights_scaled(rng: Generator) -> Tally:
    """Weights of any scale.

    The calibration of held-out predictions, its standard errors, and slopes by centre, written out.
    """
    n, X, scale = 90, rng.standard_normal((90, 2)), 10 ** rng.uniform(-3, 3)
    y, w, centre = (
        (X[:, 0] + rng.standard_normal(n) > 0) * 1.0,
        rng.uniform(0.3, 3, n),
        np.arange(n) % 3,
    )
    w[rng.random(n) < 0.1] = 0.0
    share = w / w[w > 0].mean()
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(scale), sample_weight=scale * w))
    plan = lo.groups(centre)

    def slope(rows: Array) -> tuple[float, float]:
        zeros, ones = (eta[rows][(y[rows] == k) & (w[rows] > 0)] for k in (0, 1))
        if ones.min() >= zeros.max() or zeros.min() >= ones.max():
            return np.nan, np.nan  # the classes are apart: the slope has no end
        Z, theta = np.column_stack([np.ones(len(rows)), eta[rows]]), np.zeros(2)
        for _ in range(200):
            p = 1 / (1 + np.exp(-Z @ theta))
            H = Z.T @ (Z * (share[rows] * p * (1 - p))[:, None])
            theta = theta + np.clip(
                np.linalg.solve(H, Z.T @ (share[rows] * (y[rows] - p))), -0.5, 0.5
            )
        return float(theta[1]), float(np.linalg.inv(H)[1, 1] ** 0.5)

    folds = lo.kfold(n, 5, rng=seed(rng))
    eta = lo.cross_predict(fit, folds, strategy=lo.Exact(1e-12), kind="link")
    row = lo.clinical.calibration(lo.cross_validate(fit, folds, strategy=lo.Exact())).table.loc[
        "slope", ["estimate", "se"]
    ]
    found = value("held out", row, slope(np.arange(n)), 1e-5)
    eta = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-12), kind="link")
    centres = lo.clinical.internal_external(fit, centre).centres
    for k in range(3):
        found += value(
            f"centre {k}",
            centres.loc[k, ["slope", "slope_se"]],
            slope(np.flatnonzero(centre == k)),
            1e-5,
        )
    return found


def useful_thresholds(rng: Generator) -> Tally:
    """Thresholds at which the interval of the net benefit excludes treating all and none, with
    weights or groups.
    """
    n, X = 120, rng.standard_normal((120, 2))
    y = (rng.uniform(0, 2) * X[:, 0] + rng.standard_normal(n) > 0.3) * 1.0
    grouped = bool(rng.integers(2))
    w, label = (
        np.ones(n) if grouped else rng.uniform(0.5, 2, n),
        np.arange(n) % 40 if grouped else np.arange(n),
    )
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(0.1), sample_weight=w))
    plan = lo.groups(label) if grouped else lo.kfold(n, 5, rng=seed(rng))
    p, t = lo.cross_predict(fit, plan, strategy=lo.Exact(1e-12)), np.array([0.2, 0.35, 0.5, 0.65])
    found = lo.clinical.decision_curve(lo.cross_validate(fit, plan), t)
    lows, best = [], []
    for threshold in t:
        each = np.where(p >= threshold, y - (1 - y) * threshold / (1 - threshold), 0.0)
        mean, everyone = (
            np.average(each, weights=w),
            np.average(y - (1 - y) * threshold / (1 - threshold), weights=w),
        )
        pull, count = np.bincount(label, w * (each - mean)) / w.sum(), len(np.unique(label))
        quantile = scipy.stats.t.ppf(0.975, 39) if grouped else scipy.stats.norm.ppf(0.975)
        lows.append(mean - quantile * np.sqrt(count / (count - 1) * np.sum(pull**2)))
        best.append(lows[-1] > max(everyone, 0.0))
    near = np.min(np.abs(np.array(lows) - np.maximum(found.table["all"], 0))) < 1e-6
    marked = near or found.useful.tolist() == best
    return value("low", found.table["low"], lows, 1e-6) + holds("useful", marked, found.useful)


# leakage


def block_bootstrap_printed(rng: Generator) -> Tally:
    """The loss with no leak and its Monte-Carlo error, as printed, from the levels' means and
    variances (Theorem 3.2).
    """
    rows, size, draws = (
        np.arange(int(rng.integers(40, 80))),
        int(rng.integers(4, 9)),
        int(rng.integers(10, 40)),
    )
    X = rng.normal(size=(len(rows), 3))
    y = X @ rng.normal(size=3) + rng.normal(size=len(rows))
    half, leak = len(rows) // 2, float(rng.uniform(0, 0.2))
    run = lo.leakage.binomial_block_bootstrap(
        LinearRegression(), X, y, rows[:half], rows[half:], p_train=leak, size=size, levels=size + 2, num_boot=draws,
        loss="mse", rng=seed(rng),
    )  # fmt: skip
    counts = np.arange(size + 1)
    p = (leak + (1 - leak) * run.levels)[:, None]
    A = scipy.special.comb(size, counts) * p**counts * (1 - p) ** (size - counts)
    D = np.diff(np.eye(size + 1), 2, axis=0)
    weights = np.linalg.solve(A.T @ A + 0.1 * D.T @ D, A.T)[0]
    smooth = run.solve(monotone=False)
    error = np.sqrt(np.sum(weights**2 * run.variance) / draws)
    line = str(run).splitlines()[2]
    tally = value("loss with no leak", smooth.estimate, weights @ run.losses, 1e-6)
    return tally + holds("printed error", f"± {error:.2g} (Monte Carlo)" in line, line)


def near_by_chance(rng: Generator) -> Tally:
    """All copies across a split are listed.

    Other rows are near where they are dense, or of few values.
    """
    size, copied, p = 150, int(rng.integers(8, 40)), int(rng.integers(2, 5))
    X, y = rng.normal(size=(2 * size, p)), rng.normal(size=2 * size)
    few_values = rng.random() < 0.5
    if few_values:
        X = np.round(2 * X)
    else:
        X[copied:size] *= rng.uniform(0.2, 1)
        X[size:] *= rng.uniform(0.2, 1)
    X[size : size + copied] = X[:copied] + (0.0 if few_values else 0.02) * rng.normal(
        size=(copied, p)
    )
    pairs = pd.DataFrame({"left": np.arange(copied), "right": size + np.arange(copied)})
    train, test = np.arange(size), np.arange(size, 2 * size)
    report = lo.leakage.leakage_report(
        KNeighborsRegressor(1), X, y, linkage=lo.leakage.Linkage.from_duplicates(pairs, 2 * size), cv=[(train, test)],
        scoring="mse", answers=["unmated"],
    )  # fmt: skip
    others = test[copied:]
    nearest = np.array([np.argmin(np.sum((X[row] - X[train]) ** 2, axis=1)) for row in others])
    tally = Tally(1, alarms=int(bool(report.doubt)), notes=[report.doubt] * bool(report.doubt))
    if not few_values:  # else nearest rows are tied
        tally += value(
            "rows without copies",
            report.answers["unmated"].score,
            np.mean((y[others] - y[nearest]) ** 2),
        )
    return tally


def equal_scores(rng: Generator) -> Tally:
    """Scores from 1 to 10 are equal by chance in many rows.

    Copies of rows with a measurement are not.
    """
    n, p = int(rng.integers(400, 700)), int(rng.integers(5, 10))
    severity = np.where(rng.random(n) < rng.uniform(0.2, 0.5), 5.0, 0.4) * rng.gamma(3, 1 / 3, n)
    X = np.clip(np.floor(1 + severity[:, None] * rng.gamma(2, 0.5, (n, p))), 1, 10)
    y = (severity > np.median(severity)) * 1.0
    codes = lambda X: [
        check.code
        for check in lo.cross_validate(
            lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0))), 5
        ).checks()
    ]
    by_chance = "LO101" in codes(X)
    X = np.c_[X, rng.normal(size=n)]
    copied = int(rng.integers(5, 30))
    X[-copied:], y[-copied:] = X[:copied], y[:copied]
    missed = "LO101" not in codes(X)
    notes = ["alarm: scores that are equal by chance"] * by_chance + [
        f"wrong: {copied} copies not seen"
    ] * missed
    return Tally(2, wrong=int(missed), alarms=int(by_chance), notes=notes)


# series, parameters, objectives of one's own


def out_of_order(rng: Generator) -> Tally:
    """Rows with dates that do not rise.

    Sorted, said, or refused, where a plan goes by the order.
    """
    n = 40
    days = pd.date_range("2020-01-01", periods=n)
    x = np.cumsum(rng.standard_normal(n))
    y = pd.Series(x + 0.5 * np.cumsum(rng.standard_normal(n)), index=days)
    X = pd.DataFrame({"x": x}, index=days)
    order = rng.permutation(n)
    plans = (
        lambda: lo.blocks(n, 5, buffer=1),
        lambda: lo.contiguous(n, 0.2, 8, rng=1),
        lambda: lo.leave_future_out(n, 20, 3),
    )
    make = plans[int(rng.integers(len(plans)))]

    def mean(X: pd.DataFrame, y: pd.Series) -> float:
        return lo.cross_validate(
            lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(0.1))), make()
        ).mean

    try:
        found, said = told(lambda: mean(X.iloc[order], y.iloc[order]))
    except ValueError:
        return Tally(1)
    return value("mean", found, mean(X, y), 1e-9, said=bool(said))


def chain_out_of_order(rng: Generator) -> Tally:
    """The same of a hidden Markov model; a date that is there twice too."""
    state = np.cumsum(rng.random(50) < 0.1) % 2
    days = pd.date_range("2020-01-01", periods=50)
    counts = pd.Series(rng.poisson(2 + 8 * state), index=days)

    def mean(counts: pd.Series) -> float:
        return lo.cross_validate(
            lo.fit(lo.HMM(counts, lo.emissions.Poisson(), 2)),
            lo.leave_one_out(),
            strategy=lo.Exact(),
        ).mean

    try:
        found, said = told(lambda: mean(counts.iloc[rng.permutation(50)]))
    except ValueError:
        return Tally(1)
    return value("mean", found, mean(counts), 1e-6, said=bool(said))


def replicate_weights(rng: Generator) -> Tally:
    """Fay's replicate weights, which leave nothing out.

    Parameters are what is wanted, to the end.
    """
    X, y = two_classes(rng, 40, 3)
    sign = rng.permuted(np.tile(np.repeat([-1.0, 1.0], 20), (8, 1)), axis=1)
    weights = 1 + 0.7 * sign
    plan = lo.Plan(
        np.arange(9) * 40, np.tile(np.arange(40), 8), weights.ravel(), np.zeros(320, bool), 40
    )
    fit = lo.from_sklearn(classifier().fit(X, y), X, y)
    host = lambda w: LogisticRegression(tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(
        X, y, w
    )
    truth = np.array([host(w).coef_[0] for w in weights])
    found = (
        lo.fold_parameters(fit, plan)["coef"],
        lo.fold_parameters(fit, plan, strategy=lo.Exact())["coef"],
    )
    spread = truth.std(axis=0)  # of what the replicates are made for
    default = value(
        "coefficients over their spread", (found[0] - truth) / spread, np.zeros(truth.shape), 0.02
    )
    return default + value("coefficients, exact", found[1], truth, 1e-6)


def nothing_returned(rng: Generator) -> Tally:
    """A score that returns nothing is a mistake of its author: named, never NaN in silence."""
    X = rng.standard_normal((20, 2))
    fit = lo.fit(lo.GLM(X, X[:, 0] + rng.standard_normal(20), "squared"))
    try:
        cv, said = told(
            lambda: lo.cross_validate(
                fit, lo.kfold(k=4), evaluate=lambda held, seen, parameters: None
            )
        )
    except (TypeError, ValueError):
        return Tally(1)
    return holds("evaluate", bool(said) and not np.isnan(cv.mean), f"{cv.mean} without a word")


def dependent_resampled(rng: Generator) -> Tally:
    """An objective whose units go with their neighbours.

    A weight of two is no second copy, and a bootstrap is refused.
    """
    x = jnp.asarray(np.cumsum(rng.standard_normal(30)) / 3)

    def F(theta: Any, w: Any) -> Any:
        pair = w[1:] * w[:-1]
        return jnp.sum(pair * (x[1:] - theta * x[:-1]) ** 2) / 2 + jnp.sum(w) * 0.05 * theta**2

    fit = lo.fit(lo.Objective(F, 30), np.zeros(()))
    try:
        cv, said = told(lambda: lo.cross_validate(fit, lo.bootstrap(30, 6, rng=1)))
    except ValueError:
        return Tally(1)
    return holds("bootstrap", bool(said), f"accepted: {cv.mean}")


def tag_of_one_sentence(rng: Generator) -> Tally:
    """A label that one sentence alone has.

    Without it no refit knows the label, and its loss is infinite.
    """
    import sklearn_crfsuite

    y = [[("A", "B")[int(v)] for v in rng.integers(0, 2, 5)] for _ in range(20)]
    odd = int(rng.integers(20))
    y[odd][2] = "RARE"
    X = [
        [{"bias": 1.0, "w": float((tag == "B") + 0.5 * rng.standard_normal())} for tag in tags]
        for tags in y
    ]
    crf = sklearn_crfsuite.CRF(c2=0.5, epsilon=1e-9, period=1000, max_iterations=1000).fit(X, y)
    cv, said = told(lambda: lo.cross_validate(lo.from_crfsuite(crf, X, y), lo.leave_one_out()))
    loss, checks = cv.per_unit()[odd], [check.code for check in cv.checks()]
    known = odd in cv.flagged() or not np.isfinite(loss) or "LO105" in checks or bool(said)
    return holds("the label", known, f"loss {loss:.3g} of sentence {odd}, checks {checks}")


def dispersion_at_its_limit(rng: Generator) -> Tally:
    """One row alone is scattered more than Poisson.

    Without it the refit is the limit, Poisson's.
    """
    x = np.linspace(-1, 1, 30)
    y = np.round(np.exp(rng.uniform(1, 2) + 0.5 * x))
    odd = int(rng.integers(5, 25))
    y[odd] += 25
    fit = lo.fit(lo.Regression(x[:, None], y, "negative_binomial"))
    keep = np.arange(30) != odd
    near = scipy.optimize.minimize(
        lambda t: np.sum(np.exp(t[0] * x + t[1]) - y * (t[0] * x + t[1])), [0.5, 1.5]
    ).x
    law = POISSON._replace(constant=lambda v: scipy.special.gammaln(v + 1))
    plan = lo.from_splits([(np.flatnonzero(keep), [odd])], 30)
    truth = glm_truth(law, x[:, None], y, 0.0, near)(plan)
    return judged(
        lo.cross_validate(fit, plan),
        truth._replace(slack=np.where(np.isnan(truth.slack), np.nan, 1e-3)),
        "limit",
    )


def small_process(rng: Generator) -> Tally:
    """A Gaussian process of 25 rows with a length a column, no prior: a refit is where descents
    from θ̂ end, or it is said.

    Its likelihood may be highest at no noise or an infinite length. Losses of a refit have a limit
    there; a fit is refused.
    """
    X = rng.standard_normal((25, 3))
    y = np.sin(2 * X).sum(1) + 0.3 * rng.standard_normal(25)
    plan = lo.kfold(25, 5, rng=1)
    ways: dict[str, dict[str, float]] = {
        "BFGS": {"gtol": 1e-7},
        "L-BFGS-B": {"ftol": 1e-14, "gtol": 1e-7},  # scikit-learn's
        "Nelder-Mead": {"xatol": 1e-8, "fatol": 1e-10, "maxiter": 4000, "maxfev": 8000},
    }

    def kernel(t: Array, A: Array, B: Array) -> Array:
        return np.exp(2 * t[1]) * np.exp(
            -0.5 * np.sum(((A[:, None] - B) * np.exp(-t[2:-1])) ** 2, axis=2)
        )

    def minus(t: Array, rows: Array) -> float:
        K = kernel(t, X[rows], X[rows]) + np.exp(2 * t[-1]) * np.eye(len(rows))
        sign, size = np.linalg.slogdet(K)
        r = y[rows] - t[0]
        return float(0.5 * size + 0.5 * r @ np.linalg.solve(K, r)) if sign > 0 else 1e10

    def end(way: str, start: Array, rows: Array) -> Any:
        return scipy.optimize.minimize(minus, start, args=(rows,), method=way, options=ways[way])

    try:
        fit = lo.fit(lo.GaussianProcess(X, y, kernel="rbf", ard=True, prior=None))
    except RuntimeError as error:
        usual = np.r_[y.mean(), np.log(np.r_[y.std(), X.std(0), y.std() / 2])]
        starts = [usual + np.r_[0, 0, 8 * np.array(far), 0] for far in np.ndindex(2, 2, 2)]
        t = min(
            (end("BFGS", start, np.arange(25)) for start in starts), key=lambda found: found.fun
        ).x
        unattained = t[-1] < np.log(1e-3 * y.std()) or np.any(np.exp(t[2:-1]) > 1e3 * X.std(0))
        named = "noise goes to zero" in str(error) or "grows without end" in str(error)
        return (
            Tally(1)
            if unattained and named
            else Tally(1, refused=1, notes=[f"refused the fit: {error}"])
        )
    p = fit.parameters
    start = np.r_[p["mean"], np.log(np.r_[p["sd"], p["length"], p["noise_sd"]])]

    def fold(training: Training) -> tuple[Array, Array, bool]:
        rows, held = training.rows, training.held
        found = []
        for way in ways:
            t = end(way, start, rows).x
            across = kernel(t, X[held], X[rows])
            K = kernel(t, X[rows], X[rows]) + np.exp(2 * t[-1]) * np.eye(len(rows))
            mean = t[0] + across @ np.linalg.solve(K, y[rows] - t[0])
            variance = (
                np.exp(2 * t[1])
                + np.exp(2 * t[-1])
                - np.sum(across * np.linalg.solve(K, across.T).T, axis=1)
            )
            found.append(0.5 * np.log(2 * np.pi * variance) + (y[held] - mean) ** 2 / variance / 2)
        undecided = bool(np.max(np.ptp(found, axis=0)) > 1e-3)  # ways down end in several places
        return (
            (np.full(len(held), np.nan) if undecided else found[0]),
            np.full(len(held), 1e-4),
            undecided,
        )

    return each_plan(lambda: fit, [plan], lambda plan: Truth.of(plan, fold))


def underflow_raised(rng: Generator) -> Tally:
    """Probabilities that underflow, for a caller to whom that is an error of NumPy's."""
    X = rng.standard_normal((24, 2)) * [10.0 ** rng.uniform(2, 4), 1.0]
    y = (X[:, 1] + rng.logistic(size=24) > 0) * 1.0
    y[:2] = [0.0, 1.0]
    plan = lo.kfold(24, 6, rng=seed(rng)) if rng.random() < 0.5 else lo.leave_one_out(24)
    with np.errstate(all="raise"):
        fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1.0)))
        cv = lo.cross_validate(fit, plan)
        str(cv)
    truth = glm_truth(
        LOGISTIC, X, y, 1.0, np.r_[fit.parameters["coef"], fit.parameters["intercept"]]
    )
    return judged(cv, truth(plan))


def pointwise_densities(rng: Generator) -> Tally:
    """Units of folds of a Bayesian regression, scored one by one.

    Closed forms, and errors of each and of their sum.
    """
    n, p, spread = int(rng.integers(25, 45)), int(rng.integers(1, 4)), 2.0
    X = rng.normal(size=(n, p))
    y = X @ rng.normal(size=p) + rng.normal(size=n)
    y[0] += 4

    def posterior(weight: Array) -> tuple[Array, Array]:
        cov = np.linalg.inv((X.T * weight) @ X + np.eye(p) / spread**2)
        return cov @ X.T @ (weight * y), cov

    mean, cov = posterior(np.ones(n))
    draws = mean + rng.normal(size=(4, 500, p)) @ np.linalg.cholesky(cov).T
    model = lo.GLM(X, y, "squared", lo.penalties.Ridge(spread**-2), intercept=False)
    plan = lo.kfold(n, int(rng.integers(2, 6)), rng=seed(rng), num_repeats=int(rng.integers(1, 3)))
    found = lo.bayes.elpd(lo.bayes.from_posterior(draws, model), plan, score="pointwise")
    true = np.empty(len(plan.index))
    for training in trainings(plan):
        m, v = posterior(np.isin(np.arange(n), training.rows) * 1.0)
        x = X[training.held]
        variance = 1 + np.einsum("ij,jk,ik->i", x, v, x)
        true[training.places] = (
            -0.5 * np.log(2 * np.pi * variance) - (y[training.held] - x @ m) ** 2 / variance / 2
        )
    exist = np.isfinite(found.losses)
    count = np.bincount(plan.index[exist], minlength=n)
    total = np.sum((true / np.maximum(count[plan.index], 1))[exist])
    error = np.where(exist, 6 * found.loss_error, 0.0)
    tally = value("units", np.where(exist, -found.losses, true), true, 1e-3, error)
    tally += value("sum", found.elpd, total, 1e-3, 5 * found.sampling_error)
    return tally + holds(
        "flagged folds are named", exist.all() or "not available" in str(found), found
    )


def held_coefficients(rng: Generator) -> Tally:
    """Losses under bounds or an l1 penalty beside projected descent.

    Certificates of all coefficients, proved by balls.
    """
    n, p = int(rng.integers(30, 50)), int(rng.integers(2, 5))
    X = rng.normal(size=(n, p))
    y = X @ rng.normal(size=p) + rng.normal(size=n)
    low, high, a = ((0.0, np.inf, 0.0), (-0.2, 0.3, 0.0), (-np.inf, np.inf, 5.0))[
        int(rng.integers(3))
    ]
    fit = lo.fit(
        lo.GLM(X, y, "squared", lo.penalties.Lasso(a) if a else lo.penalties.Box(low, high))
    )
    plan = lo.kfold(n, 4, rng=seed(rng))

    def fold(training: Training) -> tuple[Array, Array, bool]:
        rows, held = training.rows, training.held
        center, level = X[rows].mean(0), y[rows].mean()
        A, b = X[rows] - center, y[rows] - level
        coef, gram, pull = np.zeros(p), A.T @ A, A.T @ b
        for _ in range(20_000):
            before = coef.copy()
            for j in range(p):
                step = coef[j] + (pull[j] - gram[j] @ coef) / gram[j, j]
                coef[j] = np.clip(np.sign(step) * max(abs(step) - a / gram[j, j], 0.0), low, high)
            if np.abs(coef - before).max() < 1e-15:
                break
        return (
            (y[held] - level - (X[held] - center) @ coef) ** 2 / 2,
            np.full(len(held), 1e-10),
            False,
        )

    cv = lo.cross_validate(fit, plan)
    with tempfile.TemporaryDirectory() as folder:
        certificate, data = Path(folder) / "a.json", Path(folder) / "a.csv"
        cv.certificate(certificate, data=data)
        verdicts = {
            verdict.status
            for verdict in leaveout_verify.verify(leaveout_verify.read(certificate, data))
        }
    return judged(cv, Truth.of(plan, fold)) + holds("accepted", verdicts == {"accepted"}, verdicts)


def altered_certificate(rng: Generator) -> Tally:
    """A certificate with one number, text or entry changed is rejected in words, also by a stranger
    who seals it again.
    """
    n = int(rng.integers(10, 20))
    X, y = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a, b", 'say "y"']), rng.normal(size=n)
    cv = lo.cross_validate(
        lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(1.0))), lo.kfold(k=3, rng=seed(rng))
    )
    with tempfile.TemporaryDirectory() as folder:
        certificate, data = Path(folder) / "a.json", Path(folder) / "a.csv"
        cv.certificate(certificate, data=data)
        says = json.loads(certificate.read_text())
        fold = says["folds"][int(rng.integers(3))]
        entry = str(rng.choice(["losses", "error", "weights", "held", "rows", "times"]))
        change = (None, float("nan"), float("inf"), -1.0, "text", [])[int(rng.integers(6))]
        if rng.random() < 0.5 and isinstance(fold[entry], list):
            fold[entry][int(rng.integers(len(fold[entry])))] = change
        elif change is None:
            del fold[entry]
        else:
            fold[entry] = change
        if rng.random() < 0.5:
            says["sha256"] = leaveout_verify.seal(says)
        certificate.write_text(json.dumps(says))
        try:
            statuses = {
                verdict.status
                for verdict in leaveout_verify.verify(leaveout_verify.read(certificate, data))
            }
        except leaveout_verify.Rejected as error:
            return holds("words", len(str(error)) > 10, error)
    return holds(f"{entry} {change}", "rejected" in statuses, statuses)


def held_out_probabilities(rng: Generator) -> Tally:
    """Predictions by the default strategy beside Newton's method on each fold, and their errors."""
    n, levels = int(rng.integers(60, 110)), int(rng.integers(3, 7))
    X = np.c_[np.eye(levels)[rng.integers(0, levels, n)], rng.normal(size=(n, 2))]
    y = (rng.random(n) < 0.45) * 1.0
    fit = lo.fit(lo.GLM(X, y, "logistic", lo.penalties.Ridge(1e-3), intercept=False))
    plan = lo.leave_one_out(n) if rng.random() < 0.5 else lo.kfold(n, 6, rng=seed(rng))
    eta, error = lo.cross_predict(fit, plan, kind="link", error=True)
    true = np.empty(n)
    for training in trainings(plan):
        A, b, theta = X[training.rows], y[training.rows], np.zeros(levels + 2)
        for _ in range(100):
            p = 1 / (1 + np.exp(-np.clip(A @ theta, -30, 30)))
            hessian = (A.T * (p * (1 - p))) @ A + 1e-3 * np.eye(len(theta))
            step = np.linalg.solve(hessian, A.T @ (p - b) + 1e-3 * theta)
            theta = theta - step * min(1.0, 2.0 / np.abs(A @ step).max())
        true[training.held] = X[training.held] @ theta
    return value("link", eta, true, 1e-6) + holds(
        "errors", bool(np.all(np.abs(eta - true) <= error + 1e-9)), error.max()
    )


# tables, and hosts that chose or dropped columns


def standard_errors(rng: Generator) -> Tally:
    """Standard errors by default: the model's own, at any scale of weights.

    Of clusters without a factor inside them.
    """
    n, X = 60, rng.standard_normal((60, 2))
    w, A = rng.uniform(0.5, 2.0, n), np.column_stack([X, np.ones(60)])
    kind = ("squared", "logistic", "poisson")[rng.integers(3)]
    eta = A @ [0.5, -0.5, 0.2]
    draws = {"squared": eta + rng.standard_normal(n), "logistic": eta + rng.logistic(size=n) > 0}
    draws["poisson"] = rng.poisson(np.exp(eta))
    y = draws[kind] * 1.0
    scale = 10.0 ** rng.uniform(-2, 2)
    fit = lo.fit(lo.GLM(X, y, kind, sample_weight=scale * w))
    theta, v = fit.vector, w / w.mean()
    mean = {
        "squared": A @ theta,
        "logistic": 1 / (1 + np.exp(-A @ theta)),
        "poisson": np.exp(A @ theta),
    }[kind]
    curvature = {"squared": np.ones(n), "logistic": mean * (1 - mean), "poisson": mean}[kind]
    dispersion = np.sum(v * (y - mean) ** 2) / (n - 3) if kind == "squared" else 1.0
    inverse = np.linalg.inv((A.T * (v * curvature)) @ A)
    tally = value(
        "model-based",
        np.sqrt(np.diag(np.asarray(lo.covariance(fit)))),
        np.sqrt(dispersion * np.diag(inverse)),
        1e-6,
    )
    robust = inverse @ ((A.T * (v * (y - mean)) ** 2) @ A) @ inverse
    return tally + value(
        "HC0",
        np.sqrt(np.diag(np.asarray(lo.covariance(fit, "HC0")))),
        np.sqrt(np.diag(robust)),
        1e-6,
    )


def clustered_errors(rng: Generator) -> Tally:
    """Standard errors over clusters that hold the levels of a factor.

    The factors of programs by name.
    """
    groups, size = int(rng.integers(20, 30)), 4
    label, n = np.repeat(np.arange(groups), size), groups * size
    x = rng.standard_normal(n) + 0.5 * rng.standard_normal(groups)[label]
    y = x + rng.standard_normal(groups)[label] + rng.standard_normal(n)
    dummies = pd.get_dummies(pd.Series(label).map("s{}".format), dtype=float)
    fit = lo.fit(
        lo.GLM(pd.concat([pd.Series(x, name="x"), dummies.iloc[:, 1:]], axis=1), y, "squared")
    )
    A = np.column_stack([x, np.asarray(dummies)])
    inverse, residual = np.linalg.inv(A.T @ A), y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
    sums = np.array([A[label == g].T @ residual[label == g] for g in range(groups)])
    raw = (inverse @ sums.T @ sums @ inverse)[0, 0]
    factors = {
        "fixest": (n - 1) / (n - 2),
        "pyfixest": (n - 1) / (n - 2),
        "stata": (n - 1) / (n - 1 - groups),
    }
    tally = Tally()
    for program, factor in factors.items():
        table = lo.covariance(fit, "cluster", groups=label, small_sample=program)
        tally += value(
            program,
            np.sqrt(table.loc["x", "x"]),
            np.sqrt(raw * factor * groups / (groups - 1)),
            1e-6,
        )
    return tally


def no_model_loss(rng: Generator) -> Tally:
    """What no model loses on the same folds: refits of the intercept, with weights and offsets."""
    n, X = 36, rng.standard_normal((36, 2))
    w, exposure = rng.uniform(0.5, 2.0, n), rng.uniform(0.5, 2.0, n)
    plan = lo.groups(np.arange(n) % 6) if rng.random() < 0.5 else lo.kfold(n, 5, rng=seed(rng))
    if rng.random() < 0.5:
        y = X[:, 0] + rng.standard_normal(n)
        model = lo.GLM(X, y, "squared", sample_weight=w)
        level = lambda rows: np.average(y[rows], weights=w[rows])
        loss = lambda rows, at: 0.5 * (y[rows] - at) ** 2
    else:
        y, w = rng.poisson(2 * exposure) * 1.0, np.ones(n)
        model = lo.GLM(X, y, "poisson", offset=np.log(exposure))
        level = lambda rows: y[rows].sum() / exposure[rows].sum()
        loss = lambda rows, at: (
            exposure[rows] * at
            - y[rows] * np.log(exposure[rows] * at)
            + scipy.special.gammaln(y[rows] + 1)
        )
    cv = lo.cross_validate(lo.fit(model), plan)
    total = np.zeros(n)
    for training in trainings(plan):
        total[training.held] = loss(training.held, level(training.rows))
    null = np.average(total, weights=w)
    return value("no model", cv.no_model, null, 1e-6) + value(
        "explained", cv.explained, 1 - cv.mean / null, 1e-6
    )


def chosen_by_response(rng: Generator) -> Tally:
    """Columns chosen by the response before the model: said as an error; a scaler is none."""
    n = 40
    X, y = rng.standard_normal((n, 60)), rng.integers(0, 2, n)
    select = [SelectKBest(f_classif, k=4), SelectPercentile(f_classif, percentile=8)][
        rng.integers(2)
    ]
    steps = [StandardScaler(), select] if rng.random() < 0.5 else [select]
    host = make_pipeline(*steps, LogisticRegression()).fit(X, y)
    fit, words = told(lambda: lo.from_sklearn(host, X, y))
    codes = {check.code: check.severity for check in lo.cross_validate(fit, 5).checks()}
    plain = lo.from_sklearn(
        make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:, :4], y), X[:, :4], y
    )
    others = {check.code for check in lo.cross_validate(plain, 5).checks()}
    tally = holds("the check", codes.get("LO107") == "error", codes) + holds(
        "the step is named", type(select).__name__ in words, words
    )
    return tally + holds("a scaler learned nothing from y", "LO107" not in others, others)


def dropped_columns(rng: Generator) -> Tally:
    """A host that cut a column at its tolerance: named with `tol=`.

    With a tolerance of zero it is not.
    """
    n = 50
    X = np.column_stack([1.7e9 + rng.uniform(0, 1e8, n), rng.standard_normal(n)])
    y = X[:, 1] + 0.3 * rng.standard_normal(n)
    found = {}
    for tol in (1e-6, 0.0):
        host = LinearRegression(tol=tol).fit(X, y)
        fit, _ = told(lambda host=host: lo.from_sklearn(host, X, y))
        cv, _ = told(lambda fit=fit: lo.cross_validate(fit, 5))
        found[tol] = [check for check in cv.checks() if check.code == "LO108"]
    lost = np.abs(LinearRegression().fit(X, y).coef_[1]) < 0.1
    named = [check.reason for check in found[1e-6]]
    return holds("said where it is so", bool(named) == lost, named) + holds(
        "not where it is not", not found[0.0], found[0.0]
    )


KINDS: dict[str, Callable[[Generator], Tally]] = {
    "measures of many refits: regression": regression_measures,
    "measures of many refits: classes": class_measures,
    "AUC by repeat": area_by_repeat,
    "AUC of noise, small folds": area_of_noise,
    "a penalty chosen by a measure": tuned_measure,
    "R² of folds of one row": folds_of_one_row,
    "training folds that lack a class": lacking_classes,
    "repeated column, scikit-learn's call": repeated_column_scored,
    "few rows, predictions": few_rows_predicted,
    "search over penalties of nothing": searched_penalties,
    "new rows": new_rows,
    "host stopped early": stopped_early,
    "splits of whole groups": split_by_groups,
    "splits of named groups": split_by_named_groups,
    "rolling windows": rolling_windows,
    "labels beside positions": labels_beside_positions,
    "places in another order of columns": renamed_places,
    "future of stacked series": stacked_future,
    "levels left out whole": levels_left_whole,
    "compared with missing refits": missing_refits,
    "y and log y compared": logs_compared,
    "a transformed target": transformed_target,
    "concordance of pairs at risk together": pairs_at_risk,
    "folds handed to validate": folds_validated,
    "weights of any scale": weights_scaled,
    "underflow raised": underflow_raised,
    "useful thresholds": useful_thresholds,
    "rows out of order": out_of_order,
    "chain out of order": chain_out_of_order,
    "block bootstrap, printed": block_bootstrap_printed,
    "near by chance, all copies listed": near_by_chance,
    "equal rows of scores": equal_scores,
    "Fay's replicate weights": replicate_weights,
    "a score that returns nothing": nothing_returned,
    "dependent units resampled": dependent_resampled,
    "tag of one sentence": tag_of_one_sentence,
    "dispersion at its limit": dispersion_at_its_limit,
    "small Gaussian process": small_process,
    "units of a posterior's folds": pointwise_densities,
    "certificates of held coefficients": held_coefficients,
    "altered certificates": altered_certificate,
    "held-out probabilities": held_out_probabilities,
    "standard errors by default": standard_errors,
    "standard errors over clusters": clustered_errors,
    "what no model loses": no_model_loss,
    "columns chosen by the response": chosen_by_response,
    "columns that a host dropped": dropped_columns,
}
LONG = (  # to compile, or to refit
    "chain out of order",
    "tag of one sentence",
    "dispersion at its limit",
    "small Gaussian process",
)  # to compile, or to refit
