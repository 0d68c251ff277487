"""Damped Newton steps of refits of linear predictors, each with the Hessian at its candidate.

The last rung.
"""

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Bool, Float

from .._runtime.results import RESULTS
from ..linalg.design import weight_terms
from ..linalg.enclosure_theorem import Ball, CurvatureBounds, ball, gaps
from ..linalg.rounding import UNIT, UP, Rounding, bounded, condition, factor_error
from ..objectives.objective import Flags, PerLane, PerRefit
from ._anchor import PASS, curvature_error, gradient_error, total
from ._enclosure import CertifiedBatch

Array = np.ndarray
SQUARINGS = 2  # of a positive matrix, whose largest eigenvalue they tell to a factor of p^(1/8)


def newton(state: CertifiedBatch, lanes: Array, enough: Callable[[Array], Flags]) -> None:
    """Take damped Newton steps, each with the Hessian at its candidate.

    Refits left open then have no minimiser.
    """
    n, p = state.anchor.model.design.shape
    size = max(1, PASS * 8 // (n * state.anchor.model.design.outputs * min(p, 8) + p * p))
    for start in range(0, len(lanes), size):
        DampedNewton(state, lanes[start : start + size]).run(enough)


class DampedNewton:
    """Damped Newton steps of a few refits side by side, in θ with columns of curvature one."""

    def __init__(self, state: CertifiedBatch, lanes: Array):
        self.state = state
        self.lanes = lanes
        self.model = state.anchor.model
        self.omega, self.kappa = self.model.weigh(state._weights(lanes))
        start = np.zeros_like(state.u[lanes])
        candidate_value = self._value(state.u[lanes])
        start_value = self._value(start)
        better = candidate_value < start_value
        self.u = np.where(better[:, None], state.u[lanes], start)
        self.F = np.where(better, candidate_value, start_value)
        self.open = np.ones(len(lanes), bool)
        self.has_begun = np.zeros(len(lanes), bool)

    def _theta(self, u: Array) -> Array:
        return self.state.anchor.theta + u @ self.state.anchor.root

    def _value(self, u: Array, which: Array | slice = slice(None)) -> Array:
        theta = self._theta(u)
        eta = self.model.eta(theta)
        with np.errstate(over="ignore", invalid="ignore"):
            (loss,) = self.model.loss.derivatives(eta, self.model.y, (0,))
            omega = self.omega[which]
            value = np.sum(np.where(omega > 0, omega * loss, 0.0), axis=1)
            value += self.kappa[which] * self.model.penalty_terms(theta)[0]
        return np.where(np.isnan(value), np.inf, value)

    def run(self, enough: Callable[[Array], Flags]) -> None:
        # largest number of steps of a refit
        for _ in range(100):
            which = np.flatnonzero(self.open)
            if not which.size:
                return
            self._round(which, enough)
        for k in np.flatnonzero(self.open):
            self._fail(k, RESULTS.not_converged)

    def _fail(self, k: int | np.integer, code: RESULTS) -> None:
        self.open[k] = False
        lane = self.lanes[k]
        self.state.result[lane], self.state.half[lane] = code, np.inf

    def _round(self, which: Array, enough: Callable[[Array], Flags]) -> None:
        state = self.state
        anchor = self.state.anchor
        model = self.model
        theta = self._theta(self.u[which])
        eta = model.eta(theta)
        state.gradients += len(which) * (2 + theta.shape[1] / 2)
        slope, curvature = model.loss.derivatives(eta, model.y, (1, 2))
        omega = self.omega[which]
        weighted_slopes = weight_terms(omega, slope)
        raw = (
            model.design.pull(weighted_slopes)
            + self.kappa[which, None] * model.penalty_terms(theta)[1]
        )
        hessian = (
            model.design.gram(omega, curvature)
            + self.kappa[which, None, None] * model.bending(theta)
            + anchor.flat
        )
        root, bad, condition_square = inverse_roots(hessian, eta.shape[1])
        for k in which[bad]:
            # the curvature vanished during the steps
            self._fail(k, RESULTS.not_converged if self.has_begun[k] else RESULTS.undetermined)
        self.has_begun[which] = True
        if bad.all():
            return
        which, root, raw, theta, eta, slope, curvature, omega, hessian, condition_square = (
            part[~bad]
            for part in (
                which,
                root,
                raw,
                theta,
                eta,
                slope,
                curvature,
                omega,
                hessian,
                condition_square,
            )
        )
        factor_errors = factor_error(condition_square, eta.shape[1], theta.shape[1])
        whitened = np.einsum("rp,rpk->rk", raw, root)
        extents = model.design.extents(root, model.shares(eta, curvature))
        several = anchor.roots is not None
        bulk = np.einsum("rp,rp->r", np.abs(theta), np.sqrt(np.einsum("rpp->rp", hessian)))
        rounding = Rounding(
            eta.shape[1],
            theta.shape[1],
            *(part[:, None] for part in (np.sqrt(condition_square), factor_errors, bulk)),
        )
        norm, share, length = bounded(extents, rounding, several)
        blur = rounding.predictor(length, total(np.abs(eta), 2))
        noise = gradient_error(model, rounding, omega, slope, curvature, eta, length, blur)
        decrement = np.linalg.norm(whitened, axis=1)
        size = decrement + noise
        step = -np.einsum("rpk,rk->rp", root, whitened)
        reference = curvature if anchor.roots is None else np.ones(norm.shape)
        gap = gaps(
            model.loss,
            model.y,
            eta,
            CurvatureBounds(reference, reference),
            2 * size[:, None] * norm,
            reference,
            blur,
        )
        extra_share = self._norm_share(which, root, 2 * size) + 2 * curvature_error(
            model, curvature, eta, blur
        )
        balls = ball(gap, reference, omega * share, size, 2 * size, extra_share)
        # the error of the step itself, and of the predictors after it
        remainder = noise + rounding.step[:, 0] * decrement
        digits = (
            rounding.predictor(length, total(np.abs(eta), 2), 2 * size[:, None])
            + 4 * UNIT * size[:, None] * norm
        )
        # the step is added to u, from which θ comes back by L⁻¹
        step_rounding = np.abs(step) @ np.linalg.norm(np.asarray(state.fit.factor), axis=1)
        step_rounding *= 2 * (theta.shape[1] + 4) * UNIT * anchor.rounding.root
        digits += step_rounding[:, None] * anchor.length
        across = lambda places: self._across(root[places]) * rounding.growth[places, 0]
        step = np.asarray(state.fit.back(step))
        self._advance(
            which,
            step,
            balls,
            decrement,
            noise,
            remainder,
            norm,
            digits,
            step_rounding,
            across,
            enough,
        )

    def _norm_share(
        self, which: Array, root: Float[np.ndarray, "lanes params rank"], radius: Array
    ) -> Array | float:
        """Share that norms of groups add to C, from the candidates and in their own metrics."""
        norms = self.model.norms
        if norms is None:
            return 0.0
        reach = norms.reach(root.swapaxes(1, 2))
        return self.kappa[which] * norms.share(
            norms.lengths(self._theta(self.u[which])),
            radius[:, None] * np.sqrt(reach.groups),
            reach,
        )

    def _across(self, root: Float[np.ndarray, "lanes params rank"]) -> PerLane:
        """Bound the largest ratio of a length in the norm of H to that in the refit's own.

        ‖LᵀR‖, and the rounding of H.
        """
        factor = np.asarray(self.state.fit.factor)
        scale = np.sqrt(np.sum(factor**2, axis=1))
        (n, p) = self.model.design.shape
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

    def _vanishing_groups(self, which: Array) -> Array:
        """Whether a group goes to zero in the refit, where its norm is not smooth."""
        norms = self.model.norms
        if norms is None:
            return np.zeros(len(which), bool)
        length = norms.lengths(
            np.concatenate([self.state.anchor.theta[None], self._theta(self.u[which])])
        )
        # length, relative to that in the fit, below which a group is on its way to zero
        return (length[1:] < 1e-4 * length[0]).any(1)

    def _advance(
        self,
        which: Array,
        step: Array,
        result: Ball,
        decrement: Array,
        noise: Array,
        remainder: Array,
        norm: Array,
        digits: Array,
        step_rounding: PerLane,
        across: Callable[[Flags], PerLane],
        enough: Callable,
    ) -> None:
        """Take the steps, and close the refits for which that is enough.

        A step is shortened until F falls, unless the full step is proved to help.
        """
        state = self.state
        # otherwise a full step may lead further away
        is_proved = result.after <= 0.5 * result.distance
        is_proved &= np.isfinite(result.after)
        length = np.ones(len(which))
        before = self.F[which]
        new = self._value(self.u[which] + step, which)
        falls = lambda new, length: (
            new <= before - 1e-4 * length * decrement**2 + 1e-14 * np.abs(before)
        )
        is_long = ~(is_proved | falls(new, length))
        while is_long.any():
            length[is_long] /= 2
            shortened = which[is_long]
            new[is_long] = self._value(
                self.u[shortened] + length[is_long, None] * step[is_long], shortened
            )
            is_long &= ~falls(new, length) & (length > 1e-12)
        self.u[which] += length[:, None] * step
        self.F[which] = new
        lanes = self.lanes[which]
        state.u[lanes], state.slope[lanes], state.noise[lanes] = (
            self.u[which],
            decrement + noise,
            noise,
        )
        after = np.where(length == 1, result.after + remainder, np.inf)
        units = state.units[lanes]
        held_norm, held_digits = (
            part if part.shape[1] == units.shape[1] else np.take_along_axis(part, units, axis=1)
            for part in (norm, digits)
        )
        state._place(lanes, after, held_norm, held_digits)
        done = enough(lanes)
        # rounding allows no closer approach
        floor = ~done & (length == 1) & (decrement <= 2 * noise)
        self.open[which[done | floor]] = False
        state.radius[lanes] = np.inf
        if (closed := (done | floor) & np.isfinite(after)).any():
            state.radius[lanes[closed]] = across(closed) * after[closed] + step_rounding[closed]
        # displacement, in lengths of the first step, from which a refit diverges
        off = np.linalg.norm(self.u[which], axis=1) > 1e7 * (1 + state.first[lanes])
        diverges = ~(done | floor) & (off | self._vanishing_groups(which))
        for k in which[diverges | ~np.isfinite(new) | (floor & ~np.isfinite(after))]:
            self._fail(k, RESULTS.not_converged)


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
    factor: Array = np.empty_like(scaled)
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        for k, matrix in enumerate(scaled):
            try:
                factor[k] = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                factor[k], bad[k] = np.eye(len(matrix)), True
    pivots = np.einsum("rpp->rp", factor).min(1) ** 2
    bad |= pivots < 1e-14
    inverse = np.stack([scipy.linalg.lapack.dtrtri(f, lower=1)[0] for f in factor])
    condition_square = condition(inverse, np.ones(scale.shape))
    bad |= ~(factor_error(condition_square, n, hessian.shape[1]) < 0.5)
    return scale[:, :, None] * inverse.swapaxes(1, 2), bad, condition_square
