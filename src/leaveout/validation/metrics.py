"""Measures of predictions, one entry each in `MEASURES`: what metrics, scores, scikit-learn's
scorers and leakage take from.

A measure is one number θ of weighted rows P. The influence of a row i is the slope of θ as P moves
towards it,

    IF_i = d/dt θ((1 − t) P + t δ_i) at t = 0,      Σ_i w_i IF_i = 0,

so that with Σ w = 1 the variance of θ is that of sums of `w_i IF_i` over independent groups of
rows. The influence on a mean is the deviation from the mean; on a function of means, its gradient
times the deviations; on the area under the ROC curve, Hajek's projection (DeLong, DeLong and
Clarke-Pearson, Biometrics 44, 1988). With S and P the weights of the rows of score ≥ t, of all and
of the positive ones,

    average precision = 1/π Σ_{i+} w_i P_i/S_i,
    IF_j = 1/π {1[j+] (P_j/S_j − AP) + Σ_{i+, s_i ≤ s_j} w_i (1[j+] − P_i/S_i)/S_i}.

Negative weights remove records that do not belong to the test set; functions of means and the area
are then exact.

Metrics of labels are functions of the table of classes, whose cells are means over rows. With T the
shares of rows by true and predicted class, `t` its diagonal, `a` its row sums and `b` its column
sums: precision t/b, recall t/a, F_β (1 + β²) t/(β² a + b), Jaccard t/(a + b − t). A ratio 0/0 is 0,
as in scikit-learn. Every other metric is computed by scikit-learn itself, which takes milliseconds.

The standard error of a measure follows from the influences by what depends on what
(`standard_errors`).
"""

import abc
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy import special

from .._runtime import (
    AnyFunction,
    AnyTuple,
    BoolArray,
    FloatArray,
    NamedValues,
    NumpyArray,
    PerRow,
    Strings,
    TwoNumbers,
    level_numbers,
    silence,
)
from ..linalg import AnyShape
from ..models.glm import BERNOULLI
from ..objectives import LOG_DENSITY, Units

Metric = Literal[
    "auc", "accuracy", "brier", "mse", "mae", "log_loss", "rmse", "mape", "pinball", "poisson_deviance", "gamma_deviance", "r2",
    "d2_poisson", "d2_gamma", "average_precision", "balanced_accuracy", "top_k", "f1", "f1_macro", "f1_weighted", "matthews",
    "kappa", "concordance",
]  # fmt: skip
# a name, one of scikit-learn's names or scorers, or a function
AnyMetric = Metric | str | AnyFunction
ScoreName = Literal["log_density", "squared_error", "absolute_error", "zero_one", "crps"]
Needs = Literal[
    "response", "label", "probability", "probabilities", "decision", "distribution", "risk"
]
Fits = Iterable[tuple[FloatArray, FloatArray, FloatArray]]  # rows, predictions, weights
NEARBY_MEANS = 0.01  # relative change of the means below which the gradient is not computed anew
# step of central differences, relative to a mean weight or a mean; their error goes with its square
SCORE_DIFFERENCE = 1e-3
# least distance of probabilities from 0 and 1, as in scikit-learn
LEAST_PROBABILITY = np.finfo(np.float64).eps
# groups of rows that are moved within their errors where a measure must be computed anew for each
GROUPS_MOVED = 100
LEAF = 256  # units whose pairs are compared one by one; more are halved
BESIDE = 0.5  # from a place to between it and the next: places are whole numbers


@dataclass(frozen=True)
class AbstractFunctional(abc.ABC):
    """Functional of weighted rows, times `scale`.

    Its value, and its value plus each row's influence, whose mean it is.
    """

    scale: float = field(default=1.0, kw_only=True)
    allows_negative_weights = True

    def value(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> float:
        return float(np.average(self.pseudo(y, prediction, weight), weights=weight))

    @abc.abstractmethod
    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow: ...

    def pseudo_of_fits(self, fits: Fits) -> Iterator[PerRow]:
        """Compute `pseudo` of every fit's rows, predictions and weights."""
        return (self.pseudo(*fit) for fit in fits)

    def error(
        self, y: FloatArray, prediction: FloatArray, errors: FloatArray, weight: FloatArray
    ) -> Any:
        """Estimate how far `errors` of predictions can move the value: the sum of what groups of
        rows can.

        Of one row both ends are tried. m rows move with random signs; their joint move is √m times
        as large at most.
        """
        if not np.isfinite(errors).all():
            return np.inf
        rng = default_rng(0)
        value = self.value(y, prediction, weight)
        upward = upward_moves(y, errors)
        total = 0.0
        moving = rng.permutation(
            np.flatnonzero((errors > 0).reshape(len(y), -1).any(1) & (weight > 0))
        )
        for group in np.array_split(moving, min(GROUPS_MOVED, len(moving))) if len(moving) else ():
            sign = rng.choice((-1.0, 1.0), len(group))
            ends = []
            for shift in (upward, -upward):
                shifted = prediction.copy()
                shifted[group] += (sign * shift[group].T).T
                if shifted.ndim > 1:  # of several classes, whose probabilities sum to one
                    shares = np.clip(shifted[group], 0.0, 1.0)
                    shifted[group] = shares / shares.sum(1, keepdims=True)
                ends.append(abs(self.value(y, shifted, weight) - value))
            total += np.sqrt(len(group)) * max(ends)
        return total


def upward_moves(y: NDArray, errors: NDArray) -> NDArray:
    """Return moves of predictions by their errors; of several classes the true one moves against
    the others.
    """
    if errors.ndim > 1:
        return np.where(np.eye(errors.shape[1], dtype=bool)[y.astype(int)], errors, -errors)
    return errors


def largest_move(function: Callable[[NDArray], Any], moves: NDArray) -> tuple[Any, Any]:
    """Return a function of moves where there are none, and its largest change by moves up or
    down.
    """
    value = function(np.zeros_like(moves))
    up, down = (np.abs(function(sign * moves) - value) for sign in (1, -1))
    return value, np.maximum(up, down)


@dataclass(frozen=True)
class Mean(AbstractFunctional):
    """Mean of a loss of single rows.

    `function` is vectorised over fits or, if `by_fit`, called fit by fit.
    """

    function: Callable[[FloatArray, FloatArray], NDArray]
    by_fit: bool = False

    def records(self, y: AnyShape, prediction: AnyShape) -> Float[NumpyArray, "fits rows"]:
        """Compute losses of many fits `[fits, rows]` from predictions `[fits, rows, ...]`.

        Y is `[rows]` or `[fits, rows]`.
        """
        if not self.by_fit:
            return self.scale * np.asarray(self.function(y, prediction), float)
        responses = np.broadcast_to(y, prediction.shape[:2])
        value = np.array(
            [self.function(*pair) for pair in zip(responses, prediction, strict=True)], float
        )
        return self.scale * value.reshape(prediction.shape[:2])

    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow:
        return self.records(y, prediction[None])[0]

    def error(
        self, y: FloatArray, prediction: FloatArray, errors: FloatArray, weight: FloatArray
    ) -> PerRow:
        """Return the largest change of each row's loss at the ends of its prediction, which bounds
        that of a convex loss.
        """
        losses = lambda moves: self.pseudo(y, prediction + moves, weight)
        return largest_move(losses, upward_moves(y, errors))[1]

    def of_mean_loss(self, mean: float, y: FloatArray, weight: FloatArray) -> float:
        """Return the value for a mean loss."""
        return self.scale * mean


@dataclass(frozen=True)
class OfMeans(AbstractFunctional):
    """Function of the means of a few numbers of each row.

    R², a root of a mean, metrics of a table of classes.
    """

    statistics: Callable[[FloatArray, FloatArray], NDArray]  # [rows, numbers]
    combine: Callable[[NDArray], float]

    def value(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> float:
        return self.scale * float(
            self.combine(weight @ self.statistics(y, prediction) / weight.sum())
        )

    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow:
        return next(self.pseudo_of_fits([(y, prediction, weight)]))

    def pseudo_of_fits(self, fits: Fits) -> Iterator[PerRow]:
        """Compute `pseudo` of many fits.

        A gradient serves for fits with similar means, as influences only give errors.
        """
        anchor = None
        slope = np.zeros(0)
        for y, prediction, weight in fits:
            numbers = self.statistics(y, prediction)
            mean = weight @ numbers / weight.sum()
            if anchor is None or np.abs(mean - anchor).sum() > NEARBY_MEANS * np.abs(anchor).sum():
                anchor = mean
                slope = np.zeros(len(mean))
                # by differences, in the means that are not all zero
                for k in np.flatnonzero(np.abs(numbers).max(0) > 0):
                    step = np.zeros(len(mean))
                    step[k] = (
                        SCORE_DIFFERENCE
                        * SCORE_DIFFERENCE
                        * max(abs(mean[k]), np.abs(numbers[:, k]).max() / len(numbers))
                    )
                    slope[k] = (self.combine(mean + step) - self.combine(mean - step)) / (
                        2 * step[k]
                    )
            yield self.scale * (self.combine(mean) + (numbers - mean) @ slope)

    def error(
        self, y: FloatArray, prediction: FloatArray, errors: FloatArray, weight: FloatArray
    ) -> float:
        """Sum the changes of the value as each of the means changes by as much as its rows can."""
        statistics = lambda moves: self.statistics(y, prediction + moves)
        numbers, changes = largest_move(statistics, upward_moves(y, errors))
        mean = weight @ numbers / weight.sum()
        value = lambda moves: self.combine(mean + moves)
        most = np.diag(weight @ changes / weight.sum())
        return abs(self.scale) * float(sum(largest_move(value, step)[1] for step in most))

    def of_mean_loss(self, mean: float, y: FloatArray, weight: FloatArray) -> float:
        """Return the value for a mean loss, if it is the first of the means, and the response,
        whose moments follow.
        """
        centred = y - np.average(y, weights=weight)
        return self.scale * self.combine(
            np.array([mean, 0.0, np.average(centred**2, weights=weight)])
        )


@dataclass(frozen=True)
class Ranks(AbstractFunctional):
    """Area under the ROC curve, or average precision, of two classes; for more, the mean of each
    against the rest.

    The mean is plain, or weighted by the frequency of the classes. `flipped` tells that the first
    of two classes is the positive one. If the measure is `strict`, rows must be of every class.
    """

    statistic: Literal["area", "precision"]
    flipped: bool = False
    frequent: bool = False
    strict: bool = False

    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow:
        of_class = area if self.statistic == "area" else precision
        if prediction.ndim == 1:
            is_positive = (y == y.max()) != self.flipped
            if self.strict and (weight[is_positive].sum() <= 0 or weight[~is_positive].sum() <= 0):
                raise ValueError(
                    "it needs rows of both classes among those that are scored; use fewer folds."
                )
            if self.flipped:
                prediction = -prediction
            return self.scale * of_class(is_positive, prediction, weight)
        share = np.array([weight[y == k].sum() for k in range(prediction.shape[1])]) / weight.sum()
        if self.strict and (share <= 0).any():
            raise ValueError(
                "an area of several classes needs rows of each of them; use fewer folds."
            )
        parts = np.array(
            [
                of_class(y == k, prediction[:, k], weight)
                for k in range(len(share))
                if (y == k).any()
            ]
        )
        if not self.frequent:
            return self.scale * parts.mean(0)
        areas = parts @ weight / weight.sum()
        return self.scale * (share @ parts + (areas[y.astype(int)] - share @ areas))

    def error(
        self, y: FloatArray, prediction: FloatArray, errors: FloatArray, weight: FloatArray
    ) -> float:
        """Bound the change of the value.

        It is extreme where each class moves against the others.
        """
        if errors.ndim > 1:
            shift = upward_moves(y, errors)
        else:
            shift = np.where(y == y.max(), errors, -errors)
        value = lambda moves: self.value(y, prediction + moves, weight)
        return float(largest_move(value, shift)[1])


@dataclass(frozen=True)
class Concordance(AbstractFunctional):
    """Harrell's share of comparable pairs whose unit of higher risk dies first; equal risks count
    one half.

    y has the stratum, the place in time and the event of each unit, or the weight that its event
    has beside its own, as Uno's 1/G², and the place at which it enters. Comparable are two units of
    one stratum, the first of which died before the other's place, when the other was at risk; one
    censored at the time of a death is behind it. With a_i the weight of the pairs of unit i that
    are in order, b_i of its comparable ones, and B of all, the influence is `Σw (a_i − C b_i) / B`.
    """

    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow:
        good, pairs = ordered_pairs(y, prediction, prediction, weight)
        value = weight @ good / (weight @ pairs)
        return self.scale * (value + 2 * weight.sum() * (good - value * pairs) / (weight @ pairs))

    def error(
        self, y: FloatArray, prediction: FloatArray, errors: FloatArray, weight: FloatArray
    ) -> float:
        """Bound the change of the value, by the pairs that the errors can turn."""

        def share(moves: FloatArray) -> float:
            good, pairs = ordered_pairs(y, prediction + moves, prediction - moves, weight)
            return weight @ good / (weight @ pairs)

        return float(largest_move(share, errors)[1])


def ordered_pairs(
    y: FloatArray, first: FloatArray, later: FloatArray, weight: FloatArray
) -> Float[NumpyArray, "2 rows"]:
    """Sum the weights of each unit's pairs in order, and of its comparable ones, given risks as the
    first and as the later.

    Each pair counts with both units. The mass of a unit stands at its place, and is taken out again
    at the place of its entry, as earlier deaths do not meet it. Masses are sorted by place; the
    pairs of the earlier with the later half follow from sorted risks, those within the halves
    likewise.
    """
    n = len(y)
    enters = y[:, 3] if y.shape[1] > 3 else np.full(n, -np.inf)
    entering = np.flatnonzero(np.isfinite(enters))
    unit = np.append(np.arange(n), entering)
    sign = np.repeat([1.0, -1.0], [n, len(entering)])
    # who enters at the place of a death is not at risk there
    place = np.append(y[:, 1], enters[entering] + BESIDE)
    event = np.where(sign > 0, y[unit, 2], 0.0)
    mass = sign * weight[unit]
    first = first[unit]
    later = later[unit]
    sums = np.zeros((2, len(unit)))
    order = np.lexsort((place, y[unit, 0]))
    begins = np.append(np.flatnonzero(np.diff(y[unit[order], 0], prepend=np.nan)), len(unit))
    ranges = [*itertools.pairwise(begins)]
    while ranges:
        start, stop = ranges.pop()
        part = order[start:stop]
        places = place[part]
        middle = np.searchsorted(places, places[len(part) // 2])
        middle = middle or np.searchsorted(places, places[0], side="right")
        if middle == len(part):  # all at one time: no pair is comparable
            continue
        if len(part) <= LEAF:
            comparable = (places[:, None] < places) * event[part][:, None]
            in_order = (first[part][:, None] > later[part]) + 0.5 * (
                first[part][:, None] == later[part]
            )
            for row, pairs in enumerate((comparable * in_order, comparable)):
                sums[row, part] += pairs @ mass[part] + sign[part] * (mass[part] @ pairs)
            continue
        ranges += [(start, start + middle), (start + middle, stop)]
        early = part[:middle][event[part[:middle]] > 0]
        late = part[middle:]
        died = mass[early] * event[early]
        sums[0, early] += event[early] * _mass_below(first[early], mass[late], later[late])
        sums[0, late] += sign[late] * (died.sum() - _mass_below(later[late], died, first[early]))
        sums[1, early] += event[early] * mass[late].sum()
        sums[1, late] += sign[late] * died.sum()
    totals = np.stack([np.bincount(unit, row, n) for row in sums])
    # of masses that were added and taken out again
    rounding = 1e-12 * weight.sum() * event.max(initial=0.0)
    return np.where(totals[1] > rounding, totals, 0.0)


@dataclass(frozen=True)
class Median(AbstractFunctional):
    """Median of a loss of rows. The influence is (½ − 1[below]) over the density there, from the
    spacing of quantiles.
    """

    function: Callable[[FloatArray, FloatArray], NDArray]
    allows_negative_weights = False

    def value(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> float:
        losses = self.function(y, prediction)
        low, minus_high = (
            np.quantile(values, 0.5, weights=weight, method="inverted_cdf")
            for values in (losses, -losses)
        )
        return self.scale * float(low - minus_high) / 2

    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow:
        losses = self.function(y, prediction)
        value = self.value(y, prediction, weight)
        order = np.argsort(losses)
        share = np.cumsum(weight[order]) / weight.sum()
        # of the order of the median's own standard error
        margin = min(0.5, 1 / np.sqrt(np.sum(weight > 0)))
        low, high = np.interp([0.5 - margin, 0.5 + margin], share, losses[order])
        below = (losses < abs(value)) + 0.5 * (losses == abs(value))
        return value + self.scale * (np.average(below, weights=weight) - below) * (high - low) / (
            2 * margin
        )


@dataclass(frozen=True)
class Called(AbstractFunctional):
    """Any `function(y, prediction)`.

    If it `weighs`, it takes sample_weight, and influences are central differences.
    """

    function: Callable[..., float]
    weighs: bool
    allows_negative_weights = False

    def value(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> float:
        uneven = weight.min() < 0 or np.ptp(weight[weight != 0]) > 0
        if self.weighs and uneven:
            return self.scale * float(quietly(self.function, y, prediction, sample_weight=weight))
        if uneven:
            raise ValueError("it takes no sample_weight, so rows cannot be weighted.")
        seen = weight > 0
        return self.scale * float(quietly(self.function, y[seen], prediction[seen]))

    def pseudo(self, y: FloatArray, prediction: FloatArray, weight: FloatArray) -> PerRow:
        if not self.weighs:
            raise ValueError(
                "it takes no sample_weight, so rows have no influence on it, and it no SE."
            )
        step = SCORE_DIFFERENCE * np.mean(weight[weight > 0])
        slope = np.zeros(len(y))
        for i in np.flatnonzero(weight > 0):
            weights = [weight.copy(), weight.copy()]
            weights[0][i] += step
            weights[1][i] -= min(step, weight[i] / 2)
            ends = [self.value(y, prediction, w) for w in weights]
            slope[i] = (ends[0] - ends[1]) / (weights[0][i] - weights[1][i])
        if not slope.any():
            raise ValueError(
                "it does not change with the weights of rows, as a median, so it has no influence, and no SE."
            )
        return self.value(y, prediction, weight) + weight.sum() * slope


@dataclass(frozen=True)
class Measure:
    """A measure of predictions: a number, its direction, its bounds, and its names.

    `needs` is the kind of prediction: the response, the probability of the second class, those of
    all classes, a decision value that grows with the second class, a label, or a whole
    distribution. Except for the response, y is the number of the class. The measure lies between
    `low` and `high` (None: no bound). `parameters` are the keywords that the function of its
    functional takes.

    The names are those as a metric, as the score of single units (with the `title` of these losses)
    and as a loss of leakage, and the name of scikit-learn's function. `of_table` computes the
    measure from the table of classes, and `ratio` its two parts from t, a, b and β. Where
    `functional` is None, a host computes it.
    """

    name: str
    needs: Needs
    functional: AbstractFunctional | None
    more_is_better: bool = False
    low: float | None = 0.0
    high: float | None = None
    metrics: tuple[Metric, ...] = ()
    evaluate: ScoreName | None = None
    title: str = ""
    loss: str = ""
    function: str = ""
    parameters: Strings = ()
    of_table: Callable[[FloatArray], float] | None = None
    ratio: (
        Callable[[FloatArray, FloatArray, FloatArray, float], tuple[FloatArray, FloatArray]] | None
    ) = None
    way_out: str = ""  # advice where a model lacks it
    labels: AnyTuple | None = None  # the classes of the model that is measured

    @property
    def per_record(self) -> bool:
        """Whether the measure is a mean over rows."""
        return isinstance(self.functional, Mean)

    @property
    def weighs(self) -> bool:
        """Whether the measure takes weights, so that rows have an influence."""
        return not (isinstance(self.functional, Called) and not self.functional.weighs)

    @property
    def bounds(self) -> TwoNumbers:
        """The numbers between which the measure lies."""
        low = -np.inf if self.low is None else self.low
        return low, np.inf if self.high is None else self.high

    @property
    def worst(self) -> float | None:
        """The bound that no correction can pass."""
        return self.low if self.more_is_better else self.high

    @property
    def removes(self) -> bool:
        """Whether records can be taken out of the measure again, by negative weights."""
        return self.functional is not None and self.functional.allows_negative_weights

    @property
    def classes(self) -> bool:
        return self.needs not in ("response", "risk")

    def numbered(self, units: Units, target: NDArray) -> FloatArray:
        """Number the classes of a fit's targets, if the measure is of classes."""
        if self.labels is not None and not units.classes:
            target = np.searchsorted(self.labels, target)
        return np.asarray(target, float)

    def form(self, mean: NDArray) -> FloatArray:
        """Convert predicted means of the response, or probabilities of classes, to the predictions
        that the measure takes.
        """
        if self.needs == "decision":
            return np.asarray(special.logit(mean))
        if self.needs == "label":
            mean = mean.argmax(1) if mean.ndim > 1 else mean > 1 - mean
        return np.asarray(mean, float)

    def of_means(
        self, y: NDArray, mean: NDArray, errors: NDArray, weight: NDArray
    ) -> tuple[NDArray, Any]:
        """Compute contributions from predicted means of the response, and their errors from those
        of the means.
        """
        assert self.functional is not None
        return self.functional.pseudo(y, self.form(mean), weight), self.error(
            y, mean, errors, weight
        )

    def error(self, y: NDArray, mean: NDArray, errors: NDArray, weight: NDArray) -> Any:
        """Bound the changes of the rows' losses, or of another measure, by the errors of predicted
        means.
        """
        functional = self.functional
        assert functional is not None
        if self.needs == "decision":
            decision = lambda moves: self.form(np.clip(mean + moves, 0.0, 1.0))
            errors = largest_move(decision, errors)[1]
        if self.needs != "label":
            return functional.error(y, self.form(mean), errors, weight)
        unsure, second = unsure_labels(mean, errors)
        if isinstance(functional, Mean):
            return abs(functional.scale) * unsure.astype(float)
        codes = self.form(mean)
        rows = default_rng(0).permutation(np.flatnonzero(unsure))
        value = functional.value(y, codes, weight)
        moves = [
            abs(
                functional.value(y, np.where(np.arange(len(y)) == i, second, codes), weight) - value
            )
            for i in rows[:GROUPS_MOVED]
        ]
        return float(np.mean(moves)) * len(rows) if moves else 0.0

    def losses(self, y: AnyShape, prediction: AnyShape) -> Float[NumpyArray, "fits rows"]:
        """Return the losses of the rows for many fits, given predictions `[fits, rows, ...]`, for a
        mean over rows.
        """
        assert isinstance(self.functional, Mean)
        value = self.functional.records(y, prediction)
        self.check(value)
        return value

    def target(self, y: NDArray) -> PerRow:
        """Return y in the form of the measure: the numbers of classes in order, or y itself."""
        if self.classes:
            y = level_numbers(y)
        return y.astype(float)

    def __call__(
        self, y: FloatArray, prediction: FloatArray, weight: FloatArray | None = None
    ) -> float:
        """Compute the measure of rows from `target(y)` and their predictions."""
        return self._call_functional("value", y, prediction, weight)

    def pseudo(
        self, y: FloatArray, prediction: FloatArray, weight: FloatArray | None = None
    ) -> PerRow:
        """Compute the value plus the influence of each row, whose weighted mean is the value."""
        return self._call_functional("pseudo", y, prediction, weight)

    def influence(
        self, y: FloatArray, prediction: FloatArray, weight: FloatArray | None = None
    ) -> PerRow:
        """Compute the influence of each row, with `Σ w_i IF_i = 0`.

        ValueError if rows have none (see `weighs`).
        """
        pseudo = self.pseudo(y, prediction, weight)
        return pseudo - np.average(pseudo, weights=weight)

    def pseudo_of_fits(self, fits: Fits) -> Iterator[PerRow]:
        """Compute `pseudo` of the rows, predictions and weights of many fits."""
        assert self.functional is not None
        try:
            for pseudo in self.functional.pseudo_of_fits(fits):
                self.check(pseudo)
                yield pseudo
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def _call_functional(
        self, method: str, y: NDArray, prediction: NDArray, weight: NDArray | None
    ):
        assert self.functional is not None
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, float)
        if weight.min(initial=0) < 0 and not self.removes:
            raise ValueError(f"{self.name}: {NO_MIXTURE}")
        try:
            value = getattr(self.functional, method)(y, prediction, weight)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ValueError if the measure is not a number."""
        if not np.isfinite(value).all():
            raise ValueError(
                f"leakage_corrected: the loss {self.name} is not finite for {np.sum(~np.isfinite(value))} predictions, such "
                "as a probability of zero for what came true; use loss='brier' or 'zero_one', or an estimator that smooths."
            )


NO_MIXTURE = (
    "records that do not belong cannot be taken out of it again: it is neither a function of means, nor an area, nor average "
    "precision"
)


def squares(y: NDArray, mu: NDArray) -> NDArray:
    """Compute (y − μ)² of means `[fits, rows]`.

    Of probabilities `[fits, rows, classes]`, Brier's Σ_k (1[y = k] − μ_k)².
    """
    if mu.ndim < 3:
        return (y - mu) ** 2
    return ((np.eye(mu.shape[-1])[y.astype(int)] - mu) ** 2).sum(-1)


def absolute(y: NDArray, mu: NDArray) -> NDArray:
    return np.abs(y - mu)


def right(y: NDArray, code: NDArray) -> NDArray:
    return (y == code) * 1.0


def wrong(y: NDArray, code: NDArray) -> NDArray:
    return (y != code) * 1.0


def unsure_labels(p: NDArray, errors: NDArray) -> tuple[BoolArray, FloatArray]:
    """Mark the rows whose most probable class may be another within the errors of probabilities,
    and return that other.
    """
    if p.ndim == 1:
        p = np.c_[1 - p, p]
        errors = np.c_[errors, errors]
    chosen = p.argmax(1)[:, None] == np.arange(p.shape[1])
    best = np.where(chosen, p - errors, -np.inf).max(1)
    rivals = np.where(chosen, -np.inf, p + errors)
    return rivals.max(1) >= best, rivals.argmax(1).astype(float)


def surprise(y: NDArray, p: NDArray) -> NDArray:
    """Compute −log p̂(y) from probabilities of the second class `[fits, rows]`, or of all classes
    `[fits, rows, classes]`.

    A probability of the second class that rounds to one becomes the largest number below one.
    """
    if p.ndim < 3:
        return BERNOULLI.loss(np.minimum(p, np.nextafter(1.0, 0.0)), None, None, None, y)
    code = np.broadcast_to(y, p.shape[:2]).astype(int)
    return -np.log(np.take_along_axis(p, code[..., None], -1)[..., 0])


def bounded_surprise(y: NDArray, p: NDArray) -> NDArray:
    return surprise(y, np.clip(p, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))


def relative(y: NDArray, mu: NDArray) -> NDArray:
    return np.abs(y - mu) / np.maximum(np.abs(y), np.finfo(np.float64).eps)


def squared_logs(y: NDArray, mu: NDArray) -> NDArray:
    return (np.log1p(y) - np.log1p(mu)) ** 2


def moments(y: NDArray, mu: NDArray) -> NDArray:
    """Return the square of the residual, the response and its square, and the residual."""
    return np.stack([(y - mu) ** 2, y, y**2, y - mu], -1)


def determination(mean: NDArray, centred: bool = False) -> float:
    """Compute R² or, without the mean of the residual, the explained share of the variance."""
    residual = mean[0] - (mean[3] ** 2 if centred else 0.0)
    spread = mean[2] - mean[1] ** 2
    if spread > 0:
        return 1 - residual / spread
    return float(residual == 0)


def pinball(y: NDArray, mu: NDArray, alpha: float = 0.5) -> NDArray:
    return np.maximum(alpha * (y - mu), (alpha - 1) * (y - mu))


def poisson_deviance(y: NDArray, mu: NDArray) -> NDArray:
    return 2 * (special.xlogy(y, y) - special.xlogy(y, mu) - y + mu)


def gamma_deviance(y: NDArray, mu: NDArray) -> NDArray:
    return 2 * (np.log(mu) - np.log(y) + y / mu - 1)


def deviance_moments(y: NDArray, mu: NDArray, deviance: Callable) -> NDArray:
    """Return the deviance, the response, and the y log y or −log y of the deviance from a constant
    mean.
    """
    log_term = special.xlogy(y, y) if deviance is poisson_deviance else -np.log(y)
    return np.stack([deviance(y, mu), y, log_term], -1)


def explained_deviance(mean: NDArray, deviance: Callable) -> float:
    """Compute D², the share of the deviance from the mean that predictions explain."""
    if deviance is poisson_deviance:
        at_mean = special.xlogy(mean[1], mean[1])
    else:
        at_mean = -np.log(mean[1])
    return float(1 - mean[0] / (2 * (mean[2] - at_mean)))


def in_top(y: NDArray, p: NDArray, k: int = 2) -> NDArray:
    """Mark the rows whose class is among the k most probable, `[fits, rows]`.

    Of equal ones the last, as in scikit-learn.
    """
    if p.ndim < 3:
        p = np.stack([1 - p, p], -1)
    top = np.argsort(p, -1, kind="stable")[..., ::-1][..., :k]
    return (top == y.astype(int)[:, None]).any(-1) * 1.0


def one_mean(y: NDArray, mu: NDArray, loss: Callable) -> NDArray:
    return loss(y, mu)[:, None]


def root(mean: NDArray) -> float:
    return float(np.sqrt(max(mean[0], 0.0)))


class Ranking:
    """Predictions of many fits `[fits, rows]` in rising order, and where the ties of each begin and
    end.

    Neighbours tie if they differ by no more than a share `tie` of their size, or of the quartiles,
    so that one row far away ties no others. Methods take and return what is in this order.
    """

    def __init__(self, predictions: NDArray, tie: float = 0.0):
        n = predictions.shape[1]
        self.order = np.argsort(predictions, 1)
        self.x = self.sort(predictions)
        size = np.minimum(np.abs(self.x), np.finfo(float).max)
        middle = np.maximum(size[:, n // 4], size[:, 3 * n // 4])[:, None]
        with silence("invalid"):
            new = np.diff(self.x, axis=1) > tie * np.maximum(size[:, 1:], middle)
        places = np.arange(1, n)
        self.first = np.maximum.accumulate(
            np.pad(np.where(new, places, 0), ((0, 0), (1, 0))), axis=1
        )
        ends = np.pad(np.where(new, places, n), ((0, 0), (0, 1)), constant_values=n)
        self.last = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]

    def sort(self, values: NDArray) -> FloatArray:
        """Put values of the rows into this order."""
        return np.take_along_axis(values, self.order, 1)

    def unsort(self, values: NDArray) -> FloatArray:
        """Put values back into the order of the rows."""
        out = np.empty_like(values)
        np.put_along_axis(out, self.order, values, 1)
        return out

    def sum_until(self, mass: NDArray, *ends: NDArray) -> FloatArray:
        """Sum what stands before ends of the ties of each prediction; of both, on average."""
        sums = np.cumsum(np.pad(mass, ((0, 0), (1, 0))), 1)
        return np.asarray(sum(np.take_along_axis(sums, end, 1) for end in ends)) / len(ends)

    def sum_below(self, mass: NDArray) -> FloatArray:
        """Sum what is below each prediction, and one half of what ties with it."""
        return self.sum_until(mass, self.first, self.last)


def dot(a: NDArray, b: NDArray) -> FloatArray:
    """Sum products over the rows of each fit."""
    return np.einsum("fr,fr->f", a, b)


@silence("divide", "invalid")
def areas(ranking: Ranking, positive: NDArray, weight: NDArray) -> FloatArray:
    """Compute the area under the ROC curve of each fit."""
    hit = weight * positive
    miss = weight - hit
    return dot(hit, ranking.sum_below(miss)) / (hit.sum(1) * miss.sum(1))


def area(positive: NumpyArray, predictions: NumpyArray, weight: NumpyArray) -> FloatArray:
    """Return the contribution of each unit to the area under the ROC curve of two classes.

    A unit contributes the share of the other class that it is ranked above, scaled so that the mean
    is the area.
    """
    ranking = Ranking(predictions[None])
    y, w = (ranking.sort(part[None]) for part in (positive, weight))
    hit = w * y
    miss = w - hit
    lost, won = (ranking.sum_below(mass) / max(mass.sum(), 1e-300) for mass in (hit, miss))
    beaten = np.where(y, won, 1 - lost)
    value = np.average(beaten, weights=hit)
    share = np.where(y, hit.sum(), miss.sum()) / weight.sum()
    return ranking.unsort(value + (beaten - value) / share)[0]


def _mass_below(predictions: NDArray, mass: NDArray, points: NDArray) -> FloatArray:
    """Sum the weight `mass` of others below each prediction; ties count one half."""
    order = np.argsort(points, kind="stable")
    summed = np.r_[0.0, np.cumsum(mass[order])]
    ranked = points[order]
    low, high = (np.searchsorted(ranked, predictions, side) for side in ("left", "right"))
    return 0.5 * (summed[low] + summed[high])


def thresholds(
    ranking: Ranking, positive: NDArray, weight: NDArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return average precision times the weight of positives, and of each row's threshold the
    precision, the weight at or above it, and the positives that it gains.

    With negative weights, the weight above a threshold is first made to grow as the threshold
    falls, so that precisions are shares.
    """
    hits, misses = (
        mass.sum(1, keepdims=True) - ranking.sum_until(mass, ranking.first)
        for mass in (weight * positive, weight * (1 - positive))
    )
    if weight.min() < 0:
        hits, misses = (
            np.clip(np.maximum.accumulate(mass[:, ::-1], 1)[:, ::-1], 0, mass[:, :1])
            for mass in (hits, misses)
        )
    gains = -np.diff(hits, append=0.0, axis=1)
    total = hits + misses
    # where nothing weighs at or above a threshold, these differences of sums are rounding
    total = np.where(total > 1e-14 * total[:, :1], total, np.inf)
    share = hits / total
    return dot(gains, share), share, total, gains


def precision(positive: NDArray, predictions: NDArray, weight: NDArray) -> PerRow:
    """Compute average precision plus each row's influence."""
    ranking = Ranking(predictions[None])
    is_positive, w = (ranking.sort(part[None]) for part in (positive, weight))
    value, share, total, gains = thresholds(ranking, is_positive, w)
    number = gains.sum()
    gain_sum, share_sum = (
        ranking.sum_until(part, ranking.last) for part in (gains / total, gains * share / total)
    )
    slope = np.where(is_positive, share - value / number + gain_sum, 0.0) - share_sum
    return ranking.unsort((value + w.sum() * slope) / number)[0]


def balanced(table: NDArray) -> float:
    """Compute the mean of the shares of each class that are predicted right."""
    true = table.sum(1)
    return float((np.diag(table)[true > 0] / true[true > 0]).mean())


def matthews(table: NDArray) -> float:
    """Compute the correlation of true and predicted classes."""
    true = table.sum(1)
    predicted = table.sum(0)
    total = table.sum()
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    if spread > 0:
        return float((np.trace(table) * total - true @ predicted) / np.sqrt(spread))
    return 0.0


@dataclass(frozen=True)
class ConfusionCells:
    """Metric of labels as a function of the table of classes.

    `cells` marks each row's cell, `[rows, classes²]`.
    """

    metric: Callable[..., float]
    keywords: NamedValues
    labels: NDArray

    def cells(self, y: NDArray, code: NDArray) -> FloatArray:
        count = len(self.labels)
        return np.eye(count**2)[(y * count + code).astype(int)]

    def __call__(self, cells: FloatArray) -> float:
        table = np.maximum(cells, 0.0).reshape(len(self.labels), -1)
        entry = of_function(self.metric)
        if entry is not None and entry.of_table is not None and not self.keywords:
            return entry.of_table(table)
        if (
            entry is None
            or entry.ratio is None
            or not self.keywords.keys() <= {"average", "pos_label", "beta"}
        ):
            y, predicted = (self.labels[part.ravel()] for part in np.indices(table.shape))
            seen = table.ravel() > 0
            return float(
                quietly(
                    self.metric,
                    y[seen],
                    predicted[seen],
                    sample_weight=table.ravel()[seen],
                    **self.keywords,
                )
            )
        parts = np.stack([np.diag(table), table.sum(1), table.sum(0)])
        average = self.keywords.get("average", "binary")
        chosen = parts[1] + parts[2] > 0
        if average == "binary":
            chosen = self.labels == self.keywords.get("pos_label", 1)
        parts = parts[:, chosen]
        if average == "micro":
            parts = parts.sum(1, keepdims=True)
        t, a, b = parts
        above, below = entry.ratio(t, a, b, self.keywords.get("beta", 1.0))
        ratio = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
        if average == "weighted" and a.sum() > 0:
            return float(a @ ratio / a.sum())
        return float(ratio.mean())


def quietly(function: Callable, *args: Any, **keywords: Any) -> Any:
    """Call a function without scikit-learn's warnings on classes that were never predicted.

    A ratio 0/0 is zero there.
    """
    with warnings.catch_warnings(action="ignore"), silence("all"):
        return function(*args, **keywords)


def _score(
    function: str,
    needs: Needs,
    functional: AbstractFunctional | None = None,
    low: float | None = 0.0,
    **fields,
) -> Measure:
    """Build the entry of a score of scikit-learn's, which is at most one, and of which more is
    better.
    """
    return Measure(function, needs, functional, True, low, 1.0, function=function, **fields)


def _d2(name: Metric, deviance: Callable) -> Measure:
    moments, share = (
        partial(part, deviance=deviance) for part in (deviance_moments, explained_deviance)
    )
    return Measure(name, "response", OfMeans(moments, share), True, None, 1.0, metrics=(name,))  # type: ignore[arg-type]


MEASURES = (
    _score("roc_auc_score", "probability", Ranks("area"), metrics=("auc",)),
    _score("accuracy_score", "label", Mean(right), metrics=("accuracy",)),
    Measure(
        "(y − ŷ)²",
        "response",
        Mean(squares),
        metrics=("brier", "mse"),
        evaluate="squared_error",
        title="squared error",
        loss="mse",
        function="mean_squared_error",
    ),
    Measure(
        "|y − ŷ|",
        "response",
        Mean(absolute),
        metrics=("mae",),
        evaluate="absolute_error",
        title="absolute error",
        loss="absolute",
        function="mean_absolute_error",
    ),
    Measure(
        "1 where the predicted class is wrong",
        "label",
        Mean(wrong),
        high=1.0,
        evaluate="zero_one",
        title="share of wrong classes",
        loss="zero_one",
    ),
    Measure(
        "Brier's, Σ_k (p̂_k − 1[y = k])²",
        "probabilities",
        Mean(squares),
        high=2.0,
        loss="brier",
        function="brier_score_loss",
    ),
    Measure(
        "−log p̂(y)",
        "probabilities",
        Mean(bounded_surprise),
        metrics=("log_loss",),
        evaluate="log_density",
        title=LOG_DENSITY,
        function="log_loss",
        way_out="its loss is no density: lo.Regression(X, y, 'gaussian'), 'gamma' and others are, "
        "and evaluate='squared_error' or 'absolute_error' compares models of one response.",
    ),
    Measure(
        "CRPS",
        "distribution",
        None,
        evaluate="crps",
        title="CRPS",
        way_out="it is there for squared loss, for Gaussian, Poisson, negative binomial and gamma responses, and for two "
        "classes.",
    ),
    Measure(
        "root of the mean square",
        "response",
        OfMeans(partial(one_mean, loss=squares), root),
        metrics=("rmse",),
        function="root_mean_squared_error",
    ),
    Measure(
        "squared difference of logs",
        "response",
        Mean(squared_logs),
        function="mean_squared_log_error",
    ),
    Measure(
        "root of the mean square of logs",
        "response",
        OfMeans(partial(one_mean, loss=squared_logs), root),
        function="root_mean_squared_log_error",
    ),
    Measure(
        "relative error",
        "response",
        Mean(relative),
        metrics=("mape",),
        function="mean_absolute_percentage_error",
    ),
    Measure(
        "pinball",
        "response",
        Mean(pinball),
        metrics=("pinball",),
        function="mean_pinball_loss",
        parameters=("alpha",),
    ),
    Measure(
        "Poisson deviance",
        "response",
        Mean(poisson_deviance),
        metrics=("poisson_deviance",),
        function="mean_poisson_deviance",
    ),
    Measure(
        "gamma deviance",
        "response",
        Mean(gamma_deviance),
        metrics=("gamma_deviance",),
        function="mean_gamma_deviance",
    ),
    Measure("median of |y − ŷ|", "response", Median(absolute), function="median_absolute_error"),
    _score(
        "r2_score",
        "response",
        OfMeans(moments, determination),
        None,
        metrics=("r2",),
    ),
    _d2("d2_poisson", poisson_deviance),
    _d2("d2_gamma", gamma_deviance),
    _score(
        "explained_variance_score",
        "response",
        OfMeans(moments, partial(determination, centred=True)),
        None,
    ),
    *(
        _score(f"d2_{kind}_score", "response", low=None)
        for kind in ("absolute_error", "pinball", "tweedie")
    ),
    *(_score(f"d2_{kind}_score", "probabilities", low=None) for kind in ("log_loss", "brier")),
    _score(
        "average_precision_score", "probability", Ranks("precision"), metrics=("average_precision",)
    ),
    _score("balanced_accuracy_score", "label", metrics=("balanced_accuracy",), of_table=balanced),
    _score(
        "top_k_accuracy_score", "probabilities", Mean(in_top), metrics=("top_k",), parameters=("k",)
    ),
    _score("precision_score", "label", ratio=lambda t, a, b, beta: (t, b)),
    _score("recall_score", "label", ratio=lambda t, a, b, beta: (t, a)),
    _score(
        "f1_score",
        "label",
        metrics=("f1", "f1_macro", "f1_weighted"),
        ratio=lambda t, a, b, beta: (2 * t, a + b),
    ),
    _score(
        "fbeta_score", "label", ratio=lambda t, a, b, beta: ((1 + beta**2) * t, beta**2 * a + b)
    ),
    _score("jaccard_score", "label", ratio=lambda t, a, b, beta: (t, a + b - t)),
    _score("matthews_corrcoef", "label", low=-1.0, metrics=("matthews",), of_table=matthews),
    _score("cohen_kappa_score", "label", low=-1.0, metrics=("kappa",)),
    Measure("concordance", "risk", Concordance(), True, 0.0, 1.0, metrics=("concordance",)),
)
METRICS: dict[str, Measure] = {name: measure for measure in MEASURES for name in measure.metrics}
SCORES = {measure.evaluate: measure for measure in MEASURES if measure.evaluate}
# names of one entry that differ in their average over classes
AVERAGES = {"f1_macro": "macro", "f1_weighted": "weighted"}
LOSSES = {measure.loss: measure for measure in MEASURES if measure.loss}
FUNCTIONS = {measure.function: measure for measure in MEASURES if measure.function}


def of_function(metric: Any) -> Measure | None:
    """Return the measure that a function of scikit-learn's computes.

    None if it is not in the table.
    """
    if getattr(metric, "__module__", "").startswith("sklearn.metrics"):
        return FUNCTIONS.get(getattr(metric, "__name__", ""))
    return None
