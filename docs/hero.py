"""The picture of the first page, `docs/hero.png`, and its numbers: every tumour left out in turn, by 569 refits and by one fit.

Seconds are of one processor, the least of a few calls; the refits are by the quickest of scikit-learn's solvers here.

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
    return lo.cross_validate(lo.from_sklearn(host, X, y), plan, refit).per_unit()


threadpool_limits(1)
X, y = lo.datasets.breast_cancer()
X, y = scale(X), y.to_numpy()
host = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X, y)
plan = lo.leave_one_out(len(y))

truth, slow = timed(refitted, 2)
rows = {"569 refits\n(scikit-learn)": (truth, slow, "0.5")}
for name, refit, color in (
    ("one fit, leaveout\n(the default)", lo.Certified(), "#3949ab"),
    ("one fit, first-order\nshortcut", lo.InfinitesimalJackknife(), "#ef6c00"),
    ("one fit, nothing\nleft out", lo.NoUpdate(), "#ef6c00"),
):
    rows[name] = (*timed(lambda refit=refit: expanded(refit), 5), color)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for place, (name, (losses, seconds, color)) in enumerate(rows.items()):
    off = np.abs(losses - truth).mean()
    told = f"mean held-out loss {losses.mean():.5f}   a row's loss is off by {off:.1e}"
    print(f"{' '.join(name.split()):36} {seconds:8.4f} s   {told}")
    said = f"{seconds:.1f} s" if seconds > 1 else f"{1000 * seconds:.0f} ms"
    left.barh(place, seconds, color=color)
    left.annotate(said, (seconds, place), xytext=(4, 0), textcoords="offset points", va="center")
    right.barh(place, losses.mean(), color=color)
    right.annotate(f"{losses.mean():.4f}", (losses.mean(), place), xytext=(4, 0), textcoords="offset points", va="center")
print(f"{slow / rows[list(rows)[1]][1]:.0f} times as fast")
left.set(xscale="log", xlim=(1e-3, 30), title="time", yticks=range(len(rows)), yticklabels=rows, xlabel="seconds")
right.set(xlim=(0, 0.1), title="answer: the loss on a tumour not seen", xlabel="mean held-out loss")
right.axvline(truth.mean(), color="0.4", linestyle="--", linewidth=0.8, zorder=0)
left.invert_yaxis()
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.savefig(Path(__file__).with_name("hero.png"), dpi=120)
