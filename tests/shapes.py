"""The shapes in annotations, checked at every call: a type checker that looks at arrays only.

What users hand in is checked by the library, with messages of its own; here it is what its functions hand one another.
"""

import functools
import operator
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin

import jax
import numpy as np
from beartype import beartype
from jaxtyping import AbstractArray

NOTHING = (Any, type(None), Ellipsis)  # parts of hints that say nothing of shapes


def of_arrays(hint: Any) -> Any:
    """What a hint says of the shapes of arrays, alone or within a tuple, a dict or a union; `Any` where it says nothing."""
    if hint in NOTHING:
        return hint
    if isinstance(hint, type) and issubclass(hint, AbstractArray):  # NumPy's or JAX's: types are mypy's to compare
        return hint.dtype[jax.Array | np.ndarray, hint.dim_str]
    origin, parts = get_origin(hint), [of_arrays(part) for part in get_args(hint)]
    if origin is Callable or all(part in NOTHING for part in parts):
        return Any
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, parts)
    return origin[tuple(parts)]


def arrays(function: Callable) -> Callable:
    """`function`, its arguments and what it returns checked where they are arrays of a stated shape."""
    if isinstance(function, type):
        return function
    hints = {name: of_arrays(hint) for name, hint in function.__annotations__.items()}
    hints = {name: hint for name, hint in hints.items() if hint not in NOTHING}
    if not hints:
        return function
    function.__annotations__ = hints
    return beartype(function)
