"""Types of arrays of any shape, in double precision, of indices and marks; numbers of labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
NamedArrays = dict[str, np.ndarray]
NamedValues = dict[str, Any]
Shape = tuple[int, ...]
Strings = tuple[str, ...]
TwoArrays = tuple[np.ndarray, np.ndarray]
TwoNumbers = tuple[float, float]


def level_numbers(labels: Any) -> IntArray:
    """Return the number of each label among the distinct ones, in their order."""
    return np.unique(labels, return_inverse=True)[1]
