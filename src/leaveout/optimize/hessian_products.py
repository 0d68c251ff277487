"""Curvature by Hessian-vector products, for models with too many parameters to form a matrix.

Everything is done in coordinates u in which the Hessian is near the identity, θ − θ̂ = S u, with S
a positive diagonal: solves by conjugate gradients, the smallest eigenvalue by Lanczos' method,
minimisation by L-BFGS and Newton steps after it.

A solve uses what earlier solves with nearly the same matrix have found. The directions W of some of
them, made H-orthonormal, and their images Y = HW with WᵀY = 1, give

    (1 − W Yᵀ) D (1 − Y Wᵀ) + W Wᵀ

as an approximate inverse. It equals H⁻¹ on the span of W and D beside it, and is positive definite
for whatever H it is used (Gratton, Sartenaer & Tshimanga 2011). Unlike eigenvectors it costs no
product of its own. D is the identity; if a model knows the diagonal of H, D is the inverse of its
square root, half-way between coordinates in which few directions are steep and those in which few
are flat (for a CRF of 65,169 weights, solves to 0.1 and 0.01 took 12 and 21 products without it, 6
and 12 with it).
"""

from typing import NamedTuple, Protocol

import numpy as np
import scipy
from jaxtyping import Float
from numpy import linalg
from numpy.random import default_rng

from .._runtime import Module, NumpyArray, ParamRows, PyTree, Slow
from ..linalg import Directions, Lanes, LaneState, Proposal, SparseDesign, decrements, solve
from ..objectives import (
    ONE,
    AbstractObjective,
    Function,
    Functions,
    HostBatch,
    LinearBatch,
    PerRefit,
    RefitNumbers,
    RefitPoints,
    Vector,
    as_stored,
)
from .newton import Flat, Minimisation, contract, descend

Vectors = Float[NumpyArray, "*refits params"]  # one vector of parameters, or one a refit

# Residuals of solves, relative to the gradient: of the first steps, of the last, of one that is not
# corrected, of one for users.
ROUGH = 0.1
LOOSE = 1e-3
COARSE = 1e-6
FINE = 1e-12
# Largest number of learnt directions, for derived products and for products in array code, which
# take no longer than a pass over so many directions; and largest number of entries in them (a
# quarter of a gigabyte).
DIRECTIONS = 128, 48
NUMBERS = 2**25
SMALLEST_SINGLE_SHARE = 1e-5  # the same in single precision, of a matrix of products
# least curvature of a direction, relative to the largest, that is told from rounding
SMALLEST_RESOLVED_CURVATURE = 1e-8
# decrements, relative to √F: that of a minimum; one after which no further step is taken
MINIMUM_DECREMENT = 1e-6
LAST_DECREMENT = 1e-9
# relative fall of F by a step of L-BFGS at which Newton steps are tried: in array code; for other
# models
NEARBY = 1e-4, 1e-6


class Coordinates(Protocol):
    """Coordinates u in which a Hessian is near the identity."""

    def whiten(self, gradient: Vectors) -> Vectors:
        """Convert gradients in θ to gradients in u."""

    def unwhiten(self, u: Vectors) -> Vectors:
        """Convert u to displacements of θ."""


class Scaling(Module):
    """Coordinates u = S⁻¹ (θ − θ̂); `scale` is the diagonal of S."""

    scale: Vector

    def whiten(self, gradient: Vectors) -> Vectors:
        """Convert gradients in θ to gradients in u."""
        return gradient * self.scale

    def unwhiten(self, u: Vectors) -> Vectors:
        """Convert u to displacements θ − θ̂."""
        return u * self.scale

    def back(self, displacement: Vectors) -> Vectors:
        """Convert displacements θ − θ̂ to u."""
        return displacement / self.scale

    def raw(self, whitened: Vectors) -> Vectors:
        """Convert gradients in u to gradients in θ."""
        return whitened / self.scale


class DeflationPreconditioner(NamedTuple):
    """Approximate inverse learnt from solves, in coordinates u.

    It has H-orthonormal directions W and Y = HW, as rows, and the diagonal D.
    """

    directions: Float[NumpyArray, "learnt params"]
    images: Float[NumpyArray, "learnt params"]
    diagonal: Vector

    def about(self, gradient: RefitPoints) -> RefitPoints:
        """Approximate `H⁻¹ g`."""
        along = gradient @ self.directions.T
        remainder = (gradient - along @ self.images) * self.diagonal
        return remainder + (along - remainder @ self.images.T) @ self.directions


class NystromPreconditioner(NamedTuple):
    """Inverse of I + Â ≤ H = I + A, A the part of the data in H where the curvature of the penalty
    is the identity.

    Â = AΩ (ΩᵀAΩ)⁻¹ ΩᵀA with random Ω (Z. Frangella, J. A. Tropp and M. Udell, Randomized Nyström
    preconditioning, 2023), and the inverse is I − RᵀR. It is at least H⁻¹.
    """

    rows: Directions

    def about(self, gradient: RefitPoints) -> RefitPoints:
        """Approximate `H⁻¹ g`, from above."""
        return gradient - (gradient.astype(np.float32, copy=False) @ self.rows.T) @ self.rows


def sketch(F: Function, coordinates: Scaling, theta: Vector, rank: int) -> NystromPreconditioner:
    """Approximate the inverse of H by products in single precision, twice `rank`.

    Ω spans what A makes of random vectors.
    """
    along = default_rng(0).standard_normal((rank, theta.size), np.float32)
    scale = coordinates.scale.astype(np.float32)
    image = np.empty_like(along)
    with Slow("curvature", 2 * rank) as bar:
        for power in range(2):
            for vector, out in zip(along, image, strict=True):
                out[:] = scale * products(F, theta, (scale * vector)[None])[0] - vector
                bar.advance(1)
            if not power:
                along = np.ascontiguousarray(linalg.qr(image.T)[0].T)
    values, vectors = linalg.eigh((along @ image.T).astype(float))
    resolved = values > SMALLEST_SINGLE_SHARE * values.max()
    half = (vectors[:, resolved] / np.sqrt(values[resolved])).T.astype(
        np.float32
    ) @ image  # Â = halfᵀ half
    values, vectors = linalg.eigh((half @ half.T).astype(float))
    return NystromPreconditioner((vectors / np.sqrt(1 + values)).T.astype(np.float32) @ half)


def unlearnt(F: Function, coordinates: "Scaling", theta: Vector) -> DeflationPreconditioner:
    """Approximate inverse before any solve: D alone."""
    none = np.zeros((0, theta.size))
    diagonal = np.ones(theta.size)
    if isinstance(F.of, HostBatch):
        diagonal = 1 / np.sqrt(F.of.arrays.diagonal(theta) * coordinates.scale**2)
    return DeflationPreconditioner(none, none, diagonal)


def most_learnt(F: Function, size: int) -> int:
    """Number of directions that are kept for a model of `size` parameters."""
    return min(DIRECTIONS[isinstance(F.of, HostBatch)], max(1, NUMBERS // (2 * size)), size)


def orthonormal(
    directions: ParamRows, images: ParamRows, diagonal: Vector
) -> DeflationPreconditioner:
    """H-orthonormal basis of the span of directions, some of which may be alike up to rounding."""
    inside = directions @ images.T
    values, vectors = linalg.eigh((inside + inside.T) / 2)
    resolved = values > SMALLEST_RESOLVED_CURVATURE * values.max(initial=0.0)
    vectors = (vectors[:, resolved] / np.sqrt(values[resolved])).T
    return DeflationPreconditioner(vectors @ directions, vectors @ images, diagonal)


class Solve:
    """Conjugate gradients for several refits side by side.

    Keeps the directions of the first one.
    """

    def __init__(
        self,
        F: Functions,
        coordinates: Coordinates,
        null_space: Flat,
        preconditioner: DeflationPreconditioner | NystromPreconditioner | None = None,
        keep: int = 0,
    ):
        self.F = F
        self.coordinates = coordinates
        self.null_space = null_space
        self.inverse = preconditioner
        self.keep = keep
        self.most = 1000  # largest number of products of a solve
        self.directions: list[tuple[Vector, Vector]] = []
        # estimate of the part that is not solved, in the norm of the Hessian
        self.remainder: PerRefit = np.zeros(0)

    def __call__(
        self,
        theta: RefitPoints,
        gradient: RefitPoints,
        lanes: RefitNumbers,
        tol: float,
    ) -> RefitPoints:
        """Solve `(∇²F(θ, w) + null_spaceᵀ null_space) u = gradient` for each refit, all in
        coordinates u.

        A solve ends when its residual is `tol` of its gradient, both measured by the learnt
        inverse, or when it meets a direction along which F curves down.
        """

        def product(u: NumpyArray, places: NumpyArray) -> NumpyArray:
            step = np.asarray(self.coordinates.unwhiten(u))
            image = self.F.products(theta[places], lanes[places])(step)
            image = image + (step @ self.null_space.T) @ self.null_space
            return np.asarray(self.coordinates.whiten(image))

        def precondition(residual: NumpyArray, _: NumpyArray) -> NumpyArray:
            return residual if self.inverse is None else self.inverse.about(residual)

        solution = solve(product, precondition, gradient, self.most, tol, record=self._keep)
        least = np.maximum(solution.least, SMALLEST_RESOLVED_CURVATURE)
        remainder = np.sqrt(solution.square / np.minimum(1.0, least))
        self.remainder = np.where(solution.is_convex, remainder, 0.0)
        is_downward = ~solution.is_convex & (solution.length == 0)
        return np.where(is_downward[:, None], gradient, solution.x)

    def _keep(self, direction: NumpyArray, image: NumpyArray, curvature: NumpyArray) -> None:
        """Keep the direction of the first system."""
        if len(self.directions) < self.keep and len(curvature):
            size = np.sqrt(curvature[0])
            self.directions.append((direction[0] / size, image[0] / size))

    def extended_inverse(self) -> DeflationPreconditioner:
        """Learnt inverse with the directions of this solve added."""
        assert isinstance(self.inverse, DeflationPreconditioner)
        if not self.directions:
            return self.inverse
        directions, images, diagonal = self.inverse
        along, new_images = map(np.array, zip(*self.directions, strict=True))
        return orthonormal(
            np.concatenate([directions, along]), np.concatenate([images, new_images]), diagonal
        )


def solve_once(
    F: Functions,
    coordinates: Coordinates,
    null_space: Flat,
    theta: RefitPoints,
    gradient: RefitPoints,
    lanes: RefitNumbers,
    tol: float,
    preconditioner: DeflationPreconditioner | None = None,
) -> RefitPoints:
    """Run `Solve` once, without learning from it."""
    return Solve(F, coordinates, null_space, preconditioner)(theta, gradient, lanes, tol)


def learn(
    F: Function, scaling: "Scaling", null_space: Flat, theta: Vector
) -> DeflationPreconditioner:
    """Learn an approximate inverse at θ from a few solves of random right sides.

    Nothing is learnt for sparse rows, as a product takes less time than the learnt inverse would
    add.
    """
    learnt = unlearnt(F, scaling, theta)
    most = most_learnt(F, theta.size)
    if _has_sparse_rows(F):
        return learnt
    rng = default_rng(0)
    # number of solves to learn from (for a CRF they reduce 38 products of a solve to 38 %, two more
    # to 34 %)
    solves = 2
    with Slow("curvature", solves) as bar:
        for part in range(1, solves + 1):
            learning = Solve(
                F.of, scaling, null_space, learnt, most * part // solves - len(learnt.directions)
            )
            learning.most = learning.keep
            learning(theta[None], rng.standard_normal((1, theta.size)), ONE, LOOSE)
            learnt = learning.extended_inverse()
            bar.advance(1)
    return DeflationPreconditioner(*map(as_stored, learnt))


def products(
    F: Function, theta: Vector, vectors: Float[NumpyArray, "k params"]
) -> Float[NumpyArray, "k params"]:
    """Multiply each vector by H."""
    return F.of.products(np.broadcast_to(theta, vectors.shape), np.zeros(len(vectors), int))(
        vectors
    )


def decrement_of(
    F: Function, coordinates: "Scaling", null_space: Flat, theta: Vector, gradient: Vector
) -> float:
    """Decrement √(gᵀH⁻¹g); the error of conjugate gradients enters by its square only."""
    whitened = coordinates.whiten(gradient)[None]
    u = solve_once(
        F.of,
        coordinates,
        null_space,
        theta[None],
        whitened,
        ONE,
        ROUGH,
        unlearnt(F, coordinates, theta),
    )
    return max(float(np.sum(whitened * u)), 0.0) ** 0.5


def scaling(objective: AbstractObjective, F: Function, theta: Vector) -> Scaling:
    """Choose coordinates at θ, by the positive diagonal whose inverse is S².

    It is the curvature of the penalty, to which the data add little in most directions and much in
    a few. If the penalty has next to none, it is Hutchinson's estimate of diag(H), `E[z ∘ Hz]`, z
    of random signs.
    """
    if isinstance(F.of, LinearBatch) and _has_sparse_rows(F):
        return Scaling(as_stored(F.of.diagonal(theta) ** -0.5))
    penalty_curvature = np.asarray(objective.parameters.penalty_curvature(F.to_tree(theta)), float)
    diagonal_probes = 32  # number of products for an estimate of the diagonal
    signs = default_rng(0).choice([-1.0, 1.0], (diagonal_probes, len(penalty_curvature)))
    for probes in (signs[:1], signs):  # the first product decides whether all are needed
        estimate = np.mean(probes * products(F, theta, probes), 0)
        least = 1e-3 * max(float(np.median(np.abs(estimate))), 1e-300)
        if (penalty_curvature > least).all():
            break
    return Scaling(
        as_stored(
            np.where(penalty_curvature > least, penalty_curvature, np.maximum(estimate, least))
            ** -0.5
        )
    )


def _has_sparse_rows(F: Function) -> bool:
    """Tell whether the rows are sparse."""
    return isinstance(F.of, LinearBatch) and isinstance(F.of.model.design, SparseDesign)


def least_curvature(
    F: Function, theta: Vector, scaling: Scaling, null_space: NumpyArray
) -> tuple[float, Vector]:
    """Smallest eigenvalue of H in coordinates u, to a few per cent of the largest, and its
    vector.
    """
    size = len(scaling.scale)
    product = F.products(theta)

    def along(u):
        step = scaling.unwhiten(np.ravel(u))
        return scaling.whiten(product(step) + null_space.T @ (null_space @ step))

    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=along, dtype=float)
    start = default_rng(0).standard_normal(size)
    try:
        values, vectors = scipy.sparse.linalg.eigsh(
            operator, k=1, which="SA", v0=start, ncv=20, maxiter=20, tol=1e-2
        )
    # a cluster of eigenvalues near the end, not negative, is known well enough
    except scipy.sparse.linalg.ArpackNoConvergence as stopped:
        if not len(stopped.eigenvalues):
            vector = start / linalg.norm(start)
            return float(vector @ along(vector)), vector
        values = stopped.eigenvalues
        vectors = stopped.eigenvectors
    return float(values[0]), vectors[:, 0]


def minimise_by_products(objective: AbstractObjective, F: Function, start: Vector) -> Minimisation:
    """Minimise by L-BFGS, then by Newton steps that learn from one another.

    For convex F these are tried early.
    """
    early = (
        (NEARBY[not (_has_sparse_rows(F) or isinstance(F.of, HostBatch))],)
        if objective.convex
        else ()
    )
    run = Minimisation(np.inf, start, False)
    for ftol in (*early, 1e-12):
        about = None
        if isinstance(F.of, HostBatch):  # products are with D
            root = F.of.arrays.diagonal(run.theta) ** -0.25
            times = lambda v, root=root: root * np.ravel(v)
            about = scipy.sparse.linalg.LinearOperator(
                (start.size, start.size), times, rmatvec=times, dtype=float
            )
        theta, _ = descend(
            F, run.theta, unwhitener=about, gtol=1e-5, ftol=ftol, maxiter=20000, maxfun=40000
        )
        run = _newton(objective, F, theta)
        if run.converged:
            break
    return run


def _newton(objective: AbstractObjective, F: Function, theta: Vector) -> Minimisation:
    """Run Newton steps by products as long as they contract."""
    coordinates = scaling(objective, F, theta)
    learnt = unlearnt(F, coordinates, theta)
    null_space = whitened_null_space(objective, F.to_tree(theta), coordinates)
    most = most_learnt(F, theta.size)
    before = 0.0

    def propose(state: LaneState, lanes: Lanes) -> Proposal:
        nonlocal learnt, before
        whitened = coordinates.whiten(state.gradient)
        size = float(linalg.norm(whitened))
        tol = max(LOOSE, min(ROUGH, size / before if before else ROUGH))
        before = size
        keep = 0 if _has_sparse_rows(F) else most - len(learnt.directions)
        learning = Solve(F.of, coordinates, null_space, learnt, keep)
        u = learning(state.theta, whitened, ONE, tol)
        learnt = learning.extended_inverse()
        return Proposal(coordinates.unwhiten(u), decrements(u, whitened))

    max_product_newton_steps = 30  # largest number of Newton steps by products
    enough = LAST_DECREMENT * max(1.0, abs(F.look(theta)[0])) ** 0.5
    run = contract(F, theta, propose, max_product_newton_steps, enough)
    value = float(run.value[0])
    converged = run.length[0] <= MINIMUM_DECREMENT * max(1.0, abs(value)) ** 0.5
    return Minimisation(value, run.theta[0], bool(converged))


def whitened_null_space(objective: AbstractObjective, theta: PyTree, scaling: Scaling) -> Flat:
    """Return the flat directions of the model, scaled to the size of the curvature."""
    return np.sqrt(np.mean(scaling.scale**-2.0)) * np.asarray(
        objective.parameters.symmetries(theta), float
    )
