"""Regression of more columns than rows by a matrix of the rows: the same F in as many coordinates as there are rows.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + b + o_n, y_n) + κ(w) ½ Σ_j r_j β_j²,      r_j > 0

In any refit β = R⁻¹Xᵀa, as directions orthogonal to these change the penalty only. With X R⁻¹Xᵀ = Q Λ Qᵀ, a = Q Λ^{-½} u, a
refit has the rows z_n of Q Λ^½ and the penalty ½ ‖u‖². No matrix of the columns is formed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from ..._runtime.jax import jnp, static
from ...linalg.device_design import Resident
from ...linalg.mapped_design import MappedDesign
from ...linalg.sparse_design import SparseDesign
from ...objectives.objective import Units, as_stored
from . import penalties
from .active_coefficients import around
from .glm import GLM, AbstractRegression
from .penalties import PerWeight, Ridge

Array = np.ndarray


class DualGLM(AbstractRegression):
    """A `GLM` of one output under a `Ridge`, in coordinates of its rows; natural parameters are those of all columns."""

    shown = "GLM"
    whole: AbstractRegression = static()
    ridge: Float[Array, " features"]
    back: Float[Array, "units rank"]  # QΛ^{-½}

    def __init__(self, whole: AbstractRegression):
        vars(self).update(vars(whole))
        ridge = _ridge(whole)
        values, vectors = np.linalg.eigh(_gram(whole, ridge))
        good = values > 1e-15 * len(values) * values[-1]  # what is less is rounding
        root = np.sqrt(values[good])
        rows = vectors[:, good] * root
        new: dict[str, Any] = {"whole": whole, "ridge": ridge, "back": as_stored(vectors[:, good] / root)}
        new["design"] = as_stored(_with_ones(rows, whole.intercept))
        new["penalty"], new["names"] = around(whole.penalty, Ridge(1.0)), tuple(f"u{k}" for k in range(len(root)))
        vars(self).update(new)

    @property
    def as_given(self) -> AbstractRegression:
        return self.whole

    def under(self, penalty: penalties.AbstractPenalty | Callable[..., Any] | None) -> Self:
        raise TypeError("a fit by a matrix of the rows has its penalty in its coordinates; give the lo.GLM itself.")

    def _natural(self, theta):
        u, p = theta[..., : self.num_features], len(self.ridge)
        weights = u @ self.back.T
        known = isinstance(weights, np.ndarray)
        flat = self.whole.lines.pull(weights.reshape(-1, weights.shape[-1]))[:, :p] if known else None
        coef = weights @ jnp.asarray(self.whole.design)[:, :p] if flat is None else flat.reshape(*weights.shape[:-1], -1)
        coef = coef / self.ridge
        return {"intercept": theta[..., -1] if self.intercept else np.zeros(theta.shape[:-1]), "coef": coef}

    def _to_unconstrained(self, parameters):
        theta = self.whole._to_unconstrained(parameters)
        along = self.whole.lines.predictors(np.append(theta[: len(self.ridge)], np.zeros(int(self.intercept)))[None])[0]
        return np.append(along @ self.back, theta[len(self.ridge) :])

    def new_rows(self, caller: str, X: Any) -> Float[np.ndarray, "rows coefficients"] | SparseDesign:
        x = self.whole.new_rows(caller, X)
        rows = x.rows(slice(None)) if isinstance(x, SparseDesign | MappedDesign) else x
        p = len(self.ridge)
        scaled = np.pad(rows[:, :p] / self.ridge, ((0, 0), (0, int(self.intercept))))
        return _with_ones(self.whole.lines.predictors(scaled) @ self.back, self.intercept)

    @property
    def units(self) -> Units:
        return replace(super().units, features=dict)

    @property
    def note(self) -> str:
        return "; ".join(filter(None, (f"by a matrix of the rows, of {len(self.ridge)} columns", super().note)))


def _ridge(whole: AbstractRegression) -> Float[Array, " features"]:
    """Strengths r of a ridge penalty; raise TypeError for other penalties."""
    inner = whole.penalty.penalty if isinstance(whole.penalty, PerWeight) else whole.penalty
    diagonal = inner.diagonal(whole.num_features)
    if type(whole) is not GLM or whole.classes or diagonal is None or not np.all(np.asarray(diagonal) > 0):
        what = f"{type(whole).__name__}{' with several outputs' if whole.classes else ''}, {whole.penalty!r}"
        raise TypeError(
            f'fit: curvature="rows" is for a lo.GLM of one output under lo.penalties.Ridge, above zero; got {what}.'
        )
    return np.array(diagonal, float)


def _gram(whole: AbstractRegression, ridge: Float[Array, " features"]) -> Float[Array, "units units"]:
    """Compute X R⁻¹Xᵀ, some columns at a time."""
    n, p = whole.num_units, len(ridge)
    if isinstance(whole.design, SparseDesign):
        rows = whole.design.csr[:, :p]
        return (rows.multiply(1 / ridge).tocsr() @ rows.T).toarray()
    out, step = np.zeros((n, n)), max(1, 2**21 // n)
    source = whole.design.source if isinstance(whole.design, MappedDesign | Resident) else whole.design
    for start in range(0, p, step):
        some = slice(start, min(start + step, p))
        part = np.asarray(source[:, some], float) / np.sqrt(ridge[some])
        out += part @ part.T
    return out


def _with_ones(rows: Float[Array, "rows rank"], intercept: bool) -> Float[Array, "rows coefficients"]:
    return np.append(rows, np.ones((len(rows), 1)), axis=1) if intercept else rows
