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
import jax
import jax.numpy as jnp
import joblib
import numpy as np
import scipy.sparse
from jaxtyping import Array, PyTree
from numpy.typing import NDArray

from . import _certificate as certificate
from . import _minima as minima
from ._curvature import fold_weights, is_narrow
from ._estimate import Estimate
from ._fit import Fit
from ._metrics import Metric, measure
from ._objective import AbstractLinearPredictor, aligned, float64, unravel
from ._plan import Plan, Rows
from ._progress import Slow
from ._refit import AbstractRefit, Certified, Refitted
from ._results import RESULTS
from ._undetermined import completed

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
    evaluate: Callable[[NDArray[np.int64], NDArray[np.int64], PyTree], Any] | None = None,
    metric: Metric | Sequence[Metric] = (),
) -> Estimate:
    """The held-out loss of every unit that `plan` scores, each refit by `refit` (default `Certified()`).

    `evaluate(held, seen, parameters)` replaces the objective's own score: it is given the numbers of the held
    and of the seen units and the natural parameters of one refit, and returns one loss a held unit, or one
    joint number; it is called once a refit, in Python. `metric` names measures of the pooled held-out
    predictions (`auc`, `accuracy`, `brier`, `mse`, `mae`), kept in `Estimate.metrics`.

    Raises `ValueError` where plan and fit count different units.
    """
    _check("cross_validate", fit, plan, refit)
    plan = _adapted(fit, plan)
    weight = fit.objective.unit_weight
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    if metrics and fit.objective.target is None:
        raise ValueError(
            f"cross_validate: metric needs a model with predictions and a target; got {type(fit.objective).__name__}."
        )
    batches = _batches(fit, plan, refit)
    entries = len(plan.index) if evaluate is not None or fit.objective.pointwise else plan.num_refits
    baseline, losses = np.full(entries, np.nan), np.full(entries, np.nan)

    if evaluate is None:
        baseline = _baseline(fit, plan, batches)
    else:
        joint = np.ndim(_evaluated(evaluate, fit, plan, 0, np.asarray(_flat(fit)))) == 0
        if joint:
            baseline, losses = np.full(plan.num_refits, np.nan), np.full(plan.num_refits, np.nan)
        for k in range(plan.num_refits):
            _put_one(baseline, plan, k, _evaluated(evaluate, fit, plan, k, np.asarray(_flat(fit))), joint)
    unit_weight = None if weight is None else np.asarray(weight)
    labels = {"objective": _describe(fit), "refit": repr(refit), "note": fit.objective.note}
    empty = Estimate(
        losses, np.full(plan.num_refits, np.nan), np.zeros(plan.num_refits, np.int64), plan, baseline, unit_weight, {}, labels
    )
    error, result = empty.error, empty.result
    predictions = _Predictions(plan) if metrics else None
    elsewhere = np.full_like(losses, np.nan) if minima.compared(fit) else None
    scale = empty.scale if refit.in_standard_errors else 0.0
    own = lambda rows, done: _scores(fit, rows, done.theta) if done.scores is None else done.scores
    then = own if evaluate is None else None
    with closing(_refitted(fit, plan, refit, scale, batches, then)) as refitted:
        for refits, place, rows, done, values in refitted:
            error[refits], result[refits] = done.error, done.result
            if evaluate is None:
                bad = ~(np.isfinite(values) | ~rows.held).all(1) if values.ndim > 1 else ~np.isfinite(values)
                result[refits[bad & (done.result == RESULTS.successful)]] = RESULTS.nonfinite
                lost = _lost(result[refits]) if values.ndim == 1 else _unseen(result[refits])
                if lost.any():
                    values = np.where(lost.reshape(-1, *[1] * (values.ndim - 1)), np.nan, values)
                _put(losses, refits, place, rows, values)
            else:
                for k, theta in zip(refits, done.theta, strict=True):
                    value = _evaluated(evaluate, fit, plan, k, theta)
                    _put_one(losses, plan, k, np.where(_lost(result[k]), np.nan, value), joint)
            if elsewhere is not None:
                lower, there = minima.lower(fit, rows, done.theta, ~_lost(result[refits]))
                result[refits[lower & (result[refits] < RESULTS.not_converged)]] = RESULTS.other_minimum
                if evaluate is None and lower.any():
                    _put(elsewhere, refits[lower], place[lower], _some(rows, lower), _scores(fit, rows, there)[lower])
                for k, theta in zip(refits[lower], there[lower], strict=True) if evaluate is not None else ():
                    _put_one(elsewhere, plan, k, _evaluated(evaluate, fit, plan, k, theta), joint)
            if predictions is not None:
                predictions.add(place, rows, _predictions(fit, rows, done.theta, "response"), result[refits])
    error[~np.isfinite(error)] = np.inf
    mild = [RESULTS.successful, RESULTS.not_converged, RESULTS.other_minimum]
    result[np.isin(result, mild) & _emptied(fit, plan)] = RESULTS.emptied
    measured = {} if predictions is None else measure(metrics, fit, plan, predictions.per_unit())
    return replace(empty, metrics=measured, elsewhere=elsewhere)


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
    _check("cross_predict", fit, plan, refit)
    if kind not in fit.objective.kinds:
        raise ValueError(f"cross_predict: kind must be one of {', '.join(map(repr, fit.objective.kinds))}; got {kind!r}.")
    gathered = _Predictions(plan)
    batches = _batches(fit, plan, refit)
    scale = _scale(fit, plan, refit, batches)
    then = lambda rows, done: _predictions(fit, rows, done.theta, kind)
    with closing(_refitted(fit, plan, refit, scale, batches, then, judge=False)) as refitted:
        for _, place, rows, done, values in refitted:
            gathered.add(place, rows, values, done.result)
    return gathered.per_unit()


@float64
def fold_parameters(fit: Fit, plan: Plan, refit: AbstractRefit = DEFAULT) -> PyTree:
    """The natural parameters of every refit: the fields of `fit.parameters`, with a leading axis `[refits]`."""
    return jax.tree.map(np.asarray, _natural_batch(fit, fold_thetas(fit, plan, refit, "fold_parameters")))


def fold_thetas(fit: Fit, plan: Plan, refit: AbstractRefit, caller: str = "fold_thetas") -> NDArray[np.float64]:
    """The raveled parameters of every refit as they are fitted, `[refits, params]`; NaN where there is none."""
    _check(caller, fit, plan, refit)
    theta = np.full((plan.num_refits, fit.num_params), np.nan)
    batches = _batches(fit, plan, refit)
    scale = _scale(fit, plan, refit, batches)
    with closing(_refitted(fit, plan, refit, scale, batches, None, judge=False)) as refitted:
        for refits, _, _, done, _ in refitted:
            theta[refits] = np.where(_lost(done.result)[:, None], np.nan, done.theta)
    return theta


def _check(caller: str, fit: Fit, plan: Plan, refit: AbstractRefit) -> None:
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
    if not fit.objective.repeatable and np.any(plan.weight > 1):
        raise ValueError(
            f"{caller}: the plan has weights above 1, as a bootstrap has, but the units of this "
            f"{type(fit.objective).__name__} depend on one another: a weight of two there is not a second copy. "
            "Use contiguous, blocks or leave_future_out, or resample whole sequences."
        )
    if not isinstance(refit, AbstractRefit):
        raise TypeError(f"{caller}: refit must be a strategy such as lo.Exact(); got {refit!r}.")


def _adapted(fit: Fit, plan: Plan) -> Plan:
    """The plan with what the model knows of its units: which have a loss, and whether neighbours depend on one another."""
    held = plan.held & fit.objective.scorable(plan.refit, plan.index, plan.weight)
    if not held.any():
        raise ValueError("cross_validate: no held-out unit has an observation; every one that the plan scores is missing.")
    blocks = fit.objective.blocks if plan.blocks is None else plan.blocks
    return replace(plan, held=held, serial=plan.serial or fit.objective.serial, blocks=blocks)


def _emptied(fit: Fit, plan: Plan) -> NDArray[np.bool_]:
    """Refits that are left less than half an observation of a part of the model that the fit has one of."""
    shares = fit.objective.shares(fit.theta)
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


def _chunk(fit: Fit, rows: Rows) -> int:
    """Refits scored at once: linear predictors need their own units only."""
    count, width = rows.index.shape
    if isinstance(fit.objective, AbstractLinearPredictor):  # whose rows are gathered, unless they are all
        return count if width == fit.objective.num_units else min(count, max(1, CAPACITY // (width * fit.num_params)))
    return certificate.own_passes(fit, rows)


Batches = Callable[[], Iterable[tuple[NDArray[np.int64], NDArray[np.int64], Rows]]]


def _batches(fit: Fit, plan: Plan, refit: AbstractRefit) -> Batches:
    """The plan's batches, to be gone through several times; kept where they are small."""
    narrow = fit.factor is None or (is_narrow(fit, 1) and np.diff(plan.indptr).max() == 1)
    wanted = refit.own_hessians or isinstance(fit.objective, AbstractLinearPredictor)
    own = fit.num_params**2 if wanted and not narrow else 0  # an inverse a refit
    dear = certificate.work(fit) * plan.num_refits > SHARED
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
    some = list(itertools.islice(batches, 2 * workers + 1))
    if workers == 1 or len(some) > 2 * workers:
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


def _put_one(out: NDArray, plan: Plan, k: int, value: NDArray, joint: bool) -> None:
    if joint:
        out[k] = value
    else:
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        out[mine][plan.held[mine]] = value


@eqx.filter_jit
def _flat(fit: Fit) -> Array:
    return certificate.parameters(fit, jnp.zeros(fit.num_params))


@eqx.filter_jit
def _score_rows(fit: Fit, rows: Rows, theta: Array, chunk: int) -> Array:
    def one(args):
        index, weight, held, theta = args
        weights = fold_weights(fit, index, weight)
        return fit.objective.score(unravel(theta, fit.theta), weights, index, held.astype(float))

    return jax.lax.map(one, (rows.index, rows.weight, rows.held, theta), batch_size=chunk)


def _scores(fit: Fit, rows: Rows, theta: NDArray | None = None) -> NDArray[np.float64]:
    """Scores of a batch, at θ̂ by default."""
    if theta is None:
        theta = np.broadcast_to(np.asarray(_flat(fit)), (len(rows.index), fit.num_params))
    return np.asarray(_score_rows(fit, rows, theta, _chunk(fit, rows)))


def _baseline(fit: Fit, plan: Plan, batches: Batches) -> NDArray[np.float64]:
    """The losses with no update."""
    if isinstance(fit.objective, AbstractLinearPredictor):  # independent units: one loss each, whatever else is left out
        n = plan.num_units
        everything = Rows(np.arange(n)[None], np.ones((1, n)), np.ones((1, n), bool), np.zeros(()), np.asarray(plan.num_refits))
        return np.where(plan.held, _scores(fit, everything)[0][plan.index], np.nan)
    baseline = np.full(len(plan.index) if fit.objective.pointwise else plan.num_refits, np.nan)

    @float64
    def one(batch):
        return *batch, _scores(fit, batch[2])

    for refits, place, rows, values in _side_by_side(fit, one, batches()):
        _put(baseline, refits, place, rows, values)
    return baseline


def _scale(fit: Fit, plan: Plan, refit: AbstractRefit, batches: Batches) -> float:
    """The naive standard error of the no-update mean, where the strategy's tolerance is stated in it."""
    if not refit.in_standard_errors:
        return 0.0
    baseline, none = _baseline(fit, plan, batches), np.zeros(plan.num_refits)
    weight = fit.objective.unit_weight
    return Estimate(baseline, none, none.astype(int), plan, baseline, None if weight is None else np.asarray(weight)).scale


def _evaluated(evaluate: Callable, fit: Fit, plan: Plan, k: int, theta: NDArray) -> NDArray:
    mine = slice(plan.indptr[k], plan.indptr[k + 1])
    held = plan.index[mine][plan.held[mine]]
    weights = np.ones(plan.num_units)
    weights[plan.index[mine]] = plan.weight[mine]
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf)[0], _natural_batch(fit, theta[None]))
    value = np.asarray(evaluate(held, np.flatnonzero(weights > 0), parameters), np.float64)
    if value.shape not in ((), (len(held),)):
        raise ValueError(f"evaluate must return one loss a held unit, shape ({len(held)},), or one number; got {value.shape}.")
    return value


@eqx.filter_jit
def _natural_batch(fit: Fit, theta: Array) -> PyTree:
    return jax.vmap(lambda v: fit.objective.natural(unravel(v, fit.theta)))(theta)


@eqx.filter_jit
def _predict_rows(fit: Fit, rows: Rows, theta: Array, kind: str, chunk: int) -> Array:
    def one(args):
        index, weight, theta = args
        weights = fold_weights(fit, index, weight)
        return fit.objective.predict(unravel(theta, fit.theta), weights, index, kind)

    return jax.lax.map(one, (rows.index, rows.weight, theta), batch_size=chunk)


def _predictions(fit: Fit, rows: Rows, theta: NDArray, kind: str) -> NDArray[np.float64]:
    return np.asarray(_predict_rows(fit, rows, theta, kind, _chunk(fit, rows)))


class _Predictions:
    """Held-out predictions, summed by unit as batches come in."""

    def __init__(self, plan: Plan):
        self.plan, self.times = plan, np.zeros(plan.num_units)
        self.total = np.zeros(0)

    def add(self, place: NDArray, rows: Rows, values: NDArray, result: NDArray) -> None:
        if not self.total.size:
            self.total = np.zeros((self.plan.num_units, *values.shape[2:]))
        keep = rows.held & ~_unseen(result)[:, None] & np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        np.add.at(self.total, rows.index[keep], values[keep])
        np.add.at(self.times, rows.index[keep], 1.0)

    def per_unit(self) -> NDArray[np.float64]:
        times = self.times.reshape(-1, *[1] * (self.total.ndim - 1))
        return np.where(times > 0, self.total / np.maximum(times, 1), np.nan)
