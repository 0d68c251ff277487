"""Frame of models of latent Gaussian variables: refits, held-out losses and predictions, by the engine that computes F."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ..._runtime.jax import PyTree
from ...objectives.closed_form import GRADIENT_DIFFERENCE, AbstractClosedForm, Points, State, ValueAndGradient, Weights
from ...objectives.objective import Costs
from .quadrature import marginal_losses, marginal_means, with_coefficients
from .responses import ResponseRows


class AbstractEngine(abc.ABC):
    """F(θ, w) of a batch of refits, its gradients, and the posterior of the linear predictors."""

    @property
    @abc.abstractmethod
    def data(self) -> ResponseRows:
        """The rows, in the order of the model."""

    @property
    @abc.abstractmethod
    def costs(self) -> Costs:
        """Costs of a gradient."""

    @abc.abstractmethod
    def look(self, theta: Points, weights: Weights, state: State) -> ValueAndGradient:
        """Compute F, its gradients, and the modes."""

    @abc.abstractmethod
    def jacobian(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, "units params"]:
        """Compute ∂²F/∂θ∂w at weights one."""

    @abc.abstractmethod
    def predictors(self, theta: Points, weights: Weights, state: State = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute mean and variance of every row's predictor given the seen rows `[refits, rows]`, and τ `[own, refits, 1]`."""

    @abc.abstractmethod
    def covariances(self, theta: Float[np.ndarray, " params"]) -> tuple[np.ndarray, np.ndarray]:
        """Covariance of all rows' predictors given β and all data, `[rows, rows]`; and wℓ″ of each row."""

    @abc.abstractmethod
    def coefficients(self, theta: Float[np.ndarray, " params"]) -> tuple[np.ndarray, np.ndarray]:
        """Information XᵀV⁻¹X on the coefficients given θ's other parts, V⁻¹ from ℓ″ at the modes; and η there, of each row."""


def jacobian_by_differences(
    by_weight: Callable[[Points, State], tuple[Float[np.ndarray, "points units"], State]], theta: Float[np.ndarray, " params"]
) -> Float[np.ndarray, "units params"]:
    """Compute ∂²F/∂θ∂w by central differences of the exact ∂F/∂w, which `by_weight` returns with its state."""
    found, state = [], None
    for k, one in enumerate(np.eye(len(theta))):
        step = GRADIENT_DIFFERENCE * max(1.0, abs(theta[k]))
        ends, state = by_weight(np.stack([theta + step * one, theta - step * one]), state)
        found.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(found, axis=1)


class AbstractLatentModel(AbstractClosedForm):
    """Base of models of latent Gaussian variables; the losses are those of units that are rows, −log p(y_n | all seen)."""

    @property
    @abc.abstractmethod
    def engine(self) -> Any:
        """The engine, made once."""

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        with np.errstate(all="ignore"):
            return self.engine.look(np.asarray(theta, float), np.asarray(weights, float), state)

    def jacobian(self, theta: PyTree) -> Float[np.ndarray, "units params"]:
        return self.engine.jacobian(np.asarray(theta, float))

    def predictor_covariance(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, "units units"] | None:
        own, curvature = self.engine.covariances(np.asarray(theta, float))
        return with_coefficients(own, self.engine.data.design, curvature)

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Float[np.ndarray, "refits ..."]:
        mean, variance, tau, some = self._given_seen(theta, weights, index, state)
        own = np.repeat(tau[..., 0], index.shape[1], axis=1)
        found = marginal_losses(self.engine.data.select_rows(some.ravel()), mean.ravel(), variance.ravel(), own)
        return found.reshape(index.shape)

    def predictions(
        self, theta: Points, weights: Weights, index: Int[np.ndarray, "refits width"], kind: str, state: State = None
    ) -> Float[np.ndarray, "refits width"]:
        mean, variance, tau, _ = self._given_seen(theta, weights, index, state)
        return mean if kind == "link" else marginal_means(self.engine.data.response, mean, variance, tau)

    def _given_seen(self, theta: Points, weights: Weights, index: np.ndarray, state: State) -> tuple[np.ndarray, ...]:
        """Compute means and variances of the linear predictors of some rows given the seen ones, `[refits, width]`.

        Returns them with τ `[own, refits, 1]`, and the rows; padding is replaced by the last row.
        """
        mean, variance, tau = self.engine.predictors(np.asarray(theta, float), np.asarray(weights, float), state)
        some = np.minimum(index, mean.shape[1] - 1)
        return *(np.take_along_axis(part, some, axis=1) for part in (mean, variance)), tau, some
