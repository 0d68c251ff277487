"""Signatures that can be read: `X: ArrayLike`, not all that NumPy's name stands for.

Only `__signature__` is set. Annotations, and with them the checks of types at run time, stay as
they are.
"""

import inspect
from types import FunctionType, ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from numpy.typing import ArrayLike

ARRAY_LIKE = frozenset(get_args(ArrayLike))
MAX_CHOICES = 3  # values of a Literal that are printed
# of a signature that prints types: records of more are results, which nobody calls
MAX_PARAMETERS = 20
NAMES = {"NoneType": "None", "Ellipsis": "...", "Callable": "callable"}
PLAN = "Plan | int | Splitter | Iterable[tuple[ArrayLike, ArrayLike]]"

_holders: set[object] = set()  # classes and modules that have been gone through


class _Text(str):
    """Annotation or default that prints as it is."""

    __repr__ = str.__str__


def readable(value: Any) -> Any:
    """Give a function of ours, or those of a class or module, a short `__signature__`.

    The classes that they return have theirs too.
    """
    home = getattr(value, "__module__", getattr(value, "__name__", None))
    if not str(home).startswith(("leaveout", "namedtuple_")):
        return value
    if isinstance(value, type | ModuleType) and value not in _holders:
        _holders.add(value)
        for name in dir(value):
            if name in ("__init__", "__new__") or name[0] != "_":
                member = inspect.getattr_static(value, name, None)
                readable(getattr(member, "__func__", member))
    elif isinstance(value, FunctionType) and not hasattr(value, "__signature__"):
        signature = inspect.signature(value)
        vars(value)["__signature__"] = _shorten(signature)
        for part in (signature.return_annotation, *get_args(signature.return_annotation)):
            readable(part)
    return value


def _shorten(signature: inspect.Signature) -> inspect.Signature:
    def text(annotation: Any) -> Any:
        if annotation is signature.empty or len(signature.parameters) > MAX_PARAMETERS:
            return signature.empty
        return _Text(_describe(annotation).replace(PLAN, "Plan | int | splitter"))

    parameters = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if isinstance(default, FunctionType):
            default = _Text(default.__name__)
        parameters.append(parameter.replace(annotation=text(parameter.annotation), default=default))
    return signature.replace(
        parameters=parameters, return_annotation=text(signature.return_annotation)
    )


def _describe(annotation) -> str:
    annotation = getattr(annotation, "array_type", annotation)  # of jaxtyping
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin in (Union, UnionType):
        array_like = ARRAY_LIKE.intersection(parts) if ARRAY_LIKE.issubset(parts) else ()
        texts = dict.fromkeys(
            "ArrayLike" if part in array_like else _describe(part) for part in parts
        )
        return " | ".join(sorted(texts, key="None".__eq__))
    if origin is Literal:
        return " | ".join([*map(repr, parts[:MAX_CHOICES]), *["…"] * (len(parts) > MAX_CHOICES)])
    name = getattr(origin or annotation, "__name__", str(annotation))
    if not parts or name in ("Callable", "ndarray"):
        return NAMES.get(name, name)
    return f"{name}[{', '.join(map(_describe, parts))}]"
