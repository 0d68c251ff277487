"""Scores of decoded labels: the share of right ones, and the F1 of entities in BIO, BIOES or BILOU tags."""

import re

import numpy as np
from numpy.typing import ArrayLike

TAG = re.compile(r"O|[BIESLU]-.+")
BEGIN, END = "BSU", "ESLU"


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
    >>> lo.models.token_accuracy(["O", "B-X", "O", "O"], ["O", "B-X", "B-X", "O"])
    0.75
    """
    known, found = _pair("token_accuracy", labels, predicted)
    return float(np.mean(known == found))


def entity_f1(labels: ArrayLike, predicted: ArrayLike, lengths: ArrayLike) -> float:
    """Compute the F1 score of entities, `2 · right / (known + found)`, over all sequences.

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
    >>> round(lo.models.entity_f1(["B-X", "I-X", "O", "B-X"], ["B-X", "I-X", "O", "O"], [4]), 3)
    0.667
    """
    known, found = _pair("entity_f1", labels, predicted)
    known_entities, found_entities = set(entities(known, lengths)), set(entities(found, lengths))
    return 2 * len(known_entities & found_entities) / max(len(known_entities) + len(found_entities), 1)


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
    >>> lo.models.entities(["B-X", "I-X", "O", "B-Y"], [4])
    [(0, 1, 'X'), (3, 3, 'Y')]
    """
    tags = [str(tag) for tag in np.asarray(labels)]
    strange = next((tag for tag in tags if not TAG.fullmatch(tag)), None)
    if strange is not None:
        raise ValueError(f"entities: labels must be O, or B-, I-, E-, S-, L- or U- and a type; got {strange!r}.")
    ends = np.cumsum(np.asarray(lengths, int))
    if not len(ends) or ends[-1] != len(tags):
        raise ValueError(f"entities: lengths add up to {ends[-1] if len(ends) else 0}, but there are {len(tags)} labels.")
    starts = {0, *ends.tolist()}
    found: list[tuple[int, int, str]] = []
    begin, kind = 0, ""
    for t, tag in enumerate([*tags, "O"]):
        new = tag[2:]
        if kind and (t in starts or tag[0] in BEGIN or new != kind):
            found.append((begin, t - 1, kind))
            kind = ""
        if new and not kind:
            begin, kind = t, new
        if kind and tag[0] in END:
            found.append((begin, t, kind))
            kind = ""
    return found


def _pair(caller: str, labels: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    known, found = np.asarray(labels), np.asarray(predictions)
    if known.shape != found.shape or known.ndim != 1 or not known.size:
        raise ValueError(f"{caller}: give one label and one prediction a step; got shapes {known.shape} and {found.shape}.")
    return known, found
