"""Scores that users name.

They are a loss of `lo.losses` on the scale of the response, 0–1, Brier's, a user's function, or one of scikit-learn's names
and scorers, where more is better, in its own sign, with its own bounds. Means over rows and functions of means are
recognised. Labels are scored by the table of classes, whose cells are means. For all other scores that take `sample_weight`
the influence is by differences; a score that takes no weights has none.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, is_classifier

from ..interop.sklearn import inner
from ..models.glm import losses
from ..models.glm.distributions import BERNOULLI
from ..models.glm.losses import NAMED, AbstractLoss
from ..optimize.fit import Fit
from ._score import (
    AbstractFunctional,
    ConfusionCells,
    Mean,
    Needs,
    OfMeans,
    Picklable,
    Ranks,
    Score,
    UnweightedScore,
    WeightedMetric,
    function_name,
    quietly,
    takes_weights,
)

Loss = str | losses.AbstractLoss | Callable[[np.ndarray, np.ndarray], ArrayLike]  # a loss as users give it
USUAL = {RegressorMixin.score: "r2", ClassifierMixin.score: "accuracy"}
LOG_LOSS = np.finfo(np.float64).eps  # least distance of probabilities from 0 and 1, as in scikit-learn


def squares(y: NDArray, mu: NDArray, half: float = 1.0) -> NDArray:
    return half * (y - mu) ** 2


def absolute(y: NDArray, mu: NDArray) -> NDArray:
    return np.abs(y - mu)


def wrong(y: NDArray, code: NDArray) -> NDArray:
    return (y != code) * 1.0


def deviance(y: NDArray, mu: NDArray) -> NDArray:
    """Compute the deviance; a probability that rounds to one becomes the largest number below one."""
    mean = np.minimum(mu, np.nextafter(1.0, 0.0))
    return BERNOULLI.loss(mean, None, None, None, y)


def surprise(y: NDArray, p: NDArray) -> NDArray:
    return -np.log(_pick(p, y))


def brier(y: NDArray, p: NDArray) -> NDArray:
    return (p**2).sum(-1) - 2 * _pick(p, y) + 1


def _pick(p: NDArray, y: NDArray) -> NDArray:
    """Select the probability of the observed class, `[fits, records]`."""
    code = np.broadcast_to(y, p.shape[:2]).astype(int)
    return np.take_along_axis(p, code[..., None], -1)[..., 0]


def _of_mean(y: NDArray, mu: NDArray, loss: losses.Poisson | losses.Gamma) -> NDArray:
    """Compute −log density of a mean, which may be zero where y is."""
    return loss.family.loss(mu, np.log(np.where((mu == 0) & (y == 0), 1.0, mu)), *loss.given, y)


def _of_residual(y: NDArray, eta: NDArray, loss: losses.Huber | losses.PseudoHuber) -> NDArray:
    return loss.derivatives(eta, y, (0,))[0]


def _of(loss: losses.AbstractLoss) -> Score:
    """Convert a loss of the linear predictor to one of the response."""
    response = lambda name, function, low=0.0: Score(name, "response", Mean(function), low=low)
    match loss:
        case losses.Squared():
            return response("½ (y − ŷ)²", functools.partial(squares, half=0.5))
        case losses.Binomial():
            return Score("−log p̂(y)", "probability", Mean(deviance))
        case losses.Multinomial():
            return Score("−log p̂(y)", "probabilities", Mean(surprise))
        case losses.Poisson():
            return response("ŷ − y log ŷ + log y!", functools.partial(_of_mean, loss=loss))
        case losses.Gamma():
            return response("the gamma density", functools.partial(_of_mean, loss=loss), None)
        case losses.Huber() | losses.PseudoHuber():
            name = "Huber's" if isinstance(loss, losses.Huber) else "pseudo-Huber"
            return response(name, functools.partial(_of_residual, loss=loss))
    raise TypeError(f"leakage_corrected: {type(loss).__name__} has no form on the scale of the response; give a function.")


OTHERS = {
    "mse": Score("(y − ŷ)²", "response", Mean(squares)),
    "absolute": Score("|y − ŷ|", "response", Mean(absolute)),
    "zero_one": Score("1 where the predicted class is wrong", "label", Mean(wrong), high=1.0),
    "brier": Score("Brier's, Σ_k (p̂_k − 1[y = k])²", "probabilities", Mean(brier), high=2.0),
}


def resolve(loss: Loss, response: str, y: NDArray, classifier: bool) -> Score:
    """Resolve a score from a name, an object of `lo.losses` or a function of (y, prediction), with y as the user gave it."""
    if response not in ("auto", "predict", "predict_proba"):
        raise ValueError(f"leakage_corrected: response must be 'auto', 'predict' or 'predict_proba'; got {response!r}.")
    if isinstance(loss, str):
        name = loss.lower().replace("-", "_").replace(" ", "_")
        if name == "brier" and len(np.unique(y)) == 2:
            return Score(OTHERS[name].name, "probability", Mean(functools.partial(squares, half=2.0)), high=2.0)
        if name in OTHERS:
            return OTHERS[name]
        if name not in losses.NAMED:
            known = ", ".join([*losses.NAMED, *OTHERS])
            raise ValueError(
                f"leakage_corrected: no loss is called {loss!r}; choose one of {known}, or give a function; scikit-learn's "
                "scorers go by scoring=."
            )
        return _of(losses.NAMED[name]())
    if isinstance(loss, losses.AbstractLoss):
        return _of(loss)
    if not callable(loss) or hasattr(loss, "_score_func"):
        raise TypeError(
            f"leakage_corrected: loss must be a name or a function of (y, prediction); got {type(loss).__name__}; "
            "scikit-learn's scorers go by scoring=."
        )
    if not classifier:
        return _own(loss, "response", y, y)
    labels, codes = np.unique(y, return_inverse=True)
    if response != "predict_proba":
        return _own(LabelFunction(loss, labels, True), "label", codes, codes, loss)
    if len(labels) == 2:
        return _own(LabelFunction(loss, labels), "probability", codes, codes * 1.0, loss)
    return _own(LabelFunction(loss, labels), "probabilities", codes, np.eye(len(labels))[codes], loss)


@dataclass(frozen=True)
class LabelFunction:
    """Function of labels, called with the numbers of classes."""

    function: Callable
    labels: NDArray
    both: bool = False  # whether predictions are labels too

    def __call__(self, y: NDArray, prediction: NDArray, **named: Any) -> Any:
        told = self.labels[prediction.astype(int)] if self.both else prediction
        return self.function(self.labels[y.astype(int)], told, **named)


def _own(function: Callable, needs: Needs, y: NDArray, perfect: NDArray, names_by_key: Any = None) -> Score:
    """Examine a user's function by calls with perfect predictions, of the same records and of others.

    The calls show whether it returns one number for each record or one in all, and whether less is better.
    """
    best = np.asarray(function(y, perfect))
    if best.shape not in ((), (len(y),)):
        raise ValueError(
            f"leakage_corrected: loss must return one number a record, ({len(y)},), or one in all; got shape {best.shape}."
        )
    name = function_name(function if names_by_key is None else names_by_key)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        other = np.mean(function(y, np.roll(perfect, len(y) // 2 + 1, axis=0)))
    if other < best.mean() - 1e-9 * abs(best.mean()):
        raise ValueError(
            f"leakage_corrected: loss={name}: more of it is better: {best.mean():.4g} for perfect predictions, {other:.4g} for "
            "those of other records. Give scoring='roc_auc', 'accuracy' or another of scikit-learn's names, or "
            f"scoring=make_scorer({name})."
        )
    if best.shape:
        return Score(name, needs, Mean(Picklable(function), own=True))
    return Score(name, needs, UnweightedScore(Picklable(function)))


def relative(y: NDArray, mu: NDArray) -> NDArray:
    return np.abs(y - mu) / np.maximum(np.abs(y), np.finfo(np.float64).eps)


def squared_logs(y: NDArray, mu: NDArray) -> NDArray:
    return (np.log1p(y) - np.log1p(mu)) ** 2


def kept_deviance(y: NDArray, p: NDArray) -> NDArray:
    return deviance(y, np.clip(p, LOG_LOSS, 1 - LOG_LOSS))


def kept_surprise(y: NDArray, p: NDArray) -> NDArray:
    return surprise(y, np.clip(p, LOG_LOSS, 1 - LOG_LOSS))


def moments(y: NDArray, mu: NDArray) -> NDArray:
    """Return the first and second moments of the residual and of the response."""
    return np.stack([y - mu, (y - mu) ** 2, y, y**2], axis=-1)


def determination(mean: NDArray, centred: bool) -> float:
    """Compute R² or, without the mean of the residual, the explained share of the variance."""
    left, spread = mean[1] - centred * mean[0] ** 2, mean[3] - mean[2] ** 2
    return 1 - left / spread if spread > 0 else float(left == 0)


def one_mean(y: NDArray, mu: NDArray, loss: Callable) -> NDArray:
    return loss(y, mu)[:, None]


def minus_root(mean: NDArray) -> float:
    return -float(np.sqrt(max(mean[0], 0.0)))


METRICS = sklearn.metrics
MEANS: dict[Callable, Callable] = {
    METRICS.mean_squared_error: squares,
    METRICS.mean_absolute_error: absolute,
    METRICS.mean_absolute_percentage_error: relative,
    METRICS.mean_squared_log_error: squared_logs,
}
OF_MEANS: dict[tuple[Callable, int], OfMeans] = {
    (METRICS.r2_score, 1): OfMeans(moments, functools.partial(determination, centred=False)),
    (METRICS.explained_variance_score, 1): OfMeans(moments, functools.partial(determination, centred=True)),
    (METRICS.root_mean_squared_error, -1): OfMeans(functools.partial(one_mean, loss=squares), minus_root),
    (METRICS.root_mean_squared_log_error, -1): OfMeans(functools.partial(one_mean, loss=squared_logs), minus_root),
}
RANKS = {METRICS.roc_auc_score: "area", METRICS.average_precision_score: "precision"}
SHARES = {
    *(METRICS.accuracy_score, METRICS.balanced_accuracy_score, METRICS.top_k_accuracy_score, METRICS.roc_auc_score),
    *(METRICS.average_precision_score, METRICS.f1_score, METRICS.fbeta_score, METRICS.precision_score),
    *(METRICS.recall_score, METRICS.jaccard_score),
}
CORRELATIONS = {METRICS.matthews_corrcoef, METRICS.cohen_kappa_score}
AT_MOST_ONE = {
    *(METRICS.r2_score, METRICS.explained_variance_score, METRICS.d2_absolute_error_score, METRICS.d2_pinball_score),
    *(METRICS.d2_tweedie_score, METRICS.d2_log_loss_score, METRICS.d2_brier_score),
    *CORRELATIONS,
}


def resolve_score(scoring: Any, estimator: Any, y: NDArray) -> Score:
    """Resolve a score: scikit-learn's name or scorer (None: the estimator's own), or a loss by name or object."""
    y = np.asarray(y)
    if isinstance(scoring, Score):
        return scoring
    if scoring is None:
        scoring = USUAL.get(getattr(type(inner(estimator)), "score", None))  # type: ignore[arg-type]
        if scoring is None:
            raise TypeError(f"scoring=None: {type(estimator).__name__} has a score of its own; name one by scoring=.")
    if isinstance(scoring, AbstractLoss) or (isinstance(scoring, str) and scoring in {*NAMED, *OTHERS}):
        return resolve(scoring, "auto", y, classifies(estimator, y))
    name = scoring if isinstance(scoring, str) else ""
    scorer = _scorer(scoring)
    metric, sign, given = scorer._score_func, scorer._sign, dict(scorer._kwargs)
    name = name or ("neg_" if sign < 0 else "") + function_name(metric)
    if not classifies(estimator, y):
        if scorer._response_method != "predict" and "predict" not in scorer._response_method:
            raise TypeError(f"scoring={name} is of classes; {type(estimator).__name__} predicts numbers.")
        return Score(name, "response", _of_numbers(metric, given, sign), True, *_bounds(metric, sign))
    labels = np.unique(y)
    needs = _needs(name, scorer._response_method, estimator, len(labels))
    functional = _of_classes(name, metric, given, sign, needs, labels)
    return Score(name, needs, functional, True, *_bounds(metric, sign))


def classifies(estimator: Any, y: NDArray) -> bool:
    """Tell whether the estimator predicts classes."""
    if not isinstance(estimator, Fit):
        return is_classifier(estimator)
    classes = estimator.objective.units.classes
    return bool(classes) or (
        type(getattr(estimator.objective, "loss_function", None)).__name__ == "Binomial" and len(np.unique(y)) == 2
    )


def predict_for_score(model: Any, X: Any, labels: NDArray, needs: Needs) -> NDArray[np.float64]:
    """Predict by a fitted estimator in the form that a score needs; `labels` are all classes in order."""
    if needs == "response":
        return np.asarray(model.predict(X), np.float64).reshape(-1)
    if needs == "label":
        return np.searchsorted(labels, model.predict(X)).astype(np.float64)
    if needs == "decision" and hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(X), np.float64)
    p = np.zeros((X.shape[0], len(labels)))
    p[:, np.searchsorted(labels, model.classes_)] = model.predict_proba(X)
    return p if needs == "probabilities" else p[:, 1]


def _scorer(scoring: Any) -> Any:
    if isinstance(scoring, str):
        if scoring not in METRICS.get_scorer_names():
            raise ValueError(
                f"scoring={scoring!r}: neither a scorer of scikit-learn's (sklearn.metrics.get_scorer_names()) nor a loss of "
                f"ours ({', '.join([*NAMED, *OTHERS])})."
            )
        return METRICS.get_scorer(scoring)
    if not hasattr(scoring, "_score_func"):
        what = scoring.__name__ if hasattr(scoring, "__name__") else type(scoring).__name__
        raise TypeError(
            f"scoring={what}: a name or sklearn.metrics.make_scorer(metric) is needed, whose metric can be asked with "
            "predictions; a function of (estimator, X, y) cannot."
        )
    return scoring


def _needs(name: str, methods: Any, estimator: Any, classes: int) -> Needs:
    """Return the first of the methods that the estimator has."""
    methods = (methods,) if isinstance(methods, str) else methods
    there = [m for m in methods if isinstance(estimator, Fit) or hasattr(estimator, m)]
    if not there:
        raise TypeError(
            f"scoring={name} needs {' or '.join(methods)}, which {type(estimator).__name__} has not; give scoring='accuracy' "
            "or another of labels, or wrap it in CalibratedClassifierCV."
        )
    if there[0] == "predict":
        return "label"
    if classes > 2 and "predict_proba" not in there:
        raise TypeError(f"scoring={name} of {classes} classes needs predict_proba; {type(estimator).__name__} has it not.")
    return "probabilities" if classes > 2 else "decision" if there[0] == "decision_function" else "probability"


def _of_numbers(metric: Callable, given: dict, sign: float) -> AbstractFunctional:
    if not given and metric in MEANS:
        return Mean(MEANS[metric], sign)
    if not given and (metric, sign) in OF_MEANS:
        return OF_MEANS[metric, sign]  # type: ignore[index]
    return _generic(functools.partial(_signed_metric, metric=metric, sign=sign, given=given), metric)


def _of_classes(name: str, metric: Callable, given: dict, sign: float, needs: Needs, labels: NDArray) -> AbstractFunctional:
    two = len(labels) == 2
    if two:  # scikit-learn may need to know which class, given by a word, is the positive one
        try:
            quietly(metric, labels, labels if needs == "label" else np.array([0.0, 1.0]), **given)
        except ValueError as error:
            raise ValueError(
                f"scoring={name}: {error} Give make_scorer({function_name(metric)}, pos_label={labels[1].item()!r}, ...), "
                "or y of 0 and 1."
            ) from error
    flipped = two and given.get("pos_label") is not None and given["pos_label"] == labels[0]
    plain = {key: value for key, value in given.items() if key != "pos_label" or not two}
    if metric is METRICS.accuracy_score and not given:
        return Mean(right, sign)
    if metric is METRICS.log_loss and not plain:
        return Mean(kept_deviance if two else kept_surprise, sign)
    if metric is METRICS.brier_score_loss and not plain:
        return Mean(squares if two else brier, sign)
    if metric in RANKS and (two or (plain.get("multi_class") == "ovr" and needs == "probabilities")):
        average = plain.pop("average", "macro")
        plain.pop("multi_class", None)
        if not plain and average in ("macro", "weighted"):
            return Ranks(RANKS[metric], flipped, average == "weighted" and not two)  # type: ignore[arg-type]
    if metric in RANKS and not two and "multi_class" not in given:
        way = "use 'roc_auc_ovr'" if len(labels) > 2 else "there is nothing to tell apart"
        raise ValueError(f"scoring={name} is of two classes; y has {len(labels)}: {way}.")
    ask = functools.partial(_signed_metric, metric=metric, sign=sign, given=given)
    if needs == "label":
        # 1024: cells of a table of classes above which influences are computed by weights
        if takes_weights(metric) and len(labels) ** 2 <= 1024:
            known = getattr(metric, "__module__", "").startswith("sklearn.")
            table = ConfusionCells(metric if known else Picklable(metric), given, sign, labels)
            return OfMeans(table.cells, table)
        return _generic(LabelFunction(ask, labels, True), metric)
    return _generic(
        LabelFunction(functools.partial(_orient_predictions, ask=ask, flipped=flipped, needs=needs), labels), metric
    )


def right(y: NDArray, code: NDArray) -> NDArray:
    return (y == code) * 1.0


def _generic(ask: Callable, metric: Callable) -> AbstractFunctional:
    return WeightedMetric(Picklable(ask)) if takes_weights(metric) else UnweightedScore(Picklable(ask))


def _signed_metric(y: NDArray, prediction: NDArray, metric: Callable, sign: float, given: dict, **named: Any) -> float:
    return sign * metric(y, prediction, **given, **named)


def _orient_predictions(y: NDArray, prediction: NDArray, ask: Callable, flipped: bool, needs: Needs, **named: Any) -> float:
    """Turn predictions to the positive class, which may be the first."""
    if flipped:
        prediction = -prediction if needs == "decision" else 1 - prediction
    return ask(y, prediction, **named)


def _bounds(metric: Callable, sign: float) -> tuple[float | None, float | None]:
    """Return the lowest and the highest value of a score."""
    low, high = None, None
    if metric in SHARES:
        low, high = 0.0, 1.0
    elif metric in AT_MOST_ONE:
        low, high = (-1.0 if metric in CORRELATIONS else None), 1.0
    elif getattr(metric, "__module__", "").startswith("sklearn.metrics") and sign < 0:
        low, high = 0.0, (2.0 if metric is METRICS.brier_score_loss else None)
    return (low, high) if sign > 0 else (None if high is None else -high, None if low is None else -low)
