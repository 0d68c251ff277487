"""Search over candidates in scikit-learn's manner, from one fit for each instead of one for each
fold, where that pays.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.utils import get_tags

import leaveout as lo

from ... import fit, path
from ...developer import (
    AbstractRefit,
    File,
    FloatArray,
    NamedValues,
    NoMinimiser,
    keeping,
    stoppable,
    warn,
)
from ...validation import IndefiniteHessianError
from ..hosts.sklearn import describe, inner, penalty_of
from ._folds import FoldData, OneFit, Splits, is_rescaled
from ._route import Request, reason_for_host, tell
from ._scoring import (
    Scores,
    multiple_of_loss,
    named_scorers,
    of_losses,
    score_of,
    scores,
    table_measure,
)
from ._validation import (
    NoOneFit,
    Transformers,
    check,
    errors_of_host,
    folds_of,
    host_scores,
    splits_of,
    warn_of_missing,
    with_weights,
)

SCORERS = "several scorers, or a refit of its own choice"
TRAINING_SCORES = "training scores, or arguments of scorers"


class OneFitSearchCV(GridSearchCV):
    """`GridSearchCV` of any estimator, from one fit a candidate where that is possible and pays.

    One fit a candidate serves linear estimators, and is chosen as in
    `leaveout.sklearn.cross_validate`; for candidates that differ in their penalty alone (alpha, C),
    half as many folds are enough. Otherwise it searches as GridSearchCV does, and `refits_` says
    which way, and why. The fitted attributes are GridSearchCV's. `cv_results_` also has
    "mean_approximation_error" and "split0_approximation_error", …: the errors of scores against
    exact refits. Candidates that differ in their penalty alone share one fit of the host: the
    others start from there, by `lo.path` if the score is a mean of the estimator's own loss.
    `sklearn.model_selection.cross_validate` of this search chooses again in every fold: it
    estimates the loss with the choice left out.

    Parameters
    ----------
    estimator : estimator
        Estimator.
    param_grid : dict or list of dict
        Candidates, as in GridSearchCV.
    scoring : str, callable, list or dict, optional
        Scorers. Only one, by which it chooses, can come from one fit.
    n_jobs : int, optional
        Number of processes of joblib for the host's refits.
    cv : int, splitter or iterable, optional
        Folds, as in GridSearchCV.
    refit : bool, str or callable, default: True
        Whether the best candidate is fitted on all rows, as in GridSearchCV.
    verbose : int, default: 0
        As in GridSearchCV, for the host's refits.
    pre_dispatch : Any, default: "2*n_jobs"
        As in GridSearchCV, for the host's refits.
    error_score : float or "raise", default: nan
        Score of a fold that fails.
    return_train_score : bool, default: False
        Whether training rows are scored too, which the host's refits do.
    strategy : AbstractRefit, optional
        Strategy of the folds' refits. By default `lo.Certified()`, if one fit a candidate is
        cheaper.
    transformers : {"refit", "frozen"}, default: "refit"
        As in `leaveout.sklearn.cross_validate`.
    checkpoint : str or path, optional
        File that keeps what is done: a `fit` to the same data that was killed goes on from there,
        to the same scores.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sklearn.linear_model import Ridge
    >>> X, y = lo.datasets.diabetes()
    >>> search = lo.sklearn.OneFitSearchCV(Ridge(), {"alpha": [0.01, 1.0, 100.0]}, cv=5).fit(X, y)
    >>> search.best_params_
    {'alpha': 0.01}
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        scoring: Any = None,
        n_jobs: int | None = None,
        cv: Any = None,
        refit: Any = True,
        verbose: int = 0,
        pre_dispatch: Any = "2*n_jobs",
        error_score: Any = np.nan,
        return_train_score: bool = False,
        strategy: AbstractRefit | None = None,
        transformers: Transformers = "refit",
        checkpoint: File | None = None,
    ):
        super().__init__(
            estimator,
            param_grid,
            scoring=scoring,
            cv=cv,
            refit=refit,
            error_score=error_score,
            n_jobs=n_jobs,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            return_train_score=return_train_score,
        )
        self.strategy = strategy
        self.transformers = transformers
        self.checkpoint = checkpoint

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags = get_tags(self.estimator).target_tags
        return tags

    def fit(self, X, y=None, **params):
        """Score every candidate, and fit the best on all rows.

        Parameters
        ----------
        X : array-like, shape (rows, features)
            Columns.
        y : array-like, shape (rows,)
            Response or class.
        **params : Any
            `groups`, and weights of rows under the name by which the estimator takes them. The
            weights go to the scores too where GridSearchCV of the installed scikit-learn takes them
            there: where metadata are routed, as is asked for; else, in newer versions, if they are
            called sample_weight.

        Returns
        -------
        OneFitSearchCV
            The fitted search.
        """
        check("OneFitSearchCV", X, y, params, None, self.transformers)
        if y is None and get_tags(self).target_tags.required:
            raise ValueError(
                "OneFitSearchCV: this estimator requires y to be passed, but the target y is None."
            )
        if not isinstance(self.param_grid, dict | list | tuple):
            return super().fit(X, y, **params)  # which raises
        candidates = list(ParameterGrid(self.param_grid))
        # the D² of a Tweedie deviance, for one, depends on its power
        powers = {
            params[name]
            for params in candidates
            for name in params
            if name.rpartition("__")[2] == "power"
        }
        if self.scoring is None and len(powers) > 1:
            warn(
                "OneFitSearchCV: candidates differ by their power, on which each one's own score depends: these scores are of "
                "other things. Give one for all, as scoring='neg_mean_absolute_error'."
            )
        routed = self._get_routed_params_for_fit(params)
        groups = routed.splitter.split.get("groups")
        weight = routed.scorer.score.get("sample_weight")
        hosts = [self._candidate(params) for params in candidates]
        cv = check_cv(self.cv, y, classifier=is_classifier(self.estimator))
        why = self._reason_for_host(hosts, candidates, X, y, routed, cv.get_n_splits(X, y, groups))
        if why in (SCORERS, TRAINING_SCORES) and self.strategy is not None:
            raise ValueError(
                f"OneFitSearchCV: strategy={self.strategy!r} is of refits from one fit, but the host refits every fold for "
                f"{why}. Leave strategy= out, or give one scorer of test rows and refit=True."
            )
        if why and self.checkpoint is None:
            return self._search_by_host(why, X, y, params)
        data = with_weights("OneFitSearchCV", self.estimator, X, y, routed.estimator.fit)
        if weight is not None:
            data = data._replace(score_weight=np.asarray(weight, float))
        splits = splits_of(cv, data, groups)
        names = "estimator", "scoring", "strategy", "transformers", "error_score"
        inputs = {"candidates": candidates, "data": data, "splits": splits} | {
            name: getattr(self, name) for name in names
        }
        with stoppable("OneFitSearchCV"), keeping("OneFitSearchCV", self.checkpoint, inputs):
            try:
                make = self._score_candidates
                if why:
                    make = self._score_by_host
                outcomes = list(make(hosts, candidates, data, splits))
            except NoOneFit as error:
                why = str(error)
                if self.checkpoint is None:
                    return self._search_by_host(why, X, y, params)
                outcomes = list(self._score_by_host(hosts, candidates, data, splits))
        self.refits_ = tell("OneFitSearchCV", why)
        keys = [f"split{k}_approximation_error" for k in range(len(splits))]
        error = np.array([candidate_scores.error for candidate_scores, _ in outcomes])
        columns = dict(zip(keys, error.T, strict=True)) | {
            "mean_approximation_error": error.mean(1)
        }
        out = [
            {"test_scores": score, "fit_time": fit_seconds, "score_time": seconds}
            for candidate_scores, fit_times in outcomes
            for score, fit_seconds, seconds in zip(
                candidate_scores.values, fit_times, candidate_scores.seconds, strict=True
            )
        ]
        self.cv_results_ = self._format_results(candidates, len(splits), out, columns)
        self.n_splits_ = len(splits)
        self.multimetric_ = False
        self.scorer_ = check_scoring(self.estimator, scoring=self.scoring)
        self.best_index_ = int(self.cv_results_["rank_test_score"].argmin())
        self.best_score_ = self.cv_results_["mean_test_score"][self.best_index_]
        self.best_params_ = candidates[self.best_index_]
        if self.refit:
            began = time.perf_counter()
            self.best_estimator_ = self._candidate(self.best_params_).fit(X, data.y, **data.params)
            self.refit_time_ = time.perf_counter() - began
            if hasattr(self.best_estimator_, "feature_names_in_"):
                self.feature_names_in_ = self.best_estimator_.feature_names_in_
        return self

    def _candidate(self, params: NamedValues):
        return clone(self.estimator).set_params(**clone(params, safe=False))

    def _reason_for_host(
        self, hosts: list[Any], candidates: list[dict], X, y, routed, num_folds: int
    ) -> str:
        """Say why the host refits the folds of all candidates.

        Empty if these come from one fit each.
        """
        if isinstance(self.scoring, list | tuple | set | dict) or not isinstance(self.refit, bool):
            return SCORERS
        if self.return_train_score or set(routed.scorer.score) - {"sample_weight"}:
            return TRAINING_SCORES
        family = 1
        if _is_family(candidates, hosts):
            family = len(hosts)
            hosts = hosts[:1]
        request = Request(
            X,
            y,
            routed.estimator.fit,
            [self.scoring],
            num_folds,
            self.strategy is not None,
            self.transformers == "frozen",
            callable(self.scoring),
            family,
        )
        return next(filter(None, (reason_for_host(host, request) for host in hosts)), "")

    def _search_by_host(self, why: str, X, y, params: NamedValues):
        """Search as GridSearchCV does."""
        with stoppable("OneFitSearchCV"):
            super().fit(X, y, **params)
        zero = np.zeros(len(self.cv_results_["params"]))
        names = [f"split{k}_approximation_error" for k in range(self.n_splits_)]
        self.cv_results_ |= dict.fromkeys([*names, "mean_approximation_error"], zero)
        self.refits_ = tell("OneFitSearchCV", why)
        return self

    def _score_by_host(
        self, hosts: list[Any], candidates: list[NamedValues], data: FoldData, splits: Splits
    ) -> Iterator[tuple[Scores, FloatArray]]:
        """Yield the scores of every candidate by the host's refits, fold by fold, and the seconds
        that its fits took.
        """
        if (
            isinstance(self.scoring, list | tuple | set | dict)
            or self.return_train_score
            or data.score_weight is not None
        ):
            raise ValueError(
                "OneFitSearchCV: checkpoint= keeps the host's refits for one unweighted scorer of test rows."
            )
        for host in hosts:
            result = host_scores(
                host,
                data.X,
                data.y,
                splits,
                scoring=self.scoring,
                error_score=self.error_score,
                params=data.params,
            )
            zero = errors_of_host(result)["approximation_error"]
            yield Scores(result["test_score"], zero, result["score_time"]), result["fit_time"]

    def _score_candidates(
        self, hosts: list[Any], candidates: list[NamedValues], data: FoldData, splits: Splits
    ) -> Iterator[tuple[Scores, FloatArray]]:
        """Yield the scores of every candidate from one fit each, and the seconds that its fits
        took.
        """
        facts = (
            data,
            splits,
            self.strategy,
            self.transformers,
            self.error_score,
            callable(self.scoring),
        )
        if _is_family(candidates, hosts):
            first, _ = folds_of(hosts[0], *facts)
            penalties = [
                penalty_of(describe(inner(candidate))) or lo.penalties.Zero() for candidate in hosts
            ]
            try:
                yield from list(_family(first, penalties, self.scoring, self.error_score))
                return
            # one by one, so that those that need it are found
            except (IndefiniteHessianError, NoMinimiser):
                pass
        for host in hosts:
            folds, fitted_host = folds_of(host, *facts)
            score_by_name = scores(
                folds,
                named_scorers(self.scoring, fitted_host, data.X, data.y, self.error_score),
                fitted_host,
                data.y,
                self.error_score,
            )
            if "score" not in score_by_name:
                raise ValueError(
                    "OneFitSearchCV: scoring must return one score, by which it chooses."
                )
            yield (
                score_by_name["score"]._replace(
                    values=warn_of_missing(score_by_name["score"], self.error_score)
                ),
                folds.fit_seconds,
            )


def _is_family(candidates: list[NamedValues], hosts: list[Any]) -> bool:
    """Tell whether candidates differ in the penalty of their linear estimators alone."""
    names = {name for params in candidates for name in params}
    if len(names) != 1:
        return False
    (name,) = names
    last = name.rpartition("__")[2]
    return last in ("alpha", "C") and all(
        np.ndim(params[name]) == 0
        and np.array_equal(getattr(inner(host), last, np.nan), params[name])
        for params, host in zip(candidates, hosts, strict=True)
    )


def _family(
    first: OneFit, penalties: list[lo.penalties.AbstractPenalty], scoring, error_score
) -> Iterator[tuple[Scores, FloatArray]]:
    """Yield the scores of candidates that differ in their penalty alone; the first is given."""
    host = first.host
    data = first.data
    fits = first.plan.num_refits
    scorer = named_scorers(scoring, host, data.X, data.y, error_score)["score"]
    measure = table_measure(scorer, host, data.y)
    model = first.fits[0].objective
    factor = (
        0.0
        if len(first.fits) > 1 or is_rescaled(*first.fits)
        else multiple_of_loss(measure, first.fits[0], data.y)
    )
    if measure is not None and factor and len(set(map(repr, penalties))) == len(penalties):
        began = time.perf_counter()
        points = path(
            model, dict(enumerate(penalties)), first.plan, strategy=first.refit, audit=0
        ).points
        seconds = np.full(
            fits, (first.seconds + time.perf_counter() - began) / (fits * len(penalties))
        )
        for point in points:
            values, error = of_losses(point.estimate, measure, factor, data)
            result = Scores(values, error, np.zeros(fits))
            result = replace(first, fits=(point.fit,)).complete(
                result, score_of(scorer, host, error_score)
            )
            yield result._replace(values=warn_of_missing(result, error_score)), seconds
        return
    starts = first.fits
    seconds = first.fit_seconds
    for penalty in penalties:
        began = time.perf_counter()
        starts = tuple(
            fit(start.objective.as_given.under(penalty), start.parameters)  # type: ignore[attr-defined]
            for start in starts
        )
        seconds = seconds + (time.perf_counter() - began) / fits
        result = scores(replace(first, fits=starts), {"score": scorer}, host, data.y, error_score)[
            "score"
        ]
        yield result._replace(values=warn_of_missing(result, error_score)), seconds
        seconds = np.zeros(fits)
