"""How much penalty: an estimate for each of many, in one call.

Of least squares under Ridge(α), every row left out by itself, all estimates come from one eigendecomposition (`_ridge`); of
other self-concordant losses under quadratic penalties they are made side by side (`refit._stacked`). Else each fit starts from
that of the next stronger penalty. A path is judged as one call: all its penalties share what refits may cost before they
are estimated instead of proved, and what is repeated exactly to audit them.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ._asked import Asked
from ._audit import affordable, audited, ranked
from ._design import Predictors
from ._errors import naives
from ._estimate import Estimate, Printed
from ._evaluate import DEFAULT, adapted, blank, cross_validate, keep_freed, settled, some_of, walked
from ._fit import DOUBTFUL, Fit, anchored_at, fit
from ._functions import TOGETHER, Penalised
from ._jax import float64
from ._minimise import factorised, newton
from ._objective import stored
from ._plan import Plan
from ._read import numbers
from ._ridge import applies, ridges
from .models.penalties import AbstractPenalty, PerWeight, Ridge, Zero, resolve
from .refit import AbstractRefit
from .refit._linear import copies
from .refit._stacked import Leaving, Settled, Stack, groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
COARSE = 5  # one penalty in so many is fitted from scratch, the others from what lies between
SHOWN = 5  # labels in a printed list

Model = Any  # lo.GLM, lo.Regression or lo.Cox: importing the last imports JAX
Penalties = Any  # positive numbers, a sequence of penalties, or a mapping of them


@dataclass(frozen=True, eq=False, repr=False)
class Point:
    """One penalty of a path: its label, itself, the mean held-out loss under it (NaN where some refits do not exist); and the
    estimate and the fit, put together when they are first asked for."""

    value: Any
    penalty: AbstractPenalty
    made: "_Judged"
    audit: pd.DataFrame | None
    said: str  # of the audit of the path

    @property
    def mean(self) -> float:
        return self.made.mean

    @functools.cached_property
    def estimate(self) -> Estimate:
        """The estimate under this penalty."""
        found = self.made.estimate
        return replace(found, audit=self.audit, labels=found.labels | {"audit": self.said})

    @property
    def fit(self) -> Fit:
        """θ̂ under this penalty."""
        return self.made.fit

    def __repr__(self) -> str:
        return f"Point({_shown(self.value)}, {type(self.penalty).__name__}, held-out loss {self.mean:.6g})"


@dataclass(frozen=True, eq=False, repr=False)
class Path(Printed):
    """What came of every penalty, in the order in which they were given."""

    points: tuple[Point, ...]
    plan: Plan
    labels: dict[str, str]  # model, refit, audit: for the printed result

    @property
    def values(self) -> pd.Index:
        """The labels: numbers where the penalties have one each, the keys of a mapping, else 0, 1, …"""
        return pd.Index([point.value for point in self.points], name="penalty")

    @property
    def penalties(self) -> list[AbstractPenalty]:
        return [point.penalty for point in self.points]

    @property
    def estimates(self) -> list[Estimate]:
        return [point.estimate for point in self.points]

    @property
    def fits(self) -> list[Fit]:
        return [point.fit for point in self.points]

    @functools.cached_property
    def _compared(self) -> list[Point]:
        """Those under which every loss that the plan asks for exists: means over fewer units are no match for theirs."""
        found = [point for point in self.points if np.isfinite(point.mean)]
        if not found:
            raise ValueError("Path: under every penalty some refits do not exist: see Path.table(), or penalise more.")
        return found

    @functools.cached_property
    def best(self) -> Point:
        """The penalty of the lowest mean held-out loss, among those under which every refit exists."""
        return min(self._compared, key=lambda point: point.mean)

    @functools.cached_property
    def one_standard_error(self) -> Point:
        """The simplest whose mean is within one standard error of the best's (Breiman and others, 1984): the standard error of
        the best's own mean, over what is independent in the plan (`Estimate.se`); the simplest fits the data worst, which of
        penalties that differ by a factor is the strongest.

        Raises ValueError where the plan has no standard error.
        """
        value, kind = self.best.estimate.standard_error
        if not np.isfinite(value):
            raise ValueError(f"Path.one_standard_error: the standard error is {kind}. Path.best needs none.")
        near = [point for point in self._compared if point.mean <= self.best.mean + value]
        return max(near, key=lambda point: point.estimate.no_update)

    def table(self) -> pd.DataFrame:
        """A row a penalty: `mean`, `se`, `no_update`, `approximation_error`, the share `proved`, how many `flagged`."""
        rows = [
            {"mean": e.mean, "se": e.se, "no_update": e.no_update}
            | {"approximation_error": e.approximation_error, "proved": float(np.mean(e.proved)), "flagged": len(e.flagged())}
            for e in self.estimates
        ]
        return pd.DataFrame(rows, index=self.values)

    def _lines(self) -> list[tuple[str, str]]:
        best, mean = self.best, self.best.mean
        value, kind = best.estimate.standard_error
        known, score = f" ± {value:.2g}" if np.isfinite(value) else "", best.estimate.score
        what = f", {score}" if score else ""
        flagged = [point.value for point in self.points if len(point.estimate.flagged())]
        apart = lambda point: point.mean - point.estimate.approximation_error
        close = [p for p in self._compared if p is not best and apart(p) <= mean + best.estimate.approximation_error]
        ends = best.value in (self.values.min(), self.values.max()) if self.values.dtype == float else False
        worst = max(point.estimate.approximation_error for point in self._compared)
        proved = np.mean([np.mean(point.estimate.proved) for point in self.points])
        lines = [
            ("model", self.labels["model"]),
            ("penalties", f"{len(self.points)}: {_listed(self.values)}"),
            ("refits", f"{self.plan.num_refits} under each, {self.labels['refit']}"),
            ("best", f"{_shown(best.value)}: held-out loss {mean:.6g}{known} a unit{what} (SE {kind})"),
            ("one SE", self._within()),
            ("approximation", f"± {worst:.1g} on a mean at most, {proved:.0%} of refits proved"),
            ("not told apart", f"{_listed([p.value for p in close])}: within refit error of the best" if close else ""),
            ("at the end", "the best is the least or the largest of the penalties: look further" if ends else ""),
            ("audit", self.labels["audit"]),
            ("not compared", self._missing()),
            ("flagged", f"refits under {_listed(flagged)}: see their estimates" if flagged else "none"),
            ("note", "the best's mean is a little optimistic: it was chosen by the same losses"),
        ]
        return [(name, text) for name, text in lines if text]

    def _within(self) -> str:
        if not np.isfinite(self.best.estimate.se):
            return ""
        point = self.one_standard_error
        return f"{_shown(point.value)}: {point.mean:.6g}, the simplest within one SE of the best"

    def _missing(self) -> str:
        without = [point.value for point in self.points if point not in self._compared]
        return f"{_listed(without)}: some refits do not exist" if without else ""

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Held-out loss ± standard error against the penalty, both choices marked. Needs matplotlib."""
        from .plot import path

        return path(self, ax=ax)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _listed(values: Iterable[Any]) -> str:
    shown = [_shown(value) for value in values]
    return ", ".join(shown if len(shown) <= SHOWN else [*shown[:2], "…", shown[-1]])


@float64
def path(objective: Model, penalties: Penalties, plan: Plan, refit: AbstractRefit = DEFAULT, *, audit: int = 5) -> Path:
    """Cross-validate an objective under each of many penalties, which take the place of its own.

    `objective` is a `GLM`, a `Regression` or a `Cox`. `penalties` are penalties of `lo.penalties`, in a sequence or, by names,
    in a mapping; or positive numbers: α means `Ridge(α)`, `α/2 ‖coef‖²` beside the *summed* loss (scikit-learn's Ridge(α) for
    the squared loss, C = 1/α for the logistic). `plan` and `refit` are as in `cross_validate`, and so is every estimate, but
    that the penalties share the operations of one such call: of many rows left out by themselves fewer refits are proved and
    more estimated, and `audit` refits of the whole path are repeated exactly, as many as a tenth of its operations pay for,
    one at least. Where one is off by more than was reported, every penalty is cross-validated by itself.

    Raises TypeError on objectives without such a penalty, ValueError on numbers that are not positive, finite and distinct, and
    what `fit` raises where there is no minimiser, the penalty named in a note.
    """
    if not (hasattr(objective, "design") and isinstance(getattr(objective, "penalty", None), AbstractPenalty)):
        what = type(objective).__name__ + ("" if not isinstance(objective, Fit) else ", give its .objective")
        raise TypeError(f"path: the objective must have a penalty: lo.GLM, lo.Regression or lo.Cox; got {what}.")
    if int(audit) != audit or audit < 0:
        raise ValueError(f"path: audit must be a whole number, 0 or more; got {audit}.")
    keep_freed()
    named = _named(objective, penalties)
    found = _found(objective, named, plan, refit, int(audit))
    said, tables, missed = _audited(found, int(audit))
    if missed:  # nothing that was judged like it is taken for granted
        said += ": every penalty was cross-validated by itself"
        whole = {value: cross_validate(each.fit, plan, refit, audit=int(audit)) for value, each in found.items()}
        found = {value: _whole(found[value], estimate) for value, estimate in whole.items()}
        tables = {value: estimate.audit for value, estimate in whole.items()}
    points = tuple(Point(value, penalty, found[value], tables.get(value), said) for value, penalty in named.items())
    return Path(points, plan, {"model": repr(objective), "refit": repr(refit), "audit": said})


@dataclass(frozen=True, eq=False)
class _Judged:
    """A penalty on its way: how its fit and its estimate are made, the mean of this and of the errors that are known, which
    refits are worth repeating, where these stand, and the gradients that were made."""

    fitted: Callable[[], Fit]
    judged: Callable[[Fit], Estimate]
    mean: float
    error: float
    chosen: Callable[[int], dict[int, str]]
    start: dict[int, np.ndarray]
    gradients: float

    @functools.cached_property
    def fit(self) -> Fit:
        return self.fitted()

    @functools.cached_property
    def estimate(self) -> Estimate:
        return self.judged(self.fit)


def _mean(found: Estimate) -> float:
    """That of an estimate, NaN where some refits have no loss."""
    asked = found.losses if found.joint else found.losses[found.plan.held]
    return found.mean if np.isfinite(asked).all() else float("nan")


def _known(error: Float[Array, " refits"]) -> float:
    """The mean of errors, but of refits that do not exist."""
    known = error[np.isfinite(error)]
    return float(known.mean()) if known.size else 0.0


def _whole(each: _Judged, estimate: Estimate) -> _Judged:
    """The same with another estimate."""
    return replace(each, fitted=lambda: each.fit, judged=lambda fit: estimate, mean=_mean(estimate))


def _named(objective: Model, penalties: Penalties) -> dict[Any, AbstractPenalty]:
    """The penalties by their labels."""
    if isinstance(penalties, Mapping):
        named = {label: resolve(penalty) for label, penalty in penalties.items()}
    elif isinstance(penalties, Sequence) and any(isinstance(each, AbstractPenalty) for each in penalties):
        found = [resolve(each) for each in penalties]
        alphas = [_alpha(each) for each in found]
        alike = len({type(each) for each in found}) == 1 and None not in alphas and len(set(alphas)) == len(found)
        named = dict(zip(alphas if alike else range(len(found)), found, strict=True))
    else:
        named = _ridges_of(objective, penalties)
    if not named:
        raise ValueError("path: give one penalty at least.")
    for penalty in named.values():
        penalty.check(objective.design.shape[1] - getattr(objective, "intercept", 0))
    return named


def _alpha(penalty: AbstractPenalty) -> float | None:
    """The one number that a penalty goes by, if there is one."""
    inner = penalty.penalty if isinstance(penalty, PerWeight) else penalty
    alpha = getattr(inner, "alpha", None)
    return None if alpha is None or np.ndim(alpha) else float(alpha)


def _alphas(penalties: list[AbstractPenalty]) -> Float[np.ndarray, " penalties"] | None:
    """Those of ridges above nothing, if all are."""
    alphas = [_alpha(penalty) if isinstance(penalty, Ridge) else None for penalty in penalties]
    return np.array(alphas, float) if all(alphas) else None


def _ridges_of(objective: Model, values: Any) -> dict[Any, AbstractPenalty]:
    """Ridge(α) of numbers α."""
    alphas = np.asarray(numbers("path", "penalties", values), float)
    if alphas.ndim != 1 or not (np.isfinite(alphas) & (alphas > 0)).all() or len(np.unique(alphas)) < len(alphas):
        raise ValueError(
            f"path: penalties that are numbers must be positive, finite and distinct, in one dimension; got {values!r}. "
            "No penalty at all is lo.penalties.Zero(), in a sequence of penalties."
        )
    own = objective.penalty
    if not isinstance(own, Zero | Ridge):
        raise ValueError(
            f"path: numbers mean Ridge(alpha), which would take the place of {type(own).__name__}; give penalties of "
            "that kind, such as [lo.per_weight(lo.penalties.Ridge(a)) for a in alphas]."
        )
    return {float(alpha): Ridge(alpha) for alpha in alphas}


def under(objective: Model, penalty: AbstractPenalty) -> Model:
    """The objective under another penalty, its data shared."""
    other = copy.copy(objective)
    object.__setattr__(other, "penalty", penalty)
    return other


def _found(
    objective: Model, named: dict[Any, AbstractPenalty], plan: Plan, refit: AbstractRefit, audit: int
) -> dict[Any, _Judged]:
    """Every penalty's estimate: of single rows at once where that can be, the others one after another, the strongest first."""
    plan = adapted("path", objective, plan, refit)
    said: list[str] = []

    def copied(own: Fit) -> str:
        """What is said of copies, which is the same under every penalty."""
        said[:] = said or [copies(own, plan)]
        return said[0]

    judged = functools.partial(_judged, objective, plan, refit, copied)
    every = _at_once(objective, named, plan) if refit.quadratic else None
    found = {} if every is None else judged(named, every)
    order = [value for value in named if value not in found]
    model = _predictors(objective, [named[value] for value in order])
    thetas = {} if model is None else _minimisers(objective, model, {value: named[value] for value in order})
    if model is not None and thetas:
        for some, every in _side_by_side(objective, model, {value: named[value] for value in thetas}, thetas, plan, refit):
            found |= judged(some, every)
    order = [value for value in order if value not in found]
    if all(isinstance(value, float) for value in order):
        order.sort(reverse=True)
    before = None
    for value in order:
        try:
            posed = under(objective, named[value])
            own = _anchored(posed, thetas[value]) if value in thetas else fit(posed, before)
        except (RuntimeError, ValueError) as error:
            error.add_note(f"In lo.path, under the penalty {_shown(value)}.")
            raise
        gathered = walked(Asked(own, plan, None), refit, audit, times=len(order))
        before, kept, candidates = own.parameters, replace(own), gathered.candidates  # without what its refits made of it
        estimate = gathered.ended(None, "", copied(own))
        known = lambda kept=kept: kept, lambda fit, estimate=estimate: estimate, _mean(estimate), _known(estimate.error)
        found[value] = _Judged(*known, candidates.chosen, candidates.start, gathered.gradients)
    return found


def _seconds(objective: Model, penalties: list[AbstractPenalty]) -> Float[np.ndarray, "penalties params params"]:
    """∇² of quadratic penalties."""
    features, params = objective.num_features, objective.design.shape[1]
    second = np.zeros((len(penalties), params, params))
    for own, penalty in zip(second, penalties, strict=True):
        own[:features, :features] = penalty.second(features)
    return second


def _predictors(objective: Model, penalties: list[AbstractPenalty]) -> Predictors | None:
    """The model as data, where it has one output and all penalties are quadratic; that of the first is in it."""
    if not penalties or not all(penalty.quadratic and not isinstance(penalty, PerWeight) for penalty in penalties):
        return None
    model = under(objective, penalties[0]).predictors
    return None if model is None or model.design.outputs > 1 else replace(model, design=model.design.paired())


def _minimisers(objective: Model, model: Predictors, named: dict[Any, AbstractPenalty]) -> dict[Any, Array]:
    """θ̂ under each of many quadratic penalties, by Newton's method side by side, where that arrives and sees all directions."""
    (units, params), lanes = model.design.shape, np.arange(len(named))
    if len(named) * (units + params**2) > TOGETHER:
        return {}
    F = Penalised(model, objective.num_units, _seconds(objective, list(named.values())))
    theta, flat = np.tile(np.ravel(objective.parameters.start(0)), (len(named), 1)), np.zeros((0, params))
    alphas = _alphas(list(named.values()))
    if alphas is not None:
        order = np.argsort(alphas)
        first = order[np.unique(np.r_[: len(order) : COARSE, len(order) - 1])]
        theta[first] = newton(F, theta[first], first, flat).theta
        level = np.log(alphas)
        theta = np.stack([np.interp(level, level[first], part) for part in theta[first].T], axis=1)
    found = newton(F, theta, lanes, flat)
    good = found.converged
    if alphas is None:
        good &= [factorised(hessian, DOUBTFUL) is not None for hessian in F.hessian(found.theta, lanes)]
    return {value: theta for value, theta, arrived in zip(named, found.theta, good, strict=True) if arrived}


def _of_rows(plan: Plan) -> bool:
    """Does every refit leave out one row, or a part of it, and none of them twice?"""
    alone = len(plan.index) == plan.num_refits and np.bincount(plan.index).max() == 1
    return bool(alone and np.all(plan.weight <= 1))


def _side_by_side(
    objective: Model,
    model: Predictors,
    named: dict[Any, AbstractPenalty],
    thetas: dict[Any, Array],
    plan: Plan,
    refit: AbstractRefit,
) -> Iterator[tuple[dict[Any, AbstractPenalty], Settled]]:
    """Single rows left out of fits that are known, by arrays over some of the penalties at a time."""
    if not (_of_rows(plan) and model.separate and model.loss.self_concordance is not None):
        return
    labels, penalties, theta = list(named), list(named.values()), np.stack(list(thetas.values()))
    second, leaving = _seconds(objective, penalties), Leaving(plan.index, plan.weight, plan.held)
    for some in groups(len(theta), model):
        stack = Stack(model, second[some], theta[some], leaving, len(theta))
        baseline = stack.baseline if plan.held.all() else stack.baseline[:, plan.held]
        every = refit.stacked(stack, naives(baseline, stack.weight[plan.index[plan.held]]))
        if every is None:
            return
        yield dict(zip(labels[some], penalties[some], strict=True)), every


def _at_once(objective: Model, named: dict[Any, AbstractPenalty], plan: Plan) -> Settled | None:
    """Ridges of least squares, every row left out by itself."""
    alphas = _alphas(list(named.values()))
    if alphas is None or not (_of_rows(plan) and applies(objective)):
        return None
    return ridges(objective, alphas, plan)


def _judged(
    objective: Model,
    plan: Plan,
    refit: AbstractRefit,
    copied: Callable[[Fit], str],
    named: dict[Any, AbstractPenalty],
    every: Settled,
) -> dict[Any, _Judged]:
    """What arrays over penalties say of each but the `bad`; fits and estimates are put together when they are asked for."""

    def estimate(k: int, fit: Fit) -> Estimate:
        found = blank(Asked(fit, plan, None), refit, every.baseline[k])
        parts = {"losses": every.losses[k], "error": every.error[k], "proved": every.proved[k]}
        return replace(found, **parts, labels=found.labels | {"copies": copied(fit)})

    def chosen(k: int, number: int) -> dict[int, str]:
        if every.moved is None:
            return {int(np.argmax(every.error[k])): "largest error"}
        return ranked(np.isfinite(every.error[k]), every.moved[k], every.error[k], every.proved[k], number)

    mean, error, wanting = (part.tolist() for part in (every.mean, every.error.mean(axis=1), np.any(every.open, axis=1)))
    found = {}
    for k, (value, penalty) in enumerate(named.items()):
        if every.bad[k]:
            continue
        make = lambda k=k, penalty=penalty: _anchored(under(objective, penalty), every.theta[k])
        known = (make, functools.partial(estimate, k), mean[k], error[k], functools.partial(chosen, k))
        found[value] = _Judged(*known, {}, float(every.gradients[k]))
        if wanting[k]:
            asked, whole, rest = Asked(found[value].fit, plan, None), found[value].estimate, np.flatnonzero(every.open[k])
            settled(whole, some_of(asked, refit, rest, whole, len(named)), rest)
            found[value] = replace(_whole(found[value], whole), error=_known(whole.error))
    return found


def _anchored(objective: Model, theta: np.ndarray) -> Fit:
    """The fit at coefficients of which none is flat."""
    return anchored_at(objective, stored(theta), "path", np.zeros((0, len(theta))))


def _audited(found: dict[Any, _Judged], audit: int) -> tuple[str, dict[Any, pd.DataFrame], int]:
    """A sentence on the audits of some refits, under the penalties of the largest errors; what they find; how many missed."""
    number = min(audit, affordable(sum(each.gradients for each in found.values()))) if audit else 0
    order = sorted(found, key=lambda value: -found[value].error)
    wanted: dict[Any, dict[int, str]] = {}
    for turn in range(number):
        value = order[turn % len(order)]
        listed = list(found[value].chosen(audit).items())
        if listed:  # else none of them exists
            wanted.setdefault(value, {}).update([listed[turn % len(listed)]])
    tables = {}
    for value, chosen in wanted.items():
        each, estimate = found[value], found[value].estimate
        tables[value] = audited(Asked(each.fit, estimate.plan, None), estimate, chosen, each.start)
    count, missed = sum(map(len, tables.values())), sum(int(table["beyond"].to_numpy().sum()) for table in tables.values())
    its, refits = ("its", "refit") if count == 1 else ("their", "refits")
    return f"{count} {refits} of the path repeated exactly, {missed} beyond {its} error" if number else "", tables, missed
