"""Whitened inverse Hessians of a batch of refits, for models that are not a `Predictors` record.

With H = L Lᵀ and u = Lᵀ(θ − θ̂) the anchor's Hessian is the identity, gradients are L⁻¹∇F, lengths
are H-norms, and a fold's Hessian at θ̂ is I + Zᵀ V Z, Z the whitened rows that the fold touches:

    Whitened        the full fit's: the identity in these coordinates
    LowRank         the fold's own by Woodbury, for few rows (for one row this is ALO)
    DenseMetric     the fold's own, inverted
    ExpandedMetric  the fold's own at the minimiser of an expansion (`_descent`)
    Products
    the fold's own at its candidate, by conjugate gradients, if H is too large to be formed
"""

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float

from .._runtime.jax import Array, Arrays, PyTree, cached_on, compile_static, jax
from ..objectives.batch_functions import (
    ClosedFormBatch,
    DerivedBatch,
    HostBatch,
    derive_batch,
    function,
)
from ..objectives.objective import AbstractLinearPredictor, Lanes, Points, RefitPoints
from ..optimize.fit import Fit
from ..optimize.hessian_products import ROUGH, NystromPreconditioner, Solve, sketch
from ..plans.plan import RefitRows

# a fold that keeps less than this share of the information along a direction does not determine it
SINGULAR_SHARE = 1e-10
# Least and largest rank of a sketch of H, between them eight for each refit, and most numbers in
# it, a quarter of a gigabyte: the sketch takes two products a rank, and a refit 12 by the largest
# one where it took 92.
RANKS = 48, 768
RANK_OF_REFIT = 8
SKETCHED_NUMBERS = 2**26


class RefitMetric(abc.ABC):
    """Batch of inverse Hessians."""

    # whether they are those at the candidates, so that steps are Newton steps
    is_newton: ClassVar[bool] = False
    # whether lengths are measured by a sketch of the inverse of H, from above
    sketched: bool = False

    @abc.abstractmethod
    def solve(self, gradient: Points, u: Points, lanes: Lanes) -> Points:
        """Steps for the gradients of selected refits at u, all whitened."""


class IdentityMetric(RefitMetric):
    """Metric of the full fit: the identity in whitened coordinates."""

    def solve(self, gradient, u, lanes):
        del u, lanes
        return gradient


@dataclass(frozen=True, eq=False)
class LowRank(RefitMetric):
    """Metric of each fold's own Hessian by Woodbury.

    `(I + Zᵀ V Z)⁻¹ = I − Zᵀ C Z` with `C = (I + V Z Zᵀ)⁻¹ V`.
    """

    rows: Float[np.ndarray, "refits touched params"]
    core: Float[np.ndarray, "refits touched touched"]

    def solve(self, gradient, u, lanes):
        del u
        z = self.rows[lanes]
        inner = np.einsum("rkl,rl->rk", self.core[lanes], np.einsum("rkp,rp->rk", z, gradient))
        return gradient - np.einsum("rkp,rk->rp", z, inner)


@dataclass(frozen=True, eq=False)
class DenseMetric(RefitMetric):
    """Metric of each fold's own Hessian, inverted."""

    inverse: Float[np.ndarray, "refits params params"]

    def solve(self, gradient, u, lanes):
        del u
        return np.einsum("rij,rj->ri", self.inverse[lanes], gradient)


class Products(RefitMetric):
    """Metric of each fold's own Hessian at u, by conjugate gradients down to `tol` of a gradient.

    `remainder` is the part of each last step left unsolved, in the norm of the Hessian. Rough
    solves with products in NumPy are in single precision, which halves their time; gradients, in
    double precision, decide where the steps end.
    """

    is_newton = True

    def __init__(self, fit: Fit, F: DerivedBatch | ClosedFormBatch, tol: float):
        self.fit = fit
        self.F = F
        self.tol = tol
        self.remainder = np.zeros(len(F.rows.index))
        self.kind = np.float32 if isinstance(F, HostBatch) and tol >= ROUGH else np.float64
        rank = min(
            int(np.clip(RANK_OF_REFIT * F.rows.num_refits, *RANKS)),
            SKETCHED_NUMBERS // fit.num_params,
            fit.num_params,
        )
        self.sketched = isinstance(F, HostBatch) and np.allclose(
            F.arrays.alpha * fit.scaling.scale**2, 1.0
        )
        self.inverse = sketched(rank)(fit) if self.sketched else fit.learned_inverse
        preconditioner = fit.scaling, fit.null_space, self.inverse
        if self.kind == np.float64:
            self.preconditioner = preconditioner
        else:
            self.preconditioner = jax.tree.map(
                lambda part: part.astype(np.float32, copy=False), preconditioner
            )

    def solve(self, gradient, u, lanes):
        theta = self.fit.at(u)
        step = np.empty_like(gradient)
        is_varied = isinstance(self.F, HostBatch) and (theta != theta[0]).any()
        # refits at different θ whose products are computed together, as the model keeps data of so
        # many
        size = self.F.arrays.together if is_varied else max(len(lanes), 1)
        for chunk in (slice(k, k + size) for k in range(0, len(lanes), size)):
            solve = Solve(self.F, *self.preconditioner)
            step[chunk] = solve(
                theta[chunk], gradient[chunk].astype(self.kind), lanes[chunk], self.tol
            )
            self.remainder[lanes[chunk]] = solve.remainder
        return step


@functools.cache
def sketched(rank: int) -> Callable[[Fit], NystromPreconditioner]:
    """Return the function that sketches the curvature of a fit, once."""
    return cached_on(
        lambda fit: sketch(function(fit.objective, fit.theta), fit.scaling, fit.vector, rank)
    )


def is_narrow(fit: Fit, width: int) -> bool:
    """Tell whether Woodbury on held-out rows is cheaper than a factor of the fold's Hessian."""
    objective = fit.objective
    if fit.factor is None or not (
        isinstance(objective, AbstractLinearPredictor) and objective.low_rank
    ):
        return False
    touched = width * objective.outputs
    return touched == objective.outputs or 4 * touched <= fit.num_params


def own_metric(
    fit: Fit, rows: RefitRows
) -> tuple[RefitMetric, Bool[np.ndarray, " refits"], RefitPoints | None]:
    """Return each fold's own Hessian at θ̂, and which of them are singular or indefinite.

    The third value is the whitened gradient of each F(·, w) at θ̂ if the rows give it, else None.
    """
    if not is_narrow(fit, rows.index.shape[1]):
        return *_dense(fit, rows), None
    z, slope, curvature = _touched_rows(fit, rows)
    gradient = fit.whiten(fit.gradient) + np.einsum("rk,rkp->rp", slope, z)
    count = z.shape[1]
    outputs = curvature.shape[-1]
    gram = (z @ z.swapaxes(1, 2)).reshape(len(z), -1, outputs, count)
    change = np.eye(count) + (curvature @ gram).reshape(len(z), count, count)
    try:
        inverse = np.linalg.inv(change)
    except np.linalg.LinAlgError:
        inverse = np.array(
            [
                np.linalg.inv(m) if np.linalg.matrix_rank(m) == count else np.full(m.shape, np.inf)
                for m in change
            ]
        )
    with np.errstate(invalid="ignore"):
        core = (
            (inverse.reshape(len(z), count, -1, outputs).swapaxes(1, 2) @ curvature)
            .swapaxes(1, 2)
            .reshape(inverse.shape)
        )
    singular = ~(np.abs(inverse).max((1, 2)) < 1 / SINGULAR_SHARE)
    if count == 1:
        singular = change[:, 0, 0] < SINGULAR_SHARE
    return LowRank(z, np.where(singular[:, None, None], 0.0, core)), singular, gradient


def _touched_rows(fit: Fit, rows: RefitRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, slopes and curvatures of the linear predictors that refits touch.

    Returns the whitened rows `[refits, touched, params]`, and the changes of slopes `[refits,
    touched]` and of curvatures `[refits, width, outputs, outputs]` by the weights.
    """
    assert isinstance(fit.objective, AbstractLinearPredictor)
    raw, slope, curvature = (
        np.asarray(part) for part in _parts(fit.objective, fit.theta, rows.index)
    )
    count, width, outputs = raw.shape[:3]
    delta = np.where(np.asarray(rows.index) < fit.objective.num_units, rows.weight - 1.0, 0.0)
    slope = delta[..., None] * slope.reshape(count, width, outputs)
    curvature = delta[..., None, None] * curvature.reshape(count, width, outputs, outputs)
    return fit.whiten(raw).reshape(count, width * outputs, -1), slope.reshape(count, -1), curvature


@compile_static
def _parts(
    objective: AbstractLinearPredictor, theta: PyTree, index: Arrays
) -> tuple[Array, Arrays, Arrays]:
    """Rows of the listed units, and the first and second derivatives of their losses."""
    unit_parts = lambda index: (
        objective.rows(index),
        objective.derivative(theta, index, 1),
        objective.derivative(theta, index, 2),
    )
    return jax.vmap(unit_parts)(index)


def _dense(fit: Fit, rows: RefitRows) -> tuple[DenseMetric, Bool[np.ndarray, " refits"]]:
    # numbers in the rows that a group of refits gathers
    chunk = max(1, 2**20 // (rows.index.shape[1] * fit.num_params))
    change = derive_batch(fit.objective, fit.theta, rows).hessian_changes(chunk)
    whitener = np.asarray(fit.whitener)
    hessians = np.eye(fit.num_params) + whitener @ change @ whitener.T
    pivots = np.array([_least_pivot(hessian) for hessian in hessians])
    singular = ~(pivots > SINGULAR_SHARE)
    return DenseMetric(
        np.linalg.inv(np.where(singular[:, None, None], np.eye(fit.num_params), hessians))
    ), singular


def _least_pivot(hessian: Float[np.ndarray, "params params"]) -> float:
    try:
        return float(np.diag(np.linalg.cholesky(hessian)).min() ** 2)
    except np.linalg.LinAlgError:
        return -np.inf
