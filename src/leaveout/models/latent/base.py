"""Frame of models of latent Gaussian variables.

Refits, held-out losses and predictions, by the engine that computes F.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import linalg

from ..._runtime import (
    ArrayTuple,
    Indices,
    ListedUnits,
    ListedValues,
    NumpyArray,
    PerRefitRow,
    PyTree,
    RowCoefficients,
    RowNumbers,
    ThreeArrays,
    TwoArrays,
    UnitVectors,
    silence,
)
from ...objectives import (
    GRADIENT_DIFFERENCE,
    AbstractClosedForm,
    Costs,
    PerRefit,
    Points,
    RefitFlags,
    RefitValues,
    State,
    ValueAndGradient,
    Vector,
    Weights,
)
from .quadrature import marginal_losses, marginal_means, with_coefficients
from .responses import ResponseRows


class DesignRegressions(NamedTuple):
    """Regressions of the columns X of the design on the effects, given θ and w: effects U and
    residuals R = X − AU.

    They minimise RᵀWR + UᵀU, so that XᵀV⁻¹X = XᵀWR, and, as U is at a minimum, d(XᵀV⁻¹X) = Rᵀ dW R
    − RᵀW dA U − Uᵀ dAᵀ WR. Rows are in an order of the engine's own, except those of `eta`.
    """

    eta: PerRefitRow  # linear predictors at the modes
    design: RowCoefficients
    unit: RowNumbers
    outer: PerRefitRow | float  # weights outside of the integrals
    # W, the curvatures ℓ″ at the modes with the weights inside
    weight: PerRefitRow
    effects: Float[NumpyArray, "couplings coefficients refits rows"]  # U at the effects of each row
    residual: Float[NumpyArray, "coefficients refits rows"]

    @property
    def information(self) -> Float[NumpyArray, "refits coefficients coefficients"]:
        """XᵀV⁻¹X."""
        return np.moveaxis((self.residual * (self.weight * self.outer)) @ self.design, 0, 1)

    def solve(
        self,
    ) -> tuple[PerRefit, Float[NumpyArray, "coefficients refits rows"]]:
        """Compute log|XᵀV⁻¹X|, infinite where X is collinear, and (XᵀV⁻¹X)⁻¹Rᵀ."""
        # least eigenvalue, relative to the largest, beyond rounding
        information = self.information
        collinear_share = 1e-13
        finite = np.isfinite(information).all((1, 2), keepdims=True)
        size, basis = linalg.eigh(np.where(finite, information, 0.0))
        logdet = np.where(size > collinear_share * size[:, -1:], np.log(size), np.inf).sum(1)
        return logdet, np.einsum(
            "ljk,kli->jli", (basis / size[:, None]) @ basis.swapaxes(1, 2), self.residual
        )


class AbstractEngine(ABC):
    """F(θ, w) of a batch of refits, its gradients, and the posterior of the linear predictors.

    `outer_weights` tells whether weights stand outside of the integrals, one for each level of the
    only factor.
    """

    outer_weights: bool

    @property
    @abstractmethod
    def data(self) -> ResponseRows:
        """The rows, in the order of the model."""

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """Costs of a gradient."""

    @abstractmethod
    def look(self, theta: Points, weights: Weights, state: State) -> ValueAndGradient:
        """Compute F, its gradients, and the modes."""

    @abstractmethod
    def jacobian(self, theta: Vector) -> UnitVectors:
        """Compute ∂²F/∂θ∂w at weights one."""

    @abstractmethod
    def predictors(self, theta: Points, weights: Weights, state: State = None) -> ThreeArrays:
        """Compute mean and variance of every row's predictor given the seen rows `[refits, rows]`,
        and τ `[shared, refits, 1]`.
        """

    @abstractmethod
    def covariances(self, theta: Vector) -> TwoArrays:
        """Covariance of all rows' predictors given β and all data, `[rows, rows]`.

        And wℓ″ of each row.
        """

    @abstractmethod
    def regressions(
        self, theta: Points, weights: Weights, state: State = None
    ) -> DesignRegressions:
        """Regress the columns of the design on the effects."""

    @abstractmethod
    def by_loadings(
        self, slopes: Float[NumpyArray, "couplings refits rows"]
    ) -> Float[NumpyArray, "refits hyper"]:
        """Slopes in the parameters of A, from those in the entries of A, of rows as in
        `regressions`.
        """

    def restricted(self, theta: Points, weights: Weights, state: State) -> TwoArrays:
        """Compute ½ log|XᵀV⁻¹X| and its gradients, for a Gaussian response.

        It is infinite where X is collinear.
        """
        lanes = np.arange(len(theta))
        value = np.empty(len(theta))
        gradient = np.zeros_like(theta)
        for chunk in np.array_split(
            lanes, 1 + len(theta) * self.data.design.size // RESTRICTED_ENTRIES
        ):
            regressions = self.regressions(
                theta[chunk], weights[chunk], None if state is None else state[chunk]
            )
            logdet, solved = regressions.solve()
            value[chunk] = 0.5 * logdet
            weight = regressions.weight * regressions.outer
            by_loadings = self.by_loadings(
                -weight * np.einsum("cjli,jli->cli", regressions.effects, solved)
            )
            gradient[chunk, len(regressions.residual) : -1] = by_loadings
            # W = ω e^{−2τ}
            gradient[chunk, -1] = -np.sum(weight * np.sum(regressions.residual * solved, 0), 1)
        return value, gradient

    def restricted_by_weight(
        self, theta: Points, weights: Weights
    ) -> Float[NumpyArray, "refits units"]:
        """Compute the derivatives of ½ log|XᵀV⁻¹X| by the weights of units, at weights one."""
        regressions = self.regressions(theta, weights)
        if isinstance(regressions.outer, float):
            inside = regressions.residual
        else:
            inside = regressions.design.T[:, None]
        slopes = 0.5 * regressions.weight * np.sum(inside * regressions.solve()[1], 0)
        return np.array(
            [
                np.bincount(regressions.unit, refit_slopes, weights.shape[1])
                for refit_slopes in slopes
            ]
        )

    def restricted_alone(
        self,
        theta: Vector,
        unit: Indices,
        run: Indices,
        units: int,
    ) -> Float[NumpyArray, " runs"]:
        """Compute what ½ log|XᵀV⁻¹X| falls by without runs of clusters that are apart, or without
        single rows.

        XᵀV⁻¹X lacks the shares of the clusters, or kkᵀ/c of a row, with k its row of V⁻¹X and c =
        (V⁻¹)ᵢᵢ = w(1 − wv).
        """
        regressions = self.regressions(theta[None], np.ones((1, units)))
        total = lambda part: np.bincount(regressions.unit, part, units)
        (logdet,), solved = regressions.solve()
        weight = regressions.weight[0]
        residual = regressions.residual[:, 0]
        if not self.outer_weights:
            variance = self.predictors(theta[None], np.ones((1, units)))[1][0]
            share = total(weight * np.sum(residual * solved[:, 0], 0)) / (
                1 - total(weight) * variance
            )
            return -0.5 * np.log1p(-share[unit])
        cluster_information = np.array(
            [
                [np.bincount(run, total(weight * r * x)[unit]) for x in regressions.design.T]
                for r in residual
            ]
        )
        return 0.5 * (
            logdet
            - linalg.slogdet(regressions.information[0] - np.moveaxis(cluster_information, 2, 0))[1]
        )


# numbers of rows, columns and refits whose regressions are in memory together
RESTRICTED_ENTRIES = 2**20


def jacobian_by_differences(
    by_weight: Callable[[Points, State], tuple[Float[NumpyArray, "points units"], State]],
    theta: Vector,
) -> UnitVectors:
    """Compute ∂²F/∂θ∂w by central differences of the exact ∂F/∂w, which `by_weight` returns with
    its state.
    """
    columns = []
    state = None
    for k, direction in enumerate(np.eye(len(theta))):
        step = GRADIENT_DIFFERENCE * max(1.0, abs(theta[k]))
        ends, state = by_weight(
            np.stack([theta + step * direction, theta - step * direction]), state
        )
        columns.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(columns, 1)


class AbstractLatentModel(AbstractClosedForm):
    """Base of models of latent Gaussian variables.

    The losses are those of units that are rows, −log p(y_n | all seen).
    """

    @property
    @abstractmethod
    def engine(self) -> Any:
        """The engine, made once."""

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        with silence("all"):
            return self.engine.look(np.asarray(theta, float), np.asarray(weights, float), state)

    def jacobian(self, theta: PyTree) -> UnitVectors:
        return self.engine.jacobian(np.asarray(theta, float))

    def predictor_covariance(self, theta: Vector) -> Float[NumpyArray, "units units"] | None:
        covariance, curvature = self.engine.covariances(np.asarray(theta, float))
        return with_coefficients(covariance, self.engine.data.design, curvature)

    @property
    @abstractmethod
    def _row_units(self) -> RowNumbers:
        """The unit of each row, −1 for rows without a response."""

    @functools.cached_property
    def _basis(self) -> tuple[RowCoefficients, RowNumbers]:
        """Orthonormal basis of the design of the rows that have a response, and the units of these
        rows.
        """
        observed = self._row_units >= 0
        return linalg.qr(self.engine.data.design[observed])[0], self._row_units[observed]

    def _undetermined(self, index: ListedUnits, weight: ListedValues) -> RefitFlags:
        """Say of which refits the rows leave a coefficient open, whose prior is flat."""
        # share of a direction's squares that is rounding
        basis, unit = self._basis
        rounding = 1e-10
        out = (weight == 0) & (index < self.num_units)
        leverages = np.append(np.bincount(unit, np.sum(basis**2, 1), self.num_units), 0.0)
        # else no direction can have left
        undetermined = np.sum(leverages[index] * out, 1) >= 1 - rounding
        for lane in np.flatnonzero(undetermined):
            undetermined[lane] = (
                linalg.norm(basis[np.isin(unit, index[lane][out[lane]])], 2) ** 2 >= 1 - rounding
            )
        return undetermined

    def losses(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        held: Bool[NumpyArray, "refits width"],
        state: State = None,
    ) -> RefitValues:
        mean, variance, tau, rows = self._conditional_moments(theta, weights, index, state)
        row_tau = np.repeat(tau[..., 0], index.shape[1], axis=1)
        losses = marginal_losses(
            self.engine.data.select_rows(rows.ravel()), mean.ravel(), variance.ravel(), row_tau
        )
        return losses.reshape(index.shape)

    def predictions(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        kind: str,
        state: State = None,
    ) -> ListedValues:
        mean, variance, tau, _ = self._conditional_moments(theta, weights, index, state)
        if kind == "link":
            return mean
        return marginal_means(self.engine.data.response, mean, variance, tau)

    def _conditional_moments(
        self, theta: Points, weights: Weights, index: NumpyArray, state: State
    ) -> ArrayTuple:
        """Compute means and variances of the linear predictors of some rows given the seen ones,
        `[refits, width]`.

        Returns them with τ `[shared, refits, 1]`, and the rows, the last one for padding.
        """
        mean, variance, tau = self.engine.predictors(
            np.asarray(theta, float), np.asarray(weights, float), state
        )
        rows = np.minimum(index, mean.shape[1] - 1)
        return *(np.take_along_axis(part, rows, axis=1) for part in (mean, variance)), tau, rows
