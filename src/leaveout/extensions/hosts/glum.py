"""Fitted regressors of glum as they are. glum averages its loss, so its penalty shrinks as rows
leave.
"""

import functools
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone

from ... import GLM, Fit, losses, penalties
from ...developer import index_of, pandas_of
from ._fit_at_host import fit_at_coefficients, kind_of_host

POWERS = {
    "NormalDistribution": 0.0,
    "PoissonDistribution": 1.0,
    "GammaDistribution": 2.0,
    "InverseGaussianDistribution": 3.0,
}


def from_glum(
    estimator: Any,
    X: Any,
    y: ArrayLike | None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
) -> Fit:
    """Take a fitted `GeneralizedLinearRegressor` of glum, on the data it was fitted on.

    A `GeneralizedLinearRegressorCV` is taken at its chosen alpha. The families are normal, Poisson,
    gamma, inverse Gaussian, Tweedie, binomial and negative binomial; the links identity, log,
    logit, cloglog and Tweedie. Penalties may have any `P2`; l1 and elastic net need a diagonal one.
    The loss is half the deviance of dispersion one.

    If its solver stopped before its minimum, the fit is at the minimum, and a warning says how far
    that is.

    Parameters
    ----------
    estimator : GeneralizedLinearRegressor or GeneralizedLinearRegressorCV
        Fitted estimator.
    X : array-like, shape (rows, features)
        Matrix or table that it was fitted on. Categorical columns, and the columns of a `formula`,
        are those that glum makes.
    y : array-like, shape (rows,), optional
        Response; None if it is in the formula.
    sample_weight : array-like, shape (rows,), optional
        Weights that were given to `fit`.
    offset : array-like, shape (rows,), optional
        Offset that was given to `fit`.

    Returns
    -------
    Fit
        The fit at the estimator's coefficients.

    Raises
    ------
    TypeError
        On scaled predictors, constraints and other estimators.
    ValueError
        If the coefficients are not stationary on these data.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> from glum import GeneralizedLinearRegressor
    >>> X, y = np.arange(8.0)[:, None], np.array([1.0, 0, 2, 1, 3, 2, 4, 5])
    >>> model = GeneralizedLinearRegressor(family="poisson", alpha=0.1, gradient_tol=1e-9).fit(X, y)
    >>> cv = lo.cross_validate(lo.from_glum(model, X, y), lo.leave_one_out())
    >>> len(cv.losses)
    8
    """
    supported = "GeneralizedLinearRegressor", "GeneralizedLinearRegressorCV"
    name = kind_of_host("from_glum", estimator, "glum", supported)
    is_chosen = name.endswith("CV")
    strength = estimator.alpha_ if is_chosen else estimator.alpha
    if strength is None:
        strength = 0.0
    alpha = np.asarray(strength, float)
    ratio = getattr(estimator, "l1_ratio_", estimator.l1_ratio)
    refused = {
        "a search over several l1_ratios": np.ndim(ratio) > 0,
        "scale_predictors=True": estimator.scale_predictors,
        "bounds or inequalities": any(
            getattr(estimator, part, None) is not None
            for part in ("lower_bounds", "upper_bounds", "A_ineq", "b_ineq")
        ),
        "a search over several alphas": alpha.ndim > 0 or getattr(estimator, "alpha_search", False),
    }
    for feature, present in refused.items():
        if present:
            raise TypeError(f"from_glum: {feature} is not supported.")
    columns = _columns(estimator, X)
    response = y
    if y is None and getattr(estimator, "y_model_spec_", None) is not None:
        response = np.ravel(estimator.y_model_spec_.get_model_matrix(X).toarray())
    remark = ""
    if is_chosen:
        remark = f"alpha = {float(alpha):.4g} was chosen on all rows: the choice is not left out"
    penalty = None
    if alpha > 0:
        penalty = penalties.per_weight(_penalty(estimator, float(alpha), float(ratio)))
    objective = GLM(
        columns,
        response,
        _loss(estimator.family_instance, estimator.link_instance),
        penalty,
        sample_weight=sample_weight,
        offset=offset,
        intercept=estimator.fit_intercept,
        remark=remark,
    )
    if columns is not X:
        objective = objective.reading(functools.partial(_columns, estimator), objective.labels)
    refit = lambda: clone(estimator).fit(X, y, sample_weight, offset).coef_
    return fit_at_coefficients("from_glum", objective, estimator, refit)


def _columns(estimator: Any, X: Any):
    """Return the columns that glum makes of a table with categories, or by a formula.

    Any other matrix as it is.
    """
    if not hasattr(estimator, "X_model_spec_"):
        table = pandas_of("from_glum", "X", X)
        if not isinstance(table, pd.DataFrame) or not any(
            isinstance(kind, pd.CategoricalDtype) for kind in table.dtypes
        ):
            return X
    convert = getattr(estimator, "_convert_from_df", None) or estimator._convert_from_pandas
    return pd.DataFrame(convert(X).toarray(), index_of(X), list(estimator.feature_names_))


def _penalty(estimator, alpha: float, ratio: float) -> penalties.AbstractPenalty:
    """Build the penalty α (ρ Σ P1|β| + ½ (1 − ρ) βᵀP2β)."""
    weights = estimator.P1
    weight = 1.0 if weights is None or isinstance(weights, str) else np.asarray(weights, float)
    if ratio == 0:
        return _quadratic(estimator.P2, alpha)
    return penalties.Lasso(alpha * ratio * weight) + _quadratic(estimator.P2, alpha * (1 - ratio))


def _quadratic(shape, alpha: float) -> penalties.Ridge | penalties.Quadratic:
    if shape is None or isinstance(shape, str):
        return penalties.Ridge(alpha)
    matrix = np.asarray(shape.toarray() if hasattr(shape, "toarray") else shape, float) * alpha
    if matrix.ndim == 1:
        return penalties.Ridge(matrix)
    return penalties.Quadratic((matrix + matrix.T) / 2)


def _loss(family, link) -> losses.AbstractLoss:
    name = type(family).__name__
    linked = type(link).__name__
    if name == "BinomialDistribution" and linked in ("LogitLink", "CloglogLink"):
        return losses.Binomial({"LogitLink": "logit", "CloglogLink": "cloglog"}[linked])
    if linked == "TweedieLink":
        exponent = 1 - float(link.power)
        through: Any = {0.0: "log", 1.0: "identity"}.get(exponent) or losses.links.Power(exponent)
    else:
        through = {"IdentityLink": "identity", "LogLink": "log"}.get(linked)
    if through is not None and name == "NegativeBinomialDistribution":
        return losses.NegativeBinomial(float(family.theta), through)
    power = POWERS.get(
        name, getattr(family, "power", None) if name == "TweedieDistribution" else None
    )
    if through is None or power is None:
        raise TypeError(f"from_glum: the family {name} with the link {linked} is not supported.")
    return losses.Tweedie(float(power), 1.0, through)
