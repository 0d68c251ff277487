"""`H_w⁻¹` for a batch of refits, five ways, in the anchor's whitened coordinates.

With H = L Lᵀ and u = Lᵀ(θ − θ̂), the anchor's Hessian is the identity, gradients are L⁻¹∇F, lengths are
H-norms, and a fold's Hessian at θ̂ is I + Zᵀ V Z, Z the whitened rows that the fold touches:

    Identity  none: the step is the whitened gradient
    Anchor    the full fit's: the chord's metric, the identity in these coordinates
    LowRank   by Woodbury, for few rows (for one row this is ALO)
    Dense     by its inverse
    Products  by conjugate gradients, where H is too large to be formed; then Anchor is by conjugate gradients too,
              and the coordinates are whitened by a diagonal and leading eigenvectors
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._fit import Fit
from ._objective import AbstractLinearPredictor, ravel, unravel
from ._plan import Rows
from ._products import COARSE, LOOSE

GATHERED = 2**20  # numbers of the rows that a group of refits gathers
SINGULAR = 1e-10  # a fold that keeps less than this share of the information along some direction determines nothing there


class AbstractMetric(eqx.Module):
    """A batch of inverse Hessians; `solve` is for one of them, and is mapped over the batch."""

    @abc.abstractmethod
    def solve(self, fit: Fit, gradient: Float[Array, " params"]) -> Float[Array, " params"]:
        """The step that the gradient asks for, both whitened."""


class Identity(AbstractMetric):
    """No curvature but the coordinates' own: the step is the whitened gradient."""

    def solve(self, fit, gradient):
        del fit
        return gradient


class Anchor(AbstractMetric):
    """The full fit's Hessian, for every refit; `tol` is that of conjugate gradients, where they are needed."""

    tol: float = eqx.field(static=True, default=LOOSE)

    def solve(self, fit, gradient):
        return fit.newton(gradient, self.tol)


class LowRank(AbstractMetric):
    """`(I + Zᵀ V Z)⁻¹ = I − Zᵀ C Z` with `C = (I + V Z Zᵀ)⁻¹ V`."""

    rows: Float[Array, "*refits touched params"]
    core: Float[Array, "*refits touched touched"]

    def solve(self, fit, gradient):
        del fit
        return gradient - self.rows.T @ (self.core @ (self.rows @ gradient))


class Dense(AbstractMetric):
    """The inverse of the fold's whitened Hessian. (Not its factor: batches of LAPACK calls inside a compiled loop
    can lock up XLA's CPU runtime, so inverses are made by NumPy and compiled code only multiplies.)"""

    inverse: Float[Array, "*refits params params"]

    def solve(self, fit, gradient):
        del fit
        return self.inverse @ gradient


class Products(AbstractMetric):
    """Each fold's own Hessian at the displacement u, by its products with vectors."""

    index: Int[Array, "*refits width"]
    weight: Float[Array, "*refits width"]
    u: Float[Array, "*refits params"]
    tol: float = eqx.field(static=True)

    def solve(self, fit, gradient):
        return fit.newton_at(self.u, gradient, fold_weights(fit, self.index, self.weight), self.tol)


def products(fit: Fit, rows: Rows, tol: float) -> Products:
    """Those Hessians at θ̂."""
    return Products(rows.index, rows.weight, np.zeros((len(rows.index), fit.num_params)), tol)


def is_narrow(fit: Fit, width: int) -> bool:
    """Is Woodbury on the held-out rows cheaper than a factor of the fold's own?"""
    objective = fit.objective
    if fit.factor is None or not (isinstance(objective, AbstractLinearPredictor) and objective.low_rank):
        return False
    touched = width * objective.outputs
    return touched == objective.outputs or 4 * touched <= fit.num_params


def is_single(fit: Fit, rows: Rows) -> bool:
    """Does every refit touch one linear predictor only?"""
    return is_narrow(fit, 1) and rows.index.shape[1] * getattr(fit.objective, "outputs", 0) == 1


def own_metric(fit: Fit, rows: Rows) -> tuple[AbstractMetric, Bool[np.ndarray, " refits"]]:
    """Each fold's own Hessian at θ̂, and which of them are singular or indefinite."""
    if fit.factor is None:
        return products(fit, rows, COARSE), np.zeros(len(rows.index), bool)
    size = max(1, GATHERED // (rows.index.shape[1] * fit.num_params))
    if not is_narrow(fit, rows.index.shape[1]):
        return _dense(np.asarray(_hessians(fit, rows, size)))
    if is_single(fit, rows):
        metric, singular = one_row_metric(fit, rows)
        return metric, np.asarray(singular)
    z, change, curvature = _low_rank(fit, rows)
    inverse = _inverse(np.eye(z.shape[1]) + np.asarray(change))
    blocks = inverse.reshape(*inverse.shape[:2], *curvature.shape[1:3])
    core = np.einsum("rmnk,rnkl->rmnl", blocks, np.asarray(curvature), optimize=True).reshape(inverse.shape)
    return LowRank(z, core), ~(np.abs(inverse).max((1, 2)) < 1 / SINGULAR)


def own_metric_at(
    fit: Fit, rows: Rows, u: Float[np.ndarray, "refits params"], lanes: Int[np.ndarray, " lanes"], chunk: int
) -> tuple[Dense, Bool[np.ndarray, " lanes"]]:
    """The same at any displacement, for some of the refits."""
    return _dense(np.asarray(_hessians_at(fit, rows, u, lanes, chunk)))


def _dense(hessians: Float[np.ndarray, "refits params params"]) -> tuple[Dense, Bool[np.ndarray, " refits"]]:
    try:
        pivots = np.linalg.cholesky(hessians).diagonal(axis1=1, axis2=2).min(1) ** 2
    except np.linalg.LinAlgError:
        pivots = np.array([_least_pivot(hessian) for hessian in hessians])
    singular = ~(pivots > SINGULAR)
    return Dense(_inverse(np.where(singular[:, None, None], np.eye(hessians.shape[1]), hessians))), singular


def _least_pivot(hessian: Float[np.ndarray, "params params"]) -> float:
    try:
        return float(np.diag(np.linalg.cholesky(hessian)).min() ** 2)
    except np.linalg.LinAlgError:
        return -np.inf


def _inverse(matrices: Float[np.ndarray, "refits n n"]) -> Float[np.ndarray, "refits n n"]:
    """Inverses, infinite where there is none."""
    try:
        return np.linalg.inv(matrices)
    except np.linalg.LinAlgError:
        exact = np.array([np.linalg.matrix_rank(m) < len(m) for m in matrices])
        return np.where(
            exact[:, None, None], np.inf, np.linalg.inv(np.where(exact[:, None, None], np.eye(matrices.shape[1]), matrices))
        )


@eqx.filter_jit
def one_row_metric(fit: Fit, rows: Rows) -> tuple[LowRank, Array]:
    """Each fold's own Hessian where it lacks one linear predictor, and which of them are singular: no inverse is needed."""
    z, change, curvature = _low_rank(fit, rows)
    kept = 1 + change
    return LowRank(z, curvature[:, 0] / kept), kept[:, 0, 0] < SINGULAR


@eqx.filter_jit
def _low_rank(fit: Fit, rows: Rows) -> tuple[Array, Array, Array]:
    """Z `[refits, touched, params]`, V Z Zᵀ, and the blocks of V, `[refits, width, outputs, outputs]`."""
    objective = fit.objective

    def one(index, weight):
        delta = jnp.where(index < objective.num_units, weight - 1.0, 0.0)
        z = objective.rows(index) @ fit.whitener.T
        width, outputs, params = z.shape
        curvature = objective.derivative(fit.theta, index, 2).reshape(width, outputs, outputs) * delta[:, None, None]
        z = z.reshape(width * outputs, params)
        gram = (z @ z.T).reshape(width, outputs, width * outputs)
        return z, jnp.einsum("nkl,nlm->nkm", curvature, gram).reshape(width * outputs, width * outputs), curvature

    return jax.vmap(one)(rows.index, rows.weight)


@eqx.filter_jit
def _hessians(fit: Fit, rows: Rows, chunk: int) -> Array:
    """Whitened Hessians of every fold at θ̂, from the units that leave."""

    def one(args):
        index, weight = args
        delta = jnp.where(index < fit.objective.num_units, weight - 1.0, 0.0)
        change = fit.objective.hessian_change(fit.theta, index, delta)
        return jnp.eye(fit.num_params) + fit.whitener @ change @ fit.whitener.T

    return jax.lax.map(one, (rows.index, rows.weight), batch_size=chunk)


@eqx.filter_jit
def _hessians_at(fit: Fit, rows: Rows, u: Array, lanes: Array, chunk: int) -> Array:
    def one(args):
        index, weight, u = args
        theta = unravel(ravel(fit.theta) + fit.unwhiten(u), fit.theta)
        hessian = fit.objective.hessian(theta, fold_weights(fit, index, weight)) + fit.null_space.T @ fit.null_space
        return fit.whitener @ hessian @ fit.whitener.T

    return jax.lax.map(one, (rows.index[lanes], rows.weight[lanes], u[lanes]), batch_size=chunk)


def fold_weights(fit: Fit, index: Array, weight: Array) -> Array:
    """The weights of one refit, over all units."""
    if len(index) == fit.objective.num_units:
        return weight
    return jnp.ones(fit.objective.num_units).at[index].set(weight, mode="drop")
