"""Refit every fold of a plan, and collect what is asked of the refits: `over_refits`.

The plan is cut into batches, which are refitted here or in joblib's workers, and what is collected
of each is merged in order and kept in a checkpoint on request. The division of a plan into batches
depends on the model and the plan only.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .._runtime import (
    RESULTS,
    FloatArray,
    Interrupted,
    NamedArrays,
    NumpyArray,
    SettledBy,
    Slow,
    StepResult,
    record,
    single_threaded,
    steps,
)
from ..linalg import SparseDesign
from ..models.glm import kinks
from ..objectives import (
    AbstractClosedForm,
    AbstractLinearPredictor,
    AbstractObjective,
    Runs,
    aligned_copy,
    display_name,
    lists_all_units,
    work,
)
from ..optimize import Fit, cores, uncached
from ..plans import CAPACITY, Batch, Plan, RefitRows
from ..refit import (
    AbstractRefit,
    RefitBatch,
    by_probes,
    expandable,
    fill_undetermined,
    is_narrow,
    refit_active_set,
    refits_by_class,
    unit_losses,
)
from .estimate import Estimate, PrintedTexts
from .scoring import HeldOutLoss, NamedScore, scores

# operations of one gradient of every refit from which cores and workers share the batches
PARALLEL_OPERATIONS = 1e7
PARTS = 16  # least number of batches that are shared
# columns up to which threads of BLAS do not speed up products of blocks of rows, and wait for a
# busy core
NARROW = 500
ROW_REFIT_NUMBERS = 40  # numbers in memory for a refit of one row, which forms no parameters

# prefix of the names of columns with a row for each entry of the plan
ENTRY = "entries: "
# what columns of numbers, codes and marks hold where there is no refit yet
BLANK = {"f": np.nan, "i": RESULTS.interrupted, "b": False}


class Collected(NamedTuple):
    """Arrays collected of a batch of refits, by name.

    Arrays with a row a refit, and arrays `[refits, width, ...]`, of which the entries that are
    scored are taken.
    """

    refits: StepResult
    entries: StepResult

    def with_losses(self, name: str, losses: NumpyArray) -> "Collected":
        """Add losses of the units of each refit, or joint ones."""
        if losses.ndim == 1:
            return self._replace(refits=self.refits | {name: losses})
        return self._replace(entries=self.entries | {name: losses})

    def arrays(self, held: NumpyArray) -> StepResult:
        """The arrays of a step; `held` marks the entries that are scored."""
        entries = {ENTRY + name: values[held] for name, values in self.entries.items()}
        return {"held": held, **self.refits, **entries}


# of a refitted batch, in this process or another
Collect = Callable[[Batch, RefitBatch], Collected]


class CollectedColumns(NamedArrays):
    """Arrays with a row for each refit or each entry of a plan, filled as batches arrive, and sums
    of single numbers.
    """

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan = plan

    def merge(self, batch: Batch, arrays: StepResult) -> None:
        """Put what was collected of a batch into its rows."""
        held = arrays["held"]
        num_refits = self.plan.num_refits
        for name, values in arrays.items():
            rows = batch.refits
            count = num_refits
            if name == "held":
                continue
            if not values.ndim:
                self[name] = self.get(name, 0.0) + values
                continue
            if name.startswith(ENTRY):
                name = name.removeprefix(ENTRY)
                rows = batch.place[held]
                count = len(self.plan.index)
            if name not in self:
                blank = BLANK[values.dtype.kind]
                self[name] = np.full((count, *values.shape[1:]), blank, values.dtype)
            self[name][rows] = values


@record
class Refitter:
    """Refit a batch, estimate the errors of its losses if they are judged, and collect what is
    asked for.

    The object contains everything that another process needs.
    """

    fit: Fit
    refit: AbstractRefit
    scale: NumpyArray
    number: NumpyArray
    judge: bool
    collect: Collect

    def __call__(self, batch: Batch) -> StepResult:
        rows = batch.rows._replace(scale=self.scale, num_refits=self.number)
        judged = self.judge & self.refit.judged(batch.refits, int(self.number))
        outcome = refit_active_set(self.refit, self.fit, rows, judge=bool(judged.all()))
        if judged.all():
            outcome = replace(outcome, error=infinite_if_unknown(outcome))
        elif self.judge:
            outcome = self._sample_errors(rows, outcome, judged)
        rows, outcome = fill_undetermined(self.fit, batch.rows, outcome)
        return self.collect(batch._replace(rows=rows), outcome).arrays(rows.held)

    def _sample_errors(
        self, rows: RefitRows, outcome: RefitBatch, judged: NumpyArray
    ) -> RefitBatch:
        """Return refits with the errors of those that are `judged`; the others have NaN."""
        error = np.full(len(judged), np.nan)
        proved = np.zeros(len(judged), bool)
        result = np.array(outcome.result)
        gradients = 0.0
        if judged.any():
            judged_refits = refit_active_set(
                self.refit, self.fit, rows.take(np.flatnonzero(judged)), judge=True
            )
            error[judged] = infinite_if_unknown(judged_refits)
            result[judged] = judged_refits.result
            gradients = judged_refits.gradients
            if judged_refits.proved is not None:
                proved[judged] = judged_refits.proved
        return replace(outcome, error=error, proved=proved, result=result, gradients=gradients)


def infinite_if_unknown(outcome: RefitBatch) -> NumpyArray:
    """Return the errors, infinite where they could not be computed, as NaN is for errors that were
    not asked for.
    """
    return np.fmin(outcome.error, np.inf)


def losses_with_no_update(loss: HeldOutLoss, batch: Batch) -> StepResult:
    """Compute the losses of a batch at θ̂."""
    theta = np.broadcast_to(loss.fit.vector, (len(batch.refits), loss.fit.num_params))
    losses = loss.losses(batch.rows, theta)
    return Collected({}, {}).with_losses("losses", losses).arrays(batch.rows.held)


class PlanBatches:
    """The batches of a plan.

    If no parameters have to be `formed`, batches of single rows are large.
    """

    def __init__(self, fit: Fit, plan: Plan, refit: AbstractRefit, *, formed: bool = True):
        self.fit = fit
        self.plan = plan
        self.refit = refit
        self.formed = formed
        # wide products use all cores by themselves
        linear = isinstance(fit.objective, AbstractLinearPredictor)
        self.threads, self.parts = (1, 1) if linear else (cores(), PARTS)
        self.single_batch, self.runs = self._as_one_batch()
        self.batch_list: list[Batch] | None = None
        if len(plan.index) <= CAPACITY // 4:
            self.batch_list = list(self._make_batches())

    def _as_one_batch(self) -> tuple[Batch | None, Runs | None]:
        """Return all refits as one batch, if each leaves out one short run of units; else None."""
        fit = self.fit
        plan = self.plan
        if fit.objective.costs.runs is None or plan.weight.any():
            return None, None
        if plan.num_refits * int(np.diff(plan.indptr).max()) > 2 * len(plan.index) + CAPACITY:
            return None, None
        (batch,) = plan._batches(plan.num_refits * plan.num_units + 1, 1, 0, uniform=True)
        runs = expandable(fit, batch.rows)
        if runs is None:
            return None, None
        return batch, runs

    def _make_batches(self) -> Iterator[Batch]:
        fit = self.fit
        objective = fit.objective
        plan = self.plan
        if self.single_batch is not None and self.refit.together:
            yield self.single_batch
            return
        single_rows = np.diff(plan.indptr).max() == 1
        narrow = single_rows and (is_narrow(fit, 1) or refits_by_class(fit))
        narrow |= fit.quadratic.factor is None
        linear = isinstance(objective, AbstractLinearPredictor)
        working_size = 0
        if (self.refit.own_hessians or linear) and not narrow:
            working_size = fit.num_params**2  # one inverse for each refit
        min_batches = 1
        if work(objective, fit.num_params) * plan.num_refits > PARALLEL_OPERATIONS:
            min_batches = self.parts
        # the states of refits, of which eight passes' are in memory, and none is for few
        if isinstance(objective, AbstractClosedForm) and objective.costs.lanes:
            working_size += CAPACITY // (8 * objective.costs.lanes)
            min_batches = min(min_batches, -(-plan.num_refits // objective.costs.lanes))
        uniform = not objective.local  # each refit passes over all units anyway
        model = None
        if narrow and kinks(objective) is None and not self.formed:
            probed = self.refit.probes and by_probes(fit) and single_rows
            model = fit.quadratic.predictor_data if probed else fit.quadratic.predictors
        # numbers for each parameter, fewer where refits in array code had better share passes over
        # an approximate inverse
        numbers = 4 if objective.costs.arrays is None else 2
        if model is None:
            refit_size = numbers * fit.num_params + working_size
        else:
            refit_size = ROW_REFIT_NUMBERS * model.design.outputs
        for batch in plan._batches(
            CAPACITY, 4, refit_size, min_batches, uniform, lists_all_units(objective)
        ):
            if fit.quadratic.predictors is not None:
                yield batch
                continue
            index, weight, held = map(aligned_copy, batch.rows[:3])
            yield batch._replace(rows=batch.rows._replace(index=index, weight=weight, held=held))

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches, which small plans keep in memory."""
        return self._make_batches() if self.batch_list is None else iter(self.batch_list)

    def scale(self) -> float:
        """Compute the naive standard error of the mean with no update, if tolerances need it."""
        if not self.refit.in_standard_errors:
            return 0.0
        loss = HeldOutLoss(self.fit, self.plan, None)
        return blank(loss, self.refit, self.baseline(loss)).scale

    def baseline(self, loss: HeldOutLoss) -> FloatArray:
        """Compute the losses with no update."""
        fit = self.fit
        plan = self.plan
        if isinstance(fit.objective, AbstractLinearPredictor) and loss.evaluate is None:
            # one loss for each unit, whatever else is left out
            all_units = RefitRows.of_all(plan.num_units, plan.num_refits)
            if fit.quadratic.predictors is None:
                loss_by_unit = scores(fit, all_units, fit.vector[None])[0]
            else:
                loss_by_unit = unit_losses(fit)
            if plan.held.all() and np.array_equal(plan.index, np.arange(plan.num_units)):
                return loss_by_unit
            return np.where(plan.held, loss_by_unit[plan.index], np.nan)
        columns = CollectedColumns(plan)
        make = functools.partial(losses_with_no_update, loss)
        if self.single_batch is not None and self.runs is not None and loss.evaluate is None:
            rows = self.single_batch.rows
            losses = self.runs.place_scores(self.runs.scores(fit.vector)[0], rows)
            collected = Collected({}, {}).with_losses("losses", self.runs.shape_losses(losses))
            columns.merge(self.single_batch, collected.arrays(rows.held))
            return columns["losses"]
        with contextlib.closing(steps(make, self, self.threads)) as results:
            for batch, arrays in results:
                columns.merge(batch, arrays)
        return columns["losses"]


def over_refits(
    caller: str,
    fit: Fit,
    plan: Plan,
    strategy: AbstractRefit,
    collect: Collect,
    *,
    judge: bool = False,
    batches: PlanBatches | None = None,
    scale: float | None = None,
    times: int = 1,
    refit_fold: Callable[[Refitter, Batch], StepResult] | None = None,
    part: slice | None = None,
    partial: Callable[[CollectedColumns], object] | None = None,
) -> CollectedColumns:
    """Refit without each fold of a plan, and collect numbers of the refits.

    `collect` gets every refitted batch, here or in another process, and `partial` what is collected
    so far if Ctrl-C stops the call. If the refits are to be judged, their losses get errors.
    `scale` is the naive standard error of the mean with no update, if it is known already; `times`
    such plans share the work allowed for one. `refit_fold` refits one fold in another way. `part`
    selects the batches that are made.
    """
    keep_freed()
    columns = CollectedColumns(plan)
    if partial is not None:
        partial = functools.partial(partial, columns)
    with (
        one_thread(fit.objective, fit.num_params),
        Slow("refits", plan.num_refits) as bar,
        interruptible(caller, lambda: bar.num_done, plan.num_refits, partial),
    ):
        if batches is None:
            batches = PlanBatches(fit, plan, strategy)
        if scale is None:
            scale = batches.scale()
        number = np.asarray(times * plan.num_refits)
        refitter = Refitter(fit, strategy, np.asarray(scale), number, judge, collect)
        make: Callable[[Batch], StepResult] = refitter
        batch_list: Iterable[Batch] = batches
        if refit_fold is not None:
            make = functools.partial(refit_fold, refitter)
            batch_list = [plan._one(k) for k in range(plan.num_refits)]
        if part is not None:
            batch_list = itertools.islice(batch_list, part.start, None, part.step)
        with contextlib.closing(steps(make, batch_list, batches.threads)) as results:
            for batch, arrays in results:
                columns.merge(batch, arrays)
                bar.advance(len(batch.refits))
    return columns


@contextlib.contextmanager
def interruptible(
    caller: str, done: Callable[[], int], total: int, partial: Callable[[], object] | None = None
) -> Iterator[None]:
    """Raise `Interrupted` with the result so far on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        message = f"{caller}: stopped after {done()} of {total} refits"
        raise Interrupted(message, partial) from None


@functools.cache
def keep_freed() -> None:
    """Free an untouched block of 32 MiB, so that the C library keeps as much freed memory from then
    on.

    Otherwise it returns memory beyond twice the largest block freed before, and each step of a
    first call fetches it again: 155,000 page faults for 1,000 groups of 20,000 rows instead of
    4,000.
    """
    largest_kept = 2**25 - 2**14  # largest number of bytes that raises the C library's threshold
    np.empty(largest_kept, np.uint8)


def one_thread(
    objective: AbstractObjective, params: int
) -> contextlib.AbstractContextManager[object]:
    """Limit BLAS to one thread if more threads save no time and would wait for each other on a busy
    core.
    """
    # BLAS does not compute its products
    sparse = isinstance(getattr(objective, "design", None), SparseDesign)
    if isinstance(objective, AbstractLinearPredictor) and (params <= NARROW or sparse):
        return single_threaded()
    return contextlib.nullcontext()


def blank(loss: HeldOutLoss, refit: AbstractRefit, baseline: FloatArray) -> Estimate:
    """Return an estimate that has the losses with no update, and no refits yet."""
    fit = loss.fit
    count = loss.plan.num_refits
    units = fit.objective.units
    score = loss.evaluate
    response = score.response if isinstance(score, NamedScore) else units.modelled
    if response is not None:
        response = np.asarray(response)
    unit_weight = None if units.weight is None else np.asarray(units.weight)
    elsewhere = np.full_like(baseline, np.nan) if len(fit.minima.value) > 1 else None
    model_text = (
        f"{display_name(fit.objective)}, {fit.num_params} parameters{fit._of_rank}, "
        f"decrement of the fit {float(fit.decrement):.1e}"
    )
    return Estimate(
        losses=np.broadcast_to(np.nan, baseline.shape),
        error=np.broadcast_to(np.inf, count),
        result=np.broadcast_to(RESULTS.interrupted, count),
        plan=loss.plan,
        baseline=baseline,
        unit_weight=unit_weight,
        score=loss.title,
        response=response,
        classes=units.classes > 0,
        fit=uncached(fit),
        call=(refit, loss.evaluate),
        labels=PrintedTexts(model_text, repr(refit), fit.objective.note),
        proved=np.broadcast_to(False, count),
        settled_by=np.broadcast_to(int(SettledBy.unknown), count),
        elsewhere=elsewhere,
    )
