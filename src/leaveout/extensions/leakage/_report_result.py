"""The report: answers side by side, their differences, the recommended one, and what remains
unknown.

It also estimates the number of mates that are missing from the list of pairs. If most listed mates
are nearest neighbours of one another in X, a tested row with an unlisted training row as near as
three quarters of the listed mates may be a duplicate too. What is expected by chance is subtracted:
if a row's next neighbour is at r and rows have d dimensions, the nearest is within l with
probability (l/r)^d; and of listed pairs that are as near only some are mates.
"""

import itertools
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from ...developer import (
    BoolArray,
    IntArray,
    Lines,
    NamedValues,
    PagedResult,
    PerRow,
    Texts,
    provided,
    record,
)
from ._comparison import ComparableMean, ComparableResult
from ._hosts import finite_columns
from ._study import Answer, LeakageStudy, Partitions, half_width
from ._variance import InfluenceSpread, Variance, as_trained, over_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# share of unlisted mates that changes a correction by less than its interval
HARMLESS_UNLISTED_SHARE = 0.1
ORDER = "both", "purge", "coarser", "extrapolated", "imputed"  # order of recommendation
SPACING_NEIGHBOURS = 3  # nearest training rows by which the spacing of rows is judged


class NearMates(NamedTuple):
    """Estimate of unlisted mates from a sample of tested rows.

    `num_listed` of the rows have listed mates, and `num_unlisted` seem to have unlisted ones;
    `rows` and `neighbours` are pairs of these with training rows, the nearest first.
    """

    num_listed: int
    num_unlisted: float
    rows: IntArray
    neighbours: IntArray

    @property
    def share(self) -> float:
        """The share of the rows with mates whose mates are unlisted."""
        return self.num_unlisted / max(self.num_unlisted + self.num_listed, 1e-300)


def estimate_unlisted(X, study: LeakageStudy, mates: pd.DataFrame) -> NearMates | None:
    """Estimate how many tested rows have unlisted mates in training, by near neighbours.

    Returns None if X has no plain numbers, few pairs are listed, or links are not of
    near-duplicates. `mates` has `place` and `mate_place`, the likeliest listed mate in training.
    """
    from sklearn.neighbors import NearestNeighbors

    data = finite_columns(X)
    sure = mates[mates.probability >= 0.5]
    min_listed_pairs = 5  # least number of listed pairs that shows how near mates are
    if data is None or len(sure) < min_listed_pairs:
        return None
    spread = data.std(0)
    data = (data - data.mean(0)) / np.where(spread > 0, spread, 1.0)  # columns on one scale
    rng = np.random.default_rng([study.seed, 7])
    link = study.linkage
    count = len(data)
    listed_pairs = link.left * count + link.right
    mate = dict(zip(sure.place, sure.mate_place, strict=True))
    sizes = []
    neighbours = []
    rows = []
    spacing = []
    # 2000: rows whose neighbours are searched
    sample = max(2000 // len(study.folds), 1)
    for fold, exposed in zip(study.folds, study.mates, strict=True):
        tested = fold.test
        if len(tested) > sample:
            tested = rng.choice(fold.test, sample, replace=False)
        exposure = dict(zip(fold.test, exposed, strict=True))
        search = NearestNeighbors(n_neighbors=min(SPACING_NEIGHBOURS, len(fold.train))).fit(
            data[fold.train]
        )
        for row, distances, nearest_rows in zip(
            tested, *search.kneighbors(data[tested]), strict=True
        ):
            nearest_rows = fold.train[nearest_rows]
            if row in mate:
                sizes.append((np.linalg.norm(data[row] - data[mate[row]]), distances[0]))
            elif exposure[row] == 0 and len(distances) == SPACING_NEIGHBOURS:
                # pairs that are listed as no mates are judged by the list
                unlisted = ~np.isin(
                    np.minimum(row, nearest_rows) * count + np.maximum(row, nearest_rows),
                    listed_pairs,
                )
                if unlisted[0]:
                    rows.append(row)
                    neighbours.append(nearest_rows[0])
                    spacing.append(distances)
    mate_distance, nearest = np.array(sizes).reshape(-1, 2).T
    # 0.5: least share of nearest neighbours among listed mates, if links are near-duplicates
    if (
        len(sizes) < min_listed_pairs
        or not rows
        or np.mean(mate_distance <= nearest * (1 + 1e-9) + 1e-12) < 0.5
    ):
        return None
    near_mates_share = 0.75  # share of listed mates that are as near
    limit = float(np.quantile(mate_distance, near_mates_share))
    distance = np.array(spacing)
    close = distance[:, 0] <= limit
    second, third = distance[:, 1:3].T
    # r₃/r₂ to the power 2 d is uniform; the nearest, which may be a copy, is not used. Rows of few
    # values are often equally far, and then distances tell little; nothing is between zero and the
    # least step
    spread_out = third > second
    ratio = np.log(third[spread_out] / np.maximum(second, 1e-12 * third)[spread_out])
    dimensions = 0.0
    if spread_out.any():
        dimensions = np.mean(spread_out) * min(1 / max(2 * np.mean(ratio), 1e-3), data.shape[1])
    positive = distance[distance > 0]
    copy_distance = limit
    if limit == 0 and len(positive):
        copy_distance = positive.min()
    chance = (
        np.where(second > copy_distance, copy_distance / np.maximum(second, 1e-300), 1.0)
        ** dimensions
    )
    by_chance = float(chance.sum())
    pair_distance = np.linalg.norm(data[link.left] - data[link.right], axis=1)
    mates_share = 1.0
    if np.any(pair_distance <= limit):
        mates_share = float(np.mean(link.probability[pair_distance <= limit]))
    # 3: standard deviations of a Poisson number, so that few neighbours by chance are no reason
    excess = close.sum() - by_chance
    missing = 0.0
    if excess > 3 * np.sqrt(by_chance + 1):
        missing = min(excess, close.sum() * mates_share)
    first = np.flatnonzero(close)[np.argsort(chance[close], kind="stable")]
    return NearMates(
        len(sizes), missing / near_mates_share, np.array(rows)[first], np.array(neighbours)[first]
    )


@record
class LeakageReport(PagedResult, ComparableResult):
    """Answers to the question of the score on new clusters, by name, including "naive".

    `lo.leakage.leakage_report` returns it. `table` has the answers side by side; `recommended`
    names the one to believe, or is None; `verdict` gives the reason, and what remains unknown.
    `curves` has every cut that was tried, and `rows` the tested rows that carry the inflation.

    Attributes
    ----------
    answers : dict of str to Answer
        The answers by name.
    scoring : str
        The name of the score.
    more_is_better : bool
        Whether a larger score is better.
    level : float
        The coverage of the intervals.
    learner : str
        How the fits were made.
    fits : int
        The number of fits.
    price : DataFrame
        The least `fits` and `seconds` that answers not asked for would take.

    See Also
    --------
    leakage_report : Make it.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = X[:, 0] + rng.normal(size=60)
    >>> linkage = lo.leakage.Linkage.from_pairs([(2 * k, 2 * k + 1, 0.6) for k in range(30)], 60)
    >>> report = lo.leakage.leakage_report(
    ...     Ridge(), X, y, linkage=linkage, groups=np.arange(60), scoring="mse", answers=()
    ... )
    >>> "score" in report.table
    True
    """

    _page_module: ClassVar[str] = "leakage_page"
    answers: dict[str, Answer]
    scoring: str
    more_is_better: bool
    level: float
    learner: str
    fits: int
    clusters: Partitions
    tested: BoolArray
    links: str
    pairs: int  # number of listed pairs, across folds or not
    candidates: pd.DataFrame
    names: pd.Index
    near_mates: NearMates | None
    facts: Texts
    arguments: str  # arguments of the call
    price: pd.DataFrame
    chosen: str | None = None

    def over_clusters(self, influence: PerRow) -> Variance:
        """Compute the variance over clusters, as tested, of a number with these influences.

        Parameters
        ----------
        influence : ndarray, `[rows]`
            The influences.

        Returns
        -------
        Variance
            The variance and its degrees of freedom.
        """
        return over_units(influence[self.tested], self.clusters[:, self.tested])

    @cached_property
    def table(self) -> pd.DataFrame:
        """The answers as a table, one row each.

        Its columns are `score` with its interval `low`, `high`; `correction`, the difference from
        the naive score, with an interval of its own, paired over clusters; the errors of the score,
        `se_data` over clusters, `se_mc` over draws and `se_links` for uncertain links; `exposed`,
        the expected share of tested records that have a mate in training; `assumption`; and
        `refusal`, why there is no number.
        """
        rows = pd.DataFrame.from_dict(
            {name: self._row(answer) for name, answer in self.answers.items()}, orient="index"
        )
        return rows.astype(dict.fromkeys(COLUMNS, float))

    def _row(self, answer: Answer) -> NamedValues:
        texts = {"assumption": answer.assumption, "refusal": answer.refusal}
        if answer.refusal:
            return dict.fromkeys(COLUMNS, np.nan) | texts
        missing = Variance(np.nan, 1.0)
        data, change = (
            missing if influence is None else self.over_clusters(influence)
            for influence in (answer.influence, answer.change)
        )
        variance = data.value
        fold_effects = self.answers["naive"].fold_effects
        if fold_effects is not None:  # training clusters too
            variance += as_trained(fold_effects)
        further_variance = answer.monte_carlo + answer.between
        score_half = np.nan
        if variance > 0:
            score_half = half_width(variance + further_variance, data.freedom, self.level)
        change_half = half_width(change.value + further_variance, change.freedom, self.level)
        values = (
            answer.score,
            answer.score - score_half,
            answer.score + score_half,
            answer.correction,
            answer.correction - change_half,
            answer.correction + change_half,
            variance**0.5,
            answer.monte_carlo**0.5,
            answer.between**0.5,
            answer.exposed,
        )
        return dict(zip(COLUMNS, values, strict=True)) | texts

    @property
    def doubt(self) -> str:
        """The reason why no answer is to be believed although there are some, or ""."""
        if self.near_mates is None or self.near_mates.share <= HARMLESS_UNLISTED_SHARE:
            return ""
        pairs = zip(
            self.names[self.near_mates.rows[:3]],
            self.names[self.near_mates.neighbours[:3]],
            strict=True,
        )
        examples = ", ".join(f"{row} with {neighbour}" for row, neighbour in pairs)
        return (
            f"about {self.near_mates.share:.0%} of the tested records with a near-duplicate in training are not listed with it, as "
            f"it seems, such as {examples}: the list is not complete (lo.leakage.Linkage.from_embeddings finds such pairs). If "
            "these are no mates, say listed=1.0, list them with probability 0, or take report.by(answer)"
        )

    @cached_property
    def recommended(self) -> str | None:
        """The recommended answer: `chosen`, if the caller chose one.

        None if none is to be believed.
        """
        if self.chosen is not None:
            return self.chosen
        if self.doubt:
            return None
        if self.answers["naive"].exposed == 0:
            return "naive"
        return next((name for name in ORDER if not self.answers[name].refusal), None)

    def by(self, answer: str) -> "LeakageReport":
        """Return a copy that recommends another answer, as in `lo.compare({"a": a.by("purge"), "b":
        b.by("purge")})`.

        Parameters
        ----------
        answer : str
            The name of the answer.

        Returns
        -------
        LeakageReport
            The copy.

        Raises
        ------
        ValueError
            If there is no such answer, or it was refused.
        """
        if answer not in self.answers or self.answers[answer].refusal:
            available = ", ".join(
                name for name, candidate in self.answers.items() if not candidate.refusal
            )
            raise ValueError(
                f"by: no answer is called {answer!r}, or it was refused; there are {available}."
            )
        return replace(self, chosen=answer)

    def as_comparable(self) -> ComparableMean:
        """Return the number for `lo.compare`: the recommended answer.

        The other reports are of other learners on the same folds and links.

        Returns
        -------
        Compared
            The answer and its influence.
        """
        if self.recommended is None:
            raise ValueError(f"compare: this report has {self.verdict} See report.by(answer).")
        answer = self.answers[self.recommended]
        if answer.influence is None:
            raise ValueError(f"compare: {answer.name} has no influences; see report.by(answer).")
        facts = self.facts | {"answer (see report.by)": answer.name}
        spread = InfluenceSpread(
            answer.influence, self.clusters, fold_effects=self.answers["naive"].fold_effects
        )
        return ComparableMean(answer.score, self.more_is_better, spread, None, None, facts)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """The differences between every two answers: `difference`, its `se` (paired over clusters),
        and `apart`.

        The latter marks differences beyond twice their standard error.
        """
        available = [
            answer
            for answer in self.answers.values()
            if not answer.refusal and answer.change is not None
        ]
        rows = []
        disagreement = 2.0  # standard errors of their difference beyond which answers disagree
        for first, second in itertools.combinations(available, 2):
            assert first.change is not None and second.change is not None
            noise = first.monte_carlo + first.between + second.monte_carlo + second.between
            se = (self.over_clusters(first.change - second.change).value + noise) ** 0.5
            difference = first.score - second.score
            apart = abs(difference) > disagreement * se
            rows.append((first.name, second.name, difference, se, apart))
        return pd.DataFrame(rows, columns=["first", "second", "difference", "se", "apart"])

    @property
    def verdict(self) -> str:
        """The answer to believe, as sentences, with the answers that differ from it and its
        assumption.
        """
        if self.recommended is None:
            refusals = (
                f"{name}: {self.answers[name].refusal}"
                for name in ORDER
                if name not in self.price.index
            )
            reason = self.doubt or "; ".join(refusals) or "none was asked for"
            return f"no answer: {reason}."
        if self.recommended == "naive":
            if not self.pairs:
                return "nothing to correct: the table of pairs is empty; if there are no mates at all, the naive score stands."
            return "nothing to correct: no listed pair stands across a fold; if all are listed, the naive score stands."
        row = self.table.loc[self.recommended]
        answer = self.answers[self.recommended]
        disagreements = self.differences[self.differences.apart]
        if self.recommended == "both":  # the answers that it is the mean of
            parts = "purge", "coarser"
            scores = " and ".join(f"{self.table.score[name]:.4g} ({name})" for name in parts)
            parted = (disagreements["first"] == parts[0]) & (disagreements["second"] == parts[1])
            agreement = "The two that it is the mean of agree."
            if parted.any():
                agreement = f"The two that it is the mean of part: {scores}."
        else:
            rivals = [
                name
                for pair in zip(disagreements["first"], disagreements["second"], strict=True)
                if self.recommended in pair
                for name in pair
                if name not in (self.recommended, "naive")
            ]
            agreement = "No other answer parts from it."
            if rivals:
                agreement = f"{', '.join(rivals)} part{'s' * (len(rivals) == 1)} from it."
        clear = row.correction_low * row.correction_high > 0
        bias = f"the naive score is off by {-row.correction:.3g} ({-row.correction_high:.3g} to {-row.correction_low:.3g})"
        bias += "" if clear else ", which may be nothing"
        return f"believe {self.recommended}: {bias}. {agreement} It takes for granted: {answer.assumption}."

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Tested rows that may have mates in training, by their contribution to the correction.

        `mate` is the likeliest, with its `probability`; `exposed` the probability that some mate is
        in training; `carries` the row's part of the correction (all rows' sum to it).
        """
        frame = self.candidates.copy()
        for name in filter(None, ("purge", self.recommended)):
            answer = self.answers[name]
            if answer.change is not None:
                carries = answer.change + answer.correction / self.tested.sum()
                frame["carries"] = carries[frame.pop("place").to_numpy()]
                return frame.reindex(
                    frame.carries.abs().sort_values(ascending=False, kind="stable").index
                )
        return frame.assign(carries=np.nan)

    @property
    def curves(self) -> dict[str, pd.DataFrame]:
        """The results of every cut, by answer.

        `cut`, `exposed`, `removed`, `difference`, `correction`, `se`.
        """
        return {
            name: answer.curve for name, answer in self.answers.items() if answer.curve is not None
        }

    def _facts(self) -> Lines:
        better = "less is better"
        if self.more_is_better:
            better = "more is better"
        lines = [
            ("learner", f"{self.learner}; {self.fits} fits; score {self.scoring}, {better}"),
            ("links", self.links),
        ]
        lines += [(name, self._describe(name)) for name in self.answers]
        if len(self.price):
            costs = (
                ", ".join(
                    f"{name} {fits:,}"
                    for name, fits in self.price.fits[self.price.fits > 0].items()
                )
                or "none"
            )
            lines.append(
                (
                    "price",
                    f"fits of what was not asked for: {costs}; about {self.price.seconds.sum():.2g} s or more",
                )
            )
        return [*lines, ("recommended", str(self.recommended)), ("verdict", self.verdict)]

    def _describe(self, name: str) -> str:
        row = self.table.loc[name]
        if row.refusal:
            return f"none: {row.refusal}"
        errors = f"± {row.se_data:.2g} (data)"
        if row.se_mc > 0:
            errors += f" ± {row.se_mc:.2g} (Monte Carlo)"
        exposed = ""
        if np.isfinite(row.exposed):
            exposed = f"; {row.exposed:.2g} exposed"
        between = "no interval: all tested records score alike"
        if np.isfinite(row.low):
            between = f"{row.low:.5g} to {row.high:.5g} {errors}"
        score = f"{row.score:.5g}, {between}{exposed}"
        if name == "naive":
            return f"{score}; {row.assumption}"
        correction = f"correction {row.correction:.3g} ({row.correction_low:.3g} to {row.correction_high:.3g})"
        return f"{score}; {correction}; if {row.assumption}"

    def report(self, path: str | os.PathLike, *, title: str = "") -> Path:
        """Write the report to one self-contained page, as `lo.report` does. Needs
        `leaveout[report]`.

        Parameters
        ----------
        path : path
            The file to write; its name ends in .html.
        title : str, optional
            The title of the page.

        Returns
        -------
        Path
            The file that was written.
        """
        return provided("report").report(self, path, title=title)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the answers with their intervals, beside the results of every cut. Needs matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            The axes to draw on; new ones by default.

        Returns
        -------
        Axes
            The axes.
        """
        return provided("plot").leakage_report(self, ax)


COLUMNS = (
    "score",
    "low",
    "high",
    "correction",
    "correction_low",
    "correction_high",
    "se_data",
    "se_mc",
    "se_links",
    "exposed",
)
