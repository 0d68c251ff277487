"""Directions that neither units nor penalty see: repeated columns, all levels of a factor beside an
intercept, p > n.

For linear predictors `U_n θ` with a convex loss, F(θ + v, w) = F(θ, w) for every θ and w if `U_n
v = 0` for all n and the penalty is flat along v. Other libraries then take the minimiser of least
norm, and so does this one. N, rows that span those v, comes from the pivoted factor of all U_n
together, with columns of length one. M is the norm to be minimised: the identity or, with an
intercept that is none of the columns, the identity without it. Displacements d are then kept to `F
d = 0`,

    F = (N M Nᵀ)⁻¹ N M,

by the curvature FᵀF added to H: steps for gradients, which N never sees, do not change along N by
it. A direction that is flat at θ̂ only, as under separation, is not among these.
"""

import numpy as np
import scipy
from jaxtyping import Float
from numpy import linalg, ndarray

from .._runtime import Array, Arrays, ParamRows, PyTree, compile_static, jnp
from ..objectives import AbstractLinearPredictor, AbstractObjective, function, ravel


def unseen_directions(objective: AbstractObjective, theta: PyTree) -> Float[ndarray, "flat params"]:
    """Return the functionals F of the unseen directions, with the model's own symmetries; empty if
    every direction is seen.

    Models that are not convex, or not of linear predictors, are not examined: only their symmetries
    are returned.
    """
    if not (isinstance(objective, AbstractLinearPredictor) and objective.convex):
        return np.asarray(objective.parameters.symmetries(theta), float)
    if getattr(objective, "cut", 0.0):
        return _functionals(objective, theta, _cut(objective))
    size = np.asarray(ravel(theta)).size
    # float64 gives pivots of 1e-15, H resolves 1e-7
    combinations, scale = zero_combinations(_root(objective, size), 1e-11)
    null = linalg.qr(combinations)[0].T
    # a penalty that is not quadratic may be flat far out
    # curvature of a penalty, relative to the largest of a parameter, below which it counts as none
    penalty_curvature_share = 1e-13
    model = objective.predictors
    if model is None:
        penalised = bool(np.any(np.asarray(objective.parameters.penalty_curvature(theta)) != 0))
    else:
        penalised = (
            bool(abs(model.penalty).sum() > 0) or model.design.shape[0] > objective.num_units
        )
    for point in (theta, objective.parameters.start(0)) if penalised else ():
        hessian = (
            function(objective, point).hessian(np.asarray(ravel(point))) / scale / scale[:, None]
        )
        values, vectors = linalg.eigh(null @ hessian @ null.T)
        null = (
            vectors[
                :,
                values <= penalty_curvature_share * size * np.abs(np.diag(hessian)).max(initial=0),
            ].T
            @ null
        )
    return _functionals(objective, theta, null / scale)


def zero_combinations(
    columns: Float[ndarray, "rows columns"], least_pivot: float
) -> tuple[Float[ndarray, "columns null"], Float[ndarray, " columns"]]:
    """Return combinations of columns of length one that are zero, and the lengths of the columns.

    Columns are repeated if their pivots are at most `least_pivot`, relative to the largest.
    """
    scale = linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    # columns[:, order] = Q [R S; 0 0], where R⁻¹S is short
    triangle, order = scipy.linalg.qr(columns / scale, mode="r", pivoting=True)
    pivots = np.abs(np.diag(triangle))
    rank = int(np.sum(pivots > least_pivot * pivots.max(initial=0)))
    combinations = np.zeros((len(scale), len(scale) - rank))
    combinations[order[:rank]] = -scipy.linalg.solve_triangular(
        triangle[:rank, :rank], triangle[:rank, rank:]
    )
    combinations[order[rank:]] = np.eye(len(scale) - rank)
    return combinations, scale


def _cut(objective) -> Float[ndarray, "flat params"]:
    """Return the directions that the host treats as unseen.

    Those of its centred rows' smallest singular values.
    """
    x = objective.design[:, : objective.num_features]
    weight = objective.row_weights
    mean = weight @ x / weight.sum() if objective.intercept else np.zeros(x.shape[1])
    root = linalg.qr(np.sqrt(weight)[:, None] * (x - mean), mode="r")
    _, s, vectors = linalg.svd(root, full_matrices=True)
    null = vectors[np.sum(s > objective.cut * s.max(initial=0.0)) :]
    if objective.intercept:
        return np.c_[null, -null @ mean]
    return null


def _root(objective: AbstractLinearPredictor, size: int) -> ParamRows:
    """Compute the triangle R with `RᵀR = Σ_n U_nᵀ U_n` over the units of positive weight, computed
    by blocks.
    """
    weight = objective.units.weight
    model = objective.predictors
    if weight is None:
        units = np.arange(objective.num_units)
    else:
        units = np.flatnonzero(np.asarray(weight) > 0)
    null_space_block = 2**22  # numbers in a block of rows
    block = max(size, null_space_block // (objective.outputs * size))
    root = np.zeros((0, size))
    for start in range(0, len(units), block):
        # the last unit is repeated
        chunk = units[np.minimum(np.arange(start, start + min(block, len(units))), len(units) - 1)]
        if model is None:
            rows = _rows(objective, chunk)
        else:
            rows = model.design.whiten(chunk, np.eye(size))
        root = np.asarray(
            linalg.qr(np.concatenate([root, np.asarray(rows).reshape(-1, size)]), mode="r")
        )
    return root


@compile_static
def _rows(objective: AbstractLinearPredictor, units: Arrays) -> Array:
    if len(units) < objective.num_units:
        return objective.rows(jnp.asarray(units))
    return objective.rows(jnp.arange(objective.num_units))


def _functionals(
    objective: AbstractLinearPredictor, theta: PyTree, null: Float[ndarray, "null params"]
) -> ndarray:
    """Functionals F of null directions, and the symmetries that are not among them."""
    symmetries = np.asarray(objective.parameters.symmetries(theta), float)
    if not len(null):
        return symmetries
    counted = np.ones((objective.outputs, null.shape[1] // objective.outputs))
    if getattr(objective, "intercept", False):
        counted[:, -1] = 0.0
    along = null * counted.ravel()
    functionals = linalg.solve(along @ null.T, along)
    basis = linalg.qr(null.T)[0]
    remaining = symmetries - (symmetries @ basis) @ basis.T
    values, vectors = linalg.eigh(remaining @ remaining.T)
    return np.concatenate([functionals, vectors[:, values > 0.5].T @ remaining])
