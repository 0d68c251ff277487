"""Covariance of θ̂: sandwiches of the derivatives that refits use, and the jackknife of the refits themselves.

    H⁻¹ M H⁻¹,      M = Σ_n g_n g_nᵀ,      g_n = ∂²F/∂θ∂w_n,

is that of the infinitesimal jackknife (Huber 1967; White 1980), also under a penalty. For groups, M is the sum over groups of
products of summed g_n (Liang & Zeger 1986); for a series, it has pairs up to `maxlags` apart with weights 1 − l/(maxlags + 1)
(Newey & West 1987). The jackknife is

    s Σ_g (θ_(g) − c)(θ_(g) − c)ᵀ,      θ_(g) the refit without unit or group g,

about θ̂ or about the mean (Tukey 1958; MacKinnon, Nielsen & Webb, Journal of Applied Econometrics 38, 2023). For clusters of two
ways V = V₁ + V₂ − V₁₂, of each way and of both together (Cameron, Gelbach & Miller 2011).
"""

from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from .._runtime.conventions import conventional, warn
from .._runtime.jax import float64
from .._runtime.results import kind_of
from ..data.arrays import check_times, codes, count as check_count, index_of, pandas_of
from ..models.glm.losses import Squared
from ..objectives.batch_functions import function
from ..objectives.objective import AbstractLinearPredictor
from ..optimize.active_set import without
from ..optimize.fit import Fit
from ..plans.plan import Plan, groups as plan_of_groups, leave_one_out
from ..plans.survey import jk1, jkn
from ..refit import AbstractRefit
from ..validation.cross_validate import match_plan
from ..validation.named_parameters import name_parameters
from ..validation.standard_errors import MIN_BLOCKS
from .bias_reduced import bias_reduced, check_least_squares
from .measures import counting_units, dispersion, inverse_root, leverage, require_columns
from .replicates import DEFAULT, Covariance, covariance_of, degrees, refit_plan, refit_weights

CovType = Literal[
    "nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster", "HAC", "CR2",
    "jackknife", "CRV3", "CRV3J", "CR3", "HC3-exact", "JK1", "JKn",
]  # fmt: skip


# whether the factor is (G − 1)/G and not one, whether squares are about the mean, and whether there are groups (None: as given)
JACKKNIVES = {
    "jackknife": (True, True, None),
    "CRV3": (True, False, True),
    "CRV3J": (True, True, True),
    "CR3": (False, False, True),
    "HC3-exact": (False, False, False),
    "JK1": (True, True, None),
    "JKn": (False, True, None),
}
KINDS = {kind.lower(): kind for kind in ("nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster", "HAC", "CR2", *JACKKNIVES)}
TWO_WAYS = ("cluster", "CRV3", "CRV3J", "CR3", "jackknife")
AFFINE = 1e-6  # share of the largest gradient above which a difference is not rounding
Array = np.ndarray


@conventional
@float64
def covariance(
    fit: Fit,
    cov_type: CovType = "HC0",
    *,
    groups: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    maxlags: int | None = None,
    use_correction: bool | None = None,
    working_variance: ArrayLike | None = None,
    strategy: AbstractRefit = DEFAULT,
) -> Covariance:
    """Estimate the covariance of the natural parameters, by names, by a sandwich or by the jackknife.

    With H the observed Hessian, penalty included, and g_n the gradient of unit n, "nonrobust" is φ̂ H⁻¹; "HC0" to "HC3",
    "cluster" and "HAC" are sandwiches H⁻¹ (Σ g gᵀ) H⁻¹ of independent units or groups, with the names and arguments of
    statsmodels. The jackknife is the sum of squared moves of exact refits, each of which leaves out a unit or a group, times
    (G − 1)/G, and is for every model. No covariance includes the bias of a penalty.

    Parameters
    ----------
    fit : Fit
        The fit.
    cov_type : str, default "HC0"
        "HC0" is the sandwich of independent units. "HC1" is that times n/(n − p), p the rank of H. "HC2" and "HC3", for one
        linear predictor, divide g_n by √(1 − h_n) and by 1 − h_n. "cluster" sums g_n over groups. "HAC" is for units in the
        order of time. φ̂ of "nonrobust" is as in `cooks_distance`. "jackknife" leaves out every unit, or every group, and has
        squares about the mean of the refits. "CRV3" leaves out every group, with squares about θ̂; "CRV3J" the same about the
        mean; "CR3" is "CRV3" without (G − 1)/G. "HC3-exact" leaves out every unit, with squares about θ̂ and no factor: "HC3"
        of least squares. "JK1" and "JKn" are those of surveys, by the weights of `lo.survey`, about the mean. "CR2", for least
        squares, divides the residuals of each group by the root of their variance, with Satterthwaite's degrees of freedom.
    groups : array_like, `[units]` or `[units, 2]`, optional
        The labels of the groups. Blocks of neighbours are groups too. Two columns are clusters of two ways.
    strata : array_like, `[units]`, optional
        The strata of "JKn", within which groups, or units, are left out.
    maxlags : int, optional
        The lags of "HAC".
    use_correction : bool, optional
        Whether to multiply by G/(G − 1) · (n − 1)/(n − p) for "cluster" (by default yes), or by n/(n − p) for "HAC" (by default
        no).
    working_variance : array_like, `[units]`, optional
        The variances of the units, up to a factor, under which "CR2" is unbiased; equal ones by default. With
        `1 / sample_weight` the weights are those of precision.
    strategy : AbstractRefit, default `Exact(1e-5)`
        The strategy of the jackknife's refits. `Exact(tol)` and `Certified(tol)` leave each refit within `tol` of its own move,
        so that standard errors are within about that share of themselves; `Exact(1e-12)` goes to the floor of float64.

    Returns
    -------
    Covariance
        The covariance, `[params, params]`, a DataFrame with `standard_errors`, their `errors`, `dof`, and `summary()`. A row of
        weight two counts as one unit (as statsmodels' `var_weights`), and a row of weight zero as none, except for "JK1" and
        "JKn", where it belongs to the design.

    Raises
    ------
    ValueError
        If the data do not determine the parameters, the arguments do not go together, units that depend on one another are
        taken for independent, or no refit determines the parameters.
    TypeError
        If units have no gradients that add up to the fit's, as the steps of one hidden chain, or "CR2" is asked of another
        model than least squares.

    Warns
    -----
    UserWarning
        If there are fewer than 20 groups, a refit does not determine every parameter, or the covariance of two ways has a
        negative eigenvalue.

    See Also
    --------
    replicates : The covariance by replicate weights of a survey.
    functional : The jackknife of a function of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0, 2.0]), "squared"))
    >>> lo.covariance(fit, "HC1").shape
    (2, 2)
    >>> np.sqrt(np.diag(lo.covariance(fit, "nonrobust"))).round(3)
    array([0.231, 0.566])
    >>> lo.covariance(fit, "jackknife").standard_errors.round(3).tolist()
    [0.31, 0.403]
    """
    given = {"groups": groups, "strata": strata, "maxlags": maxlags, "working_variance": working_variance}
    kind = _check_kind(fit, cov_type, given, use_correction)
    table = pandas_of("covariance", "groups", groups)
    if table is not None and np.ndim(table) == 2 and np.shape(table)[1] == 1:
        table = table.iloc[:, 0] if isinstance(table, pd.DataFrame) else np.asarray(table)[:, 0]
    if table is not None and np.ndim(table) > 1:
        return _of_two_ways(fit, kind, table, use_correction, strategy)
    if kind in JACKKNIVES:
        return _leave_each_out(fit, kind, table, strata, strategy)
    known = name_parameters(fit)
    units, rank = int(counting_units(fit).sum()), fit.rank
    plain = isinstance(getattr(fit.objective, "loss_function", None), Squared)
    dof = units - rank if plain and units > rank else None
    if kind == "nonrobust":
        value = _sandwich(np.sqrt(dispersion(fit)) * inverse_root(fit), known.slope)
        return covariance_of(fit, known, value, kind, dof)
    if kind == "CR2":
        check_least_squares(fit.objective)
        value, degrees_of_freedom = bias_reduced(fit, _labels(fit, table)[0], working_variance)
        return covariance_of(fit, known, value, kind, degrees_of_freedom)
    _refuse(fit, kind)
    z = fit.influence
    factor = 1.0
    if kind in ("HC2", "HC3"):
        objective = fit.objective
        if not isinstance(objective, AbstractLinearPredictor) or objective.outputs > 1:
            raise TypeError(f"covariance: HC2 and HC3 need one linear predictor; got {kind_of(objective)}. Use 'HC1'.")
        room = 1 - leverage(fit)
        if (room <= 1e-10).any():
            raise ValueError(f"covariance: unit {np.argmin(room)} has leverage one, which HC2 and HC3 divide by; use 'HC1'.")
        z = z / np.sqrt(room)[:, None] ** (1 if kind == "HC2" else 2)
    if kind == "cluster":
        label, count = _labels(fit, table)
        z, dof = np.stack([np.bincount(label, column) for column in z.T], axis=1), count - 1
        if use_correction is None or use_correction:
            factor = count / (count - 1) * (units - 1) / _residual_degrees(units, rank)
    elif kind == "HC1" or (kind == "HAC" and use_correction):
        factor = units / _residual_degrees(units, rank)
    meat = z.T @ z
    for lag in range(1, (maxlags or 0) + 1):
        apart = z[lag:].T @ z[:-lag]
        meat += (1 - lag / ((maxlags or 0) + 1)) * (apart + apart.T)
    value = _sandwich(inverse_root(fit), known.slope, factor * meat)
    return covariance_of(fit, known, value, kind, None if kind == "HAC" else dof)


def _leave_each_out(fit: Fit, kind: str, groups: Any, strata: ArrayLike | None, strategy: AbstractRefit) -> Covariance:
    """Leave out every unit or every group."""
    objective, (shrinks, about_mean, _) = fit.objective, JACKKNIVES[kind]
    if groups is None and objective.units.serial is not False:
        why = "depend on their neighbours" if objective.units.serial else "are not known to be independent"
        raise ValueError(
            f"covariance: the units of this {kind_of(objective)} {why}; {kind} without groups takes them for independent. Give "
            "groups= of long blocks."
        )
    if kind in ("JK1", "JKn"):
        every = np.arange(objective.num_units)
        weights = jk1(every if groups is None else groups) if kind == "JK1" else jkn(strata, groups)  # type: ignore[arg-type]
        refits, scale, rscales = refit_weights("covariance", fit, weights, None, None, strategy)
        return refits.covariance(kind, scale, rscales, True, degrees(weights.to_numpy()))
    plan = _plan_of(fit, groups, strategy)
    count = len(plan)
    refits = refit_plan("covariance", fit, plan, strategy)
    return refits.covariance(kind, (count - 1) / count if shrinks else 1.0, np.ones(count), about_mean, count - 1)


def _plan_of(fit: Fit, groups: Any, strategy: AbstractRefit) -> Plan:
    """Return the plan that leaves out every unit or every group that has a weight; warn if there are few groups."""
    objective, plan = fit.objective, leave_one_out(fit.objective.num_units)
    if groups is not None:
        _, levels = codes("covariance", "groups", groups)
        longer = index_of(groups) is not None and len(groups) > objective.num_units  # what the fit lacks leaves by its label
        if not (longer or len(groups) in (objective.num_units, np.size(objective.units.rows))):  # type: ignore[arg-type]
            raise ValueError(f"covariance: groups must be one label a unit, {objective.num_units}; got {len(groups)}.")
        if len(levels) < 2:
            raise ValueError("covariance: at least two groups are needed; all labels are equal.")
        plan = plan_of_groups(groups)
    plan = match_plan("covariance", objective, plan, strategy)
    left = np.flatnonzero(np.bincount(plan.refit, counting_units(fit)[plan.index], len(plan)) > 0)
    if groups is not None and len(left) < MIN_BLOCKS:
        if len(left) < 2:
            raise ValueError("covariance: at least two groups are needed; one alone has a weight.")
        warn(f"covariance: {len(left)} groups are fewer than {MIN_BLOCKS}: standard errors over so few are too small.")
    return plan if len(left) == len(plan) else plan.some(left)


def _of_two_ways(fit: Fit, kind: str, groups: Any, correction: bool | None, strategy: AbstractRefit) -> Covariance:
    """Compute V₁ + V₂ − V₁₂ for groups of two columns."""
    if kind not in TWO_WAYS or np.ndim(groups) != 2 or np.shape(groups)[1] != 2:
        raise ValueError(
            "covariance: groups must be one column of labels, or two for clusters of two ways, of "
            f"{', '.join(map(repr, TWO_WAYS))}; got shape {np.shape(groups)} for {kind!r}."
        )
    ways = pd.DataFrame(groups)
    columns = [ways.iloc[:, k] for k in (0, 1)]
    (first, _), (second, levels) = (codes("covariance", "groups", column) for column in columns)
    call = lambda labels: covariance(fit, kind, groups=labels, use_correction=correction, strategy=strategy)  # type: ignore[arg-type]
    one, two, joint = map(call, (*columns, pd.Series(first * len(levels) + second, ways.index)))
    value = one.to_numpy() + two.to_numpy() - joint.to_numpy()
    least = np.linalg.eigvalsh(value)[0] if np.isfinite(value).all() else 0.0
    if least < -1e-12 * np.abs(value).max():
        warn(
            "covariance: V₁ + V₂ − V₁₂ has a negative eigenvalue, as it can where the ways overlap or have few groups; "
            "a standard error is NaN where its square is negative. Take the larger of the covariances of one way."
        )
    errors, parts = None, (one, two, joint)
    if kind in JACKKNIVES:  # |Δ(se²)| ≤ 2 se ε + ε² of each part
        off = np.sum([2 * part.standard_errors * part.errors + part.errors**2 for part in parts], axis=0)
        variance = np.diag(value)
        se = np.sqrt(np.maximum(variance, 0))
        errors = np.maximum(np.sqrt(np.maximum(variance + off, 0)) - se, se - np.sqrt(np.maximum(variance - off, 0)))
    dof = np.minimum(one.dof, two.dof)
    flagged = pd.concat([part.flagged for part in parts]) if kind in JACKKNIVES else None
    proved = all(part.proved for part in parts)
    return covariance_of(fit, name_parameters(fit), value, kind, dof, errors, proved=proved, flagged=flagged)


def _labels(fit: Fit, groups: Any) -> tuple[Int[Array, " units"], int]:
    """Number the groups of the fit's units, and count those of a weight; units of weight zero may have any number."""
    plan, label = _plan_of(fit, groups, DEFAULT), np.zeros(fit.objective.num_units, int)
    label[plan.index] = plan.refit
    return label, len(plan)


def _sandwich(root: Array, slope: Array | None, meat: Float[Array, "rank rank"] | None = None) -> Array:
    """Compute `rootᵀ meat root`, for natural parameters of a slope."""
    along = root if slope is None else root @ slope.T
    return along.T @ along if meat is None else along.T @ meat @ along


def _check_kind(fit: Fit, cov_type: str, given: dict[str, Any], use_correction: bool | None) -> str:
    """Return the kind of covariance, and raise ValueError if arguments do not go together."""
    if not isinstance(fit, Fit):
        raise TypeError(f"covariance: the first argument must be a Fit, from lo.fit or lo.from_...; got {type(fit).__name__}.")
    without("covariance", fit.objective)
    kind, maxlags = KINDS.get(str(cov_type).lower()), given["maxlags"]
    if kind is None:
        raise ValueError(f"covariance: cov_type must be one of {', '.join(map(repr, KINDS.values()))}; got {cov_type!r}.")
    if fit.factor is None and kind not in JACKKNIVES:
        raise TypeError("covariance: needs a Hessian that is formed: fit with curvature='dense'.")
    if kind == "nonrobust":
        require_columns(fit, "covariance")
    grouped, ungrouped = ([name for name, (*_, which) in JACKKNIVES.items() if which is wanted] for wanted in (True, None))
    required = {"groups": ["cluster", "CR2", *grouped], "strata": ["JKn"], "maxlags": ["HAC"], "working_variance": []}
    allowed = {"groups": ungrouped, "working_variance": ["CR2"]}
    for name, wanted in required.items():
        takes = wanted + allowed.get(name, [])
        if (given[name] is None and kind in wanted) or (given[name] is not None and kind not in takes):
            of = " or ".join(map(repr, takes))
            raise ValueError(
                f"covariance: {name} goes with cov_type={of}{', and that with it' if wanted else ''}; got cov_type={kind!r}."
            )
    if use_correction is not None and not (isinstance(use_correction, bool | np.bool_) and kind in ("cluster", "HAC")):
        raise ValueError(
            "covariance: use_correction is True or False, of cov_type='cluster' and 'HAC'; got "
            f"{use_correction!r}, cov_type={kind!r}. 'HC1' is 'HC0' corrected."
        )
    units = fit.objective.num_units
    if kind == "HAC":
        check_times("covariance", "the data", fit.objective.units.names)
    if maxlags is not None:
        check_count("covariance: maxlags", maxlags, 0, units - 1)
    if fit.of_rank:
        loose = np.abs(fit.null_space).max(0) > 1e-8 * np.abs(fit.null_space).max()
        names = fit.objective.parameters.names() or [f"parameter {k}" for k in range(fit.num_params)]
        listed = [name for name, is_loose in zip(names, loose, strict=True) if is_loose]
        raise ValueError(
            f"covariance: the data do not determine every parameter, among them {', '.join(map(repr, listed[:4]))}: they have "
            "no covariance. Drop columns that repeat others, or add a penalty such as lo.penalties.Ridge(1.0)."
        )
    return kind


def _refuse(fit: Fit, kind: str) -> None:
    """Raise if units depend on one another in a way that `kind` does not allow, or have no gradients of their own."""
    name, serial = kind_of(fit.objective), fit.objective.units.serial
    if serial is False:
        return
    ends = [function(fit.objective, fit.theta, np.full(fit.objective.num_units, w)).look(fit.vector)[1] for w in (0.0, 1.0)]
    each = fit.raw(fit.influence)
    apart, size = np.abs(each.sum(0) - (ends[1] - ends[0])).max(), np.abs(each).sum(0).max()
    if not apart <= AFFINE * size:
        raise TypeError(
            f"covariance: the units of this {name} have no gradients that add up to its own, as the steps of one chain, or the "
            "sites of one field, have none. Leave out whole sequences (drop='sequence'), or give cov_type='nonrobust'."
        )
    if kind not in ("cluster", "HAC"):
        why = "depend on their neighbours" if serial else "are not known to be independent (dependence='independent' says so)"
        raise ValueError(
            f"covariance: the units of this {name} {why}; {kind} takes them for independent. Use cov_type='HAC' with maxlags=, "
            "or 'cluster' with groups= of long blocks."
        )


def _residual_degrees(units: int, rank: int) -> int:
    if units <= rank:
        raise ValueError(
            f"covariance: {units} units and {rank} parameters leave no degree of freedom to correct by; use 'HC0', or "
            "use_correction=False."
        )
    return units - rank
