"""Smoothness of the terms of an additive model: λ by neighbourhood cross-validation, or by
restricted likelihood.

Both criteria are minimised by their exact gradients in ρ = log λ, with SciPy's L-BFGS-B in boxes of
two e-folds to each side, as in `tune`. At the bounds a term is as wiggly, or as straight, as its
basis allows.

The minimum of a criterion is optimistic. Therefore λ is chosen again in every refit o, from the
data that it sees, to first order,

    ρ_o = ρ̂ + (∂²V/∂ρ²)⁻¹ Σ_n (1 − w_on) ∂²V/∂ρ∂w_n,

with the second derivatives by differences of the exact first ones, two evaluations of V for each
penalty.

The criteria are evaluated by arrays alone:

    F(θ, w; ρ) = Σ_n w_n ω_n ℓ_n(x_nᵀθ) + ½ θᵀP θ,   P = Σ_j e^ρ_j S_j,
    θ̂ = argmin F(·, 1; ρ),   H = ∇²F(θ̂, 1)

In neighbourhood cross-validation (S. N. Wood, arXiv 2404.16490) every refit o is one Newton step,
θ_o = θ̂ + q_o:

    V = Σ_o Σ_{s held in o} share_s ℓ_s(x_sᵀθ_o),      p_o = H_o⁻¹ ∂V/∂θ_o,      H_o = ∇²F(θ̂, w_o)
    dV = ⟨dP, G⟩,      G = H⁻¹c θ̂ᵀ − Σ_o p_o θ_oᵀ,      c = Σ_n ω_n ℓ‴_n s_n x_n,
    s_n = Σ_o w_on (x_nᵀp_o)(x_nᵀq_o)

(`hypergradient` has this for every plan and model, fit by fit. Here θ̂ is kept from one ρ to the
next, and no errors are estimated.) The derivative by a unit's weight in every fit is, with m_n =
Σ_o w_on x_nᵀp_o,

    ∂V/∂w_n = Σ share_s ℓ_s [s is n] − ω_n (ℓ′_n m_n + ℓ″_n s_n) + ω_n ℓ′_n x_nᵀH⁻¹c

Restricted likelihood (Wood, JRSS B 73, 2011), whose gradient also has that of log|H| through θ̂:

    R = F/φ + ½ log|H| − ½ log|P|₊ + ½ (n − m) log φ,
    φ = 1, or of squared losses 2F/(n − m), m the unpenalised
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float
from numpy import linalg

from .._runtime import (
    ArrayTuple,
    EntryValues,
    Lines,
    ListedValues,
    NamedNumbers,
    NumpyArray,
    Shape,
    TwoArrays,
    TwoCounts,
    UnitVectors,
    float64,
    record,
    silence,
    warn,
)
from ..linalg import Curvature, RefitPoints, weight_terms
from ..models.smooth.additive import Additive
from ..models.smooth.bases import against
from ..objectives import PerUnit, Vector, plan_reader
from ..optimize import IndefiniteHessianError
from ..optimize.fit import Fit, anchor, fit as fitted
from ..plans import Batch, Plan
from ..refit import Exact
from ..validation.cross_validate import cross_validate
from ..validation.estimate import Estimate, PrintedResult, plus_minus
from .hypergradient import loss_shares
from .tune import LONGEST_STEP, descend_boxes

PerSmooth = Float[NumpyArray, " smooths"]
SmoothPairs = Float[NumpyArray, "smooths smooths"]
ParamPairs = Float[NumpyArray, "params params"]

Method = Literal["NCV", "REML"]
SMOOTHING_DIFFERENCE = 0.01  # step of the differences for second derivatives, in e-folds


class CriterionLook(NamedTuple):
    """Criterion with its slope in ρ, held-out losses by the plan's entries (NaN if not scored), and
    ∂V/∂w of every unit.
    """

    value: float
    slope: PerSmooth
    losses: EntryValues | None = None
    by_weight: PerUnit | None = None


@record
class PenalisedRows:
    """Rows, losses and penalties of F; `spans` are the coefficients on which each penalty acts."""

    x: UnitVectors
    offset: Any
    y: PerUnit
    weight: PerUnit
    loss: Any
    matrices: ArrayTuple
    spans: tuple[TwoCounts, ...]

    def penalty(self, rho: PerSmooth) -> ParamPairs:
        total = np.zeros((self.x.shape[1],) * 2)
        for strength, matrix, (a, b) in zip(np.exp(rho), self.matrices, self.spans, strict=True):
            total[a:b, a:b] += strength * matrix
        return total

    def along(self, rho: PerSmooth, G: ParamPairs) -> PerSmooth:
        """Compute ⟨∂P/∂ρ_j, G⟩."""
        products = [
            np.sum(matrix * G[a:b, a:b])
            for matrix, (a, b) in zip(self.matrices, self.spans, strict=True)
        ]
        return np.exp(rho) * np.array(products)

    def derivatives(self, eta: NumpyArray, orders: Shape, units: Any = slice(None)) -> ArrayTuple:
        return self.loss.derivatives(eta, self.y[units], orders)

    def weighted(self, eta: PerUnit, orders: Shape) -> list[PerUnit]:
        """Derivatives of all units times their weights."""
        return [weight_terms(self.weight, part) for part in self.derivatives(eta, orders)]

    def eta(self, theta: Vector) -> PerUnit:
        return self.x @ theta + self.offset


@record
class SmoothingMinimum:
    """θ̂ at some ρ: the predictors there, ω ℓ′, ω ℓ″, and L⁻¹, H = L Lᵀ."""

    theta: Vector
    value: float
    penalty: ParamPairs
    eta: PerUnit
    slope: PerUnit
    curvature: PerUnit
    root: ParamPairs
    logdet: float

    def solve(self, v: NumpyArray) -> NumpyArray:
        return self.root.T @ (self.root @ v)


def minimum(model: PenalisedRows, rho: PerSmooth, theta: Vector) -> SmoothingMinimum:
    """Minimise F by Newton's method with halved steps, from θ.

    Raises IndefiniteHessianError if H is singular, RuntimeError if F has no minimum.
    """
    penalty = model.penalty(rho)

    def evaluate(theta: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray, float]:
        eta = model.eta(theta)
        with silence("all"):
            losses, slope, curvature = model.weighted(eta, (0, 1, 2))
            value = float(np.sum(losses) + 0.5 * theta @ penalty @ theta)
        return eta, slope, curvature, value if np.isfinite(value) else np.inf

    eta, slope, curvature, value = evaluate(theta)
    before = np.inf
    last_curvature = None
    # largest number of Newton steps
    for _ in range(100):
        # that of squared losses is the same everywhere
        if last_curvature is None or not np.array_equal(last_curvature, curvature):
            factor = _factor((model.x.T * curvature) @ model.x + penalty)
            root = factor.root
            last_curvature = curvature
        whitened = root @ (model.x.T @ slope + penalty @ theta)
        step = root.T @ whitened
        gain = float(whitened @ whitened)
        size = 1.0
        # squared decrement, relative to F, from which Newton steps converge quadratically to
        # rounding
        is_close = gain <= 1e-10 * max(1.0, abs(value))
        # rounding, which heavy penalties amplify, allows no closer approach
        if is_close and (gain > before / 4 or gain < 1e-24):
            fields = theta, value, penalty, eta, slope, curvature, root
            return SmoothingMinimum(*fields, float(factor.logdet))
        while size > 1e-10:
            candidate = evaluate(theta - size * step)
            if is_close or candidate[3] <= value - 1e-4 * size * gain:
                break
            size /= 2
        theta = theta - size * step
        eta, slope, curvature, value = candidate
        before = gain
    raise RuntimeError(
        "smooth: no minimum was reached at some λ; the data may be separated: a larger low end of λ keeps off it."
    )


def _factor(H: NumpyArray) -> Curvature:
    """Factor a Hessian; raises IndefiniteHessianError if it is singular."""
    curvature = Curvature.of(H, 1e-13)
    if not curvature.definite:
        raise IndefiniteHessianError(
            "smooth: the terms repeat one another, or the rows do not determine them. A te() holds what s() of its columns "
            "say: take ti(). s(x, by=z) of numbers z holds what z alone says: leave z out of the other terms."
        )
    return curvature


@dataclass(eq=False)
class Neighbourhoods:
    """Neighbourhood cross-validation V of a plan; each ρ starts from θ̂ of the one before."""

    model: PenalisedRows
    plan: Plan
    share: EntryValues
    theta: Vector
    looks: int = 0
    batches: list[Batch] = field(init=False)

    def __post_init__(self) -> None:
        q = self.model.x.shape[1]
        self.batches = list(self.plan._batches(2**18, q, q * q))

    def without(self, units: NumpyArray) -> "Neighbourhoods":
        """Return the criterion without some units, which have weight zero in every fit and are not
        scored.
        """
        weight = np.where(units, 0.0, self.model.weight)
        share = np.where(units[self.plan.index], 0.0, self.share)
        return Neighbourhoods(
            replace(self.model, weight=weight), self.plan, share / share.sum(), self.theta
        )

    def __call__(self, rho: PerSmooth) -> CriterionLook:
        model = self.model
        n = len(self.model.y)
        self.looks += 1
        solution = minimum(model, rho, self.theta)
        self.theta = solution.theta
        z = model.x @ solution.root.T
        losses = np.full(len(self.plan.index), np.nan)
        sums = _CriterionSums(n, len(solution.root))
        for batch in self.batches:
            self._add(batch, solution, z, losses, sums)
        (third,) = model.weighted(solution.eta, (3,))
        s = np.einsum("np,np->n", z @ sums.curvature, z) + sums.unit_products
        third_adjoint = solution.solve(model.x.T @ weight_terms(third, s))
        adjoint = sums.adjoint @ solution.root
        products = solution.root.T @ sums.curvature @ solution.root
        G = np.outer(third_adjoint - adjoint, solution.theta) - products
        finite_losses = np.nan_to_num(losses)
        scored = np.bincount(
            self.plan.index, np.where(self.plan.held, self.share * finite_losses, 0.0), n
        )
        m = z @ sums.adjoint + sums.unit_adjoint
        by_weight = scored - solution.slope * (m - model.x @ third_adjoint) - solution.curvature * s
        return CriterionLook(
            float(np.nan_to_num(self.share) @ finite_losses), model.along(rho, G), losses, by_weight
        )

    def _add(
        self,
        batch: Batch,
        solution: SmoothingMinimum,
        rows: NumpyArray,
        losses: NumpyArray,
        sums: "_CriterionSums",
    ) -> None:
        """Add a batch of refits."""
        n = len(self.model.y)
        held = batch.rows.held
        units, delta, metric = self._leave_out(batch, solution, rows)
        q, along_q = metric.solve(-delta * solution.slope[units])
        value, slope = self.model.derivatives(solution.eta[units] + along_q, (0, 1), units)
        losses[batch.place[held]] = value[held]
        loss_slopes = np.where(held, self.share[batch.place] * np.where(held, slope, 0.0), 0.0)
        p, along_p = metric.solve(loss_slopes)
        unit_terms = delta * along_p
        sums.adjoint += p.sum(0)
        sums.curvature += p.T @ q
        sums.unit_adjoint += np.bincount(units.ravel(), unit_terms.ravel(), n)
        sums.unit_products += np.bincount(units.ravel(), (unit_terms * along_q).ravel(), n)

    def moves(self, solution: SmoothingMinimum) -> RefitPoints:
        """Compute θ_o − θ̂ of every refit, whitened."""
        rows = self.model.x @ solution.root.T
        out = np.zeros((self.plan.num_refits, len(solution.root)))
        for batch in self.batches:
            units, delta, metric = self._leave_out(batch, solution, rows)
            out[batch.refits] = metric.solve(-delta * solution.slope[units])[0]
        return out

    def _leave_out(
        self, batch: Batch, solution: SmoothingMinimum, rows: NumpyArray
    ) -> tuple[NumpyArray, NumpyArray, "_Metric"]:
        """Return the units that refits leave out, their weight changes, and the curvature without
        them.
        """
        units = batch.rows.units(len(self.model.y))
        delta = batch.rows.weight - 1.0
        return units, delta, _Metric(rows[units], delta * solution.curvature[units])


class _CriterionSums:
    """Sums over all refits, whitened.

    Σ p, Σ p qᵀ, and the parts of m and s that left-out weights remove.
    """

    def __init__(self, units: int, params: int):
        self.adjoint = np.zeros(params)
        self.curvature = np.zeros((params, params))
        self.unit_adjoint = np.zeros(units)
        self.unit_products = np.zeros(units)


class _Metric:
    """`I + Σ weight z zᵀ` of every refit; IndefiniteHessianError if one is singular."""

    def __init__(self, z: Float[NumpyArray, "refits width params"], weight: ListedValues):
        self.z = z
        self.low = z.shape[1] < z.shape[2]  # in as many dimensions as there are rows
        transposed = z.swapaxes(1, 2)
        if self.low:
            self.matrix = np.matmul(z, transposed)
        else:
            self.matrix = np.matmul(transposed * weight[:, None, :], z)
        size = np.eye(self.matrix.shape[1])
        removed = np.sqrt(np.maximum(-weight, 0.0))
        # a matrix whose negative part has a trace below that stays positive definite
        sure = np.sum((removed[:, :, None] * z) ** 2, (1, 2)) < 0.99
        if not sure.all():
            removed = removed[~sure]
            inner = self.matrix[~sure]
            if self.low:
                remainder = size - removed[:, :, None] * inner * removed[:, None, :]
            else:
                remainder = size + inner
            if not Curvature.of(remainder - 1e-12 * size, 0.0).definite.all():
                raise IndefiniteHessianError(
                    "smooth: without its rows some refit does not determine every coefficient. Give smaller neighbourhoods, or "
                    "fewer basis functions (k=); classes that are separated are told by no λ: give one, by "
                    "model.smoothed(10.0)."
                )
        self.products = self.matrix
        self.matrix = size + (weight[:, :, None] * self.matrix if self.low else self.matrix)

    def solve(self, share: ListedValues) -> tuple[RefitPoints, ListedValues]:
        """Multiply Σ share z by the inverse, and return the products of that with z too."""
        if self.low:  # M⁻¹ Zᵀ = Zᵀ (I + W Z Zᵀ)⁻¹
            if self.matrix.shape[1] == 1:
                share = share / self.matrix[:, 0]
                return share * self.z[:, 0], share * self.products[:, 0]
            share = linalg.solve(self.matrix, share[:, :, None])[:, :, 0]
        v = np.matmul(share[:, None, :], self.z)[:, 0]
        if not self.low:
            v = linalg.solve(self.matrix, v[:, :, None])[:, :, 0]
        return v, np.matmul(self.z, v[:, :, None])[:, :, 0]


@dataclass(eq=False)
class RestrictedLikelihood:
    """Laplace approximation R of −log of the restricted likelihood, exact for squared losses."""

    model: PenalisedRows
    profiles_dispersion: bool  # whether φ is estimated
    theta: Vector
    looks: int = 0

    def __call__(self, rho: PerSmooth) -> CriterionLook:
        model = self.model
        self.looks += 1
        solution = minimum(model, rho, self.theta)
        self.theta = solution.theta
        logdet, inverse, rank = self._penalty(rho)
        units = int(np.sum(model.weight > 0)) - (model.x.shape[1] - rank)
        phi = 1.0
        if self.profiles_dispersion:
            phi = 2 * solution.value / units
        value = solution.value / phi + 0.5 * (
            solution.logdet
            - logdet
            + (units * np.log(2 * np.pi * phi) if self.profiles_dispersion else 0.0)
        )
        # ½ d log|H| = ½⟨dP, H⁻¹⟩ + ½ Σ ω ℓ‴ h_n x_nᵀdθ̂,   dθ̂ = −H⁻¹ dP θ̂,   dF = ½ θ̂ᵀ dP θ̂
        (third,) = model.weighted(solution.eta, (3,))
        size = np.sum((model.x @ solution.root.T) ** 2, 1)
        third_adjoint = solution.solve(model.x.T @ weight_terms(third, size))
        G = 0.5 * (
            np.outer(solution.theta, solution.theta) / phi
            + solution.root.T @ solution.root
            - np.outer(third_adjoint, solution.theta)
        )
        return CriterionLook(value, model.along(rho, G - 0.5 * inverse))

    def _penalty(self, rho: PerSmooth) -> tuple[float, NumpyArray, int]:
        """Compute log|P|₊, its slope in P, and the rank, for each group of coefficients with common
        penalties.
        """
        model = self.model
        logdet = 0.0
        rank = 0
        inverse = np.zeros((model.x.shape[1],) * 2)
        penalty = model.penalty(rho)
        for a, b in {*model.spans}:
            parts = [
                matrix / np.trace(matrix)
                for matrix, span in zip(model.matrices, model.spans, strict=True)
                if span == (a, b)
            ]
            # the space on which any of them acts, for every λ
            values, vectors = linalg.eigh(sum(parts))
            # share of the largest eigenvalue of a penalty below which one counts as zero
            seen = vectors[:, values > 1e-9 * values[-1]]
            curvature = Curvature.of(seen.T @ penalty[a:b, a:b] @ seen, 0.0)
            half = curvature.root @ seen.T
            inverse[a:b, a:b] = half.T @ half
            logdet += float(curvature.logdet)
            rank += seen.shape[1]
        return logdet, inverse, rank


class NestedChoice(NamedTuple):
    """The result of choosing λ again in every refit.

    `mean` is the mean loss and `optimism` its excess over that with one λ. `losses` are by the
    plan's entries, and `smoothing` is λ of each refit.
    """

    mean: float
    optimism: float
    losses: EntryValues
    smoothing: pd.DataFrame


class Choice(NamedTuple):
    """The first-order change of ρ̂ when a unit is left out, and the resulting change of θ̂."""

    by_unit: Float[NumpyArray, "units smooths"]
    by_rho: Float[NumpyArray, "smooths params"]

    def moves(self, plan: Plan) -> Float[NumpyArray, "refits smooths"]:
        """Compute the change of ρ̂ in each refit, at most two e-folds, beyond which a first-order
        change says little.
        """
        omissions = scipy.sparse.csr_array(
            (1 - plan.weight, plan.index, plan.indptr), shape=(plan.num_refits, plan.num_units)
        )
        return np.clip(omissions @ self.by_unit, -LONGEST_STEP, LONGEST_STEP)


class Second(NamedTuple):
    """V at ρ̂, ∂²V/∂ρ², ∂²V/∂w∂ρ, and the losses on either side along each ρ."""

    center: CriterionLook
    curvature: SmoothPairs
    change: Float[NumpyArray, "units smooths"]
    sides: list[TwoArrays]


class CriterionMinimum(NamedTuple):
    """Minimum of a criterion: ρ, the criterion there, and how the descent ended."""

    rho: PerSmooth
    value: float
    reason: str


@record
class Smoothing(PrintedResult):
    """The result of `smooth`: the model with the chosen λ, and its fit.

    Attributes
    ----------
    fit : Fit
        The fit at the chosen λ.
    method : {"NCV", "REML"}
        The criterion.
    value : float
        The criterion at the chosen λ.
    ended : str
        Why the search ended.
    looks : int
        The number of evaluations of the criterion.
    plan : Plan or None
        The plan.
    criterion, rho, bounds
        The criterion as a function, log λ, and its bounds.

    See Also
    --------
    smooth : Make it.
    curves : The smooth terms with intervals.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 40)
    >>> y = np.sin(6 * x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    >>> found = lo.smooth(lo.Additive([lo.terms.s("x", k=8)], {"x": x}, y), lo.leave_one_out())
    >>> list(found.smoothing), found.nested.optimism > 0
    (['s(x)'], True)
    """

    fit: Fit
    method: Method
    value: float
    ended: str
    looks: int
    plan: Plan | None
    criterion: Any
    rho: PerSmooth
    bounds: Float[NumpyArray, "smooths 2"]

    @property
    def model(self) -> Additive:
        """The model with the chosen λ."""
        assert isinstance(self.fit.objective, Additive)
        return self.fit.objective

    @property
    def smoothing(self) -> NamedNumbers:
        """The λ of each penalty, by name."""
        return self.model.smoothing

    @cached_property
    def edf(self) -> pd.Series:
        """The effective degrees of freedom of each smooth term.

        The trace of its coefficients' part of H⁻¹ Σ ω ℓ″ x xᵀ.
        """
        solution = self._solution
        share = 1 - np.einsum("pq,qp->p", solution.root.T @ solution.root, solution.penalty)
        return pd.Series(
            {name: float(share[span].sum()) for name, (_, span) in self.model.smooths.items()},
            name="edf",
        )

    @cached_property
    def _solution(self) -> SmoothingMinimum:
        return minimum(self.criterion.model, self.rho, self.fit.vector)

    @cached_property
    def estimate(self) -> Estimate:
        """The certified cross-validation of the fit, at the λ that all the data chose."""
        if self.plan is None:
            raise ValueError(
                "smooth: there was no plan; lo.cross_validate(found.fit, plan) takes one."
            )
        return cross_validate(self.fit, self.plan)

    @cached_property
    def _step_warning(self) -> str:
        """Return a warning if the criterion's Newton steps have another loss than exact refits.

        The slopes of the criterion, and all that follows from them, are then unreliable.
        """
        e = self.estimate
        # largest difference of the criterion from the certified loss, in standard errors
        if (
            self.method != "NCV"
            or abs(self.value - e.mean) <= 0.1 * e.scale + e.approximation_error
        ):
            return ""
        return (
            f"one Newton step a refit makes that loss {self.value:.6g}, not {e.mean:.6g}: λ was chosen by another loss than it "
            "has, and what choosing it again costs is not known; look at heavy and far rows, take smaller neighbourhoods"
        )

    @cached_property
    def nested(self) -> NestedChoice:
        """The loss with λ chosen again in every refit, to first order; a λ at a bound stays there.

        Raises ValueError if λ was not chosen by a held-out loss. Warns if one Newton step is far
        from the exact refits.
        """
        criterion = self._criterion_name()
        if self._step_warning:
            warn(f"smooth: {self._step_warning}.")
        center = self._second.center
        plan = criterion.plan
        sides = self._second.sides
        low, high = self.bounds.T
        rho = self.rho + self.choice.moves(plan)
        rho_change = (np.clip(rho, low, high) - self.rho)[plan.refit]
        assert center.losses is not None
        losses = center.losses.copy()
        for j, (up, down) in enumerate(sides):
            slope = (up - down) / (2 * SMOOTHING_DIFFERENCE)
            curvature = (up + down - 2 * center.losses) / SMOOTHING_DIFFERENCE**2
            losses += rho_change[:, j] * slope + 0.5 * rho_change[:, j] ** 2 * curvature
        mean = float(criterion.share @ np.nan_to_num(losses))
        optimism = mean - center.value
        table = pd.DataFrame(np.exp(np.clip(rho, low, high)), columns=list(self.smoothing))
        return NestedChoice(mean, optimism, losses, table)

    @cached_property
    def choice(self) -> "Choice":
        """Compute the first-order changes of ρ̂ and θ̂ when units are left out.

        Raises ValueError if λ was not chosen by a held-out loss.
        """
        self._criterion_name()
        solution = self._solution
        data = self.criterion.model
        by_rho = np.zeros((len(self.rho), len(solution.theta)))
        for j, (matrix, (a, b)) in enumerate(zip(data.matrices, data.spans, strict=True)):
            by_rho[j] = -np.exp(self.rho[j]) * solution.solve(
                np.pad(matrix @ solution.theta[a:b], (a, len(solution.theta) - b))
            )
        return Choice(self._second.change @ self._inverse, by_rho)

    @property
    def _inverse(self) -> SmoothPairs:
        """Compute (∂²V/∂ρ²)⁻¹ among ρ that are not at a bound."""
        low, high = self.bounds.T
        return _inverse(self._second.curvature, (self.rho > low) & (self.rho < high))

    def _criterion_name(self) -> Neighbourhoods:
        if self.method != "NCV":
            raise ValueError(
                "smooth: λ by REML is not chosen by a held-out loss: .estimate is as it is."
            )
        return self.criterion

    @cached_property
    def _second(self) -> "Second":
        """Compute second derivatives at ρ̂."""
        count = len(self.rho)
        looks = [
            [
                self.criterion(self.rho + sign * SMOOTHING_DIFFERENCE * np.eye(count)[j])
                for sign in (1, -1)
            ]
            for j in range(count)
        ]
        curvature = np.array(
            [(up.slope - down.slope) / (2 * SMOOTHING_DIFFERENCE) for up, down in looks]
        )
        change = [
            (up.by_weight - down.by_weight) / (2 * SMOOTHING_DIFFERENCE) for up, down in looks
        ]
        sides = [(up.losses, down.losses) for up, down in looks]
        return Second(
            self.criterion(self.rho), (curvature + curvature.T) / 2, np.stack(change, 1), sides
        )

    @property
    def at_bound(self) -> list[str]:
        """The penalties that were chosen at an end of their range.

        Terms without a bend, or without a penalty.
        """
        return [
            name
            for name, r, (low, high) in zip(self.smoothing, self.rho, self.bounds, strict=True)
            if r in (low, high)
        ]

    def _facts(self) -> Lines:
        strengths = [f"{name} {value:.4g}" for name, value in self.smoothing.items()]
        by = "restricted likelihood"
        if self.method == "NCV":
            by = "neighbourhood cross-validation, one Newton step a refit"
        lines = [
            (
                "model",
                f"{type(self.model).__name__} ({type(self.model.loss_function).__name__}), {self.model.num_units} units",
            ),
            ("smoothed by", f"{by}: {self.looks} looks, {self.ended}"),
            ("λ", ", ".join(strengths)),
            ("at a bound", ", ".join(self.at_bound)),
            ("degrees", ", ".join(f"{name} {value:.3g}" for name, value in self.edf.items())),
        ]
        if self.plan is not None:
            e = self.estimate
            lines += [
                (
                    "held-out loss",
                    f"{e.mean:.6g}{plus_minus(e.se)} a unit at this λ, {e.score} ({e._approximation()})",
                )
            ]
        if self.method == "NCV":
            lines += [
                ("check", self._step_warning),
                ("nested", "" if self._step_warning else self._chosen_again()),
            ]
        return lines

    def _chosen_again(self) -> str:
        text = f"{self.estimate.mean + self.nested.optimism:.6g}: λ chosen again in every refit"
        assert self.plan is not None
        held = ""
        if self.at_bound:
            held = ", λ at a bound held there"
        num_far = int(np.sum(np.abs(self.choice.moves(self.plan)).max(1) >= LONGEST_STEP))
        if num_far:
            held += f", which says little of {num_far} refits, where λ goes {LONGEST_STEP:g} e-folds or more"
        return f"{text} ({self.nested.optimism:.2g} more, to first order{held})"


def _inverse(curvature: SmoothPairs, free: NumpyArray) -> SmoothPairs:
    """Invert the curvature among the free parameters.

    Flat directions, and those of negative curvature, get zero.
    """
    out = np.zeros_like(curvature)
    values, vectors = linalg.eigh(curvature[np.ix_(free, free)])
    # share of the largest curvature in ρ below which a direction does not move
    sharp = values > 1e-6 * np.abs(values).max(initial=0.0)
    out[np.ix_(free, free)] = (vectors[:, sharp] / values[sharp]) @ vectors[:, sharp].T
    return out


@float64
def smooth(
    model: Additive,
    plan: Plan | None = None,
    method: Method = "NCV",
    *,
    start: Mapping[str, float] | None = None,
    exact: bool = False,
) -> Smoothing:
    """Choose the smoothing parameters λ of an additive model, and fit it with them.

    Parameters
    ----------
    model : Additive
        The model.
    plan : Plan, optional
        The refits of "NCV": `lo.leave_one_out()` for independent rows,
        `lo.blocks(size=1, buffer=h)` for a series whose errors depend on one another up to `h`
        steps apart, `lo.neighbourhoods(graph, 0, buffer=r)` for sites, `lo.groups` for clusters.
        "REML" needs no plan; one that is given is used to cross-validate the result.
    method : {"NCV", "REML"}, default "NCV"
        "NCV" minimises the held-out loss with every refit by one Newton step (neighbourhood
        cross-validation). "REML" maximises the restricted likelihood, which takes errors as
        independent.
    start : mapping of str to float, optional
        The first λ of each penalty.
    exact : bool, default False
        Whether to take one more Newton step in log λ by the criterion of exact refits, which hardly
        moves λ.

    Returns
    -------
    Smoothing
        The λ, the fit, its certified estimate, and `.nested`, the loss with λ chosen again in every
        refit. That is the loss to report, since the minimum of a criterion is optimistic. The
        minimum is a local one.

    Raises
    ------
    TypeError
        If the model is no `lo.Additive`.
    ValueError
        If the loss has several predictors or parameters of its own, terms repeat one another, or a
        refit does not determine every coefficient.
    RuntimeError
        If the data are separated.

    References
    ----------
    S. N. Wood, On neighbourhood cross-validation, arXiv 2404.16490. S. N. Wood, JRSS B 73, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 40)
    >>> y = np.sin(6 * x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    >>> found = lo.smooth(lo.Additive([lo.terms.s("x", k=8)], {"x": x}, y), lo.leave_one_out())
    >>> bool(3 < found.edf.iloc[0] < 8)
    True
    """
    if not isinstance(model, Additive):
        raise TypeError(
            f"smooth: the first argument must be a lo.Additive; got {type(model).__name__}."
        )
    if method not in ("NCV", "REML") or (method == "NCV" and plan is None):
        raise ValueError(
            f"smooth: method is 'NCV', which needs a plan, or 'REML'; got {method!r}, plan={plan!r}."
        )
    if exact and method != "NCV":
        raise ValueError("smooth: exact=True goes with method='NCV'.")
    if plan is not None:
        plan = plan_reader("smooth", model).resolve(plan)
    data = data_of(model)
    begin = _parameters(model)
    if method == "NCV":
        assert plan is not None
        criterion: Any = Neighbourhoods(data, plan, loss_shares(plan, data.weight), begin)
    else:
        kind = type(model.loss_function).__name__
        if kind != "Squared" and model.loss_function.has_dispersion:
            raise ValueError(
                f"smooth: REML of {kind} needs its dispersion, which is not known; use method='NCV'."
            )
        criterion = RestrictedLikelihood(data, kind == "Squared", begin)
    bounds = _bounds(data)
    if start is not None:
        start_values = np.array(list(model.smoothed(dict(start)).smoothing.values()))
        rho = np.log(np.maximum(start_values, 1e-300))
    else:
        # penalties a little larger than the curvature of the losses, as terms usually have few
        # degrees of freedom
        (curvature,) = data.derivatives(data.eta(begin), (2,))
        rho = np.full(
            len(bounds),
            3.0 + np.log(max(float(np.average(curvature, weights=data.weight)), 1e-300)),
        )
    criterion_minimum = _least(criterion, np.clip(rho, *bounds.T), bounds)
    result = _make_result(model, method, criterion, plan, criterion_minimum, bounds)
    return _exactly(result) if exact else result


def _make_result(
    model: Additive,
    method: Method,
    criterion,
    plan: Plan | None,
    result: CriterionMinimum,
    bounds: NumpyArray,
) -> Smoothing:
    chosen = model.smoothed(np.exp(result.rho))
    theta = minimum(criterion.model, result.rho, criterion.theta).theta
    return Smoothing(
        anchor(chosen, chosen.parameters.natural(theta)),
        method,
        result.value,
        result.reason,
        criterion.looks,
        plan,
        criterion,
        result.rho,
        bounds,
    )


def data_of(model: Additive) -> PenalisedRows:
    """Return a model as arrays."""
    if model.own or model.classes:
        raise ValueError(
            f"smooth: {type(model.loss_function).__name__} has several predictors or parameters of its own: not taken."
        )
    weight = np.asarray(model.row_weights)
    offset = 0.0 if model.offset is None else np.asarray(model.offset)
    penalty: Any = model.penalty
    x = np.asarray(model.design)
    y = np.asarray(model.y)
    return PenalisedRows(x, offset, y, weight, model.loss_function, penalty.matrices, penalty.spans)


def _parameters(model: Additive) -> NumpyArray:

    return np.asarray(model.parameters.start(0), float)


def _bounds(data: PenalisedRows) -> Float[NumpyArray, "smooths 2"]:
    """Return the bounds of ρ.

    There the penalty is negligible in its sharpest direction, or dominates in its flattest.
    """
    root = np.sqrt(data.weight)[:, None]
    bounds = []
    for matrix, (a, b) in zip(data.matrices, data.spans, strict=True):
        seen = against(matrix, root * data.x[:, a:b])
        # ratio of the curvatures of a penalty and the rows, or its inverse, at which the range of λ
        # ends
        bounds.append((np.log(1e-5 / seen[-1]), np.log(1 / (1e-5 * seen[0]))))
    return np.array(bounds)


def _least(criterion, begin: NumpyArray, bounds: NumpyArray) -> CriterionMinimum:
    """Return the least value on the way down."""
    looks = list[CriterionLook]()

    def look(rho: NumpyArray) -> tuple[float, NumpyArray, CriterionMinimum]:
        looks.append(criterion(rho))
        return looks[-1].value, looks[-1].slope, CriterionMinimum(rho, looks[-1].value, "")

    def error(_) -> float:
        """Standard error of the criterion with independent rows; one for a likelihood."""
        losses = looks[0].losses
        if losses is None:
            return 1.0
        seen = np.isfinite(losses)
        return max(float(np.std(losses[seen]) / np.sqrt(seen.sum())), 1e-300)

    # factor on the slope at which `tune` stops; gives λ to 1e-4 on the tests' data
    low, high = bounds.T
    best, ended = descend_boxes(look, begin, low, high, error, fine=3e-2)
    return best._replace(reason=ended)


def _exactly(smoothing: Smoothing) -> Smoothing:
    """Take one Newton step in ρ by the criterion of exact refits, whose gradient is by
    differences.
    """
    criterion = smoothing._criterion_name()
    rho = smoothing.rho

    def value(rho: NumpyArray) -> float:
        model = smoothing.model.smoothed(np.exp(rho))
        return cross_validate(
            fitted(model, smoothing.fit.parameters), criterion.plan, strategy=Exact(1e-10), audit=0
        ).mean

    step = 10 * SMOOTHING_DIFFERENCE
    slope = [(value(rho + step * e) - value(rho - step * e)) / (2 * step) for e in np.eye(len(rho))]
    refined = np.clip(
        rho - np.clip(smoothing._inverse @ slope, -LONGEST_STEP, LONGEST_STEP), *smoothing.bounds.T
    )
    ended = f"{smoothing.ended}; then {np.abs(refined - rho).max():.2g} e-folds by exact refits"
    return _make_result(
        smoothing.model,
        "NCV",
        criterion,
        criterion.plan,
        CriterionMinimum(refined, criterion(refined).value, ended),
        smoothing.bounds,
    )
