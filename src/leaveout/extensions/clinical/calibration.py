"""Calibration: whether observed shares agree with predicted probabilities.

Of held-out predictions with logit η, the calibration in the large is the intercept of a logistic
regression of y with η as an offset (ideally 0), the slope that of one on η (ideally 1), and the
curve that of one on a restricted cubic spline of η with five knots, or R's lowess (Van Calster et
al., BMC Medicine 17, 2019). Standard errors are those of the regression, or sandwiches over
clusters. Risks until a time are compared with death until then, each row weighted by one over the
censoring's Kaplan–Meier estimate. By resamples b the curve c is corrected for optimism as c −
mean_b (c_b on its resample − c_b on all rows); the band is, point by point, the interval of
`internal_validation`, from the standard deviation of these differences.
"""

from typing import Literal

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float
from numpy.typing import ArrayLike

from ... import Estimate, Exact, Fit, Plan
from ...developer import Lines, NumpyArray, conventional, float64, floats, reader_for, record, share
from .held_out_rows import HeldOutRows, held_out_rows
from .internal_validation import (
    REFIT_TOL,
    Validation,
    check_method,
    interval,
    over_resamples,
    student_quantile,
)
from .performance import Continuous, PerformanceTable, curve, regression

Smoother = Literal["spline", "lowess"]
CURVE_POINTS = 50  # points of a curve
BEYOND = 5  # predictions at each end that the curve leaves out, as rms does


@record
class Calibration(PerformanceTable):
    """Agreement of predictions with outcomes.

    `lo.clinical.calibration` returns it.

    Attributes
    ----------
    curve : DataFrame
        At each point `predicted`: `observed`, the smoothed outcome, with the ends `low` and `high`
        of its band, and, from resamples, `corrected` for optimism.
    table : DataFrame
        `large` (calibration in the large), `intercept` and `slope` with `estimate`, `se`, `low` and
        `high`; `Emax` and `Eavg`, the largest and mean distance of the curve from the predictions.
    predicted, outcome : array
        The prediction and the outcome of each row that counts.
    fit : Fit
        The fit.
    smoother : str
        The smoother of the curve.
    level : float
        The coverage of the intervals.
    time : float or None
        The time until which risks are predicted.
    note : str
        What is printed of the predictions.

    See Also
    --------
    calibration : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> found = lo.clinical.calibration(lo.cross_validate(fit, 10))
    >>> found.curve.columns.tolist(), len(found.curve)
    (['predicted', 'observed', 'low', 'high'], 50)
    """

    curve: pd.DataFrame
    predicted: NumpyArray
    outcome: NumpyArray
    smoother: str
    time: float | None
    note: str

    def _facts(self) -> Lines:
        return [
            ("predictions", self.note),
            ("until", "" if self.time is None else f"{self.time:g}, rows weighted for censoring"),
            ("curve", f"by {self.smoother}, {len(self.curve)} points; intervals {self.level:.0%}"),
        ]


@conventional
@float64
def calibration(
    estimate: Estimate | Validation | Fit,
    plan: Plan | None = None,
    *,
    smoother: Smoother = "spline",
    time: float | None = None,
    predictions: ArrayLike | None = None,
    level: float = 0.95,
    cases: bool = False,
) -> Calibration:
    """Compare predictions with outcomes: the calibration curve with a band, in the large, intercept
    and slope.

    Parameters
    ----------
    estimate : Estimate, Validation or Fit
        An estimate of `lo.cross_validate`, whose held-out predictions are judged; the result of
        `lo.clinical.validate`, by whose resamples the apparent curve is corrected for optimism; or
        a fit, whose own predictions are judged.
    smoother : {"spline", "lowess"}, default "spline"
        The smoother of the curve. "lowess" is R's, without robust iterations; it has a band only
        from resamples.
    time : float, optional
        For Cox's model the time until which risks are predicted; the median time of events by
        default.
    predictions : array_like, optional
        The predictions at which the curve is computed; by default 50 between the fifth lowest and
        the fifth highest.
    plan : Plan, optional
        Resamples for a fit, as in `lo.clinical.validate`.
    level : float, default 0.95
        The coverage of the intervals.
    cases : bool, default False
        Whether `sample_weight` of a fit counts cases. Other weights are taken with mean one: c
        times them is the same data.

    Returns
    -------
    Calibration
        The curve, and the table of measures.

    Raises
    ------
    TypeError
        If the model predicts neither two classes, a number, nor survival.
    ValueError
        If the estimate has lost its fit, arguments do not go together, or lowess would need rows
        that count as whole numbers.
    ImportError
        If lowess is asked for without statsmodels.

    See Also
    --------
    validate : Measures corrected for optimism.
    leaveout.plot.calibration : The picture.

    References
    ----------
    B. Van Calster et al., Calibration: the Achilles heel of predictive analytics, BMC Medicine
    17, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> lo.clinical.calibration(lo.cross_validate(fit, 10)).table.loc[
    ...     ["large", "slope"], ["estimate", "se"]
    ... ].round(2)
           estimate    se
    large     -0.01  0.17
    slope      0.91  0.14
    """
    if smoother not in ("spline", "lowess"):
        raise ValueError(f"calibration: smoother must be 'spline' or 'lowess'; got {smoother!r}.")
    if plan is not None and not isinstance(estimate, Fit):
        raise ValueError(
            "calibration: plan= goes with a fit; an estimate and a validation have their own."
        )
    level = share("calibration: level", level)
    rows = held_out_rows("calibration", estimate, time, cases)
    if isinstance(estimate, Validation):
        plan = estimate.plan
    linear = isinstance(rows.measure, Continuous)
    y, w = rows.outcome
    p = rows.prediction
    eta = rows.score
    if predictions is None:
        inner = np.sort(p)
        if len(p) > 4 * BEYOND:
            inner = inner[BEYOND - 1 : 1 - BEYOND]
        grid = np.linspace(inner[0], inner[-1], CURVE_POINTS)
    else:
        grid = floats("calibration", "predictions", predictions).ravel()
        if not linear and not ((grid > 0) & (grid < 1)).all():
            raise ValueError(
                "calibration: predictions must lie between 0 and 1, as probabilities do."
            )
    Z = np.column_stack([np.ones_like(eta), eta])
    slope, slope_cov = regression(Z, y, w, rows.label, linear)
    # a line has no offset: what it predicts is taken from the outcome
    target = y - eta if linear else y
    offset = 0.0 if linear else eta
    large, large_cov = regression(Z[:, :1], target, w, rows.label, linear, offset)
    z = scipy.stats.t.ppf((1 + level) / 2, rows.freedom)
    if smoother == "lowess" and not np.array_equal(w, np.round(w)):
        raise ValueError(
            "calibration: lowess takes rows that count as whole numbers, not the shares of repeats or weights for censoring; "
            "smoother='spline' takes them."
        )
    observed, low, high = curve(eta, y, w, grid, smoother, linear, rows.label, z)
    points = pd.DataFrame({"predicted": grid, "observed": observed, "low": low, "high": high})
    distances = np.abs(curve(eta, y, w, p, smoother, linear)[0] - p)
    defined = np.isfinite(distances) & (w > 0)
    errors = [np.nan, np.nan]
    if defined.any():
        errors = [distances[defined].max(), np.average(distances[defined], weights=w[defined])]
    value = np.r_[large, slope, errors]
    se = np.sqrt([large_cov[0, 0], *np.diag(slope_cov), np.nan, np.nan])
    ends = {"estimate": value, "se": se, "low": value - z * se, "high": value + z * se}
    table = pd.DataFrame(ends, ["large", "intercept", "slope", "Emax", "Eavg"])
    note = rows.note
    if plan is not None:
        plan = reader_for("calibration", rows.measure.fit).match(plan)
        check_method("calibration", "bootstrap", plan)
        on_own, on_all = _resampled(rows, plan, grid, smoother)
        differences = pd.DataFrame(on_own - on_all)
        used = int(differences.notna().any(axis=1).sum())
        points["corrected"] = observed - differences.mean()
        bounds = (-np.inf, np.inf) if linear else (0.0, 1.0)
        quantile = student_quantile(plan, used, level, rows.measure.weights)
        pairs = zip(points["corrected"], on_own.T, on_all.T, strict=True)
        points[["low", "high"]] = np.array(
            [interval(*triple, bounds, quantile) for triple in pairs]
        )
        note = f"apparent, corrected for optimism by {used} resamples"
    return Calibration(
        table, rows.measure.fit, level, points, p[w > 0], y[w > 0], smoother, rows.time, note
    )


def _resampled(
    rows: HeldOutRows, plan: Plan, grid: NumpyArray, smoother: str
) -> Float[NumpyArray, "2 resamples points"]:
    """Return the curves of resamples on their own rows, and on all.

    NaN where a curve does not reach.
    """
    measure = rows.measure
    linear = isinstance(measure, Continuous)
    y, weight = rows.outcome

    def collect(refits, theta, weights, held):
        curves = np.full((len(refits), 2, len(grid)), np.nan)
        for curve_pair, score, factors in zip(
            curves, measure.scores(measure.predict(theta, weights)), weights, strict=True
        ):
            p = score if linear else scipy.special.expit(score)
            for out, w in zip(curve_pair, (weight * factors, weight), strict=True):
                mask = w > 0
                smooth = curve(score[mask], y[mask], w[mask], grid, smoother, linear)[0]
                out[:] = np.where((grid >= p[mask].min()) & (grid <= p[mask].max()), smooth, np.nan)

        return {"curves": curves}

    resampled = over_resamples("calibration", measure.fit, plan, Exact(REFIT_TOL), collect)
    return resampled.columns["curves"].swapaxes(0, 1)
