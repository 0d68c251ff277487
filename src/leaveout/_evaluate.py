"""The verb: plan → refit → score, in batches of bounded memory."""

import collections
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import joblib
import numpy as np
import pandas as pd
import scipy.sparse
from jaxtyping import PyTree
from numpy.typing import NDArray

from . import _minima as minima
from ._asked import Asked, Evaluate, flat, natural, predictions, reach, scores
from ._audit import Candidates, Pool, affordable, audited
from ._estimate import Estimate
from ._fit import Fit
from ._functions import work
from ._metrics import Metric, measure
from ._objective import AbstractLinearPredictor, aligned, float64
from ._plan import Plan, Rows
from ._progress import Slow
from ._results import RESULTS
from .refit import AbstractRefit, Certified, Exact, Refitted, completed, is_narrow
from .refit._linear import copies, unit_losses

CAPACITY = 2**21  # numbers in all arrays of a batch of refits (16 MiB)
SHARED = 1e7  # operations of one gradient of every refit, from which cores share them
ENOUGH = 0.5  # observations of a part of the model that a refit must be left
DEFAULT = Certified()


@float64
def cross_validate(
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit = DEFAULT,
    *,
    evaluate: Evaluate | None = None,
    metric: Metric | Sequence[Metric] = (),
    audit: int = 5,
) -> Estimate:
    """The held-out loss of every unit that `plan` scores, each refit by `refit` (default `Certified()`).

    `evaluate(held, seen, parameters)` replaces the objective's own score: it is given the numbers of the held
    and of the seen units and the natural parameters of one refit, and returns one loss a held unit, or one
    joint number. It is called in Python, for every refit once, and up to seventeen times more around it to see how far
    its value may be off. `metric` names measures of the pooled held-out
    predictions (`auc`, `accuracy`, `brier`, `mse`, `mae`), kept in `Estimate.metrics`.
    `audit` refits are repeated exactly by another way down, as many as a tenth of the operations pay for, one at least
    (none for 0): `Estimate.audit`. Where one is off by more than was reported, it is flagged, and the others
    that were judged like it are iterated to the end.

    Where plan and fit have labels they are matched by these. Raises `ValueError` where the labels differ, or plan and fit count
    different units.
    """
    plan = _adapted(fit, _matched("cross_validate", fit, plan, refit))
    if int(audit) != audit or audit < 0:
        raise ValueError(f"cross_validate: audit must be a whole number, 0 or more; got {audit}.")
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    if metrics and fit.objective.units.target is None:
        raise ValueError(
            f"cross_validate: metric needs a model with predictions and a target; got {type(fit.objective).__name__}."
        )
    asked, batches = Asked(fit, plan, evaluate), _batches(fit, plan, refit)
    gathered = _Gathered(asked, _baseline(asked, batches), metrics, int(audit))
    own = gathered.empty(refit) if evaluate is None else None  # tolerances are those of the model's own losses
    scale = _scale(fit, plan, refit, batches) if own is None else own.scale if refit.in_standard_errors else 0.0
    score = lambda rows, done: asked.losses(rows, lambda: done.theta, done.scores)
    with closing(_refitted(fit, plan, refit, scale, batches, score)) as refitted:
        for batch in refitted:
            gathered.add(*batch)
    table = gathered.repeat(refit)
    return replace(gathered.estimate(refit), audit=table)


class _Gathered:
    """Batches of refits, put together."""

    def __init__(self, asked: Asked, baseline: NDArray, metrics: tuple[str, ...], audit: int):
        plan, fit = asked.plan, asked.fit
        self.asked, self.baseline, self.metrics, self.audit = asked, baseline, metrics, audit
        self.losses, self.joint = np.full(len(baseline), np.nan), asked.joint
        self.error, self.result = np.full(plan.num_refits, np.inf), np.zeros(plan.num_refits, np.int64)
        self.proved, self.gradients = np.zeros(plan.num_refits, bool), 0.0
        self.predictions = _Predictions(plan) if metrics else None
        self.elsewhere = np.full_like(self.losses, np.nan) if minima.compared(fit) else None
        self.candidates = Candidates(audit) if audit else None
        self.remarks: dict[str, str] = {"copies": copies(fit, plan)}

    def add(self, refits: NDArray, place: NDArray, rows: Rows, done: Refitted, values: NDArray) -> None:
        fit, asked, result = self.asked.fit, self.asked, np.array(done.result)
        seen = np.isfinite(values) | (~rows.held if values.ndim > 1 else False)
        bad = ~(seen.all(1) if values.ndim > 1 else seen)
        result[bad & ~_lost(result)] = RESULTS.nonfinite
        lost = _lost(result)
        gone = _unseen(result) if values.ndim > 1 else lost
        values = np.where(gone.reshape(-1, *[1] * (values.ndim - 1)), np.nan, values)
        _put(self.losses, refits, place, rows, values)
        error = np.where(gone, np.inf, asked.error(rows, done, values))
        self.error[refits] = np.where(np.isfinite(error), error, np.inf)
        self.proved[refits] = (False if done.proved is None else done.proved) & np.isfinite(error) & (asked.evaluate is None)
        self.gradients += done.gradients
        if self.elsewhere is not None:
            lower, there = minima.lower(fit, rows, done.theta, ~lost)
            result[lower & ~lost] = RESULTS.other_minimum
            if lower.any():
                values = asked.losses(rows, lambda: there)
                _put(self.elsewhere, refits[lower], place[lower], _some(rows, lower), values[lower])
        if self.predictions is not None:
            self.predictions.add(fit, rows, done.theta, result, "response", done)
        if self.candidates is not None:
            batch = Pool(refits, np.asarray(done.moved), self.error[refits], self.proved[refits]).take(~lost)
            self.candidates.add(batch, None if fit.predictors is not None else lambda: done.theta[~lost])
        self.result[refits] = result

    def repeat(self, refit: AbstractRefit) -> pd.DataFrame | None:
        """The audit; what it finds is flagged, and the rest of its kind is iterated to the end."""
        if self.candidates is None:
            return None
        number = min(self.audit, affordable(self.gradients))
        chosen = self.candidates.chosen(number)
        table, missed = audited(self.asked, chosen, self.candidates, self.losses, self.error)
        some = f"{len(chosen)} refit{'s' if len(chosen) != 1 else ''}"
        self.remarks["audit"] = f"{some} repeated exactly, {len(missed)} beyond {'its' if len(chosen) == 1 else 'their'} error"
        short = min(self.audit, int(np.sum(~_lost(self.result)))) - len(chosen)
        if short:
            self.remarks["audit"] += f" ({short} more would cost above a tenth of the work)"
        if len(missed):
            alike = ~_lost(self.result) & np.isin(self.proved, self.proved[missed])
            if refit.in_standard_errors:
                self._to_the_end(np.flatnonzero(alike))
                self.remarks["audit"] += f"; all {alike.sum()} judged like these were iterated to the end"
            self.result[missed] = RESULTS.missed
        return table

    def _to_the_end(self, refits: NDArray) -> None:
        fit, some = self.asked.fit, self.asked.plan.some(refits)
        asked, self.candidates, whole = replace(self.asked, plan=some), None, self.asked
        self.asked = asked
        score = lambda rows, done: asked.losses(rows, lambda: done.theta, done.scores)
        own = _Gathered(asked, np.full(len(some.index) if not self.joint else some.num_refits, np.nan), (), 0)
        with closing(_refitted(fit, some, Exact(), 0.0, _batches(fit, some, Exact()), score)) as refitted:
            for batch in refitted:
                own.add(*batch)
        self.asked = whole
        self.error[refits], self.result[refits], self.proved[refits] = own.error, own.result, own.proved
        self.losses[refits if self.joint else np.isin(whole.plan.refit, refits)] = own.losses

    def empty(self, refit: AbstractRefit) -> Estimate:
        fit, plan = self.asked.fit, self.asked.plan
        weight = fit.objective.units.weight
        labels = {"objective": _describe(fit), "refit": repr(refit), "note": fit.objective.note} | self.remarks
        unit_weight = None if weight is None else np.asarray(weight)
        return Estimate(
            self.losses, self.error, self.result, plan, self.baseline, unit_weight, {}, labels, self.proved, self.elsewhere
        )

    def estimate(self, refit: AbstractRefit) -> Estimate:
        mild = [RESULTS.successful, RESULTS.kink, RESULTS.not_converged, RESULTS.other_minimum]
        self.result[np.isin(self.result, mild) & _emptied(self.asked.fit, self.asked.plan)] = RESULTS.emptied
        found = self.empty(refit)
        if self.predictions is None:
            return found
        pooled = self.predictions
        return replace(found, **measure(self.metrics, self.asked.fit, self.asked.plan, pooled.per_unit(), pooled.error()))


@float64
def cross_predict(
    fit: Fit, plan: Plan, refit: AbstractRefit = DEFAULT, kind: Literal["response", "link", "state", "label"] = "response"
) -> NDArray[np.float64]:
    """Each unit's prediction from the refits that leave it out, `[units]` or `[units, outputs]`, averaged over them.

    `kind` is "response" (through the inverse link; for a hidden Markov model, the predictive mean), "link" (the linear
    predictor), "state" (the probabilities of the states, `[units, states]`) or "label" (of a conditional random field, the
    codes of the decoded labels; of sequences `[units, longest]`, −1 behind the end: `crf.join` puts them together). NaN
    where a unit is never held out, or no refit that leaves it out exists.
    """
    plan = _matched("cross_predict", fit, plan, refit)
    if kind not in fit.objective.units.kinds:
        raise ValueError(f"cross_predict: kind must be one of {', '.join(map(repr, fit.objective.units.kinds))}; got {kind!r}.")
    gathered = _Predictions(plan)
    batches = _batches(fit, plan, refit)
    scale = _scale(fit, plan, refit, batches)
    with closing(_refitted(fit, plan, refit, scale, batches, None, judge=False)) as refitted:
        for _, _, rows, done, _ in refitted:
            gathered.add(fit, rows, done.theta, done.result, kind)
    return gathered.per_unit()


@float64
def fold_parameters(fit: Fit, plan: Plan, refit: AbstractRefit = DEFAULT) -> PyTree:
    """The natural parameters of every refit: the fields of `fit.parameters`, with a leading axis `[refits]`."""
    return natural(fit, fold_thetas(fit, plan, refit, "fold_parameters"))


def fold_thetas(fit: Fit, plan: Plan, refit: AbstractRefit, caller: str = "fold_thetas") -> NDArray[np.float64]:
    """The raveled parameters of every refit as they are fitted, `[refits, params]`; NaN where there is none."""
    plan = _matched(caller, fit, plan, refit)
    theta = np.full((plan.num_refits, fit.num_params), np.nan)
    batches = _batches(fit, plan, refit)
    scale = _scale(fit, plan, refit, batches)
    with closing(_refitted(fit, plan, refit, scale, batches, None, judge=False)) as refitted:
        for refits, _, _, done, _ in refitted:
            theta[refits] = np.where(_lost(done.result)[:, None], np.nan, done.theta)
    return theta


def _matched(caller: str, fit: Fit, plan: Plan, refit: AbstractRefit) -> Plan:
    """The plan over the units of the fit, by their labels where both have some; what cannot be cross-validated is refused."""
    if not isinstance(fit, Fit):
        raise TypeError(
            f"{caller}: the first argument must be a Fit, from lo.fit, lo.anchor or lo.from_sklearn; got {type(fit).__name__}."
        )
    if not isinstance(plan, Plan):
        raise TypeError(
            f"{caller}: the second argument must be a Plan, such as lo.leave_one_out(n); got {type(plan).__name__}."
        )
    if plan.num_units != fit.objective.num_units:
        raise ValueError(
            f"{caller}: the plan is for {plan.num_units} units, but the fit has {fit.objective.num_units}; "
            f"make it with {fit.objective.num_units}."
        )
    if not fit.objective.units.repeatable and np.any(plan.weight > 1):
        raise ValueError(
            f"{caller}: the plan has weights above 1, as a bootstrap has, but the units of this "
            f"{type(fit.objective).__name__} depend on one another: a weight of two there is not a second copy. "
            "Use contiguous, blocks or leave_future_out, or resample whole sequences."
        )
    if not isinstance(refit, AbstractRefit):
        raise TypeError(f"{caller}: refit must be a strategy such as lo.Exact(); got {refit!r}.")
    return plan.matched(caller, fit.objective.units.names)


def _adapted(fit: Fit, plan: Plan) -> Plan:
    """The plan with what the model knows of its units: which have a loss, and whether neighbours depend on one another."""
    units = fit.objective.units
    held = plan.held & units.scored(plan.refit, plan.index, plan.weight)
    if not held.any():
        raise ValueError("cross_validate: no held-out unit has an observation; every one that the plan scores is missing.")
    blocks = units.blocks if plan.blocks is None else plan.blocks
    return replace(plan, held=held, serial=plan.serial or units.serial, blocks=blocks, names=units.names)


def _emptied(fit: Fit, plan: Plan) -> NDArray[np.bool_]:
    """Refits that are left less than half an observation of a part of the model that the fit has one of."""
    shares = fit.objective.parameters.shares(fit.theta)
    if shares is None:
        return np.zeros(plan.num_refits, bool)
    change = scipy.sparse.csr_array((plan.weight - 1.0, plan.index, plan.indptr), (plan.num_refits, plan.num_units))
    total = np.asarray(shares).sum(0)
    return np.any((total + change @ shares < ENOUGH) & (total >= 2 * ENOUGH), axis=1)


def _describe(fit: Fit) -> str:
    loss = getattr(fit.objective, "loss_function", None)
    name = f" ({type(loss).__name__})" if isinstance(loss, eqx.Module) else ""
    size = f"{fit.num_params} parameters{fit.of_rank}"
    return f"{type(fit.objective).__name__}{name}, {size}, decrement of the fit {float(fit.decrement):.1e}"


def _lost(result: Any) -> NDArray[np.bool_]:
    """Refits that do not exist, whose losses are therefore none."""
    return np.isin(result, [RESULTS.undetermined, RESULTS.not_converged, RESULTS.nonfinite])


def _unseen(result: Any) -> NDArray[np.bool_]:
    """Refits none of whose held-out units has a loss; of those undetermined the ones that have are `held`."""
    return _lost(result) & (result != RESULTS.undetermined)


Batches = Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[np.int64], Rows]]]


def _batches(fit: Fit, plan: Plan, refit: AbstractRefit) -> Batches:
    """The plan's batches, to be gone through several times; kept where they are small."""
    narrow = fit.factor is None or (is_narrow(fit, 1) and np.diff(plan.indptr).max() == 1)
    wanted = refit.own_hessians or isinstance(fit.objective, AbstractLinearPredictor)
    own = fit.num_params**2 if wanted and not narrow else 0  # an inverse a refit
    dear = work(fit.objective, fit.num_params) * plan.num_refits > SHARED
    least, uniform = _workers(fit) if dear else 1, not fit.objective.local  # there a pass over all units is made anyway
    make = functools.partial(plan.batches, CAPACITY, 4, 4 * fit.num_params + own, least, uniform)

    def batches():
        for refits, place, rows in make():
            yield refits, place, rows._replace(index=aligned(rows.index), weight=aligned(rows.weight), held=aligned(rows.held))

    if len(plan.index) > CAPACITY // 4:
        return batches
    kept = list(batches())
    return lambda: kept


def _refitted(
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit,
    scale: float,
    batches: Batches,
    then: Callable[[Rows, Refitted], NDArray] | None,
    *,
    judge: bool = True,
) -> Generator[tuple[NDArray[np.int64], NDArray[np.int64], Rows, Refitted, Any]]:
    """Every batch of the plan, refitted, and what `then` makes of it; a progress bar where it takes more than two seconds."""

    @float64
    def one(batch):
        refits, place, rows = batch
        rows, done = completed(fit, rows, refit(fit, rows._replace(scale=np.asarray(scale)), judge=judge))
        return refits, place, rows, done, None if then is None else then(rows, done)

    with Slow("refits", plan.num_refits) as bar:
        for done in _side_by_side(fit, one, batches()):
            yield done
            bar.advance(len(done[0]))


def _workers(fit: Fit) -> int:
    """Threads: all cores where a batch keeps one of them busy, as scans do; products of matrices use all by themselves."""
    return 1 if isinstance(fit.objective, AbstractLinearPredictor) else joblib.cpu_count()


def _side_by_side(fit: Fit, run: Callable[[Any], Any], batches: Iterable[Any]) -> Iterator[Any]:
    """`run` of every batch, in order. Of many batches the first goes alone, so that programs are compiled once."""
    workers, batches = _workers(fit), iter(batches)
    if workers == 1:
        yield from map(run, batches)
        return
    some = list(itertools.islice(batches, 2 * workers + 1))
    if len(some) > 2 * workers:
        yield run(some.pop(0))
    with ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque = collections.deque()
        for batch in itertools.chain(some, batches):
            waiting.append(pool.submit(run, batch))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _put(out: NDArray, refits: NDArray, place: NDArray, rows: Rows, values: NDArray) -> None:
    if values.ndim == 1:
        out[refits] = values
    else:
        held = np.flatnonzero(rows.held)
        out[place.ravel()[held]] = values.ravel()[held]


def _some(rows: Rows, refits: NDArray) -> Rows:
    return rows._replace(index=rows.index[refits], weight=rows.weight[refits], held=rows.held[refits])


def _baseline(asked: Asked, batches: Batches) -> NDArray[np.float64]:
    """The losses with no update."""
    fit, plan = asked.fit, asked.plan
    theta = lambda rows: lambda: np.broadcast_to(flat(fit), (len(rows.index), fit.num_params))
    if fit.predictors is not None and asked.evaluate is None:  # one loss a unit, whatever else is left out
        return np.where(plan.held, unit_losses(fit)[plan.index], np.nan)
    if isinstance(fit.objective, AbstractLinearPredictor) and asked.evaluate is None:
        n = plan.num_units
        everything = Rows(np.arange(n)[None], np.ones((1, n)), np.ones((1, n), bool), np.zeros(()), np.asarray(plan.num_refits))
        return np.where(plan.held, scores(fit, everything)[0][plan.index], np.nan)
    baseline = np.full(plan.num_refits if asked.joint else len(plan.index), np.nan)

    @float64
    def one(batch):
        return *batch, asked.losses(batch[2], theta(batch[2]))

    for refits, place, rows, values in _side_by_side(fit, one, batches()):
        _put(baseline, refits, place, rows, values)
    return baseline


def _scale(fit: Fit, plan: Plan, refit: AbstractRefit, batches: Batches) -> float:
    """The naive standard error of the no-update mean, where the strategy's tolerance is stated in it."""
    if not refit.in_standard_errors:
        return 0.0
    asked = Asked(fit, plan, None)
    return _Gathered(asked, _baseline(asked, batches), (), 0).empty(refit).scale


class _Predictions:
    """Held-out predictions, and how far they may be off, summed by unit as batches come in."""

    def __init__(self, plan: Plan):
        self.plan, self.times = plan, np.zeros(plan.num_units)
        self.total = self.off = np.zeros(0)

    def add(self, fit: Fit, rows: Rows, theta: NDArray, result: NDArray, kind: str, done: Refitted | None = None) -> None:
        """A batch at θ; with `done`, how far its predictions may be off as well."""
        values = predictions(fit, rows, theta, kind)
        if not self.total.size:
            self.total = np.zeros((self.plan.num_units, *values.shape[2:]))
            self.off = np.zeros_like(self.total)
        keep = rows.held & ~_unseen(result)[:, None] & np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        np.add.at(self.total, rows.index[keep], values[keep])
        np.add.at(self.times, rows.index[keep], 1.0)
        if done is not None:
            off = reach(fit, done, values, lambda theta: predictions(fit, rows, theta, kind))
            np.add.at(self.off, rows.index[keep], off[keep])

    def per_unit(self) -> NDArray[np.float64]:
        return self._mean(self.total)

    def error(self) -> NDArray[np.float64]:
        """Of each unit's, at most."""
        return self._mean(self.off)

    def _mean(self, total: NDArray) -> NDArray[np.float64]:
        times = self.times.reshape(-1, *[1] * (total.ndim - 1))
        return np.where(times > 0, total / np.maximum(times, 1), np.nan)
