"""The shapes in annotations, checked at every call: a type checker that looks at arrays only.

What users hand in is checked by the library, with messages of its own; here it is what its functions hand one another.
"""

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray


def of_arrays(hint: Any) -> bool:
    """Does a hint speak of the shape of an array, alone or within a tuple, a dict or a union?"""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(of_arrays, get_args(hint)))


def arrays(function: Callable) -> Callable:
    """`function`, its arguments and what it returns checked where they are arrays of a stated shape."""
    if isinstance(function, type):
        return function
    hints = {name: hint for name, hint in function.__annotations__.items() if of_arrays(hint)}
    if not hints:
        return function
    function.__annotations__ = hints
    return beartype(function)
