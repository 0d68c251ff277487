"""Values that are computed once for a fit or a model and cached beside it."""

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

from .jax import float64

_made: dict[tuple[int, Callable], object] = {}
CachedValue = TypeVar("CachedValue")


def cached_on(make: Callable[[Any], CachedValue]) -> Callable[[Any], CachedValue]:
    """Decorate a function of one object, so that its value is computed once and cached beside the object.

    As an attribute it would change the pytree of the object, and everything would be compiled anew.
    """
    lock = threading.RLock()

    @functools.wraps(make)
    def kept(fit):
        key = (id(fit), make)
        with lock:  # batches run in parallel
            if key in _made:
                return cast(CachedValue, _made[key])
            _made[key] = float64(make)(fit)
            weakref.finalize(fit, _made.pop, key, None)
        return cast(CachedValue, _made[key])

    return kept
