"""Predictions of new rows by a fit."""

from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ._fit import Fit
from ._jax import float64
from ._objective import called
from ._prediction import shift_of, undetermined
from ._read import index_of, matched
from .models.linear import AbstractRegression
from .models.mixed import Mixed

Kind = Literal["response", "link"]


@float64
def predict(fit: Fit, X_new: Any, kind: Kind = "response", *, offset: ArrayLike | None = None) -> pd.Series | pd.DataFrame:
    """Predictions of new rows by a fit: g⁻¹(x'β + α + offset), or with `kind="link"` the linear predictor x'β + α + offset.

    `lo.interval` gives intervals for the responses of such rows, `lo.mean_interval` for the means of smooth terms.

    Parameters
    ----------
    fit
        The fit of a `GLM`, a `Regression`, an `Additive` or `Mixed` model, or of another library's estimator of these kinds.
    X_new
        Rows as the data of the fit were: a DataFrame's columns are matched by their names, and go through the formula or the
        transformers of the host; a Mixed model takes a table with the columns of its formula, or `(X, groups)`.
    kind
        The scale of predictions: "response", or "link".
    offset
        One number a row, of a model that was fitted with an offset.

    Returns
    -------
    One number a row, as a Series with the labels of the rows; of classes a DataFrame of probabilities with a column a class.
    Rows that are outside the span of the data, which do not tell them, are NaN, with a warning.

    Raises
    ------
    TypeError
        Where the model has no rows that stand by themselves: sequences, fields, Gaussian processes, Cox regressions.
    ValueError
        Where X_new is not like the data of the fit, or an offset is missing.

    Examples
    --------
    >>> import leaveout as lo, numpy as np
    >>> fit = lo.fit(lo.GLM(np.arange(4.0)[:, None], np.array([1.0, 3.0, 5.0, 7.0])))
    >>> lo.predict(fit, [[4.0], [5.0]]).round(6).tolist()
    [9.0, 11.0]
    """
    if kind not in get_args(Kind):
        raise ValueError(f"predict: kind must be 'response' or 'link'; got {kind!r}.")
    if not isinstance(fit, Fit):
        raise TypeError(f"predict: the first argument must be a Fit, from lo.fit or lo.from_sklearn; got {type(fit).__name__}.")
    model: Any = fit.objective
    if isinstance(model, Mixed) and kind == "response":
        return model.predict(fit, data=X_new, offset=offset).iloc[:, 0].rename("prediction")
    if not isinstance(model, AbstractRegression):
        raise TypeError(
            f"predict: new rows have predictions by lo.GLM, lo.Regression, lo.Additive, and lo.Mixed (kind='response'); got "
            f"{called(model)}. New sequences are predicted by fit.objective.predict, the units of a fit by lo.cross_predict."
        )
    _, X_new, offset = matched("predict", X_new=X_new, offset=offset)
    design = model.new_rows("predict", X_new)
    classes, q = list(model.classes), design.shape[1]
    shift = shift_of("predict", model, offset, len(design), (len(classes),) if classes else ())
    theta = fit.vector if not hasattr(model, "spread") else model.spread(fit.vector)
    count = max(1, len(classes))
    eta = np.asarray(design @ theta[: count * q].reshape(count, q).T)
    eta = eta if shift is None else eta + shift.reshape(len(eta), -1)
    eta = eta if classes else eta[:, 0]
    own = (theta[q:],) if model.own else ()
    found = np.array(eta if kind == "link" else model.loss_function.inverse_link(eta, *own))
    if not classes and not hasattr(model, "spread"):
        found[undetermined("predict", fit, design)] = np.nan
    index = index_of(X_new)
    return pd.DataFrame(found, index, classes) if classes else pd.Series(found, index, name="prediction")
