"""Fitted regressions of pyfixest, by least squares and Poisson, with their absorbed effects."""

from typing import Any

from ... import GLM, Fit
from ._fit_at_host import fit_at_host, kind_of_host

LOSSES = {"Feols": "squared", "Fepois": "poisson"}


def from_pyfixest(model: Any) -> Fit:
    """Take a regression that pyfixest fitted, on the rows that it kept.

    Its standard errors are `lo.covariance(fit, "cluster", groups=g, small_sample="pyfixest")`, of
    clusters (CRV1), and the same with "CRV3".

    Parameters
    ----------
    model : Feols or Fepois
        What `pyfixest.feols` or `fepois` returned, with its data (not `lean=True`). Calls of its
        formula must be known to formulaic: `C(year)` for `i(year)`.

    Returns
    -------
    Fit
        The fit.

    Raises
    ------
    TypeError
        If it is of another kind, as of instruments.
    ValueError
        If its columns are not those of its formula, as where it dropped collinear ones.

    See Also
    --------
    GLM : The model, with `absorb=`.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import pyfixest
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> data = pd.DataFrame({"x": rng.standard_normal(60), "state": np.arange(60) % 12})
    >>> data["y"] = data.x + rng.standard_normal(60)
    >>> model = pyfixest.feols("y ~ x | state", data, vcov={"CRV1": "state"})
    >>> fit = lo.from_pyfixest(model)
    >>> covariance = lo.covariance(fit, "cluster", groups="state", small_sample="pyfixest")
    >>> bool(np.allclose(covariance.standard_errors, model.se()))
    True
    """
    name = kind_of_host("from_pyfixest", model, "pyfixest", LOSSES, "_beta_hat")
    absorb = None
    if model._has_fixef:
        absorb = model._fe
    objective: Any = GLM(
        model._fml.partition("|")[0],
        model._data,
        LOSSES[name],
        absorb=absorb,
        sample_weight=model._weights_name,
        offset=model._offset_name,
    )
    coef = model.coef()
    columns = coef.drop("Intercept", errors="ignore")
    if tuple(columns.index) != objective.names:
        raise ValueError(
            f"from_pyfixest: the formula has the columns {', '.join(objective.names)}, and the fit {', '.join(columns.index)}."
        )
    theta = {"coef": columns.to_numpy()}
    if len(columns) < len(coef):
        theta["intercept"] = coef["Intercept"]
    return fit_at_host("from_pyfixest", objective, theta, lambda: False)
