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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime.results import RESULTS
from ..linalg.rounding import UNIT, UP, condition
from ..models.glm.active_coefficients import kinks
from ..objectives.batch_functions import ONE, function, weights_of
from ..objectives.objective import Flags, Lanes, PerRefit, RefitPoints, Vector
from ..optimize.fit import Fit
from ..optimize.newton import NewtonResult, newton
from ..plans.plan import RefitRows
from ._anchor import LinearFitCache, linear_cache
from ._least_norm import DEAR, least_norm

Array = np.ndarray


class Rung(NamedTuple):
    """One way to refit, of which `climb` takes the cheapest that applies.

    `applies` tells whether a batch can be refitted in this way. `cost` predicts the operations for
    its open refits. `step` returns candidates for these, with their errors, codes, and marks of
    those that stay open, and writes nothing. Its `evidence` is a proved enclosure or an estimate.
    """

    name: str
    applies: Callable[[Any], bool]
    cost: Callable[[Any], float]
    step: Callable[[Any], Any]
    evidence: Literal["enclosure", "estimate"] = "estimate"


def climb(batch: Any, rungs: tuple[Rung, ...]) -> Any:
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
    return _like(record, [take(part, which) for part in record])


def put(record: Any, which: Lanes, part: Any) -> Any:
    """Return a record of arrays with `part` in the place of the selected refits."""
    columns = [column.copy() for column in record]
    for column, entries in zip(columns, part, strict=True):
        column[which] = entries
    return _like(record, columns)


def join(parts: list[Any]) -> Any:
    """Concatenate records of arrays."""
    if not isinstance(parts[0], tuple):
        return np.concatenate(parts)
    return _like(parts[0], [join(list(columns)) for columns in zip(*parts, strict=True)])


def _like(record: tuple, columns: list[Any]) -> Any:
    return getattr(type(record), "_make", tuple)(columns)


class CommonError(NamedTuple):
    """Common part of the errors of single rows.

    It has their losses without each group of probes, the error of the mean from other sources, and
    the number of probes.
    """

    draws: Float[np.ndarray, "refits groups"]
    distance_left: float
    probes: int


@dataclass(frozen=True, eq=False)
class RefitBatch:
    """Batch of refits.

    `make` computes the raveled θ on demand. `error` is the absolute error of each refit's summed
    held-out loss, `proved` tells whether it is proved, and `result` is the code. `scores` are the
    held-out losses, if they are known. `ball` returns whitened centres and radii of balls that
    contain the exact refits. `step_length` is the length of each first step, `gradients` the number
    of gradients of all refits, and `common_error` the common part of otherwise independent errors.
    `parameters_at` maps whitened u to θ if the coordinates are not those of the fit.
    """

    make: Callable[[], RefitPoints]
    error: PerRefit
    result: Int[np.ndarray, " refits"]
    scores: Float[np.ndarray, "refits ..."] | None = None
    proved: Bool[np.ndarray, " refits"] | None = None
    ball: Callable[[], tuple[Float[np.ndarray, "refits rank"], PerRefit]] | None = None
    step_length: PerRefit | None = None
    gradients: float = 0.0
    common_error: CommonError | None = None
    parameters_at: Callable[[Float[np.ndarray, "refits rank"]], RefitPoints] | None = None

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
    if fit.predictors is None:
        distance = radius + np.linalg.norm(fit.back(theta - fit.vector) - center, axis=1)
        proved = nowhere
    else:
        anchor = linear_cache(fit)
        size = np.abs(theta) @ _scale(fit) + np.abs(center) @ (np.abs(anchor.root) @ _scale(fit))
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
    length = np.linalg.norm(fit.back(moves), axis=1)
    if fit.predictors is None:
        return length, np.zeros(len(length))
    size = np.abs(moves) @ _scale(fit)
    (n, p) = fit.predictors.design.shape
    square = (n + p + 8) * UNIT * size**2
    return length, UP * (
        np.minimum(np.sqrt(square), square / np.maximum(length, 1e-300)) + (p + 16) * UNIT * size
    )


def lengths(fit: Fit, rows: Float[Array, "rows params"]) -> Float[Array, " rows"]:
    """Bound ‖x‖_{H⁻¹} of some x.

    The largest change of xᵀθ by a move of length one in the norm of H.
    """
    computed = np.linalg.norm(fit.whiten(rows), axis=1)
    if fit.predictors is None:
        return computed
    anchor = linear_cache(fit)
    return (
        computed
        * anchor.rounding._replace(root=np.sqrt(condition(anchor.root, _scale(fit)))).growth
    )


def distance_of_fit(fit: Fit) -> tuple[float, bool]:
    """Bound the distance of θ̂ from the exact minimiser, and tell whether the bound is proved."""
    if fit.predictors is None:
        return float(fit.decrement), False
    anchor: LinearFitCache = linear_cache(fit)
    slope = np.array([np.linalg.norm(anchor.leftover) * anchor.rounding.growth + anchor.noise])
    distance = float(anchor.table.ball(slope, np.ones(1), np.ones(1)).distance[0])
    return distance, bool(np.isfinite(distance)) and anchor.rounding.off < 0.5


def _scale(fit: Fit) -> Float[Array, " params"]:
    """Return √H_jj."""
    return np.linalg.norm(np.asarray(fit.factor), axis=1)


def fill_undetermined(fit: Fit, rows: RefitRows, done: RefitBatch) -> tuple[RefitRows, RefitBatch]:
    """Complete a batch with the results of its undetermined refits.

    θ, errors, and as `held` the units that they predict.
    """
    open_ = fit.objective.parameters.undetermined(np.asarray(rows.index), np.asarray(rows.weight))
    if open_.any():
        done = replace(done, result=np.where(open_, int(RESULTS.undetermined), done.result))
    rows, done = _of_least_norm(fit, rows, done)
    undetermined = done.result == RESULTS.undetermined
    if not undetermined.any():
        return rows, done
    held = np.array(rows.held)
    one_row = np.sum(rows.index < fit.objective.num_units, axis=1) == 1
    held[undetermined] = False
    lanes = np.flatnonzero(undetermined & ~one_row)
    if fit.predictors is None or kinks(fit.objective) or not lanes.size:
        return rows._replace(held=held), done
    theta, error, scores = (
        np.array(done.theta),
        np.array(done.error),
        None if done.scores is None else np.array(done.scores),
    )
    proved = None if done.proved is None else np.array(done.proved)
    for lane in lanes:
        weights = weights_of(rows, fit.objective.num_units, np.array([lane]))[0]
        prediction = _within(fit, rows.index[lane], weights, rows.held[lane])
        if prediction is not None:
            held[lane], theta[lane], error[lane], losses = prediction
            if proved is not None:
                proved[lane] = False  # Newton's last step tells the error
            if scores is not None:  # losses of other models are not functions of θ alone
                scores[lane] = losses
    return rows._replace(held=held), replace(
        done, make=lambda: theta, error=error, scores=scores, proved=proved
    )


def _of_least_norm(fit: Fit, rows: RefitRows, batch: RefitBatch) -> tuple[RefitRows, RefitBatch]:
    """Complete a batch with the least-squares refits that only a factor of the rows determines."""
    undetermined = np.flatnonzero(batch.result == RESULTS.undetermined)
    system = least_norm(fit) if undetermined.size else None
    model = fit.predictors
    if (
        system is None
        or model is None
        or fit.objective.num_units * fit.num_params * len(undetermined) * _side(fit) > DEAR
    ):
        return rows, batch
    theta, error, result = np.array(batch.theta), np.array(batch.error), np.array(batch.result)
    proved = None if batch.proved is None else np.array(batch.proved)
    if batch.scores is None:
        losses = np.zeros(rows.index.shape)
    else:
        losses = np.array(batch.scores)
    distances = np.zeros(len(undetermined))
    for place, lane in enumerate(undetermined):
        solution = system.refit(weights_of(rows, fit.objective.num_units, np.array([lane]))[0])
        if solution is None:
            distances[place] = np.inf
            continue
        coef, level, prediction_error = solution
        theta[lane] = np.append(coef, level) if system.intercept else coef
        units = np.where(rows.index[lane] < len(system.y), rows.index[lane], 0)
        residual = system.x[units] @ coef + level - system.y[units]
        losses[lane] = np.where(rows.held[lane], 0.5 * residual**2, 0.0)
        error[lane] = np.sum(
            np.where(
                rows.held[lane], prediction_error * (np.abs(residual) + 0.5 * prediction_error), 0.0
            )
        )
        distances[place], result[lane] = prediction_error, RESULTS.successful
        if proved is not None:
            proved[lane] = False

    def ball():
        center, radius = np.zeros((len(theta), fit.num_params)), np.full(len(theta), np.inf)
        if batch.ball is not None:
            center, radius = (np.array(part) for part in batch.ball())
        center[undetermined] = fit.back(
            np.where(np.isfinite(theta[undetermined]), theta[undetermined] - fit.vector, 0.0)
        )
        radius[undetermined] = distances * np.sqrt(fit.objective.num_units)
        return center, radius

    scores = losses if batch.scores is not None else None
    return rows, replace(
        batch,
        make=lambda: theta,
        error=error,
        result=result,
        scores=scores,
        proved=proved,
        ball=ball,
    )


def _side(fit: Fit) -> int:
    """Return the smaller side of the rows of a fit."""
    return min(fit.objective.num_units, fit.num_params)


def _within(
    fit: Fit,
    index: Int[np.ndarray, " width"],
    weights: Float[np.ndarray, " units"],
    held: Bool[np.ndarray, " width"],
) -> tuple[Bool[np.ndarray, " width"], Vector, float, Float[np.ndarray, " width"]] | None:
    """Return the held-out units that one refit predicts, its raveled θ, the error of their summed
    loss, and the losses of all.

    None if it predicts none.
    """
    model = fit.predictors
    root = np.asarray(fit.whitener)
    assert model is not None
    null = undetermined_directions(fit, weights)
    units = np.where(index < len(weights), index, 0)
    # [width, outputs, params]
    rows = model.design.whiten(units, root).reshape(len(index), -1, len(root))
    along = np.sqrt(np.sum((rows @ null.T) ** 2, axis=(1, 2)))
    # share of a unit's row along undetermined directions: a thousand times its rounding error
    inside = held & (along <= 1e-6 * np.sqrt(np.sum(rows**2, axis=(1, 2))))
    if not inside.any():
        return None
    solution = refit_across(fit, weights, null)
    if not solution.converged[0]:
        return None
    eta = model.unit_predictors(units[None], solution.theta)[0]
    losses, slope = model.unit_loss.derivatives(eta, model.y[units], (0, 1))
    slope_norms = np.linalg.norm(
        np.einsum("nk,nkp->np", slope.reshape(len(index), -1), rows), axis=1
    )
    return (
        inside,
        solution.theta[0],
        float(solution.size[0]) * float(slope_norms[inside].sum()),
        losses,
    )


def undetermined_directions(
    fit: Fit, weights: Float[np.ndarray, " units"]
) -> Float[np.ndarray, "null rank"]:
    """Return the null vectors of a refit's Hessian in the fit's whitened coordinates, one a row."""
    root = np.asarray(fit.whitener)
    F = function(fit.objective, fit.theta, weights)
    values, vectors = np.linalg.eigh(
        root @ (F.hessian(fit.vector) + fit.null_space.T @ fit.null_space) @ root.T
    )
    # share of the full fit's curvature along a direction: ten times the share at which a Hessian
    # counts as singular
    return vectors[:, values < 1e-9].T


def refit_across(
    fit: Fit, weights: Float[np.ndarray, " units"], null: Float[np.ndarray, "null rank"]
) -> NewtonResult:
    """Minimise F(·, w) from θ̂ in displacements across the null vectors."""
    assert fit.factor is not None
    flat = np.concatenate([fit.null_space, null @ fit.factor.T])
    return newton(
        function(fit.objective, fit.theta, weights).of, fit.vector[None], ONE, flat, fit.factor
    )


def inverse_root(fit: Fit) -> Float[np.ndarray, "rank params"]:
    """Return L⁻¹ without flat directions, so that its product with itself is `H⁻¹`."""
    if not len(fit.null_space):
        return fit.root
    across = np.linalg.qr(fit.null_space.T)[0]
    return fit.root - (fit.root @ across) @ across.T
