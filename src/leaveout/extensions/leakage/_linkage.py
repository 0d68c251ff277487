"""Links between records: pairs with the probability that they match, or rates.

All results are means over draws of whole partitions of the records (`_partitions`): whether a
tested record has a mate among the training records, how many clusters are split or merged, and
precision and recall.
"""

from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.random import default_rng
from numpy.typing import ArrayLike, NDArray

from ...developer import (
    Indices,
    Lines,
    NamedValues,
    NumpyArray,
    PrintedResult,
    Rng,
    RowFlags,
    ThreeNumbers,
    TwoCounts,
    TwoNumbers,
    codes,
    conventional,
    count,
    record,
    share,
)
from ._binomial import check_probabilities
from ._mislinking import Folds, Shares, UniformMislinking, uniform_mislinking
from ._neighbours import distances, near_pairs, points, read_threshold
from ._pair_calibration import (
    TAILS,
    PairCalibration,
    Rate,
    calibrate,
    column,
    read_rate,
    sample_of,
    sampled_rates,
    weights,
)
from ._partitions import components, draw_partitions, share_listed
from ._tables import PairIndices, PairNumbers, ends, read_pairs, read_two_sided

LINK_PROBABILITY = 0.5  # default probability from which a pair is linked
# partitions behind every number; least number, if records and pairs in all exceed the last
NUM_PARTITIONS = 100
MIN_PARTITIONS = 20
MAX_LISTED_ENTRIES = 1_000_000
TABLES = 10  # number of redrawn calibrations over which partitions are distributed
RowLabels = Int[NumpyArray, " rows"]


@record
class Linkage(PrintedResult):
    """The knowledge of which records are of one entity: pairs with the probability that they match,
    or rates.

    `from_pairs`, `from_labelled`, `from_rates`, `from_embeddings` and `from_duplicates` make it. It
    is a leakage model: `leakage_corrected(leakage=linkage)` takes it.

    Every result is a mean over draws of whole partitions of the records. A partition has clusters
    that are connected by listed pairs, and weight exp Σ w over the listed pairs inside one cluster,
    with w = log p/(1 − p) + (p − P(inside))/0.2. This lies between evidence that is independent
    from pair to pair and probabilities that are kept as they are. Two records that are in no other
    pair keep its probability exactly.

    An unlisted pair inside a cluster counts with probability `unlisted`, where one half is
    uninformative. By default it has odds 1 − ℓ, as its absence from a table that lists a share ℓ of
    the true pairs; ℓ is estimated in the clusters of pairs of probability 0.9 or more. If the
    probabilities come from labelled pairs, other labels are drawn for every tenth of the
    partitions. Otherwise the probabilities are taken as they are.

    Attributes
    ----------
    num_rows : int or None
        The number of rows; None if only rates are known.
    left, right : ndarray of int, `[pairs]`
        The rows of each pair, left < right, each pair once.
    probability : ndarray, `[pairs]`
        The probability that they match.
    unlisted : float or None
        The probability of an unlisted pair inside a cluster.
    grows, given, calibration, scores, found
        Whether there may be further rows, the rates that were given, the calibration of scores and
        the scores, and the share of near neighbours that are among the pairs.

    References
    ----------
    N. Bansal, A. Blum and S. Chawla, Correlation clustering, 2004. Partitions are drawn by sums
    over subsets in blocks of up to eight records, and in larger ones by cuts as of Swendsen and
    Wang (A. Barbu and S. C. Zhu, 2005).

    Examples
    --------
    >>> import leaveout as lo
    >>> linkage = lo.leakage.Linkage.from_pairs([(0, 1, 0.9), (2, 3, 0.2)], 5)
    >>> linkage.groups(0.5)
    array([0, 0, 1, 2, 3])
    >>> linkage.partitions(10).shape
    (10, 5)
    """

    num_rows: int | None
    left: PairIndices = field(default_factory=lambda: np.zeros(0, int))
    right: PairIndices = field(default_factory=lambda: np.zeros(0, int))
    probability: PairNumbers = field(default_factory=lambda: np.zeros(0))
    unlisted: float | None = None
    grows: bool = False  # whether there may be rows beyond the last that a pair names
    given: tuple[Rate, Rate] | None = None  # precision and recall
    calibration: PairCalibration | None = None
    scores: PairNumbers | None = None  # scores that the calibration maps to probabilities
    found: float = 1.0  # the share of near neighbours that are among the pairs
    mechanism = "record"

    def __post_init__(self) -> None:
        if self.unlisted is not None:
            share("Linkage: unlisted", self.unlisted)

    @staticmethod
    def from_pairs(
        pairs: Any,
        ids: Any = None,
        probability: str | None = None,
        *,
        unlisted: float | None = None,
    ) -> "Linkage":
        """Build a linkage from pairs of records and the probabilities that they match.

        Give the pairs inside the clusters as filed too: records that no chain of pairs connects are
        never of one entity.

        Parameters
        ----------
        pairs : table, Series, array or sequence
            A frame (pandas, Polars, Arrow) as Splink makes it, with `unique_id_l`, `unique_id_r`
            (else `left`, `right`, else its first two columns) and a column of probabilities. Or a
            Series or frame by a MultiIndex of pairs, as recordlinkage has; dedupe's `((id, id),
            score)`; rows or arrays of two names and a probability.
        ids : array_like, frame or int, optional
            The names of all rows: one a row, a frame whose index they are, or their number. Without
            them pairs name rows by number. They have two labels where the pairs have
            `source_dataset_l` and `source_dataset_r`.
        probability : str, optional
            The column of probabilities; by default `match_probability`, `probability`,
            `match_weight` (log₂ of the odds), or the third of three.
        unlisted : float, optional
            The probability of an unlisted pair inside a cluster; one half is uninformative. By
            default it is estimated from the table (`absent`).

        Returns
        -------
        Linkage
            The linkage.

        Raises
        ------
        ValueError
            If a name belongs to no row, a probability is outside [0, 1], or a pair has two
            different ones.

        Examples
        --------
        >>> import pandas as pd
        >>> import leaveout as lo
        >>> table = pd.DataFrame(
        ...     {"left": ["a", "b"], "right": ["b", "c"], "probability": [0.9, 0.3]}
        ... )
        >>> lo.leakage.Linkage.from_pairs(table, ["a", "b", "c"]).probability
        array([0.9, 0.3])
        """
        table, rows = read_pairs("Linkage.from_pairs", pairs, ids, probability)
        return Linkage(rows, *table, unlisted=unlisted, grows=ids is None)

    @staticmethod
    def from_duplicates(
        pairs: Any,
        ids: Any = None,
        *,
        sides: TwoCounts | None = None,
        probability: str | None = None,
    ) -> "Linkage":
        """Build a linkage from pairs of rows that are copies of one another.

        Parameters
        ----------
        pairs : table, Series, array or sequence
            Pairs of rows, in any form that `from_pairs` takes.
        ids : array_like, frame or int, optional
            The names of all rows, or their number.
        sides : (rows to train on, rows to test on), optional
            The numbers of rows of a split. Left then names a row of the training data and right one
            of the test data, each from 0, and the rows are numbered training data first.
        probability : str, optional
            The column of probabilities; without it the pairs are certain.

        Returns
        -------
        Linkage
            The linkage.

        Examples
        --------
        >>> import leaveout as lo
        >>> lo.leakage.Linkage.from_duplicates([(0, 3)], 4).groups()
        array([0, 1, 2, 0])
        """
        caller = "Linkage.from_duplicates"
        if sides is None:
            table, rows = read_pairs(caller, pairs, ids, probability, default=1.0)
            return Linkage(rows, *table, grows=ids is None)
        return Linkage(sum(sides), *read_two_sided(caller, pairs, sides, probability))

    @staticmethod
    def from_rates(
        precision: float | ThreeNumbers,
        recall: float | ThreeNumbers,
        *,
        labelled: float | TwoNumbers | None = None,
    ) -> "Linkage":
        """Build a linkage from the precision and recall of pairs alone, if records are mislinked
        one by one.

        See `RecordLeakage.from_pairwise` for the formula.

        Parameters
        ----------
        precision, recall : float or (estimate, low, high)
            The rates: a number, or an estimate with its interval at 0.95.
        labelled : float or (float, float), optional
            The numbers of linked pairs (for the precision) and of matching pairs (for the recall)
            on which the rates rest. Without it a number is exact.

        Returns
        -------
        Linkage
            The linkage.

        Raises
        ------
        ValueError
            If a rate is outside (0, 1].

        Examples
        --------
        >>> import leaveout as lo
        >>> lo.leakage.Linkage.from_rates(0.95, 0.9).rates["estimate"].tolist()
        [0.95, 0.9]
        """
        caller = "Linkage.from_rates"
        numbers = labelled if isinstance(labelled, tuple) else (labelled, labelled)
        rates = (
            read_rate(caller, "precision", precision, numbers[0]),
            read_rate(caller, "recall", recall, numbers[1]),
        )
        return Linkage(None, given=rates)

    @staticmethod
    def from_labelled(
        sample: Any,
        pairs: Any = None,
        ids: Any = None,
        *,
        score: str | None = None,
        groups: ArrayLike | None = None,
        weight: str | None = None,
        method: str = "sigmoid",
        unlisted: float | None = None,
    ) -> "Linkage":
        """Build a linkage from a sample whose truth is known, a frame with a row for each labelled
        pair, or record.

        Labelled pairs name two records (as in `from_pairs`) and have `match`, 0 or 1. With the
        table of all `pairs` they determine the probability of a match at each score. Without it
        they give precision and recall, of pairs that were linked. Labelled records have `cluster`,
        as filed, and `entity`, the truth; pairs of sampled records count, so sample whole clusters.

        Parameters
        ----------
        sample : table
            The labelled pairs or records. A column `linked`, 0 or 1, tells which pairs were linked.
        pairs : table, optional
            All pairs, with the column `score`.
        ids : array_like, frame or int, optional
            As in `from_pairs`.
        score : str, optional
            The column of scores, where higher must be likelier; by default `score`, `match_weight`,
            `match_probability`, `probability`, the first that is there, or the last column.
        groups : array_like, optional
            The clusters of all rows as filed, which tell which pairs were linked.
        weight : str, optional
            The column of design weights, one over the probability of being sampled; `weight` by
            default.
        method : {"sigmoid", "isotonic"}, default "sigmoid"
            Platt's sigmoid, or an isotonic step function.
        unlisted : float, optional
            As in `from_pairs`.

        Returns
        -------
        Linkage
            The linkage.

        Raises
        ------
        ValueError
            If the sample does not suffice: no linked or no matching pair, matches with lower
            scores, a labelled pair without a score.

        Examples
        --------
        >>> import pandas as pd
        >>> import leaveout as lo
        >>> sample = pd.DataFrame({"cluster": [0, 0, 1, 1, 2, 2], "entity": [0, 0, 1, 2, 3, 3]})
        >>> lo.leakage.Linkage.from_labelled(sample).rates["estimate"].round(2).tolist()
        [0.67, 1.0]
        """
        caller = "Linkage.from_labelled"
        frame = sample_of(caller, sample)
        design = weights(caller, frame, weight)
        if pairs is None:
            return Linkage(None, given=sampled_rates(caller, frame, design, ids, groups))
        rows, table, calibration = calibrate(caller, frame, design, pairs, ids, score, method)
        return Linkage(rows, table.left, table.right, calibration(table.probability), unlisted, ids is None, calibration=calibration,
                       scores=table.probability)  # fmt: skip

    @staticmethod
    def from_embeddings(
        X: Any,
        threshold: float | None = None,
        *,
        calibration: Any = None,
        metric: str = "cosine",
        method: str = "sigmoid",
    ) -> "Linkage":
        """Build a linkage from embeddings of all rows, whose near neighbours are pairs.

        Up to 20,000 rows all neighbours are found. For more rows faiss (`pip install
        'leaveout[neighbours]'`) finds at least 0.99 of those of 200 rows that are searched in full.

        Parameters
        ----------
        X : array_like, `[rows, features]`
            The embeddings.
        threshold : float, optional
            Rows of at least that cosine, or at most that Euclidean distance, are certainly copies.
        calibration : table, optional
            Labelled pairs of rows (`left`, `right`, `match`; `weight`), which tell how probable a
            match is at each distance. Pairs whose probability falls below 0.01 are left out.
        metric : {"cosine", "euclidean"}, default "cosine"
            The metric.
        method : {"sigmoid", "isotonic"}, default "sigmoid"
            The calibration, as in `from_labelled`.

        Returns
        -------
        Linkage
            The linkage.

        Raises
        ------
        ValueError
            If X is not finite, or unless one of `threshold` and `calibration` is given.

        Examples
        --------
        >>> import numpy as np
        >>> import leaveout as lo
        >>> lo.leakage.Linkage.from_embeddings(
        ...     np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]]), 0.99
        ... ).groups()
        array([0, 0, 1])
        """
        caller = "Linkage.from_embeddings"
        if (threshold is None) == (calibration is None):
            raise ValueError(
                f"{caller}: give threshold=, from where rows are copies, or calibration=, labelled pairs of rows."
            )
        embeddings = points(caller, X, metric)
        if calibration is None:
            close = near_pairs(caller, embeddings, read_threshold(caller, threshold, metric))
            return Linkage(
                len(embeddings),
                close.left,
                close.right,
                np.ones(len(close.left)),
                found=close.found_share,
            )
        frame = sample_of(caller, calibration)
        left, right, _ = ends(caller, frame, len(embeddings))
        fitted = PairCalibration.from_labels(
            caller,
            -distances(embeddings, left, right),
            column(caller, frame, "match"),
            weights(caller, frame, None),
            method,
        )
        # 0.01: probability of the farthest pairs that a calibration of distances keeps
        close = near_pairs(caller, embeddings, fitted.farthest_distance(caller, 0.01))
        return Linkage(len(embeddings), close.left, close.right, fitted(-close.distance), calibration=fitted, scores=-close.distance,
                       found=close.found_share)  # fmt: skip

    @property
    def knows_pairs(self) -> bool:
        """Whether the linkage has pairs, rather than rates only."""
        return self.num_rows is not None

    def for_rows(self, num_rows: int) -> "Linkage":
        """Return the linkage for data of a number of rows.

        Parameters
        ----------
        num_rows : int
            The number of rows.

        Returns
        -------
        Linkage
            The linkage.

        Raises
        ------
        ValueError
            If the linkage is about another number of rows.
        """
        if self.num_rows in (None, num_rows):
            return self
        if self.grows and num_rows >= self.num_rows:  # type: ignore[operator]
            return replace(self, num_rows=num_rows)
        raise ValueError(
            f"Linkage: it is about {self.num_rows} rows, the data have {num_rows}; give ids=, the names of all rows."
        )

    @cached_property
    def absent(self) -> float:
        """The probability of an unlisted pair inside a cluster."""
        if self.unlisted is not None:
            return self.unlisted
        missing, spare = share_listed(
            self._pairs_needed("absent"), self.left, self.right, self.probability
        )
        return (missing + 1) / (missing + spare + 3)

    def groups(self, threshold: float = LINK_PROBABILITY) -> RowLabels:
        """Cluster the rows: connect the pairs of at least some probability.

        Parameters
        ----------
        threshold : float, default 0.5
            The least probability.

        Returns
        -------
        ndarray of int, `[rows]`
            The clusters, numbered by first appearance.
        """
        rows = self._pairs_needed("groups")
        linked = self.probability >= threshold
        return components(rows, self.left[linked], self.right[linked])

    @conventional
    def partitions(
        self, num_partitions: int, *, rng: Rng = 0
    ) -> Int[NumpyArray, "partitions rows"]:
        """Draw clusterings of the rows.

        Parameters
        ----------
        num_partitions : int
            The number of draws.
        rng : int, numpy.random.Generator or None, default 0
            Random numbers: with 0 they are the first of those behind every result of the linkage.

        Returns
        -------
        ndarray of int, `[num_partitions, rows]`
            The clusterings, each numbered by first appearance.
        """
        rows = self._pairs_needed("partitions")
        num = count("Linkage.partitions: num_partitions", num_partitions, 1)
        seed = count("Linkage.partitions: rng", rng, 0)
        if seed == 0 and num <= self._num_partitions:
            return self._draw_partitions[:num].astype(int)
        random = default_rng([seed, 5])
        tables = 1 if self.calibration is None else min(num, TABLES)
        out = []
        for chunk in np.array_split(np.arange(num), tables):
            p = self.probability
            if self.calibration is not None:
                assert self.scores is not None
                p = self.calibration(self.scores, random)
            out.append(
                draw_partitions(rows, self.left, self.right, p, len(chunk), random, self.absent)
            )
        return np.concatenate(out)

    def mates(self, train: ArrayLike, test: ArrayLike) -> Float[NumpyArray, " test"]:
        """Compute the probability that a record of each tested row's entity is among the training
        rows.

        It is the share of the drawn partitions.

        Parameters
        ----------
        train, test : array_like of int
            The rows.

        Returns
        -------
        ndarray, `[test]`
            The probabilities.

        Raises
        ------
        ValueError
            If a row is both trained and tested on.
        """
        rows = self._pairs_needed("mates")
        train = _rows("mates", "train", train, rows)
        test = _rows("mates", "test", test, rows)
        if np.isin(train, test).any():
            raise ValueError("Linkage.mates: a row is both trained and tested on.")
        out = np.zeros(len(test))
        for label in self._draw_partitions:
            is_trained = np.zeros(rows, bool)
            is_trained[label[train]] = True
            out += is_trained[label[test]]
        return out / len(self._draw_partitions)

    def candidates(self, test: ArrayLike, cut: float) -> RowFlags:
        """Mark the rows that are a pair, of probability `cut` or more, with some tested row.

        Parameters
        ----------
        test : array_like of int
            The tested rows.
        cut : float
            The least probability.

        Returns
        -------
        ndarray of bool, `[rows]`
            The marks.
        """
        rows = self._pairs_needed("candidates")
        tested = np.zeros(rows, bool)
        out = np.zeros(rows, bool)
        tested[_rows("candidates", "test", test, rows)] = True
        left, right = (end[self.probability >= cut] for end in (self.left, self.right))
        out[left[tested[right]]] = True
        out[right[tested[left]]] = True
        return out

    def shares(self, folds: Folds) -> Shares:
        """Compute the expected shares of leakage in each fold, over the draws.

        If an entity is on both sides of a fold, the fewer records are misplaced; of halves either.

        Parameters
        ----------
        folds : list of folds
            The folds.

        Returns
        -------
        Shares
            `p_train`, `p_test`, and `exposed`, the tested records with a mate in training.
        """
        if self.given is not None:
            return uniform_mislinking(*(rate.estimate for rate in self.given)).shares(folds)
        draws = self.shares_drawn(folds)
        shares = Shares(*(np.mean(values, 0) for values in zip(*draws, strict=True)))
        check_probabilities("Linkage.shares", shares.p_train, shares.p_test)
        return shares

    def shares_drawn(self, folds: Folds) -> list[Shares]:
        """Compute the shares of leakage under each drawn partition, or under drawn rates.

        Parameters
        ----------
        folds : list of folds
            The folds.

        Returns
        -------
        list of Shares
            One a draw.
        """
        if self.given is not None:
            recall = self.given[1].draw(NUM_PARTITIONS, default_rng(6))
            return [UniformMislinking(1 - float(np.sqrt(r)), r, r).shares(folds) for r in recall]
        linkage = self.for_rows(len(folds[0].clusters))
        return [_shares(label, folds) for label in linkage._draw_partitions]

    @property
    def _num_partitions(self) -> int:
        """Return the number of partitions behind every result."""
        return int(
            np.clip(
                MAX_LISTED_ENTRIES // (self._pairs_needed("draws") + len(self.left) + 1),
                MIN_PARTITIONS,
                NUM_PARTITIONS,
            )
        )

    @cached_property
    def _draw_partitions(self) -> Int[NumpyArray, "draws rows"]:
        # 2**32: seed of the partitions
        return self.partitions(self._num_partitions, rng=2**32).astype(np.int32)

    def __getstate__(self) -> NamedValues:
        return {
            name: value for name, value in vars(self).items() if name in self.__dataclass_fields__
        }

    def _pairs_needed(self, request: str) -> int:
        if self.num_rows is None:
            raise ValueError(
                f"Linkage.{request}: only rates are known, no pairs; make it by from_pairs."
            )
        return self.num_rows

    @cached_property
    def rates(self) -> pd.DataFrame:
        """The precision and recall of pairs as a table: `estimate`, `low`, `high` (at 0.95).

        They are as given or sampled, with NaN for intervals that were not given; or those of
        `groups()` against the drawn partitions.
        """
        if self.given is None:
            return self.rates_of(self.groups())
        return _rate_table(np.array([(rate.estimate, *rate.interval()) for rate in self.given]))

    @conventional
    def rates_of(self, groups: ArrayLike) -> pd.DataFrame:
        """Estimate the precision and recall of any clusters against the drawn partitions.

        Parameters
        ----------
        groups : array_like, `[rows]`
            One label a row.

        Returns
        -------
        DataFrame
            `estimate`, `low`, `high` (at 0.95).
        """
        filed = self._file_clusters("rates_of", groups)
        drawn_rates = []
        for label in self._draw_partitions:
            clusters = np.bincount(filed), np.bincount(label), _cells(filed, label)[2]
            linked, true, correct = (np.sum(count * (count - 1.0)) for count in clusters)
            drawn_rates.append([correct / total if total else 1.0 for total in (linked, true)])
        return _rate_table(
            np.column_stack([np.mean(drawn_rates, 0), *np.quantile(drawn_rates, TAILS, axis=0)])
        )

    @conventional
    def summary(self, groups: ArrayLike | None = None) -> pd.DataFrame:
        """Tabulate the expected splits, merges and orphans of the clusters as filed, by the size of
        the cluster.

        *splits* are clusters of two records or more that have a mate filed elsewhere; *orphans* are
        records filed alone that have one; *merges* are clusters of several entities.

        Parameters
        ----------
        groups : array_like, `[rows]`, optional
            The clusters; `groups()` by default.

        Returns
        -------
        DataFrame
            The numbers, each with `_low` and `_high`, the quantiles 0.025 and 0.975 of the draws.
        """
        filed = self._file_clusters("summary", groups)
        size = np.bincount(filed)
        last = np.where(size == 1, 1, 2 ** np.ceil(np.log2(np.maximum(size, 1))).astype(int))
        classes, place = np.unique(last, return_inverse=True)
        counts = np.empty((len(self._draw_partitions), 3, len(classes)))
        for label, draw_counts in zip(self._draw_partitions, counts, strict=True):
            cluster, entity, _ = _cells(filed, label)
            elsewhere = np.zeros(len(size), bool)
            elsewhere[cluster[np.bincount(entity)[entity] > 1]] = True
            merged = np.bincount(cluster, minlength=len(size)) > 1
            kinds = elsewhere & (size > 1), merged, elsewhere & (size == 1)
            draw_counts[:] = [np.bincount(place[kind], minlength=len(classes)) for kind in kinds]
        out = {"clusters": np.bincount(place), "records": np.bincount(place, size).astype(int)}
        for k, name in enumerate(("splits", "merges", "orphans")):
            low, high = np.quantile(counts[:, k], TAILS, axis=0)
            out |= {name: counts[:, k].mean(0), f"{name}_low": low, f"{name}_high": high}
        names = [str(c) if c < 3 else f"{c // 2 + 1}-{c}" for c in classes]
        return pd.DataFrame(out, index=pd.Index(names, name="size"))

    def _file_clusters(self, request: str, groups: ArrayLike | None) -> RowLabels:
        rows = self._pairs_needed(request)
        if groups is None:
            filed = self.groups()
        else:
            filed = codes(f"Linkage.{request}", "groups", groups)[0]
        if len(filed) != rows:
            raise ValueError(
                f"Linkage.{request}: groups must have one label for each of {rows} rows; got {len(filed)}."
            )
        return filed

    def _facts(self) -> Lines:
        rates = []
        for name, (estimate, low, high) in self.rates.iterrows():
            interval = f"{low:.4f} to {high:.4f}"
            if np.isnan(low):
                interval = "exact"
            rates.append((str(name), f"{estimate:.4f} ({interval})"))
        if self.given is not None:
            return [("linkage", "precision and recall of pairs; no pairs"), *rates]
        linked = int((self.probability >= LINK_PROBABILITY).sum())
        entities = self._draw_partitions.max(1, initial=-1) + 1
        likely = f"{linked:,} of probability {LINK_PROBABILITY} or more: linked"
        lines = [
            ("linkage", f"{self.num_rows:,} records, {len(self.left):,} pairs, {likely}"),
            (
                "entities",
                f"{_interval(entities)}; {self.groups().max(initial=-1) + 1:,} clusters of linked records",
            ),
        ]
        for size, row in self.summary().iterrows():
            names = ("orphans",) if size == "1" else ("splits", "merges")
            numbers = ", ".join(
                f"{_interval(row[[name, f'{name}_low', f'{name}_high']])} {name}" for name in names
            )
            lines.append((f"of {size}", f"{row['clusters']:,.0f} clusters: {numbers}"))
        lines.append(("not listed", f"counts as a pair of probability {self.absent:.3g}"))
        coverage = "the probabilities are taken as they are"
        if self.calibration is not None:
            coverage = f"the error of {len(self.calibration.match)} labelled pairs is in"
        if self.found < 1:
            coverage += f"; {self.found:.3f} of the near neighbours found"
        return [
            *lines,
            *rates,
            ("intervals", f"0.95, over {len(self._draw_partitions)} drawn partitions; {coverage}"),
        ]


def _rate_table(values: Float[NumpyArray, "2 3"]) -> pd.DataFrame:
    return pd.DataFrame(
        values, pd.Index(["precision", "recall"], name="rate"), ["estimate", "low", "high"]
    )


def _interval(values) -> str:
    """Return the mean of draws, or a mean with its interval."""
    if len(values) != 3:
        values = np.mean(values), *np.quantile(values, TAILS)
    mean, low, high = values
    return f"{mean:,.1f} ({low:,.0f} to {high:,.0f})"


def _rows(caller: str, name: str, value: ArrayLike, rows: int) -> Indices:
    """Return row numbers, from numbers or a mask."""
    array = np.asarray(value)
    if array.dtype == bool and array.shape == (rows,):
        return np.flatnonzero(array)
    if array.ndim != 1 or (
        array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= rows)
    ):
        raise ValueError(
            f"Linkage.{caller}: {name} must be row numbers from 0 to {rows - 1}, or {rows} truths."
        )
    return array.astype(int)


def _shares(label: NDArray[np.integer], folds: Folds) -> Shares:
    p_train, p_test, exposed = np.zeros((3, len(folds)))
    entities = int(label.max(initial=-1)) + 1
    for k, fold in enumerate(folds):
        train_counts, test_counts = (
            np.bincount(label[rows], minlength=entities) for rows in (fold.train, fold.test)
        )
        fewer = np.where(train_counts == test_counts, 0.5, 1.0) * np.minimum(
            train_counts, test_counts
        )
        p_train[k] = fewer[train_counts <= test_counts].sum() / len(fold.train)
        p_test[k] = fewer[test_counts <= train_counts].sum() / len(fold.test)
        exposed[k] = test_counts[train_counts > 0].sum() / len(fold.test)
    return Shares(p_train, p_test, exposed)


def _cells(
    filed: NDArray[np.integer], label: NDArray[np.integer]
) -> tuple[NDArray, NDArray, NDArray]:
    """Cross clusters as filed with entities.

    The cluster, the entity, and the number of records of each pair.
    """
    entities = int(label.max(initial=-1)) + 1
    key, count = np.unique(filed.astype(int) * entities + label, return_counts=True)
    return *divmod(key, max(entities, 1)), count
