"""The leakage report.

Several estimates of the score on new clusters, with intervals, assumptions and a verdict.
"""

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ... import Fit
from ...developer import (
    File,
    Rng,
    Slow,
    ThreeNumbers,
    conventional,
    count,
    fingerprint,
    keeping,
    match_labels,
    share,
)
from ...validation import Interrupted
from ..hosts.sklearn import SklearnEstimator
from ._answers import average, coarser, extrapolate, impute, mateless_rows, naive, prices, purge
from ._estimate import leakage_corrected
from ._hosts import Estimator, make_learner, prepare
from ._injection import MIN_DRAWS, Injection, make_folds, refusal, unshown
from ._linkage import Linkage
from ._pair_calibration import read_rate
from ._report_result import LeakageReport, estimate_unlisted
from ._scoring import resolve_score
from ._splits import join_clusters
from ._study import Answer, LeakageStudy, PredictionWork

ANSWERS = "naive", "purge", "coarser", "both", "imputed", "unmated", "extrapolated"
ANNOUNCED_SECONDS = 2.0  # seconds from which the cost is announced
NOT_REQUESTED = "not asked for"
NO_PAIRS = "pairs are not known, only rates"


@conventional
def leakage_report(
    estimator: SklearnEstimator | Fit,
    X: Any,
    y: ArrayLike,
    *,
    linkage: Linkage,
    groups: ArrayLike | None = None,
    scoring: Any = None,
    cv: Any = None,
    level: float = 0.95,
    listed: float | ThreeNumbers | None = None,
    answers: Collection[str] = ANSWERS,
    num_draws: int = 20,
    injection: Injection | None = None,
    rng: Rng = 0,
    n_jobs: int | None = None,
    checkpoint: File | None = None,
) -> LeakageReport:
    """Estimate the score on new clusters where links between records are uncertain, by several
    answers, with a verdict.

        naive         cross-validation by clusters as filed, or on the split as it is
        purge
        rows that may have mates in training, by fits without these against fits that lack as many
        others coarser       cross-validation by clusters that are joined by weaker links too
        both          the mean of these two
        imputed       cross-validation by clusters drawn from the linkage, `num_draws` at most
        unmated       the tested records that have no listed mate in training
        extrapolated  `leakage_corrected`: more leakage is injected, and the score extrapolated to
        none

    A correction that leaves some of the mates expected across folds in training (see `exposed`) is
    enlarged by that share. Intervals are over clusters, drawn from the linkage, as tested and as
    trained on.

    Parameters
    ----------
    estimator : estimator or Fit
        A scikit-learn estimator, or the `Fit` of a `GLM`.
    X : array_like, `[records, features]`
        The data.
    y : array_like, `[records]`
        The response.
    linkage : Linkage
        What is known of the links.
    groups : array_like, `[records]`, optional
        The clusters as filed; `linkage.groups(0.5)` by default.
    scoring : str, scorer or loss, optional
        A name or scorer of scikit-learn, or a loss of this library; the estimator's own score by
        default.
    cv : int, splitter or pairs, optional
        The number of folds (5), a splitter, or pairs (train, test) of rows. Pairs without `groups`
        are taken as they are, for the audit of a fixed benchmark.
    level : float, default 0.95
        The coverage of the intervals.
    listed : float or (estimate, low, high), optional
        The share of the records with a mate filed elsewhere of which some such mate is in a listed
        pair, with its interval at 0.95. Corrections are enlarged by what is missing. By default all
        are taken to be listed, unless X shows near-duplicates that are not; a number is believed.
    answers : collection of str, optional
        The answers that are wanted; all by default. With `answers=()` there is the naive one, and
        `.price` lower bounds the fits and seconds of the others.
    num_draws : int, default 20
        The most clusterings drawn for "imputed".
    injection : Injection, optional
        The levels and draws of "extrapolated".
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    n_jobs : int, optional
        The jobs of joblib.
    checkpoint : path, optional
        A file that keeps the fits.

    Returns
    -------
    LeakageReport
        The answers. `lo.compare` takes reports of several learners.

    Raises
    ------
    ValueError, TypeError
        If no number can be given.
    Interrupted
        On Ctrl-C, with the answers that are done.

    See Also
    --------
    Linkage : Make a linkage.

    References
    ----------
    Barnes and Dubrawski. Nadeau and Bengio 2003. Rubin 1987.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = X[:, 0] + rng.normal(size=60)
    >>> pairs = [(2 * k, 2 * k + 1, 0.6) for k in range(30)]
    >>> linkage = lo.leakage.Linkage.from_pairs(pairs, 60)
    >>> report = lo.leakage.leakage_report(
    ...     Ridge(), X, y, linkage=linkage, groups=np.arange(60), scoring="mse", answers=()
    ... )
    >>> list(report.answers)[0]
    'naive'
    """
    seed = count("leakage_report: rng", rng, 0)
    caller = "leakage_report"
    names, X, y, groups = match_labels(caller, X=X, y=y, groups=groups)
    if not isinstance(linkage, Linkage):
        raise TypeError(
            f"{caller}: linkage must be a lo.leakage.Linkage, such as lo.leakage.Linkage.from_pairs(pairs, ids); "
            f"got {type(linkage).__name__}."
        )
    share(f"{caller}: level", level)
    count(f"{caller}: num_draws", num_draws, 2)
    if isinstance(answers, str) or any(name not in ANSWERS for name in answers):
        raise ValueError(
            f"{caller}: answers must be some of {', '.join(ANSWERS)}; got {answers!r}."
        )
    linkage = linkage.for_rows(len(np.asarray(y)))
    task = prepare(
        caller,
        estimator,
        X,
        y,
        None,
        "auto",
        None,
        resolve_score(scoring, estimator, np.asarray(y)),
    )
    if not task.measure.weighs:
        raise ValueError(
            f"{caller}: {task.measure.name} takes no sample_weight, so it has no interval; name another scoring=."
        )
    if groups is None and not (cv is None or isinstance(cv, int)):
        groups = np.arange(len(task.y))  # given splits are not changed
    if groups is None:
        if not linkage.knows_pairs:
            raise ValueError(
                f"{caller}: this linkage knows rates, not pairs; give groups=, the clusters as filed."
            )
        groups = linkage.groups(0.5)
    folds = make_folds(caller, task.X, task.y, groups, cv, seed)[0]
    learner = make_learner(estimator, task, n_jobs)
    facts = {
        "response": task.y,
        "score": task.measure,
        "folds": folds,
        "links": linkage,
        "listed": listed,
        "level": level,
    }
    run_facts = {
        "estimator": estimator,
        "features": task.X,
        "draws": num_draws,
        "injection": injection,
        "seed": seed,
    }
    filed = folds[0].clusters
    clusters = filed[None]
    if linkage.knows_pairs:
        # drawn from the linkage; clusters without listed inner pairs stay whole
        inside = filed[linkage.left] == filed[linkage.right]
        has_listed_pair = np.zeros(len(filed), bool)
        has_listed_pair[linkage.left[inside]] = has_listed_pair[linkage.right[inside]] = True
        several = np.bincount(filed)[filed] > 1
        joins_filed = several.any() and has_listed_pair[several].mean() < 0.5
        clusters = linkage.partitions(num_draws)
        if joins_filed:
            clusters = np.stack([join_clusters(filed, partition) for partition in clusters])
    work = PredictionWork(learner, seed)
    listed_rate = read_rate(caller, "listed", 1.0 if listed is None else listed, None)
    study = LeakageStudy(
        folds, task.codes, task.measure, linkage, work, seed, clusters, listed_rate
    )
    # fits are costly: half as many levels, and few draws
    if injection is None and isinstance(learner, Estimator):
        # 20_000: rows scored at each level of injection, over draws
        injection = Injection(
            num_levels=6, num_boot=int(np.clip(20_000 // len(task.y), 2, MIN_DRAWS))
        )
    injection = injection or Injection()
    corrected = functools.partial(
        leakage_corrected, estimator, task.X, task.y, groups=study.filed_clusters, leakage=linkage, scoring=task.measure,
        cv=[(fold.train, fold.test) for fold in folds], rng=seed, n_jobs=n_jobs, injection=injection,
    )  # fmt: skip
    requested = {"naive", *answers}
    answer_functions = {
        "naive": naive,
        "purge": purge,
        "coarser": coarser,
        "imputed": impute,
        "unmated": mateless_rows,
    }
    fits = sum(prices(study).get(name, 0) for name in requested)
    finished: dict[str, Answer] = {}
    fingerprints = {name: fingerprint(value) for name, value in facts.items()}
    build_report = lambda: _report(
        study, dict(finished), task.X, names.index, level, fingerprints, injection, listed is None
    )
    try:
        with keeping(caller, checkpoint, facts | run_facts), Slow("fits", fits) as work.bar:
            for name in ANSWERS:  # the most informative first
                if name not in requested:
                    finished[name] = Answer(name, "", NOT_REQUESTED)
                elif name == "extrapolated":
                    finished[name] = extrapolate(study, corrected)
                elif name != "naive" and not linkage.knows_pairs:
                    finished[name] = Answer(name, "", NO_PAIRS)
                elif name == "both":
                    finished[name] = average(study, finished["purge"], finished["coarser"])
                else:
                    finished[name] = answer_functions[name](study)
                if name == "naive":  # announces the remaining cost before it is spent
                    fits, seconds = _price_answers(study, requested, injection).sum()
                    if seconds > ANNOUNCED_SECONDS:
                        work.bar.tell(
                            f"{caller}: {fits:,.0f} fits or more, about {seconds:.0f} s; {work.num_made} are done"
                        )
    except KeyboardInterrupt:
        done = ", ".join(finished) or "nothing"
        partial = build_report if finished else lambda: None
        raise Interrupted(f"{caller}: stopped; {done} is done", partial) from None
    return build_report()


def _price_answers(
    study: LeakageStudy, names: Collection[str], injection: Injection
) -> pd.DataFrame:
    """Tabulate the cost of the answers.

    A lower bound on their fits, and seconds at the speed of the fits as filed.
    """
    num_fits = prices(study)
    if "extrapolated" in names and not refusal(unshown(study.folds, study.linkage)):
        num_fits["extrapolated"] = injection.num_levels * injection.draws[0] * len(study.folds)
    fits = pd.Series(
        {name: int(num_fits.get(name, 0)) for name in ANSWERS if name in names}, dtype=int
    )
    seconds_per_fit = study.work.seconds / max(study.work.num_made, 1)
    return pd.DataFrame({"fits": fits, "seconds": fits * seconds_per_fit}).rename_axis("answer")


def _report(
    study: LeakageStudy,
    answers: dict[str, Answer],
    X,
    index: pd.Index | None,
    level: float,
    facts: dict,
    injection: Injection,
    judged: bool,
) -> LeakageReport:
    """Build the report from the available answers."""
    unrequested = [name for name, answer in answers.items() if answer.refusal == NOT_REQUESTED]
    for name in ANSWERS:
        answers.setdefault(name, Answer(name, "", "stopped before it was done"))
    mates = study.candidates
    several = len(study.folds) > 1
    pairs = study.linkage.knows_pairs
    known_links = NO_PAIRS
    if pairs:
        exposed = f"{study.exposed:.2g} of the records expected to have a mate in training"
        known_links = f"{int(study.across.sum())} listed pairs across, {exposed}"
    tested = f"{study.test_rows.sum()} tested records of {len(np.unique(study.filed_clusters[study.test_rows]))} clusters as filed"
    if index is None:
        index = pd.RangeIndex(len(study.y))
    rows = pd.DataFrame({
        "place": mates.place, "mate": index[mates.mate_place], "probability": mates.probability, "exposed": mates.exposed,
    })  # fmt: skip
    cv = len(study.folds) if several else "[(train, test)]"
    rate = study.listed_rate.estimate
    listed = "" if rate == 1 else f", listed={rate:.4g}"
    return LeakageReport(
        answers=answers,
        scoring=study.score.name,
        more_is_better=study.score.more_is_better,
        level=level,
        learner=study.work.learner.name,
        fits=study.work.num_made,
        clusters=study.clusters,
        tested=study.test_rows,
        links=f"{tested}, in {f'{len(study.folds)} folds' if several else 'one split'}; {known_links}",
        pairs=len(study.linkage.left) if pairs else 1,
        candidates=rows.set_axis(index[mates.place]),
        names=index,
        near_mates=estimate_unlisted(X, study, mates) if pairs and judged else None,
        facts=facts,
        arguments=f"scoring={study.score.name!r}, cv={cv}, level={level:g}, num_draws={len(study.clusters)}, rng={study.seed}{listed}",
        price=_price_answers(study, unrequested, injection),
    )
