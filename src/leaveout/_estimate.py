"""What came of a cross-validation: losses, errors, codes and the plan. All else is derived.

Three numbers that differ are printed apart: the sampling error of the mean, the approximation error of the
refits, and the Monte-Carlo error of random folds.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ._arviz import elpd_data
from ._checks import Check, known, of_data, of_losses, of_refits
from ._errors import StandardError, naive, standard_error
from ._fit import Fit
from ._intervals import METHODS, Interval, Method, half_width, of_folds, usual
from ._objective import LOG_DENSITY, LOG_PROBABILITY
from ._plan import Plan
from ._printed import Printed
from ._read import share
from ._results import RESULTS, among

ROUNDING = 1e-8  # of a loss


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .refit import AbstractRefit


class Places(NamedTuple):
    """Of every loss its refit, its unit, and whether it is scored."""

    refit: NDArray[np.int64]
    unit: NDArray[np.int64]
    held: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Printed):
    """The held-out loss of every scored unit, with an error estimate and a code for every refit.

    `losses`, one an entry of `plan.index`, NaN where not scored, or one a refit for a joint score;
    `error` `[refits]`, the absolute error of each refit's summed loss against the exact refit;
    `result` `[refits]`, codes of `RESULTS`; `baseline`, the losses with no update; `metrics` by name; `elsewhere`, where
    refits were compared at several minima of the fit, the losses of those that have a lower one, at that one, else NaN.
    `fit` is what was refitted, and holds the data; a pickled estimate has none.
    """

    losses: NDArray[np.float64]
    error: NDArray[np.float64]
    result: NDArray[np.int64]
    plan: Plan
    baseline: NDArray[np.float64]
    unit_weight: NDArray[np.float64] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  # objective, refit, note: for the printed result
    proved: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))  # [refits]: is `error` a theorem's?
    elsewhere: NDArray[np.float64] | None = None
    audit: pd.DataFrame | None = None  # the refits that were repeated exactly
    metric_se: dict[str, float] = field(default_factory=dict)
    metric_error: dict[str, float] = field(default_factory=dict)
    score: str = ""  # what a loss is, "" where that is not known
    response: NDArray | None = None  # what the losses are of, where the model has one
    classes: bool = False  # is `response` the numbers of classes?
    fit: Fit | None = None  # what was cross-validated: checks look at its rows and columns
    mute: tuple[str, ...] = ()  # codes of checks that are not told
    call: "tuple[AbstractRefit, Any] | None" = None  # the strategy and what it was scored by, for refits of other plans
    mean_error: float | None = None  # how far `mean` may be off where errors of refits average out: told by probes

    @property
    def joint(self) -> bool:
        """Is there one loss a refit, rather than one a scored unit?"""
        return len(self.losses) == self.plan.num_refits and len(self.losses) != len(self.plan.index)

    @cached_property
    def _at(self) -> Places:
        """Where the losses are. A joint loss is its refit's, which is its own unit."""
        if self.joint:
            everyone = np.arange(self.plan.num_refits)
            return Places(everyone, everyone, everyone >= 0)
        return Places(self.plan.refit, self.plan.index, self.plan.held)

    @cached_property
    def _weight(self) -> NDArray[np.float64]:
        count = self.plan.num_refits if self.joint else self.plan.num_units
        return np.ones(count) if self.unit_weight is None or self.joint else self.unit_weight

    @property
    def _missing(self) -> int:
        """How many held-out losses that the mean would count do not exist."""
        return int(np.sum(self._at.held & ~np.isfinite(self.losses) & (self._weight[self._at.unit] > 0)))

    def averaged(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Losses that stand as `losses` does, such as `baseline`, of each unit: the mean over the refits that score it."""
        scored, n = np.isfinite(losses) & self._at.held, len(self._weight)
        if len(losses) == n and scored.all() and np.array_equal(self._at.unit, np.arange(n)):  # each of them once, in order
            return losses
        index = self._at.unit[scored]
        times, total = np.bincount(index, minlength=n), np.bincount(index, losses[scored], n)
        return np.where(times > 0, total / np.maximum(times, 1), np.nan)

    def per_unit(self) -> NDArray[np.float64]:
        """The held-out loss of each unit, `[units]`, averaged over the refits that score it; NaN if none does.
        For a joint score the loss of each refit, `[refits]`."""
        return self.averaged(self.losses)

    def _mean(self, values: NDArray[np.float64]) -> float:
        weight = self._weight
        seen = np.isfinite(values) & (weight > 0)
        if not seen.all():
            values, weight = values[seen], weight[seen]
        return float(weight @ values / weight.sum()) if len(values) else float("nan")

    @property
    def mean(self) -> float:
        """The mean of `per_unit()`, weighted by `sample_weight` where the model has it."""
        return self._mean(self.per_unit())

    @property
    def no_update(self) -> float:
        """The same of the losses with no update, those of data that the model has seen."""
        return self._mean(self.averaged(self.baseline))

    @property
    def standard_error(self) -> StandardError:
        """The standard error of `mean`, and of what kind it is."""
        return self._standard_error(self.per_unit())

    def _standard_error(self, values: NDArray[np.float64]) -> StandardError:
        if not self.joint:
            return standard_error(values, self._weight, self.plan)
        if np.bincount(self.plan.index[self.plan.held]).max() > 1:
            return StandardError(np.nan, "not available: joint losses of folds that share units")
        folds = replace(self.plan, clusters=None, serial=None if self.plan.serial is None else False)
        value, kind = standard_error(values, self._weight, folds)
        return StandardError(value, kind.replace("rows independent", "folds independent"))

    @property
    def se(self) -> float:
        return self.standard_error.value

    def interval(self, level: float = 0.95, method: Method | None = None) -> Interval:
        """An interval for the mean loss, on new units, of the models that were refitted; it is none for a new
        response: that is `lo.interval`.

        `method` is "clusters" (Student's t over groups), "blocks" (of a series, by cosines, with fixed-b critical values; of
        neighbours as of groups), "naive" (rows independent), "corrected" (of random folds: Nadeau & Bengio, 2003) or "nested"
        (`lo.nested` as it is by default: of refits of other folds than the plan's, made now); by default the one that goes by
        what is independent in the plan. The approximation error of the refits is added on both sides.

        Raises `ValueError` where the plan has nothing for the method to go by, or losses are joint.
        """
        if self.joint:
            raise ValueError("interval: it needs a loss of every unit, not joint ones; ask for score='pointwise'.")
        if self._stopped():
            raise ValueError("interval: the run was stopped before all its refits were made; let it go on first.")
        level = share("interval: level", level)
        method = usual(self.plan) if method is None else method
        if method not in METHODS:
            raise ValueError(f"interval: method must be one of {', '.join(METHODS)}; got {method!r}.")
        if method == "nested":
            return self._nested(level)
        if method == "corrected":
            half = of_folds(self.losses, self._weight, self.plan, level)
        else:
            half = half_width(self.per_unit(), self._weight, self.plan, level, method)
        half += self.approximation_error
        return Interval(self.mean - half, self.mean + half, level, method)

    def _nested(self, level: float) -> Interval:
        from ._nested import nested

        if self.fit is None or self.call is None:
            raise ValueError(
                "interval: method='nested' refits the model, which a pickled estimate has not; see lo.nested(fit)."
            )
        refit, evaluate = self.call
        return nested(self.fit, level, refit=refit, evaluate=evaluate)

    @property
    def approximation_error(self) -> float:
        """An estimate of how far `mean` is from that of exact refits: the weighted mean of `error` over what is scored; where
        errors are those of probes, three standard errors of what these make of the mean."""
        if self.mean_error is not None:
            return self.mean_error
        scored = np.ones(self.plan.num_refits) if self.joint else self._summed(np.ones(len(self.losses)))
        entry = np.where(self._at.held, self._weight[self._at.unit], 0.0) / np.average(self._weight)
        heaviest = entry if self.joint else np.maximum.reduceat(entry, self.plan.indptr[:-1])
        return float(np.sum((self.error * heaviest)[scored > 0]) / max(scored.sum(), 1))

    def sharing(self, draws: NDArray[np.float64], left: float, probes: float) -> "Estimate":
        """The same, the error of whose mean is told by the jackknife over groups of probes: `draws` are the losses without each
        of them, `[refits, groups]`; `left` is off for other reasons."""
        means = np.array([self._mean(self.averaged(each)) for each in draws.T[:, self._at.refit]])
        spread = np.sqrt((len(means) - 1) / len(means) * np.sum((means - means.mean()) ** 2))
        labels = self.labels | {"probes": f"leverages by {int(probes)} probes: three of their standard errors"}
        return replace(self, mean_error=float(3 * spread + left), labels=labels)

    def _summed(self, each: NDArray[np.float64]) -> NDArray:
        """What belongs to losses, summed over those that each refit adds to the mean, `[refits]`."""
        scored = self._at.held & np.isfinite(self.losses)
        return np.bincount(self._at.refit[scored], each[scored], self.plan.num_refits)

    @property
    def monte_carlo_error(self) -> float:
        """How far another draw of random folds would move `mean`: the jackknife over refits. NaN where the plan
        scores every unit once, as k-fold does: then there is nothing random left."""
        if self.joint or self.plan.num_refits < 3:
            return float("nan")
        scored, n, weight = self.plan.held & np.isfinite(self.losses), self.plan.num_units, self._weight
        index, refit, losses = self.plan.index[scored], self.plan.refit[scored], self.losses[scored]
        times, total = np.bincount(index, minlength=n), np.bincount(index, losses, n)
        dropped = np.any(~self.plan.held & (self.plan.weight == 0))  # buffers, or a future: such folds are not drawn
        if times.max(initial=0) < 2 or dropped:
            return float("nan")
        # without refit k a unit's average is (total − loss) / (times − 1), and a unit that only k scored is gone
        often = times[index] > 1
        mean = total / np.maximum(times, 1)
        other = np.where(often, (total[index] - losses) / np.maximum(times[index] - 1, 1), 0.0)
        moved = weight[index] * np.where(often, other - mean[index], -mean[index])
        lost = weight[index] * ~often
        whole, mass = np.sum(weight * mean), np.sum(weight[times > 0])
        refits = self.plan.num_refits
        means = (whole + np.bincount(refit, moved, refits)) / (mass - np.bincount(refit, lost, refits))
        return float(np.sqrt((refits - 1) * np.mean((means - means.mean()) ** 2)))

    def flagged(self, threshold: float = 0.1) -> NDArray[np.int64]:
        """Refits with a code that is more than information, or an error a scored unit above `threshold` standard errors
        (naive) of the mean: no refit exists, or its error is larger than one can live with. `Exact()` is the way out."""
        if not (isinstance(threshold, int | float | np.number) and threshold >= 0):
            raise ValueError(f"flagged: threshold must be a number of standard errors, 0 or more; got {threshold!r}.")
        count, size = self._summed(np.ones(len(self.losses))), self._summed(np.abs(self.losses))
        allowed = threshold * self.scale * np.maximum(count, 1) + ROUNDING * (1 + size)
        if self.mean_error is not None:  # errors of single losses average out: ten times as much of their standard deviation
            allowed = np.full(len(allowed), 10 * threshold * np.nanstd(self.per_unit()))
        return np.flatnonzero(~among(self.result, [RESULTS.successful, RESULTS.kink]) | ~(self.error <= allowed))

    @property
    def scale(self) -> float:
        """The naive standard error of the no-update mean, in which tolerances are stated."""
        return naive(self.averaged(self.baseline), self._weight)

    def checks(self, mute: Collection[str] = ()) -> list[Check]:
        """What is wrong, or may be, with the data, the plan and the refits, the gravest first: each with a code, a severity
        ("error", "warning", "info"), the reason and what to do. Codes in `mute` are left out, as those of `muted` are.

        Raises ValueError on a code that there is none of.
        """
        hidden = {*self.mute, *known("checks", mute)}
        return [found for found in self._checked if found.code not in hidden]

    def muted(self, *codes: str) -> "Estimate":
        """The same estimate, which no longer tells of these codes: `cv.muted("LO201")`. That they are muted is printed."""
        return replace(self, mute=(*self.mute, *known("muted", codes)))

    @cached_property
    def _checked(self) -> list[Check]:
        names = pd.RangeIndex(self.plan.num_refits) if self.joint else self.names()
        of_units = of_losses(self.per_unit(), self._weight, self.plan, names, "refit" if self.joint else "row")
        found = [*self._of_data, *of_units, *of_refits(self.flagged(), self.result, self.labels.get("refit", ""))]
        return sorted(found, key=lambda each: (("error", "warning", "info").index(each.severity), each.code))

    @cached_property
    def _of_data(self) -> list[Check]:
        return [] if self.fit is None else of_data(self.fit, self.plan)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process or copied: what the data say goes along, not the data."""
        return {**vars(self), "_of_data": self._of_data, "fit": None, "call": None}

    def __copy__(self) -> "Estimate":
        return replace(self)

    def table(self) -> pd.DataFrame:
        """One row a scored unit of a refit: `refit, unit, loss, no_update, error, result` (the last two are the refit's).
        `unit` is the unit's label, where the data had some, or its number."""
        held = self._at.held
        refit, names = self._at.refit[held], np.array([code.name for code in RESULTS])
        columns = {} if self.joint else {"unit": self.names()[self._at.unit[held]]}
        return pd.DataFrame(
            {"refit": refit, **columns, "loss": self.losses[held], "no_update": self.baseline[held]}
            | {"error": self.error[refit], "result": names[self.result[refit]]}
        )

    def names(self) -> pd.Index:
        """What the units are called: their labels, or their numbers."""
        names = self.plan.names
        if names is None:
            return pd.RangeIndex(self.plan.num_units)
        return names.to_flat_index() if isinstance(names, pd.MultiIndex) else names

    def summary(self) -> pd.DataFrame:
        """The numbers of the printed result, as a table of one column."""
        rows = {
            "held-out loss, mean": self.mean,
            "standard error": self.se,
            "approximation error": self.approximation_error,
            "no update, mean": self.no_update,
            "flagged refits": len(self.flagged()),
        }
        missing = int(np.sum(self.result == RESULTS.interrupted))
        return pd.DataFrame({"value": rows | self.metrics | ({"refits not made": missing} if missing else {})})

    def _lines(self) -> list[tuple[str, str]]:
        return [*self._facts(), *self._findings(), *([("note", note)] if (note := self.labels.get("note", "")) else [])]

    def _findings(self) -> list[tuple[str, str]]:
        """What `checks` say, and what is muted, as printed results have it."""
        told = [str(found) for found in self.checks()] or ["none"]
        muted = ", ".join(sorted({each.code for each in self._checked} & {*self.mute}))
        return [*zip(("checks", *[""] * len(told)), told, strict=False), *([("muted", muted)] if muted else [])]

    def _facts(self) -> list[tuple[str, str]]:
        """All lines but those of checks, and the note."""
        plan, se, random = self.plan, self.standard_error, self.monte_carlo_error
        known, what = f" ± {se.value:.2g}" if np.isfinite(se.value) else "", "a refit, joint" if self.joint else "a unit"
        what += f", {self.score}" if self.score else ""
        missing = self._missing
        lines = [
            ("model", f"{self.labels.get('objective', '')}, {plan.num_units} units"),
            ("refits", f"{plan.num_refits} of {plan.widths} each, {self.labels.get('refit', '')}"),
            ("stopped", self._stopped()),
            ("held-out loss", f"{self.mean:.6g}{known} {what} (SE {se.kind})"),
            ("95% interval", self._short_interval() if np.isnan(se.value) else ""),
            ("approximation", self._approximation()),
            ("random folds", f"± {random:.2g} on that mean, by another draw of them" if np.isfinite(random) else ""),
            ("no update", f"{self.no_update:.6g}"),
            ("other minimum", self._other_minimum()),
            *((name, self._metric(name)) for name in self.metrics),
            ("audit", self.labels.get("audit", "")),
            ("mean", "weighted by sample_weight" if self.unit_weight is not None else ""),
            ("not in the mean", f"{missing} held-out losses that do not exist (see checks)" if missing else ""),
        ]
        return [(name, text) for name, text in lines if text]

    def _stopped(self) -> str:
        """What is to be said of an estimate of some of the refits only."""
        missing, count = int(np.sum(self.result == RESULTS.interrupted)), self.plan.num_refits
        made = f"{count - missing} of {count} refits were made: all that follows is of these, which are no random sample"
        return made if missing else ""

    def _other_minimum(self) -> str:
        if self.elsewhere is None:
            return ""
        lower = np.isfinite(self.elsewhere)
        count = len(np.unique(self._at.refit[lower]))
        known = f"{count or 'none'} of {self.plan.num_refits} refits have a lower one elsewhere"
        mean = self._mean(self.averaged(np.where(lower, self.elsewhere, self.losses)))
        return known + (f"; with these the mean would be {mean:.6g} instead of {self.mean:.6g}" if count else "")

    def _approximation(self) -> str:
        """How far the mean may be off for the refits' errors, and how many of these are proved."""
        if not np.isfinite(self.approximation_error):
            return "not certified: the errors of some refits are not known (see checks)"
        count, total = int(np.sum(self.proved)), len(self.error)
        how = {0: "estimated", total: "proved"}.get(count, f"{count} of {total} refits proved")
        known = f"± {self.approximation_error:.1g} on that mean, {how}"
        return f"{known} ({self.labels['probes']})" if "probes" in self.labels else known

    def _short_interval(self) -> str:
        """Where there is no standard error: of a series too short for blocks."""
        try:
            found = self.interval()
        except ValueError:
            return ""
        return f"{found.low:.4g} to {found.high:.4g}, by the slowest cosines of the series"

    def _metric(self, name: str) -> str:
        se, error = self.metric_se.get(name, np.nan), self.metric_error.get(name, np.nan)
        sampling = f" ± {se:.2g} (SE)" if np.isfinite(se) else " (SE not available)"
        approximation = f"± {error:.1g} for the refits" if np.isfinite(error) else "not certified"
        return f"{self.metrics[name]:.6g}{sampling}, {approximation}; pooled over held-out predictions"

    def to_arviz(self) -> Any:
        """The estimate as `arviz.compare({"name": ...})` takes it, an `ELPDData` of kind "loo": log densities summed over
        units, their standard error, and, as the effective number of parameters, how much lower the losses with no update are.
        Needs arviz. Raises `ValueError` where the losses are no −log densities of units."""
        if self.joint or self.score not in (LOG_DENSITY, LOG_PROBABILITY):
            what = "joint losses" if self.joint else self.score or "a loss that is not known to be a −log density"
            raise ValueError(f"to_arviz: ArviZ compares log densities of units; this is {what}. See evaluate='log_density'.")
        losses = self.per_unit()
        if self.unit_weight is not None and np.ptp(self.unit_weight) > 0:
            raise ValueError("to_arviz: units have other sample_weight, which ArviZ does not know of; lo.compare does.")
        if not np.isfinite(losses).all():
            raise ValueError(f"to_arviz: {np.sum(~np.isfinite(losses))} units have no held-out loss; ArviZ needs one of each.")
        return elpd_data(losses, self.averaged(self.baseline), self.names(), self.se, suspect=len(self.flagged()) > 0)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Held-out loss against no-update loss of each unit, flagged ones named. Needs matplotlib."""
        from .plot import losses

        return losses(self, ax=ax)

    def report(self, path: str | os.PathLike, *, title: str = "") -> Path:
        """Write all of it to one page that needs nothing else, as `lo.report` does. Needs `leaveout[report]`."""
        from ._report import report

        return report(self, path, title=title)
