"""Types of arrays of any shape, in double precision, of indices and marks; numbers of labels."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.typing import NDArray

NumpyArray = ndarray  # of any type
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
NamedArrays = dict[str, ndarray]
NamedValues = dict[str, Any]
NamedNumbers = dict[str, float]
Texts = dict[str, str]
Shape = tuple[int, ...]
Strings = tuple[str, ...]
TwoArrays = tuple[ndarray, ndarray]
TwoNumbers = tuple[float, float]
TwoCounts = tuple[int, int]
ThreeArrays = tuple[ndarray, ndarray, ndarray]
AnyFunction = Callable[..., Any]
ArrayFunction = Callable[[ndarray], ndarray]
Indices = Int[ndarray, " some"]
RowNumbers = Int[ndarray, " rows"]
RowFlags = Bool[ndarray, " rows"]
PerRow = Float[ndarray, " rows"]
UnitNumbers = Int[ndarray, " units"]
UnaryFunction = Callable[[Any], Any]
AnyTuple = tuple[Any, ...]
TwoTexts = tuple[str, str]
ListedUnits = Int[ndarray, "refits width"]
ListedValues = Float[ndarray, "refits width"]
ArrayTuple = tuple[ndarray, ...]
UnitVectors = Float[ndarray, "units params"]
StepNumbers = Int[ndarray, " steps"]
NumberAndArray = tuple[float, ndarray]
ThreeArrayFunction = Callable[[ndarray, ndarray, ndarray], ndarray]
UnitFlags = Bool[ndarray, " units"]
ArrayList = list[ndarray]
LaneEntries = Float[ndarray, "lanes width"]
MakeArray = Callable[[], ndarray]
AnyPair = tuple[Any, Any]
AnyFlags = Bool[ndarray, "..."]
EntryValues = Float[ndarray, " entries"]
EntryIndex = Int[ndarray, " entries"]
SubsetValues = Float[ndarray, " some"]
RowCoefficients = Float[ndarray, "rows coefficients"]
PerRefitRow = Float[ndarray, "refits rows"]
PerDirection = Float[ndarray, " rank"]
ParamColumns = Float[ndarray, "params some"]
ParamRows = Float[ndarray, "some params"]
ThreeNumbers = tuple[float, float, float]
NamedCounts = dict[str, int]
SequenceLengths = Int[ndarray, " sequences"]

HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)  # −log density of a normal variable at its mean


def silence(*errors: str) -> np.errstate:
    """Return a context without warnings of floating-point errors: all, divide, over or invalid."""
    state: Any = dict.fromkeys(errors, "ignore")
    return np.errstate(**state)


def slices(count: int, size: int) -> list[slice]:
    """Cut so many places into slices of `size`, at least one, the last of them shorter."""
    size = max(size, 1)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def join(parts: list[Any]):
    """Concatenate records of arrays."""
    if not isinstance(parts[0], tuple):
        return np.concatenate(parts)
    columns = [join(list(columns)) for columns in zip(*parts, strict=True)]
    return getattr(parts[0], "_make", tuple)(columns)


def largest_first(values: np.ndarray) -> IntArray:
    """Return the places of values by size, along the last axis, of equal ones by place."""
    return np.argsort(-values, kind="stable")


def level_numbers(labels: Any) -> IntArray:
    """Return the number of each label among the distinct ones, in their order."""
    return np.unique(labels, return_inverse=True)[1]


def members_by_label(labels: IntArray, count: int = 0) -> list[IntArray]:
    """Return the places of each of the labels 0, 1, …, of at least so many, in their order."""
    ends = np.cumsum(np.bincount(labels, minlength=count))
    return np.split(np.argsort(labels, kind="stable"), ends[:-1])
