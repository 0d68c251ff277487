"""Nested cross-validation: an interval for the mean loss that accounts for the error of
cross-validation itself.

For K random folds, the model is refitted without each fold k and without each pair {j, k}. The
refit without k gives its loss on fold k. The pairs {j, k}, by the losses of their other folds j,
estimate the same loss by cross-validation of all but k:

    a_k = (mean of the others' losses − mean of fold k's)²,      b_k = s²_k / n_k,
    MSE = (K − 1)/K · mean(a − b)

over folds and repeats. The MSE is kept between s²/n, which holds if all units are independent, and
K times that. The centre is corrected for the smaller samples of the refits, by how much the losses
of the pairs exceed those of the single folds: ē_pairs − (1 + (K − 2)/K)(ē_pairs − ē_folds) (Bates,
Hastie & Tibshirani, Journal of the American Statistical Association 119, 2024). This takes K (K +
1)/2 refits a repeat, here from one fit.

Losses may be differences of those of two models, and units groups of dependent ones. The pairs also
show how much a loss h, less its mean over units, moves with the data of the refit. The refits {j,
k} and {j, k'} differ in n/K replaced units, each of which moves it by γ = E(h − h')² on average, so

    2 Var_k h_i(−{j, k}) = (n/K) γ,      instability r = n γ / σ²,      σ² = Var h,

and the interval of independent losses holds its level only if r is small (Bayle, Janson & Mackey,
arXiv 2508.04409).
"""

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from .._runtime import File, FloatArray, IntArray, Rng, conventional, keeping, stoppable
from ..data import count, share
from ..optimize import Fit
from ..plans import Plan
from ..refit import AbstractRefit
from .cross_validate import cache_key, cross_validate, strategy_of
from .estimate import Estimate
from .mean_intervals import Interval
from .metrics import ScoreName
from .repeated_folds import RandomFolds, random_folds
from .scoring import Evaluate


@conventional
def nested(
    fit: Fit,
    *,
    level: float = 0.95,
    num_folds: int = 10,
    num_repeats: int = 20,
    strategy: AbstractRefit | None = None,
    evaluate: Evaluate | ScoreName | None = None,
    rng: Rng = 0,
    checkpoint: File | None = None,
) -> Interval:
    """Compute an interval for the mean loss of the fitted model on new units, by nested
    cross-validation.

    With a_k = (mean loss of the other folds − mean loss of fold k)² and b_k = s²_k / n_k, MSE = (K
    − 1)/K · mean(a − b) over random folds and repeats. The interval is the corrected mean ± z √MSE,
    widened on both sides by the refits' errors. The columns that a formula learned, such as
    splines, stay as they are. It is not an interval for a new response, which `lo.interval` gives.

    Parameters
    ----------
    fit : Fit
        The fitted model; its units must be independent and of equal weight.
    level : float, default 0.95
        The coverage of the interval.
    num_folds : int, default 10
        The number K of random folds, 3 or more, of two units or more each.
    num_repeats : int, default 20
        The number of random partitions into folds. With more repeats the result depends less on
        `seed`.
    strategy : AbstractRefit, default `Certified()`
        The strategy of the refits.
    evaluate : callable or str, optional
        The loss of held-out units, as in `cross_validate`.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same
        numbers. One file serves every `level`.

    Returns
    -------
    Interval
        A named tuple `low`, `high`, `level`, `method`.

    Raises
    ------
    ValueError
        If units depend on one another or have different weights, folds have fewer than two units, a
        refit has no loss, losses are joint, or `checkpoint` belongs to another run.
    TypeError
        If the first argument is not a fit.
    Interrupted
        On Ctrl-C.

    See Also
    --------
    Estimate.interval : Cheaper intervals from one cross-validation.

    References
    ----------
    S. Bates, T. Hastie and R. Tibshirani, Journal of the American Statistical Association
    119, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 1))
    >>> fit = lo.fit(lo.GLM(X, X[:, 0] + rng.normal(size=40), "squared"))
    >>> found = lo.validation.nested(fit, num_folds=4, num_repeats=2)
    >>> round(found.low, 2), round(found.high, 2)
    (0.19, 1.13)
    """
    strategy = strategy_of("nested", strategy)
    if not isinstance(fit, Fit):
        raise TypeError(
            f"nested: the first argument must be a Fit, from lo.fit or lo.from_sklearn; got {type(fit).__name__}."
        )
    share("nested: level", level)
    num_folds = count("nested: num_folds", num_folds, 3)
    num_repeats = count("nested: num_repeats", num_repeats, 1)
    seed = count("nested: rng", rng, 0)
    if 2 * num_folds > fit.objective.num_units:
        raise ValueError(
            f"nested: it needs 3 folds or more, of 2 units or more each, and 1 repeat or more; got {num_folds} folds of "
            f"{fit.objective.num_units} units, and {num_repeats} repeats."
        )
    folds = random_folds(np.arange(fit.objective.num_units), num_folds, num_repeats, seed)
    single = folds.leave_folds()
    with (
        stoppable("nested"),
        keeping("nested", checkpoint, cache_key(fit, single, strategy, evaluate=evaluate)),
    ):
        estimates: list[Estimate] = []
        for plan in (single, folds.leave_pairs()):
            estimate = cross_validate(
                fit, plan, strategy=strategy, evaluate=evaluate, audit=0, bases="frozen"
            )
            if estimate.joint:
                raise ValueError(
                    "nested: it needs a loss of every unit, not joint ones; ask for score='pointwise'."
                )
            if estimate.plan.serial is not False or estimate.plan.blocks is not None:
                raise ValueError(
                    "nested: it is for units that are independent; cv.interval() knows series, fields and groups."
                )
            if np.ptp(estimate._weight) > 0:
                raise ValueError(
                    "nested: units have other sample_weight, which its formulas do not know of; cv.interval() does."
                )
            gone = np.sum(~np.isfinite(estimate.losses))
            if gone:
                raise ValueError(
                    f"nested: {gone} held-out losses do not exist; add a penalty, or take more folds."
                )
            estimates.append(estimate)
    outer, inner = estimates
    nested_error = error_of_nested(folds, outer.plan, inner.plan, outer.losses, inner.losses)
    ratio = 2 - 2 / num_folds
    center = float(ratio * np.mean(outer.losses) + (1 - ratio) * np.mean(inner.losses))
    error = abs(1 - ratio) * inner.approximation_error + ratio * outer.approximation_error
    half = float(scipy.special.ndtri(0.5 + level / 2) * nested_error.value + error)
    return Interval(center - half, center + half, level, "nested")


class NestedError(NamedTuple):
    """The standard error of a mean loss by nested cross-validation, and the instability n γ / σ² of
    the losses.
    """

    value: float
    instability: float


def error_of_nested(
    folds: RandomFolds,
    single: Plan,
    pairs: Plan,
    outer: Float[np.ndarray, " losses"],
    inner: Float[np.ndarray, " pair_losses"],
) -> NestedError:
    """Compute the standard error and the instability of a mean loss, or of the difference of two,
    from the losses by refits without each fold, `outer`, and without each pair, `inner`.
    """
    K = folds.num_folds
    num_groups = folds.num_groups
    num_repeats, num_units = folds.fold.shape
    other = folds.other_fold(pairs.refit, pairs.index)
    label = folds.label
    gap = _mean(inner, other) - _mean(outer, single.refit)
    # sums of the deviations of a group from the mean of its fold
    cell = single.refit // K * num_groups + label[single.index]
    fold_of_cell = np.empty(num_repeats * num_groups, int)
    fold_of_cell[cell] = single.refit
    sums = np.bincount(cell, outer - _mean(outer, single.refit)[single.refit])
    count = np.bincount(fold_of_cell)
    size = np.bincount(single.refit)
    fold_variance = np.bincount(fold_of_cell, sums**2) / size**2 * count / (count - 1)
    mse = (1 - 1 / K) * float(np.mean(gap**2 - fold_variance))
    # sums over a group of the losses without its fold and each other one
    shape = num_repeats, K, num_groups
    cell = other * num_groups + label[pairs.index]
    group_sums = lambda values: np.bincount(cell, values, np.prod(shape)).reshape(shape)
    num_cells = num_repeats * (K - 1) * num_groups
    variance = float(np.sum(group_sums(inner - np.mean(inner)) ** 2)) / (num_cells - 1)
    least = (variance * num_groups) ** 0.5 / num_units
    se = max(least, min(max(mse, 0.0) ** 0.5, least * K**0.5))
    side = other * K + folds.fold[pairs.refit // (K * (K - 1) // 2), pairs.index]
    means = np.bincount(side, inner) / np.maximum(np.bincount(side), 1)
    moves = group_sums(inner - means[side])
    move_variance = (np.sum(moves**2, 1) - moves.sum(1) ** 2 / (K - 1)) / (K - 2)
    fold_size = num_groups / K
    instability = 0.0
    if variance > 0:
        gamma = 2 / (fold_size - 1) * float(np.mean(move_variance))
        instability = num_groups * gamma / variance
    return NestedError(float(se), instability)


def _mean(values: FloatArray, group: IntArray) -> FloatArray:
    return np.bincount(group, values) / np.bincount(group)
