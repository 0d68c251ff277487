"""The result of `path`: an estimate under each penalty, and the best of them."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .._runtime.providers import provided
from ..models.glm.penalties import AbstractPenalty
from ..optimize.fit import Fit
from ..plans.plan import Plan
from ..validation.checks import of_refits
from ..validation.estimate import Estimate, PrintedResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class JudgedPoint:
    """The fit and the estimate under one penalty, which are built on demand.

    The object has the mean of the losses and of the known errors, the refits to repeat, their parameters, and the number of
    gradients so far.
    """

    make_fit: Callable[[], Fit]
    make_estimate: Callable[[Fit], Estimate]
    mean: float
    error: float
    choose_audits: Callable[[int], dict[int, str]]
    start: dict[int, np.ndarray]
    gradients: float

    @functools.cached_property
    def fit(self) -> Fit:
        return self.make_fit()

    @functools.cached_property
    def estimate(self) -> Estimate:
        return self.make_estimate(self.fit)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: the estimate without the fit, which has the data."""
        kept = {name: getattr(self, name) for name in ("mean", "error", "gradients", "estimate")}
        return dict.fromkeys(("make_fit", "make_estimate", "choose_audits", "fit")) | {"start": {}} | kept


@dataclass(frozen=True, eq=False, repr=False)
class PathPoint:
    """One penalty of a path: its label, the penalty, and the mean held-out loss under it (NaN if some refits do not exist).

    The estimate and the fit are built on demand.
    """

    value: Any
    penalty: AbstractPenalty
    judged_point: JudgedPoint
    audit: pd.DataFrame | None
    note: str  # sentence on the audit of the path

    @property
    def mean(self) -> float:
        return self.judged_point.mean

    @functools.cached_property
    def estimate(self) -> Estimate:
        """The estimate under this penalty."""
        found = self.judged_point.estimate
        return replace(found, audit=self.audit, labels=found.labels | {"audit": self.note})

    @property
    def fit(self) -> Fit:
        """θ̂ under this penalty."""
        return self.judged_point.fit

    def __repr__(self) -> str:
        return f"Point({value_text(self.value)}, {type(self.penalty).__name__}, held-out loss {self.mean:.6g})"


@dataclass(frozen=True, eq=False, repr=False)
class Path(PrintedResult):
    """An estimate under each of many penalties, in the order in which they were given.

    `lo.path` returns it. A pickled path has its estimates, and no fits.

    Attributes
    ----------
    points : tuple of points
        One for each penalty, with its `value`, `penalty`, `mean`, `estimate` and `fit`.
    plan : Plan
        The plan.
    labels : dict of str to str
        The texts of the printed result.

    See Also
    --------
    path : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 5))
    >>> found = lo.path(lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared"), [0.1, 1.0, 10.0], lo.leave_one_out(30))
    >>> found.table()["mean"].round(3).tolist()
    [0.564, 0.557, 0.561]
    """

    points: tuple[PathPoint, ...]
    plan: Plan
    labels: dict[str, str]  # model, refit, audit: for the printed result

    @property
    def values(self) -> pd.Index:
        """Labels of the penalties: their numbers, the keys of a mapping, or else 0, 1, 2 and so on."""
        return pd.Index([point.value for point in self.points], name="penalty")

    @property
    def penalties(self) -> list[AbstractPenalty]:
        """The penalties, in order."""
        return [point.penalty for point in self.points]

    @property
    def estimates(self) -> list[Estimate]:
        """The estimates under the penalties, in order."""
        return [point.estimate for point in self.points]

    @property
    def fits(self) -> list[Fit]:
        """The fits under the penalties, in order."""
        return [point.fit for point in self.points]

    @functools.cached_property
    def _comparable(self) -> list[PathPoint]:
        """Return the points at which every loss of the plan exists: means over fewer units are not comparable."""
        found = [point for point in self.points if np.isfinite(point.mean)]
        if not found:
            raise ValueError("Path: under every penalty some refits do not exist: see Path.table(), or penalise more.")
        return found

    @functools.cached_property
    def best(self) -> PathPoint:
        """The penalty of the lowest mean held-out loss, among those under which every refit exists."""
        return min(self._comparable, key=lambda point: point.mean)

    @functools.cached_property
    def one_standard_error(self) -> PathPoint:
        """The simplest penalty whose mean is within one standard error of the best's (Breiman and others, 1984).

        The standard error is that of the best's own mean, over the independent units of the plan (`Estimate.se`). The simplest
        fits the data worst; among penalties that differ by a factor it is the strongest. Raises ValueError if the plan
        has no standard error.
        """
        value, kind = self.best.estimate.standard_error
        if not np.isfinite(value):
            raise ValueError(f"Path.one_standard_error: the standard error is {kind}. Path.best needs none.")
        near = [point for point in self._comparable if point.mean <= self.best.mean + value]
        return max(near, key=lambda point: point.estimate.no_update)

    def table(self) -> pd.DataFrame:
        """Tabulate the estimates under all penalties.

        Returns
        -------
        DataFrame
            One row a penalty: `mean`, `se`, `no_update`, `approximation_error`, the share `proved`, and the number `flagged`.
        """
        rows = [
            {"mean": e.mean, "se": e.se, "no_update": e.no_update}
            | {"approximation_error": e.approximation_error, "proved": float(np.mean(e.proved)), "flagged": len(e.flagged())}
            for e in self.estimates
        ]
        return pd.DataFrame(rows, index=self.values)

    def _lines(self) -> list[tuple[str, str]]:
        best, mean = self.best, self.best.mean
        value, kind = best.estimate.standard_error
        known, score = f" ± {value:.2g}" if np.isfinite(value) else "", best.estimate.score
        what = f", {score}" if score else ""
        apart = lambda point: point.mean - point.estimate.approximation_error
        close = [p for p in self._comparable if p is not best and apart(p) <= mean + best.estimate.approximation_error]
        ends = best.value in (self.values.min(), self.values.max()) if self.values.dtype == float else False
        worst = max(point.estimate.approximation_error for point in self._comparable)
        proved = np.mean([np.mean(point.estimate.proved) for point in self.points])
        lines = [
            ("model", self.labels["model"]),
            ("penalties", f"{len(self.points)}: {join_texts(self.values)}"),
            ("stopped", self.labels.get("stopped", "")),
            ("refits", f"{self.plan.num_refits} under each, {self.labels['refit']}"),
            ("best", f"{value_text(best.value)}: held-out loss {mean:.6g}{known} a unit{what} (SE {kind})"),
            ("one SE", self._within()),
            ("approximation", f"± {worst:.1g} on a mean at most, {proved:.0%} of refits proved"),
            ("not told apart", f"{join_texts([p.value for p in close])}: within refit error of the best" if close else ""),
            ("at the end", "the best is the least or the largest of the penalties: look further" if ends else ""),
            ("audit", self.labels["audit"]),
            ("not compared", self._missing()),
            *best.estimate._findings(),
            ("elsewhere", self._list_checks()),
            ("note", "the best's mean is a little optimistic: it was chosen by the same losses"),
        ]
        return [(name, text) for name, text in lines if text]

    def _within(self) -> str:
        if not np.isfinite(self.best.estimate.se):
            return ""
        point = self.one_standard_error
        return f"{value_text(point.value)}: {point.mean:.6g}, the simplest within one SE of the best"

    def _list_checks(self) -> str:
        """List the checks of refits under the penalties other than the best."""
        of: dict[str, list[Any]] = {}
        for point in self.points:
            own, best = point.estimate, point is self.best
            for found in [] if best else of_refits(own.flagged(), own.result):
                of.setdefault(found.code, []).append(point.value)
        return "; ".join(f"{code} under {join_texts(values)}" for code, values in sorted(of.items()))

    def _missing(self) -> str:
        without = [point.value for point in self.points if point not in self._comparable]
        return f"{join_texts(without)}: some refits do not exist" if without else ""

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the held-out loss ± its standard error against the penalty, with both choices marked. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").path(self, ax=ax)


def value_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def join_texts(values: Iterable[Any]) -> str:
    texts = [value_text(value) for value in values]
    # labels in a printed list
    return ", ".join(texts if len(texts) <= 5 else [*texts[:2], "…", texts[-1]])
