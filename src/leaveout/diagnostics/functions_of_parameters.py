"""Jackknife and bootstrap of any function of the parameters, from the refits of a plan.

With f_r the function at refit r, and s ρ_r the scale of each refit,

    se² = s Σ_r ρ_r (f_r − mean f)²,      bias = s Σ_r ρ_r (f_r − f̂),      corrected = f̂ − bias

which for the jackknife are Tukey's variance and Quenouille's bias, (G − 1)(mean f − f̂). Intervals
at level 1 − 2α are

    jackknife   f̂ ± t se
    delta       f̂ ± t √(∇fᵀ V ∇f),      V the covariance of θ over the same refits
    BCa         the quantiles Φ(z₀ + (z₀ ± z_α)/(1 − a (z₀ ± z_α))) of a bootstrap's f_r,
    z₀ = Φ⁻¹(share of f_r < f̂)

(Efron, Journal of the American Statistical Association 82, 1987), a = Σ d³ / 6 (Σ d²)^(3/2) of the
jackknife's moves d = mean f − f_(i), over units, or over the groups that the bootstrap draws.
"""

from dataclasses import replace
from inspect import Parameter, signature
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float
from numpy import linalg
from numpy.typing import ArrayLike

from .._runtime import (
    AnyFunction,
    AnyPair,
    Lines,
    NumpyArray,
    ParamRows,
    PrintedTable,
    conventional,
    float64,
    record,
)
from ..data import share
from ..objectives import PerUnit, Vector, map_arrays, unravel
from ..optimize import Fit
from ..plans import Plan, PlanLike, ReplicateWeights, groups as plan_of_groups, leave_one_out
from ..refit import AbstractRefit, Exact, lengths
from ..validation.cross_validate import reader_for, strategy_of
from ..validation.mean_intervals import bca_ends
from ..validation.scoring import natural
from .prediction_intervals import predict
from .replicates import ParameterRefits, degrees, mean_of, refit_plan, refit_weights, scaled_moves

EXACT = Exact()
Interval = Literal["jackknife", "delta", "BCa"]
STEP = 1e-4  # of a central difference, in standard deviations: its error is of the square
# share of its standard deviation by which a value may change, by rounding, where a refit determines
# it
SAME = 1e-6


@record
class Refit:
    """A refit, as the function of `lo.diagnostics.functional` gets it beside the parameters.

    Attributes
    ----------
    weights : array of float, `[units]`
        The weights of the units in it, times their sample weights.
    """

    fit: Fit
    weights: PerUnit

    def predict(
        self, X: Any, kind: str | None = None, *, offset: ArrayLike | None = None
    ) -> NumpyArray:
        """Predict rows, as `lo.predict` does.

        Parameters
        ----------
        X : array-like
            The rows.
        kind : str, optional
            The kind of prediction.
        offset : array-like, optional
            The offsets.

        Returns
        -------
        array of float
            The predictions.
        """
        return np.asarray(predict(self.fit, X, kind, offset=offset))


@record
class Functional(PrintedTable):
    """A function of the parameters with its standard error, bias and interval.

    `lo.diagnostics.functional` returns it. `estimate`, `standard_error`, `bias`, `corrected`,
    `low`, `high` and `error` are numbers if the function returns one, and else arrays.

    Attributes
    ----------
    table : DataFrame
        One row a value: `estimate`, `std err`, `bias`, `corrected`, the ends `low` and `high` of
        the interval, and `error`, how far the standard error may be from that of exact refits, an
        estimate of first order.
    replicates : DataFrame
        The values of each refit, `[refits, values]`; NaN where a refit does not determine them.
    dof : float or None
        The degrees of freedom of Student's t; None for the normal distribution.
    kind : str
        The kind of interval.
    level : float
        Its coverage.
    flagged : Series
        The codes of the refits that do not exist or do not determine every parameter.
    one : bool
        Whether the function returns one number.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(6.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], [0, 1, 3, 2, 5, 4], "squared"))
    >>> found = lo.diagnostics.functional(
    ...     fit, lo.leave_one_out(), lambda parameters: parameters["coef"][0] ** 2
    ... )
    >>> round(found.estimate, 3), round(found.bias, 3)
    (0.784, 0.109)
    """

    table: pd.DataFrame
    replicates: pd.DataFrame
    dof: float | None
    kind: str
    level: float
    flagged: pd.Series
    one: bool

    def __getattr__(self, name: str) -> Any:
        column = {"standard_error": "std err"}.get(name, name)
        if name.startswith("_") or column not in self.table:
            raise AttributeError(name)
        values = self.table[column].to_numpy()
        return float(values[0]) if self.one else values

    @property
    def interval(self) -> AnyPair:
        """The ends of the interval."""
        return self.low, self.high

    def _facts(self) -> Lines:
        num_missing = int(self.replicates.isna().any(axis=1).sum())
        if self.dof is None or self.kind == "BCa":
            law = ""
        else:
            law = f", t of {self.dof:g} degrees of freedom"
        refits = f"{len(self.replicates)}" + (
            f", {num_missing} of which do not count" if num_missing else ""
        )
        return [("refits", refits), ("interval", f"{self.level:.0%}, {self.kind}{law}")]


@conventional
@float64
def functional(
    fit: Fit,
    plan: PlanLike | ReplicateWeights,
    f: AnyFunction | str,
    *,
    interval: Interval | None = None,
    level: float = 0.95,
    strategy: AbstractRefit | None = None,
) -> Functional:
    """Estimate a function of the parameters or predictions, with its standard error, bias and
    interval, from refits.

    Parameters
    ----------
    fit : Fit
        The fit.
    f : callable or str
        A function of the natural parameters of one refit that returns a number or a few, such as an
        odds ratio. If it takes two arguments, the second is the `Refit`: `refit.predict(X)`
        predicts rows, and `refit.weights` are the weights of the units, over which a mean, such as
        an average treatment effect, is to be taken. Or the name of a parameter.
    plan : Plan, int, splitter or ReplicateWeights
        Leave-one-out, groups, or folds that leave out every unit once (the jackknife),
        `lo.bootstrap`, or weights of `lo.survey`.
    interval : {"jackknife", "delta", "BCa"}, optional
        The interval; by default "BCa" for a bootstrap, and else "jackknife".
    level : float, default 0.95
        Its coverage.
    strategy : AbstractRefit, default `Exact()`
        The strategy of the refits, as in `covariance`. The bias is a small mean of larger moves,
        and takes closer refits.

    Returns
    -------
    Functional
        The estimate, its standard error, bias and interval, and the values of every refit.

    Raises
    ------
    ValueError
        If the plan is neither a jackknife nor a bootstrap, BCa is asked of another plan than a
        bootstrap, or the function returns other than numbers.
    TypeError
        If `f` is no function and no name.

    See Also
    --------
    covariance : The jackknife of all parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(6.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], [0, 0, 1, 0, 1, 1], "logistic", lo.penalties.Ridge(0.1)))
    >>> found = lo.diagnostics.functional(
    ...     fit, lo.leave_one_out(), lambda parameters: np.exp(parameters["coef"][0])
    ... )
    >>> round(found.estimate, 2), round(found.standard_error, 2)
    (3.08, 10.68)
    """
    strategy = strategy_of("functional", strategy, EXACT)
    level = share("functional: level", level)
    refits, scales, dof, is_bootstrap = _refits_and_scales(fit, plan, strategy)
    kind = interval or ("BCa" if is_bootstrap else "jackknife")
    if kind not in get_args(Interval) or (kind == "BCa" and not is_bootstrap):
        raise ValueError(
            f"functional: interval must be 'jackknife', 'delta', or 'BCa' of a lo.bootstrap; got {interval!r}."
        )
    evaluator = _Values(refits, f)
    estimate = evaluator.evaluate(fit.vector[None], [None])[0]
    values = evaluator.of_refits()
    slope = evaluator.slope()
    moves_about_mean = lambda points: scaled_moves(points, mean_of(points[scales > 0]), scales)
    se = linalg.norm(moves_about_mean(values), axis=0)
    bias = np.sqrt(scales) @ scaled_moves(values, estimate, scales)
    errors = np.full(len(se), np.inf)
    if fit.quadratic.factor is not None:
        refit_errors = np.where(np.isfinite(refits.theta).all(1), refits.error, 0.0)
        errors = lengths(fit, slope) * linalg.norm(
            np.sqrt(scales) * (refit_errors + refit_errors.mean())
        )
    if kind == "BCa":
        clusters = refits.plan.clusters
        alone: Plan = leave_one_out()
        if clusters is not None:
            alone = plan_of_groups(clusters)
        jackknife = _Values(refit_plan("functional", fit, alone, strategy), f).of_refits()
        low, high = bca_ends(values, estimate, jackknife, level)
    else:
        spread = se
        if kind == "delta":
            spread = linalg.norm(moves_about_mean(refits.theta) @ slope.T, axis=0)
        law = scipy.stats.norm if dof is None else scipy.stats.t(dof)
        half = law.ppf((1 + level) / 2) * spread
        low = estimate - half
        high = estimate + half
    columns = {
        "estimate": estimate,
        "std err": se,
        "bias": bias,
        "corrected": estimate - bias,
        "low": low,
        "high": high,
        "error": errors,
    }
    frame = pd.DataFrame(values, index=refits.index, columns=evaluator.names)
    table = pd.DataFrame(columns, index=evaluator.names)
    return Functional(table, frame, dof, kind, level, refits.flagged, evaluator.scalar)


def _refits_and_scales(
    fit: Fit, plan, strategy: AbstractRefit
) -> tuple[ParameterRefits, NumpyArray, float | None, bool]:
    """Refit a plan; return the refits, the scale of each, the degrees of freedom, and whether it is
    a bootstrap.
    """
    if isinstance(plan, ReplicateWeights):
        refits, scale, rscales = refit_weights("functional", fit, plan, None, None, strategy)
        return refits, scale * rscales, degrees(plan.to_numpy()), False
    plan = reader_for("functional", fit).match(plan)
    count = len(plan)
    is_bootstrap = bool((plan.weight > 1).any() and not (plan.weight % 1).any())
    if not is_bootstrap and (
        plan.weight.any() or (np.bincount(plan.index, minlength=plan.num_units) != 1).any()
    ):
        raise ValueError(
            "functional: the plan must leave out every unit once, as lo.leave_one_out, lo.groups and lo.kfold do, or be a "
            "lo.bootstrap; replicate weights of another kind come from lo.survey."
        )
    if is_bootstrap:
        scale = 1 / (count - 1)
        dof = None
    else:
        scale = (count - 1) / count
        dof = count - 1
    return refit_plan("functional", fit, plan, strategy), np.full(count, scale), dof, is_bootstrap


class _Values:
    """The values of a function at the refits of a plan."""

    def __init__(self, refits: ParameterRefits, f: AnyFunction | str):
        self.refits = refits
        self.scalar = True
        self.names = pd.Index(["f"])
        self.is_first = True  # until the fit's own values are known, which come first
        names = refits.parameters.names
        if isinstance(f, str):
            if f not in names:
                raise ValueError(
                    f"functional: f must be a parameter, one of {', '.join(names[:8])}; got {f!r}."
                )
            self.column: int | None = names.index(f)
            self.names = pd.Index([f])
        elif callable(f):
            self.column = None
            self.f = f
            kinds = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
            parameters = signature(f).parameters.values()
            self.two = (
                sum(
                    parameter.kind in kinds and parameter.default is Parameter.empty
                    for parameter in parameters
                )
                == 2
            )
        else:
            raise TypeError(
                f"functional: f must be a function of the parameters, or the name of one; got {type(f).__name__}."
            )

    def evaluate(
        self, thetas: ParamRows, refits: list[int | None]
    ) -> Float[NumpyArray, "some values"]:
        """Evaluate the function at some θ with the weights of the refits of the given numbers.

        None is the fit.
        """
        if self.column is not None:
            return self.refits.parameters.values_of(thetas)[:, self.column, None]
        trees = natural(self.refits.fit, thetas)
        values = []
        for k, number in enumerate(refits):
            parameters = map_arrays(lambda leaf, k=k: leaf[k], trees)
            values.append(
                self.f(parameters, self._refit(thetas[k], number))
                if self.two
                else self.f(parameters)
            )
        try:
            if isinstance(values[0], pd.Series | dict):
                if self.is_first:
                    self.names = pd.Index(list(pd.Series(values[0]).index))
                values = [pd.Series(value)[self.names].tolist() for value in values]
            array = np.asarray(values, float)
            if self.is_first and not (array.size and np.isfinite(array[0]).all()):
                raise ValueError
        except (TypeError, ValueError, KeyError):
            raise ValueError(
                f"functional: f must return a number, or numbers of one count; got {values[0]!r}."
            ) from None
        self.scalar = array.ndim == 1
        self.is_first = False
        if array.ndim > 1 and len(self.names) != array[0].size:
            self.names = pd.Index(
                [f"f[{', '.join(map(str, place))}]" for place in np.ndindex(array.shape[1:])]
            )
        return array.reshape(len(thetas), -1)

    def _refit(self, theta: Vector, number: int | None) -> Refit:
        fit = self.refits.fit
        plan = self.refits.plan
        weight = fit.objective.units.weight
        weights = np.ones(plan.num_units) if weight is None else np.array(weight, float)
        if number is not None:
            weights *= plan.some(np.array([number])).matrix()[0]
        parameters: Any = unravel(theta, fit.theta)  # type: ignore[arg-type]
        return Refit(replace(fit, quadratic=replace(fit.quadratic, theta=parameters)), weights)

    def of_refits(self) -> Float[NumpyArray, "refits values"]:
        """Evaluate the function at every refit.

        NaN where it does not exist, or does not determine the value.
        """
        theta = self.refits.theta
        existing = np.flatnonzero(np.isfinite(theta).all(1))
        computed = self.evaluate(theta[existing], list(existing))
        values = np.full((len(theta), computed.shape[1]), np.nan)
        values[existing] = computed
        for k, null in self.refits.free.items():
            displaced = self.evaluate((theta[k] + null.sum(0))[None], [k])[0]
            values[
                k, np.abs(displaced - values[k]) > SAME * lengths(self.refits.fit, self.slope())
            ] = np.nan
        return values

    def slope(self) -> Float[NumpyArray, "values params"]:
        """Differentiate the function at θ̂ by central differences."""
        fit = self.refits.fit
        if fit.quadratic.factor is None:
            size = np.ones(fit.num_params)
        else:
            size = lengths(fit, np.eye(fit.num_params))
        step = STEP * size
        ends = [
            self.evaluate(fit.vector + side * np.diag(step), [None] * len(step)) for side in (1, -1)
        ]
        return (ends[0] - ends[1]).T / (2 * step)
