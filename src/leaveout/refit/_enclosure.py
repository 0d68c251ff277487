"""Batch of refits of linear predictors in progress: candidates, and the proved balls around them.

    θ = θ̂ + L⁻ᵀu,  H = L Lᵀ,  |u| = ‖θ − θ̂‖_H;
    ‖θ_w − θ‖_A ≤ ρ  ⟹  |x_nᵀθ_w − x_nᵀθ| ≤ ‖x_n‖_A⁻¹ ρ

Here θ is the candidate of a refit, θ_w its minimiser, ρ the radius from `enclosure_theorem.ball`,
and A the refit's metric: its own Hessian at θ̂ at first, and that at the candidate if steps stall.
`first_look` takes the first step of all refits, `take_steps` more for those whose ball is too
large, and `estimate` estimates the distance if nothing is proved.

# Damped Newton steps, each with the Hessian at its candidate

They start at the candidate or at θ̂, where F is lower, and are shortened until F falls. `newton`
factors Hessians, and its errors are proved; refits that it leaves open have no minimiser.
`conjugate` is for Hessians that are dear, whose steps it solves for by conjugate gradients. There
A, the refit's own Hessian at θ̂, preconditions I + Z⊤ diag(ω ℓ″(η) − ω̂ ℓ̂″) Z, the Hessian at the
candidate in whitened coordinates. Its least Ritz value μ gives an estimate of a candidate's
distance from the minimiser, in the norm of A: about ‖g‖_{A⁻¹} / μ.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import linalg

from .._runtime import (
    RESULTS,
    LaneEntries,
    ListedUnits,
    ListedValues,
    NumpyArray,
    cached_on,
    largest_first,
    record,
    silence,
)
from ..linalg import (
    UNIT,
    UP,
    Ball,
    CurvatureBounds,
    DenseDesign,
    Rounding,
    apply_curvature,
    ball,
    bounded,
    cholesky,
    condition,
    conjugate_gradients,
    decrements,
    factor_error,
    gaps,
    scale_units,
    weight_terms,
)
from ..objectives import (
    Displacements,
    Flags,
    Lanes,
    PerLane,
    PerRefit,
    Points,
    RefitFlags,
    RefitPoints,
    Weights,
    weights_of,
)
from ..optimize import Fit
from ..plans import RefitRows
from ._anchor import (
    ELEMENTWISE,
    PASS,
    FoldMetric,
    LinearFitCache,
    curvature_error,
    gradient_error,
    groups,
    linear_cache,
    passes,
    span,
    tiles,
    total,
)
from ._refit_batch import put, take

# steps with one metric before a refit needs another; or before its error is estimated
STEPS = 12
HURRY = 2
# The contraction of a step is measured for one refit in so many, by so many products; the largest
# of so many results counts.
CONTRACTION_SPACING = 8
LANCZOS_STEPS = 10
CONTRACTION_NEIGHBOURS = 5
# safety factor on a contraction, and the contraction from which it is uninformative
CAUTION = 1.3
MAX_CONTRACTION = 0.9
STALL_RATIO = 0.5  # a step that leaves a larger share of the gradient needs another metric


@cached_on
def _third(anchor: LinearFitCache) -> Float[NumpyArray, "pairs rank"]:
    """Compute T = Σ ω ℓ‴ z ⊗ z ⊗ z, its first two axes as pairs, and pairs off the diagonal
    doubled.
    """
    i, j = np.triu_indices(len(anchor.root))
    products = DenseDesign(anchor.rows).products(
        weight_terms(anchor.weight, anchor.third) * anchor.rows.T
    )
    return products[:, i, j].T * np.where(i < j, 2.0, 1.0)[:, None]


def third_term(anchor: LinearFitCache, u: Points) -> Points:
    """Compute T[u, u, ·] of some moves u."""
    i, j = np.triu_indices(len(anchor.root))
    return (u[:, i] * u[:, j]) @ _third(anchor)


class Candidates(NamedTuple):
    """Candidates u of a batch, and the radius ρ around each in the norm of its metric.

    `center` and `half` are the held units' predictors and their largest distance from those of the
    exact refit; for several outputs `half` is the largest range of the differences. `slope` is λ
    where the last gradient was computed, with its rounding error `noise`. `radius` is around u in
    the norm of H, and `proved_radius` too, unless it is from another metric. `is_taken` marks
    refits whose last step was taken, `shrunk` is the share of λ that it left, and `contraction`
    that of a step, if it was estimated.
    """

    u: Float[NumpyArray, "lanes rank"]
    center: Float[NumpyArray, "lanes width ..."]
    half: LaneEntries
    slope: PerLane
    noise: PerLane
    radius: PerLane
    proved_radius: PerLane
    result: Lanes
    proved: Flags
    settled_by: Lanes
    is_taken: Flags
    shrunk: PerLane
    contraction: PerLane


@record
class CertifiedBatch:
    """Batch in progress: its refits with their metrics, and candidates.

    `delta` are changes of the weights of `units`. No unit of a refit weighs more than `growth`
    times what it did. Where a proof takes the gaps of every unit, a refit is proved only if its
    step is at most `target` times its `first`, or no longer shrinks, and if the proof can be
    expected to give at most the `allowed_radius`. `gradients` have been computed in all.
    """

    fit: Fit
    rows: RefitRows
    anchor: LinearFitCache
    target: float
    allowed_radius: PerRefit
    delta: ListedValues
    units: ListedUnits
    metric: FoldMetric
    growth: PerRefit
    first: PerRefit
    candidates: Candidates
    gradients: float = 0.0

    def theta(self) -> RefitPoints:
        return self.anchor.theta + self.candidates.u @ self.anchor.root

    def weights(self, lanes: Lanes) -> Weights:
        """Weights of the selected refits."""
        return weights_of(self.rows, self.anchor.units, lanes)

    def merge(self, lanes: Lanes, part: Candidates, gradients: float = 0.0) -> "CertifiedBatch":
        """Return the batch with other candidates of some refits, which cost so many gradients."""
        return self.merge_parts([(lanes, part)], gradients)

    def merge_parts(
        self, parts: Iterable[tuple[Lanes | slice, Candidates]], gradients: float
    ) -> "CertifiedBatch":
        """Return the batch with the candidates of several chunks of refits, as they come."""
        candidates = put(self.candidates, parts)
        return replace(self, candidates=candidates, gradients=self.gradients + gradients)

    def mark(self, lanes: Lanes, **marks) -> "CertifiedBatch":
        """Return the batch with one number for all of some refits."""
        if not lanes.size:
            return self
        columns = {name: getattr(self.candidates, name).copy() for name in marks}
        for name, mark in marks.items():
            columns[name][lanes] = mark
        return replace(self, candidates=self.candidates._replace(**columns))


def first_look(
    fit: Fit, rows: RefitRows, target: float = np.inf, allowed: NumpyArray | None = None
) -> CertifiedBatch:
    """Step with each fold's own Hessian at θ̂, and read its proved radius from the table.

    The losses may have the `allowed` errors.
    """
    anchor = linear_cache(fit)
    is_unit = rows.index < anchor.units
    delta = np.where(is_unit, rows.weight - 1.0, 0.0)
    units = np.where(is_unit, rows.index, 0)
    everyone = np.arange(len(units))
    metric = FoldMetric(anchor, rows, delta)
    kept_share = metric.kept_share
    growth = np.ones(len(units))
    if anchor.model.separate:
        growth += delta.max(1, initial=0.0)
    if metric.z is not None:
        slope_changes = scale_units(delta, scale_units(anchor.weight, anchor.slope)[units])
        gradient = anchor.leftover + np.einsum(
            "rk,rkp->rp", slope_changes.reshape(len(units), -1), metric.z
        )
    elif metric.pull is not None:
        gradient = anchor.leftover + metric.pull
    else:
        gradient, growth = _gradients(anchor, rows, growth)
    determined = kept_share > 0
    step = np.where(determined[:, None], -metric.solve(gradient, everyone), 0.0)
    noise = anchor.noise * growth / np.sqrt(np.where(determined, kept_share, 1.0))
    slope = decrements(-step, gradient) + noise
    balls = anchor.table.ball(slope, kept_share, growth)
    after = np.where(
        determined, balls.after + noise + metric.residual(gradient, step, everyone), np.inf
    )
    unknown = np.full(len(units), np.inf)
    marks = np.ones(len(units), bool)
    state = CertifiedBatch(
        fit,
        rows,
        anchor,
        target,
        unknown if allowed is None else _radius_of_error(anchor, rows, units, allowed),
        delta,
        units,
        metric,
        growth,
        linalg.norm(step, axis=1),
        Candidates(
            step,
            anchor.eta[units],
            np.full(units.shape, np.inf),
            slope,
            noise,
            unknown,
            unknown,
            np.full(len(units), int(RESULTS.successful)),
            marks,
            np.zeros(len(units), np.int8),
            marks,
            np.zeros(len(units)),
            unknown,
        ),
    )
    if np.isfinite(target):
        is_near = after <= target * state.first * np.sqrt(kept_share)
        expanded = _follow_the_expansion(state, np.flatnonzero(determined & ~is_near))
        after = np.where((expanded != step).any(1), np.inf, after)
        state = replace(state, candidates=state.candidates._replace(u=expanded))
    if allowed is None or anchor.roots is not None:
        return replace(state, candidates=_place(state, everyone, state.candidates, after))
    # others need no predictors yet
    lanes = np.flatnonzero(np.isfinite(after))
    return state.merge(lanes, _place(state, lanes, take(state.candidates, lanes), after[lanes]))


def _radius_of_error(
    anchor: LinearFitCache, rows: RefitRows, units: NumpyArray, allowed: PerRefit
) -> PerRefit:
    """Radius at which the losses' error is about the allowed one, from slopes at θ̂.

    Infinite for several outputs.
    """
    if anchor.roots is not None:
        return np.full(len(units), np.inf)
    with silence("divide", "invalid"):
        terms = np.abs(anchor.slope) * anchor.norm, anchor.slope**2 * anchor.flatness
        held = rows.held
        sums, squares = (np.einsum("rk,rk->r", held, part[units]) for part in terms)
        return allowed / np.fmin(sums, np.sqrt(squares))


def _follow_the_expansion(state: CertifiedBatch, lanes: Lanes) -> Displacements:
    """Return candidates, of which those of some refits are at the minimiser of F(·, w) expanded to
    the third order at θ̂; nothing is proved there.

    This takes fewer operations than a gradient of every refit.
    """
    anchor = state.anchor
    metric = state.metric
    u = state.candidates.u
    is_supported = anchor.is_small and anchor.roots is None and anchor.model.norms is None
    p = len(anchor.root)
    is_cheap = p * p * (p + 1) <= (4 * p + ELEMENTWISE) * state.rows.num_refits
    if not lanes.size or metric.z is None or not is_supported or not is_cheap:
        return u
    start = point = u[lanes]
    z = metric.z[lanes]
    changed = state.delta[lanes] * weight_terms(anchor.weight, anchor.third)[state.units[lanes]]
    for _ in range(2):  # what is left is then of the fourth order
        row_moves = (z @ point[:, :, None])[:, :, 0]
        remainder = third_term(anchor, point) + ((changed * row_moves**2)[:, None] @ z)[:, 0]
        point = start - 0.5 * metric.solve(remainder, lanes)
    good = linalg.norm(point - start, axis=1) <= 0.1 * state.first[lanes]
    u = u.copy()
    u[lanes[good]] = point[good]
    return u


def _gradients(
    anchor: LinearFitCache, rows: RefitRows, growth: PerRefit
) -> tuple[Displacements, PerRefit]:
    """Whitened gradients of F(·, w) at θ̂, and the largest ratio of a unit's weights."""
    gradients = []
    ratios = []
    for lanes in passes(np.arange(len(growth)), anchor.eta.size, len(anchor.root)):
        omega, kappa = anchor.model.weigh(weights_of(rows, anchor.units, lanes))
        gradient = anchor.model.design.pull(scale_units(omega, anchor.slope[None]))
        gradient += kappa[:, None] * anchor.model.penalty_terms(anchor.theta[None])[1]
        gradients.append(gradient @ anchor.root.T)
        ratio = growth[lanes]
        if not anchor.model.separate:
            weighed = anchor.weight > 0
            ratio = (omega[:, weighed] / anchor.weight[weighed]).max(1, initial=1.0)
        ratios.append(ratio)
    return np.concatenate(gradients), np.concatenate(ratios)


def _place(
    state: CertifiedBatch,
    lanes: Lanes,
    part: Candidates,
    after: PerLane,
    norm: NumpyArray | None = None,
    digits: NumpyArray | None = None,
) -> Candidates:
    """Return candidates of some refits with held predictors and their errors.

    `norm` and the rounding `digits` are of other metrics.
    """
    anchor = state.anchor
    metric = state.metric
    units = slice(anchor.units)
    if state.units.shape[1] < anchor.units:
        units = state.units[lanes]
    if metric.z is not None:
        moves = np.einsum("rkp,rp->rk", metric.z[lanes], part.u)
        center = anchor.eta[units] + moves.reshape(part.center.shape)
    else:
        center = np.empty(part.center.shape)
        for chunk in passes(np.arange(len(lanes)), anchor.eta.size, part.u.shape[1]):
            center[chunk] = anchor.model.unit_predictors(
                state.units[lanes[chunk]], anchor.theta + part.u[chunk] @ anchor.root
            )
    radius = part.radius
    proved_radius = np.full(len(lanes), np.inf)
    with silence("divide", "invalid"):
        if norm is None:
            after = after / np.sqrt(metric.kept_share[lanes])
            radius = proved_radius = after
            norm = anchor.norm[units]
        half = norm * after[:, None]
    half[~np.isfinite(after)] = np.inf
    if digits is None:
        size = total(np.abs(center), 2)
        length = linalg.norm(part.u, axis=1)[:, None]
        digits = anchor.rounding.predictor(anchor.length[units], size, length)
    half += digits
    return part._replace(center=center, half=half, radius=radius, proved_radius=proved_radius)


# gradients

Enough = Callable[[CertifiedBatch, Lanes], Flags]


def take_steps(
    state: CertifiedBatch, lanes: Lanes, enough: Enough, most: int = STEPS
) -> tuple[CertifiedBatch, Int[NumpyArray, " open"]]:
    """Take steps with the fold's own Hessian at θ̂ while they shrink.

    Returns the refits still open.
    """
    lanes = lanes[state.metric.kept_share[lanes] > 0]
    rejected = [lanes[:0]]
    for k in range(most):
        if not lanes.size:
            break
        before = state.candidates.slope[lanes]
        chunks = passes(lanes, state.anchor.eta.size, state.candidates.u.shape[1])
        steps = ((span(chunk), _step(state, chunk, k == most - 1)) for chunk in chunks)
        state = state.merge_parts(steps, len(lanes))
        done = np.isfinite(state.candidates.radius[lanes])
        if done.any():
            done[done] = enough(state, lanes[done])
        stalled = ~(state.candidates.slope[lanes] <= STALL_RATIO * before)
        rejected.append(lanes[stalled & ~done])
        lanes = lanes[~(done | stalled)]
    return state, np.sort(np.concatenate([*rejected, lanes]))


def _evaluate(
    state: CertifiedBatch, lanes: Lanes, u: Points
) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray]:
    """Predictors and weights of every unit, the whitened gradient, and its rounding error."""
    anchor = state.anchor
    model = anchor.model
    theta = anchor.theta + u @ anchor.root
    eta = model.eta(theta)
    omega, kappa = model.weigh(state.weights(lanes))
    weighted_slopes = np.empty_like(eta)
    noise = np.empty(len(lanes))
    move = linalg.norm(u, axis=1)
    for places in tiles(np.arange(len(lanes)), eta[0].size):
        chunk = slice(places[0], places[-1] + 1)  # views
        (slope,) = model.loss.derivatives(eta[chunk], model.y, (1,))
        weighted_slopes[chunk] = weight_terms(omega[chunk], slope)
        noise[chunk] = anchor.gradient_error(
            omega[chunk], eta[chunk], slope, move[chunk], state.growth[lanes[chunk]]
        )
    gradient = (
        model.design.pull(weighted_slopes) + kappa[:, None] * model.penalty_terms(theta)[1]
    ) @ anchor.root.T
    return eta, omega, gradient, noise


def _step(state: CertifiedBatch, lanes: Lanes, last: bool) -> Candidates:
    """Step by v = −A⁻¹g where λ at least halves, or a ball proves that the distance does.

    A refit whose step is refused keeps its u. After the `last` step no better proof is to be waited
    for. λ is that of `linalg.enclosure_theorem`.
    """
    part = take(state.candidates, span(lanes))
    eta, omega, gradient, noise = _evaluate(state, lanes, part.u)
    root = np.sqrt(state.metric.kept_share[lanes])
    step = -state.metric.solve(gradient, lanes)
    # at most, in the norm of A⁻¹
    noise = noise / root
    slope = decrements(-step, gradient) + noise
    shrinks = slope <= STALL_RATIO * part.slope
    may_take_gaps = (slope <= state.target * np.maximum(state.first[lanes], 1e-300)) | (
        slope <= 2 * noise
    )
    # The next λ is about λ²/λ_before, and the proof gives twice that at best. If that is more
    # than allowed, a proof from all gaps waits for another step.
    if not last:
        with silence("invalid"):  # 0 · ∞ where losses have no slope: any radius
            may_take_gaps &= ~(2 * slope**2 > part.slope * state.allowed_radius[lanes] * root)
    balls = _ball(state, lanes, part.u, eta, omega, slope, may_take_gaps | ~shrinks)
    good = shrinks | (np.isfinite(balls.after) & (balls.after <= 0.5 * balls.distance))
    after = balls.after + noise + state.metric.residual(gradient, step, lanes)
    part = part._replace(
        u=np.where(good[:, None], part.u + step, part.u),  # its own error is in `residual`
        half=np.where(good[:, None], np.inf, part.half),
        slope=slope,
        noise=noise,
        radius=np.where(good, np.inf, part.radius),
        proved=part.proved | good,  # no estimate stands; the radius is ∞ until it is placed
        is_taken=good,
        shrunk=np.divide(slope, part.slope, out=np.zeros(len(lanes)), where=part.slope > 0),
    )
    placed = np.flatnonzero(good & np.isfinite(after))
    if placed.size == len(lanes):
        part = _place(state, lanes, part, after)
    elif placed.size:
        nearer = _place(state, lanes[placed], take(part, placed), after[placed])
        part = put(part, [(placed, nearer)])
    estimable = np.flatnonzero(
        good & ~np.isfinite(balls.after) & (part.contraction < MAX_CONTRACTION)
    )
    # the contraction grows in proportion to the distance from θ̂
    if estimable.size:
        estimated = take(part, estimable)
        relative_length = _relative_length(state, lanes[estimable], estimated, estimated.slope)
        estimated = estimated._replace(contraction=estimated.contraction * (1 + relative_length))
        part = put(part, [(estimable, _estimate_radii(state, lanes[estimable], estimated))])
    return part


def _ball(
    state: CertifiedBatch,
    lanes: Lanes,
    u: Points,
    eta: NumpyArray,
    omega: NumpyArray,
    size: PerLane,
    may_take_gaps: Flags,
) -> Ball:
    """Ball from the table or, if it proves little and these may be taken, from all gaps."""
    anchor = state.anchor
    kept_share = state.metric.kept_share[lanes]
    balls = Ball(*np.full((2, len(lanes)), np.inf))
    growth = state.growth[lanes]
    length = linalg.norm(u, axis=1)
    # with larger weights its sums prove next to nothing
    if (may_take_gaps.any() or np.isfinite(state.target)) and growth.min() == 1:
        balls = anchor.table.ball(size, kept_share, growth, length)
    is_wide = ~(balls.after <= 0.5 * balls.distance) | ~np.isfinite(balls.after)
    for chunk in tiles(np.flatnonzero(is_wide & may_take_gaps), eta[0].size):
        slope = size[chunk]
        penalty_part = anchor.norm_share(
            anchor.theta + u[chunk] @ anchor.root, 2 * slope / np.sqrt(kept_share[chunk])
        )
        penalty_part = penalty_part * growth[chunk] / kept_share[chunk]
        arguments = slope, kept_share[chunk], length[chunk], penalty_part
        balls.distance[chunk], balls.after[chunk] = anchor.ball(
            eta[chunk], omega[chunk], *arguments
        )
    return balls


def estimate(state: CertifiedBatch, lanes: Lanes) -> CertifiedBatch:
    """Estimate radii by products with the change of the curvature at the candidates.

    The products give the contraction of a step for one in a few refits, in order of length. For the
    others it is proportional to the length, from the largest one nearby, and is no less than the
    contraction of the last step.
    """
    length = linalg.norm(state.candidates.u[lanes], axis=1)
    order = largest_first(length)
    lanes = lanes[order]
    length = np.maximum(length[order], 1e-300)
    sample = lanes[::CONTRACTION_SPACING]
    chunks = passes(sample, state.anchor.curvature.size, state.candidates.u.shape[1])
    parts = [_contraction(state, chunk) for chunk in chunks]
    ratio = np.concatenate([np.zeros(0), *parts]) / length[::CONTRACTION_SPACING]
    if sample.size:
        ratio = scipy.ndimage.maximum_filter1d(ratio, CONTRACTION_NEIGHBOURS, mode="nearest")
    part = take(state.candidates, lanes)
    spread = np.repeat(ratio, CONTRACTION_SPACING)[: len(lanes)] * length
    part = part._replace(contraction=CAUTION * np.maximum(spread, part.shrunk))
    return state.merge(lanes, _estimate_radii(state, lanes, part))


def _estimate_radii(state: CertifiedBatch, lanes: Lanes, part: Candidates) -> Candidates:
    """Radii for a contraction that grows in proportion to the distance.

    D ≤ λ + c (1 + D / ‖u‖) D.
    """
    contraction = part.contraction
    slope = part.slope
    margin = 1 - np.minimum(contraction, MAX_CONTRACTION)
    discriminant = margin**2 - 4 * contraction * _relative_length(state, lanes, part, slope)
    distance = 2 * slope / (margin + np.sqrt(np.maximum(discriminant, 0.0)))
    growth = 1 + _relative_length(state, lanes, part, distance)
    share = np.where(part.is_taken, contraction * growth, 1.0)
    is_bounded = (contraction < MAX_CONTRACTION) & (discriminant >= 0)
    after = np.where(is_bounded, share * distance + part.noise, np.inf)
    return _place(state, lanes, part._replace(proved=np.zeros(len(lanes), bool)), after)


def _relative_length(
    state: CertifiedBatch, lanes: Lanes, part: Candidates, distance: PerLane
) -> PerLane:
    """Length of a move, in the norm of the refits' metrics, relative to the move from θ̂."""
    length = linalg.norm(part.u, axis=1) * np.sqrt(state.metric.kept_share[lanes])
    return distance / np.maximum(length, 1e-300)


def _contraction(state: CertifiedBatch, lanes: Lanes) -> PerLane:
    """Contraction of a step: the size of A⁻¹E, E the change of the curvature.

    It is found by the first steps of Lanczos' method from random directions, in float32.
    """
    anchor = state.anchor
    model = anchor.model
    theta = anchor.theta + state.candidates.u[lanes] @ anchor.root
    omega, kappa = model.weigh(state.weights(lanes))
    (curvature,) = model.loss.derivatives(model.eta(theta), model.y, (2,))
    change = weight_terms(omega, curvature - anchor.curvature).astype(np.float32)
    penalty_change = None
    if model.norms is not None:
        hessian_change = model.norms.hessian(theta) - model.norms.hessian(anchor.theta[None])
        penalty_change = kappa[:, None, None] * hessian_change
    v = np.random.default_rng(0).standard_normal(len(anchor.root)) * np.ones((len(lanes), 1))
    largest = np.zeros(len(lanes))
    before = None
    for _ in range(LANCZOS_STEPS):
        image = anchor.gradient_of_slopes(apply_curvature(change, anchor.predictor_moves(v)))
        if penalty_change is not None:
            push = np.einsum("rp,rpq->rq", v @ anchor.root, penalty_change)
            image = image + push @ anchor.root.T
        if before is not None:  # v = A⁻¹ before: vᵀAv is known
            norm = np.maximum(np.sum(v * before, 1), 1e-300)
            largest = np.maximum(largest, np.abs(np.sum(v * image, 1)) / norm)
        v = state.metric.solve(image, lanes)
        size = np.sqrt(np.maximum(np.sum(v * image, 1), 1e-300))[:, None]
        before = image / size
        v = v / size
    return largest


SQUARINGS = 2  # of a positive matrix, whose largest eigenvalue they tell to a factor of p^(1/8)
MOST = 100  # largest number of steps by factors
# The same by products; of products for one step; largest and least share of its length that may
# remain unsolved, between which it is λ; few products would not tell the least curvature.
ROUNDS = 12
PRODUCTS = 24
PARTS = 0.1, 1e-2
LEAST = 1e-3  # least Ritz value; few products cannot measure a smaller curvature
FALL = 1e-4  # share of the predicted fall that a step must reach
# shortest steps, by factors and by products
SHORTEST = 1e-12, 1e-6

Rejected = Int[NumpyArray, " rejected"]
Step = Callable[[CertifiedBatch, "Way", Enough, bool], "tuple[CertifiedBatch, Way, Rejected]"]


class Way(NamedTuple):
    """Refits on their way, one entry of each array a refit: their numbers in the batch, weights of
    rows and of the penalty, candidates and their predictors, F, and least Ritz values.
    """

    lanes: Lanes
    omega: Weights
    kappa: PerLane
    u: Points
    eta: Float[NumpyArray, "lanes units ..."]
    value: PerLane
    least: PerLane


def _begin(state: CertifiedBatch, lanes: Lanes, value_of: Callable[..., PerLane]) -> Way:
    """Start at the candidates, or at θ̂ where F is lower."""
    model = state.anchor.model
    omega, kappa = model.weigh(state.weights(lanes))
    u = state.candidates.u[lanes]
    eta = model.eta(_theta(state, u))
    value = value_of(state, omega, kappa, eta, u)
    fit_eta = np.broadcast_to(state.anchor.eta, eta.shape)
    fit_value = value_of(state, omega, kappa, fit_eta, np.zeros_like(u))
    lower = ~(value < fit_value)
    u[lower] = 0.0
    eta[lower] = state.anchor.eta
    value[lower] = fit_value[lower]
    return Way(lanes, omega, kappa, u, eta, value, np.full(len(lanes), np.inf))


def _theta(state: CertifiedBatch, u: Points) -> Points:
    return state.anchor.theta + u @ state.anchor.root


def _value(
    state: CertifiedBatch, omega: NumpyArray, kappa: PerLane, eta: NumpyArray, u: Points
) -> PerLane:
    penalty, _ = state.anchor.model.penalty_terms(_theta(state, u))
    return _losses(state, omega, eta) + kappa * penalty


def _losses(state: CertifiedBatch, omega: NumpyArray, eta: NumpyArray) -> PerLane:
    model = state.anchor.model
    with silence("over", "invalid"):
        (loss,) = model.loss.derivatives(eta, model.y, (0,))
        return np.fmin(weight_terms(omega, loss).sum(1), np.inf)


def _take_shares(
    state: CertifiedBatch,
    way: Way,
    step: Points,
    slope: PerLane,
    shortest: float,
    value_of: Callable[..., PerLane],
    is_proved: Flags | None = None,
) -> tuple[Way, PerLane]:
    """Take steps along which F has a `slope`, halved until it falls; returns the shares taken.

    The whole step is taken where it `is_proved` to help.
    """
    moves = state.anchor.products(step)
    times = lambda length: length.reshape(-1, *(1,) * (moves.ndim - 1))
    length = np.ones(len(step))
    value = way.value.copy()
    open_ = np.arange(len(step))
    while open_.size:
        share = length[open_]
        before = way.value[open_]
        eta = way.eta[open_] + times(share) * moves[open_]
        u = way.u[open_] + share[:, None] * step[open_]
        value[open_] = value_of(state, way.omega[open_], way.kappa[open_], eta, u)
        good = value[open_] <= before + FALL * share * slope[open_] + 1e-14 * np.abs(before)
        if is_proved is not None:
            good |= is_proved[open_]
        length[open_[~good]] /= 2
        open_ = open_[~good & (share > shortest)]
    good = length > shortest
    length = np.where(good, length, 0.0)
    value = np.where(good, value, way.value)
    u = way.u + length[:, None] * step
    return way._replace(u=u, eta=way.eta + times(length) * moves, value=value), length


def _iterate(
    state: CertifiedBatch,
    lanes: Lanes,
    enough: Enough,
    step: Step,
    most: int,
    value_of: Callable[..., PerLane],
) -> tuple[CertifiedBatch, Rejected]:
    """Step until all refits have ended; returns those that are not near enough."""
    way = _begin(state, lanes, value_of)
    ended = [lanes[:0]]
    for k in range(most):
        if not way.lanes.size:
            break
        state, way, rejected = step(state, way, enough, k == 0)
        ended.append(rejected)
    return state, np.concatenate([*ended, way.lanes])


# by factors


def newton(state: CertifiedBatch, lanes: Lanes, enough: Enough) -> CertifiedBatch:
    """Take damped Newton steps, each with the Hessian at its candidate.

    Refits left open then have no minimiser.
    """
    n, p = state.anchor.model.design.shape
    size = max(1, PASS * 8 // (n * state.anchor.model.design.outputs * min(p, 8) + p * p))
    for chunk in groups(lanes, size):
        state, rejected = _iterate(state, chunk, enough, _step_by_factors, MOST, _value)
        state = state.mark(rejected, result=RESULTS.not_converged, half=np.inf)
    return state


def _step_by_factors(
    state: CertifiedBatch, way: Way, enough: Enough, is_first: bool
) -> tuple[CertifiedBatch, Way, Rejected]:
    """Take one step of each refit; returns those that go on, and those that have no minimiser."""
    anchor = state.anchor
    model = anchor.model
    loss = model.loss
    theta = _theta(state, way.u)
    gradients = len(theta) * (2 + theta.shape[1] / 2)
    eta = model.eta(theta)
    curvature = loss.derivatives(eta, model.y, (2,))[0]
    hessian = (
        model.design.gram(way.omega, curvature)
        + way.kappa[:, None, None] * model.bending(theta)
        + anchor.flat
    )
    root, bad, condition_square = inverse_roots(hessian, eta.shape[1])
    rejected = way.lanes[bad]  # the curvature may vanish during the steps
    if is_first:
        state = state.mark(rejected, result=RESULTS.undetermined, half=np.inf)
        rejected = rejected[:0]
    if bad.any():
        parts = way._replace(eta=eta), theta, curvature, hessian, root, condition_square
        way, theta, curvature, hessian, root, condition_square = take(parts, ~bad)
        eta = way.eta
    if not way.lanes.size:
        return state, way, rejected
    lanes, omega, kappa, *_ = way
    slope = loss.derivatives(eta, model.y, (1,))[0]
    gradient = (
        model.design.pull(weight_terms(omega, slope))
        + kappa[:, None] * model.penalty_terms(theta)[1]
    )
    whitened = np.einsum("rp,rpk->rk", gradient, root)
    bulk = np.einsum("rp,rp->r", np.abs(theta), np.sqrt(np.einsum("rpp->rp", hessian)))
    factor_errors = factor_error(condition_square, eta.shape[1], theta.shape[1])
    errors = (part[:, None] for part in (np.sqrt(condition_square), factor_errors, bulk))
    rounding = Rounding(eta.shape[1], theta.shape[1], *errors)
    extents = model.design.extents(root, model.shares(eta, curvature))
    norm, share, length = bounded(extents, rounding, anchor.roots is not None)
    blur = rounding.predictor(length, total(np.abs(eta), 2))
    noise = gradient_error(model, rounding, omega, slope, curvature, eta, length, blur)
    decrement = linalg.norm(whitened, axis=1)
    size = decrement + noise
    reference = curvature if anchor.roots is None else np.ones(norm.shape)
    bounds = CurvatureBounds(reference, reference)
    gap = gaps(loss, model.y, eta, bounds, 2 * size[:, None] * norm, reference, blur)
    penalty_share = _norm_share(state, kappa, theta, root, 2 * size)
    penalty_share += 2 * curvature_error(model, curvature, eta, blur)
    balls = ball(gap, reference, omega * share, size, 2 * size, penalty_share)
    # the error of the step itself, and of the predictors after it
    remainder = noise + rounding.step[:, 0] * decrement
    digits = rounding.predictor(length, total(np.abs(eta), 2), 2 * size[:, None])
    digits += 4 * UNIT * size[:, None] * norm
    # the step is added to u, from which θ comes back by L⁻¹
    step = -np.einsum("rpk,rk->rp", root, whitened)
    step_rounding = np.abs(step) @ state.fit.quadratic.scales
    step_rounding *= 2 * (theta.shape[1] + 4) * UNIT * anchor.rounding.root
    digits += step_rounding[:, None] * anchor.length
    # otherwise a full step may lead further away
    is_proved = (balls.after <= 0.5 * balls.distance) & np.isfinite(balls.after)
    step = state.fit.quadratic.back(step)
    way, step_share = _take_shares(
        state, way, step, -(decrement**2), SHORTEST[0], _value, is_proved
    )
    after = np.where(step_share == 1, balls.after + remainder, np.inf)
    units = state.units[lanes]
    if norm.shape[1] != units.shape[1]:
        norm, digits = (np.take_along_axis(part, units, axis=1) for part in (norm, digits))
    part = take(state.candidates, lanes)._replace(u=way.u, slope=size, noise=noise)
    part = _place(state, lanes, part, after, norm, digits)
    state = state.merge(lanes, part, gradients)
    done = enough(state, lanes)
    # rounding allows no closer approach
    floor = ~done & (step_share == 1) & (decrement <= 2 * noise)
    closed = done | floor
    radius = np.full(len(lanes), np.inf)
    if (good := closed & np.isfinite(after)).any():
        across = across_metrics(state.fit, root[good]) * rounding.growth[good, 0]
        radius[good] = across * after[good] + step_rounding[good]
    state = state.merge(lanes, part._replace(radius=radius))
    # displacement, in lengths of the first step, from which a refit diverges
    is_distant = linalg.norm(way.u, axis=1) > 1e7 * (1 + state.first[lanes])
    diverges = ~closed & (
        is_distant | (step_share == 0) | _vanishing_groups(state, _theta(state, way.u))
    )
    diverges |= ~np.isfinite(way.value) | (floor & ~np.isfinite(after))
    return state, take(way, ~(closed | diverges)), np.append(rejected, lanes[diverges])


def _norm_share(
    state: CertifiedBatch, kappa: PerLane, theta: Points, root: NumpyArray, radius: PerLane
) -> PerLane | float:
    """Share that norms of groups add to C, from the candidates and in their own metrics."""
    norms = state.anchor.model.norms
    if norms is None:
        return 0.0
    reach = norms.reach(root.swapaxes(1, 2))
    distances = radius[:, None] * np.sqrt(reach.groups)
    return kappa * norms.share(norms.lengths(theta), distances, reach)


def across_metrics(fit: Fit, root: Float[NumpyArray, "lanes params rank"]) -> PerLane:
    """Bound the largest ratio of a length in the norm of H to that in the refit's own.

    ‖LᵀR‖, and the rounding of H.
    """
    factor = np.asarray(fit.quadratic.factor)
    scale = fit.quadratic.scales
    n, p = linear_cache(fit).model.design.shape
    with silence("over", "invalid", "divide"):  # a refit that diverges
        whitened_root = factor.T @ root
        square = whitened_root.swapaxes(1, 2) @ whitened_root
        largest = np.trace(square, axis1=1, axis2=2)
        power = square / largest[:, None, None]
        for _ in range(SQUARINGS):
            power = power @ power
        largest *= linalg.norm(power, axis=(1, 2)) ** (0.5**SQUARINGS)
        return UP * np.sqrt(
            largest + (n + 5 * p + 8) * UNIT * condition(root.swapaxes(1, 2), scale)
        )


def _vanishing_groups(state: CertifiedBatch, theta: Points) -> Flags:
    """Whether a group goes to zero in the refit, where its norm is not smooth."""
    norms = state.anchor.model.norms
    if norms is None:
        return np.zeros(len(theta), bool)
    # length, relative to that in the fit, below which a group is on its way to zero
    shrinks = norms.lengths(theta) < 1e-4 * norms.lengths(state.anchor.theta[None])
    return np.asarray(shrinks.any(1))


def inverse_roots(
    hessian: Float[NumpyArray, "refits p p"], n: int
) -> tuple[Float[NumpyArray, "refits p p"], RefitFlags, PerRefit]:
    """Compute R with R Rᵀ the inverse of each Hessian, a sum over n units.

    Returns R, which Hessians are not known to have an inverse, and ‖|R| s‖². Both are judged with
    the diagonal scaled to one.
    """
    diagonal = np.einsum("rpp->rp", hessian)
    bad = ~(diagonal > 0).all(1) | ~np.isfinite(hessian).all((1, 2))
    scale = 1 / np.sqrt(np.where(bad[:, None], 1.0, diagonal))
    scaled = hessian * scale[:, :, None] * scale[:, None, :]
    scaled[bad] = np.eye(hessian.shape[1])
    factor = cholesky(scaled)
    bad |= ~(np.einsum("rpp->rp", factor).min(1) ** 2 >= 1e-14)
    factor[bad] = np.eye(hessian.shape[1])
    inverse = np.stack([scipy.linalg.lapack.dtrtri(f, lower=1)[0] for f in factor])
    condition_square = condition(inverse, np.ones(scale.shape))
    bad |= ~(factor_error(condition_square, n, hessian.shape[1]) < 0.5)
    return scale[:, :, None] * inverse.swapaxes(1, 2), bad, condition_square


# by conjugate gradients


def conjugate(
    state: CertifiedBatch, lanes: Lanes, enough: Enough
) -> tuple[CertifiedBatch, Int[NumpyArray, " open"]]:
    """Take Newton steps by products; returns the lanes that are not near enough, as F stops falling
    or is too flat.
    """
    lanes = lanes[state.metric.kept_share[lanes] > 0]
    open_ = [lanes[:0]]
    for chunk in passes(lanes, state.anchor.eta.size, state.candidates.u.shape[1]):
        state, rejected = _iterate(state, chunk, enough, _step_by_products, ROUNDS, _value_by_rows)
        open_.append(rejected)
    return state, np.sort(np.concatenate(open_))


def _step_by_products(
    state: CertifiedBatch, way: Way, enough: Enough, is_first: bool
) -> tuple[CertifiedBatch, Way, Rejected]:
    """Close refits that are near enough, and take one step of each other; returns those that go on,
    and those of which F stops falling or is too flat.
    """
    gradient, change, noise = _gradient(state, way)
    part = _judge(state, way, gradient, noise)
    state = state.merge(way.lanes, part, len(noise))
    size = part.slope
    if not is_first:
        open_ = ~enough(state, way.lanes)
        way, gradient, change, size, noise = take((way, gradient, change, size, noise), open_)
        if not way.lanes.size:
            return state, way, way.lanes
    step, least, gradients = _solve(state, way.lanes, gradient, change, size)
    state = replace(state, gradients=state.gradients + gradients)
    slope = np.einsum("rp,rp->r", gradient, step)
    way, length = _take_shares(state, way, step, slope, SHORTEST[1], _value_by_rows)
    way = way._replace(least=np.minimum(way.least, least))
    # of the first step on, least Ritz values tell how near those are that rounding stops
    good = (length > 0) & (way.least > LEAST) & (is_first | (size > 2 * noise))
    return state, take(way, good), way.lanes[~good]


def _value_by_rows(
    state: CertifiedBatch, omega: NumpyArray, kappa: PerLane, eta: NumpyArray, u: Points
) -> PerLane:
    """F as in `_gradient`."""
    anchor = state.anchor
    moves = eta - anchor.eta
    pulled = apply_curvature(anchor.curvature[None], moves)
    pulled += 2 * anchor.slope
    moves *= scale_units(anchor.weight[None], pulled)
    square = np.vecdot(u, u) - total(moves, 2).sum(1)
    return _losses(state, omega, eta) + u @ anchor.leftover + 0.5 * square


def _gradient(state: CertifiedBatch, way: Way) -> tuple[Points, NumpyArray, PerLane]:
    """Whitened gradients, the difference of ω ℓ″ from its value at θ̂, and the rounding error of the
    gradients' lengths.

    As H is the identity, that is the gradient at θ̂, u, and what slopes differ by from straight
    ones; the penalty is in u.
    """
    anchor = state.anchor
    model = anchor.model
    bends = np.empty_like(way.eta)
    change = np.empty((len(way.u), *anchor.curvature.shape), np.float32)
    sums = np.empty(len(way.u))
    for chunk in tiles(np.arange(len(way.u)), way.eta[0].size):
        slope, curvature = model.loss.derivatives(way.eta[chunk], model.y, (1, 2))
        bends[chunk] = weight_terms(way.omega[chunk], slope)
        sums[chunk] = total(np.abs(bends[chunk]), 2) @ anchor.length
        straight = apply_curvature(anchor.curvature[None], way.eta[chunk] - anchor.eta)
        bends[chunk] -= scale_units(anchor.weight[None], straight + anchor.slope)
        change[chunk] = weight_terms(way.omega[chunk], curvature)
        change[chunk] -= weight_terms(anchor.weight, anchor.curvature)
    gradient = anchor.leftover + way.u + anchor.sums(bends)
    length = linalg.norm(way.u, axis=1)
    noise = anchor.rounding.gradient(sums, length) + anchor.noise + anchor.rounding.off * length
    # an estimate counts rounding at its usual size: signs are random, in sums and among their terms
    scale = state.fit.quadratic.scales
    noise *= linalg.norm(anchor.root * scale) / (anchor.rounding.root * anchor.rounding.rows)
    return gradient, change, noise / np.sqrt(state.metric.kept_share[way.lanes])


def _judge(state: CertifiedBatch, way: Way, gradient: Points, noise: PerLane) -> Candidates:
    """Return candidates with their estimated distances."""
    square = np.sum(gradient * state.metric.solve(gradient, way.lanes), 1)
    size = np.sqrt(np.maximum(square, 0.0)) + noise
    measured = np.isfinite(way.least)
    distance = CAUTION * size / np.where(measured, way.least, 1.0)
    estimated = np.zeros(len(size), bool)
    part = take(state.candidates, way.lanes)
    part = part._replace(u=way.u, slope=size, noise=noise, proved=estimated)
    return _place(state, way.lanes, part, np.where(measured, distance, np.inf))


def _solve(
    state: CertifiedBatch, lanes: Lanes, gradient: Points, change: NumpyArray, size: PerLane
) -> tuple[Points, PerLane, float]:
    """Compute Newton steps, the least Ritz value of each solve, and the number of products."""
    anchor = state.anchor
    products = 0

    def product(direction: Points, places: Lanes) -> Points:
        nonlocal products
        products += len(places)
        moves = anchor.predictor_moves(direction)
        return direction + anchor.gradient_of_slopes(apply_curvature(change[places], moves))

    solution = conjugate_gradients.solve(
        product,
        lambda residual, places: state.metric.solve(residual, lanes[places]),
        -gradient,
        PRODUCTS,
        part=np.clip(size, PARTS[1], PARTS[0]),
    )
    return solution.x, solution.least, products
