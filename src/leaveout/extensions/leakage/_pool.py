"""The linear system of all folds.

The share of leaked records on one grid, losses weighted by the numbers tested.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import linalg
from scipy.optimize import brentq, nnls

from ...developer import FloatArray, NumpyArray, record
from ._binomial import NEGLIGIBLE, stratified_matrix
from ._injection import FoldInjection
from ._models import Shares
from ._run import FoldLosses, LevelDraws, LevelNumbers
from ._solve import Curve, Shape, System

ORDER = 3  # order of the trend filter, which extrapolates e by a parabola, as its drop slows down
NOISE_DRAWS = 200  # draws from the losses' Monte-Carlo law for the error of ê₀
LevelPoints = Float[NumpyArray, "levels points"]
Grid = Float[NumpyArray, " points"]


@record
class PooledSystem:
    """The linear system `b = A e` over all folds.

    `grid` `[points]` are shares of leaked units; `A` `[levels, points]`, `b` `[levels]`; `noise`
    `[levels, levels]` is the Monte-Carlo covariance of b; `fold_matrices` the A of every fold,
    `weight` the weight of its losses; `combinations` the losses of each fold `[levels, draws]` on
    records that are the test clusters' own.
    """

    grid: Grid
    A: LevelPoints
    b: LevelNumbers
    noise: Float[NumpyArray, "levels levels"]
    fold_matrices: list[LevelPoints]
    weight: Float[NumpyArray, " folds"]
    combinations: list[LevelDraws]
    order: int
    unseen: float  # probability that a set without injection has no leak

    @property
    def system(self) -> System:
        return System(self.A, self.order)

    @property
    def present_share(self) -> float:
        """The mean share of leaked units without injection."""
        return float(self.A[0] @ self.grid)

    def solve(self, shape: Shape | None) -> Curve:
        system = self.system
        return system.solve(self.b, system.choose(self.b, self.noise), shape)

    def monte_carlo_error(self, shape: Shape, seed: int) -> float:
        """Standard deviation of ê₀ over losses drawn from N(A ê, noise), with λ and the active
        constraints chosen anew.

        Losses are not drawn around b, whose noise would then count twice and make λ too small.
        """
        values, vectors = linalg.eigh(self.noise)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        rng = np.random.default_rng([seed, 2])
        system = self.system
        sign = -1.0 if shape.rising else 1.0
        simulated = (
            self.A @ self.solve(shape).values
            + sign * rng.standard_normal((NOISE_DRAWS, len(self.b))) @ root.T
        )
        estimates = [
            system.solve(b, system.choose(b, self.noise), shape).estimate for b in simulated
        ]
        return float(np.std(estimates, ddof=1))

    def highest(self, shape: Shape, mates: float, clusters: int) -> float:
        """Compute the highest loss (lowest score) with no leak that the levels do not exclude;
        infinite if they exclude none.

        A loss that falls with the number m of a record's mates in training, by less with each
        further one (completely monotone), is a mixture of (1 − κ)ᵐ, and then e(x) = a + ∫ exp(−κ M
        x) μ(dκ) in the share x of leaked records, with M = `mates` the number of mates at x = 1.
        The first mate alone counts where κ is 1. The largest e(0) is taken whose squared misfit, in
        standard errors, exceeds the least one by one, or by its mean over levels if that is more.

        Which of K clusters have how many of the λ mates that are expected without injection is a
        draw. The mean of (1 − κ)ᵐ over clusters has the relative standard deviation √((exp(λ κ²) −
        1)/K), and is taken to be two of these lower: where no cluster need be without mates, the
        levels tell nothing of a first mate. The learner's locality limits κ, to eight times the
        largest rate of a single exponential that fits as well as the best one.
        """
        sign = -1.0 if shape.rising else 1.0
        losses = sign * self.b
        spread = np.ptp(self.b)
        if spread == 0:
            return float(self.b[0])
        # κ; the slowest of these are straight lines
        rates = np.append(0.0, np.geomspace(0.005, 1.0, 40))
        floor = losses.min() - 8 * spread  # so low that a is above it
        # 1e-4: share of the mean variance of a level, as few draws leave directions without any
        jitter = 1e-4 * np.trace(self.noise) / len(losses) + 1e-24 * spread**2
        root = linalg.cholesky(self.noise + jitter * np.eye(len(losses)))
        curves = linalg.solve(root, self.A @ np.exp(-np.outer(self.grid, mates * rates)))
        targets = linalg.solve(root, losses - floor)
        misfits = np.array([nnls(curves[:, [0, k]], targets)[1] ** 2 for k in range(1, len(rates))])
        # 4: two standard deviations of the rate
        fitting = misfits <= misfits.min() + 4 * max(1.0, misfits.min() / len(losses))
        locality = 8.0  # ratio of the fastest rate in a mixture to the rate that fits it
        possible = rates <= min(1.0, locality * rates[1:][fitting].max()) * (1 + 1e-9)
        deviation = np.sqrt(np.expm1(mates * self.present_share * rates**2) / clusters)
        share = np.maximum(1 - 2 * deviation, 0.0)[possible]
        highest = np.inf
        if share.all():
            highest = self._extreme(curves[:, possible] * share, targets, spread) + floor
        bound = shape.low if shape.rising else shape.high
        if bound is not None:
            highest = min(highest, sign * bound)
        return sign * highest

    @staticmethod
    def _extreme(curves: FloatArray, targets: FloatArray, spread: float) -> float:
        """Return the largest sum of the weights of the curves with a misfit near the least one."""
        steps = 50 * curves.shape[1]
        weights, misfit = nnls(curves, targets, maxiter=steps)
        limit = misfit**2 + max(1.0, misfit**2 / len(targets))
        scale = 1e4 * np.abs(curves).max()  # weight of the equation that gives the sum
        system = np.vstack([curves, np.full(curves.shape[1], scale)])

        def excess(value: float) -> float:
            held = nnls(system, np.append(targets, scale * value), maxiter=steps)[0]
            return float(np.sum((curves @ held - targets) ** 2)) - limit

        fitted = float(weights.sum())
        max_doublings = 20  # doublings of the spread, beyond which nothing is excluded
        top = next(
            (top for top in fitted + spread * 2.0 ** np.arange(max_doublings) if excess(top) > 0),
            np.inf,
        )
        if np.isinf(top):
            return top
        return float(brentq(excess, fitted, top, xtol=1e-3 * spread))

    @functools.cached_property
    def polynomials(self) -> dict[str, tuple[float, LevelNumbers]]:
        """Linear and quadratic extrapolants of the lowest levels: ê₀ and its weights on b."""
        mean = self.A @ self.grid
        multiple = 2.0  # of the present leakage, up to which polynomials are fitted, as in SIMEX
        num_low = int(np.searchsorted(mean, (1 + multiple / 2) * mean[0], side="right"))
        out = {}
        for name, degree in (("linear", 1), ("quadratic", 2)):
            use = slice(0, min(max(num_low, degree + 2), len(self.b)))
            powers = np.stack([self.A[use] @ self.grid**k for k in range(degree + 1)], 1)
            weights = np.zeros(len(self.b))
            weights[use] = linalg.pinv(powers)[0]
            out[name] = float(weights @ self.b), weights
        return out


class Matrices(NamedTuple):
    """Grid and matrices A of every fold, which follow from the shares of leakage alone."""

    grid: Grid
    fold_matrices: list[LevelPoints]
    unseen: float


def matrices(plan: list[FoldInjection], shares: Shares) -> Matrices:
    """Compute the distributions of the numbers of leaked records in the training sets, given the
    shares of leakage.
    """
    law = functools.lru_cache(len(plan))(stratified_matrix)  # folds of the same sizes have the same
    laws = []
    for part, p_train, p_test, exposed in zip(plan, *shares, strict=True):
        levels = tuple(part.levels.tolist())
        pools = {"pool_train": len(part.fold.train), "pool_test": len(part.fold.test)}
        if part.mechanism == "split":
            laws.append(law(levels, part.units, exposed))
        else:
            laws.append(law(levels, part.size, p_train, p_test, **pools))
    max_counts = [int(np.flatnonzero(matrix.max(0) > NEGLIGIBLE)[-1]) for matrix in laws]
    sizes = {part.units for part in plan}
    max_grid_counts = 160  # counts up to which each is a point of the grid
    if len(sizes) == 1 and max(max_counts) <= max_grid_counts:
        grid = np.arange(max(max_counts) + 1) / sizes.pop()
    else:
        knots = 121  # points of the grid for more counts, with e linear between them
        grid = np.linspace(
            0,
            max(max_count / part.units for max_count, part in zip(max_counts, plan, strict=True)),
            knots,
        )
    fold_matrices = []
    # as matrices that act on e at the points of the grid
    for matrix, part in zip(laws, plan, strict=True):
        possible = np.flatnonzero(matrix.max(0) > 0)
        out = np.zeros((len(matrix), len(grid)))
        place = np.clip(possible / part.units / (grid[1] - grid[0]), 0, len(grid) - 1)
        low = np.minimum(np.round(place, 9).astype(int), len(grid) - 2)
        above = place - low
        for row, law_of_row in zip(out, matrix[:, possible], strict=True):
            np.add.at(row, low, (1 - above) * law_of_row)
            np.add.at(row, low + 1, above * law_of_row)
        fold_matrices.append(out)
    return Matrices(
        grid, fold_matrices, float(fold_weights(plan) @ [matrix[0, 0] for matrix in laws])
    )


def pool(
    plan: list[FoldInjection],
    runs: list[FoldLosses],
    shares: Shares,
    facts: Matrices | None = None,
) -> PooledSystem:
    """Build the system of all folds at the given shares of leakage."""
    grid, fold_matrices, unseen = facts or matrices(plan, shares)
    weight = fold_weights(plan)
    combinations = [combine(run, run.test, run.outside, shares, k) for k, run in enumerate(runs)]
    levels = len(plan[0].levels)
    noise = np.zeros((levels, levels))
    b = np.zeros(levels)
    A = np.zeros((levels, len(grid)))
    for w, losses, matrix in zip(weight, combinations, fold_matrices, strict=True):
        b += w * losses.mean(1)
        A += w * matrix
        noise += w**2 * np.atleast_2d(np.cov(losses)) / losses.shape[1]
    return PooledSystem(
        grid,
        A,
        b,
        noise,
        fold_matrices,
        weight,
        combinations,
        min(ORDER, levels - 1, len(grid) - 1),
        unseen,
    )


def fold_weights(plan: list[FoldInjection]) -> Float[NumpyArray, " folds"]:
    """Return the share of the tested records that each fold tests."""
    weight = np.array([len(part.fold.test) for part in plan], float)
    return weight / weight.sum()


def combine(
    run: FoldLosses, test: FloatArray, outside: FloatArray, shares: Shares, k: int
) -> FloatArray:
    """Remove the leakage into V̂: `((1 − p_T) L_V̂ − p_V L_T̂) / (1 − p_T − p_V)`, as a mean loss
    is linear in what is scored.

    `test` is `run.test`, or the losses of clusters, and `outside` `run.outside`. For other scores
    T̂'s records were removed when the losses were computed.
    """
    p = shares.p_train[k]
    q = shares.p_test[k]
    if q == 0 or run.mixture:
        return test
    return ((1 - p) * test - q * outside) / (1 - p - q)
