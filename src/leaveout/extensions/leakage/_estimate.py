"""`leakage_corrected`.

Folds → injected fits → one linear system → the loss with no leakage, with its errors and limits.
"""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ... import Fit
from ...developer import (
    NO_MIXTURE,
    AbstractRefit,
    File,
    NamedArrays,
    NamedValues,
    Rng,
    conventional,
    count,
    fingerprint,
    keeping,
    match_labels,
    read_or_make,
    warn,
)
from ...validation import Interrupted
from ..hosts.sklearn import SklearnEstimator
from ._binomial import check_probabilities
from ._hosts import make_learner, prepare
from ._injection import Injection, make_folds, plan_injection, slope_level, unshown
from ._models import DrawnLeakage, Leakage, check_known
from ._pool import matrices, pool
from ._result import LeakageResult
from ._run import FitWork, FoldLosses, describe_run, run
from ._scoring import Loss
from ._slope import slope_test
from ._solve import shape_of
from ._spread import MIN_CLUSTERS_A_SIDE, as_tested, draws_resolve, left_out, units
from ._study import FitRequest, PredictionWork
from ._variance import InfluenceSpread

DEFAULT = Injection()
IID_REPEATS = 4


@conventional
def leakage_corrected(
    estimator_or_fit: SklearnEstimator | Fit,
    X: Any,
    y: ArrayLike,
    *,
    groups: ArrayLike,
    leakage: Leakage | None,
    loss: Loss | None = None,
    scoring: Any = None,
    injection: Injection = DEFAULT,
    cv: Any = None,
    rng: Rng = 0,
    n_jobs: int | None = None,
    response: str = "auto",
    bins: ArrayLike | None = None,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> LeakageResult:
    """Estimate the loss on new clusters, where the clusters as they are filed are wrong for some
    records.

    More leakage is injected into the training sets, at several levels, and the loss is extrapolated
    to none: A e = b, solved for e₀.

    Parameters
    ----------
    estimator_or_fit : estimator or Fit
        A scikit-learn estimator, or the `Fit` of a `GLM`.
    X : array_like, `[records, features]`
        The data.
    y : array_like, `[records]`
        The response.
    groups : array_like, `[records]`
        The clusters as they are filed; whole clusters are left out.
    leakage : RecordLeakage, SplitLeakage or Linkage
        How far the clusters are wrong.
    loss : str, loss or callable, optional
        A name of `lo.losses` ("squared", the default, is ½ (y − ŷ)²), "mse", "absolute", "zero_one"
        or "brier"; an object of `lo.losses`; or a vectorised function of (y, prediction).
    scoring : str or scorer, optional
        Instead of a loss, scikit-learn's name or scorer ("roc_auc", "average_precision", "f1",
        "r2", `make_scorer(...)`), where more is better; it is printed in its own sign.
    injection : Injection, optional
        The levels and draws.
    cv : int, splitter or pairs, optional
        The number of folds (5, balanced by size), a splitter, or pairs of rows.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    n_jobs : int, optional
        The jobs of joblib.
    response : str, default "auto"
        The method of the estimator that predicts; "predict_proba" gives probabilities to a
        function.
    bins : array_like, optional
        The edges of classes of losses, whose histogram is then estimated.
    strategy : AbstractRefit, optional
        The strategy that refits a `Fit` (default `Exact()`).
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.

    Returns
    -------
    LeakageResult
        The estimate, or the reason why there is none, and its errors.

    Raises
    ------
    ValueError, TypeError
        If no number can be given: `leakage=None`, NaN, V̂ too small, a metric that is not a mean
        over records where `p_test > 0`, or an estimator that cannot be cloned.
    Interrupted
        On Ctrl-C, with the result of the draws that all folds have.

    See Also
    --------
    leakage_report : Several answers side by side, from match probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(40), 3)
    >>> X = rng.normal(size=(120, 2))
    >>> y = X[:, 0] + rng.normal(size=40)[groups]
    >>> injection = lo.leakage.Injection(num_levels=4, num_boot=4)
    >>> leakage = lo.leakage.RecordLeakage(0.05)
    >>> result = lo.leakage.leakage_corrected(
    ...     Ridge(), X, y, groups=groups, leakage=leakage, injection=injection
    ... )
    >>> bool(np.isfinite(result.naive))
    True
    """
    seed = count("leakage_corrected: rng", rng, 0)
    caller = "leakage_corrected"
    leakage = check_known(leakage)
    _, X, y, groups = match_labels(caller, X=X, y=y, groups=groups)
    task = prepare(caller, estimator_or_fit, X, y, loss, response, strategy, scoring)
    folds, names = make_folds(caller, task.X, task.y, groups, cv, seed)
    if injection.mechanism != leakage.mechanism:
        if leakage.mechanism != "split":
            raise ValueError(
                f"leakage_corrected: mechanism={injection.mechanism!r} injects halves of clusters, but "
                f"{type(leakage).__name__} is about single records; give SplitLeakage(rate), or mechanism='record'."
            )
        injection = replace(injection, mechanism="split")
    score = task.measure
    shares = leakage.shares(folds)
    clusters = folds[0].clusters
    outside = bool(np.any(shares.p_test > 0))

    if outside and not score.removes:
        raise ValueError(
            f"leakage_corrected: {score.name}: T̂'s records in V̂ (p_test > 0): {NO_MIXTURE}. Use a loss of one record, or "
            "RecordLeakage(p_train) where V̂ is clean."
        )
    if injection.mechanism == "split" and not score.weighs:
        raise ValueError(
            f"leakage_corrected: {score.name} takes no sample_weight, which mechanism='split' needs: what is left of a cluster "
            "stands for all of it."
        )
    trained = min(len(np.unique(clusters[fold.train])) for fold in folds)
    tested = len(np.unique(np.concatenate([clusters[fold.test] for fold in folds])))
    sides = ("trains", trained), ("tests", tested)
    small_sides = [
        f"it {side} on {count} cluster{'s' * (count > 1)}"
        for side, count in sides
        if count < MIN_CLUSTERS_A_SIDE
    ]
    notes = [
        f"{' and '.join(small_sides)}, fewer than {MIN_CLUSTERS_A_SIDE}: the estimate is for clusters like these, "
        "and its data SE leaves the rest out."
    ] * bool(small_sides)
    learner = make_learner(estimator_or_fit, task, n_jobs)
    plan = plan_injection(folds, injection, seed)
    if score.per_record:
        mixture = ()
    else:
        mixture = tuple(shares.p_test / (1 - shares.p_train - shares.p_test))
    edges = None
    if bins is not None:
        if not score.per_record:
            raise ValueError(
                f"leakage_corrected: {score.name} is not a mean over records, and has no bins=."
            )
        edges = np.asarray(bins, float)
        if edges.ndim != 1 or len(edges) < 3 or not np.all(np.diff(edges) > 0):
            raise ValueError(
                f"leakage_corrected: bins must be three or more rising edges; got {bins!r}."
            )
    work = FitWork(plan, learner, score, task.codes, outside, mixture, edges)
    drawn_shares = []
    if isinstance(leakage, DrawnLeakage) and leakage.knows_pairs:
        # 50 draws are enough for an error
        drawn_shares = leakage.shares_drawn(folds)[:50]
    for draw in drawn_shares:
        check_probabilities(f"{caller}: in a draw of the links", draw.p_train, draw.p_test)
    common: NamedValues = {
        "shares": shares, "names": names, "measure": score, "seed": seed, "edges": edges, "learner": learner.name,
        "drawn_shares": drawn_shares,
        "unshown": unshown(folds, leakage), "facts": {
            "response": fingerprint(task.y), "score": score.name,
            "folds": fingerprint([(fold.train, fold.test, fold.clusters) for fold in folds]),
        },
    }  # fmt: skip
    result_notes = list(notes)
    size = plan[0].size
    num_train = len(plan[0].fold.train)
    if injection.train_size is not None and size < num_train / 2:
        result_notes.append(
            f"trained on {size} of {num_train} records: this is the loss of a learner of that size, not of one that sees all."
        )

    law = matrices(plan, shares)
    unit = units(plan)[0]

    def iid() -> NamedArrays:
        """Cross-validate with all records as independent, with training sets of the same size."""
        records = np.unique(np.concatenate([np.r_[fold.train, fold.test] for fold in folds]))
        random = np.random.default_rng([seed, 3])
        size = min(part.size for part in plan)
        requests = []
        for _ in range(IID_REPEATS):
            for test in np.array_split(random.permutation(records), max(len(plan), 2)):
                remainder = np.setdiff1d(records, test)
                requests.append(FitRequest(random.permutation(remainder)[:size], test))
        predicted = PredictionWork(learner, seed)(requests)
        values = [
            score(work.y[request.test], prediction)
            for request, prediction in zip(requests, predicted, strict=True)
        ]
        return {"iid": np.asarray(np.mean(values))}

    def training_effects() -> NamedArrays:
        """Compute what each fold adds without another in its training, if that is known."""
        effects = left_out(work)
        return {} if effects is None else {"moved": effects}

    def enough(runs: list[FoldLosses]) -> int:
        """Estimate the number of draws at which the Monte-Carlo error is small relative to that of
        the data.
        """
        pooled = pool(plan, runs, shares, law)
        weights = pooled.solve(shape_of(score)).weights
        tested = as_tested(
            plan, [run.records for run in runs], pooled.combinations, weights, shares
        )
        data = InfluenceSpread(tested, unit, fold_effects=extras["moved"]).error
        return int(
            np.ceil(
                runs[0].test.shape[1]
                * (weights @ pooled.noise @ weights)
                / max(injection.tolerance * data, 1e-150) ** 2
            )
        )

    def result(runs: list[FoldLosses], *extra_notes: str) -> LeakageResult:
        pooled = pool(plan, runs, shares, law)
        return LeakageResult(
            plan=plan,
            runs=runs,
            pooled=pooled,
            slope_test=slope_test(plan, runs, slope_level(plan), score.more_is_better),
            notes=(*extra_notes, *result_notes),
            **extras,
            **common,
        )

    run_facts = describe_run(estimator_or_fit, task, folds, injection, seed) | {
        "bins": edges,
        "p_test above zero": outside,
    }
    extras: NamedValues = {"iid": np.nan, "moved": None}
    try:
        with keeping(caller, checkpoint, run_facts):
            extras["iid"] = float(read_or_make(iid)["iid"])
            if not draws_resolve(plan) and score.weighs:
                extras["moved"] = read_or_make(training_effects).get("moved")
            adaptive = injection.num_boot is None and score.weighs
            runs = run(work, injection.draws, enough if adaptive else None)
    except KeyboardInterrupt as stop:
        runs = getattr(stop, "partial", [])
        draws = runs[0].test.shape[1] if runs else 0
        message = f"stopped after {draws} of {injection.draws[1]} draws of each fold"
        partial = functools.partial(result, runs, f"{message}: this is what these say.")
        raise Interrupted(f"{caller}: {message}", partial if draws > 1 else lambda: None) from None
    for note in notes:
        warn(f"leakage_corrected: {note}")
    return result(runs)
