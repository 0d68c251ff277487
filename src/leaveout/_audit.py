"""A few refits of every call, repeated exactly by another way down, and what that says of the others.

From where a refit stands, Newton's method by conjugate gradients (SciPy's) with a line search on F(·, w) itself: none of the
strategies' metrics, bounds or estimates. Which refits, and how many, does not depend on the clock: those of the longest first
step, of the largest error, and some at random; at most a tenth of the operations of the call, and one at least.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse.linalg
from jaxtyping import Bool, Float, Int

from ._asked import Asked, parameters_of
from ._asked import flat as theta_hat
from ._design import bent, weighed
from ._fit import Fit
from ._minimise import curved, value_and_gradient
from ._objective import placed

Array = np.ndarray
SHARE = 0.1  # of the operations of a call
REPEATING = 30  # gradients that one repetition takes, about
STEPS = 60  # of Newton's method
ENOUGH = 1e-9  # of the first gradient
SLACK = 1e-8  # of a loss: what two programs may differ by for rounding
REASONS = ("longest step", "largest error", "random")


class Pool(NamedTuple):
    """Some refits, the lengths of their first steps, their errors, and which of these are proved."""

    refit: Int[Array, " some"]
    moved: Float[Array, " some"]
    error: Float[Array, " some"]
    proved: Bool[Array, " some"]

    def take(self, lanes: Array) -> "Pool":
        return Pool(*(part[lanes] for part in self))

    def ranked(self, number: int) -> list[Int[Array, " number"]]:
        """Places of the first by each reason, estimates before what a theorem proves; at random by a number of their own."""
        by_size = [_first(np.where(self.proved, 0.0, 1e300) + part, number) for part in (self.moved, self.error)]
        return [*by_size, _first(_chance(self.refit), number)]


def _chance(refit: Int[Array, " some"]) -> Float[Array, " some"]:
    """A number at random of each refit, whichever others there are."""
    mixed = refit.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(31)
    return (mixed * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(11)).astype(float)


def _first(value: Float[Array, " some"], number: int) -> Int[Array, " number"]:
    """Places of the largest, the largest first."""
    some = np.argpartition(-value, number)[:number] if number < len(value) else np.arange(len(value))
    return some[np.argsort(-value[some], kind="stable")]


class Candidates:
    """The refits of a call that are most worth repeating, as batches come in, and where each stands."""

    def __init__(self, number: int):
        self.number, self.count = number, 0
        self.pool = Pool(np.zeros(0, int), np.zeros(0), np.zeros(0), np.zeros(0, bool))
        self.start: dict[int, Array] = {}

    def add(self, batch: Pool, theta: Callable[[], Array] | None) -> None:
        """A batch; `theta`, where its refits stand, is formed only if some of it may be repeated. None where descent leads to
        the same minimum from anywhere."""
        self.count += len(batch.refit)
        both = Pool(*(np.concatenate(pair) for pair in zip(self.pool, batch, strict=True)))
        kept = np.unique(np.concatenate(both.ranked(self.number)))
        self.pool = both.take(kept)
        mine = np.flatnonzero(np.isin(batch.refit, self.pool.refit))
        if theta is not None and mine.size:
            self.start |= dict(zip(batch.refit[mine].tolist(), theta()[mine], strict=True))
            self.start = {refit: self.start[refit] for refit in self.pool.refit.tolist()}

    def chosen(self, number: int) -> list[tuple[int, str]]:
        """So many of them, the reasons in turn."""
        number = min(number, self.count)
        ranked = [self.pool.refit[places].tolist() for places in self.pool.ranked(self.number)]
        out: dict[int, str] = {}
        while len(out) < number:
            left = [[refit for refit in one if refit not in out] for one in ranked]
            reason = len(out) % 3 if left[len(out) % 3] else 2
            out[left[reason][0]] = REASONS[reason]
        return list(out.items())


def affordable(gradients: float) -> int:
    """Repetitions that a tenth of a call's operations, counted in gradients, pays for; one at least."""
    return max(1, int(SHARE * gradients / REPEATING))


class Function(NamedTuple):
    """F(·, w) in the anchor's whitened coordinates."""

    look: Callable[[Array], tuple[float, Array]]
    products: Callable[[Array], Callable[[Array], Array]]  # of the Hessian there


def _function(fit: Fit, weights: Float[Array, " units"]) -> Function:
    model, flat = fit.predictors, theta_hat(fit)
    if model is not None:
        root = np.asarray(fit.whitener)
        omega, kappa = (part[0] for part in model.weigh(weights[None]))

        def look(u):
            theta = flat + u @ root
            value, slope = model.loss.derivatives(model.eta(theta[None])[0], model.y, (0, 1))
            raw = model.design.pull(weighed(omega, slope)[None])[0] + kappa * (model.penalty @ theta)
            total = np.sum(weighed(omega, value)) + 0.5 * kappa * theta @ model.penalty @ theta
            return float(total), root @ raw

        def products(u):
            (curvature,) = model.loss.derivatives(model.eta((flat + u @ root)[None])[0], model.y, (2,))
            curvature = weighed(omega, curvature)

            def product(v):
                step = v @ root
                along = bent(curvature, model.design.predictors(step[None])[0])
                return root @ (model.design.pull(along[None])[0] + kappa * (model.penalty @ step))

            return product

        return Function(look, products)

    at = lambda u: placed(flat + np.asarray(fit.unwhiten(u)), fit.theta)

    def general(u):
        value, gradient = value_and_gradient(fit.objective, at(u), weights)
        return float(value), np.asarray(fit.whiten(np.asarray(gradient)))

    def general_products(u):
        return lambda v: np.asarray(fit.whiten(np.asarray(curved(fit.objective, at(u), weights, np.asarray(fit.unwhiten(v))))))

    return Function(general, general_products)


def repeated(fit: Fit, weights: Float[Array, " units"], start: Float[Array, " rank"]) -> tuple[Float[Array, " rank"], bool]:
    """The minimiser that descent from `start` reaches, whitened, and whether it was reached."""
    F = _function(fit, weights)
    u, (value, gradient) = start.copy(), F.look(start)
    first = max(float(np.linalg.norm(F.look(np.zeros_like(start))[1] if start.any() else gradient)), 1e-300)
    for _ in range(STEPS):
        size = float(np.linalg.norm(gradient))
        if size <= ENOUGH * first:
            return u, True
        product = F.products(u)
        hessian = scipy.sparse.linalg.LinearOperator((len(u), len(u)), lambda v, of=product: of(np.ravel(v)), dtype=float)
        step, _ = scipy.sparse.linalg.cg(hessian, -gradient, rtol=min(0.1, size), maxiter=10 * len(u) + 10)
        step = step if step @ gradient < 0 else -gradient
        length, (new, slope) = 1.0, F.look(u + step)
        fine = abs(step @ gradient) <= 1e-11 * max(1.0, abs(value))  # F can no longer tell
        while not fine and not new <= value + 1e-4 * length * (step @ gradient) and length > 1e-10:
            length /= 2
            new, slope = F.look(u + length * step)
        if fine and not np.linalg.norm(slope) < 0.5 * size:  # the floor
            return u, True
        if length <= 1e-10:
            return u, False
        u, value, gradient = u + length * step, new, slope
    return u, False


def audited(
    asked: Asked, chosen: list[tuple[int, str]], candidates: Candidates, losses: Array, error: Array
) -> tuple[pd.DataFrame, Int[Array, " missed"]]:
    """The table `refit, reason, reported, exact, error, difference, beyond`, and the refits whose error was larger than
    reported."""
    fit, plan, joint = asked.fit, asked.plan, len(losses) != len(asked.plan.index) or asked.joint
    lines, missed = [], []
    for refit, reason in chosen:
        place, rows = plan.rows(refit)
        weights = np.ones(plan.num_units)
        real = rows.index[0] < plan.num_units
        weights[rows.index[0][real]] = rows.weight[0][real]
        at = theta_hat(fit)
        start = np.asarray(fit.back(candidates.start.get(refit, at) - at))
        u, reached = repeated(fit, weights, start)
        held = rows.held[0]
        value = asked.losses(rows, lambda u=u: np.asarray(parameters_of(fit, u[None])))[0]
        exact, told = (np.atleast_1d(value), losses[refit : refit + 1]) if joint else (value[held], losses[place[0][held]])
        off = float(np.abs(told - exact).sum())
        beyond = bool(reached and off > error[refit] * (1 + 1e-6) + SLACK * (1 + np.abs(exact).sum()))
        missed += [refit] * beyond
        row = {"refit": refit, "reason": reason, "reported": told.sum(), "exact": exact.sum() if reached else np.nan}
        lines.append(row | {"error": error[refit], "difference": off if reached else np.nan, "beyond": beyond})
    columns = ["refit", "reason", "reported", "exact", "error", "difference", "beyond"]
    return pd.DataFrame(lines, columns=columns), np.array(missed, int)
