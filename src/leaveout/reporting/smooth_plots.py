"""Plots of the smooth terms of additive models, for `plot`."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..models.smooth.terms import LABELS
from ..optimize.fit import Fit
from ..plans.plan import Plan
from ..tuning.curves import curves
from ..tuning.smooth import Smoothing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """Return the given axes, else those of a new figure."""
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError("plots need matplotlib: pip install 'leaveout[plot]'") from error
        ax = pyplot.subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def smooth(
    found: Smoothing | Fit, term: str | None = None, ax: "Axes | None" = None, *, plan: Plan | None = None, level: float = 0.95
) -> "Axes":
    """Plot a smooth term of an additive model, the first by default, with its intervals as in `lo.tuning.curves`.

    A term of one column is a curve with a mark at every row. Effects of labels are in rising order. A term of two columns is
    a map, with the rows as dots.

    Parameters
    ----------
    found : Smoothing or Fit
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
    >>> fit = lo.fit(lo.Additive([lo.s("x", k=8)], {"x": x}, y))
    >>> lo.plot.smooth(fit).get_ylabel()
    's(x)'
    """
    table = curves(found, plan, level)
    term = table["term"].iloc[0] if term is None else term
    if term not in set(table["term"]):
        raise ValueError(f"plot.smooth: term must be one of {', '.join(table['term'].unique())}; got {term!r}.")
    model: Any = (found.fit if isinstance(found, Smoothing) else found).objective
    bound = model.smooths[term][0]
    names = bound.term.columns
    table = table[table["term"] == term]
    ax = axes(ax, (6.0, 4.0))
    if len(names) == 2:
        return _surface(ax, table, names, bound.columns, term)
    if len(names) > 2:
        raise ValueError(f"plot.smooth: {term} is of {len(names)} columns; draw what lo.tuning.curves makes of it.")
    (name,), ends = names, table[["low", "high"]].to_numpy().T
    if bound.term.bs[0] in LABELS:
        order = np.argsort(table["value"].to_numpy())
        value = table["value"].to_numpy()[order]
        bars = np.abs(ends[:, order] - value)
        ax.errorbar(np.arange(len(order)), value, bars, fmt="o", color="tab:blue", markersize=4, linewidth=1)
        if len(order) <= 30:
            ax.set_xticks(np.arange(len(order)), [str(label) for label in table[name].to_numpy()[order]], rotation=45)
    else:
        ax.fill_between(table[name], *ends, color="tab:blue", alpha=0.2, linewidth=0, label=f"{level:.0%} interval")
        ax.plot(table[name], table["value"], color="tab:blue", label="term")
        rows = np.asarray(bound.columns[0]).reshape(len(bound.columns[0]), -1)[:, 0]
        ax.plot(rows, np.full(len(rows), 0.01), "|", color="0.4", markersize=5, alpha=0.5, transform=ax.get_xaxis_transform())
        ax.legend(frameon=False, ncols=2, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))
    ax.axhline(0, color="0.5", linewidth=0.6, zorder=0)
    ax.set(xlabel=name, ylabel=term)
    return ax


def _surface(ax: "Axes", table: pd.DataFrame, names: tuple[str, ...], columns: Any, term: str) -> "Axes":
    """Plot a function of two columns."""
    grid = table.pivot_table(index=names[1], columns=names[0], values="value")
    most = np.abs(grid.to_numpy()).max()
    drawn = ax.contourf(grid.columns, grid.index, grid.to_numpy(), 20, cmap="RdBu_r", vmin=-most, vmax=most)
    rows = np.column_stack([np.asarray(part).reshape(len(part), -1) for part in columns])
    ax.plot(*rows.T, ".", color="0.2", markersize=2, alpha=0.5)
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.colorbar(drawn, ax=ax, label=term)
    ax.set(xlabel=names[0], ylabel=names[1])
    return ax
