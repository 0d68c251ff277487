"""The result of a cross-validation: losses, errors, codes and the plan. Everything else is derived
from these.

Three different numbers are printed apart: the sampling error of the mean, the approximation error
of the refits, and the Monte-Carlo error of random folds.
"""

import contextlib
import math
import os
import pickle
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._runtime import (
    RESULTS,
    BoolArray,
    FloatArray,
    IntArray,
    Lines,
    NamedValues,
    PrintedResult,
    Rng,
    SettledBy,
    Strings,
    among,
    conventional,
    pd,
    provided,
    record,
)
from ..data import share, under_labels
from ..objectives import LOG_DENSITY, LOG_PROBABILITY
from ..optimize import Fit
from ..plans import Plan
from .arviz import elpd_data
from .certificate_file import certify, write
from .checks import Check, by_severity, codes_to_mute, of_data, of_losses, of_refits
from .mean_intervals import METHODS, Interval, Method, MetricValue, half_width, of_folds, usual
from .standard_errors import StandardError, average_by_unit, naive, standard_error

LOSS_ROUNDING = 1e-8  # relative rounding error of a loss
# whether every fold learns the columns of a formula, such as splines, anew
Bases = Literal["refit", "frozen"]
METRIC_COLUMNS = ["value", "standard_error", "lower", "upper", "error", "averaged"]


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .._runtime.headed_table import HeadedTable
    from ..refit import AbstractRefit
    from .metrics import AnyMetric


@dataclass(frozen=True)
class PrintedTexts:
    """The texts of a printed result, empty where there is nothing to print."""

    objective: str = ""  # the model
    refit: str = ""
    note: str = ""
    asked: str = ""  # arguments of the call other than the usual
    audit: str = ""
    function: str = ""  # fingerprint of the user's score
    probes: str = ""  # how leverages were estimated
    stopped: str = ""


class LossPlaces(NamedTuple):
    """The refit and the unit of every loss, and whether it is scored."""

    refit: IntArray
    unit: IntArray
    held: BoolArray


class Repetition(NamedTuple):
    """A refit that was repeated exactly: why, its losses as reported and exactly, the reported
    error, the difference, and whether that is beyond the error.
    """

    refit: int
    reason: str
    reported: float
    exact: float
    error: float
    difference: float
    beyond: bool


@record
class Estimate(PrintedResult):
    """The held-out loss of every scored unit, with an error and a code for every refit.

    `lo.cross_validate` returns it; it is not built by hand. Printing it shows the mean with its
    sampling error, the approximation error of the refits, the audit and the checks.

    Attributes
    ----------
    losses : ndarray
        The plan's: one loss for each entry of `plan.index`, NaN where not scored, or one a refit
        for a joint score. `per_unit()` and `table()` are in the order of the data.
    error : ndarray, `[refits]`
        The absolute error of each refit's summed loss against the exact refit; NaN if it was not
        asked for.
    result : ndarray of int, `[refits]`
        The codes of `lo.RESULTS`.
    proved : ndarray of bool, `[refits]`
        Whether a theorem bounds `error`; otherwise it is an estimate.
    settled_by : ndarray of int, `[refits]`
        What gave a refit of a linear predictor and its error, in words in the printed result; −1
        for other models.
    plan : Plan
        The plan, with the model's facts about its units.
    baseline : ndarray
        The losses with no update, in the order of `losses`.
    audit : DataFrame or None
        The refits that were repeated exactly.
    elsewhere : ndarray or None
        The losses at a lower minimum elsewhere, NaN for refits that have none; None if the fit has
        one minimum.
    fit : Fit or None
        The fit, which holds the data. A pickled estimate has it too, unless a function in it cannot
        be pickled.
    unit_weight, response, classes, score, labels, mute, call, mean_error, measured
        The weights of units in the mean, the response and whether it is of classes, the name of the
        loss, the texts of the printed result, the muted codes, the arguments of the call, the error
        of the mean if it is estimated by probes, and the metrics of the call by name, of which
        `metrics` is the table.

    See Also
    --------
    cross_validate : Make an estimate.
    compare : Compare estimates of several models.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(30.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], np.sin(x), "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> cv.per_unit().shape, bool(cv.proved.all()), len(cv.flagged())
    ((30,), True, 0)
    >>> round(cv.mean, 4), round(cv.no_update, 4)
    (0.276, 0.2412)
    """

    losses: FloatArray
    error: FloatArray
    result: IntArray
    plan: Plan
    baseline: FloatArray
    unit_weight: FloatArray | None = None
    measured: dict[str, MetricValue] = field(default_factory=dict)
    labels: PrintedTexts = PrintedTexts()
    # [refits]: whether a theorem bounds `error`
    proved: BoolArray = field(default_factory=lambda: np.zeros(0, bool))
    settled_by: IntArray = field(default_factory=lambda: np.zeros(0, int))
    elsewhere: FloatArray | None = None
    repetitions: tuple[Repetition, ...] | None = None
    score: str = ""  # name of the loss, "" if it is not known
    response: np.ndarray | None = None  # response of the losses, if the model has one
    classes: bool = False  # whether `response` has numbers of classes
    fit: Fit | None = None  # the fit, whose rows and columns are checked
    mute: Strings = ()  # codes of checks that are not reported
    # the strategy and the score, for refits of other plans
    call: "tuple[AbstractRefit, Any] | None" = None
    mean_error: float | None = None  # error of `mean` by probes, if errors of refits average out
    # the losses with no model, where the fit that gives them has left
    null_losses: FloatArray | None = None

    @property
    def joint(self) -> bool:
        """Whether the losses are joint: one loss a refit, rather than one a scored unit."""
        return len(self.losses) == self.plan.num_refits and len(self.losses) != len(self.plan.index)

    @cached_property
    def _places(self) -> LossPlaces:
        """The places of the losses.

        A joint loss belongs to its refit, which counts as its own unit.
        """
        if self.joint:
            refits = np.arange(self.plan.num_refits)
            return LossPlaces(refits, refits, refits >= 0)
        return LossPlaces(self.plan.refit, self.plan.index, self.plan.held)

    @cached_property
    def _weight(self) -> FloatArray:
        count = self.plan.num_refits if self.joint else self.plan.num_units
        if self.unit_weight is None or self.joint:
            return np.ones(count)
        return self.unit_weight

    @property
    def _missing(self) -> int:
        """Number of held-out losses in the mean that do not exist."""
        return int(
            np.sum(
                self._places.held
                & ~np.isfinite(self.losses)
                & (self._weight[self._places.unit] > 0)
            )
        )

    @cached_property
    def _rows(self) -> tuple[IntArray, IntArray]:
        """The entry and the unit of every row of `table()`: −1 where no refit scores the unit."""
        scored = np.flatnonzero(self._places.held)
        scored_units = self._places.unit[scored]
        unscored = np.setdiff1d(np.arange(len(self._weight)), scored_units)
        entry = np.append(scored, np.full(len(unscored), -1))
        unit = np.append(scored_units, unscored)
        order = np.argsort(unit, kind="stable")
        return entry[order], unit[order]

    @cached_property
    def _unit_losses(self) -> FloatArray:
        return self.average(self.losses)

    def average(self, losses: FloatArray) -> FloatArray:
        """Average losses that are ordered as `losses`, such as `baseline`, over the refits
        that score each unit.

        Parameters
        ----------
        losses : ndarray
            One number for each entry of `losses`.

        Returns
        -------
        ndarray, `[units]`
            The means; NaN for a unit that no refit scores.
        """
        scored = np.isfinite(losses) & self._places.held
        n = len(self._weight)
        # every unit once, in order
        if len(losses) == n and scored.all() and np.array_equal(self._places.unit, np.arange(n)):
            return losses
        return average_by_unit(self._places.unit[scored], losses[scored], n)

    @conventional
    def per_unit(self) -> "pd.Series":
        """Return the held-out loss of each unit, the mean of its rows of `table()`.

        Returns
        -------
        Series
            One loss a unit in the order of the data, under its label; NaN for a unit that no refit
            scores. For a joint score, the loss of each refit.
        """
        labels = self.plan.refit_names if self.joint else self.plan.names
        return under_labels(self._unit_losses, labels, "loss")

    def _mean(self, values: FloatArray) -> float:
        weight = self._weight
        seen = np.isfinite(values) & (weight > 0)
        if not seen.all():
            values = values[seen]
            weight = weight[seen]
        if len(values):
            return float(weight @ values / weight.sum())
        return float("nan")

    @property
    def mean(self) -> float:
        """The mean of `per_unit()`, weighted by `sample_weight` if the model has it."""
        return self._mean(self._unit_losses)

    @property
    def no_update(self) -> float:
        """The mean loss with no update: the loss of the fit on units that it has seen."""
        return self._mean(self.average(self.baseline))

    @cached_property
    def _null(self) -> FloatArray | None:
        """The losses with no model, computed on demand.

        None if there is no such model, or it has no fit.
        """
        if self.null_losses is not None or self.fit is None or self.call is None:
            return self.null_losses
        with (
            warnings.catch_warnings(),
            contextlib.suppress(ValueError, TypeError, RuntimeError, NotImplementedError),
        ):
            warnings.simplefilter("ignore")
            return provided("no_model").losses_without_model(
                self.fit.objective, self.plan, self.call[1]
            )
        return None

    @property
    def no_model(self) -> float:
        """The mean held-out loss of the intercept alone, refitted without the same folds; NaN if
        the model has no such null.

        Of a Cox model it is that of no coefficients.
        """
        if self._null is None:
            return float("nan")
        return self._mean(
            np.where(np.isfinite(self._unit_losses), self.average(self._null), np.nan)
        )

    @property
    def explained(self) -> float:
        """The share of the loss of no model that the model explains, 1 − mean / no_model.

        NaN for densities.
        """
        is_share = self.score != "" and not self.score.startswith(LOG_DENSITY) and self.no_model > 0
        if is_share:
            return 1 - self.mean / self.no_model
        return float("nan")

    @property
    def standard_error(self) -> StandardError:
        """The standard error of `mean`, with its kind: a named tuple `value`, `kind`."""
        return self._standard_error(self._unit_losses)

    def _standard_error(self, values: FloatArray) -> StandardError:
        if not self.joint:
            return standard_error(values, self._weight, self.plan)
        if np.bincount(self.plan.scored_units).max() > 1:
            return StandardError(np.nan, "not available: joint losses of folds that share units")
        serial = None if self.plan.serial is None else False
        folds = replace(self.plan, clusters=None, blocks=None, serial=serial)
        value, kind = standard_error(values, self._weight, folds)
        return StandardError(value, kind.replace("rows independent", "folds independent"))

    @property
    def se(self) -> float:
        """The standard error of `mean`; NaN if it is not available."""
        return self.standard_error.value

    def interval(
        self, level: float = 0.95, method: Method | None = None, *, metric: str | None = None
    ) -> Interval:
        """Compute an interval for the mean loss, or a metric, on new units, of the models that were
        refitted.

        It is not an interval for a new response, which `lo.interval` gives. The approximation error
        of the refits is added on both sides.

        Parameters
        ----------
        level : float, default 0.95
            The coverage of the interval.
        method : {"clusters", "blocks", "naive", "corrected", "nested"}, optional
            "clusters" is Student's t over groups. "blocks" is for a series, by cosines with fixed-b
            critical values, or for neighbours, as groups. "naive" takes rows as independent.
            "corrected" is for random folds (Nadeau & Bengio, 2003). "nested" is
            `lo.validation.nested` with its defaults, whose refits are of other folds than the
            plan's, of units that are independent. By default the method follows from what is
            independent in the plan.
        metric : str, optional
            A metric of the call. Its interval is Student's t over groups, or the normal
            distribution's where rows are independent, and passes no bound of the metric.

        Returns
        -------
        Interval
            A named tuple `low`, `high`, `level`, `method`; NaN where a metric has no standard
            error.

        Raises
        ------
        ValueError
            If the plan does not have what the method needs, losses are joint, the run was stopped,
            or the call had no such metric.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> rng = np.random.default_rng(0)
        >>> fit = lo.fit(lo.GLM(rng.normal(size=(50, 2)), rng.normal(size=50), "squared"))
        >>> found = lo.cross_validate(fit, lo.leave_one_out()).interval(0.9)
        >>> round(found.low, 2), round(found.high, 2), found.method
        (0.35, 0.64, 'naive')
        """
        if metric is not None:
            if metric not in self.measured or method is not None:
                raise ValueError(
                    f"interval: metric must be one of {[*self.measured]}, which have no other method; got {metric!r}, {method!r}."
                )
            return self.measured[metric].interval(share("interval: level", level))
        if self.joint:
            raise ValueError(
                "interval: it needs a loss of every unit, not joint ones; make it again with score='pointwise'."
            )
        if self._stop_note():
            raise ValueError(
                "interval: the run was stopped before all its refits were made; let it go on first."
            )
        level = share("interval: level", level)
        if method is None:
            method = usual(self.plan)
        if method not in METHODS:
            raise ValueError(
                f"interval: method must be one of {', '.join(METHODS)}; got {method!r}."
            )
        if method == "nested":
            if self.plan.clusters is not None or self.plan.of_cases:
                raise ValueError(
                    "interval: method='nested' takes units as independent, and these are of groups, or stand for cases; leave "
                    "method= out."
                )
            fit, refit, evaluate = self._refittable("interval: method='nested'")
            return provided("nested").nested(fit, level=level, strategy=refit, evaluate=evaluate)
        if method == "corrected":
            half = of_folds(self.losses, self._weight, self.plan, level)
        else:
            half = half_width(self._unit_losses, self._weight, self.plan, level, method)
        half += self.approximation_error
        return Interval(self.mean - half, self.mean + half, level, method)

    @property
    def _bases(self) -> Bases:
        """How the columns that a formula learned were treated by the refits."""
        return "frozen" if "bases=" in self.labels.asked else "refit"

    def _refittable(
        self, caller: str, name: str = "this estimate"
    ) -> "tuple[Fit, AbstractRefit, Any]":
        """Return the fit, the strategy and the score, for refits of other plans."""
        if self.fit is None or self.call is None:
            raise ValueError(
                f"{caller}: it refits the model, and {name} has no fit (pickled without it, or made by hand); call "
                "lo.cross_validate again."
            )
        return self.fit, *self.call

    @conventional
    def confidence_interval(
        self,
        level: float = 0.95,
        method: Literal["bca"] = "bca",
        *,
        metric: "AnyMetric | None" = None,
        num_resamples: int = 1000,
        rng: Rng = 0,
    ) -> Interval:
        """Compute a bootstrap interval of the mean loss or any measure, by refits of the model.

        Every bootstrap sample is cross-validated in as many folds as the plan has, or ten, in which
        the columns that a formula learned, such as splines, stay as they are. The acceleration is
        of the measures without each unit, or group, from refits without pairs; of more than 300
        units, without pairs of 50 random folds.

        Parameters
        ----------
        level : float, default 0.95
            The coverage of the interval.
        method : {"bca"}, default "bca"
            Bias-corrected and accelerated (Efron, 1987).
        metric : str, scorer or callable, optional
            The measure, as in `cross_validate` without `average`; by default the mean loss.
        num_resamples : int, default 1000
            The number of bootstrap samples.
        rng : int, default 0
            Random numbers, a seed.

        Returns
        -------
        Interval
            A named tuple `low`, `high`, `level`, `method`.

        Raises
        ------
        ValueError
            If there are fewer than six independent units or groups, a unit has no loss, single
            cases of units leave, units are steps of one series, or the estimate has no fit.

        Warns
        -----
        UserWarning
            If the measure is not defined on some bootstrap samples, such as without a class.

        See Also
        --------
        interval : Intervals without refits.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> rng = np.random.default_rng(0)
        >>> fit = lo.fit(lo.GLM(rng.normal(size=(50, 2)), rng.normal(size=50), "squared"))
        >>> cv = lo.cross_validate(fit, 5)
        >>> found = cv.confidence_interval(0.9, num_resamples=100)
        >>> round(found.low, 2), round(found.high, 2)
        (0.38, 0.77)
        """
        if method != "bca":
            raise ValueError(
                f"confidence_interval: method must be 'bca', of refits; got {method!r}. interval() has the others."
            )
        return provided("bca").bca_interval(
            self, share("confidence_interval: level", level), metric, num_resamples, rng
        )

    @conventional
    def target(
        self,
        X_new: Any = None,
        *,
        margins: Mapping[str, Any] | None = None,
        n: float | None = None,
        data: Any = None,
        distance: bool | list[str] = False,
        metric: Any = (),
    ) -> Any:
        """Estimate the held-out loss in a target population, by weights of the scored units.

        Weights balance the covariates of the units with margins of the target (entropy balancing),
        or are the ratio of the densities of its rows and of the units (a logistic regression). The
        mean is that of the target if, given these covariates, the response is distributed alike
        here and there. Its standard error counts that the weights are estimated. Only the ratios of
        `sample_weight` count; single cases that leave count as copies of rows.

        Parameters
        ----------
        X_new : array_like, `[rows, features]`, or DataFrame, optional
            Rows of the target, in the form of the data of the fit.
        margins : dict, optional
            What is known of the target instead: by the name of a column, or an expression in
            columns such as "age ** 2", its mean; or, by the name of a column of levels, a dict or
            Series of the share of each.
        n : float, optional
            The number of rows of the sample that margins come from, whose error then counts; by
            default they are known. Of `X_new` it is the number of its rows; `np.inf` says that
            these are the whole target.
        data : DataFrame, optional
            One row a unit: the columns in which the target may differ, instead of those of the
            model. `X_new` then has them too. Models without a design of rows need it for `X_new`.
        distance : bool or list of str, default False
            Whether the distance to the nearest unit of the training set is a covariate too, in all
            covariates in standard deviations, or in the columns of the list, such as coordinates.
        metric : str, scorer, callable, or a list or dict of them, default ()
            Measures of the held-out predictions in the target, as in `cross_validate`.

        Returns
        -------
        Target
            The loss with its standard error, the weights, and how well they balance.

        Raises
        ------
        ValueError
            If margins cannot be met, which are named; if rows of `X_new` lie outside the support of
            the scored units, which are named; if arguments do not go together.

        See Also
        --------
        interval : Prediction intervals take the result as their `sample_weight`.

        References
        ----------
        J. Hainmueller, Entropy balancing for causal effects, Political Analysis 20, 2012.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=200)
        >>> y = x + (0.5 + (x > 0)) * rng.normal(size=200)
        >>> cv = lo.cross_validate(lo.fit(lo.GLM(x[:, None], y, "squared")), lo.leave_one_out())
        >>> target = cv.target(margins={"x0": 0.8})
        >>> round(cv.mean, 2), round(target.mean, 2), round(target.se, 2)
        (0.73, 1.13, 0.24)
        """
        return provided("target").target(self, X_new, margins, n, data, distance, metric)

    @cached_property
    def audit(self) -> "pd.DataFrame | None":
        """The refits that were repeated exactly."""
        if self.repetitions is None:
            return None
        return pd.DataFrame(self.repetitions, columns=Repetition._fields)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """The mean held-out loss, that of no model, and every metric of the call, one row each.

        The columns are `value`, `standard_error`, the ends `lower` and `upper` of the interval at
        level 0.95, the `error` that is due to the refits, and how it is `averaged`. `interval` has
        other levels.
        """
        limits = (math.nan, math.nan)
        with contextlib.suppress(ValueError):  # of joint losses, a plan without independent parts
            limits = self.interval()[:2]
        averaged = f"mean over {'refits, joint' if self.joint else 'units'}"
        rows = {"held-out loss": (self.mean, self.se, *limits, self.approximation_error, averaged)}
        if self._null is not None:
            se = self._standard_error(self.average(self._null)).value
            rows["no model"] = (self.no_model, se, math.nan, math.nan, math.nan, averaged)
        for name, metric in self.measured.items():
            limits = metric.interval(0.95)[:2]
            rows[name] = (
                metric.value,
                metric.standard_error,
                *limits,
                metric.error,
                metric.averaged,
            )
        return pd.DataFrame.from_dict(rows, orient="index", columns=METRIC_COLUMNS)

    @property
    def approximation_error(self) -> float:
        """Estimated error of `mean` against exact refits: the weighted mean of `error` over the
        scored units.

        If errors are estimated by probes, it is three standard errors of the probes' contribution
        to the mean.
        """
        if self.mean_error is not None:
            return self.mean_error
        entry = np.where(self._places.held, self._weight[self._places.unit], 0.0) / np.average(
            self._weight
        )
        if self.joint:
            scored = np.ones(self.plan.num_refits)
            heaviest = entry
        else:
            scored = self._sum_by_refit(np.ones(len(self.losses)))
            heaviest = np.maximum.reduceat(entry, self.plan.indptr[:-1])
        # the others have errors that were not asked for
        scored = np.where(np.isnan(self.error), 0.0, scored)
        if not np.isfinite(self.losses).any():
            return float("nan")
        return float(np.sum((self.error * heaviest)[scored > 0]) / max(scored.sum(), 1))

    def sharing(self, draws: FloatArray, left: float, probes: float) -> "Estimate":
        """Return a copy whose error of the mean is estimated by the jackknife over groups of
        probes.

        Parameters
        ----------
        draws : ndarray, `[refits, groups]`
            The losses without each group of probes.
        left : float
            The error of the mean for other reasons.
        probes : float
            The number of probes.

        Returns
        -------
        Estimate
            A copy with `mean_error`.
        """
        means = np.array(
            [self._mean(self.average(draw)) for draw in draws.T[:, self._places.refit]]
        )
        spread = np.sqrt((len(means) - 1) / len(means) * np.sum((means - means.mean()) ** 2))
        probe_text = f"leverages by {int(probes)} probes: three of their standard errors"
        labels = replace(self.labels, probes=probe_text)
        return replace(self, mean_error=float(3 * spread + left), labels=labels)

    def _sum_by_refit(self, values: FloatArray) -> NDArray:
        """Sum values of losses over the scored losses of each refit, `[refits]`."""
        scored = self._places.held & np.isfinite(self.losses)
        return np.bincount(self._places.refit[scored], values[scored], self.plan.num_refits)

    @property
    def monte_carlo_error(self) -> float:
        """The error of `mean` by the draw of random folds, by the jackknife over refits.

        It is NaN if the plan scores every unit once, as k-fold does, or leaves out all sets of so
        many units or groups, as all pairs are, since the mean then averages over no random folds.
        """
        plan = self.plan
        if self.joint or plan.num_refits < 3:
            return float("nan")
        scored = plan.held & np.isfinite(self.losses)
        n = plan.num_units
        weight = self._weight
        index = plan.index[scored]
        refit = plan.refit[scored]
        losses = self.losses[scored]
        times = np.bincount(index, minlength=n)
        total = np.bincount(index, losses, n)
        # plans with buffers, or of the future, have no random folds
        dropped = np.any(~plan.held & (plan.weight == 0)) or (plan.serial and plan.rng is None)
        if times.max(initial=0) < 2 or dropped or _leaves_out_all_sets(plan):
            return float("nan")
        # without refit k a unit's average is (total − loss) / (times − 1), and a unit that only k
        # scored is gone
        is_repeated = times[index] > 1
        mean = total / np.maximum(times, 1)
        mean_without = np.where(
            is_repeated, (total[index] - losses) / np.maximum(times[index] - 1, 1), 0.0
        )
        sum_change = weight[index] * np.where(is_repeated, mean_without - mean[index], -mean[index])
        lost_weight = weight[index] * ~is_repeated
        weighted_sum = np.sum(weight * mean)
        total_weight = np.sum(weight[times > 0])
        refits = plan.num_refits
        means = (weighted_sum + np.bincount(refit, sum_change, refits)) / (
            total_weight - np.bincount(refit, lost_weight, refits)
        )
        return float(np.sqrt((refits - 1) * np.mean((means - means.mean()) ** 2)))

    def flagged(self, threshold: float = 0.1) -> IntArray:
        """List the flagged refits: those with a code that is more than information, or with a large
        error.

        An error is large if it exceeds `threshold` naive standard errors of the mean for each
        scored unit. `Exact()` refits them all exactly.

        Parameters
        ----------
        threshold : float, default 0.1
            The allowed error of a scored unit, in naive standard errors of the mean.

        Returns
        -------
        ndarray of int
            The numbers of the refits.

        Raises
        ------
        ValueError
            If `threshold` is negative or not a number.
        """
        if not (isinstance(threshold, int | float | np.number) and threshold >= 0):
            raise ValueError(
                f"flagged: threshold must be a number of standard errors, 0 or more; got {threshold!r}."
            )
        count = self._sum_by_refit(np.ones(len(self.losses)))
        # losses with no update of a fit that all but interpolates hardly differ
        scale = np.fmax(self.scale, 0.01 * naive(self._unit_losses, self._weight))
        allowed = threshold * scale * np.maximum(count, 1) + LOSS_ROUNDING * (
            1 + self._sum_by_refit(np.abs(self.losses))
        )
        # errors of single losses average out, so ten times as much of their standard deviation is
        # allowed
        if self.mean_error is not None:
            allowed = np.full(len(allowed), 10 * threshold * np.nanstd(self._unit_losses))
        wide = ~(self.error <= allowed) & ~np.isnan(self.error)
        return np.flatnonzero(~among(self.result, [RESULTS.successful, RESULTS.kink]) | wide)

    @property
    def scale(self) -> float:
        """The naive standard error of the no-update mean, in which tolerances are stated."""
        return naive(self.average(self.baseline), self._weight)

    def checks(self, mute: Collection[str] = ()) -> list[Check]:
        """List problems, certain or possible, with the data, the plan and the refits, the gravest
        first.

        Parameters
        ----------
        mute : collection of str, default ()
            Codes to leave out, beside those of `muted`.

        Returns
        -------
        list of Check
            Each has a code, a severity ("error", "warning", "info"), a reason and a remedy.

        Raises
        ------
        ValueError
            If a code does not exist.

        See Also
        --------
        CHECKS : All codes.
        """
        hidden = {*self.mute, *codes_to_mute("checks", mute)}
        return [check for check in self._check_list if check.code not in hidden]

    def muted(self, *codes: str) -> "Estimate":
        """Return a copy that no longer reports some codes, as in `cv.muted("LO201")`.

        The printed result says that they are muted.

        Parameters
        ----------
        *codes : str
            The codes to mute.

        Returns
        -------
        Estimate
            A copy that does not report these codes.

        Raises
        ------
        ValueError
            If a code does not exist.
        """
        return replace(self, mute=(*self.mute, *codes_to_mute("muted", codes)))

    @cached_property
    def _check_list(self) -> list[Check]:
        unit_kind = "row"
        names = self.names
        if self.joint:
            unit_kind = "refit" if self.plan.labels is None else "group"
            names = lambda: self.plan.refit_names
        of_units = of_losses(self._unit_losses, self._weight, self.plan, names, unit_kind)
        checks = [
            *self._of_data,
            *of_units,
            *of_refits(self.flagged(), self.result, self.plan, self.labels.refit),
        ]
        return sorted(checks, key=by_severity)

    @cached_property
    def _of_data(self) -> list[Check]:
        if self.fit is None:
            return []
        return of_data(self.fit, self.plan)

    def __getstate__(self) -> NamedValues:
        """Return the state to pickle or copy, without the fit if a function in it cannot be
        pickled.
        """
        try:
            pickle.dumps((self.fit, self.call))
        except (pickle.PicklingError, AttributeError, TypeError):
            return vars(self.without_data())
        return vars(self)

    def without_data(self) -> "Estimate":
        """Return a copy without the fit and its data, to send where the data may not go; checks are
        computed first.

        Returns
        -------
        Estimate
            A copy whose `fit` is None. It prints the same, but cannot refit.
        """
        estimate = replace(self, fit=None, call=None, null_losses=self._null)
        vars(estimate)["_of_data"] = self._of_data
        return estimate

    def __copy__(self) -> "Estimate":
        return replace(self)

    @conventional
    def table(self) -> "pd.DataFrame":
        """Tabulate the held-out loss of every unit, in the order of the data.

        There is one row a unit, as in `per_unit()`; only a unit that several refits score has more,
        one for each. Joint losses have a row a refit.

        Returns
        -------
        DataFrame
            The columns are `refit, unit, loss, no_update, error, result`. `unit` is the unit's
            label, or its number where the data had no labels, and `group` the group that leaves, if
            groups do. The last two columns are the refit's. A unit that no refit scores has the
            refit −1 and no loss. Joint losses have no `unit`.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> fit = lo.fit(
        ...     lo.GLM(np.arange(5.0)[:, None], np.array([0.0, 1.0, 3.0, 2.0, 5.0]), "squared")
        ... )
        >>> lo.cross_validate(fit, lo.leave_one_out()).table()[
        ...     ["refit", "unit", "loss", "no_update"]
        ... ].round(3)
           refit  unit   loss  no_update
        0      0     0  0.000      0.000
        1      1     1  0.010      0.005
        2      2     2  0.500      0.320
        3      3     3  1.724      0.845
        4      4     4  1.125      0.180
        """
        entry, unit = self._rows
        names = np.array([code.name for code in RESULTS])
        table = self._of_refits({"error": self.error, "result": names[self.result]})
        table.insert(1, "no_update", np.append(self.baseline, np.nan)[entry])
        table.insert(1, "loss", np.append(self.losses, np.nan)[entry])
        if not self.joint:
            table.insert(1, "unit", self.names()[unit])
        if self.plan.labels is not None:
            table.insert(1, "group", self._of_refits({"group": self.plan.labels})["group"])
        return table

    def _of_refits(self, columns: dict[str, NDArray]) -> "pd.DataFrame":
        """Spread columns of refits over the rows of `table()`, beside the number of the refit."""
        refit = np.append(self._places.refit, -1)[self._rows[0]]
        return pd.DataFrame(columns).reindex(refit).reset_index(names="refit")

    def names(self) -> "pd.Index":
        """Return the names of the units: their labels, or their numbers.

        Returns
        -------
        Index
            One name a unit.
        """
        return self.plan._unit_names

    @conventional
    def summary(self) -> "HeadedTable":
        """Tabulate the numbers of the printed result, under lines that say what the losses and the
        standard error are.

        Returns
        -------
        DataFrame
            One column, `value`.
        """
        null = {"no model, mean": self.no_model, "share explained": self.explained}
        rows = {
            "held-out loss, mean": self.mean,
            "standard error": self.se,
            "approximation error": self.approximation_error,
            "no update, mean": self.no_update,
            **{name: value for name, value in null.items() if np.isfinite(value)},
            "flagged refits": len(self.flagged()),
            **{name: metric.value for name, metric in self.measured.items()},
        }
        missing = int(np.sum(self.result == RESULTS.interrupted))
        if missing:
            rows["refits not made"] = missing
        from .._runtime.headed_table import HeadedTable

        table = HeadedTable({"value": rows})
        table.heading = [
            ("losses", self.score or "as they were given"),
            ("standard error", self.standard_error.kind),
        ]
        return table

    def _facts(self) -> Lines:
        return [*self._numbers(), *self._findings(), ("note", self.labels.note)]

    def _findings(self) -> Lines:
        """List the lines of the checks, and of the muted codes, for the printed result."""
        texts = [str(check) for check in self.checks()] or ["none"]
        muted = ", ".join(sorted({check.code for check in self._check_list} & {*self.mute}))
        return [
            *zip(("checks", *[""] * len(texts)), texts, strict=False),
            *([("muted", muted)] if muted else []),
        ]

    @property
    def _mean_text(self) -> str:
        """The mean, what it is of, and its standard error."""
        se = self.standard_error
        unit = "a refit, joint" if self.joint else "a unit"
        unit += f", {self.score}" if self.score else ""
        return f"{self.mean:.6g}{plus_minus(se.value)} {unit} (SE {se.kind})"

    def _numbers(self) -> Lines:
        """List all printed lines except the checks and the note."""
        plan = self.plan
        random = self.monte_carlo_error
        random_text = ""
        if np.isfinite(random):
            random_text = f"± {random:.2g} on that mean, by another draw of them"
        missing = self._missing
        interval = ""
        elsewhere = ""
        headline = self._mean_text
        if not np.isfinite(self.losses).any():
            headline = "not available: no held-out loss exists (see checks)"
        if np.isnan(self.se):  # a series may be too short for a standard error by blocks
            with contextlib.suppress(ValueError):
                limits = self.interval()
                interval = (
                    f"{limits.low:.4g} to {limits.high:.4g}, by the slowest cosines of the series"
                )
        if self.elsewhere is not None:
            lower = np.isfinite(self.elsewhere)
            count = len(np.unique(self._places.refit[lower]))
            elsewhere = f"{count or 'none'} of {plan.num_refits} refits have a lower one elsewhere"
            if count:
                mean = self._mean(self.average(np.where(lower, self.elsewhere, self.losses)))
                elsewhere += f"; with these the mean would be {mean:.6g} instead of {self.mean:.6g}"
        lines = [
            ("model", f"{self.labels.objective}, {plan.num_units} units"),
            ("refits", f"{plan.num_refits} of {plan.widths} each, {self.labels.refit}"),
            ("stopped", self._stop_note()),
            ("held-out loss", headline),
            ("95% interval", interval),
            ("approximation", self._approximation()),
            ("settled", self._settled()),
            ("random folds", random_text),
            ("no update", f"{self.no_update:.6g}"),
            ("no model", self._no_model_text()),
            ("other minimum", elsewhere),
            *((name, str(metric)) for name, metric in self.measured.items()),
            ("audit", self.labels.audit),
            ("mean", "weighted by sample_weight" if self.unit_weight is not None else ""),
            (
                "not in the mean",
                f"{missing} held-out losses that do not exist (see checks)" if missing else "",
            ),
        ]
        return [(name, text) for name, text in lines if text]

    def _no_model_text(self) -> str:
        if not np.isfinite(self.no_model):
            return ""
        share = ""
        if np.isfinite(self.explained):
            share = f"; share explained {self.explained:.1%}"
        return f"{self.no_model:.6g}{share}"

    def _stop_note(self) -> str:
        """State how many refits were run, if the run was stopped."""
        missing = int(np.sum(self.result == RESULTS.interrupted))
        if not missing:
            return ""
        count = self.plan.num_refits
        return f"{count - missing} of {count} refits were made: all that follows is of these, which are no random sample"

    def _approximation(self) -> str:
        """State the error of the mean due to the refits, and how many of the errors are proved."""
        if not np.isfinite(self.losses).any():
            return ""
        if not np.isfinite(self.approximation_error):
            return "not certified: the errors of some refits are not known (see checks)"
        count = int(np.sum(self.proved))
        total = len(self.error)
        evidence = {0: "estimated", total: "proved"}.get(count, f"{count} of {total} refits proved")
        text = f"± {self.approximation_error:.1g} on that mean, {evidence}"
        num_errors = int(np.sum(~np.isnan(self.error)))
        if num_errors < total:
            text += f"; errors of {num_errors} of {total} folds, sampled"
        if self.labels.probes:
            return f"{text} ({self.labels.probes})"
        return text

    def _settled(self) -> str:
        """State how many refits of linear predictors which rung settled, and how to have proofs."""
        texts = []
        for rung in SettledBy:
            for evidence, marks in (("proved", self.proved), ("estimated", ~self.proved)):
                count = (
                    int(np.sum(marks & (self.settled_by == rung))) if len(self.settled_by) else 0
                )
                if count and rung != SettledBy.unknown:
                    texts.append(f"{count} by {rung.message}, {evidence}")
        affordable = (SettledBy.sample, SettledBy.conjugate_gradients, SettledBy.steps)
        is_cheap = ~self.proved & np.isin(self.settled_by, affordable)
        if self.labels.refit.startswith("Certified(") and is_cheap.any():
            texts.append("proofs would be dear: Certified(proofs='always') has them")
        return "; ".join(texts)

    def to_arviz(self) -> Any:
        """Convert to ArviZ's `ELPDData` of kind "loo", for `arviz.compare({"name": ...})`. Needs
        ArviZ.

        The log densities are summed over units. The effective number of parameters is the summed
        difference between the held-out and the no-update losses.

        Returns
        -------
        ELPDData
            The sum of the log densities, its standard error, and the pointwise values.

        Raises
        ------
        ValueError
            If the losses are not −log densities of units, units have different weights, or a unit
            has no loss.
        ImportError
            If ArviZ is not installed.
        """
        if self.joint or self.score not in (LOG_DENSITY, LOG_PROBABILITY):
            if self.joint:
                kind = "joint losses"
            else:
                kind = self.score or "a loss that is not known to be a −log density"
            raise ValueError(
                f"to_arviz: ArviZ compares log densities of units; this is {kind}. See evaluate='log_density'."
            )
        losses = self._unit_losses
        if np.ptp(self._weight) > 0:
            raise ValueError(
                "to_arviz: units have other sample_weight, which ArviZ does not know of; lo.compare does."
            )
        if not np.isfinite(losses).all():
            raise ValueError(
                f"to_arviz: {np.sum(~np.isfinite(losses))} units have no held-out loss; ArviZ needs one of each."
            )
        return elpd_data(
            losses,
            self.average(self.baseline),
            self.names(),
            self.se,
            suspect=len(self.flagged()) > 0,
        )

    def certificate(
        self, path: str | os.PathLike[str], *, data: str | os.PathLike[str] | None = None
    ) -> Path:
        """Write what is proved of every refit to a file that a program without any code of this
        library can check.

        The file has a hash of the data, the loss, the penalty and bounds of all coefficients, how
        many refits the plan has, and for each that is proved the rows with their weights, the
        held-out losses and the error. `python -m leaveout_verify PATH DATA` checks every claim by
        ball arithmetic, where DATA is a table with the features and the response. It is a
        distribution of its own, `leaveout-verify`.

        Parameters
        ----------
        path : path
            The file to write, in JSON.
        data : path, optional
            A file for the data, which ends in .parquet, .csv or .npz. Without it, check against
            your own table of the columns.

        Returns
        -------
        Path
            The certificate that was written.

        Raises
        ------
        ValueError
            If nothing is proved, the verifier does not know the model, or the estimate has no fit
            (`without_data`).

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import leaveout as lo
        >>> x = np.arange(30.0)
        >>> cv = lo.cross_validate(
        ...     lo.fit(lo.GLM(x[:, None], np.sin(x), "squared")), lo.leave_one_out()
        ... )
        >>> cv.certificate(tempfile.mkdtemp() + "/sine.cert.json").name
        'sine.cert.json'
        """
        statement, table = certify(self.fit, self.plan, self.losses, self.error, self.proved)
        write(path, statement, table, data)
        return Path(path)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the held-out loss of each unit against its no-update loss, with flagged units named.
        Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").losses(self, ax=ax)

    def report(self, path: str | os.PathLike[str], *, title: str = "", **options: Any) -> Path:
        """Write the estimate to one self-contained page, as `lo.report` does. Needs
        `leaveout[report]`.

        Parameters
        ----------
        path : path
            The file to write; its name ends in .html.
        title : str, optional
            The title of the page.
        **options
            Options of `lo.report`, such as `kind="clinical"`.

        Returns
        -------
        Path
            The file that was written.
        """
        return provided("report").report(self, path, title=title, **options)


def plus_minus(error: float) -> str:
    """Write an error behind its number, if it is known."""
    return f" ± {error:.2g}" if np.isfinite(error) else ""


def _leaves_out_all_sets(plan: Plan) -> bool:
    """Tell whether the refits leave out all sets of so many units, or of so many groups that are
    always left out together.
    """
    entries = np.bincount(plan.index, minlength=plan.num_units)
    if len(plan.index) == plan.num_refits:  # one unit a refit
        return not plan.weight.any() and entries.max() == 1
    mark = np.random.default_rng(0).random(max(plan.num_refits, plan.num_units))
    units = np.flatnonzero(entries)
    # units of the same refits have equal sums
    of_unit = np.bincount(plan.index, mark[plan.refit], plan.num_units)[units]
    group = np.unique(of_unit, return_index=True)[1]
    count = plan.num_refits
    first = np.isin(plan.index, units[group])  # one unit of each group
    sizes = np.bincount(plan.refit[first], minlength=count)
    distinct = len(np.unique(np.bincount(plan.refit, mark[plan.index], count))) == count
    alike = not plan.weight.any() and sizes.min() == sizes.max() and len(group) <= count
    return bool(alike and distinct and math.comb(len(group), int(sizes[0])) == count)
