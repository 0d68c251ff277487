"""Cross-validation: plan → refit → score, in batches of bounded memory.

    θ_o ≈ argmin F(·, w_o),
    loss of a held-out unit n = −log p(x_n | all seen units; θ_o), or `evaluate`

w_o are the weights of refit o of the plan. `over_refits` refits it batch by batch. The strategy
computes each θ_o and a bound of its distance from the exact one; `HeldOutLoss` converts that into
an error of the loss; `EstimateColumns` collects both, and `EstimateBuilder` makes an estimate of
them. After the last batch some refits are repeated exactly (`audit`), and refits are compared with
the fit's other minima (`minima`). `cross_predict` and `fold_parameters` collect predictions or
parameters in the same way.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from .._runtime import (
    NO_REFIT_CODES,
    RESULTS,
    BoolArray,
    File,
    FloatArray,
    IntArray,
    Module,
    NamedValues,
    PyTree,
    SettledBy,
    StepResult,
    among,
    cached_on,
    conventional,
    float64,
    function_name,
    jax,
    keeping,
    log,
    read_or_make,
    record,
    require_memory,
    warn,
)
from .._runtime.fingerprint import fingerprint
from .._runtime.packing import pack
from ..data import FormulaReader, count, under_labels
from ..models.glm import Zero
from ..objectives import AbstractObjective, plan_reader, weights_of, work
from ..optimize.fit import Fit, fit as minimise
from ..plans import CAPACITY, Batch, Plan, PlanLike, PlanReader
from ..refit import AbstractRefit, Certified, Exact, RefitBatch
from . import minima as minima
from .audit import affordable, choose_refits, repeat_refits
from .batches import (
    Collect,
    Collected,
    CollectedColumns,
    PlanBatches,
    Refitter,
    blank,
    infinite_if_unknown,
    interruptible,
    one_thread,
    over_refits,
)
from .checks import reader_of, with_all_columns
from .estimate import Bases, Estimate, Repetition
from .held_out_predictions import (
    NO_LOSS_CODES,
    Average,
    PredictionColumns,
    Predictions,
    measure,
    measures,
    prediction_kind,
    predictions_of,
)
from .metrics import AnyMetric, ScoreName
from .named_parameters import PartialRefit, partial_refits
from .scoring import Evaluate, HeldOutLoss, find_score, natural

# codes that the code of an emptied refit replaces
MILD = (
    RESULTS.successful,
    RESULTS.kink,
    RESULTS.not_converged,
    RESULTS.other_minimum,
    RESULTS.leaving,
)
DEFAULT_REFIT = Certified()
# remaining distance of refits that predict, as a share of their first step
PREDICTION_TOLERANCE = 1e-7
# products of a gradient of every refit, about a second, beyond which predictions keep the tolerance
# of losses
MOST_PRODUCTS = 2e9


@conventional
@float64
def cross_validate(
    fit: Fit,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = None,
    evaluate: Evaluate | ScoreName | None = None,
    metric: AnyMetric | Sequence[AnyMetric] | Mapping[str, AnyMetric] = (),
    average: Average | None = None,
    audit: int = 5,
    checkpoint: File | None = None,
    part: tuple[int, int] | None = None,
    groups: ArrayLike | None = None,
    bases: Bases = "refit",
) -> Estimate:
    """Cross-validate a fit: compute the held-out loss of every unit that the plan scores.

    Refit o of the plan is θ_o = argmin F(·, w_o), with w_o the weights of the units in it. The loss
    of a held-out unit n is −log p(x_n | all that is seen; θ_o), or the loss that `evaluate` names.
    Every loss comes with an error against the exact refit.

    Parameters
    ----------
    fit : Fit
        The fitted model, from `lo.fit`, `lo.anchor` or `lo.from_sklearn` and the like.
    plan : Plan, int or splitter
        The units to leave out in each refit, such as `lo.leave_one_out()`. If plan and fit have
        labels, they are matched by these. A number k means k folds: of `lo.stratified` if the
        response is a class, of `lo.blocks` for a series, of `lo.groups` if there are `groups`, and
        otherwise of `lo.kfold`. A splitter of scikit-learn, or pairs (train,
        test), are taken as `lo.from_splits` takes them.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    evaluate : callable or str, optional
        The loss of held-out units, instead of the objective's own score. A function `evaluate(held,
        seen, parameters)` gets the numbers of the held-out and of the seen units and the natural
        parameters of one refit. It returns one loss a held-out unit, or one joint number. It is
        called in Python once for every refit, and up to seventeen times more around it to estimate
        the error of its value. The names are "log_density" (normalised; of discrete responses −log
        of a probability), "squared_error", "absolute_error", "zero_one" and "crps", where the model
        has them. Scores of one name compare models that were fitted by different losses.
    metric : str, scorer, callable, or a list or dict of them, default ()
        Measures of the held-out predictions, kept in `Estimate.metrics` by name. A name is "auc",
        "accuracy", "brier", "mse", "mae", "log_loss", "rmse", "mape", "pinball",
        "poisson_deviance", "gamma_deviance", "r2", "d2_poisson", "d2_gamma", "average_precision",
        "balanced_accuracy", "top_k", "f1", "f1_macro", "f1_weighted", "matthews", "kappa",
        "concordance" (Harrell's, for `lo.Cox`), or one of `sklearn.metrics.get_scorer_names()`, in
        scikit-learn's sign. A scorer is made by `sklearn.metrics.make_scorer`. A function `f(y,
        prediction)` gets the predicted mean, or the predicted class where the response is of
        classes; it returns one number, or one a row. Its standard error is the jackknife's, which
        is for functions that change smoothly with the rows, as a median does not.
    average : {"pooled", "fold", "repeat"}, optional
        "pooled" measures all held-out predictions together; a mean over rows is then the mean over
        units, each averaged over the refits that score it. "fold" is the mean over refits of the
        measure of each one's predictions, and "repeat" the mean over repeats of k-fold of that of
        each one's. By default measures are pooled, except for the area under the ROC curve ("auc",
        "roc_auc"): it is pooled if every unit is scored once, the mean over repeats of k-fold, and
        otherwise, or if no fold has more than 20 rows and each holds every class, the mean over
        refits. `Estimate.metrics` says which.
    audit : int, default 5
        The number of refits to repeat exactly by another method (0 for none). A tenth of the
        operations of the call pays for them; one is repeated if that is no more than half of them.
        If one is off by more than its reported error, it is flagged, and the others that were
        judged like it are iterated to the end.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.
    part : tuple of int, optional
        `(k, K)` makes the k-th of K parts of the refits alone, for the tasks of a scheduler, and
        keeps them in `checkpoint`, from which `lo.merge` makes the whole estimate. Tasks may be
        counted from 0 to K − 1 or from 1 to K, as part K is part 0. What is returned is that of a
        call that was stopped: other refits have the code `interrupted`. The file of part 0 holds
        the fit and its data too.
    groups : array-like or str, optional
        Labels of groups for a number of folds or a splitter, or the name of their column in the
        data of the fit: groups stay together, and standard errors are over them.
    bases : {"refit", "frozen"}, default "refit"
        Where `bs(...)`, `scale(...)` and the like in the formula of a GLM or Regression learn: from
        the rows of each refit, which takes one fit a refit, or once from all rows. Columns that
        span the same whatever was learned, such as those of `center(x)` without a penalty, stay.
        The note of the result says which.

    Returns
    -------
    Estimate
        The losses, with an error and a code for every refit.

    Raises
    ------
    ValueError
        If plan and fit have different labels or numbers of units, or `checkpoint` belongs to
        another run.
    TypeError
        If the arguments are not a fit, a plan and a strategy.
    Interrupted
        On Ctrl-C, with the estimate so far.

    See Also
    --------
    cross_predict : Held-out predictions instead of losses.
    fold_parameters : The parameters of every refit.
    compare : Estimates of several models side by side.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = X @ [1.0, -1.0] + rng.normal(size=40)
    >>> fit = lo.fit(lo.GLM(X, y, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> round(cv.mean, 3), round(cv.se, 2)
    (0.501, 0.09)
    >>> lo.cross_validate(fit, 5, evaluate="squared_error").plan
    Plan(lo.kfold(40, k=5): 5 folds of 40 units, shuffled (rng=0))
    """
    strategy = strategy_of("cross_validate", strategy)
    plan = reader_for("cross_validate", fit).resolve(plan, groups)
    if evaluate is not None and getattr(strategy, "errors", "all") == "sampled":
        raise ValueError(
            "cross_validate: errors='sampled' is for the model's own loss; leave evaluate= or errors= out."
        )
    score = find_score(fit, evaluate)
    audit = count("cross_validate: audit", audit, 0)
    share = batches_of_part(part, checkpoint)
    measures_by_name = measures("cross_validate", fit, metric, plan, average)
    metrics = tuple(measures_by_name)
    predict = None
    if metrics:
        predict = PredictionColumns(prediction_kind(measures_by_name), judged=True)

    def fold_columns(fold_fit: Fit) -> Collect:
        loss = HeldOutLoss(fold_fit, plan, find_score(fold_fit, evaluate))
        return EstimateColumns(loss, predict=predict)

    fold_bases = relearned_bases("cross_validate", fit, plan, bases, fold_columns)
    key = cache_key(fit, plan, strategy, evaluate=evaluate, metric=metrics, audit=audit)
    num_audited = audit
    if fold_bases is not None:
        key["bases"] = fold_bases.reader.table
        num_audited = 0
    kept = keeping("cross_validate", checkpoint, key, share)
    with one_thread(fit.objective, fit.num_params), kept:
        if share is not None and share.start == 0:
            call = {
                "fit": fit,
                "plan": plan,
                "strategy": strategy,
                "evaluate": evaluate,
                "metric": metric,
                "average": average,
                "audit": audit,
                "bases": bases,
            }
            read_or_make(functools.partial(pack, call))
        builder = EstimateBuilder(HeldOutLoss(fit, plan, score), strategy, num_audited, predict)
        builder.run(refit_fold=fold_bases, part=share)
        if share is not None:
            read_or_make(functools.partial(dict, complete=np.array(True)))
            remark = f"none: this is part {share.start} of {share.step}, and lo.merge audits all"
            return builder.partial(builder.columns, remark)
        with builder.stoppable():
            estimate = builder.draft
            if evaluate is not None and strategy.in_standard_errors and fold_bases is None:
                estimate = builder.sharpen(estimate)
            estimate = builder.finish(*builder.audited(estimate, strategy.in_standard_errors))
            if predict is not None:
                predictions = predictions_of(plan, predict.kind, builder.columns)
                measured = measure(measures_by_name, fit, predictions, average)
                estimate = replace(estimate, measured=measured)
    note = estimate.labels.note
    if isinstance(reader := reader_of(fit), FormulaReader):
        note = note.replace(*reader.remarks(_learning(fit), fold_bases is not None))
    options = {
        "metric": (metrics, ()),
        "average": (average, None),
        "audit": (audit, 5),
        "bases": (bases, "refit"),
    }
    changed = [f"{name}={value!r}" for name, (value, usual) in options.items() if value != usual]
    if evaluate is not None:
        text = repr(evaluate) if isinstance(evaluate, str) else function_name(evaluate)
        changed.insert(0, f"evaluate={text}")
    function = ""
    kind = type(getattr(fit.objective, "loss_function", None))
    of_user = issubclass(kind, Module) and kind.__module__.split(".")[0] != __name__.split(".")[0]
    if callable(evaluate) or not estimate.score or of_user:
        chosen = evaluate
        if not callable(evaluate):
            # those in which a user's model defines its losses
            parts_of_model = "unit_loss", "score_function", "loss_function"
            defined = (getattr(fit.objective, name, None) for name in parts_of_model)
            chosen = next((part for part in defined if part is not None), type(fit.objective))
        try:
            # of its code, whatever data it holds
            function = fingerprint(chosen, data=False)
        except TypeError:
            function = repr(chosen)
    labels = replace(estimate.labels, note=note, asked=", ".join(changed), function=function)
    return replace(estimate, labels=labels)


def batches_of_part(part: tuple[int, int] | None, checkpoint: object) -> slice | None:
    """Return which batches are those of a part, None of no part; ValueError if it cannot be one."""
    if part is None:
        return None
    try:
        k, total = map(operator.index, part)
    except (TypeError, ValueError):
        k = total = 0
    if not 0 <= k <= total or not total:
        raise ValueError(
            f"cross_validate: part must be (k, K), two whole numbers, with k from 0 to K − 1 or from 1 to K; got {part!r}."
        )
    if checkpoint is None:
        raise ValueError("cross_validate: part= needs checkpoint=FILE, which lo.merge reads.")
    return slice(k % total, None, total)


def cache_key(fit: Fit, plan: Plan, refit: AbstractRefit, **options: object) -> dict[str, object]:
    """List everything that the result of a call depends on, for the key of its checkpoint."""
    minimum = fit.vector, fit.value, fit.gradient, fit.minima.theta
    return {"model or data": fit.objective, "fit": minimum, "plan": plan, "refit": refit, **options}


@conventional
@float64
def cross_predict(
    fit: Fit,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = None,
    kind: Literal["response", "link", "state", "label"] = "response",
    checkpoint: File | None = None,
    groups: ArrayLike | None = None,
    bases: Bases = "refit",
    error: bool = False,
) -> Any:
    """Predict each unit from the refits that leave it out, averaged over them.

    Its tolerance is one of predictions: `Certified()` iterates as `Exact(1e-6)` does, so that
    linear predictors are within about 1e-6 of those of exact refits. It keeps its own tolerance, of
    losses, where refits × units × parameters are 2e9 or more (as of 10,000 single rows of 20
    columns), and where H is not formed; `error=True` tells how far they may be off.

    Parameters
    ----------
    fit : Fit
        The fitted model.
    plan : Plan, int or splitter
        The units to leave out in each refit, as in `cross_validate`.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    kind : {"response", "link", "state", "label"}, default "response"
        "response" is the predicted mean, through the inverse link. "link" is the linear predictor.
        "state" are the probabilities of hidden states, `[units, states]`. "label" are the codes of
        the labels that a conditional random field decodes; for sequences these are `[units,
        longest]`, −1 behind the end, and `crf.join` puts them together.
    checkpoint : path, optional
        A file that keeps what is done, as in `cross_validate`.
    groups : array-like, optional
        Labels of groups for a number of folds or a splitter, as in `cross_validate`.
    bases : {"refit", "frozen"}, default "refit"
        Where `bs(...)` and the like in a formula learn, as in `cross_validate`.
    error : bool, default False
        Whether to return the largest difference from the predictions of exact refits too, which is
        estimated.

    Returns
    -------
    Series, DataFrame, or a pair of these
        One prediction a unit, or a column for each class or output, under the labels of the units;
        an array of "state" or "label" of sequences. NaN for a unit that is never held out, or that
        no existing refit leaves out. With `error`, predictions and their errors.

    Raises
    ------
    ValueError
        If the model has no predictions of this kind, plan and fit do not match, or `checkpoint`
        belongs to another run.
    TypeError
        If the arguments are not a fit, a plan and a strategy.
    Interrupted
        On Ctrl-C, with the predictions so far.

    See Also
    --------
    cross_validate : The losses of the held-out units.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(6.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], 2 * x + 1, "squared"))
    >>> lo.cross_predict(fit, lo.leave_one_out()).round(6).tolist()
    [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    """
    strategy = strategy_of("cross_predict", strategy)
    plan = reader_for("cross_predict", fit).match(plan, groups)
    if kind not in fit.objective.units.kinds:
        raise ValueError(
            f"cross_predict: kind must be one of {', '.join(map(repr, fit.objective.units.kinds))}; got {kind!r}."
        )
    strategy = strategy_of_predictions(fit, plan, strategy)
    predictions = held_out(fit, plan, strategy, kind, checkpoint, bases, judged=error)
    predicted = predictions.per_unit()
    scored = plan.scored_units
    # other models may have units that no refit predicts
    undetermined = predictions.missing[plan.scored_refits] | bool(fit.objective.units.predict_new)
    units = np.unique(scored[undetermined])
    missing = units[np.isnan(predicted[units]).any(tuple(range(1, predicted.ndim)))]
    if len(missing):
        warn(
            f"cross_predict: {len(missing)} of {len(np.unique(scored))} held-out predictions are missing, such as that of "
            f"{plan._unit_names[missing[0]]!s}: the refits without them do not determine them. A penalty does, or, where "
            "groups leave whole, effects of groups that are drawn: lo.Mixed('… + (1 | group)')."
        )
    objective = fit.objective
    names = plan.names if objective.units.names is None else objective.units.names
    columns = None
    if kind in ("response", "link"):
        columns = getattr(objective, "classes", ()) or getattr(objective, "levels", None)
    if error:
        errors = predictions.per_unit(predictions.errors)
        return tuple(under_labels(part, names, kind, columns) for part in (predicted, errors))
    return under_labels(predicted, names, kind, columns)


def strategy_of_predictions(fit: Fit, plan: Plan, strategy: AbstractRefit) -> AbstractRefit:
    """Return the strategy for calls that want predictions.

    The tolerance of `Certified` is one of losses.
    """
    affordable = plan.num_refits * fit.objective.num_units * fit.num_params < MOST_PRODUCTS
    if isinstance(strategy, Certified) and fit.quadratic.factor is not None and affordable:
        return Exact(PREDICTION_TOLERANCE)
    return strategy


def held_out(
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit,
    kind: str,
    checkpoint: File | None = None,
    bases: str = "frozen",
    judged: bool = False,
) -> Predictions:
    """Predict each unit by every refit that leaves it out, for a plan that is matched with the
    fit.
    """
    predict = PredictionColumns(kind, judged)

    def fold_columns(fold_fit: Fit) -> Collect:
        return lambda batch, outcome: Collected(
            {"result": outcome.result},
            predict(fold_fit, batch.rows, outcome, outcome.result),
        )

    fold_bases = relearned_bases("cross_predict", fit, plan, bases, fold_columns)
    key = cache_key(fit, plan, refit, kind=kind, judged=judged)
    if fold_bases is not None:
        key["bases"] = fold_bases.reader.table
    with keeping("cross_predict", checkpoint, key):
        columns = over_refits(
            "cross_predict",
            fit,
            plan,
            refit,
            fold_columns(fit),
            refit_fold=fold_bases,
            partial=lambda columns: predictions_of(plan, kind, columns).per_unit(),
        )
    return predictions_of(plan, kind, columns)


@conventional
@float64
def fold_parameters(
    fit: Fit,
    plan: PlanLike,
    *,
    strategy: AbstractRefit | None = None,
    checkpoint: File | None = None,
) -> PyTree:
    """Return the natural parameters of every refit.

    The tolerance is one of parameters, whether or not the plan holds units out: `Certified(rtol)`
    iterates until the remaining distance is at most `rtol` of the first step, in the norm √(dᵀHd),
    as `Exact(rtol)` does.

    Parameters
    ----------
    fit : Fit
        The fitted model.
    plan : Plan, int or splitter
        The units to leave out in each refit, as in `cross_validate`.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    checkpoint : path, optional
        A file that keeps what is done, as in `cross_validate`.

    Returns
    -------
    dict or pytree of ndarray
        The fields of `fit.parameters`, each with a leading axis `[refits]`; NaN where a refit does
        not exist, or does not determine a parameter, such as the effect of a group that leaves
        whole.

    Raises
    ------
    ValueError
        If plan and fit do not match, or `checkpoint` belongs to another run.
    TypeError
        If the arguments are not a fit, a plan and a strategy.
    Interrupted
        On Ctrl-C, with the parameters so far.

    See Also
    --------
    influence : The effect of each refit's left-out units on the fit.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(4.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], x**2, "squared"))
    >>> lo.fold_parameters(fit, lo.leave_one_out())["coef"].ravel().round(3)
    array([4.   , 2.857, 3.143, 2.   ])
    """
    strategy = strategy_of("fold_parameters", strategy)
    theta, partial = fold_refits(fit, plan, strategy.of_parameters(), "fold_parameters", checkpoint)
    parameters = natural(fit, theta)
    first = 0
    if not partial:
        return parameters

    def determined(leaf: NDArray) -> FloatArray:
        """Put NaN for what refits leave open; leaves come in the order of the named parameters."""
        nonlocal first
        columns = np.array(leaf, float).reshape(len(leaf), -1)
        for k, refit in partial.items():
            columns[k, np.isnan(refit.values[first : first + columns.shape[1]])] = np.nan
        first += columns.shape[1]
        return columns.reshape(np.shape(leaf))

    masked = jax.tree.map(determined, parameters)  # which sorts the names
    if isinstance(parameters, dict):
        return {name: masked[name] for name in parameters}
    return masked


def fold_thetas(
    fit: Fit, plan: PlanLike, refit: AbstractRefit, caller: str, checkpoint: File | None = None
) -> FloatArray:
    """Return the raveled parameters of every refit as they are fitted, `[refits, params]`.

    NaN where there is none.
    """
    theta, partial = fold_refits(fit, plan, refit, caller, checkpoint)
    theta[[*partial]] = np.nan
    return theta


def fold_refits(
    fit: Fit, plan: PlanLike, refit: AbstractRefit, caller: str, checkpoint: File | None
) -> tuple[FloatArray, dict[int, PartialRefit]]:
    """Return θ of every refit, NaN if it does not exist, and the refits that determine some
    parameters alone.
    """
    plan = reader_for(caller, fit).match(plan)
    require_memory(
        caller,
        2 * 8.0 * plan.num_refits * fit.num_params,  # as they are fitted, and by their names
        f"{fit.num_params:,} parameters of {plan.num_refits:,} refits",
        "plan.some takes some refits",
    )
    unmade = np.full((plan.num_refits, fit.num_params), np.nan)
    with keeping(caller, checkpoint, cache_key(fit, plan, refit)):
        columns = over_refits(
            caller,
            fit,
            plan,
            refit,
            _existing_thetas,
            partial=lambda columns: natural(fit, columns.get("theta", unmade)),
        )
    theta = columns["theta"]
    partial = partial_refits(fit, plan, columns["result"])
    for k, partial_refit in partial.items():
        theta[k] = partial_refit.theta
    return theta, partial


def _existing_thetas(batch: Batch, outcome: RefitBatch) -> Collected:
    """Collect the parameters of refits, NaN where there is none, and their codes."""
    is_missing = among(outcome.result, NO_REFIT_CODES)
    theta = np.where(is_missing[:, None], np.nan, outcome.theta)
    return Collected({"theta": theta, "result": outcome.result}, {})


def objective_of(caller: str, fit: Fit) -> AbstractObjective:
    """Return the objective of a fit; TypeError if the argument is not a fit."""
    if not isinstance(fit, Fit):
        way = ""
        if hasattr(fit, "get_params"):
            way = " lo.sklearn.cross_validate takes this call."
        raise TypeError(
            f"{caller}: the first argument must be a Fit, from lo.fit, lo.anchor or lo.from_sklearn; got "
            f"{type(fit).__name__}.{way}"
        )
    return fit.objective


def reader_for(caller: str, fit: Fit) -> PlanReader:
    """Return the reader of plans for a fit; TypeError if the argument is no fit."""
    return plan_reader(caller, objective_of(caller, fit))


def strategy_of(
    caller: str, strategy: AbstractRefit | None, usual: AbstractRefit = DEFAULT_REFIT
) -> AbstractRefit:
    """Return the strategy of a call, the usual one if none is given; TypeError if it is no
    strategy.
    """
    if strategy is None:
        return usual
    if not isinstance(strategy, AbstractRefit):
        raise TypeError(
            f"{caller}: strategy must be one, such as lo.Exact(), lo.NewtonStep() or lo.InfinitesimalJackknife(); got {strategy!r}."
        )
    return strategy


@record
class EstimateColumns:
    """Collect the held-out losses of a batch of refits with their errors and codes, and predictions
    if they are asked for.

    `compares_minima` adds the losses at lower minima elsewhere, and `keeps_theta` the parameters,
    from which refits may be repeated, unless only the losses of single rows are formed.
    """

    held_out_loss: HeldOutLoss
    compares_minima: bool = False
    keeps_theta: bool = False
    predict: PredictionColumns | None = None

    def __call__(self, batch: Batch, outcome: RefitBatch) -> Collected:
        loss = self.held_out_loss
        fit = loss.fit
        rows = batch.rows
        losses = np.array(loss.losses_of(rows, outcome))
        bad = ~np.isfinite(losses)
        has_loss_code: Sequence[RESULTS] = NO_REFIT_CODES
        if losses.ndim > 1:
            bad = np.any(bad & rows.held, 1)
            has_loss_code = NO_LOSS_CODES
        result = np.array(outcome.result)
        result[bad & ~among(result, NO_REFIT_CODES)] = RESULTS.nonfinite
        exists = ~among(result, NO_REFIT_CODES)
        has_loss = ~among(result, has_loss_code)
        losses[~has_loss] = np.nan
        error = loss.error(rows, outcome, losses)
        has_error = has_loss & np.isfinite(error)
        common_error = outcome.common_error
        step_length = outcome.step_length
        if step_length is None:
            step_length = np.zeros(len(error))
        proved = outcome.proved
        if proved is None or loss.evaluate is not None:
            proved = np.zeros(len(error), bool)
        settled_by = outcome.settled_by
        if settled_by is None:
            settled_by = np.full(len(error), int(SettledBy.unknown))
        refits = {
            "settled_by": settled_by,
            "error": np.where(has_error | np.isnan(outcome.error), error, np.inf),
            "proved": has_error & proved,
            "result": result,
            "step_length": step_length,
            "gradients": np.asarray(outcome.gradients),
        }
        if common_error is not None and loss.evaluate is None:
            refits["draws"] = common_error.draws
            refits["distance_left"] = np.full(len(error), common_error.distance_left)
            refits["probes"] = np.full(len(error), common_error.probes)
        is_formed = fit.quadratic.predictors is None and common_error is None
        if self.keeps_theta and (is_formed or rows.index.shape[1] > 1):
            refits["theta"] = outcome.theta
        collected = Collected(refits, {}).with_losses("losses", losses)
        if self.compares_minima:
            lower, lower_theta = minima.lower(fit, rows, outcome.theta, exists)
            result[lower] = RESULTS.other_minimum
            if lower.any():
                elsewhere = np.array(loss.losses(rows, lower_theta))
                elsewhere[~lower] = np.nan
                collected = collected.with_losses("elsewhere", elsewhere)
        leaving = fit.objective.parameters.leaving
        if leaving is not None:
            theta = np.where(exists[:, None], outcome.theta, fit.vector)
            weights = weights_of(rows, loss.plan.num_units)
            result[exists & leaving(fit.objective, fit.theta, theta, weights)] = RESULTS.leaving
        if self.predict is not None:
            collected.entries.update(self.predict(fit, rows, outcome, result))
        return collected


@record
class RelearnedBases:
    """Refit one fold from a fit of its own, whose columns are by what the rows of the fold
    teach.
    """

    fit: Fit
    plan: Plan
    reader: FormulaReader
    columns_of: Callable[[Fit], Collect]  # what is collected of refits of a fit

    def __call__(self, refitter: Refitter, batch: Batch) -> StepResult:
        seen = weights_of(batch.rows, self.plan.num_units)[0] > 0
        fold_fit = minimise(with_all_columns(self.fit).relearn(seen), self.fit.parameters)
        return replace(refitter, fit=fold_fit, collect=self.columns_of(fold_fit))(batch)


def relearned_bases(
    caller: str,
    fit: Fit,
    plan: Plan,
    bases: str,
    columns_of: Callable[[Fit], Collect],
) -> RelearnedBases | None:
    """Return how folds are refitted whose rows teach the columns of a formula something else.

    None if none do.
    """
    if bases not in ("refit", "frozen"):
        raise ValueError(f"{caller}: bases must be 'refit' or 'frozen'; got {bases!r}.")
    if bases == "refit" and _learning(fit):
        return RelearnedBases(fit, plan, reader_of(fit), columns_of)
    return None


def _learning(fit: Fit) -> list[str]:
    """Name the calls of the fit's formula that change what its columns span by what they learn."""
    reader = reader_of(fit)
    if isinstance(reader, FormulaReader):
        return reader.learning(not isinstance(with_all_columns(fit).penalty, Zero))
    return []


@cached_on
def _shares(fit: Fit) -> FloatArray | None:
    """Return the shares of every unit in the parts of the model, for a fit.

    None if it has no parts.
    """
    return fit.objective.parameters.shares(fit.theta)


class EstimateBuilder:
    """An estimate whose refits arrive in batches."""

    def __init__(
        self,
        loss: HeldOutLoss,
        strategy: AbstractRefit,
        audit: int = 0,
        predict: PredictionColumns | None = None,
        baseline: FloatArray | None = None,
    ):
        self.held_out_loss = loss
        self.strategy = strategy
        self.audit = audit
        self.columns = CollectedColumns(loss.plan)
        formed = loss.evaluate is not None or predict is not None
        with self.stoppable():
            self.batches = PlanBatches(loss.fit, loss.plan, strategy, formed=formed)
            if baseline is None:
                baseline = self.batches.baseline(loss)
        self.blank = blank(loss, strategy, baseline)
        keeps_theta = audit > 0 and loss.plan.num_refits * loss.fit.num_params <= CAPACITY
        compares_minima = self.blank.elsewhere is not None
        self.collect = EstimateColumns(loss, compares_minima, keeps_theta, predict)

    def run(self, **options: Any) -> None:
        """Run every refit of the plan; `options` are those of `over_refits`."""
        loss = self.held_out_loss
        _shares(loss.fit)  # computed now, so that Ctrl-C need not wait for it
        log.info("%d refits by %s", loss.plan.num_refits, self.strategy)
        if loss.evaluate is None:  # tolerances refer to the model's own losses
            options.setdefault("scale", self.blank.scale)
        self.columns = over_refits(
            "cross_validate",
            loss.fit,
            loss.plan,
            self.strategy,
            self.collect,
            judge=True,
            batches=self.batches,
            partial=self.partial,
            **options,
        )

    @property
    def gradients(self) -> float:
        """The number of gradients that the refits took."""
        return float(self.columns["gradients"])

    def add(self, batch: Batch, outcome: RefitBatch) -> None:
        """Add a batch of refits, all of whose errors were asked for."""
        outcome = replace(outcome, error=infinite_if_unknown(outcome))
        self.columns.merge(batch, self.collect(batch, outcome).arrays(batch.rows.held))

    @property
    def draft(self) -> Estimate:
        """The estimate of the refits so far."""
        names = {"losses", "error", "result", "proved", "settled_by", "elsewhere"}
        fields: NamedValues = {name: self.columns[name] for name in names & {*self.columns}}
        return replace(self.blank, **fields)

    def stoppable(self) -> contextlib.AbstractContextManager[None]:
        """Raise `Interrupted` with the estimate of all refits on Ctrl-C."""
        count = self.held_out_loss.plan.num_refits
        done = lambda: count if self.columns else 0
        return interruptible("cross_validate", done, count, lambda: self.partial(self.columns))

    def partial(
        self, columns: CollectedColumns, audit: str = "none, since it was stopped"
    ) -> Estimate:
        """Return the estimate so far, with a sentence about its audit.

        Refits that were not run have a code of their own and NaN losses.
        """
        self.columns = columns
        estimate = self.draft
        missing = estimate.result == RESULTS.interrupted
        entries = missing if estimate.joint else missing[estimate.plan.refit]
        error = np.where(missing, np.inf, estimate.error)
        baseline = np.where(entries, np.nan, estimate.baseline)
        estimate = replace(estimate, error=error, baseline=baseline)
        return self.finish(estimate, audit=audit)

    def finish(
        self,
        estimate: Estimate,
        repetitions: tuple[Repetition, ...] | None = None,
        audit: str = "",
    ) -> Estimate:
        """Return the estimate with the repetitions of an audit and a sentence about it."""
        result = estimate.result.copy()
        result[among(result, MILD) & _emptied_refits(self.held_out_loss)] = RESULTS.emptied
        labels = replace(estimate.labels, audit=audit)
        estimate = replace(estimate, result=result, repetitions=repetitions, labels=labels)
        draws = self.columns.get("draws")
        if draws is None or np.isnan(draws).any():
            return estimate
        distance_left = float(self.columns["distance_left"][-1])
        return estimate.sharing(draws, distance_left, float(self.columns["probes"][-1]))

    def choose(self, estimate: Estimate, number: int) -> dict[int, str]:
        """Choose refits that are most worth repeating, with the reason for each."""
        if not number:
            return {}
        exists = self.is_repeatable(estimate)
        step_length = self.columns["step_length"]
        return choose_refits(exists, step_length, estimate.error, estimate.proved, number)

    def is_repeatable(self, estimate: Estimate) -> BoolArray:
        """Mark the refits that exist and were judged."""
        return ~among(estimate.result, NO_REFIT_CODES) & ~np.isnan(estimate.error)

    def starts(self, chosen: Iterable[int]) -> dict[int, FloatArray]:
        """Return the parameters that chosen refits reached, as far as they are kept."""
        theta = self.columns.get("theta")
        if theta is None:
            return {}
        return {refit: theta[refit] for refit in chosen if np.isfinite(theta[refit]).all()}

    def audited(
        self, estimate: Estimate, improve: bool
    ) -> tuple[Estimate, tuple[Repetition, ...] | None, str]:
        """Repeat some refits exactly, and describe that in a sentence.

        Refits that miss are flagged. If `improve` is set, the refits judged in the same way are
        iterated to convergence.
        """
        if not self.audit:
            return estimate, None, ""
        fit = self.held_out_loss.fit
        number = affordable(self.gradients, work(fit.objective, fit.num_params))
        chosen = self.choose(estimate, min(number, self.audit))
        num_candidates = int(self.is_repeatable(estimate).sum())
        if num_candidates and not chosen:
            remark = (
                "none: one refit repeated exactly would cost more than all the rest of the call"
            )
            return estimate, None, remark
        repetitions = repeat_refits(self.held_out_loss, estimate, chosen, self.starts(chosen))
        missed = [repetition.refit for repetition in repetitions if repetition.beyond]
        if len(chosen) == 1:
            refits = "1 refit"
            possessive = "its"
        else:
            refits = f"{len(chosen)} refits"
            possessive = "their"
        remark = f"{refits} repeated exactly, {len(missed)} beyond {possessive} error"
        num_skipped = min(num_candidates, self.audit) - len(chosen)
        if num_skipped:
            remark += f" ({num_skipped} more would cost above a tenth of the work)"
        if len(missed) and improve:
            is_alike = ~among(estimate.result, NO_REFIT_CODES) & np.isin(
                estimate.proved, estimate.proved[missed]
            )
            estimate = self._converge(estimate, np.flatnonzero(is_alike))
            remark += f"; all {is_alike.sum()} judged like these were iterated to the end"
        estimate.result[missed] = RESULTS.missed
        return estimate, repetitions, remark

    def sharpen(self, estimate: Estimate) -> Estimate:
        """Iterate further the refits that are close enough for the model's own loss but not for the
        given loss.
        """
        wide = estimate.flagged()
        return self._converge(estimate, wide[~among(estimate.result[wide], NO_REFIT_CODES)])

    def _converge(self, estimate: Estimate, refits: IntArray) -> Estimate:
        if not refits.size:
            return estimate
        return refitted(self.held_out_loss, Exact(), refits, estimate)


def _emptied_refits(loss: HeldOutLoss) -> BoolArray:
    """Mark refits that keep less than half an observation of a part of the model that has one in
    the fit.
    """
    plan = loss.plan
    shares = _shares(loss.fit)
    if shares is None:
        return np.zeros(plan.num_refits, bool)
    change = scipy.sparse.csr_array(
        (plan.weight - 1.0, plan.index, plan.indptr), (plan.num_refits, plan.num_units)
    )
    total = np.asarray(shares).sum(0)
    # least number of observations of a part of the model that a refit must keep
    min_observations = 0.5
    return np.any((total + change @ shares < min_observations) & (total >= 2 * min_observations), 1)


def refitted(
    loss: HeldOutLoss, refit: AbstractRefit, refits: IntArray, estimate: Estimate, times: int = 1
) -> Estimate:
    """Refit some refits of an estimate by another strategy, by the tolerances of the whole plan."""
    part = replace(loss, plan=loss.plan.some(refits))
    entries = refits if loss.joint else np.isin(loss.plan.refit, refits)
    builder = EstimateBuilder(part, refit, baseline=estimate.baseline[entries])
    builder.run(scale=estimate.scale, times=times)
    draft = builder.draft
    places = {
        "losses": entries,
        "error": refits,
        "result": refits,
        "proved": refits,
        "settled_by": refits,
    }
    fields: NamedValues = {name: np.array(getattr(estimate, name)) for name in places}
    for name, place in places.items():
        fields[name][place] = getattr(draft, name)
    return replace(estimate, **fields)
