"""Curvature by its products with vectors, for models of too many parameters to form a matrix.

Everything is done in coordinates u in which the Hessian is not far from the identity,

    θ − θ̂ = S (I + Vᵀ diag(λ^−½ − 1) V) u,

S a positive diagonal and the rows of V the leading eigenvectors of S H S, found by subspace iteration (Halko, Martinsson &
Tropp 2011): solves by conjugate gradients, the smallest eigenvalue by Lanczos' method, minimisation by L-BFGS and Newton's
steps after it.
"""

from typing import Protocol

import numpy as np
import scipy
from jaxtyping import Float, Int

from ._functions import ONE, Function, Functions
from ._jax import Module, PyTree
from ._minimise import Run, Vector, contract, descended
from ._objective import AbstractObjective, stored
from ._progress import Slow

LOOSE, COARSE, FINE = 1e-3, 1e-6, 1e-12  # residuals of a solve, of the gradient: of one step of many, of one alone, for users
PROBES = 32  # products for an estimate of the diagonal
LEADING, ROUNDS = 300, 2  # eigenvectors at most, and products with each before the last
MOST = 1000  # products of a solve
STEPS = 30  # of Newton's method by products


class Coordinates(Protocol):
    """In which a Hessian is not far from the identity."""

    def whiten(self, gradient: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        """Gradients by u."""

    def unwhiten(self, u: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        """Displacements of θ."""


class Scaling(Module):
    """The coordinates u: `scale` is the diagonal of S, `bend` is λ^−½ − 1."""

    scale: Float[np.ndarray, " params"]
    vectors: Float[np.ndarray, "leading params"]
    bend: Float[np.ndarray, " leading"]

    def whiten(self, gradient: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        """Gradients by u."""
        return self._bent(gradient * self.scale)

    def unwhiten(self, u: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        """θ − θ̂."""
        return self._bent(u) * self.scale

    def back(self, displacement: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        """The u of a displacement θ − θ̂."""
        return self._straight(displacement / self.scale)

    def raw(self, whitened: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        """Gradients by θ of those by u."""
        return self._straight(whitened) / self.scale

    def _straight(self, x: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        return x - (x @ self.vectors.T * (self.bend / (1 + self.bend))) @ self.vectors

    def _bent(self, x: Float[np.ndarray, "*refits params"]) -> Float[np.ndarray, "*refits params"]:
        return x + (x @ self.vectors.T * self.bend) @ self.vectors


def solved(
    F: Functions,
    coordinates: Coordinates,
    null_space: Float[np.ndarray, "flat params"],
    theta: Float[np.ndarray, "refits params"],
    gradient: Float[np.ndarray, "refits params"],
    lanes: Int[np.ndarray, " refits"],
    tol: float,
) -> Float[np.ndarray, "refits params"]:
    """u with `(∇²F(θ, w) + null_spaceᵀ null_space) u = gradient` of some refits, all in coordinates u: by conjugate gradients,
    side by side, each until its residual is `tol` of its gradient, or until it meets a direction along which F curves down."""
    u, residual = np.zeros_like(gradient), gradient.copy()
    towards, square = residual.copy(), np.sum(residual**2, axis=1)
    enough = tol**2 * square
    for k in range(MOST):
        open_ = np.flatnonzero(square > enough)
        if not open_.size:
            break
        step = np.asarray(coordinates.unwhiten(towards[open_]))
        image = F.products(theta[open_], lanes[open_])(step) + (step @ null_space.T) @ null_space
        image = np.asarray(coordinates.whiten(image))
        curvature = np.sum(towards[open_] * image, axis=1)
        down = ~(curvature > 0)
        u[open_[down & (k == 0)]] = gradient[open_[down & (k == 0)]]
        square[open_[down]] = 0.0
        open_, image = open_[~down], image[~down]
        length = (square[open_] / curvature[~down])[:, None]
        u[open_] += length * towards[open_]
        residual[open_] -= length * image
        before, square[open_] = square[open_], np.sum(residual[open_] ** 2, axis=1)
        towards[open_] = residual[open_] + (square[open_] / before)[:, None] * towards[open_]
    return u


def products(F: Function, theta: Vector, vectors: Float[np.ndarray, "k params"]) -> Float[np.ndarray, "k params"]:
    """H times each of the vectors."""
    return F.of.products(np.broadcast_to(theta, vectors.shape), np.zeros(len(vectors), int))(vectors)


def scaling(objective: AbstractObjective, F: Function, theta: Vector, most: int = LEADING) -> Scaling:
    """Coordinates at θ, with `most` eigenvectors at most; those of eigenvalues not above one are left alone."""
    scale = _diagonal(objective, F, theta) ** -0.5
    count = min(most, len(scale) // 8)
    along = lambda block: scale * products(F, theta, scale * block)
    rng = np.random.default_rng(0)
    block = np.linalg.qr(rng.standard_normal((len(scale), count)))[0].T
    with Slow("leading curvature", ROUNDS + 1) as bar:
        for _ in range(ROUNDS):
            block = np.linalg.qr(along(block).T)[0].T
            bar.advance(1)
        image = along(block)
        bar.advance(1)
    inside = image @ block.T
    values, turn = np.linalg.eigh((inside + inside.T) / 2)
    large = values > 1
    return Scaling(stored(scale), stored(turn.T[large] @ block), stored(values[large] ** -0.5 - 1))


def _diagonal(objective: AbstractObjective, F: Function, theta: Vector) -> Vector:
    """What S² is the inverse of, positive: a penalty's curvature, beside which the data say little in most directions and
    much in a few; where there is next to none, diag(H) by Hutchinson's estimate `E[z ∘ Hz]`, z of random signs."""
    known = np.asarray(objective.parameters.penalty_curvature(F.placed(theta)), float)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, len(known)))
    found = np.mean(signs * products(F, theta, signs), axis=0)
    least = 1e-3 * max(float(np.median(np.abs(found))), 1e-300)
    return np.where(known > least, known, np.maximum(found, least))


def least_curvature(F: Function, theta: Vector, scaling: Scaling, null_space: np.ndarray) -> tuple[float, Vector]:
    """The smallest eigenvalue of H in coordinates u to a few per cent of the largest, and its vector."""
    size, product = len(scaling.scale), F.products(theta)

    def along(u):
        step = scaling.unwhiten(np.ravel(u))
        return scaling.whiten(product(step) + null_space.T @ (null_space @ step))

    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=along, dtype=float)
    start = np.random.default_rng(0).standard_normal(size)
    try:
        values, vectors = scipy.sparse.linalg.eigsh(operator, k=1, which="SA", v0=start, ncv=20, maxiter=20, tol=1e-2)
    except scipy.sparse.linalg.ArpackNoConvergence as stopped:  # of a cluster near its end: not negative, so well enough known
        if not len(stopped.eigenvalues):
            vector = start / np.linalg.norm(start)
            return float(vector @ along(vector)), vector
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
    return float(values[0]), vectors[:, 0]


def minimise_by_products(objective: AbstractObjective, F: Function, start: Vector) -> Run:
    """L-BFGS, then Newton's steps."""
    theta, _ = descended(F, start, gtol=1e-5, ftol=1e-12, maxiter=20000, maxfun=40000)
    coordinates = scaling(objective, F, theta, LEADING // 3)  # for a few solves
    null_space = whitened_null_space(objective, F.placed(theta), coordinates)

    def newton(at, slope):
        u = solved(F.of, coordinates, null_space, at[None], coordinates.whiten(slope)[None], ONE, COARSE)
        return coordinates.unwhiten(u[0])

    value, theta, size = contract(F, theta, newton, STEPS)
    return Run(value, theta, size <= 1e-6 * max(1.0, abs(value)) ** 0.5)


def whitened_null_space(objective: AbstractObjective, theta: PyTree, scaling: Scaling) -> Float[np.ndarray, "flat params"]:
    """The model's flat directions, scaled to the size of the curvature."""
    return np.sqrt(np.mean(scaling.scale**-2.0)) * np.asarray(objective.parameters.symmetries(theta), np.float64)
