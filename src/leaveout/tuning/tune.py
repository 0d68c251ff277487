"""Hyperparameters by the held-out loss: each trial is one fit and one cross-validation, and `tune` needs few.

"gradient"  descends by the criterion's exact slope in log ρ (`hypergradient`), with L-BFGS-B in boxes of two e-folds to each
            side: far out the criterion is flat, and a long first step would end there
"optuna"    samples trials by Optuna, each fit from the nearest one; a trial stops once it is known to be no better
"path"      evaluates one penalty by `lo.path`

The lowest of many estimates is optimistic. Nested cross-validation of the choice measures this optimism from one fit for each
trial: with the units in three groups g, t_g chosen by the units outside g, and t̂ by all,

    optimism = Σ_g n_g [L_g(t_g) − L_g(t̂)] / Σ_g n_g,      L_g(t) the criterion of trial t on group g.

From a table of trials t_g costs nothing, and many draws of the groups are averaged (I. Tsamardinos, E. Greasidou and G.
Borboudakis resample units, Machine Learning 107, 2018). With gradients it is another descent from t̂, by the criterion outside
g. More groups are no better, as t_g is then nearly always t̂. Of 40 trials of 400 units that differ only by noise of standard
deviation one, the lowest mean is 0.107 too low; thirds correct it with a root mean square error of 0.04, tenths with 0.08.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import pandas as pd

from .._runtime.checkpoint import File, keeping
from .._runtime.interrupt import Interrupted
from .._runtime.jax import float64
from .._runtime.providers import provided
from ..data.arrays import count
from ..models.glm.banded import BandedRidge
from ..optimize.banded_ridge import PerTarget, descend_penalties
from ..optimize.fit import Fit
from ..plans.plan import Plan
from ..refit import AbstractRefit
from ..validation.estimate import Estimate, PrintedResult
from ..validation.metrics import MEASURES, Metric
from .hypergradient import Build
from .search import (
    SMALL,
    STEP,
    SearchEnd,
    Trial,
    TrialStudy,
    by_gradient,
    by_optuna,
    by_path,
    describe_hyper,
    group_units,
    measure_units,
    sign,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
Sampler = Literal["gradient", "optuna", "path"]
Space = Mapping[str, tuple[float, float] | list[Any]]

OPTIMISM_DRAWS = 20  # draws of groups of the units for the optimism of choosing among trials
COLUMNS = ("mean", "se", "no_update", "approximation_error", "message")  # columns of the table besides the hyperparameters


@dataclass(frozen=True, eq=False, repr=False)
class Tuning(PrintedResult):
    """The result of `tune`: the best trial, its fit and estimate, and all trials in order. A pickled one has no fit.

    Attributes
    ----------
    best : Trial
        The best trial.
    fit : Fit
        Its fit.
    estimate : Estimate
        Its estimate.
    all_trials : tuple of Trial
        All trials, in order.
    space, metric, seed
        The arguments of the call.
    how : tuple
        The method, and why it ended.

    See Also
    --------
    tune : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 4))
    >>> model = lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared")
    >>> build = lambda l2: model.under(lo.penalties.Ridge(l2))
    >>> found = lo.tune(build, {"l2": (1e-2, 1e2)}, lo.leave_one_out(30), sampler="path", trials=4)
    >>> found.trials["l2"].round(2).tolist()
    [0.01, 0.22, 4.64, 100.0]
    """

    best: Trial
    fit: Fit
    estimate: Estimate
    all_trials: tuple[Trial, ...]
    space: dict[str, Any]
    metric: Metric | None
    seed: int
    how: SearchEnd

    @property
    def hyper(self) -> dict[str, Any]:
        """The chosen hyperparameters."""
        return dict(self.best.hyper)

    @property
    def trials(self) -> pd.DataFrame:
        """The trials as a table, one row each, in order.

        Its columns are the hyperparameters, `mean`, `se`, `no_update`, `approximation_error` (infinite where it was not
        computed), the metric, and the message `said` about a trial that was pruned or failed.
        """
        rows = []
        for trial in self.all_trials:
            e = trial.estimate
            known = {} if e is None else {"mean": e.mean, "se": e.se, "no_update": e.no_update}
            known |= {} if e is None else {"approximation_error": _off(e)}
            known |= {} if self.metric is None else {self.metric: sign(self.metric) * trial.value}
            rows.append(trial.hyper | known | {"message": trial.message})
        return pd.DataFrame(rows, index=pd.RangeIndex(len(rows), name="trial"))

    @functools.cached_property
    def optimism(self) -> float:
        """An estimate of how much worse the choice is, on units that had no part in it, than it seems.

        It is an increase of the loss, or a decrease of the metric. NaN where it cannot be estimated.
        """
        if self.how.sampler == "by gradient":
            return self._excess(self.how.nested_trials)
        told, rng = self._comparable, np.random.default_rng(self.seed)
        labels = [group_units(self.estimate, rng) for _ in range(OPTIMISM_DRAWS if len(told) > 1 else 0)]
        return self._excess([(label, [self._least(told, label != g) for g in range(label.max() + 1)]) for label in labels])

    def _least(self, trials: Sequence[Trial], units: Array) -> Trial | None:
        """The best trial by some of the units; None if these do not determine the criterion."""
        values = np.array([self._over(trial, units) for trial in trials])
        return None if np.isnan(values).all() else trials[int(np.nanargmin(values))]

    def _excess(self, nested: Sequence[tuple[Array, Sequence[Trial | None]]]) -> float:
        """Compute by how much trials chosen without a group exceed the best trial there, over draws of the groups."""
        over = lambda trial, label: np.array([self._over(trial, label == g) for g in range(label.max() + 1)])
        found = []
        for label, chosen in nested:
            own = np.array([np.nan if trial is None else self._over(trial, label == g) for g, trial in enumerate(chosen)])
            excess, size = own - over(self.best, label), np.bincount(label)
            if (seen := np.isfinite(excess)).any():
                found.append(np.average(excess[seen], weights=size[seen]))
        return float(np.mean(found)) if found else float("nan")

    @property
    def _comparable(self) -> list[Trial]:
        return [trial for trial in self.all_trials if np.isfinite(trial.value) and not trial.message]

    def _over(self, trial: Trial, units: Array) -> float:
        """Compute the criterion of a trial on some of the units."""
        assert trial.estimate is not None
        if self.metric is None:
            values, weight = trial.estimate.per_unit(), trial.estimate.unit_weight
            seen = units & np.isfinite(values)
            heavy = np.ones(len(values)) if weight is None or trial.estimate.joint else weight
            return float(np.average(values[seen], weights=heavy[seen])) if heavy[seen].sum() > 0 else float("nan")
        return measure_units(self.metric, self.fit, trial.predicted, units)

    @property
    def at_bound(self) -> list[str]:
        """Name hyperparameters that were chosen at an end of their range."""
        ends = {name: np.log(ends) for name, ends in self.space.items() if isinstance(ends, tuple)}
        return [name for name, (low, high) in ends.items() if _near(np.log(self.best.hyper[name]), low, high)]

    def _lines(self) -> list[tuple[str, str]]:
        e, se = self.estimate, self.estimate.standard_error
        known = f" ± {se.value:.2g}" if np.isfinite(se.value) else ""
        what, apart = "a refit, joint" if e.joint else "a unit", self._not_told_apart()
        pruned, failed = ([t.message for t in self.all_trials if t.message.startswith(word)] for word in ("pruned", "no "))
        span: Any = lambda ends: (
            f" from {ends[0]:.4g} to {ends[1]:.4g}" if isinstance(ends, tuple) else f" of {len(ends)} choices"
        )
        alike = {
            span(ends): [name for name, other in self.space.items() if span(other) == span(ends)]
            for ends in self.space.values()
        }
        lines = [
            ("model", e.labels.get("objective", "")),
            ("tuned", "; ".join(", ".join(names) + text for text, names in alike.items())),
            ("trials", f"{len(self.all_trials)} fits, {self.how.sampler}; {self.how.reason}"),
            ("best", describe_hyper(self.best.hyper)),
            (
                "flat",
                f"along {', '.join(self._flat)} wherever it was looked: another start= may tell more" if self._flat else "",
            ),
            ("at a bound", f"{', '.join(self.at_bound)}: look further, or leave it out" if self.at_bound else ""),
            ("held-out loss", f"{e.mean:.6g}{known} {what}{f', {e.score}' if e.score else ''} (SE {se.kind})"),
            ("approximation", e._approximation()),
            *((name, e._metric(name)) for name in e.metrics),
            ("optimism", self._said_of_choosing()),
            ("not told apart", f"{apart} trials: within refit error of the best" if apart else ""),
            ("pruned", f"{len(pruned)} trials, known to be no better" if pruned else ""),
            ("left out", f"{len(failed)} trials; the first: {failed[0]}" if failed else ""),
            ("audit", e.labels.get("audit", "")),
            *e._findings(),
        ]
        return [(name, text) for name, text in lines if text]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, with the optimism computed first, since the fit is left out."""
        return vars(self) | {"optimism": self.optimism, "fit": None}

    @property
    def _flat(self) -> list[str]:
        """Name hyperparameters along which no trial had a slope worth a step."""
        slopes = [trial.slope for trial in self.all_trials if trial.slope is not None]
        least = SMALL[0] * self.estimate.scale
        return [name for name in self.space if slopes and all(abs(slope[name]) <= least for slope in slopes)]

    def _said_of_choosing(self) -> str:
        what = "loss" if self.metric is None else self.metric
        if not np.isfinite(self.optimism):
            return "not told: the best of many estimates is a little lucky" if len(self._comparable) > 1 else ""
        if self.optimism <= 0:
            return f"none of that {what} is seen to be owed to choosing (nested, thirds of the units)"
        return (
            f"about {self.optimism:.2g}, by which that {what} is too good for having been chosen (nested, thirds of the units)"
        )

    def _not_told_apart(self) -> int:
        """Find trials whose means are within both errors of the best's."""
        if self.metric is not None:
            return 0
        error, best = self.estimate.approximation_error, self.estimate.mean
        rest = [t.estimate for t in self._comparable if t is not self.best and t.estimate is not None and _apart(t, self.best)]
        own = [error if np.isinf(_off(e)) else _off(e) for e in rest]
        return sum(e.mean - off <= best + error for e, off in zip(rest, own, strict=True))

    def plot(self, ax: "Axes | None" = None, *, name: str | None = None) -> "Axes":
        """Plot the criterion of every trial against a hyperparameter. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.
        name : str, optional
            The hyperparameter; the first by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").tuning(self, ax=ax, name=name)


def _off(estimate: Estimate) -> float:
    """Return the approximation error; infinite if it was not computed."""
    return estimate.approximation_error if np.isfinite(estimate.error).any() else np.inf


def _near(x: float, low: float, high: float) -> bool:
    hyperparameter_bound = 1e-6  # e-folds from a bound that count as on it
    return bool(x <= low + hyperparameter_bound or x >= high - hyperparameter_bound)


def _apart(one: Trial, other: Trial) -> bool:
    """Tell whether the hyperparameters of two trials differ by a tenth of an e-fold or more."""
    pairs = [(one.hyper[name], other.hyper[name]) for name in other.hyper]
    return any(a != b if not isinstance(b, float) else abs(np.log(a / b)) > 0.1 for a, b in pairs)


@overload
def tune(build: BandedRidge, space: Space | tuple[float, float], plan: Plan, **more: Any) -> PerTarget: ...
@overload
def tune(
    build: Build,
    space: Space,
    plan: Plan,
    refit: AbstractRefit = ...,
    sampler: Sampler = ...,
    *,
    trials: int = ...,
    metric: Metric | None = ...,
    start: Mapping[str, Any] | None = ...,
    nested: int = ...,
    seed: int = ...,
    checkpoint: File | None = ...,
) -> Tuning: ...
@float64
def tune(
    build: Build | BandedRidge,
    space: Space | tuple[float, float],
    plan: Plan,
    refit: AbstractRefit = STEP,
    sampler: Sampler = "gradient",
    *,
    trials: int = 50,
    metric: Metric | None = None,
    start: Mapping[str, Any] | None = None,
    nested: int = 1,
    seed: int = 0,
    checkpoint: File | None = None,
) -> Tuning | PerTarget:
    """Find the hyperparameters with the lowest mean held-out loss.

    Every trial is one fit, cross-validated under `plan` by `refit`. The optimism of the choice is estimated from the trials; by
    gradient, from further descents without some of the units.

    Parameters
    ----------
    build : callable or BandedRidge
        `build(**hyper)` returns an objective. It is quicker if it reads its data once, as `model.under(penalty)` does. For a
        `BandedRidge`, `space` is `(low, high)` for all bands, or a pair for each by name; `trials` is the most rounds, each
        a step of every target.
    space : mapping
        Bounds by the names of the hyperparameters: a tuple `(low, high)` of positive numbers, on the log scale, or a list of
        choices.
    plan : Plan
        The units to leave out, as in `cross_validate`.
    refit : AbstractRefit, default `NewtonStep()`
        The strategy of the refits.
    sampler : {"gradient", "optuna", "path"}, default "gradient"
        "gradient" descends the exact gradient of the criterion of `NewtonStep()`, in steps of two e-folds at most, to a
        local minimum. `build` must then pass its arguments on to penalties, or to functions in JAX, as they come. An
        `AbstractClosedForm`, which JAX cannot differentiate, is also fitted a little to each side of every hyperparameter.
        Under an l1 penalty or bounds the criterion is that of `Exact()`, and has kinks. "optuna" (pip install
        'leaveout[tune]') samples by `seed`, and takes choices too. It prunes a trial whose fit shows that it is no better
        (its loss on seen data is above the best's on unseen data), or whose `NewtonStep()` does, by its reported error.
        "path" tries `trials` values of one penalty.
    trials : int, default 50
        The most fits to make.
    metric : str, optional
        A metric of the pooled held-out predictions ("auc", "mse", …) to choose by instead of the loss. By gradient it can be
        "auc": the search descends a smoothed area, and chooses by the area itself.
    start : mapping, optional
        The first hyperparameters of the descent; by default the geometric middle of the bounds.
    nested : int, default 1
        The descents without each of three groups of units, which estimate the optimism (0 for none).
    seed : int, default 0
        The seed.
    checkpoint : path, optional
        A file that keeps what is done. A call that was killed continues from there, to the same numbers. `build` is
        identified by its code, what the code uses, and every objective that it returns.

    Returns
    -------
    Tuning
        The best trial with its fit and estimate, and all others. For a `BandedRidge`, a `PerTarget`.

    Raises
    ------
    ValueError
        If bounds, start or sampler cannot be used, or `checkpoint` belongs to another run.
    TypeError
        If `build` cannot be differentiated.
    RuntimeError
        If no trial has an estimate. Errors of `fit` carry the hyperparameters in a note.
    Interrupted
        On Ctrl-C, with the best of the trials that were made.

    See Also
    --------
    path : Estimates under many penalties.
    smooth : The smoothing parameters of an additive model.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 4))
    >>> model = lo.GLM(X, X[:, 0] + rng.normal(size=30), "squared")
    >>> build = lambda l2: model.under(lo.penalties.Ridge(l2))
    >>> found = lo.tune(build, {"l2": (1e-2, 1e2)}, lo.leave_one_out(30), trials=10, nested=0)
    >>> sorted(found.hyper), 0.01 < found.hyper["l2"] < 100
    (['l2'], True)
    """
    if isinstance(build, BandedRidge):
        if sampler != "gradient" or metric is not None or checkpoint is not None:
            raise ValueError("tune: a BandedRidge is tuned by gradient of its loss, and keeps no checkpoint.")
        return descend_penalties(build, space, plan, start, count("tune: trials", trials, 1))
    read = _space(space)  # type: ignore[arg-type]
    _check(build, plan, refit, trials, metric, nested, seed)
    study = TrialStudy(build, read, plan, refit, int(trials), metric, _check_start(start, read), int(seed), int(nested))
    if sampler not in get_args(Sampler):
        raise ValueError(f"tune: sampler must be one of {', '.join(map(repr, get_args(Sampler)))}; got {sampler!r}.")
    try:
        # everything that the trials depend on
        names = "build", "space", "plan", "refit", "metric", "start", "seed", "nested"
        of = {name: getattr(study, name) for name in names} | {"trials": study.most, "sampler": sampler}
        with keeping("tune", checkpoint, of):
            how = {"gradient": by_gradient, "optuna": by_optuna, "path": by_path}[sampler](study)
            return _tuning(study, *study.final(how.estimate), how)
    except KeyboardInterrupt:
        ended, best = SearchEnd(f"by {sampler}", "stopped: the best is one of these"), study.best
        partial = lambda: _tuning(study, *best[0], best[0][0].known_estimate, ended) if best else None
        raise Interrupted(f"tune: stopped after {len(study.trials)} trials", partial) from None


def _tuning(study: TrialStudy, best: Trial, fit: Fit, estimate: Estimate, how: SearchEnd) -> Tuning:
    return Tuning(best, fit, estimate, tuple(study.trials), study.space, study.metric, study.seed, how)


def _space(space: Space) -> dict[str, Any]:
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"tune: space must map names to (low, high) or lists of choices; got {space!r}.")
    taken = [name for name in space if not isinstance(name, str) or name in (*COLUMNS, *MEASURES)]
    if taken:
        raise ValueError(f"tune: {taken[0]!r} cannot be the name of a hyperparameter: .trials has a column of that name.")
    read: dict[str, Any] = {}
    for name, ends in space.items():
        if isinstance(ends, list) and ends:
            read[name] = list(ends)
            continue
        known = isinstance(ends, tuple) and len(ends) == 2 and all(isinstance(end, int | float | np.number) for end in ends)
        if not known or not 0 < ends[0] < ends[1] < np.inf:
            raise ValueError(
                f"tune: space[{name!r}] must be a tuple (low, high) of positive numbers, low below high, or a list of choices; "
                f"got {ends!r}."
            )
        read[name] = (float(ends[0]), float(ends[1]))
    return read


def _check(build: Build, plan: Plan, refit: AbstractRefit, trials: int, metric: Metric | None, nested: int, seed: int) -> None:
    if not callable(build):
        raise TypeError(
            f"tune: build must be a function of the hyperparameters that returns an objective; got {type(build).__name__}."
        )
    if not isinstance(plan, Plan):
        raise TypeError(f"tune: plan must be a Plan, such as lo.leave_one_out(n); got {type(plan).__name__}.")
    if not isinstance(refit, AbstractRefit):
        raise TypeError(f"tune: refit must be a strategy such as lo.NewtonStep(); got {refit!r}.")
    if not isinstance(trials, int | np.integer) or trials < 1:
        raise ValueError(f"tune: trials must be a whole number, 1 or more; got {trials!r}.")
    if not isinstance(nested, int | np.integer) or nested < 0:
        raise ValueError(f"tune: nested must be a whole number, 0 or more; got {nested!r}.")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"tune: seed must be a whole number, 0 or more; got {seed!r}.")
    if metric is not None and not (isinstance(metric, str) and metric in MEASURES):
        raise ValueError(f"tune: metric must be among {', '.join(MEASURES)}; got {metric!r}.")


def _check_start(start: Mapping[str, Any] | None, space: Space) -> dict[str, Any]:
    if start is None:
        return {}
    if not isinstance(start, Mapping) or set(start) != set(space):
        came = ", ".join(map(str, start)) if isinstance(start, Mapping) else repr(start)
        raise ValueError(f"tune: start must be a value of each of {', '.join(space)}, by name; got {came}.")
    for name, value in start.items():
        ends = space[name]
        number = isinstance(value, int | float | np.number)
        if not (value in ends if isinstance(ends, list) else number and ends[0] <= value <= ends[1]):
            raise ValueError(f"tune: start[{name!r}] must be in the space, {ends!r}; got {value!r}.")
    return dict(start)
