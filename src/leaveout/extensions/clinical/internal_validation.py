"""Internal validation of a prediction model: how much better it looks on its own data than on new
ones, by refits of one fit.

With M_b(A) a measure of refit b on the rows A, orig the measure of the fit on its own rows, and S_b
the rows of resample b:

    bootstrap         optimism = mean_b [M_b(S_b) − M_b(all rows)]
    (Efron 1983; Harrell 1996)
    crossvalidation   optimism = mean_b [M_b(S_b) − M_b(rows left out)]
    .632              optimism = 0.632 (orig − T),  T = Σ_b W_b M_b(rows never drawn)
    (Efron 1983)
    .632+             the same with 0.632/(1 − 0.368 R), R = (T − orig)/(γ − orig)
    (Efron & Tibshirani 1997)

and corrected = orig − optimism. W_b is the mean over rows left out by b of one over the number of
refits that leave each out. γ is the measure when outcomes and predictions are paired at random; R
is cut to [0, 1].

An interval is for the measure of this fit on new data, M(population). The error of orig, orig −
M(population), is to the data what M_b(S_b) − M_b(all rows) is to the resample. The mean of these
differences is the optimism; their standard deviation s is that of the error:

    corrected ± t s,

with as many degrees of freedom as there are resamples, or clusters, less one. Measures with bounds
have it on the scale of the logit, losses on that of the logarithm. There s is that of (M_b(S_b) −
M_b(all rows)) / m (1 − m), or over m, with m the mean of the two, so that a resample of area one
counts. Resamples' own M_b(S_b), shifted by the optimism (Noma et al. 2021), flatter twice, as the
fit does and as a resample of its rows does: an interval of these is too high.

A resample whose refit does not exist, as where classes separate, a level or a class is lost, leaves
every mean; one whose rows do not define a measure leaves the mean of this measure. Each such
resample is counted.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special, stats

from ... import RESULTS, Exact, Fit, Plan, bootstrap, groups as groups_of
from ...developer import (
    CAPACITY,
    NO_REFIT_CODES,
    AbstractRefit,
    Batch,
    Collected,
    CollectedColumns,
    File,
    Lines,
    NumpyArray,
    PerUnit,
    PlanLike,
    RefitBatch,
    RefitFlags,
    Rng,
    StepResult,
    TwoNumbers,
    UnitWeights,
    among,
    cache_key,
    conventional,
    count,
    float64,
    join_remarks,
    keeping,
    over_refits,
    reader_for,
    record,
    share,
    silence,
    slices,
    strategy_of,
    warn,
    weights_of,
)
from .performance import AbstractPerformance, PerformanceTable, PerRefit, performance, scale

Method = Literal["bootstrap", ".632", ".632+", "crossvalidation"]
METHODS = get_args(Method)
DEFAULT_FOLDS = {"crossvalidation": 10}  # number of folds; of the others:
DEFAULT_RESAMPLES = 200
# relative error of refits, at which measures have ten digits; Newton's last step is no dearer for
# it
REFIT_TOL = 1e-10
SHARE_SEEN = 0.632  # share of the rows that a resample holds, 1 − 1/e
# probabilities over which rms takes the largest error of calibration
EMAX_GRID = np.linspace(0, 1, 2001)[1:-1]
# a bootstrap's is one, that of ten folds a tenth, of halves one half
VARIANCE_OF_COUNTS = 0.75, 1.25
NAMES = tuple(RESULTS)
COLUMNS = "index.orig", "training", "test", "optimism", "index.corrected", "low", "high", "n"


@record
class Validation(PerformanceTable):
    """Measures of a model on its own data, and corrected for optimism.

    `lo.clinical.validate` returns it.

    Attributes
    ----------
    table : DataFrame
        One row a measure. `index.orig` on the rows of the fit; `training` and `test`, the means
        over resamples; `optimism`; `index.corrected`, with the ends `low` and `high` of its
        interval; and `n`, the number of resamples that count.
    training, test : DataFrame
        The measures of each resample, `[resamples, measures]`; NaN where they do not exist.
    result : Series
        The code of each resample's refit, such as "successful" or "not_converged".
    fit : Fit
        The fit.
    plan : Plan
        The resamples.
    method : str
        The method.
    level : float
        The coverage of the intervals.
    note : str
        What else is printed.
    cases : bool
        Whether weights count cases.

    See Also
    --------
    validate : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(80, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=80) > 0) * 1.0, "logistic"))
    >>> found = lo.clinical.validate(fit, num_resamples=50)
    >>> found.apparent["AUC"].round(3), found.corrected["AUC"].round(3), len(found.flagged)
    (np.float64(0.903), np.float64(0.886), 0)
    """

    training: pd.DataFrame
    test: pd.DataFrame
    result: pd.Series
    plan: Plan
    method: str
    note: str
    cases: bool

    @property
    def apparent(self) -> pd.Series:
        """Measures on the rows of the fit."""
        return self.table["index.orig"]

    @property
    def optimism(self) -> pd.Series:
        """What the apparent measures flatter by."""
        return self.table["optimism"]

    @property
    def corrected(self) -> pd.Series:
        """Measures that are corrected for optimism."""
        return self.table["index.corrected"]

    @property
    def flagged(self) -> pd.DataFrame:
        """Resamples that have a code, by number.

        Its name, its message, and whether the resample counts.
        """
        codes = self.result[self.result != RESULTS.successful.name]
        message = [RESULTS[name].message for name in codes]
        used = [RESULTS[name] not in NO_REFIT_CODES for name in codes]
        return pd.DataFrame({"result": codes, "message": message, "used": used}, index=codes.index)

    def _facts(self) -> Lines:
        flagged = self.flagged
        codes = [
            f"{count} {name} ({RESULTS[name].message.split(';')[0]})"
            for name, count in flagged["result"].value_counts().items()
        ]
        num_missing = int((~flagged["used"]).sum())
        missing_note = ""
        if num_missing:
            missing_note = (
                f"{num_missing} of {len(self.result)} have no refit and leave every mean: "
            )
        return [
            (
                "resamples",
                f"{self.plan.num_refits}, method {self.method}, {self.plan.call or 'a plan that was given'}",
            ),
            ("flagged", f"{missing_note}{', '.join(codes)}" if codes else "none"),
            (
                "intervals",
                f"{self.level:.0%}, for this fit on new data"
                if self.table["low"].notna().any()
                else "",
            ),
            ("note", self.note),
        ]


@conventional
@float64
def validate(
    fit: Fit,
    plan: PlanLike | None = None,
    *,
    method: Method | None = None,
    num_resamples: int | None = None,
    groups: ArrayLike | None = None,
    cases: bool = False,
    times: ArrayLike | None = None,
    num_curves: int = 30,
    level: float = 0.95,
    rng: Rng = 0,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> Validation:
    """Validate a prediction model internally: measure it on its own data, and correct the measures
    for optimism.

    Every resample is a refit of the one fit. A resample whose refit does not exist, as where
    classes separate or a level of a factor is lost, is flagged, counted, and left out of every
    mean; none fails the whole.

    Parameters
    ----------
    fit : Fit
        The fit of a model of two classes, of a number, or of `lo.Cox`.
    method : {"bootstrap", ".632", ".632+", "crossvalidation"}, optional
        "bootstrap" is Harrell's correction: measures on each resample less those on all rows.
        ".632" and ".632+" weigh apparent measures with those on rows that were not drawn.
        "crossvalidation" uses rows that are left out. By default the plan decides: resamples are a
        "bootstrap", folds are "crossvalidation"; without a plan it is "bootstrap".
    num_resamples : int, optional
        The number of resamples, 200 by default, or of folds, 10 by default.
    groups : array_like, `[units]`, optional
        Labels of groups, such as centres, which are drawn, or left out, whole.
    plan : Plan, int or splitter, optional
        Resamples or folds of your own, in place of `num_resamples` and `groups`.
    cases : bool, default False
        Whether `sample_weight` counts cases, which are then drawn one by one. Other weights are
        taken with mean one: c times them is the same data.
    times : array_like, optional
        For Cox's model the times at which areas and Brier's score are measured, between whose first
        and last Brier's score is integrated, and up to whose last Uno's concordance is taken. The
        quartiles of the times of events by default.
    num_curves : int, default 30
        The number of resamples whose calibration curves are smoothed, as this takes longer than
        their refits.
    level : float, default 0.95
        The nominal coverage of the intervals. They are for the measure of this fit on new data, not
        for the mean over fits. With ten features and 100 or 200 patients, a third with the event,
        intervals of 95 % hold the area of the fit in 0.97 of 1,000 simulations, apparent ones
        in 0.43 and 0.66. Measures of calibration and of spread have no interval, as it would not
        cover; nor has a plan that is no bootstrap.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    strategy : AbstractRefit, default `Exact(1e-10)`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done. The same call goes on from there after it was stopped or
        killed.

    Returns
    -------
    Validation
        The table, with the measures of each resample and the code of its refit. Measures of two
        classes have the names of rms: Dxy, R2 (Nagelkerke's), Intercept, Slope, Emax, D, U, Q, B
        (Brier's score), g, gp. There are also AUC, average_precision, log_loss, and the largest and
        mean error of calibration by lowess and by a spline. Numbers have R2, MSE, Intercept, Slope
        and g. Cox's model has Dxy, R2, Slope, D, U, Q, g, Harrell's C, Uno's C_uno, AUC(t),
        Brier(t) and IBS.

    Raises
    ------
    TypeError
        If the model has another response.
    ValueError
        If arguments do not go together, or no resample has a refit.

    Warns
    -----
    UserWarning
        If more than a tenth of the resamples have no refit: what is left is a kinder selection.

    See Also
    --------
    calibration : The calibration curve, also corrected for optimism by the resamples of a
        `Validation`.
    cross_validate : Held-out losses and metrics with standard errors.

    References
    ----------
    F. E. Harrell, Regression Modeling Strategies, 2nd edition, Springer, 2015.

    B. Efron and R. Tibshirani, Improvements on cross-validation: the .632+ bootstrap method, JASA
    92, 1997.

    H. Noma et al., Confidence intervals of prediction accuracy measures for multivariable
    prediction models based on the bootstrap-based optimism correction methods, Statistics in
    Medicine 40, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(80, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=80) > 0) * 1.0, "logistic"))
    >>> lo.clinical.validate(fit, num_resamples=50).table.loc[
    ...     ["Dxy", "Slope"], ["index.orig", "optimism", "index.corrected"]
    ... ].round(3)
           index.orig  optimism  index.corrected
    Dxy         0.806     0.034            0.772
    Slope       1.000     0.136            0.864
    """
    seed = count("validate: rng", rng, 0)
    measure = performance("validate", fit, times, cases)
    if method is not None and method not in METHODS:
        raise ValueError(
            f"validate: method must be one of {', '.join(map(repr, METHODS))}; got {method!r}."
        )
    strategy = strategy_of("validate", strategy, Exact(REFIT_TOL))
    level = share("validate: level", level)
    num_curves = count("validate: num_curves", num_curves, 0)
    plan, method = resamples("validate", measure, method, num_resamples, groups, plan, seed)
    if method != "bootstrap" and not plan.held.any():
        raise ValueError(
            f"validate: method={method!r} needs rows that are left out and scored; the plan has none."
        )
    fit_prediction = measure.fit_prediction
    note = ""
    apparent = {
        name: value[0] for name, value in measure(fit_prediction, measure.case[None], True).items()
    }
    smooth = {}
    try:
        if num_curves:
            smooth = measure.curve_errors(fit_prediction[0], measure.case)
    except ImportError as error:
        num_curves = 0
        note = f"no calibration curves: {error}"
    orig = pd.Series(apparent | smooth)

    def collect(refits, theta, weights, held):
        prediction = measure.predict(theta, weights)
        case = measure.case
        parts = [(0, weights * case, True)]
        if method != "crossvalidation":
            parts.append((1, np.broadcast_to(case, weights.shape), False))
        if method != "bootstrap":
            parts.append((2, case * held, False))
        measures = np.full((len(refits), 3, len(orig)), np.nan)
        for part, rows, seen in parts:
            measures[:, part, : len(apparent)] = np.column_stack(
                list(measure(prediction, rows, seen).values())
            )
            for k in np.flatnonzero(refits < num_curves) if smooth else ():
                with silence("all"):
                    measures[k, part, len(apparent) :] = list(
                        measure.curve_errors(prediction[k], rows[k]).values()
                    )
        return {"measures": measures}

    def summarise(resampled):
        exists = resampled.exists
        unmade = np.full((plan.num_refits, 3, len(orig)), np.nan)
        training, on_all, on_held = resampled.columns.get("measures", unmade).swapaxes(0, 1)
        test = on_all if method == "bootstrap" else on_held
        gamma = pd.Series(
            measure.no_information(measure.fit_prediction, measure.case[None])
            if method == ".632+"
            else {},
            dtype=float,
        )
        table = _corrected(
            orig, training[exists], test[exists], plan.some(np.flatnonzero(exists)), method, gamma
        )
        quantile = student_quantile(plan, int(exists.sum()), level, measure.weights)
        for k, (name, value) in enumerate(table["index.corrected"].items()):
            if (bounds := measure.bounds(name)) is not None:
                table.loc[name, ["low", "high"]] = interval(
                    value, training[:, k], on_all[:, k], bounds, quantile
                )
        if "gp" in table.index:
            table = _with_emax(table)
        inner, out = (pd.DataFrame(values, columns=orig.index) for values in (training, test))
        return Validation(
            table,
            fit,
            level,
            inner,
            out,
            resampled.result,
            plan,
            method,
            join_remarks(note, measure.weights.note),
            cases,
        )

    key = cache_key(fit, plan, strategy, method=method, times=times, curves=num_curves, cases=cases)
    with keeping("validate", checkpoint, key):
        resampled = over_resamples("validate", fit, plan, strategy, collect, summarise=summarise)
    if np.mean(resampled.exists) < 0.9:
        warn(
            f"validate: {np.sum(~resampled.exists)} of {plan.num_refits} resamples have no refit and are left out; the others are a "
            "kinder selection. A penalty gives each resample a refit."
        )
    return summarise(resampled)


def resamples(
    caller: str,
    measure: AbstractPerformance,
    method: Method | None,
    num_resamples: int | None,
    groups: ArrayLike | None,
    plan: PlanLike | None,
    seed: int,
) -> tuple[Plan, Method]:
    """Return the resamples of a call, or its folds, and the method that they are for."""
    if plan is not None:
        if num_resamples is not None or groups is not None:
            raise ValueError(
                f"{caller}: a plan has its own resamples; leave num_resamples= and groups= out."
            )
        matched = reader_for(caller, measure.fit).match(plan)
        check_method(caller, method, matched)
        return matched, method or ("bootstrap" if matched.draws else "crossvalidation")
    method = method or "bootstrap"
    if num_resamples is None:
        num_resamples = DEFAULT_FOLDS.get(method, DEFAULT_RESAMPLES)
    number = count(f"{caller}: num_resamples", num_resamples, 2)
    if method == "crossvalidation":
        plan = number if groups is None else groups_of(groups, number)
    elif measure.weights.are_cases and groups is None:
        return bootstrap_of_cases(caller, measure.case, number, seed), method
    else:
        plan = bootstrap(num_resamples=number, groups=groups, rng=seed)
    return reader_for(caller, measure.fit).match(plan), method


def check_method(caller: str, method: Method | None, plan: Plan) -> None:
    """Raise ValueError if a method of resamples is given folds, or one of folds resamples."""
    if method is not None and plan.draws == (method == "crossvalidation"):
        required_plan = "resamples, such as lo.bootstrap"
        actual_plan = "folds"
        way = " lo.cross_validate(fit, folds) has held-out predictions, which lo.clinical.calibration takes."
        if plan.draws:
            required_plan = "folds, such as lo.kfold"
            actual_plan = "resamples"
            way = ""
        raise ValueError(
            f"{caller}: {method!r} takes {required_plan}; the plan {plan.call or ''} is of {actual_plan}.{way}"
        )


def bootstrap_of_cases(caller: str, cases: PerUnit, number: int, seed: int) -> Plan:
    """Draw as many cases as there are.

    A unit of f cases, c of which are drawn, has the weight c/f.
    """
    if np.any(cases % 1):
        raise ValueError(
            f"{caller}: cases=True takes sample_weight as numbers of cases; they are no whole numbers."
        )
    unit = np.flatnonzero(cases)
    weights = (
        np.random.default_rng(seed).multinomial(int(cases.sum()), cases[unit] / cases.sum(), number)
        / cases[unit]
    )
    return Plan(
        np.arange(number + 1) * len(unit),
        np.tile(unit, number),
        weights.ravel(),
        np.zeros(weights.size, bool),
        len(cases),
        call=f"{number} bootstraps of {cases.sum():.0f} cases",
    )


# refits, their θ, their weights `[refits, units]`, and the share of each unit that they leave out
# and score, to arrays with a row for each of these refits
RefitRowsOf = Callable[[NumpyArray, NumpyArray, NumpyArray, NumpyArray], StepResult]


class Resampled(NamedTuple):
    """Refits of resamples: which exist, their codes, and columns by name."""

    exists: RefitFlags
    result: pd.Series
    columns: StepResult


def over_resamples(
    caller: str,
    fit: Fit,
    plan: Plan,
    strategy: AbstractRefit,
    collect: RefitRowsOf,
    *,
    by_unit: bool = False,
    summarise: Callable[[Resampled], object] | None = None,
) -> Resampled:
    """Collect numbers of the refits that exist, some at a time; the others have NaN.

    If they are `by_unit`, `[refits, units]`, those of the scored entries of the plan are kept. On
    Ctrl-C `summarise` makes the result of the refits so far. Raises ValueError if no refit exists.
    """
    n = plan.num_units
    size = max(1, CAPACITY // (4 * n))

    def record(batch: Batch, outcome: RefitBatch) -> Collected:
        rows = batch.rows
        exists = np.flatnonzero(~among(outcome.result, NO_REFIT_CODES))
        held_rows = rows._replace(weight=np.where(rows.held, rows.weight, 1.0))
        columns: StepResult = {}
        for part in slices(len(exists), size):
            lanes = exists[part]
            numbers = collect(
                batch.refits[lanes],
                np.asarray(outcome.theta)[lanes],
                weights_of(rows, n, lanes),
                1 - weights_of(held_rows, n, lanes),
            )
            for name, values in numbers.items():
                if by_unit:
                    values = np.take_along_axis(values, np.minimum(rows.index[lanes], n - 1), 1)
                blank = np.full((len(rows.index), *values.shape[1:]), np.nan)
                columns.setdefault(name, blank)[lanes] = values
        result = {"result": outcome.result}
        return Collected(result, columns) if by_unit else Collected(result | columns, {})

    def resampled(columns: CollectedColumns) -> Resampled:
        codes = columns.pop("result", np.full(plan.num_refits, RESULTS.interrupted))
        result = pd.Series([NAMES[code].name for code in codes], name="result")
        return Resampled(~among(codes, (*NO_REFIT_CODES, RESULTS.interrupted)), result, columns)

    partial = None if summarise is None else lambda columns: summarise(resampled(columns))
    strategy = strategy.of_parameters()
    resamples = resampled(over_refits(caller, fit, plan, strategy, record, partial=partial))
    if not resamples.exists.any():
        message = RESULTS[resamples.result[0]].message
        raise ValueError(
            f"{caller}: none of the {plan.num_refits} refits exists: {message}. A penalty, such as "
            "lo.penalties.Ridge(1.0), gives each one."
        )
    return resamples


def left_out_shares(plan: Plan) -> PerRefit:
    """Compute the weight W of each refit.

    The mean, over units, of one over the number of refits that leave the unit out.
    """
    unit = plan.scored_units
    times = np.bincount(unit, minlength=plan.num_units)
    return np.bincount(plan.scored_refits, 1 / times[unit], plan.num_refits) / np.sum(times > 0)


@silence("invalid")
def _corrected(
    orig: pd.Series,
    train: NumpyArray,
    tested: NumpyArray,
    plan: Plan,
    method: str,
    gamma: pd.Series,
) -> pd.DataFrame:
    """Average the measures over the resamples that define them, and correct the apparent ones."""
    apparent = orig.to_numpy()
    paired = method in ("bootstrap", "crossvalidation")
    defined = np.isfinite(tested) & (np.isfinite(train) if paired else True)
    weight = defined * (np.ones(len(train)) if paired else left_out_shares(plan))[:, None]
    mean = lambda values: (
        np.sum(np.where(defined, np.nan_to_num(values) * weight, 0), 0) / weight.sum(0)
    )
    if paired:
        inner = mean(train)
    else:
        inner = pd.DataFrame(train).mean().to_numpy()
    out = mean(tested)
    optimism = inner - out
    part = SHARE_SEEN
    if method == ".632+":
        distance = gamma.reindex(orig.index).to_numpy() - apparent
        ratio = (out - apparent) / distance
        out = np.where(np.isfinite(distance) & (ratio > 1), apparent + distance, out)
        part = SHARE_SEEN / (1 - (1 - SHARE_SEEN) * np.clip(np.nan_to_num(ratio), 0, 1))
    if not paired:
        optimism = part * (apparent - out)
    columns = {
        "index.orig": apparent,
        "training": inner,
        "test": out,
        "optimism": optimism,
        "index.corrected": apparent - optimism,
        "n": defined.sum(0),
    }
    return pd.DataFrame(columns, orig.index).reindex(columns=list(COLUMNS))


def student_quantile(plan: Plan, used: int, level: float, weights: UnitWeights) -> float:
    """Return the quantile of an interval by as many resamples, or independent clusters.

    NaN for a plan that is no bootstrap.
    """
    copies = weights.copies
    counts = np.sum(copies[plan.index] * (plan.weight - 1) ** 2) / (
        plan.num_refits * np.count_nonzero(copies)
    )
    if not VARIANCE_OF_COUNTS[0] < counts < VARIANCE_OF_COUNTS[1]:
        return np.nan
    clusters = np.inf
    if plan.clusters is not None:
        clusters = len(np.unique(plan.clusters))
    return float(stats.t.ppf((1 + level) / 2, min(used, clusters) - 1))


@silence("all")
def interval(
    value: float,
    train: Float[NumpyArray, " resamples"],
    on_all: Float[NumpyArray, " resamples"],
    bounds: TwoNumbers,
    quantile: float,
) -> Any:
    """Return the ends of the interval of a corrected measure, from those of resamples on their own
    rows and on all.
    """
    transform, inverse, derivative = scale(*bounds)
    moves = np.where(train == on_all, 0.0, (train - on_all) * derivative((train + on_all) / 2))
    half = quantile * pd.Series(moves).std()
    if bounds[0] < value < bounds[1]:
        return inverse(transform(value) + np.array([-half, half]))
    return np.nan, np.nan


def _with_emax(table: pd.DataFrame) -> pd.DataFrame:
    """Insert rms's Emax: the largest error of probabilities that the corrected intercept and slope
    make.
    """
    a, b = table.loc[["Intercept", "Slope"], "index.corrected"]
    most = np.abs(special.expit(a + b * special.logit(EMAX_GRID)) - EMAX_GRID).max()
    row = pd.DataFrame(
        [[0.0, 0.0, most, most, most, np.nan, np.nan, table.loc["Slope", "n"]]], ["Emax"], COLUMNS
    )
    place = table.index.get_loc("Slope") + 1
    return pd.concat([table.iloc[:place], row, table.iloc[place:]]).astype({"n": int})
