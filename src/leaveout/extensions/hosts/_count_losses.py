"""Losses of single units of statsmodels' zero-inflated, hurdle and conditional models, at its own
parameters, in JAX.

    zero-inflated   −log(π + (1 − π) f(0)) where y = 0,   −log(1 − π) − log f(y) elsewhere,
    π = F(zᵀγ)
    hurdle          −log g(0) where y = 0,   −log(1 − g(0)) − log f(y) + log(1 − f(0)) elsewhere
    conditional     −Σ y η + log Σ over subsets of Σ y members of exp(Σ of their η), of a group

f and g are Poisson or negative binomial, of size μ^{2−p}/α (`power` is 2 − p), and F is logistic or
normal.
"""

import numpy as np

from ... import Separable, losses
from ...developer import Array, ArrayList, jax, jnp, jspecial, static

NOTHING = -1e30  # logarithm of what is not there, whose derivatives are zero
NamedParts = dict[str, Array]  # parameters, or what is known of a row, by name


class HostLoss(Separable):
    """`Separable` model of a host, with a remark to print with results."""

    remark: str = static()

    def __init__(self, unit_loss, data, theta0, remark: str):
        super().__init__(unit_loss, data, theta0=theta0)
        vars(self)["remark"] = remark

    @property
    def note(self) -> str:
        return self.remark


def zero_inflated(theta: NamedParts, row: NamedParts) -> Array:
    """Compute the loss of a row; `probit` tells F."""
    eta_inflated = row["z"] @ theta["inflate"]
    inflated, not_inflated = (
        jnp.where(
            row["probit"] > 0,
            jspecial.log_ndtr(sign * eta_inflated),
            -jax.nn.softplus(-sign * eta_inflated),
        )
        for sign in (1.0, -1.0)
    )
    log_density = not_inflated + _log_density(
        theta, "", row["x"] @ theta["coef"] + row["offset"], row["power"], row["y"]
    )
    return -jnp.where(row["y"] == 0, jnp.logaddexp(inflated, log_density), log_density)


def hurdle(theta: NamedParts, row: NamedParts) -> Array:
    """Compute the loss of a row."""
    y = row["y"]
    count = jnp.maximum(row["y"], 1.0)
    zero = _log_density(
        theta, "zero_", row["x"] @ theta["zero_coef"], row["zero_power"], jnp.zeros_like(y)
    )
    eta = row["x"] @ theta["coef"]
    positive = _log_density(theta, "", eta, row["power"], count)
    log_positive = _log_rest(_log_density(theta, "", eta, row["power"], jnp.zeros_like(y)))
    return -jnp.where(y == 0, zero, _log_rest(zero) + positive - log_positive)


def conditional(theta: Array, group: NamedParts) -> Array:
    """Compute the loss of a group, whose members are padded to one number.

    `chosen[k]` is one where k of them are cases.
    """
    eta = jnp.where(group["member"] > 0, group["x"] @ theta + group["offset"], NOTHING)

    # logarithms of elementary symmetric polynomials
    def add(total: Array, member: Array) -> tuple[Array, None]:
        extended = jnp.maximum(
            jnp.concatenate([jnp.full(1, NOTHING), total[:-1] + member]), NOTHING
        )
        return jnp.logaddexp(total, extended), None

    first = jnp.where(jnp.arange(group["chosen"].shape[0]) == 0, 0.0, NOTHING)
    total, _ = jax.lax.scan(add, first, eta)
    return total @ group["chosen"] - jnp.where(group["member"] > 0, eta, 0.0) @ group["y"]


def _log_density(theta: NamedParts, part: str, eta: Array, power: Array, y: Array) -> Array:
    if f"{part}dispersion" not in theta:
        return -losses.Poisson()(eta, y)
    tau = jnp.log(theta[f"{part}dispersion"]) - power * eta
    return -losses.NegativeBinomialDispersion()(eta, tau[None], y)


def _log_rest(value: Array) -> Array:
    """Compute log(1 − e^value)."""
    return jnp.log(-jnp.expm1(value))


def pad_groups(parts: ArrayList, size: int) -> np.ndarray:
    """Stack arrays of the members of groups, padded with zeros to one number of members."""
    return np.stack(
        [np.pad(part, [(0, size - len(part)), *[(0, 0)] * (part.ndim - 1)]) for part in parts]
    )
