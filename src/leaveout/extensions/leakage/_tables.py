"""Tables of scored pairs from any record linkage, as rows `left < right` and probabilities, each
pair once.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy import ndarray

from ...developer import FloatArray, IntArray, TwoCounts, numbers, pandas_of

# names of the two records in Splink, and in this library
ENDS = ("unique_id_l", "unique_id_r"), ("left", "right")
WEIGHT = "match_weight"  # Splink's log₂ of the odds
PROBABILITY = "match_probability", "probability"
AGREE = 1e-9  # largest difference of two probabilities that count as one number
PairIndices = Int[ndarray, " pairs"]
PairNumbers = Float[ndarray, " pairs"]


class PairTable(NamedTuple):
    left: PairIndices
    right: PairIndices
    probability: PairNumbers

    def once(self, caller: str, names: pd.Index | None = None) -> "PairTable":
        """Keep each pair once, the lower row left.

        ValueError for a row with itself, or two probabilities for one pair.
        """

        def called(row: int) -> str:
            """Name a row."""
            return f"row {row}" if names is None else repr(names[row])

        same = np.flatnonzero(self.left == self.right)
        if len(same):
            raise ValueError(
                f"{caller}: a pair names one record twice, {called(self.left[same[0]])}; drop such pairs."
            )
        low = np.minimum(self.left, self.right)
        high = np.maximum(self.left, self.right)
        order = np.lexsort((self.probability, high, low))
        low = low[order]
        high = high[order]
        p = self.probability[order]
        again = np.r_[False, (low[1:] == low[:-1]) & (high[1:] == high[:-1])][: len(low)]
        conflicts = np.flatnonzero(again & (np.r_[0.0, np.abs(np.diff(p))][: len(p)] > AGREE))
        if len(conflicts):
            k = conflicts[0]
            raise ValueError(
                f"{caller}: {called(low[k])} and {called(high[k])} are a pair twice, of probability {p[k - 1]:g} and {p[k]:g}; "
                "keep one."
            )
        return PairTable(low[~again], high[~again], p[~again])


def read_pairs(
    caller: str, pairs, ids, probability: str | None, default: float | None = None
) -> tuple[PairTable, int]:
    """Read the pairs by row, and the number of rows: those of `ids`, that number, or up to the last
    that a pair names.

    `default` is the probability if the table has none.
    """
    frame = frame_of(caller, pairs)
    left, right, rows = ends(caller, frame, ids)
    if not rows:
        raise ValueError(
            f"{caller}: the table of pairs is empty, so that not even the number of rows is known. If there are no pairs, "
            "say of which rows: ids=, their names or their number."
        )
    table = PairTable(left, right, _probability(caller, frame, probability, default))
    return table.once(caller, _names(caller, ids)), rows


def read_two_sided(caller: str, pairs, sides: TwoCounts, probability: str | None) -> PairTable:
    """Read pairs of a training row (left) and a test row (right), each numbered from 0.

    Certain without probabilities.
    """
    frame = frame_of(caller, pairs)
    columns = frame.columns[:2] if len(frame) else []
    numbered = [_row_numbers(caller, pd.Index(frame[name])) for name in columns] or [
        np.zeros(0, int)
    ] * 2
    for name, rows, count in zip(("left", "right"), numbered, sides, strict=True):
        if (rows >= count).any():
            raise ValueError(
                f"{caller}: {name} names row {rows.max()}, but that side has {count} rows, from 0."
            )
    p = _probability(caller, frame, probability, 1.0)
    return PairTable(numbered[0], numbered[1] + sides[0], p).once(caller)


def frame_of(caller: str, pairs: Any) -> pd.DataFrame:
    """Return a table with the two names first, from a frame, a Series or frame by pairs, dedupe's
    tuples or arrays.
    """
    pairs = pandas_of(caller, "pairs", pairs)
    if isinstance(pairs, pd.Series | pd.DataFrame) and pairs.index.nlevels == 2:
        # the form of recordlinkage
        values = pairs
        if isinstance(pairs, pd.Series):
            values = pairs.to_frame("probability")
        return values.set_axis(values.index.set_names(["left", "right"])).reset_index()
    if isinstance(pairs, pd.DataFrame):
        return pairs
    if isinstance(pairs, ndarray) and pairs.dtype.names:  # the form of dedupe's scores
        return pd.DataFrame(
            {
                "left": pairs["pairs"][:, 0],
                "right": pairs["pairs"][:, 1],
                "probability": pairs["score"],
            }
        )
    if (
        isinstance(pairs, tuple)
        and len(pairs) in (2, 3)
        and all(np.ndim(column) == 1 for column in pairs)
    ):
        return pd.DataFrame(dict(zip(("left", "right", "probability"), pairs, strict=False)))
    if not isinstance(pairs, ndarray):
        try:
            pairs = [
                (*pair[0], *pair[1:])
                if isinstance(pair[0], tuple | list | ndarray)
                else tuple(pair)
                for pair in pairs
            ]
        except TypeError:
            raise TypeError(
                f"{caller}: pairs must be a table; got {type(pairs).__name__}."
            ) from None
    frame = pd.DataFrame(pairs)
    if len(frame) and frame.shape[1] not in (2, 3):
        raise ValueError(
            f"{caller}: pairs needs rows of two names and a probability; got shape {frame.shape}."
        )
    return frame.set_axis(["left", "right", "probability"][: frame.shape[1]], axis=1)


def ends(caller: str, frame: pd.DataFrame, ids) -> tuple[IntArray, IntArray, int]:
    """Return the rows of both names of each pair, and the number of rows."""
    names = _names(caller, ids)
    if not len(frame):
        return np.zeros(0, int), np.zeros(0, int), 0 if names is None else len(names)
    if frame.shape[1] < 2:
        raise ValueError(
            f"{caller}: pairs needs two columns of names; the only one is {frame.columns[0]!r}. Give one row a pair: "
            "left, right, probability."
        )
    columns = next(
        (list(labels) for labels in ENDS if set(labels) <= set(frame.columns)),
        list(frame.columns[:2]),
    )
    incomplete = frame[columns].isna().any(axis=1).to_numpy()
    if incomplete.any():
        raise ValueError(
            f"{caller}: {incomplete.sum()} of the pairs lack a name, first that of row {np.argmax(incomplete)}; drop such pairs."
        )
    sources = ["source_dataset_l", "source_dataset_r"]
    if isinstance(names, pd.MultiIndex):
        if not set(sources) <= set(frame.columns):
            raise ValueError(
                f"{caller}: ids name a row by {names.nlevels} labels, but the pairs have no {sources[0]!r} column."
            )
        labels = [
            pd.MultiIndex.from_frame(frame[[source, name]])
            for source, name in zip(sources, columns, strict=True)
        ]
    else:
        labels = [pd.Index(frame[name]) for name in columns]
    if names is None:
        left, right = (_row_numbers(caller, index) for index in labels)
        return left, right, int(max(left.max(), right.max())) + 1
    rows = [names.get_indexer(index).astype(int) for index in labels]
    for index, positions in zip(labels, rows, strict=True):
        if (positions < 0).any():
            raise ValueError(
                f"{caller}: no row is called {index[positions < 0].tolist()[0]!r}; rows have names such as "
                f"{names[:1].tolist()[0]!r}. ids= must name every row of the data, in the pairs' own type."
            )
    return rows[0], rows[1], len(names)


def _names(caller: str, ids) -> pd.Index | None:
    """Return the names of all rows, if given; for a number of rows these are their numbers."""
    if ids is None:
        return None
    if isinstance(ids, int | np.integer) and not isinstance(ids, bool):
        return pd.RangeIndex(int(ids))
    if isinstance(ids, pd.DataFrame):
        ids = ids.index
    if isinstance(ids, pd.Index):
        names = ids
    else:
        names = pd.Index(pandas_of(caller, "ids", ids))
    if not names.is_unique:
        raise ValueError(
            f"{caller}: ids must name each row once; {names[names.duplicated()].tolist()[0]!r} is there twice."
        )
    return names


def _row_numbers(caller: str, index: pd.Index) -> IntArray:
    values = index.to_numpy()
    wrong = values
    if values.dtype.kind in "iuf":
        wrong = values[~((values >= 0) & (values == np.floor(values)))]
    if len(wrong):
        raise ValueError(
            f"{caller}: without ids= pairs name rows by number, from 0; got {wrong.tolist()[0]!r}. Give ids=, one name a row."
        )
    return values.astype(int)


def _probability(
    caller: str, frame: pd.DataFrame, name: str | None, default: float | None
) -> PairNumbers:
    if name is not None and len(frame) and name not in frame.columns:
        raise ValueError(
            f"{caller}: pairs have no column {name!r}, only {', '.join(map(str, frame.columns))}."
        )
    columns = [
        column for column in (name, *PROBABILITY) if column is not None and column in frame.columns
    ]
    if columns:
        p = _number_column(caller, frame[columns[0]])
    elif WEIGHT in frame.columns:
        p = 1 / (1 + np.exp2(-_number_column(caller, frame[WEIGHT])))
    elif default is not None or not len(frame):
        return np.full(len(frame), default or 1.0)
    elif frame.shape[1] == 3:
        p = _number_column(caller, frame.iloc[:, 2])
        columns = [frame.columns[2]]
    else:
        raise ValueError(
            f"{caller}: pairs needs rows of two names and a probability; the columns are {', '.join(map(str, frame.columns))}. "
            "Say which by probability=."
        )
    wrong = p[~((p >= 0) & (p <= 1))]
    if len(wrong):
        raise ValueError(
            f"{caller}: probabilities must lie in [0, 1], without NaN; {columns[0] if columns else WEIGHT} holds {wrong[0]:g}. Divide "
            "percentages by 100; other scores become probabilities by Linkage.from_labelled(sample, pairs)."
        )
    return p


def _number_column(caller: str, column: pd.Series) -> FloatArray:
    """Read a column of numbers; TypeError that names the argument for another column."""
    try:
        return numbers(caller, "pairs", column).astype(float)
    except TypeError:
        odd = column[pd.to_numeric(column, errors="coerce").isna()]
        if len(odd):
            content = f"holds {odd.iloc[0]!r}"
            advice = "name another by probability="
        else:
            content = f"holds numbers as text, such as {column.iloc[0]!r}"
            advice = "convert it by .astype(float)"
        raise TypeError(
            f"{caller}: the column {column.name!r} of the pairs {content}, where a probability is wanted; {advice}."
        ) from None
