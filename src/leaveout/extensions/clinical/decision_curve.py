"""Decision curves: the net benefit of treating who is predicted to be at risk (Vickers & Elkin
2006).

    NB(t) = TP/n − FP/n · t/(1 − t),     treated where p ≥ t;     of all, π − (1 − π) t/(1 − t);
    of none, 0

It is a mean over units, so its standard error is that of a mean over independent ones, at fixed
predictions. Of survival until a time (Vickers, Cronin, Elkin & Gonen 2008), with F = P(p ≥ t) and S
the Kaplan–Meier estimate of the treated,

    NB(t) = F (1 − S − S t/(1 − t)),

whose contributions of units are those of Kaplan–Meier's influence function.
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from ... import Estimate, Fit
from ...developer import (
    Lines,
    RowFlags,
    TwoNumbers,
    conventional,
    float64,
    floats,
    record,
    share,
)
from .held_out_rows import HeldOutRows, held_out_rows
from .performance import Continuous, PerformanceTable, PerRow, Survival, kaplan_meier_influence

THRESHOLDS = np.arange(1, 100) / 100
PRINTED = 10  # rows of a printed table at most


@record
class DecisionCurve(PerformanceTable):
    """Net benefit at each threshold.

    `lo.clinical.decision_curve` returns it.

    Attributes
    ----------
    table : DataFrame
        By threshold: `net_benefit` with `se`, `low` and `high`; that of treating `all` with
        `all_se`, and `none`; and the `treated` share.
    fit : Fit
        The fit.
    level : float
        The coverage of the intervals.
    time : float or None
        The time until which risks are predicted.
    note : str
        What is printed of the predictions.

    See Also
    --------
    decision_curve : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> lo.clinical.decision_curve(lo.cross_validate(fit, 10), [0.5]).table.columns.tolist()
    ['net_benefit', 'se', 'low', 'high', 'all', 'all_se', 'none', 'treated']
    """

    time: float | None
    note: str

    def _shown(self) -> pd.DataFrame:
        return self.table.iloc[:: -(-len(self.table) // PRINTED)]

    @property
    def useful(self) -> pd.Series:
        """Whether the interval of the net benefit lies above treating all and above treating none,
        by threshold.
        """
        return (self.table["low"] > np.maximum(self.table["all"], 0)).rename("useful")

    def _facts(self) -> Lines:
        best = self.useful
        above = f"the {self.level:.0%} interval is above treating all and none"
        where = f"nowhere: at no threshold {above}"
        if best.any():
            where = f"at {best.sum()} of {len(best)} thresholds {above}"
        return [
            ("predictions", self.note),
            ("until", "" if self.time is None else f"{self.time:g}"),
            ("useful", where),
        ]


@conventional
@float64
def decision_curve(
    estimate: Estimate | Fit,
    thresholds: ArrayLike | None = None,
    *,
    time: float | None = None,
    level: float = 0.95,
    cases: bool = False,
) -> DecisionCurve:
    """Compute the net benefit of treating units whose predicted risk reaches a threshold, with
    treat-all and treat-none.

    Parameters
    ----------
    estimate : Estimate or Fit
        An estimate of `lo.cross_validate`, whose held-out predictions decide; or a fit, whose own
        predictions do.
    thresholds : array_like, optional
        The thresholds, between 0 and 1; by default 0.01 to 0.99.
    time : float, optional
        For Cox's model the time until which risks are predicted; the median time of events by
        default.
    level : float, default 0.95
        The coverage of the intervals, over units at fixed predictions.
    cases : bool, default False
        Whether `sample_weight` of a fit counts cases. Other weights are taken with mean one: c
        times them is the same data.

    Returns
    -------
    DecisionCurve
        One row a threshold.

    Raises
    ------
    TypeError
        If the response is neither two classes nor survival.
    ValueError
        If a threshold is not between 0 and 1, or the estimate has lost its fit.

    See Also
    --------
    leaveout.plot.decision_curve : The picture.

    References
    ----------
    A. J. Vickers and E. B. Elkin, Decision curve analysis: a novel method for evaluating prediction
    models, Medical Decision Making 26, 2006.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> lo.clinical.decision_curve(lo.cross_validate(fit, 10), [0.2, 0.5]).table[
    ...     ["net_benefit", "all", "none"]
    ... ].round(2)
               net_benefit   all  none
    threshold
    0.2               0.37  0.35   0.0
    0.5               0.20 -0.04   0.0
    """
    t = THRESHOLDS
    if thresholds is not None:
        t = floats("decision_curve", "thresholds", thresholds).ravel()
    if not t.size or not ((t > 0) & (t < 1)).all():
        raise ValueError(
            f"decision_curve: thresholds must lie between 0 and 1; got {thresholds!r}."
        )
    level = share("decision_curve: level", level)
    rows = held_out_rows("decision_curve", estimate, time, cases)
    if isinstance(rows.measure, Continuous):
        raise TypeError(
            "decision_curve: needs a response of two classes, or lo.Cox; the response of this model is a number."
        )
    everyone = np.ones(len(rows.unit), bool)
    benefits = []
    p = rows.prediction
    for threshold in t:
        treated = p >= threshold
        value, se = _mean(rows, _contributions(rows, treated, threshold))
        treat_all = _mean(rows, _contributions(rows, everyone, threshold))
        benefits.append([value, se, value, value, *treat_all, 0.0, _mean(rows, treated * 1.0)[0]])
    columns = ["net_benefit", "se", "low", "high", "all", "all_se", "none", "treated"]
    table = pd.DataFrame(benefits, pd.Index(t, name="threshold"), columns)
    half = stats.t.ppf((1 + level) / 2, rows.freedom) * table["se"]
    table["low"] = table["net_benefit"] - half
    table["high"] = table["net_benefit"] + half
    return DecisionCurve(table, rows.measure.fit, level, rows.time, rows.note)


def _mean(rows: HeldOutRows, values: PerRow) -> TwoNumbers:
    """Return the mean over units, and its standard error."""
    return float(np.average(values, weights=rows.weight)), rows.mean(values).value


def _contributions(rows: HeldOutRows, treated: RowFlags, t: float) -> PerRow:
    """Return the contribution of each row to the net benefit, which is their mean."""
    odds = t / (1 - t)
    if not isinstance(rows.measure, Survival):
        y = rows.outcome[0]
        return np.where(treated, y - (1 - y) * odds, 0.0)
    values = np.zeros(len(treated))
    if treated.any():
        assert rows.time is not None
        alive = kaplan_meier_influence(
            rows.measure.censoring.time[rows.unit][treated],
            rows.measure.y[rows.unit][treated],
            rows.weight[treated],
            rows.time,
        )
        values[treated] = 1 - alive * (1 + odds)
    return values
