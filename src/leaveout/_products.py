"""Curvature by its products with vectors, for models of too many parameters to form a matrix.

Everything is done in coordinates u in which the Hessian is not far from the identity,

    θ − θ̂ = S (I + Vᵀ diag(λ^−½ − 1) V) u,

S a positive diagonal and the rows of V the leading eigenvectors of S H S, found by subspace iteration (Halko, Martinsson &
Tropp 2011): solves by conjugate gradients, the smallest eigenvalue by Lanczos' method, minimisation by L-BFGS and Newton's
steps after it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, PyTree

from ._minimise import contract, curved, descended
from ._objective import AbstractObjective, ravel, stored, unravel
from ._progress import Slow

LOOSE, COARSE, FINE = 1e-3, 1e-6, 1e-12  # residuals of a solve, of the gradient: of one step of many, of one alone, for users
PROBES = 32  # products for an estimate of the diagonal
LEADING, ROUNDS = 300, 2  # eigenvectors at most, and products with each before the last
ABREAST = 4  # products that share a pass over the data
STEPS = 30  # of Newton's method by products


class Scaling(eqx.Module):
    """The coordinates u: `scale` is the diagonal of S, `bend` is λ^−½ − 1."""

    scale: Float[np.ndarray, " params"]
    vectors: Float[np.ndarray, "leading params"]
    bend: Float[np.ndarray, " leading"]

    def whiten(self, gradient: Float[Array, "*refits params"]) -> Float[Array, "*refits params"]:
        """Gradients by u."""
        return self._bent(gradient * self.scale)

    def unwhiten(self, u: Float[Array, "*refits params"]) -> Float[Array, "*refits params"]:
        """θ − θ̂."""
        return self._bent(u) * self.scale

    def back(self, displacement: Float[Array, "*refits params"]) -> Float[Array, "*refits params"]:
        """The u of a displacement θ − θ̂."""
        x = displacement / self.scale
        return x - (x @ self.vectors.T * (self.bend / (1 + self.bend))) @ self.vectors

    def _bent(self, x: Float[Array, "*refits params"]) -> Float[Array, "*refits params"]:
        return x + (x @ self.vectors.T * self.bend) @ self.vectors


def conjugate_gradients(
    objective: AbstractObjective,
    theta: PyTree,
    weights: Float[Array, " units"],
    scaling: Scaling,
    null_space: Float[Array, "flat params"],
    gradient: Float[Array, " params"],
    tol: float,
) -> Float[Array, " params"]:
    """u with `(H + null_space) u = gradient`, H at θ and the weights, in coordinates u."""
    slope = jax.grad(lambda v: objective.loss(unravel(v, theta), weights))
    _, product = jax.linearize(slope, ravel(theta))

    def along(u):
        step = scaling.unwhiten(u)
        return scaling.whiten(product(step) + null_space.T @ (null_space @ step))

    return cg(along, gradient, tol=tol, maxiter=1000)[0]


solved = eqx.filter_jit(conjugate_gradients)


@eqx.filter_jit
def product(objective: AbstractObjective, theta: PyTree, vectors: Float[Array, "k params"]) -> Float[Array, "k params"]:
    """H times each of the vectors, at weights one."""
    ones = jnp.ones(objective.num_units)
    return jax.lax.map(lambda v: curved(objective, theta, ones, v), vectors, batch_size=min(ABREAST, len(vectors)))


def scaling(objective: AbstractObjective, theta: PyTree, most: int = LEADING) -> Scaling:
    """Coordinates at θ, with `most` eigenvectors at most; those of eigenvalues not above one are left alone."""
    scale = _diagonal(objective, theta) ** -0.5
    count = min(most, len(scale) // 8)
    along = lambda block: scale * np.asarray(product(objective, theta, np.ascontiguousarray(scale * block)))
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


def _diagonal(objective: AbstractObjective, theta: PyTree) -> Float[np.ndarray, " params"]:
    """What S² is the inverse of, positive: a penalty's curvature, beside which the data say little in most directions and
    much in a few; where there is next to none, diag(H) by Hutchinson's estimate `E[z ∘ Hz]`, z of random signs."""
    known = np.asarray(objective.parameters.penalty_curvature(theta), float)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, len(known)))
    found = np.mean(signs * np.asarray(product(objective, theta, signs)), axis=0)
    least = 1e-3 * max(float(np.median(np.abs(found))), 1e-300)
    return np.where(known > least, known, np.maximum(found, least))


def least_curvature(
    objective: AbstractObjective, theta: PyTree, scaling: Scaling, null_space: np.ndarray
) -> tuple[float, Float[np.ndarray, " params"]]:
    """The smallest eigenvalue of H in coordinates u to a few per cent of the largest, and its vector."""
    size = len(scaling.scale)

    def along(u):
        step = scaling.unwhiten(np.ravel(u))
        return scaling.whiten(np.asarray(product(objective, theta, step[None]))[0] + null_space.T @ (null_space @ step))

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


def minimise_by_products(
    objective: AbstractObjective, theta: PyTree, weights: Float[np.ndarray, " units"]
) -> tuple[float, np.ndarray, bool]:
    """L-BFGS, then Newton's steps: F(θ, w), the raveled minimiser, converged."""
    theta, _ = descended(objective, theta, weights, gtol=1e-5, ftol=1e-12, maxiter=20000, maxfun=40000)
    coordinates = scaling(objective, theta, LEADING // 3)  # for a few solves
    null_space = whitened_null_space(objective, theta, coordinates)

    def newton(at, slope):
        u = solved(objective, at, weights, coordinates, null_space, coordinates.whiten(slope), COARSE)
        return coordinates.unwhiten(np.asarray(u))

    value, vector, size = contract(objective, theta, weights, newton, STEPS)
    return value, vector, size <= 1e-6 * max(1.0, abs(value)) ** 0.5


def whitened_null_space(objective: AbstractObjective, theta: PyTree, scaling: Scaling) -> Float[np.ndarray, "flat params"]:
    """The model's flat directions, scaled to the size of the curvature."""
    return np.sqrt(np.mean(scaling.scale**-2.0)) * np.asarray(objective.parameters.symmetries(theta), np.float64)
