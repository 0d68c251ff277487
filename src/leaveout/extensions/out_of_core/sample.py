"""Sample of all rows for the next term of the expansion (`refit._single_rows`), drawn block by
block in a single pass.

As many rows are drawn from each block as from all. When two samples are merged, each place goes to
the second with probability its share of the sum, so that the result is a sample of all rows. Seeds
are numbers of rows, so every process draws the same.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.random import default_rng

from ...developer import (
    DenseDesign,
    Loss,
    Matrix,
    OneRow,
    PerRow,
    Rounding,
    RowFlags,
    RowSample,
    change,
    estimated_half,
    is_short,
    next_term,
    record,
)
from .batches import RowBlock

Array = np.ndarray
PerDrawn = Float[Array, " drawn"]
# rows of a sample, and the number of uniform draws; others are drawn in proportion to a bound of
# their terms
DRAWS = 512
EVEN_DRAWS = 102


class DrawnRows(NamedTuple):
    """Sample of rows: bounds of their terms, the sum of these over all rows, and the number of all
    rows.
    """

    row: Int[Array, " drawn"]
    x: Float[Array, "drawn params"]
    y: PerDrawn
    weight: PerDrawn
    offset: PerDrawn
    large: PerDrawn
    total: Float[Array, ""]
    number: Float[Array, ""]

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

    def whiten(self, units: Array) -> Array:
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
