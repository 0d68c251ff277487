"""Least squares under Ridge(α), every row left out by itself, for many α from one eigendecomposition.

With Ω the sample weights, centred by their means, (X − x̄)ᵀΩ(X − x̄) = VΛVᵀ and Z = (X − x̄)V:

    coef(α) = V(Λ + α)⁻¹ZᵀΩ(y − ȳ),      h_i(α) = Σ_j Z_ij²/(Λ_j + α) + 1/Σω,
    x_iᵀθ_(i) = η_i + ω_i h_i (η_i − y_i) / (1 − ω_i h_i)

The last is where one Newton step with the fold's own Hessian leads (`refit._linear.one_row`), and of a quadratic the refit
itself: the theorem of `_proved` holds with C = 0, and what may still be off is rounding, which is bounded as it is there.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ._estimate import ROUNDING as NEGLIGIBLE
from ._plan import Plan
from ._proved import ROUNDING, change
from .models.linear import AbstractRegression
from .models.losses import Squared
from .refit._anchor import SINGULAR

Array = np.ndarray
TOGETHER = 2**18  # numbers [penalties, units] at a time: what a cache holds, about


class Ridges(NamedTuple):
    """What becomes of every α: θ, its decrement, and the losses of all that the plan leaves out, with no update and held out,
    with their errors and the lengths of their steps. `resolved` says of an α that no error is more than rounding."""

    theta: Float[Array, "alphas params"]
    decrement: Float[Array, " alphas"]
    baseline: Float[Array, "alphas entries"]
    losses: Float[Array, "alphas entries"]
    error: Float[Array, "alphas entries"]
    moved: Float[Array, "alphas entries"]
    resolved: Bool[Array, " alphas"]


def applies(objective: object, plan: Plan) -> bool:
    """Is it least squares, every refit of one row?"""
    if not isinstance(objective, AbstractRegression) or not isinstance(objective.loss_function, Squared):
        return False
    rows = len(plan.index) == plan.num_refits and bool(np.all(plan.weight <= 1))
    return rows and objective.loss_function.self_concordance == 0 and objective.class_code is None


class _Axes:
    """The rows along the principal axes of their centred scatter, and what the formulas take of the data."""

    def __init__(self, objective: AbstractRegression):
        x, n = objective.design[:, : objective.num_features], objective.num_units
        self.x = x
        self.omega = np.ones(n) if objective.sample_weight is None else objective.sample_weight
        self.offset = 0.0 if objective.offset is None else objective.offset
        self.target = objective.y - self.offset
        self.share = 1 / self.omega.sum() if objective.intercept else 0.0  # of the intercept in a leverage
        self.center, self.level = self.share * (self.omega @ x), self.share * (self.omega @ self.target)
        z = x - self.center
        scatter = (z.T * self.omega) @ z
        values, self.vectors = np.linalg.eigh(scatter)
        self.values, self.z = np.maximum(values, 0.0), z @ self.vectors
        self.square, self.size = self.z**2, np.abs(x)
        self.diagonal = np.diag(scatter) + self.center**2 / (self.share or 1.0)  # of XᵀΩX

    def repeated(self, alpha: Float[Array, " alphas"], inverse: Float[Array, "alphas features"]) -> Float[Array, " alphas"]:
        """How many digits rounding takes, as a factor: by directions of little curvature, and by columns that repeat one
        another or the intercept, H_jj (H⁻¹)_jj."""
        spread = (self.values.max(initial=0.0) + alpha) * inverse.max(1, initial=0.0)
        own = (self.diagonal + alpha[:, None]) * (inverse @ (self.vectors**2).T)
        level = 1 + inverse @ (self.center @ self.vectors) ** 2 / (self.share or np.inf)
        return np.max([spread, own.max(1, initial=1.0), level], axis=0)


def ridges(objective: AbstractRegression, alphas: Float[Array, " alphas"], plan: Plan) -> Ridges:
    """Of every α, some at a time."""
    axes, size = _Axes(objective), max(1, TOGETHER // objective.num_units)
    parts = [_some(objective, axes, alphas[k : k + size], plan) for k in range(0, len(alphas), size)]
    return Ridges(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _some(objective: AbstractRegression, axes: _Axes, alpha: Float[Array, " alphas"], plan: Plan) -> Ridges:
    omega, unit, loss = axes.omega, plan.index, objective.loss_function
    inverse = 1 / (axes.values + alpha[:, None])
    beta = inverse * ((omega * (axes.target - axes.level)) @ axes.z)
    eta = beta @ axes.z.T + axes.level
    slope = eta - axes.target
    gradient, total = (omega * slope) @ axes.z + alpha[:, None] * beta, slope @ omega  # what rounding left
    decrement = np.sqrt(np.sum(gradient**2 * inverse, axis=1) + axes.share * total**2)
    whole = np.arange(len(unit)) if np.array_equal(unit, np.arange(len(omega))) else unit
    taken = (lambda part: part) if whole is not unit else (lambda part: part[..., unit])
    norm2 = taken(inverse @ axes.square.T + axes.share)
    common = taken((gradient * inverse) @ axes.z.T + (axes.share * total)[:, None])
    lost = (1 - plan.weight) * omega[unit]
    pull, kept = lost * taken(slope), 1 - lost * norm2
    determined = kept > SINGULAR
    kept = np.where(determined, kept, 1.0)
    step = (common - pull * norm2) / kept
    coef = beta @ axes.vectors.T
    level = axes.level - coef @ axes.center
    at = taken(eta + axes.offset)
    held, y = at - step, objective.y[unit]
    blur = ROUNDING * axes.repeated(alpha, inverse)[:, None]
    half = 4 * ROUNDING * (1 + np.abs(held) + taken(np.abs(coef) @ axes.size.T + np.abs(level)[:, None]))
    half += blur * np.abs(step / kept)
    error = change(loss, y, held, held, half)
    losses, baseline = (loss.derivatives(part, y, (0,))[0] for part in (held, at))
    moved = np.abs(pull) * np.sqrt(norm2 / kept)
    resolved = np.all(determined & (error <= NEGLIGIBLE * (1 + losses)), axis=1)
    theta = np.c_[coef, level] if objective.intercept else coef
    scored = lambda part, none: np.where(plan.held, part, none)
    return Ridges(
        theta, decrement, scored(baseline, np.nan), scored(losses, np.nan), scored(error, 0.0), moved, resolved
    )
