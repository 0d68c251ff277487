"""Metrics of refits, and what all refits of linear predictors share.

With H = L Lᵀ and u = Lᵀ(θ − θ̂) the anchor's Hessian is the identity, gradients are L⁻¹∇F, lengths
are H-norms, and a fold's Hessian at θ̂ is I + Zᵀ V Z, Z the whitened rows that the fold touches:

    IdentityMetric  the full fit's: the identity in these coordinates
    LowRank         the fold's own by Woodbury, for few rows (for one row this is ALO)
    DenseMetric     the fold's own, inverted
    ExpandedMetric  the fold's own at the minimiser of an expansion (`_descent`)
    OwnHessians     the fold's own at its candidate, for few parameters
    Products        the fold's own at its candidate, by conjugate gradients, if H is not formed
    FoldMetric      the fold's own of linear predictors, with its least eigenvalue

`linear_cache` computes what all refits of linear predictors share. For several outputs, arrays
`[…, units]` of predictors and slopes have one more axis, and a range over all outputs of a unit
takes the place of a radius.
"""

import abc
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, ClassVar, cast

import numpy as np
from jaxtyping import Float, Int
from numpy import linalg

from .._runtime import (
    ArrayList,
    Arrays,
    NumpyArray,
    PerDirection,
    PyTree,
    ThreeArrays,
    TwoNumbers,
    cached_on,
    compile_static,
    jax,
    record,
    silence,
    slices,
)
from ..linalg import (
    FUNCTION,
    UNIT,
    UP,
    AnyShape,
    Ball,
    Curvature,
    CurvatureBounds,
    DenseDesign,
    Directions,
    LossOfSeveral,
    MultiOutputDesign,
    Norms,
    PenaltyShare,
    Predictors,
    RadiusTable,
    Reach,
    RefitMatrices,
    Rounding,
    RowUnits,
    SparseDesign,
    ball,
    bounded,
    condition,
    factor_error,
    gaps,
    scale_units,
    weight_terms,
)
from ..objectives import (
    AbstractLinearPredictor,
    ClosedFormBatch,
    DerivedBatch,
    Displacements,
    HostBatch,
    Lanes,
    Matrix,
    PerLane,
    PerRefit,
    PerUnit,
    Points,
    RefitFlags,
    RefitPoints,
    Vector,
    Weights,
    derive_batch,
    function,
    weights_of,
)
from ..optimize import ROUGH, Fit, NystromPreconditioner, Solve, sketch
from ..optimize.least_norm import cut_floor, least_norm
from ..plans import RefitRows

TouchedRows = Float[NumpyArray, "*refits touched rank"]
LaneUnits = Float[NumpyArray, "lanes units ..."]
UnitRows = Float[NumpyArray, "units ..."]
# a fold that keeps less than this share of the information along a direction does not determine it
SINGULAR_SHARE = 1e-10
# Least and largest rank of a sketch of H, between them eight for each refit, and most numbers in
# it, a quarter of a gigabyte: the sketch takes two products a rank, and a refit 12 by the largest
# one where it took 92.
RANKS = 48, 768
RANK_OF_REFIT = 8
SKETCHED_NUMBERS = 2**26


class RefitMetric(abc.ABC):
    """Batch of inverse Hessians."""

    # whether they are those at the candidates, so that steps are Newton steps
    is_newton: ClassVar[bool] = False
    # whether lengths are measured by a sketch of the inverse of H, from above
    sketched: bool = False

    @abc.abstractmethod
    def solve(self, gradient: Points, u: Points, lanes: Lanes) -> Points:
        """Steps for the gradients of selected refits at u, all whitened."""


class IdentityMetric(RefitMetric):
    """Metric of the full fit: the identity in whitened coordinates."""

    def solve(self, gradient, u, lanes):
        return gradient


@record
class LowRank(RefitMetric):
    """Metric of each fold's own Hessian by Woodbury.

    `(I + Zᵀ V Z)⁻¹ = I − Zᵀ C Z` with `C = (I + V Z Zᵀ)⁻¹ V`.
    """

    rows: Float[NumpyArray, "refits touched params"]
    core: Float[NumpyArray, "refits touched touched"]

    def solve(self, gradient, u, lanes):
        z = self.rows[lanes]
        inner = np.einsum("rkl,rl->rk", self.core[lanes], np.einsum("rkp,rp->rk", z, gradient))
        return gradient - np.einsum("rkp,rk->rp", z, inner)


@record
class DenseMetric(RefitMetric):
    """Metric of each fold's own Hessian, inverted."""

    inverse: RefitMatrices

    def solve(self, gradient, u, lanes):
        return np.einsum("rij,rj->ri", self.inverse[lanes], gradient)


class OwnHessians(RefitMetric):
    """Metric of each fold's own Hessian at u; at θ̂ that of the fit where it is not positive.

    `change` is the size of its last change, relative to itself, unknown before there was one.
    """

    is_newton = True

    def __init__(self, fit: Fit, F: DerivedBatch):
        self.fit = fit
        self.F = F
        count = len(F.rows.index)
        self.hessian = np.full((count, fit.num_params, fit.num_params), np.nan)
        self.change = np.full(count, np.nan)

    def solve(self, gradient, u, lanes):
        root = self.fit.quadratic.root
        hessian = root @ self.F.hessian(self.fit.quadratic.at(u), lanes) @ root.T
        curvature = Curvature.of(hessian)
        share = curvature.solve(self.hessian[lanes]) - np.eye(len(root))
        self.change[lanes] = linalg.norm(share, axis=(1, 2))
        self.hessian[lanes] = hessian
        is_first = ~u.any(1) & ~curvature.definite
        return np.where(is_first[:, None], gradient, curvature.step(gradient))


class Products(RefitMetric):
    """Metric of each fold's own Hessian at u, by conjugate gradients down to `tol` of a gradient.

    `remainder` is the part of each last step left unsolved, in the norm of the Hessian. Rough
    solves with products in NumPy are in single precision, which halves their time; gradients, in
    double precision, decide where the steps end.
    """

    is_newton = True

    def __init__(self, fit: Fit, F: DerivedBatch | ClosedFormBatch, tol: float):
        self.fit = fit
        self.F = F
        self.tol = tol
        self.remainder = np.zeros(len(F.rows.index))
        self.kind = np.float32 if isinstance(F, HostBatch) and tol >= ROUGH else np.float64
        rank = min(
            int(np.clip(RANK_OF_REFIT * F.rows.num_refits, *RANKS)),
            SKETCHED_NUMBERS // fit.num_params,
            fit.num_params,
        )
        self.sketched = isinstance(F, HostBatch) and np.allclose(
            F.arrays.alpha * fit.quadratic.scaling.scale**2, 1.0
        )
        self.inverse = sketched(rank)(fit) if self.sketched else fit.quadratic.learned_inverse
        preconditioner = fit.quadratic.scaling, fit.quadratic.null_space, self.inverse
        if self.kind == np.float64:
            self.preconditioner = preconditioner
        else:
            self.preconditioner = jax.tree.map(
                lambda part: part.astype(np.float32, copy=False), preconditioner
            )

    def solve(self, gradient, u, lanes):
        theta = self.fit.quadratic.at(u)
        step = np.empty_like(gradient)
        is_varied = isinstance(self.F, HostBatch) and (theta != theta[0]).any()
        # refits at different θ whose products are computed together, as the model keeps data of so
        # many
        size = self.F.arrays.together if is_varied else len(lanes)
        for chunk in slices(len(lanes), size):
            solve = Solve(self.F, *self.preconditioner)
            step[chunk] = solve(
                theta[chunk], gradient[chunk].astype(self.kind), lanes[chunk], self.tol
            )
            self.remainder[lanes[chunk]] = solve.remainder
        return step


@cache
def sketched(rank: int) -> Callable[[Fit], NystromPreconditioner]:
    """Return the function that sketches the curvature of a fit, once."""
    return cached_on(
        lambda fit: sketch(
            function(fit.objective, fit.theta), fit.quadratic.scaling, fit.vector, rank
        )
    )


def is_narrow(fit: Fit, width: int) -> bool:
    """Tell whether Woodbury on held-out rows is cheaper than a factor of the fold's Hessian."""
    objective = fit.objective
    if fit.quadratic.factor is None or not (
        isinstance(objective, AbstractLinearPredictor) and objective.low_rank
    ):
        return False
    touched = width * objective.outputs
    return touched == objective.outputs or 4 * touched <= fit.num_params


def own_metric(fit: Fit, rows: RefitRows) -> tuple[RefitMetric, RefitFlags, RefitPoints | None]:
    """Return each fold's own Hessian at θ̂, and which of them are singular or indefinite.

    The third value is the whitened gradient of each F(·, w) at θ̂ if the rows give it, else None.
    """
    if not is_narrow(fit, rows.index.shape[1]):
        return *_dense(fit, rows), None
    z, slope, curvature = _touched_rows(fit, rows)
    gradient = fit.quadratic.whiten(fit.gradient) + np.einsum("rk,rkp->rp", slope, z)
    count = z.shape[1]
    outputs = curvature.shape[-1]
    gram = (z @ z.swapaxes(1, 2)).reshape(len(z), -1, outputs, count)
    change = np.eye(count) + (curvature @ gram).reshape(len(z), count, count)
    try:
        inverse = linalg.inv(change)
    except linalg.LinAlgError:
        inverse = np.array(
            [
                linalg.inv(m) if linalg.matrix_rank(m) == count else np.full(m.shape, np.inf)
                for m in change
            ]
        )
    with silence("invalid"):
        core = (
            (inverse.reshape(len(z), count, -1, outputs).swapaxes(1, 2) @ curvature)
            .swapaxes(1, 2)
            .reshape(inverse.shape)
        )
    singular = ~(np.abs(inverse).max((1, 2)) < 1 / SINGULAR_SHARE)
    if count == 1:
        singular = change[:, 0, 0] < SINGULAR_SHARE
    return LowRank(z, np.where(singular[:, None, None], 0.0, core)), singular, gradient


def _touched_rows(fit: Fit, rows: RefitRows) -> ThreeArrays:
    """Rows, slopes and curvatures of the linear predictors that refits touch.

    Returns the whitened rows `[refits, touched, params]`, and the changes of slopes `[refits,
    touched]` and of curvatures `[refits, width, outputs, outputs]` by the weights.
    """
    assert isinstance(fit.objective, AbstractLinearPredictor)
    raw, slope, curvature = (
        np.asarray(part) for part in _parts(fit.objective, fit.theta, rows.index)
    )
    count, width, outputs = raw.shape[:3]
    delta = rows.weight - 1.0
    slope = delta[..., None] * slope.reshape(count, width, outputs)
    curvature = delta[..., None, None] * curvature.reshape(count, width, outputs, outputs)
    return (
        fit.quadratic.whiten(raw).reshape(count, width * outputs, -1),
        slope.reshape(count, -1),
        curvature,
    )


@compile_static
def _parts(
    objective: AbstractLinearPredictor, theta: PyTree, index: Arrays
) -> tuple[Arrays, Arrays, Arrays]:
    """Rows of the listed units, and the first and second derivatives of their losses."""
    unit_parts = lambda index: (
        objective.rows(index),
        objective.derivative(theta, index, 1),
        objective.derivative(theta, index, 2),
    )
    return jax.vmap(unit_parts)(index)


def _dense(fit: Fit, rows: RefitRows) -> tuple[DenseMetric, RefitFlags]:
    lanes = np.arange(len(rows.index))
    theta = np.tile(fit.vector, (len(lanes), 1))
    change = derive_batch(fit.objective, fit.theta, rows).hessian_changes(theta, lanes)
    root = fit.quadratic.root
    hessians = np.eye(fit.num_params) + root @ change @ root.T
    singular = ~(np.array([_least_pivot(hessian) for hessian in hessians]) > SINGULAR_SHARE)
    return DenseMetric(
        linalg.inv(np.where(singular[:, None, None], np.eye(fit.num_params), hessians))
    ), singular


def _least_pivot(hessian: Matrix) -> float:
    try:
        return float(np.diag(linalg.cholesky(hessian)).min() ** 2)
    except linalg.LinAlgError:
        return -np.inf


ELEMENTWISE = 400.0  # operations of a loss, its derivatives and their gaps for one unit
# numbers `[refits, units]` at a time: with 2**15 they stay in a cache, but calls of NumPy take a
# third more time
PASS = 2**17
# refits in a product with all rows: at least 32, or p / 16; largest number of entries
GROUP = 32
WIDE = 16
HERD = 2**21
# a fold that keeps less of the information along a direction is judged by its own Hessian
OWN_HESSIAN_BELOW = 1e-9
# ‖|R| s‖², relative to that of orthogonal columns, from which columns nearly repeat one another
REPEATED_COLUMNS = 100.0
FAR = 0.1  # ‖A − I‖ from which eigenvalues tell the least one of A better
KNOWN_MOVE = 1e-3  # change of a curvature from which the terms of second order count
SINGLE_UNIT = 2.0**-24  # of float32
# rows, or columns, whose products in float32 are summed before they are added in float64
SINGLE_SUM = 2**7
# rounding error of products in float32, relative to a row's, up to which they are used
SINGLE_DIGITS = 1e-4
# rounding error of the whitened H from which it is measured, and errors allow for it
CONDITION = 1e-8


@record
class LinearFitCache:
    """Quantities at θ̂ that all refits share.

    They are the predictors, ω, ℓ′, ℓ″, the effect of moves of length one in the norm of H, the
    gradient at θ̂ and the table.
    """

    model: Predictors
    units: int  # number of units among the rows; rows of the penalty follow
    theta: Vector
    root: Directions  # L⁻¹: θ − θ̂ = u @ root
    eta: UnitRows
    weight: PerUnit  # ω at w = 1
    loss: PerUnit  # ℓ
    slope: UnitRows  # ℓ′
    curvature: UnitRows  # ℓ″
    reference: PerUnit  # ℓ″, or one if gaps are relative to it
    roots: Float[NumpyArray, "units outputs outputs"] | None  # factors of ℓ″, for several outputs
    norm: PerUnit
    size: PerUnit
    length: PerUnit
    inner: UnitRows  # U H⁻¹Uᵀ
    flat: Matrix | float  # curvature added along flat directions
    leftover: PerDirection
    noise: float  # rounding error of the gradient at θ̂, in the norm of H⁻¹
    rounding: Rounding
    curvature_rounding: float  # share by which curvatures at θ̂ may be off
    floor: float  # share of the information along a direction that a fold must keep to determine it
    table: RadiusTable
    norms: Norms | None  # norms of groups, at w = 1
    reach: Reach | None  # reach of these norms

    @cached_property
    def slope_rounding(self) -> Float[NumpyArray, "units 2"]:
        """Rounding errors of slopes for a curvature of one, times k.

        At θ̂, and for each length of a move.
        """
        base = self.rounding.predictor(self.length, 0.0)
        constant = 2 * self.rounding.predictor(self.length, total(np.abs(self.eta), 1))
        growth = (
            2 * (self.rounding.predictor(self.length, 0.0, 1.0) - base) + 8 * UNIT * self.length
        )
        return np.stack([constant, growth], 1) * self.length[:, None]

    @cached_property
    def slope_rounding_sums(self) -> Float[NumpyArray, " 2"]:
        """Sums of these with the curvatures at θ̂."""
        sizes = self.curvature
        if self.roots is not None:
            sizes = np.abs(sizes).sum((-2, -1))
        return self.weight @ (sizes[:, None] * self.slope_rounding)

    def gradient_error(
        self, omega: NumpyArray, eta: NumpyArray, slope: NumpyArray, move: PerLane, growth: PerLane
    ) -> PerLane:
        """Bound the rounding errors of whitened gradients at candidates of length `move`.

        No unit weighs more than `growth` times what it did, and no curvature grows by
        more than e^{rate · move}; for long moves the curvatures are computed.
        """
        loss = self.model.loss
        several = self.roots is not None
        curvature_change = self.curvature_rate * move * (2 if several else 1)
        size = np.abs(slope)
        sums = term_sums = total(weight_terms(omega, size), 2) @ self.length
        if several:  # as `Multinomial.terms` has it, by the largest predictor
            term_sums = self.rounding.root * sums * (1 + np.abs(eta).max((1, 2)))
        else:
            parts = loss.terms(1, size, eta, self.model.y)
            if parts is not size:
                term_sums = weight_terms(omega, parts) @ self.length
        with silence("over", "invalid"):
            predictor_error = (
                growth
                * np.exp(curvature_change)
                * (self.slope_rounding_sums[0] + move * self.slope_rounding_sums[1])
            )
        long_moves = np.flatnonzero(~(curvature_change < 1.0))
        # the second derivatives of several outputs sum to two at most, Σ_k 2 p_k (1 − p_k)
        if long_moves.size:
            sizes = 2.0 if several else loss.derivatives(eta[long_moves], self.model.y, (2,))[0]
            parts = (
                weight_terms(omega[long_moves], np.broadcast_to(sizes, omega[long_moves].shape))
                @ self.slope_rounding
            )
            predictor_error[long_moves] = parts[:, 0] + move[long_moves] * parts[:, 1]
        return self.rounding.gradient(sums, move) + FUNCTION * term_sums + predictor_error

    def curvature_error(
        self, eta: NumpyArray, curvature: NumpyArray | None, blur, move: PerLane
    ) -> PerLane:
        """Bound the shares by which curvatures at candidates are off.

        From the largest predictors where terms do not cancel.
        """
        if curvature is None or self.is_plain:
            longest = self.length.max()
            concordance = np.max(np.asarray(self.model.loss.self_concordance))
            largest = np.abs(self.eta).max() + longest * move
            predictor_error = self.rounding.predictor(
                longest, largest * (1 if self.roots is None else self.eta.shape[1]), move
            )
            error = 4 * concordance * predictor_error + 4 * FUNCTION * (
                1 if self.roots is None else 1 + largest
            )
            return np.where(error < KNOWN_MOVE, error, np.inf)
        return curvature_error(self.model, curvature, eta, blur)

    def blur(self, eta: NumpyArray, move: PerLane):
        """Rounding errors of predictors, for losses whose bounds of ℓ″ need them."""
        if self.roots is not None or self.is_plain:
            return 0.0
        return self.rounding.predictor(self.length, np.abs(eta), move[:, None])

    @cached_property
    def is_plain(self) -> bool:
        """Whether the loss has an M, and no terms of its ℓ″ cancel."""
        loss = self.model.loss
        has_bound = loss.self_concordance is not None and self.roots is None
        return has_bound and loss.terms(2, self.curvature, self.eta, self.model.y) is self.curvature

    @cached_property
    def third(self) -> PerUnit:
        """ℓ‴, for one output."""
        return self.model.loss.derivatives(self.eta, self.model.y, (3,))[0]

    @cached_property
    def mass(self) -> PerUnit:
        """ω ℓ″, for one output."""
        return self.weight * self.curvature

    @cached_property
    def inverse_mass(self) -> PerUnit:
        """1 / ω ℓ″, zero where ω is."""
        with silence("divide"):
            return np.where(self.weight > 0, 1 / self.mass, 0.0)

    @cached_property
    def extent(self) -> PerUnit:
        """ω ℓ″ ‖z‖², for one output."""
        return self.mass * self.length**2

    @cached_property
    def spread(self) -> float:
        """√Σ ω ℓ″ ‖z‖²."""
        return float(np.sqrt(self.extent.sum()))

    @cached_property
    def blurs(self) -> TwoNumbers:
        """√Σ ω ℓ″ b² of the predictors' rounding errors b at θ̂, and for each length of a move."""
        blur = self.rounding.predictor
        rounded = blur(self.length, np.abs(self.eta)), blur(self.length, self.length, 1.0)
        constant, growth = (float(np.sqrt(self.mass @ part**2)) for part in rounded)
        return constant, growth

    @cached_property
    def flatness(self) -> PerUnit:
        """1 / ω ℓ″, for one output: Σ (x_nᵀδ)² / flatness_n ≤ ‖δ‖²_H (1 + δ)."""
        with silence("divide"):
            return (1 + 2 * self.rounding.off) / self.mass

    @cached_property
    def common(self) -> UnitRows:
        """Products z_i · leftover."""
        return self.model.design.predictors((self.leftover @ self.root)[None])[0]

    def norm_share(self, theta: Points, radius: PerLane) -> PerLane | float:
        """Share of H that norms of groups add to C within a radius around other parameters."""
        norms = self.norms
        reach = self.reach
        if norms is None or reach is None:
            return 0.0
        distances = norms.lengths(theta - self.theta) + np.multiply.outer(
            radius, np.sqrt(reach.groups)
        )
        return norms.share(norms.lengths(self.theta), distances, reach)

    @property
    def is_small(self) -> bool:
        """Whether all rows may stay in memory whitened."""
        # largest number of entries of whitened rows in memory; 20,000 x 500 would be a third copy,
        # while four times those of H make little difference
        return self.eta.size <= max(2**22 // max(len(self.root), 1), 4 * len(self.root))

    @property
    def by_whitened_rows(self) -> bool:
        """Whether products with all rows are of whitened ones.

        Those of sparse rows would be dense.
        """
        return self.is_small and isinstance(self.model.design, DenseDesign)

    @cached_property
    def rows(self) -> UnitRows:
        """All rows, whitened."""
        return self.model.design.whiten(np.arange(len(self.eta)), self.root)

    @cached_property
    def curvature_rate(self) -> float:
        """M max k, infinite if there is no M.

        Along a move of length r no ℓ″ changes by more than a factor of e^{rate · r}.
        """
        concordance = self.model.loss.self_concordance
        if concordance is None:
            return np.inf
        return float(np.max(np.asarray(concordance) * self.norm))

    @cached_property
    def single(
        self,
    ) -> tuple[DenseDesign | SparseDesign | MultiOutputDesign, Directions | None]:
        """Rows and L⁻¹ in float32; of dense rows, rows whitened in float64 and then rounded."""
        design = self.model.design
        n = len(self.eta)
        p = len(self.root)
        if not isinstance(design, DenseDesign):
            return design.single(), self.root.astype(np.float32)
        rows = np.empty((n, p), np.float32)
        for chunk in groups(np.arange(n), HERD // p):
            rows[chunk] = self.whiten(chunk)
        return DenseDesign(rows), None

    def products(self, directions: Displacements) -> LaneUnits:
        """Products of all rows with directions of u, in float64."""
        if self.by_whitened_rows:
            return directions @ self.rows.T
        return self.model.design.predictors(directions @ self.root)

    def sums(self, slopes: LaneUnits) -> Displacements:
        """Whitened sums of all rows times slopes, in float64."""
        if self.by_whitened_rows:
            return slopes @ self.rows
        return self.model.design.pull(slopes) @ self.root.T

    def predictor_moves(self, moves: Displacements) -> LaneUnits:
        """Moves of the predictors along moves of u, by products in float32."""
        design, root = self.single
        moves = moves.astype(np.float32)
        return design.predictors(moves if root is None else moves @ root)

    def gradient_of_slopes(self, slopes: LaneUnits) -> Displacements:
        """Whitened gradient of slopes, by products in float32; sums of very many whitened rows are
        added in float64.
        """
        design, root = self.single
        slopes = slopes.astype(np.float32)
        if root is not None:
            return np.asarray(design.pull(slopes) @ root.T, float)
        gradient = np.zeros((len(slopes), len(self.root)))
        for chunk in slices(len(self.eta), SINGLE_SUM):
            gradient += cast(DenseDesign, design).take(chunk).pull(slopes[:, chunk])
        return gradient

    # corrections of single rows of one output, which may be in float32 if bounds count that

    @cached_property
    def product_rounding(self) -> float:
        """Bound the rounding errors of products for corrections, relative to lengths; zero if these
        are in float64.
        """
        is_accurate = isinstance(self.model.design, DenseDesign) and self.digits < SINGLE_DIGITS
        if is_accurate and len(self.eta) ** 2 > PASS:
            return UP * (SINGLE_SUM + 8) * SINGLE_UNIT
        return 0.0

    def moves_of_corrections(self, moves: Displacements) -> Weights:
        """Moves of the predictors along short moves of u."""
        if not self.product_rounding:
            return self.products(moves)
        rows = cast(DenseDesign, self.single[0]).x
        predictors = np.zeros((len(moves), len(rows)))
        for columns in slices(rows.shape[1], SINGLE_SUM):
            predictors += moves[:, columns].astype(np.float32) @ rows[:, columns].T
        return predictors

    def gradient_of_corrections(self, slopes: Weights) -> Displacements:
        """Whitened gradient of small slopes."""
        return self.gradient_of_slopes(slopes) if self.product_rounding else self.sums(slopes)

    @property
    def digits(self) -> float:
        """Rounding error of such products, relative to whitened rows: nine units of float32.

        It is more as columns repeat one another, unless rows are whitened in float64.
        """
        single_unit = 9 * SINGLE_UNIT
        if isinstance(self.model.design, DenseDesign):
            return single_unit + self.rounding.step
        return single_unit * self.rounding.root

    def whiten(self, units: Int[NumpyArray, "*refits width"]) -> TouchedRows:
        """Whitened rows of the listed units, one row for each output."""
        z = self.rows[units] if self.is_small else self.model.design.whiten(units, self.root)
        if self.roots is None:
            return z
        return z.reshape(*units.shape[:-1], -1, len(self.root))

    def curvature_rows(self, units: NumpyArray, z: TouchedRows) -> TouchedRows:
        """Rows with one curvature each, to which `lost_curvature` applies.

        The rows, or Bᵀ times those of a unit, with B Bᵀ = ℓ″.
        """
        if self.roots is None:
            return z
        unit_rows = z.reshape(*units.shape, -1, z.shape[-1])
        return (self.roots[units].swapaxes(-1, -2) @ unit_rows).reshape(z.shape)

    def lost_curvature(
        self, units: NumpyArray, weight: NumpyArray
    ) -> Float[NumpyArray, "*refits touched"]:
        """Curvature that those rows lose under the given changes of weights."""
        if self.roots is None:
            return weight * self.mass[units]
        return np.repeat(weight * self.weight[units], self.model.design.outputs, axis=-1)

    def ball(
        self,
        eta: NumpyArray,
        omega: NumpyArray,
        slope: PerLane,
        kept_share: PerLane,
        move: PerLane,
        penalty_part: PerLane | float = 0.0,
    ) -> Ball:
        """Apply the theorem to candidates of length `move`, by the gaps of every unit at η.

        `omega` are the weights, `slope` is λ, `kept_share` the least eigenvalue of A, and
        `penalty_part` is added to C for the penalty.
        """
        loss = self.model.loss
        y = self.model.y
        blur = self.blur(eta, move)
        if self.roots is None:
            (curvature,) = loss.derivatives(eta, y, (2,))
            bounds = CurvatureBounds(curvature, curvature)
        else:
            curvature = None
            bounds = CurvatureBounds(*cast(LossOfSeveral, loss).ratios(eta, self.eta))
        ranges = np.multiply.outer(2 * slope / np.sqrt(kept_share), self.norm)
        size = omega * self.size
        size /= kept_share[:, None]
        penalty_part = penalty_part + 2 * self.curvature_error(eta, curvature, blur, move)
        return ball(
            gaps(loss, y, eta, bounds, ranges, self.reference, blur),
            self.reference,
            size,
            slope,
            2 * slope,
            penalty_part,
        )


@cached_on
def linear_cache(fit: Fit) -> LinearFitCache:
    model = fit.quadratic.predictors
    assert model is not None
    theta = fit.vector
    eta = model.eta(theta[None])[0]
    weight, kappa = model.full_weights
    loss, slope, curvature = model.loss.derivatives(eta, model.y, (0, 1, 2))
    root = fit.quadratic.root
    several = model.design.outputs > 1
    shares = model.shares(eta, curvature)
    roots = shares if several else None
    reference = np.ones(len(eta)) if several else curvature
    extents = model.design.extent(root, shares)
    null = fit.quadratic.null_space
    flat = null.T @ null if len(null) else 0.0
    norms = None if model.norms is None else model.norms.times(float(kappa))
    reach = None if norms is None else norms.reach(root)
    scale = fit.quadratic.scales
    moves = root
    if several and norms is None and model.design.shifts_apart(model.bending(theta[None])[0]):
        # no refit moves along the others, of which the penalty alone may know
        moves = model.design.without_shifts(root)
    whitening, condition_square = _root_rounding(
        fit, model, root, moves, scale, weight, roots, curvature, flat, float(kappa)
    )
    columns = len(theta) + getattr(fit.objective, "further_columns", 0)
    rounding = Rounding(
        len(eta), columns, float(np.sqrt(condition_square)), whitening, float(np.abs(theta) @ scale)
    )
    norm, size, length = bounded(extents, rounding, several)
    blur = rounding.predictor(length, total(np.abs(eta), 1))
    noise = float(gradient_error(model, rounding, weight, slope, curvature, eta, length, blur))
    curvature_rounding = curvature_error(model, curvature, eta, blur)
    penalty_share = _norm_share(norms, theta, reach)
    table = RadiusTable(
        model.loss,
        model.y,
        eta,
        reference,
        weight * size,
        norm,
        penalty_share,
        curvature_rounding,
        blur,
    )
    floor = max(
        OWN_HESSIAN_BELOW,
        4 * whitening if whitening < 0.5 else np.inf,
        _cut(fit),
        _required_information(fit, condition_square),
    )
    return LinearFitCache(
        model,
        len(model.y),
        theta,
        root,
        eta,
        weight,
        loss,
        slope,
        curvature,
        reference,
        roots,
        norm,
        size,
        length,
        extents.inner,
        flat,
        root @ fit.gradient,
        noise,
        rounding,
        curvature_rounding,
        floor,
        table,
        norms,
        reach,
    )


def _root_rounding(
    fit: Fit,
    model: Predictors,
    root: NumpyArray,
    moves: NumpyArray,
    scale: NumpyArray,
    weight: NumpyArray,
    roots: NumpyArray | None,
    curvature: NumpyArray,
    flat: NumpyArray | float,
    kappa: float,
) -> TwoNumbers:
    """Return the distance of R H Rᵀ from the identity, and ‖|R| s‖².

    The distance is measured if its bound is large and columns nearly repeat one another; else the
    bound serves as well. `moves` are the rows of R, or the parts M of them along which refits move.
    For such moves u, the factor's rounding changes uᵀR H Rᵀu by at most ‖|M| s‖², and that of its
    inverse by ‖|M| s‖ ‖|R| s‖; then ‖|M| s‖² is returned.
    """
    moves_condition, root_condition = (float(condition(part, scale)) for part in (moves, root))
    off = factor_error(
        np.sqrt(moves_condition * root_condition),
        len(weight),
        len(root) + getattr(fit.objective, "further_columns", 0),
    )
    # twice what a measurement cannot tell from rounding, at least
    measurable = 4 * UNIT * len(root) ** 2 * np.sqrt(moves_condition)
    if off > max(CONDITION, measurable) and moves_condition > REPEATED_COLUMNS * len(root):
        off = min(
            off,
            whitening_error(
                model,
                root,
                weight,
                roots,
                curvature,
                kappa * model.bending(fit.vector[None])[0] + flat,
            ),
        )
    return off, moves_condition


def _required_information(fit: Fit, condition: float) -> float:
    """Return the share of the information that a fold must keep for normal equations.

    Infinite if a ridge alone decides.
    """
    system = least_norm(fit)
    if system is None:
        return 0.0
    # times ‖|R| s‖²: least squares that keep less are solved by a factor of the rows instead
    if system.has_penalty and len(fit.quadratic.null_space):
        return np.inf
    return 1e-7 * condition


def _cut(fit: Fit) -> float:
    """Return the share that a fold must keep for a host's tolerance for rank not to matter."""
    objective: Any = fit.objective
    cut = getattr(objective, "cut", 0.0)
    if not cut:
        return 0.0
    hessian = fit.hessian
    if objective.intercept:
        hessian = hessian[:-1, :-1] - np.outer(hessian[-1, :-1], hessian[-1, :-1]) / hessian[-1, -1]
    values = linalg.eigvalsh(hessian)
    # share of the largest eigenvalue of H above which an eigenvalue is not rounding
    if values[0] > 1e-8 * values[-1]:
        return cut_floor(cut, np.sqrt(values))
    system = least_norm(fit)
    return np.inf if system is None else system.floor


def whitening_error(
    model: Predictors,
    root: NumpyArray,
    weight: NumpyArray,
    roots: NumpyArray | None,
    curvature: NumpyArray,
    penalty_hessian: NumpyArray,
) -> float:
    """Measure δ on the whitened rows Z, where the root of the condition enters.

    |fl(ZᵀZ) − I|, and the rounding of Z.
    """
    n = len(weight)
    p = root.shape[1]
    z = model.design.whiten(np.arange(n), root)
    if roots is None:
        z = np.sqrt(weight * curvature)[:, None] * z
    else:
        z = np.sqrt(weight)[:, None, None] * (roots.swapaxes(1, 2) @ z)
    z = z.reshape(-1, len(root))
    inner = root @ penalty_hessian @ root.T
    gram = z.T @ z
    scale = np.sqrt(
        np.diag(model.design.gram(weight[None], curvature[None])[0]) + np.diag(penalty_hessian)
    )
    condition_root = float(linalg.norm(np.abs(root) @ scale))
    size = float(np.trace(gram + inner))
    rounding = (p + 2) * 2.0**-53 * condition_root * np.sqrt(size)  # rounding of Z
    return (
        float(linalg.norm(gram + inner - np.eye(len(root))))
        + (n + 8) * 2.0**-53 * size
        + 2 * np.sqrt(size) * rounding
        + rounding**2
    )


def _norm_share(norms: Norms | None, theta: NumpyArray, reach: Reach | None) -> PenaltyShare | None:
    """Share that norms of groups add to the table."""
    if norms is None or reach is None:
        return None
    length = norms.lengths(theta)
    root = np.sqrt(reach.groups)
    return PenaltyShare(
        float(np.max(root / length)),
        lambda radius: np.asarray(norms.share(length, np.multiply.outer(radius, root), reach)),
    )


def total(part: NumpyArray, units: int) -> NumpyArray:
    """Sum over the outputs of a unit; `units` is the number of axes before the outputs."""
    return part if part.ndim == units else part.sum(-1)


def slope_error(
    model, slope: NumpyArray, curvature: NumpyArray, eta: NumpyArray, blur: NumpyArray
) -> RowUnits:
    """Bound the errors of units' computed slopes, where predictors are off by `blur`."""
    rounding = FUNCTION * model.loss.terms(1, np.abs(slope), eta, model.y)
    if curvature.ndim == eta.ndim:
        return rounding + 2 * curvature * blur
    return (rounding + 2 * np.abs(curvature).sum(-2) * blur[..., None]).sum(-1)


def gradient_error(
    model: Any,
    rounding: Rounding,
    weight: NumpyArray,
    slope: NumpyArray,
    curvature: NumpyArray,
    eta: NumpyArray,
    length: RowUnits,
    blur: NumpyArray,
) -> AnyShape:
    """Bound the rounding errors of whitened gradients, where predictors are off by `blur`."""
    add = lambda part: np.sum(weight * total(part, length.ndim) * length, -1, keepdims=True)
    size = np.abs(slope)
    errors = add(slope_error(model, slope, curvature, eta, blur)) + rounding.gradient(add(size))
    if curvature.ndim > eta.ndim:  # unlike what blurs do, a common shift of all outputs
        errors += rounding.root * FUNCTION * add(model.loss.terms(1, size, eta, model.y))
    return errors[..., 0]


def curvature_error(model: Any, curvature: NumpyArray, eta: NumpyArray, blur: NumpyArray) -> Any:
    """Bound the shares by which curvatures are off, where predictors are off by `blur`; infinite
    where that is far.

    Losses without an M have bounds of secants that know of both.
    """
    concordance = model.loss.self_concordance
    if curvature.ndim > eta.ndim:  # ratios of probabilities
        error = 4 * blur + 4 * FUNCTION * (1 + np.abs(eta).max(-1))
    elif concordance is None:
        return np.zeros(eta.shape[:-1])
    else:
        with silence("divide", "invalid"):
            rounding = FUNCTION * model.loss.terms(2, curvature, eta, model.y) / curvature
        error = 2 * np.asarray(concordance) * blur + np.where(curvature > 0, rounding, FUNCTION)
    error = np.max(error, -1, initial=0.0)
    return np.where(error < KNOWN_MOVE, error, np.inf)


class FoldMetric:
    """Inverse of each fold's own Hessian at θ̂, whitened, and that Hessian's least eigenvalue
    `kept_share`, zero if it has none.
    """

    def __init__(self, anchor: LinearFitCache, rows: RefitRows, delta: NumpyArray):
        """Take the refits, and the changes of the weights of their units."""
        width = rows.index.shape[1]
        count = len(rows.index)
        rank = len(anchor.root)
        self.kept_share: NumpyArray = np.zeros(count)
        self.z: NumpyArray | None = None
        self.pull: NumpyArray | None = (
            None  # change of the gradient at θ̂, if it is computed on the way
        )
        # bound of the distance of the whitened Hessian from what is computed
        self.off = np.zeros(count)
        self.hessian: RefitMetric
        self.inverse: RefitMetric
        units = rows.units(anchor.units)
        self.lost_curvature = anchor.lost_curvature(units, -delta)  # curvature that is left out
        narrow = width == 1 or 4 * self.lost_curvature.shape[1] <= rank
        if anchor.model.separate and (
            narrow or (anchor.is_small and self.lost_curvature.size * rank <= HERD)
        ):
            self.z = anchor.whiten(units)
            self.curvature_rows = anchor.curvature_rows(units, self.z)
        if self.z is not None and narrow:
            self._low_rank(anchor)
        else:
            self._dense(anchor, rows, delta, units)

    def _low_rank(self, anchor: LinearFitCache) -> None:
        z = self.curvature_rows
        lost_curvature = self.lost_curvature
        width = lost_curvature.shape[1]
        gram = z @ z.swapaxes(1, 2)
        self.off = anchor.rounding.step * (1 + np.einsum("rk,rkk->r", np.abs(lost_curvature), gram))
        removed = np.sqrt(np.maximum(lost_curvature, 0.0))
        inner = removed[:, :, None] * gram * removed[:, None, :]
        least = 1 - np.maximum(linalg.eigvalsh(inner)[:, -1], 0.0)
        good = least > anchor.floor + self.off
        system = np.eye(width) - lost_curvature[:, :, None] * gram
        system[~good] = np.eye(width)
        core = lost_curvature[:, :, None] * np.eye(width)
        self.hessian = LowRank(z, core)
        self.inverse = LowRank(z, -linalg.solve(system, core))
        self.kept_share = np.where(good, np.minimum(least - self.off, 1.0), 0.0)

    def _dense(
        self, anchor: LinearFitCache, rows: RefitRows, delta: NumpyArray, units: NumpyArray
    ) -> None:
        rank = len(anchor.root)
        z = self.z
        if z is not None:
            hessian = (
                np.eye(rank)
                - (self.curvature_rows * self.lost_curvature[:, :, None]).swapaxes(1, 2)
                @ self.curvature_rows
            )
        elif anchor.model.separate and rows.index.shape[1] < anchor.units:
            hessian = np.empty((len(delta), rank, rank))
            self.pull = np.empty((len(delta), rank))
            for k, (indices, change) in enumerate(zip(units, delta, strict=True)):
                fold_design = anchor.model.design.take(indices)
                change = (change * anchor.weight[indices])[None]
                gram = fold_design.gram(change, anchor.curvature[indices][None])[0]
                hessian[k] = anchor.root @ gram @ anchor.root.T + np.eye(rank)
                slopes = scale_units(change, anchor.slope[indices][None])
                self.pull[k] = anchor.root @ fold_design.pull(slopes)[0]
        else:
            omega, kappa = anchor.model.weigh(weights_of(rows, anchor.units))
            gram = anchor.model.design.gram(omega, anchor.curvature[None])
            gram += kappa[:, None, None] * anchor.model.bending(anchor.theta[None]) + anchor.flat
            hessian = anchor.root @ gram @ anchor.root.T
        distance = linalg.norm(hessian - np.eye(rank), axis=(1, 2))
        least = 1 - distance
        largest = 1 + distance
        distant = np.flatnonzero(distance > FAR)
        least[distant], largest[distant] = (
            linalg.eigvalsh(hessian[distant])[:, k] for k in (0, -1)
        )
        if z is not None:  # sums of rows that are whitened before
            size = 1 + np.einsum(
                "rk,rkp,rkp->r",
                np.abs(self.lost_curvature),
                self.curvature_rows,
                self.curvature_rows,
            )
            self.off = (anchor.rounding.step + 2 * self.lost_curvature.shape[1] * UNIT) * size
        else:
            self.off = (2 * anchor.rounding.formed + anchor.rounding.step) * np.maximum(
                largest, 1.0
            )
        good = least > anchor.floor + self.off
        self.kept_share = np.where(good, np.minimum(least - self.off, 1.0), 0.0)
        hessian[~good] = np.eye(rank)
        self.hessian = DenseMetric(hessian)
        self.inverse = DenseMetric(linalg.inv(hessian))

    def solve(self, gradient: Displacements, which: NumpyArray) -> Displacements:
        return self.inverse.solve(gradient, gradient, which)

    def residual(
        self,
        gradient: Displacements,
        step: Displacements,
        which: NumpyArray,
    ) -> PerRefit:
        """Bound what steps leave of their gradients, in the norms of the refits' metrics."""
        remainder = linalg.norm(self.hessian.solve(step, step, which) + gradient, axis=1)
        remainder += 2 * self.off[which] * linalg.norm(step, axis=1)
        share = self.kept_share[which]
        return remainder / np.sqrt(np.where(share > 0, share, 1.0))


def tiles(lanes: NumpyArray, n: int) -> ArrayList:
    """Split refits into groups whose arrays `[refits, units]` stay in a cache."""
    return groups(lanes, PASS // n)


def passes(lanes: NumpyArray, n: int, p: int) -> ArrayList:
    """Split refits like `tiles`, or into larger groups where products take hardly longer."""
    return groups(lanes, max(PASS // n, min(max(GROUP, p // WIDE), HERD // n)))


def groups(lanes: NumpyArray, size: int) -> ArrayList:
    return [lanes[part] for part in slices(len(lanes), size)]


def span(numbers: NumpyArray) -> NumpyArray | slice:
    """Index units or refits by a slice if they follow one another, so that nothing is gathered."""
    first = int(numbers[0]) if len(numbers) else 0
    follow = (
        len(numbers) > 1
        and numbers[-1] - first == len(numbers) - 1
        and bool((np.diff(numbers) == 1).all())
    )
    return slice(first, first + len(numbers)) if follow else numbers
