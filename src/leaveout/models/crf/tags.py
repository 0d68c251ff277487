"""Readers of labels, scores and features of sequences, and scores of decoded labels.

Shares of right ones, F1 of entities.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from ..._runtime import NumpyArray, Shape, StepNumbers, TwoArrays
from ...data import Names, count, numbers
from ...inference.sparse import SparseFeatures
from ...objectives import as_stored


class LabelNames(Names):
    """Names of the labels."""

    def labels(self, codes: Int[NumpyArray, "..."]) -> NumpyArray:
        """Return the labels of codes, in the type of the original labels."""
        if self.index is None:
            return codes
        return self.index.to_numpy()[codes]

    def label(self, code: int) -> str:
        return str(code) if self.index is None else self.index[code]


def named_labels(labels: Sequence[str]) -> LabelNames:
    """Labels of these names."""
    return LabelNames(pd.Index(labels, dtype=object))


Table = pd.DataFrame
TAG = re.compile(r"O|[BIESLU]-.+")  # a tag of BIO, BIOES or BILOU
BEGIN = "BSU"
END = "ESLU"
Features = Float[NumpyArray, "steps features"] | SparseFeatures


def read_labels(
    labels: ArrayLike, num_labels: int | None, columns: int | None
) -> tuple[NumpyArray, int, LabelNames]:
    """Return codes from 0, the number of labels, and their names if they are text."""
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"CRF: labels must be one label a step, [steps]; got shape {array.shape}.")
    number = columns
    if num_labels is not None:
        number = count("CRF: num_labels", num_labels, 2)
        if columns not in (None, number):
            raise ValueError(f"CRF: scores have {columns} columns, but num_labels is {number}.")
    if array.dtype.kind in "OUS":
        if not all(isinstance(label, str | np.str_) for label in array):
            raise TypeError(
                "CRF: labels must be all text or all whole numbers; got a mixture, or missing values."
            )
        if columns is not None:
            raise TypeError(
                "CRF: with scores, labels must be whole numbers: the columns of scores that they stand for."
            )
        names, codes = np.unique(array.astype(str), return_inverse=True)
        if number is not None and number != len(names):
            raise ValueError(
                f"CRF: labels have {len(names)} names, but num_labels is {number}; leave it out."
            )
        if len(names) < 2:
            raise ValueError(f"CRF: at least two labels are needed; all are {str(names[0])!r}.")
        return codes.astype(np.int32), len(names), named_labels(names.tolist())
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"CRF: labels must be text or whole numbers from 0; got an array of {array.dtype}."
        )
    if number is None:
        number = int(array.max()) + 1
    outside = np.flatnonzero((array < 0) | (array >= number))
    if outside.size:
        raise ValueError(
            f"CRF: label {array[outside[0]]} at step {outside[0]} is outside 0, …, {number - 1} ({outside.size} labels are)."
        )
    if number < 2:
        raise ValueError("CRF: at least two labels are needed; give num_labels=.")
    return array.astype(np.int32), number, LabelNames()


def read_scores(scores: ArrayLike, codes: NumpyArray, lengths: NumpyArray) -> NumpyArray:
    """Read frozen scores, in which −∞ marks an impossible label of a step."""
    array = _numbers("scores", scores)
    if array.ndim != 2 or len(array) != len(codes) or array.shape[1] < 2:
        raise ValueError(
            f"CRF: scores must be [steps, labels], with {len(codes)} steps; got shape {array.shape}."
        )
    if np.isnan(array).any() or np.isposinf(array).any():
        t, k = np.argwhere(np.isnan(array) | np.isposinf(array))[0]
        raise ValueError(
            f"CRF: scores hold NaN or +inf, the first at step {t}, label {k}. (−inf is legal: impossible.)"
        )
    never = np.flatnonzero(np.isneginf(array[np.arange(len(codes)), codes]))
    if never.size:
        n = int(np.searchsorted(np.cumsum(lengths), never[0], side="right"))
        raise ValueError(
            f"CRF: the label of step {never[0]} (sequence {n}) has score −inf, so the data are impossible "
            f"({never.size} steps have); mend the scores or the label."
        )
    return array


def read_features(features: Any, steps: int) -> Features:
    """Read dense features, or the entries of sparse ones side by side."""
    if scipy.sparse.issparse(features):
        matrix = scipy.sparse.csr_array(features).astype(float)
        matrix.sum_duplicates()
        _check_shape(matrix, steps)
        if not np.isfinite(matrix.data).all():
            raise ValueError("CRF: features hold NaN or infinite values.")
        entries = np.diff(matrix.indptr)
        place = matrix.indptr[:-1, None] + np.arange(max(int(entries.max()), 1))
        inside = np.arange(place.shape[1]) < entries[:, None]
        place = np.where(inside, place, 0)
        data = np.append(matrix.data, 0.0)
        indices = np.append(matrix.indices, 0)
        columns = np.where(inside, indices[place], matrix.shape[1]).astype(np.int32)
        return SparseFeatures(
            columns, as_stored(np.where(inside, data[place], 0.0)), matrix.shape[1]
        )
    array = _numbers("features", features)
    _check_shape(array, steps)
    if not np.isfinite(array).all():
        t, f = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"CRF: features hold NaN or infinite values, the first at step {t}, feature {f}."
        )
    return as_stored(array)


def _check_shape(features, steps: int) -> None:
    if features.ndim != 2 or features.shape[0] != steps or not features.shape[1]:
        raise ValueError(
            f"CRF: features must be [steps, features], with {steps} steps; got shape {features.shape}."
        )


def read_free(
    free: Mapping[str, ArrayLike], shapes: dict[str, Shape]
) -> dict[str, Int[NumpyArray, " free"]]:
    """Read the indices of the free entries, for parameters of which only some are free."""
    places = {}
    for name, mask in free.items():
        array = np.asarray(mask)
        if array.dtype != bool or array.shape != shapes.get(name):
            raise ValueError(
                f"CRF: free tells, by boolean arrays, which entries there are of {shapes}; got {name!r}, {array.dtype} of "
                f"shape {array.shape}."
            )
        if not array.all():
            places[name] = np.flatnonzero(array).astype(np.int32)
    return places


def counts(crf: Any) -> Float[NumpyArray, "units labels"]:
    """Count the steps of each unit with each label."""
    out = np.zeros((crf.num_units, crf.num_labels))
    units = crf.sequence if crf.drop == "sequence" else np.arange(len(crf.codes))
    np.add.at(out, (units, crf.codes), 1.0)
    return out


def seen_pairs(codes: NumpyArray, lengths: NumpyArray, num_labels: int) -> NumpyArray:
    """Mark the pairs of successive labels in the data, `[labels, labels]`."""
    inside = np.ones(len(codes), bool)
    inside[np.cumsum(lengths) - lengths] = False
    to = np.flatnonzero(inside)
    seen = np.zeros((num_labels, num_labels), bool)
    seen[codes[to - 1], codes[to]] = True
    return seen


def rank_steps(
    probabilities: Float[NumpyArray, "steps labels"],
    codes: StepNumbers,
    sequence: StepNumbers,
    names: LabelNames,
    index: pd.Index | None,
) -> Table:
    """Rank the steps by the probability of their label, the least probable first, with the
    likeliest other label.
    """
    p = np.array(probabilities, float)
    steps = np.arange(len(codes))
    if p.ndim != 2 or len(p) != len(codes) or p.shape[1] <= codes.max():
        raise ValueError(
            f"CRF: label_errors needs the probability of every label at {len(codes)} steps, [steps, labels]; got {p.shape}."
        )
    label_p = p[steps, codes]
    p[steps, codes] = -1.0
    likeliest = p.argmax(1)
    columns = {"sequence": sequence, "label": names.labels(codes), "probability": label_p}
    columns |= {"likeliest other": names.labels(likeliest), "its probability": p[steps, likeliest]}
    if index is None:
        index = pd.RangeIndex(len(steps), name="step")
    return pd.DataFrame(columns, index=index).sort_values("probability", kind="stable")


def _numbers(name: str, value) -> NumpyArray:
    return numbers("CRF", name, value).astype(float)


def token_accuracy(labels: ArrayLike, predicted: ArrayLike) -> float:
    """Compute the share of steps whose label is right.

    Parameters
    ----------
    labels : array, shape (steps,)
        True labels.
    predicted : array, shape (steps,)
        Predicted labels.

    Returns
    -------
    float
        The share.

    Raises
    ------
    ValueError
        If the shapes differ, or there is no step.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.developer.models.token_accuracy(["O", "B-X", "O", "O"], ["O", "B-X", "B-X", "O"])
    0.75
    """
    truth, guesses = _pair("token_accuracy", labels, predicted)
    return float(np.mean(truth == guesses))


def entity_f1(labels: ArrayLike, predicted: ArrayLike, lengths: ArrayLike) -> float:
    """Compute the F1 score of entities, `2 · right / (truth + guesses)`, over all sequences.

    Parameters
    ----------
    labels : array, shape (steps,)
        True labels.
    predicted : array, shape (steps,)
        Predicted labels.
    lengths : array of int, shape (sequences,)
        Lengths of the sequences, one after another.

    Returns
    -------
    float
        The score; zero if there are no entities.

    Raises
    ------
    ValueError
        If the shapes differ, or `entities` refuses the labels.

    See Also
    --------
    entities

    Examples
    --------
    >>> import leaveout as lo
    >>> round(
    ...     lo.developer.models.entity_f1(
    ...         ["B-X", "I-X", "O", "B-X"], ["B-X", "I-X", "O", "O"], [4]
    ...     ),
    ...     3,
    ... )
    0.667
    """
    truth, guesses = _pair("entity_f1", labels, predicted)
    true_entities = set(entities(truth, lengths))
    guessed_entities = set(entities(guesses, lengths))
    count = len(true_entities) + len(guessed_entities)
    return 2 * len(true_entities & guessed_entities) / max(count, 1)


def entities(labels: ArrayLike, lengths: ArrayLike) -> list[tuple[int, int, str]]:
    """List the entities of sequences of labels.

    Parameters
    ----------
    labels : array of str, shape (steps,)
        Labels: O, or B-, I-, E-, S-, L- or U- and a type.
    lengths : array of int, shape (sequences,)
        Lengths of the sequences, one after another.

    Returns
    -------
    list of tuple
        First step, last step and type of every entity; steps are counted over all sequences.

    Raises
    ------
    ValueError
        If a label is not of this form, or lengths do not add up.

    Examples
    --------
    >>> import leaveout as lo
    >>> lo.developer.models.entities(["B-X", "I-X", "O", "B-Y"], [4])
    [(0, 1, 'X'), (3, 3, 'Y')]
    """
    tags = [str(tag) for tag in np.asarray(labels)]
    strange = next((tag for tag in tags if not TAG.fullmatch(tag)), None)
    if strange is not None:
        raise ValueError(
            f"entities: labels must be O, or B-, I-, E-, S-, L- or U- and a type; got {strange!r}."
        )
    ends = np.cumsum(np.asarray(lengths, int))
    if not len(ends) or ends[-1] != len(tags):
        raise ValueError(
            f"entities: lengths add up to {ends[-1] if len(ends) else 0}, but there are {len(tags)} labels."
        )
    starts = {0, *ends.tolist()}
    spans = []
    begin = 0
    kind = ""
    for t, tag in enumerate([*tags, "O"]):
        new = tag[2:]
        if kind and (t in starts or tag[0] in BEGIN or new != kind):
            spans.append((begin, t - 1, kind))
            kind = ""
        if new and not kind:
            begin = t
            kind = new
        if kind and tag[0] in END:
            spans.append((begin, t, kind))
            kind = ""
    return spans


def _pair(caller: str, labels: ArrayLike, predictions: ArrayLike) -> TwoArrays:
    truth = np.asarray(labels)
    guesses = np.asarray(predictions)
    if truth.shape != guesses.shape or truth.ndim != 1 or not truth.size:
        raise ValueError(
            f"{caller}: give one label and one prediction a step; got shapes {truth.shape} and {guesses.shape}."
        )
    return truth, guesses
