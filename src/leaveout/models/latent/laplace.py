"""Latent Gaussian models: the marginal likelihood by Laplace's method, its gradient, and its derivatives by weights.

    y_i ~ p(y | η_i, φ),   η = Xβ + Zu + offset,   u ~ N(0, Q(ψ)⁻¹),   Q(ψ) = Σ_k c_k(ψ) Q_k sparse,   perhaps A u = 0

    F(θ, w) = Σ w_i ℓ_i(η_i) + ½ uᵀQu + ½ log|H| − ½ log|Q| + prior(ψ),   H = Q + Zᵀ diag(w ℓ″) Z,   θ = (β, ψ, φ)

at the mode u(θ, w) of the terms before the determinants; it is exact for a quadratic ℓ. Determinants are those on A u = 0. A
batch of θ and w has arrays `[lanes, …]`. With G = H⁻¹ (on A u = 0), v_i = z_iᵀ G z_i, s = ½ w v ℓ‴, g = G Zᵀ s and a = Z g, by
implicit differentiation (the derivative of the mode is −G ∂∇):

    ∂F/∂β = Xᵀ(wℓ′ + s − wℓ″a),     ∂F/∂w_i = ℓ_i + ½ v_i ℓ″_i − a_i ℓ′_i
    ∂F/∂c_k = ½ uᵀQ_k u + ½ tr(G Q_k) − gᵀQ_k u − ½ ∂log|Q|,     ∂F/∂φ = Σ w_i (∂ℓ_i + ½ v_i ∂ℓ″_i − a_i ∂ℓ′_i)

For another model, build `ResponseRows` (X, offsets, y, and ℓ from `responses`; φ is its τ), a `Field` (the matrices Q_k and
their coefficients as functions of ψ), and `Latent(data, Z, field)`. Then

    at = latent.mode(theta, weights, u0)      everything at the mode: `at.value`, `at.u`, `at.eta`, `at.variance` [lanes, rows]
    latent.gradient(at)                       ∂F/∂θ [lanes, params]
    latent.by_weight(at)                      ∂F/∂w [lanes, rows]
    at.solve(b)                               G b, for covariances of u

θ is laid out as β, ψ, φ (`latent.sizes`). Weights are those of rows: a unit that is a cluster has one weight, on all its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from ...linalg.sparse_cholesky import FrontalFactor, Pattern, pattern
from .responses import ResponseRows

HALVINGS = 30

Lanes = Float[np.ndarray, " lanes"]
Rows = Float[np.ndarray, "lanes rows"]


class Losses(NamedTuple):
    """Losses ℓ(η) of rows with three derivatives `[lanes, rows]`, and derivatives of ℓ, ℓ′, ℓ″ in φ `[phi, lanes, rows]`."""

    value: Rows
    first: Rows
    second: Rows
    third: Rows
    shared_derivatives: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Field:
    """Gaussian field u ~ N(0, Q(ψ)⁻¹), Q = Σ_k c_k(ψ) Q_k, with A u = 0.

    The matrices Q_k are sparse, `[size, size]`. `coefficients` maps ψ `[lanes, psi]` to c `[lanes, terms]` and ∂c/∂ψ `[lanes,
    terms, psi]`. `logdet` maps ψ to log|Q| on A u = 0 `[lanes]` and its gradient `[lanes, psi]`; it is None if Q has to be
    factorised for it. `constraint` is A `[k, size]`. `prior` maps ψ and φ `[lanes, psi + phi]` to −log p and its gradient.
    """

    terms: Sequence["scipy.sparse.sparray"]
    coefficients: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    logdet: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    constraint: np.ndarray | None = None
    prior: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    size: int = 1  # number of entries of ψ


class Solver:
    """Solver with G, the inverse of a batch of matrices M on A u = 0: G = M⁻¹ − E Eᵀ."""

    factor: FrontalFactor
    pattern: Pattern
    edge: np.ndarray | None
    logdet: np.ndarray

    def __init__(self, factor: FrontalFactor, constraint: np.ndarray | None):
        self.factor, self.pattern, self.edge, self.logdet = factor, factor.pattern, None, factor.logdet
        if constraint is None:
            return
        lanes = len(factor.logdet)
        turned = factor.solve(np.broadcast_to(constraint.T, (lanes, *constraint.T.shape)))
        inner = _cholesky(constraint @ turned)
        own = np.linalg.slogdet(constraint @ constraint.T)[1]
        self.edge = np.linalg.solve(inner, turned.swapaxes(1, 2)).swapaxes(1, 2)
        self.logdet = factor.logdet + 2 * np.log(np.einsum("lkk->lk", inner)).sum(1) - own

    def solve(self, right: Float[np.ndarray, "lanes size"]) -> Float[np.ndarray, "lanes size"]:
        """G b."""
        found = self.factor.solve(right[..., None])[..., 0]
        return (
            found
            if self.edge is None
            else found - np.einsum("lmk,lk->lm", self.edge, np.einsum("lmk,lm->lk", self.edge, right))
        )

    @cached_property
    def entries(self) -> Float[np.ndarray, "lanes entries"]:
        """Entries of G in the pattern."""
        found = self.factor.inverse
        if self.edge is None:
            return found
        return found - np.einsum("lek,lek->le", self.edge[:, self.pattern.row], self.edge[:, self.pattern.column])


class LaplaceMode:
    """Batch at its modes; lanes without a mode have an infinite `value`."""

    latent: "Latent"
    theta: np.ndarray
    weights: Rows
    u: np.ndarray
    without_mode: np.ndarray
    beta: np.ndarray
    psi: np.ndarray
    phi: np.ndarray
    c: np.ndarray
    slopes: np.ndarray
    fixed: np.ndarray

    def __init__(self, latent: "Latent", theta: np.ndarray, weights: Rows, u: Float[np.ndarray, "lanes size"]):
        self.latent, self.theta, self.weights, self.u = latent, theta, weights, u
        self.without_mode = np.zeros(len(u), bool)  # lanes without a mode
        self.beta, self.psi, self.phi = latent.split(theta)
        self.c, self.slopes = latent.field.coefficients(self.psi)
        self.fixed = latent.data.offset + self.beta @ latent.data.design.T

    @cached_property
    def eta(self) -> Rows:
        """Linear predictors."""
        return self.fixed + self.latent.spread(self.u)

    @cached_property
    def losses(self) -> Losses:
        return self.latent.losses(self.eta, self.phi)

    @cached_property
    def precision(self) -> Float[np.ndarray, "lanes entries"]:
        """Entries of Q."""
        return self.c @ self.latent.values

    @cached_property
    def precision_product(self) -> Float[np.ndarray, "lanes terms size"]:
        """Q_k u."""
        return np.stack([(term @ self.u.T).T for term in self.latent.terms], axis=1)

    @cached_property
    def solver(self) -> Solver:
        """G, with the curvatures at η."""
        curvature = _times(self.weights, self.losses.second)
        return self.latent.solver(self.precision + (self.latent.gram @ curvature.T).T)

    def solve(self, right: Float[np.ndarray, "lanes size"]) -> Float[np.ndarray, "lanes size"]:
        """G b."""
        return self.solver.solve(right)

    @cached_property
    def inner(self) -> Lanes:
        """Objective that the mode minimises: Σ w ℓ + ½ uᵀQu."""
        quadratic = 0.5 * np.einsum("lk,lkm,lm->l", self.c, self.precision_product, self.u)
        return _times(self.weights, self.losses.value).sum(1) + quadratic

    @cached_property
    def slope(self) -> Float[np.ndarray, "lanes size"]:
        """Gradient of the inner objective, zero on A u = 0 at a mode."""
        own = self.latent.gather(_times(self.weights, self.losses.first))
        return own + np.einsum("lk,lkm->lm", self.c, self.precision_product)

    @cached_property
    def variance(self) -> Rows:
        """Variances v_i of each row's z_iᵀu given the seen rows, about the mode."""
        return (self.latent.gram_twice.T @ self.solver.entries.T).T

    @cached_property
    def normaliser(self) -> tuple[Lanes, Float[np.ndarray, "lanes psi"]]:
        """log|Q| and its gradient."""
        field = self.latent.field
        if field.logdet is not None:
            return field.logdet(self.psi)
        found = self.latent.solver(self.precision)
        traces = (found.entries * self.latent.pattern.times) @ self.latent.values.T
        return found.logdet, np.einsum("lk,lkq->lq", traces, self.slopes)

    @cached_property
    def prior(self) -> tuple[Lanes, Float[np.ndarray, "lanes hyper"]]:
        """−log p(ψ, φ) and its gradient."""
        prior, rest = self.latent.field.prior, self.theta[:, self.beta.shape[1] :]
        return (np.zeros(len(rest)), np.zeros_like(rest)) if prior is None else prior(rest)

    @cached_property
    def value(self) -> Lanes:
        """The objective F."""
        found = self.inner + 0.5 * (self.solver.logdet - self.normaliser[0]) + self.prior[0]
        return np.where(np.isfinite(found) & ~self.without_mode, found, np.inf)

    @cached_property
    def leverage_terms(self) -> tuple[Rows, Float[np.ndarray, "lanes size"], Rows]:
        """s, G Zᵀ s, and a = Z G Zᵀ s."""
        s = 0.5 * self.variance * _times(self.weights, self.losses.third)
        back = self.solve(self.latent.gather(s))
        return s, back, self.latent.spread(back)


@dataclass(frozen=True, eq=False)
class Latent:
    """Latent Gaussian model: rows, Z `[rows, size]` (sparse), and a field."""

    data: ResponseRows
    Z: "scipy.sparse.csr_array"
    field: Field

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of entries of β, ψ and φ."""
        return self.data.design.shape[1], self.field.size, self.data.response.own

    def split(self, theta: Float[np.ndarray, "lanes params"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """β, ψ and φ."""
        p, q, _ = self.sizes
        return theta[:, :p], theta[:, p : p + q], theta[:, p + q :]

    @cached_property
    def terms(self) -> list["scipy.sparse.csr_array"]:
        return [scipy.sparse.csr_array(term) for term in self.field.terms]

    @cached_property
    def pattern(self) -> Pattern:
        """Pattern of nonzero entries of H."""
        return pattern(sum((abs(term) for term in self.terms), abs(self.Z).T @ abs(self.Z)))

    @cached_property
    def values(self) -> Float[np.ndarray, "terms entries"]:
        """Entries of every Q_k."""
        return np.array([self.pattern.values(term) for term in self.terms])

    @cached_property
    def gram(self) -> "scipy.sparse.csr_array":
        """Matrix `[entries, rows]` that maps curvatures of rows to entries of H."""
        counts = np.diff(self.Z.indptr)
        places, numbers, rows = [], [], []
        for i in range(int(counts.max(initial=0))):
            for j in range(i + 1):
                some = np.flatnonzero(counts > i)
                a, b = self.Z.indptr[some] + i, self.Z.indptr[some] + j
                places.append(self.pattern.entries(self.Z.indices[a].astype(np.int64), self.Z.indices[b].astype(np.int64)))
                numbers.append(self.Z.data[a] * self.Z.data[b])
                rows.append(some)
        shape = len(self.pattern.row), len(counts)
        if not places:
            return scipy.sparse.csr_array(shape)
        at = np.concatenate(places), np.concatenate(rows)
        return scipy.sparse.csr_array((np.concatenate(numbers), at), shape=shape)

    @cached_property
    def gram_twice(self) -> "scipy.sparse.csr_array":
        """Copy of `gram` in which entries off the diagonal count twice."""
        return scipy.sparse.csr_array(scipy.sparse.diags_array(self.pattern.times) @ self.gram)

    def losses(self, eta: np.ndarray, phi: Float[np.ndarray, "lanes phi"], some: np.ndarray | None = None) -> Losses:
        """Compute ℓ and its derivatives in η and φ; `some` are numbers of rows, in the shape of η."""
        own, tau = self.data.response, phi.T.reshape(-1, len(phi), *[1] * (eta.ndim - 1))
        y, size, fixed = (part if some is None else part[some] for part in (self.data.y, self.data.size, self.data.fixed))
        value, *slopes = own.orders(eta, tau, y, (0, 1, 2, 3))
        constant, by_phi = own.constant(tau, y)
        first, second, third = (size * slope for slope in slopes)
        found = Losses(size * (value + constant + fixed), first, second, third)
        if not own.own:
            return found
        shared = own.shared_derivatives(eta, tau, y, (0, 1, 2))
        return found._replace(shared_derivatives=(size * (shared[0] + by_phi), size * shared[1], size * shared[2]))

    def spread(self, u: Float[np.ndarray, "lanes size"]) -> Rows:
        """Z u."""
        return (self.Z @ u.T).T

    def gather(self, each: Rows) -> Float[np.ndarray, "lanes size"]:
        """Zᵀ r."""
        return (self.Z.T @ each.T).T

    def solver(self, values: Float[np.ndarray, "lanes entries"]) -> Solver:
        """Factorise a batch of matrices."""
        return Solver(self.pattern.factor(values), self.field.constraint)

    def mode(self, theta: Float[np.ndarray, "lanes params"], weights: Rows, start: np.ndarray | None = None) -> LaplaceMode:
        """Find the modes by Newton's method from `start`, or from zero.

        A factor serves for as long as its steps shrink quickly. Steps are halved until the function falls.
        """
        u = np.zeros((len(theta), self.Z.shape[1])) if start is None else np.array(start)
        max_mode_steps = 60  # largest number of Newton steps to a mode
        mode_factor_reuse = 0.1  # ratio of successive steps above which the factor is computed anew
        predictor_rounding = 1e-12  # steps of linear predictors, relative to one, that are rounding
        with np.errstate(all="ignore"):
            at = LaplaceMode(self, theta, weights, np.where(np.isfinite(u), u, 0.0))
            solver, before = at.solver, None  # a step with a new factor leaves about its square
            for _ in range(max_mode_steps):
                step = -solver.solve(at.slope)
                size = np.abs(self.spread(step) / (1 + np.abs(at.eta))).max(1, initial=0.0)
                there = ~np.isfinite(size) | (size <= predictor_rounding)
                ratio = size if before is None else size / np.maximum(before, 1e-300)
                if before is not None and (ratio > mode_factor_reuse)[~there].any():
                    solver, before = at.solver, None
                    continue
                at = _backtrack(at, np.where(there[:, None], 0.0, step))
                there |= size * np.minimum(ratio, 1.0) <= predictor_rounding
                if there.all():
                    break
                before = size
            at.without_mode = ~(there & np.isfinite(size))
            at.value  # noqa: B018  computed here, where overflow is ignored
            return at

    def gradient(self, at: LaplaceMode) -> Float[np.ndarray, "lanes params"]:
        """∂F/∂θ."""
        with np.errstate(all="ignore"):
            s, back, a = at.leverage_terms
            first, second = (_times(at.weights, part) for part in (at.losses.first, at.losses.second))
            by_beta = (first + s - second * a) @ self.data.design
            traces = (at.solver.entries * self.pattern.times) @ self.values.T
            by_term = np.einsum("lkm,lm->lk", at.precision_product, 0.5 * at.u - back) + 0.5 * traces
            by_psi = np.einsum("lk,lkq->lq", by_term, at.slopes) - 0.5 * at.normaliser[1]
            found = [by_beta, by_psi]
            if at.losses.shared_derivatives is not None:
                value, slope, curvature = at.losses.shared_derivatives
                found.append(_times(at.weights, value + 0.5 * at.variance * curvature - a * slope).sum(2).T)
            out = np.concatenate(found, axis=1)
            out[:, by_beta.shape[1] :] += at.prior[1]
            return out

    def covariance(self, at: LaplaceMode) -> Float[np.ndarray, "rows rows"]:
        """Compute Z G Zᵀ of all rows, for a batch of one."""
        covariance_columns = 64  # columns of a covariance that are solved for together: about the size of a cache
        solver, some = (
            at.solver,
            [self.Z[k : k + covariance_columns].toarray().T[None] for k in range(0, self.Z.shape[0], covariance_columns)],
        )
        found = np.concatenate([self.Z @ solver.factor.solve(part)[0] for part in some], axis=1)
        if solver.edge is not None:
            edge = self.Z @ solver.edge[0]
            found -= edge @ edge.T
        return found

    def by_weight(self, at: LaplaceMode) -> Rows:
        """∂F/∂w of every row."""
        with np.errstate(all="ignore"):
            _, _, a = at.leverage_terms
            return at.losses.value + 0.5 * at.variance * at.losses.second - a * at.losses.first


def _backtrack(at: LaplaceMode, step: Float[np.ndarray, "lanes size"]) -> LaplaceMode:
    """Take the steps, each halved until the objective falls, or does not rise beyond rounding."""
    share, allowed = np.ones((len(step), 1)), 1e-12 * (1 + np.abs(at.inner))
    for _ in range(HALVINGS):
        new = LaplaceMode(at.latent, at.theta, at.weights, at.u + share * step)
        worse = ~(new.inner <= at.inner + allowed)
        if not worse.any():
            break
        share[worse] /= 2
    return new


def _times(weights: Rows, each: np.ndarray) -> np.ndarray:
    """Multiply by the weights of rows; rows of weight zero give zero, whatever their values."""
    return np.where(weights == 0, 0.0, weights * each)


def _cholesky(matrices: Float[np.ndarray, "lanes k k"]) -> Float[np.ndarray, "lanes k k"]:
    fine = np.isfinite(matrices).all((1, 2)) & (np.einsum("lkk->lk", matrices) > 0).all(1)
    out = np.full_like(matrices, np.nan)
    out[fine] = np.linalg.cholesky(matrices[fine])
    return out
