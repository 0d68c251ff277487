"""Latent Gaussian models: the marginal likelihood by Laplace's method, its gradient, and its
derivatives by weights.

    y_i ~ p(y | η_i, φ),   η = Xβ + A(ψ)u + offset,   u ~ N(0, Q(ψ)⁻¹),
    Q(ψ) = Σ_k c_k(ψ) Q_k sparse,   perhaps C u = 0

    F(θ, w) = Σ w_i ℓ_i(η_i) + ½ uᵀQu + ½ log|H| − ½ log|Q| + prior(ψ),   H = Q + Aᵀ diag(w ℓ″) A,
    θ = (β, ψ, φ)

at the mode u(θ, w) of the terms before the determinants; it is exact for a quadratic ℓ.
Determinants are those on C u = 0. A batch of θ and w has arrays `[lanes, …]`. With G = H⁻¹ (on C
u = 0), v_i = a_iᵀ G a_i, s = ½ w v ℓ‴, g = G Aᵀ s and t = A g, by implicit differentiation (the
derivative of the mode is −G ∂∇):

    ∂F/∂η = wℓ′ + s − wℓ″t,     ∂F/∂β = Xᵀ ∂F/∂η,     ∂F/∂w_i = ℓ_i + ½ v_i ℓ″_i − t_i ℓ′_i
    ∂F/∂c_k = ½ uᵀQ_k u + ½ tr(G Q_k) − gᵀQ_k u − ½ ∂log|Q|,
    ∂F/∂φ = Σ w_i (∂ℓ_i + ½ v_i ∂ℓ″_i − t_i ∂ℓ′_i)
    ∂F/∂a_i = (∂F/∂η)_i u − w_iℓ′_i g + w_iℓ″_i G a_i

Fields on graphs have a fixed A and a Q that depends on ψ. Random effects of several grouping
factors, nested or crossed, have Q = I, and Λ in A (Bates et al. 2015), so that a variance may be
zero. For another model, build `ResponseRows` (X, offsets, y, and ℓ from `responses`; φ is its τ), a
`Field` (the matrices Q_k and their coefficients as functions of ψ), the `Incidence` of rows and
latent variables, and `Latent` of these. Then

    mode = latent.mode(theta, weights, u0)
    everything at the mode: `mode.value`, `mode.u`, `mode.eta`, `mode.variance` [lanes, rows]
    latent.gradient(mode)                     ∂F/∂θ [lanes, params]
    latent.by_weight(mode)                    ∂F/∂w [lanes, rows]
    mode.solver.solve(b)                      G b, for covariances of u

θ is laid out as β, ψ, φ (`latent.sizes`). Weights are those of rows: a unit that is a cluster has
one weight, on all its rows.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

from ..._runtime import (
    Indices,
    NumpyArray,
    RowNumbers,
    ThreeArrays,
    TwoArrays,
    TwoCounts,
    UnitVectors,
    record,
    silence,
    slices,
)
from ...linalg import FrontalFactor, Pattern, cholesky, pattern
from ...objectives import Costs, PerLane, Points, State, ValueAndGradient, Vector, Weights
from .base import AbstractEngine, DesignRegressions, jacobian_by_differences
from .modes import MODE_ROUNDING, ValueAndSteps, newton
from .responses import ResponseRows

EntriesOfLanes = Float[NumpyArray, "lanes entries"]
LaneEffects = Float[NumpyArray, "lanes size"]

Rows = Float[NumpyArray, "lanes rows"]
Loadings = Float[NumpyArray, "couplings lanes rows"]


@record
class Field:
    """Gaussian field u ~ N(0, Q(ψ)⁻¹), Q = Σ_k c_k(ψ) Q_k, with C u = 0.

    The matrices Q_k are sparse, `[size, size]`. `coefficients` maps ψ `[lanes, psi]` to c `[lanes,
    terms]` and ∂c/∂ψ `[lanes, terms, psi]`. `logdet` maps ψ to log|Q| on C u = 0 `[lanes]` and its
    gradient `[lanes, psi]`; it is None if Q has to be factorised for it. `constraint` is C `[k,
    size]`. `prior` maps ψ and φ `[lanes, psi + phi]` to −log p and its gradient.
    """

    terms: Sequence["scipy.sparse.sparray"]
    coefficients: Callable[[NumpyArray], TwoArrays]
    logdet: Callable[[NumpyArray], TwoArrays] | None = None
    constraint: NumpyArray | None = None
    prior: Callable[[NumpyArray], TwoArrays] | None = None
    size: int = 1  # number of entries of ψ


class Solver:
    """Solver with G, the inverse of a batch of matrices M on C u = 0: G = M⁻¹ − E Eᵀ."""

    def __init__(self, factor: FrontalFactor, constraint: NumpyArray | None):
        self.factor = factor
        self.edge = None
        self.logdet = factor.logdet
        if constraint is None:
            return
        lanes = len(factor.logdet)
        solved = factor.solve(np.broadcast_to(constraint.T, (lanes, *constraint.T.shape)))
        inner = cholesky(constraint @ solved)
        constraint_logdet = np.linalg.slogdet(constraint @ constraint.T)[1]
        self.edge = np.linalg.solve(inner, solved.swapaxes(1, 2)).swapaxes(1, 2)
        self.logdet = (
            factor.logdet + 2 * np.log(np.einsum("lkk->lk", inner)).sum(1) - constraint_logdet
        )

    def solve(
        self, right: Float[NumpyArray, "lanes size columns"]
    ) -> Float[NumpyArray, "lanes size columns"]:
        """G b."""
        solution = self.factor.solve(right)
        if self.edge is None:
            return solution
        return solution - self.edge @ (self.edge.swapaxes(1, 2) @ right)

    @cached_property
    def entries(self) -> EntriesOfLanes:
        """Entries of G in the pattern."""
        entries = self.factor.inverse
        nonzeros = self.factor.pattern
        if self.edge is None:
            return entries
        return entries - np.einsum(
            "lek,lek->le", self.edge[:, nonzeros.row], self.edge[:, nonzeros.column]
        )


@record
class Incidence:
    """Latent variables of each row, `index` `[couplings, rows]`, none of them twice, and the
    pattern of H.
    """

    index: Int[NumpyArray, "couplings rows"]
    terms: list["scipy.sparse.csr_array"]
    first: Indices | None = None  # latent variables that are eliminated first

    @cached_property
    def gather(self) -> "scipy.sparse.csr_array":
        """Matrix `[size, couplings · rows]` that sums over the rows of each latent variable."""
        return _sums(self.index, self.terms[0].shape[0])

    @cached_property
    def pattern(self) -> Pattern:
        """Pattern of nonzero entries of H."""
        row_numbers = np.arange(self.index.shape[1])
        rows = scipy.sparse.csr_array(
            (np.ones(self.index.size), (self.index.ravel(), np.tile(row_numbers, len(self.index))))
        )
        rows.resize(self.terms[0].shape[0], len(row_numbers))
        return pattern(sum((abs(term) for term in self.terms), rows @ rows.T), self.first)

    @cached_property
    def values(self) -> Float[NumpyArray, "terms entries"]:
        """Entries of every Q_k."""
        return np.array([self.pattern.values(term) for term in self.terms])

    @cached_property
    def pairs(self) -> list[TwoCounts]:
        """Pairs of couplings of a row."""
        return [(i, j) for i in range(len(self.index)) for j in range(i + 1)]

    @cached_property
    def places(self) -> Int[NumpyArray, "pairs rows"]:
        """Entries of H to which each pair of couplings contributes."""
        return np.array([self.pattern.entries(self.index[i], self.index[j]) for i, j in self.pairs])

    @cached_property
    def gram(self) -> "scipy.sparse.csr_array":
        """Matrix `[entries, pairs · rows]` that sums over the pairs of each entry of H."""
        return _sums(self.places, len(self.pattern.row))


class ModeStart(NamedTuple):
    """Start of the search for the mode of a refit: a place, and a factor near it or none."""

    u: Float[NumpyArray, " size"]
    solver: Solver | None


@record
class LaplaceMode:
    """Batch of θ and w at u, most often its modes.

    Lanes without a mode have an infinite `value`.
    """

    latent: "Latent"
    refits: "LatentRefits"
    u: LaneEffects

    def starts(self, keep: bool) -> NumpyArray:
        """Return where searches near these modes begin; `keep` the factor of a single one."""
        starts = np.empty((len(self.u), 1), object)
        solver = None
        if keep and len(self.u) == 1:
            solver = self.solver
        for lane, u in enumerate(self.u):
            starts[lane, 0] = ModeStart(u, solver)
        return starts

    @cached_property
    def eta(self) -> Rows:
        """Linear predictors."""
        return self.refits.fixed + self.latent.matvec(self.refits, self.u)

    @cached_property
    def losses(self) -> tuple[Rows, Rows, Rows]:
        """wℓ, wℓ′ and wℓ″, of which the first lacks the part that does not depend on η."""
        orders = self.latent.data.response.orders(
            self.eta, self.refits.tau, self.latent.data.y, (0, 1, 2)
        )
        value, slope, curvature = (times(self.refits.weights, part) for part in orders)
        return value, slope, curvature

    @cached_property
    def precision_product(self) -> Float[NumpyArray, "lanes terms size"]:
        """Q_k u."""
        return np.stack([(term @ self.u.T).T for term in self.latent.incidence.terms], 1)

    @cached_property
    def solver(self) -> Solver:
        """G, with the curvatures at η."""
        return self.latent.solver(
            self.refits.precision + self.latent.gram(self.refits, self.losses[2])
        )

    @cached_property
    def inner(self) -> PerLane:
        """Objective that the mode minimises: Σ w ℓ + ½ uᵀQu."""
        quadratic = 0.5 * np.einsum("lk,lkm,lm->l", self.refits.c, self.precision_product, self.u)
        return self.losses[0].sum(1) + quadratic

    @cached_property
    def slope(self) -> LaneEffects:
        """Gradient of the inner objective, zero on C u = 0 at a mode."""
        loss_slope = self.latent.rmatvec(self.refits, self.losses[1])
        return loss_slope + np.einsum("lk,lkm->lm", self.refits.c, self.precision_product)

    @cached_property
    def solved_loadings(self) -> Loadings:
        """G a_i of each row, at the latent variables of the row."""
        a = self.refits.loadings
        places = self.latent.incidence.places
        solutions = np.zeros((len(a), *self.eta.shape))
        for place, (i, j) in zip(places, self.latent.incidence.pairs, strict=True):
            entries = np.take(self.solver.entries, place, axis=1)
            solutions[i] += entries * a[j]
            if i != j:
                solutions[j] += entries * a[i]
        return solutions

    @cached_property
    def variance(self) -> Rows:
        """Variances v_i of each row's a_iᵀu given the seen rows, about the mode."""
        return np.sum(self.refits.loadings * self.solved_loadings, 0)

    @cached_property
    def normaliser(self) -> tuple[PerLane, Float[NumpyArray, "lanes psi"]]:
        """log|Q| and its gradient."""
        field = self.latent.field
        incidence = self.latent.incidence
        if field.logdet is not None:
            return field.logdet(self.refits.psi)
        solver = self.latent.solver(self.refits.precision)
        traces = (solver.entries * incidence.pattern.times) @ incidence.values.T
        return solver.logdet, np.einsum("lk,lkq->lq", traces, self.refits.slopes)

    @cached_property
    def prior(self) -> tuple[PerLane, Float[NumpyArray, "lanes hyper"]]:
        """−log p(ψ, φ) and its gradient."""
        prior = self.latent.field.prior
        hyper = self.refits.theta[:, self.latent.sizes[0] :]
        if prior is None:
            return np.zeros(len(hyper)), np.zeros_like(hyper)
        return prior(hyper)

    @cached_property
    def value(self) -> PerLane:
        """The objective F."""
        constant = np.broadcast_to(self.latent.data.constant(self.refits.tau), self.eta.shape)
        value = self.inner + np.sum(times(self.refits.weights, constant), 1)
        value = value + 0.5 * (self.solver.logdet - self.normaliser[0]) + self.prior[0]
        return np.where(np.isfinite(value), value, np.inf)

    @cached_property
    def leverage_terms(self) -> tuple[Rows, LaneEffects, Rows]:
        """s, G Aᵀ s, and t = A G Aᵀ s."""
        data = self.latent.data
        if data.response.quadratic:
            return np.zeros_like(self.eta), np.zeros_like(self.u), np.zeros_like(self.eta)
        (third,) = data.response.orders(self.eta, self.refits.tau, data.y, (3,))
        s = 0.5 * self.variance * times(self.refits.weights, third)
        g = self.solver.solve(self.latent.rmatvec(self.refits, s)[..., None])[..., 0]
        return s, g, self.latent.matvec(self.refits, g)


class LatentRefits(NamedTuple):
    """Parts of a batch of θ and w.

    Weights of rows with their sizes, c and its slopes, entries of Q, Xβ + offset, and A.
    """

    theta: NumpyArray
    psi: NumpyArray
    tau: NumpyArray  # φ, `[phi, lanes, 1]`
    weights: Rows
    c: NumpyArray
    slopes: NumpyArray
    precision: NumpyArray
    fixed: Rows
    loadings: Loadings


@record
class Latent:
    """Latent Gaussian model: rows, the latent variables of each of them, and a field.

    A is one at these, unless `loadings` maps ψ to its entries `[couplings, lanes, rows]`, and
    `by_psi` the slopes in these to slopes in ψ `[lanes, psi]`.
    """

    data: ResponseRows
    incidence: Incidence
    field: Field
    loadings: Callable[[NumpyArray], Loadings] | None = None
    by_psi: Callable[[Loadings], NumpyArray] | None = None

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of entries of β, ψ and φ."""
        return self.data.design.shape[1], self.field.size, self.data.response.num_shared

    def matvec(self, refits: LatentRefits, u: LaneEffects) -> Rows:
        """A u."""
        product = np.zeros_like(refits.fixed)
        for index, loadings in zip(self.incidence.index, refits.loadings, strict=True):
            product += loadings * np.take(u, index, axis=1)
        return product

    def rmatvec(self, refits: LatentRefits, r: Rows) -> LaneEffects:
        """Aᵀ r."""
        return (self.incidence.gather @ np.concatenate(list(refits.loadings * r), -1).T).T

    def gram(self, refits: LatentRefits, curvature: Rows) -> EntriesOfLanes:
        """Aᵀ diag(r) A."""
        a = refits.loadings
        products = np.concatenate([a[i] * a[j] * curvature for i, j in self.incidence.pairs], -1)
        return (self.incidence.gram @ products.T).T

    def columns(self, refits: LatentRefits, rows: Indices) -> Float[NumpyArray, "1 size some"]:
        """Aᵀ of some rows, for a batch of one."""
        columns = np.zeros((1, self.incidence.gather.shape[0], len(rows)))
        for index, loadings in zip(self.incidence.index, refits.loadings, strict=True):
            columns[0, index[rows], np.arange(len(rows))] = loadings[0, rows]
        return columns

    def solver(self, values: EntriesOfLanes) -> Solver:
        """Factorise a batch of matrices."""
        return Solver(self.incidence.pattern.factor(values), self.field.constraint)

    def refits(self, theta: Points, weights: Rows) -> LatentRefits:
        """Split a batch of θ and w into its parts."""
        p, q, _ = self.sizes
        psi = theta[:, p : p + q]
        c, slopes = self.field.coefficients(psi)
        if self.loadings is None:
            loadings = np.ones((len(self.incidence.index), 1, len(self.data.y)))
        else:
            loadings = self.loadings(psi)
        return LatentRefits(
            theta,
            psi,
            theta[:, p + q :].T[..., None],
            weights * self.data.size,
            c,
            slopes,
            c @ self.incidence.values,
            self.data.offset + theta[:, :p] @ self.data.design.T,
            loadings,
        )

    def mode(self, theta: Points, weights: Rows, start: State = None) -> LaplaceMode:
        """Find the modes by Newton's method from `start`, as of `LaplaceMode.starts`, or from
        zero.
        """
        quadratic = self.data.response.quadratic
        factor_reuse = 0.1
        # steps with halvings; where more are needed F is far from its minimum, and counts as
        # infinite
        max_steps = 30
        solver = None
        u = np.zeros((len(theta), self.incidence.gather.shape[0]))
        if start is not None:
            places, solvers = zip(*start[:, 0], strict=True)
            u = np.nan_to_num(np.array(places), posinf=0.0, neginf=0.0)
            solver = solvers[0] if len(u) == 1 else None
        with silence("all"):
            refits = self.refits(theta, weights)

            def look(u: NumpyArray) -> ValueAndSteps:
                point = LaplaceMode(self, refits, u.T)

                def steps(fresh: bool) -> NumpyArray:
                    nonlocal solver
                    if solver is None or (fresh and not quadratic):
                        solver = point.solver
                    if (
                        quadratic
                        and self.loadings is not None
                        and np.abs(point.slope).max(initial=0.0) <= MODE_ROUNDING
                    ):
                        # as H is the identity or more, steps are no longer than slopes
                        return 0.0 * u
                    return solver.solve(point.slope[..., None])[..., 0].T

                return point.inner, steps

            u, ended = newton(look, u.T, factor_reuse, max_steps, solver is None)
            mode = LaplaceMode(self, refits, u.T)
            if quadratic:
                vars(mode)["solver"] = solver
            vars(mode)["value"] = np.where(ended, mode.value, np.inf)
            return mode

    def gradient(self, mode: LaplaceMode) -> Points:
        """∂F/∂θ."""
        refits = mode.refits
        data = self.data
        response = self.data.response
        with silence("all"):
            s, g, t = mode.leverage_terms
            _, first, second = mode.losses
            by_eta = first + s - second * t
            traces = (mode.solver.entries * self.incidence.pattern.times) @ self.incidence.values.T
            by_term = (
                np.einsum("lkm,lm->lk", mode.precision_product, 0.5 * mode.u - g) + 0.5 * traces
            )
            hyper_slopes = np.zeros((len(mode.u), sum(self.sizes[1:])))
            hyper_slopes[:, : self.field.size] = (
                np.einsum("lk,lkq->lq", by_term, refits.slopes) - 0.5 * mode.normaliser[1]
            )
            if self.by_psi is not None:
                index = self.incidence.index
                loading_slopes = [
                    by_eta * np.take(mode.u, k, axis=1)
                    - first * np.take(g, k, axis=1)
                    + second * solved
                    for k, solved in zip(index, mode.solved_loadings, strict=True)
                ]
                hyper_slopes[:, : self.field.size] += self.by_psi(np.array(loading_slopes))
            if response.num_shared:
                value, slope, curvature = response.shared_derivatives(
                    mode.eta, refits.tau, data.y, (0, 1, 2)
                )
                value = (
                    value
                    + response.constant(refits.tau, data.y)[1]
                    + 0.5 * mode.variance * curvature
                    - t * slope
                )
                hyper_slopes[:, self.field.size :] = times(refits.weights, value).sum(2).T
            return np.concatenate([by_eta @ data.design, hyper_slopes + mode.prior[1]], 1)

    def covariance(self, mode: LaplaceMode, rows: Indices) -> Float[NumpyArray, "some some"]:
        """Compute A G Aᵀ of some rows, for a batch of one."""
        # columns of a covariance that are solved for together: about the size of a cache
        covariance_columns = 64
        if len(rows) <= covariance_columns and mode.solver.edge is None:
            half = mode.solver.factor.whiten(self.columns(mode.refits, rows))[0]
            return half.T @ half
        blocks = []
        for part in slices(len(rows), covariance_columns):
            solved = mode.solver.solve(self.columns(mode.refits, rows[part]))[0]
            parts = zip(self.incidence.index, mode.refits.loadings, strict=True)
            blocks.append(
                sum(loadings[0, rows, None] * solved[index[rows]] for index, loadings in parts)
            )
        return np.concatenate(blocks, 1)

    def by_weight(self, mode: LaplaceMode) -> Rows:
        """∂F/∂w of every row."""
        data = self.data
        response = self.data.response
        with silence("all"):
            _, _, t = mode.leverage_terms
            value, slope, curvature = response.orders(mode.eta, mode.refits.tau, data.y, (0, 1, 2))
            value = value + response.constant(mode.refits.tau, data.y)[0] + data.fixed
            return data.size * (value + 0.5 * mode.variance * curvature - t * slope)


@record
class LaplaceEngine(AbstractEngine):
    """F(θ, w) of a latent Gaussian model.

    `unit` is the unit of each row, −1 for rows whose response is missing.
    """

    latent: Latent
    unit: RowNumbers
    num_units: int

    @property
    def data(self) -> ResponseRows:
        return self.latent.data

    def mode(self, theta: Points, weights: Weights, state: State = None) -> LaplaceMode:
        """Refits at their modes."""
        return self.latent.mode(theta, np.where(self.unit >= 0, weights[:, self.unit], 0.0), state)

    def full_mode(self, theta: Vector) -> LaplaceMode:
        """Mode given all data."""
        return self.mode(theta[None], np.ones((1, self.num_units)))

    def look(self, theta: Points, weights: Weights, state: State) -> ValueAndGradient:
        mode = self.mode(theta, weights, state)
        return mode.value, self.latent.gradient(mode), mode.starts(self.keeps_factors)

    @property
    def keeps_factors(self) -> bool:
        """Whether factors are kept to begin from, of as many refits as there are units."""
        kept_entries = 2**27  # numbers in them: a gigabyte
        return (
            not self.data.response.quadratic
            and self.latent.incidence.pattern.length * self.num_units <= kept_entries
        )

    def jacobian(self, theta: Vector) -> UnitVectors:
        rows = np.flatnonzero(self.unit >= 0)

        def by_weight(
            theta: Points, state: State
        ) -> tuple[Float[NumpyArray, "points units"], State]:
            mode = self.mode(theta, np.ones((len(theta), self.num_units)), state)
            row_slopes = self.latent.by_weight(mode)[:, rows]
            return np.array(
                [np.bincount(self.unit[rows], slopes, self.num_units) for slopes in row_slopes]
            ), mode.starts(False)

        return jacobian_by_differences(by_weight, theta)

    def predictors(self, theta: Points, weights: Weights, state: State = None) -> ThreeArrays:
        mode = self.mode(theta, weights, state)
        return (
            mode.eta + np.where(np.isfinite(mode.value), 0.0, np.nan)[:, None],
            mode.variance,
            mode.refits.tau,
        )

    def covariances(self, theta: Vector) -> TwoArrays:
        mode = self.full_mode(theta)
        return self.latent.covariance(mode, np.arange(len(self.unit))), mode.losses[2][0]

    def regressions(
        self, theta: Points, weights: Weights, state: State = None
    ) -> DesignRegressions:
        mode = self.mode(theta, weights, state)
        X = self.data.design
        weight = mode.losses[2]
        columns = X.T[:, None]
        cross_products = np.empty((*mode.u.shape, len(columns)))
        for k, column in enumerate(columns):
            cross_products[..., k] = self.latent.rmatvec(mode.refits, weight * column)
        solved = np.moveaxis(mode.solver.solve(cross_products), -1, 0)
        effects = np.stack([np.take(solved, k, axis=-1) for k in self.latent.incidence.index])
        residual = columns - np.sum(mode.refits.loadings[:, None] * effects, 0)
        return DesignRegressions(mode.eta, X, self.unit, 1.0, weight, effects, residual)

    def by_loadings(self, slopes: Loadings) -> Float[NumpyArray, "lanes psi"]:
        # a field has no parameters in A
        return self.latent.by_psi(slopes)

    @property
    def costs(self) -> Costs:
        length = max(self.latent.incidence.pattern.length, 1)
        # numbers in the factors of a batch, beyond which larger batches save no time
        factor_entries = 2**18
        return Costs(lanes=max(1, factor_entries // length), work=20.0 * length)


def times(weights: Rows, values: NumpyArray) -> NumpyArray:
    """Multiply by the weights of rows; rows of weight zero give zero, whatever their values."""
    if weights.all():
        return weights * values
    return np.where(weights == 0, 0.0, weights * values)


def _sums(places: Int[NumpyArray, "kinds rows"], count: int) -> "scipy.sparse.csr_array":
    """Matrix that sums numbers at the same place."""
    columns = np.arange(places.size)
    return scipy.sparse.csr_array(
        (np.ones(places.size), (places.ravel(), columns)), shape=(count, places.size)
    )
