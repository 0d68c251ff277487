"""The held-out loss where a model will be used: in a population with other covariates.

Scored unit i has the loss l_i, covariates z_i and the weight q_i in the mean. It is weighted by

    w_i = q_i exp(λ'z_i),      μ̂ = Σ w_i l_i / Σ w_i                           (Hájek's mean)

where λ is the minimiser of a convex F, a fit of its own:

    margins m   Σ q_i exp(λ'(z_i − m)), so that Σ w_i z_i / Σ w_i = m: entropy balancing, by the
                weights nearest to q that meet them (Hainmueller, Political Analysis 20, 2012)
    rows        −log likelihood, with weights q_i of units and one of new rows, of which are the new
                ones; their odds are the ratio of densities (Qin, Biometrika 85, 1998)

λ and μ solve one system of estimating equations. With g_i the gradient of unit i's term of F, H its
Hessian, and D = Σ w_i (l_i − μ̂) z_i / Σ w_i, unit i contributes

    {w_i (l_i − μ̂) / Σ w − D'H⁻¹ g_i} / (1 − h_i − w_i / Σ w)

to the deviation of μ̂, as if it were left out, h_i being its leverage in F, and the target
D'H⁻¹ C H⁻¹D to the variance, C the covariance of the sum of its gradients: zero if margins are
known. Contributions are summed over what is independent in the plan, as in `standard_errors`. Of a
measure, l_i is its value and the unit's influence on it.

Distance to the nearest unit of the training set may be one of the covariates: of a scored unit to
the training set of its refit, of a new row to all units (target-weighted cross-validation, Brenning
& Suesse, arXiv 2603.29981). A new row is in the area of applicability if it is no farther than the
upper whisker of the units' distances (Meyer & Pebesma, Methods in Ecology and Evolution 12, 2021),
here in standard deviations of the columns, without weights of importance.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from .._runtime import (
    BoolArray,
    FloatArray,
    Lines,
    NamedNumbers,
    PrintedTable,
    Strings,
    is_pandas,
    pd,
    record,
)
from ..data import (
    index_of,
    match_labels,
    named_column,
    numbers,
    pandas_of,
    share,
    under_labels,
)
from ..models.glm import GLM, AbstractRegression, all_finite
from ..objectives import plan_reader
from ..optimize.fit import Fit, fit as minimise
from ..plans import Plan
from .checks import with_all_columns
from .cross_validate import held_out, strategy_of_predictions
from .estimate import Estimate
from .held_out_predictions import measure, measures, prediction_kind
from .mean_intervals import Interval, MetricValue
from .standard_errors import (
    MIN_BLOCKS,
    StandardError,
    average_by_unit,
    independent,
    standard_error,
)

LOSS = "held-out loss"
SHARE_ERROR = 0.01  # by which the shares of a margin may sum to another number than one
# share of a mean, or of one, that counts as rounding
ROUNDING = 1e-9
# standard deviations beyond the farthest unit's distance at which a new row is outside the support
SUPPORT = 2.0
TOLERANCE = 1e-6  # standard deviations by which a margin may be unmet
FEW_UNITS = 100  # units of equal weight below which intervals hold the truth too seldom
SMALLEST = 1e-300  # weight of a unit, which would round to zero
ROWS_LISTED = 8  # rows that a message names


@record
class Covariates:
    """What weights depend on: columns of a table, or expressions in them, and levels of these.

    `model` reads new rows, if the columns are those of its design. The levels of `factors` count,
    by default of the columns that hold no numbers. `coordinates` are the columns in which the
    distance to the training set, another covariate, is taken: () all, None no distance.
    """

    table: "pd.DataFrame"
    model: AbstractRegression | None
    sources: list[str]
    factors: list[str] | None
    names: list[str]
    coordinates: Strings | None = None

    def read(self, X_new: Any) -> "pd.DataFrame":
        """Return new rows in the columns of the table."""
        rows = pandas_of("target", "X_new", X_new)
        if self.model is not None:
            rows = _features(self.model, self.model.new_rows("target", X_new))
        if is_pandas(rows, "DataFrame"):
            return rows
        return pd.DataFrame(np.asarray(rows), index_of(X_new), self.table.columns)

    def levels(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Return the columns of rows, with one of zeros and ones for each level."""
        sources = pd.DataFrame({name: _values(frame, name) for name in self.sources})
        return pd.get_dummies(
            sources, columns=self.factors, dummy_na=self.factors is None, dtype=float
        )

    def matrix(self, frame: "pd.DataFrame") -> FloatArray:
        """Return the covariates of rows, but for distances."""
        columns = self.levels(frame).reindex(columns=self.names, fill_value=0.0)
        matrix = numbers("target", "what is weighed by", columns)
        all_finite("target", "what units and rows are weighed by", matrix)
        return matrix

    def points(self, frame: "pd.DataFrame") -> FloatArray:
        """Compute the places between which distances are, in standard deviations of the units."""
        if self.coordinates:
            columns = [*self.coordinates]
            return frame[columns].to_numpy(float) / np.sqrt(self.table[columns].var().mean())
        return self.matrix(frame) / np.maximum(self.matrix(self.table).std(0), ROUNDING)

    def with_distance(
        self, frame: "pd.DataFrame", distance: FloatArray | None = None
    ) -> FloatArray:
        """Compute the covariates of rows, whose distance is by default that to the nearest unit."""
        matrix = self.matrix(frame)
        if self.coordinates is None:
            return matrix
        if distance is None:
            distance = self.distances(frame)
        return np.c_[matrix, distance]

    def distances(self, frame: "pd.DataFrame") -> FloatArray:
        """Compute the distance of rows to the nearest unit."""
        return scipy.spatial.cKDTree(self.points(self.table)).query(self.points(frame))[0]


@record
class Target(PrintedTable):
    """The held-out loss in a target population, from `Estimate.target`.

    Attributes
    ----------
    weights : Series, `[units]`
        The weights of the units, of mean one over those that are scored.
    measured : dict of str to MetricValue
        The mean held-out loss, and every metric of the call.
    standard_error : StandardError
        The standard error of the loss, with its kind.
    unweighted : float
        The mean of the losses as they are.
    effective_n : float
        The number of units, or cases, of equal weight that these are worth, (Σ w)² / Σ w².
    table : DataFrame
        The mean of every covariate over the scored units, `unweighted` and `weighted`, and in the
        `target`; and the `difference` of the last two, in standard deviations of the units.
    new_rows : DataFrame or None
        Of each row of `X_new` its `distance` to the nearest unit, in standard deviations of the
        columns, and whether it is `applicable`: in the area of applicability.
    kind, covariates, fit, log_scale
        What the weights are made of: in words, the columns, the fit of λ, and the logarithm of
        the weight of a row whose λ'z is zero.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.linspace(-2.0, 2.0, 40)
    >>> cv = lo.cross_validate(lo.fit(lo.GLM(x[:, None], np.sin(3 * x), "squared")), 10)
    >>> target = cv.target(margins={"x0": 0.5})
    >>> round(float(target.weights @ x / target.weights.sum()), 6), round(target.effective_n, 1)
    (0.5, 33.8)
    """

    weights: "pd.Series"
    measured: dict[str, MetricValue]
    standard_error: StandardError
    unweighted: float
    effective_n: float
    table: "pd.DataFrame"
    new_rows: "pd.DataFrame | None"
    kind: str
    covariates: Covariates
    fit: Fit
    log_scale: float

    @property
    def mean(self) -> float:
        """The mean loss in the target population."""
        return self.measured[LOSS].value

    @property
    def se(self) -> float:
        """The standard error of `mean`, with that of the weights."""
        return self.standard_error.value

    def interval(self, level: float = 0.95, *, metric: str = LOSS) -> Interval:
        """Compute an interval for the loss, or a metric of the call, in the target population.

        Parameters
        ----------
        level : float, default 0.95
            The coverage of the interval.
        metric : str, default "held-out loss"
            What the interval is for, by the name that is printed.

        Returns
        -------
        Interval
            A named tuple `low`, `high`, `level`, `method`.

        Raises
        ------
        ValueError
            If the call had no such metric.
        """
        if metric not in self.measured:
            raise ValueError(f"interval: metric must be one of {[*self.measured]}; got {metric!r}.")
        return self.measured[metric].interval(share("interval: level", level))

    def weigh(self, X_new: Any) -> FloatArray:
        """Compute the weights of other rows, on the scale of `weights`.

        Parameters
        ----------
        X_new : array_like, `[rows, features]`, or DataFrame
            The rows, with the columns that the weights depend on.

        Returns
        -------
        ndarray, `[rows]`
            The weights.
        """
        rows = self.covariates.with_distance(self.covariates.read(X_new))
        return np.exp(rows @ self.fit.parameters["coef"] + self.log_scale)

    def _facts(self) -> Lines:
        outside = ""
        if self.new_rows is not None:
            outside = f"{np.sum(~self.new_rows['applicable'])} of {len(self.new_rows)} new rows are outside the area of it"
        return [
            ("target", self.kind),
            *((name, str(value)) for name, value in self.measured.items()),
            ("standard error", self.standard_error.kind),
            ("unweighted", f"{self.unweighted:.6g}"),
            (
                "effective n",
                f"{self.effective_n:.4g} of {np.sum(self.weights > 0)} units; the largest has "
                f"{self.weights.max() / self.weights.sum():.1%} of the weight",
            ),
            ("applicability", outside),
        ]


def target(
    estimate: Estimate,
    X_new: Any,
    margins: Mapping[str, Any] | None,
    n: float | None,
    data: Any,
    distance: bool | list[str],
    metric: Any,
) -> Target:
    """Weigh the scored units of an estimate for a target; the arguments are those of
    `Estimate.target`.
    """
    is_single = (X_new is None) != (margins is None)
    if not is_single or (distance and X_new is None) or not (n is None or n > 0) or estimate.joint:
        raise ValueError(
            "target: give X_new, rows of the target, or its margins, one of them; distance= goes with X_new, n is above 0, and "
            "losses are those of units, not joint ones."
        )
    plan = estimate.plan
    losses = estimate.average(estimate.losses)
    base = np.where(np.isfinite(losses), estimate._weight, 0.0)
    table, model = _table(estimate, data, margins is not None)
    new = new_rows = None
    if margins is not None:
        shares, factors, within = _read_margins(margins, table, base > 0)
        base *= within
        names = [*shares]
        means = np.array([*shares.values()])
        covariates = Covariates(table, model, [*margins], factors, names)
        rows = covariates.matrix(table)
        size = n or np.inf
        source = f"{len(margins)} margins, of {n or 'all'} rows; entropy balancing"
    else:
        coordinates = None
        if distance:
            coordinates = () if distance is True else tuple(distance)
        counted = estimate._weight > 0
        covariates = Covariates(table[counted], model, [*table], None, [], coordinates)
        levels = covariates.levels(table)
        names = levels.columns[levels[base > 0].any()].tolist()
        covariates = replace(covariates, names=names)
        frame = covariates.read(X_new)
        distances = training_distances(covariates.points(table), plan, counted)
        new_rows = _applicability(covariates, frame, distances[base > 0])
        rows = covariates.with_distance(table, np.nan_to_num(distances))
        new = covariates.with_distance(frame)
        names = [*names, "distance"][: new.shape[1]]
        means = new.mean(0)
        size = n or len(new)
        source = f"{len(new)} new rows; logistic ratio of densities"
    cases = np.ones(len(base))
    if plan.of_cases:
        cases = np.where(base > 0, base, 1.0)
    else:  # only the ratios of sample_weight count
        base /= base.sum() / np.sum(base > 0)
    weight, fit, log_scale, sampling_error = _tilt(names, rows, base, cases, means, new, size)
    reweighted = replace(estimate, unit_weight=weight)
    error = sampling_error(losses, weight, plan)
    groups = independent(losses, weight, plan)
    loss = MetricValue(
        reweighted.mean,
        error.value,
        reweighted.approximation_error,
        f"mean over units, {estimate.score}",
        (-np.inf, np.inf),
        np.inf if groups.label is None else groups.units - 1.0,
    )
    measured = {LOSS: loss}
    if metric != ():
        model_fit, strategy, _ = estimate._refittable("target")
        by_name = measures("target", model_fit, metric, plan)
        for name, entry in by_name.items():
            if not entry.weighs:
                raise ValueError(f"target: metric={name!r} takes no sample_weight.")
        strategy = strategy_of_predictions(model_fit, plan, strategy)
        kind = prediction_kind(by_name)
        predictions = held_out(model_fit, plan, strategy, kind, bases=estimate._bases, judged=True)
        measured |= measure(by_name, model_fit, predictions, None, weight, sampling_error)
    weighted = np.average(rows, axis=0, weights=weight)
    balance = {
        "unweighted": np.average(rows, axis=0, weights=base),
        "weighted": weighted,
        "target": means,
        "difference": (weighted - means) / np.maximum(rows.std(0), ROUNDING),
    }
    return Target(
        under_labels(weight, plan.names, "weight"),
        measured,
        error,
        estimate.mean,
        float(weight.sum() ** 2 / np.sum(weight**2 / cases)),
        pd.DataFrame(balance, names),
        new_rows,
        source,
        covariates,
        fit,
        log_scale,
    )


def _features(model: AbstractRegression, rows) -> FloatArray:
    """Return the columns of a design, without the ones of the intercept."""
    return np.asarray(rows @ np.eye(rows.shape[1], model.num_features))


def _table(
    estimate: Estimate, data, has_margins: bool
) -> tuple["pd.DataFrame", AbstractRegression | None]:
    """Return the table whose columns units are weighed by, and the model if it is its design.

    The table of a formula serves for margins, which name columns of it; it holds the response too.
    """
    table = data
    if data is None and estimate.fit is not None:
        model = with_all_columns(estimate.fit)
        if has_margins:
            table = plan_reader("target", model).table
        if table is None and isinstance(model, AbstractRegression):
            model = model.as_given
            design = _features(model, model.design)
            return pd.DataFrame(design, estimate.names(), [*model.names]), model
    _, _, table = match_labels("target", units=pd.Series(0.0, estimate.names()), data=table)
    if not is_pandas(table, "DataFrame") or len(table) != estimate.plan.num_units:
        raise ValueError(
            f"target: give data=, a DataFrame with a row for each of the {estimate.plan.num_units} units, in whose columns "
            "the target may differ."
        )
    return table, None


def _values(frame: "pd.DataFrame", name: str) -> "pd.Series":
    """Return a column of a table, or the values of an expression in its columns."""
    if name in frame:
        return frame[name]
    try:
        return frame.eval(name)
    except (NameError, SyntaxError, TypeError, ValueError):
        return named_column(frame, name, "target")


def _read_margins(
    margins: Mapping[str, Any], table: "pd.DataFrame", scored: BoolArray
) -> tuple[NamedNumbers, list[str], BoolArray]:
    """Return the means of margins by the names of their covariates, the columns of levels, and a
    mark of the units whose levels have a share in the target.
    """
    means = NamedNumbers()
    factors = list[str]()
    within = np.ones(len(table), bool)
    for name, value in margins.items():
        if not isinstance(value, Mapping) and not is_pandas(value, "Series"):
            means[name] = np.nan
            with suppress(TypeError, ValueError):
                means[name] = float(value)
            if not np.isfinite(means[name]):
                raise ValueError(
                    f"target: the margin of {name!r} must be a mean, or shares of levels; got {value!r}."
                )
            continue
        levels = _values(table, name)
        shares = pd.Series(value, dtype=float)
        with suppress(ValueError):  # names that are no levels
            index = shares.index.astype(levels.dtype)
            if all(index == shares.index) or all(index.astype(str) == shares.index.astype(str)):
                shares.index = index
        unit_share = levels.map(shares).to_numpy(float)
        lacking = scored & np.isnan(unit_share)
        if lacking.any() or not (shares >= 0).all() or abs(shares.sum() - 1) > SHARE_ERROR:
            raise ValueError(
                f"target: margins of {name!r} must be shares, 0 or more, of all its levels, and sum to 1; they sum to "
                f"{shares.sum():g}, and {lacking.sum()} scored units have a level without one. Levels are "
                f"{', '.join(map(repr, levels.unique()[:4].tolist()))}{', …' * (levels.nunique() > 4)}."
            )
        within &= unit_share > 0
        factors.append(name)
        shares = shares[(shares > 0) & (shares < 1)] / shares.sum()
        means |= {f"{name}_{level}": share for level, share in shares.items()}
    if not means:
        raise ValueError(
            "target: these margins only select units, whose losses are in per_unit(); give a mean, or shares of levels."
        )
    return means, factors, within


def training_distances(points: FloatArray, plan: Plan, counted: BoolArray) -> FloatArray:
    """Compute the distance of each unit to the nearest `counted` one of the training set of its
    refit, on average over the refits that score it; NaN for a unit that none scores.
    """
    if np.diff(plan.indptr).max() == 1:  # the next but itself
        unit = plan.scored_units
        distance = scipy.spatial.cKDTree(points[counted]).query(points[unit], 2)[0][:, 1]
        return average_by_unit(unit, distance, plan.num_units)
    units = []
    distances = []
    for k in range(plan.num_refits):
        rows = plan._one(k, whole=True).rows
        training = np.flatnonzero(rows.weight * counted)
        units.append(np.flatnonzero(rows.held))
        distances.append(scipy.spatial.cKDTree(points[training]).query(points[units[-1]])[0])
    return average_by_unit(np.concatenate(units), np.concatenate(distances), plan.num_units)


def _applicability(
    covariates: Covariates, frame: "pd.DataFrame", training: FloatArray
) -> "pd.DataFrame":
    """Tabulate the distances of new rows, and whether they are in the area of applicability.

    Raise ValueError that names the rows outside the support of the units.
    """
    distance = covariates.distances(frame)
    outside = distance > training.max() + SUPPORT
    levels = covariates.levels(frame)
    outside |= levels.drop(columns=covariates.names, errors="ignore").any(axis=1).to_numpy()
    if outside.any():
        raise ValueError(
            f"target: {outside.sum()} of {len(frame)} rows of X_new lie outside the support of the scored units, such as "
            f"{frame.index[outside][:ROWS_LISTED].tolist()}: no weights let these stand for them. Leave those rows out of X_new, or "
            "score units like them."
        )
    low, high = np.quantile(training, [0.25, 0.75])
    applicable = distance <= high + 1.5 * (high - low)
    return pd.DataFrame({"distance": distance, "applicable": applicable}, frame.index)


def _tilt(
    names: list[str],
    rows: FloatArray,
    base: FloatArray,
    cases: FloatArray,
    means: FloatArray,
    new: FloatArray | None,
    size: float,
) -> tuple[FloatArray, Fit, float, Callable[..., StandardError]]:
    """Weigh units so that their covariates have the means of the target, or by the odds that a row
    is one of the `new` ones; the target is known from a sample of `size` rows, and units stand for
    `cases`.

    Return the weights, of mean one over the scored units, the fit of λ, the logarithm of the weight
    of a row whose λ'z is zero, and a function that computes the standard error of the mean of
    values of units by these weights.
    """
    scored = base > 0
    units = rows[scored]
    num_units = len(units)
    design = units - means
    design[np.abs(design) < ROUNDING * np.abs(means)] = 0.0  # a column that is constant
    family = "poisson"
    if new is not None:
        design = np.r_[design, new - means]
        family = "logistic"
    is_new = np.arange(len(design)) >= num_units
    row_weight = np.r_[base[scored], np.ones(len(design) - num_units)]
    model = GLM(design, 1.0 * is_new, family, intercept=new is not None, sample_weight=row_weight)
    try:
        fit = minimise(model)
    except RuntimeError as error:
        problem = (
            "target: X_new and the scored units have no common support: a line of the covariates tells them apart. Weigh by "
            "fewer columns (data=), or score units like X_new."
        )
        if new is None:
            problem = _unmet(names, units, means)
        raise ValueError(problem) from error
    F: Any = fit.objective
    eta = F.predictors.eta(fit.vector[None])[0]
    slope, curvature = F.predictors.loss.derivatives(eta, F.y, (1, 2))
    scores = (row_weight * slope)[:, None] * F.design
    leverage = row_weight * curvature * np.sum(F.design * fit.solve(F.design.T).T, axis=1)
    leverage = leverage[:num_units]
    weight = np.zeros(len(base))
    weight[scored] = base[scored] * np.maximum(np.exp(eta[:num_units]), SMALLEST)
    mean = weight[scored].mean()
    if new is None:
        sampling = fit.hessian * weight.sum() / size
    else:
        sampling = len(new) ** 2 / size * np.cov(scores[num_units:], rowvar=False)
    log_scale = fit.parameters["intercept"] - means @ fit.parameters["coef"] - np.log(mean)

    def sampling_error(values: FloatArray, weight: FloatArray, plan: Plan) -> StandardError:
        part = np.where(np.isfinite(values), weight, 0.0)[scored]
        part /= part.sum()
        count = cases[scored]
        worth = 1 / np.sum(part**2 / count)
        slack = 1 - (leverage + part) / count
        if worth < MIN_BLOCKS or slack.min() < ROUNDING:
            reason = f"the weights are worth {worth:.3g} units, of {MIN_BLOCKS} that it needs, or a unit alone meets a margin"
            return StandardError(np.nan, f"not available: {reason}")
        deviation = np.nan_to_num(values[scored])
        deviation = part * (deviation - part @ deviation)
        slope = fit.solve(F.design[:num_units].T @ deviation)
        contributions = np.full(len(values), np.nan)
        of_case = (deviation - scores[:num_units] @ slope) / slack / count
        contributions[scored] = count.sum() * of_case
        units = standard_error(contributions, scored * cases, plan)
        value = np.sqrt(units.value**2 + slope @ sampling @ slope)
        caveat = "; few units' worth, so a rough number" * int(worth < FEW_UNITS)
        return StandardError(float(value), f"{units.kind}, and that of the weights{caveat}")

    return weight / mean, fit, float(log_scale), sampling_error


def _unmet(names: list[str], rows: FloatArray, means: FloatArray) -> str:
    """Describe the margins that the weights which come nearest to all of them miss."""
    spread = np.maximum(rows.std(0), ROUNDING)
    n, count = rows.shape
    eye = np.eye(count)
    sums = np.repeat([1.0, 0.0], [n, 2 * count])
    equations = np.vstack([np.hstack([(rows / spread).T, eye, -eye]), sums])
    nearest = scipy.optimize.linprog(1 - sums, A_eq=equations, b_eq=np.append(means / spread, 1.0))
    nearest_means = nearest.x[:n] @ rows
    unmet = np.abs(nearest_means - means) > TOLERANCE * spread
    unmet |= ~unmet.any()  # at the edge: only weights of zero meet them
    reasons = [
        f"{names[k]} of {means[k]:.6g} (at best {nearest_means[k]:.6g})"
        for k in np.flatnonzero(unmet)
    ]
    return f"target: no positive weights of the scored units meet the margins {', '.join(reasons)}."
