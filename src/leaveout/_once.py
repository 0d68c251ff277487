"""What is made once a fit, or a model, and kept beside it."""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ._jax import float64

_made: dict[tuple[int, Callable], object] = {}
Made = TypeVar("Made")


def once(make: Callable[[Any], Made]) -> Callable[[Any], Made]:
    """Made once a fit, and kept beside it: an attribute more would make it another pytree, and recompile everything."""

    lock = threading.RLock()

    @functools.wraps(make)
    def kept(fit):
        key = (id(fit), make)
        with lock:  # batches run side by side
            if key in _made:
                return cast(Made, _made[key])
            _made[key] = float64(make)(fit)
            weakref.finalize(fit, _made.pop, key, None)
        return cast(Made, _made[key])

    return kept
