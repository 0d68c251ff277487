"""Measures of each unit's influence on the fit: leverage, Cook's distance, dfbetas, studentised
leave-one-out residuals.

Textbooks compute them from one Newton step. Here θ̂_(i), the fit without unit i, is the refit
itself (`Exact()` by default), so the measures hold for any loss, link and penalty:

    leverage
    h_i = tr(ℓ″_i U_i H⁻¹ U_iᵀ), the observed ℓ″ with its weight; Σ h_i are the effective parameters
    Cook's       D_i = (θ̂_(i) − θ̂)ᵀ H (θ̂_(i) − θ̂) / (p φ̂)
    dfbetas      (θ̂ − θ̂_(i))_j / √(φ̂_(i) (H⁻¹)_jj)
    studentised  t_i = √s_i (y_i − μ̂_(i)) √(1 − h_i) / √(φ̂_(i) V(μ̂_(i))),
    μ̂_(i) the mean predicted without i

φ̂ is one for losses that specify their variance (logistic, Poisson, negative binomial), and Σ s (y
− μ̂)²/V(μ̂) / (n − Σ h) for losses that specify it up to a factor (squared, gamma, inverse
Gaussian, Tweedie, quasi). φ̂_(i) is the same from the refit and the units that remain in it. A unit
of weight zero does not count among the n. For least squares these are the textbook's measures: t_i
is the externally studentised residual.
"""

from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray

from .._runtime import (
    Array,
    Arrays,
    File,
    ListedUnits,
    ListedValues,
    ParamRows,
    PyTree,
    SubsetValues,
    UnitVectors,
    cached_on,
    compile_static,
    conventional,
    float64,
    jax,
    jnp,
    kind_of,
    silence,
)
from ..data import under_labels
from ..linalg import LossOfSeveral, RefitUnits
from ..models.glm import GLM, AbsorbedGLM, DualGLM, OrthogonalGLM
from ..objectives import AbstractLinearPredictor, PerRefit, PerUnit, RefitPoints
from ..objectives.unit_weights import unit_weights
from ..optimize import Fit, without
from ..plans import Plan, RefitRows, leave_one_out
from ..refit import AbstractRefit, Exact, inverse_root
from ..validation.cross_validate import fold_refits, fold_thetas, objective_of, strategy_of
from ..validation.named_parameters import name_parameters
from ..validation.scoring import modelled_predictions

ROWS_AT_A_TIME = 2**20  # numbers in the rows, or in the predictions, of one batch
DEFAULT = Exact()


@conventional
def leverage(fit: Fit) -> pd.Series:
    """Compute the leverage of each unit, the diagonal of the hat matrix.

    With U_i the unit's row and H = ∇²F(θ̂), h_i = tr(ℓ″_i U_i H⁻¹ U_iᵀ), with the observed
    curvature ℓ″_i times the unit's weight. The sum of all h_i is the effective number of
    parameters.

    Parameters
    ----------
    fit : Fit
        The fit of a model with linear predictors.

    Returns
    -------
    Series
        One leverage a unit.

    Raises
    ------
    TypeError
        If units have no linear predictor, or weights that depend on other units, or the penalty has
        kinks or bounds.

    See Also
    --------
    cooks_distance : The effect of leaving out each unit on the fit.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(4.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0]), "squared"))
    >>> lo.diagnostics.leverage(fit).round(3).tolist()
    [0.7, 0.3, 0.3, 0.7]
    """
    return under_labels(hat_diagonal(fit), fit.objective.units.names, "leverage")


@float64
def hat_diagonal(fit: Fit) -> PerUnit:
    """Compute the leverages as an array."""
    objective = require_hessian(fit, "leverage").objective
    without("leverage", objective)
    if isinstance(objective, AbsorbedGLM):
        return objective.leverages(fit.vector, fit.quadratic.root)
    if not isinstance(objective, AbstractLinearPredictor):
        raise TypeError(
            f"leverage: needs linear predictors; got {kind_of(objective)}. Use lo.fold_parameters()."
        )
    if getattr(objective, "class_code", None) is not None:
        raise TypeError(
            "leverage: with class_weight='balanced' a unit's weight depends on others; use lo.fold_parameters()."
        )
    size = max(1, ROWS_AT_A_TIME // (objective.outputs * fit.num_params))
    model = fit.quadratic.predictor_data
    if model is None:
        return np.asarray(_leverage(objective, fit.theta, fit.quadratic.root, size))
    n = objective.num_units
    eta = model.eta(fit.vector[None])[0, :n]
    if objective.outputs == 1:
        (curvature,) = model.unit_loss.derivatives(eta, model.y, (2,))
        curvature_root = np.sqrt(curvature)[:, None, None]
    else:
        curvature_root = cast(LossOfSeveral, model.unit_loss).roots(eta).swapaxes(1, 2)
    leverages = np.empty(n)
    for units in np.split(np.arange(n), range(size, n, size)):
        z = model.design.whiten(units, fit.quadratic.root).reshape(
            len(units), objective.outputs, -1
        )
        leverages[units] = np.sum((curvature_root[units] @ z) ** 2, (1, 2))
    return model.full_weights[0][:n] * leverages


@compile_static
def _leverage(objective: AbstractLinearPredictor, theta: PyTree, root: Arrays, size: int) -> Array:
    def unit_leverage(unit):
        z = objective.rows(unit[None])[0] @ root.T
        curvature = objective.derivative(theta, unit[None], 2).reshape(len(z), len(z))
        return jnp.einsum("kl,lp,kp->", curvature, z, z)

    return jax.lax.map(
        unit_leverage, jnp.arange(objective.num_units), batch_size=min(size, objective.num_units)
    )


@conventional
@float64
def cooks_distance(
    fit: Fit,
    *,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> pd.Series:
    """Compute Cook's distance of each unit from the fit without it.

    With θ̂_(i) the refit without unit i, D_i = (θ̂_(i) − θ̂)ᵀ H (θ̂_(i) − θ̂) / (p φ̂), where p is
    the rank of H. φ̂ is one, except for a GLM whose loss specifies its variance up to a factor. Any
    objective is allowed; θ̂ is in the parametrisation in which it is fitted.

    Parameters
    ----------
    fit : Fit
        The fit.
    strategy : AbstractRefit, default `Exact()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done, as in `cross_validate`.

    Returns
    -------
    Series
        One distance a unit; NaN where there is no refit.

    Raises
    ------
    TypeError
        If the Hessian of the fit is not formed.

    See Also
    --------
    influence : Cook's distance of any folds, with its error.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(4.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0]), "squared"))
    >>> lo.diagnostics.cooks_distance(fit).round(3).tolist()
    [0.111, 0.035, 0.429, 1.778]
    """
    strategy = strategy_of("cooks_distance", strategy, DEFAULT)
    steps = _moves(fit, strategy, "cooks_distance", checkpoint)  # which checks the fit
    moves = fit.quadratic.back(steps)
    distances = np.sum(moves**2, 1) / (fit.rank * dispersion(fit))
    return under_labels(distances, fit.objective.units.names, "cook")


@conventional
@float64
def dfbetas(
    fit: Fit,
    *,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> pd.DataFrame:
    """Compute the change of each parameter when each unit is left out, in standard errors.

    The entry of unit i and parameter j is (θ̂ − θ̂_(i))_j / √(φ̂_(i) (H⁻¹)_jj). It is positive if
    the parameter is lower without the unit.

    Parameters
    ----------
    fit : Fit
        The fit.
    strategy : AbstractRefit, default `Exact()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done, as in `cross_validate`.

    Returns
    -------
    DataFrame, `[units, params]`
        The changes, one row a unit; NaN where there is no refit.

    Raises
    ------
    TypeError
        If the Hessian of the fit is not formed.

    See Also
    --------
    influence : Changes with their errors, for any plan.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(4.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0]), "squared"))
    >>> lo.diagnostics.dfbetas(fit).shape
    (4, 2)
    """
    strategy = strategy_of("dfbetas", strategy, DEFAULT)
    without("dfbetas", require_hessian(fit, "dfbetas").objective)
    plan = leave_one_out(fit.objective.num_units)
    theta, partial = fold_refits(fit, plan, strategy.of_parameters(), "dfbetas", checkpoint)
    open_directions = np.zeros(len(plan))
    open_directions[[*partial]] = [len(refit.free) for refit in partial.values()]
    phi = dispersions(fit, plan, theta, open_directions)
    moves = theta - fit.vector
    objective = fit.objective
    slope = None
    names = getattr(objective, "as_given", objective).parameters.names()
    if isinstance(objective, OrthogonalGLM | DualGLM):
        slope = np.asarray(name_parameters(fit).slope)
        moves = moves @ slope.T
        slope = slope[: len(names)]
        moves = moves[:, : len(names)]
    for unit, refit in partial.items():
        undetermined = np.isnan(refit.values[: moves.shape[1]])
        moves[unit, undetermined if len(undetermined) == moves.shape[1] else slice(None)] = np.nan
    changes = -moves / spread(fit, slope) / np.sqrt(phi)[:, None]
    return under_labels(changes, objective.units.names, columns=names)


@conventional
@float64
def studentized_residuals(
    fit: Fit,
    *,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> pd.Series:
    """Compute the studentised leave-one-out residual of each unit.

    With s_i the unit's weight, μ̂_(i) its mean predicted without it and h_i its leverage,
    t_i = √s_i (y_i − μ̂_(i)) √(1 − h_i) / √(φ̂_(i) V(μ̂_(i))). It is about N(0, 1), or Student's t.
    For least squares it is the externally studentised residual.

    Parameters
    ----------
    fit : Fit
        The fit of a GLM with one linear predictor.
    strategy : AbstractRefit, default `Exact()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done, as in `cross_validate`.

    Returns
    -------
    Series
        One residual a unit; NaN where there is no refit.

    Raises
    ------
    TypeError
        If the model is not a GLM of one linear predictor.
    NotImplementedError
        If its loss states no variance.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0, 2.0]), "squared")
    ... )
    >>> lo.diagnostics.studentized_residuals(fit).round(2).tolist()
    [-0.37, 0.27, -0.53, 4.08, -1.6]
    """
    strategy = strategy_of("studentized_residuals", strategy, DEFAULT)
    objective = require_hessian(fit, "studentized_residuals").objective
    without("studentized_residuals", objective)
    if not isinstance(objective, GLM | DualGLM) or objective.outputs > 1:
        raise TypeError(
            f"studentized_residuals: needs a GLM of one linear predictor; got {kind_of(objective)}."
        )
    theta = fit.vector + _moves(fit, strategy, "studentized_residuals", checkpoint)
    mean, variance = (
        part[:, 0] for part in mean_and_variance(fit, theta, np.arange(len(theta))[:, None])
    )
    weight = np.asarray(objective.row_weights)
    square = (
        dispersions(fit, leave_one_out(len(theta)), theta)
        * variance
        / np.maximum(1 - hat_diagonal(fit), 0.0)
    )
    with silence("divide", "invalid"):
        residuals = np.sqrt(weight) * (np.asarray(objective.y) - mean) / np.sqrt(square)
    return under_labels(residuals, objective.units.names, "studentized_residual")


def _moves(fit: Fit, refit: AbstractRefit, caller: str, checkpoint: File | None) -> UnitVectors:
    """Compute `θ̂_(i) − θ̂` of every unit."""
    without(caller, require_hessian(fit, caller).objective)
    return (
        fold_thetas(
            fit, leave_one_out(fit.objective.num_units), refit.of_parameters(), caller, checkpoint
        )
        - fit.vector
    )


def spread(
    fit: Fit, slope: Float[ndarray, "natural params"] | None = None
) -> Float[ndarray, " natural"]:
    """Return √(H⁻¹)_jj, or that of functions of θ with given derivatives.

    Infinite in undetermined directions.
    """
    determined_root, full_root = (
        root if slope is None else root @ slope.T
        for root in (inverse_root(fit), fit.quadratic.root)
    )
    variances = np.sum(determined_root**2, 0)
    full_variances = np.sum(full_root**2, 0)
    if isinstance(fit.objective, DualGLM) and slope is not None:
        variances[: len(fit.objective.ridge) + fit.objective.intercept] += (
            fit.objective.unseen_variance
        )
    return np.sqrt(np.where(variances > 1e-12 * full_variances, variances, np.inf))


def require_hessian(fit: Fit, caller: str) -> Fit:
    """Return a fit that has a Hessian to measure moves by; TypeError on anything else."""
    objective_of(caller, fit)
    if fit.quadratic.factor is None:
        raise TypeError(
            f"{caller}: needs a Hessian that is formed: fit with curvature='dense', or use lo.fold_parameters()."
        )
    return fit


def dispersion(
    fit: Fit,
    thetas: ParamRows | None = None,
    weights: Float[ndarray, "some units"] | None = None,
    open_directions: float | SubsetValues = 0.0,
) -> SubsetValues:
    """Estimate φ̂ at parameters fitted with given weights (by default the fit's), NaN without a
    degree of freedom.

    Where the loss leaves no variance open it is that of weights of mean one, so that the scale of
    weights changes no measure.
    """
    objective = fit.objective
    if weights is None:
        weights = np.ones((1, objective.num_units))
    if not has_dispersion(fit):
        return np.full(len(weights), unit_weights(objective).scale)
    if thetas is None:
        thetas = fit.vector[None]
    total = _pearson(fit, thetas, weights)
    free = weights @ unit_weights(objective).weigh - _effective(fit) + open_directions
    return np.where(free > 0, total / np.where(free > 0, free, 1.0), np.nan)


def dispersions(
    fit: Fit,
    plan: Plan,
    thetas: RefitPoints,
    open_directions: PerRefit | None = None,
) -> PerRefit:
    """Estimate φ̂ of every refit of a plan, from the units that it sees, some of which leave
    directions open.
    """
    if not has_dispersion(fit):
        return np.full(plan.num_refits, unit_weights(fit.objective).scale)
    size = max(1, ROWS_AT_A_TIME // plan.num_units)
    chunks = np.split(np.arange(plan.num_refits), range(size, plan.num_refits, size))
    if open_directions is None:
        open_directions = np.zeros(plan.num_refits)
    return np.concatenate(
        [
            dispersion(fit, thetas[refits], plan.some(refits).matrix(), open_directions[refits])
            for refits in chunks
        ]
    )


@cached_on
def _effective(fit: Fit) -> float:
    return float(hat_diagonal(fit).sum())


def has_dispersion(fit: Fit) -> bool:
    """Tell whether the loss specifies its variance up to a factor."""
    objective = fit.objective
    return (
        isinstance(objective, GLM | DualGLM | AbsorbedGLM)
        and objective.outputs == 1
        and objective.loss_function.has_dispersion
    )


def _pearson(fit: Fit, thetas: RefitPoints, weights: RefitUnits) -> PerRefit:
    """Compute `Σ_j w_j s_j (y_j − μ_j)² / V(μ_j)` at several parameters, each with weights of its
    own.
    """
    objective: Any = fit.objective
    everyone = np.broadcast_to(np.arange(objective.num_units), weights.shape)
    mean, variance = mean_and_variance(fit, thetas, everyone)
    with silence("all"):
        terms = weights * objective.row_weights * (objective.y - mean) ** 2 / variance
    return np.sum(np.where(weights == 0, 0.0, terms), 1)


def mean_and_variance(
    fit: Fit, thetas: RefitPoints, units: ListedUnits
) -> tuple[ListedValues, ListedValues]:
    """Predict the means of units at several parameters, and the variances there."""
    objective: Any = fit.objective
    ones = np.ones(units.shape)
    rows = RefitRows(units, ones, ones > 0, np.zeros(()), np.asarray(len(units)))
    mean = modelled_predictions(fit, rows, thetas, "response")
    with silence("all"):
        return mean, np.asarray(objective.loss_function.variance(mean))
