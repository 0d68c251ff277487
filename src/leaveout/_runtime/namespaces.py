"""Packages whose names are imported when they are used, from their stubs."""

from typing import Any

import lazy_loader


def attach(package: str, file: str) -> Any:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    What it hands out has signatures that can be read.
    """
    find, *names = lazy_loader.attach_stub(package, file)

    def hand_out(name: str) -> Any:
        from .signatures import readable  # once a name is used, for it imports NumPy

        return readable(find(name))

    return hand_out, *names
