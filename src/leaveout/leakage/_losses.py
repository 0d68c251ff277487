"""What a prediction costs: the losses of `lo.losses` on the scale of the response, 0–1, or a user's function."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlog1py, xlogy

from ..models import losses
from ._score import Mean, Needs, Picklable, Score, Whole, called

Loss = str | losses.AbstractLoss | Callable[[NDArray, NDArray], ArrayLike]  # as users name one


def squares(y: NDArray, mu: NDArray, half: float = 1.0) -> NDArray:
    return half * (y - mu) ** 2


def absolute(y: NDArray, mu: NDArray) -> NDArray:
    return np.abs(y - mu)


def wrong(y: NDArray, code: NDArray) -> NDArray:
    return (y != code) * 1.0


def deviance(y: NDArray, mu: NDArray) -> NDArray:
    """A probability that rounds to one is taken as the largest number below: one that is zero is meant."""
    return -(xlogy(y, mu) + xlog1py(1 - y, -np.minimum(mu, np.nextafter(1.0, 0.0))))


def surprise(y: NDArray, p: NDArray) -> NDArray:
    return -np.log(_pick(p, y))


def brier(y: NDArray, p: NDArray) -> NDArray:
    return (p**2).sum(-1) - 2 * _pick(p, y) + 1


def _pick(p: NDArray, y: NDArray) -> NDArray:
    """The probability of the class that came true, `[fits, records]`."""
    code = np.broadcast_to(y, p.shape[:2]).astype(int)
    return np.take_along_axis(p, code[..., None], -1)[..., 0]


def _poisson(y: NDArray, mu: NDArray) -> NDArray:
    return mu - xlogy(y, mu) + gammaln(y + 1)


def _huber(y: NDArray, eta: NDArray, delta: float) -> NDArray:
    r = np.abs(y - eta)
    return np.where(r <= delta, 0.5 * r**2, delta * (r - 0.5 * delta))


def _pseudo_huber(y: NDArray, eta: NDArray, delta: float) -> NDArray:
    return delta**2 * (np.sqrt(1 + ((y - eta) / delta) ** 2) - 1)


def _gamma(y: NDArray, mu: NDArray, shape: float) -> NDArray:
    constant = gammaln(shape) - shape * np.log(shape)
    return shape * (np.log(mu) + y / mu) - (shape - 1) * np.log(y) + constant


def _of(loss: losses.AbstractLoss) -> Score:
    """A loss of the linear predictor as one of the response."""
    response = lambda name, function, low=0.0: Score(name, "response", Mean(function), low=low)
    match loss:
        case losses.Squared():
            return response("½ (y − ŷ)²", functools.partial(squares, half=0.5))
        case losses.Binomial():
            return Score("−log p̂(y)", "probability", Mean(deviance))
        case losses.Multinomial():
            return Score("−log p̂(y)", "probabilities", Mean(surprise))
        case losses.Poisson():
            return response("ŷ − y log ŷ + log y!", _poisson)
        case losses.Gamma():
            return response("the gamma density", functools.partial(_gamma, shape=float(loss.shape)), None)
        case losses.Huber():
            return response("Huber's", functools.partial(_huber, delta=float(loss.delta)))
        case losses.PseudoHuber():
            return response("pseudo-Huber", functools.partial(_pseudo_huber, delta=float(loss.delta)))
    raise TypeError(f"leakage_corrected: {type(loss).__name__} has no form on the scale of the response; give a function.")


OTHERS = {
    "mse": Score("(y − ŷ)²", "response", Mean(squares)),
    "absolute": Score("|y − ŷ|", "response", Mean(absolute)),
    "zero_one": Score("1 where the predicted class is wrong", "label", Mean(wrong), high=1.0),
    "brier": Score("Brier's, Σ_k (p̂_k − 1[y = k])²", "probabilities", Mean(brier), high=2.0),
}


def resolve(loss: Loss, response: str, y: NDArray, classifier: bool) -> Score:
    """A score from a name, an object of `lo.losses` or a function of (y, prediction); y as the user gave it."""
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
        return _own(Decoded(loss, labels, True), "label", codes, codes, loss)
    if len(labels) == 2:
        return _own(Decoded(loss, labels), "probability", codes, codes * 1.0, loss)
    return _own(Decoded(loss, labels), "probabilities", codes, np.eye(len(labels))[codes], loss)


@dataclass(frozen=True)
class Decoded:
    """A function of labels, given the numbers of classes."""

    function: Callable
    labels: NDArray
    both: bool = False  # are predictions labels too?

    def __call__(self, y: NDArray, prediction: NDArray, **named: Any) -> Any:
        told = self.labels[prediction.astype(int)] if self.both else prediction
        return self.function(self.labels[y.astype(int)], told, **named)


def _own(function: Callable, needs: Needs, y: NDArray, perfect: NDArray, named: Any = None) -> Score:
    """A user's function, asked once with perfect predictions whether it returns one number a record or one in all, and with
    perfect ones of other records whether less of it is better."""
    best = np.asarray(function(y, perfect))
    if best.shape not in ((), (len(y),)):
        raise ValueError(
            f"leakage_corrected: loss must return one number a record, ({len(y)},), or one in all; got shape {best.shape}."
        )
    name = called(function if named is None else named)
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
    return Score(name, needs, Whole(Picklable(function)))
