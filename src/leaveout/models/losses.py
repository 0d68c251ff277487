"""Losses of one observation given its linear predictor, `ℓ(η, y)`: negative log densities, or robust losses.

Derivatives come from autodiff, so the curvature is the *observed* one, whatever the link. Each loss also
knows its inverse link, the domain of y, and, where there is one, the constant M of `|ℓ‴| ≤ M ℓ″`.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr, ndtr
from jaxtyping import Array, Float, Scalar


class AbstractLoss(eqx.Module):
    """A loss `ℓ(η, y)` of one observation; `__call__` is written for scalars, by JAX."""

    @abc.abstractmethod
    def __call__(self, eta: Scalar, y: Scalar) -> Scalar:
        """The loss of one observation."""

    def inverse_link(self, eta: Array) -> Array:
        """The prediction on the scale of the response."""
        return eta

    def check(self, y: np.ndarray) -> None:
        """Raise where y lies outside the domain."""

    def start(self, y: np.ndarray, weight: np.ndarray) -> float:
        """An intercept to start from, inside the domain."""
        return 0.0

    @property
    def self_concordance(self) -> float | None:
        """M with `|ℓ‴| ≤ M ℓ″` for all η; None where there is none, or the loss has kinks."""
        return None

    @property
    def smooth(self) -> bool:
        """Is ℓ twice continuously differentiable?"""
        return True

    @property
    def convex(self) -> bool:
        return True


def _domain(y: np.ndarray, inside: np.ndarray, loss: str, domain: str) -> None:
    if not inside.all():
        worst = y[~inside]
        raise ValueError(f"GLM: the {loss} loss needs y {domain}; got {worst.size} other values, such as {worst.flat[0]:g}.")


@jax.custom_jvp
def _softplus(x: Array) -> Array:
    """`log(1 + e^x)`, with the sigmoid as its derivative: one exponential, where autodiff would take three."""
    return jnp.logaddexp(x, 0.0)


@_softplus.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return _softplus(x), jax.nn.sigmoid(x) * t


class Squared(AbstractLoss):
    """`½ (y − η)²`."""

    def __call__(self, eta, y):
        return 0.5 * (y - eta) ** 2

    def start(self, y, weight):
        return float(np.average(y, weights=weight))

    @property
    def self_concordance(self):
        return 0.0


def _log1mexp(x: Array) -> Array:
    """`log(1 − e^x)` for x < 0, without cancellation and with finite derivatives of every order."""
    near = x > -0.6931471805599453
    a = jnp.log(-jnp.expm1(jnp.where(near, x, -1.0)))
    return jnp.where(near, a, jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x))))


class Binomial(AbstractLoss):
    """`−y log μ − (1 − y) log(1 − μ)` for y in [0, 1], with the link "logit", "probit", "cloglog" or "log".

    For a proportion of m trials give m as its `sample_weight` (the density then lacks its binomial coefficient).
    """

    link: str = eqx.field(static=True, default="logit")

    def __check_init__(self):
        if self.link not in ("logit", "probit", "cloglog", "log"):
            raise ValueError(f"Binomial: link must be logit, probit, cloglog or log; got {self.link!r}.")

    def __call__(self, eta, y):
        if self.link == "logit":
            return _softplus(eta) - y * eta
        success, failure = {
            "probit": lambda: (log_ndtr(eta), log_ndtr(-eta)),
            "cloglog": lambda: (_log1mexp(-jnp.exp(eta)), -jnp.exp(eta)),
            "log": lambda: (eta, _log1mexp(jnp.where(eta < 0, eta, jnp.nan))),
        }[self.link]()
        return -y * success - (1 - y) * failure

    def inverse_link(self, eta):
        links = {
            "logit": jax.nn.sigmoid,
            "probit": ndtr,
            "cloglog": lambda e: -jnp.expm1(-jnp.exp(e)),
            "log": jnp.exp,
        }
        return links[self.link](eta)

    def check(self, y):
        _domain(y, (y >= 0) & (y <= 1), {"logit": "logistic"}.get(self.link, f"binomial ({self.link})"), "in [0, 1]")

    def start(self, y, weight):
        mean = float(np.clip(np.average(y, weights=weight), 1e-3, 1 - 1e-3))
        if self.link == "logit":
            return float(np.log(mean / (1 - mean)))
        if self.link == "log":
            return float(np.log(mean))
        return 0.0

    @property
    def self_concordance(self):
        return 1.0 if self.link == "logit" else None


class Poisson(AbstractLoss):
    """`e^η − y η + log y!`, the Poisson density with a log link."""

    def __call__(self, eta, y):
        return jnp.exp(eta) - y * eta + gammaln(y + 1.0)

    def inverse_link(self, eta):
        return jnp.exp(eta)

    def check(self, y):
        _domain(y, y >= 0, "Poisson", "not negative")

    def start(self, y, weight):
        return float(np.log(max(np.average(y, weights=weight), 1e-3)))

    @property
    def self_concordance(self):
        return 1.0


class Gamma(AbstractLoss):
    """`ν (η + y e^−η) − (ν − 1) log y − ν log ν + log Γ(ν)`: the gamma density with a log link and shape ν."""

    shape: Float[np.ndarray, ""]

    def __init__(self, shape: float = 1.0):
        if not (np.isfinite(shape) and shape > 0):
            raise ValueError(f"Gamma: shape must be positive and finite; got {shape}.")
        self.shape = np.asarray(shape, np.float64)

    def __call__(self, eta, y):
        nu = self.shape
        return nu * (eta + y * jnp.exp(-eta)) - (nu - 1) * jnp.log(y) - nu * jnp.log(nu) + gammaln(nu)

    def inverse_link(self, eta):
        return jnp.exp(eta)

    def check(self, y):
        _domain(y, y > 0, "gamma", "positive")

    def start(self, y, weight):
        return float(np.log(np.average(y, weights=weight)))

    @property
    def self_concordance(self):
        return 1.0


class Huber(AbstractLoss):
    """`½ r²` for |r| ≤ δ, `δ |r| − ½ δ²` beyond, r = y − η; the scale δ is fixed. Its ℓ″ jumps at |r| = δ."""

    delta: Float[np.ndarray, ""]

    def __init__(self, delta: float = 1.345):
        self.delta = _positive("Huber: delta", delta)

    def __call__(self, eta, y):
        r = jnp.abs(y - eta)
        return jnp.where(r <= self.delta, 0.5 * r**2, self.delta * r - 0.5 * self.delta**2)

    def start(self, y, weight):
        return float(np.median(y))

    @property
    def smooth(self):
        return False


class PseudoHuber(AbstractLoss):
    """`δ² (√(1 + (r/δ)²) − 1)`, r = y − η: squared near zero, absolute far away, smooth between."""

    delta: Float[np.ndarray, ""]

    def __init__(self, delta: float = 1.345):
        self.delta = _positive("PseudoHuber: delta", delta)

    def __call__(self, eta, y):
        return self.delta**2 * (jnp.sqrt(1 + ((y - eta) / self.delta) ** 2) - 1)

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

    @property
    def self_concordance(self):
        return 2.0  # |∇³ℓ[u, v, v]| ≤ (max u − min u) ∇²ℓ[v, v] ≤ 2 max|u| ∇²ℓ[v, v]


class Custom(AbstractLoss):
    """A user's JAX function `(linear_predictor, y) -> scalar`. No link, no domain, and nothing known of its kinks."""

    function: Callable[[Scalar, Scalar], Scalar]

    def __call__(self, eta, y):
        return self.function(eta, y)

    @property
    def smooth(self):
        return False

    @property
    def convex(self):
        return False


def _positive(name: str, value: float) -> np.ndarray:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite; got {value}.")
    return np.asarray(value, np.float64)


NAMED: dict[str, Callable[[], AbstractLoss]] = {
    "squared": Squared,
    "logistic": Binomial,
    "probit": lambda: Binomial("probit"),
    "cloglog": lambda: Binomial("cloglog"),
    "log_binomial": lambda: Binomial("log"),
    "multinomial": Multinomial,
    "poisson": Poisson,
    "gamma": Gamma,
    "huber": Huber,
    "pseudo_huber": PseudoHuber,
}


def resolve(loss: "str | AbstractLoss | Callable") -> AbstractLoss:
    """A loss from its name, from an object of `losses`, or from any JAX function `(linear_predictor, y) -> scalar`."""
    if isinstance(loss, AbstractLoss):
        return loss
    if isinstance(loss, str):
        name = loss.lower().replace("-", "_").replace(" ", "_")
        if name not in NAMED:
            raise ValueError(f"GLM: no loss is called {loss!r}; choose one of {', '.join(NAMED)}, or give a function.")
        return NAMED[name]()
    if isinstance(loss, type) and issubclass(loss, AbstractLoss):
        return loss()
    if callable(loss):
        return Custom(loss)
    raise TypeError(f"GLM: loss must be a name, a loss of lo.losses or a JAX function; got {type(loss).__name__}.")
