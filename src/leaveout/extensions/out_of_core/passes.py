"""Functions of one pass over a part of the rows: F and its derivatives, the table for the proofs,
and each row's held-out loss.

Sums are in the order of the rows. The results of the parts are added in their order, whichever
process read them.

    sums                Σ ω ℓ, Σ ω ℓ′ x, Σ ω ℓ″ x xᵀ     a Newton step
    survey              weights of rows by ‖x‖_{H⁻¹}       the table of all rows, and a sample
    leave_rows_out      every row after one step with its own Hessian, and the error of its loss:
                        proved by the table or, if that does not suffice, estimated from the
                        sample; O(p²) for each row
    weighted_gradients  Σ ω ℓ′(xᵀθ_r) x of some θ_r        rows that are refitted to convergence
                        and Σ ω ℓ″(xᵀθ_r) x xᵀ             the few of them that move far
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ... import losses
from ...developer import (
    OWN_HESSIAN_BELOW,
    DenseDesign,
    Loss,
    Matrix,
    PerRow,
    RadiusTable,
    Rounding,
    Row,
    RowFlags,
    RowNumbers,
    Vector,
    bounded,
    change,
    curvature_error,
    float64,
    gradient_error,
    sherman_morrison_step,
    silence,
    weight_terms,
    within,
)
from .batches import RowBlock
from .sample import DrawnRows, draw_sample, estimate_errors, merge_samples

Array = np.ndarray
Sums = dict[str, Array]
SUMS = 10  # number of sums in `sum_losses`
# numbers of rows with the largest errors, and with the longest steps, that are kept to be refitted
WORST = 64
LONGEST_STEPS = 4


class PassFit(NamedTuple):
    """The fit in the form that later passes need.

    It has θ̂, L⁻¹, the remaining gradient, the sizes of rounding errors, that of the gradient, and
    the table of proofs, once it is there.
    """

    theta: Vector
    root: Matrix
    leftover: Vector
    rounding: Rounding
    level: float  # the mean loss, about which squares are summed
    noise: float = 0.0
    table: RadiusTable | None = None
    sample: DrawnRows | None = None
    tolerance: float = np.inf  # error of a loss from which the sample is used

    @property
    def floor(self) -> float:
        """Share of the information along every direction that must remain for a refit to be known
        to be determined.
        """
        off = self.rounding.off
        if off < 0.5:
            return max(OWN_HESSIAN_BELOW, 4 * off)
        return np.inf


class LeftOutRows(NamedTuple):
    """Rows with their numbers, values, y, ω and offset, and the results of their first step."""

    row: RowNumbers
    x: Float[Array, "rows params"]
    y: PerRow
    weight: PerRow
    offset: PerRow
    step_length: PerRow
    loss: PerRow
    error: PerRow
    proved: RowFlags

    def take(self, places: Array) -> "LeftOutRows":
        return LeftOutRows(*(part[places] for part in self))

    @staticmethod
    def join(several: "list[LeftOutRows]") -> "LeftOutRows":
        return LeftOutRows(*(np.concatenate(part) for part in zip(*several, strict=True)))


@float64
def sums(blocks: Iterator[RowBlock], loss: losses.AbstractLoss, theta: Vector) -> Sums:
    """Compute F without its penalty, its gradient and Hessian, and the sum of weights."""
    p = len(theta)
    value = np.zeros(())
    weight = np.zeros(())
    gradient = np.zeros(p)
    hessian = np.zeros((p, p))
    for block in blocks:
        try:
            loss.check(block.y)
        except ValueError as error:
            raise ValueError(
                f"scan: rows {block.start} to {block.start + len(block.y) - 1}: {error}"
            ) from None
        eta = block.x @ theta + block.offset
        with silence("over", "invalid"):
            parts = [
                weight_terms(block.weight, part)
                for part in loss.derivatives(eta, block.y, (0, 1, 2))
            ]
        value = value + parts[0].sum()
        weight = weight + block.weight.sum()
        gradient += parts[1] @ block.x
        hessian += DenseDesign(block.x).products(parts[2][None])[0]
    return {"value": value, "weight": weight, "gradient": gradient, "hessian": hessian}


@float64
def survey(blocks: Iterator[RowBlock], loss: Loss, anchor: PassFit) -> Sums:
    """Compute the entries of the table, the rounding of the gradient, Σω²(ℓ − level)², and a sample
    of the rows.
    """
    total = Sums()
    for block in blocks:
        eta = block.x @ anchor.theta + block.offset
        value, slope, curvature = loss.derivatives(eta, block.y, (0, 1, 2))
        norm, size, length = bounded(
            DenseDesign(block.x).extent(anchor.root, curvature), anchor.rounding
        )
        model = SimpleNamespace(loss=loss, y=block.y)
        blur = anchor.rounding.predictor(length, np.abs(eta))
        block_result = {
            "noise": gradient_error(
                model, anchor.rounding, block.weight, slope, curvature, eta, length, blur
            )
        }
        block_result["lost"] = curvature_error(model, curvature, eta, blur)
        block_result["tally"] = RadiusTable.tally(
            loss, block.y, eta, curvature, block.weight * size, norm, blur
        )
        block_result["square"] = np.sum(weight_terms(block.weight**2, (value - anchor.level) ** 2))
        if loss.self_concordance is not None:
            (third,) = loss.derivatives(eta, block.y, (3,))
            block_result |= draw_sample(
                block, np.abs(weight_terms(block.weight, third)) * norm * size
            )._asdict()
        total = merge_surveys(total, block_result)
    return total


def merge_surveys(first: Sums, second: Sums) -> Sums:
    """Combine the results of `survey` for two parts."""
    if not first or not second:
        return first or second
    sums = {name: np.asarray(first[name] + second[name]) for name in ("noise", "tally", "square")}
    sums["lost"] = np.maximum(first["lost"], second["lost"])
    if "row" in first:
        return sums | merge_samples(sample_of(first), sample_of(second))._asdict()
    return sums


def sample_of(answer: Sums) -> DrawnRows:
    return DrawnRows(*(answer[name] for name in DrawnRows._fields))


@float64
def leave_rows_out(
    blocks: Iterator[RowBlock],
    loss: Loss,
    anchor: PassFit,
    request: RowNumbers,
    file: str | None,
) -> Sums:
    """Leave out every row by itself.

    Returns sums of the results, the rows that need a closer look (with those of `request`), and the
    losses with their errors; the latter go to `file` if one is given.
    """
    selected = list[LeftOutRows]()
    tail = list[LeftOutRows]()
    total = np.zeros(SUMS)
    with _writing(file) as write:
        for block in blocks:
            left_out = _step_rows(block, loss, anchor)
            selected = [worst(LeftOutRows.join([*selected, worst(left_out, request)]), request)]
            write(left_out)
            tail += [] if file else [left_out]
            total += sum_losses(left_out, anchor.level)
    result = selected[0]._asdict() | {"sums": total}
    if file:
        return result
    return result | {
        f"every {name}": np.concatenate([getattr(rows, name) for rows in tail])
        for name in ("loss", "error", "proved")
    }


def _step_rows(block: RowBlock, loss: Loss, anchor: PassFit) -> LeftOutRows:
    """Take one step for each row with its own Hessian."""
    assert anchor.table is not None
    eta = block.x @ anchor.theta + block.offset
    slope, curvature = loss.derivatives(eta, block.y, (1, 2))
    norm, size, length = bounded(
        DenseDesign(block.x).extent(anchor.root, curvature), anchor.rounding
    )
    common = block.x @ (anchor.leftover @ anchor.root)
    row = Row(eta, slope, curvature, norm, size, size * curvature, common)
    rounded = lambda center, move: anchor.rounding.predictor(length, np.abs(center), move)
    units = block.start + np.arange(len(eta))
    grown = np.ones(len(eta))
    table = anchor.table
    leftover_square = float(anchor.leftover @ anchor.leftover)
    ball = lambda slope, share: table.ball(slope, share, grown)
    step = sherman_morrison_step(
        units,
        block.weight,
        row,
        leftover_square,
        anchor.noise * grown,
        ball,
        rounded,
        anchor.floor,
        anchor.rounding.step,
    )
    error = change(loss, block.y, step.center, step.center, step.half)
    proved = np.ones(len(eta), bool)
    open_rows = np.flatnonzero(
        ~within(error, np.full(len(error), anchor.tolerance)) & step.is_determined
    )
    if anchor.sample is not None and open_rows.size:
        estimates, good = estimate_errors(
            anchor.sample, block, loss, anchor, step.take(open_rows), float(table.scale[0])
        )
        better = good & (estimates < error[open_rows])
        error[open_rows[better]], proved[open_rows[better]] = estimates[better], False
    value = np.where(step.is_determined, loss.derivatives(step.center, block.y, (0,))[0], np.nan)
    return LeftOutRows(
        units,
        block.x,
        block.y,
        block.weight,
        block.offset,
        step.step_length,
        value,
        error,
        proved & np.isfinite(error),
    )


def worst(rows: LeftOutRows, request: RowNumbers) -> LeftOutRows:
    """Select the rows of the largest errors and of the longest steps, and those that are wanted."""
    error = np.nan_to_num(rows.weight * rows.error, nan=np.inf)
    step_length = np.where(np.isfinite(rows.error), rows.step_length, 0.0)
    first = np.argsort(-error, kind="stable")[:WORST]
    longest = np.argsort(-step_length, kind="stable")[:LONGEST_STEPS]
    return rows.take(np.unique(np.r_[first, longest, np.flatnonzero(np.isin(rows.row, request))]))


def sum_losses(rows: LeftOutRows, level: float) -> Float[Array, "10"]:
    """Sum over rows with a weight and a loss: their number, Σω, Σω(ℓ − level), Σω², Σω²(ℓ − level),
    Σω²(ℓ − level)², Σω error.

    Three counts follow: the rows without an error, the rows whose error is proved, and the rows
    without an error that have a loss.
    """
    included = np.isfinite(rows.loss) & np.isfinite(rows.error) & (rows.weight > 0)
    w = rows.weight[included]
    excess = rows.loss[included] - level
    error = rows.error[included]
    unknown = ~included & (rows.weight > 0)
    return np.array(
        [
            included.sum(),
            w.sum(),
            w @ excess,
            w @ w,
            w**2 @ excess,
            w**2 @ excess**2,
            w @ error,
            unknown.sum(),
            np.sum(included & rows.proved),
            np.sum(unknown & np.isfinite(rows.loss)),
        ]
    )


@float64
def weighted_gradients(
    blocks: Iterator[RowBlock],
    loss: Loss,
    thetas: Float[Array, "rows params"],
    curved: bool = False,
) -> Sums:
    """Compute Σ ω ℓ′(xᵀθ_r) x of some θ_r, and Σ ω ℓ″(xᵀθ_r) x xᵀ if `curved`."""
    total = {"gradient": np.zeros(thetas.shape)}
    if curved:
        total["hessian"] = np.zeros((*thetas.shape, thetas.shape[1]))
    for block in blocks:
        eta = thetas @ block.x.T + block.offset
        weight = np.broadcast_to(block.weight, eta.shape)
        slope, *curvature = (
            weight_terms(weight, part)
            for part in loss.derivatives(eta, block.y, (1, 2) if curved else (1,))
        )
        total["gradient"] += slope @ block.x
        for part in curvature:
            total["hessian"] += DenseDesign(block.x).products(part)
    return total


def beginning(file: Path, process: int | str) -> Path:
    """Return the path under which a process writes a file before it is complete.

    Readers of the folder ignore that name.
    """
    return file.with_name(f".{file.name}.{process}.part")


@contextmanager
def atomic_file(file: str | Path) -> Iterator[Path]:
    """Yield the path under which to write a file that then appears whole or not at all."""
    partial = beginning(Path(file), os.getpid())
    try:
        yield partial
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _writing(file: str | None) -> Iterator[Callable[[LeftOutRows], object]]:
    """Yield a function that writes rows, losses and errors into a Parquet file."""
    if file is None:
        yield lambda rows: None
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("row", pa.int64()),
            ("loss", pa.float64()),
            ("error", pa.float64()),
            ("proved", pa.bool_()),
        ]
    )
    with atomic_file(file) as partial, pq.ParquetWriter(partial, schema) as writer:
        yield lambda rows: writer.write_table(
            pa.table([getattr(rows, name) for name in schema.names], schema=schema)
        )
