"""Comparison of results of leakage: numbers of the same folds, by their influences."""

import abc
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...developer import AbstractComparable, NamedValues, NumpyArray, Texts, probability_of_worse
from ...validation import Comparison
from ._variance import InfluenceSpread


class ComparableMean(NamedTuple):
    """A number to be compared with others of the same data.

    `spread` is the influence of the data on it (None if not known). `drawn` `[folds, draws]` are
    its values over Monte-Carlo draws that are common to all, weighted by `weight` `[folds]`.
    `conditions` names what must be the same in all.
    """

    value: float
    more_is_better: bool
    spread: InfluenceSpread | None
    draws: Float[NumpyArray, "folds draws"] | None
    weight: Float[NumpyArray, " folds"] | None
    conditions: Texts


class ComparableResult(AbstractComparable):
    """A result of leakage, which `lo.compare` compares with others by one number."""

    @abc.abstractmethod
    def as_comparable(self) -> ComparableMean:
        """Return the number to compare; ValueError if there is none."""

    @staticmethod
    def _compare(results: NamedValues) -> Comparison:
        """Compare numbers by their influences."""
        if any(not isinstance(result, ComparableResult) for result in results.values()):
            kinds = ", ".join(
                f"{name!r}: {type(result).__name__}" for name, result in results.items()
            )
            raise TypeError(
                f"compare: give results of one kind, all of leakage_corrected or all of cross_validate; got {kinds}."
            )
        if len(results) < 2:
            raise ValueError(
                f"compare: give two or more results, {{name: result}}; got {len(results)}."
            )
        numbers = {name: result.as_comparable() for name, result in results.items()}
        first, reference = next(iter(numbers.items()))
        for name, number in numbers.items():
            differing = [
                condition
                for condition in reference.conditions | number.conditions
                if reference.conditions.get(condition) != number.conditions.get(condition)
            ]
            if differing:
                raise ValueError(
                    f"compare: {first!r} and {name!r} are of another {', '.join(differing)}; give both calls the same."
                )
        sign = -1.0 if reference.more_is_better else 1.0
        best = min(numbers, key=lambda name: sign * numbers[name].value)
        rows = {name: _table_row(number, numbers[best]) for name, number in numbers.items()}
        table = pd.DataFrame.from_dict(rows, orient="index")
        comparison = Comparison(table.sort_values("mean", ascending=not reference.more_is_better))
        comparison.estimates = dict(results)
        return comparison


def _table_row(number: ComparableMean, best: ComparableMean) -> NamedValues:
    """Return the row of the table for one number."""
    difference = number.value - best.value
    se = se_difference = np.nan
    if number.spread is not None and best.spread is not None:
        se = number.spread.error
        se_difference = number.spread.minus(best.spread).error
    error = 0.0  # the Monte-Carlo error of the difference, over the draws that both share
    if number.draws is not None and best.draws is not None and number.weight is not None:
        count = min(number.draws.shape[1], best.draws.shape[1])
        variance = np.var(number.draws[:, :count] - best.draws[:, :count], 1, ddof=1) / count
        error = float(np.sqrt(number.weight**2 @ variance))
    towards = -1.0 if number.more_is_better else 1.0
    if number is best:
        worse = 0.5
    else:
        worse = probability_of_worse(towards * difference, float(np.hypot(se_difference, error)))
    return {
        "mean": number.value,
        "se": se,
        "difference": difference,
        "se_difference": se_difference,
        "p_worse": worse,
        "approximation_error": error,
        "kind": "over clusters, as tested and trained on",
    }
