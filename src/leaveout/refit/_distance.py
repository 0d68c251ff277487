"""Distance of the exact refits from θ as it is reported, and what it does to linear functions of θ.

A batch has balls that contain the exact refits, ‖θ_w − θ̂ − Rᵀu‖_H ≤ ρ, and θ is reported somewhere
near θ̂ + Rᵀu. With s² the diagonal of H ≈ L Lᵀ, n rows, p parameters and S(v) = Σ_j s_j |v_j|,

    ‖v‖²_H ≤ ‖Lᵀv‖² + (n + p + 8) u S(v)²,      ‖v‖_H ≤ S(v),      |x_j| ≤ s_j ‖x‖_{H⁻¹}.

So `distances` gives an r, with all rounding in it, for which xᵀθ of the exact refit is within r
‖x‖_{H⁻¹} of xᵀθ as it is computed from the reported θ, for every x; `lengths` bounds ‖x‖_{H⁻¹}. A
coordinate of θ has a row of the identity for x. Any norm of many coordinates, such as a standard
error over refits, is off by at most the same norm of their bounds.

H is that of θ̂ as both are computed. For other models than those of linear predictors all this is
estimated.
"""

import numpy as np
from jaxtyping import Float

from ..linalg.rounding import UNIT, UP, condition
from ..objectives.objective import Flags, PerRefit, RefitPoints
from ..optimize.fit import Fit
from ._anchor import LinearFitCache, linear_cache
from ._refit_batch import RefitBatch

Array = np.ndarray


def distances(fit: Fit, batch: RefitBatch, theta: RefitPoints) -> tuple[PerRefit, Flags]:
    """Bound the distance of each exact refit from the reported θ, in the norm of H, and tell which
    of the bounds are proved.

    Bounds are infinite where nothing is known.
    """
    nowhere = np.zeros(len(theta), bool)
    if batch.ball is None:
        return np.full(len(theta), np.inf), nowhere
    center, radius = batch.ball()
    if fit.predictors is None:
        distance = radius + np.linalg.norm(fit.back(theta - fit.vector) - center, axis=1)
        proved = nowhere
    else:
        anchor = linear_cache(fit)
        size = np.abs(theta) @ _scale(fit) + np.abs(center) @ (np.abs(anchor.root) @ _scale(fit))
        p = theta.shape[1]
        length, length_error = lengths_of_moves(fit, theta - fit.vector - center @ anchor.root)
        bound = (
            (1 + anchor.rounding.off) * radius
            + length
            + length_error
            + (2 * p + 16) * UNIT * (size + anchor.rounding.bulk)
        )
        distance = UP * bound
        proved = nowhere if batch.proved is None else batch.proved
    distance = np.where(np.isfinite(distance), distance, np.inf)
    return distance, proved & np.isfinite(distance)


def lengths_of_moves(fit: Fit, moves: RefitPoints) -> tuple[PerRefit, PerRefit]:
    """Compute ‖v‖_H, and bound the rounding error of these numbers.

    Relative to H's own, and of the products.
    """
    length = np.linalg.norm(fit.back(moves), axis=1)
    if fit.predictors is None:
        return length, np.zeros(len(length))
    size = np.abs(moves) @ _scale(fit)
    (n, p) = fit.predictors.design.shape
    square = (n + p + 8) * UNIT * size**2
    return length, UP * (
        np.minimum(np.sqrt(square), square / np.maximum(length, 1e-300)) + (p + 16) * UNIT * size
    )


def lengths(fit: Fit, rows: Float[Array, "rows params"]) -> Float[Array, " rows"]:
    """Bound ‖x‖_{H⁻¹} of some x.

    The largest change of xᵀθ by a move of length one in the norm of H.
    """
    computed = np.linalg.norm(fit.whiten(rows), axis=1)
    if fit.predictors is None:
        return computed
    anchor = linear_cache(fit)
    return (
        computed
        * anchor.rounding._replace(root=np.sqrt(condition(anchor.root, _scale(fit)))).growth
    )


def distance_of_fit(fit: Fit) -> tuple[float, bool]:
    """Bound the distance of θ̂ from the exact minimiser, and tell whether the bound is proved."""
    if fit.predictors is None:
        return float(fit.decrement), False
    anchor: LinearFitCache = linear_cache(fit)
    slope = np.array([np.linalg.norm(anchor.leftover) * anchor.rounding.growth + anchor.noise])
    distance = float(anchor.table.ball(slope, np.ones(1), np.ones(1)).distance[0])
    return distance, bool(np.isfinite(distance)) and anchor.rounding.off < 0.5


def _scale(fit: Fit) -> Float[Array, " params"]:
    """Return √H_jj."""
    return np.linalg.norm(np.asarray(fit.factor), axis=1)
