"""Conjugate gradients for many systems A x = b side by side, and the Ritz values that they meet.

With a preconditioner P and residuals r, x goes along directions d,

    x ← x + α d,   α = r·Pr / d·Ad,   r ← r − α A d,   d ← P r + β d,   β = r·Pr / r·Pr before.

The α and β are the entries of a tridiagonal matrix, whose eigenvalues approach those of PA. With μ
the least of them, √(r·Pr / μ) estimates the length, in the norm of A, of what is left to solve (J.
Nocedal and S. J. Wright, Numerical Optimization, 2006, §5.1 and §7.1).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime import ArrayList, NumpyArray

Lanes = Int[NumpyArray, " lanes"]
PerSystem = Float[NumpyArray, " systems"]
# function of vectors and of the places of their systems
Multiply = Callable[[Float[NumpyArray, "lanes size"], Lanes], Float[NumpyArray, "lanes size"]]


class Solution(NamedTuple):
    """Solutions x, the last r·Pr, x·Ax, the least Ritz value of PA, and whether no direction was
    met along which A is not positive, where a solve ends.
    """

    x: Float[NumpyArray, "systems size"]
    square: PerSystem
    length: PerSystem
    least: PerSystem
    is_convex: Bool[NumpyArray, " systems"]


def solve(
    product: Multiply,
    precondition: Multiply,
    right: Float[NumpyArray, "systems size"],
    most: int,
    tol: float | PerSystem = 0.0,
    part: float | PerSystem = 0.0,
    record: Callable[[NumpyArray, NumpyArray, NumpyArray], None] | None = None,
    settled: Callable[[Lanes, NumpyArray, NumpyArray], NumpyArray] | None = None,
    has_ritz_values: bool = True,
) -> Solution:
    """Solve from zero by at most so many products.

    A solve ends when its residual, measured by P, is `tol` of the first or, if `part` is given,
    when what is left to solve is this part of x. `record` gets the directions, their images and
    d·Ad. Instead, `settled` may mark where it ends, from the tridiagonal matrices of systems, and
    the next entries off the diagonal. Long solves have no Ritz values.
    """
    x = np.zeros_like(right)
    residual = right.copy()
    towards = np.array(precondition(residual, np.arange(len(right))))
    square = np.einsum("lp,lp->l", residual, towards)
    enough = tol**2 * square
    parts = np.broadcast_to(part, len(right))
    has_parts = bool(parts.any())
    length = np.zeros(len(right))
    least = np.ones(len(right))
    is_convex = np.ones(len(right), bool)
    diagonal = [np.zeros(len(right))]
    off_diagonal = ArrayList()
    lanes = np.flatnonzero(square > enough)
    for k in range(most):
        if not lanes.size:
            break
        direction = towards[lanes]
        image = product(direction, lanes)
        curvature = np.einsum("lp,lp->l", direction, image)
        is_up = curvature > 0
        if not is_up.all():
            is_convex[lanes[~is_up]] = False
            lanes, direction, image, curvature = (
                values[is_up] for values in (lanes, direction, image, curvature)
            )
            if not lanes.size:
                break
        if record is not None:
            record(direction, image, curvature)
        before = square[lanes]
        step = before / curvature
        x[lanes] += step[:, None] * direction
        remaining = residual[lanes] - step[:, None] * image
        residual[lanes] = remaining
        length[lanes] += step * before
        preconditioned = precondition(remaining, lanes)
        after = np.maximum(np.einsum("lp,lp->l", remaining, preconditioned), 0.0)
        ratio = after / before
        square[lanes] = after
        towards[lanes] = preconditioned + ratio[:, None] * direction
        diagonal[k][lanes] += 1 / step
        next_off_diagonal = np.sqrt(ratio) / step
        if settled is not None:
            ends = settled(lanes, _tridiagonal(diagonal, off_diagonal, lanes), next_off_diagonal)
        else:
            ends = after <= enough[lanes]
        if settled is None and has_ritz_values:
            judged = lanes if has_parts or k + 1 == most else lanes[ends]
            least[judged] = np.linalg.eigvalsh(_tridiagonal(diagonal, off_diagonal, judged))[:, 0]
            if has_parts:
                distance = np.maximum(least[lanes], 1e-300) * length[lanes]
                ends = after <= parts[lanes] ** 2 * distance
        diagonal.append(np.zeros(len(right)))
        diagonal[k + 1][lanes] = ratio / step
        off_diagonal.append(np.zeros(len(right)))
        off_diagonal[k][lanes] = next_off_diagonal
        lanes = lanes[~ends]
    return Solution(x, square, length, least, is_convex)


def _tridiagonal(diagonal: ArrayList, off_diagonal: ArrayList, lanes: Lanes) -> NumpyArray:
    """Lower triangles of the tridiagonal matrices of some systems."""
    size = len(diagonal)
    matrices = np.zeros((len(lanes), size, size))
    for k in range(size):
        matrices[:, k, k] = diagonal[k][lanes]
    for k in range(size - 1):
        matrices[:, k + 1, k] = off_diagonal[k][lanes]
    return matrices
