"""Cox's partial likelihood, which is not a sum over rows, since a unit that leaves also leaves the risk sets of others.

    F(β, w) = −Σ_i w_i d_i η_i + Σ_t [ m_t log S_t + E(m_t, D_t / S_t) ] + R(β),      η = Xβ + o,

over the times t of events (within strata): S_t = Σ w_i e^{η_i} over those at risk, D_t the same over those who die at t,
m_t = Σ w_i of these. Ties by Breslow have E = 0; by Efron

    E(m, ρ) = Σ_{l<m} log(1 − lρ/m) = m log(ρ/m) + log Γ(m/ρ + 1) − log Γ(m/ρ − m + 1),

whose right-hand side is smooth in m, so weights may go from one to zero.

A unit's held-out loss is that of Verweij and van Houwelingen (1993): the fall of the log partial likelihood of all, at the
coefficients fitted without the unit, when the unit is taken out. A fixed number of passes computes it for all units.

A unit takes r = e^η out of the risk sets up to its own time, so without it the log partial likelihood of all falls by

    s_o = d_o (V − V' − η_o) − Σ_rows log(1 − r_o / A_row)

where V and V' are the contributions of the deaths at the unit's own time with and without it. Every death at another time at
which the unit was at risk is a row: A = S − (l/m) D for the l-th of m tied deaths, with l = 0 by Breslow. In order of time A
falls. While it is above 64 r, logarithms are expanded as Σ_k r^k/k Σ A^{−k}, with running inner sums over all rows. After that
they are computed pair by pair: the r of those at risk add up to A, so no row has more than 64 pairs.
"""

from collections.abc import Callable
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from ..._runtime.jax import Module, PyTree, Scalar, compile_static, static
from ...data.arrays import Names, codes, index_of, match_labels
from ...linalg.sparse_design import SparseDesign
from ...objectives.objective import AbstractObjective, Arrays, Costs, Parameters, Units, aligned_copy, as_stored, float64
from ..glm import penalties
from ..glm.rows import column, design, new_rows, pick, shift
from .partial_likelihood import Sums, efron, log_rest, running

LOG_EXPANSION_BOUND = 1 / 64  # largest r/A at which logarithms are expanded; it may double as θ changes


class Cox(AbstractObjective):
    """Cox's proportional-hazards model, by its partial likelihood.

        F(β, w) = −Σ_i w_i d_i η_i + Σ_t [ m_t log S_t + E(m_t, D_t / S_t) ] + R(β),      η = Xβ + o

    The sum goes over the times t of events, S_t is the sum of w_i e^{η_i} over those at risk, D_t over those who die at t, and
    m_t is the weight of these. E corrects for ties. A unit's loss is the fall of the log partial likelihood of all when the
    unit is taken out. `fit(...).parameters` is `{"coef"}`.

    Parameters
    ----------
    X : array or DataFrame, shape (units, features)
        Rows, dense.
    time : array, shape (units,)
        Times of events or of censoring, zero or more.
    event : array, shape (units,)
        1 where the event was seen, 0 where it was censored.
    penalty : penalty of lo.penalties or None, default: None
        Penalty on the coefficients. It must be smooth.
    ties : {"efron", "breslow"}, default: "efron"
        Treatment of events at the same time.
    strata : array, shape (units,), optional
        Labels of strata, each of which has a baseline hazard of its own.
    offset : array, shape (units,), optional
        Constants o that are added to the linear predictors.
    remark : str, default: ""
        Sentence to print with results.

    Raises
    ------
    ValueError
        If values are missing or infinite, times are negative, or there is no event.
    TypeError
        If X is sparse, or the penalty has kinks.

    References
    ----------
    P. J. M. Verweij and H. C. van Houwelingen, "Cross-validation in survival analysis", *Statistics in Medicine* 12, 1993.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(40, 1))
    >>> time = rng.exponential(np.exp(-x[:, 0]))
    >>> model = lo.Cox(x, time, np.ones(40))
    >>> model.num_units
    40
    """

    design: Float[np.ndarray, "units features"]
    offset: Float[np.ndarray, " units"] | None
    event: Float[np.ndarray, " units"]
    order: Int[np.ndarray, " units"]  # by stratum, then from the latest time to the earliest
    first: Int[np.ndarray, " times"]  # in that order, the beginning of the stratum of each time of events
    last: Int[np.ndarray, " times"]  # in that order, the end of the units at risk
    group: Int[np.ndarray, " units"]  # number of the time at which a unit dies; the number of times if it does not
    tied_times: Int[np.ndarray, " tied"]  # times with several deaths
    penalty: penalties.AbstractPenalty
    ties: str = static()
    names: tuple[str, ...] = static()
    remark: str = static()
    labels: Names = static()

    @float64
    def __init__(
        self,
        X: ArrayLike,
        time: ArrayLike,
        event: ArrayLike,
        penalty: penalties.AbstractPenalty | None = None,
        *,
        ties: Literal["efron", "breslow"] = "efron",
        strata: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        remark: str = "",
    ):
        if ties not in ("efron", "breslow"):
            raise ValueError(f"Cox: ties must be 'efron' or 'breslow'; got {ties!r}.")
        self.labels, X, time, event, strata, offset = match_labels(
            "Cox", X=X, time=time, event=event, strata=strata, offset=offset
        )
        rows, self.names = design("Cox", X, False)
        if isinstance(rows, SparseDesign):
            raise TypeError("Cox: X must be dense; got a sparse matrix. Give X.toarray(), if it is not too large for that.")
        self.design = rows if isinstance(rows, np.ndarray) else as_stored(rows)
        n = len(self.design)
        times, self.event = column("Cox", "time", time, n), column("Cox", "event", event, n)
        if (times < 0).any():
            raise ValueError(f"Cox: times must not be negative; got {times.min():g}.")
        if not np.isin(self.event, (0, 1)).all() or not self.event.any():
            raise ValueError("Cox: event must be 1 where it was seen, 0 where it was censored, and 1 somewhere.")
        self.offset = None if offset is None else column("Cox", "offset", offset, n)
        self.penalty, self.ties, self.remark = penalties.smooth("Cox", penalty), ties, remark
        self.penalty.check(self.design.shape[1])
        if strata is not None and np.shape(strata) != (n,):
            raise ValueError(f"Cox: strata must have one label for each of the {n} rows; got shape {np.shape(strata)}.")
        stratum = np.zeros(n, int) if strata is None else codes("Cox", "strata", strata)[0]
        order, first, last, group = _risk_sets(np.asarray(times), np.asarray(self.event) == 1, stratum)
        count = np.bincount(group, minlength=len(first) + 1)[:-1]
        parts = map(aligned_copy, (order, first, last, group, np.flatnonzero(count > 1)))
        self.order, self.first, self.last, self.group, self.tied_times = parts

    def under(self, penalty: penalties.AbstractPenalty | Callable[..., Any] | None) -> Self:
        """Copy the model with another penalty; its data are shared, and not read again.

        Parameters
        ----------
        penalty : AbstractPenalty, callable or None
            Penalty on the coefficients.

        Returns
        -------
        Cox
            The model.

        Raises
        ------
        TypeError
            If the penalty has kinks.
        """
        return penalties.under(self, penalties.smooth("Cox", penalty), self.design.shape[1])

    @property
    def num_units(self) -> int:
        return self.design.shape[0]

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            natural=self._natural,
            unconstrained=self._to_unconstrained,
            start=self._start,
            names=lambda: list(self.names),
            penalty_curvature=self._penalty_curvature,
        )

    def _start(self, seed):
        del seed  # F is convex
        return np.zeros(self.design.shape[1])

    def _natural(self, theta):
        return {"coef": theta}

    def _to_unconstrained(self, parameters):
        coef = (
            np.asarray(parameters["coef"], np.float64)
            if isinstance(parameters, dict) and set(parameters) == {"coef"}
            else np.zeros(0)
        )
        if coef.shape != self.design.shape[1:]:
            raise ValueError(f"Cox: parameters are {{'coef'}}, of shape {self.design.shape[1:]}; got {parameters}.")
        return coef

    def loss(self, theta: PyTree, weights: Float[Arrays, " units"]) -> Scalar:
        found = self.sums(theta, weights)
        seen = found.deaths > 0
        count, at_risk, dying = (jnp.where(seen, part, 1.0) for part in (found.deaths, found.at_risk, found.dying))
        total = jnp.sum(jnp.where(seen, count * (jnp.log(at_risk) + found.shift), 0.0)) - (weights * self.event) @ found.eta
        if self.ties == "efron":  # the correction for a single death is zero, but not its derivatives by weights
            ones = isinstance(weights, np.ndarray) and bool((weights == 1).all())
            some = self.tied_times if ones else slice(None)
            beside = efron(count[some], at_risk[some], dying[some])
            total = total + jnp.sum(jnp.where(seen[some], beside, 0.0))
        return total + self.penalty.times(weights, weights) * self.penalty(theta)

    def sums(self, theta: Array, weights: Arrays) -> Sums:
        """Compute the sums of which the partial likelihood is made.

        Parameters
        ----------
        theta : array of float, shape (features,)
            Coefficients.
        weights : array of float, shape (units,)
            Weights of the units.

        Returns
        -------
        Sums
            The linear predictors, and the sums over those at risk and those who die at each time.
        """
        eta = self._predictor(theta, slice(None))
        shift = jax.lax.stop_gradient(jnp.max(eta))
        risk, times = jnp.exp(eta - shift) * weights, jnp.zeros(len(self.last))
        summed = running(risk[self.order], jnp.zeros(len(eta), bool).at[self.first].set(True))
        died = lambda part: times.at[self.group].add(part * self.event, mode="drop")
        return Sums(eta, shift, risk, died(weights), summed[self.last - 1], died(risk))

    @property
    def costs(self) -> Costs:
        return Costs(runs=None if isinstance(self.penalty, penalties.PerWeight) else self._alone)

    def _alone(self, theta: Array, first: np.ndarray, length: np.ndarray) -> "UnitScores | None":
        return alone(self, _sums(self, theta), first) if length.max() == 1 else None

    def _penalty_curvature(self, theta):
        ones = jnp.ones(self.num_units)
        return penalties.curvature(lambda v: self.penalty.times(ones, ones) * self.penalty(v), jnp.asarray(theta))

    def predict(self, theta: PyTree, weights: Float[Arrays, " units"], index: Int[Arrays, " width"], kind: str) -> Array:
        eta = self._predictor(theta, index)
        return eta if kind == "link" else jnp.exp(eta)

    def _predictor(self, theta: Array, index: Arrays | slice) -> Array:
        return pick(self.design, index) @ theta + shift(self.offset, index)

    @property
    def units(self) -> Units:
        order = np.stack([np.asarray(self.group), np.asarray(self.event)], axis=1)
        columns = lambda: dict(zip(self.names, self.design.T, strict=True))
        known: dict[str, Any] = {"features": columns, "predict_new": self._predict_new}
        return Units(names=self.labels.index, score="−log partial likelihood", response=order, **known)

    def _predict_new(self, fit, X, kind, offset):
        """Linear predictors of new rows, or their exponentials: risks relative to a row of zeros."""
        if (offset is None) != (self.offset is None):
            raise ValueError(
                f"predict: the model has {'no ' if self.offset is None else 'an '}offset; give the same of new rows."
            )
        _, X, offset = match_labels("predict", X=X, offset=offset)
        rows = np.asarray(new_rows("predict", X, self.names, False))
        eta = rows @ fit.vector + (0.0 if offset is None else column("predict", "offset", offset, len(rows)))
        return pd.Series(eta if kind == "link" else np.exp(eta), index=index_of(X), name="prediction")

    @property
    def convex(self) -> bool:
        return not isinstance(self.penalty, penalties.Custom)

    @property
    def note(self) -> str:
        return self.remark or "the loss of a unit is what it adds to the log partial likelihood of all, its sign changed"


@compile_static
def _sums(cox: Cox, theta: Array) -> Sums:
    return cox.sums(theta, jnp.ones(cox.num_units))


def _risk_sets(time: np.ndarray, dies: np.ndarray, stratum: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the order of the units, the range of it that is at risk at each time of events, and each unit's time."""
    order = np.lexsort((-time, stratum))
    keys = np.c_[stratum, -time]  # a lexicographic order over units: at risk are those of the stratum not later in it
    events, group = np.unique(keys[dies], axis=0, return_inverse=True)
    places = np.full(len(time), len(events))
    places[dies] = np.ravel(group)
    begins = np.searchsorted(stratum[order], np.arange(stratum.max() + 1))
    ends = np.append(begins[1:], len(time))
    within = [-time[order[a:b]] for a, b in zip(begins, ends, strict=True)]  # rising
    own = events[:, 0].astype(int)
    last = [begins[s] + np.searchsorted(within[s], t, side="right") for s, t in zip(own, events[:, 1], strict=True)]
    return order, begins[own], np.array(last), places


class UnitScores(Module):
    """Scores s_o of some units at any θ near the one of `alone`; NaN if θ is too far."""

    cox: Cox
    time: Int[Arrays, " rows"]
    share: Float[Arrays, " rows"]  # l/m
    opens: Bool[Arrays, " rows"]  # whether a stratum begins
    last: Int[Arrays, " units"]  # last row that is expanded; −1 if none is
    unit: Int[Arrays, " pairs"]
    row: Int[Arrays, " pairs"]
    tied_units: Int[Arrays, " tied"]  # units that die at the same time as others
    units: Int[Arrays, " folds"]

    def __call__(self, theta: Array) -> tuple[None, Float[Array, " folds"]]:
        found = self.cox.sums(theta, jnp.ones(self.cox.num_units))
        at_risk = jnp.append(found.at_risk, 1.0)[self.cox.group]
        own = jnp.where(self.cox.event == 1, jnp.log(at_risk) + found.shift - found.eta, 0.0)
        at = found.at_risk[self.time] - self.share * found.dying[self.time]
        joint = (own + self._expand(found.risk, at)).at[self.tied_units].add(self._tie_terms(found))
        return None, joint.at[self.unit].add(-log_rest(found.risk[self.unit] / at[self.row]))[self.units]

    def _tie_terms(self, result: Sums) -> Float[Array, " tied"]:
        """Compute V − V' − log S, the part due to the others that die at the same time."""
        time, risk = self.cox.group[self.tied_units], result.risk[self.tied_units]
        m, at_risk, dying = result.deaths[time], result.at_risk[time], result.dying[time]
        others = -(m - 1) * log_rest(risk / at_risk)
        if self.cox.ties == "breslow":
            return others
        return others + efron(m, at_risk, dying) - efron(m - 1, at_risk - risk, dying - risk)

    def _expand(self, risk: Float[Array, " units"], at: Float[Array, " rows"]) -> Float[Array, " units"]:
        """Compute −Σ log(1 − r/A) over the rows up to the last that is expanded."""

        def term(found, k):
            power, inverse, total = found
            power, inverse = power * risk, inverse / at
            return (power, inverse, total + power * running(inverse, self.opens)[self.last] / k), None

        start = jnp.ones_like(risk), jnp.ones_like(at), jnp.zeros_like(risk)
        terms = 9  # terms of the expansion, whose remainder is 1e-16 of r/A, and 1e-13 if that has doubled
        total = jax.lax.scan(term, start, jnp.arange(1.0, terms + 1))[0][2]
        near = risk < 2 * LOG_EXPANSION_BOUND * at[self.last]
        return jnp.where(self.last < 0, 0.0, jnp.where(near, total, jnp.nan))


def alone(cox: Cox, sums: Sums, units: Int[np.ndarray, " folds"]) -> UnitScores:
    """Return the rows of a model, from the last stratum to the first, and each unit's expanded rows, at some θ."""
    count, place = np.asarray(sums.deaths).astype(int), np.argsort(cox.order)
    time = np.repeat(np.arange(len(count))[::-1], count[::-1])
    begin = np.append(np.cumsum(count[::-1])[::-1] - count, 0)  # the first row of each time
    nth = np.arange(len(time)) - begin[time]
    share = nth / count[time] if cox.ties == "efron" else np.zeros(len(time))
    opens = np.append(True, np.diff(cox.first[time]) != 0)
    at, risk = np.asarray(sums.at_risk)[time] - share * np.asarray(sums.dying)[time], np.asarray(sums.risk)
    latest = np.searchsorted(cox.last, place, side="right")  # the last of the times at which a unit is at risk
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
    return UnitScores(cox, *map(aligned_copy, whole))
