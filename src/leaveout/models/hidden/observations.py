"""Readers of sequences and fields, and results in the type of the data: array, Series or DataFrame."""

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from ...data.arrays import Names, index_of, numbers, pandas_of, places
from ...objectives.objective import as_stored

Steps = np.ndarray | pd.Series  # one value for each step or site, in the type of the data
Table = np.ndarray | pd.DataFrame  # several values


@runtime_checkable
class HasParameters(Protocol):
    """Object that has natural parameters, as a `Fit` has."""

    @property
    def parameters(self) -> dict[str, np.ndarray]: ...


GivenParameters = dict[str, np.ndarray] | dict[str, ArrayLike] | HasParameters


class SeriesLabels(Names):
    """Labels of the steps and of the channels."""

    columns: Any | None
    name: Hashable

    def __init__(self, index: pd.Index | None, columns: pd.Index | None, name: Hashable = None):
        super().__init__(index)
        self.columns, self.name = columns, name

    def units(self, drop: str) -> pd.Index | None:
        """Labels of the units if these are steps; None if they are sequences."""
        return None if drop == "sequence" else self.index

    def series(self, values: np.ndarray, name: Hashable = None) -> Steps:
        """Return one value a step: a Series if the data came as a Series or DataFrame."""
        return values if self.index is None else pd.Series(values, index=self.index, name=name)

    def frame(self, values: np.ndarray, columns: Collection[Any]) -> Table:
        """Return several values a step."""
        return values if self.index is None else pd.DataFrame(values, index=self.index, columns=columns)

    def channels(self, values: np.ndarray) -> Steps | Table:
        """Return values of channels in the type of the data.

        The shape is `[steps, channels]`, or `[steps]` if the data had no axis of channels. If the means are probabilities of
        symbols, there is a column for each symbol.
        """
        if values.shape[1] != (1 if self.columns is None else len(self.columns)):
            return self.frame(values, range(values.shape[1]))
        if self.columns is None:
            return self.series(values[:, 0], self.name)
        return self.frame(values, self.columns)

    def ahead(self, steps: int, parts: Mapping[Hashable, Float[np.ndarray, "horizon channels"]]) -> pd.DataFrame:
        """Table of the steps after the data, a column for each part; several channels have a group of columns each."""
        index = self._later(steps, len(next(iter(parts.values()))))
        one = lambda r: pd.DataFrame({name: value[:, r] for name, value in parts.items()}, index=index)
        if self.columns is None or len(self.columns) == 1:
            return one(0)
        return pd.concat({column: one(r) for r, column in enumerate(self.columns)}, axis=1)

    def _later(self, steps: int, horizon: int) -> pd.Index:
        """Return labels of the steps after the data; a regular index is continued."""
        if isinstance(self.index, pd.DatetimeIndex | pd.PeriodIndex):
            frequency = getattr(self.index, "freq", None) or (pd.infer_freq(self.index) if len(self.index) > 2 else None)
            if frequency is not None:
                return (
                    pd.date_range(self.index[-1], periods=horizon + 1, freq=frequency)[1:]
                    if isinstance(self.index, pd.DatetimeIndex)
                    else pd.period_range(self.index[-1], periods=horizon + 1, freq=frequency)[1:]
                )
        elif self.index is not None and self.index.dtype.kind in "iuf" and len(self.index) > 1:
            gaps = np.diff(np.asarray(self.index))
            if (gaps == gaps[0]).all():
                return pd.Index(self.index[-1] + gaps[0] * np.arange(1, horizon + 1), name=self.index.name)
        return pd.RangeIndex(steps, steps + horizon)


class FieldLabels(Names):
    """Labels of the sites, and of the fields if there are several, as the caller named them."""

    fields: Any | None
    single: bool

    def __init__(self, index: pd.Index | None, fields: pd.Index | None, single: bool):
        super().__init__(index)
        self.fields, self.single = fields, single

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldLabels) and self.single == other.single

    def __hash__(self) -> int:
        return hash(self.single)

    def units(self, drop: str) -> pd.Index | None:
        """Labels of the units: sites, pairs of a field and a site, or fields."""
        if drop == "field" or self.index is None:
            return self.fields if drop == "field" else None
        return self.index if self.fields is None else pd.MultiIndex.from_product([self.fields, self.index])

    def sites(self, values: np.ndarray) -> Steps:
        """Return one value a site: a Series if the data came as a Series, without an axis of fields if the data had none."""
        values = values[0] if self.single else values
        return values if self.index is None or not self.single else pd.Series(values, index=self.index, name="state")

    def states(self, values: np.ndarray) -> Table:
        """Return one value for each site and state."""
        values = values[0] if self.single else values
        if self.index is None or not self.single:
            return values
        return pd.DataFrame(values, index=self.index, columns=range(values.shape[-1]))


def read_series(x: ArrayLike) -> tuple[Float[np.ndarray, "steps channels"], SeriesLabels]:
    """Read the data as float64, with NaN where missing or masked, and their labels."""
    index, x = index_of(x), pandas_of("HMM", "x", x)
    columns = x.columns if isinstance(x, pd.DataFrame) else None
    shape = np.shape(x)
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        raise ValueError(f"HMM: x must be [steps] or [steps, channels], a channel or more; got shape {shape}.")
    if shape[0] < 2:
        raise ValueError(f"HMM: at least two steps are needed; got {shape[0]}.")
    if len(shape) == 2 and columns is None:
        columns = pd.RangeIndex(shape[1])
    array = np.array(numbers("HMM", "x", x), np.float64).reshape(shape[0], -1)
    if np.isinf(array).any():
        t, r = np.argwhere(np.isinf(array))[0]
        raise ValueError(f"HMM: x holds {np.isinf(array).sum()} infinite values, the first at step {t}, channel {r}.")
    if np.isnan(array).any(1).all():
        raise ValueError("HMM: every step of x is missing (NaN).")
    return array, SeriesLabels(index, columns, getattr(x, "name", None))


def read_fields(x: ArrayLike) -> tuple[Float[np.ndarray, "fields sites channels"], FieldLabels]:
    """Read the data as float64, with NaN where missing."""
    index, fields, x = index_of(x), None, pandas_of("MRF", "x", x)
    if isinstance(x, pd.DataFrame):  # rows are fields and columns sites
        index, fields = x.columns, x.index
    shape = np.shape(x)
    if len(shape) not in (1, 2, 3) or 0 in shape:
        raise ValueError(
            f"MRF: x must be [sites], [fields, sites] or [fields, sites, channels], none empty; got shape {shape}."
        )
    array = np.array(numbers("MRF", "x", x), np.float64)
    single = array.ndim == 1
    array = array[None, :, None] if single else array[..., None] if array.ndim == 2 else array
    if array.shape[1] < 2:
        raise ValueError(f"MRF: at least two sites are needed; got {array.shape[1]}.")
    if np.isinf(array).any():
        f, s, _ = np.argwhere(np.isinf(array))[0]
        raise ValueError(f"MRF: x holds {np.isinf(array).sum()} infinite values, the first in field {f} at site {s}.")
    if np.isnan(array).any(-1).all():
        raise ValueError("MRF: every observation in x is missing (NaN).")
    return as_stored(array), FieldLabels(index, fields, single)


def read_weights(model: str, weights: ArrayLike | None, num_units: int, names: pd.Index | None) -> Float[np.ndarray, " units"]:
    """Read the weights of the units, one by default, in the units' order by their labels."""
    index = index_of(weights)
    if names is not None and index is not None and len(index) == num_units:
        order = places(model, "weights", index, "x", names)
        weights = weights if order is None else weights.iloc[order]  # type: ignore[union-attr]
    array = np.ones(num_units) if weights is None else np.asarray(numbers(model, "weights", weights), np.float64)
    if array.shape != (num_units,) or not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(
            f"{model}: weights must be {num_units} numbers, one a unit, finite, not negative; "
            f"got {_describe_weights(array, num_units)}."
        )
    return array


def _describe_weights(weights: np.ndarray, num_units: int) -> str:
    """Describe the error in an array of weights."""
    if weights.shape != (num_units,):
        return f"shape {list(weights.shape)}"
    first = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
    return f"{weights[first]:g} for unit {first}"


def read_parameters(
    model: str, parameters: GivenParameters, shapes: dict[str, tuple[int, ...]], others: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Read natural parameters of these shapes from a `Fit` or a dict; `others` are allowed too."""
    found = parameters if isinstance(parameters, dict) else getattr(parameters, "parameters", parameters)
    if not isinstance(found, dict) or set(shapes) - set(found) or set(found) - {*shapes, *others}:
        got = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{model}: parameters are {sorted(shapes)}; got {got}.")
    values = {name: np.asarray(found[name], np.float64) for name in shapes}
    for name, shape in shapes.items():
        if values[name].shape != shape:
            raise ValueError(f"{model}: {name} must have shape {list(shape)}; got {list(values[name].shape)}.")
    return values


def read_lengths(model: str, lengths: ArrayLike | None, steps: int, there: str) -> Int[np.ndarray, " sequences"]:
    """Read the lengths of the sequences in the data; without them there is one sequence."""
    if lengths is None:
        return np.array([steps])
    array = np.asarray(lengths)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        raise ValueError(f"{model}: lengths must be whole numbers, one for each sequence; got {lengths!r}.")
    empty = np.flatnonzero(array < 1)
    if empty.size:
        raise ValueError(
            f"{model}: lengths must be positive integers; sequence {empty[0]} has length {array[empty[0]]} ({empty.size} are "
            "empty): drop empty ones."
        )
    if array.sum() != steps:
        raise ValueError(f"{model}: lengths add up to {array.sum()}, but {there}.")
    return array.astype(np.int64)
