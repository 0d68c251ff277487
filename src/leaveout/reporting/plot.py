"""Plots of estimates.

Each function returns its axes. It draws on a new figure of pyplot, which a notebook or `plt.show()`
shows, or on the given axes. No function changes matplotlib's global style.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .._runtime import NamedValues, Rng, ThreeNumbers, TwoNumbers, conventional, optional
from ..data import label_texts, places
from ..diagnostics.functions_of_parameters import functional
from ..diagnostics.measures import cooks_distance, hat_diagonal
from ..diagnostics.result import Influence
from ..models.smooth.terms import LABELS
from ..optimize import Fit
from ..plans import Plan
from ..refit import Exact
from ..tuning.smooth import Smoothing
from ..tuning.smooth_curves import curves
from ..validation.compare import compare
from ..validation.cross_validate import cross_validate
from ..validation.estimate import Estimate
from ..validation.scorers import more_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 40  # letters of a row's name that leave room for a forest
DRAWN_POINTS = (
    2_000  # marks above which they are pixels in a drawing of lines, whose file would be large
)
# a line to compare with
REFERENCE: NamedValues = {"color": "0.5", "linewidth": 0.8, "zorder": 0}
DASHED = REFERENCE | {"linestyle": "--"}
# one a unit or a refit
POINT_STYLE: NamedValues = {"s": 14, "alpha": 0.6, "linewidths": 0, "color": "tab:blue"}
DOTS: NamedValues = {"fmt": "o", "color": "tab:blue", "markersize": 4}
RINGS: NamedValues = {"facecolors": "none", "edgecolors": "tab:red"}
INFLUENCE_LABELS = {  # labels of the columns of an `Influence`
    "cook": "Cook's distance",
    "loss": "held-out loss",
    "no_update": "loss with no update",
    "rise": "rise of the loss, held out",
    "share": "share of the loss",
    "error": "error of the loss",
    "moved": "largest change, model-based standard errors",
    "others": "change of the loss of the others",
    "prediction": "change of the prediction",
    "units": "units left out",
}


def axes_of(ax: "Axes | None", size: TwoNumbers = (6.0, 4.0)) -> "Axes":
    """Return the given axes, else those of a new figure."""
    if ax is None:
        with optional("plots need matplotlib: pip install 'leaveout[plot]'"):
            from matplotlib import pyplot
        ax = pyplot.subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def legend(ax: "Axes", loc: Any = None, fontsize: float | None = 8, **options: Any) -> "Axes":
    """Write the legend without a frame, and return the axes."""
    ax.legend(frameon=False, loc=loc, fontsize=fontsize, **options)
    return ax


def legend_above(ax: "Axes", columns: int, fontsize: float | None = 8) -> "Axes":
    """Write the legend above the picture."""
    return legend(ax, "lower left", fontsize, ncols=columns, bbox_to_anchor=(0, 1))


def band(ax: "Axes", x: Any, low: Any, high: Any, label: str) -> None:
    """Shade what lies between two curves."""
    ax.fill_between(x, low, high, color="tab:blue", alpha=0.15, linewidth=0, label=label)


def _axis_label(estimate: Estimate, quantity: str) -> str:
    """Return the label of an axis: its name, followed by the name of the score."""
    if estimate.score:
        return f"{quantity}, {estimate.score}"
    return quantity


def _mean(estimate: Estimate) -> str:
    """Describe the mean, with its errors."""
    errors = {"data": estimate.se, "random folds": estimate.monte_carlo_error}
    finite_errors = {name: value for name, value in errors.items() if np.isfinite(value)}
    text = "".join(
        f" ± {value:.2g}{f' ({name})' if len(finite_errors) > 1 else ''}"
        for name, value in finite_errors.items()
    )
    return f"{estimate.mean:.4g}{text}"


def _label_points(ax: "Axes", names, x, y) -> None:
    """Write names above points, or below, right or left of them if a name would cover another."""
    sides = [
        ((0, 4), "center", "bottom"),
        ((0, -4), "center", "top"),
        ((6, 0), "left", "center"),
        ((-6, 0), "right", "center"),
    ]
    behind = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
    boxes: list[Any] = []
    ax.apply_aspect()
    for name, across, up in zip(label_texts(pd.Index(names)), x, y, strict=True):
        note = ax.annotate(
            name,
            (across, up),
            (0, 0),
            textcoords="offset points",
            fontsize=8,
            bbox=behind,
            zorder=2,
        )
        if up >= 0:
            order = sides
        else:
            order = [sides[1], sides[0], *sides[2:]]
        # the first again, if the name covers another everywhere
        for shift, ha, va in [*order, order[0]]:
            note.set(position=shift, ha=ha, va=va)
            box = note.get_window_extent()
            if not any(box.overlaps(placed) for placed in boxes):
                break
        boxes.append(box)


def _mark_surprising(
    ax: "Axes", losses: np.ndarray, num_named: int, words: list[str], size: int, x, y
) -> None:
    """Draw rings around the units of the largest losses, and their names."""
    most = pd.Series(losses).dropna().nlargest(num_named).index
    ax.scatter(x[most], y[most], s=size, zorder=3, label="most surprising", **RINGS)
    _label_points(ax, [words[unit] for unit in most], x[most], y[most])


def losses(
    estimate: Estimate,
    ax: "Axes | None" = None,
    *,
    num_named: int = 5,
) -> "Axes":
    """Plot the held-out loss of every scored unit against its no-update loss.

    The height above the line is the optimism of the fit. Flagged units are ringed.

    Parameters
    ----------
    estimate : Estimate
        The estimate.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    num_named : int, default 5
        The number of units with the largest rise that are labelled.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> lo.plot.losses(cv).get_xlabel()
    'loss of a unit with no update, half the squared error'
    """
    ax = axes_of(ax, (6.0, 5.0))
    table = estimate.table()
    table = table[np.isfinite(table[["loss", "no_update"]]).all(axis=1)]
    lowest = table.no_update.min()
    ax.axline((lowest, lowest), slope=1, label="loss unchanged", **REFERENCE)
    ax.scatter(
        table.no_update, table.loss, zorder=3, rasterized=len(table) > DRAWN_POINTS, **POINT_STYLE
    )
    flagged = table[table.refit.isin(estimate.flagged())]
    if len(flagged):
        ax.scatter(flagged.no_update, flagged.loss, s=40, label="flagged", **RINGS)
    label = next(name for name in ("unit", "group", "refit") if name in table)
    worst = table.loc[(table.loss - table.no_update).nlargest(num_named).index]
    ax.vlines(
        worst.no_update, worst.no_update, worst.loss, color="tab:blue", alpha=0.4, linewidth=0.8
    )
    _label_points(ax, worst[label], worst.no_update, worst.loss)
    legend(ax, "lower right", None)
    title = f"held-out loss {_mean(estimate)}\nwith no update {estimate.no_update:.4g}"
    ax.set(
        xlabel=_axis_label(estimate, f"loss of a {label} with no update"),
        ylabel=_axis_label(estimate, f"held-out loss of a {label}"),
    )
    ax.set_title(title, fontsize="medium")
    return ax


def agreement(estimate: Estimate, exact: Estimate, ax: "Axes | None" = None) -> "Axes":
    """Plot the error of every held-out loss against exact refits, against the reported error.

    Parameters
    ----------
    estimate : Estimate
        The estimate.
    exact : Estimate
        The estimate of the same plan by `Exact()`.
    ax : Axes, optional
        The axes to draw on; new ones by default.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> lo.plot.agreement(
    ...     cv, lo.cross_validate(fit, lo.leave_one_out(), strategy=lo.Exact())
    ... ).get_ylabel()
    "true error of a refit's loss"
    """
    ax = axes_of(ax, (6.0, 5.0))
    difference = np.abs(estimate.losses - exact.losses)
    if estimate.joint:
        refit = np.arange(len(difference))
    else:
        refit = estimate.plan.refit
    scored = np.isfinite(difference) & (estimate.error[refit] > 0)
    true = np.bincount(refit[scored], difference[scored], estimate.plan.num_refits)
    seen = np.unique(refit[scored])
    smallest_drawn_error = 1e-16  # smaller errors are drawn at this value
    reported, true = (
        np.maximum(part[seen], smallest_drawn_error) for part in (estimate.error, true)
    )
    ax.scatter(reported, true, **POINT_STYLE)
    ends = [np.min(reported), np.max(reported)]
    ax.plot(ends, ends, label="equal", **REFERENCE)
    legend(ax, "upper left", None)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="reported error of a refit's loss",
        ylabel="true error of a refit's loss",
    )
    ax.set_title(
        f"true error at most the reported one: {np.mean(true <= reported):.1%} of {len(seen)} refits"
    )
    return ax


def comparison(estimates: dict[Any, Estimate], ax: "Axes | None" = None) -> "Axes":
    """Plot the difference of the held-out loss of each model from the best, ± its paired standard
    error.

    The no-update losses are in grey.

    Parameters
    ----------
    estimates : dict of str to Estimate
        The estimates by name.
    ax : Axes, optional
        The axes to draw on; new ones by default.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> import warnings
    >>> ridge = lo.GLM(
    ...     np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared", lo.penalties.Ridge(10.0)
    ... )
    >>> other = lo.cross_validate(lo.fit(ridge), lo.leave_one_out())
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # 8 rows are few
    ...     axes = lo.plot.comparison({"plain": cv, "ridge": other})
    >>> [label.get_text() for label in axes.get_xticklabels()]
    ['plain', 'ridge']
    """
    ax = axes_of(ax)
    table = compare(estimates)
    best = table.index[0]
    names = list(estimates)
    table = table.loc[names]
    place = np.arange(len(names))
    seen = [estimate.no_update - table["mean"][best] for estimate in estimates.values()]
    ax.axhline(0, **REFERENCE)
    ax.plot(
        place,
        seen,
        "o--",
        color="0.6",
        markerfacecolor="white",
        linewidth=0.8,
        label="with no update",
    )
    ax.errorbar(
        place,
        table["difference"],
        np.nan_to_num(table["se_difference"].to_numpy()),
        fmt="o-",
        color="tab:blue",
        linewidth=1,
        capsize=3,
        label="held out",
    )
    ax.set_xticks(place, [str(name) for name in names])
    ax.margins(x=0.1)
    ax.set(
        ylabel=_axis_label(estimates[best], "loss a unit above the best held-out").replace(
            ", ", ",\n", 1
        ),
        title=f"{'best' if table['missing'].any() else 'lowest'}: {best}, {table['mean'][best]:.4g} a unit",
    )
    return legend(ax, fontsize=None)


def _value_text(value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def path(
    path: Any,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the held-out loss ± its standard error under every penalty of a `Path`, with the
    no-update loss in grey.

    The best is ringed. A line is drawn one standard error above it, below which the simplest is
    ringed too.

    Parameters
    ----------
    path : Path
        The result of `lo.path`.
    ax : Axes, optional
        The axes to draw on; new ones by default.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> found = lo.path(
    ...     lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"),
    ...     [1.0, 10.0],
    ...     lo.leave_one_out(),
    ... )
    >>> lo.plot.path(found).get_xlabel()
    'penalty'
    """
    ax = axes_of(ax)
    table = path.table()
    best = path.best
    by_number = table.index.dtype == float and bool((table.index > 0).all())
    if by_number:
        place = table.index.to_numpy()
    else:
        place = np.arange(len(table))
    order = np.argsort(place)
    penalties, held, none, bars = (
        part[order] for part in (place, *table[["mean", "no_update", "se"]].to_numpy().T)
    )
    bars = np.nan_to_num(bars)
    ax.plot(penalties, none, color="0.6", linewidth=0.8, label="with no update")
    if by_number:
        band(ax, penalties, held - bars, held + bars, "± standard error")
        ax.plot(
            penalties, held, "o-", color="tab:blue", markersize=3, linewidth=1, label="held out"
        )
        ax.set_xscale("log")
    else:
        ax.errorbar(
            penalties,
            held,
            bars,
            linewidth=1,
            capsize=3,
            label="held out, ± SE",
            **DOTS,
        )
        ax.set_xticks(place, [str(value) for value in table.index])
    marks = {"best": (best, "tab:red")}
    if np.isfinite(best.estimate.se):
        ax.axhline(
            best.estimate.mean + best.estimate.se,
            color="tab:orange",
            linewidth=0.8,
            linestyle="--",
            zorder=0,
            label="one SE above the best",
        )
        marks["simplest below it"] = path.one_standard_error, "tab:orange"
    for name, (point, color) in marks.items():
        ax.plot(
            place[path.points.index(point)],
            point.estimate.mean,
            "o",
            markersize=10,
            markerfacecolor="none",
            color=color,
            label=f"{name}: {_value_text(point.value)}",
        )
    legend_above(ax, 3)
    ax.set(xlabel="penalty", ylabel=_axis_label(best.estimate, "loss a unit"))
    return ax


def tuning(
    tuning: Any,
    ax: "Axes | None" = None,
    *,
    name: str | None = None,
) -> "Axes":
    """Plot the criterion of every trial of a `Tuning` against a hyperparameter, ± its standard
    error.

    Pruned trials are hollow, and the best is ringed.

    Parameters
    ----------
    tuning : Tuning
        The result of `lo.tune`.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    name : str, optional
        The hyperparameter; the first by default.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> model = lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared")
    >>> build = lambda l2: model.under(lo.penalties.Ridge(l2))
    >>> found = lo.tune(
    ...     build, {"l2": (0.1, 10.0)}, lo.leave_one_out(), sampler="path", num_trials=3
    ... )
    >>> lo.plot.tuning(found).get_xlabel()
    'l2'
    """
    ax = axes_of(ax)
    if name is None:
        name = next(iter(tuning.space))
    if name not in tuning.space:
        raise ValueError(
            f"plot.tuning: name must be one of {', '.join(tuning.space)}; got {name!r}."
        )
    trials = [trial for trial in tuning.all_trials if np.isfinite(trial.value)]
    by_number = isinstance(tuning.space[name], tuple)
    sign = -1 if tuning.metric and more_is_better("plot", tuning.metric) else 1
    place = lambda trial: (
        trial.hyper[name] if by_number else tuning.space[name].index(trial.hyper[name])
    )
    complete = [trial for trial in trials if not trial.message]
    pruned = [trial for trial in trials if trial.message]
    positions = np.array([place(trial) for trial in complete])
    value = np.array([sign * trial.value for trial in complete])
    if tuning.metric:
        bars = None
    else:
        bars = np.nan_to_num([trial.estimate.se for trial in complete])
    ax.errorbar(positions, value, bars, linewidth=0.6, alpha=0.8, label="trials", **DOTS)
    if pruned:
        ax.plot(
            [place(trial) for trial in pruned],
            [sign * trial.value for trial in pruned],
            "o",
            mfc="none",
            color="0.6",
            markersize=4,
            label="pruned",
        )
    ax.plot(
        place(tuning.best),
        sign * tuning.best.value,
        "o",
        markersize=10,
        markerfacecolor="none",
        color="tab:red",
        label=f"best: {_value_text(tuning.best.hyper[name])}",
    )
    if by_number:
        # linear, so that ticks have room if values are close
        ax.set_xscale("log" if positions.max() > 5 * positions.min() else "linear")
    else:
        ax.set_xticks(range(len(tuning.space[name])), [str(value) for value in tuning.space[name]])
    legend_above(ax, 3)
    ax.set(xlabel=name, ylabel=tuning.metric or "loss a unit")
    return ax


def leverage(
    fit: Fit,
    estimate: Estimate,
    ax: "Axes | None" = None,
    *,
    num_named: int = 5,
) -> "Axes":
    """Plot the held-out loss of every scored unit against its leverage, with flagged units ringed
    and labelled.

    Parameters
    ----------
    fit : Fit
        The fit.
    estimate : Estimate
        Its estimate.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    num_named : int, default 5
        The number of units with the largest rise that are labelled too.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> lo.plot.leverage(fit, cv).get_xlabel()
    'leverage'
    """
    per_unit = estimate._unit_losses
    if estimate.joint or len(per_unit) != fit.objective.num_units:
        raise ValueError(
            "plot.leverage: the estimate must score the units of this fit, one loss each."
        )
    ax = axes_of(ax, (6.0, 5.0))
    table = pd.DataFrame(
        {
            "leverage": hat_diagonal(fit),
            "loss": per_unit,
            "rise": per_unit - estimate.average(estimate.baseline),
        }
    )
    ax.scatter(table.leverage, table.loss, **POINT_STYLE)
    plan = estimate.plan
    names = estimate.names()
    flagged = table.loc[
        np.unique(plan.index[plan.held & np.isin(plan.refit, estimate.flagged())])
    ].dropna()
    if len(flagged):
        ax.scatter(flagged.leverage, flagged.loss, s=40, label="flagged", **RINGS)
        ax.legend(frameon=False)
    most = [*{*table.rise.nlargest(num_named).index, *flagged.index[:20]}]
    _label_points(ax, names[most], table.leverage[most], table.loss[most])
    ax.axvline(table.leverage.mean(), **REFERENCE)
    title = f"{table.leverage.sum():.3g} effective parameters; the line is the mean leverage"
    ax.set(xlabel="leverage", ylabel=_axis_label(estimate, "held-out loss"), title=title)
    return ax


@conventional
def against_exact(
    fit: Fit,
    estimate: Estimate,
    ax: "Axes | None" = None,
    *,
    num_sampled: int = 50,
    rng: Rng = 0,
) -> "Axes":
    """Plot held-out losses against those of exact refits, for a sample of the refits.

    The bars are the reported errors.

    Parameters
    ----------
    fit : Fit
        The fit.
    estimate : Estimate
        Its estimate.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    num_sampled : int, default 50
        The number of refits. Half of them have the largest reported errors, the others are random.
    rng : int, numpy.random.Generator or None, default 0
        Random numbers: a seed, a generator, or None for others in each call.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> lo.plot.against_exact(fit, cv, num_sampled=4).get_xlabel()
    'held-out loss of exact refits, half the squared error'
    """
    plan = estimate.plan
    worst = np.argsort(-np.nan_to_num(estimate.error, posinf=np.inf))[: num_sampled // 2]
    remaining = np.setdiff1d(np.arange(plan.num_refits), worst)
    sampled = np.random.default_rng(rng).choice(
        remaining, min(num_sampled - len(worst), len(remaining)), replace=False
    )
    chosen = np.sort(np.r_[worst, sampled])
    entries = np.flatnonzero(np.isin(plan.refit, chosen))
    exact = cross_validate(
        fit,
        plan.some(chosen),
        strategy=Exact(),
        bases="refit" if "learned anew" in estimate.labels.note else "frozen",
    )
    held_out = estimate.losses[chosen if estimate.joint else entries]
    bars = estimate.error[chosen if estimate.joint else plan.refit[entries]]
    ax = axes_of(ax, (6.0, 5.0))
    seen = np.isfinite(exact.losses) & np.isfinite(held_out)
    truth = exact.losses[seen]
    held_out = held_out[seen]
    bars = np.where(np.isfinite(bars), bars, 0.0)[seen]
    if not len(truth):
        raise ValueError(
            "plot.against_exact: none of the refits drawn has a loss; see Estimate.flagged()."
        )
    ax.axline((truth.min(), truth.min()), slope=1, **REFERENCE)
    ax.errorbar(
        truth, held_out, bars, fmt="o", markersize=3.5, color="tab:blue", elinewidth=0.8, alpha=0.8
    )
    ax.set(
        xlabel=_axis_label(estimate, "held-out loss of exact refits"),
        ylabel="held-out loss, as estimated",
        title=f"{len(chosen)} of {plan.num_refits} refits; largest difference {np.abs(held_out - truth).max():.1g}",
    )
    return ax


def influence(
    influence: Fit | Influence,
    ax: "Axes | None" = None,
    *,
    by: str = "cook",
    num_named: int = 5,
) -> "Axes":
    """Plot Cook's distance of every unit from the fit without it, or another column of an
    `Influence`.

    The errors of the refits of an `Influence` are drawn where they are large enough to see.

    Parameters
    ----------
    influence : Fit or Influence
        A fit, or the result of `lo.influence`.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    by : str, default "cook"
        A column of an `Influence`, or a parameter.
    num_named : int, default 5
        The number of the largest that are named.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> lo.plot.influence(fit).get_ylabel()
    "Cook's distance"
    """
    ax = axes_of(ax, (8.0, 3.5))
    error = None
    if isinstance(influence, Fit):
        values = cooks_distance(influence)
        by = "cook"
    else:
        values = influence.column(by)
        error = influence.rows.get(f"{by}_error")
    units_in_order(values, ax, error, num_named)
    ax.set_ylabel(INFLUENCE_LABELS.get(by, f"change of {by}, model-based standard errors"))
    return ax


def positions(index: pd.Index) -> np.ndarray:
    """Return where units stand on an axis: at their own numbers or local times, else in order."""
    if isinstance(index, pd.PeriodIndex):
        index = index.to_timestamp()
    if isinstance(index, pd.DatetimeIndex):
        index = index.tz_localize(None)
    elif not pd.api.types.is_numeric_dtype(index):
        index = pd.RangeIndex(len(index))
    return index.to_numpy()


def units_in_order(
    values: pd.Series, ax: "Axes", error: pd.Series | None = None, named: int = 5
) -> "Axes":
    """Draw a number of every unit as a line from zero, and the names of the largest."""
    index = values.index
    x = positions(index)
    counted = pd.api.types.is_numeric_dtype(index) or not pd.api.types.is_numeric_dtype(x)
    ax.set_xlabel(f"{index.name or 'unit'}{'' if counted else ', in order'}")
    words = label_texts(index)
    if error is not None:
        ax.errorbar(
            x,
            values,
            np.where(np.isfinite(error), error, 0.0),
            fmt="none",
            ecolor="tab:orange",
            elinewidth=1.5,
            zorder=3,
        )
    ax.vlines(x, 0, values, color="tab:blue", linewidth=0.8, rasterized=len(values) > DRAWN_POINTS)
    ax.axhline(0, color="0.5", linewidth=0.8)
    size = values.abs().to_numpy(float)
    most = [k for k in np.argsort(-size)[:named] if np.isfinite(size[k])]
    _label_points(ax, [words[k] for k in most], x[most], values.to_numpy(float)[most])
    ax.margins(x=0.02, y=0.12)
    if x.dtype.kind == "M":
        from matplotlib.dates import ConciseDateFormatter

        ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator()))
    if (values.dropna() >= 0).all():
        ax.set_ylim(bottom=0)
    return ax


def bars(values: pd.Series, label: str, ax: "Axes") -> "Axes":
    """Draw a bar for each row, from the top."""
    place = np.arange(len(values))
    ax.barh(place, values, color="tab:blue")
    ax.set_yticks(place, label_texts(values.index))
    ax.set(xlabel=label, ylim=(len(values) - 0.5, -0.5))
    return ax


def estimates(
    estimates: dict[Any, Estimate],
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot mean held-out losses with their errors.

    A thin line is the standard error of the mean. Beside it is the Monte-Carlo error, if folds are
    random. A thick line is the approximation error.

    Parameters
    ----------
    estimates : dict of str to Estimate
        The estimates by name.
    ax : Axes, optional
        The axes to draw on; new ones by default.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.arange(8.0)[:, None], np.arange(8.0) ** 2, "squared"))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out())
    >>> lo.plot.estimates({"line": cv}).get_xlabel()
    'held-out loss a unit, half the squared error'
    """
    if not estimates:
        raise ValueError("plot.estimates: give one or more estimates, {name: estimate}.")
    ax = axes_of(ax, (6.5, 0.5 * len(estimates) + 1.6))
    rows = [
        (e.mean, e.no_update, e.se, e.monte_carlo_error, e.approximation_error)
        for e in estimates.values()
    ]
    mean, no_update, *sizes = np.where(np.isfinite(rows), rows, np.nan).T
    bars: dict[str, tuple[float, NamedValues]] = {
        "standard error (data)": (0.0, {"color": "tab:blue", "elinewidth": 1, "capsize": 3}),
        "another draw of folds (Monte Carlo)": (
            0.18,
            {"color": "tab:green", "elinewidth": 1, "capsize": 3},
        ),
        "approximation": (0.0, {"color": "tab:orange", "elinewidth": 6, "alpha": 0.6}),
    }
    place = np.arange(len(estimates))
    for size, (name, (aside, style)) in zip(sizes, bars.items(), strict=True):
        if np.isfinite(size).any():
            ax.errorbar(mean, place + aside, xerr=size, fmt="none", label=name, **style)
    ax.plot(mean, place, "o", color="tab:blue", markersize=4)
    ax.plot(
        no_update, place, "o", color="0.6", markerfacecolor="white", markersize=4, label="no update"
    )
    ax.set_yticks(place, [str(name) for name in estimates])
    scores = {estimate.score for estimate in estimates.values()}
    first = next(iter(estimates.values()))
    label = "held-out loss a unit, of other scores"
    if len(scores) == 1:
        label = _axis_label(first, "held-out loss a unit")
    ax.set(xlabel=label, ylim=(len(estimates) - 0.5, -0.5))
    legend_above(ax, 2)
    return ax


def states(
    fit: Any,
    estimate: Estimate | None = None,
    ax: "Axes | None" = None,
    *,
    channel: int = 0,
    num_named: int = 5,
) -> "Axes":
    """Plot a series, shaded by the most probable path of states of a fitted hidden Markov model.

    Parameters
    ----------
    fit : Fit
        The fit of an `HMM`.
    estimate : Estimate, optional
        Its estimate: the steps with the highest held-out losses are ringed and labelled.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    channel : int, default 0
        The channel of the series.
    num_named : int, default 5
        The number of steps that are labelled.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    TypeError
        If the fit is not that of a hidden Markov model.
    ValueError
        If the estimate scores sequences and not steps.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.r_[np.zeros(20), np.full(20, 5.0)] + np.random.default_rng(0).normal(size=40)
    >>> hmm = lo.HMM(x, lo.emissions.Gaussian(), 2)
    >>> ax = lo.plot.states(lo.fit(hmm, rng=0))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['state 0', 'state 1']
    """
    hmm: Any = getattr(fit, "objective", None)
    if not callable(getattr(hmm, "decode", None)):
        got = type(fit if hmm is None else hmm).__name__
        raise TypeError(
            f"plot.states: the first argument is a Fit of a hidden Markov model; got {got}."
        )
    if estimate is not None and estimate.plan.num_units != len(hmm.x):
        raise ValueError(
            "plot.states: the estimate must score steps; leave estimate= out where sequences are held out."
        )
    ax = axes_of(ax, (9.0, 3.5))
    path = hmm.decode(fit)
    index = pd.Series(path).index
    x = hmm.x[:, channel]
    times = positions(index)
    path = np.asarray(path)
    starts = np.flatnonzero(
        np.isin(np.arange(len(x)), np.cumsum(hmm.lengths)) | np.r_[True, np.diff(path) != 0]
    )
    for start, end in zip(starts, [*starts[1:], len(x) - 1], strict=True):
        ax.axvspan(times[start], times[end], color=f"C{path[start] % 10}", alpha=0.15, linewidth=0)
    ax.plot(times, x, color="0.4", linewidth=0.7, zorder=1)
    for k in np.unique(path):
        ax.scatter(
            times[path == k], x[path == k], s=12, color=f"C{k % 10}", zorder=2, label=f"state {k}"
        )
    if estimate is not None:
        _mark_surprising(ax, estimate._unit_losses, num_named, label_texts(index), 70, times, x)
    legend_above(ax, 4, None)
    ax.set(xlabel=index.name, ylabel=hmm.labels.name)
    return ax


def field(
    fit: Any,
    coordinates: Any,
    estimate: Estimate | None = None,
    ax: "Axes | None" = None,
    *,
    which: int = 0,
    num_named: int = 5,
) -> "Axes":
    """Map a fitted Markov random field or Gaussian field: its edges, and its sites in the colour of
    their state or effect.

    A site has the colour of its most probable state, pale where that is not certain.

    Parameters
    ----------
    fit : Fit
        The fit of an `MRF` or a `GaussianField`.
    coordinates : array_like, `[sites, 2]`
        The sites, across and up.
    estimate : Estimate, optional
        Its estimate: the sites with the highest held-out losses are ringed and labelled.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    which : int, default 0
        The field to map, of several.
    num_named : int, default 5
        The number of sites that are labelled.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    TypeError
        If the fit is not that of a field.
    ValueError
        If the coordinates are not one pair for each site, or their labels are not those of the
        sites.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> edges = [(k, k + 1) for k in range(7)]
    >>> y = np.array([0.1, 0.3, 0.2, 0.4, 2.1, 1.9, 2.2, 2.0])
    >>> fit = lo.fit(lo.GaussianField(y, np.array(edges), family="gaussian", structure="car"))
    >>> ax = lo.plot.field(fit, np.column_stack([np.arange(8), np.zeros(8)]))
    >>> len(ax.collections) > 0
    True
    """
    mrf: Any = getattr(fit, "objective", None)
    if not hasattr(mrf, "edges"):
        got = type(fit if mrf is None else mrf).__name__
        raise TypeError(
            f"plot.field: the first argument is a Fit of a Markov random field, or a Gaussian one; got {got}."
        )
    if hasattr(mrf, "smoothed"):
        effects = mrf.smoothed(fit)["effect"].to_numpy()
        number = 1
        sites = len(effects)
    else:
        effects = None
        number, sites = mrf.x.shape[:2]
    positions = np.asarray(coordinates, float)
    if positions.shape != (sites, 2) or not np.isfinite(positions).all():
        raise ValueError(
            f"plot.field: coordinates must be finite, one pair a site, shape ({sites}, 2); got shape {positions.shape}."
        )
    if not 0 <= which < number:
        raise ValueError(f"plot.field: which must be a field, 0 to {number - 1}; got {which}.")
    if estimate is not None and estimate.plan.num_units != number * sites:
        raise ValueError(
            "plot.field: the estimate must score sites; leave estimate= out where whole fields are held out."
        )
    ax = axes_of(ax, (6.0, 6.0))
    names = mrf.labels.index
    if names is None:
        names = pd.RangeIndex(sites)
    if isinstance(coordinates, pd.DataFrame):
        order = places("plot.field", "coordinates", coordinates.index, "x", names)
        if order is not None:
            positions = positions[order]
    ax.plot(
        *np.insert(positions[mrf.edges], 2, np.nan, axis=1).reshape(-1, 2).T,
        color="0.8",
        linewidth=0.7,
        zorder=1,
    )
    if effects is None:
        probable = np.asarray(mrf.state_probabilities(fit)).reshape(number, sites, -1)[which]
        state = probable.argmax(1)
        K = probable.shape[1]
        if K > 1:
            certain = np.clip((probable.max(1) - 1 / K) / (1 - 1 / K), 0, 1)
        else:
            certain = np.ones(sites)
        for k in range(K):
            members = state == k
            ax.scatter(
                *positions[members].T,
                s=30,
                color=f"C{k % 10}",
                alpha=1 - 0.75 * (1 - certain[members]),
                linewidths=0,
                zorder=2,
            )
            ax.scatter([], [], s=30, color=f"C{k % 10}", linewidths=0, label=f"state {k}")
    else:
        limit = float(np.abs(effects).max())
        points = ax.scatter(
            *positions.T,
            s=30,
            c=effects,
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            linewidths=0,
            zorder=2,
        )
        ax.figure.colorbar(points, ax=ax, label="effect", shrink=0.7)
    ax.set_aspect("equal")
    ax.set_axis_off()
    if estimate is not None:
        losses = estimate._unit_losses.reshape(number, sites)[which]
        _mark_surprising(ax, losses, num_named, label_texts(names), 90, *positions.T)
    if ax.get_legend_handles_labels()[1]:
        legend_above(ax, 4, None)
    return ax


def smooth(
    fit: Smoothing | Fit,
    term: str | None = None,
    ax: "Axes | None" = None,
    *,
    plan: Plan | None = None,
    level: float = 0.95,
) -> "Axes":
    """Plot a smooth term of an additive model, the first by default, with its intervals as in
    `lo.tuning.curves`.

    A term of one column is a curve with a mark at every row. Effects of labels are in rising order.
    A term of two columns is a map, with the rows as dots.

    Parameters
    ----------
    fit : Smoothing or Fit
        The result of `lo.smooth`, or the fit of an `Additive` model.
    term : str, optional
        The label of the term, such as "s(x)"; the first by default.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    plan : Plan, optional
        A plan that describes which units depend on one another, as in `lo.tuning.curves`.
    level : float, default 0.95
        The coverage of the intervals.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    ValueError
        If the model has no such term, or the term has more than two columns.

    See Also
    --------
    leaveout.tuning.curves : The numbers that are drawn.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.linspace(0, 1, 40)
    >>> y = np.sin(6 * x) + np.random.default_rng(0).normal(scale=0.3, size=40)
    >>> fit = lo.fit(lo.Additive([lo.terms.s("x", k=8)], {"x": x}, y))
    >>> lo.plot.smooth(fit).get_ylabel()
    's(x)'
    """
    table = curves(fit, plan, level=level)
    if term is None:
        term = table["term"].iloc[0]
    if term not in set(table["term"]):
        raise ValueError(
            f"plot.smooth: term must be one of {', '.join(table['term'].unique())}; got {term!r}."
        )
    model: Any = (fit.fit if isinstance(fit, Smoothing) else fit).objective
    bound = model.smooths[term][0]
    names = bound.term.columns
    table = table[table["term"] == term]
    ax = axes_of(ax)
    if len(names) == 2:
        grid = table.pivot_table(index=names[1], columns=names[0], values="value")
        most = np.abs(grid.to_numpy()).max()
        contours = ax.contourf(
            grid.columns, grid.index, grid.to_numpy(), 20, cmap="RdBu_r", vmin=-most, vmax=most
        )
        rows = np.column_stack([np.asarray(part).reshape(len(part), -1) for part in bound.columns])
        ax.plot(*rows.T, ".", color="0.2", markersize=2, alpha=0.5)
        ax.figure.colorbar(contours, ax=ax, label=term)
        ax.set(xlabel=names[0], ylabel=names[1])
        return ax
    if len(names) > 2:
        raise ValueError(
            f"plot.smooth: {term} is of {len(names)} columns; draw what lo.tuning.curves makes of it."
        )
    (name,) = names
    if bound.term.bs[0] in LABELS:
        table = table.sort_values("value")
        place = np.arange(len(table))
        value = table["value"].to_numpy()
        bars = np.abs(table[["low", "high"]].to_numpy().T - value)
        ax.errorbar(place, value, bars, linewidth=1, **DOTS)
        if len(table) <= 30:
            ax.set_xticks(place, [str(label) for label in table[name]], rotation=45)
    else:
        band(ax, table[name], table["low"], table["high"], f"{level:.0%} interval")
        ax.plot(table[name], table["value"], color="tab:blue", label="term")
        rows = np.asarray(bound.columns[0]).reshape(len(bound.columns[0]), -1)[:, 0]
        ax.plot(
            rows,
            np.full(len(rows), 0.01),
            "|",
            color="0.4",
            markersize=5,
            alpha=0.5,
            transform=ax.get_xaxis_transform(),
        )
        legend_above(ax, 2)
    ax.axhline(0, color="0.5", linewidth=0.6, zorder=0)
    ax.set(xlabel=name, ylabel=term)
    return ax


def forest(
    table: pd.DataFrame,
    ax: "Axes | None" = None,
    *,
    pooled: ThreeNumbers | None = None,
    prediction: TwoNumbers | None = None,
    reference: float | None = None,
    marked: Any = None,
    label: str = "",
) -> "Axes":
    """Plot estimates with their intervals, one row each: a forest plot.

    Parameters
    ----------
    table : DataFrame
        `estimate`, `low` and `high` of each row, whose labels are the index; and, if it is there,
        the `weight` of each, to which the area of its mark is proportional.
        `InternalExternal.forest` makes one: its rows "pooled" and "new centre" are drawn as a
        diamond and a bar.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    pooled : (float, float, float), optional
        The pooled estimate and the ends of its interval, which are drawn as a diamond.
    prediction : (float, float), optional
        The ends of the interval for a new row, which are drawn as a bar through the diamond.
    reference : float, optional
        A value that a dashed line marks.
    marked : label, optional
        The row that is drawn in orange.
    label : str, default ""
        The label of the axis.

    Returns
    -------
    Axes
        The axes.

    Raises
    ------
    ValueError
        If the table lacks a column, or has no rows.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import pandas as pd
    >>> import leaveout as lo
    >>> table = pd.DataFrame(
    ...     {"estimate": [0.8, 0.7], "low": [0.7, 0.6], "high": [0.9, 0.8]}, index=["Rome", "Oslo"]
    ... )
    >>> ax = lo.plot.forest(table, pooled=(0.75, 0.66, 0.84), label="C")
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['Rome', 'Oslo', 'pooled']
    """
    missing = [
        name for name in ("estimate", "low", "high") if name not in getattr(table, "columns", ())
    ]
    if missing or not len(table):
        raise ValueError(
            f"plot.forest: the table needs rows, and estimate, low and high; it lacks {missing or 'rows'}."
        )
    rows = table.drop(index=["pooled", "new centre"], errors="ignore")
    if "pooled" in table.index and pooled is None:
        pooled = tuple(table.loc["pooled", ["estimate", "low", "high"]])
    if "new centre" in table.index and prediction is None:
        prediction = tuple(table.loc["new centre", ["low", "high"]])
    names = [
        text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
        for text in label_texts(rows.index)
    ]
    numbers = rows[["estimate", "low", "high"]].to_numpy(float)
    count = len(rows) + (pooled is not None)
    ax = axes_of(ax, (7.0, 1.2 + 0.32 * count))
    place = np.arange(len(rows))
    weight = rows.get("weight", pd.Series(1.0, rows.index)).to_numpy(float)
    colors = [
        "tab:orange" if marked is not None and name == marked else "tab:blue" for name in rows.index
    ]
    ax.hlines(place, *numbers[:, 1:].T, color=colors, linewidth=1.2)
    ax.scatter(
        numbers[:, 0],
        place,
        s=60 * weight / np.nanmax(weight, initial=1e-300),
        marker="s",
        color=colors,
        zorder=3,
    )
    if pooled is not None:
        middle, low, high = pooled
        ax.fill(
            [low, middle, high, middle],
            len(rows) + np.array([0, -0.28, 0, 0.28]),
            color="0.25",
            zorder=3,
        )
        names = [*names, "pooled"]
        numbers = np.vstack([numbers, pooled])
        if prediction is not None and np.isfinite(prediction).all():
            interval_label = "interval for a new one, {:.3g} to {:.3g}".format(*prediction).replace(
                "-", "−"
            )
            ax.hlines(
                len(rows),
                *prediction,
                color="tab:orange",
                linewidth=2.5,
                label=interval_label,
                zorder=2,
            )
            legend(ax, "upper left", bbox_to_anchor=(0, -0.3 / (1 + 0.1 * count)))
        ax.axhline(len(rows) - 0.5, color="0.85", linewidth=0.8)
    if reference is not None and np.isfinite(reference):
        ax.axvline(reference, **DASHED)
    ax.set_yticks(np.arange(count), names, parse_math=False)
    ax.set_ylim(count - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    for k, (value, low, high) in enumerate(numbers):
        text = "not known"
        if np.isfinite(value):
            text = f"{value:.3g}" + f" ({low:.3g} to {high:.3g})" * bool(low < high)
        ax.text(
            1.02,
            k,
            text.replace("-", "−"),
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=8,
        )
    ax.set(xlabel=label)
    return ax


def folds(
    fit: Fit,
    plan: Plan,
    f: Any,
    ax: "Axes | None" = None,
    *,
    num_shown: int = 30,
) -> "Axes":
    """Plot an estimate without each group, above the estimate of all; the group that moves it most
    is orange.

    Parameters
    ----------
    fit : Fit
        The fit.
    plan : Plan
        What each refit leaves out, such as `lo.groups(labels)`.
    f : callable or str
        A function of the parameters, or the name of one, as `lo.diagnostics.functional` takes it.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    num_shown : int, default 30
        The number of groups that are drawn at most: those that move the estimate most.

    Returns
    -------
    Axes
        The axes. The diamond is the jackknife interval of the estimate of all.

    Raises
    ------
    ValueError
        If the function returns several numbers, or the plan does not leave out every unit once.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> import numpy as np
    >>> import leaveout as lo
    >>> x = np.arange(8.0)
    >>> fit = lo.fit(lo.GLM(x[:, None], x + np.array([0, 0, 0, 0, 0, 0, 4, 4.0]), "squared"))
    >>> lo.plot.folds(fit, lo.groups(list("aabbccdd")), "x0").get_title()
    'without d: 1.0 instead of 1.57'
    """
    jackknife = functional(fit, plan, f)
    if not jackknife.one:
        raise ValueError(f"plot.folds: f must return one number; got {len(jackknife.table)}.")
    value = jackknife.replicates.iloc[:, 0].dropna().sort_values()
    moves = (value - jackknife.estimate).abs()
    most = moves.idxmax()
    value = value[moves.rank(ascending=False, method="first") <= num_shown]
    table = pd.DataFrame({"estimate": value, "low": value, "high": value})
    ends = (jackknife.estimate, *jackknife.interval)
    label = f if isinstance(f, str) else "estimate"
    ax = forest(table, ax, pooled=ends, reference=jackknife.estimate, marked=most, label=label)
    ax.set_yticks(
        ax.get_yticks(), [f"without {name}" for name in label_texts(value.index)] + ["all"]
    )
    ax.set_title(
        f"without {most}: {value[most]:.3} instead of {jackknife.estimate:.3}", fontsize="medium"
    )
    return ax
