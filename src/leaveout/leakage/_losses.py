"""What a prediction costs: the losses of `lo.losses` on the scale of the response, 0–1, or a user's function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlog1py, xlogy

from ..models import losses

Loss = str | losses.AbstractLoss | Callable[[NDArray, NDArray], ArrayLike]  # as users name one
Needs = Literal["response", "probability", "probabilities", "label"]


@dataclass(frozen=True)
class Measure:
    """A loss of one record given its prediction, vectorised.

    `needs` says what is predicted: the response, the probability of the second class, those of all classes (then y is
    the class's number), or a label (likewise). `per_record` is false for what is not a mean over records, such as one
    minus an AUC: then `function(y, prediction)` returns one number. `upper` is the largest possible loss.
    """

    name: str
    function: Callable[[NDArray, NDArray], NDArray]
    needs: Needs
    upper: float | None = None
    own: bool = False
    per_record: bool = True

    @property
    def classes(self) -> bool:
        return self.needs != "response"

    def __call__(self, y: Float[np.ndarray, "..."], prediction: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The losses `[fits, records]`, given predictions of all fits; y is `[records]` or `[fits, records]`."""
        if not self.own:
            value = self.function(y, prediction)
        else:
            each = np.broadcast_to(y, prediction.shape[:2])
            value = np.array([self.function(*pair) for pair in zip(each, prediction, strict=True)], np.float64)
            value = value.reshape(prediction.shape[:2])
        if not np.isfinite(value).all():
            raise ValueError(
                f"leakage_corrected: the loss {self.name} is not finite for {np.sum(~np.isfinite(value))} predictions, such "
                "as a probability of zero for what came true; use loss='brier' or 'zero_one', or an estimator that smooths."
            )
        return value


def _deviance(y: NDArray, mu: NDArray) -> NDArray:
    """A probability that rounds to one is taken as the largest number below: one that is zero is meant."""
    return -(xlogy(y, mu) + xlog1py(1 - y, -np.minimum(mu, np.nextafter(1.0, 0.0))))


def _huber(delta: float) -> Callable:
    def loss(y, eta):
        r = np.abs(y - eta)
        return np.where(r <= delta, 0.5 * r**2, delta * (r - 0.5 * delta))

    return loss


def _gamma(shape: float) -> Callable:
    constant = gammaln(shape) - shape * np.log(shape)
    return lambda y, mu: shape * (np.log(mu) + y / mu) - (shape - 1) * np.log(y) + constant


def _of(loss: losses.AbstractLoss) -> Measure:
    """A loss of the linear predictor as one of the response."""
    match loss:
        case losses.Squared():
            return Measure("½ (y − ŷ)²", lambda y, mu: 0.5 * (y - mu) ** 2, "response")
        case losses.Binomial():
            return Measure("−log p̂(y)", _deviance, "probability")
        case losses.Multinomial():
            return Measure("−log p̂(y)", lambda y, p: -np.log(_pick(p, y)), "probabilities")
        case losses.Poisson():
            return Measure("ŷ − y log ŷ + log y!", lambda y, mu: mu - xlogy(y, mu) + gammaln(y + 1), "response")
        case losses.Gamma():
            return Measure("the gamma density", _gamma(float(loss.shape)), "response")
        case losses.Huber():
            return Measure("Huber's", _huber(float(loss.delta)), "response")
        case losses.PseudoHuber():
            delta = float(loss.delta)
            return Measure("pseudo-Huber", lambda y, mu: delta**2 * (np.sqrt(1 + ((y - mu) / delta) ** 2) - 1), "response")
    raise TypeError(f"leakage_corrected: {type(loss).__name__} has no form on the scale of the response; give a function.")


def _pick(p: NDArray, y: NDArray) -> NDArray:
    """The probability of the class that came true, `[fits, records]`."""
    code = np.broadcast_to(y, p.shape[:2]).astype(int)
    return np.take_along_axis(p, code[..., None], -1)[..., 0]


def _brier(y: NDArray, p: NDArray) -> NDArray:
    return (p**2).sum(-1) - 2 * _pick(p, y) + 1


OTHERS = {
    "mse": Measure("(y − ŷ)²", lambda y, mu: (y - mu) ** 2, "response"),
    "absolute": Measure("|y − ŷ|", lambda y, mu: np.abs(y - mu), "response"),
    "zero_one": Measure("1 where the predicted class is wrong", lambda y, code: (y != code) * 1.0, "label", 1.0),
    "brier": Measure("Brier's, Σ_k (p̂_k − 1[y = k])²", _brier, "probabilities", 2.0),
}


def resolve(loss: Loss, response: str, y: NDArray, classifier: bool) -> Measure:
    """A measure from a name, an object of `lo.losses` or a function of (y, prediction); y as the user gave it."""
    if response not in ("auto", "predict", "predict_proba"):
        raise ValueError(f"leakage_corrected: response must be 'auto', 'predict' or 'predict_proba'; got {response!r}.")
    if isinstance(loss, str):
        name = loss.lower().replace("-", "_").replace(" ", "_")
        if name == "brier" and len(np.unique(y)) == 2:
            return Measure(OTHERS[name].name, lambda y, p: 2 * (y - p) ** 2, "probability", 2.0)
        if name in OTHERS:
            return OTHERS[name]
        if name not in losses.NAMED:
            known = ", ".join([*losses.NAMED, *OTHERS])
            raise ValueError(f"leakage_corrected: no loss is called {loss!r}; choose one of {known}, or give a function.")
        return _of(losses.NAMED[name]())
    if isinstance(loss, losses.AbstractLoss):
        return _of(loss)
    if not callable(loss):
        raise TypeError(f"leakage_corrected: loss must be a name or a function of (y, prediction); got {type(loss).__name__}.")
    if not classifier:
        return _own(loss, "response", y, y)
    labels, codes = np.unique(y, return_inverse=True)
    if response != "predict_proba":
        return _own(lambda y, code: loss(labels[y.astype(int)], labels[code.astype(int)]), "label", codes, codes, loss)
    once = lambda y, p: loss(labels[y.astype(int)], p)
    if len(labels) == 2:
        return _own(once, "probability", codes, codes * 1.0, loss)
    return _own(once, "probabilities", codes, np.eye(len(labels))[codes], loss)


def _own(function: Callable, needs: Needs, y: NDArray, perfect: NDArray, named: Any = None) -> Measure:
    """A user's function, asked once with perfect predictions whether it returns one number a record or one in all."""
    shape = np.shape(function(y, perfect))
    if shape not in ((), (len(y),)):
        raise ValueError(
            f"leakage_corrected: loss must return one number a record, shape ({len(y)},), or one in all; got shape {shape}."
        )
    named = function if named is None else named
    name = getattr(named, "__name__", type(named).__name__)
    return Measure(name, function, needs, None, True, shape != ())
