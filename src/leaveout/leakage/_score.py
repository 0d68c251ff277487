"""Scores: one number of weighted rows, and the influence of every row on it.

With P the weighted rows and θ(P) the number, the influence of a row i is the slope of θ as P moves towards it,

    IF_i = d/dt θ((1 − t) P + t δ_i) at t = 0,      Σ_i w_i IF_i = 0,

so that with Σ w = 1 the variance of θ is that of sums of `w_i IF_i` over independent groups of rows. The influence on a mean is
the deviation from the mean; on a function of means, its gradient times the deviations; on the area under the ROC curve, Hajek's
projection (DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988). With S and P the weights of the rows of score ≥ t, of all
and of the positive ones,

    average precision = 1/π Σ_{i+} w_i P_i/S_i,
    IF_j = 1/π {1[j+] (P_j/S_j − AP) + Σ_{i+, s_i ≤ s_j} w_i (1[j+] − P_i/S_i)/S_i}.

Negative weights remove records that do not belong to the test set; functions of means and the area are then exact.

Metrics of labels are functions of the table of classes, whose cells are means over rows. With T the shares of rows by true and
predicted class, `t` its diagonal, `a` its row sums and `b` its column sums: precision t/b, recall t/a, F_β
(1 + β²) t/(β² a + b), Jaccard t/(a + b − t). A ratio 0/0 is 0, as in scikit-learn. Every other metric is computed by
scikit-learn itself, which takes milliseconds.
"""

import abc
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import sklearn.metrics as metrics
from jaxtyping import Float
from numpy.typing import NDArray

from ..validation.metrics import area
from ._solve import Shape

Needs = Literal["response", "label", "probability", "probabilities", "decision"]
Numbers = NDArray[np.float64]
NEARBY = 0.01  # relative change of the means below which the gradient is not computed anew
SCORE_DIFFERENCE = 1e-3  # step of central differences, relative to a mean weight or a mean; their error goes with its square
RATIOS: dict[Callable, Callable[[Numbers, Numbers, Numbers, float], tuple[Numbers, Numbers]]] = {
    metrics.precision_score: lambda t, a, b, beta: (t, b),
    metrics.recall_score: lambda t, a, b, beta: (t, a),
    metrics.f1_score: lambda t, a, b, beta: (2 * t, a + b),
    metrics.fbeta_score: lambda t, a, b, beta: ((1 + beta**2) * t, beta**2 * a + b),
    metrics.jaccard_score: lambda t, a, b, beta: (t, a + b - t),
}


class AbstractFunctional(abc.ABC):
    """Functional of weighted rows: its value, and its value plus each row's influence, whose weighted mean it is."""

    allows_negative_weights: bool  # whether negative weights are allowed

    def value(self, y: Numbers, prediction: Numbers, weight: Numbers) -> float:
        return float(np.average(self.pseudo(y, prediction, weight), weights=weight))

    @abc.abstractmethod
    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers) -> Float[np.ndarray, " rows"]: ...

    def many(self, fits: Iterable[tuple[Numbers, Numbers, Numbers]]) -> Iterator[Float[np.ndarray, " rows"]]:
        """Compute `pseudo` of every fit's rows, predictions and weights."""
        return (self.pseudo(*fit) for fit in fits)


class Picklable:
    """Function that is pickled if possible; otherwise its name is, and a call raises an error."""

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError):
            return {"function": UnpicklableStub(function_name(self.function))}
        return {"function": self.function}


@dataclass(frozen=True)
class UnpicklableStub:
    """Placeholder of a function that could not be pickled."""

    name: str

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise TypeError(f"{self.name} was not kept when this was pickled; define it in a module, by def.")


@dataclass(frozen=True)
class Mean(AbstractFunctional):
    """Mean of a loss of single rows, times `sign`; `function` is vectorised over fits or, if `own`, called fit by fit."""

    function: Callable[[Numbers, Numbers], NDArray]
    sign: float = 1.0
    own: bool = False
    allows_negative_weights = True

    def records(self, y: Float[np.ndarray, "..."], prediction: Float[np.ndarray, "..."]) -> Float[np.ndarray, "fits rows"]:
        """Compute losses of many fits `[fits, rows]` from predictions `[fits, rows, ...]`; y is `[rows]` or `[fits, rows]`."""
        if not self.own:
            return self.sign * np.asarray(self.function(y, prediction), np.float64)
        each = np.broadcast_to(y, prediction.shape[:2])
        value = np.array([self.function(*pair) for pair in zip(each, prediction, strict=True)], np.float64)
        return self.sign * value.reshape(prediction.shape[:2])

    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers) -> Float[np.ndarray, " rows"]:
        return self.records(y, prediction[None])[0]


@dataclass(frozen=True)
class OfMeans(AbstractFunctional):
    """Function of the means of a few numbers of each row: R², a root of a mean, metrics of a table of classes."""

    statistics: Callable[[Numbers, Numbers], NDArray]  # [rows, numbers]
    combine: Callable[[NDArray], float]
    allows_negative_weights = True

    def value(self, y: Numbers, prediction: Numbers, weight: Numbers) -> float:
        return float(self.combine(weight @ self.statistics(y, prediction) / weight.sum()))

    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers) -> Float[np.ndarray, " rows"]:
        return next(self.many([(y, prediction, weight)]))

    def many(self, fits: Iterable[tuple[Numbers, Numbers, Numbers]]) -> Iterator[Float[np.ndarray, " rows"]]:
        """Compute `pseudo` of many fits; a gradient serves for fits with similar means, as influences only give errors."""
        at, slope = None, np.zeros(0)
        for y, prediction, weight in fits:
            each = self.statistics(y, prediction)
            mean = weight @ each / weight.sum()
            if at is None or np.abs(mean - at).sum() > NEARBY * np.abs(at).sum():
                at, slope = mean, self._gradient(each, mean)
            yield self.combine(mean) + (each - mean) @ slope

    def _gradient(self, each: NDArray, mean: NDArray) -> NDArray[np.float64]:
        """Compute the gradient by differences, in the means that are not all zero."""
        slope = np.zeros(len(mean))
        for k in np.flatnonzero(np.abs(each).max(0) > 0):
            off = np.zeros(len(mean))
            off[k] = SCORE_DIFFERENCE * SCORE_DIFFERENCE * max(abs(mean[k]), np.abs(each[:, k]).max() / len(each))
            slope[k] = (self.combine(mean + off) - self.combine(mean - off)) / (2 * off[k])
        return slope


@dataclass(frozen=True)
class Ranks(AbstractFunctional):
    """Area under the ROC curve, or average precision, of two classes; for more, the mean of each against the rest.

    The mean is plain, or weighted by the frequency of the classes. `flipped` tells that the first of two classes is the
    positive one.
    """

    of: Literal["area", "precision"]
    reverses: bool = False
    frequent: bool = False
    allows_negative_weights = True

    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers) -> Float[np.ndarray, " rows"]:
        one = area if self.of == "area" else precision
        if prediction.ndim == 1:
            sought = (y > 0) != self.reverses
            return one(_both(sought, weight), -prediction if self.reverses else prediction, weight)
        share = np.array([weight[y == k].sum() for k in range(prediction.shape[1])]) / weight.sum()
        if (share <= 0).any():
            raise ValueError("an area of several classes needs rows of each of them; use fewer folds.")
        parts = np.array([one(y == k, prediction[:, k], weight) for k in range(prediction.shape[1])])
        if not self.frequent:
            return parts.mean(0)
        areas = parts @ weight / weight.sum()
        return share @ parts + (areas[y.astype(int)] - share @ areas)


@dataclass(frozen=True)
class WeightedMetric(AbstractFunctional):
    """Score by any `function(y, prediction, sample_weight=)`; influences are slopes in the weights, by differences."""

    function: Callable[..., float]
    allows_negative_weights = False

    def value(self, y: Numbers, prediction: Numbers, weight: Numbers) -> float:
        return float(quietly(self.function, y, prediction, sample_weight=weight))

    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers) -> Float[np.ndarray, " rows"]:
        step, slope = SCORE_DIFFERENCE * np.mean(weight[weight > 0]), np.zeros(len(y))
        for i in np.flatnonzero(weight > 0):
            each = [weight.copy(), weight.copy()]
            each[0][i] += step
            each[1][i] -= min(step, weight[i] / 2)
            ends = [self.value(y, prediction, w) for w in each]
            slope[i] = (ends[0] - ends[1]) / (each[0][i] - each[1][i])
        if not slope.any():
            raise ValueError("it does not change with the weights of rows, as a median, so it has no influence, and no SE.")
        return self.value(y, prediction, weight) + weight.sum() * slope


@dataclass(frozen=True)
class UnweightedScore(AbstractFunctional):
    """Score by a `function(y, prediction)` without weights, and so without influences and standard errors."""

    function: Callable[..., float]
    allows_negative_weights = False

    def value(self, y: Numbers, prediction: Numbers, weight: Numbers) -> float:
        if np.ptp(weight[weight != 0]) > 0 or weight.min() < 0:
            raise ValueError("it takes no sample_weight, so rows cannot be weighted.")
        seen = weight > 0
        return float(quietly(self.function, y[seen], prediction[seen]))

    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers) -> Float[np.ndarray, " rows"]:
        raise ValueError("it takes no sample_weight, so rows have no influence on it, and it no SE.")


@dataclass(frozen=True)
class Score:
    """A score of fits: a number, its direction and its bounds.

    `needs` is the kind of prediction: the response, the probability of the second class, those of all classes, a decision
    value that grows with the second class, or a label. Except for the response, y is the number of the class. The score lies
    between `low` and `high` (None: no bound).
    """

    name: str
    needs: Needs
    functional: AbstractFunctional
    more_is_better: bool = False
    low: float | None = 0.0
    high: float | None = None

    @property
    def per_record(self) -> bool:
        """Whether the score is a mean over rows."""
        return isinstance(self.functional, Mean)

    @property
    def weighs(self) -> bool:
        """Whether the score takes weights, so that rows have an influence."""
        return not isinstance(self.functional, UnweightedScore)

    @property
    def shape(self) -> Shape:
        """The shape of the score's curve as a function of the leakage."""
        return Shape(self.more_is_better, self.low, self.high)

    @property
    def worst(self) -> float | None:
        """The bound that no correction can pass."""
        return self.low if self.more_is_better else self.high

    @property
    def classes(self) -> bool:
        return self.needs != "response"

    def losses(self, y: Float[np.ndarray, "..."], prediction: Float[np.ndarray, "..."]) -> Float[np.ndarray, "fits rows"]:
        """Return the losses of the rows for many fits, given predictions `[fits, rows, ...]`, for a mean over rows."""
        assert isinstance(self.functional, Mean)
        value = self.functional.records(y, prediction)
        self.check(value)
        return value

    def target(self, y: NDArray) -> Float[np.ndarray, " rows"]:
        """Return y in the form of the score: the numbers of classes in order, or y itself."""
        return (np.unique(y, return_inverse=True)[1] if self.classes else y).astype(np.float64)

    def __call__(self, y: Numbers, prediction: Numbers, weight: Numbers | None = None) -> float:
        """Compute the score of rows from `target(y)` and their predictions."""
        return self._call_metric("value", y, prediction, weight)

    def pseudo(self, y: Numbers, prediction: Numbers, weight: Numbers | None = None) -> Float[np.ndarray, " rows"]:
        """Compute the value plus the influence of each row, whose weighted mean is the value."""
        return self._call_metric("pseudo", y, prediction, weight)

    def influence(self, y: Numbers, prediction: Numbers, weight: Numbers | None = None) -> Float[np.ndarray, " rows"]:
        """Compute the influence of each row, with `Σ w_i IF_i = 0`; ValueError if rows have none (see `weighs`)."""
        weight = np.ones(len(y)) if weight is None else weight
        found = self.pseudo(y, prediction, weight)
        return found - np.average(found, weights=weight)

    def many(self, fits: Iterable[tuple[Numbers, Numbers, Numbers]]) -> Iterator[Float[np.ndarray, " rows"]]:
        """Compute `pseudo` of the rows, predictions and weights of many fits."""
        try:
            for found in self.functional.many(fits):
                self.check(found)
                yield found
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def _call_metric(self, what: str, y: NDArray, prediction: NDArray, weight: NDArray | None) -> Any:
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
        if weight.min(initial=0) < 0 and not self.functional.allows_negative_weights:
            raise ValueError(f"{self.name}: {NO_MIXTURE}")
        try:
            found = getattr(self.functional, what)(y, prediction, weight)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        self.check(found)
        return found

    def check(self, value: Any) -> None:
        """Raise ValueError if the score is not a number."""
        if not np.isfinite(value).all():
            raise ValueError(
                f"leakage_corrected: the loss {self.name} is not finite for {np.sum(~np.isfinite(value))} predictions, such "
                "as a probability of zero for what came true; use loss='brier' or 'zero_one', or an estimator that smooths."
            )


NO_MIXTURE = (
    "records that do not belong cannot be taken out of it again: it is neither a function of means, nor an area, nor average "
    "precision"
)


def precision(positive: NDArray, predictions: NDArray, weight: NDArray) -> Float[np.ndarray, " rows"]:
    """Compute average precision plus each row's influence.

    With negative weights, the weight above a threshold is first made to grow as the threshold falls, so that precisions are
    shares.
    """
    order = np.argsort(-predictions, kind="stable")
    ranked, w, sought = predictions[order], weight[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    group = np.cumsum(np.append(0, np.diff(ranked) != 0))
    hits, all_ = np.cumsum(w * sought)[last], np.cumsum(w)[last]
    if weight.min() < 0:
        misses = np.clip(np.maximum.accumulate(all_ - hits), 0, (all_ - hits)[-1])
        hits = np.clip(np.maximum.accumulate(hits), 0, hits[-1])
        all_ = hits + misses
    own = np.diff(hits, prepend=0.0)  # the weight of positives at each threshold
    base = np.maximum(all_, 1e-300)
    share = hits / base
    value = own @ share / hits[-1]
    below = lambda x: np.cumsum(x[::-1])[::-1]
    gained, lost = below(own / base), below(own * share / base)
    slope = np.where(sought, (share - value + gained)[group], 0.0) - lost[group]
    out = np.empty(len(w))
    out[order] = value + w.sum() * slope / hits[-1]
    return out


def quietly(function: Callable, *args: Any, **named: Any) -> Any:
    """Call a function without scikit-learn's warnings on classes that were never predicted; a ratio 0/0 is zero there."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*args, **named)


def takes_weights(function: Callable) -> bool:
    try:
        return "sample_weight" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def function_name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _both(target: NDArray, weight: NDArray) -> NDArray[np.bool_]:
    if weight[target].sum() <= 0 or weight[~target].sum() <= 0:
        raise ValueError("it needs rows of both classes among those that are scored; use fewer folds.")
    return target


@dataclass(frozen=True)
class ConfusionCells:
    """Metric of labels, times `sign`, as a function of the table of classes.

    `cells` marks each row's cell, `[rows, classes²]`.
    """

    metric: Callable[..., float]
    keywords: dict[str, Any]
    sign: float
    labels: NDArray

    def cells(self, y: NDArray, code: NDArray) -> NDArray[np.float64]:
        count = len(self.labels)
        return np.eye(count**2)[(y * count + code).astype(int)]

    def __call__(self, cells: NDArray[np.float64]) -> float:
        table = np.maximum(cells, 0.0).reshape(len(self.labels), -1)
        return self.sign * self._value(table)

    def _value(self, table: NDArray[np.float64]) -> float:
        right, true, said = np.diag(table), table.sum(1), table.sum(0)
        if self.metric is metrics.balanced_accuracy_score and not self.keywords:
            return float((right[true > 0] / true[true > 0]).mean())
        if self.metric is metrics.matthews_corrcoef and not self.keywords:
            whole = table.sum()
            spread = (whole**2 - true @ true) * (whole**2 - said @ said)
            return float((right.sum() * whole - true @ said) / np.sqrt(spread)) if spread > 0 else 0.0
        if self.metric in RATIOS and self.keywords.keys() <= {"average", "pos_label", "beta"}:
            return self._ratio(right, true, said)
        y, predicted = (self.labels[part.ravel()] for part in np.indices(table.shape))
        seen = table.ravel() > 0
        return float(quietly(self.metric, y[seen], predicted[seen], sample_weight=table.ravel()[seen], **self.keywords))

    def _ratio(self, right: Numbers, true: Numbers, said: Numbers) -> float:
        average, there = self.keywords.get("average", "binary"), true + said > 0
        if average == "binary":
            sought = self.keywords.get("pos_label", 1)
            there = self.labels == sought
        right, true, said = right[there], true[there], said[there]
        if average == "micro":
            right, true, said = (np.array([part.sum()]) for part in (right, true, said))
        above, below = RATIOS[self.metric](right, true, said, self.keywords.get("beta", 1.0))
        ratio = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
        return float(true @ ratio / true.sum() if average == "weighted" and true.sum() > 0 else ratio.mean())
