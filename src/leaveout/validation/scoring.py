"""The loss of a batch of refits: the model's own score, a named one, or a user's function, with its
error.

The scores that `cross_validate(..., evaluate="squared_error")` names are

    log_density      −log p(y), normalised; of discrete y −log P(y)
    squared_error    (y − μ)²; of three classes and more Brier's Σ_k (1[y = k] − μ_k)²
    absolute_error   |y − μ|
    zero_one         1 if the most probable class is wrong, else 0
    crps             ∫ (P(Y ≤ t) − 1[y ≤ t])² dt

μ is the predicted mean of the response. A dispersion that is not a parameter of the model is
estimated from the data of each refit: under squared loss the variance is φ = Σ w r² / Σ w over the
units that the refit sees. Errors are estimates (`largest_change`), unless the score is the model's
own loss.
"""

import abc
import functools
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray

from .._runtime import (
    Array,
    ArrayFunction,
    Arrays,
    FloatArray,
    IntArray,
    PyTree,
    ThreeArrayFunction,
    compile_static,
    jax,
    record,
    silence,
    warn,
)
from ..objectives import (
    LOG_DENSITY,
    LOG_PROBABILITY,
    AbstractClosedForm,
    AbstractLinearPredictor,
    AbstractObjective,
    ClosedFormBatch,
    Distribution,
    derive_batch,
    display_name,
    fold_weights,
    map_arrays,
    own_passes,
    unflatten,
    unravel,
)
from ..optimize import Fit
from ..plans import CAPACITY, Plan, RefitRows, few_more
from ..refit import RefitBatch, held_losses
from .metrics import SCORES, Measure, ScoreName

# directions in which an unknown function is evaluated within the remaining distance
MOVE_DIRECTIONS: Literal[8] = 8
# factor on the result of so few directions, if there are more; for a linear function too small once
# in ten
DIRECTION_SAFETY = {8: 1.5, 2: 3.0}

Evaluate = Callable[[IntArray, IntArray, PyTree], ArrayLike]


class NamedScore(abc.ABC):
    """A score of every held-out unit of a fit, named by its `title`."""

    fit: Fit
    title: str
    joint = False  # whether there is one number for each refit, not for each held-out unit
    directions: Literal[2, 8] = MOVE_DIRECTIONS

    @property
    def response(self) -> ndarray | None:
        """The response that the score is of."""
        return self.fit.objective.units.modelled

    @abc.abstractmethod
    def losses(self, rows: RefitRows, theta: ndarray) -> FloatArray:
        """Return the losses of a batch, `[refits, width]`, zero where not scored.

        Joint ones `[refits]`.
        """

    def error(self, rows: RefitRows, batch: RefitBatch, losses: ndarray) -> FloatArray:
        """Return the error of the summed losses of each refit, `[refits]`."""
        errors = largest_change(
            self.fit, batch, losses, lambda theta: self.losses(rows, theta), self.directions
        )
        return errors.reshape(len(errors), -1).sum(1)


@record
class OfPredictions(NamedScore):
    """Score each unit's prediction by a measure; its error follows from that of the prediction."""

    fit: Fit
    measure: Measure
    title: str = ""

    @property
    def response(self) -> ndarray | None:
        return self.fit.objective.units.target

    def losses(self, rows: RefitRows, theta: ndarray) -> FloatArray:
        values = self._predict(rows, theta)
        return self._measure(rows, values, np.zeros_like(values))[0]

    def error(self, rows: RefitRows, batch: RefitBatch, losses: ndarray) -> FloatArray:
        predict = lambda theta: self._predict(rows, theta)
        values = predict(batch.theta)
        return self._measure(rows, values, largest_change(self.fit, batch, values, predict))[1].sum(
            1
        )

    def _predict(self, rows: RefitRows, theta: ndarray) -> ndarray:
        """Return the predictions μ; for two classes, the probability of the second."""
        values = predictions(self.fit, rows, theta, "response")
        classes = self.fit.objective.units.classes
        if values.ndim > 2 and not classes:
            raise ValueError(
                f"cross_validate: evaluate= needs a prediction of one number; {display_name(self.fit.objective)} has several."
            )
        if values.ndim > 2 and classes == 2:
            return values[..., 1]
        return values

    def _measure(self, rows: RefitRows, predicted: ndarray, errors: ndarray) -> ndarray:
        """Return the values of a batch and their errors, zero where not scored."""
        target = np.asarray(self.fit.objective.units.target)
        held = rows.held
        out = np.zeros((2, *rows.index.shape))
        with silence("invalid"):
            out[:, held] = self.measure.of_means(
                target[rows.index[held]], predicted[held], errors[held], np.ones(int(held.sum()))
            )
        out[1][np.isnan(out[1])] = np.inf
        return out


@record
class OfDistribution(NamedScore):
    """Score the distribution that a refit predicts."""

    fit: Fit
    title: str
    distribution: Distribution
    score: ThreeArrayFunction

    def losses(self, rows: RefitRows, theta: ndarray) -> FloatArray:
        y = np.asarray(self.fit.objective.units.target)
        mean = predictions(self.fit, rows, theta, "response")
        with silence("all"):
            values = self.score(
                mean,
                self.distribution.dispersion(rows, theta),
                y[rows.units(len(y))],
            )
        return np.where(rows.held, values, 0.0)


def find_score(
    fit: Fit, evaluate: Evaluate | ScoreName | NamedScore | None
) -> Evaluate | NamedScore | None:
    """Return the score of a name.

    None if it is the model's own loss, ValueError if the model has no such score.
    """
    if evaluate is None or callable(evaluate) or isinstance(evaluate, NamedScore):
        return evaluate
    names = get_args(ScoreName)
    units = fit.objective.units
    model = display_name(fit.objective)
    if not isinstance(evaluate, str) or evaluate not in names:
        raise ValueError(
            f"cross_validate: evaluate must be a function or one of {', '.join(names)}; got {evaluate!r}."
        )
    measure = SCORES[evaluate]
    if measure.way_out:  # a score of the whole distribution
        if evaluate == "log_density" and units.score in (LOG_DENSITY, LOG_PROBABILITY):
            return None
        distribution = units.distribution()
        if distribution is None or evaluate not in distribution.scores:
            raise ValueError(f"cross_validate: {model} has no {evaluate}; {measure.way_out}")
        if units.inverse is not None:
            raise ValueError(
                f"cross_validate: evaluate={evaluate!r} is not computed for a model of a transformed target: it would be in "
                "units of the transformed one. Give 'squared_error' or 'absolute_error', which are in units of y."
            )
        if distribution.note:
            warn(f"cross_validate: the {evaluate} of {model} is {distribution.note}.")
        return OfDistribution(fit, measure.title, distribution, distribution.scores[evaluate])
    if units.target is None:
        raise ValueError(
            f"cross_validate: evaluate={evaluate!r} needs a model with predictions and a target; got {model}."
        )
    if measure.needs == "label" and not units.classes:
        raise ValueError(f"cross_validate: evaluate={evaluate!r} needs classes; {model} has none.")
    if evaluate == "absolute_error" and units.classes > 2:
        raise ValueError(
            f"cross_validate: evaluate={evaluate!r} needs a response that is a number; {model} has classes."
        )
    if evaluate == "squared_error" and units.classes > 2:
        return OfPredictions(fit, measure, "Brier score")
    return OfPredictions(fit, measure, measure.title)


@record
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
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.title
        return ""

    @functools.cached_property
    def joint(self) -> bool:
        """Tell whether the loss is one number a refit."""
        if self.evaluate is None:
            return not self.fit.objective.pointwise
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.joint
        parameters = natural(self.fit, self.fit.vector[None])
        return self._value(self.plan._one(0).rows, 0, parameters).ndim == 0

    def losses(self, rows: RefitRows, theta: ndarray) -> FloatArray:
        """Return the losses of a batch, zero where not scored, `[refits, width]` or `[refits]`."""
        if self.evaluate is None:
            return scores(self.fit, rows, theta)
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.losses(rows, theta)
        parameters = natural(self.fit, theta)
        joint = self.joint
        shape = len(rows.index) if joint else rows.index.shape
        out = np.zeros(shape)
        for k in range(len(out)):
            out[k if joint else (k, rows.held[k])] = self._value(rows, k, parameters)
        return out

    def losses_of(self, rows: RefitRows, batch: RefitBatch) -> FloatArray:
        """Return the losses of refits; a batch may already hold the model's own."""
        if self.evaluate is not None or batch.scores is None:
            return self.losses(rows, batch.theta)
        return batch.scores

    def _value(self, rows: RefitRows, k: int, parameters: PyTree) -> NDArray:
        """Apply the user's function to one refit of a batch."""
        assert self.evaluate is not None and not isinstance(self.evaluate, NamedScore)
        held = rows.index[k][rows.held[k]]
        out = rows.index[k][rows.weight[k] == 0]
        seen = np.setdiff1d(np.arange(self.plan.num_units), out, assume_unique=True)
        value = np.asarray(self.evaluate(held, seen, map_arrays(lambda leaf: leaf[k], parameters)))
        # None would become NaN, like a missing loss
        if value.dtype == object and any(loss is None for loss in value.ravel()):
            function_name = getattr(self.evaluate, "__qualname__", type(self.evaluate).__name__)
            returned = "None" if value.ndim == 0 else "None among the losses"
            raise TypeError(
                f"evaluate: {function_name} returned {returned}; return one loss a held unit, or one number."
            )
        value = np.asarray(value, float)
        if value.shape not in ((), (len(held),)):
            raise ValueError(
                f"evaluate must return one loss a held unit, shape ({len(held)},), or one number; got {value.shape}."
            )
        return value

    def error(self, rows: RefitRows, batch: RefitBatch, losses: ndarray) -> FloatArray:
        """Return the error of the summed losses of each refit; infinite if it is not known."""
        if self.evaluate is None:
            return batch.error
        if isinstance(self.evaluate, NamedScore):
            return self.evaluate.error(rows, batch, losses)
        errors = largest_change(self.fit, batch, losses, lambda theta: self.losses(rows, theta))
        return errors.reshape(len(errors), -1).sum(1)


def largest_change(
    fit: Fit,
    batch: RefitBatch,
    values: ndarray,
    function: ArrayFunction,
    directions: Literal[2, 8] = MOVE_DIRECTIONS,
) -> FloatArray:
    """Estimate the largest difference of a function of θ, `values` at the reported refits, from its
    values at the exact refits.

    The exact refits lie in balls around known centres. The function is evaluated at the ends of
    orthogonal steps of one length. If it is about linear there, these changes are components of its
    gradient, and their root sum of squares bounds the change. With only some of the directions,
    drawn at random for each refit, this is an estimate. For functions with one number a refit, no
    slope is taken to be less than the median slope of the batch. Both ends of each direction are
    tried, since a tail may be flat on one side.
    """
    if batch.ball is None:
        return np.full(values.shape, np.inf)
    center, radius = batch.ball()
    rank = center.shape[1]
    is_known = np.isfinite(radius)
    place = fit.quadratic.at if batch.parameters_at is None else batch.parameters_at
    count = min(rank, directions)
    distance = np.where(is_known, radius, 0.0)
    orthogonal = np.linalg.qr(np.random.default_rng(0).standard_normal((len(center), rank, count)))[
        0
    ]
    start = place(center)
    middle = values if np.array_equal(start, batch.theta) else function(start)
    squares = np.zeros(values.shape)
    for direction in np.moveaxis(orthogonal, -1, 0):
        move = distance[:, None] * direction
        changes = [np.abs(function(place(center + sign * move)) - middle) for sign in (1, -1)]
        squares += np.maximum(*changes) ** 2
    if count < rank and values.ndim == 1:
        is_informative = (distance > 0) & np.isfinite(squares)
        steep = np.sqrt(squares[is_informative]) / distance[is_informative]
        if is_informative.any():
            squares = np.maximum(squares, (np.median(steep) * distance) ** 2)
    safety = DIRECTION_SAFETY[count] if count < rank else 1.0
    largest = np.abs(middle - values) + np.sqrt(squares * rank / count) * safety
    return np.where(
        is_known.reshape(-1, *[1] * (values.ndim - 1)) & np.isfinite(largest), largest, np.inf
    )


@compile_static
def _natural(objective: AbstractObjective, like: PyTree, theta: Arrays) -> PyTree:
    return jax.vmap(lambda v: objective.parameters.natural(unravel(v, like)))(theta)


def natural(fit: Fit, theta: FloatArray) -> PyTree:
    """Return the natural parameters of many refits, with a leading axis for the refits."""
    # nothing needs to be compiled
    if fit.quadratic.predictor_data is not None or isinstance(fit.objective, AbstractClosedForm):
        refits = [fit.objective.parameters.natural(unflatten(v, fit.theta)) for v in theta]
        return {name: np.array([parameters[name] for parameters in refits]) for name in refits[0]}
    leaves = _natural(fit.objective, fit.theta, theta[few_more(len(theta))])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(theta)], leaves)


@compile_static
def _predict_units(
    objective: AbstractObjective, like: PyTree, rows: RefitRows, theta: Arrays, size: int, kind: str
) -> Array:
    """Predict the units of a batch, `size` refits at once."""

    def predict_refit(args):
        index, weight, theta = args
        return objective.predict(
            unravel(theta, like), fold_weights(objective, index, weight), index, kind
        )

    return jax.lax.map(predict_refit, (rows.index, rows.weight, theta), batch_size=size)


def scores(fit: Fit, rows: RefitRows, theta: ndarray) -> FloatArray:
    """Return the model's own losses of a batch, zero where not scored."""
    model = fit.quadratic.predictor_data
    if model is None:
        return derive_batch(fit.objective, fit.theta, rows).losses(theta, np.arange(len(theta)))
    return held_losses(model, rows, model.unit_predictors(rows.units(len(model.y)), theta))


def predictions(fit: Fit, rows: RefitRows, theta: ndarray, kind: str) -> FloatArray:
    """Return the predictions of a batch's units; a response is in the units of the target."""
    if kind != "response":
        return modelled_predictions(fit, rows, theta, kind)
    return fit.objective.units.to_target(modelled_predictions(fit, rows, theta, kind))


def modelled_predictions(fit: Fit, rows: RefitRows, theta: ndarray, kind: str) -> FloatArray:
    model = fit.quadratic.predictor_data
    if model is not None:
        eta = model.unit_predictors(rows.units(len(model.y)), theta)
        with silence("all"):
            if kind == "link":
                return eta
            return np.asarray(model.inverse_link(eta))
    F = derive_batch(fit.objective, fit.theta, rows)
    if isinstance(F, ClosedFormBatch):
        return F.predictions(theta, np.arange(len(theta)), kind)
    count, width = rows.index.shape
    if not isinstance(fit.objective, AbstractLinearPredictor):
        size = own_passes(fit.objective, width)
    elif (
        width == fit.objective.num_units
    ):  # predictors need their own units only, whose rows are gathered unless all are listed
        size = count
    else:
        size = min(count, max(1, CAPACITY // (width * fit.num_params)))
    return np.asarray(_predict_units(fit.objective, fit.theta, rows, theta, size, kind))
