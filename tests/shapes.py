"""The shapes in annotations, checked at every call: a type checker that looks at arrays only.

What users hand in is checked by the library, with messages of its own; here it is what its
functions hand one another. Whether values agree with annotations depends on their types and shapes
alone. So a function is checked once for each combination of them that it meets, and a call that
looks like an earlier one costs a look into a set. Most calls of a function that is called very
often are not looked at. A function whose annotations state no shape stays as it is.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Hashable
from types import FunctionType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import jax
import jaxtyping
import numpy as np
from beartype import beartype
from jaxtyping import AbstractArray

NOTHING = (Any, type(None), Ellipsis)  # parts of hints that say nothing of shapes
NOT_GIVEN = inspect.Parameter.empty
# calls of a function in a process that are all looked at, and of how many later ones one is
OFTEN, ONE_OF = 200, 16
IS_ARRAY: dict[type, bool] = {}
jaxtyped = jaxtyping.jaxtyped


def of_arrays(hint: Any) -> Any:
    """What a hint says of the shapes of arrays, alone or within a tuple, a dict or a union.

    `Any` where it says nothing.
    """
    if hint in NOTHING:
        return hint
    # NumPy's or JAX's: types are mypy's to compare
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        found = hint.dtype[jax.Array | np.ndarray | np.generic, hint.dim_str]
        return found | float if hint.dim_str == "" else found  # a number of Python is a scalar too
    origin, parts = get_origin(hint), [of_arrays(part) for part in get_args(hint)]
    if origin is Callable or all(part in NOTHING for part in parts):
        return Any
    if origin in (Union, UnionType):
        return Any if Any in parts else functools.reduce(operator.or_, parts)
    return origin[tuple(parts)]


def _stated(function: FunctionType) -> dict[str, Any]:
    """What the annotations of a function say of shapes, by the parameter's name or "return"."""
    stated = {}
    for name, hint in function.__annotations__.items():
        if not isinstance(hint, str) and of_arrays(hint) in NOTHING:
            continue
        probe = lambda: None
        probe.__annotations__ = {"value": hint}
        try:
            hint = of_arrays(get_type_hints(probe, function.__globals__)["value"])
        except NameError:  # imported for mypy only
            continue
        if hint not in NOTHING:
            stated[name] = hint
    return stated


def fits(value: Any, hint: Any) -> bool:
    """Whether a value surely agrees with a hint.

    Code for it, which beartype writes, takes longer to make than most functions are called. It is
    asked where this says no, and says what is wrong.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple and type(value) is tuple and parts:
        if parts[-1] is Ellipsis:
            return all(fits(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(fits, value, parts))
    if origin is list and type(value) is list:
        return all(fits(item, parts[0]) for item in value)
    if origin is dict and type(value) is dict:
        return all(fits(item, parts[1]) for item in value.values())
    return hint is Any or (isinstance(hint, type) and origin is None and isinstance(value, hint))


def look(value: Any) -> Hashable:
    """All that a check of shapes sees of a value.

    Types, and the shapes and types of the arrays within.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *map(look, value))
    if kind is dict:
        return (kind, *((key, look(part)) for key, part in value.items()))
    if kind not in IS_ARRAY:
        IS_ARRAY[kind] = isinstance(value, np.ndarray | jax.Array)  # which takes JAX long
    return (kind, value.shape, value.dtype) if IS_ARRAY[kind] else kind


class Check:
    """What is checked of a function, and the looks of the calls that passed.

    It keeps the function's code, but not what a function within a function holds.
    """

    def __init__(self, function: FunctionType):
        self.code = function.__code__
        self.names = function.__module__, function.__qualname__
        self.hints, self.known, self.calls = _stated(function), set(), 0
        self.returns = "return" in self.hints
        if self.returns:
            self.hints["returned"] = self.hints.pop("return")
        self.places = []
        for place, (name, parameter) in enumerate(
            inspect.signature(function).parameters.items() if self.hints else ()
        ):
            if name in self.hints and parameter.kind is parameter.VAR_POSITIONAL:
                self.places.append((slice(place, None), name))
                self.hints[name] = tuple[self.hints[name], ...]
            elif name in self.hints:
                self.places.append((place, name))

    def values(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments that have a stated shape, by name."""
        return {
            name: args[place]
            if isinstance(place, slice) or place < len(args)
            else kwargs.get(name, NOT_GIVEN)
            for place, name in self.places
        }

    def agree(self, values: dict[str, Any]) -> None:
        """Raise where values do not agree with their annotations, of which one name stands for one
        number.
        """
        given = {name: value for name, value in values.items() if value is not NOT_GIVEN}
        with jaxtyped("context"):
            if all(fits(value, self.hints[name]) for name, value in given.items()):
                return
        self._checker(*given)(**given)

    @functools.cache  # noqa: B019
    def _checker(self, *names: str) -> Callable[..., None]:
        scope: dict[str, Any] = {}
        exec(f"def check({', '.join(names)}): pass", scope)
        check = scope["check"]
        check.__module__, check.__qualname__ = self.names
        check.__annotations__ = {name: self.hints[name] for name in names}
        return jaxtyped(check, typechecker=beartype)


# by the function's code, of which a function within a function has one in all calls
CHECKS: dict[int, Check] = {}


def checked(function: Any = None, *, typechecker: Any = None) -> Any:
    """`function`, its arguments and what it returns checked where they are arrays of a stated
    shape; a class, its fields.
    """
    if function is None:
        return checked
    if isinstance(function, type):
        if dataclasses.is_dataclass(function) and not hasattr(function.__init__, "checked"):
            function.__init__ = checked(function.__init__)
        return function
    check = CHECKS.get(id(function.__code__)) or CHECKS.setdefault(
        id(function.__code__), Check(function)
    )
    if not check.hints:
        return function

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        check.calls += 1
        if check.calls > OFTEN and check.calls % ONE_OF:
            return function(*args, **kwargs)
        values = check.values(args, kwargs)
        before = tuple(map(look, values.values()))
        if before not in check.known:
            check.agree(values)
            check.known.add(before)
        result = function(*args, **kwargs)
        if check.returns and (after := (before, look(result))) not in check.known:
            check.agree(values | {"returned": result})
            check.known.add(after)
        return result

    wrapped.checked = True
    return wrapped
