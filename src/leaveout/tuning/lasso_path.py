"""Least squares under Lasso(α) or ElasticNet(α, ρ), every row left out by itself, for many α along
one path.

X are the columns times the roots of the sample weights, including an intercept, S the columns that
are active at α, σ their signs, A = X_SᵀX_S + ridge, r the residuals, h_i = x_iᵀA⁻¹x_i, a = αρ and
g = −Xᵀr. If S and σ do not change, leaving row i out gives

    t_i = r_i/(1 − h_i),      β_j − t_i V_ij, j ∈ S,      g_j + t_i M_ij, j ∉ S,
    V = X_S A⁻¹,  M = X − V X_SᵀX,

as the residual, the coefficients and the gradient. S and σ do not change if the coefficients keep
their signs and
|g_j + t_i M_ij| ≤ a: then t_i is proved, with rounding counted as in `linalg.rounding`.
Otherwise each parameter that leaves
zero, or goes there, moves the residual as if it moved alone (`refit._kinks`), which is an
estimate.

Scikit-learn's coordinate descent on XᵀX gives S at each α, and is then converged. In a run of α
along which columns only join, and with columns in that order, A of each is a leading block of the
last A, and one factor L Lᵀ = A of the last is enough: with W = L⁻ᵀ, whose first columns are those
of each block, A⁻¹ = W Wᵀ and

    h_i = Σ_k (XW)²_ik,      V = XW Wᵀ,      M = X − XW (WᵀXᵀX),

are sums over the columns of W, to which the next α adds a few. Columns that leave, or join between
two such runs, are ±WWᵀ too: A⁻¹ of S ∪ J is that of S and, with C = A_JJ − A_JS A⁻¹ A_SJ, W_J =
C^{-½}, W_S = −A⁻¹A_SJ C^{-½}.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy import linalg
from numpy.random import default_rng

from .._runtime import (
    Indices,
    NumpyArray,
    ParamColumns,
    ParamRows,
    SubsetValues,
    ThreeArrays,
    TwoArrays,
    UnitFlags,
    UnitVectors,
    slices,
)
from ..linalg import (
    UNIT,
    UP,
    Box,
    Curvature,
    Vector,
    condition,
    excess,
    factor_error,
    leaving_signs,
)
from ..models.glm import AbstractPenalty, ElasticNet, Lasso
from ..objectives import PerUnit
from ..optimize import CANCELLED_PRODUCT, TIE_DISTANCE
from ..plans import Plan
from ..refit import OWN_HESSIAN_BELOW, PathRefit
from .ridge_path import PerAlpha, applies as is_least_squares

Columns = Float[NumpyArray, "some cols"]
PathPoints = Float[NumpyArray, "alphas params"]
# active columns beyond which a sample of rows gives the errors of losses, and float32 the leverages
SAMPLED_ACTIVE_COLUMNS = 250
# sampled rows; factor on their result; rounding of float32
NUM_SAFETY_ROWS = 200
SAMPLE_SAFETY = 3.0
FLOAT32_ROUNDING = 1e-5


def applies(objective: object, penalties: list[AbstractPenalty], plan: Plan) -> bool:
    """Tell whether the path is of least squares under a lasso or an elastic net."""
    if not penalties or not all(
        isinstance(penalty, Lasso | ElasticNet) and penalty.has_kinks and not penalty.alpha.ndim
        for penalty in penalties
    ):
        return False
    if not is_least_squares(objective) or len({_ratio(penalty) for penalty in penalties}) > 1:
        return False
    weight = objective.row_weights  # type: ignore[attr-defined]
    return bool((plan.weight == 0).all() and plan.held.all() and (weight > 0).all())


def _ratio(penalty: AbstractPenalty) -> float:
    if isinstance(penalty, ElasticNet):
        return float(penalty.l1_ratio)
    return 1.0


class StandardisedColumns:
    """Columns times the roots of weights, and their products, without large means if there is an
    intercept.
    """

    def __init__(self, objective: Any):
        self.root = np.sqrt(objective.row_weights)
        offset = 0.0
        if objective.offset is not None:
            offset = objective.offset
        # columns without a penalty
        self.free = np.arange(objective.design.shape[1]) >= objective.num_features
        x = np.asarray(objective.design)
        self.y = self.root * (objective.y - offset)
        share = self.root**2 / np.sum(self.root**2)
        mean = np.where(self.free, 0.0, share @ x)
        # share of a column's sum of squares from which its mean is removed
        large = self.free.any() and np.any(mean**2 > 0.5 * np.einsum("n,np,np->p", share, x, x))
        self.mean = mean if large else np.zeros(len(mean))
        if large:
            x = x - mean
        self.x = x * self.root[:, None]
        self.gram = self.x.T @ self.x
        self.moments = self.x.T @ self.y
        self.scale = np.sqrt(np.diag(self.gram))
        self.largest = np.maximum(self.x.max(0), -self.x.min(0))
        self.length = np.sqrt(np.einsum("np,np->n", self.x, self.x))

    @functools.cached_property
    def single(self) -> UnitVectors:
        """Columns in float32."""
        return np.asarray(self.x, np.float32)

    def path(self, alphas: PerAlpha, ratio: float) -> PathPoints:
        """Compute coefficients at falling α by coordinate descent, for centred columns and an
        intercept of zero.
        """
        from sklearn.linear_model import enet_path

        penalised = np.flatnonzero(~self.free)
        theta = np.zeros((len(alphas), len(self.free)))
        gram = self.gram[np.ix_(penalised, penalised)]
        moments = self.moments[penalised]
        y = self.y
        if self.free.any():
            cross = self.gram[penalised, -1]
            size = self.gram[-1, -1]
            gram -= np.multiply.outer(cross / size, cross)
            moments -= cross * (self.moments[-1] / size)
            y = y - self.x[:, -1] * (self.moments[-1] / size)
        theta[:, penalised] = enet_path(
            self.x[:, penalised[0] : penalised[-1] + 1],
            y,
            l1_ratio=ratio,
            alphas=alphas / len(y),
            precompute=gram,
            Xy=moments,
            tol=1e-5,
            max_iter=10_000,
            check_input=False,
        )[1].T
        return theta

    def shift_back(
        self, theta: Float[NumpyArray, "*alphas params"]
    ) -> Float[NumpyArray, "*alphas params"]:
        """Return θ of the columns before they were centred."""
        return theta - np.multiply.outer(theta @ self.mean, self.free)


class PathRun:
    """Minimisers at some falling α along which columns only join, given the active columns and
    their signs at each.

    Each A is a leading block of the last. None is `converged` if that is not positive definite,
    and then it is not `determined`.
    """

    def __init__(
        self,
        rows: StandardisedColumns,
        indices: Int[NumpyArray, " alphas"],
        a: NumpyArray,
        ridge: float,
        sign: PathPoints,
    ):
        self.rows = rows
        self.indices = indices
        self.a = a
        self.ridge = ridge
        listed = rows.free | (sign != 0)
        columns = np.flatnonzero(listed[-1])
        self.active = columns[np.argsort(np.argmax(listed[:, columns], 0), kind="stable")]
        self.size = listed.sum(1)
        gram = rows.gram.take(self.active, axis=0).take(self.active, axis=1)
        gram.flat[:: len(gram) + 1] += np.where(rows.free[self.active], 0.0, ridge)
        curvature = Curvature.of(gram, 0.0)
        self.determined = bool(curvature.definite)
        self.factor = curvature.factor
        solutions = self.forward(np.stack([rows.moments, sign[-1]], 1)[self.active])
        right = np.where(
            np.arange(len(self.active))[:, None] < self.size,
            solutions[:, :1] - solutions[:, 1:] * a,
            0.0,
        )
        self.theta = np.zeros(listed.shape)
        self.theta[:, self.active] = self.backward(right).T
        self.gradient = self.theta @ rows.gram - rows.moments
        free = np.where(rows.free, 0.0, a[:, None])
        ends = np.full_like(free, np.inf)
        beyond = excess(Box(free, (-ends, ends)), self.theta, self.gradient)
        leaving = self.theta * sign < 0
        joining = ~listed & (np.abs(beyond) > a[:, None] * TIE_DISTANCE)
        signs = np.where(joining, leaving_signs(free, self.theta, beyond), sign)
        self.sign = np.where(leaving, 0.0, signs)
        self.converged = ~(leaving | joining).any(1) & self.determined

    @property
    def is_large(self) -> bool:
        """Tell whether so many columns are active that a sample of rows gives the moves, and
        float32 gives h.
        """
        return bool(self.size[0] > SAMPLED_ACTIVE_COLUMNS)

    def forward(self, right: Columns) -> Columns:
        """Apply L⁻¹ of the first active columns."""
        count = len(right)
        return scipy.linalg.solve_triangular(
            self.factor[:count, :count], right, lower=True, check_finite=False
        )

    def backward(self, right: Columns) -> Columns:
        """Apply L⁻ᵀ of the first active columns."""
        count = len(right)
        return scipy.linalg.solve_triangular(
            self.factor[:count, :count], right, lower=True, trans=1, check_finite=False
        )

    def roots(self, first: int, last: int) -> ParamColumns:
        """Return some columns of W."""
        out = np.zeros((len(self.rows.gram), last - first))
        out[self.active[:last]] = self.backward(np.eye(last)[:, first:])
        return out

    def schur_root(
        self, columns: Int[NumpyArray, " more"], size: int
    ) -> Float[NumpyArray, "params more"]:
        """Compute W of some columns beside the first active ones; NaN if they are dependent."""
        gram = self.rows.gram
        out = np.zeros((len(self.rows.gram), len(columns)))
        active = self.active[:size]
        if columns.size:
            half = self.forward(gram[np.ix_(active, columns)])
            schur = (
                gram[np.ix_(columns, columns)] - half.T @ half + self.ridge * np.eye(len(columns))
            )
            root = Curvature.of(schur, 0.0).root.T
            if np.any(np.diag(schur) < CANCELLED_PRODUCT * np.diag(gram)[columns]):
                root = np.full_like(root, np.nan)
            out[columns] = root
            out[active] = -self.backward(half @ root)
        return out

    def after(self, before: "PathRun | None") -> "Change":
        """Return the change of the factor from the last α of another run."""
        first = int(self.size[0])
        last = int(self.size[-1])
        if (
            before is not None
            and before.ridge == self.ridge
            and (self.is_large or not before.is_large)
        ):
            active = self.active[:first]
            joining = np.setdiff1d(active, before.active)
            leaving = np.setdiff1d(before.active, active)
            # share of columns that change from which leverages are computed anew
            if len(joining) + len(leaving) <= 0.5 * first:
                parts = (
                    before.schur_root(joining, len(before.active)),
                    self.schur_root(leaving, first),
                    self.roots(first, last),
                )
                root = np.concatenate(parts, 1)
                sign = np.repeat([1.0, -1.0, 1.0], [len(joining), len(leaving), last - first])
                if np.isfinite(root).all():
                    return Change(root, sign, self.size - last + len(sign), False)
        return Change(self.roots(0, last), np.ones(last), self.size, True)


class Change(NamedTuple):
    """Change of the factor.

    W, signs ± of W Wᵀ, its number of columns at each α of a run, and whether it replaces all.
    """

    root: ParamColumns
    sign: SubsetValues
    ends: Int[NumpyArray, " alphas"]
    replaces_all: bool

    def squares(self, rows: StandardisedColumns, rough: bool) -> Float[NumpyArray, "some units"]:
        """Compute (XW)² of every column of W, in float32 if that is accurate enough."""
        data = rows.single if rough else rows.x
        used = np.flatnonzero(self.root.any(1))
        root = self.root.T.astype(data.dtype)
        # share of nonzero rows of W below which they are selected before a product
        if len(used) < 0.3 * len(self.root):
            out = root[:, used] @ data.take(used, axis=1).T
        else:
            out = root @ data.T
        return np.square(out, out=out)


class SampledProducts:
    """Sample of rows with V and M and, for all columns, the remaining squares and the diagonal of
    A⁻¹.
    """

    def __init__(self, rows: StandardisedColumns, ridge: float):
        self.units = default_rng(0).choice(
            len(rows.y), min(NUM_SAFETY_ROWS, len(rows.y)), replace=False
        )
        self.x = rows.x[self.units]
        self.along = np.zeros_like(self.x)
        self.remainder = self.x.copy()
        self.residual_diagonal = np.diag(rows.gram) + ridge
        self.spread = np.zeros(len(rows.gram))

    def add(
        self,
        root: ParamColumns,
        sign: SubsetValues,
        across: ParamRows,
    ) -> None:
        """Add ± W Wᵀ of some more columns; `across` is WᵀXᵀX."""
        scaled = (self.x @ root) * sign
        self.along += scaled @ root.T
        self.remainder -= scaled @ across
        self.residual_diagonal -= sign @ across**2
        self.spread += root**2 @ sign


class LassoMinimum:
    """Minimiser at one α of a run, with r and h, and a bound of the rounding error of h."""

    def __init__(
        self,
        run: PathRun,
        k: int,
        residual: PerUnit,
        h: PerUnit,
        h_error: PerUnit,
    ):
        self.rows = run.rows
        self.run = run
        self.a = float(run.a[k])
        self.residual = residual
        self.h = h
        self.h_error = h_error
        self.theta = run.theta[k]
        self.active = run.active[: run.size[k]]
        self.sign = run.sign[k, self.active]
        self.coef = self.theta[self.active]
        self.gradient = run.gradient[k]
        self.inactive = np.setdiff1d(np.arange(len(self.theta)), self.active)

    def sample_moves(
        self, sample: SampledProducts, t: PerUnit
    ) -> tuple[NumpyArray, NumpyArray, UnitFlags]:
        """Compute the result of `left_out` for all rows from a sample: a row's move is about b₁ t +
        b₂ t |t|.

        The remainder grows for large t in proportion to |t|^{3/2}, since more parameters move, and
        each by more.
        """
        sample_t = t[sample.units, None]
        along = sample.along[:, self.active]
        remainder = sample.remainder[:, self.inactive]
        h = np.einsum("up,up->u", sample.along, sample.x)
        move, size = np.zeros((2, len(sample_t)))
        gradient = self.gradient[self.inactive] + sample_t * remainder
        value = self.coef - sample_t * along
        unit, column = np.nonzero(np.abs(gradient) > self.a)
        beyond = gradient[unit, column] - self.a * np.sign(gradient[unit, column])
        _add_moves(
            move,
            size,
            unit,
            remainder[unit, column],
            sample.residual_diagonal[self.inactive[column]],
            beyond,
            h,
            -1.0,
        )
        unit, column = np.nonzero((value * self.sign <= 0) & (self.sign != 0))
        _add_moves(
            move,
            size,
            unit,
            along[unit, column],
            sample.spread[self.active[column]],
            value[unit, column],
            h,
            1.0,
        )
        basis = np.stack([t, t * np.abs(t)], 1)
        level = max(float(np.sqrt(np.mean(t**2))), 1e-300)
        coefficients = linalg.lstsq(basis[sample.units], move, rcond=None)[0]
        length = level * np.maximum(np.abs(t) / level, 1.0) ** 1.5
        share = np.sqrt(
            np.mean(((move - basis[sample.units] @ coefficients) / length[sample.units]) ** 2)
        )
        return (
            t + basis @ coefficients,
            (SAMPLE_SAFETY * share + FLOAT32_ROUNDING) * length,
            np.zeros(len(t), bool),
        )

    def left_out(self, sample: SampledProducts | None) -> tuple[NumpyArray, NumpyArray, UnitFlags]:
        """Compute the residual of every row from a refit without it, its error, and whether that is
        proved.
        """
        rows = self.rows
        active = self.active
        t = self.residual / (1 - self.h)
        if sample is not None:
            t, size, proved = self.sample_moves(sample, t)
            return t, size + 4 * self._digits() / (1 - self.h), proved
        root = self.run.roots(0, len(active))[active]
        near_zero, short = self._distance(root)
        inverse = root @ root.T
        across = rows.gram.take(active, axis=0).take(self.inactive, axis=1)
        inside = inverse @ across
        level = np.abs(self.gradient[self.inactive])
        coef = np.abs(self.coef)
        explained = np.einsum("sj,sj->j", across, inside)
        spread = np.sqrt(np.diag(inverse))
        margin = np.maximum(1 - self.h - self.h_error, 1e-300)
        rounding = (
            self._digits() + np.sqrt(self.h + self.h_error) * short + np.abs(t) * self.h_error
        ) / margin
        distance = float(np.max(np.abs(t) * np.sqrt(np.maximum(self.h, 0.0)))) + short
        level += near_zero[self.inactive] + short * rows.scale[self.inactive]
        change = np.abs(t).max() * rows.largest[self.inactive] + distance * np.sqrt(
            np.maximum(explained, 0.0)
        )
        joining, leaving = self._within(level + change, coef - distance * spread)
        # beyond so many active columns times columns that may change, a sample of rows is used and
        # nothing is proved
        all_rows = len(active) * (joining.size + leaving.size) <= 10_000
        if not all_rows:  # from a sample of rows
            # number of sampled rows
            units = default_rng(0).choice(len(t), min(500, len(t)), replace=False)
            x = rows.x[units][:, active]
            weight = np.abs(t[units, None])
            change = np.max(
                weight * np.abs(rows.x[np.ix_(units, self.inactive)] - x @ inside),
                0,
                initial=0.0,
            )
            joining, leaving = self._within(
                level + change, coef - np.max(weight * np.abs(x @ inverse), 0)
            )
        schur = rows.gram[self.inactive, self.inactive] + self.run.ridge - explained
        move, size = self._moves(
            rows.x if all_rows else rows.single,
            t,
            (joining, inside[:, joining], schur[joining]),
            (leaving, inverse[:, leaving]),
        )
        proved = (size == 0) & all_rows & (self.h + self.h_error < 1)
        return (
            t + move,
            UP * ((size if all_rows else np.maximum(size, size.mean())) + rounding),
            proved,
        )

    def _digits(self) -> PerUnit:
        """Bound the rounding errors of the residuals, as sums, times n."""
        count = len(self.residual) + len(self.rows.gram) + 16
        return count * UNIT * (linalg.norm(self.coef) * self.rows.length + np.abs(self.rows.y))

    def _distance(self, root: Float[NumpyArray, "some some"]) -> tuple[Vector, float]:
        """Bound rounding errors of the gradient, and the distance of the coefficients from the
        minimiser in the norm of A.
        """
        scale = self.rows.scale
        active = self.active
        size = scale[active] @ np.abs(self.coef) + linalg.norm(self.rows.y)
        blur = (len(self.residual) + len(scale) + 8) * UNIT * size * scale
        ridge = np.where(self.rows.free[active], 0.0, self.run.ridge)
        column_norms = np.sqrt(scale[active] ** 2 + ridge)
        gradient = self.gradient[active] + self.a * self.sign + ridge * self.coef
        length = linalg.norm(gradient @ root) + np.sqrt(
            condition(
                root.T, blur[active] + 4 * UNIT * (self.a + column_norms**2 * np.abs(self.coef))
            )
        )
        error = factor_error(condition(root.T, column_norms), len(self.residual), len(active))
        return blur, float(length / np.sqrt(1 - error)) if error < 0.5 else np.inf

    def _moves(
        self,
        data: NumpyArray,
        t: NumpyArray,
        joining: ThreeArrays,
        leaving: TwoArrays,
    ) -> TwoArrays:
        """Return the moves of the residuals, and the sums of the sizes of the moves.

        Columns that may join are given by their places in `inactive`, A⁻¹A_Sj and C of each, and
        columns that may leave by their places in `active` and their columns of A⁻¹. `data` is X, in
        float32 if a screen is enough; t is the residual if nothing changes. A sum is zero only if
        nothing changes at its row.
        """
        move, size = np.zeros((2, len(t)))
        which, inside, schur = joining
        leaves, inverse = leaving
        joins = self.inactive[which]
        count = len(which)
        variances = inverse[leaves, np.arange(len(leaves))]
        solved = np.concatenate([inside, inverse], 1).astype(data.dtype)
        block = 1_000  # rows at a time, which fit into a cache
        for part in slices(len(t) if solved.shape[1] else 0, block):
            x = data[part]
            part_t = t[part]
            sums = move[part], size[part]
            products = x[:, self.active] @ solved
            column_t = part_t[:, None].astype(data.dtype)
            # of M and of V
            remainder = x[:, joins] - products[:, :count]
            along = products[:, count:]
            gradient = self.gradient[joins].astype(data.dtype) + column_t * remainder
            row, column = np.nonzero(np.abs(gradient) > self.a * (1 - TIE_DISTANCE))
            direction = remainder[row, column]
            # again, in float64
            beyond = (
                self.gradient[joins[column]]
                + part_t[row] * direction
                - self.a * np.sign(gradient[row, column])
            )
            _add_moves(*sums, row, direction, schur[column], beyond, self.h[part], -1.0)
            value = self.coef[leaves].astype(data.dtype) - column_t * along
            row, column = np.nonzero(value * self.sign[leaves] <= 0)
            direction = along[row, column]
            _add_moves(
                *sums,
                row,
                direction,
                variances[column],
                self.coef[leaves[column]] - part_t[row] * direction,
                self.h[part],
                1.0,
            )
        return move, size

    def _within(
        self, level: Float[NumpyArray, " others"], least: Float[NumpyArray, " active"]
    ) -> TwoArrays:
        """Return the other parameters whose gradient may reach a, and the active ones that may
        reach zero.
        """
        return np.flatnonzero(level >= self.a * (1 - TIE_DISTANCE)), np.flatnonzero(
            (least <= 0) & (self.sign != 0)
        )


def _add_moves(
    move: NumpyArray,
    size: NumpyArray,
    unit: Int[NumpyArray, " pairs"],
    along: NumpyArray,
    curvature: NumpyArray,
    beyond: NumpyArray,
    h: NumpyArray,
    side: float,
) -> None:
    """Add the moves of the residuals of rows by parameters that move by `beyond`/`curvature`.

    Its direction is `along` at the row; without the row it is `along`/(1 − h). Without the row,
    `curvature` is less for parameters that join, and more for others.
    """
    complement = 1 - h[unit]
    curvature = curvature + side * along**2 / complement
    moves = np.divide(
        along / complement * beyond, curvature, out=np.zeros(len(unit)), where=curvature > 0
    )
    np.add.at(move, unit, moves)
    np.add.at(size, unit, np.maximum(np.abs(moves), 1e-300))


def _runs(
    rows: StandardisedColumns,
    indices: Indices,
    a: NumpyArray,
    ridge: NumpyArray,
    sign: PathPoints,
) -> list[PathRun]:
    """Split some α into runs of consecutive active sets.

    An α whose A has no factor is in no run.
    """
    chosen_sign = sign[indices]
    runs = list[PathRun]()
    ends = np.any((chosen_sign[1:] != chosen_sign[:-1]) & (chosen_sign[:-1] != 0), 1) | (
        np.diff(ridge[indices]) != 0
    )
    # float32 proves nothing
    ends |= np.diff(np.sum((chosen_sign != 0) | rows.free, 1) > SAMPLED_ACTIVE_COLUMNS)
    for part in np.split(indices, np.flatnonzero(ends) + 1):
        run = PathRun(rows, part, a[part], float(ridge[part[0]]), sign[part])
        if run.determined:
            runs.append(run)
            continue
        for half in (part[:1], part[1:]) if len(part) > 1 else ():
            runs += _runs(rows, half, a, ridge, sign)
    return runs


def _minima(
    rows: StandardisedColumns,
    indices: Indices,
    a: NumpyArray,
    ridge: NumpyArray,
    sign: PathPoints,
) -> list[PathRun]:
    """Return the converged minimisers at some α; an α without convergence is left out."""
    done = list[PathRun]()
    # largest number of changes of the active columns at an α
    for _ in range(50):
        runs = _runs(rows, indices, a, ridge, sign)
        done += [run for run in runs if run.converged.all()]
        wrong = [run for run in runs if not run.converged.all()]
        if not wrong:
            break
        indices = np.concatenate([run.indices for run in wrong])
        sign[indices] = np.concatenate([run.sign for run in wrong])
    else:
        indices = np.concatenate([run.indices[run.converged] for run in wrong])
        done += [
            run
            for run in (_runs(rows, indices, a, ridge, sign) if indices.size else ())
            if run.converged.all()
        ]
    return sorted(done, key=lambda run: run.indices[0])


def _along(
    rows: StandardisedColumns, runs: Iterable[PathRun]
) -> Iterator[tuple[int, LassoMinimum, SampledProducts | None]]:
    """Yield, for one α after another, its number, its minimiser, and the sample of rows if many
    columns are active.
    """
    before = None
    h = np.zeros(len(rows.y))
    sample = None
    h_error = np.zeros(len(rows.y))
    factor_condition = 0.0
    for run in runs:
        change = run.after(before)
        begin = 0
        square = change.squares(rows, run.is_large)
        across = None
        if run.is_large:
            across = change.root.T @ rows.gram
        residuals = rows.y - run.theta @ rows.x.T
        if change.replaces_all:
            h = np.zeros(len(rows.y))
        if not (run.is_large and not change.replaces_all):
            sample = None
        factor_condition = float(condition(change.root.T, np.sqrt(rows.scale**2 + run.ridge))) + (
            0.0 if change.replaces_all else factor_condition
        )
        if change.replaces_all:
            h_error = 0.0 * h_error
        relative_error = 2 * factor_error(factor_condition, len(rows.y), len(rows.gram))
        for k, (size, end) in enumerate(zip(run.size.tolist(), change.ends.tolist(), strict=True)):
            new = slice(begin, end)
            h = h + change.sign[new].astype(square.dtype) @ square[new]
            h_error = h_error + relative_error * square[new].sum(0)
            if sample is None and run.is_large:
                sample = SampledProducts(rows, run.ridge)
                root = run.roots(0, size)
                sample.add(root, np.ones(size), root.T @ rows.gram)
            elif sample is not None and across is not None:
                sample.add(change.root[:, new], change.sign[new], across[new])
            begin = end
            yield int(run.indices[k]), LassoMinimum(run, k, residuals[k], h, h_error), sample
        before = run


def lassos(objective: Any, penalties: list[AbstractPenalty], plan: Plan) -> PathRefit:
    """Leave out single rows under every lasso penalty; `plan` names the rows."""
    rows = StandardisedColumns(objective)
    ratio = _ratio(penalties[0])
    unit = plan.index
    alphas = np.array([float(penalty.alpha) for penalty in penalties])  # type: ignore[attr-defined]
    order = np.argsort(-alphas)
    count = len(alphas)
    a = alphas[order] * ratio
    ridge = alphas[order] * (1 - ratio)
    sign = np.sign(rows.path(alphas[order], ratio))
    theta = np.zeros((count, len(rows.gram)))
    bad = np.ones(count, bool)
    losses, error, baseline = np.full((3, count, len(unit)), np.nan)
    penalties_a_factor = 20  # largest number of α that share a factor
    proved = np.zeros((count, len(unit)), bool)
    groups = np.split(np.arange(count), range(penalties_a_factor, count, penalties_a_factor))
    root = rows.root[unit]
    for index, solution, sample in _along(
        rows, (run for group in groups for run in _minima(rows, group, a, ridge, sign))
    ):
        if not (len(solution.active) and (1 - solution.h).min() > OWN_HESSIAN_BELOW):
            continue
        k = order[index]
        residual, bound, proved_rows = (part[unit] for part in solution.left_out(sample))
        theta[k] = rows.shift_back(solution.theta)
        bad[k] = False
        proved[k] = proved_rows
        losses[k] = 0.5 * (residual / root) ** 2
        error[k] = (np.abs(residual) + 0.5 * bound) * bound / root**2
        baseline[k] = 0.5 * (solution.residual[unit] / root) ** 2
    weight = root**2
    mean = losses @ (weight / weight.sum())
    return PathRefit(
        theta,
        baseline,
        losses,
        error,
        proved,
        np.zeros_like(proved),
        np.ones(count),
        mean,
        bad,
    )
