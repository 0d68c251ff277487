"""Sandwich covariance of θ̂ from the derivatives that refits use, for any distribution of the data.

    H⁻¹ M H⁻¹,      M = Σ_n g_n g_nᵀ,      g_n = ∂²F/∂θ∂w_n,

which is that of the infinitesimal jackknife (Huber 1967; White 1980), also under a penalty. For groups, M is the sum over
groups of products of summed g_n (Liang & Zeger 1986); for a series, it has pairs up to `maxlags` apart with weights 1 −
l/(maxlags + 1) (Newey & West 1987).
"""

from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._runtime.conventions import conventional, warn
from .._runtime.jax import float64
from .._runtime.results import kind_of
from ..data.arrays import check_times, codes, index_of, places
from ..objectives.batch_functions import function
from ..objectives.objective import AbstractLinearPredictor
from ..optimize.active_set import without
from ..optimize.fit import Fit
from ..validation.named_parameters import NamedParameters, name_parameters
from ..validation.standard_errors import MIN_BLOCKS
from .measures import counting_units, dispersion, inverse_root, leverage

CovType = Literal["nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster", "HAC"]
KINDS = {kind.lower(): kind for kind in ("nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster", "HAC")}
AFFINE = 1e-6  # share of the largest gradient above which a difference is not rounding
Array = np.ndarray


@conventional
@float64
def covariance(
    fit: Fit,
    cov_type: CovType = "HC0",
    *,
    groups: ArrayLike | None = None,
    maxlags: int | None = None,
    use_correction: bool | None = None,
) -> pd.DataFrame:
    """Estimate the covariance of the natural parameters, by names; `cov_type` and the rest are as in statsmodels.

    With H the observed Hessian, penalty included, and g_n the gradient of unit n, "nonrobust" is φ̂ H⁻¹ and the others are
    sandwiches H⁻¹ (Σ g gᵀ) H⁻¹ of independent units or groups. None of them includes the bias of a penalty.

    Parameters
    ----------
    fit : Fit
        The fit.
    cov_type : {"nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster", "HAC"}, default "HC0"
        "HC0" is the sandwich of independent units. "HC1" is that times n/(n − p), p the rank of H. "HC2" and "HC3", for one
        linear predictor, divide g_n by √(1 − h_n) and by 1 − h_n. "cluster" sums g_n over groups. "HAC" is for units in the
        order of time. φ̂ of "nonrobust" is as in `cooks_distance`.
    groups : array_like, `[units]`, optional
        The labels of the groups for "cluster". Blocks of neighbours are groups too.
    maxlags : int, optional
        The lags of "HAC".
    use_correction : bool, optional
        Whether to multiply by G/(G − 1) · (n − 1)/(n − p) for "cluster" (by default yes), or by n/(n − p) for "HAC" (by default
        no).

    Returns
    -------
    DataFrame
        The covariance, `[params, params]`. A row of weight two counts as one unit (as statsmodels' `var_weights`), and a row of
        weight zero as none.

    Raises
    ------
    ValueError
        If the data do not determine the parameters, the arguments do not go together, or units that depend on one another are
        taken for independent.
    TypeError
        If units have no gradients that add up to the fit's, as the steps of one hidden chain.

    Warns
    -----
    UserWarning
        If there are fewer than 20 groups.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 1.0, 3.0, 2.0]), "squared"))
    >>> lo.covariance(fit, "HC1").shape
    (2, 2)
    >>> np.sqrt(np.diag(lo.covariance(fit, "nonrobust"))).round(3)
    array([0.231, 0.566])
    """
    kind = _check_kind(fit, cov_type, groups, maxlags, use_correction)
    known = name_parameters(fit)
    if kind == "nonrobust":
        return _sandwich_frame(np.sqrt(dispersion(fit)) * inverse_root(fit), known)
    _refuse(fit, kind)
    z, units, rank = fit.influence, int(counting_units(fit).sum()), fit.rank
    factor = 1.0
    if kind in ("HC2", "HC3"):
        objective = fit.objective
        if not isinstance(objective, AbstractLinearPredictor) or objective.outputs > 1:
            raise TypeError(f"covariance: HC2 and HC3 need one linear predictor; got {kind_of(objective)}. Use 'HC1'.")
        room = 1 - leverage(fit)
        if (room <= 1e-10).any():
            raise ValueError(f"covariance: unit {np.argmin(room)} has leverage one, which HC2 and HC3 divide by; use 'HC1'.")
        z = z / np.sqrt(room)[:, None] ** (1 if kind == "HC2" else 2)
    if kind == "cluster":
        label, _ = codes("covariance", "groups", groups)  # type: ignore[arg-type]
        names, own = index_of(groups), fit.objective.units.names
        if len(label) != fit.objective.num_units:
            raise ValueError(f"covariance: groups must be one label a unit, {fit.objective.num_units}; got {len(label)}.")
        order = None if names is None or own is None else places("covariance", "groups", names, "fit", own)
        label = label if order is None else label[order]
        count = len(np.unique(label[counting_units(fit)]))
        if count < 2:
            raise ValueError("covariance: at least two groups are needed; all labels are equal.")
        if count < MIN_BLOCKS:
            few = f"covariance: {count} groups are fewer than {MIN_BLOCKS}: standard errors over so few are too small."
            warn(few)
        z = np.stack([np.bincount(label, column) for column in z.T], axis=1)
        if use_correction is None or use_correction:
            factor = count / (count - 1) * (units - 1) / _residual_degrees(units, rank)
    elif kind == "HC1" or (kind == "HAC" and use_correction):
        factor = units / _residual_degrees(units, rank)
    meat = z.T @ z
    for lag in range(1, (maxlags or 0) + 1):
        apart = z[lag:].T @ z[:-lag]
        meat += (1 - lag / ((maxlags or 0) + 1)) * (apart + apart.T)
    root = inverse_root(fit)
    return _sandwich_frame(root, known, factor * meat)


def _sandwich_frame(
    root: Float[Array, "rank params"], parameters: NamedParameters, meat: Float[Array, "rank rank"] | None = None
) -> pd.DataFrame:
    """Compute `rootᵀ meat root` for natural parameters."""
    along = root if parameters.slope is None else root @ parameters.slope.T
    value = along.T @ along if meat is None else along.T @ meat @ along
    return pd.DataFrame((value + value.T) / 2, index=parameters.names, columns=parameters.names)


def _check_kind(fit: Fit, cov_type: str, groups: ArrayLike | None, maxlags: int | None, use_correction: bool | None) -> str:
    """Return the kind of covariance, and raise ValueError if arguments do not go together."""
    if not isinstance(fit, Fit):
        raise TypeError(f"covariance: the first argument must be a Fit, from lo.fit or lo.from_...; got {type(fit).__name__}.")
    without("covariance", fit.objective)
    if fit.factor is None:
        raise TypeError("covariance: needs a Hessian that is formed: fit with curvature='dense'.")
    kind = KINDS.get(str(cov_type).lower())
    if kind is None:
        raise ValueError(f"covariance: cov_type must be one of {', '.join(map(repr, KINDS.values()))}; got {cov_type!r}.")
    for name, given, of in (("groups", groups, "cluster"), ("maxlags", maxlags, "HAC")):
        if (given is not None) != (kind == of):
            raise ValueError(f"covariance: {name} goes with cov_type={of!r}, and that with it; got cov_type={kind!r}.")
    if use_correction is not None and not (isinstance(use_correction, bool | np.bool_) and kind in ("cluster", "HAC")):
        raise ValueError(
            "covariance: use_correction is True or False, of cov_type='cluster' and 'HAC'; got "
            f"{use_correction!r}, cov_type={kind!r}. 'HC1' is 'HC0' corrected."
        )
    units = fit.objective.num_units
    if kind == "HAC":
        check_times("covariance", "the data", fit.objective.units.names)
    if maxlags is not None and (int(maxlags) != maxlags or not 0 <= maxlags < units):
        raise ValueError(f"covariance: maxlags must be a whole number from 0 to {units - 1}; got {maxlags!r}.")
    if fit.of_rank:
        loose = np.abs(fit.null_space).max(0) > 1e-8 * np.abs(fit.null_space).max()
        names = fit.objective.parameters.names() or [f"parameter {k}" for k in range(fit.num_params)]
        listed = [name for name, is_loose in zip(names, loose, strict=True) if is_loose]
        raise ValueError(
            f"covariance: the data do not determine every parameter, among them {', '.join(map(repr, listed[:4]))}: they have "
            "no covariance. Drop columns that repeat others, or add a penalty such as lo.penalties.Ridge(1.0)."
        )
    return kind


def _refuse(fit: Fit, kind: str) -> None:
    """Raise if units depend on one another in a way that `kind` does not allow, or have no gradients of their own."""
    name, serial = kind_of(fit.objective), fit.objective.units.serial
    if serial is False:
        return
    ends = [function(fit.objective, fit.theta, np.full(fit.objective.num_units, w)).look(fit.vector)[1] for w in (0.0, 1.0)]
    each = fit.raw(fit.influence)
    apart, size = np.abs(each.sum(0) - (ends[1] - ends[0])).max(), np.abs(each).sum(0).max()
    if not apart <= AFFINE * size:
        raise TypeError(
            f"covariance: the units of this {name} have no gradients that add up to its own, as the steps of one chain, or the "
            "sites of one field, have none. Leave out whole sequences (drop='sequence'), or give cov_type='nonrobust'."
        )
    if kind not in ("cluster", "HAC"):
        why = "depend on their neighbours" if serial else "are not known to be independent (dependence='independent' says so)"
        raise ValueError(
            f"covariance: the units of this {name} {why}; {kind} takes them for independent. Use cov_type='HAC' with maxlags=, "
            "or 'cluster' with groups= of long blocks."
        )


def _residual_degrees(units: int, rank: int) -> int:
    if units <= rank:
        raise ValueError(
            f"covariance: {units} units and {rank} parameters leave no degree of freedom to correct by; use 'HC0', or "
            "use_correction=False."
        )
    return units - rank
