"""Cox's partial likelihood, which is not a sum over rows, since a unit that leaves also leaves the
risk sets of others.

    F(β, w) = −Σ_i ω_i d_i η_i + Σ_t [ m_t log S_t + (m_t/c_t) E(c_t, D_t / S_t) ] + R(β),
    η = Xβ + o,

over the times t of events (within strata), where ω_i = w_i s_i, with case weights s: S_t = Σ ω_i
e^{η_i} over those at risk, D_t the same over those who die at t, m_t = Σ ω_i of these and c_t = Σ
w_i, their number. Ties by Breslow have E = 0; by Efron

    E(c, ρ) = Σ_{l<c} log(1 − lρ/c) = c log(ρ/c) + log Γ(c/ρ + 1) − log Γ(c/ρ − c + 1),

whose right-hand side is smooth in c, so weights may go from one to zero. Those who die at t share
their mean weight m/c, as in R's survival.

At risk at t are those with entry < t ≤ time. Without entry times S_t is a running sum. With them a
unit is at risk at a range of the times. Each range is made of a few nodes of a binary tree over the
times, and S_t is a sum over the nodes above t: sums of positive terms, as differences of running
sums would cancel.

A unit's held-out loss is that of Verweij and van Houwelingen (1993): the fall of the log partial
likelihood of all, at the coefficients fitted without the unit, when the unit is taken out. A fixed
number of passes computes it for all units.

A unit takes r = ω e^η out of the risk sets up to its own time, so without it the log partial
likelihood of all falls by

    s_o = d_o (V − V' − ω_o η_o) − Σ_rows (m/c) log(1 − r_o / A_row)

where V and V' are the contributions of the deaths at the unit's own time with and without it. Every
death at another time at which the unit was at risk is a row: A = S − (l/c) D for the l-th of c tied
deaths, with l = 0 by Breslow. Without entry times A falls in order of time. While it is above 64 r,
logarithms are expanded as Σ_k r^k/k Σ A^{−k}, with running inner sums over all rows. After that
they are computed pair by pair: the r of those at risk add up to A, so no row has more than 64
pairs. With entry times every unit is left out by a pass of its own.
"""

import functools
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from ..._runtime import (
    ArrayTuple,
    ListedUnits,
    ListedValues,
    NumpyArray,
    PerRow,
    RowFlags,
    RowNumbers,
    Strings,
    UnitFlags,
    UnitNumbers,
    UnitVectors,
    cached_on,
    pd,
    record,
    silence,
    static,
)
from ...data import (
    Names,
    codes,
    index_of,
    join_remarks,
    match_labels,
    named_column,
    new_columns,
    read_survival,
    stateful_remark,
)
from ...linalg import SparseDesign
from ...objectives import (
    AbstractClosedForm,
    Costs,
    Matrices,
    Parameters,
    PerLane,
    PerUnit,
    Points,
    State,
    Units,
    ValueAndGradient,
    Vector,
    Weights,
    as_stored,
    float64,
)
from ..glm import column, design, new_rows, penalties
from .partial_likelihood import (
    Ranges,
    RefitTimes,
    RefitUnits,
    Sums,
    TimeSums,
    UnitSums,
    efron,
    log_complement,
    running,
)

TimeNumbers = Int[NumpyArray, " times"]

# largest r/A at which logarithms are expanded; it may double as θ changes
LOG_EXPANSION_BOUND = 1 / 64


class Cox(AbstractClosedForm):
    """Cox's proportional-hazards model, by its partial likelihood.

        F(β, w) = −Σ_i ω_i d_i η_i + Σ_t [ m_t log S_t + (m_t/c_t) E(c_t, D_t / S_t) ] + R(β),
        η = Xβ + o

    The sum goes over the times t of events, ω are the weights times `sample_weight`, S_t is the sum
    of ω_i e^{η_i} over those at risk, D_t over those who die at t, c_t and m_t are the number and
    the weight of these. E corrects for ties. A unit's loss is the fall of the log partial
    likelihood of all when the unit is taken out, with all of its weight. `fit(...).parameters` is
    `{"coef"}`.

    Parameters
    ----------
    X : array or DataFrame, shape (units, features), or str
        Rows, dense. Or a formula, such as "Surv(time, event) ~ age + C(sex) + strata(site)" or one
        of "Surv(start, stop, event)", which formulaic reads. What its calls learn from all rows,
        such as knots, is not left out: results say so.
    time : array, shape (units,), or DataFrame
        Times of events or of censoring, zero or more. The table of a formula.
    event : array, shape (units,), optional
        1 where the event was seen, 0 where it was censored. A formula has it.
    penalty : penalty of lo.penalties or None, default: None
        Penalty on the coefficients. It may be `Lasso`, `ElasticNet` or `Box`, which hold
        coefficients.
    ties : {"efron", "breslow"}, default: "efron"
        Treatment of events at the same time.
    strata : array, shape (units,), or str, optional
        Labels of strata, each of which has a baseline hazard of its own, or the column of a
        formula's table.
    offset : array, shape (units,), or str, optional
        Constants o that are added to the linear predictors, or the column of a formula's table.
    sample_weight : array, shape (units,), or str, optional
        Weights of cases, positive, or the column of a formula's table. By Breslow a weight of two
        means the same unit twice. By Efron those who die at the same time share their mean weight,
        as in R's survival.
    entry : array, shape (units,), or str, optional
        Times from which on, but not at which, units are at risk, each less than its `time`. A
        subject whose covariates change has several rows, one behind another; leave it out by
        `lo.groups(subject)`. The column of a formula's table.
    remark : str, default: ""
        Sentence to print with results.
    weights : array, shape (units,), or str, optional
        Another name of `sample_weight`.

    Raises
    ------
    ValueError
        If values are missing or infinite, times are negative or not after entry, weights are not
        positive, or there is no event.
    TypeError
        If X is sparse.

    References
    ----------
    P. J. M. Verweij and H. C. van Houwelingen, "Cross-validation in survival analysis", *Statistics
    in Medicine* 12, 1993.

    Examples
    --------
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(40, 1))
    >>> time = rng.exponential(np.exp(-x[:, 0]))
    >>> model = lo.Cox(x, time, np.ones(40))
    >>> model.num_units
    40

    A formula:

    >>> import pandas as pd
    >>> data = pd.DataFrame({"age": x[:, 0], "days": time, "died": 1, "site": ["a", "b"] * 20})
    >>> lo.fit(lo.Cox("Surv(days, died) ~ age + strata(site)", data)).parameters["coef"].round(2)
    array([1.33])
    """

    design: Float[NumpyArray, "units features"]
    offset: PerUnit | None
    sample_weight: PerUnit | None
    event: PerUnit
    time: PerUnit
    order: UnitNumbers  # by stratum, then from the latest time to the earliest
    # in that order, the beginning of the stratum of each time of events
    first: TimeNumbers
    last: TimeNumbers  # in that order, the end of the units at risk
    # number of the time at which a unit dies; the number of times if it does not
    group: UnitNumbers
    dead: Int[NumpyArray, " deaths"]  # units that die, by time
    begin: TimeNumbers  # the beginning of each time among these
    # with entry times, the range of times at which each unit is at risk
    spans: Int[NumpyArray, "2 units"] | None
    penalty: penalties.AbstractPenalty
    ties: str = static()
    names: Strings = static()
    remark: str = static()
    labels: Names = static()

    @float64
    def __init__(
        self,
        X: ArrayLike | str,
        time: Any,
        event: ArrayLike | None = None,
        penalty: penalties.AbstractPenalty | None = None,
        *,
        ties: Literal["efron", "breslow"] = "efron",
        strata: ArrayLike | str | None = None,
        offset: ArrayLike | str | None = None,
        sample_weight: ArrayLike | str | None = None,
        entry: ArrayLike | str | None = None,
        remark: str = "",
        weights: ArrayLike | str | None = None,
    ):
        if ties not in ("efron", "breslow"):
            raise ValueError(f"Cox: ties must be 'efron' or 'breslow'; got {ties!r}.")
        if weights is not None and sample_weight is not None:
            raise ValueError(
                "Cox: give weights= or sample_weight=, two names of one argument, not both."
            )
        if sample_weight is None:
            sample_weight = weights
        reader = None
        table = None
        if isinstance(X, str):
            if event is not None:
                raise ValueError(
                    "Cox: a formula names the events itself: lo.Cox(formula, data, penalty=...)."
                )
            remark = join_remarks(remark, stateful_remark(X))
            survival = read_survival(X, time)
            strata, offset, sample_weight, entry = (
                named_column(survival.data, value)
                for value in (strata, offset, sample_weight, entry)
            )
            pairs = (entry, survival.entry), (strata, survival.strata)
            if any(a is not None and b is not None for a, b in pairs):
                raise ValueError(
                    "Cox: the formula has entry times, or strata, already; give them once."
                )
            entry, strata = (a if b is None else b for a, b in pairs)
            reader = functools.partial(new_columns, "Cox", X, survival.spec)
            X = survival.X
            time = survival.time
            event = survival.event
            table = survival.data
        labels, X, time, event, strata, offset, sample_weight, entry = match_labels(
            "Cox",
            X=X,
            time=time,
            event=event,
            strata=strata,
            offset=offset,
            sample_weight=sample_weight,
            entry=entry,
        )
        if event is None:
            raise ValueError("Cox: event is missing: 1 where it was seen, 0 where it was censored.")
        names = [name for part in (time, event) if (name := getattr(part, "name", None))]
        table = labels.table if table is None else table
        self.labels = Names(labels.index, reader, table=table, name=" to ".join(map(str, names)))
        rows, self.names = design("Cox", X, False)
        if isinstance(rows, SparseDesign):
            raise TypeError(
                "Cox: X must be dense; got a sparse matrix. Give X.toarray(), if it is not too large for that."
            )
        self.design = rows if isinstance(rows, NumpyArray) else as_stored(rows)
        n = len(self.design)
        self.time = column("Cox", "time", time, n)
        self.event = column("Cox", "event", event, n)
        if (self.time < 0).any():
            raise ValueError(f"Cox: times must not be negative; got {self.time.min():g}.")
        if not np.isin(self.event, (0, 1)).all() or not self.event.any():
            raise ValueError(
                "Cox: event must be 1 where it was seen, 0 where it was censored, and 1 somewhere."
            )
        self.offset = None if offset is None else column("Cox", "offset", offset, n)
        if sample_weight is not None:
            sample_weight = column("Cox", "sample_weight", sample_weight, n)
            if (sample_weight <= 0).any():
                raise ValueError(
                    "Cox: sample_weight must be positive: leave other rows out of the data."
                )
        self.sample_weight = sample_weight
        begins = None
        if entry is not None:
            begins = column("Cox", "entry", entry, n)
            if (begins >= self.time).any():
                row = int(np.argmax(begins >= self.time))
                ends = f"row {row} enters at {begins[row]:g} and ends at {self.time[row]:g}"
                raise ValueError(f"Cox: entry must be before time; {ends}.")
        self.penalty = penalties.resolve(penalty)
        self.ties = ties
        self.remark = remark
        self.penalty.check(self.design.shape[1])
        if strata is not None and np.shape(strata) != (n,):
            raise ValueError(
                f"Cox: strata must have one label for each of the {n} rows; got shape {np.shape(strata)}."
            )
        stratum = np.zeros(n, int) if strata is None else codes("Cox", "strata", strata)[0]
        self.order, self.first, self.last, self.group, self.spans = _risk_sets(
            self.time, begins, self.event == 1, stratum
        )
        self.dead = self.order[self.event[self.order] == 1]
        self.begin = np.searchsorted(self.group[self.dead], np.arange(len(self.first)))

    def under(self, penalty: penalties.PenaltyLike) -> Self:
        """Copy the model with another penalty; its data are shared, and not read again.

        Parameters
        ----------
        penalty : AbstractPenalty, callable or None
            Penalty on the coefficients.

        Returns
        -------
        Cox
            The model.
        """
        return penalties.under(self, penalty, self.design.shape[1])

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
        return np.zeros(self.design.shape[1])

    def _natural(self, theta):
        return {"coef": theta}

    def _to_unconstrained(self, parameters):
        if isinstance(parameters, dict) and set(parameters) == {"coef"}:
            coef = np.asarray(parameters["coef"], float)
        else:
            coef = np.zeros(0)
        if coef.shape != self.design.shape[1:]:
            raise ValueError(
                f"Cox: parameters are {{'coef'}}, of shape {self.design.shape[1:]}; got {parameters}."
            )
        return coef

    def look(self, theta: Points, weights: Weights, state: State = None) -> ValueAndGradient:
        value, gradient, *_ = self._by_units(theta, weights)
        return value, gradient, None

    @silence("all")  # F may be infinite far from the fit
    def _by_units(
        self, theta: Points, weights: Weights
    ) -> tuple[PerLane, Points, RefitUnits, PerLane]:
        """Evaluate F, its gradients, its derivatives by the linear predictors, and the factor of
        the penalty.
        """
        sums = self.sums(theta, weights)
        penalty, slope, _ = penalties.derivatives(self.penalty, theta)
        kappa = np.broadcast_to(self.penalty.times(weights, sums.cases), len(theta))
        value, unit_slopes, _ = self.partial(sums)
        return (
            value + kappa * penalty,
            unit_slopes @ self.design + kappa[:, None] * slope,
            unit_slopes,
            kappa,
        )

    def partial(self, sums: Sums) -> tuple[PerLane, RefitUnits, RefitTimes]:
        """Compute the negative log partial likelihood, without the penalty.

        Parameters
        ----------
        sums : Sums
            What `sums` or `sums_of` returns.

        Returns
        -------
        tuple of array
            The values, the derivatives by the linear predictors, and the increments of the
            baseline's cumulative hazard at each time of events, which are Efron's or Breslow's as
            the ties are.
        """
        ties, by_risk, by_dying = self._slopes(sums)
        contributions = sums.deaths * (np.log(sums.at_risk) + sums.shift) + sums.mean * ties[0]
        value = contributions.sum(1) - np.sum(sums.cases * self.event * sums.eta, 1)
        hazard = np.where(sums.number > 0, by_risk, 0.0) * np.exp(-sums.shift)
        return value, self._pushed(sums, by_risk, by_dying), hazard

    def _pushed(self, sums: Sums, by_risk: NumpyArray, by_dying: NumpyArray) -> RefitUnits:
        """Derivatives of F by the linear predictors."""
        return sums.risk * self.over_units(by_risk, by_dying) - sums.cases * self.event

    @silence("all")
    def hessians(self, theta: Points, weights: Weights, state: State = None) -> Matrices:
        sums = self.sums(theta, weights)
        ties, by_risk, by_dying = self._slopes(sums)
        unit_slopes = sums.risk * self.over_units(by_risk, by_dying)
        kappa = np.broadcast_to(self.penalty.times(weights, sums.cases), len(theta))
        matrices = kappa[:, None, None] * penalties.derivatives(self.penalty, theta)[2]
        for k, (by_risks, by_both, by_deaths) in enumerate(
            zip(*self._curvatures(sums, ties), strict=True)
        ):
            at_risk, dying = self._moments(sums.risk[k])
            matrices[k] += (self.design.T * unit_slopes[k]) @ self.design + (
                by_risks * at_risk
            ) @ at_risk.T
            if by_both.any() or by_deaths.any():  # not without ties
                mixed = (by_both * at_risk) @ dying.T
                matrices[k] += mixed + mixed.T + (by_deaths * dying) @ dying.T
        return matrices

    def jacobian(self, theta: Vector) -> UnitVectors:
        sums = self.sums(theta[None], np.ones((1, self.num_units)))
        ties, by_risk, by_dying = self._slopes(sums, ones=False)
        *_, m, at_risk, dying = sums
        # m/D times the derivative of E_z by c, where z is c S/D
        by_number = m / dying * (at_risk / dying * ties[2] + ties[3])
        # derivatives by m; those by c are:
        by_weight = 1 / at_risk + ties[1] / dying, -at_risk / dying**2 * ties[1]
        by_count = by_number, -at_risk / dying * by_number
        by_risks, by_both, by_deaths = self._curvatures(sums, ties)
        of_risk, of_dying = self._moments(sums.risk[0])
        entered = self.over_units(
            by_risks * of_risk + by_both * of_dying, by_both * of_risk + by_deaths * of_dying
        )
        died = sums.cases * self._at_deaths(by_weight[0] * of_risk + by_weight[1] * of_dying)
        died += self._at_deaths(by_count[0] * of_risk + by_count[1] * of_dying)
        slopes = (
            self._pushed(sums, by_risk, by_dying).T * self.design + (sums.risk * entered + died).T
        )
        if not isinstance(self.penalty, penalties.PerWeight):
            return slopes
        grown = np.ones((self.num_units, 1)) if self.penalty.rows else sums.cases.T
        return slopes + grown * penalties.derivatives(self.penalty, theta[None])[1]

    pointwise = False

    def losses(
        self, theta: Points, weights: Weights, index: Any, held: Any, state: State = None
    ) -> Any:
        # a penalty that grows with the weights has no part in the fall of the partial likelihood
        model = penalties.under(self._model_of(theta), None, theta.shape[1])
        return super(Cox, model).losses(theta, weights, index, held, state)

    def _model_of(self, theta: Points) -> "Cox":
        """Return the model whose parameters θ are."""
        return self

    def sums(self, theta: Points, weights: Weights) -> Sums:
        """Compute the sums of which the partial likelihood is made.

        Parameters
        ----------
        theta : array of float, shape (refits, features)
            Coefficients of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.

        Returns
        -------
        Sums
            The linear predictors, and the sums over those at risk and those who die at each time.
        """
        eta = theta @ self.design.T
        if self.offset is not None:
            eta += self.offset
        return self.sums_of(eta, weights)

    def sums_of(self, eta: RefitUnits, weights: Weights) -> Sums:
        """Compute the sums of which the partial likelihood is made, from linear predictors.

        Parameters
        ----------
        eta : array of float, shape (refits, units)
            Linear predictors of each refit.
        weights : array of float, shape (refits, units)
            Weights of each refit.

        Returns
        -------
        Sums
            As `sums` returns them.
        """
        shift = eta.max(1, keepdims=True)
        cases = self._cases(weights)
        risk = np.exp(eta - shift) * cases
        count = self._of_dying(weights)
        deaths = self._of_dying(cases)
        at_risk, dying = (
            np.where(count > 0, part, 1.0) for part in (self._of_risk(risk), self._of_dying(risk))
        )
        return Sums(eta, shift, cases, risk, count, deaths, at_risk, dying)

    def _cases(self, weights: Float[NumpyArray, "*sums units"]) -> Float[NumpyArray, "*sums units"]:
        if self.sample_weight is None:
            return weights
        return weights * self.sample_weight

    def _of_risk(self, values: UnitSums) -> TimeSums:
        """Sums over those at risk at each time."""
        if self.spans is not None:
            return _ranges(self).sums(values)
        return running(values[:, self.order], self._opens)[:, self.last - 1]

    def _of_dying(self, values: UnitSums) -> TimeSums:
        """Sums over those who die at each time."""
        return np.add.reduceat(values[:, self.dead], self.begin, axis=1)

    @property
    def _opens(self) -> UnitFlags:
        opens = np.zeros(self.num_units, bool)
        opens[self.first] = True
        return opens

    def over_units(self, of_risk: TimeSums, of_dying: TimeSums) -> UnitSums:
        """Sum, for each unit, over the times at which it is at risk, and add what belongs to the
        time of its death.

        Parameters
        ----------
        of_risk : array of float, shape (sums, times)
            Terms of the times of events; the increments of a baseline sum to its cumulative hazard.
        of_dying : array of float, shape (sums, times)
            Terms that only those who die at a time get.

        Returns
        -------
        array of float, shape (sums, units)
            The sums.
        """
        if self.spans is not None:
            return _ranges(self).sums_over_times(of_risk) + self._at_deaths(of_dying)
        placed = np.zeros((len(of_risk), self.num_units))
        totals = np.empty((len(of_risk), self.num_units))
        placed[:, self.last - 1] = of_risk
        totals[:, self.order] = running(placed, self._opens, reverse=True)
        return totals + self._at_deaths(of_dying)

    def _at_deaths(self, values: TimeSums) -> UnitSums:
        """Values at the time of each unit's death, zero for units that do not die."""
        placed = np.zeros((len(values), self.num_units))
        placed[:, self.dead] = values[:, self.group[self.dead]]
        return placed

    def _moments(self, risk: PerUnit) -> tuple[Float[NumpyArray, "features times"], ...]:
        """Sums of r x over those at risk and those who die."""
        moments = risk * self.design.T
        return self._of_risk(moments), self._of_dying(moments)

    def _slopes(self, sums: Sums, ones: bool = True) -> ArrayTuple:
        """E of each time with its derivatives, `[4, refits, times]`, and the derivatives of F by S
        and by D.

        Of a single death E is zero whatever its risk, but its derivatives by weights are not: these
        need `ones=False`.
        """
        *_, c, m, at_risk, dying = sums
        ties = np.zeros((4, *m.shape))
        corrected = (c > 0) & (c != 1 if ones else True) & (self.ties == "efron")
        ties[:, corrected] = efron(
            c[corrected], c[corrected] * at_risk[corrected] / dying[corrected]
        )
        return ties, m / at_risk + ties[1] * m / dying, -ties[1] * m * at_risk / dying**2

    def _curvatures(self, sums: Sums, ties: NumpyArray) -> tuple[RefitTimes, ...]:
        """Second derivatives of F by S, by S and D, and by D."""
        *_, c, m, at_risk, dying = sums
        z = c * at_risk / dying
        bend = c * m / dying**2 * ties[2]
        mixed = -(m / dying**2) * (ties[1] + z * ties[2])
        return bend - m / at_risk**2, mixed, (2 * ties[1] + z * ties[2]) * m * at_risk / dying**3

    @property
    def costs(self) -> Costs:
        if self.spans is None and not isinstance(self.penalty, penalties.PerWeight):
            return Costs(runs=self._alone)
        return Costs()

    def _alone(self, theta: Vector, first: NumpyArray, length: NumpyArray) -> "UnitScores | None":
        if length.max() == 1:
            return alone(self, theta, first)
        return None

    def _penalty_curvature(self, theta):
        ones = np.ones(self.num_units)
        return self.penalty.times(ones, self._cases(ones)) * np.diag(
            penalties.derivatives(self.penalty, theta[None])[2][0]
        )

    def predictions(
        self,
        theta: Points,
        weights: Weights,
        index: ListedUnits,
        kind: str,
        state: State = None,
    ) -> ListedValues:
        units = np.minimum(index, self.num_units - 1)
        model = self._model_of(theta)
        eta = np.einsum("rwp,rp->rw", model.design[units], theta)
        if model.offset is not None:
            eta += model.offset[units]
        return eta if kind == "link" else np.exp(eta)

    @property
    def units(self) -> Units:
        facts = [self.group, self.event]
        if self.sample_weight is not None:
            facts.append(self.sample_weight)
        if self.spans is not None:
            facts.extend(self.spans)
        return Units(
            names=self.labels.index,
            score="−log partial likelihood",
            response=np.stack(facts, 1),
            risk=self._places(),
            features=lambda: dict(zip(self.names, self.design.T, strict=True)),
            predict_new=self._predict_new,
        )

    def _places(self) -> NumpyArray:
        """Return the stratum, the place in time, the event and the place of entry of each unit.

        Times of events have even places. A censored unit is at the odd place behind the last event
        that it outlived. A unit is at risk at the times of events behind its entry.
        """
        first, last, event = (np.asarray(part) for part in (self.first, self.last, self.event))
        place = np.argsort(np.asarray(self.order))
        # the last time of events, in the order of these, at risk
        latest = np.searchsorted(last, place, side="right")
        stratum = np.searchsorted(np.unique(first), place, side="right")
        if self.spans is None:
            enters = np.full(len(place), -np.inf)
        else:
            enters = -2 * np.asarray(self.spans)[1]
        return np.stack(
            [stratum, np.where(event == 1, 0, 1) - 2 * latest, event, enters], 1
        ).astype(float)

    def _predict_new(self, fit, X, kind, offset):
        """Linear predictors of new rows, or their exponentials.

        Risks relative to a row of zeros.
        """
        if (offset is None) != (self.offset is None):
            raise ValueError(
                f"predict: the model has {'no ' if self.offset is None else 'an '}offset; give the same of new rows."
            )
        _, X, offset = match_labels("predict", X=X, offset=offset)
        index = index_of(X)
        if self.labels.read is not None:
            X = self.labels.read(X)
        rows = np.asarray(new_rows("predict", X, self.names, False))
        eta = rows @ fit.parameters["coef"]
        if offset is not None:
            eta += column("predict", "offset", offset, len(rows))
        values = eta if kind == "link" else np.exp(eta)
        return pd.Series(values, index=index, name="prediction")

    @property
    def convex(self) -> bool:
        return not isinstance(self.penalty, penalties.Custom)

    @property
    def note(self) -> str:
        return (
            self.remark
            or "the loss of a unit is what it adds to the log partial likelihood of all, its sign changed"
        )


def _risk_sets(
    time: NumpyArray, entry: NumpyArray | None, dies: NumpyArray, stratum: NumpyArray
) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray, NumpyArray | None]:
    """Return the order of the units, the range of it that is at risk at each time of events, and
    each unit's time and range.
    """
    values, rank = np.unique(
        -np.concatenate([time, time if entry is None else entry]), return_inverse=True
    )
    # by stratum, then from the latest time on
    leaves, enters = stratum * len(values) + np.ravel(rank).reshape(2, -1)
    order = np.argsort(leaves, kind="stable")
    events, group = np.unique(leaves[dies], return_inverse=True)
    places = np.full(len(time), len(events))
    places[dies] = np.ravel(group)
    first = np.searchsorted(leaves[order], events // len(values) * len(values))
    last = np.searchsorted(leaves[order], events, side="right")
    return (
        order,
        first,
        last,
        places,
        None if entry is None else np.searchsorted(events, [leaves, enters]),
    )


@cached_on
def _ranges(cox: Cox) -> Ranges:
    """Ranges of the times at which units are at risk."""
    assert cox.spans is not None
    return Ranges(cox.spans, len(cox.first))


@record
class UnitScores:
    """Scores s_o of some units at any θ near the one of `alone`; NaN if θ is too far."""

    cox: Cox
    time: RowNumbers
    share: PerRow  # l/c
    mean: PerRow  # m/c
    opens: RowFlags  # whether a stratum begins
    last: UnitNumbers  # last row that is expanded; −1 if none is
    unit: Int[NumpyArray, " pairs"]
    row: Int[NumpyArray, " pairs"]
    tied: Int[NumpyArray, " tied"]  # units that die at the same time as others
    units: Int[NumpyArray, " folds"]

    def __call__(self, points: Points) -> tuple[None, Float[NumpyArray, "places folds"]]:
        return None, np.array([self._scores(theta) for theta in points])

    @silence("all")
    def _scores(self, theta: Vector) -> Float[NumpyArray, " folds"]:
        cox = self.cox
        sums = cox.sums(theta[None], np.ones((1, cox.num_units)))
        risk = sums.risk[0]
        at_risk = sums.at_risk[0, self.time] - self.share * sums.dying[0, self.time]
        by_death = sums.cases[0] * (
            cox._at_deaths(np.log(sums.at_risk) + sums.shift)[0] - cox.event * sums.eta[0]
        )
        joint = by_death + self._expand(risk, at_risk)
        joint[self.tied] += self._tie_terms(sums)
        pairs = np.bincount(
            self.unit,
            -self.mean[self.row] * log_complement(risk[self.unit] / at_risk[self.row]),
            len(joint),
        )
        return (joint + pairs)[self.units]

    def _tie_terms(self, sums: Sums) -> Float[NumpyArray, " tied"]:
        """Compute V − V' − ω log S, the part due to the others that die at the same time."""
        time = self.cox.group[self.tied]
        risk = sums.risk[0, self.tied]
        c = sums.number[0, time]
        m = sums.deaths[0, time]
        at_risk = sums.at_risk[0, time]
        dying = sums.dying[0, time]
        other_deaths = m - sums.cases[0, self.tied]
        tie_terms = -other_deaths * log_complement(risk / at_risk)
        if self.cox.ties == "breslow":
            return tie_terms
        without = efron(c - 1, (c - 1) * (at_risk - risk) / (dying - risk))[0]
        return (
            tie_terms + m / c * efron(c, c * at_risk / dying)[0] - other_deaths / (c - 1) * without
        )

    def _expand(self, risk: PerUnit, at_risk: PerRow) -> PerUnit:
        """Compute −Σ (m/c) log(1 − r/A) over the rows up to the last that is expanded."""
        power = np.ones_like(risk)
        inverse = self.mean
        total = np.zeros_like(risk)
        # terms of the expansion, whose remainder is 1e-16 of r/A, and 1e-13 if that has doubled
        terms = 9
        for k in range(1, terms + 1):
            power = power * risk
            inverse = inverse / at_risk
            total += power * running(inverse, self.opens)[self.last] / k
        converges = risk < 2 * LOG_EXPANSION_BOUND * at_risk[self.last]
        return np.where(self.last < 0, 0.0, np.where(converges, total, np.nan))


def alone(cox: Cox, theta: Vector, units: Int[NumpyArray, " folds"]) -> UnitScores:
    """Return the rows of a model, from the last stratum to the first, and each unit's expanded
    rows, at some θ.
    """
    sums = cox.sums(theta[None], np.ones((1, cox.num_units)))
    risk = sums.risk[0]
    count = sums.number[0].astype(int)
    place = np.argsort(cox.order)
    time = np.repeat(np.arange(len(count))[::-1], count[::-1])
    begin = np.append(np.cumsum(count[::-1])[::-1] - count, 0)  # the first row of each time
    nth = np.arange(len(time)) - begin[time]
    share = nth / count[time] if cox.ties == "efron" else np.zeros(len(time))
    opens = np.append(True, np.diff(cox.first[time]) != 0)
    at_risk = sums.at_risk[0, time] - share * sums.dying[0, time]
    # the last of the times at which a unit is at risk
    latest = np.searchsorted(cox.last, place, side="right")
    seen = np.append(cox.first, len(place))[latest] <= place
    start = np.where(
        seen,
        begin[np.searchsorted(cox.first, np.append(cox.first, 0)[latest], side="right") - 1],
        0,
    )
    stop = np.where(
        seen, begin[latest] + np.where(cox.event == 1, 0, np.append(count, 0)[latest]), 0
    )
    low = start.copy()
    high = stop.copy()
    while (low < high).any():
        middle = (low + high) // 2
        above = (low < high) & (
            risk <= LOG_EXPANSION_BOUND * at_risk[np.minimum(middle, len(at_risk) - 1)]
        )
        low = np.where(above, middle + 1, low)
        high = np.where(above, high, np.minimum(middle, high))
    pairs = stop - low
    unit = np.repeat(np.arange(len(pairs)), pairs)
    row = np.arange(len(unit)) - np.repeat(np.cumsum(pairs) - pairs - low, pairs)
    tied = np.flatnonzero((cox.event == 1) & (np.append(count, 0)[cox.group] > 1))
    last = np.where(low > start, low - 1, -1)
    return UnitScores(cox, time, share, sums.mean[0, time], opens, last, unit, row, tied, units)
