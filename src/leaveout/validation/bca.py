"""BCa intervals of any measure of held-out predictions: the whole cross-validation is drawn again.

Each bootstrap sample b is cross-validated, by weights that are products (`repeated_folds`), and its
measure T_b counts units as often as they were drawn. Refits of fewer distinct units predict worse
than those of interest, so the draws are moved to the median of the measures of the same samples by
the predictions of the estimate. The bias is z₀ = Φ⁻¹(share of T_b < T). The acceleration is that of
the measures T_(k) without group k, by refits without pairs: of units, or groups, up to 300, beyond
that of 50 random folds of them.
"""

import numpy as np
from jaxtyping import Float, Int

from .._runtime import Rng, members_by_label, record, slices, warn
from ..data import count
from ..plans import CAPACITY, Plan
from .cross_validate import held_out, strategy_of_predictions
from .estimate import Bases, Estimate
from .held_out_predictions import (
    HeldOutPredictions,
    divide,
    in_order,
    measures,
    prediction_kind,
    value_of_rows,
)
from .mean_intervals import Interval, bca_ends
from .metrics import AnyMetric, Mean, Measure
from .repeated_folds import (
    bootstrap_folds,
    draw_counts,
    independent_groups,
    paired_folds,
    random_folds,
    refit_again,
    usual_folds,
)

Array = np.ndarray


def _loss(target: Array, loss: Array) -> Array:
    """Return losses, which stand in the place of predictions."""
    return loss


MEAN_LOSS = Measure("mean loss", "response", Mean(_loss), low=None)


@record
class MeasureScores:
    """A measure by the refits of any plan."""

    estimate: Estimate
    measure: Measure

    def of(self, plan: Plan, bases: Bases = "frozen") -> HeldOutPredictions:
        """Compute the predictions, or losses, by the refits of a plan."""
        caller = "confidence_interval"
        estimate = self.estimate
        if self.measure is MEAN_LOSS:
            losses = refit_again(caller, "the estimate", estimate, plan, bases)[plan.held]
            places = plan.scored_units, plan.scored_refits
            return HeldOutPredictions(*places, losses, losses, losses, estimate._weight, plan)
        fit, strategy, _ = estimate._refittable(caller)
        kind = prediction_kind({"": self.measure})
        strategy = strategy_of_predictions(fit, plan, strategy)
        predictions = held_out(fit, plan, strategy, kind, bases=bases)
        return in_order(fit, predictions, self.measure)

    def value(
        self,
        held: HeldOutPredictions,
        times: Float[Array, " units"],
        part: Int[Array, " scored"],
    ) -> float:
        """Compute the mean over parts of the measure of units that count so many times; NaN where
        it is not defined, or a refit does not exist.
        """
        if (times[np.bincount(held.unit, minlength=len(times)) == 0] > 0).any():
            return np.nan
        values = [self._of_entries(held.take(entries), times) for entries in members_by_label(part)]
        mean = np.ma.masked_invalid(values).mean()
        return float(np.ma.filled(mean, np.nan))

    def _of_entries(self, held: HeldOutPredictions, times: Float[Array, " units"]) -> float:
        # of a unit that several refits score, each prediction has a share of its weight
        weight = held.weight[held.unit] / np.bincount(held.unit)[held.unit]
        rows = np.repeat(np.arange(len(weight)), times[held.unit].astype(int))
        return value_of_rows(self.measure, held, weight, rows)


def bca_interval(
    estimate: Estimate, level: float, metric: AnyMetric | None, num_resamples: int, rng: Rng
) -> Interval:
    """Compute the BCa interval of the mean loss or of a measure."""
    caller = "confidence_interval"
    seed = count(f"{caller}: rng", rng, 0)
    num_resamples = count(f"{caller}: num_resamples", num_resamples, 2)
    plan = estimate.plan
    label = independent_groups(caller, estimate, [estimate._unit_losses])
    scores = MeasureScores(estimate, MEAN_LOSS)
    if metric is not None:
        listed = [*measures(caller, estimate._refittable(caller)[0], metric, plan).values()]
        if len(listed) != 1:
            raise ValueError(f"{caller}: metric must be one measure; got {len(listed)}.")
        scores = MeasureScores(estimate, listed[0])
    held = scores.of(plan, estimate._bases)
    part, parts = divide(scores.measure, held, None)
    everyone = np.ones(plan.num_units)
    value = scores.value(held, everyone, part)
    folds = paired_folds(label, seed)
    pairs = scores.of(folds.leave_pairs())
    other = folds.other_fold(pairs.refit, pairs.unit)
    kept_units = 1.0 * (np.arange(folds.num_folds)[:, None] != folds.fold)
    jackknife = np.array(
        [
            scores.value(pairs.take(entries), kept, np.zeros(len(entries), int))
            for entries, kept in zip(members_by_label(other), kept_units, strict=True)
        ]
    )
    random = np.random.default_rng(seed)
    num_folds = usual_folds(plan, folds.num_groups)
    draws = []
    for batch in slices(num_resamples, CAPACITY // (num_folds * plan.num_units)):
        counts = draw_counts(label, batch.stop - batch.start, random)
        folds = random_folds(label, num_folds, len(counts), seed + batch.start)
        drawn = scores.of(bootstrap_folds(folds, counts))
        for sample, times in enumerate(counts):
            of_sample = drawn.take(drawn.refit // num_folds == sample)
            fold = np.zeros(len(of_sample.unit), int)
            if parts in ("folds", "refits"):
                fold = of_sample.refit % num_folds
            draws.append((scores.value(of_sample, times, fold), scores.value(held, times, part)))
    refitted, plain = np.array(draws)[np.isfinite(draws).all(1)].T
    lacking = num_resamples - len(refitted)
    if not np.isfinite(value) or lacking == num_resamples:
        raise ValueError(f"{caller}: {scores.measure.name} is not defined on bootstrap samples.")
    if lacking:
        warn(
            f"{caller}: {scores.measure.name} is not defined on {lacking} of {num_resamples} bootstrap samples, which are left out."
        )
    centred = refitted - np.median(refitted) + np.median(plain)
    ends = bca_ends(centred[:, None], np.array([value]), jackknife[:, None], level)
    low, high = np.clip(np.ravel(ends), *scores.measure.bounds).tolist()
    return Interval(low, high, level, "bca")
