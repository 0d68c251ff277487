"""Rows that are refitted to convergence, because little is proved of them, or to check the proofs.

Steps with each row's own Hessian at θ̂, I − ω ℓ″ z zᵀ in whitened coordinates, as long as they
contract; one pass over the data gives the gradients of all these rows.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ..linalg.design import CachedLoss
from ..linalg.enclosure_theorem import change
from ..linalg.rounding import UNIT, UP
from ..validation.audit import PROGRAM_ROUNDING, REASONS
from .pass_runner import PassRunner
from .passes import WORST, LeftOutRows, PassFit, pulls
from .result import Scan

Array = np.ndarray
MAX_PASSES = 8  # largest number of passes over the data
# largest number of rows with Hessians of their own, and of their steps
FAR = 16
STEPS = 30
LAST_STEP_SHARE = 1e-7  # length of a last step, relative to the first


def refit_rows(
    run: PassRunner,
    scan: Scan,
    at: PassFit,
    some: LeftOutRows,
    request: Int[Array, " rows"],
    rtol: float,
    audit: int,
) -> Scan:
    """Refit the open rows of a scan, and audit it."""
    known = np.flatnonzero(np.isfinite(some.error) & (some.weight > 0))
    orders = [
        known[np.argsort(-part[known], kind="stable")].tolist() for part in (some.moved, some.error)
    ]
    orders.append([place for place in known.tolist() if some.row[place] in request])
    chosen: dict[int, str] = {}  # places of rows to repeat, with the reasons, taken in turn
    for turn in range(audit):
        place = next((place for place in orders[turn % 3] if place not in chosen), None)
        if place is not None:
            chosen[place] = REASONS[turn % 3]
    # rows of which nothing is proved, and those of the largest errors while the mean's error is too
    # large
    unknown = np.flatnonzero(~np.isfinite(some.error) & (some.weight > 0))
    left = scan.totals[6] - rtol * scan.se * scan.totals[1]
    weighed = np.where(np.isfinite(some.error), some.weight * some.error, 0.0)
    order = np.argsort(-weighed, kind="stable")
    more = (
        order[: int(np.searchsorted(np.cumsum(weighed[order]), left)) + 1]
        if left > 0
        else order[:0]
    )
    opened = np.union1d(unknown, more)[:WORST]
    places = np.union1d(opened, [*chosen])
    if not places.size:
        return replace(scan, passes=run.passes)
    rows = some.take(places.astype(int))
    loss, error, reached = _refit(run, at, rows)
    proved = np.isfinite(error)
    far = np.flatnonzero(~np.isfinite(error) & np.isin(places, opened) & (rows.weight > 0))
    far = far[np.argsort(-rows.error[far], kind="stable")][:FAR]
    if far.size:
        loss[far], error[far], reached[far], proved[far] = _by_newton(run, at, rows.take(far))
    listed = np.isin(places, opened) & np.isfinite(error)
    better = rows._replace(loss=loss, error=error, proved=proved)
    found = scan.replace_rows(rows.take(listed), better.take(listed), at.level)
    mine = np.array([np.searchsorted(places, place) for place in chosen], int)
    exact = np.where(reached, loss, np.nan)
    own = rows.take(mine)
    off = np.abs(rows.loss[mine] - exact[mine])
    rounding = PROGRAM_ROUNDING * (1 + np.abs(exact[mine]))
    beyond = (
        off
        > own.error * (1 + 1e-6) + np.where(np.isfinite(error[mine]), error[mine], 0.0) + rounding
    )
    table = {
        "row": own.row,
        "reason": list(chosen.values()),
        "reported": own.loss,
        "exact": exact[mine],
        "error": own.error,
    }
    return replace(
        found, passes=run.passes, audit=pd.DataFrame(table | {"difference": off, "beyond": beyond})
    )


# rows whose steps diverge are refitted in another way
@np.errstate(over="ignore", invalid="ignore")
def _refit(
    run: PassRunner, at: PassFit, rows: LeftOutRows
) -> tuple[Float[Array, " rows"], Float[Array, " rows"], Bool[Array, " rows"]]:
    """Return the losses at the end of the steps, a proved bound on their errors, and whether the
    steps converged.
    """
    assert at.table is not None
    plain = CachedLoss(run.loss)
    grown = np.ones(len(rows.y))
    eta = rows.x @ at.theta + rows.offset
    slope, curvature = plain.derivatives(eta, rows.y, (1, 2))
    z = rows.x @ at.root.T
    lost = rows.weight
    size = np.einsum("np,np->n", z, z)
    off = at.rounding.step * (1 + lost * curvature * size)
    size = size * at.rounding.growth**2
    kept = 1 - lost * curvature * size - off
    determined = kept > at.floor
    kept = np.where(determined, np.minimum(kept, 1.0), 1.0)

    def solved(gradient: Array) -> Array:
        return (
            gradient + (lost * curvature / kept * np.einsum("np,np->n", z, gradient))[:, None] * z
        )

    u = -solved(at.leftover - (lost * slope)[:, None] * z)
    first = length = before = error = np.full(len(eta), np.inf)
    for _ in range(MAX_PASSES):
        theta = at.theta + u @ at.root
        own = np.einsum("np,np->n", rows.x, theta) + rows.offset
        pulled = run.add_up(pulls, "refits", theta)["gradient"]
        pulled = (
            pulled
            + theta @ run.penalty
            - (lost * plain.derivatives(own, rows.y, (1,))[0])[:, None] * rows.x
        )
        gradient = pulled @ at.root.T
        step = -solved(gradient)
        noise = 4 * at.noise / np.sqrt(kept)
        length = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0)) + noise
        ball = at.table.ball(length, kept, grown, np.linalg.norm(u, axis=1))
        going = determined & (np.isfinite(ball.after) | (length < 0.5 * before))
        u = np.where(going[:, None], u + step, u)
        before = np.where(going, length, before)
        first = np.where(np.isfinite(first), first, length)
        center = eta + np.einsum("np,np->n", z, u)
        away = np.linalg.norm(u, axis=1)
        left = noise + 2 * off * np.linalg.norm(step, axis=1) / np.sqrt(kept)
        half = np.where(
            going & np.isfinite(ball.after), np.sqrt(size / kept) * (ball.after + left), np.inf
        )
        half += at.rounding.predictor(np.sqrt(size), np.abs(center), away)
        error = np.where(going, change(plain, rows.y, center, center, half), error)
        if not (going & (length > np.maximum(2 * noise, LAST_STEP_SHARE * first))).any():
            break
    return (
        plain.derivatives(center, rows.y, (0,))[0],
        error,
        determined & (length <= np.maximum(2 * noise, 1e3 * LAST_STEP_SHARE * first)),
    )


def _by_newton(
    run: PassRunner, at: PassFit, rows: LeftOutRows
) -> tuple[
    Float[Array, " rows"], Float[Array, " rows"], Bool[Array, " rows"], Bool[Array, " rows"]
]:
    """Refit rows by Newton steps with Hessians of their own, A, and return which of them are
    proved.

    These rows have most of the information in some direction. With A ⪰ μH and M‖x‖_{H⁻¹} ≤ m for
    all rows, no ℓ″ changes over moves of length 2λ by more than a factor of e^{2mλ/√μ}, so that C =
    e^{2mλ/√μ} − 1 in the theorem. If that proves nothing and the steps have converged, the error of
    a loss is estimated by its change in the last step.
    """
    assert at.table is not None
    plain = CachedLoss(run.loss)
    theta = np.tile(at.theta, (len(rows.y), 1))
    outer = np.einsum("np,nq->npq", rows.x, rows.x)
    turn = float(at.table.scale[0]) if run.loss.self_concordance is not None else np.inf
    center = rows.x @ at.theta + rows.offset
    error = np.full(len(center), np.inf)
    reached = np.zeros(len(center), bool)
    for _ in range(STEPS):
        slope, curvature = (
            rows.weight * part for part in plain.derivatives(center, rows.y, (1, 2))
        )
        told = run.add_up(pulls, "refits", theta, True)
        gradient = told["gradient"] + theta @ run.penalty - slope[:, None] * rows.x
        hessian = told["hessian"] + run.penalty - curvature[:, None, None] * outer
        least = np.linalg.eigvalsh(at.root @ hessian @ at.root.T)[:, 0]
        good = least > at.floor
        hessian[~good], least = np.eye(len(at.theta)), np.where(good, least, 1.0)
        step, own = (
            -np.linalg.solve(hessian, part[..., None])[..., 0] for part in (gradient, rows.x)
        )
        noise = 4 * at.noise / np.sqrt(least)
        length = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0)) + noise
        bend = turn * length / np.sqrt(least)
        share = np.expm1(np.minimum(2 * bend, 1.0))
        near = good & (share < 0.5)
        theta = theta + np.where(near | np.isinf(turn), 1.0, 1 / (1 + bend))[:, None] * np.where(
            good[:, None], step, 0.0
        )
        center = np.einsum("np,np->n", rows.x, theta) + rows.offset
        after = share * length / np.where(near, 1 - share, 1.0) + noise
        norm = np.sqrt(-np.einsum("np,np->n", rows.x, own))
        terms = np.einsum("np,np->n", np.abs(rows.x), np.abs(theta)) + np.abs(rows.offset)
        digits = UP * (theta.shape[1] + 4) * UNIT * (1 + terms)
        reached = good & (length <= np.maximum(2 * noise, LAST_STEP_SHARE))
        half = norm * np.where(near, after, np.where(reached, length, np.inf)) + digits
        error = change(plain, rows.y, center, center, half)
        if (reached | ~good).all():
            break
    return plain.derivatives(center, rows.y, (0,))[0], error, reached, near
