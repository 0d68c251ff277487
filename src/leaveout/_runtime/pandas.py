"""pandas, imported at its first use: fits of arrays, and their refits, take none of it."""

import importlib
import operator
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
else:

    class _Deferred(types.ModuleType):
        """A module that is imported when one of its names is asked for."""

        def __getattr__(self, name: str):
            return getattr(importlib.import_module(self.__name__), name)

    pd = _Deferred("pandas")

__all__ = ["is_pandas", "pd"]


def is_pandas(value: Any, *names: str) -> bool:
    """Tell whether a value is of one of these classes of pandas, such as "Series"."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, operator.attrgetter(*names)(pandas))
