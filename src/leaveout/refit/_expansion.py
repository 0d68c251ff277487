"""Refits without short runs of units, from derivatives that one pass over the data each gives for all of them together.

F(θ, w_o) = F(θ, 1) − s_o(θ), with s_o the joint score of the units of fold o (`_runs`). In whitened coordinates the refit solves

    g + u + ½ T[u, u] − ∇s_o − ∇²s_o u = r,      T = ∇³F,      r = ½ ∇³s_o[u, u] − (1/6) ∇⁴F[u, u, u] + …

of which the left side, a quadratic in u whose curvature is I − ∇²s_o + T[u], is known from D(D+1)/2 passes, for all folds.
What r may be, and with it how far u is from the refit, is told by third derivatives of every s_o and fourth ones of F along the
principal axes of all displacements: the largest of them, in place of the fold's own direction. Losses are expanded likewise, to
the second order. That estimate is checked by gradients of those folds that it only just lets pass.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .._fit import Fit
from .._functions import work
from .._plan import Rows
from .._runs import Runs, runs

NUMBERS = 2**27  # that derivatives of all folds may hold: a gigabyte
TOGETHER = 2**20  # in the curvatures of folds that are solved at once
LEAST = 1e9  # operations of full passes below which compiling these costs more
PASSES = 6  # over the data, at least, that a refit costs otherwise
REACH = 0.2  # whitened, by which third derivatives are differences of second ones
STEPS = 20  # of Newton's method on the quadratic
FAR = 0.9  # of the curvature: where the fold's own differs from the full fit's by more, no expansion is trusted


def available(fit: Fit, rows: Rows) -> bool:
    """Are these all refits of a plan, such as can be expanded, and is that worth compiling for?"""
    count, size = len(rows.index), fit.num_params
    if fit.factor is None or len(fit.null_space) or count != int(rows.num_refits):
        return False
    if PASSES * count < 3 * size**2 or PASSES * count * work(fit.objective, size) < LEAST:
        return False
    return rows.index.size * size**2 <= NUMBERS and runs(fit.objective, fit.theta, rows) is not None


@dataclass(frozen=True, eq=False)
class Solved:
    """Of some refits: where the expansion leads to, whitened, how far that may be off, the losses there, their error; no
    distance and no error are known where the expansion means nothing."""

    u: Float[np.ndarray, "lanes params"]
    left: Float[np.ndarray, " lanes"]
    losses: Float[np.ndarray, "lanes width"]
    error: Float[np.ndarray, " lanes"]


class Expansion:
    """Derivatives of the scores of all folds, and of F, at θ̂, in whitened coordinates; of pairs of them i ≤ j."""

    def __init__(self, fit: Fit, rows: Rows):
        found = runs(fit.objective, fit.theta, rows)
        assert found is not None
        self.fit, self.runs, self.held = fit, found, np.asarray(rows.held)
        width = self.runs.width
        self.place = np.clip(np.asarray(rows.index) - self.runs.first[:, None], 0, width - 1)  # of each entry, in its run
        size = fit.num_params
        i, j = np.triu_indices(size)
        self.pair = np.zeros((size, size), np.int64)
        self.pair[i, j] = self.pair[j, i] = np.arange(len(i))
        self.losses, _ = self.runs.scores(fit.vector)
        count = len(self.losses)
        self.slopes, self.joint_slopes = np.empty((size, count, width)), np.empty((size, count))
        self.curves, self.joint_curves = np.empty((len(i), count, width)), np.empty((len(i), count))
        at, eye = np.tile(fit.vector, (len(i), 1)), fit.unwhiten(np.eye(size))
        for k, (first, second) in enumerate(self.runs.pushed(at, eye[i], eye[j])):
            if i[k] == j[k]:
                self.slopes[i[k]], self.joint_slopes[i[k]] = first
            self.curves[k], self.joint_curves[k] = second
        self.third = fit.whiten(self.runs.bends(at, eye[i], eye[j]))[self.pair]
        self.gradient = fit.whiten(fit.gradient)

    def start(self) -> Float[np.ndarray, "refits params"]:
        """The whitened gradient of each refit's own F at θ̂."""
        return self.gradient - self.joint_slopes.T

    def unmoved(self) -> Float[np.ndarray, "refits width"]:
        """The losses at θ̂."""
        return self._placed(self.losses, np.arange(len(self.losses)))

    def curvature(
        self, u: Float[np.ndarray, "lanes params"], lanes: Int[np.ndarray, " lanes"]
    ) -> Float[np.ndarray, "lanes params params"]:
        """That of each refit's own F at u, whitened."""
        size = self.fit.num_params
        bent = (u @ self.third.reshape(size, -1)).reshape(-1, size, size)
        return np.eye(size) - self._square(self.joint_curves[:, lanes]) + bent

    def solved(self) -> Solved:
        """All refits."""
        size, count = self.fit.num_params, len(self.losses)
        group = max(1, TOGETHER // (size**2 * self.runs.width))
        groups = [np.arange(k, min(k + group, count)) for k in range(0, count, group)]
        u = np.concatenate([self._root(lanes) for lanes in groups])
        third, pointwise, fourth = self._beyond(u)
        parts = [self._judged(u[k], k, third[k], pointwise, fourth) for k in groups]
        return Solved(u, *(np.concatenate(part) for part in zip(*parts, strict=True)))

    def change(
        self, u: Float[np.ndarray, "lanes params"], left: Float[np.ndarray, " lanes"], lanes: Int[np.ndarray, " lanes"]
    ) -> Float[np.ndarray, " lanes"]:
        """The most that the losses of some refits change by within a distance of u, added up."""
        slopes, curves = np.moveaxis(self.slopes[:, lanes], 0, -1), self._square(self.curves[:, lanes])
        steep = np.linalg.norm(slopes + np.einsum("nlij,nj->nli", curves, u), axis=-1)
        far = left[:, None]
        each = far * (steep + 0.5 * far * np.linalg.norm(curves, axis=(-1, -2)))
        return self._placed(each, lanes).sum(1)

    def _root(self, lanes: Int[np.ndarray, " lanes"]) -> Float[np.ndarray, "lanes params"]:
        """Where the quadratic is stationary, by Newton's method from θ̂; NaN where that leads nowhere."""
        start = self.start()[lanes]
        u, curves, size = -start, self._square(self.joint_curves[:, lanes]), self.fit.num_params
        for _ in range(STEPS):
            bent = (u @ self.third.reshape(size, -1)).reshape(-1, size, size)
            residual = start + u + np.einsum("nij,nj->ni", 0.5 * bent - curves, u)
            with np.errstate(all="ignore"):
                step = _solve(np.eye(size) - curves + bent, residual)
                u = u - step
                moving = np.linalg.norm(step, axis=1) > 1e-12 * np.linalg.norm(u, axis=1)
            if not moving.any():
                break
        return np.where((moving & (np.linalg.norm(step, axis=1) > 1e-12))[:, None], np.nan, u)

    def _beyond(self, u: Float[np.ndarray, "refits params"]) -> tuple[np.ndarray, np.ndarray, float]:
        """The largest derivatives along the principal axes of the displacements: third ones of the joint scores `[refits]` and
        of the losses `[refits, width]`, fourth ones of F."""
        weight = np.abs(self.slopes).sum((0, 2))
        known = np.isfinite(u).all(1)
        weighed = u[known] * weight[known, None]
        axes = np.linalg.eigh(weighed.T @ weighed)[1].T
        sides = np.repeat(axes, 2, axis=0)
        at = self.fit.at(REACH * np.tile([1.0, -1.0], len(axes))[:, None] * sides)
        along = self.fit.unwhiten(sides)
        joint, each = np.zeros(len(u)), np.zeros(self.losses.shape)
        pushed = (second for _, second in self.runs.pushed(at, along, along))
        for up, down in zip(pushed, pushed, strict=True):
            joint = np.maximum(joint, np.abs(up[1] - down[1]))
            each = np.maximum(each, np.abs(up[0] - down[0]))
        bends = self.fit.whiten(self.runs.bends(at, along, along))
        fourth = np.linalg.norm(bends[::2] - bends[1::2], axis=1).max()
        return joint / (2 * REACH), each / (2 * REACH), float(fourth) / (2 * REACH)

    def _judged(
        self, u: np.ndarray, lanes: np.ndarray, third: np.ndarray, pointwise: np.ndarray, fourth: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Distances left, losses and their errors."""
        length = np.linalg.norm(u, axis=1)
        away = np.linalg.norm(self.curvature(u, lanes) - np.eye(self.fit.num_params), axis=(1, 2))
        residual = 0.5 * third * length**2 + fourth * length**3 / 6
        left = np.where(away < FAR, residual / (1 - np.minimum(away, FAR)), np.inf)
        left = np.where(left < 0.5 * np.maximum(length, 1e-300), left, np.inf)
        slopes = np.moveaxis(self.slopes[:, lanes], 0, -1)
        bent = np.einsum("nlij,nj->nli", self._square(self.curves[:, lanes]), u)
        losses = self.losses[lanes] + np.einsum("nli,ni->nl", slopes + 0.5 * bent, u)
        beyond = self._placed(pointwise[lanes], lanes).sum(1) * length**3 / 6
        known = np.isfinite(left)
        error = self.change(u, np.where(known, left, 0.0), lanes) + beyond
        return left, self._placed(losses, lanes), np.where(known & np.isfinite(error), error, np.inf)

    def _placed(self, each: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """What is of the units of some runs in the places of the entries of a batch, zero where not scored."""
        return np.where(self.held[lanes], np.take_along_axis(each, self.place[lanes], axis=1), 0.0)

    def _square(self, pairs: Float[np.ndarray, "pairs ..."]) -> Float[np.ndarray, "... params params"]:
        """Symmetric matrices from their entries i ≤ j."""
        return np.moveaxis(pairs, 0, -1)[..., self.pair]


def _solve(matrices: Float[np.ndarray, "lanes n n"], vectors: Float[np.ndarray, "lanes n"]) -> Float[np.ndarray, "lanes n"]:
    try:
        return np.linalg.solve(matrices, vectors[..., None])[..., 0]
    except np.linalg.LinAlgError:
        return np.full_like(vectors, np.nan)
