"""Search over penalties in scikit-learn's manner, from one fit for each penalty instead of one for each fold and penalty."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, ParameterGrid

from .._runtime.checkpoint import File, keeping
from .._runtime.interrupt import stoppable
from ..interop.sklearn import describe, inner, learns, penalty_of, rescales
from ..models.glm.losses import Squared
from ..models.glm.penalties import AbstractPenalty, Zero
from ..optimize.active_set import NoMinimiser
from ..optimize.fit import fit
from ..optimize.hessian_factor import IndefiniteHessianError
from ..refit import AbstractRefit
from ..tuning.path import path
from ..validation.cross_validate import DEFAULT_REFIT
from ._folds import FoldData, OneFit, Splits, fit_host, is_rescaled
from ._scoring import OfMean, Scores, named_scorers, of_losses, of_mean, score_of, scores
from ._validation import Transformers, check, fold_failed, folds_of, splits_of, warn_of_missing, with_weights


class OneFitSearchCV(GridSearchCV):
    """`GridSearchCV` over the penalty of a linear estimator (alpha, C) and its other parameters, from one fit a candidate.

    The fitted attributes are GridSearchCV's. `cv_results_` also has "mean_approximation_error" and
    "split0_approximation_error", …: the errors of scores against exact refits. Candidates that differ in their penalty
    alone share one fit of the host: the others start from there, by `lo.path` if the score is a mean of the estimator's own
    loss. `sklearn.model_selection.cross_validate` of this search chooses again in every fold: it estimates the loss with the
    choice left out.

    Parameters
    ----------
    estimator : estimator
        Estimator that `lo.from_sklearn` knows.
    param_grid : dict or list of dict
        Candidates, as in GridSearchCV.
    scoring : str or callable, optional
        One scorer, by which it chooses.
    cv : int, splitter or iterable, optional
        Folds, as in GridSearchCV.
    refit : bool, default: True
        Whether the best candidate is fitted on all rows.
    error_score : float or "raise", default: nan
        Score of a fold that fails.
    strategy : AbstractRefit, optional
        Strategy of the folds' refits, by default `lo.Certified()`.
    transformers : {"refit", "frozen"}, default: "refit"
        As in `leaveout.sklearn.cross_validate`.
    checkpoint : str or path, optional
        File that keeps what is done: a `fit` to the same data that was killed goes on from there, to the same scores.

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
        cv: Any = None,
        refit: bool = True,
        error_score: Any = np.nan,
        strategy: AbstractRefit | None = None,
        transformers: Transformers = "refit",
        checkpoint: File | None = None,
    ):
        super().__init__(estimator, param_grid, scoring=scoring, cv=cv, refit=refit, error_score=error_score)
        self.strategy, self.transformers, self.checkpoint = strategy, transformers, checkpoint

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
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
            `groups`, and weights of rows under the name by which the estimator takes them. The weights go to the scores too
            where GridSearchCV of the installed scikit-learn takes them there: where metadata are routed, as is asked for; else,
            in newer versions, if they are called sample_weight.

        Returns
        -------
        OneFitSearchCV
            The fitted search.
        """
        if isinstance(self.scoring, list | tuple | set | dict):
            raise ValueError(f"OneFitSearchCV: scoring must be one scorer, by which it chooses; got {self.scoring!r}.")
        if not isinstance(self.refit, bool):
            raise ValueError(f"OneFitSearchCV: refit must be True or False; got {self.refit!r}.")
        candidates = list(ParameterGrid(self.param_grid))
        # the D² of a Tweedie deviance, for one, depends on its power
        powers = {params[name] for params in candidates for name in params if name.rpartition("__")[2] == "power"}
        if self.scoring is None and len(powers) > 1:
            warnings.warn(
                "OneFitSearchCV: candidates differ by their power, on which each one's own score depends: these scores are of "
                "other things. Give one for all, as scoring='neg_mean_absolute_error'.",
                stacklevel=2,
            )
        routed = self._get_routed_params_for_fit(params)
        groups, weight = routed.splitter.split.get("groups"), routed.scorer.score.get("sample_weight")
        if unknown := set(routed.scorer.score) - {"sample_weight"}:
            raise TypeError(f"OneFitSearchCV: scorers are given sample_weight alone; got {', '.join(sorted(unknown))}.")
        data = with_weights("OneFitSearchCV", self.estimator, X, y, routed.estimator.fit, groups)
        data = data._replace(score_weight=None if weight is None else np.asarray(weight, np.float64))
        splits = splits_of(self.cv, data, groups, is_classifier(self.estimator))
        names = "estimator", "scoring", "strategy", "transformers", "error_score"
        of = {"candidates": candidates, "data": data, "splits": splits} | {name: getattr(self, name) for name in names}
        with stoppable("OneFitSearchCV"), keeping("OneFitSearchCV", self.checkpoint, of):
            found = list(self._score_candidates(candidates, data, splits))
        keys = [f"split{k}_approximation_error" for k in range(len(splits))]
        error = np.array([one.error for one, _ in found])
        more = dict(zip(keys, error.T, strict=True)) | {"mean_approximation_error": error.mean(axis=1)}
        out = [
            {"test_scores": score, "fit_time": fit_seconds, "score_time": seconds}
            for one, each in found
            for score, fit_seconds, seconds in zip(one.values, each, one.seconds, strict=True)
        ]
        self.cv_results_ = self._format_results(candidates, len(splits), out, more)
        self.n_splits_, self.multimetric_ = len(splits), False
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

    def _candidate(self, params: dict[str, Any]) -> Any:
        return clone(self.estimator).set_params(**clone(params, safe=False))

    def _score_candidates(
        self, candidates: list[dict[str, Any]], data: FoldData, splits: Splits
    ) -> Iterator[tuple[Scores, NDArray[np.float64]]]:
        """Yield the scores of every candidate, and the seconds that its fits took."""
        strategy = DEFAULT_REFIT if self.strategy is None else self.strategy
        hosts = [self._candidate(params) for params in candidates]
        frozen = learns(self.estimator) and self.transformers == "frozen"
        anew = learns(self.estimator) and not frozen
        if _is_family(candidates, hosts) and not (anew and (callable(self.scoring) or not rescales(hosts[0]))):
            began = time.perf_counter()
            try:
                host, start = fit_host(hosts[0], data, anew=anew)
                if not anew or is_rescaled(start):
                    penalties = [penalty_of(describe(inner(each))) or Zero() for each in hosts]
                    failed = lambda error: fold_failed(error, self.error_score)
                    first = OneFit(host, start, data, splits, strategy, failed, frozen, time.perf_counter() - began)
                    family = list(_family(first, penalties, self.scoring, self.error_score))
                    yield from family
                    return
            except (IndefiniteHessianError, NoMinimiser):  # one by one, so that the host fits those that need it
                pass
        for host in hosts:
            check("OneFitSearchCV", host, splits, self.transformers)
            folds, own = folds_of(host, data, splits, strategy, self.transformers, self.error_score, callable(self.scoring))
            found = scores(
                folds, named_scorers(self.scoring, own, data.X, data.y, self.error_score), own, data.y, self.error_score
            )
            if "score" not in found:
                raise ValueError("OneFitSearchCV: scoring must return one score, by which it chooses.")
            yield found["score"]._replace(values=warn_of_missing(found["score"], self.error_score)), folds.fit_seconds


def _is_family(candidates: list[dict[str, Any]], hosts: list[Any]) -> bool:
    """Tell whether candidates differ in the penalty of their linear estimators alone."""
    names = {name for params in candidates for name in params}
    if len(names) != 1:
        return False
    (name,) = names
    last = name.rpartition("__")[2]
    return last in ("alpha", "C") and all(
        np.array_equal(getattr(inner(host), last, np.nan), params[name]) for params, host in zip(candidates, hosts, strict=True)
    )


def _family(
    first: OneFit, penalties: list[AbstractPenalty], scoring: Any, error_score: Any
) -> Iterator[tuple[Scores, NDArray[np.float64]]]:
    """Yield the scores of candidates that differ in their penalty alone; the first is given."""
    host, data, fits = first.host, first.data, first.plan.num_refits
    each = named_scorers(scoring, host, data.X, data.y, error_score)["score"]
    known = of_mean(each, host, first.fit, data.y)
    model: Any = first.fit.objective
    squared = isinstance(model.loss_function, Squared) and model.loss_function.link_name == "identity"
    own = None  # the score as a function of the mean of the model's own loss, if it is one
    if known is not None and not is_rescaled(first.fit):
        doubled = lambda mean, *rest: known.score(2 * mean, *rest)  # which is half the square
        half = OfMean(known.loss, doubled) if known.loss == "squared_error" and squared else None
        own = known if known.loss == "log_density" else half
    if own is not None and len(set(map(repr, penalties))) == len(penalties):
        began = time.perf_counter()
        points = path(first.fit.objective, dict(enumerate(penalties)), first.plan, first.refit, audit=0).points
        seconds = np.full(fits, (first.seconds + time.perf_counter() - began) / (fits * len(penalties)))
        for point in points:
            found = Scores(*of_losses(point.estimate, own, data), np.zeros(fits))
            found = replace(first, fit=point.fit).complete(found, score_of(each, host, error_score))
            yield found._replace(values=warn_of_missing(found, error_score)), seconds
        return
    start, seconds = first.fit, first.fit_seconds
    for penalty in penalties:
        began = time.perf_counter()
        start = fit(model.under(penalty), start.parameters)
        seconds = seconds + (time.perf_counter() - began) / fits
        found = scores(replace(first, fit=start), {"score": each}, host, data.y, error_score)["score"]
        yield found._replace(values=warn_of_missing(found, error_score)), seconds
        seconds = np.zeros(fits)
