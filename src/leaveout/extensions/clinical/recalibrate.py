"""Recalibration and thresholds that are learned on leave-one-out predictions, with their honest
loss by refits without pairs.

The rule c is learned on the predictions p_i of every unit by the refit without it. Its loss on unit
k is that of c_k(p_k), where c_k is learned on the predictions of the others by the refits without
{i, k}: neither the model nor the rule has seen the unit. Beyond 300 units, or groups, fifty random
folds of them stand for single ones in the loss.

platt       expit(a logit p + b), y smoothed to (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2) (Platt, 1999)
beta        expit(a log p − b log(1 − p) + c), a, b ≥ 0 (Kull, Silva Filho & Flach, AISTATS 2017)
isotonic    the nearest shares that rise with p
venn_abers  p₁/(1 − p₀ + p₁), p_y isotonic with the new row as y (Vovk & Petej, UAI 2014), whose
            theorem is of scores that were learned on other rows, not of leave-one-out scores
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from ... import Exact, Fit, Plan, groups as plan_of_groups, leave_one_out, predict
from ...developer import (
    LEAST_PROBABILITY,
    Lines,
    PrintedTable,
    Rng,
    conventional,
    count,
    float64,
    level_numbers,
    paired_folds,
    reader_for,
    record,
    silence,
    squares,
    standard_error,
    surprise,
)
from .internal_validation import REFIT_TOL, over_resamples
from .performance import Binary, PerRow, performance, regression

Array = np.ndarray
Method = Literal["platt", "beta", "isotonic", "venn_abers"]
Rule = Callable[[PerRow], Array]
Learner = Callable[[PerRow, PerRow], Rule]
Features = list[Callable[[PerRow], PerRow]]
Losses = dict[str, Callable[[PerRow, Array], PerRow]]


@record
class Learned(PrintedTable):
    """A rule that was learned on leave-one-out predictions.

    `lo.clinical.recalibrate` and `lo.clinical.threshold` return it.

    Attributes
    ----------
    table : DataFrame
        The mean loss `before`, of the model's held-out predictions, and `after`, by the rule, with
        their `difference` and its standard error `se`.
    units : DataFrame
        The held-out prediction of each unit, and the `honest` one by a rule that has not seen it.
    fit : Fit
        The fit.
    rule : callable
        The rule, a function of probabilities.
    note : str
        What was learned.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(80, 3))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=80) > 0) * 1.0, "logistic"))
    >>> found = lo.clinical.recalibrate(fit)
    >>> found.table.columns.tolist()
    ['before', 'after', 'difference', 'se']
    """

    table: pd.DataFrame
    units: pd.DataFrame
    fit: Fit
    rule: Rule
    note: str

    def _facts(self) -> Lines:
        return [("learned", self.note)]

    def predict(self, X_new: Any, *, offset: ArrayLike | None = None) -> pd.Series:
        """Apply the rule to the predictions of new rows.

        Parameters
        ----------
        X_new : array-like or DataFrame
            The rows, as in `lo.predict`.
        offset : array-like, optional
            Their offsets.

        Returns
        -------
        Series
            The probability of the second class, or whether it reaches the threshold.
        """
        predicted = predict(self.fit, X_new, "response", offset=offset)
        if predicted.ndim > 1:
            predicted = predicted.iloc[:, 1]
        p = np.clip(predicted.to_numpy(float), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        return pd.Series(self.rule(p), predicted.index)


@conventional
@float64
def recalibrate(
    fit: Fit, *, method: Method = "platt", groups: ArrayLike | None = None, rng: Rng = 0
) -> Learned:
    """Recalibrate the probabilities of a model, and estimate the loss of what results.

    Parameters
    ----------
    fit : Fit
        A fit of a model of two classes.
    method : {"platt", "beta", "isotonic", "venn_abers"}, default "platt"
        Platt's logistic regression on the logit, beta calibration, isotonic regression, or the
        merged probability of Venn–Abers, which has no theorem on leave-one-out scores.
    groups : array-like, optional
        Labels of groups of units, which leave together.
    rng : int, default 0
        Random numbers of the folds beyond 300 units, a seed.

    Returns
    -------
    Learned
        An object with `predict`, and the loss before and after by Brier's score and −log p, which
        is infinite where a probability of zero came true.

    Raises
    ------
    ValueError
        If the method is another, a refit does not exist, or units have different weights.
    TypeError
        If the response is not of two classes.

    See Also
    --------
    threshold : A rule for decisions.
    calibration : How well a model is calibrated.

    References
    ----------
    J. Platt, Probabilistic outputs for support vector machines, 1999.

    M. Kull, T. Silva Filho and P. Flach, Beta calibration, 2017.

    V. Vovk and I. Petej, Venn–Abers predictors, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 8))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=60) > 0) * 1.0, "logistic"))
    >>> better = lo.clinical.recalibrate(fit, method="beta")
    >>> better.predict(X[:2]).round(2).tolist(), bool(better.table.difference["Brier"] < 0)
    ([0.49, 0.36], True)
    """
    if method not in get_args(Method):
        raise ValueError(
            f"recalibrate: method must be one of {', '.join(get_args(Method))}; got {method!r}."
        )
    note = f"{method}, on leave-one-out predictions"
    if method == "venn_abers":
        note += "; its theorem is of scores by other rows, and does not hold on these"
    losses: Losses = {"Brier": squares, "−log p": surprise}
    return _learn("recalibrate", fit, LEARNERS[method], losses, groups, rng, note)


@conventional
@float64
def threshold(fit: Fit, *, cost: float, groups: ArrayLike | None = None, rng: Rng = 0) -> Learned:
    """Learn the threshold of the probability with the least cost, and estimate that cost.

    The cost of a unit is `cost` for a case below the threshold, 1 for a unit without the event at
    or above it. Before learning, the threshold is 1/(1 + cost), the best of true probabilities.

    Parameters
    ----------
    fit : Fit
        A fit of a model of two classes.
    cost : float
        What a missed case costs, in false alarms.
    groups : array-like, optional
        Labels of groups of units, which leave together.
    rng : int, default 0
        Random numbers of the folds beyond 300 units, a seed.

    Returns
    -------
    Learned
        An object with `predict`, which tells whether rows reach the threshold, and the mean cost.

    Raises
    ------
    ValueError
        If the cost is not positive, a refit does not exist, or units have different weights.
    TypeError
        If the response is not of two classes.

    See Also
    --------
    recalibrate : Probabilities instead of decisions.
    decision_curve : Net benefit at every threshold.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> fit = lo.fit(lo.GLM(X, (X[:, 0] + rng.normal(size=60) > 0) * 1.0, "logistic"))
    >>> lo.clinical.threshold(fit, cost=4.0).predict(X[:3]).tolist()
    [True, True, False]
    """
    if not (isinstance(cost, int | float | np.number) and 0 < cost < np.inf):
        raise ValueError(
            f"threshold: cost must be a positive number, that of a missed case in false alarms; got {cost!r}."
        )
    losses: Losses = {
        "cost": lambda y, treated: np.where(y > 0, cost * (1 - treated), treated),
    }
    learner = partial(_threshold, cost=cost)
    note = f"the threshold of least cost {cost:g} : 1, on leave-one-out predictions"
    usual = lambda p: p >= 1 / (1 + cost)
    return _learn("threshold", fit, learner, losses, groups, rng, note, usual)


def _learn(
    caller: str,
    fit: Fit,
    learner: Learner,
    losses: Losses,
    groups: ArrayLike | None,
    rng: Rng,
    note: str,
    before: Rule = np.asarray,
) -> Learned:
    """Learn a rule on leave-one-out predictions, and its losses by refits without pairs."""
    measure = performance(caller, fit)
    seed = count(f"{caller}: rng", rng, 0)
    if not isinstance(measure, Binary):
        raise TypeError(f"{caller}: needs a response of two classes; this model predicts a number.")
    if np.ptp(measure.case) > 0:
        raise ValueError(
            f"{caller}: units have other sample_weight, or zero as rows of separated levels, which its rules do not know of."
        )
    y = measure.y
    plan = leave_one_out()
    if groups is not None:
        plan = plan_of_groups(groups)
    single = reader_for(caller, fit).match(plan)
    label = np.arange(len(y))
    if single.clusters is not None:
        label = level_numbers(single.clusters)
    if label.max() < 2:
        raise ValueError(f"{caller}: groups must be 3 or more; got {label.max() + 1}.")
    folds = paired_folds(label, seed)
    units = {}
    for name, refits in (("alone", single), ("predicted", folds.leave_folds())):
        units[name] = np.empty(len(y))
        units[name][refits.index] = _probabilities(caller, measure, refits)
    pairs = folds.leave_pairs()
    q = _probabilities(caller, measure, pairs)
    other = folds.other_fold(pairs.refit, pairs.index)
    honest = np.empty(len(y))
    for k in range(folds.num_folds):
        entries = other == k
        members = folds.fold[0] == k
        rule = learner(q[entries], y[pairs.index[entries]])
        honest[members] = rule(units["predicted"][members])
    if not np.isfinite(honest).all():
        raise ValueError(
            f"{caller}: predictions without some units separate the classes, where no rule is best; another method has one."
        )
    rows = {}
    for name, loss in losses.items():
        usual = loss(y, before(units["predicted"]))
        learned = loss(y, honest)
        with silence("invalid"):
            difference = learned - usual
        se = np.nan
        if np.isfinite(difference).all():
            se = standard_error(difference, np.ones(len(y)), single).value
        rows[name] = [usual.mean(), learned.mean(), difference.mean(), se]
    table = pd.DataFrame.from_dict(
        rows, orient="index", columns=["before", "after", "difference", "se"]
    )
    columns = {"predicted": units["predicted"], "honest": honest, "outcome": y}
    frame = pd.DataFrame(columns, index=single._unit_names)
    return Learned(table, frame, fit, learner(units["alone"], y), note)


def _probabilities(caller: str, measure: Binary, plan: Plan) -> PerRow:
    """Predict the units that each refit leaves out."""
    score = over_resamples(
        caller, measure.fit, plan, Exact(REFIT_TOL), measure.scores_of_refits, by_unit=True
    ).columns["score"]
    missing = np.isnan(score)
    if missing.any():
        raise ValueError(
            f"{caller}: {missing.sum()} of {len(score)} held-out predictions do not exist. A penalty, such as "
            "lo.penalties.Ridge(1.0), gives each one; levels of absorbed effects need rows of both classes beside them."
        )
    p = special.expit(score)
    return np.clip(p, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)


def _logistic(columns: Features, p: PerRow, target: PerRow) -> tuple[Rule, Array]:
    """Regress a target on functions of the predictions; return the rule and the coefficients."""
    features = lambda q: np.column_stack([*(column(q) for column in columns), np.ones(len(q))])
    theta, _ = regression(features(p), target, np.ones(len(p)), None, False)
    return lambda q: special.expit(features(q) @ theta), theta


def _platt(p: PerRow, y: PerRow) -> Rule:
    positive = y.sum()
    target = np.where(y > 0, (positive + 1) / (positive + 2), 1 / (len(y) - positive + 2))
    return _logistic([special.logit], p, target)[0]


def _beta(p: PerRow, y: PerRow) -> Rule:
    columns: Features = [np.log, lambda q: -np.log1p(-q)]
    rule, theta = _logistic(columns, p, y)
    if theta[:2].min() < 0:
        # at the bound of one coefficient the other is estimated alone
        rule, theta = _logistic([columns[np.argmax(theta[:2])]], p, y)
    return rule


def _isotonic(p: PerRow, y: PerRow) -> Rule:
    from sklearn.isotonic import IsotonicRegression

    return IsotonicRegression(out_of_bounds="clip").fit(p, y).predict


def _venn_abers(p: PerRow, y: PerRow) -> Rule:
    def merged(q: float) -> float:
        """Merge the isotonic probabilities with the new row in both classes."""
        row = np.array([q])
        p0, p1 = (_isotonic(np.append(p, q), np.append(y, k))(row)[0] for k in (0.0, 1.0))
        return float(p1 / (1 - p0 + p1))

    return np.vectorize(merged, otypes=[float])


def _threshold(p: PerRow, y: PerRow, cost: float) -> Rule:
    order = np.argsort(p)
    ends = np.concatenate([[0.0], p[order], [1.0]])
    missed = cost * np.cumsum(np.append(0.0, y[order]))
    treated = np.cumsum(np.append(0.0, 1 - y[order]))
    total = missed + treated[-1] - treated
    # between equal predictions there is no threshold
    total[np.flatnonzero(np.diff(ends) == 0)] = np.inf
    best = np.argmin(total)
    least = (ends[best] + ends[best + 1]) / 2
    return lambda q: q >= least


LEARNERS: dict[str, Learner] = {
    "platt": _platt,
    "beta": _beta,
    "isotonic": _isotonic,
    "venn_abers": _venn_abers,
}
