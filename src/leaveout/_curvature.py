"""`H_w⁻¹` for a batch of refits, three ways, in the anchor's whitened coordinates.

With H = L Lᵀ and u = Lᵀ(θ − θ̂), the anchor's Hessian is the identity, gradients are L⁻¹∇F, lengths are
H-norms, and a fold's Hessian at θ̂ is I + Zᵀ V Z, Z the whitened rows that the fold touches:

    Anchor    the identity: the chord's metric
    LowRank   by Woodbury, for few rows (for one row this is ALO)
    Dense     by Cholesky
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._fit import Fit
from ._objective import AbstractLinearPredictor
from ._plan import Rows

SINGULAR = 1e-10  # a fold that keeps less than this share of the information along some direction determines nothing there


class AbstractMetric(eqx.Module):
    """A batch of inverse Hessians; `solve` is for one of them, and is mapped over the batch."""

    @abc.abstractmethod
    def solve(self, gradient: Float[Array, " params"]) -> Float[Array, " params"]:
        """The step that the gradient asks for."""


class Anchor(AbstractMetric):
    """The full fit's Hessian, for every refit."""

    def solve(self, gradient):
        return gradient


class LowRank(AbstractMetric):
    """`(I + Zᵀ V Z)⁻¹ = I − Zᵀ C Z` with `C = (I + V Z Zᵀ)⁻¹ V`."""

    rows: Float[Array, "*refits touched params"]
    core: Float[Array, "*refits touched touched"]

    def solve(self, gradient):
        return gradient - self.rows.T @ (self.core @ (self.rows @ gradient))


class Dense(AbstractMetric):
    """The Cholesky factor of the fold's whitened Hessian."""

    factor: Float[Array, "*refits params params"]

    def solve(self, gradient):
        return jax.scipy.linalg.cho_solve((self.factor, True), gradient)


def is_narrow(fit: Fit, width: int) -> bool:
    """Is Woodbury on the held-out rows cheaper than a factor of the fold's own?"""
    objective = fit.objective
    if not (isinstance(objective, AbstractLinearPredictor) and objective.low_rank):
        return False
    touched = width * objective.outputs
    return touched == objective.outputs or 4 * touched <= fit.num_params


@eqx.filter_jit
def own_metric(fit: Fit, rows: Rows) -> tuple[AbstractMetric, Bool[Array, " refits"]]:
    """Each fold's own Hessian at θ̂, and which of them are singular or indefinite."""
    delta = jnp.where(rows.index < fit.objective.num_units, rows.weight - 1.0, 0.0)
    make = _low_rank if is_narrow(fit, rows.index.shape[1]) else _dense
    return jax.vmap(make, (None, 0, 0))(fit, rows.index, delta)


def _low_rank(fit: Fit, index: Array, delta: Array) -> tuple[LowRank, Array]:
    objective = fit.objective
    z = objective.rows(index) @ fit.whitener.T  # [width, outputs, params]
    width, outputs, params = z.shape
    curvature = objective.derivative(fit.theta, index, 2).reshape(width, outputs, outputs) * delta[:, None, None]
    z = z.reshape(width * outputs, params)
    if width * outputs == 1:
        v = curvature.reshape(1, 1)
        kept = 1 + v * (z @ z.T)
        return LowRank(z, v / kept), kept[0, 0] < SINGULAR
    gram = (z @ z.T).reshape(width, outputs, width * outputs)
    change = jnp.einsum("nkl,nlm->nkm", curvature, gram).reshape(width * outputs, width * outputs)
    inverse = jnp.linalg.inv(jnp.eye(width * outputs) + change)
    blocks = inverse.reshape(width * outputs, width, outputs)
    core = jnp.einsum("mnk,nkl->mnl", blocks, curvature).reshape(width * outputs, width * outputs)
    return LowRank(z, core), ~(jnp.abs(inverse).max() < 1 / SINGULAR)


def _dense(fit: Fit, index: Array, delta: Array) -> tuple[Dense, Array]:
    change = fit.objective.hessian_change(fit.theta, index, delta)
    factor = jnp.linalg.cholesky(jnp.eye(fit.num_params) + fit.whitener @ change @ fit.whitener.T)
    return Dense(factor), ~(jnp.diagonal(factor).min() ** 2 > SINGULAR)
