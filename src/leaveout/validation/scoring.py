"""The loss of a batch of refits: the model's own score, a named one, or a user's function, with its error."""

import abc
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._runtime.jax import Array, Arrays, PyTree, compile_static, jax
from ..objectives.batch_functions import ClosedFormBatch, derive_batch, fold_weights, own_passes, padded_batch
from ..objectives.closed_form import AbstractClosedForm
from ..objectives.objective import AbstractLinearPredictor, AbstractObjective, map_arrays, repeatable, unflatten, unravel
from ..optimize.fit import Fit
from ..plans.plan import CAPACITY, Plan, RefitRows, few_more
from ..refit import RefitBatch

DIRECTIONS: Literal[8] = 8  # directions in which an unknown function is evaluated within the remaining distance
# factor on the result of so few directions, if there are more; for a linear function too small once in ten
SAFETY = {8: 1.5, 2: 3.0}

ScoreName = Literal["log_density", "squared_error", "absolute_error", "zero_one", "crps"]
Evaluate = Callable[[NDArray[np.int64], NDArray[np.int64], PyTree], ArrayLike]


class NamedScore(abc.ABC):
    """A score of every held-out unit, named by its `title`."""

    title: str
    joint = False  # whether there is one number for each refit, not for each held-out unit

    @abc.abstractmethod
    def losses(self, rows: RefitRows, theta: np.ndarray) -> NDArray[np.float64]:
        """Return the losses of a batch, `[refits, width]`, zero where not scored; joint ones `[refits]`."""

    @abc.abstractmethod
    def error(self, rows: RefitRows, batch: RefitBatch, losses: np.ndarray) -> NDArray[np.float64]:
        """Return the error of the summed losses of each refit, `[refits]`."""


@dataclass(frozen=True)
class HeldOutLoss:
    """Loss of a call: `evaluate` if it is given, else the model's own score."""

    fit: Fit
    plan: Plan
    evaluate: Evaluate | NamedScore | None

    @property
    def title(self) -> str:
        """The name of the losses."""
        if self.evaluate is None:
            return self.fit.objective.units.score
        return self.evaluate.title if isinstance(self.evaluate, NamedScore) else ""

    @functools.cached_property
    def joint(self) -> bool:
        """Tell whether the loss is one number a refit."""
        if self.evaluate is None:
            return not self.fit.objective.pointwise
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.joint
        parameters = natural(self.fit, self.fit.vector[None])
        return np.ndim(self._value(self.plan.one(0).rows, 0, parameters)) == 0

    def losses(self, rows: RefitRows, theta: np.ndarray) -> NDArray[np.float64]:
        """Return the losses of a batch, zero where not scored, `[refits, width]` or `[refits]`."""
        if self.evaluate is None:
            return scores(self.fit, rows, theta)
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.losses(rows, theta)
        parameters, joint = natural(self.fit, theta), self.joint
        out = np.zeros(len(rows.index) if joint else rows.index.shape)
        for k in range(len(out)):
            out[k if joint else (k, np.asarray(rows.held[k]))] = self._value(rows, k, parameters)
        return out

    def losses_of(self, rows: RefitRows, batch: RefitBatch) -> NDArray[np.float64]:
        """Return the losses of refits; a batch may already hold the model's own."""
        return self.losses(rows, batch.theta) if self.evaluate is not None or batch.scores is None else batch.scores

    def _value(self, rows: RefitRows, k: int, parameters: PyTree) -> NDArray:
        """Apply the user's function to one refit of a batch."""
        assert self.evaluate is not None and not isinstance(self.evaluate, NamedScore)
        held, out = rows.index[k][rows.held[k]], rows.index[k][rows.weight[k] == 0]
        seen = np.setdiff1d(np.arange(self.plan.num_units), out, assume_unique=True)
        value = np.asarray(self.evaluate(held, seen, map_arrays(lambda leaf: leaf[k], parameters)))
        if value.dtype == object and any(each is None for each in value.ravel()):  # None would become NaN, like a missing loss
            called = getattr(self.evaluate, "__qualname__", type(self.evaluate).__name__)
            what = "None" if value.ndim == 0 else "None among the losses"
            raise TypeError(f"evaluate: {called} returned {what}; return one loss a held unit, or one number.")
        value = np.asarray(value, np.float64)
        if value.shape not in ((), (len(held),)):
            raise ValueError(
                f"evaluate must return one loss a held unit, shape ({len(held)},), or one number; got {value.shape}."
            )
        return value

    def error(self, rows: RefitRows, batch: RefitBatch, losses: np.ndarray) -> NDArray[np.float64]:
        """Return the error of the summed losses of each refit; infinite if it is not known."""
        if self.evaluate is None:
            return batch.error
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.error(rows, batch, losses)
        each = reach(self.fit, batch, losses, lambda theta: self.losses(rows, theta))
        return each.reshape(len(each), -1).sum(1)


def reach(
    fit: Fit,
    batch: RefitBatch,
    at: np.ndarray,
    function: Callable[[np.ndarray], np.ndarray],
    directions: Literal[2, 8] = DIRECTIONS,
) -> NDArray[np.float64]:
    """Estimate the largest difference of a function of θ between the reported refits, `at`, and the exact refits.

    The exact refits lie in balls around known centres. The function is evaluated at the ends of orthogonal steps of one length.
    If it is about linear there, these changes are components of its gradient, and their root sum of squares bounds the change.
    With only some of the directions, drawn at random for each refit, this is an estimate. For functions with one number a
    refit, no slope is taken to be less than the median slope of the batch. Both ends of each direction are tried, since a tail
    may be flat on one side.
    """
    if batch.ball is None:
        return np.full(at.shape, np.inf)
    center, radius = batch.ball()
    rank, known, placed_at = center.shape[1], np.isfinite(radius), fit.at if batch.at is None else batch.at
    count, reached = min(rank, directions), np.where(known, radius, 0.0)
    orthogonal = np.linalg.qr(np.random.default_rng(0).standard_normal((len(center), rank, count)))[0]
    start = placed_at(center)
    middle = at if np.array_equal(start, batch.theta) else function(start)
    squares = np.zeros(at.shape)
    for direction in np.moveaxis(orthogonal, -1, 0):
        move = reached[:, None] * direction
        both = [np.abs(function(placed_at(center + sign * move)) - middle) for sign in (1, -1)]
        squares += np.maximum(*both) ** 2
    if count < rank and at.ndim == 1:
        told = (reached > 0) & np.isfinite(squares)
        steep = np.sqrt(squares[told]) / reached[told]
        squares = np.maximum(squares, ((np.median(steep) if told.any() else 0.0) * reached) ** 2)
    most = np.abs(middle - at) + np.sqrt(squares * rank / count) * (SAFETY[count] if count < rank else 1.0)
    return np.where(known.reshape(-1, *[1] * (at.ndim - 1)) & np.isfinite(most), most, np.inf)


@compile_static
def _natural(objective: AbstractObjective, like: PyTree, theta: Arrays) -> PyTree:
    return jax.vmap(lambda v: objective.parameters.natural(unravel(v, like)))(theta)


def natural(fit: Fit, theta: NDArray[np.float64]) -> PyTree:
    """Return the natural parameters of many refits, with a leading axis for the refits."""
    if fit.predictor_data is not None or isinstance(fit.objective, AbstractClosedForm):  # nothing needs to be compiled
        each = [fit.objective.parameters.natural(unflatten(v, fit.theta)) for v in theta]
        return {name: np.array([parameters[name] for parameters in each]) for name in each[0]}
    found = _natural(repeatable(fit.objective), fit.theta, theta[few_more(len(theta))])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(theta)], found)


@compile_static
def _predict_units(objective: AbstractObjective, like: PyTree, rows: RefitRows, theta: Arrays, size: int, kind: str) -> Array:
    """Predict the units of a batch, `size` refits at once."""

    def one(args):
        index, weight, theta = args
        return objective.predict(unravel(theta, like), fold_weights(objective, index, weight), index, kind)

    return jax.lax.map(one, (rows.index, rows.weight, theta), batch_size=size)


def _at_once(fit: Fit, rows: RefitRows) -> int:
    """Return how many refits are predicted at once: linear predictors need their own units only."""
    count, width = rows.index.shape
    if isinstance(fit.objective, AbstractLinearPredictor):  # rows are gathered, unless all are listed
        return count if width == fit.objective.num_units else min(count, max(1, CAPACITY // (width * fit.num_params)))
    return own_passes(fit.objective, width)


def scores(fit: Fit, rows: RefitRows, theta: np.ndarray) -> NDArray[np.float64]:
    """Return the model's own losses of a batch, zero where not scored."""
    model = fit.predictor_data
    if model is None:
        return derive_batch(fit.objective, fit.theta, rows).losses(theta, np.arange(len(theta)))
    index = np.minimum(rows.index, len(model.y) - 1)
    return np.where(rows.held, model.unit_loss.derivatives(model.at(index, theta), model.y[index], (0,))[0], 0.0)


def predictions(fit: Fit, rows: RefitRows, theta: np.ndarray, kind: str) -> NDArray[np.float64]:
    """Return the predictions of a batch's units."""
    model = fit.predictor_data
    if model is not None:
        eta = model.at(np.minimum(rows.index, len(model.y) - 1), theta)
        with np.errstate(all="ignore"):
            return eta if kind == "link" else np.asarray(model.inverse_link(eta))
    F = derive_batch(fit.objective, fit.theta, rows)
    if isinstance(F, ClosedFormBatch):
        return F.predictions(theta, np.arange(len(theta)), kind)
    objective, more = padded_batch(fit.objective, rows)
    return np.asarray(_predict_units(objective, fit.theta, more, theta, _at_once(fit, rows), kind))[:, : rows.index.shape[1]]
