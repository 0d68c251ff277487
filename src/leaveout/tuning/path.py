"""The regularisation path: an estimate for each of many penalties, in one call.

For least squares under Ridge(α) with every row left out by itself, all estimates come from one
eigendecomposition (`ridge_path`). For other self-concordant losses under quadratic penalties, the
refits of several penalties are computed side by side (`refit._penalty_stack`). Otherwise each fit
starts from that of the next stronger penalty. A path counts as one call: its penalties share the
work that refits may cost before errors are estimated instead of proved, and the exact repetitions
of the audit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._runtime import (
    BoolArray,
    File,
    FloatArray,
    Interrupted,
    Lines,
    NamedValues,
    NumpyArray,
    Slow,
    StepResult,
    conventional,
    float64,
    keeping,
    kind_of,
    provided,
    read_or_make,
    record,
)
from ..data import count, floats
from ..linalg import Curvature, Predictors
from ..models.glm import (
    AbstractPenalty,
    BandedRidge,
    ElasticNet,
    GroupLasso,
    Lasso,
    PerWeight,
    Ridge,
    Zero,
    kinks,
    resolve,
)
from ..objectives import HESSIAN_ENTRIES, LinearBatch, PerRefit, as_stored, plan_reader, whole, work
from ..optimize import PerTarget, at_zeros, candidates
from ..optimize.fit import DOUBTFUL, Fit, anchored_at, fit, uncached
from ..optimize.newton import newton
from ..plans import Plan, PlanLike
from ..refit import AbstractRefit, Leaving, PathRefit, PerPenalty, Stack, groups
from ..validation.audit import affordable, choose_refits, repeat_refits
from ..validation.batches import blank, keep_freed, one_thread
from ..validation.checks import of_refits
from ..validation.cross_validate import (
    EstimateBuilder,
    cross_validate,
    refitted,
    strategy_of,
)
from ..validation.estimate import Estimate, PrintedResult, PrintedTexts, Repetition
from ..validation.scoring import HeldOutLoss
from ..validation.standard_errors import naives
from .lasso_path import applies as along, lassos
from .ridge_path import applies, ridges

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Model = Any  # lo.GLM, lo.Regression or lo.Cox
Penalties = Any  # positive numbers, a sequence of penalties, or a mapping of them


@dataclass(eq=False, repr=False)
class PathPoint:
    """One penalty of a path: its label, the penalty, and the mean held-out loss under it (NaN if
    some refits do not exist).

    The fit and the estimate are built on demand. The object also has the mean of the known errors,
    the refits to repeat, their parameters, the number of gradients so far, the repetitions of the
    audit, and a sentence on the audit of the path.
    """

    value: Any
    penalty: AbstractPenalty
    make_fit: Callable[[], Fit]
    make_estimate: Callable[[Fit], Estimate]
    mean: float
    error: float
    choose_audits: Callable[[int], dict[int, str]]
    start: dict[int, NumpyArray]
    gradients: float
    repetitions: tuple[Repetition, ...] | None = None
    note: str = ""

    @cached_property
    def fit(self) -> Fit:
        """θ̂ under this penalty."""
        return self.make_fit()

    @cached_property
    def judged(self) -> Estimate:
        """The estimate before the audit."""
        return self.make_estimate(self.fit)

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate under this penalty."""
        labels = replace(self.judged.labels, audit=self.note)
        return replace(self.judged, repetitions=self.repetitions, labels=labels)

    def with_estimate(self, estimate: Estimate) -> "PathPoint":
        """Copy with another estimate."""
        return replace(
            self,
            make_fit=lambda: self.fit,
            make_estimate=lambda fit: estimate,
            mean=_mean(estimate),
        )

    def __getstate__(self) -> NamedValues:
        """Return the state for another process.

        The estimate without the fit, which has the data.
        """
        names = "value", "penalty", "mean", "error", "gradients", "repetitions", "note"
        return (
            dict.fromkeys(("make_fit", "make_estimate", "choose_audits", "fit"))
            | {name: getattr(self, name) for name in names}
            | {"start": {}, "judged": self.judged.without_data()}
        )

    def __repr__(self) -> str:
        return f"Point({value_text(self.value)}, {type(self.penalty).__name__}, held-out loss {self.mean:.6g})"


@record
class Path(PrintedResult):
    """An estimate under each of many penalties, in the order in which they were given.

    `lo.path` returns it. A pickled path has its estimates, and no fits.

    Attributes
    ----------
    points : tuple of points
        One for each penalty, with its `value`, `penalty`, `mean`, `estimate` and `fit`.
    plan : Plan
        The plan.
    labels : PrintedTexts
        The texts of the printed result.

    See Also
    --------
    path : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 5))
    >>> found = lo.path(
    ...     lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared"),
    ...     [0.1, 1.0, 10.0],
    ...     lo.leave_one_out(),
    ... )
    >>> found.table()["mean"].round(3).tolist()
    [0.564, 0.557, 0.561]
    """

    points: tuple[PathPoint, ...]
    plan: Plan
    labels: PrintedTexts

    @property
    def values(self) -> pd.Index:
        """Labels of the penalties.

        Their numbers, the keys of a mapping, or else 0, 1, 2 and so on.
        """
        return pd.Index([point.value for point in self.points], name="penalty")

    @property
    def penalties(self) -> list[AbstractPenalty]:
        """The penalties, in order."""
        return [point.penalty for point in self.points]

    @property
    def estimates(self) -> list[Estimate]:
        """The estimates under the penalties, in order."""
        return [point.estimate for point in self.points]

    @property
    def fits(self) -> list[Fit]:
        """The fits under the penalties, in order."""
        return [point.fit for point in self.points]

    @cached_property
    def _comparable(self) -> list[PathPoint]:
        """Return the points at which every loss of the plan exists.

        Means over fewer units are not comparable.
        """
        points = [point for point in self.points if np.isfinite(point.mean)]
        if not points:
            raise ValueError(
                "Path: under every penalty some refits do not exist: see Path.table(), or penalise more."
            )
        return points

    @cached_property
    def best(self) -> PathPoint:
        """The penalty of the lowest mean held-out loss, among those under which every refit
        exists.
        """
        return min(self._comparable, key=lambda point: point.mean)

    @cached_property
    def one_standard_error(self) -> PathPoint:
        """The simplest penalty whose mean is within one standard error of the best's (Breiman and
        others, 1984).

        The standard error is that of the best's own mean, over the independent units of the plan
        (`Estimate.se`). The simplest fits the data worst; among penalties that differ by a factor
        it is the strongest. Raises ValueError if the plan has no standard error.
        """
        value, kind = self.best.estimate.standard_error
        if not np.isfinite(value):
            raise ValueError(
                f"Path.one_standard_error: the standard error is {kind}. Path.best needs none."
            )
        close_points = [point for point in self._comparable if point.mean <= self.best.mean + value]
        return max(close_points, key=lambda point: point.estimate.no_update)

    @conventional
    def table(self) -> pd.DataFrame:
        """Tabulate the estimates under all penalties.

        Returns
        -------
        DataFrame
            One row a penalty: `mean`, `se`, `no_update`, `approximation_error`, the share `proved`,
            and the number `flagged`.
        """
        rows = [
            {
                "mean": e.mean,
                "se": e.se,
                "no_update": e.no_update,
                "approximation_error": e.approximation_error,
                "proved": float(np.mean(e.proved)),
                "flagged": len(e.flagged()),
            }
            for e in self.estimates
        ]
        return pd.DataFrame(rows, index=self.values)

    def _facts(self) -> Lines:
        best = self.best
        lower_mean = lambda point: point.mean - point.estimate.approximation_error
        close = [
            p
            for p in self._comparable
            if p is not best and lower_mean(p) <= best.mean + best.estimate.approximation_error
        ]
        ends = False
        if self.values.dtype == float:
            ends = best.value in (self.values.min(), self.values.max())
        worst = max(point.estimate.approximation_error for point in self._comparable)
        proved = np.mean([np.mean(point.estimate.proved) for point in self.points])
        within = ""
        if np.isfinite(best.estimate.se):
            simplest = self.one_standard_error
            within = f"{value_text(simplest.value)}: {simplest.mean:.6g}, the simplest within one SE of the best"
        checks: dict[str, list[Any]] = {}  # of refits under the other penalties
        for point in self.points:
            if point is best:
                continue
            estimate = point.estimate
            for check in of_refits(estimate.flagged(), estimate.result, self.plan):
                checks.setdefault(check.code, []).append(point.value)
        missing = [point.value for point in self.points if point not in self._comparable]
        return [
            ("model", self.labels.objective),
            ("penalties", f"{len(self.points)}: {join_texts(self.values)}"),
            ("stopped", self.labels.stopped),
            ("refits", f"{self.plan.num_refits} under each, {self.labels.refit}"),
            ("best", f"{value_text(best.value)}: held-out loss {best.estimate._mean_text}"),
            ("one SE", within),
            ("approximation", f"± {worst:.1g} on a mean at most, {proved:.0%} of refits proved"),
            (
                "not told apart",
                f"{join_texts([p.value for p in close])}: within refit error of the best"
                if close
                else "",
            ),
            (
                "at the end",
                "the best is the least or the largest of the penalties: look further"
                if ends
                else "",
            ),
            ("audit", self.labels.audit),
            ("not compared", f"{join_texts(missing)}: some refits do not exist" if missing else ""),
            *best.estimate._findings(),
            (
                "elsewhere",
                "; ".join(
                    f"{code} under {join_texts(values)}" for code, values in sorted(checks.items())
                ),
            ),
            ("note", "the best's mean is a little optimistic: it was chosen by the same losses"),
        ]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the held-out loss ± its standard error against the penalty, with both choices
        marked. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").path(self, ax=ax)


def value_text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value)


def join_texts(values: Iterable[Any]) -> str:
    texts = [value_text(value) for value in values]
    # labels in a printed list
    return ", ".join(texts if len(texts) <= 5 else [*texts[:2], "…", texts[-1]])


@overload
def path(
    objective: BandedRidge,
    penalties: Penalties,
    plan: Plan,
    *,
    strategy: AbstractRefit | None = ...,
    audit: int = ...,
    checkpoint: File | None = ...,
) -> PerTarget: ...
@overload
def path(
    objective: Model,
    penalties: Penalties,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = ...,
    audit: int = ...,
    checkpoint: File | None = ...,
    groups: ArrayLike | None = ...,
) -> Path: ...
@conventional
@float64
def path(
    objective: Model,
    penalties: Penalties,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = None,
    audit: int = 5,
    checkpoint: File | None = None,
    groups: ArrayLike | None = None,
) -> Path | PerTarget:
    """Cross-validate an objective under each of many penalties, which take the place of its own.

    Parameters
    ----------
    objective : GLM, Regression, Cox or BandedRidge
        The objective.
    penalties : sequence or mapping of penalties, or of numbers
        Penalties of `lo.penalties`, in a sequence or, by names, in a mapping; or positive numbers.
        A number α means `Ridge(α)`, `α/2 ‖coef‖²` beside the *summed* loss (scikit-learn's Ridge(α)
        for the squared loss, C = 1/α for the logistic). If the objective's own penalty is a `Lasso`
        or an `ElasticNet`, α is that of such a penalty (n times scikit-learn's alpha). For a
        `BandedRidge`, numbers `[candidates]` or `[candidates, bands]`.
    plan : Plan, int or splitter
        The units to leave out, as in `cross_validate`; a Plan for a `BandedRidge`.
    strategy : AbstractRefit, default `Certified()`
        The strategy. The penalties share the operations of one call: of many rows left out by
        themselves, fewer refits are proved and more are estimated.
    audit : int, default 5
        The number of refits of the whole path to repeat exactly, as many as a tenth of its
        operations pay for, or one within half of them. If one is off by more than its error, every
        penalty is cross-validated by itself.
    checkpoint : path, optional
        A file that keeps what is done, as in `cross_validate`.
    groups : array-like, optional
        Labels of groups for a number of folds or a splitter, as in `cross_validate`.

    Returns
    -------
    Path
        An estimate under every penalty. For a `BandedRidge`, every refit is in closed form, and a
        `PerTarget` has the best penalty of each target.

    Raises
    ------
    TypeError
        If the objective has no such penalty.
    ValueError
        If the numbers are not positive, finite and distinct.
    Interrupted
        On Ctrl-C, with the path of the penalties that are done.

    See Also
    --------
    tune : Search several hyperparameters.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 5))
    >>> found = lo.path(
    ...     lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared"),
    ...     [0.1, 1.0, 10.0],
    ...     lo.leave_one_out(),
    ... )
    >>> found.best.value, round(found.best.mean, 3)
    (1.0, 0.557)
    """
    strategy = strategy_of("path", strategy)
    if isinstance(objective, BandedRidge):
        if checkpoint is not None or groups is not None:
            raise ValueError("path: a BandedRidge takes a Plan, and keeps no checkpoint.")
        return candidates(objective, penalties, cast(Plan, plan))
    if not (
        hasattr(objective, "design")
        and isinstance(getattr(objective, "penalty", None), AbstractPenalty)
    ):
        description = kind_of(objective) + (
            "" if not isinstance(objective, Fit) else ", give its .objective"
        )
        raise TypeError(
            f"path: the objective must have a penalty: lo.GLM, lo.Regression or lo.Cox; got {description}."
        )
    active_model = kinks(objective)
    # the model of all columns
    if active_model is not None:
        objective = active_model.whole.model
    plan = plan_reader("path", objective).read(plan, groups)
    audit = count("path: audit", audit, 0)
    keep_freed()
    penalty_by_label = _label_penalties(objective, penalties)
    points = dict[Any, PathPoint]()
    labels = PrintedTexts(repr(objective), repr(strategy))
    inputs = {
        "model or data": objective,
        "penalties": penalty_by_label,
        "plan": plan,
        "refit": strategy,
        "audit": audit,
    }
    try:
        with one_thread(objective, objective.design.shape[1]), keeping("path", checkpoint, inputs):
            _estimate_points(points, objective, penalty_by_label, plan, strategy, audit)
            note, missed = _audit_points(points, audit, work(objective, objective.design.shape[1]))
            if missed:  # refits that were judged in the same way are refined
                note = f"{note}: every penalty was cross-validated by itself"
                for value in [*points]:
                    estimate = cross_validate(
                        points[value].fit, plan, strategy=strategy, audit=audit, bases="frozen"
                    )
                    point = points[value].with_estimate(estimate)
                    points[value] = replace(point, repetitions=point.judged.repetitions)
            for point in points.values():
                point.note = note
    except KeyboardInterrupt:
        progress = f"{len(points)} of {len(penalty_by_label)} penalties"
        labels = replace(
            labels,
            audit="none, since it was stopped",
            stopped=f"{progress} are done: the best is one of these",
        )
        done = tuple(
            replace(points[value], repetitions=None, note="")
            for value in penalty_by_label
            if value in points
        )
        raise Interrupted(
            f"path: stopped after {progress}", lambda: Path(done, plan, labels) if done else None
        ) from None
    labels = replace(labels, audit=note)
    return Path(tuple(points[value] for value in penalty_by_label), plan, labels)


def _mean(estimate: Estimate) -> float:
    """Return the mean of an estimate, NaN if some refits have no loss."""
    if np.isfinite(estimate.losses[estimate._places.held]).all():
        return estimate.mean
    return np.nan


def _mean_error(error: PerRefit) -> float:
    """Return the mean of the errors over refits that exist."""
    finite = error[np.isfinite(error)]
    return float(finite.mean()) if finite.size else 0.0


def _label_penalties(objective: Model, penalties: Penalties) -> dict[Any, AbstractPenalty]:
    """Return the penalties by their labels."""
    if isinstance(penalties, Mapping):
        penalty_by_label = {label: resolve(penalty) for label, penalty in penalties.items()}
    elif isinstance(penalties, Sequence) and any(
        isinstance(entry, AbstractPenalty) for entry in penalties
    ):
        penalty_list = [resolve(entry) for entry in penalties]
        labels: Sequence[Any] = [_alpha(entry) for entry in penalty_list]
        kinds = {type(entry) for entry in penalty_list}
        if len(kinds) > 1 or None in labels or len(set(labels)) < len(labels):
            labels = range(len(penalty_list))
        penalty_by_label = dict(zip(labels, penalty_list, strict=True))
    else:
        alphas = floats("path", "penalties", penalties)
        if (
            alphas.ndim != 1
            or not (np.isfinite(alphas) & (alphas > 0)).all()
            or len(np.unique(alphas)) < len(alphas)
        ):
            raise ValueError(
                f"path: penalties that are numbers must be positive, finite and distinct, in one dimension; got {penalties!r}. "
                "No penalty at all is lo.penalties.Zero(), in a sequence of penalties."
            )
        current = objective.penalty
        kinked = current.has_kinks and _with_alpha(current, 1.0) is not None
        if not kinked and not isinstance(current, Zero | Ridge):
            raise ValueError(
                f"path: numbers mean Ridge(alpha), which would take the place of {type(current).__name__}; give penalties of "
                "that kind, such as [lo.penalties.per_weight(lo.penalties.Ridge(a)) for a in alphas]."
            )
        penalty_by_label = {
            float(alpha): _with_alpha(current, alpha) if kinked else Ridge(alpha)
            for alpha in alphas
        }
    if not penalty_by_label:
        raise ValueError("path: give one penalty at least.")
    for penalty in penalty_by_label.values():
        penalty.check(objective.design.shape[1] - getattr(objective, "intercept", 0))
    return penalty_by_label


def _alpha(penalty: AbstractPenalty) -> float | None:
    """Return the single number of a penalty, if it has one."""
    inner = penalty
    if isinstance(penalty, PerWeight):
        inner = penalty.penalty
    alpha = getattr(inner, "alpha", None)
    if alpha is None or np.ndim(alpha):
        return None
    return float(alpha)


def _alphas(penalties: list[AbstractPenalty]) -> PerPenalty | None:
    """Return the α of the penalties if all are ridges with α above zero; else None."""
    alphas = [_alpha(penalty) if isinstance(penalty, Ridge) else None for penalty in penalties]
    return np.array(alphas, float) if all(alphas) else None


def _with_alpha(penalty: AbstractPenalty, alpha: float):
    """Return a copy of a lasso, grouped or not, or an elastic net, with another α.

    None for other penalties.
    """
    if isinstance(penalty, PerWeight):
        inner = _with_alpha(penalty.penalty, alpha)
        if inner is None:
            return None
        return PerWeight(inner, penalty.rows)
    if isinstance(penalty, ElasticNet):
        return ElasticNet(alpha, float(penalty.l1_ratio))
    if isinstance(penalty, GroupLasso):
        return GroupLasso(alpha, np.argmax(penalty.member, 0), penalty.weights)
    return Lasso(alpha) if isinstance(penalty, Lasso) else None


def _estimate_points(
    points: dict[Any, PathPoint],
    objective: Model,
    penalty_by_label: dict[Any, AbstractPenalty],
    plan: Plan,
    refit: AbstractRefit,
    audit: int,
) -> None:
    """Estimate every penalty.

    All at once for single rows where possible, else one after another, the strongest first.
    """
    plan = plan_reader("path", objective).resolve(plan)
    judged = partial(_split_results, objective, plan, refit)
    # every refit leaves out one row, or a part of it, and none twice
    rows = (
        len(plan.index) == plan.num_refits
        and np.bincount(plan.index).max() == 1
        and bool(np.all(plan.weight <= 1))
    )
    penalties = list(penalty_by_label.values())
    path_refit = None
    if refit.quadratic and rows:
        alphas = _alphas(penalties)
        if along(objective, penalties, plan):
            path_refit = _read_or_make(lambda: lassos(objective, penalties, plan))
        elif alphas is not None and applies(objective):
            path_refit = _read_or_make(lambda: ridges(objective, alphas, plan))
    if path_refit is not None:
        points.update(judged(penalty_by_label, path_refit))
    remaining = {
        value: penalty for value, penalty in penalty_by_label.items() if value not in points
    }
    model = _predictors(objective, list(remaining.values()))
    if model is None:
        thetas = {}
    else:
        thetas = _minimisers(objective, model, remaining)
    if (
        model is not None
        and thetas
        and rows
        and model.separate
        and model.loss.self_concordance is not None
    ):
        # rows leave known fits in arrays over some of the penalties at a time
        labels = list(thetas)
        theta = np.stack(list(thetas.values()))
        second = _seconds(objective, [remaining[value] for value in labels])
        for chunk in groups(len(theta), model):
            stack = Stack(
                model,
                second[chunk],
                theta[chunk],
                Leaving(plan.index, plan.weight, plan.held),
                len(theta),
            )
            if plan.held.all():
                baseline = stack.baseline
            else:
                baseline = stack.baseline[:, plan.held]
            scale = naives(baseline, stack.weight[plan.scored_units])
            path_refit = _read_or_make(
                lambda stack=stack, scale=scale: refit.refit_penalties(stack, scale)
            )
            if path_refit is None:
                break
            points.update(judged({value: remaining[value] for value in labels[chunk]}, path_refit))
    order = [value for value in remaining if value not in points]
    if all(isinstance(value, float) for value in order):
        order.sort(reverse=True)
    before = None
    with Slow("penalties", len(order)) as bar:
        for value in order:
            penalty = remaining[value]
            try:
                penalised = objective.under(penalty)
                if value in thetas:
                    penalty_fit = _fit_at(penalised, thetas[value])
                else:
                    penalty_fit = fit(penalised, before)
            except (RuntimeError, ValueError) as error:
                error.add_note(f"In lo.path, under the penalty {value_text(value)}.")
                raise
            builder = EstimateBuilder(HeldOutLoss(penalty_fit, plan, None), refit, audit)
            builder.run(times=len(order))
            # without the results that its refits cache
            before = penalty_fit.parameters
            same = uncached(penalty_fit)
            estimate = replace(builder.finish(builder.draft), fit=same)
            points[value] = PathPoint(
                value,
                penalty,
                lambda same=same: same,
                lambda fit, estimate=estimate: estimate,
                _mean(estimate),
                _mean_error(estimate.error),
                partial(builder.choose, estimate),
                builder.starts(builder.choose(estimate, audit)),
                builder.gradients,
            )
            bar.advance()


def _seconds(
    objective: Model, penalties: list[AbstractPenalty]
) -> Float[NumpyArray, "penalties params params"]:
    """Return ∇² of quadratic penalties."""
    features = objective.num_features
    params = objective.design.shape[1]
    second = np.zeros((len(penalties), params, params))
    for block, penalty in zip(second, penalties, strict=True):
        block[:features, :features] = penalty.second(features)
    return second


def _predictors(objective: Model, penalties: list[AbstractPenalty]) -> Predictors | None:
    """Return the model as data if it has one output and all penalties are quadratic.

    It has the first penalty.
    """
    if not penalties or not all(
        penalty.quadratic and not isinstance(penalty, PerWeight) for penalty in penalties
    ):
        return None
    model = objective.under(penalties[0]).predictors
    if model is None or model.design.outputs > 1:
        return None
    return replace(model, design=model.design.pair_columns())


def _minimisers(
    objective: Model, model: Predictors, penalty_by_label: dict[Any, AbstractPenalty]
) -> dict[Any, NumpyArray]:
    """Minimise under each of many quadratic penalties by Newton's method side by side.

    It returns the penalties at which this converges and no direction is flat.
    """
    units, params = model.design.shape
    lanes = np.arange(len(penalty_by_label))
    if len(penalty_by_label) * (units + params**2) > HESSIAN_ENTRIES:
        return {}
    second = _seconds(objective, list(penalty_by_label.values()))
    n = objective.num_units
    F = LinearBatch(model, whole(np.ones((len(lanes), n))), n, second=second)
    theta = np.tile(np.ravel(objective.parameters.start(0)), (len(penalty_by_label), 1))
    flat = np.zeros((0, params))
    alphas = _alphas(list(penalty_by_label.values()))
    if alphas is not None:
        order = np.argsort(alphas)
        # one penalty in so many is fitted from scratch, the others by interpolation
        first = order[np.unique(np.r_[: len(order) : 5, len(order) - 1])]
        theta[first] = newton(F, theta[first], first, flat).theta
        level = np.log(alphas)
        theta = np.stack([np.interp(level, level[first], part) for part in theta[first].T], 1)
    solution = newton(F, theta, lanes, flat)
    good = solution.converged
    if alphas is None:
        good &= Curvature.of(F.hessian(solution.theta, lanes), DOUBTFUL).definite
    return {
        value: theta
        for value, theta, arrived in zip(penalty_by_label, solution.theta, good, strict=True)
        if arrived
    }


def _read_or_make(make: Callable[[], PathRefit | None]) -> PathRefit | None:
    """Compute the arrays over penalties, or read them from the checkpoint."""

    def outputs() -> StepResult:
        path_refit = make()
        if path_refit is None:
            return {}
        return path_refit.arrays

    arrays = read_or_make(outputs)
    if arrays:
        return PathRefit.read(arrays)
    return None


def _split_results(
    objective: Model,
    plan: Plan,
    refit: AbstractRefit,
    penalty_by_label: dict[Any, AbstractPenalty],
    path_refit: PathRefit,
) -> dict[Any, PathPoint]:
    """Split arrays over penalties into one result for each penalty, except for the `bad` ones.

    Fits and estimates are built on demand.
    """

    def estimate(k: int, fit: Fit) -> Estimate:
        unfilled = blank(HeldOutLoss(fit, plan, None), refit, path_refit.baseline[k])
        return replace(
            unfilled,
            result=np.zeros_like(unfilled.result),
            losses=path_refit.losses[k],
            error=path_refit.error[k],
            proved=path_refit.proved[k],
        )

    def chosen(k: int, error: FloatArray, proved: BoolArray, number: int) -> dict[int, str]:
        if path_refit.step_length is None:
            return {int(np.argmax(error)): "largest error"}
        step_length = path_refit.step_length[k]
        return choose_refits(np.isfinite(error), step_length, error, proved, number)

    error = path_refit.error.mean(1)
    points = {}
    for k, (value, penalty) in enumerate(penalty_by_label.items()):
        if path_refit.bad[k]:
            continue
        make = lambda k=k, penalty=penalty: _fit_at(objective.under(penalty), path_refit.theta[k])
        point = PathPoint(
            value,
            penalty,
            make,
            partial(estimate, k),
            float(path_refit.mean[k]),
            float(error[k]),
            partial(chosen, k, path_refit.error[k], path_refit.proved[k]),
            {},
            float(path_refit.gradients[k]),
        )
        open_refits = np.flatnonzero(path_refit.open[k])
        if open_refits.size:
            held_out_loss = HeldOutLoss(point.fit, plan, None)
            judged = refitted(
                held_out_loss, refit, open_refits, point.judged, len(penalty_by_label)
            )
            point = replace(
                point.with_estimate(judged),
                error=_mean_error(judged.error),
                choose_audits=partial(chosen, k, judged.error, judged.proved),
            )
        points[value] = point
    return points


def _fit_at(objective: Model, theta: NumpyArray) -> Fit:
    """Return the fit at given coefficients, none of which is flat."""
    objective, theta = at_zeros(objective, theta)
    return anchored_at(objective, as_stored(theta), "path", np.zeros((0, len(theta))))


def _audit_points(points: dict[Any, PathPoint], audit: int, operations: float) -> tuple[str, int]:
    """Audit some refits under the penalties with the largest errors; a gradient takes `operations`
    operations.

    Writes the repetitions into the points. Returns a sentence about the audits, and the number of
    failures.
    """
    number = 0
    if audit:
        number = min(
            audit, affordable(sum(entry.gradients for entry in points.values()), operations)
        )
    order = sorted(points.values(), key=lambda point: -point.error)
    audits: dict[PathPoint, dict[int, str]] = {}
    for position in range(number):
        point = order[position % len(order)]
        listed = list(point.choose_audits(audit).items())
        if listed:  # otherwise no refit exists
            audits.setdefault(point, {}).update([listed[position % len(listed)]])
    count = 0
    missed = 0
    for point, chosen in audits.items():
        repetitions = repeat_refits(
            HeldOutLoss(point.fit, point.judged.plan, None), point.judged, chosen, point.start
        )
        point.repetitions = repetitions
        count += len(repetitions)
        missed += sum(repetition.beyond for repetition in repetitions)
    possessive = "their"
    refits = "refits"
    if count == 1:
        possessive = "its"
        refits = "refit"
    return (
        f"{count} {refits} of the path repeated exactly, {missed} beyond {possessive} error"
        if number
        else "",
        missed,
    )
