"""The result of the correction: the estimate or the reason why there is none, its errors, and its
assumptions.

    interval:  ê₀ ± t √(se_data² + se_mc² + se_p² + se_extrapolation²), or up to ceiling + t
    √(se_data² + se_mc² + se_p²)

ê₀ is the loss with no leaked record that solves the linear system of all folds (`_pool`). t is
Student's, with the degrees of freedom of clusters of these sizes. The four errors are over other
clusters, as tested and as trained on; over other draws of the injection; over other draws of an
uncertain leakage; and of the extrapolation of the curve to no leakage. The ceiling is the highest
loss with no leak that the levels do not exclude, where the first mates of a record may do most of
the harm.
"""

import itertools
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ...developer import (
    FloatArray,
    Interval,
    Lines,
    Measure,
    NamedNumbers,
    PrintedResult,
    Strings,
    Texts,
    conventional,
    provided,
    record,
    share,
)
from ._comparison import ComparableMean, ComparableResult
from ._injection import MAX_DRAWS, FoldInjection, refusal as hidden_leak
from ._models import Shares
from ._pool import PooledSystem, combine, pool
from ._run import FoldLosses
from ._slope import SlopeTest
from ._solve import Curve, System, shape_of
from ._spread import as_tested, drawn_influence, draws_resolve, units
from ._variance import InfluenceSpread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RARE_SHARE = 1e-3  # share of sets without leakage below which ê₀ is an extrapolation


@record
class LeakageResult(PrintedResult, ComparableResult):
    """The loss (or score) on new clusters with the leakage removed, with its errors and
    assumptions.

    `lo.leakage.leakage_corrected` returns it. `estimate` is NaN if it cannot be corrected: see
    `verdict`. `naive` is the loss with the clusters as filed. All are for training sets of one
    size.

    Attributes
    ----------
    slope_test : SlopeTest
        A test of whether the learner exploits leakage, which needs no p.
    iid : float
        The loss with all records as independent.
    notes : tuple of str
        Notes for the printed result.
    plan, runs, shares, names, measure, seed, learner, edges, pooled, moved
        The injection of each fold and its losses, the shares of leakage, the names of the clusters,
        the score, the arguments of the call, the linear system, and what each fold adds to the
        score without another in its training.

    See Also
    --------
    leakage_corrected : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(40), 3)
    >>> X = rng.normal(size=(120, 2))
    >>> y = X[:, 0] + rng.normal(size=40)[groups]
    >>> injection = lo.leakage.Injection(num_levels=4, num_boot=4)
    >>> leakage = lo.leakage.RecordLeakage(0.05)
    >>> result = lo.leakage.leakage_corrected(
    ...     Ridge(), X, y, groups=groups, leakage=leakage, injection=injection
    ... )
    >>> result.per_cluster.shape[0]
    40
    """

    plan: list[FoldInjection]
    runs: list[FoldLosses]
    shares: Shares
    names: NDArray
    measure: Measure
    seed: int
    learner: str
    edges: FloatArray | None
    notes: Strings
    pooled: PooledSystem
    slope_test: SlopeTest
    iid: float
    # contribution of each fold to the score without another in its training
    moved: FloatArray | None
    drawn_shares: list[Shares]  # shares in draws of an uncertain leakage
    unshown: float  # share of possible leakage that injection cannot show
    facts: Texts  # facts that comparable results have in common

    @cached_property
    def solved(self) -> Curve:
        """The solution of the linear system."""
        return self.pooled.solve(shape_of(self.measure))

    @property
    def naive(self) -> float:
        """The loss with the clusters as filed."""
        return float(self.pooled.weight @ [run.naive.mean() for run in self.runs])

    @property
    def lower(self) -> float:
        """The least loss on new clusters if leakage does not hurt.

        The loss with present leakage (for a score, the most).
        """
        return float(self.pooled.b[0])

    @property
    def estimate(self) -> float:
        """The loss on new clusters; NaN if it cannot be corrected."""
        if self.refusal:
            return np.nan
        return self.solved.estimate

    @property
    def _extrapolates(self) -> bool:
        """Whether sets without leakage are so rare that ê₀ continues the curve."""
        return self.pooled.unseen < RARE_SHARE

    @property
    def correction(self) -> float:
        """The estimate minus the naive value."""
        return self.estimate - self.naive

    @cached_property
    def se_mc(self) -> float:
        """The Monte-Carlo error of the estimate, over draws of the injection."""
        return self.pooled.monte_carlo_error(shape_of(self.measure), self.seed)

    @cached_property
    def se_p(self) -> float:
        """The error of the estimate over draws of the leakage; 0 if its shares are given."""
        draws = self.drawn_shares
        # a score that is not a mean keeps the share of V̂ at which it was computed
        if any(run.mixture for run in self.runs):
            draws = [Shares(shares.p_train, self.shares.p_test, shares.exposed) for shares in draws]
        estimates = [
            pool(self.plan, self.runs, shares).solve(shape_of(self.measure)).estimate
            for shares in draws
        ]
        if estimates:
            return float(np.std(estimates, ddof=1))
        return 0.0

    @cached_property
    def se_extrapolation(self) -> float:
        """The spread of the continuations of the curve to no leakage, as one standard error.

        0 if no leakage is observed.
        """
        if self._extrapolates:
            return float(np.ptp(list(self.extrapolants.values())))
        return 0.0

    @cached_property
    def _mates(self) -> FloatArray:
        """The number of mates in training of a record of each cluster, if all that is trained on
        were leaked.
        """
        tested = np.unique(np.concatenate([part.fold.test for part in self.plan]))
        rate = self.pooled.weight @ [part.units / len(part.fold.test) for part in self.plan]
        return rate * np.bincount(self.plan[0].fold.clusters[tested])

    @property
    def present_mates(self) -> float:
        """The mean number of mates of a tested record in training, without injection."""
        return float(np.average(self._mates, weights=self._mates) * self.pooled.present_share)

    @cached_property
    def ceiling(self) -> float:
        """The highest loss without leaks (lowest score) that the levels do not exclude, if each
        further mate does less.

        It is far from the estimate where a record's first mates may do most of the harm and no
        level shows them: clusters are large, so that nearly all have mates in training as filed,
        and the learner is local. Infinite if nothing is excluded.
        """
        mates = float(np.average(self._mates, weights=self._mates))
        highest = self.pooled.highest(shape_of(self.measure), mates, int(np.sum(self._mates > 0)))
        return (min if self.measure.more_is_better else max)(highest, self.solved.estimate)

    @property
    def overhang(self) -> float:
        """The distance of the ceiling from the estimate; 0 if no leakage is observed."""
        if self._extrapolates:
            return abs(self.ceiling - self.solved.estimate)
        return 0.0

    @cached_property
    def spread(self) -> InfluenceSpread | None:
        """The influence of data on the estimate; None if the score takes no weights."""
        return self._spread(
            [run.records for run in self.runs],
            self.pooled.combinations,
            self.solved.weights,
            self.shares,
        )

    @cached_property
    def naive_spread(self) -> InfluenceSpread | None:
        """The influence of data on the naive value."""
        records = [run.naive_record / np.maximum(run.times[:1], 1) for run in self.runs]
        return self._spread(records, [run.naive for run in self.runs], np.ones(1), None)

    def _spread(
        self,
        records: list[NDArray],
        levels: list[NDArray],
        weights: FloatArray,
        shares: Shares | None,
    ) -> InfluenceSpread | None:
        if not self.measure.weighs:
            return None
        tested = as_tested(self.plan, records, levels, weights, shares)
        unit = units(self.plan)[0]
        trained = None
        if draws_resolve(self.plan):
            trained = drawn_influence(self.plan, levels, weights)
        return InfluenceSpread(tested, unit, trained, self.moved)

    @property
    def influence(self) -> FloatArray | None:
        """The influence of every record on the estimate, as tested; it sums to zero."""
        if self.spread is None:
            return None
        return self.spread.test_part

    @property
    def naive_influence(self) -> FloatArray | None:
        """The influence of every record on the naive value, as tested; it sums to zero."""
        if self.naive_spread is None:
            return None
        return self.naive_spread.test_part

    @property
    def se_data(self) -> float:
        """The error of the estimate over clusters, as tested and as trained on (see `table()`)."""
        if self.spread is None:
            return np.nan
        return self.spread.error

    @property
    def _over(self) -> str:
        if self.spread is None:
            return f"not available: {self.measure.name} takes no sample_weight"
        unit_name = "records within these clusters; new clusters differ more"
        if units(self.plan)[1]:
            unit_name = "clusters"
        if self.moved is not None or draws_resolve(self.plan):
            return unit_name
        return f"{unit_name}, as tested"

    def interval(self, level: float = 0.95) -> Interval:
        """Compute an interval for the value on new clusters, by Student's t over clusters.

        It contains the errors of the data, of the Monte Carlo, of the extrapolation and, for an
        uncertain leakage, of the leakage. On the side of no leak it reaches as far beyond `ceiling`
        as the errors but for the extrapolation's do.

        Parameters
        ----------
        level : float, default 0.95
            The coverage.

        Returns
        -------
        Interval
            The interval; NaN where there is no estimate, or no error over data.
        """
        return self._around(self.estimate, self.se_data**2 + self.se_mc**2, self.spread, level)

    def correction_interval(self, level: float = 0.95) -> Interval:
        """Compute an interval for `correction`, without the errors that the estimate and the naive
        value share.

        The effect of training on its variance is not fitted: it is taken to be the share that it is
        for the naive value. The interval also contains the variance over which records leaked, and
        reaches to `ceiling` as `interval` does.

        Parameters
        ----------
        level : float, default 0.95
            The coverage.

        Returns
        -------
        Interval
            The interval.
        """
        if self.spread is None or self.naive_spread is None:
            return self._around(self.correction, np.nan, None, level)
        difference = self.spread.minus(self.naive_spread)
        tested = replace(self.naive_spread, fold_effects=None).error
        share = 1.0
        if tested > 0:
            share = self.naive_spread.error / tested
        corrections = [
            self.solved.weights @ c - run.naive[0]
            for c, run in zip(self.pooled.combinations, self.runs, strict=True)
        ]
        noise = sum(
            w**2 * np.var(d, ddof=1) / len(d)
            for w, d in zip(self.pooled.weight, corrections, strict=True)
        )
        variance = (difference.error * share) ** 2 + noise + self._realised_variance
        return self._around(self.correction, variance, difference, level)

    @property
    def _realised_variance(self) -> float:
        """The variance of the correction over which records leaked, a Poisson number in every
        cluster.

        A cluster has the share of the correction that it has of the fall of the loss to the highest
        level.
        """
        clusters = self.plan[0].fold.clusters
        mates = self._mates * self.pooled.present_share
        falls = np.zeros(len(clusters))
        for part, run in zip(self.plan, self.runs, strict=True):
            falls[part.fold.test] += np.nan_to_num(run.records[0] - run.records[-1])
        fall = np.abs(np.bincount(clusters, falls))
        leaking = mates > 0
        squares = np.sum(fall[leaking] ** 2 / mates[leaking])
        return float(self.correction**2 * squares / max(np.sum(fall) ** 2, 1e-300))

    def _around(
        self, center: float, variance: float, spread: InfluenceSpread | None, level: float
    ) -> Interval:
        """Return the interval for a variance to which those of the leakage and of the extrapolation
        are added.
        """
        share("interval: level", level)
        freedom = 1 if spread is None else spread.freedom
        t = float(stats.t.ppf((1 + level) / 2, freedom))
        error = float(np.sqrt(variance + self.se_p**2))
        width = t * float(np.hypot(error, self.se_extrapolation))
        sides = [width, max(width, self.overhang + t * error)]
        if self.measure.more_is_better:
            sides.reverse()
        kind = "records"
        if units(self.plan)[1]:
            kind = "clusters"
        return Interval(center - sides[0], center + sides[1], level, kind)

    def as_comparable(self) -> ComparableMean:
        """Return the number for `lo.compare`, with other results of the same folds and clusters.

        Returns
        -------
        Compared
            The estimate and its influence.
        """
        if self.refusal:
            raise ValueError(
                f"compare: a result {self.verdict} Compare by another answer, or with a smaller train_size=."
            )
        estimates = np.array([self.solved.weights @ losses for losses in self.pooled.combinations])
        return ComparableMean(
            self.estimate,
            self.measure.more_is_better,
            self.spread,
            estimates,
            self.pooled.weight,
            self.facts,
        )

    @property
    @conventional
    def curve(self) -> pd.DataFrame:
        """The loss e by the share of leaked records among those trained on (of exposed clusters,
        for splits).
        """
        return pd.DataFrame({"leaked": self.pooled.grid, "loss": self.solved.values})

    @cached_property
    def extrapolants(self) -> NamedNumbers:
        """The estimates ê₀ by the trend filter, and by polynomials in the share of leaked records
        over the lowest levels.
        """
        return {"trend filter": self.solved.estimate} | {
            name: value for name, (value, _) in self.pooled.polynomials.items()
        }

    @cached_property
    def refusal(self) -> str:
        """The reason why there is no estimate; empty if there is one."""
        if self._mean_p > 0 and (hidden := hidden_leak(self.unshown)):
            return hidden
        spread = np.ptp(list(self.extrapolants.values()))
        correction = abs(self.solved.estimate - self.lower)
        weights = [self.solved.weights, *(w for _, w in self.pooled.polynomials.values())]
        noise = max(
            np.sqrt((u - v) @ self.pooled.noise @ (u - v)) for u in weights for v in weights
        )
        best = (self.measure.high if self.measure.more_is_better else self.measure.low) or 0.0
        if not self._extrapolates or spread <= max(
            # 0.5: share of the correction beyond which extrapolants disagree
            # 0.05: share of the naive loss below which extrapolants agree
            0.5 * correction,
            0.05 * abs(self.lower - best),
            2 * noise,
        ):
            return ""
        listing = ", ".join(f"{name} {value:.4g}" for name, value in self.extrapolants.items())
        return (
            f"P(no leak in a training set) = {self.pooled.unseen:.1g}, so the loss with none is extrapolated, and the "
            f"extrapolants part: {listing}; the drop lies where nothing can be seen. A smaller train_size= shows more of it"
        )

    @property
    def verdict(self) -> str:
        """The estimate, or the reason why there is none, as sentences."""
        if self.refusal:
            return f"cannot be corrected: {self.refusal}."
        if self.slope_test.exploits is False:
            return f"nothing to correct in training: {self.slope_test.verdict}."
        if self._extrapolates:
            # leaked records (clusters) in the training sets without injection
            held = [
                matrix[0] @ self.pooled.grid * part.units
                for matrix, part in zip(self.pooled.fold_matrices, self.plan, strict=True)
            ]
            verdict = (
                f"corrected by extrapolation: P(no leak in a training set) = {self.pooled.unseen:.1g}, so what the first "
                f"{self.pooled.weight @ held:.0f} leaked records do is not seen, but continued from what more of them do."
            )
            if self.overhang <= abs(self.solved.estimate - self.lower):
                return verdict
            return (
                f"{verdict} A tested record has {self.present_mates:.2g} mates in training as filed. If the first of them do "
                f"most of the harm, the value with none may be {self.ceiling:.4g}: the intervals reach there."
            )
        return "corrected."

    @property
    def flags(self) -> list[str]:
        """Reservations about the estimate, in sentences."""
        out = list(self.notes)
        if self.refusal or self._extrapolates or self.slope_test.exploits is False:
            out.append(self.verdict)
        if self.slope_test.exploits is None:
            out.append(f"slope test: {self.slope_test}.")
        worst = self.measure.worst
        if worst is not None and abs(self.solved.estimate - worst) <= 1e-9 * max(
            abs(worst), abs(self.naive)
        ):
            out.append(f"the estimate is at the bound of {self.measure.name}, {worst:g}.")
        return out + self._reservations

    @property
    def _reservations(self) -> list[str]:
        """List what the estimate omits, and which further work would help."""
        out = []
        if self.unshown > 0 and not self.refusal and self._mean_p > 0:
            out.append(
                f"{self.unshown:.2g} of what may leak falls on tested records with no mate left beside them, which injection "
                "does not show: so much of the naive bias may remain."
            )
        draws = self.runs[0].test.shape[1]
        # 0.5: share of the data error from which the Monte-Carlo error is reported
        if draws >= MAX_DRAWS and self.se_mc > 0.5 * self.se_data:
            out.append(
                f"Monte-Carlo error {self.se_mc:.2g} against a data error of {self.se_data:.2g} after {draws} draws; more of "
                "them make it smaller: Injection(num_boot=)."
            )
        return out

    def _pooled_at(self, scale: float) -> PooledSystem:
        """Build the linear system at other shares of leakage, all scaled alike."""
        return pool(self.plan, self.runs, Shares(*(part * scale for part in self.shares)))

    @property
    def _p(self) -> FloatArray:
        if self.plan[0].mechanism == "split":
            return self.shares.exposed
        return self.shares.p_train

    @property
    def _mean_p(self) -> float:
        return float(self.pooled.weight @ self._p)

    @conventional
    def sensitivity(self, p: ArrayLike | None = None) -> pd.DataFrame:
        """Compute ê₀ for other mean shares of leakage, without further fits.

        Parameters
        ----------
        p : array_like, optional
            The mean `p_train` (for splits, the share of exposed clusters). `p_test` moves along.

        Returns
        -------
        DataFrame
            `p`, `estimate`, `se_mc` (with λ held), and `unseen`, the probability of a training set
            without leaks.
        """
        base = self._mean_p
        if base == 0:
            raise ValueError(
                "sensitivity: the leakage given is zero; give a small p_train, from which others are scaled."
            )
        if any(run.mixture for run in self.runs):
            raise ValueError(
                f"sensitivity: {self.measure.name} is no mean over records, and T̂'s records were taken out of it at the given "
                "p_test; call leakage_corrected with another leakage."
            )
        if p is None:
            shares = base * np.linspace(0, 2, 9)
        else:
            shares = np.atleast_1d(np.asarray(p, float))
        worst = max(np.max(self._p + self.shares.p_test) / base, 1.0)
        inside = (shares >= 0) & (shares * worst < 1)
        if p is not None and not inside.all():
            raise ValueError(
                f"sensitivity: p must lie in [0, {1 / worst:.3g}); got {shares[~inside][0]:g}."
            )
        shares = shares[inside]
        rows = []
        for value in shares:
            pooled = self._pooled_at(float(value / base))
            curve = pooled.solve(shape_of(self.measure))
            error = float(np.sqrt(curve.weights @ pooled.noise @ curve.weights))
            rows.append((value, curve.estimate, error, pooled.unseen))
        return pd.DataFrame(rows, columns=["p", "estimate", "se_mc", "unseen"])

    def largest_p(self, cap: float) -> float:
        """Compute the largest p at which the loss with no leakage stays below a cap, by the linear
        solution.

        More leakage would contradict the cap. A score stays above it.

        Parameters
        ----------
        cap : float
            The cap.

        Returns
        -------
        float
            The largest p; NaN where no p below the largest possible reaches the cap.
        """
        base = self._mean_p
        sign = -1.0 if self.measure.more_is_better else 1.0
        if sign * self.lower > sign * cap:
            return 0.0
        if base == 0 or any(run.mixture for run in self.runs):
            return np.nan
        grid = np.linspace(0, 0.95 * base / max(np.max(self._p + self.shares.p_test), base), 20)
        previous = -np.inf
        for left, right in itertools.pairwise(grid):
            excess = sign * (self._pooled_at(right / base).solve(None).estimate - cap)
            if excess > 0:
                if previous == -np.inf:
                    return float(right)
                return float(left - (right - left) * previous / (excess - previous))
            previous = excess
        return np.nan

    @cached_property
    def per_cluster(self) -> pd.DataFrame:
        """The losses by cluster: `naive`, `estimate`, `se_mc` and `se_data`.

        `estimate` and `se_mc` use the weights of all clusters, within the bounds of the loss.
        `se_data` is over the cluster's records, NaN for one. All are NaN if the draws of some level
        left no record of a cluster.
        """
        if not self.measure.per_record:
            raise ValueError(
                f"per_cluster: {self.measure.name} is not a mean over records; give a loss of one record."
            )
        frame = pd.concat(
            [self._clusters_of(k, run) for k, run in enumerate(self.runs)], ignore_index=True
        )
        if self.refusal:
            frame["estimate"] = np.nan
        if frame["cluster"].is_unique:
            return frame.set_index("cluster")
        return frame.groupby("cluster").mean()

    def _clusters_of(self, k: int, run: FoldLosses) -> pd.DataFrame:
        weights = System(self.pooled.fold_matrices[k], self.pooled.order).weights(self.solved.lam)
        p = self.shares.p_train[k]
        q = self.shares.p_test[k]
        losses = combine(run, run.cluster, run.outside[:, :, None], self.shares, k)
        seen = np.isfinite(losses)
        records = np.bincount(run.members)
        times = seen.sum(1)
        mean = np.where(seen, losses, 0.0).sum(1) / np.maximum(times, 1)
        deviation = np.einsum("l,ldc->dc", weights, np.where(seen, losses - mean[:, None], 0.0))
        complete = times.all(0)
        draws = len(deviation)
        record = (weights @ (run.record / np.maximum(run.times, 1))) * (1 - p) / (1 - p - q)
        total = np.bincount(run.members, record)
        square = np.bincount(run.members, record**2)
        variance = np.maximum(square - total**2 / records, 0.0) / np.maximum(records - 1, 1)
        first = np.isfinite(run.cluster[0])
        return pd.DataFrame(
            {
                "cluster": self.names[run.clusters],
                "records": records,
                "naive": np.where(first, run.cluster[0], 0.0).sum(0) / np.maximum(first.sum(0), 1),
                "estimate": np.where(
                    complete, np.clip(weights @ mean, self.measure.low, self.measure.high), np.nan
                ),
                "se_mc": np.where(
                    complete, np.sqrt((deviation**2).sum(0) / (draws - 1) / draws), np.nan
                ),
                "se_data": np.where(records > 1, np.sqrt(variance / records), np.nan),
            }
        )

    @cached_property
    def histogram(self) -> pd.DataFrame:
        """The shares of the losses in the classes of `bins=`: `low`, `high`, `naive`, `estimate`.

        The estimates are not negative, and sum to one.
        """
        if self.edges is None:
            raise ValueError(
                "histogram: give leakage_corrected bins=, the edges of the classes of losses."
            )
        weight = self.pooled.weight
        system = self.pooled.system
        shares = np.asarray(
            sum(w * run.histogram.mean(1) for w, run in zip(weight, self.runs, strict=True))
        )
        estimate = np.maximum(system.linear(shares, self.solved.lam)[0], 0.0)
        return pd.DataFrame(
            {
                "low": self.edges[:-1],
                "high": self.edges[1:],
                "naive": shares[0],
                "estimate": estimate / estimate.sum(),
            }
        )

    @conventional
    def table(self) -> pd.DataFrame:
        """Tabulate the numbers of the printed result.

        Returns
        -------
        DataFrame
            The numbers.
        """
        interval = self.interval()
        change = self.correction_interval()
        rows = {
            name: getattr(self, name)
            for name in ("estimate", "se_mc", "se_data", "se_p", "se_extrapolation")
        }
        rows |= {
            "low": interval.low,
            "high": interval.high,
            "naive": self.naive,
            "correction": self.correction,
        }
        if self._extrapolates:
            rows["ceiling"] = self.ceiling
        rows |= {
            "correction low": change.low,
            "correction high": change.high,
            "iid": self.iid,
            "lower": self.lower,
        }
        rows |= {
            name: float(self.pooled.weight @ share) for name, share in self.shares._asdict().items()
        }
        rows["unseen"] = self.pooled.unseen
        rows |= {f"extrapolant, {name}": value for name, value in self.extrapolants.items()}
        return pd.DataFrame({"value": rows})

    def _facts(self) -> Lines:
        fits = sum(run.test.size for run in self.runs)
        score = self.measure
        sizes = sorted({part.size for part in self.plan})
        trained = f"{sizes[0]}"
        if len(sizes) > 1:
            trained = f"{sizes[0]}–{sizes[-1]}"
        kind = "score" if score.more_is_better else "loss"
        listing = ", ".join(f"{name} {value:.5g}" for name, value in self.extrapolants.items())
        bound = "at least"
        if score.more_is_better:
            bound = "at most"
        p_train, p_test, exposed = (float(self.pooled.weight @ share) for share in self.shares)
        if self.plan[0].mechanism == "split":
            leak = f"{exposed:.3g} of V̂ has the other half of its cluster in T̂ (split)"
        else:
            leak = f"{p_train:.3g} of T̂ is the test clusters', {p_test:.3g} of V̂ the training clusters' (record)"
        corrected = [("corrected", "none: see verdict")]
        if not self.refusal:
            errors = [
                f"{self.se_mc:.2g} (Monte Carlo)",
                f"{self.se_data:.2g} (data, over {self._over})",
            ]
            errors += [f"{self.se_p:.2g} (leakage)"] * bool(self.se_p)
            errors += [f"{self.se_extrapolation:.2g} (extrapolation)"] * bool(self.se_extrapolation)
            corrected = [("corrected", " ± ".join([f"{self.estimate:.5g}", *errors]))]
        if not self.refusal and self.spread is not None:
            intervals = [
                f"{interval.low:.4g} to {interval.high:.4g} (95 %)"
                for interval in (self.interval(), self.correction_interval())
            ]
            corrected += [
                ("interval", intervals[0]),
                ("correction", f"{self.correction:+.4g}, {intervals[1]}"),
            ]
        lines = [
            ("learner", f"{self.learner}; {fits} fits to {trained} records; {kind} {score.name}"),
            ("folds", f"{len(self.plan)}, of {len(self.names)} clusters"),
            ("leakage", leak),
            *([("i.i.d.", f"{self.iid:.5g}")] if np.isfinite(self.iid) else []),
            ("naive", f"{self.naive:.5g}, by cluster as filed"),
            *corrected,
            ("extrapolants", listing),
            (bound, f"{self.lower:.5g}, if leakage does not hurt the learner"),
        ]
        if self._extrapolates:
            opposite = "at most"
            if score.more_is_better:
                opposite = "at least"
            lines.append(
                (opposite, f"{self.ceiling:.5g}, if each further mate in training does less")
            )
        if score.worst is not None and np.isfinite(most := self.largest_p(score.worst)):
            beyond = "exceed"
            if score.more_is_better:
                beyond = "fall below"
            lines.append(
                ("p at most", f"{most:.2g}, as the {kind} cannot {beyond} {score.worst:g}")
            )
        lines += [("slope test", str(self.slope_test)), ("verdict", self.verdict)]
        return lines + [("note", note) for note in (*self.notes, *self._reservations)]

    def __repr__(self) -> str:
        return f"LeakageResult(estimate={self.estimate:.5g}, naive={self.naive:.5g})"

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the losses at every level, the curve through them, and the extrapolations to zero.
        Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").leakage(self, ax)
