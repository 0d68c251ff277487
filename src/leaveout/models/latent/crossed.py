"""Several grouping factors, nested or crossed: F(θ, w) by one Laplace approximation over all random effects together.

    F(θ, w) = Σ_i ω_i ℓ(η_i) + ½|b̂|² + ½ log|M|,      η = e + A b̂,      M = I + Aᵀ diag(ω ℓ″) A,      ω_i = w of row i's unit

with b̂ the mode; this is exact for a Gaussian response. A = Z Λ, with Λ the same for all levels of a factor, so that M consists
of Λ_fᵀ N_fg Λ_g, with N_fg = Σ ωℓ″ z_f z_gᵀ summed over the rows of each pair of levels. The factor with most effects is
eliminated level by level (its block D of M is block diagonal), which leaves a dense matrix of the others' (Bates et al. 2015,
Bates 2024):

    S = M₂₂ − Cᵀ D⁻¹ C,      M⁻¹ = [D⁻¹ + U S⁻¹ Uᵀ, −U S⁻¹; ·, S⁻¹],      U = D⁻¹ C.

Slopes need M⁻¹ at the pairs that occur only: with s_i = ½ a_iᵀM⁻¹a_i, v = ωℓ‴s, r = M⁻¹Aᵀv

    ∂F/∂e = ωℓ′ + v − ωℓ″ A r,      ∂F/∂Λ_f = Σ_levels (Zᵀ ∂F/∂e) b̂ᵀ − (Zᵀ ωℓ′) rᵀ + Σ_g Σ_pairs N_fg Λ_g (M⁻¹)_gf.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from .effects import GroupingFactor
from .grouped import split
from .quadrature import backward, cholesky, forward, marginal_losses
from .responses import Response, ResponseRows

# of Newton's method: largest number of steps, length of a last step, and of a step that is rounding
STEPS, NEAR, ROUNDING = 100, 1e-7, 1e-10
SIDES = 500  # right-hand sides that are solved for at once


class LevelPairs(NamedTuple):
    """Pairs of levels of two factors in the rows: the pair of each row, and the two levels of each pair."""

    of_row: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]


class SchurFactor(NamedTuple):
    """Factor of M: those of the blocks D and of S, and U by pairs of the first factor with each of the others."""

    low: NDArray[np.float64]  # [q, q, levels]
    inverse: NDArray[np.float64]  # D⁻¹ [levels, q, q]
    corner: NDArray[np.float64]
    left: "scipy.sparse.csr_array"

    @property
    def log_root(self) -> float:
        """½ log|M|."""
        return float(np.sum(np.log(np.einsum("iil->il", self.low))) + np.sum(np.log(np.diag(self.corner))))


class CrossedMode(NamedTuple):
    """Minimum of h over the effects.

    It holds b̂ `[effects]`, η, the weights ωℓ″, the sums N by pairs of factors, the factor of M, and h at the minimum.
    """

    b: NDArray[np.float64]
    eta: NDArray[np.float64]
    bend: NDArray[np.float64]
    sums: dict[tuple[int, int], NDArray[np.float64]]
    schur_factor: SchurFactor
    value: float


@dataclass(frozen=True, eq=False)
class CrossedFactors:
    """Rows, their factors, and the unit of each row."""

    data: ResponseRows
    factor_order: tuple[GroupingFactor, ...]  # in the order of θ
    unit: NDArray[np.int64]
    apart: bool = False  # whether weights stand outside of the integral

    @staticmethod
    def of(data: ResponseRows, factors: tuple[GroupingFactor, ...], unit: np.ndarray) -> "CrossedFactors":
        found = CrossedFactors(data, factors, unit)
        rest = found.size - found.ends[1]
        max_dense_effects = 6000  # largest number of effects of the other factors, for which a dense matrix is kept
        if rest > max_dense_effects:
            name = found.factors[0].name
            raise ValueError(
                f"Mixed: {rest} random effects beside those of {name!r} are too many: their matrix is dense, "
                f"up to {max_dense_effects}."
            )
        return found

    @functools.cached_property
    def order(self) -> list[int]:
        """Factors, with the one with most effects first."""
        return sorted(range(len(self.factor_order)), key=lambda k: -self.factor_order[k].q * len(self.factor_order[k].levels))

    @functools.cached_property
    def factors(self) -> list[GroupingFactor]:
        return [self.factor_order[k] for k in self.order]

    @functools.cached_property
    def ends(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(factor.q * len(factor.levels) for factor in self.factors)])

    @property
    def size(self) -> int:
        return int(self.ends[-1])

    @functools.cached_property
    def pairs(self) -> dict[tuple[int, int], LevelPairs]:
        """Pairs of levels of the factors f ≤ g, by (f, g)."""
        found = {}
        for f, one in enumerate(self.factors):
            for g in range(f, len(self.factors)):
                width = len(self.factors[g].levels)
                both, of_row = np.unique(one.code * width + self.factors[g].code, return_inverse=True)
                found[f, g] = LevelPairs(of_row.ravel(), both // width, both % width)
        return found

    @functools.cached_property
    def pattern(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pattern of C in compressed rows: its columns, its row ends, and the order that sorts entries of pairs into it.

        Entries of pairs come one factor after another.
        """
        rows, columns, q = [], [], self.factors[0].q
        for g in range(1, len(self.factors)):
            pairs, width = self.pairs[0, g], self.factors[g].q
            shape = (len(pairs.first), q, width)
            rows.append(np.broadcast_to((pairs.first * q)[:, None, None] + np.arange(q)[:, None], shape).ravel())
            start = self.ends[g] - self.ends[1] + pairs.second * width
            columns.append(np.broadcast_to(start[:, None, None] + np.arange(width), shape).ravel())
        row, column = np.concatenate(rows), np.concatenate(columns)
        order = np.lexsort((column, row))
        return column[order], np.searchsorted(row[order], np.arange(self.ends[1] + 1)), order

    def sums(self, bend: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
        """N_fg `[pairs, q_f, q_g]`."""
        out = {}
        for (f, g), pairs in self.pairs.items():
            one, other = self.factors[f].design, self.factors[g].design
            own = np.empty((len(pairs.first), len(one), len(other)))
            for i in range(len(one)):
                weighed = bend * one[i]
                for j in range(i if f == g else 0, len(other)):
                    own[:, i, j] = np.bincount(pairs.of_row, weighed * other[j], len(pairs.first))
                    if f == g:
                        own[:, j, i] = own[:, i, j]
            out[f, g] = own
        return out

    def factorise(self, sums: dict[tuple[int, int], np.ndarray], roots: list[np.ndarray]) -> SchurFactor:
        """Factor M."""
        q, rest = self.factors[0].q, self.size - self.ends[1]
        block = roots[0].T @ sums[0, 0] @ roots[0] + np.eye(q)
        low = cholesky(np.moveaxis(block, 0, -1))
        inverse = np.moveaxis(np.stack([backward(low, forward(low, one[:, None])) for one in np.eye(q)], 1), -1, 0)
        S = np.eye(rest)
        for f in range(1, len(self.factors)):
            for g in range(f, len(self.factors)):
                pairs, (a, b) = self.pairs[f, g], (self.factors[f].q, self.factors[g].q)
                own = roots[f].T @ sums[f, g] @ roots[g]
                row = (self.ends[f] - self.ends[1] + pairs.first * a)[:, None, None] + np.arange(a)[:, None]
                column = (self.ends[g] - self.ends[1] + pairs.second * b)[:, None, None] + np.arange(b)
                S[row, column] += own
                if f != g:
                    S[column, row] += own
        cross = [roots[0].T @ sums[0, g] @ roots[g] for g in range(1, len(self.factors))]
        turned = [inverse[self.pairs[0, g].first] @ own for g, own in enumerate(cross, 1)]
        C, U = self._compress(cross), self._compress(turned)
        S -= (C.T @ U).toarray()
        return SchurFactor(low, inverse, scipy.linalg.cholesky(S, lower=True, check_finite=False), U)

    def _compress(self, values: list[NDArray]) -> "scipy.sparse.csr_array":
        column, ends, order = self.pattern
        flat = np.concatenate([own.ravel() for own in values])[order]
        return scipy.sparse.csr_array((flat, column, ends), shape=(self.ends[1], self.size - self.ends[1]))

    def solve(self, factor: SchurFactor, vector: np.ndarray) -> np.ndarray:
        """Multiply a vector, or columns, by M⁻¹."""
        q, cut = self.factors[0].q, self.ends[1]
        own = np.einsum("lij,lj...->li...", factor.inverse, vector[:cut].reshape(-1, q, *vector.shape[1:]))
        own = own.reshape(vector[:cut].shape)
        rest = vector[cut:] - factor.left.T @ vector[:cut]
        rest = scipy.linalg.cho_solve((factor.corner, True), rest, check_finite=False)
        return np.concatenate([own - factor.left @ rest, rest])

    def levels(self, vector: np.ndarray) -> list[np.ndarray]:
        """b by factors, `[levels, q]` each."""
        parts = np.split(vector, self.ends[1:-1])
        return [part.reshape(-1, factor.q) for part, factor in zip(parts, self.factors, strict=True)]

    def push(self, vector: np.ndarray, roots: list[np.ndarray]) -> np.ndarray:
        """Compute A b."""
        total = np.zeros(len(self.data.y))
        for factor, root, own in zip(self.factors, roots, self.levels(vector), strict=True):
            effects = own @ root.T
            for j in range(factor.q):
                total += factor.design[j] * effects[factor.code, j]
        return total

    def gather(self, of_rows: np.ndarray) -> list[np.ndarray]:
        """Multiply numbers of rows by Zᵀ; returns `[levels, q]` for each factor."""
        return [
            np.stack([np.bincount(f.code, of_rows * column, len(f.levels)) for column in f.design], 1) for f in self.factors
        ]

    def pull(self, of_rows: np.ndarray, roots: list[np.ndarray]) -> np.ndarray:
        """Multiply numbers of rows by Aᵀ."""
        return np.concatenate([(own @ root).ravel() for own, root in zip(self.gather(of_rows), roots, strict=True)])

    def place(self, theta: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """e, Λ of each factor, and τ `[own, 1]`, at one θ."""
        parts = split(theta[None], self.data, self.factor_order)
        roots = [self.factor_order[k].root(parts.free[k][0]) for k in self.order]
        return self.data.offset + self.data.design @ parts.z[0], roots, parts.tau[0][:, None]

    def mode(self, theta: np.ndarray, omega: np.ndarray, start: np.ndarray | None) -> CrossedMode:
        """Find the minimum of h by Newton's method, with steps halved where h rises.

        The factor of M is reused for as long as steps shrink quickly. At the end it is computed anew.
        """
        (e, roots, tau), data = self.place(theta), self.data
        b = np.zeros(self.size) if start is None else start
        step, size, lowest, stale = np.zeros(self.size), np.inf, np.inf, True
        crossed_factor_reuse = 0.05  # ratio of successive steps above which the factor is computed anew
        for _ in range(STEPS):
            at, near = b - step, size <= NEAR
            eta = e + self.push(at, roots)
            loss, slope, bend = data.response.orders(eta, tau, data.y, (0, 1, 2))
            value = float(omega @ loss + 0.5 * at @ at)
            if not value <= lowest + ROUNDING * (1 + abs(lowest)) and np.isfinite(lowest):
                step = step / 2
                continue
            b, lowest = at, value
            if near and data.response.quadratic:
                break
            if stale or near:
                weights = omega * bend
                sums = self.sums(weights)
                solved = self.factorise(sums, roots)
            if near:
                break
            step = self.solve(solved, self.pull(omega * slope, roots) + at)
            before, size = size, float(np.max(np.abs(step) / (1 + np.abs(at))))
            stale = not (size <= crossed_factor_reuse * before or data.response.quadratic)
        fixed = np.broadcast_to(data.response.constant(tau, data.y)[0] + data.fixed, data.y.shape)
        return CrossedMode(b, eta, weights, sums, solved, lowest + solved.log_root + float(omega @ fixed))

    def inverses(self, factor: SchurFactor) -> tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]:
        """Compute S⁻¹, and M⁻¹ at the pairs in the rows, `[pairs, q_f, q_g]`."""
        inverse = scipy.linalg.lapack.dpotri(factor.corner, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        out, q = {}, self.factors[0].q
        for f in range(1, len(self.factors)):
            for g in range(f, len(self.factors)):
                out[f, g] = inverse[self._places(f, g)]
        spread = self._spread(factor.left, inverse)
        own = factor.inverse.copy()
        ends = self.pattern[1]
        levels = np.arange(len(self.factors[0].levels))
        for i in range(q):
            for j in range(q):  # Σ_k (U S⁻¹)_ik U_jk: rows of one level have the same columns
                row_i, row_j = levels * q + i, levels * q + j
                both = _rows(spread, ends, row_i) * _rows(factor.left.data, ends, row_j)
                counts = (ends[1:] - ends[:-1])[row_i]
                own[:, i, j] += np.bincount(np.repeat(levels, counts), both, len(levels))
        out[0, 0] = own
        back = np.empty(len(spread))
        back[self.pattern[2]] = -spread
        at = 0
        for g in range(1, len(self.factors)):
            pairs, width = self.pairs[0, g], self.factors[g].q
            count = len(pairs.first) * q * width
            out[0, g] = back[at : at + count].reshape(-1, q, width)
            at += count
        return inverse, out

    def _places(self, f: int, g: int) -> tuple[NDArray, NDArray]:
        pairs, (a, b) = self.pairs[f, g], (self.factors[f].q, self.factors[g].q)
        row = (self.ends[f] - self.ends[1] + pairs.first * a)[:, None, None] + np.arange(a)[:, None]
        return row, (self.ends[g] - self.ends[1] + pairs.second * b)[:, None, None] + np.arange(b)

    def _spread(self, remainder: "scipy.sparse.csr_array", inverse: NDArray) -> NDArray:
        """Compute the entries of U S⁻¹ at the entries of U, in the order of U."""
        out, ends = np.empty(remainder.nnz), remainder.indptr
        schur_entries = 2**22  # entries of U S⁻¹ in memory at once
        many = max(1, schur_entries // max(1, inverse.shape[0]))
        for start in range(0, remainder.shape[0], many):
            some = remainder[start : start + many] @ inverse
            stop = min(start + many, remainder.shape[0])
            row = np.repeat(np.arange(stop - start), np.diff(ends[start : stop + 1]))
            out[ends[start] : ends[stop]] = some[row, remainder.indices[ends[start] : ends[stop]]]
        return out

    def leverages(self, inverses: dict[tuple[int, int], np.ndarray], roots: list[np.ndarray]) -> np.ndarray:
        """Compute a_iᵀM⁻¹a_i of all rows, the variance of their predictors given the seen rows."""
        total = np.zeros(len(self.data.y))
        for (f, g), own in inverses.items():
            turned = roots[f] @ own @ roots[g].T
            one, other, of_row = self.factors[f].design, self.factors[g].design, self.pairs[f, g].of_row
            for i in range(len(one)):
                for j in range(len(other)):
                    total += (1 if f == g else 2) * one[i] * other[j] * turned[of_row, i, j]
        return total

    def look(
        self, theta: np.ndarray, weights: np.ndarray, state: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute F, its gradients and the modes of one refit after another."""
        found = [
            self._evaluate(t, w[self.unit] * self.data.size, None if state is None else state[k])
            for k, (t, w) in enumerate(zip(theta, weights, strict=True))
        ]
        value, gradient, modes = zip(*found, strict=True)
        return np.array(value), np.array(gradient), np.array(modes)

    @property
    def work(self) -> float:
        """Approximate number of operations of a gradient."""
        return 200.0 * len(self.data.y) + 3.0 * float(self.size - self.ends[1]) ** 3

    def _evaluate(self, theta: NDArray, omega: NDArray, start: NDArray | None) -> tuple[float, NDArray, NDArray]:
        nothing = np.inf, np.full(len(theta), np.nan), np.zeros(self.size)
        try:
            mode = self.mode(theta, omega, start)
        except (np.linalg.LinAlgError, ValueError):
            return nothing
        _, roots, tau = self.place(theta)
        data, own = self.data, self.data.response
        _, inverses = self.inverses(mode.schur_factor)
        slope, third = own.orders(mode.eta, tau, data.y, (1, 3))
        direct, own_slope, own_bend = own.shared_derivatives(mode.eta, tau, data.y, (0, 1, 2))
        pulled, s = omega * slope, 0.5 * self.leverages(inverses, roots)
        v = omega * third * s
        r = self.solve(mode.schur_factor, self.pull(v, roots)) if v.any() else np.zeros(self.size)
        along = self.push(r, roots)
        e = pulled + v - mode.bend * along
        free: list[NDArray] = [np.zeros(0)] * len(self.factors)
        of_e, of_slope, b, back = self.gather(e), self.gather(pulled), self.levels(mode.b), self.levels(r)
        for f, k in enumerate(self.order):
            full = of_e[f].T @ b[f] - of_slope[f].T @ back[f]
            for g, root in enumerate(roots):
                key, sums = ((f, g), lambda part: part) if f <= g else ((g, f), lambda part: part.swapaxes(1, 2))
                full = full + np.einsum("pij,jk,plk->il", sums(mode.sums[key]), root, sums(inverses[key]))
            free[k] = full[self.factor_order[k].row, self.factor_order[k].column]
        of_tau = direct + s * own_bend - along * own_slope + own.constant(tau, data.y)[1]
        gradient = np.concatenate([e @ data.design, *free, (of_tau * omega).sum(1)])
        return mode.value, gradient, mode.b

    # scores

    def conditional(
        self, theta: np.ndarray, weights: np.ndarray, lane: np.ndarray, unit: np.ndarray, state: np.ndarray | None
    ) -> np.ndarray:
        """Compute −log p(y_i | everything seen) of listed rows, each in a refit, with Gaussian posteriors of effects."""
        return self._each(theta, weights, lane, unit, state, self._alone)

    pointwise = conditional  # for units that are clusters this is summed over their rows

    def joint(
        self, theta: np.ndarray, weights: np.ndarray, lane: np.ndarray, unit: np.ndarray, state: np.ndarray | None
    ) -> np.ndarray:
        """Compute −log p(y_g | everything seen) of all rows of each listed unit."""
        return self._each(theta, weights, lane, unit, state, self._together)

    @functools.cached_property
    def members(self) -> list[NDArray[np.int64]]:
        """The rows of each unit."""
        order = np.argsort(self.unit, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.unit))[:-1])

    def _each(self, theta, weights, lane, unit, state, scored) -> NDArray:
        out = np.zeros(len(unit))
        for k in np.unique(lane):
            here = np.flatnonzero(lane == k)
            out[here] = scored(theta[k], weights[k], unit[here], None if state is None else state[k])
        return out

    def _posterior(self, theta: NDArray, weights: NDArray, start: NDArray | None) -> tuple[CrossedMode, list[NDArray], NDArray]:
        mode = self.mode(theta, weights[self.unit] * self.data.size, start)
        _, roots, tau = self.place(theta)
        return mode, roots, tau

    def predictors(self, theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute mean and variance of every row's predictor given the seen rows `[refits, rows]`, and τ `[own, refits, 1]`."""
        found = [self._predictors(t, w, None) for t, w in zip(theta, weights, strict=True)]
        mean, variance, tau = zip(*found, strict=True)
        return np.array(mean), np.array(variance), np.stack(tau, 1)

    def _predictors(self, theta: NDArray, weights: NDArray, start: NDArray | None) -> tuple[NDArray, NDArray, NDArray]:
        """Linear predictors, leverages and τ of one refit."""
        mode, roots, tau = self._posterior(theta, weights, start)
        return mode.eta, self.leverages(self.inverses(mode.schur_factor)[1], roots), tau

    def covariances(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Covariance of all rows' predictors given β and all data at θ `[params]`, `[rows, rows]`; and ωℓ″ of each row."""
        mode, roots, _ = self._posterior(theta, np.ones(self.unit.max() + 1), None)
        return self.covariance(mode.schur_factor, np.arange(len(self.data.y)), roots), mode.bend

    def effects(self, theta: np.ndarray, codes: list[np.ndarray], designs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of `zᵀu` given all data, at θ `[params]`, for rows with these levels; −1 is a new level."""
        mode, roots, _ = self._posterior(theta, np.ones(self.unit.max() + 1), None)
        mean, variance = np.zeros(len(codes[0])), np.zeros(len(codes[0]))
        for start in range(0, len(mean), SIDES):
            some = slice(start, start + SIDES)
            right = np.zeros((self.size, len(mean[some])))
            for f, (k, root) in enumerate(zip(self.order, roots, strict=True)):
                code, own = codes[k][some], root.T @ designs[k][:, some]
                known = np.flatnonzero(code >= 0)
                for j in range(self.factor_order[k].q):
                    right[self.ends[f] + code[known] * self.factor_order[k].q + j, known] = own[j, known]
                variance[some] += np.where(code >= 0, 0.0, np.sum(own**2, 0))
            mean[some] = mode.b @ right
            variance[some] += np.sum(right * self.solve(mode.schur_factor, right), 0)
        return mean, variance

    def _alone(self, theta: NDArray, weights: NDArray, unit: NDArray, start: NDArray | None) -> NDArray:
        mean, variance, tau = self._predictors(theta, weights, start)
        rows = np.concatenate([self.members[u] for u in unit])
        each = marginal_losses(self.data.select_rows(rows), mean[rows], variance[rows], tau)
        count = [len(self.members[u]) for u in unit]
        return np.bincount(np.repeat(np.arange(len(unit)), count), each, len(unit))

    def _together(self, theta: NDArray, weights: NDArray, unit: NDArray, start: NDArray | None) -> NDArray:
        mode, roots, tau = self._posterior(theta, weights, start)
        out = np.empty(len(unit))
        for k, one in enumerate(unit):
            rows = self.members[one]
            data = self.data.select_rows(rows)
            covariance = self.covariance(mode.schur_factor, rows, roots)
            out[k] = joint_density(data.response, mode.eta[rows], covariance, tau, data)
        return out

    def alone(self, theta: np.ndarray, unit: np.ndarray, joint: bool) -> tuple[np.ndarray, np.ndarray]:
        """Leave each listed unit out by itself, for a quadratic ℓ: the change of F, and the loss of the unit.

        Both come from the posterior N(m, K) of the unit's predictors given all data, from which its own W = ωℓ″ is removed:
        K_c = K (I − WK)⁻¹, m_c = m + K_c W (m − y).
        """
        mode, roots, _ = self._posterior(theta, np.ones(self.unit.max() + 1), None)
        members, first = [self.members[u] for u in unit], 0
        if max(map(len, members)) == 1:
            rows = np.concatenate(members)
            blocks = [(rows, self.leverages(self.inverses(mode.schur_factor)[1], roots)[rows, None, None])]
        else:
            ends = np.cumsum([len(rows) for rows in members])
            parts = np.split(np.arange(len(members)), np.flatnonzero(np.diff(ends // SIDES)) + 1)
            blocks = []
            for part in parts:
                K = self.covariance(mode.schur_factor, np.concatenate([members[k] for k in part]), roots)
                for k in part:
                    first = 0 if k == part[0] else first
                    own = slice(first, first + len(members[k]))
                    blocks.append((members[k], K[None, own, own]))
                    first = own.stop
        found = [self._without(mode, rows, K) for rows, K in blocks]
        away, each = (np.concatenate(part) for part in zip(*found, strict=True))
        return away, away if joint else each

    def _without(self, mode: CrossedMode, rows: NDArray, K: NDArray) -> tuple[NDArray, NDArray]:
        """Compute −log p of y of some rows given all others, jointly `[blocks]`, and its sum over single rows.

        K is the covariance of one block or, for rows by themselves, `[rows, 1, 1]`.
        """
        count, size = K.shape[:2]
        W, apart = mode.bend[rows].reshape(count, size), (mode.eta - self.data.y)[rows].reshape(count, size)
        left = K @ np.linalg.inv(np.eye(size) - W[:, :, None] * K)
        apart = apart + np.einsum("kij,kj->ki", left, W * apart)
        total = left + np.eye(size) / W[:, :, None]
        own, half = np.einsum("kii->ki", total), 0.5 * np.log(2 * np.pi)
        fixed = (self.data.size * self.data.fixed)[rows].reshape(count, size).sum(1) + size * half
        joint = 0.5 * np.linalg.slogdet(total)[1] + 0.5 * np.sum(apart * np.linalg.solve(total, apart[..., None])[..., 0], 1)
        return joint + fixed, 0.5 * np.sum(np.log(own) + apart**2 / own, 1) + fixed

    def covariance(self, solution: SchurFactor, rows: np.ndarray, roots: list[np.ndarray]) -> np.ndarray:
        """A M⁻¹ Aᵀ of some rows."""
        right = np.zeros((self.size, len(rows)))
        for f, (factor, root) in enumerate(zip(self.factors, roots, strict=True)):
            own = root.T @ factor.design[:, rows]
            place = self.ends[f] + factor.code[rows] * factor.q
            for j in range(factor.q):
                right[place + j, np.arange(len(rows))] = own[j]
        return right.T @ self.solve(solution, right)


def joint_density(response: Response, mean: np.ndarray, covariance: np.ndarray, tau: np.ndarray, data: ResponseRows) -> float:
    """−log ∫ Π_i p(y_i | η_i) N(η; m, K) dη, by Laplace's approximation (Rasmussen and Williams 2006, §3.4)."""
    eta, pull, step, lowest = mean, np.zeros(len(mean)), np.zeros(len(mean)), np.inf  # η = m + K pull, for any K
    fixed = data.size @ np.broadcast_to(response.constant(tau, data.y)[0] + data.fixed, data.y.shape)
    for _ in range(STEPS):
        at = pull - step
        eta = mean + covariance @ at
        loss, slope, bend = response.orders(eta, tau, data.y, (0, 1, 2))
        value = float(data.size @ loss + 0.5 * at @ covariance @ at)
        if not value <= lowest + ROUNDING * (1 + abs(lowest)) and np.isfinite(lowest):
            step = step / 2
            continue
        still, pull, lowest = abs(lowest - value) <= 1e-13 * (1 + abs(value)), at, value
        root = np.sqrt(data.size * bend)
        low = np.linalg.cholesky(np.eye(len(eta)) + root[:, None] * covariance * root)
        if still:
            break
        wanted = data.size * bend * (eta - mean) - data.size * slope
        step = pull - (wanted - root * scipy.linalg.cho_solve((low, True), root * (covariance @ wanted)))
    return lowest + float(np.sum(np.log(np.diag(low))) + fixed)


def _rows(values: NDArray, ends: NDArray, rows: NDArray) -> NDArray:
    """Concatenate the values of some compressed rows."""
    counts = ends[rows + 1] - ends[rows]
    first = np.repeat(ends[rows] - np.r_[0, np.cumsum(counts)[:-1]], counts)
    return values[first + np.arange(counts.sum())]
