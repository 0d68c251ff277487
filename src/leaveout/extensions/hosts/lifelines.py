"""Fitted survival regressions of lifelines as they are.

lifelines divides its likelihood by the number of rows, and scales the penalty by the standard
deviations of the columns. In a refit the penalty shrinks with the rows, and the standard deviations
stay those of all rows, which results say.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ... import Cox, Fit, penalties
from ...developer import (
    Array,
    Arrays,
    HostErrors,
    NamedArrays,
    Scalar,
    frame_of,
    jax,
    jnp,
    jspecial,
)
from ._count_losses import HostLoss, NamedParts
from ._fit_at_host import fit_at_host, kind_of_host

SPREADS = "the penalty is scaled by the standard deviations of all rows, which are not left out"


def from_lifelines(fitter: Any, df: Any) -> Fit:
    """Take a fitted CoxPHFitter, CoxTimeVaryingFitter or AFT fitter of lifelines, on the table it
    was fitted on.

    Of a CoxTimeVaryingFitter a unit is a row, from its start to its stop: `lo.groups(df[id_col])`
    leaves out subjects. A CoxPHFitter may have strata, weights, entry times, formulas and a
    penalizer with `l1_ratio=0`. AFT models are those of right-censored times, with entry times,
    formulas, a model of the ancillary parameter and a penalizer, and need JAX.

    Parameters
    ----------
    fitter : CoxPHFitter, CoxTimeVaryingFitter, WeibullAFTFitter or LogNormalAFTFitter
        Fitted model.
    df : DataFrame
        Table that it was fitted on.

    Returns
    -------
    Fit
        The fit. The loss of a row is that of `lo.Cox`, or minus its log likelihood.

    Raises
    ------
    TypeError
        On other models, a penalizer with an l1 part, another baseline than Breslow's, and weights
        of an AFT model.
    ValueError
        If the model was fitted on other data.

    See Also
    --------
    Cox : Proportional hazards.

    Examples
    --------
    >>> import leaveout as lo
    >>> from lifelines import CoxPHFitter
    >>> from lifelines.datasets import load_rossi
    >>> rossi = load_rossi()
    >>> fit = lo.from_lifelines(CoxPHFitter().fit(rossi, "week", "arrest"), rossi)
    >>> fit.num_params
    7
    """
    supported = "CoxPHFitter", "CoxTimeVaryingFitter", *AFT
    name = kind_of_host("from_lifelines", fitter, "lifelines", supported, "params_")
    varying = name == "CoxTimeVaryingFitter"
    penalised = np.any(np.asarray(fitter.penalizer) > 0)
    if penalised and np.any(np.asarray(fitter.l1_ratio) > 0):
        raise TypeError(
            "from_lifelines: an l1 part of a penalizer is rounded by lifelines; use lo.Cox with lo.penalties."
        )
    df = frame_of("from_lifelines", df)
    if df.index.has_duplicates:
        raise ValueError("from_lifelines: the table's row labels must be distinct.")
    column = lambda field: (
        df[label] if (label := getattr(fitter, field, None)) is not None else None
    )
    time_col, entry_col = ("stop_col", "start_col") if varying else ("duration_col", "entry_col")
    label_fields = time_col, entry_col, "event_col", "weights_col", "cluster_col", "id_col"
    time, entry, event, weights = map(column, label_fields[:4])
    event = pd.Series(1.0, df.index) if event is None else event.astype(float)
    columns = df.drop(
        columns=[
            label for field in label_fields if (label := getattr(fitter, field, None)) is not None
        ]
    )
    if name in AFT:
        if weights is not None:
            raise TypeError("from_lifelines: weights of an AFT model are not supported.")
        return replace(
            _accelerated(fitter, columns, time, event, entry), host_errors=_errors(fitter, df)
        )
    if not varying and fitter.baseline_estimation_method != "breslow":
        raise TypeError(
            "from_lifelines: CoxPHFitter is supported with baseline_estimation_method='breslow' only."
        )
    strata = None
    if fitter.strata is not None:
        strata = [fitter.strata] if isinstance(fitter.strata, str) else list(fitter.strata)
    labels = None if strata is None else columns[strata].apply(tuple, axis=1)
    X = fitter.regressors.transform_df(columns.drop(columns=strata or []))["beta_"]
    penalty = None
    remark = ""
    if penalised:
        remark = SPREADS
        penalty = penalties.per_row(
            penalties.Ridge(np.asarray(fitter.penalizer) * np.asarray(fitter._norm_std) ** 2)
        )
    model = Cox(
        X,
        time,
        event,
        penalty,
        strata=labels,
        entry=entry,
        sample_weight=weights,
        remark=remark,
    )
    return fit_at_host(
        "from_lifelines",
        model,
        {"coef": np.asarray(fitter.params_, float)},
        lambda: False,
        errors=_errors(fitter, df),
    )


def _errors(fitter, df: pd.DataFrame) -> HostErrors:
    """Return the kind of standard errors that the fitter prints."""
    cluster = getattr(fitter, "cluster_col", None)
    if cluster is not None:
        return HostErrors("cluster", groups=df[cluster], use_correction=False)
    return HostErrors("HC0" if getattr(fitter, "robust", False) else "nonrobust")


class MeanPenalised(HostLoss):
    """`HostLoss` with a ridge, by the parts of θ, that grows with the number of rows."""

    ridge: NamedArrays

    def __init__(self, unit_loss: Any, data: Any, theta0: Any, remark: str, ridge: NamedArrays):
        super().__init__(unit_loss, data, theta0, remark)
        vars(self)["ridge"] = ridge

    def _ridge(self, theta) -> Scalar:
        return sum(
            (0.5 * jnp.sum(self.ridge[name] * theta[name] ** 2) for name in self.ridge),
            jnp.zeros(()),
        )

    def loss(self, theta: Any, weights: Arrays) -> Scalar:
        return super().loss(theta, weights) + jnp.sum(jnp.asarray(weights)) * self._ridge(theta)

    def perturbation(self, theta: Any, index: Arrays, delta: Arrays) -> Scalar:
        weight_changes = jnp.where(index < self.num_units, delta, 0.0)
        return super().perturbation(theta, index, delta) + jnp.sum(weight_changes) * self._ridge(
            theta
        )


def weibull(theta: NamedParts, row: NamedParts) -> Array:
    """Compute minus the log likelihood of a row: the hazard cumulates to (t/λ)^ρ."""
    scale = row["lambda_"] @ theta["lambda_"]
    log_shape = row["rho_"] @ theta["rho_"]
    shape = jnp.exp(log_shape)
    log_ratio = jnp.log(row["time"]) - scale
    entered = jnp.where(row["entry"] > 0, row["entry"], 1.0)
    before = jnp.where(row["entry"] > 0, jnp.exp(shape * (jnp.log(entered) - scale)), 0.0)
    return (
        jnp.exp(shape * log_ratio)
        - before
        - row["event"] * (log_shape - scale + (shape - 1) * log_ratio)
    )


def log_normal(theta: NamedParts, row: NamedParts) -> Array:
    """Compute minus the log likelihood of a row, whose log time is normal."""
    mean = row["mu_"] @ theta["mu_"]
    log_sd = row["sigma_"] @ theta["sigma_"]
    entered = jnp.where(row["entry"] > 0, row["entry"], 1.0)
    z, first = ((jnp.log(t) - mean) * jnp.exp(-log_sd) for t in (row["time"], entered))
    before = jnp.where(row["entry"] > 0, jspecial.log_ndtr(-first), 0.0)
    density = jax.scipy.stats.norm.logpdf(z) - log_sd - jnp.log(row["time"])
    return before - jnp.where(row["event"] > 0, density, jspecial.log_ndtr(-z))


AFT = {"WeibullAFTFitter": weibull, "LogNormalAFTFitter": log_normal}


def _accelerated(
    fitter, columns: pd.DataFrame, time: pd.Series, event: pd.Series, entry: pd.Series | None
) -> Fit:
    """Fit at an AFT model."""
    designs = fitter.regressors.transform_df(columns)
    data = {"time": time.astype(float), "event": event}
    data["entry"] = pd.Series(0.0, time.index) if entry is None else entry.astype(float)
    theta = {}
    ridge = {}
    free = fitter._cols_to_not_penalize
    for part in fitter.regressors.keys():  # noqa: SIM118
        data[part] = np.asarray(designs[part], float)
        theta[part] = np.asarray(fitter.params_[part], float)
        ridge[part] = fitter.penalizer * np.where(
            free[part], 0.0, np.asarray(fitter._norm_std[part]) ** 2
        )
    remark = SPREADS if any(part.any() for part in ridge.values()) else ""
    model = MeanPenalised(AFT[type(fitter).__name__], data, theta, remark, ridge)
    return fit_at_host("from_lifelines", model, theta, lambda: False)
