"""Fitted results of statsmodels as they are: the host's own objective, at the host's own θ̂.

The design is the host's, its constant an ordinary column: coefficients keep their names and order,
and there is no intercept beside them. Families whose scale statsmodels only reports (Gaussian,
gamma, inverse Gaussian, Tweedie) have losses of dispersion one: the scale does not change
coefficients. Frequency and variance weights, and numbers of trials, are weights of rows, and
leaving a row out removes it with all of them.

`fit_regularized(..., L1_wt=0)` averages the log likelihood over rows, so its penalty shrinks as
rows leave. Its results do not store the size of the penalty, so give it by `alpha=`.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse

from ... import GLM, Cox, Fit, Mixed, Regression, fit, losses, penalties
from ...developer import (
    AbstractObjective,
    EffectBlock,
    HostErrors,
    NamedValues,
    Names,
    NumpyArray,
    TwoArrays,
    UnaryFunction,
    is_default_index,
    join_remarks,
    stateful_remark,
)
from ._count_losses import HostLoss, conditional, hurdle, pad_groups, zero_inflated
from ._fit_at_host import add_remark, fit_at_host

LINK_READERS: dict[str, UnaryFunction] = {  # links by name
    "Identity": lambda link: "identity",
    "Log": lambda link: "log",
    "InversePower": lambda link: "inverse",
    "Sqrt": lambda link: "sqrt",
    "InverseSquared": lambda link: "inverse_squared",
    "Power": lambda link: (
        {0.0: "log", 1.0: "identity"}.get(float(link.power))
        or losses.links.Power(float(link.power))
    ),
    "CLogLog": lambda link: "cloglog",
    "NegativeBinomial": lambda link: losses.links.NegativeBinomialLink(link.alpha),
}
BINOMIAL = {
    "Logit": "logit",
    "Probit": "probit",
    "CLogLog": "cloglog",
    "LogLog": "loglog",
    "Cauchy": "cauchit",
    "Log": "log",
    "LogC": "log_complement",
    "Identity": "identity",
}
FAMILIES: dict[str, Callable[[Any, Any], losses.AbstractLoss]] = {
    "Gaussian": lambda family, link: losses.Squared(link),
    "Poisson": lambda family, link: losses.Poisson(link),
    "Gamma": lambda family, link: losses.Gamma(1.0, link),
    "InverseGaussian": lambda family, link: losses.InverseGaussian(1.0, link),
    "NegativeBinomial": lambda family, link: losses.NegativeBinomial(family.alpha, link),
    "Tweedie": lambda family, link: losses.Tweedie(family.var_power, 1.0, link),
}
REFUSED = {
    "QuantReg": "its loss has kinks; lo.fit(lo.GLM(X, y, lo.losses.Quantile(q, width=0.001))) rounds them",
    "RLM": "its scale minimises nothing; lo.fit(lo.Regression(X, y, lo.losses.HuberScale())) is Huber's own regression",
    "GLSAR": "errors that follow one another tie a row to those left in; take OLS, and leave out lo.blocks with a buffer",
}
MIXED_GLMS = {"BinomialBayesMixedGLM": "binomial", "PoissonBayesMixedGLM": "poisson"}
SCALE_FAMILIES = "Gaussian", "Gamma", "InverseGaussian", "Tweedie"
ReadGLM = tuple[GLM, dict]  # an objective, and its parameters


def from_statsmodels(results: Any, *, alpha: ArrayLike | None = None, drop: str = "row") -> Fit:
    """Take results of statsmodels, on the data that they hold.

    They may be results of OLS, WLS, GLS (`sigma` of one variance a row), GLM (every family;
    identity, log, power, and all binomial links except a `CDFLink` of your own; offset, exposure,
    freq_weights, var_weights, formulas), of the discrete models Logit, Probit, Poisson and
    NegativeBinomial (nb2, nb1, geometric; its dispersion is a parameter), of MNLogit (whose
    coefficients are differences from the first class's), OrderedModel (logit), BetaModel (logit and
    a constant precision) and PHReg; of GLMGam fitted by "pirls", with its basis and penalties as
    they are; of the count models ZeroInflatedPoisson, ZeroInflatedNegativeBinomialP (their
    `exog_infl` with them) and HurdleCountModel, and of ConditionalLogit, whose units are its
    groups, all of which need JAX; and of `fit_regularized(alpha=…, L1_wt=0)`. GEE is taken with an
    independence working correlation: its coefficients are those of the GLM, and `lo.groups` leaves
    out its clusters. A MixedLM is taken as it was fitted, by REML or by maximum likelihood. Of
    BinomialBayesMixedGLM and PoissonBayesMixedGLM, results or model, the data are fitted by maximum
    likelihood (`lo.Mixed`).

    If its solver stopped before its minimum, as its results state, the fit is at the minimum, and a
    warning says how far that is.

    Parameters
    ----------
    results : statsmodels results
        Results of one of these models.
    alpha : array-like, optional
        Penalty that was given to `fit_regularized`.
    drop : str, default: "row"
        Unit of a mixed model that is left out: "row", or its grouping, "group" for MixedLM, a
        component's name for the others.

    Returns
    -------
    Fit
        The fit at the results' parameters.

    Raises
    ------
    TypeError
        On other results.
    ValueError
        If the parameters are not stationary, as those of an l1 penalty.

    Examples
    --------
    >>> import numpy as np
    >>> import statsmodels.api as sm
    >>> import leaveout as lo
    >>> X, y = sm.add_constant(np.arange(6.0)), np.array([1.0, 2.0, 2.0, 4.0, 3.0, 6.0])
    >>> fit = lo.from_statsmodels(sm.OLS(y, X).fit())
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> round(cv.mean, 3)
    0.65
    """
    model = results
    if type(results).__name__ not in MIXED_GLMS:
        model = getattr(results, "model", None)
    kind = type(model).__name__
    if kind in (*MIXED_GLMS, "MixedLM") and type(model).__module__.startswith("statsmodels."):
        mixed = _mixed_linear if kind == "MixedLM" else _mixed_bayesian
        host_fit = mixed(results, drop)
        _give_table(host_fit.objective, getattr(results, "model", results))
        return host_fit
    if drop != "row":
        raise ValueError(
            "from_statsmodels: drop= is for mixed models; rows are the units of all others."
        )
    if model is None:
        raise TypeError(
            f"from_statsmodels: give the results of a fitted model, as sm.OLS(y, X).fit() returns; got "
            f"{type(results).__name__}."
        )
    if kind in REFUSED:
        raise TypeError(f"from_statsmodels: {kind} is not supported: {REFUSED[kind]}.")
    if kind not in MODELS or not type(model).__module__.startswith("statsmodels."):
        raise TypeError(
            f"from_statsmodels: {type(results).__name__} of {kind} is not supported. Supported are the results of "
            f"{', '.join((*MODELS, 'MixedLM', *MIXED_GLMS))}."
        )
    if model.endog is None or model.exog is None:
        raise ValueError(
            "from_statsmodels: these results hold no data, as remove_data() or save(..., remove_data=True) leaves them: take "
            "them before, or fit the model again."
        )
    if getattr(results, "k_constr", 0):
        raise TypeError(
            "from_statsmodels: constraints of fit_constrained are not read; fit without the columns that they fix."
        )
    inner = type(getattr(results, "_results", results)).__name__
    regularized = inner.startswith("Regularized")
    if inner.startswith("L1"):
        raise TypeError(
            f"from_statsmodels: {inner} has an l1 penalty, which is not smooth, and is not supported."
        )
    if regularized and alpha is None:
        raise ValueError(
            "from_statsmodels: regularized results do not hold their penalty: give alpha=, as to fit_regularized(..., L1_wt=0)."
        )
    if alpha is not None and not (regularized and kind in ("OLS", "WLS", "GLM")):
        raise ValueError(
            "from_statsmodels: alpha is for results of fit_regularized of OLS, WLS or GLM."
        )
    options = {} if alpha is None else {"alpha": alpha}
    objective, parameters = MODELS[kind](model, np.asarray(results.params, float), **options)
    if isinstance(objective, GLM | Regression) and hasattr(model, "formula"):
        labels = Names(name=model.endog_names)
        objective = objective.reading(functools.partial(_rows_to_predict, results), labels)
    _give_table(objective, model)
    way = "raise maxiter, or centre and scale the columns"
    solver_report = getattr(results, "mle_retvals", None) or {}

    def stopped() -> bool:
        """Tell whether the solver stopped early, or cut singular values of columns as given."""
        cut = kind in ("OLS", "WLS", "GLM") and alpha is None
        return cut or not np.all(
            solver_report.get("converged", getattr(results, "converged", True))
        )

    host_fit = fit_at_host(
        "from_statsmodels",
        objective,
        parameters,
        stopped,
        way,
        None if regularized else _errors(results),
    )
    return add_remark(host_fit, stateful_remark(str(getattr(model, "formula", ""))))


def _give_table(objective, model) -> None:
    """Give an objective the table of the model's formula, whose columns calls may name."""
    table = getattr(getattr(model, "data", None), "frame", None)
    if table is not None:
        rows = np.delete(np.arange(len(table)), _dropped_rows(model))
        objective.labels.table = pd.DataFrame(table).iloc[rows]


def _rows_to_predict(results, X) -> NumpyArray:
    """Read rows to predict by the formula, as the results' own `predict` does."""
    return results._transform_predict_exog(X)[0]


def _errors(results) -> HostErrors:
    """Return the kind of standard errors that results print."""
    model = results.model
    covariance_options = dict(getattr(results, "cov_kwds", None) or {})
    kind = str(getattr(results, "cov_type", "nonrobust"))
    name = type(model).__name__
    dof = None
    is_glm = name in ("GLM", "GLMGam", "GEE")
    is_linear = name in ("OLS", "WLS", "GLS")
    if getattr(results, "use_t", False):
        dof = getattr(results, "df_resid_inference", None) or results.df_resid
    if kind.startswith("HC") and not is_linear:
        kind = "HC0"  # statsmodels makes no difference between them
    groups = getattr(model, "groups", None)
    if (name == "PHReg" and groups is not None) or (name == "GEE" and kind == "robust"):
        return HostErrors("cluster", groups=groups, use_correction=False)
    if kind in ("nonrobust", "naive"):
        by_weights = name == "GLM" and getattr(results, "method", "") == "IRLS"
        return HostErrors(
            "expected" if by_weights else "nonrobust",
            float(results.scale) if is_glm or is_linear else 1.0,
            dof,
        )
    if kind == "fixed scale":
        return HostErrors("nonrobust", float(covariance_options["scale"]), dof)
    counts_cases = bool(np.ptp(getattr(model, "freq_weights", 1.0)) > 0)
    if kind == "HAC" and (
        counts_cases
        or getattr(covariance_options.get("weights_func"), "__name__", "") != "weights_bartlett"
    ):
        # which covariance refuses by this name
        kind = "HAC of another kind than Newey's and West's"
    options = {
        option: covariance_options[option]
        for option in ("groups", "maxlags", "use_correction")
        if option in covariance_options
    }
    return HostErrors(kind, dof=dof, cases=counts_cases and kind == "HC0", **options)


def _frame(model: Any):
    """Return the design as a frame with its names."""
    exog = np.asarray(model.exog, float)
    names = list(getattr(model, "exog_names", []))[: exog.shape[1]]
    rows = getattr(getattr(model, "data", None), "row_labels", None)
    index = pd.Index(rows) if rows is not None and len(rows) == len(exog) else None
    dropped = _dropped_rows(model)
    # such an index renumbers the remaining rows
    if dropped and (index is None or is_default_index(index)):
        index = pd.Index(np.delete(np.arange(len(exog) + len(dropped)), dropped))
    if len(set(names)) == exog.shape[1]:
        return pd.DataFrame(exog, index=index, columns=names)
    return exog


def _dropped_rows(model) -> list[int]:
    """Find the rows that statsmodels dropped because of missing values."""
    return list(getattr(getattr(model, "data", None), "missing_row_idx", None) or ())


def _remark(model, *remarks: str) -> str:
    count = len(_dropped_rows(model))
    first = (
        f"{count} rows with missing values are not among the units: statsmodels dropped them"
        if count
        else ""
    )
    return join_remarks(first, *remarks)


def _weights(model, weight: ArrayLike | None) -> NumpyArray | None:
    if weight is None or np.all(np.equal(weight, 1)):
        return None
    return np.broadcast_to(np.asarray(weight, float), len(model.endog))


def _glm(
    model,
    loss: str | losses.AbstractLoss,
    coef: NumpyArray,
    penalty: penalties.AbstractPenalty | None = None,
    remark: str = "",
    weight: ArrayLike | None = None,
    *offsets: str,
) -> ReadGLM:
    objective = _of_rows(
        GLM,
        model,
        loss,
        remark,
        penalty=penalty,
        sample_weight=_weights(model, weight),
        intercept=False,
        offset=_shift(model, *offsets),
    )
    return objective, {"coef": coef}


def _of_rows(kind: Any, model, loss: str | losses.AbstractLoss, remark: str = "", **options) -> Any:
    """Build a model of the rows and the response of a host."""
    return kind(
        _frame(model),
        np.asarray(model.endog, float),
        loss,
        remark=_remark(model, remark),
        **options,
    )


def _linear(model, coef: NumpyArray, alpha: ArrayLike | None = None) -> ReadGLM:
    average = penalties.per_row if type(model).__name__ == "OLS" else penalties.per_weight
    penalty = None if alpha is None else average(penalties.Ridge(alpha))
    return _least_squares(model, coef, model.weights, penalty)


def _least_squares(
    model,
    coef: NumpyArray,
    weights: ArrayLike,
    penalty: penalties.AbstractPenalty | None = None,
) -> ReadGLM:
    objective, parameters = _glm(model, "squared", coef, penalty, weight=weights)
    vars(objective)["least_norm"] = True  # statsmodels uses the pseudoinverse
    return objective, parameters


def _generalised_squares(model, coef: NumpyArray) -> ReadGLM:
    """Read GLS whose errors are independent: its variances by row are weights."""
    if np.ndim(model.cholsigmainv) > 1:
        raise TypeError(
            "from_statsmodels: GLS is supported with a sigma of one variance a row; errors that correlate tie a row to those "
            "left in: give what correlates to lo.Mixed, lo.GaussianProcess or lo.GaussianField."
        )
    scale = 1.0 if model.cholsigmainv is None else model.cholsigmainv
    return _least_squares(model, coef, np.square(scale))


def _estimating_equations(model, coef: NumpyArray) -> ReadGLM:
    """Read GEE under independence, whose equations are those of the GLM."""
    structure = type(model.cov_struct).__name__
    if structure != "Independence" or model.constraint is not None:
        raise TypeError(
            f"from_statsmodels: GEE is supported without constraints under Independence; got {structure}, whose equations are "
            "the gradient of no loss: take Independence, or lo.Mixed with an effect of the cluster."
        )
    remark = "units are rows: lo.groups leaves out clusters"
    return _glm(model, _family(model.family), coef, None, remark, model.weights)


def _read_glm(model, coef: NumpyArray, alpha: ArrayLike | None = None) -> ReadGLM:
    family = type(model.family).__name__
    if alpha is not None and family in SCALE_FAMILIES:
        raise TypeError(
            f"from_statsmodels: GLM.fit_regularized of the {family} family re-estimates its scale on the way, so its "
            "parameters minimise nothing that can be stated; use OLS.fit_regularized, or a penalty of lo.GLM."
        )
    weight = model.iweights * np.asarray(model.n_trials)
    remark = (
        "the loss is that of dispersion 1, whatever scale statsmodels reports"
        if family in SCALE_FAMILIES
        else ""
    )
    penalty = None if alpha is None else penalties.per_row(penalties.Ridge(alpha))
    return _glm(
        model,
        _family(model.family),
        coef,
        penalty,
        remark,
        weight,
        "_offset_exposure",
    )


def _family(family) -> losses.AbstractLoss:
    name = type(family).__name__
    link = type(family.link)
    links = BINOMIAL if name == "Binomial" else LINK_READERS
    # old spellings in lower case subclass the classes of today; a CDFLink subclasses Logit, but is
    # not one
    link_name = next((c.__name__ for c in (link, link.__bases__[0]) if c.__name__ in links), None)
    if link.__name__ == "CDFLink" or link_name is None or name not in ("Binomial", *FAMILIES):
        raise TypeError(
            f"from_statsmodels: the {name} family with the link {link.__name__} is not supported."
        )
    if name == "Binomial":
        return losses.Binomial(BINOMIAL[link_name])
    return FAMILIES[name](family, LINK_READERS[link_name](family.link))


def _shift(model, *names: str) -> NumpyArray | None:
    """Add up offsets by name.

    Those of a discrete model are its offset and its exposure, which is logarithmic already.
    """
    n = len(model.endog)
    parts = [getattr(model, name, None) for name in names or ("offset", "exposure")]
    total = sum(
        (np.broadcast_to(np.asarray(part, float), n) for part in parts if part is not None),
        np.zeros(n),
    )
    return total if np.any(total) else None


def _discrete(model, coef: NumpyArray) -> ReadGLM:
    loss = {"Logit": "logistic", "Probit": "probit", "Poisson": "poisson"}[type(model).__name__]
    return _glm(model, loss, coef)


def _negative_binomial(model, params: NumpyArray) -> tuple[GLM | Regression, dict]:
    if model.loglike_method == "geometric":
        return _glm(model, losses.NegativeBinomial(1.0), params)
    loss = losses.NegativeBinomialDispersion(model.loglike_method == "nb1")
    objective = _of_rows(Regression, model, loss, intercept=False, offset=_shift(model))
    return objective, {"coef": params[:-1], "dispersion": params[-1]}


def _multinomial(model, params: NumpyArray) -> ReadGLM:
    # the coefficients of the first class are zero, as a common shift changes nothing
    coef = np.vstack([np.zeros(len(params)), params.T])
    return _glm(model, "multinomial", coef)


def _additive(model, coef: NumpyArray) -> ReadGLM:
    if any(
        np.any(np.asarray(getattr(model, name)) != 1)
        for name in ("freq_weights", "var_weights", "n_trials")
    ):
        raise TypeError(
            "from_statsmodels: GLMGam with weights or numbers of trials is not supported: its own fit ignores them."
        )
    remark = "the basis stays as it was made of all rows: its knots are not left out"
    # GLMGam's penalty is βᵀSβ, not half of it
    penalty = penalties.Quadratic(2.0 * model.penal.penalty_matrix())
    return _glm(model, _family(model.family), coef, penalty, remark, None, "_offset_exposure")


def _read_ordered_model(model, params: NumpyArray) -> tuple[Regression, dict]:
    from scipy import stats

    if model.distr is not stats.logistic:
        raise TypeError("from_statsmodels: OrderedModel is supported with distr='logit' only.")
    objective = _of_rows(Regression, model, "ordinal", offset=_shift(model))
    count = objective.num_features
    thresholds = np.cumsum(np.r_[params[count], np.exp(params[count + 1 :])])
    return objective, {"coef": params[:count], "thresholds": thresholds}


def _beta(model, params: NumpyArray) -> tuple[Regression, dict]:
    precision = np.asarray(model.exog_precision)
    links = [type(link).__name__ for link in (model.link, model.link_precision)]
    if links != ["Logit", "Log"] or precision.shape[1] != 1 or not (precision == 1).all():
        raise TypeError(
            "from_statsmodels: BetaModel is supported with a logit link and one constant precision only."
        )
    objective = _of_rows(Regression, model, "beta", intercept=False)
    return objective, {"coef": params[:-1], "precision": np.exp(params[-1])}


def _cox(model, params: NumpyArray) -> tuple[Cox, dict]:
    entry = getattr(model, "entry", None)
    if entry is not None:  # rows of PHReg are at risk at their entry too
        entry = np.nextafter(np.asarray(entry, float), -np.inf)
    # PHReg.exog is in the given order; its stratified copies are not
    objective = Cox(
        _frame(model),
        np.asarray(model.endog, float),
        np.asarray(model.status, float),
        ties=model.ties,
        strata=getattr(model, "strata", None),
        offset=getattr(model, "offset", None),
        entry=entry,
    )
    return objective, {"coef": params}


def _count_rows(model, **columns) -> NamedValues:
    rows = _frame(model)
    n = len(model.endog)
    y = np.asarray(model.endog, float)
    x = np.asarray(model.exog, float)
    return {"y": pd.Series(y, rows.index) if isinstance(rows, pd.DataFrame) else y, "x": x} | {
        name: np.broadcast_to(np.asarray(value, float), (n, *np.shape(value)[1:]))
        for name, value in columns.items()
    }


def _zero_inflated(model, params: NumpyArray) -> tuple[AbstractObjective, dict]:
    negative = type(model).__name__ == "ZeroInflatedNegativeBinomialP"
    k = model.k_inflate
    offset = _shift(model)
    if offset is None:
        offset = np.zeros(())
    power = 2 - model.model_main.parameterization if negative else 0.0
    rows = _count_rows(
        model,
        z=model.exog_infl,
        offset=offset,
        power=power,
        probit=model.inflation == "probit",
    )
    theta = {"inflate": params[:k], "coef": params[k : len(params) - negative]}
    theta |= {"dispersion": params[-1]} if negative else {}
    return HostLoss(zero_inflated, rows, theta, _remark(model)), theta


def _hurdle(model, params: NumpyArray) -> tuple[AbstractObjective, dict]:
    p = model.exog.shape[1]
    theta = {}
    powers = []
    params = np.asarray(params)
    for part, submodel in (("zero_", model.model1), ("", model.model2)):
        theta[f"{part}coef"] = params[:p]
        params = params[p:]
        main = submodel.model_main
        power = 0.0
        if type(main).__name__ == "NegativeBinomialP":
            power = 2 - main.parameterization
            theta[f"{part}dispersion"] = params[0]
            params = params[1:]
        powers.append(power)
    return HostLoss(
        hurdle, _count_rows(model, zero_power=powers[0], power=powers[1]), theta, _remark(model)
    ), theta


def _conditional(model, params: NumpyArray) -> tuple[AbstractObjective, NumpyArray]:
    y = [np.asarray(part, float) for part in model._endog_grp]
    size = max(map(len, y))
    cases = np.array([part.sum() for part in y], int)
    rows = {"x": model._exog_grp, "y": y, "member": [np.ones(len(part)) for part in y]}
    rows["offset"] = getattr(model, "_offset_grp", [np.zeros(len(part)) for part in y])
    data = {name: pad_groups(list(map(np.asarray, part)), size) for name, part in rows.items()}
    labels = (
        pd.Series(np.asarray(model.endog), pd.Index(np.asarray(model.groups)))
        .groupby(level=0, sort=False)
        .nunique()
    )
    chosen = (np.arange(cases.max() + 1) == cases[:, None]).astype(float)
    data["chosen"] = pd.DataFrame(chosen, index=labels.index[labels > 1])
    count = int((labels == 1).sum())
    remark = (
        f"{count} groups of one outcome say nothing, and are not among the units" if count else ""
    )
    return HostLoss(conditional, data, params, join_remarks("a unit is a group", remark)), params


def _mixed_linear(results, drop: str) -> Fit:
    """Fit from the results of a MixedLM."""
    model = results.model
    parameters = {"coef": np.asarray(results.fe_params), "scale": np.sqrt(float(results.scale))}
    blocks = list[EffectBlock]()
    codes = dict[str, TwoArrays]()
    if model.k_re:
        effects = np.asarray(model.exog_re, float)
        host_names = list(getattr(model.data, "exog_re_names", None) or [])
        names = ["Intercept" if name == "Group" else str(name) for name in host_names]
        if len(names) != effects.shape[1]:
            names = [f"z{j}" for j in range(effects.shape[1])]
        code, levels = pd.factorize(np.asarray(model.groups), sort=True)
        blocks.append(EffectBlock("group", tuple(names), effects, (len(names),)))
        codes["group"] = code, np.asarray(levels)
        parameters["covariance[group]"] = np.asarray(results.cov_re)
    for k, (name, parts) in enumerate(zip(model.exog_vc.names, model.exog_vc.mats, strict=True)):
        block_name = name if name not in codes else f"{name} component"
        places = np.concatenate(
            [np.asarray(model.row_indices[label]) for label in model.group_labels]
        )
        columns = sparse.csr_array(sparse.block_diag(parts, format="csr"))[np.argsort(places)]
        levels = [
            f"{label}:{j}"
            for label, part in zip(model.group_labels, parts, strict=True)
            for j in range(part.shape[1])
        ]
        block, codes[block_name] = _component(block_name, columns, np.array(levels))
        blocks.append(block)
        parameters[f"covariance[{block_name}]"] = np.reshape(results.vcomp[k], (1, 1))
    X = pd.DataFrame(np.asarray(model.exog, float), columns=list(map(str, model.exog_names)))
    method = "REML" if model.reml else "ML"
    objective = Mixed.of(X, model.endog, "gaussian", tuple(blocks), codes, drop, method)
    stopped = lambda: not getattr(results, "converged", True)
    way = "raise maxiter or scale the columns"
    return fit_at_host("from_statsmodels", objective, parameters, stopped, way, HostErrors())


def _component(name: str, columns, levels: NumpyArray) -> tuple[EffectBlock, TwoArrays]:
    """Return the block of a variance component, and the levels of its rows, from sparse columns of
    effects of one variance.
    """
    columns.eliminate_zeros()
    if (np.diff(columns.indptr) > 1).any():
        raise TypeError(
            f"from_statsmodels: rows of the component {name!r} have several effects that share a variance, which are no "
            "levels of a factor. Write the model as a formula of lo.Mixed."
        )
    code = np.zeros(columns.shape[0], int)
    value = np.zeros(columns.shape[0])
    filled = np.diff(columns.indptr) == 1
    code[filled] = columns.indices
    value[filled] = columns.data
    used, code = np.unique(code, return_inverse=True)
    return EffectBlock(name, (name,), value[:, None], (1,)), (code, levels[used])


def _mixed_bayesian(results, drop: str) -> Fit:
    """Fit by maximum likelihood to the data of a Bayesian mixed GLM."""
    model = getattr(results, "model", results)
    columns = model.exog_vc.tocsc()
    blocks = []
    codes = {}
    for k, name in enumerate(model.vcp_names):
        is_member = np.asarray(model.ident) == k
        block, codes[str(name)] = _component(
            str(name),
            columns[:, np.flatnonzero(is_member)].tocsr(),
            np.asarray(model.vc_names)[is_member],
        )
        blocks.append(block)
    X = pd.DataFrame(np.asarray(model.exog, float), columns=list(map(str, model.fep_names)))
    return fit(
        Mixed.of(X, model.endog, MIXED_GLMS[type(model).__name__], tuple(blocks), codes, drop=drop)
    )


MODELS: dict[str, Callable[..., tuple[AbstractObjective, Any]]] = {
    "OLS": _linear,
    "WLS": _linear,
    "GLS": _generalised_squares,
    "GEE": _estimating_equations,
    "GLM": _read_glm,
    "Logit": _discrete,
    "Probit": _discrete,
    "Poisson": _discrete,
    "NegativeBinomial": _negative_binomial,
    "MNLogit": _multinomial,
    "GLMGam": _additive,
    "OrderedModel": _read_ordered_model,
    "BetaModel": _beta,
    "PHReg": _cox,
    "ZeroInflatedPoisson": _zero_inflated,
    "ZeroInflatedNegativeBinomialP": _zero_inflated,
    "HurdleCountModel": _hurdle,
    "ConditionalLogit": _conditional,
}
