"""Least squares by a factor of its rows: refits whose Hessians rounding hides, or whose rows leave
directions undetermined.

    F(θ, w) = ½ Σ_n w_n s_n (x_nᵀβ + b + o_n − y_n)² + ½ Σ_j r_j β_j²,      r = 0, or r_j > 0

Hosts take the solution of least norm if the data determine no other, and so does this module.
With √W(X − x̄)R^{-½} = Q s Vᵀ and u = √w / ‖√w‖ (nothing without an intercept), the residuals of
rows o that are left out solve S_oo r_o = (S y)_o,

    S = S₁ + S₀,      S₁ = √W (I − uuᵀ − QQᵀ) √W,      S₀ = √W Q diag(1/(s² + 1)) Qᵀ √W
    under a ridge,
                                                       and infinitely smaller, √W Q s⁻² Qᵀ √W,
                                                       without one:

in which case S₁ determines what it can, and S₀ the rest. A refit is the fit to a response that has
its predictions in the place of y_o. If other weights change, or if it is not clear which directions
the rows o alone determine, an SVD computes the refit.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import linalg

from .._runtime import NumpyArray, cached_on
from ..linalg import UNIT, DenseDesign, PerUnit, Predictors
from ..models.glm import OrthogonalGLM, kinks
from .fit import Fit

PerFeature = Float[NumpyArray, " features"]
CAUTION = 32  # factor on (n + p) u, within which factors of LAPACK are those of rows nearby
NONZERO_FROM = 1e3  # factor on its rounding error from which a number is known not to be zero
DEAR = 1e12  # largest number of operations of a plan's refits that are computed one by one


class FactorisedRows(NamedTuple):
    """Factor of all rows.

    It has Q, s, V, the mean of the rows and √weight, the `gap`, whether the rank is `certain`, u,
    whether the rows are interpolated, the mean response, and √weight times the residuals.
    """

    Q: NumpyArray
    s: NumpyArray
    V: NumpyArray
    mean: NumpyArray
    root: NumpyArray
    gap: float
    certain: bool
    u: NumpyArray
    full: bool
    level: float
    target: NumpyArray


class LeastNorm:
    """The rows of a least-squares fit, factorised.

    `gap` is the relative size of the smallest singular value that counts.
    """

    def __init__(
        self,
        fit: Fit,
        model: Predictors,
        y: NumpyArray,
        intercept: bool,
        ridge: PerFeature,
    ):
        p = len(ridge)
        self.x = model.design.x[:, :p]
        self.cut = getattr(fit.objective, "cut", 0.0)
        self.intercept = intercept
        self.y = y - model.offset
        self.ridge = ridge
        self.has_host = bool(self.cut or getattr(fit.objective, "least_norm", False))
        self.weight, _ = model.full_weights
        self.has_penalty = bool(ridge.any())
        # maps the solution to β
        self.coefficient_map = np.eye(p) / np.sqrt(ridge) if self.has_penalty else np.eye(p)
        if len(fit.quadratic.null_space) and not self.cut and not self.has_penalty:
            self.coefficient_map = scipy.linalg.null_space(fit.quadratic.null_space[:, :p])
        self.natural: NumpyArray | None = None  # maps β to the columns as given, whose norm counts
        if isinstance(fit.objective, OrthogonalGLM) and not fit.objective.is_shift:
            self.natural = fit.objective.basis[:p, :p]
        self.z = self.x @ self.coefficient_map
        self.spare = UNIT * CAUTION * (len(y) + p)

    @cached_property
    def factorised_rows(self) -> "FactorisedRows":
        """The factor of all rows."""
        Q, s, V, mean, root, gap, is_clear = self._factor(self.weight)
        u = root / linalg.norm(root) if self.intercept else np.zeros(len(root))
        Q = Q - np.outer(u, u @ Q)  # centring leaves 1e-16 / s along u
        level = float(u @ (root * self.y) / linalg.norm(root)) if self.intercept else 0.0
        full = len(s) == np.sum(self.weight > 0) - self.intercept
        certain = is_clear and (not self.cut or np.isfinite(cut_floor(self.cut, self._singular())))
        return FactorisedRows(
            Q, s, V, mean, root, gap, certain, u, bool(full), level, root * (self.y - level)
        )

    def _singular(self) -> PerFeature:
        if self.intercept:
            mean = self.weight @ self.x / self.weight.sum()
        else:
            mean = np.zeros(self.x.shape[1])
        return linalg.svd(np.sqrt(self.weight)[:, None] * (self.x - mean), compute_uv=False)

    def _factor(
        self, weight: PerUnit
    ) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray, NumpyArray, float, bool]:
        """Compute Q, s, V of the weighted and centred rows up to the host's cut.

        Returns them with the mean, √weight, the gap, and whether the cut is clear: no singular
        value is so near that rounding decides.
        """
        root = np.sqrt(weight)
        if self.intercept:
            mean = weight @ self.z / weight.sum()
        else:
            mean = np.zeros(self.z.shape[1])
        Q, s, V = linalg.svd(root[:, None] * (self.z - mean), full_matrices=False)
        largest = float(s.max(initial=0.0))
        # rounding error of centring
        shift = largest + float(linalg.norm(root)) * float(np.abs(mean).max(initial=0.0))
        rounding = self.spare * shift
        least = max(self.cut * largest, rounding)
        good = s > least
        # the distance from the cut, or from zero
        away = rounding if least > rounding else least * (NONZERO_FROM - 1)
        low = least - rounding if least > rounding else least
        is_clear = self.has_penalty or not np.any((s > low) & (s < least + away))
        if self.has_penalty:
            # centring removes one
            good = (s > 0) & (np.arange(len(s)) < np.sum(weight > 0) - self.intercept)
        values = s[good]
        gap = 1.0
        if len(values):
            gap = float(shift / max(values.min(initial=largest), 1.0 if self.has_penalty else 0.0))
        return Q[:, good], values, V[good].T, mean, root, gap, bool(is_clear)

    @cached_property
    def floor(self) -> float:
        """Share of the information that a refit must keep (`cut_floor`)."""
        if self.cut:
            return cut_floor(self.cut, self._singular())
        return 0.0

    def tells(self, rank: int) -> bool:
        """Tell whether a refit of this rank has held-out losses for all units.

        A refit of a host has, as hosts take the solution of least norm. A model of this library has
        none for units that depend on a direction which only left-out rows determine, unless all
        rows are interpolated, when the fit itself is the solution of least norm.
        """
        return bool(
            self.has_host
            or self.has_penalty
            or self.factorised_rows.full
            or rank >= len(self.factorised_rows.s)
        )

    def refit(self, weights: PerUnit) -> tuple[PerFeature, float, float] | None:
        """Compute β, the intercept, and the error of predictions.

        None if rounding decides which directions the rows determine, or if they determine too few.
        """
        out = np.flatnonzero((weights == 0) & (self.weight > 0))
        if (
            np.all((weights == 1) | (weights == 0))
            and self.factorised_rows.certain
            and (solution := self._without(out)) is not None
        ):
            return solution
        omega = weights * self.weight
        if not omega.any():
            return None
        Q, s, V, mean, root, gap, is_clear = self._factor(omega)
        if not is_clear or not self.tells(len(s)):
            return None
        level = omega @ self.y / omega.sum() if self.intercept else 0.0
        damped = s / (s**2 + 1) if self.has_penalty else 1 / s
        b = V @ (damped * (Q.T @ (root * (self.y - level))))
        size = float(linalg.norm(root * (self.y - level)) / np.sqrt(omega.max()))
        spread = 0.0
        if self.natural is not None and len(s) < len(b):
            null = scipy.linalg.null_space(V.T)
            along = self.natural @ null
            coef = self.natural @ b
            spread = self._norm_error(along, coef)
            b -= null @ linalg.lstsq(along, coef, rcond=None)[0]
        return (
            self.coefficient_map @ b,
            float(level - mean @ b),
            spread + self.spare * gap * size + self._digits(level),
        )

    def _norm_error(self, along: NumpyArray, coef: NumpyArray) -> float:
        """Estimate the error of the least norm from that of the directions `along`, which collinear
        columns enlarge.
        """
        if self.natural is None:
            return 0.0
        return float(
            CAUTION * UNIT * linalg.cond(self.natural) * linalg.norm(coef) / linalg.norm(along, -2)
        )

    def _digits(self, level: float) -> float:
        return self.spare * float(np.abs(self.y).max() + abs(level))

    def _without(self, o: Int[NumpyArray, " out"]) -> tuple[PerFeature, float, float] | None:
        """Refit by the block of S for the rows that leave.

        None if it does not determine the refit.
        """
        rows = self.factorised_rows
        root = rows.root[o]
        Q = rows.Q[o]
        s = rows.s
        rounding = self.spare * rows.gap
        if rows.full:
            determined_block = np.zeros((len(o), len(o)))
        else:
            determined_block = np.eye(len(o)) - np.outer(rows.u[o], rows.u[o]) - Q @ Q.T
        t = rows.Q.T @ rows.target
        spread = 0.0
        residual = np.zeros(len(o)) if rows.full else rows.target[o] - Q @ t
        if not rows.full:
            residual -= rows.u[o] * (rows.u @ rows.target)
        if self.has_penalty:
            ridge_rows = Q / np.sqrt(s**2 + 1)
            values, vectors = linalg.eigh(determined_block + ridge_rows @ ridge_rows.T)
            if not values[0] > NONZERO_FROM * (self.spare if rows.full else rounding) * (
                values[-1] if rows.full else 1.0
            ):
                return None
            r = vectors @ ((vectors.T @ (residual + Q @ (t / (s**2 + 1)))) / values)
            if rows.full:
                worst = float(np.sqrt(values[-1] / values[0]))
            else:
                worst = float(1 / values[0])
        else:
            values, vectors = linalg.eigh(determined_block)
            is_determined = values > max(np.sqrt(rounding), NONZERO_FROM * rounding)
            if not (rows.full or is_determined.all()) or (self.cut * rows.gap) ** 2 * 10 > values[
                is_determined
            ].min(initial=1.0):
                return None
            V1 = vectors[:, is_determined]
            V0 = vectors[:, ~is_determined]
            if not self.tells(len(s) - V0.shape[1]):
                return None
            r = V1 @ ((V1.T @ residual) / values[is_determined])
            worst = float(1 / values[is_determined].min(initial=1.0))
            if V0.shape[1]:
                norm = np.diag(1 / s) if self.natural is None else self.natural @ (rows.V / s)
                along = norm @ (Q.T @ V0)
                coef = norm @ (t - Q.T @ r)
                r += V0 @ linalg.lstsq(along, coef, rcond=None)[0]
                spread = self._norm_error(along, coef)
        response_change = -(Q.T @ r)  # change of t as predictions take the place of y
        damped = s / (s**2 + 1) if self.has_penalty else 1 / s
        b = rows.V @ (damped * (t + response_change))
        r /= root
        level = 0.0
        if self.intercept:
            level = rows.level - float(self.weight[o] @ r) / float(self.weight.sum())
        size = float(linalg.norm(rows.target) / np.sqrt(self.weight.max()))
        off = spread + rounding * worst * (size + float(np.abs(r).max(initial=0.0)))
        return self.coefficient_map @ b, level - float(rows.mean @ b), off + self._digits(level)


def cut_floor(cut: float, s: PerFeature) -> float:
    """Compute the share of the information that a refit must keep along every direction for its
    host's cut not to matter.

    It follows from the singular values of all rows, and is infinite if the cut removes a direction
    that these data determine.
    """
    largest = s.max(initial=0.0)
    is_kept = s > cut * largest
    rounding = UNIT * CAUTION * NONZERO_FROM * len(s) * largest
    if not is_kept.any() or np.any(~is_kept & (s > rounding)):
        return np.inf
    return float(10 * (cut * largest / s[is_kept].min()) ** 2)


@cached_on
def least_norm(fit: Fit) -> LeastNorm | None:
    """Factorise the rows of a least-squares fit with no penalty or a ridge on every coefficient.

    None for other fits.
    """
    model = fit.quadratic.predictors
    objective = fit.objective
    if (
        model is None
        or not isinstance(model.design, DenseDesign)
        or not model.separate
        or model.norms is not None
    ):
        return None
    n, p = model.design.shape
    if (
        np.any(model.unit_loss.self_concordance != 0)
        or n != objective.num_units
        or kinks(objective) is not None
    ):
        return None
    slope, curvature = model.unit_loss.derivatives(np.zeros(n), model.y, (1, 2))
    intercept = bool(getattr(objective, "intercept", False))
    penalty = np.asarray(model.penalty)
    ridge = np.diag(penalty)[: p - intercept]
    if np.any(curvature != 1) or not np.array_equal(penalty, np.diag(np.diag(penalty))):
        return None
    if (ridge > 0).all() or not ridge.any():
        return LeastNorm(fit, model, -slope, intercept, ridge)
    return None
