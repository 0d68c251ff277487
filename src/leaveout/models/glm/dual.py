"""Regression of more columns than rows by a matrix of the rows: the same F in as many coordinates
as there are rows.

    F(θ, w) = Σ_n w_n s_n ℓ(x_nᵀβ + b + o_n, y_n) + κ(w) ½ Σ_j r_j β_j²,      r_j > 0

In any refit β = R⁻¹Xᵀa, as directions orthogonal to these change the penalty only. With a pivoted
Cholesky factor, X R⁻¹Xᵀ = Z Zᵀ, and a = Z₁⁻ᵀu on the pivots, whose rows of Z are Z₁, a refit has
the rows z_n of Z and the penalty ½ ‖u‖². No matrix of the columns is formed. With an intercept the
columns are centred first, so that it is not collinear with the rows z_n.
"""

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from scipy import linalg

from ..._runtime import ArrayFunction, NumpyArray, RowCoefficients, jnp, slices, static
from ...data import join_remarks
from ...linalg import MappedDesign, Resident, SparseDesign
from ...objectives import PerUnit, Units, as_stored
from . import penalties
from .active_coefficients import around
from .glm import GLM, PRODUCTS_FROM, AbstractRegression
from .penalties import PerFeature, PerWeight, Ridge

# columns whose products are summed at a time, so that rounding grows with them and not with all
GRAM_COLUMNS = 512


class DualGLM(AbstractRegression):
    """A `GLM` under a `Ridge`, in coordinates of its rows, the same for every output.

    Natural parameters are those of all columns.
    """

    shown = "GLM"
    original: AbstractRegression = static()
    ridge: PerFeature
    # Z₁⁻ᵀ at the pivots; with an intercept rows less their sum, by the weights
    row_basis: Float[NumpyArray, "units rank"]
    mean: PerFeature  # of the columns; zero without an intercept
    # sums over columns and the factor are off by so many units, which proofs count as columns
    further_columns: int = static()

    def __init__(self, original: AbstractRegression):
        vars(self).update(vars(original))
        ridge = ridge_strengths(original)
        assert ridge is not None
        weight = original.row_weights
        share = original.intercept * weight / weight.sum()
        mean = original.lines.pull(share[None])[0, : len(ridge)]
        gram = _gram(original, ridge, mean, share)
        largest = _largest_eigenvalue(lambda v: gram @ v, len(gram))
        # pivots below their rounding count as zero
        factor, pivots, rank, _ = linalg.lapack.dpstrf(gram, lower=1)
        inverse = np.tril(linalg.lapack.dtrtri(factor[:rank, :rank], lower=1)[0])
        place = pivots - 1
        rows = np.empty((len(gram), rank))
        rows[place] = np.tril(factor)[:, :rank]
        row_basis = np.zeros_like(rows)
        row_basis[place[:rank]] = inverse.T
        row_basis -= np.outer(share, row_basis.sum(0))
        new = {
            "original": original,
            "ridge": ridge,
            "mean": mean,
            "row_basis": as_stored(row_basis),
        }
        new["design"] = as_stored(_with_ones(rows, original.intercept))
        new["penalty"] = around(original.penalty, Ridge(1.0))
        new["names"] = tuple(f"u{k}" for k in range(rank))
        # between norms of coordinates and of moves
        least = 1 / _largest_eigenvalue(lambda v: (row_basis @ v) @ row_basis, rank)
        spread = np.sqrt((largest + 1) / (least + 1))
        if len(ridge) > GRAM_COLUMNS:
            terms = GRAM_COLUMNS + len(ridge) / GRAM_COLUMNS
        else:
            terms = len(ridge)
        if isinstance(original.design, SparseDesign):
            terms = int(np.diff(original.design.csr.indptr).max())
        new["further_columns"] = math.ceil((terms + rank) * spread)
        vars(self).update(new)

    @property
    def as_given(self) -> AbstractRegression:
        return self.original

    def under(self, penalty: penalties.PenaltyLike) -> Self:
        raise TypeError(
            "a fit by a matrix of the rows has its penalty in its coordinates; give the lo.GLM itself."
        )

    def _natural(self, theta):
        u = theta[..., : self.num_features]
        p = len(self.ridge)
        weights = u @ self.row_basis.T
        if isinstance(weights, NumpyArray):
            flat = self.original.lines.pull(weights.reshape(-1, weights.shape[-1]))[:, :p]
            coef = flat.reshape(*weights.shape[:-1], -1)
        else:
            coef = weights @ jnp.asarray(self.original.design)[:, :p]
        coef = coef / self.ridge
        return {
            "intercept": theta[..., -1] - coef @ self.mean
            if self.intercept
            else np.zeros(theta.shape[:-1]),
            "coef": coef,
        }

    def _to_unconstrained(self, parameters):
        theta = self.original._to_unconstrained(parameters)
        coef, level = np.split(theta, [len(self.ridge)], axis=-1)
        lines = np.concatenate([coef, np.zeros_like(level)], -1)
        along = self.original.lines.predictors(lines.reshape(-1, lines.shape[-1]))
        u = (along @ self.row_basis).reshape(*theta.shape[:-1], -1)
        return np.concatenate([u, level + (coef @ self.mean)[..., None]], -1)

    def new_rows(self, caller: str, X: Any) -> RowCoefficients:
        return self.coordinates(self.original.new_rows(caller, X))

    def coordinates(self, rows: Any) -> RowCoefficients:
        x = rows
        if isinstance(rows, SparseDesign | MappedDesign):
            x = rows.rows(slice(None))
        p = len(self.ridge)
        scaled = np.pad((x[:, :p] - self.mean) / self.ridge, ((0, 0), (0, int(self.intercept))))
        return _with_ones(self.original.lines.predictors(scaled) @ self.row_basis, self.intercept)

    @property
    def units(self) -> Units:
        features: Any = dict
        if len(self.ridge) <= PRODUCTS_FROM:
            features = self.original.units.features
        return replace(super().units, features=features)

    @property
    def unseen_variance(self) -> Float[NumpyArray, " natural"]:
        """Diagonal of H⁻¹ of coefficients and intercept along moves that no row sees, where the
        penalty alone is curved.
        """
        along = self.original.lines.pull(self.row_basis.T)[:, : len(self.ridge)] / self.ridge
        variance = np.append(
            1 / self.ridge - (along**2).sum(0),
            self.mean**2 @ (1 / self.ridge) - ((along @ self.mean) ** 2).sum(),
        )
        return (
            variance[: len(self.ridge) + self.intercept] / self._weigh(np.ones(self.num_units))[1]
        )

    @property
    def note(self) -> str:
        return join_remarks(f"by a matrix of the rows, of {len(self.ridge)} columns", super().note)


def ridge_strengths(model: Any) -> PerFeature | None:
    """Strengths r of a ridge on every coefficient of a GLM; None for other models."""
    if type(model) is not GLM:
        return None
    penalty = model.penalty
    if isinstance(penalty, PerWeight):
        penalty = penalty.penalty
    diagonal = penalty.diagonal(model.num_features)
    if diagonal is not None and np.all(np.asarray(diagonal) > 0):
        return np.array(diagonal, float)
    return None


def _largest_eigenvalue(product: ArrayFunction, size: int) -> float:
    """Bound the largest eigenvalue of a matrix by its products with a random vector.

    Thirty steps of the power method reach half of it but for one start in a million (Kuczyński and
    Woźniakowski, 1992).
    """
    vector = np.random.default_rng(0).standard_normal(size)
    for _ in range(30):
        vector = product(vector / np.linalg.norm(vector))
    return 2 * float(np.linalg.norm(vector))


def _gram(
    model: AbstractRegression,
    ridge: PerFeature,
    mean: PerFeature,
    share: PerUnit,
) -> Float[NumpyArray, "units units"]:
    """Compute X R⁻¹Xᵀ of centred columns, some columns at a time."""
    n = model.num_units
    p = len(ridge)
    if isinstance(model.design, SparseDesign):
        rows = model.design.csr[:, :p]
        gram = (rows.multiply(1 / ridge).tocsr() @ rows.T).toarray()
        row_means = gram @ share
        return gram - row_means - row_means[:, None] + share @ row_means
    out = np.zeros((n, n))
    source: Any = model.design
    if isinstance(source, MappedDesign | Resident):
        source = source.source
    for columns in slices(p, GRAM_COLUMNS):
        part = (np.asarray(source[:, columns], float) - mean[columns]) / np.sqrt(ridge[columns])
        out += part @ part.T
    return out


def _with_ones(rows: Float[NumpyArray, "rows rank"], intercept: bool) -> RowCoefficients:
    if intercept:
        return np.insert(rows, rows.shape[1], 1.0, axis=1)
    return rows
