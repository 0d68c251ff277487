"""Refits whose data leave some direction undetermined: what they determine all the same.

Where the units that stay say nothing along a direction that the full fit knows (the last row of a level of a factor has left),
hosts go on with the solution of least norm. A held-out unit that sees nothing along it is predicted as by any refit; one that
does has no held-out loss. With A = L⁻¹∇²F(θ̂, w)L⁻ᵀ the refit's Hessian, whitened, the rows of V its null vectors and U_n the
unit's row, that is whether V L⁻¹U_nᵀ = 0. The refit is Newton's method from θ̂ in displacements d of V Lᵀd = 0.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._curvature import fold_weights
from ._descent import Refitted
from ._fit import Fit
from ._minimise import newton
from ._objective import AbstractLinearPredictor, unravel
from ._plan import Rows
from ._results import RESULTS

NOTHING = 1e-9  # of the full fit's curvature along a direction: ten times what a refit's own Hessian is called singular at
SEEN = 1e-6  # of a unit's row, along undetermined directions: a thousand times their rounding at curvatures next to `NOTHING`


def completed(fit: Fit, rows: Rows, done: Refitted) -> tuple[Rows, Refitted]:
    """The batch with what its undetermined refits do determine: θ, errors, and as `held` the units that are predicted."""
    lanes = np.flatnonzero(done.result == RESULTS.undetermined)
    if not lanes.size:
        return rows, done
    held, theta, error = np.array(rows.held), np.array(done.theta), np.array(done.error)
    objective, one_row = fit.objective, np.sum(rows.index < fit.objective.num_units, axis=1) == 1
    for lane in lanes:
        inside = np.zeros(held.shape[1], bool)
        if isinstance(objective, AbstractLinearPredictor) and objective.convex and fit.factor is not None and not one_row[lane]:
            found = _within(fit, rows.index[lane], rows.weight[lane], held[lane])
            if found is not None:
                inside, theta[lane], error[lane] = found
        held[lane] = inside
    return rows._replace(held=held), replace(done, make=lambda: theta, error=error, scores=None)


def _within(
    fit: Fit, index: Int[np.ndarray, " width"], weight: Float[np.ndarray, " width"], held: Bool[np.ndarray, " width"]
) -> tuple[Bool[np.ndarray, " width"], Float[np.ndarray, " params"], float] | None:
    """Which held-out units one refit predicts, its raveled θ, the error of their summed loss; None where it predicts none."""
    assert fit.factor is not None
    values, vectors = np.linalg.eigh(np.asarray(_whitened_hessian(fit, index, weight)))
    null = vectors[:, values < NOTHING].T
    rows = np.asarray(_whitened_rows(fit, index))  # [width, outputs, params]
    along = np.sqrt(np.sum((rows @ null.T) ** 2, axis=(1, 2)))
    inside = held & (along <= SEEN * np.sqrt(np.sum(rows**2, axis=(1, 2))))
    if not inside.any():
        return None
    flat = np.concatenate([fit.null_space, null @ fit.factor.T])
    flat = flat[np.minimum(np.arange(2 ** int(np.ceil(np.log2(len(flat))))), len(flat) - 1)]  # few shapes to compile
    weights = np.asarray(fold_weights(fit, jnp.asarray(index), jnp.asarray(weight)))
    _, vector, converged, size = newton(fit.objective, fit.theta, weights, flat, fit.factor)
    if not converged:
        return None
    reach = np.linalg.norm(np.asarray(_slopes(fit, np.asarray(vector), index)), axis=1)
    return inside, np.asarray(vector), float(size) * float(reach[inside].sum())


@eqx.filter_jit
def _whitened_hessian(fit: Fit, index: Array, weight: Array) -> Array:
    hessian = fit.objective.hessian(fit.theta, fold_weights(fit, index, weight)) + fit.null_space.T @ fit.null_space
    return fit.whiten(fit.whiten(hessian).T)


@eqx.filter_jit
def _whitened_rows(fit: Fit, index: Array) -> Array:
    assert isinstance(fit.objective, AbstractLinearPredictor)
    return fit.whiten(fit.objective.rows(index))


@eqx.filter_jit
def _slopes(fit: Fit, vector: Array, index: Array) -> Array:
    """Whitened gradients of the listed units' losses."""
    ones = jnp.ones(fit.objective.num_units), jnp.ones(len(index))
    score = lambda v: fit.objective.score(unravel(v, fit.theta), ones[0], index, ones[1])
    return fit.whiten(jax.jacrev(score)(vector))
