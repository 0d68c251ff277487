"""What every public function does alike: random numbers by `seed` or `rng`, and the names of arguments."""

import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P, T = ParamSpec("P"), TypeVar("T")

Rng = int | np.random.Generator | None
SEEDS = 2**31  # seeds drawn from a generator are below: scikit-learn and optuna take no larger ones


def conventional(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: it takes `rng` in place of `seed`, as SPEC 7 asks, and `refit`, the old name of `strategy`.

    A generator gives a seed, so that a result can name the seed that repeats it; a whole number is the seed. None, if it is
    passed, draws a seed that differs from call to call.
    """
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        taken: dict[str, Any] = named  # names are checked here, types by the function
        if "rng" in taken:
            if "seed" in taken:
                raise TypeError(f"{name}: rng= stands in place of seed=; give one of them.")
            rng = taken.pop("rng")
            whole = isinstance(rng, int | np.integer)
            try:
                taken["seed"] = rng if whole else int(np.random.default_rng(rng).integers(SEEDS))
            except (TypeError, ValueError):
                raise TypeError(f"{name}: rng must be a whole number, a NumPy Generator or None; got {rng!r}.") from None
        if "refit" in taken:
            warn(f"{name}: refit= is now strategy=.", DeprecationWarning)
            taken["strategy"] = taken.pop("refit")
        return function(*args, **named)

    return call


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning, unless it is empty, that points at the line outside the library that called it."""
    depth, level, frame = 1, 1, inspect.currentframe()
    while frame is not None:
        depth, level = depth + 1, depth if _is_ours(frame) else level
        frame = frame.f_back
    if message:
        warnings.warn(message, category, stacklevel=level + 1)


def _is_ours(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]
