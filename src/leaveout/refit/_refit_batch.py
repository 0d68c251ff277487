"""Result of a strategy: a batch of refits."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..objectives.objective import PerRefit, RefitPoints


class CommonError(NamedTuple):
    """Common part of the errors of single rows.

    It has their losses without each group of probes, the error of the mean from other sources, and
    the number of probes.
    """

    draws: Float[np.ndarray, "refits groups"]
    distance_left: float
    probes: int


@dataclass(frozen=True, eq=False)
class RefitBatch:
    """Batch of refits.

    `make` computes the raveled θ on demand. `error` is the absolute error of each refit's summed
    held-out loss, `proved` tells whether it is proved, and `result` is the code. `scores` are the
    held-out losses, if they are known. `ball` returns whitened centres and radii of balls that
    contain the exact refits. `step_length` is the length of each first step, `gradients` the number
    of gradients of all refits, and `common_error` the common part of otherwise independent errors.
    `parameters_at` maps whitened u to θ if the coordinates are not those of the fit.
    """

    make: Callable[[], RefitPoints]
    error: PerRefit
    result: Int[np.ndarray, " refits"]
    scores: Float[np.ndarray, "refits ..."] | None = None
    proved: Bool[np.ndarray, " refits"] | None = None
    ball: Callable[[], tuple[Float[np.ndarray, "refits rank"], PerRefit]] | None = None
    step_length: PerRefit | None = None
    gradients: float = 0.0
    common_error: CommonError | None = None
    parameters_at: Callable[[Float[np.ndarray, "refits rank"]], RefitPoints] | None = None

    @functools.cached_property
    def theta(self) -> RefitPoints:
        return self.make()
