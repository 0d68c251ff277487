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
from jaxtyping import Float, Int

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


class Candidates:
    """The refits of a call that are most worth repeating, as batches come in, and where each stands."""

    def __init__(self, num_refits: int, number: int):
        self.number = number
        self.start: dict[int, Array] = {}
        self.moved, self.error = np.full(num_refits, -np.inf), np.full(num_refits, -np.inf)
        self.proved = np.ones(num_refits, bool)
        self.chance = np.random.default_rng(0).permutation(num_refits)

    def add(self, refits: Array, real: Array, moved: Array, error: Array, proved: Array, theta: Callable[[], Array]) -> None:
        """A batch; `theta` is formed only if some of it may be repeated."""
        refits, moved, error, proved = (np.asarray(part)[real] for part in (refits, moved, error, proved))
        self.moved[refits], self.error[refits], self.proved[refits] = moved, error, proved
        wanted = {refit for ranked in self._ranked() for refit in ranked[: self.number].tolist()}
        self.start = {refit: start for refit, start in self.start.items() if refit in wanted}
        mine = np.flatnonzero(np.isin(refits, list(wanted)))
        if mine.size:
            whole = theta()[np.flatnonzero(real)[mine]]
            self.start |= {int(refits[k]): start for k, start in zip(mine, whole, strict=True)}

    def _ranked(self) -> list[Array]:
        """By each reason; estimates before what a theorem proves."""
        seen = np.flatnonzero(np.isfinite(self.moved))
        keys = (-self.moved[seen], -self.error[seen])
        return [seen[np.lexsort((key, self.proved[seen]))] for key in keys] + [seen[np.argsort(self.chance[seen])]]

    def chosen(self, number: int) -> list[tuple[int, str]]:
        """So many of them, the reasons in turn."""
        ranked = [iter(r.tolist()) for r in self._ranked()]
        out: dict[int, str] = {}
        while len(out) < min(number, int(np.isfinite(self.moved).sum())):
            reason = len(out) % 3
            refit = next((r for r in ranked[reason] if r not in out), None)
            if refit is None:
                refit, reason = next(r for r in self._ranked()[2].tolist() if r not in out), 2
            out[refit] = REASONS[reason]
        return list(out.items())


def affordable(gradients: float) -> int:
    """Repetitions that a tenth of a call's operations, counted in gradients, pays for; one at least."""
    return max(1, int(SHARE * gradients / REPEATING))


class Function(NamedTuple):
    """F(·, w) in the anchor's whitened coordinates."""

    look: Callable[[Array], tuple[float, Array]]
    product: Callable[[Array, Array], Array]


def _function(fit: Fit, weights: Float[Array, " units"]) -> Function:
    model, flat = fit.predictors, theta_hat(fit)
    if model is not None:
        root = np.asarray(fit.whitener)
        omega, kappa = (part[0] for part in model.weigh(weights[None]))
        eta_of = lambda theta: model.design.predictors(theta[None])[0] + model.offset

        def look(u):
            theta = flat + u @ root
            value, slope = model.loss.derivatives(eta_of(theta), model.y, (0, 1))
            raw = model.design.pull(weighed(omega, slope)[None])[0] + kappa * (model.penalty @ theta)
            total = np.sum(weighed(omega, value)) + 0.5 * kappa * theta @ model.penalty @ theta
            return float(total), root @ raw

        def product(u, v):
            (curvature,) = model.loss.derivatives(eta_of(flat + u @ root), model.y, (2,))
            step = v @ root
            along = bent(weighed(omega, curvature), model.design.predictors(step[None])[0])
            return root @ (model.design.pull(along[None])[0] + kappa * (model.penalty @ step))

        return Function(look, product)

    at = lambda u: placed(flat + np.asarray(fit.unwhiten(u)), fit.theta)

    def general(u):
        value, gradient = value_and_gradient(fit.objective, at(u), weights)
        return float(value), np.asarray(fit.whiten(np.asarray(gradient)))

    def general_product(u, v):
        return np.asarray(fit.whiten(np.asarray(curved(fit.objective, at(u), weights, np.asarray(fit.unwhiten(v))))))

    return Function(general, general_product)


def repeated(fit: Fit, weights: Float[Array, " units"], start: Float[Array, " rank"]) -> tuple[Float[Array, " rank"], bool]:
    """The minimiser that descent from `start` reaches, whitened, and whether it was reached."""
    F = _function(fit, weights)
    u, (value, gradient) = start.copy(), F.look(start)
    first = max(float(np.linalg.norm(F.look(np.zeros_like(start))[1])), 1e-300)
    for _ in range(STEPS):
        size = float(np.linalg.norm(gradient))
        if size <= ENOUGH * first:
            return u, True
        hessian = scipy.sparse.linalg.LinearOperator((len(u), len(u)), lambda v, u=u: F.product(u, np.ravel(v)), dtype=float)
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
        start = np.asarray(fit.back(candidates.start[refit] - theta_hat(fit)))
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
