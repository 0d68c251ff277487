"""Refits of linear predictors with sparse rows and too many parameters for a matrix, by products,
many side by side.

A refit's Hessian is Xᵀ diag(ω ℓ″) X + κ P. Systems with it are solved by conjugate gradients, a
block of right sides at a time, preconditioned by the diagonal. Newton steps of its own bring any
fold from θ̂ to its minimum (`settle_wide`). Its estimated error is the change by the last step.
"""

import functools
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from .._runtime.jax import cached_on
from .._runtime.results import RESULTS
from ..linalg.design import Predictors, weight_terms
from ..linalg.sparse_design import SparseDesign
from ..objectives.batch_functions import weights_of
from ..objectives.objective import Flags, PerLane, Points, Vector
from ..optimize.fit import Fit
from ..plans.plan import RefitRows
from ._refit_batch import RefitBatch

Array = np.ndarray
MAX_WIDE_NEWTON_STEPS = 30  # largest number of Newton steps
# largest and smallest residual of a step's solve, relative to the gradient
MAX_SOLVE_RESIDUAL = 1e-2
MIN_SOLVE_RESIDUAL = 1e-6
SINGLE_RESIDUAL = 1e-4  # smallest residual of a step's solve in float32
# share of the predicted fall that a step must reach; shortest step
FALL = 1e-4
SHORTEST = 1e-8
FLOOR = 1e-13  # relative rounding error of F


@cached_on
def wide(fit: Fit) -> "WideModel | None":
    """Quantities that refits share, if rows are sparse and H is not formed; else None."""
    model = fit.predictor_data
    if fit.factor is None and model is not None and isinstance(model.design, SparseDesign):
        return WideModel(fit, model)
    return None


class WideModel:
    """Model at θ̂; vectors are columns, `[params, lanes]`."""

    def __init__(self, fit: Fit, model: Predictors):
        self.fit = fit
        self.model = model
        self.theta = fit.vector
        self.units = len(model.y)
        self.x: Any = cast(SparseDesign, model.design).csr
        self.transpose = self.x.T.tocsr()
        self.eta = model.eta(self.theta[None])[0]
        self.omega, self.kappa = (part[0] for part in model.weigh(np.ones((1, self.units))))
        self.loss, self.slope, curvature = model.loss.derivatives(self.eta, model.y, (0, 1, 2))
        self.curvature = weight_terms(self.omega, curvature)  # ω ℓ″
        self.penalty_diagonal = np.asarray(model.penalty.diagonal())
        is_dense = isinstance(model.penalty, np.ndarray) and np.count_nonzero(
            model.penalty
        ) > np.count_nonzero(self.penalty_diagonal)
        self.penalty: Any = (
            model.penalty
            if is_dense
            else scipy.sparse.diags_array(self.penalty_diagonal, format="csr")
        )
        self.products = 0.0  # number of products with one vector

    @functools.cached_property
    def squares(self) -> Any:
        """Squares of the entries of the rows, one row for each parameter."""
        return self.transpose.power(2)

    @functools.cached_property
    def diagonal(self) -> Vector:
        """Diagonal of H."""
        return self.squares @ self.curvature + self.kappa * self.penalty_diagonal

    @functools.cached_property
    def single(self) -> tuple[Any, Any]:
        """Rows and their transpose in float32."""
        return self.x.astype(np.float32), self.transpose.astype(np.float32)

    def solve(
        self,
        right: Float[np.ndarray, "params lanes"],
        curvature: Float[np.ndarray, "units ..."],
        kappa: Float[np.ndarray, "..."],
        tol: float | PerLane,
    ) -> Float[np.ndarray, "params lanes"]:
        """Multiply columns by the refits' inverse Hessians, in the columns' precision.

        Each solve ends when its preconditioned residual is `tol` of the first.
        """
        kind = right.dtype
        penalty = self.penalty
        x, transpose = self.single if kind == np.float32 else (self.x, self.transpose)
        scale = (1 / self.diagonal).astype(kind)[:, None]
        curvature = curvature.astype(kind)
        kappa = kappa.astype(kind)
        if _diagonal(penalty):
            diagonal = self.penalty_diagonal.astype(kind)[:, None]
        else:
            diagonal = None
        out = np.zeros_like(right)
        residual = right.copy()
        direction = scale * residual
        square = np.einsum("pk,pk->k", residual, direction)
        enough = np.square(tol) * square
        open_ = np.flatnonzero(square > 0)
        direction = direction[:, open_]
        # largest number of products in a solve
        for _ in range(1000):
            if not open_.size:
                break
            part = lambda matrix, open_=open_: matrix[:, open_] if matrix.shape[1] > 1 else matrix
            image = transpose @ (part(curvature) * (x @ direction))
            image += (kappa[open_] if len(kappa) > 1 else kappa) * (
                penalty @ direction if diagonal is None else diagonal * direction
            )
            self.products += len(open_)
            length = square[open_] / np.einsum("pk,pk->k", direction, image)
            is_complete = len(open_) == out.shape[1]
            columns: Any = slice(None) if is_complete else open_
            out[:, columns] += length * direction
            residual[:, columns] -= length * image
            preconditioned = scale * residual[:, columns]
            after = np.einsum("pk,pk->k", residual[:, columns], preconditioned)
            direction = preconditioned + (after / square[open_]) * direction
            square[open_] = after
            is_open = after > enough[open_]
            if not is_open.all():
                open_, direction = open_[is_open], np.ascontiguousarray(direction[:, is_open])
        return out

    def value(
        self, theta: Float[np.ndarray, "params lanes"], omega: Array, kappa: Array
    ) -> tuple[Array, Array, Array]:
        """Evaluate F, its gradients, and ω ℓ″ for some refits."""
        eta = self.predict(theta)
        parts = self.model.loss.derivatives(eta.T, self.model.y, (0, 1, 2))
        loss, slope, curvature = (weight_terms(omega, part) for part in parts)
        pushed = self.penalty @ theta
        F = loss.sum(1) + 0.5 * kappa * np.einsum("pk,pk->k", theta, pushed)
        self.products += len(kappa)
        return (
            np.where(np.isnan(F), np.inf, F),
            self.transpose @ np.ascontiguousarray(slope.T) + kappa * pushed,
            curvature.T,
        )

    def predict(self, theta: Float[np.ndarray, "params lanes"]) -> Float[np.ndarray, "units lanes"]:
        """Linear predictors of every row."""
        shift = self.model.offset
        return self.x @ theta + (
            shift[:, None] if isinstance(shift, np.ndarray) and shift.ndim else shift
        )


def _diagonal(penalty: Any) -> bool:
    """Tell whether the penalty is one number for each parameter, as sparse penalties are."""
    return not isinstance(penalty, np.ndarray)


class WideRefit(NamedTuple):
    """Results of refits.

    They have raveled θ, the listed units' predictors there and before the last step, the length of
    the first step, and whether they converged.
    """

    theta: Points
    center: Float[np.ndarray, "lanes width"]
    before: Float[np.ndarray, "lanes width"]
    first: PerLane
    converged: Flags


def settle_wide(
    wide_model: WideModel,
    rows: RefitRows,
    start: Points | None = None,
    tol: float = 1e-9,  # length of the last step, relative to the displacement
    steps: int = MAX_WIDE_NEWTON_STEPS,
) -> WideRefit:
    """Bring refits to their minima by Newton steps of their own, from θ̂ or candidates."""
    # numbers in the vectors of one array, which stay near a cache
    size = max(1, 2**20 // len(wide_model.theta))
    parts = []
    for first in range(0, len(rows.index), size):
        lanes = np.arange(first, min(first + size, len(rows.index)))
        parts.append(
            _settle(
                wide_model, rows.take(lanes), None if start is None else start[lanes], tol, steps
            )
        )
    return WideRefit(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _settle(
    wide_model: WideModel, rows: RefitRows, start: Array | None, tol: float, steps: int
) -> WideRefit:
    omega, kappa = wide_model.model.weigh(weights_of(rows, wide_model.units))
    count = len(kappa)
    units = np.where(rows.index < wide_model.units, rows.index, 0)
    place = np.arange(count)[:, None]
    if start is None:
        theta = np.repeat(wide_model.theta[:, None], count, axis=1)
    else:
        theta = start.T.copy()
    listed = lambda theta: wide_model.predict(theta)[units, place]
    F, gradient, curvature = wide_model.value(theta, omega, kappa)
    center = listed(theta)
    before = center.copy()
    converged = np.zeros(count, bool)
    first = np.zeros(count)
    path_length = np.zeros(count)
    open_ = np.arange(count)
    for k in range(steps):
        if not open_.size:
            break
        size = np.sqrt(
            np.einsum(
                "pk,pk->k",
                gradient[:, open_] ** 2,
                1 / wide_model.diagonal[:, None] * np.ones((1, open_.size)),
            )
        )
        tolerance = np.minimum(
            MAX_SOLVE_RESIDUAL,
            np.maximum(
                size / np.maximum(first[open_], 1e-300) if k else MAX_SOLVE_RESIDUAL,
                MIN_SOLVE_RESIDUAL,
            ),
        )
        if steps == 1:
            tolerance = np.full(len(open_), MIN_SOLVE_RESIDUAL)
        # the gradient is in float64, so that later steps correct what a rough solve in float32
        # leaves
        kind = np.float32 if tolerance.min() >= SINGLE_RESIDUAL else np.float64
        unit = np.where(size > 0, size, 1.0)
        step = unit * wide_model.solve(
            (gradient[:, open_] / unit).astype(kind), curvature[:, open_], kappa[open_], tolerance
        )
        slope = np.einsum("pk,pk->k", gradient[:, open_], step)
        decrement = np.sqrt(np.maximum(slope, 0.0))
        first = np.where(first == 0, _with_entries(first, open_, decrement), first)
        path_length[open_] += decrement
        good = _shorten_steps(
            wide_model, (theta, F, gradient, curvature), step, slope, omega, kappa, open_
        )
        before[open_] = center[open_]
        center[open_] = wide_model.predict(theta[:, open_])[
            units[open_], np.arange(len(open_))[:, None]
        ]
        done = (decrement <= tol * np.maximum(path_length[open_], 1e-300)) | (
            slope <= FLOOR * (1 + np.abs(F[open_]))
        )
        converged[open_] = done & good
        open_ = open_[~done & good]
    return WideRefit(np.ascontiguousarray(theta.T), center, before, first, converged)


def _with_entries(values: Array, places: Int[np.ndarray, " selected"], entries: Array) -> Array:
    out = values.copy()
    out[places] = entries
    return out


def _shorten_steps(
    wide_model: WideModel,
    candidate_state: tuple[Array, Array, Array, Array],
    step: Array,
    slope: Array,
    omega: Array,
    kappa: Array,
    open_: Int[np.ndarray, " open"],
) -> Bool[np.ndarray, " open"]:
    """Shorten each step until F falls enough, and mark the refits in which it falls.

    `candidate_state`, changed in place, has the candidates, and F, gradients and ω ℓ″ there.
    """
    theta, F, gradient, curvature = candidate_state
    unshortened = np.arange(len(open_))
    length = 1.0
    while unshortened.size and length > SHORTEST:
        lanes = open_[unshortened]
        candidates = theta[:, lanes] - length * step[:, unshortened]
        value, gradients, curvatures = wide_model.value(candidates, omega[lanes], kappa[lanes])
        enough = value <= F[lanes] - FALL * length * slope[unshortened] + FLOOR * (
            1 + np.abs(F[lanes])
        )
        good = lanes[enough]
        theta[:, good], F[good] = candidates[:, enough], value[enough]
        gradient[:, good], curvature[:, good] = gradients[:, enough], curvatures[:, enough]
        unshortened = unshortened[~enough]
        length = length / 2
    return ~np.isin(np.arange(len(open_)), unshortened)


def exactly(fit: Fit, rows: RefitRows, steps: int = MAX_WIDE_NEWTON_STEPS) -> RefitBatch:
    """Bring refits to their minima, with errors estimated by the change of the last step."""
    wide_model = cast(WideModel, wide(fit))
    products = wide_model.products
    refits = settle_wide(wide_model, rows, steps=steps)
    held = np.asarray(rows.held)
    y = wide_model.model.y[np.where(rows.index < wide_model.units, rows.index, 0)]
    losses, last = (
        np.where(held, wide_model.model.unit_loss.derivatives(eta, y, (0,))[0], 0.0)
        for eta in (refits.center, refits.before)
    )
    error = np.abs(losses - last).sum(1) + 1e-12 * np.abs(losses).sum(1)
    result = np.where(refits.converged, RESULTS.successful, RESULTS.not_converged)
    ball = lambda: (fit.back(refits.theta - wide_model.theta), np.zeros(len(error)))
    return RefitBatch(
        lambda: refits.theta,
        error,
        result,
        losses,
        np.zeros(len(error), bool),
        ball,
        refits.first,
        wide_model.products - products,
    )


def one_step(fit: Fit, rows: RefitRows) -> RefitBatch:
    """Take one Newton step of each refit with its own Hessian.

    Its error is the distance to the converged refit.
    """
    wide_model = cast(WideModel, wide(fit))
    exact = exactly(fit, rows)
    refits, held = settle_wide(wide_model, rows, steps=1), np.asarray(rows.held)
    y = wide_model.model.y[np.where(rows.index < wide_model.units, rows.index, 0)]
    losses = np.where(held, wide_model.model.unit_loss.derivatives(refits.center, y, (0,))[0], 0.0)
    error = np.abs(losses - exact.scores).sum(1) + exact.error
    return replace(exact, make=lambda: refits.theta, error=error, scores=losses, ball=None)
