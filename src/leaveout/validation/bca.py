"""BCa intervals of any measure of held-out predictions: the whole cross-validation is drawn again.

Each bootstrap sample b is cross-validated, by weights that are products (`repeated_folds`), and its
measure T_b counts units as often as they were drawn. Refits of fewer distinct units predict worse
than those of interest, so the draws are moved to the median of the measures of the same samples by
the predictions of the estimate. The bias is z₀ = Φ⁻¹(share of T_b < T). The acceleration is that of
the measures T_(k) without group k, by refits without pairs: of units, or groups, up to 300, beyond
that of 50 random folds of them.
"""

import numpy as np
from jaxtyping import Float

from .._runtime import Rng, record, slices
from ..data import count
from ..plans import CAPACITY, Plan
from .cross_validate import held_out, strategy_of_predictions
from .estimate import Estimate
from .held_out_predictions import HeldOutPredictions, divide, in_order, measures, prediction_kind
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
    """A measure by the refits of any plan, over all predictions or, `by_fold`, the mean over
    folds.
    """

    estimate: Estimate
    measure: Measure
    by_fold: bool = False

    def of(self, plan: Plan) -> HeldOutPredictions:
        """Compute the predictions, or losses, by the refits of a plan."""
        if self.measure is MEAN_LOSS:
            losses = refit_again("confidence_interval", "the estimate", self.estimate, plan)
            losses = losses[plan.held]
            places = plan.scored_units, plan.scored_refits
            return HeldOutPredictions(*places, losses, losses, losses, self.estimate._weight, plan)
        fit, strategy, _ = self.estimate._refittable("confidence_interval")
        kind = prediction_kind({"": self.measure})
        predictions = held_out(fit, plan, strategy_of_predictions(fit, plan, strategy), kind)
        return in_order(fit, predictions, self.measure)

    def value(self, held: HeldOutPredictions, times: Float[Array, " units"]) -> float:
        """Compute the measure of units that count so many times; NaN where it is not defined."""
        rows = np.repeat(np.arange(len(held.unit)), times[held.unit].astype(int))
        part = np.zeros(len(rows), int)
        if self.by_fold:
            part = held.refit[rows]
        values = [self._of_rows(held.take(rows[part == k])) for k in np.unique(part)]
        return float(np.ma.masked_invalid(values).mean())

    def _of_rows(self, held: HeldOutPredictions) -> float:
        try:
            prediction = self.measure.form(held.prediction)
            return self.measure(held.target, prediction, held.weight[held.unit])
        except (ValueError, ZeroDivisionError):  # such as a class that is missing
            return np.nan


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
        (measure,) = measures(caller, estimate._refittable(caller)[0], metric, plan).values()
        scores = MeasureScores(estimate, measure)
        _, parts = divide(measure, scores.of(plan), None)
        scores = MeasureScores(estimate, measure, parts in ("folds", "refits"))
    held = scores.of(plan)
    everyone = np.ones(plan.num_units)
    value = scores.value(held, everyone)
    folds = paired_folds(label, seed)
    pairs = scores.of(folds.leave_pairs())
    other = folds.other_fold(pairs.refit, pairs.unit)
    alone = MeasureScores(estimate, scores.measure)
    jackknife = np.array(
        [alone.value(pairs.take(other == k), everyone) for k in range(folds.num_folds)]
    )
    random = np.random.default_rng(seed)
    num_folds = usual_folds(plan, folds.num_groups)
    draws = []
    for part in slices(num_resamples, CAPACITY // (num_folds * plan.num_units)):
        counts = draw_counts(label, part.stop - part.start, random)
        folds = random_folds(label, num_folds, len(counts), seed + part.start)
        drawn = scores.of(bootstrap_folds(folds, counts))
        for sample, times in enumerate(counts):
            of_sample = drawn.take(drawn.refit // num_folds == sample)
            draws.append((scores.value(of_sample, times), scores.value(held, times)))
    refitted, plain = np.ma.masked_invalid(draws).T
    centred = (refitted - np.ma.median(refitted) + np.ma.median(plain)).filled(np.nan)
    if not (np.isfinite(value) and np.isfinite(centred).any()):
        raise ValueError(f"{caller}: {scores.measure.name} is not defined on bootstrap samples.")
    ends = bca_ends(centred[:, None], np.array([value]), jackknife[:, None], level)
    low, high = np.clip(np.ravel(ends), *scores.measure.bounds).tolist()
    return Interval(low, high, level, "bca")
