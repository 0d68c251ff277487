"""Hyperparameters by the held-out loss: each trial is one fit and one cross-validation, and `tune`
needs few.

"gradient"  descends by the criterion's exact slope in log ρ (`hypergradient`), with L-BFGS-B in
            boxes of two e-folds to each side: far out the criterion is flat, and a long first step
            would end there
"optuna"    samples trials by Optuna, each fit from the nearest one; a trial stops once it is known
            to be no better
"path"      evaluates one penalty by `lo.path`

The lowest of many estimates is optimistic. Nested cross-validation of the choice measures this
optimism from one fit for each trial: with the units in three groups g, t_g chosen by the units
outside g, and t̂ by all,

    optimism = Σ_g n_g [L_g(t_g) − L_g(t̂)] / Σ_g n_g,
    L_g(t) the criterion of trial t on group g.

From a table of trials t_g costs nothing, and many draws of the groups are averaged (I. Tsamardinos,
E. Greasidou and G. Borboudakis resample units, Machine Learning 107, 2018). With gradients it is
another descent from t̂, by the criterion outside g. More groups are no better, as t_g is then
nearly always t̂. Of 40 trials of 400 units that differ only by noise of standard deviation one, the
lowest mean is 0.107 too low; thirds correct it with a root mean square error of 0.04, tenths
with 0.08.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args, overload

import numpy as np
import pandas as pd
import scipy
from numpy.random import default_rng
from numpy.typing import ArrayLike

from .._runtime import (
    File,
    Interrupted,
    Lines,
    Module,
    NamedNumbers,
    NamedValues,
    NumberAndArray,
    NumpyArray,
    PyTree,
    Rng,
    Slow,
    TwoArrays,
    TwoNumbers,
    conventional,
    depends,
    float64,
    keeping,
    level_numbers,
    provided,
    record,
)
from ..data import count
from ..models.glm import BandedRidge, kinks
from ..objectives import LOG_DENSITY, LOG_PROBABILITY, AbstractObjective, plan_reader
from ..optimize import IndefiniteHessianError, PerTarget, descend_penalties
from ..optimize.fit import Fit, column_curvature, fit as fitted
from ..plans import Plan, PlanLike
from ..refit import AbstractRefit, Certified, Exact, NewtonStep
from ..validation.cross_validate import (
    EstimateBuilder,
    cross_validate,
    held_out,
    reader_for,
    strategy_of,
)
from ..validation.estimate import Estimate, PrintedResult
from ..validation.held_out_predictions import Predictions, in_order, metric_value, prediction_kind
from ..validation.metrics import METRICS, AnyMetric
from ..validation.scorers import measure_of, metric_name, more_is_better
from ..validation.scoring import HeldOutLoss
from .hypergradient import Build, LossSlopes, build_objective, criterion, smoothed_area
from .path import path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Hyper = dict[str, Any]  # values, or ranges, by the name of the hyperparameter
Sampler = Literal["gradient", "optuna", "path"]
Space = Mapping[str, TwoNumbers | list[Any]]

OPTIMISM_DRAWS = 20  # draws of groups of the units for the optimism of choosing among trials
# columns of the table besides the hyperparameters
COLUMNS = "mean", "se", "no_update", "approximation_error", "message"
LONGEST_STEP = 2.0  # largest step of the descent in each hyperparameter, in e-folds
# standard errors of the criterion by which an e-fold, or another step, must improve it for the
# descent to continue
SMALL_GAINS = 1e-3, 1e-5
STEP = NewtonStep()


@record
class Trial:
    """One trial: its hyperparameters, its criterion, and its estimate.

    Attributes
    ----------
    hyper : dict
        The hyperparameters.
    value : float
        The criterion: the mean held-out loss, or the metric, negative if more is better. NaN if
        some refits do not exist.
    estimate : Estimate or None
        The estimate, where there is one.
    predicted : ndarray or None
        The held-out predictions, if the call has a metric.
    slope : dict of str to float, or None
        The derivative of the criterion in the logarithm of each hyperparameter.
    message : str
        Why the trial was pruned or failed; empty otherwise.
    parameters : pytree or None
        The parameters of the fit.

    See Also
    --------
    tune : Make trials.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.tuning.Trial({"l2": 1.0}, 0.5)
    Trial(l2 = 1: 0.5)
    """

    hyper: Hyper
    value: float
    estimate: Estimate | None = None
    predicted: Predictions | None = None  # if there is a metric
    # derivative of the criterion in the logarithm of each hyperparameter
    slope: NamedNumbers | None = None
    message: str = ""
    parameters: PyTree = None

    def __getstate__(self) -> NamedValues:
        """Return the state for another process.

        The estimate without the fit, which has the data.
        """
        return vars(self) | {
            "estimate": None if self.estimate is None else self.estimate.without_data()
        }

    @property
    def known_estimate(self) -> Estimate:
        """The estimate, where there is one."""
        assert self.estimate is not None
        return self.estimate

    def __repr__(self) -> str:
        return f"Trial({describe_hyper(self.hyper)}: {self.message or f'{self.value:.6g}'})"


class SearchEnd(NamedTuple):
    """The end of a search: the method, why it ended, and the estimate of the best trial if it is
    known.

    If the number of trials is free, the object also has groups of the units and the trials chosen
    without each group.
    """

    sampler: str
    reason: str
    estimate: Estimate | None = None
    nested_trials: "tuple[tuple[NumpyArray, list[Trial | None]], ...]" = ()


def group_units(estimate: Estimate, rng: np.random.Generator) -> NumpyArray:
    """Assign a group to each unit, or to each refit of joint losses.

    Whole clusters, runs of a series, or random groups.
    """
    plan = estimate.plan
    if estimate.joint:
        which = np.arange(plan.num_refits)
    elif plan.clusters is None:
        which = np.arange(plan.num_units)
    else:
        which = level_numbers(plan.clusters)
    total = int(which.max()) + 1
    if plan.serial:
        order = (np.arange(total) + rng.integers(total)) % total
    else:
        order = rng.permutation(total)
    # number of groups of units for the optimism of the choice
    return (order * min(3, total) // total)[which]


def describe_hyper(hyper: Mapping[str, Any]) -> str:
    number = lambda value: f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return ", ".join(f"{name} = {number(value)}" for name, value in hyper.items())


def sign(metric: AnyMetric | None) -> int:
    if metric is not None and more_is_better("tune", metric):
        return -1
    return 1


def measure_units(
    metric: AnyMetric, fit: Fit, predictions: Predictions | None, units: NumpyArray
) -> float:
    """Compute a metric of held-out predictions of some units, with a minus sign if more is better.

    NaN if undefined.
    """
    assert predictions is not None
    measure = measure_of("tune", fit, metric)
    held = in_order(fit, predictions, measure)
    held = held.take(units[held.unit])
    if (held.weight[held.unit] > 0).any():
        return sign(metric) * metric_value(measure, held).value
    return np.nan


@record
class Tuning(PrintedResult):
    """The result of `tune`: the best trial, its fit and estimate, and all trials in order. A
    pickled one has no fit.

    Attributes
    ----------
    best : Trial
        The best trial.
    fit : Fit
        Its fit.
    estimate : Estimate
        Its estimate.
    all_trials : tuple of Trial
        All trials, in order.
    space, metric, seed
        The arguments of the call.
    how : tuple
        The method, and why it ended.

    See Also
    --------
    tune : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 4))
    >>> model = lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared")
    >>> build = lambda l2: model.under(lo.penalties.Ridge(l2))
    >>> found = lo.tune(
    ...     build, {"l2": (1e-2, 1e2)}, lo.leave_one_out(), sampler="path", num_trials=4
    ... )
    >>> found.trials["l2"].round(2).tolist()
    [0.01, 0.22, 4.64, 100.0]
    """

    best: Trial
    fit: Fit
    estimate: Estimate
    all_trials: tuple[Trial, ...]
    space: Hyper
    metric: AnyMetric | None
    seed: int
    how: SearchEnd

    @property
    def hyper(self) -> Hyper:
        """The chosen hyperparameters."""
        return dict(self.best.hyper)

    @property
    @conventional
    def trials(self) -> pd.DataFrame:
        """The trials as a table, one row each, in order.

        Its columns are the hyperparameters, `mean`, `se`, `no_update`, `approximation_error`
        (infinite where it was not computed), the metric, and the message `said` about a trial that
        was pruned or failed.
        """
        rows = []
        for trial in self.all_trials:
            e = trial.estimate
            columns = dict(trial.hyper)
            if e is not None:
                columns |= {"mean": e.mean, "se": e.se, "no_update": e.no_update}
                columns["approximation_error"] = _error_bound(e)
            if self.metric is not None:
                columns[metric_name(self.metric)] = sign(self.metric) * trial.value
            rows.append(columns | {"message": trial.message})
        return pd.DataFrame(rows, index=pd.RangeIndex(len(rows), name="trial"))

    @functools.cached_property
    def optimism(self) -> float:
        """An estimate of how much worse the choice is, on units that had no part in it, than it
        seems.

        It is an increase of the loss, or a decrease of the metric. NaN where it cannot be
        estimated.
        """
        if self.how.sampler == "by gradient":
            return self._excess(self.how.nested_trials)
        comparable = self._comparable
        rng = default_rng(self.seed)
        labels = [
            group_units(self.estimate, rng)
            for _ in range(OPTIMISM_DRAWS if len(comparable) > 1 else 0)
        ]
        return self._excess(
            [
                (label, [self._least(comparable, label != g) for g in range(label.max() + 1)])
                for label in labels
            ]
        )

    def _least(self, trials: Sequence[Trial], units: NumpyArray) -> Trial | None:
        """The best trial by some of the units; None if these do not determine the criterion."""
        values = np.array([self._over(trial, units) for trial in trials])
        if np.isnan(values).all():
            return None
        return trials[int(np.nanargmin(values))]

    def _excess(self, nested: Sequence[tuple[NumpyArray, Sequence[Trial | None]]]) -> float:
        """Compute by how much trials chosen without a group exceed the best trial there, over draws
        of the groups.
        """
        excesses = []
        for label, chosen in nested:
            over = lambda trial, g, label=label: self._over(trial, label == g)
            excess = np.array(
                [
                    np.nan if trial is None else over(trial, g) - over(self.best, g)
                    for g, trial in enumerate(chosen)
                ]
            )
            size = np.bincount(label)
            if (seen := np.isfinite(excess)).any():
                excesses.append(np.average(excess[seen], weights=size[seen]))
        if excesses:
            return float(np.mean(excesses))
        return np.nan

    @property
    def _comparable(self) -> list[Trial]:
        return [
            trial for trial in self.all_trials if np.isfinite(trial.value) and not trial.message
        ]

    def _over(self, trial: Trial, units: NumpyArray) -> float:
        """Compute the criterion of a trial on some of the units."""
        assert trial.estimate is not None
        if self.metric is None:
            values = trial.estimate._unit_losses
            weight = trial.estimate._weight
            seen = units & np.isfinite(values)
            if weight[seen].sum() > 0:
                return float(np.average(values[seen], weights=weight[seen]))
            return np.nan
        return measure_units(self.metric, self.fit, trial.predicted, units)

    @property
    def at_bound(self) -> list[str]:
        """Name hyperparameters that were chosen at an end of their range."""
        ends = {name: np.log(ends) for name, ends in self.space.items() if isinstance(ends, tuple)}
        on = 1e-6  # e-folds from a bound that count as on it
        chosen = {name: np.log(self.best.hyper[name]) for name in ends}
        return [
            name for name, (low, high) in ends.items() if not low + on < chosen[name] < high - on
        ]

    def _facts(self) -> Lines:
        e = self.estimate
        num_close = 0
        # trials a tenth of an e-fold away or more, whose means are within both errors of the best's
        if self.metric is None:
            for trial in self._comparable:
                pairs = [(trial.hyper[name], self.best.hyper[name]) for name in self.best.hyper]
                distinct = any(
                    a != b if not isinstance(b, float) else abs(np.log(a / b)) > 0.1
                    for a, b in pairs
                )
                if distinct and trial is not self.best and trial.estimate is not None:
                    if np.isinf(_error_bound(trial.estimate)):
                        error = e.approximation_error
                    else:
                        error = _error_bound(trial.estimate)
                    num_close += trial.estimate.mean - error <= e.mean + e.approximation_error
        measure = "loss"
        if self.metric is not None:
            measure = metric_name(self.metric)
        optimism = self.optimism
        if not np.isfinite(optimism):
            choosing = ""
            if len(self._comparable) > 1:
                choosing = "not told: the best of many estimates is a little lucky"
        elif optimism <= 0:
            choosing = f"none of that {measure} is seen to be owed to choosing (nested, thirds of the units)"
        else:
            choosing = f"about {optimism:.2g}, by which that {measure} is too good for having been chosen (nested, thirds of the units)"
        pruned, failed = (
            [t.message for t in self.all_trials if t.message.startswith(word)]
            for word in ("pruned", "no ")
        )
        span = lambda ends: (
            f" from {ends[0]:.4g} to {ends[1]:.4g}"
            if isinstance(ends, tuple)
            else f" of {len(ends)} choices"
        )
        alike = {
            span(ends): [name for name, limits in self.space.items() if span(limits) == span(ends)]
            for ends in self.space.values()
        }
        return [
            ("model", e.labels.objective),
            ("tuned", "; ".join(", ".join(names) + text for text, names in alike.items())),
            ("trials", f"{len(self.all_trials)} fits, {self.how.sampler}; {self.how.reason}"),
            ("best", describe_hyper(self.best.hyper)),
            (
                "flat",
                f"along {', '.join(self._flat)} wherever it was looked: another start= may tell more"
                if self._flat
                else "",
            ),
            (
                "at a bound",
                f"{', '.join(self.at_bound)}: look further, or leave it out"
                if self.at_bound
                else "",
            ),
            ("held-out loss", e._mean_text),
            ("approximation", e._approximation()),
            *((name, str(metric)) for name, metric in e.measured.items()),
            ("optimism", choosing),
            (
                "not told apart",
                f"{num_close} trials: within refit error of the best" if num_close else "",
            ),
            ("pruned", f"{len(pruned)} trials, known to be no better" if pruned else ""),
            ("left out", f"{len(failed)} trials; the first: {failed[0]}" if failed else ""),
            ("audit", e.labels.audit),
            *e._findings(),
        ]

    def __getstate__(self) -> NamedValues:
        """Return the state for another process, with the optimism computed first, since the fit is
        left out.
        """
        return vars(self) | {"optimism": self.optimism, "fit": None}

    @property
    def _flat(self) -> list[str]:
        """Name hyperparameters along which no trial had a slope worth a step."""
        slopes = [trial.slope for trial in self.all_trials if trial.slope is not None]
        least = SMALL_GAINS[0] * self.estimate.scale
        return [
            name
            for name in self.space
            if slopes and all(abs(slope[name]) <= least for slope in slopes)
        ]

    def plot(self, ax: "Axes | None" = None, *, name: str | None = None) -> "Axes":
        """Plot the criterion of every trial against a hyperparameter. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.
        name : str, optional
            The hyperparameter; the first by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").tuning(self, ax=ax, name=name)


def _error_bound(estimate: Estimate) -> float:
    """Return the approximation error; infinite if it was not computed."""
    if np.isfinite(estimate.error).any():
        return estimate.approximation_error
    return np.inf


@record
class TrialStudy:
    """The arguments that all trials share, the trials so far, and the best one with its fit and
    estimate.
    """

    build: Build
    space: Hyper
    plan: Plan
    refit: AbstractRefit
    most: int
    metric: AnyMetric | None
    start: Hyper
    seed: int
    nested: int
    trials: list[Trial] = field(default_factory=list)
    best: list[tuple[Trial, Fit]] = field(default_factory=list)  # at most one
    # score and response of the first estimate
    measures: list[tuple[str, NumpyArray | None]] = field(default_factory=list)

    def add(self, trial: Trial, fit: Fit | None = None) -> Trial:
        self.trials.append(trial)
        if (
            fit is not None
            and np.isfinite(trial.value)
            and (not self.best or trial.value < self.best[0][0].value)
        ):
            self.best[:] = [(trial, fit)]
        return trial

    def build_model(self, hyper: Hyper) -> AbstractObjective:
        """Build the objective; `build` may read its data from anywhere."""
        objective = build_objective(self.build, hyper)
        depends(model_or_data=objective)
        return objective

    def fit_trial(self, hyper: Hyper) -> Fit:
        """Fit from the nearest trial of the same categories."""
        objective = self.build_model(hyper)
        choices = [name for name, ends in self.space.items() if isinstance(ends, list)]
        ranges = {
            name: np.log(ends[1] / ends[0])
            for name, ends in self.space.items()
            if isinstance(ends, tuple)
        }
        similar = [trial for trial in self.trials if trial.parameters is not None]
        similar = [
            trial for trial in similar if all(trial.hyper[name] is hyper[name] for name in choices)
        ]
        distance = lambda candidate: sum(
            (np.log(candidate.hyper[name] / hyper[name]) / width) ** 2
            for name, width in ranges.items()
        )
        before = min(similar, key=distance, default=None)
        try:
            start = None if before is None else before.parameters
            return fitted(objective, start, curvature=column_curvature(objective))
        except (RuntimeError, ValueError) as error:
            error.add_note(f"In lo.tune, at {describe_hyper(hyper)}.")
            raise

    def judge(self, hyper: Hyper, fit: Fit, estimate: Estimate, **fields: Any) -> Trial:
        """Judge a trial by its estimate."""
        scored_losses = estimate.losses[estimate._places.held]
        exists = bool(np.isfinite(scored_losses).all())
        predicted = fields.pop("predicted", None)
        missing = f"no estimate: {np.sum(~np.isfinite(scored_losses))} held-out losses do not exist"
        if exists:
            value = estimate.mean
            message = ""
        else:
            value = np.nan
            message = missing
        self.comparable(hyper, fit, estimate)
        if exists and self.metric is not None:
            kind = prediction_kind({"": measure_of("tune", fit, self.metric)})
            if predicted is None:
                predicted = held_out(fit, estimate.plan, self.refit, kind)
            value = measure_units(
                self.metric, fit, predicted, np.ones(estimate.plan.num_units, bool)
            )
        return self.add(
            Trial(
                hyper,
                value,
                estimate,
                predicted,
                message=message,
                parameters=fit.parameters,
                **fields,
            ),
            fit,
        )

    def comparable(self, hyper: Hyper, fit: Fit, estimate: Estimate) -> None:
        """Raise unless trials have one response and, without a metric, one score."""
        loss = getattr(fit.objective, "loss_function", None)
        description = estimate.score
        if description not in (LOG_DENSITY, LOG_PROBABILITY) and isinstance(loss, Module):
            description = f"by {loss!r}"
        trial_response = estimate.response
        if not self.measures:
            self.measures.append((description, trial_response))
        score, response = self.measures[0]
        alike = (
            response is None or trial_response is None or np.array_equal(response, trial_response)
        )
        if not alike or (self.metric is None and description != score):
            unknown = "of a kind that is not known"
            kind = "the response is another one"
            if alike:
                kind = f"losses are {description or unknown}, at first {score or unknown}"
            raise ValueError(
                f"tune: at {describe_hyper(hyper)} {kind}: they cannot be compared. "
                "A loss that is a function is made once, outside of build. Trials of other losses are told apart by metric=, "
                "those of other responses not at all."
            )

    def final(self, estimate: Estimate | None) -> tuple[Trial, Fit, Estimate]:
        """Audit the best trial."""
        if not self.best:
            message = self.trials[-1].message or "their criterion is not known"
            raise RuntimeError(
                f"tune: none of {len(self.trials)} trials has an estimate ({message}): penalise more, or give a plan whose folds "
                "leave every coefficient determined."
            )
        trial, fit = self.best[0]
        if estimate is not None:
            return trial, fit, estimate
        metrics = () if self.metric is None else (self.metric,)
        return (
            trial,
            fit,
            cross_validate(fit, self.plan, strategy=self.refit, metric=metrics, bases="frozen"),
        )

    def result(self, best: Trial, fit: Fit, estimate: Estimate, search_end: SearchEnd) -> Tuning:
        return Tuning(
            best, fit, estimate, tuple(self.trials), self.space, self.metric, self.seed, search_end
        )


@overload
def tune(
    build: BandedRidge,
    space: Space | TwoNumbers,
    plan: Plan,
    **options: Any,
) -> PerTarget: ...
@overload
def tune(
    build: Build,
    space: Space,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = ...,
    sampler: Sampler = ...,
    num_trials: int = ...,
    metric: AnyMetric | None = ...,
    start: Mapping[str, Any] | None = ...,
    num_outer_folds: int = ...,
    rng: Rng = ...,
    checkpoint: File | None = ...,
    groups: ArrayLike | None = ...,
) -> Tuning: ...
@conventional
@float64
def tune(
    build: Build | BandedRidge,
    space: Space | TwoNumbers,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = None,
    sampler: Sampler = "gradient",
    num_trials: int = 50,
    metric: AnyMetric | None = None,
    start: Mapping[str, Any] | None = None,
    num_outer_folds: int = 1,
    rng: Rng = 0,
    checkpoint: File | None = None,
    groups: ArrayLike | None = None,
) -> Tuning | PerTarget:
    """Find the hyperparameters with the lowest mean held-out loss.

    Every trial is one fit, cross-validated under `plan` by `strategy`. The optimism of the choice
    is estimated from the trials; by gradient, from further descents without some of the units.

    Parameters
    ----------
    build : callable or BandedRidge
        `build(**hyper)` returns an objective. It is quicker if it reads its data once, as
        `model.under(penalty)` does. For a `BandedRidge`, `space` is `(low, high)` for all bands, or
        a pair for each by name; `num_trials` is the most rounds, each a step of every target.
    space : mapping
        Bounds by the names of the hyperparameters: a tuple `(low, high)` of positive numbers, on
        the log scale, or a list of choices.
    plan : Plan, int or splitter
        The units to leave out, as in `cross_validate`; a Plan for a `BandedRidge`.
    strategy : AbstractRefit, default `NewtonStep()`
        The strategy of the refits.
    sampler : {"gradient", "optuna", "path"}, default "gradient"
        "gradient" descends the exact gradient of the criterion of `NewtonStep()`, in steps of two
        e-folds at most, to a local minimum. `build` must then pass its arguments on to penalties,
        or to functions in JAX, as they come. An `AbstractClosedForm`, which JAX cannot
        differentiate, is also fitted a little to each side of every hyperparameter. Under an l1
        penalty or bounds the criterion is that of `Exact()`, and has kinks. "optuna" (pip install
        'leaveout[tune]') samples by `seed`, and takes choices too. It prunes a trial whose fit
        shows that it is no better (its loss on seen data is above the best's on unseen data), or
        whose `NewtonStep()` does, by its reported error. "path" tries `num_trials` values of one
        penalty.
    num_trials : int, default 50
        The most fits to make.
    metric : str or scorer, optional
        A metric of the held-out predictions ("auc", "mse", …, or one of scikit-learn's names or
        scorers, as in `cross_validate`) to choose by instead of the loss. By gradient it can be
        "auc": the search descends a smoothed area, and chooses by the area itself.
    start : mapping, optional
        The first hyperparameters of the descent; by default the geometric middle of the bounds.
    num_outer_folds : int, default 1
        The descents without each of three groups of units, which estimate the optimism (0 for
        none).
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers. `build` is identified by its code, what the code uses, and every objective that it
        returns.
    groups : array-like, optional
        Labels of groups for a number of folds or a splitter, as in `cross_validate`.

    Returns
    -------
    Tuning
        The best trial with its fit and estimate, and all others. For a `BandedRidge`, a
        `PerTarget`.

    Raises
    ------
    ValueError
        If bounds, start or sampler cannot be used, or `checkpoint` belongs to another run.
    TypeError
        If `build` cannot be differentiated.
    RuntimeError
        If no trial has an estimate. Errors of `fit` carry the hyperparameters in a note.
    Interrupted
        On Ctrl-C, with the best of the trials that were made.

    See Also
    --------
    path : Estimates under many penalties.
    smooth : The smoothing parameters of an additive model.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 4))
    >>> model = lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared")
    >>> build = lambda l2: model.under(lo.penalties.Ridge(l2))
    >>> found = lo.tune(
    ...     build, {"l2": (1e-2, 1e2)}, lo.leave_one_out(), num_trials=10, num_outer_folds=0
    ... )
    >>> sorted(found.hyper), 0.01 < found.hyper["l2"] < 100
    (['l2'], True)
    """
    strategy = strategy_of("tune", strategy, STEP)
    seed = count("tune: rng", rng, 0)
    if isinstance(build, BandedRidge):
        if (
            sampler != "gradient"
            or metric is not None
            or checkpoint is not None
            or groups is not None
        ):
            raise ValueError(
                "tune: a BandedRidge is tuned by gradient of its loss, takes a Plan, and keeps no checkpoint."
            )
        return descend_penalties(
            build, space, cast(Plan, plan), start, count("tune: num_trials", num_trials, 1)
        )
    if not isinstance(space, Mapping) or not space:
        raise ValueError(
            f"tune: space must map names to (low, high) or lists of choices; got {space!r}."
        )
    reserved = [name for name in space if not isinstance(name, str) or name in (*COLUMNS, *METRICS)]
    if reserved:
        raise ValueError(
            f"tune: {reserved[0]!r} cannot be the name of a hyperparameter: .trials has a column of that name."
        )
    read: NamedValues = {}
    for name, ends in space.items():
        if isinstance(ends, list) and ends:
            read[name] = list(ends)
            continue
        is_range = (
            isinstance(ends, tuple)
            and len(ends) == 2
            and all(isinstance(end, int | float | np.number) for end in ends)
        )
        if not is_range or not 0 < ends[0] < ends[1] < np.inf:
            raise ValueError(
                f"tune: space[{name!r}] must be a tuple (low, high) of positive numbers, low below high, or a list of choices; "
                f"got {ends!r}."
            )
        read[name] = float(ends[0]), float(ends[1])
    if not callable(build):
        raise TypeError(
            f"tune: build must be a function of the hyperparameters that returns an objective; got {type(build).__name__}."
        )
    num_trials = count("tune: num_trials", num_trials, 1)
    num_outer_folds = count("tune: num_outer_folds", num_outer_folds, 0)
    sign(metric)  # raises for one that is unknown
    if start is not None:
        if not isinstance(start, Mapping) or set(start) != set(read):
            if isinstance(start, Mapping):
                received = ", ".join(map(str, start))
            else:
                received = repr(start)
            raise ValueError(
                f"tune: start must be a value of each of {', '.join(read)}, by name; got {received}."
            )
        for name, value in start.items():
            ends = read[name]
            number = isinstance(value, int | float | np.number)
            if not (
                value in ends if isinstance(ends, list) else number and ends[0] <= value <= ends[1]
            ):
                raise ValueError(
                    f"tune: start[{name!r}] must be in the space, {ends!r}; got {value!r}."
                )
    # folds are drawn once, for a model anywhere in the space
    if not (isinstance(plan, Plan) and plan._scheme is None) or groups is not None:
        first_values = {name: ends[0] for name, ends in read.items()}
        plan = plan_reader("tune", build_objective(build, first_values)).read(plan, groups)
    study = TrialStudy(
        build,
        read,
        plan,
        strategy,
        num_trials,
        metric,
        dict(start or {}),
        seed,
        num_outer_folds,
    )
    if sampler not in get_args(Sampler):
        raise ValueError(
            f"tune: sampler must be one of {', '.join(map(repr, get_args(Sampler)))}; got {sampler!r}."
        )
    try:
        # everything that the trials depend on
        names = "build", "space", "plan", "refit", "metric", "start", "seed", "nested"
        inputs = {name: getattr(study, name) for name in names} | {
            "trials": study.most,
            "sampler": sampler,
        }
        with keeping("tune", checkpoint, inputs):
            search_end = {"gradient": by_gradient, "optuna": by_optuna, "path": by_path}[sampler](
                study
            )
            return study.result(*study.final(search_end.estimate), search_end)
    except KeyboardInterrupt:
        ended = SearchEnd(f"by {sampler}", "stopped: the best is one of these")
        best = study.best
        partial = lambda: study.result(*best[0], best[0][0].known_estimate, ended) if best else None
        raise Interrupted(f"tune: stopped after {len(study.trials)} trials", partial) from None


def _numbers(study: TrialStudy, sampler: str) -> TwoArrays:
    """Return the logarithms of all bounds."""
    lists = [name for name, ends in study.space.items() if isinstance(ends, list)]
    if lists:
        raise ValueError(
            f"tune: sampler={sampler!r} takes bounds (low, high) only; {lists[0]!r} is a list: sampler='optuna'."
        )
    low, high = np.log(np.array(list(study.space.values()))).T
    return low, high


class _NoTrialLeft(Exception):
    """Raised when no trial is left."""


def by_gradient(study: TrialStudy) -> SearchEnd:
    """Descend by the gradient of the criterion over all units, and again over those without each
    group.
    """
    low, high = _numbers(study, "gradient")
    if type(study.refit) is not NewtonStep:
        raise ValueError(
            f"tune: sampler='gradient' derives NewtonStep(); got {study.refit!r}. Cross-validate .fit by that, or use 'optuna'."
        )
    if study.metric not in (None, "auc"):
        raise ValueError(
            f"tune: sampler='gradient' has no slope of {study.metric!r}; use sampler='optuna'."
        )
    names = list(study.space)
    slopes = LossSlopes(study.build, names, smoothed_area if study.metric == "auc" else None)

    def looks(
        x: NumpyArray, groups: Sequence[NumpyArray | None]
    ) -> list[tuple[float, NumpyArray, Trial]]:
        """Fit at hyperparameters, and take the criterion over each group of units."""
        pairs = zip(study.space.items(), np.exp(x), strict=True)
        hyper = {name: float(np.clip(value, *ends)) for (name, ends), value in pairs}
        fit = study.fit_trial(hyper)
        rho = np.array(list(hyper.values()))
        out = []
        plan = plan_reader("tune", fit.objective).resolve(study.plan)
        for among, look in zip(groups, slopes.of_groups(fit, plan, rho, groups), strict=True):
            along = look.slope * rho
            plan = look.estimate.plan
            predicted = None
            if look.center is not None:
                values = look.center[plan.scored_units]
                missing = np.zeros(plan.num_refits, bool)
                predicted = Predictions(plan, "link", values, np.zeros_like(values), missing)
            fields: NamedValues = {
                "predicted": predicted,
                "slope": dict(zip(hyper, along.tolist(), strict=True)),
            }
            if among is None:
                trial = study.judge(hyper, fit, look.estimate, **fields)
            else:
                trial = Trial(hyper, look.value, look.estimate, **fields)
            if not np.isfinite([trial.value, look.value, *along]).all():
                raise ValueError(
                    f"tune: at {describe_hyper(hyper)} the criterion or its slope is not finite "
                    f"({trial.message or 'overflow'}): raise the lower bound of the penalties, give another start, or use "
                    "sampler='optuna'."
                )
            out.append((look.value, along, trial))
        return out

    def error(first: Trial) -> float:
        estimate = first.known_estimate
        return max(estimate.scale if study.metric is None else len(estimate.losses) ** -0.5, 1e-300)

    def run(
        begin: NumpyArray, among: NumpyArray | None, first=None, curvature: float = 0.0
    ) -> tuple[Trial, str]:
        """Descend by the criterion over the units `among`.

        Return the trial of the lowest criterion, and how it ended.
        """
        look = lambda x: (
            first if first is not None and np.array_equal(x, begin) else looks(x, [among])[0]
        )
        return descend_boxes(look, begin, low, high, error, study.most, curvature=curvature)

    best, ended = run(
        np.log([study.start[name] for name in names]) if study.start else (low + high) / 2, None
    )
    final_estimate = None
    fit = study.best[0][1] if study.best else None
    if fit is not None and kinks(fit.objective) is not None:
        final_estimate = cross_validate(fit, study.plan, strategy=criterion(fit), bases="frozen")
        ended += "; the curve, of exact refits, has kinks where coefficients come and go"
    rng = default_rng(study.seed)
    start = np.log(list(best.hyper.values()))
    nested = []
    curvature = _criterion_curvature(study.trials, best)
    for label in [group_units(best.known_estimate, rng) for _ in range(study.nested)]:
        groups = [label == g for g in range(label.max() + 1)]
        # units of one class have no area
        area = lambda units: measure_units(
            study.metric or "auc", study.best[0][1], best.predicted, units
        )
        group_numbers = [
            g
            for g, units in enumerate(groups)
            if study.metric is None or np.isfinite([area(units), area(~units)]).all()
        ]
        firsts = []
        if group_numbers:
            firsts = looks(start, [~groups[g] for g in group_numbers])
        chosen = {
            g: run(start, ~groups[g], first, curvature)[0]
            for g, first in zip(group_numbers, firsts, strict=True)
        }
        nested.append((label, [chosen.get(g) for g in range(len(groups))]))
    return SearchEnd("by gradient", ended, final_estimate, nested_trials=tuple(nested))


def _criterion_curvature(trials: Sequence[Trial], best: Trial) -> float:
    """Return the curvature of the criterion from the best trial to the nearest other one.

    Zero if it is not positive.
    """
    log_difference = lambda trial: (
        np.log(list(trial.hyper.values())) - np.log(list(best.hyper.values()))
    )
    slope = lambda trial: np.array(list((trial.slope or {}).values()))
    nearest = min(
        (trial for trial in trials if log_difference(trial).any()),
        key=lambda trial: float(log_difference(trial) @ log_difference(trial)),
        default=best,
    )
    step = log_difference(nearest)
    return max(float((slope(nearest) - slope(best)) @ step / max(step @ step, 1e-300)), 0.0)


def descend_boxes(
    evaluate: Callable[[NumpyArray], tuple[float, NumpyArray, Any]],
    x: NumpyArray,
    low: NumpyArray,
    high: NumpyArray,
    error: Callable[[Any], float],
    most: int | None = None,
    fine: float = 1.0,
    curvature: float = 0.0,
) -> tuple[Any, str]:
    """Descend to a minimum by SciPy's L-BFGS-B in one box after another, each started with a step
    of one e-fold.

    `evaluate` returns a value, its slope and a result, and `error` the value's standard error at
    the first result. The function returns the result of the lowest value on the way, and how the
    descent ended: at a minimum, or after `most` results. A slope counts as small relative to the
    largest slope so far, as a flat start may be a tail. `fine` is a factor on the slope that counts
    as small. `curvature` is that at the start, if a minimum is near: first steps are no longer than
    Newton's, and no tail is suspected.
    """
    seen: dict[bytes, tuple[float, NumpyArray, Any]] = {}

    def look(x: NumpyArray) -> NumberAndArray:
        if x.tobytes() not in seen:
            if len(seen) == most:
                raise _NoTrialLeft
            seen[x.tobytes()] = evaluate(np.clip(x, low, high))
            bar.advance()
        return seen[x.tobytes()][:2]

    with Slow("fits" if most else "looks", most or 200) as bar:
        steepest = np.inf if curvature else 0.0
        _ = look(x)
        se = error(seen[x.tobytes()][2])
        try:
            for _ in range(100):
                value, slope = look(x)
                steep = np.abs(slope).max()
                box = np.maximum(low, x - LONGEST_STEP), np.minimum(high, x + LONGEST_STEP)
                steepest = max(steepest, steep, 1e-300)
                unit = max(steep, curvature, 1e-300)
                scaled = lambda x, value=value, unit=unit: (
                    (look(x)[0] - value) / unit,
                    look(x)[1] / unit,
                )
                least = fine * min(se, steepest / SMALL_GAINS[0] / 10) / unit
                options = {
                    "gtol": SMALL_GAINS[0] * least,
                    "ftol": SMALL_GAINS[1] * least,
                    "maxcor": 20,
                }

                def leave(x: NumpyArray, box: TwoArrays = box) -> None:
                    """Stop where the slope out of the box is all that matters."""
                    slope = look(x)[1]
                    out = ((x <= box[0]) & (box[0] > low) & (slope > 0)) | (
                        (x >= box[1]) & (box[1] < high) & (slope < 0)
                    )
                    # share of that slope that the others are to reach before the next box
                    if np.abs(slope[~out]).max(initial=0.0) < 0.1 * np.abs(slope[out]).max(
                        initial=0.0
                    ):
                        raise StopIteration

                x = scipy.optimize.minimize(
                    scaled,
                    x,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=np.transpose(box),
                    options=options,
                    callback=leave,
                ).x
                if not np.any(((x <= box[0]) & (box[0] > low)) | ((x >= box[1]) & (box[1] < high))):
                    break
            slope = look(x)[1]
            remaining_slope = np.abs(
                np.where(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)), 0.0, slope)
            ).max()
            ended = f"the slope left is {remaining_slope / se:.1g} standard errors an e-fold"
        except _NoTrialLeft:
            ended = f"not converged: stopped after {most} fits (num_trials=)"
    return min(seen.values(), key=lambda entry: entry[0])[2], ended


def by_path(study: TrialStudy) -> SearchEnd:
    low, _ = _numbers(study, "path")
    if len(low) > 1 or study.metric is not None or study.start:
        raise ValueError(
            "tune: sampler='path' goes over the values of one penalty, by its loss: no metric=, no start=."
        )
    (name,) = study.space
    least, largest = study.space[name]
    values = np.clip(np.geomspace(least, largest, study.most), least, largest).tolist()
    models = {value: study.build_model({name: value}) for value in values}
    first: Any = models[values[0]]
    for value, model in models.items():
        names = [part for part in vars(first) if part not in ("penalty", "loss_function")]
        parts: Any = [(vars(first)[part], vars(model).get(part)) for part in names]
        alike = all(
            a is b or (np.array_equal(a, b) if isinstance(a, NumpyArray) else a == b)
            for a, b in parts
        )
        losses = [repr(getattr(objective, "loss_function", "")) for objective in (first, model)]
        if type(first) is not type(model) or not alike or losses[0] != losses[1]:
            raise ValueError(
                f"tune: at {name} = {value:.4g} more than the penalty is another; use sampler='optuna'."
            )
    penalties = {value: getattr(model, "penalty", None) for value, model in models.items()}
    judged = lambda path_result: [
        study.judge({name: point.value}, point.fit, point.estimate) for point in path_result.points
    ]
    try:
        judged(path_result := path(first, penalties, study.plan, strategy=study.refit))
    except Interrupted as stop:
        if stop.partial is not None:
            judged(stop.partial)
        raise
    return SearchEnd(
        "by path",
        "from the least to the largest",
        path_result.best.estimate if study.best else None,
    )


def by_optuna(study: TrialStudy) -> SearchEnd:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "tune: sampler='optuna' needs Optuna: pip install 'leaveout[tune]'."
        ) from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        optuna_study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=study.seed))
    finally:
        optuna.logging.set_verbosity(before)
    kinds: NamedValues = {
        name: optuna.distributions.CategoricalDistribution(range(len(ends)))
        if isinstance(ends, list)
        else optuna.distributions.FloatDistribution(*ends, log=True)
        for name, ends in study.space.items()
    }
    if study.start:
        numbered = {
            k: study.space[k].index(v) if isinstance(study.space[k], list) else v
            for k, v in study.start.items()
        }
        optuna_study.enqueue_trial(numbered)
    states = optuna.trial.TrialState
    with Slow("fits", study.most) as bar:
        for _ in range(study.most):
            optuna_trial = optuna_study.ask(kinds)
            hyper = {
                k: study.space[k][v] if isinstance(study.space[k], list) else float(v)
                for k, v in optuna_trial.params.items()
            }
            trial = _try(study, hyper)
            if trial.message.startswith("pruned"):
                optuna_trial.report(trial.value, step=0)
                optuna_study.tell(optuna_trial, state=states.PRUNED)
            else:
                optuna_study.tell(
                    optuna_trial,
                    trial.value if not trial.message else None,
                    state=states.FAIL if trial.message else None,
                )
            bar.advance()
    return SearchEnd("by Optuna", "as many as were asked for")


def _try(study: TrialStudy, hyper: Hyper) -> Trial:
    """Run a trial, or as much of it as shows that it is no better."""
    try:
        fit = study.fit_trial(hyper)
    except (RuntimeError, IndefiniteHessianError) as error:
        return study.add(Trial(hyper, np.nan, message=f"no fit: {error}"))
    plan = reader_for("tune", fit).resolve(study.plan)
    draft = EstimateBuilder(HeldOutLoss(fit, plan, None), study.refit).blank
    study.comparable(hyper, fit, draft)
    if study.best and study.metric is None:
        best = study.best[0][0].known_estimate
        # standard errors by which a trial must be known to be worse before it is pruned
        least = best.mean + best.approximation_error + 0.01 * best.scale
        if (bound := floor(fit, draft)) > least:
            return study.add(
                Trial(hyper, bound, message="pruned by its fit", parameters=fit.parameters)
            )
        if isinstance(study.refit, Exact | Certified):
            look = cross_validate(fit, study.plan, strategy=STEP, audit=0, bases="frozen")
            if look.mean - look.approximation_error > least:
                return study.add(
                    Trial(
                        hyper,
                        look.mean,
                        look,
                        message="pruned by its step",
                        parameters=fit.parameters,
                    )
                )
    return study.judge(
        hyper, fit, cross_validate(fit, study.plan, strategy=study.refit, audit=0, bases="frozen")
    )


def floor(fit: Fit, estimate: Estimate) -> float:
    """Compute a lower bound on the mean loss of exact refits from the fit alone.

    θ̂ minimises F, and θ_o minimises F minus the terms of fold o, so F(θ̂) ≤ F(θ_o) and F_o(θ_o) ≤
    F_o(θ̂): the losses of the fold sum to no less at θ_o than at θ̂. This needs F to be convex, a
    sum over units and a penalty, and folds that score all that they leave out, every unit as often
    as any other.
    """
    plan = estimate.plan
    model = fit.quadratic.predictors
    times = np.bincount(plan.index, minlength=plan.num_units)
    alike = plan.held.all() and not plan.weight.any() and times.min() == times.max()
    if model is not None and model.separate and alike:
        return estimate.no_update
    return -np.inf
