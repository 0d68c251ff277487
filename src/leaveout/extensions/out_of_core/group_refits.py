"""Groups of rows that are left out whole, wherever their rows are.

Passes add up the gradient and the Hessian of every group at θ̂. Each takes one step with its own
Hessian, I − R K Rᵀ in whitened coordinates, where K is that of its rows. The theorem bounds how far
it is from the minimiser, and one more pass computes the losses of all rows there. The worst groups,
and those of the audit, are refitted as rows are.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...developer import (
    NumpyArray,
    PerRow,
    RowFlags,
    decrements,
    join,
    largest_first,
    silence,
    solve_each,
)
from .pass_runner import PassRunner
from .passes import (
    LeftOutRows,
    PassFit,
    each_once,
    group_names,
    group_sums,
    leave_groups,
    sum_losses,
)
from .result import Scan
from .row_refits import MAX_FAR_REFITS, audit_table, by_newton, choose

GROUP_NUMBERS = 2**24  # numbers in the Hessians of groups that are summed in one pass (128 MiB)


class GroupRefits(NamedTuple):
    """Refits without groups: their places u in whitened coordinates, bounds of their distances from
    the minimisers in the norm of H, NaN where these are not determined, and whether the bounds are
    proved.
    """

    u: NumpyArray
    radius: PerRow
    proved: RowFlags
    length: PerRow  # of the first step


def leave_groups_out(run: PassRunner, scan: Scan, anchor: PassFit, rtol: float, audit: int) -> Scan:
    """Leave out every group, refit the open ones, and audit them."""
    union = lambda total, part: {"names": each_once([*total.values(), *part.values()])}
    names = run.add_up(group_names, "groups", together=union)["names"]
    count = len(names)
    if count < 2:
        raise ValueError(f"scan: groups has {count} label; at least two groups are needed.")
    size = max(1, GROUP_NUMBERS // len(anchor.theta) ** 2)
    refits = join([_step(run, anchor, names[k : k + size]) for k in range(0, count, size)])
    scan, groups = _left_out(run, replace(scan, groups=names), anchor, refits)
    request = np.random.default_rng(0).choice(count, min(audit, count), replace=False)
    reasons, opened = choose(scan, groups, request, rtol, audit)
    opened = opened[largest_first(groups.error[opened])][:MAX_FAR_REFITS]
    places = np.union1d(opened, [*reasons]).astype(int)
    if places.size:
        u, radius, reached, proved = by_newton(run, anchor, names[places])
        known = np.isfinite(radius)
        for part, end in zip(refits, (u, radius, proved), strict=False):
            part[places[known]] = end[known]
        reported = groups.take(places)
        scan, groups = _left_out(run, scan, anchor, refits)
        exact = np.where(reached, groups.loss[places], np.nan)
        table = audit_table(reported, reasons, places, exact, groups.error[places])
        labels = names[table.pop("row")]
        table.insert(0, "group", labels)
        scan = replace(scan, audit=table)
    return replace(scan, passes=run.passes)


@silence("over", "invalid")
def _step(run: PassRunner, anchor: PassFit, names: NumpyArray) -> GroupRefits:
    """Take one step without each of some groups, by its own Hessian at θ̂."""
    assert anchor.table is not None
    totals = run.add_up(group_sums, "groups", anchor.theta, names)
    gradient = anchor.leftover - totals["gradient"] @ anchor.root.T
    hessian = np.eye(len(anchor.theta)) - anchor.root @ totals["hessian"] @ anchor.root.T
    least = np.linalg.eigvalsh(hessian)[:, 0]
    off = (anchor.rounding.step + anchor.rounding.formed) * (2 - least)
    determined = least - off > anchor.floor
    hessian[~determined] = np.eye(len(anchor.theta))
    share = np.where(determined, np.minimum(least - off, 1.0), 1.0)
    u = -solve_each(hessian, gradient)
    noise = 4 * anchor.noise / np.sqrt(share)
    length = decrements(-u, gradient) + noise
    after = anchor.table.ball(length, share, np.ones(len(u))).after
    after = after + noise + 2 * off * np.linalg.norm(u, axis=1) / np.sqrt(share)
    radius = np.where(determined, after / np.sqrt(share), np.nan)
    return GroupRefits(u, radius, np.isfinite(radius), length)


def _left_out(
    run: PassRunner, scan: Scan, anchor: PassFit, refits: GroupRefits
) -> tuple[Scan, LeftOutRows]:
    """Return the scan with the losses of all rows, and the groups as if they were rows: with their
    weights, mean losses and mean errors.
    """
    parts = run.over_rows(leave_groups, anchor, scan.groups, *refits[:3])
    weight, excess, error = sum(part["sums"] for part in parts)
    total = np.maximum(weight, 1e-300)
    mean = excess / total + anchor.level
    groups = LeftOutRows(
        row=np.arange(len(total)),
        x=refits.u,
        y=mean,
        weight=weight,
        offset=mean,
        step_length=refits.length,
        loss=mean,
        error=error / total,
        proved=refits.proved,
    )
    return replace(scan, totals=sum_losses(groups, anchor.level), every=run.columns), groups
