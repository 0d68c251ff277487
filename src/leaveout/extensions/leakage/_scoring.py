"""Measures that users name.

They are a loss of `lo.losses` on the scale of the response, 0–1, Brier's, a user's function, or one
of scikit-learn's names and scorers, where more is better, in its own sign, with its own bounds.
Means over rows and functions of means are those of the table (`validation.metrics`). Labels are
scored by the table of classes, whose cells are means. For all other scores that take
`sample_weight` the influence is by differences; a score that takes no weights has none.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier

from ... import Fit, losses
from ...developer import (
    LOSSES,
    Called,
    LabelFunction,
    Mean,
    Measure,
    Needs,
    Picklable,
    function_name,
    of_scorer,
    silence,
    squares,
    surprise,
)
from ..hosts.sklearn import usual_score

# a loss as users give it
Loss = str | losses.AbstractLoss | Callable[[np.ndarray, np.ndarray], ArrayLike]


def _of_mean(y: NDArray, mu: NDArray, loss: losses.Poisson | losses.Gamma) -> NDArray:
    """Compute −log density of a mean, which may be zero where y is."""
    return loss.family.loss(
        mu, np.log(np.where((mu == 0) & (y == 0), 1.0, mu)), *loss.parameter_and_log, y
    )


def _of_residual(y: NDArray, eta: NDArray, loss: losses.Huber | losses.PseudoHuber) -> NDArray:
    return loss.derivatives(eta, y, (0,))[0]


def _response_measure(loss: losses.AbstractLoss) -> Measure:
    """Convert a loss of the linear predictor to one of the response."""
    match loss:
        case losses.Squared():
            return Measure("½ (y − ŷ)²", "response", Mean(squares, scale=0.5))
        case losses.Binomial():
            return Measure("−log p̂(y)", "probability", Mean(surprise))
        case losses.Multinomial():
            return Measure("−log p̂(y)", "probabilities", Mean(surprise))
        case losses.Poisson():
            return Measure("ŷ − y log ŷ + log y!", "response", Mean(partial(_of_mean, loss=loss)))
        case losses.Gamma():
            return Measure(
                "the gamma density",
                "response",
                Mean(partial(_of_mean, loss=loss)),
                low=None,
            )
        case losses.Huber() | losses.PseudoHuber():
            name = "pseudo-Huber"
            if isinstance(loss, losses.Huber):
                name = "Huber's"
            return Measure(name, "response", Mean(partial(_of_residual, loss=loss)))
    raise TypeError(
        f"leakage_corrected: {type(loss).__name__} has no form on the scale of the response; give a function."
    )


def resolve(loss: Loss, response: str, y: NDArray, classifier: bool) -> Measure:
    """Resolve a score from a name, an object of `lo.losses` or a function of (y, prediction), with
    y as the user gave it.
    """
    if response not in ("auto", "predict", "predict_proba"):
        raise ValueError(
            f"leakage_corrected: response must be 'auto', 'predict' or 'predict_proba'; got {response!r}."
        )
    if isinstance(loss, str):
        name = loss.lower().replace("-", "_").replace(" ", "_")
        if name == "brier" and len(np.unique(y)) == 2:
            return replace(LOSSES[name], needs="probability", functional=Mean(squares, scale=2.0))
        if name in LOSSES:
            return LOSSES[name]
        if name not in losses.NAMED:
            names = ", ".join([*losses.NAMED, *LOSSES])
            raise ValueError(
                f"leakage_corrected: no loss is called {loss!r}; choose one of {names}, or give a function; scikit-learn's "
                "scorers go by scoring=."
            )
        return _response_measure(losses.NAMED[name]())
    if isinstance(loss, losses.AbstractLoss):
        return _response_measure(loss)
    if not callable(loss) or hasattr(loss, "_score_func"):
        raise TypeError(
            f"leakage_corrected: loss must be a name or a function of (y, prediction); got {type(loss).__name__}; "
            "scikit-learn's scorers go by scoring=."
        )
    if not classifier:
        return _user_measure(loss, "response", y, y, loss)
    labels, codes = np.unique(y, return_inverse=True)
    if response != "predict_proba":
        return _user_measure(LabelFunction(loss, labels, True), "label", codes, codes, loss)
    if len(labels) == 2:
        return _user_measure(LabelFunction(loss, labels), "probability", codes, codes * 1.0, loss)
    return _user_measure(
        LabelFunction(loss, labels), "probabilities", codes, np.eye(len(labels))[codes], loss
    )


def _user_measure(
    function: Callable, needs: Needs, y: NDArray, perfect: NDArray, user_function: Callable
) -> Measure:
    """Examine a user's function by calls with perfect predictions, of the same records and of
    others.

    The calls show whether it returns one number for each record or one in all, and whether less is
    better.
    """
    best = np.asarray(function(y, perfect))
    if best.shape not in ((), (len(y),)):
        raise ValueError(
            f"leakage_corrected: loss must return one number a record, ({len(y)},), or one in all; got shape {best.shape}."
        )
    name = function_name(user_function)
    with warnings.catch_warnings(action="ignore"), silence("all"):
        shuffled = np.mean(function(y, np.roll(perfect, len(y) // 2 + 1, axis=0)))
    if shuffled < best.mean() - 1e-9 * abs(best.mean()):
        raise ValueError(
            f"leakage_corrected: loss={name}: more of it is better: {best.mean():.4g} for perfect predictions, {shuffled:.4g} for "
            "those of other records. Give scoring='roc_auc', 'accuracy' or another of scikit-learn's names, or "
            f"scoring=make_scorer({name})."
        )
    if best.shape:
        return Measure(name, needs, Mean(Picklable(function), by_fit=True))
    return Measure(name, needs, Called(Picklable(function), weighs=False))


def resolve_score(scoring, estimator, y: NDArray) -> Measure:
    """Resolve a score: scikit-learn's name or scorer (None: the estimator's own), or a loss by name
    or object.
    """
    y = np.asarray(y)
    if isinstance(scoring, Measure):
        return scoring
    if scoring is None:
        scoring = usual_score(estimator)
        if scoring is None:
            raise TypeError(
                f"scoring=None: {type(estimator).__name__} has a score of its own; name one by scoring=."
            )
    if isinstance(scoring, losses.AbstractLoss) or (
        isinstance(scoring, str) and scoring in {*losses.NAMED, *LOSSES}
    ):
        return resolve(scoring, "auto", y, classifies(estimator, y))
    name = ""
    if isinstance(scoring, str):
        name = scoring
        if scoring not in sklearn.metrics.get_scorer_names():
            raise ValueError(
                f"scoring={scoring!r}: neither a scorer of scikit-learn's (sklearn.metrics.get_scorer_names()) nor a loss of "
                f"ours ({', '.join([*losses.NAMED, *LOSSES])})."
            )
        scoring = sklearn.metrics.get_scorer(scoring)
    if not hasattr(scoring, "_score_func"):
        raise TypeError(
            f"scoring={function_name(scoring)}: a name or sklearn.metrics.make_scorer(metric) is needed, whose metric can be asked "
            "with predictions; a function of (estimator, X, y) cannot."
        )
    classes = None
    if classifies(estimator, y):
        classes = np.unique(y)
    return of_scorer("scoring", name, scoring, classes, estimator)


def classifies(estimator, y: NDArray) -> bool:
    """Tell whether the estimator predicts classes."""
    if not isinstance(estimator, Fit):
        return is_classifier(estimator)
    return bool(estimator.objective.units.classes) or (
        type(getattr(estimator.objective, "loss_function", None)).__name__ == "Binomial"
        and len(np.unique(y)) == 2
    )


def predict_for_score(model, X, labels: NDArray, needs: Needs) -> NDArray[np.float64]:
    """Predict by a fitted estimator in the form that a score needs.

    `labels` are all classes in order.
    """
    if needs == "response":
        return np.asarray(model.predict(X), float).reshape(-1)
    if needs == "label":
        return np.searchsorted(labels, model.predict(X)).astype(float)
    if needs == "decision" and hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(X), float)
    p = np.zeros((X.shape[0], len(labels)))
    p[:, np.searchsorted(labels, model.classes_)] = model.predict_proba(X)
    return p if needs == "probabilities" else p[:, 1]
