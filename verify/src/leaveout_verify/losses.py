"""Losses of a linear predictor, each written twice: as a power series of balls, which is believed,
and as float64 derivatives.

The float64 derivatives only say where to look for the minimiser.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_series

Array = np.ndarray
erfc = np.vectorize(math.erfc, otypes=[float])
exp = lambda x: np.exp(np.minimum(x, 600.0))  # without overflow


class Loss(NamedTuple):
    """A convex loss ℓ(η, y): `series` of one row, and ℓ′ and ℓ″ of arrays of rows."""

    series: Callable[[arb_series, arb], arb_series]
    slopes: Callable[[Array, Array], tuple[Array, Array]]

    def taylor(self, eta: arb, y: arb) -> tuple[arb, arb, arb]:
        """Return balls that contain ℓ, ℓ′ and ℓ″ at every point of the ball `eta`.

        NaN where nothing is known.
        """
        try:
            found = self.series(arb_series([eta, 1], prec=3), y)
        except (ValueError, ZeroDivisionError):  # a ball that contains a pole
            return arb.nan(), arb.nan(), arb.nan()
        return found[0], found[1], 2 * found[2]


def squared() -> Loss:
    return Loss(lambda x, y: (x - y) * (x - y) / 2, lambda x, y: (x - y, np.ones_like(x)))


def logistic() -> Loss:
    def series(x: arb_series, y: arb) -> arb_series:
        if x[0].mid() > 0:  # the larger exponential is taken out
            return (1 + (-x).exp()).log() + (1 - y) * x
        return (1 + x.exp()).log() - y * x

    def slopes(x: Array, y: Array) -> tuple[Array, Array]:
        small = np.exp(-np.minimum(np.abs(x), 700.0))
        side = 1 / (1 + small)
        return np.where(x > 0, side, small * side) - y, small * side * side

    return Loss(series, slopes)


def probit() -> Loss:
    minus_log = lambda x: -((x * -arb(0.5).sqrt()).erfc() / 2).log()  # −log Φ(x)
    series = lambda x, y: y * minus_log(x) + (1 - y) * minus_log(-x)

    def one(x: Array) -> tuple[Array, Array]:
        ratio = np.exp(-(x**2) / 2) / np.maximum(erfc(-x / np.sqrt(2)), 1e-300) * np.sqrt(2 / np.pi)
        ratio = np.where(x < -30, -x - 1 / np.minimum(x, -1), ratio)  # where both underflow
        return -ratio, ratio * (x + ratio)

    def slopes(x: Array, y: Array) -> tuple[Array, Array]:
        (a1, a2), (b1, b2) = one(x), one(-x)
        return y * a1 - (1 - y) * b1, y * a2 + (1 - y) * b2

    return Loss(series, slopes)


def cloglog() -> Loss:
    series = lambda x, y: (1 - y) * x.exp() - (y * (1 - (-x.exp()).exp()).log() if y != 0 else 0)

    def slopes(x: Array, y: Array) -> tuple[Array, Array]:
        u = np.maximum(exp(np.minimum(x, 6.0)), 1e-300)
        b = u / np.expm1(u)
        return (1 - y) * exp(x) - y * b, (1 - y) * exp(x) + y * b * np.where(
            u < 1e-3, u / 2 + u * u / 12, u + b - 1
        )

    return Loss(series, slopes)


def poisson() -> Loss:
    return Loss(lambda x, y: x.exp() - y * x + (y + 1).lgamma(), lambda x, y: (exp(x) - y, exp(x)))


def gamma(shape: float = 1.0) -> Loss:
    nu = arb(shape)
    constant = nu.lgamma() - nu * nu.log()
    return Loss(
        lambda x, y: nu * (x + y * (-x).exp()) - (nu - 1) * y.log() + constant,
        lambda x, y: (shape * (1 - y * exp(-x)), shape * y * exp(-x)),
    )


def negative_binomial(dispersion: float = 1.0) -> Loss:
    s = 1 / arb(dispersion)

    def series(x: arb_series, y: arb) -> arb_series:
        constant = y * s.log() - (s + y).lgamma() + s.lgamma() + (y + 1).lgamma()
        return (s + y) * (1 + x.exp() / s).log() - y * x + constant

    def slopes(x: Array, y: Array) -> tuple[Array, Array]:
        share = 1 / (1 + exp(-x) / dispersion)
        return (1 / dispersion + y) * share - y, (1 / dispersion + y) * share * (1 - share)

    return Loss(series, slopes)


def tweedie(power: float = 1.5, dispersion: float = 1.0) -> Loss:
    p, phi = arb(power), arb(dispersion)

    def series(x: arb_series, y: arb) -> arb_series:
        level = y ** (2 - p) / ((1 - p) * (2 - p)) if y != 0 else arb(0)
        return (level + y * ((1 - p) * x).exp() / (p - 1) + ((2 - p) * x).exp() / (2 - p)) / phi

    def slopes(x: Array, y: Array) -> tuple[Array, Array]:
        first, second = y * exp((1 - power) * x) / dispersion, exp((2 - power) * x) / dispersion
        return second - first, (power - 1) * first + (2 - power) * second

    return Loss(series, slopes)


def pseudo_huber(delta: float = 1.345) -> Loss:
    d = arb(delta)

    def series(x: arb_series, y: arb) -> arb_series:
        t = (x - y) / d
        return d * d * (t * t) / (1 + (1 + t * t).sqrt())

    def slopes(x: Array, y: Array) -> tuple[Array, Array]:
        root = np.sqrt(1 + ((x - y) / delta) ** 2)
        return (x - y) / root, root**-3

    return Loss(series, slopes)


NAMED: dict[str, Callable[..., Loss]] = {
    made.__name__: made
    for made in (
        squared,
        logistic,
        probit,
        cloglog,
        poisson,
        gamma,
        negative_binomial,
        tweedie,
        pseudo_huber,
    )
}


INFINITY = float("inf")
DOMAINS: dict[str, tuple[float, float]] = {  # of the response, where the loss is convex and finite
    "squared": (-INFINITY, INFINITY),
    "logistic": (0.0, 1.0),
    "probit": (0.0, 1.0),
    "cloglog": (0.0, 1.0),
    "poisson": (0.0, INFINITY),
    "gamma": (5e-324, INFINITY),
    "negative_binomial": (0.0, INFINITY),
    "tweedie": (0.0, INFINITY),
    "pseudo_huber": (-INFINITY, INFINITY),
}


def named(name: str, **parameters: Any) -> Loss:
    """Make the loss that a certificate names, one of `NAMED`."""
    return NAMED[name](**parameters)
