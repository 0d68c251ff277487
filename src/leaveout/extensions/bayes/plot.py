"""Plot of left-out responses in their predictive distributions."""

from typing import TYPE_CHECKING

import numpy as np
import scipy

from ...developer import axes_of, legend
from .predictions import PosteriorPredictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pit(
    predictions: PosteriorPredictions,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot how often each value of the PIT of left-out responses occurs, and where 95 % of the bars
    of a right model lie.

    Parameters
    ----------
    predictions : PosteriorPredictions
        The result of `PosteriorEstimate.predict`.
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
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> fit = lo.fit(lo.GLM(X, rng.poisson(np.exp(X[:, 0])), "poisson", lo.penalties.Ridge(1.0)))
    >>> posterior = lo.bayes.from_posterior(fit.quadratic.at(rng.normal(size=(4, 500, 3))), fit)
    >>> lo.plot.pit(lo.bayes.elpd(posterior, lo.leave_one_out()).predict()).get_xlabel()
    'PIT, place of a response in its predictive distribution'
    """
    if not isinstance(predictions, PosteriorPredictions):
        raise TypeError(
            f"plot.pit: give lo.bayes.elpd(posterior, plan).predict(); got {type(predictions).__name__}."
        )
    ax = axes_of(ax)
    values = predictions.table["pit"].dropna().to_numpy()
    bars = int(np.clip(len(values) // 10, 5, 20))  # ten units or more in a bar
    low, high = scipy.stats.binom.interval(0.95, len(values), 1 / bars)
    ax.hist(
        values, np.linspace(0, 1, bars + 1).tolist(), color="tab:blue", alpha=0.6, edgecolor="white"
    )
    ax.axhspan(
        low, high, color="0.5", alpha=0.25, linewidth=0, label="95 % of the bars, if uniform"
    )
    ax.set(
        xlabel="PIT, place of a response in its predictive distribution",
        ylabel="units",
        xlim=(0, 1),
    )
    ax.set_title(dict(predictions._lines()).get("PIT", ""), fontsize="medium")
    return legend(ax)
