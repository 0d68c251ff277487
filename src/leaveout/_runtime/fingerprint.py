"""Hash of everything that a result depends on: arrays by their bytes, objects by their parts,
functions by their code.

The hash does not reveal the values. Two runs of one program give the same hash.
"""

import dataclasses
import hashlib
import sys
import sysconfig
import types
from collections.abc import Collection, Iterable
from enum import Enum
from functools import partial, reduce
from inspect import isfunction, ismethod, isroutine, unwrap
from typing import Any

import numpy as np
from numpy import ndarray

from .pandas import is_pandas

PLAIN = bool, int, float, complex, str, type(None), type(Ellipsis), Enum, slice, range
# folders of code that is hashed by name
LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class Foreign(TypeError):
    """Code of a package that is not trusted to be the same wherever it has the same name."""


def fingerprint(value: Any, *, data: bool = True, trusted: Collection[str] = ()) -> str:
    """Hash a value with everything that it refers to.

    Without `data` all arrays and tables hash alike: the hash then says how something is computed.
    If packages are `trusted`, their functions are hashed by their place in their files, and classes
    and functions of other packages raise `Foreign`. Objects that cannot be taken apart, such as an
    open file or a lock, raise TypeError.
    """
    hasher = _Trusting(trusted) if trusted else _Hash(data)
    hasher.add(value)
    return hasher.sum.hexdigest()


class _Hash:
    """Hash of the values added so far.

    An object that comes again is represented by the place where it came first.
    """

    def __init__(self, data: bool = True) -> None:
        self.sum = hashlib.blake2b(digest_size=16)
        self.visited = dict[int, int]()
        self.alive = list[Any]()
        self.data = data

    def add(self, value) -> None:
        """Add a value of any kind."""
        if isinstance(value, bytes):
            self._update("bytes", str(len(value)))
            return self.sum.update(value)
        if isinstance(value, PLAIN):
            return self._update(type(value).__name__, repr(value))
        if not self.data and hasattr(value, "__array__") and np.ndim(value):
            return self._update("data", "")
        if isinstance(value, ndarray | np.generic) and value.dtype != object:
            return self._array(np.asarray(value))
        if id(value) in self.visited:
            return self._update("again", str(self.visited[id(value)]))
        self.visited[id(value)] = len(self.visited)
        self.alive.append(value)  # so that no other object gets its id
        if isinstance(value, ndarray):
            return self._parts(f"objects {value.shape}", value.ravel().tolist())
        if isinstance(value, types.ModuleType):
            return self._update("module", value.__name__)
        if isinstance(value, type):
            return self._class(value)
        if isroutine(value) or isinstance(value, partial) or hasattr(value, "__wrapped__"):
            return self._function(value)
        return self._object(value)

    def _update(self, kind: str, text: str) -> None:
        self.sum.update(f"{kind}:{len(text)}:{text};".encode())

    def _array(self, value: ndarray) -> None:
        self._update("array", f"{value.dtype.str}{value.shape}")
        self.sum.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _parts(self, kind: str, parts: Iterable[Any]) -> None:
        listed = list(parts)
        self._update(kind, str(len(listed)))
        for part in listed:
            self.add(part)

    def _object(self, value) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, tuple | list):
            return self._parts(kind, value)
        if isinstance(value, dict):
            return self._parts(kind, (part for pair in value.items() for part in pair))
        if isinstance(value, set | frozenset):
            return self._parts(kind, sorted(map(fingerprint, value)))
        if is_pandas(value, "DataFrame"):
            return self._parts(
                kind, [value.index, *(part for pair in value.items() for part in pair)]
            )
        if is_pandas(value, "Series"):
            return self._parts(kind, [value.index, value.to_numpy()])
        if hasattr(value, "__array__"):  # also arrays of JAX, and an index
            return self._parts(kind, [np.asarray(value)])
        self.add(type(value))
        if dataclasses.is_dataclass(value):  # values cached beside the fields are not part of it
            names = [field.name for field in dataclasses.fields(value)]
            return self._parts(kind, [(name, getattr(value, name, None)) for name in names])
        reduction = value.__reduce_ex__(4)
        if isinstance(reduction, str):
            return self._update(kind, reduction)
        parts = [list(part) if hasattr(part, "__next__") else part for part in reduction]
        return self._parts(kind, parts)

    def _class(self, value: type) -> None:
        """Add a class by its name, and the functions of the caller's own classes too."""
        self._update("class", f"{value.__module__}.{value.__qualname__}")
        functions = [
            part for part in vars(value).values() if isfunction(part) and _is_user_code(part)
        ]
        self._parts("functions", functions)

    def _function(self, value) -> None:
        if isinstance(value, partial):
            return self._parts("partial", [value.func, value.args, value.keywords])
        if ismethod(value):
            return self._parts("method", [value.__func__, value.__self__])
        if isfunction(value) and not _is_user_code(value):
            value = unwrap(value)
        # as compiled functions have
        if not isfunction(value) and hasattr(value, "__wrapped__"):
            return self._parts("wrapped", [value.__wrapped__])
        self._update(
            "function", f"{value.__module__}.{getattr(value, '__qualname__', value.__name__)}"
        )
        if isfunction(value):
            self._parts(
                "given",
                [value.__defaults__, value.__kwdefaults__, *map(_content, value.__closure__ or ())],
            )
            if _is_user_code(value):
                self._code(value, value.__code__)

    def _code(self, function, code: types.CodeType) -> None:
        """Add the bytecode of a function and the globals that it uses."""
        inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
        self._parts(
            "code",
            [code.co_code, code.co_names, *(part for part in code.co_consts if part not in inner)],
        )
        self._parts(
            "uses",
            [function.__globals__[name] for name in code.co_names if name in function.__globals__],
        )
        for part in inner:
            self._code(function, part)


class _Trusting(_Hash):
    """Hash in which trusted code stands for itself by name and place."""

    def __init__(self, trusted: Collection[str]) -> None:
        super().__init__()
        self.trusted_values = trusted

    def _class(self, value: type) -> None:
        for cls in value.__mro__:
            definition = reduce(
                lambda part, name: getattr(part, name, None),
                cls.__qualname__.split("."),
                self._home(cls),
            )
            if definition is not cls:  # created by a function from its arguments
                raise Foreign(cls.__qualname__)
        super()._class(value)

    def _function(self, value) -> None:
        if isfunction(value):
            self._home(value)
            self._update(
                "place", str((value.__code__.co_firstlineno, *value.__code__.co_positions()))
            )
        super()._function(value)

    def _home(self, value: Any):
        """Module that defines a trusted value; raises `Foreign` for others."""
        if (value.__module__ or "").split(".")[0] not in self.trusted_values:
            raise Foreign(f"{value.__module__}.{value.__qualname__}")
        return sys.modules.get(value.__module__)


def _is_user_code(function) -> bool:
    """Tell whether a function is the caller's own, rather than an installed library's."""
    name = function.__module__ or ""
    file = function.__code__.co_filename
    return name.split(".")[0] != __name__.split(".")[0] and not file.startswith(LIBRARY_FOLDERS)


def _content(cell: Any):
    """Return the content of a closure's cell; None if it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
