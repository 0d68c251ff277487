"""Minimisation of `F(·, w)`: descent to the neighbourhood of a minimum, and Newton's method into
it.

A minimisation goes down one ladder, of which each model takes the rungs that it can afford:

    rung      method                                        used
    walk      L-BFGS with the model's preconditioner
    where a Hessian costs many gradients, or F is not convex
    approach  BFGS, L-BFGS                                  the same, if there is no preconditioner
    near      Newton steps that share Hessians              after a walk, up to 2,000 parameters
    few       L-BFGS between Newton steps of one Hessian    above 2,000 parameters
    products  Newton steps by conjugate gradients
    where H is never formed (`hessian_products`)
    newton    a Hessian each step, with a line search       everywhere else, and at the end
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from ..linalg.enclosure_theorem import CurvatureBounds, ball, gaps
from ..objectives.batch_functions import (
    ONE,
    Function,
    Functions,
    LinearBatch,
    PenaltyBatch,
    preconditioner,
)
from ..objectives.objective import (
    AbstractLinearPredictor,
    AbstractObjective,
    DiagonalBlocks,
    PerRefit,
    RefitPoints,
    Vector,
)

Array = np.ndarray
Matrix = Float[Array, "params params"]
Matrices = Float[Array, "some params params"]
AnyMatrices = Float[Array, "*some params params"]
Marks = Bool[Array, " some"]

MAX_NEWTON_STEPS = 100  # Newton steps before a minimisation counts as not converged
LARGE_NUM_PARAMETERS = 2000  # parameters beyond which one Hessian, or its eigenvalues, take a while
# largest number of Hessians of such a model, and of steps of L-BFGS with each
HESSIANS = 20
WALK = 200
# the same with a preconditioner of the model, and the memory of L-BFGS
PRECONDITIONERS = 200
STROLL = 50
MEMORY = 20
# least pivot, relative to the parameter's curvature; below it most is rounding, as under separation
PIVOT = 1e-14
# least curvature added to a Hessian, or left in a preconditioner, relative to the largest
SMALLEST_ADDED_CURVATURE = 1e-8
# slopes, in its coordinates, at which L-BFGS stops to test whether Newton steps contract
CLOSE = 1e-4, 1e-6
# slopes at which Newton steps are tried; the first is the size of the noise at the true parameters
NEARBY = 1.0, 0.1, 1e-2, 1e-4
QUICK = 0.3  # ratio of successive steps above which a new Hessian is formed
FLOOR_DECREMENT = 1e-5  # decrement at which only rounding remains
OBJECTIVE_ROUNDING = 1e-12  # relative rounding error of F
SMALLEST_DECREASE = 1e-12  # least share of a step that is tried

Flat = Float[Array, "flat params"]


class Minimisation(NamedTuple):
    """Result of a minimisation: F, raveled θ, and whether that is a minimum."""

    value: float
    theta: Vector
    converged: bool


def dear(objective: AbstractObjective, size: int) -> bool:
    """Whether a Hessian costs many gradients."""
    # the Hessian has a block for each pair of outputs
    several = objective.predictors is not None and objective.predictors.design.outputs > 1
    # parameters from which a Hessian costs many gradients, unless that is a sum over rows
    costly_hessian_parameters = 30
    return size > costly_hessian_parameters and (
        several or not isinstance(objective, AbstractLinearPredictor)
    )


def minimise(
    objective: AbstractObjective,
    F: Function,
    start: Vector,
    weights: Float[Array, " units"],
    flat: Flat,
) -> Minimisation:
    """Minimise F from one start, without the directions that are known to be flat.

    `weights` are those of F.
    """
    theta, large, state = start, start.size > LARGE_NUM_PARAMETERS, None
    # largest last step, relative to a parameter or to one; a longer one means that parameters
    # diverge
    runaway_step = 1e-3
    if dear(objective, theta.size) or not objective.convex:
        for gtol in CLOSE if large else NEARBY:
            state = walk(objective, F, theta, weights, gtol, state)
            if state is None:  # there is no preconditioner
                bfgs = theta.size <= 500 and not objective.convex
                ftol, maxiter = (1e-15, theta.size // 2) if large else (1e-12, 2000)
                options = (
                    {"method": "BFGS", "maxiter": 2000}
                    if bfgs
                    else {"ftol": ftol, "maxiter": maxiter}
                )
                theta, _ = descend(F, theta, gtol=1e-6, **options)
                break
            theta, solve = state.theta, _shared_hessian(F, flat)
            if large:
                solve = lambda _, slope, state=state: state.newton(slope)
            value, candidate, size, step = contract(
                F,
                theta,
                solve,
                enough=0.0 if large else QUICK * FLOOR_DECREMENT,
                downhill=not large,
            )
            settled = (
                large or (np.abs(step) <= runaway_step * np.maximum(1.0, np.abs(candidate))).all()
            )
            if size < FLOOR_DECREMENT and settled:
                return Minimisation(value, candidate, True)
        if large:
            return with_few_hessians(F, theta, flat)
    values, thetas, converged, _ = newton(F.of, theta[None], ONE, flat)
    return Minimisation(
        float(values[0]), thetas[0], bool(converged[0]) or _nearby(F, thetas[0], flat)
    )


def _shared_hessian(F: Function, flat: Flat) -> Callable[[Vector, Vector], Vector]:
    """Newton steps of which each Hessian serves for as many as contract quickly with it.

    NaN where it has no factor.
    """
    factor = None
    before = np.inf

    def solve(theta: Vector, gradient: Vector) -> Vector:
        nonlocal factor, before
        if factor is None:
            step = None
        else:
            step = scipy.linalg.cho_solve((factor, True), gradient)
        if step is None or max(gradient @ step, 0.0) ** 0.5 > max(QUICK * before, FLOOR_DECREMENT):
            factor = factorise(with_flat(F.hessian(theta), flat))
            if factor is None:
                step = np.full_like(gradient, np.nan)
            else:
                step = scipy.linalg.cho_solve((factor, True), gradient)
        before = max(gradient @ step, 0.0) ** 0.5
        return step

    return solve


def _nearby(F: Function, theta: Vector, flat: Flat) -> bool:
    """Tell whether a minimiser is proved to lie within rounding of θ, for linear predictors whose
    steps ended there.
    """
    if not isinstance(F.of, LinearBatch) or not np.isfinite(theta).all():
        return False
    hessian = F.hessian(theta)
    factor = factorise(with_flat(hessian, flat))
    if factor is None:
        return False
    root = scipy.linalg.lapack.dtrtri(factor, lower=1)[0].T
    size = float(np.linalg.norm(F.look(theta)[1] @ root))
    model = F.of.model
    eta = model.eta(theta[None])
    (curvature,) = model.loss.derivatives(eta[0], model.y, (2,))
    norm, mass, *_ = model.design.extent(root.T, model.shares(eta[0], curvature))
    if model.design.outputs > 1:
        reference = np.ones(len(norm))
    else:
        reference = curvature
    gap = gaps(
        model.loss, model.y, eta, CurvatureBounds(reference, reference), 2 * size * norm, reference
    )
    omega = model.weigh(np.ones((1, F.of.num_units)))[0][0]
    enclosure = ball(gap, reference, omega * mass, np.array([size]), np.array([2 * size]))
    # proved distance from the minimiser, relative to the length of θ, at which it counts as reached
    proved_reach = 1e-6
    return bool(
        enclosure.distance[0] <= proved_reach * max(1.0, float(np.linalg.norm(factor.T @ theta)))
    )


def descend(
    F: Function,
    theta: Vector,
    method: str = "L-BFGS-B",
    unwhitener: "np.ndarray | scipy.sparse.linalg.LinearOperator | None" = None,
    **options: float,
) -> "tuple[Vector, scipy.optimize.OptimizeResult]":
    """Descend by one of SciPy's quasi-Newton methods from a θ where F is finite.

    If `unwhitener` is given, it works in coordinates u, in which `unwhitener @ u` is the
    displacement of θ. BFGS ends where two values differ by rounding, of which its line searches
    know nothing. Returns θ, and SciPy's result in these coordinates.
    """
    scale = (lambda v: v) if unwhitener is None else (lambda v: unwhitener @ v)
    origin, first = (0.0, theta) if unwhitener is None else (theta, np.zeros_like(theta))
    lowest = scipy.optimize.OptimizeResult(x=first, fun=np.inf)

    def look(u: Array) -> tuple[float, Array]:
        value, gradient = F.look(origin + scale(u))
        same = abs(value - lowest.fun) <= OBJECTIVE_ROUNDING * abs(value) and not np.array_equal(
            u, lowest.x
        )
        if value < lowest.fun:
            lowest.x = u.copy()
            lowest.fun = value
        if same and method == "BFGS":
            raise StopIteration
        return value, gradient if unwhitener is None else unwhitener.T @ gradient

    # line searches try points where F overflows, and go back
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            result = scipy.optimize.minimize(look, first, jac=True, method=method, options=options)
        except StopIteration:
            result = lowest
    return origin + scale(result.x) if np.isfinite(result.fun) else theta, result


class LBFGSState(NamedTuple):
    """Result of a run of L-BFGS, its inverse Hessian, and the coordinates of that inverse."""

    theta: Vector
    unwhitener: "scipy.sparse.linalg.LinearOperator"
    inverse: "scipy.sparse.linalg.LinearOperator"

    def newton(self, slope: Vector) -> Vector:
        """Step for a gradient by the inverse Hessian of L-BFGS."""
        return self.unwhitener @ (self.inverse @ (self.unwhitener.T @ slope))


def walk(
    objective: AbstractObjective,
    F: Function,
    theta: Vector,
    weights: Float[Array, " units"],
    gtol: float,
    before: LBFGSState | None = None,
) -> LBFGSState | None:
    """Run L-BFGS in coordinates in which the model's preconditioner is the identity, until no slope
    in them is above `gtol`.

    The coordinates are renewed on the way. Returns None if the model has no preconditioner.
    `before` is the walk that led to θ.
    """
    if before is None:
        learnt = None
    else:
        learnt = (before.unwhitener, before.inverse)
    for _ in range(PRECONDITIONERS):
        parts = preconditioner(objective, F.to_tree(theta), weights)
        if not parts:
            return None
        unwhitener = _unwhitener(parts)
        theta, result = descend(
            F, theta, unwhitener=unwhitener, gtol=gtol, ftol=1e-15, maxiter=STROLL, maxcor=MEMORY
        )
        # otherwise the earlier inverse Hessian is better
        if learnt is None or result.nit >= MEMORY:
            learnt = unwhitener, result.hess_inv
        if result.nit < STROLL:
            break
    assert learnt is not None
    return LBFGSState(theta, *learnt)


def _unwhitener(parts: tuple[DiagonalBlocks, ...]) -> "scipy.sparse.linalg.LinearOperator":
    """Operator S with S Sᵀ the inverse of the blocks' matrix, whose curvatures are made positive
    and kept away from zero.
    """
    roots = []
    for part in parts:
        # of indefinite blocks
        floor = SMALLEST_ADDED_CURVATURE * (float(np.abs(part.matrices).max(initial=0.0)) or 1.0)
        for entries, matrices in _split_blocks(part):
            root, indefinite = np.empty(matrices.shape), np.zeros(len(matrices), bool)
            for k, matrix in enumerate(matrices):
                factor, failed = scipy.linalg.lapack.dpotrf(matrix, lower=True)
                indefinite[k] = failed > 0
                if not indefinite[k]:
                    root[k] = scipy.linalg.lapack.dtrtri(factor, lower=True)[0].T
            values, vectors = np.linalg.eigh(matrices[indefinite])
            root[indefinite] = vectors / np.sqrt(np.maximum(np.abs(values), floor))[:, None, :]
            roots.append((entries, root))
    size = sum(entries.size for entries, _ in roots)

    def times(vector: Array, transposed: bool) -> Array:
        out = np.empty(size)
        for entries, root in roots:
            matrices = root.swapaxes(1, 2) if transposed else root
            out[entries] = (matrices @ np.ravel(vector)[entries][..., None])[..., 0]
        return out

    operator = scipy.sparse.linalg.LinearOperator
    return operator(
        (size, size), lambda v: times(v, False), rmatvec=lambda v: times(v, True), dtype=float
    )


def _split_blocks(part: DiagonalBlocks) -> Iterator[tuple[Array, Array]]:
    """Split blocks into the smaller blocks that they decompose into, those of one size together."""
    entries = np.asarray(part.entries)
    matrices = np.asarray(part.matrices)
    _, label = scipy.sparse.csgraph.connected_components((matrices != 0).any(0))
    sizes = np.bincount(label)[label]
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        groups = members[np.argsort(label[members], kind="stable")].reshape(-1, size)
        blocks = np.ascontiguousarray(matrices[:, groups[:, :, None], groups[:, None]])
        yield entries[:, groups].reshape(-1, size), blocks.reshape(-1, size, size)


def with_few_hessians(F: Function, theta: Vector, flat: Flat) -> Minimisation:
    """Minimise by Newton steps that share one Hessian, where a Hessian a step would cost too much.

    As long as the steps do not contract, L-BFGS goes on in coordinates in which that Hessian is the
    identity, or the Hessian plus the multiple of the identity that makes it positive definite. At
    the end of that run a new Hessian is formed.
    """
    for _ in range(HESSIANS):
        hessian = with_flat(F.hessian(theta), flat)
        factor = factorise(hessian)
        if factor is not None:
            solve = lambda _, slope, factor=factor: scipy.linalg.cho_solve((factor, True), slope)
            value, vector, size, _ = contract(F, theta, solve)
            if size < FLOOR_DECREMENT:
                return Minimisation(value, vector, True)
        shift = SMALLEST_ADDED_CURVATURE * np.abs(np.diag(hessian)).max()
        while factor is None and np.isfinite(shift):
            factor = factorise(hessian + shift * np.eye(len(hessian)))
            shift = 10 * shift
        if factor is None:
            break
        unwhitener = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True).T
        theta, _ = descend(F, theta, unwhitener=unwhitener, gtol=1e-6, ftol=1e-15, maxiter=WALK)
    return Minimisation(F.look(theta)[0], theta, False)


def contract(
    F: Function,
    theta: Vector,
    solve: Callable[[Vector, Vector], Vector],
    steps: int = MAX_NEWTON_STEPS,
    enough: float = 0.0,
    downhill: bool = False,
) -> tuple[float, Vector, float, Vector]:
    """Take steps `solve(θ, gradient)` while they contract, or until the decrement `√(gᵀ step)` is
    small enough.

    If they are to go `downhill`, a rise of F ends them. Returns F, the raveled θ, the last
    decrement, and the last step.
    """
    size = np.inf
    lowest = np.inf
    for _ in range(steps):
        value, gradient = F.look(theta)
        step = solve(theta, gradient)
        before = size
        size = max(float(gradient @ step), 0.0) ** 0.5
        rises = downhill and not value <= lowest + OBJECTIVE_ROUNDING * abs(value)
        if rises or not size < 0.9 * before:  # rounding, or no contraction
            if rises:
                size = np.inf
            break
        theta = theta - step
        lowest = value
        if size <= enough:
            break
    return value, theta, size, step


class NewtonResult(NamedTuple):
    """Result of Newton's method.

    F, raveled θ, whether these are minima, and the lengths of the last steps.
    """

    value: PerRefit
    theta: RefitPoints
    converged: Bool[Array, " refits"]
    size: PerRefit


def newton(
    F: Functions | PenaltyBatch,
    start: RefitPoints,
    lanes: Int[Array, " refits"],
    flat: Flat,
    metric: Matrix | None = None,
    origin: Vector | None = None,
) -> NewtonResult:
    """Run Newton's method with a backtracking line search, by descent only, for several refits side
    by side.

    The refits have come to `start` from `origin`. A costly Hessian serves for as long as its steps
    shrink quickly. Convergence is judged in one fixed metric (that of the factor `metric`, by
    default of the Hessian at the first start): under separation the decrement in the current metric
    goes to zero while the parameters run away.
    """
    theta = start.copy()
    size = np.full(len(start), np.inf)
    converged = np.zeros(len(start), bool)
    value, gradient = (part.copy() for part in F.look(theta, lanes))
    is_open = np.isfinite(value) & np.isfinite(gradient).all(1)
    factors = np.empty((len(start), *2 * start.shape[1:]))
    convex = np.zeros(len(start), bool)
    fresh = is_open.copy()
    # steps shorter than this share of θ that no longer shrink are rounding; under separation they
    # are 1e-2
    step_rounding = 1e-6
    # parameters up to which NumPy's batched solver is faster than a call of LAPACK for each matrix
    small_system = 64
    for _ in range(MAX_NEWTON_STEPS):
        open_lanes = np.flatnonzero(is_open)
        if not open_lanes.size:
            break
        renewed = open_lanes[fresh[open_lanes]]
        if renewed.size:
            factors[renewed], convex[renewed], is_open[renewed] = _factorise_hessians(
                F, theta[renewed], lanes[renewed], flat
            )
            if metric is None:
                if convex[0]:
                    metric = factors[0].copy()
                else:
                    metric = np.eye(theta.shape[1])
            factors[~convex] = metric
        assert metric is not None
        if open_lanes.size > 1 and theta.shape[1] <= small_system:
            once = np.linalg.solve(factors[open_lanes], gradient[open_lanes, :, None])
            step = np.linalg.solve(factors[open_lanes].swapaxes(1, 2), once)[..., 0]
        else:
            step = np.stack(
                [scipy.linalg.cho_solve((factors[k], True), gradient[k]) for k in open_lanes]
            )
        share = _line_search(F, lanes, open_lanes, theta, value, gradient, step)
        before = size[open_lanes]
        size[open_lanes] = np.linalg.norm(step @ metric, axis=1)
        distance = np.linalg.norm(
            (theta[open_lanes] - (start[open_lanes] if origin is None else origin)) @ metric, axis=1
        )
        still = (size[open_lanes] <= 1e-8 * distance) | (
            size[open_lanes] <= 1e-11 * np.sqrt(np.abs(value[open_lanes]))
        )
        short = np.abs(step).max(1, initial=0.0) <= step_rounding * np.abs(theta[open_lanes]).max(
            1, initial=0.0
        )
        short &= (
            size[open_lanes] <= step_rounding * np.linalg.norm(theta[open_lanes] @ metric, axis=1)
        ) & (size[open_lanes] > 0.5 * before)
        converged[open_lanes] = (
            (still | short & fresh[open_lanes]) & (share == 1) & convex[open_lanes]
        )
        is_open[open_lanes] &= (
            np.isfinite(value[open_lanes])
            & np.isfinite(gradient[open_lanes]).all(1)
            & ~converged[open_lanes]
        )
        # otherwise the next step would repeat this one
        is_open[open_lanes] &= (share > SMALLEST_DECREASE) | ~fresh[open_lanes]
        slow = not isinstance(F, LinearBatch | PenaltyBatch)
        fresh[open_lanes] = ~(
            slow & (share == 1) & convex[open_lanes] & (size[open_lanes] <= QUICK * before)
        )
    return NewtonResult(value, theta, converged, size)


def _line_search(
    F: Functions | PenaltyBatch,
    lanes: Array,
    open_lanes: Array,
    theta: Array,
    value: Array,
    gradient: Array,
    step: Array,
) -> Float[Array, " some"]:
    """Take the steps, halved where needed; returns the share of each that was taken, or tried last.

    A step is halved until F falls enough, or does not rise while its slope along the step falls
    (Hager and Zhang 2005). It is taken whole where F is too flat to decide, and not at all if no
    share of it helps.
    """
    promised = np.sum(gradient[open_lanes] * step, axis=1)
    before = value[open_lanes]
    origin = theta[open_lanes]
    slopes = gradient[open_lanes]
    share = np.ones(len(open_lanes))
    wanting = np.ones(len(open_lanes), bool)
    cancellation_noise = 1e-10  # relative noise of F if terms 1e6 times as large cancel
    while wanting.any():
        which = open_lanes[wanting]
        theta[which] = origin[wanting] - share[wanting, None] * step[wanting]
        value[which], gradient[which] = F.look(theta[which], lanes[which])
        enough = value[open_lanes] <= before - 1e-4 * share * promised
        # the last digits of F are rounding where the slope has fallen enough
        with np.errstate(invalid="ignore"):  # infinite where F is
            slope = np.abs(np.sum(gradient[open_lanes] * step, axis=1))
        enough |= (value[open_lanes] <= before + cancellation_noise * np.abs(before)) & (
            slope <= 0.8 * promised
        )
        wanting &= (
            ~enough & (promised > OBJECTIVE_ROUNDING * np.abs(before)) & (share > SMALLEST_DECREASE)
        )
        share[wanting] /= 2
    none = share <= SMALLEST_DECREASE
    theta[open_lanes[none]], value[open_lanes[none]], gradient[open_lanes[none]] = (
        origin[none],
        before[none],
        slopes[none],
    )
    return share


def _factorise_hessians(
    F: Functions | PenaltyBatch, theta: Float[Array, "some params"], lanes: Array, flat: Flat
) -> tuple[Matrices, Marks, Marks]:
    """Compute factors of Hessians, whether each exists, and whether the Hessian is finite.

    Rows in float32 are used as long as their Hessians are accurate enough for steps.
    """
    # least pivot with products in float32, whose steps are off by at most a hundredth
    single_precision_tolerance = 1e-3
    if isinstance(F, LinearBatch) and F.rough is not None:
        factors, convex = _factors(
            with_flat(F.hessian(theta, lanes, F.rough), flat), single_precision_tolerance
        )
        if convex.all():
            return factors, convex, convex
        F.rough = None
    hessian = with_flat(F.hessian(theta, lanes), flat)
    return *_factors(hessian), np.isfinite(hessian).all((1, 2))


def _factors(hessian: Matrices, least: float = PIVOT) -> tuple[Matrices, Marks]:
    """Cholesky factors, and whether each matrix has one.

    Whether it is positive definite beyond rounding.
    """
    try:
        factors = np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        if len(hessian) == 1:
            return np.zeros_like(hessian), np.zeros(1, bool)
        parts = [_factors(matrix[None], least) for matrix in hessian]
        return np.concatenate([part for part, _ in parts]), np.concatenate(
            [definite for _, definite in parts]
        )
    pivot, diagonal = (np.einsum("rpp->rp", part) for part in (factors, hessian))
    return factors, (pivot**2 > least * diagonal).all(1)


def factorise(hessian: Matrix, least: float = PIVOT) -> Matrix | None:
    """Compute the Cholesky factor; None if the matrix is not positive definite beyond rounding."""
    (factor,), (definite,) = _factors(hessian[None], least)
    return factor if definite else None


def with_flat(hessian: AnyMatrices, flat: Flat) -> AnyMatrices:
    """Add curvature along flat directions. Steps are orthogonal to these and do not change."""
    if not len(flat):
        return hessian
    scaled = scaled_flat(flat, hessian)
    return hessian + scaled.swapaxes(-1, -2) @ scaled


def scaled_flat(flat: Flat, hessian: AnyMatrices) -> Float[Array, "*some flat params"]:
    """Scale each flat direction by the mean curvature of its parameters, so that units of
    measurement do not matter.
    """
    curvature = np.einsum("...pp->...p", hessian)
    lengths = np.sum(flat**2, axis=1)
    mean_curvature = curvature @ (flat**2).T / lengths
    return (
        flat
        * np.sqrt(
            np.where(
                mean_curvature > 0,
                mean_curvature,
                np.mean(np.abs(curvature), axis=-1, keepdims=True),
            )
            / lengths
        )[..., None]
    )
