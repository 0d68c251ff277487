"""Result of a strategy, a batch of refits; the loop over rungs that leads to it; how far its refits
may be from the exact ones; and the refits whose data leave some direction undetermined.

A batch has balls that contain the exact refits, ‖θ_w − θ̂ − Rᵀu‖_H ≤ ρ, and θ is reported somewhere
near θ̂ + Rᵀu. With s² the diagonal of H ≈ L Lᵀ, n rows, p parameters and S(v) = Σ_j s_j |v_j|,

    ‖v‖²_H ≤ ‖Lᵀv‖² + (n + p + 8) u S(v)²,      ‖v‖_H ≤ S(v),      |x_j| ≤ s_j ‖x‖_{H⁻¹}.

So `distances` gives an r, with all rounding in it, for which xᵀθ of the exact refit is within r
‖x‖_{H⁻¹} of xᵀθ as it is computed from the reported θ, for every x; `lengths` bounds ‖x‖_{H⁻¹}. A
coordinate of θ has a row of the identity for x. Any norm of many coordinates, such as a standard
error over refits, is off by at most the same norm of their bounds. H is that of θ̂ as both are
computed. For other models than those of linear predictors all this is estimated.

If the units that stay do not determine a direction that the full fit determines (the last row of a
level of a factor is left out), other libraries take the solution of least norm. A held-out unit
that does not depend on that direction has the same prediction in every solution; one that depends
on it has no held-out loss. With A = L⁻¹∇²F(θ̂, w)L⁻ᵀ the refit's Hessian, whitened, the rows of V
its null vectors and U_n the unit's row, the first case is V L⁻¹U_nᵀ = 0. The refit is Newton's
method from θ̂ in displacements d with V Lᵀd = 0.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import linalg

from .._runtime import RESULTS, NamedValues, NumpyArray, UnaryFunction, cached_on, record
from ..linalg import UNIT, UP, Directions, PerRow, Predictors, condition
from ..models.glm import kinks
from ..objectives import (
    ONE,
    Displacements,
    Flags,
    Lanes,
    PerRefit,
    PerUnit,
    RefitFlags,
    RefitNumbers,
    RefitPoints,
    RefitValues,
    Vector,
    function,
    weights_of,
)
from ..optimize import Fit
from ..optimize.least_norm import DEAR, least_norm
from ..optimize.newton import NewtonResult, newton
from ..plans import RefitRows
from ._anchor import linear_cache


class Rung(NamedTuple):
    """One way to refit, of which `climb` takes the cheapest that applies.

    `applies` tells whether a batch can be refitted in this way. `cost` predicts the operations for
    its open refits. `step` returns candidates for these, with their errors, codes, and marks of
    those that stay open, and writes nothing. Its `evidence` is a proved enclosure or an estimate.
    """

    name: str
    applies: Callable[[Any], bool]
    cost: Callable[[Any], float]
    step: UnaryFunction
    evidence: Literal["enclosure", "estimate"] = "estimate"


def climb(batch, rungs: tuple[Rung, ...]):
    """Refit a batch by one rung after another, the cheapest first, until no refit is open.

    A batch is frozen. It marks the `open` refits, and `merge` returns it with other candidates.
    """
    while batch.open.any():
        usable = [rung for rung in rungs if rung.applies(batch)]
        if not usable:
            break
        cheapest = min(usable, key=lambda rung: rung.cost(batch))
        batch = batch.merge(cheapest.step(batch))
        rungs = tuple(rung for rung in rungs if rung is not cheapest)
    return batch


def take(record: Any, which: Any) -> Any:
    """Select refits of a record of arrays, one entry of each array a refit."""
    if not isinstance(record, tuple):
        return record[which]
    return getattr(record, "_make", tuple)([take(part, which) for part in record])


def put(record, parts: Iterable[tuple[Lanes | slice, Any]]):
    """Return a record of arrays with parts in the places of the refits that are selected with each.

    Each part is written before the next one is asked for. Columns that no part changes are shared.
    """
    columns = list(record)
    for which, part in parts:
        for k, entries in enumerate(part):
            if not np.array_equal(columns[k][which], entries):
                if columns[k] is record[k]:
                    columns[k] = record[k].copy()
                columns[k][which] = entries
    return record._make(columns)


class CommonError(NamedTuple):
    """Common part of the errors of single rows.

    It has their losses without each group of probes, the error of the mean from other sources, and
    the number of probes.
    """

    draws: Float[NumpyArray, "refits groups"]
    distance_left: float
    probes: int


@record
class RefitBatch:
    """Batch of refits.

    `make` computes the raveled θ on demand. `error` is the absolute error of each refit's summed
    held-out loss, `proved` tells whether it is proved, and `result` is the code. `scores` are the
    held-out losses, if they are known. `ball` returns whitened centres and radii of balls that
    contain the exact refits. `step_length` is the length of each first step, `gradients` the number
    of gradients of all refits, and `common_error` the common part of otherwise independent errors.
    `parameters_at` maps whitened u to θ if the coordinates are not those of the fit. `settled_by`
    has the rungs of linear predictors.
    """

    make: Callable[[], RefitPoints]
    error: PerRefit
    result: RefitNumbers
    scores: RefitValues | None = None
    proved: RefitFlags | None = None
    ball: Callable[[], tuple[Displacements, PerRefit]] | None = None
    step_length: PerRefit | None = None
    gradients: float = 0.0
    common_error: CommonError | None = None
    parameters_at: Callable[[Displacements], RefitPoints] | None = None
    settled_by: RefitNumbers | None = None

    @functools.cached_property
    def theta(self) -> RefitPoints:
        return self.make()


def distances(fit: Fit, batch: RefitBatch, theta: RefitPoints) -> tuple[PerRefit, Flags]:
    """Bound the distance of each exact refit from the reported θ, in the norm of H, and tell which
    of the bounds are proved.

    Bounds are infinite where nothing is known.
    """
    nowhere = np.zeros(len(theta), bool)
    if batch.ball is None:
        return np.full(len(theta), np.inf), nowhere
    center, radius = batch.ball()
    if fit.quadratic.predictors is None:
        distance = radius + linalg.norm(fit.quadratic.back(theta - fit.vector) - center, axis=1)
        proved = nowhere
    else:
        anchor = linear_cache(fit)
        scales = fit.quadratic.scales
        size = np.abs(theta) @ scales + np.abs(center) @ (np.abs(anchor.root) @ scales)
        p = theta.shape[1]
        length, length_error = lengths_of_moves(fit, theta - fit.vector - center @ anchor.root)
        bound = (
            (1 + anchor.rounding.off) * radius
            + length
            + length_error
            + (2 * p + 16) * UNIT * (size + anchor.rounding.bulk)
        )
        distance = UP * bound
        proved = nowhere if batch.proved is None else batch.proved
    distance = np.where(np.isfinite(distance), distance, np.inf)
    return distance, proved & np.isfinite(distance)


def lengths_of_moves(fit: Fit, moves: RefitPoints) -> tuple[PerRefit, PerRefit]:
    """Compute ‖v‖_H, and bound the rounding error of these numbers.

    Relative to H's own, and of the products.
    """
    length = linalg.norm(fit.quadratic.back(moves), axis=1)
    if fit.quadratic.predictors is None:
        return length, np.zeros(len(length))
    size = np.abs(moves) @ fit.quadratic.scales
    n, p = fit.quadratic.predictors.design.shape
    square = (n + p + 8) * UNIT * size**2
    return length, UP * (
        np.minimum(np.sqrt(square), square / np.maximum(length, 1e-300)) + (p + 16) * UNIT * size
    )


def lengths(fit: Fit, rows: Float[NumpyArray, "rows params"]) -> PerRow:
    """Bound ‖x‖_{H⁻¹} of some x.

    The largest change of xᵀθ by a move of length one in the norm of H.
    """
    computed = linalg.norm(fit.quadratic.whiten(rows), axis=1)
    if fit.quadratic.predictors is None:
        return computed
    anchor = linear_cache(fit)
    return (
        computed
        * anchor.rounding._replace(
            root=np.sqrt(condition(anchor.root, fit.quadratic.scales))
        ).growth
    )


@cached_on
def distance_of_fit(fit: Fit) -> tuple[float, bool]:
    """Bound the distance of θ̂ from the exact minimiser, and tell whether the bound is proved."""
    if fit.quadratic.predictors is None:
        return float(fit.decrement), False
    anchor = linear_cache(fit)
    slope = np.array([linalg.norm(anchor.leftover) * anchor.rounding.growth + anchor.noise])
    distance = float(anchor.table.ball(slope, np.ones(1), np.ones(1)).distance[0])
    return distance, bool(np.isfinite(distance)) and anchor.rounding.off < 0.5


def fill_undetermined(fit: Fit, rows: RefitRows, batch: RefitBatch) -> tuple[RefitRows, RefitBatch]:
    """Complete a batch with the results of its undetermined refits.

    θ, errors, and as `held` the units that they predict.
    """
    num_units = fit.objective.num_units
    is_undetermined = fit.objective.parameters.undetermined(rows.index, rows.weight)
    is_undetermined |= batch.result == RESULTS.undetermined
    if not is_undetermined.any():
        return rows, batch
    batch = replace(
        batch, result=np.where(is_undetermined, int(RESULTS.undetermined), batch.result)
    )
    batch = _of_least_norm(fit, rows, batch)
    is_undetermined = batch.result == RESULTS.undetermined
    one_row = np.sum(rows.index < num_units, 1) == 1
    held = np.where(is_undetermined[:, None], False, rows.held)
    refits = []
    if fit.quadratic.predictors is not None and not kinks(fit.objective):
        for lane in np.flatnonzero(is_undetermined & ~one_row):
            weights = weights_of(rows, num_units, np.array([lane]))[0]
            refit = _within(fit, rows.index[lane], weights, rows.held[lane])
            if refit is not None:
                held[lane] = refit.held
                refits.append((lane, refit))
    return rows._replace(held=held), _with_refits(batch, refits)


class Undetermined(NamedTuple):
    """One refit: θ, the error of its summed loss, the losses of its units, and those that it
    predicts.
    """

    theta: Vector
    error: float
    losses: Float[NumpyArray, " width"]
    held: Bool[NumpyArray, " width"]


def _with_refits(batch: RefitBatch, refits: list[tuple[Any, Undetermined]]) -> RefitBatch:
    """Return a batch with these refits, whose errors Newton's last step tells."""
    if not refits:
        return batch
    lanes = [lane for lane, _ in refits]
    theta, error, losses, _ = zip(*(refit for _, refit in refits), strict=True)
    changes = {"theta": theta, "error": error}
    # losses of other models are not functions of θ alone
    if batch.scores is not None:
        changes["scores"] = losses
    if batch.proved is not None:
        changes["proved"] = np.zeros(len(lanes), bool)
    parts: NamedValues = {}
    for name, values in changes.items():
        parts[name] = np.array(getattr(batch, name))
        parts[name][lanes] = values
    theta = parts.pop("theta")
    return replace(batch, make=lambda: theta, **parts)


def _of_least_norm(fit: Fit, rows: RefitRows, batch: RefitBatch) -> RefitBatch:
    """Complete a batch with the least-squares refits that only a factor of the rows determines."""
    undetermined = np.flatnonzero(batch.result == RESULTS.undetermined)
    num_units = fit.objective.num_units
    system = least_norm(fit)
    cost = num_units * fit.num_params * len(undetermined) * min(num_units, fit.num_params)
    if system is None or fit.quadratic.predictors is None or cost > DEAR:
        return batch
    distances = np.full(len(undetermined), np.inf)
    result = np.array(batch.result)
    refits = []
    for place, lane in enumerate(undetermined):
        solution = system.refit(weights_of(rows, num_units, np.array([lane]))[0])
        if solution is None:
            continue
        coef, level, distance = solution
        held = rows.held[lane]
        units = np.where(rows.index[lane] < len(system.y), rows.index[lane], 0)
        residual = system.x[units] @ coef + level - system.y[units]
        errors = np.where(held, distance * (np.abs(residual) + 0.5 * distance), 0.0)
        theta = np.append(coef, level) if system.intercept else coef
        losses = np.where(held, 0.5 * residual**2, 0.0)
        refits.append((lane, Undetermined(theta, errors.sum(), losses, held)))
        distances[place] = distance
        result[lane] = RESULTS.successful
    completed = _with_refits(batch, refits)

    def ball():
        theta = completed.theta[undetermined]
        count = len(completed.theta)
        center = np.zeros((count, fit.num_params))
        radius = np.full(count, np.inf)
        if batch.ball is not None:
            center, radius = (np.array(part) for part in batch.ball())
        center[undetermined] = fit.quadratic.back(
            np.where(np.isfinite(theta), theta - fit.vector, 0.0)
        )
        radius[undetermined] = distances * np.sqrt(num_units)
        return center, radius

    return replace(completed, result=result, ball=ball)


def _within(
    fit: Fit,
    index: Int[NumpyArray, " width"],
    weights: PerUnit,
    held: Bool[NumpyArray, " width"],
) -> Undetermined | None:
    """Refit one fold across the directions that it leaves undetermined; None if that predicts no
    unit.
    """
    model = cast(Predictors, fit.quadratic.predictors)
    null = undetermined_directions(fit, weights)
    units = np.where(index < len(weights), index, 0)
    # [width, outputs, params]
    rows = model.design.whiten(units, fit.quadratic.root).reshape(
        len(index), -1, len(fit.quadratic.root)
    )
    along = np.sqrt(np.sum((rows @ null.T) ** 2, (1, 2)))
    # share of a unit's row along undetermined directions: a thousand times its rounding error
    inside = held & (along <= 1e-6 * np.sqrt(np.sum(rows**2, (1, 2))))
    if not inside.any():
        return None
    solution = refit_across(fit, weights, null)
    if not solution.converged[0]:
        return None
    eta = model.unit_predictors(units[None], solution.theta)[0]
    losses, slope = model.unit_loss.derivatives(eta, model.y[units], (0, 1))
    slopes = np.einsum("nk,nkp->np", slope.reshape(len(index), -1), rows)
    error = float(solution.size[0]) * float(linalg.norm(slopes, axis=1)[inside].sum())
    return Undetermined(solution.theta[0], error, losses, inside)


def undetermined_directions(fit: Fit, weights: PerUnit) -> Float[NumpyArray, "null rank"]:
    """Return the null vectors of a refit's Hessian in the fit's whitened coordinates, one a row."""
    root = fit.quadratic.root
    F = function(fit.objective, fit.theta, weights)
    values, vectors = linalg.eigh(
        root
        @ (F.hessian(fit.vector) + fit.quadratic.null_space.T @ fit.quadratic.null_space)
        @ root.T
    )
    # share of the full fit's curvature along a direction: ten times the share at which a Hessian
    # counts as singular
    return vectors[:, values < 1e-9].T


def refit_across(fit: Fit, weights: PerUnit, null: Float[NumpyArray, "null rank"]) -> NewtonResult:
    """Minimise F(·, w) from θ̂ in displacements across the null vectors."""
    flat = np.concatenate([fit.quadratic.null_space, fit.quadratic.raw(null)])
    return newton(
        function(fit.objective, fit.theta, weights).of,
        fit.vector[None],
        ONE,
        flat,
        fit.quadratic.factor,
    )


def inverse_root(fit: Fit) -> Directions:
    """Return L⁻¹ without flat directions, so that its product with itself is `H⁻¹`."""
    if not len(fit.quadratic.null_space):
        return fit.quadratic.root
    across = linalg.qr(fit.quadratic.null_space.T)[0]
    return fit.quadratic.root - (fit.quadratic.root @ across) @ across.T
