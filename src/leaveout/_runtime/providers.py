"""Loaders of modules that the core uses but may not import, since they are in later rooms or in
extensions: plots, pages, nested intervals.

`leaveout/__init__.py` registers a loader for each such module; what needs one calls `provided`.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

_loaders: dict[str, Callable[[], ModuleType]] = {}


def provide(**loaders: Callable[[], ModuleType]) -> None:
    """Register functions that import a module, by name."""
    _loaders.update(loaders)


def provided(name: str) -> Any:
    """Import and return the module of that name."""
    return _loaders[name]()
