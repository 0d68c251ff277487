"""Cross-validation: plan → refit → score, in batches of bounded memory.

    θ_o ≈ argmin F(·, w_o),
    loss of a held-out unit n = −log p(x_n | all seen units; θ_o), or `evaluate`

w_o are the weights of refit o of the plan. `BatchRunner` runs over the plan batch by batch. The
strategy computes each θ_o and a bound of its distance from the exact one; `HeldOutLoss` converts
that into an error of the loss; `EstimateBuilder` stores both. After the last batch some refits are
repeated exactly (`audit`), and refits are compared with the fit's other minima (`minima`).
`cross_predict` and `fold_parameters` run over the same batches, and keep predictions or parameters.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike, NDArray

from .._runtime.arrays import BoolArray, FloatArray, IntArray
from .._runtime.checkpoint import ArrayRecord, File, StepResult, keeping
from .._runtime.conventions import conventional, log, warn
from .._runtime.fingerprint import fingerprint
from .._runtime.interrupt import Interrupted
from .._runtime.jax import Module, PyTree, cached_on, float64, jax
from .._runtime.memory import require_memory
from .._runtime.results import NO_REFIT_CODES, RESULTS, among, kind_of
from ..data.arrays import check_times, count, is_default_index
from ..data.formulas import FormulaReader
from ..models.glm.penalty import Zero
from ..objectives.batch_functions import weights_of, work
from ..objectives.objective import AbstractLinearPredictor, AbstractObjective
from ..objectives.unit_weights import unit_weights
from ..optimize.active_set import without
from ..optimize.fit import Fit, fit as minimise
from ..plans.plan import (
    Batch,
    Cases,
    Plan,
    Splitter,
    from_splits,
    groups as plan_of_groups,
    kfold,
    stratified,
)
from ..refit import AbstractRefit, Certified, Exact, RefitBatch
from . import minima as minima
from .audit import Candidates, affordable, audit_table, foremost_by_reason
from .batches import (
    BatchRunner,
    Losses,
    Merge,
    Refitter,
    Summarise,
    blank,
    infinite_if_unknown,
    one_thread,
    put_losses,
)
from .checks import reader_of, with_all_columns
from .estimate import Estimate
from .held_out_predictions import (
    NO_LOSS_CODES,
    Average,
    Predictions,
    measure,
    measures,
    prediction_kind,
)
from .metrics import AnyMetric, Measure, ScoreName
from .named_parameters import PartialRefit, partial_refits
from .scorers import function_name
from .scoring import Evaluate, HeldOutLoss, NamedScore, find_score, natural

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
PlanLike = Plan | Cases | int | Splitter | Iterable[tuple[ArrayLike, ArrayLike]]


@conventional
@float64
def cross_validate(
    fit: Fit,
    plan: PlanLike,
    strategy: AbstractRefit = DEFAULT_REFIT,
    *,
    evaluate: Evaluate | ScoreName | None = None,
    metric: AnyMetric | Sequence[AnyMetric] | Mapping[str, AnyMetric] = (),
    average: Average | None = None,
    audit: int = 5,
    checkpoint: File | None = None,
    groups: ArrayLike | None = None,
    bases: Literal["refit", "frozen"] = "refit",
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
        The units to leave out in each refit, such as `lo.leave_one_out(n)`. If plan and fit have
        labels, they are matched by these. A number k means k folds, drawn with the seed 0:
        `lo.stratified` if the response is a class, successive ones for a series, `lo.groups` if
        there are `groups`, and otherwise `lo.kfold`. A splitter of scikit-learn, or pairs (train,
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
        refits. `Estimate.metric_how` says which.
    audit : int, default 5
        The number of refits to repeat exactly by another method (0 for none). A tenth of the
        operations of the call pays for them; one is repeated if that is no more than half of them.
        If one is off by more than its reported error, it is flagged, and the others that were
        judged like it are iterated to the end.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers.
    groups : array-like, optional
        Labels of groups for a number of folds or a splitter: groups stay together, and standard
        errors are over them.
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
    >>> cv = lo.cross_validate(fit, lo.leave_one_out(40))
    >>> round(cv.mean, 3), round(cv.se, 2)
    (0.501, 0.09)
    >>> lo.cross_validate(fit, 5, evaluate="squared_error").plan
    Plan(lo.kfold(40, 5, seed=0): 5 refits of 8 units each, 40 units)
    """
    plan = resolve_plan(
        "cross_validate", objective_of("cross_validate", fit), plan, strategy, groups
    )
    if evaluate is not None and getattr(strategy, "errors", "all") == "sampled":
        raise ValueError(
            "cross_validate: errors='sampled' is for the model's own loss; leave evaluate= or errors= out."
        )
    score = find_score(fit, evaluate)
    audit = count("cross_validate: audit", audit, 0)
    measures_by_name = measures("cross_validate", fit, metric, plan, average)
    metrics = tuple(measures_by_name)
    pooled = None
    if metrics:
        pooled = Predictions(plan, prediction_kind(measures_by_name), judged=True)

    def fold_scoring(fold_fit: Fit) -> tuple[Losses, Summarise]:
        loss = HeldOutLoss(fold_fit, plan, find_score(fold_fit, evaluate))
        return loss.losses_of, BatchSummary(loss, False, 0, pooled)

    fold_bases = relearned_bases("cross_validate", fit, plan, bases, fold_scoring)
    key = cache_key(fit, plan, strategy, evaluate=evaluate, metric=metrics, audit=audit)
    if fold_bases is not None:
        key["bases"] = fold_bases.reader.table
    with one_thread(fit.objective, fit.num_params), keeping("cross_validate", checkpoint, key):
        loss = HeldOutLoss(fit, plan, score)
        builder = run_refits(loss, strategy, audit, pooled, fold_bases=fold_bases)
        with builder.stoppable():
            if evaluate is not None and strategy.in_standard_errors and fold_bases is None:
                builder.sharpen()
            estimate = builder.estimate(
                measures_by_name, average, improve=strategy.in_standard_errors
            )
    note = estimate.labels.note
    if isinstance(reader := reader_of(fit), FormulaReader):
        note = note.replace(*reader.remarks(_learning(fit), fold_bases is not None))
    options: dict[str, tuple[Any, Any]] = {
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
        chosen: Any = evaluate
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


def cache_key(fit: Fit, plan: Plan, refit: AbstractRefit, **options: object) -> dict[str, object]:
    """List everything that the result of a call depends on, for the key of its checkpoint."""
    minimum = fit.vector, fit.value, fit.gradient, fit.minima.theta
    return {"model or data": fit.objective, "fit": minimum, "plan": plan, "refit": refit, **options}


@float64
def scored_together(
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit,
    request: Sequence[Evaluate | ScoreName | NamedScore | None],
    predictions: Predictions | None = None,
) -> list[Estimate]:
    """Cross-validate by each of several scores, from the same refits, without audits.

    Collect predictions if asked for.
    """
    plan = resolve_plan("cross_validate", objective_of("cross_validate", fit), plan, refit)
    model_loss = HeldOutLoss(fit, plan, None)
    runner = BatchRunner(fit, plan, refit)
    losses = [replace(model_loss, evaluate=find_score(fit, score)) for score in request]
    builders = [
        EstimateBuilder(
            loss, blank(loss, refit, runner.baseline(loss)), predictions=None if k else predictions
        )
        for k, loss in enumerate(losses)
    ]
    # without their results, as another process may run them
    summaries = [builder.summarise for builder in builders]

    def summarise(batch: Batch, outcome: RefitBatch, values: NDArray) -> StepResult:
        values_of = lambda loss: (
            values if loss.evaluate is None else loss.losses(batch.rows, outcome.theta)
        )
        results = enumerate(
            summary(batch, outcome, values_of(summary.held_out_loss)) for summary in summaries
        )
        return {f"{k} {name}": part for k, result in results for name, part in result.items()}

    def merge(batch: Batch, batch_result: StepResult) -> None:
        for k, builder in enumerate(builders):
            builder.merge(
                batch,
                {
                    name.removeprefix(f"{k} "): part
                    for name, part in batch_result.items()
                    if name.startswith(f"{k} ")
                },
            )

    with runner.stoppable("cross_validate"):
        runner.refits(summarise, merge, model_loss.losses_of)
    for builder in builders:
        if builder.held_out_loss.evaluate is not None and refit.in_standard_errors:
            builder.sharpen()
    return [builder.estimate({}, None, improve=False) for builder in builders]


@conventional
@float64
def cross_predict(
    fit: Fit,
    plan: PlanLike,
    strategy: AbstractRefit = DEFAULT_REFIT,
    kind: Literal["response", "link", "state", "label"] = "response",
    *,
    checkpoint: File | None = None,
    groups: ArrayLike | None = None,
    bases: Literal["refit", "frozen"] = "refit",
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
    ndarray, or a pair of these
        Predictions `[units]` or `[units, outputs]`. NaN for a unit that is never held out, or that
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
    >>> lo.cross_predict(fit, lo.leave_one_out(6)).round(6)
    array([ 1.,  3.,  5.,  7.,  9., 11.])
    """
    plan = match_plan("cross_predict", objective_of("cross_predict", fit), plan, strategy, groups)
    if kind not in fit.objective.units.kinds:
        raise ValueError(
            f"cross_predict: kind must be one of {', '.join(map(repr, fit.objective.units.kinds))}; got {kind!r}."
        )
    predictions = held_out(
        fit,
        plan,
        strategy_of_predictions(fit, plan, strategy),
        kind,
        checkpoint,
        bases,
        judged=error,
    )
    predicted = predictions.per_unit()
    units = np.unique(predictions.unit[predictions.missing[predictions.refit]])
    missing = units[np.isnan(predicted[units]).any(tuple(range(1, predicted.ndim)))]
    if len(missing):
        warn(
            f"cross_predict: {len(missing)} of {len(np.unique(predictions.unit))} held-out predictions are missing, such as that of "
            f"{plan.unit_names[missing[0]]!s}: the refits without them do not determine them. A penalty does, or, where "
            "groups leave whole, effects of groups that are drawn: lo.Mixed('… + (1 | group)')."
        )
    if error:
        return predicted, predictions.per_unit(predictions.errors)
    return predicted


def strategy_of_predictions(fit: Fit, plan: Plan, strategy: AbstractRefit) -> AbstractRefit:
    """Return the strategy for calls that want predictions.

    The tolerance of `Certified` is one of losses.
    """
    affordable = plan.num_refits * fit.objective.num_units * fit.num_params < MOST_PRODUCTS
    if isinstance(strategy, Certified) and fit.factor is not None and affordable:
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
    pooled = Predictions(plan, kind, judged=judged)

    def fold_scoring(fold_fit: Fit) -> tuple[None, Summarise]:
        return None, lambda batch, outcome, _: pooled.predict(
            fold_fit, batch.rows, outcome, outcome.result
        )

    fold_bases = relearned_bases("cross_predict", fit, plan, bases, fold_scoring)
    key = cache_key(fit, plan, refit, kind=kind, judged=judged)
    if fold_bases is not None:
        key["bases"] = fold_bases.reader.table
    with one_thread(fit.objective, fit.num_params), keeping("cross_predict", checkpoint, key):
        runner = BatchRunner(fit, plan, refit)
        with runner.stoppable("cross_predict", pooled.per_unit):
            runner.refits(fold_scoring(fit)[1], pooled.merge, refit_fold=fold_bases)
    return pooled


@conventional
@float64
def fold_parameters(
    fit: Fit,
    plan: PlanLike,
    strategy: AbstractRefit = DEFAULT_REFIT,
    *,
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
    >>> lo.fold_parameters(fit, lo.leave_one_out(4))["coef"].ravel().round(3)
    array([4.   , 2.857, 3.143, 2.   ])
    """
    theta, partial = fold_refits(fit, plan, strategy.of_parameters(), "fold_parameters", checkpoint)
    parameters = natural(fit, theta)
    first = 0
    if not partial:
        return parameters

    def determined(leaf: NDArray) -> FloatArray:
        """Put NaN for what refits leave open; leaves come in the order of the named parameters."""
        nonlocal first
        columns = np.array(leaf, np.float64).reshape(len(leaf), -1)
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
    plan = match_plan(caller, objective_of(caller, fit), plan, refit)
    require_memory(
        caller,
        2 * 8.0 * plan.num_refits * fit.num_params,  # as they are fitted, and by their names
        f"{fit.num_params:,} parameters of {plan.num_refits:,} refits",
        "plan.some takes some refits",
    )
    theta = np.full((plan.num_refits, fit.num_params), np.nan)
    codes = np.zeros(plan.num_refits, np.int64)

    def merge(batch, batch_result):
        nonlocal theta
        if batch_result["theta"].shape[1] != theta.shape[1]:
            theta = np.full((plan.num_refits, batch_result["theta"].shape[1]), np.nan)
        theta[batch.refits] = batch_result["theta"]
        codes[batch.refits] = batch_result["result"]

    def summarise(batch: Batch, outcome: RefitBatch, values: Any) -> StepResult:
        is_missing = among(outcome.result, NO_REFIT_CODES)
        return {
            "theta": np.where(is_missing[:, None], np.nan, outcome.theta),
            "result": np.asarray(outcome.result),
        }

    with (
        one_thread(fit.objective, fit.num_params),
        keeping(caller, checkpoint, cache_key(fit, plan, refit)),
    ):
        runner = BatchRunner(fit, plan, refit)
        with runner.stoppable(caller, lambda: natural(fit, theta)):
            runner.refits(summarise, merge)
    partial = partial_refits(fit, plan, codes)
    for k, partial_refit in partial.items():
        theta[k] = partial_refit.theta
    return theta, partial


def refit_batches(
    caller: str,
    fit: Fit,
    plan: Plan,
    refit: AbstractRefit,
    summarise: Callable[[Batch, RefitBatch], StepResult],
    merge: Merge,
    judge: bool = True,
) -> None:
    """Refit every batch, apply `summarise` to the refits and their bounds, and merge the results in
    order.

    Unless they are to be judged by losses, none is computed: bounds are those of parameters alone.
    """
    without(caller, fit.objective)
    keep_freed()
    runner = BatchRunner(fit, plan, refit)
    losses = HeldOutLoss(fit, plan, None).losses_of if judge else None
    with one_thread(fit.objective, fit.num_params), runner.stoppable(caller):
        runner.refits(lambda batch, outcome, _: summarise(batch, outcome), merge, losses)


@functools.cache
def keep_freed() -> None:
    """Free an untouched block of 32 MiB, so that the C library keeps as much freed memory from then
    on.

    Otherwise it returns memory beyond twice the largest block freed before, and each step of a
    first call fetches it again: 155,000 page faults for 1,000 groups of 20,000 rows instead of
    4,000.
    """
    largest_kept = 2**25 - 2**14  # largest number of bytes that raises the C library's threshold
    np.empty(largest_kept, np.uint8)


def run_refits(
    loss: HeldOutLoss,
    refit: AbstractRefit,
    audit: int,
    predictions: Predictions | None = None,
    times: int = 1,
    fold_bases: "RelearnedBases | None" = None,
) -> "EstimateBuilder":
    """Run every refit of a plan and collect the results; `times` such plans share the work allowed
    for one.

    With `fold_bases`, each refit is a batch by itself, whose model learns the bases of its formula
    from its own rows.
    """
    keep_freed()
    runner = BatchRunner(
        loss.fit,
        loss.plan,
        refit,
        times,
        formed=loss.evaluate is not None or predictions is not None,
    )
    with runner.stoppable("cross_validate"):
        draft = blank(loss, refit, runner.baseline(loss))
    if fold_bases is not None:
        audit = 0
    builder = EstimateBuilder(loss, draft, audit, predictions)
    assert builder.emptied_refits is not None  # computed now, so that Ctrl-C need not wait for it
    # tolerances refer to the model's own losses
    reference = draft if loss.evaluate is None else None
    log.info("%d refits by %s", loss.plan.num_refits, refit)
    with builder.stoppable():
        runner.refits(builder.summarise, builder.merge, loss.losses_of, reference, fold_bases)
    return builder


def begin_estimate(
    loss: HeldOutLoss, refit: AbstractRefit
) -> tuple["EstimateBuilder", Iterable[Batch]]:
    """Return an estimate without its refits, and their batches, for callers that run the refits
    themselves.
    """
    runner = BatchRunner(loss.fit, loss.plan, refit)
    return EstimateBuilder(loss, blank(loss, refit, runner.baseline(loss))), runner.batches()


def objective_of(caller: str, fit: Fit) -> AbstractObjective:
    """Return the objective of a fit; TypeError if the argument is not a fit."""
    if not isinstance(fit, Fit):
        if hasattr(fit, "get_params"):
            way = " lo.sklearn.cross_validate takes this call."
        else:
            way = ""
        raise TypeError(
            f"{caller}: the first argument must be a Fit, from lo.fit, lo.anchor or lo.from_sklearn; got "
            f"{type(fit).__name__}.{way}"
        )
    return fit.objective


def read_plan(
    caller: str,
    objective: AbstractObjective,
    plan: PlanLike,
    refit: AbstractRefit,
    groups: ArrayLike | None,
) -> Plan:
    """Make the plan that a number of folds, a splitter, pairs of sets or
    `lo.leave_one_out(cases=True)` stand for.
    """
    n = objective.num_units
    units = objective.units
    if isinstance(plan, Plan | Cases):
        if groups is not None:
            raise TypeError(
                f"{caller}: groups= goes with a number of folds or a splitter; a Plan has its own: lo.groups(labels)."
            )
        if isinstance(plan, Plan):
            return plan
        return plan.plan(caller, n, unit_weights(objective, are_cases=True).values)
    if groups is None:
        clusters = None
    else:
        clusters = match_plan(caller, objective, plan_of_groups(groups), refit).clusters
    if isinstance(plan, int | np.integer) and not isinstance(plan, bool):
        if clusters is not None:
            return plan_of_groups(clusters, int(plan))
        if units.classes and units.target is not None:
            return stratified(units.target, int(plan), seed=0)
        if units.serial:
            return kfold(n, int(plan))
        return kfold(n, int(plan), seed=0)
    are_labels = isinstance(plan, str | np.ndarray | pd.Series | pd.DataFrame)
    if are_labels or not (isinstance(plan, Iterable) or hasattr(plan, "split")):
        raise TypeError(
            f"{caller}: plan must be a Plan, such as lo.leave_one_out(n), a number of folds, or a splitter; got "
            f"{type(plan).__name__}."
        )
    splits: Any = plan
    if not isinstance(plan, Iterable):
        try:
            splits = list(splits.split(np.zeros((n, 1)), units.target, clusters))
        except (ValueError, TypeError) as error:
            if clusters is None and "groups" in str(error):
                raise ValueError(
                    f"{caller}: {plan!r} needs groups; give one label a unit as groups=."
                ) from error
            if units.target is None:
                raise ValueError(
                    f"{caller}: {plan!r} does not split units that have no target: {error}"
                ) from error
            raise
    origin = "pairs (train, test)" if splits is plan else repr(plan)
    if clusters is None or units.names is None:
        labelled = clusters
    else:
        labelled = pd.Series(clusters, units.names)
    return from_splits(splits, n, groups=labelled).replace_facts(call=f"lo.from_splits of {origin}")


def _by_units(caller: str, plan: Plan, unit: IntArray, unit_kind: str) -> Plan:
    """Convert a plan of rows to one of units that are several rows.

    ValueError if it leaves out parts of a unit.
    """
    size = np.bincount(unit)
    n = len(size)
    key, first, entry = np.unique(
        plan.refit * n + unit[plan.index], return_index=True, return_inverse=True
    )
    alike = (plan.weight == plan.weight[first][entry]) & (plan.held == plan.held[first][entry])
    wrong = np.bincount(entry, alike) < size[key % n]
    member = np.unique(unit, return_index=True)[1]
    if wrong.any() or (
        plan.clusters is not None and np.any(plan.clusters != plan.clusters[member][unit])
    ):
        raise ValueError(
            f"{caller}: the plan is for {plan.num_units} rows and leaves out parts of the fit's {n} units, each of which "
            f"leaves with all its rows: give labels that agree within a unit, or make it with {n}, one for each {unit_kind}."
        )
    names = None
    # each refit leaves one unit: the label is its name
    if plan.labels is not None and len(key) == plan.num_refits == n:
        names = pd.Index(plan.labels)[np.argsort(key % n)]
    return replace(
        plan,
        indptr=np.searchsorted(key, np.arange(plan.num_refits + 1) * n),
        index=key % n,
        weight=plan.weight[first],
        held=plan.held[first],
        num_units=n,
        names=names,
        **plan.facts_of(member),
    )


def match_plan(
    caller: str,
    objective: AbstractObjective,
    plan: PlanLike,
    refit: AbstractRefit,
    groups: ArrayLike | None = None,
) -> Plan:
    """Match the plan to the units, by labels if both have them.

    Raise for plans and fits that cannot be cross-validated.
    """
    plan = read_plan(caller, objective, plan, refit, groups)
    count = objective.num_units
    units = objective.units
    if units.rows is not None and plan.num_units not in (count, len(units.rows)):
        plan = _of_units(caller, plan, units.row_names)
    if units.rows is not None and plan.num_units == len(units.rows) > count:
        plan = _by_units(
            caller,
            plan.match_labels(caller, units.row_names),
            np.asarray(units.rows),
            getattr(objective, "drop", "unit"),
        )
    plan = _of_units(caller, plan, units.names)
    if plan.of_cases:
        cases = unit_weights(objective, are_cases=True).values
        # cases that leave, whole numbers but for rounding
        removed_cases = cases[plan.index] * (1 - plan.weight)
        are_whole = np.isclose(removed_cases, np.round(removed_cases), rtol=1e-9, atol=1e-9) & (
            cases[plan.index] % 1 == 0
        )
        plan.check_held(
            caller,
            plan.held
            & (plan.weight > 0)
            & ~(are_whole & isinstance(objective, AbstractLinearPredictor)),
        )
    if plan.num_units != count:
        if units.names is None:
            labelled = ""
        else:
            labelled = ", or of a Series labelled as the data were: units that the fit lacks then leave the plan"
        usual = "row" if isinstance(objective, AbstractLinearPredictor) else "unit"
        unit_kind = getattr(objective, "drop", usual)
        raise ValueError(
            f"{caller}: the plan is for {plan.num_units} units, but the fit has {count}; make it with {count}, "
            f"one for each {unit_kind}{labelled}."
        )
    if not units.repeatable and np.any(plan.weight > 1):
        if units.serial is None:
            raise ValueError(
                f"{caller}: the plan has weights above 1, as a bootstrap has, but whether the units of this "
                f"{kind_of(objective)} depend on one another is not known: a weight of two need not be a second copy. Where "
                "they do not, say so, as by lo.Objective(..., dependence='independent')."
            )
        raise ValueError(
            f"{caller}: the plan has weights above 1, as a bootstrap has, but the units of this "
            f"{kind_of(objective)} depend on one another: a weight of two there is not a second copy. "
            "Use contiguous, blocks or leave_future_out, or resample whole sequences."
        )
    if not isinstance(refit, AbstractRefit):
        raise TypeError(f"{caller}: strategy must be one, such as lo.Exact(); got {refit!r}.")
    plan = plan.match_labels(caller, units.names)
    lengths = np.asarray(getattr(objective, "lengths", ()), np.int64)
    if plan.series is not None and len(lengths) > 1 and lengths.sum() == count:
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        if len(np.unique(np.stack([plan.series, sequence]), axis=1).T) > len(
            np.unique(plan.series)
        ):
            raise ValueError(
                f"{caller}: the plan takes {count} steps for one series, but the fit has {len(lengths)} (lengths=): give the "
                "plan groups=, the series of each step, as groups=np.repeat(np.arange(len(lengths)), lengths)."
            )
    return plan


def _of_units(caller: str, plan: Plan, names: pd.Index | None) -> Plan:
    """Restrict a plan to the units of a fit that lacks some labels, as hosts drop rows with missing
    values; warn of these.
    """
    if (
        names is None
        or plan.names is None
        or plan.num_units <= len(names)
        or not (names.is_unique and plan.names.is_unique)
    ):
        return plan
    units = plan.names.get_indexer(names)
    if (units < 0).any() or is_default_index(names):  # labels 0, 1, … may have been renumbered
        return plan
    missing = plan.names.difference(names, sort=False)
    warn(
        f"{caller}: {len(missing)} of the plan's {plan.num_units} units are not among those of the fit, such as "
        f"{missing.tolist()[0]!r}; they leave the plan."
    )
    return plan.only(units)


def resolve_plan(
    caller: str,
    objective: AbstractObjective,
    plan: PlanLike,
    refit: AbstractRefit,
    groups: ArrayLike | None = None,
) -> Plan:
    """Return the plan with the model's facts about its units.

    Labels, which have a loss, and their dependence.
    """
    plan = match_plan(caller, objective, plan, refit, groups)
    units = objective.units
    held = plan.held & units.scored_entries(plan.refit, plan.index, plan.weight)
    if not held.any():
        raise ValueError(
            f"{caller}: no held-out unit has an observation; every one that the plan scores is missing."
        )
    blocks = units.blocks if plan.blocks is None else plan.blocks
    if plan.serial and units.names is not None:
        if plan.series is None:
            series = np.zeros(plan.num_units, int)
        else:
            series = np.unique(plan.series, return_inverse=True)[1]
        check_times(
            caller, "the data", units.names[np.argsort(series, kind="stable")], np.bincount(series)
        )
    names = units.names
    if names is None and plan.names is not None and not is_default_index(plan.names):
        names = plan.names
    return plan.replace_facts(
        held=held, serial=plan.serial or units.serial, blocks=blocks, names=names
    )


@dataclass(frozen=True, eq=False)
class BatchResult(ArrayRecord):
    """Losses, errors and codes of a batch of refits."""

    losses: FloatArray
    error: FloatArray  # NaN where it was not asked for
    exists: BoolArray
    step_length: FloatArray
    proved: BoolArray
    result: IntArray
    gradients: FloatArray
    elsewhere: FloatArray | None = None  # losses at lower minima, NaN for refits without one
    draws: FloatArray | None = None  # of refits that share probes: see `CommonError`
    probe_error: Any = None
    candidates: IntArray | None = None  # refits that may be repeated
    candidate_theta: Any = None


@dataclass(frozen=True, eq=False)
class BatchSummary:
    """Compute the results of a batch of refits, by name: a `BatchResult`, and predictions.

    `compares_minima` adds the losses at lower minima elsewhere, and `audit` the parameters of that
    many refits which may be repeated.
    """

    held_out_loss: HeldOutLoss
    compares_minima: bool
    audit: int
    predictions: Predictions | None

    def __call__(self, batch: Batch, outcome: RefitBatch, values: np.ndarray) -> StepResult:
        loss = self.held_out_loss
        rows = batch.rows
        result = np.array(outcome.result)
        pointwise = values.ndim > 1
        if pointwise:
            bad = (~np.isfinite(values) & rows.held).any(1)
        else:
            bad = ~np.isfinite(values)
        result[bad & ~among(result, NO_REFIT_CODES)] = RESULTS.nonfinite
        exists = ~among(result, NO_REFIT_CODES)
        has_loss = ~among(result, NO_LOSS_CODES) if pointwise else exists
        values = np.array(values)
        values[~has_loss] = np.nan
        error = loss.error(rows, outcome, values)
        has_error = has_loss & np.isfinite(error)
        error = np.where(has_error | np.isnan(outcome.error), error, np.inf)
        step_length = outcome.step_length
        if step_length is None:
            step_length = np.zeros(len(error))
        proved = has_error & (
            False if outcome.proved is None or loss.evaluate is not None else outcome.proved
        )
        elsewhere = None
        if self.compares_minima:
            lower, lower_theta = minima.lower(loss.fit, rows, outcome.theta, exists)
            result[lower] = RESULTS.other_minimum
            if lower.any():
                elsewhere = np.array(loss.losses(rows, lower_theta))
                elsewhere[~lower] = np.nan
        leaving = loss.fit.objective.parameters.leaving
        if leaving is not None:
            theta = np.where(exists[:, None], outcome.theta, loss.fit.vector)
            weights = weights_of(rows, loss.plan.num_units)
            leaves = leaving(loss.fit.objective, loss.fit.theta, theta, weights)
            result[exists & leaves] = RESULTS.leaving
        gradients = np.asarray(outcome.gradients)
        batch_result = BatchResult(
            values, error, exists, step_length, proved, result, gradients, elsewhere
        )
        common_error = outcome.common_error
        if common_error is not None and loss.evaluate is None:
            probe_error = np.array([common_error.distance_left, common_error.probes])
            batch_result = replace(batch_result, draws=common_error.draws, probe_error=probe_error)
        formed = loss.fit.predictors is None and common_error is None
        if self.audit and (formed or rows.index.shape[1] > 1):  # else their θ is not formed
            lanes = np.flatnonzero(exists & ~np.isnan(error))
            orders = foremost_by_reason(
                batch.refits[lanes], step_length[lanes], error[lanes], proved[lanes], self.audit
            )
            places = lanes[np.unique(np.concatenate(orders))]
            batch_result = replace(
                batch_result, candidates=batch.refits[places], candidate_theta=outcome.theta[places]
            )
        arrays = batch_result.arrays
        if self.predictions is not None:
            arrays |= self.predictions.predict(loss.fit, rows, outcome, result)
        return arrays


@dataclass(frozen=True, eq=False)
class RelearnedBases:
    """Refit one fold from a fit of its own, whose columns are by what the rows of the fold
    teach.
    """

    fit: Fit
    plan: Plan
    reader: FormulaReader
    # what to compute from the refit of a fit
    fold_scoring: Callable[[Fit], tuple[Losses | None, Summarise]]

    def __call__(self, refitter: Refitter, batch: Batch) -> StepResult:
        seen = weights_of(batch.rows, self.plan.num_units)[0] > 0
        fold_fit = minimise(with_all_columns(self.fit).relearn(seen), self.fit.parameters)
        losses, summarise = self.fold_scoring(fold_fit)
        return replace(refitter, fit=fold_fit, losses=losses, summarise=summarise)(batch)


def relearned_bases(
    caller: str,
    fit: Fit,
    plan: Plan,
    bases: str,
    fold_scoring: Callable[[Fit], tuple[Losses | None, Summarise]],
) -> RelearnedBases | None:
    """Return how folds are refitted whose rows teach the columns of a formula something else.

    None if none do.
    """
    if bases not in ("refit", "frozen"):
        raise ValueError(f"{caller}: bases must be 'refit' or 'frozen'; got {bases!r}.")
    if bases == "refit" and _learning(fit):
        return RelearnedBases(fit, plan, reader_of(fit), fold_scoring)
    return None


def _learning(fit: Fit) -> list[str]:
    """Name the calls of the fit's formula that change what its columns span by what they learn."""
    model = with_all_columns(fit)
    reader = reader_of(fit)
    if isinstance(reader, FormulaReader):
        return reader.learning(not isinstance(model.penalty, Zero))
    return []


@cached_on
def _shares(fit: Fit) -> FloatArray | None:
    """Return the shares of every unit in the parts of the model, for a fit.

    None if it has no parts.
    """
    return fit.objective.parameters.shares(fit.theta)


class EstimateBuilder:
    """The arrays of an estimate, filled as batches of refits arrive."""

    def __init__(
        self,
        loss: HeldOutLoss,
        blank: Estimate,
        audit: int = 0,
        predictions: Predictions | None = None,
    ):
        self.held_out_loss = loss
        self.draft = blank
        self.predictions = predictions
        self.summarise = BatchSummary(loss, blank.elsewhere is not None, audit, predictions)
        self.candidates = Candidates(blank, audit)
        self.gradients = 0.0
        self.is_made = np.zeros(len(blank.error), bool)
        # for refits that share probes: see `Shared`
        self.draws = np.zeros((0, 0))
        self.probe_error = np.zeros(2)

    @functools.cached_property
    def emptied_refits(self) -> BoolArray:
        """Mark refits that keep less than half an observation of a part of the model that has one
        in the fit.
        """
        fit = self.held_out_loss.fit
        plan = self.held_out_loss.plan
        shares = _shares(fit)
        if shares is None:
            return np.zeros(plan.num_refits, bool)
        change = scipy.sparse.csr_array(
            (plan.weight - 1.0, plan.index, plan.indptr), (plan.num_refits, plan.num_units)
        )
        total = np.asarray(shares).sum(0)
        # least number of observations of a part of the model that a refit must keep
        min_observations = 0.5
        return np.any(
            (total + change @ shares < min_observations) & (total >= 2 * min_observations), axis=1
        )

    def add(self, batch: Batch, outcome: RefitBatch, values: np.ndarray) -> None:
        """Add a batch of refits, all of whose errors were asked for."""
        self.merge(
            batch,
            self.summarise(batch, replace(outcome, error=infinite_if_unknown(outcome)), values),
        )

    def merge(self, batch: Batch, arrays: StepResult) -> None:
        """Add the results of a batch."""
        draft = self.draft
        refits = batch.refits
        batch_result = BatchResult.read(arrays)
        put_losses(draft.losses, batch, batch_result.losses)
        draft.error[refits] = batch_result.error
        draft.proved[refits] = batch_result.proved
        draft.result[refits] = batch_result.result
        if (draws := batch_result.draws) is not None:
            if not self.draws.size:
                self.draws = np.full((len(draft.error), draws.shape[1]), np.nan)
            self.draws[refits] = draws
            self.probe_error = batch_result.probe_error
        if draft.elsewhere is not None and batch_result.elsewhere is not None:
            put_losses(draft.elsewhere, batch, batch_result.elsewhere)
        if self.predictions is not None:
            self.predictions.merge(batch, arrays)
        self.gradients += float(batch_result.gradients)
        start = {}
        if (candidates := batch_result.candidates) is not None:
            start = dict(zip(candidates.tolist(), batch_result.candidate_theta, strict=True))
        audited = batch_result.exists & ~np.isnan(batch_result.error)
        self.candidates.add(refits[audited], batch_result.step_length[audited], start)
        self.is_made[refits] = True

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Raise `Interrupted` with the estimate so far on Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(
                f"cross_validate: stopped after {self.is_made.sum()} of {len(self.is_made)} refits",
                self.partial,
            ) from None

    def partial(self) -> Estimate:
        """Return the estimate so far.

        Refits that were not run have a code of their own and NaN losses.
        """
        draft = self.draft
        missing = ~self.is_made
        entries = missing if draft.joint else missing[draft.plan.refit]
        for losses in (draft.losses, draft.baseline, draft.elsewhere):
            if losses is not None:
                losses[entries] = np.nan
        draft.error[missing] = np.inf
        draft.proved[missing] = False
        draft.result[missing] = RESULTS.interrupted
        return self.finish(None, "none, since it was stopped")

    def estimate(
        self, metrics: Mapping[str, Measure], average: Average | None, improve: bool
    ) -> Estimate:
        """Return the complete estimate with its audit.

        If the audit finds a miss and `improve` is set, the refits judged in the same way are
        iterated to convergence.
        """
        table, remark = self._run_audit(improve) if self.candidates.number else (None, "")
        complete = self.finish(table, remark)
        if self.predictions is None:
            return complete
        fields = measure(metrics, self.held_out_loss.fit, self.predictions, average)
        return replace(complete, **fields)  # type: ignore[arg-type]

    def finish(self, table: pd.DataFrame | None, audit: str) -> Estimate:
        """Return the estimate with the table of an audit and a sentence about it."""
        estimate = self.draft
        estimate.result[among(estimate.result, MILD) & self.emptied_refits] = RESULTS.emptied
        labels = replace(estimate.labels, audit=audit)
        estimate = replace(estimate, audit=table, labels=labels)
        if np.isnan(self.draws).any() or not self.draws.size:
            return estimate
        return estimate.sharing(self.draws, *self.probe_error.tolist())

    def _run_audit(self, improve: bool) -> tuple[pd.DataFrame | None, str]:
        """Run the audit, and describe it in a sentence.

        Refits that miss are flagged, and others of their kind iterated.
        """
        draft = self.draft
        candidates = self.candidates
        fit = self.held_out_loss.fit
        chosen = candidates.choose(affordable(self.gradients, work(fit.objective, fit.num_params)))
        if not chosen and candidates.exists.any():
            remark = (
                "none: one refit repeated exactly would cost more than all the rest of the call"
            )
            return None, remark
        table = audit_table(self.held_out_loss, draft, chosen, candidates.start)
        missed = table.refit.to_numpy(int)[table.beyond.to_numpy(bool)]
        if len(chosen) == 1:
            refits = "1 refit"
            possessive = "its"
        else:
            refits = f"{len(chosen)} refits"
            possessive = "their"
        remark = f"{refits} repeated exactly, {len(missed)} beyond {possessive} error"
        num_skipped = min(candidates.number, int(candidates.exists.sum())) - len(chosen)
        if num_skipped:
            remark += f" ({num_skipped} more would cost above a tenth of the work)"
        if len(missed) and improve:
            is_alike = ~among(draft.result, NO_REFIT_CODES) & np.isin(
                draft.proved, draft.proved[missed]
            )
            self._converge(np.flatnonzero(is_alike))
            remark += f"; all {is_alike.sum()} judged like these were iterated to the end"
        draft.result[missed] = RESULTS.missed
        return table, remark

    def sharpen(self) -> None:
        """Iterate further the refits that are close enough for the model's own loss but not for the
        given loss.
        """
        wide = self.draft.flagged()
        self._converge(wide[~among(self.draft.result[wide], NO_REFIT_CODES)])

    def _converge(self, refits: IntArray) -> None:
        if refits.size:
            overwrite_refits(
                self.draft, refit_part(self.held_out_loss, Exact(), refits, self.draft), refits
            )


def refit_part(
    loss: HeldOutLoss, refit: AbstractRefit, refits: IntArray, estimate: Estimate, times: int = 1
) -> Estimate:
    """Refit some rows of a plan, by the tolerances of the whole plan.

    `estimate` has the losses with no update.
    """
    part = replace(loss, plan=loss.plan.some(refits))
    entries = refits if loss.joint else np.isin(loss.plan.refit, refits)
    builder = EstimateBuilder(part, blank(part, refit, estimate.baseline[entries]))
    BatchRunner(loss.fit, part.plan, refit, times).refits(
        builder.summarise, builder.merge, part.losses_of, estimate
    )
    return builder.draft


def overwrite_refits(estimate: Estimate, part: Estimate, refits: IntArray) -> None:
    """Overwrite some refits of an estimate by those of another, in place."""
    estimate.losses[refits if estimate.joint else np.isin(estimate.plan.refit, refits)] = (
        part.losses
    )
    for name in ("error", "result", "proved"):
        getattr(estimate, name)[refits] = getattr(part, name)
