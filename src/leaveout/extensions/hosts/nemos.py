"""Fitted GLMs of nemos as they are. nemos averages its loss over time bins, so its penalties shrink
as bins leave.
"""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import clone

import leaveout as lo

from ... import GLM, Fit
from ...developer import Array, TwoTexts, jax, jnp, jspecial, match_labels
from ._fit_at_host import fit_at_host, is_repeated, kind_of_host

Scalar = Float[Array, ""]


def softplus_poisson(eta: Scalar, y: Scalar) -> Scalar:
    """Compute the Poisson loss of the mean log(1 + e^η)."""
    mean = jax.nn.softplus(eta)
    return mean - y * jnp.log(mean) + jspecial.gammaln(y + 1)


LOSSES: dict[TwoTexts, Any] = {
    ("PoissonObservations", "exp"): "poisson",
    ("PoissonObservations", "softplus"): softplus_poisson,
    ("BernoulliObservations", "logistic"): "logistic",
    ("GaussianObservations", "identity"): "squared",
}


def from_nemos(model: Any, X: ArrayLike, y: ArrayLike) -> Fit:
    """Take a fitted GLM of nemos, on the data it was fitted on.

    Parameters
    ----------
    model : nemos.glm.GLM
        Fitted model of Poisson (exp or softplus), Bernoulli (logistic) or Gaussian (identity)
        observations, without a penalty or under Ridge, Lasso or ElasticNet. The softplus needs JAX,
        and takes no l1 penalty.
    X : array-like, shape (bins, features)
        Features that it was fitted on. Bins with NaN, as at the edges of a convolution, are
        dropped, as nemos drops them; the others keep their labels or positions.
    y : array-like, shape (bins,)
        Activity of the neuron.

    Returns
    -------
    Fit
        The fit.

    Raises
    ------
    TypeError
        On other models, observations, links and penalties.
    ValueError
        If the model is not fitted, or was fitted on other data.

    Examples
    --------
    >>> import leaveout as lo
    >>> import nemos
    >>> X = np.random.default_rng(0).standard_normal((60, 2))
    >>> y = np.random.default_rng(1).poisson(np.exp(X[:, 0]))
    >>> lo.from_nemos(nemos.glm.GLM().fit(X, y), X, y).num_params
    3
    """
    kind_of_host("from_nemos", model, "nemos", ["GLM"])
    if np.ndim(model.coef_) != 1:
        raise TypeError(
            "from_nemos: features must be one array of two dimensions, not a tree of arrays."
        )
    kind = (
        type(model.observation_model).__name__,
        getattr(model.inverse_link_function, "__name__", ""),
    )
    penalty = type(model.regularizer).__name__
    strength = model.regularizer_strength
    if kind not in LOSSES or penalty not in ("UnRegularized", "Ridge", "Lasso", "ElasticNet"):
        raise TypeError(
            f"from_nemos: {kind[0]} with the inverse link {kind[1] or 'given'} under {penalty} is not supported."
        )
    labels, X, y = match_labels("from_nemos", X=X, y=y)
    X, y, remark = _drop_missing(X, y, labels.index)
    alpha, ratio = strength if isinstance(strength, tuple) else (strength, 0.5)
    # whose loss is the square, not half of it
    scale = 0.5 if kind[0] == "GaussianObservations" else 1.0
    size = np.zeros(()) if penalty == "UnRegularized" else scale * np.asarray(alpha, float)
    penalties = {
        "Ridge": lo.penalties.Ridge(size),
        "Lasso": lo.penalties.Lasso(size),
        "ElasticNet": lo.penalties.ElasticNet(size, ratio),
    }
    row_penalty = None if penalty == "UnRegularized" else lo.penalties.per_row(penalties[penalty])
    objective = GLM(X, y, LOSSES[kind], row_penalty, remark=remark)
    coef = np.asarray(model.coef_, float)
    return fit_at_host(
        "from_nemos",
        objective,
        {"coef": coef, "intercept": float(np.ravel(model.intercept_)[0])},
        lambda: is_repeated(lambda: clone(model).fit(X, y).coef_, coef),
    )


def _drop_missing(X, y, index: pd.Index | None) -> tuple[Any, Any, str]:
    """Drop the bins that nemos drops, and say how many they are."""
    present = np.isfinite(np.asarray(X, float)).all(1) & np.isfinite(np.asarray(y, float))
    if present.all():
        return X, y, ""
    rows = pd.DataFrame(np.asarray(X), index, getattr(X, "columns", None))
    response = pd.Series(np.asarray(y), rows.index)
    count = int(np.count_nonzero(~present))
    return (
        rows[present],
        response[present],
        f"{count} bins with missing values are not among the units: nemos dropped them",
    )
