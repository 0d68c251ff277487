"""Pairs of refits that mask each other: left out together they move the fit by more than both do
alone.

Two outliers in one place hold the fit there when either is left out, so measures of single rows do
not show them. With u_i, u_j and u_ij the whitened moves without the one, the other, and both, they
mask each other if ‖u_ij‖ exceeds 1.5 (‖u_i‖ + ‖u_j‖) by more than the errors of the refits, and
Cook's distance of both is above 4/n (Bollen & Jackman 1990). (Rows alike, each of leverage h: (1 −
h)/(1 − 2h) times as far, 1.5 at h = 1/4.)
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy

from ..objectives import AbstractLinearPredictor
from ..optimize import Fit
from ..plans import Plan
from .measures import hat_diagonal

MASKING_RATIO = 1.5
COLUMNS = [
    "first",
    "second",
    "cook_first",
    "cook_second",
    "sum",
    "joint",
    "joint_error",
    "times",
    "masked",
]


def pairs_of(
    fit: Fit,
    plan: Plan,
    table: pd.DataFrame,
    single: Any,
    size: float,
    request: int | None,
    moves: Callable[[Plan], Any],
) -> tuple[pd.DataFrame, str]:
    """Return all pairs of some refits, those that mask each other first, with a note."""
    count = 20 if request is None else request
    if not isinstance(count, int | np.integer) or count < 0 or count == 1:
        raise ValueError(
            f"influence: num_pairs must be a whole number, 2 or more, or 0 for none; got {request!r}."
        )
    if plan.weight.any():
        if request:
            raise ValueError(
                "influence: pairs need a plan that leaves units out; this one gives some a weight. Give num_pairs=0."
            )
        return pd.DataFrame(
            columns=COLUMNS
        ), "" if request == 0 else "pairs were not tried: the plan gives units a weight"
    chosen = _candidates(fit, plan, table, int(count))
    # units of both, of which those of four or more are scored by one of them
    shape = plan.num_refits, plan.num_units
    left_out = scipy.sparse.csr_array((np.where(plan.held, 4, 1), plan.index, plan.indptr), shape)
    pairs = np.array(list(itertools.combinations(chosen, 2)), int).reshape(-1, 2)
    union = left_out[pairs[:, 0]] + left_out[pairs[:, 1]]
    some_stay = np.diff(union.indptr) < plan.num_units
    if not some_stay.any():
        return pd.DataFrame(columns=COLUMNS), ""
    i, j = pairs[some_stay].T
    union = union[some_stay]
    union.sort_indices()
    joint_plan = Plan(
        union.indptr,
        union.indices,
        np.zeros(union.nnz),
        union.data >= 4,
        plan.num_units,
        serial=plan.serial,
    )
    joint = moves(joint_plan)
    separate = single.length[i] + single.length[j]
    error = joint.error + MASKING_RATIO * (single.error[i] + single.error[j])
    with np.errstate(invalid="ignore", divide="ignore"):
        times = joint.length / separate
    cook = joint.length**2 / size
    masked = (joint.length - error > MASKING_RATIO * separate) & (cook > 4 / plan.num_units)
    cooks = table["cook"].to_numpy()
    names = table.index
    columns = (
        names[i],
        names[j],
        cooks[i],
        cooks[j],
        np.sum((single.u[i] + single.u[j]) ** 2, 1) / size,
    )
    joint_columns = cook, joint.error * (2 * joint.length + joint.error) / size, times, masked
    pair_table = pd.DataFrame(dict(zip(COLUMNS, (*columns, *joint_columns), strict=True)))
    return pair_table.sort_values(["masked", "joint"], ascending=False, ignore_index=True), ""


def _candidates(fit: Fit, plan: Plan, table: pd.DataFrame, count: int) -> list[int]:
    """List refits in turn by Cook's distance, by the rise of their loss and, for single rows, by
    leverage.
    """
    keys = [table["cook"].to_numpy(), table["rise"].to_numpy()]
    linear = (
        isinstance(fit.objective, AbstractLinearPredictor)
        and getattr(fit.objective, "class_code", None) is None
    )
    if linear and (np.diff(plan.indptr) == 1).all():
        keys.append(hat_diagonal(fit)[plan.index])
    exists = np.isfinite(keys[0])
    orders = [np.argsort(-np.where(np.isfinite(key), key, -np.inf), kind="stable") for key in keys]
    turns = np.column_stack(orders).ravel()
    return list(dict.fromkeys(turns[exists[turns]].tolist()))[:count]
