"""Intervals and sets for a new response from the refits of one fit: jackknife+, jackknife-minmax
and CV+.

    R_i = |y_i − μ_k(i)(x_i)|, k(i) the refit that leaves unit i out, and of a new row x

    plus     −Q(R_i − μ_k(i)(x))  to  Q(R_i + μ_k(i)(x))
    minmax   min_k μ_k(x) − Q(R_i)  to  max_k μ_k(x) + Q(R_i)

Q is the ⌈level (n + 1)⌉-th smallest of n numbers (Barber, Candès, Ramdas & Tibshirani, Annals of
Statistics 49, 2021): the least number with `level` of the weight at or below it, where each unit
has weight 1/(n + 1) and infinity has the rest. For a row of a new group each of G groups has weight
1/(G + 1), shared by its units (Lee, Barber & Willett, arXiv 2306.06342, 2023). For a row of a known
group only the units of this group count (Vovk, Machine Learning 92, 2013).

Of two quantiles, fits a and b, R_i = max(a_k(i)(x_i) − y_i, y_i − b_k(i)(x_i)), and the ends are
those of a and of b (Gupta, Kuchibhotla & Ramdas, Pattern Recognition 127, 2022). Class c is in the
set of x if the units whose score s_k(i)(x_i, y_i) is less than s_k(i)(x, c) have less than `level`
of the weight (Romano, Sesia & Candès, NeurIPS 2020). Scores are

    lac     1 − p_c
    aps     Σ p_j of the classes that are not less probable than c, less u p_c
    raps
    the same and λ for each place of c behind the k-th (Angelopoulos, Bates, Malik & Jordan, ICLR
    2021)

Where new rows have another distribution of x than the units, with ratio w of the densities, unit i
has the weight w_i / (Σ w + w(x)) and infinity w(x) / (Σ w + w(x)): the jackknife+ then covers at
least 2 level − 1 (Prinster, Liu & Saria, JAWS, NeurIPS 2022), if w is known.

The exact refit is within ρ_k of the one reported, in the norm of H: the error of x'θ_k is at most
‖x‖_{H⁻¹} ρ_k, a product of one number for each row and one for each refit, with the rounding of θ_k
and of x'θ_k in it (`refit._distance`). Every R_i and every μ_k(x) is widened by this and by its own
rounding, so the intervals contain those of the exact refits without additional memory. So do the
sets: own scores are taken at their upper bound, new ones at their lower.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from .._runtime import (
    AnyTuple,
    File,
    HeadedTable,
    Indices,
    NamedValues,
    NumpyArray,
    PerRow,
    Rng,
    RowCoefficients,
    RowFlags,
    Slow,
    Strings,
    UnaryFunction,
    UnitFlags,
    conventional,
    float64,
    jax,
    keeping,
    level_numbers,
    read_or_make,
    record,
    silence,
    slices,
    stoppable,
    warn,
)
from ..data import UnitColumn, codes, index_of, match_labels, named_column, share, under_labels
from ..linalg import FUNCTION, UNIT, UP, AnyShape, SparseDesign
from ..models.glm import AbstractRegression, column, kinks
from ..objectives import PerRefit, PerUnit, RefitPoints, display_name
from ..optimize import Fit
from ..plans import Plan, groups as groups_of, kfold, leave_one_out
from ..refit import AbstractRefit, lengths
from ..validation.cross_validate import cache_key, objective_of, reader_for, strategy_of
from ..validation.target import Target
from .influence import mean_errors, refit_all

ClassRows = Float[NumpyArray, "*rows classes"]
Design = RowCoefficients | SparseDesign
Method = Literal["plus", "minmax", "cv+"]
METHODS = get_args(Method)
Score = Literal["lac", "aps", "raps"]
SCORES = get_args(Score)
PREDICTIONS_AT_A_TIME = 2**16  # predictions of some new rows by every refit that fit into a cache
BLOCKS_AT_A_TIME = 64  # blocks in one entry of the checkpoint
COUNT_ROUNDING = 1e-12  # rounding of a number of units
END_ROUNDING = 4 * UNIT  # of ends and residuals, relative to their terms: two or three additions
# error of a linear predictor whose exponential is still a float64 when squared
LARGEST_REACH = 300.0


class Refits(NamedTuple):
    """The raveled θ of every refit, NaN if it does not exist, with a bound on its distance from the
    exact one.

    The distance is in the norm of H. A flag tells whether a theorem proves the bound.
    """

    theta: RefitPoints
    radius: PerRefit
    proved: bool


class Means(NamedTuple):
    """The predictions of the response, and their errors against the exact refits."""

    value: AnyShape
    error: AnyShape


class Probabilities(NamedTuple):
    """Bounds on the probabilities of classes by the exact refits, `[..., classes]`."""

    low: AnyShape
    high: AnyShape


class Held(NamedTuple):
    """Units that the refits leave out, the refit without each, and their shares of the weight."""

    unit: Int[NumpyArray, " held"]
    refit: Int[NumpyArray, " held"]
    weight: Float[NumpyArray, " held"]
    number: int  # of rows, or of groups that are held out whole


@record
class Request:
    """What intervals or sets of new rows are asked for: the arguments of a call beside its fits.

    `score` is that of classes, with what it depends on, and `rng` draws the random shares of
    probabilities, if there are any.
    """

    caller: str
    level: float
    method: Method
    plan: Plan | None
    groups: ArrayLike | None
    new_groups: ArrayLike | None
    offset: ArrayLike | None
    strategy: AbstractRefit
    checkpoint: File | None
    score: Score = "lac"
    raps: tuple[float, int] = (0.1, 2)
    rng: Rng = None
    sample_weight: Target | ArrayLike | None = None
    new_weight: ArrayLike | None = None

    def __post_init__(self) -> None:
        share(f"{self.caller}: level", self.level)
        self.check("method", self.method, METHODS)
        self.check("score", self.score, SCORES)
        if np.shape(self.raps) != (2,) or not (self.raps[0] >= 0 and self.raps[1] >= 0):
            raise ValueError(
                f"{self.caller}: raps must be (λ, k), both zero or more; got {self.raps!r}."
            )

    def check(self, name: str, value: str, choices: Strings) -> None:
        """Raise ValueError if an argument is none of the choices."""
        if value not in choices:
            raise ValueError(
                f"{self.caller}: {name} must be one of {', '.join(choices)}; got {value!r}."
            )

    def draws(self, count: int) -> Float[NumpyArray, " count"]:
        """Draw the random shares of probabilities; zeros, if there are none."""
        if self.rng is None:
            return np.zeros(count)
        return np.random.default_rng(self.rng).random(count)


@conventional
@float64
def interval(
    fit: Fit,
    X_new: ArrayLike,
    *,
    level: float = 0.9,
    method: Method = "plus",
    plan: Plan | None = None,
    groups: ArrayLike | None = None,
    new_groups: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    inverse: UnaryFunction | None = None,
    sample_weight: Target | ArrayLike | None = None,
    new_weight: ArrayLike | None = None,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> pd.DataFrame:
    """Compute prediction intervals for the responses of new rows, whatever their distribution.

    They are made from the held-out residuals of exact refits (jackknife+ and CV+). They are not
    intervals for the mean loss, which `Estimate.interval` gives, nor for the mean of the response
    or a coefficient.

    Parameters
    ----------
    fit : Fit
        The fit of a model whose response is a number; its units must be exchangeable, so
        not a series.
    X_new : array_like, `[rows, features]`
        The new rows, in the form of the data of the fit. A DataFrame's columns are matched by name,
        and go through the formula or the transformers of the host.
    level : float, default 0.9
        The coverage.
    method : {"plus", "minmax", "cv+"}, default "plus"
        "plus" is the jackknife+ with every row left out by itself: it covers at least 2 level − 1
        of new responses, usually about `level`. "minmax" is wider and covers at least `level`.
        "cv+" is "plus" over the folds of `plan`, ten random ones by default.
    plan : Plan, optional
        The plan; it holds out every unit once.
    groups : array_like, `[units]`, or str, optional
        One label a unit of the fit, or the name of their column in its data. Alone, whole groups
        are left out: the intervals then hold for rows of new groups, where rows of one group are
        alike.
    new_groups : array_like, `[rows]`, or str, optional
        The group of each new row, among those of `groups`, or a column of `X_new`. The level then
        holds in each group: only its units count, left out as by `method` or `plan`.
    offset : array_like, `[rows]`, or str, optional
        The offset of the new rows, or a column of `X_new`, where the model has one.
    inverse : callable, optional
        A monotone function of arrays, from the response of the model to what the ends shall be in,
        such as `np.exp` for a model of a logarithm. A TransformedTargetRegressor brings its own.
    sample_weight : Target or array_like, `[units]`, optional
        For new rows of a target population: a result of `Estimate.target`, whose weights are
        estimated, so that the coverage is approximate; or the known ratio of the densities there
        and here at every unit. For "plus" and "cv+", without groups.
    new_weight : array_like, `[rows]`, optional
        The known ratio at every new row, on the scale of `sample_weight`.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.

    Returns
    -------
    DataFrame
        `prediction`, `low` and `high` of every new row. The ends hold for exact refits: they are
        widened by the refits' errors, where these are known.
        `attrs` contains the method, the guaranteed coverage, the largest widening, of the model's
        response, and whether that is `proved`, with all rounding up to there.

    Raises
    ------
    TypeError
        If the response of the model is no number.
    ValueError
        If there are too few rows or groups for the level, the plan does not hold out every unit
        once, X_new does not match the data of the fit, `inverse` is not monotone, or `checkpoint`
        belongs to another run.
    Interrupted
        On Ctrl-C.

    Warns
    -----
    UserWarning
        If a row lies outside the span of the data, its group has too few units for the level, or
        it weighs more than the level leaves; its ends are infinite.

    See Also
    --------
    quantile_interval : Intervals of two quantiles, whose width differs from row to row.
    prediction_sets : Sets of classes.

    References
    ----------
    R. F. Barber, E. J. Candès, A. Ramdas and R. J. Tibshirani, Predictive inference with the
    jackknife+, Annals of Statistics 49, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(40, 1))
    >>> fit = lo.fit(lo.GLM(x, x[:, 0] + rng.normal(size=40), "squared"))
    >>> lo.interval(fit, np.array([[0.0], [1.0]]))[["prediction", "low", "high"]].round(1)
       prediction  low  high
    0         0.3 -1.5   2.1
    1         1.2 -0.7   3.0
    """
    strategy = strategy_of("interval", strategy)
    if isinstance(fit, tuple | list):
        raise TypeError(
            "interval: it takes one fit; those of two quantiles go into lo.quantile_interval(low, high, X_new)."
        )
    request = Request(
        "interval", level, method, plan, groups, new_groups, offset, strategy, checkpoint,
        sample_weight=sample_weight, new_weight=new_weight,
    )  # fmt: skip
    return _intervals((fit,), X_new, inverse, request)


@conventional
@float64
def quantile_interval(
    low: Fit,
    high: Fit,
    X_new: ArrayLike,
    *,
    level: float = 0.9,
    method: Method = "plus",
    plan: Plan | None = None,
    groups: ArrayLike | None = None,
    new_groups: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    inverse: UnaryFunction | None = None,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> pd.DataFrame:
    """Compute prediction intervals from the fits of a low and a high quantile of one response:
    conformalised quantile regression, whose width differs from row to row.

    Parameters
    ----------
    low, high : Fit
        The fits of the two quantiles; their units must be exchangeable, so not a series.
    X_new : array_like, `[rows, features]`
        The new rows, in the form of the data of the fit. A DataFrame's columns are matched by name,
        and go through the formula or the transformers of the host.
    level : float, default 0.9
        The coverage.
    method : {"plus", "minmax", "cv+"}, default "plus"
        "plus" is the jackknife+ with every row left out by itself: it covers at least 2 level − 1
        of new responses, usually about `level`. "minmax" is wider and covers at least `level`.
        "cv+" is "plus" over the folds of `plan`, ten random ones by default.
    plan : Plan, optional
        The plan; it holds out every unit once.
    groups : array_like, `[units]`, or str, optional
        One label a unit of the fit, or the name of their column in its data. Alone, whole groups
        are left out: the intervals then hold for rows of new groups, where rows of one group are
        alike.
    new_groups : array_like, `[rows]`, or str, optional
        The group of each new row, among those of `groups`, or a column of `X_new`. The level then
        holds in each group: only its units count, left out as by `method` or `plan`.
    offset : array_like, `[rows]`, or str, optional
        The offset of the new rows, or a column of `X_new`, where the model has one.
    inverse : callable, optional
        A monotone function of arrays, from the response of the model to what the ends shall be in,
        such as `np.exp` for a model of a logarithm. A TransformedTargetRegressor brings its own.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.

    Returns
    -------
    DataFrame
        `prediction`, half-way between the quantiles, `low` and `high` of every new row, as of
        `interval`.

    Raises
    ------
    TypeError
        If the response of the models is no number.
    ValueError
        If there are too few rows or groups for the level, the plan does not hold out every unit
        once, X_new does not match the data of the fits, these have not one response, or
        `checkpoint` belongs to another run.
    Interrupted
        On Ctrl-C.

    Warns
    -----
    UserWarning
        If a row lies outside the span of the data, or its group has too few units for the level;
        its ends are infinite.

    See Also
    --------
    interval : Intervals from one fit of the mean.

    References
    ----------
    C. Gupta, A. Kuchibhotla and A. Ramdas, Nested conformal prediction and quantile out-of-bag
    ensemble methods, Pattern Recognition 127, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(size=(60, 1))
    >>> y = x[:, 0] * (1 + rng.normal(size=60))
    >>> low, high = (
    ...     lo.fit(lo.GLM(x, y, lo.losses.Quantile(level, width=0.2))) for level in (0.1, 0.9)
    ... )
    >>> table = lo.quantile_interval(low, high, np.array([[0.1], [0.9]]), level=0.8)
    >>> (table["high"] - table["low"]).round(1).tolist()
    [0.6, 2.1]
    """
    strategy = strategy_of("quantile_interval", strategy)
    request = Request(
        "quantile_interval", level, method, plan, groups, new_groups, offset, strategy, checkpoint
    )
    return _intervals((low, high), X_new, inverse, request)


@conventional
@float64
def prediction_sets(
    fit: Fit,
    X_new: ArrayLike,
    *,
    level: float = 0.9,
    method: Method = "plus",
    plan: Plan | None = None,
    groups: ArrayLike | None = None,
    new_groups: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    score: Score = "lac",
    raps: tuple[float, int] = (0.1, 2),
    randomized: bool = False,
    rng: Rng = 0,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> pd.DataFrame:
    """Compute the sets of classes that new rows may have, whatever the distribution.

    They are made from the held-out probabilities of exact refits (jackknife+ and CV+).

    Parameters
    ----------
    fit : Fit
        The fit of a model whose response is a class; its units must be exchangeable, so
        not a series.
    X_new : array_like, `[rows, features]`
        The new rows, in the form of the data of the fit. A DataFrame's columns are matched by name,
        and go through the formula or the transformers of the host.
    level : float, default 0.9
        The coverage.
    method : {"plus", "minmax", "cv+"}, default "plus"
        "plus" is the jackknife+ with every row left out by itself: it covers at least 2 level − 1
        of new responses, usually about `level`. "minmax" is wider and covers at least `level`.
        "cv+" is "plus" over the folds of `plan`, ten random ones by default.
    plan : Plan, optional
        The plan; it holds out every unit once.
    groups : array_like, `[units]`, or str, optional
        One label a unit of the fit, or the name of their column in its data. Alone, whole groups
        are left out: the intervals then hold for rows of new groups, where rows of one group are
        alike.
    new_groups : array_like, `[rows]`, or str, optional
        The group of each new row, among those of `groups`, or a column of `X_new`. The level then
        holds in each group: only its units count, left out as by `method` or `plan`.
    offset : array_like, `[rows]`, or str, optional
        The offset of the new rows, or a column of `X_new`, where the model has one.
    score : {"lac", "aps", "raps"}, default "lac"
        The score of classes. "lac" makes the smallest sets on average; "aps" makes larger ones
        where the model is unsure; "raps" is "aps" with fewer improbable classes.
    raps : (float, int), default (0.1, 2)
        λ and k of "raps". A class costs λ for each place behind the k-th. Choose them on other
        data.
    randomized : bool, default False
        Whether "aps" and "raps" count a random share of the class's own probability, as their
        papers do, which makes sets smaller and sometimes empty, or the whole of it.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers of these shares: a seed, a generator, or None for others in each call.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.

    Returns
    -------
    DataFrame
        One column a class, true where it is in the set of the new row. The sets hold for exact
        refits: they are widened by the refits' errors, where these are known.
        `attrs` contains the method, the guaranteed coverage, the largest widening, of a
        probability, and whether that is `proved`, with all rounding up to there.

    Raises
    ------
    TypeError
        If the response of the model is no class with a probability.
    ValueError
        If there are too few rows or groups for the level, the plan does not hold out every unit
        once, X_new does not match the data of the fit, or `checkpoint`
        belongs to another run.
    Interrupted
        On Ctrl-C.

    Warns
    -----
    UserWarning
        If a row lies outside the span of the data, or its group has too few units for the level;
        its set is that of all classes.

    See Also
    --------
    interval : Intervals for responses that are numbers.

    References
    ----------
    Y. Romano, M. Sesia and E. J. Candès, Classification with valid and adaptive coverage,
    NeurIPS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(40, 1))
    >>> rng.normal(size=40).shape
    (40,)
    >>> kind = np.where(x[:, 0] + 0.5 * rng.normal(size=40) > 0, "tall", "small")
    >>> fit = lo.fit(lo.GLM(x, kind, "multinomial", lo.penalties.Ridge(0.1)))
    >>> lo.prediction_sets(fit, np.array([[0.1], [1.5]]))
       small  tall
    0   True  True
    1  False  True
    """
    strategy = strategy_of("prediction_sets", strategy)
    request = Request(
        "prediction_sets", level, method, plan, groups, new_groups, offset, strategy, checkpoint,
        score, raps, rng if randomized else None,
    )  # fmt: skip
    objective = _regression(request.caller, fit)
    classes = _classes(objective)
    if not classes:
        raise TypeError(
            f"prediction_sets: the response of {display_name(objective)} is a number; lo.interval has its intervals."
        )
    solved = _solve((fit,), X_new, request)
    marks = (solved.ends[:-1] > 0).T | solved.outside[:, None]
    table = pd.DataFrame(marks, index=index_of(X_new), columns=list(classes))
    table.attrs |= solved.facts | {"score": score}
    return table


def _intervals(
    sides: tuple[Fit, ...], X_new: Any, inverse: UnaryFunction | None, request: Request
) -> pd.DataFrame:
    """Compute the intervals of numbers from one fit, or those of two quantiles."""
    caller = request.caller
    objectives = [_regression(caller, side) for side in sides]
    objective = objectives[0]
    if any(map(_classes, objectives)):
        raise TypeError(
            f"{caller}: the response of {display_name(objective)} is a class; lo.prediction_sets(fit, X_new) has their sets."
        )
    if not all(np.array_equal(objective.y, model.y) for model in objectives):
        raise ValueError(
            f"{caller}: two fits must be those of a low and a high quantile of one response."
        )
    solved = _solve(sides, X_new, request)
    low = np.where(solved.outside, -np.inf, solved.ends[0])
    high = np.where(solved.outside, np.inf, solved.ends[1])
    table = pd.DataFrame(
        {"prediction": solved.means(), "low": low, "high": high}, index=index_of(X_new)
    )
    for transformation in (objective.units.inverse, inverse):
        if transformation is not None:
            table = _transform(caller, table, transformation)
    if request.sample_weight is not None:
        table = HeadedTable(table)
        table.heading = [(name, solved.facts[name]) for name in ("method", "coverage")]
    table.attrs |= solved.facts | {"score": "quantiles" if len(sides) > 1 else "residuals"}
    return table


@record
class NewRows:
    """New rows as the models take them: their designs and offsets, one of each fit."""

    sides: tuple[Fit, ...]
    designs: list[Design]
    shifts: list[Any]

    def predict(self, refits: Sequence[Refits], rows: Indices) -> list[Any]:
        """Predict some of the rows by every refit of each fit."""
        return [
            _predict_by_refits(*side, rows)
            for side in zip(self.sides, refits, self.designs, self.shifts, strict=True)
        ]


@record
class Solved:
    """The ends of new rows, or the classes in their sets, and the largest widening of each,
    `[ends + 1, rows]`; the rows that anything may follow, and what the table tells of the call.
    """

    rows: NewRows
    ends: Float[NumpyArray, "ends rows"]
    outside: RowFlags
    facts: NamedValues

    def means(self) -> PerRow:
        """Predict the rows by the fits themselves, on average of these."""
        fits = [Refits(side.vector[None], np.zeros(1), True) for side in self.rows.sides]
        means = self.rows.predict(fits, np.arange(len(self.outside)))
        return np.mean([cast(Means, mean).value[:, 0] for mean in means], axis=0)


def _solve(sides: tuple[Fit, ...], X_new: Any, request: Request) -> Solved:
    """Refit without every unit of the plan, and compute the ends or the sets of new rows."""
    caller = request.caller
    level = request.level
    method = request.method
    groups = reader_for(caller, sides[0]).column("groups", request.groups)
    objectives = [_regression(caller, side) for side in sides]
    objective = objectives[0]
    classes = _classes(objective)
    offset = named_column(X_new, request.offset, f"{caller}: offset")
    new_groups = named_column(X_new, request.new_groups, f"{caller}: new_groups")
    _, X_new, offset, new_groups = match_labels(
        caller, X_new=X_new, offset=offset, new_groups=new_groups
    )
    designs = [side.new_rows(caller, X_new) for side in objectives]
    rows = len(designs[0])
    shifts = [_shift(caller, side, offset, rows) for side in objectives]
    members = _members(caller, objective, groups, new_groups, rows)
    for side in sides:  # the plan must suit both
        chosen = _plan(request, side, None if members else groups)
    parts = []
    small = []
    for where, units, of_group in members or [
        (np.arange(rows), np.ones(objective.num_units, bool), "")
    ]:
        held = _held(objective, chosen, units)
        if level * (1 - COUNT_ROUNDING) > held.number / (held.number + 1):
            small.append((where, of_group, held.number))
        else:
            parts.append((where, held))
    _check_counts(request, "rows" if chosen.clusters is None else "groups", small, len(parts))
    count = objective.num_units
    draws = request.draws(count + rows)
    needed = np.full(rows, level)
    if request.sample_weight is not None:
        ((where, held),) = parts
        weight, needed = _target_weights(request, X_new, chosen, rows, held)
        parts = [(where, held._replace(weight=weight))]
    key = cache_key(
        sides[0],
        chosen,
        request.strategy,
        X_new=designs,
        offset=shifts,
        weights=[held.weight for _, held in parts],
        needed=needed,
        method=method,
    )
    if classes:
        key["score"] = (request.score, *map(float, request.raps), draws)
    if members:
        key["groups"] = [(where, held.unit) for where, held in parts]
    if len(sides) > 1:
        key["high quantile"] = (sides[1].objective, sides[1].vector)
    new_rows = NewRows(sides, designs, shifts)
    result = np.zeros(((len(classes) or 2) + 1, rows))
    with stoppable(caller), keeping(caller, request.checkpoint, key):
        refits = [_refits(request, side, chosen) for side in sides]
        with Slow("new rows", rows) as bar:
            for where, held in parts:
                used, refit_of = np.unique(held.refit, return_inverse=True)
                held = held._replace(refit=refit_of)
                side_refits = [
                    Refits(side.theta[used], side.radius[used], side.proved) for side in refits
                ]
                if classes:
                    rule = functools.partial(_score, score=request.score, raps=request.raps)
                    compute = _sets(
                        sides[0], side_refits[0], held, level, method, rule, draws[:count]
                    )
                    of_rows = draws[count:]
                else:
                    compute = _ends(sides, side_refits, held, method)
                    of_rows = needed
                size = max(
                    1,
                    PREDICTIONS_AT_A_TIME
                    // (max(len(used), len(held.unit)) * max(1, len(classes))),
                )
                # many rows at a time, which a checkpoint keeps
                for k in range(0, len(where), size * BLOCKS_AT_A_TIME):
                    chunk = where[k : k + size * BLOCKS_AT_A_TIME]

                    def make(
                        chunk=chunk,
                        compute=compute,
                        side_refits=side_refits,
                        size=size,
                        of_rows=of_rows,
                    ):
                        blocks = np.split(chunk, range(size, len(chunk), size))
                        ends = [
                            compute(new_rows.predict(side_refits, block), of_rows[block])
                            for block in blocks
                        ]
                        return {"ends": np.hstack(ends)}

                    result[:, chunk] = read_or_make(make)["ends"]
                    bar.advance(len(chunk))
    spans = [_rows_outside_span(caller, *side) for side in zip(sides, designs, strict=True)]
    outside = np.any(spans, axis=0)
    for where, _, _ in small:
        outside[where] = True
    by_row = np.diff(chosen.indptr).max() == 1
    grouped = chosen.clusters is not None
    kind = "jackknife" if by_row else "CV"
    if grouped:
        kind = "leave-one-group-out jackknife"
    slack = 0.0 if by_row or grouped else (2 / int(chosen.held.sum())) ** 0.5
    covered = max(0.0, 2 * level - 1 - slack)
    if method == "minmax" and by_row:
        covered = level
    coverage = f"at least {covered:.1%} of new responses"
    if isinstance(request.sample_weight, Target):
        coverage = f"approximate, since the weights are estimated; {coverage} by known ones"
        covered = 0.0
    facts = {
        "level": level,
        "coverage": coverage,
        "method": f"{kind}{'-minmax' if method == 'minmax' else '+'}{' in each group' if members else ''}",
        # share of new responses; in groups no theorem is known for folds
        "at_least": covered if by_row or not members else 0.0,
        "note": objective.note,
        "widened": float(result[-1].max(initial=0.0)),
        "proved": all(side.proved for side in refits),
    }
    return Solved(new_rows, result, outside, facts)


@conventional
@float64
def predict(
    fit: Fit, X_new: Any, kind: str | None = None, *, offset: ArrayLike | None = None
) -> pd.Series | pd.DataFrame:
    """Predict the response of new rows by a fit.

    For rows with a linear predictor the prediction is the mean, `g⁻¹(x'θ̂ + offset)`, g being the
    link.

    Parameters
    ----------
    fit : Fit
        Any fit whose model predicts other units than its own: of `GLM`, `Regression`, `Additive`,
        `Mixed`, `Cox`, `GaussianProcess`, `CRF`, or of another library.
    X_new : array-like [rows, features] or DataFrame
        New rows, as the data of the fit were. The columns of a DataFrame are matched by name, and
        go through the formula of the model or the transformers of the host; absorbed factors are
        columns too, and levels without an effect in the fit predict NaN. For `Mixed` these are
        the columns of the formula, or `(X, groups)`; levels that the fit has not seen are drawn
        from the population. For `CRF` these are the features of new sentences.
    kind : {"response", "link", "label", "state"}, optional
        "response" is the mean of the response, a probability of each class for classes, the
        relative risk for `Cox`; "link" is the linear predictor; "label" and "state" are the labels
        of `CRF` and their probabilities. The default is the first that the model has.
    offset : array-like [rows], or str, optional
        The offsets of the new rows, or a column of `X_new`, where the model has one.

    Returns
    -------
    Series or DataFrame
        One prediction a row, or one column a class, under the labels of `X_new`.

    Raises
    ------
    TypeError
        If the model has no predictions of other units, as fields and hidden Markov models have not.
    ValueError
        If `kind` is not one of the model's, columns are missing, values are missing or infinite, or
        an offset is missing.

    Warns
    -----
    UserWarning
        If rows lie outside the span of the data: their predictions are those of the coefficients of
        least norm.

    See Also
    --------
    interval : intervals for the responses of new rows.
    cross_predict : held-out predictions of the units of the fit.

    Examples
    --------
    >>> import numpy as np, leaveout as lo
    >>> X = np.arange(6.0)[:, None]
    >>> fit = lo.fit(lo.GLM(X, 1 + 2 * X[:, 0], "squared"))
    >>> lo.predict(fit, [[10.0]]).round(6).tolist()
    [21.0]
    """
    units = objective_of("predict", fit).units
    kind = units.kinds[0] if kind is None else kind
    if kind not in units.kinds:
        raise ValueError(
            f"predict: kind must be one of {', '.join(map(repr, units.kinds))}; got {kind!r}."
        )
    predict_new = (
        _predictions if isinstance(fit.objective, AbstractRegression) else units.predict_new
    )
    if predict_new is None:
        raise TypeError(
            f"predict: {display_name(fit.objective)} has no predictions of other units than those it was fitted on. Held-out "
            "predictions of these are lo.cross_predict(fit, plan)."
        )
    offset = named_column(X_new, offset, "predict: offset")
    table = predict_new(fit, X_new, kind, offset)
    if kind == "response" and units.inverse is not None:
        table[:] = units.to_target(table.to_numpy())
    return table


def _predictions(
    fit: Fit, X_new: Any, kind: str, offset: ArrayLike | None
) -> pd.Series | pd.DataFrame:
    """Predict new rows of a regression."""
    objective: Any = fit.objective
    _, X_new, offset = match_labels("predict", X_new=X_new, offset=offset)
    design = objective.new_rows("predict", X_new)
    shift = _shift("predict", objective, offset, len(design))
    if kinks(objective) is None:
        _rows_outside_span("predict", fit, design)
    theta = np.asarray(fit.theta)
    if kinks(objective) is not None:
        theta = objective.spread(theta)
    eta = design @ theta[..., : design.shape[1]].T
    if shift is not None:
        eta = eta + shift
    loss_parameters = (fit.vector[design.shape[1] :],) if objective.own else ()
    with silence("over"):  # a mean beyond float64 is infinite
        predictions = np.asarray(
            eta if kind == "link" else objective.loss_function.inverse_link(eta, *loss_parameters)
        )
    columns = objective.classes or objective.levels
    return under_labels(predictions, index_of(X_new), "prediction", columns)


def _regression(caller: str, fit: Fit) -> AbstractRegression:
    """Return the fitted objective if it predicts a number; raise TypeError if it does not."""
    if not isinstance(fit, Fit):
        raise TypeError(
            f"{caller}: the first argument must be a Fit, from lo.fit or lo.from_sklearn; got {type(fit).__name__}. "
            "Estimate.interval() is an interval for the mean loss."
        )
    objective = fit.objective
    if not isinstance(objective, AbstractRegression):
        raise TypeError(
            f"{caller}: it needs rows with a linear predictor, of lo.GLM, lo.Regression, or one of another library; got "
            f"{display_name(objective)}. lo.cross_predict(fit, plan) are its held-out predictions, lo.fold_parameters "
            "its refits."
        )
    if not _classes(objective) and (objective.units.classes or len(np.unique(objective.y)) == 2):
        raise TypeError(
            f"{caller}: the response of {display_name(objective)} has classes, or two values only, without a probability of "
            'each: sets of classes need loss="multinomial" or "logistic".'
        )
    return objective


def _classes(objective: AbstractRegression) -> AnyTuple:
    """Return the classes whose probabilities the model predicts.

    None if its response is a number.
    """
    if (
        objective.classes
        or objective.own
        or objective.units.classes != 2
        or not np.isin(objective.y, (0, 1)).all()
    ):
        return objective.classes
    return objective.labels.classes or (0, 1)


def _members(
    caller: str,
    objective: AbstractRegression,
    groups: ArrayLike | None,
    new_groups: ArrayLike | None,
    rows: int,
) -> list[tuple[Indices, UnitFlags, str]]:
    """Return the new rows of each group, a mark of its units, and its name.

    Nothing without groups of new rows.
    """
    if new_groups is None:
        return []
    if groups is None:
        raise ValueError(f"{caller}: new_groups needs groups, the label of each unit of the fit.")
    column = UnitColumn.read(caller, "groups", groups, objective.num_units)
    group_codes, names = codes(caller, "groups", column.in_order(caller, objective.labels.index))
    new_codes, new_names = codes(caller, "new_groups", new_groups)
    if len(new_codes) != rows:
        raise ValueError(
            f"{caller}: new_groups has {len(new_codes)} labels, but there are {rows} rows."
        )
    group_names = names.tolist()
    unknown = [label for label in new_names.tolist() if label not in group_names]
    if unknown:
        raise ValueError(
            f"{caller}: new_groups holds {unknown[0]!r}, a group of no unit of the fit; groups alone is for new groups."
        )
    return [
        (np.flatnonzero(new_codes == k), group_codes == group_names.index(label), str(label))
        for k, label in enumerate(new_names.tolist())
    ]


def _plan(request: Request, fit: Fit, groups: ArrayLike | None) -> Plan:
    """Return the plan, which holds out every unit once.

    Raise ValueError if the given plan does not.
    """
    caller = request.caller
    plan = request.plan
    n = fit.objective.num_units
    if groups is not None and plan is not None:
        raise ValueError(
            f"{caller}: give groups or a plan, not both; groups=labels is plan=lo.groups(labels)."
        )
    if groups is not None:
        plan = groups_of(groups)
    if plan is None:
        plan = kfold(k=min(10, n)) if request.method == "cv+" else leave_one_out()
    plan = reader_for(caller, fit).resolve(plan)
    if plan.serial or plan.weight.any() or (np.bincount(plan.scored_units, minlength=n) != 1).any():
        raise ValueError(
            f"{caller}: it needs a plan that holds out every unit once, and units that are exchangeable: lo.leave_one_out, "
            "lo.kfold or lo.groups, not resamples, random subsets, blocks or the future of a series."
        )
    return plan


def _shift(
    caller: str, objective: AbstractRegression, offset: ArrayLike | None, rows: int
) -> Float[NumpyArray, "rows ..."] | None:
    """Read the offsets of new rows; None if the model has none."""
    if (offset is None) != (objective.offset is None):
        had = "has no offset, but one was given"
        if offset is None:
            had = "has an offset: give that of the new rows as offset="
        raise ValueError(f"{caller}: the model {had}.")
    if offset is None:
        return None
    return column(caller, "offset", offset, rows, objective.per_row)


def _refits(request: Request, fit: Fit, plan: Plan) -> Refits:
    """Run every refit of a plan.

    Warn of refits that do not exist, and raise ValueError if none does.
    """
    caller = request.caller
    results = refit_all(caller, fit, plan, request.strategy, lambda *_: {})
    theta = results["theta"]
    missing = np.isnan(theta[:, 0])
    radius = np.where(missing, 0.0, results["off"])
    unknown = ~np.isfinite(radius)
    if missing.all():
        raise ValueError(
            f"{caller}: no refit exists: without its rows the others do not determine every parameter. Add a penalty, such as "
            "lo.penalties.Ridge(1.0), or drop columns."
        )
    if missing.any():
        warn(
            f"{caller}: {missing.sum()} of {len(missing)} refits do not exist; their rows count as infinitely far off. "
            "A penalty helps."
        )
    if unknown.any():
        warn(
            f"{caller}: how far {unknown.sum()} of {len(unknown)} refits are off is not known, and widens no end; use Exact()."
        )
    return Refits(theta, np.where(unknown, 0.0, radius), bool(results["proved"][~missing].all()))


def _predict_by_refits(
    fit: Fit,
    refits: Refits,
    design: Design,
    shift: Float[NumpyArray, "rows ..."] | None,
    rows: Indices,
) -> Means | Probabilities:
    """Predict some rows by every refit, `[rows, refits]`, or their classes, `[rows, refits,
    classes]`.
    """
    objective: Any = fit.objective
    q = design.shape[1]
    x = design[rows]
    coefficients = refits.theta.reshape(-1, q) if objective.classes else refits.theta[:, :q]
    eta = (x @ coefficients.T).reshape(len(rows), len(refits.theta), *objective.per_row)
    if shift is not None:
        eta += shift[rows, None]
    return _response(
        objective, eta, refits.theta[:, q:], np.multiply.outer(_length(fit, x), refits.radius)
    )


def _predict_held(fit: Fit, refits: Refits, held: Held) -> Means | Probabilities:
    """Predict the response of each unit by the refit without it."""
    objective: Any = fit.objective
    theta = refits.theta[held.refit]
    x = objective.design[held.unit]
    several = max(1, len(objective.classes))
    parts = np.split(theta[:, : several * x.shape[1]], several, axis=1)
    eta = np.stack(
        [objective.lines.unit_predictors(held.unit[:, None], part)[:, 0] for part in parts], -1
    )
    if not objective.classes:
        eta = eta[:, 0]
    if objective.offset is not None:
        eta += objective.offset[held.unit]
    return _response(
        objective, eta, theta[:, x.shape[1] :], _length(fit, x) * refits.radius[held.refit]
    )


def _length(fit: Fit, design: Design) -> PerRow:
    """Return ‖x‖_{H⁻¹}, the largest change of x'θ by a move of length one in the norm of H.

    The largest of any class.
    """
    q = design.shape[1]
    classes = cast(AbstractRegression, fit.objective).classes
    size = BLOCKS_AT_A_TIME * PREDICTIONS_AT_A_TIME // fit.num_params
    blocks = (design[part] for part in slices(len(design), size))
    parts = [x.rows(slice(None)) if isinstance(x, SparseDesign) else x for x in blocks]
    class_lengths = []
    for before in range(0, q * max(1, len(classes)), q):
        around = (0, 0), (before, fit.num_params - q - before)
        class_lengths.append(np.concatenate([lengths(fit, np.pad(x, around)) for x in parts]))
    return np.max(class_lengths, axis=0)


def _response(
    objective: AbstractRegression,
    eta: AnyShape,
    tau: Float[NumpyArray, "refits own"],
    error: AnyShape,
) -> Means | Probabilities:
    """Return the means, or the probabilities of classes, of predictors with errors."""
    link: Any = objective.loss_function.inverse_link

    def inverse_link(eta: NumpyArray) -> NumpyArray:
        with silence("all"):
            return np.asarray(jax.vmap(link, (-1, 0), -1)(eta, tau) if objective.own else link(eta))

    size = np.abs(eta)
    if objective.classes:
        size = size.max(-1)
    error = UP * (error + 4 * UNIT * size)
    # each of two predictors may be off, so that the odds change by the square at most
    if objective.classes:
        value = inverse_link(eta)
        odds = np.exp(2 * np.minimum(error, LARGEST_REACH))[..., None]
        rounding = FUNCTION + value.shape[-1] * UNIT
        low = np.maximum(value - rounding, 0.0)
        high = np.minimum(value + rounding, 1.0)
        return Probabilities(
            low / (low + (1 - low) * odds) - rounding, high / (high + (1 - high) / odds) + rounding
        )
    if (value := inverse_link(eta)) is eta:
        return Means(value, error)
    if _classes(objective):
        ends = [inverse_link(eta - error), inverse_link(eta + error)]
        least = np.minimum(*ends) - FUNCTION
        most = np.maximum(*ends) + FUNCTION
        return Probabilities(np.stack([1 - most, least], -1), np.stack([1 - least, most], -1))
    return Means(*mean_errors(inverse_link, eta, error))


def _rows_outside_span(caller: str, fit: Fit, design: Design) -> RowFlags:
    """Mark rows outside the span of the fitted rows, whose prediction depends on the choice of
    least norm.
    """
    if not len(fit.quadratic.null_space):
        return np.zeros(len(design), bool)
    q = design.shape[1]
    several = len(cast(AbstractRegression, fit.objective).classes)
    parts = fit.quadratic.flat[None, :q]
    if several:
        parts = fit.quadratic.flat.reshape(several, q, -1)
    components = np.stack([design @ part for part in parts])
    if several:
        # a common shift of all classes' predictors changes no probability
        components -= components.mean(0)
    # a share of 1e-8 of a row along unseen directions counts as rounding
    outside = (np.abs(components) > 1e-8 * sum(abs(design) @ np.abs(part) for part in parts)).any(
        (0, 2)
    )
    if outside.any():
        warn(
            f"{caller}: {outside.sum()} of {len(outside)} rows are outside the span of the data, which do not tell them. A penalty "
            "helps."
        )
    return outside


def _beyond(values: AnyShape) -> AnyShape:
    """Replace NaN by infinity, so that an unknown value lies beyond all others."""
    return np.fmin(values, np.inf)


def _check_counts(
    request: Request, unit_name: str, small: list[tuple[NumpyArray, str, int]], served: int
) -> None:
    """Warn of groups of too few units for the level; raise ValueError if no new row is served."""
    level = request.level
    least = int(np.ceil(level / (1 - level) * (1 - COUNT_ROUNDING)))
    if small and not served:
        _, name, count = small[0]
        raise ValueError(
            f"{request.caller}: level={level:g} needs {least} {unit_name} or more, left out one by one; there are {count}"
            f"{f' in group {name}' if name else ''}. Lower it."
        )
    if small:
        listed = ", ".join(f"{name} has {count}" for _, name, count in small[:5]) + (
            ", …" if len(small) > 5 else ""
        )
        warn(
            f"{request.caller}: level={level:g} needs {least} rows or more of a group: {listed}. The ends of its "
            "new rows are infinite, their sets those of all classes. Lower the level, or put small groups together."
        )


def _held(objective: AbstractRegression, plan: Plan, units: UnitFlags) -> Held:
    """Return the held-out units among the given ones."""
    members = plan.held & units[plan.index]
    if objective.sample_weight is not None:
        members &= objective.sample_weight[plan.index] > 0
    unit = plan.index[members]
    refit = plan.refit[members]
    group = np.arange(len(unit)) if plan.clusters is None else level_numbers(plan.clusters[unit])
    size = np.bincount(group)
    return Held(unit, refit, 1 / (len(size) + 1) / size[group], len(size))


def _target_weights(
    request: Request, X_new: Any, plan: Plan, rows: int, held: Held
) -> tuple[Float[NumpyArray, " held"], PerRow]:
    """Return the weights of the held-out units, of sum one, and the sum that the ends of each new
    row need.

    Warn of rows whose ends are infinite.
    """
    if request.method == "minmax" or request.new_groups is not None or plan.clusters is not None:
        raise ValueError(
            "interval: sample_weight= goes with method 'plus' or 'cv+', without groups."
        )
    ratio = request.sample_weight
    new_ratio = request.new_weight
    if isinstance(ratio, Target):
        new_ratio = ratio.weigh(X_new)
        ratio = ratio.weights
    if new_ratio is None:
        raise ValueError(
            "interval: known weights need new_weight=, those of the new rows; a Target, from Estimate.target, has them."
        )
    ratio = UnitColumn.read("interval", "sample_weight", ratio, plan.num_units).in_order(
        "interval", plan.names
    )
    weight = np.asarray(ratio, float)[held.unit]
    new_weight = column("interval", "new_weight", new_ratio, rows)
    if min(weight.min(), new_weight.min()) < 0 or not weight.any():
        raise ValueError("interval: weights are ratios of densities, of 0 or more.")
    needed = request.level * (1 + new_weight / weight.sum())
    beyond = np.sum(needed > 1)
    if beyond:
        warn(
            f"interval: the ends of {beyond} of {rows} rows are infinite: at level={request.level:g} their weights are too "
            "large beside those of all units."
        )
    return weight / weight.sum(), needed


def _ends(
    sides: Sequence[Fit], refits: list[Refits], held: Held, method: str
) -> Callable[[list[Any], NumpyArray], NumpyArray]:
    """Return a function that computes the ends of new rows, and their largest widening, from
    predictions by every refit.

    They follow from the refits' residuals of the units that they leave out. The sides are one fit,
    or two of quantiles.
    """
    y = cast(AbstractRegression, sides[0].objective).y[held.unit]
    weight = held.weight
    held_means = [
        cast(Means, _predict_held(*side, held)) for side in zip(sides, refits, strict=True)
    ]
    below = held_means[0].value - y + held_means[0].error
    above = y - held_means[-1].value + held_means[-1].error
    distance = np.maximum(below, above)
    distance = _beyond(distance + END_ROUNDING * (np.abs(y) + np.abs(distance)))
    in_order = (
        len(held.unit) == len(refits[0].theta) and (held.refit == np.arange(len(held.refit))).all()
    )
    most = max(float(side.error.max(initial=0.0)) for side in held_means)
    by_unit = slice(None) if in_order else held.refit

    def quantile(values: Float[NumpyArray, "rows units"], needed: PerRow) -> PerRow:
        """Return the least value at or below which the `needed` weight lies.

        The values are reordered in place.
        """
        if np.ptp(weight) == 0 and np.ptp(needed) == 0 and needed[0] <= weight.sum():
            rank = int(np.ceil(needed[0] / weight[0] * (1 - COUNT_ROUNDING))) - 1
            values.partition(rank, axis=1)
            return _beyond(values[:, rank])
        order = np.argsort(values, axis=1)
        sums = np.cumsum(weight[order], axis=1)
        rank = np.sum(sums < needed[:, None] * (1 - COUNT_ROUNDING), axis=1)
        ranked = np.take_along_axis(values, order, 1)
        ranked = np.c_[ranked, np.full(len(ranked), np.inf)]
        return _beyond(np.take_along_axis(ranked, rank[:, None], 1)[:, 0])

    def end(bounds: Float[NumpyArray, "rows refits"], needed: PerRow) -> PerRow:
        if method == "minmax":
            return _beyond(bounds.max(1)) + quantile(distance[None].copy(), needed[:1])
        values = bounds[:, by_unit]
        values += distance
        return quantile(values, needed)

    def ends(means: list[Any], needed: PerRow) -> NumpyArray:
        low = means[0]
        high = means[-1]
        outer = np.stack([end(low.error - low.value, needed), end(high.error + high.value, needed)])
        outer += END_ROUNDING * np.abs(outer)
        return np.stack([-outer[0], outer[1], np.maximum(low.error, high.error).max(1) + most])

    return ends


def _sets(
    fit: Fit,
    refits: Refits,
    held: Held,
    level: float,
    method: str,
    score: Callable[..., NumpyArray],
    draws: PerUnit,
) -> Callable[[list[Any], NumpyArray], NumpyArray]:
    """Return a function that computes which classes are in the sets of new rows, and their largest
    widening.

    A class is in the set of a row unless too many units have a lower score than it.
    """
    objective: Any = fit.objective
    missing = np.isnan(refits.theta[:, 0])
    low, high = _predict_held(fit, refits, held)
    of_class = score(high, low, draws[held.unit])  # the upper bound
    held_scores = np.take_along_axis(of_class, objective.y[held.unit].astype(int)[:, None], 1)[:, 0]
    held_scores[missing[held.refit]] = np.inf
    most = float((high - low)[~missing[held.refit]].max(initial=0.0))

    def sets(probabilities: list[Any], draws: NumpyArray) -> NumpyArray:
        low, high = probabilities[0]
        values = score(low, high, draws[:, None])
        values[:, missing] = -np.inf
        below = held_scores[:, None] < (
            values.min(1, keepdims=True) if method == "minmax" else values[:, held.refit]
        )
        if np.ptp(held.weight) == 0:
            share = below.sum(1) * held.weight[0]
        else:
            share = np.einsum("u,ruc->rc", held.weight, below)
        return np.vstack(
            [
                (share < level * (1 - COUNT_ROUNDING)).T,
                (high - low)[:, ~missing].max((1, 2), initial=0.0) + most,
            ]
        )

    return sets


def _score(
    low: ClassRows,
    high: ClassRows,
    draws: AnyShape,
    *,
    score: Score,
    raps: tuple[float, int],
) -> ClassRows:
    """Bound the score of every class from below, given bounds on the probabilities.

    From above, if these are swapped.
    """
    if score == "lac":
        return 1 - high
    values = 1 - draws[..., None] * high
    for c in range(low.shape[-1]):
        class_slice = slice(c, c + 1)
        less = low < high[..., class_slice]
        greater = low > high[..., class_slice]
        less[..., c] = greater[..., c] = False
        values[..., c] -= np.where(less, high, 0.0).sum(-1)
        if score == "raps":
            values[..., c] += raps[0] * np.maximum(1 + greater.sum(-1) - raps[1], 0)
    return values


def _transform(caller: str, table: pd.DataFrame, inverse: UnaryFunction) -> pd.DataFrame:
    """Map predictions and ends by a monotone function.

    Ends that it does not map to a number are infinite.
    """
    values = table.to_numpy()
    finite = np.isfinite(values)
    mapped = np.full(values.shape, np.nan)
    with silence("all"):
        mapped[finite] = np.reshape(inverse(values[finite]), -1)
    step = np.diff(mapped[finite][np.argsort(values[finite])])
    step = step[np.isfinite(step)]
    rounding = 1e-9 * np.abs(step).sum()  # share of the range that counts as rounding
    if (step < -rounding).any() and (step > rounding).any():
        raise ValueError(
            f"{caller}: inverse must be monotone; between the ends it both rises and falls."
        )
    if not (step < -rounding).any():
        middle, low, high = mapped.T
    else:
        middle, low, high = mapped.T[[0, 2, 1]]
    low = np.fmax(low, -np.inf)
    high = np.fmin(high, np.inf)
    return pd.DataFrame({"prediction": middle, "low": low, "high": high}, index=table.index)
