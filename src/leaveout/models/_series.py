"""What a caller hands in as a sequence, and in which dress results go back: array, Series or DataFrame with its index."""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from .._read import Names, index_of, numbers, places


class Labels(Names):
    """The index and the columns of the caller's data."""

    def __init__(self, index: pd.Index | None, columns: pd.Index | None, name: Any = None):
        super().__init__(index)
        self.columns, self.name = columns, name

    def series(self, values: np.ndarray, name: Any = None) -> Any:
        """One value a step: a Series where a Series or DataFrame came in."""
        return values if self.index is None else pd.Series(values, index=self.index, name=name)

    def frame(self, values: np.ndarray, columns: Any) -> Any:
        """Several values a step."""
        return values if self.index is None else pd.DataFrame(values, index=self.index, columns=columns)

    def channels(self, values: np.ndarray) -> Any:
        """As the data came: `[steps, channels]`, or one value a step where the channel had no axis; a column for each
        symbol, where the means are their probabilities."""
        if values.shape[1] != (1 if self.columns is None else len(self.columns)):
            return self.frame(values, range(values.shape[1]))
        if self.columns is None:
            return self.series(values[:, 0], self.name)
        return self.frame(values, self.columns)

    def ahead(self, steps: int, horizon: int) -> pd.Index:
        """The labels of the steps after the data: the index carried on where it has a rhythm."""
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


def read(x: ArrayLike) -> tuple[Float[np.ndarray, "steps channels"], Labels]:
    """The data as float64, NaN where missing or masked, and their labels."""
    index = index_of(x)
    columns = x.columns if isinstance(x, pd.DataFrame) else None
    raw = x if isinstance(x, pd.Series | pd.DataFrame) else np.asarray(x)
    if raw.ndim not in (1, 2) or 0 in raw.shape[1:]:
        raise ValueError(f"HMM: x must be [steps] or [steps, channels], a channel or more; got shape {raw.shape}.")
    if len(raw) < 2:
        raise ValueError(f"HMM: at least two steps are needed; got {len(raw)}.")
    if raw.ndim == 2 and columns is None:
        columns = pd.RangeIndex(raw.shape[1])
    array = np.array(numbers("HMM", "x", x), np.float64).reshape(len(raw), -1)
    if np.isinf(array).any():
        t, r = np.argwhere(np.isinf(array))[0]
        raise ValueError(f"HMM: x holds {np.isinf(array).sum()} infinite values, the first at step {t}, channel {r}.")
    if np.isnan(array).any(1).all():
        raise ValueError("HMM: every step of x is missing (NaN).")
    return array, Labels(index, columns, getattr(x, "name", None))


def read_weights(model: str, weights: ArrayLike | None, num_units: int, names: pd.Index | None) -> Float[np.ndarray, " units"]:
    """The weights of the units, one by default, put into the units' order by their labels."""
    index = index_of(weights)
    if names is not None and index is not None and len(index) == num_units:
        order = places(model, "weights", index, "x", names)
        weights = weights if order is None else weights.iloc[order]  # type: ignore[union-attr]
    array = np.ones(num_units) if weights is None else np.asarray(numbers(model, "weights", weights), np.float64)
    if array.shape != (num_units,) or not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(
            f"{model}: weights must be {num_units} numbers, one a unit, finite, not negative; "
            f"got {_described(array, num_units)}."
        )
    return array


def _described(weights: np.ndarray, num_units: int) -> str:
    """What is wrong with them."""
    if weights.shape != (num_units,):
        return f"shape {list(weights.shape)}"
    first = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
    return f"{weights[first]:g} for unit {first}"


def read_lengths(lengths: ArrayLike | None, steps: int) -> Int[np.ndarray, " sequences"]:
    """The lengths of the sequences, one after another in x."""
    if lengths is None:
        return np.array([steps])
    array = np.asarray(lengths)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 1).any():
        raise ValueError(f"HMM: lengths must be positive integers, one for each sequence; got {lengths!r}.")
    if array.sum() != steps:
        raise ValueError(f"HMM: lengths add up to {array.sum()}, but x has {steps} steps.")
    return array.astype(np.int64)
