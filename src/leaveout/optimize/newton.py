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
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float
from numpy import linalg

from .._runtime import NumberAndArray, NumpyArray, TwoArrays, silence
from ..linalg import (
    MAX_LOOKS,
    SMALLEST_SHARE,
    VALUE_ROUNDING,
    Accept,
    Curvature,
    CurvatureBounds,
    Lanes,
    LaneState,
    Proposal,
    Propose,
    SharedFactors,
    anywhere,
    ball,
    decrements,
    descends,
    gaps,
    iterate,
)
from ..objectives import (
    ONE,
    AbstractLinearPredictor,
    AbstractObjective,
    DiagonalBlocks,
    Function,
    Functions,
    LinearBatch,
    Matrix,
    PerRefit,
    PerUnit,
    RefitFlags,
    RefitNumbers,
    RefitPoints,
    Vector,
    preconditioner,
)

AnyMatrices = Float[NumpyArray, "*some params params"]

# Newton steps, and halvings of them, before a minimisation counts as not converged
MAX_NEWTON_STEPS = 150
LARGE_NUM_PARAMETERS = 2000  # parameters beyond which one Hessian, or its eigenvalues, take a while
# largest number of Hessians of such a model, and of steps of L-BFGS with each
HESSIANS = 20
WALK = 200
# the same with a preconditioner of the model, and the memory of L-BFGS
PRECONDITIONERS = 200
STROLL = 50
MEMORY = 20
# least curvature added to a Hessian, or left in a preconditioner, relative to the largest
SMALLEST_ADDED_CURVATURE = 1e-8
# slopes, in its coordinates, at which L-BFGS stops to test whether Newton steps contract
CLOSE = 1e-4, 1e-6
# slopes at which Newton steps are tried; the first is the size of the noise at the true parameters
NEARBY = 1.0, 0.1, 1e-2, 1e-4
QUICK = 0.3  # ratio of successive steps above which a new Hessian is formed
FLOOR_DECREMENT = 1e-5  # decrement at which only rounding remains

Flat = Float[NumpyArray, "flat params"]


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
    weights: PerUnit,
    flat: Flat,
) -> Minimisation:
    """Minimise F from one start, without the directions that are known to be flat.

    `weights` are those of F.
    """
    theta = start
    large = start.size > LARGE_NUM_PARAMETERS
    state = None
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
            theta = state.theta
            if large:
                run = contract(F, theta, steps_by(state.newton))
            else:
                run = contract(
                    F,
                    theta,
                    _SharedHessian(F, flat).propose,
                    enough=QUICK * FLOOR_DECREMENT,
                    accept=descends,
                )
            limits = runaway_step * np.maximum(1.0, np.abs(run.theta))
            settled = large or (np.abs(run.step) <= limits).all()
            if run.length[0] < FLOOR_DECREMENT and run.share[0] > SMALLEST_SHARE and settled:
                return Minimisation(float(run.value[0]), run.theta[0], True)
        if large:
            return with_few_hessians(F, theta, flat)
    values, thetas, converged, _ = newton(F.of, theta[None], ONE, flat)
    return Minimisation(
        float(values[0]), thetas[0], bool(converged[0]) or _nearby(F, thetas[0], flat)
    )


class _SharedHessian(SharedFactors):
    """Newton steps of which each Hessian serves for as many as contract quickly with it."""

    def __init__(self, F: Function, flat: Flat):
        super().__init__(1, QUICK, FLOOR_DECREMENT)
        self.F = F
        self.flat = flat

    def renew(self, theta: RefitPoints, lanes: NumpyArray) -> None:
        self.curvature = Curvature.of(with_flat(self.F.hessian(theta[0]), self.flat))

    def solve(self, gradient: RefitPoints, lanes: NumpyArray) -> RefitPoints:
        return self.curvature.step(gradient[0])[None]


def _nearby(F: Function, theta: Vector, flat: Flat) -> bool:
    """Tell whether a minimiser is proved to lie within rounding of θ, for linear predictors whose
    steps ended there.
    """
    if not isinstance(F.of, LinearBatch) or not np.isfinite(theta).all():
        return False
    curvature_at_end = Curvature.of(with_flat(F.hessian(theta), flat))
    if not curvature_at_end.definite:
        return False
    root = curvature_at_end.root.T
    size = float(linalg.norm(F.look(theta)[1] @ root))
    model = F.of.model
    eta = model.eta(theta[None])
    (curvature,) = model.loss.derivatives(eta[0], model.y, (2,))
    norm, mass, *_ = model.design.extent(root.T, model.shares(eta[0], curvature))
    reference = np.ones(len(norm)) if model.design.outputs > 1 else curvature
    gap = gaps(
        model.loss, model.y, eta, CurvatureBounds(reference, reference), 2 * size * norm, reference
    )
    omega, _ = model.full_weights
    enclosure = ball(gap, reference, omega * mass, np.array([size]), np.array([2 * size]))
    # proved distance from the minimiser, relative to the length of θ, at which it counts as reached
    proved_reach = 1e-6
    return bool(
        enclosure.distance[0]
        <= proved_reach * max(1.0, float(linalg.norm(curvature_at_end.factor.T @ theta)))
    )


def descend(
    F: Function,
    theta: Vector,
    method: str = "L-BFGS-B",
    unwhitener: Any = None,
    **options: float,
) -> "tuple[Vector, scipy.optimize.OptimizeResult]":
    """Descend by one of SciPy's quasi-Newton methods from a θ where F is finite.

    If `unwhitener` is given, it works in coordinates u, in which `unwhitener @ u` is the
    displacement of θ. BFGS ends where two values differ by rounding, of which its line searches
    know nothing. Returns θ, and SciPy's result in these coordinates.
    """
    if unwhitener is None:
        unwhitener = scipy.sparse.eye_array(theta.size)
    lowest = scipy.optimize.OptimizeResult(x=np.zeros_like(theta), fun=np.inf)

    def look(u: NumpyArray) -> NumberAndArray:
        value, gradient = F.look(theta + unwhitener @ u)
        same = abs(value - lowest.fun) <= VALUE_ROUNDING * abs(value) and not np.array_equal(
            u, lowest.x
        )
        if value < lowest.fun:
            lowest.x = u.copy()
            lowest.fun = value
        if same and method == "BFGS":
            raise StopIteration
        return value, unwhitener.T @ gradient

    # line searches try points where F overflows, and go back
    with silence("over", "invalid"):
        start = np.zeros_like(theta)
        try:
            result = scipy.optimize.minimize(look, start, jac=True, method=method, options=options)
        except StopIteration:
            result = lowest
    return theta + unwhitener @ result.x if np.isfinite(result.fun) else theta, result


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
    weights: PerUnit,
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
        learnt = before.unwhitener, before.inverse
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
            curvature = Curvature.of(matrices, 0.0)
            root = curvature.root.swapaxes(1, 2)
            indefinite = ~curvature.definite
            values, vectors = linalg.eigh(matrices[indefinite])
            root[indefinite] = vectors / np.sqrt(np.maximum(np.abs(values), floor))[:, None, :]
            roots.append((entries, root))
    size = sum(entries.size for entries, _ in roots)

    def times(vector: NumpyArray, transposed: bool) -> NumpyArray:
        out = np.empty(size)
        for entries, root in roots:
            matrices = root.swapaxes(1, 2) if transposed else root
            out[entries] = (matrices @ np.ravel(vector)[entries][..., None])[..., 0]
        return out

    return scipy.sparse.linalg.LinearOperator(
        (size, size), lambda v: times(v, False), rmatvec=lambda v: times(v, True), dtype=float
    )


def _split_blocks(part: DiagonalBlocks) -> Iterator[TwoArrays]:
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
        curvature = Curvature.of(hessian)
        if curvature.definite:
            run = contract(F, theta, steps_by(curvature.step))
            if run.length[0] < FLOOR_DECREMENT:
                return Minimisation(float(run.value[0]), run.theta[0], True)
        shift = SMALLEST_ADDED_CURVATURE * np.abs(np.diag(hessian)).max()
        while not curvature.definite and np.isfinite(shift):
            curvature = Curvature.of(hessian + shift * np.eye(len(hessian)))
            shift *= 10
        if not curvature.definite:
            break
        theta, _ = descend(
            F, theta, unwhitener=curvature.root.T, gtol=1e-6, ftol=1e-15, maxiter=WALK
        )
    return Minimisation(F.look(theta)[0], theta, False)


def contract(
    F: Function,
    theta: Vector,
    propose: Propose,
    most: int = MAX_LOOKS,
    enough: float = 0.0,
    accept: Accept = anywhere,
) -> LaneState:
    """Take steps while their lengths contract, or until one is short enough."""

    def look(points: RefitPoints, lanes: Lanes) -> TwoArrays:
        value, gradient = F.look(points[0])
        return np.array([value]), gradient[None]

    def contracting(state: LaneState, lanes: Lanes) -> Proposal:
        proposal = propose(state, lanes)
        stalls = ~(proposal.length < 0.9 * state.length)  # rounding, or no contraction
        return proposal._replace(end=proposal.length <= enough, stay=stalls)

    state, _ = iterate(look, contracting, theta[None], accept, most)
    return state


def steps_by(solve: Callable[[Vector], Vector]) -> Propose:
    """Propose steps of one lane by an inverse Hessian."""

    def propose(state: LaneState, lanes: Lanes) -> Proposal:
        step = solve(state.gradient[0])[None]
        return Proposal(step, decrements(step, state.gradient))

    return propose


class NewtonResult(NamedTuple):
    """Result of Newton's method.

    F, raveled θ, whether these are minima, and the lengths of the last steps.
    """

    value: PerRefit
    theta: RefitPoints
    converged: RefitFlags
    size: PerRefit


class _HessianSteps(SharedFactors):
    """Newton steps of several refits, by the metric where a Hessian is not positive definite.

    The metric, by default that of the first Hessian, also measures the steps.
    """

    def __init__(
        self,
        F: Functions,
        start: RefitPoints,
        lanes: NumpyArray,
        flat: Flat,
        metric: Matrix | None,
    ):
        is_cheap = isinstance(F, LinearBatch) and start.shape[1] <= LARGE_NUM_PARAMETERS
        super().__init__(len(start), 0.0 if is_cheap else QUICK)
        self.F = F
        self.lanes = lanes
        self.flat = flat
        self.metric = metric
        self.convex = np.zeros(len(start), bool)
        factors = np.empty((len(start), *2 * start.shape[1:]))
        self.curvature = Curvature(factors, self.convex.copy())

    def renew(self, theta: RefitPoints, lanes: NumpyArray) -> None:
        curvature, finite = self._curvature(theta, self.lanes[lanes])
        if self.metric is None:
            self.metric = curvature.factor[0]
        definite = curvature.definite
        self.curvature.factor[lanes] = curvature.factor
        self.curvature.factor[lanes[~definite]] = self.metric
        self.curvature.definite[lanes] = finite
        self.convex[lanes] = definite

    def solve(self, gradient: RefitPoints, lanes: NumpyArray) -> RefitPoints:
        return self.curvature.take(lanes).step(gradient)

    def measure(self, step: RefitPoints, gradient: RefitPoints) -> PerRefit:
        if self.metric is None:
            return np.full(len(step), np.inf)
        return linalg.norm(step @ self.metric, axis=1)

    def _curvature(self, theta: RefitPoints, lanes: NumpyArray) -> tuple[Curvature, Any]:
        """Factor Hessians, and mark the finite ones.

        Rows in float32 are used as long as their Hessians are accurate enough for steps.
        """
        F = self.F
        # least pivot with products in float32, whose steps are off by at most a hundredth
        single_precision_tolerance = 1e-3
        if isinstance(F, LinearBatch) and F.rough is not None:
            rough = with_flat(F.hessian(theta, lanes, F.rough), self.flat)
            curvature = Curvature.of(rough, single_precision_tolerance)
            if curvature.definite.all():
                return curvature, True
            F.rough = None
        hessian = with_flat(F.hessian(theta, lanes), self.flat)
        return Curvature.of(hessian), np.isfinite(hessian).all((1, 2))


def newton(
    F: Functions,
    start: RefitPoints,
    lanes: RefitNumbers,
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
    hessians = _HessianSteps(F, start, lanes, flat, metric)
    # steps shorter than this share of θ that no longer shrink are rounding; under separation they
    # are 1e-2
    step_rounding = 1e-6

    lengths = lambda move: linalg.norm(move @ hessians.metric, axis=1)
    largest = lambda move: np.abs(move).max(1, initial=0.0)

    def propose(state: LaneState, places: Lanes) -> Proposal:
        proposal = hessians.propose(state, places)
        step, length, *_ = proposal
        end = state.theta - step
        begin = start[places] if origin is None else origin
        still = length <= np.maximum(
            1e-8 * lengths(end - begin), 1e-11 * np.sqrt(np.abs(state.value))
        )
        short = (largest(step) <= step_rounding * largest(end)) & (
            length <= step_rounding * lengths(end)
        )
        short &= (length > 0.5 * state.length) & hessians.fresh[places]
        return proposal._replace(end=(still | short) & hessians.convex[places])

    look = lambda theta, places: F.look(theta, lanes[places])
    state, converged = iterate(look, propose, start, most=MAX_NEWTON_STEPS)
    value, gradient = F.look(state.theta, lanes)
    converged &= descends(state, value, gradient)
    return NewtonResult(value, state.theta, converged, state.length)


def with_flat(hessian: AnyMatrices, flat: Flat) -> AnyMatrices:
    """Add curvature along flat directions. Steps are orthogonal to these and do not change."""
    if not len(flat):
        return hessian
    scaled = scaled_flat(flat, hessian)
    return hessian + scaled.swapaxes(-1, -2) @ scaled


def scaled_flat(flat: Flat, hessian: AnyMatrices) -> Float[NumpyArray, "*some flat params"]:
    """Scale each flat direction by the mean curvature of its parameters, so that units of
    measurement do not matter.
    """
    curvature = np.einsum("...pp->...p", hessian)
    lengths = np.sum(flat**2, 1)
    mean_curvature = curvature @ (flat**2).T / lengths
    return (
        flat
        * np.sqrt(
            np.where(
                mean_curvature > 0,
                mean_curvature,
                np.mean(np.abs(curvature), -1, keepdims=True),
            )
            / lengths
        )[..., None]
    )
