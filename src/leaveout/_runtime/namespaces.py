"""Modules of public names, which are imported when they are used."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def attach(module: str, file: str, for_users: bool = True) -> Any:
    """Return `__getattr__`, `__dir__` and `__all__` of a module, by the imports of its stub.

    What it hands out for users has signatures that can be read. No name is that of a module beside
    the stub, unless it is that module.
    """
    path = Path(file)
    package = module
    if path.stem != "__init__":
        package = module.rpartition(".")[0]
    homes = {
        alias.name: "." * node.level + (node.module or "")
        for node in ast.parse(path.with_suffix(".pyi").read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(homes)

    def hand_out(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = _import(homes[name], package)
        if name in vars(home):
            value = vars(home)[name]
        else:
            value = _import(f"{home.__name__}.{name}")
        if for_users:
            from .signatures import readable  # once a name is used, for it imports NumPy

            readable(value)
        vars(sys.modules[module])[name] = value
        return value

    return hand_out, names.copy, names


def _import(name: str, package: str | None = None) -> ModuleType:
    """Import a module; ImportError that says what to install if it needs JAX, which is missing."""
    try:
        return import_module(name, package)
    except ModuleNotFoundError as error:
        from .jax import check_missing

        check_missing(error)
        raise
