"""Groups to leave out, derived from a fit: the units whose linear predictors its posterior
correlates most (Liu & Rue 2023).

    ρ_ij = C_ij / √(C_ii C_jj),
    C the posterior covariance of the linear predictors, hyperparameters at their estimates

For a latent Gaussian model, C is that of the coefficients β (with a flat prior) and the latent u
together, by Laplace's method:

    [β, u] ~ N(·, [[XᵀWX, XᵀWZ], [ZᵀWX, Q + ZᵀWZ]]⁻¹),   C = C_u + R (XᵀWR)⁻¹ Rᵀ,
    C_u = Z (Q + ZᵀWZ)⁻¹ Zᵀ,  R = X − C_u W X

For a linear predictor under a quadratic penalty, C = X H⁻¹ Xᵀ.
"""

import numpy as np
from jaxtyping import Float

from .._runtime import float64, largest_first, slices
from ..data import count
from ..objectives import AbstractClosedForm, display_name
from ..optimize import Fit, without
from ..plans import Plan
from ..validation.cross_validate import objective_of

Root = Float[np.ndarray, "units rank"]


@float64
def auto_groups(fit: Fit, size: int, *, absolute: bool = True) -> Plan:
    """Make a plan that leaves out each unit with the units most correlated with it in the
    posterior, and scores only the unit.

    The correlation is ρ_ij = C_ij / √(C_ii C_jj), with C the posterior covariance of the linear
    predictors. Leaving out such a group tests how well a model extrapolates; leaving out one unit
    tests how well it interpolates.

    Parameters
    ----------
    fit : Fit
        The fit of a model with one Gaussian linear predictor a unit.
    size : int
        The number of units in each group, the scored one included.
    absolute : bool, default True
        Whether to compare correlations without their sign.

    Returns
    -------
    Plan
        One refit a unit.

    Raises
    ------
    TypeError
        If the model has no Gaussian linear predictor, one a unit.
    ValueError
        If `size` is not between 1 and the number of units less one, or a latent Gaussian model has
        more than 20,000 units.

    References
    ----------
    Z. Liu and H. Rue, Leave-group-out cross-validation for latent Gaussian models, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.array([-2.0, -1.9, 0.5, 2.0, 1.9])
    >>> fit = lo.fit(lo.GLM(x[:, None], x + 1, "squared"))
    >>> plan = lo.diagnostics.auto_groups(fit, 2)
    >>> plan.index.reshape(-1, 2)[:2]
    array([[0, 1],
           [1, 0]])
    """
    model = objective_of("auto_groups", fit)
    n = model.num_units
    units = model.units
    without("auto_groups", model)
    size = count("auto_groups: size", size, 1, n - 1)
    covariance = None
    # largest number of units of latent Gaussian models, whose covariance is formed
    max_correlated_units = 20_000
    if isinstance(model, AbstractClosedForm):
        if n > max_correlated_units:
            raise ValueError(
                f"auto_groups: correlations of {n} units with one another are too many, {max_correlated_units} at most."
            )
        covariance = model.predictor_covariance(fit.vector)
    if covariance is None:
        root = _rows(fit)
        variance = np.einsum("up,up->u", root, root)
    else:
        variance = np.diag(covariance)
    deviation = np.sqrt(variance)
    # a certain predictor is correlated with nothing
    deviation = np.where(deviation > 0, deviation, np.inf)
    rows = np.empty((n, size), int)
    # difference of correlations that counts as a tie, which the order of units breaks
    correlation_tie = 1e-9
    for part in slices(n, 2**22 // n):  # so many correlations are in memory at once
        chunk = np.arange(n)[part]
        rows_of_covariance = root[chunk] @ root.T if covariance is None else covariance[chunk]
        correlations = rows_of_covariance / deviation[chunk, None] / deviation
        if absolute:
            correlations = np.abs(correlations)
        correlations = np.round(correlations / correlation_tie) * correlation_tie
        correlations[np.arange(len(chunk)), chunk] = np.inf
        rows[chunk] = largest_first(correlations)[:, :size]
    observed = np.ones(n, bool) if units.observed is None else np.asarray(units.observed)
    scored = np.flatnonzero(observed)
    index = rows[scored]
    return Plan(
        size * np.arange(len(scored) + 1),
        index.ravel(),
        np.zeros(index.size),
        np.tile(np.arange(size) == 0, len(scored)),
        n,
        serial=units.serial,
        names=units.names,
        call=f"lo.diagnostics.auto_groups(fit, {size})",
    )


def _rows(fit: Fit) -> Root:
    """Return X H^{-1/2} of a linear predictor."""
    model = fit.quadratic.predictors
    if model is None or not model.separate or model.design.outputs > 1:
        raise TypeError(
            "auto_groups: needs a model with one Gaussian linear predictor a unit, such as lo.GaussianField, lo.Mixed of rows "
            f'(drop="row") or lo.GLM with a quadratic penalty; got {display_name(fit.objective)}. lo.neighbourhoods and '
            "lo.groups make groups of what you know."
        )
    n = fit.objective.num_units
    return np.asarray(model.design.whiten(np.arange(n), fit.quadratic.root)).reshape(n, -1)
