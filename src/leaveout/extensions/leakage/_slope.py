"""Tests whether the learner exploits leakage, and estimates of its largest share.

A tenth of V̂ is injected, and the fall of the loss is tested, which needs no p. The share of T̂
that a classifier cannot tell from V̂ limits the leakage.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from ... import Fit
from ...developer import File, FloatArray, Rng, conventional, count, keeping, match_labels
from ...validation import Interrupted
from ..hosts.sklearn import SklearnEstimator
from ._hosts import check_columns, make_learner, prepare, seed_estimator, take_rows
from ._injection import SLOPE_SHARE, FoldInjection, Injection, make_folds, plan_injection
from ._pool import fold_weights
from ._run import FitWork, FoldLosses, describe_run, run
from ._scoring import Loss

LEVEL = 0.95  # level of the interval
MIN_INTERVAL_CLUSTERS = 8  # clusters below which the interval is over folds or draws
SLOPE_DRAWS = 50
MIN_REGION_RECORDS = 20  # least number of records of V̂ in a region


@dataclass(frozen=True)
class SlopeTest:
    """The fall of the loss (or the rise of a score) when a share of V̂ is injected, with a 95 %
    interval.

    The test tells whether the learner *exploits* leakage. If it does not, or if the interval
    contains zero, there may be leakage nevertheless.

    Attributes
    ----------
    fall : float
        The fall of the loss, or the rise of the score.
    low, high : float
        The interval.
    share : float
        The share of V̂ that was injected.
    kind : str
        What the interval is over.
    rising : bool
        Whether it is a score, where more is better.

    See Also
    --------
    leakage_slope_test : Make it.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.leakage.SlopeTest(0.2, 0.1, 0.3, 0.1, "over clusters").exploits
    True
    """

    fall: float
    low: float
    high: float
    share: float
    kind: str
    rising: bool = False

    @property
    def exploits(self) -> bool | None:
        """True or False if the interval is on one side of zero, else None."""
        if self.low > 0:
            return True
        return False if self.high < 0 else None

    @property
    def verdict(self) -> str:
        """The result of the test, as a sentence."""
        if self.exploits is None:
            return "no verdict: the interval holds zero, which is no sign that nothing leaks"
        if self.exploits:
            return "the learner exploits leakage"
        change = "loss rises"
        if self.rising:
            change = "score falls"
        return f"the {change} when test records are injected: the learner does not exploit the leak"

    def __str__(self) -> str:
        return f"{self.fall:.4g} ({self.low:.3g} to {self.high:.3g}) with {self.share:.0%} of V̂ injected, {self.kind}: {self.verdict}"


@conventional
def leakage_slope_test(
    estimator: SklearnEstimator | Fit,
    X: Any,
    y: ArrayLike,
    *,
    groups: ArrayLike,
    loss: Loss | None = None,
    scoring: Any = None,
    injection: Injection | None = None,
    cv: Any = None,
    rng: Rng = 0,
    n_jobs: int | None = None,
    checkpoint: File | None = None,
) -> SlopeTest:
    """Test whether the loss falls when leakage is injected.

    A tenth of V̂'s records, or halves of a tenth of its clusters, are injected into training.

    The interval is Student's over clusters (over folds where clusters are fewer than eight). Its
    variance is inflated by 1 + K |V|/|T| for the training data that K folds share. For a single
    fold with fewer than eight clusters in V̂ it is over draws only, as `kind` states.

    Parameters
    ----------
    estimator : estimator or Fit
        A scikit-learn estimator, or the `Fit` of a `GLM`.
    X : array_like, `[records, features]`
        The data.
    y : array_like, `[records]`
        The response.
    groups : array_like, `[records]`
        The clusters as they are filed; whole clusters are left out.
    loss : str, loss or callable, optional
        The loss of a record, as in `leakage_corrected`.
    scoring : str or scorer, optional
        Instead of a loss, a score of scikit-learn, where more is better.
    injection : Injection, optional
        The draws.
    cv : int, splitter or pairs, optional
        The number of folds (5, balanced by size), a splitter, or pairs of rows.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    n_jobs : int, optional
        The jobs of joblib.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.

    Returns
    -------
    SlopeTest
        The fall with its interval.

    References
    ----------
    C. Nadeau and Y. Bengio, Inference for the generalization error, Machine Learning 52, 2003.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(30), 2)
    >>> X = rng.normal(size=(60, 2))
    >>> y = X[:, 0] + rng.normal(size=30)[groups]
    >>> test = lo.leakage.leakage_slope_test(
    ...     Ridge(), X, y, groups=groups, injection=lo.leakage.Injection(num_boot=4)
    ... )
    >>> round(test.share, 2)
    0.08
    """
    seed = count("leakage_slope_test: rng", rng, 0)
    if injection is None:
        injection = Injection(num_boot=SLOPE_DRAWS)
    draws = injection.num_boot or SLOPE_DRAWS
    _, X, y, groups = match_labels("leakage_slope_test", X=X, y=y, groups=groups)
    task = prepare("leakage_slope_test", estimator, X, y, loss, "auto", scoring=scoring)
    rising = task.measure.more_is_better
    folds, _ = make_folds("leakage_slope_test", X, task.y, groups, cv, seed)
    learner = make_learner(estimator, task, n_jobs)
    plan = []
    for part in plan_injection(folds, injection, seed):
        top = min(max(1, round(SLOPE_SHARE * part.num_test_units)), int(part.levels[-1]))
        plan.append(replace(part, levels=np.array([0, top])))
    run_facts = describe_run(estimator, task, folds, injection, seed)
    try:
        with keeping("leakage_slope_test", checkpoint, run_facts):
            return slope_test(
                plan,
                run(FitWork(plan, learner, task.measure, task.codes), (draws, draws)),
                1,
                rising,
            )
    except Interrupted as stop:
        runs = stop.partial
        done = runs[0].test.shape[1]
        message = f"leakage_slope_test: stopped after {done} of {draws} draws of each fold"
        raise Interrupted(
            message, lambda: slope_test(plan, runs, 1, rising) if done > 1 else None
        ) from None


def slope_test(
    plan: list[FoldInjection], runs: list[FoldLosses], level: int, rising: bool
) -> SlopeTest:
    """Test by existing losses, between levels 0 and `level`.

    The test is over all folds' clusters, or over folds (draws of a single fold) if clusters are
    fewer than eight or records have no losses.
    """
    weight = fold_weights(plan)
    by_fold = np.array([np.mean(result.test[0] - result.test[level]) for result in runs])
    fall = float(weight @ by_fold)
    share = float(plan[0].levels[level] / plan[0].num_test_units)
    falls, sizes = _by_cluster(runs, level)
    too_few = len(falls) < MIN_INTERVAL_CLUSTERS
    kind = f"over {len(falls)} clusters"
    if len(plan) == 1:
        kind = f"{kind} of one fold"
        if too_few:
            falls = runs[0].test[0] - runs[0].test[level]
            kind = "over draws of one fold: these records only"
        se = np.std(falls, ddof=1) / np.sqrt(len(falls))
    else:
        if too_few:
            falls = by_fold
            sizes = weight
            kind = f"over {len(falls)} folds"
        kind = f"{kind}, the folds' dependence allowed for"
        sizes = sizes / sizes.sum()
        overlap = len(plan) * np.mean([len(part.fold.test) / len(part.fold.train) for part in plan])
        se = np.sqrt(
            np.sum(sizes**2 * (falls - fall) ** 2) * len(falls) / (len(falls) - 1) * (1 + overlap)
        )
    width = float(stats.t.ppf((1 + LEVEL) / 2, len(falls) - 1) * se)
    if rising:
        fall = -fall
    return SlopeTest(fall, fall - width, fall + width, share, kind, rising)


def _by_cluster(runs: list[FoldLosses], level: int) -> tuple[FloatArray, FloatArray]:
    """Compute the fall of every cluster that is scored at both levels, and its number of
    records.
    """
    falls = []
    sizes = []
    for result in runs:
        difference = result.cluster[0] - result.cluster[level]
        scored = np.isfinite(difference).any(0)
        falls.append(np.nanmean(difference[:, scored], 0))
        sizes.append(np.bincount(result.members)[scored].astype(float))
    return np.concatenate(falls), np.concatenate(sizes)


@conventional
def largest_leakage_share(
    X: Any,
    *,
    groups: ArrayLike,
    cv: Any = None,
    classifier: SklearnEstimator | None = None,
    rng: Rng = 0,
) -> pd.DataFrame:
    """Estimate the largest share of T̂ that can belong to V̂'s clusters, by fold.

    If a share p of T̂ is distributed as V̂ is, then P_T̂(R) ≥ p P_V̂(R) in every region R of the
    records, so p is at most the least ratio. A cross-fitted classifier that tells V̂ from T̂ gives
    the regions {score ≥ t}. The least of (P_T̂ + se) / (P_V̂ − se) over those with 20 records of V̂
    or more is returned. It is not a bound: clusters that look alike make it large, a weak
    classifier too, and noise may make it too small.

    Parameters
    ----------
    X : array_like, `[records, features]`
        The data.
    groups : array_like, `[records]`
        The clusters as filed.
    cv : int, splitter or pairs, optional
        The folds.
    classifier : estimator, optional
        The classifier; by default logistic regression of standardised columns.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.

    Returns
    -------
    DataFrame
        `fold`, `p_train`, `auc`.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> X = np.random.default_rng(0).normal(size=(80, 2))
    >>> list(lo.leakage.largest_leakage_share(X, groups=np.repeat(np.arange(40), 2), cv=2).columns)
    ['fold', 'p_train', 'auc']
    """
    seed = count("largest_leakage_share: rng", rng, 0)
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _, X, groups = match_labels("largest_leakage_share", X=X, groups=groups)
    if not hasattr(X, "iloc"):
        X = np.asarray(X)
    num_rows = X.shape[0]
    model = make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000)
    )
    model = seed_estimator(model if classifier is None else classifier, seed)
    check_columns("largest_leakage_share", model, X, np.arange(num_rows) % 2)
    folds, _ = make_folds("largest_leakage_share", X, np.zeros(num_rows), groups, cv, seed)
    rows = []
    for k, fold in enumerate(folds):
        if len(fold.test) < 2 * MIN_REGION_RECORDS:
            raise ValueError(
                f"largest_leakage_share: V̂ needs {2 * MIN_REGION_RECORDS} records or more; fold {k} has {len(fold.test)}."
            )
        records = np.concatenate([fold.train, fold.test])
        is_test = np.arange(len(records)) >= len(fold.train)
        score = cross_val_predict(
            model,
            take_rows(X, records),
            is_test,
            cv=StratifiedKFold(5, shuffle=True, random_state=seed),
            method="predict_proba",
        )[:, 1]
        sides = score[~is_test], score[is_test]
        cut = np.sort(sides[1])[::-1][MIN_REGION_RECORDS - 1 :]
        above = []
        error = []
        for side in sides:
            share = 1 - np.searchsorted(np.sort(side), cut) / len(side)
            above.append(share)
            error.append(np.sqrt(np.maximum(share * (1 - share), 1 / len(side)) / len(side)))
        ratio = float(((above[0] + error[0]) / np.maximum(above[1] - error[1], 1e-12)).min())
        rows.append(
            {"fold": k, "p_train": min(ratio, 1.0), "auc": float(roc_auc_score(is_test, score))}
        )
    return pd.DataFrame(rows)
