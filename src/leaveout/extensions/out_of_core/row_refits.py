"""Rows that are refitted to convergence, because little is proved of them, or to check the proofs.

Steps with each row's own Hessian at θ̂, I − ω ℓ″ z zᵀ in whitened coordinates, as long as they
contract; one pass over the data gives the gradients of all these rows.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy import linalg

from ...developer import (
    PROGRAM_ROUNDING,
    REASONS,
    NumpyArray,
    PerRow,
    RowFlags,
    RowNumbers,
    change,
    decrements,
    largest_first,
    silence,
    solve_each,
)
from .pass_runner import PassRunner
from .passes import WORST, LeftOutRows, PassFit, losses_at, weighted_gradients
from .result import Scan

MAX_PASSES = 8  # largest number of passes over the data
# largest number of refits with Hessians of their own, and of their steps
MAX_FAR_REFITS = 16
MAX_NEWTON_STEPS = 30
LAST_STEP_SHARE = 1e-7  # length of a last step, relative to the first


def choose(
    scan: Scan, candidates: LeftOutRows, request: RowNumbers, rtol: float, audit: int
) -> tuple[dict[int, str], RowNumbers]:
    """Choose places to repeat, with the reasons, and those of which nothing is known or whose
    errors are the largest while the mean's error is too large.
    """
    finite = np.flatnonzero(np.isfinite(candidates.error) & (candidates.weight > 0))
    orders = [
        finite[largest_first(part[finite])].tolist()
        for part in (candidates.step_length, candidates.error)
    ]
    orders.append([place for place in finite.tolist() if candidates.row[place] in request])
    reasons = {}  # taken in turn
    for k in range(audit):
        place = next((place for place in orders[k % 3] if place not in reasons), None)
        if place is not None:
            reasons[place] = REASONS[k % 3]
    unknown = np.flatnonzero(~np.isfinite(candidates.error) & (candidates.weight > 0))
    excess = scan.totals[6] - rtol * scan.se * scan.totals[1]
    weighed = np.where(np.isfinite(candidates.error), candidates.weight * candidates.error, 0.0)
    order = largest_first(weighed)
    if excess > 0:
        largest = order[: int(np.searchsorted(np.cumsum(weighed[order]), excess)) + 1]
    else:
        largest = order[:0]
    return reasons, np.union1d(unknown, largest)[:WORST]


def audit_table(
    rows: LeftOutRows, reasons: dict[int, str], places: RowNumbers, exact: PerRow, error: PerRow
) -> pd.DataFrame:
    """Compare what was reported with refits that were repeated; all but the reasons are of
    `places`.
    """
    audited = np.array([np.searchsorted(places, place) for place in reasons], int)
    exact = exact[audited]
    error = error[audited]
    rows = rows.take(audited)
    difference = np.abs(rows.loss - exact)
    rounding = PROGRAM_ROUNDING * (1 + np.abs(exact))
    margin = np.where(np.isfinite(error), error, 0.0) + rounding
    return pd.DataFrame(
        {
            "row": rows.row,
            "reason": list(reasons.values()),
            "reported": rows.loss,
            "exact": exact,
            "error": rows.error,
            "difference": difference,
            "beyond": difference > rows.error * (1 + 1e-6) + margin,
        }
    )


def refit_rows(
    run: PassRunner,
    scan: Scan,
    selected: LeftOutRows,
    request: RowNumbers,
    anchor: PassFit,
    rtol: float,
    audit: int,
) -> Scan:
    """Refit the open rows of a scan, and audit it."""
    reasons, opened = choose(scan, selected, request, rtol, audit)
    places = np.union1d(opened, [*reasons]).astype(int)
    if not places.size:
        return replace(scan, passes=run.passes)
    rows = selected.take(places)
    loss, error, reached = _refit(run, anchor, rows)
    proved = np.isfinite(error)
    distant = np.flatnonzero(~np.isfinite(error) & np.isin(places, opened) & (rows.weight > 0))
    distant = distant[largest_first(rows.error[distant])][:MAX_FAR_REFITS]
    if distant.size:
        far_rows = rows.take(distant)
        u, radius, reached[distant], proved[distant] = by_newton(run, anchor, far_rows.row)
        loss[distant], error[distant] = losses_at(far_rows, run.loss, anchor, u, radius)
    listed = np.isin(places, opened) & np.isfinite(error)
    better = rows._replace(loss=loss, error=error, proved=proved)
    exact = np.where(reached, loss, np.nan)
    return replace(
        scan.replace_rows(rows.take(listed), better.take(listed), anchor.level),
        passes=run.passes,
        audit=audit_table(rows, reasons, places, exact, error),
    )


# rows whose steps diverge are refitted in another way
@silence("over", "invalid")
def _refit(run: PassRunner, anchor: PassFit, rows: LeftOutRows) -> tuple[PerRow, PerRow, RowFlags]:
    """Return the losses at the end of the steps, a proved bound on their errors, and whether the
    steps converged.
    """
    assert anchor.table is not None
    loss = run.loss
    grown = np.ones(len(rows.y))
    eta = rows.x @ anchor.theta + rows.offset
    slope, curvature = loss.derivatives(eta, rows.y, (1, 2))
    z = rows.x @ anchor.root.T
    weight = rows.weight
    size = np.einsum("np,np->n", z, z)
    relative_error = anchor.rounding.step * (1 + weight * curvature * size)
    size = size * anchor.rounding.growth**2
    share = 1 - weight * curvature * size - relative_error
    determined = share > anchor.floor
    share = np.where(determined, np.minimum(share, 1.0), 1.0)

    def solved(gradient: NumpyArray) -> NumpyArray:
        return (
            gradient
            + (weight * curvature / share * np.einsum("np,np->n", z, gradient))[:, None] * z
        )

    u = -solved(anchor.leftover - (weight * slope)[:, None] * z)
    first = length = before = error = np.full(len(eta), np.inf)
    for _ in range(MAX_PASSES):
        theta = anchor.theta + u @ anchor.root
        totals = run.add_up(weighted_gradients, "refits", theta, rows.row)
        gradient = (totals["gradient"] + theta @ run.penalty) @ anchor.root.T
        step = -solved(gradient)
        noise = 4 * anchor.noise / np.sqrt(share)
        length = decrements(-step, gradient) + noise
        ball = anchor.table.ball(length, share, grown, linalg.norm(u, axis=1))
        going = determined & (np.isfinite(ball.after) | (length < 0.5 * before))
        u = np.where(going[:, None], u + step, u)
        before = np.where(going, length, before)
        first = np.where(np.isfinite(first), first, length)
        center = eta + np.einsum("np,np->n", z, u)
        away = linalg.norm(u, axis=1)
        remaining = noise + 2 * relative_error * linalg.norm(step, axis=1) / np.sqrt(share)
        half = np.where(
            going & np.isfinite(ball.after),
            np.sqrt(size / share) * (ball.after + remaining),
            np.inf,
        )
        half += anchor.rounding.predictor(np.sqrt(size), np.abs(center), away)
        error = np.where(going, change(loss, rows.y, center, center, half), error)
        if not (going & (length > np.maximum(2 * noise, LAST_STEP_SHARE * first))).any():
            break
    return (
        loss.derivatives(center, rows.y, (0,))[0],
        error,
        determined & (length <= np.maximum(2 * noise, 1e3 * LAST_STEP_SHARE * first)),
    )


@silence("over", "invalid")
def by_newton(
    run: PassRunner, anchor: PassFit, labels: NumpyArray
) -> tuple[NumpyArray, PerRow, RowFlags, RowFlags]:
    """Refit without each of some rows or groups by Newton steps with Hessians of their own, A.

    Returns the places of the refits in whitened coordinates, bounds of their distances from the
    minimisers, whether the steps converged, and whether the bounds are proved.

    Rows may have most of the information in some direction. With A ⪰ μH and M‖x‖_{H⁻¹} ≤ m for all
    rows, no ℓ″ changes over moves of length 2λ by more than a factor of e^{2mλ/√μ}, so that C =
    e^{2mλ/√μ} − 1 in the theorem. If that proves nothing and the steps have converged, the distance
    is estimated by the last step.
    """
    assert anchor.table is not None
    u = np.zeros((len(labels), len(anchor.theta)))
    scale = np.inf
    if run.loss.self_concordance is not None:
        scale = float(anchor.table.scale[0])
    for _ in range(MAX_NEWTON_STEPS):
        theta = anchor.theta + u @ anchor.root
        totals = run.add_up(weighted_gradients, "refits", theta, labels, True)
        gradient = (totals["gradient"] + theta @ run.penalty) @ anchor.root.T
        hessian = anchor.root @ (totals["hessian"] + run.penalty) @ anchor.root.T
        least = linalg.eigvalsh(hessian)[:, 0]
        good = least > anchor.floor
        hessian[~good], least = np.eye(len(anchor.theta)), np.where(good, least, 1.0)
        step = -solve_each(hessian, gradient)
        noise = 4 * anchor.noise / np.sqrt(least)
        length = decrements(-step, gradient) + noise
        relative_change = scale * length / np.sqrt(least)
        share = np.expm1(np.minimum(2 * relative_change, 1.0))
        contracts = good & (share < 0.5)
        damping = np.where(contracts | np.isinf(scale), 1.0, 1 / (1 + relative_change))
        u = u + np.where(good, damping, 0.0)[:, None] * step
        after = share * length / np.where(contracts, 1 - share, 1.0) + noise
        reached = good & (length <= np.maximum(2 * noise, LAST_STEP_SHARE))
        after = np.where(contracts, after, np.where(reached, length, np.inf))
        if (reached | ~good).all():
            break
    return u, after / np.sqrt(least), reached, contracts
