"""Refits under a penalty with kinks or bounds.

# The conditions under which a refit holds the same parameters as the fit

On the active columns S of the fit, with its signs σ, F is smooth, and a refit's minimiser θ_w on
them lies within a proved ball. It is the minimiser of F(·, w) if

    κ(w) least_j ≤ ∇_jL(θ_w, w) ≤ κ(w) most_j  off S,      floor_j < θ_w,j < ceiling_j  on S
    (Karush, Kuhn & Tucker),

or, for groups, if ‖∇_gL(θ_w, w)‖ ≤ κ(w) a_g off S, and θ_w,g ≠ 0 on it, as F is convex. The bounds
least_j and most_j are −a_j and a_j where a kink holds θ_j at zero, and ±∞ on one side where a bound
holds it; floor_j and ceiling_j are zero and the other end of the side of σ_j, bounds among it
(`linalg.bounds`).

With θ̂ + d the ball's centre, ρ its radius in the norm of H, s_i = x_iᵀ(θ_w − θ̂), |s_i| ≤ k_i
(‖d‖_H + ρ), and |ℓ‴| ≤ M ℓ″,

    ∇_jL(θ_w, w) = ∇_jL(θ̂, 1) + Σ_left (w_i − 1) ω_i ℓ′_i x_ij + (X_SᵀWx_j)ᵀ(θ_w − θ̂) + R_j,
    |R_j| ≤ M ψ(M max |s_i|) max_i |x_ij| (‖d‖_H + ρ)²,      ψ(t) = (eᵗ − 1 − t)/t²,

since Σ ω ℓ″ s² ≤ ‖θ_w − θ̂‖_H². One product computes this for all refits, with the columns that no
coarser bound settles. If that does not suffice, or weights do not go by rows, the gradient is
computed at the centre, and the increasing ℓ′ at both ends of the interval of η.

# Refits of a Cox model, whose errors are estimated

Each is first refitted on the active coefficients S of the fit, with their signs σ. It is the
minimiser of all if, within its distance ρ from the exact refit in the norm of H, every coefficient
keeps its sign and every other one its place:

    floor_j < θ_w,j ± ρ ‖L⁻¹e_j‖ < ceiling_j  on S,
    κ(w) least_j ≤ ∇_jL(θ_w, w) ± 2 ρ √H̃_jj ≤ κ(w) most_j  off S,

where H = L Lᵀ, and H̃_jj = Σ_i r_i x_ij² with the pull r of the risk sets is no less than H_jj; the
factor 2 is for what the curvature changes. All other refits are minimised over all coefficients
(`optimize.active_set`).

# Each refit is assigned to a fit whose active parameters it keeps

A refit that is not proved to keep S is moved nearer to its minimiser. If a condition fails there, S
and σ are changed accordingly, in the end by coordinate descent. The refit is then one of a fit on
these parameters, with its errors and proofs. If too many single rows would need such fits, the
effect of each parameter that leaves zero, or goes there, is computed one by one, and the result is
called estimated.
"""

from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import linalg

from .._runtime import (
    NO_REFIT_CODES,
    RESULTS,
    ArrayTuple,
    NumpyArray,
    Shape,
    TwoArrays,
    among,
    cached_on,
    record,
    silence,
    slices,
)
from ..linalg import UNIT, Norms, change, gates, leaving_signs, segments, weight_terms
from ..models.glm import ActiveCox, FullModel, PerPlace, kinks
from ..objectives import (
    Flags,
    Lanes,
    PerRefit,
    PerUnit,
    RefitFlags,
    RefitPoints,
    Selection,
    Vector,
    as_stored,
    weights_of,
)
from ..optimize import (
    TIE_DISTANCE,
    Fit,
    IndefiniteHessianError,
    NoMinimiser,
    anchored_at,
    minimise_with_kinks,
)
from ..plans import CAPACITY, RefitRows
from ._anchor import OWN_HESSIAN_BELOW, LinearFitCache, groups, linear_cache, slope_error
from ._descent import LOSS_ROUNDING
from ._linear import losses
from ._refit_batch import RefitBatch
from ._strategies import AbstractRefit, Certified, Exact

PerHeld = Float[NumpyArray, " held"]


# active parameters, their signs, values of the others
Key = tuple[Shape, tuple[float, ...], bytes]


@record
class Active:
    """Fit on some of the parameters, `place`, with their signs, in the whole model.

    The others stand at `held_values`.
    """

    fit: Fit
    full_model: FullModel
    place: Int[NumpyArray, " active"]
    sign: PerPlace
    held_values: Vector

    @cached_property
    def held(self) -> Int[NumpyArray, " held"]:
        """Parameters that are held."""
        return np.setdiff1d(np.arange(len(self.full_model.slope)), self.place)

    @cached_property
    def gates(self) -> tuple[PerHeld, PerHeld]:
        """Least and greatest ∇L that hold these parameters, for κ = 1."""
        least, most = gates(self.full_model, self.held_values)
        return least[self.held], most[self.held]

    @cached_property
    def tie(self) -> PerHeld:
        """Distance from its bound within which a gradient may be at that bound."""
        a = self.full_model.slope[self.held]
        slope = float(self.anchor.weight @ np.abs(self.anchor.slope))
        return TIE_DISTANCE * np.where(a > 0, a, slope * self.full_model.largest[self.held])

    @cached_property
    def limited_parameters(self) -> Int[NumpyArray, " limited"]:
        """Active parameters that a kink or a bound may hold."""
        return np.flatnonzero(
            np.isfinite(np.stack(segments(self.full_model, self.place, self.sign))).any(0)
        )

    @cached_property
    def segment(self) -> tuple[Float[NumpyArray, " limited"], Float[NumpyArray, " limited"]]:
        """Ends of the intervals of the active parameters."""
        return segments(
            self.full_model, self.place[self.limited_parameters], self.sign[self.limited_parameters]
        )

    @cached_property
    def groups(self) -> Norms | None:
        """Penalised groups among the held parameters."""
        if self.full_model.norms is None:
            return None
        return self.full_model.norms.select(self.held)

    def stays(self, theta: Float[NumpyArray, "refits active"], radius: PerRefit) -> RefitFlags:
        """Whether no active group is zero within a radius."""
        norms = self.anchor.model.norms
        reach = self.anchor.reach
        if norms is None or reach is None:
            return np.ones(len(theta), bool)
        with silence("invalid"):
            return (norms.lengths(theta) > np.multiply.outer(radius, np.sqrt(reach.groups))).all(1)

    def holds(self, key: Key) -> bool:
        """Whether these are its active parameters and their signs."""
        return key[:2] == (tuple(self.place.tolist()), tuple(self.sign.tolist()))

    def may_release(
        self,
        gradient: NumpyArray,
        error: NumpyArray,
        least: NumpyArray,
        most: NumpyArray,
        kappa: NumpyArray | float = 1.0,
    ) -> Bool[NumpyArray, "... held"]:
        """Held parameters that could be released, for gradients with an `error`."""
        if self.groups is None:
            return ~((gradient - error > least) & (gradient + error < most))
        beyond = self.groups.lengths(np.abs(gradient) + error) >= np.multiply.outer(
            kappa, self.groups.weight
        )
        return self.groups.among(beyond)

    @cached_property
    def anchor(self) -> LinearFitCache:
        return linear_cache(self.fit)

    @property
    def units(self) -> int:
        return self.fit.objective.num_units

    @cached_property
    def weighted_curvature(self) -> PerUnit:
        """Curvatures ω ℓ″."""
        return (self.anchor.weight * self.anchor.curvature)[: self.units]

    @cached_property
    def gradient(self) -> PerHeld:
        """Gradient ∇L at θ̂ and weights of one, of the held parameters."""
        slopes = (self.anchor.weight * self.anchor.slope)[: self.units]
        return (
            self.full_model.smooth.design.pull(slopes[None])[0]
            + self.full_model.ridge * self.held_values
        )[self.held]

    @cached_property
    def size(self) -> PerHeld:
        """Norms √(x_jᵀWx_j), no less than ‖X_SᵀWx_j‖_{H⁻¹}."""
        x = self.full_model.smooth.design.x
        return np.sqrt(np.einsum("n,nj,nj->j", self.weighted_curvature, x, x)[self.held])

    @cached_property
    def is_settled(self) -> Bool[NumpyArray, " held"]:
        """Held parameters at the edge of their gates that no refit on the active ones releases.

        Their columns are sums of active ones, exactly, so that ∇_jL is −Σ ±a in every refit.
        """
        out = np.zeros(len(self.held), bool)
        edges = self.gates
        columns = np.flatnonzero(
            self.may_release(self.gradient, self.tie + self.gradient_rounding, *edges)
        )
        if self.groups is not None or self.full_model.ridge.any() or not columns.size:
            return out
        share = np.rint(self.anchor.root.T @ self.cross_curvature(columns))
        involved = share.any(1)
        x = self.full_model.smooth.design.x
        active_columns = x[:, self.place[involved]]
        is_sum = (active_columns @ share[involved] == x[:, self.held[columns]]).all(0)
        is_whole = (active_columns == np.rint(active_columns)).all()
        is_exact = is_whole | (np.abs(share).sum(0) == 1)
        scale = float(self.full_model.slope.max()) or 1.0
        pull = -(self.sign * self.full_model.slope[self.place] / scale) @ share
        low, high = (edge[columns] / scale for edge in edges)
        out[columns] = is_exact & is_sum & (low <= pull) & (pull <= high)
        return out

    @cached_property
    def gradient_rounding(self) -> PerHeld:
        """Rounding error of a gradient."""
        anchor = self.anchor
        n = self.units
        blur = anchor.rounding.predictor(anchor.length, np.abs(anchor.eta))
        slope_sum = anchor.weight @ (
            slope_error(anchor.model, anchor.slope, anchor.curvature, anchor.eta, blur)
            + (n + 8) * UNIT * np.abs(anchor.slope)
        )
        return float(slope_sum) * self.full_model.largest[self.held]

    @cached_property
    def concordance(self) -> float:
        """Constant M, infinite if there is none."""
        constants = self.anchor.model.unit_loss.self_concordance
        if constants is None:
            return np.inf
        return float(np.max(constants))

    @cached_property
    def spread(self) -> PerPlace:
        """Largest change of each parameter over moves of length one."""
        return np.sqrt(np.sum(self.anchor.root**2, 0))

    def cross_curvature(self, columns: Selection) -> Float[NumpyArray, "rank selected"]:
        """Vectors X_SᵀWx_j of some held parameters, whitened."""
        weighted_columns = (
            self.weighted_curvature[:, None]
            * self.full_model.smooth.design.x[:, self.held[columns]]
        )
        return self.anchor.root @ (self.anchor.model.design.x[: self.units].T @ weighted_columns)

    def full_parameters(self, theta: Float[NumpyArray, "refits active"]) -> RefitPoints:
        """Parameters θ of the whole model."""
        out = np.tile(self.held_values, (len(theta), 1))
        out[:, self.place] = theta
        return out


@cached_on
def active(fit: Fit) -> Active | None:
    """Active parameters of a fit under a penalty with kinks or bounds; None for other fits."""
    kinked = kinks(fit.objective)
    if kinked is None:
        return None
    # a fit has converged
    assert kinked.place is not None and kinked.sign is not None and kinked.rest is not None
    return Active(fit, kinked.whole, kinked.place, kinked.sign, kinked.rest)


class Conditions:
    """Conditions of a batch of refits: which keep the fit's active parameters, which do except for
    a tie, and others.

    The gradients of all rows are computed only if `directly`, or if nothing else decides.
    """

    def __init__(self, active_fit: Active, rows: RefitRows, batch: RefitBatch, directly: bool):
        assert batch.ball is not None
        self.active_fit = active_fit
        self.rows = rows
        self.center, self.radius = batch.ball()
        exists = np.isfinite(self.radius) & ~among(batch.result, NO_REFIT_CODES)
        theta = active_fit.anchor.theta + self.center @ active_fit.anchor.root
        floor, ceiling = active_fit.segment
        self.room = np.minimum(
            theta[:, active_fit.limited_parameters] - floor,
            ceiling - theta[:, active_fit.limited_parameters],
        )
        with silence("invalid"):
            self.may_leave = (
                ~(
                    self.room
                    > self.radius[:, None] * active_fit.spread[active_fit.limited_parameters]
                )
                & exists[:, None]
            )
        signs = ~self.may_leave.any(1) & active_fit.stays(theta, self.radius)
        self.theta = theta
        self.is_outside = self.room <= 0
        self.keeps, self.ties = np.zeros((2, len(theta)), bool)
        # refit, parameter that may be released, ∇_jL, error of that, its bounds
        self.pairs = [np.zeros((0, 6))]
        lanes = np.flatnonzero(exists)
        if not active_fit.held.size:
            self.keeps[lanes] = True
        elif self._is_local:
            self._by_change(lanes)
        if directly or not self._is_local:
            self._by_rows(lanes[~(self.keeps[lanes] | self._released(lanes))])
        self.keeps &= signs
        self.ties &= self.keeps

    @property
    def single(self) -> bool:
        """Whether each refit changes the weight of a single row."""
        return bool(self.active_fit.anchor.model.separate and self.rows.index.shape[1] == 1)

    @property
    def _is_local(self) -> bool:
        """Whether the touched units and a bound of the other units' curvature can decide."""
        # largest share of the units in a refit whose gradient is computed from the changed units
        narrow = self.rows.index.shape[1] <= 0.25 * self.active_fit.units
        return bool(
            self.active_fit.anchor.model.separate
            and narrow
            and np.isfinite(self.active_fit.concordance)
        )

    def _judged_groups(
        self, lanes: NumpyArray, columns: NumpyArray, size: NumpyArray, kappa: NumpyArray
    ) -> None:
        """Judge by the largest possible gradients, of held parameters in `columns`."""
        assert self.active_fit.groups is not None
        norms = self.active_fit.groups.select(columns)
        excess = norms.lengths(size) - np.multiply.outer(kappa, norms.weight)
        self.keeps[lanes] = (excess <= TIE_DISTANCE * norms.weight).all(1)
        self.ties[lanes] = self.keeps[lanes] & (excess > 0).any(1)

    def _judge(
        self,
        lanes: NumpyArray,
        columns: NumpyArray,
        gradient: NumpyArray,
        error: NumpyArray,
        held: TwoArrays,
        kappa: NumpyArray | None = None,
    ) -> None:
        """Judge held parameters in `columns` by gradients with an `error`, or groups by κ."""
        if self.active_fit.groups is not None:
            self._judged_groups(
                lanes,
                columns,
                np.abs(gradient) + error,
                np.ones(len(lanes)) if kappa is None else kappa,
            )
            return
        excess = np.maximum(held[0] - (gradient - error), gradient + error - held[1])
        excess[:, self.active_fit.is_settled[columns]] = 0.0
        tie = self.active_fit.tie[columns]
        tie_factor = 1e3  # ties within which an error is that of rounding, and counts among them
        may_move = ~(excess <= np.where(error <= tie_factor * tie, np.maximum(tie, 2 * error), tie))
        self.keeps[lanes] = ~may_move.any(1)
        self.ties[lanes] = self.keeps[lanes] & (excess > 0).any(1)
        lane, column = np.nonzero(may_move)
        parts = (gradient, error, *(np.broadcast_to(part, gradient.shape) for part in held))
        self.pairs.append(
            np.stack([lanes[lane], columns[column], *(part[lane, column] for part in parts)], 1)
        )

    def _released(self, lanes: NumpyArray) -> Flags:
        """Whether every parameter that a refit may release is certainly released."""
        lane, column, gradient, error, low, high = np.concatenate(self.pairs).T
        is_certain = (
            np.maximum(low - gradient, gradient - high) - error
            > self.active_fit.tie[column.astype(int)]
        )
        may_move, open_ = np.zeros((2, len(self.keeps)), bool)
        may_move[lane.astype(int)] = True
        open_[lane[~is_certain].astype(int)] = True
        return (may_move & ~open_)[lanes]

    def _by_change(self, lanes: NumpyArray) -> None:
        """Judge by the touched units' change, and a bound of the other units' curvature."""
        active_fit = self.active_fit
        anchor = self.active_fit.anchor
        rows = self.rows
        x = self.active_fit.full_model.smooth.design.x
        units = rows.units(active_fit.units)[lanes]
        delta = (rows.weight - 1)[lanes] * anchor.weight[units]
        length = linalg.norm(self.center[lanes], axis=1)
        radius = self.radius[lanes]
        slopes, range_ = _slopes(
            active_fit,
            units,
            anchor.model.unit_predictors(units, self.theta[lanes]),
            anchor.norm[units] * radius[:, None],
        )
        slopes = delta * slopes
        range_ = np.abs(delta) * range_
        largest = active_fit.full_model.largest[active_fit.held]
        low, high = active_fit.gates
        curvature_error = (
            active_fit.concordance
            * _psi(
                active_fit.concordance * anchor.norm[: active_fit.units].max() * (length + radius)
            )
            * (length + radius) ** 2
        )
        touched = (np.abs(slopes) + range_).sum(1)
        most = [
            float(part.max(initial=0.0)) for part in (length + radius, curvature_error + touched)
        ]
        largest_change = (
            most[0] * active_fit.size + most[1] * largest + active_fit.gradient_rounding
        )
        columns = np.flatnonzero(
            active_fit.may_release(active_fit.gradient, largest_change, low, high)
        )
        if not columns.size:
            self.keeps[lanes] = True
            return
        cross_curvature = active_fit.cross_curvature(columns)
        for chunk in slices(len(lanes), CAPACITY // (units.shape[1] * len(columns))):
            entries = x[units[chunk][:, :, None], active_fit.held[columns]]
            gradient = (
                active_fit.gradient[columns]
                + self.center[lanes[chunk]] @ cross_curvature
                + np.einsum("lk,lkj->lj", slopes[chunk], entries)
            )
            error = np.multiply.outer(
                radius[chunk], linalg.norm(cross_curvature, axis=0)
            ) + np.multiply.outer(curvature_error[chunk], largest[columns])
            error += (
                np.einsum("lk,lkj->lj", range_[chunk], np.abs(entries))
                + active_fit.gradient_rounding[columns]
            )
            self._judge(lanes[chunk], columns, gradient, error, (low[columns], high[columns]))

    def _by_rows(self, lanes: NumpyArray) -> None:
        """Judge by gradients at the centre."""
        active_fit = self.active_fit
        model = self.active_fit.full_model.smooth
        n = self.active_fit.units
        everyone = np.arange(len(active_fit.held))
        self.pairs = [part[~np.isin(part[:, 0], lanes)] for part in self.pairs]
        for chunk in groups(lanes, CAPACITY // n):
            omega, kappa = model.weigh(weights_of(self.rows, n, chunk))
            least, most = (
                np.multiply.outer(np.maximum(kappa, 1e-300), part) for part in active_fit.gates
            )
            eta = model.eta(active_fit.full_parameters(self.theta[chunk]))
            slope, range_ = _slopes(
                active_fit,
                slice(None),
                eta,
                np.multiply.outer(self.radius[chunk], active_fit.anchor.norm[:n]),
            )
            slope = weight_terms(omega, slope)
            range_ = weight_terms(omega, range_)
            gradient = model.design.pull(slope)[:, active_fit.held]
            gradient += np.multiply.outer(
                kappa, (active_fit.full_model.ridge * active_fit.held_values)[active_fit.held]
            )
            error = (
                np.multiply.outer(range_.sum(1), active_fit.full_model.largest[active_fit.held])
                + active_fit.gradient_rounding
            )
            close = np.flatnonzero(
                active_fit.may_release(gradient, error, least, most, kappa).any(0)
            )
            error[:, close] = (
                range_ @ np.abs(model.design.x[:, active_fit.held[close]])
                + active_fit.gradient_rounding[close]
            )
            self._judge(chunk, everyone, gradient, error, (least, most), kappa)

    @cached_property
    def joining(self) -> Float[NumpyArray, "pairs 6"]:
        """Parameters that may be released, by refits."""
        pairs = np.concatenate(self.pairs)
        return pairs[np.argsort(pairs[:, 0], kind="stable")]

    def moves(self) -> tuple[PerRefit, PerRefit]:
        """Estimate the moves of single rows' predictors if violating parameters moved one by one.

        A parameter is released, or held. Returns the sum of the moves, and the sum of their sizes.

        Let z = L⁻¹x_S, c the curvature that the row loses, and 1 − q = 1 − c zᵀz. The residual of
        x_j regressed on S is x̃_j = x_j − b_jᵀz at the row, and x̃_j/(1 − q) without it. Its
        curvature is x_jᵀWx_j + ridge_j − b_jᵀb_j − c x̃_j²/(1 − q). For a parameter of S, with r
        the column of L⁻¹, the same are zᵀr/(1 − q) and rᵀr + c (zᵀr)²/(1 − q).
        """
        active_fit = self.active_fit
        unit = self.rows.index[:, 0]
        z = active_fit.anchor.whiten(unit)
        lost_curvature = (1 - self.rows.weight[:, 0]) * active_fit.weighted_curvature[unit]
        kept_share = np.maximum(1 - lost_curvature * np.einsum("lr,lr->l", z, z), OWN_HESSIAN_BELOW)
        total, size = np.zeros((2, len(unit)))

        def add(
            lane: NumpyArray,
            along: NumpyArray,
            curvature: NumpyArray,
            change: NumpyArray,
            most: NumpyArray,
        ) -> None:
            move = np.divide(
                along / kept_share[lane], curvature, out=np.zeros(len(lane)), where=curvature > 0
            )
            np.add.at(total, lane, change * move)
            np.add.at(size, lane, np.abs(most * move))

        lane = self.joining[:, 0].astype(int)
        column = self.joining[:, 1].astype(int)
        if lane.size:
            columns, inverse = np.unique(column, return_inverse=True)
            cross_curvature = active_fit.cross_curvature(columns)
            j = active_fit.held[column]
            along = active_fit.full_model.smooth.design.x[unit[lane], j] - np.einsum(
                "lr,rl->l", z[lane], cross_curvature[:, inverse]
            )
            curvature = (
                active_fit.size[columns] ** 2
                + active_fit.full_model.ridge[active_fit.held[columns]]
                - np.sum(cross_curvature**2, 0)
            )[inverse]
            _, _, gradient, error, low, high = self.joining.T
            change = np.clip(gradient, low, high) - gradient
            most = np.maximum(low - gradient, gradient - high) + error
            add(
                lane,
                along,
                curvature - lost_curvature[lane] * along**2 / kept_share[lane],
                change,
                most,
            )
        lane, free = np.nonzero(self.may_leave)
        if lane.size:
            column = active_fit.limited_parameters[free]
            root = active_fit.anchor.root[:, column]
            along = np.einsum("lr,rl->l", z[lane], root)
            curvature = np.sum(root**2, 0) + lost_curvature[lane] * along**2 / kept_share[lane]
            value = self.theta[lane, column]
            distance = self.radius[lane] * active_fit.spread[column]
            add(
                lane,
                along,
                curvature,
                np.clip(value, *(part[free] for part in active_fit.segment)) - value,
                distance - self.room[lane, free],
            )
        return total, size

    def num_undecided(self, lane: int) -> int:
        """Number of kinks and bounds at which a refit may hold or release a parameter."""
        _, _, gradient, error, low, high = self.joining[self.joining[:, 0] == lane].T
        theta = self.theta[lane, self.active_fit.limited_parameters]
        reach = self.radius[lane] * self.active_fit.spread[self.active_fit.limited_parameters]
        floor, ceiling = self.active_fit.segment
        crossed = theta - floor <= reach, ceiling - theta <= reach
        return int(np.sum(crossed) + np.sum([gradient - error <= low, gradient + error >= high]))

    def required_parameters(self, lane: int) -> Key | None:
        """Active parameters by the conditions at the centre of a refit.

        Those that cannot be decided count as moving if no others do. None if there are none.
        """
        active_fit = self.active_fit
        pairs = self.joining
        if active_fit.groups is not None:
            return None
        refit_pairs = pairs[slice(*np.searchsorted(pairs[:, 0], [lane, lane + 1]))]
        column = refit_pairs[:, 1].astype(int)
        excess = refit_pairs[:, 2] - np.clip(
            refit_pairs[:, 2], refit_pairs[:, 4], refit_pairs[:, 5]
        )
        is_released = np.abs(excess) > active_fit.tie[column]
        leaves = self.is_outside[lane]
        if not (is_released.any() or leaves.any()):  # those whose place is within rounding
            is_released[:] = True
            leaves = self.may_leave[lane]
            excess = np.where(excess == 0, refit_pairs[:, 2], excess)
        released = active_fit.held[column[is_released]]
        is_leaving = np.zeros(len(active_fit.place), bool)
        is_leaving[active_fit.limited_parameters] = leaves
        # parameters that are released or held one after another before coordinate descent decides
        if not (is_leaving.any() or len(released)) or is_leaving.sum() + len(released) > 4:
            return None
        values = active_fit.held_values.copy()
        excesses = np.zeros(len(active_fit.held_values))
        excesses[released] = excess[is_released]
        sign = dict(
            zip(
                active_fit.place[~is_leaving].tolist(),
                active_fit.sign[~is_leaving].tolist(),
                strict=True,
            )
        )
        sign |= dict(
            zip(
                released.tolist(),
                leaving_signs(active_fit.full_model.slope, values, excesses)[released].tolist(),
                strict=True,
            )
        )
        floor, ceiling = active_fit.segment
        middle = 2 * self.theta[lane, active_fit.limited_parameters]
        boundary = np.where(middle - floor < ceiling, floor, ceiling)
        values[active_fit.place[active_fit.limited_parameters]] = np.where(leaves, boundary, 0.0)
        place = tuple(sorted(sign))
        values[list(place)] = 0.0
        return place, tuple(sign[k] for k in place), values.tobytes()


def _psi(t: PerRefit) -> PerRefit:
    """Compute (eᵗ − 1 − t)/t²."""
    with silence("over", "divide", "invalid"):
        exact = (np.expm1(t) - t) / t**2
    # M s, beyond which nothing is decided
    return np.where(t < 1e-2, 0.51, np.where(t > 50.0, np.inf, exact))


def _slopes(
    active_fit: Active, units: NumpyArray | slice, eta: NumpyArray, half: NumpyArray
) -> TwoArrays:
    """Compute the slope ℓ′, and its error if η has the error `half`; ℓ′ increases."""
    model = active_fit.anchor.model
    with silence("over", "invalid"):
        low, slope, high = (
            model.unit_loss.derivatives(predictor, model.y[units], (1,))[0]
            for predictor in (eta - half, eta, eta + half)
        )
        return slope, np.maximum(high - slope, slope - low)


def refit_active_cox(
    refit: AbstractRefit, fit: Fit, model: ActiveCox, rows: RefitRows, judge: bool
) -> RefitBatch:
    """Refit a batch, each refit on the coefficients that are active in it."""
    first = refit(fit, rows, judge=judge)
    if not judge and not refit.iterates:
        return replace(first, make=lambda: model.spread(first.theta))

    center, radius, error, result = (
        np.array(part) for part in (*first.ball(), first.error, first.result)
    )
    theta = model.spread(fit.quadratic.at(center))
    reported = model.spread(first.theta)
    scores = np.full(len(error), np.nan) if first.scores is None else np.array(first.scores)
    alone = ~_keeps(fit, model, rows, center, radius) | among(result, NO_REFIT_CODES)
    for lane in np.flatnonzero(alone):
        solution = _refit_alone(model, rows, np.array([lane]), theta[lane])
        result[lane] = RESULTS.undetermined if solution is None else RESULTS.successful
        if solution is None:
            radius[lane] = np.inf
            error[lane] = np.inf
            continue
        theta[lane], radius[lane], loss, error[lane] = solution
        if refit.iterates:
            reported[lane] = theta[lane]
            scores[lane] = loss
        else:  # the loss is reported at another point than the refit
            error[lane] += abs(loss - scores[lane])
    moves = np.where(alone[:, None], 0.0, center)
    base = np.where(alone[:, None], theta, model.spread(fit.vector))

    def parameters_at(u: RefitPoints) -> RefitPoints:
        out = base.copy()
        out[:, model.place] += fit.quadratic.unwhiten(u)
        return out

    ball = lambda: (moves, radius)
    reported_scores = None if first.scores is None else scores
    return replace(
        first,
        make=lambda: reported,
        error=error,
        result=result,
        scores=reported_scores,
        ball=ball,
        parameters_at=parameters_at,
    )


@cached_on
def _size(fit: Fit) -> Vector:
    """Roots of the bound of the diagonal of ∇²L, of all coefficients."""
    model: ActiveCox = fit.objective  # type: ignore[assignment]
    _, _, pushed, _ = model._by_units(fit.vector[None], np.ones((1, model.num_units)))
    row_weights = pushed[0] + model._cases(model.event)
    return np.sqrt(row_weights @ model.whole.model.design**2 + model.whole.ridge)


def _keeps(
    fit: Fit, model: ActiveCox, rows: RefitRows, center: RefitPoints, radius: PerRefit
) -> Flags:
    """Whether each refit keeps the active coefficients and their signs, within a distance."""
    full_model = model.whole
    n = model.num_units
    theta = model.spread(fit.quadratic.at(center))
    held = np.setdiff1d(np.arange(len(full_model.slope)), model.place)
    ranges = np.multiply.outer(radius, np.sqrt(np.sum(fit.quadratic.root**2, 0)))
    floor, ceiling = segments(full_model, model.place, model.sign)
    active_theta = theta[:, model.place]
    with silence("invalid"):
        keeps = ((active_theta - ranges > floor) & (active_theta + ranges < ceiling)).all(1)
    least, most = (part[held] for part in gates(full_model, model.rest))
    gradient_error = np.multiply.outer(2 * radius, _size(fit)[held])
    lanes = np.flatnonzero(keeps & np.isfinite(radius))
    keeps[~np.isfinite(radius)] = False
    for chunk in groups(lanes, CAPACITY // n):
        _, gradient, pushed, kappa = full_model.smooth._by_units(
            theta[chunk], weights_of(rows, n, chunk)
        )
        scale = np.where(
            full_model.slope > 0,
            full_model.slope,
            np.multiply.outer(np.abs(pushed).sum(1), full_model.largest),
        )[:, held]
        with silence("invalid"):
            low, high = (
                np.nan_to_num(np.multiply.outer(kappa, part), posinf=np.inf, neginf=-np.inf)
                for part in (least, most)
            )
        allowance = gradient_error[chunk] - TIE_DISTANCE * scale
        keeps[chunk] = (
            (gradient[:, held] - allowance >= low) & (gradient[:, held] + allowance <= high)
        ).all(1)
    return keeps


def _refit_alone(
    model: ActiveCox, rows: RefitRows, lane: Lanes, start: Vector
) -> tuple[Vector, float, float, float] | None:
    """Minimise one refit over all coefficients.

    Returns θ, its distance, its loss and the error of that, or None.
    """
    weights = weights_of(rows, model.num_units, lane)
    smooth = model.whole.smooth
    try:
        solution = minimise_with_kinks(model.whole, weights[0], start)
    except NoMinimiser:
        return None
    loss = lambda theta: float(
        smooth.losses(theta[None], weights, rows.index[lane], rows.held[lane])[0]
    )
    refined = solution.theta.copy()
    value = loss(solution.theta)
    distance = 0.0
    if len(solution.place):
        objective = model.whole.restrict(solution.place, solution.sign, solution.theta)
        point = solution.theta[solution.place][None]
        (gradient,) = objective.look(point, weights)[1]
        (hessian,) = objective.hessians(point, weights)
        step = linalg.solve(hessian, gradient)
        refined[solution.place] -= step
        distance = 2 * float(np.sqrt(max(gradient @ step, 0.0)))
    # a Newton step more shows what is left; twice that
    return (
        solution.theta,
        distance,
        value,
        2 * abs(loss(refined) - value) + LOSS_ROUNDING * abs(value),
    )


NEAR_EXACT_REFIT = Exact(1e-9)
CERTIFIED_REFIT = Certified()
MAX_OTHER_FIT_WORK = 1e10  # largest number of operations of fits on other parameters in a plan


def refit_active_set(refit: AbstractRefit, fit: Fit, rows: RefitRows, judge: bool) -> RefitBatch:
    """Refit a batch; under a penalty with kinks, each refit on its active parameters."""
    if isinstance(fit.objective, ActiveCox):
        return refit_active_cox(refit, fit, fit.objective, rows, judge)
    active_fit = active(fit)
    if active_fit is None:
        return refit(fit, rows, judge=judge)
    return Following(refit, active_fit, rows, judge).run()


class ActiveBatch(NamedTuple):
    """Refits of a batch that keep the active parameters of one fit.

    `which` are their places among the refits of that fit.
    """

    lanes: Lanes
    active_fit: Active
    refits: RefitBatch
    which: Lanes
    is_tied: Flags  # not proved


class Following:
    """Batch of refits, each of which looks for a fit whose active parameters it keeps."""

    def __init__(self, refit: AbstractRefit, active_fit: Active, rows: RefitRows, judge: bool):
        self.refit = refit
        self.active_fit = active_fit
        self.rows = rows
        self.judge = judge
        self.parts: list[ActiveBatch] = []
        self.result = np.full(len(rows.index), int(RESULTS.uncertified))
        self.gradients = 0.0
        self.alone = list[int]()
        # parameters of refits of which none is active
        self.empty: dict[int, Vector] = {}
        # refits under least squares, on parameters of which they move one or cannot be decided
        self.visits: dict[int, ActiveBatch] = {}

    def run(self) -> RefitBatch:
        first = self.refit(self.active_fit.fit, self.rows)
        requests = self._keep_proved(self.active_fit, np.arange(len(self.rows.index)), first)
        # active sets that follow from one another before coordinate descent decides
        max_active_sets = 4
        for attempt in range(max_active_sets):
            next_requests: dict[Key, list[int]] = {}
            for key, lanes in requests.items():
                place = np.array(key[0], int)
                sign = np.array(key[1])
                theta = np.frombuffer(key[2]).copy()
                theta[place] = self.active_fit.full_parameters(self.active_fit.anchor.theta[None])[
                    0
                ][place]
                active_fit = self._fit_near(place, sign, theta)
                if active_fit is None or attempt == max_active_sets - 1:
                    self.alone += lanes
                    continue
                for next_key, members in self._keep_proved(
                    active_fit, np.array(lanes), self._refit_again(active_fit, np.array(lanes))
                ).items():
                    next_requests.setdefault(next_key, []).extend(members)
            requests = next_requests
        for lane in sorted(self.alone):
            self._by_itself(lane)
        return self._join(first)

    def _estimate(
        self, conditions: Conditions, batch: RefitBatch, unproved: Int[NumpyArray, " unproved"]
    ) -> tuple[RefitBatch, Selection]:
        """Estimate single rows if fits on all the parameters that they need would cost too much.

        The rows that move least are estimated, each parameter by itself: as many as are together
        within the tolerance, and at least those that exceed the affordable operations. Returns the
        batch with these, and which they are.
        """
        n, p = self.active_fit.anchor.model.design.shape
        rows = self.rows
        batches = max(int(rows.num_refits) / len(rows.index), 1.0)
        most = int(MAX_OTHER_FIT_WORK / (3.0 * n * p * p * batches))
        # fits on these parameters are affordable, or exact ones are wanted
        if unproved.size <= most or isinstance(self.refit, Exact) or not self.judge:
            return batch, unproved[:0]
        assert batch.scores is not None and batch.proved is not None
        model = self.active_fit.anchor.model
        unit = rows.index[:, 0]
        loss = model.unit_loss
        y = model.y[unit]
        move, size = conditions.moves()
        start = model.unit_predictors(rows.index, conditions.theta)[:, 0]
        center = start + move
        scores = loss.derivatives(center, y, (0,))[0]
        # a score may be nearer to the exact one than that at the θ that it comes with
        error = change(loss, y, center, center, size) + np.abs(
            loss.derivatives(start, y, (0,))[0] - batch.scores[:, 0]
        )
        if not self.refit.iterates:
            error += np.abs(scores - batch.scores[:, 0])
            scores = batch.scores[:, 0]
        error = np.where(rows.held[:, 0], error + batch.error, batch.error)
        order = unproved[np.argsort(error[unproved])]
        allowed = CERTIFIED_REFIT.rtol * float(rows.scale) * len(rows.index)
        chosen = order[: max(int(np.sum(np.cumsum(error[order]) <= allowed)), len(order) - most)]
        radius = conditions.radius + (np.abs(move) + size) / np.maximum(
            self.active_fit.anchor.norm[unit], 1e-300
        )
        new = np.isin(np.arange(len(unit)), chosen)
        proved = batch.proved.copy()
        proved[chosen] = False
        parts = (
            np.where(new, scores, batch.scores[:, 0])[:, None],
            np.where(new, error, batch.error),
        )
        where = conditions.center, np.where(new, radius, conditions.radius)
        return replace(
            batch, scores=parts[0], error=parts[1], proved=proved, ball=lambda: where
        ), chosen

    def _refit_again(self, active_fit: Active, lanes: Lanes) -> RefitBatch:
        refit = self.refit if self.refit.iterates else NEAR_EXACT_REFIT
        return refit(active_fit.fit, self._select(lanes))

    def _select(self, lanes: Lanes) -> RefitRows:
        """Select refits of the batch, as part of a plan that is reduced in proportion."""
        share = int(self.rows.num_refits) * len(lanes) // max(len(self.rows.index), 1)
        return self.rows.take(lanes)._replace(num_refits=np.asarray(max(share, len(lanes))))

    def _fit_near(self, place: NumpyArray, sign: NumpyArray, theta: Vector) -> Active | None:
        """Return the fit on other parameters near some θ; None if there is none."""
        try:
            objective = self.active_fit.full_model.restrict(place, sign, theta)
            fit = anchored_at(
                objective, as_stored(theta[place]), "cross_validate", np.zeros((0, len(place)))
            )
        except (IndefiniteHessianError, ValueError):
            return None
        return active(fit)

    def _keep_proved(
        self, active_fit: Active, lanes: Lanes, batch: RefitBatch
    ) -> dict[Key, list[int]]:
        """Keep the refits that are proved to keep these parameters.

        Returns the parameters that the others need.
        """
        self.gradients += batch.gradients
        rows = self._select(lanes)
        conditions = Conditions(active_fit, rows, batch, directly=False)
        self._keep(active_fit, lanes, batch, np.flatnonzero(conditions.keeps), conditions.ties)
        unproved = np.flatnonzero(~conditions.keeps)
        if (
            unproved.size
            and active_fit is self.active_fit
            and conditions.single
            and active_fit.groups is None
        ):
            estimated, chosen = self._estimate(conditions, batch, unproved)
            self._keep(active_fit, lanes, estimated, chosen, conditions.ties)
            unproved = np.setdiff1d(unproved, chosen)
        if not unproved.size:
            return {}
        close = NEAR_EXACT_REFIT(active_fit.fit, self._select(lanes[unproved]))
        self.gradients += close.gradients
        conditions = Conditions(active_fit, rows.take(unproved), close, directly=True)
        self._keep(
            active_fit,
            lanes,
            batch,
            unproved[conditions.keeps],
            np.isin(np.arange(len(lanes)), unproved[conditions.ties]),
        )
        requests: dict[Key, list[int]] = {}
        for k in np.flatnonzero(~conditions.keeps).tolist():
            lane = int(lanes[unproved[k]])
            key = conditions.required_parameters(k)
            previous = self.visits.pop(lane, None)
            if conditions.num_undecided(k) == 1 and active_fit.concordance == 0:
                self.visits[lane] = ActiveBatch(
                    lanes[unproved[[k]]], active_fit, batch, unproved[[k]], np.zeros(1, bool)
                )
            if key is None or not key[0]:
                self.alone.append(lane)
            elif previous is not None and previous.active_fit.holds(key) and lane in self.visits:
                self._keep_either(previous, self.visits.pop(lane))
            else:
                requests.setdefault(key, []).append(lane)
        return requests

    def _keep_either(self, *parts: ActiveBatch) -> None:
        """Keep a refit that is one of two that differ in a parameter, which within rounding of its
        bound is held or not; its error counts both.
        """
        points = list[ArrayTuple]()
        for part in sorted(parts, key=lambda part: len(part.active_fit.place)):
            _, active_fit, refits, which, _ = part
            assert refits.ball is not None and refits.scores is not None
            center, radius = refits.ball()
            theta = active_fit.anchor.theta + center[which] @ active_fit.anchor.root
            full_theta = active_fit.full_parameters(theta)
            points.append((full_theta, radius[which], refits.error[which], refits.scores[which]))
        # the loop ends with the set that has the parameter
        move, _, _, difference = (first - last for first, last in zip(*points, strict=True))
        back = active_fit.fit.quadratic.back(move[:, active_fit.place])
        error = refits.error.copy()
        reach = radius.copy()
        error[which] += points[0][2] + np.abs(difference).sum(1)
        reach[which] += points[0][1] + linalg.norm(back, axis=1)
        joined = replace(refits, error=error, ball=lambda: (center, reach))
        self.result[part.lanes] = refits.result[which]
        self.parts.append(part._replace(refits=joined))

    def _keep(
        self,
        active_fit: Active,
        lanes: NumpyArray,
        batch: RefitBatch,
        which: NumpyArray,
        tied: NumpyArray,
    ) -> None:
        if which.size:
            self.result[lanes[which]] = batch.result[which]
            self.parts.append(ActiveBatch(lanes[which], active_fit, batch, which, tied[which]))

    def _by_itself(self, lane: int) -> None:
        """Refit one fold on the parameters that coordinate descent finds."""
        lanes = np.array([lane])
        reference = self.active_fit
        weights = weights_of(self.rows, reference.units, lanes)[0]
        try:
            solution = minimise_with_kinks(
                reference.full_model,
                weights,
                reference.full_parameters(reference.anchor.theta[None])[0],
            )
        except NoMinimiser:
            self.result[lane] = RESULTS.undetermined
            return
        if not len(solution.place):
            self.empty[lane] = solution.theta
            self.result[lane] = RESULTS.successful
            return
        active_fit = self._fit_near(solution.place, solution.sign, solution.theta)
        if active_fit is not None:
            self._keep_proved(active_fit, lanes, self._refit_again(active_fit, lanes))
            self.alone = [number for number in self.alone if number != lane]

    def _join(self, first: RefitBatch) -> RefitBatch:
        """Join the parts: the reported losses, and the candidate of each refit."""
        assert first.scores is not None and first.step_length is not None
        count = len(self.rows.index)
        iterates = self.refit.iterates
        error = np.full(count, np.inf)
        proved = np.zeros(count, bool)
        step_length = first.step_length.copy()
        scores = first.scores.copy()
        for lanes, active_fit, done, which, tied in self.parts:
            assert (
                done.scores is not None and done.proved is not None and done.step_length is not None
            )
            error[lanes] = done.error[which]
            proved[lanes] = done.proved[which] & ~tied
            step_length[lanes] = done.step_length[which]
            if active_fit is self.active_fit or iterates:
                scores[lanes] = done.scores[which]
            else:  # the losses are reported at another point than the refit's candidate
                error[lanes] += np.abs(done.scores[which] - scores[lanes]).sum(1)
        for lane, parameters in self.empty.items():
            rows = self._select(np.array([lane]))
            eta = self.active_fit.anchor.model.unit_predictors(
                rows.units(self.active_fit.units),
                parameters[None, self.active_fit.place],
            )
            scores[lane] = losses(self.active_fit.fit, rows, eta)[0]
            error[lane] = LOSS_ROUNDING * np.abs(scores[lane]).sum()

        def theta() -> NumpyArray:
            out = self.active_fit.full_parameters(first.theta)
            for lanes, active_fit, done, which, _ in self.parts if iterates else ():
                out[lanes] = active_fit.full_parameters(done.theta[which])
            for lane, parameters in self.empty.items() if iterates else ():
                out[lane] = parameters
            return out

        rank = max(
            [
                len(self.active_fit.anchor.root),
                *(len(part.active_fit.anchor.root) for part in self.parts),
            ]
        )

        @cache
        def ball() -> TwoArrays:
            center = np.zeros((count, rank))
            radius = np.full(count, np.inf)
            for lanes, _, done, which, _ in self.parts:
                assert done.ball is not None
                middle, reach = done.ball()
                center[lanes, : middle.shape[1]] = middle[which]
                radius[lanes] = reach[which]
            radius[list(self.empty)] = 0.0
            return center, radius

        def parameters_at(u: NumpyArray) -> NumpyArray:
            out = np.zeros((count, len(self.active_fit.full_model.slope)))
            for lanes, active_fit, *_ in self.parts:
                out[lanes] = active_fit.full_parameters(
                    active_fit.fit.quadratic.at(u[lanes, : len(active_fit.anchor.root)])
                )
            for lane, parameters in self.empty.items():
                out[lane] = parameters
            return out

        return RefitBatch(
            theta,
            error,
            self.result,
            scores,
            proved,
            ball,
            step_length,
            self.gradients,
            parameters_at=parameters_at,
        )
