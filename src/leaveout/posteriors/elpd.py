"""Expected log predictive density of left-out units, from one set of draws.

    elpd_o = log p(y_o | y_seen) = log Z(w_o with the held-out units at 1) − log Z(w_o)

With nothing but the held-out units left out, the first normaliser is that of the posterior itself. The same weights give a
second estimate, the weighted mean of p(y_o | θ). Where k̂ of the weights is high, or the two differ, the next proposal is tried:
the draws, their mixture with moved draws, a multivariate t. A fold for which none will do is flagged, and sampled anew if the
caller gives `refit`.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from .._runtime.conventions import Rng, conventional
from .._runtime.jax import call_traced, float64
from .._runtime.results import RESULTS
from ..data.arrays import share
from ..objectives.objective import display_name
from ..plans.plan import Plan
from ..validation.arviz import elpd_data
from ..validation.cross_validate import DEFAULT_REFIT, PlanLike, resolve_plan
from ..validation.estimate import Estimate
from .coordinates import read_draws
from .importance import (
    EVEN,
    FINITE_K,
    GOOD_K,
    MAX_GAP,
    MAX_K,
    MIN_EFFECTIVE,
    Approximations,
    GaussianProposal,
    Normaliser,
    Smoothed,
    WeightedDraws,
    about,
    bridge,
    log_mean,
    max_k,
    mixture,
    normaliser,
    smooth,
    students,
    summarise,
    weights_of_refit,
)
from .posterior import Posterior, batch_error
from .predictions import PosteriorPredictions, predict_left_out

TOGETHER = 2**22  # weights that are smoothed together, 32 MiB
PROPOSALS = ("draws", "mixture", "t", "refit")  # in the order in which they are tried


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorEstimate(Estimate):
    """The elpd of every fold of a plan, with Pareto's k̂, the gap between two estimates, and Monte-Carlo errors.

    `lo.elpd` returns it. It is an `Estimate` whose losses are −elpd, so that `lo.compare` takes it beside fits.

    Attributes
    ----------
    pareto_k : ndarray, `[refits]`
        k̂ of the weights whose mean is the estimate; trusted below 0.7. Weights of a mixture are at most twice those of the
        draws: it is the smaller of both.
    raw_k : ndarray, `[refits]`
        k̂ of the draws as they are, which PSIS-LOO reports.
    gap : ndarray, `[refits]`
        Absolute difference between the ratio of normalisers and the weighted mean of the predictive density.
    effective : ndarray, `[refits]`
        Effective number of draws.
    proposal : ndarray of str, `[refits]`
        What was weighed: "draws", "mixture" (with moved draws), "t" or "refit".
    sampling_error : float
        Monte-Carlo standard error of `elpd`, over errors that folds share.
    draws : int
        Number of draws of the posterior.
    posterior : Posterior or None
        The posterior; a pickled estimate has none.
    folds : list of WeightedDraws
        Draws of the posterior given what each fold sees, and their weights.

    See Also
    --------
    elpd : Make one.
    compare : Compare it with other posteriors and fits.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=20)
    >>> draws = y.sum() / 21 + rng.normal(size=(2000, 1)) / 21**0.5
    >>> loss = lambda theta, y: 0.5 * (y - theta[0]) ** 2 + 0.5 * np.log(2 * np.pi)
    >>> posterior = lo.from_posterior(draws, loss, y, log_prior=lambda theta: -0.5 * theta[0] ** 2)
    >>> found = lo.elpd(posterior, lo.leave_one_out(20))
    >>> bool(found.pareto_k.max() < 0.7), len(found.flagged())
    (True, 0)
    """

    pareto_k: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    raw_k: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    gap: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    effective: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    proposal: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, "<U8"))
    sampling_error: float = np.nan
    draws: int = 1
    posterior: Posterior | None = None
    folds: list[WeightedDraws] = field(default_factory=list)

    @property
    def _count(self) -> int:
        """The folds or units that have an elpd; or the cases that they stand for, where single cases are left out."""
        return round(float(self._weight[np.isfinite(self.per_unit())].sum()))

    @property
    def elpd(self) -> float:
        """Summed log predictive density of the folds; or of the units, or their cases, if each is scored by itself."""
        return -self.mean * self._count

    @property
    def elpd_se(self) -> float:
        """Standard error of `elpd` over new data, by what is independent in the plan."""
        return self.se * self._count

    @property
    def approximation_error(self) -> float:
        """Monte-Carlo standard error of `mean`."""
        return self.sampling_error / max(self._count, 1)

    def flagged(self, threshold: float = 0.1) -> NDArray[np.int64]:
        """List the refits whose weights are not to be trusted by any proposal.

        Parameters
        ----------
        threshold : float, default 0.1
            Not used: k̂ and the gap decide.

        Returns
        -------
        ndarray of int
            The numbers of the refits.
        """
        del threshold
        return np.flatnonzero(self.result != RESULTS.successful)

    @conventional
    @float64
    def predict(
        self, simulate: Any = None, level: float = 0.95, *, response: ArrayLike | None = None, seed: int = 0, rng: Rng = None
    ) -> PosteriorPredictions:
        """Predict the response of every left-out unit, and compare: mean, interval, PIT, CRPS or Brier score, R².

        The predictive distribution of a unit is that of responses drawn at the weighted draws which give its fold's elpd.

        Parameters
        ----------
        simulate : callable, or predictive draws, optional
            `simulate(key, theta, datum)`, which draws the response of one unit in JAX; `theta` and `datum` are those of
            `unit_loss`, and an effect that is integrated out is drawn from its prior. Or predictive draws `[draws, units]` at
            the draws of the posterior, such as `idata.posterior_predictive`; units whose fold weighs moved draws are then not
            predicted. Models of PyMC and NumPyro, regressions and generalised linear models need neither.
        level : float, default 0.95
            Share of the predictive distribution between the ends of an interval.
        response : array_like, shape (units,), optional
            Response of each unit; by default that of the model, or of the data: the array, or its "y".
        seed : int, default 0
            Seed of the drawn responses, and of ties of the PIT.
        rng : int, numpy.random.Generator or None, optional
            In place of `seed`.

        Returns
        -------
        PosteriorPredictions
            The predictions, with their `table`.

        Raises
        ------
        ValueError
            If there is nothing to draw responses from, or responses are missing, of another shape, or more than two classes.
        TypeError
            If a function is given for a model of the library.

        Examples
        --------
        >>> import jax
        >>> import numpy as np
        >>> import leaveout as lo
        >>> rng = np.random.default_rng(0)
        >>> y = rng.normal(size=20)
        >>> draws = y.sum() / 21 + rng.normal(size=(2000, 1)) / 21**0.5
        >>> loss = lambda theta, y: 0.5 * (y - theta[0]) ** 2 + 0.5 * np.log(2 * np.pi)
        >>> posterior = lo.from_posterior(draws, loss, y, log_prior=lambda theta: -0.5 * theta[0] ** 2)
        >>> found = lo.elpd(posterior, lo.leave_one_out(20))
        >>> predicted = found.predict(lambda key, theta, y: theta[0] + jax.random.normal(key))
        >>> bool(predicted.table["pit"].between(0, 1).all())
        True
        """
        if self.unit_weight is not None:
            raise ValueError(
                "predict: the plan leaves out single cases of units; leave out whole units, as lo.leave_one_out(n)."
            )
        if self.posterior is None:
            raise ValueError("predict: this estimate has no posterior, as one that was pickled; call lo.elpd again.")
        return predict_left_out(self, simulate, share("predict: level", level), response, seed)

    def without_data(self) -> "PosteriorEstimate":
        return replace(cast(PosteriorEstimate, super().without_data()), posterior=None, folds=[])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self.without_data())  # functions of a density cannot be pickled

    @conventional
    def table(self) -> pd.DataFrame:
        """Tabulate the scored units of every refit, or the refits where losses are joint.

        Returns
        -------
        DataFrame
            The columns of `Estimate.table`, whose `error` is the Monte-Carlo standard error of the refit's elpd, and `elpd`,
            `pareto_k`, `raw_k`, `gap`, `ess` and `proposal` of the refit.
        """
        held = self._at.held
        refit, codes = self._at.refit[held], np.array([code.name for code in RESULTS])
        columns = {} if self.joint else {"unit": self.names()[self._at.unit[held]]}
        own = {"pareto_k": self.pareto_k, "raw_k": self.raw_k, "gap": self.gap, "ess": self.effective}
        return pd.DataFrame(
            {"refit": refit, **columns, "elpd": -self.losses[held], "loss": self.losses[held]}
            | {"no_update": self.baseline[held], "error": self.error[refit]}
            | {name: each[refit] for name, each in own.items()}
            | {"proposal": self.proposal[refit], "result": codes[self.result[refit]]}
        )

    def _facts(self) -> list[tuple[str, str]]:
        plan, se, bad, count = self.plan, self.standard_error, int(np.sum(self.raw_k >= MAX_K)), self._count
        known = f" ± {se.value * count:.3g}" if np.isfinite(se.value) else ""
        each = "folds, joint" if self.joint else "units" if self.unit_weight is None else "cases"
        used = ", ".join(f"{np.sum(self.proposal == name)} by {name}" for name in PROPOSALS if name in self.proposal)
        flagged = self.flagged()
        some = f": {', '.join(map(str, flagged[:8]))}{', …' if len(flagged) > 8 else ''}" if len(flagged) else ""
        lines = [
            ("model", self.labels.get("objective", "")),
            ("refits", f"{plan.num_refits} of {plan.widths} each, by importance sampling"),
            ("elpd", f"{self.elpd:.6g}{known} of {count} {each} (SE {se.kind})"),
            ("Monte Carlo", f"± {self.sampling_error:.2g} on that sum"),
            ("parameters", f"{self.effective_parameters:.3g} effective"),
            ("Pareto k", f"{bad} of {plan.num_refits} above {MAX_K} as drawn, {np.sum(self.pareto_k >= MAX_K)} as estimated"),
            ("proposals", used),
            ("flagged", f"{len(flagged)} refits{some}" if len(flagged) else "none"),
        ]
        return [(name, text) for name, text in lines if text]

    @property
    def effective_parameters(self) -> float:
        """Summed difference between the log density of the units within the posterior and left out."""
        return float(np.nansum(self._weight * (self.per_unit() - self.average(self.baseline))))

    def to_arviz(self) -> Any:
        """Convert to ArviZ's `ELPDData` of kind "loo", for `arviz.compare`. Needs ArviZ.

        Returns
        -------
        ELPDData
            The elpd, its standard error, the pointwise values and Pareto's k̂ of each fold.

        Raises
        ------
        ValueError
            If a fold has no elpd, or units stand for several cases.
        ImportError
            If ArviZ is not installed.
        """
        if self.unit_weight is not None:
            raise ValueError("to_arviz: units stand for several cases, which ArviZ does not know of; lo.compare does.")
        if self._missing:
            raise ValueError(f"to_arviz: {self._missing} units have no held-out density; ArviZ needs one of each.")
        names = pd.RangeIndex(self.plan.num_refits) if self.joint else self.names()
        k = self.pareto_k if self.joint else self.average(np.where(self._at.held, self.pareto_k[self._at.refit], np.nan))
        losses, baseline = self.per_unit(), self.average(self.baseline)
        some, suspect = np.isfinite(losses), len(self.flagged()) > 0  # units that the plan scores
        return elpd_data(losses[some], baseline[some], names[some], self.se, suspect=suspect, k=k[some], draws=self.draws)


class FoldResult(NamedTuple):
    """The elpd of one fold by one proposal, and draws of the posterior given what the fold sees.

    `ratio` is by normalisers, `mean` by the weighted mean of p(y_o | θ), and `each` the weighted mean of every scored unit's.
    """

    ratio: float
    mean: float
    each: np.ndarray
    k: float
    max_k: float
    influence: np.ndarray
    effective: float
    proposal: str
    draws: WeightedDraws

    @property
    def accepted(self) -> bool:
        """Whether k̂ and the gap are as small as they must be, and effective draws as many."""
        return self.k < self.max_k and abs(self.ratio - self.mean) < MAX_GAP and self.effective >= MIN_EFFECTIVE

    @property
    def error(self) -> float:
        """Monte-Carlo standard error of the ratio."""
        return float(self.influence.std(ddof=1) / np.sqrt(len(self.influence)))

    @property
    def even(self) -> bool:
        """Whether weights hardly differ and have no heavy tail, so that their mean has a normal error."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return bool(self.accepted and self.k < GOOD_K and np.log(self.draws.weight).std() < EVEN)


class Evaluation(NamedTuple):
    """A fold at some places: F(θ, w), log p(y_o | θ), and that of each scored unit where these are scored one by one."""

    value: Float[np.ndarray, " places"]
    seen: Float[np.ndarray, " places"]
    units: Float[np.ndarray, "places units"]


class Unvisited(NamedTuple):
    """Places where no draw comes, and the draws from which they are reached.

    `start` is F(·, 1) at these draws, and `tail` the density of the posterior relative to theirs. Where losses of blocks are
    known, `finite` holds them with zero for infinite ones, `bare` is F without the infinite ones, and `own` are at the draws.
    """

    origin: NDArray[np.int64]
    theta: Float[np.ndarray, "places params"]
    start: Float[np.ndarray, " places"]
    tail: Float[np.ndarray, " places"]
    finite: Float[np.ndarray, "places blocks"]
    bare: Float[np.ndarray, " places"]
    infinite: NDArray[np.bool_]
    own: Float[np.ndarray, "places blocks"]


@dataclass(frozen=True, eq=False)
class FoldEstimator:
    """Estimate the folds of a plan; `pointwise` tells whether the units of a fold are scored one by one."""

    posterior: Posterior
    plan: Plan
    pointwise: bool

    @functools.cached_property
    def buffered(self) -> NDArray[np.bool_]:
        """Whether a refit changes the weights of units that it does not score."""
        return np.bincount(self.plan.refit, ~self.plan.held, self.plan.num_refits) > 0

    def held(self, k: int) -> np.ndarray:
        """Return the scored units of a refit."""
        part = slice(self.plan.indptr[k], self.plan.indptr[k + 1])
        return self.plan.index[part][self.plan.held[part]]

    def weights(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of a refit, and the same with its scored units at one."""
        out = weights_of_refit(self.plan, k)
        whole = out.copy()
        whole[self.held(k)] = 1.0
        return out, whole

    def at(self, k: int, theta: np.ndarray | None = None) -> tuple[np.ndarray, Evaluation]:
        """Evaluate F(·, 1) and a fold at some θ, by default at the draws.

        Losses of blocks of units are used where they are known and leave as a whole.
        """
        posterior, held, leaving = self.posterior, self.held(k), self._leaving(k)
        scored = leaving
        if self.buffered[k]:
            part = slice(self.plan.indptr[k], self.plan.indptr[k + 1])
            away = 1 - self.plan.weight[part][self.plan.held[part]]  # of some of the cases that a unit stands for, a share
            scored = self._share(held, away)
        if self._losses is None or leaving is None or scored is None:
            return self._by_values(k, theta)
        (touched, share), (own, part_of_own) = leaving, scored
        whole, losses = (
            (posterior.value, self._losses[:, touched]) if theta is None else posterior.values_and_losses(theta, touched)
        )
        gone = losses @ share
        seen = -gone if scored is leaving else -losses[:, np.searchsorted(touched, own)] @ part_of_own
        with np.errstate(invalid="ignore"):  # a block of density zero
            left = whole - gone
        units = -losses[:, np.searchsorted(touched, held)] if self.pointwise else np.zeros((len(left), 0))
        found = Evaluation(left, seen, units)
        if theta is not None and (zero := np.flatnonzero(~np.isfinite(left))).size:  # what leaves may be why
            for each, exact in zip(found, self._by_values(k, theta[zero])[1], strict=True):
                each[zero] = exact
        return whole, found

    def _by_values(self, k: int, theta: np.ndarray | None) -> tuple[np.ndarray, Evaluation]:
        """Evaluate F(·, 1) and a fold at some θ, by default at the draws, by F alone."""
        if theta is None:
            whole, (left, full) = self.posterior.value, self._at_draws[:, k]
        else:
            sets = np.stack([np.ones(self.plan.num_units), *self.weights(k)][: 3 if self.buffered[k] else 2])
            whole, left, full = self.posterior.values_of_sets(theta, sets).T[[0, 1, 2 if self.buffered[k] else 0]]
        theta = self.posterior.draws if theta is None else theta
        losses = self.posterior.losses_at(theta, self.held(k)) if self.pointwise else None
        seen = np.subtract(left, full, out=np.full(len(theta), -np.inf), where=np.isfinite(left))
        return whole, Evaluation(left, seen, np.zeros((len(theta), 0)) if losses is None else -losses)

    @functools.cached_property
    def _at_draws(self) -> Float[np.ndarray, "2 folds draws"]:
        """F of every fold, and of what its elpd is relative to, at the draws."""
        weights = np.concatenate(np.stack([self.weights(k) for k in range(self.plan.num_refits)], axis=1))
        sets, place = np.unique(weights, axis=0, return_inverse=True)
        found = self.posterior.values_of_sets(self.posterior.draws, sets).T[place.ravel()]
        return found.reshape(2, self.plan.num_refits, -1)

    @functools.cached_property
    def _losses(self) -> np.ndarray | None:
        """Losses of blocks at the draws, those of one block side by side in memory."""
        found = self.posterior.block_losses
        return None if found is None else np.asfortranarray(found)

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        return np.bincount(self.posterior.blocks)

    def _leaving(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the blocks that a refit leaves out, and the share of each; None if this is a part of several units."""
        part = slice(self.plan.indptr[k], self.plan.indptr[k + 1])
        return self._share(self.plan.index[part], 1 - self.plan.weight[part])

    @functools.cached_property
    def _unvisited(self) -> Unvisited:
        """Draws moved by differences of draws to where the posterior has less density than at any draw.

        Such differences are the steps of differential evolution, whose moves are symmetric (ter Braak, 2006).
        """
        posterior, rng = self.posterior, np.random.default_rng(0)
        draws, (count, size) = posterior.draws, posterior.draws.shape
        moved = draws + 2.38 / np.sqrt(2 * size) * (draws[rng.permutation(count)] - draws[rng.permutation(count)])
        value = posterior.values(moved, np.ones(self.plan.num_units))
        origin = np.flatnonzero(value > posterior.value.max())
        theta, losses, own, bare = moved[origin], np.zeros((len(origin), 0)), np.zeros((len(origin), 0)), np.zeros(len(origin))
        if self._losses is not None and origin.size:
            losses, own = posterior.values_and_losses(theta, np.unique(posterior.blocks))[1], self._losses[origin]
            bare = posterior.values(theta, np.zeros(self.plan.num_units))
        infinite = ~np.isfinite(losses)
        finite, start = np.asfortranarray(np.where(infinite, 0.0, losses)), posterior.value[origin]
        tail = np.exp(start - value[origin])
        return Unvisited(origin, theta, start, tail, finite, bare + finite.sum(1), infinite, np.asfortranarray(own))

    def unvisited(self, k: int, known: FoldResult, back: Callable[[np.ndarray], np.ndarray] | None = None) -> bool:
        """Whether more of a fold than its error lies where no draw comes, nor a moved one, which `back` maps to a draw.

        Metropolis moves from the draws, weighed as the fold's posterior, lead there as often as those out of there lead back,
        which a tenth of its share does, as moves of good size are accepted in 0.2 to 0.4 of tries, about half of them inwards.
        What the posterior itself has there, as in its tails, is not counted.
        """
        origin, theta, start, tail, finite, bare, infinite, own = self._unvisited
        if not origin.size:
            return False
        leaving, value = self._leaving(k), self.posterior.value
        if self._losses is None or leaving is None:
            before = self.at(k)[1].value
            after, lead = self.posterior.values(theta, self.weights(k)[0]), log_mean(value - before)
            before = before[origin]
        else:
            some, share = leaving
            before, after = start - own[:, some] @ share, bare - finite[:, some] @ share
            if infinite.any():  # where a unit that stays has no density, there is none
                after[infinite.sum(1) > infinite[:, some[share == 1]].sum(1)] = np.inf
            lead = self._mean_losses[some] @ share  # at most the logarithm of the mean weight, by Jensen's inequality
        excess = lambda lead: np.exp(start - np.maximum(before, after) - lead) - tail
        least = len(value) * max(known.error, 1e-9) / 10
        if excess(lead).sum() <= least:
            return False
        # the estimate is better than the mean weight of the draws, which may miss nearly all of a fold
        rate = excess(log_mean(value - self.at(k)[1].value) if self.buffered[k] else -known.ratio)
        if back is not None and rate.any():
            rate[self.posterior.values(back(theta), np.ones(self.plan.num_units)) <= value.max()] = 0.0
        return bool(rate.sum() > least)

    @functools.cached_property
    def _mean_losses(self) -> np.ndarray:
        assert self._losses is not None
        return self._losses.mean(0)

    def _share(self, units: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the blocks of some units, and the share of each that they are; None if a part of a block of several units."""
        blocks, place = np.unique(self.posterior.blocks[units], return_inverse=True)
        share, sizes = np.bincount(place, weight, len(blocks)), self._sizes[blocks]
        if np.any((share > 0) & (share < sizes) & (sizes > 1)):
            return None
        return blocks[share != 0], share[share != 0] / sizes[share != 0]

    def raw(self) -> Iterator[tuple[FoldResult, float, np.ndarray]]:
        """Estimate every fold from the draws as they are; yield log p(y_o) and that of each unit within the posterior too."""
        posterior, count = self.posterior, self.plan.num_refits
        size = max(1, TOGETHER // len(posterior.draws))
        for start in range(0, count, size):
            parts = [self.at(k)[1] for k in range(start, min(start + size, count))]
            log_weights = np.stack([posterior.value - found.value for found in parts])
            smoothed = smooth(log_weights, posterior.efficiency)
            known = map(Smoothed, smoothed.log_weights, smoothed.k)
            for k, (found, own, of_fold) in enumerate(zip(parts, log_weights, known, strict=True), start):
                fold = self._weigh("draws", k, own, found, lambda: posterior.draws, of_fold)
                yield fold, float(log_mean(found.seen)), log_mean(found.units) if self.pointwise else np.zeros(0)

    def by_mixture(self, k: int, own: GaussianProposal, there: GaussianProposal) -> FoldResult:
        """Estimate a fold from draws and moved draws."""
        posterior = self.posterior
        moved = lambda: there.map_from(own, posterior.draws)
        value, found = self.at(k, moved())
        return self._joined("mixture", k, found, mixture(posterior, own, there, value), moved)

    def by_students(self, k: int, there: GaussianProposal, start: Normaliser) -> FoldResult:
        """Estimate a fold from draws and those of a multivariate t, whose density is relative to the posterior's normaliser."""
        posterior = self.posterior
        others = lambda: students(posterior, there)
        value, elsewhere = self.at(k, others())
        log_t = there.log_student(np.concatenate([posterior.draws, others()])) + start.value
        log_density = np.logaddexp(np.r_[-posterior.value, -value], log_t) - np.log(2)
        found = self._joined("t", k, elsewhere, log_density, others)
        share = float(found.draws.weight @ np.exp(log_t - np.log(2) - log_density))  # of the weights that are owed to the t
        return found._replace(influence=found.influence + share * start.influence)

    def by_wide_students(self, k: int, known: FoldResult) -> FoldResult:
        """Estimate a fold from draws and those of a t about what a wider t finds; not accepted if that has no normaliser."""
        if self._start is None:
            return known._replace(k=np.inf)
        found, own = known, about(self.posterior.draws)
        there = own._replace(factor=own.factor / 2)
        for _ in range(2):
            found = self.by_students(k, there, self._start)
            there = about(found.draws.theta, found.draws.weight)
        return found

    @functools.cached_property
    def _start(self) -> Normaliser | None:
        return normaliser(self.posterior, about(self.posterior.draws))

    def _joined(
        self,
        name: str,
        k: int,
        elsewhere: Evaluation,
        log_density: np.ndarray,
        others: Callable[[], np.ndarray],
    ) -> FoldResult:
        """Estimate a fold from the draws and as many other places."""
        found = Evaluation(*map(np.concatenate, zip(self.at(k)[1], elsewhere, strict=True)))
        places = lambda: np.concatenate([self.posterior.draws, others()])
        return self._weigh(name, k, -found.value - log_density, found, places)

    def _weigh(
        self,
        name: str,
        k: int,
        log_weights: np.ndarray,
        found: Evaluation,
        places: Callable[[], np.ndarray],
        known: Smoothed | None = None,
    ) -> FoldResult:
        """Combine the normalisers of a fold and, unless it is that of the posterior, of all that its elpd is relative to."""
        out, ratio, relative = summarise(log_weights, self.posterior, known)
        value, worst, influence, effective = -out.value, out.k, -out.influence, out.effective
        if self.buffered[k]:
            whole, _, _ = summarise(log_weights + found.seen, self.posterior)
            value, worst, influence = value + whole.value, max(worst, whole.k), influence + whole.influence
            effective = min(effective, whole.effective)
        each = log_mean(relative[:, None] + found.units) if self.pointwise else np.zeros(0)
        draws = WeightedDraws(places, (ratio / len(ratio)).astype(np.float32))
        mean, most = float(log_mean(relative + found.seen)), max_k(len(self.posterior.draws))
        if name == "t":  # lies about one mode and has bounded weights there; heavier ones come from elsewhere
            most = min(most, FINITE_K)
        return FoldResult(value, mean, each, worst, most, influence, effective, name, draws)

    def resample(self, k: int, refit: Callable[[np.ndarray], Any]) -> tuple[FoldResult, float, bool]:
        """Estimate a fold from draws of its own posterior, which the caller samples, with its error and whether it is good.

        Where the fold leaves out what it scores only, the draws of both posteriors give the ratio of normalisers by a bridge.
        """
        out, whole = self.weights(k)
        if not np.isin(out, (0.0, 1.0)).all():
            raise ValueError(f"elpd: refit= samples the units that are seen; refit {k} has weights other than 0 and 1.")
        drawn = read_draws("elpd: refit", call_traced("elpd: refit", refit, np.flatnonzero(out)))
        theta = self.posterior.unconstrain("elpd: refit", drawn.arrays)
        left, full = self.posterior.values(theta, out), self.posterior.values(theta, whole)
        seen = left - full
        mean, at = float(log_mean(seen)), float(smooth(seen, 1.0).k)
        losses = self.posterior.losses_at(theta, self.held(k)) if self.pointwise else None
        each = log_mean(-losses) if losses is not None else np.zeros(0)
        error = float(batch_error(np.exp(seen - mean), drawn.chains))
        blank, draws = np.zeros(0), WeightedDraws(lambda: theta, np.full(len(theta), 1 / len(theta), np.float32))
        most = max_k(len(theta))
        if self.buffered[k]:
            return FoldResult(mean, mean, each, at, most, blank, float(len(theta)), "refit", draws), error, at < most
        ratio = -bridge(self.posterior.value - self.at(k)[1].value, full - left)
        found = FoldResult(ratio, mean, each, at, most, blank, float(len(theta)), "refit", draws)
        return found, error, abs(ratio - mean) < MAX_GAP


@conventional
@float64
def elpd(
    posterior: Posterior,
    plan: PlanLike,
    *,
    score: Literal["joint", "pointwise"] = "joint",
    refit: Callable[[np.ndarray], Any] | None = None,
) -> PosteriorEstimate:
    """Estimate the expected log predictive density of what a plan leaves out, from the draws of one posterior.

    The elpd of a fold is a ratio of normalisers, log Z(w_o with the scored units at 1) − log Z(w_o), which weighs draws by
    exp(F(θ, 1) − F(θ, w_o)). Draws are taken as they are if k̂ of these weights is below 0.2, where they surely have a variance;
    for leave-one-out this is PSIS-LOO. For other folds moved draws join them, which lie where the fold's posterior does, and if
    that will not do, draws of a multivariate t at its mode do. An estimate by S draws is accepted at k̂ < min(1 − 1 / log₁₀ S,
    0.7), for the t at k̂ < 0.5, with a gap below 0.1 between two estimates of the same fold, and 50 effective draws or more.
    Where the density of a fold has mass in places where no draw comes, as beyond an edge that only a left-out unit sets, the t
    lies wide about the draws, and nothing else is accepted. Folds for which none is accepted are sampled anew if `refit` is
    given, and flagged otherwise.

    Parameters
    ----------
    posterior : Posterior
        The posterior, from `lo.from_posterior`, `lo.from_numpyro` or `lo.from_pymc`.
    plan : Plan, int or splitter
        The units to leave out, such as `lo.leave_one_out(n)` or `lo.groups(labels)`, as in `lo.cross_validate`.
    score : {"joint", "pointwise"}, default "joint"
        Of a fold with several scored units, their joint density given all that is seen, or the density of each of them.
    refit : callable, optional
        Function of the numbers of the units that a fold sees, which returns draws of that posterior in the form that
        `lo.from_posterior` got. It is called for folds that are not accepted.

    Returns
    -------
    PosteriorEstimate
        The elpd of each fold, with k̂, gap, effective number of draws and Monte-Carlo error.

    Raises
    ------
    ValueError
        If plan and posterior count other units, or the score is pointwise and the units are not independent given θ.
    TypeError
        If the arguments are not a posterior and a plan.
    ImportError
        If ArviZ is not installed.

    See Also
    --------
    from_posterior : Take draws and a density.
    compare : Compare models.
    influence : How posterior summaries change.

    References
    ----------
    A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry, Pareto smoothed importance sampling, 2024.

    X.-L. Meng and W. H. Wong, Simulating ratios of normalizing constants via a simple identity, 1996.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> fit = lo.fit(lo.GLM(X, y, "poisson", lo.penalties.Ridge(1.0)))
    >>> draws = fit.at(rng.normal(size=(4, 500, 3)))  # of the Gaussian at the mode, which is near the posterior
    >>> found = lo.elpd(lo.from_posterior(draws, fit), lo.leave_one_out(60))
    >>> cv = lo.cross_validate(fit, lo.leave_one_out(60))
    >>> round(found.mean, 1), round(cv.mean, 1)
    (1.5, 1.5)
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(
            f"elpd: the first argument must be a Posterior, from lo.from_posterior; got {type(posterior).__name__}."
        )
    if not isinstance(score, str) or score not in ("joint", "pointwise"):
        raise ValueError(f"elpd: score must be 'joint' or 'pointwise'; got {score!r}.")
    if refit is not None and not callable(refit):
        raise TypeError(
            f"elpd: refit must be a function of the numbers of the units that are seen; got {type(refit).__name__}."
        )
    plan = resolve_plan("elpd", posterior.objective, plan, DEFAULT_REFIT)
    count = plan.num_refits
    scored = np.bincount(plan.refit, plan.held, count)
    if not scored.all():
        plan = plan.some(np.flatnonzero(scored))
        count, scored = plan.num_refits, scored[scored > 0]
    cases = _cases(posterior, plan) if plan.of_cases else None
    pointwise = score == "pointwise" and scored.max() > 1
    if pointwise and posterior.unit_losses is None:
        raise ValueError("elpd: score='pointwise' needs units that are independent given θ; ask for score='joint'.")
    found, raw_k, within, within_each = estimate_folds(estimator := FoldEstimator(posterior, plan, pointwise))
    own_error, good = np.zeros(count), np.array([fold.accepted for fold in found])
    if refit is not None:
        for k in np.flatnonzero(~good):
            found[k], own_error[k], good[k] = estimator.resample(int(k), refit)
    batches = max(len(fold.influence) for fold in found) or 1
    influence = np.stack([fold.influence if len(fold.influence) else np.zeros(batches) for fold in found])
    spread = lambda each: each.std(-1, ddof=1) / np.sqrt(batches) if batches > 1 else np.zeros(each.shape[:-1])
    one = scored.max() == 1
    ratios = np.array([fold.ratio for fold in found])
    if one:
        losses, baseline = (np.where(plan.held, -each[plan.refit], np.nan) for each in (ratios, within))
    elif pointwise:
        losses, baseline = np.full(len(plan.index), np.nan), np.full(len(plan.index), np.nan)
        losses[plan.held] = -np.concatenate([fold.each for fold in found])
        baseline[plan.held] = -np.concatenate(within_each)
    else:
        losses, baseline = -ratios, -within
    share = np.ones(count) if cases is None else cases[plan.index[plan.held]]  # of a fold in the sum
    units = posterior.objective.units
    response = units.target if units.response is None else units.response
    title = f"{display_name(posterior.objective)}, {plan.num_units} units, {len(posterior.draws)} draws"
    return PosteriorEstimate(
        losses=losses,
        error=np.sqrt(spread(influence) ** 2 + own_error**2),
        result=np.where(good, RESULTS.successful, RESULTS.heavy_weights).astype(np.int64),
        plan=plan,
        baseline=baseline,
        proved=np.zeros(count, bool),
        score=posterior.score,
        response=None if response is None else np.asarray(response),
        classes=units.classes > 0,
        labels={"objective": title, "refit": "importance sampling", "note": posterior.note},
        pareto_k=np.array([fold.k for fold in found]),
        raw_k=raw_k,
        gap=np.array([abs(fold.ratio - fold.mean) for fold in found]),
        effective=np.array([fold.effective for fold in found]),
        proposal=np.array([fold.proposal for fold in found]),
        draws=len(posterior.draws),
        posterior=posterior,
        folds=[fold.draws for fold in found],
        sampling_error=float(np.sqrt(spread(share @ influence) ** 2 + np.sum((share * own_error) ** 2))),
        unit_weight=cases,
    )


def _cases(posterior: Posterior, plan: Plan) -> NDArray[np.float64]:
    """Return the number of cases of each unit; ValueError if folds leave out other than one case, or cases of no density."""
    cases = np.asarray(posterior.objective.units.weight, np.float64)
    left = (cases[plan.index] * (1 - plan.weight))[plan.held]
    if len(left) != plan.num_refits or not np.allclose(left, 1.0):
        raise ValueError(
            "elpd: a refit that leaves out a part of a unit must score one of its cases: leave_one_out(cases=True)."
        )
    if np.any(np.asarray(posterior.constant) < 0):
        raise ValueError("elpd: units are counts of trials, none of which has a density of its own; give a row for each trial.")
    return cases


def estimate_folds(estimator: FoldEstimator) -> tuple[list[FoldResult], NDArray[np.float64], np.ndarray, list[np.ndarray]]:
    """Estimate every fold; return k̂ of the draws as they are, and log densities within the posterior, too."""
    found, within, each = map(list, zip(*estimator.raw(), strict=True))
    raw_k = np.array([fold.k for fold in found])
    hidden = [estimator.unvisited(k, fold) for k, fold in enumerate(found)]
    _improve(estimator, found, np.flatnonzero([each or not fold.even for each, fold in zip(hidden, found, strict=True)]))
    return found, raw_k, np.array(within), each


def _improve(estimator: FoldEstimator, found: list[FoldResult], bad: NDArray[np.int64]) -> None:
    """Estimate bad folds by the mixture with moved draws, else by a t, in place.

    The mixture's weights are at most twice those of the draws, so that k̂ of either bounds its tail. Which of them has the
    smaller k̂ is chance, and does not choose.
    """
    if not bad.size:
        return
    posterior, approximations = estimator.posterior, Approximations(estimator.posterior, estimator.plan)
    gaussians, own = approximations.of(bad), approximations.whole
    start = functools.cache(lambda: normaliser(posterior, own))
    for k in map(int, bad):
        drawn, there = found[k], gaussians.get(k)
        if there is not None:
            both = estimator.by_mixture(k, own, there)
            found[k] = both._replace(k=min(drawn.k, both.k))
        back = None if there is None else functools.partial(own.map_from, there)
        if estimator.unvisited(k, found[k], back):
            found[k] = estimator.by_wide_students(k, found[k])
            continue
        if there is not None and not found[k].accepted and (whole := start()) is not None:
            other = estimator.by_students(k, there, whole)
            found[k] = other if other.accepted else found[k]
        if drawn.accepted and drawn.k < FINITE_K:  # draws serve for summaries as they are
            found[k] = found[k]._replace(draws=drawn.draws)
