"""Refits without short runs of units, from derivatives of the scores of all folds, computed
together by each pass.

F(θ, w_o) = F(θ, 1) − s_o(θ), with s_o the joint score of the units of fold o
(`objectives.contiguous_folds`). In whitened coordinates refits solve

    g + u + ½ T[u, u] − ∇s_o − ∇²s_o u = r,      T = ∇³F,
    r = ½ ∇³s_o[u, u] − (1/6) ∇⁴F[u, u, u] + …

The left side is a quadratic in u with curvature I − ∇²s_o + T[u], which D(D+1)/2 passes give for
all folds. The size of r, and with it the distance of u from the refit, is estimated from third
derivatives of every s_o and fourth ones of F along the principal axes of all displacements: the
largest of them stands for the fold's own direction. Losses are expanded to second order in the same
way. Gradients of the folds that these estimates only just accept measure how good the estimates
are.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import linalg

from .._runtime import NumpyArray, join, slices
from ..objectives import (
    Directions,
    HeldOutLosses,
    Lanes,
    Matrices,
    Matrix,
    PerLane,
    PerRefit,
    Points,
    RefitPoints,
    RefitValues,
    Runs,
    runs,
)
from ..optimize import Fit
from ..plans import RefitRows

MIN_REFIT_PASSES = 6  # least number of passes over the data that a refit costs otherwise
GRADIENTS = 4.0  # least number of gradients that a refit counts as
MIN_UNIT_SHARE = 0.05  # largest share of the units that a fold may leave out


def expandable(fit: Fit, rows: RefitRows) -> Runs | None:
    """Return the runs of a plan if the batch has all its refits, which can be expanded at less
    cost; else None.
    """
    count = len(rows.index)
    size = fit.num_params
    if (
        fit.quadratic.factor is None
        or len(fit.quadratic.null_space)
        or count != int(rows.num_refits)
    ):
        return None
    steps = MIN_REFIT_PASSES * count
    units = fit.objective.num_units
    if steps * units < 3 * size**2 * (units + rows.index.size):
        return None
    # largest number of entries in derivatives of all folds: a gigabyte
    if rows.index.size * size**2 > 2**27:
        return None
    fold_runs = runs(fit.objective, fit.theta, rows)
    if fold_runs is not None and fold_runs.width <= max(1, MIN_UNIT_SHARE * units):
        return fold_runs
    return None


class ExpandedBatch(NamedTuple):
    """Expansion of all refits: its whitened minimiser, the error of that, the losses there, and
    their errors.

    Distance and error are infinite if the expansion is not valid.
    """

    u: RefitPoints
    distance_left: PerRefit
    losses: RefitValues
    error: PerRefit


class Beyond(NamedTuple):
    """Third derivatives along some axes, of the joint scores and of the losses, and the largest
    fourth derivative of F.
    """

    axes: Matrix
    loss_derivatives: Float[NumpyArray, "params refits width"]
    joint: Float[NumpyArray, "params refits"]
    fourth: float

    def along(self, u: Points, lanes: Lanes) -> tuple[PerLane, Float[NumpyArray, "lanes width"]]:
        """Length of ∇³s_o[u, u], and third derivatives of the losses along u.

        They are the largest along an axis or, if that is more, those of the a whose a ⊗ a ⊗ a has
        these values along the axes, as for the loss of a linear predictor.
        """
        length = linalg.norm(u, axis=1)
        along = (u @ self.axes.T).T
        joint = self.joint[:, lanes]
        loss_derivatives = self.loss_derivatives[:, lanes]
        a = np.cbrt(joint)
        b = np.cbrt(loss_derivatives)
        of_one = linalg.norm(a, axis=0) * np.sum(a * along, 0) ** 2
        third = np.abs(np.einsum("iln,il->ln", b, along)) ** 3
        return (
            np.maximum(np.abs(joint).max(0) * length**2, of_one),
            np.maximum(np.abs(loss_derivatives).max(0) * length[:, None] ** 3, third),
        )


class ScaledExpansion(NamedTuple):
    """Selected refits of an expansion, with their estimates multiplied."""

    expansion: ExpandedBatch
    lanes: Lanes
    times: float

    @property
    def distance_left(self) -> PerLane:
        return self.times * self.expansion.distance_left[self.lanes]

    def error(self) -> PerLane:
        """Errors of their summed held-out losses."""
        return self.times * self.expansion.error[self.lanes]

    def losses(self) -> HeldOutLosses:
        """Held-out losses."""
        return self.expansion.losses[self.lanes]


class Expansion:
    """Derivatives at θ̂ of the scores of all folds and of F, in whitened coordinates.

    Second ones as pairs i ≤ j.
    """

    def __init__(self, fit: Fit, rows: RefitRows, result: Runs):
        self.fit = fit
        self.runs = result
        self.rows = rows
        size = fit.num_params
        count = len(rows.index)
        width = result.width
        i, j = np.triu_indices(size)
        self.pair = np.zeros((size, size), int)
        self.pair[i, j] = self.pair[j, i] = np.arange(len(i))
        self.losses, joint = result.scores(fit.vector)
        slopes = np.empty((size, count, width))
        curves = np.empty((len(i), count, width))
        is_single = np.array_equal(self.losses[:, 0], joint)  # the joint scores are the losses
        joint_slopes, joint_curves = (
            part[..., 0] if is_single else np.empty(part.shape[:2]) for part in (slopes, curves)
        )
        eye = fit.quadratic.unwhiten(np.eye(size))
        point = np.tile(fit.vector, (len(i), 1)), eye[i], eye[j]
        for k, (first, second) in enumerate(result.derivatives(point)):
            if i[k] == j[k]:
                slopes[i[k]], joint_slopes[i[k]] = first
            curves[k], joint_curves[k] = second
        self.slopes = slopes
        self.curves = curves
        self.joint_curves = joint_curves
        self.third = fit.quadratic.whiten(result.bends(point))[self.pair]
        # the gradient of each refit's own F at θ̂
        self.start = fit.quadratic.whiten(fit.gradient) - joint_slopes.T
        # gradients that take as long as passes pushed along two directions: 3 and 49 ms at 50,000
        # steps
        self.gradients = 16.0 * (len(i) + 2 * size)

    def whole_fit_losses(self) -> RefitValues:
        """Held-out losses at θ̂."""
        return self.runs.shape_losses(self.runs.place_scores(self.losses, self.rows))

    def curvature(self, u: Points, lanes: Lanes) -> Matrices:
        """Whitened Hessian of each refit's own F at u."""
        size = self.fit.num_params
        curvature_change = (u @ self.third.reshape(size, -1)).reshape(-1, size, size)
        return np.eye(size) - self._square(self.joint_curves[:, lanes]) + curvature_change

    def solve(self) -> ExpandedBatch:
        """Solve the expansion of all refits."""
        count = len(self.losses)
        # entries in the curvatures of folds that are solved at once
        size = 2**20 // (self.fit.num_params**2 * self.runs.width)
        batches = [np.arange(count)[part] for part in slices(count, size)]
        u = np.concatenate([self._root(lanes) for lanes in batches])
        beyond = self._beyond(u)
        parts = [self._judge(u[lanes], lanes, beyond) for lanes in batches]
        distances, losses, error = join(parts)
        return ExpandedBatch(u, distances, self.runs.shape_losses(losses), error)

    def change(self, u: Points, remainder: PerLane, lanes: Lanes) -> PerLane:
        """Largest change of the summed losses of selected refits within a distance of u.

        Infinite if the distance is.
        """
        slopes = np.moveaxis(self.slopes[:, lanes], 0, -1)
        curves = self._square(self.curves[:, lanes])
        steep = linalg.norm(slopes + np.einsum("nlij,nj->nli", curves, u), axis=-1)
        is_finite = np.isfinite(remainder)
        distance = np.where(is_finite, remainder, 0.0)[:, None]
        unit_changes = distance * (steep + 0.5 * distance * linalg.norm(curves, axis=(-1, -2)))
        return np.where(
            is_finite, self.runs.place_scores(unit_changes, self.rows, lanes).sum(1), np.inf
        )

    def _root(self, lanes: Lanes) -> Points:
        """Stationary point of the quadratic, by Newton's method from θ̂.

        NaN if that does not converge.
        """
        start = self.start[lanes]
        size = self.fit.num_params
        u = -start
        curves = self._square(self.joint_curves[:, lanes])
        moving = np.ones(len(u), bool)
        # steps of Newton's method on the quadratic
        for _ in range(20):
            curvature_change = (u @ self.third.reshape(size, -1)).reshape(-1, size, size)
            residual = start + u + np.einsum("nij,nj->ni", 0.5 * curvature_change - curves, u)
            with np.errstate(all="ignore"):
                step = _solve(np.eye(size) - curves + curvature_change, residual)
                u -= step
                moving = ~(linalg.norm(step, axis=1) <= 1e-12 * (1 + linalg.norm(u, axis=1)))
            if not moving.any():
                break
        return np.where(moving[:, None], np.nan, u)

    def _beyond(self, u: RefitPoints) -> Beyond:
        """Derivatives along the principal axes of the displacements, weighted by their effect."""
        is_finite = np.isfinite(u).all(1)
        weighed = u[is_finite] * np.abs(self.slopes[:, is_finite]).sum((0, 2))[:, None]
        axes = linalg.eigh(weighed.T @ weighed)[1].T
        along = self.fit.quadratic.unwhiten(np.repeat(axes, 2, axis=0))
        sign = np.tile([1.0, -1.0], len(axes))
        third_difference = 0.2  # whitened step of the differences that give third derivatives
        points = self.fit.vector + third_difference * sign[:, None] * along, along, along
        pushed = (second for _, second in self.runs.derivatives(points))
        loss_derivatives = np.empty((len(axes), *self.losses.shape))
        joint = np.empty((len(axes), len(u)))
        for k, (up, down) in enumerate(zip(pushed, pushed, strict=True)):
            loss_derivatives[k] = up[0] - down[0]
            joint[k] = up[1] - down[1]
        bends = self.fit.quadratic.whiten(self.runs.bends(points))
        fourth = linalg.norm(bends[::2] - bends[1::2], axis=1).max()
        return Beyond(
            axes,
            loss_derivatives / (2 * third_difference),
            joint / (2 * third_difference),
            float(fourth) / (2 * third_difference),
        )

    def _judge(self, u: Points, lanes: Lanes, beyond: Beyond) -> Directions:
        """Remaining distances, losses and their errors."""
        length = linalg.norm(u, axis=1)
        away = linalg.norm(self.curvature(u, lanes) - np.eye(self.fit.num_params), axis=(1, 2))
        third, third_losses = beyond.along(u, lanes)
        residual = 0.5 * third + beyond.fourth * length**3 / 6
        # largest difference between the fold's curvature and the full fit's at which the expansion
        # is used
        max_curvature_change = 0.9
        distance = np.where(
            away < max_curvature_change,
            residual / (1 - np.minimum(away, max_curvature_change)),
            np.inf,
        )
        distance = np.where(distance <= 0.5 * length, distance, np.inf)
        slopes = np.moveaxis(self.slopes[:, lanes], 0, -1)
        slope_change = np.einsum("nlij,nj->nli", self._square(self.curves[:, lanes]), u)
        losses = self.losses[lanes] + np.einsum("nli,ni->nl", slopes + 0.5 * slope_change, u)
        error = (
            self.change(u, distance, lanes)
            + self.runs.place_scores(third_losses, self.rows, lanes).sum(1) / 6
        )
        return (
            distance,
            self.runs.place_scores(losses, self.rows, lanes),
            np.where(np.isfinite(error), error, np.inf),
        )

    def _square(
        self, pairs: Float[NumpyArray, "pairs ..."]
    ) -> Float[NumpyArray, "... params params"]:
        """Symmetric matrices from their entries i ≤ j."""
        return np.moveaxis(pairs, 0, -1)[..., self.pair]


def _solve(
    matrices: Float[NumpyArray, "lanes n n"], vectors: Float[NumpyArray, "lanes n"]
) -> Float[NumpyArray, "lanes n"]:
    try:
        return linalg.solve(matrices, vectors[..., None])[..., 0]
    except linalg.LinAlgError:
        return np.full_like(vectors, np.nan)
