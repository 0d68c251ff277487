"""Sums of Cox's partial likelihood over risk sets, and Efron's correction for ties, in NumPy."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.linalg.lapack import dtbtrs
from scipy.special import gammaln, polygamma, psi

from ..._runtime import NumpyArray
from ...linalg import AnyShape, RefitUnits

RefitTimes = Float[NumpyArray, "refits times"]
UnitSums = Float[NumpyArray, "sums units"]
TimeSums = Float[NumpyArray, "sums times"]


class Sums(NamedTuple):
    """Sums of the partial likelihood of a batch of refits.

    Units have η, the weight of their cases and r e^−shift. Times of events have the number of those
    who die, their weight, and the sums of r at risk and of the dying, which are one where all who
    die are left out.
    """

    eta: RefitUnits
    shift: Float[NumpyArray, "refits 1"]
    cases: RefitUnits
    risk: RefitUnits
    number: RefitTimes
    deaths: RefitTimes
    at_risk: RefitTimes
    dying: RefitTimes

    @property
    def mean(self) -> RefitTimes:
        """Mean weight of those who die at each time."""
        return np.divide(
            self.deaths, self.number, out=np.zeros_like(self.deaths), where=self.number > 0
        )


class Ranges:
    """Sums over units whose range holds a time, and over the times of each range, without
    differences.

    Every range is made of nodes of a binary tree over the times, two of a level at most.
    """

    def __init__(self, ranges: Int[NumpyArray, "2 units"], times: int):
        # the leaves of the tree are the nodes from `times` on, and half of a number is above it
        low, high = ranges + times
        high = np.maximum(low, high)
        everyone = np.arange(ranges.shape[1])
        nodes = []
        units = []
        while (low < high).any():
            for node, mask in (
                (low, (low < high) & (low % 2 == 1)),
                (high - 1, (low < high) & (high % 2 == 1)),
            ):
                nodes.append(node[mask])
                units.append(everyone[mask])
            low = (low + 1) // 2
            high //= 2
        place = np.concatenate(nodes), np.concatenate(units)
        self.parts = sparse.csr_array(
            (np.ones(len(place[0])), place), shape=(2 * times, ranges.shape[1])
        )
        above = times + np.arange(times)
        levels = [above >> k for k in range(int(above[-1]).bit_length())]
        time = np.tile(np.arange(times), len(levels))
        node = np.concatenate(levels)
        self.above = sparse.csr_array((np.ones(len(time)), (time, node)), shape=(times, 2 * times))

    def sums(self, values: UnitSums) -> TimeSums:
        """Compute sums over the units whose range holds each time."""
        return (self.above @ (self.parts @ values.T)).T

    def sums_over_times(self, values: TimeSums) -> UnitSums:
        """Compute sums over the times of each unit's range."""
        return (self.parts.T @ (self.above.T @ values.T)).T


def running(
    values: Float[NumpyArray, "*sums places"],
    opens: Bool[NumpyArray, " places"],
    reverse: bool = False,
) -> Float[NumpyArray, "*sums places"]:
    """Compute running sums that restart with each stratum, as differences of sums over others would
    cancel.

    With `reverse` they run from the end of each stratum to its beginning.
    """
    band = np.ones((2, len(opens)))  # of the matrix that takes running sums back to values
    band[1, :-1] = np.where(opens[1:], 0.0, -1.0)
    solution, _ = dtbtrs(
        band, values.reshape(-1, len(opens)).T, uplo="L", trans="T" if reverse else "N", diag="U"
    )
    return solution.T.reshape(values.shape)


def log_complement(share: AnyShape) -> AnyShape:
    """Compute `log(1 − share)`."""
    threshold = 1e-8  # share of a risk set below which differences of sums lose the rest
    return np.log1p(-np.where(share < 1 - threshold, share, np.nan))


def efron(m: AnyShape, z: AnyShape) -> Float[NumpyArray, "4 ..."]:
    """Compute `E = Σ_{l<m} log(1 − l/z)` for any m > 0, and its derivatives E_z, E_zz and E_zm; z =
    m/ρ is m or more.

    ρ is the share of the risk that dies.
    """
    # m/ρ − m from which log Γ is expanded, as differences of large values cancel
    stirling_from = 20.0
    large = z - m > stirling_from
    terms = np.empty((4, *np.shape(m)))
    terms[:, large] = _by_series(m[large], z[large])
    terms[:, ~large] = _by_gamma(m[~large], z[~large])
    return terms


def _by_gamma(m: NumpyArray, z: NumpyArray) -> NumpyArray:
    difference = z - m + 1
    trigamma = polygamma(1, z - m + 1)
    value = gammaln(z + 1) - gammaln(difference) - m * np.log(z)
    return np.array(
        [
            value,
            psi(z + 1) - psi(difference) - m / z,
            polygamma(1, z + 1) - trigamma + m / z**2,
            trigamma - 1 / z,
        ]
    )


def _by_series(m: NumpyArray, z: NumpyArray) -> NumpyArray:
    """Log Γ's ratio is the integral of digamma at y + ½, which is log y and a rest, from a − h to
    a + h.
    """
    h = m / 2
    a = z + 0.5 - m / 2
    low = a - h
    high = a + h
    x = h / a
    remainder = lambda y: (
        -1 / (24 * y) + 7 / (2880 * y**3) - 31 / (40320 * y**5) + 127 / (215040 * y**7)
    )
    slope = lambda y: 1 / (24 * y**2) - 7 / (960 * y**4) + 31 / (8064 * y**6) - 127 / (30720 * y**8)
    curvature = lambda y: (
        -1 / (12 * y**3) + 7 / (240 * y**5) - 31 / (1344 * y**7) + 127 / (3840 * y**9)
    )
    value = (
        m * np.log1p((1 - m) / (2 * z))
        + 2 * a * (np.arctanh(x) - x)
        + h * np.log1p(-(x**2))
        + remainder(high)
        - remainder(low)
    )
    first = np.log1p(m / low) - m / z + slope(high) - slope(low)
    second = m / z**2 - m / (low * high) + curvature(high) - curvature(low)
    return np.array([value, first, second, (m - 0.5) / (z * low) + curvature(low)])
