"""Curvature by its products with vectors, for models of too many parameters to form a matrix.

With S a positive diagonal near diag(H)^−½, everything is done in u = S⁻¹(θ − θ̂), where the Hessian is S H S: solves by
conjugate gradients, its smallest eigenvalue by Lanczos' method, minimisation by L-BFGS and Newton's steps after it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, PyTree

from ._minimise import contract, descended
from ._objective import AbstractObjective, placed, ravel, unravel

COARSE, FINE = 1e-7, 1e-12  # residuals of a solve, of the gradient: in refits, and where nothing corrects them
PROBES = 32  # products for an estimate of the diagonal
STEPS = 30  # of Newton's method by products


def conjugate_gradients(
    objective: AbstractObjective,
    theta: PyTree,
    weights: Float[Array, " units"],
    scale: Float[Array, " params"],
    gauge: Float[Array, "flat params"],
    gradient: Float[Array, " params"],
    tol: float,
) -> Float[Array, " params"]:
    """u with `(S H S + gauge) u = gradient`, H at θ and the weights."""
    _, product = jax.linearize(_slope(objective, theta, weights), ravel(theta))
    along = lambda u: scale * (product(scale * u) + gauge.T @ (gauge @ (scale * u)))
    return cg(along, gradient, tol=tol, maxiter=1000)[0]


solved = eqx.filter_jit(conjugate_gradients)


def _slope(objective: AbstractObjective, theta: PyTree, weights: Array):
    return jax.grad(lambda v: objective.loss(unravel(v, theta), weights))


@eqx.filter_jit
def product(objective: AbstractObjective, theta: PyTree, vectors: Float[Array, "k params"]) -> Float[Array, "k params"]:
    """H times each of the vectors, at weights one."""
    slope, start = _slope(objective, theta, jnp.ones(objective.num_units)), ravel(theta)
    return jax.lax.map(lambda v: jax.jvp(slope, (start,), (v,))[1], vectors)


def diagonal(objective: AbstractObjective, theta: PyTree) -> Float[np.ndarray, " params"]:
    """About diag(H), positive: the model's own, else by Hutchinson's estimate `E[z ∘ Hz]`, z of random signs."""
    known = objective.preconditioner(theta)
    if known is None:
        size = np.asarray(ravel(theta)).size
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (PROBES, size))
        known = np.mean(signs * np.asarray(product(objective, theta, signs)), axis=0)
    known = np.asarray(known, float)
    return np.maximum(known, 1e-3 * max(float(np.median(np.abs(known))), 1e-300))


def least_curvature(
    objective: AbstractObjective, theta: PyTree, scale: np.ndarray, gauge: np.ndarray
) -> tuple[float, Float[np.ndarray, " params"]]:
    """The smallest eigenvalue of S H S to a few per cent of the largest, and its vector."""

    def along(u):
        v = scale * np.ravel(u)
        return scale * (np.asarray(product(objective, theta, v[None]))[0] + gauge.T @ (gauge @ v))

    operator = scipy.sparse.linalg.LinearOperator((len(scale), len(scale)), matvec=along, dtype=float)
    start = np.random.default_rng(0).standard_normal(len(scale))
    try:
        values, vectors = scipy.sparse.linalg.eigsh(operator, k=1, which="SA", v0=start, ncv=20, maxiter=20, tol=1e-2)
    except scipy.sparse.linalg.ArpackNoConvergence as stopped:  # of a cluster near its end: not negative, so well enough known
        if not len(stopped.eigenvalues):
            vector = start / np.linalg.norm(start)
            return float(vector @ along(vector)), vector
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
    return float(values[0]), vectors[:, 0]


def minimise_by_products(objective: AbstractObjective, theta: PyTree) -> tuple[float, np.ndarray, bool]:
    """L-BFGS, then Newton's steps: F, the raveled minimiser, converged."""
    weights = np.ones(objective.num_units)
    theta = descended(objective, theta, "L-BFGS-B", gtol=1e-5, ftol=1e-12, maxiter=20000, maxfun=40000)
    scale = diagonal(objective, theta) ** -0.5
    gauge = scaled_gauge(objective, theta, scale)
    newton = lambda at, slope: scale * np.asarray(solved(objective, at, weights, scale, gauge, scale * slope, COARSE))
    value, vector, size = contract(objective, theta, newton, STEPS)
    return value, vector, size <= 1e-6 * max(1.0, abs(value)) ** 0.5


def scaled_gauge(objective: AbstractObjective, theta: PyTree, scale: np.ndarray) -> Float[np.ndarray, "flat params"]:
    """The model's flat directions, scaled to the size of the curvature."""
    return np.sqrt(np.mean(scale**-2.0)) * np.asarray(objective.symmetries(theta), np.float64)
