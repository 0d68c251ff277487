"""Single rows left out of very many, where a gradient of every refit costs too much: the next term
of the expansion.

After one step u_j with the row's own Hessian (`_one_row.one_row`) its predictor still moves by
about

    −½ Σ_{i≠j} ω_i ℓ‴_i (z_iᵀu_j)² (z_iᵀz_j) / (1 − h_j ω_j ℓ″_j),      z = L⁻¹x whitened,

and for several outputs by −½ Σ_{i≠j} (1 − G_jj ω_j ∇²ℓ_j)⁻¹ G_ji ω_i ∇³ℓ_i[U_iu_j, U_iu_j], G_ji =
U_j H⁻¹ U_iᵀ. It is estimated from a sample of rows, with its standard error, or computed from all
rows and added as a correction. The result is called an estimate. It is not used after a long step,
when later terms would matter. Sums are in float32, unless columns nearly repeat one another: an
error of 1e-6 of a small correction does not matter.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from .._runtime.jax import cached_on
from ..linalg.design import (
    DenseDesign,
    LossOfSeveral,
    MultiOutputDesign,
    apply_curvature,
    scale_units,
)
from ..objectives.objective import PerRefit
from ._anchor import LinearFitCache
from ._one_row import OneRow

Array = np.ndarray
SIZES = 256, 2048  # rows in a sample
# effective number of sampled rows: a row of few entries meets few others, and a sample may miss the
# largest
LEAST_ROWS = 20.0
SAMPLED_ROWS_AT_A_TIME = 64  # sampled rows at a time, for several outputs
SINGLE_PRECISION_LOSS = 1e3  # largest factor on its rounding error at which float32 is used


class Term(NamedTuple):
    """Next term of each refit, one number for each output.

    A term from a sample has its standard error; `size` is the sum of the sizes of its parts.
    """

    move: Float[np.ndarray, "refits ..."]
    spread: Float[np.ndarray, "refits ..."]
    size: Float[np.ndarray, "refits ..."]


class RowSample(NamedTuple):
    """Rows drawn in proportion to a bound of their terms, with one draw in five uniform, and their
    probabilities.
    """

    rows: Int[np.ndarray, " drawn"]
    chance: Float[np.ndarray, " drawn"]


@cached_on
def draw_rows(anchor: LinearFitCache) -> RowSample:
    """Draw the sample, with the same seed in every call."""
    if anchor.roots is None:
        largest = np.abs(anchor.weight * anchor.third) * anchor.norm * anchor.size
    else:
        largest = anchor.weight * anchor.size * anchor.norm
    chance = 0.8 * largest / max(largest.sum(), 1e-300) + 0.2 / len(largest)
    chance /= chance.sum()
    below = np.cumsum(chance)
    index = np.searchsorted(
        below / below[-1], np.random.default_rng(0).random(max(SIZES)), side="right"
    )
    return RowSample(index, chance[index])


def next_term(
    anchor: LinearFitCache, look: OneRow, size: int | None, sample: RowSample | None = None
) -> Term:
    """Compute the next term after the first step, from a sample of that size or all rows."""
    if size is None:
        index = np.arange(len(anchor.eta))
        chance = np.ones(len(anchor.eta))
    else:
        index, chance = (part[:size] for part in (draw_rows(anchor) if sample is None else sample))
    weight = anchor.weight[index] / (chance * (size or 1))
    unit = look.unit
    along = scale_units(
        look.lost_curvature,
        anchor.slope[unit]
        + apply_curvature(anchor.curvature[unit], look.center - anchor.eta[unit]),
    )
    if anchor.roots is None:
        sums = _of_one(anchor, look, along, index, weight, size is not None)
    else:
        sums = _of_several(anchor, look, along, index, weight)
    return Term(-0.5 * sums[0], 0.5 * np.sqrt(sums[1]), 0.5 * sums[2])


def precision(lost_weight: float) -> type[np.floating]:
    """Choose the precision for the sums of a small correction whose rounding error is multiplied by
    `lost_weight`.

    The factor is large if columns repeat one another.
    """
    if lost_weight > SINGLE_PRECISION_LOSS:
        return np.float64
    return np.float32


def _precise(anchor: LinearFitCache) -> Callable[[Array], Array]:
    """Return the function that converts arrays to that precision."""
    return functools.partial(np.asarray, dtype=precision(anchor.rounding.root**2))


def _of_one(
    anchor: LinearFitCache, look: OneRow, along: Array, index: Array, weight: Array, sampled: bool
) -> Float[np.ndarray, "3 refits"]:
    single = _precise(anchor)
    third = single(weight * anchor.third[index])
    along = single(along)
    common = single(anchor.common[index])
    squared = third**2
    size = np.abs(third)
    images = anchor.whiten(index)
    if anchor.by_whitened_rows:
        images = single(images).T
        design = DenseDesign(single(anchor.rows))
    else:  # of rows with H⁻¹x
        images = single(images @ anchor.root).T
        design = cast(DenseDesign, anchor.model.design)
    sums = np.empty((3, len(look.unit)))
    (itself, place) = _itself(index, look.unit)
    # numbers in float32: half a core's cache
    step = max(1, 2**17 // len(index))
    for start in range(0, len(look.unit), step):
        chunk = slice(start, start + step)
        gram = design.multiply(look.unit[chunk], images)
        term = gram * along[chunk, None]
        term -= common
        term *= term
        term *= gram
        is_inside = (start <= itself) & (itself < start + step)
        term[itself[is_inside] - start, place[is_inside]] = 0.0
        sums[0, chunk] = term @ third
        sums[2, chunk] = np.abs(term) @ size
        sums[1, chunk] = np.square(term, out=term) @ squared if sampled else 0.0
    return sums / np.stack([look.kept_share, look.kept_share**2, look.kept_share])


def _itself(
    index: Int[np.ndarray, " selected"], unit: Int[np.ndarray, " refits"]
) -> tuple[Int[np.ndarray, " matches"], Int[np.ndarray, " matches"]]:
    """Find the refits whose own rows are among those listed, and the places of these."""
    order = np.argsort(unit)
    first, end = (np.searchsorted(unit, index, side, order) for side in ("left", "right"))
    count = end - first
    place = np.repeat(np.arange(len(index)), count)
    return order[np.arange(len(place)) + np.repeat(first - np.cumsum(count) + count, count)], place


def _of_several(
    anchor: LinearFitCache, look: OneRow, along: Array, index: Array, weight: Array
) -> Float[np.ndarray, "3 refits outputs"]:
    loss = cast(LossOfSeveral, anchor.model.loss)
    single = _precise(anchor)
    inverses, along, sums = single(look.inverse), single(along), np.zeros((3, *along.shape))
    across = _across(anchor, look.unit, index, single)
    for chunk in _parts(len(index), SAMPLED_ROWS_AT_A_TIME):
        grams = across(chunk)
        common, eta = (
            np.asfortranarray(single(part[index[chunk]])) for part in (anchor.common, anchor.eta)
        )
        (itself, place) = _itself(index[chunk], look.unit)
        (count, outputs) = eta.shape
        # numbers at a time, for several outputs
        for refit_chunk in _parts(len(look.unit), max(1, 2**19 // (count * outputs**2))):
            gram = grams(refit_chunk).reshape(-1, outputs, outputs, count)
            move = along[refit_chunk, None] @ gram.reshape(len(gram), outputs, -1)
            third_terms = loss.third(
                eta, move.reshape(len(gram), outputs, count).swapaxes(1, 2) - common
            )
            third_terms *= single(weight[chunk])[:, None]
            is_inside = (refit_chunk.start <= itself) & (itself < refit_chunk.stop)
            third_terms[itself[is_inside] - refit_chunk.start, place[is_inside]] = 0.0
            term = np.asarray(
                inverses[refit_chunk] @ np.einsum("rklm,rml->rkm", gram, third_terms), float
            )
            sums[0, refit_chunk] += term.sum(-1)
            sums[1, refit_chunk] += np.einsum("rki,rki->rk", term, term)
            sums[2, refit_chunk] += np.abs(term).sum(-1)
    return sums


def _across(
    anchor: LinearFitCache,
    refits: Int[np.ndarray, " refits"],
    rows: Int[np.ndarray, " rows"],
    single: Callable[[Array], Array],
) -> Callable[[slice], Callable[[slice], Float[np.ndarray, "..."]]]:
    """Return products U_j H⁻¹U_iᵀ of left-out units and of rows, rows last, as a function of rows
    and then of units.

    If the units are few, H⁻¹Uᵀ of the units is used.
    """
    design = cast(MultiOutputDesign, anchor.model.design)
    outputs = design.outputs
    features = design.features
    inverse, x = anchor.inverse.reshape(outputs, features, -1), single(design.base.rows(rows))
    image = lambda units: single(design.base.rows(units) @ inverse).reshape(
        outputs, len(units), outputs, features
    )
    if len(refits) <= SAMPLED_ROWS_AT_A_TIME:
        refit_images = np.ascontiguousarray(image(refits).transpose(1, 0, 2, 3))
        return lambda chunk: (
            lambda refit_chunk: refit_images[refit_chunk].reshape(-1, features) @ x[chunk].T
        )

    def by_rows(chunk: slice) -> Callable[[slice], Array]:
        row_images = image(rows[chunk]).transpose(2, 0, 1, 3).reshape(-1, features).T
        return lambda refit_chunk: design.base.multiply(refits[refit_chunk], row_images)

    return by_rows


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _curvature_change(curvature_rate: PerRefit | float, look: OneRow) -> PerRefit:
    """Bound the logarithmic change of the curvature along the step.

    M max k ‖u‖, with `curvature_rate` = M max k.
    """
    return curvature_rate * look.step_length / np.sqrt(look.kept_share)


def short(curvature_rate: PerRefit | float, look: OneRow) -> Bool[np.ndarray, " refits"]:
    """Tell whether the step is short enough for the term to be valid."""
    # M max k ‖u‖, beyond which the terms after the next are not small
    return look.is_determined & (_curvature_change(curvature_rate, look) < 1.0)


def half(curvature_rate: PerRefit | float, look: OneRow, term: Term, sampled: bool) -> PerRefit:
    """Estimate the predictors' remaining error after a short step, rounding included.

    For several outputs it is a range.
    """
    curvature_change = _curvature_change(curvature_rate, look)
    move = np.abs(term.move)
    size = term.size
    sample_safety = 3.0  # standard errors of a sample that are added
    if term.move.ndim > 1:
        spread = sample_safety * term.spread if sampled else 0.0
        move = (term.move + spread).max(1) - (term.move - spread).min(1)
        size = 2 * size.max(1)
    elif sampled:
        move = move + sample_safety * term.spread
    if sampled:
        largest, spread = (part.reshape(len(move), -1).max(1) for part in (term.size, term.spread))
        return np.where(
            largest**2 >= LEAST_ROWS * spread**2,
            move * (1 + curvature_change * np.exp(curvature_change)) + look.digits,
            np.inf,
        )
    return (
        np.minimum(
            2 * curvature_change * np.exp(curvature_change) * np.maximum(move, 0.3 * size),
            move + size,
        )
        + look.digits
    )
