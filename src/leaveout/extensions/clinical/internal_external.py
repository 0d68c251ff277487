"""Internal–external validation: each centre is predicted by a refit without it, and the measures
are pooled over centres.

The measures of a centre are those of `performance` on its rows, with standard errors: of
concordance and of mean losses from the influence of each row, of the calibration slope and of the
calibration in the large (the intercept with the linear predictor as an offset) from the
recalibrating regression, of log O/E √((1 − O/n)/O). They are pooled on the scale of the logit of
concordance and the logarithm of O/E (Debray et al. 2017; Snell, Ensor, Debray, Moons & Riley 2018).
"""

import contextlib
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from ... import RESULTS, Exact, Fit, groups as groups_of
from ...developer import (
    METRICS,
    NO_REFIT_CODES,
    AbstractRefit,
    Lines,
    NamedNumbers,
    NumpyArray,
    conventional,
    float64,
    reader_for,
    record,
    share,
    silence,
    strategy_of,
)
from .internal_validation import REFIT_TOL, over_resamples
from .performance import (
    Binary,
    Continuous,
    PerformanceTable,
    PerRow,
    Survival,
    performance,
    regression,
    scale,
    secant,
)
from .pooling import Tau2, pool

# rows of a centre from which a standard error is known to a quarter of itself; fewer are not pooled
POOLED_ROWS = 10
# of the scale on which measures are pooled
ENDS = {"C": (0.0, 1.0), "OE": (0.0, np.inf)}
LINE = -np.inf, np.inf
# values of a perfect model that a picture marks
IDEAL = {"C": np.nan, "slope": 1.0, "large": 0.0, "OE": 1.0}


@record
class InternalExternal(PerformanceTable):
    """Measures in each centre by the refit without it, and pooled over centres.

    `lo.clinical.internal_external` returns it.

    Attributes
    ----------
    centres : DataFrame
        One row a centre: `n`, `events`, the measures with their standard errors (`C`, `C_se`,
        `slope`, `slope_se`, `large`, `large_se`, `OE`, `OE_se`, `brier`, `logloss` and so on), and
        the `result` of its refit. Centres of fewer than ten rows have no standard errors, and are
        not pooled.
    pooled : DataFrame
        One row a measure, on the scale on which it is pooled ("logit C", "log OE"): `mu`, `tau2`,
        `Q`, `I2`, `se`, `hksj_se`, the interval from `low` to `high`, the prediction interval for a
        new centre from `pi_low` to `pi_high`, and `k`, the number of centres.
    table : DataFrame
        The same on the scale of the measure itself: `estimate`, `low`, `high`, `pi_low`, `pi_high`,
        `tau2`, `I2` and `k`.
    fit : Fit
        The fit.
    tau2 : str
        The estimator of the variance between centres.
    level : float
        The coverage of the intervals.

    See Also
    --------
    internal_external : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X, centre = rng.normal(size=(200, 2)), np.arange(200) % 5
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> lo.clinical.internal_external(fit, centre).forest("C").loc["pooled", ["low", "high"]].round(
    ...     2
    ... ).tolist()
    [0.76, 0.88]
    """

    centres: pd.DataFrame
    pooled: pd.DataFrame
    tau2: str

    @conventional
    def forest(self, measure: str = "C") -> pd.DataFrame:
        """Return what a forest picture draws: the measure in each centre, pooled, and predicted for
        a new centre.

        Parameters
        ----------
        measure : str, default "C"
            The measure, a row of `table`.

        Returns
        -------
        DataFrame
            `estimate`, `low`, `high` and `weight` by centre, then of "pooled" and "new centre".
        """
        if measure not in self.table.index:
            raise ValueError(
                f"forest: measure must be one of {', '.join(self.table.index)}; got {measure!r}."
            )
        if self.centres.index.isin(["pooled", "new centre"]).any():
            raise ValueError(
                "forest: rows are added to those of the centres, named 'pooled' and 'new centre'; rename the centre."
            )
        transform, inverse, derivative = scale(*ENDS.get(measure, LINE))
        value = self.centres[measure].to_numpy()
        se = self.centres[f"{measure}_se"].to_numpy()
        between = self.table.loc[measure, "tau2"]
        # a centre whose patients are ranked without a fault has no interval
        with silence("all"):
            half = scipy.stats.norm.ppf((1 + self.level) / 2) * se * np.abs(derivative(value))
            ends = {
                "estimate": value,
                "low": inverse(transform(value) - half),
                "high": inverse(transform(value) + half),
            }
            rows = pd.DataFrame(
                ends | {"weight": 1 / ((se * derivative(value)) ** 2 + between)}, self.centres.index
            )
        for name, kind in (("pooled", ""), ("new centre", "pi_")):
            columns = ["estimate", f"{kind}low", f"{kind}high"]
            rows.loc[name] = [*self.table.loc[measure, columns], np.nan]
        return rows

    def _facts(self) -> Lines:
        shown = [
            name for name in self.table.index if name in ("C", "slope", "large", "OE", "R2", "MSE")
        ]
        lines = []
        for name, row in self.centres.iterrows():
            error = {
                measure: f" ± {row[f'{measure}_se']:.2g}"
                if np.isfinite(row[f"{measure}_se"])
                else ""
                for measure in shown
            }
            measures = ", ".join(
                f"{measure} {row[measure]:.3g}{error[measure]}"
                for measure in shown
                if np.isfinite(row[measure])
            )
            reason = ""
            if RESULTS[row["result"]] in NO_REFIT_CODES:
                reason = f"no refit: {RESULTS[row['result']].message}"
            events = ""
            if "events" in row:
                events = f", {row['events']:.0f} events"
            lines.append(
                (
                    str(name),
                    f"{row['n']:.0f} rows{events}: {measures or reason or 'no measure is defined'}",
                )
            )
        method = f"random effects, τ² by {self.tau2}, Hartung–Knapp, {self.level:.0%}; pi: prediction interval for a new centre"
        num_small = int((self.centres["n"] < POOLED_ROWS).sum())
        return [
            *lines,
            (
                "pooled",
                method
                + (
                    f"; without {num_small} centres of fewer than {POOLED_ROWS} rows"
                    if num_small
                    else ""
                ),
            ),
        ]


@conventional
@float64
def internal_external(
    fit: Fit,
    centres: ArrayLike,
    *,
    tau2: Tau2 = "REML",
    level: float = 0.95,
    cases: bool = False,
    strategy: AbstractRefit | None = None,
) -> InternalExternal:
    """Leave out one centre at a time, predict it by the others, and pool the measures over centres
    by random effects.

    Parameters
    ----------
    fit : Fit
        The fit of a model of two classes, of a number, or of `lo.Cox`.
    centres : array_like, `[units]`
        The label of each unit's centre, study or time period.
    tau2 : {"REML", "DL"}, default "REML"
        The estimator of the variance between centres: restricted maximum likelihood, or DerSimonian
        and Laird's.
    level : float, default 0.95
        The coverage of the intervals.
    cases : bool, default False
        Whether `sample_weight` counts cases. Other weights are taken with mean one: c times them is
        the same data.
    strategy : AbstractRefit, default `Exact(1e-10)`
        The strategy of the refits.

    Returns
    -------
    InternalExternal
        The measures by centre and pooled. Of two classes they are `C` (the area under the ROC
        curve), the calibration `slope`, the calibration in the `large`, `OE` (observed over
        expected events), `brier` and `logloss`; of Cox's model Harrell's `C`, `slope` and `OE`; of
        a number `R2`, `MSE`, `slope` and `large`.

    Raises
    ------
    TypeError
        If the model has another response.
    ValueError
        If there are fewer than two centres, or labels do not match the units.

    See Also
    --------
    validate : Optimism over resamples.

    References
    ----------
    E. W. Steyerberg and F. E. Harrell, Prediction models need appropriate internal,
    internal–external, and external validation, Journal of Clinical Epidemiology 69, 2016.

    T. P. A. Debray et al., A guide to systematic review and meta-analysis of prediction model
    performance, BMJ 356, 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X, centre = rng.normal(size=(200, 2)), np.arange(200) % 5
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=200) > 0) * 1.0, "logistic"))
    >>> lo.clinical.internal_external(fit, centre).table.loc[
    ...     ["C", "slope"], ["estimate", "low", "high"]
    ... ].round(2)
           estimate   low  high
    C          0.83  0.76  0.88
    slope      1.01  0.71  1.30
    """
    measure = performance("internal_external", fit, None, cases)
    if tau2 not in ("REML", "DL"):
        raise ValueError(f"internal_external: tau2 must be 'REML' or 'DL'; got {tau2!r}.")
    level = share("internal_external: level", level)
    strategy = strategy_of("internal_external", strategy, Exact(REFIT_TOL))
    plan = reader_for("internal_external", fit).match(groups_of(centres))
    # in the order of the fit's units
    label, names = (cast(NumpyArray, column) for column in (plan.clusters, plan.labels))
    by_centre = {Binary: _binary, Survival: _survival, Continuous: _linear}[type(measure)]
    counts = measure.weights.weigh

    def collect(refits, theta, weights, held):
        predictions = measure.predict(theta, weights)
        measures = [{} for _ in refits]
        for k in range(len(refits)):
            prediction = (
                predictions[k]
                if isinstance(predictions, NumpyArray)
                else tuple(part[k] for part in predictions)
            )
            if (members := (held[k] > 0) & counts).any():
                rows = Rows(measure.case[members], measure.weights.copies[members])
                measures[k] = by_centre(measure, prediction, members, rows)

        table = pd.DataFrame(measures)
        return {name: table[name].to_numpy(float) for name in table}

    _, result, columns = over_resamples("internal_external", fit, plan, strategy, collect)
    table = pd.DataFrame(columns, index=pd.Index(names, name="centre"))
    number = counts * measure.weights.copies
    counted = {"n": np.bincount(label, number, len(names)).astype(int)}
    if not isinstance(measure, Continuous):
        counted["events"] = np.bincount(label, measure.y * number, len(names)).astype(int)
    table = pd.concat([pd.DataFrame(counted, table.index), table], axis=1)
    table["result"] = result.to_numpy()
    errors = [name for name in table.columns if name.endswith("_se")]
    table[errors] = table[errors].where(
        (table[errors] > 0) & (table["n"] >= POOLED_ROWS).to_numpy()[:, None]
    )
    listed = [name.removesuffix("_se") for name in errors]
    pooled = {}
    natural = {}
    for name in listed:
        transform, inverse, derivative = scale(*ENDS.get(name, LINE))
        value = table[name].to_numpy()
        se = table[f"{name}_se"].to_numpy()
        with silence("all"):
            summary = pool(transform(value), se * np.abs(derivative(value)), tau2, level)
        pooled[{"C": "logit C", "OE": "log OE"}.get(name, name)] = summary
        ends = {"estimate": summary["mu"], **summary[["low", "high", "pi_low", "pi_high"]]}
        natural[name] = {key: inverse(end) for key, end in ends.items()} | dict(
            summary[["tau2", "I2", "k"]]
        )
    of_rows, own_scale = (
        pd.DataFrame.from_dict(summaries, orient="index").astype({"k": int})
        for summaries in (pooled, natural)
    )
    return InternalExternal(own_scale, fit, level, table, of_rows, tau2)


class Rows(NamedTuple):
    """The rows of a centre that weigh.

    The weight of each, and the number of independent ones that it stands for.
    """

    weight: PerRow
    copies: PerRow

    def mean(self, values: PerRow, name: str) -> NamedNumbers:
        """Return a weighted mean, and its standard error over independent rows."""
        mean = np.average(values, weights=self.weight)
        variance = np.sum(self.weight**2 / self.copies * (values - mean) ** 2)
        return {name: float(mean), f"{name}_se": float(np.sqrt(variance) / self.weight.sum())}


@silence("all")
def _binary(measure: Binary, eta: PerRow, members: NumpyArray, rows: Rows) -> NamedNumbers:
    x = eta[members]
    y = measure.y[members]
    w = rows.weight
    p = scipy.special.expit(x)
    observed = w @ y
    measures = {"C": np.nan, "C_se": np.nan}
    if 0 < observed < w.sum():
        measures = rows.mean(METRICS["auc"].pseudo(y, x, w), "C")
    (large,), large_cov = regression(np.ones((len(x), 1)), y, w, None, False, x)
    ratio = observed / (w @ p)
    measures |= _slope(x, y, w, False) | {
        "large": large,
        "large_se": large_cov[0, 0] ** 0.5,
        "OE": ratio,
        "OE_se": ratio * np.sqrt((1 - observed / w.sum()) / observed) if observed > 0 else np.nan,
    }
    return (
        measures
        | rows.mean((y - p) ** 2, "brier")
        | rows.mean(np.logaddexp(0, (1 - 2 * y) * x), "logloss")
    )


@silence("all")
def _survival(measure: Survival, prediction: Any, members: NumpyArray, rows: Rows) -> NamedNumbers:
    eta = prediction[0]
    w = np.where(members, measure.case, 0.0)
    risk = measure.risk[members]
    died = measure.y * w
    measures = {"C": np.nan, "C_se": np.nan}
    with contextlib.suppress(ValueError):  # if no pair is comparable
        measures = rows.mean(METRICS["concordance"].pseudo(risk, eta[members], rows.weight), "C")
    gradient = lambda b: measure.likelihood(b, eta[None], w[None])[1]
    slope = secant(gradient, gradient(np.ones(1)))
    step = 1e-5  # of a central difference of the slope's gradient, whose error is its square
    curvature = (gradient(slope + step) - gradient(slope - step)) / (2 * step)
    expected = w @ prediction[2]
    observed = died.sum()
    ratio = observed / expected
    measures |= {"slope": slope[0], "slope_se": float(curvature[0] ** -0.5), "OE": ratio}
    return measures | {"OE_se": ratio / np.sqrt(observed) if observed > 0 else np.nan}


@silence("all")
def _linear(measure: Continuous, mean: PerRow, members: NumpyArray, rows: Rows) -> NamedNumbers:
    x = mean[members]
    y = measure.y[members]
    w = rows.weight
    measures = {"R2": np.nan, "R2_se": np.nan}
    if np.ptp(y) > 0:
        measures = rows.mean(METRICS["r2"].pseudo(y, x, w), "R2")
    measures |= rows.mean((y - x) ** 2, "MSE")
    return measures | _slope(x, y, w, True) | rows.mean(y - x, "large")


def _slope(x: PerRow, y: PerRow, w: PerRow, linear: bool) -> NamedNumbers:
    """Regress outcomes on predictions; return the slope, and its standard error."""
    (_, slope), cov = regression(np.column_stack([np.ones_like(x), x]), y, w, None, linear)
    return {"slope": slope, "slope_se": cov[1, 1] ** 0.5}
