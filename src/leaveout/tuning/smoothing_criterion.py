"""Criteria that choose smoothing parameters, and their exact gradients in ρ = log λ, by arrays alone.

    F(θ, w; ρ) = Σ_n w_n ω_n ℓ_n(x_nᵀθ) + ½ θᵀP θ,   P = Σ_j e^ρ_j S_j,       θ̂ = argmin F(·, 1; ρ),   H = ∇²F(θ̂, 1)

In neighbourhood cross-validation (S. N. Wood, arXiv 2404.16490) every refit o is one Newton step, θ_o = θ̂ + q_o:

    V = Σ_o Σ_{s held in o} share_s ℓ_s(x_sᵀθ_o),      p_o = H_o⁻¹ ∂V/∂θ_o,      H_o = ∇²F(θ̂, w_o)
    dV = ⟨dP, G⟩,      G = H⁻¹c θ̂ᵀ − Σ_o p_o θ_oᵀ,      c = Σ_n ω_n ℓ‴_n s_n x_n,      s_n = Σ_o w_on (x_nᵀp_o)(x_nᵀq_o)

(`hypergradient` has this for every plan and model, fit by fit. Here θ̂ is kept from one ρ to the next, and no errors are
estimated.) The derivative by a unit's weight in every fit is, with m_n = Σ_o w_on x_nᵀp_o,

    ∂V/∂w_n = Σ share_s ℓ_s [s is n] − ω_n (ℓ′_n m_n + ℓ″_n s_n) + ω_n ℓ′_n x_nᵀH⁻¹c

Restricted likelihood (Wood, JRSS B 73, 2011), whose gradient also has that of log|H| through θ̂:

    R = F/φ + ½ log|H| − ½ log|P|₊ + ½ (n − m) log φ,      φ = 1, or of squared losses 2F/(n − m), m the unpenalised
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from ..linalg.design import weight_terms
from ..optimize.hessian_factor import IndefiniteHessianError
from ..plans.plan import Batch, Plan

Array = np.ndarray


class CriterionLook(NamedTuple):
    """Criterion with its slope in ρ, held-out losses by the plan's entries (NaN if not scored), and ∂V/∂w of every unit."""

    value: float
    slope: Float[Array, " smooths"]
    losses: Float[Array, " entries"] | None = None
    by_weight: Float[Array, " units"] | None = None


@dataclass(frozen=True, eq=False)
class PenalisedRows:
    """Rows, losses and penalties of F; `spans` are the coefficients on which each penalty acts."""

    x: Float[Array, "units params"]
    offset: Any
    y: Float[Array, " units"]
    weight: Float[Array, " units"]
    loss: Any
    matrices: tuple[Array, ...]
    spans: tuple[tuple[int, int], ...]

    def penalty(self, rho: Float[Array, " smooths"]) -> Float[Array, "params params"]:
        total = np.zeros((self.x.shape[1],) * 2)
        for strength, matrix, (a, b) in zip(np.exp(rho), self.matrices, self.spans, strict=True):
            total[a:b, a:b] += strength * matrix
        return total

    def along(self, rho: Float[Array, " smooths"], G: Float[Array, "params params"]) -> Float[Array, " smooths"]:
        """Compute ⟨∂P/∂ρ_j, G⟩."""
        each = [np.sum(matrix * G[a:b, a:b]) for matrix, (a, b) in zip(self.matrices, self.spans, strict=True)]
        return np.exp(rho) * np.array(each)

    def derivatives(self, eta: Array, orders: tuple[int, ...], units: Any = slice(None)) -> tuple[Array, ...]:
        return self.loss.derivatives(eta, self.y[units], orders)

    def eta(self, theta: Float[Array, " params"]) -> Float[Array, " units"]:
        return self.x @ theta + self.offset


@dataclass(frozen=True, eq=False)
class SmoothingMinimum:
    """θ̂ at some ρ: the predictors there, ω ℓ′, ω ℓ″, and L⁻¹, H = L Lᵀ."""

    theta: Float[Array, " params"]
    value: float
    penalty: Float[Array, "params params"]
    eta: Float[Array, " units"]
    slope: Float[Array, " units"]
    curvature: Float[Array, " units"]
    root: Float[Array, "params params"]
    logdet: float

    def solve(self, v: Array) -> Array:
        return self.root.T @ (self.root @ v)


def minimum(model: PenalisedRows, rho: Float[Array, " smooths"], theta: Float[Array, " params"]) -> SmoothingMinimum:
    """Minimise F by Newton's method with halved steps, from θ.

    Raises IndefiniteHessianError if H is singular, RuntimeError if F has no minimum.
    """
    penalty = model.penalty(rho)

    def at(theta: Array) -> tuple[Array, float]:
        eta = model.eta(theta)
        with np.errstate(all="ignore"):
            value = float(np.sum(weight_terms(model.weight, model.derivatives(eta, (0,))[0])) + 0.5 * theta @ penalty @ theta)
        return eta, value if np.isfinite(value) else np.inf

    (eta, value), before = at(theta), np.inf
    # largest number of Newton steps
    for _ in range(100):
        slope, curvature = (weight_terms(model.weight, part) for part in model.derivatives(eta, (1, 2)))
        H = (model.x.T * curvature) @ model.x + penalty
        root, logdet = _root(H)
        whitened = root @ (model.x.T @ slope + penalty @ theta)
        step, gain, size = root.T @ whitened, float(whitened @ whitened), 1.0
        # squared decrement, relative to F, from which Newton steps converge quadratically to rounding
        near = gain <= 1e-10 * max(1.0, abs(value))
        if near and gain > before / 4:  # rounding, which heavy penalties amplify, allows no closer approach
            return SmoothingMinimum(theta, value, penalty, eta, slope, curvature, root, logdet)
        while size > 1e-10:
            new, lower = at(theta - size * step)
            if near or lower <= value - 1e-4 * size * gain:
                break
            size /= 2
        theta, eta, value, before = theta - size * step, new, lower, gain
    raise RuntimeError(
        "smooth: no minimum was reached at some λ; the data may be separated: a larger low end of λ keeps off it."
    )


def _root(H: Array) -> tuple[Array, float]:
    """Compute L⁻¹ and log|H|, judged with the diagonal scaled to one."""
    size = np.sqrt(np.maximum(H.diagonal(), 1e-300))
    try:
        factor = np.linalg.cholesky(H / np.multiply.outer(size, size))
    except np.linalg.LinAlgError:
        factor = np.zeros((1, 1))
    if factor.diagonal().min() ** 2 < 1e-13:
        raise IndefiniteHessianError(
            "smooth: the terms repeat one another, or the rows do not determine them. A te() holds what s() of its columns "
            "say: take ti(). s(x, by=z) of numbers z holds what z alone says: leave z out of the other terms."
        )
    return scipy.linalg.lapack.dtrtri(factor, lower=1)[0] / size, 2 * float(np.sum(np.log(factor.diagonal() * size)))


@dataclass(eq=False)
class Neighbourhoods:
    """Neighbourhood cross-validation V of a plan; each ρ starts from θ̂ of the one before."""

    model: PenalisedRows
    plan: Plan
    share: Float[Array, " entries"]
    theta: Float[Array, " params"]
    looks: int = 0
    batches: list[Batch] = field(init=False)

    def __post_init__(self) -> None:
        q = self.model.x.shape[1]
        self.batches = list(self.plan.batches(2**18, q, q * q))

    def __call__(self, rho: Float[Array, " smooths"]) -> CriterionLook:
        model, n = self.model, len(self.model.y)
        self.looks += 1
        here = minimum(model, rho, self.theta)
        self.theta = here.theta
        z = model.x @ here.root.T
        length = np.sum(z**2, axis=1)
        losses, sums = np.full(len(self.plan.index), np.nan), _CriterionSums(n, len(here.root))
        for batch in self.batches:
            self._add(batch, here, z, length, losses, sums)
        third = weight_terms(model.weight, model.derivatives(here.eta, (3,))[0])
        s = np.einsum("np,np->n", z @ sums.curvature, z) + sums.own_turn
        moved = here.solve(model.x.T @ weight_terms(third, s))
        pull, bent = sums.pull @ here.root, here.root.T @ sums.curvature @ here.root
        G = np.outer(moved - pull, here.theta) - bent
        scored = np.bincount(self.plan.index, np.where(self.plan.held, self.share * np.nan_to_num(losses), 0.0), n)
        m = z @ sums.pull + sums.own_pull
        by_weight = scored - here.slope * (m - model.x @ moved) - here.curvature * s
        return CriterionLook(float(np.nan_to_num(self.share) @ np.nan_to_num(losses)), model.along(rho, G), losses, by_weight)

    def _add(
        self, batch: Batch, here: SmoothingMinimum, rows: Array, length: Array, losses: Array, sums: "_CriterionSums"
    ) -> None:
        """Add a batch of refits."""
        n, held = len(self.model.y), np.asarray(batch.rows.held)
        units, delta, z, metric = self._leave_out(batch, here, rows, length)
        g, scored = -_sum(delta * here.slope[units], z)[:, None], int(held.sum(1).max(initial=0))
        max_joint_units = 12  # scored units of a refit up to which one solve serves all
        few = np.argsort(~held, axis=1, kind="stable")[:, :scored] if scored <= max_joint_units else np.zeros((len(z), 0), int)
        at = np.take_along_axis(z, few[:, :, None], 1)  # scored rows, if few, which are solved for together with q
        q, *back = metric.solve(np.concatenate([g, at], axis=1)).swapaxes(0, 1)
        eta = here.eta[units] + _along(z, q)
        value, slope = self.model.derivatives(eta, (0, 1), units)
        losses[batch.place[held]] = value[held]
        pulls = np.where(held, self.share[batch.place] * np.where(held, slope, 0.0), 0.0)
        if scored <= max_joint_units:
            weight = np.take_along_axis(pulls, few, 1)
            p = sum((weight[:, [k]] * each for k, each in enumerate(back)), np.zeros(q.shape))
        else:
            p = metric.solve(_sum(pulls, z)[:, None])[:, 0]
        own = delta * _along(z, p)
        sums.pull += p.sum(0)
        sums.curvature += p.T @ q
        sums.own_pull += np.bincount(units.ravel(), own.ravel(), n)
        sums.own_turn += np.bincount(units.ravel(), (own * _along(z, q)).ravel(), n)

    def moves(self, here: SmoothingMinimum) -> Float[Array, "refits params"]:
        """Compute θ_o − θ̂ of every refit, whitened."""
        rows, out = self.model.x @ here.root.T, np.zeros((self.plan.num_refits, len(here.root)))
        length = np.sum(rows**2, axis=1)
        for batch in self.batches:
            units, delta, z, metric = self._leave_out(batch, here, rows, length)
            out[batch.refits] = -metric.solve(_sum(delta * here.slope[units], z)[:, None])[:, 0]
        return out

    def _leave_out(
        self, batch: Batch, here: SmoothingMinimum, rows: Array, length: Array
    ) -> tuple[Array, Array, Array, "_Metric"]:
        """Return the units that refits leave out, their weight changes, their whitened rows, and the curvature without them."""
        units = np.minimum(np.asarray(batch.rows.index), len(self.model.y) - 1)
        delta, z = np.asarray(batch.rows.weight) - 1.0, rows[units]
        bend = delta * here.curvature[units]
        # a matrix whose negative part has a trace below that stays positive definite
        return units, delta, z, _Metric(z, bend, sure=np.sum(np.maximum(-bend, 0.0) * length[units], axis=1) < 0.99)


class _CriterionSums:
    """Sums over all refits, whitened: Σ p, Σ p qᵀ, and the parts of m and s that left-out weights remove."""

    def __init__(self, units: int, params: int):
        self.pull, self.curvature = np.zeros(params), np.zeros((params, params))
        self.own_pull, self.own_turn = np.zeros(units), np.zeros(units)


def _sum(weight: Float[Array, "refits width"], z: Float[Array, "refits width params"]) -> Float[Array, "refits params"]:
    return np.matmul(weight[:, None, :], z)[:, 0]


def _along(z: Float[Array, "refits width params"], v: Float[Array, "refits params"]) -> Float[Array, "refits width"]:
    return np.matmul(z, v[:, :, None])[:, :, 0]


class _Metric:
    """`I + Σ bend z zᵀ` of every refit; IndefiniteHessianError if one that is not `sure` is singular."""

    def __init__(self, z: Float[Array, "refits width params"], bend: Float[Array, "refits width"], sure: Array):
        self.z, self.bend = z, bend
        self.low = z.shape[1] < z.shape[2]  # in as many dimensions as there are rows
        turned = z.swapaxes(1, 2)
        self.whole = np.matmul(z, turned) if self.low else np.matmul(turned * bend[:, None, :], z)
        size = np.eye(self.whole.shape[1])
        if not sure.all():
            gone, inner = np.sqrt(np.maximum(-bend[~sure], 0.0)), self.whole[~sure]
            left = size - gone[:, :, None] * inner * gone[:, None, :] if self.low else size + inner
            try:
                np.linalg.cholesky(left - 1e-12 * size)
            except np.linalg.LinAlgError:
                raise IndefiniteHessianError(
                    "smooth: without its rows some refit does not determine every coefficient. Give smaller neighbourhoods, or "
                    "fewer basis functions (k=); classes that are separated are told by no λ: give one, by "
                    "model.smoothed(10.0)."
                ) from None
        self.whole = size + (bend[:, :, None] * self.whole if self.low else self.whole)

    def solve(self, rhs: Float[Array, "refits columns params"]) -> Float[Array, "refits columns params"]:
        if not self.low:
            return np.linalg.solve(self.whole, rhs.swapaxes(1, 2)).swapaxes(1, 2)
        inner = np.linalg.solve(self.whole, self.bend[:, :, None] * np.matmul(self.z, rhs.swapaxes(1, 2)))
        return rhs - np.matmul(inner.swapaxes(1, 2), self.z)


@dataclass(eq=False)
class RestrictedLikelihood:
    """Laplace approximation R of −log of the restricted likelihood, exact for squared losses."""

    model: PenalisedRows
    profiles_dispersion: bool  # whether φ is estimated
    theta: Float[Array, " params"]
    looks: int = 0

    def __call__(self, rho: Float[Array, " smooths"]) -> CriterionLook:
        model = self.model
        self.looks += 1
        here = minimum(model, rho, self.theta)
        self.theta = here.theta
        logdet, inverse, rank = self._penalty(rho)
        units = int(np.sum(model.weight > 0)) - (model.x.shape[1] - rank)
        phi = 2 * here.value / units if self.profiles_dispersion else 1.0
        value = here.value / phi + 0.5 * (
            here.logdet - logdet + (units * np.log(2 * np.pi * phi) if self.profiles_dispersion else 0.0)
        )
        # ½ d log|H| = ½⟨dP, H⁻¹⟩ + ½ Σ ω ℓ‴ h_n x_nᵀdθ̂,   dθ̂ = −H⁻¹ dP θ̂,   dF = ½ θ̂ᵀ dP θ̂
        third = weight_terms(model.weight, model.derivatives(here.eta, (3,))[0])
        size = np.sum((model.x @ here.root.T) ** 2, axis=1)
        moved = here.solve(model.x.T @ weight_terms(third, size))
        G = 0.5 * (np.outer(here.theta, here.theta) / phi + here.root.T @ here.root - np.outer(moved, here.theta))
        return CriterionLook(value, model.along(rho, G - 0.5 * inverse))

    def _penalty(self, rho: Float[Array, " smooths"]) -> tuple[float, Array, int]:
        """Compute log|P|₊, its slope in P, and the rank, for each group of coefficients with common penalties."""
        model, logdet, rank = self.model, 0.0, 0
        inverse, whole = np.zeros((model.x.shape[1],) * 2), model.penalty(rho)
        for a, b in {*model.spans}:
            parts = [
                matrix / np.trace(matrix) for matrix, span in zip(model.matrices, model.spans, strict=True) if span == (a, b)
            ]
            values, vectors = np.linalg.eigh(sum(parts))  # the space on which any of them acts, for every λ
            # share of the largest eigenvalue of a penalty below which one counts as zero
            seen = vectors[:, values > 1e-9 * values[-1]]
            factor = np.linalg.cholesky(seen.T @ whole[a:b, a:b] @ seen)
            half = scipy.linalg.solve_triangular(factor, seen.T, lower=True)
            inverse[a:b, a:b] = half.T @ half
            logdet, rank = logdet + 2 * float(np.sum(np.log(factor.diagonal()))), rank + seen.shape[1]
        return logdet, inverse, rank
