"""Fitted sparse regressions of skglm as they are. skglm averages its losses, so its penalties
shrink as rows leave.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from ... import GLM, Fit, penalties
from ...developer import match_labels
from ._fit_at_host import fit_at_coefficients, kind_of_host


def from_skglm(estimator: Any, X: ArrayLike, y: ArrayLike) -> Fit:
    """Take a fitted sparse regression of skglm, on the data it was fitted on.

    skglm's solver stops at its own tolerance; θ̂ is the minimum, with a warning if it is not near.

    Parameters
    ----------
    estimator : Lasso, WeightedLasso, ElasticNet, GroupLasso or SparseLogisticRegression
        Fitted estimator, with `positive=True` where it has that (not a `GroupLasso`);
        `SparseLogisticRegression` of two classes.
    X : array-like, shape (rows, features)
        Columns that it was fitted on.
    y : array-like, shape (rows,)
        Response or class.

    Returns
    -------
    Fit
        The fit.

    Raises
    ------
    TypeError
        On other estimators and more than two classes.
    ValueError
        If the estimator is not fitted, or was fitted on other data.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> from skglm import Lasso
    >>> X = np.random.default_rng(0).standard_normal((20, 3))
    >>> y = 2 * X[:, 0] + np.random.default_rng(1).standard_normal(20)
    >>> fit = lo.from_skglm(Lasso(0.3).fit(X, y), X, y)
    >>> fit.num_params
    2
    """
    readers: dict[str, Callable[[], penalties.AbstractPenalty]] = {
        "Lasso": lambda: penalties.Lasso(estimator.alpha),
        "WeightedLasso": lambda: penalties.Lasso(
            estimator.alpha * (1.0 if estimator.weights is None else np.asarray(estimator.weights))
        ),
        "ElasticNet": lambda: penalties.ElasticNet(estimator.alpha, estimator.l1_ratio),
        "SparseLogisticRegression": lambda: penalties.ElasticNet(
            estimator.alpha, estimator.l1_ratio
        ),
        "GroupLasso": lambda: _group_penalty(estimator, np.shape(X)[1]),
    }
    name = kind_of_host("from_skglm", estimator, "skglm", readers)
    _, X, y = match_labels("from_skglm", X=X, y=y)
    penalty = readers[name]()
    if getattr(estimator, "positive", False):
        penalty += penalties.Box()
    target, loss = _target(estimator, np.ravel(np.asarray(y)))
    objective = GLM(
        X, target, loss, penalties.per_weight(penalty), intercept=estimator.fit_intercept
    )
    return fit_at_coefficients(
        "from_skglm", objective, estimator, lambda: clone(estimator).fit(X, y).coef_
    )


def _group_penalty(estimator, features: int) -> penalties.GroupLasso:
    """Build the group lasso of an estimator.

    skglm's groups are one size for all, a list of sizes, or lists of columns; its weights are one
    by default.
    """
    groups = estimator.groups
    if estimator.positive:
        raise TypeError(
            "from_skglm: GroupLasso(positive=True) is not supported: beside groups there are no bounds."
        )
    if isinstance(groups, int | np.integer):
        label = np.arange(features) // groups
    elif isinstance(groups[0], int | np.integer):
        label = np.repeat(np.arange(len(groups)), groups)
    else:
        label = np.full(features, len(groups))
        for number, columns in enumerate(groups):
            label[columns] = number
    weights = np.ones(len(np.unique(label))) if estimator.weights is None else estimator.weights
    return penalties.GroupLasso(estimator.alpha, label, weights)


def _target(estimator, y: np.ndarray) -> tuple[np.ndarray, str]:
    """Return the response in the form that the loss takes, and the loss."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return y, "squared"
    if len(classes) != 2:
        raise TypeError(
            f"from_skglm: two classes are supported; this {type(estimator).__name__} has {len(classes)}."
        )
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise ValueError(
            f"from_skglm: y holds {y[unknown][0]!r}, which the estimator never saw: {classes}."
        )
    return (y == classes[1]).astype(float), "logistic"
