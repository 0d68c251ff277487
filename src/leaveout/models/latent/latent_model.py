"""Common part of models of latent Gaussian variables: refits, held-out losses and predictions, by `laplace`.

A subclass defines `latent` and the unit of each row.
"""

import abc
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from ..._runtime.jax import PyTree
from ...objectives.closed_form import GRADIENT_DIFFERENCE, AbstractClosedForm, Points, State, ValueAndGradient, Weights
from ...objectives.objective import Costs
from .laplace import LaplaceMode, Latent
from .leave_one_out import MAX_COVARIANCE_ROWS, RowsAlone, alone, rings
from .quadrature import marginal_losses, marginal_means, with_coefficients


class AbstractLatent(AbstractClosedForm):
    """`F(θ, w)` by Laplace's method; θ is β, ψ, φ as in `laplace`."""

    @property
    @abc.abstractmethod
    def latent(self) -> Latent:
        """The latent Gaussian model, built once."""

    @property
    @abc.abstractmethod
    def unit(self) -> Int[np.ndarray, " rows"]:
        """Unit of each row; −1 for rows whose response is missing."""

    def by_row(self, weights: Weights) -> Float[np.ndarray, "refits rows"]:
        """The weights of rows."""
        return np.where(self.unit >= 0, np.asarray(weights, float)[:, self.unit], 0.0)

    def mode(self, theta: Points, weights: Weights, state: State = None) -> LaplaceMode:
        """Refits at their modes."""
        return self.latent.mode(np.asarray(theta, float), self.by_row(weights), state)

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        at = self.mode(theta, weights, state)
        return at.value, self.latent.gradient(at), at.u

    def jacobian(self, theta: PyTree) -> Float[np.ndarray, "units params"]:
        """Compute ∂²F/∂θ∂w by central differences of the exact ∂F/∂w."""
        found, start = np.empty((self.num_units, len(theta))), None
        for k in range(len(theta)):
            step = GRADIENT_DIFFERENCE * max(1.0, abs(theta[k])) * np.eye(len(theta))[k]
            at = self.mode(np.stack([theta + step, theta - step]), np.ones((2, self.num_units)), start)
            ends, start = self._by_unit @ self.latent.by_weight(at).T, at.u
            found[:, k] = (ends[:, 0] - ends[:, 1]) / (2 * step[k])
        return found

    @property
    def _by_unit(self) -> "scipy.sparse.csr_array":
        rows = np.flatnonzero(self.unit >= 0)
        shape = self.num_units, len(self.unit)
        return scipy.sparse.csr_array((np.ones(len(rows)), (self.unit[rows], rows)), shape=shape)

    @property
    def costs(self) -> Costs:
        length = max(self.latent.pattern.length, 1)
        factor_entries = 2**20  # numbers in the factors of a batch, beyond which larger batches save no time
        return Costs(lanes=max(1, factor_entries // length), work=20.0 * length)


class AbstractRows(AbstractLatent):
    """Units that are rows, each with a loss of its own: −log p(y_s | everything seen)."""

    @property
    def costs(self) -> Costs:
        return super().costs._replace(runs=self._runs if self.num_units <= MAX_COVARIANCE_ROWS else None)

    def _runs(self, like: Any, first: np.ndarray, length: np.ndarray) -> Any:
        """Return the pass over the data that computes the changes by leaving out each single unit."""
        if (length > 1).any():
            return None
        ones = np.ones((1, self.num_units))
        start, first = self.mode(np.reshape(like, (1, -1)), ones), np.asarray(first, np.int64)
        ring = rings(start, first, lambda some: self._alone(start, some))
        if ring is None:
            return None

        def told(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = alone(self.mode(np.reshape(theta, (1, -1)), ones, start.u), ring)
            return found.losses[:, None], found.joint

        return told

    def _alone(self, at: LaplaceMode, some: Int[np.ndarray, " some"]) -> RowsAlone:
        """Leave out each of some units, one by one."""
        weights = np.ones((len(some), self.num_units))
        weights[np.arange(len(some)), some] = 0.0
        theta, start = np.repeat(at.theta, len(some), axis=0), np.repeat(at.u, len(some), axis=0)
        losses = self.losses(theta, weights, some[:, None], np.ones((len(some), 1), bool), start)[:, 0]
        return RowsAlone(losses, at.value[0] - self.mode(theta, weights, start).value)

    def predictor_covariance(self, theta: Float[np.ndarray, " params"]) -> Float[np.ndarray, "units units"] | None:
        at = self.mode(theta[None], np.ones((1, self.num_units)))
        curvature = np.where(at.weights[0] == 0, 0.0, at.weights[0] * at.losses.second[0])
        return with_coefficients(self.latent.covariance(at), self.latent.data.design, curvature)

    @property
    def unit(self) -> Int[np.ndarray, " rows"]:
        return np.where(np.asarray(self.units.observed), np.arange(self.num_units), -1)

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: Int[np.ndarray, "refits width"],
        held: Bool[np.ndarray, "refits width"],
        state: State = None,
    ) -> Float[np.ndarray, "refits ..."]:
        mean, variance, tau, some = self._conditional_predictors(theta, weights, index, state)
        own = np.repeat(tau[..., 0], index.shape[1], axis=1)
        found = marginal_losses(self.latent.data.select_rows(some.ravel()), mean.ravel(), variance.ravel(), own)
        return found.reshape(index.shape)

    def predictions(
        self, theta: Points, weights: Weights, index: Int[np.ndarray, "refits width"], kind: str, state: State = None
    ) -> Float[np.ndarray, "refits width"]:
        mean, variance, tau, some = self._conditional_predictors(theta, weights, index, state)
        data = self.latent.data
        return mean if kind == "link" else data.size[some] * marginal_means(data.response, mean, variance, tau)

    def _conditional_predictors(
        self, theta: Points, weights: Weights, index: np.ndarray, state: State
    ) -> tuple[np.ndarray, ...]:
        """Compute means and variances of the linear predictors of some units given the seen units, `[refits, width]`.

        Returns them with φ as τ `[own, refits, 1]`, and the units; padding is replaced by the last unit.
        """
        at, some = self.mode(theta, weights, state), np.minimum(index, self.num_units - 1)
        lost = np.where(np.isfinite(at.value), 0.0, np.nan)[:, None]
        mean, variance = (np.take_along_axis(part, some, axis=1) for part in (at.eta, at.variance))
        return mean + lost, variance, at.phi.T[..., None], some
