"""The distributions that regressions predict: a family, and its own parameter in every refit.

Under squared loss the variance is φ = Σ w r² / Σ w over the rows that a refit sees, for every link.
A shape or a dispersion that the user gives to the loss is used as it is, and printed.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..._runtime import NumpyArray
from ...objectives import LOG_PROBABILITY, Distribution, Matrix, PerRefit, RefitPoints
from ...plans import RefitRows
from . import losses
from .distributions import GAMMA, GAUSSIAN, INVERSE_GAUSSIAN


def distribution(
    loss: losses.AbstractLoss, scale: str, variance: "Callable[[], ResidualVariance] | None" = None
) -> Distribution | None:
    """Distribution of the response that a loss on this scale states; None if it states none.

    The variance of squared loss is estimated by `variance`, unless the response is the code of a
    class.
    """
    family: Any = loss.family
    attributes: Any = loss
    tweedie = isinstance(loss, losses.Tweedie)
    if tweedie:
        family = {0.0: GAUSSIAN, 2.0: GAMMA, 3.0: INVERSE_GAUSSIAN}.get(float(attributes.power))
    if family is None or (family.scale == LOG_PROBABILITY and scale != LOG_PROBABILITY):
        return None
    if isinstance(loss, losses.Squared):
        if variance is None:
            return None
        residual = variance()
        return Distribution(
            lambda rows, theta: residual(rows, theta) ** 0.5, family.scores, family.draw
        )
    if loss.own:
        if family.crps is not None and not getattr(loss, "linear", False):
            return Distribution(
                lambda rows, theta: np.exp(theta[:, -1:]), family.scores, family.draw
            )
        return None
    name = "dispersion" if tweedie else family.parameter
    value = getattr(loss, name, 1.0)
    dispersion = value
    if tweedie:
        dispersion = 1 / value if attributes.power else value**0.5
    note = ""
    if loss.has_dispersion:
        note = f"of the {name} {value:g}, which is as it was given: nothing has estimated it"
    return Distribution(
        lambda rows, theta: np.full((len(theta), 1), float(dispersion)),
        family.scores,
        family.draw,
        note,
    )


def classes(loss: losses.AbstractLoss, outputs: int, scale: str) -> int:
    """Number of classes, if y holds the number of a class; else zero."""
    match loss:
        case losses.Multinomial():
            return outputs
        case losses.Ordinal(num_levels=levels):
            return levels
        case losses.Binomial() if scale == LOG_PROBABILITY:
            return 2
    return 0


class ResidualVariance:
    """Residual variance Σ w r² / Σ w of least squares over the rows that each refit sees."""

    def __init__(
        self,
        rows: Any,
        y: NumpyArray,
        offset: NumpyArray | None,
        weight: NumpyArray | None,
        loss: losses.AbstractLoss,
    ):
        self.rows = rows
        self.y = np.asarray(y)
        self.offset = 0.0 if offset is None else offset
        self.weight = np.ones(len(self.y)) if weight is None else np.asarray(weight)
        self.mean = loss.inverse_link
        self.linear = loss.convex

    @functools.cached_property
    def _gram(self) -> Matrix:
        return self.rows.products(self.weight[None])[0]

    def __call__(self, rows: RefitRows, theta: RefitPoints) -> Float[NumpyArray, "refits 1"]:
        index = rows.units(len(self.y))
        removed_weight = np.where(
            rows.index < len(self.y), (1 - rows.weight) * self.weight[index], 0.0
        )
        if self.linear:
            squares = self._quadratic(index, removed_weight, theta)
        else:
            squares = np.full(len(theta), np.nan)
        for k in np.flatnonzero(np.isnan(squares)):
            seen = self.weight.copy()
            np.subtract.at(seen, index[k], removed_weight[k])
            squares[k] = (
                seen
                @ (self.y - self.mean(self.rows.predictors(theta[k][None])[0] + self.offset)) ** 2
            )
        return (squares / (self.weight.sum() - removed_weight.sum(1)))[:, None]

    def _quadratic(
        self,
        index: Int[NumpyArray, "refits width"],
        removed_weight: Float[NumpyArray, "refits width"],
        theta: RefitPoints,
    ) -> PerRefit:
        """Compute Σ w r² without the left-out rows from its value at a nearby θ.

        NaN if little of it remains.
        """
        start = np.mean(theta[np.isfinite(theta).all(1)], 0)
        move = theta - start
        r = self.y - self.offset - self.rows.predictors(start[None])[0]
        residuals = r[index] - self.rows.unit_predictors(index, move)
        total = self.weight @ r**2
        all_squares = (
            total
            - 2 * move @ self.rows.pull((self.weight * r)[None])[0]
            + np.einsum("rp,rp->r", move @ self._gram, move)
        )
        squares = all_squares - np.sum(removed_weight * residuals**2, 1)
        # below this share digits cancel, and the sum is computed as one
        return np.where(squares > 1e-3 * np.maximum(total, all_squares), squares, np.nan)
