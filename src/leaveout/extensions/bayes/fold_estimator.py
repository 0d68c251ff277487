"""Estimates of the elpd of folds.

From the draws as they are, from moved draws too, or from those of a multivariate t.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import sparse
from scipy.special import expit

from ... import Plan
from ...developer import (
    CAPACITY,
    ArrayFunction,
    ArrayList,
    BoolArray,
    FloatArray,
    IntArray,
    MakeArray,
    NamedValues,
    NumpyArray,
    Slow,
    StepResult,
    call_traced,
    keep,
    making,
    num_saved_steps,
    read_step,
    record,
    silence,
    slices,
)
from .coordinates import read_draws
from .importance import (
    EVEN_SPREAD,
    FINITE_K,
    GOOD_K,
    K_OF_SHARE,
    MAX_GAP,
    MIN_EFFECTIVE,
    GaussianProposal,
    Normaliser,
    WeightedDraws,
    about,
    bridge,
    by_draw,
    gaussian_of,
    gaussians_of_refits,
    log_mean,
    max_k,
    means_of_batches,
    normaliser,
    smooth,
    summarise,
)
from .posterior import Places, Posterior, batch_means

SMOOTHED_WEIGHTS = 2**17  # weights that are smoothed together, 1 MiB
FoldPlaces = Float[NumpyArray, "folds places"]
PerPlace = Float[NumpyArray, " places"]
NO_DRAWS = np.zeros(2)  # influence of draws of its own on a fold that has none


class LogDensities(NamedTuple):
    """Estimated log densities, and their influences by batches of the draws that all folds share,
    and of those of this fold.
    """

    value: Float[NumpyArray, " scores"]
    influence: Float[NumpyArray, "scores batches"]
    fold_influence: Float[NumpyArray, "scores fold_batches"]

    @property
    def error(self) -> Float[NumpyArray, " scores"]:
        """Monte-Carlo standard error of each."""
        return error_of_batches(self.influence, self.fold_influence)

    @property
    def error_of_sum(self) -> float:
        """Monte-Carlo standard error of the sum."""
        return float(error_of_batches(self.influence.sum(0), self.fold_influence.sum(0)))


class FoldResult(NamedTuple):
    """The elpd of one fold by one proposal, and draws of the posterior given what the fold sees.

    `ratio` is by normalisers, `mean` by the weighted mean of p(y_o | θ), and `units` the weighted
    mean of every unit's that is scored by itself; `change` is A(w), `share` the effective share of
    the draws. `fold_influence` is of draws that no other fold has.
    """

    ratio: float
    mean: float
    units: LogDensities | None
    k: float
    max_k: float
    influence: NumpyArray
    effective: float
    share: float
    change: float
    proposal: str
    draws: WeightedDraws
    fold_influence: NumpyArray = NO_DRAWS

    @property
    def accepted(self) -> bool:
        """Whether k̂ and the gap are as small as they must be, and effective draws as many."""
        too_few = self.effective < MIN_EFFECTIVE or self.k > K_OF_SHARE * self.share
        return self.k < self.max_k and abs(self.ratio - self.mean) < MAX_GAP and not too_few

    @property
    def scores(self) -> LogDensities:
        """The part of the fold in the elpd.

        The log density of every unit that is scored by itself, or the joint one.
        """
        if self.units is not None:
            return self.units
        return LogDensities(np.array([self.ratio]), self.influence[None], self.fold_influence[None])

    @property
    def arrays(self) -> StepResult:
        """Everything but draws that can be moved again."""
        if self.units is None:
            units = {}
        else:
            units = {f"units {name}": value for name, value in self.units._asdict().items()}
        theta = {}
        if self.proposal == "refit":
            theta = {"theta": self.draws.theta}
        numbers = {
            name: np.asarray(value)
            for name, value in self._asdict().items()
            if name not in ("units", "draws")
        }
        return numbers | units | theta | {"weight": self.draws.weight}

    @property
    def error(self) -> float:
        """Monte-Carlo standard error of the ratio."""
        return float(error_of_batches(self.influence, self.fold_influence))


def error_of_batches(*means: Float[NumpyArray, "*sets batches"]) -> Any:
    """Standard error of the sum of independent estimates, by their means over batches of draws."""
    return np.sqrt(sum(part.var(-1, ddof=1) / part.shape[-1] for part in means))


class FoldEstimates(NamedTuple):
    """Estimates of folds, k̂ of the draws as they are, and the log densities that are scored within
    the posterior.

    `stopped` lists the folds that Ctrl-C came before.
    """

    results: list[FoldResult]
    raw_k: FloatArray
    within: FloatArray
    stopped: IntArray


class Evaluation(NamedTuple):
    """Folds at some places: F(θ, 1), F(θ, w), and log p(y_o | θ)."""

    total: PerPlace
    reduced: FoldPlaces
    seen: FoldPlaces

    def joined(self, other: "Evaluation") -> "Evaluation":
        """The same folds at these and other places."""
        return Evaluation(*(np.concatenate(pair, -1) for pair in zip(self, other, strict=True)))


@record
class FoldEstimator:
    """Estimate the folds of a plan.

    `pointwise` tells whether the units of a fold are scored one by one.
    """

    posterior: Posterior
    plan: Plan
    pointwise: bool

    @cached_property
    def away(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        """One minus the weights of every refit, `[refits, units]`, and the same with its scored
        units at one.
        """
        away = 1 - self.plan.weight
        shape = self.plan.num_refits, self.plan.num_units
        reductions, unscored = (
            sparse.csr_array((data, self.plan.index, self.plan.indptr), shape, copy=True)
            for data in (away, np.where(self.plan.held, 0.0, away))
        )
        unscored.eliminate_zeros()
        return reductions, unscored

    @cached_property
    def buffered(self) -> BoolArray:
        """Whether a refit changes the weights of units that it does not score."""
        return np.diff(self.away[1].indptr) > 0

    def held(self, k: int) -> IntArray:
        """Return the scored units of a refit."""
        part = slice(self.plan.indptr[k], self.plan.indptr[k + 1])
        return self.plan.index[part][self.plan.held[part]]

    def evaluate(self, folds: IntArray, theta: Places) -> Evaluation:
        """Evaluate folds at some θ."""
        rows = [matrix[folds] for matrix in self.away]
        nothing = sparse.csr_array((1, self.plan.num_units))
        total, values = np.split(
            self.posterior.values_without(theta, sparse.vstack([nothing, *rows], "csr")), [1]
        )
        reduced, full = np.split(values, 2)
        seen = np.subtract(
            reduced, full, out=np.full(reduced.shape, -np.inf), where=np.isfinite(reduced)
        )
        return Evaluation(total[0], reduced, seen)

    def units(self, k: int, places: MakeArray, log_weights: PerPlace) -> LogDensities | None:
        """Estimate log p(y_n) of the units that a fold scores one by one, from places of weights of
        mean one.
        """
        if not self.pointwise:
            return None
        value, ratio = self._ratios(k, places(), log_weights)
        influence = means_of_batches(by_draw(ratio, len(self.posterior.draws)), self.posterior)
        return LogDensities(value, influence, np.zeros((len(value), 2)))

    def _ratios(
        self,
        k: int,
        theta: Places,
        log_weights: PerPlace,
    ) -> tuple[Float[NumpyArray, " scored"], Float[NumpyArray, "scored places"]]:
        """Return weighted log means of p(y_n | θ), and their derivatives by the log weights of the
        places.
        """
        terms = log_weights - self.posterior.losses_at(theta, self.held(k)).T
        value = log_mean(terms.T)
        with silence("invalid"):  # of a density that is zero at all places
            return value, np.exp(terms - value[:, None]) - np.exp(log_weights)

    @cached_property
    def _evaluations(self) -> dict[int, Evaluation]:
        """Evaluations at the draws of folds that need more than these."""
        return {}

    def at_draws(self, k: int) -> Evaluation:
        """Evaluate a fold at the draws, once."""
        if k not in self._evaluations:
            self._evaluations[k] = self.evaluate(np.array([k]), self.posterior.draws)
        return self._evaluations[k]

    @cached_property
    def gaussian(self) -> GaussianProposal:
        """The Gaussian of the posterior."""
        return gaussian_of(self.posterior)

    @cached_property
    def start(self) -> Normaliser | None:
        """log Z(1), to which densities of a t are relative."""
        return normaliser(self.posterior)

    @cached_property
    def moves(self) -> tuple[BoolArray, NumpyArray, Evaluation]:
        """Which draws move to where the posterior has less density than at any draw, the places,
        and all folds there.

        Draws move by differences of draws, the steps of differential evolution, which are symmetric
        (ter Braak, 2006).
        """
        posterior = self.posterior
        rng = np.random.default_rng(0)
        draws = posterior.draws
        count, size = posterior.draws.shape
        places = draws + 2.38 / np.sqrt(2 * size) * (
            draws[rng.permutation(count)] - draws[rng.permutation(count)]
        )
        outside = posterior.values(places) > posterior.value.max()
        return (
            outside,
            places[outside],
            self.evaluate(np.arange(self.plan.num_refits), places[outside]),
        )

    def unvisited(
        self,
        folds: IntArray,
        results: list[FoldResult],
        before: FoldPlaces,
        inverse_map: ArrayFunction | None = None,
    ) -> BoolArray:
        """Whether more of each fold than its error lies where no draw comes, nor a moved one, which
        `inverse_map` maps to a draw.

        Metropolis moves from the draws, weighed as the fold's posterior, lead there as often as
        those out of there lead back, which a tenth of its share does, as moves of good size are
        accepted in 0.2 to 0.4 of tries, about half of them inwards. What the posterior itself has
        there, as in its tails, is not counted. F(·, w) is `before` at the draws that move there.
        """
        outside, theta, after = self.moves
        start = self.posterior.value[outside]
        change = np.array([fold.change for fold in results])[:, None]
        rates = np.exp(start - np.maximum(before, after.reduced[folds]) - change) - np.exp(
            start - after.total
        )
        if inverse_map is not None and rates.any():
            mapped = self.posterior.values(inverse_map(theta))
            rates[:, mapped <= self.posterior.value.max()] = 0.0
        return rates.sum(1) > len(self.posterior.draws) / 10 * np.maximum(
            [fold.error for fold in results], 1e-9
        )

    def by_mixture(self, k: int, proposal: GaussianProposal) -> FoldResult:
        """Estimate a fold from draws and moved draws."""
        posterior = self.posterior
        gaussian = self.gaussian
        mapped_values = posterior.values(gaussian.map_from(proposal, posterior.draws))
        log_jacobian = gaussian.log_det - proposal.log_det  # log |det T|
        as_moved = np.r_[-mapped_values, -posterior.value] - log_jacobian
        return self._joined(
            "mixture", k, lambda: proposal.map_from(gaussian, posterior.draws), as_moved
        )[0]

    def by_students(self, k: int, proposal: GaussianProposal, start: Normaliser) -> FoldResult:
        """Estimate a fold from draws and those of a multivariate t, whose density is relative to
        the posterior's normaliser.
        """
        draws = self.posterior.draws
        extra_places = lambda: proposal.students(len(draws))
        result, share = self._joined(
            "t",
            k,
            extra_places,
            proposal.log_student(np.concatenate([draws, extra_places()])) + start.value,
        )
        return result._replace(influence=result.influence + share * start.influence)

    def by_wide_students(self, k: int, previous: FoldResult) -> FoldResult:
        """Estimate a fold from draws and those of a t about what a wider t finds.

        Not accepted if that has no normaliser.
        """
        if self.start is None:
            return previous._replace(k=np.inf)
        gaussian = about(self.posterior.draws)
        proposal = gaussian._replace(factor=gaussian.factor / 2)
        for _ in range(2):
            previous = self.by_students(k, proposal, self.start)
            proposal = about(previous.draws.theta, previous.draws.weight)
        return previous

    def _joined(
        self,
        name: str,
        k: int,
        extra_places: MakeArray,
        log_proposal: PerPlace,
    ) -> tuple[FoldResult, float]:
        """Estimate a fold from the draws and as many other places, and return the share of the
        weights owed to these.

        `log_proposal` is their log density at all places, relative to exp(−F(·, 1)) / Z(1).
        """
        folds = np.array([k])
        draws = self.posterior.draws
        evaluation = self.at_draws(k).joined(self.evaluate(folds, extra_places()))
        log_density = np.logaddexp(-evaluation.total, log_proposal) - np.log(2)
        (result,) = self._weigh(
            name,
            folds,
            -evaluation.reduced - log_density,
            evaluation,
            lambda: np.concatenate([draws, extra_places()]),
        )
        return result, float(result.draws.weight @ expit(log_proposal + evaluation.total))

    def _weigh(
        self,
        name: str,
        folds: IntArray,
        log_weights: FoldPlaces,
        evaluation: Evaluation,
        places: MakeArray,
    ) -> list[FoldResult]:
        """Combine the normalisers of folds and, unless it is that of the posterior, of all that
        their elpd is relative to.
        """
        denominator, ratio, relative = summarise(log_weights, self.posterior)
        value = -denominator.value
        worst = denominator.k
        influence = -denominator.influence
        effective = denominator.effective
        share = denominator.share
        if (buffered := self.buffered[folds]).any():
            numerator, _, _ = summarise((log_weights + evaluation.seen)[buffered], self.posterior)
            value[buffered] += numerator.value
            influence[buffered] += numerator.influence
            worst[buffered] = np.maximum(worst[buffered], numerator.k)
            effective[buffered] = np.minimum(effective[buffered], numerator.effective)
            share[buffered] = np.minimum(share[buffered], numerator.share)
        mean = log_mean((relative + evaluation.seen).T)
        most = max_k(len(self.posterior.draws))
        # lies about one mode and has bounded weights there; heavier ones come from elsewhere
        if name == "t":
            most = min(most, FINITE_K)
        draws = [
            WeightedDraws(places, weight) for weight in (ratio / ratio.shape[1]).astype(np.float32)
        ]
        return [
            FoldResult(
                ratio=value[j],
                mean=mean[j],
                units=self.units(k, places, relative[j]),
                k=worst[j],
                max_k=most,
                influence=influence[j],
                effective=effective[j],
                share=share[j],
                change=denominator.value[j],
                proposal=name,
                draws=draws[j],
            )
            for j, k in enumerate(folds)
        ]

    def improve(
        self, k: int, as_drawn: FoldResult, proposal: GaussianProposal | None
    ) -> FoldResult:
        """Estimate a fold by the mixture with moved draws, else by a t.

        The mixture's weights are at most twice those of the draws, so that k̂ of either bounds its
        tail. Which of them has the smaller k̂ is chance, and does not choose.
        """
        result = as_drawn
        inverse_map = None
        if proposal is not None:
            result = self.by_mixture(k, proposal)
            inverse_map = partial(self.gaussian.map_from, proposal)
            result = result._replace(k=min(as_drawn.k, result.k))
        if self.unvisited(
            np.array([k]), [result], self.at_draws(k).reduced[:, self.moves[0]], inverse_map
        )[0]:
            return self.by_wide_students(k, result)
        if proposal is not None and not result.accepted and self.start is not None:
            alternative = self.by_students(k, proposal, self.start)
            if alternative.accepted:
                result = alternative
        if as_drawn.k < FINITE_K and as_drawn._replace(share=np.inf).accepted:  # for summaries
            return result._replace(draws=as_drawn.draws)
        return result

    def resample(
        self, k: int, result: FoldResult, refit: Callable[[NumpyArray], Any]
    ) -> FoldResult:
        """Estimate a fold from draws of its own posterior, which the caller samples.

        Where the fold leaves out what it scores only, the draws of both posteriors give the ratio
        of normalisers by a bridge.
        """
        folds = np.array([k])
        weights = 1 - self.away[0][folds].toarray()[0]
        if not np.isin(weights, (0.0, 1.0)).all():
            raise ValueError(
                f"elpd: refit= samples the units that are seen; refit {k} has weights other than 0 and 1."
            )
        named_draws = read_draws(
            "elpd: refit", call_traced("elpd: refit", refit, np.flatnonzero(weights))
        )
        theta = self.posterior.unconstrain("elpd: refit", named_draws.arrays)
        evaluation = self.evaluate(folds, theta)
        count = len(theta)
        seen = evaluation.seen[0]
        mean = ratio = float(log_mean(seen))
        most = max_k(count)
        worst = float(smooth(seen, 1.0).k)
        if not self.buffered[k]:
            # k̂ is of the mean alone
            ratio = -bridge(self.posterior.value - self.at_draws(k).reduced[0], -seen)
            most = np.inf
        units = None
        if self.pointwise:
            value, derivatives = self._ratios(k, theta, np.zeros(count))
            shared = np.zeros((len(value), result.influence.shape[-1]))
            units = LogDensities(value, shared, batch_means(derivatives.T, named_draws.chains).T)
        return result._replace(
            ratio=ratio,
            mean=mean,
            units=units,
            k=worst,
            max_k=most,
            influence=0.0 * result.influence,
            effective=float(count),
            share=np.inf,
            proposal="refit",
            draws=WeightedDraws(lambda: theta, np.full(count, 1 / count, np.float32)),
            fold_influence=batch_means(np.exp(seen - mean), named_draws.chains),
        )

    def estimate(self) -> FoldEstimates:
        """Estimate every fold, from the draws as they are if that will do."""
        posterior = self.posterior
        folds = np.arange(self.plan.num_refits)
        results = list[FoldResult]()
        good = np.zeros(len(folds), bool)
        before = ArrayList()
        within = ArrayList()
        # what all folds share is then computed once
        together = CAPACITY if posterior.block_losses is None else SMOOTHED_WEIGHTS
        for batch in _parts(folds, together // len(posterior.draws)):
            evaluation = self.evaluate(batch, posterior.draws)
            log_weights = posterior.value - evaluation.reduced
            estimates = self._weigh(
                "draws", batch, log_weights, evaluation, lambda: posterior.draws
            )
            with silence("invalid"):  # of weights that are zero
                even = log_weights.std(-1) < EVEN_SPREAD
            good[batch] = even & [fold.accepted and fold.k < GOOD_K for fold in estimates]
            for j in np.flatnonzero(~good[batch]):
                self._evaluations[int(batch[j])] = Evaluation(
                    evaluation.total, evaluation.reduced[[j]], evaluation.seen[[j]]
                )
            results += estimates
            before.append(evaluation.reduced[:, self.moves[0]])
            within.append(log_mean(evaluation.seen.T))
        raw_k = np.array([fold.k for fold in results])
        bad = np.flatnonzero(~good | self.unvisited(folds, results, np.concatenate(before)))
        stopped = bad
        with Slow("folds", len(bad)) as bar, suppress(KeyboardInterrupt):
            for batch in _parts(bad, CAPACITY // self.plan.num_units):
                gaussians = cache(
                    partial(gaussians_of_refits, posterior, 1 - self.away[0][batch].toarray())
                )
                for place, k in enumerate(batch.tolist()):
                    make = lambda i=place, k=k, as_drawn=results[k], batch_gaussians=gaussians: (
                        self.improve(k, as_drawn, batch_gaussians()[i])
                    )
                    results[k] = self.read_or_make(make)
                    stopped = stopped[1:]
                    bar.advance()
        within_fold = np.concatenate(within)
        if self.pointwise:
            unit_losses = (
                posterior.losses_at(posterior.draws, self.held(k)) for k in folds.tolist()
            )
            within_fold = np.concatenate([log_mean(-losses) for losses in unit_losses])
        return FoldEstimates(results, raw_k, within_fold, stopped)

    def read_or_make(self, make: Callable[[], FoldResult]) -> FoldResult:
        """Return a fold from the checkpoint, or make and keep it.

        Draws that were moved for it are moved anew on demand.
        """
        if not num_saved_steps():
            with making():
                fold = make()
            keep(fold.arrays)
            return fold
        arrays = read_step()
        draws = self.posterior.draws
        numbers: NamedValues = {
            name: arrays[name][()] for name in FoldResult._fields if name in arrays
        }
        theta = arrays.get("theta", draws if len(arrays["weight"]) == len(draws) else None)
        places = lambda: make().draws.theta if theta is None else theta
        units = (
            LogDensities(*(arrays[f"units {name}"] for name in LogDensities._fields))
            if self.pointwise
            else None
        )
        return FoldResult(units=units, draws=WeightedDraws(places, arrays["weight"]), **numbers)

    def resample_folds(
        self, estimates: FoldEstimates, refit: Callable[[NumpyArray], Any]
    ) -> FoldEstimates:
        """Estimate the folds that are not accepted from draws of their own posteriors, up to
        Ctrl-C.
        """
        results = list(estimates.results)
        stopped = np.array([k for k, fold in enumerate(results) if not fold.accepted], int)
        with suppress(KeyboardInterrupt):
            for k in stopped.copy():
                results[k] = self.read_or_make(partial(self.resample, int(k), results[k], refit))
                stopped = stopped[1:]
        return estimates._replace(results=results, stopped=stopped)


def _parts(folds: IntArray, size: int) -> Iterator[IntArray]:
    return (folds[part] for part in slices(len(folds), size))
