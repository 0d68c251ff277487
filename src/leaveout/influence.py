"""What each unit does to the fit: leverage, Cook's distance, dfbetas, studentised leave-one-out residuals.

Textbooks read them off one step; here θ̂_(i), the fit without unit i, is the refit itself (`Exact()` by default), so
they mean what they say for any loss, link and penalty:

    leverage     h_i = tr(ℓ″_i U_i H⁻¹ U_iᵀ), the observed ℓ″ with its weight; Σ h_i are the effective parameters
    Cook's       D_i = (θ̂_(i) − θ̂)ᵀ H (θ̂_(i) − θ̂) / (p φ̂)
    dfbetas      (θ̂ − θ̂_(i))_j / √(φ̂_(i) (H⁻¹)_jj)
    studentised  t_i = √s_i (y_i − μ̂_(i)) √(1 − h_i) / √(φ̂_(i) V(μ̂_(i))),     μ̂_(i) the mean predicted without i

φ̂ is one for losses that state their variance (logistic, Poisson, negative binomial) and Σ s (y − μ̂)²/V(μ̂) / (n − Σ h)
for those that state it up to a factor (squared, gamma, inverse Gaussian, Tweedie, quasi); φ̂_(i) is the same from the
refit and the units left in it. For least squares these are the textbook's: t_i the externally studentised residual.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from ._evaluate import fold_thetas
from ._fit import Fit
from ._jax import Array, Arrays, PyTree, compiled, float64, jax, jnp
from ._objective import AbstractLinearPredictor, ravel, unravel
from ._plan import leave_one_out
from .models.linear import GLM
from .refit import AbstractRefit, Exact

BLOCK = 2**20  # numbers of the rows, or of the predictions, that are made at a time
DEFAULT = Exact()


@float64
def leverage(fit: Fit) -> Float[np.ndarray, " units"]:
    """The diagonal of the hat matrix, `tr(ℓ″_i U_i H⁻¹ U_iᵀ)`, with the observed curvature of the loss.

    Raises TypeError where units have no linear predictor, or weights that depend on other units.
    """
    objective = fit.objective
    if not isinstance(objective, AbstractLinearPredictor) or fit.factor is None:
        raise TypeError(f"leverage: needs linear predictors; got {type(objective).__name__}. Use lo.fold_parameters().")
    if getattr(objective, "class_code", None) is not None:
        raise TypeError("leverage: with class_weight='balanced' a unit's weight depends on others; use lo.fold_parameters().")
    return np.asarray(_leverage(objective, fit.theta, fit.root, max(1, BLOCK // (objective.outputs * fit.num_params))))


@compiled
def _leverage(objective: AbstractLinearPredictor, theta: PyTree, root: Arrays, size: int) -> Array:
    def one(unit):
        z = objective.rows(unit[None])[0] @ root.T
        curvature = objective.derivative(theta, unit[None], 2).reshape(len(z), len(z))
        return jnp.einsum("kl,lp,kp->", curvature, z, z)

    return jax.lax.map(one, jnp.arange(objective.num_units), batch_size=min(size, objective.num_units))


@float64
def cooks_distance(fit: Fit, refit: AbstractRefit = DEFAULT) -> Float[np.ndarray, " units"]:
    """How far the fit moves when each unit is left out, `‖θ̂_(i) − θ̂‖²_H / (p φ̂)`, p the rank; NaN where there is no refit.

    Of any objective; θ̂ in the parametrisation in which it is fitted. φ̂ is one but for a GLM whose loss states its
    variance up to a factor.
    """
    moved = _moves(fit, refit, "cooks_distance") @ np.asarray(fit.factor)
    return np.sum(moved**2, axis=1) / (fit.rank * _dispersion(fit))


@float64
def dfbetas(fit: Fit, refit: AbstractRefit = DEFAULT) -> pd.DataFrame:
    """How many of its standard errors each parameter moves down when each unit is left out, `[units, params]`."""
    moved = _moves(fit, refit, "dfbetas")
    variance = np.sum(np.asarray(fit.whitener) ** 2, axis=0)  # (H⁻¹)_jj, and what is along flat directions
    own = variance - np.sum(fit.flat**2, axis=1)
    scale = np.sqrt(np.where(own > 1e-12 * variance, own, np.inf))  # a column of zeros never moves
    left = _dispersion(fit, np.asarray(ravel(fit.theta)) + moved)
    names = fit.objective.parameters.names()
    columns = names if len(names) == fit.num_params else None
    return pd.DataFrame(-moved / scale / np.sqrt(left)[:, None], index=fit.objective.units.names, columns=columns)


@float64
def studentized_residuals(fit: Fit, refit: AbstractRefit = DEFAULT) -> Float[np.ndarray, " units"]:
    """Residuals of each unit from what is predicted without it, over their standard error: about N(0, 1) or t.

    Raises TypeError where the model is no GLM of one linear predictor, NotImplementedError where its loss states no variance.
    """
    objective = fit.objective
    if not isinstance(objective, GLM) or objective.outputs > 1:
        raise TypeError(f"studentized_residuals: needs a GLM of one linear predictor; got {type(objective).__name__}.")
    theta = np.asarray(ravel(fit.theta)) + _moves(fit, refit, "studentized_residuals")
    mean, variance = (np.asarray(part) for part in _own_prediction(fit, theta))
    weight = 1.0 if objective.sample_weight is None else np.asarray(objective.sample_weight)
    spread = _dispersion(fit, theta) * variance / np.maximum(1 - leverage(fit), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(weight) * (np.asarray(objective.y) - mean) / np.sqrt(spread)


def _moves(fit: Fit, refit: AbstractRefit, caller: str) -> Float[np.ndarray, "units params"]:
    """`θ̂_(i) − θ̂` of every unit."""
    if not isinstance(fit, Fit):
        raise TypeError(f"{caller}: the first argument must be a Fit, from lo.fit or lo.from_...; got {type(fit).__name__}.")
    if fit.factor is None:
        raise TypeError(f"{caller}: needs a Hessian that is formed: fit with curvature='dense', or use lo.fold_parameters().")
    return fold_thetas(fit, leave_one_out(fit.objective.num_units), refit, caller) - np.asarray(ravel(fit.theta))


def _dispersion(fit: Fit, thetas: Float[np.ndarray, "units params"] | None = None) -> Float[np.ndarray, " some"]:
    """φ̂_(i), without each unit, at the parameters fitted without it; where none are given φ̂ alone."""
    objective, n = fit.objective, fit.objective.num_units
    left = np.array([n]) if thetas is None else np.arange(n)
    if not (isinstance(objective, GLM) and objective.outputs == 1 and objective.loss_function.dispersed):
        return np.ones(len(left))
    at = np.asarray(ravel(fit.theta))[None] if thetas is None else thetas
    total = np.asarray(_pearson(fit, at, left, min(len(left), max(1, BLOCK // n))))
    return total / (n - (left < n) - leverage(fit).sum())


@compiled
def _pearson(fit: Fit, thetas: Arrays, left_out: Arrays, size: int) -> Array:
    """`Σ_{j≠i} s_j (y_j − μ_j)² / V(μ_j)` at several parameters, one unit left out at each."""
    objective = fit.objective
    assert isinstance(objective, GLM)
    everyone = jnp.arange(objective.num_units)
    weight = jnp.ones(objective.num_units) if objective.sample_weight is None else jnp.asarray(objective.sample_weight)

    def one(args):
        theta, left_out = args
        mean = objective.predict(unravel(theta, fit.theta), None, everyone, "response")
        terms = weight * (objective.y - mean) ** 2 / objective.loss_function.variance(mean)
        return jnp.sum(jnp.where(everyone == left_out, 0.0, terms))

    return jax.lax.map(one, (thetas, left_out), batch_size=size)


@compiled
def _own_prediction(fit: Fit, thetas: Array) -> tuple[Array, Array]:
    """Each unit's mean at its own parameters, and the variance there."""
    objective = fit.objective
    assert isinstance(objective, GLM)

    def one(unit, theta):
        return objective.predict(unravel(theta, fit.theta), None, unit[None], "response")[0]

    mean = jax.vmap(one)(jnp.arange(objective.num_units), thetas)
    return mean, objective.loss_function.variance(mean)
