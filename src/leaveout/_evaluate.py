"""The verb: plan → refit → score, in batches of bounded memory."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from . import _minima as minima
from ._asked import Asked, Evaluate, Named, Scored, natural, predictions, reach, scores
from ._audit import Candidates, affordable, audited
from ._estimate import Estimate
from ._fit import Fit
from ._functions import listed, weights_of, work
from ._jax import PyTree, float64
from ._metrics import Metric, measure
from ._objective import AbstractLinearPredictor, AbstractObjective, aligned, called
from ._plan import CAPACITY, Batch, Plan, Rows
from ._progress import Slow
from ._results import RESULTS, among
from ._runs import Runs
from ._starts import cores
from .refit import AbstractRefit, Certified, Exact, Refitted, completed, expandable, is_narrow
from .refit._linear import copies, unit_losses

SHARED = 1e7  # operations of one gradient of every refit, from which cores share them
SINGLE = 40  # numbers that a refit of one row takes, which forms no parameters
LARGEST_KEPT = 2**25 - 2**14  # bytes: the most that moves the C library's threshold
LEAST = 0.5  # observations of a part of the model that a refit must be left
LOST = (RESULTS.undetermined, RESULTS.not_converged, RESULTS.nonfinite)  # refits that do not exist
UNSEEN = LOST[1:]  # those none of whose units has a loss; of undetermined ones the units that have are `held`
MILD = (
    RESULTS.successful,
    RESULTS.kink,
    RESULTS.not_converged,
    RESULTS.other_minimum,
    RESULTS.leaving,
)  # that an emptied refit may hide behind
DEFAULT = Certified()

Made = TypeVar("Made")
Take = Callable[[Batch, Refitted, NDArray], None]
Losses = Callable[[Rows, Refitted], NDArray]


@float64
def cross_validate(
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit = DEFAULT,
    *,
    evaluate: Evaluate | Named | None = None,
    metric: Metric | Sequence[Metric] = (),
    audit: int = 5,
) -> Estimate:
    """The held-out loss of every unit that `plan` scores, each refit by `refit` (default `Certified()`).

    `evaluate(held, seen, parameters)` replaces the objective's own score: it is given the numbers of the held
    and of the seen units and the natural parameters of one refit, and returns one loss a held unit, or one
    joint number. It is called in Python, for every refit once, and up to seventeen times more around it to see how far
    its value may be off. By name it is a score of every held-out unit: "log_density" (normalised, of discrete responses
    −log of a probability), "squared_error", "absolute_error", "zero_one" or "crps", each where the model has it; scores of one
    name compare models of other losses. `metric` names measures of the pooled held-out
    predictions (`auc`, `accuracy`, `brier`, `mse`, `mae`), kept in `Estimate.metrics`.
    `audit` refits are repeated exactly by another way down, as many as a tenth of the operations pay for, one at least
    (none for 0): `Estimate.audit`. Where one is off by more than was reported, it is flagged, and the others
    that were judged like it are iterated to the end.

    Where plan and fit have labels they are matched by these. Raises `ValueError` where the labels differ, or plan and fit count
    different units.
    """
    plan = adapted("cross_validate", _objective("cross_validate", fit), plan, refit)
    if int(audit) != audit or audit < 0:
        raise ValueError(f"cross_validate: audit must be a whole number, 0 or more; got {audit}.")
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    if metrics and fit.objective.units.target is None:
        raise ValueError(
            f"cross_validate: metric needs a model with predictions and a target; got {type(fit.objective).__name__}."
        )
    pooled = _Predictions(plan, "response", judged=True) if metrics else None
    gathered = walked(Asked(fit, plan, _wanted(fit, evaluate)), refit, int(audit), pooled)
    if evaluate is not None and refit.in_standard_errors:
        gathered.sharpened()
    return gathered.estimate(metrics, improve=refit.in_standard_errors)


def _wanted(fit: Fit, evaluate: Evaluate | Named | None) -> Evaluate | Scored | None:
    if not isinstance(evaluate, str):
        return evaluate
    from ._scores import scored

    return scored(fit, evaluate)


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
    plan = _matched("cross_predict", _objective("cross_predict", fit), plan, refit)
    if kind not in fit.objective.units.kinds:
        raise ValueError(f"cross_predict: kind must be one of {', '.join(map(repr, fit.objective.units.kinds))}; got {kind!r}.")
    pooled = _Predictions(plan, kind, judged=False)
    _Walk(fit, plan, refit).refits(lambda batch, done, _: pooled.add(fit, batch.rows, done, done.result))
    return pooled.per_unit()[0]


@float64
def fold_parameters(fit: Fit, plan: Plan, refit: AbstractRefit = DEFAULT) -> PyTree:
    """The natural parameters of every refit: the fields of `fit.parameters`, with a leading axis `[refits]`."""
    return natural(fit, fold_thetas(fit, plan, refit, "fold_parameters"))


def fold_thetas(fit: Fit, plan: Plan, refit: AbstractRefit, caller: str) -> NDArray[np.float64]:
    """The raveled parameters of every refit as they are fitted, `[refits, params]`; NaN where there is none."""
    plan = _matched(caller, _objective(caller, fit), plan, refit)
    theta = np.full((plan.num_refits, fit.num_params), np.nan)

    def take(batch, done, _):
        theta[batch.refits] = np.where(among(done.result, LOST)[:, None], np.nan, done.theta)

    _Walk(fit, plan, refit).refits(take)
    return theta


def over_refits(fit: Fit, plan: Plan, refit: AbstractRefit, take: Callable[[Batch, Refitted], None]) -> None:
    """`take(batch, done)` of every batch of refits, whose errors are judged."""
    keep_freed()
    _Walk(fit, plan, refit).refits(lambda batch, done, _: take(batch, done), lambda rows, done: done.error)


@functools.cache
def keep_freed() -> None:
    """A block of 32 MiB that nobody touches, freed: from then on the C library keeps as much freed memory. Otherwise it gives
    back what exceeds twice the largest block that was freed before, and each step of a first call fetches it again: 155,000
    page faults for 1,000 groups of 20,000 rows, now 4,000."""
    np.empty(LARGEST_KEPT, np.uint8)


def walked(asked: Asked, refit: AbstractRefit, audit: int, pooled: "_Predictions | None" = None, times: int = 1) -> "Gathered":
    """Every refit of a plan, gathered; `times` as many such plans share what may be spent on one."""
    keep_freed()
    walk = _Walk(asked.fit, asked.plan, refit, times, formed=asked.evaluate is not None or pooled is not None)
    nothing = blank(asked, refit, walk.baseline(asked))
    gathered = Gathered(asked, nothing, audit, pooled)
    walk.refits(gathered.add, asked.losses_of, nothing if asked.evaluate is None else None)  # tolerances are of own losses
    return gathered


def _objective(caller: str, fit: Fit) -> AbstractObjective:
    """What was fitted; TypeError on what is no fit."""
    if not isinstance(fit, Fit):
        raise TypeError(
            f"{caller}: the first argument must be a Fit, from lo.fit, lo.anchor or lo.from_sklearn; got {type(fit).__name__}."
        )
    return fit.objective


def _matched(caller: str, objective: AbstractObjective, plan: Plan, refit: AbstractRefit) -> Plan:
    """The plan over the units, by their labels where both have some; what cannot be cross-validated is refused."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"{caller}: the second argument must be a Plan, such as lo.leave_one_out(n); got {type(plan).__name__}."
        )
    count, units = objective.num_units, objective.units
    if plan.num_units != count:
        raise ValueError(f"{caller}: the plan is for {plan.num_units} units, but the fit has {count}; make it with {count}.")
    if not units.repeatable and np.any(plan.weight > 1):
        raise ValueError(
            f"{caller}: the plan has weights above 1, as a bootstrap has, but the units of this "
            f"{type(objective).__name__} depend on one another: a weight of two there is not a second copy. "
            "Use contiguous, blocks or leave_future_out, or resample whole sequences."
        )
    if not isinstance(refit, AbstractRefit):
        raise TypeError(f"{caller}: refit must be a strategy such as lo.Exact(); got {refit!r}.")
    return plan.matched(caller, units.names)


def adapted(caller: str, objective: AbstractObjective, plan: Plan, refit: AbstractRefit) -> Plan:
    """The plan with what the model knows of its units: labels, which have a loss, and whether neighbours depend on one
    another."""
    plan, units = _matched(caller, objective, plan, refit), objective.units
    held = plan.held & units.scored(plan.refit, plan.index, plan.weight)
    if not held.any():
        raise ValueError(f"{caller}: no held-out unit has an observation; every one that the plan scores is missing.")
    blocks = units.blocks if plan.blocks is None else plan.blocks
    return plan.known(held=held, serial=plan.serial or units.serial, blocks=blocks, names=units.names)


class _Walk:
    """The batches of a plan, and what is made of each: side by side on the cores there are, and taken in order. Where no
    parameters are to be `formed`, batches of single rows are large."""

    def __init__(self, fit: Fit, plan: Plan, refit: AbstractRefit, times: int = 1, *, formed: bool = True):
        self.fit, self.plan, self.refit, self.times, self.formed = fit, plan, refit, times, formed
        linear = isinstance(fit.objective, AbstractLinearPredictor)
        self.workers = 1 if linear else cores()  # products of matrices use all cores by themselves
        self.whole, self.runs = self._together()
        self.kept = list(self._made()) if len(plan.index) <= CAPACITY // 4 else None

    def _together(self) -> tuple[Batch | None, Runs | None]:
        """All refits as one batch, where these are without a short run of units each."""
        fit, plan = self.fit, self.plan
        if fit.objective.costs.runs is None or plan.weight.any():
            return None, None
        if plan.num_refits * int(np.diff(plan.indptr).max()) > 2 * len(plan.index) + CAPACITY:
            return None, None
        (batch,) = plan.batches(plan.num_refits * plan.num_units + 1, 1, 0, uniform=True)
        found = expandable(fit, batch.rows)
        return (batch, found) if found is not None else (None, None)

    def _made(self) -> Iterator[Batch]:
        fit, plan = self.fit, self.plan
        if self.whole is not None and self.refit.together:
            yield self.whole
            return
        narrow = fit.factor is None or (is_narrow(fit, 1) and np.diff(plan.indptr).max() == 1)
        wanted = self.refit.own_hessians or isinstance(fit.objective, AbstractLinearPredictor)
        own = fit.num_params**2 if wanted and not narrow else 0  # an inverse a refit
        least = self.workers if work(fit.objective, fit.num_params) * plan.num_refits > SHARED else 1
        uniform = not fit.objective.local  # there a pass over all units is made anyway
        model = fit.predictors if narrow and not self.formed else None
        each = 4 * fit.num_params + own if model is None else SINGLE * model.design.outputs
        for batch in plan.batches(CAPACITY, 4, each, least, uniform, listed(fit.objective)):
            if fit.predictors is not None:
                yield batch
                continue
            index, weight, held = map(aligned, batch.rows[:3])
            yield batch._replace(rows=batch.rows._replace(index=index, weight=weight, held=held))

    def batches(self) -> Iterable[Batch]:
        """To be gone through several times; kept where they are small."""
        return self._made() if self.kept is None else self.kept

    def over(self, run: Callable[[Batch], Made], take: Callable[[Made], None]) -> None:
        """`take(run(batch))` of every batch. Of many the first goes alone, so that programs are compiled once."""
        run, batches = float64(run), iter(self.batches())
        if self.workers == 1:
            for batch in batches:
                take(run(batch))
            return
        some = list(itertools.islice(batches, 2 * self.workers + 1))
        if len(some) > 2 * self.workers:
            take(run(some.pop(0)))
        with ThreadPoolExecutor(self.workers) as pool:
            waiting: collections.deque = collections.deque()
            for batch in itertools.chain(some, batches):
                waiting.append(pool.submit(run, batch))
                if len(waiting) > self.workers:
                    take(waiting.popleft().result())
            while waiting:
                take(waiting.popleft().result())

    def refits(self, take: Take, losses: Losses | None = None, known: Estimate | None = None) -> None:
        """Every batch refitted, and if `losses` are asked for these, judged; a progress bar where it takes long. `known` has
        the losses with no update, where these are at hand."""
        scale, number = np.asarray(self._scale(known)), np.asarray(self.times * self.plan.num_refits)

        def run(batch):
            rows = batch.rows._replace(scale=scale, num_refits=number)
            done = self.refit(self.fit, rows, judge=losses is not None)
            rows, done = completed(self.fit, batch.rows, done)
            return batch._replace(rows=rows), done, None if losses is None else losses(rows, done)

        def taken(found):
            take(*found)
            bar.advance(len(found[0].refits))

        with Slow("refits", self.plan.num_refits) as bar:
            self.over(run, taken)

    def baseline(self, asked: Asked) -> NDArray[np.float64]:
        """The losses with no update."""
        fit, plan = self.fit, self.plan
        if isinstance(fit.objective, AbstractLinearPredictor) and asked.evaluate is None:
            every = Rows.of_all(plan.num_units, plan.num_refits)  # one loss a unit, whatever else is left out
            each = scores(fit, every, fit.vector[None])[0] if fit.predictors is None else unit_losses(fit)
            return np.where(plan.held, each[plan.index], np.nan)
        baseline = np.full(plan.num_refits if asked.joint else len(plan.index), np.nan)
        if self.whole is not None and self.runs is not None and asked.evaluate is None:
            losses, _ = self.runs.scores(fit.vector)
            _put(baseline, self.whole, self.runs.shaped(self.runs.scored(losses, self.whole.rows)))
            return baseline
        theta = lambda batch: np.broadcast_to(fit.vector, (len(batch.refits), fit.num_params))
        self.over(lambda batch: (batch, asked.losses(batch.rows, theta(batch))), lambda found: _put(baseline, *found))
        return baseline

    def _scale(self, known: Estimate | None) -> float:
        """The naive standard error of the no-update mean, where it is at hand or the strategy's tolerance is stated in it."""
        if known is not None:
            return known.scale
        if not self.refit.in_standard_errors:
            return 0.0
        own = Asked(self.fit, self.plan, None)
        return blank(own, self.refit, self.baseline(own)).scale


def _put(out: NDArray, batch: Batch, values: NDArray) -> None:
    """Losses of a batch to where they belong."""
    if values.ndim == 1:
        out[batch.refits] = values
    else:
        out[batch.place[batch.rows.held]] = values[batch.rows.held]


def blank(asked: Asked, refit: AbstractRefit, baseline: NDArray[np.float64]) -> Estimate:
    """An estimate of which the losses with no update are known only."""
    fit, count = asked.fit, asked.plan.num_refits
    weight = fit.objective.units.weight
    size = f"{fit.num_params} parameters{fit.of_rank}"
    what = f"{called(fit.objective)}, {size}, decrement of the fit {float(fit.decrement):.1e}"
    return Estimate(
        losses=np.full_like(baseline, np.nan),
        error=np.full(count, np.inf),
        result=np.zeros(count, np.int64),
        plan=asked.plan,
        baseline=baseline,
        unit_weight=None if weight is None else np.asarray(weight),
        score=asked.title,
        response=_response(fit),
        classes=fit.objective.units.classes > 0,
        labels={"objective": what, "refit": repr(refit), "note": fit.objective.note},
        proved=np.zeros(count, bool),
        elsewhere=np.full_like(baseline, np.nan) if minima.compared(fit) else None,
    )


def _response(fit: Fit) -> NDArray | None:
    units = fit.objective.units
    found = units.target if units.response is None else units.response
    return None if found is None else np.asarray(found)


class Gathered:
    """Batches of refits, put together: the arrays of an estimate are filled as they come."""

    def __init__(self, asked: Asked, blank: Estimate, audit: int = 0, pooled: "_Predictions | None" = None):
        self.asked, self.found, self.pooled = asked, blank, pooled
        self.candidates, self.gradients = Candidates(blank, audit), 0.0

    def add(self, batch: Batch, done: Refitted, values: NDArray) -> None:
        asked, found, rows = self.asked, self.found, batch.rows
        result, pointwise = np.array(done.result), values.ndim > 1
        bad = (~np.isfinite(values) & rows.held).any(1) if pointwise else ~np.isfinite(values)
        result[bad & ~among(result, LOST)] = RESULTS.nonfinite
        exists = ~among(result, LOST)
        told = ~among(result, UNSEEN) if pointwise else exists
        values = np.array(values)
        values[~told] = np.nan
        _put(found.losses, batch, values)
        error = asked.error(rows, done, values)
        known = told & np.isfinite(error)
        found.error[batch.refits] = np.where(known, error, np.inf)
        found.proved[batch.refits] = known & (False if done.proved is None or asked.evaluate is not None else done.proved)
        if found.elsewhere is not None:
            result[self._compared(batch, done.theta, exists)] = RESULTS.other_minimum
        leaving = asked.fit.objective.parameters.leaving
        if leaving is not None:
            at, weights = np.where(exists[:, None], done.theta, asked.fit.vector), weights_of(rows, asked.plan.num_units)
            result[exists & leaving(asked.fit.objective, asked.fit.theta, at, weights)] = RESULTS.leaving
        found.result[batch.refits] = result
        if self.pooled is not None:
            self.pooled.add(asked.fit, rows, done, result)
        self.gradients += done.gradients
        single = asked.fit.predictors is not None and rows.index.shape[1] == 1  # no θ of theirs is formed
        theta = None if single else lambda: done.theta[exists]
        self.candidates.add(batch.refits[exists], np.asarray(done.moved)[exists], theta)

    def _compared(self, batch: Batch, theta: NDArray, exists: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which refits have a lower minimum elsewhere; their losses there are kept."""
        lower, there = minima.lower(self.asked.fit, batch.rows, theta, exists)
        if lower.any():
            assert self.found.elsewhere is not None
            _put(self.found.elsewhere, batch.take(lower), self.asked.losses(batch.rows, there)[lower])
        return lower

    def estimate(self, metrics: Sequence[str], improve: bool) -> Estimate:
        """All that came, and what an audit finds; if it finds a miss, refits of its kind are to be `improved`."""
        fit, plan = self.asked.fit, self.asked.plan
        table, said = self._audited(improve) if self.candidates.number else (None, "")
        found = self.ended(table, said, copies(fit, plan))
        if self.pooled is None:
            return found
        value, se, error = measure(metrics, fit, plan, *self.pooled.per_unit())
        return replace(found, metrics=value, metric_se=se, metric_error=error)

    def ended(self, table: pd.DataFrame | None, audit: str, copied: str) -> Estimate:
        """All that came, with an audit and what is said of it."""
        fit, plan, found = self.asked.fit, self.asked.plan, self.found
        found.result[among(found.result, MILD) & _emptied(fit, plan)] = RESULTS.emptied
        return replace(found, audit=table, labels=found.labels | {"audit": audit, "copies": copied})

    def _audited(self, improve: bool) -> tuple[pd.DataFrame, str]:
        """The audit, and a sentence on it; what it finds is flagged, and the rest of its kind is iterated to the end."""
        found, candidates = self.found, self.candidates
        chosen = candidates.chosen(affordable(self.gradients))
        table = audited(self.asked, found, chosen, candidates.start)
        missed = table.refit.to_numpy(int)[table.beyond.to_numpy(bool)]
        its, count = ("its" if len(chosen) == 1 else "their"), f"{len(chosen)} refit{'s' if len(chosen) != 1 else ''}"
        said = f"{count} repeated exactly, {len(missed)} beyond {its} error"
        short = min(candidates.number, int(candidates.exists.sum())) - len(chosen)
        if short:
            said += f" ({short} more would cost above a tenth of the work)"
        if len(missed) and improve:
            alike = ~among(found.result, LOST) & np.isin(found.proved, found.proved[missed])
            self._to_the_end(np.flatnonzero(alike))
            said += f"; all {alike.sum()} judged like these were iterated to the end"
        found.result[missed] = RESULTS.missed
        return table, said

    def sharpened(self) -> None:
        """Refits that are close enough for the model's own loss, but not for the one asked for, are iterated to the end."""
        wide = self.found.flagged()
        self._to_the_end(wide[~among(self.found.result[wide], LOST)])

    def _to_the_end(self, refits: NDArray[np.int64]) -> None:
        if refits.size:
            settled(self.found, some_of(self.asked, Exact(), refits, self.found), refits)


def some_of(asked: Asked, refit: AbstractRefit, refits: NDArray[np.int64], known: Estimate, times: int = 1) -> Estimate:
    """Some refits of a plan, by tolerances of all of it; `known` has the losses with no update."""
    some = replace(asked, plan=asked.plan.some(refits))
    at = refits if asked.joint else np.isin(asked.plan.refit, refits)
    own = Gathered(some, blank(some, refit, known.baseline[at]))
    _Walk(asked.fit, some.plan, refit, times).refits(own.add, some.losses_of, known)
    return own.found


def settled(found: Estimate, some: Estimate, refits: NDArray[np.int64]) -> None:
    """An estimate with some of its refits as they came out by themselves."""
    found.losses[refits if found.joint else np.isin(found.plan.refit, refits)] = some.losses
    for name in ("error", "result", "proved"):
        getattr(found, name)[refits] = getattr(some, name)


def _emptied(fit: Fit, plan: Plan) -> NDArray[np.bool_]:
    """Refits that are left less than half an observation of a part of the model that the fit has one of."""
    shares = fit.objective.parameters.shares(fit.theta)
    if shares is None:
        return np.zeros(plan.num_refits, bool)
    change = scipy.sparse.csr_array((plan.weight - 1.0, plan.index, plan.indptr), (plan.num_refits, plan.num_units))
    total = np.asarray(shares).sum(0)
    return np.any((total + change @ shares < LEAST) & (total >= 2 * LEAST), axis=1)


class _Predictions:
    """Held-out predictions of a kind, and if they are `judged` how far they may be off, summed by unit as batches come in."""

    def __init__(self, plan: Plan, kind: str, *, judged: bool):
        self.kind, self.judged, self.times = kind, judged, np.zeros(plan.num_units)
        self.total = self.off = np.zeros(0)

    def add(self, fit: Fit, rows: Rows, done: Refitted, result: NDArray[np.int64]) -> None:
        at = lambda theta: predictions(fit, rows, theta, self.kind)
        values = at(done.theta)
        if not self.total.size:
            self.total, self.off = np.zeros((2, len(self.times), *values.shape[2:]))
        keep = rows.held & ~among(result, UNSEEN)[:, None] & np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        np.add.at(self.total, rows.index[keep], values[keep])
        np.add.at(self.times, rows.index[keep], 1.0)
        if self.judged:
            np.add.at(self.off, rows.index[keep], reach(fit, done, values, at)[keep])

    def per_unit(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Each unit's mean over its refits, and how far that may be off at most; NaN where there is none."""
        times = np.where(self.times > 0, self.times, np.nan).reshape(-1, *[1] * (self.total.ndim - 1))
        return self.total / times, self.off / times
