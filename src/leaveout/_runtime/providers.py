"""Modules that are imported where they are used: those that the core may not import, since they are
in later rooms or in extensions, such as plots, pages and nested intervals, and optional libraries.

`leaveout/__init__.py` registers each module of ours; what needs one calls `provided`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_modules: dict[str, str] = {}


def provide(**modules: str) -> None:
    """Register modules, by the names under which they are asked for."""
    _modules.update(modules)


def provided(name: str) -> Any:
    """Import and return the module of that name."""
    return import_module(_modules[name])


@contextmanager
def optional(need: str) -> Iterator[None]:
    """Import libraries that may be missing; ImportError with the need, and how to install them."""
    try:
        yield
    except ImportError as error:
        raise ImportError(need) from error
