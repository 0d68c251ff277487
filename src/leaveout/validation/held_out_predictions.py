"""Held-out predictions, summed as batches of refits arrive."""

import functools

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime.checkpoint import StepResult
from .._runtime.results import NO_REFIT_CODES, among
from ..optimize.fit import Fit
from ..plans.plan import Batch, Plan, RefitRows
from ..refit import RefitBatch
from .scoring import predictions, reach

NO_LOSS_CODES = NO_REFIT_CODES[1:]  # codes of refits without any loss; undetermined refits mark units with a loss as `held`


class Predictions:
    """Predictions of one kind for every unit that a refit scores, in the order of the plan, `[scored, ...]`.

    A missing prediction is NaN. `off` is the error of each if they are `judged`, else zero.
    """

    plan: Plan
    kind: str
    has_error: bool
    values: np.ndarray
    off: np.ndarray

    def __init__(self, plan: Plan, kind: str, *, judged: bool = False, values: Float[np.ndarray, "scored ..."] | None = None):
        self.plan, self.kind, self.has_error = plan, kind, judged
        self.values = np.zeros(0) if values is None else values
        self.off = np.zeros_like(self.values)

    def predict(self, fit: Fit, rows: RefitRows, batch: RefitBatch, result: Int[np.ndarray, " refits"]) -> StepResult:
        """Compute the predictions of a batch of refits, and their errors."""
        at = lambda theta: predictions(fit, rows, theta, self.kind)
        values = at(batch.theta)
        keep = rows.held & ~among(result, NO_LOSS_CODES)[:, None] & np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        found = {"predicted": keep, "values": values[keep]}
        return found | {"off": reach(fit, batch, values, at)[keep]} if self.has_error else found

    def merge(self, batch: Batch, result: StepResult) -> None:
        """Store the predictions of a batch, computed now or read from the checkpoint."""
        place, values = self._number[batch.place[result["predicted"]]], result["values"]
        if not self.values.size:
            self.values = np.full((int(self.plan.held.sum()), *values.shape[1:]), np.nan)
            self.off = np.zeros_like(self.values)
        self.values[place] = values
        if self.has_error:
            self.off[place] = result["off"]

    @functools.cached_property
    def _number(self) -> Int[np.ndarray, " entries"]:
        """Number every scored entry of the plan."""
        return np.cumsum(self.plan.held) - 1

    @property
    def existing(self) -> Bool[np.ndarray, " scored"]:
        """Mark the predictions that exist."""
        if not self.values.size:
            return np.zeros(int(self.plan.held.sum()), bool)
        return np.asarray(np.isfinite(self.values).reshape(len(self.values), -1).all(-1))

    @property
    def unit(self) -> Int[np.ndarray, " scored"]:
        return self.plan.index[self.plan.held]

    @property
    def refit(self) -> Int[np.ndarray, " scored"]:
        return self.plan.refit[self.plan.held]

    def per_unit(self) -> Float[np.ndarray, "units ..."]:
        """Average the predictions of each unit over its refits; NaN without any."""
        if not self.values.size:
            return np.full(self.plan.num_units, np.nan)
        seen, total = self.existing, np.zeros((self.plan.num_units, *self.values.shape[1:]))
        unit = self.unit[seen]
        np.add.at(total, unit, self.values[seen])
        times = np.bincount(unit, minlength=self.plan.num_units).astype(float)
        return total / np.where(times > 0, times, np.nan).reshape(-1, *[1] * (total.ndim - 1))
