"""Modules that the core uses but may not import, since they are in later rooms or in extensions:
plots, pages, nested intervals.

`leaveout/__init__.py` registers each such module; what needs one calls `provided`.
"""

from importlib import import_module
from typing import Any

_modules: dict[str, str] = {}


def provide(**modules: str) -> None:
    """Register modules, by the names under which they are asked for."""
    _modules.update(modules)


def provided(name: str) -> Any:
    """Import and return the module of that name."""
    return import_module(_modules[name])
