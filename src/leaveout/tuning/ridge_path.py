"""Least squares under Ridge(α), every row left out by itself, for many α from one
eigendecomposition.

With Ω the sample weights, centred by their means, (X − x̄)ᵀΩ(X − x̄) = VΛVᵀ and Z = (X − x̄)V:

    coef(α) = V(Λ + α)⁻¹ZᵀΩ(y − ȳ),      h_i(α) = Σ_j Z_ij²/(Λ_j + α) + 1/Σω,
    x_iᵀθ_(i) = η_i + ω_i h_i (η_i − y_i) / (1 − ω_i h_i)

The last is the result of one Newton step with the fold's own Hessian
(`refit._single_rows.one_row`), which for a quadratic is the refit itself:
`linalg.enclosure_theorem` holds with C = 0, and only the error by rounding remains. Its bound needs
the distance of VΛVᵀ from the scatter, which is measured. Where the bound is too large, the error is
estimated by its usual size.
"""

import numpy as np
from jaxtyping import Float
from numpy import linalg

from .._runtime import NumpyArray
from ..linalg import UNIT
from ..models.glm import AbstractRegression, Squared
from ..plans import Plan
from ..refit import GROUP, OWN_HESSIAN_BELOW, PASS, PathRefit
from ..validation.estimate import LOSS_ROUNDING as NEGLIGIBLE

PerAlpha = Float[NumpyArray, " alphas"]


def applies(objective: object) -> bool:
    """Tell whether the objective is least squares."""
    if not isinstance(objective, AbstractRegression) or not isinstance(
        objective.loss_function, Squared
    ):
        return False
    dense = isinstance(objective.design, NumpyArray)  # the principal axes are dense
    return dense and objective.loss_function.self_concordance == 0 and objective.class_code is None


class _Axes:
    """The rows along the principal axes of their centred scatter, with the sums that the formulas
    need.
    """

    def __init__(self, objective: AbstractRegression):
        x = np.asarray(objective.design)[:, : objective.num_features]
        n = objective.num_units
        self.plain = objective.sample_weight is None
        self.omega = objective.row_weights
        offset = np.zeros(n)
        if objective.offset is not None:
            offset = objective.offset
        self.target = objective.y - offset
        self.shift = 1 + np.abs(offset) + np.abs(objective.y)
        # share of the intercept in a leverage
        self.share = objective.intercept / self.omega.sum()
        self.center = self.share * (self.omega @ x)
        self.level = self.share * (self.omega @ self.target)
        z = x - self.center
        scatter = (z.T if self.plain else z.T * self.omega) @ z
        values, self.vectors = linalg.eigh(scatter)
        self.values = np.maximum(values, 0.0)
        self.z = z @ self.vectors
        # how far V is from orthogonal, and VΛVᵀ from the scatter; and the rounding of both, and of
        # the scatter
        self.skew = (
            linalg.norm(self.vectors.T @ self.vectors - np.eye(len(values)))
            + 4 * len(values) ** 2 * UNIT
        )
        distance = linalg.norm(scatter @ self.vectors - self.vectors * self.values)
        self.scatter_error = distance + (n + 4 * len(values) + 16) * UNIT * np.trace(scatter)
        self.projection = (self.omega * (self.target - self.level)) @ self.z
        self.square = self.z**2
        self.length = linalg.norm(x, axis=1)
        self.diagonal = np.diag(scatter) + self.center**2 / (self.share or 1.0)  # diagonal of XᵀΩX

    def step_error(
        self, alpha: PerAlpha, inverse: Float[NumpyArray, "alphas features"], proved: bool
    ) -> PerAlpha:
        """Bound the relative errors of steps: ‖H − V(Λ + α)Vᵀ‖ times the largest (Λ + α)⁻¹, and
        rounding in each column.

        The latter grows by H_jj (H⁻¹)_jj, if columns repeat one another or the intercept. The usual
        distance of V(Λ + α)Vᵀ is that of rounding in its largest eigenvalue alone.
        """
        rounding = (len(self.omega) + 4 * len(self.values) + 16) * UNIT
        largest = self.values.max(initial=0.0)
        if proved:
            distance = self.scatter_error + (largest + 2 * alpha) * self.skew
        else:
            distance = rounding * (largest + alpha)
        diagonal_products = (self.diagonal + alpha[:, None]) * (inverse @ (self.vectors**2).T)
        level = 1 + inverse @ (self.center @ self.vectors) ** 2 / (self.share or np.inf)
        return distance * inverse.max(1, initial=0.0) + rounding * (
            diagonal_products.max(1, initial=1.0) + level
        )


def ridges(objective: AbstractRegression, alphas: PerAlpha, plan: Plan) -> PathRefit:
    """Leave out single rows under every α, several α at a time; `plan` names the rows."""
    axes = _Axes(objective)
    size = max(GROUP, PASS // objective.num_units)
    run = lambda penalties, proved: [
        np.concatenate(part)
        for part in zip(
            *(
                _leave_rows_out(axes, penalties[k : k + size], plan, proved)
                for k in range(0, len(penalties), size)
            ),
            strict=True,
        )
    ]
    results = run(alphas, True)
    proved = results[-1].copy()
    if not proved.all():
        for array, part in zip(results, run(alphas[~proved], False), strict=True):
            array[~proved] = part
    theta, baseline, losses, error, mean, resolved = results
    proved_losses = np.broadcast_to(proved[:, None], error.shape)
    return PathRefit(
        theta,
        baseline,
        losses,
        error,
        proved_losses,
        np.zeros(error.shape, bool),
        np.ones(len(theta)),
        mean,
        ~resolved,
    )


def _leave_rows_out(
    axes: _Axes, alpha: PerAlpha, plan: Plan, proved: bool
) -> tuple[NumpyArray, ...]:
    omega = axes.omega
    unit = plan.index
    in_order = np.array_equal(unit, np.arange(len(omega)))
    select = lambda part: part if in_order else part[..., unit]
    inverse = 1 / (axes.values + alpha[:, None])
    beta = inverse * axes.projection
    slope = beta @ axes.z.T  # η − y, and ℓ′
    slope += axes.level - axes.target
    if axes.plain:
        weighted_slope = slope
    else:
        weighted_slope = omega * slope
    # the gradient left by rounding
    gradient = weighted_slope @ axes.z + alpha[:, None] * beta
    total = weighted_slope.sum(1)
    coef = beta @ axes.vectors.T
    level = axes.level - coef @ axes.center
    seen = select(slope)
    omitted_weight = (1 - plan.weight) * omega[unit]
    denominator = select(inverse @ axes.square.T)
    denominator += axes.share
    denominator *= -omitted_weight
    denominator += 1  # 1 − ω h
    held = select((gradient * -inverse) @ axes.z.T)
    held += seen - (axes.share * total)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        held /= denominator
        losses = 0.5 * held**2
        residual = np.abs(held)
        # an upper bound of Σ_j |x_ij coef_j|
        bound = np.multiply.outer(linalg.norm(coef, axis=1), select(axes.length))
        bound += residual
        bound += np.abs(level)[:, None] + select(axes.shift)
        bound *= (len(omega) + 4 * len(axes.values) + 16) * UNIT
        held -= seen
        np.abs(held, out=held)
        held /= denominator
        held *= axes.step_error(alpha, inverse, proved)[:, None]
        bound += held
        residual += 0.5 * bound
        error = np.multiply(bound, residual, out=bound)  # ½(|r| + half)² − ½r²
        scored = plan.held * omega[unit]
        mean = losses @ scored / scored.sum()
        resolved = (denominator.min(1) > OWN_HESSIAN_BELOW) & (
            error.max(1) <= NEGLIGIBLE * (1 + mean)
        )
    losses[:, ~plan.held] = np.nan
    error[:, ~plan.held] = 0.0
    baseline = np.where(plan.held, 0.5 * seen**2, np.nan)
    theta = np.c_[coef, level] if axes.share else coef
    return theta, baseline, losses, error, mean, resolved
