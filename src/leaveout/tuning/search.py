"""Strategies of the search for hyperparameters: descent by the criterion's gradient, Optuna, or a path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy

from .._runtime.checkpoint import depends
from .._runtime.interrupt import Interrupted
from .._runtime.jax import Module, PyTree
from .._runtime.progress import Slow
from ..models.glm.active_coefficients import kinks
from ..objectives.objective import LOG_DENSITY, LOG_PROBABILITY, AbstractObjective, display_name
from ..optimize.fit import Fit, fit as fitted
from ..optimize.hessian_factor import IndefiniteHessianError
from ..plans.plan import Plan
from ..refit import AbstractRefit, Certified, Exact, NewtonStep
from ..validation.cross_validate import begin_estimate, cross_validate, held_out, resolve_plan
from ..validation.estimate import Estimate
from ..validation.held_out_predictions import Predictions
from ..validation.metrics import HIGHER, Metric, in_order, measurable, metric_value
from ..validation.scoring import HeldOutLoss
from .hypergradient import Build, LossSlopes, build_objective, criterion, smoothed_area
from .path import path

Array = np.ndarray
LONGEST = 2.0  # largest step of the descent in each hyperparameter, in e-folds
# standard errors of the criterion by which an e-fold, or another step, must improve it for the descent to continue
SMALL = 1e-3, 1e-5
STEP = NewtonStep()


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial: its hyperparameters, its criterion, and its estimate.

    Attributes
    ----------
    hyper : dict
        The hyperparameters.
    value : float
        The criterion: the mean held-out loss, or the metric, negative if more is better. NaN if some refits do not exist.
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

    hyper: dict[str, Any]
    value: float
    estimate: Estimate | None = None
    predicted: Predictions | None = None  # if there is a metric
    slope: dict[str, float] | None = None  # derivative of the criterion in the logarithm of each hyperparameter
    message: str = ""
    parameters: PyTree = None

    @property
    def known_estimate(self) -> Estimate:
        """The estimate, where there is one."""
        assert self.estimate is not None
        return self.estimate

    def __repr__(self) -> str:
        return f"Trial({describe_hyper(self.hyper)}: {self.message or f'{self.value:.6g}'})"


class SearchEnd(NamedTuple):
    """The end of a search: the method, why it ended, and the estimate of the best trial if it is known.

    If the number of trials is free, the object also has groups of the units and the trials chosen without each group.
    """

    sampler: str
    reason: str
    estimate: Estimate | None = None
    nested_trials: "tuple[tuple[Array, list[Trial | None]], ...]" = ()


def group_units(estimate: Estimate, rng: np.random.Generator) -> Array:
    """Assign a group to each unit, or to each refit of joint losses: whole clusters, runs of a series, or random groups."""
    plan, count = estimate.plan, estimate.plan.num_refits if estimate.joint else estimate.plan.num_units
    which = np.arange(count) if plan.clusters is None or estimate.joint else np.unique(plan.clusters, return_inverse=True)[1]
    total = int(which.max()) + 1
    order = (np.arange(total) + rng.integers(total)) % total if plan.serial else rng.permutation(total)
    # number of groups of units for the optimism of the choice
    return (order * min(3, total) // total)[which]


def describe_hyper(hyper: Mapping[str, Any]) -> str:
    number = lambda value: f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return ", ".join(f"{name} = {number(value)}" for name, value in hyper.items())


def sign(metric: Metric | None) -> int:
    return -1 if metric in HIGHER else 1


def measure_units(metric: Metric, fit: Fit, predictions: Predictions | None, units: Array) -> float:
    """Compute a metric of held-out predictions of some units, with a minus sign if more is better; NaN if undefined."""
    assert predictions is not None
    held = in_order(fit, predictions).some(units)
    heavy = held.weight[held.unit] > 0
    if not heavy.any() or (metric == "auc" and len(np.unique(held.target[heavy])) < 2):
        return float("nan")
    return sign(metric) * metric_value(metric, held).value


@dataclass(frozen=True, eq=False)
class TrialStudy:
    """The arguments that all trials share, the trials so far, and the best one with its fit and estimate."""

    build: Build
    space: dict[str, Any]
    plan: Plan
    refit: AbstractRefit
    most: int
    metric: Metric | None
    start: dict[str, Any]
    seed: int
    nested: int
    trials: list[Trial] = field(default_factory=list)
    best: list[tuple[Trial, Fit]] = field(default_factory=list)  # at most one
    measures: list[tuple[str, Array | None]] = field(default_factory=list)  # score and response of the first estimate

    def add(self, trial: Trial, fit: Fit | None = None) -> Trial:
        self.trials.append(trial)
        if fit is not None and np.isfinite(trial.value) and (not self.best or trial.value < self.best[0][0].value):
            self.best[:] = [(trial, fit)]
        return trial

    def build_model(self, hyper: dict[str, Any]) -> AbstractObjective:
        """Build the objective; `build` may read its data from anywhere."""
        objective = build_objective(self.build, hyper)
        depends(model_or_data=objective)
        return objective

    def fit_trial(self, hyper: dict[str, Any]) -> Fit:
        """Fit from the nearest trial of the same categories."""
        objective = self.build_model(hyper)
        near = [trial for trial in self.trials if trial.parameters is not None and _alike(trial.hyper, hyper, self.space)]
        before = min(near, key=lambda trial: _distance(trial.hyper, hyper, self.space), default=None)
        try:
            return fitted(objective, None if before is None else before.parameters)
        except (RuntimeError, ValueError) as error:
            error.add_note(f"In lo.tune, at {describe_hyper(hyper)}.")
            raise

    def judge(self, hyper: dict[str, Any], fit: Fit, estimate: Estimate, **more: Any) -> Trial:
        """Judge a trial by its estimate."""
        asked = estimate.losses if estimate.joint else estimate.losses[estimate.plan.held]
        exists, predicted = bool(np.isfinite(asked).all()), more.pop("predicted", None)
        value, said = (estimate.mean, "") if exists else (float("nan"), f"no estimate: {_missing(asked)}")
        self.comparable(hyper, fit, estimate)
        if exists and self.metric is not None:
            measurable("tune", fit, self.metric)
            if fit.objective.units.target is None:
                raise ValueError(
                    f"tune: metric needs a model with predictions and a target; got {display_name(fit.objective)}."
                )
            predicted = held_out(fit, estimate.plan, self.refit, "response") if predicted is None else predicted
            value = measure_units(self.metric, fit, predicted, np.ones(estimate.plan.num_units, bool))
        return self.add(Trial(hyper, value, estimate, predicted, message=said, parameters=fit.parameters, **more), fit)

    def comparable(self, hyper: dict[str, Any], fit: Fit, estimate: Estimate) -> None:
        """Raise unless trials have one response and, without a metric, one score."""
        loss = getattr(fit.objective, "loss_function", None)
        known = estimate.score in (LOG_DENSITY, LOG_PROBABILITY) or not isinstance(loss, Module)
        own, other = estimate.score if known else f"by {loss!r}", estimate.response
        self.measures[1:] = [] if self.measures else [(own, other)]
        score, response = self.measures[0]
        alike = response is None or other is None or np.array_equal(response, other)
        if not alike or (self.metric is None and own != score):
            unknown = "of a kind that is not known"
            kind = f"losses are {own or unknown}, at first {score or unknown}" if alike else "the response is another one"
            raise ValueError(
                f"tune: at {describe_hyper(hyper)} {kind}: they cannot be compared. "
                "Trials of other losses are told apart by metric=, "
                "those of other responses not at all."
            )

    def final(self, estimate: Estimate | None) -> tuple[Trial, Fit, Estimate]:
        """Audit the best trial."""
        if not self.best:
            said = self.trials[-1].message or "their criterion is not known"
            raise RuntimeError(
                f"tune: none of {len(self.trials)} trials has an estimate ({said}): penalise more, or give a plan whose folds "
                "leave every coefficient determined."
            )
        trial, fit = self.best[0]
        if estimate is not None:
            return trial, fit, estimate
        metrics: Any = () if self.metric is None else (self.metric,)
        return trial, fit, cross_validate(fit, self.plan, self.refit, metric=metrics)


def _missing(request: Array) -> str:
    return f"{np.sum(~np.isfinite(request))} held-out losses do not exist"


def _alike(one: Mapping[str, Any], other: Mapping[str, Any], space: Mapping[str, Any]) -> bool:
    """Tell whether the choices of two trials are the same."""
    return all(one[name] is other[name] for name, ends in space.items() if isinstance(ends, list))


def _distance(one: Mapping[str, Any], other: Mapping[str, Any], space: Mapping[str, Any]) -> float:
    ranges = {name: np.log(ends[1] / ends[0]) for name, ends in space.items() if isinstance(ends, tuple)}
    return sum((np.log(one[name] / other[name]) / width) ** 2 for name, width in ranges.items())


def _numbers(study: TrialStudy, sampler: str) -> tuple[Array, Array]:
    """Return the logarithms of all bounds."""
    lists = [name for name, ends in study.space.items() if isinstance(ends, list)]
    if lists:
        raise ValueError(f"tune: sampler={sampler!r} takes bounds (low, high) only; {lists[0]!r} is a list: sampler='optuna'.")
    low, high = np.log(np.array(list(study.space.values()))).T
    return low, high


class _NoTrialLeft(Exception):
    """Raised when no trial is left."""


def by_gradient(study: TrialStudy) -> SearchEnd:
    low, high = _numbers(study, "gradient")
    if type(study.refit) is not NewtonStep:
        raise ValueError(
            f"tune: sampler='gradient' derives NewtonStep(); got {study.refit!r}. Cross-validate .fit by that, or use 'optuna'."
        )
    if study.metric not in (None, "auc"):
        raise ValueError(f"tune: sampler='gradient' has no slope of {study.metric!r}; use sampler='optuna'.")
    names = list(study.space)
    begin = np.log([study.start[name] for name in names]) if study.start else (low + high) / 2
    down = CriterionDescent(study, LossSlopes(study.build, names, smoothed_area if study.metric == "auc" else None), low, high)
    best, ended = down.run(begin, None)
    known, fit = None, study.best[0][1] if study.best else None
    if fit is not None and kinks(fit.objective) is not None:
        known = cross_validate(fit, study.plan, criterion(fit))
        ended += "; the curve, of exact refits, has kinks where coefficients come and go"
    rng, start = np.random.default_rng(study.seed), np.log(list(best.hyper.values()))
    labels = [group_units(best.known_estimate, rng) for _ in range(study.nested)]
    chosen = [[down.without(label == group, best, start) for group in range(label.max() + 1)] for label in labels]
    return SearchEnd("by gradient", ended, known, nested_trials=tuple(zip(labels, chosen, strict=True)))


@dataclass(frozen=True, eq=False)
class CriterionDescent:
    """Descent by the gradient of the criterion, over all units or over those that are `among` some."""

    study: TrialStudy
    slopes: LossSlopes
    low: Array
    high: Array

    def run(self, begin: Array, among: Array | None) -> tuple[Trial, str]:
        """Descend to a minimum; return the trial of the lowest criterion on the way, and how the descent ended."""
        seen: dict[bytes, tuple[float, Array]] = {}
        found: list[tuple[float, Trial]] = []

        def look(x: Array) -> tuple[float, Array]:
            if x.tobytes() not in seen:
                if len(seen) >= self.study.most:
                    raise _NoTrialLeft
                trial, value, slope = self._slope(np.clip(x, self.low, self.high), among)
                seen[x.tobytes()] = value, slope
                found.append((value, trial))
                bar.advance()
            return seen[x.tobytes()]

        with Slow("fits", self.study.most) as bar:
            look(begin)
            known = found[0][1].known_estimate
            se = max(known.scale if self.study.metric is None else len(known.losses) ** -0.5, 1e-300)
            try:
                ended = descend_boxes(look, begin, self.low, self.high, se)
            except _NoTrialLeft:
                ended = f"not converged: stopped after {self.study.most} fits (trials=)"
        return min(found, key=lambda pair: pair[0])[1], ended

    def without(self, group: Array, best: Trial, begin: Array) -> Trial | None:
        """Choose a trial without a group of the units; None if the others are of one class and have no area."""
        metric, fit = self.study.metric, self.study.best[0][1]
        if metric is not None and not all(
            np.isfinite(measure_units(metric, fit, best.predicted, some)) for some in (group, ~group)
        ):
            return None
        return self.run(begin, ~group)[0]

    def _slope(self, x: Array, among: Array | None) -> tuple[Trial, float, Array]:
        """Run a trial; return it with its criterion and the slope of that in the logarithms."""
        study = self.study
        hyper = {name: float(np.clip(np.exp(each), *ends)) for (name, ends), each in zip(study.space.items(), x, strict=True)}
        fit, rho = study.fit_trial(hyper), np.array(list(hyper.values()))
        found = self.slopes(fit, resolve_plan("tune", fit.objective, study.plan, criterion(fit)), rho, among)
        along = found.slope * rho
        plan, center = found.estimate.plan, found.center
        predicted = None if center is None else Predictions(plan, "link", values=center[plan.index[plan.held]])
        more: dict[str, Any] = {"predicted": predicted, "slope": dict(zip(hyper, along.tolist(), strict=True))}
        trial = (
            study.judge(hyper, fit, found.estimate, **more)
            if among is None
            else Trial(hyper, found.value, found.estimate, **more)
        )
        if not np.isfinite([trial.value, found.value, *along]).all():
            raise ValueError(
                f"tune: at {describe_hyper(hyper)} the criterion or its slope is not finite ({trial.message or 'overflow'}): "
                "raise the "
                "lower bound of the penalties, give another start, or use sampler='optuna'."
            )
        return trial, found.value, along


def descend_boxes(look: Any, x: Array, low: Array, high: Array, se: float, fine: float = 1.0) -> str:
    """Descend to a minimum by SciPy's L-BFGS-B in one box after another, each started with a step of one e-fold.

    Returns how the descent ended. A slope counts as small relative to the largest slope so far, as a flat start may be a tail.
    `fine` is a factor on the slope that counts as small.
    """
    steepest = 0.0
    for _ in range(100):
        value, slope = look(x)
        unit, box = max(np.abs(slope).max(), 1e-300), (np.maximum(low, x - LONGEST), np.minimum(high, x + LONGEST))
        steepest = max(steepest, unit)
        scaled = lambda x, value=value, unit=unit: ((look(x)[0] - value) / unit, look(x)[1] / unit)
        least = fine * min(se, steepest / SMALL[0] / 10) / unit
        options = {"gtol": SMALL[0] * least, "ftol": SMALL[1] * least, "maxcor": 20}
        found = scipy.optimize.minimize(scaled, x, jac=True, method="L-BFGS-B", bounds=np.transpose(box), options=options)
        x = found.x
        if not np.any(((x <= box[0]) & (box[0] > low)) | ((x >= box[1]) & (box[1] < high))):
            break
    slope = look(x)[1]
    left = np.abs(np.where(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)), 0.0, slope)).max()
    return f"the slope left is {left / se:.1g} standard errors an e-fold"


def by_path(study: TrialStudy) -> SearchEnd:
    low, _ = _numbers(study, "path")
    if len(low) > 1 or study.metric is not None or study.start:
        raise ValueError("tune: sampler='path' goes over the values of one penalty, by its loss: no metric=, no start=.")
    (name,) = study.space
    least, largest = study.space[name]
    values = np.clip(np.geomspace(least, largest, study.most), least, largest).tolist()
    made = {value: study.build_model({name: value}) for value in values}
    first: Any = made[values[0]]
    for value, other in made.items():
        if not _same_but_penalty(first, other):
            raise ValueError(f"tune: at {name} = {value:.4g} more than the penalty is another; use sampler='optuna'.")
    penalties = {value: getattr(other, "penalty", None) for value, other in made.items()}
    judged = lambda found: [study.judge({name: point.value}, point.fit, point.estimate) for point in found.points]
    try:
        judged(found := path(first, penalties, study.plan, study.refit))
    except Interrupted as stop:
        if stop.partial is not None:
            judged(stop.partial)
        raise
    return SearchEnd("by path", "from the least to the largest", found.best.estimate if study.best else None)


def _same_but_penalty(one: Any, other: Any) -> bool:
    """Tell whether objectives differ in the penalty only."""
    if type(one) is not type(other):
        return False
    parts = ((part, vars(other).get(name)) for name, part in vars(one).items() if name not in ("penalty", "loss_function"))
    alike = (a is b or (np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b) for a, b in parts)
    return all(alike) and repr(getattr(one, "loss_function", "")) == repr(getattr(other, "loss_function", ""))


def by_optuna(study: TrialStudy) -> SearchEnd:
    try:
        import optuna
    except ImportError as error:
        raise ImportError("tune: sampler='optuna' needs Optuna: pip install 'leaveout[tune]'.") from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        asked = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=study.seed))
    finally:
        optuna.logging.set_verbosity(before)
    kinds: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(range(len(ends)))
        if isinstance(ends, list)
        else optuna.distributions.FloatDistribution(*ends, log=True)
        for name, ends in study.space.items()
    }
    if study.start:
        numbered = {k: study.space[k].index(v) if isinstance(study.space[k], list) else v for k, v in study.start.items()}
        asked.enqueue_trial(numbered)
    states = optuna.trial.TrialState
    with Slow("fits", study.most) as bar:
        for _ in range(study.most):
            own = asked.ask(kinds)
            hyper = {k: study.space[k][v] if isinstance(study.space[k], list) else float(v) for k, v in own.params.items()}
            trial = _try(study, hyper)
            if trial.message.startswith("pruned"):
                own.report(trial.value, step=0)
                asked.tell(own, state=states.PRUNED)
            else:
                asked.tell(own, trial.value if not trial.message else None, state=states.FAIL if trial.message else None)
            bar.advance()
    return SearchEnd("by Optuna", "as many as were asked for")


def _try(study: TrialStudy, hyper: dict[str, Any]) -> Trial:
    """Run a trial, or as much of it as shows that it is no better."""
    try:
        fit = study.fit_trial(hyper)
    except (RuntimeError, IndefiniteHessianError) as error:
        return study.add(Trial(hyper, float("nan"), message=f"no fit: {error}"))
    plan = resolve_plan("tune", fit.objective, study.plan, study.refit)
    gathered, _ = begin_estimate(HeldOutLoss(fit, plan, None), study.refit)
    study.comparable(hyper, fit, gathered.draft)
    if study.best and study.metric is None:
        best = study.best[0][0].known_estimate
        # standard errors by which a trial must be known to be worse before it is pruned
        least = best.mean + best.approximation_error + 0.01 * best.scale
        if (bound := floor(fit, gathered.draft)) > least:
            return study.add(Trial(hyper, bound, message="pruned by its fit", parameters=fit.parameters))
        if isinstance(study.refit, Exact | Certified):
            look = cross_validate(fit, study.plan, STEP, audit=0)
            if look.mean - look.approximation_error > least:
                return study.add(Trial(hyper, look.mean, look, message="pruned by its step", parameters=fit.parameters))
    return study.judge(hyper, fit, cross_validate(fit, study.plan, study.refit, audit=0))


def floor(fit: Fit, estimate: Estimate) -> float:
    """Compute a lower bound on the mean loss of exact refits from the fit alone.

    θ̂ minimises F, and θ_o minimises F minus the terms of fold o, so F(θ̂) ≤ F(θ_o) and F_o(θ_o) ≤ F_o(θ̂): the losses of the
    fold sum to no less at θ_o than at θ̂. This needs F to be convex, a sum over units and a penalty, and folds that score all
    that they leave out, every unit as often as any other.
    """
    plan, model = estimate.plan, fit.predictors
    times = np.bincount(plan.index, minlength=plan.num_units)
    alike = plan.held.all() and not plan.weight.any() and times.min() == times.max()
    return estimate.no_update if model is not None and model.separate and alike else -np.inf
