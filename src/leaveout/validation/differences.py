"""Standard errors of the difference of two models' mean losses that count what the refits share.

nested        of nested cross-validation, for the differences of losses (`nested_intervals`)
bootstrap     T_bc, the difference over partition c of bootstrap sample b, is μ + a_b + e_bc, a
              random-effects fit: σ_a² = Var_b(T̄_b) − σ_e²/C, σ_e² = mean_b Var_c(T_bc); a
              difference over R partitions has √(σ_a² + σ_e²/R) (Cai et al., arXiv 2307.00260)
corrected     s √(1/J + n₂/n₁), s the SD of J folds' differences, by Student's t (Nadeau & Bengio,
              Machine Learning 52, 2003)
conservative  √(Σ_m (d_m − d′_m)² / 2M), the differences of both halves of M random splits, each
              cross-validated, whose smaller samples vary more (the same, conservative z)

All refits of a model come from its one fit. Groups of units stay together, as do blocks of
successive steps or neighbours that are longer than the differences are correlated.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

from .._runtime import NamedArrays, Rng
from ..data import count
from ..plans import Plan
from .estimate import Estimate
from .mean_intervals import corrected
from .nested_intervals import error_of_nested
from .repeated_folds import (
    MIN_FOLDS,
    RandomFolds,
    bootstrap_folds,
    draw_counts,
    independent_groups,
    random_folds,
    refit_again,
    usual_folds,
)
from .standard_errors import MIN_BLOCKS, independent

DifferenceMethod = Literal["nested", "bootstrap", "corrected", "conservative"]
METHODS = get_args(DifferenceMethod)
SAMPLED = "the models' mean difference over samples of this size"
TARGETS = {
    "nested": "the difference of the fold refits' risks",
    "bootstrap": SAMPLED,
    "corrected": SAMPLED,
    "conservative": SAMPLED,
}
REPEATS = {"nested": 20, "bootstrap": 200, "corrected": 1, "conservative": 10}
# methods whose intervals of 95 % held less than 93 % of the differences of the risks of refits in
# simulations (results/decisions.md)
NARROW = {"bootstrap": "too narrow for the risks of these refits in simulations"}
SPLITS = 2  # partitions into folds of each bootstrap sample
# instability at which the variance of least squares, as if losses were independent, is a sixth too
# small, so that intervals of 95 % hold 93 %
UNSTABLE = 0.35


class DifferenceError(NamedTuple):
    """The standard error of a difference, the degrees of freedom of Student's t, the instability of
    the losses' differences, and why an interval is not to be relied upon.
    """

    value: float
    dof: float = np.inf
    instability: float = np.nan
    unreliable: str = ""

    def judged(self, doubt: str, num_groups: int) -> "DifferenceError":
        """Say why the error is not to be relied upon."""
        doubts = [doubt] if doubt else []
        if self.instability > UNSTABLE:
            doubts.insert(0, f"instability {self.instability:.2g} is not small")
        if num_groups < MIN_BLOCKS:
            doubts.append(f"{num_groups} independent groups")
        return self._replace(unreliable="; ".join(doubts))


def difference_errors(
    estimates: dict[str, Estimate],
    differences: NamedArrays,
    best: str,
    reference: Estimate,
    method: DifferenceMethod,
    num_repeats: int | None,
    rng: Rng,
) -> dict[str, DifferenceError]:
    """Compute the errors of the differences of units' losses from those of the best, by the name
    of the other model; `reference` says which units are independent.
    """
    if method not in METHODS:
        raise ValueError(
            f"compare: method must be None or one of {', '.join(METHODS)}; got {method!r}."
        )
    caller = f"compare: method={method!r}"
    seed = count("compare: rng", rng, 0)
    if num_repeats is None:
        num_repeats = REPEATS[method]
    least = 1 + (method == "bootstrap")  # samples that have a variance
    repeats = count("compare: num_repeats", num_repeats, least)
    plan = reference.plan
    for name, estimate in estimates.items():
        if estimate.joint or estimate._missing or np.ptp(estimate._weight) > 0:
            raise ValueError(
                f"{caller} needs a loss of every held-out unit and units of equal weight; {name!r} has not."
            )
    if method == "corrected":
        errors = {}
        for name, difference in differences.items():
            losses = estimates[name].losses - estimates[best].losses
            num_groups = independent(difference, reference._weight, plan).units
            error = corrected("compare", losses, reference._weight, plan)
            errors[name] = DifferenceError(*error).judged("", num_groups)
        return errors
    label = independent_groups(caller, reference, [*differences.values()])
    num_groups = int(label.max()) + 1
    num_folds = usual_folds(plan, num_groups)

    def by_refits(refits: Plan) -> NamedArrays:
        """Compute differences by the refits of a plan."""
        losses = {
            name: refit_again(caller, repr(name), estimates[name], refits)
            for name in (best, *differences)
        }
        return {name: losses[name] - losses[best] for name in differences}

    if method == "nested":
        folds = random_folds(label, max(num_folds, MIN_FOLDS), repeats, seed)
        single = folds.leave_folds()
        pairs = folds.leave_pairs()
        outer = by_refits(single)
        inner = by_refits(pairs)
        errors = {}
        for name in differences:
            nested = error_of_nested(folds, single, pairs, outer[name], inner[name])
            errors[name] = DifferenceError(nested.value, instability=nested.instability)
    else:
        if method == "bootstrap":
            counts = draw_counts(label, repeats, np.random.default_rng(seed))
            counts = np.repeat(counts, SPLITS, axis=0)
            folds = random_folds(label, num_folds, len(counts), seed)
            spread = _spread_of_samples
        else:
            # folds of the plan's size, half of them in each half
            K = max(num_folds // 2, 2)
            fold = np.repeat(random_folds(label, 2 * K, repeats, seed).fold, 2, axis=0)
            half = np.tile([0, 1], repeats)[:, None]
            counts = (fold // K == half).astype(float)
            folds = RandomFolds(fold % K, label, K)
            spread = _spread_of_halves
        refits = bootstrap_folds(folds, counts)
        row = refits.refit // folds.num_folds
        mass = refits.held * counts[row, refits.index]
        total = np.bincount(row, mass)
        errors = {
            name: DifferenceError(
                spread(np.bincount(row, mass * np.where(refits.held, values, 0.0)) / total, plan)
            )
            for name, values in by_refits(refits).items()
        }
    doubt = NARROW.get(method, "")
    return {name: error.judged(doubt, num_groups) for name, error in errors.items()}


def _spread_of_samples(means: Float[np.ndarray, " samples_splits"], plan: Plan) -> float:
    """Compute the SD of a mean over the partitions of a plan by a random-effects fit of bootstrap
    samples.
    """
    partitions = plan.held.sum() / plan.num_units
    of_sample = means.reshape(-1, SPLITS)
    within = of_sample.var(1, ddof=1).mean()
    between = of_sample.mean(1).var(ddof=1) - within / SPLITS
    return float((max(between, 0.0) + within / partitions) ** 0.5)


def _spread_of_halves(means: Float[np.ndarray, " halves"], plan: Plan) -> float:
    """Compute the root of half the mean square of the differences of both halves."""
    # it is of means over any folds
    first, second = means.reshape(-1, 2).T
    return float(np.mean((first - second) ** 2 / 2) ** 0.5)
