"""F(·, w) of many refits as functions of raveled θ: values, gradients, Hessians and their products,
held-out losses.

Linear models have them in closed form (`linalg.design`), and so do models whose author gives F and
its gradient (`objectives.closed_form`). Neither needs a compiler. For every other model JAX derives
them. The programs are few, are compiled for few shapes, and pass over the data for some refits at a
time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from .._runtime import (
    AnyFunction,
    Array,
    ArrayList,
    Arrays,
    MakeArray,
    PyTree,
    Shape,
    TwoArrays,
    cached_on,
    compile_static,
    jax,
    jnp,
    record,
    resident,
    select_lanes,
    silence,
    slices,
)
from ..linalg import (
    MultiOutputDesign,
    Predictors,
    RefitUnits,
    Resident,
    apply_curvature,
    weight_terms,
)
from ..plans import RefitRows, few_size
from .closed_form import AbstractByArrays, AbstractClosedForm, ClosedFormBatch
from .objective import (
    AbstractLinearPredictor,
    AbstractObjective,
    DiagonalBlocks,
    HeldOutLosses,
    Lanes,
    Matrices,
    Matrix,
    PerLane,
    PerUnit,
    Points,
    Vector,
    ravel,
    size_of,
    unflatten,
    unravel,
)

COMPILING = 5e7  # operations that cost less than compiling a program for fewer refits
HESSIAN_ENTRIES = 2**23  # numbers in Hessians that are held at the same time


def weights_of(
    rows: RefitRows, n: int, lanes: Lanes | slice = slice(None)
) -> Float[ndarray, "lanes units"]:
    """Weights of the selected refits over all units, for reading only: they may be the plan's."""
    weight = rows.weight[lanes]
    if weight.shape[1] == n:
        return weight
    index = rows.index[lanes]
    out = np.ones((len(index), n))
    real = index < n
    out[np.nonzero(real)[0], index[real]] = weight[real]
    return out


def whole(weights: RefitUnits) -> RefitRows:
    """Batch of refits that are written out over all units, none of which is scored."""
    index = np.broadcast_to(np.arange(weights.shape[1]), weights.shape)
    return RefitRows(
        index, weights, np.zeros(weights.shape, bool), np.zeros(()), np.asarray(len(weights))
    )


def preconditioner(
    objective: AbstractObjective, theta: PyTree, weights: PerUnit
) -> tuple[DiagonalBlocks, ...]:
    """Blocks that approximate `∇²F(θ, w)`; empty if the model has none."""
    return objective.preconditioner(theta, weights)


def lists_all_units(objective: AbstractObjective) -> bool:
    """Tell whether every refit lists all units, so that all plans have one shape.

    This is so if units are few and every pass goes over all of them.
    """
    # units up to which every refit lists all of them, so that there is one shape
    return not objective.local and objective.num_units <= 512


def passes(objective: AbstractObjective) -> int:
    """Number of refits that share one pass over the data."""
    lanes = objective.costs.lanes
    if lanes is not None:
        return lanes
    outputs = 1
    if isinstance(objective, AbstractLinearPredictor):
        outputs = objective.outputs
    # numbers that one pass over the data computes for a group of refits: about the size of a cache
    return max(4, 2**19 // (objective.num_units * outputs))


def own_passes(objective: AbstractObjective, width: int) -> int:
    """Number of refits that share one pass if each needs its own units only."""
    shared = passes(objective)
    # units that refits of few units evaluate together
    if objective.local:
        return max(shared, 256 // width)
    return shared


def work(objective: AbstractObjective, size: int) -> float:
    """Number of operations of one gradient of one refit with `size` parameters."""
    operations = objective.costs.work
    if operations is None:
        return 4.0 * objective.num_units * size
    return operations


@dataclass(eq=False)
class LinearBatch:
    """F(·, w) of a linear model in NumPy.

    `constant` returns its Hessian if that is the same at every θ and in every refit. `second` are
    quadratic penalties, one a refit, in the place of the model's.
    """

    model: Predictors
    rows: RefitRows
    num_units: int
    constant: MakeArray | None = None
    second: Matrices | None = None

    def _weigh(self, lanes: ndarray) -> TwoArrays:
        """Weights of rows and of the penalty in some refits; those of a single one are kept."""
        if len(lanes) == len(self.rows.index) == 1:
            return self._only_weights
        return self.model.weigh(weights_of(self.rows, self.num_units, lanes))

    @cached_property
    def _only_weights(self) -> TwoArrays:
        return self.model.weigh(weights_of(self.rows, self.num_units))

    def _weighted_terms(
        self, theta: ndarray, lanes: ndarray, orders: Shape
    ) -> tuple[ArrayList, ndarray]:
        """Derivatives of the loss at θ times ω, and κ."""
        eta = self.model.eta(theta)
        omega, kappa = self._weigh(lanes)
        with silence("over", "invalid"):
            parts = [
                weight_terms(omega, part)
                for part in self.model.loss.derivatives(eta, self.model.y, orders)
            ]
        return parts, kappa

    def _penalty(self, theta: ndarray, lanes: Lanes) -> TwoArrays:
        """Value and gradient of the penalty beside the rows."""
        if self.second is None:
            return self.model.penalty_terms(theta)
        pushed = np.einsum("kp,kpq->kq", theta, self.second[lanes])
        return 0.5 * np.sum(pushed * theta, 1), pushed

    def look(self, theta: Points, lanes: Lanes) -> tuple[PerLane, Points]:
        """Evaluate F and its gradients."""
        (loss, slope), kappa = self._weighted_terms(theta, lanes, (0, 1))
        penalty, pushed = self._penalty(theta, lanes)
        value = loss.sum(1) + kappa * penalty
        return np.fmin(value, np.inf), self.model.design.pull(slope) + kappa[:, None] * pushed

    def values(self, theta: Float[ndarray, "#lanes params"], lanes: Lanes) -> PerLane:
        """Evaluate F at the parameters of each refit, or at some that they share."""
        (loss,), kappa = self._weighted_terms(theta, lanes, (0,))
        return loss.sum(1) + kappa * self._penalty(theta, lanes)[0]

    def hessian(self, theta: Points, lanes: Lanes, design: Any = None) -> Matrices:
        """Compute ∇²F, with the rows of `design` if these are given in another precision."""
        if self.constant is not None:
            return np.repeat(self.constant()[None], len(theta), axis=0)
        eta = self.model.eta(theta)
        omega, kappa = self._weigh(lanes)
        (curvature,) = self.model.loss.derivatives(eta, self.model.y, (2,))
        rows = self.model.design if design is None else design
        second = self.model.bending(theta) if self.second is None else self.second[lanes]
        return rows.gram(omega, curvature) + kappa[:, None, None] * second

    @cached_property
    def rough(self) -> Any:
        """Rows on a device in float32, for fast products; None for all other rows.

        They serve the Hessians of steps only: gradients, in float64, decide where the steps end.
        """
        design = self.model.design
        rows = design
        if isinstance(design, MultiOutputDesign):
            rows = design.base
        if isinstance(rows, Resident) and rows.source.dtype == np.float32 and self.constant is None:
            return design.single()
        return None

    def diagonal(self, theta: Vector) -> Vector:
        """Diagonal of ∇²F at weights of one."""
        (curvature,), kappa = self._weighted_terms(theta[None], np.zeros(1, int), (2,))
        penalty = np.asarray(self.model.penalty.diagonal())
        return (self.model.design**2).pull(curvature)[0] + kappa[0] * penalty

    def products(self, theta: Points, lanes: Lanes) -> Callable[[Points], Points]:
        """Return, for each refit, the function that multiplies ∇²F by a vector."""
        (curvature,), kappa = self._weighted_terms(theta, lanes, (2,))
        norms = self.model.norms
        if norms is None:
            multiply_norms = lambda v: 0.0
        else:
            multiply_norms = partial(np.einsum, "rpq,rq->rp", norms.hessian(theta))

        def multiply(vector):
            along = apply_curvature(curvature, self.model.design.predictors(vector))
            return self.model.design.pull(along) + kappa[:, None] * (
                vector @ self.model.penalty + multiply_norms(vector)
            )

        return multiply


@record
class DerivedBatch:
    """F(·, w) of any model, derived and compiled by JAX; θ is raveled, in the shape of `like`."""

    objective: AbstractObjective
    like: PyTree
    rows: RefitRows

    def look(self, theta: Points, lanes: Lanes) -> tuple[PerLane, Points]:
        """Evaluate F and its gradients."""
        return self._map_lanes(_looks, lanes, theta)

    def hessian(self, theta: Points, lanes: Lanes) -> Matrices:
        """Compute ∇²F."""
        return self._map_lanes(_hessians, lanes, theta, dear=theta.shape[1])

    def products(self, theta: Points, lanes: Lanes) -> Callable[[Points], Points]:
        """Return, for each refit, the function that multiplies ∇²F by a vector."""
        return lambda vector: self._map_lanes(_products, lanes, theta, vector)

    def hessian_changes(self, theta: Points, lanes: Lanes) -> Matrices:
        """Compute the change of ∇²F at θ from weights of one."""
        return self._map_lanes(_hessian_changes, lanes, theta, local=True, dear=theta.shape[1])

    def weight_gradient(self, lanes: Lanes) -> Points:
        """Compute the change of ∇F at `like` from weights of one, for models where only the
        left-out units matter.
        """
        return self._map_lanes(_weight_gradients, lanes, local=True)

    def losses(self, theta: Points, lanes: Lanes) -> HeldOutLosses:
        """Held-out losses, zero where not scored.

        `[lanes, width]`, or `[lanes]` for a joint loss.
        """
        return self._map_lanes(_losses, lanes, theta, held=True)

    def slopes(self, theta: Points, lanes: Lanes) -> Points:
        """Gradients of the summed held-out losses."""
        return self._map_lanes(_slopes, lanes, theta, held=True)

    def around(
        self, theta: Points, moves: Float[ndarray, "lanes moves params"], lanes: Lanes
    ) -> tuple[HeldOutLosses, Float[ndarray, "lanes moves"]]:
        """Held-out losses, and the sum of their absolute changes along each of the given moves."""
        return self._map_lanes(_around, lanes, theta, moves, held=True)

    @cached_property
    def _resident_rows(self) -> RefitRows:
        """The batch, sent once to the device where the data are."""
        return resident((self.objective, self.rows))[1]

    @cached_property
    def _costs(self) -> tuple[int, int, float]:
        """Refits that share a pass over all units, and over their own units only.

        Operations of one gradient.
        """
        objective = self.objective
        return (
            passes(objective),
            own_passes(objective, self.rows.index.shape[1]),
            work(objective, size_of(self.like)),
        )

    def _map_lanes(
        self,
        program: Callable,
        lanes: ndarray,
        *parts: ndarray,
        held: bool = False,
        local: bool = False,
        dear: int = 1,
    ):
        """Run a program for the selected refits in groups of few sizes, the last refit repeated
        where a group is not full.
        """
        rows = self._resident_rows
        shared, by_unit, _ = self._costs
        count = shared
        if local:  # most numbers in the rows that a group of refits gathers
            count = max(1, min(by_unit, 2**20 // (rows.index.shape[1] * dear)))
        if held:
            count = max(1, by_unit // 4)
        together = _power(2, count)
        size = self._size(together, dear, held)

        def run_group(lanes: ndarray, *parts: ndarray) -> PyTree:
            filled = [
                np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
                for part in (lanes, *parts)
            ]
            group_rows = [
                select_lanes(part, filled[0])
                for part in (rows.index, rows.weight, rows.held)[: 3 if held else 2]
            ]
            return _map_refits(
                program,
                self.objective,
                self.like,
                (*group_rows, *filled[1:]),
                np.asarray(len(lanes)),
                min(together, size),
            )

        results = [
            run_group(*(part[group] for part in (lanes, *parts)))
            for group in slices(max(len(lanes), 1), size)
        ]
        if not isinstance(rows.index, ndarray):
            results = jax.device_get(results)
        return jax.tree.map(lambda *pieces: np.concatenate(pieces)[: len(lanes)], *results)

    def _size(self, together: int, gradients: int, held: bool) -> int:
        """Number of refits in one call of a program that costs so many gradients a refit.

        It is the number that share a pass, or more where compiling for fewer would cost more than
        it saves; at most the number of refits, and at least a number that does not depend on that,
        so that other plans find the same program.
        """
        total = len(self.rows.index)
        rounded = lambda most: 8 ** min(4, max(0, int(np.log2(max(most / self._costs[2], 1)) / 3)))
        # operations of padding, in every call, that are accepted so that other plans find the same
        # programs
        always = 1
        if total > 1 or held:
            always = min(rounded(4e6), self.objective.num_units)
        return max(
            min(max(rounded(COMPILING / gradients), _power(8, together)), few_size(total)), always
        )


class HostBatch(DerivedBatch):
    """F(·, w) of a model that has values, gradients and products in NumPy, evaluated one refit
    after another.
    """

    @cached_property
    def arrays(self) -> AbstractByArrays:
        return self.objective.costs.arrays()

    def look(self, theta: Points, lanes: Lanes) -> tuple[PerLane, Points]:
        weights = weights_of(self.rows, self.objective.num_units, lanes)
        looks = [self.arrays.look(point, w) for point, w in zip(theta, weights, strict=True)]
        return np.array([value for value, _ in looks]), np.stack(
            [gradient for _, gradient in looks]
        )

    def products(self, theta: Points, lanes: Lanes) -> Callable[[Points], Points]:
        weights = weights_of(self.rows, self.objective.num_units, lanes)
        return lambda vector: np.stack(
            [self.arrays.product(*parts) for parts in zip(theta, weights, vector, strict=True)]
        )


def _power(base: int, number: int) -> int:
    """Power of `base` nearest to a number, by ratio."""
    return base ** round(np.log(number) / np.log(base))


Functions = LinearBatch | DerivedBatch | ClosedFormBatch


def functions(objective: AbstractObjective, like: PyTree, rows: RefitRows) -> Functions:
    """Return F of a batch of refits, in closed form for linear models."""
    model = objective.predictors
    if model is None:
        return derive_batch(objective, like, rows)
    return LinearBatch(model, rows, objective.num_units)


def derive_batch(
    objective: AbstractObjective, like: PyTree, rows: RefitRows
) -> DerivedBatch | ClosedFormBatch:
    """Return F of a batch of refits with held-out losses, by JAX or in the author's closed form."""
    if isinstance(objective, AbstractClosedForm):
        return ClosedFormBatch(
            objective, like, rows, lambda lanes: weights_of(rows, objective.num_units, lanes)
        )
    if objective.costs.arrays is not None:
        return HostBatch(objective, like, rows)
    return DerivedBatch(objective, like, rows)


@record
class Function:
    """F(·, w) at one w, as a function of parameters in the shape of `like`."""

    of: Functions
    like: PyTree

    def look(self, vector: Vector) -> tuple[float, Vector]:
        """Evaluate F and its gradient at raveled parameters."""
        value, gradient = self.of.look(vector[None], ONE)
        return float(value[0]), gradient[0]

    def hessian(self, vector: Vector) -> Matrix:
        """Compute ∇²F at raveled parameters."""
        return self.of.hessian(vector[None], ONE)[0]

    def products(self, vector: Vector) -> Callable[[ndarray], Vector]:
        """Return the function that multiplies ∇²F at raveled parameters by a vector."""
        multiply = self.of.products(vector[None], ONE)
        return lambda along: multiply(along[None])[0]

    def to_tree(self, vector: Vector) -> PyTree:
        """Reshape raveled parameters to the tree `like`."""
        return unflatten(vector, self.like)


ONE = np.zeros(1, int)


def function(
    objective: AbstractObjective, like: PyTree, weights: PerUnit | None = None
) -> Function:
    """Return F at the given weights, by default one."""
    all_weights = np.ones(objective.num_units)
    if weights is not None:
        all_weights = np.asarray(weights, float)
    batch = functions(objective, like, whole(all_weights[None]))
    if isinstance(batch, LinearBatch) and batch.model.quadratic:
        batch.constant = cache(partial(constant, batch.model, all_weights))
        if weights is None:
            batch.constant = partial(_hessian, objective)
    return Function(batch, like)


@cached_on
def _hessian(objective: AbstractObjective) -> Matrix:
    """Compute ∇²F of a quadratic F at weights of one."""
    return constant(cast(Predictors, objective.predictors), np.ones(objective.num_units))


def constant(model: Predictors, weights: PerUnit) -> Matrix:
    """Compute ∇²F of a quadratic model at any weights."""
    return LinearBatch(model, whole(weights[None]), len(weights)).hessian(
        np.zeros((1, model.penalty.shape[0])), ONE
    )[0]


def fold_weights(
    objective: AbstractObjective, index: Int[Array, " width"], weight: Float[Array, " width"]
) -> Float[Array, " units"]:
    """Weights of one refit over all units, in compiled code."""
    if len(index) == objective.num_units:
        return weight
    return jnp.ones(objective.num_units).at[index].set(weight, mode="drop")


@compile_static
def _map_refits(
    program: Callable,
    objective: AbstractObjective,
    like: PyTree,
    args: tuple,
    real: Arrays,
    chunk: int,
) -> PyTree:
    """Map a program of one refit over a batch, `chunk` refits at a time, as far as the `real` ones:
    padding behind is zero.

    A single refit skips the batch axis, with which some products are slower.
    """
    refit_program = partial(program, objective, like)
    size = len(args[0])

    @jax.jit  # traced once for its shapes and the loop
    def together(args):
        if len(args[0]) == 1:
            return jax.tree.map(
                lambda part: part[None], refit_program(tuple(part[0] for part in args))
            )
        return jax.vmap(refit_program)(args)

    if size <= chunk:
        return together(args)

    def slices(k):
        start = jnp.minimum(k * chunk, size - chunk)
        return start, tuple(jax.lax.dynamic_slice_in_dim(part, start, chunk) for part in args)

    def fill(k, results):
        start, pieces = slices(k)
        write = lambda out, part: jax.lax.dynamic_update_slice_in_dim(out, part, start, 0)
        return jax.tree.map(write, results, together(pieces))

    shapes = jax.eval_shape(lambda: together(slices(0)[1]))
    blank = jax.tree.map(lambda of: jnp.zeros((size, *of.shape[1:]), of.dtype), shapes)
    return jax.lax.fori_loop(0, -(-real // chunk), fill, blank)


def _objective_at(
    objective: AbstractObjective, like: PyTree, index: Array, weight: Array
) -> Callable:
    weights = fold_weights(objective, index, weight)
    return lambda vector: objective.loss(unravel(vector, like), weights)


def held_out(
    objective: AbstractObjective, like: PyTree, index: Array, weight: Array, held: Array
) -> AnyFunction:
    """Compute the held-out losses of one refit at raveled θ, zero for units that are not scored."""
    weights = fold_weights(objective, index, weight)

    def losses(vector):
        value = objective.score(unravel(vector, like), weights, index, held.astype(float))
        return jnp.where(held, value, 0.0) if value.ndim else value

    return losses


def influence(objective: AbstractObjective, theta: PyTree, root: Matrix) -> ndarray:
    """Whitened `∂²F/∂θ∂w_n` of every unit at weights one, `[units, params]`."""
    if isinstance(objective, AbstractClosedForm):
        return objective.jacobian(ravel(theta)) @ root.T
    return np.asarray(_influence(objective, theta, root))


@compile_static
def _influence(objective: AbstractObjective, theta: PyTree, root: Arrays) -> Arrays:
    return objective.jacobian(theta) @ root.T


def _looks(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    return jax.value_and_grad(_objective_at(objective, like, *refit[:2]))(refit[2])


def _weight_gradients(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    index, weight = refit
    return ravel(jax.grad(objective.perturbation)(like, index, weight - 1.0))


def _hessians(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    return objective.hessian(unravel(refit[2], like), fold_weights(objective, *refit[:2]))


def _hessian_changes(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    index, weight, theta = refit
    return objective.hessian_change(unravel(theta, like), index, weight - 1.0)


def _products(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    *rows, theta, vector = refit
    return jax.jvp(jax.grad(_objective_at(objective, like, *rows)), (theta,), (vector,))[1]


def _losses(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    return held_out(objective, like, *refit[:3])(refit[3])


def _slopes(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    return jax.grad(lambda v: jnp.sum(held_out(objective, like, *refit[:3])(v)))(refit[3])


def _around(objective: AbstractObjective, like: PyTree, refit: tuple) -> PyTree:
    *rows, theta, moves = refit
    losses = held_out(objective, like, *rows)
    value = losses(theta)
    return value, jax.vmap(lambda move: jnp.sum(jnp.abs(losses(theta + move) - value)))(moves)
