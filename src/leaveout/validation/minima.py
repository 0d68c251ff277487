"""Lower minima: compare refits with the other minima that the fit's starts found.

A refit is the minimiser of `F(·, w)` that descent from θ̂ reaches. A second descent starts from
every other minimum of `F(·, 1)`,

    θ ← θ − t C⁻¹∇F(θ, w),
    C the Hessian of F(·, 1) at that minimum, t halved where F would rise,

for a few steps first, and to convergence if it may lead below the refit. A value of F below the
refit's proves that the refit is not the global minimiser. If no lower value is found, the refit may
still not be the global minimiser.
"""

import numpy as np
from jaxtyping import Float

from .._runtime import NumpyArray, ParamColumns, cached_on
from ..linalg import Lanes, LaneState, Proposal, iterate
from ..objectives import Functions, RefitFlags, RefitPoints, float64, function, functions, runs
from ..optimize import LARGE_NUM_PARAMETERS, SAME_MINIMUM, START_ROUNDING, Fit, LocalQuadratic
from ..plans import RefitRows

# gradients from each minimum: for every refit, and for those that may be lower there
LOOK = 4
ARRIVE = 51
# factor on the predicted further fall of a refit's F, by which another value must be lower
DOUBT = 4.0


class Root:
    """A root S of the inverse Hessian at another minimum, S Sᵀ ≈ H⁻¹."""

    def __init__(self, scale: ParamColumns):
        self.scale = scale

    def whiten(self, gradient: RefitPoints) -> Float[NumpyArray, "refits some"]:
        return gradient @ self.scale

    def unwhiten(self, u: Float[NumpyArray, "refits some"]) -> RefitPoints:
        return u @ self.scale.T


@cached_on
def _other_minima(fit: Fit) -> list[tuple[NumpyArray, Root | None]]:
    """List the other minima, raveled, with whitening coordinates at each.

    The coordinates are None, for those of the fit, if the Hessian is too large or not positive
    definite.
    """
    minima = []
    F = function(fit.objective, fit.theta)
    flat_curvature = 1e-12  # share of the largest curvature that counts as flat
    for theta in fit.minima.theta[1:]:
        scale = None  # not the fit, so that the cache does not keep it alive
        if fit.num_params <= LARGE_NUM_PARAMETERS:
            values, vectors = np.linalg.eigh(F.hessian(theta))
            if values[0] > -flat_curvature * values[-1]:
                scale = Root(
                    vectors
                    * np.where(values > flat_curvature * values[-1], np.abs(values), np.inf) ** -0.5
                )
        minima.append((theta, scale))
    return minima


@float64
def lower(
    fit: Fit, rows: RefitRows, theta: RefitPoints, exists: RefitFlags
) -> tuple[RefitFlags, RefitPoints]:
    """Find the refits of a batch that have a lower minimum elsewhere, and the raveled θ of the
    lowest that was found.

    `theta` are the parameters of the refits that exist.
    """
    lanes = np.flatnonzero(exists & _promising(fit, rows))
    is_lower = np.zeros(len(theta), bool)
    best = np.array(theta)
    if not lanes.size:
        return is_lower, best
    F = functions(fit.objective, fit.theta, rows.take(lanes))
    start = theta[lanes]
    everyone = np.arange(len(lanes))
    here = _descend(F, fit.quadratic, start, everyone, 1)
    least = here.value - DOUBT * _fall(here.length)
    least = least - SAME_MINIMUM - START_ROUNDING * np.abs(here.value)
    lowest = least.copy()
    for minimum, scale in _other_minima(fit):
        run = _descend(
            F, scale or fit.quadratic, np.broadcast_to(minimum, start.shape), everyone, LOOK
        )
        worth = np.flatnonzero(run.value - DOUBT * _fall(run.length) < lowest)
        if worth.size:
            run = _descend(F, scale or fit.quadratic, run.theta, worth, ARRIVE)
            better = run.value < lowest[worth]
            best[lanes[worth[better]]] = run.theta[better]
            lowest[worth[better]] = run.value[better]
    is_lower[lanes] = lowest < least
    return is_lower, best


def _promising(fit: Fit, rows: RefitRows) -> RefitFlags:
    """Mark the refits that may be lower elsewhere: those that one step from another minimum would
    take below their value at θ̂.

    All refits are marked if one pass does not give F of all of them.
    """
    fold_runs = runs(fit.objective, fit.theta, rows)
    if fold_runs is None:
        return np.ones(len(rows.index), bool)
    fold_values = fit.value - fold_runs.scores(fit.vector)[1]
    F = function(fit.objective, fit.theta)
    size = fit.num_params
    is_promising = np.zeros(len(fold_values), bool)
    for minimum, scale in _other_minima(fit):
        value, gradient = F.look(minimum)
        _, joint = fold_runs.scores(minimum)
        points = np.tile(minimum, (size, 1))
        eye = np.eye(size)
        slopes = np.stack([first[1] for first, _ in fold_runs.derivatives((points, eye, eye))], 1)
        predicted_fall = 0.5 * np.sum((scale or fit.quadratic).whiten(gradient - slopes) ** 2, 1)
        # also if the value is NaN
        is_promising |= ~(value - joint - DOUBT * predicted_fall >= fold_values)
    return is_promising


def _descend(
    F: Functions, scale: LocalQuadratic | Root, start: RefitPoints, lanes: NumpyArray, most: int
) -> LaneState:
    """Take steps down from `start` for some refits, by at most so many gradients."""
    resolved_fall = 1e-12  # predicted fall, relative to F, that float64 does not resolve

    def propose(state: LaneState, places: Lanes) -> Proposal:
        whitened = scale.whiten(state.gradient)
        length = np.linalg.norm(whitened, axis=1)
        resolved = _fall(length) <= resolved_fall * np.abs(state.value)
        return Proposal(scale.unwhiten(whitened), length, stay=resolved)

    look = lambda theta, places: F.look(theta, lanes[places])
    return iterate(look, propose, start[lanes], most=most, shrink=0.25)[0]


def _fall(length: NumpyArray) -> NumpyArray:
    """Fall of F that steps of these lengths predict."""
    return 0.5 * length**2
