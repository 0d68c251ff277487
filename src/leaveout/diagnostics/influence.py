"""Influence of left-out units on the loss, the parameters and a prediction, from the refits of an
estimate.

With u_k = Lᵀ(θ̂_k − θ̂) of refit k, H = L Lᵀ, and r_k a bound on how far u_k is from that of the
exact refit and the exact fit (`refit._distance`, rounding included),

    Cook's distance   D_k = ‖u_k‖² / (p φ̂), with an error of at most (2 ‖u_k‖ r_k + r_k²) / (p φ̂)
    a parameter
    (θ̂_k − θ̂)_j / √(φ̂_k (H⁻¹)_jj), off by r_k / √φ̂_k at most (φ̂ as in `cooks_distance`; of many
    refits
                      that of the whole fit)
    a prediction      μ(x'θ̂_k) − μ(x'θ̂) of a row x, off by what moves of r_k ‖x‖_{H⁻¹} do to both
    the others
    (F(θ̂_k, w_k) − F(θ̂, w_k)) / Σ w_k: how much better the remaining units are fitted by θ̂_k

H and φ̂ are taken as they are computed. Of a function of the parameters the error is estimated
(`validation.scoring.largest_change`).

Two outliers in one place hold the fit there when either is left out, so measures of single rows do
not show them. With u_i, u_j and u_ij the whitened moves without the one, the other, and both, they
mask each other if ‖u_ij‖ exceeds 1.5 (‖u_i‖ + ‖u_j‖) by more than the errors of the refits, and
Cook's distance of both is above 4/n (Bollen & Jackman 1990). (Rows alike, each of leverage h: (1 −
h)/(1 − 2h) times as far, 1.5 at h = 1/4.)
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy

from .._runtime import (
    NO_REFIT_CODES,
    RESULTS,
    AbstractPosterior,
    File,
    NamedValues,
    NumpyArray,
    StepResult,
    TwoArrays,
    among,
    conventional,
    float64,
    jax,
    keeping,
    kind_of,
    largest_first,
    provided,
    silence,
    slices,
    stoppable,
)
from ..data import floats, join_remarks, pandas_of
from ..linalg import FUNCTION
from ..models.glm import AbstractRegression
from ..objectives import (
    AbstractLinearPredictor,
    LinearBatch,
    PerRefit,
    RefitPoints,
    functions,
    weights_of,
    work,
)
from ..objectives.unit_weights import unit_weights
from ..optimize import Fit, without
from ..plans import Batch, Plan, PlanLike
from ..refit import AbstractRefit, RefitBatch, distance_of_fit, distances, lengths, lengths_of_moves
from ..validation.batches import Collected, over_refits
from ..validation.cross_validate import cache_key, strategy_of
from ..validation.estimate import Estimate
from ..validation.named_parameters import name_parameters, partial_refits
from ..validation.scoring import largest_change, natural
from .measures import dispersion, dispersions, hat_diagonal, require_hessian, spread
from .result import Influence

MASKING_RATIO = 1.5
PAIR_COLUMNS = [
    "first",
    "second",
    "cook_first",
    "cook_second",
    "sum",
    "joint",
    "joint_error",
    "times",
    "masked",
]


def pairs_of(
    fit: Fit,
    plan: Plan,
    table: pd.DataFrame,
    single: Any,
    size: float,
    request: int | None,
    moves: Callable[[Plan], Any],
) -> tuple[pd.DataFrame, str]:
    """Return all pairs of some refits, those that mask each other first, with a note."""
    count = 20 if request is None else request
    if not isinstance(count, int | np.integer) or count < 0 or count == 1:
        raise ValueError(
            f"influence: num_pairs must be a whole number, 2 or more, or 0 for none; got {request!r}."
        )
    if plan.weight.any():
        if request:
            raise ValueError(
                "influence: pairs need a plan that leaves units out; this one gives some a weight. Give num_pairs=0."
            )
        return pd.DataFrame(
            columns=PAIR_COLUMNS
        ), "" if request == 0 else "pairs were not tried: the plan gives units a weight"
    chosen = _candidates(fit, plan, table, int(count))
    # units of both, of which those of four or more are scored by one of them
    shape = plan.num_refits, plan.num_units
    left_out = scipy.sparse.csr_array((np.where(plan.held, 4, 1), plan.index, plan.indptr), shape)
    pairs = np.array(list(itertools.combinations(chosen, 2)), int).reshape(-1, 2)
    union = left_out[pairs[:, 0]] + left_out[pairs[:, 1]]
    some_stay = np.diff(union.indptr) < plan.num_units
    if not some_stay.any():
        return pd.DataFrame(columns=PAIR_COLUMNS), ""
    i, j = pairs[some_stay].T
    union = union[some_stay]
    union.sort_indices()
    joint_plan = Plan(
        union.indptr,
        union.indices,
        np.zeros(union.nnz),
        union.data >= 4,
        plan.num_units,
        serial=plan.serial,
    )
    joint = moves(joint_plan)
    separate = single.length[i] + single.length[j]
    error = joint.error + MASKING_RATIO * (single.error[i] + single.error[j])
    with np.errstate(invalid="ignore", divide="ignore"):
        times = joint.length / separate
    cook = joint.length**2 / size
    masked = (joint.length - error > MASKING_RATIO * separate) & (cook > 4 / plan.num_units)
    cooks = table["cook"].to_numpy()
    names = table.index
    columns = (
        names[i],
        names[j],
        cooks[i],
        cooks[j],
        np.sum((single.u[i] + single.u[j]) ** 2, 1) / size,
    )
    joint_columns = cook, joint.error * (2 * joint.length + joint.error) / size, times, masked
    pair_table = pd.DataFrame(dict(zip(PAIR_COLUMNS, (*columns, *joint_columns), strict=True)))
    return pair_table.sort_values(["masked", "joint"], ascending=False, ignore_index=True), ""


def _candidates(fit: Fit, plan: Plan, table: pd.DataFrame, count: int) -> list[int]:
    """List refits in turn by Cook's distance, by the rise of their loss and, for single rows, by
    leverage.
    """
    keys = [table["cook"].to_numpy(), table["rise"].to_numpy()]
    linear = (
        isinstance(fit.objective, AbstractLinearPredictor)
        and getattr(fit.objective, "class_code", None) is None
    )
    if linear and (np.diff(plan.indptr) == 1).all():
        keys.append(hat_diagonal(fit)[plan.index])
    exists = np.isfinite(keys[0])
    orders = [largest_first(np.where(np.isfinite(key), key, -np.inf)) for key in keys]
    turns = np.column_stack(orders).ravel()
    return list(dict.fromkeys(turns[exists[turns]].tolist()))[:count]


RefitStatistic = Callable[
    [NumpyArray], NumpyArray
]  # raveled θ of some refits -> one number for each
# θ of some refits and their distances -> the errors of these numbers
PredictionError = Callable[[NumpyArray, NumpyArray], NumpyArray]
# operations below which F over the remaining units, and the dispersion, are computed for every
# refit
CHEAP = 5e9
CACHED = 2**17  # numbers of refits × units that are computed together


@conventional
@float64
def influence(
    estimate: Estimate | AbstractPosterior,
    plan: PlanLike | None = None,
    *,
    strategy: AbstractRefit | None = None,
    prediction: Any = None,
    num_pairs: int | None = None,
    checkpoint: File | None = None,
) -> Influence | pd.DataFrame:
    """Compute the influence of the units that each refit leaves out on the loss, the parameters and
    a prediction.

    With u_k the whitened move of the parameters in refit k, Cook's distance is ‖u_k‖² / (p φ̂). All
    changes are those by leaving the units out, so that `dfbetas` has the other sign. The error due
    to the refits stands beside each figure.

    Parameters
    ----------
    estimate : Estimate or Posterior
        An estimate of `cross_validate`, of any plan. Its refits are made once more, for their
        parameters. Or a posterior, whose draws are weighed as for `lo.bayes.elpd`.
    plan : Plan, int or splitter, optional
        The units that leave a posterior, one by one by default. An estimate has its plan.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits of an estimate.
    prediction : callable or array_like, optional
        A function of the natural parameters of one refit that returns a number; or, for `lo.GLM`
        and `lo.Regression`, one row of features, whose mean response at offset zero is followed.
    num_pairs : int, optional
        The number of refits of which all pairs are left out together (20 by default, 0 for none):
        those that move the fit most, raise the loss most, or have the highest leverage. Two that
        mask each other move the fit together by more than both alone.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.

    Returns
    -------
    Influence or DataFrame
        One row a refit. Of a posterior a table: the change of the mean of every parameter in its
        standard deviations, the ratio of standard deviations, and the `parameter` whose mean is
        `moved` most; Pareto's k, and whether the weights are good.

    Raises
    ------
    TypeError
        If the argument is not an estimate, or the Hessian is not formed.
    ValueError
        If the estimate has lost its fit, the prediction is not a number, pairs are asked of a plan
        with weights other than zero, or `checkpoint` belongs to another run.
    Interrupted
        On Ctrl-C.

    See Also
    --------
    cooks_distance, dfbetas, leverage, studentized_residuals : Measures of single units.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 2.0, 3.0, 9.0]), "squared")
    ... )
    >>> found = lo.influence(lo.cross_validate(fit, lo.leave_one_out()), num_pairs=0)
    >>> found.top(1).index.tolist(), found.rows["cook"].round(2).tolist()
    ([4], [0.56, 0.0, 0.05, 0.37, 2.25])
    """
    if isinstance(estimate, AbstractPosterior):
        if strategy is not None:
            raise TypeError("influence: a posterior is weighed, not refitted; leave strategy= out.")
        return provided("posterior_influence").posterior_influence(estimate, plan, prediction)
    if not isinstance(estimate, Estimate):
        raise TypeError(
            "influence: the first argument must be an Estimate, from lo.cross_validate(fit, plan); got "
            f"{type(estimate).__name__}."
        )
    if plan is not None:
        raise TypeError(
            "influence: an estimate has its plan; leave plan= out, or give the estimate of another plan."
        )
    fit = estimate.fit
    plan = estimate.plan
    if fit is None:
        raise ValueError(
            "influence: this estimate has no fit; make it again by lo.cross_validate, or give it one: "
            "dataclasses.replace(estimate, fit=fit). Of an elpd, give the posterior."
        )
    strategy = strategy_of("influence", strategy)
    require_hessian(fit, "influence")
    parts = estimate.losses, estimate.error, estimate.result, estimate.baseline
    key = cache_key(fit, plan, strategy, estimate=parts, prediction=prediction, pairs=num_pairs)
    with stoppable("influence"), keeping("influence", checkpoint, key):
        return _make_result(estimate, fit, plan, strategy, prediction, num_pairs)


def _make_result(
    estimate: Estimate,
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit,
    prediction,
    pairs: int | None,
) -> Influence:
    if prediction is None:
        watched = None
        of_row = None
    else:
        watched, of_row = _prediction_function(fit, prediction)
    cheap = work(fit.objective, fit.num_params) * plan.num_refits <= CHEAP
    moves = Moves(fit, plan, refit, watched, of_row, others=cheap)
    parameters = name_parameters(fit)
    fit_dispersion = float(dispersion(fit)[0])
    estimates = parameters.values_of(fit.vector[None])[0]
    values = np.array(parameters.values_of(moves.theta))
    theta = moves.theta.copy()
    num_open = np.zeros(len(plan))
    for k, partial in partial_refits(fit, plan, moves.result, parameters).items():
        values[k] = partial.values
        theta[k] = partial.theta
        moves.error[k] = partial.error
        num_open[k] = len(partial.free)
    phi = np.full(len(plan), fit_dispersion)
    if cheap:
        phi = dispersions(fit, plan, theta, num_open)
    size = fit.rank * fit_dispersion
    changes = (values - estimates) / spread(fit, parameters.slope) / np.sqrt(phi)[:, None]
    # the parameter that each refit moves most
    largest = np.argmax(np.nan_to_num(np.abs(changes), nan=-1.0), 1)
    moved = changes[np.arange(len(changes)), largest]
    moved_error = moves.error / np.sqrt(phi)
    if parameters.slope is None:
        # rounding
        moved_error *= np.max(lengths(fit, np.eye(fit.num_params)) / spread(fit))
    columns = _losses(estimate) | {
        "cook": moves.length**2 / size,
        "cook_error": moves.error * (2 * moves.length + moves.error) / size,
        "moved": moved,
        "parameter": np.where(np.isnan(moved), "", np.asarray(parameters.names, object)[largest]),
        "moved_error": moved_error,
    }
    if cheap:
        columns["others"] = moves.objective_change
    if watched is not None:
        columns |= {"prediction": moves.value, "prediction_error": moves.value_error}
    columns["proved"] = moves.proved & (parameters.slope is None)
    columns["result"] = np.array([code.name for code in RESULTS])[estimate.result]
    index = plan.refit_names
    table = pd.DataFrame(columns, index)
    pair_table, note = pairs_of(
        fit, plan, table, moves, size, pairs, lambda pair_plan: Moves(fit, pair_plan, refit)
    )
    dispersion_note = "of so many refits standard errors go by the dispersion of the whole fit"
    if cheap:
        dispersion_note = ""
    return Influence(
        estimate,
        table,
        pd.DataFrame(changes, index=index, columns=parameters.names),
        pair_table,
        repr(refit),
        join_remarks(note, dispersion_note),
    )


class Moves:
    """The refits of a plan: their θ, moves (`u`, whitened, of some `length`) and `error`s.

    Errors may be `proved`. The object also has the change of the watched prediction and, if
    `others` are asked for, the change of F per remaining unit.
    """

    def __init__(
        self,
        fit: Fit,
        plan: Plan,
        refit: AbstractRefit,
        watch: RefitStatistic | None = None,
        error: PredictionError | None = None,
        *,
        others: bool = False,
    ):
        fit_value = np.nan if watch is None else watch(fit.vector[None])[0]
        fit_error, fit_proved = distance_of_fit(fit)
        fit_value_error = 0.0
        if error is not None:
            fit_value_error = error(fit.vector[None], np.array([fit_error]))[0]

        def collect(
            batch: Batch, outcome: RefitBatch, theta: NumpyArray, distance: NumpyArray
        ) -> StepResult:
            columns = {}
            if watch is not None:
                values = watch(theta)
                if error is None:
                    value_errors = largest_change(fit, outcome, values, watch)
                else:
                    value_errors = fit_value_error + error(theta, distance)
                columns = {"value": values - fit_value, "value_error": value_errors}
            if others:
                columns["others"] = _objective_changes(fit, batch, theta)
            return columns

        refits = refit_all("influence", fit, plan, refit, collect)
        self.theta = refits["theta"]
        self.result = refits["result"]
        self.proved = (refits["proved"] == 1) & fit_proved
        self.objective_change, self.value, self.value_error = (
            refits.get(name) for name in ("others", "value", "value_error")
        )
        self.u = fit.quadratic.back(self.theta - fit.vector)
        self.length, rounding = lengths_of_moves(fit, self.theta - fit.vector)
        self.error = refits["off"] + (rounding + fit_error if fit_proved else 0.0)


def refit_all(
    caller: str,
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit,
    collect: Callable[[Batch, RefitBatch, NumpyArray, NumpyArray], StepResult],
    judge: bool = True,
) -> StepResult:
    """Refit a whole plan: θ of every refit, a bound `off` on its distance from the exact one, its
    code, and what `collect` adds.

    `proved` is one where the bound is proved. The numbers are NaN where there is no refit.
    """
    without(caller, fit.objective)

    def record(batch: Batch, outcome: RefitBatch) -> Collected:
        exists = ~among(outcome.result, NO_REFIT_CODES)[:, None]
        theta = np.where(exists, outcome.theta, fit.vector)
        distance, proved = distances(fit, outcome, theta)
        columns = {"off": distance, "proved": proved.astype(float)} | collect(
            batch, outcome, theta, distance
        )
        where = {name: np.where(exists[:, 0], values, np.nan) for name, values in columns.items()}
        theta = np.where(exists, theta, np.nan)
        return Collected(where | {"theta": theta, "result": outcome.result}, {})

    return over_refits(caller, fit, plan, refit, record, judge=judge)


def _objective_changes(fit: Fit, batch: Batch, theta: RefitPoints) -> PerRefit:
    """Return the change of F for the remaining units, per unit."""
    F = functions(fit.objective, fit.theta, batch.rows)
    n = fit.objective.num_units
    scale = unit_weights(fit.objective).scale
    out = np.empty(len(theta))
    for part in slices(len(theta), CACHED // n):
        lanes = np.arange(len(theta))[part]
        if isinstance(F, LinearBatch):
            change = F.values(theta[lanes], lanes) - F.values(fit.vector[None], lanes)
        else:
            fitted = np.tile(fit.vector, (len(lanes), 1))
            change = F.look(theta[lanes], lanes)[0] - F.look(fitted, lanes)[0]
        out[lanes] = change / (weights_of(batch.rows, n, lanes).sum(1) * scale)
    return out


def _prediction_function(fit: Fit, prediction) -> tuple[RefitStatistic, PredictionError | None]:
    """Return the prediction of some refits: a function of the parameters, or the mean response of a
    row of features.

    The second function bounds errors of the mean response; it is None where these have to be
    estimated.
    """

    def number(value) -> float:
        array = np.asarray(value, float)
        if array.size != 1:
            raise ValueError(
                f"influence: prediction must return one number; got shape {array.shape}."
            )
        return float(array.ravel()[0])

    def of_parameters(thetas: NumpyArray) -> NumpyArray:
        tree = natural(fit, thetas)
        return np.array(
            [
                number(prediction(jax.tree.map(lambda leaf, k=k: leaf[k], tree)))
                for k in range(len(thetas))
            ]
        )

    if callable(prediction):
        return of_parameters, None
    objective = fit.objective
    if not isinstance(objective, AbstractRegression) or objective.classes or objective.levels:
        raise TypeError(
            "influence: prediction can be a row of features where the model is a lo.GLM or lo.Regression of one mean; got "
            f"{kind_of(objective)}. Give a function of the parameters that returns a number."
        )
    row = pandas_of("influence", "prediction", prediction)
    names = objective.as_given.names
    if isinstance(row, pd.DataFrame) and len(row) == 1:
        row = row.iloc[0]
    if isinstance(row, pd.Series) and set(map(str, row.index)) != set(map(str, range(len(row)))):
        row = row.rename(index=str)
        if sorted(row.index) != sorted(names):
            raise ValueError(
                f"influence: the row for prediction must have the features of the model, {', '.join(names[:8])}; got "
                f"{', '.join(row.index[:8])}."
            )
        row = row[list(names)].infer_objects()
    x = floats("influence", "prediction", row)
    if x.ndim == 2 and len(x) == 1:
        x = x[0]
    if x.shape != (objective.as_given.num_features,) or not np.isfinite(x).all():
        raise ValueError(
            f"influence: prediction must be one row of {objective.as_given.num_features} finite features; got shape {x.shape}."
        )
    x = objective.coordinates(np.append(x, [1.0] * objective.intercept)[None])[0]
    q = len(x)
    to_target = objective.units.to_target

    def of_row(thetas: NumpyArray) -> NumpyArray:
        eta = thetas[:, :q] @ x
        inverse = objective.loss_function.inverse_link
        if not objective.own:
            return to_target(np.asarray(inverse(eta)))
        shared: Any = inverse
        return to_target(
            np.array([number(shared(eta[k : k + 1], thetas[k, q:])) for k in range(len(thetas))])
        )

    def error(thetas: NumpyArray, distance: NumpyArray) -> NumpyArray:
        return mean_errors(
            lambda eta: to_target(np.asarray(objective.loss_function.inverse_link(eta))),
            thetas[:, :q] @ x,
            lengths(fit, np.pad(x, (0, fit.num_params - q))[None])[0] * distance,
        )[1]

    return of_row, None if objective.own else error


def mean_errors(
    inverse_link: Callable[[NumpyArray], Any], eta: NumpyArray, half_width: NumpyArray
) -> TwoArrays:
    """Compute means at predictors within `half_width`, with error bounds, infinite at poles."""
    with silence("all"):
        value, low, high = (
            np.asarray(inverse_link(predictor))
            for predictor in (eta, eta - half_width, eta + half_width)
        )
        between = (np.minimum(low, high) <= value) & (value <= np.maximum(low, high))
        errors = np.maximum(np.abs(low - value), np.abs(high - value))
        errors += 2 * FUNCTION * np.max(np.abs([value, low, high]), 0)
    return value, np.where(
        between & np.isfinite(errors), errors, np.where(np.isnan(value), 0.0, np.inf)
    )


def _losses(estimate: Estimate) -> NamedValues:
    """Tabulate the losses of every refit.

    The columns are the number of units left out, the mean held-out loss, the no-update loss, the
    rise, its share of the summed sizes of losses, and the error of its summed loss.
    """
    entries = estimate._places
    weight = estimate._weight
    count = estimate.plan.num_refits
    scored = entries.held & np.isfinite(estimate.losses)
    refit = entries.refit[scored]
    unit = entries.unit[scored]
    loss = estimate.losses[scored]
    before = estimate.baseline[scored]
    times = np.bincount(unit, minlength=len(weight))[unit]
    entry_weight = weight[unit]
    summed = lambda values: np.bincount(refit, values, count)
    mass = summed(entry_weight)
    mean = lambda values: np.where(
        mass > 0, summed(entry_weight * values) / np.where(mass > 0, mass, 1.0), np.nan
    )
    size = summed(entry_weight * np.abs(loss) / times)
    share = size / size.sum() if size.sum() > 0 else np.zeros(count)
    columns = {
        "units": np.diff(estimate.plan.indptr),
        "loss": mean(loss),
        "no_update": mean(before),
        "rise": mean(loss - before),
    }
    return columns | {"share": share, "error": estimate.error}
