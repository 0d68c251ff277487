"""Cox's partial likelihood, and without each of its units, by passes that do not grow with the number of these.

A unit takes r = e^η out of the risk sets up to its own time, so without it the log partial likelihood of all falls by

    s_o = d_o (V − V' − η_o) − Σ_rows log(1 − r_o / A_row)

where V and V' are what the deaths at the unit's own time add with and without it, and every death of another time at which it
was at risk is a row: A = S − (l/m) D for the l-th of m tied ones, l = 0 by Breslow. In order of time A falls. While it is above
64 r logarithms are expanded, Σ_k r^k/k Σ A^{−k}, the inner sums being running ones of all rows. After that they are taken pair
by pair: those at risk add up to A, so no row has more than 64 pairs.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int

from ..._runtime.jax import Module
from ...objectives.objective import Arrays, aligned

if TYPE_CHECKING:
    from .cox import Cox

STIRLING_FROM = 20.0  # m/ρ − m from which log Γ is expanded: differences of large ones cancel
LOG_EXPANSION_BOUND = 1 / 64  # r/A up to which logarithms are expanded, when that is chosen; it may double as θ moves
TERMS = 9  # of them: what is left out is 1e-16 of r/A, and 1e-13 where that has doubled
REST = 1e-8  # of a risk set: if a unit leaves less of it, differences of sums do not say what


class Sums(NamedTuple):
    """Sums of the partial likelihood.

    Of units: η and r e^−shift. Of times of events: the weight of those who die, and the r of those at risk and of the dying.
    """

    eta: Float[Array, " units"]
    shift: Float[Array, ""]
    risk: Float[Array, " units"]
    deaths: Float[Array, " times"]
    at_risk: Float[Array, " times"]
    dying: Float[Array, " times"]


class UnitScores(Module):
    """s_o of some units, at any θ near the one of `alone`; NaN where that is too far."""

    cox: "Cox"
    time: Int[Arrays, " rows"]
    share: Float[Arrays, " rows"]  # l/m
    opens: Bool[Arrays, " rows"]  # a stratum
    last: Int[Arrays, " units"]  # row that is expanded; −1 where none is
    unit: Int[Arrays, " pairs"]
    row: Int[Arrays, " pairs"]
    tied: Int[Arrays, " tied"]  # units that die with others
    units: Int[Arrays, " folds"]

    def __call__(self, theta: Array) -> tuple[None, Float[Array, " folds"]]:
        found = self.cox.sums(theta, jnp.ones(self.cox.num_units))
        at_risk = jnp.append(found.at_risk, 1.0)[self.cox.group]
        own = jnp.where(self.cox.event == 1, jnp.log(at_risk) + found.shift - found.eta, 0.0)
        at = found.at_risk[self.time] - self.share * found.dying[self.time]
        joint = (own + self._expanded(found.risk, at)).at[self.tied].add(self._tied(found))
        return None, joint.at[self.unit].add(-_log_rest(found.risk[self.unit] / at[self.row]))[self.units]

    def _tied(self, found: Sums) -> Float[Array, " tied"]:
        """V − V' − log S: what of it is due to the others that die at the same time."""
        time, risk = self.cox.group[self.tied], found.risk[self.tied]
        m, at_risk, dying = found.deaths[time], found.at_risk[time], found.dying[time]
        others = -(m - 1) * _log_rest(risk / at_risk)
        if self.cox.ties == "breslow":
            return others
        return others + efron(m, at_risk, dying) - efron(m - 1, at_risk - risk, dying - risk)

    def _expanded(self, risk: Float[Array, " units"], at: Float[Array, " rows"]) -> Float[Array, " units"]:
        """−Σ log(1 − r/A) over the rows up to the last that is expanded."""

        def term(found, k):
            power, inverse, total = found
            power, inverse = power * risk, inverse / at
            return (power, inverse, total + power * running(inverse, self.opens)[self.last] / k), None

        start = jnp.ones_like(risk), jnp.ones_like(at), jnp.zeros_like(risk)
        total = jax.lax.scan(term, start, jnp.arange(1.0, TERMS + 1))[0][2]
        near = risk < 2 * LOG_EXPANSION_BOUND * at[self.last]
        return jnp.where(self.last < 0, 0.0, jnp.where(near, total, jnp.nan))


def running(values: Float[Array, " places"], opens: Bool[Arrays, " places"]) -> Float[Array, " places"]:
    """Running sums that begin anew where a stratum opens: differences of sums over others would cancel."""

    def add(total, x):
        total = jnp.where(x[1], x[0], total + x[0])
        return total, total

    return jax.lax.scan(add, 0.0, (values, opens), unroll=4)[1]


def _log_rest(share: Array) -> Array:
    """`log(1 − share)`."""
    return jnp.log1p(-jnp.where(share < 1 - REST, share, jnp.nan))


def efron(m: Array, at_risk: Array, dying: Array) -> Array:
    """`Σ_{l<m} log(1 − l ρ/m)`, ρ the share of the risk that dies, for any m > 0."""
    z = m * at_risk / dying  # m/ρ, m or more
    far = z - m > STIRLING_FROM
    near, z = jnp.where(far, 2 * m, z), jnp.where(far, z, m + STIRLING_FROM)
    by_gamma = m * jnp.log(1 / near) + gammaln(near + 1) - gammaln(near - m + 1)
    h = m / 2
    a = z + 0.5 - h  # log Γ's ratio is the integral of digamma from a − h to a + h, about ½
    rest = lambda x: -1 / (24 * x) + 7 / (2880 * x**3) - 31 / (40320 * x**5) + 127 / (215040 * x**7)
    x = h / a
    by_series = m * jnp.log1p((1 - m) / (2 * z)) + 2 * a * (jnp.arctanh(x) - x) + h * jnp.log1p(-(x**2))
    return jnp.where(far, by_series + rest(a + h) - rest(a - h), by_gamma)


def alone(cox: "Cox", sums: Sums, units: Int[np.ndarray, " folds"]) -> UnitScores:
    """The rows of a model, from the last stratum to the first, and which of them are expanded for each unit, at some θ."""
    count, place = np.asarray(sums.deaths).astype(int), np.argsort(cox.order)
    time = np.repeat(np.arange(len(count))[::-1], count[::-1])
    begin = np.append(np.cumsum(count[::-1])[::-1] - count, 0)  # the first row of each time
    nth = np.arange(len(time)) - begin[time]
    share = nth / count[time] if cox.ties == "efron" else np.zeros(len(time))
    opens = np.append(True, np.diff(cox.first[time]) != 0)
    at, risk = np.asarray(sums.at_risk)[time] - share * np.asarray(sums.dying)[time], np.asarray(sums.risk)
    latest = np.searchsorted(cox.last, place, side="right")  # of the times at which a unit is at risk
    seen = np.append(cox.first, len(place))[latest] <= place
    start = np.where(seen, begin[np.searchsorted(cox.first, np.append(cox.first, 0)[latest], side="right") - 1], 0)
    stop = np.where(seen, begin[latest] + np.where(cox.event == 1, 0, np.append(count, 0)[latest]), 0)
    low, high = start.copy(), stop.copy()
    while (low < high).any():
        middle = (low + high) // 2
        above = (low < high) & (risk <= LOG_EXPANSION_BOUND * at[np.minimum(middle, len(at) - 1)])
        low, high = np.where(above, middle + 1, low), np.where(above, high, np.minimum(middle, high))
    pairs = stop - low
    unit = np.repeat(np.arange(len(pairs)), pairs)
    row = np.arange(len(unit)) - np.repeat(np.cumsum(pairs) - pairs - low, pairs)
    tied = np.flatnonzero((cox.event == 1) & (np.append(count, 0)[cox.group] > 1))
    last = np.where(low > start, low - 1, -1)
    whole = (time, share, opens, last, unit, row, tied, units)
    return UnitScores(cox, *map(aligned, whole))
