"""What came of it: the estimate, or why there is none; its errors; and all that it rests on."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ._injection import FoldInjection
from ._models import Shares
from ._pool import ORDER, Pooled, combine, pool
from ._run import FoldLosses
from ._score import Score
from ._slope import SlopeTest
from ._solve import Curve, System
from ._spread import data_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RARE = 1e-3  # of sets without leakage, below which ê₀ is extrapolated
APART = 0.5  # of the correction: extrapolants further apart than that disagree
SMALL = 0.05  # of the naive loss: extrapolants closer than that agree


@dataclass(frozen=True, eq=False, repr=False)
class LeakageResult:
    """The loss on new clusters with the leakage taken out, and what it rests on.

    `estimate` is NaN where it cannot be corrected: see `verdict`. `naive` is the loss with the clusters as filed, `iid` with
    all records as independent, all for training sets of one size. `slope_test` needs no p.
    """

    plan: list[FoldInjection]
    runs: list[FoldLosses]
    shares: Shares
    names: NDArray
    measure: Score
    seed: int
    learner: str
    edges: NDArray[np.float64] | None
    notes: tuple[str, ...]
    pooled: Pooled
    slope_test: SlopeTest
    iid: float

    @functools.cached_property
    def solved(self) -> Curve:
        """The solution of the linear system."""
        return self.pooled.solve(self.measure.shape)

    @property
    def naive(self) -> float:
        return float(self.pooled.weight @ [run.test[0].mean() for run in self.runs])

    @property
    def lower(self) -> float:
        """The least that the loss on new clusters can be, if leakage does not hurt: the loss with what leaks already."""
        return float(self.pooled.b[0])

    @property
    def estimate(self) -> float:
        return float("nan") if self.refusal else self.solved.estimate

    @functools.cached_property
    def se_mc(self) -> float:
        """How far other draws would move the estimate."""
        return self.pooled.monte_carlo_error(self.measure.shape, self.seed)

    @functools.cached_property
    def _data(self) -> tuple[float, str]:
        if not self.measure.weighs:
            return float("nan"), f"not available: {self.measure.name} takes no sample_weight"
        return data_error(self.plan, self.runs, self.pooled, self.shares, self.solved.weights)

    @property
    def se_data(self) -> float:
        """How far other data would move the estimate; `table()` says whether over clusters or records."""
        return self._data[0]

    @property
    def curve(self) -> pd.DataFrame:
        """e, the loss by the share of leaked records among those trained on (of exposed clusters, for splits)."""
        return pd.DataFrame({"leaked": self.pooled.grid, "loss": self.solved.values})

    @functools.cached_property
    def extrapolants(self) -> dict[str, float]:
        """ê₀ by the trend filter, and by polynomials in the share of leaked records over the lowest levels."""
        return {"trend filter": self.solved.estimate} | {name: value for name, (value, _) in self._polynomials.items()}

    @functools.cached_property
    def _polynomials(self) -> dict:
        return self.pooled.polynomials()

    @functools.cached_property
    def refusal(self) -> str:
        """Why there is no estimate; empty if there is one."""
        values = np.array(list(self.extrapolants.values()))
        spread, correction = np.ptp(values), abs(self.solved.estimate - self.lower)
        weights = [self.solved.weights, *(w for _, w in self._polynomials.values())]
        noise = max(np.sqrt((u - v) @ self.pooled.noise @ (u - v)) for u in weights for v in weights)
        if self.pooled.unseen >= RARE or spread <= max(APART * correction, SMALL * abs(self.lower), 2 * noise):
            return ""
        told = ", ".join(f"{name} {value:.4g}" for name, value in self.extrapolants.items())
        return (
            f"P(no leak in a training set) = {self.pooled.unseen:.1g}, so the loss with none is extrapolated, and the "
            f"extrapolants part: {told}; the drop lies where nothing can be seen. A smaller train_size= shows more of it"
        )

    @property
    def verdict(self) -> str:
        if self.refusal:
            return f"cannot be corrected: {self.refusal}."
        if self.slope_test.exploits is False:
            return f"nothing to correct in training: {self.slope_test.verdict}."
        if self.pooled.unseen < RARE:
            return f"corrected by extrapolation: P(no leak in a training set) = {self.pooled.unseen:.1g}; extrapolants agree."
        return "corrected."

    @property
    def flags(self) -> list[str]:
        """All that a careful reader must know, in sentences."""
        out = list(self.notes)
        if self.refusal or self.pooled.unseen < RARE or self.slope_test.exploits is False:
            out.append(self.verdict)
        if self.slope_test.exploits is None:
            out.append(f"slope test: {self.slope_test}.")
        if self.measure.worst is not None and self.solved.estimate > self.measure.worst * (1 - 1e-9):
            out.append(f"the estimate is at the loss's bound, {self.measure.worst:g}.")
        return out

    def _at(self, scale: float) -> tuple[float, float, float]:
        pooled = pool(self.plan, self.runs, self._scaled(scale), ORDER)
        curve = pooled.solve(self.measure.shape)
        return curve.estimate, float(np.sqrt(curve.weights @ pooled.noise @ curve.weights)), pooled.unseen

    def _scaled(self, scale: float) -> Shares:
        return Shares(*(part * scale for part in self.shares))

    @property
    def _p(self) -> NDArray[np.float64]:
        return self.shares.exposed if self.plan[0].mechanism == "split" else self.shares.p_train

    def sensitivity(self, p: ArrayLike | None = None) -> pd.DataFrame:
        """ê₀ were the mean `p_train` (for splits, the share of exposed clusters) p instead, no fit being needed: `p`,
        `estimate`, `se_mc` (with λ held), `unseen`, the probability of a training set without leaks. `p_test` moves along."""
        base = float(self.pooled.weight @ self._p)
        if base == 0:
            raise ValueError("sensitivity: the leakage given is zero; give a small p_train, from which others are scaled.")
        wanted = base * np.linspace(0, 2, 9) if p is None else np.atleast_1d(np.asarray(p, np.float64))
        worst = max(np.max(self._p + self.shares.p_test) / base, 1.0)
        inside = (wanted >= 0) & (wanted * worst < 1)
        if p is not None and not inside.all():
            raise ValueError(f"sensitivity: p must lie in [0, {1 / worst:.3g}); got {wanted[~inside][0]:g}.")
        wanted = wanted[inside]
        rows = [self._at(float(value / base)) for value in wanted]
        return pd.DataFrame(rows, columns=["estimate", "se_mc", "unseen"]).assign(p=wanted)[
            ["p", "estimate", "se_mc", "unseen"]
        ]

    def largest_p(self, cap: float) -> float:
        """The largest p at which the loss with no leakage stays below `cap`, by the linear solution: more would contradict
        the cap. NaN where no p below the largest possible reaches it."""
        base = float(self.pooled.weight @ self._p)
        if base == 0 or self.lower > cap:
            return float("nan") if base == 0 else 0.0
        worst = max(np.max(self._p + self.shares.p_test) / base, 1.0)
        grid = np.linspace(0, 0.95 / worst, 39)
        values = []
        for p in grid:
            pooled = pool(self.plan, self.runs, self._scaled(p / base), ORDER)
            values.append(pooled.solve(None).estimate)
        above = np.flatnonzero(np.array(values) > cap)
        if not len(above):
            return float("nan")
        k = max(above[0], 1)
        return float(np.interp(cap, np.maximum.accumulate(values[k - 1 : k + 1]), grid[k - 1 : k + 1]))

    @functools.cached_property
    def per_cluster(self) -> pd.DataFrame:
        """By cluster: `naive`, `estimate`, `se_mc` (λ as for all), `se_data` (over its records; NaN for one).

        NaN where the draws of some level left no record of a cluster.
        """
        if not self.measure.per_record:
            raise ValueError(f"per_cluster: {self.measure.name} is not a mean over records; give a loss of one record.")
        rows = []
        for k, run in enumerate(self.runs):
            system = System(self.pooled.each[k], self.pooled.order)
            weights = system.weights(self.solved.lam)
            record = weights @ (run.record / np.maximum(run.times, 1))
            p, q = self.shares.p_train[k], self.shares.p_test[k]
            for c, name in enumerate(run.clusters):
                losses = combine(run, run.cluster[:, :, c], self.shares, k)
                seen = np.isfinite(losses)
                known = bool(seen.any(axis=1).all())
                mean = np.where(seen, losses, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
                off = np.where(seen, losses - mean[:, None], 0.0)
                mine = record[run.members == c] * (1 - p) / (1 - p - q)
                rows.append(
                    {
                        "cluster": self.names[name],
                        "records": int(np.sum(run.members == c)),
                        "naive": float(np.nanmean(run.cluster[0, :, c])),
                        "estimate": system.solve(mean, self.solved.lam, self.measure.shape).estimate if known else np.nan,
                        "se_mc": float(np.std(weights @ off, ddof=1) / np.sqrt(off.shape[1])) if known else np.nan,
                        "se_data": float(np.std(mine, ddof=1) / np.sqrt(len(mine))) if len(mine) > 1 else float("nan"),
                    }
                )
        frame = pd.DataFrame(rows)
        if self.refusal:
            frame["estimate"] = np.nan
        return frame.set_index("cluster") if frame["cluster"].is_unique else frame.groupby("cluster").mean()

    @functools.cached_property
    def histogram(self) -> pd.DataFrame:
        """Shares of the losses in the classes of `bins=`: `low`, `high`, `naive`, `estimate` (not negative, summing to one)."""
        if self.edges is None:
            raise ValueError("histogram: give leakage_corrected bins=, the edges of the classes of losses.")
        weight, system = self.pooled.weight, self.pooled.system
        shares = sum(w * run.histogram.mean(1) for w, run in zip(weight, self.runs, strict=True))
        estimate = np.maximum(system.linear(np.asarray(shares), self.solved.lam)[0], 0.0)
        return pd.DataFrame(
            {
                "low": self.edges[:-1],
                "high": self.edges[1:],
                "naive": np.asarray(shares)[0],
                "estimate": estimate / estimate.sum(),
            }
        )

    def table(self) -> pd.DataFrame:
        """The numbers of the printed result."""
        rows: dict[str, float] = {
            "estimate": self.estimate,
            "se_mc": self.se_mc,
            "se_data": self.se_data,
            "naive": self.naive,
            "iid": self.iid,
            "lower": self.lower,
            "p_train": float(self.pooled.weight @ self.shares.p_train),
            "p_test": float(self.pooled.weight @ self.shares.p_test),
            "exposed": float(self.pooled.weight @ self.shares.exposed),
            "unseen": self.pooled.unseen,
            **{f"extrapolant, {name}": value for name, value in self.extrapolants.items()},
        }
        return pd.DataFrame({"value": rows})

    def __str__(self) -> str:
        return "\n".join(f"{name:<16}{text}" for name, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        first, row = self.plan[0], self.table()["value"]
        sizes = sorted({part.size for part in self.plan})
        trained = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}–{sizes[-1]}"
        fits = sum(run.test.size for run in self.runs)
        leak = f"{row['exposed']:.3g} of V̂ has the other half of its cluster in T̂"
        if first.mechanism == "record":
            leak = f"{row['p_train']:.3g} of T̂ is the test clusters', {row['p_test']:.3g} of V̂ the training clusters'"
        told = ", ".join(f"{name} {value:.5g}" for name, value in self.extrapolants.items())
        estimate = "none: see verdict"
        if not self.refusal:
            estimate = f"{self.estimate:.5g} ± {self.se_mc:.2g} (Monte Carlo) ± {self.se_data:.2g} (data, over {self._data[1]})"
        lines = [
            ("learner", f"{self.learner}; {fits} fits to {trained} records; loss {self.measure.name}"),
            ("folds", f"{len(self.plan)}, of {len(self.names)} clusters"),
            ("leakage", f"{leak} ({first.mechanism})"),
            *([("i.i.d.", f"{self.iid:.5g}")] if np.isfinite(self.iid) else []),
            ("naive", f"{self.naive:.5g}, by cluster as filed"),
            ("corrected", estimate),
            ("extrapolants", told),
            ("at least", f"{self.lower:.5g}, if leakage does not hurt the learner"),
        ]
        if self.measure.worst is not None and np.isfinite(most := self.largest_p(self.measure.worst)):
            lines.append(("p at most", f"{most:.2g}, as the loss cannot exceed {self.measure.worst:g}"))
        lines += [("slope test", str(self.slope_test)), ("verdict", self.verdict)]
        return lines + [("note", note) for note in self.notes]

    def __repr__(self) -> str:
        return f"LeakageResult(estimate={self.estimate:.5g}, naive={self.naive:.5g})"

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The losses at every level, the curve through them, and the extrapolants at zero."""
        from .. import plot

        return plot.leakage(self, ax)
