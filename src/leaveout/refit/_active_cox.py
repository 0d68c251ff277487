"""Refits of a Cox model under a penalty with kinks or bounds, whose errors are estimated.

Each is first refitted on the active coefficients S of the fit, with their signs σ. It is the
minimiser of all if, within its distance ρ from the exact refit in the norm of H, every coefficient
keeps its sign and every other one its place:

    floor_j < θ_w,j ± ρ ‖L⁻¹e_j‖ < ceiling_j  on S,
    κ(w) least_j ≤ ∇_jL(θ_w, w) ± 2 ρ √H̃_jj ≤ κ(w) most_j  off S,

where H = L Lᵀ, and H̃_jj = Σ_i r_i x_ij² with the pull r of the risk sets is no less than H_jj; the
factor 2 is for what the curvature changes. All other refits are minimised over all coefficients
(`optimize.active_set`).
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from .._runtime.jax import cached_on
from .._runtime.results import NO_REFIT_CODES, RESULTS, among
from ..linalg.bounds import gates, segments
from ..models.glm.active_coefficients import ActiveCox
from ..objectives.batch_functions import weights_of
from ..objectives.objective import Flags, Lanes, PerRefit, RefitPoints
from ..optimize.active_set import TIE_DISTANCE, NoMinimiser, minimise_with_kinks
from ..optimize.fit import Fit
from ..plans.plan import CAPACITY, RefitRows
from ._descent import LOSS_ROUNDING
from ._refit_batch import RefitBatch
from ._strategies import AbstractRefit


def refit_active_cox(
    refit: AbstractRefit, fit: Fit, model: ActiveCox, rows: RefitRows, judge: bool
) -> RefitBatch:
    """Refit a batch, each refit on the coefficients that are active in it."""
    first = refit(fit, rows, judge=judge)
    if not judge and not refit.iterates:
        return replace(first, make=lambda: model.spread(first.theta))
    assert first.ball is not None
    center, radius, error, result = (
        np.array(part) for part in (*first.ball(), first.error, first.result)
    )
    theta = model.spread(fit.at(center))
    reported = model.spread(first.theta)
    if first.scores is None:
        scores = np.full(len(error), np.nan)
    else:
        scores = np.array(first.scores)
    alone = ~_keeps(fit, model, rows, center, radius) | among(result, NO_REFIT_CODES)
    for lane in np.flatnonzero(alone):
        solution = _refit_alone(model, rows, np.array([lane]), theta[lane])
        result[lane] = RESULTS.undetermined if solution is None else RESULTS.successful
        if solution is None:
            radius[lane], error[lane] = np.inf, np.inf
            continue
        theta[lane], radius[lane], loss, error[lane] = solution
        if refit.iterates:
            reported[lane], scores[lane] = theta[lane], loss
        else:  # the loss is reported at another point than the refit
            error[lane] += abs(loss - scores[lane])
    moves = np.where(alone[:, None], 0.0, center)
    base = np.where(alone[:, None], theta, model.spread(fit.vector))

    def parameters_at(u: RefitPoints) -> RefitPoints:
        out = base.copy()
        out[:, model.place] += fit.unwhiten(u)
        return out

    ball = lambda: (moves, radius)
    reported_scores = None if first.scores is None else scores
    return replace(
        first,
        make=lambda: reported,
        error=error,
        result=result,
        scores=reported_scores,
        ball=ball,
        parameters_at=parameters_at,
    )


@cached_on
def _size(fit: Fit) -> Float[np.ndarray, " params"]:
    """Roots of the bound of the diagonal of ∇²L, of all coefficients."""
    model: ActiveCox = fit.objective  # type: ignore[assignment]
    _, _, pushed, _ = model._by_units(fit.vector[None], np.ones((1, model.num_units)))
    row_weights = pushed[0] + model.event * (
        1.0 if model.sample_weight is None else model.sample_weight
    )
    return np.sqrt(row_weights @ model.whole.model.design**2 + model.whole.ridge)


def _keeps(
    fit: Fit, model: ActiveCox, rows: RefitRows, center: RefitPoints, radius: PerRefit
) -> Flags:
    """Whether each refit keeps the active coefficients and their signs, within a distance."""
    full_model = model.whole
    n = model.num_units
    theta = model.spread(fit.at(center))
    held = np.setdiff1d(np.arange(len(full_model.slope)), model.place)
    ranges = np.multiply.outer(radius, np.sqrt(np.sum(fit.root**2, axis=0)))
    (floor, ceiling) = segments(full_model, model.place, model.sign)
    active_theta = theta[:, model.place]
    with np.errstate(invalid="ignore"):
        keeps = ((active_theta - ranges > floor) & (active_theta + ranges < ceiling)).all(1)
    least, most = (part[held] for part in gates(full_model, model.rest))
    gradient_error = np.multiply.outer(2 * radius, _size(fit)[held])
    lanes = np.flatnonzero(keeps & np.isfinite(radius))
    keeps[~np.isfinite(radius)] = False
    for chunk in (
        lanes[k : k + max(1, CAPACITY // n)] for k in range(0, len(lanes), max(1, CAPACITY // n))
    ):
        _, gradient, pushed, kappa = full_model.smooth._by_units(
            theta[chunk], weights_of(rows, n, chunk)
        )
        scale = np.where(
            full_model.slope > 0,
            full_model.slope,
            np.multiply.outer(np.abs(pushed).sum(1), full_model.largest),
        )[:, held]
        with np.errstate(invalid="ignore"):
            low, high = (
                np.nan_to_num(np.multiply.outer(kappa, part), posinf=np.inf, neginf=-np.inf)
                for part in (least, most)
            )
        allowance = gradient_error[chunk] - TIE_DISTANCE * scale
        keeps[chunk] = (
            (gradient[:, held] - allowance >= low) & (gradient[:, held] + allowance <= high)
        ).all(1)
    return keeps


def _refit_alone(
    model: ActiveCox, rows: RefitRows, lane: Lanes, start: Float[np.ndarray, " params"]
) -> tuple[Float[np.ndarray, " params"], float, float, float] | None:
    """Minimise one refit over all coefficients.

    Returns θ, its distance, its loss and the error of that, or None.
    """
    weights = weights_of(rows, model.num_units, lane)
    smooth = model.whole.smooth
    try:
        solution = minimise_with_kinks(model.whole, weights[0], start)
    except NoMinimiser:
        return None
    loss = lambda theta: float(
        smooth.losses(theta[None], weights, rows.index[lane], rows.held[lane])[0]
    )
    refined = solution.theta.copy()
    value = loss(solution.theta)
    distance = 0.0
    if len(solution.place):
        objective = model.whole.restrict(solution.place, solution.sign, solution.theta)
        point = solution.theta[solution.place][None]
        (gradient,) = objective.look(point, weights)[1]
        (hessian,) = objective.hessians(point, weights)
        step = np.linalg.solve(hessian, gradient)
        refined[solution.place] -= step
        distance = 2 * float(np.sqrt(max(gradient @ step, 0.0)))
    # a Newton step more shows what is left; twice that
    return (
        solution.theta,
        distance,
        value,
        2 * abs(loss(refined) - value) + LOSS_ROUNDING * abs(value),
    )
