"""Refits of wide linear predictors by Newton steps without a Hessian: conjugate gradients for many
refits side by side.

In whitened coordinates H = I, and the Hessian of a refit is I + Z⊤ diag(ω ℓ″(η) − ω̂ ℓ̂″) Z. The
preconditioner A is the refit's own Hessian at θ̂. The least Ritz value μ of A⁻¹ times the Hessian
gives an estimate of a candidate's distance from the minimiser, in the norm of A: about ‖g‖_{A⁻¹} /
μ (J. Nocedal and S. J. Wright, Numerical Optimization, 2006, §7.1, for the steps).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from ..linalg.design import apply_curvature, weight_terms
from ..objectives.objective import Flags, Lanes, PerLane
from ._anchor import passes, tiles, total
from ._enclosure import CAUTION, CertifiedBatch

Array = np.ndarray
# largest number of steps; of products for one step; share of its length that may remain unsolved
ROUNDS = 12
PRODUCTS = 24
PART = 0.1
# share of the predicted fall that a step must reach; shortest step
FALL = 1e-4
SHORTEST = 1e-6

Enough = Callable[[Array], Flags]


def conjugate(state: CertifiedBatch, lanes: Lanes, enough: Enough) -> Int[np.ndarray, " open"]:
    """Run the steps; returns the lanes that are still open."""
    lanes = lanes[state.metric.kept_share[lanes] > 0]
    parts = passes(lanes, state.anchor.eta.size, state.u.shape[1])
    return np.sort(
        np.concatenate([np.zeros(0, int), *(_Group(state, chunk).run(enough) for chunk in parts)])
    )


class _Group:
    """Lanes in progress: u, predictors, F, and the least Ritz value."""

    def __init__(self, state: CertifiedBatch, lanes: Array):
        self.state = state
        self.lanes = lanes
        self.model = state.anchor.model
        self.omega = self.model.weigh(state._weights(lanes))[0]
        self.u, self.eta = state.u[lanes], self.model.eta(self._theta(state.u[lanes]))
        self.F = self._value(self.omega, self.eta, self._theta(self.u))
        self.least = np.full(len(lanes), np.inf)
        anchor = np.broadcast_to(state.anchor.eta, self.eta.shape)
        fit_value = self._value(self.omega, anchor, self._theta(np.zeros_like(self.u)))
        lower = fit_value < self.F
        self.u[lower], self.eta[lower], self.F[lower] = 0.0, state.anchor.eta, fit_value[lower]

    def _theta(self, u: Array) -> Array:
        return self.state.anchor.theta + u @ self.state.anchor.root

    def _value(self, omega: Array, eta: Array, theta: Array) -> PerLane:
        with np.errstate(over="ignore", invalid="ignore"):
            (loss,) = self.model.loss.derivatives(eta, self.model.y, (0,))
            value = weight_terms(omega, loss).sum(1) + 0.5 * np.einsum(
                "rp,rp->r", theta @ self.model.penalty, theta
            )
        return np.where(np.isnan(value), np.inf, value)

    def run(self, enough: Enough) -> Int[np.ndarray, " open"]:
        """Run the steps; returns lanes not near enough, as F stops falling or is too flat."""
        rejected = [np.zeros(0, int)]
        for _ in range(ROUNDS):
            if not self.lanes.size:
                break
            gradient, change, noise = self._gradient()
            size = self._judge(gradient, noise)
            done = np.isfinite(self.least) & enough(self.lanes)
            self._keep(~done)
            if not self.lanes.size:
                break
            gradient, change, size, noise = (
                part[~done] for part in (gradient, change, size, noise)
            )
            step, least = self._solve(gradient, change)
            self.least = np.minimum(self.least, least)
            improves = self._move(step, np.einsum("rp,rp->r", gradient, step))
            # least Ritz value; few products cannot measure a smaller curvature
            good = improves & (self.least > 1e-3) & (size > 2 * noise)
            rejected.append(self.lanes[~good])
            self._keep(good)
        return np.concatenate([*rejected, self.lanes])

    def _keep(self, selection: Flags) -> None:
        for name in ("lanes", "omega", "u", "eta", "F", "least"):
            setattr(self, name, getattr(self, name)[selection])

    def _gradient(self) -> tuple[Array, Array, Array]:
        """Whitened gradients, the difference of ω ℓ″ from its value at θ̂, and the rounding error
        of the gradients' lengths.
        """
        anchor = self.state.anchor
        model = self.model
        theta = self._theta(self.u)
        weighted_slopes = np.empty_like(self.eta)
        change = np.empty((len(theta), *anchor.curvature.shape), np.float32)
        for chunk in tiles(np.arange(len(theta)), self.eta.shape[1]):
            slope, curvature = model.loss.derivatives(self.eta[chunk], model.y, (1, 2))
            weighted_slopes[chunk] = weight_terms(self.omega[chunk], slope)
            change[chunk] = weight_terms(self.omega[chunk], curvature) - weight_terms(
                anchor.weight, anchor.curvature
            )
        gradient = (model.design.pull(weighted_slopes) + theta @ model.penalty) @ anchor.root.T
        move = np.linalg.norm(self.u, axis=1)
        noise = (
            anchor.rounding.gradient(
                total(np.abs(weighted_slopes, out=weighted_slopes), 2) @ anchor.length, move
            )
            + anchor.noise
        )
        # an estimate counts rounding at its usual size: signs are random, in sums and among their
        # terms
        scale = np.sqrt(np.sum(np.asarray(self.state.fit.factor) ** 2, axis=1))
        noise *= np.linalg.norm(anchor.root * scale) / (anchor.rounding.root * anchor.rounding.rows)
        self.state.gradients += len(theta)
        return gradient, change, noise / np.sqrt(self.state.metric.kept_share[self.lanes])

    def _judge(self, gradient: Array, noise: Array) -> PerLane:
        """Write candidates and their distances into the batch."""
        state = self.state
        lanes = self.lanes
        size = (
            np.sqrt(np.maximum(np.sum(gradient * state.metric.solve(gradient, lanes), axis=1), 0.0))
            + noise
        )
        state.u[lanes], state.slope[lanes], state.noise[lanes] = self.u, size, noise
        state.proved[lanes] = False
        is_measured = np.isfinite(self.least)
        state._place(
            lanes,
            np.where(is_measured, CAUTION * size / np.where(is_measured, self.least, 1.0), np.inf),
        )
        return size

    def _solve(self, gradient: Array, change: Array) -> tuple[Array, Array]:
        """Compute Newton steps, and the least Ritz value of each solve."""
        anchor = self.state.anchor
        solve = self.state.metric.solve
        step = np.zeros_like(gradient)
        residual = -gradient
        least = np.full(len(gradient), np.inf)
        directions = solve(residual, self.lanes)
        square = np.einsum("rp,rp->r", residual, directions)
        length = np.zeros(len(gradient))
        diagonal, off_diagonal = np.zeros((2, len(gradient), PRODUCTS))
        open_ = np.flatnonzero(square > 0)
        carry = 0.0
        for k in range(PRODUCTS):
            if not open_.size:
                break
            direction = directions[open_]
            r = residual[open_]
            image = direction + anchor.gradient_of_slopes(
                apply_curvature(change[open_], anchor.predictor_moves(direction))
            )
            self.state.gradients += len(open_)
            share = square[open_] / np.maximum(np.einsum("rp,rp->r", direction, image), 1e-300)
            step[open_] += share[:, None] * direction
            r = residual[open_] = r - share[:, None] * image
            length[open_] += share * square[open_]
            preconditioned = solve(r, self.lanes[open_])
            after = np.maximum(np.einsum("rp,rp->r", r, preconditioned), 0.0)
            diagonal[open_, k] = 1 / share + carry
            least[open_] = _smallest(diagonal[open_, : k + 1], off_diagonal[open_, :k])
            ratio = after / square[open_]
            off_diagonal[open_, k] = np.sqrt(ratio) / share
            directions[open_] = preconditioned + ratio[:, None] * direction
            square[open_] = after
            is_unsolved = np.sqrt(after / (np.maximum(least[open_], 1e-300) * length[open_])) > PART
            carry = (ratio / share)[is_unsolved]
            open_ = open_[is_unsolved]
        return step, least

    def _move(self, step: Array, slope: PerLane) -> Flags:
        """Take the steps, shortened until F falls, and mark the lanes in which it falls."""
        theta = self._theta(self.u)
        along = step @ self.state.anchor.root
        predictor_moves, length, open_ = (
            self.model.design.predictors(along),
            np.ones(len(step)),
            np.arange(len(step)),
        )
        times = lambda length: length.reshape(-1, *(1,) * (predictor_moves.ndim - 1))
        value = self.F.copy()
        while open_.size:
            lengths = length[open_]
            before = self.F[open_]
            eta = self.eta[open_] + times(lengths) * predictor_moves[open_]
            point = theta[open_] + lengths[:, None] * along[open_]
            value[open_] = self._value(self.omega[open_], eta, point)
            falls = value[open_] <= before + FALL * lengths * slope[open_] + 1e-14 * np.abs(before)
            length[open_[~falls]] /= 2
            open_ = open_[~falls & (lengths > SHORTEST)]
        good = length > SHORTEST
        length = np.where(good, length, 0.0)
        self.u += length[:, None] * step
        self.eta += times(length) * predictor_moves
        self.F = np.where(good, value, self.F)
        return good


def _smallest(
    diagonal: Float[np.ndarray, "lanes selected"],
    off_diagonal: Float[np.ndarray, "lanes off_diagonal"],
) -> PerLane:
    """Least eigenvalue of each tridiagonal matrix."""
    size = diagonal.shape[1]
    matrix = np.zeros((len(diagonal), size, size))
    k = np.arange(size)
    matrix[:, k, k] = diagonal
    matrix[:, k[1:], k[:-1]] = off_diagonal
    return np.linalg.eigvalsh(matrix)[:, 0]
