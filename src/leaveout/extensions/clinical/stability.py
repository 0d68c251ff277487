"""Stability: each unit's prediction by models of other samples of the same size (Riley & Collins,
Biometrical Journal 2023).

    MAPE_i = mean_b |p_b(x_i) − p(x_i)|

p is the fit's prediction of unit i and p_b that of resample b. The instability picture shows all
p_b(x_i) over p(x_i).
"""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit

from ... import Exact, Fit, Plan
from ...developer import (
    AbstractRefit,
    Lines,
    Rng,
    conventional,
    count,
    float64,
    record,
    share,
    strategy_of,
)
from .held_out_rows import held_out_rows
from .internal_validation import REFIT_TOL, over_resamples, resamples
from .performance import Continuous, PerformanceTable


@record
class Stability(PerformanceTable):
    """Each unit's predictions over resamples.

    `lo.clinical.stability` returns it.

    Attributes
    ----------
    units : DataFrame
        One row a unit: the `prediction` of the fit, the ends `low` and `high` of the middle `level`
        of the resamples' predictions, and `mape`, their mean absolute difference from that of the
        fit.
    table : DataFrame
        `mape` and the `width` from `low` to `high` over units: mean, median, 95th percentile and
        largest.
    predictions : array
        The prediction of each unit by each resample that has a refit, `[resamples, units]`; NaN
        where the resample has no unit of its stratum.
    result : Series
        The code of each resample's refit.
    fit : Fit
        The fit.
    level : float
        The share of the resamples between `low` and `high`.
    time : float or None
        The time until which risks are predicted.

    See Also
    --------
    stability : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> found = lo.clinical.stability(fit, num_resamples=50)
    >>> found.predictions.shape, found.reclassified(0.5).max() <= 1
    ((50, 200), np.True_)
    """

    units: pd.DataFrame
    predictions: np.ndarray
    result: pd.Series
    time: float | None

    @conventional
    def reclassified(self, threshold: float) -> pd.Series:
        """Return, for each unit, the share of the resamples on the other side of a threshold than
        the fit.

        Parameters
        ----------
        threshold : float
            The threshold.

        Returns
        -------
        Series
            The shares.
        """
        disagree = (self.predictions >= threshold) != (
            self.units["prediction"].to_numpy() >= threshold
        )
        defined = np.isfinite(self.predictions)
        return pd.Series(
            (disagree & defined).sum(0) / defined.sum(0), self.units.index, name="reclassified"
        )

    def _facts(self) -> Lines:
        num_missing = len(self.result) - len(self.predictions)
        return [
            (
                "resamples",
                f"{len(self.result)}"
                + (
                    f", {num_missing} of which have no refit and are left out"
                    if num_missing
                    else ""
                ),
            ),
            ("until", "" if self.time is None else f"{self.time:g}"),
            ("width", f"of the middle {self.level:.0%} of a unit's predictions"),
        ]


@conventional
@float64
def stability(
    fit: Fit,
    plan: Plan | None = None,
    *,
    num_resamples: int | None = None,
    groups: ArrayLike | None = None,
    time: float | None = None,
    level: float = 0.95,
    cases: bool = False,
    rng: Rng = 0,
    strategy: AbstractRefit | None = None,
) -> Stability:
    """Predict each unit by the refits of resamples, to see how far its prediction moves with
    another sample of this size.

    Parameters
    ----------
    fit : Fit
        The fit of a model of two classes, of a number, or of `lo.Cox`.
    num_resamples : int, optional
        The number of bootstrap resamples, 200 by default.
    groups : array_like, `[units]`, optional
        Labels of groups, which are drawn whole.
    plan : Plan, optional
        Resamples of your own, in place of `num_resamples` and `groups`.
    time : float, optional
        For Cox's model the time until which risks are predicted; the median time of events by
        default.
    level : float, default 0.95
        The share of the resamples between `low` and `high`.
    cases : bool, default False
        Whether `sample_weight` counts cases, which are then drawn one by one. Units of weight zero
        never count.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    strategy : AbstractRefit, default `Exact(1e-10)`
        The strategy of the refits.

    Returns
    -------
    Stability
        The predictions, and their mean absolute error by unit.

    Raises
    ------
    TypeError
        If the model has another response.
    ValueError
        If arguments do not go together, or no resample has a refit.

    See Also
    --------
    leaveout.plot.stability : The picture.

    References
    ----------
    R. D. Riley and G. S. Collins, Stability of clinical prediction models developed using
    statistical or machine learning methods, Biometrical Journal 65, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> lo.clinical.stability(fit, num_resamples=50).table.loc["mape"].round(3).tolist()
    [0.049, 0.045, 0.087, 0.14]
    """
    seed = count("stability: rng", rng, 0)
    level = share("stability: level", level)
    rows = held_out_rows("stability", fit, time, cases)
    strategy = strategy_of("stability", strategy, Exact(REFIT_TOL))
    measure = rows.measure
    plan, _ = resamples("stability", measure, "bootstrap", num_resamples, groups, plan, seed)

    exists, result, columns = over_resamples(
        "stability", fit, plan, strategy, measure.scores_of_refits
    )
    weighted = measure.weights.weigh
    predictions = columns["score"][exists][:, weighted]
    if not isinstance(measure, Continuous):
        predictions = expit(predictions)
    units = pd.DataFrame({"prediction": rows.prediction}, index=fit.objective.units.names)[weighted]
    units["low"], units["high"] = np.nanquantile(
        predictions, [(1 - level) / 2, (1 + level) / 2], axis=0
    )
    units["mape"] = np.nanmean(np.abs(predictions - units["prediction"].to_numpy()), 0)
    measures = pd.DataFrame({"mape": units["mape"], "width": units["high"] - units["low"]})
    measures = measures.iloc[
        np.repeat(np.arange(len(measures)), measure.weights.copies[weighted].astype(int))
    ]
    table = measures.agg(["mean", "median", lambda x: x.quantile(0.95), "max"]).T.set_axis(
        ["mean", "median", "95%", "max"], axis=1
    )
    return Stability(table, fit, level, units, predictions, result, rows.time)
