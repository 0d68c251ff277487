"""CRF layers like those of pytorch-crf, on emissions of the network.

Arrays are accepted, and torch is not needed.
"""

from typing import Any

import numpy as np

from ... import CRF, Fit, anchor, penalties

WEIGHTS = {"start": "start_transitions", "end": "end_transitions", "transition": "transitions"}


def from_pytorch_crf(
    layer: Any,
    emissions: Any,
    tags: Any,
    mask: Any = None,
    *,
    penalty: penalties.AbstractPenalty | None = None,
    throw: bool = True,
) -> Fit:
    """Take a trained CRF layer, with the network below it frozen; the units are whole sequences.

    A layer that was stopped early is taken as it is, with a warning that states the Newton
    decrement.

    Parameters
    ----------
    layer : torchcrf.CRF or similar
        Object with `start_transitions` `[K]`, `end_transitions` `[K]` and `transitions` `[K, K]`
        (from row to column), as `torchcrf.CRF` and AllenNLP's `ConditionalRandomField` have.
    emissions : tensor or array, shape (steps, batch, K)
        Emissions as given to the layer's `forward`; `[batch, steps, K]` if `layer.batch_first` is
        true.
    tags : tensor or array, shape (steps, batch)
        Labels, in the same form.
    mask : tensor or array, shape (steps, batch), optional
        Ones for steps, zeros for padding behind them.
    penalty : AbstractPenalty, optional
        Penalty that the training added to the summed negative log-likelihood: for a weight decay λ
        of that sum, `lo.penalties.Ridge(λ)`.
    throw : bool, default: True
        Whether a decrement above 1 raises an error rather than a warning.

    Returns
    -------
    Fit
        The fit at the layer's weights.

    Raises
    ------
    TypeError
        If the layer lacks one of those weights.
    ValueError
        If shapes do not agree, or the weights are not stationary.
    IndefiniteHessianError
        If the data leave a direction undetermined.

    Examples
    --------
    A layer as trained, here by `lo.fit` itself:

    >>> from types import SimpleNamespace
    >>> import numpy as np
    >>> import leaveout as lo
    >>> rng = np.random.default_rng(0)
    >>> emissions, tags = rng.standard_normal((4, 3, 2)), rng.integers(0, 2, (4, 3))
    >>> scores, labels = emissions.swapaxes(0, 1).reshape(12, 2), tags.T.ravel()
    >>> own = lo.fit(
    ...     lo.CRF(labels, [4, 4, 4], scores=scores, num_labels=2, penalty=lo.penalties.Ridge(1.0))
    ... ).parameters
    >>> names = {
    ...     "start_transitions": "start",
    ...     "end_transitions": "end",
    ...     "transitions": "transition",
    ... }
    >>> layer = SimpleNamespace(**{theirs: own[ours] for theirs, ours in names.items()})
    >>> fit = lo.from_pytorch_crf(layer, emissions, tags, penalty=lo.penalties.Ridge(1.0))
    >>> fit.objective.num_units
    3
    """
    if not all(hasattr(layer, name) for name in WEIGHTS.values()):
        raise TypeError(
            f"from_pytorch_crf: the layer must have {', '.join(WEIGHTS.values())}; got {type(layer).__name__}."
        )
    weights = {
        name: _array(getattr(layer, theirs)).astype(float) for name, theirs in WEIGHTS.items()
    }
    scores = _array(emissions)
    labels = _array(tags)
    if scores.ndim != 3 or labels.shape != scores.shape[:2]:
        raise ValueError(
            "from_pytorch_crf: emissions must be [steps, batch, labels] and tags [steps, batch] (batch first, where "
            f"layer.batch_first is true); got {scores.shape} and {labels.shape}."
        )
    seen = np.ones(labels.shape, bool) if mask is None else _array(mask).astype(bool)
    if seen.shape != labels.shape:
        raise ValueError(
            f"from_pytorch_crf: mask must have the shape of tags, {labels.shape}; got {seen.shape}."
        )
    if not getattr(layer, "batch_first", False):
        scores, labels, seen = (np.swapaxes(array, 0, 1) for array in (scores, labels, seen))
    lengths = seen.sum(1)
    ragged = np.flatnonzero(
        (seen != (np.arange(seen.shape[1]) < lengths[:, None])).any(1) | (lengths == 0)
    )
    if ragged.size:
        raise ValueError(
            f"from_pytorch_crf: the mask of sequence {ragged[0]} is not ones followed by zeros: it marks padding at the end."
        )
    K = scores.shape[2]
    crf = CRF(labels[seen], lengths, scores=scores[seen], num_labels=K, penalty=penalty)
    return anchor(crf, weights, throw=throw)


def _array(value) -> np.ndarray:
    """Convert a tensor or anything else to an array."""
    for step in ("detach", "cpu", "numpy"):
        if hasattr(value, step):
            value = getattr(value, step)()
    return np.asarray(value)
