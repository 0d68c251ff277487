"""Generalised linear models on columns that every refit standardises by the rows that it sees.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + α, y_n) + κ(w) ½ Σ_j r_j v_j(w) β_j²,
    v_j(w) = Var_w(x_j) / Var_1(x_j)

With an intercept, a shift of the columns changes nothing, and a scale of column j changes only the
penalty on its coefficient: a refit on (x − m(w)) / s(w) is a refit on x whose ridge is multiplied
by v(w). Predictions are the same; coefficients are those of x. The terms of the penalty are further
rows, whose weights depend on w.
"""

from dataclasses import replace
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from ... import GLM, losses
from ...developer import (
    Array,
    Arrays as Arrays,
    Hessian,
    MultiOutputDesign,
    PerListed,
    Predictors,
    PyTree,
    Scalar,
    SparseDesign,
    StackedLoss,
    UnitIndex,
    jnp,
    numpy_of,
)
from ...models import AbstractLinearPredictor

CONSTANT = 1e-12  # share of a column's variance; scikit-learn does not scale constant columns


class BesideSeveral(StackedLoss):
    """Loss of several outputs whose last rows are those of a ridge, `½ Σ_k (η_k − η̄)²`.

    The ridge of a multinomial is that of the differences from the mean over classes, which is zero
    at its minimum.
    """

    def _parts(self, eta):
        """Split into the predictors of units, and the value, gradient and Hessian of the ridge,
        which is its own root.
        """
        units, ridge_predictors = np.split(eta, self.split[:1], axis=-2)
        deviations = ridge_predictors - ridge_predictors.mean(-1, keepdims=True)
        centring = np.eye(eta.shape[-1]) - 1 / eta.shape[-1]
        return units, (
            0.5 * np.sum(deviations**2, -1),
            deviations,
            np.broadcast_to(centring, (*deviations.shape, eta.shape[-1])),
        )

    def derivatives(self, eta, y, orders):
        units, ridge = self._parts(eta)
        return tuple(
            np.concatenate([derivative, ridge[order]], eta.ndim - 2)
            for derivative, order in zip(
                self.units.derivatives(units, y, orders), orders, strict=True
            )
        )

    def roots(self, eta):
        units, ridge = self._parts(eta)
        return np.concatenate([self.units.roots(units), ridge[2]], eta.ndim - 2)

    def ratios(self, eta, reference):
        unit_ratios = self.units.ratios(
            eta[..., : self.split[0], :], reference[..., : self.split[0], :]
        )
        return tuple(
            np.concatenate([ratio, np.ones((*ratio.shape[:-1], self.split[1]))], -1)
            for ratio in unit_ratios
        )


class StandardisedGLM(GLM):
    """A `GLM` under a `Ridge`, whose columns every refit standardises."""

    shown = "GLM"

    def _ratios(self, weights: Arrays, full_variance: Arrays) -> Array:
        """Compute v of many refits or of one, `[..., features]`."""
        x = cast(SparseDesign, self.design)
        total = weights.sum(-1)[..., None]
        mean, square = ((weights @ x**k)[..., : self.num_features] / total for k in (1, 2))
        variance = square - mean**2
        constant = (full_variance == 0) | (variance <= CONSTANT * full_variance)
        xp = numpy_of(variance)
        return xp.where(constant, 1.0, variance / xp.where(full_variance == 0, 1.0, full_variance))

    @property
    def _variance(self) -> np.ndarray:
        """Variance of each column; zero for a column that is constant up to rounding."""
        if not isinstance(self.design, SparseDesign):
            return self.design[:, : self.num_features].var(0)
        level, square = (
            (self.design**k).pull(np.ones((1, self.num_units)))[0] / self.num_units for k in (1, 2)
        )
        variance = (square - level**2)[: self.num_features]
        return np.where(variance <= CONSTANT * square[: self.num_features], 0.0, variance)

    def _ridges(self) -> np.ndarray:
        second = self.penalty.second(self.num_features)
        return numpy_of(second).diag(second)

    @property
    def predictors(self) -> Predictors | None:
        model = super().predictors
        features = self.num_features
        if model is None:
            return None
        ridges = self._ridges()
        full_variance = self._variance

        def weigh(weights):
            omega, kappa = self._weigh(weights)
            ratios = self._ratios(weights, full_variance)
            return np.concatenate([omega, kappa[:, None] * ridges * ratios], 1), kappa

        rows: Any = self.lines.below(np.eye(features, self.design.shape[1]))
        kind = StackedLoss
        if self.outputs > 1:
            rows = MultiOutputDesign(rows, self.outputs)
            kind = BesideSeveral
        return replace(
            model,
            design=rows,
            loss=kind(model.unit_loss, losses.Squared(), (self.num_units, features)),
            penalty=np.zeros_like(model.penalty),
            weigh=weigh,
            separate=False,
        )

    def _symmetries(self, theta):
        K, q = np.shape(theta) if self.classes else (0, 0)
        if K:
            return np.kron(np.ones((1, K)), np.eye(q)) / np.sqrt(K)
        return super()._symmetries(theta)

    @property
    def low_rank(self) -> bool:
        return False

    def _ridge_growth(self, weights: Arrays) -> Array:
        """Growth of the ridges with the weights."""
        return (
            self._weigh(weights, jnp)[1]
            * self._ridges()
            * (self._ratios(weights, self._variance) - 1)
        )

    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        if self.classes:
            theta = theta - theta.mean(0)
        return super().loss(theta, weights) + 0.5 * jnp.sum(
            self._ridge_growth(weights) * self._coef(theta) ** 2
        )

    def hessian(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Hessian:
        if self.classes:
            return AbstractLinearPredictor.hessian(self, theta, weights)
        return super().hessian(theta, weights) + jnp.diag(
            jnp.pad(self._ridge_growth(weights), (0, self.design.shape[1] - self.num_features))
        )

    def perturbation(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Scalar:
        return AbstractLinearPredictor.perturbation(self, theta, index, delta)

    def hessian_change(self, theta: PyTree, index: UnitIndex, delta: PerListed) -> Hessian:
        return AbstractLinearPredictor.hessian_change(self, theta, index, delta)
