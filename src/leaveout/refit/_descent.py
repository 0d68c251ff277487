"""Refits of any model in a batch: candidates, their distances from the exact refits, and the errors
of their losses.

Coordinates are the anchor's whitened u = Lᵀ(θ − θ̂), H = L Lᵀ. There are these rungs. Each takes
the refits that the one before left open:

    rung          one refit costs                            uses
    first         its own units, or a gradient
    the fold's own Hessian at θ̂ (linear predictors), the anchor's
    expand        nothing: passes that all share
    derivatives of every fold's own score, where folds are short runs
    screen        its own units and a sample of others
    the same, where there are very many refits
    steps         a gradient each                            the same, accelerated
    newton        a few Hessians, with a line search
    its own, where a Hessian costs few gradients
    alone         a descent from θ̂ of its own
    quasi-Newton, and its own by products, elsewhere

The remaining distance is estimated as λ/(1 − C), with λ the length of the next step and C its
contraction by the curvature at the candidate. The error is the largest change of the losses within
that distance, in both directions of steepest change and along the step.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float, Int

from .._runtime.results import RESULTS
from ..objectives.batch_functions import (
    COMPILING,
    HESSIAN_ENTRIES,
    ONE,
    DerivedBatch,
    Function,
    Functions,
    derive_batch,
    function,
    weights_of,
    work,
)
from ..objectives.objective import (
    AbstractLinearPredictor,
    Flags,
    Lanes,
    PerLane,
    Points,
    RefitPoints,
)
from ..optimize.bfgs import BFGS, curves_down, newton_step
from ..optimize.fit import Fit
from ..optimize.hessian_products import COARSE, ROUGH
from ..optimize.newton import LBFGSState, dear as is_dear, newton, walk
from ..plans.plan import RefitRows
from ._acceleration import Acceleration
from ._enclosure import CAUTION, MAX_CONTRACTION
from ._expansion import GRADIENTS, ExpandedBatch, Expansion, ScaledExpansion, expandable
from ._metric import IdentityMetric, Products, RefitMetric, own_metric
from ._screen import SIZES, available, whitened_gradients

MAX_CHORD_STEPS = 20  # steps before a refit goes to the next rung
# ratios of successive steps above which another metric is used, for linear predictors and others
STALL_RATIOS = 0.5, 0.9
# gradients, relative to the first, at which L-BFGS stops for a check; BFGS stops at the last
NEAR = 1e-3, 1e-6
# Descent of one refit: the factor by which it must come nearer before the next check (0.5 and 0.1
# take as long, for networks of 417 and 2,041 parameters and a hidden Markov model of 44); the
# factor on the distance by its inverse Hessian (the true distance was 5 to 30 times as large; with
# factors of 1 and 10 checks and products take as long in all); its largest number of moves.
NEXT_LOOK_RATIO = 0.25
LEARNED_DISTANCE_FACTOR = 3.0
MOST = 3000
HURRY = 2  # steps to estimate the error of a refit whose reported losses are at another candidate
# Factor on the largest ratio of successive steps, as an estimate of the contraction: if the
# curvature changes linearly the first ratio is half of it (and less if there are few units for each
# parameter).
FIRST_SAFETY = 3.5
SAFETY = 1.5
PRODUCTS = 6  # products to estimate a ratio of lengths
LOSS_ROUNDING = 1e-13  # relative rounding error of a loss
LENGTH_NOISE = 1e-9  # steps shorter than this share of the natural length are rounding
EXPANSION_SAFETY = 2.0  # factor on the worst measured ratio of an expansion
# length of a last step, relative to the whole displacement, that counts as none; its factor if
# steps show no distance
LAST_STEP_RATIO = 1e-4
UNKNOWN_DISTANCE_FACTOR = 20.0
# parameters from which the model's preconditioner may be a better metric than the anchor's Hessian
FAR_REFIT_PARAMETERS = 500


class DescentLook(NamedTuple):
    """Selected refits at their candidates, and the remaining distance of each."""

    state: "RefitDescent"
    lanes: Lanes
    distance_left: PerLane
    foretold: PerLane | None = None

    def error(self) -> PerLane:
        """Errors of their summed held-out losses, as foretold or by a look at the losses."""
        if self.foretold is None:
            return self.state.loss_change(self.lanes, self.distance_left)
        return self.foretold

    def losses(self) -> Float[np.ndarray, "lanes ..."]:
        """Held-out losses at the candidate for which errors were computed last."""
        return self.state.scores[self.lanes]


Enough = Callable[[Lanes, "DescentLook | ScaledExpansion"], Flags]


class RefitDescent:
    """Batch in progress: whitened displacements, steps, distances, losses, errors and codes."""

    def __init__(
        self, fit: Fit, rows: RefitRows, fold_hessians: bool = False, expanded: bool = False
    ):
        """Set up the batch.

        With `fold_hessians` each refit uses its own Hessian at θ̂ even if the anchor's is cheaper.
        With `expanded` folds that are short runs are expanded.
        """
        self.fit = fit
        self.rows = rows
        self.center = fit.vector
        runs = expandable(fit, rows) if expanded else None
        self.expansion = Expansion(fit, rows, runs) if runs is not None else None
        self.gradients = GRADIENTS * len(rows.index)  # approximate number of gradients computed
        self.F = derive_batch(fit.objective, fit.theta, rows)
        count = len(rows.index)
        self.metric, singular, self.start = self._choose_metric(fold_hessians)
        self.u = np.zeros((count, fit.num_params))
        self.step = np.zeros((count, fit.num_params))
        # candidates where the last gradients were computed, and these
        self.seen = np.zeros((2, count, fit.num_params))
        self.first = np.full(count, np.inf)
        self.distance_left = np.full(count, np.inf)
        self.size = np.full(count, np.inf)
        self.extra = np.zeros(count)
        self.unsure = np.zeros(count)
        self.error, self.scores = np.full(count, np.inf), np.zeros((count, *self._width()))
        self.looked_at = np.full(count, np.inf)  # distances for which errors were computed last
        self.result = np.where(singular, RESULTS.undetermined, RESULTS.successful)
        self.open = ~singular

    def _choose_metric(
        self, fold_hessians: bool
    ) -> tuple[RefitMetric, np.ndarray, np.ndarray | None]:
        """Choose the folds' own Hessians for linear predictors and on request, else the anchor's.

        Returns the metric, the refits whose Hessian is singular, and the whitened gradients at θ̂
        if they are computed with it.
        """
        none = np.zeros(len(self.rows.index), bool)
        if self.fit.factor is None:
            return Products(self.fit, self.F, COARSE if fold_hessians else ROUGH), none, None
        fold_hessians = fold_hessians or self.linear
        if fold_hessians:
            return own_metric(self.fit, self.rows)
        return IdentityMetric(), none, None

    def _width(self) -> tuple[int, ...]:
        if self.fit.objective.pointwise:
            return (self.rows.index.shape[1],)
        return ()

    def theta(self, lanes: Lanes | slice = slice(None)) -> Points:
        """Raveled parameters of the candidates."""
        return self.center + self.fit.unwhiten(self.u[lanes])

    def gradient(self, lanes: Lanes, u: np.ndarray | None = None) -> Points:
        """Whitened gradients of each refit's own F."""
        theta = self.theta(lanes) if u is None else self.center + self.fit.unwhiten(u)
        return self.fit.whiten(self.F.gradient(theta, lanes))

    def begin(self) -> None:
        """Take the first step from θ̂."""
        everyone = np.arange(len(self.u))
        if self.expansion is not None:
            self.start = self.expansion.start
        if self.start is None and self.fit.objective.local and isinstance(self.F, DerivedBatch):
            self.start = self.fit.whiten(self.fit.gradient + self.F.weight_gradient(everyone))
        start = self.gradient(everyone) if self.start is None else self.start
        step = np.where(self.open[:, None], self.metric.solve(start, self.u, everyone), 0.0)
        self.open &= np.isfinite(step).all(1)
        self.result[~self.open] = RESULTS.undetermined
        self.u = np.where(self.open[:, None], -step, 0.0)
        self.step, self.first = step, self._length(self.u, -start)

    def begin_at(self, u: RefitPoints) -> None:
        """Begin at given displacements instead."""
        self.u = np.array(u)

    def loss_change(self, lanes: Lanes, remainder: PerLane) -> PerLane:
        """Largest change of the summed losses of each refit within a given distance, evaluated at
        the ends and not by a slope.

        A slope may be zero in a flat tail. For one scored unit the direction of the gradient is the
        worst case. For many units it is not typical of an error's direction, and twice its root
        mean square share is used. In a long fold the losses change in every direction, and the
        gradient, which may cost ten times as much, is not computed.
        """
        fit = self.fit
        finite = np.isfinite(remainder)
        theta = self.theta(lanes)
        self.looked_at[lanes] = remainder
        held = np.asarray(self.rows.held)[lanes]
        width = held.sum(1).max(initial=0)
        if isinstance(self.metric, ExpandedMetric):
            self.scores[lanes], self.error[lanes] = (
                self.F.losses(theta, lanes),
                self.metric.change(self.u[lanes], remainder, lanes),
            )
            return self.error[lanes]
        distance = np.where(finite, remainder, 0.0)[:, None]
        if self._sketched:
            last = self.step[lanes] / np.maximum(self.size[lanes, None], 1e-300)
        else:
            last = _unit(self.step[lanes])
        directions = [distance * last]
        # units for each parameter from which a fold counts as long
        if self.linear or not fit.objective.pointwise or width < 8 * fit.num_params:
            if fit.objective.pointwise:
                count = np.clip(held.sum(1), 1, fit.num_params)
            else:
                count = np.ones(len(lanes))
            if fit.objective.costs.falls:
                slopes = self.u[lanes]
            else:
                slopes = fit.whiten(self.F.slopes(theta, lanes))
            directions.append(
                distance * np.minimum(1.0, 2 / np.sqrt(count))[:, None] * self._steepest(slopes)
            )
        moves = fit.unwhiten(
            np.stack([sign * d for d in directions for sign in (1.0, -1.0)], axis=1)
        )
        self.scores[lanes], changes = self.F.around(theta, moves, lanes)
        error = np.where(np.isnan(changes).any(1), np.inf, changes.max(1))
        rounding = LOSS_ROUNDING * np.abs(self.scores[lanes]).reshape(len(lanes), -1).sum(1)
        self.error[lanes] = (
            np.where(finite | ~held.any(1), error, np.inf) + self.unsure[lanes] + rounding
        )
        return self.error[lanes]

    def losses_at(self, theta: Points) -> Callable[[], Float[np.ndarray, "refits ..."]]:
        """Return the function that gives all held-out losses at θ, the present candidates."""
        if self.expansion is not None and not self.u.any():
            return self.expansion.whole_fit_losses
        return lambda: self.F.losses(theta, np.arange(len(theta)))

    # the rungs

    def steps(
        self, lanes: Lanes, enough: Enough, most: int = MAX_CHORD_STEPS, fresh: bool = False
    ) -> Int[np.ndarray, " open"]:
        """Take accelerated steps, or Newton steps by products; returns the refits still open.

        `fresh` tells that no step was taken with this metric yet.
        """
        first = np.where(np.isfinite(self.first), self.first, 0.0)
        shortest = LENGTH_NOISE * np.maximum(self.natural, first)
        stalled = STALL_RATIOS[not self.linear]
        previous = np.where(fresh, np.inf, self.first)
        contraction = np.zeros(len(self.u))
        rejected = [lanes[:0]]
        if self._is_newton:
            memory = None
        else:
            memory = Acceleration(np.zeros_like(self.u), self.step.copy(), np.isfinite(previous))
        for k in range(most):
            if not lanes.size:
                break
            gradient = self.gradient(lanes)
            self.seen[:, lanes] = self.u[lanes], gradient
            plain = self.metric.solve(gradient, self.u[lanes], lanes)
            size = self._length(plain, gradient)
            before = previous[lanes]
            progress = size / np.maximum(before, 1e-300)
            if memory is None:
                step = plain
                along = progress
            else:
                step, along = memory.step(lanes, self.u[lanes], plain)
            floor = size <= shortest[lanes]
            stuck = ~(progress <= STALL_RATIOS[1]) & ~floor
            ratio = np.where(
                floor, 0.0, np.maximum(progress, np.where(np.isfinite(along), along, 0.0))
            )
            contraction[lanes] = np.maximum(contraction[lanes], ratio)
            # what a Newton step leaves shrinks with its length: the next one leaves a smaller
            # share, by as much
            shrinks = np.minimum(progress, 1.0) if self._sketched else np.ones(len(lanes))
            q = np.minimum((SAFETY if k else FIRST_SAFETY) * contraction[lanes] * shrinks, 0.95)
            # after a plain step nothing more is added
            distance = size * q / (1 - q) + self._unsolved_part(lanes)
            extra_length = np.linalg.norm(step - plain, axis=1)
            share = np.minimum(1.0, distance / np.maximum(extra_length, 1e-300))
            self.size[lanes], self.extra[lanes], previous[lanes] = (
                size,
                np.where(stuck, size, share * extra_length),
                size,
            )
            self.first[lanes] = np.where(np.isinf(self.first[lanes]), size, self.first[lanes])
            self._take(lanes, plain + share[:, None] * (step - plain), ~stuck)
            distance = np.where(stuck | np.isinf(before), np.inf, distance + share * extra_length)
            # largest ratio of steps at which a refit is judged after one step
            ready = (k > 0) | (contraction[lanes] * shrinks <= 0.01)
            done, beyond = self._accept(lanes, distance, ready, enough, k == most - 1)
            done |= floor & (progress > 0.3) & ~beyond
            # share of the gradient; if more remains after the first step of a nonconvex F, it may
            # have led to another minimum
            astray = (k == 0) & (progress > 0.5) & (self.dear and not self.fit.objective.convex)
            slow = (stuck | beyond | astray | (progress > stalled)) & ~np.isinf(before) & ~done
            rejected.append(lanes[slow])
            self.open[lanes[done]] = False
            lanes = lanes[~(done | slow)]
        return np.sort(np.concatenate([*rejected, lanes]))

    @property
    def _sketched(self) -> bool:
        """Whether lengths are measured by the metric's sketch of the inverse of H, from above."""
        return isinstance(self.metric, Products) and self.metric.sketched

    def _length(self, step: Points, gradient: Points) -> PerLane:
        """Lengths of steps that were solved for whitened gradients.

        By the Hessian if it is sketched.
        """
        return np.sqrt(
            np.maximum(np.sum(step * (gradient if self._sketched else step), axis=1), 0.0)
        )

    def _steepest(self, slopes: Points) -> Points:
        """Directions of length one along which numbers of these whitened gradients change most."""
        if self._sketched:
            towards = cast(Products, self.metric).inverse.about(slopes)
        else:
            towards = slopes
        return towards / np.sqrt(
            np.maximum(np.sum(slopes * towards, axis=1, keepdims=True), 1e-300)
        )

    @property
    def natural(self) -> float:
        """Length along which F changes by about one."""
        return float(np.sqrt(abs(float(self.fit.value)) / self.fit.objective.num_units))

    @property
    def linear(self) -> bool:
        """Whether a refit's own Hessian at θ̂, and its units' losses, are cheap."""
        return isinstance(self.fit.objective, AbstractLinearPredictor)

    @property
    def dear(self) -> bool:
        """Whether a refit's own Hessian costs too much, or is never formed."""
        return self.fit.factor is None or is_dear(self.fit.objective, self.fit.num_params)

    def _unsolved_part(self, lanes: np.ndarray) -> float | PerLane:
        """Part of the steps that conjugate gradients left unsolved, in the norm of the Hessian."""
        # factor on the estimated remainder of a solve (for a CRF it was 0.4 to 0.8 of this)
        if isinstance(self.metric, Products):
            return 2.0 * self.metric.remainder[lanes]
        return 0.0

    @property
    def _is_newton(self) -> bool:
        """Whether the metric is that of the candidate, so that its steps are Newton steps."""
        return isinstance(self.metric, Products | ExpandedMetric)

    def _take(self, lanes: np.ndarray, step: np.ndarray, good: np.ndarray) -> None:
        self.u[lanes[good]] -= step[good]
        finite = np.isfinite(step).all(1)  # otherwise the step before is used
        self.step[lanes[finite]] = step[finite]

    def _accept(
        self, lanes: np.ndarray, distance: np.ndarray, ready: np.ndarray, enough: Enough, last: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mark refits that are near enough, and those for which the curvature is uninformative.

        The steps decide first, unless they are the last, then the curvature at the candidates.
        Until that tells the distance errors are foretold, from the last look at them, as a look
        costs several losses.
        """
        done = np.zeros(len(lanes), bool)
        beyond = np.zeros(len(lanes), bool)
        with np.errstate(invalid="ignore", divide="ignore"):  # zero before the first look
            foretold = np.nan_to_num(
                self.error[lanes] * distance / self.looked_at[lanes], posinf=0.0
            )
        self.distance_left[lanes] = distance
        places = np.flatnonzero(np.isfinite(distance) & ready)
        if places.size and not (last or self._is_newton):
            places = places[
                enough(
                    lanes[places],
                    DescentLook(self, lanes[places], distance[places], foretold[places]),
                )
            ]
        if places.size and not self._is_newton:
            distance[places] = np.maximum(
                distance[places], self._plain_distance(lanes[places]) + self.extra[lanes[places]]
            )
            self.distance_left[lanes[places]], beyond[places] = (
                distance[places],
                np.isinf(distance[places]),
            )
        if places.size:
            done[places] = enough(lanes[places], DescentLook(self, lanes[places], distance[places]))
        return done, beyond

    def _plain_distance(self, lanes: np.ndarray) -> PerLane:
        """Remaining distances by the curvature at candidates; infinite if it is uninformative.

        A distance above the length of the first step counts as uninformative too.
        """
        q = self.contractions(lanes)
        size = self.size[lanes]
        distance = size * q / (1 - np.minimum(q, MAX_CONTRACTION))
        return np.where((q < MAX_CONTRACTION) & (distance <= self.first[lanes]), distance, np.inf)

    def contractions(self, lanes: Lanes) -> PerLane:
        """Contraction of steps with the metric P, the size of I − P∇²F(u, w), by Lanczos' method
        from a random direction.

        Products are secants from the point of the last gradient. P∇²F is symmetric in the norm of
        P⁻¹. A refit is done when the rest of its largest Ritz value is small. Contractions of the
        steps themselves are not enough: if a metric is far too steep in some direction, both the
        step along it and the change of that step are small.
        """
        # step of secants, relative to a length along which F changes by about one; 1e-9 of that
        # length is noise
        length = 1e-5 * self.natural
        (point, base_gradient) = self.seen[:, lanes]
        most = min(PRODUCTS, self.u.shape[1])
        largest = np.zeros(len(lanes))
        active = np.arange(len(lanes))
        basis, duals = np.zeros((2, len(lanes), most, self.u.shape[1]))
        ritz = np.zeros((len(lanes), most, most))
        dual = np.random.default_rng(0).standard_normal(self.u.shape[1]) * np.ones_like(point)
        along = self.metric.solve(dual, point, lanes)
        for k in range(most):
            with np.errstate(invalid="ignore", divide="ignore"):
                size = np.sqrt(np.sum(along * dual, axis=1))[:, None]
                basis[active, k], duals[active, k] = along / size, dual / size
            move = length * _unit(basis[active, k])
            image = (
                self.gradient(lanes[active], point[active] + move) - base_gradient[active]
            ) / length
            image *= np.linalg.norm(basis[active, k], axis=1, keepdims=True)
            sound = np.isfinite(image).all(1)  # unless P is indefinite or F undefined there
            largest[active[~sound]] = np.inf
            active = active[sound]
            image = image[sound]
            entries = np.einsum("lkp,lp->lk", basis[active, : k + 1], image)
            ritz[active, k, : k + 1] = ritz[active, : k + 1, k] = entries
            dual = image - np.einsum("lk,lkp->lp", entries, duals[active, : k + 1])
            along = self.metric.solve(dual, point[active], lanes[active])
            values, vectors = np.linalg.eigh(ritz[active, : k + 1, : k + 1])
            farthest = np.argmax(np.abs(1 - values), axis=1)[:, None]
            deviation = np.take_along_axis(np.abs(1 - values), farthest, 1)[:, 0]
            residual = np.sqrt(np.maximum(np.sum(along * dual, axis=1), 0.0))
            ritz_error = residual * np.abs(np.take_along_axis(vectors[:, -1], farthest, 1)[:, 0])
            largest[active] = np.maximum(largest[active], np.hypot(deviation, ritz_error))
            # after three products a residual of a twentieth of the largest value is small; one of a
            # thousandth is noise
            unsettled = ((k < 2) | (ritz_error > 0.05 * deviation)) & (residual > 1e-3 * deviation)
            active = active[unsettled]
            along = along[unsettled]
            dual = dual[unsettled]
            if not active.size:
                break
        return CAUTION * largest

    def estimate(self, lanes: Lanes) -> Int[np.ndarray, " open"]:
        """Estimate distances and errors by the curvature at the candidates.

        Returns the refits that stay open.
        """
        distance = self.distance_left[lanes] = self._plain_distance(lanes) + self.extra[lanes]
        self.loss_change(lanes, distance)
        return lanes[~np.isfinite(distance)]

    def screen(self, lanes: Lanes, enough: Enough) -> Int[np.ndarray, " open"]:
        """Step by the left-out units and samples of the others.

        Returns the refits that samples do not settle.
        """
        for size in range(len(SIZES)):
            if not lanes.size:
                break
            gradient, unsure = whitened_gradients(self.fit, self.rows, self.u, lanes, size)
            step = self.metric.solve(gradient, self.u[lanes], lanes)
            length = np.linalg.norm(step, axis=1)
            first = self.first[lanes]
            ratio = length / np.maximum(first, 1e-300)
            q = np.minimum(FIRST_SAFETY * ratio, 0.95)
            shrinks = ratio < 0.5
            self._take(lanes, step, shrinks)
            self.size[lanes], self.unsure[lanes] = length, unsure
            distance = np.where(shrinks & np.isfinite(first), length * q / (1 - q), np.inf)
            self.first[lanes] = np.where(np.isfinite(first), first, length)
            self.distance_left[lanes] = distance
            done = shrinks & enough(lanes, DescentLook(self, lanes, distance))
            self.open[lanes[done]] = False
            lanes = lanes[~done]
        self.unsure[lanes] = 0.0
        return lanes

    def newton(self, lanes: Lanes) -> None:
        """Take damped Newton steps to the minimiser reached by descent; a code says if none is.

        They start at the candidates if the steps there had nearly ended, else from θ̂. Refits go
        one by one, with the programs of the fit, if that takes less time than compiling others, or
        if a gradient costs much: as refits converge, a call for all of them would cost as much as
        before.
        """
        params = self.fit.num_params
        gradient_cost = work(self.fit.objective, params)
        # Newton's method takes about ten Hessians. A chain of 5,000 steps, 11 parameters (2e5
        # operations a gradient) took 30 ms a refit, and 130 ms side by side.
        alone = gradient_cost >= 1e5 or len(lanes) * 10 * params * gradient_cost <= COMPILING
        size = 1 if alone else max(1, HESSIAN_ENTRIES // params**2)
        finite, converged = np.zeros((2, len(self.u)), bool)
        for chunk in (lanes[k : k + size] for k in range(0, len(lanes), size)):
            F, F_lanes = (self._function_of(chunk), ONE) if size == 1 else (self.F, chunk)
            solution = newton(
                F,
                self._start(F, chunk, F_lanes),
                F_lanes,
                self.fit.null_space,
                cast(np.ndarray, self.fit.factor),
                self.center,
            )
            self.u[chunk] = self.fit.back(solution.theta - self.center)
            self.distance_left[chunk] = solution.size
            finite[chunk], converged[chunk] = np.isfinite(solution.value), solution.converged
            for k in np.flatnonzero(finite[chunk] & ~solution.converged):
                converged[chunk[k]] = self._to_limit(
                    F, chunk[k : k + 1], F_lanes[k : k + 1], float(solution.value[k])
                )
        self._settle(lanes, finite[lanes], converged[lanes])

    def _to_limit(
        self,
        F: Functions,
        refit: Int[np.ndarray, " single"],
        F_lanes: Int[np.ndarray, " single"],
        value: float,
    ) -> bool:
        """Finish a refit whose parameter runs to a limit, such as a dispersion to zero.

        The parameter is held at the limit, and F is minimised over the others. Returns whether F is
        no higher there than before.
        """
        (theta,) = self.theta(refit)
        limit = self.fit.objective.parameters.at_limit(theta)
        free = limit == theta
        if free.all():
            return False
        flat = np.vstack([self.fit.null_space, np.eye(len(theta))[~free]])
        # the curvature along what is held is rounding, by which steps would move it
        held = SimpleNamespace(
            look=F.look, hessian=lambda *arguments: F.hessian(*arguments) * np.outer(free, free)
        )
        solution = newton(
            cast(Functions, held),
            limit[None],
            F_lanes,
            flat,
            cast(np.ndarray, self.fit.factor),
            self.center,
        )
        if not solution.converged[0] or solution.value[0] > value + LOSS_ROUNDING * (
            1 + abs(value)
        ):
            return False
        self.u[refit], self.distance_left[refit] = (
            self.fit.back(solution.theta - self.center),
            solution.size,
        )
        return True

    def _start(
        self,
        F: Functions,
        lanes: Int[np.ndarray, " selected"],
        F_lanes: Int[np.ndarray, " selected"],
    ) -> np.ndarray:
        """Start of Newton's method.

        The candidates if they are nearly converged and lower than θ̂, else θ̂.
        """
        # refits whose last step was shorter than this share of the first continue from their place
        start = np.tile(self.center, (len(lanes), 1))
        is_close = self.size[lanes] <= 0.1 * self.first[lanes]
        if is_close.any():
            candidates = self.theta(lanes[is_close])
            lower = (
                F.look(candidates, F_lanes[is_close])[0]
                < F.look(start[is_close], F_lanes[is_close])[0]
            )
            start[np.flatnonzero(is_close)[lower]] = candidates[lower]
        return start

    def _function_of(self, refit: Int[np.ndarray, " single"]) -> Functions:
        """Return F of one refit, with the programs of the fit."""
        (weights,) = weights_of(self.rows, self.fit.objective.num_units, refit)
        return function(self.fit.objective, self.fit.theta, weights).of

    def _settle(self, lanes: np.ndarray, finite: np.ndarray, converged: np.ndarray) -> None:
        """Judge refits at the end, and give a code to those that do not exist."""
        finite &= np.isfinite(self.loss_change(lanes, self.distance_left[lanes]))
        for which, code in ((~converged, RESULTS.not_converged), (~finite, RESULTS.nonfinite)):
            failures = lanes[which]
            self.result[failures], self.distance_left[failures], self.error[failures] = (
                code,
                np.inf,
                np.inf,
            )

    def alone(self, lanes: Lanes, enough: Enough) -> None:
        """Descend from θ̂ for each refit, then take Newton steps with its own Hessian, by products.

        Near the minimum F itself is too flat to compare steps, and the inverse Hessian of a descent
        understates the distance.
        """
        self.metric = IdentityMetric()  # lengths are whitened ones
        for lane, weight in zip(
            lanes, weights_of(self.rows, self.fit.objective.num_units, lanes), strict=True
        ):
            F = function(self.fit.objective, self.fit.theta, weight)
            refit = np.array([lane])
            if any(
                self._finish(F, point, refit, enough)
                for point in self._descents(F, weight, refit, enough)
            ):
                self.open[refit] = False
                continue
            self.distance_left[refit] = UNKNOWN_DISTANCE_FACTOR * self.size[refit]
            converged = self.size[refit] <= LAST_STEP_RATIO * np.maximum(
                1.0, np.linalg.norm(self.u[refit], axis=1)
            )
            self._settle(refit, np.isfinite(self.size[refit]), converged)

    def _descents(
        self, F: Function, weight: np.ndarray, refit: np.ndarray, enough: Enough
    ) -> Iterator[LBFGSState | BFGS]:
        """Yield the points of the descent of one refit, each nearer to the minimum.

        It is L-BFGS in the coordinates of the model's preconditioner or, if there is none, BFGS
        from the anchor's Hessian.
        """
        fit = self.fit
        first = float(self.first[refit[0]])
        descent = None
        for share in NEAR if fit.num_params > FAR_REFIT_PARAMETERS else ():
            descent = walk(
                fit.objective,
                F,
                self.center if descent is None else descent.theta,
                weight,
                share * first,
                descent,
            )
            if descent is None:
                break
            yield descent
        if descent is not None:
            return
        minimiser = BFGS(F, self.center, fit.newton_step)
        checked_size = np.inf

        def is_near_enough(size: float) -> bool:
            nonlocal checked_size
            if size > NEXT_LOOK_RATIO * checked_size:
                return False
            checked_size = size
            self._place_refit(refit, minimiser.theta, minimiser.step)
            return size <= NEAR[-1] * first or bool(
                enough(refit, DescentLook(self, refit, np.array([LEARNED_DISTANCE_FACTOR * size])))[
                    0
                ]
            )

        while minimiser.descend(is_near_enough, MOST):
            yield minimiser
        yield minimiser

    def _finish(
        self, F: Function, result: LBFGSState | BFGS, refit: np.ndarray, enough: Enough
    ) -> bool:
        """Take Newton steps of one refit from the end of a descent while they contract.

        Returns whether it is near enough.
        """
        theta = result.theta
        (_, gradient) = F.look(result.theta)
        learnt = result.newton(gradient)
        shortest = LENGTH_NOISE * max(self.natural, float(self.first[refit[0]]))
        self._place_refit(refit, theta, learnt)
        for _ in range(MAX_CHORD_STEPS):
            product = self._product(F, theta)
            before = max(float(gradient @ learnt), 1e-300)
            step, residual = newton_step(product, result.newton, gradient)
            if not np.isfinite(residual):
                return False
            theta = theta - step
            gradient = F.look(theta)[1]
            learnt = result.newton(gradient)
            self._place_refit(refit, theta, step)
            contraction = SAFETY * max(
                residual, (max(float(gradient @ learnt), 0.0) / before) ** 0.5
            )
            floor = self.size[refit] <= shortest
            # share of a gradient; if a Newton step leaves more, no minimum is guaranteed (of 1,008
            # refits two had none)
            if not (contraction <= 0.25 or floor):
                return False
            if floor:
                self.distance_left[refit] = self.size[refit]
            else:
                self.distance_left[refit] = self.size[refit] * _beyond(contraction)
            if enough(refit, DescentLook(self, refit, self.distance_left[refit]))[0] or floor:
                return self.fit.objective.convex or not self._beside_saddle(
                    refit, self._product(F, theta), result
                )
        return False

    def _product(self, F: Function, theta: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that multiplies by ∇²F at θ, plus one along flat directions."""
        product = F.products(theta)
        flat = self.fit.null_space
        return lambda v: product(v) + (v @ flat.T) @ flat

    def _beside_saddle(
        self,
        refit: np.ndarray,
        product: Callable[[np.ndarray], np.ndarray],
        result: LBFGSState | BFGS,
    ) -> bool:
        """Tell whether F curves down where a refit's Newton steps end, which is then no minimum."""
        direction = np.random.default_rng(0).standard_normal(self.u.shape[1])
        if not curves_down(product, result.newton, self.fit.raw(direction)):
            return False
        self.size[refit] = self.first[refit]
        return True

    def _place_refit(self, refit: np.ndarray, theta: np.ndarray, step: np.ndarray) -> None:
        """Move a refit to θ, with the step that led there or the next one."""
        self.u[refit], self.step[refit] = self.fit.back(np.stack([theta - self.center, step]))
        self.size[refit] = np.linalg.norm(self.step[refit], axis=1)


def _unit(vectors: Points) -> Points:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-300)


def _beyond(keep: float) -> float:
    """Bound the distance after a Newton step that left `keep` of the gradient, in its lengths.

    It follows from Kantorovich's theorem, whose `h = L‖s‖ ≤ ½` is twice `keep`.
    """
    return 2 / (1 + np.sqrt(1 - 4 * keep)) - 1


def lead(state: RefitDescent, enough: Enough, hurry: bool = False, sampled: bool = True) -> None:
    """Refine a batch after its first step until `enough` holds, by samples of units first if these
    are accurate enough.

    In a hurry the batch is refined only until errors can be estimated.
    """
    lanes = np.flatnonzero(state.open)
    sampled = sampled and available(state.fit, state.rows)
    fresh = sampled or state.expansion is not None
    if state.expansion is not None:
        lanes = expand(state, lanes, enough, HURRY if hurry else MAX_CHORD_STEPS)
    if sampled:
        lanes = state.screen(lanes, enough)
    lanes = state.steps(lanes, enough, HURRY if hurry else MAX_CHORD_STEPS, fresh=fresh)
    if hurry and lanes.size:
        lanes = state.estimate(lanes)
    if lanes.size and not state.dear:
        state.newton(lanes)
    elif lanes.size and not hurry:
        state.alone(lanes, enough)


class ExpandedMetric:
    """Metric of the selected refits' own Hessians at their candidates, by the expansion."""

    def __init__(self, state: RefitDescent, lanes: Lanes):
        assert state.expansion is not None
        self.expansion = state.expansion
        self.place = np.full(len(state.u), -1)
        self.place[lanes] = np.arange(len(lanes))
        self.inverse = np.linalg.inv(state.expansion.curvature(state.u[lanes], lanes))

    def solve(self, gradient, u, lanes):
        del u
        return np.einsum("rij,rj->ri", self.inverse[self.place[lanes]], gradient)

    def change(self, u: Points, remainder: PerLane, lanes: Lanes) -> PerLane:
        """Largest change of losses within a distance, by the expansion."""
        return EXPANSION_SAFETY * self.expansion.change(u, remainder, lanes)


def expand(
    state: RefitDescent, lanes: Lanes, enough: Enough, most: int
) -> Int[np.ndarray, " open"]:
    """Move a batch to the minimisers of the expansion; returns the refits that are still open.

    These continue from there with full gradients and their own Hessians, which the expansion also
    gives.
    """
    assert state.expansion is not None
    batch = state.expansion.solve()
    anchor_metric = state.metric
    if state.fit.objective.costs.separate:
        theta = state.center + state.fit.unwhiten(np.nan_to_num(batch.u))
        everyone = np.arange(len(batch.u))
        error = state.expansion.change(batch.u, batch.distance_left, everyone)
        batch = batch._replace(losses=state.F.losses(theta, everyone), error=error)
    state.first[lanes] = np.linalg.norm(state.expansion.start[lanes], axis=1)
    trusted = np.isfinite(batch.error[lanes])
    lanes, invalid = lanes[trusted], lanes[~trusted]
    if not lanes.size:
        return invalid
    state.u[lanes] = batch.u[lanes]
    factor, done = _calibration(state, lanes, enough, batch)
    settled = lanes[done]
    lanes = lanes[~done]
    error = factor * batch.error[settled]
    scored = state.rows.held[settled].sum(1)
    state.distance_left[settled], state.scores[settled], state.open[settled] = (
        factor * batch.distance_left[settled],
        batch.losses[settled],
        False,
    )
    # share of the largest accepted error for each scored unit below which errors count as equal
    state.error[settled] = np.maximum(
        error, 0.01 * scored * np.max(error / np.maximum(scored, 1), initial=0.0)
    )
    state.gradients = state.expansion.gradients + GRADIENTS * (len(lanes) + len(invalid))
    state.metric = ExpandedMetric(state, lanes)
    lanes = state.steps(lanes, enough, most)
    state.metric = anchor_metric
    return np.sort(np.concatenate([lanes, invalid]))


def _calibration(
    state: RefitDescent, lanes: Lanes, enough: Enough, batch: ExpandedBatch
) -> tuple[float, Flags]:
    """Return the factor on the estimates, and the refits that are then near enough.

    Full gradients of the worst refits that pass measure how good the estimates are. If the
    estimates are too small, the factor grows and other refits are the worst that pass.
    """
    factor = EXPANSION_SAFETY
    seen = np.zeros(len(state.u), bool)
    while True:
        done = enough(lanes, ScaledExpansion(batch, lanes, factor))
        border = lanes[done & ~seen[lanes]]
        # accepted refits of largest error whose gradients measure how good the estimates are
        border = border[np.argsort(-batch.error[border], kind="stable")[:16]]
        if not border.size:
            return factor, done
        seen[border] = True
        worst = EXPANSION_SAFETY * _ratio(state, border, batch)
        if worst <= factor:
            return factor, done
        factor = worst


def _ratio(state: RefitDescent, lanes: Lanes, batch: ExpandedBatch) -> float:
    """Return the largest ratio of changes in one Newton step to their estimates."""
    step = ExpandedMetric(state, lanes).solve(state.gradient(lanes), state.u[lanes], lanes)
    losses = state.F.losses(state.center + state.fit.unwhiten(state.u[lanes] - step), lanes)
    total = lambda part: np.abs(part).reshape(len(lanes), -1).sum(1)
    changes = total(losses - batch.losses[lanes]), np.linalg.norm(step, axis=1)
    expansion_rounding = 1e-9  # rounding error of a loss, and of a whitened length
    estimates = (
        batch.error[lanes] + expansion_rounding * (1 + total(losses)),
        batch.distance_left[lanes] + expansion_rounding,
    )
    return float(np.max(np.array(changes) / np.array(estimates)))
