"""Intervals for a new response from the refits of one fit: jackknife+, jackknife-minmax and CV+.

    R_i = |y_i − μ_k(i)(x_i)|, k(i) the refit that leaves unit i out, and of a new row x

    plus     −Q(R_i − μ_k(i)(x))  to  Q(R_i + μ_k(i)(x))
    minmax   min_k μ_k(x) − Q(R_i)  to  max_k μ_k(x) + Q(R_i)

Q is the ⌈level (n + 1)⌉-th smallest of n numbers (Barber, Candès, Ramdas & Tibshirani, Annals of Statistics 49, 2021): the
least number with `level` of the weight at or below it, where each unit has weight 1/(n + 1) and infinity has the rest. For a
row of a new group each of G groups has weight 1/(G + 1), shared by its units (Lee, Barber & Willett, arXiv 2306.06342, 2023).

The exact refit is within ρ_k of the one reported, in the norm of H: the error of x'θ_k is at most ‖x‖_{H⁻¹} ρ_k, a product of
one number for each row and one for each refit. Every R_i and every μ_k(x) is widened by this, so the intervals contain those of
the exact refits without additional memory.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from .._runtime.checkpoint import File, StepResult, keeping, read_or_make
from .._runtime.interrupt import stoppable
from .._runtime.jax import float64, jax
from .._runtime.progress import Slow
from ..data.arrays import index_of, match_labels
from ..linalg.sparse_design import SparseDesign
from ..models.glm.active_coefficients import kinks
from ..models.glm.glm import AbstractRegression
from ..models.glm.rows import column
from ..objectives.objective import display_name
from ..optimize.fit import Fit
from ..plans.plan import Batch, Plan, groups as groups_of, kfold, leave_one_out
from ..refit import AbstractRefit, RefitBatch
from ..validation.cross_validate import DEFAULT_REFIT, cache_key, resolve_plan
from .influence import refit_all

Array = np.ndarray
Design = Float[Array, "rows coefficients"] | SparseDesign
Method = Literal["plus", "minmax", "cv+"]
METHODS = get_args(Method)
PREDICTIONS_AT_A_TIME = 2**16  # predictions of some new rows by every refit that fit into a cache
BLOCKS_AT_A_TIME = 64  # blocks in one entry of the checkpoint
COUNT_ROUNDING = 1e-12  # rounding of a number of units


class Refits(NamedTuple):
    """The raveled θ of every refit, NaN if it does not exist, with a bound on its distance from the exact one.

    The distance is in the norm of H. A flag tells whether a theorem proves the bound.
    """

    theta: Float[Array, "refits params"]
    radius: Float[Array, " refits"]
    proved: bool


class Means(NamedTuple):
    """The predictions of the response, and their errors against the exact refits."""

    value: Float[Array, "..."]
    off: Float[Array, "..."]


@float64
def interval(
    fit: Fit,
    X_new: ArrayLike,
    level: float = 0.9,
    method: Method = "plus",
    *,
    groups: ArrayLike | None = None,
    plan: Plan | None = None,
    offset: ArrayLike | None = None,
    refit: AbstractRefit = DEFAULT_REFIT,
    checkpoint: File | None = None,
) -> pd.DataFrame:
    """Compute prediction intervals for the responses of new rows, whatever their distribution.

    They are made from the held-out residuals of exact refits (jackknife+ and CV+). They are not intervals for the mean loss,
    which `Estimate.interval` gives, nor for the mean of the response or a coefficient.

    Parameters
    ----------
    fit : Fit
        The fit of a model whose response is a number; its units must be exchangeable, so not a series.
    X_new : array_like, `[rows, features]`
        The new rows, in the form of the data of the fit. A DataFrame's columns are matched by name, and go through the
        formula or the transformers of the host.
    level : float, default 0.9
        The coverage.
    method : {"plus", "minmax", "cv+"}, default "plus"
        "plus" is the jackknife+ with every row left out by itself: it covers at least 2 level − 1 of new responses, usually
        about `level`. "minmax" is wider and covers at least `level`. "cv+" is "plus" over the folds of `plan`, ten random
        ones by default.
    groups : array_like, `[units]`, optional
        One label a unit of the fit: whole groups are left out. The intervals then hold for rows of new groups, where rows of
        one group are alike.
    plan : Plan, optional
        The plan; it holds out every unit once.
    offset : array_like, `[rows]`, optional
        The offset of the new rows, where the model has one.
    refit : AbstractRefit, default `Certified()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same numbers.

    Returns
    -------
    DataFrame
        `prediction`, `low` and `high` of every new row. The ends hold for exact refits: they are widened by the refits' errors,
        where these are known. `attrs` contains the method, the guaranteed coverage, and the largest widening.

    Raises
    ------
    TypeError
        If the response of the model is not a number.
    ValueError
        If there are too few rows or groups for the level, the plan does not hold out every unit once, X_new does not match
        the data of the fit, or `checkpoint` belongs to another run.
    Interrupted
        On Ctrl-C.

    Warns
    -----
    UserWarning
        If a row lies outside the span of the data; its ends are infinite.

    References
    ----------
    R. F. Barber, E. J. Candès, A. Ramdas and R. J. Tibshirani, Predictive inference with the jackknife+, Annals of
    Statistics 49, 2021.

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
    objective = _regression(fit)
    if not (isinstance(level, float | np.floating) and 0 < level < 1):
        raise ValueError(f"interval: level must lie between 0 and 1; got {level!r}.")
    if method not in METHODS:
        raise ValueError(f"interval: method must be one of {', '.join(METHODS)}; got {method!r}.")
    plan = _plan(objective, method, groups, plan, refit)
    _, X_new, offset = match_labels("interval", X_new=X_new, offset=offset)
    design = objective.new_rows("interval", X_new)
    shift = _shift("interval", objective, offset, len(design))
    of = cache_key(fit, plan, refit, X_new=design, offset=shift, level=float(level), method=method)
    with stoppable("interval"), keeping("interval", checkpoint, of):
        found = _refits(fit, plan, refit)
        ends, parts = _ends(fit, plan, found, level, method), []
        size = BLOCKS_AT_A_TIME * max(1, PREDICTIONS_AT_A_TIME // len(found.theta))
        with Slow("new rows", len(design)) as bar:
            for k in range(0, len(design), size):  # many rows at a time, which a checkpoint keeps
                rows, own = design[k : k + size], None if shift is None else shift[k : k + size]
                make = lambda rows=rows, own=own: {"ends": np.hstack([ends(mean) for mean in _means(fit, found, rows, own)])}
                parts.append(read_or_make(make)["ends"])
                bar.advance(len(rows))
        low, high, widening = np.hstack(parts) if parts else np.zeros((3, 0))
    loose = _rows_outside_span("interval", fit, design)
    low, high = np.where(loose, -np.inf, low), np.where(loose, np.inf, high)
    here = Refits(fit.vector[None], np.zeros(1), True)
    whole = np.concatenate([mean.value[:, 0] for mean in _means(fit, here, design, shift)])
    table = pd.DataFrame({"prediction": whole, "low": low, "high": high}, index=index_of(X_new))
    one, grouped = np.diff(plan.indptr).max() == 1, plan.clusters is not None
    kind = "leave-one-group-out jackknife" if grouped else "jackknife" if one else "CV"
    lost = 0.0 if one or grouped else (2 / int(plan.held.sum())) ** 0.5
    table.attrs |= {
        "level": level,
        "method": f"{kind}{'-minmax' if method == 'minmax' else '+'}",
        "at_least": level if method == "minmax" and one else max(0.0, 2 * level - 1 - lost),  # share of new responses
        "note": objective.note,
        "widened": float(widening.max(initial=0.0)),
        "proved": found.proved,
    }
    return table


@float64
def predict(fit: Fit, X_new: Any, kind: str | None = None, *, offset: ArrayLike | None = None) -> pd.Series | pd.DataFrame:
    """Predict the response of new rows by a fit.

    For rows with a linear predictor the prediction is the mean, `g⁻¹(x'θ̂ + offset)`, g being the link.

    Parameters
    ----------
    fit : Fit
        Any fit whose model predicts other units than its own: of `GLM`, `Regression`, `Additive`, `Mixed`, `Cox`,
        `GaussianProcess`, `CRF`, or of another library.
    X_new : array-like [rows, features] or DataFrame
        New rows, as the data of the fit were. The columns of a DataFrame are matched by name, and go through the formula of the
        model or the transformers of the host. For `Mixed` these are the columns of the formula, or `(X, groups)`; levels that
        the fit has not seen are drawn from the population. For `CRF` these are the features of new sentences.
    kind : {"response", "link", "label", "state"}, optional
        "response" is the mean of the response, a probability of each class for classes, the relative risk for `Cox`; "link" is
        the linear predictor; "label" and "state" are the labels of `CRF` and their probabilities. The default is the first that
        the model has.
    offset : array-like [rows], optional
        The offsets of the new rows, where the model has one.

    Returns
    -------
    Series or DataFrame
        One prediction a row, or one column a class, under the labels of `X_new`.

    Raises
    ------
    TypeError
        If the model has no predictions of other units, as fields and hidden Markov models have not.
    ValueError
        If `kind` is not one of the model's, columns are missing, values are missing or infinite, or an offset is missing.

    Warns
    -----
    UserWarning
        If rows lie outside the span of the data: their predictions are those of the coefficients of least norm.

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
    if not isinstance(fit, Fit):
        raise TypeError(f"predict: the first argument must be a Fit, from lo.fit or lo.from_sklearn; got {type(fit).__name__}.")
    units = fit.objective.units
    kind = units.kinds[0] if kind is None else kind
    if kind not in units.kinds:
        raise ValueError(f"predict: kind must be one of {', '.join(map(repr, units.kinds))}; got {kind!r}.")
    if isinstance(fit.objective, AbstractRegression):
        return _predictions(fit, X_new, kind, offset)
    if units.predict_new is None:
        raise TypeError(
            f"predict: {display_name(fit.objective)} has no predictions of other units than those it was fitted on. Held-out "
            "predictions of these are lo.cross_predict(fit, plan)."
        )
    return units.predict_new(fit, X_new, kind, offset)


def _predictions(fit: Fit, X_new: Any, kind: str, offset: ArrayLike | None) -> pd.Series | pd.DataFrame:
    """Predict new rows of a regression."""
    objective: Any = fit.objective
    _, X_new, offset = match_labels("predict", X_new=X_new, offset=offset)
    design = objective.new_rows("predict", X_new)
    shift = _shift("predict", objective, offset, len(design))
    if kinks(objective) is None:
        _rows_outside_span("predict", fit, design)
    known: Any = fit.parameters
    coefficients = np.concatenate([known["coef"], known["intercept"][..., None]], -1) if objective.intercept else known["coef"]
    if objective.center is not None:  # new rows are centred too, as the natural intercept has lost digits
        coefficients = fit.vector
    eta = design @ coefficients.T
    eta = eta if shift is None else eta + shift
    own = (fit.vector[design.shape[1] :],) if objective.own else ()
    with np.errstate(over="ignore"):  # a mean beyond float64 is infinite
        found = np.asarray(eta if kind == "link" else objective.loss_function.inverse_link(eta, *own))
    if found.ndim > 1:
        return pd.DataFrame(found, index=index_of(X_new), columns=list(objective.classes or objective.levels))
    return pd.Series(found, index=index_of(X_new), name="prediction")


def _regression(fit: Fit) -> AbstractRegression:
    """Return the fitted objective if it predicts a number; raise TypeError if it does not."""
    if not isinstance(fit, Fit):
        raise TypeError(
            f"interval: the first argument must be a Fit, from lo.fit or lo.from_sklearn; got {type(fit).__name__}. "
            "Estimate.interval() is an interval for the mean loss."
        )
    objective = fit.objective
    if not isinstance(objective, AbstractRegression):
        raise TypeError(
            "interval: it needs rows with a linear predictor, of lo.GLM, lo.Regression, or one of another library; got "
            f"{display_name(objective)}. lo.cross_predict(fit, plan) are its held-out predictions, lo.fold_parameters "
            "its refits."
        )
    if objective.units.classes or len(np.unique(objective.y)) == 2:
        raise TypeError(
            f"interval: the response of {display_name(objective)} has classes, or two values only: an interval says nothing "
            "of it. Its held-out probabilities are lo.cross_predict(fit, plan)."
        )
    return objective


def _plan(
    objective: AbstractRegression, method: str, groups: ArrayLike | None, plan: Plan | None, refit: AbstractRefit
) -> Plan:
    """Return the plan, which holds out every unit once; raise ValueError if the given plan does not."""
    n = objective.num_units
    if groups is not None and plan is not None:
        raise ValueError("interval: give groups or a plan, not both; groups=labels is plan=lo.groups(labels).")
    if groups is not None:
        plan = groups_of(groups)
    if plan is None:
        plan = kfold(n, min(10, n), seed=0) if method == "cv+" else leave_one_out(n)
    plan = resolve_plan("interval", objective, plan, refit)
    if plan.serial or plan.weight.any() or (np.bincount(plan.index[plan.held], minlength=n) != 1).any():
        raise ValueError(
            "interval: it needs a plan that holds out every unit once, and units that are exchangeable: lo.leave_one_out, "
            "lo.kfold or lo.groups, not resamples, random subsets, blocks or the future of a series."
        )
    return plan


def _shift(caller: str, objective: AbstractRegression, offset: ArrayLike | None, rows: int) -> Float[Array, "rows ..."] | None:
    """Read the offsets of new rows; None if the model has none."""
    if (offset is None) != (objective.offset is None):
        had = "has an offset: give that of the new rows as offset=" if offset is None else "has no offset, but one was given"
        raise ValueError(f"{caller}: the model {had}.")
    each = (len(objective.classes),) if objective.classes else ()
    return None if offset is None else column(caller, "offset", offset, rows, each)


def _refits(fit: Fit, plan: Plan, refit: AbstractRefit) -> Refits:
    """Run every refit of a plan; warn of refits that do not exist, and raise ValueError if none does."""

    def proofs(_: Batch, done: RefitBatch, theta: Array) -> StepResult:
        return {"proved": np.broadcast_to(0.0 if done.proved is None else done.proved, len(theta))}

    found = refit_all("interval", fit, plan, refit, proofs)
    theta, lost = found["theta"], np.isnan(found["theta"][:, 0])
    radius = np.where(lost, 0.0, found["off"])
    unknown = ~np.isfinite(radius)
    if lost.all():
        raise ValueError(
            "interval: no refit exists: without its rows the others do not determine every parameter. Add a penalty, such as "
            "lo.penalties.Ridge(1.0), or drop columns."
        )
    if lost.any():
        _warn(f"{lost.sum()} of {len(lost)} refits do not exist; their rows count as infinitely far off. A penalty helps.")
    if unknown.any():
        _warn(f"how far {unknown.sum()} of {len(unknown)} refits are off is not known, and widens no end; use Exact().")
    return Refits(theta, np.where(unknown, 0.0, radius), bool(found["proved"][~lost].all()))


def _warn(message: str, caller: str = "interval") -> None:
    warnings.warn(f"{caller}: {message}", stacklevel=5)


def _means(fit: Fit, refits: Refits, design: Design, shift: Float[Array, " rows"] | None) -> Iterator[Means]:
    """Predict rows by every refit, `[rows, refits]`, some rows at a time."""
    objective, q = _regression(fit), design.shape[1]
    size, coefficients, tau = max(1, PREDICTIONS_AT_A_TIME // len(refits.theta)), refits.theta[:, :q].T, refits.theta[:, q:]
    length = _length(fit, design)
    for k in range(0, len(design), size):
        some = slice(k, k + size)
        eta = design[some] @ coefficients
        if shift is not None:
            eta += shift[some, None]
        yield _response(objective, eta, tau, np.multiply.outer(length[some], refits.radius))


def _length(fit: Fit, design: Design) -> Float[Array, " rows"]:
    """Return ‖x‖_{H⁻¹}, the largest change of x'θ by a move of length one in the norm of H."""
    own = fit.num_params - design.shape[1]
    size = max(1, BLOCKS_AT_A_TIME * PREDICTIONS_AT_A_TIME // fit.num_params)
    some = (design[k : k + size] for k in range(0, len(design), size))
    parts = [x.rows(slice(None)) if isinstance(x, SparseDesign) else x for x in some]
    return np.concatenate([np.linalg.norm(fit.whiten(np.pad(x, ((0, 0), (0, own))) if own else x), axis=1) for x in parts])


def _response(
    objective: AbstractRegression,
    eta: Float[Array, "*rows refits"],
    tau: Float[Array, "refits own"],
    reach: Float[Array, "..."],
) -> Means:
    """Return the means of predictors with errors `reach`."""
    link: Any = objective.loss_function.inverse_link

    def of(eta: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(jax.vmap(link, (-1, 0), -1)(eta, tau) if objective.own else link(eta))

    value = of(eta)
    if value is eta:
        return Means(value, reach)
    off = np.maximum(*(np.abs(of(eta + sign * reach) - value) for sign in (1, -1)))
    return Means(value, np.where(np.isnan(off), np.where(np.isnan(value), 0.0, np.inf), off))


def _rows_outside_span(caller: str, fit: Fit, design: Design) -> Bool[Array, " rows"]:
    """Mark rows outside the span of the fitted rows, whose prediction depends on the choice of least norm."""
    if not len(fit.null_space):
        return np.zeros(len(design), bool)
    q, several = design.shape[1], len(cast(AbstractRegression, fit.objective).classes)
    parts = fit.flat.reshape(several, q, -1) if several else fit.flat[None, :q]
    moved = np.stack([design @ part for part in parts])
    if several:
        moved -= moved.mean(0)  # a common shift of all classes' predictors changes no probability
    # a share of 1e-8 of a row along unseen directions counts as rounding
    loose = (np.abs(moved) > 1e-8 * sum(abs(design) @ np.abs(part) for part in parts)).any((0, 2))
    if loose.any():
        _warn(
            f"{loose.sum()} of {len(loose)} rows are outside the span of the data, which do not tell them. A penalty helps.",
            caller,
        )
    return loose


def _beyond(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Replace NaN by infinity, so that an unknown value lies beyond all others."""
    return np.where(np.isnan(values), np.inf, values)


def _ends(fit: Fit, plan: Plan, refits: Refits, level: float, method: str) -> Callable[[Means], Array]:
    """Return a function that computes the ends of new rows, and their largest widening, from predictions by every refit.

    They follow from the refits' residuals of the units that they leave out; ValueError if these are too few.
    """
    objective = _regression(fit)
    there = True if objective.sample_weight is None else objective.sample_weight[plan.index] > 0
    unit, refit = plan.index[plan.held & there], plan.refit[plan.held & there]
    group = np.arange(len(unit)) if plan.clusters is None else np.unique(plan.clusters[unit], return_inverse=True)[1]
    size = np.bincount(group)
    if level * (1 - COUNT_ROUNDING) > len(size) / (len(size) + 1):
        what, least = "rows" if plan.clusters is None else "groups", int(np.ceil(level / (1 - level) * (1 - COUNT_ROUNDING)))
        raise ValueError(
            f"interval: level={level:g} needs {least} {what} or more, left out one by one; there are {len(size)}. Lower it."
        )
    x, theta = objective.design[unit], refits.theta[refit]
    eta = objective.lines.at(unit[:, None], theta[:, : x.shape[1]])[:, 0]
    eta += 0.0 if objective.offset is None else objective.offset[unit]
    own = _response(objective, eta, theta[:, x.shape[1] :], _length(fit, x) * refits.radius[refit])
    distance = _beyond(np.abs(objective.y[unit] - own.value) + own.off)
    in_order = len(unit) == len(refits.theta) and (refit == np.arange(len(refit))).all()
    weight = 1 / (len(size) + 1) / size[group]
    most, by_unit = float(own.off.max(initial=0.0)), slice(None) if in_order else refit

    def quantile(values: Float[Array, "rows units"]) -> Float[Array, " rows"]:
        """Return the least value at or below which `level` of the weight lies; the values are reordered in place."""
        if np.ptp(weight) == 0:
            rank = int(np.ceil(level / weight[0] * (1 - COUNT_ROUNDING))) - 1
            values.partition(rank, axis=1)
            return _beyond(values[:, rank])
        order = np.argsort(values, axis=1)
        rank = np.sum(np.cumsum(weight[order], axis=1) < level * (1 - COUNT_ROUNDING), axis=1)
        return _beyond(np.take_along_axis(values, np.take_along_axis(order, rank[:, None], 1), 1)[:, 0])

    def end(far: Float[Array, "rows refits"]) -> Float[Array, " rows"]:
        if method == "minmax":
            return _beyond(far.max(1)) + quantile(distance[None].copy())
        values = far[:, by_unit]
        values += distance
        return quantile(values)

    return lambda mean: np.stack([-end(mean.off - mean.value), end(mean.off + mean.value), mean.off.max(1) + most])
