"""Values as arrays and a text, for files that are read without pickle.

Kept are plain values, arrays, tuples, lists, dicts and sets, tables of pandas, and the records of
this package's models, plans and strategies. A record is made of its fields, without its
constructor; one that says of which arguments it is made, such as the passes over a graph, of these.
Functions are not kept, and a file can have none called.
"""

import json
import re
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from .arrays import NamedValues
from .checkpoint import StepResult
from .lazy_jax import CachedValues
from .pandas import is_pandas, pd

PLAIN = bool, int, float, str, type(None)
COLLECTIONS = {cls.__name__: cls for cls in (tuple, list, dict, frozenset)}
# classes that are kept: `module:name`
RECORDS = re.compile(
    r"leaveout\.(data|inference|linalg|models|objectives|optimize|plans|refit)\.[\w.]+:\w+"
)
MAX_PACKED_BYTES = 2**28  # of the arrays of one value, of which a copy is written


class Lacking(str):
    """The name of a type, or the size, that kept a value from being packed."""


def pack(values: NamedValues) -> StepResult:
    """Take values apart, except those that cannot be kept."""
    packed: StepResult = {}
    for name, value in values.items():
        arrays: StepResult = {}
        try:
            outline = _outline(value, f"{name} ", arrays, {})
            if sum(array.nbytes for array in arrays.values()) > MAX_PACKED_BYTES:
                raise TypeError("more than 256 MiB")
            packed |= arrays
        except TypeError as error:
            outline = ["lacking", str(error)]
        packed[name] = np.array(json.dumps(outline))
    return packed


def _outline(value: Any, prefix: str, arrays: StepResult, places: NamedValues) -> Any:
    """List the kind of a value and the outlines of its parts, or name its place if it came before.

    Add its arrays to `arrays`, and its place, by id, to `places`.
    """
    if type(value) in PLAIN:
        return value
    key = str(id(value))
    if key in places:
        return ["again", places[key][0]]
    if isinstance(value, np.ndarray) and value.dtype != object:
        name = f"{prefix}{len(arrays)}"
        arrays[name] = value
        return ["array", name]
    outline = [_outline(part, prefix, arrays, places) for part in _take_apart(value)]
    places[key] = len(places), value  # alive, so that no other gets its id
    return outline


def _take_apart(value: Any) -> list[Any]:
    """List the name of a value's kind, and its parts."""
    cls = type(value)
    if cls is dict:
        return ["dict", *value.items()]
    if cls in COLLECTIONS.values():
        return [cls.__name__, *value]
    if isinstance(value, np.generic):
        return ["scalar", np.asarray(value)]
    if cls is np.ndarray:
        return ["objects", value.shape, *value.ravel()]
    if is_pandas(value, "RangeIndex"):
        return ["RangeIndex", value.start, value.stop, value.step, None, False, value.name]
    if is_pandas(value, "Index") and cls is pd.Index:
        return ["Index", value.to_numpy(), str(value.dtype), False, value.name]
    if is_pandas(value, "DataFrame"):
        columns = [pd.Index(column) for _, column in value.items()]
        return ["DataFrame", value.index, value.columns, *columns]
    kind = f"{cls.__module__}:{cls.__qualname__}"
    if RECORDS.fullmatch(kind) and hasattr(value, "__getnewargs__"):
        return [kind, *value.__getnewargs__()]
    if RECORDS.fullmatch(kind) and is_dataclass(value):
        is_cached = lambda name, part: (
            isinstance(getattr(cls, name, None), cached_property) or isinstance(part, CachedValues)
        )
        parts = vars(value).items()
        return [kind, {name: part for name, part in parts if not is_cached(name, part)}]
    raise TypeError(kind.replace(":", "."))


def unpack(packed: StepResult) -> NamedValues:
    """Put values together again, `Lacking` where one was not kept."""
    return {
        name: _make(json.loads(str(outline)), packed, [])
        for name, outline in packed.items()
        if " " not in name
    }


def _make(outline: Any, arrays: StepResult, values: list[Any]) -> Any:
    """Make a value of its outline, and add it to `values`."""
    if not isinstance(outline, list):
        return outline
    kind, *parts = outline
    if kind == "again":
        return values[parts[0]]
    if kind == "array":
        return arrays[parts[0]]
    value = _assemble(kind, [_make(part, arrays, values) for part in parts])
    values.append(value)
    return value


def _assemble(kind: str, parts: list[Any]) -> Any:
    """Make a value of a kind from its parts."""
    match kind:
        case "tuple" | "list" | "dict" | "frozenset":
            return COLLECTIONS[kind](parts)
        case "lacking":
            return Lacking(*parts)
        case "scalar":
            return parts[0][()]
        case "objects":
            return np.fromiter(parts[1:], object).reshape(parts[0])
        case "RangeIndex" | "Index":
            return getattr(pd, kind)(*parts)
        case "DataFrame":
            index, names, *columns = parts
            table = pd.DataFrame(dict(enumerate(columns)), index)
            table.columns = names  # a copy would have another index
            return table
    cls = None
    if RECORDS.fullmatch(kind):
        module, name = kind.split(":")
        cls = getattr(import_module(module), name)
    if hasattr(cls, "__getnewargs__"):
        return cls(*parts)
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise ValueError(f"{kind} is no record of leaveout.")
    value = cls.__new__(cls)
    vars(value).update(*parts)
    return value
