"""Comparison of several models: which predicts best, by how much, and with what uncertainty."""

import abc
import operator
import os
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import optimize, special

from .._runtime import (
    RESULTS,
    TERMINAL_WIDTH,
    NamedArrays,
    NamedValues,
    NumberAndArray,
    Rng,
    TwoNumbers,
    conventional,
    level_numbers,
    provided,
    silence,
    text_within,
    warn,
)
from ..data import UnitColumn, join_remarks, share
from ..objectives import LOG_DENSITY, LOG_LIKELIHOOD, LOG_PROBABILITY
from ..plans import Plan
from .checks import FEW_UNITS
from .differences import TARGETS, DifferenceError, DifferenceMethod, difference_errors
from .estimate import LOSS_ROUNDING, Estimate
from .repeated_folds import independent_groups
from .standard_errors import Independent, independent

Array = np.ndarray
# difference of summed log densities below which its standard error is too small (Sivula, Magnusson,
# Matamoros & Vehtari, arXiv 2008.10296)
CLOSE_DENSITIES = 4.0
SIGN = 3.0  # models are alike below so many standard errors
# alternatives to the best from which on the order statistic of their differences is known
MANY_MODELS = 10
TEMPERATURE = 2.5  # of the weights of rivals: larger ones are more stable, with less power
HEAVY_TAIL = 0.5  # Pareto's k of the tails of differences from which on their variance is infinite
# columns that are always printed
MAIN_COLUMNS = "mean", "se", "difference", "se_difference", "p_worse"
# columns that are printed below the table
METHOD_COLUMNS = "low", "high", "level", "method", "target", "instability", "unreliable"


class AbstractComparable(abc.ABC):
    """The interface of results other than estimates that `compare` takes."""

    @staticmethod
    @abc.abstractmethod
    def _compare(results: NamedValues) -> "Comparison":
        """Compare results by name; TypeError if some are of another kind."""


class Comparison(pd.DataFrame):
    """The table of `compare`, a DataFrame with one row a model, and the estimates that it compares.

    Attributes
    ----------
    estimates : dict of str to Estimate
        The estimates by name.

    See Also
    --------
    compare : Make a comparison.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(30, 1))
    >>> y = 2 * x[:, 0] + rng.normal(size=30)
    >>> models = {
    ...     "slope": lo.GLM(x, y, "squared"),
    ...     "none": lo.GLM(0 * x, y, "squared", lo.penalties.Ridge(1.0)),
    ... }
    >>> cv = {
    ...     name: lo.cross_validate(lo.fit(model), lo.kfold(k=10)) for name, model in models.items()
    ... }
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # 30 rows are few
    ...     found = lo.compare(cv)
    >>> list(found.index), sorted(found.estimates)
    (['slope', 'none'], ['none', 'slope'])
    """

    # attributes that pandas must not take for columns
    _metadata: ClassVar[list[str]] = ["estimates", "_losses"]
    estimates: dict[str, Estimate]
    _losses: pd.DataFrame  # of units, that all models have

    def __repr__(self) -> str:
        """Print names, means, differences and their standard errors, and the other columns as far
        as they fit.

        Columns that do not fit are named below the table, and diagnoses stand there. Long names are
        cut.
        """
        short = ["missing"] if "missing" in self and self["missing"].any() else []
        main = [name for name in (*MAIN_COLUMNS, *short) if name in self]
        hidden = {*main, "kind", "missing", "diagnosis", *METHOD_COLUMNS}
        optional = [name for name in self.columns if name not in hidden]
        text, omitted = text_within(
            self, main, [name for name in optional if self[name].notna().any()], 6
        )
        null = self["no_model"].dropna().unique() if "no_model" in self else []
        notes = []
        if len(null):
            notes = [f"no model loses {', '.join(f'{loss:.6g}' for loss in null)}"]
        notes += [f"SE: {kind}" for kind in dict.fromkeys(self.get("kind", ()))]
        notes += self._interval_notes()
        doubtful = self["diagnosis"][self["diagnosis"] != ""] if "diagnosis" in self else {}
        notes += [f"diagnosis of {name}: {why}" for name, why in doubtful.items()]
        notes += [f"more columns: {', '.join(map(str, omitted))}"] if omitted else []
        return "\n".join([text, *(textwrap.fill(note, TERMINAL_WIDTH) for note in notes)])

    def _interval_notes(self) -> list[str]:
        """Say what the intervals of differences are, and which of them are unreliable."""
        if "method" not in self:
            return []
        method, target, level = self.iloc[0][["method", "target", "level"]]
        notes = [f"differences: {level:.0%} intervals by method={method!r}, of {target}"]
        for name, row in self.iloc[1:].iterrows():
            interval = f"{name}: {row.low:.4g} to {row.high:.4g}"
            if np.isfinite(row.instability):
                interval += f", instability {row.instability:.2g}"
            if row.unreliable:
                interval += f"; unreliable: {row.unreliable}"
            notes.append(interval)
        return notes

    @conventional
    def best_set(self, level: float = 0.95) -> pd.Series:
        """List the models that cannot be told apart from the best, by argmin inference.

        Model r is tested against a mean of its rivals s, whose weights for unit i, exp(−λ l̄_s
        without i), are held out of the loss of the unit. With d_i = l_ir − Σ_s w_s l_is, the
        p-value is 1 − Φ(√n d̄ / SD d), and of many units the best is in the set with probability
        `level`, however many models there are. Groups and blocks are taken for units.

        Parameters
        ----------
        level : float, default 0.95
            The probability with which the best is in the set.

        Returns
        -------
        Series
            The p-value of each model of the set, above 1 − level, by its name, the best first.

        Raises
        ------
        ValueError
            If losses are joint, units have no independent groups, or models lack different losses.

        References
        ----------
        T. Zhang, H. Lee and J. Lei, Winners with confidence: discrete argmin inference with an
        application to model selection, 2024.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(120, 3))
        >>> y = X[:, 0] + rng.normal(size=120)
        >>> cv = {
        ...     str(p): lo.cross_validate(lo.fit(lo.GLM(X[:, 3 - p :], y, "squared")), 10)
        ...     for p in (1, 2, 3)
        ... }
        >>> lo.compare(cv).best_set(0.9).index.tolist()
        ['3']
        """
        share("best_set: level", level)
        if not hasattr(self, "_losses"):
            raise ValueError("best_set: it is of comparisons of estimates of cross_validate.")
        if np.ptp(self["missing"]) > 0:
            raise ValueError(
                "best_set: some models lack more losses than others, which may be their high ones; compare those that have all."
            )
        losses = self._losses[self.index].to_numpy()
        reference = _most_dependent([*self.estimates.values()], losses[:, 0])
        differences = losses[:, 1:] - losses[:, :1]
        label = independent_groups("best_set", reference, [*differences.T], partial=True)
        scored = label >= 0
        weight = reference._weight[scored]
        label = label[scored]
        # losses of groups, whose mean and standard error are those of units
        scale = weight * (label.max() + 1) / weight.sum()
        means = weight @ losses[scored] / weight.sum()
        deviations = pd.DataFrame(scale[:, None] * (losses[scored] - means))
        of_groups = means + deviations.groupby(label).sum().to_numpy()
        p_values = [_p_value_of_best(of_groups, k) for k in range(len(means))]
        tests = pd.Series(p_values, self.index, name="p_value")
        return tests[tests > 1 - level]

    def report(self, path: str | os.PathLike[str], *, title: str = "") -> Path:
        """Write the comparison to one self-contained page, as `lo.report` does. Needs
        `leaveout[report]`.

        Parameters
        ----------
        path : path
            The file to write; its name ends in .html.
        title : str, optional
            The title of the page.

        Returns
        -------
        Path
            The file that was written.
        """
        if not all(isinstance(estimate, Estimate) for estimate in self.estimates.values()):
            raise TypeError(
                "report: pages are of estimates of cross_validate; show this table by its to_markdown()."
            )
        return provided("report").report(self.estimates, path, title=title)


def _p_value_of_best(losses: Float[Array, "groups models"], model: int) -> float:
    """Test whether a model's mean loss is the least, against weighted rivals."""
    excess = _difference(losses[:, [model]], np.delete(losses, model, axis=1))
    sd = excess.std(0, ddof=1)
    if (excess[0, sd == 0] > 0).any():  # worse than another by the same everywhere
        return 0.0
    excess = excess[:, sd > 0] / sd[sd > 0]
    n = len(excess)
    if not excess.size:
        return 1.0
    held_out = (excess.sum(0) - excess) / (n - 1)
    # the spread of the excess over the rival that seems best without the group
    hardest = np.take_along_axis(excess, held_out.argmax(1)[:, None], 1)
    temperature = np.sqrt(n) / (TEMPERATURE * hardest.std(ddof=1))
    weight = special.softmax(temperature * held_out, axis=1)
    margin = np.sum(weight * excess, 1)
    return float(special.ndtr(-np.sqrt(n) * margin.mean() / margin.std(ddof=1)))


def _difference(losses: Array, others: Array) -> Array:
    """Subtract losses; those that differ by rounding are equal."""
    equal = np.isclose(losses, others, rtol=LOSS_ROUNDING, atol=0.0)
    return np.where(equal, 0.0, losses - others)


def _most_dependent(estimates: list[Estimate], losses: Array) -> Estimate:
    """Return the estimate by whose plan the fewest units are independent: that units depend on one
    another is a fact of the data, though only some models or plans may state it.
    """

    def num_independent(estimate: Estimate) -> float:
        plan = estimate.plan
        if plan.serial is None and plan.clusters is None and plan.blocks is None:
            return np.inf  # it states nothing
        return independent(losses, estimate._weight, plan).units

    if estimates[0].joint:
        return estimates[0]
    return min(estimates, key=num_independent)


@conventional
def compare(
    estimates: dict[str, Estimate] | NamedValues,
    *,
    jacobian: Mapping[str, ArrayLike] | None = None,
    method: DifferenceMethod | None = None,
    level: float = 0.95,
    num_repeats: int | None = None,
    rng: Rng = 0,
) -> Comparison:
    """Compare estimates of several models by their paired differences from the best.

    The difference of two models is the mean over units of the difference of their losses. Its
    standard error is that of the paired difference, by the same rule as `Estimate.se`, and by the
    plan with the fewest independent units where plans or models state other dependence. Losses that
    differ by rounding, 1e-8 of them, are equal.

    Every mean is over the losses that all models have: over rows of refits if the folds are the
    same, else over units. A model that lacks more losses than another is ranked behind it, whatever
    its mean, as the losses that it lacks may be the high ones.

    Parameters
    ----------
    estimates : dict of str to Estimate
        Two or more estimates by name, which score the same units, response and loss. Results of
        `leakage_corrected` and reports of leakage are compared too, if they share folds, clusters
        and score.
    jacobian : dict of str to array-like [units], optional
        For models of a transformed response z(y), log |dz/dy| of every unit by the model's name. It
        is subtracted from the losses, as −log p(y) = −log p(z) − log |dz/dy|; for z = log y it is
        −log y.
    method : {"nested", "bootstrap", "corrected", "conservative"}, optional
        How the standard errors of differences count what the refits have in common; by default they
        do not. "nested" is nested cross-validation, for the difference of the risks of the folds'
        refits. The others are for the mean difference over samples of this size: "bootstrap" is
        the component of the variance between bootstrap samples, each divided twice into folds
        (Cai et al.), "corrected" the corrected resampled t over the folds of the plan, and
        "conservative" the conservative z of halves of the data (both Nadeau & Bengio). All but
        "corrected" refit the models, from the fits that the estimates keep, in as many folds as the
        plan has, or ten, without its buffers; groups and blocks stay together, and the columns that
        a formula learned stay as they are.
    level : float, default 0.95
        The coverage of the intervals of `method`.
    num_repeats : int, optional
        The number of partitions of "nested" (20), samples of "bootstrap" (200) or pairs of halves
        of "conservative" (10).
    rng : int, default 0
        Random numbers of `method`, a seed.

    Returns
    -------
    Comparison
        A DataFrame with one row a model, the best first. `mean` and `se` are the model's own.
        `difference` is that from the lowest mean, and `se_difference` its standard error. `p_worse`
        is the probability that the model is worse than the best, Φ(difference / se_difference).
        `elpd_diff` and `se_diff` are the difference of the summed log densities, zero or less as in
        R's `loo_compare`, and its standard error; NaN for losses that are no log densities.
        `diagnosis` says why the normal distribution of a difference is not to be trusted, "" if
        nothing is seen: "N < 100" independent units, "|elpd_diff| < 4" of near-equal models, or
        "heavy tails" of the differences of units, whose generalised Pareto distribution has k
        > 0.5, so no variance. `approximation_error` is that of the difference, and `kind` describes
        the standard error. Where losses are −log densities, `weight` is the weight of the model in
        the mixture of predictive densities with the lowest mean loss (stacking), and `pseudo_bma`
        is proportional to exp(elpd). For results of leakage, `approximation_error` is the
        Monte-Carlo error of the difference, over draws that both share. With a `method` there are
        the ends `low` and `high` of the interval of the difference, its `target`, and `unreliable`,
        which says why its coverage may be lower, "" if nothing is seen: fewer than 20 independent
        groups, a method that was too narrow for the risks of refits in simulations ("bootstrap"),
        or an `instability` that is not small, above 0.35. That is n γ / σ² of the losses'
        differences, where γ is the mean square of their change with one unit of the refit, by the
        refits of "nested" without pairs of folds.

    Raises
    ------
    ValueError
        If the estimates do not score the same units, the same response, or by the same score, or
        no unit has a loss of all; if a method refits and single cases of units leave; or if
        `jacobian` is of losses that are no −log densities of units. Different responses are
        accepted with `jacobian`, or if one function of yours scores all.
    TypeError
        If an argument is not an estimate, or not all are of one kind.

    Warns
    -----
    UserWarning
        If the approximation error exceeds a tenth of the standard error of a difference; if that
        standard error is too small, with fewer than 100 independent units or models whose summed
        log densities differ by less than 4 and by no more than three standard errors; if a model
        lacks losses; or if `evaluate` was not the same function for all.

    References
    ----------
    T. Sivula, M. Magnusson, A. A. Matamoros and A. Vehtari, Uncertainty in Bayesian leave-one-out
    cross-validation based model comparison, 2020.

    Y. Yao, A. Vehtari, D. Simpson and A. Gelman, Using stacking to average Bayesian predictive
    distributions, 2018.

    J. Zhang and M. A. Stephens, A new and efficient estimation method for the generalized Pareto
    distribution, 2009.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = 2 * X[:, 0] + rng.normal(size=200)
    >>> fits = {
    ...     "one": lo.fit(lo.GLM(X[:, :1], y, "squared")),
    ...     "other": lo.fit(lo.GLM(X[:, 1:], y, "squared")),
    ... }
    >>> table = lo.compare(
    ...     {name: lo.cross_validate(fit, lo.leave_one_out()) for name, fit in fits.items()}
    ... )
    >>> table[["mean", "difference", "se_difference"]].round(2)
           mean  difference  se_difference
    one    0.51        0.00           0.00
    other  2.36        1.85           0.23
    """
    is_mapping = isinstance(estimates, Mapping)
    listed = list(estimates.values()) if is_mapping else []
    others = [result for result in listed if isinstance(result, AbstractComparable)]
    if others:
        if jacobian is not None or method is not None:
            raise TypeError(
                "compare: jacobian and method are of estimates of cross_validate; leave them out."
            )
        return others[0]._compare(estimates)
    if not is_mapping or not all(isinstance(estimate, Estimate) for estimate in listed):
        kinds = {type(estimate).__name__ for estimate in listed or [estimates]}
        raise TypeError(
            f"compare: give estimates by name, {{name: estimate}}; got {', '.join(kinds)}."
        )
    if len(listed) < 2:
        raise ValueError(
            f"compare: give two or more estimates, {{name: estimate}}; got {len(listed)}."
        )
    share("compare: level", level)
    if jacobian is not None:
        if method not in (None, "corrected"):
            raise ValueError(
                f"compare: method={method!r} refits the models, whose losses have no jacobian; give method='corrected' or None."
            )
        estimates = _add_jacobian(estimates, jacobian)
    _require_comparable(estimates)
    missing = {name: estimate._missing for name, estimate in estimates.items()}
    # the losses that all have: of rows of refits if the folds are the same, so that every unit is
    # averaged over the same refits in all estimates; else of units
    same = all(_same_folds(estimate.plan, listed[0].plan) for estimate in listed)
    losses = {
        name: estimate.losses if same else estimate._unit_losses
        for name, estimate in estimates.items()
    }
    exists = np.isfinite([*losses.values()])
    common = exists.all(0)
    lacking = [
        f"{name!r} has no loss of {count} held-out rows" for name, count in missing.items() if count
    ]
    if lacking:
        warn(
            f"compare: {', '.join(lacking)}: means are of what all models have a loss of, and a model that lacks more than "
            "another is ranked behind it."
        )
    elif (common != exists.any(0)).any():
        warn("compare: some units are scored by some models only; they are left out of every mean.")
    if not common.any():
        raise ValueError("compare: no unit has a loss of all models; use one plan for all.")
    losses = {name: np.where(common, loss, np.nan) for name, loss in losses.items()}
    values = losses
    if same:
        values = {name: estimates[name].average(loss) for name, loss in losses.items()}
    best = min(values, key=lambda name: (missing[name], estimates[name]._mean(values[name])))
    reference = _most_dependent([estimates[best], *estimates.values()], values[best])
    if not same:
        if method is not None:
            raise ValueError(
                f"compare: method={method!r} is of models with the same folds; use one plan for all."
            )
        warn(
            "compare: the plans leave out other units: models that see other data are compared, not models alone."
        )
    errors = {best: DifferenceError(0.0)}
    if method is not None:
        differences = {name: values[name] - values[best] for name in values if name != best}
        errors |= difference_errors(
            estimates, differences, best, reference, method, num_repeats, rng
        )
    rows = {}
    groups = []
    is_density = estimates[best].score in (LOG_DENSITY, LOG_PROBABILITY, LOG_LIKELIHOOD)
    for name, estimate in estimates.items():
        se = estimate._standard_error(values[name])
        difference = _difference(values[name], values[best])
        if name not in errors:
            errors[name] = DifferenceError(reference._standard_error(difference).value)
        se_difference = errors[name].value
        mean_difference = reference._mean(difference)
        seen = np.isfinite(difference) & (reference._weight > 0)
        num_units = count = float(np.sum(seen))
        if reference.plan.of_cases:
            count = reference._weight[seen].sum()
        if not is_density:
            count = np.nan
        elpd_difference = -mean_difference * count + 0.0
        diagnosis = ""
        approximation_error = 0.0
        if name != best:
            approximation_error = estimate.approximation_error + estimates[best].approximation_error
            if not reference.joint:
                groups.append(independent(difference, reference._weight, reference.plan))
                num_units = groups[-1].units
            diagnosis = _diagnosis(difference[seen], num_units, elpd_difference)
        rows[name] = {
            "mean": estimate._mean(values[name]),
            "se": se.value,
            "difference": mean_difference,
            "se_difference": se_difference,
            "elpd_diff": elpd_difference,
            "se_diff": se_difference * count,
            "p_worse": probability_of_worse(mean_difference, se_difference),
            "diagnosis": diagnosis,
            "no_model": estimate.no_model,
            "explained": estimate.explained,
            "missing": missing[name],
            "approximation_error": approximation_error,
            "kind": se.kind,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    if is_density:
        place = int(table.columns.get_loc("approximation_error"))
        table.insert(place, "weight", _stacking_weights(values, estimates[best]._weight))
        table.insert(place + 1, "pseudo_bma", special.softmax(table["elpd_diff"].to_numpy(float)))
    _warn(table, estimates, best, groups)
    if method is not None:
        table = _add_intervals(table, errors, method, level)
    comparison = Comparison(table.sort_values(["missing", "mean"]))
    comparison.estimates = dict(estimates)
    comparison._losses = pd.DataFrame(values)
    return comparison


def _add_intervals(
    table: pd.DataFrame, errors: dict[str, DifferenceError], method: DifferenceMethod, level: float
) -> pd.DataFrame:
    """Add the columns of a method."""
    error = pd.DataFrame([errors[name] for name in table.index], table.index)
    quantile = special.stdtrit(error["dof"].to_numpy(), 0.5 + level / 2)
    half = quantile * error["value"] + table["approximation_error"]
    return table.assign(
        low=table["difference"] - half,
        high=table["difference"] + half,
        level=level,
        instability=error["instability"],
        unreliable=error["unreliable"],
        method=method,
        target=TARGETS[method],
    )


def _same_folds(a: Plan, b: Plan) -> bool:
    parts = operator.attrgetter("index", "indptr", "weight", "held")
    return all(map(np.array_equal, parts(a), parts(b)))


def _warn(
    table: pd.DataFrame,
    estimates: dict[str, Estimate],
    best: str,
    groups: list[Independent],
) -> None:
    """Warn of differences that are less certain than they seem."""
    caution = lambda text: warn(f"compare: {text}")
    rivals = table.drop(index=best)
    if len(rivals) > MANY_MODELS and _is_order_statistic(table["mean"].to_numpy()):
        caution(
            f"{best!r} is no better than the best of {len(table)} models that predict alike would seem by chance."
        )
    for name, row in rivals.iterrows():
        if row.approximation_error > 0.1 * row.se_difference + LOSS_ROUNDING * (
            1 + abs(row["mean"])
        ):
            is_exact = all(
                estimates[model].labels.refit.startswith("Exact(") for model in (name, best)
            )
            caution(
                f"the approximation error of {name!r} against {best!r}, {row.approximation_error:.1g}, exceeds a tenth of the "
                f"standard error of their difference, {row.se_difference:.1g}{'' if is_exact else '; use Exact(), or more draws'}."
            )
    close = rivals.index[
        (rivals.difference != 0)
        & (rivals.elpd_diff.abs() < CLOSE_DENSITIES)
        & ~(rivals.difference.abs() > SIGN * rivals.se_difference)
    ]
    if len(close):
        caution(
            f"{', '.join(map(repr, close))} and {best!r} differ by less than {CLOSE_DENSITIES:g} in summed log density: they predict "
            "about alike, and the standard error of the difference is too small to say more."
        )
    fewest = FEW_UNITS
    for units in groups:
        if units.enough:
            fewest = min(fewest, units.units)
        else:
            caution(f"the difference has no standard error: {units.kind}.")
    if fewest < FEW_UNITS:
        caution(
            f"{fewest} independent units are fewer than {FEW_UNITS}; standard errors of differences may be too small."
        )


def _is_order_statistic(means: Array) -> bool:
    """Tell whether the best of models is no further from the median one than the largest of so many
    draws of one normal distribution (McLatchie & Vehtari, 2024).
    """
    gains = np.sort(means)[(len(means) - 1) // 2] - means
    spread = np.sqrt(np.mean(gains[gains >= np.median(gains)] ** 2))
    return bool(gains.max() <= spread * special.ndtri(1 - 0.5 / (len(means) - 1)))


def _diagnosis(differences: Array, num_units: float, elpd_difference: float) -> str:
    """List the reasons why the difference of two models may not be distributed normally."""
    tails = [
        tail_index(side)
        for side in (differences - np.median(differences), np.median(differences) - differences)
    ]
    reasons = {
        f"N < {FEW_UNITS}": num_units < FEW_UNITS,
        f"|elpd_diff| < {CLOSE_DENSITIES:g}": abs(elpd_difference) < CLOSE_DENSITIES,
        "heavy tails": max(tails) > HEAVY_TAIL,
    }
    return "; ".join(why for why, holds in reasons.items() if holds)


def tail_index(values: Array) -> float:
    """Estimate the k of the generalised Pareto distribution of the upper tail, by Zhang and
    Stephens; −∞ for short tails.

    Moments of order 1/k and above do not exist.
    """
    # of the tail, as Pareto smoothing takes it
    length = int(min(0.2 * len(values), 3 * np.sqrt(len(values))))
    if length < 5:  # fewer show no tail
        return -np.inf
    ranked = np.sort(values)
    excess = ranked[len(ranked) - length :] - ranked[-length - 1]
    excess = excess[excess > 1e-12 * np.abs(ranked).max()]
    if len(excess) < 5:
        return -np.inf
    return fit_pareto(excess)[0]


def fit_pareto(excess: Float[Array, " tail"]) -> TwoNumbers:
    """Estimate k and the scale of a generalised Pareto distribution from sorted numbers (Zhang and
    Stephens, 2009).
    """
    n = len(excess)
    grid = np.arange(0.5, 30 + int(np.sqrt(n)))  # the authors' points and factor 3
    with silence("all"):  # of numbers that are nearly equal, whose k is not finite
        rate = (1 - np.sqrt(len(grid) / grid)) / (3 * excess[int(n / 4 + 0.5) - 1]) + 1 / excess[-1]
        k = np.log1p(-rate[:, None] * excess).mean(1)
        weight = special.softmax(n * (np.log(-rate / k) - k - 1))
        weight[weight < 10 * np.finfo(float).eps] = 0.0
        posterior_rate = rate @ weight / weight.sum()
        k_of_rate = np.log1p(-posterior_rate * excess).mean()
        return float(k_of_rate), float(-k_of_rate / posterior_rate)


def probability_of_worse(difference: float, se: float) -> float:
    """Return the probability that a difference, by its standard error, is above zero."""
    if np.isnan(se):
        return np.nan
    if se > 0:
        return float(special.ndtr(difference / se))
    return 0.5 + 0.5 * float(np.sign(difference))


def _stacking_weights(values: NamedArrays, weight: Array) -> Float[Array, " models"]:
    """Compute the weights of the mixture Σ_k a_k p_k with the lowest mean −log density.

    They solve `min −Σ w log Σ_k a_k e^{−l_k}`, Σ a = 1, a ≥ 0.
    """
    losses = np.stack(list(values.values()), 1)
    seen = np.isfinite(losses).all(1) & (weight > 0)
    losses = losses[seen]
    weight = weight[seen] / weight[seen].sum()
    density = np.exp(losses.min(1, keepdims=True) - losses)

    def criterion(logits: Array) -> NumberAndArray:
        share = special.softmax(logits)
        mixed = density @ share
        slope = -(weight / mixed) @ density
        return float(-weight @ np.log(mixed)), share * (slope - share @ slope)

    solution = optimize.minimize(
        criterion, np.zeros(losses.shape[1]), jac=True, method="L-BFGS-B", tol=1e-12
    )
    return special.softmax(solution.x)


def _add_jacobian(
    estimates: dict[str, Estimate], jacobian: Mapping[str, ArrayLike]
) -> dict[str, Estimate]:
    """Convert estimates to −log densities of the response as it was measured."""
    if not isinstance(jacobian, Mapping):
        raise TypeError(
            f"compare: give jacobian by name, {{name: log |dz/dy| of every unit}}; got {type(jacobian).__name__}."
        )
    converted = dict(estimates)
    for name, column in jacobian.items():
        if name not in estimates:
            raise ValueError(
                f"compare: jacobian names {name!r}, which is none of {', '.join(map(repr, estimates))}."
            )
        estimate = estimates[name]
        if estimate.joint or estimate.score not in (LOG_DENSITY, ""):
            kind = "joint" if estimate.joint else estimate.score
            raise ValueError(
                f"compare: jacobian is of −log densities of units; the losses of {name!r} are {kind}. Ask for "
                "cross_validate(..., evaluate='log_density')."
            )
        plan = estimate.plan
        units = UnitColumn.read("compare", f"jacobian of {name!r}", column, plan.num_units)
        log_slope = units.in_order("compare", plan.names).astype(float)[plan.index]
        if not np.isfinite(log_slope).all():
            raise ValueError(
                f"compare: jacobian of {name!r} must be finite numbers, log |dz/dy| of every unit."
            )
        notes = estimate.labels.note, "log |dz/dy| of its response is subtracted"
        null_losses = None if estimate._null is None else estimate._null - log_slope
        converted[name] = replace(
            estimate,
            losses=estimate.losses - log_slope,
            baseline=estimate.baseline - log_slope,
            null_losses=null_losses,
            response=None,
            labels=replace(estimate.labels, note=join_remarks(*notes)),
        )
    return converted


def _require_comparable(estimates: dict[str, Estimate]) -> None:
    """Raise ValueError if units, their order or weights, responses or scores differ, or a run was
    stopped; warn where only the user can know whether scores are alike.
    """
    if len({(len(e._unit_losses), e.joint) for e in estimates.values()}) > 1:
        raise ValueError(
            "compare: the estimates must score the same units, all pointwise or all joint; use one plan for all."
        )
    for name, estimate in estimates.items():
        if np.any(estimate.result == RESULTS.interrupted):
            raise ValueError(
                f"compare: {name!r} was stopped before all its refits were made; let it go on first."
            )
    unit_names = [e.plan.names for e in estimates.values() if e.plan.names is not None]
    if any(not names.equals(unit_names[0]) for names in unit_names):
        raise ValueError(
            "compare: the models number their units in another order, or have others; give all the same data."
        )
    # none for a model with a jacobian, whose losses were converted
    with_response = [(name, e) for name, e in estimates.items() if e.response is not None]
    # all by a function of the user (no known score, and evaluate= among the arguments), who alone
    # knows their scale
    own_scores = all(not e.score and "evaluate=" in e.labels.asked for e in estimates.values())
    for name, rival in with_response[1:]:
        first, reference = with_response[0]
        where = _unlike(reference, rival)
        if where:
            claim = f"{first!r} and {name!r} predict other responses, {where}: their losses are"
            if own_scores:
                warn(
                    f"compare: {claim} taken to be on one scale, that of evaluate=, which is asked of all."
                )
                break  # one warning is enough
            raise ValueError(
                f"compare: {claim} not of one thing. Fit all models to the response as it was measured; for one that was "
                "transformed, compare densities by compare(..., jacobian={name: log |dz/dy|}), or write one evaluate= for all, "
                "in the units of the original."
            )
    weights = [e._weight / e._weight.mean() for e in estimates.values()]
    if not all(np.allclose(weight, weights[0]) for weight in weights):
        raise ValueError(
            "compare: the models weigh the units of the mean differently; give all the same sample_weight."
        )
    scores = {name: e.score for name, e in estimates.items() if e.score}
    densities = {*scores.values()} & {LOG_DENSITY, LOG_PROBABILITY}
    # LOG_LIKELIHOOD is a density or a probability, for which its user vouches: that of the others
    if len(densities) == 1:
        (kind,) = densities
        scores = {
            name: kind if score == LOG_LIKELIHOOD else score for name, score in scores.items()
        }
    if len(set(scores.values())) > 1:
        listed = "; ".join(f"{name!r} by {score}" for name, score in scores.items())
        mixed_kinds = {LOG_DENSITY, LOG_PROBABILITY} == set(scores.values())
        why = "a density and a probability have no common scale. " if mixed_kinds else ""
        raise ValueError(
            f"compare: these are other scores: {listed}. {why}Ask all models for one score: cross_validate(..., evaluate="
            "'squared_error'), 'absolute_error', 'crps' or another that all have."
        )
    # fingerprints of the users' functions, by name of model
    unknown = {
        name: e.labels.function for name, e in estimates.items() if not e.score or e.labels.function
    }
    ours = [score for name, score in scores.items() if name not in unknown]
    if (ours and unknown) or len(set(unknown.values())) > 1:
        assumed = "of one score, though by other functions"
        if ours:
            assumed = f"{ours[0]}, as the others are"
        listed = ", ".join(map(repr, unknown))
        warn(
            f"compare: what the losses of {listed} are is not known; they are taken to be {assumed}."
        )


def _unlike(a: Estimate, b: Estimate) -> str:
    """Say where the responses of two estimates differ, "" if they are of one.

    Classes may be numbered differently, if one to one.
    """
    assert a.response is not None and b.response is not None
    first = a.response.reshape(len(a.response), -1)
    second = b.response.reshape(len(b.response), -1)
    if first.shape != second.shape:
        return "of other shapes"
    if a.classes or b.classes:
        pairs = np.unique([level_numbers(part).ravel() for part in (first, second)], axis=1)
        if all(len(np.unique(part)) == pairs.shape[1] for part in pairs):
            return ""
    # one of them may be in single precision
    equal = np.isclose(first, second, rtol=1e-6, atol=0, equal_nan=True).all(1)
    if equal.all():
        return ""
    unit = np.argmin(equal)
    return f"such as {first[unit, 0]:.6g} and {second[unit, 0]:.6g} of unit {unit}"
