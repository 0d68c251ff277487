"""Parameters between bounds, with or without a kink at zero: conditions that hold them there, and
bounded quadratics.

A parameter rests if θ_j is low_j, high_j or, where a_j > 0, zero, as long as −∇_jL lies between the
slopes of a_j |θ_j| there (−∞ at the lower bound, ∞ at the upper). A convex quadratic is at its
minimum if this holds for the parameters that rest, and for all others the gradient with a_j sign
θ_j is zero. An active set is changed until it is so (C. L. Lawson and R. J. Hanson, *Solving Least
Squares Problems*, 1974, chapter 23; here with kinks, and all parameters that violate their
condition are released at once).
"""

from typing import NamedTuple, Protocol

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

Array = np.ndarray
Vector = Float[Array, " params"]


class Limits(Protocol):
    """Kinks and bounds of the parameters."""

    @property
    def slope(self) -> Vector:
        """Slopes a of the kinks at zero."""

    @property
    def bounds(self) -> tuple[Vector, Vector]:
        """Lower and upper bounds."""


class Box(NamedTuple):
    """Limits of some parameters."""

    slope: Vector
    bounds: tuple[Vector, Vector]


def resting(limits: Limits, theta: Vector) -> Bool[Array, " params"]:
    """Whether each parameter is at a bound or a kink."""
    return (
        (theta == limits.bounds[0])
        | (theta == limits.bounds[1])
        | ((theta == 0) & (limits.slope > 0))
    )


def gates(limits: Limits, theta: Vector) -> tuple[Vector, Vector]:
    """Least and greatest ∇_jL that hold a parameter at rest at θ_j."""
    a = limits.slope
    (low, high) = limits.bounds
    least = np.where(theta == high, -np.inf, np.where(theta >= 0, -a, a))
    return least, np.where(theta == low, np.inf, np.where(theta <= 0, a, -a))


def segments(
    limits: Limits, place: Int[Array, " active"], sign: Float[Array, " active"]
) -> tuple[Float[Array, " active"], Float[Array, " active"]]:
    """Ends of the interval in which parameters keep the given signs.

    Zero stands for a parameter without a kink.
    """
    low, high = (end[place] for end in limits.bounds)
    return np.where(sign > 0, np.maximum(low, 0.0), low), np.where(
        sign < 0, np.minimum(high, 0.0), high
    )


def leaving_signs(a: Array, theta: Array, beyond: Array) -> Vector:
    """Signs of the parameters that leave their resting place.

    `beyond` is how far ∇L exceeds the bound that holds them.
    """
    return np.where(a > 0, np.where(theta == 0, -np.sign(beyond), np.sign(theta)), 0.0)


def solve_box(
    gram: Float[Array, "params params"],
    right: Vector,
    a: Vector,
    bounds: tuple[Vector, Vector],
    theta: Vector,
) -> Vector:
    """Minimise ½ θᵀGθ − rightᵀθ + Σ_j a_j |θ_j| between bounds, from a feasible θ.

    If G does not determine the minimiser, the result is a θ no worse than the start.
    """
    box = Box(a, bounds)
    theta, free = theta.copy(), ~resting(box, theta)
    sign = np.where(a > 0, np.sign(theta), 0.0)
    fresh = np.zeros(0, int)
    beyond = np.zeros(len(a))
    max_bound_changes = 20  # largest number of changes of the active set for each parameter
    bound_rounding = 1e-13  # violation that counts as none, relative to the terms of the gradient
    for _ in range(max_bound_changes * (len(a) + 5)):
        active = np.flatnonzero(free)
        fixed = np.flatnonzero(~free)
        target = _solve_or_none(
            gram[np.ix_(active, active)],
            right[active] - gram[np.ix_(active, fixed)] @ theta[fixed] - (a * sign)[active],
        )
        if target is None:
            if len(fresh) < 2:
                return theta
            free[fresh], fresh = False, fresh[[np.argmax(np.abs(beyond[fresh]))]]
            free[fresh] = True
            continue
        floor, ceiling = segments(box, active, sign[active])
        stop = np.where(
            (target <= floor) & (target < theta[active]),
            floor,
            np.where((target >= ceiling), ceiling, np.inf),
        )
        met = np.isfinite(stop)
        share = np.divide(
            stop - theta[active],
            target - theta[active],
            out=np.ones(len(active)),
            where=met & (target != theta[active]),
        )
        if met.any():
            first = max(float(share[met].min()), 0.0)
            stops = met & (share <= first)
            theta[active] += first * (target - theta[active])
            theta[active[stops]], free[active[stops]], fresh = (
                stop[stops],
                False,
                fresh[~np.isin(fresh, active[stops])],
            )
            continue
        theta[active] = target
        gradient = gram @ theta - right
        (least, most) = gates(box, theta)
        beyond = np.where(free, 0.0, gradient - np.clip(gradient, least, most))
        fresh = np.flatnonzero(
            np.abs(beyond) > bound_rounding * (np.abs(gram) @ np.abs(theta) + np.abs(right) + a)
        )
        if not fresh.size:
            break
        sign[fresh], free[fresh] = leaving_signs(a, theta, beyond)[fresh], True
    return theta


def _solve_or_none(matrix: Array, right: Array) -> Array | None:
    """Solve by a Cholesky factor; None if the matrix is not positive definite."""
    if not len(right):
        return right
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    try:
        factor = scipy.linalg.cho_factor(matrix * scale * scale[:, None], lower=True)
    except (np.linalg.LinAlgError, ValueError):
        return None
    if np.diag(factor[0]).min() ** 2 < 10 * len(right) * np.finfo(float).eps:
        return None
    return scipy.linalg.cho_solve(factor, right * scale) * scale
