"""Refits under a penalty with kinks or bounds: each is assigned to a fit whose active parameters it
keeps.

A refit that is not proved to keep S is moved nearer to its minimiser. If a condition fails there, S
and σ are changed accordingly, in the end by coordinate descent. The refit is then one of a fit on
these parameters, with its errors and proofs. If too many single rows would need such fits, the
effect of each parameter that leaves zero, or goes there, is computed one by one, and the result is
called estimated.
"""

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from .._runtime.results import RESULTS
from ..linalg.enclosure_theorem import change
from ..models.glm.active_coefficients import ActiveCox
from ..objectives.batch_functions import weights_of
from ..objectives.objective import Flags, Lanes, Vector, as_stored
from ..optimize.active_set import NoMinimiser, minimise_with_kinks
from ..optimize.fit import Fit, anchored_at
from ..optimize.hessian_factor import IndefiniteHessianError
from ..plans.plan import RefitRows
from ._active_cox import refit_active_cox
from ._conditions import Active, Conditions, Key, active
from ._refit_batch import RefitBatch
from ._strategies import AbstractRefit, Certified, Exact

Array = np.ndarray
NEAR_EXACT_REFIT = Exact(1e-9)
CERTIFIED_REFIT = Certified()
MAX_OTHER_FIT_WORK = 1e10  # largest number of operations of fits on other parameters in a plan


def refit_active_set(refit: AbstractRefit, fit: Fit, rows: RefitRows, judge: bool) -> RefitBatch:
    """Refit a batch; under a penalty with kinks, each refit on its active parameters."""
    if isinstance(fit.objective, ActiveCox):
        return refit_active_cox(refit, fit, fit.objective, rows, judge)
    active_fit = active(fit)
    if active_fit is None:
        return refit(fit, rows, judge=judge)
    return Following(refit, active_fit, rows, judge).run()


class ActiveBatch(NamedTuple):
    """Refits of a batch that keep the active parameters of one fit.

    `which` are their places among the refits of that fit.
    """

    lanes: Lanes
    active_fit: Active
    refits: RefitBatch
    which: Lanes
    is_tied: Flags  # not proved


class Following:
    """Batch of refits, each of which looks for a fit whose active parameters it keeps."""

    def __init__(self, refit: AbstractRefit, active_fit: Active, rows: RefitRows, judge: bool):
        self.refit = refit
        self.active_fit = active_fit
        self.rows = rows
        self.judge = judge
        self.parts: list[ActiveBatch] = []
        self.result = np.full(len(rows.index), int(RESULTS.uncertified))
        self.gradients = 0.0
        self.alone = list[int]()

    def run(self) -> RefitBatch:
        first = self.refit(self.active_fit.fit, self.rows)
        requests = self._keep_proved(self.active_fit, np.arange(len(self.rows.index)), first)
        # active sets that follow from one another before coordinate descent decides
        max_active_sets = 4
        for attempt in range(max_active_sets):
            next_requests: dict[Key, list[int]] = {}
            for key, lanes in requests.items():
                place = np.array(key[0], int)
                sign = np.array(key[1])
                theta = np.frombuffer(key[2]).copy()
                theta[place] = self.active_fit.full_parameters(self.active_fit.anchor.theta[None])[
                    0
                ][place]
                active_fit = self._fit_near(place, sign, theta)
                if active_fit is None or attempt == max_active_sets - 1:
                    self.alone += lanes
                    continue
                for next_key, members in self._keep_proved(
                    active_fit, np.array(lanes), self._refit_again(active_fit, np.array(lanes))
                ).items():
                    next_requests.setdefault(next_key, []).extend(members)
            requests = next_requests
        for lane in sorted(self.alone):
            self._by_itself(lane)
        return self._join(first)

    def _estimate(
        self, conditions: Conditions, batch: RefitBatch, unproved: Int[np.ndarray, " unproved"]
    ) -> tuple[RefitBatch, Int[np.ndarray, " selected"]]:
        """Estimate single rows if fits on all the parameters that they need would cost too much.

        The rows that move least are estimated, each parameter by itself: as many as are together
        within the tolerance, and at least those that exceed the affordable operations. Returns the
        batch with these, and which they are.
        """
        (n, p) = self.active_fit.anchor.model.design.shape
        rows = self.rows
        batches = max(int(rows.num_refits) / len(rows.index), 1.0)
        most = int(MAX_OTHER_FIT_WORK / (3.0 * n * p * p * batches))
        # fits on these parameters are affordable, or exact ones are wanted
        if unproved.size <= most or isinstance(self.refit, Exact) or not self.judge:
            return batch, unproved[:0]
        assert batch.scores is not None and batch.proved is not None
        model = self.active_fit.anchor.model
        unit = rows.index[:, 0]
        loss = model.unit_loss
        y = model.y[unit]
        (move, size) = conditions.moves()
        center = model.unit_predictors(rows.index, conditions.theta)[:, 0] + move
        scores = loss.derivatives(center, y, (0,))[0]
        error = change(loss, y, center, center, size)
        if not self.refit.iterates:
            scores, error = batch.scores[:, 0], error + np.abs(scores - batch.scores[:, 0])
        error = np.where(rows.held[:, 0], error + batch.error, batch.error)
        order = unproved[np.argsort(error[unproved])]
        allowed = CERTIFIED_REFIT.rtol * float(rows.scale) * len(rows.index)
        chosen = order[: max(int(np.sum(np.cumsum(error[order]) <= allowed)), len(order) - most)]
        radius = conditions.radius + (np.abs(move) + size) / np.maximum(
            self.active_fit.anchor.norm[unit], 1e-300
        )
        new = np.isin(np.arange(len(unit)), chosen)
        proved = batch.proved.copy()
        proved[chosen] = False
        parts = (
            np.where(new, scores, batch.scores[:, 0])[:, None],
            np.where(new, error, batch.error),
        )
        where = conditions.center, np.where(new, radius, conditions.radius)
        return replace(
            batch, scores=parts[0], error=parts[1], proved=proved, ball=lambda: where
        ), chosen

    def _refit_again(self, active_fit: Active, lanes: Lanes) -> RefitBatch:
        refit = self.refit if self.refit.iterates else NEAR_EXACT_REFIT
        return refit(active_fit.fit, self._select(lanes))

    def _select(self, lanes: Lanes) -> RefitRows:
        """Select refits of the batch, as part of a plan that is reduced in proportion."""
        share = int(self.rows.num_refits) * len(lanes) // max(len(self.rows.index), 1)
        return self.rows.take(lanes)._replace(num_refits=np.asarray(max(share, len(lanes))))

    def _fit_near(self, place: Array, sign: Array, theta: Vector) -> Active | None:
        """Return the fit on other parameters near some θ; None if there is none."""
        try:
            objective = self.active_fit.full_model.restrict(place, sign, theta)
            fit = anchored_at(
                objective, as_stored(theta[place]), "cross_validate", np.zeros((0, len(place)))
            )
        except (IndefiniteHessianError, ValueError):
            return None
        return active(fit)

    def _keep_proved(
        self, active_fit: Active, lanes: Lanes, batch: RefitBatch
    ) -> dict[Key, list[int]]:
        """Keep the refits that are proved to keep these parameters.

        Returns the parameters that the others need.
        """
        self.gradients += batch.gradients
        rows = self._select(lanes)
        conditions = Conditions(active_fit, rows, batch, directly=False)
        self._keep(active_fit, lanes, batch, np.flatnonzero(conditions.keeps), conditions.ties)
        unproved = np.flatnonzero(~conditions.keeps)
        if (
            unproved.size
            and active_fit is self.active_fit
            and conditions.single
            and active_fit.groups is None
        ):
            estimated, chosen = self._estimate(conditions, batch, unproved)
            self._keep(active_fit, lanes, estimated, chosen, conditions.ties)
            unproved = np.setdiff1d(unproved, chosen)
        if not unproved.size:
            return {}
        close = NEAR_EXACT_REFIT(active_fit.fit, self._select(lanes[unproved]))
        self.gradients += close.gradients
        conditions = Conditions(active_fit, rows.take(unproved), close, directly=True)
        self._keep(
            active_fit,
            lanes,
            batch,
            unproved[conditions.keeps],
            np.isin(np.arange(len(lanes)), unproved[conditions.ties]),
        )
        requests: dict[Key, list[int]] = {}
        for k in np.flatnonzero(~conditions.keeps).tolist():
            lane = int(lanes[unproved[k]])
            key = conditions.required_parameters(k)
            if key is None or not key[0]:
                self.alone.append(lane)
            else:
                requests.setdefault(key, []).append(lane)
        return requests

    def _keep(
        self, active_fit: Active, lanes: Array, batch: RefitBatch, which: Array, tied: Array
    ) -> None:
        if which.size:
            self.result[lanes[which]] = batch.result[which]
            self.parts.append(ActiveBatch(lanes[which], active_fit, batch, which, tied[which]))

    def _by_itself(self, lane: int) -> None:
        """Refit one fold on the parameters that coordinate descent finds."""
        lanes = np.array([lane])
        reference = self.active_fit
        weights = weights_of(self.rows, reference.units, lanes)[0]
        try:
            solution = minimise_with_kinks(
                reference.full_model,
                weights,
                reference.full_parameters(reference.anchor.theta[None])[0],
            )
        except NoMinimiser:
            self.result[lane] = RESULTS.undetermined
            return
        if len(solution.place):
            active_fit = self._fit_near(solution.place, solution.sign, solution.theta)
        else:
            active_fit = None
        if active_fit is not None:
            self._keep_proved(active_fit, lanes, self._refit_again(active_fit, lanes))
            self.alone = [number for number in self.alone if number != lane]

    def _join(self, first: RefitBatch) -> RefitBatch:
        """Join the parts: the reported losses, and the candidate of each refit."""
        assert first.scores is not None and first.step_length is not None
        count = len(self.rows.index)
        iterates = self.refit.iterates
        error = np.full(count, np.inf)
        proved = np.zeros(count, bool)
        step_length = first.step_length.copy()
        scores = first.scores.copy()
        for lanes, active_fit, done, which, tied in self.parts:
            assert (
                done.scores is not None and done.proved is not None and done.step_length is not None
            )
            error[lanes], proved[lanes] = done.error[which], done.proved[which] & ~tied
            step_length[lanes] = done.step_length[which]
            if active_fit is self.active_fit or iterates:
                scores[lanes] = done.scores[which]
            else:  # the losses are reported at another point than the refit's candidate
                error[lanes] += np.abs(done.scores[which] - scores[lanes]).sum(1)

        def theta() -> Array:
            out = self.active_fit.full_parameters(first.theta)
            for lanes, active_fit, done, which, _ in self.parts if iterates else ():
                out[lanes] = active_fit.full_parameters(done.theta[which])
            return out

        rank = max(
            [
                len(self.active_fit.anchor.root),
                *(len(part.active_fit.anchor.root) for part in self.parts),
            ]
        )

        @functools.cache
        def ball() -> tuple[Array, Array]:
            center, radius = np.zeros((count, rank)), np.full(count, np.inf)
            for lanes, _, done, which, _ in self.parts:
                assert done.ball is not None
                middle, reach = done.ball()
                center[lanes, : middle.shape[1]], radius[lanes] = middle[which], reach[which]
            return center, radius

        def parameters_at(u: Array) -> Array:
            out = np.zeros((count, len(self.active_fit.full_model.slope)))
            for lanes, active_fit, *_ in self.parts:
                out[lanes] = active_fit.full_parameters(
                    active_fit.fit.at(u[lanes, : len(active_fit.anchor.root)])
                )
            return out

        return RefitBatch(
            theta,
            error,
            self.result,
            scores,
            proved,
            ball,
            step_length,
            self.gradients,
            parameters_at=parameters_at,
        )
