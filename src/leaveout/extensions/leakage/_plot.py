"""Plots of a corrected loss and of a report on leaking clusters."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ...developer import DASHED, axes_of, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colours of answers
COLORS = "0.3", "tab:blue", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:orange"


def leakage(result: Any, ax: "Axes | None" = None) -> "Axes":
    """Plot the mean loss at every level of injection, the curve e that explains it, and its
    extrapolations to zero.

    Nothing is observed left of the first point, as every training set has leaks already.

    Parameters
    ----------
    result : LeakageResult
        The result of `lo.leakage.leakage_corrected`.
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
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(40), 3)
    >>> X = rng.normal(size=(120, 2))
    >>> y = X[:, 0] + rng.normal(size=40)[groups]
    >>> injection = lo.leakage.Injection(num_levels=4, num_boot=4)
    >>> leakage = lo.leakage.RecordLeakage(0.05)
    >>> found = lo.leakage.leakage_corrected(
    ...     Ridge(), X, y, groups=groups, leakage=leakage, injection=injection
    ... )
    >>> lo.plot.leakage(found).get_ylabel()
    'loss'
    """
    ax = axes_of(ax, (6.5, 4.5))
    pooled = result.pooled
    curve = result.curve
    share = pooled.A @ pooled.grid
    seen = curve["leaked"] <= share.max()
    ax.axvspan(0, share[0], color="0.93", linewidth=0, zorder=0, label="not seen")
    ax.plot(
        curve["leaked"][seen],
        curve["loss"][seen],
        color="tab:blue",
        linewidth=1.2,
        label="e, the loss by what leaked",
    )
    ax.errorbar(
        share,
        pooled.b,
        2 * np.sqrt(np.diag(pooled.noise)),
        fmt="o",
        markersize=4,
        color="0.3",
        linewidth=0.8,
        label="levels, ± 2 Monte-Carlo SE",
    )
    for (name, value), marker in zip(result.extrapolants.items(), ("D", "v", "^"), strict=True):
        label = f"{name}: {value:.4g}"
        ax.plot(
            0,
            value,
            marker,
            color="tab:red",
            markersize=6,
            markerfacecolor="white",
            clip_on=False,
            label=label,
        )
    ax.axhline(
        result.naive, color="0.5", linewidth=0.8, linestyle="--", label=f"naive: {result.naive:.4g}"
    )
    errors = {"Monte Carlo": (result.se_mc, -0.03, 2.0), "data": (result.se_data, -0.055, 1.0)}
    for name, (size, aside, width) in errors.items():
        if np.isfinite(size) and not result.refusal:
            x = aside * share.max()
            label = f"± {size:.2g}, {name}"
            ax.errorbar(
                x,
                result.estimate,
                size,
                color="tab:red",
                elinewidth=width,
                capsize=3,
                label=label,
                clip_on=False,
            )
    unit_name = "records trained on that are the test clusters'"
    if result.plan[0].mechanism == "split":
        unit_name = "clusters of V̂ exposed"
    error_text = "".join(
        f" ± {size:.2g} ({name})" for name, (size, *_) in errors.items() if np.isfinite(size)
    )
    title = f"loss on new clusters {result.estimate:.4g}{error_text}"
    if result.refusal:
        title = "cannot be corrected"
    ax.set(xlabel=f"share of {unit_name}", ylabel="loss", title=title)
    return legend(ax)


def leakage_report(report: Any, ax: "Axes | None" = None) -> "Axes":
    """Plot the score against the expected share of tested records with a mate in training.

    It shows the score as filed, the scores at every cut, and, at zero, the answers with their
    intervals.

    Parameters
    ----------
    report : LeakageReport
        The report of `lo.leakage.leakage_report`.
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
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = X[:, 0] + rng.normal(size=60)
    >>> linkage = lo.leakage.Linkage.from_pairs([(2 * k, 2 * k + 1, 0.6) for k in range(30)], 60)
    >>> options = {"groups": np.arange(60), "scoring": "mse", "answers": ["purge"]}
    >>> found = lo.leakage.leakage_report(Ridge(), X, y, linkage=linkage, **options)
    >>> lo.plot.leakage_report(found).get_xlabel()
    'expected share of tested records with a mate in training'
    """
    ax = axes_of(ax, (7.5, 4.8))
    table = report.table
    naive = report.answers["naive"]
    answered = [name for name in table.index[1:] if not table.refusal[name]]
    width = 1.0
    if np.isfinite(naive.exposed):
        width = max(naive.exposed, 1e-3)
    ax.axhline(naive.score, **DASHED)
    color = dict(zip(table.index, COLORS, strict=True))
    for name, curve in report.curves.items():
        scores = naive.score + curve.difference
        ax.errorbar(
            curve.exposed,
            scores,
            2 * curve.se,
            fmt="o",
            markersize=4,
            color=color[name],
            linewidth=0.8,
        )
        for cut, x, top in zip(curve.cut, curve.exposed, scores + 2 * curve.se, strict=True):
            ax.annotate(
                f"{cut:.2g}", (x, top), xytext=(0, 3), textcoords="offset points", rotation=90, ha="center", va="bottom",
                fontsize=7, color=color[name],
            )  # fmt: skip
    for place, name in enumerate(["naive", *answered]):
        row = table.loc[name]
        position = width
        if place:
            position = -width * (0.06 + 0.07 * (len(answered) - place))
        ends = np.abs([[row.score - row.low], [row.high - row.score]])
        between = ""
        if np.isfinite(row.low):
            between = f" ({row.low:.4g} to {row.high:.4g})"
        ax.errorbar(
            position,
            row.score,
            np.nan_to_num(ends),
            fmt="D",
            markersize=6,
            capsize=3,
            color=color[name],
            label=f"{name}: {row.score:.4g}{between}{' *' * (name == report.recommended)}",
        )
        if place and np.isfinite(naive.exposed):
            ax.plot(
                [naive.exposed, 0],
                [naive.score, row.score],
                color=color[name],
                linewidth=0.6,
                alpha=0.6,
                zorder=0,
            )
    ax.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    limits = ax.get_xlim()
    # the answers are left of zero
    ax.set_xticks([tick for tick in ax.get_xticks() if 0 <= tick <= limits[1]])
    ax.set_xlim(limits)
    if answered:
        ax.text(
            -width * (0.025 + 0.035 * len(answered)),
            -0.02,
            "answers",
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=8,
        )
    ax.set(xlabel="expected share of tested records with a mate in training", ylabel=report.scoring)
    chosen = "no answer to believe"
    if report.recommended:
        chosen = f"{report.recommended}: {table.score[report.recommended]:.4g}"
    ax.set_title(f"{chosen}; cuts above their points", fontsize="medium")
    return legend(ax, title="* believed" if report.recommended else None, title_fontsize=8)
