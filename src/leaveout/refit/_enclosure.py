"""Batch of refits of linear predictors in progress: candidates, and the proved balls around them.

    θ = θ̂ + L⁻ᵀu,  H = L Lᵀ,  |u| = ‖θ − θ̂‖_H;
    ‖θ_w − θ‖_A ≤ ρ  ⟹  |x_nᵀθ_w − x_nᵀθ| ≤ ‖x_n‖_A⁻¹ ρ

Here θ is the candidate of a refit, θ_w its minimiser, ρ the radius from `enclosure_theorem.ball`,
and A the refit's metric: its own Hessian at θ̂ at first, and that at the candidate if steps stall.
`look` takes the first step of all refits, `steps` takes more for those whose ball is too large, and
`estimate` estimates the distance if nothing is proved.

# Damped Newton steps, each with the Hessian at its candidate

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

from .._runtime.jax import cached_on
from .._runtime.results import RESULTS
from ..linalg import conjugate_gradients
from ..linalg.design import DenseDesign, apply_curvature, scale_units, weight_terms
from ..linalg.enclosure_theorem import Ball, CurvatureBounds, ball, gaps
from ..linalg.rounding import UNIT, UP, Rounding, bounded, condition, factor_error
from ..linalg.sparse_cholesky import cholesky
from ..objectives.objective import Flags, Lanes, PerLane, PerRefit, Points, RefitPoints
from ..optimize.fit import Fit
from ..plans.plan import RefitRows
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
    tiles,
    total,
    weights,
)
from ._refit_batch import take

Array = np.ndarray
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


def _is_cheap(anchor: LinearFitCache, gradients: int) -> bool:
    """Tell whether T takes fewer operations than so many gradients."""
    p = len(anchor.root)
    return p * p * (p + 1) <= (4 * p + ELEMENTWISE) * gradients


@cached_on
def _third(anchor: LinearFitCache) -> Float[np.ndarray, "pairs rank"]:
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


class CertifiedBatch:
    """Batch in progress: candidates u, and the radius ρ around each in the norm of its metric.

    `center` and `half` are the held units' predictors and their largest distance from those of the
    exact refit, `[refits, width]`; for several outputs `half` is the largest range of the
    differences.
    """

    def __init__(
        self, fit: Fit, rows: RefitRows, target: float = np.inf, allowed: Array | None = None
    ):
        """Set up the batch.

        Where a proof takes the gaps of every unit, a refit is proved only if its step is at most
        `target` times its first, or no longer shrinks, and if the proof can be expected to give at
        most the `allowed` error of its losses.
        """
        self.fit = fit
        self.rows = rows
        self.anchor = linear_cache(fit)
        self.target = target
        count, width = rows.index.shape
        n = self.anchor.units
        # changes of weights
        self.delta = np.where(np.asarray(rows.index) < n, np.asarray(rows.weight) - 1.0, 0.0)
        self.units = np.where(np.asarray(rows.index) < n, rows.index, 0)
        self.held = np.asarray(rows.held)
        self.u = np.zeros((count, len(self.anchor.root)))
        self.center = self.anchor.eta[self.units]
        self.half = np.full((count, width), np.inf)
        # λ where the last gradient was computed, and its rounding error
        self.slope = np.full(count, np.inf)
        self.noise = np.zeros(count)
        self.first = np.zeros(count)  # length of the first step
        self.result = np.full(count, int(RESULTS.successful))
        # around u, in the norm of H; number of gradients computed in all
        self.radius = np.full(count, np.inf)
        self.gradients = 0.0
        self.proved = np.ones(count, bool)
        self.settled_by = np.zeros(count, np.int8)
        self.is_taken = np.ones(count, bool)
        self.shrunk = np.zeros(count)  # share of λ that the last step left
        self.contraction = np.full(count, np.inf)  # if it was estimated
        self.proved_radius = np.full(count, np.inf)  # the radius, unless it is from another metric
        self.allowed_radius = np.inf if allowed is None else self._radius_of_error(allowed)

    def theta(self) -> RefitPoints:
        return self.anchor.theta + self.u @ self.anchor.root

    def _radius_of_error(self, allowed: Array) -> PerLane | float:
        """Radius at which the losses' error is about the allowed one, from slopes at θ̂.

        Infinite for several outputs.
        """
        anchor = self.anchor
        held = self.held
        if anchor.roots is not None:
            return np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.abs(anchor.slope) * anchor.norm, anchor.slope**2 * anchor.flatness
            total_, square = (np.einsum("rk,rk->r", held, part[self.units]) for part in terms)
            return allowed / np.fmin(total_, np.sqrt(square))

    # the first look

    def look(self) -> None:
        """Step with each fold's own Hessian at θ̂, and read its proved radius from the table."""
        anchor = self.anchor
        everyone = np.arange(len(self.u))
        self.metric = FoldMetric(anchor, self.rows, self.delta)
        kept_share = self.metric.kept_share
        grown = np.ones(len(self.u))
        if anchor.model.separate:
            grown += self.delta.max(1, initial=0.0)
        if self.metric.z is not None:
            slope_changes = scale_units(
                self.delta, scale_units(anchor.weight, anchor.slope)[self.units]
            )
            gradient = anchor.leftover + np.einsum(
                "rk,rkp->rp", slope_changes.reshape(len(slope_changes), -1), self.metric.z
            )
        elif self.metric.pull is not None:
            gradient = anchor.leftover + self.metric.pull
        else:
            gradient, grown = self._gradients(grown)
        self.growth = grown
        determined = kept_share > 0
        step = np.where(determined[:, None], -self.metric.solve(gradient, everyone), 0.0)
        noise = anchor.noise * grown / np.sqrt(np.where(determined, kept_share, 1.0))
        self.slope = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0)) + noise
        self.noise = noise
        balls = anchor.table.ball(self.slope, kept_share, grown)
        self.u = step
        self.first = np.linalg.norm(step, axis=1)
        after = np.where(
            determined, balls.after + noise + self.metric.residual(gradient, step, everyone), np.inf
        )
        if np.isfinite(self.target):
            distant = determined & ~(after <= self.target * self.first * np.sqrt(kept_share))
            self._follow_the_expansion(np.flatnonzero(distant), after)
        # others need no predictors yet
        if np.isscalar(self.allowed_radius):
            lanes = everyone
        else:
            lanes = np.flatnonzero(np.isfinite(after))
        self._place(lanes, after[lanes])

    def _follow_the_expansion(self, lanes: Array, after: Array) -> None:
        """Move candidates to the minimiser of F(·, w) expanded to the third order at θ̂; nothing is
        proved there.

        This takes fewer operations than a gradient of every refit.
        """
        anchor = self.anchor
        metric = self.metric
        is_supported = anchor.is_small and anchor.roots is None and anchor.model.norms is None
        if (
            not lanes.size
            or metric.z is None
            or not is_supported
            or not _is_cheap(anchor, int(self.rows.num_refits))
        ):
            return
        start = u = self.u[lanes]
        z = metric.z[lanes]
        changed = self.delta[lanes] * weight_terms(anchor.weight, anchor.third)[self.units[lanes]]
        for _ in range(2):  # what is left is then of the fourth order
            row_moves = (z @ u[:, :, None])[:, :, 0]
            remainder = third_term(anchor, u) + ((changed * row_moves**2)[:, None] @ z)[:, 0]
            u = start - 0.5 * metric.solve(remainder, lanes)
        good = np.linalg.norm(u - start, axis=1) <= 0.1 * self.first[lanes]
        self.u[lanes[good]], after[lanes[good]] = u[good], np.inf

    def _gradients(self, growth: Array) -> tuple[Float[np.ndarray, "refits rank"], Array]:
        """Whitened gradients of F(·, w) at θ̂, and the largest ratio of a unit's weights."""
        anchor = self.anchor
        out = np.empty(self.u.shape)
        for lanes in passes(np.arange(len(self.u)), anchor.eta.size, self.u.shape[1]):
            omega, kappa = anchor.model.weigh(self._weights(lanes))
            gradient = anchor.model.design.pull(scale_units(omega, anchor.slope[None]))
            out[lanes] = (
                gradient + kappa[:, None] * anchor.model.penalty_terms(anchor.theta[None])[1]
            ) @ anchor.root.T
            if not anchor.model.separate:
                ratio = np.divide(
                    omega, anchor.weight, out=np.ones_like(omega), where=anchor.weight > 0
                )
                growth[lanes] = np.maximum(ratio.max(1), 1.0)
        return out, growth

    def _weights(self, lanes: Array) -> Float[np.ndarray, "lanes units"]:
        """Weights of the selected refits."""
        return weights(self.rows, self.anchor.units, lanes)

    def _place(
        self, lanes: Array, after: Array, norm: Array | None = None, digits: Array | None = None
    ) -> None:
        """Write held predictors at the candidates, and their errors.

        `norm` and the rounding `digits` are of other metrics.
        """
        anchor = self.anchor
        if self.units.shape[1] < anchor.units:
            units = self.units[lanes]
        else:
            units = slice(anchor.units)
        if self.metric.z is not None:
            moves = np.einsum("rkp,rp->rk", self.metric.z[lanes], self.u[lanes])
            self.center[lanes] = anchor.eta[units] + moves.reshape(
                len(lanes), *self.center.shape[1:]
            )
        else:
            for chunk in passes(lanes, anchor.eta.size, self.u.shape[1]):
                self.center[chunk] = anchor.model.unit_predictors(
                    self.units[chunk], anchor.theta + self.u[chunk] @ anchor.root
                )
        with np.errstate(divide="ignore", invalid="ignore"):
            self.proved_radius[lanes] = np.inf
            if norm is None:
                after = after / np.sqrt(self.metric.kept_share[lanes])
                self.radius[lanes] = self.proved_radius[lanes] = after
                norm = anchor.norm[units]
            half = norm * after[:, None]
        half[~np.isfinite(after)] = np.inf
        if digits is None:
            size = total(np.abs(self.center[lanes]), 2)
            digits = anchor.rounding.predictor(
                anchor.length[units], size, np.linalg.norm(self.u[lanes], axis=1)[:, None]
            )
        self.half[lanes] = np.add(half, digits, out=half)

    # gradients

    def steps(
        self, lanes: Array, enough: Callable[[Array], Flags], most: int = STEPS
    ) -> Int[np.ndarray, " open"]:
        """Take steps with the fold's own Hessian at θ̂ while they shrink.

        Returns the refits still open.
        """
        lanes = lanes[self.metric.kept_share[lanes] > 0]
        rejected = [np.zeros(0, int)]
        for k in range(most):
            if not lanes.size:
                break
            before = self.slope[lanes]
            for chunk in passes(lanes, self.anchor.eta.size, self.u.shape[1]):
                self._step(chunk, *self._evaluate(chunk), k == most - 1)
            done = np.isfinite(self.radius[lanes])
            if done.any():
                done[done] = enough(lanes[done])
            self.shrunk[lanes] = np.divide(
                self.slope[lanes], before, out=np.zeros(len(lanes)), where=before > 0
            )
            stalled = ~(self.slope[lanes] <= STALL_RATIO * before)
            rejected.append(lanes[stalled & ~done])
            lanes = lanes[~(done | stalled)]
        return np.sort(np.concatenate([*rejected, lanes]))

    def _evaluate(self, lanes: Array) -> tuple[Array, Array, Array, Array]:
        """Predictors and weights of every unit, the whitened gradient, and its rounding error."""
        anchor = self.anchor
        model = self.anchor.model
        theta = anchor.theta + self.u[lanes] @ anchor.root
        eta = model.eta(theta)
        omega, kappa = model.weigh(self._weights(lanes))
        weighted_slopes = np.empty_like(eta)
        noise = np.empty(len(lanes))
        move = np.linalg.norm(self.u[lanes], axis=1)
        for places in tiles(np.arange(len(lanes)), eta.shape[1]):
            chunk = slice(places[0], places[-1] + 1)  # views
            (slope,) = model.loss.derivatives(eta[chunk], model.y, (1,))
            weighted_slopes[chunk] = weight_terms(omega[chunk], slope)
            noise[chunk] = anchor.gradient_error(
                omega[chunk], eta[chunk], slope, move[chunk], self.growth[lanes[chunk]]
            )
        gradient = (
            model.design.pull(weighted_slopes) + kappa[:, None] * model.penalty_terms(theta)[1]
        ) @ anchor.root.T
        return eta, omega, gradient, noise

    def _step(
        self, lanes: Array, eta: Array, omega: Array, gradient: Array, noise: Array, last: bool
    ) -> None:
        """Step by v = −A⁻¹g where λ at least halves, or a ball proves that the distance does.

        `eta`, `omega`, `gradient` (whitened) and `noise`, its error, are at the candidates before
        the step. A refit whose step is refused keeps its u. After the `last` step no better proof
        is to be waited for. λ is that of `linalg.enclosure_theorem`.
        """
        slope_before = self.slope[lanes]
        self.gradients += len(lanes)
        step = -self.metric.solve(gradient, lanes)
        # at most, in the norm of A⁻¹
        noise = noise / np.sqrt(self.metric.kept_share[lanes])
        slope = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0)) + noise
        shrinks = slope <= STALL_RATIO * slope_before
        may_take_gaps = (slope <= self.target * np.maximum(self.first[lanes], 1e-300)) | (
            slope <= 2 * noise
        )
        allowed_radius = np.asarray(self.allowed_radius)
        # The next λ is about λ²/λ_before, and the proof gives twice that at best. If that is more
        # than allowed, a proof from all gaps waits for another step.
        if allowed_radius.ndim and not last:
            with np.errstate(invalid="ignore"):  # 0 · ∞ where losses have no slope: any radius
                may_take_gaps &= ~(
                    2 * slope**2
                    > slope_before * allowed_radius[lanes] * np.sqrt(self.metric.kept_share[lanes])
                )
        balls = self._ball(lanes, eta, omega, slope, may_take_gaps | ~shrinks)
        good = shrinks | (np.isfinite(balls.after) & (balls.after <= 0.5 * balls.distance))
        self.slope[lanes], self.noise[lanes] = slope, noise
        self.is_taken[lanes] = good
        self.u[lanes[good]] += step[good]  # its own error is in `residual`
        accepted = lanes[good]
        after = (balls.after + noise + self.metric.residual(gradient, step, lanes))[good]
        self.proved[accepted] = True  # no estimate stands; the radius is ∞ until it is placed
        self.radius[accepted], self.half[accepted] = np.inf, np.inf
        if (placed := np.isfinite(after)).any():
            self._place(accepted[placed], after[placed])
        estimable = lanes[
            good & ~np.isfinite(balls.after) & (self.contraction[lanes] < MAX_CONTRACTION)
        ]
        # the contraction grows in proportion to the distance from θ̂
        if estimable.size:
            self.contraction[estimable] *= 1 + self._relative_length(
                estimable, self.slope[estimable]
            )
            self._estimate_radii(estimable)

    def _ball(
        self, lanes: Array, eta: Array, omega: Array, size: Array, may_take_gaps: Array
    ) -> Ball:
        """Ball from the table or, if it proves little and these may be taken, from all gaps."""
        anchor = self.anchor
        kept_share = self.metric.kept_share[lanes]
        balls = Ball(*np.full((2, len(lanes)), np.inf))
        growth = self.growth[lanes]
        # with larger weights its sums prove next to nothing
        if (may_take_gaps.any() or np.isfinite(self.target)) and growth.min() == 1:
            balls = anchor.table.ball(
                size, kept_share, growth, np.linalg.norm(self.u[lanes], axis=1)
            )
        is_wide = ~(balls.after <= 0.5 * balls.distance) | ~np.isfinite(balls.after)
        for chunk in tiles(np.flatnonzero(is_wide & may_take_gaps), eta.shape[1]):
            u = self.u[lanes[chunk]]
            slope = size[chunk]
            penalty_part = anchor.norm_share(
                anchor.theta + u @ anchor.root, 2 * slope / np.sqrt(kept_share[chunk])
            )
            penalty_part = penalty_part * self.growth[lanes[chunk]] / kept_share[chunk]
            arguments = (
                eta[chunk],
                omega[chunk],
                slope,
                kept_share[chunk],
                np.linalg.norm(u, axis=1),
                penalty_part,
            )
            balls.distance[chunk], balls.after[chunk] = anchor.ball(*arguments)
        return balls

    def estimate(self, lanes: Array) -> None:
        """Estimate radii by products with the change of the curvature at the candidates.

        The products give the contraction of a step for one in a few refits, in order of length. For
        the others it is proportional to the length, from the largest one nearby, and is no less
        than the contraction of the last step.
        """
        length = np.linalg.norm(self.u[lanes], axis=1)
        order = np.argsort(-length, kind="stable")
        lanes = lanes[order]
        length = np.maximum(length[order], 1e-300)
        sample = lanes[::CONTRACTION_SPACING]
        parts = [
            self._contraction(chunk)
            for chunk in passes(sample, self.anchor.curvature.size, self.u.shape[1])
        ]
        ratio = np.concatenate([np.zeros(0), *parts]) / length[::CONTRACTION_SPACING]
        if sample.size:
            neighbour_maximum = scipy.ndimage.maximum_filter1d(
                ratio, CONTRACTION_NEIGHBOURS, mode="nearest"
            )
        else:
            neighbour_maximum = ratio
        least = np.maximum(
            np.repeat(neighbour_maximum, CONTRACTION_SPACING)[: len(lanes)] * length,
            self.shrunk[lanes],
        )
        self.contraction[lanes] = CAUTION * least
        self._estimate_radii(lanes)

    def _estimate_radii(self, lanes: Array) -> None:
        """Radii for a contraction that grows in proportion to the distance.

        D ≤ λ + c (1 + D / ‖u‖) D.
        """
        contraction = self.contraction[lanes]
        slope = self.slope[lanes]
        margin = 1 - np.minimum(contraction, MAX_CONTRACTION)
        discriminant = margin**2 - 4 * contraction * self._relative_length(lanes, slope)
        distance = 2 * slope / (margin + np.sqrt(np.maximum(discriminant, 0.0)))
        share = np.where(
            self.is_taken[lanes], contraction * (1 + self._relative_length(lanes, distance)), 1.0
        )
        self.proved[lanes] = False
        is_bounded = (contraction < MAX_CONTRACTION) & (discriminant >= 0)
        self._place(lanes, np.where(is_bounded, share * distance + self.noise[lanes], np.inf))

    def _relative_length(self, lanes: Array, distance: PerLane) -> PerLane:
        """Length of a move, in the norm of the refits' metrics, relative to the move from θ̂."""
        length = np.linalg.norm(self.u[lanes], axis=1) * np.sqrt(self.metric.kept_share[lanes])
        return distance / np.maximum(length, 1e-300)

    def _contraction(self, lanes: Array) -> PerLane:
        """Contraction of a step: the size of A⁻¹E, E the change of the curvature.

        It is found by the first steps of Lanczos' method from random directions, in float32.
        """
        anchor = self.anchor
        model = self.anchor.model
        eta = model.eta(anchor.theta + self.u[lanes] @ anchor.root)
        omega = model.weigh(self._weights(lanes))[0]
        change_ = np.asarray(
            weight_terms(omega, model.loss.derivatives(eta, model.y, (2,))[0] - anchor.curvature),
            np.float32,
        )
        penalty_product = self._penalty_change(lanes)
        v = np.random.default_rng(0).standard_normal(self.u.shape[1]) * np.ones((len(lanes), 1))
        largest = np.zeros(len(lanes))
        image = None
        before = None
        for _ in range(LANCZOS_STEPS):
            image = anchor.gradient_of_slopes(
                apply_curvature(change_, anchor.predictor_moves(v))
            ) + penalty_product(v)
            if before is not None:  # v = A⁻¹ before: vᵀAv is known
                norm = np.sum(v * before, axis=1)
                largest = np.maximum(
                    largest, np.abs(np.sum(v * image, axis=1)) / np.maximum(norm, 1e-300)
                )
            before = image
            v = self.metric.solve(image, lanes)
            size = np.sqrt(np.maximum(np.sum(v * before, axis=1), 1e-300))[:, None]
            before = before / size
            v = v / size
        return largest

    def _penalty_change(self, lanes: Array) -> Callable[[Array], Array | float]:
        """Return the product of moves with the change of the penalty's Hessian, whitened."""
        anchor = self.anchor
        norms = self.anchor.model.norms
        if norms is None:
            return lambda v: 0.0
        change_ = norms.hessian(anchor.theta + self.u[lanes] @ anchor.root) - norms.hessian(
            anchor.theta[None]
        )
        kappa = anchor.model.weigh(self._weights(lanes))[1][:, None]
        return lambda v: kappa * np.einsum("rp,rpq->rq", v @ anchor.root, change_) @ anchor.root.T


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
    step_rounding = np.abs(step) @ np.linalg.norm(np.asarray(state.fit.quadratic.factor), axis=1)
    step_rounding *= 2 * (theta.shape[1] + 4) * UNIT * anchor.rounding.root
    digits += step_rounding[:, None] * anchor.length
    # otherwise a full step may lead further away
    is_proved = (balls.after <= 0.5 * balls.distance) & np.isfinite(balls.after)
    step = np.asarray(state.fit.quadratic.back(step))
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
        across = across_metrics(state.fit, root[good]) * rounding.growth[good, 0]
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


def across_metrics(fit: Fit, root: Float[np.ndarray, "lanes params rank"]) -> PerLane:
    """Bound the largest ratio of a length in the norm of H to that in the refit's own.

    ‖LᵀR‖, and the rounding of H.
    """
    factor = np.asarray(fit.quadratic.factor)
    scale = np.sqrt(np.sum(factor**2, axis=1))
    (n, p) = linear_cache(fit).model.design.shape
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
    scale = np.sqrt(np.sum(np.asarray(state.fit.quadratic.factor) ** 2, axis=1))
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
