"""Audit a few refits of every call: repeat them exactly by another method, and compare.

Newton's method, which solves with the Hessian of few columns and by conjugate gradients (SciPy's)
with that of more, with a line search on F(·, w) itself, starts from a refit's candidate. It shares
no metric, bound or estimate with the strategies. The choice of refits does not depend on the clock:
they are those of the longest first step, those of the largest error, and some at random. They take
at most a tenth of the operations of the call, or one refit is repeated if that is no more than half
of them.
"""

from functools import partial
from math import sqrt

import numpy as np
import scipy
from jaxtyping import Int
from numpy import linalg

from .._runtime import ArrayFunction, NumpyArray, PerDirection, Slow, StepResult, silence, steps
from ..models.glm import kinks
from ..objectives import (
    Matrix,
    PerRefit,
    PerUnit,
    RefitFlags,
    RefitNumbers,
    Vector,
    function,
    lists_all_units,
    weights_of,
)
from ..optimize import Fit, NoMinimiser, minimise_with_kinks
from ..optimize.least_norm import least_norm
from .estimate import Estimate, Repetition
from .scoring import HeldOutLoss

SHARE = 0.1  # share of the operations of a call
REPEATING = 30  # approximate number of gradients of one repetition
TRIFLE = 2e8  # operations that take a tenth of a second or less
LAST_AUDIT_STEP = 1e-9  # length of a last step, relative to the whole displacement
PROGRAM_ROUNDING = 1e-8  # relative difference of a loss that two programs may have by rounding
REASONS = "longest step", "largest error", "random"


def foremost_by_reason(
    refits: RefitNumbers,
    move: PerRefit,
    error: PerRefit,
    is_proved: NumpyArray,
    number: int,
) -> list[Int[NumpyArray, " number"]]:
    """Return the positions of the foremost refits by each of `REASONS`, estimated errors before
    proved ones.

    The random order hashes the number of each refit, so that it does not depend on the other
    refits.
    """
    mixed = refits.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(31)
    chance = (mixed * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(11)).astype(float)
    estimated = ~np.asarray(is_proved, bool)
    return [
        *(_foremost(key, estimated, number) for key in (move, error)),
        _foremost(chance, np.zeros_like(estimated), number),
    ]


def _foremost(key: PerRefit, first: RefitFlags, number: int) -> Int[NumpyArray, " number"]:
    """Return the positions of the largest keys, those marked `first` before all others.

    Only these are sorted.
    """
    key = np.fmax(key, -np.inf)
    pool = np.flatnonzero(first)
    if len(pool) < number:
        pool = np.arange(len(key))
    if len(pool) > number > 0:
        if first[pool].all():
            pool_keys = key[pool]
        else:
            pool_keys = np.where(first[pool], np.inf, key[pool])
        pool = pool[pool_keys >= np.partition(pool_keys, -number)[-number]]
    return pool[np.lexsort((-key[pool], ~first[pool]))][:number]


def choose_refits(
    exists: RefitFlags,
    move: PerRefit,
    error: PerRefit,
    is_proved: RefitFlags,
    number: int,
) -> dict[int, str]:
    """Choose `number` of the refits that exist, taking the reasons in turn.

    Return the reason for each.
    """
    refits = np.flatnonzero(exists)
    places = foremost_by_reason(refits, move[refits], error[refits], is_proved[refits], number)
    orders = [refits[order].tolist() for order in places]
    out = {}
    for position in range(min(number, len(refits))):
        refit = next(refit for refit in orders[position % 3] if refit not in out)
        out[refit] = REASONS[position % 3]
    return out


def affordable(gradients: float, operations: float) -> int:
    """Return the number of repetitions that a tenth of a call pays for, given its gradients and the
    operations of one.

    One repetition is always allowed if it takes no more than half of the call, or hardly any time.
    """
    least = gradients >= REPEATING or REPEATING * operations <= TRIFLE
    return max(int(SHARE * gradients / REPEATING), int(least))


def repeat_minimiser(fit: Fit, weights: PerUnit, start: PerDirection) -> tuple[PerDirection, bool]:
    """Descend from `start`; return the whitened minimiser, and whether it was reached.

    Steps avoid flat directions, along which F varies by rounding only.
    """
    F = function(fit.objective, fit.theta, weights)
    quadratic = fit.quadratic
    whitened = quadratic.whiten
    origin = fit.vector

    def value_and_gradient(u):
        value, trial_gradient = F.look(origin + quadratic.unwhiten(u))
        return value, whitened(trial_gradient)

    # where Hessians cost as much as the products of a solve, or their program is compiled already
    most_columns = 64 if quadratic.predictors is None else 16
    forms_hessian = quadratic.factor is not None and len(start) <= most_columns
    u = start.copy()
    value, gradient = value_and_gradient(start)
    max_audit_newton_steps = 60  # largest number of Newton steps
    for _ in range(max_audit_newton_steps):
        size = sqrt(gradient @ gradient)
        if not size:
            return u, True
        theta = origin + quadratic.unwhiten(u)
        if forms_hessian:
            step = step_by_hessian(fit, F.hessian(theta), gradient)
        else:
            step = step_by_products(fit, F.products(theta), gradient, size)
        if not (step @ gradient < 0):
            step = -gradient
        if sqrt(step @ step) <= LAST_AUDIT_STEP * (1 + sqrt(u @ u)):
            return u + step, True
        length = 1.0
        trial_value, trial_gradient = value_and_gradient(u + step)
        at_rounding = abs(step @ gradient) <= 1e-11 * max(1.0, abs(value))  # F is flat to rounding
        while (
            not at_rounding
            and not trial_value <= value + 1e-4 * length * (step @ gradient)
            and length > 1e-10
        ):
            length /= 2
            trial_value, trial_gradient = value_and_gradient(u + length * step)
        if at_rounding and not linalg.norm(trial_gradient) < 0.5 * size:  # no further progress
            return u, True
        if length <= 1e-10:
            return u, False
        u = u + length * step
        value = trial_value
        gradient = trial_gradient
    return u, False


def step_by_hessian(fit: Fit, hessian: Matrix, gradient: PerDirection) -> PerDirection:
    """Compute Newton's step, with the curvature of the coordinates along flat directions.

    It is zero where the Hessian is singular.
    """
    flat_directions = fit.quadratic.null_space
    root = fit.quadratic.root
    curvature = root @ (hessian + flat_directions.T @ flat_directions) @ root.T
    _, _, step, singular = scipy.linalg.lapack.dgesv(curvature, -gradient)
    return np.zeros(len(gradient)) if singular else step


def step_by_products(
    fit: Fit, product: ArrayFunction, gradient: PerDirection, size: float
) -> PerDirection:
    """Compute that step by conjugate gradients on products, to a tenth or the `size`."""
    flat_directions = fit.quadratic.null_space

    def multiply(v):
        move = fit.quadratic.unwhiten(np.ravel(v))
        change = product(move)
        if len(flat_directions):
            change = change + (flat_directions @ move) @ flat_directions
        return fit.quadratic.whiten(change)

    rank = len(gradient)
    hessian = scipy.sparse.linalg.LinearOperator((rank, rank), multiply, dtype=float)
    # rounding along undetermined directions
    with silence("divide", "invalid"):
        step, _ = scipy.sparse.linalg.cg(
            hessian, -gradient, rtol=min(0.1, size), maxiter=10 * rank + 10
        )
    return step


def _solve_least_squares(fit: Fit, weights: PerUnit) -> tuple[Vector, bool] | None:
    """Solve least squares of least norm by SciPy's `lstsq` on the rows that stay, in a basis
    without flat directions.

    Returns the solution and whether rounding leaves the rank open. None for other models.
    """
    if (system := least_norm(fit)) is None:
        return None
    p = system.x.shape[1]
    ridge = system.ridge
    omega = weights * system.weight
    x = system.x[omega > 0]
    y = system.y[omega > 0]
    omega = omega[omega > 0]
    mean = omega @ x / omega.sum() if system.intercept else np.zeros(p)
    response_mean = omega @ y / omega.sum() if system.intercept else 0.0
    cut = max(system.cut, 32 * max(x.shape[0] + p * system.has_penalty, p) * 2.0**-52)
    natural = system.coefficient_map
    if system.natural is not None:
        natural = linalg.inv(system.natural)
    for basis in (np.eye(p), natural):  # the second decides which solution is of least norm
        rows = np.sqrt(omega)[:, None] * ((x - mean) @ basis)
        target = np.sqrt(omega) * (y - response_mean)
        if system.has_penalty:
            rows = np.r_[rows, np.sqrt(ridge)[:, None] * basis]
            target = np.r_[target, np.zeros(p)]
            # columns of one length: scales apart would add rounding
            length = linalg.norm(rows, axis=0)
            rows /= length
            basis = basis / length
        solution, _, _, s = scipy.linalg.lstsq(rows, target, cond=cut)

        smallest = cut * s.max(initial=0.0)
        if system.has_penalty or s.min(initial=np.inf) > smallest:
            break
    low, high = (0.999, 1.001) if system.cut else (1.0, 1e3)
    clear = not np.any((s > smallest * low) & (s < smallest * high))
    coef = basis @ solution
    if system.intercept:
        coef = np.append(coef, response_mean - mean @ coef)
    return coef, clear


def repeat_refit(loss: HeldOutLoss, start: dict[int, NumpyArray], refit: int) -> StepResult:
    """Repeat one refit: descend from its candidate to its minimiser, and return the losses there
    and their places.
    """
    fit = loss.fit
    _, place, rows = loss.plan._one(refit, lists_all_units(fit.objective))
    weights = weights_of(rows, loss.plan.num_units)[0]
    if (kinked := kinks(fit.objective)) is not None:  # by coordinate descent from zero
        try:
            theta = minimise_with_kinks(kinked.whole, weights).theta
            reached = True
        except NoMinimiser:
            theta = fit.vector
            reached = False
    elif (solved := _solve_least_squares(fit, weights)) is not None:
        theta, reached = solved
    else:
        origin = fit.vector
        move = start.get(refit, origin) - origin
        u, reached = repeat_minimiser(fit, weights, fit.quadratic.back(move))
        theta = origin + fit.quadratic.unwhiten(u)
    value = loss.losses(rows, theta[None])[0]
    exact = np.atleast_1d(value) if loss.joint else value[rows.held[0]]
    return {"exact": exact, "reached": np.asarray(reached), "place": place[rows.held]}


def repeat_refits(
    loss: HeldOutLoss, estimate: Estimate, chosen: dict[int, str], start: dict[int, NumpyArray]
) -> tuple[Repetition, ...]:
    """Repeat the chosen refits exactly.

    Descent begins at `start`, or at θ̂ for a refit that `start` does not contain.
    """
    repetitions = []
    with Slow("audit", len(chosen)) as bar:
        for refit, repetition in steps(partial(repeat_refit, loss, start), list(chosen)):
            exact = repetition["exact"]
            reached = bool(repetition["reached"])
            error = float(estimate.error[refit])
            reported = estimate.losses[[refit] if loss.joint else repetition["place"]]
            difference = float(np.abs(reported - exact).sum())
            beyond = reached and difference > error * (1 + 1e-6) + PROGRAM_ROUNDING * (
                1 + np.abs(exact).sum()
            )
            total = float(exact.sum())
            if not reached:
                total = difference = np.nan
            repetitions.append(
                Repetition(
                    refit, chosen[refit], reported.sum(), total, error, difference, bool(beyond)
                )
            )
            bar.advance()
    return tuple(repetitions)
