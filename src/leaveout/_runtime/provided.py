"""Modules that results need and may not import, as they stand in rooms below theirs: pictures, pages, nested intervals.

The package's face (`leaveout/__init__.py`) stands above all rooms. It names a loader for each such module; a method of a result
asks here when it is called.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

_loaders: dict[str, Callable[[], ModuleType]] = {}


def provide(**loaders: Callable[[], ModuleType]) -> None:
    """Name the functions that import a module, by the names that `provided` is asked for."""
    _loaders.update(loaders)


def provided(name: str) -> Any:
    """Import and return the module of that name."""
    return _loaders[name]()
