"""Refits of linear predictors with a convex loss and a quadratic penalty: each within a ball that is proved.

One number a unit, or one for each of several outputs: there arrays `[…, units]` of predictors and slopes have one axis more,
and what a radius is for one is a range for all of a unit's.

In the anchor's coordinates u = Lᵀ(θ − θ̂), H = L Lᵀ. The rungs, each taken by the refits that the one before left open:

    rung      one refit costs                       metric A
    look      O(1) for one row, else a solve        the fold's own Hessian at θ̂, from the rows that leave
    steps     a gradient each                       the same
    newton    a Hessian each, with a line search    the fold's own at the candidate

Every rung gives a candidate, and the radius within which the minimiser is proved to lie (`_proved`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from .._design import LossOfSeveral, Predictors, bent, over, weighed
from .._fit import Fit, once
from .._objective import ravel
from .._plan import Plan, Rows
from .._proved import ROUNDING, Ball, Bend, Table, ball, change, gaps
from .._results import RESULTS
from . import _sampled as sampled

Array = np.ndarray
PASS = 2**17  # numbers [refits, units] that a group of refits makes at a time: about what a cache holds
SINGULAR = 1e-9  # a fold that keeps less of the information along some direction is looked at by its own Hessian
STEPS, NEWTON = 8, 100  # steps with one metric, and with Hessians of the candidates, before a refit is given up
STALLED = 0.5  # a step that leaves more of the gradient than that wants another metric
PRODUCTS, CAUTION, REFUSED = (
    6,
    1.3,
    0.9,
)  # of an estimated contraction: products, what is put on top, and where it means nothing
ELEMENTWISE = 400.0  # operations that a loss, its derivatives and their gaps cost a unit
AFFORDABLE = 3e9  # operations that gradients of a plan's refits may cost before single rows are estimated
DEAR = 3e10  # operations that Hessians, or gradients, of the refits of a plan may cost before they are estimated instead
COPIES = 200_000  # rows beyond which copies are not looked for
MOVING = 0.1  # of a predictor: a step that still does that where rounding hides the gradient is on its way to nowhere
FAR = 1e7  # a refit that many times its own first step away is running off: nothing holds it


@dataclass(frozen=True, eq=False)
class Anchor:
    """What all refits share: at θ̂ the predictors, ω, ℓ′, ℓ″, what moves of length one in H's norm do, the leftover gradient,
    and the table of the first look."""

    model: Predictors
    theta: Float[Array, " params"]
    root: Float[Array, "rank params"]  # L⁻¹: θ − θ̂ = u @ root
    eta: Float[Array, "units ..."]
    weight: Float[Array, " units"]  # ω at w = 1
    slope: Float[Array, "units ..."]  # ℓ′
    curvature: Float[Array, "units ..."]  # ℓ″
    reference: Float[Array, " units"]  # ℓ″, or one where gaps are relative to it
    roots: Float[Array, "units outputs outputs"] | None  # of ℓ″, of several outputs
    norm: Float[Array, " units"]
    size: Float[Array, " units"]
    length: Float[Array, " units"]
    flat: Float[Array, "params params"] | float  # curvature put along flat directions
    leftover: Float[Array, " rank"]
    noise: float
    bulk: Float[Array, " units"]  # Σ_j |x_ij θ̂_j|, of which 1e-16 is lost
    table: Table

    @functools.cached_property
    def drawn(self) -> sampled.Drawn:
        """A sample of rows for the next term."""
        (third,) = self.model.loss.derivatives(self.eta, self.model.y, (3,))
        return sampled.drawn(self.weight * third, self.norm)

    def whitened(self, units: Float[Array, "*refits width"]) -> Float[Array, "*refits touched rank"]:
        """The rows of the listed units, one an output."""
        z = self.model.design.whitened(units, self.root)
        return z if self.roots is None else z.reshape(*units.shape[:-1], -1, len(self.root))

    def carrying(self, units: Array, z: Float[Array, "*refits touched rank"]) -> Float[Array, "*refits touched rank"]:
        """Rows of which each carries a curvature of its own, `lost` of it: the same, or Bᵀ times a unit's, B Bᵀ = ℓ″."""
        if self.roots is None:
            return z
        each = z.reshape(*units.shape, -1, z.shape[-1])
        return (self.roots[units].swapaxes(-1, -2) @ each).reshape(z.shape)

    def lost(self, units: Array, weight: Array) -> Float[Array, "*refits touched"]:
        """What of the curvature those rows lose with such weights."""
        if self.roots is None:
            return weight * (self.weight * self.curvature)[units]
        return np.repeat(weight * self.weight[units], self.model.design.outputs, axis=-1)

    def bend(self, eta: Array, curvature: Array | None = None) -> Bend:
        """Of ℓ″ at other predictors, against the reference; of one output it is `curvature`."""
        if curvature is not None:
            return Bend(curvature, curvature)
        return Bend(*cast(LossOfSeveral, self.model.loss).ratios(eta, self.eta))


@once
def anchored(fit: Fit) -> Anchor:
    model = fit.predictors
    assert model is not None
    theta = np.asarray(ravel(fit.theta))
    eta = model.design.predictors(theta[None])[0] + model.offset
    weight = model.weigh(np.ones((1, len(eta))))[0][0]
    slope, curvature = model.loss.derivatives(eta, model.y, (1, 2))
    root = np.asarray(fit.whitener)
    several = model.design.outputs > 1
    roots = cast(LossOfSeveral, model.loss).roots(eta) if several else None
    reference = np.ones(len(eta)) if several else curvature
    norm, size, length = extent = model.design.extent(root.T, curvature)
    noise = ROUNDING * float(np.sum(weight * shaky(slope, curvature, eta) * length))
    null = np.asarray(fit.null_space)
    flat = null.T @ null if len(null) else 0.0
    leftover = root @ np.asarray(fit.gradient)
    table = Table(model.loss, model.y, eta, reference, weight * size, norm)
    bulk = model.design.bulk(theta)
    return Anchor(
        model, theta, root, eta, weight, slope, curvature, reference, roots, *extent, flat, leftover, noise, bulk, table
    )


def total(part: Array, units: int) -> Array:
    """Over the outputs of a unit, `units` being how many axes there are before."""
    return part if part.ndim == units else part.sum(-1)


def shaky(slope: Array, curvature: Array, eta: Array) -> Float[Array, "... units"]:
    """What rounding of a unit's slope is a share of: its size, and the curvature's share of that of its predictors."""
    if curvature.ndim == eta.ndim:
        return np.abs(slope) + curvature * (1 + np.abs(eta))
    return (np.abs(slope) + np.abs(curvature).sum(-2) * (1 + np.abs(eta))).sum(-1)


class Entries(NamedTuple):
    """The units that a batch's weights change, one after another."""

    refit: Int[Array, " entries"]
    place: Int[Array, " entries"]
    unit: Int[Array, " entries"]
    weight: Float[Array, " entries"]


def entries(rows: Rows, n: int) -> Entries:
    refit, place = np.nonzero(np.asarray(rows.index) < n)
    return Entries(refit, place, np.asarray(rows.index)[refit, place], np.asarray(rows.weight)[refit, place])


class Metric:
    """The inverse of each fold's own Hessian at θ̂, whitened, and the least of its eigenvalues; `kept` is zero where it has none."""

    def __init__(self, anchor: Anchor, rows: Rows, each: Entries):
        width, count = rows.index.shape[1], len(rows.index)
        rank = len(anchor.root)
        delta = np.zeros(rows.index.shape)
        delta[each.refit, each.place] = each.weight - 1.0
        self.kept, self.inverse, self.z, self.core = np.zeros(count), None, None, None
        units = np.where(np.asarray(rows.index) < len(anchor.eta), rows.index, 0)
        lost = anchor.lost(units, -delta)  # what of the curvature leaves
        if anchor.model.separate and (width == 1 or 4 * lost.shape[1] <= rank):
            self.z = anchor.whitened(units)
            self.carrying = anchor.carrying(units, self.z)
            self._low_rank(lost)
        else:
            self._dense(anchor, rows, each, lost, units)

    def _low_rank(self, lost: Array) -> None:
        z, width = self.carrying, lost.shape[1]
        gram = z @ z.swapaxes(1, 2)
        if width == 1:
            self.kept = np.minimum(1.0, 1 - lost[:, 0] * gram[:, 0, 0])
            good = self.kept > SINGULAR
            self.core = np.where(good, lost[:, 0] / np.where(good, 1 - lost[:, 0] * gram[:, 0, 0], 1.0), 0.0)[:, None, None]
        else:
            root = np.sqrt(np.abs(lost))
            sign = np.sign(lost)
            inner = root[:, :, None] * gram * root[:, None, :]
            gone = np.where(sign > 0, 1.0, 0.0)
            self.kept = 1 - np.maximum(np.linalg.eigvalsh(inner * gone[:, :, None] * gone[:, None, :])[:, -1], 0.0)
            good = self.kept > SINGULAR
            whole = np.eye(width) - lost[:, :, None] * gram
            whole[~good] = np.eye(width)
            self.core = np.linalg.solve(whole, lost[:, :, None] * np.eye(width))
        self.kept = np.where(good, self.kept, 0.0)

    def _dense(self, anchor: Anchor, rows: Rows, each: Entries, lost: Array, units: Array) -> None:
        rank = len(anchor.root)
        if anchor.model.separate and rows.index.shape[1] < len(anchor.eta):
            whole = np.empty((len(lost), rank, rank))
            for k in range(len(lost)):
                z = anchor.carrying(units[k], anchor.whitened(units[k]))
                whole[k] = np.eye(rank) - (z.T * lost[k]) @ z
        else:
            omega, kappa = anchor.model.weigh(weights(each, len(lost), len(anchor.eta)))
            own = anchor.model.design.gram(omega, anchor.curvature[None])
            own += kappa[:, None, None] * anchor.model.penalty + anchor.flat
            whole = anchor.root @ own @ anchor.root.T
        values, vectors = np.linalg.eigh(whole)
        self.kept = np.where(values[:, 0] > SINGULAR, np.minimum(values[:, 0], 1.0), 0.0)
        values = np.where(self.kept[:, None] > 0, values, 1.0)
        self.inverse = (vectors / values[:, None, :]) @ vectors.swapaxes(1, 2)

    def solve(self, gradient: Float[Array, "refits rank"], which: Array) -> Float[Array, "refits rank"]:
        if self.inverse is not None:
            return np.einsum("rij,rj->ri", self.inverse[which], gradient)
        z = self.carrying[which]
        inner = np.einsum("rkp,rp->rk", z, gradient)
        return gradient + np.einsum("rkp,rk->rp", z, np.einsum("rkl,rl->rk", self.core[which], inner))


def weights(each: Entries, count: int, n: int) -> Float[Array, "refits units"]:
    out = np.ones((count, n))
    out[each.refit, each.unit] = each.weight
    return out


class Enclosure:
    """A batch on its way: candidates u, and the radius ρ around each of them, in the norm of `kept` of its metric.

    `center` and `half` are the held units' predictors and how far those of the exact refit may be from them, `[refits, width]`;
    of several outputs `half` is the largest range of what they may be off.
    """

    def __init__(self, fit: Fit, rows: Rows):
        self.fit, self.rows, self.anchor = fit, rows, anchored(fit)
        count, width = rows.index.shape
        n = self.anchor.model.design.shape[0]
        self.each = entries(rows, n)
        self.units = np.where(np.asarray(rows.index) < n, rows.index, 0)
        self.held = np.asarray(rows.held)
        self.u = np.zeros((count, len(self.anchor.root)))
        self.center = self.anchor.eta[self.units]
        self.half = np.full((count, width), np.inf)
        self.slope = np.full(count, np.inf)  # λ at the last candidate, and what of it may be rounding
        self.noise = np.zeros(count)
        self.first = np.zeros(count)  # length of the first step
        self.result = np.full(count, int(RESULTS.successful))
        self.radius, self.gradients = np.full(count, np.inf), 0.0  # around u, in the norm of H; gradients made in all
        self.proved, self.taken = np.ones(count, bool), np.ones(count, bool)

    def theta(self) -> Float[Array, "refits params"]:
        return self.anchor.theta + self.u @ self.anchor.root

    # the first look

    def look(self) -> None:
        """One step with each fold's own Hessian at θ̂, and what the table proves of it."""
        anchor, each, everyone = self.anchor, self.each, np.arange(len(self.u))
        self.metric = Metric(anchor, self.rows, each)
        kept, grown = self.metric.kept, np.ones(len(self.u))
        if anchor.model.separate:
            np.maximum.at(grown, each.refit, each.weight)
        if self.metric.z is not None:
            moved = np.zeros(self.center.shape)
            moved[each.refit, each.place] = over(each.weight - 1, over(anchor.weight, anchor.slope)[each.unit])
            gradient = anchor.leftover + np.einsum("rk,rkp->rp", moved.reshape(len(moved), -1), self.metric.z)
        else:
            gradient, grown = self._gradients(grown)
        determined = kept > 0
        step = np.where(determined[:, None], -self.metric.solve(gradient, everyone), 0.0)
        noise = anchor.noise * grown / np.sqrt(np.where(determined, kept, 1.0))
        self.slope, self.noise = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0)) + noise, noise
        found = anchor.table.ball(self.slope, kept, grown)
        self.u, self.first = step, np.linalg.norm(step, axis=1)
        self._place(everyone, np.where(determined, found.after, np.inf))

    def _gradients(self, grown: Array) -> tuple[Float[Array, "refits rank"], Array]:
        """The whitened gradients of F(·, w) at θ̂, and the largest ratio of a unit's weight to what it was."""
        anchor, out = self.anchor, np.empty(self.u.shape)
        for lanes in passes(np.arange(len(self.u)), anchor.eta.size):
            omega, kappa = anchor.model.weigh(self._weights(lanes))
            pull = anchor.model.design.pull(over(omega, anchor.slope[None]))
            out[lanes] = (pull + kappa[:, None] * (anchor.model.penalty @ anchor.theta)) @ anchor.root.T
            if not anchor.model.separate:
                ratio = np.divide(omega, anchor.weight, out=np.ones_like(omega), where=anchor.weight > 0)
                grown[lanes] = np.maximum(ratio.max(1), 1.0)
        return out, grown

    def _weights(self, lanes: Array) -> Float[Array, "lanes units"]:
        """The weights of some refits."""
        n = len(self.anchor.eta)
        out = np.ones((len(lanes), n))
        index, weight = np.asarray(self.rows.index)[lanes], np.asarray(self.rows.weight)[lanes]
        if index.shape[1] == n:
            return weight.copy()
        real = index < n
        out[np.nonzero(real)[0], index[real]] = weight[real]
        return out

    def _place(self, lanes: Array, after: Array, norm: Array | None = None) -> None:
        """Held predictors at the candidates, and how far they may be off."""
        anchor, some = self.anchor, self.units[lanes]
        if self.metric.z is not None:
            moved = np.einsum("rkp,rp->rk", self.metric.z[lanes], self.u[lanes])
            self.center[lanes] = anchor.eta[some] + moved.reshape(self.center[lanes].shape)
        else:
            theta = anchor.theta + self.u[lanes] @ anchor.root
            for k, lane in enumerate(lanes):
                own = self.units[lane] if some.shape[1] < len(anchor.eta) else slice(None)
                self.center[lane] = anchor.model.design.at(own, theta[k])
                self.center[lane] += anchor.model.offset[own] if np.ndim(anchor.model.offset) else anchor.model.offset
        if norm is None:
            with np.errstate(divide="ignore", invalid="ignore"):
                self.radius[lanes] = after / np.sqrt(self.metric.kept[lanes])
                norm = anchor.norm[some] / np.sqrt(self.metric.kept[lanes])[:, None]
        lost = 4 * ROUNDING * (1 + total(np.abs(self.center[lanes]), 2) + anchor.bulk[some])
        with np.errstate(invalid="ignore"):
            self.half[lanes] = np.where(np.isfinite(after)[:, None], norm * after[:, None], np.inf) + lost

    # gradients

    def steps(self, lanes: Array, enough: Callable[[Array], Bool[Array, " lanes"]], most: int = STEPS) -> Int[Array, " open"]:
        """Steps with the fold's own Hessian at θ̂, while they shrink: those still open."""
        lanes = lanes[self.metric.kept[lanes] > 0]
        rejected = [np.zeros(0, int)]
        for _ in range(most):
            if not lanes.size:
                break
            before = self.slope[lanes]
            for some in passes(lanes, self.anchor.eta.size):
                self._step(some)
            done = enough(lanes)
            stalled = ~(self.slope[lanes] <= STALLED * before)
            rejected.append(lanes[stalled & ~done])
            lanes = lanes[~(done | stalled)]
        return np.sort(np.concatenate([*rejected, lanes]))

    def _step(self, lanes: Array) -> None:
        anchor, model = self.anchor, self.anchor.model
        self.gradients += len(lanes)
        theta = anchor.theta + self.u[lanes] @ anchor.root
        eta = model.design.predictors(theta) + model.offset
        slope, *curvature = model.loss.derivatives(eta, model.y, (1, 2) if anchor.roots is None else (1,))
        omega, kappa = model.weigh(self._weights(lanes))
        pulled = weighed(omega, slope)
        raw = model.design.pull(pulled) + kappa[:, None] * (theta @ model.penalty)
        gradient = raw @ anchor.root.T
        step = -self.metric.solve(gradient, lanes)
        kept = self.metric.kept[lanes]
        noise = (ROUNDING * total(np.abs(pulled), 2) @ anchor.length + anchor.noise) / np.sqrt(kept)
        size = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0)) + noise
        norm = anchor.norm / np.sqrt(kept)[:, None]
        gap = gaps(model.loss, model.y, eta, anchor.bend(eta, *curvature), 2 * size[:, None] * norm, anchor.reference)
        found = ball(gap, anchor.reference, omega * (anchor.size / kept[:, None]), size, 2 * size)
        shrinks = size <= STALLED * self.slope[lanes]
        good = shrinks | (np.isfinite(found.after) & (found.after <= 0.5 * found.distance))
        self.slope[lanes], self.noise[lanes] = size, noise
        self.taken[lanes] = good
        moved, after = lanes[good], found.after[good]
        self.u[moved] += step[good]
        if moved.size:
            self._place(moved, after)

    def estimate(self, lanes: Array) -> None:
        """Radii from the curvature at the candidates, by a few products with what it differs by from the metric's."""
        for some in passes(lanes, self.anchor.curvature.size):
            contraction = self._contraction(some)
            share = np.where(self.taken[some], contraction, 1.0) / (1 - np.minimum(contraction, REFUSED))
            self.proved[some] = False
            self._place(some, np.where(contraction < REFUSED, share * self.slope[some], np.inf))

    def _contraction(self, lanes: Array) -> Float[Array, " lanes"]:
        """What a step leaves of itself: the size of A⁻¹E, E the change of the curvature, by Lanczos' first steps from random
        directions."""
        anchor, model = self.anchor, self.anchor.model
        eta = model.design.predictors(anchor.theta + self.u[lanes] @ anchor.root) + model.offset
        omega = model.weigh(self._weights(lanes))[0]
        change_ = weighed(omega, model.loss.derivatives(eta, model.y, (2,))[0] - anchor.curvature)
        v = np.random.default_rng(0).standard_normal(self.u.shape[1]) * np.ones((len(lanes), 1))
        largest, image, before = np.zeros(len(lanes)), None, None
        for _ in range(PRODUCTS):
            ahead = bent(change_, model.design.predictors(v @ anchor.root))
            image = model.design.pull(ahead) @ anchor.root.T
            if before is not None:  # v = A⁻¹ before: vᵀAv is known
                norm = np.sum(v * before, axis=1)
                largest = np.maximum(largest, np.abs(np.sum(v * image, axis=1)) / np.maximum(norm, 1e-300))
            before, v = image, self.metric.solve(image, lanes)
            size = np.sqrt(np.maximum(np.sum(v * before, axis=1), 1e-300))[:, None]
            before, v = before / size, v / size
        return CAUTION * largest

    # Hessians of the candidates

    def newton(self, lanes: Array, enough: Callable[[Array], Bool[Array, " lanes"]]) -> None:
        """Damped Newton steps, each with the Hessian at its candidate; what is left has no minimiser."""
        n, p = self.anchor.model.design.shape
        size = max(1, PASS * 8 // (n * self.anchor.model.design.outputs * min(p, 8) + p * p))
        for start in range(0, len(lanes), size):
            _Newton(self, lanes[start : start + size]).run(enough)


class _Newton:
    """Damped Newton steps of a few refits side by side, in θ with its columns scaled to curvature one."""

    def __init__(self, state: Enclosure, lanes: Array):
        self.state, self.lanes, self.model = state, lanes, state.anchor.model
        self.omega, self.kappa = self.model.weigh(state._weights(lanes))
        start = np.zeros_like(state.u[lanes])
        here = self._value(state.u[lanes])
        there = self._value(start)
        better = here < there
        self.u = np.where(better[:, None], state.u[lanes], start)
        self.F = np.where(better, here, there)
        self.open, self.begun = np.ones(len(lanes), bool), np.zeros(len(lanes), bool)

    def _theta(self, u: Array) -> Array:
        return self.state.anchor.theta + u @ self.state.anchor.root

    def _value(self, u: Array, which: Array | slice = slice(None)) -> Array:
        theta = self._theta(u)
        eta = self.model.design.predictors(theta) + self.model.offset
        with np.errstate(over="ignore", invalid="ignore"):
            (loss,) = self.model.loss.derivatives(eta, self.model.y, (0,))
            omega = self.omega[which]
            value = np.sum(np.where(omega > 0, omega * loss, 0.0), axis=1)
            value += 0.5 * self.kappa[which] * np.einsum("rp,pq,rq->r", theta, self.model.penalty, theta)
        return np.where(np.isnan(value), np.inf, value)

    def run(self, enough: Callable[[Array], Bool[Array, " lanes"]]) -> None:
        for _ in range(NEWTON):
            which = np.flatnonzero(self.open)
            if not which.size:
                return
            self._round(which, enough)
        for k in np.flatnonzero(self.open):
            self._fail(k, RESULTS.not_converged)

    def _fail(self, k: int, code: RESULTS) -> None:
        self.open[k] = False
        lane = self.lanes[k]
        self.state.result[lane], self.state.half[lane] = code, np.inf

    def _round(self, which: Array, enough: Callable[[Array], Bool[Array, " lanes"]]) -> None:
        state, anchor, model = self.state, self.state.anchor, self.model
        theta = self._theta(self.u[which])
        eta = model.design.predictors(theta) + model.offset
        state.gradients += len(which) * (2 + theta.shape[1] / 2)
        slope, curvature = model.loss.derivatives(eta, model.y, (1, 2))
        omega = self.omega[which]
        pulled = weighed(omega, slope)
        raw = model.design.pull(pulled) + self.kappa[which, None] * (theta @ model.penalty)
        hessian = model.design.gram(omega, curvature) + self.kappa[which, None, None] * model.penalty + anchor.flat
        root, bad = inverse_roots(hessian)
        for k in which[bad]:
            self._fail(k, RESULTS.not_converged if self.begun[k] else RESULTS.undetermined)  # curvature lost on the way
        self.begun[which] = True
        if bad.all():
            return
        which, root, raw, eta, curvature, omega, pulled = (
            part[~bad] for part in (which, root, raw, eta, curvature, omega, pulled)
        )
        whitened = np.einsum("rp,rpk->rk", raw, root)
        norm, share, length = model.design.extents(root, curvature)
        noise = ROUNDING * np.sum(shaky(pulled, over(omega, curvature), eta) * length, axis=1)
        decrement = np.linalg.norm(whitened, axis=1)
        size = decrement + noise
        step = -np.einsum("rpk,rk->rp", root, whitened)
        reference = curvature if anchor.roots is None else np.ones(norm.shape)
        gap = gaps(model.loss, model.y, eta, Bend(reference, reference), 2 * size[:, None] * norm, reference)
        found = ball(gap, reference, omega * share, size, 2 * size)
        state.radius[self.lanes[which]] = self._across(root) * found.after
        self._advance(which, np.asarray(state.fit.back(step)), found, decrement, noise, norm, enough)

    def _across(self, root: Float[Array, "lanes params rank"]) -> Float[Array, " lanes"]:
        """How much longer a displacement may be in the norm of H than in the refits' own: about ‖LᵀR‖, by a few products."""
        v = np.random.default_rng(0).standard_normal((len(root), root.shape[2]))
        for _ in range(PRODUCTS):
            v /= np.linalg.norm(v, axis=1, keepdims=True)
            moved = np.asarray(self.state.fit.back(np.einsum("rpk,rk->rp", root, v)))
            v = np.einsum("rpk,rp->rk", root, moved @ np.asarray(self.state.fit.factor).T)
        return CAUTION * np.sqrt(np.linalg.norm(v, axis=1))

    def _advance(
        self, which: Array, step: Array, found: Ball, decrement: Array, noise: Array, norm: Array, enough: Callable
    ) -> None:
        """Take the steps, shortened until F falls where nothing is proved of them, and see whether that is enough."""
        state = self.state
        sure = found.after <= 0.5 * found.distance  # else a full step may lead further away
        sure &= np.isfinite(found.after)
        length = np.ones(len(which))
        before = self.F[which]
        new = self._value(self.u[which] + step, which)
        falls = lambda new, length: new <= before - 1e-4 * length * decrement**2 + 1e-14 * np.abs(before)
        wanting = ~(sure | falls(new, length))
        while wanting.any():
            length[wanting] /= 2
            some = which[wanting]
            new[wanting] = self._value(self.u[some] + length[wanting, None] * step[wanting], some)
            wanting &= ~falls(new, length) & (length > 1e-12)
        self.u[which] += length[:, None] * step
        self.F[which] = new
        lanes = self.lanes[which]
        state.u[lanes], state.slope[lanes], state.noise[lanes] = self.u[which], decrement + noise, noise
        after = np.where(length == 1, found.after, np.inf)
        own = norm if norm.shape[1] == state.units.shape[1] else np.take_along_axis(norm, state.units[lanes], axis=1)
        state._place(lanes, after, own)
        done = enough(lanes)
        self.open[which[done]] = False
        floor = ~done & (length == 1) & (decrement <= 2 * noise)  # no closer by rounding
        self.open[which[floor]] = False
        moving = np.max(np.where(self.omega[which] > 0, norm, 0.0), axis=1) * (decrement + noise) > MOVING
        far = ~(done | floor) & (np.linalg.norm(self.u[which], axis=1) > FAR * (1 + state.first[lanes]))
        for k in which[far | ~np.isfinite(new) | (floor & moving & ~np.isfinite(after))]:
            self._fail(k, RESULTS.not_converged)


def inverse_roots(
    hessian: Float[Array, "refits p p"],
) -> tuple[Float[Array, "refits p p"], Bool[Array, " refits"]]:
    """R with R Rᵀ the inverse of each, and which are singular; judged with the diagonal scaled to one."""
    diagonal = np.einsum("rpp->rp", hessian)
    bad = ~(diagonal > 0).all(1) | ~np.isfinite(hessian).all((1, 2))
    scale = 1 / np.sqrt(np.where(bad[:, None], 1.0, diagonal))
    scaled = hessian * scale[:, :, None] * scale[:, None, :]
    scaled[bad] = np.eye(hessian.shape[1])
    factor = np.empty_like(scaled)
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        for k, matrix in enumerate(scaled):
            try:
                factor[k] = np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                factor[k], bad[k] = np.eye(len(matrix)), True
    pivots = np.einsum("rpp->rp", factor).min(1) ** 2
    bad |= pivots < 1e-14
    inverse = np.stack([scipy.linalg.lapack.dtrtri(f, lower=1)[0] for f in factor])
    return scale[:, :, None] * inverse.swapaxes(1, 2), bad


def passes(lanes: Array, n: int) -> list[Array]:
    """The refits in groups whose arrays `[refits, units]` stay in a cache."""
    size = max(1, PASS // n)
    return [lanes[start : start + size] for start in range(0, len(lanes), size)]


class OneRow(NamedTuple):
    """Single rows after one step with their own Hessian, in O(1) each: held predictors, and how far those may be off."""

    center: Float[Array, " refits"]
    half: Float[Array, " refits"]
    moved: Float[Array, " refits"]  # λ, the length of the step
    kept: Float[Array, " refits"]  # 1 − q
    coefficient: Float[Array, " refits"]  # of z in the step

    def take(self, lanes: Array) -> "OneRow":
        return OneRow(*(part[lanes] for part in self))


def one_row(fit: Fit, unit: Array, weight: Array) -> OneRow:
    """The first look, where each refit changes the weight of one row: no vector of parameters is formed."""
    anchor = anchored(fit)
    norm = anchor.norm[unit]
    lost = (1 - weight) * anchor.weight[unit]
    pull, bend = lost * anchor.slope[unit], lost * anchor.curvature[unit]
    common = anchor.model.design.at(unit, anchor.root.T @ anchor.leftover) if anchor.leftover.any() else np.zeros(len(unit))
    kept = 1 - bend * norm**2
    determined = kept > SINGULAR
    kept = np.where(determined, np.minimum(kept, 1.0), 1.0)
    along = common - pull * norm**2  # z · gradient
    square = anchor.leftover @ anchor.leftover - 2 * pull * common + (pull * norm) ** 2 + along**2 * bend / kept
    grown = np.maximum(weight, 1.0)
    slope = np.sqrt(np.maximum(square, 0.0)) + anchor.noise * grown / np.sqrt(kept)
    after = anchor.table.ball(slope, kept, grown).after
    with np.errstate(invalid="ignore"):
        half = np.where(determined & np.isfinite(after), norm / np.sqrt(kept) * after, np.inf)
    center = anchor.eta[unit] - along / kept
    return OneRow(
        center, half + 4 * ROUNDING * (1 + np.abs(center) + anchor.bulk[unit]), slope, kept, pull - bend * along / kept
    )


class Look(NamedTuple):
    """Where some refits are: held predictors, how far they may be off, λ, what of it is rounding, the length of the first step."""

    center: Float[Array, "lanes width ..."]
    half: Float[Array, "lanes width"]
    slope: Float[Array, " lanes"]
    noise: Float[Array, " lanes"]
    first: Float[Array, " lanes"]


Enough = Callable[[Int[Array, " lanes"], Look], Bool[Array, " lanes"]]


class Enclosed(NamedTuple):
    """What became of a batch: held predictors, how far they may be off, codes, what is proved, and the raveled θ, where formed."""

    center: Float[Array, "refits width ..."]
    half: Float[Array, "refits width"]
    result: Int[Array, " refits"]
    proved: Bool[Array, " refits"]
    theta: Callable[[], Float[Array, "refits params"]]
    ball: Callable[[], tuple[Float[Array, "refits rank"], Float[Array, " refits"]]]  # u, and the radius around it
    moved: Float[Array, " refits"]  # the length of the first step
    gradients: float  # that were made


def enclose(fit: Fit, rows: Rows, enough: Enough, hurry: bool, allowed: Array | None = None) -> Enclosed:
    """Every refit brought to where `enough` says so. A `hurry` takes no Hessians: it estimates. Where gradients of all refits
    are not to be had, errors of single rows may be estimated too, and share what is `allowed` them."""
    anchor = anchored(fit)
    if anchor.model.separate and anchor.model.design.outputs == 1 and rows.index.shape[1] == 1:
        return _by_rows(fit, rows, enough, hurry, allowed)
    state = _to_the_end(fit, rows, enough, hurry)
    ball = lambda: (state.u, state.radius)
    return Enclosed(state.center, state.half, state.result, state.proved, state.theta, ball, state.first, state.gradients)


def _by_rows(fit: Fit, rows: Rows, enough: Enough, hurry: bool, allowed: Array | None) -> Enclosed:
    """Single rows: those that the first look does not settle go on as batches do."""
    look = one_row(fit, np.asarray(rows.index)[:, 0], np.asarray(rows.weight)[:, 0])
    center, half = look.center[:, None].copy(), look.half[:, None].copy()
    everyone = np.arange(len(center))
    result, proved = np.full(len(center), int(RESULTS.successful)), np.ones(len(center), bool)
    unknown = np.full(len(center), np.inf)
    lanes = everyone[~enough(everyone, Look(center, half, unknown, np.zeros(len(center)), unknown))]
    if allowed is not None and _costs(fit, rows, len(lanes)) > AFFORDABLE:
        lanes = _by_the_next_term(fit, rows, look, allowed, center, half, proved)
    state = None
    if lanes.size:
        state = _to_the_end(fit, rows.take(lanes), lambda some, seen: enough(lanes[some], seen), hurry)
        center[lanes], half[lanes], result[lanes], proved[lanes] = state.center, state.half, state.result, state.proved

    @functools.cache
    def whole() -> Enclosure:
        found = Enclosure(fit, rows)
        found.look()
        if state is not None:
            found.u[lanes], found.radius[lanes] = state.u, state.radius
        return found

    theta, ball = lambda: whole().theta(), lambda: (whole().u, whole().radius)
    looked = len(center) / len(anchored(fit).eta)  # each costs as much as a gradient's share of a row
    gradients = looked + (0.0 if state is None else state.gradients)
    return Enclosed(center, half, result, proved, theta, ball, look.moved, gradients)


def _costs(fit: Fit, rows: Rows, lanes: int) -> float:
    """Operations of a gradient of so many refits of a batch, and of as many in every other batch."""
    each = (4.0 * fit.num_params + ELEMENTWISE) * fit.objective.num_units
    return each * lanes * int(rows.num_refits) / len(rows.index)


def _by_the_next_term(
    fit: Fit, rows: Rows, look: OneRow, allowed: Array, center: Array, half: Array, proved: Array
) -> Int[Array, " open"]:
    """Single rows accepted by what is proved or estimated of them, all together within what is allowed: those still open.
    Writes into `center`, `half` and `proved`."""
    anchor, unit = anchored(fit), np.asarray(rows.index)[:, 0]
    wrong = error(fit, rows, center, center, half)
    lanes, rest = np.flatnonzero(~_within(wrong, allowed)), np.zeros(0, int)  # open ones, and those that no term is told of
    for size in (*sampled.SIZES, None) if anchor.model.loss.self_concordance is not None else ():
        if _costs(fit, rows, len(lanes)) <= AFFORDABLE or (size or 0) > len(anchor.eta):
            break
        short = sampled.short(anchor, look)[lanes]
        if not short.any():
            break
        lanes, rest = lanes[short], np.union1d(rest, lanes[~short])
        some = look.take(lanes)
        term = sampled.next_term(anchor, unit[lanes], some, size)
        left = sampled.half(anchor, some, term, size is not None)[:, None]
        middle = center[lanes] + (0.0 if size else term.move[:, None])
        wrong[lanes] = error(fit, rows.take(lanes), middle, middle, left)
        good = _within(wrong, allowed)[lanes]
        center[lanes[good]], half[lanes[good]], proved[lanes[good]] = middle[good], left[good], False
        lanes = lanes[~good]
    return np.union1d(lanes, rest)


def _within(wrong: Array, allowed: Array) -> Bool[Array, " refits"]:
    """The refits of smallest error that together stay within what is allowed together, none above five times its share."""
    order, within = np.argsort(wrong), np.empty(len(wrong), bool)
    within[order] = np.cumsum(wrong[order]) <= allowed.sum()
    return within & (wrong <= 5 * allowed)


def _to_the_end(fit: Fit, rows: Rows, enough: Enough, hurry: bool) -> Enclosure:
    state = Enclosure(fit, rows)
    parts = lambda: (state.center, state.half, state.slope, state.noise, state.first)
    asked = lambda lanes: enough(lanes, Look(*(part[lanes] for part in parts())))
    state.look()
    lanes = np.arange(len(state.u))
    lanes = lanes[~asked(lanes)]
    unsettled = lanes[state.metric.kept[lanes] == 0]
    lanes = state.steps(lanes, asked, 2 if hurry else STEPS)
    n, p = state.anchor.model.design.shape
    dear = 4.0 * len(lanes) * n * p * p > DEAR
    if hurry or dear:
        state.estimate(lanes)
        lost = ~np.isfinite(state.half[lanes]).all(axis=1)
        lanes = lanes[lost & (not dear)] if hurry else lanes[~asked(lanes)]
    lanes = np.union1d(lanes, unsettled[:0] if hurry else unsettled)
    if lanes.size:
        state.proved[lanes] = True
        state.newton(lanes, asked)
    return state


def error(fit: Fit, rows: Rows, reported: Array, center: Array, half: Array) -> Float[Array, " refits"]:
    """The most that the held-out losses at the reported predictors may be off, added up, `[refits]`."""
    model = anchored(fit).model
    refit, place = np.nonzero(rows.held)
    y, same = model.y[np.asarray(rows.index)[refit, place]], reported is center
    middle = center[refit, place]
    each = change(model.loss, y, middle if same else reported[refit, place], middle, half[refit, place])
    return np.bincount(refit, each, len(center))


def unit_losses(fit: Fit) -> Float[Array, " units"]:
    """The loss of every unit at θ̂."""
    anchor = anchored(fit)
    return anchor.model.loss.derivatives(anchor.eta, anchor.model.y, (0,))[0]


def losses(fit: Fit, rows: Rows, at: Array) -> Float[Array, "refits width"]:
    """Held-out losses at predictors, zero where not scored."""
    model = anchored(fit).model
    y = model.y[np.where(np.asarray(rows.index) < len(model.y), rows.index, 0)]
    return np.where(rows.held, model.loss.derivatives(at, y, (0,))[0], 0.0)


def predictors_at(fit: Fit, rows: Rows, u: Float[Array, "refits rank"]) -> Float[Array, "refits width ..."]:
    """The listed units' predictors at displacements."""
    anchor = anchored(fit)
    theta = anchor.theta + u @ anchor.root
    if rows.index.shape[1] == len(anchor.eta):
        return anchor.model.design.predictors(theta) + anchor.model.offset
    units = np.where(np.asarray(rows.index) < len(anchor.eta), rows.index, 0)
    offset = anchor.model.offset[units] if np.ndim(anchor.model.offset) else anchor.model.offset
    return anchor.model.design.at(units, theta) + offset


@once
def _classes(fit: Fit) -> Int[Array, " units"]:
    """Numbers of the distinct rows, by what a random direction, the response and the offset are; fewer rows than a sum of them all."""
    model = fit.predictors
    assert model is not None
    direction = np.random.default_rng(0).standard_normal(model.design.shape[1])
    value = model.design.predictors(direction[None])[0]
    listed = np.c_[value, model.y, np.broadcast_to(model.offset, value.shape)]
    return np.unique(listed, axis=0, return_inverse=True)[1].ravel()


def copies(fit: Fit, plan: Plan) -> str:
    """A sentence on held-out rows that a refit still sees a copy of; empty where there are none, or too many rows to look."""
    if fit.predictors is None or plan.num_units > COPIES:
        return ""
    label = _classes(fit)
    size = np.bincount(label)
    if size.max() == 1:
        return ""
    key = plan.refit * len(size) + label[plan.index]
    distinct, where = np.unique(key, return_inverse=True)
    out = np.bincount(where, plan.weight == 0, len(distinct))[where]
    leaks = np.unique(plan.index[plan.held & (size[label[plan.index]] > out)])
    return f"{len(leaks)} rows are seen by their own refits in a copy: the folds leak" if leaks.size else ""
