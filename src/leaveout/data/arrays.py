"""Arguments from callers, read in one way: labels first, then numbers.

Labels are data. If two arguments carry them (the index of a Series or DataFrame, the nodes of a
graph), rows with the same label belong together, wherever they stand; the first argument determines
the order in which units are numbered. A default index 0, …, n − 1 beside labels of another kind
carries no information, and an array has no labels: these go by position.
"""

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool
from numpy.typing import ArrayLike

from .._runtime import (
    AnyTuple,
    ArrayFunction,
    EntryIndex,
    NumpyArray,
    UnaryFunction,
    UnitNumbers,
    float64,
    foreign,
    is_pandas,
    jax,
    jnp,
    pd,
    record,
)

# pandas' types of columns of numbers
NUMBERS = {"floating", "integer", "mixed-integer-float", "decimal", "empty"}
HOST_MEMORY = (
    1,
    3,
    11,
)  # DLPack's codes of memory of this machine: plain, or pinned for an accelerator
DOUBLE = "cpu", "gpu", "cuda", "rocm"  # platforms of devices that have float64
# pandas' types of labels that have an order in time
TIMES = {"datetime64", "datetime", "date", "period", "timedelta64"}
PLAIN = "biuf"  # kinds of NumPy's own numbers
TIME = "Drop them, set one as the index, or count the time in a unit: (t - t.min()) / pd.Timedelta('1D')"
ADVICE = {  # by pandas' type
    **dict.fromkeys(("date", "time", "period"), TIME),
    "categorical": "Encode categories by pd.get_dummies; convert those that are numbers by .astype(float)",
    "complex": "Take the real part, or the modulus",
    "boolean": "Fill what is missing, and convert by .astype(bool)",
}
OTHERWISE = "Encode categories and symbols (pd.get_dummies, or 0, 1, 2, …); convert numbers that are text by .astype(float)"


class TransformedResponse(NamedTuple):
    """A response as it was measured, of a model of a function of it, and the way back from that
    function.
    """

    values: NumpyArray
    inverse: ArrayFunction


@record
class UnitColumn:
    """One value a unit by position, with the labels of the units beside them, or none.

    Positions are those of the rows of a fit, unless labels say which unit is which.
    """

    name: str
    values: NumpyArray
    names: "pd.Index | None"

    @classmethod
    def read(cls, caller: str, name: str, value: Any, num_units: int) -> "UnitColumn":
        """Read one value a unit; ValueError if there are more or fewer."""
        names = index_of(value)
        column = pandas_of(caller, name, value)
        if is_pandas(column, "Categorical", "Index"):
            values = column
        else:
            values = np.asarray(column)
        if len(values) != num_units:
            raise ValueError(
                f"{caller}: {name} must be one a unit, {num_units}; got {len(values)}."
            )
        return cls(name, np.asarray(values), names)

    def in_order(
        self, caller: str, names: "pd.Index | None", reference: str = "the fit"
    ) -> NumpyArray:
        """Return the values in the order of the units of a fit."""
        if self.names is None or names is None:
            return self.values
        order = places(caller, self.name, self.names, reference, names)
        return self.values if order is None else self.values[order]

    def take(self, units: NumpyArray) -> "UnitColumn":
        """Return the column of some units."""
        names = None
        if self.names is not None:
            names = self.names[units]
        return UnitColumn(self.name, self.values[units], names)


@dataclass(eq=False, repr=False)
class Names:
    """Labels of units, or none, a reader of new rows where that takes more than their columns,
    labels of two classes, the table that a formula was given, or the frame of the columns, and the
    name of the response.

    A reader whose model is of a function of the response has a `response`, a `TransformedResponse`.

    Labels enter no computation, so all instances are equal: data of the same shape under other
    labels compile nothing anew.
    """

    index: Any = None
    read: UnaryFunction | None = None
    classes: AnyTuple = ()
    table: "pd.DataFrame | None" = None
    name: Hashable = None

    @property
    def response(self) -> TransformedResponse | None:
        """The response as it was measured, if the model is of a function of it."""
        return getattr(self.read, "response", None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Names({'' if self.index is None else len(self.index)})"


def index_of(value: Any) -> "pd.Index | None":
    """Labels that the rows of an argument carry; None if it has none."""
    if is_pandas(value, "Series", "DataFrame"):
        return value.index
    return None


def under_labels(
    values: Any, labels: "pd.Index | None", name: str | None = None, columns: Any = None
) -> Any:
    """Put one number a unit into a Series under the labels of the units, several into a DataFrame,
    whose `columns` are named if there are as many names.

    Units without labels are numbered. Arrays of more axes stay as they are.
    """
    values = np.asarray(values)
    if values.ndim == 1:
        return pd.Series(values, labels, name=name)
    if values.ndim > 2:
        return values
    if columns is not None and len(columns) != values.shape[1]:
        columns = None
    return pd.DataFrame(values, labels, columns)


def pandas_of(caller: str, name: str, value: Any) -> Any:
    """Convert a frame or a column of another library, such as Polars or Arrow, to pandas; return
    anything else as it is.

    Such frames have no labels, and the index of the result carries no information. Call `index_of`
    before.
    """
    if (
        isinstance(value, NumpyArray)
        or is_pandas(value, "Series", "DataFrame", "Index")
        or value is None
    ):
        return value
    import narwhals as nw

    frame = nw.from_native(value, pass_through=True, allow_series=True)
    if isinstance(frame, nw.LazyFrame):
        raise TypeError(
            f"{caller}: {name} is a {type(value).__name__}, whose rows are not there yet; give {name}.collect()."
        )
    if isinstance(frame, nw.DataFrame):
        return pd.DataFrame(
            {column: frame[column].to_numpy() for column in frame.columns}, columns=frame.columns
        )
    if isinstance(frame, nw.Series):
        return pd.Series(frame.to_numpy(), name=frame.name or None)
    return value


def label_texts(index: "pd.Index") -> list[str]:
    """Write labels as text. Dates that are all at midnight are written without the time."""
    return [
        str(label) for label in (index.astype(str) if is_pandas(index, "DatetimeIndex") else index)
    ]


def check_times(
    caller: str, name: str, index: "pd.Index | None", lengths: ArrayLike | None = None
) -> None:
    """Raise ValueError if labels are times that do not rise from row to row.

    With `lengths`, times must rise within each sequence.
    """
    if index is None or index.inferred_type not in TIMES:
        return
    if lengths is None:
        lengths = [len(index)]
    ends = np.cumsum(lengths)
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        part = index[first:last]
        if part.is_monotonic_increasing and part.is_unique:
            continue
        subject = f"{name}, whose index holds times"
        if len(ends) > 1:
            subject += " in each sequence"
        if part.hasnans:
            raise ValueError(
                f"{caller}: the order of rows counts for {subject}, but some are missing (NaT). Drop those rows."
            )
        if part.is_unique:
            early = str(part[1:][part[1:] < part[:-1]][0])
            raise ValueError(
                f"{caller}: the order of rows counts for {subject}, but these do not rise: {early!r} stands after a later one. Sort "
                "the data first, by .sort_index()."
            )
        twice = str(part[part.duplicated()][0])
        raise ValueError(
            f"{caller}: the order of rows counts for {subject}, but {twice!r} is there twice, and which of its rows comes "
            "first is not known. Give every row a time of its own, or give the data without index, by position."
        )


def is_default_index(index: "pd.Index") -> bool:
    """Whether an index is 0, …, n − 1, which pandas gives to data without labels."""
    return index.dtype.kind in "iu" and index.equals(pd.RangeIndex(len(index)))


def places(
    caller: str, name: str, index: "pd.Index", reference: str, request: "pd.Index"
) -> UnitNumbers | None:
    """Positions of the `request` labels, those of the argument `reference`, in the index of `name`.

    None if rows go by position.

    Raises ValueError if the two do not hold the same labels, or hold some twice and in another
    order.
    """
    if index.equals(request):
        return None
    if len(index) == len(request) and index.is_unique and request.is_unique:
        positions = index.get_indexer(request)
        if (positions >= 0).all():
            return positions
    if len(index) == len(request) and (is_default_index(index) or is_default_index(request)):
        return None
    if set(index) == set(request):
        duplicate = next(iter([*index[index.duplicated()], *request[request.duplicated()]]), None)
        raise ValueError(
            f"{caller}: {name} and {reference} have the same labels, but some are there twice, as {duplicate!r}, and not in the same "
            f"order, so that their rows cannot be told apart. Sort them alike, or give {name} as an array, by position."
        )
    surplus = index.difference(request, sort=False)
    missing = request.difference(index, sort=False)
    shown = "; ".join(
        f"only {which} has {len(only)}, such as {only[:1].tolist()[0]!r}"
        for which, only in ((name, surplus), (reference, missing))
        if len(only)
    )
    raise ValueError(
        f"{caller}: {name} and {reference} do not have the same labels: {shown}. Give both for the same units, as by "
        f"{name}.loc[{reference}.index], or as arrays, by position."
    )


def match_labels(caller: str, **arguments: Any) -> AnyTuple:
    """Return the common labels and the name of `y` as `Names`, then the arguments in the order of
    the first one that carries labels.

    Arguments of another length stay as they are; the functions that read their numbers refuse them.
    """
    reference = ""
    labels = None
    values = []
    for name, value in arguments.items():
        index = index_of(value)
        if index is None:
            values.append(pandas_of(caller, name, value))
            continue
        if labels is None:
            reference = name
            labels = index
        if len(index) == len(labels):
            order = places(caller, name, index, reference, labels)
            if order is not None:
                value = value.iloc[order]
            if order is None and is_default_index(labels) and not is_default_index(index):
                reference = name
                labels = index
        values.append(value)
    response = arguments.get("y")
    frame = next((value for value in values if is_pandas(value, "DataFrame")), None)
    return Names(labels, table=frame, name=getattr(response, "name", None)), *values


def match_columns(caller: str, name: str, value: Any, reference: str, request: Any) -> Any:
    """Return a table with its columns in the order of another one's names; arrays, and tables
    without names, go by position.

    Raises ValueError if both have names and these differ.
    """
    table = pandas_of(caller, name, value)
    reference_table = pandas_of(caller, reference, request)
    if any(
        not is_pandas(part, "DataFrame") or is_default_index(part.columns)
        for part in (table, reference_table)
    ) or table.columns.equals(reference_table.columns):
        return value
    if (
        sorted(map(str, table.columns)) != sorted(map(str, reference_table.columns))
        or not reference_table.columns.is_unique
    ):
        raise ValueError(
            f"{caller}: {name} has the columns {', '.join(map(repr, table.columns[:8]))}, {reference} has "
            f"{', '.join(map(repr, reference_table.columns[:8]))}: give both the same, or arrays, by position."
        )
    return table[reference_table.columns.tolist()]


@float64
def on_device(caller: str, name: str, value: Any) -> Any:
    """Return an array of real numbers on a device with float64 as an array of JAX, through DLPack
    if need be.

    Returns None for arrays in this machine's memory and for anything else. Raises TypeError if JAX
    does not see the device.
    """
    shared = getattr(value, "__dlpack_device__", None)
    if "jax" in sys.modules and isinstance(value, jax.Array):
        array = value
    elif isinstance(value, NumpyArray) or shared is None or shared()[0] in HOST_MEMORY:
        return None
    else:
        try:
            array = jnp.from_dlpack(value)
        except Exception as error:
            raise TypeError(
                f"{caller}: {name} is on a device that JAX does not see here ({error}). Install JAX for that device, or give "
                f"{name} from memory, as by .cpu() or .get()."
            ) from error
    real = any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    if not real or not any(
        foreign(device) and device.platform in DOUBLE for device in array.devices()
    ):
        return None
    with jax.ensure_compile_time_eval():  # also inside a program of JAX that builds the model
        return jax.device_put(array, array.sharding)


def numbers(caller: str, name: str, value: Any) -> NumpyArray:
    """Return an argument as an array of numbers, with NaN where one is missing or masked.

    Categories (also of numbers), text, dates, complex numbers and the like raise TypeError.
    """
    if isinstance(value, str):
        raise TypeError(
            f"{caller}: {name}={value!r} is a name, which goes with a formula and its data alone; give data[{value!r}]."
        )
    value = pandas_of(caller, name, value)
    if hasattr(value, "tocsr"):
        raise TypeError(
            f"{caller}: {name} must be dense; got {type(value).__name__}. Give {name}.toarray()."
        )
    if isinstance(value, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(value), np.nan, numbers(caller, name, value.data))
    if is_pandas(value, "DataFrame"):
        frame = value
    elif is_pandas(value, "Series", "Index", "api.extensions.ExtensionArray"):
        frame = pd.Series(value).to_frame(0 if getattr(value, "name", None) is None else value.name)  # type: ignore[union-attr]
    else:
        resident = on_device(caller, name, value)
        if resident is not None:
            value = resident
        try:
            value = np.asarray(value)
        except ValueError:  # of lists
            raise ValueError(
                f"{caller}: the parts of {name} must have one length, as those of an array."
            ) from None
        if value.dtype.kind in PLAIN:
            return value
        frame = pd.DataFrame(value.reshape(len(value) if value.ndim else 1, -1))
    if all(isinstance(dtype, np.dtype) and dtype.kind in PLAIN for dtype in frame.dtypes.unique()):
        return frame.to_numpy().reshape(value.shape)
    # by position, since names may repeat
    columns = [frame.iloc[:, j] for j in range(frame.shape[1])]
    read = [_column(column) for column in columns]
    wrong = [
        (label, c)
        for label, c, values in zip(frame.columns.tolist(), columns, read, strict=True)
        if values is None
    ]
    if wrong:
        kinds = [pd.api.types.infer_dtype(column) for _, column in wrong]
        kinds_of_columns = ", ".join(
            f"{label!r} ({kind}, dtype {c.dtype})"
            for (label, c), kind in zip(wrong[:5], kinds, strict=False)
        )
        advice = next(
            (text for kind, text in ADVICE.items() if kinds[0].startswith(kind)), OTHERWISE
        )
        raise TypeError(
            f"{caller}: {name} must hold numbers; these columns do not: {kinds_of_columns}. {advice}."
        )
    return np.array(read, float).T.reshape(value.shape)


def floats(caller: str, name: str, value: Any) -> NumpyArray:
    """Return an argument as float64, read as by `numbers`."""
    return np.asarray(numbers(caller, name, value), float)


def compress_rows(caller: str, name: str, value: Any) -> Any:
    """Convert a sparse argument to SciPy's compressed rows with rising columns; None for anything
    that is not sparse.

    Sparse arguments are SciPy's matrices and arrays, and frames all of whose columns are sparse.
    Raises TypeError if they do not hold numbers.
    """
    if is_pandas(value, "DataFrame"):
        if not len(value.columns) or not all(
            is_pandas(dtype, "SparseDtype") for dtype in value.dtypes
        ):
            return None
        filled = [
            float(dtype.fill_value)
            for dtype in value.dtypes
            if dtype.subtype.kind in PLAIN and dtype.fill_value != 0
        ]
        if filled:
            raise TypeError(
                f"{caller}: the sparse columns of {name} must leave out zeros; some leave out {filled[0]:g}. Give "
                f"{name}.sparse.to_dense()."
            )
        value = value.sparse.to_coo()
    if not scipy.sparse.issparse(value):
        return None
    if value.dtype.kind not in PLAIN:
        raise TypeError(
            f"{caller}: {name} must hold numbers; got a sparse matrix of {value.dtype}."
        )
    if value.ndim != 2:
        return value
    rows = scipy.sparse.csr_array(value)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's may be the same arrays
        rows.sum_duplicates()
    return rows


def is_number(values: Any) -> bool:
    """Tell whether a column, labels or their type are numbers, and not true or false."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _column(column: "pd.Series") -> NumpyArray | None:
    """Return a column as float64; None if it does not hold numbers."""
    if is_pandas(column.dtype, "CategoricalDtype"):
        return None
    if pd.api.types.infer_dtype(
        column.to_numpy()
    ) not in NUMBERS and not pd.api.types.is_bool_dtype(column.dtype):
        return None
    try:
        return column.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        return None


def flags(caller: str, name: str, value: ArrayLike) -> Bool[NumpyArray, " entries"]:
    """Return an argument as booleans; zeros and ones are accepted."""
    array = np.asarray(value)
    if array.dtype != bool and (array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all()):
        raise TypeError(f"{caller}: {name} must be true or false; got {_describe_array(array)}.")
    return array.astype(bool)


def whole(caller: str, name: str, value: ArrayLike) -> EntryIndex:
    """Return an argument as int64.

    Raise if a number is not whole, since rounding it would name another unit.
    """
    array = np.asarray(value)
    if array.size == 0 or array.dtype.kind in "iu":
        return array.astype(int)
    if array.dtype.kind != "f" or not (np.isfinite(array) & (array == np.floor(array))).all():
        raise TypeError(f"{caller}: {name} must be whole numbers; got {_describe_array(array)}.")
    return array.astype(int)


def count(name: str, value: Any, low: int, high: int = 2**40) -> int:
    """Check one whole number from `low` to `high`.

    `name` is the function and its argument, as in "kfold: k".
    """
    array = np.asarray(value)
    if (
        array.ndim
        or array.dtype.kind not in PLAIN
        or not low <= array <= high
        or array != np.floor(array)
    ):
        span = f"of {low} or more"
        if high < 2**40:
            span = f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {span}; got {_describe_value(value)}.")
    return int(array)


def share(name: str, value: Any) -> float:
    """Check one number strictly between 0 and 1."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in PLAIN or not 0 < array < 1:
        raise ValueError(f"{name} must lie between 0 and 1; got {_describe_value(value)}.")
    return float(array)


def generator(caller: str, seed: Any) -> np.random.Generator:
    """Return NumPy's generator from a seed, or the caller's own generator."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"{caller}: rng must be a whole number of 0 or more; got {_describe_value(seed)}."
        ) from None


def _describe_value(value) -> str:
    if np.ndim(value):
        return f"{type(value).__name__} of shape {np.shape(value)}"
    if isinstance(value, np.generic):
        return str(value)
    return repr(value)


def _describe_array(array: NumpyArray) -> str:
    """Describe an array by its type and its first entry that is not a whole number."""
    odd = array
    if array.dtype.kind == "f":
        odd = array[~(np.isfinite(array) & (array == np.floor(array)))]
    if odd.size:
        first = odd.ravel()[0]
    else:
        first = array.ravel()[0]
    return f"an array of {array.dtype}, in it {first}"


def codes(caller: str, name: str, value: ArrayLike | None) -> tuple[UnitNumbers, NumpyArray]:
    """Number labels of any kind in their order, and return the numbers with the labels.

    Raises ValueError if one is missing.
    """
    value = pandas_of(caller, name, value)
    if is_pandas(value, "Series", "Index", "Categorical"):
        array = value
    else:
        array = np.ma.asanyarray(value)
    if np.ndim(array) != 1:
        raise ValueError(
            f"{caller}: {name} must be one label a unit; got an array of shape {np.shape(array)}."
        )
    plain = np.asarray(array)
    missing = pd.isna(plain) if plain.dtype.kind == "O" else plain != plain
    missing = missing | np.ma.getmask(array)
    if missing.any():
        raise ValueError(
            f"{caller}: {name} holds {missing.sum()} missing labels (NaN, None or masked), the first at place "
            f"{np.flatnonzero(missing)[0]}; give those units a label of their own, or drop them."
        )
    if plain.dtype.kind != "O":
        levels, number = np.unique(plain, return_inverse=True)
        return number.ravel(), levels
    number, levels = pd.factorize(plain)
    try:
        order = np.argsort(levels, kind="stable")
    except TypeError:  # labels of several types have no order
        order = np.argsort([f"{type(level).__name__} {level}" for level in levels], kind="stable")
    return np.argsort(order)[number], np.asarray(levels)[order]
