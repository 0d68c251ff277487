"""Minimising `F(·, w)`: descent to the neighbourhood of a minimum, and Newton's method into it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse.csgraph
import scipy.sparse.linalg
from jaxtyping import Array, Float, PyTree, Scalar

from ._objective import AbstractLinearPredictor, AbstractObjective, Blocks, placed, ravel, unravel
from ._proved import Bend, ball, gaps

STEPS = 100  # Newton steps before a minimisation counts as not converged
DEAR = 30  # parameters from which a Hessian costs many gradients, unless that is a sum over rows
LARGE = 2000  # parameters beyond which one Hessian, or its eigenvalues, take a while
HESSIANS, WALK = 20, 200  # of such a model, and steps of L-BFGS with each
PRECONDITIONERS, STROLL, MEMORY = 200, 50, 20  # the same where a stand-in for it is cheap, and steps that L-BFGS remembers
PIVOT = 1e-14  # of a parameter's curvature, left given the others': of less, as far down a separation, most is rounding
FLATTEST = 1e-8  # of the largest curvature: the least that is added to make a Hessian positive definite, or left of a stand-in
SOLVED, PRODUCTS = 0.01, 300  # residual of a solve by conjugate gradients, and products with a Hessian that it may take
CLOSE = (1e-4, 1e-6)  # slopes in its coordinates at which L-BFGS stops to see whether its steps contract
NEAR = 1e-6  # of the length of θ, as far as which a minimiser that is proved counts as reached
SETTLED = 1e-5  # a decrement of which no more than rounding is left


def dear(objective: AbstractObjective, size: int) -> bool:
    """Does a Hessian cost many gradients?"""
    return size > DEAR and not isinstance(objective, AbstractLinearPredictor)


def minimise(
    objective: AbstractObjective,
    theta: PyTree,
    weights: Float[np.ndarray, " units"],
    null_space: Float[np.ndarray, "flat params"],
) -> tuple[float, np.ndarray, bool]:
    """From one start to the minimum of F(·, w) that it leads to, off directions that are known to be flat: F, the raveled
    minimiser, converged."""
    size = np.asarray(ravel(theta)).size
    if dear(objective, size) or not objective.convex:
        found = None
        for gtol in CLOSE:
            found = walk(objective, theta, weights, gtol, found)
            if found is None:
                theta = _approach(objective, theta, weights, size)
                break
            value, vector, left = contract(objective, found.theta, weights, lambda _, slope, near=found: near.newton(slope))
            if left < SETTLED:
                return value, vector, True
            theta = found.theta
        if size > LARGE:
            return with_few_hessians(objective, theta, weights, null_space)
    value, vector, converged, _ = newton(objective, theta, weights, null_space)
    return value, vector, converged or _nearby(objective, np.asarray(vector), null_space)


def _nearby(objective: AbstractObjective, vector: np.ndarray, null_space: np.ndarray) -> bool:
    """Is there a minimiser as near as rounding tells? Proved, for linear predictors whose steps came to an end there."""
    model = objective.predictors
    if model is None or not np.isfinite(vector).all():
        return False
    eta = model.design.predictors(vector[None])[0] + model.offset
    omega, kappa = (part[0] for part in model.weigh(np.ones((1, len(eta)))))
    slope, curvature = model.loss.derivatives(eta, model.y, (1, 2))
    hessian = model.design.gram(omega[None], curvature[None])[0] + kappa * model.penalty
    factor = factorised(hessian + null_space_matrix(null_space, hessian) if len(null_space) else hessian)
    if factor is None:
        return False
    root = scipy.linalg.lapack.dtrtri(factor, lower=1)[0].T
    pulled = (omega if slope.ndim == 1 else omega[:, None]) * slope
    gradient = model.design.pull(pulled[None])[0] + kappa * (model.penalty @ vector)
    size, (norm, mass, _) = float(np.linalg.norm(gradient @ root)), model.design.extent(root, curvature)
    reference = np.ones(len(eta)) if model.design.outputs > 1 else curvature
    radius, at = np.array([2 * size]), eta[None]
    found = ball(
        gaps(model.loss, model.y, at, Bend(reference, reference), 2 * size * norm, reference),
        reference,
        omega * mass,
        np.array([size]),
        radius,
    )
    return bool(found.distance[0] <= NEAR * max(1.0, float(np.linalg.norm(factor.T @ vector))))


def _approach(objective: AbstractObjective, theta: PyTree, weights: np.ndarray, size: int) -> PyTree:
    """θ near a minimum, where nothing stands in for the Hessian."""
    if size <= 500 and not objective.convex:
        return descended(objective, theta, weights, "BFGS", gtol=1e-6, maxiter=2000)[0]
    ftol, maxiter = (1e-12, 2000) if size <= LARGE else (1e-15, size // 2)
    return descended(objective, theta, weights, gtol=1e-6, ftol=ftol, maxiter=maxiter)[0]


def descended(
    objective: AbstractObjective,
    theta: PyTree,
    weights: np.ndarray,
    method: str = "L-BFGS-B",
    unwhitener: np.ndarray | scipy.sparse.linalg.LinearOperator | None = None,
    **options: float,
) -> tuple[PyTree, scipy.optimize.OptimizeResult]:
    """θ after a quasi-Newton method of SciPy's, which goes down from where F is finite; in coordinates u, `unwhitener @ u`
    the displacement of θ, if they are given. And what SciPy says, in these coordinates."""
    start = np.asarray(ravel(theta))
    scale = (lambda v: v) if unwhitener is None else (lambda v: unwhitener @ v)
    origin, first = (0.0, start) if unwhitener is None else (start, np.zeros_like(start))

    def function(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(objective, placed(origin + scale(u), theta), weights)
        return float(value), np.asarray(gradient) if unwhitener is None else unwhitener.T @ np.asarray(gradient)

    found = scipy.optimize.minimize(function, first, jac=True, method=method, options=options)
    return placed(origin + scale(found.x), theta) if np.isfinite(found.fun) else theta, found


class Walk(NamedTuple):
    """Where L-BFGS came to, and the inverse Hessian that it learnt, with the coordinates that it is in."""

    theta: PyTree
    unwhitener: scipy.sparse.linalg.LinearOperator
    inverse: scipy.sparse.linalg.LinearOperator

    def newton(self, slope: Float[np.ndarray, " params"]) -> Float[np.ndarray, " params"]:
        """The step that a gradient asks for."""
        return self.unwhitener @ (self.inverse @ (self.unwhitener.T @ slope))

    def newton_by_products(
        self, objective: AbstractObjective, theta: PyTree, weights: np.ndarray, slope: Float[np.ndarray, " params"]
    ) -> Float[np.ndarray, " params"]:
        """The step by the Hessian at θ, from conjugate gradients to a residual of `SOLVED`, preconditioned by what was learnt.
        NaN where they find that Hessian not to be positive definite, or do not get there."""

        def along(u: np.ndarray) -> np.ndarray:
            image = self.unwhitener.T @ np.asarray(curved(objective, theta, weights, self.unwhitener @ u))
            if not u @ image > 0:
                raise np.linalg.LinAlgError("not positive definite")
            return image

        hessian = scipy.sparse.linalg.LinearOperator(self.inverse.shape, along, dtype=float)
        try:
            u, missed = scipy.sparse.linalg.cg(
                hessian, self.unwhitener.T @ slope, rtol=SOLVED, maxiter=PRODUCTS, M=self.inverse
            )
        except np.linalg.LinAlgError:
            missed = 1
        return np.full(slope.shape, np.nan) if missed else self.unwhitener @ u


def walk(
    objective: AbstractObjective, theta: PyTree, weights: np.ndarray, gtol: float, before: Walk | None = None
) -> Walk | None:
    """L-BFGS in coordinates in which what stands in for the Hessian is the identity, made anew on the way, until no slope in
    them is above `gtol`; None where nothing stands in for it. `before` is the walk that led to θ, if one did."""
    learnt = None if before is None else (before.unwhitener, before.inverse)
    for _ in range(PRECONDITIONERS):
        parts = objective.preconditioner(theta, weights)
        if not parts:
            return None
        unwhitener = _unwhitener(parts)
        options = {"gtol": gtol, "ftol": 1e-15, "maxiter": STROLL, "maxcor": MEMORY}
        theta, found = descended(objective, theta, weights, unwhitener=unwhitener, **options)
        if learnt is None or found.nit >= MEMORY:  # else what was learnt before is better
            learnt = unwhitener, found.hess_inv
        if found.nit < STROLL:
            break
    assert learnt is not None
    return Walk(theta, *learnt)


def _unwhitener(parts: tuple[Blocks, ...]) -> scipy.sparse.linalg.LinearOperator:
    """S with S Sᵀ the inverse of the matrix, whose curvatures are taken without their sign, and kept off zero."""
    roots = [(entries, _roots(own, _floor(part))) for part in parts for entries, own in _separated(part)]
    size = sum(entries.size for entries, _ in roots)

    def times(vector: np.ndarray, transposed: bool) -> np.ndarray:
        out = np.empty(size)
        for entries, root in roots:
            matrices = root.swapaxes(1, 2) if transposed else root
            out[entries] = (matrices @ np.ravel(vector)[entries][..., None])[..., 0]
        return out

    operator = scipy.sparse.linalg.LinearOperator
    return operator((size, size), lambda v: times(v, False), rmatvec=lambda v: times(v, True), dtype=float)


def _floor(part: Blocks) -> float:
    """The least curvature that indefinite blocks are taken to have."""
    return FLATTEST * (float(np.abs(part.matrices).max(initial=0.0)) or 1.0)


def _separated(part: Blocks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The blocks that these fall into where all of them are zero, those of one size together."""
    entries, matrices = np.asarray(part.entries), np.asarray(part.matrices)
    _, label = scipy.sparse.csgraph.connected_components((matrices != 0).any(0))
    sizes = np.bincount(label)[label]
    for size in np.unique(sizes):
        some = np.flatnonzero(sizes == size)
        here = some[np.argsort(label[some], kind="stable")].reshape(-1, size)
        own = np.ascontiguousarray(matrices[:, here[:, :, None], here[:, None]])
        yield entries[:, here].reshape(-1, size), own.reshape(-1, size, size)


def _roots(matrices: np.ndarray, floor: float) -> np.ndarray:
    """S with S Sᵀ the inverse of each; of the indefinite ones, curvatures without their sign, and none below `floor`."""
    out, indefinite = np.empty(matrices.shape), np.zeros(len(matrices), bool)
    for k, matrix in enumerate(matrices):
        factor, failed = scipy.linalg.lapack.dpotrf(matrix, lower=True)
        indefinite[k] = failed > 0
        if not indefinite[k]:
            out[k] = scipy.linalg.lapack.dtrtri(factor, lower=True)[0].T
    values, vectors = np.linalg.eigh(matrices[indefinite])
    out[indefinite] = vectors / np.sqrt(np.maximum(np.abs(values), floor))[:, None, :]
    return out


def with_few_hessians(
    objective: AbstractObjective,
    theta: PyTree,
    weights: Float[np.ndarray, " units"],
    null_space: Float[np.ndarray, "flat params"],
) -> tuple[float, np.ndarray, bool]:
    """Newton steps with one Hessian, where many would be too dear: F, the raveled minimiser, converged.

    As long as they do not contract, L-BFGS goes on in coordinates in which that Hessian, or what of a multiple of the identity
    makes it positive definite beside it, is the identity; then from a Hessian at where that leads.
    """
    for _ in range(HESSIANS):
        hessian = np.asarray(pieces(objective, theta, weights)[2])
        hessian = hessian + np.asarray(null_space_matrix(null_space, hessian)) if len(null_space) else hessian
        factor = factorised(hessian)
        if factor is not None:
            solve = lambda _, slope, factor=factor: scipy.linalg.cho_solve((factor, True), slope)
            value, vector, size = contract(objective, theta, weights, solve)
            if size < SETTLED:
                return value, vector, True
        shift = FLATTEST * np.abs(np.diag(hessian)).max()
        while factor is None and np.isfinite(shift):
            factor, shift = factorised(hessian + shift * np.eye(len(hessian))), 10 * shift
        if factor is None:
            break
        unwhitener = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True).T
        theta, _ = descended(objective, theta, weights, unwhitener=unwhitener, gtol=1e-6, ftol=1e-15, maxiter=WALK)
    reached = float(value_and_gradient(objective, theta, weights)[0])
    return reached, np.asarray(ravel(theta)), False


def contract(
    objective: AbstractObjective,
    theta: PyTree,
    weights: Float[np.ndarray, " units"],
    solve: Callable[[PyTree, Float[np.ndarray, " params"]], Float[np.ndarray, " params"]],
    steps: int = STEPS,
) -> tuple[float, np.ndarray, float]:
    """Steps `solve(θ, gradient)` for as long as they contract: F, the raveled θ, the last decrement `√(gᵀ step)`."""
    vector, size = np.asarray(ravel(theta)), np.inf
    for _ in range(steps):
        at = placed(vector, theta)
        value, gradient = (np.asarray(part) for part in value_and_gradient(objective, at, weights))
        step = solve(at, gradient)
        before, size = size, max(float(gradient @ step), 0.0) ** 0.5
        if not size < 0.9 * before:  # at the floor, or no contraction
            break
        vector = vector - step
    return float(value), vector, size


@eqx.filter_jit
def value_and_gradient(
    objective: AbstractObjective, theta: PyTree, weights: Float[Array, " units"]
) -> tuple[Scalar, Float[Array, " params"]]:
    """F(θ, w) and its gradient."""
    value, gradient = jax.value_and_grad(objective.loss)(theta, weights)
    return value, ravel(gradient)


@eqx.filter_jit
def curved(
    objective: AbstractObjective, theta: PyTree, weights: Float[Array, " units"], vector: Float[Array, " params"]
) -> Float[Array, " params"]:
    """∇²F(θ, w) times a vector."""
    slope = jax.grad(lambda v: objective.loss(unravel(v, theta), weights))
    return jax.jvp(slope, (ravel(theta),), (vector,))[1]


def newton(
    objective: AbstractObjective,
    theta: PyTree,
    weights: Float[np.ndarray, " units"],
    null_space: Float[np.ndarray, "flat params"],
    metric: Float[np.ndarray, "params params"] | None = None,
) -> tuple[float, np.ndarray, bool, float]:
    """Newton's method with a backtracking line search from θ, by descent only: F, the raveled minimiser, converged, last step.

    Convergence is judged in one fixed metric (that of the factor `metric`, by default of the Hessian at the start):
    under separation the decrement in the current metric goes to zero while the parameters run away.
    """
    start = vector = np.asarray(ravel(theta))
    size, converged = np.inf, False
    F = lambda vector: float(value_and_gradient(objective, placed(vector, theta), weights)[0])
    value = F(start)
    for _ in range(STEPS):
        gradient, hessian = (np.asarray(part) for part in pieces(objective, placed(vector, theta), weights)[1:])
        if not (np.isfinite(value) and np.isfinite(gradient).all() and np.isfinite(hessian).all()):
            break
        own = factorised(hessian + np.asarray(null_space_matrix(null_space, hessian)) if len(null_space) else hessian)
        if metric is None:
            metric = np.eye(len(start)) if own is None else own
        step = scipy.linalg.cho_solve((metric if own is None else own, True), gradient)
        new, s = _searched(F, vector, value, step, float(gradient @ step))
        vector, value, size = vector - s * step, new, float(np.linalg.norm(metric.T @ step))
        moved = float(np.linalg.norm(metric.T @ (vector - start)))
        converged = own is not None and s == 1 and (size <= 1e-8 * moved or size <= 1e-11 * np.sqrt(abs(value)))
        if converged:
            break
    return value, vector, bool(converged), size


def _searched(
    F: Callable[[np.ndarray], float], vector: np.ndarray, value: float, step: np.ndarray, slope: float
) -> tuple[float, float]:
    """F after the step, halved until it falls enough, and what is left of the step; all of it where F is too flat to tell."""
    s, new = 1.0, F(vector - step)
    while slope > 1e-12 * abs(value) and not new <= value - 1e-4 * s * slope and s > 1e-12:
        s /= 2
        new = F(vector - s * step)
    return new, s


def factorised(hessian: Float[np.ndarray, "params params"], least: float = PIVOT) -> Float[np.ndarray, "params params"] | None:
    """Cholesky's factor; None where the matrix is not positive definite beyond rounding."""
    try:
        factor = np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        return None
    return factor if (np.diag(factor) ** 2 > least * np.diag(hessian)).all() else None


def null_space_matrix(null_space: Array, hessian: Array) -> Array:
    """Curvature put along flat directions: steps, being orthogonal to them, do not change."""
    scaled = scaled_null_space(null_space, hessian)
    return scaled.T @ scaled


def scaled_null_space(null_space: Array, hessian: Array) -> Array:
    """Each of them with the mean curvature of the parameters that it is of, so that units of measurement do not matter."""
    curvature, lengths = jnp.diagonal(hessian), jnp.sum(null_space**2, axis=1)
    own = null_space**2 @ curvature / lengths
    return null_space * jnp.sqrt(jnp.where(own > 0, own, jnp.mean(jnp.abs(curvature))) / lengths)[:, None]


@eqx.filter_jit
def pieces(objective: AbstractObjective, theta: PyTree, weights: Array) -> tuple[Scalar, Array, Array]:
    value, gradient = jax.value_and_grad(objective.loss)(theta, weights)
    return value, ravel(gradient), objective.hessian(theta, weights)
