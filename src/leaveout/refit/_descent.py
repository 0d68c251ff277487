"""Refits of any model in a batch: candidates, their distances from the exact refits, and the errors
of their losses.

Coordinates are the anchor's whitened u = Lᵀ(θ − θ̂), H = L Lᵀ. After the first step, with the
fold's own Hessian at θ̂ (linear predictors, and where few units give it) or the anchor's, by the
fold's units or a gradient, `RUNGS` lists the ways on, from the cheapest. Each takes the refits that
those before left open:

    rung          one refit costs                            uses
    expansion     nothing: passes that all share
    derivatives of every fold's own score, where folds are short runs
    samples       its own units and a sample of others
    the same metric, where there are very many refits
    steps         a gradient each                            the same, accelerated
    Newton        a few Hessians, with a line search
    its own, where a Hessian costs few gradients
    alone         a descent from θ̂ of its own
    quasi-Newton, and its own by products, elsewhere

The remaining distance is estimated as λ/(1 − C), with λ the length of the next step and C its
contraction by the curvature at the candidate. The error is the largest change of the losses within
that distance, in both directions of steepest change and along the step.

Steps r(u) = P ∇F(u) with a fixed metric P shrink by the same factor each time. Anderson's
acceleration also uses the points that a refit has visited. Among their combinations
ū = u − Σ γ_j Δu_j it takes the one whose linearised step r̄ = r − Σ γ_j Δr_j is least, and steps
from there: u ← ū − r̄. On a quadratic F this is GMRES, which does not require P to be symmetric
(D. G. Anderson, J. ACM 12, 1965; H. F. Walker and P. Ni, SIAM J. Numer. Anal. 49, 2011).

Where a gradient of every refit costs too much, the change of ∇F between θ̂ and a refit is estimated
from a sample of units. For F(θ, w) = Σ_n w_n ℓ_n(θ) + a quadratic, and m units drawn with
probabilities p_n,

    ∇F(θ̂ + Δ, 1) = ∇F(θ̂, 1) + HΔ + b(Δ),
    b(Δ) ≈ (1/m) Σ_drawn (½ (∇ℓ_n(θ̂ + Δ) + ∇ℓ_n(θ̂ − Δ)) − ∇ℓ_n(θ̂)) / p_n,

without the part that is odd and of third order in Δ. Only the effect of b on the refit's loss is
computed, b · H⁻¹∇S, which needs one directional derivative for every drawn unit. The contribution
of the left-out units is not sampled.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import linalg, ndarray
from numpy.random import default_rng

from .._runtime import (
    RESULTS,
    Array,
    Arrays,
    cached_on,
    compile_static,
    jax,
    jnp,
    join,
    largest_first,
    record,
    silence,
    slices,
)
from ..linalg import conjugate_gradients
from ..objectives import (
    COMPILING,
    HESSIAN_ENTRIES,
    ONE,
    AbstractLinearPredictor,
    AbstractObjective,
    ClosedFormBatch,
    DerivedBatch,
    Flags,
    Function,
    Functions,
    HeldOutLosses,
    Lanes,
    Matrices,
    PerLane,
    PerUnit,
    Points,
    Vector,
    derive_batch,
    function,
    held_out,
    own_passes,
    ravel,
    unravel,
    weights_of,
    work,
)
from ..optimize import BFGS, COARSE, ROUGH, Fit, curves_down, newton_step
from ..optimize.newton import LBFGSState, NewtonResult, dear as is_dear, newton, walk
from ..plans import RefitRows, few_size
from ._anchor import DenseMetric, IdentityMetric, OwnHessians, Products, RefitMetric, own_metric
from ._enclosure import CAUTION, MAX_CONTRACTION
from ._expansion import GRADIENTS, ExpandedBatch, Expansion, ScaledExpansion, expandable
from ._refit_batch import Rung, climb, put, take

MAX_CHORD_STEPS = 20  # steps before a refit goes to the next rung
DEPTH = 5  # number of moves that acceleration keeps
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
# gradients that Newton's method takes a parameter (about ten Hessians), and a descent in all
NEWTON_GRADIENTS = 10
DESCENT_GRADIENTS = 300
MEASURED = 4  # refits whose change of curvature is measured
SIZES = 64, 512  # units drawn: few for every refit, more for refits that these do not settle
MIN_SCREENED_REFITS = 200  # number of refits from which sampling saves time


class DescentCandidates(NamedTuple):
    """Refits of a batch at their candidates, one entry of each array a refit.

    There are their numbers in the batch, whitened displacements and last steps, lengths of the
    first steps and of the last with the batch's metric (infinite if there was none), estimated
    distances from the exact refits, held-out losses and their errors, with the distance for which
    these were computed, codes, numbers of gradients, and whether a refit is open.
    """

    lanes: Lanes
    u: Points
    step: Points
    first: PerLane
    size: PerLane
    distance_left: PerLane
    losses: HeldOutLosses
    error: PerLane
    looked_at: PerLane
    result: Lanes
    gradients: PerLane
    open: Flags


class DescentLook:
    """Refits at their candidates, whose losses are computed when their errors are asked for,
    unless these are foretold.
    """

    def __init__(
        self,
        batch: "Descent",
        candidates: DescentCandidates,
        foretold: PerLane | None = None,
        unsure: PerLane | float = 0.0,
    ):
        self.batch = batch
        self.candidates = candidates
        self.lanes = candidates.lanes
        self.distance_left = candidates.distance_left
        self.foretold = foretold
        self.unsure = unsure

    def error(self) -> PerLane:
        """Errors of their summed held-out losses, as foretold or by a look at the losses."""
        if self.foretold is not None:
            return self.foretold
        self.candidates = self.batch.evaluate(self.candidates, self.unsure)
        return self.candidates.error

    def losses(self) -> HeldOutLosses:
        """Held-out losses at the candidate for which errors were computed last."""
        return self.candidates.losses


Enough = Callable[["DescentLook | ScaledExpansion"], Flags]


@record
class Descent:
    """Batch of refits: F(·, w) of each, the metric of their steps, and their candidates.

    `natural` is the length along which F changes by about one. For `linear` predictors a refit's
    own Hessian at θ̂, and its units' losses, are cheap; elsewhere its own Hessian may be too
    `dear`, or never formed. `enough` marks the refits that are near enough. In a `hurry` the batch
    is refined only until errors can be estimated. Where it is `sampled`, samples of units may stand
    for all.
    """

    fit: Fit
    rows: RefitRows
    F: Any
    metric: RefitMetric
    candidates: DescentCandidates
    natural: float
    linear: bool
    dear: bool
    expansion: Expansion | None
    enough: Enough = lambda look: np.zeros(len(look.lanes), bool)
    hurry: bool = False
    sampled: bool = False

    @property
    def open(self) -> Flags:
        """Whether each refit is open."""
        return self.candidates.open

    @property
    def open_candidates(self) -> DescentCandidates:
        """Candidates of the open refits."""
        return take(self.candidates, np.flatnonzero(self.open))

    def merge(self, part: DescentCandidates) -> "Descent":
        """Return the batch with these candidates."""
        return replace(self, candidates=put(self.candidates, [(part.lanes, part)]))

    @property
    def theta(self) -> Points:
        """Raveled parameters of the candidates."""
        return self.fit.quadratic.at(self.candidates.u)

    def gradient(self, u: Points, lanes: Lanes) -> Points:
        """Whitened gradients of each refit's own F."""
        return self.fit.quadratic.whiten(self.F.look(self.fit.quadratic.at(u), lanes)[1])

    def losses(self) -> HeldOutLosses:
        """Held-out losses at the candidates."""
        if self.expansion is not None and not self.candidates.u.any():
            return self.expansion.whole_fit_losses()
        return self.F.losses(self.theta, self.candidates.lanes)

    def length(self, step: Points, gradient: Points) -> PerLane:
        """Lengths of steps that were solved for whitened gradients.

        By the Hessian if it is sketched.
        """
        squares = np.sum(step * (gradient if self.metric.sketched else step), 1)
        return np.sqrt(np.maximum(squares, 0.0))

    def evaluate(
        self, candidates: DescentCandidates, unsure: PerLane | float = 0.0
    ) -> DescentCandidates:
        """Compute the losses, and their largest change within the distances left, evaluated at the
        ends and not by a slope. Errors are larger by as much as is `unsure`.

        A slope may be zero in a flat tail. For one scored unit the direction of the gradient is the
        worst case. For many units it is not typical of an error's direction, and twice its root
        mean square share is used. In a long fold the losses change in every direction, and the
        gradient, which may cost ten times as much, is not computed.
        """
        fit = self.fit
        lanes, u, step, _, size, remainder = candidates[:6]
        theta = fit.quadratic.at(u)
        if isinstance(self.metric, ExpandedMetric):
            losses = self.F.losses(theta, lanes)
            error = self.metric.change(u, remainder, lanes)
            return candidates._replace(losses=losses, error=error, looked_at=remainder)
        held = self.rows.held[lanes]
        is_finite = np.isfinite(remainder)
        distance = np.where(is_finite, remainder, 0.0)[:, None]
        if self.metric.sketched:
            directions = [distance * step / np.maximum(size[:, None], 1e-300)]
        else:
            directions = [distance * _unit(step)]
        # units for each parameter from which a fold counts as long
        width = held.sum(1).max(initial=0)
        if self.linear or not fit.objective.pointwise or width < 8 * fit.num_params:
            if fit.objective.pointwise:
                count = np.clip(held.sum(1), 1, fit.num_params)
            else:
                count = np.ones(len(lanes))
            if fit.objective.costs.falls:
                slopes = u
            else:
                slopes = fit.quadratic.whiten(self.F.slopes(theta, lanes))
            share = np.minimum(1.0, 2 / np.sqrt(count))[:, None]
            directions.append(distance * share * self._steepest(slopes))
        moves = [sign * direction for direction in directions for sign in (1.0, -1.0)]
        losses, changes = self.F.around(theta, fit.quadratic.unwhiten(np.stack(moves, 1)), lanes)
        error = np.where(np.isnan(changes).any(1), np.inf, changes.max(1))
        error = np.where(is_finite | ~held.any(1), error, np.inf)
        error += unsure + LOSS_ROUNDING * np.abs(losses).reshape(len(lanes), -1).sum(1)
        return candidates._replace(losses=losses, error=error, looked_at=remainder)

    def _steepest(self, slopes: Points) -> Points:
        """Directions of length one along which numbers of these whitened gradients change most."""
        towards = slopes
        if self.metric.sketched:
            towards = cast(Products, self.metric).inverse.about(slopes)
        squares = np.sum(slopes * towards, 1, keepdims=True)
        return towards / np.sqrt(np.maximum(squares, 1e-300))

    def curvature_distance(
        self, candidates: DescentCandidates, point: Points, gradient: Points
    ) -> PerLane:
        """Remaining distances by the curvature at candidates; infinite if it is uninformative.

        A distance above the length of the first step counts as uninformative too.
        """
        q = self.contractions(candidates.lanes, point, gradient)
        with silence("invalid"):  # a step without an end
            distance = candidates.size * q / (1 - np.minimum(q, MAX_CONTRACTION))
        is_informative = (q < MAX_CONTRACTION) & (distance <= candidates.first)
        return np.where(is_informative, distance, np.inf)

    def contractions(self, lanes: Lanes, point: Points, base_gradient: Points) -> PerLane:
        """Contraction of steps with the metric P, the size of I − P∇²F(u, w), by Lanczos' method
        from a random direction, or of refits that have their own Hessians by their own units.

        Products are secants from the point of the last gradient. P∇²F is symmetric in the norm of
        P⁻¹. A refit is done when the rest of its largest Ritz value is small. Contractions of the
        steps themselves are not enough: if a metric is far too steep in some direction, both the
        step along it and the change of that step are small.
        """
        if self.by_units:
            return CAUTION * self._curvature_changes(lanes, point)
        # step of secants, relative to a length along which F changes by about one; 1e-9 of that
        # length is noise
        length = 1e-5 * self.natural
        largest = np.full(len(lanes), np.inf)

        def image(direction: Points, places: Lanes) -> Points:
            size = linalg.norm(direction, axis=1, keepdims=True) / length
            gradient = self.gradient(point[places] + direction / size, lanes[places])
            return (gradient - base_gradient[places]) * size

        def is_settled(places: Lanes, matrices: Matrices, following: PerLane) -> Flags:
            values, vectors = linalg.eigh(matrices)
            deviations = np.abs(1 - values)
            rows = np.arange(len(places))
            farthest = np.argmax(deviations, 1)
            deviation = deviations[rows, farthest]
            ritz_error = following * np.abs(vectors[rows, -1, farthest])
            is_first = np.isinf(largest[places])
            largest[places] = np.maximum(
                np.where(is_first, 0.0, largest[places]), np.hypot(deviation, ritz_error)
            )
            # after three products a residual of a twentieth of the largest value is small; one of a
            # thousandth is noise
            is_small = (matrices.shape[1] > 2) & (ritz_error <= 0.05 * deviation)
            return is_small | (following <= 1e-3 * deviation)

        solution = conjugate_gradients.solve(
            image,
            lambda dual, places: self.metric.solve(dual, point[places], lanes[places]),
            default_rng(0).standard_normal(point.shape[1]) * np.ones_like(point),
            min(PRODUCTS, point.shape[1]),
            settled=is_settled,
        )
        # where P is indefinite, or F curves down or is undefined, nothing is known
        largest[~solution.is_convex] = np.inf
        return CAUTION * largest

    @property
    def by_units(self) -> bool:
        """Whether steps are with the refits' own Hessians at θ̂, by their own units."""
        is_dense = isinstance(self.metric, DenseMetric) and not self.fit.quadratic.damping
        return is_dense and self.fit.objective.local and not self.linear

    def _curvature_changes(self, lanes: Lanes, u: Points) -> PerLane:
        """Size of I − P∇²F(u, w): the part of each refit's units, and an estimate of the others'.

        That grows with the distance from θ̂, and is measured where this is largest.
        """
        fit = self.fit
        root = fit.quadratic.root
        inverse = cast(DenseMetric, self.metric).inverse[lanes]
        eye = np.eye(fit.num_params)
        theta = fit.quadratic.at(u)
        change = root @ self.F.hessian_changes(theta, lanes) @ root.T
        size = lambda matrices: linalg.norm(matrices, axis=(1, 2))
        length = linalg.norm(u, axis=1)
        far = np.argsort(length)[-MEASURED:]
        hessian = _function_of(fit).hessian
        hessians = root @ np.array([hessian(point) for point in theta[far]]) @ root.T
        rate = np.fmax.reduce(size(hessians - eye) / length[far])  # not of those without a value
        others = EXPANSION_SAFETY * rate * length * (1 + size(inverse - eye))
        return size(eye - inverse @ (eye + change)) + others


@cached_on
def _function_of(fit: Fit) -> Function:
    """F with weights of one, which are sent to a device once."""
    return function(fit.objective, fit.theta)


def begin(
    fit: Fit,
    rows: RefitRows,
    fold_hessians: bool = False,
    expanded: bool = False,
    u: Points | None = None,
) -> Descent:
    """Begin a batch at the displacements `u`, by default after the first step from θ̂.

    That is taken with the folds' own Hessians for linear predictors, and with `fold_hessians` for
    all models; else with the anchor's. With `expanded` folds that are short runs are expanded.
    """
    lanes = np.arange(len(rows.index))
    F = derive_batch(fit.objective, fit.theta, rows)
    damped = fit.quadratic.damping > 0  # estimates that take H for the identity do not hold
    runs = expandable(fit, rows) if expanded and not damped else None
    expansion = None if runs is None else Expansion(fit, rows, runs)
    is_open = np.ones(len(lanes), bool)
    linear = isinstance(fit.objective, AbstractLinearPredictor)
    start = None
    metric: RefitMetric = IdentityMetric()
    if fit.quadratic.factor is None:
        metric = Products(fit, F, COARSE if fold_hessians else ROUGH)
    elif (
        fold_hessians or linear or (not damped and own_hessians_are_cheap(F, rows, fit.num_params))
    ):
        metric, is_singular, start = own_metric(fit, rows)
        is_open = ~is_singular
    elif expansion is None and isinstance(F, DerivedBatch) and fit.num_params <= PRODUCTS:
        metric = OwnHessians(fit, F)
    width = rows.index.shape[1:] if fit.objective.pointwise else ()
    unknown = np.full(len(lanes), np.inf)
    candidates = DescentCandidates(
        lanes,
        np.zeros((len(lanes), fit.num_params)) if u is None else u,
        np.zeros((len(lanes), fit.num_params)),
        unknown,
        unknown,
        unknown,
        np.zeros((len(lanes), *width)),
        unknown,
        unknown,
        np.where(is_open, RESULTS.successful, RESULTS.undetermined),
        np.full(len(lanes), GRADIENTS),  # approximate number
        is_open,
    )
    natural = float(np.sqrt(abs(float(fit.value)) / fit.objective.num_units))
    dear = fit.quadratic.factor is None or is_dear(fit.objective, fit.num_params)
    batch = Descent(fit, rows, F, metric, candidates, natural, linear, dear, expansion)
    if u is not None:
        return batch
    if expansion is not None:
        start = expansion.start
    if start is None and fit.objective.local and isinstance(F, DerivedBatch):
        start = fit.quadratic.whiten(fit.gradient + F.weight_gradient(lanes))
    if start is None:
        start = batch.gradient(candidates.u, lanes)
    step = np.where(is_open[:, None], metric.solve(start, candidates.u, lanes), 0.0)
    is_open &= np.isfinite(step).all(1)
    u = np.where(is_open[:, None], -step, 0.0)
    length = batch.length(u, -start)
    result = np.where(is_open, candidates.result, RESULTS.undetermined)
    return batch.merge(
        candidates._replace(u=u, step=step, first=length, size=length, result=result, open=is_open)
    )


def own_hessians_are_cheap(F: Functions, rows: RefitRows, params: int) -> bool:
    """Tell whether Hessians by the refits' own units take less than gradients of all units."""
    count, width = rows.index.shape
    if not (isinstance(F, DerivedBatch) and F.objective.local):
        return False
    return params * width <= F.objective.num_units and count * params**2 <= HESSIAN_ENTRIES


def refine(batch: Descent, enough: Enough, hurry: bool = False, sampled: bool = True) -> Descent:
    """Refine a batch until `enough` holds, by samples of units first if these are accurate enough.

    In a hurry the batch is refined only until errors can be estimated.
    """
    sampled = sampled and available(batch.fit, batch.rows)
    return climb(replace(batch, enough=enough, hurry=hurry, sampled=sampled), RUNGS)


# steps with one metric


class WeightMoves(NamedTuple):
    """Memory of Anderson's acceleration: where the last steps were computed, those steps, and the
    last moves with the changes of the steps, scaled to changes of length one.
    """

    u: Points
    step: Points  # NaN before the first
    moves: Float[ndarray, "lanes moves params"]
    changes: Float[ndarray, "lanes moves params"]

    def accelerate(self, u: Points, plain: Points) -> "tuple[WeightMoves, Points, PerLane]":
        """Accelerate the plain steps of refits at `u`.

        Returns the memory after that, the steps, and the contraction ‖Δu − Δr‖ / ‖Δu‖ of the plain
        steps along the last moves, infinite if there was none.
        """
        displacement = u - self.u
        change = plain - self.step
        with silence("divide", "invalid"):
            ratio = linalg.norm(displacement - change, axis=1)
            ratio /= linalg.norm(displacement, axis=1)
            length = linalg.norm(change, axis=1)[:, None]
            is_valid = np.isfinite(length) & (length > 0)
            move = np.where(is_valid, displacement / length, 0.0)[:, None]
            change = np.where(is_valid, change / length, 0.0)[:, None]
        moves = np.concatenate([move, self.moves[:, : DEPTH - 1]], 1)
        changes = np.concatenate([change, self.changes[:, : DEPTH - 1]], 1)
        # least eigenvalue of the correlations of the changes that is used
        gram = linalg.pinv(changes @ changes.swapaxes(1, 2), 1e-13, hermitian=True)
        correction = (moves - changes).swapaxes(1, 2) @ (gram @ (changes @ plain[:, :, None]))
        ratio = np.fmin(ratio, np.inf)
        return WeightMoves(u, plain, moves, changes), plain + correction[:, :, 0], ratio


class Progress(NamedTuple):
    """Refits that take steps with one metric.

    There are the points of the last gradients and these, the largest contraction of their steps,
    and how far acceleration moved them from there.
    """

    candidates: DescentCandidates
    point: Points
    gradient: Points
    contraction: PerLane
    extra: PerLane


def take_steps(batch: Descent) -> DescentCandidates:
    """Take accelerated steps, or Newton steps by products, with the batch's metric.

    In a hurry those still open get distances and errors by the curvature at their candidates.
    """
    progress = _take_steps(batch, batch.open_candidates)
    candidates = progress.candidates
    is_open = np.flatnonzero(candidates.open)
    if not batch.hurry or not is_open.size:
        return candidates
    part, point, gradient, _, extra = take(progress, is_open)
    if isinstance(batch.metric, OwnHessians):  # the curvature is that of the metric
        is_informative = part.distance_left <= 0.1 * part.first
        distance = np.where(is_informative, part.distance_left, np.inf)
    else:
        distance = batch.curvature_distance(part, point, gradient) + extra
    part = batch.evaluate(part._replace(distance_left=distance, open=~np.isfinite(distance)))
    return put(candidates, [(is_open, part)])


def _take_steps(batch: Descent, candidates: DescentCandidates) -> Progress:
    zeros = np.zeros_like(candidates.u)
    none = np.zeros(len(zeros))
    last_step = np.where(np.isfinite(candidates.size)[:, None], candidates.step, np.nan)
    memory = WeightMoves(zeros, last_step, *2 * [zeros[:, None][:, :0]])
    progress = Progress(candidates, zeros, zeros, none, none)
    ended = []
    most = HURRY if batch.hurry else MAX_CHORD_STEPS
    for k in range(most):
        if not len(progress.extra):
            break
        progress, memory, ends = _step(batch, progress, memory, k, k == most - 1)
        ended.append(take(progress, ends))
        progress, memory = take((progress, memory), ~ends)
    return join([*ended, progress])


def _step(
    batch: Descent, progress: Progress, memory: WeightMoves, k: int, last: bool
) -> tuple[Progress, WeightMoves, Flags]:
    """Take one step, and mark the refits that are near enough or need another metric."""
    candidates, *_, contraction, _ = progress
    lanes, u, _, first, before, *_ = candidates
    gradient = batch.gradient(u, lanes)
    plain = batch.metric.solve(gradient, u, lanes)
    size = batch.length(plain, gradient)
    is_first = np.isinf(before)
    first = np.where(np.isinf(first), size, first)
    ratio = size / np.maximum(before, 1e-300)
    along = ratio
    step = plain
    is_formed = isinstance(batch.metric, OwnHessians)
    if not batch.metric.is_newton:
        memory, step, along = memory.accelerate(u, plain)
    elif isinstance(batch.metric, OwnHessians):
        along = 0.5 * batch.metric.change[lanes]  # a step leaves half of what curvature changes
    floor = size <= LENGTH_NOISE * np.maximum(batch.natural, first)
    stuck = ~(ratio <= STALL_RATIOS[1]) & ~floor
    along = np.maximum(ratio, np.where(np.isfinite(along), along, 0.0))
    contraction = np.maximum(contraction, np.where(floor, 0.0, along))
    # what a Newton step leaves shrinks with its length: the next one leaves a smaller share, by as
    # much
    shrinks = np.ones(len(lanes))
    if batch.metric.sketched or is_formed:
        shrinks = np.minimum(ratio, 1.0)
    safety = SAFETY
    if is_formed:
        safety = EXPANSION_SAFETY
    elif k == 0:
        safety = FIRST_SAFETY
    q = np.minimum(safety * contraction * shrinks, 0.95)
    # after a plain step nothing more is added
    distance = size * q / (1 - q)
    if isinstance(batch.metric, Products):
        # factor on the estimated remainder of a solve (for a CRF it was 0.4 to 0.8 of this)
        distance += 2.0 * batch.metric.remainder[lanes]
    extra = linalg.norm(step - plain, axis=1)
    share = np.minimum(1.0, distance / np.maximum(extra, 1e-300))
    extra *= share
    step = plain + share[:, None] * (step - plain)
    candidates = _moved(candidates, step, ~stuck)._replace(
        first=first,
        size=size,
        distance_left=np.where(stuck | is_first, np.inf, distance + extra),
    )
    progress = Progress(candidates, u, gradient, contraction, np.where(stuck, size, extra))
    # largest ratio of steps at which a refit is judged after one step
    ready = (k > 0) | batch.by_units | is_formed | (contraction * shrinks <= 0.01)
    candidates, beyond = _judge(batch, progress, ready, last)
    done = ~candidates.open | (floor & (ratio > 0.3) & ~beyond)
    # share of the gradient; if more remains after the first step of a nonconvex F, it may have led
    # to another minimum
    astray = (k == 0) & (ratio > 0.5) & (batch.dear and not batch.fit.objective.convex)
    slow = stuck | beyond | astray | (ratio > STALL_RATIOS[not batch.linear])
    candidates = candidates._replace(open=~done)
    return progress._replace(candidates=candidates), memory, done | (slow & ~is_first)


def _moved(candidates: DescentCandidates, step: Points, good: Flags) -> DescentCandidates:
    """Take the steps that are good; the step before stands for one that is not finite."""
    u = np.where(good[:, None], candidates.u - step, candidates.u)
    is_finite = np.isfinite(step).all(1)[:, None]
    return candidates._replace(u=u, step=np.where(is_finite, step, candidates.step))


def _judge(
    batch: Descent, progress: Progress, ready: Flags, last: bool
) -> tuple[DescentCandidates, Flags]:
    """Close the refits that are near enough, and mark those whose curvature is uninformative.

    The steps decide first, unless they are the `last`, then the curvature at the candidates. Until
    that tells the distance errors are foretold, from the last look at them, as a look costs several
    losses.
    """
    candidates = progress.candidates
    beyond = np.zeros(len(ready), bool)
    places = np.flatnonzero(np.isfinite(candidates.distance_left) & ready)
    if not (last or batch.metric.is_newton) and places.size:
        part = take(candidates, places)
        with silence("invalid", "divide"):  # zero before the first look
            foretold = part.error * part.distance_left / part.looked_at
        look = DescentLook(batch, part, np.nan_to_num(foretold, posinf=0.0))
        places = places[batch.enough(look)]
    if not places.size:
        return candidates, beyond
    part, point, gradient, _, extra = take(progress, places)
    if not batch.metric.is_newton:
        distance = batch.curvature_distance(part, point, gradient) + extra
        part = part._replace(distance_left=np.maximum(part.distance_left, distance))
        beyond[places] = np.isinf(part.distance_left)
    look = DescentLook(batch, part)
    is_near = batch.enough(look)
    closed = look.candidates._replace(open=~is_near)
    return put(candidates, [(places, closed)]), beyond


# samples of units


class Sample(NamedTuple):
    """Sampled units, the number of units each stands for, and their whitened gradients at θ̂."""

    objective: AbstractObjective
    weight: Float[ndarray, " selected"]  # 1 / (m p) of one draw
    times: Float[ndarray, " selected"]  # how often each was drawn
    influence: Float[ndarray, "selected params"]


def available(fit: Fit, rows: RefitRows) -> bool:
    """Whether a sample can be drawn and is much cheaper than all units."""
    n = fit.objective.num_units
    if (
        not fit.objective.local
        or fit.quadratic.factor is None
        or int(rows.num_refits) < MIN_SCREENED_REFITS
    ):
        return False
    large = n >= max(10 * fit.num_params, 4 * max(SIZES))
    return bool(
        large and rows.index.shape[1] < n and fit.objective.subset(np.arange(2)) is not None
    )


@cached_on
def samples(fit: Fit) -> tuple[Sample, ...]:
    """Draw units in proportion to their part of the curvature, as estimated from their gradients.

    One draw in five is uniform.
    """
    n = fit.objective.num_units
    size = np.sum(fit.quadratic.influence**2, 1)
    chance = 0.8 * size / max(size.sum(), 1e-300) + 0.2 / n
    chance /= chance.sum()
    indices = default_rng(0).choice(n, max(SIZES), p=chance)
    parts = []
    for m in SIZES:
        units, times = np.unique(indices[:m], return_counts=True)
        objective = fit.objective.subset(units)
        assert objective is not None
        parts.append(
            Sample(
                objective,
                1 / (m * chance[units]),
                times.astype(float),
                fit.quadratic.influence[units],
            )
        )
    return tuple(parts)


def whitened_gradients(
    fit: Fit, rows: RefitRows, u: Points, lanes: Lanes, size: int
) -> tuple[Points, PerLane]:
    """Whitened gradients of selected refits' own F at u, without b, and bounds of b's effect on
    their summed losses.

    The bound is the estimate from one of the samples plus three standard errors.
    """
    places = _pad(len(lanes), len(rows.index))
    chunk = max(1, own_passes(fit.objective, rows.index.shape[1]) // 8)
    batch = rows.take(lanes[places])
    gradient, error = _chunked_gradients(
        fit, samples(fit)[size], batch.index, batch.weight, batch.held, u[places], chunk
    )
    return np.asarray(gradient)[: len(lanes)], np.asarray(error)[: len(lanes)]


def _pad(count: int, most: int) -> Int[ndarray, " padded"]:
    """Places of some refits, the last of them repeated up to a power of eight, or up to `most`."""
    # least number of refits in one call
    size = min(max(8 ** int(np.ceil(np.log2(max(count, 1)) / 3)), 64), few_size(max(most, count)))
    return np.minimum(np.arange(size), count - 1)


@compile_static
def _chunked_gradients(
    fit: Fit, sample: Sample, index: Arrays, weight: Arrays, held: Arrays, u: Arrays, chunk: int
) -> tuple[Array, Array]:
    m = jnp.sum(sample.times)
    count = len(sample.times)
    whitener = jnp.asarray(fit.quadratic.whitener)
    vector = lambda u: ravel(fit.theta) + u @ whitener
    unwhitened = lambda u: unravel(vector(u), fit.theta)
    losses = lambda u: sample.objective.score(
        unwhitened(u), jnp.ones(count), jnp.arange(count), jnp.ones(count)
    )

    def one_refit(args):
        index, weight, held, u = args
        change = ravel(jax.grad(fit.objective.perturbation)(unwhitened(u), index, weight - 1.0))
        loss = held_out(fit.objective, fit.theta, index, weight, held)
        towards = jax.grad(lambda u: jnp.sum(loss(vector(u))))(u)
        derivatives = jax.vmap(lambda u: jax.jvp(losses, (u,), (towards,))[1])(jnp.stack([u, -u]))
        contributions = (
            derivatives.mean(0) - sample.influence @ towards
        ) * sample.weight  # weight of one draw
        total = jnp.sum(sample.times * contributions)
        spread = jnp.sqrt(m * jnp.sum(sample.times * (contributions - total / m) ** 2) / (m - 1))
        # standard errors of a sample that are added
        return u + whitener @ (fit.gradient + change), jnp.abs(total) + 3.0 * spread

    return jax.lax.map(one_refit, (index, weight, held, u), batch_size=chunk)


def take_sampled_steps(batch: Descent) -> DescentCandidates:
    """Step by the left-out units and samples of the others."""
    candidates = batch.open_candidates
    ended = []
    for size in range(len(SIZES)):
        lanes, u, _, first, *_ = candidates
        if not lanes.size:
            break
        gradient, unsure = whitened_gradients(batch.fit, batch.rows, u, lanes, size)
        step = batch.metric.solve(gradient, u, lanes)
        length = linalg.norm(step, axis=1)
        ratio = length / np.maximum(first, 1e-300)
        q = np.minimum(FIRST_SAFETY * ratio, 0.95)
        shrinks = ratio < 0.5
        part = _moved(candidates, step, shrinks)._replace(
            first=np.where(np.isfinite(first), first, length),
            distance_left=np.where(shrinks & np.isfinite(first), length * q / (1 - q), np.inf),
        )
        look = DescentLook(batch, part, unsure=unsure)
        done = batch.enough(look) & shrinks
        candidates = look.candidates._replace(open=~done)
        ended.append(take(candidates, done))
        candidates = take(candidates, ~done)
    # none of these steps is one of the whole gradient
    return join([*ended, candidates._replace(size=np.full(len(candidates.lanes), np.inf))])


# Newton's method


def take_newton_steps(batch: Descent) -> DescentCandidates:
    """Take damped Newton steps to the minimiser reached by descent; a code says if none is.

    They start at the candidates if the steps there had nearly ended, else from θ̂. Refits of what
    JAX derives go one by one, with the programs of the fit, if that takes less time than compiling
    others, or if a gradient costs much: as refits converge, a call for all of them would cost as
    much as before.
    """
    candidates = batch.open_candidates
    objective = batch.fit.objective
    params = batch.fit.num_params
    count = len(candidates.lanes)
    gradient_cost = work(objective, params)
    # At 2e5 operations a gradient of 11 parameters a refit took 30 ms, and 130 ms side by side.
    size = HESSIAN_ENTRIES // params**2
    cheap = count * NEWTON_GRADIENTS * params * gradient_cost <= COMPILING
    if (gradient_cost >= 1e5 or cheap) and not isinstance(batch.F, ClosedFormBatch):
        size = 1
    chunks = [take(candidates, part) for part in slices(count, size)]
    return _settle(batch, join([_minimise(batch, chunk, size == 1) for chunk in chunks]))


def _minimise(batch: Descent, candidates: DescentCandidates, alone: bool) -> DescentCandidates:
    """Run Newton's method for some refits together, or for one with the programs of the fit."""
    fit = batch.fit
    F = batch.F
    lanes = candidates.lanes
    if alone:
        (weights,) = weights_of(batch.rows, fit.objective.num_units, lanes)
        F = function(fit.objective, fit.theta, weights).of
        lanes = ONE
    start = newton_start(batch, F, candidates, lanes)
    solution = newton(F, start, lanes, fit.quadratic.null_space, fit.quadratic.factor, fit.vector)
    is_finite = np.isfinite(solution.value)
    theta = solution.theta.copy()
    size = solution.size.copy()
    converged = solution.converged.copy()
    for k in np.flatnonzero(is_finite & ~converged):
        limit = _to_limit(fit, F, theta[k], lanes[k : k + 1], float(solution.value[k]))
        if limit is not None:
            (theta[k],), (size[k],) = limit.theta, limit.size
            converged[k] = True
    result = np.where(converged, candidates.result, RESULTS.not_converged)
    return candidates._replace(
        u=fit.quadratic.back(theta - fit.vector),
        distance_left=size,
        result=np.where(is_finite, result, RESULTS.nonfinite),
    )


def newton_start(
    batch: Descent, F: Functions, candidates: DescentCandidates, lanes: Lanes
) -> Points:
    """Start of Newton's method.

    The candidates if they are nearly converged and lower than θ̂, else θ̂. `lanes` are those of F.
    """
    # refits whose last step was shorter than this share of the first continue from their place
    start = np.tile(batch.fit.vector, (len(lanes), 1))
    is_close = candidates.size <= 0.1 * candidates.first
    if is_close.any():
        theta = batch.fit.quadratic.at(candidates.u[is_close])
        lower = F.look(theta, lanes[is_close])[0] < F.look(start[is_close], lanes[is_close])[0]
        start[np.flatnonzero(is_close)[lower]] = theta[lower]
    return start


def _to_limit(
    fit: Fit, F: Functions, theta: Vector, lane: Lanes, value: float
) -> NewtonResult | None:
    """Finish a refit whose parameter runs to a limit, such as a dispersion to zero.

    The parameter is held at the limit, and F is minimised over the others; None if it is higher
    there than before.
    """
    null_space = fit.quadratic.null_space
    factor = fit.quadratic.factor
    limit = fit.objective.parameters.at_limit(theta)
    if (limit == theta).all():  # steps may have ended on the way
        (theta,) = newton(F, theta[None], lane, null_space, factor, fit.vector).theta
        limit = fit.objective.parameters.at_limit(theta)
    free = limit == theta
    if free.all():
        return None
    flat = np.vstack([null_space, np.eye(len(theta))[~free]])
    # the curvature along what is held is rounding, by which steps would move it
    held: Any = SimpleNamespace(
        look=F.look, hessian=lambda *arguments: F.hessian(*arguments) * np.outer(free, free)
    )
    solution = newton(held, limit[None], lane, flat, factor, fit.vector)
    is_lower = solution.value[0] <= value + LOSS_ROUNDING * (1 + abs(value))
    return solution if solution.converged[0] and is_lower else None


def _settle(batch: Descent, candidates: DescentCandidates) -> DescentCandidates:
    """Judge refits at the end, and give a code to those that do not exist."""
    candidates = batch.evaluate(candidates)
    result = np.where(np.isfinite(candidates.error), candidates.result, RESULTS.nonfinite)
    is_lost = (result == RESULTS.nonfinite) | (result == RESULTS.not_converged)
    return candidates._replace(
        result=result,
        distance_left=np.where(is_lost, np.inf, candidates.distance_left),
        error=np.where(is_lost, np.inf, candidates.error),
        open=np.zeros(len(result), bool),
    )


# descents


def descend_alone(batch: Descent) -> DescentCandidates:
    """Descend from θ̂ for each refit, then take Newton steps with its own Hessian, by products.

    Near the minimum F itself is too flat to compare steps, and the inverse Hessian of a descent
    understates the distance.
    """
    batch = replace(batch, metric=IdentityMetric())  # lengths are whitened ones
    candidates = batch.open_candidates
    weights = weights_of(batch.rows, batch.fit.objective.num_units, candidates.lanes)
    return join(
        [_descend(batch, take(candidates, [k]), weight) for k, weight in enumerate(weights)]
    )


def _descend(batch: Descent, refit: DescentCandidates, weights: PerUnit) -> DescentCandidates:
    """Descend for one refit."""
    F = function(batch.fit.objective, batch.fit.theta, weights)
    for descent in _descents(batch, F, weights, refit):
        refit = _finish(batch, F, descent, refit)
        if not refit.open.any():
            return refit
    is_converged = refit.size <= LAST_STEP_RATIO * np.maximum(1.0, linalg.norm(refit.u, axis=1))
    result = np.where(is_converged, refit.result, RESULTS.not_converged)
    return _settle(
        batch,
        refit._replace(
            distance_left=UNKNOWN_DISTANCE_FACTOR * refit.size,
            result=np.where(np.isfinite(refit.size), result, RESULTS.nonfinite),
        ),
    )


def _descents(
    batch: Descent, F: Function, weights: PerUnit, refit: DescentCandidates
) -> Iterator[LBFGSState | BFGS]:
    """Yield the points of the descent of one refit, each nearer to the minimum.

    It is L-BFGS in the coordinates of the model's preconditioner or, if there is none, BFGS from
    the anchor's Hessian.
    """
    fit = batch.fit
    first = float(refit.first[0])
    descent = None
    for share in NEAR if fit.num_params > FAR_REFIT_PARAMETERS else ():
        start = fit.vector if descent is None else descent.theta
        descent = walk(fit.objective, F, start, weights, share * first, descent)
        if descent is None:
            break
        yield descent
    if descent is not None:
        return
    minimiser = BFGS(F, fit.vector, functools.partial(_anchor_step, fit))
    checked_size = np.inf

    def is_near_enough(size: float) -> bool:
        nonlocal checked_size
        if size > NEXT_LOOK_RATIO * checked_size:
            return False
        checked_size = size
        point = _place(fit, refit, minimiser.theta, minimiser.step)
        distance = np.array([LEARNED_DISTANCE_FACTOR * size])
        look = DescentLook(batch, point._replace(distance_left=distance))
        return size <= NEAR[-1] * first or bool(batch.enough(look).all())

    while minimiser.descend(is_near_enough, MOST):
        yield minimiser
    yield minimiser


def _anchor_step(fit: Fit, gradient: Vector) -> Vector:
    """Compute `H⁻¹ g` of one gradient, or approximately where H is not formed.

    A formed H costs half of each of two products with triangular matrices.
    """
    if fit.quadratic.factor is None:
        return fit.quadratic.unwhiten(
            fit.quadratic.learned_inverse.about(fit.quadratic.whiten(gradient)[None])[0]
        )
    half = scipy.linalg.blas.dtrmv(fit.quadratic.root.T, gradient, trans=1)
    return scipy.linalg.blas.dtrmv(fit.quadratic.root.T, half)


def _finish(
    batch: Descent, F: Function, descent: LBFGSState | BFGS, refit: DescentCandidates
) -> DescentCandidates:
    """Take Newton steps of one refit from the end of a descent while they contract.

    It is closed if it is near enough, and not beside a saddle.
    """
    fit = batch.fit
    theta = descent.theta
    gradient = F.look(theta)[1]
    learnt = descent.newton(gradient)
    refit = _place(fit, refit, theta, learnt)
    product = _product(fit, F, theta)
    for _ in range(MAX_CHORD_STEPS):
        before = max(float(gradient @ learnt), 1e-300)
        step, residual = newton_step(product, descent.newton, gradient)
        if not np.isfinite(residual):
            break
        theta = theta - step
        gradient = F.look(theta)[1]
        learnt = descent.newton(gradient)
        product = _product(fit, F, theta)
        refit = _place(fit, refit, theta, step)
        left_share = (max(float(gradient @ learnt), 0.0) / before) ** 0.5
        contraction = SAFETY * max(residual, left_share)
        floor = bool(refit.size[0] <= LENGTH_NOISE * max(batch.natural, float(refit.first[0])))
        # share of a gradient; if a Newton step leaves more, no minimum is guaranteed (of 1,008
        # refits two had none)
        if not (contraction <= 0.25 or floor):
            break
        lengths = 1.0 if floor else _beyond(contraction)
        look = DescentLook(batch, refit._replace(distance_left=refit.size * lengths))
        is_near = bool(batch.enough(look).all()) or floor
        refit = look.candidates
        if is_near:
            direction = fit.quadratic.raw(default_rng(0).standard_normal(theta.size))
            # where F curves down at the end of Newton steps, that is no minimum
            if fit.objective.convex or not curves_down(product, descent.newton, direction):
                return refit._replace(open=np.zeros(1, bool))
            return refit._replace(size=refit.first)
    return refit


def _product(fit: Fit, F: Function, theta: Vector) -> Callable[[Vector], Vector]:
    """Return the function that multiplies by ∇²F at θ, plus one along flat directions."""
    product = F.products(theta)
    flat = fit.quadratic.null_space
    return lambda v: product(v) + (v @ flat.T) @ flat


def _place(fit: Fit, refit: DescentCandidates, theta: Vector, step: Vector) -> DescentCandidates:
    """Move a refit to θ, with the step that led there or the next one."""
    displacement, step = fit.quadratic.back(np.stack([theta - fit.vector, step]))
    size = np.array([linalg.norm(step)])
    return refit._replace(u=displacement[None], step=step[None], size=size)


def _unit(vectors: Points) -> Points:
    return vectors / np.maximum(linalg.norm(vectors, axis=-1, keepdims=True), 1e-300)


def _beyond(keep: float) -> float:
    """Bound the distance after a Newton step that left `keep` of the gradient, in its lengths.

    It follows from Kantorovich's theorem, whose `h = L‖s‖ ≤ ½` is twice `keep`.
    """
    return 2 / (1 + np.sqrt(1 - 4 * keep)) - 1


# expansions


class ExpandedMetric(RefitMetric):
    """Metric of the selected refits' own Hessians at their candidates, by the expansion."""

    is_newton = True

    def __init__(self, expansion: Expansion, candidates: DescentCandidates):
        self.expansion = expansion
        self.place = np.full(len(expansion.start), -1)
        self.place[candidates.lanes] = np.arange(len(candidates.lanes))
        self.inverse = linalg.inv(expansion.curvature(candidates.u, candidates.lanes))

    def solve(self, gradient, u, lanes):
        return np.einsum("rij,rj->ri", self.inverse[self.place[lanes]], gradient)

    def change(self, u: Points, remainder: PerLane, lanes: Lanes) -> PerLane:
        """Largest change of losses within a distance, by the expansion."""
        return EXPANSION_SAFETY * self.expansion.change(u, remainder, lanes)


def expand(batch: Descent) -> DescentCandidates:
    """Move a batch to the minimisers of the expansion.

    Refits that are then not near enough continue with full gradients and their own Hessians, which
    the expansion also gives.
    """
    expansion = cast(Expansion, batch.expansion)
    expanded = expansion.solve()
    if batch.fit.objective.costs.separate:
        everyone = batch.candidates.lanes
        losses = batch.F.losses(batch.fit.quadratic.at(np.nan_to_num(expanded.u)), everyone)
        error = expansion.change(expanded.u, expanded.distance_left, everyone)
        expanded = expanded._replace(losses=losses, error=error)
    candidates = batch.open_candidates
    first = linalg.norm(expansion.start[candidates.lanes], axis=1)
    gradients = candidates.gradients + expansion.gradients / len(batch.open)
    candidates = candidates._replace(first=first, size=first, gradients=gradients)
    is_valid = np.isfinite(expanded.error[candidates.lanes])
    parts = [take(candidates, ~is_valid)]
    if is_valid.any():
        candidates = take(candidates, is_valid)
        candidates = candidates._replace(u=expanded.u[candidates.lanes])
        factor, done = _calibration(batch, candidates, expanded)
        parts.append(_close(batch, take(candidates, done), expanded, factor))
        candidates = take(candidates, ~done)
        expanded_batch = replace(batch, metric=ExpandedMetric(expansion, candidates))
        parts.append(_take_steps(expanded_batch, candidates).candidates)
    candidates = join(parts)
    # no step was taken yet with the metric of the fit
    return candidates._replace(size=np.full(len(candidates.lanes), np.inf))


def _close(
    batch: Descent, candidates: DescentCandidates, expanded: ExpandedBatch, factor: float
) -> DescentCandidates:
    """Close refits whose estimates times the factor are near enough."""
    lanes = candidates.lanes
    error = factor * expanded.error[lanes]
    # share of the largest accepted error for each scored unit below which errors count as equal
    scored = batch.rows.held[lanes].sum(1)
    least = 0.01 * scored * np.max(error / np.maximum(scored, 1), initial=0.0)
    return candidates._replace(
        distance_left=factor * expanded.distance_left[lanes],
        losses=expanded.losses[lanes],
        error=np.maximum(error, least),
        gradients=candidates.gradients - GRADIENTS,
        open=np.zeros(len(lanes), bool),
    )


def _calibration(
    batch: Descent, candidates: DescentCandidates, expanded: ExpandedBatch
) -> tuple[float, Flags]:
    """Return the factor on the estimates, and the refits that are then near enough.

    Full gradients of the worst refits that pass measure how good the estimates are. If the
    estimates are too small, the factor grows and other refits are the worst that pass.
    """
    factor = EXPANSION_SAFETY
    lanes = candidates.lanes
    seen = np.zeros(len(lanes), bool)
    while True:
        done = batch.enough(ScaledExpansion(expanded, lanes, factor))
        border = np.flatnonzero(done & ~seen)
        # accepted refits of largest error whose gradients measure how good the estimates are
        border = border[largest_first(expanded.error[lanes[border]])[:16]]
        if not border.size:
            return factor, done
        seen[border] = True
        worst = EXPANSION_SAFETY * _ratio(batch, take(candidates, border), expanded)
        if worst <= factor:
            return factor, done
        factor = worst


def _ratio(batch: Descent, candidates: DescentCandidates, expanded: ExpandedBatch) -> float:
    """Return the largest ratio of changes in one Newton step to their estimates."""
    lanes, u, *_ = candidates
    metric = ExpandedMetric(cast(Expansion, batch.expansion), candidates)
    step = metric.solve(batch.gradient(u, lanes), u, lanes)
    losses = batch.F.losses(batch.fit.quadratic.at(u - step), lanes)
    total = lambda part: np.abs(part).reshape(len(lanes), -1).sum(1)
    rounding = 1e-9  # error of a loss, and of a whitened length
    estimate = expanded.error[lanes] + rounding * (1 + total(losses))
    distance = expanded.distance_left[lanes] + rounding
    changes = total(losses - expanded.losses[lanes]) / estimate
    return float(np.max([changes, linalg.norm(step, axis=1) / distance]))


# costs are gradients of a refit
RUNGS = (
    Rung("expansion", lambda batch: batch.expansion is not None, lambda batch: 0.0, expand),
    Rung(
        "samples",
        lambda batch: batch.sampled,
        lambda batch: sum(SIZES) / batch.fit.objective.num_units,
        take_sampled_steps,
    ),
    Rung("steps", lambda batch: True, lambda batch: HURRY, take_steps),
    Rung(
        "Newton",
        lambda batch: not batch.dear,
        lambda batch: NEWTON_GRADIENTS * batch.fit.num_params,
        take_newton_steps,
    ),
    Rung(
        "alone",
        lambda batch: batch.dear and not batch.hurry,
        lambda batch: DESCENT_GRADIENTS,
        descend_alone,
    ),
)
