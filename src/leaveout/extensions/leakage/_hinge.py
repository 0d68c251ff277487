"""Linear support vectors with the hinge loss, many fits at once, by an interior point method.

With s = ±1 the class and z = s (x, 1), the learner of scikit-learn's `SVC(kernel="linear")` and its
dual are

    min_θ ½ penalty ‖β‖² + Σ_i max(0, 1 − z_iᵀ θ),      0 ≤ α_i ≤ 1,   penalty (β, 0) = Σ_i α_i z_i,

optimal where the gaps u, v ≥ 0 of `z_iᵀ θ − 1 = u_i − v_i` have `α u = (1 − α) v = 0`. Newton's
method follows `α u = (1 − α) v
= μ` to μ = 0 (Mehrotra 1992) in about eleven steps, each a weighted ridge regression,
whatever the scales of the features; a
solver that changes two multipliers at a time needs millions of steps.
"""

import numpy as np
from numpy.typing import NDArray

from ...developer import (
    FloatArray,
    Lanes,
    LaneState,
    Proposal,
    anywhere,
    iterate,
    without_values,
)
from ._fits import AbstractClasses, Design, Responses


class HingeFits(AbstractClasses):
    """Hinge loss `max(0, 1 − s η)`; the intercept is not penalised."""

    name = "linear support vectors (hinge), batched"

    def minimise(self, Z: Design, y: Responses) -> FloatArray:
        """Iterate each fit until its gap has closed.

        Raises ArithmeticError if one does not close.
        """
        Z = (2 * y - 1)[..., None] * Z
        ridge = np.append(np.full(self.X.shape[1], self.penalty), np.zeros(int(self.intercept)))
        fits, size, params = Z.shape
        # u − v = −1, the margins at θ = 0
        values = np.array([0.0, 0.5, 0.5, 1.0, 2.0])
        start = np.tile(np.repeat(values, [params, size, size, size, size]), (fits, 1))

        def propose(state: LaneState, lanes: Lanes) -> Proposal:
            theta, *duals = np.split(state.theta, params + size * np.arange(4), axis=1)
            alpha, complement, u, v = duals
            margin = np.matmul(Z[lanes], theta[..., None])[..., 0] - 1
            slope = np.matmul(alpha[:, None], Z[lanes])[:, 0] - ridge * theta
            value = 0.5 * (ridge * theta**2).sum(1) + np.maximum(-margin, 0).sum(1)
            gap = (alpha * u + complement * v).sum(1)
            # 1e-9: gap between primal and dual, relative to the objective, at which a fit is
            # finished
            closed = gap <= 1e-9 * (1 + value)
            changes, length = _step(Z[lanes], ridge, alpha, complement, u, v, margin, slope)
            return Proposal(-length * np.concatenate(changes, 1), gap, closed, closed)

        max_interior_steps = 100  # largest number of steps; about eleven are needed
        state, converged = iterate(without_values, propose, start, anywhere, max_interior_steps)
        if converged.all():
            return state.theta[:, :params]
        raise ArithmeticError(
            f"leakage_corrected: {np.sum(~converged)} of {fits} fits of SVC(kernel='linear') did not settle "
            f"in {max_interior_steps} steps. "
            "Scale the features, make_pipeline(StandardScaler(), SVC(kernel='linear')), or give it max_iter=, "
            "and scikit-learn fits."
        )


def _step(
    Z: NDArray,
    ridge: NDArray,
    alpha: NDArray,
    complement: NDArray,
    u: NDArray,
    v: NDArray,
    margin: NDArray,
    slope: NDArray,
) -> tuple[tuple[NDArray, ...], NDArray]:
    """Compute the changes of θ, α, 1 − α, u and v towards the centre of the path, with a corrector,
    and the step length.
    """
    weight = 1 / (u / alpha + v / complement)
    matrix = np.matmul(Z.transpose(0, 2, 1), weight[..., None] * Z)
    matrix[:, range(len(ridge)), range(len(ridge))] += ridge
    scale = np.sqrt(np.diagonal(matrix, axis1=1, axis2=2))
    outer = scale[:, :, None] * scale[:, None, :]
    # 1e-13: share of its diagonal that is added to a matrix that may be singular
    inverse = np.linalg.inv(matrix / outer + 1e-13 * np.eye(len(ridge))) / outer

    def towards(low: NDArray | float, high: NDArray | float) -> tuple[NDArray, ...]:
        """Compute the changes by which `α u` becomes `low` and `(1 − α) v` becomes `high`, to first
        order.
        """
        target = low / alpha - high / complement - margin
        right = slope + np.matmul((weight * target)[:, None], Z)[:, 0]
        dtheta = np.matmul(inverse, right[..., None])[..., 0]
        dalpha = weight * (target - np.matmul(Z, dtheta[..., None])[..., 0])
        return (
            dtheta,
            dalpha,
            -dalpha,
            (low - u * dalpha) / alpha - u,
            (high + v * dalpha) / complement - v,
        )

    _, dalpha, _, du, dv = straight = towards(0.0, 0.0)
    length = _length((alpha, complement, u, v), straight)
    before = (alpha * u + complement * v).sum(1)
    after = (
        (alpha + length * dalpha) * (u + length * du)
        + (complement - length * dalpha) * (v + length * dv)
    ).sum(1)
    centre = ((after / before) ** 3 * before / (2 * alpha.shape[1]))[:, None]
    # the products at that length, as those of the whole step may cycle
    correction = length**2 * dalpha
    changes = towards(centre - correction * du, centre + correction * dv)
    # 0.995: share of the distance to the nearest bound
    return changes, 0.995 * _length((alpha, complement, u, v), changes)


def _length(values: tuple[NDArray, ...], changes: tuple[NDArray, ...]) -> FloatArray:
    """Compute the longest step, at most one, that keeps all of them positive, `[fits, 1]`."""
    fastest = np.maximum.reduce(
        [-new / old for old, new in zip(values, changes[1:], strict=True)]
    ).max(1)
    return 1 / np.maximum(fastest, 1.0)[:, None]
