"""Smooth terms of a fitted additive model, and means of new rows, with intervals that account for
dependent units.

Without a plan the covariance of θ̂ is φ̂H⁻¹, with penalties read as priors: on average over a
term's values its intervals have their nominal coverage (D. Nychka, JASA 83, 1988). It is the sum of
the sampling covariance and of the squared bias of smoothing,

    H⁻¹ = H⁻¹(Σ ω ℓ″ x xᵀ)H⁻¹ + H⁻¹PH⁻¹.

With a plan that leaves every unit s out with its neighbourhood α_s, the first is the jackknife's
(Wood, arXiv 2404.16490),

    J = Σ_s d_s D_sᵀ,      d_s = θ̂ − θ_{−s},      D_s = θ̂ − θ_{−α_s}

symmetrised, and without its negative part. Refits are Newton steps, and λ is chosen again in each
to first order if `smooth` chose it by that plan. The second part is scaled term by term, by √r_j on
either side, with r_j the ratio of the mean variances of the term over the rows under J and under
the first part. Quantiles are Student's, with (Σ_s k_ss)² / Σ_s Σ_{a in α_s} k_sa² degrees of
freedom, k the term's part of the influence matrix.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from .._runtime import ArrayList, HeadedTable, NamedNumbers, conventional, float64, kind_of
from ..data import index_of, match_labels, share
from ..diagnostics.measures import dispersion
from ..models.glm import column
from ..models.smooth.additive import Additive
from ..models.smooth.terms import LABELS, BoundTerm
from ..objectives import PerRefit, plan_reader
from ..optimize import Fit
from ..plans import Plan
from .smooth import (
    Choice,
    Neighbourhoods,
    ParamPairs,
    PenalisedRows,
    Smoothing,
    SmoothingMinimum,
    data_of,
    minimum,
)

# number of points of a curve; along each side of a surface
SMOOTH_POINTS = 200
SIDE = 40


class CoefficientSpread(NamedTuple):
    """The covariance of θ̂, and the degrees of freedom of its estimate."""

    covariance: ParamPairs
    degrees: NamedNumbers  # by term; "" has those of the whole predictor


class CurveRequest(NamedTuple):
    """A fit of an additive model, the plan that describes the dependence of units, and the choice
    of λ by it.
    """

    fit: Fit
    plan: Plan | None
    choice: Choice | None

    @property
    def model(self) -> Any:
        return self.fit.objective


def _make_request(caller: str, fit, plan: Plan | None, level: float) -> CurveRequest:
    argument = fit
    if isinstance(fit, Smoothing):
        fit = fit.fit
    by_smoothing = isinstance(argument, Smoothing) and plan is None
    if not isinstance(fit, Fit) or not isinstance(fit.objective, Additive):
        kind = type(fit).__name__
        if isinstance(fit, Fit):
            kind = kind_of(fit.objective)
        raise TypeError(
            f"{caller}: the first argument must be what lo.smooth found, or a fit of lo.Additive; got {kind}."
        )
    share(f"{caller}: level", level)
    if by_smoothing:
        return CurveRequest(
            fit, argument.plan, argument.choice if argument.method == "NCV" else None
        )
    return CurveRequest(
        fit, None if plan is None else plan_reader(caller, fit.objective).resolve(plan), None
    )


def spread(request: CurveRequest) -> CoefficientSpread:
    """Compute the covariance of θ̂, from penalties as priors or from the neighbourhoods of a
    plan.
    """
    fit = request.fit
    model = request.model
    plan = request.plan
    data = data_of(model)
    solution = minimum(data, np.log(np.maximum(list(model.smoothing.values()), 1e-300)), fit.vector)
    inverse = solution.root.T @ solution.root
    spans = {name: span for name, (_, span) in model.smooths.items()}
    if plan is None:
        phi = float(dispersion(fit)[0])
        residual_degrees = np.sum(data.weight > 0) - np.sum(
            (data.x @ solution.root.T) ** 2 * solution.curvature[:, None]
        )
        degrees = np.inf
        if model.loss_function.has_dispersion:
            degrees = float(residual_degrees)
        return CoefficientSpread(phi * inverse, dict.fromkeys(["", *spans], degrees))
    plan, scored_plan = _scoring(plan)
    jackknife = _jackknife(data, solution, plan, scored_plan, request.choice)
    seen = (data.x.T * solution.curvature) @ data.x
    sampling_covariance = inverse @ seen @ inverse
    scale = np.ones(len(inverse))
    smooth = {k for span in spans.values() for k in range(span.start, span.stop)}
    for span in [
        *spans.values(),
        *(slice(k, k + 1) for k in range(len(inverse)) if k not in smooth),
    ]:
        ratio = np.sum(seen[span, span] * jackknife[span, span]) / np.sum(
            seen[span, span] * sampling_covariance[span, span]
        )
        scale[span] = np.sqrt(max(ratio, 0.0))
    hidden = np.multiply.outer(scale, scale) * (inverse @ solution.penalty @ inverse)
    return CoefficientSpread(
        jackknife + hidden, _degrees(data, solution, plan, scored_plan, {"": slice(None), **spans})
    )


def _scoring(plan: Plan) -> tuple[Plan, Plan]:
    """Return the refits that score something, and those that leave out only what they score."""
    scored = plan.scored_counts > 0
    if not scored.all():
        plan = plan.some(np.flatnonzero(scored))
    held = plan.held
    indptr = np.r_[0, np.cumsum(np.bincount(plan.refit[held]))]
    return plan, Plan(indptr, plan.index[held], plan.weight[held], held[held], plan.num_units)


def _share(scored_plan: Plan) -> PerRefit:
    """Return the weight of each refit, so that every unit counts once."""
    times = np.bincount(scored_plan.index, minlength=scored_plan.num_units)
    return np.diff(scored_plan.indptr) / np.bincount(scored_plan.refit, times[scored_plan.index])


def _jackknife(
    data: PenalisedRows,
    solution: SmoothingMinimum,
    plan: Plan,
    scored_plan: Plan,
    choice: Choice | None,
) -> ParamPairs:
    """Compute the jackknife covariance J."""
    unit_changes, neighbourhood_changes = (
        Neighbourhoods(data, subplan, np.zeros(len(subplan.index)), solution.theta).moves(solution)
        for subplan in (scored_plan, plan)
    )
    if choice is not None:
        by_rho = scipy.linalg.solve_triangular(solution.root.T, choice.by_rho.T).T  # whitened
        unit_changes, neighbourhood_changes = (
            changes + choice.moves(subplan) @ by_rho
            for changes, subplan in ((unit_changes, scored_plan), (neighbourhood_changes, plan))
        )
    total = (unit_changes.T * _share(scored_plan)) @ neighbourhood_changes
    values, vectors = np.linalg.eigh((total + total.T) / 2)
    return solution.root.T @ (vectors * np.maximum(values, 0.0)) @ vectors.T @ solution.root


def _degrees(
    data: PenalisedRows,
    solution: SmoothingMinimum,
    plan: Plan,
    scored_plan: Plan,
    spans: dict[str, slice],
) -> NamedNumbers:
    """Return the degrees of freedom of J, by terms."""
    root_curvature = np.sqrt(np.maximum(solution.curvature, 0.0))
    share = _share(scored_plan)
    degrees = {}
    inverse = solution.root.T @ solution.root
    q = data.x.shape[1]
    for name, span in spans.items():
        rows = (root_curvature[:, None] * data.x[:, span]) @ np.linalg.cholesky(inverse[span, span])
        total = 0.0
        squares = 0.0
        for batch in plan._batches(2**18, q, q):
            units = batch.rows.units(len(rows))
            held = batch.rows.held
            squared_omissions = (1 - batch.rows.weight) ** 2
            k = np.matmul(rows[units], rows[units].swapaxes(1, 2))
            total += share[batch.refits] @ np.sum(np.where(held, np.einsum("rkk->rk", k), 0.0), 1)
            squares += share[batch.refits] @ np.einsum(
                "rk,rl,rkl->r", held * 1.0, squared_omissions, k**2
            )
        degrees[name] = float(total**2 / squares)
    return degrees


@conventional
@float64
def curves(
    fit: Fit | Smoothing,
    plan: Plan | None = None,
    *,
    level: float = 0.95,
    num_points: int = SMOOTH_POINTS,
) -> HeadedTable:
    """Compute the smooth terms of an additive model on a grid, with intervals, under a line that
    says which they are.

    The intervals are pointwise, and have their nominal coverage on average over the term. They do
    not include the uncertainty of λ.

    Parameters
    ----------
    fit : Fit or Smoothing
        The result of `lo.smooth`, whose plan is used, or a fit of `lo.Additive`.
    plan : Plan, optional
        A plan whose neighbourhoods account for the dependence of units. Without one the intervals
        treat penalties as priors.
    level : float, default 0.95
        The coverage.
    num_points : int
        The number of points of each term.

    Returns
    -------
    DataFrame
        `term`, its columns, `value`, `se`, `low`, `high`. A term with a numeric `by` shows the
        effect of one unit of that.

    Raises
    ------
    TypeError
        If the model is not additive.
    ValueError
        If the level is not between 0 and 1, or the model is not determined.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 40)
    >>> y = np.sin(6 * x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    >>> fit = lo.fit(lo.Additive([lo.terms.s("x", k=8)], {"x": x}, y))
    >>> sorted(lo.tuning.curves(fit, num_points=5).columns)
    ['high', 'low', 'se', 'term', 'value', 'x']
    """
    request = _make_request("curves", fit, plan, level)
    coefficient_spread = spread(request)
    tables = [
        _curve(request.fit, term, span, coefficient_spread, level, num_points)
        for term, span in request.model.smooths.values()
    ]
    table = HeadedTable(pd.concat(tables, ignore_index=True))
    table.heading = [
        (
            "standard errors",
            "penalties as priors" if request.plan is None else "jackknife by the plan, bias added",
        )
    ]
    return table


def _curve(
    fit: Fit,
    term: BoundTerm,
    span: slice,
    coefficient_spread: CoefficientSpread,
    level: float,
    points: int,
) -> pd.DataFrame:
    grid = _grid(term, points)
    design = term.basis.design(*grid)
    value = design @ fit.vector[span]
    se = np.sqrt(
        np.einsum("np,pq,nq->n", design, coefficient_spread.covariance[span, span], design)
    )
    half_width = _quantile(coefficient_spread.degrees[term.label], level) * se
    flat = [part for x in grid for part in (x.T if x.ndim == 2 else [x])]
    table = pd.DataFrame({"term": term.label, **dict(zip(term.term.columns, flat, strict=True))})
    return table.assign(value=value, se=se, low=value - half_width, high=value + half_width)


def _quantile(degrees: float, level: float) -> float:
    return float(scipy.stats.t.ppf((1 + level) / 2, degrees))


def _grid(term: BoundTerm, points: int) -> ArrayList:
    """Return the values of the columns at which a term is evaluated, in the form that its basis
    takes.
    """
    kinds = term.term.bs * (len(term.columns) if len(term.term.bs) == 1 else 1)
    axes = []
    for x, kind in zip(term.columns, kinds, strict=True):
        parts = x.T if x.ndim == 2 else [x]
        count = SIDE
        if sum(len(values.T) if values.ndim == 2 else 1 for values in term.columns) == 1:
            count = points
        axes += [
            np.unique(part) if kind in LABELS else np.linspace(part.min(), part.max(), count)
            for part in parts
        ]
    mesh = [part.ravel() for part in np.meshgrid(*axes, indexing="ij")]
    if len(term.columns) == 1:
        return [np.column_stack(mesh) if term.columns[0].ndim == 2 else mesh[0]]
    return [
        part[:, None] if x.ndim == 2 else part for part, x in zip(mesh, term.columns, strict=True)
    ]


@conventional
@float64
def mean_interval(
    fit: Fit | Smoothing,
    X_new: Any,
    *,
    plan: Plan | None = None,
    level: float = 0.95,
    offset: ArrayLike | None = None,
) -> pd.DataFrame:
    """Predict the mean response of new rows by an additive model, with intervals.

    An interval for the response itself is `lo.interval`. A new level of a random effect is at the
    mean of its effect.

    Parameters
    ----------
    fit : Fit or Smoothing
        The fit of an `Additive` model, or the result of `lo.smooth`.
    X_new : table
        The new rows, with the columns of the model's terms.
    plan : Plan, optional
        A plan that leaves out every unit together with the units that depend on it, as in
        `lo.tuning.curves`.
    level : float, default 0.95
        The coverage of the intervals.
    offset : array_like, `[rows]`, optional
        The offset of the new rows, where the model has one.

    Returns
    -------
    DataFrame
        `prediction`, `low`, `high` of each row.

    Raises
    ------
    TypeError
        If the model is not additive.
    ValueError
        If values are missing, or an offset is given that the model does not have.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 40)
    >>> y = np.sin(6 * x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    >>> fit = lo.fit(lo.Additive([lo.terms.s("x", k=8)], {"x": x}, y))
    >>> lo.tuning.mean_interval(fit, pd.DataFrame({"x": [0.25, 0.75]})).shape
    (2, 3)
    """
    request = _make_request("mean_interval", fit, plan, level)
    model = request.model
    if (offset is None) != (model.offset is None):
        raise ValueError(
            f"mean_interval: the model has {'no' if model.offset is None else 'an'} offset; give offset= like it."
        )
    _, frame, offset = match_labels("mean_interval", X_new=X_new, offset=offset)
    design = np.asarray(model.new_rows("mean_interval", frame))
    shift = 0.0 if offset is None else column("mean_interval", "offset", offset, len(design))
    coefficient_spread = spread(request)
    half_width = _quantile(coefficient_spread.degrees[""], level) * np.sqrt(
        np.einsum("np,pq,nq->n", design, coefficient_spread.covariance, design)
    )
    eta = design @ request.fit.vector + shift
    link = model.loss_function.inverse_link
    ends = np.sort([np.asarray(link(eta - half_width)), np.asarray(link(eta + half_width))], axis=0)
    return pd.DataFrame(
        {"prediction": np.asarray(link(eta)), "low": ends[0], "high": ends[1]},
        index=index_of(X_new),
    )
