"""How good decoded labels are: the share of right ones, and the F1 of entities in BIO, BIOES or BILOU tags.

Entities are read as by the CoNLL shared tasks' conlleval: one begins at B-x, S-x, U-x, and at I-x, E-x, L-x that follow O,
another type or an end; it ends with E, L, S, U, and before the next beginning, O, or other type. An entity counts as found if
its type and both of its ends are right.
"""

import re

import numpy as np
from numpy.typing import ArrayLike

TAG = re.compile(r"O|[BIESLU]-.+")
BEGIN, END = "BSU", "ESLU"


def token_accuracy(labels: ArrayLike, predicted: ArrayLike) -> float:
    """The share of steps whose label is right."""
    known, found = _pair("token_accuracy", labels, predicted)
    return float(np.mean(known == found))


def entity_f1(labels: ArrayLike, predicted: ArrayLike, lengths: ArrayLike) -> float:
    """`2 · right / (known + found)` over the entities of all sequences; zero where there are none."""
    known, found = _pair("entity_f1", labels, predicted)
    known_entities, found_entities = set(entities(known, lengths)), set(entities(found, lengths))
    return 2 * len(known_entities & found_entities) / max(len(known_entities) + len(found_entities), 1)


def entities(labels: ArrayLike, lengths: ArrayLike) -> list[tuple[int, int, str]]:
    """First step, last step and type of every entity; steps are counted over all sequences.

    Raises ValueError on labels that are not O or one of B, I, E, S, L, U with a type, and lengths that do not add up.
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


def _pair(caller: str, labels: ArrayLike, predicted: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    known, found = np.asarray(labels), np.asarray(predicted)
    if known.shape != found.shape or known.ndim != 1 or not known.size:
        raise ValueError(f"{caller}: give one label and one prediction a step; got shapes {known.shape} and {found.shape}.")
    return known, found
