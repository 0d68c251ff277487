"""Sums of Cox's partial likelihood over risk sets, and Efron's correction for ties."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float

from ...objectives.objective import Arrays


class Sums(NamedTuple):
    """Sums of the partial likelihood.

    Units have η and r e^−shift. Times of events have the weight of those who die, and the sums of r at risk and of the dying.
    """

    eta: Float[Array, " units"]
    shift: Float[Array, ""]
    risk: Float[Array, " units"]
    deaths: Float[Array, " times"]
    at_risk: Float[Array, " times"]
    dying: Float[Array, " times"]


def running(values: Float[Array, " places"], opens: Bool[Arrays, " places"]) -> Float[Array, " places"]:
    """Compute running sums that restart with each stratum, as differences of sums over others would cancel."""

    def add(total, x):
        total = jnp.where(x[1], x[0], total + x[0])
        return total, total

    return jax.lax.scan(add, 0.0, (values, opens), unroll=4)[1]


def log_rest(share: Array) -> Array:
    """Compute `log(1 − share)`."""
    rest = 1e-8  # share of a risk set below which differences of sums lose the rest
    return jnp.log1p(-jnp.where(share < 1 - rest, share, jnp.nan))


def efron(m: Array, at_risk: Array, dying: Array) -> Array:
    """Compute `Σ_{l<m} log(1 − l ρ/m)`, ρ the share of the risk that dies, for any m > 0."""
    z = m * at_risk / dying  # m/ρ, m or more
    stirling_from = 20.0  # m/ρ − m from which log Γ is expanded, as differences of large values cancel
    far = z - m > stirling_from
    near, z = jnp.where(far, 2 * m, z), jnp.where(far, z, m + stirling_from)
    by_gamma = m * jnp.log(1 / near) + gammaln(near + 1) - gammaln(near - m + 1)
    h = m / 2
    a = z + 0.5 - h  # log Γ's ratio is the integral of digamma from a − h to a + h, about ½
    rest = lambda x: -1 / (24 * x) + 7 / (2880 * x**3) - 31 / (40320 * x**5) + 127 / (215040 * x**7)
    x = h / a
    by_series = m * jnp.log1p((1 - m) / (2 * z)) + 2 * a * (jnp.arctanh(x) - x) + h * jnp.log1p(-(x**2))
    return jnp.where(far, by_series + rest(a + h) - rest(a - h), by_gamma)
