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
    UNIT,
    UP,
    PerRow,
    RowFlags,
    RowNumbers,
    change,
    silence,
)
from .pass_runner import PassRunner
from .passes import WORST, LeftOutRows, PassFit, weighted_gradients
from .result import Scan

Array = np.ndarray
MAX_PASSES = 8  # largest number of passes over the data
# largest number of rows with Hessians of their own, and of their steps
MAX_FAR_ROWS = 16
MAX_ROW_STEPS = 30
LAST_STEP_SHARE = 1e-7  # length of a last step, relative to the first


def refit_rows(
    run: PassRunner,
    scan: Scan,
    anchor: PassFit,
    selected: LeftOutRows,
    request: RowNumbers,
    rtol: float,
    audit: int,
) -> Scan:
    """Refit the open rows of a scan, and audit it."""
    finite = np.flatnonzero(np.isfinite(selected.error) & (selected.weight > 0))
    orders = [
        finite[np.argsort(-part[finite], kind="stable")].tolist()
        for part in (selected.step_length, selected.error)
    ]
    orders.append([place for place in finite.tolist() if selected.row[place] in request])
    chosen = {}  # places of rows to repeat, with the reasons, taken in turn
    for k in range(audit):
        place = next((place for place in orders[k % 3] if place not in chosen), None)
        if place is not None:
            chosen[place] = REASONS[k % 3]
    # rows of which nothing is proved, and those of the largest errors while the mean's error is too
    # large
    unknown = np.flatnonzero(~np.isfinite(selected.error) & (selected.weight > 0))
    excess = scan.totals[6] - rtol * scan.se * scan.totals[1]
    weighed = np.where(np.isfinite(selected.error), selected.weight * selected.error, 0.0)
    order = np.argsort(-weighed, kind="stable")
    if excess > 0:
        largest = order[: int(np.searchsorted(np.cumsum(weighed[order]), excess)) + 1]
    else:
        largest = order[:0]
    opened = np.union1d(unknown, largest)[:WORST]
    places = np.union1d(opened, [*chosen])
    if not places.size:
        return replace(scan, passes=run.passes)
    rows = selected.take(places.astype(int))
    loss, error, reached = _refit(run, anchor, rows)
    proved = np.isfinite(error)
    distant = np.flatnonzero(~np.isfinite(error) & np.isin(places, opened) & (rows.weight > 0))
    distant = distant[np.argsort(-rows.error[distant], kind="stable")][:MAX_FAR_ROWS]
    if distant.size:
        loss[distant], error[distant], reached[distant], proved[distant] = _by_newton(
            run, anchor, rows.take(distant)
        )
    listed = np.isin(places, opened) & np.isfinite(error)
    better = rows._replace(loss=loss, error=error, proved=proved)
    new_scan = scan.replace_rows(rows.take(listed), better.take(listed), anchor.level)
    audited = np.array([np.searchsorted(places, place) for place in chosen], int)
    exact = np.where(reached, loss, np.nan)
    audited_rows = rows.take(audited)
    difference = np.abs(rows.loss[audited] - exact[audited])
    rounding = PROGRAM_ROUNDING * (1 + np.abs(exact[audited]))
    beyond = (
        difference
        > audited_rows.error * (1 + 1e-6)
        + np.where(np.isfinite(error[audited]), error[audited], 0.0)
        + rounding
    )
    table = {
        "row": audited_rows.row,
        "reason": list(chosen.values()),
        "reported": audited_rows.loss,
        "exact": exact[audited],
        "error": audited_rows.error,
    }
    return replace(
        new_scan,
        passes=run.passes,
        audit=pd.DataFrame(table | {"difference": difference, "beyond": beyond}),
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

    def solved(gradient: Array) -> Array:
        return (
            gradient
            + (weight * curvature / share * np.einsum("np,np->n", z, gradient))[:, None] * z
        )

    u = -solved(anchor.leftover - (weight * slope)[:, None] * z)
    first = length = before = error = np.full(len(eta), np.inf)
    for _ in range(MAX_PASSES):
        theta = anchor.theta + u @ anchor.root
        current_eta = np.einsum("np,np->n", rows.x, theta) + rows.offset
        total_gradient = run.add_up(weighted_gradients, "refits", theta)["gradient"]
        total_gradient = (
            total_gradient
            + theta @ run.penalty
            - (weight * loss.derivatives(current_eta, rows.y, (1,))[0])[:, None] * rows.x
        )
        gradient = total_gradient @ anchor.root.T
        step = -solved(gradient)
        noise = 4 * anchor.noise / np.sqrt(share)
        length = np.sqrt(np.maximum(-np.sum(gradient * step, 1), 0.0)) + noise
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


def _by_newton(
    run: PassRunner, anchor: PassFit, rows: LeftOutRows
) -> tuple[PerRow, PerRow, RowFlags, RowFlags]:
    """Refit rows by Newton steps with Hessians of their own, A, and return which of them are
    proved.

    These rows have most of the information in some direction. With A ⪰ μH and M‖x‖_{H⁻¹} ≤ m for
    all rows, no ℓ″ changes over moves of length 2λ by more than a factor of e^{2mλ/√μ}, so that C =
    e^{2mλ/√μ} − 1 in the theorem. If that proves nothing and the steps have converged, the error of
    a loss is estimated by its change in the last step.
    """
    assert anchor.table is not None
    loss = run.loss
    theta = np.tile(anchor.theta, (len(rows.y), 1))
    outer = np.einsum("np,nq->npq", rows.x, rows.x)
    scale = np.inf
    if run.loss.self_concordance is not None:
        scale = float(anchor.table.scale[0])
    center = rows.x @ anchor.theta + rows.offset
    error = np.full(len(center), np.inf)
    reached = np.zeros(len(center), bool)
    for _ in range(MAX_ROW_STEPS):
        slope, curvature = (rows.weight * part for part in loss.derivatives(center, rows.y, (1, 2)))
        totals = run.add_up(weighted_gradients, "refits", theta, True)
        gradient = totals["gradient"] + theta @ run.penalty - slope[:, None] * rows.x
        hessian = totals["hessian"] + run.penalty - curvature[:, None, None] * outer
        least = linalg.eigvalsh(anchor.root @ hessian @ anchor.root.T)[:, 0]
        good = least > anchor.floor
        hessian[~good], least = np.eye(len(anchor.theta)), np.where(good, least, 1.0)
        step, solved_rows = (
            -linalg.solve(hessian, part[..., None])[..., 0] for part in (gradient, rows.x)
        )
        noise = 4 * anchor.noise / np.sqrt(least)
        length = np.sqrt(np.maximum(-np.sum(gradient * step, 1), 0.0)) + noise
        relative_change = scale * length / np.sqrt(least)
        share = np.expm1(np.minimum(2 * relative_change, 1.0))
        contracts = good & (share < 0.5)
        theta = theta + np.where(contracts | np.isinf(scale), 1.0, 1 / (1 + relative_change))[
            :, None
        ] * np.where(good[:, None], step, 0.0)
        center = np.einsum("np,np->n", rows.x, theta) + rows.offset
        after = share * length / np.where(contracts, 1 - share, 1.0) + noise
        norm = np.sqrt(-np.einsum("np,np->n", rows.x, solved_rows))
        terms = np.einsum("np,np->n", np.abs(rows.x), np.abs(theta)) + np.abs(rows.offset)
        digits = UP * (theta.shape[1] + 4) * UNIT * (1 + terms)
        reached = good & (length <= np.maximum(2 * noise, LAST_STEP_SHARE))
        half = norm * np.where(contracts, after, np.where(reached, length, np.inf)) + digits
        error = change(loss, rows.y, center, center, half)
        if (reached | ~good).all():
            break
    return loss.derivatives(center, rows.y, (0,))[0], error, reached, contracts
