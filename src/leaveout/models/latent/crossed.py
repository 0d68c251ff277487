"""Several grouping factors, nested or crossed: F(θ, w) by one Laplace approximation over all random
effects together.

The effects of all levels are latent variables u of `laplace`, with u ~ N(0, I) and A = Z Λ, where Λ
is the same for all levels of a factor. This is exact for a Gaussian response.
"""

import functools
from typing import Self

import numpy as np
import scipy
from numpy import linalg
from numpy.typing import NDArray

from ..._runtime import (
    HALF_LOG_TAU,
    ArrayList,
    NumpyArray,
    TwoArrays,
    join,
    members_by_label,
    record,
    slices,
)
from ...linalg import solve_each
from ...objectives import State
from .effects import GroupingFactor, split
from .laplace import Field, Incidence, LaplaceEngine, LaplaceMode, Latent
from .modes import ValueAndSteps, newton
from .quadrature import marginal_losses
from .responses import ResponseRows

SIDES = 500  # right-hand sides that are solved for at once


@record
class CrossedFactors(LaplaceEngine):
    """Rows, their factors, and the unit of each row."""

    factors: tuple[GroupingFactor, ...]
    outer_weights = False  # whether weights stand outside of the integral

    @classmethod
    def build(
        cls,
        data: ResponseRows,
        factors: tuple[GroupingFactor, ...],
        unit: NumpyArray,
        incidence: Incidence | None = None,
    ) -> Self:
        """Make the engine; `incidence` is that of the same factors with other entries of Λ
        free.
        """
        ends = np.cumsum([0, *(factor.q * len(factor.levels) for factor in factors)])
        # effects whose matrix is a dense front of H
        largest = int(np.argmax(np.diff(ends)))
        max_dense_effects = 6000
        num_dense = int(ends[-1] - np.diff(ends)[largest])
        if num_dense > max_dense_effects:
            raise ValueError(
                f"Mixed: {num_dense} random effects beside those of {factors[largest].name!r} are too many: their matrix is dense, "
                f"up to {max_dense_effects}."
            )
        if incidence is None:
            index = [
                end + f.code * f.q + j
                for f, end in zip(factors, ends[:-1], strict=True)
                for j in range(f.q)
            ]
            terms = [scipy.sparse.eye_array(int(ends[-1]), format="csr")]
            incidence = Incidence(
                np.array(index), terms, np.arange(ends[largest], ends[largest + 1])
            )
        parts = np.cumsum([0, *(factor.q for factor in factors)])
        *bounds, count = np.cumsum([len(factor.row) for factor in factors])

        def loadings(psi: NDArray) -> NDArray:
            free = np.split(psi, bounds, axis=1)
            return np.concatenate(
                [f.rotate(entries, f.design) for f, entries in zip(factors, free, strict=True)]
            )

        def by_psi(slopes: NDArray) -> NDArray:
            row_slopes = [
                f.by_free(slopes[first:], f.design)
                for f, first in zip(factors, parts[:-1], strict=True)
            ]
            return np.concatenate([np.sum(part, -1) for part in row_slopes]).T

        field = Field(
            incidence.terms,
            lambda psi: (np.ones((len(psi), 1)), np.zeros((len(psi), 1, count))),
            lambda psi: (np.zeros(len(psi)), np.zeros_like(psi)),
            size=count,
        )
        return cls(
            Latent(data, incidence, field, loadings, by_psi), unit, int(unit.max()) + 1, factors
        )

    # scores

    def conditional(
        self, theta: NDArray, weights: NDArray, lane: NDArray, unit: NDArray, state: State
    ) -> NDArray:
        """Compute −log p(y_i | everything seen) of the rows of listed units, summed, each in a
        refit.
        """
        mean, variance, tau = self.predictors(theta, weights, state)
        rows = np.concatenate([self.members[u] for u in unit])
        place = np.repeat(np.arange(len(unit)), np.bincount(self.unit)[unit])
        row_lane = lane[place]
        losses = marginal_losses(
            self.data.select_rows(rows),
            mean[row_lane, rows],
            variance[row_lane, rows],
            tau[:, row_lane, 0],
        )
        return np.bincount(place, losses, len(unit))

    pointwise = conditional

    def joint(
        self, theta: NDArray, weights: NDArray, lane: NDArray, unit: NDArray, state: State
    ) -> NDArray:
        """Compute −log p(y_g | everything seen) of all rows of each listed unit."""
        out = np.zeros(len(unit))
        for k in np.unique(lane):
            mode = self.mode(theta[[k]], weights[[k]], None if state is None else state[[k]])
            for place in np.flatnonzero(lane == k):
                rows = self.members[unit[place]]
                data = self.data.select_rows(rows)
                covariance = self.latent.covariance(mode, rows)
                tau = mode.refits.tau[:, 0]
                out[place] = joint_density(mode.eta[0, rows], covariance, tau, data)
        return out

    @functools.cached_property
    def members(self) -> list[NDArray[np.int64]]:
        """The rows of each unit."""
        return members_by_label(self.unit)

    def effects(self, theta: NumpyArray, codes: ArrayList, designs: ArrayList) -> TwoArrays:
        """Mean and variance of `zᵀu` given all data, at θ `[params]`, for rows with these levels.

        −1 is a new level.
        """
        mode = self.full_mode(theta)
        free = split(theta[None], self.data, self.factors).free
        mean = np.zeros(len(codes[0]))
        variance = np.zeros(len(codes[0]))
        for rows in slices(len(mean), SIDES):
            end = 0
            right = np.zeros((mode.u.shape[1], len(mean[rows])))
            for factor, lam, code, design in zip(self.factors, free, codes, designs, strict=True):
                loadings = factor.rotate(lam[0], design[:, rows])
                seen = np.flatnonzero(code[rows] >= 0)
                for j in range(factor.q):
                    right[end + code[rows][seen] * factor.q + j, seen] = loadings[j, seen]
                variance[rows] += np.where(code[rows] >= 0, 0.0, np.sum(loadings**2, 0))
                end += factor.q * len(factor.levels)
            mean[rows] = mode.u[0] @ right
            variance[rows] += np.sum(right * mode.solver.solve(right[None])[0], 0)
        return mean, variance

    @property
    def keeps_factors(self) -> bool:
        return not self.data.response.quadratic  # few refits at a time are computed then

    def modes(self, theta: NumpyArray) -> State:
        """Modes given all data."""
        return self.full_mode(theta).starts(False)

    def alone(self, theta: NumpyArray, unit: NumpyArray, joint: bool, start: State) -> TwoArrays:
        """Leave each listed unit out by itself, for a quadratic ℓ: the change of F, and the loss of
        the unit.

        Both come from the posterior N(m, K) of the unit's predictors given all data, from which its
        own W = ωℓ″ is removed: K_c = K (I − WK)⁻¹, m_c = m + K_c W (m − y).
        """
        mode = self.mode(theta[None], np.ones((1, self.num_units)), start)
        members = [self.members[u] for u in unit]
        if max(map(len, members)) == 1:
            rows = np.concatenate(members)
            blocks = [(rows, mode.variance[0, rows, None, None])]
        else:
            ends = np.cumsum([len(rows) for rows in members])
            blocks = []
            for part in np.split(
                np.arange(len(members)), np.flatnonzero(np.diff(ends // SIDES)) + 1
            ):
                K = self.latent.covariance(mode, np.concatenate([members[k] for k in part]))
                last = 0
                for k in part:
                    block = slice(last, last := last + len(members[k]))
                    blocks.append((members[k], K[None, block, block]))
        changes, losses = join([self._without(mode, rows, K) for rows, K in blocks])
        return changes, changes if joint else losses

    def _without(self, mode: LaplaceMode, rows: NDArray, K: NDArray) -> tuple[NDArray, NDArray]:
        """Compute −log p of y of some rows given all others, jointly `[blocks]`, and its sum over
        single rows.

        K is the covariance of one block or, for rows by themselves, `[rows, 1, 1]`.
        """
        count, size = K.shape[:2]
        data = self.data
        W, residual = (
            part[0, rows].reshape(count, size) for part in (mode.losses[2], mode.eta - data.y)
        )
        cavity = K @ linalg.inv(np.eye(size) - W[:, :, None] * K)
        residual = residual + np.einsum("kij,kj->ki", cavity, W * residual)
        total = cavity + np.eye(size) / W[:, :, None]
        variances = np.einsum("kii->ki", total)
        fixed = (data.size * data.fixed)[rows].reshape(count, size).sum(1) + size * HALF_LOG_TAU
        joint = 0.5 * linalg.slogdet(total)[1] + 0.5 * np.sum(
            residual * solve_each(total, residual), 1
        )
        return joint + fixed, 0.5 * np.sum(np.log(variances) + residual**2 / variances, 1) + fixed


def joint_density(
    mean: NumpyArray,
    covariance: NumpyArray,
    tau: NumpyArray,
    data: ResponseRows,
) -> float:
    """−log ∫ Π_i p(y_i | η_i) N(η; m, K) dη, by Laplace's approximation (Rasmussen and Williams
    2006, §3.4).
    """
    low = np.zeros_like(covariance)
    value = np.inf

    def look(dual: NumpyArray) -> ValueAndSteps:
        """Evaluate at η = m + K pull, for any K."""
        nonlocal low, value
        shift = covariance @ dual
        loss, slope, curvature = data.response.orders(mean + shift, tau, data.y, (0, 1, 2))
        value = float(data.size @ loss + 0.5 * dual @ shift)
        root = np.sqrt(data.size * curvature)
        low = linalg.cholesky(np.eye(len(mean)) + root[:, None] * covariance * root)
        target = data.size * curvature * shift - data.size * slope
        solved = scipy.linalg.cho_solve((low, True), root * (covariance @ target))
        return np.array(value), lambda fresh: dual - (target - root * solved)

    look(newton(look, np.zeros(len(mean)))[0])
    fixed = data.size @ np.broadcast_to(data.constant(tau), data.y.shape)
    return value + float(np.sum(np.log(np.diag(low))) + fixed)
