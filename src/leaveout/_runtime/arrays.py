"""Types of arrays of any shape, in double precision, of indices, and of marks."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
NamedArrays = dict[str, np.ndarray]
