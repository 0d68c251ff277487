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
from jaxtyping import Bool, Float, Int

from .._runtime import NumpyArray
from .curvature import Curvature

PerActive = Float[NumpyArray, " active"]
Vector = Float[NumpyArray, " params"]
Thetas = Float[NumpyArray, "... params"]


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

    slope: Thetas
    bounds: tuple[Thetas, Thetas]


def resting(limits: Limits, theta: Thetas) -> Bool[NumpyArray, "... params"]:
    """Whether each parameter is at a bound or a kink."""
    return (
        (theta == limits.bounds[0])
        | (theta == limits.bounds[1])
        | ((theta == 0) & (limits.slope > 0))
    )


def gates(limits: Limits, theta: Thetas, kappa: float = 1.0) -> tuple[Thetas, Thetas]:
    """Least and greatest ∇_jL that hold a parameter at rest at θ_j, where the slopes are κ a."""
    a = kappa * limits.slope
    low, high = limits.bounds
    least = np.where(theta == high, -np.inf, np.where(theta >= 0, -a, a))
    return least, np.where(theta == low, np.inf, np.where(theta <= 0, a, -a))


def segments(
    limits: Limits, place: Int[NumpyArray, " active"], sign: PerActive
) -> tuple[PerActive, PerActive]:
    """Ends of the interval in which parameters keep the given signs.

    Zero stands for a parameter without a kink.
    """
    low, high = (end[place] for end in limits.bounds)
    return np.where(sign > 0, np.maximum(low, 0.0), low), np.where(
        sign < 0, np.minimum(high, 0.0), high
    )


def excess(limits: Limits, theta: Thetas, gradient: Thetas, kappa: float = 1.0) -> Thetas:
    """How far ∇L is beyond the gates of each parameter at rest, which then joins the others."""
    beyond = gradient - np.clip(gradient, *gates(limits, theta, kappa))
    return np.where(resting(limits, theta), beyond, 0.0)


def leaving_signs(a: NumpyArray, theta: NumpyArray, beyond: NumpyArray) -> Thetas:
    """Signs of the parameters that leave their resting place.

    `beyond` is how far ∇L exceeds the bound that holds them.
    """
    return np.where(a > 0, np.where(theta == 0, -np.sign(beyond), np.sign(theta)), 0.0)


def solve_box(
    gram: Float[NumpyArray, "params params"],
    right: Vector,
    a: Vector,
    bounds: tuple[Vector, Vector],
    theta: Vector,
) -> Vector:
    """Minimise ½ θᵀGθ − rightᵀθ + Σ_j a_j |θ_j| between bounds, from a feasible θ.

    If G does not determine the minimiser, the result is a θ no worse than the start.
    """
    box = Box(a, bounds)
    theta = theta.copy()
    free = ~resting(box, theta)
    sign = np.where(a > 0, np.sign(theta), 0.0)
    fresh = np.zeros(0, int)
    beyond = np.zeros(len(a))
    max_bound_changes = 20  # largest number of changes of the active set for each parameter
    bound_rounding = 1e-13  # violation that counts as none, relative to the terms of the gradient
    for _ in range(max_bound_changes * (len(a) + 5)):
        active = np.flatnonzero(free)
        fixed = np.flatnonzero(~free)
        least = 10 * len(active) * np.finfo(float).eps
        target = Curvature.of(gram[np.ix_(active, active)], least).step(
            right[active] - gram[np.ix_(active, fixed)] @ theta[fixed] - (a * sign)[active]
        )
        if np.isnan(target).any():
            if len(fresh) < 2:
                return theta
            free[fresh] = False
            fresh = fresh[[np.argmax(np.abs(beyond[fresh]))]]
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
            theta[active[stops]] = stop[stops]
            free[active[stops]] = False
            fresh = fresh[~np.isin(fresh, active[stops])]
            continue
        theta[active] = target
        beyond = np.where(free, 0.0, excess(box, theta, gram @ theta - right))
        fresh = np.flatnonzero(
            np.abs(beyond) > bound_rounding * (np.abs(gram) @ np.abs(theta) + np.abs(right) + a)
        )
        if not fresh.size:
            break
        sign[fresh] = leaving_signs(a, theta, beyond)[fresh]
        free[fresh] = True
    return theta
