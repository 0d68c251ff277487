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
    """Refit a batch; under a penalty with kinks, each refit on the parameters that are active in
    it.
    """
    if isinstance(fit.objective, ActiveCox):
        return refit_active_cox(refit, fit, fit.objective, rows, judge)
    known = active(fit)
    if known is None:
        return refit(fit, rows, judge=judge)
    return Following(refit, known, rows, judge).run()


class ActiveBatch(NamedTuple):
    """Refits of a batch that keep the active parameters of one fit.

    `which` are their places among the refits of that fit.
    """

    lanes: Lanes
    own: Active
    refits: RefitBatch
    which: Lanes
    is_tied: Flags  # not proved


class Following:
    """Batch of refits, each of which looks for a fit whose active parameters it keeps."""

    def __init__(self, refit: AbstractRefit, facts: Active, rows: RefitRows, judge: bool):
        self.refit = refit
        self.conditions = facts
        self.rows = rows
        self.judge = judge
        self.parts: list[ActiveBatch] = []
        self.result = np.full(len(rows.index), int(RESULTS.uncertified))
        self.gradients = 0.0
        self.alone = list[int]()

    def run(self) -> RefitBatch:
        first = self.refit(self.conditions.fit, self.rows)
        wanted = self._keep_proved(self.conditions, np.arange(len(self.rows.index)), first)
        # active sets that follow from one another before coordinate descent decides
        max_active_sets = 4
        for turn in range(max_active_sets):
            further: dict[Key, list[int]] = {}
            for key, lanes in wanted.items():
                place = np.array(key[0], int)
                sign = np.array(key[1])
                theta = np.frombuffer(key[2]).copy()
                theta[place] = self.conditions.full_parameters(self.conditions.anchor.theta[None])[
                    0
                ][place]
                own = self._fit_near(place, sign, theta)
                if own is None or turn == max_active_sets - 1:
                    self.alone += lanes
                    continue
                for other, more in self._keep_proved(
                    own, np.array(lanes), self._again(own, np.array(lanes))
                ).items():
                    further.setdefault(other, []).extend(more)
            wanted = further
        for lane in sorted(self.alone):
            self._by_itself(lane)
        return self._join(first)

    def _estimate(
        self, conditions: Conditions, batch: RefitBatch, rest: Int[np.ndarray, " rest"]
    ) -> tuple[RefitBatch, Int[np.ndarray, " some"]]:
        """Estimate single rows if fits on all the parameters that they need would cost too much.

        The rows that move least are estimated, each parameter by itself: as many as are together
        within the tolerance, and at least those that exceed the affordable operations. Returns the
        batch with these, and which they are.
        """
        (n, p) = self.conditions.anchor.model.design.shape
        rows = self.rows
        batches = max(int(rows.num_refits) / len(rows.index), 1.0)
        most = int(MAX_OTHER_FIT_WORK / (3.0 * n * p * p * batches))
        # fits on these parameters are affordable, or exact ones are wanted
        if rest.size <= most or isinstance(self.refit, Exact) or not self.judge:
            return batch, rest[:0]
        assert batch.scores is not None and batch.proved is not None
        model = self.conditions.anchor.model
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
        order = rest[np.argsort(error[rest])]
        allowed = CERTIFIED_REFIT.rtol * float(rows.scale) * len(rows.index)
        some = order[: max(int(np.sum(np.cumsum(error[order]) <= allowed)), len(order) - most)]
        radius = conditions.radius + (np.abs(move) + size) / np.maximum(
            self.conditions.anchor.norm[unit], 1e-300
        )
        new = np.isin(np.arange(len(unit)), some)
        proved = batch.proved.copy()
        proved[some] = False
        parts = (
            np.where(new, scores, batch.scores[:, 0])[:, None],
            np.where(new, error, batch.error),
        )
        where = conditions.center, np.where(new, radius, conditions.radius)
        return replace(
            batch, scores=parts[0], error=parts[1], proved=proved, ball=lambda: where
        ), some

    def _again(self, own: Active, lanes: Lanes) -> RefitBatch:
        refit = self.refit if self.refit.iterates else NEAR_EXACT_REFIT
        return refit(own.fit, self._select(lanes))

    def _select(self, lanes: Lanes) -> RefitRows:
        """Select refits of the batch, as part of a plan that is reduced in proportion."""
        share = int(self.rows.num_refits) * len(lanes) // max(len(self.rows.index), 1)
        return self.rows.take(lanes)._replace(num_refits=np.asarray(max(share, len(lanes))))

    def _fit_near(self, place: Array, sign: Array, theta: Vector) -> Active | None:
        """Return the fit on other parameters near some θ; None if there is none."""
        try:
            objective = self.conditions.full_model.restrict(place, sign, theta)
            fit = anchored_at(
                objective, as_stored(theta[place]), "cross_validate", np.zeros((0, len(place)))
            )
        except (IndefiniteHessianError, ValueError):
            return None
        return active(fit)

    def _keep_proved(self, own: Active, lanes: Lanes, batch: RefitBatch) -> dict[Key, list[int]]:
        """Keep the refits that are proved to keep these parameters.

        Returns the parameters that the others need.
        """
        self.gradients += batch.gradients
        rows = self._select(lanes)
        told = Conditions(own, rows, batch, directly=False)
        self._keep(own, lanes, batch, np.flatnonzero(told.keeps), told.ties)
        rest = np.flatnonzero(~told.keeps)
        if rest.size and own is self.conditions and told.single and own.groups is None:
            estimated, some = self._estimate(told, batch, rest)
            self._keep(own, lanes, estimated, some, told.ties)
            rest = np.setdiff1d(rest, some)
        if not rest.size:
            return {}
        close = NEAR_EXACT_REFIT(own.fit, self._select(lanes[rest]))
        self.gradients += close.gradients
        told = Conditions(own, rows.take(rest), close, directly=True)
        self._keep(
            own, lanes, batch, rest[told.keeps], np.isin(np.arange(len(lanes)), rest[told.ties])
        )
        wanted: dict[Key, list[int]] = {}
        for k in np.flatnonzero(~told.keeps).tolist():
            lane = int(lanes[rest[k]])
            key = told.required_parameters(k)
            if key is None or not key[0]:
                self.alone.append(lane)
            else:
                wanted.setdefault(key, []).append(lane)
        return wanted

    def _keep(
        self, own: Active, lanes: Array, batch: RefitBatch, which: Array, tied: Array
    ) -> None:
        if which.size:
            self.result[lanes[which]] = batch.result[which]
            self.parts.append(ActiveBatch(lanes[which], own, batch, which, tied[which]))

    def _by_itself(self, lane: int) -> None:
        """Refit one fold on the parameters that coordinate descent finds."""
        lanes = np.array([lane])
        known = self.conditions
        weights = weights_of(self.rows, known.units, lanes)[0]
        try:
            found = minimise_with_kinks(
                known.full_model, weights, known.full_parameters(known.anchor.theta[None])[0]
            )
        except NoMinimiser:
            self.result[lane] = RESULTS.undetermined
            return
        own = self._fit_near(found.place, found.sign, found.theta) if len(found.place) else None
        if own is not None:
            self._keep_proved(own, lanes, self._again(own, lanes))
            self.alone = [other for other in self.alone if other != lane]

    def _join(self, first: RefitBatch) -> RefitBatch:
        """Join the parts: the reported losses, and the candidate of each refit."""
        assert first.scores is not None and first.step_length is not None
        count = len(self.rows.index)
        own = self.refit.iterates
        error = np.full(count, np.inf)
        proved = np.zeros(count, bool)
        moved = first.step_length.copy()
        scores = first.scores.copy()
        for lanes, other, done, which, tied in self.parts:
            assert (
                done.scores is not None and done.proved is not None and done.step_length is not None
            )
            error[lanes], proved[lanes] = done.error[which], done.proved[which] & ~tied
            moved[lanes] = done.step_length[which]
            if other is self.conditions or own:
                scores[lanes] = done.scores[which]
            else:  # the losses are reported at another point than the refit's candidate
                error[lanes] += np.abs(done.scores[which] - scores[lanes]).sum(1)

        def theta() -> Array:
            out = self.conditions.full_parameters(first.theta)
            for lanes, other, done, which, _ in self.parts if own else ():
                out[lanes] = other.full_parameters(done.theta[which])
            return out

        rank = max(
            [len(self.conditions.anchor.root), *(len(part.own.anchor.root) for part in self.parts)]
        )

        @functools.cache
        def ball() -> tuple[Array, Array]:
            center, radius = np.zeros((count, rank)), np.full(count, np.inf)
            for lanes, _, done, which, _ in self.parts:
                assert done.ball is not None
                middle, reach = done.ball()
                center[lanes, : middle.shape[1]], radius[lanes] = middle[which], reach[which]
            return center, radius

        def at(u: Array) -> Array:
            out = np.zeros((count, len(self.conditions.full_model.slope)))
            for lanes, other, *_ in self.parts:
                out[lanes] = other.full_parameters(other.fit.at(u[lanes, : len(other.anchor.root)]))
            return out

        return RefitBatch(
            theta, error, self.result, scores, proved, ball, moved, self.gradients, at=at
        )
