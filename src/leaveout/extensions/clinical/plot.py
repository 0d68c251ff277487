"""Plots of calibration, net benefit, stability, and of how well two classes are told apart."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ... import Estimate, Fit
from ...developer import DASHED, METRICS, axes_of, band, legend, legend_above
from .calibration import Calibration, calibration as calibrate
from .decision_curve import DecisionCurve, decision_curve as decide
from .held_out_rows import HeldOutRows, held_out_rows
from .performance import Binary, until
from .stability import Stability

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def calibration(
    calibration: Calibration | Estimate | Fit,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the calibration curve with its band over the diagonal, and how often predictions are
    made below it.

    Parameters
    ----------
    calibration : Calibration, Estimate or Fit
        The result of `lo.clinical.calibration`, or what it takes.
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
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = (X[:, 0] + np.random.default_rng(1).normal(size=100) > 0) * 1.0
    >>> fit = lo.fit(lo.GLM(X, y, "logistic"))
    >>> lo.plot.calibration(lo.clinical.calibration(lo.cross_validate(fit, 5))).get_ylabel()
    'observed share'
    """
    ax = axes_of(ax, (5.5, 5.5))
    if not isinstance(calibration, Calibration):
        calibration = calibrate(calibration)
    curve = calibration.curve
    p = calibration.predicted
    share = np.isin(calibration.outcome, (0, 1)).all()
    low = 0.0
    high = 1.0
    words = "predicted risk", "observed share"
    parts = {
        "with the event": (calibration.outcome == 1, "tab:orange", 1),
        "without the event": (calibration.outcome == 0, "0.6", -1),
    }
    if not share:
        low = min(p.min(), curve["observed"].min())
        high = max(p.max(), curve["observed"].max())
        words = "predicted", "observed"
        parts = {"": (np.ones(len(p), bool), "0.6", 1)}
    ax.plot([low, high], [low, high], label="ideal", **DASHED)
    if curve["low"].notna().any():
        band(ax, curve["predicted"], curve["low"], curve["high"], f"{calibration.level:.0%} band")
    corrected = "corrected" in curve
    if corrected:
        color = "0.6"
        label = "apparent"
    else:
        color = "tab:blue"
        label = f"observed, {calibration.smoother}"
    ax.plot(curve["predicted"], curve["observed"], color=color, linewidth=1.4, label=label)
    if corrected:
        ax.plot(
            curve["predicted"],
            curve["corrected"],
            color="tab:blue",
            linewidth=1.4,
            label="corrected for optimism",
        )
    # height of the tallest bar
    bins = np.linspace(low, high, 51)
    tall = 0.12 * (high - low)
    counts = np.array([np.histogram(p[part], bins)[0] for part, *_ in parts.values()])
    for number, (name, (_, color, sign)) in zip(
        counts / max(1, counts.max()), parts.items(), strict=True
    ):
        ax.bar(
            bins[:-1],
            sign * number * tall,
            np.diff(bins),
            low - tall,
            align="edge",
            color=color,
            linewidth=0,
            label=name or None,
        )
    slope, large = (
        f"{value:z.2f} ± {se:.2g}".replace("-", "−")
        for value, se in calibration.table.loc[["slope", "large"], ["estimate", "se"]].to_numpy()
    )
    title = f"{'apparent ' * corrected}slope {slope}; in the large {large}"
    ax.set(xlabel=f"{words[0]}{until(calibration.time)}", ylabel=words[1], xlim=(low, high))
    ax.set_title(title, fontsize="medium")
    ax.set_yticks([tick for tick in ax.get_yticks() if low <= tick <= high])
    ax.set_ylim(low - 2.1 * tall, high)
    return legend(ax, "upper left")


def decision_curve(
    curve: DecisionCurve | Estimate | Fit,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the net benefit of the model, with its interval, of treating all, and of treating none.

    Parameters
    ----------
    curve : DecisionCurve, Estimate or Fit
        The result of `lo.clinical.decision_curve`, or what it takes.
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
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = (X[:, 0] + np.random.default_rng(1).normal(size=100) > 0) * 1.0
    >>> fit = lo.fit(lo.GLM(X, y, "logistic"))
    >>> lo.plot.decision_curve(lo.clinical.decision_curve(lo.cross_validate(fit, 5))).get_ylabel()
    'net benefit'
    """
    ax = axes_of(ax)
    if not isinstance(curve, DecisionCurve):
        curve = decide(curve)
    table = curve.table
    t = table.index.to_numpy()
    ax.axhline(0, color="0.3", linewidth=0.8, label="treat none")
    ax.plot(t, table["all"], color="tab:orange", linewidth=1.2, linestyle="--", label="treat all")
    band(ax, t, table["low"], table["high"], f"{curve.level:.0%} interval")
    ax.plot(t, table["net_benefit"], color="tab:blue", linewidth=1.4, label="the model")
    top = max(table["net_benefit"].max(), table["all"].max(), 0.01)
    ax.set(
        xlabel=f"threshold of risk{until(curve.time)} above which one treats",
        ylabel="net benefit",
        ylim=(-0.25 * top, 1.15 * top),
    )
    return legend_above(ax, 2)


def stability(
    stability: Stability,
    ax: "Axes | None" = None,
    *,
    num_points: int = 20_000,
) -> "Axes":
    """Plot the predictions by resamples over those of the fit, with the ends between which most of
    them lie.

    Parameters
    ----------
    stability : Stability
        The result of `lo.clinical.stability`.
    ax : Axes, optional
        The axes to draw on; new ones by default.
    num_points : int, default 20000
        The number of points at most, drawn at random.

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
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = (X[:, 0] + np.random.default_rng(1).normal(size=100) > 0) * 1.0
    >>> fit = lo.fit(lo.GLM(X, y, "logistic"))
    >>> lo.plot.stability(lo.clinical.stability(fit, num_resamples=20)).get_ylabel()
    'prediction by resamples'
    """
    ax = axes_of(ax, (5.5, 5.5))
    p = stability.units["prediction"].to_numpy()
    shown = np.random.default_rng(0).permutation(stability.predictions.size)[:num_points]
    ax.plot(
        np.tile(p, len(stability.predictions))[shown],
        stability.predictions.ravel()[shown],
        ".",
        color="tab:blue",
        markersize=2,
        alpha=0.15,
        rasterized=True,
    )
    ends = [min(p.min(), stability.predictions.min()), max(p.max(), stability.predictions.max())]
    ax.plot(ends, ends, color="0.3", linewidth=0.8, linestyle="--", label="the fit")
    order = np.argsort(p)
    window = max(1, len(p) // 20)  # units over which the ends are averaged
    smooth = lambda values: pd.Series(values).rolling(window, center=True, min_periods=1).mean()
    for name, label in (("low", f"middle {stability.level:.0%}"), ("high", None)):
        ax.plot(
            p[order],
            smooth(stability.units[name].to_numpy()[order]),
            color="tab:orange",
            linewidth=1.2,
            label=label,
        )
    ax.set(xlabel="prediction by the fit", ylabel="prediction by resamples")
    ax.set_title(
        f"mean absolute prediction error {stability.units['mape'].mean():.3g}", fontsize="medium"
    )
    return legend(ax, "upper left", None)


def roc(
    estimate: Estimate | Fit,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the ROC curve of held-out predictions of two classes.

    Parameters
    ----------
    estimate : Estimate or Fit
        The estimate; or a fit, whose own predictions are drawn.
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
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = (X[:, 0] + np.random.default_rng(1).normal(size=100) > 0) * 1.0
    >>> fit = lo.fit(lo.GLM(X, y, "logistic"))
    >>> lo.plot.roc(lo.cross_validate(fit, 5)).get_xlabel()
    '1 − specificity, share flagged of those without the event'
    """
    from sklearn.metrics import roc_curve

    rows, ax = _two_classes("roc", estimate, ax, "auc", "AUC")
    false, true, _ = roc_curve(rows.outcome[0], rows.score, sample_weight=rows.weight)
    ax.plot([0, 1], [0, 1], label="chance", **DASHED)
    ax.plot(false, true, color="tab:blue", linewidth=1.4)
    ax.set(
        xlabel="1 − specificity, share flagged of those without the event",
        ylabel="sensitivity, share flagged of those with it",
    )
    ax.set_aspect("equal")
    return legend(ax, "lower right")


def precision_recall(
    estimate: Estimate | Fit,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot precision over recall of held-out predictions of two classes.

    Parameters
    ----------
    estimate : Estimate or Fit
        The estimate; or a fit, whose own predictions are drawn.
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
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = (X[:, 0] + np.random.default_rng(1).normal(size=100) > 0) * 1.0
    >>> fit = lo.fit(lo.GLM(X, y, "logistic"))
    >>> lo.plot.precision_recall(lo.cross_validate(fit, 5)).get_ylabel()
    'precision, positive predictive value'
    """
    from sklearn.metrics import precision_recall_curve

    rows, ax = _two_classes(
        "precision_recall", estimate, ax, "average_precision", "average precision"
    )
    y = rows.outcome[0]
    precision, recall, _ = precision_recall_curve(y, rows.score, sample_weight=rows.weight)
    share = np.average(y, weights=rows.weight)
    ax.axhline(share, label=f"prevalence {share:.2f}", **DASHED)
    ax.step(recall, precision, where="post", color="tab:blue", linewidth=1.4)
    ax.set(
        xlabel="recall, sensitivity", ylabel="precision, positive predictive value", ylim=(0, 1.02)
    )
    return legend(ax, "lower left")


def _two_classes(
    caller: str, cv, ax: "Axes | None", metric: str, name: str
) -> tuple[HeldOutRows, "Axes"]:
    """Return the rows of a picture of two classes, and its axes under the metric with its standard
    error.
    """
    rows = held_out_rows(f"plot.{caller}", cv)
    if not isinstance(rows.measure, Binary):
        raise TypeError(f"plot.{caller}: needs a response of two classes.")
    values = METRICS[metric].pseudo(rows.outcome[0], rows.score, rows.weight)
    ax = axes_of(ax, (5.0, 5.0))
    origin = ", held out"
    if rows.plan is None:
        origin = ", apparent"
    value = f"{np.average(values, weights=rows.weight):.3f} ± {rows.mean(values).value:.2g}"
    ax.set_title(f"{name} {value}{origin}", fontsize="medium")
    return rows, ax
