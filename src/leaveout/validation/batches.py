"""Run the batches of a plan in order: refit them here or in joblib's workers, and merge the results
one by one.

Results are kept in a checkpoint on request. The division of a plan into batches depends on the
model and the plan only.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .._runtime.arrays import FloatArray
from .._runtime.checkpoint import StepResult
from .._runtime.interrupt import Interrupted
from .._runtime.parallel import single_threaded, steps
from .._runtime.progress import Slow
from ..linalg.sparse_design import SparseDesign
from ..models.glm.active_coefficients import kinks
from ..objectives.batch_functions import lists_all_units, work
from ..objectives.closed_form import AbstractClosedForm
from ..objectives.contiguous_folds import Runs
from ..objectives.objective import (
    AbstractLinearPredictor,
    AbstractObjective,
    aligned_copy,
    display_name,
)
from ..optimize.fit import Fit
from ..optimize.starts import cores
from ..plans.plan import CAPACITY, Batch, Plan, RefitRows
from ..refit import (
    AbstractRefit,
    RefitBatch,
    expandable,
    fill_undetermined,
    is_narrow,
    refit_active_set,
)
from ..refit._linear import unit_losses
from ..refit._probes import by_probes
from .estimate import Estimate, PrintedTexts
from .scoring import HeldOutLoss, NamedScore, scores

# operations of one gradient of every refit from which cores and workers share the batches
PARALLEL_OPERATIONS = 1e7
PARTS = 16  # least number of batches that are shared
# columns up to which threads of BLAS do not speed up products of blocks of rows, and wait for a
# busy core
NARROW = 500
SINGLE = 40  # numbers in memory for a refit of one row, which forms no parameters

# computes the results of a refitted batch, in this process or another
Summarise = Callable[[Batch, RefitBatch, np.ndarray], StepResult]
Merge = Callable[[Batch, StepResult], None]  # merges the results of a refitted batch
Losses = Callable[[RefitRows, RefitBatch], np.ndarray]


@dataclass(frozen=True, eq=False)
class Refitter:
    """Refit a batch and, if `losses` are given, estimate the errors of these; return the results of
    the batch.

    The object contains everything that another process needs.
    """

    fit: Fit
    refit: AbstractRefit
    scale: np.ndarray
    number: np.ndarray
    losses: Losses | None
    summarise: Summarise

    def __call__(self, batch: Batch) -> StepResult:
        rows = batch.rows._replace(scale=self.scale, num_refits=self.number)
        judged = self.refit.judged(batch.refits, int(self.number))
        all_judged = self.losses is not None and bool(judged.all())
        outcome = refit_active_set(self.refit, self.fit, rows, judge=all_judged)
        if all_judged:
            outcome = replace(outcome, error=infinite_if_unknown(outcome))
        elif self.losses is not None:
            outcome = self._sample_errors(rows, outcome, judged)
        rows, outcome = fill_undetermined(self.fit, batch.rows, outcome)
        values = np.zeros(0) if self.losses is None else self.losses(rows, outcome)
        return {
            "held": np.asarray(rows.held),
            **self.summarise(batch._replace(rows=rows), outcome, values),
        }

    def _sample_errors(
        self, rows: RefitRows, outcome: RefitBatch, judged: np.ndarray
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


def infinite_if_unknown(outcome: RefitBatch) -> np.ndarray:
    """Return the errors, infinite where they could not be computed, as NaN is for errors that were
    not asked for.
    """
    return np.where(np.isnan(outcome.error), np.inf, outcome.error)


def losses_with_no_update(loss: HeldOutLoss, batch: Batch) -> StepResult:
    """Compute the losses of a batch at θ̂."""
    theta = np.broadcast_to(loss.fit.vector, (len(batch.refits), loss.fit.num_params))
    return {"losses": loss.losses(batch.rows, theta)}


class BatchRunner:
    """Run over the batches of a plan, on the available cores or in joblib's workers, and merge the
    results in order.

    If no parameters have to be `formed`, batches of single rows are large.
    """

    def __init__(
        self, fit: Fit, plan: Plan, refit: AbstractRefit, times: int = 1, *, formed: bool = True
    ):
        self.fit = fit
        self.plan = plan
        self.refit = refit
        self.times = times
        self.forms_hessian = formed
        linear = isinstance(fit.objective, AbstractLinearPredictor)
        # wide products use all cores by themselves
        self.threads, self.parts = (1, 1) if linear else (cores(), PARTS)
        self.num_done = 0  # number of finished refits
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
        (batch,) = plan.batches(plan.num_refits * plan.num_units + 1, 1, 0, uniform=True)
        runs = expandable(fit, batch.rows)
        if runs is None:
            return None, None
        return batch, runs

    def _make_batches(self) -> Iterator[Batch]:
        fit = self.fit
        plan = self.plan
        if self.single_batch is not None and self.refit.together:
            yield self.single_batch
            return
        single_rows = np.diff(plan.indptr).max() == 1
        narrow = fit.factor is None or (is_narrow(fit, 1) and single_rows)
        linear = isinstance(fit.objective, AbstractLinearPredictor)
        working_size = 0
        if (self.refit.own_hessians or linear) and not narrow:
            working_size = fit.num_params**2  # one inverse for each refit
        min_batches = 1
        if work(fit.objective, fit.num_params) * plan.num_refits > PARALLEL_OPERATIONS:
            min_batches = self.parts
        # the states of refits, of which eight passes' are in memory
        if isinstance(fit.objective, AbstractClosedForm) and fit.objective.costs.lanes:
            working_size += CAPACITY // (8 * fit.objective.costs.lanes)
        uniform = not fit.objective.local  # each refit passes over all units anyway
        model = None
        if narrow and kinks(fit.objective) is None and not self.forms_hessian:
            probed = self.refit.probes and by_probes(fit) and single_rows
            model = fit.predictor_data if probed else fit.predictors
        # numbers for each parameter, fewer where refits in array code had better share passes over
        # an approximate inverse
        numbers = 4 if fit.objective.costs.arrays is None else 2
        if model is None:
            refit_size = numbers * fit.num_params + working_size
        else:
            refit_size = SINGLE * model.design.outputs
        for batch in plan.batches(
            CAPACITY, 4, refit_size, min_batches, uniform, lists_all_units(fit.objective)
        ):
            if fit.predictors is not None:
                yield batch
                continue
            index, weight, held = map(aligned_copy, batch.rows[:3])
            yield batch._replace(rows=batch.rows._replace(index=index, weight=weight, held=held))

    def batches(self) -> Iterable[Batch]:
        """Return the batches, which may be iterated over several times.

        Small plans keep them in memory.
        """
        if self.batch_list is None:
            return self._make_batches()
        return self.batch_list

    def over(self, make: Callable[[Batch], StepResult], merge: Merge) -> None:
        """Apply `make` to every batch, and merge the results in order."""
        with contextlib.closing(steps(make, self.batches(), self.threads)) as results:
            for batch, batch_result in results:
                merge(batch, batch_result)

    def refits(
        self,
        summarise: Summarise,
        merge: Merge,
        losses: Losses | None = None,
        estimate: Estimate | None = None,
        refit_fold: Callable[[Refitter, Batch], StepResult] | None = None,
    ) -> None:
        """Refit every batch and, if `losses` are given, estimate the errors of these; show a
        progress bar if it takes long.

        `estimate` has the losses with no update, if they are known already. `refit_fold` refits one
        fold in another way.
        """
        if refit_fold is not None:
            self.batch_list = [self.plan.one(k) for k in range(self.plan.num_refits)]
        number = np.asarray(self.times * self.plan.num_refits)
        scale = 0.0
        # else the tolerance does not need it
        if estimate is None and self.refit.in_standard_errors:
            loss = HeldOutLoss(self.fit, self.plan, None)
            estimate = blank(loss, self.refit, self.baseline(loss))
        if estimate is not None:
            scale = estimate.scale  # the naive standard error of the mean with no update

        def merge_and_count(batch, batch_result):
            merge(batch._replace(rows=batch.rows._replace(held=batch_result["held"])), batch_result)
            self.num_done += len(batch.refits)
            bar.advance(len(batch.refits))

        with Slow("refits", self.plan.num_refits) as bar:
            refitter = Refitter(self.fit, self.refit, np.asarray(scale), number, losses, summarise)
            make: Callable[[Batch], StepResult] = refitter
            if refit_fold is not None:
                make = partial(refit_fold, refitter)
            self.over(make, merge_and_count)

    @contextlib.contextmanager
    def stoppable(self, caller: str, partial: Callable[[], object] | None = None) -> Iterator[None]:
        """Raise `Interrupted` with the result so far on Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(
                f"{caller}: stopped after {self.num_done} of {self.plan.num_refits} refits", partial
            ) from None

    def baseline(self, loss: HeldOutLoss) -> FloatArray:
        """Compute the losses with no update."""
        fit = self.fit
        plan = self.plan
        if isinstance(fit.objective, AbstractLinearPredictor) and loss.evaluate is None:
            # one loss for each unit, whatever else is left out
            all_units = RefitRows.of_all(plan.num_units, plan.num_refits)
            if fit.predictors is None:
                loss_by_unit = scores(fit, all_units, fit.vector[None])[0]
            else:
                loss_by_unit = unit_losses(fit)
            return np.where(plan.held, loss_by_unit[plan.index], np.nan)
        count = plan.num_refits if loss.joint else len(plan.index)
        baseline = np.full(count, np.nan)
        if self.single_batch is not None and self.runs is not None and loss.evaluate is None:
            losses, _ = self.runs.scores(fit.vector)
            put_losses(
                baseline,
                self.single_batch,
                self.runs.shape_losses(self.runs.place_scores(losses, self.single_batch.rows)),
            )
            return baseline
        self.over(
            partial(losses_with_no_update, loss),
            lambda batch, batch_result: put_losses(baseline, batch, batch_result["losses"]),
        )
        return baseline


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


def put_losses(out: np.ndarray, batch: Batch, values: np.ndarray) -> None:
    """Write the losses of a batch to their places in `out`."""
    if values.ndim == 1:
        out[batch.refits] = values
    else:
        held = np.flatnonzero(batch.rows.held)
        out[batch.place.ravel()[held]] = values.ravel()[held]


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
        f"{display_name(fit.objective)}, {fit.num_params} parameters{fit.of_rank}, "
        f"decrement of the fit {float(fit.decrement):.1e}"
    )
    return Estimate(
        losses=np.full_like(baseline, np.nan),
        error=np.full(count, np.inf),
        result=np.zeros(count, np.int64),
        plan=loss.plan,
        baseline=baseline,
        unit_weight=unit_weight,
        score=loss.title,
        response=response,
        classes=units.classes > 0,
        fit=replace(fit),  # without the results that its refits cache
        call=(refit, loss.evaluate),
        labels=PrintedTexts(model_text, repr(refit), fit.objective.note),
        proved=np.zeros(count, bool),
        elsewhere=elsewhere,
    )
