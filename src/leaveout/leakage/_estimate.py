"""The verb: folds → injected fits → one linear system → the loss with no leakage, with its errors and its limits."""

import functools
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from .._checkpoint import File, keeping, kept
from .._fit import Fit
from .._stopping import Interrupted
from ..interop.sklearn import Host
from ..refit import AbstractRefit
from ._fits import AbstractLearner
from ._hosts import make_learner
from ._injection import FoldInjection, Injection, make_folds, plan_injection, slope_level
from ._losses import Loss
from ._models import Fold, Leakage, check_known
from ._pool import ORDER, pool
from ._prepare import prepare
from ._result import LeakageResult
from ._run import FoldLosses, known, run
from ._score import NO_MIXTURE, Score
from ._slope import slope_test
from ._spread import FEW

DEFAULT = Injection()
IID_REPEATS = 4


def leakage_corrected(
    estimator_or_fit: Host | Fit,
    X: Any,
    y: ArrayLike,
    *,
    groups: ArrayLike,
    leakage: Leakage | None,
    loss: Loss | None = None,
    scoring: Any = None,
    injection: Injection = DEFAULT,
    cv: Any = None,
    seed: int = 0,
    n_jobs: int | None = None,
    response: str = "auto",
    bins: ArrayLike | None = None,
    refit: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> LeakageResult:
    """The loss on new clusters, where `groups`, the clusters as they are filed, are wrong for some records.

    `leakage` says how wrong: a `RecordLeakage` or `SplitLeakage`. `loss` is a name of `lo.losses` (then as there: "squared",
    the default, is ½ (y − ŷ)²), "mse", "absolute", "zero_one", "brier", an object of `lo.losses`, or a function of
    (y, prediction), vectorised, to which `response` "predict_proba" gives probabilities. Or `scoring`, scikit-learn's name or
    scorer ("roc_auc", "average_precision", "f1", "r2", `make_scorer(...)`), where more is better, printed in its own sign.
    `cv` is a number of folds (5, balanced by size), a
    splitter, or pairs of rows; whole clusters are left out. `estimator_or_fit` is a scikit-learn estimator or the `Fit` of a
    `GLM`, refitted by `refit` (default `Exact()`). `n_jobs` is joblib's, as is the backend. `bins`, edges of classes of
    losses, asks for their histogram. `checkpoint` names a file that keeps what is done: a call that was killed goes on from
    there, to the same numbers; Ctrl-C raises `Interrupted` with the result of the draws that all folds have.

    Raises ValueError or TypeError on what cannot give a number: `leakage=None`, NaN, V̂ too small, a metric that is not a
    mean over records where `p_test > 0`, an estimator that cannot be cloned.
    """
    caller = "leakage_corrected"
    leakage = check_known(leakage)
    task = prepare(caller, estimator_or_fit, X, y, loss, response, refit, scoring)
    folds, names = make_folds(caller, task.X, task.y, groups, cv, seed)
    injection, said = _agreed(injection, leakage)
    notes = _few_clusters(folds) + said
    shares = leakage.shares(folds)
    outside = bool(np.any(shares.p_test > 0))
    _check_score(task.measure, outside, injection, bins)
    learner = make_learner(estimator_or_fit, task.X, task.y, task.codes, task.measure, n_jobs, task.refit)
    plan = plan_injection(folds, injection, seed)
    mixture = shares.p_test / (1 - shares.p_train - shares.p_test) * (not task.measure.per_record)
    edges = None if bins is None else _edges(bins)
    common: dict[str, Any] = {"plan": plan, "shares": shares, "names": names, "measure": task.measure}

    def result(runs: list[FoldLosses], iid: float, *more: str) -> LeakageResult:
        pooled, slope = pool(plan, runs, shares, ORDER), slope_test(plan, runs, slope_level(plan))
        told = (*more, *notes, *_size_notes(plan, injection))
        return LeakageResult(runs=runs, pooled=pooled, slope_test=slope, iid=iid, notes=told, **common, **drawn)

    drawn: dict[str, Any] = {"seed": seed, "edges": edges, "learner": learner.name}
    of = known(estimator_or_fit, task, folds, injection, seed) | {"bins": edges, "p_test above zero": outside}
    runs: list[FoldLosses] = []
    try:
        with keeping(caller, checkpoint, of):
            runs = run(
                plan, learner, task.measure, task.codes, injection.num_boot, outside=outside, mixture=mixture, edges=edges
            )
            iid = kept(lambda: {"iid": np.asarray(_iid(learner, task.measure, task.codes, plan, seed))})["iid"]
    except KeyboardInterrupt as stop:
        runs = getattr(stop, "partial", runs)
        draws = runs[0].test.shape[1] if runs else 0
        told = f"stopped after {draws} of {injection.num_boot} draws of each fold"
        partial = functools.partial(result, runs, float("nan"), f"{told}: this is what these say.")
        raise Interrupted(f"{caller}: {told}", partial if draws > 1 else lambda: None) from None
    for note in notes:
        warnings.warn(f"leakage_corrected: {note}", stacklevel=2)
    return result(runs, float(iid))


def _few_clusters(folds: list[Fold]) -> list[str]:
    clusters = folds[0].clusters
    trained = min(len(np.unique(clusters[fold.train])) for fold in folds)
    tested = len(np.unique(np.concatenate([clusters[fold.test] for fold in folds])))
    sides = (("trains", trained), ("tests", tested))
    few = [f"it {side} on {count} cluster{'s' if count > 1 else ''}" for side, count in sides if count < FEW]
    if not few:
        return []
    return [
        f"{' and '.join(few)}, fewer than {FEW}: the estimate is for clusters like these, and its data SE leaves the rest out."
    ]


def _agreed(injection: Injection, leakage: Leakage) -> tuple[Injection, list[str]]:
    """The injection whose mechanism is the leakage's."""
    if injection.mechanism == leakage.mechanism:
        return injection, []
    if leakage.mechanism == "split":
        return replace(injection, mechanism="split"), []
    raise ValueError(
        f"leakage_corrected: mechanism={injection.mechanism!r} injects halves of clusters, but {type(leakage).__name__} is "
        "about single records; give SplitLeakage(rate), or mechanism='record'."
    )


def _check_score(score: Score, outside: bool, injection: Injection, bins: ArrayLike | None) -> None:
    """ValueError where a score cannot be what is asked of it."""
    if bins is not None and not score.per_record:
        raise ValueError(f"leakage_corrected: {score.name} is not a mean over records, and has no bins=.")
    if outside and not score.functional.signed:
        raise ValueError(
            f"leakage_corrected: {score.name}: T̂'s records in V̂ (p_test > 0): {NO_MIXTURE}. Use a loss of one record, or "
            "RecordLeakage(p_train) where V̂ is clean."
        )
    if injection.mechanism == "split" and not score.weighs:
        raise ValueError(
            f"leakage_corrected: {score.name} takes no sample_weight, which mechanism='split' needs: what is left of a cluster "
            "stands for all of it."
        )


def _size_notes(plan: list[FoldInjection], injection: Injection) -> list[str]:
    size, whole = plan[0].size, len(plan[0].fold.train)
    if injection.train_size is None or size >= whole / 2:
        return []
    return [f"trained on {size} of {whole} records: this is the loss of a learner of that size, not of one that sees all."]


def _edges(bins: ArrayLike) -> NDArray[np.float64]:
    edges = np.asarray(bins, np.float64)
    if edges.ndim != 1 or len(edges) < 3 or not np.all(np.diff(edges) > 0):
        raise ValueError(f"leakage_corrected: bins must be three or more rising edges; got {bins!r}.")
    return edges


def _iid(
    learner: AbstractLearner, measure: Score, y: Float[np.ndarray, " records"], plan: list[FoldInjection], seed: int
) -> float:
    """k-fold cross-validation that takes all records as independent, with training sets of the same size."""
    records = np.unique(np.concatenate([np.r_[part.fold.train, part.fold.test] for part in plan]))
    rng, values = np.random.default_rng([seed, 3]), []
    size = min(part.size for part in plan)
    for _ in range(IID_REPEATS):
        for test in np.array_split(rng.permutation(records), max(len(plan), 2)):
            rest = np.setdiff1d(records, test)
            rows = rng.permutation(rest)[: min(size, len(rest))][None]
            predicted, _ = learner(rows, test, np.zeros((1, 0), np.int64), np.array([seed]))
            values.append(measure(y[test], predicted[0]))
    return float(np.mean(values))
