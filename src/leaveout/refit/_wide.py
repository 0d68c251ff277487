"""Refits of linear predictors with sparse rows and too many parameters for a matrix, by products,
many side by side.

A refit's Hessian is Xᵀ diag(ω ℓ″) X + κ P. Systems with it are solved by conjugate gradients, a
block of right sides at a time, preconditioned by the diagonal. Newton steps of its own bring any
fold from θ̂ to its minimum (`settle_wide`). Its estimated error is the change by the last step.

# One step of single rows each, by leverages estimated from probes

With s about √(ω ℓ″), K = X H⁻¹Xᵀ and v of random signs, s_j² K_jj is the mean of v_j s_j (K (s ∘
v))_j (M. F. Hutchinson 1990), whose variance Σ_{k≠j} s_j² K_jk² s_k² is small where rows are about
orthogonal. Nearly all of it is removed by two numbers of known means, the first terms of a series:
with A = s X P⁻¹Xᵀ s, its diagonal a taken off, and t = 1/(1 + a),

    v_j t_j (A (t ∘ v))_j,  mean 0,      v_j t_j (A (t ∘ A (t ∘ v)))_j,  mean t_j² Σ_k A_jk² t_k

(control variates: on random sparse rows they leave a hundredth of the variance). A row's loss after
its one step

    f(h) = ℓ(η + h p / (1 − h b)),      p, b the parts of ω ℓ′ and ω ℓ″ that leave

is estimated with h from all probes, minus its bias by the jackknife over groups of probes. The
jackknife also gives the error of the mean of many rows, which share probes. The error of the step
itself is estimated from rows that are refitted to convergence, some at random and those with the
longest steps. All of this is estimated; nothing is proved.
"""

import itertools
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int
from numpy.random import default_rng

from .._runtime import (
    RESULTS,
    AnyPair,
    ArrayList,
    ArrayTuple,
    LaneEntries,
    NumpyArray,
    ThreeArrays,
    TwoArrays,
    cached_on,
    join,
    largest_first,
    silence,
    slices,
)
from ..linalg import (
    AnyShape,
    Lanes,
    LaneState,
    Predictors,
    Proposal,
    SparseDesign,
    conjugate_gradients,
    decrements,
    iterate,
    weight_terms,
)
from ..objectives import Flags, PerLane, PerUnit, Points, Selection, Vector, weights_of
from ..optimize import Fit
from ..plans import RefitRows
from ._refit_batch import CommonError, RefitBatch

PerSelected = Float[NumpyArray, " selected"]
ParamLanes = Float[NumpyArray, "params lanes"]
MAX_WIDE_NEWTON_STEPS = 30  # largest number of Newton steps
# largest and smallest residual of a step's solve, relative to the gradient
MAX_SOLVE_RESIDUAL = 1e-2
MIN_SOLVE_RESIDUAL = 1e-6
SINGLE_RESIDUAL = 1e-4  # smallest residual of a step's solve in float32
FALL = 1e-4  # share of the predicted fall that a step must reach
FLOOR = 1e-13  # relative rounding error of F


@cached_on
def wide(fit: Fit) -> "WideModel | None":
    """Quantities that refits share, if rows are sparse and H is not formed; else None."""
    model = fit.quadratic.predictor_data
    if (
        fit.quadratic.factor is None
        and model is not None
        and isinstance(model.design, SparseDesign)
    ):
        return WideModel(fit, model)
    return None


class WideModel:
    """Model at θ̂; vectors are columns, `[params, lanes]`."""

    def __init__(self, fit: Fit, model: Predictors):
        self.fit = fit
        self.model = model
        self.theta = fit.vector
        self.units = len(model.y)
        self.x: Any = model.design.csr
        self.transpose = self.x.T.tocsr()
        self.eta = model.eta(self.theta[None])[0]
        self.omega, self.kappa = model.full_weights
        self.loss, self.slope, curvature = model.loss.derivatives(self.eta, model.y, (0, 1, 2))
        self.curvature = weight_terms(self.omega, curvature)  # ω ℓ″
        self.penalty_diagonal = np.asarray(model.penalty.diagonal())
        is_dense = isinstance(model.penalty, NumpyArray) and np.count_nonzero(
            model.penalty
        ) > np.count_nonzero(self.penalty_diagonal)
        self.penalty: Any = (
            model.penalty
            if is_dense
            else scipy.sparse.diags_array(self.penalty_diagonal, format="csr")
        )
        self.products = 0.0  # number of products with one vector

    @cached_property
    def squares(self) -> Any:
        """Squares of the entries of the rows, one row for each parameter."""
        return self.transpose.power(2)

    @cached_property
    def diagonal(self) -> Vector:
        """Diagonal of H."""
        return self.squares @ self.curvature + self.kappa * self.penalty_diagonal

    @cached_property
    def single(self) -> AnyPair:
        """Rows and their transpose in float32."""
        return self.x.astype(np.float32), self.transpose.astype(np.float32)

    def solve(
        self,
        right: ParamLanes,
        curvature: Float[NumpyArray, "units ..."],
        kappa: AnyShape,
        tol: float | PerLane,
    ) -> ParamLanes:
        """Multiply columns by the refits' inverse Hessians, in the columns' precision.

        Each solve ends when its preconditioned residual is `tol` of the first.
        """
        most_products = 1000
        kind = right.dtype
        x, transpose = self.single if kind == np.float32 else (self.x, self.transpose)
        penalty = self.penalty.astype(kind)
        inverse_diagonal = (1 / self.diagonal).astype(kind)
        curvature = curvature.astype(kind)
        kappa = kappa.astype(kind)

        def product(direction: Points, lanes: Lanes) -> Points:
            self.products += len(direction)
            part = lambda matrix: matrix[..., lanes] if matrix.shape[-1] > 1 else matrix
            columns = np.ascontiguousarray(direction.T)
            image = transpose @ (part(curvature) * (x @ columns))
            image += part(kappa) * (penalty @ columns)
            return image.T

        solution = conjugate_gradients.solve(
            product,
            lambda residual, _: inverse_diagonal * residual,
            np.ascontiguousarray(right.T),
            most_products,
            tol,
            has_ritz_values=False,
        )
        return solution.x.T

    def value(self, theta: ParamLanes, omega: NumpyArray, kappa: NumpyArray) -> ThreeArrays:
        """Evaluate F, its gradients, and ω ℓ″ for some refits."""
        parts = self.model.loss.derivatives(self.predict(theta).T, self.model.y, (0, 1, 2))
        loss, slope, curvature = (weight_terms(omega, part) for part in parts)
        pushed = self.penalty @ theta
        F = loss.sum(1) + 0.5 * kappa * np.einsum("pk,pk->k", theta, pushed)
        self.products += len(kappa)
        return (
            np.fmin(F, np.inf),
            self.transpose @ np.ascontiguousarray(slope.T) + kappa * pushed,
            curvature.T,
        )

    def predict(self, theta: ParamLanes) -> Float[NumpyArray, "units lanes"]:
        """Linear predictors of every row."""
        shift = self.model.offset
        return self.x @ theta + (
            shift[:, None] if isinstance(shift, NumpyArray) and shift.ndim else shift
        )


class WideRefit(NamedTuple):
    """Results of refits.

    They have raveled θ, the listed units' predictors there and before the last step, the length of
    the first step, and whether they converged.
    """

    theta: Points
    center: LaneEntries
    before: LaneEntries
    first: PerLane
    converged: Flags


def settle_wide(
    wide_model: WideModel,
    rows: RefitRows,
    start: Points | None = None,
    steps: int = MAX_WIDE_NEWTON_STEPS,
) -> WideRefit:
    """Bring refits to their minima by Newton steps of their own, from θ̂ or candidates."""
    if start is None:
        start = np.broadcast_to(wide_model.theta, (len(rows.index), len(wide_model.theta)))
    # numbers in the vectors of one array, which stay near a cache
    size = 2**20 // len(wide_model.theta)
    parts = []
    for part in slices(len(rows.index), size):
        lanes = np.arange(len(rows.index))[part]
        parts.append(_settle(wide_model, rows.take(lanes), start[lanes], steps))
    return join(parts)


def _settle(wide_model: WideModel, rows: RefitRows, start: Points, steps: int) -> WideRefit:
    omega, kappa = wide_model.model.weigh(weights_of(rows, wide_model.units))
    count = len(kappa)
    units = rows.units(wide_model.units)
    curvature = np.empty((wide_model.units, count))
    before = np.empty(units.shape)
    converged = np.zeros(count, bool)
    first, path_length, num_steps = np.zeros((3, count))

    def predict(theta: Points, lanes: Lanes) -> LaneEntries:
        return wide_model.predict(theta.T)[units[lanes], np.arange(len(theta))[:, None]]

    def look(theta: Points, lanes: Lanes) -> tuple[PerLane, Points]:
        F, gradient, curvature[:, lanes] = wide_model.value(theta.T, omega[lanes], kappa[lanes])
        return F, gradient.T

    def propose(state: LaneState, lanes: Lanes) -> Proposal:
        gradient = state.gradient
        size = np.sqrt(np.sum(gradient**2 / wide_model.diagonal, 1))
        if steps == 1:
            tolerance = np.full(len(size), MIN_SOLVE_RESIDUAL)
        else:
            relative_size = size / np.maximum(first[lanes], 1e-300)
            tolerance = np.clip(relative_size, MIN_SOLVE_RESIDUAL, MAX_SOLVE_RESIDUAL)
        # the gradient is in float64, so that later steps correct what a rough solve in float32
        # leaves
        kind = np.float32 if tolerance.min() >= SINGLE_RESIDUAL else np.float64
        unit = np.where(size > 0, size, 1.0)
        right = (gradient.T / unit).astype(kind)
        step = unit * wide_model.solve(right, curvature[:, lanes], kappa[lanes], tolerance)
        length = decrements(step.T, gradient)
        before[lanes] = predict(state.theta, lanes)
        first[lanes] = np.where(first[lanes] == 0, length, first[lanes])
        path_length[lanes] += length
        num_steps[lanes] += 1
        # length of the last step, relative to the path
        tol = 1e-9
        converged[lanes] = (length <= tol * np.maximum(path_length[lanes], 1e-300)) | (
            length**2 <= FLOOR * (1 + np.abs(state.value))
        )
        return Proposal(step.T, length, converged[lanes] | (num_steps[lanes] >= steps))

    def falls(state: LaneState, value: PerLane, gradient: Points) -> Flags:
        fall = FALL * state.share * state.length**2
        return value <= state.value - fall + FLOOR * (1 + np.abs(state.value))

    theta = iterate(look, propose, start, falls)[0].theta
    return WideRefit(theta, predict(theta, np.arange(count)), before, first, converged)


def held_losses(model: Predictors, rows: RefitRows, eta: NumpyArray) -> LaneEntries:
    """Losses of held rows at their predictors, zero where not scored."""
    y = model.y[rows.units(len(model.y))]
    return np.where(rows.held, model.unit_loss.derivatives(eta, y, (0,))[0], 0.0)


def exactly(fit: Fit, rows: RefitRows) -> RefitBatch:
    """Bring refits to their minima, with errors estimated by the change of the last step."""
    wide_model = cast(WideModel, wide(fit))
    products = wide_model.products
    refits = settle_wide(wide_model, rows)
    losses = held_losses(wide_model.model, rows, refits.center)
    change = losses - held_losses(wide_model.model, rows, refits.before)
    error = np.abs(change).sum(1) + 1e-12 * np.abs(losses).sum(1)
    result = np.where(refits.converged, RESULTS.successful, RESULTS.not_converged)
    ball = lambda: (fit.quadratic.back(refits.theta - wide_model.theta), np.zeros(len(error)))
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
    refits = settle_wide(wide_model, rows, steps=1)
    losses = held_losses(wide_model.model, rows, refits.center)
    error = np.abs(losses - exact.scores).sum(1) + exact.error
    return replace(exact, make=lambda: refits.theta, error=error, scores=losses, ball=None)


# probes in a group; least and largest number of groups
SIZE = 8
FEWEST = 8
MOST = 64
PROBE_RESIDUAL = 1e-3  # residual, relative to the right side, at which a solve for a probe ends
# standard errors of the probes that are added to the error of a row, and of the mean
SAFETY = 5.0
SAFE = 3.0
# numbers of rows, random and of longest steps, that are refitted, and of their steps after the
# first
RANDOM = 32
LONGEST = 8
FEW = 2
TWICE = 2.0  # factor on the largest error of the step in these rows


def by_probes(fit: Fit) -> bool:
    """Tell whether single rows are estimated by probes.

    H is not formed, and they change their own terms only.
    """
    wide_model = wide(fit)
    return (
        wide_model is not None
        and wide_model.model.separate
        and wide_model.model.design.shape[0] == wide_model.units
    )


def alone(fit: Fit, rows: RefitRows) -> bool:
    """Tell whether a batch is estimated by probes.

    Every refit leaves out one row, or a part of its weight.
    """
    return rows.index.shape[1] == 1 and bool((rows.weight <= 1).all()) and by_probes(fit)


def _light(count: Int[NumpyArray, " params"]) -> Bool[NumpyArray, " params"]:
    """Mark the columns with fewest entries, which A uses."""
    order = np.argsort(count, kind="stable")
    out = np.zeros(len(count), bool)
    # largest number of products for A_jk²; the fullest columns are left out of A
    out[order[np.cumsum(count[order].astype(float) ** 2) <= 4e8]] = True
    return out


class LeftOut(NamedTuple):
    """Rows that lose some of their weight."""

    units: Selection
    weight: PerSelected  # what they lose


class ProbedLeverages(NamedTuple):
    """Estimates from a number of groups of probes.

    There are h of all rows, from all probes and without each group, with its standard error. For
    the refitted rows there are their predictors and the errors of their losses. `step_curvature` is
    the difference of η from one step in units of λ², `error_factor` the factor by which errors are
    larger than estimated, `distance_left` the error of the mean after the step, and `deviation` the
    standard deviation of losses.
    """

    h: PerUnit
    without: Float[NumpyArray, "groups units"]
    spread: PerUnit
    known_units: Selection
    exact: PerSelected
    unsure: PerSelected
    step_curvature: float
    error_factor: float
    distance_left: float
    deviation: float


class Probes:
    """Groups of probes, drawn on demand; the first groups are the same for every caller."""

    def __init__(self, wide_model: WideModel):
        self.wide_model = wide_model
        self.groups = list[ArrayTuple]()
        weight = wide_model.curvature
        # least curvature with which rows are probed, relative to the mean
        self.scale = np.sqrt(np.maximum(weight, 1e-2 * max(float(weight.mean()), 1e-300)))
        penalty_curvature = wide_model.kappa * wide_model.penalty_diagonal
        diagonal = np.where(penalty_curvature > 0, penalty_curvature, wide_model.diagonal)
        self.inverse = np.where(_light(np.diff(wide_model.transpose.indptr)), 1 / diagonal, 0.0)
        self.size = self.scale**2 * (wide_model.squares.T @ self.inverse)  # a
        self.second = self._second()
        self.leverages = cache(self._leverages)

    def _second(self) -> PerUnit:
        """Compute t_j² Σ_k A_jk² t_k."""
        t = 1 / (1 + self.size)
        diagonal = scipy.sparse.diags_array
        rows = diagonal(self.scale) @ self.wide_model.x @ diagonal(np.sqrt(self.inverse))
        rows.eliminate_zeros()
        transpose = rows.T.tocsr()
        out = np.zeros(len(t))
        # upper bound of the entries of A
        counts = np.maximum(np.asarray((rows != 0) @ np.diff(transpose.indptr)), 1)
        # number of entries of A computed at a time
        bounds = np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum(), 2**22))
        for start, stop in itertools.pairwise(np.unique(np.r_[bounds, len(t)])):
            block = rows[start:stop] @ transpose
            block.data = block.data**2 * t[block.indices]
            out[start:stop] = block.sum(1)
        return t**2 * (out - self.size**2 * t)

    def _draw(self) -> ArrayTuple:
        """Draw one more group.

        The means of the three numbers, and of their products with one another.
        """
        model = self.wide_model
        rng = default_rng(len(self.groups))
        x, transpose = model.single
        v = rng.choice(np.array([-1.0, 1.0], np.float32), (model.units, SIZE))
        s, t, a, second, inverse = (
            part.astype(np.float32)[:, None]
            for part in (self.scale, 1 / (1 + self.size), self.size, self.second, self.inverse)
        )
        kappa = np.array([model.kappa])
        solved = model.solve(transpose @ (s * v), model.curvature[:, None], kappa, PROBE_RESIDUAL)
        off_diagonal_image = lambda u: s * (x @ (inverse * (transpose @ (s * u)))) - a * u
        image = off_diagonal_image(t * v)
        second_image = v * t * off_diagonal_image(t * image) - second
        terms = np.stack([v * s * (x @ solved), v * t * image, second_image])
        model.products += 3 * SIZE
        moments = np.einsum("ink,jnk->ijn", terms, terms, dtype=float)
        return terms.mean(2, dtype=float), moments / SIZE

    def upto(self, rtol: float) -> ProbedLeverages:
        """Draw groups until the error of the mean of all rows is at most `rtol` of its standard
        error; return estimates.
        """
        for count in range(FEWEST, MOST + 1):
            while len(self.groups) < count:
                self.groups.append(self._draw())
            # error of the mean, in its standard errors, that is always allowed to probes
            if self._error(count) <= max(rtol, 0.1):
                break
        return self.leverages(count)

    def _means(self, count: int) -> ArrayList:
        """Leverages h by the first groups, without each of them, and their standard errors."""
        means, moments = map(np.array, zip(*self.groups[:count], strict=True))
        mean = means.mean(0)
        moment = moments.mean(0)
        covariance = (moment - mean[:, None] * mean).sum(-1)  # sum over all rows
        share = np.r_[1.0, -np.linalg.lstsq(covariance[1:, 1:], covariance[1:, 0], rcond=1e-10)[0]]
        group_means = np.einsum("i,gin->gn", share, means)
        middle = group_means.mean(0)
        square = np.einsum("i,j,ijn->n", share, share, moment) - middle**2
        spread = np.sqrt(np.maximum(square, 0.0) / (count * SIZE - 1))
        without = middle + (middle - group_means) / (count - 1)
        return [np.maximum(part, 0.0) / self.scale**2 for part in (middle, without, spread)]

    def _error(self, count: int) -> float:
        """Error of the mean loss of all rows, in its standard errors."""
        h, without, _ = self._means(count)
        rows = self.rows(np.flatnonzero(self.wide_model.omega > 0))
        losses, draws = (self.losses(part[..., rows.units], rows) for part in (h, without))
        means = draws.mean(1)
        spread = np.sqrt((count - 1) / count * np.sum((means - means.mean()) ** 2))
        return float(SAFE * spread / max(losses.std() / np.sqrt(losses.size), 1e-300))

    def rows(self, units: Selection) -> LeftOut:
        """Rows that lose their whole weight."""
        return LeftOut(units, self.wide_model.omega[units])

    def step(self, h: NumpyArray, rows: LeftOut) -> TwoArrays:
        """Predictor η after one step, and its length λ; NaN where no curvature is left."""
        model = self.wide_model
        omega = model.omega[rows.units]
        slope = weight_terms(rows.weight, model.slope[rows.units])
        curvature = model.curvature[rows.units] / np.where(omega > 0, omega, 1.0)
        kept_share = 1 - h * weight_terms(rows.weight, curvature)
        kept_share = np.where(kept_share > 0, kept_share, np.nan)
        eta = model.eta[rows.units] + h * slope / kept_share
        return eta, np.abs(slope) * np.sqrt(h / kept_share)

    def loss(self, eta: NumpyArray, units: Selection) -> NumpyArray:
        """Losses of some rows at their predictors."""
        model = self.wide_model.model
        return model.unit_loss.derivatives(eta, model.y[units], (0,))[0]

    def losses(self, h: NumpyArray, rows: LeftOut) -> NumpyArray:
        """Losses f(h) of some rows."""
        return self.loss(self.step(h, rows)[0], rows.units)

    def _leverages(self, count: int) -> ProbedLeverages:
        h, without, spread = self._means(count)
        rng = default_rng(0)
        rows = self.rows(np.flatnonzero(self.wide_model.omega > 0))
        length = self.step(h[rows.units], rows)[1]
        random = rng.choice(rows.units, min(RANDOM, len(rows.units)), replace=False)
        order = largest_first(np.nan_to_num(length, nan=np.inf))
        units = np.concatenate([random, np.setdiff1d(rows.units[order[:LONGEST]], random)])
        step, lengths, exact, last = self._refit_rows(units)
        with silence("divide", "invalid"):
            curvature = np.where(lengths > 0, np.abs(exact - step) / lengths**2, 0.0)
        exact_losses = self.loss(exact, units)
        step_errors = (exact_losses - self.loss(step, units))[: len(random)]
        standard_error = float(step_errors.std() / np.sqrt(len(random)))
        estimates = ProbedLeverages(
            h,
            without,
            spread,
            units,
            exact,
            np.abs(exact_losses - self.loss(exact - last, units)),
            TWICE * float(np.nanmax(curvature, initial=0.0)),
            1.0,
            abs(float(step_errors.mean())) + TWICE * standard_error,
            float(np.nanstd(self.losses(h[rows.units], rows))),
        )
        reported, error, _ = self.judge(estimates, self.rows(random))
        ratios = np.abs(reported - exact_losses[: len(random)]) / np.maximum(error, 1e-300)
        factor = max(1.0, float(ratios[np.isfinite(error)].max(initial=0.0)))
        return estimates._replace(error_factor=factor)

    def judge(self, leverages: ProbedLeverages, rows: LeftOut) -> ThreeArrays:
        """Losses of some rows, their errors, and the losses without each group of probes."""
        units = rows.units
        h = leverages.h[units]
        count = len(leverages.without)
        draws = self.losses(leverages.without[:, units], rows)
        eta, length = self.step(h, rows)
        middle = self.loss(eta, units)
        reported = count * middle - (count - 1) * draws.mean(0)
        width = SAFETY * leverages.spread[units]
        step_error = leverages.step_curvature * length**2
        errors = []
        with silence("invalid"):
            for sign in (1, -1):
                end = self.losses(np.maximum(h + sign * width, 0.0), rows)
                beyond = self.loss(eta + sign * step_error, units)
                errors.append((np.abs(end - reported), np.abs(beyond - middle)))
            error = leverages.error_factor * np.max(errors, 0).sum(0)
        return reported, np.where(np.isfinite(error) & np.isfinite(reported), error, np.inf), draws

    def _refit_rows(self, units: Selection) -> ArrayTuple:
        """Refit some rows by solves of their own.

        η after one step, the step's length, η of their refits, and its change by the last step.
        """
        model = self.wide_model
        right = model.transpose[:, units].toarray().astype(np.float32)
        kappa = np.array([model.kappa])
        solved = model.solve(right, model.curvature[:, None], kappa, PROBE_RESIDUAL)
        # accurate to the square of the residual, or float32
        h = np.asarray(model.x[units].multiply(solved.T).sum(1)).ravel()
        eta, length = self.step(h, self.rows(units))
        with silence("divide", "invalid"):
            share = np.nan_to_num((eta - model.eta[units]) / h, posinf=0.0, neginf=0.0)
        index = units[:, None]
        rows = RefitRows(
            index,
            np.zeros(index.shape),
            np.ones(index.shape, bool),
            np.zeros(()),
            np.asarray(len(units)),
        )
        refits = settle_wide(model, rows, model.theta + share[:, None] * solved.T, steps=FEW)
        center = refits.center[:, 0]
        return eta, length, center, center - refits.before[:, 0]


@cached_on
def _probes(fit: Fit) -> Probes:
    return Probes(cast(WideModel, wide(fit)))


def refit_by_probes(
    fit: Fit, rows: RefitRows, rtol: float, steps: int = MAX_WIDE_NEWTON_STEPS
) -> RefitBatch:
    """Refit single rows by one step with leverages from probes, and to convergence if probes are
    too inaccurate.

    Their θ, computed on demand, is the result of `steps` Newton steps.
    """
    probes = _probes(fit)
    model = probes.wide_model
    before = model.products
    estimates = probes.upto(rtol)
    units = rows.index[:, 0]
    weight = rows.weight[:, 0]
    left_out = LeftOut(units, (1 - weight) * model.omega[units])
    losses, error, draws = probes.judge(estimates, left_out)
    lengths = np.nan_to_num(probes.step(estimates.h[units], left_out)[1], nan=np.inf)
    # rows that were refitted anyway
    place = np.full(model.units, -1)
    place[estimates.known_units] = np.arange(len(estimates.known_units))
    itself = (place[units] >= 0) & (weight == 0)
    place = place[units[itself]]
    losses[itself] = probes.loss(estimates.exact[place], units[itself])
    error[itself] = estimates.unsure[place] + 1e-9 * (1 + np.abs(losses[itself]))
    result = np.full(len(units), int(RESULTS.successful))
    # largest error of a loss, in standard deviations of losses, that is accepted
    inaccurate = np.flatnonzero(~(error <= 1.0 * estimates.deviation) & ~itself)
    # largest share of rows that are refitted because probes are too inaccurate for them
    most = max(RANDOM, int(0.02 * len(units)))
    inaccurate = inaccurate[largest_first(error[inaccurate])][:most]
    if inaccurate.size:
        exact = exactly(fit, rows.take(inaccurate))
        losses[inaccurate] = cast(NumpyArray, exact.scores)[:, 0]
        error[inaccurate] = exact.error
        result[inaccurate] = exact.result
    settled = np.union1d(np.flatnonzero(itself), inaccurate)
    draws[:, settled] = losses[settled]
    count = len(estimates.without) * SIZE
    return RefitBatch(
        lambda: settle_wide(model, rows, steps=steps).theta,
        error,
        result,
        np.where(rows.held, losses[:, None], 0.0),
        np.zeros(len(units), bool),
        step_length=lengths,
        # cost of a product of many vectors side by side, in gradients
        gradients=0.1 * (model.products - before),
        common_error=CommonError(np.where(rows.held, draws.T, 0.0), estimates.distance_left, count),
    )
