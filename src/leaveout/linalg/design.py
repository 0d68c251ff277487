"""Rows of linear predictors, and everything that a refit of them needs, as plain NumPy arrays.

F(θ, w) = Σ_n ω_n(w) ℓ(η_n, y_n) + κ(w) (½ θᵀPθ + Σ_g a_g ‖θ_g‖),
η_n = x_nᵀθ + o_n, or one for each of several outputs
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

import numpy as np
import scipy
from jaxtyping import Float

from .._runtime import (
    Arrays,
    ArrayTuple,
    Indices,
    ListedUnits,
    NumpyArray,
    ParamColumns,
    PerRefitRow,
    PerRow,
    Shape,
    TwoArrays,
    TwoCounts,
    UnitVectors,
    join,
    record,
    silence,
    slices,
)
from .group_norms import Norms

RowNorms = Float[NumpyArray, "*rows"]
PerUnit = Float[NumpyArray, " units"]
PerOutput = Float[NumpyArray, "... outputs"]
RefitPoints = Float[NumpyArray, "refits params"]
RefitUnits = Float[NumpyArray, "refits units"]
RowUnits = Float[NumpyArray, "... units"]
RefitRoots = Float[NumpyArray, "refits params rank"]
RefitMatrices = Float[NumpyArray, "refits params params"]
RowValues = Float[NumpyArray, "... rows"]
AnyShape = Float[NumpyArray, "..."]
Directions = Float[NumpyArray, "rank params"]

EVERYONE = slice(None)


class Loss(Protocol):
    """Convex loss of a unit's linear predictors, in NumPy."""

    @property
    def self_concordance(self) -> float | RowNorms | None:
        """Constant M of |ℓ‴| ≤ M ℓ″, or None.

        For several outputs M of |∇³ℓ[s, v, v]| ≤ M (max s − min s) ∇²ℓ[v, v].
        """

    @property
    def fourth(self) -> float | RowNorms | None:
        """Constant K of |ℓ⁗| ≤ K ℓ″ for one output, or None."""

    @property
    def ceiling(self) -> float | RowNorms:
        """Upper bound of ℓ″."""

    def peak(self, y: NumpyArray) -> NumpyArray | None:
        """Place where ℓ″ is largest, if ℓ″ is unimodal; else None."""

    def derivatives(self, eta: NumpyArray, y: NumpyArray, orders: Shape) -> ArrayTuple:
        """Derivatives of ℓ in η of the given orders, order 0 being ℓ itself."""

    def terms(self, order: int, size: NumpyArray, eta: NumpyArray, y: NumpyArray) -> NumpyArray:
        """Bound the sum of the sizes of the terms that a derivative is computed from."""


class LossOfSeveral(Loss, Protocol):
    """Convex loss of several outputs, flat along their common shift."""

    def roots(self, eta: PerOutput) -> Float[NumpyArray, "... outputs outputs"]:
        """Factor B with B Bᵀ = ∇²ℓ(η)."""

    def third(self, eta: PerOutput, along: NumpyArray, across: NumpyArray) -> TwoArrays:
        """Compute ∇³ℓ(η)[s, s, d] and its size, of several s and d less their last entries, which
        are overwritten.
        """

    def ratios(self, eta: PerOutput, reference: PerOutput) -> TwoArrays:
        """Least and greatest c with vᵀ∇²ℓ(η)v = c vᵀ∇²ℓ(reference)v over all v."""

    def within(self, eta: PerOutput, y: NumpyArray, spread: NumpyArray) -> TwoArrays:
        """Largest fall and rise of ℓ from η over moves s with max s − min s ≤ `spread`."""

    def corrected(
        self, eta: PerOutput, y: NumpyArray, change: NumpyArray, error: NumpyArray
    ) -> tuple[PerOutput, NumpyArray]:
        """Predictors where ℓ has changed, and the `spread` of moves that raise it by an error."""


@record
class StackedLoss:
    """Loss of all rows where the last rows belong to a penalty with a loss ψ(x_jᵀθ) of its own,
    which has no y.
    """

    units: Loss
    penalty: Loss
    split: TwoCounts  # numbers of rows of each

    def _all_rows(self, units: NumpyArray | float | None, penalty: NumpyArray | float | None):
        """Numbers of all rows; None if one of the losses has none."""
        if units is None or penalty is None:
            return None
        return np.concatenate(
            [np.broadcast_to(part, n) for part, n in zip((units, penalty), self.split, strict=True)]
        )

    @property
    def self_concordance(self) -> PerRow | None:
        return self._all_rows(self.units.self_concordance, self.penalty.self_concordance)

    @property
    def fourth(self) -> PerRow | None:
        return self._all_rows(self.units.fourth, self.penalty.fourth)

    @property
    def ceiling(self) -> PerRow:
        return self._all_rows(self.units.ceiling, self.penalty.ceiling)

    def peak(self, y: PerUnit) -> PerRow | None:
        return self._all_rows(self.units.peak(y), self.penalty.peak(np.zeros(())))

    def derivatives(self, eta: RowValues, y: PerUnit, orders: Shape) -> ArrayTuple:
        eta_units, eta_penalty = np.split(eta, self.split[:1], axis=-1)
        parts = (
            self.units.derivatives(eta_units, y, orders),
            self.penalty.derivatives(eta_penalty, np.zeros(()), orders),
        )
        return tuple(np.concatenate(pair, -1) for pair in zip(*parts, strict=True))

    def terms(self, order: int, size: RowValues, eta: NumpyArray, y: NumpyArray) -> RowValues:
        eta_units, eta_penalty = np.split(eta, self.split[:1], axis=-1)
        size_units, size_penalty = np.split(size, self.split[:1], axis=-1)
        parts = (
            self.units.terms(order, size_units, eta_units, y),
            self.penalty.terms(order, size_penalty, eta_penalty, np.zeros(())),
        )
        return np.concatenate(
            [
                np.broadcast_to(part, rows.shape)
                for part, rows in zip(parts, (size_units, size_penalty), strict=True)
            ],
            -1,
        )


class Extent(NamedTuple):
    """Effect of moves of length one, ‖δ‖_A = 1, on every unit, as arrays `[..., units]`.

    One output: k = ‖x‖_{A⁻¹}, k², k, k². Several outputs: the largest range max U δ − min U δ; ‖Bᵀ
    U A⁻¹Uᵀ B‖, the largest share of A that the unit's curvature B Bᵀ has; a bound of |x_j| / √A_jj
    and of ‖U_k‖_{A⁻¹} without a common shift of the K outputs, whose entries are (1 − 1/K) x; and U
    A⁻¹Uᵀ without that.
    """

    norm: RowUnits
    size: RowUnits
    length: RowUnits
    inner: AnyShape


def scale_units(weight: RowUnits, part: AnyShape) -> AnyShape:
    """Multiply numbers of units, one or several each, by weights."""
    if part.ndim == weight.ndim:
        return weight * part
    return weight.reshape(weight.shape + (1,) * (part.ndim - weight.ndim)) * part


def weight_terms(weight: RowUnits, part: AnyShape) -> AnyShape:
    """Multiply numbers of units by weights.

    Zero where the weight is zero, as a left-out row may be outside the domain of ℓ.
    """
    with silence("invalid"):
        out = scale_units(weight, part)
    if not np.isfinite(out.sum()):
        out[np.broadcast_to(weight == 0, out.shape[: weight.ndim])] = 0.0
    return out


def apply_curvature(curvature: NumpyArray, move: NumpyArray) -> NumpyArray:
    """Multiply moves of η by ∇²ℓ, a number for one output and a matrix for several."""
    if curvature.ndim == move.ndim:
        return curvature * move
    return np.einsum("...kl,...l->...k", curvature, move)


class SingleOutput(ABC):
    """Rows of one linear predictor a unit, wherever they are stored.

    What follows from a few primitives is written here.
    """

    outputs: ClassVar[int] = 1

    @abstractmethod
    def predictors(self, theta: RefitPoints) -> RefitUnits:
        """Compute x_nᵀθ of every unit."""

    @abstractmethod
    def pull(self, slope: RefitUnits) -> RefitPoints:
        """Compute Σ_n slope_n x_n."""

    @abstractmethod
    def products(self, weight: RefitUnits) -> RefitMatrices:
        """Compute Σ_n weight_n x_n x_nᵀ."""

    @abstractmethod
    def rows(self, units: NumpyArray | slice) -> Float[NumpyArray, "*some params"]:
        """Selected rows as an array."""

    @abstractmethod
    def sizes(self, root: Directions) -> PerUnit:
        """Squares ‖root x_n‖² of all rows."""

    def sizes_by_refit(self, roots: RefitRoots) -> RefitUnits:
        """Squares ‖rootᵀ x_n‖² of all rows for the root of each refit."""
        return np.stack([self.sizes(root.T) for root in roots])

    def unit_predictors(
        self, units: NumpyArray, theta: Float[NumpyArray, "*refits params"]
    ) -> Float[NumpyArray, "*refits width"]:
        """Compute x_nᵀθ of the listed units."""
        return (self.rows(units) @ theta[..., None])[..., 0]

    def whiten(self, units: NumpyArray | slice, root: Directions) -> Float[NumpyArray, "... rank"]:
        """Compute root x_n of the listed units."""
        rows = self.rows(units)
        # NumPy would multiply a stack of matrices one after the other
        whitened = rows.reshape(-1, rows.shape[-1]) @ root.T
        return whitened.reshape(*rows.shape[:-1], -1)

    def gram(self, omega: RefitUnits, curvature: NumpyArray) -> RefitMatrices:
        """Compute Σ_n ω_n c_n x_n x_nᵀ."""
        return self.products(weight_terms(omega, curvature))

    def pair_columns(self) -> Self:
        """Copy that keeps the products of pairs of columns, if that is faster.

        Else the design itself.
        """
        return self

    def extent(self, root: Directions, shares: NumpyArray) -> Extent:
        """Extent of all rows in the norm of (rootᵀ root)⁻¹."""
        size = self.sizes(root)
        norm = np.sqrt(size)
        return Extent(norm, size, norm, size)

    def extents(self, roots: RefitRoots, shares: NumpyArray) -> Extent:
        """Extent of all rows for each refit, in the refit's own norm."""
        size = self.sizes_by_refit(roots)
        norm = np.sqrt(size)
        return Extent(norm, size, norm, size)


@record
class DenseDesign(SingleOutput):
    """Rows in one array, `[units, params]`.

    The products of pairs of columns may be kept, for many curvatures.
    """

    x: UnitVectors
    pairs: Float[NumpyArray, "pairs units"] | None = None

    @property
    def shape(self) -> TwoCounts:
        return self.x.shape[0], self.x.shape[1]

    def predictors(self, theta: RefitPoints) -> RefitUnits:
        """Compute x_nᵀθ of every unit."""
        return theta @ self.x.T

    def pull(self, slope: RefitUnits) -> RefitPoints:
        """Compute Σ_n slope_n x_n."""
        return slope @ self.x

    def take(self, units: Indices | slice) -> "DenseDesign":
        """Design of the selected rows."""
        return DenseDesign(self.x[units])

    def rows(self, units: NumpyArray | slice) -> Float[NumpyArray, "*some params"]:
        """Selected rows as an array."""
        return self.x[units]

    def multiply(self, units: NumpyArray, images: ParamColumns) -> Float[NumpyArray, "units some"]:
        """Multiply the listed rows by columns, in the precision of the columns."""
        return np.asarray(self.x[units], images.dtype) @ images

    def single(self) -> "DenseDesign":
        """Copy of the rows in float32."""
        return DenseDesign(self.x.astype(np.float32))

    @property
    def lengths(self) -> PerUnit:
        """Norms ‖x_n‖."""
        return np.sqrt(np.einsum("np,np->n", self.x, self.x))

    def below(self, rows: Float[NumpyArray, "more params"]) -> "DenseDesign":
        """Append rows; no copy is made if they already lie behind these in memory."""
        stack = self.x.base
        n = len(self.x)
        if (
            isinstance(stack, NumpyArray)
            and stack.shape == (n + len(rows), self.shape[1])
            and stack.flags.c_contiguous
            and stack.ctypes.data == self.x.ctypes.data
            and np.array_equal(stack[n:], rows)
        ):
            return DenseDesign(stack)
        return DenseDesign(np.concatenate([self.x, rows]))

    def pair_columns(self) -> Self:
        """Copy that keeps the products of pairs of columns, if these are few."""
        n, p = self.shape
        # largest number of entries of all x xᵀ together that are kept
        outer_product_entries = 2**22
        if n * p * (p + 1) // 2 <= outer_product_entries:
            return replace(self, pairs=self._pairs(EVERYONE))
        return self

    def _pairs(self, units: slice) -> Float[NumpyArray, "pairs some"]:
        """Products of all pairs of columns, for a slice of the rows."""
        columns = np.ascontiguousarray(self.x[units].T)
        p = self.x.shape[1]
        out = np.empty((p * (p + 1) // 2, columns.shape[1]))
        end = 0
        for k in range(p):
            start = end
            end = end + p - k
            np.multiply(columns[k:], columns[k], out=out[start:end])
        return out

    def _pair_blocks(self, count: int) -> list[slice]:
        """Blocks of rows whose pair products are formed for `count` sums; none if separate matrix
        products are faster.

        A separate product is a matrix times its own transpose, so only half is computed, but it is
        slower the fewer columns there are.
        """
        n, p = self.shape
        size = DENSE_BLOCK // (p * (p + 1) // 2)
        if 2 * count >= p and size >= 2 * p:
            return slices(n, size)
        return []

    def products(self, weight: RefitUnits) -> RefitMatrices:
        """Compute Σ_n weight_n x_n x_nᵀ, for many refits by one product with all x xᵀ."""
        p = self.x.shape[1]
        blocks = self._pair_blocks(len(weight))
        out = np.empty((len(weight), p, p))
        if self.pairs is not None or blocks:
            half = 0.0 if self.pairs is None else weight @ self.pairs.T
            for block in blocks if self.pairs is None else ():
                half += weight[:, block] @ self._pairs(block).T
            i, j = np.triu_indices(p)
            out[:, i, j] = out[:, j, i] = half
            return out
        size = max(4 * p, 2**18 // p)  # rows of a block, whose scaled copy stays near a cache
        for k, refit_weight in enumerate(weight):
            # NumPy computes one half of a matrix times its own transpose
            if (refit_weight == 1).all():
                np.matmul(self.x.T, self.x, out=out[k])
                continue
            is_convex = (refit_weight >= 0).all()
            out[k] = 0.0
            for block in slices(len(self.x), size):
                x = self.x[block]
                block_weight = refit_weight[block, None]
                if is_convex:
                    x = x * np.sqrt(block_weight)
                    out[k] += x.T @ x
                else:
                    out[k] += (x * block_weight).T @ x
        return out

    def forms(
        self, matrices: Float[NumpyArray, "forms params params"]
    ) -> Float[NumpyArray, "units forms"]:
        """Compute x_nᵀ M x_n, for many matrices by one product with all x xᵀ."""
        n, p = self.shape
        blocks = self._pair_blocks(len(matrices))
        out = np.empty((n, len(matrices)))
        i, j = np.triu_indices(p)
        coefficients = (matrices + matrices.swapaxes(1, 2))[:, i, j] * np.where(i == j, 0.5, 1.0)
        for block in blocks:
            np.matmul(self._pairs(block).T, coefficients.T, out=out[block])
        for k, matrix in enumerate(() if blocks else matrices):
            np.einsum("np,np->n", self.x @ matrix, self.x, out=out[:, k])
        return out

    def sizes(self, root: Directions) -> PerUnit:
        """Squares ‖root x_n‖² of all rows.

        Root is lower triangular, which halves the operations.
        """
        n, p = self.shape
        size = np.empty(len(self.x))
        cached_block = 2**16  # numbers in a block that is read twice: half a core's cache
        block = min(n, max(128, cached_block // p))
        buffer = np.empty((block, p))
        for units in slices(n, block):
            z = buffer[: len(self.x[units])]
            z[...] = self.x[units]
            scipy.linalg.blas.dtrmm(1.0, root.T, z.T, trans_a=1, overwrite_b=1)
            np.einsum("np,np->n", z, z, out=size[units])
        return size

    def sizes_by_refit(self, roots: RefitRoots) -> RefitUnits:
        """Squares ‖rootᵀ x_n‖² of all rows for the root of each refit."""
        z = self.predictors(roots.swapaxes(1, 2).reshape(-1, roots.shape[1])).reshape(
            len(roots), roots.shape[2], -1
        )
        return np.einsum("rkn,rkn->rn", z, z)


@record
class MultiOutputDesign:
    """Design of several outputs: θ is `[outputs, features]`, raveled, and η_n = θ x_n."""

    base: Any  # `DenseDesign`, or `sparse_design.SparseDesign`
    outputs: int

    @property
    def shape(self) -> TwoCounts:
        return self.base.shape[0], self.outputs * self.features

    @property
    def features(self) -> int:
        return self.base.shape[1]

    def predictors(self, theta: RefitPoints) -> Float[NumpyArray, "refits units outputs"]:
        """Compute θ x_n of every unit."""
        eta = self.base.predictors(theta.reshape(-1, self.features))
        return eta.reshape(len(theta), self.outputs, -1).swapaxes(1, 2)

    def pull(self, slope: Float[NumpyArray, "refits units outputs"]) -> RefitPoints:
        """Compute Σ_n slope_n ⊗ x_n."""
        return self.base.pull(slope.swapaxes(1, 2).reshape(-1, self.shape[0])).reshape(
            len(slope), -1
        )

    def unit_predictors(
        self, units: NumpyArray, theta: Float[NumpyArray, "*refits params"]
    ) -> Float[NumpyArray, "*refits width outputs"]:
        """Compute θ x_n of the listed units."""
        x = self.base.rows(units.ravel()).reshape(*units.shape, -1)
        return x @ theta.reshape(*theta.shape[:-1], self.outputs, -1).swapaxes(-1, -2)

    def take(self, units: Indices | slice) -> "MultiOutputDesign":
        """Design of the selected rows."""
        return MultiOutputDesign(self.base.take(units), self.outputs)

    def single(self) -> "MultiOutputDesign":
        """Copy of the rows in float32."""
        return MultiOutputDesign(self.base.single(), self.outputs)

    def whiten(self, units: NumpyArray, root: Directions) -> Float[NumpyArray, "... outputs rank"]:
        """Compute root U_nᵀ of the listed units, one row an output."""
        roots = (
            root.reshape(-1, self.outputs, self.features).swapaxes(0, 1).reshape(-1, self.features)
        )
        return self.base.whiten(units, roots).reshape(*units.shape, self.outputs, len(root))

    def gram(
        self,
        omega: RefitUnits,
        curvature: Float[NumpyArray, "#refits units outputs outputs"],
    ) -> RefitMatrices:
        """Compute Σ_n ω_n U_nᵀ C_n U_n, block by block of two outputs.

        Blocks on the diagonal follow from the others, as F is flat along a common shift of all
        outputs.
        """
        curvature = np.broadcast_to(curvature, (*omega.shape, *curvature.shape[-2:]))
        k, m = np.triu_indices(self.outputs, 1)
        q = self.features
        if (curvature == curvature[:, :1]).all():  # the same in all rows, as at the start of a fit
            products = self.base.products(omega)
            return np.einsum("rkl,rpq->rkplq", curvature[:, 0], products).reshape(
                len(omega), self.outputs * q, -1
            )
        out = np.zeros((len(omega), self.outputs, q, self.outputs, q))
        diagonal = np.arange(self.outputs)
        n = self.shape[0]
        for refits in slices(len(omega), DENSE_BLOCK // (n * len(k))):
            weight = np.moveaxis(scale_units(omega[refits], curvature[refits][..., k, m]), -1, 1)
            half = self.base.products(weight.reshape(-1, n)).reshape(-1, len(k), q, q)
            out[refits, k, :, m, :] = out[refits, m, :, k, :] = half.swapaxes(0, 1)
        out[:, diagonal, :, diagonal, :] = -out.sum(3).swapaxes(0, 1)
        return out.reshape(len(omega), self.outputs * q, -1)

    def blocks(
        self, omega: PerUnit, curvature: Float[NumpyArray, "units outputs outputs"]
    ) -> Float[NumpyArray, "outputs features features"]:
        """Diagonal blocks of such a sum, one for each output."""
        diagonal = np.einsum("nkk->kn", curvature)
        if (diagonal == diagonal[:, :1]).all():
            return np.multiply.outer(diagonal[:, 0], self.base.products(omega[None])[0])
        return self.base.products(omega * diagonal)

    def without_shifts(self, root: Directions) -> Directions:
        """Project moves of θ on those without a common shift of all outputs, which changes no
        predictor.
        """
        by_output = root.reshape(len(root), self.outputs, -1)
        return (by_output - by_output.mean(1, keepdims=True)).reshape(root.shape)

    def shifts_apart(self, penalty: Float[NumpyArray, "params params"]) -> bool:
        """Whether a common shift of all outputs is orthogonal to the other moves in the norm of the
        penalty, and so of H.
        """
        shifted = penalty.reshape(self.outputs, self.features, self.outputs, -1).sum(0)
        return bool((shifted == shifted[:, :1]).all())

    def inner(
        self, units: NumpyArray | slice, inverse: Float[NumpyArray, "params params"]
    ) -> Float[NumpyArray, "some outputs outputs"]:
        """Compute U_n `inverse` U_nᵀ of the listed units."""
        k, m = np.triu_indices(self.outputs)
        rows = self.base.take(units)
        blocks = inverse.reshape(self.outputs, self.features, self.outputs, self.features)[
            k, :, m, :
        ]
        out = np.empty((rows.shape[0], self.outputs, self.outputs))
        out[:, k, m] = out[:, m, k] = rows.forms(blocks)
        return out

    def extent(self, root: Directions, roots: Float[NumpyArray, "units outputs outputs"]) -> Extent:
        """Extent of all rows in the norm of (rootᵀ root)⁻¹, in blocks.

        `roots` are the factors B of the curvatures.
        """
        projected = self.without_shifts(root)
        inverse = projected.T @ projected
        parts = []
        for block in slices(self.shape[0], DENSE_BLOCK // self.outputs**2):
            inner = self.inner(block, inverse)
            square = np.einsum("nkk->nk", inner)
            squared_range = square[:, :, None] + square[:, None, :] - 2 * inner
            norm = np.sqrt(np.maximum(squared_range.max((1, 2)), 0.0))
            share = np.linalg.eigvalsh(roots[block].swapaxes(1, 2) @ inner @ roots[block])[:, -1]
            length = np.sqrt(np.maximum(square.max(1), 0.0)) / (1 - 1 / self.outputs)
            parts.append((norm, np.maximum(share, 0.0), length, inner))
        return Extent(*join(parts))

    def extents(self, roots: RefitRoots, shares: Float[NumpyArray, "refits ..."]) -> Extent:
        """Extent of all rows for each refit, in the refit's own norm and with its own factors B."""
        parts = [self.extent(root.T, factors) for root, factors in zip(roots, shares, strict=True)]
        return Extent(*map(np.stack, zip(*parts, strict=True)))


DENSE_BLOCK = 2**20  # numbers in one block of rows


@record
class Predictors:
    """Model of one linear predictor a unit, or of several outputs, as data; the losses of several
    are `LossOfSeveral`.

    `weigh` maps weights `[refits, units]` to ω and κ. `separate` says that ω_n = w_n ω_n(1) and κ =
    1, so that leaving units out changes their own terms only. Parts of the penalty that are not
    quadratic are further rows of `design`, behind those of the units. `loss` and ω cover all rows;
    `unit_loss` is the loss of the units, which alone are left out or scored. `inverse_link` maps η
    to predictions.
    """

    design: Any  # `DenseDesign`, `MultiOutputDesign`, or `sparse_design.SparseDesign`
    offset: Float[NumpyArray, "rows ..."] | float
    y: PerUnit
    unit_loss: Loss
    loss: Loss
    # a matrix `[params, params]`; a diagonal one of very many columns in compressed rows
    penalty: Any
    weigh: Callable[[NumpyArray], tuple[PerRefitRow, Float[NumpyArray, " refits"]]]
    separate: bool
    inverse_link: Callable[[Arrays], Arrays]
    norms: Norms | None  # the penalty's norms of groups, none of which is zero

    @property
    def full_weights(self) -> tuple[RowValues, float]:
        """ω of every row, and κ, where every unit weighs one."""
        (omega,), (kappa,) = self.weigh(np.ones((1, len(self.y))))
        return omega, kappa

    def penalty_terms(self, theta: RefitPoints) -> tuple[Float[NumpyArray, " refits"], RefitPoints]:
        """Value and gradient of the penalty beside the rows."""
        pushed = theta @ self.penalty
        value = 0.5 * np.sum(pushed * theta, 1)
        if self.norms is None:
            return value, pushed
        return value + self.norms.value(theta), pushed + self.norms.pull(theta)

    def bending(self, theta: RefitPoints) -> Float[NumpyArray, "#refits params params"]:
        """Hessian of the penalty beside the rows."""
        penalty = self.penalty
        if not isinstance(penalty, NumpyArray):
            penalty = penalty.toarray()
        if self.norms is None:
            return penalty[None]
        return penalty + self.norms.hessian(theta)

    @property
    def quadratic(self) -> bool:
        """Whether F is a quadratic: ℓ″ is the same at every η, and the penalty has no norms."""
        concordance = self.loss.self_concordance
        return self.norms is None and concordance is not None and not np.any(concordance)

    def eta(self, theta: RefitPoints) -> Float[NumpyArray, "refits rows ..."]:
        """Compute the linear predictors of every row."""
        out = self.design.predictors(theta)
        out += self.offset
        return out

    def shares(
        self, eta: RowValues | Float[NumpyArray, "... rows outputs"], curvature: NumpyArray
    ) -> NumpyArray:
        """Argument of `extent`: ℓ″, or for several outputs the factor B with B Bᵀ = ∇²ℓ."""
        if self.design.outputs == 1:
            return curvature
        return cast(LossOfSeveral, self.loss).roots(eta)

    def unit_predictors(
        self, units: ListedUnits, theta: RefitPoints
    ) -> Float[NumpyArray, "refits width ..."]:
        """Compute the linear predictors of the listed units, through those of all rows if the list
        is long.
        """
        if units.shape[1] == len(self.y):
            return self.eta(theta)[:, : len(self.y)]
        gather_cost = 16  # cost of gathering a row, in products with one
        if gather_cost * units.shape[1] >= len(self.y):
            return self.eta(theta)[np.arange(len(units))[:, None], units]
        offset = self.offset
        if isinstance(offset, NumpyArray) and offset.ndim:
            offset = offset[units]
        return self.design.unit_predictors(units, theta) + offset
