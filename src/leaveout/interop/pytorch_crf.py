"""CRF layers in the manner of pytorch-crf, on emissions that the network made: torch is not needed, arrays will do."""

from typing import Any

import numpy as np

from .._fit import Fit, anchor
from ..models.crf import CRF
from ..models.penalties import AbstractPenalty

WEIGHTS = {"start": "start_transitions", "end": "end_transitions", "transition": "transitions"}


def from_pytorch_crf(
    layer: Any, emissions: Any, tags: Any, mask: Any = None, *, penalty: AbstractPenalty | None = None, throw: bool = True
) -> Fit:
    """The `Fit` of a trained CRF layer, the network below it frozen: whole sequences can be left out.

    `layer` has `start_transitions` `[K]`, `end_transitions` `[K]` and `transitions` `[K, K]` (from row to column), as
    `torchcrf.CRF` and AllenNLP's `ConditionalRandomField` have. `emissions` `[steps, batch, K]`, `tags` and `mask`
    `[steps, batch]` are what its `forward` is given, or `[batch, steps, …]` where `layer.batch_first` is true; tensors or
    arrays. `penalty` is what the training added to the summed negative log-likelihood: for a weight decay λ of that sum,
    `lo.penalties.Ridge(λ)`.

    A layer that was stopped early is taken as it is, with a warning that states the Newton decrement; a decrement above 1
    raises `ValueError` unless `throw=False`. `IndefiniteHessianError` where the data leave a direction undetermined.
    """
    missing = [name for name in WEIGHTS.values() if not hasattr(layer, name)]
    if missing:
        raise TypeError(f"from_pytorch_crf: the layer must have {', '.join(WEIGHTS.values())}; got {type(layer).__name__}.")
    weights = {name: _array(getattr(layer, theirs)).astype(np.float64) for name, theirs in WEIGHTS.items()}
    scores, labels = _array(emissions), _array(tags)
    if scores.ndim != 3 or labels.shape != scores.shape[:2]:
        raise ValueError(
            "from_pytorch_crf: emissions must be [steps, batch, labels] and tags [steps, batch] (batch first, where "
            f"layer.batch_first is true); got {scores.shape} and {labels.shape}."
        )
    seen = np.ones(labels.shape, bool) if mask is None else _array(mask).astype(bool)
    if seen.shape != labels.shape:
        raise ValueError(f"from_pytorch_crf: mask must have the shape of tags, {labels.shape}; got {seen.shape}.")
    if not getattr(layer, "batch_first", False):
        scores, labels, seen = (np.swapaxes(array, 0, 1) for array in (scores, labels, seen))
    lengths = seen.sum(1)
    ragged = np.flatnonzero((seen != (np.arange(seen.shape[1]) < lengths[:, None])).any(1) | (lengths == 0))
    if ragged.size:
        raise ValueError(
            f"from_pytorch_crf: the mask of sequence {ragged[0]} is not ones followed by zeros: it marks padding at the end."
        )
    K = scores.shape[2]
    crf = CRF(labels[seen], lengths, scores=scores[seen], num_labels=K, penalty=penalty)
    return anchor(crf, weights, throw=throw)


def _array(value: Any) -> np.ndarray:
    """An array, out of a tensor if need be."""
    for step in ("detach", "cpu", "numpy"):
        value = getattr(value, step)() if hasattr(value, step) else value
    return np.asarray(value)
