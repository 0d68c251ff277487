"""Pictures of estimates. Each function returns its axes, and none touches matplotlib's global style."""

from typing import TYPE_CHECKING

import numpy as np

from ._estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    ax.scatter(table.no_update, table.loss, s=9, alpha=0.5, linewidths=0, color="tab:blue")
    ends = [np.nanmin(table[["no_update", "loss"]].values), np.nanmax(table[["no_update", "loss"]].values)]
    ax.plot(ends, ends, color="0.5", linewidth=0.8, zorder=0)
    flagged = table[table.refit.isin(estimate.flagged())]
    if len(flagged):
        ax.scatter(flagged.no_update, flagged.loss, s=40, facecolors="none", edgecolors="tab:red", label="flagged")
        ax.legend(frameon=False)
    label = "unit" if "unit" in table else "refit"
    worst = (table.loss - table.no_update).nlargest(named).index
    for _, row in table.loc[worst].iterrows():
        ax.annotate(str(int(row[label])), (row.no_update, row.loss), xytext=(-4, 3), textcoords="offset points", ha="right", fontsize=8)
    se = f" ± {estimate.se:.2g}" if np.isfinite(estimate.se) else ""
    ax.set(xlabel="loss with no update", ylabel="held-out loss", title=f"held-out loss {estimate.mean:.4g}{se}")
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
    floor = 1e-16
    ax.scatter(estimate.error[seen], np.maximum(true[seen], floor), s=9, alpha=0.5, linewidths=0, color="tab:blue")
    ends = [max(floor, np.min(estimate.error[seen])), np.max(estimate.error[seen])]
    ax.plot(ends, ends, color="0.5", linewidth=0.8, zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="reported error of the loss", ylabel="true error of the loss")
    ax.set_title(f"below the line: {np.mean(true[seen] <= estimate.error[seen]):.1%} of {len(seen)} refits")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
