"""Scan: fit and leave out every row, in passes over data that do not fit into memory.

A Newton step takes one pass. One more computes the table for proofs, and one leaves out every row.
A few more refit rows to convergence, because little is proved of them, or to check the proofs.

    F(θ) = Σ_n ω_n ℓ(x_nᵀβ + o_n, y_n) + ½ βᵀPβ

Only the results grow with the rows: a few numbers for each in memory, or none if these go to files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ... import GLM, losses, penalties
from ...developer import (
    AnyFunction,
    File,
    count,
    float64,
    keeping,
    one_thread,
    optional,
    share,
    stoppable,
)
from .batches import Batches, open_parts
from .group_refits import leave_groups_out
from .pass_runner import PassRunner
from .result import Scan
from .row_refits import refit_rows


@float64
def scan(
    data: Any,
    target: Any = None,
    loss: str | losses.AbstractLoss | AnyFunction | None = None,
    penalty: penalties.AbstractPenalty | None = None,
    *,
    columns: Sequence[str] | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    intercept: bool = True,
    groups: Any = None,
    rtol: float = 0.01,
    audit: int = 5,
    out: File | None = None,
    checkpoint: File | None = None,
) -> Scan:
    """Fit a `lo.GLM` to more rows than memory holds, and leave out each row, or each group of rows,
    in passes over the data.

    A fit takes one pass for each Newton step, its leave-one-out two more. Every row takes one step
    with its own Hessian, and a proof bounds the error of its loss. If the proof does not suffice,
    the error is estimated from a sample of 512 rows. If these errors together exceed `rtol`
    standard errors of the mean, or the error of a row is unknown, the worst 64 rows are refitted in
    a few more passes.

    Parameters
    ----------
    data : path, dataset, data frame or array
        The name of a Parquet file, a folder or a pattern of them, here or in an object store
        ("s3://bucket/*.parquet", by fsspec), a dataset of pyarrow, or a data frame of Dask. It may
        also be an array, a memory map or an array of Dask, `[rows, features]`.
    target : str or array
        The response: the name of a column, or an array if `data` is one.
    loss : str, loss or callable
        A convex loss of one output, as for `lo.GLM`.
    penalty : penalty, optional
        A quadratic penalty, such as `lo.penalties.Ridge`.
    columns : sequence of str, optional
        The features; by default all columns without another role.
    sample_weight, offset : str or array, optional
        The weights and the offset of the rows, as `target`.
    intercept : bool, default True
        Whether the model has an intercept.
    groups : str or array, optional
        The labels of groups, such as users, days or shops, as `target`; each group is left out
        whole, wherever its rows are. Each takes one step with its own Hessian, for which passes
        over the data add up p² numbers a group, of as many groups at a time as 128 MiB hold; p
        numbers a group stay in memory.
    rtol : float, default 0.01
        The tolerance, in standard errors of the mean.
    audit : int, default 5
        The number of rows or groups that are refitted to the end in any case (0 for none): those of
        the longest step, of the largest error, and some at random.
    out : path, optional
        A folder for Parquet files of the losses, one for each part of the data: `row`, `loss`,
        `error`, `proved`.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed, or ended with a full disk, continues
        from there, to the same numbers.

    Returns
    -------
    Scan
        The fit, the mean of the losses, and the losses, unless they went to `out`. Under
        `joblib.parallel_config(n_jobs=...)` or a `dask.distributed.Client` the passes run in
        workers. Sums are in the order of the rows, so the numbers are the same.

    Raises
    ------
    ValueError
        If a number is missing, infinite or outside the domain of the loss (with its batch and row),
        or a column does not exist.
    TypeError
        If the data, the loss or the penalty are of another kind.
    RuntimeError
        If no minimiser is reached.

    See Also
    --------
    cross_validate : Cross-validation in memory.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> found = lo.scan(X, X[:, 0] + rng.normal(size=200), "squared", audit=0)
    >>> round(found.mean, 3), found.losses.shape
    (0.506, (200,))
    """
    rtol = share("scan: rtol", rtol) if rtol != 1 else 1.0
    audit = count("scan: audit", audit, 0)
    rows = open_parts(data, target, columns, sample_weight, offset, groups)
    if rows.count < 2:
        raise ValueError(f"scan: at least two rows are needed; got {rows.count}.")
    folder = None if out is None else Path(out)
    if folder is not None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"scan: out={out} is a file; name a folder.")
        with optional("scan: out= writes Parquet files: pip install 'leaveout[parquet]'"):
            import pyarrow  # noqa: F401
        folder.mkdir(parents=True, exist_ok=True)
        if any(int(file.stem) >= len(rows.parts) for file in folder.glob("[0-9]*.parquet")):
            raise ValueError(
                f"scan: out={out} holds files of another scan, of more parts; name an empty folder."
            )
    model = _standing(rows, loss, penalty, intercept)
    inputs = {
        "data": [part.identity for part in rows.parts],
        "roles": rows.roles,
        "loss": model.loss_function,
        "penalty": model.penalty,
        "intercept": intercept,
        "rtol": rtol,
        "audit": audit,
        "out": None if folder is None else str(folder),
    }
    with (
        stoppable("scan"),
        keeping("scan", checkpoint, inputs),
        one_thread(model, rows.count and model.design.shape[1]),
    ):
        run = PassRunner(rows, model, folder)
        fitted, anchor = run.fitted(rtol)
        if rows.roles.group is not None:
            return leave_groups_out(run, fitted, anchor, rtol, audit)
        return refit_rows(run, *run.left_out(fitted, anchor, audit), anchor, rtol, audit)


def _standing(rows: Batches, loss, penalty, intercept: bool) -> GLM:
    """Build the model of the first block of the largest part.

    It reads loss, penalty and names as `lo.GLM` does, and the fit starts from it.
    """
    part = max(rows.parts, key=lambda part: part.count)
    if rows.delayed:
        import dask

        from .batches import fill_part

        part = fill_part(part, dask.compute(part.rows)[0])
    block = next(rows.blocks(part, False))
    x = pd.DataFrame(block.x, columns=list(rows.roles.features))
    weight = block.weight if block.weight.any() else None
    model = GLM(
        x, block.y, loss, penalty, sample_weight=weight, offset=block.offset, intercept=intercept
    )
    closed = model.predictors
    if (
        closed is None
        or closed.design.outputs > 1
        or closed.design.shape[0] > len(x)
        or not closed.separate
    ):
        raise TypeError(
            "scan: it is for convex losses of one output that declare their self_concordance or the peak of their second "
            "derivative, under a quadratic penalty that does not grow with the rows; got "
            f"{type(model.loss_function).__name__}, {type(model.penalty).__name__}."
        )
    return model
