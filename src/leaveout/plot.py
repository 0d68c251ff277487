"""Pictures of estimates. Each function returns its axes, and none touches matplotlib's global style."""

from typing import TYPE_CHECKING

import numpy as np

from ._estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 1e-16  # errors below it are drawn there


def _axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'leaveout[plot]'") from error
    return Figure(figsize=size, layout="constrained").subplots()


def losses(estimate: Estimate, ax: "Axes | None" = None, *, named: int = 5) -> "Axes":
    """Held-out against no-update loss of every scored unit: the height above the line is the optimism.

    The `named` units that lose most by being left out are numbered, flagged ones ringed.
    """
    ax = _axes(ax, (6.0, 5.0))
    table = estimate.table().dropna(subset=["loss"])
    lowest = table.no_update.min()
    ax.axline((lowest, lowest), slope=1, color="0.5", linewidth=0.8, zorder=0, label="loss unchanged")
    ax.scatter(table.no_update, table.loss, s=14, alpha=0.6, linewidths=0, color="tab:blue", zorder=3)
    flagged = table[table.refit.isin(estimate.flagged())]
    if len(flagged):
        ax.scatter(flagged.no_update, flagged.loss, s=40, facecolors="none", edgecolors="tab:red", label="flagged")
    label = "unit" if "unit" in table else "refit"
    worst = table.loc[(table.loss - table.no_update).nlargest(named).index]
    ax.vlines(worst.no_update, worst.no_update, worst.loss, color="tab:blue", alpha=0.4, linewidth=0.8)
    for name, x, y in zip(worst[label], worst.no_update, worst.loss, strict=True):
        behind = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
        ax.annotate(
            str(name), (x, y), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=8, bbox=behind, zorder=2
        )
    ax.legend(frameon=False, loc="lower right")
    se = f" ± {estimate.se:.2g}" if np.isfinite(estimate.se) else ""
    title = f"held-out loss {estimate.mean:.4g}{se}; with no update {estimate.summary().value['no update, mean']:.4g}"
    ax.set(xlabel=f"loss of a {label} with no update", ylabel=f"held-out loss of a {label}", title=title)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def agreement(estimate: Estimate, exact: Estimate, ax: "Axes | None" = None) -> "Axes":
    """Error of every held-out loss against exact refits, beside the error that was reported for it."""
    ax = _axes(ax, (6.0, 5.0))
    difference = np.abs(estimate.losses - exact.losses)
    refit = np.arange(len(difference)) if estimate.joint else estimate.plan.refit
    scored = np.isfinite(difference) & (estimate.error[refit] > 0)
    true = np.bincount(refit[scored], difference[scored], estimate.plan.num_refits)
    seen = np.unique(refit[scored])
    reported, true = (np.maximum(part[seen], ROUNDING) for part in (estimate.error, true))
    ax.scatter(reported, true, s=14, alpha=0.6, linewidths=0, color="tab:blue")
    ends = [np.min(reported), np.max(reported)]
    ax.plot(ends, ends, color="0.5", linewidth=0.8, zorder=0, label="equal")
    ax.legend(frameon=False, loc="upper left")
    ax.set(xscale="log", yscale="log", xlabel="reported error of a refit's loss", ylabel="true error of a refit's loss")
    ax.set_title(f"true error at most the reported one: {np.mean(true <= reported):.1%} of {len(seen)} refits")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
