"""Covariance of θ̂: sandwiches of the derivatives that refits use, and the jackknife of the refits
themselves.

    H⁻¹ M H⁻¹,      M = Σ_n g_n g_nᵀ,      g_n = ∂²F/∂θ∂w_n,

is that of the infinitesimal jackknife (Huber 1967; White 1980), also under a penalty. For groups, M
is the sum over groups of products of summed g_n (Liang & Zeger 1986); for a series, it has pairs up
to `maxlags` apart with weights 1 − l/(maxlags + 1) (Newey & West 1987). The jackknife is

    s Σ_g (θ_(g) − c)(θ_(g) − c)ᵀ,      θ_(g) the refit without unit or group g,

about θ̂ or about the mean (Tukey 1958; MacKinnon, Nielsen & Webb, Journal of Applied Econometrics
38, 2023). For clusters of two ways V = V₁ + V₂ − V₁₂, of each way and of both together (Cameron,
Gelbach & Miller 2011).
"""

import copy
import re
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._runtime import (
    ArrayList,
    HeadedTable,
    NumpyArray,
    Texts,
    UnitNumbers,
    conventional,
    float64,
    kind_of,
    record,
    warn,
)
from ..data import UnitColumn, check_times, codes, count as check_count, index_of, pandas_of
from ..models.glm import (
    GLM,
    AbsorbedGLM,
    AbstractLoss,
    AbstractRegression,
    DualGLM,
    Squared,
    Zero,
)
from ..models.survival.cox import Cox
from ..objectives import (
    LOG_DENSITY,
    LOG_PROBABILITY,
    AbstractLinearPredictor,
    AbstractObjective,
    Matrix,
    function,
)
from ..objectives.unit_weights import UnitWeights, unit_weights
from ..optimize import Fit, HostErrors, without
from ..plans import Plan, groups as plan_of_groups, jk1, jkn, leave_one_out
from ..refit import AbstractRefit, inverse_root
from ..validation.cross_validate import reader_for, strategy_of
from ..validation.named_parameters import name_parameters
from ..validation.standard_errors import MIN_BLOCKS
from .bias_reduced import bias_reduced, with_columns
from .few_clusters import bootstrap_tests
from .measures import dispersion, has_dispersion, hat_diagonal, mean_and_variance
from .replicates import DEFAULT, Covariance, covariance_of, degrees, refit_plan, refit_weights

CovType = Literal[
    "nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster", "HAC", "CR2", "expected",
    "jackknife", "CRV3", "CRV3J", "CR3", "HC3-exact", "JK1", "JKn",
]  # fmt: skip
SmallSample = Literal["stata", "fixest", "pyfixest", "sandwich"]


class Jackknife(NamedTuple):
    """Whether the factor is (G − 1)/G and not one, whether squares are about the mean, and whether
    there are groups.
    """

    shrinks: bool
    about_mean: bool
    grouped: bool | None  # None: as given


JACKKNIVES = {
    "jackknife": Jackknife(True, True, None),
    "CRV3": Jackknife(True, False, True),
    "CRV3J": Jackknife(True, True, True),
    "CR3": Jackknife(False, False, True),
    "HC3-exact": Jackknife(False, False, False),
    "JK1": Jackknife(True, True, None),
    "JKn": Jackknife(False, True, None),
}
WORDS = {  # what the heads of tables say of each kind
    "nonrobust": "model-based, by the observed information",
    "HC0": "sandwich of independent units",
    "HC1": "sandwich of independent units, times n/(n − p)",
    "HC2": "sandwich of independent units, by their leverages",
    "HC3": "sandwich of independent units, by the squares of their leverages",
    "cluster": "sandwich of clusters (CRV1)",
    "HAC": "sandwich of a series (Newey and West)",
    "CR2": "bias-reduced sandwich of clusters",
    "expected": "model-based, by the expected information",
}
KINDS = {kind.lower(): kind for kind in (*WORDS, *JACKKNIVES)}
FACTORS = {  # the kinds for which each program has a factor
    "stata": ("cluster", "CRV3", "CRV3J"),
    "fixest": ("cluster",),
    "pyfixest": ("cluster", "CRV3"),
    "sandwich": ("cluster", "CRV3J"),
}
NO_FACTOR = (
    "fixest has no CRV3, and the jackknife of sandwich (vcovJK) has squares about the mean: 'CRV3J'"
)
# the name of a column of a factor in a formula
FACTOR_LEVEL = re.compile(r"(.*)\[(?:[TS]\.)?[^\[\]]*\]")
# relative difference of the observed and the expected information below which they are one
CANONICAL = 1e-9
LIKELIHOODS = LOG_DENSITY, LOG_PROBABILITY
TWO_WAYS = "cluster", "CRV3", "CRV3J", "CR3", "jackknife"
AFFINE = 1e-6  # share of the largest gradient above which a difference is not rounding


@conventional
@float64
def covariance(
    fit: Fit,
    kind: CovType | None = None,
    *,
    groups: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    maxlags: int | None = None,
    use_correction: bool | None = None,
    small_sample: SmallSample | None = None,
    cases: bool = False,
    working_variance: ArrayLike | None = None,
    strategy: AbstractRefit | None = None,
) -> Covariance:
    """Estimate the covariance of the natural parameters, by names, from the model, by a sandwich or
    by the jackknife.

    With H the observed Hessian, penalty included, and g_n the gradient of unit n, "nonrobust" is φ̂
    H⁻¹; "HC0" to "HC3", "cluster" and "HAC" are sandwiches H⁻¹ (Σ g gᵀ) H⁻¹ of independent units or
    groups, with the names and arguments of statsmodels. The jackknife is the sum of squared moves
    of exact refits, each of which leaves out a unit or a group, times (G − 1)/G, and is for every
    model. No covariance includes the bias of a penalty.

    With `groups` the default is "cluster". Without, it is that of the model's field: for a fit of a
    host the host's own; for likelihoods of regressions, Cox and mixed models without a penalty the
    model-based one, as in R, and for those of one chain or field, whose units have no gradients of
    their own; else, as under a ridge, "HC0". The printed head names it.

    Parameters
    ----------
    fit : Fit
        The fit.
    kind : str, optional
        "expected" is "nonrobust" with the expected information, as of `glm` in R and statsmodels;
        for canonical links they are one. "HC0" is the sandwich of independent units. "HC1" is that
        times n/(n − p), p the rank of H. "HC2" and "HC3", for one linear predictor, divide g_n by
        √(1 − h_n) and by 1 − h_n. "cluster" sums g_n over groups. "HAC" is for units in the order
        of time. φ̂ of "nonrobust" is as in `cooks_distance`. "jackknife" leaves out every unit, or
        every group, and has squares about the mean of the refits. "CRV3" leaves out every group,
        with squares about θ̂; "CRV3J" the same about the mean; "CR3" is "CRV3" without (G − 1)/G.
        "HC3-exact" leaves out every unit, with squares about θ̂ and no factor: "HC3" of least
        squares. "JK1" and "JKn" are those of surveys, by the weights of `lo.survey`, about the
        mean. "CR2", for GLMs, divides the residuals of each group by the root of their
        variance, with Satterthwaite's degrees of freedom; other losses than squares have those of
        their working weights.
    groups : array_like, `[units]` or `[units, 2]`, str or pair of str, optional
        The labels of the groups, or the name of their column in the data. Blocks of neighbours are
        groups too. Two columns are clusters of two ways.
    strata : array_like, `[units]`, optional
        The strata of "JKn", within which groups, or units, are left out.
    maxlags : int, optional
        The lags of "HAC".
    use_correction : bool, optional
        Whether to multiply by G/(G − 1) · (n − 1)/(n − p) for "cluster" (by default yes), or by
        n/(n − p) for "HAC" (by default no).
    small_sample : {"stata", "fixest", "pyfixest", "sandwich"}, optional
        The program whose factor the sum over clusters has, with K columns, N units and G clusters.
        "stata" and "sandwich": of "cluster" G/(G − 1) · (N − 1)/(N − K) for least squares, else
        G/(G − 1); of the jackknife (G − 1)/G. "fixest", for "cluster", and "pyfixest", also for
        "CRV3": G/(G − 1) · (N − 1)/(N − K), where K does not count factors whose levels lie within
        clusters, and G is the smaller number of two ways.
    cases : bool, default False
        Whether `sample_weight` counts cases: a row of weight two is two rows. Otherwise weights are
        normalised to sum to the number of units where their scale matters.
    working_variance : array_like, `[units]`, optional
        The variances of the units, up to a factor, under which "CR2" is unbiased; equal ones by
        default. With `1 / sample_weight` the weights are those of precision.
    strategy : AbstractRefit, default `Exact(1e-5)`
        The strategy of the jackknife's refits. `Exact(tol)` and `Certified(tol)` leave each refit
        within `tol` of its own move, so that standard errors are within about that share of
        themselves; `Exact(1e-12)` goes to the floor of float64.

    Returns
    -------
    Covariance
        The covariance, `[params, params]`, a DataFrame with `standard_errors`, their `errors`,
        `dof`, and `summary()`. A row of weight two counts as one unit (as statsmodels'
        `var_weights`) without `cases`, and a row of weight zero as none, except for "JK1" and
        "JKn", where it belongs to the design.

    Raises
    ------
    ValueError
        If the data do not determine the parameters, the arguments do not go together, units that
        depend on one another are taken for independent, or no refit determines the parameters.
    TypeError
        If units have no gradients that add up to the fit's, as the steps of one hidden chain, or
        "CR2" is asked of another model than a GLM of one convex loss without a penalty.

    Warns
    -----
    UserWarning
        If there are fewer than 20 groups for "cluster", a refit does not determine every parameter,
        or the covariance of two ways has a negative eigenvalue.

    See Also
    --------
    replicates : The covariance by replicate weights of a survey.
    functional : The jackknife of a function of the parameters.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(
    ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0, 2.0]), "squared")
    ... )
    >>> lo.covariance(fit, "HC1").shape
    (2, 2)
    >>> np.sqrt(np.diag(lo.covariance(fit, "nonrobust"))).round(3)
    array([0.231, 0.566])
    >>> lo.covariance(fit, "jackknife").standard_errors.round(3).tolist()
    [0.31, 0.403]
    """
    strategy = strategy_of("covariance", strategy, DEFAULT)
    column = reader_for("covariance", fit).column
    if fit.quadratic.damping:
        raise ValueError(
            f"covariance: the fit is damped by {fit.quadratic.damping:g}, and standard errors need the Hessian itself; fit to the "
            "end, lo.fit(objective, theta0=theta)."
        )
    if isinstance(groups, list | tuple) and [*map(type, groups)] == [str, str]:
        groups = pd.DataFrame({name: column("groups", name) for name in groups})
    groups = column("groups", groups)
    strata = column("strata", strata)
    working_variance = column("working_variance", working_variance)
    options = Options(
        groups, strata, maxlags, working_variance, use_correction, small_sample, cases, strategy
    )
    without("covariance", fit.objective)
    host: Any = fit.host_errors
    if kind is None and groups is not None and getattr(host, "groups", None) is None:
        kind = "cluster"
    if kind is None and host is not None and not cases:
        kind = host.cov_type
        if kind == "expected":
            kind = None
        inherited = "groups", "maxlags", "use_correction"
        names = [name for name in inherited if getattr(options, name) is None]
        options = replace(options, host=host, **{name: getattr(host, name) for name in names})
    result = _of_kind(fit, _usual_type(fit) if kind is None else kind, options)
    usual = working_variance is None and use_correction in (None, True)
    one_way = options.groups is not None and np.ndim(options.groups) == 1
    if one_way and usual and not (cases or small_sample):
        result.tests = partial(_few_clusters, fit, options.groups)
    return result


def _few_clusters(fit, groups, num_resamples, rng):
    """Tabulate the tests of each coefficient over few clusters."""
    tables = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* are fewer than ")  # the table is of few clusters
        for name, kind in {"CRV1": "cluster", "CRV3": "CRV3", "CR2": "CR2"}.items():
            result = covariance(fit, kind, groups=groups)
            tables[name] = result.summary()[["std err", "t", "P>|t|"]].assign(df=result.dof)
    label, count = _labels(fit, groups)
    tests = bootstrap_tests(with_columns(fit), label, tables[name].index, num_resamples, rng)
    table = pd.concat([pd.concat(tables), tests]).swaplevel()
    table = HeadedTable(table.sort_index(level=0, sort_remaining=False))
    bootstrap = "scores of clusters"
    if _is_least_squares(fit):
        bootstrap = "wild, of clusters"
    table.heading = [("clusters", f"{count}"), ("bootstrap", bootstrap)]
    return table


@record
class Options:
    """The arguments of `covariance` beside the fit and the type.

    `host` is what a host prints, where that is computed.
    """

    groups: Any
    strata: Any
    maxlags: Any
    working_variance: Any
    use_correction: Any
    small_sample: Any
    cases: Any
    strategy: AbstractRefit
    host: HostErrors | None = None

    def dof(self, usual: Any) -> Any:
        """Return the host's degrees of freedom, or the usual ones."""
        return usual if self.host is None else self.host.dof

    def notes(self, fit: Fit, kind: str, units: UnitWeights, **lines: str) -> Texts:
        """Return lines of the table's head."""
        penalty = getattr(fit.objective, "penalty", None)
        if penalty is None or isinstance(penalty, Zero):
            bias = ""
        else:
            bias = f"{type(getattr(penalty, 'penalty', penalty)).__name__}: standard errors do not count its bias"
        by_host = ", as the host has it" * (self.host is not None)
        meaning = units.meaning
        if self.host is not None and meaning:
            meaning = "as the host counts them"
        return (
            {"standard errors": f"{kind}: {WORDS.get(kind, 'jackknife')}{by_host}"}
            | lines
            | {"weights": meaning, "penalty": bias}
        )


def _usual_type(fit: Fit) -> str:
    """Return the type of standard errors that is usual for a model.

    That of its likelihood if it has one and no penalty.
    """
    model: Any = fit.objective
    if (
        not isinstance(getattr(model, "penalty", Zero()), Zero)
        or getattr(model, "class_code", None) is not None
    ):
        return "HC0"
    if not isinstance(model, AbstractRegression):
        from ..models.latent.mixed import Mixed

        # a chain or a field has no independent units to be summed over
        is_one_likelihood = model.units.serial is not False and model.units.score in LIKELIHOODS
        if isinstance(model, Cox | Mixed | AbsorbedGLM) or is_one_likelihood:
            return "nonrobust"
        return "HC0"
    if _has_expected_information(fit):
        if np.allclose(_expected_hessian(fit), fit.hessian, rtol=CANONICAL, atol=0):
            return "nonrobust"
        return "expected"
    if model.scale in LIKELIHOODS:
        return "nonrobust"
    return "HC0"


def _has_expected_information(fit: Fit) -> bool:
    """Tell whether the loss is a log likelihood, or quasi-likelihood, of one linear predictor, and
    H is formed.
    """
    model: Any = fit.objective
    is_one = isinstance(model, GLM) and model.outputs == 1 and fit.quadratic.factor is not None
    return is_one and type(model.loss_function).variance is not AbstractLoss.variance


def _expected_hessian(fit: Fit) -> Matrix:
    """Return the expectation of H.

    ℓ″ of a log likelihood is linear in y, so that it is H at y = μ.
    """
    expected: Any = copy.copy(fit.objective)
    mean, _ = mean_and_variance(fit, fit.vector[None], np.arange(expected.num_units)[None])
    vars(expected)["y"] = mean[0]
    return function(expected, fit.theta).hessian(fit.vector)


def _of_kind(fit: Fit, cov_type: str, options: Options) -> Covariance:
    """Compute the covariance of one type."""
    kind = _check_kind(fit, cov_type, options)
    counts_cases = options.cases or (options.host is not None and options.host.cases)
    if not isinstance(counts_cases, bool | np.bool_):
        raise TypeError(
            f"covariance: cases is True if sample_weight counts cases, else False; got {counts_cases!r}."
        )
    units = unit_weights(
        fit.objective,
        bool(counts_cases) and getattr(fit.objective, "sample_weight", None) is not None,
    )
    table = pandas_of("covariance", "groups", options.groups)
    if table is not None and np.ndim(table) == 2 and np.shape(table)[1] == 1:
        if isinstance(table, pd.DataFrame):
            table = table.iloc[:, 0]
        else:
            table = np.asarray(table)[:, 0]
    if table is not None and np.ndim(table) > 1:
        return _of_two_ways(fit, kind, table, options, units)
    if kind in JACKKNIVES:
        return _leave_each_out(fit, kind, table, options, units)
    parameters = name_parameters(fit)
    rank = fit.rank
    number = units.rows.sum()
    sizes = np.where(units.weigh, units.rows, 1.0)
    dof = options.dof(number - rank if _is_least_squares(fit) and number > rank else None)
    if kind in ("nonrobust", "expected"):
        information = None
        if kind != "nonrobust":
            information = np.linalg.inv(
                fit.quadratic.root @ _expected_hessian(fit) @ fit.quadratic.root.T
            )
        value = _scale(fit, options, units) * _sandwich(
            inverse_root(fit), parameters.slope, information
        )
        return covariance_of(
            fit, parameters, value, kind, dof, notes=options.notes(fit, kind, units)
        )
    if kind == "CR2":
        label, count = _labels(fit, table)
        value, degrees_of_freedom = bias_reduced(with_columns(fit), label, options.working_variance)
        notes = options.notes(fit, kind, units, clusters=f"{count}")
        returned = slice(fit.num_params)
        value = value[returned, returned]
        return covariance_of(
            fit, parameters, value, kind, degrees_of_freedom[returned], notes=notes
        )
    _refuse(fit, kind)
    # a sum of squares over cases
    z = fit.quadratic.influence / np.sqrt(sizes)[:, None]
    factor = 1.0
    lines = Texts()
    if kind in ("HC2", "HC3"):
        objective = fit.objective
        if (
            not isinstance(objective, AbstractLinearPredictor | AbsorbedGLM)
            or objective.outputs > 1
        ):
            raise TypeError(
                f"covariance: HC2 and HC3 need one linear predictor; got {kind_of(objective)}. Use 'HC1'."
            )
        room = 1 - hat_diagonal(fit) / sizes
        if (room <= 1e-10).any():
            raise ValueError(
                f"covariance: unit {np.argmin(room)} has leverage one, which HC2 and HC3 divide by; use 'HC1'."
            )
        z /= np.sqrt(room)[:, None] ** (1 if kind == "HC2" else 2)
    if kind == "cluster":
        label, count = _labels(fit, table)
        if count < MIN_BLOCKS:
            warn(
                f"covariance: {count} groups are fewer than {MIN_BLOCKS}: standard errors of 'cluster' over so few are too "
                "small. 'CRV3', for every model, and 'CR2', for GLMs, are larger; .few_clusters() has their tests, and bootstraps."
            )
        z = fit.quadratic.influence
        dof = options.dof(count - 1)
        z = np.stack([np.bincount(label, column) for column in z.T], 1)
        factor, lines["small sample"] = _cluster_factor(fit, kind, options, [label], units)
        lines["clusters"] = f"{count}"
    elif kind == "HC1" or (kind == "HAC" and options.use_correction):
        factor = number / _residual_degrees(number, rank)
    meat = z.T @ z
    maxlags = options.maxlags or 0
    for lag in range(1, maxlags + 1):
        product = z[lag:].T @ z[:-lag]
        meat += (1 - lag / (maxlags + 1)) * (product + product.T)
    if kind == "HAC":
        dof = options.dof(None)
        lines["lags"] = f"{maxlags}"
    value = _sandwich(inverse_root(fit), parameters.slope, factor * meat)
    return covariance_of(
        fit, parameters, value, kind, dof, notes=options.notes(fit, kind, units, **lines)
    )


def _is_least_squares(fit: Fit) -> bool:
    return isinstance(getattr(fit.objective, "loss_function", None), Squared)


def _scale(fit: Fit, options: Options, units: UnitWeights) -> float:
    """Return the factor of the inverse information.

    The host's, φ̂, or that of normalised weights where φ is one.
    """
    if options.host is not None:
        return options.host.scale
    if not has_dispersion(fit):
        return units.scale
    ratio = 1.0
    if options.cases:
        ratio = (units.weigh.sum() - fit.rank) / (units.rows.sum() - fit.rank)
    return float(dispersion(fit)[0]) * ratio


def _cluster_factor(
    fit: Fit, kind: str, options: Options, labels: list[UnitNumbers], units: UnitWeights
) -> tuple[float, str]:
    """Return the factor of a sum over clusters, and its description.

    Of two ways the smaller number of clusters counts.
    """
    program = options.small_sample
    G = min(len(np.unique(label[units.weigh])) for label in labels)
    if program is None and options.use_correction in (None, True):
        program = "statsmodels"
    if program is None:
        return 1.0, ""
    if program in ("stata", "sandwich") and kind != "cluster":
        return (G - 1) / G, f"(G − 1)/G, as {program}"
    if program in ("stata", "sandwich") and not _is_least_squares(fit):
        return G / (G - 1), f"G/(G − 1), as {program}"
    nested = 0
    if program in ("fixest", "pyfixest"):
        nested = _columns_within(fit, labels)
    N = units.rows.sum()
    K = fit.rank - nested
    text = f"G/(G − 1) · (N − 1)/(N − K), N = {N:.10g}, K = {K}, as {program}"
    text += f"; {nested} columns of factors within clusters do not count" * (nested > 0)
    return G / (G - 1) * (N - 1) / _residual_degrees(N, K), text


def _columns_within(fit: Fit, labels: list[UnitNumbers]) -> int:
    """Count the columns, and absorbed effects, of factors each of whose levels lies within one
    cluster.

    Columns of a formula belong together by their names; others, as of `pd.get_dummies`, if they
    divide the rows.
    """
    # on its columns as they were given
    model: Any = getattr(fit.objective, "original", fit.objective)
    present = np.flatnonzero(unit_weights(fit.objective).weigh)
    labels = [label[present] for label in labels]
    divisions = ArrayList()
    if isinstance(model, AbsorbedGLM):
        divisions += [*model.level[:, present]]
        model = model.base
    if not isinstance(model, AbstractRegression) or model.classes:
        return 0
    if isinstance(model.design, NumpyArray):
        rows = model.design[present]
    else:
        rows = cast(Any, fit.quadratic.predictors).design.rows(present)
    factors = dict[str, list[int]]()
    for place, name in enumerate(model.names):
        if ((rows[:, place] == 0) | (rows[:, place] == 1)).all():
            match = FACTOR_LEVEL.fullmatch(name)
            if match is not None or any(
                len(np.unique(label[rows[:, place] == 1])) == 1 for label in labels
            ):
                factors.setdefault("" if match is None else match[1], []).append(place)
    for places in factors.values():
        columns = rows[:, places]
        if (columns.sum(1) <= 1).all():
            # 0 is the level without a column
            divisions.append((columns @ np.arange(1, len(places) + 1)).astype(int))
    count = 0
    for level in divisions:
        levels = len(np.unique(level))
        is_nested = any(
            len(np.unique(np.stack([level, label]), axis=1).T) == levels for label in labels
        )
        count += (levels - 1) * is_nested
    return count


def _leave_each_out(
    fit: Fit, kind: str, groups, options: Options, units: UnitWeights
) -> Covariance:
    """Leave out every unit or every group."""
    objective = fit.objective
    jackknife = JACKKNIVES[kind]
    strategy = options.strategy
    if groups is None and objective.units.serial is not False:
        why = "are not known to be independent"
        if objective.units.serial:
            why = "depend on their neighbours"
        raise ValueError(
            f"covariance: the units of this {kind_of(objective)} {why}; {kind} without groups takes them for independent. Give "
            "groups= of long blocks."
        )
    notes = options.notes(fit, kind, units)
    if kind in ("JK1", "JKn"):
        unit_labels = np.arange(objective.num_units)
        groups, strata = (
            _by_fit(objective, name, labels)
            for name, labels in (("groups", groups), ("strata", options.strata))
        )
        if kind == "JK1":
            weights = jk1(unit_labels if groups is None else groups)
        else:
            weights = jkn(strata, groups)
        refits, scale, rscales = refit_weights("covariance", fit, weights, None, None, strategy)
        return refits.covariance(kind, scale, rscales, True, degrees(weights.to_numpy()), notes)
    plan = _plan_of(fit, groups)
    count = len(plan)
    scale = 1.0
    text = "1"
    if jackknife.shrinks:
        scale = (count - 1) / count
        text = "(G − 1)/G"
    if options.small_sample is not None:
        scale, text = _cluster_factor(fit, kind, options, [_labels(fit, groups)[0]], units)
    middle = "the fit"
    if jackknife.about_mean:
        middle = "the mean of the refits"
    notes["standard errors"] += f" about {middle}"
    notes |= {"small sample": text, "clusters": "none" if groups is None else f"{count}"}
    refits = refit_plan("covariance", fit, plan, strategy)
    return refits.covariance(kind, scale, np.ones(count), jackknife.about_mean, count - 1, notes)


def _by_fit(objective: AbstractObjective, name: str, labels):
    """Put labels of units in the order of the fit, as arrays are.

    Longer ones, of units that it lacks, stay as they are.
    """
    if labels is None or len(labels) != objective.num_units:
        return labels
    column = UnitColumn.read("covariance", name, labels, len(labels))
    return column.in_order("covariance", objective.units.names)


def _plan_of(fit: Fit, groups) -> Plan:
    """Return the plan that leaves out every unit or every group that has a weight."""
    objective = fit.objective
    plan = leave_one_out()
    if groups is not None:
        _, levels = codes("covariance", "groups", groups)
        # what the fit lacks leaves by its label
        longer = index_of(groups) is not None and len(groups) > objective.num_units
        if not (longer or len(groups) in (objective.num_units, np.size(objective.units.rows))):  # type: ignore[arg-type]
            raise ValueError(
                f"covariance: groups must be one label a unit, {objective.num_units}; got {len(groups)}."
            )
        if len(levels) < 2:
            raise ValueError("covariance: at least two groups are needed; all labels are equal.")
        plan = plan_of_groups(groups)
    plan = reader_for("covariance", fit).match(plan)
    refits = np.flatnonzero(
        np.bincount(plan.refit, unit_weights(objective).weigh[plan.index], len(plan)) > 0
    )
    if groups is not None and len(refits) < 2:
        raise ValueError("covariance: at least two groups are needed; one alone has a weight.")
    if len(refits) == len(plan):
        return plan
    return plan.some(refits)


def _of_two_ways(fit: Fit, kind: str, groups, options: Options, units: UnitWeights) -> Covariance:
    """Compute V₁ + V₂ − V₁₂ for groups of two columns."""
    if kind not in TWO_WAYS or np.ndim(groups) != 2 or np.shape(groups)[1] != 2:
        raise ValueError(
            "covariance: groups must be one column of labels, or two for clusters of two ways, of "
            f"{', '.join(map(repr, TWO_WAYS))}; got shape {np.shape(groups)} for {kind!r}."
        )
    common = options.small_sample in ("fixest", "pyfixest")  # one factor for all three
    if common and kind != "cluster":
        raise ValueError(
            f"covariance: pyfixest has no {kind} of two ways; give kind='cluster', or no small_sample."
        )
    ways = pd.DataFrame(groups)
    columns = [ways.iloc[:, k] for k in (0, 1)]
    (first, _), (second, levels) = (codes("covariance", "groups", column) for column in columns)
    raw = options
    if common:
        raw = replace(options, small_sample=None, use_correction=False)
    covariance_by = lambda labels: _of_kind(fit, kind, replace(raw, groups=labels))
    by_first, by_second, by_both = map(
        covariance_by, (*columns, pd.Series(first * len(levels) + second, ways.index))
    )
    factor = 1.0
    text = dict(by_first.heading).get("small sample", "")
    if common:
        factor, text = _cluster_factor(
            fit, kind, options, [_labels(fit, column)[0] for column in columns], units
        )
    value = factor * (by_first.to_numpy() + by_second.to_numpy() - by_both.to_numpy())
    least = 0.0
    if np.isfinite(value).all():
        least = np.linalg.eigvalsh(value)[0]
    if least < -1e-12 * np.abs(value).max():
        warn(
            "covariance: V₁ + V₂ − V₁₂ has a negative eigenvalue, as it can where the ways overlap or have few groups; "
            "a standard error is NaN where its square is negative. Take the larger of the covariances of one way."
        )
    errors = None
    flagged = None
    parts = cast(Any, (by_first, by_second, by_both))
    if kind in JACKKNIVES:  # |Δ(se²)| ≤ 2 se ε + ε² of each part
        variance_errors = np.sum(
            [2 * part.standard_errors * part.errors + part.errors**2 for part in parts], 0
        )
        variance = np.diag(value)
        se = np.sqrt(np.maximum(variance, 0))
        errors = np.maximum(
            np.sqrt(np.maximum(variance + variance_errors, 0)) - se,
            se - np.sqrt(np.maximum(variance - variance_errors, 0)),
        )
        flagged = pd.concat([part.flagged for part in parts])
    usual = None
    if by_first.dof is not None:
        usual = np.minimum(cast(Any, by_first.dof), cast(Any, by_second.dof))
    dof = options.dof(usual)
    proved = all(part.proved for part in parts)
    clusters = [dict(part.heading)["clusters"] for part in (by_first, by_second)]
    clusters_note = f"{' and '.join(clusters)} of two ways, V₁ + V₂ − V₁₂"
    notes = dict(by_first.heading) | {"small sample": text, "clusters": clusters_note}
    return covariance_of(
        fit,
        name_parameters(fit),
        value,
        kind,
        dof,
        errors,
        proved=proved,
        flagged=flagged,
        notes=notes,
    )


def _labels(fit: Fit, groups) -> tuple[UnitNumbers, int]:
    """Number the groups of the fit's units, and count those of a weight.

    Units of weight zero may have any number.
    """
    plan = _plan_of(fit, groups)
    label = np.zeros(fit.objective.num_units, int)
    label[plan.index] = plan.refit
    return label, len(plan)


def _sandwich(
    root: NumpyArray, slope: NumpyArray | None, meat: Float[NumpyArray, "rank rank"] | None = None
) -> NumpyArray:
    """Compute `rootᵀ meat root`, for natural parameters of a slope."""
    along = root if slope is None else root @ slope.T
    if meat is None:
        return along.T @ along
    return along.T @ meat @ along


def _check_kind(fit: Fit, cov_type: str, options: Options) -> str:
    """Return the kind of covariance, and raise ValueError if arguments do not go together."""
    kind = KINDS.get(str(cov_type).lower())
    maxlags = options.maxlags
    if kind is None:
        raise ValueError(
            f"covariance: kind must be one of {', '.join(map(repr, KINDS.values()))}; got {cov_type!r}"
            + (", which the host of this fit prints." if options.host is not None else ".")
        )
    if fit.quadratic.factor is None and kind not in JACKKNIVES:
        raise TypeError("covariance: needs a Hessian that is formed: fit with curvature='dense'.")
    if kind in ("nonrobust", "expected") and isinstance(fit.objective, DualGLM):
        raise TypeError(
            "covariance: needs the Hessian of the columns, more than rows: fit with curvature='dense'."
        )
    grouped, ungrouped = (
        [name for name, jackknife in JACKKNIVES.items() if jackknife.grouped is grouping]
        for grouping in (True, None)
    )
    required = {
        "groups": ["cluster", "CR2", *grouped],
        "strata": ["JKn"],
        "maxlags": ["HAC"],
        "working_variance": [],
    }
    allowed = {"groups": ungrouped, "working_variance": ["CR2"]}
    for name, kinds in required.items():
        permitted = kinds + allowed.get(name, [])
        value = getattr(options, name)
        if (value is None and kind in kinds) or (value is not None and kind not in permitted):
            choices = " or ".join(map(repr, permitted))
            raise ValueError(
                f"covariance: {name} goes with kind={choices}{', and that with it' if kinds else ''}; got kind={kind!r}."
            )
    _check_factor(kind, options)
    if options.cases and (
        kind in ("HAC", "CR2") or (kind in JACKKNIVES and options.groups is None)
    ):
        raise ValueError(
            f"covariance: cases=True is not for {kind}, which takes rows whole; give 'HC3', or groups= of clusters."
        )
    penalty = getattr(fit.objective, "penalty", None)
    if kind == "expected" and not (_has_expected_information(fit) and isinstance(penalty, Zero)):
        raise TypeError(
            "covariance: 'expected' is for a GLM of one linear predictor without a penalty whose loss states a variance; got "
            f"{kind_of(fit.objective)}. Use 'nonrobust'."
        )
    units = fit.objective.num_units
    if kind == "HAC":
        check_times("covariance", "the data", fit.objective.units.names)
    if maxlags is not None:
        check_count("covariance: maxlags", maxlags, 0, units - 1)
    if fit._of_rank:
        loose = (
            np.abs(fit.quadratic.null_space).max(0) > 1e-8 * np.abs(fit.quadratic.null_space).max()
        )
        names = fit.objective.parameters.names() or [
            f"parameter {k}" for k in range(fit.num_params)
        ]
        listed = np.array(names, object)[loose]
        raise ValueError(
            f"covariance: the data do not determine every parameter, among them {', '.join(map(repr, listed[:4]))}: they have "
            "no covariance. Drop columns that repeat others, or add a penalty such as lo.penalties.Ridge(1.0)."
        )
    return kind


def _check_factor(kind: str, options: Options) -> None:
    """Raise ValueError unless the factor is one that the kind may have."""
    correction = options.use_correction
    program = options.small_sample
    if correction is not None and not (
        isinstance(correction, bool | np.bool_) and kind in ("cluster", "HAC")
    ):
        raise ValueError(
            "covariance: use_correction is True or False, of kind='cluster' and 'HAC'; got "
            f"{correction!r}, kind={kind!r}. 'HC1' is 'HC0' corrected."
        )
    if program is None:
        return
    if program not in FACTORS:
        raise ValueError(
            f"covariance: small_sample must be one of {', '.join(map(repr, FACTORS))}; got {program!r}."
        )
    if correction is not None:
        raise ValueError(
            "covariance: give use_correction= or small_sample=, two ways to name one factor, not both."
        )
    if kind not in FACTORS[program]:
        takes = " or ".join(map(repr, FACTORS[program]))
        raise ValueError(
            f"covariance: small_sample={program!r} goes with kind={takes}; got {kind!r}. {NO_FACTOR}."
        )


def _refuse(fit: Fit, kind: str) -> None:
    """Raise if units depend on one another in a way that `kind` does not allow, or have no
    gradients of their own.
    """
    name = kind_of(fit.objective)
    serial = fit.objective.units.serial
    if serial is False:
        return
    ends = [
        function(fit.objective, fit.theta, np.full(fit.objective.num_units, w)).look(fit.vector)[1]
        for w in (0.0, 1.0)
    ]
    gradients = fit.quadratic.raw(fit.quadratic.influence)
    difference = np.abs(gradients.sum(0) - (ends[1] - ends[0])).max()
    if not difference <= AFFINE * np.abs(gradients).sum(0).max():
        raise TypeError(
            f"covariance: the units of this {name} have no gradients that add up to its own, as the steps of one chain, or the "
            "sites of one field, have none. Leave out whole sequences (drop='sequence'), or give kind='nonrobust'."
        )
    if kind not in ("cluster", "HAC"):
        why = "are not known to be independent (dependence='independent' says so)"
        if serial:
            why = "depend on their neighbours"
        raise ValueError(
            f"covariance: the units of this {name} {why}; {kind} takes them for independent. Use kind='HAC' with maxlags=, "
            "or 'cluster' with groups= of long blocks."
        )


def _residual_degrees(units: float, rank: int) -> float:
    if units <= rank:
        raise ValueError(
            f"covariance: {units:g} units and {rank} parameters leave no degree of freedom to correct by; use 'HC0', or "
            "use_correction=False."
        )
    return units - rank
