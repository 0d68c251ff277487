"""Fits whose training sets differ by few rows, as the levels of one draw do.

Sums over rows are then those of the fit before, minus the rows that left and plus the rows that came, which is all that least
squares needs. For losses of the margin each fit starts from the one before, in steps

    θ ← θ − H⁻¹ g(θ),

with g its own gradient and H the Hessian of its chain, computed anew only if a step reduces the decrement gᵀH⁻¹g by too little.
Gradients of all fits at one place of their chains are products of matrices over the rows that they share.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

SHARED_ROWS_RATIO = 4.0  # rows of all fits together, relative to those of one fit, up to which shared rows are used
SLOW = 0.2  # largest ratio of the roots of successive decrements with an old Hessian
FINAL = 1e-11  # decrement before the last step, relative to the objective; the step leaves at most a hundredth
MAX_CHAIN_NEWTON_STEPS = 60

Rows = Int[np.ndarray, "fits size"]


def lengths(train: Rows) -> Int[np.ndarray, " fits"]:
    """Number every fit in its chain, from 0."""
    # 0.5: largest share of a training set that changes from one fit of a chain to the next
    near = np.append(False, (train[1:] != train[:-1]).mean(1) <= 0.5)
    number = np.arange(len(train))
    return number - np.maximum.accumulate(np.where(near, 0, number))


def moments(U: NDArray[np.float64], train: Rows, place: NDArray[np.int64]) -> Float[np.ndarray, "fits columns columns"]:
    """Compute `Σ u uᵀ` over the rows of every fit."""
    out = np.empty((len(train), U.shape[1], U.shape[1]))
    for f, rows in enumerate(train):
        if place[f] == 0:
            some = U[rows]
            out[f] = some.T @ some
            continue
        changed = np.flatnonzero(rows != train[f - 1])
        came, left = U[rows[changed]], U[train[f - 1][changed]]
        out[f] = out[f - 1] + came.T @ came - left.T @ left
    return out


Slopes = Callable[[NDArray[np.float64], NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


class FitChains:
    """Minima of `Σ_n w_n ℓ(z_nᵀθ, y_n) + ½ Σ_j r_j θ_j²` for many w and r, by chains."""

    def __init__(self, Z: NDArray[np.float64], y: NDArray[np.float64], slopes: Slopes):
        self.Z, self.y, self.slopes = Z, y, slopes
        self.upper = np.triu_indices(Z.shape[1])
        self.products = Z[:, self.upper[0]] * Z[:, self.upper[1]]

    def solve(
        self, weight: Float[np.ndarray, "fits rows"], ridge: Float[np.ndarray, "fits params"], place: Int[np.ndarray, " fits"]
    ) -> tuple[Float[np.ndarray, "fits params"], NDArray[np.bool_]]:
        """Compute the minima, and mark the fits that were not solved."""
        count, size = ridge.shape
        theta, failed, inverse = np.zeros((count, size)), np.zeros(count, bool), np.zeros((count, size, size))
        known = np.zeros(count, bool)
        start, at_start, lost = self._down(weight.mean(0)[None], ridge.mean(0)[None], np.zeros((1, size)), None)
        if lost[0]:
            return theta, np.ones(count, bool)
        for k in range(place.max() + 1):
            at = np.flatnonzero(place == k)
            good = at[known[at - 1]] if k else at[:0]
            theta[at], inverse[at] = start, at_start
            theta[good], inverse[good] = theta[good - 1], inverse[good - 1]
            theta[at], inverse[at], failed[at] = self._down(weight[at], ridge[at], theta[at], inverse[at])
            known[at] = ~failed[at]
        return theta, failed

    def _down(
        self, weight: NDArray[np.float64], ridge: NDArray[np.float64], theta: NDArray[np.float64], inverse: NDArray | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Take steps until the decrement is small, with the given inverse Hessians.

        Returns the new inverses, and marks fits whose steps diverge or stall.
        """
        fits, size = theta.shape
        theta, total, before = theta.copy(), 1 + weight.sum(1), np.full(fits, np.inf)
        held = np.zeros((fits, size, size)) if inverse is None else inverse.copy()
        old = np.full(fits, inverse is not None)
        at = np.arange(fits)
        for _ in range(MAX_CHAIN_NEWTON_STEPS):
            first, second = self.slopes(theta[at] @ self.Z.T, self.y)
            slope = (weight[at] * first) @ self.Z + ridge[at] * theta[at]
            step, decrement = _step(held[at], slope)
            slow = ~old[at] | (decrement > SLOW * SLOW * before[at])
            if slow.any():
                held[at[slow]] = self._inverse(weight[at[slow]] * second[slow], ridge[at[slow]])
                step[slow], decrement[slow] = _step(held[at[slow]], slope[slow])
                old[at[slow]] = True
            if not np.all(decrement <= 4 * before[at]):  # also if it is NaN
                break
            theta[at] -= step
            before[at] = decrement
            at = at[decrement > FINAL * total[at]]
            if not len(at):
                break
        failed = np.zeros(fits, bool)
        failed[at] = True
        return theta, held, failed

    def _inverse(self, curvature: NDArray[np.float64], ridge: NDArray[np.float64]) -> Float[np.ndarray, "fits params params"]:
        fits, size = ridge.shape
        H = np.zeros((fits, size, size))
        H[:, self.upper[0], self.upper[1]] = H[:, self.upper[1], self.upper[0]] = curvature @ self.products
        H[:, range(size), range(size)] += ridge
        try:
            return np.linalg.inv(H)
        except np.linalg.LinAlgError:
            return np.full(H.shape, np.nan)


def _step(inverse: NDArray[np.float64], slope: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    step = np.einsum("fij,fj->fi", inverse, slope)
    return step, np.einsum("fi,fi->f", step, slope)


def in_common(train: Rows, number: int) -> Int[np.ndarray, " rows"]:
    """Return the rows of all training sets together."""
    return np.flatnonzero(np.bincount(train.ravel(), minlength=number))


def count_rows(train: Rows, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "fits rows"]:
    """Count how often each of some rows is in every training set."""
    where = np.zeros(rows[-1] + 1, np.int64)
    where[rows] = np.arange(len(rows))
    at = np.arange(len(train))[:, None] * len(rows) + where[train]
    return np.bincount(at.ravel(), minlength=len(train) * len(rows)).reshape(len(train), -1).astype(np.float64)
