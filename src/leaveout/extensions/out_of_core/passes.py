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
    group_sums          Σ ω ℓ′ x, Σ ω ℓ″ x xᵀ of groups     a step of each with its own Hessian
    leave_groups        losses at the steps of their groups, and their errors

The sample of all rows serves the next term of the expansion (`refit._single_rows`). It is drawn
block by block in a single pass: as many rows are drawn from each block as from all. When two
samples are merged, each place goes to the second with probability its share of the sum, so that the
result is a sample of all rows. Seeds are numbers of rows, so every process draws the same.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.random import default_rng

from ... import losses
from ...developer import (
    OWN_HESSIAN_BELOW,
    DenseDesign,
    Loss,
    Matrix,
    NumpyArray,
    OneRow,
    PerRow,
    RadiusTable,
    Rounding,
    Row,
    RowFlags,
    RowNumbers,
    RowSample,
    Vector,
    bounded,
    change,
    curvature_error,
    estimated_half,
    float64,
    gradient_error,
    is_short,
    join,
    largest_first,
    level_numbers,
    members_by_label,
    next_term,
    record,
    sherman_morrison_step,
    silence,
    weight_terms,
    within,
)
from .batches import RowBlock

PerDrawn = Float[NumpyArray, " drawn"]
# rows of a sample, and the number of uniform draws; others are drawn in proportion to a bound of
# their terms
DRAWS = 512
EVEN_DRAWS = 102


class DrawnRows(NamedTuple):
    """Sample of rows: bounds of their terms, the sum of these over all rows, and the number of all
    rows.
    """

    row: Int[NumpyArray, " drawn"]
    x: Float[NumpyArray, "drawn params"]
    y: PerDrawn
    weight: PerDrawn
    offset: PerDrawn
    large: PerDrawn
    total: Float[NumpyArray, ""]
    number: Float[NumpyArray, ""]

    @property
    def chance(self) -> PerDrawn:
        """The probability of each sampled row in a single draw."""
        share = EVEN_DRAWS / DRAWS
        return (1 - share) * self.large / max(float(self.total), 1e-300) + share / float(
            self.number
        )


def draw_sample(block: RowBlock, large: PerRow) -> DrawnRows:
    """Draw a sample of one block."""
    rng = default_rng([1, block.start])
    below = np.cumsum(np.maximum(large, 1e-300))
    first = np.searchsorted(below / below[-1], rng.random(DRAWS - EVEN_DRAWS), side="right")
    rows = np.append(np.minimum(first, len(large) - 1), rng.integers(len(large), size=EVEN_DRAWS))
    parts = [part[rows] for part in (block.x, block.y, block.weight, block.offset, large)]
    return DrawnRows(
        block.start + rows,
        *parts,
        total=np.asarray(large.sum()),
        number=np.asarray(float(len(large))),
    )


def merge_samples(first: DrawnRows, other: DrawnRows) -> DrawnRows:
    """Merge two samples into one of the rows of both."""
    total = first.total + other.total
    count = first.number + other.number
    share = np.append(
        np.full(DRAWS - EVEN_DRAWS, other.total / max(float(total), 1e-300)),
        np.full(EVEN_DRAWS, other.number / count),
    )
    second = default_rng([2, int(count)]).random(DRAWS) < share
    parts = [
        np.where(second.reshape(-1, *[1] * (b.ndim - 1)), b, a)
        for a, b in zip(first[:6], other[:6], strict=True)
    ]
    return DrawnRows(*parts, total=total, number=count)


@record
class _AnchorRows:
    """Quantities at θ̂ that the next term needs, for the left-out rows and then for the sample."""

    model: Any
    eta: PerRow
    slope: PerRow
    curvature: PerRow
    third: PerRow
    weight: PerRow
    common: PerRow
    root: Matrix
    rounding: Rounding
    roots: None = None
    by_whitened_rows: bool = False

    def whiten(self, units: NumpyArray) -> NumpyArray:
        return self.model.design.whiten(units, self.root)


def estimate_errors(
    sample: DrawnRows, block: RowBlock, loss: Loss, anchor: Any, step: OneRow, scale: float
) -> tuple[PerRow, RowFlags]:
    """Estimate the errors of the losses of a block's rows by the next term, and mark where the
    estimate is usable.
    """
    place = step.unit - block.start
    x, y, weight, offset = (
        np.concatenate([part[place], sample_part])
        for part, sample_part in zip(
            block[1:5], (sample.x, sample.y, sample.weight, sample.offset), strict=True
        )
    )
    eta = x @ anchor.theta + offset
    order = np.argsort(step.unit, kind="stable")
    match = order[np.minimum(np.searchsorted(step.unit, sample.row, sorter=order), len(order) - 1)]
    index = np.where(step.unit[match] == sample.row, match, len(place) + np.arange(DRAWS))
    model = SimpleNamespace(loss=loss, y=y, design=DenseDesign(x))
    common = x @ (anchor.leftover @ anchor.root)
    slope, curvature, third = loss.derivatives(eta, y, (1, 2, 3))
    draws = RowSample(index, sample.chance)
    anchor_rows = _AnchorRows(
        model, eta, slope, curvature, third, weight, common, anchor.root, anchor.rounding
    )
    local_step = step._replace(unit=np.arange(len(place)))
    good = is_short(scale, local_step)
    half_width = estimated_half(
        scale,
        local_step,
        next_term(anchor_rows, local_step, DRAWS, draws),  # type: ignore[arg-type]
        True,
    )
    return change(loss, y[: len(place)], step.center, step.center, half_width), good


Sums = dict[str, NumpyArray]
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
    x: Float[NumpyArray, "rows params"]
    y: PerRow
    weight: PerRow
    offset: PerRow
    step_length: PerRow
    loss: PerRow
    error: PerRow
    proved: RowFlags

    def take(self, places: NumpyArray) -> "LeftOutRows":
        return LeftOutRows(*(part[places] for part in self))


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
    total = np.zeros(SUMS)
    with _collecting(file) as (write, columns):
        for block in blocks:
            left_out = _step_rows(block, loss, anchor)
            selected = [worst(join([*selected, worst(left_out, request)]), request)]
            write(left_out)
            total += sum_losses(left_out, anchor.level)
    return selected[0]._asdict() | {"sums": total} | columns


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
        error[open_rows[better]] = estimates[better]
        proved[open_rows[better]] = False
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
    first = largest_first(error)[:WORST]
    longest = largest_first(step_length)[:LONGEST_STEPS]
    return rows.take(np.unique(np.r_[first, longest, np.flatnonzero(np.isin(rows.row, request))]))


def sum_losses(rows: LeftOutRows, level: float) -> Float[NumpyArray, "10"]:
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
    thetas: Float[NumpyArray, "refits params"],
    labels: NumpyArray,
    curved: bool = False,
) -> Sums:
    """Compute Σ ω ℓ′(xᵀθ_r) x of some θ_r, without the row or the group of each label, and Σ ω
    ℓ″(xᵀθ_r) x xᵀ if `curved`.
    """
    total = {"gradient": np.zeros(thetas.shape)}
    if curved:
        total["hessian"] = np.zeros((*thetas.shape, thetas.shape[1]))
    for block in blocks:
        eta = thetas @ block.x.T + block.offset
        weight = block.weight * (block.labels != labels[:, None])
        slope, *curvature = (
            weight_terms(weight, part)
            for part in loss.derivatives(eta, block.y, (1, 2) if curved else (1,))
        )
        total["gradient"] += slope @ block.x
        for part in curvature:
            total["hessian"] += DenseDesign(block.x).products(part)
    return total


@float64
def group_names(blocks: Iterator[RowBlock], loss: Loss) -> Sums:
    """List the groups of some rows."""
    del loss
    return {"names": each_once([block.labels for block in blocks])}


def each_once(labels: list[NumpyArray]) -> NumpyArray:
    """Join labels, each once.

    ValueError if some are numbers and others text, of which 1 and "1" would be one.
    """
    kinds = {part.dtype.kind in "iuf" or part.dtype.kind for part in labels}
    if len(kinds) > 1:
        raise ValueError(
            f"scan: groups are {labels[0].dtype} in some rows and {labels[-1].dtype} in others; write them as one type."
        )
    return np.unique(np.concatenate(labels))


@float64
def group_sums(blocks: Iterator[RowBlock], loss: Loss, theta: Vector, names: NumpyArray) -> Sums:
    """Add up the gradients and the Hessians of the rows of some groups."""
    p = len(theta)
    gradient = np.zeros((len(names) + 1, p))  # the last is of all other rows
    hessian = np.zeros((len(names) + 1, p, p))
    for block in blocks:
        place = places_of(block, names)
        eta = block.x @ theta + block.offset
        slope, curvature = (
            weight_terms(block.weight, part) for part in loss.derivatives(eta, block.y, (1, 2))
        )
        for rows in members_by_label(level_numbers(place)):
            group = place[rows[0]]
            x = block.x[rows]
            gradient[group] += slope[rows] @ x
            hessian[group] += (x.T * curvature[rows]) @ x
    return {"gradient": gradient[:-1], "hessian": hessian[:-1]}


def places_of(block: RowBlock, names: NumpyArray) -> RowNumbers:
    """Return the places of the groups of rows in a sorted list, its length where they are not."""
    place = np.searchsorted(names, block.labels)
    return np.where(names[place - (place == len(names))] == block.labels, place, len(names))


@float64
def leave_groups(
    blocks: Iterator[RowBlock],
    loss: Loss,
    anchor: PassFit,
    names: NumpyArray,
    u: Float[NumpyArray, "groups params"],
    radius: Float[NumpyArray, " groups"],
    proved: NumpyArray,
    file: str | None,
) -> Sums:
    """Compute the losses of rows at the refits without their groups, and add up weights, losses and
    errors of each.
    """
    sums = np.zeros((3, len(names)))
    with _collecting(file) as (write, columns):
        for block in blocks:
            place = places_of(block, names)
            loss_of_row, error = losses_at(block, loss, anchor, u[place], radius[place])
            parts = np.ones(len(error)), loss_of_row - anchor.level, error
            sums += [
                np.bincount(place, weight_terms(block.weight, part), len(names)) for part in parts
            ]
            row = block.start + np.arange(len(error))
            is_proved = proved[place] & np.isfinite(error)
            write(SimpleNamespace(row=row, loss=loss_of_row, error=error, proved=is_proved))
    return {"sums": sums} | columns


@silence("invalid")
def losses_at(
    rows: RowBlock | LeftOutRows,
    loss: Loss,
    anchor: PassFit,
    u: Float[NumpyArray, "rows params"],
    radius: PerRow,
) -> tuple[PerRow, PerRow]:
    """Compute the losses of rows, each at u in whitened coordinates, and their errors if the
    minimiser is within a radius, in the norm of H; NaN where that is not determined.
    """
    z = rows.x @ anchor.root.T
    norm = np.sqrt(np.einsum("np,np->n", z, z)) * anchor.rounding.growth
    center = rows.x @ anchor.theta + rows.offset + np.einsum("np,np->n", z, u)
    digits = anchor.rounding.predictor(norm, np.abs(center), np.linalg.norm(u, axis=1))
    half = np.fmin(norm * radius, np.inf) + digits
    value = np.where(np.isnan(radius), np.nan, loss.derivatives(center, rows.y, (0,))[0])
    return value, change(loss, rows.y, center, center, half)


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
def _collecting(file: str | None) -> Iterator[tuple[Callable[[Any], object], Sums]]:
    """Yield a function that takes the losses and errors of rows, into a Parquet file or, without
    one, into columns, which are there afterwards.
    """
    columns = Sums()
    if file is None:
        several = list[Any]()
        yield several.append, columns
        for name in ("loss", "error", "proved"):
            columns[f"every {name}"] = np.concatenate([getattr(rows, name) for rows in several])
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
        yield (
            lambda rows: writer.write_table(
                pa.table([getattr(rows, name) for name in schema.names], schema=schema)
            ),
            columns,
        )
