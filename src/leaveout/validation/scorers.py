"""Measures from what users name: scikit-learn's names, scorers and functions, and functions of
their own.

The value and the influence come from the table (`metrics`) where the function is in it. Labels are
measured by the table of classes, whose cells are means. Any other function is called.
"""

import difflib
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._runtime import NamedValues, function_name
from ..objectives import display_name
from ..optimize import Fit
from .metrics import (
    AVERAGES,
    METRICS,
    AbstractFunctional,
    Called,
    ConfusionCells,
    Mean,
    Measure,
    Needs,
    OfMeans,
    Ranks,
    of_function,
    pinball,
    quietly,
)


class Picklable:
    """Function that is pickled if possible; otherwise its name is, and a call raises an error."""

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    def __getstate__(self) -> NamedValues:
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError):
            return {"function": UnpicklableStub(function_name(self.function))}
        return {"function": self.function}


@dataclass(frozen=True)
class UnpicklableStub:
    """Placeholder of a function that could not be pickled."""

    name: str

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        raise TypeError(
            f"{self.name} was not kept when this was pickled; define it in a module, by def."
        )


@dataclass(frozen=True)
class LabelFunction:
    """Function of labels, called with the numbers of classes."""

    function: Callable
    labels: NDArray
    predicts_labels: bool = False  # whether predictions are labels too

    def __call__(self, y: NDArray, prediction: NDArray, **keywords: Any) -> Any:
        predicted = prediction
        if self.predicts_labels:
            predicted = self.labels[prediction.astype(int)]
        return self.function(self.labels[y.astype(int)], predicted, **keywords)


def of_scorer(
    argument: str, name: str, scorer: Any, labels: NDArray | None, estimator: Any
) -> Measure:
    """Convert a scorer of scikit-learn's, in its own sign; `labels` are the classes in order, None
    for a response of numbers.

    `argument` and `name` are the argument and its value, for messages.
    """
    metric = scorer._score_func
    sign = scorer._sign
    keywords = dict(scorer._kwargs)
    methods = scorer._response_method
    name = name or metric_name(scorer)
    entry = of_function(metric)
    low, high = (None, None) if entry is None else (entry.low, entry.high)
    if (
        entry is None
        and sign < 0
        and getattr(metric, "__module__", "").startswith("sklearn.metrics")
    ):
        low = 0.0
    if sign < 0:
        low, high = (bound if bound is None else -bound for bound in (high, low))
    if labels is not None:
        needs = _needs(argument, name, methods, estimator, len(labels))
        functional = _of_classes(f"{argument}={name!r}", metric, keywords, needs, labels)
    else:
        needs = "response"
        if methods != "predict" and "predict" not in methods:
            raise TypeError(
                f"{argument}={name} is of classes; {type(estimator).__name__} predicts numbers."
            )
        functional = _of_numbers(metric, keywords)
    return Measure(name, needs, replace(functional, scale=sign), True, low, high)


def metric_name(metric: Any) -> str:
    """Return the name of a measure.

    Its own, or that of its function, with scikit-learn's prefix of falling ones.
    """
    if isinstance(metric, str):
        return metric
    return ("neg_" if getattr(metric, "_sign", 1) < 0 else "") + function_name(
        getattr(metric, "_score_func", metric)
    )


def more_is_better(caller: str, metric: Any) -> bool:
    """Tell whether more of a measure is better.

    ValueError for a function of which that is not known.
    """
    entry = METRICS.get(metric) if isinstance(metric, str) else of_function(metric)
    if entry is not None:
        return entry.more_is_better
    if _scorer(f"{caller}: metric", metric)._score_func is metric:
        name = metric_name(metric)
        raise ValueError(
            f"{caller}: metric={name}: whether more of it is better is not known; give sklearn.metrics.make_scorer({name}, "
            "greater_is_better=...)."
        )
    return True


def measure_of(caller: str, fit: Fit, metric: Any) -> Measure:
    """Return the measure of a name, a scorer or a function of (y, prediction), for a fit; its
    `labels` are the fit's classes.

    A function that is not in the table gets the predicted classes, as `make_scorer` gives them, or
    the predicted mean. ValueError for unknown names, and for models that lack the predictions.
    """
    argument = f"{caller}: metric"
    units = fit.objective.units
    name = metric if isinstance(metric, str) else ""
    entry = METRICS.get(name) if name else of_function(metric)
    if name == "r2" and units.classes:  # scikit-learn's, of labels
        entry = None
    scorer = None if entry is not None else _scorer(argument, metric)
    if scorer is not None:
        entry = of_function(scorer._score_func)
    name = metric_name(metric)
    if entry is not None and entry.needs == "risk":
        if units.risk is None:
            raise ValueError(
                f"{argument}={name!r} needs times and events, as of lo.Cox; got {display_name(fit.objective)}."
            )
        return replace(entry, name=name)
    if units.target is None:
        advice = "" if units.risk is None else ", whose measure is 'concordance'"
        raise ValueError(
            f"{caller}: metric needs a model with predictions and a target; got {display_name(fit.objective)}{advice}."
        )
    labels = _classes(argument, name, fit, entry, scorer)
    if scorer is None:
        assert entry is not None
        measure = replace(entry, name=name)
        keywords = {"average": AVERAGES[name]} if name in AVERAGES else {}
        if entry.functional is None:
            import sklearn.metrics

            function = getattr(sklearn.metrics, entry.function)
            if name == "f1" and labels is not None and len(labels) == 2:
                keywords = {"pos_label": labels[1]}
            if labels is None:
                functional = _of_numbers(function, keywords)
            else:
                call = f"{argument}={name!r}"
                functional = _of_classes(call, function, keywords, entry.needs, labels)
            measure = replace(measure, functional=functional)
        level = getattr(getattr(fit.objective, "loss_function", None), "level", None)
        if name == "pinball" and level is not None:  # that of the quantile that the model is of
            measure = replace(measure, functional=Mean(partial(pinball, alpha=float(level))))
    else:
        measure = of_scorer(argument, name, scorer, labels, fit)
        if measure.needs == "decision" and not isinstance(measure.functional, Called):
            measure = replace(measure, needs="probability")  # whose order is that of decisions
        if scorer._score_func is metric and measure.needs == "label":
            measure = replace(measure, title="of predicted classes")
    if (
        units.classes > 2
        and measure.needs == "response"
        and not (entry and "brier" in entry.metrics)
    ):
        raise ValueError(
            f"{argument}={name!r} needs a response that is a number; {display_name(fit.objective)} has classes."
        )
    if (
        not units.classes
        and measure.classes
        and measure.needs != "label"
        and not isinstance(measure.functional, Ranks)
    ):
        raise ValueError(
            f"{argument}={name!r} needs probabilities of classes; {display_name(fit.objective)} has none."
        )
    if labels is not None:
        measure = replace(measure, labels=tuple(labels.tolist()))
    if isinstance(measure.functional, Called):
        measure = replace(measure, functional=_examined(f"{argument}={name!r}", measure, fit))
    return measure


def _scorer(argument: str, metric):
    """Return the scorer of a name or a function; ValueError if there is none."""
    from sklearn.metrics import get_scorer, get_scorer_names, make_scorer

    if hasattr(metric, "_score_func"):
        return metric
    if callable(metric):
        return make_scorer(metric)
    names = [*METRICS, *get_scorer_names()]
    if isinstance(metric, str) and metric in names:
        return get_scorer(metric)
    matches = difflib.get_close_matches(str(metric), names, 3, 0.4)
    nearest = ""
    if matches:
        nearest = f" The nearest names are {', '.join(map(repr, matches))}."
    raise ValueError(
        f"{argument} must be among {', '.join(METRICS)}, a name of sklearn.metrics.get_scorer_names(), a scorer, or a function of "
        f"(y, prediction); got {metric!r}.{nearest}"
    )


def _classes(argument: str, name: str, fit: Fit, entry: Measure | None, scorer) -> NDArray | None:
    """Return the classes of a fit, in the order of their numbers.

    None where the measure takes the response as a number.
    """
    units = fit.objective.units
    if scorer is None and entry is not None and not entry.classes:
        return None
    if units.classes:
        return np.asarray(getattr(fit.objective, "classes", None) or range(units.classes))
    module = "" if scorer is None else getattr(scorer._score_func, "__module__", "")
    if entry is not None:
        of_classes = entry.classes
    else:
        of_classes = "cluster" in module or "predict" not in scorer._response_method
    if not of_classes:
        return None
    values = np.unique(np.asarray(units.target, float))
    if np.isfinite(values).sum() > 2:
        raise ValueError(
            f"{argument}={name!r} needs a response of classes; this one is a number: 'mse' or 'mae'."
        )
    return values


def _examined(argument: str, measure: Measure, fit: Fit) -> AbstractFunctional:
    """Call a function on the responses with good predictions.

    An error now, or whether it returns one number for each row.
    """
    functional = measure.functional
    units = fit.objective.units
    y = measure.numbered(units, np.asarray(units.target))
    assert isinstance(functional, Called)
    prediction = y
    if measure.labels is not None and measure.needs != "label":
        p = 0.8 * np.eye(len(measure.labels))[y.astype(int)] + 0.2 / len(measure.labels)
        if len(measure.labels) == 2:
            p = p[:, 1]
        prediction = measure.form(p)
    try:
        values = np.asarray(quietly(functional.function, y, prediction), float)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{argument}: it fails on the responses of this model: {error}") from error
    if values.shape not in ((), (len(y),)):
        raise ValueError(
            f"{argument}: it must return one number, or one a row, ({len(y)},); got shape {values.shape}."
        )
    if values.shape:
        return Mean(functional.function, by_fit=True, scale=functional.scale)  # type: ignore[arg-type]
    return functional


def _of_numbers(metric: Callable, keywords: NamedValues) -> AbstractFunctional:
    entry = of_function(metric)
    if (
        entry is None
        or entry.functional is None
        or entry.classes
        or not keywords.keys() <= {*entry.parameters}
    ):
        return _generic(partial(metric, **keywords), metric)
    return _with_keywords(entry.functional, keywords)


def _with_keywords(functional: AbstractFunctional, keywords: NamedValues) -> AbstractFunctional:
    """Give the function of a mean its keywords."""
    if not keywords:
        return functional
    function = partial(functional.function, **keywords)  # type: ignore[attr-defined]
    return replace(functional, function=function)  # type: ignore[call-arg]


def _needs(argument: str, name: str, methods, estimator, classes: int) -> Needs:
    """Return the first of the methods that the estimator has."""
    if isinstance(methods, str):
        methods = (methods,)
    available = [m for m in methods if isinstance(estimator, Fit) or hasattr(estimator, m)]
    if not available:
        raise TypeError(
            f"{argument}={name} needs {' or '.join(methods)}, which {type(estimator).__name__} has not; give 'accuracy' or another "
            "of labels, or wrap it in CalibratedClassifierCV."
        )
    if available[0] == "predict":
        return "label"
    if classes > 2 and "predict_proba" not in available:
        raise TypeError(
            f"{argument}={name} of {classes} classes needs predict_proba; {type(estimator).__name__} has it not."
        )
    if classes > 2:
        return "probabilities"
    if available[0] == "decision_function":
        return "decision"
    return "probability"


def _of_classes(
    call: str, metric: Callable, keywords: dict, needs: Needs, labels: NDArray
) -> AbstractFunctional:
    is_binary = len(labels) == 2
    entry = of_function(metric)
    functional = None if entry is None else entry.functional
    # scikit-learn may need to know which class, given by a word, is the positive one
    if is_binary or needs == "label":
        try:
            predicted = labels if needs == "label" else np.array([0.0, 1.0])
            quietly(metric, labels, predicted, **keywords)
        except ValueError as error:
            advice = ""
            if is_binary and "pos_label" in str(error):
                advice = f" Give make_scorer({function_name(metric)}, pos_label={labels[1].item()!r}, ...), or y of 0 and 1."
            raise ValueError(f"{call}: {error}{advice}") from error
    flipped = (
        is_binary and keywords.get("pos_label") is not None and keywords["pos_label"] == labels[0]
    )
    plain = {key: value for key, value in keywords.items() if key != "pos_label" or not is_binary}
    if (
        isinstance(functional, Mean)
        and entry is not None
        and entry.classes
        and plain.keys() <= {*entry.parameters}
    ):
        return _with_keywords(functional, plain)
    if isinstance(functional, Ranks):
        if is_binary or (plain.get("multi_class") == "ovr" and needs == "probabilities"):
            average = plain.pop("average", "macro")
            plain.pop("multi_class", None)
            if not plain and average in ("macro", "weighted"):
                return replace(
                    functional,
                    flipped=flipped,
                    frequent=average == "weighted" and not is_binary,
                    strict=True,
                )
        if not is_binary and "multi_class" not in keywords:
            advice = "there is nothing to tell apart"
            if len(labels) > 2:
                advice = "use 'roc_auc_ovr'"
            raise ValueError(f"{call} is of two classes; y has {len(labels)}: {advice}.")
    function = partial(metric, **keywords)
    if needs != "label":
        function = partial(_orient_predictions, function=function, flipped=flipped, needs=needs)
    # 1024: cells of a table of classes above which influences are computed by weights
    elif _takes_weights(metric) and len(labels) ** 2 <= 1024:
        if not getattr(metric, "__module__", "").startswith("sklearn."):
            metric = Picklable(metric)
        table = ConfusionCells(metric, keywords, labels)
        return OfMeans(table.cells, table)
    return _generic(LabelFunction(function, labels, needs == "label"), metric)


def _takes_weights(function: Callable) -> bool:
    try:
        return "sample_weight" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _generic(function: Callable, metric: Callable) -> AbstractFunctional:
    return Called(Picklable(function), _takes_weights(metric))


def _orient_predictions(
    y: NDArray,
    prediction: NDArray,
    function: Callable,
    flipped: bool,
    needs: Needs,
    **keywords,
) -> float:
    """Turn predictions to the positive class, which may be the first."""
    if flipped:
        prediction = -prediction if needs == "decision" else 1 - prediction
    return function(y, prediction, **keywords)
