"""Damped Newton steps of refits of linear predictors, each with the Hessian at its candidate.

They start at the candidate or at θ̂, where F is lower, and are shortened until F falls. `newton`
factors Hessians, and its errors are proved; refits that it leaves open have no minimiser.
`conjugate` is for Hessians that are dear, whose steps it solves for by conjugate gradients. There
A, the refit's own Hessian at θ̂, preconditions I + Z⊤ diag(ω ℓ″(η) − ω̂ ℓ̂″) Z, the Hessian at the
candidate in whitened coordinates. Its least Ritz value μ gives an estimate of a candidate's
distance from the minimiser, in the norm of A: about ‖g‖_{A⁻¹} / μ.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from .._runtime.results import RESULTS
from ..linalg import conjugate_gradients
from ..linalg.design import apply_curvature, weight_terms
from ..linalg.enclosure_theorem import CurvatureBounds, ball, gaps
from ..linalg.rounding import UNIT, UP, Rounding, bounded, condition, factor_error
from ..linalg.sparse_cholesky import cholesky
from ..objectives.objective import Flags, Lanes, PerLane, PerRefit, Points
from ._anchor import PASS, curvature_error, gradient_error, groups, passes, tiles, total
from ._enclosure import CAUTION, CertifiedBatch
from ._refit_batch import take

Array = np.ndarray
SQUARINGS = 2  # of a positive matrix, whose largest eigenvalue they tell to a factor of p^(1/8)
MOST = 100  # largest number of steps by factors
# The same by products; of products for one step; share of its length that may remain unsolved.
ROUNDS = 12
PRODUCTS = 24
PART = 0.1
LEAST = 1e-3  # least Ritz value; few products cannot measure a smaller curvature
FALL = 1e-4  # share of the predicted fall that a step must reach
# shortest steps, by factors and by products
SHORTEST = 1e-12, 1e-6

Enough = Callable[[Array], Flags]
Rejected = Int[Array, " rejected"]
Step = Callable[[CertifiedBatch, "Way", Enough, bool], "tuple[Way, Rejected]"]


class Way(NamedTuple):
    """Refits on their way, one entry of each array a refit: their numbers in the batch, weights of
    rows and of the penalty, candidates and their predictors, F, and least Ritz values.
    """

    lanes: Lanes
    omega: Float[Array, "lanes units"]
    kappa: PerLane
    u: Points
    eta: Float[Array, "lanes units ..."]
    value: PerLane
    least: PerLane


def _begin(state: CertifiedBatch, lanes: Lanes) -> Way:
    """Start at the candidates, or at θ̂ where F is lower."""
    model = state.anchor.model
    omega, kappa = model.weigh(state._weights(lanes))
    u = state.u[lanes]
    theta = _theta(state, u)
    eta = model.eta(theta)
    value = _value(state, omega, kappa, eta, theta)
    fit_eta = np.broadcast_to(state.anchor.eta, eta.shape)
    fit_value = _value(state, omega, kappa, fit_eta, _theta(state, np.zeros_like(u)))
    lower = ~(value < fit_value)
    u[lower], eta[lower], value[lower] = 0.0, state.anchor.eta, fit_value[lower]
    return Way(lanes, omega, kappa, u, eta, value, np.full(len(lanes), np.inf))


def _theta(state: CertifiedBatch, u: Points) -> Points:
    return state.anchor.theta + u @ state.anchor.root


def _value(
    state: CertifiedBatch, omega: Array, kappa: PerLane, eta: Array, theta: Points
) -> PerLane:
    model = state.anchor.model
    with np.errstate(over="ignore", invalid="ignore"):
        (loss,) = model.loss.derivatives(eta, model.y, (0,))
        value = weight_terms(omega, loss).sum(1) + kappa * model.penalty_terms(theta)[0]
    return np.where(np.isnan(value), np.inf, value)


def _take_shares(
    state: CertifiedBatch,
    way: Way,
    step: Points,
    slope: PerLane,
    shortest: float,
    is_proved: Flags | None = None,
) -> tuple[Way, PerLane]:
    """Take steps along which F has a `slope`, halved until it falls; returns the shares taken.

    The whole step is taken where it `is_proved` to help.
    """
    theta = _theta(state, way.u)
    along = step @ state.anchor.root
    moves = state.anchor.model.design.predictors(along)
    times = lambda length: length.reshape(-1, *(1,) * (moves.ndim - 1))
    length = np.ones(len(step))
    value = way.value.copy()
    open_ = np.arange(len(step))
    while open_.size:
        share = length[open_]
        before = way.value[open_]
        eta = way.eta[open_] + times(share) * moves[open_]
        point = theta[open_] + share[:, None] * along[open_]
        value[open_] = _value(state, way.omega[open_], way.kappa[open_], eta, point)
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
    state: CertifiedBatch, lanes: Lanes, enough: Enough, step: Step, most: int
) -> Rejected:
    """Step until all refits have ended; returns those that are not near enough."""
    way = _begin(state, lanes)
    ended = [lanes[:0]]
    for k in range(most):
        if not way.lanes.size:
            break
        way, rejected = step(state, way, enough, k == 0)
        ended.append(rejected)
    return np.concatenate([*ended, way.lanes])


# by factors


def newton(state: CertifiedBatch, lanes: Lanes, enough: Enough) -> None:
    """Take damped Newton steps, each with the Hessian at its candidate.

    Refits left open then have no minimiser.
    """
    n, p = state.anchor.model.design.shape
    size = max(1, PASS * 8 // (n * state.anchor.model.design.outputs * min(p, 8) + p * p))
    for chunk in groups(lanes, size):
        _fail(state, _iterate(state, chunk, enough, _step, MOST), RESULTS.not_converged)


def _fail(state: CertifiedBatch, lanes: Lanes, code: RESULTS) -> None:
    state.result[lanes], state.half[lanes] = code, np.inf


def _step(state: CertifiedBatch, way: Way, enough: Enough, is_first: bool) -> tuple[Way, Rejected]:
    """Take one step of each refit; returns those that go on, and those that have no minimiser."""
    anchor = state.anchor
    model = anchor.model
    loss = model.loss
    theta = _theta(state, way.u)
    state.gradients += len(theta) * (2 + theta.shape[1] / 2)
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
        _fail(state, rejected, RESULTS.undetermined)
        rejected = rejected[:0]
    if bad.any():
        parts = way._replace(eta=eta), theta, curvature, hessian, root, condition_square
        way, theta, curvature, hessian, root, condition_square = take(parts, ~bad)
        eta = way.eta
    if not way.lanes.size:
        return way, rejected
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
    decrement = np.linalg.norm(whitened, axis=1)
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
    step_rounding = np.abs(step) @ np.linalg.norm(np.asarray(state.fit.factor), axis=1)
    step_rounding *= 2 * (theta.shape[1] + 4) * UNIT * anchor.rounding.root
    digits += step_rounding[:, None] * anchor.length
    # otherwise a full step may lead further away
    is_proved = (balls.after <= 0.5 * balls.distance) & np.isfinite(balls.after)
    step = np.asarray(state.fit.back(step))
    way, step_share = _take_shares(state, way, step, -(decrement**2), SHORTEST[0], is_proved)
    state.u[lanes], state.slope[lanes], state.noise[lanes] = way.u, size, noise
    after = np.where(step_share == 1, balls.after + remainder, np.inf)
    units = state.units[lanes]
    if norm.shape[1] != units.shape[1]:
        norm, digits = (np.take_along_axis(part, units, axis=1) for part in (norm, digits))
    state._place(lanes, after, norm, digits)
    done = enough(lanes)
    # rounding allows no closer approach
    floor = ~done & (step_share == 1) & (decrement <= 2 * noise)
    closed = done | floor
    state.radius[lanes] = np.inf
    if (good := closed & np.isfinite(after)).any():
        across = across_metrics(state, root[good]) * rounding.growth[good, 0]
        state.radius[lanes[good]] = across * after[good] + step_rounding[good]
    # displacement, in lengths of the first step, from which a refit diverges
    is_distant = np.linalg.norm(way.u, axis=1) > 1e7 * (1 + state.first[lanes])
    diverges = ~closed & (
        is_distant | (step_share == 0) | _vanishing_groups(state, _theta(state, way.u))
    )
    diverges |= ~np.isfinite(way.value) | (floor & ~np.isfinite(after))
    return take(way, ~(closed | diverges)), np.append(rejected, lanes[diverges])


def _norm_share(
    state: CertifiedBatch, kappa: PerLane, theta: Points, root: Array, radius: PerLane
) -> PerLane | float:
    """Share that norms of groups add to C, from the candidates and in their own metrics."""
    norms = state.anchor.model.norms
    if norms is None:
        return 0.0
    reach = norms.reach(root.swapaxes(1, 2))
    distances = radius[:, None] * np.sqrt(reach.groups)
    return kappa * norms.share(norms.lengths(theta), distances, reach)


def across_metrics(state: CertifiedBatch, root: Float[np.ndarray, "lanes params rank"]) -> PerLane:
    """Bound the largest ratio of a length in the norm of H to that in the refit's own.

    ‖LᵀR‖, and the rounding of H.
    """
    factor = np.asarray(state.fit.factor)
    scale = np.sqrt(np.sum(factor**2, axis=1))
    (n, p) = state.anchor.model.design.shape
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a refit that diverges
        whitened_root = factor.T @ root
        square = whitened_root.swapaxes(1, 2) @ whitened_root
        largest = np.trace(square, axis1=1, axis2=2)
        power = square / largest[:, None, None]
        for _ in range(SQUARINGS):
            power = power @ power
        largest = largest * np.linalg.norm(power, axis=(1, 2)) ** (0.5**SQUARINGS)
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
    hessian: Float[np.ndarray, "refits p p"], n: int
) -> tuple[Float[np.ndarray, "refits p p"], Bool[np.ndarray, " refits"], PerRefit]:
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


def conjugate(state: CertifiedBatch, lanes: Lanes, enough: Enough) -> Int[np.ndarray, " open"]:
    """Take Newton steps by products; returns the lanes that are not near enough, as F stops falling
    or is too flat.
    """
    lanes = lanes[state.metric.kept_share[lanes] > 0]
    chunks = passes(lanes, state.anchor.eta.size, state.u.shape[1])
    steps = [_iterate(state, chunk, enough, _step_by_products, ROUNDS) for chunk in chunks]
    return np.sort(np.concatenate([lanes[:0], *steps]))


def _step_by_products(
    state: CertifiedBatch, way: Way, enough: Enough, is_first: bool
) -> tuple[Way, Rejected]:
    """Close refits that are near enough, and take one step of each other; returns those that go on,
    and those of which F stops falling or is too flat.
    """
    gradient, change, noise = _gradient(state, way)
    size = _judge(state, way, gradient, noise)
    if not is_first:
        open_ = ~enough(way.lanes)
        way, gradient, change, size, noise = take((way, gradient, change, size, noise), open_)
        if not way.lanes.size:
            return way, way.lanes
    step, least = _solve(state, way.lanes, gradient, change)
    slope = np.einsum("rp,rp->r", gradient, step)
    way, length = _take_shares(state, way, step, slope, SHORTEST[1])
    way = way._replace(least=np.minimum(way.least, least))
    good = (length > 0) & (way.least > LEAST) & (size > 2 * noise)
    return take(way, good), way.lanes[~good]


def _gradient(state: CertifiedBatch, way: Way) -> tuple[Points, Array, PerLane]:
    """Whitened gradients, the difference of ω ℓ″ from its value at θ̂, and the rounding error of the
    gradients' lengths.
    """
    anchor = state.anchor
    model = anchor.model
    theta = _theta(state, way.u)
    weighted_slopes = np.empty_like(way.eta)
    change = np.empty((len(theta), *anchor.curvature.shape), np.float32)
    for chunk in tiles(np.arange(len(theta)), way.eta.shape[1]):
        slope, curvature = model.loss.derivatives(way.eta[chunk], model.y, (1, 2))
        weighted_slopes[chunk] = weight_terms(way.omega[chunk], slope)
        change[chunk] = weight_terms(way.omega[chunk], curvature)
        change[chunk] -= weight_terms(anchor.weight, anchor.curvature)
    gradient = (model.design.pull(weighted_slopes) + theta @ model.penalty) @ anchor.root.T
    sums = total(np.abs(weighted_slopes, out=weighted_slopes), 2) @ anchor.length
    noise = anchor.rounding.gradient(sums, np.linalg.norm(way.u, axis=1)) + anchor.noise
    # an estimate counts rounding at its usual size: signs are random, in sums and among their terms
    scale = np.sqrt(np.sum(np.asarray(state.fit.factor) ** 2, axis=1))
    noise *= np.linalg.norm(anchor.root * scale) / (anchor.rounding.root * anchor.rounding.rows)
    state.gradients += len(theta)
    return gradient, change, noise / np.sqrt(state.metric.kept_share[way.lanes])


def _judge(state: CertifiedBatch, way: Way, gradient: Points, noise: PerLane) -> PerLane:
    """Write candidates and their distances into the batch."""
    lanes = way.lanes
    square = np.sum(gradient * state.metric.solve(gradient, lanes), axis=1)
    size = np.sqrt(np.maximum(square, 0.0)) + noise
    state.u[lanes], state.slope[lanes], state.noise[lanes] = way.u, size, noise
    state.proved[lanes] = False
    measured = np.isfinite(way.least)
    distance = CAUTION * size / np.where(measured, way.least, 1.0)
    state._place(lanes, np.where(measured, distance, np.inf))
    return size


def _solve(
    state: CertifiedBatch, lanes: Lanes, gradient: Points, change: Array
) -> tuple[Points, PerLane]:
    """Compute Newton steps, and the least Ritz value of each solve."""
    anchor = state.anchor

    def product(direction: Points, places: Lanes) -> Points:
        state.gradients += len(places)
        moves = anchor.predictor_moves(direction)
        return direction + anchor.gradient_of_slopes(apply_curvature(change[places], moves))

    solution = conjugate_gradients.solve(
        product,
        lambda residual, places: state.metric.solve(residual, lanes[places]),
        -gradient,
        PRODUCTS,
        part=PART,
    )
    return solution.x, solution.least
