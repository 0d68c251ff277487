"""Refits whose data leave some direction undetermined, and the held-out units that they predict
nevertheless.

If the units that stay do not determine a direction that the full fit determines (the last row of a
level of a factor is left out), other libraries take the solution of least norm. A held-out unit
that does not depend on that direction has the same prediction in every solution; one that depends
on it has no held-out loss. With A = L⁻¹∇²F(θ̂, w)L⁻ᵀ the refit's Hessian, whitened, the rows of V
its null vectors and U_n the unit's row, the first case is V L⁻¹U_nᵀ = 0. The refit is Newton's
method from θ̂ in displacements d with V Lᵀd = 0.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime.results import RESULTS
from ..models.glm.active_coefficients import kinks
from ..objectives.batch_functions import ONE, function, weights_of
from ..objectives.objective import Vector
from ..optimize.fit import Fit
from ..optimize.newton import NewtonResult, newton
from ..plans.plan import RefitRows
from ._least_norm import DEAR, least_norm
from ._refit_batch import RefitBatch


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
