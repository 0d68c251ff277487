"""Generalised linear models on columns that every refit standardises by the rows that it sees.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + α, y_n) + κ(w) ½ Σ_j r_j v_j(w) β_j²,      v_j(w) = Var_w(x_j) / Var_1(x_j)

With an intercept, a shift of the columns changes nothing, and a scale of column j changes only the penalty on its coefficient:
a refit on (x − m(w)) / s(w) is a refit on x whose ridge is multiplied by v(w). Predictions are the same; coefficients are those
of x. The terms of the penalty are further rows, whose weights depend on w.
"""

from dataclasses import replace
from typing import cast

import numpy as np
from jaxtyping import Float, Int

from ..._runtime.jax import Array, Arrays as Arrays, PyTree, Scalar, jnp, numpy_of
from ...linalg.design import Beside, CachedLoss, Predictors
from ...linalg.sparse_design import SparseDesign
from ...objectives.objective import AbstractLinearPredictor
from . import losses
from .glm import GLM

CONSTANT = 1e-12  # share of a column's variance; scikit-learn does not scale constant columns


class StandardisedGLM(GLM):
    """A `GLM` of one output under a `Ridge`, whose columns every refit standardises."""

    shown = "GLM"

    def _ratios(self, weights: Arrays) -> Array:
        """Compute v of many refits or of one, `[..., features]`."""
        x, total = cast(SparseDesign, self.design), weights.sum(-1)[..., None]
        mean, square = ((weights @ x**k)[..., : self.num_features] / total for k in (1, 2))
        whole, variance = self._variance, square - mean**2
        constant, xp = (whole == 0) | (variance <= CONSTANT * whole), numpy_of(variance)
        return xp.where(constant, 1.0, variance / xp.where(whole == 0, 1.0, whole))

    @property
    def _variance(self) -> np.ndarray:
        """Variance of each column; zero for a column that is constant up to rounding."""
        if not isinstance(self.design, SparseDesign):
            return self.design[:, : self.num_features].var(0)
        level, square = ((self.design**k).pull(np.ones((1, self.num_units)))[0] / self.num_units for k in (1, 2))
        found = (square - level**2)[: self.num_features]
        return np.where(found <= CONSTANT * square[: self.num_features], 0.0, found)

    def _ridges(self) -> np.ndarray:
        second = self.penalty.second(self.num_features)
        return numpy_of(second).diag(second)

    @property
    def predictors(self) -> Predictors | None:
        known, features = super().predictors, self.num_features
        if known is None or known.design.outputs > 1:
            return None
        ridges, offset = self._ridges(), known.offset

        def weigh(weights):
            omega, kappa = self._weigh(weights)
            return np.concatenate([omega, kappa[:, None] * ridges * self._ratios(weights)], axis=1), kappa

        return replace(
            known,
            design=self.lines.below(np.eye(features, self.design.shape[1])),
            offset=np.append(offset, np.zeros(features)) if np.ndim(offset) else offset,
            loss=Beside(known.unit_loss, CachedLoss(losses.Squared()), (self.num_units, features)),
            penalty=np.zeros_like(known.penalty),
            weigh=weigh,
            separate=False,
        )

    @property
    def low_rank(self) -> bool:
        return False

    def _further(self, weights: Arrays) -> Array:
        """Growth of the ridges with the weights."""
        return self._weigh(weights, jnp)[1] * self._ridges() * (self._ratios(weights) - 1)

    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        return super().loss(theta, weights) + 0.5 * jnp.sum(self._further(weights) * self._coef(theta) ** 2)

    def hessian(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Float[Array, "params params"]:
        pad = self.design.shape[1] - self.num_features
        return super().hessian(theta, weights) + jnp.diag(jnp.pad(self._further(weights), (0, pad)))

    def perturbation(self, theta: PyTree, index: Int[Arrays, " width"], delta: Float[Arrays, " width"]) -> Scalar:
        return AbstractLinearPredictor.perturbation(self, theta, index, delta)

    def hessian_change(
        self, theta: PyTree, index: Int[Arrays, " width"], delta: Float[Arrays, " width"]
    ) -> Float[Array, "params params"]:
        return AbstractLinearPredictor.hessian_change(self, theta, index, delta)
