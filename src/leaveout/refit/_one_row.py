"""Single rows left out: one step with the row's own Hessian, in O(1) each (J. Sherman and W. J.
Morrison, 1950).

If a row z loses the weight v, the Hessian becomes H − v ℓ″ z zᵀ, and the step follows from zᵀH⁻¹z
alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..linalg.design import apply_curvature, scale_units
from ..linalg.enclosure_theorem import Ball
from ..objectives.objective import PerRefit
from ..optimize.fit import Fit
from ._anchor import linear_cache, total

Array = np.ndarray


class OneRow(NamedTuple):
    """Single rows after one step with their own Hessian, in O(1) each.

    Each has the row and the weight that it loses, its predictors, and their errors.
    """

    unit: Int[np.ndarray, " refits"]
    lost_curvature: PerRefit
    center: Float[np.ndarray, "refits ..."]
    half: PerRefit
    step_length: PerRefit  # λ, the length of the step
    distance: PerRefit  # D, a bound of the distance of the refit, and ρ, a bound after the step
    after: PerRefit
    kept_share: PerRefit  # 1 − q
    inverse: Float[np.ndarray, "refits ..."]  # inverse of that; for several outputs of I − zᵀz ℓ″
    digits: PerRefit  # rounding error of the predictor
    is_determined: Bool[np.ndarray, " refits"]

    def take(self, lanes: Array) -> "OneRow":
        return OneRow(*(part[lanes] for part in self))


class Row(NamedTuple):
    """Quantities of the anchor for the rows that leave, one number each.

    Vectors and matrices for several outputs.
    """

    eta: Float[np.ndarray, "refits ..."]
    slope: Float[np.ndarray, "refits ..."]
    curvature: Float[np.ndarray, "refits ..."]
    norm: PerRefit  # ‖z‖, z = R⊤x
    inner: Float[np.ndarray, "refits ..."]  # zᵀz
    share: PerRefit  # largest share of H that the row's curvature has, for a weight of one
    common: Float[np.ndarray, "refits ..."] | float  # zᵀ times the whitened gradient of the fit


def one_row(fit: Fit, unit: Array, weight: Array) -> OneRow:
    """Take the first look at refits that each change the weight of one row."""
    anchor, index = linear_cache(fit), span(unit)
    gradient_square = float(anchor.leftover @ anchor.leftover)
    common = anchor.common[index] if gradient_square else 0.0
    parts = anchor.eta[index], anchor.slope[index], anchor.curvature[index], anchor.norm[index]
    share = anchor.size[index] * (anchor.curvature[index] if anchor.roots is None else 1.0)
    row = Row(*parts, anchor.inner[index], share, common)
    grown = np.maximum(weight, 1.0)

    rounded = lambda center, move: anchor.rounding.predictor(
        anchor.length[index], total(np.abs(center), 1), move
    )
    ball = lambda slope, kept: anchor.table.ball(slope, kept, grown)
    lost_weight = (1 - weight) * anchor.weight[index]
    noise = anchor.noise * grown
    return sherman_morrison_step(
        unit,
        lost_weight,
        row,
        gradient_square,
        noise,
        ball,
        rounded,
        anchor.floor,
        anchor.rounding.step,
    )


def sherman_morrison_step(
    unit: Int[np.ndarray, " refits"],
    lost_weight: PerRefit,
    row: Row,
    gradient_square: PerRefit | float,
    noise: PerRefit,
    ball: Callable[[Array, Array], Ball],
    rounded: Callable[[Array, Array], Array],
    floor: PerRefit | float,
    off: PerRefit | float,
) -> OneRow:
    """Step single rows with their own Hessian, I − `lost_weight` z ℓ″ zᵀ, without forming a vector
    of parameters.

    `gradient_square` is ‖gradient‖² of the fit, whitened. `ball` maps λ to proved radii; `rounded`
    gives the rounding error of a predictor after a move of a length, and `off` what a step leaves
    of its length.
    """
    slopes = scale_units(lost_weight, row.slope)
    curvatures = scale_units(lost_weight, row.curvature)
    kept_share = 1 - lost_weight * row.share
    off = off * (1 + np.abs(lost_weight) * row.share)
    kept_share = kept_share - off
    determined = kept_share > floor
    kept_share = np.where(determined, np.minimum(kept_share, 1.0), 1.0)
    along = row.common - apply_curvature(row.inner, slopes)  # z · gradient
    if row.inner.ndim == 1:  # as it is computed, as `kept_share` is a lower bound
        inverse = 1 / np.where(determined, 1 - curvatures * row.inner, 1.0)
    else:
        inverse = _invert_outputs(row.inner, np.where(determined[:, None, None], curvatures, 0.0))
    step = apply_curvature(inverse, along)
    length = (
        gradient_square
        - total(slopes * (row.common + along), 1)
        + total(along * apply_curvature(curvatures, step), 1)
    )
    root = np.sqrt(kept_share)
    slope = np.sqrt(np.maximum(length, 0.0)) + noise / root
    distance, after = ball(slope, kept_share)
    center = row.eta - step
    digits = rounded(center, slope / root) + row.norm / root * (
        noise / root + 2 * off / kept_share * slope
    )
    with np.errstate(invalid="ignore"):
        half = np.where(determined, row.norm / root * after, np.inf) + digits
    return OneRow(
        unit,
        lost_weight,
        center,
        half,
        slope,
        distance,
        after,
        kept_share,
        inverse,
        digits,
        determined,
    )


def span(unit: Int[np.ndarray, " selected"]) -> Int[np.ndarray, " selected"] | slice:
    """Index units by a slice if they follow one another, so that nothing is gathered."""
    first = int(unit[0]) if len(unit) else 0
    follow = (
        len(unit) > 1 and unit[-1] - first == len(unit) - 1 and bool((np.diff(unit) == 1).all())
    )
    return slice(first, first + len(unit)) if follow else unit


def _invert_outputs(
    inner: Float[np.ndarray, "refits outputs outputs"],
    curvatures: Float[np.ndarray, "refits outputs outputs"],
) -> Float[np.ndarray, "refits outputs outputs"]:
    """Compute (I − zᵀz ℓ″)⁻¹ of several outputs."""
    return np.linalg.inv(np.eye(inner.shape[1]) - inner @ curvatures)
