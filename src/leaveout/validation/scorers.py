"""Measures from what users name: scikit-learn's names, scorers and functions, and functions of
their own.

The value and the influence come from the table (`metrics`) where the function is in it. Labels are
measured by the table of classes, whose cells are means. Any other function is called.
"""

import difflib
import functools
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..objectives.objective import display_name
from ..optimize.fit import Fit
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
        raise TypeError(
            f"{self.name} was not kept when this was pickled; define it in a module, by def."
        )


def function_name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


@dataclass(frozen=True)
class LabelFunction:
    """Function of labels, called with the numbers of classes."""

    function: Callable
    labels: NDArray
    both: bool = False  # whether predictions are labels too

    def __call__(self, y: NDArray, prediction: NDArray, **named: Any) -> Any:
        told = self.labels[prediction.astype(int)] if self.both else prediction
        return self.function(self.labels[y.astype(int)], told, **named)


def of_scorer(what: str, name: str, scorer: Any, labels: NDArray | None, estimator: Any) -> Measure:
    """Convert a scorer of scikit-learn's, in its own sign; `labels` are the classes in order, None
    for a response of numbers.

    `what` and `name` are the argument and its value, for messages.
    """
    metric = scorer._score_func
    sign = scorer._sign
    given = dict(scorer._kwargs)
    methods = scorer._response_method
    name = name or metric_name(scorer)
    known = of_function(metric)
    low, high = (None, None) if known is None else (known.low, known.high)
    if (
        known is None
        and sign < 0
        and getattr(metric, "__module__", "").startswith("sklearn.metrics")
    ):
        low = 0.0
    if sign < 0:
        low, high = None if high is None else -high, None if low is None else -low
    if labels is not None:
        needs = _needs(what, name, methods, estimator, len(labels))
        functional = _of_classes(f"{what}={name!r}", metric, given, needs, labels)
    else:
        needs = "response"
        if methods != "predict" and "predict" not in methods:
            raise TypeError(
                f"{what}={name} is of classes; {type(estimator).__name__} predicts numbers."
            )
        functional = _of_numbers(metric, given)
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
    known = METRICS.get(metric) if isinstance(metric, str) else of_function(metric)
    if known is not None:
        return known.more_is_better
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
    what = f"{caller}: metric"
    units = fit.objective.units
    name = metric if isinstance(metric, str) else ""
    known = METRICS.get(name) if name else of_function(metric)
    if name == "r2" and units.classes:  # scikit-learn's, of labels
        known = None
    scorer = None if known is not None else _scorer(what, metric)
    if scorer is not None:
        known = of_function(scorer._score_func)
    name = metric_name(metric)
    if known is not None and known.needs == "risk":
        if units.risk is None:
            raise ValueError(
                f"{what}={name!r} needs times and events, as of lo.Cox; got {display_name(fit.objective)}."
            )
        return replace(known, name=name)
    if units.target is None:
        raise ValueError(
            f"{caller}: metric needs a model with predictions and a target; got {display_name(fit.objective)}"
            + (", whose measure is 'concordance'." if units.risk is not None else ".")
        )
    labels = _classes(what, name, fit, known, scorer)
    if scorer is None:
        assert known is not None
        measure = replace(known, name=name)
        given = {"average": AVERAGES[name]} if name in AVERAGES else {}
        if known.functional is None:
            import sklearn.metrics

            function = getattr(sklearn.metrics, known.function)
            if name == "f1" and labels is not None and len(labels) == 2:
                given = {"pos_label": labels[1]}
            call = f"{what}={name!r}"
            found = (
                _of_numbers(function, given)
                if labels is None
                else _of_classes(call, function, given, known.needs, labels)
            )
            measure = replace(measure, functional=found)
        level = getattr(getattr(fit.objective, "loss_function", None), "level", None)
        if name == "pinball" and level is not None:  # that of the quantile that the model is of
            measure = replace(
                measure, functional=Mean(functools.partial(pinball, alpha=float(level)))
            )
    else:
        measure = of_scorer(what, name, scorer, labels, fit)
        if measure.needs == "decision" and not isinstance(measure.functional, Called):
            measure = replace(measure, needs="probability")  # whose order is that of decisions
        if scorer._score_func is metric and measure.needs == "label":
            measure = replace(measure, title="of predicted classes")
    if (
        units.classes > 2
        and measure.needs == "response"
        and not (known and "brier" in known.metrics)
    ):
        raise ValueError(
            f"{what}={name!r} needs a response that is a number; {display_name(fit.objective)} has classes."
        )
    if (
        not units.classes
        and measure.classes
        and measure.needs != "label"
        and not isinstance(measure.functional, Ranks)
    ):
        raise ValueError(
            f"{what}={name!r} needs probabilities of classes; {display_name(fit.objective)} has none."
        )
    measure = replace(measure, labels=None if labels is None else tuple(labels.tolist()))
    if isinstance(measure.functional, Called):
        measure = replace(measure, functional=_examined(f"{what}={name!r}", measure, fit))
    return measure


def _scorer(what: str, metric: Any) -> Any:
    """Return the scorer of a name or a function; ValueError if there is none."""
    from sklearn.metrics import get_scorer, get_scorer_names, make_scorer

    if hasattr(metric, "_score_func"):
        return metric
    if callable(metric):
        return make_scorer(metric)
    known = [*METRICS, *get_scorer_names()]
    if isinstance(metric, str) and metric in known:
        return get_scorer(metric)
    near = difflib.get_close_matches(str(metric), known, 3, 0.4)
    nearest = f" The nearest names are {', '.join(map(repr, near))}." if near else ""
    raise ValueError(
        f"{what} must be among {', '.join(METRICS)}, a name of sklearn.metrics.get_scorer_names(), a scorer, or a function of "
        f"(y, prediction); got {metric!r}.{nearest}"
    )


def _classes(what: str, name: str, fit: Fit, known: Measure | None, scorer: Any) -> NDArray | None:
    """Return the classes of a fit, in the order of their numbers.

    None where the measure takes the response as a number.
    """
    units = fit.objective.units
    if scorer is None and known is not None and not known.classes:
        return None
    if units.classes:
        return np.asarray(getattr(fit.objective, "classes", None) or range(units.classes))
    module = "" if scorer is None else getattr(scorer._score_func, "__module__", "")
    of_classes = (
        known.classes
        if known is not None
        else "cluster" in module or "predict" not in scorer._response_method
    )
    if not of_classes:
        return None
    values = np.unique(np.asarray(units.target, np.float64))
    if np.isfinite(values).sum() > 2:
        raise ValueError(
            f"{what}={name!r} needs a response of classes; this one is a number: 'mse' or 'mae'."
        )
    return values


def _examined(what: str, measure: Measure, fit: Fit) -> AbstractFunctional:
    """Call a function on the responses with good predictions.

    An error now, or whether it returns one number for each row.
    """
    functional, y = (
        measure.functional,
        measure.numbered(fit.objective.units, np.asarray(fit.objective.units.target)),
    )
    assert isinstance(functional, Called)
    prediction = y
    if measure.labels is not None and measure.needs != "label":
        p = 0.8 * np.eye(len(measure.labels))[y.astype(int)] + 0.2 / len(measure.labels)
        prediction = measure.form(p if len(measure.labels) > 2 else p[:, 1])
    try:
        found = np.asarray(quietly(functional.function, y, prediction), np.float64)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{what}: it fails on the responses of this model: {error}") from error
    if found.shape not in ((), (len(y),)):
        raise ValueError(
            f"{what}: it must return one number, or one a row, ({len(y)},); got shape {found.shape}."
        )
    if found.shape:
        return Mean(functional.function, own=True, scale=functional.scale)  # type: ignore[arg-type]
    return functional


def _of_numbers(metric: Callable, given: dict[str, Any]) -> AbstractFunctional:
    known = of_function(metric)
    if (
        known is None
        or known.functional is None
        or known.classes
        or not given.keys() <= {*known.parameters}
    ):
        return _generic(functools.partial(metric, **given), metric)
    return _with(known.functional, given)


def _with(functional: AbstractFunctional, given: dict[str, Any]) -> AbstractFunctional:
    """Give the function of a mean its keywords."""
    if not given:
        return functional
    function = functools.partial(functional.function, **given)  # type: ignore[attr-defined]
    return replace(functional, function=function)  # type: ignore[call-arg]


def _needs(what: str, name: str, methods: Any, estimator: Any, classes: int) -> Needs:
    """Return the first of the methods that the estimator has."""
    if isinstance(methods, str):
        methods = (methods,)
    there = [m for m in methods if isinstance(estimator, Fit) or hasattr(estimator, m)]
    if not there:
        raise TypeError(
            f"{what}={name} needs {' or '.join(methods)}, which {type(estimator).__name__} has not; give 'accuracy' or another "
            "of labels, or wrap it in CalibratedClassifierCV."
        )
    if there[0] == "predict":
        return "label"
    if classes > 2 and "predict_proba" not in there:
        raise TypeError(
            f"{what}={name} of {classes} classes needs predict_proba; {type(estimator).__name__} has it not."
        )
    if classes > 2:
        return "probabilities"
    if there[0] == "decision_function":
        return "decision"
    return "probability"


def _of_classes(
    call: str, metric: Callable, given: dict, needs: Needs, labels: NDArray
) -> AbstractFunctional:
    two = len(labels) == 2
    known = of_function(metric)
    functional = None if known is None else known.functional
    # scikit-learn may need to know which class, given by a word, is the positive one
    if two or needs == "label":
        try:
            quietly(metric, labels, labels if needs == "label" else np.array([0.0, 1.0]), **given)
        except ValueError as error:
            way = ""
            if two and "pos_label" in str(error):
                way = f" Give make_scorer({function_name(metric)}, pos_label={labels[1].item()!r}, ...), or y of 0 and 1."
            raise ValueError(f"{call}: {error}{way}") from error
    flipped = two and given.get("pos_label") is not None and given["pos_label"] == labels[0]
    plain = {key: value for key, value in given.items() if key != "pos_label" or not two}
    if (
        isinstance(functional, Mean)
        and known is not None
        and known.classes
        and plain.keys() <= {*known.parameters}
    ):
        return _with(functional, plain)
    if isinstance(functional, Ranks):
        if two or (plain.get("multi_class") == "ovr" and needs == "probabilities"):
            average = plain.pop("average", "macro")
            plain.pop("multi_class", None)
            if not plain and average in ("macro", "weighted"):
                return replace(
                    functional,
                    flipped=flipped,
                    frequent=average == "weighted" and not two,
                    strict=True,
                )
        if not two and "multi_class" not in given:
            way = "use 'roc_auc_ovr'" if len(labels) > 2 else "there is nothing to tell apart"
            raise ValueError(f"{call} is of two classes; y has {len(labels)}: {way}.")
    ask = functools.partial(metric, **given)
    if needs != "label":
        ask = functools.partial(_orient_predictions, ask=ask, flipped=flipped, needs=needs)
    # 1024: cells of a table of classes above which influences are computed by weights
    elif _takes_weights(metric) and len(labels) ** 2 <= 1024:
        theirs = getattr(metric, "__module__", "").startswith("sklearn.")
        table = ConfusionCells(metric if theirs else Picklable(metric), given, labels)
        return OfMeans(table.cells, table)
    return _generic(LabelFunction(ask, labels, needs == "label"), metric)


def _takes_weights(function: Callable) -> bool:
    try:
        return "sample_weight" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _generic(ask: Callable, metric: Callable) -> AbstractFunctional:
    return Called(Picklable(ask), _takes_weights(metric))


def _orient_predictions(
    y: NDArray, prediction: NDArray, ask: Callable, flipped: bool, needs: Needs, **named: Any
) -> float:
    """Turn predictions to the positive class, which may be the first."""
    if flipped:
        prediction = -prediction if needs == "decision" else 1 - prediction
    return ask(y, prediction, **named)
