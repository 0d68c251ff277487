"""The picture of the first page and its numbers: every tumour left out in turn, by 569 refits and
by one fit.

The picture is drawn four times: `docs/hero.png`, `hero-dark.png`, and for phones `hero-phone.png`
and `hero-phone-dark.png`. Seconds are of one processor, the least of a few calls; the refits are by
the quickest of scikit-learn's solvers here.

    python docs/hero.py
"""

import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

import leaveout as lo


def timed(call, repeats):
    """The result and the least processor time of a few calls."""
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        result = call()
        seconds.append(time.process_time() - begin)
    return result, min(seconds)


def refitted():
    """The held-out loss of every row, by scikit-learn's own refits."""
    losses = np.empty(len(y))
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        refit = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X[rest], y[rest])
        losses[i] = np.logaddexp(0, -(2 * y[i] - 1) * refit.decision_function(X[[i]])[0])
    return losses


def expanded(refit):
    return lo.cross_validate(lo.from_sklearn(host, X, y), plan, strategy=refit).per_unit()


threadpool_limits(1)
X, y = lo.datasets.breast_cancer()
X, y = scale(X), y.to_numpy()
host = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X, y)
plan = lo.leave_one_out()

truth, slow = timed(refitted, 2)
rows = {"569 refits\n(scikit-learn)": (truth, slow, "0.5")}
BLUE, ORANGE = "#5c6bc0", "#ef6c00"
for name, refit, color in (
    ("one fit, leaveout\n(the default)", lo.Certified(), BLUE),
    ("one fit, first-order\nshortcut", lo.InfinitesimalJackknife(), ORANGE),
    ("one fit, nothing\nleft out", lo.NoUpdate(), ORANGE),
):
    rows[name] = (*timed(lambda refit=refit: expanded(refit), 20), color)

for name, (losses, seconds, _) in rows.items():
    off = np.abs(losses - truth).mean()
    told = f"mean held-out loss {losses.mean():.5f}   a row's loss is off by {off:.1e}"
    print(f"{' '.join(name.split()):36} {seconds:8.4f} s   {told}")
print(f"{slow / rows[list(rows)[1]][1]:.0f} times as fast")


def draw(file, ink, paper, panels, size):
    """Draw time and answer side by side, or one below the other, in one colour of text on
    another.
    """
    colours = {
        name: ink
        for name in (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "xtick.color",
            "ytick.color",
        )
    }
    with plt.rc_context(colours | {"axes.facecolor": paper, "figure.facecolor": paper}):
        figure, (time_axes, answer) = plt.subplots(
            *panels, figsize=size, sharey=True, layout="constrained"
        )
        for place, (losses, seconds, color) in enumerate(rows.values()):
            mean = losses.mean()
            duration = f"{seconds:.1f} s" if seconds > 1 else f"{1000 * seconds:.0f} ms"
            for axes, value, text in (
                (time_axes, seconds, duration),
                (answer, mean, f"{mean:.4f}"),
            ):
                axes.barh(place, value, color=color)
                box = {"facecolor": paper, "edgecolor": "none", "pad": 1.5}
                axes.annotate(
                    text, (value, place), (6, 0), textcoords="offset points", va="center", bbox=box
                )
        answer.axvline(truth.mean(), color=ink, linestyle="--", linewidth=0.8, zorder=0)
        time_axes.set(
            xscale="log",
            xlim=(1e-3, 30),
            title="time",
            xlabel="seconds",
            yticks=range(len(rows)),
            yticklabels=rows,
        )
        answer.set(
            xlim=(0, 0.1), title="answer: loss of tumours not seen", xlabel="mean held-out loss"
        )
        time_axes.invert_yaxis()
        for axes in (time_axes, answer):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelleft=panels == (2, 1) or axes is time_axes)
        figure.savefig(Path(__file__).with_name(file), dpi=200)


for ending, ink, paper in ((".png", "#212121", "#ffffff"), ("-dark.png", "#e2e4e9", "#1e2129")):
    draw(f"hero{ending}", ink, paper, (1, 2), (9, 2.7))
    draw(f"hero-phone{ending}", ink, paper, (2, 1), (4.2, 4.8))
