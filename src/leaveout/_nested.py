"""Nested cross-validation: an interval for the mean loss that knows how far cross-validation itself is off.

Of K random folds, refits without each fold k, and without each pair {j, k}. The refit without k tells its loss on fold k; the
pairs, by the losses of their other folds j, estimate that by cross-validation of all but k:

    a_k = (mean of the others' losses − mean of fold k's)²,      b_k = s²_k / n_k,      MSE = (K − 1)/K · mean(a − b)

over folds and repeats; MSE between s²/n, all units independent, and K times that, none. The centre is corrected for the refits'
fewer units, by what the pairs' cost more than the single folds': ē_pairs − (1 + (K − 2)/K)(ē_pairs − ē_folds) (Bates, Hastie &
Tibshirani, Journal of the American Statistical Association 119, 2024). It costs K (K + 1)/2 refits a repeat, here of one fit.
"""

import numpy as np
import scipy
from jaxtyping import Int
from numpy.typing import NDArray

from ._asked import Evaluate, Named
from ._checkpoint import File, keeping
from ._estimate import Estimate
from ._evaluate import DEFAULT, cross_validate, known
from ._fit import Fit
from ._intervals import Interval
from ._plan import Plan, kfold
from ._stopping import stoppable
from .refit import AbstractRefit


def nested(
    fit: Fit,
    level: float = 0.95,
    *,
    num_folds: int = 10,
    repeats: int = 20,
    refit: AbstractRefit = DEFAULT,
    evaluate: Evaluate | Named | None = None,
    seed: int = 0,
    checkpoint: File | None = None,
) -> Interval:
    """An interval for the mean loss, on new units, of the model that was fitted, by nested cross-validation.

    Folds are random, `repeats` times `num_folds` of them; `evaluate` is as in `cross_validate`. More repeats make it depend
    less on `seed`. What the refits may be off is added on both sides. It is none for a new response: that is `lo.interval`.
    `checkpoint` names a file that keeps what is done: a call that was killed goes on from there, to the same numbers; a file is
    good for every `level`.

    Raises `ValueError` where units depend on one another or weigh differently, folds have fewer than two units, a refit has no
    loss, or losses are joint, or `checkpoint` is of another run; `TypeError` on what is no fit; `Interrupted` on Ctrl-C.
    """
    if not isinstance(fit, Fit):
        raise TypeError(f"nested: the first argument must be a Fit, from lo.fit or lo.from_sklearn; got {type(fit).__name__}.")
    if not (isinstance(level, float | np.floating) and 0 < level < 1):
        raise ValueError(f"nested: level must lie between 0 and 1; got {level!r}.")
    if not all(isinstance(count, int | np.integer) for count in (num_folds, repeats, seed)):
        raise ValueError(
            f"nested: num_folds, repeats and seed must be whole numbers; got {num_folds!r}, {repeats!r} and {seed!r}."
        )
    if num_folds < 3 or repeats < 1 or 2 * num_folds > fit.objective.num_units:
        raise ValueError(
            f"nested: it needs 3 folds or more, of 2 units or more each, and 1 repeat or more; got {num_folds} folds of "
            f"{fit.objective.num_units} units, and {repeats} repeats."
        )
    fold = np.stack([_folds(fit.objective.num_units, num_folds, seed + k) for k in range(repeats)])
    pair = np.transpose(np.triu_indices(num_folds, 1))
    single = _plan(fold, np.arange(num_folds)[:, None])
    with stoppable("nested"), keeping("nested", checkpoint, known(fit, single, refit, evaluate=evaluate)):
        outer, inner = (
            _losses(cross_validate(fit, plan, refit, evaluate=evaluate, audit=0)) for plan in (single, _plan(fold, pair))
        )
    which = pair[inner.plan.refit % len(pair)].sum(1)  # of each loss the pair; less its own fold it is the other one
    first = inner.plan.refit // len(pair)
    beside = first * num_folds + which - fold[first, inner.plan.index]
    apart = _mean(inner.losses, beside) - _mean(outer.losses, outer.plan.refit)
    spread = _mean(outer.losses**2, outer.plan.refit) - _mean(outer.losses, outer.plan.refit) ** 2
    size = np.bincount(outer.plan.refit)
    mse = (1 - 1 / num_folds) * float(np.mean(apart**2 - spread / (size - 1)))
    least = float(np.std(inner.losses, ddof=1)) / fold.shape[1] ** 0.5
    se = min(max(mse, 0.0) ** 0.5, least * num_folds**0.5)
    share = 2 - 2 / num_folds
    center = np.mean(inner.losses) - share * (np.mean(inner.losses) - np.mean(outer.losses))
    off = abs(1 - share) * inner.approximation_error + share * outer.approximation_error
    half = float(scipy.stats.norm.ppf(0.5 + level / 2) * max(se, least) + off)
    return Interval(float(center) - half, float(center) + half, level, "nested")


def _folds(n: int, num_folds: int, seed: int) -> Int[np.ndarray, " units"]:
    """The fold that each unit is in."""
    plan = kfold(n, num_folds, seed=seed)
    found = np.empty(n, np.int64)
    found[plan.index] = plan.refit
    return found


def _plan(fold: Int[np.ndarray, "repeats units"], sets: Int[np.ndarray, "sets size"]) -> Plan:
    """Each set of folds left out together, in every repeat."""
    units = [np.flatnonzero(np.isin(own, some)) for own in fold for some in sets]
    index = np.concatenate(units)
    zeros = np.zeros(len(index))
    return Plan(np.r_[0, np.cumsum([len(some) for some in units])], index, zeros, zeros == 0, fold.shape[1])


def _mean(values: NDArray[np.float64], group: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.bincount(group, values) / np.bincount(group)


def _losses(found: Estimate) -> Estimate:
    """ValueError where nested cross-validation has nothing to go by."""
    if found.joint:
        raise ValueError("nested: it needs a loss of every unit, not joint ones; ask for score='pointwise'.")
    if found.plan.serial is not False or found.plan.blocks is not None:
        raise ValueError("nested: it is for units that are independent; cv.interval() knows series, fields and groups.")
    if found.unit_weight is not None and np.ptp(found.unit_weight) > 0:
        raise ValueError("nested: units have other sample_weight, which its formulas do not know of; cv.interval() does.")
    gone = np.sum(~np.isfinite(found.losses))
    if gone:
        raise ValueError(f"nested: {gone} held-out losses do not exist; add a penalty, or take more folds.")
    return found
