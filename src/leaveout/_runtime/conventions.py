"""What every public function does alike.

Random numbers by `rng`, names of arguments, kinds of tables, warnings.
"""

import functools
import inspect
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np

from .namespaces import nearest, words
from .pandas import is_pandas, pd

P = ParamSpec("P")
T = TypeVar("T")

Rng = int | np.random.Generator | None
# functions that make tables of columns, by their library
TABLES = {"polars": "DataFrame", "pyarrow": "table"}
_chosen = {"output": "pandas"}

EXAMPLES = {"plan": ", such as lo.leave_one_out() or 5", "loss": ", such as 'squared'"}

log = logging.getLogger("leaveout")

SEEDS = 2**31  # seeds drawn from a generator are below: scikit-learn and optuna take no larger ones


def conventional(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: `rng` is what SPEC 7 says, and a table of the kind that `config`
    names.

    The function gets a whole number as its `rng`, so that a result can name what repeats it: one
    that a generator draws; None draws one that differs from call to call.
    """
    name = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    is_open = inspect.Parameter.VAR_KEYWORD in kinds
    by_position = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    named = [name for name in parameters if name not in by_position]
    num_positions = len(by_position)
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and "*" not in str(parameter)
    ]
    form = f"{name}({', '.join(by_position).removeprefix('self, ')})"
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        num_positions = sys.maxsize

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        arguments: dict[str, Any] = kwargs  # names are checked here, types by the function
        for word in arguments:
            if word not in parameters and not is_open:
                raise TypeError(f"{name}: it takes no {word}=: {_answer(word, parameters)}.")
        if len(args) > num_positions:
            names = ", ".join(f"{name}=" for name in named)
            ways = f"name the others, such as {names}"
            if hasattr(args[0], "get_params") and "estimator" not in parameters:
                ways = "lo.from_sklearn(estimator, X, y) makes a fit of an estimator, lo.sklearn.cross_validate takes it"
            elif name == "compare":
                ways = "estimates have names, compare({'a': first, 'b': second})"
            raise TypeError(
                f"{name}: {len(args)} arguments stand by position, where {form} has {num_positions}; {ways}."
            )
        lacking = [word for word in required[len(args) :] if word not in arguments]
        if lacking:
            example = EXAMPLES.get(lacking[0], "")
            raise TypeError(
                f"{name}: {' and '.join(lacking)} must be given{example}, as in {form}."
            )
        if "rng" in arguments:
            rng = arguments["rng"]
            try:
                if not isinstance(rng, int | np.integer):
                    arguments["rng"] = int(np.random.default_rng(rng).integers(SEEDS))
            except (TypeError, ValueError):
                raise TypeError(
                    f"{name}: rng must be a whole number, a NumPy Generator or None; got {rng!r}."
                ) from None
        result = function(*args, **kwargs)
        if _chosen["output"] != "pandas" and is_pandas(result, "DataFrame", "Series"):
            frame: Any = inspect.currentframe()
            if not _is_ours(frame.f_back):
                return _table(result)
        return result

    return call


def _answer(word: str, parameters: Iterable[str]) -> str:
    """Say what stands for an argument that a function does not take."""
    ours = {name: name for name in parameters} | words()["synonyms"]
    answers = words()["arguments"] | {
        word: f"it is {name}=" for word, name in ours.items() if name in parameters
    }
    names = [f"{name}=" for name in parameters if name != "self"]
    return nearest(word, answers) or f"there are {', '.join(names)}"


def lacking_attribute(kind: type, name: str) -> AttributeError:
    """Return the error of an attribute that results of a kind lack, with what stands for it."""
    answers = {word: f": it is {word}" for word in dir(kind) if word[0] != "_"}
    for part in kind.__mro__:
        attributes = words().get(part.__name__, {}).items()
        answers |= {word: f": it is {answer}" for word, answer in attributes}
    return AttributeError(
        f"{kind.__name__!r} object has no attribute {name!r}{nearest(name, answers)}"
    )


def _table(table: "pd.DataFrame | pd.Series"):
    """Convert a table to the kind that `config` names. Labels of rows become its first columns."""
    columns = {}
    if table.index.names != [None] or not is_pandas(table.index, "RangeIndex"):
        levels = table.index.to_frame().items()
        columns = {
            name if isinstance(name, str) else f"label{name or ''}": level for name, level in levels
        }
    frame = table
    if is_pandas(table, "Series"):
        name = "value" if table.name is None else table.name
        frame = table.to_frame(name)
    columns |= {
        " ".join(map(str, key)) if isinstance(key, tuple) else str(key): part
        for key, part in frame.items()
    }
    make = getattr(import_module(_chosen["output"]), TABLES[_chosen["output"]])
    return make({name: part.to_list() for name, part in columns.items()})


class config:
    """Choose the kind of the tables that results give, until it is changed or to the end of a
    `with` block.

    Functions and methods that return a DataFrame, such as `compare`, `Estimate.table` and
    `interval`, then return a table of the library that is named. It has the labels of rows as its
    first column. Tables that are fields of a result, such as `Estimate.audit`, stay as they are.

    Parameters
    ----------
    output : {"pandas", "polars", "pyarrow"}
        Library of the tables. Frames of all three are taken as data, whatever it is.

    Examples
    --------
    >>> import numpy as np
    >>> import leaveout as lo
    >>> fit = lo.fit(lo.GLM(np.eye(6)[:, :1], np.arange(6.0), "squared"))
    >>> with lo.config(output="polars"):
    ...     table = lo.cross_validate(fit, lo.leave_one_out()).table()
    >>> type(table).__module__.partition(".")[0], table.shape
    ('polars', (6, 6))
    """

    def __init__(self, *, output: Literal["pandas", "polars", "pyarrow"]):
        if output not in ("pandas", *TABLES):
            raise ValueError(
                f"config: output must be 'pandas', {', '.join(map(repr, TABLES))}; got {output!r}."
            )
        self._before = _chosen["output"]
        _chosen["output"] = output

    def __enter__(self) -> "config":
        return self

    def __exit__(self, *_: object) -> None:
        _chosen["output"] = self._before


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning, unless it is empty, that points at the line outside the library that called
    it.
    """
    depth = 1
    level = 1
    frame = inspect.currentframe()
    while frame is not None:
        depth, level = depth + 1, depth if _is_ours(frame) else level
        frame = frame.f_back
    if message:
        warnings.warn(message, category, stacklevel=level + 1)


def _is_ours(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]
