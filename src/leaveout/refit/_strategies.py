"""Strategies: from the fit to the parameters of a batch of refits, each with an error and a code.

A strategy is called with a `Fit` and a batch of rows of a plan. All of them work in the anchor's
whitened coordinates u = Lᵀ(θ − θ̂), in which the anchor's Hessian is the identity and ‖u‖ is the
H-norm. Linear predictors with a convex loss are refitted as arrays, and their errors are proved
(`_linear`). All other models go through `_descent`, where errors are estimated.
"""

import abc
import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy import linalg, ndarray

from .._runtime import (
    RESULTS,
    Array,
    Arrays,
    MakeArray,
    Module,
    NamedValues,
    TwoArrays,
    cached_on,
    compile_static,
    jax,
    jnp,
)
from ..data import share
from ..linalg import Predictors
from ..models.glm import GLM, DualGLM, PerWeight
from ..objectives import (
    AbstractLinearPredictor,
    AbstractObjective,
    AbstractSolved,
    ClosedFormBatch,
    Points,
    as_stored,
    derive_batch,
    function,
    own_passes,
    passes,
    ravel,
    unflatten,
    unravel,
    weights_of,
)
from ..optimize import COARSE, Fit, IndefiniteHessianError, anchored_at, minimise, solve_once
from ..plans import RefitRows
from . import _linear as linear
from ._anchor import linear_cache, passes as groups
from ._descent import Descent, begin, refine
from ._enclosure import across_metrics
from ._penalty_stack import PathRefit, Settling, Stack
from ._refit_batch import RefitBatch
from ._wide import alone, exactly, one_step, refit_by_probes, wide

# refits whose errors are computed if they are sampled: their mean is then known to about a fifth
SAMPLED = 30
CLOSE_ENOUGH = 0.01  # proved error, in standard errors of the mean, that needs no closer look


class AbstractRefit(Module):
    """Strategy of refitting: from the fit at weights one to the fit at other weights.

    A subclass writes `__call__`. Its parameters are fields.
    """

    in_standard_errors: ClassVar[bool] = False  # whether its tolerance is a share of `rows.scale`
    # whether it forms each refit's own Hessian for every model
    own_hessians: ClassVar[bool] = False
    # whether all refits together are quicker, if they share passes
    together: ClassVar[bool] = False
    # whether it estimates single rows by probes, if H is not formed and rows are sparse
    probes: ClassVar[bool] = False
    quadratic: ClassVar[bool] = False  # whether its first step reaches the minimiser of a quadratic
    iterates: ClassVar[bool] = False  # whether it iterates to the minimiser of each refit

    def judged(self, refits: ndarray, num_refits: int) -> ndarray:
        """Mark refits whose errors are computed: all, or those in a random sample if `errors` is
        "sampled".

        Parameters
        ----------
        refits : array of int, shape (some,)
            Numbers of some refits.
        num_refits : int
            The number of refits.

        Returns
        -------
        array of bool, shape (some,)
            The marks.
        """
        if getattr(self, "errors", "all") == "all" or num_refits <= SAMPLED:
            return np.ones(len(refits), bool)
        return np.isin(refits, np.random.default_rng(0).choice(num_refits, SAMPLED, replace=False))

    @abc.abstractmethod
    def __call__(self, fit: Fit, rows: RefitRows, *, judge: bool = True) -> RefitBatch:
        """Refit a batch of rows of a plan.

        Parameters
        ----------
        fit : Fit
            The fit.
        rows : Rows
            The batch.
        judge : bool, default: True
            Whether errors are wanted; without, those that cost extra may be left infinite.

        Returns
        -------
        Refitted
            Parameters, errors and codes of the refits.
        """

    def of_parameters(self) -> "AbstractRefit":
        """Return the strategy for calls that want parameters and no losses, so that the tolerance
        is one of parameters.

        Returns
        -------
        AbstractRefit
            The strategy; by default this one.
        """
        return self

    def refit_penalties(self, stack: Stack, scale: ndarray) -> PathRefit | None:
        """Refit single rows under many penalties at once.

        Parameters
        ----------
        stack : Stack
            The fits under all penalties.
        scale : array of float, shape (penalties,)
            Standard error of the mean no-update loss under each penalty.

        Returns
        -------
        Settled or None
            The results; None, the default, if the strategy has no such shortcut.
        """
        return None


def _check_errors(refit: "NoUpdate | InfinitesimalJackknife") -> None:
    if refit.errors not in ("all", "sampled"):
        raise ValueError(
            f"{type(refit).__name__}: errors must be 'all' or 'sampled'; got {refit.errors!r}."
        )


class NoUpdate(AbstractRefit):
    """Keep θ̂ in every refit: the baseline that other strategies are compared with.

    The error of a refit is the change of its losses to a better candidate, plus the error of that
    candidate.

    Parameters
    ----------
    errors : {"all", "sampled"}, default: "all"
        Whether the errors of all refits are computed, or of a random sample of 30. Those of the
        others are NaN, and the error of the mean is that of the sample.

    Raises
    ------
    ValueError
        If `errors` is another word.

    See Also
    --------
    Certified : The default strategy.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 2.0, 4.0], "squared")
    ... )
    >>> plan = lo.leave_one_out()
    >>> (
    ...     round(lo.cross_validate(fit, plan, strategy=lo.NoUpdate()).mean, 4),
    ...     round(lo.cross_validate(fit, plan, strategy=lo.Exact()).mean, 4),
    ... )
    (0.0875, 0.3713)
    """

    errors: str = "all"
    together = True

    def __post_init__(self) -> None:
        _check_errors(self)

    def __call__(self, fit: Fit, rows: RefitRows, *, judge: bool = True) -> RefitBatch:
        return _batch_at(fit, rows, np.zeros((len(rows.index), fit.num_params)), judge)


class InfinitesimalJackknife(AbstractRefit):
    """Expand θ̂(w) at w = 1 by Taylor's formula.

        θ₁ = −H⁻¹ ∇_θ ∂_δ F,      θ̂(1 + δ) ≈ θ̂ + θ₁ + ½ θ₂

    Parameters
    ----------
    order : {1, 2}, default: 1
        Order of the expansion; θ₂ is used at order 2 only.
    errors : {"all", "sampled"}, default: "all"
        Whether the errors of all refits are computed, or of a random sample of 30. Those of the
        others are NaN, and the error of the mean is that of the sample.

    Raises
    ------
    ValueError
        If the order is another, or `errors` another word.

    References
    ----------
    S. Ghosh, W. T. Stephenson, T. D. Nguyen, S. K. Deshpande and T. Broderick, Approximate
    cross-validation for structured models,
    NeurIPS 2020 (Algorithms 1–4).

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 2.0, 4.0], "squared")
    ... )
    >>> round(
    ...     lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.InfinitesimalJackknife()).mean, 4
    ... )
    0.1734
    """

    order: int = 1
    errors: str = "all"

    def __post_init__(self) -> None:
        _check_errors(self)
        if self.order not in (1, 2):
            raise ValueError(f"InfinitesimalJackknife: order must be 1 or 2; got {self.order}.")

    def __call__(self, fit: Fit, rows: RefitRows, *, judge: bool = True) -> RefitBatch:
        return _batch_at(fit, rows, _expansion(fit, rows, self.order), judge)


class NewtonStep(AbstractRefit):
    """Take one Newton step from θ̂ with the fold's own Hessian.

    It is exact for quadratic F. For single rows of linear predictors it is approximate
    leave-one-out (ALO), by Woodbury's formula.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 2.0, 4.0], "squared")
    ... )
    >>> round(lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.NewtonStep()).mean, 4)
    0.3713
    """

    own_hessians = probes = quadratic = True

    def refit_penalties(self, stack: Stack, scale: ndarray) -> PathRefit | None:
        return Settling(stack, CLOSE_ENOUGH * scale, hurry=True).run()

    def __call__(self, fit: Fit, rows: RefitRows, *, judge: bool = True) -> RefitBatch:
        if isinstance(fit.objective, AbstractSolved):
            return _solved(fit, rows, judge)
        if wide(fit) is not None:
            if alone(fit, rows):
                return refit_by_probes(fit, rows, CLOSE_ENOUGH, steps=1)
            return one_step(fit, rows)
        if fit.quadratic.predictors is not None:
            return _newton_step(fit, rows, judge)
        batch = _flag_crossed(begin(fit, rows, fold_hessians=True))
        return _judge(batch) if judge else _batch_of(batch, unjudged=True)


class Exact(AbstractRefit):
    """Iterate to the minimiser of F(·, w) that descent from θ̂ reaches.

    Parameters
    ----------
    tol : float, default: 1e-8
        Remaining distance at which a refit ends, as a share of its first step; iteration also ends
        at the floor of float64.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 2.0, 4.0], "squared")
    ... )
    >>> round(lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact()).mean, 4)
    0.3713
    """

    tol: float = 1e-8
    quadratic = iterates = True

    def __post_init__(self) -> None:
        share("Exact: tol", self.tol)

    def __call__(self, fit: Fit, rows: RefitRows, *, judge: bool = True) -> RefitBatch:
        if isinstance(fit.objective, AbstractSolved):
            return _solved(fit, rows, judge)
        if wide(fit) is not None:
            return exactly(fit, rows)
        if fit.quadratic.predictors is not None:
            return _by_class(self._enclose, fit, rows)
        batch = begin(fit, rows)
        ends = self.tol * batch.candidates.first
        batch = refine(batch, lambda look: look.distance_left <= ends[look.lanes], sampled=False)
        if not judge:
            return _batch_of(batch, unjudged=True)
        return _batch_of(batch.merge(batch.evaluate(batch.candidates)))

    def _enclose(self, fit: Fit, rows: RefitRows) -> RefitBatch:
        at_end = lambda look: linear.error(fit, rows, look.center, look.center, look.half)
        return _enclose(fit, rows, self._is_converged, at_end, target=self.tol)

    def _is_converged(self, lanes, visible):
        at_floor = (
            (visible.slope <= 2 * visible.noise)
            & np.isfinite(visible.slope)
            & np.isfinite(visible.half).all(1)
        )
        return at_floor | (visible.radius <= self.tol * visible.first) | (visible.half == 0).all(1)


class Certified(AbstractRefit):
    """Take the cheapest step, then correct each refit until the error of its loss is small enough.
    The default strategy.

    The error of a refit's loss is at most `rtol` standard errors of the no-update mean a scored
    unit, so the mean is off by at most `rtol` of its standard error (a scale, not an inference).
    Errors are proved for convex losses of linear predictors, and estimated for all other models;
    and for linear predictors too where a proof would cost many times what an estimate does. The
    printed result says how many errors are proved, and by what.
    For calls that return parameters, such as `fold_parameters`, it iterates as `Exact(rtol)` does.

    Parameters
    ----------
    rtol : float, default: 0.01
        Tolerated error, in standard errors of the mean.
    proofs : {"auto", "always"}, default: "auto"
        Whether errors of linear predictors may be estimated where proofs are dear: for single rows,
        where there are thousands of tens of columns or more; for folds, where there are hundreds of
        columns. "always" proves every error that can be proved, at any price.

    Raises
    ------
    ValueError
        If `rtol` is no share, or `proofs` another word.

    See Also
    --------
    Exact : Iterate every refit to the end.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    >>> fit = lo.fit(lo.GLM(X, [1, 0, 3, 2, 9], "poisson", lo.penalties.Ridge(0.1)))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> bool(
    ...     abs(cv.mean - lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact()).mean)
    ...     < 0.01 * cv.se
    ... )
    True
    """

    rtol: float = 0.01
    proofs: str = "auto"
    in_standard_errors = probes = together = quadratic = iterates = True

    def __post_init__(self) -> None:
        if self.rtol != 1:  # a tolerance of one standard error is allowed too
            share("Certified: rtol", self.rtol)
        if self.proofs not in ("auto", "always"):
            raise ValueError(f"Certified: proofs must be 'auto' or 'always'; got {self.proofs!r}.")

    def of_parameters(self) -> "AbstractRefit":
        # largest error of parameters, relative to the first step
        return Exact(min(self.rtol, 0.1))

    def refit_penalties(self, stack: Stack, scale: ndarray) -> PathRefit | None:
        if self.proofs == "always":
            return None
        return Settling(stack, self.rtol * scale, hurry=False).run()

    def __call__(self, fit: Fit, rows: RefitRows, *, judge: bool = True) -> RefitBatch:
        if isinstance(fit.objective, AbstractSolved):
            return _solved(fit, rows, judge)
        if wide(fit) is not None:
            if alone(fit, rows):
                return refit_by_probes(fit, rows, self.rtol)
            return exactly(fit, rows)
        if fit.quadratic.predictors is not None:
            return _by_class(self._enclose, fit, rows)
        allowed = self._allowed(fit, rows)
        batch = _flag_crossed(begin(fit, rows, expanded=True))
        # distances are unreliable across kinks, so iterate to convergence
        has_crossed = batch.candidates.result == RESULTS.kink
        ends = np.where(has_crossed, 1e-8 * batch.candidates.first, np.inf)

        def enough(look):
            is_accurate = look.error() <= allowed[look.lanes]
            return is_accurate & (look.distance_left <= ends[look.lanes])

        refits = _batch_of(refine(batch, enough))
        # share of the tolerance below which errors count as equal
        return replace(refits, error=np.maximum(refits.error, 1e-4 * allowed * rows.held.any(1)))

    def _allowed(self, fit: Fit, rows: RefitRows) -> ndarray:
        return self.rtol * float(rows.scale) * _num_scored(fit, rows)

    def _enclose(self, fit: Fit, rows: RefitRows) -> RefitBatch:
        allowed = self._allowed(fit, rows)
        judged = linear.Judge(fit, rows, allowed)
        always = self.proofs == "always"
        return _enclose(fit, rows, judged, judged.final_errors, allowed, always=always)


def _solved(fit: Fit, rows: RefitRows, judge: bool) -> RefitBatch:
    """Return refits that are known functions of the weights.

    Their error is what a change of the last digits does to them.
    """
    model: Any = fit.objective
    theta = model.solve(rows.index, rows.weight)
    perturbed = model.solve(rows.index, rows.weight, True) if judge else theta
    ones = np.broadcast_to(1.0, (len(theta), model.num_units))
    scores, perturbed_scores = (
        np.where(rows.held, model.losses(parameters, ones, rows.index, rows.held), 0.0)
        for parameters in (theta, perturbed)
    )
    safety = 10.0  # of a single draw of the last digits
    radius = safety * linalg.norm(theta - perturbed, axis=1)
    error = safety * np.abs(scores - perturbed_scores).sum(1)
    radius, error = (part if judge else np.full(len(theta), np.inf) for part in (radius, error))
    result = np.where(np.isfinite(theta).all(1), RESULTS.successful, RESULTS.nonfinite)
    ball = lambda: (theta - fit.vector, radius)
    step_length = linalg.norm(theta - fit.vector, axis=1)
    return RefitBatch(lambda: theta, error, result, scores, None, ball, step_length)


def _num_scored(fit: Fit, rows: RefitRows) -> ndarray:
    """Count the losses of each refit: one for each scored unit, or one joint loss."""
    if fit.objective.pointwise:
        return np.maximum(rows.held.sum(1), 1)
    return np.ones(len(rows.held))


def _batch_at(fit: Fit, rows: RefitRows, u: ndarray, judge: bool) -> RefitBatch:
    """Return refits at the displacements u."""
    if not judge:
        return RefitBatch(
            lambda: fit.quadratic.at(u), np.full(len(u), np.inf), np.zeros(len(u), int)
        )
    if fit.quadratic.predictors is not None:
        return _judged_by_proof(
            linear.FirstStep(fit, rows),
            linear.predictors_at(fit, rows, u),
            lambda: fit.quadratic.at(u),
        )
    return _judge(_flag_crossed(begin(fit, rows, expanded=True, u=u)))


def _batch_of(batch: Descent, unjudged: bool = False) -> RefitBatch:
    """Return the candidates of a batch, without losses and errors if they are `unjudged`."""
    candidates = batch.candidates
    unknown = np.full(len(candidates.lanes), np.inf)
    return RefitBatch(
        lambda: batch.theta,
        unknown if unjudged else candidates.error,
        candidates.result,
        None if unjudged else candidates.losses,
        None,
        lambda: (candidates.u, candidates.distance_left),
        candidates.first,
        float(candidates.gradients.sum()),
    )


def _judge(batch: Descent) -> RefitBatch:
    """Return refits with the errors of their reported losses.

    The change to a better estimate, plus the error of that.
    """
    reported = batch.candidates
    reported_losses = functools.cache(batch.losses)
    loss_change = lambda losses, lanes: (
        np.abs(losses - reported_losses()[lanes]).reshape(len(lanes), -1).sum(1)
    )

    def enough(look):
        error = look.error()
        return error <= (linear.TIGHT - 1) * loss_change(look.losses(), look.lanes)

    refined = refine(batch, enough, hurry=True)
    candidates = refined.candidates
    return replace(
        _batch_of(refined),
        make=lambda: batch.theta,
        error=candidates.error + loss_change(candidates.losses, reported.lanes),
        result=reported.result,
        scores=reported_losses(),
        step_length=np.maximum(linalg.norm(reported.u, axis=1), candidates.first),
    )


def _enclose(
    fit: Fit,
    rows: RefitRows,
    enough: linear.Enough,
    error: Callable[[linear.EnclosedRefits], ndarray],
    allowed: ndarray | None = None,
    target: float = np.inf,
    *,
    always: bool = False,
) -> RefitBatch:
    """Refine linear predictors until `enough` holds, with errors that are proved from the `target`
    of a step on, `always` or where that is not too dear.
    """
    step = linear.FirstStep(fit, rows, target, allowed)
    refits = linear.enclose(step, enough, False, allowed, always=always)
    scores = linear.losses(fit, rows, refits.center)
    return RefitBatch(
        refits.theta,
        error(refits),
        refits.result,
        scores,
        refits.proved,
        refits.ball,
        refits.step_length,
        refits.gradients,
        settled_by=refits.settled_by,
    )


# Balanced weights of classes: leaving out a row of class c changes the weights of all rows, and in
# the same way for every row of c of that weight. All these refits leave one row out of one fit.

# rows of a class, and of one weight, from which a fit for them is worth its time
ROWS_OF_CLASS = 4
KEPT_CLASS_FITS = 32  # such fits that are kept for later calls


def refits_by_class(fit: Fit) -> bool:
    """Tell whether single rows are refitted from fits of their own classes' weights."""
    model = fit.objective
    return (
        isinstance(model, GLM | DualGLM)
        and model.class_code is not None
        and not isinstance(model.penalty, PerWeight)
        and fit.quadratic.factor is not None
        and fit.quadratic.predictors is not None
    )


def _by_class(
    refit: Callable[[Fit, RefitRows], RefitBatch], fit: Fit, rows: RefitRows
) -> RefitBatch:
    """Refit a batch of linear predictors, single rows of balanced classes from their class's
    fit.
    """
    if not refits_by_class(fit) or rows.index.shape[1] != 1:
        return refit(fit, rows)
    model: Any = fit.objective
    is_unit = rows.index[:, 0] < model.num_units
    unit = np.where(is_unit, rows.index[:, 0], 0)
    lost = np.where(is_unit, 1 - rows.weight[:, 0], 0.0) * model.row_weights[unit]
    kinds, kind = np.unique(np.stack([model.class_code[unit], lost]), axis=1, return_inverse=True)
    class_fits = [fit] * kinds.shape[1]
    for k, (code, weight) in enumerate(kinds.T):
        if np.count_nonzero(kind == k) >= ROWS_OF_CLASS:
            class_fits[k] = _class_fit(fit, int(code), float(weight))
    parts = []
    for class_fit in {id(class_fit): class_fit for class_fit in class_fits}.values():
        members = [k for k, other in enumerate(class_fits) if other is class_fit]
        lanes = np.flatnonzero(np.isin(kind, members))
        parts.append((lanes, class_fit, refit(class_fit, rows.take(lanes))))
    return _join(fit, parts)


def _join(fit: Fit, parts: list[tuple[ndarray, Fit, RefitBatch]]) -> RefitBatch:
    """Join refits of a batch that start from several fits with the coordinates of one model."""
    order = np.argsort(np.concatenate([lanes for lanes, _, _ in parts]))
    collect = lambda name: np.concatenate([getattr(batch, name) for *_, batch in parts])[order]

    def ball() -> TwoArrays:
        centers = []
        radii = []
        for _, class_fit, batch in parts:
            center, radius = batch.ball()
            if class_fit is not fit:
                root = class_fit.quadratic.root
                growth = linear_cache(class_fit).rounding.growth
                radius = radius * growth * across_metrics(fit, root.T[None])
                center = fit.quadratic.back(class_fit.quadratic.at(center) - fit.vector)
            centers.append(center)
            radii.append(radius)
        return np.concatenate(centers)[order], np.concatenate(radii)[order]

    names = "error", "result", "scores", "proved", "step_length", "settled_by"
    columns: NamedValues = {name: collect(name) for name in names}
    gradients = sum(batch.gradients for *_, batch in parts)
    return RefitBatch(lambda: collect("theta"), ball=ball, gradients=gradients, **columns)


@cached_on
def _class_fits(fit: Fit) -> dict[tuple[int, float], Fit]:
    """Return the fits of classes that have been made from a fit."""
    return {}


def _class_fit(fit: Fit, code: int, lost: float) -> Fit:
    """Fit with all rows, at the weights that they have when a class has lost some weight; the fit
    itself if there is none.
    """
    class_fits = _class_fits(fit)
    if (code, lost) in class_fits:
        return class_fits[code, lost]
    model: Any = fit.objective
    predictors = cast(Predictors, fit.quadratic.predictors)
    is_member = model.class_code == code
    share = 1 - lost / model.row_weights[is_member].sum()
    class_fit = fit
    if share > 1e-6:  # of a class that goes with its last row, rows have no weights
        weights = np.where(is_member, share, 1.0)
        balanced = predictors.weigh(weights[None])[0][0, : model.num_units] / weights
        fixed = copy.copy(model)
        vars(fixed).update(class_code=None, is_balanced=0, sample_weight=as_stored(balanced))
        flat = fit.quadratic.null_space
        F = function(fixed, fit.theta)
        minimum = minimise(fixed, F, fit.vector, np.ones(model.num_units), flat)
        if minimum.converged:
            theta = unflatten(minimum.theta, fit.theta)
            try:
                class_fit = anchored_at(fixed, theta, "cross_validate", flat)
            except (IndefiniteHessianError, ValueError):
                class_fit = fit
    if len(class_fits) < KEPT_CLASS_FITS:
        class_fits[code, lost] = class_fit
    return class_fit


def _newton_step(fit: Fit, rows: RefitRows, judge: bool) -> RefitBatch:
    """Take one Newton step of linear predictors."""
    step = linear.FirstStep(fit, rows)
    result = np.where(step.lost_curvature, RESULTS.undetermined, RESULTS.successful)
    if not judge:
        return RefitBatch(step.theta, np.full(len(result), np.inf), result)
    judged = _judged_by_proof(step, step.center, step.theta)
    return replace(judged, result=result, error=np.where(step.lost_curvature, np.inf, judged.error))


def _judged_by_proof(state: linear.FirstStep, reported: ndarray, theta: MakeArray) -> RefitBatch:
    """Return refits with the errors of losses at held predictors, from the proved or estimated
    place of the exact refits.
    """
    fit = state.fit
    rows = state.rows
    floor = CLOSE_ENOUGH * float(rows.scale) * _num_scored(fit, rows)
    judge = linear.Judge(fit, rows, floor, reported)
    refits = linear.enclose(state, judge, hurry=True, allowed=floor)
    return RefitBatch(
        theta,
        judge.final_errors(refits),
        np.zeros(len(rows.index), int),
        judge.reported_losses,
        refits.proved,
        refits.ball,
        refits.step_length,
        refits.gradients,
        settled_by=refits.settled_by,
    )


def _flag_crossed(batch: Descent) -> Descent:
    """Flag refits whose path crosses a kink of a unit's loss."""
    objective = batch.fit.objective
    if not isinstance(objective, AbstractLinearPredictor) or objective.smooth:
        return batch
    chunk = passes(objective) // 16 + 1
    count = np.asarray(_crossings(objective, batch.fit.theta, batch.theta, chunk))
    candidates = batch.candidates
    result = np.where((count > 0) & candidates.open, RESULTS.kink, candidates.result)
    return batch.merge(candidates._replace(result=result))


@compile_static
def _crossings(
    objective: AbstractLinearPredictor, start: object, theta: Arrays, chunk: int
) -> Array:
    return jax.lax.map(
        lambda v: objective.crossings(start, unravel(v, start)), theta, batch_size=chunk
    )


def _expansion(fit: Fit, rows: RefitRows, order: int) -> ndarray:
    """Infinitesimal jackknife in whitened coordinates, from J = ∂²F/∂θ∂w, computed once, or along
    each refit's own path.
    """
    model = fit.quadratic.predictors
    closed = model is not None and model.separate
    together = (
        closed
        or not fit.objective.local
        or type(fit.objective).jacobian is not AbstractObjective.jacobian
    )
    if (
        together
        and fit.quadratic.factor is not None
        and fit.num_params <= max(64, int(rows.num_refits))
    ):
        delta = rows.weight - 1.0
        places = rows.units(fit.objective.num_units)  # δ is zero at padding
        first = -np.array(
            [d @ fit.quadratic.influence[index] for index, d in zip(places, delta, strict=True)]
        )
        if order == 1:
            return first
        if closed and model is not None and model.norms is None and model.design.outputs == 1:
            return first + 0.5 * _whitened_steps(
                fit, _second_derivative(fit, model, rows, fit.quadratic.unwhiten(first))
            )
    F = derive_batch(fit.objective, fit.theta, rows)
    if isinstance(F, ClosedFormBatch):
        path = F.path
    else:
        path = lambda direction=None: np.asarray(
            _path(fit.objective, fit.theta, rows.index, rows.weight, direction, _chunk(fit, rows))
        )
    first = _whitened_steps(fit, path())
    if order == 1:
        return first
    return first + 0.5 * _whitened_steps(fit, path(fit.quadratic.unwhiten(first)))


def _second_derivative(fit: Fit, model: Predictors, rows: RefitRows, direction: Points) -> Points:
    """Differentiate ∇F twice along s ↦ (θ̂ + s d, 1 + s δ) for linear predictors.

    Xᵀ(ω ℓ‴ (Xd)² + 2 Δω ℓ″ Xd) + 2 Δκ P d.
    """
    omega, kappa = model.full_weights
    curvature, third = model.loss.derivatives(model.eta(fit.vector[None])[0], model.y, (2, 3))
    derivatives = np.empty_like(direction)
    for chunk in groups(np.arange(len(direction)), omega.size, direction.shape[1]):
        weight, scale = model.weigh(weights_of(rows, fit.objective.num_units, chunk))
        along = model.design.predictors(direction[chunk])
        slopes = omega * third * along**2 + 2 * (weight - omega) * curvature * along
        derivatives[chunk] = model.design.pull(slopes) + 2 * (scale - kappa)[:, None] * (
            direction[chunk] @ model.penalty
        )
    return derivatives


def _chunk(fit: Fit, rows: RefitRows) -> int:
    if fit.quadratic.factor is not None:
        return own_passes(fit.objective, rows.index.shape[1])
    return passes(fit.objective)


def _whitened_steps(fit: Fit, gradients: ndarray) -> ndarray:
    """Compute minus the whitened steps by the full fit's Hessian."""
    whitened = fit.quadratic.whiten(gradients)
    if fit.quadratic.factor is not None:
        return -whitened
    points = np.broadcast_to(fit.vector, whitened.shape)
    return -solve_once(
        function(fit.objective, fit.theta).of,
        fit.quadratic.coordinates,
        fit.quadratic.null_space,
        points,
        whitened,
        np.zeros(len(points), int),
        COARSE,
        fit.quadratic.learned_inverse,
    )


@compile_static
def _path(
    objective: AbstractObjective,
    like: object,
    index: Arrays,
    weight: Arrays,
    direction: Arrays | None,
    chunk: int,
) -> Array:
    """Differentiate ∇F along the path s ↦ θ̂(1 + s δ) at s = 0, once, or twice if the first
    derivative of the path is given.
    """
    ones = jnp.ones(objective.num_units)
    start = ravel(like)
    delta = weight - 1.0

    def push(v, index, delta, s):
        return jax.grad(lambda v: objective.perturbation(unravel(v, like), index, s * delta))(v)

    def second_push(args):
        index, delta, direction = args
        full = jax.grad(lambda v: objective.loss(unravel(v, like), ones))
        path = lambda s: full(start + s * direction) + push(start + s * direction, index, delta, s)
        return jax.jvp(lambda s: jax.jvp(path, (s,), (1.0,))[1], (0.0,), (1.0,))[1]

    if direction is None:
        first_push = lambda args: jax.jvp(
            lambda s: push(start, args[0], args[1], s), (0.0,), (1.0,)
        )[1]
        return jax.lax.map(first_push, (index, delta), batch_size=chunk)
    return jax.lax.map(second_push, (index, delta, direction), batch_size=chunk)
