"""Losses of one observation given its linear predictor, `ℓ(η, y)`: negative log densities, or robust losses.

Derivatives come from autodiff, so the curvature is the *observed* one, whatever the link. Each loss also
knows its inverse link, the domain of y, and, where there is one, the constant M of `|ℓ‴| ≤ M ℓ″`.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr, xlog1py, xlogy
from jaxtyping import Array, Float, Scalar
from scipy import special

from .._objective import traced
from . import _shared
from . import links as links
from ._families import QUASI
from ._families import Gamma as Gamma
from ._families import InverseGaussian as InverseGaussian
from ._families import NegativeBinomial as NegativeBinomial
from ._families import Poisson as Poisson
from ._families import QuasiPoisson as QuasiPoisson
from ._families import Squared as Squared
from ._families import Tweedie as Tweedie
from ._loss import AbstractLoss as AbstractLoss
from ._loss import domain, positive
from ._shared import AbstractSharedLoss as AbstractSharedLoss
from ._shared import Beta as Beta
from ._shared import GammaShape as GammaShape
from ._shared import GaussianScale as GaussianScale
from ._shared import HuberScale as HuberScale
from ._shared import NegativeBinomialDispersion as NegativeBinomialDispersion
from ._shared import Ordinal as Ordinal


@jax.custom_jvp
def _softplus(x: Array) -> Array:
    """`log(1 + e^x)`, with the sigmoid as its derivative: one exponential, where autodiff would take three."""
    return jnp.logaddexp(x, 0.0)


@_softplus.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return _softplus(x), jax.nn.sigmoid(x) * t


def _log1mexp(x: Array) -> Array:
    """`log(1 − e^x)` for x < 0, without cancellation and with finite derivatives of every order."""
    near = x > -0.6931471805599453
    a = jnp.log(-jnp.expm1(jnp.where(near, x, -1.0)))
    return jnp.where(near, a, jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))))


LINKS: dict[str, tuple[Callable, Callable, float]] = {  # name: η ↦ (log μ, log(1 − μ)), η ↦ μ, an η inside the domain
    "logit": (lambda e: (-_softplus(-e), -_softplus(e)), jax.nn.sigmoid, 0.0),
    "probit": (lambda e: (log_ndtr(e), log_ndtr(-e)), ndtr, 0.0),
    "cloglog": (lambda e: (_log1mexp(-jnp.exp(e)), -jnp.exp(e)), lambda e: -jnp.expm1(-jnp.exp(e)), 0.0),
    "loglog": (lambda e: (-jnp.exp(-e), _log1mexp(-jnp.exp(-e))), lambda e: jnp.exp(-jnp.exp(-e)), 0.0),
    "cauchit": (
        lambda e: (jnp.log(jnp.arctan2(1.0, -e) / jnp.pi), jnp.log(jnp.arctan2(1.0, e) / jnp.pi)),
        lambda e: jnp.arctan2(1.0, -e) / jnp.pi,
        0.0,
    ),
    "log": (lambda e: (e, _log1mexp(jnp.where(e < 0, e, jnp.nan))), jnp.exp, -1.0),
    "log_complement": (lambda e: (_log1mexp(jnp.where(e < 0, e, jnp.nan)), e), lambda e: -jnp.expm1(e), -1.0),
    "identity": (lambda e: (jnp.log(e), jnp.log1p(-e)), lambda e: e, 0.5),
}


CLOGLOG_PEAK = 0.6208296638972954  # where ℓ″ = u (u eᵘ − eᵘ + 1) / (eᵘ − 1)², u = e^η, of y = 1 is largest


class Binomial(AbstractLoss):
    """`−y log μ − (1 − y) log(1 − μ)` for y in [0, 1], with the link "logit", "probit", "cloglog", "loglog", "cauchit",
    "log", "log_complement" (`η = log(1 − μ)`) or "identity".

    For a proportion of m trials give m as its `sample_weight` (the density then lacks its binomial coefficient).
    """

    link: str = eqx.field(static=True, default="logit")

    def __check_init__(self):
        if self.link not in LINKS:
            raise ValueError(f"Binomial: link must be one of {', '.join(LINKS)}; got {self.link!r}.")

    def __call__(self, eta, y):
        if self.link == "logit":
            return _softplus(eta) - y * eta
        success, failure = LINKS[self.link][0](eta)
        return -y * success - (1 - y) * failure

    def derivatives(self, eta, y, orders):
        if self.link == "logit":
            return _logistic(eta, y, orders)
        if self.link == "probit":
            return _probit(eta, y, orders)
        return super().derivatives(eta, y, orders)

    @property
    def ceiling(self):
        return {"logit": 0.25, "probit": 1.0}.get(self.link, np.inf)

    def peak(self, y):
        whole = np.all((y == 0) | (y == 1))
        if whole and self.link == "probit":  # ℓ″ falls from one to zero as the row is fitted better
            return np.where(y == 1, -np.inf, np.inf)
        return np.where(y == 1, CLOGLOG_PEAK, np.inf) if whole and self.link == "cloglog" else None

    def inverse_link(self, eta):
        return LINKS[self.link][1](eta)

    def check(self, y):
        domain(y, (y >= 0) & (y <= 1), {"logit": "logistic"}.get(self.link, f"binomial ({self.link})"), "in [0, 1]")

    def start(self, y, weight):
        mean = float(np.clip(np.average(y, weights=weight), 1e-3, 1 - 1e-3))
        known = {"logit": np.log(mean / (1 - mean)), "log": np.log(mean), "log_complement": np.log1p(-mean), "identity": mean}
        return float(known.get(self.link, 0.0))

    def variance(self, mean):
        return mean * (1 - mean)

    @property
    def inside(self):
        return LINKS[self.link][2]

    @property
    def self_concordance(self):
        return 1.0 if self.link == "logit" else None

    @property
    def convex(self):
        return self.link != "cauchit"


def _logistic(eta: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Derivatives of log(1 + e^η) − yη by μ and 1 − μ, neither subtracted from one; in place, as each pass over large arrays
    takes as long as the exponential."""
    if orders == (0,):
        value = np.abs(eta)
        np.log1p(np.exp(np.negative(value, out=value), out=value), out=value)
        value += np.maximum(eta, 0.0)
        return (np.subtract(value, y * eta, out=value),)
    odds = np.negative(eta)
    np.exp(np.clip(odds, -700.0, 700.0, out=odds), out=odds)
    mean = 1 + odds
    np.divide(1, mean, out=mean)
    rest = np.multiply(odds, mean, out=odds)

    def one(order):
        if order == 1:
            slope = (1 - y) * mean
            return np.subtract(slope, y * rest, out=slope)
        return mean * rest if order == 2 else mean * rest * (rest - mean)

    return tuple(one(order) if order else _logistic(eta, y, (0,))[0] for order in orders)


def _probit(eta: np.ndarray, y: np.ndarray, orders: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Derivatives of −y log Φ(η) − (1 − y) log Φ(−η), by m = φ/Φ and s = x + m: m′ = −ms."""

    def one(x, order):
        log_cdf = special.log_ndtr(x)
        if order == 0:
            return -log_cdf
        m = np.exp(-0.5 * x**2 - 0.5 * np.log(2 * np.pi) - log_cdf)
        s = np.where(x < -1e4, -1 / np.minimum(x, -1.0), x + m)  # else the difference of like numbers
        return {1: lambda: -m, 2: lambda: m * s, 3: lambda: m * (1 - m * s - s**2)}[order]()

    return tuple(y * one(eta, order) + (1 - y) * (-1.0) ** order * one(-eta, order) for order in orders)


class QuasiBinomial(AbstractLoss):
    """`(y log(y/μ) + (1 − y) log((1 − y)/(1 − μ))) / φ` for y in [0, 1]: the quasi-likelihood of variance φμ(1 − μ), half the
    binomial deviance over φ, with any link of `Binomial`. The fit is the binomial one.

    It states a mean and a variance, and is no −log density: compare it with models of the same φ only.
    """

    dispersion: Float[np.ndarray, ""]
    binomial: Binomial

    def __init__(self, dispersion: float = 1.0, link: str = "logit"):
        self.dispersion, self.binomial = positive("QuasiBinomial: dispersion", dispersion), Binomial(link)

    def __call__(self, eta, y):
        return (self.binomial(eta, y) + xlogy(y, y) + xlog1py(1 - y, -y)) / self.dispersion

    def derivatives(self, eta, y, orders):
        known = self.binomial.derivatives(eta, y, orders)
        constant = special.xlogy(y, y) + special.xlog1py(1 - y, -y)
        return tuple(
            (part + (order == 0) * constant) / float(self.dispersion) for part, order in zip(known, orders, strict=True)
        )

    @property
    def ceiling(self):
        return self.binomial.ceiling / float(self.dispersion)

    def peak(self, y):
        return self.binomial.peak(y)

    def inverse_link(self, eta):
        return self.binomial.inverse_link(eta)

    def check(self, y):
        self.binomial.check(y)

    def start(self, y, weight):
        return self.binomial.start(y, weight)

    def variance(self, mean):
        return self.dispersion * self.binomial.variance(mean)

    @property
    def dispersed(self):
        return True

    @property
    def inside(self):
        return self.binomial.inside

    @property
    def self_concordance(self):
        return self.binomial.self_concordance

    @property
    def convex(self):
        return self.binomial.convex

    @property
    def remark(self):
        return QUASI


class Huber(AbstractLoss):
    """`½ r²` for |r| ≤ δ, `δ |r| − ½ δ²` beyond, r = y − η; the scale δ is fixed. Its ℓ″ jumps at |r| = δ."""

    delta: Float[np.ndarray, ""]

    def __init__(self, delta: float = 1.345):
        self.delta = positive("Huber: delta", delta)

    def __call__(self, eta, y):
        r = jnp.abs(y - eta)
        return jnp.where(r <= self.delta, 0.5 * r**2, self.delta * r - 0.5 * self.delta**2)

    def derivatives(self, eta, y, orders):
        delta, r = float(self.delta), eta - y
        near = np.abs(r) <= delta
        known = {
            0: lambda: np.where(near, 0.5 * r**2, delta * np.abs(r) - 0.5 * delta**2),
            1: lambda: np.clip(r, -delta, delta),
            2: lambda: near.astype(float),
            3: lambda: np.zeros_like(r),
        }
        return tuple(known[order]() for order in orders)

    @property
    def ceiling(self):
        return 1.0

    def peak(self, y):
        return y

    def start(self, y, weight):
        return float(np.median(y))

    @property
    def smooth(self):
        return False


class PseudoHuber(AbstractLoss):
    """`δ² (√(1 + (r/δ)²) − 1)`, r = y − η: squared near zero, absolute far away, smooth between."""

    delta: Float[np.ndarray, ""]

    def __init__(self, delta: float = 1.345):
        self.delta = positive("PseudoHuber: delta", delta)

    def __call__(self, eta, y):
        return self.delta**2 * (jnp.sqrt(1 + ((y - eta) / self.delta) ** 2) - 1)

    def derivatives(self, eta, y, orders):
        delta = float(self.delta)
        t = (eta - y) / delta
        root = np.sqrt(1 + t**2)
        known = {
            0: lambda: delta**2 * t**2 / (1 + root),
            1: lambda: delta * t / root,
            2: lambda: root**-3,
            3: lambda: -3 * t * root**-5 / delta,
        }
        return tuple(known[order]() for order in orders)

    @property
    def ceiling(self):
        return 1.0

    def peak(self, y):
        return y

    def start(self, y, weight):
        return float(np.median(y))

    @property
    def self_concordance(self):
        return 1.5 / self.delta  # ℓ‴/ℓ″ = 3u / (δ (1 + u²)), largest at u = 1


class Multinomial(AbstractLoss):
    """`log Σ_k e^{η_k} − η_y`: one linear predictor a class, y the class's number. A common shift of all η is flat."""

    def __call__(self, eta, y):
        return jax.nn.logsumexp(eta) - eta[y.astype(int)]

    def inverse_link(self, eta):
        return jax.nn.softmax(eta, axis=-1)

    def derivatives(self, eta, y, orders):
        """ℓ, p − e_y and diag(p) − p pᵀ; what is left of one beside a p near it is summed, never subtracted."""
        hot = np.asarray(y)[..., None] == np.arange(eta.shape[-1])
        top = eta.max(-1, keepdims=True)
        e = np.exp(eta - top)
        total, others = e.sum(-1, keepdims=True), np.where(hot, 0.0, e).sum(-1, keepdims=True)
        own = np.where(hot, eta - top, 0.0).sum(-1, keepdims=True)
        known = {
            0: lambda: np.where(own == 0, np.log1p(others), np.log(total) - own)[..., 0],
            1: lambda: np.where(hot, -others, e) / total,
            2: lambda: _covariance(e / total, e @ (1 - np.eye(e.shape[-1])) / total),
        }
        return tuple(known[order]() for order in orders)

    def roots(self, eta):
        """diag(√p) − p √pᵀ."""
        e = np.exp(eta - eta.max(-1, keepdims=True))
        total = e.sum(-1, keepdims=True)
        p, k = e / total, np.arange(e.shape[-1])
        root = -p[..., :, None] * np.sqrt(p)[..., None, :]
        root[..., k, k] = np.sqrt(p) * (e @ (1 - np.eye(len(k))) / total)
        return root

    def ratios(self, eta, at):
        """Of the probabilities: vᵀ∇²ℓ v = min over m of Σ_k p_k (v_k − m)²."""
        change = special.log_softmax(eta, axis=-1) - special.log_softmax(at, axis=-1)
        return np.exp(change.min(-1)), np.exp(np.minimum(change.max(-1), 700.0))

    def within(self, eta, y, spread):
        """ℓ(η + s) − ℓ(η) = log Σ_k p_k e^{s_k − s_y} between log(p_y + (1 − p_y) e^{∓spread})."""
        hot = np.asarray(y)[..., None] == np.arange(eta.shape[-1])
        other = np.where(hot, 0.0, special.softmax(eta, axis=-1)).sum(-1)
        near = np.minimum(spread, 50.0)
        rise = np.log1p(other * np.expm1(near)) + (spread - near)
        with np.errstate(divide="ignore"):
            return np.minimum(spread, -np.log1p(np.maximum(other * np.expm1(-spread), -1.0))), rise

    @property
    def self_concordance(self):
        return 1.0  # |E[(s − s̄)(v − v̄)²]| ≤ (max s − min s) Var v


def _covariance(p: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """diag(p) − p pᵀ, `rest` being 1 − p."""
    out, k = -p[..., :, None] * p[..., None, :], np.arange(p.shape[-1])
    out[..., k, k] = p * rest
    return out


class Custom(AbstractLoss):
    """A user's JAX function `(linear_predictor, y) -> scalar`. No link, no domain, and nothing known of its kinks."""

    function: Callable[[Scalar, Scalar], Scalar]

    def __call__(self, eta, y):
        return traced("GLM: loss", self.function, eta, y)

    @property
    def smooth(self):
        return False

    @property
    def convex(self):
        return False


SHARED = _shared.NAMED  # losses with parameters of their own, of lo.Regression
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
}

OTHERS = {
    name: f'the loss "{name}" has parameters of its own: use lo.Regression(X, y, "{name}")'
    for name in ("negative_binomial", "beta", "ordinal", "gaussian", "huber_scale")
} | {"cox": "the Cox partial likelihood is not a sum over rows: use lo.Cox(X, time, event)"}


def resolve(loss: "str | AbstractLoss | Callable") -> AbstractLoss:
    """A loss from its name, from an object of `losses`, or from any JAX function `(linear_predictor, y) -> scalar`."""
    if isinstance(loss, AbstractLoss):
        return loss
    if isinstance(loss, str):
        name = loss.lower().replace("-", "_").replace(" ", "_")
        if name in OTHERS:
            raise ValueError(f"GLM: {OTHERS[name]}.")
        if name not in NAMED:
            raise ValueError(f"GLM: no loss is called {loss!r}; choose one of {', '.join(NAMED)}, or give a function.")
        return NAMED[name]()
    if isinstance(loss, type) and issubclass(loss, AbstractLoss):
        return loss()
    if isinstance(loss, AbstractSharedLoss):
        raise TypeError(f"GLM: {type(loss).__name__} has parameters of its own: use lo.Regression(X, y, loss).")
    if callable(loss):
        return Custom(loss)
    raise TypeError(f"GLM: loss must be a name, a loss of lo.losses or a JAX function; got {type(loss).__name__}.")
