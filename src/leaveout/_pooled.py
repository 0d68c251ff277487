"""Held-out predictions, summed as batches of refits arrive."""

import numpy as np
from jaxtyping import Float, Int

from ._asked import predictions, reach
from ._checkpoint import Told
from ._fit import Fit
from ._plan import Batch, Plan, Rows
from ._results import LOST, among
from .refit import Refitted

UNSEEN = LOST[1:]  # refits none of whose units has a loss; of undetermined ones the units that have are `held`


class Predictions:
    """Held-out predictions of one kind, summed by unit; if `judged`, with how far they may be off."""

    def __init__(self, plan: Plan, kind: str, *, judged: bool):
        self.kind, self.judged, self.times = kind, judged, np.zeros(plan.num_units)
        self.total = self.off = np.zeros(0)

    def told(self, fit: Fit, rows: Rows, done: Refitted, result: Int[np.ndarray, " refits"]) -> Told:
        """Compute the predictions of a batch of refits, and how far they may be off."""
        at = lambda theta: predictions(fit, rows, theta, self.kind)
        values = at(done.theta)
        keep = rows.held & ~among(result, UNSEEN)[:, None] & np.isfinite(values).reshape(*values.shape[:2], -1).all(-1)
        found = {"predicted": keep, "values": values[keep]}
        return found | {"off": reach(fit, done, values, at)[keep]} if self.judged else found

    def merge(self, batch: Batch, told: Told) -> None:
        """Add the predictions of a batch, computed now or read from the checkpoint."""
        unit, values = batch.rows.index[told["predicted"]], told["values"]
        if not self.total.size:
            self.total, self.off = np.zeros((2, len(self.times), *values.shape[1:]))
        np.add.at(self.total, unit, values)
        np.add.at(self.times, unit, 1.0)
        if self.judged:
            np.add.at(self.off, unit, told["off"])

    def per_unit(self) -> tuple[Float[np.ndarray, "units ..."], Float[np.ndarray, "units ..."]]:
        """Return each unit's mean prediction over its refits, and how far it may be off at most; NaN where there is none."""
        times = np.where(self.times > 0, self.times, np.nan).reshape(-1, *[1] * (self.total.ndim - 1))
        return self.total / times, self.off / times
