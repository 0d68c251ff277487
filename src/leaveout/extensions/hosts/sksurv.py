"""Fitted Cox models of scikit-survival as they are.

CoxnetSurvivalAnalysis averages, so its penalty shrinks as rows leave.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from ... import Cox, Fit, penalties
from ...developer import match_labels
from ._fit_at_host import fit_at_host, is_repeated, kind_of_host


def from_sksurv(estimator: Any, X: ArrayLike, y: Any) -> Fit:
    """Take a fitted Cox model of scikit-survival, on the data it was fitted on.

    Parameters
    ----------
    estimator : CoxPHSurvivalAnalysis or CoxnetSurvivalAnalysis
        Fitted estimator. Of the penalties of a CoxnetSurvivalAnalysis the last is taken, as by its
        `predict`.
    X : array-like, shape (rows, features)
        Columns that it was fitted on.
    y : structured array, shape (rows,)
        Events and times.

    Returns
    -------
    Fit
        The fit. The loss of a row is that of `lo.Cox`.

    Raises
    ------
    TypeError
        On other estimators, and on `normalize=True`.
    ValueError
        If the estimator is not fitted, or was fitted on other data.

    See Also
    --------
    Cox : Proportional hazards.

    Examples
    --------
    >>> import leaveout as lo
    >>> from sksurv.linear_model import CoxPHSurvivalAnalysis
    >>> from sksurv.util import Surv
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = Surv.from_arrays(np.ones(40, bool), rng.exponential(np.exp(-X[:, 0])))
    >>> lo.from_sksurv(CoxPHSurvivalAnalysis().fit(X, y), X, y).num_params
    2
    """
    supported = "CoxPHSurvivalAnalysis", "CoxnetSurvivalAnalysis"
    name = kind_of_host("from_sksurv", estimator, "sksurv", supported)
    y = np.asarray(y)
    event, time = (np.asarray(y[part], float) for part in y.dtype.names)
    _, X = match_labels("from_sksurv", X=X)
    coef = np.asarray(estimator.coef_, float)
    if name == "CoxPHSurvivalAnalysis":
        penalty: penalties.AbstractPenalty | None = (
            penalties.Ridge(estimator.alpha) if np.any(np.asarray(estimator.alpha) > 0) else None
        )
        ties = estimator.ties
    else:
        if estimator.normalize:
            raise TypeError(
                "from_sksurv: normalize=True scales columns by all rows; scale them before, and fit without it."
            )
        coef = coef[:, -1]
        ties = "breslow"
        penalty = penalties.per_row(
            penalties.ElasticNet(
                estimator.alphas_[-1] * estimator.penalty_factor_, estimator.l1_ratio
            )
        )
    refit = lambda: np.reshape(clone(estimator).fit(X, y).coef_, (len(coef), -1))[:, -1]
    model = Cox(X, time, event, penalty, ties=ties)
    return fit_at_host("from_sksurv", model, {"coef": coef}, lambda: is_repeated(refit, coef))
