"""Intervals for the mean held-out loss on new data, according to the independent units.

naive       l̄ ± z s/√n, rows independent (Bayle, Bayle, Janson & Mackey, 2020)
corrected   l̄ ± t_{J−1} s √(1/J + n₂/n₁), s the SD of J random folds' means (Nadeau & Bengio, 2003)
clusters    l̄ ± t_{G−1} × the standard error over G groups
blocks
of a series l̄ ± t_ν √(Λ/n), Λ = Σ_{j ≤ ν} (√(2/n) Σ_i (l_i − l̄) cos(π j (i − ½)/n))² / ν, ν
about 0.4 n^{2/3}, whose
            critical values are those of fixed-b asymptotics (Lazarus, Lewis, Stock & Watson, 2018);
            of blocks of neighbours as of groups
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy import fft, special

from .._runtime import FloatArray, TwoNumbers
from ..plans import Plan
from .standard_errors import StandardError, contributions, independent, naive, standard_error

Method = Literal["naive", "corrected", "clusters", "blocks", "nested"]
METHODS = get_args(Method)


class Interval(NamedTuple):
    """An interval for a mean held-out loss."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True)
class MetricValue:
    """A metric of held-out predictions.

    `error` is the effect of the refits' errors on it, `averaged` says how it is pooled or averaged,
    `bounds` are those of the metric, and `dof` the degrees of freedom of its standard error.
    """

    value: float
    standard_error: float
    error: float
    averaged: str
    bounds: TwoNumbers
    dof: float

    def interval(self, level: float) -> Interval:
        """Return the interval by Student's t, with the error of the refits on both sides, within
        the bounds.
        """
        quantile = float(special.stdtrit(self.dof, 0.5 + level / 2))
        half = quantile * self.standard_error + self.error
        low, high = np.clip([self.value - half, self.value + half], *self.bounds).tolist()
        return Interval(low, high, level, "clusters" if np.isfinite(self.dof) else "naive")

    def __str__(self) -> str:
        sampling = " (SE not available)"
        if np.isfinite(self.standard_error):
            sampling = f" ± {self.standard_error:.2g} (SE)"
        approximation = "not certified"
        if np.isfinite(self.error):
            approximation = f"± {self.error:.1g} for the refits"
        return f"{self.value:.6g}{sampling}, {approximation}; {self.averaged}"


def usual(plan: Plan) -> Method:
    """Return the method that fits the dependence of a plan's units.

    ValueError if the dependence is not known.
    """
    if plan.clusters is not None:
        return "clusters"
    if plan.serial is None and plan.blocks is None:
        raise ValueError(
            "interval: the objective does not say whether its units depend on one another; name a method, or say so by "
            'lo.Objective(..., dependence="independent" or "serial").'
        )
    if plan.serial or plan.blocks is not None:
        return "blocks"
    return "naive"


def half_width(
    losses: FloatArray, weight: FloatArray, plan: Plan, level: float, method: str
) -> float:
    """Return half the width of the interval for the mean of per-unit losses `[units]`, NaN if a
    unit has none.

    Raises ValueError if the plan lacks what the method needs.
    """
    tail = 0.5 + level / 2
    if np.sum(np.isfinite(losses) & (weight > 0)) < 2:
        raise ValueError("interval: it needs two scored units or more.")
    if method == "naive":
        return float(special.ndtri(tail)) * naive(losses, weight, plan.of_cases)
    if method == "clusters" and plan.clusters is None:
        raise ValueError(
            "interval: method='clusters' needs a plan of groups, such as lo.groups(labels)."
        )
    if method == "blocks" and plan.clusters is None and plan.blocks is None:
        return _series(losses, weight, tail)
    error: StandardError = standard_error(losses, weight, plan)
    if np.isnan(error.value):
        raise ValueError(f"interval: method={method!r} is {error.kind}.")
    return float(special.stdtrit(independent(losses, weight, plan).units - 1, tail)) * error.value


def _series(losses: FloatArray, weight: FloatArray, tail: float) -> float:
    """Compute the half-width for a series, from the first cosines of each step's contribution to
    the mean.
    """
    seen = np.isfinite(losses) & (weight > 0)
    n = int(seen.sum())
    min_series_steps = 20  # least number of steps of a series that shows its own dependence
    if n < min_series_steps:
        raise ValueError(
            f"interval: method='blocks' needs a series of {min_series_steps} scored steps or more; got {n}."
        )
    deviations = n * contributions(losses[None, seen], weight[seen])[0]
    count = max(2, round(0.4 * n ** (2 / 3)))
    waves = np.sqrt(2 / n) * fft.dct(deviations, type=2)[1 : count + 1] / 2
    return float(special.stdtrit(count, tail) * np.sqrt(np.mean(waves**2) / n))


def of_folds(losses: FloatArray, weight: FloatArray, plan: Plan, level: float) -> float:
    """Compute the half-width for losses `[entries]` of random folds, corrected for the units that
    the folds share.
    """
    se, dof = corrected("interval", losses, weight, plan)
    return float(special.stdtrit(dof, 0.5 + level / 2)) * se


def corrected(caller: str, losses: FloatArray, weight: FloatArray, plan: Plan) -> TwoNumbers:
    """Compute s √(1/J + n₂/n₁) of the means of J folds, and the degrees of freedom."""
    seen = plan.held & np.isfinite(losses)
    refit = plan.refit[seen]
    unit_weight = weight[plan.index[seen]]
    mass = np.bincount(refit, unit_weight, plan.num_refits)
    if plan.serial or plan.blocks is not None:
        raise ValueError(
            f"{caller}: method='corrected' is for units that are independent; these are in a series or a field."
        )
    if plan.num_refits < 2 or (mass <= 0).any() or plan.weight.any():
        raise ValueError(
            f"{caller}: method='corrected' needs two or more folds, each with held-out losses, such as random_subsets."
        )
    means = np.bincount(refit, unit_weight * losses[seen], plan.num_refits) / mass
    share = np.mean(np.bincount(refit) / (plan.num_units - np.diff(plan.indptr)))
    se = means.std(ddof=1) * np.sqrt(1 / len(means) + share)
    return float(se), len(means) - 1.0


def bca_ends(
    draws: FloatArray, estimate: FloatArray, jackknife: FloatArray, level: float
) -> tuple[FloatArray, FloatArray]:
    """Compute the ends of the BCa intervals (Efron, 1987) of values, from their bootstrap draws and
    the jackknife's, both `[refits, values]`.
    """
    determined = np.ma.masked_invalid(jackknife)
    moves = (determined.mean(0) - determined).filled(0.0)
    size = np.sum(moves**2, 0) ** 1.5
    a = np.sum(moves**3, 0) / (6 * np.where(size > 0, size, 1.0))
    ends = np.empty((2, len(estimate)))
    for j, column in enumerate(draws.T):
        column = column[np.isfinite(column)]
        below = np.mean(column < estimate[j]) + 0.5 * np.mean(column == estimate[j])
        bias = special.ndtri(np.clip(below, 0.5 / len(column), 1 - 0.5 / len(column)))
        z = bias + special.ndtri([(1 - level) / 2, (1 + level) / 2])
        ends[:, j] = np.quantile(column, special.ndtr(bias + z / (1 - a[j] * z)))
    return ends[0], ends[1]
