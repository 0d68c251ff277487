"""Losses of one observation given its linear predictor, `ℓ(η, y)`: negative log densities, or
robust losses.

Derivatives come from autodiff, so the curvature is the *observed* one, whatever the link. Each loss
also knows its inverse link, the domain of y, and, where there is one, the constant M of `|ℓ‴| ≤ M
ℓ″`.
"""

from collections.abc import Callable, Collection
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy import ndarray

from ..._runtime import (
    AnyFunction,
    Array,
    ArrayList,
    Arrays,
    Scalar,
    TwoNumbers,
    call_traced,
    jax,
    jnp,
    jspecial,
    make_on_first_call,
    numpy_of,
    special_of,
    static,
)
from . import distributions, links
from .distributions import Formulas, domain, exponential
from .families import (
    SMALLEST_PREDICTOR,
    AbstractQuasiLoss,
    Gamma,
    InverseGaussian,
    NegativeBinomial,
    Poisson,
    QuasiPoisson,
    Squared,
    Tweedie,
)
from .loss import (
    AbstractLoss,
    AbstractSharedLoss,
    Number,
    positive,
    probability,
    within,
)
from .multinomial import Multinomial
from .shared_parameters import (
    Beta,
    GammaShape,
    GaussianScale,
    HuberScale,
    NegativeBinomialDispersion,
    Ordinal,
)
from .smoothed_kinks import (
    AbstractRounded,
    EpsilonInsensitive,
    Hinge,
    Quantile,
)

__all__ = [
    "AbstractLoss",
    "AbstractRounded",
    "AbstractSharedLoss",
    "Beta",
    "Binomial",
    "Custom",
    "EpsilonInsensitive",
    "Gamma",
    "GammaShape",
    "GaussianScale",
    "Hinge",
    "Huber",
    "HuberScale",
    "InverseGaussian",
    "Multinomial",
    "NegativeBinomial",
    "NegativeBinomialDispersion",
    "Ordinal",
    "Poisson",
    "PseudoHuber",
    "Quantile",
    "QuasiBinomial",
    "QuasiPoisson",
    "Squared",
    "SquaredHinge",
    "Tweedie",
    "links",
]
__dir__ = __all__.copy


@make_on_first_call
def _softplus():
    """`log(1 + e^x)`, with the sigmoid as its derivative.

    One exponential, where autodiff would take three.
    """
    softplus = jax.custom_jvp(lambda x: jnp.logaddexp(x, 0.0))
    softplus.defjvp(
        lambda primals, tangents: (softplus(*primals), jax.nn.sigmoid(*primals) * tangents[0])
    )
    return softplus


def _log1mexp(x: Array) -> Array:
    """`log(1 − e^x)` for x < 0, without cancellation and with finite derivatives of every order."""
    small = x > -0.6931471805599453
    a = jnp.log(-jnp.expm1(jnp.where(small, x, -1.0)))
    return jnp.where(small, a, jnp.log1p(-jnp.exp(jnp.where(small, -1.0, x))))


LINKS: dict[
    str, tuple[AnyFunction, AnyFunction, float]
] = {  # name: η ↦ (log μ, log(1 − μ)), η ↦ μ, an η inside the domain
    "logit": (lambda e: (-_softplus(-e), -_softplus(e)), lambda e: special_of(e).expit(e), 0.0),
    "probit": (
        lambda e: (jspecial.log_ndtr(e), jspecial.log_ndtr(-e)),
        lambda e: special_of(e).ndtr(e),
        0.0,
    ),
    "cloglog": (
        lambda e: (_log1mexp(-jnp.exp(e)), -jnp.exp(e)),
        lambda e: -numpy_of(e).expm1(-numpy_of(e).exp(e)),
        0.0,
    ),
    "loglog": (
        lambda e: (-jnp.exp(-e), _log1mexp(-jnp.exp(-e))),
        lambda e: numpy_of(e).exp(-numpy_of(e).exp(-e)),
        0.0,
    ),
    "cauchit": (
        lambda e: (jnp.log(jnp.arctan2(1.0, -e) / jnp.pi), jnp.log(jnp.arctan2(1.0, e) / jnp.pi)),
        lambda e: jnp.arctan2(1.0, -e) / jnp.pi,
        0.0,
    ),
    "log": (
        lambda e: (e, _log1mexp(jnp.where(e < 0, e, jnp.nan))),
        lambda e: numpy_of(e).exp(e),
        -1.0,
    ),
    "log_complement": (
        lambda e: (_log1mexp(jnp.where(e < 0, e, jnp.nan)), e),
        lambda e: -numpy_of(e).expm1(e),
        -1.0,
    ),
    "identity": (lambda e: (jnp.log(e), jnp.log1p(-e)), lambda e: e, 0.5),
}


class Binomial(AbstractLoss):
    """Binomial loss, `−y log μ − (1 − y) log(1 − μ)`: −log probability of a success or a failure of
    probability μ.

    Responses y are 0 or 1, or proportions between. For a proportion of m trials give m as its
    `sample_weight`; the density then lacks its binomial coefficient.

    Parameters
    ----------
    link : str, default: "logit"
        "logit", "probit", "cloglog", "loglog", "cauchit", "log", "log_complement" (`η = log(1 −
        μ)`) or "identity".

    Raises
    ------
    ValueError
        If no link has that name.

    Examples
    --------
    >>> import leaveout as lo
    >>> loss, slope = lo.losses.Binomial().derivatives(np.zeros(2), np.array([0.0, 1.0]), (0, 1))
    >>> loss.round(3), slope
    (array([0.693, 0.693]), array([ 0.5, -0.5]))
    """

    family = distributions.BERNOULLI
    link: str = static(default="logit")

    def __post_init__(self) -> None:
        if self.link not in LINKS:
            raise ValueError(
                f"Binomial: link must be one of {', '.join(LINKS)}; got {self.link!r}."
            )

    def __call__(self, eta: Array, y: Array) -> Array:
        if self.link == "logit":
            return _softplus(eta) - y * eta
        success, failure = LINKS[self.link][0](eta)
        return -y * success - (1 - y) * failure

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        if self.link == "logit":
            return _logistic(eta, y)
        if self.link not in CLOSED:
            return {}
        link = CLOSED[self.link]
        eta, y = np.broadcast_arrays(eta, y)
        has_success = y > 0
        has_failure = y < 1
        success = link.success(eta[has_success])
        failure = link.failure(eta[has_failure])

        def total(k):
            out = np.zeros(eta.shape)
            out[has_success] += y[has_success] * success[k]()
            out[has_failure] += (1 - y[has_failure]) * failure[k]()
            return out

        return within(
            (link.domain[0] < eta) & (eta < link.domain[1]),
            {k: lambda k=k: total(k) for k in success},
        )

    def terms(self, order, size, eta, y):
        if self.link == "probit":  # η² is rounded before it is an exponent, and η + m cancels
            return size * (1 + eta**2)
        # u is rounded before it is an exponent; u/(1 − e⁻ᵘ) − 1 cancels
        if self.link in ("cloglog", "loglog"):
            u = eta if self.link == "cloglog" else -eta
            return size * (8 + np.exp(np.minimum(u, 7.0)))
        # the terms of a success and of a failure have other signs
        if order == 1 and np.any((y > 0) & (y < 1)):
            return size + 2 * np.minimum(y, 1 - y)
        return size

    @property
    def ceiling(self) -> float:
        return {"logit": 0.25, "probit": 1.0}.get(self.link, np.inf)

    def peak(self, y: ndarray) -> ndarray | None:
        """Return the η at which ℓ″ is largest, for y of 0 and 1.

        Parameters
        ----------
        y : array of float
            Responses.

        Returns
        -------
        array of float or None
            Places of the maxima, by the link; None for fractions, whose ℓ″ may have two maxima.
        """
        if self.link in CLOSED and np.all((y == 0) | (y == 1)):
            return np.where(y == 1, *CLOSED[self.link].peaks)
        return None

    def inverse_link(self, eta: Arrays) -> Arrays:
        return LINKS[self.link][1](eta)

    def check(self, y: ndarray) -> None:
        domain(
            y,
            (y >= 0) & (y <= 1),
            {"logit": "logistic"}.get(self.link, f"binomial ({self.link})"),
            "in [0, 1]",
        )

    def start(self, y: ndarray, weight: ndarray) -> Any:
        mean = float(np.clip(np.average(y, weights=weight), 1e-3, 1 - 1e-3))
        starts = {
            "logit": np.log(mean / (1 - mean)),
            "log": np.log(mean),
            "log_complement": np.log1p(-mean),
            "identity": mean,
        }
        return float(starts.get(self.link, 0.0))

    def variance(self, mean: Arrays) -> Arrays:
        return distributions.BERNOULLI.variance(mean, 1.0)

    def scale(self, y: ndarray) -> str:
        return probability(y, "binomial loss of proportions")

    @property
    def inside(self) -> float:
        return LINKS[self.link][2]

    @property
    def self_concordance(self) -> float | Number | None:
        return 1.0 if self.link == "logit" else None

    @property
    def fourth(self) -> float | Number | None:
        return self.self_concordance  # ℓ⁗ = ℓ″ (1 − 6ℓ″)

    @property
    def convex(self) -> bool:
        return self.link != "cauchit"


def _logistic(eta: ndarray, y: ndarray) -> Formulas:
    """Derivatives of log(1 + e^η) − yη, from μ and 1 − μ, each computed without a subtraction from
    one.

    If all y are zero or one, these are the probabilities of the other class and of y. It works in
    place, since each pass over large arrays takes as long as the exponential.
    """
    cache: ArrayList = []
    sign = 1 - 2 * np.asarray(y)
    binary = bool((np.abs(sign) == 1).all())

    def mean_and_odds():
        if not cache:
            odds = -sign * eta if binary else np.negative(eta)
            np.exp(np.clip(odds, -700.0, 700.0, out=odds), out=odds)
            mean = 1 + odds
            cache.extend((np.divide(1, mean, out=mean), odds))
        return cache

    # a sum of two numbers that are not negative, so that small losses keep their digits
    def value():
        out = np.abs(eta)
        np.log1p(np.exp(np.negative(out, out=out), out=out), out=out)
        out += np.where(eta > 0, 1 - y, -np.asarray(y)) * eta
        return out

    def slope():
        mean, odds = mean_and_odds()
        if binary:
            return sign * mean
        return (1 - y) * mean - y * (odds * mean)

    def second():
        mean, odds = mean_and_odds()
        return odds * mean * mean

    def third():
        mean, odds = mean_and_odds()
        complement = odds * mean
        return mean * complement * (complement - mean) * (sign if binary else 1.0)

    return {0: value, 1: slope, 2: second, 3: third}


def _normal(x: ndarray) -> Formulas:
    """Compute −log Φ(x), by m = φ/Φ and s = x + m: m′ = −ms."""
    m = np.sqrt(2 / np.pi) / scipy.special.erfcx(-x / np.sqrt(2))
    s = np.where(x < -1e4, -1 / np.minimum(x, -1.0), x + m)  # otherwise digits cancel
    return {
        0: lambda: -scipy.special.log_ndtr(x),
        1: lambda: -m,
        2: lambda: m * s,
        3: lambda: m * (1 - m * s - s**2),
    }


def _extreme(x: ndarray) -> Formulas:
    """−log(1 − e⁻ᵘ), u = eˣ, by b = u/(eᵘ − 1) and c = u/(1 − e⁻ᵘ) − 1: ℓ′ = −b, ℓ″ = bc, ℓ‴ = bc
    (u/c − 2c − 1 + u).

    ℓ″ is unimodal: c is zero at zero, convex (as tanh(u/2) ≤ u/2) and c′ ≥ ½, so that the bracket
    falls from 1 to −∞.
    """
    u = np.exp(np.minimum(x, 7.0))  # beyond this e⁻ᵘ underflows
    failure = np.exp(-u)
    small = np.flatnonzero(u < 0.1)
    c = u / np.maximum(-np.expm1(-u), 1e-300) - 1
    v = u[small]
    c[small] = v / 2 + v**2 / 12 - v**4 / 720 + v**6 / 30240 - v**8 / 1209600
    b = failure * (1 + c)

    def value():
        out = -np.log1p(-np.minimum(failure, 0.95))
        out[small] = np.log1p(c[small]) - x[small]
        return out

    return {0: value, 1: lambda: -b, 2: lambda: b * c, 3: lambda: b * (u - c * (2 * c + 1 - u))}


def _growing(x: ndarray) -> Formulas:
    """Compute eˣ."""
    u = exponential(x)
    return dict.fromkeys(range(4), lambda: u)


def _log_complement(x: ndarray) -> Formulas:
    """−log(1 − eˣ), x < 0, by v = 1/(e⁻ˣ − 1), v′ = v + v².

    ℓ″ = v + v² grows with v, and so with x.
    """
    x = np.minimum(x, -SMALLEST_PREDICTOR)
    v = np.exp(x) / -np.expm1(x)
    return {
        0: lambda: np.log1p(v),
        1: lambda: v,
        2: lambda: v + v**2,
        3: lambda: (v + v**2) * (1 + 2 * v),
    }


def _line(x: ndarray) -> Formulas:
    """Compute −x."""
    return {
        0: lambda: -x,
        1: lambda: -np.ones_like(x),
        2: lambda: np.zeros_like(x),
        3: lambda: np.zeros_like(x),
    }


def _log(x: ndarray) -> Formulas:
    """Compute −log x."""
    x = np.maximum(x, SMALLEST_PREDICTOR)
    return {0: lambda: -np.log(x), 1: lambda: -1 / x, 2: lambda: x**-2.0, 3: lambda: -2 * x**-3.0}


def _mirror(function: Callable[[ndarray], Formulas], x: ndarray) -> Formulas:
    """Return the derivatives of f(c − η) in η, from those of f."""
    formulas = function(x)
    return {k: lambda k=k: (-1.0) ** k * formulas[k]() for k in formulas}


class ClosedLink(NamedTuple):
    """Link of `Binomial` with closed forms.

    Parameters
    ----------
    success : callable
        Function from η to −log μ and its derivatives.
    failure : callable
        Function from η to −log(1 − μ) and its derivatives.
    peaks : tuple of float
        Places at which ℓ″ of a success and of a failure is largest.
    domain : tuple of float, default: (-inf, inf)
        Bounds of η.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.CLOSED["log"].domain
    (-inf, 0.0)
    """

    success: Callable[[ndarray], Formulas]
    failure: Callable[[ndarray], Formulas]
    peaks: TwoNumbers
    domain: TwoNumbers = (-np.inf, np.inf)


EXTREME_PEAK = 0.6208296638972954  # place of the largest ℓ″ in `_extreme`
CLOSED = {
    "probit": ClosedLink(_normal, lambda eta: _mirror(_normal, -eta), (-np.inf, np.inf)),
    "cloglog": ClosedLink(_extreme, _growing, (EXTREME_PEAK, np.inf)),
    "loglog": ClosedLink(
        lambda eta: _mirror(_growing, -eta),
        lambda eta: _mirror(_extreme, -eta),
        (-np.inf, -EXTREME_PEAK),
    ),
    "log": ClosedLink(_line, _log_complement, (0.0, 0.0), (-np.inf, 0.0)),
    "log_complement": ClosedLink(_log_complement, _line, (0.0, 0.0), (-np.inf, 0.0)),
    "identity": ClosedLink(_log, lambda eta: _mirror(_log, 1 - eta), (0.0, 1.0), (0.0, 1.0)),
}


class QuasiBinomial(AbstractQuasiLoss):
    """Quasi-binomial loss, `(y log(y/μ) + (1 − y) log((1 − y)/(1 − μ))) / φ`: half the binomial
    deviance, divided by φ.

    It specifies the variance φμ(1 − μ) of y in [0, 1]. The fit is the binomial one. It is not a
    −log density: compare it with models of the same φ only.

    Parameters
    ----------
    dispersion : float, default: 1.0
        Dispersion φ.
    link : str, default: "logit"
        Any link of `Binomial`.

    Raises
    ------
    ValueError
        If the dispersion is not positive, or no link has that name.

    See Also
    --------
    Binomial, Beta

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.QuasiBinomial(2.0).derivatives(np.zeros(3), np.array([0.0, 0.5, 1.0]), (0,))[
    ...     0
    ... ].round(3)
    array([0.347, 0.   , 0.347])
    """

    dispersion: Number
    likelihood: Binomial

    def __init__(self, dispersion: float = 1.0, link: str = "logit"):
        self.dispersion = positive("QuasiBinomial: dispersion", dispersion)
        self.likelihood = Binomial(link)

    def least(self, y: Arrays, special: Any) -> Arrays:
        return -special.xlogy(y, y) - special.xlog1py(1 - y, -y)


class AbstractRobust(AbstractLoss):
    """Loss of a residual that is squared near zero and linear beyond `delta`.

    Parameters
    ----------
    delta : float
        Size of the residual from which the loss is linear.
    """

    delta: Number
    ceiling = 1.0
    title: ClassVar[str]

    def peak(self, y: ndarray) -> ndarray | None:
        return y

    def start(self, y: ndarray, weight: ndarray) -> Any:
        return float(np.median(y))

    def scale(self, y: ndarray) -> str:
        return f"{self.title} loss of δ = {float(self.delta):g}"


class Huber(AbstractRobust):
    """Huber loss of a fixed scale: `½ r²` for |r| ≤ δ and `δ |r| − ½ δ²` beyond, with r = y − η.

    Its second derivative jumps at |r| = δ.

    Parameters
    ----------
    delta : float, default: 1.345
        Residual δ beyond which the loss is linear, in the units of y.

    Raises
    ------
    ValueError
        If δ is not positive.

    See Also
    --------
    PseudoHuber : Smooth loss of a similar shape.
    HuberScale : Huber loss whose scale is estimated.

    References
    ----------
    P. J. Huber, *Robust Statistics*, Wiley, 1981.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Huber(1.0).derivatives(np.zeros(3), np.array([0.5, 1.0, 10.0]), (0,))[0]
    array([0.125, 0.5  , 9.5  ])
    """

    title = "Huber"
    smooth = False

    def __init__(self, delta: float = 1.345):
        self.delta = positive("Huber: delta", delta)

    def __call__(self, eta: Array, y: Array) -> Array:
        r = jnp.abs(y - eta)
        return jnp.where(r <= self.delta, 0.5 * r**2, self.delta * r - 0.5 * self.delta**2)

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        delta = float(self.delta)
        r = eta - y
        inner = np.abs(r) <= delta
        return {
            0: lambda: np.where(inner, 0.5 * r**2, delta * np.abs(r) - 0.5 * delta**2),
            1: lambda: np.clip(r, -delta, delta),
            2: lambda: inner.astype(float),
            3: lambda: np.zeros_like(r),
        }


class PseudoHuber(AbstractRobust):
    """Pseudo-Huber loss, `δ² (√(1 + (r/δ)²) − 1)` with r = y − η: squared near zero, linear far
    away, and smooth.

    Parameters
    ----------
    delta : float, default: 1.345
        Residual δ about which the loss turns from squared to linear, in the units of y.

    Raises
    ------
    ValueError
        If δ is not positive.

    See Also
    --------
    Huber : Loss with a jump in its second derivative.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.PseudoHuber(1.0).derivatives(np.zeros(3), np.array([0.5, 1.0, 10.0]), (0,))[
    ...     0
    ... ].round(3)
    array([0.118, 0.414, 9.05 ])
    """

    title = "pseudo-Huber"

    def __init__(self, delta: float = 1.345):
        self.delta = positive("PseudoHuber: delta", delta)

    def __call__(self, eta: Array, y: Array) -> Array:
        return (jnp.sqrt(1 + ((y - eta) / self.delta) ** 2) - 1) * self.delta**2

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        delta = float(self.delta)
        t = (eta - y) / delta
        root = np.sqrt(1 + t**2)
        return {
            0: lambda: delta**2 * t**2 / (1 + root),
            1: lambda: delta * t / root,
            2: lambda: root**-3,
            3: lambda: -3 * t * root**-5 / delta,
        }

    @property
    def self_concordance(self) -> float | Number | None:
        return 1.5 / self.delta  # ℓ‴/ℓ″ = 3u / (δ (1 + u²)), largest at u = 1

    @property
    def fourth(self) -> float | Number | None:
        return 3 / self.delta**2  # ℓ⁗/ℓ″ = (12u² − 3) / (δ (1 + u²))², largest at u = 0


class Straight(AbstractLoss):
    """Linear loss `η` for every y: a term of F that has a slope only.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.Straight().derivatives(np.array([1.5]), np.zeros(1), (0, 1))
    (array([1.5]), array([1.]))
    """

    ceiling = 0.0
    self_concordance = 0.0
    fourth = 0.0

    def __call__(self, eta: Array, y: Array) -> Array:
        return eta

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        zero = lambda: np.zeros_like(eta)
        return {0: lambda: eta, 1: lambda: np.ones_like(eta), 2: zero, 3: zero}

    def peak(self, y: ndarray) -> ndarray | None:
        return np.zeros_like(y)


class SquaredHinge(AbstractLoss):
    """Squared hinge loss, `max(0, 1 − yη)²` of responses −1 and 1. Its second derivative jumps at
    the margin, yη = 1.

    See Also
    --------
    Hinge

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.losses.SquaredHinge().derivatives(np.array([0.0, 0.5, 2.0]), np.ones(3), (0,))[0]
    array([1.  , 0.25, 0.  ])
    """

    scale_name = "squared hinge"
    smooth = False
    ceiling = 2.0

    def __call__(self, eta: Array, y: Array) -> Array:
        return jnp.maximum(1 - y * eta, 0.0) ** 2

    def formulas(self, eta: ndarray, y: ndarray) -> Formulas:
        short = np.maximum(1 - y * eta, 0.0)
        return {
            0: lambda: short**2,
            1: lambda: -2 * y * short,
            2: lambda: 2.0 * (short > 0),
            3: lambda: np.zeros_like(short),
        }

    def check(self, y: ndarray) -> None:
        domain(y, np.abs(y) == 1, "squared_hinge", "−1 or 1")

    def peak(self, y: ndarray) -> ndarray | None:
        return -np.inf * y  # ℓ″ is two up to the margin, and zero beyond


class Custom(AbstractLoss):
    """Loss that a user gives as a JAX function. It has no domain, and its second derivative may
    jump.

    Parameters
    ----------
    function : callable
        JAX function `(linear_predictor, y) -> scalar`.
    mean : callable, optional
        Inverse link, a JAX function of the linear predictor that returns the mean of the response.
        Without it, predictions are of kind "link" alone.

    Examples
    --------
    >>> import leaveout as lo
    >>> loss = lo.losses.Custom(lambda eta, y: (y - eta) ** 2)
    >>> loss(1.0, 3.0)
    4.0
    """

    function: Callable[[Scalar, Scalar], Scalar]
    mean: Callable[[Arrays], Arrays] | None = None
    scale_name = ""
    smooth = False
    convex = False

    def __call__(self, eta: Array, y: Array) -> Array:
        return call_traced("GLM: loss", self.function, eta, y)

    @property
    def has_response(self) -> bool:
        return self.mean is not None

    def inverse_link(self, eta: Arrays) -> Arrays:
        if self.mean is None:
            raise TypeError(
                "GLM: a loss that is a function does not say what the response is; ask for kind='link', or give "
                "loss=lo.losses.Custom(function, mean=f), f the inverse link."
            )
        return call_traced("Custom: mean", self.mean, eta)


NAMED: dict[str, Callable[[], AbstractLoss]] = {
    "squared": Squared,
    "logistic": Binomial,
    "probit": lambda: Binomial("probit"),
    "cloglog": lambda: Binomial("cloglog"),
    "log_binomial": lambda: Binomial("log"),
    "multinomial": Multinomial,
    "poisson": Poisson,
    "gamma": Gamma,
    "inverse_gaussian": InverseGaussian,
    "tweedie": Tweedie,
    "quasi_poisson": QuasiPoisson,
    "quasi_binomial": QuasiBinomial,
    "huber": Huber,
    "pseudo_huber": PseudoHuber,
    "squared_hinge": SquaredHinge,
    "hinge": Hinge,
}
# losses with parameters of their own, of lo.Regression
SHARED: dict[str, Callable[[], AbstractSharedLoss]] = {
    "negative_binomial": NegativeBinomialDispersion,
    "beta": Beta,
    "gaussian": GaussianScale,
    "gamma": GammaShape,
    "huber_scale": HuberScale,
}


def name_among(word: str, names: Collection[str]) -> str:
    """Return the one of `names` that means the same distribution or loss as a word.

    The word itself, in the form of these names, if none does.
    """
    word = word.lower().replace("-", "_").replace(" ", "_")
    meanings = next((words for words in SYNONYMS if word in words), (word,))
    return next((name for name in names if name in meanings), word)


SYNONYMS = (  # words for one distribution, or for the loss of it
    ("squared", "gaussian", "normal", "squared_error", "mse", "ols", "least_squares", "linear"),
    ("logistic", "binomial", "bernoulli", "logit", "log_loss", "binary_crossentropy"),
    ("multinomial", "categorical", "softmax", "cross_entropy"),
    ("negative_binomial", "negativebinomial", "negbin", "nbinom2"),
    ("inverse_gaussian", "inversegaussian", "inverse.gaussian"),
    ("quasi_poisson", "quasipoisson"),
    ("quasi_binomial", "quasibinomial"),
    ("ordinal", "cumulative"),
    ("hinge", "hinge_loss"),
)


def resolve(loss: "str | AbstractLoss | Callable[..., Any]") -> AbstractLoss:
    """Make a loss from its name, an object of `losses`, or a JAX function `(linear_predictor, y) ->
    scalar`.
    """
    if isinstance(loss, AbstractSharedLoss):
        raise TypeError(
            f"GLM: {type(loss).__name__} has parameters of its own: use lo.Regression(X, y, loss)."
        )
    if isinstance(loss, AbstractLoss):
        return loss
    if isinstance(loss, str):
        name = name_among(loss, (*NAMED, *SHARED, "ordinal"))
        if name in NAMED:
            return NAMED[name]()
        if name in SHARED or name == "ordinal":
            raise ValueError(
                f'GLM: the loss "{name}" has parameters of its own: use lo.Regression(X, y, "{name}").'
            )
        if name == "cox":
            raise ValueError(
                "GLM: the Cox partial likelihood is not a sum over rows: use lo.Cox(X, time, event)."
            )
        raise ValueError(
            f"GLM: no loss is called {loss!r}; choose one of {', '.join(NAMED)}, or give a function."
        )
    if isinstance(loss, type) and issubclass(loss, AbstractLoss):
        return resolve(loss())
    if callable(loss) and not isinstance(loss, type):
        return Custom(loss)
    raise TypeError(
        f"GLM: loss must be a name, a loss of lo.losses or a JAX function; got {type(loss).__name__}."
    )


def resolve_shared(loss: str | AbstractSharedLoss) -> AbstractSharedLoss:
    """Make a loss with parameters of its own from its name or an object of `losses`."""
    if isinstance(loss, AbstractSharedLoss):
        return loss
    if not isinstance(loss, str):
        raise TypeError(
            f"Regression: loss must be a name, or a loss of lo.losses with parameters of its own such as "
            f"lo.losses.Beta(); got {type(loss).__name__}. Losses without are for lo.GLM."
        )
    name = name_among(loss, SHARED)
    if name not in SHARED:
        raise ValueError(
            f"Regression: no loss with parameters of its own is called {loss!r}; choose one of "
            f"{', '.join([*SHARED, 'ordinal'])}. Losses without are for lo.GLM."
        )
    return SHARED[name]()
