"""Labelled samples: rates with intervals, or the probability of a match as a function of a
score.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.random import Generator
from numpy.typing import NDArray

from ...developer import FloatArray, TwoNumbers, codes, flags, numbers, pandas_of, record
from ._blocks import components
from ._tables import PairNumbers, PairTable, ends, frame_of

METHODS = "sigmoid", "isotonic"
SCORES = "score", "match_weight", "match_probability", "probability"
TAILS = 0.025, 0.975
Labels = Float[np.ndarray, " labelled"]


class Rate(NamedTuple):
    """Rate, with the number of independent labels of the same accuracy (infinity if it is exact).

    Its distribution is Jeffreys': Beta(r n + ½, (1 − r) n + ½).
    """

    estimate: float
    num_labelled: float = np.inf

    def interval(self) -> TwoNumbers:
        """Interval at 0.95; NaN for a rate that was given without one."""
        from scipy.stats import beta

        if not np.isfinite(self.num_labelled):
            return np.nan, np.nan
        low, high = beta.ppf(TAILS, *self._law())
        if self.estimate == 0:
            low = 0.0
        if self.estimate == 1:
            high = 1.0
        return float(low), float(high)

    @property
    def error(self) -> float:
        """Standard deviation of that distribution."""
        a, b = self._law()
        if np.isfinite(self.num_labelled):
            return float(np.sqrt(a * b / (a + b + 1)) / (a + b))
        return 0.0

    def draw(self, num: int, rng: Generator) -> Float[np.ndarray, " num"]:
        if np.isfinite(self.num_labelled):
            return rng.beta(*self._law(), num)
        return np.full(num, self.estimate)

    def _law(self) -> TwoNumbers:
        a = self.estimate * self.num_labelled + 0.5
        return a, (1 - self.estimate) * self.num_labelled + 0.5


def read_rate(caller: str, name: str, value, num_labels: float | None) -> Rate:
    """Read a rate: a number, a number with its count of labelled pairs, or (estimate, low, high)
    at 0.95.
    """
    from scipy.optimize import brentq

    parts = np.atleast_1d(np.asarray(value))
    if parts.dtype.kind not in "iuf":
        raise TypeError(
            f"{caller}: {name} must be a number in (0, 1], or (estimate, low, high); got {value!r}."
        )
    parts = parts.astype(float)
    rising = len(parts) == 1 or (
        len(parts) == 3 and parts[1] <= parts[0] <= parts[2] and parts[1] < parts[2]
    )
    if parts.ndim != 1 or not rising or not np.all((parts >= 0) & (parts <= 1)) or parts[0] == 0:
        raise ValueError(
            f"{caller}: {name} must lie in (0, 1], or be (estimate, low, high) around it; got {value}."
        )
    if num_labels is not None and not num_labels > 0:
        raise ValueError(
            f"{caller}: labelled must be how many labelled pairs {name} rests on; got {num_labels}."
        )
    estimate = float(parts[0])
    if len(parts) == 1:
        return Rate(estimate, np.inf if num_labels is None else float(num_labels))

    def width(log: float) -> float:
        """Return the width of the interval beyond the given one."""
        return np.diff(Rate(estimate, float(np.exp(log))).interval())[0] - (parts[2] - parts[1])

    if width(-7.0) < 0 or width(25.0) > 0:
        raise ValueError(
            f"{caller}: no number of labelled pairs gives {name} the interval {parts[1]:g} to {parts[2]:g}."
        )
    return Rate(estimate, float(np.exp(brentq(width, -7.0, 25.0))))


def _ratio(caller: str, name: str, kind: str, parts: FloatArray, totals: FloatArray) -> Rate:
    """Compute Σ part / Σ whole over independent observations.

    Its labels are r (1 − r) over the linearised variance.
    """
    total = totals.sum()
    if not total > 0:
        raise ValueError(
            f"{caller}: the sample has no {kind} pair, so that it says nothing of the {name}."
        )
    estimate = min(float(parts.sum() / total), 1.0)
    num_observed = np.sum(totals > 0)
    variance = (
        np.sum((parts - estimate * totals) ** 2)
        / total**2
        * num_observed
        / max(num_observed - 1, 1)
    )
    if variance > 0:
        return Rate(estimate, float(estimate * (1 - estimate) / variance))
    return Rate(estimate, float(total**2 / np.sum(totals**2)))  # Kish's number


@record
class PairCalibration:
    """Probability of a match as a function of the score: Platt's sigmoid, or an isotonic step
    function, from labelled pairs.

    Platt's targets are (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2). The steps keep ½/(N + 1) away from 0 and
    1, so that few labels make no pair certain.
    """

    score: Labels
    match: Labels
    weight: Labels
    method: str

    @classmethod
    def from_labels(
        cls, caller: str, score: NDArray, match, weight: FloatArray, method: str
    ) -> "PairCalibration":
        if method not in METHODS:
            raise ValueError(
                f"{caller}: method must be one of {', '.join(METHODS)}; got {method!r}."
            )
        matches = flags(caller, "match", match).astype(float)
        if matches.min(initial=1) == matches.max(initial=0):
            raise ValueError(
                f"{caller}: the labelled pairs all match, or none does; a calibration needs both."
            )
        mean = [np.average(score[matches == k], weights=weight[matches == k]) for k in (0, 1)]
        if mean[1] <= mean[0]:
            raise ValueError(
                f"{caller}: labelled matches have the lower score, {mean[1]:g} on average against {mean[0]:g}; give a score "
                "that is higher where a match is more likely."
            )
        return cls(np.asarray(score, float), matches, weight, method)

    def __call__(self, score: FloatArray, rng: Generator | None = None) -> PairNumbers:
        """Compute the probabilities; with `rng`, from labels drawn anew with replacement."""
        count = len(self.score)
        if rng is None:
            rows = np.arange(count)
        else:
            rows = rng.integers(0, count, count)
        labelled_score = self.score[rows]
        match = self.match[rows]
        weight = self.weight[rows]
        if self.method == "isotonic":
            from sklearn.isotonic import IsotonicRegression

            edge = 0.5 / (count + 1)
            steps = IsotonicRegression(y_min=edge, y_max=1 - edge, out_of_bounds="clip")
            return steps.fit(labelled_score, match, sample_weight=weight).predict(score)
        from sklearn.linear_model import LogisticRegression

        ones = match.sum()
        soft = np.where(match == 1, (ones + 1) / (ones + 2), 1 / (count - ones + 2))
        middle = np.mean(self.score)
        scale = np.std(self.score) or 1.0
        model = LogisticRegression(C=1e12, tol=1e-8, max_iter=1000)
        labels = np.repeat([1.0, 0.0], count)
        shares = np.r_[weight * soft, weight * (1 - soft)]
        model.fit(
            (np.tile(labelled_score, 2)[:, None] - middle) / scale, labels, sample_weight=shares
        )
        return model.predict_proba((score[:, None] - middle) / scale)[:, 1]

    def farthest_distance(self, caller: str, lowest: float) -> float:
        """Return the farthest distance, minus its score, at which the probability is at least so
        high.

        Raises ValueError if it stays higher within twice the labelled distances.
        """
        distances = np.linspace(0.0, -2 * self.score.min(), 2001)
        above = self(-distances) >= lowest
        if above.all() or not above.any():
            side = "above" if above.all() else "below"
            raise ValueError(
                f"{caller}: by the labelled pairs the probability of a match is {side} {lowest} at every distance; label pairs "
                "over the whole range, near ones and far ones."
            )
        return float(distances[np.flatnonzero(above)[-1]])


def weights(caller: str, frame: pd.DataFrame, name: str | None) -> Labels:
    """Return design weights with mean one."""
    if name is None and "weight" not in frame.columns:
        return np.ones(len(frame))
    weight = numbers(caller, "sample", column(caller, frame, name or "weight")).astype(float)
    if not (np.all(np.isfinite(weight) & (weight >= 0)) and weight.sum() > 0):
        raise ValueError(f"{caller}: weights must be numbers from 0, not all of them 0.")
    return weight / weight.mean()


def column(caller: str, frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in frame.columns:
        raise ValueError(
            f"{caller}: the sample has no column {name!r}; it has {', '.join(map(str, frame.columns))}."
        )
    if pd.isna(frame[name]).any():
        raise ValueError(
            f"{caller}: column {name!r} of the sample has missing values; drop those rows."
        )
    return frame[name]


class ScoredPairs(NamedTuple):
    """All pairs with their scores, and the calibration by the labelled ones."""

    rows: int
    pairs: PairTable
    calibration: PairCalibration


def calibrate(
    caller: str,
    frame: pd.DataFrame,
    weight: FloatArray,
    pairs,
    ids,
    score: str | None,
    method: str,
) -> ScoredPairs:
    """Calibrate the scores of all pairs.

    Labelled pairs have their own score, or take it from the table.
    """
    table = frame_of(caller, pairs)
    if not len(table):
        raise ValueError(
            f"{caller}: the table of all pairs is empty: there is nothing to calibrate. Give the scored pairs."
        )
    left, right, rows = ends(caller, table, ids)
    name = (
        score
        or next((usual for usual in SCORES if usual in table.columns), None)
        or table.columns[-1]
    )
    scored = PairTable(
        left, right, numbers(caller, "pairs", column(caller, table, name)).astype(float)
    ).once(caller)
    if name in frame.columns:
        sample_scores = numbers(caller, "sample", column(caller, frame, name)).astype(float)
    else:
        sample_left, sample_right, _ = ends(caller, frame, rows if ids is None else ids)
        key = np.minimum(sample_left, sample_right) * rows + np.maximum(sample_left, sample_right)
        place = pd.Index(scored.left * rows + scored.right).get_indexer(key)
        if (place < 0).any():
            k = np.flatnonzero(place < 0)[0]
            raise ValueError(
                f"{caller}: the labelled pair of rows {sample_left[k]} and {sample_right[k]} is not among the pairs; "
                f"give the scores of labelled pairs as a column {name!r} of the sample."
            )
        sample_scores = scored.probability[place]
    table_scores = scored.probability
    # log-odds, for a sigmoid
    if all(
        not len(scores) or (scores.min() >= 0 and scores.max() <= 1)
        for scores in (sample_scores, table_scores)
    ):
        # distance from 0 and 1 at which the log-odds of a probability are bounded
        logit_bound = 1e-9
        inside = (
            np.clip(scores, logit_bound, 1 - logit_bound)
            for scores in (sample_scores, table_scores)
        )
        sample_scores, table_scores = (np.log(scores) - np.log1p(-scores) for scores in inside)
    calibration = PairCalibration.from_labels(
        caller, sample_scores, column(caller, frame, "match"), weight, method
    )
    return ScoredPairs(rows, scored._replace(probability=table_scores), calibration)


def sampled_rates(
    caller: str, frame: pd.DataFrame, weight: FloatArray, ids, groups
) -> tuple[Rate, Rate]:
    """Estimate precision and recall from labelled records, or from labelled pairs with known links.

    The rates of records are over the pairs that are both in the sample. Records tied together by
    clusters and entities count as one observation.
    """
    if "entity" in frame.columns:
        cluster, entity = (
            codes(caller, name, column(caller, frame, name))[0] for name in ("cluster", "entity")
        )
        count = int(cluster.max()) + 1
        tied = components(count + int(entity.max()) + 1, cluster, entity + count)[cluster]
        sums = []
        for part in (
            np.unique(cluster * (int(entity.max()) + 1) + entity, return_inverse=True)[1],
            cluster,
            entity,
        ):
            # Σ w_i w_j of the pairs inside parts
            pairs = (np.bincount(part, weight) ** 2 - np.bincount(part, weight**2)) / 2
            first = np.unique(part, return_index=True)[1]
            sums.append(np.bincount(tied[first], np.maximum(pairs, 0.0), int(tied.max()) + 1))
        correct, linked, match = (np.asarray(part, float) for part in sums)
    else:
        matches = column(caller, frame, "match")
        if "linked" in frame.columns:
            joined = column(caller, frame, "linked")
        elif groups is None:
            raise ValueError(
                f"{caller}: the sample needs a column 'linked', or give groups=, the clusters of all rows as filed; with "
                "pairs= the labels calibrate a score instead."
            )
        else:
            filed = codes(caller, "groups", groups)[0]
            left, right, _ = ends(caller, frame, len(filed) if ids is None else ids)
            joined = filed[left] == filed[right]
        linked, match = (
            weight * flags(caller, name, value)
            for name, value in (("linked", joined), ("match", matches))
        )
        correct = linked * (match > 0)
    return _ratio(caller, "precision", "linked", correct, linked), _ratio(
        caller, "recall", "matching", correct, match
    )


def sample_of(caller: str, sample) -> pd.DataFrame:
    frame = pandas_of(caller, "sample", sample)
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(
            f"{caller}: sample must be a frame, a row for each labelled pair or record; got {type(sample).__name__}."
        )
    if not len(frame):
        raise ValueError(f"{caller}: the sample is empty.")
    return frame
