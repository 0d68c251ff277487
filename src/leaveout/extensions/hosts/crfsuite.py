"""Conditional random fields of CRFsuite as they are: sklearn-crfsuite's `CRF`, and
python-crfsuite's `Tagger`.

    −Σ_n log p(y_n | x_n; θ) + c₂ ‖θ‖²

The weights are one for each pair of an attribute and a label, and of two labels that follow one
another: of all pairs, or of those in the training data (`feature.possible_states`,
`feature.possible_transitions`); the others are held at zero. There are no weights at the starts and
ends of sentences: users who want these add attributes for them.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse

from ... import CRF, Fit, penalties
from ...developer import NamedArrays, NamedCounts, NumpyArray, TwoTexts
from ._fit_at_host import fit_at_host

LIKELIHOOD_ALGORITHMS = "lbfgs", "l2sgd"  # algorithms that minimise a penalised likelihood


class Weights(NamedTuple):
    """Weights of a CRFsuite model, by name."""

    attributes: NamedCounts
    labels: NamedCounts
    states: dict[TwoTexts, float]
    transitions: dict[TwoTexts, float]


def from_crfsuite(
    model: Any,
    X: Sequence[Sequence[Any]],
    y: Sequence[Sequence[str]],
    *,
    drop: Literal["sequence", "label"] = "sequence",
    c1: float | None = None,
    c2: float | None = None,
) -> Fit:
    """Take a trained CRF of CRFsuite, on the data it was trained on.

    The weights are those of the model. A pair that is not in the training data of a refit keeps its
    weight, where CRFsuite, refitted on them, would have none for it (with `all_possible_states` and
    `all_possible_transitions` it has all of them as well). `fit.parameters` are the weights,
    `[attributes, labels]` and `[labels, labels]`. `fit.objective.predict(fit, features=X_new)`
    labels new sentences. CRFsuite stops early by default. A warning then states how far its weights
    are from stationary, and `lo.fit(fit.objective, theta0=fit)` goes on from there.

    CRFsuite stops early by default; the fit is then at the minimum, and a warning says how far that
    is.

    Parameters
    ----------
    model : sklearn_crfsuite.CRF or pycrfsuite.Tagger
        Trained model; a `Tagger` has to have it opened.
    X : sequence of sentences
        Sentences of steps, each in a form that CRFsuite takes (a dict or a list of attributes).
    y : sequence of sequences of str
        Labels of the sentences.
    drop : {"sequence", "label"}, default: "sequence"
        Unit that is left out.
    c1, c2 : float, optional
        Penalties of the training. They are read off an `sklearn_crfsuite.CRF`; for a `Tagger` give
        `c2`.

    Returns
    -------
    Fit
        The fit at the model's weights.

    Raises
    ------
    TypeError
        On other models, and on those trained by perceptrons or passive-aggressive updates, which
        minimise no likelihood.
    ValueError
        If `c1` is not zero, `c2` is zero or not known, or X and y are not those of the model.

    Examples
    --------
    >>> import leaveout as lo
    >>> import sklearn_crfsuite
    >>> X, y = (
    ...     [[["a"], ["b"]], [["b"], ["a"]], [["a"], ["a"]]] * 4,
    ...     [["A", "B"], ["B", "A"], ["A", "A"]] * 4,
    ... )
    >>> model = sklearn_crfsuite.CRF(
    ...     c1=0.0, c2=1.0, max_iterations=500, epsilon=1e-9, delta=1e-9
    ... ).fit(X, y)
    >>> fit = lo.from_crfsuite(model, X, y)
    >>> fit.objective.num_units
    12
    """
    tagger = getattr(model, "tagger_", model)
    if not hasattr(tagger, "info"):
        raise TypeError(
            "from_crfsuite: give a fitted sklearn_crfsuite.CRF, or a pycrfsuite.Tagger that has opened a model; "
            f"got {type(model).__name__}{' that is not fitted' if tagger is None else ''}."
        )
    algorithm = getattr(model, "algorithm", None) or "lbfgs"
    if algorithm not in LIKELIHOOD_ALGORITHMS:
        raise TypeError(
            f"from_crfsuite: {algorithm!r} minimises no likelihood; train by one of {', '.join(LIKELIHOOD_ALGORITHMS)}."
        )
    ridge = _constant(model, "c2", c2)
    if _constant(model, "c1", c1, 0.0):
        raise ValueError(
            "from_crfsuite: c1 is not zero: weights at which F has a kink do not move smoothly as sentences leave. Train with "
            "c1=0 and a larger c2."
        )
    if ridge is None or not ridge > 0:
        raise ValueError(
            f"from_crfsuite: c2 must be positive, and be told where the model does not; got {ridge!r}."
        )
    weights = _weights(tagger)
    read = functools.partial(_read, "from_crfsuite", weights.attributes)
    features, lengths = read(X)
    theta, free = _arrays(weights)
    crf = CRF(
        _codes(weights.labels, y, lengths),
        lengths,
        features=features,
        num_labels=len(weights.labels),
        drop=drop,
        penalty=penalties.Ridge(2 * ridge),
        free=free,
    ).with_labels(list(weights.labels), read)
    way = "raise max_iterations, or lower epsilon and delta; was it trained on these sentences, with this c2?"
    return fit_at_host("from_crfsuite", crf, theta, lambda: True, way)


def _constant(
    model, name: str, argument: float | None, default: float | None = None
) -> float | None:
    """Return the constant c1 or c2.

    As given, else that of the estimator, whose None is CRFsuite's default.
    """
    if argument is not None:
        return float(argument)
    if not hasattr(model, name):
        return default
    constant = getattr(model, name)
    if constant is not None:
        return float(constant)
    return {"c1": 0.0, "c2": 1.0}[name]


def _weights(tagger) -> Weights:
    info = tagger.info()
    labels = {label: k for k, label in enumerate(sorted(info.labels))}
    attributes = {name: k for k, name in enumerate(info.attributes)}
    return Weights(attributes, labels, dict(info.state_features), dict(info.transitions))


def _arrays(weights: Weights) -> tuple[NamedArrays, NamedArrays]:
    """Return the parameters, and which of them the model has."""
    K = len(weights.labels)
    shapes = {"start": K, "end": K, "transition": (K, K), "weights": (len(weights.attributes), K)}
    theta, free = (
        {name: np.zeros(shape, kind) for name, shape in shapes.items()} for kind in (float, bool)
    )
    for name, entries, rows in (
        ("transition", weights.transitions, weights.labels),
        ("weights", weights.states, weights.attributes),
    ):
        for (first, label), value in entries.items():
            place = rows[first], weights.labels[label]
            theta[name][place] = value
            free[name][place] = True
    return theta, free


def _read(
    caller: str, attributes: NamedCounts, X: Sequence[Sequence[Any]]
) -> tuple[scipy.sparse.csr_array, NumpyArray]:
    """Read the known attributes of all steps, one sentence after another, and the lengths of the
    sentences.
    """
    import pycrfsuite

    if isinstance(X, str | bytes) or not hasattr(X, "__len__"):
        raise TypeError(
            f"{caller}: X must be sentences, each a sequence of dicts or lists; got {type(X).__name__}."
        )
    rows = []
    columns = []
    values = []
    lengths = []
    step = 0
    for number, sentence in enumerate(X):
        items = (
            sentence
            if isinstance(sentence, pycrfsuite.ItemSequence)
            else pycrfsuite.ItemSequence(sentence)
        )
        lengths.append(len(items))
        if not lengths[-1]:
            raise ValueError(f"{caller}: sentence {number} is empty.")
        for item in items.items():
            for name, value in item.items():
                if name in attributes:
                    rows.append(step)
                    columns.append(attributes[name])
                    values.append(value)
            step += 1
    shape = step, len(attributes)
    return scipy.sparse.csr_array(
        (np.array(values, float), (rows, columns)), shape=shape
    ), np.array(lengths)


def _codes(codes: NamedCounts, y: Sequence[Sequence[str]], lengths: NumpyArray) -> NumpyArray:
    sizes = itertools.zip_longest(map(len, y), lengths)
    number = next((k for k, (labels, steps) in enumerate(sizes) if labels != steps), None)
    if number is not None:
        raise ValueError(
            f"from_crfsuite: X and y must hold the same sentences; their lengths differ from number {number}."
        )
    flat = [str(label) for labels in y for label in labels]
    unknown = sorted(set(flat) - set(codes))
    if unknown:
        raise ValueError(
            f"from_crfsuite: the model has no label {unknown[0]!r}; was it trained on these y?"
        )
    return np.array([codes[label] for label in flat])
