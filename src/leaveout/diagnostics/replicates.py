"""Covariances from refits: the jackknife, and replicate weights of surveys.

    V = s Σ_r ρ_r (θ_r − c)(θ_r − c)ᵀ,      θ_r = argmin F(·, w_r),
    c = θ̂ or the mean of the θ_r

If the exact θ_r is within ε_r of the one reported in the norm of H (`refit.distances`), and c
within ε_c, a standard error √V_jj, which is a norm of (θ_rj − c_j)_r, is off by at most √((H⁻¹)_jj
s Σ_r ρ_r (ε_r + ε_c)²), and by rounding.

A replicate that does not determine a parameter, as when it leaves out the last rows of a factor's
level, does not count for it: the parameter's moves in the m of R replicates that do not determine
it are zero, and those in the others are multiplied by √(R/(R − m)). What a replicate determines
counts: its refit keeps to the directions that it determines.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float
from numpy import linalg
from numpy.typing import ArrayLike

from .._runtime import (
    NO_REFIT_CODES,
    RESULTS,
    HeadedTable,
    Lines,
    NumpyArray,
    Rng,
    SubsetValues,
    Texts,
    among,
    conventional,
    float64,
    record,
    silence,
    warn,
)
from ..data import count, floats, generator, index_of, pandas_of, share
from ..linalg import UNIT
from ..objectives import Matrix, PerRefit, RefitNumbers, RefitPoints, Vector
from ..optimize import Fit
from ..plans import Plan, ReplicateWeights, check_scales, plan_of_entries
from ..refit import AbstractRefit, Exact, distance_of_fit, lengths
from ..validation.cross_validate import objective_of, reader_for, strategy_of
from ..validation.named_parameters import NamedParameters, name_parameters, partial_refits
from .influence import refit_all

DEFAULT = Exact(1e-5)  # of its own move: a standard error then has five digits, most often eight
NAMES = np.array([code.name for code in RESULTS], object)
LISTED_REPLICATES = 4  # names of replicates that a warning lists


class Covariance(HeadedTable):
    """Covariance of the natural parameters, `[params, params]`, with their standard errors and
    tests.

    `lo.covariance` and `lo.survey.replicates` return it. It is a DataFrame, and what is computed
    from it is one. Its printed head, and that of its `summary()`, names the kind, the clusters and
    the degrees of freedom.

    Attributes
    ----------
    kind : str
        The kind of covariance.
    estimate : Series
        The parameters of the fit.
    errors : Series or None
        How far each standard error may be from that of exact refits; None if no refit is made.
    proved : bool
        Whether a theorem proves `errors`; they are estimates otherwise.
    dof : Series or None
        The degrees of freedom of Student's t for each parameter; None if the normal distribution
        stands in.
    replicates : DataFrame or None
        The parameters of every refit, NaN where it does not determine them.
    flagged : Series or None
        The result codes of the refits that do not exist or do not determine every parameter, by
        name.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0, 2.0]), "squared")
    ... )
    >>> found = lo.covariance(fit, "jackknife")
    >>> found.standard_errors.round(3).tolist(), found.proved
    ([0.31, 0.403], True)
    """

    _metadata: ClassVar[list[str]] = [
        "kind",
        "estimate",
        "errors",
        "proved",
        "dof",
        "replicates",
        "flagged",
        "heading",
        "tests",
    ]
    kind: str
    estimate: pd.Series
    errors: pd.Series | None
    proved: bool
    dof: pd.Series | None
    replicates: pd.DataFrame | None
    flagged: pd.Series | None
    tests: Callable[[int, np.random.Generator], HeadedTable] | None

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.heading_text}\n{pd.DataFrame(self)!r}"

    @property
    def standard_errors(self) -> pd.Series:
        """The roots of the diagonal.

        NaN where that is negative, as it can be with clusters of two ways, or zero: a parameter
        that is given, or at a bound, has none.
        """
        variance = np.diag(self.to_numpy())
        return pd.Series(
            np.sqrt(np.where(variance > 0, variance, np.nan)), index=self.index, name="std err"
        )

    @conventional
    def summary(self, level: float = 0.95) -> HeadedTable:
        """Tabulate the parameters as statsmodels does, under lines that say what the standard
        errors are.

        Parameters
        ----------
        level : float, default 0.95
            The coverage of the intervals.

        Returns
        -------
        DataFrame
            One row a parameter: `coef`, `std err`, `t` or `z`, the p-value, the ends of the
            interval, and, where there are some, the degrees of freedom `dof` and the `error` of the
            standard error.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> fit = lo.fit(
        ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0, 2.0]), "squared")
        ... )
        >>> print(lo.covariance(fit, "HC1").summary().iloc[:, :4])
        standard errors    HC1: sandwich of independent units, times n/(n − p)
        clusters           none
        degrees of freedom 3, Student's t
                   coef  std err      t   P>|t|
        x0          0.6   0.2098   2.86 0.06456
        intercept   0.2   0.2633 0.7596  0.5028
        """
        share("summary: level", level)
        t = "z" if self.dof is None else "t"
        law = scipy.stats.norm if self.dof is None else scipy.stats.t(self.dof.to_numpy())
        se = self.standard_errors
        with silence("divide", "invalid"):
            ratio = self.estimate / se
        half = law.ppf((1 + level) / 2) * se
        table = {
            "coef": self.estimate,
            "std err": se,
            t: ratio,
            f"P>|{t}|": 2 * law.sf(np.abs(ratio)),
        }
        table |= {
            f"[{(1 - level) / 2:.4g}": self.estimate - half,
            f"{(1 + level) / 2:.4g}]": self.estimate + half,
        }
        columns = {"dof": self.dof, "error": self.errors}
        table |= {name: values for name, values in columns.items() if values is not None}
        summary = HeadedTable(pd.DataFrame(table, index=self.index))
        summary.heading = self.heading
        return summary

    @conventional
    def few_clusters(self, *, num_resamples: int = 9_999, rng: Rng = 0) -> HeadedTable:
        """Tabulate tests of each coefficient that stand up to few clusters, side by side.

        "CRV1" is the sandwich of clusters with Student's t of G − 1 degrees of freedom, "CRV3" the
        jackknife with the same, and "CR2" the bias-reduced sandwich with Satterthwaite's. The
        bootstraps give the clusters' scores random signs ("Rademacher") or one of six factors
        ("Webb"), where the coefficient is zero ("restricted") or at the fit ("unrestricted"). For
        least squares they are wild cluster bootstraps, for other losses bootstraps of scores.

        Parameters
        ----------
        num_resamples : int, default 9999
            Draws of a bootstrap. Where all factors of all clusters are no more, they are enumerated
            instead.
        rng : int, numpy.random.Generator or None, default 0
            Random numbers.

        Returns
        -------
        DataFrame
            One row a coefficient and test: `std err`, `t`, the p-value, the degrees of freedom
            `df`, and `least P`, the smallest p-value that a bootstrap of so many draws or clusters
            can have. `to_latex()` writes it for a paper.

        Raises
        ------
        ValueError
            If the covariance has no clusters, or clusters of two ways; or if it was asked for with
            `cases`, `use_correction`, `small_sample` or `working_variance`, unlike the table.

        References
        ----------
        C. Cameron, J. Gelbach and D. Miller, "Bootstrap-based improvements for inference with
        clustered errors", *Review of Economics and Statistics* 90, 2008.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> g = np.repeat(np.arange(6), 5)
        >>> X = np.random.default_rng(0).standard_normal((30, 1)) + g[:, None] % 2
        >>> y = X[:, 0] + np.random.default_rng(1).standard_normal(30)
        >>> fit = lo.fit(lo.GLM(X, y, "squared"))
        >>> table = lo.covariance(fit, "CRV3", groups=g).few_clusters()
        >>> table.loc["x0", "P>|t|"].round(3)[:4].to_dict()
        {'CRV1': 0.007, 'CRV3': 0.025, 'CR2': 0.032, 'restricted, Rademacher': 0.125}
        """
        if self.tests is None:
            raise ValueError(
                "few_clusters: needs clusters of one way and no other options: lo.covariance(fit, groups=g).few_clusters()."
            )
        num_resamples = count("few_clusters: num_resamples", num_resamples, 1)
        return self.tests(num_resamples, generator("few_clusters", rng))


def covariance_of(
    fit: Fit,
    parameters: NamedParameters,
    value: Matrix,
    kind: str,
    dof: ArrayLike | None = None,
    errors: Vector | None = None,
    **facts: Any,
) -> Covariance:
    """Return a `Covariance` of natural parameters."""
    covariance = Covariance((value + value.T) / 2, index=parameters.names, columns=parameters.names)
    series = lambda values, name: (
        None
        if values is None
        else pd.Series(np.broadcast_to(values, len(covariance)), covariance.index, name=name)
    )
    covariance.kind = kind
    covariance.tests = None
    covariance.dof = series(dof, "dof")
    covariance.errors = series(errors, "error")
    covariance.estimate = pd.Series(
        parameters.values_of(fit.vector[None])[0], covariance.index, name="coef"
    )
    covariance.proved = bool(facts.get("proved"))
    covariance.replicates = facts.get("replicates")
    covariance.flagged = facts.get("flagged")
    covariance.heading = _heading(covariance, facts.get("notes", {}))
    return covariance


def _heading(covariance: Covariance, notes: Texts) -> Lines:
    """Write what a table of standard errors says above its numbers.

    `notes` are lines by their names.
    """
    lines = {
        "standard errors": covariance.kind,
        "clusters": "none",
        "degrees of freedom": "none: normal distribution",
    } | notes
    if covariance.dof is not None:
        low = covariance.dof.min()
        high = covariance.dof.max()
        if low == high:
            lines["degrees of freedom"] = f"{low:.4g}"
        else:
            lines["degrees of freedom"] = f"{low:.4g} to {high:.4g}, by parameter"
        lines["degrees of freedom"] += ", Student's t"
    if covariance.errors is not None:
        evidence = "estimated"
        if covariance.proved:
            evidence = "proved"
        lines["refits"] = (
            f"standard errors are within {covariance.errors.max():.1g} of those of exact refits, {evidence}"
        )
    return [(name, text) for name, text in lines.items() if text]


@record
class ParameterRefits:
    """Refits of a plan whose parameters are wanted.

    `values` are natural parameters `[refits, natural]`, NaN where a refit does not determine them;
    `error` bounds the distance of each refit from the exact one in the norm of H, and `fit_error`
    that of the fit itself. `free` are displacements that refits which determine θ in part leave
    free.
    """

    fit: Fit
    plan: Plan
    parameters: NamedParameters
    theta: RefitPoints
    values: Float[NumpyArray, "refits natural"]
    error: PerRefit
    fit_error: float
    proved: bool
    result: RefitNumbers
    index: pd.Index
    free: dict[int, Float[NumpyArray, "null params"]]

    @property
    def flagged(self) -> pd.Series:
        """The codes of the refits that do not exist or do not determine every parameter."""
        missing = among(self.result, NO_REFIT_CODES)
        return pd.Series(
            NAMES[self.result[missing]], self.index[missing], name="result", dtype=object
        )

    def covariance(
        self,
        kind: str,
        scale: float,
        rscales: PerRefit,
        about_mean: bool,
        dof: float,
        notes: Texts,
    ) -> Covariance:
        """Compute the covariance of the natural parameters."""
        count = rscales > 0
        if about_mean:
            center = mean_of(self.values[count])
        else:
            center = self.parameters.values_of(self.fit.vector[None])[0]
        moves = scaled_moves(self.values, center, scale * rscales)
        errors = np.full(moves.shape[1], np.inf)
        if self.fit.quadratic.factor is not None:
            error = np.nan_to_num(self.error, posinf=np.inf) + (
                np.nanmean(self.error[count]) if about_mean else self.fit_error
            )
            error_moves = scaled_moves(
                np.where(np.isnan(self.values), np.nan, error[:, None]),
                0.0 * center,
                scale * rscales,
            )
            size = np.sqrt(scale * np.sum(rscales)) * np.abs(center) + linalg.norm(moves, axis=0)
            along = self.parameters.slope
            if along is None:
                along = np.eye(self.fit.num_params)
            errors = (
                lengths(self.fit, along) * linalg.norm(error_moves, axis=0)
                + (len(error) + 16) * UNIT * size
            )
        frame = pd.DataFrame(self.values, index=self.index, columns=self.parameters.names)
        proved = self.proved and self.parameters.slope is None and bool(np.isfinite(errors).all())
        facts = {"replicates": frame, "flagged": self.flagged, "notes": notes}
        return covariance_of(
            self.fit, self.parameters, moves.T @ moves, kind, dof, errors, proved=proved, **facts
        )


def mean_of(values: Float[NumpyArray, "refits some"]) -> SubsetValues:
    """Return the mean over the refits that determine each value; NaN if none does."""
    determined = ~np.isnan(values)
    number = determined.sum(0)
    return np.where(
        number > 0, np.where(determined, values, 0.0).sum(0) / np.maximum(number, 1), np.nan
    )


def scaled_moves(
    values: Float[NumpyArray, "refits some"], center: NumpyArray, scales: PerRefit
) -> NumpyArray:
    """Return √scale (value − center), zero where a refit does not determine the value, and the
    others raised for it.
    """
    determined = ~np.isnan(values)
    counted = scales > 0
    number = (determined & counted[:, None]).sum(0)
    raised = np.where(number > 0, counted.sum() / np.maximum(number, 1), np.nan)
    return np.where(determined, values - center, 0.0) * np.sqrt(scales[:, None] * raised)


def refit_plan(caller: str, fit: Fit, plan: Any, strategy: AbstractRefit) -> ParameterRefits:
    """Refit a plan for its parameters.

    Warn of refits that do not exist or do not determine every parameter.
    """
    plan = reader_for(caller, fit).match(plan)
    unscored = plan._replace_facts(held=np.zeros(len(plan.index), bool))
    strategy = strategy.of_parameters()
    results = refit_all(caller, fit, unscored, strategy, lambda *_: {}, judge=False)
    parameters = name_parameters(fit)
    theta = results["theta"]
    result = results["result"].astype(int)
    values = np.array(parameters.values_of(theta))
    error = results["off"]
    proved = bool((results["proved"][~among(result, NO_REFIT_CODES)] > 0).all())
    partial = partial_refits(fit, plan, result, parameters)
    for k, refit in partial.items():
        theta[k] = refit.theta
        error[k] = refit.error
        values[k] = refit.values
        proved = False
    free = {k: refit.free for k, refit in partial.items()}
    fit_error, fit_proved = distance_of_fit(fit)
    refits = ParameterRefits(
        fit,
        plan,
        parameters,
        theta,
        values,
        error,
        fit_error,
        proved and fit_proved,
        result,
        plan.refit_names.rename("replicate"),
        free,
    )
    _warn_of_undetermined(caller, refits)
    return refits


def _warn_of_undetermined(caller: str, refits: ParameterRefits) -> None:
    undetermined = ~np.isfinite(refits.values)
    if not undetermined.any():
        return
    which = np.flatnonzero(undetermined.any(1))
    listed = lambda labels: (
        ", ".join(map(str, labels[:LISTED_REPLICATES])) + ", …" * (len(labels) > LISTED_REPLICATES)
    )
    names = np.array(refits.parameters.names, object)
    never = names[undetermined.all(0)]
    if len(never) == undetermined.shape[1]:
        why = list(RESULTS)[refits.result[which[0]]].message
        raise ValueError(f"{caller}: no refit determines the parameters ({why}).")
    params = names[undetermined.any(0)]
    warn(
        f"{caller}: {len(which)} of {len(undetermined)} refits ({listed(refits.index[which])}) do not determine {listed(params)}. "
        "They do not count for these parameters, whose sums over the others are "
        "raised in proportion; .flagged has their codes. A penalty determines them."
        + (f" No refit determines {listed(never)}: no covariance." if len(never) else "")
    )


@conventional
@float64
def replicates(
    fit: Fit,
    weights: ArrayLike | ReplicateWeights,
    *,
    scale: float | None = None,
    rscales: ArrayLike | None = None,
    mse: bool = False,
    strategy: AbstractRefit | None = None,
) -> Covariance:
    """Estimate the covariance of the parameters by replicate weights.

    θ_r is the fit with the weights of its units times column r, and V = scale Σ_r rscale_r (θ_r −
    c)(θ_r − c)ᵀ.

    Parameters
    ----------
    fit : Fit
        The fit, with the sampling weights as its `sample_weight`.
    weights : ReplicateWeights or array-like, `[units, replicates]`
        Factors on the weights of the units: those of `lo.survey`, or any matrix. `lo.survey.read`
        makes factors of the weights in a survey's file.
    scale : float, optional
        The common factor of the sum. The weights of `lo.survey` have their own.
    rscales : array-like, `[replicates]`, optional
        The factor of each replicate; those of the weights, or one, by default. A replicate of
        factor zero does not count.
    mse : bool, default False
        Whether c is θ̂; else it is the mean of the replicates, as is the default of R's survey.
    strategy : AbstractRefit, default `Exact(1e-5)`
        The strategy of the refits. `Exact(tol)` and `Certified(tol)` leave each refit within `tol`
        of its own move, so that standard errors are within about that share of themselves;
        `Exact(1e-12)` goes to the floor of float64.

    Returns
    -------
    Covariance
        The covariance, with the parameters of every replicate. Its degrees of freedom are the rank
        of the weights less one.

    Raises
    ------
    ValueError
        If the matrix does not have one row a unit, a factor is missing or negative, a replicate has
        no unit, or the scale of a matrix is not given.
    TypeError
        If the first argument is no fit.

    Warns
    -----
    UserWarning
        If refits do not determine every parameter.

    See Also
    --------
    covariance : The jackknife over units or groups.
    functional : The same for a function of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(8.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], x**2, "squared"))
    >>> weights = lo.survey.jkn(strata=[0, 0, 0, 0, 1, 1, 1, 1])
    >>> lo.survey.replicates(fit, weights).standard_errors.round(3).tolist()
    [1.152, 4.519]
    """
    strategy = strategy_of("replicates", strategy, DEFAULT)
    refits, scale, rscales = refit_weights("replicates", fit, weights, scale, rscales, strategy)
    if not isinstance(mse, bool | np.bool_):
        raise TypeError(
            f"replicates: mse is True for squares about the fit, False for those about the mean; got {mse!r}."
        )
    about = "the mean of the replicates"
    if mse:
        about = "the fit"
    notes = {
        "standard errors": f"replicates: {len(rscales)} weights of the units, squares about {about}",
        "clusters": "",
    }
    return refits.covariance(
        "replicates", scale, rscales, not mse, degrees(np.asarray(weights, float)), notes
    )


def degrees(weights: Float[NumpyArray, "units replicates"]) -> float:
    """Return the rank of replicate weights less one, as R's survey has it."""
    # share of the largest singular value, as in R's survey; its square is seen in double precision
    tolerance = 1e-5
    if weights.shape[0] < weights.shape[1]:
        weights = weights.T
    values = linalg.eigvalsh(weights.T @ weights)
    return float(max((values > tolerance**2 * values.max()).sum() - 1, 1))


def refit_weights(
    caller: str,
    fit: Fit,
    weights: Any,
    scale: float | None,
    rscales: ArrayLike | None,
    strategy: AbstractRefit,
) -> tuple[ParameterRefits, float, Float[NumpyArray, " replicates"]]:
    """Refit under replicate weights; return the refits, the scale, and the scale of each."""
    if scale is None:
        if not isinstance(weights, ReplicateWeights):
            raise ValueError(
                f"{caller}: give scale=, the factor of the sum over replicates, with a matrix of weights: 1/R for balanced "
                "half-samples, 1/(R − 1) for a bootstrap, (n − 1)/n for the jackknife. Those of lo.survey have theirs."
            )
        scale = weights.scale
    factors, columns = _factors(caller, fit, weights)
    if rscales is None:
        if isinstance(weights, ReplicateWeights):
            rscales = weights.rscales
        else:
            rscales = np.ones(factors.shape[1])
    common_scale, scales = check_scales(caller, scale, rscales, factors.shape[1])
    if np.sum(scales > 0) < 2:
        raise ValueError(
            f"{caller}: one replicate has no spread; at least two of a positive rscale are needed."
        )
    changed = [np.flatnonzero(column != 1) for column in factors.T]
    # a copy of the fit lists a unit at weight one
    changed = [units if len(units) else np.zeros(1, int) for units in changed]
    entries = [
        (units, factors[units, k], np.zeros(len(units), bool)) for k, units in enumerate(changed)
    ]
    plan = plan_of_entries(entries, len(factors), names=index_of(weights), labels=columns)
    return refit_plan(caller, fit, plan, strategy), common_scale, scales


def _factors(caller: str, fit: Fit, weights) -> tuple[Float[NumpyArray, "units replicates"], Any]:
    table = pandas_of(caller, "weights", weights)
    factors = floats(caller, "weights", table)
    units = objective_of(caller, fit).num_units
    rows = fit.objective.units.rows
    # what the fit lacks leaves by its label later
    longer = index_of(weights) is not None and len(factors) > units
    if factors.ndim != 2 or not (
        longer or len(factors) in (units, 0 if rows is None else len(rows))
    ):
        hint = ""
        if factors.ndim == 2 and factors.shape[1] == units:
            hint = "; it has one column a unit: transpose it"
        raise ValueError(
            f"{caller}: weights must be a matrix of one row a unit, {units}, and one column a replicate; got shape "
            f"{factors.shape}{hint}."
        )
    wrong = ~np.isfinite(factors) | (factors < 0)
    if wrong.any():
        unit, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{caller}: weights must be finite and not negative; unit {unit} has {factors[unit, column]} in replicate {column}."
        )
    if (empty := ~factors.any(0)).any():
        raise ValueError(
            f"{caller}: replicate {np.argmax(empty)} gives every unit weight zero; drop it."
        )
    return factors, table.columns if isinstance(table, pd.DataFrame) else np.arange(
        factors.shape[1]
    )
