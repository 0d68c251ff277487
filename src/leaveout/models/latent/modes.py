"""Newton's method for modes.

Minima of many convex functions at once, with one control of steps for all of them.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from ..._runtime import NumpyArray

# values `[...]`, and a function that returns Newton steps `[variables, ...]`, by new factors if it
# is asked for these
ValueAndSteps = tuple[NumpyArray, Callable[[bool], NumpyArray]]

# with halvings; far from the mode of a Poisson response ten halvings come before five steps
MAX_STEPS = 100
MODE_ROUNDING = 1e-13  # distance from a mode, relative to a variable or to one, that is rounding
ALLOWED_RISE = 1e-10  # rise of a function that counts as rounding


def newton(
    look: Callable[[NumpyArray], ValueAndSteps],
    start: Float[NumpyArray, "variables ..."],
    reuse: float = 0.0,
    most: int = MAX_STEPS,
    fresh: bool = True,
) -> tuple[Float[NumpyArray, "variables ..."], Bool[NumpyArray, "..."]]:
    """Minimise convex functions by Newton's method from a start; steps are halved where a function
    rises.

    The factors of a step serve for as long as successive steps shrink below the ratio `reuse`; the
    first are new if `fresh`. A search ends where the next step would be rounding, or after the
    `most` steps. The last step is not checked. Returns the minima, and where the search ended.
    """
    point = start
    step = np.zeros_like(start)
    lowest = before = np.full(start.shape[1:], np.inf)
    with np.errstate(all="ignore"):
        for _ in range(most):
            trial = point - step
            value, steps = look(trial)
            new_step = steps(fresh)
            size = _relative_size(new_step, trial)
            good = value <= lowest + ALLOWED_RISE * (1 + np.abs(lowest))
            if not fresh and (good & ~(size <= np.maximum(reuse * before, MODE_ROUNDING))).any():
                new_step = steps(True)
                fresh = True
                size = _relative_size(new_step, trial)
            good &= np.isfinite(size)
            if fresh:
                shrinks = size
            else:
                shrinks = np.where(np.isfinite(before), size / before, 1.0)
            ended = good & (size * np.minimum(shrinks, 1.0) <= MODE_ROUNDING)
            length = size
            if not good.all():
                trial = np.where(good, trial, point)
                new_step = np.where(good, new_step, step / 2)
                value = np.where(good, value, lowest)
                size = np.where(good, size, before)
                length = _relative_size(new_step, trial)
            point = trial
            step = new_step
            lowest = value
            before = size
            # a search from where a function has no value, and one whose steps have become rounding,
            # lead nowhere
            if (ended | np.isinf(lowest) | (length <= MODE_ROUNDING)).all():
                break
            fresh = not reuse or not good.all()
    return point - step, ended


def _relative_size(step: NumpyArray, point: NumpyArray) -> NumpyArray:
    """Largest change of a variable, relative to it or to one."""
    return np.max(np.abs(step) / (1 + np.abs(point)), 0, initial=0.0)
