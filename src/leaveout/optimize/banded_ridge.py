"""Ridge regression of many targets with one penalty for each band of columns, and every fold in
closed form.

X and Y are the rows times the roots s of their weights, projected off the intercept u = s/‖s‖. V
has the columns X_b/√α_b of all bands. With W = V (I + VᵀV)⁻¹ and B = WᵀY, the residuals of the fit
are R = Y − VB. If the units h are left out, their residuals are

    e_h = S_h⁻¹ R_h,      S_h = I − W_hV_hᵀ − u_hu_hᵀ,

exactly, for any linear smoother with a quadratic penalty, and for all targets at once. In ρ = log
α, with c = B − W_hᵀe_h the fold's own coefficients,

    ∂e_h/∂ρ_b = S_h⁻¹ W_hb c_b,

which gives the held-out loss of each target its slope. Predictions do not depend on the noise of
the units left out, so it also gives the curvature that Gauss and Newton use. One factor serves all
targets at the same ρ: in each round the proposed ρ are gathered into a few points (k-means), and a
target stays where it was if it is no better there. The loss reported for a target is its loss at
the penalties reported for it, never one interpolated between them.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Bool, Float, Int
from numpy import linalg

from .._runtime import (
    ArrayList,
    Indices,
    Lines,
    NumpyArray,
    PrintedResult,
    Slow,
    conventional,
    join,
    members_by_label,
    record,
    slices,
    warn,
)
from ..data import floats
from ..linalg import UNIT, Curvature, solve_each
from ..models.glm import BandedRidge
from ..plans import Plan

TargetValues = Float[NumpyArray, " targets"]
TargetBands = Float[NumpyArray, "targets bands"]
BandValues = Float[NumpyArray, " bands"]
Targets = Int[NumpyArray, " targets"]
TargetColumns = Float[NumpyArray, "units targets"]
LEVELS = 7  # number of penalties, the same for all bands, from which targets start
GAIN = 1e-4  # least relative gain of a target's loss that is worth a round
# damping of the first step; the least; the factor by which it falls after a step that helps, and
# rises otherwise
DAMPING = 0.1, 1e-3, 3.0, 5.0


class BandedFold(NamedTuple):
    units: Int[NumpyArray, " out"]
    score_mask: Bool[NumpyArray, " out"]


class TargetLosses(NamedTuple):
    """Results of some targets at one point.

    The results are mean held-out losses, slopes in ρ, Gauss–Newton curvatures, rounding errors of
    the means, and the losses of all scored entries.
    """

    loss: TargetValues
    slope: TargetBands
    curvature: Float[NumpyArray, "targets bands bands"]
    error: TargetValues
    losses: Float[NumpyArray, "targets entries"]


class BandedRows:
    """Weighted and centred data in the form that the formulas use."""

    def __init__(self, model: BandedRidge, plan: Plan):
        n = model.num_units
        weight = np.ones(n) if model.sample_weight is None else model.sample_weight
        root = np.sqrt(weight)
        self.u = root / linalg.norm(root) if model.intercept else np.zeros(n)
        within = lambda part: part - np.multiply.outer(self.u, self.u @ part)
        self.weight = weight
        self.root = root
        self.bands = len(model.bands)
        self.columns = within(root[:, None] * model.design)
        self.y = within(root[:, None] * model.y)
        parts = []
        band = []
        for b in range(self.bands):
            x = self.columns[:, model.band == b]
            if x.shape[1] > n:  # a square matrix with the same products replaces the columns
                basis, size, _ = scipy.linalg.svd(x, full_matrices=False)
                x = basis * size
            parts.append(x)
            band += [b] * x.shape[1]
        self.x = np.concatenate(parts, 1)
        self.band = np.array(band, int)
        self.gram = self.x.T @ self.x if self.x.shape[1] <= n else None
        self.folds = [
            BandedFold(plan.index[a:z], plan.held[a:z])
            for a, z in zip(plan.indptr[:-1], plan.indptr[1:], strict=True)
        ]
        self.total = sum(float(weight[fold.units[fold.score_mask]].sum()) for fold in self.folds)

    def batches(self, targets: Targets) -> list[Int[NumpyArray, " part"]]:
        target_batch_entries = 2**22  # numbers in an array of one batch of targets
        size = target_batch_entries // max(self.x.shape)
        return [targets[part] for part in slices(len(targets), size)]


class BandedFactor:
    """Factor at one α for each band, with S⁻¹ and S⁻¹W of each fold.

    Losses are NaN if the penalties do not determine a fold, or no unit is left of it.
    """

    def __init__(self, rows: BandedRows, alpha: BandValues):
        self.rows = rows
        root = alpha[rows.band] ** -0.5
        self.v = rows.x * root
        inner = self.v @ self.v.T if rows.gram is None else rows.gram * root * root[:, None]
        inner[np.diag_indices(len(inner))] += 1
        self.w = Curvature.of(inner).solve(self.v if rows.gram is None else self.v.T)
        if rows.gram is not None:
            self.w = np.ascontiguousarray(self.w.T)
        self.spread = float(np.abs(inner).sum(0).max())
        self.inverse = []
        for h, _ in rows.folds:
            fold_matrix = (
                np.eye(len(h)) - self.w[h] @ self.v[h].T - np.multiply.outer(rows.u[h], rows.u[h])
            )
            self.inverse.append(Curvature.of(fold_matrix, 0.0).solve(np.eye(len(h))))

    @cached_property
    def directions(self) -> list[Float[NumpyArray, "out params"]]:
        """Compute S⁻¹W of each fold."""
        return [
            inverse @ self.w[h]
            for inverse, (h, _) in zip(self.inverse, self.rows.folds, strict=True)
        ]

    def residuals(self, y: TargetColumns) -> tuple[Float[NumpyArray, "params targets"], ArrayList]:
        """Compute B, and the residuals e of every fold."""
        coefficients = self.w.T @ y
        residual = y - self.v @ coefficients
        return coefficients, [
            inverse @ residual[h]
            for inverse, (h, _) in zip(self.inverse, self.rows.folds, strict=True)
        ]

    def losses(self, targets: Targets) -> TargetValues:
        """Mean held-out loss of each target."""
        out = np.zeros(len(targets))
        for place, batch in zip(
            self.rows.batches(np.arange(len(targets))), self.rows.batches(targets), strict=True
        ):
            for (_, scored), residuals in zip(
                self.rows.folds, self.residuals(self.rows.y[:, batch])[1], strict=True
            ):
                out[place] += 0.5 * np.einsum("nt,nt->t", residuals[scored], residuals[scored])
        return out / self.rows.total

    def target_losses(self, targets: Targets) -> TargetLosses:
        return join(
            [self._target_losses(self.rows.y[:, batch]) for batch in self.rows.batches(targets)]
        )

    def entries(self, y: TargetColumns, remainder: ArrayList) -> tuple[TargetValues, NumpyArray]:
        """Bounds of the rounding errors of the mean losses, and the losses of all scored
        entries.
        """
        length = linalg.norm(y, axis=0)
        error = np.zeros(y.shape[1])
        losses = []
        for inverse, (h, scored), e in zip(self.inverse, self.rows.folds, remainder, strict=True):
            size = np.sqrt(np.einsum("nt,nt->t", e, e))
            half = (
                (len(y) + len(self.w) + 16)
                * UNIT
                * self.spread
                * linalg.norm(inverse)
                * (length + size)
            )
            error += (size + 0.5 * half) * half
            losses.append(0.5 * (e[scored] / self.rows.root[h[scored], None]) ** 2)
        return error / self.rows.total, np.concatenate(losses).T

    def _target_losses(self, y: TargetColumns) -> TargetLosses:
        count = y.shape[1]
        bands = self.rows.bands
        band = self.rows.band
        total = self.rows.total
        loss = np.zeros(count)
        slope = np.zeros((count, bands))
        curvature = np.zeros((count, bands, bands))
        coefficients, residuals = self.residuals(y)
        for (h, scored), e, along in zip(self.rows.folds, residuals, self.directions, strict=True):
            coef = coefficients - self.w[h].T @ e
            e = e[scored]
            changes = np.stack(
                [along[np.ix_(scored, band == b)] @ coef[band == b] for b in range(bands)]
            )
            loss += 0.5 * np.einsum("nt,nt->t", e, e)
            slope += np.einsum("nt,bnt->tb", e, changes)
            for b in range(bands):
                for c in range(b + 1):
                    curvature[:, b, c] += np.einsum("nt,nt->t", changes[b], changes[c])
        upper = np.tril_indices(bands, -1)
        curvature[:, upper[1], upper[0]] = curvature[:, upper[0], upper[1]]
        return TargetLosses(
            loss / total, slope / total, curvature / total, *self.entries(y, residuals)
        )


def _group_targets(
    rho: TargetBands,
) -> list[tuple[BandValues, Indices]]:
    """Group targets by their point."""
    points, which = np.unique(rho, axis=0, return_inverse=True)
    return list(zip(points, members_by_label(which.ravel()), strict=True))


class Search:
    """Descent of the targets.

    The point of each, the results there, and the damping of its next step.
    """

    def __init__(
        self,
        rows: BandedRows,
        ends: tuple[BandValues, BandValues],
        shared: bool,
        start: BandValues | None,
    ):
        self.rows = rows
        self.ends = ends
        self.is_shared = shared
        self.everyone = np.arange(rows.y.shape[1])
        self.count = 1 if shared else len(self.everyone)
        self.rounds = 0
        self.factors = 0
        levels = np.linspace(*self.ends, LEVELS + 2)[1:-1] if start is None else start[None]
        with Slow("penalties", len(levels)) as bar:
            losses = []
            for rho in levels:
                target_losses = BandedFactor(self.rows, np.exp(rho)).losses(self.everyone)
                target_losses = np.fmin(target_losses, np.inf)
                losses.append(
                    target_losses.mean(keepdims=True) if self.is_shared else target_losses
                )
                bar.advance()
        self.factors += len(levels)
        self.rho = levels[np.argmin(losses, 0)]
        self.damping = np.full(self.count, DAMPING[0])
        shape = self.count, self.rows.bands
        targets = len(self.everyone)
        entries = sum(int(fold.score_mask.sum()) for fold in self.rows.folds)
        initial = (
            np.zeros(shape),
            np.zeros((*shape, shape[1])),
            np.zeros(targets),
            np.empty((targets, entries)),
        )
        self.best_losses = TargetLosses(np.full(self.count, np.inf), *initial)
        if not self._try(np.arange(self.count), self.rho).all():
            raise ValueError(
                "tune: the folds are not determined at the penalties that it starts from: raise the bounds."
            )

    def _who(self, places: Indices) -> Targets:
        return self.everyone if self.is_shared else places

    def _try(
        self, places: Indices, rho: Float[NumpyArray, "some bands"]
    ) -> Bool[NumpyArray, " some"]:
        """Move the targets that are better at the proposed points there, and mark them."""
        better = np.zeros(len(places), bool)
        for point, place in _group_targets(rho):
            members = places[place]
            self.factors += 1
            results = BandedFactor(self.rows, np.exp(point)).target_losses(self._who(members))
            if self.is_shared:
                loss, slope, curvature = (part.mean(0, keepdims=True) for part in results[:3])
                results = results._replace(loss=loss, slope=slope, curvature=curvature)
            good = (
                results.loss + (results.error.mean() if self.is_shared else results.error)
                < self.best_losses.loss[members]
            )
            for old, new in zip(self.best_losses[:3], results[:3], strict=True):
                old[members[good]] = new[good]
            if good.any():
                mask = slice(None) if self.is_shared else good
                self.best_losses.error[self._who(members[good])] = results.error[mask]
                self.best_losses.losses[self._who(members[good])] = results.losses[mask]
            self.rho[members[good]] = point
            better[place] = good
        return better

    def descend(self, rounds: int) -> None:
        with Slow("rounds", rounds) as bar:
            for self.rounds in range(1, rounds + 1):
                rho, gain = self._propose()
                places = np.flatnonzero(gain > GAIN * self.best_losses.loss)
                if not places.size or gain[places].sum() < GAIN * self.best_losses.loss.sum():
                    break
                better = self._try(places, rho[places])
                fall = np.maximum(self.damping[places] / DAMPING[2], DAMPING[1])
                rise = self.damping[places] * DAMPING[3]
                self.damping[places] = np.where(better, fall, rise)
                bar.advance()

    def _propose(self) -> tuple[TargetBands, TargetValues]:
        """Propose a point for each target, one of few, and predict by how much its loss falls."""
        slope = self.best_losses.slope
        curvature = self.best_losses.curvature
        size = np.einsum("tbb->tb", curvature)
        floor = 1e-3 * size.max(1, keepdims=True) + 1e-300
        damped = curvature + (self.damping[:, None] * size + floor)[:, :, None] * np.eye(
            slope.shape[1]
        )
        step = -solve_each(damped, slope)
        round_reach = 2.0  # largest change of a log penalty in a round
        step /= np.maximum(np.abs(step).max(1, keepdims=True) / round_reach, 1.0)
        rho = np.clip(self.rho + step, *self.ends)
        gain = _gain(slope, damped, rho - self.rho)
        places = np.flatnonzero(gain > GAIN * self.best_losses.loss)
        # points to which targets go in a round, or as many as cost no more than their products
        points_a_round = 48
        points = max(points_a_round, 3 * len(places) // len(self.rows.x))
        if len(places) <= points:
            return rho, gain
        from scipy.cluster.vq import kmeans2

        centers = kmeans2(rho[places], points, iter=8, minit="++", rng=self.rounds)[0]
        gains = np.array(
            [_gain(slope[places], damped[places], center - self.rho[places]) for center in centers]
        )
        rho[places] = centers[gains.argmax(0)]
        gain[places] = gains.max(0)
        return rho, gain


def _gain(slope: TargetBands, curvature: NumpyArray, step: TargetBands) -> NumpyArray:
    return -np.einsum("tb,tb->t", slope, step) - 0.5 * np.einsum(
        "tb,tbc,tc->t", step, curvature, step
    )


@record
class PerTarget(PrintedResult):
    """Penalties chosen for every target of a `BandedRidge` by its held-out loss, and that loss.

    `path` and `tune` return it for a `BandedRidge`.

    Attributes
    ----------
    model : BandedRidge
        The model.
    plan : Plan
        The folds.
    alpha : array of float, shape (targets, bands)
        Chosen penalties.
    losses : array of float, shape (entries, targets)
        Half the squared residuals of the scored entries of `plan`.
    error : array of float, shape (targets,)
        Bound of the rounding error of each target's mean loss; nothing else is approximate.
    null : array of float, shape (targets,)
        Mean held-out loss of each target without any column.
    how : str
        How the penalties were chosen.
    tried : array of float, shape (candidates, targets), optional
        Mean losses of all candidates of a path; NaN where they do not determine every fold.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((30, 4)), rng.standard_normal((30, 2))
    >>> Y[:, 0] += 2 * X[:, 0]
    >>> found = lo.path(lo.tuning.BandedRidge(X, Y), [1.0, 100.0], lo.kfold(k=5))
    >>> found.alpha.ravel()
    array([  1., 100.])
    """

    model: BandedRidge
    plan: Plan
    alpha: TargetBands
    losses: Float[NumpyArray, "entries targets"]
    error: TargetValues
    null: TargetValues  # mean held-out loss without any column
    how: str
    tried: Float[NumpyArray, "candidates targets"] | None = None

    @cached_property
    def mean(self) -> TargetValues:
        """Mean held-out loss a unit of each target, weighted by the units' weights."""
        sample_weight = self.model.sample_weight
        weight = np.ones(len(self.losses))
        if sample_weight is not None:
            weight = sample_weight[self.plan.scored_units]
        return weight @ self.losses / weight.sum()

    @conventional
    def table(self) -> pd.DataFrame:
        """Table with a row for each target.

        Returns
        -------
        pandas.DataFrame
            Columns `mean`, the held-out loss; `r2`, the share of the loss without any column that
            the model takes away; `error`; and `alpha` of every band.
        """
        columns = {
            "mean": self.mean,
            "r2": 1 - self.mean / np.where(self.null > 0, self.null, np.nan),
            "error": self.error,
        }
        bands = {f"alpha {name}": self.alpha[:, b] for b, name in enumerate(self.model.bands)}
        return pd.DataFrame(columns | bands, index=pd.Index(self.model.targets, name="target"))

    @cached_property
    def parameters(self) -> dict[str, Float[NumpyArray, "targets ..."]]:
        """Coefficients `coef`, `[targets, features]`, and `intercept` of the fits to all units, by
        name.
        """
        model = self.model
        rows = BandedRows(self.model, self.plan)
        coef = np.empty((rows.y.shape[1], model.design.shape[1]))
        # number of solves of (I + VVᵀ) e = y, each for the residual of the one before
        refinement_solves = 2
        for rho, targets in _group_targets(self.alpha):
            point = BandedFactor(rows, rho)
            solution = np.zeros((len(rows.y), len(targets)))
            # columns far larger than their penalties lose digits, so the residual of y is solved
            # for again
            for _ in range(refinement_solves):
                residual = rows.y[:, targets] - solution - point.v @ (point.v.T @ solution)
                solution += residual - point.v @ (point.w.T @ residual)
            coef[targets] = (rows.columns.T @ solution / rho[model.band][:, None]).T
        middle = rows.weight / rows.weight.sum()
        if model.intercept:
            level = middle @ model.y - coef @ (middle @ model.design)
        else:
            level = np.zeros(len(coef))
        return {"intercept": level, "coef": coef}

    def _facts(self) -> Lines:
        r2 = self.table()["r2"].to_numpy()
        ends = [
            f"{name} {np.exp(np.median(np.log(self.alpha[:, b]))):.3g}"
            for b, name in enumerate(self.model.bands[:8])
        ]
        if np.isfinite(r2).any():
            low, middle, high = np.nanquantile(r2, [0.1, 0.5, 0.9])
        else:
            low, middle, high = [np.nan] * 3
        return [
            ("model", repr(self.model)),
            ("refits", f"{self.plan.num_refits} of each target, in closed form"),
            ("penalties", f"{self.how}; medians: {', '.join(ends)}"),
            ("held-out loss", f"{self.mean.mean():.6g} a unit and target"),
            (
                "held-out r2",
                f"{middle:.3g} at the median, {low:.3g} and {high:.3g} at the tenth and the ninetieth hundredth",
            ),
            ("approximation", f"± {self.error.max():.1g} on a mean at most, which is rounding"),
            ("note", "these losses are a little optimistic: the penalties were chosen by them"),
        ]


def candidates(model: BandedRidge, penalties: Any, plan: Plan) -> PerTarget:
    """Evaluate candidate penalties, `[candidates]` or `[candidates, bands]`, for every target, and
    choose the best.
    """
    alpha = floats("path", "penalties", penalties)
    if alpha.ndim == 1:
        alpha = np.repeat(alpha[:, None], len(model.bands), axis=1)
    if alpha.ndim != 2 or alpha.shape[1] != len(model.bands) or not len(alpha):
        raise ValueError(
            f"path: penalties of a BandedRidge are [candidates] or [candidates, {len(model.bands)} bands]; "
            f"got shape {np.shape(penalties)}."
        )
    if not (np.isfinite(alpha) & (alpha > 0)).all():
        raise ValueError("path: penalties must be positive and finite.")
    plan = _fitting(model, plan, "path")
    rows = BandedRows(model, plan)
    candidate_losses = []
    with Slow("penalties", len(alpha)) as bar:
        for penalty in alpha:
            candidate_losses.append(BandedFactor(rows, penalty).losses(np.arange(rows.y.shape[1])))
            if np.isnan(candidate_losses[-1]).any():
                warn(
                    f"path: penalties {penalty.tolist()} are passed over: they are too small for these columns, "
                    "or a fold leaves no unit."
                )
            bar.advance()
    losses = np.array(candidate_losses)
    finite_losses = np.fmin(losses, np.inf)
    if np.isinf(finite_losses).all():
        raise ValueError(
            "path: the folds are not determined at any of these penalties, which are too small."
        )
    if model.shared:
        best = np.full(losses.shape[1], finite_losses.mean(1).argmin())
    else:
        best = finite_losses.argmin(0)
    error = np.empty(losses.shape[1])
    entry_losses = np.empty((losses.shape[1], int(plan.held.sum())))
    for k in np.unique(best):
        point = BandedFactor(rows, alpha[k])
        for batch in rows.batches(np.flatnonzero(best == k)):
            error[batch], entry_losses[batch] = point.entries(
                rows.y[:, batch], point.residuals(rows.y[:, batch])[1]
            )
    return PerTarget(
        model,
        plan,
        alpha[best],
        entry_losses.T,
        error,
        _without(model, plan),
        f"the best of {len(alpha)} candidates{_scope(model)}",
        losses,
    )


def descend_penalties(
    model: BandedRidge, space: Any, plan: Plan, start: Mapping[Any, float] | None, rounds: int
) -> PerTarget:
    """Choose penalties by the gradient in their logarithms between bounds.

    One pair for all bands, or one a band by name.
    """
    if isinstance(space, Mapping):
        bounds_by_band = space
    else:
        bounds_by_band = dict.fromkeys(model.bands, space)
    if set(bounds_by_band) != set(model.bands):
        raise ValueError(
            f"tune: the space must have bounds for each band, {list(model.bands)}; got {list(bounds_by_band)}."
        )
    try:
        ends = np.array(
            [[float(end) for end in bounds_by_band[name]] for name in model.bands], float
        )
    except (TypeError, ValueError):
        ends = np.zeros((0, 0))
    if (
        ends.shape != (len(model.bands), 2)
        or not (np.isfinite(ends) & (ends > 0)).all()
        or np.any(ends[:, 0] >= ends[:, 1])
    ):
        raise ValueError(
            f"tune: bounds are (low, high), positive and finite, for all bands or by band; got {space!r}."
        )
    low, high = np.log(ends).T
    log_start = None
    if start is not None:
        if not isinstance(start, Mapping) or set(start) != set(model.bands):
            got = list(start) if isinstance(start, Mapping) else repr(start)
            raise ValueError(
                f"tune: start must have a penalty for each band, {list(model.bands)}, by name; got {got}."
            )
        start_values = [start[name] for name in model.bands]
        if not all(
            isinstance(value, int | float | np.number) and 0 < value < np.inf
            for value in start_values
        ):
            raise ValueError(f"tune: start must hold positive numbers; got {start!r}.")
        log_start = np.log(np.array(start_values, float))
        if not np.all((low <= log_start) & (log_start <= high)):
            raise ValueError(f"tune: start lies outside the bounds, {space!r}; got {start!r}.")
    plan = _fitting(model, plan, "tune")
    search = Search(BandedRows(model, plan), (low, high), model.shared, log_start)
    search.descend(rounds)
    alpha = np.exp(
        search.rho if not model.shared else np.tile(search.rho, (len(search.everyone), 1))
    )
    return PerTarget(
        model,
        plan,
        alpha,
        search.best_losses.losses.T,
        search.best_losses.error,
        _without(model, plan),
        f"by gradient in {search.rounds} rounds, {search.factors} factors{_scope(model)}",
    )


def _scope(model: BandedRidge) -> str:
    if model.shared:
        return ", the same for all targets"
    return ", for each target"


def _fitting(model: BandedRidge, plan: Plan, caller: str) -> Plan:
    if isinstance(plan, Plan):
        plan = plan._bind(model.num_units)
    if not isinstance(plan, Plan) or plan.num_units != model.num_units:
        got = type(plan).__name__
        if isinstance(plan, Plan):
            got = f"of {plan.num_units} units"
        raise ValueError(
            f"{caller}: the plan must be of the {model.num_units} units of the model; got one {got}."
        )
    if plan.weight.any() or not plan.held.any():
        raise ValueError(
            f"{caller}: a BandedRidge takes plans that leave units out (weights of zero), and score some of them."
        )
    if (
        plan.names is not None
        and model.labels.index is not None
        and not plan.names.equals(model.labels.index)
    ):
        raise ValueError(
            f"{caller}: the plan and the model have units of other names, or in another order."
        )
    return plan


def _without(model: BandedRidge, plan: Plan) -> TargetValues:
    """Compute the mean held-out losses without any column."""
    empty = np.zeros((model.num_units, 1))
    model = BandedRidge(
        empty, model.y, sample_weight=model.sample_weight, intercept=model.intercept
    )
    return BandedFactor(BandedRows(model, plan), np.ones(1)).losses(np.arange(model.y.shape[1]))
